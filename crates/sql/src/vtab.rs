//! The virtual tables through which SQLite reads and writes the tables of a session.
//!
//! Invariant: SQLite finds its own base structure at the beginning of [`VirtualTable`] and of
//! [`Cursor`], because both are `repr(C)` and their first field is that structure. The only
//! `unsafe` here states this to rusqlite. No callback unwinds into SQLite: each one catches panics.

#![allow(unsafe_code)]

use crate::cursor::{Bounds, RowCursor};
use crate::error::SqlError;
use crate::error::SqlResult;
use crate::plan::{self, Answer, Comparison, Constraint, Order, Plan, Question};
use crate::row_write::{self, Target};
use crate::sqlite_value::{from_sqlite, to_sqlite};
use crate::state::SharedState;
use crate::value::{Value, ValueRef};
use rusqlite::types as sqlite;
use rusqlite::vtab::{
    self, CreateVTab, Filters, IndexConstraintOp, IndexFlags, IndexInfo, Inserts, Module,
    UpdateVTab, Updates, VTab, VTabConfig, VTabConnection, VTabCursor, VTabKind,
};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The value that a LIMIT or an OFFSET is taken to have if it is a parameter.
const UNKNOWN_LIMIT: f64 = 100.0;

/// Name of the module of virtual tables.
pub const MODULE: &CStr = c"basalt";

/// Name of the hidden column that has the encoded primary key. Users cannot name a column so.
pub const KEY_COLUMN: &str = "basalt key";

/// The module of virtual tables.
pub fn module() -> &'static Module<'static, VirtualTable> {
    const TABLES: Module<'static, VirtualTable> =
        Module::<VirtualTable>::update_module().without_rowid();
    &TABLES
}

/// Runs a callback. Its error, or its panic, becomes the statement's error.
fn guarded<T>(state: &SharedState, run: impl FnOnce() -> SqlResult<T>) -> rusqlite::Result<T> {
    let done = catch_unwind(AssertUnwindSafe(run));
    let done = done.unwrap_or_else(|_| Err(SqlError::internal("a callback of a table panicked")));
    done.map_err(|e| state.lock().raise(e))
}

/// A table of a session, as SQLite sees it.
#[repr(C)]
pub struct VirtualTable {
    base: vtab::sqlite3_vtab,
    state: SharedState,
    target: Target,
}

// SAFETY: the structure is `repr(C)`, and its first field is `sqlite3_vtab`.
unsafe impl<'vtab> VTab<'vtab> for VirtualTable {
    type Aux = SharedState;
    type Cursor = Cursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&SharedState>,
        _: &[u8],
        _: &[u8],
        table: &[u8],
        _: &[&[u8]],
    ) -> rusqlite::Result<(Cow<'static, CStr>, VirtualTable)> {
        let state = aux.expect("the module was made with a state").clone();
        let target = guarded(&state, || {
            let name = std::str::from_utf8(table);
            let name = name.map_err(|_| SqlError::internal("the name of a table is not UTF-8"))?;
            let locked = state.lock();
            let id = locked.schema()?.catalog.table(name).map(|table| table.id);
            let id = id.ok_or_else(|| SqlError::internal("a table without a definition"))?;
            Target::find(&locked, id)
        })?;
        db.config(VTabConfig::ConstraintSupport)?;
        db.config(VTabConfig::Innocuous)?;
        let declaration = CString::new(declaration(&target)).map_err(|_| {
            rusqlite::Error::ModuleError("the name of a column has a NUL".to_owned())
        })?;
        let table = VirtualTable {
            base: vtab::sqlite3_vtab::default(),
            state,
            target,
        };
        Ok((declaration.into(), table))
    }

    fn best_index(&self, info: &mut IndexInfo) -> rusqlite::Result<bool> {
        let answer = guarded(&self.state, || Ok(self.answer(info)))?;
        for (at, number) in answer.arguments.iter().enumerate() {
            info.constraint_usage(*number)
                .set_argv_index(at as c_int + 1);
        }
        info.set_idx_num(answer.plan.pack());
        info.set_idx_str(&answer.description);
        info.set_estimated_cost(answer.cost);
        info.set_estimated_rows(answer.rows as i64);
        info.set_order_by_consumed(answer.is_ordered);
        if answer.plan.point {
            info.set_idx_flags(IndexFlags::SQLITE_INDEX_SCAN_UNIQUE);
        }
        Ok(true)
    }

    fn open(&'vtab mut self) -> rusqlite::Result<Cursor<'vtab>> {
        Ok(Cursor {
            base: vtab::sqlite3_vtab_cursor::default(),
            state: self.state.clone(),
            rows: RowCursor::new(self.target.clone()),
            table: PhantomData,
        })
    }
}

