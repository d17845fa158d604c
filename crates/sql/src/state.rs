//! [`SessionState`]: what the virtual tables of a session share: the open transaction, and the
//! statement that runs.

use crate::cancellation::Cancellation;
use crate::catalog::{Object, ObjectId, TableDef};
use crate::checker::Checker;
use crate::context::SessionContext;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::schema::Schema;
use crate::statement::{OnConflict, Returning, WriteKind};
use crate::storage::{Storage, TransactionWork, check_reference};
use crate::value::Value;
use crate::write_set::Mark;
use basalt::env::sync::Mutex;
use basalt::{Bytes, ErrorKind, ReadOptions};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The state of a session, as its virtual tables and functions have it.
pub type SharedState = Arc<Mutex<SessionState>>;

/// What the virtual tables of a session share.
pub struct SessionState {
    /// The store.
    pub storage: Arc<Storage>,
    /// The open transaction.
    pub work: Option<TransactionWork>,
    /// The writing statement that runs.
    pub write: Option<ActiveWrite>,
    /// Tables whose rows the running query locks.
    pub locked: BTreeSet<ObjectId>,
    /// What functions know of the session. It keeps the first error of the running statement, since
    /// SQLite keeps a code and a text alone.
    pub context: Arc<SessionContext>,
    /// Evaluates expressions over single rows.
    pub checker: Checker,
    /// Whether the running statement is to end.
    pub cancellation: Arc<Cancellation>,
    /// Counts of the running statement.
    pub counts: StatementCounts,
    /// Levels of cascades of foreign keys that are under way.
    pub cascades: usize,
}

/// Counts of a statement, for EXPLAIN ANALYZE.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatementCounts {
    /// Scans that were begun.
    pub scans: u64,
    /// Rows that were read by key.
    pub gets: u64,
    /// Entries that scans read.
    pub entries: u64,
}

/// A writing statement that runs.
pub struct ActiveWrite {
    /// INSERT, UPDATE or DELETE.
    pub kind: WriteKind,
    /// ON CONFLICT.
    pub on_conflict: Option<OnConflict>,
    /// RETURNING.
    pub returning: Option<Returning>,
    /// The statement's parameters.
    pub parameters: Vec<Value>,
    /// Where the writes of the statement begin.
    pub mark: Mark,
    /// Where its checks of foreign keys begin.
    pub first_check: usize,
    /// Rows that were written.
    pub rows: u64,
    /// Results of RETURNING.
    pub returned: Vec<Vec<Value>>,
    /// Keys of rows that an INSERT with DO UPDATE has written: it may not write them again.
    pub touched: BTreeSet<Bytes>,
}

impl SessionState {
    /// Returns the open transaction.
    ///
    /// Errors: XX000 if there is none.
    pub fn work(&self) -> SqlResult<&TransactionWork> {
        let work = self.work.as_ref();
        work.ok_or_else(|| SqlError::internal("a table is read outside of a transaction"))
    }

    /// Returns the open transaction, to write.
    ///
    /// Errors: XX000 if there is none.
    pub fn work_mut(&mut self) -> SqlResult<&mut TransactionWork> {
        let work = self.work.as_mut();
        work.ok_or_else(|| SqlError::internal("a table is written outside of a transaction"))
    }

    /// Returns the schema of the open transaction.
    ///
    /// Errors: XX000 if there is none.
    pub fn schema(&self) -> SqlResult<&Arc<Schema>> {
        Ok(&self.work()?.schema)
    }

    /// Returns options that read as of the transaction's snapshot.
    ///
    /// Errors: XX000 without a transaction.
    pub fn read_options(&self) -> SqlResult<ReadOptions> {
        let snapshot = self.work()?.transaction.snapshot().cloned();
        Ok(ReadOptions::default().snapshot(snapshot))
    }

