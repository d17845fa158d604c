//! Statements that read and write rows.

use super::{Block, Outcome, Prepared, RETRIES, Session, TransactionStatus};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::sqlite_error;
use crate::sqlite_value::from_sqlite;
use crate::state::{ActiveWrite, StatementCounts};
use crate::statement::{Command, Query, Write, WriteKind};
use crate::value::{Value, ValueRef};
use std::collections::BTreeSet;

/// A row of a result, valid until the call that got it returns.
pub struct Row<'a>(Source<'a>);

enum Source<'a> {
    Sqlite(&'a rusqlite::Row<'a>, usize),
    Values(&'a [ValueRef<'a>]),
}

impl<'a> Row<'a> {
    /// Returns a row of values.
    pub(crate) fn of(values: &'a [ValueRef<'a>]) -> Row<'a> {
        Row(Source::Values(values))
    }

    /// Returns the number of columns.
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Sqlite(_, columns) => *columns,
            Source::Values(values) => values.len(),
        }
    }

    /// Returns `true` if the row has no columns.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a value.
    ///
    /// Errors: 22021 for a text that is not UTF-8; XX000 for a column that the row does not have.
    pub fn get(&self, column: usize) -> SqlResult<ValueRef<'_>> {
        match &self.0 {
            Source::Sqlite(row, columns) if column < *columns => {
                let value = row.get_ref(column);
                from_sqlite(value.map_err(|e| sqlite_error::of(&e))?)
            }
            Source::Values(values) if column < values.len() => Ok(values[column]),
            _ => Err(SqlError::internal(format!("a row has no column {column}"))),
        }
    }
}

/// Gets the rows of a result.
pub trait RowSink {
    /// Takes a row.
    ///
    /// Errors: an error ends the statement, and is the statement's.
    fn row(&mut self, row: &Row<'_>) -> SqlResult<()>;
}

impl<F: FnMut(&Row<'_>) -> SqlResult<()>> RowSink for F {
    fn row(&mut self, row: &Row<'_>) -> SqlResult<()> {
        self(row)
    }
}

/// Counts rows on their way.
struct Counted<'s> {
    sink: &'s mut dyn RowSink,
    rows: u64,
}

impl RowSink for Counted<'_> {
    fn row(&mut self, row: &Row<'_>) -> SqlResult<()> {
        self.rows += 1;
        self.sink.row(row)
    }
}

impl Session {
    /// Runs a query, a writing statement, TRUNCATE or EXPLAIN. Outside of a transaction block the
    /// statement is a transaction, which is run again after a conflict if no row was returned yet.
    pub(super) fn execute_rows(
        &mut self,
        prepared: &Prepared,
        parameters: &[Value],
        sink: &mut dyn RowSink,
    ) -> SqlResult<Outcome> {
        let mut sink = Counted { sink, rows: 0 };
        let mut retries = RETRIES;
        loop {
            let done = self.execute_once(prepared, parameters, &mut sink);
            match done.map_err(|e| self.of_dropped_family(e)) {
                Err(e) if e.is_retryable() && retries > 0 && sink.rows == 0 => {
                    if self.status() != TransactionStatus::Idle {
                        return Err(e);
                    }
                    self.state.lock().work = None;
                    retries -= 1;
                }
                done => return done,
            }
        }
    }

    /// Returns a conflict if a statement failed because another session has dropped what it reads.
    fn of_dropped_family(&self, e: SqlError) -> SqlError {
        let state = self.state.lock();
        let Some(work) = state.work.as_ref() else {
            return e;
        };
        let db = self.storage.db();
        let mut families = work.schema.families.values();
        let has_dropped = e.state() == SqlState::IO_ERROR
            && families.any(|family| db.family(family.name()).is_none());
        match has_dropped {
            true => SqlError::new(
                SqlState::SERIALIZATION_FAILURE,
                "a table that the transaction reads was changed by another session",
            )
            .with_detail(e.to_string())
            .with_hint("run the transaction again"),
            false => e,
        }
    }

    fn execute_once(
        &mut self,
        prepared: &Prepared,
        parameters: &[Value],
        sink: &mut dyn RowSink,
    ) -> SqlResult<Outcome> {
        self.begin_work()?;
        let schema = self.state.lock().schema()?.clone();
        self.context.set_schema(&schema);
        self.variables.publish(self.context.settings());
        let analyzed = self.analyzed(prepared, &schema)?;
        match &analyzed.command {
            Command::Query(query) => {
                self.declare(&schema, &query.executable.relations)?;
                let rows = self.run_query(query, parameters, sink)?;
                self.end_statement()?;
                Ok(Outcome::done(format!("SELECT {rows}"), rows))
            }
            Command::Write(write) => {
                self.declare(&schema, &write.executable.relations)?;
                let (rows, returned) = self.run_write(write, parameters)?;
                // The rows of RETURNING are shown when the transaction is committed.
                self.end_statement()?;
                for row in &returned {
                    let row: Vec<ValueRef<'_>> = row.iter().map(Value::as_ref).collect();
                    sink.row(&Row::of(&row))?;
                }
                let tag = match write.kind {
                    WriteKind::Insert => format!("INSERT 0 {rows}"),
                    WriteKind::Update => format!("UPDATE {rows}"),
                    WriteKind::Delete => format!("DELETE {rows}"),
                };
                Ok(Outcome::done(tag, rows))
            }
            Command::Explain(explain) => self.explain(explain, &schema, parameters, sink),
            Command::Truncate {
                tables,
                restart,
                cascade,
            } => self.truncate(tables, *restart, *cascade, prepared.text()),
            _ => Err(SqlError::internal("a statement has changed its kind")),
        }
    }

