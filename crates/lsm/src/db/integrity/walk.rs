//! The steps that the walks over a closed store have in common: they lock the store, open the files
//! that the manifest names, scan logs, and report progress.

use crate::db::store_dir::holds_a_store;
use crate::db::store_files::LOCK;
use crate::version::catalog::LiveLog;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, File, LockGuard, Result};
use basalt_records::salvage::{Part, Salvaged, scan};
use std::path::Path;
use std::sync::Arc;

/// Takes the lock of a closed store.
///
/// Errors: `NotFound` if the directory holds no store, `Busy` if a process has it open.
pub(super) fn lock_store(env: &Env, dir: &Path) -> Result<Box<dyn LockGuard>> {
    // The check comes before the lock, which is a file: no file is left in a directory that is no
    // store.
    must_hold_a_store(env, dir)?;
    env.fs().lock(&dir.join(LOCK))
}

/// Takes the lock of a closed store together with other readers. Writes nothing, so a store on a
/// read-only medium can be checked.
///
/// Errors: those of [`lock_store`].
pub(super) fn lock_to_read(env: &Env, dir: &Path) -> Result<Option<Box<dyn LockGuard>>> {
    must_hold_a_store(env, dir)?;
    env.fs().lock_shared(&dir.join(LOCK))
}

fn must_hold_a_store(env: &Env, dir: &Path) -> Result<()> {
    match env.fs().exists(dir)? && holds_a_store(env, dir)? {
        true => Ok(()),
        false => Err(no_store(dir)),
    }
}

/// Returns the error for a directory that holds no store.
pub(super) fn no_store(dir: &Path) -> Error {
    Error::new(ErrorKind::NotFound, "no store here").in_file(dir)
}

/// Returns the reason that messages give for a missing file. `kind` is the noun for the file.
pub(super) fn is_missing(kind: &str) -> String {
    format!("the manifest names this {kind}, and it is missing")
}

/// Opens a file that the manifest names. `kind` is the noun for the file.
///
/// Errors: `Corruption` if the file is missing, `Io`.
pub(super) fn open_named(env: &Env, path: &Path, kind: &str) -> Result<Arc<dyn File>> {
    env.fs().open(path).map_err(|e| match e.is_not_found() {
        true => Error::corruption(path, 0, is_missing(kind)),
        false => e,
    })
}

/// Checks that a file has the length in bytes that the manifest says.
///
/// Errors: `Corruption` if the length differs, `Io`.
pub(super) fn check_len(env: &Env, path: &Path, said: u64) -> Result<()> {
    let len = env.fs().stat(path)?.len;
    match len == said {
        true => Ok(()),
        false => Err(Error::corruption(
            path,
            len.min(said),
            format!("the file has {len} bytes, the manifest says {said}"),
        )),
    }
}

/// The records of a live log that still verify, and the bounds of the search.
pub(super) struct LogScan {
    records: Salvaged,
    /// Offset in bytes at which the manifest says that the records end, or `u64::MAX`.
    limit: u64,
    /// Offset in bytes below which all bytes were synced.
    pub synced: u64,
}

impl LogScan {
    /// Scans a log. `synced` is an offset below which other files prove that all bytes were synced.
    ///
    /// Errors: `Unsupported` for a record of a later version, `Io`.
    pub fn new(file: &dyn File, path: &Path, log: &LiveLog, synced: u64) -> Result<LogScan> {
        let records = scan(file, path, log.file_id, u64::MAX)?;
        let synced = (records.proven).max(log.end.unwrap_or(0)).max(synced);
        Ok(LogScan {
            records,
            limit: end_of_records(log),
            synced,
        })
    }

    /// Returns the parts of the log: records, broken records and holes. `first_record` is the
    /// offset behind the header.
    pub fn parts(&self, first_record: u64) -> Vec<Part<'_>> {
        self.records.parts(first_record, self.limit, self.synced)
    }
}

/// Returns the offset in bytes at which the manifest says that a log's records end, or `u64::MAX`
/// if it says nothing.
pub(super) fn end_of_records(log: &LiveLog) -> u64 {
    log.end.or(log.left).unwrap_or(u64::MAX)
}

/// The progress of walks that follow each other, as a caller sees it.
pub(super) struct Progress<'a> {
    /// Bytes walked so far.
    walked: u64,
    /// Bytes that all walks together are expected to walk.
    total: u64,
    /// Called with both numbers. The second is never below the first.
    show: &'a mut dyn FnMut(u64, u64),
}

impl<'a> Progress<'a> {
    /// Begins at 0 of 0 bytes.
    pub fn new(show: &'a mut dyn FnMut(u64, u64)) -> Progress<'a> {
        Progress {
            walked: 0,
            total: 0,
            show,
        }
    }

    /// Returns the number of bytes walked so far.
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Sets the total: `more` bytes are expected beyond those that were walked.
    pub fn expect(&mut self, more: u64) {
        self.total = self.walked.saturating_add(more);
    }

    /// Counts walked bytes without a call.
    pub fn count(&mut self, bytes: u64) {
        self.walked = self.walked.saturating_add(bytes);
    }

    /// Counts walked bytes, and shows the progress.
    pub fn step(&mut self, bytes: u64) {
        self.count(bytes);
        (self.show)(self.walked, self.total.max(self.walked));
    }

    /// Shows that `read` bytes of a file of `size` bytes were walked. The file is counted when it
    /// ends.
    pub fn show_inside(&mut self, read: u64, size: u64) {
        let end = self.walked.saturating_add(size);
        let at = self.walked.saturating_add(read.min(size));
        (self.show)(at, self.total.max(end));
    }
}

#[cfg(test)]
mod tests;
