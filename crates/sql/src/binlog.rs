//! [`BinlogReader`]: reads the transactions of the binlog, for change data capture.

use crate::catalog::{ColumnDef, TableDef};
use crate::error::{SqlError, SqlResult};
use crate::history::SchemaHistory;
use crate::keys::{KeyPart, decode_columns};
use crate::record::{self, RecordBody};
use crate::storage::BINLOG;
use crate::translate::row_values;
use crate::types::SqlType;
use crate::value::Value;
use basalt::env::Env;
use basalt::log::{Log, LogEngineOptions, LogIter};
use basalt::{Options, ReadOptions, Store, StoreOptions, Tsn};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A transaction of the binlog.
#[derive(Debug, Clone, PartialEq)]
pub struct BinlogRecord {
    /// Transaction sequence number.
    pub tsn: Tsn,
    /// Time of the commit, in ms since 1970.
    pub commit_ms: u64,
    /// What the transaction did.
    pub kind: BinlogKind,
}

/// What a transaction did.
#[derive(Debug, Clone, PartialEq)]
pub enum BinlogKind {
    /// It changed rows.
    Transaction(Vec<RowChange>),
    /// It changed definitions. The statement is empty for a step of a statement whose last step
    /// comes later.
    Ddl {
        /// The statement.
        statement: String,
    },
    /// It took values of a sequence.
    Sequence {
        /// Name of the sequence, if the catalog still has it.
        sequence: Option<String>,
        /// The next value that is not taken; `None` if there is none.
        next: Option<i64>,
    },
    /// It added entries to an index that was being built.
    Backfill {
        /// Name of the table, if the catalog still has it.
        table: Option<String>,
        /// Number of entries.
        entries: u64,
    },
}

/// The kind of a change of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOperation {
    /// The row is new.
    Insert,
    /// The row was replaced.
    Update,
    /// The row was deleted.
    Delete,
}

/// A change of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowChange {
    /// Name of the table, as of the transaction.
    pub table: String,
    /// The kind of the change.
    pub operation: RowOperation,
    /// Names and types of the columns, as of the transaction.
    pub columns: Vec<(String, SqlType)>,
    /// Names and values of the primary key. A table without one has a row number.
    pub key: Vec<(String, Value)>,
    /// The row before, if it was there: a value for each column.
    pub before: Option<Vec<Value>>,
    /// The row after, if it is there: a value for each column.
    pub after: Option<Vec<Value>>,
}

/// Reads the binlog of a database, in the order of its transactions.
pub struct BinlogReader {
    iter: LogIter,
    log: Log,
    history: SchemaHistory,
    /// The store of a database that is not open, which the reader has opened.
    _store: Option<Store>,
}

impl BinlogReader {
    pub(crate) fn new(log: Log, history: SchemaHistory, from: Tsn) -> SqlResult<BinlogReader> {
        check_first(&log, from)?;
        Ok(BinlogReader {
            iter: log.iter(from),
            log,
            history,
            _store: None,
        })
    }

    /// Opens the binlog of a closed database, at its oldest transaction. While the reader lives, no
    /// process can open the database for writing.
    ///
    /// Errors: 55P03 if a process has the database open; 58030 if the families are persisted up to
    /// different transactions, as after a crash: open and close the database once. Otherwise those
    /// of [`Store::open_read_only`].
    pub fn open(env: &Env, dir: impl AsRef<Path>) -> SqlResult<BinlogReader> {
        let options = StoreOptions::default()
            .tables(Options::default())
            .logs(LogEngineOptions::default());
        let store = Store::open_read_only(env, dir, options)?;
        let log = store.logs()?.log(BINLOG)?;
        let mut history = SchemaHistory::default();
        let family = store.db().default_family();
        let mut iter = store.db().iter(&family, &ReadOptions::default())?;
        iter.seek_to_first()?;
        while iter.valid() {
            history.add_entry(iter.key(), iter.value())?;
            iter.next()?;
        }
        drop(iter);
        let from = log.trimmed().unwrap_or(0) + 1;
        let mut reader = BinlogReader::new(log, history, from)?;
        reader._store = Some(store);
        Ok(reader)
    }

    /// Returns the newest transaction of the binlog, 0 if it has none.
    pub fn last(&self) -> Tsn {
        self.log.last().or(self.log.trimmed()).unwrap_or(0)
    }

    /// Moves to a transaction.
    ///
    /// Errors: 55000 if the transaction was trimmed.
    pub fn seek(&mut self, from: Tsn) -> SqlResult<()> {
        check_first(&self.log, from)?;
        self.iter.seek(from);
        Ok(())
    }

