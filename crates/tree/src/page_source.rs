//! Entries of one page of a leaf, whose blocks are loaded when they are needed.

use crate::page::{EntryPlace, Page};
use crate::page_format::PageHead;
use crate::page_reads::PageRef;
use basalt_fs::Bytes;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// A page of a leaf, and the entries of it that count. Its blocks are read when they are needed.
pub(crate) struct Source {
    pub of: PageRef,
    /// The head; `None` for a page that was read whole, as one block.
    pub head: Option<PageHead>,
    pub blocks: SmallVec<[Option<Page>; 1]>,
    /// The stored bytes of the page, if they came with its head.
    pub whole: Option<Bytes>,
    /// The block of the next entry, and its entries among those of the page.
    block: usize,
    entries: Range<usize>,
    pub begin: usize,
    pub end: usize,
    /// The next entry forward. The one before it is the next entry backward.
    pub at: usize,
    /// Where the next entry is in its block, for the direction of the last [`Source::missing`].
    place: EntryPlace,
}

/// An entry of a source: its block, and its place in it.
pub(crate) type PlaceInSource = (usize, EntryPlace);

impl Source {
    pub fn of_head(of: PageRef, head: PageHead, whole: Option<Bytes>) -> Source {
        let count = head.count();
        Source {
            of,
            whole,
            blocks: smallvec![None; head.blocks],
            head: Some(head),
            block: 0,
            entries: 0..0,
            begin: 0,
            end: count,
            at: 0,
            place: EntryPlace::default(),
        }
    }

    /// Makes a source of a whole page.
    pub fn of_page(of: PageRef, page: Page, low: Option<&[u8]>, high: Option<&[u8]>) -> Source {
        let count = page.count();
        let mut source = Source {
            of,
            head: None,
            blocks: smallvec![Some(page)],
            whole: None,
            block: 0,
            entries: 0..count,
            begin: 0,
            end: count,
            at: 0,
            place: EntryPlace::default(),
        };
        source.narrow(low, high);
        source
    }

    /// Lets only entries count that are inside bounds. Their blocks are loaded.
    pub fn narrow(&mut self, low: Option<&[u8]>, high: Option<&[u8]>) {
        self.begin = low.map_or(0, |low| self.find(low));
        self.end = high
            .map_or(self.end, |high| self.find(high))
            .max(self.begin);
        self.at = self.begin;
    }

    /// Returns the block that has a key, or the keys around it.
    pub fn block_of(&self, key: &[u8]) -> usize {
        self.head.as_ref().map_or(0, |head| head.block_of(key))
    }

    /// Returns the blocks that a scan from a key on reads first, at most so many. If the block of
    /// the key is there, it is the only one.
    pub fn first_blocks(&self, key: &[u8], most: usize) -> Range<usize> {
        let block = self.block_of(key);
        let most = if self.blocks[block].is_some() {
            1
        } else {
            most
        };
        block..(block + most).min(self.blocks.len())
    }

    /// Returns the block of an entry.
    pub fn block_of_entry(&self, entry: usize) -> usize {
        let head = self.head.as_ref();
        head.map_or(0, |head| head.block_of_entry(entry))
    }

    /// Returns the entries of a block among those of the page.
    pub fn entries_of(&self, block: usize) -> Range<usize> {
        match &self.head {
            Some(head) => head.block(block).entries,
            None => 0..self.end,
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
        let next = self.next(forward)?;
        if !self.entries.contains(&next) {
            let block = self.block_of_entry(next);
            if self.blocks[block].is_none() {
                return Some(block);
            }
            (self.block, self.entries) = (block, self.entries_of(block));
        }
        self.place = self.loaded(self.block).place(next - self.entries.start);
        None
    }

    fn loaded(&self, block: usize) -> &Page {
        self.blocks[block].as_ref().expect("the block is loaded")
    }

    /// Returns the key of the next entry in the direction of the last [`Source::missing`].
    pub fn next_key(&self) -> (&[u8], &[u8]) {
        self.key((self.block, self.place))
    }

    /// Returns the next entry in the direction of the last [`Source::missing`].
    pub fn next_place(&self) -> PlaceInSource {
        (self.block, self.place)
    }

    /// Returns the blocks from one on that a read brings.
    pub fn ahead(&self, block: usize, ahead: usize, forward: bool) -> Range<usize> {
        match forward {
            true => block..(block + ahead).min(self.blocks.len()),
            false => (block + 1).saturating_sub(ahead)..block + 1,
        }
    }

    /// Returns the key of an entry, in two parts.
    pub fn key(&self, (block, place): PlaceInSource) -> (&[u8], &[u8]) {
        let page = self.loaded(block);
        (page.prefix(), page.suffix_at(place))
    }

    /// Returns kind and value of an entry.
    pub fn entry(&self, (block, place): PlaceInSource) -> (u8, Bytes) {
        self.loaded(block).entry_at(place)
    }

    /// Returns the number of the next entry in a direction.
    pub fn next(&self, forward: bool) -> Option<usize> {
        match forward {
            true => (self.at < self.end).then_some(self.at),
            false => (self.at > self.begin).then(|| self.at - 1),
        }
    }

    pub fn step(&mut self, forward: bool) {
        match forward {
            true => self.at += 1,
            false => self.at -= 1,
        }
    }

    pub fn as_of(&self) -> u64 {
        match (&self.head, &self.blocks[..]) {
            (Some(head), _) => head.meta().as_of,
            (None, [Some(page)]) => page.as_of,
            (None, _) => 0,
        }
    }
}