    /// Ends a statement: outside of a transaction block, its transaction is committed.
    pub(super) fn end_statement(&mut self) -> SqlResult<()> {
        match self.block {
            Block::Open(_) => Ok(()),
            Block::None => self.commit_work(),
        }
    }

    /// Runs a query, and returns the number of its rows.
    pub(super) fn run_query(
        &mut self,
        query: &Query,
        parameters: &[Value],
        sink: &mut dyn RowSink,
    ) -> SqlResult<u64> {
        if !query.locked.is_empty() || query.has_side_effects {
            self.refuse_read_only("SELECT FOR UPDATE")?;
        }
        let mut state = self.state.lock();
        state.counts = StatementCounts::default();
        let catalog = &state.schema()?.catalog;
        let locked = query.locked.iter().filter_map(|name| catalog.table(name));
        let locked: BTreeSet<u32> = locked.map(|table| table.id).collect();
        state.locked = locked;
        drop(state);
        let done = self.step(&query.executable.sql, parameters, sink);
        self.state.lock().locked.clear();
        done
    }

    /// Runs a writing statement. Returns the number of rows that it has written, and the rows of
    /// RETURNING. If it fails, none of its writes stays.
    pub(super) fn run_write(
        &mut self,
        write: &Write,
        parameters: &[Value],
    ) -> SqlResult<(u64, Vec<Vec<Value>>)> {
        self.refuse_read_only(match write.kind {
            WriteKind::Insert => "INSERT",
            WriteKind::Update => "UPDATE",
            WriteKind::Delete => "DELETE",
        })?;
        self.begin_write(write, parameters)?;
        let mut ignored = |_: &Row<'_>| Ok(());
        let done = self.step(&write.executable.sql, parameters, &mut ignored);
        self.finish_write(done.map(|_| ()))
    }

    /// Lets the writes that follow be those of a statement.
    pub(super) fn begin_write(&mut self, write: &Write, parameters: &[Value]) -> SqlResult<()> {
        let mut state = self.state.lock();
        state.counts = StatementCounts::default();
        state.cascades = 0;
        let work = state.work()?;
        let (mark, first_check) = (work.writes.mark(), work.checks.len());
        let keeps_parameters = write.on_conflict.is_some() || write.returning.is_some();
        state.write = Some(ActiveWrite {
            kind: write.kind,
            on_conflict: write.on_conflict.clone(),
            returning: write.returning.clone(),
            parameters: match keeps_parameters {
                true => parameters.to_vec(),
                false => Vec::new(),
            },
            mark,
            first_check,
            rows: 0,
            returned: Vec::new(),
            touched: BTreeSet::new(),
        });
        Ok(())
    }

    /// Ends the writes of a statement: checks its foreign keys, or undoes its writes.
    pub(super) fn finish_write(
        &mut self,
        done: SqlResult<()>,
    ) -> SqlResult<(u64, Vec<Vec<Value>>)> {
        let mut state = self.state.lock();
        let done = done.and_then(|()| state.check_references());
        let write = state.write.take();
        let write = write.ok_or_else(|| SqlError::internal("a statement writes nothing"))?;
        match done {
            Ok(()) => Ok((write.rows, write.returned)),
            Err(e) => {
                let work = state.work_mut()?;
                work.writes.undo_to(write.mark);
                work.checks.truncate(write.first_check);
                Err(e)
            }
        }
    }

    /// Fails in a read-only transaction.
    pub(super) fn refuse_read_only(&self, what: &str) -> SqlResult<()> {
        let is_read_only = match self.block {
            Block::None => self.variables.is_on("default_transaction_read_only"),
            Block::Open(_) => self.block.is_read_only(),
        };
        match is_read_only {
            false => Ok(()),
            true => Err(SqlError::new(
                SqlState::READ_ONLY_TRANSACTION,
                format!("cannot execute {what} in a read-only transaction"),
            )),
        }
    }

    /// Runs a statement of SQLite's dialect to its end.
    pub(super) fn step(
        &self,
        sql: &str,
        parameters: &[Value],
        sink: &mut dyn RowSink,
    ) -> SqlResult<u64> {
        self.context.take_error();
        let failed = |e: &rusqlite::Error| {
            let raised = self.context.take_error();
            raised.unwrap_or_else(|| sqlite_error::of(e))
        };
        let statement = self.connection.prepare_cached(sql);
        let mut statement = statement.map_err(|e| failed(&e))?;
        let taken = statement.parameter_count();
        for (at, value) in parameters.iter().take(taken).enumerate() {
            let bound = statement.raw_bind_parameter(at + 1, value);
            bound.map_err(|e| failed(&e))?;
        }
        let columns = statement.column_count();
        let mut found = statement.raw_query();
        let mut rows = 0;
        while let Some(row) = found.next().map_err(|e| failed(&e))? {
            rows += 1;
            sink.row(&Row(Source::Sqlite(row, columns)))?;
        }
        Ok(rows)
    }
}
