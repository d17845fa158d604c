//! The index of one logical log: from each log sequence number (LSN) to the record's location, in
//! two levels (pageserver 5.2, Fig. 7).
//!
//! L0 is in memory: [`Chunk`]s of up to [`CHUNK`] entries. L1 names pages: MetaFlush records of up
//! to [`PAGE`] entries on disk. For each page, memory has its location
//! and the set of LSNs that are still looked up in it. An LSN is in one chunk or in the set of one
//! page, never in both.
//!
//! Chunks are disjoint and sorted. Pages are sorted by the smallest LSN that they were written
//! with, and may overlap: a late LSN goes to L0, and from there to a later page.
//!
//! A change reports which bytes became garbage: of records by datalog file, and of pages by metalog
//! file. If a page loses only some of its entries, the caller provides the page, whose entries say
//! how long the records are. The counts are exact, except if this page cannot be read. Its removed
//! records then count as live until the page is emptied or unloaded.

use crate::counted_deque::{CountedDeque, HeapBytes};
pub(crate) use crate::garbage::{BytesByFile, Freed};
use crate::lsn_set::{LsnSet, SetsEncoder};
use crate::mapping::{Chunk, Location, Mapping};
use basalt_kv::encoding::{get_varint64, put_varint};
use smallvec::SmallVec;
use std::ops::{Range, RangeInclusive};

/// Most entries of a chunk. A lookup decodes half of a chunk on average. Smaller chunks would cost
/// memory: a log that keeps a hundred records has two of them.
const LARGEST_CHUNK: u32 = 128;
/// Entries of a full chunk. Tests have small logs.
pub(crate) const CHUNK: u32 = if cfg!(test) { 64 } else { LARGEST_CHUNK };
/// Most entries of a page (pageserver 5.2).
pub(crate) const PAGE: u32 = 256;

/// The place of a page: the MetaFlush record in a file of the metalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageLocation {
    /// Number of the file.
    pub file: u64,
    /// Offset of the record.
    pub offset: u64,
    /// Bytes of the record.
    pub len: u32,
}

impl PageLocation {
    /// Returns the offset behind the record.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// Pages of a log that lie close to each other in one file.
pub(crate) type PagesAround = SmallVec<[PageLocation; 64]>;

/// The answer to a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryPlace {
    /// The record's location.
    Known(Location),
    /// The page that has the record's location.
    OnPage(PageLocation),
}

/// A page of L1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    /// The smallest LSN that the page was written with.
    from: u64,
    /// The largest LSN of this page and all pages before it, or a larger number.
    reach: u64,
    /// The LSNs that the page answers for.
    lsns: LsnSet,
    at: PageLocation,
    /// Bytes of the records of `lsns`, by file of the datalog.
    files: BytesByFile,
}

impl HeapBytes for Page {
    fn heap_bytes(&self) -> usize {
        self.lsns.memory() + self.files.heap()
    }
}

impl HeapBytes for Chunk {
    fn heap_bytes(&self) -> usize {
        self.memory()
    }
}

/// The index of one logical log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LogIndex {
    chunks: CountedDeque<Chunk>,
    pages: CountedDeque<Page>,
    count: u64,
    bytes: u64,
}

/// The outcome of [`LogIndex::insert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The LSN was not there.
    New,
    /// The LSN is there already, and nothing was changed.
    Duplicate(EntryPlace),
}

/// Chunks of L0 that become a page. They are copied under the log's lock, and merged without it.
pub(crate) struct PageEntries {
    chunks: Vec<Chunk>,
    limit: usize,
}

impl PageEntries {
    /// Returns the entries of the page.
    pub fn mapping(&self) -> Mapping {
        Mapping::of(self.chunks.iter().flat_map(Chunk::iter).take(self.limit))
    }
}

/// The entries of a page that was written, and what the index keeps of them. Made without the log's
/// lock.
pub(crate) struct PageContent<'a> {
    mapping: &'a Mapping,
    lsns: LsnSet,
    files: BytesByFile,
}

