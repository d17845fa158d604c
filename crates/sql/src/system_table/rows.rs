//! The rows of a relation of the system, kept while the schema stays, with indexes of columns.

use super::relation_rows::{self, Input};
use crate::context::SessionContext;
use crate::schema::Schema;
use crate::statement::SystemRelation;
use crate::value::Value;
use basalt::env::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The rows of a relation as of the schema that was read last.
#[derive(Default)]
pub struct RowCache {
    schema: Weak<Schema>,
    rows: Arc<SystemRows>,
}

impl RowCache {
    /// Returns the rows of a relation as of a schema.
    pub fn rows(
        &mut self,
        schema: &Arc<Schema>,
        relation: &SystemRelation,
        context: &SessionContext,
    ) -> Arc<SystemRows> {
        let is_stable = relation.name != "pg_settings";
        // The allocation of a schema is not used again while a weak reference to it is kept.
        if !is_stable || !std::ptr::eq(self.schema.as_ptr(), Arc::as_ptr(schema)) {
            let input = Input {
                catalog: &schema.catalog,
                user: &context.user,
                settings: &context.settings().lock(),
            };
            let rows = relation_rows::of(&input, relation);
            self.rows = Arc::new(SystemRows {
                rows,
                indexes: Mutex::default(),
            });
            self.schema = Arc::downgrade(schema);
        }
        self.rows.clone()
    }
}

/// A value by which rows are found.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum RowKey {
    Integer(i64),
    Text(String),
}

impl RowKey {
    fn of(value: &Value) -> Option<RowKey> {
        match value {
            Value::Integer(n) => Some(RowKey::Integer(*n)),
            Value::Text(text) => Some(RowKey::Text(text.clone())),
            _ => None,
        }
    }
}

type ColumnIndex = BTreeMap<RowKey, Vec<usize>>;

/// The rows of a relation.
#[derive(Default)]
pub struct SystemRows {
    /// The rows, with their values in the order of the columns.
    pub rows: Vec<Vec<Value>>,
    /// Positions of rows by the values of a column, made when a scan first compares the column.
    indexes: Mutex<BTreeMap<usize, Arc<ColumnIndex>>>,
}

/// The rows that a scan returns.
#[derive(Default)]
pub enum Picked {
    /// All rows.
    #[default]
    All,
    /// The rows at these positions.
    Some(Vec<usize>),
}

impl SystemRows {
    /// Returns the rows that can have a value in a column. SQLite compares them again.
    pub fn pick(&self, column: usize, holds_integers: bool, wanted: &Value) -> Picked {
        let wanted = match (RowKey::of(wanted), holds_integers) {
            _ if wanted.is_null() => return Picked::Some(Vec::new()),
            (Some(key @ RowKey::Integer(_)), true) => key,
            (Some(key @ RowKey::Text(_)), false) => key,
            // SQLite converts one of the values for the comparison.
            _ => return Picked::All,
        };
        let index = self.index(column);
        Picked::Some(index.get(&wanted).cloned().unwrap_or_default())
    }

    fn index(&self, column: usize) -> Arc<ColumnIndex> {
        let mut indexes = self.indexes.lock();
        let made = indexes.entry(column).or_insert_with(|| {
            let mut index = ColumnIndex::new();
            for (at, row) in self.rows.iter().enumerate() {
                if let Some(key) = row.get(column).and_then(RowKey::of) {
                    index.entry(key).or_default().push(at);
                }
            }
            Arc::new(index)
        });
        made.clone()
    }
}
