//! Reads ahead of an iterator: the ranges of physical logs that it needs next. They are submitted
//! in batches, and stay in flight while the iterator returns records of earlier ranges.
//!
//! Promises: the bytes in flight are bounded by a target, which doubles as long as the iterator
//! goes on. A range is never stale, because bytes of a file do not change once a record is in them:
//! a file in flight is held, so its space gets no second life.

use crate::engine::Engine;
use crate::mapping::Location;
use crate::pages::MissingPage;
use crate::physical::ReadableFile;
use basalt_env::{Env, MemoryKind, Reservation};
use basalt_fs::{Bytes, Lifetime, ReadCompletions, ReadRequest, Result};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes that are read first, apart from those of the first record: a short scan reads little.
const FIRST_READ: u64 = 16 << 10;
/// Most bytes that are read ahead, apart from the last range. With half as many, iterators over
/// records of 1 KiB waited longer for the device. With twice as many, they were not faster.
const MOST_AHEAD: u64 = 2 << 20;
/// Most bytes of one range, unless one record is longer. A batch of one read is not in flight: some
/// filesystems perform it at once. So what is read ahead is several ranges.
const LARGEST_RANGE: u64 = 256 << 10;
/// Most ranges that are read ahead. Records that lie far from each other are ranges of their own.
const MOST_RANGES: usize = 32;
/// Bytes between two records of the log that are read along with them.
const GAP: u64 = 16 << 10;

/// A range of a file that several records of the log lie in.
struct PlannedRange {
    file: Arc<ReadableFile>,
    range: Range<u64>,
}

