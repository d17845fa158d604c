//! Point-in-time restore: restores a checkpoint and the binlog records after it.

use crate::binlog::records_from;
use crate::database::Database;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::options::DatabaseOptions;
use crate::record::BinlogRecord;
use crate::storage::BINLOG;
use crate::types::datetime::timestamp_text;
use basalt::env::{Env, file_copy};
use basalt::log::{LogEngine, LogEngineOptions, WriteOptions};
use basalt::{Bytes, Store, Tsn};
use std::path::{Path, PathBuf};

/// Records that are appended between two syncs.
const UNSYNCED_RECORDS: u64 = 1024;

/// The last transaction that a restore applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTarget {
    /// Up to the end of the binlog.
    Latest,
    /// Up to and with this transaction.
    Tsn(Tsn),
    /// Up to the last transaction that was committed at or before this time, in ms since 1970.
    TimeMs(u64),
}

/// The sources, the target and the directory of a restore.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    /// Directory of the checkpoint.
    pub checkpoint: PathBuf,
    /// Directory of the database whose binlog is applied. No process has it open, and it was closed
    /// cleanly.
    pub binlog: PathBuf,
    /// The last transaction that is applied.
    pub target: RestoreTarget,
    /// Directory of the new database. It must be missing or empty.
    pub into: PathBuf,
}

/// What a restore has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreReport {
    /// The last transaction of the checkpoint.
    pub checkpoint_tsn: Tsn,
    /// The last transaction of the new database.
    pub tsn: Tsn,
    /// Time of that transaction's commit, in ms since 1970, if it is after the checkpoint.
    pub commit_ms: Option<u64>,
    /// Transactions that were taken from the binlog.
    pub transactions: u64,
}

impl Database {
    /// Makes a new database from a checkpoint and the binlog records after it. `progress` gets the
    /// number of applied transactions, and the number of transactions of the binlog after the
    /// checkpoint. Neither the checkpoint nor the database of the binlog is changed. After an error
    /// the new directory is incomplete, and must be removed.
    ///
    /// A target time after the last record restores all records.
    ///
    /// Errors: 22023 if the target transaction is before the checkpoint or after the end of the
    /// binlog, if the target time is before the checkpoint, or if the new directory holds files;
    /// 42704 if one of the two directories has no database, or the checkpoint has no binlog; 55000
    /// if records between the checkpoint and the target were trimmed; 55P03 if a process has the
    /// database of the binlog open; 58030 for failed reads and writes, and if that database was not
    /// closed.
    pub fn restore(
        env: &Env,
        options: &RestoreOptions,
        database: DatabaseOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> SqlResult<RestoreReport> {
        let is_used = match env.fs().list(&options.into) {
            Ok(entries) => !entries.is_empty(),
            Err(e) if e.is_not_found() => false,
            Err(e) => return Err(e.into()),
        };
        if is_used {
            return Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!(
                    "cannot restore into {}: the directory holds files; give a directory that is empty or missing",
                    options.into.display()
                ),
            ));
        }
        check_store(env, &options.checkpoint, "restore from")?;
        check_store(env, &options.binlog, "read the binlog of")?;
        copy_directory(env, &options.checkpoint, &options.into)?;
        let report = append_binlog(env, options, progress)?;
        // The opening replays what was appended.
        Database::open(env, &options.into, database)?.close()?;
        Ok(report)
    }
}