impl PageContent<'_> {
    /// Returns the content of a page.
    pub fn of(mapping: &Mapping) -> PageContent<'_> {
        let (first, last) = (mapping.first(), mapping.last());
        let lsns = match last - first == u64::from(mapping.count() - 1) {
            true => LsnSet::from_runs([first..=last]),
            false => LsnSet::from_rising(mapping.iter().map(|(lsn, _)| lsn)),
        };
        PageContent {
            mapping,
            lsns,
            files: bytes_of(mapping, |_| true),
        }
    }
}

impl LogIndex {
    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the bytes of all records, heads included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of entries in L0.
    pub fn in_memory(&self) -> u64 {
        self.chunks.iter().map(|c| u64::from(c.count())).sum()
    }

    /// Returns true if the index has this page, which was written with the entries of `mapping`.
    pub fn has_page(&self, mapping: &Mapping, at: PageLocation) -> bool {
        let begin = self
            .pages
            .partition_point(|page| page.from < mapping.first());
        let mut with_entry = self
            .pages
            .range(begin..)
            .take_while(|page| page.from <= mapping.last());
        with_entry.any(|page| page.at == at)
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the bytes of memory beyond the struct. Costs no walk.
    pub fn memory(&self) -> usize {
        self.chunks.memory() + self.pages.memory()
    }

    /// Returns the bytes of memory beyond the struct, counted by a walk over chunks and pages.
    #[cfg(test)]
    pub fn walked_memory(&self) -> usize {
        let of_page = |p: &Page| p.lsns.memory() + p.files.heap();
        self.chunks.capacity() * size_of::<Chunk>()
            + self.chunks.iter().map(Chunk::memory).sum::<usize>()
            + self.pages.capacity() * size_of::<Page>()
            + self.pages.iter().map(of_page).sum::<usize>()
    }

    /// Returns the smallest LSN.
    pub fn first(&self) -> Option<u64> {
        let mut first = self.chunks.front().map(Chunk::first);
        for page in self.pages.iter() {
            if first.is_some_and(|first| first <= page.from) {
                break;
            }
            first = first.into_iter().chain(page.lsns.first()).min();
        }
        first
    }

    /// Returns the largest LSN.
    pub fn last(&self) -> Option<u64> {
        let mut last = self.chunks.back().map(Chunk::last);
        for page in self.pages.iter().rev() {
            if last.is_some_and(|last| last >= page.reach) {
                break;
            }
            last = last.max(page.lsns.last());
        }
        last
    }

    /// Returns where the record of an LSN is, or `None` if the log does not have it.
    pub fn find(&self, lsn: u64) -> Option<EntryPlace> {
        let chunk = self.chunks.get(self.chunk_of(lsn));
        if let Some(location) = chunk.and_then(|chunk| chunk.get(lsn)) {
            return Some(EntryPlace::Known(location));
        }
        self.page_of(lsn)
            .map(|i| EntryPlace::OnPage(self.pages[i].at))
    }

    /// Returns the index of the first chunk that ends at `lsn` or behind it.
    fn chunk_of(&self, lsn: u64) -> usize {
        self.chunks.partition_point(|c| c.last() < lsn)
    }

    /// Returns the page that answers for an LSN.
    fn page_of(&self, lsn: u64) -> Option<usize> {
        let end = self.pages.partition_point(|p| p.from <= lsn);
        (0..end)
            .rev()
            .take_while(|i| self.pages[*i].reach >= lsn)
            .find(|i| self.pages[*i].lsns.contains(lsn))
    }

    /// Returns `page`, which has the entry of `lsn`, and the pages that precede and follow it in
    /// the index without a gap and lie in a range of its file. Returns none if the index no longer
    /// has the page.
    pub fn pages_around(&self, lsn: u64, page: PageLocation, range: Range<u64>) -> PagesAround {
        let is_in_range = |p: &&Page| {
            let (begin, end) = (range.start, range.end);
            p.at.file == page.file && begin <= p.at.offset && p.at.end() <= end
        };
        let end = self.pages.partition_point(|p| p.from <= lsn);
        let mut reaching = (0..end).rev().take_while(|i| self.pages[*i].reach >= lsn);
        let Some(i) = reaching.find(|i| self.pages[*i].at == page) else {
            return PagesAround::new();
        };
        let front = self.pages.range(..i).rev().take_while(is_in_range);
        let back = self.pages.range(i..).take_while(is_in_range);
        front.chain(back).map(|p| p.at).collect()
    }

    /// Adds a record. Costs a few nanoseconds if the LSN is above all others.
    pub fn insert(&mut self, lsn: u64, location: Location) -> Inserted {
        let above = |last: Option<u64>| last.is_none_or(|last| lsn > last);
        let rises =
            above(self.chunks.back().map(Chunk::last)) && above(self.pages.back().map(|p| p.reach));
        if !rises && let Some(place) = self.find(lsn) {
            return Inserted::Duplicate(place);
        }
        self.insert_in_chunk(lsn, location);
        self.count += 1;
        self.bytes += u64::from(location.len);
        Inserted::New
    }

    /// Adds an entry to L0 that neither level has.
    fn insert_in_chunk(&mut self, lsn: u64, location: Location) {
        let at = self.chunk_of(lsn);
        let has_space = |chunk: Option<&Chunk>| chunk.is_some_and(|c| c.count() < CHUNK);
        let precedes = self.chunks.get(at).is_none_or(|chunk| lsn < chunk.first());
        if precedes && has_space(at.checked_sub(1).and_then(|at| self.chunks.get(at))) {
            return self.chunks.change(at - 1, |chunk| {
                chunk.push(lsn, location);
                if chunk.count() == CHUNK {
                    chunk.shrink();
                }
            });
        }
        if precedes && !has_space(self.chunks.get(at)) {
            return self.chunks.insert(at, Chunk::of([(lsn, location)]));
        }
        let old = &self.chunks[at];
        let mut entries: Vec<(u64, Location)> = old.iter().collect();
        let position = entries.partition_point(|(other, _)| *other < lsn);
        entries.insert(position, (lsn, location));
        let half = match entries.len() > CHUNK as usize {
            true => entries.split_off(entries.len() / 2),
            false => Vec::new(),
        };
        self.chunks.set(at, Chunk::of(entries));
        if !half.is_empty() {
            self.chunks.insert(at + 1, Chunk::of(half));
        }
    }

    /// Returns the pages that lose some of their entries, but not all, when the records of a range
    /// are removed. [`LogIndex::remove`] needs them.
    pub fn pages_cut_by(&self, range: &RangeInclusive<u64>) -> SmallVec<[PageLocation; 2]> {
        let begin = self.pages.partition_point(|p| p.reach < *range.start());
        self.pages
            .range(begin..)
            .take_while(|p| p.from <= *range.end())
            .filter(|p| {
                let n = p.lsns.count_in(range);
                n > 0 && n < p.lsns.count()
            })
            .map(|p| p.at)
            .collect()
    }

    /// Removes the records of a range, and adds what became garbage to `freed`.
    ///
    /// `load` returns the entries of a page that [`LogIndex::pages_cut_by`] named, or `None` if the
    /// page cannot be read. Its removed records then count as live until the page is emptied or
    /// unloaded. An estimate could be too high, and a file with live records would be removed.
    pub fn remove(
        &mut self,
        range: &RangeInclusive<u64>,
        load: &mut dyn FnMut(PageLocation) -> Option<Mapping>,
        freed: &mut Freed,
    ) {
        let before = (freed.count, freed.records.sum());
        self.remove_from_chunks(range, freed);
        self.remove_from_pages(range, load, freed);
        self.count -= freed.count - before.0;
        self.bytes -= freed.records.sum() - before.1;
    }

    fn remove_from_chunks(&mut self, range: &RangeInclusive<u64>, freed: &mut Freed) {
        let begin = self.chunk_of(*range.start());
        let mut at = begin;
        while let Some(chunk) = self.chunks.get(at)
            && chunk.first() <= *range.end()
        {
            let mut kept = Chunk::default();
            for (lsn, location) in chunk.iter() {
                if range.contains(&lsn) {
                    freed.records.add(location.file, u64::from(location.len));
                    freed.count += 1;
                } else {
                    kept.push(lsn, location);
                }
            }
            kept.shrink();
            self.chunks.set(at, kept);
            at += 1;
        }
        if at > begin {
            self.chunks.retain(|c| c.count() > 0);
        }
    }

    fn remove_from_pages(
        &mut self,
        range: &RangeInclusive<u64>,
        load: &mut dyn FnMut(PageLocation) -> Option<Mapping>,
        freed: &mut Freed,
    ) {
        let begin = self.pages.partition_point(|p| p.reach < *range.start());
        let (mut emptied, mut cut_behind) = (false, false);
        for i in begin..self.pages.len() {
            let page = &self.pages[i];
            if page.from > *range.end() {
                break;
            }
            let gone = page.lsns.count_in(range);
            if gone == 0 {
                continue;
            }
            freed.count += u64::from(gone);
            cut_behind |= page.lsns.last().is_some_and(|last| last <= *range.end());
            if gone == page.lsns.count() {
                freed.records.add_all(&page.files);
                freed.pages.add(page.at.file, u64::from(page.at.len));
                self.pages
                    .change(i, |page| page.lsns = LsnSet::from_rising([]));
                emptied = true;
                continue;
            }
            let lost = match load(page.at) {
                Some(mapping) => bytes_of(&mapping, |lsn| {
                    range.contains(&lsn) && page.lsns.contains(lsn)
                }),
                None => BytesByFile::default(),
            };
            self.pages.change(i, |page| {
                for (file, bytes) in lost.iter() {
                    let counted = page.files.subtract(file, bytes);
                    freed.records.add(file, counted);
                }
                page.lsns.remove(range);
            });
        }
        if emptied {
            self.pages.retain(|p| !p.lsns.is_empty());
        }
        if cut_behind {
            self.set_reach(0);
        }
    }

    /// Sets the largest LSN of all pages up to each page, from a page on.
    fn set_reach(&mut self, from: usize) {
        let mut reach = from.checked_sub(1).map_or(0, |i| self.pages[i].reach);
        for i in from..self.pages.len() {
            reach = reach.max(self.pages[i].lsns.last().unwrap_or(0));
            self.pages.change(i, |page| page.reach = reach);
        }
    }

    /// Returns the entries of the next page: those of L0 with the smallest LSNs. Returns `None` if
    /// L0 has too few entries. Leaves at least `keep` entries in L0.
    pub fn next_page(&self, keep: u64) -> Option<PageEntries> {
        let spare = self.in_memory().checked_sub(keep)?;
        let limit = u64::from(PAGE).min(spare) as usize;
        let mut entries = 0;
        let few = |chunk: &&Chunk| {
            let wanted = entries < limit;
            entries += chunk.count() as usize;
            wanted
        };
        let chunks = self.chunks.iter().take_while(few).cloned().collect();
        (limit > 0).then_some(PageEntries { chunks, limit })
    }

    /// Moves entries from L0 to a page that was written with them. Entries that have changed since
    /// stay as they are. Adds the page to `freed` if it answers for no LSN. If no entry has
    /// changed, this decodes and compares up to [`PAGE`] entries.
    pub fn install_page(&mut self, page: PageContent<'_>, at: PageLocation, freed: &mut Freed) {
        let (lsns, files) = match self.take_chunks_of(page.mapping) {
            true => (page.lsns, page.files),
            false => self.take_entries_of(page.mapping),
        };
        let Some(from) = lsns.first() else {
            return freed.pages.add(at.file, u64::from(at.len));
        };
        let page = Page {
            from,
            reach: 0,
            lsns,
            at,
            files,
        };
        let position = self.pages.partition_point(|p| p.from <= page.from);
        self.pages.insert(position, page);
        self.set_reach(position);
    }

    /// Removes the chunks of L0 that have exactly the entries of a mapping. Returns false, and
    /// removes nothing, if other chunks have them or an entry has changed.
    fn take_chunks_of(&mut self, mapping: &Mapping) -> bool {
        let begin = self.chunk_of(mapping.first());
        let mut end = begin;
        let mut wanted = mapping.iter();
        while !wanted.is_empty() {
            match self.chunks.get(end) {
                Some(chunk) if chunk.iter().all(|entry| wanted.next() == Some(entry)) => end += 1,
                _ => return false,
            }
        }
        for _ in begin..end {
            self.chunks.remove(begin);
        }
        true
    }

    /// Removes the entries of a mapping from L0, without those that have changed. Returns their
    /// LSNs, and the bytes of their records.
    fn take_entries_of(&mut self, mapping: &Mapping) -> (LsnSet, BytesByFile) {
        let mut files = BytesByFile::default();
        let mut lsns = Vec::with_capacity(mapping.count() as usize);
        let mut written = mapping.iter().peekable();
        let mut i = self.chunk_of(mapping.first());
        while let Some(chunk) = self.chunks.get(i)
            && chunk.first() <= mapping.last()
        {
            let mut kept = Chunk::default();
            for (lsn, location) in chunk.iter() {
                while written.next_if(|(other, _)| *other < lsn).is_some() {}
                if written.peek() == Some(&(lsn, location)) {
                    lsns.push(lsn);
                    files.add(location.file, u64::from(location.len));
                } else {
                    kept.push(lsn, location);
                }
            }
            kept.shrink();
            self.chunks.set(i, kept);
            i += 1;
        }
        self.chunks.retain(|c| c.count() > 0);
        (LsnSet::from_rising(lsns), files)
    }

    /// Returns the pages in a file of the metalog.
    pub fn pages_in(&self, file: u64) -> Vec<PageLocation> {
        let in_file = self.pages.iter().filter(|page| page.at.file == file);
        in_file.map(|page| page.at).collect()
    }

    /// Moves the entries that a page answers for back to L0. `mapping` has the page's entries. Adds
    /// the page to `freed`. Does nothing if the index does not have the page any more.
    ///
    /// If a removal could not read the page, its byte counts are too high. Then returns the exact
    /// counts, and adds the old ones to `freed`. The caller must add the exact counts first.
    #[must_use]
    pub fn unload_page(
        &mut self,
        at: PageLocation,
        mapping: &Mapping,
        freed: &mut Freed,
    ) -> Option<BytesByFile> {
        let i = self.pages.iter().position(|page| page.at == at)?;
        let page = self.pages.remove(i).expect("the position was found");
        let kept = mapping.iter().filter(|(lsn, _)| page.lsns.contains(*lsn));
        let kept: Vec<(u64, Location)> = kept.collect();
        let mut exact = BytesByFile::default();
        for (_, location) in &kept {
            exact.add(location.file, u64::from(location.len));
        }
        self.load_entries(kept);
        freed.pages.add(at.file, u64::from(at.len));
        self.set_reach(i);
        let same = exact
            .iter()
            .all(|(file, bytes)| page.files.get(file) == bytes);
        if same && exact.sum() == page.files.sum() {
            return None;
        }
        self.bytes = self.bytes - page.files.sum() + exact.sum();
        freed.records.add_all(&page.files);
        Some(exact)
    }

    /// Adds entries to L0 that neither level has, in rising order.
    fn load_entries(&mut self, entries: Vec<(u64, Location)>) {
        let [(first, _), .., (last, _)] = entries[..] else {
            for (lsn, location) in entries {
                self.insert_in_chunk(lsn, location);
            }
            return;
        };
        let at = self.chunk_of(first);
        let before = at.checked_sub(1).and_then(|at| self.chunks.get(at));
        let joins = before.is_some_and(|c| c.count() as usize + entries.len() <= CHUNK as usize);
        let overlaps = (self.chunks.get(at)).is_some_and(|chunk| chunk.first() <= last);
        if joins || overlaps {
            for (lsn, location) in entries {
                self.insert_in_chunk(lsn, location);
            }
        } else {
            // Appends wait for the log's lock during this call. Inserting whole chunks takes a
            // hundredth of the time of single inserts.
            for (i, entries) in entries.chunks(CHUNK as usize).enumerate() {
                let chunk = Chunk::of(entries.iter().copied());
                self.chunks.insert(at + i, chunk);
            }
        }
    }

    /// Changes the location of a moved record from `from` to `to`. `page` is the page that has the
    /// old location, or `None` if L0 has it. Returns false and changes nothing if the index no
    /// longer has the record at `from`. Otherwise adds the record's old bytes to `freed`, and also
    /// the page if no LSN is left in it.
    pub fn move_record(
        &mut self,
        lsn: u64,
        from: Location,
        page: Option<PageLocation>,
        to: Location,
        freed: &mut Freed,
    ) -> bool {
        let at = self.chunk_of(lsn);
        let mut counted = u64::from(from.len);
        if let Some(found) = self.chunks.get(at).and_then(|chunk| chunk.get(lsn)) {
            if found != from {
                return false;
            }
            let moved = |(other, location)| match other == lsn {
                true => (other, to),
                false => (other, location),
            };
            let chunk = Chunk::of(self.chunks[at].iter().map(moved));
            self.chunks.set(at, chunk);
        } else {
            let Some(i) = self
                .page_of(lsn)
                .filter(|i| page == Some(self.pages[*i].at))
            else {
                return false;
            };
            counted = self.pages.change(i, |page| {
                page.lsns.remove(&(lsn..=lsn));
                page.files.subtract(from.file, counted)
            });
            if self.pages[i].lsns.is_empty() {
                // The later pages keep their `reach`, which may now be too large. A lookup may then
                // search more pages than needed.
                let page = self.pages.remove(i).expect("the page was found above");
                freed.pages.add(page.at.file, u64::from(page.at.len));
                // If a removal could not read the page, the bytes of its removed records are still
                // counted. They become garbage here.
                freed.records.add_all(&page.files);
                self.bytes -= page.files.sum();
            }
            self.insert_in_chunk(lsn, to);
        }
        freed.records.add(from.file, counted);
        self.bytes = self.bytes - counted + u64::from(to.len);
        true
    }

    /// Returns up to `limit` entries with LSNs from `from` on, in rising order.
    pub fn entries_from(&self, from: u64, limit: usize) -> Vec<(u64, EntryPlace)> {
        let mut out = Vec::new();
        let begin = self.pages.partition_point(|p| p.reach < from);
        for page in self.pages.range(begin..) {
            if out.len() >= limit {
                keep_smallest(&mut out, limit);
                if out.last().is_some_and(|(last, _)| page.from > *last) {
                    break;
                }
            }
            let lsns = page
                .lsns
                .runs()
                .filter(|run| *run.end() >= from)
                .flat_map(|run| from.max(*run.start())..=*run.end());
            out.extend(
                lsns.take(limit)
                    .map(|lsn| (lsn, EntryPlace::OnPage(page.at))),
            );
        }
        let in_chunks = self
            .chunks
            .range(self.chunk_of(from)..)
            .flat_map(Chunk::iter)
            .filter(|(lsn, _)| *lsn >= from);
        let known = |(lsn, location)| (lsn, EntryPlace::Known(location));
        out.extend(in_chunks.take(limit).map(known));
        keep_smallest(&mut out, limit);
        out
    }

    /// Returns up to `limit` entries with LSNs up to `to`, in falling order.
    pub fn entries_down_from(&self, to: u64, limit: usize) -> Vec<(u64, EntryPlace)> {
        let mut out = Vec::new();
        let end = self.pages.partition_point(|p| p.from <= to);
        for page in self.pages.range(..end).rev() {
            if out.len() >= limit {
                keep_largest(&mut out, limit);
                if out.last().is_some_and(|(last, _)| page.reach < *last) {
                    break;
                }
            }
            let lsns = page
                .lsns
                .runs()
                .take_while(|run| *run.start() <= to)
                .flat_map(|run| *run.start()..=to.min(*run.end()));
            out.extend(lsns.map(|lsn| (lsn, EntryPlace::OnPage(page.at))));
        }
        let end = (self.chunk_of(to) + 1).min(self.chunks.len());
        let mut taken = 0;
        for chunk in self.chunks.range(..end).rev() {
            if taken >= limit {
                break;
            }
            for (lsn, location) in chunk.iter().filter(|(lsn, _)| *lsn <= to) {
                out.push((lsn, EntryPlace::Known(location)));
                taken += 1;
            }
        }
        keep_largest(&mut out, limit);
        out
    }

    /// Returns the maximal ranges inside `range` without any record, in rising order. Costs time in
    /// proportion to the number of runs of consecutive LSNs, and no read of a page.
    pub fn gaps(&self, range: &RangeInclusive<u64>) -> Vec<RangeInclusive<u64>> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut add = |from: u64, to: u64| match runs.last_mut() {
            Some(last) if last.1.checked_add(1) == Some(from) => last.1 = to,
            _ => runs.push((from, to)),
        };
        let begin = self.pages.partition_point(|p| p.reach < *range.start());
        for page in self.pages.range(begin..) {
            if page.from > *range.end() {
                break;
            }
            page.lsns
                .runs()
                .for_each(|run| add(*run.start(), *run.end()));
        }
        for chunk in self.chunks.range(self.chunk_of(*range.start())..) {
            if chunk.first() > *range.end() {
                break;
            }
            chunk.iter().for_each(|(lsn, _)| add(lsn, lsn));
        }
        runs.sort_unstable();
        let mut gaps = Vec::new();
        let mut next = *range.start();
        for (from, to) in runs {
            if from > *range.end() {
                break;
            }
            if from > next {
                gaps.push(next..=from - 1);
            }
            match to.checked_add(1) {
                Some(behind) => next = next.max(behind),
                None => return gaps,
            }
        }
        if next <= *range.end() {
            gaps.push(next..=*range.end());
        }
        gaps
    }

