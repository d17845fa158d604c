//! Iterators over the records of a logical log.

use crate::index::{EntryPlace, PageLocation};
use crate::log::Log;
use crate::mapping::Location;
use crate::pages;
use basalt_fs::{Bytes, Result};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::task::{Context, Poll};
use std::time::Duration;

/// Entries that an iterator takes from the index at once, at first and at most. They double as long
/// as the iterator goes on.
const AHEAD: usize = 256;
const MOST_AHEAD: usize = 2048;
/// Pages of the index that an iterator keeps decoded.
const KEPT_PAGES: usize = 16;
/// Bytes of the first read, apart from those of its record.
const FIRST_READ: u64 = 16 << 10;
/// Most bytes of one read, unless one record is longer.
const LARGEST_READ: u64 = 1 << 20;
/// Bytes between two records of the log that are read along with them.
const GAP: u64 = 16 << 10;
/// A record that takes a smaller part of the bytes that were read with it is copied, so that a user
/// who keeps it does not keep the others.
const COPIED_PART: usize = 8;

/// Bytes of a file that several records of the log lie in.
struct Window {
    file: u64,
    file_id: u128,
    path: PathBuf,
    offset: u64,
    bytes: Bytes,
}

impl Window {
    /// Returns the bytes of a record if they are here.
    fn get(&self, at: Location) -> Option<Bytes> {
        let from = at.offset.checked_sub(self.offset)?;
        let end = from + u64::from(at.len);
        (at.file == self.file && end <= self.bytes.len() as u64)
            .then(|| self.bytes.slice(from as usize..end as usize))
    }
}