    /// Returns the oldest transaction of the binlog.
    pub fn first(&self) -> Tsn {
        self.log.trimmed().unwrap_or(0) + 1
    }

    /// Returns the next transaction; `None` if none comes within `timeout`.
    ///
    /// Errors: XX001 for a damaged record; those of a read.
    pub fn next(&mut self, timeout: Duration) -> SqlResult<Option<BinlogRecord>> {
        let next = match timeout.is_zero() {
            true => self.iter.next().transpose()?,
            false => self.iter.next_timeout(timeout)?,
        };
        let Some((tsn, bytes)) = next else {
            return Ok(None);
        };
        let record = record::BinlogRecord::decode(&bytes)
            .map_err(|e| e.context(format!("binlog record {tsn}")))?;
        let kind = match record.body {
            RecordBody::Transaction(tables) => {
                let mut changes = Vec::new();
                for events in &tables {
                    let table = self.history.table(events.table, tsn).cloned();
                    let table = table.ok_or_else(|| {
                        SqlError::new(
                            crate::error::SqlState::DATA_CORRUPTED,
                            format!("binlog record {tsn} changes table {}, and the catalog has no definition of this table as of this transaction", events.table),
                        )
                        .with_hint("open and close the database once, and read again; if the error stays, run `basalt check`")
                    })?;
                    let parts = KeyPart::of_primary_key(&table);
                    for event in &events.events {
                        changes.push(row_change(&table, &parts, event)?);
                    }
                }
                BinlogKind::Transaction(changes)
            }
            RecordBody::Ddl {
                statement, changes, ..
            } => {
                self.history.apply(tsn, &changes);
                BinlogKind::Ddl { statement }
            }
            RecordBody::Sequence { id, next } => BinlogKind::Sequence {
                sequence: self.history.object(id, tsn).map(|o| o.name().to_owned()),
                next,
            },
            RecordBody::Backfill { table, entries, .. } => BinlogKind::Backfill {
                table: self.history.table(table, tsn).map(|t| t.name.clone()),
                entries: entries.len() as u64,
            },
        };
        Ok(Some(BinlogRecord {
            tsn,
            commit_ms: record.commit_ms,
            kind,
        }))
    }
}

/// Returns the encoded records of a binlog from a transaction on.
///
/// Errors: 55000 if the transaction was trimmed.
pub fn records_from(log: &Log, from: Tsn) -> SqlResult<LogIter> {
    check_first(log, from)?;
    Ok(log.iter(from))
}

fn check_first(log: &Log, from: Tsn) -> SqlResult<()> {
    let trimmed = log.trimmed().unwrap_or(0);
    if from <= trimmed {
        return Err(SqlError::new(
            crate::error::SqlState::OBJECT_NOT_IN_STATE,
            format!(
                "cannot read the binlog from transaction {from}: the oldest record is {}",
                trimmed + 1
            ),
        )
        .with_hint(format!(
            "read from {}, or keep more with binlog_retention_bytes",
            trimmed + 1
        )));
    }
    Ok(())
}

fn row_change(
    table: &Arc<TableDef>,
    parts: &[KeyPart],
    event: &record::RowEvent,
) -> SqlResult<RowChange> {
    let visible: Vec<(u16, &ColumnDef)> = table.visible().collect();
    let shown = |values: Vec<Value>| -> Vec<Value> {
        let shown = visible
            .iter()
            .map(|(at, _)| values[usize::from(*at)].clone());
        shown.collect()
    };
    let (operation, before, after) = match &event.change {
        record::RowChange::Insert(after) => {
            (RowOperation::Insert, None, Some(row_values(table, after)?))
        }
        record::RowChange::Delete(before) => {
            (RowOperation::Delete, Some(row_values(table, before)?), None)
        }
        record::RowChange::Update { after, before } => {
            let after = row_values(table, after)?;
            let mut old = after.clone();
            for (column, value) in before {
                if let Some(old) = old.get_mut(usize::from(*column)) {
                    *old = value.clone();
                }
            }
            (RowOperation::Update, Some(old), Some(after))
        }
    };
    let mut key = Vec::new();
    decode_columns(&event.key, parts, &mut key)?;
    let names = parts
        .iter()
        .map(|part| match table.columns.get(usize::from(part.column)) {
            Some(column) => column.name.clone(),
            None => "row number".to_owned(),
        });
    Ok(RowChange {
        table: table.name.clone(),
        operation,
        columns: visible
            .iter()
            .map(|(_, c)| (c.name.clone(), c.ty))
            .collect(),
        key: names.zip(key).collect(),
        before: before.map(shown),
        after: after.map(shown),
    })
}