impl PlannedRange {
    fn contains(&self, at: Location) -> bool {
        at.file == self.file.number && contains(&self.range, at)
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

fn contains(range: &Range<u64>, at: Location) -> bool {
    range.start <= at.offset && at.offset + u64::from(at.len) <= range.end
}

/// The range that the iterator is in. The file is not held: an idle iterator pins no file whose
/// bytes it has.
pub(crate) struct Window {
    file: u64,
    pub file_id: u128,
    pub path: PathBuf,
    range: Range<u64>,
    /// `None` if the range cannot be read as a whole.
    bytes: Option<Bytes>,
}

impl Window {
    fn contains(&self, at: Location) -> bool {
        at.file == self.file && contains(&self.range, at)
    }

    /// Returns all bytes, and the range of a record's in them. Returns `None` if the range cannot
    /// be read as a whole.
    pub fn record(&self, at: Location) -> Option<(&Bytes, Range<usize>)> {
        let from = (at.offset - self.range.start) as usize;
        let bytes = self.bytes.as_ref()?;
        Some((bytes, from..from + at.len as usize))
    }
}

/// Ranges whose reads were submitted together.
struct Batch {
    /// The reads. They are dropped first: a file in flight is held.
    reads: Box<dyn ReadCompletions>,
    /// The pages that were read in front of the ranges, until they are in the cache.
    pages: Vec<MissingPage>,
    ranges: Vec<PlannedRange>,
    /// The memory of each range in the ledger, until the range has its bytes.
    booked: Vec<Option<Reservation>>,
    /// Results of the pages, and behind them of the ranges.
    results: Vec<Option<Result<Bytes>>>,
    /// Number of results of pages.
    of_pages: usize,
    /// The first range that the iterator has not reached.
    next: usize,
}

impl Batch {
    /// Waits for the read with this index.
    fn wait(&mut self, i: usize) -> Option<Result<Bytes>> {
        while self.results[i].is_none() {
            let (done, result) = self.reads.next()?;
            self.results[done] = Some(result);
        }
        self.results[i].take()
    }

    /// Waits for the read of a range. Returns `None` if it failed.
    fn take(&mut self, i: usize) -> Option<Bytes> {
        let read = self.wait(self.of_pages + i)?.ok()?;
        let booked = self.booked[i].take();
        (read.len() as u64 == self.ranges[i].len()).then(|| match booked {
            Some(booked) => booked.hold(read),
            None => read,
        })
    }

    /// Waits for the pages, and puts them into the cache.
    fn finish_pages(&mut self, env: &Env) {
        for (i, page) in std::mem::take(&mut self.pages).into_iter().enumerate() {
            if let Some(read) = self.wait(i) {
                page.insert(env, read);
            }
        }
    }
}

/// The ranges of the next batch, as they are planned.
pub(crate) struct ReadPlan {
    /// Pages of the index that are read with the ranges.
    pub pages: Vec<MissingPage>,
    ranges: Vec<PlannedRange>,
    /// Bytes of all ranges.
    bytes: u64,
    /// The plan begins no further range when its ranges have this many bytes.
    budget: u64,
    /// Most bytes of one range, unless one record is longer.
    largest: u64,
    /// Most ranges, at least one.
    most: usize,
    /// Most bytes that may be in flight in all. Those of this plan are a part of them.
    target: u64,
    /// Most ranges that may be in flight in all. Those of this plan are a part of them.
    reads: usize,
}

impl ReadPlan {
    /// Adds a record. Returns false if it does not fit, or if its file was removed.
    pub fn add(&mut self, engine: &Engine, at: Location) -> bool {
        let (from, to) = (at.offset, at.offset + u64::from(at.len));
        if let Some(last) = self.ranges.last_mut().filter(|r| r.file.number == at.file) {
            let range = &last.range;
            let is_near = from <= range.end + GAP && to + GAP >= range.start;
            let wider = range.start.min(from)..range.end.max(to);
            let (before, after) = (last.len(), wider.end - wider.start);
            if is_near && after <= self.largest {
                self.bytes += after - before;
                last.range = wider;
                return true;
            }
        }
        let fits = self.bytes + (to - from) <= self.budget && self.ranges.len() < self.most;
        if !fits && !self.ranges.is_empty() {
            return false;
        }
        let Some(file) = engine.logs.get(at.file) else {
            return false;
        };
        self.bytes += to - from;
        self.ranges.push(PlannedRange {
            file,
            range: from..to,
        });
        true
    }

    /// Returns true if no record was added.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// The reads of one iterator.
pub(crate) struct ReadAhead {
    window: Option<Window>,
    batches: VecDeque<Batch>,
    /// Bytes of the ranges that the iterator has not reached.
    ahead: u64,
    /// Bytes and ranges that were to be ahead with the last batch. Both are 0 at first.
    target: u64,
    reads: usize,
}

impl ReadAhead {
    pub fn new() -> ReadAhead {
        ReadAhead {
            window: None,
            batches: VecDeque::new(),
            ahead: 0,
            target: 0,
            reads: 0,
        }
    }

    /// Forgets that the iterator has gone on: the next reads are small.
    pub fn restart(&mut self) {
        (self.target, self.reads) = (0, 0);
    }

    /// Returns true if there was a read: the iterator is no lookup of one record.
    pub fn goes_on(&self) -> bool {
        self.target > 0
    }

    /// Returns true if there is no range that the iterator has not reached.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Drops all ranges. Waits for the reads in flight.
    pub fn clear(&mut self) {
        self.window = None;
        self.batches.clear();
        self.ahead = 0;
    }

    /// Returns true if a record lies in a range that was submitted.
    pub fn contains(&self, at: Location) -> bool {
        self.window
            .as_ref()
            .is_some_and(|window| window.contains(at))
            || (self.batches.iter()).any(|b| b.ranges[b.next..].iter().any(|r| r.contains(at)))
    }

    /// Returns true if it is time to read more: half of what was ahead is used up, or a quarter of
    /// the most. Smaller batches cost more calls, and larger ones leave the device with few reads
    /// before each.
    pub fn is_low(&self) -> bool {
        let part = match self.target == MOST_AHEAD || self.reads == MOST_RANGES {
            true => 4,
            false => 2,
        };
        let bytes = self.target - self.target / part;
        let ranges = self.reads - self.reads.div_ceil(part as usize);
        self.ahead <= bytes && self.ranges_ahead() <= ranges
    }

    /// Returns the number of ranges that the iterator has not reached.
    fn ranges_ahead(&self) -> usize {
        let ahead = self.batches.iter().map(|b| b.ranges.len() - b.next);
        ahead.sum()
    }

    /// Returns the window that has a record, if it is the current one.
    pub fn window(&self, at: Location) -> Option<&Window> {
        self.window.as_ref().filter(|window| window.contains(at))
    }

    /// Makes the first range with a record the current window, and waits until it is read. Ranges
    /// before it are dropped. Returns false if the record is in no range.
    pub fn move_to(&mut self, env: &Env, at: Location) -> bool {
        let found = self.batches.iter().enumerate().find_map(|(b, batch)| {
            let ahead = &batch.ranges[batch.next..];
            let i = ahead.iter().position(|range| range.contains(at))?;
            Some((b, batch.next + i))
        });
        let Some((b, i)) = found else {
            return false;
        };
        self.window = None;
        for mut skipped in self.batches.drain(..b) {
            skipped.finish_pages(env);
            self.ahead -= bytes_of(&skipped.ranges[skipped.next..]);
        }
        let batch = &mut self.batches[0];
        self.ahead -= bytes_of(&batch.ranges[batch.next..=i]);
        batch.next = i + 1;
        let bytes = batch.take(i);
        let PlannedRange { file, range } = &batch.ranges[i];
        self.window = Some(Window {
            file: file.number,
            file_id: file.file_id,
            path: file.path.clone(),
            range: range.clone(),
            bytes,
        });
        if batch.next == batch.ranges.len() {
            batch.finish_pages(env);
            self.batches.pop_front();
        }
        true
    }

    /// Returns an empty plan for the next batch. Twice as much may be ahead as with the last one.
    pub fn plan(&self) -> ReadPlan {
        let target = (self.target * 2).clamp(FIRST_READ, MOST_AHEAD);
        let reads = (self.reads * 2).clamp(1, MOST_RANGES);
        ReadPlan {
            pages: Vec::new(),
            ranges: Vec::new(),
            bytes: 0,
            budget: target.saturating_sub(self.ahead),
            largest: (target / 4).clamp(FIRST_READ, LARGEST_RANGE),
            most: reads.saturating_sub(self.ranges_ahead()),
            target,
            reads,
        }
    }

    /// Waits for all pages of the index, and puts them into the cache.
    pub fn finish_pages(&mut self, env: &Env) {
        self.batches
            .iter_mut()
            .for_each(|batch| batch.finish_pages(env));
    }

    /// Submits the reads of a plan.
    pub fn submit(&mut self, engine: &Engine, plan: ReadPlan) {
        let ReadPlan { pages, ranges, .. } = plan;
        if ranges.is_empty() {
            return;
        }
        let read = |r: &PlannedRange| ReadRequest {
            file: r.file.file().clone(),
            offset: r.range.start,
            len: r.len() as usize,
            lifetime: Lifetime::Cached,
        };
        let book = |r: &PlannedRange| {
            let ledger = engine.env.ledger();
            Some(ledger.reserve(MemoryKind::Pinned, r.len()))
        };
        let of_pages = pages.iter().map(MissingPage::request);
        let reads: Vec<ReadRequest> = of_pages.chain(ranges.iter().map(read)).collect();
        self.ahead += plan.bytes;
        // A plan that is smaller than it may be, such as one at the end of the entries that are
        // known, is no reason to read twice as much next.
        self.target = plan.target.min(self.ahead.max(self.target));
        let ranges_ahead = self.ranges_ahead() + ranges.len();
        self.reads = plan.reads.min(ranges_ahead.max(self.reads));
        self.batches.push_back(Batch {
            results: reads.iter().map(|_| None).collect(),
            reads: engine.env.fs().submit_reads(reads),
            of_pages: pages.len(),
            pages,
            booked: ranges.iter().map(book).collect(),
            next: 0,
            ranges,
        });
    }
}

fn bytes_of(ranges: &[PlannedRange]) -> u64 {
    ranges.iter().map(PlannedRange::len).sum()
}