    /// Returns the value of a key of a family, as the transaction sees it.
    ///
    /// Errors: those of a read.
    pub fn get(&mut self, storage: ObjectId, key: &[u8]) -> SqlResult<Option<Bytes>> {
        let work = self.work()?;
        if let Some(written) = work.writes.get(storage, key) {
            return Ok(written.after.clone());
        }
        self.counts.gets += 1;
        self.get_stored(storage, key)
    }

    /// Returns the value of a key as of the snapshot, without the transaction's own writes.
    ///
    /// Errors: those of a read.
    pub fn get_stored(&self, storage: ObjectId, key: &[u8]) -> SqlResult<Option<Bytes>> {
        let work = self.work()?;
        let family = work.schema.family(storage)?;
        let found = self.storage.db().get(family, key, &self.read_options()?);
        found.map_err(read_error)
    }

    /// Writes a key of a family. `stored` is its value as of the snapshot; it matters for rows
    /// alone.
    ///
    /// Errors: 53200 if the transaction gets too large.
    pub fn put(
        &mut self,
        storage: ObjectId,
        key: Bytes,
        stored: Option<Bytes>,
        after: Option<Bytes>,
    ) -> SqlResult<()> {
        let limit = self.storage.options().max_transaction_bytes;
        let work = self.work_mut()?;
        work.writes.put(storage, key, stored, after);
        match work.writes.bytes() <= limit {
            true => Ok(()),
            false => Err(SqlError::new(
                SqlState::OUT_OF_MEMORY,
                format!("the writes of the transaction take more than {limit} bytes of memory"),
            )
            .with_hint(
                "divide the work into several transactions, or raise max_transaction_bytes",
            )),
        }
    }

    /// Notes that the transaction depends on the definition of a table.
    ///
    /// Errors: XX000 without a transaction.
    pub fn touch(&mut self, table: &Arc<TableDef>) -> SqlResult<()> {
        let work = self.work_mut()?;
        work.tables.entry(table.id).or_insert_with(|| table.clone());
        Ok(())
    }

    /// Returns the next row number of a table without a primary key.
    ///
    /// Errors: those of the binlog; XX001 without the sequence.
    pub fn next_row_number(&self, sequence: ObjectId) -> SqlResult<i64> {
        match self.schema()?.catalog.by_id(sequence) {
            Some(Object::Sequence(sequence)) => self.storage.next_value(sequence),
            _ => Err(SqlError::new(
                SqlState::DATA_CORRUPTED,
                format!("the catalog lacks the sequence {sequence} of row numbers"),
            )),
        }
    }

    /// Checks the foreign keys of the running statement, at its end.
    ///
    /// Errors: 23503; those of a read.
    pub fn check_references(&mut self) -> SqlResult<()> {
        let Some(write) = &self.write else {
            return Ok(());
        };
        let (work, options) = (self.work()?, self.read_options()?);
        let db = self.storage.db();
        let mut checks = work.checks.since(write.first_check).iter();
        checks
            .try_for_each(|check| check_reference(db, &work.schema, &work.writes, check, &options))
    }

    /// Fails if the running statement is to end.
    ///
    /// Errors: 57014.
    pub fn check_interrupt(&self) -> SqlResult<()> {
        self.cancellation.check()
    }

    /// Keeps the first error of a statement, and returns what SQLite is told.
    pub fn raise(&self, error: SqlError) -> rusqlite::Error {
        let told = rusqlite::Error::ModuleError(error.message().to_owned());
        self.context.raise(error);
        told
    }
}

/// Returns the error of a read. A family that another session has dropped since the snapshot is a
/// conflict: the transaction sees the new definitions when it is run again.
pub fn read_error(e: basalt::Error) -> SqlError {
    match e.kind() {
        ErrorKind::NotFound => SqlError::new(
            SqlState::SERIALIZATION_FAILURE,
            "a table or index that the transaction reads was dropped by another session",
        )
        .with_detail(e.to_string()),
        _ => e.into(),
    }
}