    /// Calls `each` with the bytes of records in each file of the datalog, and the bytes of each
    /// page in its file of the metalog.
    pub fn live(&self, live: &mut Freed) {
        for page in self.pages.iter() {
            live.records.add_all(&page.files);
            live.pages.add(page.at.file, u64::from(page.at.len));
        }
        for (_, location) in self.chunks.iter().flat_map(Chunk::iter) {
            live.records.add(location.file, u64::from(location.len));
        }
        live.count += self.count;
    }
}

/// Returns the bytes of the entries of a page that `wanted` accepts.
fn bytes_of(mapping: &Mapping, wanted: impl Fn(u64) -> bool) -> BytesByFile {
    let mut bytes = BytesByFile::default();
    for (_, location) in mapping.iter().filter(|(lsn, _)| wanted(*lsn)) {
        bytes.add(location.file, u64::from(location.len));
    }
    bytes
}

fn keep_smallest(entries: &mut Vec<(u64, EntryPlace)>, limit: usize) {
    entries.sort_unstable_by_key(|(lsn, _)| *lsn);
    entries.truncate(limit);
}

fn keep_largest(entries: &mut Vec<(u64, EntryPlace)>, limit: usize) {
    entries.sort_unstable_by_key(|(lsn, _)| std::cmp::Reverse(*lsn));
    entries.truncate(limit);
}