/// Returns the declaration of a table for SQLite. Types matter for the affinity of comparisons.
fn declaration(target: &Target) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let columns = target.table.visible();
    let mut columns: Vec<String> = columns
        .map(|(_, column)| format!("{} {}", quoted(&column.name), affinity(column.ty)))
        .collect();
    columns.push(format!(
        "{} BLOB HIDDEN NOT NULL PRIMARY KEY",
        quoted(KEY_COLUMN)
    ));
    format!("CREATE TABLE x({}) WITHOUT ROWID", columns.join(", "))
}

/// Returns the affinity of the columns of a type.
pub fn affinity(ty: crate::types::SqlType) -> &'static str {
    use crate::types::SqlType;
    match ty {
        SqlType::Boolean | SqlType::SmallInt | SqlType::Integer | SqlType::BigInt => "INTEGER",
        SqlType::Real | SqlType::Double => "REAL",
        SqlType::Numeric(_) => "NUMERIC",
        SqlType::Bytea => "BLOB",
        _ => "TEXT",
    }
}

impl VirtualTable {
    /// Returns the position of a column of the declaration.
    fn position(&self, column: c_int) -> Option<u16> {
        let column = usize::try_from(column).ok()?;
        self.target.table.visible().nth(column).map(|(at, _)| at)
    }

    fn answer(&self, info: &IndexInfo) -> Answer {
        let mut constraints = Vec::new();
        let (mut limit, mut offset) = (None, 0.0);
        for (number, constraint) in info.constraints().enumerate() {
            let comparison = match constraint.operator() {
                IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ => Comparison::Equal,
                IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_ISNULL => Comparison::IsNull,
                IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT
                | IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => Comparison::Above,
                IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT
                | IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => Comparison::Below,
                op @ (IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LIMIT
                | IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_OFFSET) => {
                    // A parameter has no value yet.
                    let rows = match info.rhs_value(number) {
                        Ok(Some(sqlite::ValueRef::Integer(n))) => n.max(0) as f64,
                        _ => UNKNOWN_LIMIT,
                    };
                    match op {
                        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LIMIT => limit = Some(rows),
                        _ => offset = rows,
                    }
                    continue;
                }
                _ => continue,
            };
            let Some(column) = self.position(constraint.column()) else {
                continue;
            };
            if !constraint.is_usable() {
                continue;
            }
            constraints.push(Constraint {
                number,
                column,
                comparison,
                is_constant: matches!(info.rhs_value(number), Ok(Some(_))),
                is_binary: info.collation(number).is_ok_and(|name| name == "BINARY"),
            });
        }
        let order = info.order_bys().map(|order| {
            let column = self.position(order.column());
            let descending = order.is_order_by_desc();
            column.map(|column| Order { column, descending })
        });
        let count = info.num_of_order_by();
        let order: Vec<Order> = order.map_while(|order| order).collect();
        let is_whole = order.len() == count;
        let used = info.col_used();
        let visible: Vec<u16> = self.target.table.visible().map(|(at, _)| at).collect();
        let is_used = |at: u16| {
            let column = visible.iter().position(|position| *position == at);
            column.is_some_and(|column| used >> column.min(63) & 1 == 1)
        };
        let question = Question {
            constraints: &constraints,
            order: if is_whole { &order } else { &[] },
            used: &is_used,
            rows: plan::UNKNOWN_ROWS,
            limit: limit.map(|limit| (limit + offset).max(1.0)),
        };
        let mut answer = plan::choose(&self.target.table, &self.target.layout, &question);
        answer.is_ordered &= is_whole;
        answer
    }
}

