//! The reports of a check and of a repair.

use basalt_fs::{Error, ErrorKind, Result};
use std::fmt;
use std::ops::{Range, RangeInclusive};

/// The result of [`crate::LogEngine::check`] and of [`crate::LogVerification`]: what was walked,
/// and the damage that was found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LogVerifyReport {
    /// Number of files read.
    pub files: u64,
    /// Bytes read. A check, which reads live records twice, counts the bytes of its files once.
    pub bytes: u64,
    /// Number of logical logs. If a check finds damage, number of those that a repair would keep,
    /// or 0 if a later version wrote the store.
    pub logs: u64,
    /// Number of live records that were read. If a check finds damage, number of those that a
    /// repair would keep, or 0 if a later version wrote the store.
    pub records: u64,
    /// Number of index pages that were read; 0 if a check finds damage.
    pub pages: u64,
    /// Bytes of live records, their heads included; 0 if a check finds damage.
    pub live_bytes: u64,
    /// All damage that was found, with the damage that keeps the store from opening first. Empty if
    /// the store is sound. An error names file and offset. That of a verification names log and
    /// LSN, too.
    pub damage: Vec<Error>,
    /// What a check found lost, as a repair would report it. Empty if the store is sound, or is
    /// verified while it is open.
    pub losses: Vec<LogLoss>,
    /// Names of the logs, sorted; empty for a verification. If a check finds damage, names of the
    /// logs that a repair would keep.
    pub log_names: Vec<String>,
    /// If a check finds damage: which files have the names, options and trim points of the logs for
    /// a repair. A sentence, or empty.
    pub names: String,
    /// The logs whose names a repair would make up, because nothing readable has them. Empty if the
    /// store is sound.
    pub unnamed_logs: Vec<UnnamedLog>,
    /// The records that may show again after a repair although they were trimmed, removed or
    /// deleted, a sentence each. Empty if the store is sound.
    pub reappearing: Vec<String>,
    /// Names of store files that no edit names. Unfinished work left them, and the next open
    /// removes them.
    pub unused_files: Vec<String>,
    /// Names of store files that the readable metadata does not name, if the manifest or `CURRENT`
    /// is damaged. They may hold live records that a repair needs.
    pub unnamed: Vec<String>,
    /// Files that are not a store's. They are left alone.
    pub foreign: Vec<String>,
    /// Torn tails of physical logs that a recovery will cut: normal after a crash.
    pub torn_tails: Vec<String>,
    /// Ends of physical logs that nothing proves, because other damage took the proof. Records
    /// behind them may be lost. Empty if the store is sound.
    pub unproven_ends: Vec<LogUnprovenEnd>,
}

impl LogVerifyReport {
    /// Adds an error to the findings if it is damage, a missing file or an unsupported feature.
    /// Returns every other error, which ends the walk.
    pub(super) fn note(&mut self, e: Error) -> Result<()> {
        match e.kind() {
            ErrorKind::Corruption | ErrorKind::Unsupported | ErrorKind::NotFound => {
                self.damage.push(e);
                Ok(())
            }
            _ => Err(e),
        }
    }
}

/// One thing that is lost, exactly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLoss {
    /// The file, by its name in the store's directory before the repair. Empty if no file is known
    /// to have had it.
    pub file: String,
    /// Bytes of it that cannot be read, or that were read and cannot be used. For several records,
    /// from the first byte of one to the last byte of another; others may lie between them. Empty
    /// if it is not known how many bytes there were.
    pub bytes: Range<u64>,
    /// The name of the log; `None` when the loss is not of one log.
    pub log: Option<String>,
    /// The first and the last LSN of lost records; the log has no record between them. `None` if
    /// the loss is of metadata, or if LSNs are not known.
    pub lsns: Option<RangeInclusive<u64>>,
    /// Number of lost records of `lsns`; 0 without them.
    pub records: u64,
    /// The damage that caused the loss.
    pub reason: String,
}

impl LogLoss {
    pub(super) fn of_file(file: &str, bytes: Range<u64>, reason: &str) -> LogLoss {
        LogLoss {
            file: file.to_string(),
            bytes,
            reason: reason.to_string(),
            ..LogLoss::default()
        }
    }
}

