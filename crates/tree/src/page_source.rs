//! Entries of one page of a leaf, whose blocks are loaded when they are needed.

use crate::mapping::Part;
use crate::page::{EntryPlace, Page};
use crate::page_format::PageHead;
use crate::page_reads::{PageRef, PartReads, StoredParts, block_key};
use basalt_fs::Bytes;
use smallvec::{SmallVec, smallvec};
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

/// Compares keys that are in two parts each.
pub(crate) fn compare(a: (&[u8], &[u8]), b: (&[u8], &[u8])) -> Ordering {
    let common = a.0.len().min(b.0.len());
    let order = a.0[..common].cmp(&b.0[..common]);
    if order.is_ne() {
        return order;
    }
    // The rest of the longer first part stands before its second part.
    let (long, other, is_swapped) = match a.0.len() >= b.0.len() {
        true => ((&a.0[common..], a.1), b.1, false),
        false => ((&b.0[common..], b.1), a.1, true),
    };
    let n = long.0.len().min(other.len());
    let order = long
        .0
        .cmp(&other[..n])
        .then_with(|| long.1.cmp(&other[n..]));
    if is_swapped { order.reverse() } else { order }
}

/// A block of a source.
#[derive(Clone)]
pub(crate) enum SourceBlock {
    /// It must be read.
    Missing,
    /// It was read together with one that was needed. It goes into the cache when it is needed.
    Stored(Bytes),
    Loaded(Page),
}

/// A page of a leaf, and the entries of it that count. Its blocks are read when they are needed.
pub(crate) struct Source {
    pub of: PageRef,
    pub head: PageHead,
    /// If the page was decoded whole, this is one block.
    pub blocks: SmallVec<[SourceBlock; 1]>,
    is_one_block: bool,
    /// The stored bytes of the page, if they came with its head.
    pub whole: Option<Bytes>,
    /// The block of the next entry, and its entries among those of the page.
    block: usize,
    entries: Range<usize>,
    pub begin: usize,
    pub end: usize,
    /// The next entry forward. The one before it is the next entry backward.
    pub at: usize,
    /// Keys outside of these do not count. `begin` and `end` are at the borders of blocks until an
    /// entry shows where they are.
    low: Option<Arc<[u8]>>,
    high: Option<Arc<[u8]>>,
    /// Where the next entry is in its block, for the direction of the last [`Source::missing`].
    place: EntryPlace,
    /// The entry that `place` is of.
    placed: usize,
}

/// An entry of a source: its block, and its place in it.
pub(crate) type PlaceInSource = (usize, EntryPlace);

impl Source {
    pub fn of_head(of: PageRef, head: PageHead, whole: Option<Bytes>) -> Source {
        let count = head.count();
        Source {
            of,
            whole,
            blocks: smallvec![SourceBlock::Missing; head.blocks],
            is_one_block: head.blocks == 1,
            head,
            block: 0,
            entries: 0..0,
            begin: 0,
            end: count,
            at: 0,
            low: None,
            high: None,
            place: EntryPlace::default(),
            placed: 0,
        }
    }

    /// Returns the source of a page that was decoded whole.
    pub fn of_page(of: PageRef, head: PageHead, page: Page) -> Source {
        let mut source = Source::of_head(of, head, None);
        source.blocks = smallvec![SourceBlock::Loaded(page)];
        source.is_one_block = true;
        source
    }

    /// Limits the entries that count to those of a part of the page. Reads nothing: the borders
    /// are found when the entries around them are loaded.
    pub fn bound(&mut self, part: Option<&Part>) {
        let Some(part) = part else {
            return;
        };
        if part.has_low {
            self.begin = self.entries_of(self.block_of(&part.low)).start;
            self.low = Some(part.low.clone());
        }
        if let Some(high) = &part.high {
            self.end = self.entries_of(self.block_of(high)).end.max(self.begin);
            self.high = Some(high.clone());
        }
        self.at = self.begin;
    }

    /// Takes the blocks that `stored` has, so that they are not read again. `parts` counts them as
    /// reads.
    pub fn give_blocks(&mut self, stored: &StoredParts, parts: &mut PartReads<'_>) {
        for block in self.used_blocks() {
            if let SourceBlock::Missing = self.blocks[block]
                && let Some(stored) = stored.get(&block_key(self.of.1, &self.head, block))
            {
                parts.note_read(self.of.0);
                self.blocks[block] = SourceBlock::Stored(stored.clone());
            }
        }
    }

    /// Returns the block that has a key, or the keys around it.
    pub fn block_of(&self, key: &[u8]) -> usize {
        match self.is_one_block {
            true => 0,
            false => self.head.block_of(key),
        }
    }

    /// Returns the blocks that a scan from a key on reads first, at most `most`. The first one has
    /// the key.
    pub fn first_blocks(&self, key: &[u8], most: usize) -> Range<usize> {
        let block = self.block_of(key);
        block..(block + most).min(self.used_blocks().end).max(block + 1)
    }

    /// Returns the blocks that may have an entry that counts.
    pub fn used_blocks(&self) -> Range<usize> {
        match self.begin < self.end {
            true => self.block_of_entry(self.begin)..self.block_of_entry(self.end - 1) + 1,
            false => 0..0,
        }
    }

    /// Returns the number of stored blocks that may have an entry that counts.
    pub fn stored_blocks(&self) -> usize {
        match self.is_one_block {
            true => self.head.blocks,
            false => self.used_blocks().len(),
        }
    }

    /// Returns the block of an entry.
    pub fn block_of_entry(&self, entry: usize) -> usize {
        match self.is_one_block {
            true => 0,
            false => self.head.block_of_entry(entry),
        }
    }

