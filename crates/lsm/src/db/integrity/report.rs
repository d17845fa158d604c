//! The report of a repair.

use crate::version::EngineKind;
use std::fmt;
use std::ops::Range;

/// A range of user keys, both ends inclusive; `None` is unbounded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyRange {
    /// First key.
    pub from: Option<Vec<u8>>,
    /// Last key.
    pub to: Option<Vec<u8>>,
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (None, None) => write!(f, "all keys"),
            (Some(a), None) => write!(f, "keys from \"{}\" on", a.escape_ascii()),
            (None, Some(b)) => write!(f, "keys up to \"{}\"", b.escape_ascii()),
            (Some(a), Some(b)) => write!(
                f,
                "keys from \"{}\" to \"{}\"",
                a.escape_ascii(),
                b.escape_ascii()
            ),
        }
    }
}

/// One thing that is lost, exactly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The file, by its name in the store's directory before the repair.
    pub file: String,
    /// Bytes of it that cannot be read, or that were read and cannot be used.
    pub bytes: Range<u64>,
    /// The family; `None` when the loss is not of one family.
    pub family: Option<String>,
    /// The range that holds all lost keys. `None` if the loss is of metadata, or of log records,
    /// whose keys are not known.
    pub keys: Option<KeyRange>,
    /// The first and last sequence numbers of the lost operations, for lost log records. The last
    /// is `None` if it is not known.
    pub seqs: Option<(u64, Option<u64>)>,
    /// Entries lost, where their number is known.
    pub entries: Option<u64>,
    /// Older versions of these keys stand elsewhere and show again, deleted keys included.
    pub older_may_reappear: bool,
    /// The damage that caused the loss.
    pub reason: String,
}

impl Loss {
    pub(super) fn of_file(file: &str, bytes: Range<u64>, reason: &str) -> Loss {
        Loss {
            file: file.to_string(),
            bytes,
            reason: reason.to_string(),
            ..Loss::default()
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, bytes {} to {}",
            self.file, self.bytes.start, self.bytes.end
        )?;
        if let Some(k) = &self.keys {
            write!(f, ", {k}")?;
        }
        if let Some(name) = &self.family {
            write!(f, " of family {name:?}")?;
        }
        match self.seqs {
            Some((a, Some(b))) => write!(f, ", operations {a} to {b} ({})", b + 1 - a)?,
            Some((a, None)) => write!(f, ", operations from {a} on")?,
            None => {}
        }
        if let Some(n) = self.entries {
            write!(f, ", {n} entries")?;
        }
        write!(f, ": {}", self.reason)?;
        if self.older_may_reappear {
            write!(
                f,
                "; older versions of lost keys may show again, and so may deleted keys"
            )?;
        }
        Ok(())
    }
}

/// The result of [`crate::db::Db::repair`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// True if no damage was found, and nothing was changed.
    pub sound: bool,
    /// Number of tables kept as they are.
    pub tables_kept: u64,
    /// Number of tables written: with readable data of damaged tables and logs, and by merges of
    /// tables whose level is not known.
    pub tables_written: u64,
    /// Number of trees of pages kept as they are, but for what logs add.
    pub trees_kept: u64,
    /// Number of trees of pages written, with what can be read of damaged ones.
    pub trees_written: u64,
    /// Number of blob files kept as they are. Their garbage is computed anew.
    pub blobs_kept: u64,
    /// Number of blob files written, with the readable records of damaged ones.
    pub blobs_written: u64,
    /// Entries in the tables and pages of the repaired store, without those that logs added to
    /// pages.
    pub entries_kept: u64,
    /// Exactly what is lost, a sentence each.
    pub lost: Vec<String>,
    /// The losses of `lost` as data, in the same order.
    pub losses: Vec<Loss>,
    /// Further facts for callers that rely on the data, a sentence each.
    pub notes: Vec<String>,
    /// Paths to which damaged files were moved, relative to the store's directory.
    pub set_aside: Vec<String>,
    /// The other engines that the store has, as far as the manifest was readable. They are not
    /// repaired.
    pub engines: Vec<EngineKind>,
}
