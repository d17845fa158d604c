//! The relations of `pg_catalog` and `information_schema`, as virtual tables that only read.
//!
//! Each relation is a module of its own, so that SQLite has its table without a declaration. The
//! rows are computed from the schema when a scan begins, and kept until the schema changes.
//!
//! Invariant: SQLite finds its own base structure at the beginning of [`SystemTable`] and of
//! [`SystemCursor`], because both are `repr(C)` and their first field is that structure. The only
//! `unsafe` here states this to rusqlite. No callback unwinds into SQLite: each one catches panics.

#![allow(unsafe_code)]

mod information;
mod relation_rows;
mod rows;

use crate::error::{SqlError, SqlResult};
use crate::sqlite_error;
use crate::sqlite_value::{from_sqlite, to_sqlite};
use crate::state::SharedState;
use crate::statement::{SYSTEM_RELATIONS, SystemRelation};
use crate::value::{Value, ValueRef};
use crate::vtab::affinity;
use basalt::env::sync::Mutex;
use rows::{Picked, RowCache, SystemRows};
use rusqlite::Connection;
use rusqlite::vtab::{
    self, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection,
    VTabCursor,
};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Makes the relations of the system known to a connection.
///
/// Errors: XX000 if SQLite refuses one.
pub fn register(connection: &Connection, state: &SharedState) -> SqlResult<()> {
    const MODULE: Module<'static, SystemTable> = Module::<SystemTable>::eponymous_only_module();
    for relation in SYSTEM_RELATIONS {
        let aux = (state.clone(), relation);
        let done = connection.create_module(relation.emitted().as_str(), &MODULE, Some(aux));
        done.map_err(|e| sqlite_error::of(&e))?;
    }
    Ok(())
}

/// Runs a callback. Its error, or its panic, becomes the statement's error.
fn guarded<T>(state: &SharedState, run: impl FnOnce() -> SqlResult<T>) -> rusqlite::Result<T> {
    let done = catch_unwind(AssertUnwindSafe(run));
    let done = done.unwrap_or_else(|_| Err(SqlError::internal("a system table panicked")));
    done.map_err(|e| state.lock().raise(e))
}

/// A relation of the system, as SQLite sees it.
#[repr(C)]
pub struct SystemTable {
    base: vtab::sqlite3_vtab,
    state: SharedState,
    relation: &'static SystemRelation,
    cache: Arc<Mutex<RowCache>>,
}

// SAFETY: the structure is `repr(C)`, and its first field is `sqlite3_vtab`.
unsafe impl<'vtab> VTab<'vtab> for SystemTable {
    type Aux = (SharedState, &'static SystemRelation);
    type Cursor = SystemCursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&Self::Aux>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[&[u8]],
    ) -> rusqlite::Result<(Cow<'static, CStr>, SystemTable)> {
        let missing = || rusqlite::Error::ModuleError("a system table without a state".to_owned());
        let (state, relation) = aux.ok_or_else(missing)?.clone();
        db.config(VTabConfig::Innocuous)?;
        let columns = relation.columns.iter();
        let columns = columns.map(|(name, ty)| format!("\"{name}\" {}", affinity(*ty)));
        let columns: Vec<String> = columns.collect();
        let declaration = CString::new(format!("CREATE TABLE x({})", columns.join(", ")));
        let declaration = declaration.map_err(|_| missing())?;
        let table = SystemTable {
            base: vtab::sqlite3_vtab::default(),
            state,
            relation,
            cache: Arc::default(),
        };
        Ok((declaration.into(), table))
    }

    fn best_index(&self, info: &mut IndexInfo) -> rusqlite::Result<bool> {
        let chosen = guarded(&self.state, || Ok(self.choose(info)))?;
        match chosen {
            Some((number, column)) => {
                info.constraint_usage(number).set_argv_index(1);
                info.set_idx_num(column as c_int + 1);
                info.set_estimated_cost(20.0);
                info.set_estimated_rows(4);
            }
            None => {
                info.set_idx_num(0);
                info.set_estimated_cost(10_000.0);
                info.set_estimated_rows(1000);
            }
        }
        Ok(true)
    }

