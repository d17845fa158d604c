//! The handle of a logical log: appends, trims and reads.

use crate::apply::place_of;
use crate::batch::{LogBatch, MAX_LSN};
use crate::engine::Engine;
use crate::index::{EntryPlace, PageLocation};
use crate::log_ops::LogOp;
#[cfg(test)]
use crate::mapping::Location;
use crate::mapping::Mapping;
use crate::namespace::{LogInner, LogState};
use crate::options::LogOptions;
use crate::pages;
use crate::request::DataRequest;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::write_options::WriteOptions;
use basalt_records::entries::open_entry;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::Arc;

/// A logical log of a [`crate::LogEngine`]. Cloning is cheap, and all clones are the same log.
#[derive(Clone)]
pub struct Log {
    engine: Arc<Engine>,
    state: Arc<LogState>,
}

impl Log {
    pub(crate) fn new(engine: &Arc<Engine>, state: Arc<LogState>) -> Log {
        Log {
            engine: engine.clone(),
            state,
        }
    }

    pub(crate) fn state(&self) -> &Arc<LogState> {
        &self.state
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns true if the log has a record with an LSN from `lsn` on.
    pub(crate) fn has_from(&self, inner: &LogInner, lsn: u64) -> Result<bool> {
        self.engine.check_open()?;
        match inner.deleted {
            true => Err(self.state.deleted()),
            false => Ok(inner.index.last().is_some_and(|last| last >= lsn)),
        }
    }

    /// Returns the name of the log. [`crate::LogEngine::rename`] changes it.
    pub fn name(&self) -> Arc<str> {
        self.state.name()
    }

    /// Returns the options with which the log was created.
    pub fn options(&self) -> LogOptions {
        self.state.options
    }

    /// Appends a record and waits until it is acknowledged as the options say. Records need not
    /// come in the order of their log sequence numbers (LSNs).
    ///
    /// Errors: `InvalidArgument` for an LSN that was trimmed, or above [`MAX_LSN`];
    /// `AlreadyExists` for an LSN that the log has, if its options refuse duplicates; `NotFound` if
    /// the log was deleted; `NoSpace`, `Io`, `Poisoned`, `Closed`. After an error the log does not
    /// have the record; after a crash it has all of it or nothing.
    pub fn append(&self, lsn: u64, data: &[u8], options: &WriteOptions) -> Result<()> {
        let mut batch = LogBatch::new();
        batch.append_to(&self.state, lsn, data)?;
        self.engine.run_data(DataRequest::of_batch(batch, options))
    }

    /// Removes all records with LSNs up to `up_to`. Later appends of such LSNs are refused. With
    /// [`WriteOptions::SYNC`], the trim survives a power cut when the call returns; otherwise a
    /// power cut may bring the records back.
    pub fn trim(&self, up_to: u64, options: &WriteOptions) -> Result<()> {
        let op = LogOp::Trim {
            log: self.state.number,
            up_to: up_to.min(MAX_LSN),
        };
        self.engine.run_op(&self.state, op, options.is_synced())
    }

    /// Removes all records with LSNs from `from` on, durably. They may be appended again.
    pub fn truncate_suffix(&self, from: u64) -> Result<()> {
        self.remove(from..=MAX_LSN)
    }

    /// Removes all records with LSNs of a range, durably. They may be appended again.
    pub fn remove(&self, range: RangeInclusive<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let op = LogOp::Remove {
            log: self.state.number,
            range,
        };
        let log = self.state.clone();
        self.engine.run_data(DataRequest::Remove { log, op })
    }

    /// Returns the record of an LSN, or `None` if the log does not have it. Costs one device read,
    /// and a second one if the record's page of the index is not in the block cache.
    ///
    /// Errors: `Corruption` names the log, the LSN, the file and the offset.
    pub fn read(&self, lsn: u64) -> Result<Option<Bytes>> {
        self.engine.check_open()?;
        // A garbage collection may move the record and remove the file between the two steps.
        let mut before = None;
        loop {
            let Some(place) = place_of(&self.state, lsn)? else {
                return Ok(None);
            };
            if let Some(data) = self.read_at(lsn, place)? {
                return Ok(Some(data));
            }
            if before.replace(place) == Some(place) {
                let at = match place {
                    EntryPlace::Known(at) => format!(
                        "at offset {} of file {}, which does not exist",
                        at.offset, at.file
                    ),
                    EntryPlace::OnPage(at) => format!(
                        "on the page at offset {} of file {}, and the page or the record does not exist",
                        at.offset, at.file
                    ),
                };
                return Err(Error::corruption(
                    self.engine.logs.dir(),
                    0,
                    format!(
                        "the index of log {:?} has LSN {lsn} {at}; close the store and check it",
                        self.name()
                    ),
                ));
            }
        }
    }

    /// Returns the record at a place, or `None` if its file was removed since.
    pub(crate) fn read_at(&self, lsn: u64, place: EntryPlace) -> Result<Option<Bytes>> {
        let location = match place {
            EntryPlace::Known(location) => location,
            EntryPlace::OnPage(page) => {
                match self.load_page(lsn, page)?.and_then(|page| page.get(lsn)) {
                    Some(location) => location,
                    None => return Ok(None),
                }
            }
        };
        let Some(file) = self.engine.logs.get(location.file) else {
            return Ok(None);
        };
        let bytes = file
            .read(location.offset, location.len as usize)
            .map_err(|e| e.context(self.reading(lsn)))?;
        let data = self
            .open_record(lsn, file.file_id, location.offset, &bytes)
            .map_err(|what| self.damaged(lsn, &file.path, location.offset, what))?;
        Ok(Some(bytes.slice(data)))
    }

    /// Returns the entries of the page that has a record, or `None` if the page is gone.
    pub(crate) fn load_page(&self, lsn: u64, page: PageLocation) -> Result<Option<Mapping>> {
        let (env, logs) = (&self.engine.env, &self.engine.logs);
        let around = |range| self.state.lock().index.pages_around(lsn, page, range);
        pages::load_around(env, logs, self.state.number, page, around)
            .map_err(|e| e.context(self.reading(lsn)))
    }

    /// Verifies the bytes of a record, and returns the range of its data in them.
    pub(crate) fn open_record(
        &self,
        lsn: u64,
        file_id: u128,
        offset: u64,
        bytes: &[u8],
    ) -> std::result::Result<Range<usize>, String> {
        let (head, data) = open_entry(file_id, offset, bytes)?;
        match (head.log, head.lsn) == (self.state.number, lsn) {
            true => Ok(data),
            false => Err(format!(
                "expected LSN {lsn} of log {}, found LSN {} of log {}",
                self.state.number, head.lsn, head.log
            )),
        }
    }

    /// Returns the error of a damaged record.
    pub(crate) fn damaged(&self, lsn: u64, path: &Path, offset: u64, what: String) -> Error {
        Error::corruption(path, offset, what).context(self.reading(lsn))
    }

    /// Returns what an error of a record's read says of the record.
    fn reading(&self, lsn: u64) -> String {
        format!("reading LSN {lsn} of log {:?}", self.state.name())
    }

    /// Returns the smallest LSN, or `None` if the log is empty.
    pub fn first(&self) -> Option<u64> {
        self.state.lock().index.first()
    }

    /// Returns the largest LSN, or `None` if the log is empty.
    pub fn last(&self) -> Option<u64> {
        self.state.lock().index.last()
    }

    /// Returns the LSN up to which the log was trimmed, or `None` if it never was.
    pub fn trimmed(&self) -> Option<u64> {
        self.state.lock().trimmed
    }

    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        self.state.lock().index.count()
    }

