//! The definitions of tables, indexes, views and sequences.

use crate::types::SqlType;
use crate::value::{Value, ValueRef};

/// The number of a table, an index, a view or a sequence: unique in a database, never used again.
pub type ObjectId = u32;

/// The position of a column in its table, from 0, also counting dropped columns.
pub type ColumnPosition = u16;

/// The definition of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableDef {
    /// Number of the table.
    pub id: ObjectId,
    /// Name, as the user gave it, folded to lower case if it was not quoted.
    pub name: String,
    /// All columns, also dropped ones, so that positions stay.
    pub columns: Vec<ColumnDef>,
    /// The columns of the primary key, in its order. Empty for a table without one: a hidden row
    /// number is then its key.
    pub primary_key: Vec<ColumnPosition>,
    /// Name of the primary key's constraint.
    pub primary_key_name: String,
    /// The sequence of row numbers of a table without a primary key.
    pub row_sequence: Option<ObjectId>,
    /// Secondary indexes, those of UNIQUE constraints included.
    pub indexes: Vec<IndexDef>,
    /// CHECK constraints.
    pub checks: Vec<CheckDef>,
    /// Foreign keys of this table, which is the child.
    pub foreign_keys: Vec<ForeignKeyDef>,
    /// Number of changes of this definition. A transaction that used another version conflicts.
    pub version: u64,
    /// The table has all rows of the query that makes it. Until then no statement sees it, and an
    /// opening removes it.
    pub is_ready: bool,
    /// Number of the family that has the rows. TRUNCATE and a change that rewrites all rows give
    /// the table a new one.
    pub storage: ObjectId,
}

/// The definition of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnDef {
    /// Name of the column.
    pub name: String,
    /// Its type.
    pub ty: SqlType,
    /// NULL is refused.
    pub not_null: bool,
    /// The expression that fills the column if an INSERT does not name it, in the executor's
    /// dialect.
    pub default: Option<String>,
    /// The value of rows that were written before the column was added, if it is not NULL.
    pub missing: Option<Value>,
    /// The sequence that fills the column, for SERIAL and IDENTITY columns.
    pub sequence: Option<ObjectId>,
    /// An INSERT must not give a value: GENERATED ALWAYS AS IDENTITY.
    pub always_generated: bool,
    /// The column was dropped: statements do not see it.
    pub dropped: bool,
}

/// The definition of a secondary index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexDef {
    /// Number of the index.
    pub id: ObjectId,
    /// Name of the index, and of its UNIQUE constraint.
    pub name: String,
    /// Its columns, in order.
    pub columns: Vec<ColumnPosition>,
    /// No two rows have the same values, unless one of the values is NULL.
    pub unique: bool,
    /// The index was made by a UNIQUE constraint.
    pub is_constraint: bool,
    /// The index has the entries of all rows. Until then no plan reads it.
    pub is_ready: bool,
    /// Number of the family that has the entries.
    pub storage: ObjectId,
}

/// A CHECK constraint.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckDef {
    /// Name of the constraint.
    pub name: String,
    /// The expression, in the executor's dialect, over quoted column names.
    pub expression: String,
    /// The expression as the user wrote it.
    pub text: String,
}

/// What happens to children when their parent is deleted or its key changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ForeignKeyAction {
    /// The statement fails, at once or at its end: NO ACTION and RESTRICT.
    Restrict = 0,
    /// The children are deleted, or get the new key.
    Cascade = 1,
    /// The children's columns become NULL.
    SetNull = 2,
    /// The children's columns get their defaults.
    SetDefault = 3,
}

/// A foreign key.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignKeyDef {
    /// Name of the constraint.
    pub name: String,
    /// The columns of the child.
    pub columns: Vec<ColumnPosition>,
    /// The table that is referred to.
    pub parent: ObjectId,
    /// The columns of the parent, in the order of `columns`.
    pub parent_columns: Vec<ColumnPosition>,
    /// The unique index of the parent that has these columns; `None` for its primary key.
    pub parent_index: Option<ObjectId>,
    /// What a delete of the parent does.
    pub on_delete: ForeignKeyAction,
    /// What a change of the parent's key does.
    pub on_update: ForeignKeyAction,
}

/// The definition of a view.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewDef {
    /// Number of the view.
    pub id: ObjectId,
    /// Name of the view.
    pub name: String,
    /// The query in the executor's dialect.
    pub query: String,
    /// The query as the user wrote it.
    pub text: String,
    /// Names and types of the view's columns.
    pub columns: Vec<(String, SqlType)>,
    /// The tables and views that the query reads, by name.
    pub reads: Vec<String>,
}

/// The definition of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceDef {
    /// Number of the sequence.
    pub id: ObjectId,
    /// Name of the sequence.
    pub name: String,
    /// The first value.
    pub start: i64,
    /// The difference of two values; not 0.
    pub increment: i64,
    /// The table and column that it belongs to: it is dropped with them.
    pub owner: Option<(ObjectId, ColumnPosition)>,
}

impl TableDef {
    /// Returns the position of a column that is not dropped.
    pub fn column(&self, name: &str) -> Option<ColumnPosition> {
        let found = self
            .columns
            .iter()
            .position(|c| !c.dropped && c.name == name)?;
        ColumnPosition::try_from(found).ok()
    }

    /// Returns the columns that statements see, with their positions.
    pub fn visible(&self) -> impl Iterator<Item = (ColumnPosition, &ColumnDef)> {
        let all = self.columns.iter().enumerate();
        all.filter(|(_, c)| !c.dropped)
            .map(|(at, c)| (at as ColumnPosition, c))
    }

    /// Returns the value of a column in rows that were written before the column was added.
    pub fn missing(&self, column: usize) -> ValueRef<'_> {
        let column = self.columns.get(column);
        let missing = column.and_then(|column| column.missing.as_ref());
        missing.map_or(ValueRef::Null, Value::as_ref)
    }

    /// Returns the numbers of the families of the table and of its indexes.
    pub fn storages(&self) -> impl Iterator<Item = ObjectId> {
        let indexes = self.indexes.iter().map(|index| index.storage);
        std::iter::once(self.storage).chain(indexes)
    }

    /// Returns `true` if the primary key or an index begins with the columns, in any order.
    pub fn is_served(&self, columns: &[ColumnPosition]) -> bool {
        let serves = |key: &[ColumnPosition]| {
            let n = columns.len();
            key.len() >= n && key[..n].iter().all(|column| columns.contains(column))
        };
        serves(&self.primary_key) || self.indexes.iter().any(|index| serves(&index.columns))
    }

    /// Removes the indexes that do not have the entries of all rows, and the foreign keys that
    /// cannot be without them.
    pub fn remove_unready_indexes(&mut self) {
        self.indexes.retain(|index| index.is_ready);
        let keys = std::mem::take(&mut self.foreign_keys);
        let kept = keys.into_iter().filter(|key| self.is_served(&key.columns));
        self.foreign_keys = kept.collect();
    }

    /// Returns the index of this number.
    pub fn index(&self, id: ObjectId) -> Option<&IndexDef> {
        self.indexes.iter().find(|i| i.id == id)
    }
}
