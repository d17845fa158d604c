//! Iterators over the records of a logical log.

use crate::index::{EntryPlace, PageLocation};
use crate::log::Log;
use crate::mapping::Location;
use crate::namespace::Follower;
use crate::pages::{self, MissingPage};
use crate::read_ahead::ReadAhead;
use basalt_fs::{Bytes, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Entries that an iterator takes from the index at once, at first and at most. They double as long
/// as the iterator goes on.
const AHEAD: usize = 256;
const MOST_AHEAD: usize = 2048;
/// Most entries whose records are read ahead. They take 160 KiB of memory.
const MOST_PLANNED: usize = 4096;
/// Pages of the index that an iterator keeps decoded.
const KEPT_PAGES: usize = 16;
/// A record that takes a smaller part of the bytes that were read with it is copied, so that a user
/// who keeps it does not keep the others.
const COPIED_PART: usize = 8;

/// An iterator over the records of a log, as [`Log::iter`] and [`Log::iter_back`] return it. An
/// item is an LSN and the record. After an error the iterator goes on behind the record.
///
/// An iterator reads ahead: twice as many bytes as it has returned, and at most some 2.5 MiB. Until
/// it is at its end or dropped, it holds that memory, and files of which it reads a part.
pub struct LogIter {
    log: Log,
    forward: bool,
    /// The LSN at which the iterator goes on, or `None` at the end of all LSNs.
    at: Option<u64>,
    /// Entries of the index, from the position on.
    taken: VecDeque<(u64, EntryPlace)>,
    /// Number of the first entries of `taken` whose records are in `reads`.
    planned: usize,
    /// Number of the first entries of `taken` whose pages were read, or are in flight.
    paged: usize,
    /// True if the entries that follow may be in `reads`, because they were taken anew.
    retaken: bool,
    /// The log's number of late records and removals when the entries were taken.
    revision: u64,
    /// Number of entries that are taken next.
    ahead: usize,
    /// The last pages of the index that records were on. A mapping is decoded from its beginning,
    /// so each is decoded once.
    pages: VecDeque<(PageLocation, Vec<(u64, Location)>)>,
    /// Index of the entry on its page that is looked up next, if the iterator goes on.
    entry: usize,
    reads: ReadAhead,
    follower: Arc<Follower>,
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
            planned: 0,
            paged: 0,
            retaken: false,
            revision: 0,
            ahead: AHEAD,
            pages: VecDeque::new(),
            entry: 0,
            reads: ReadAhead::new(),
            follower: Arc::default(),
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
        self.forget_taken();
        self.ahead = AHEAD;
        self.reads.restart();
    }

    /// Forgets the entries that were taken from the index. Their records stay in `reads`.
    fn forget_taken(&mut self) {
        self.taken.clear();
        (self.planned, self.paged) = (0, 0);
        self.retaken = true;
    }

    fn next_record(&mut self) -> Result<Option<(u64, Bytes)>> {
        loop {
            let Some(at) = self.at else {
                return Ok(None);
            };
            if self.revision != self.log.state().revision() {
                // A late record may belong between the entries that were taken. A record that was
                // removed may have been appended again, with other data.
                self.forget_taken();
                self.ahead = AHEAD;
            }
            if self.taken.is_empty() {
                self.revision = self.log.state().revision();
                self.take_entries(at)?;
            }
            let Some((lsn, place)) = self.taken.pop_front() else {
                // A reader of the tail that waits keeps neither memory nor files.
                // Its next record is read like the first one.
                self.reads.clear();
                self.reads.restart();
                return Ok(None);
            };
            self.planned = self.planned.saturating_sub(1);
            self.paged = self.paged.saturating_sub(1);
            self.at = self.behind(lsn);
            // The record may have been moved or removed since the index was read.
            let data = match self.read_ahead(lsn, place)? {
                Some(data) => Some(data),
                None => {
                    self.forget_taken();
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
    /// Returns the LSN behind one, in the iterator's direction.
    fn behind(&self, lsn: u64) -> Option<u64> {
        match self.forward {
            true => lsn.checked_add(1),
            false => lsn.checked_sub(1),
        }
    }

    /// Takes more entries from the index, with LSNs from `at` on.
    fn take_entries(&mut self, at: u64) -> Result<()> {
        let entries = self.log.entries(at, self.forward, self.ahead)?;
        self.taken.extend(entries);
        self.ahead = (self.ahead * 2).min(MOST_AHEAD);
        Ok(())
    }

    /// Returns the record at a place, or `None` if it is not there any more. Reads records that
    /// follow along with it or ahead.
    fn read_ahead(&mut self, lsn: u64, place: EntryPlace) -> Result<Option<Bytes>> {
        let Some(at) = self.locate(lsn, place)? else {
            return Ok(None);
        };
        if self.reads.window(at).is_none() && !self.move_to(at) {
            return Ok(None);
        }
        let window = self.reads.window(at).expect("the reads moved to it");
        let Some((all, range)) = window.record(at) else {
            // An error of many records is that of a record only if the record alone has it.
            return self.log.read_at(lsn, EntryPlace::Known(at));
        };
        let entry = &all[range.clone()];
        let data = self
            .log
            .open_record(lsn, window.file_id, at.offset, entry)
            .map_err(|what| self.log.damaged(lsn, &window.path, at.offset, what))?;
        Ok(Some(match data.len() < all.len() / COPIED_PART {
            true => Bytes::copy_from_slice(&entry[data]),
            false => all.slice(range.start + data.start..range.start + data.end),
        }))
    }

    /// Waits for the range with a record, and keeps enough ranges behind it in flight. Returns
    /// false if the record's file is gone.
    fn move_to(&mut self, at: Location) -> bool {
        let log = self.log.clone();
        let env = &log.engine().env;
        let goes_on = self.reads.goes_on();
        let mut is_low = self.reads.move_to(env, at) && self.reads.is_low();
        if self.reads.window(at).is_none() {
            self.reads.clear();
            self.planned = 0;
            self.plan_reads(Some(at));
            if !self.reads.move_to(env, at) {
                return false;
            }
            is_low = goes_on && self.reads.is_empty();
        }
        if is_low {
            self.plan_reads(None);
        }
        true
    }

    /// Returns the location of a record, or `None` if its page is gone.
    fn locate(&mut self, lsn: u64, place: EntryPlace) -> Result<Option<Location>> {
        let page = match place {
            EntryPlace::Known(location) => return Ok(Some(location)),
            EntryPlace::OnPage(page) => page,
        };
        if !self.has_page(page) {
            self.reads.finish_pages(&self.log.engine().env);
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
        // An iteration asks for one entry after the other.
        let is_next = entries.get(self.entry).is_some_and(|(at, _)| *at == lsn);
        let found = match is_next {
            true => Some(self.entry),
            false => entries.binary_search_by_key(&lsn, |(at, _)| *at).ok(),
        };
        self.entry = match self.forward {
            true => found.map_or(0, |i| i + 1),
            false => found.map_or(0, |i| i.wrapping_sub(1)),
        };
        Ok(found.map(|i| entries[i].1))
    }

    /// Returns true if a page is decoded.
    fn has_page(&self, page: PageLocation) -> bool {
        self.pages.iter().rev().any(|(at, _)| *at == page)
    }

    /// Submits reads of the next records whose reads were not submitted, beginning with `first`.
    fn plan_reads(&mut self, first: Option<Location>) {
        let log = self.log.clone();
        let mut plan = self.reads.plan();
        if first.is_some_and(|first| !plan.add(log.engine(), first)) {
            return;
        }
        let goes_on = self.reads.goes_on();
        let paged = self.paged;
        if goes_on {
            self.take_entries_ahead();
            plan.pages = self.pages_ahead();
        }
        while self.planned < MOST_PLANNED
            && let Some(&(lsn, place)) = self.taken.get(self.planned)
        {
            if let EntryPlace::OnPage(page) = place
                && !self.has_page(page)
                && (!goes_on || self.planned >= paged && !plan.pages.is_empty() && !plan.is_empty())
            {
                // The page of a lookup's next record is not worth a read. Otherwise the page comes
                // with the plan, and the records before it go first.
                break;
            }
            // A page that cannot be read is reported when its record's turn comes.
            let Some(next) = self.locate(lsn, place).ok().flatten() else {
                break;
            };
            self.retaken = self.retaken && self.reads.contains(next);
            if !self.retaken && !plan.add(log.engine(), next) {
                break;
            }
            self.taken[self.planned].1 = EntryPlace::Known(next);
            self.planned += 1;
        }
        self.reads.submit(log.engine(), plan);
    }

    /// Takes more entries from the index if few are left that are not planned.
    fn take_entries_ahead(&mut self) {
        // An iterator that has gone on for long needs as many for one batch of reads.
        let least = match self.ahead < MOST_AHEAD {
            true => self.ahead / 4,
            false => MOST_AHEAD / 2,
        };
        if self.taken.len() - self.planned >= least {
            return;
        }
        let at = match self.taken.back() {
            Some((last, _)) => self.behind(*last),
            None => self.at,
        };
        if let Some(at) = at {
            // An error is reported when the entries that were taken are used up.
            let _ = self.take_entries(at);
        }
    }

    /// Returns the pages of entries that were taken since the last call, if they must be read.
    fn pages_ahead(&mut self) -> Vec<MissingPage> {
        let mut pages: Vec<PageLocation> = Vec::new();
        for (_, place) in self.taken.range(self.paged.max(self.planned)..) {
            if let EntryPlace::OnPage(at) = place
                && pages.last() != Some(at)
                && !self.has_page(*at)
            {
                pages.push(*at);
            }
        }
        self.paged = self.taken.len();
        let engine = self.log.engine();
        pages::missing(&engine.env, &engine.logs, &pages)
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
                inner.add_waker(&self.follower, cx.waker());
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