    /// Returns the bytes of all records on disk, some 10 bytes each for their heads included.
    pub fn bytes(&self) -> u64 {
        self.state.lock().index.bytes()
    }

    /// Returns the maximal ranges inside `range` of which the log has no record, in rising order.
    /// Costs time in proportion to the number of runs of consecutive LSNs, and no device read.
    pub fn gaps(&self, range: RangeInclusive<u64>) -> Vec<RangeInclusive<u64>> {
        match range.is_empty() {
            true => Vec::new(),
            false => self.state.lock().index.gaps(&range),
        }
    }

    pub(crate) fn entries(
        &self,
        at: u64,
        forward: bool,
        limit: usize,
    ) -> Result<Vec<(u64, EntryPlace)>> {
        self.engine.check_open()?;
        let inner = self.state.lock();
        if inner.deleted {
            return Err(self.state.deleted());
        }
        Ok(match forward {
            true => inner.index.entries_from(at, limit),
            false => inner.index.entries_down_from(at, limit),
        })
    }

    /// Returns where the record of an LSN is, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn location(&self, lsn: u64) -> Option<Location> {
        match self.state.lock().index.find(lsn) {
            Some(EntryPlace::Known(location)) => Some(location),
            _ => None,
        }
    }
}

impl LogBatch {
    /// Adds the append of a record to a log. The batch copies the data.
    ///
    /// Errors: `InvalidArgument` for an LSN above [`MAX_LSN`], or if the batch would become larger
    /// than [`crate::MAX_BATCH_BYTES`].
    pub fn append(&mut self, log: &Log, lsn: u64, data: &[u8]) -> Result<()> {
        self.append_to(&log.state, lsn, data)
    }
}
