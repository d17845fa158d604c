//! Settings of the log engine and of logical logs.

use basalt_fs::{Error, Result};
use std::ops::RangeInclusive;

/// Bytes of a physical log at which the next one begins.
const FILE_BYTES: RangeInclusive<u64> = 4 << 10..=16 << 30;
/// Bounds on space amplification.
const SPACE_AMP: RangeInclusive<f64> = 1.05..=1000.0;

/// Settings of a [`crate::LogEngine`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogEngineOptions {
    /// Create the store if there is none. Default `true`.
    pub create_if_missing: bool,
    /// Largest bytes of a physical log, 4 KiB to 16 GiB. Default 256 MiB (pageserver 5.1). A store
    /// with little live data uses smaller ones, so that garbage collection works in small steps.
    pub file_bytes: u64,
    /// Bytes of records, dead and live, that the datalog may have for each live byte, apart from
    /// the files being written. Garbage of up to two files of the datalog is always allowed.
    /// Appends do not wait for garbage collection, so fast writers can exceed the bound. 1.05 to
    /// 1000. Default 1.25.
    pub max_space_amp: f64,
}

impl Default for LogEngineOptions {
    fn default() -> LogEngineOptions {
        LogEngineOptions {
            create_if_missing: true,
            file_bytes: 256 << 20,
            max_space_amp: 1.25,
        }
    }
}

impl LogEngineOptions {
    /// Sets [`LogEngineOptions::create_if_missing`].
    #[must_use]
    pub fn create_if_missing(mut self, yes: bool) -> Self {
        self.create_if_missing = yes;
        self
    }

    /// Sets [`LogEngineOptions::file_bytes`].
    #[must_use]
    pub fn file_bytes(mut self, bytes: u64) -> Self {
        self.file_bytes = bytes;
        self
    }

    /// Sets [`LogEngineOptions::max_space_amp`].
    #[must_use]
    pub fn max_space_amp(mut self, bound: f64) -> Self {
        self.max_space_amp = bound;
        self
    }

    /// Checks that values are inside their documented ranges. The error names the option, its value
    /// and its range.
    pub fn validate(&self) -> Result<()> {
        if !FILE_BYTES.contains(&self.file_bytes) {
            return Err(Error::invalid(format!(
                "option file_bytes is {}; it must be {} to {}",
                self.file_bytes,
                FILE_BYTES.start(),
                FILE_BYTES.end()
            )));
        }
        if !SPACE_AMP.contains(&self.max_space_amp) {
            return Err(Error::invalid(format!(
                "option max_space_amp is {}; it must be {} to {}",
                self.max_space_amp,
                SPACE_AMP.start(),
                SPACE_AMP.end()
            )));
        }
        Ok(())
    }
}

/// What an append does if its log has a record with the same log sequence number (LSN). The numbers
/// are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Duplicates {
    /// The append fails with `AlreadyExists`, and changes nothing.
    #[default]
    Refuse = 0,
    /// The new record replaces the old one.
    Replace = 1,
}

impl Duplicates {
    pub(crate) fn of_number(n: u8) -> Option<Duplicates> {
        match n {
            0 => Some(Duplicates::Refuse),
            1 => Some(Duplicates::Replace),
            _ => None,
        }
    }
}

/// Settings of a logical log, which are persisted when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LogOptions {
    /// What an append does with an LSN that the log has. Default: the append is refused.
    pub duplicates: Duplicates,
}

impl LogOptions {
    /// Sets [`LogOptions::duplicates`].
    #[must_use]
    pub fn duplicates(mut self, duplicates: Duplicates) -> Self {
        self.duplicates = duplicates;
        self
    }
}