    /// Returns the entries of a block among those of the page.
    pub fn entries_of(&self, block: usize) -> Range<usize> {
        match self.is_one_block {
            true => 0..self.head.count(),
            false => self.head.block(block).entries,
        }
    }

    /// Returns the number of the first entry that is not below a key. Its block is loaded.
    pub fn find(&self, key: &[u8]) -> usize {
        let block = self.block_of(key);
        let (Ok(i) | Err(i)) = self.loaded(block).find(key);
        self.entries_of(block).start + i
    }

    /// Returns the block that must be loaded for the next entry, if any. If it is there, the entry
    /// is decoded, for [`Source::next_key`] and [`Source::next_place`].
    pub fn missing(&mut self, forward: bool) -> Option<usize> {
        loop {
            let next = self.next(forward)?;
            if !self.entries.contains(&next) {
                let block = self.block_of_entry(next);
                if !matches!(self.blocks[block], SourceBlock::Loaded(_)) {
                    return Some(block);
                }
                (self.block, self.entries) = (block, self.entries_of(block));
            }
            self.place = self.loaded(self.block).place(next - self.entries.start);
            self.placed = next;
            if !self.moves_border() {
                return None;
            }
        }
    }

    /// Moves a border if the next entry is outside of it. The border is in the block of the entry,
    /// because `begin` and `end` exclude the other blocks behind it.
    fn moves_border(&mut self) -> bool {
        let is_below = |bound: &Arc<[u8]>| compare(self.next_key(), (bound, &[])).is_lt();
        if self.low.as_ref().is_some_and(is_below) {
            let low = self.low.take().expect("it was seen");
            self.begin = self.find(&low);
            self.at = self.at.max(self.begin);
            return true;
        }
        if self.high.as_ref().is_some_and(|high| !is_below(high)) {
            let high = self.high.take().expect("it was seen");
            self.end = self.find(&high);
            self.at = self.at.min(self.end);
            return true;
        }
        false
    }

    #[inline]
    fn loaded(&self, block: usize) -> &Page {
        match &self.blocks[block] {
            SourceBlock::Loaded(page) => page,
            _ => unreachable!("the block is loaded"),
        }
    }

    /// Returns the key of the next entry in the direction of the last [`Source::missing`].
    #[inline]
    pub fn next_key(&self) -> (&[u8], &[u8]) {
        debug_assert!(self.placed == self.at || self.placed + 1 == self.at);
        self.key((self.block, self.place))
    }

    /// Returns the next entry in the direction of the last [`Source::missing`].
    #[inline]
    pub fn next_place(&self) -> PlaceInSource {
        debug_assert!(self.placed == self.at || self.placed + 1 == self.at);
        (self.block, self.place)
    }

    /// Returns how many times [`Source::step_in_run`] may be called. Afterwards the next entry is
    /// still in the same block, and before `key`, the next one of another source.
    pub fn run_before(&self, key: Option<&[u8]>) -> usize {
        debug_assert_eq!(self.placed, self.at);
        // Entries near a border are compared with it one by one.
        if self.low.is_some() || self.high.is_some() {
            return 0;
        }
        let mut end = self.entries.end.min(self.end);
        if let Some(key) = key {
            let (Ok(i) | Err(i)) = self.loaded(self.block).find(key);
            end = end.min(self.entries.start + i);
        }
        end.saturating_sub(self.at + 1)
    }

    /// Moves forward inside a run ([`Source::run_before`]), and returns the entry that was next.
    #[inline]
    pub fn step_in_run(&mut self) -> PlaceInSource {
        let place = self.place;
        self.at += 1;
        self.place = self.loaded(self.block).place(self.at - self.entries.start);
        self.placed = self.at;
        (self.block, place)
    }

    /// Returns the blocks from one on that a read brings.
    pub fn ahead(&self, block: usize, ahead: usize, forward: bool) -> Range<usize> {
        match forward {
            true => block..(block + ahead).min(self.used_blocks().end),
            false => {
                (block + 1)
                    .saturating_sub(ahead)
                    .max(self.used_blocks().start)..block + 1
            }
        }
    }

    /// Returns the key of an entry, in two parts.
    #[inline]
    pub fn key(&self, (block, place): PlaceInSource) -> (&[u8], &[u8]) {
        let page = self.loaded(block);
        (page.prefix(), page.suffix_at(place))
    }

    /// Returns the bytes of key and value of an entry.
    #[inline]
    pub fn entry_len(&self, (block, place): PlaceInSource) -> usize {
        self.loaded(block).entry_len_at(place)
    }

    /// Returns kind and value of an entry. The value keeps its block in memory, or the whole page
    /// if the page was decoded whole ([`Source::of_page`]), as those of a long scan are. The
    /// memory ledger does not count what a value keeps.
    pub fn entry(&self, (block, place): PlaceInSource) -> (u8, Bytes) {
        self.loaded(block).entry_at(place)
    }

    /// Returns the same as [`Source::entry`]. The value is borrowed, so no reference count
    /// changes.
    #[inline]
    pub fn entry_ref(&self, (block, place): PlaceInSource) -> (u8, &[u8]) {
        self.loaded(block).kind_and_value_at(place)
    }

    /// Returns the number of the next entry in a direction.
    #[inline]
    pub fn next(&self, forward: bool) -> Option<usize> {
        match forward {
            true => (self.at < self.end).then_some(self.at),
            false => (self.at > self.begin).then(|| self.at - 1),
        }
    }

    #[inline]
    pub fn step(&mut self, forward: bool) {
        match forward {
            true => self.at += 1,
            false => self.at -= 1,
        }
    }
}

#[cfg(test)]
mod tests;
