//! Iterators over the records of a logical log.

use crate::index::EntryPlace;
use crate::log::Log;
use basalt_fs::{Bytes, Result};
use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Duration;

/// Entries that an iterator takes from the index at once.
const AHEAD: usize = 64;

/// An iterator over the records of a log, as [`Log::iter`] and [`Log::iter_back`] return it. An
/// item is an LSN and the record. After an error the iterator goes on behind the record.
pub struct LogIter {
    log: Log,
    forward: bool,
    /// The LSN at which the iterator goes on, or `None` at the end of all LSNs.
    at: Option<u64>,
    taken: VecDeque<(u64, EntryPlace)>,
}

impl Log {
    /// Returns an iterator over the records with LSNs from `from` on, in rising order. It also
    /// returns records that are appended behind its position while it is used.
    pub fn iter(&self, from: u64) -> LogIter {
        LogIter::forward(self.clone(), from)
    }

    /// Returns an iterator over the records with LSNs up to `to`, in falling order.
    pub fn iter_back(&self, to: u64) -> LogIter {
        LogIter::backward(self.clone(), to)
    }
}

impl LogIter {
    fn forward(log: Log, from: u64) -> LogIter {
        LogIter {
            log,
            forward: true,
            at: Some(from),
            taken: VecDeque::new(),
        }
    }

    fn backward(log: Log, to: u64) -> LogIter {
        LogIter {
            forward: false,
            ..LogIter::forward(log, to)
        }
    }

    /// Moves the iterator to the first record at `lsn` or behind it, in its direction.
    pub fn seek(&mut self, lsn: u64) {
        self.at = Some(lsn);
        self.taken.clear();
    }

    fn next_record(&mut self) -> Result<Option<(u64, Bytes)>> {
        loop {
            let Some(at) = self.at else {
                return Ok(None);
            };
            if self.taken.is_empty() {
                self.taken = self.log.entries(at, self.forward, AHEAD)?.into();
            }
            let Some((lsn, place)) = self.taken.pop_front() else {
                return Ok(None);
            };
            self.at = match self.forward {
                true => lsn.checked_add(1),
                false => lsn.checked_sub(1),
            };
            // The record may have been moved or removed since the index was read.
            let data = match self.log.read_at(lsn, place)? {
                Some(data) => Some(data),
                None => {
                    self.taken.clear();
                    self.log.read(lsn)?
                }
            };
            if let Some(data) = data {
                return Ok(Some((lsn, data)));
            }
        }
    }
}

impl LogIter {
    /// Returns the next record, or waits for it up to `timeout`. Returns `None` if there is none by
    /// then. Records that are appended below the iterator's position are not returned. A backward
    /// iterator does not wait.
    ///
    /// A record is returned as soon as reads find it. If its append was not synced, a power cut may
    /// still take it away.
    ///
    /// Errors: those of [`Log::read`]; `NotFound` if the log is deleted; `Closed` if the engine is
    /// closed while the call waits.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<(u64, Bytes)>> {
        let clock = self.log.engine().env.clock().clone();
        let deadline = clock.now().saturating_add(timeout);
        loop {
            if let Some(record) = self.next_record()? {
                return Ok(Some(record));
            }
            let Some(at) = self.at.filter(|_| self.forward) else {
                return Ok(None);
            };
            let log = self.log.clone();
            let mut inner = log.state().lock();
            if self.log.has_from(&inner, at)? {
                continue;
            }
            let left = deadline.saturating_sub(clock.now());
            if left.is_zero() || !log.state().wait(&mut inner, left) {
                drop(inner);
                return self.next_record();
            }
        }
    }

    /// Returns the next record of a forward iterator, or has the task woken when there may be one.
    /// Never returns `Ready(None)`. The call reads the record from the device: an executor whose
    /// threads must not block calls it where blocking is allowed.
    ///
    /// Errors are those of [`LogIter::next_timeout`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<(u64, Bytes)>> {
        loop {
            if let Some(record) = self.next_record()? {
                return Poll::Ready(Ok(record));
            }
            let Some(at) = self.at.filter(|_| self.forward) else {
                return Poll::Pending;
            };
            let mut inner = self.log.state().lock();
            if !self.log.has_from(&inner, at)? {
                inner.add_waker(cx.waker());
                return Poll::Pending;
            }
        }
    }
}

impl Iterator for LogIter {
    type Item = Result<(u64, Bytes)>;

    fn next(&mut self) -> Option<Result<(u64, Bytes)>> {
        self.next_record().transpose()
    }
}