impl LogIndex {
    /// Appends the LSNs of all records to `out`: the number of sets, then the sets. Consecutive
    /// LSNs of neighbouring pages become one set, so most logs have one.
    pub fn encode_lsns(&self, out: &mut Vec<u8>) {
        let mut sets = SetsEncoder::default();
        self.pages.iter().for_each(|page| sets.add(&page.lsns));
        let in_memory = self.chunks.iter().flat_map(Chunk::iter);
        sets.add(&LsnSet::from_rising(in_memory.map(|(lsn, _)| lsn)));
        sets.finish(out);
    }

    /// Appends the index to `out`, for a checkpoint.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.pages.len() as u64);
        for page in self.pages.iter() {
            put_varint(out, page.from);
            page.lsns.encode(out);
            put_varint(out, page.at.file);
            put_varint(out, page.at.offset);
            put_varint(out, u64::from(page.at.len));
            put_varint(out, page.files.files() as u64);
            for (file, bytes) in page.files.iter() {
                put_varint(out, file);
                put_varint(out, bytes);
            }
        }
        put_varint(out, self.chunks.len() as u64);
        for chunk in self.chunks.iter() {
            let mapping = Mapping::of(chunk.iter());
            put_varint(out, u64::from(mapping.count()));
            put_varint(out, mapping.bytes().len() as u64);
            out.extend_from_slice(mapping.bytes());
        }
    }

    /// Decodes an index. Returns `None` if the bytes are no index: sets or chunks that overlap
    /// where they must not, or numbers that do not fit each other.
    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<LogIndex> {
        let mut index = LogIndex::default();
        let (mut from_before, mut reach) = (0, 0);
        for _ in 0..get_varint64(bytes, at)? {
            let page = decode_page(bytes, at)?;
            let fits = page.from >= from_before && page.lsns.first()? >= page.from;
            if !fits || page.lsns.count() > PAGE {
                return None;
            }
            from_before = page.from;
            reach = reach.max(page.lsns.last()?);
            index.count += u64::from(page.lsns.count());
            index.bytes = index.bytes.checked_add(page.files.checked_sum()?)?;
            index.pages.push_back(Page { reach, ..page });
        }
        let mut last = None;
        for _ in 0..get_varint64(bytes, at)? {
            let count = u32::try_from(get_varint64(bytes, at)?).ok()?;
            let len = usize::try_from(get_varint64(bytes, at)?).ok()?;
            let encoded = bytes.get(*at..at.checked_add(len)?)?;
            *at += len;
            let chunk = Chunk::of(Mapping::decode(encoded, count)?.iter());
            if count > LARGEST_CHUNK || last.is_some_and(|last| chunk.first() <= last) {
                return None;
            }
            last = Some(chunk.last());
            index.count += u64::from(count);
            for (_, location) in chunk.iter() {
                index.bytes = index.bytes.checked_add(u64::from(location.len))?;
            }
            index.chunks.push_back(chunk);
        }
        Some(index)
    }
}

fn decode_page(bytes: &[u8], at: &mut usize) -> Option<Page> {
    let from = get_varint64(bytes, at)?;
    let lsns = LsnSet::decode(bytes, at)?;
    let location = PageLocation {
        file: get_varint64(bytes, at)?,
        offset: get_varint64(bytes, at)?,
        len: u32::try_from(get_varint64(bytes, at)?).ok()?,
    };
    let mut files = BytesByFile::default();
    for _ in 0..get_varint64(bytes, at)? {
        let (file, n) = (get_varint64(bytes, at)?, get_varint64(bytes, at)?);
        if n == 0 || files.iter().any(|(other, _)| other == file) {
            return None;
        }
        files.add(file, n);
    }
    Some(Page {
        from,
        reach: 0,
        lsns,
        at: location,
        files,
    })
}

#[cfg(test)]
mod tests;