    fn open(&'vtab mut self) -> rusqlite::Result<SystemCursor<'vtab>> {
        Ok(SystemCursor {
            base: vtab::sqlite3_vtab_cursor::default(),
            state: self.state.clone(),
            relation: self.relation,
            cache: self.cache.clone(),
            rows: Arc::default(),
            picked: Picked::default(),
            at: 0,
            table: PhantomData,
        })
    }
}

impl SystemTable {
    /// Returns the number and the column of the comparison that the scan uses, if one helps:
    /// numbers of objects come before names.
    fn choose(&self, info: &IndexInfo) -> Option<(usize, usize)> {
        let mut best: Option<(u8, usize, usize)> = None;
        for (number, constraint) in info.constraints().enumerate() {
            let is_equal = constraint.operator() == IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ;
            let is_binary = info.collation(number).is_ok_and(|name| name == "BINARY");
            let column = usize::try_from(constraint.column()).ok();
            let column = column.filter(|at| *at < self.relation.columns.len());
            let (true, true, true, Some(column)) =
                (is_equal, constraint.is_usable(), is_binary, column)
            else {
                continue;
            };
            let rank = match affinity(self.relation.columns[column].1) {
                "INTEGER" if self.relation.columns[column].0.ends_with("id") => 0,
                "TEXT" => 1,
                "INTEGER" => 2,
                _ => continue,
            };
            if best.is_none_or(|(least, ..)| rank < least) {
                best = Some((rank, number, column));
            }
        }
        best.map(|(_, number, column)| (number, column))
    }
}

/// A scan of a relation, as SQLite sees it.
#[repr(C)]
pub struct SystemCursor<'vtab> {
    base: vtab::sqlite3_vtab_cursor,
    state: SharedState,
    relation: &'static SystemRelation,
    cache: Arc<Mutex<RowCache>>,
    rows: Arc<SystemRows>,
    picked: Picked,
    at: usize,
    table: PhantomData<&'vtab SystemTable>,
}

impl SystemCursor<'_> {
    fn begin(&mut self, column: Option<usize>, wanted: Option<Value>) -> SqlResult<()> {
        let (schema, context) = {
            let state = self.state.lock();
            let schema = match &state.work {
                Some(work) => work.schema.clone(),
                None => state.storage.schema(),
            };
            (schema, state.context.clone())
        };
        self.rows = self.cache.lock().rows(&schema, self.relation, &context);
        self.picked = match (column, wanted) {
            (Some(column), Some(wanted)) => {
                let ty = self
                    .relation
                    .columns
                    .get(column)
                    .map(|(_, ty)| affinity(*ty));
                self.rows.pick(column, ty == Some("INTEGER"), &wanted)
            }
            _ => Picked::All,
        };
        self.at = 0;
        Ok(())
    }

    /// Returns the position of the current row, or `None` after the last one.
    fn current(&self) -> Option<usize> {
        match &self.picked {
            Picked::All => (self.at < self.rows.rows.len()).then_some(self.at),
            Picked::Some(rows) => rows.get(self.at).copied(),
        }
    }
}

// SAFETY: the structure is `repr(C)`, and its first field is `sqlite3_vtab_cursor`.
unsafe impl VTabCursor for SystemCursor<'_> {
    fn filter(
        &mut self,
        number: c_int,
        _: Option<&str>,
        arguments: &Filters<'_>,
    ) -> rusqlite::Result<()> {
        let state = self.state.clone();
        guarded(&state, || {
            let wanted = arguments.iter().next();
            let wanted = wanted.map(from_sqlite).transpose()?;
            let column = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
            self.begin(column, wanted.map(ValueRef::to_value))
        })
    }

    fn next(&mut self) -> rusqlite::Result<()> {
        self.at += 1;
        Ok(())
    }

    fn eof(&self) -> bool {
        self.current().is_none()
    }

    fn column(&self, context: &mut vtab::Context, column: c_int) -> rusqlite::Result<()> {
        guarded(&self.state, || {
            let row = self.current().and_then(|at| self.rows.rows.get(at));
            let column = usize::try_from(column).unwrap_or(usize::MAX);
            let value = row.and_then(|row| row.get(column));
            let value = value.map_or(ValueRef::Null, Value::as_ref);
            let set = context.set_result(to_sqlite(value));
            set.map_err(|e| sqlite_error::of(&e))
        })
    }

    fn rowid(&self) -> rusqlite::Result<i64> {
        Ok(self.at as i64)
    }
}