impl CreateVTab<'_> for VirtualTable {
    const KIND: VTabKind = VTabKind::Default;
}

/// Returns the values of the columns, which come after `first` other arguments.
fn row_of(target: &Target, arguments: &vtab::Values<'_>, first: usize) -> SqlResult<Vec<Value>> {
    let n = target.table.visible().count();
    let values = arguments.iter().skip(first).take(n);
    values
        .map(|value| Ok(from_sqlite(value)?.to_value()))
        .collect()
}

impl UpdateVTab<'_> for VirtualTable {
    fn delete(&mut self, key: sqlite::ValueRef<'_>) -> rusqlite::Result<()> {
        guarded(&self.state, || match from_sqlite(key)? {
            ValueRef::Blob(key) => row_write::delete(&mut self.state.lock(), &self.target, key),
            _ => Err(SqlError::internal("a row is deleted without its key")),
        })
    }

    fn insert(&mut self, arguments: &Inserts<'_>) -> rusqlite::Result<i64> {
        guarded(&self.state, || {
            let row = row_of(&self.target, arguments, 2)?;
            row_write::insert(&mut self.state.lock(), &self.target, row)
        })?;
        Ok(0)
    }

    fn update(&mut self, arguments: &Updates<'_>) -> rusqlite::Result<()> {
        guarded(&self.state, || {
            let row = row_of(&self.target, arguments, 2)?;
            let key = arguments.iter().next().unwrap_or(sqlite::ValueRef::Null);
            match from_sqlite(key)? {
                ValueRef::Blob(key) => {
                    row_write::update(&mut self.state.lock(), &self.target, key, row)
                }
                _ => Err(SqlError::internal("a row is updated without its key")),
            }
        })
    }
}

/// A scan of a table, as SQLite sees it.
#[repr(C)]
pub struct Cursor<'vtab> {
    base: vtab::sqlite3_vtab_cursor,
    state: SharedState,
    rows: RowCursor,
    table: PhantomData<&'vtab VirtualTable>,
}

// SAFETY: the structure is `repr(C)`, and its first field is `sqlite3_vtab_cursor`.
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(
        &mut self,
        number: c_int,
        _: Option<&str>,
        arguments: &Filters<'_>,
    ) -> rusqlite::Result<()> {
        let (state, rows) = (&self.state, &mut self.rows);
        guarded(state, || {
            let values = arguments
                .iter()
                .map(|value| Ok(from_sqlite(value)?.to_value()));
            let bounds = Bounds {
                plan: Plan::unpack(number),
                values: values.collect::<SqlResult<Vec<Value>>>()?,
            };
            rows.begin(&mut state.lock(), &bounds)
        })
    }

    fn next(&mut self) -> rusqlite::Result<()> {
        let (state, rows) = (&self.state, &mut self.rows);
        guarded(state, || rows.next(state))
    }

    fn eof(&self) -> bool {
        self.rows.is_at_end()
    }

    fn column(&self, context: &mut vtab::Context, column: c_int) -> rusqlite::Result<()> {
        guarded(&self.state, || {
            let value = self
                .rows
                .column(usize::try_from(column).unwrap_or(usize::MAX))?;
            let set = context.set_result(to_sqlite(value));
            set.map_err(|e| crate::sqlite_error::of(&e))
        })
    }

    fn rowid(&self) -> rusqlite::Result<i64> {
        Ok(0)
    }
}