/// An iterator over the records of a log, as [`Log::iter`] and [`Log::iter_back`] return it. An
/// item is an LSN and the record. After an error the iterator goes on behind the record.
pub struct LogIter {
    log: Log,
    forward: bool,
    /// The LSN at which the iterator goes on, or `None` at the end of all LSNs.
    at: Option<u64>,
    taken: VecDeque<(u64, EntryPlace)>,
    /// The log's number of late records when the entries were taken.
    late: u64,
    /// Number of entries that are taken next.
    ahead: usize,
    /// The last pages of the index that records were on. A mapping is decoded from its beginning,
    /// so each is decoded once.
    pages: VecDeque<(PageLocation, Vec<(u64, Location)>)>,
    window: Option<Window>,
    /// Bytes of the next read. They double as long as reads follow one another.
    read_bytes: u64,
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
            late: 0,
            ahead: AHEAD,
            pages: VecDeque::new(),
            window: None,
            read_bytes: FIRST_READ,
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
        self.ahead = AHEAD;
        self.read_bytes = FIRST_READ;
    }

    fn next_record(&mut self) -> Result<Option<(u64, Bytes)>> {
        loop {
            let Some(at) = self.at else {
                return Ok(None);
            };
            if self.late != self.log.state().late() {
                // A late record may belong between the entries that were taken.
                self.taken.clear();
                self.ahead = AHEAD;
            }
            if self.taken.is_empty() {
                self.late = self.log.state().late();
                self.taken = self.log.entries(at, self.forward, self.ahead)?.into();
                self.ahead = (self.ahead * 2).min(MOST_AHEAD);
            }
            let Some((lsn, place)) = self.taken.pop_front() else {
                return Ok(None);
            };
            self.at = match self.forward {
                true => lsn.checked_add(1),
                false => lsn.checked_sub(1),
            };
            // The record may have been moved or removed since the index was read.
            let data = match self.read_ahead(lsn, place)? {
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
    /// Returns the record at a place, or `None` if it is not there any more. Reads records that
    /// follow in the same file along with it.
    fn read_ahead(&mut self, lsn: u64, place: EntryPlace) -> Result<Option<Bytes>> {
        let Some(at) = self.locate(lsn, place)? else {
            return Ok(None);
        };
        let known = self.window.as_ref().and_then(|window| window.get(at));
        if known.is_none() {
            let Some(window) = self.read_window(at)? else {
                return Ok(None);
            };
            self.window = Some(window);
            self.read_bytes = (self.read_bytes * 2).min(LARGEST_READ);
        }
        let window = self.window.as_ref().expect("just read");
        let bytes = window.get(at).expect("the window begins with the record");
        let data = self
            .log
            .open_record(lsn, window.file_id, at.offset, &bytes)
            .map_err(|what| self.log.damaged(lsn, &window.path, at.offset, what))?;
        let data = bytes.slice(data);
        match data.len() < window.bytes.len() / COPIED_PART {
            true => Ok(Some(Bytes::copy_from_slice(&data))),
            false => Ok(Some(data)),
        }
    }

    /// Returns the location of a record, or `None` if its page is gone.
    fn locate(&mut self, lsn: u64, place: EntryPlace) -> Result<Option<Location>> {
        let page = match place {
            EntryPlace::Known(location) => return Ok(Some(location)),
            EntryPlace::OnPage(page) => page,
        };
        if !self.pages.iter().any(|(at, _)| *at == page) {
            let Some(mapping) = self.log.load_page(lsn, page)? else {
                return Ok(None);
            };
            if self.pages.len() == KEPT_PAGES {
                self.pages.pop_front();
            }
            self.pages.push_back((page, mapping.iter().collect()));
        }
        let entries = self.pages.iter().rev().find(|(at, _)| *at == page);
        let (_, entries) = entries.expect("just loaded");
        let found = entries.binary_search_by_key(&lsn, |(at, _)| *at);
        Ok(found.ok().map(|i| entries[i].1))
    }

    /// Reads the pages of the entries that were taken into the cache.
    fn read_pages(&self) {
        let mut pages: Vec<PageLocation> = Vec::new();
        for (_, place) in &self.taken {
            if let EntryPlace::OnPage(at) = place
                && pages.last() != Some(at)
                && !self.pages.iter().any(|(kept, _)| kept == at)
            {
                pages.push(*at);
            }
        }
        let engine = self.log.engine();
        pages::read_into_cache(&engine.env, &engine.logs, &pages);
    }

    /// Reads a record, and those of the next ones that lie near behind it.
    fn read_window(&mut self, first: Location) -> Result<Option<Window>> {
        let Some(file) = self.log.engine().logs.get(first.file) else {
            return Ok(None);
        };
        let (mut from, mut to) = (first.offset, first.offset + u64::from(first.len));
        let goes_on = self.read_bytes > FIRST_READ;
        if goes_on {
            self.read_pages();
        }
        for i in 0..self.taken.len() {
            let (lsn, place) = self.taken[i];
            let is_kept = match place {
                EntryPlace::Known(_) => true,
                EntryPlace::OnPage(page) => self.pages.iter().any(|(at, _)| *at == page),
            };
            // A page that cannot be read is reported when its record's turn comes.
            let next = match is_kept || goes_on {
                true => self.locate(lsn, place).ok().flatten(),
                false => None,
            };
            let Some(next) = next.filter(|next| next.file == first.file) else {
                break;
            };
            let end = next.offset + u64::from(next.len);
            let is_near = next.offset <= to + GAP && end + GAP >= from;
            let (wider_from, wider_to) = (from.min(next.offset), to.max(end));
            if !is_near || wider_to - wider_from > self.read_bytes {
                break;
            }
            (from, to) = (wider_from, wider_to);
        }
        let bytes = match file.read(from, (to - from) as usize) {
            Err(_) if to - from > u64::from(first.len) => {
                // The error is not the record's if the record alone can be read.
                from = first.offset;
                file.read(from, first.len as usize)?
            }
            read => read?,
        };
        Ok(Some(Window {
            file: file.number,
            file_id: file.file_id,
            path: file.path.clone(),
            offset: from,
            bytes,
        }))
    }

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