/// Fails if a directory has no store. `task` is the verb of the message.
///
/// Errors: 42704.
fn check_store(env: &Env, dir: &Path, task: &str) -> SqlResult<()> {
    match Store::find_logs(env, dir) {
        Err(e) if e.is_not_found() => Err(SqlError::new(
            SqlState::UNDEFINED_OBJECT,
            format!(
                "cannot {task} {}: there is no database in this directory",
                dir.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns a time in ms since 1970 as RFC 3339, in UTC.
fn time_text(ms: u64) -> String {
    let us = i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1000);
    format!("{}Z", timestamp_text(us).replace(' ', "T"))
}

fn copy_directory(env: &Env, from: &Path, to: &Path) -> basalt::Result<()> {
    let fs = env.fs();
    fs.create_dir(to)?;
    for entry in fs.list(from)? {
        let (source, copy) = (from.join(&entry.name), to.join(&entry.name));
        if entry.is_dir {
            copy_directory(env, &source, &copy)?;
        } else if entry.name != "LOCK" {
            let len = fs.stat(&source)?.len;
            let file = fs.open(&source)?;
            let from = (&*file, source.as_path());
            file_copy::copy_sparse_file(env, from, &copy, len, &mut |_| Ok(()))?;
        }
    }
    fs.sync_metadata(to)
}

fn decode(tsn: Tsn, record: &Bytes) -> basalt::Result<BinlogRecord> {
    BinlogRecord::decode(record).map_err(|e| e.context(format!("binlog record {tsn}")))
}

/// Appends the records after the checkpoint to the binlog of the copy.
fn append_binlog(
    env: &Env,
    options: &RestoreOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> SqlResult<RestoreReport> {
    let logs = Store::find_logs(env, &options.into)?.ok_or_else(|| {
        SqlError::new(
            SqlState::UNDEFINED_OBJECT,
            format!(
                "cannot restore from {}: it is not a checkpoint of a relational database, because it has no binlog",
                options.checkpoint.display()
            ),
        )
    })?;
    let engine = LogEngine::open(env, logs, LogEngineOptions::default())?;
    let copy = engine.log(BINLOG)?;
    let checkpoint_tsn = copy.last().or(copy.trimmed()).unwrap_or(0);
    // The tables of the source may be damaged, or behind its binlog: they are not opened.
    let logs = Store::find_logs(env, &options.binlog)?.ok_or_else(|| {
        SqlError::new(
            SqlState::UNDEFINED_OBJECT,
            format!(
                "{} is no database: it has no binlog",
                options.binlog.display()
            ),
        )
    })?;
    let source = LogEngine::open_read_only(env, logs, LogEngineOptions::default())?;
    let source = source.log(BINLOG)?;
    let last = source.last().or(source.trimmed()).unwrap_or(0);
    let mut report = RestoreReport {
        checkpoint_tsn,
        tsn: checkpoint_tsn,
        commit_ms: None,
        transactions: 0,
    };
    if let RestoreTarget::Tsn(tsn) = options.target
        && (tsn < checkpoint_tsn || tsn > last)
    {
        return Err(SqlError::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("cannot restore to transaction {tsn}: the checkpoint ends at {checkpoint_tsn}, and the binlog at {last}"),
        )
        .with_hint("give a target between the two, or another checkpoint"));
    }
    if let RestoreTarget::TimeMs(target) = options.target {
        // The last transaction of the checkpoint is in one of the two binlogs, unless both were
        // trimmed up to it.
        let newest = match copy.read(checkpoint_tsn)? {
            None => source.read(checkpoint_tsn)?,
            found => found,
        };
        let commit_ms = newest
            .map(|record| decode(checkpoint_tsn, &record))
            .transpose()?;
        if let Some(BinlogRecord { commit_ms, .. }) = commit_ms
            && commit_ms > target
        {
            return Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!(
                    "cannot restore to {}: the checkpoint was made later, at {}",
                    time_text(target),
                    time_text(commit_ms)
                ),
            )
            .with_hint("give a later time, or an earlier checkpoint"));
        }
    }
    if checkpoint_tsn < last {
        for record in records_from(&source, checkpoint_tsn + 1)? {
            let (tsn, bytes) = record?;
            let commit_ms = decode(tsn, &bytes)?.commit_ms;
            let is_inside = match options.target {
                RestoreTarget::Latest => true,
                RestoreTarget::Tsn(target) => tsn <= target,
                RestoreTarget::TimeMs(target) => commit_ms <= target,
            };
            if !is_inside {
                break;
            }
            copy.append(tsn, &bytes, &WriteOptions::UNSYNCED)?;
            report.tsn = tsn;
            report.commit_ms = Some(commit_ms);
            report.transactions += 1;
            if report.transactions.is_multiple_of(UNSYNCED_RECORDS) {
                engine.sync()?;
                progress(report.transactions, last - checkpoint_tsn);
            }
        }
    }
    progress(report.transactions, last.saturating_sub(checkpoint_tsn));
    engine.sync()?;
    engine.close()?;
    Ok(report)
}