impl fmt::Display for LogLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            match self.bytes {
                Range { start: 0, end: 0 } => write!(f, "{}: ", self.file)?,
                Range { start, end } if start == end => write!(f, "{}, byte {start}: ", self.file)?,
                Range { start, end } => write!(f, "{}, bytes {start} to {end}: ", self.file)?,
            }
        }
        match &self.lsns {
            Some(lsns) if lsns.start() == lsns.end() => write!(f, "LSN {}", lsns.start())?,
            Some(lsns) => write!(f, "LSNs {} to {}", lsns.start(), lsns.end())?,
            None => {}
        }
        match (&self.log, &self.lsns) {
            (Some(name), Some(lsns)) => {
                write!(f, " of log {name:?}")?;
                if lsns.end() - lsns.start() >= self.records {
                    write!(f, ", {} records", self.records)?;
                }
                f.write_str(": ")?;
            }
            (Some(name), None) => write!(f, "log {name:?}: ")?,
            (None, _) => {}
        }
        f.write_str(&self.reason)
    }
}

/// A log whose name, options and trim point are lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnnamedLog {
    /// The number of the log, which its records have.
    pub number: u64,
    /// The name that a repair gives it. [`crate::LogEngine::rename`] changes it.
    pub name: String,
    /// Number of its records.
    pub records: u64,
    /// The first and the last LSN of its records; `None` if it has none.
    pub lsns: Option<RangeInclusive<u64>>,
}

impl fmt::Display for UnnamedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log {} is named {:?}: ", self.number, self.name)?;
        match &self.lsns {
            None => f.write_str("no record"),
            Some(lsns) => {
                let records = if self.records == 1 {
                    "record"
                } else {
                    "records"
                };
                let (first, last) = (lsns.start(), lsns.end());
                write!(f, "{} {records}, LSNs {first} to {last}", self.records)
            }
        }
    }
}

/// The end of a physical log, behind which acknowledged records may be lost.
///
/// A tail that does not verify is normal after a crash: nothing in it was acknowledged. The
/// checkpoint, the manifest, the metalog and later records of the file prove otherwise. If one of
/// them is damaged, no proof is left in either direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogUnprovenEnd {
    /// The file, by its name in the store's directory before the repair.
    pub file: String,
    /// The bytes that may have held records: from the end of the last readable record to the last
    /// byte of the file that is not zero.
    pub bytes: Range<u64>,
    /// The damage that took the proof.
    pub reason: String,
}

impl fmt::Display for LogUnprovenEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bytes;
        write!(
            f,
            "{}: nothing proves that the records end at offset {start}; up to {} bytes behind it may have held records: {}",
            self.file,
            end.saturating_sub(start),
            self.reason
        )
    }
}

/// The result of [`crate::LogEngine::repair`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LogRepairReport {
    /// True if no damage was found, and nothing was changed.
    pub sound: bool,
    /// Number of physical logs kept as they are.
    pub files_kept: u64,
    /// Number of physical logs written, with the readable records of damaged ones.
    pub files_written: u64,
    /// Number of logical logs of the repaired store.
    pub logs: u64,
    /// Number of records of the repaired store.
    pub records_kept: u64,
    /// Exactly what is lost, a sentence each.
    pub lost: Vec<String>,
    /// The losses of `lost` as data, in the same order.
    pub losses: Vec<LogLoss>,
    /// Ends of physical logs behind which acknowledged records may be lost, because the damage also
    /// took the proof of what was there. Empty if the store was sound.
    pub unproven_ends: Vec<LogUnprovenEnd>,
    /// Records that were trimmed, removed or deleted and may show again, a sentence each, because
    /// the operations that removed them are lost.
    pub reappearing: Vec<String>,
    /// Names of the logs of the store, sorted.
    pub log_names: Vec<String>,
    /// Which files the names, options and trim points of the logs are from. A sentence; empty if
    /// the store was sound.
    pub names: String,
    /// The logs whose names are made up, because nothing readable has them.
    pub unnamed_logs: Vec<UnnamedLog>,
    /// Further facts for callers that rely on the data, a sentence each.
    pub notes: Vec<String>,
    /// Paths to which damaged files were moved, relative to the store's directory.
    pub set_aside: Vec<String>,
}
