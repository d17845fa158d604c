//! The blocks of a file: packed extents in the file's order, eight bytes each.
//!
//! An extent begins at a block of the file and ends where the next one begins. The last one ends
//! with the file's space. An extent is one run on the device, or a hole. So eight bytes are enough:
//! the first block of the file, and the first block on the device.
//!
//! A single extent is stored in place. Several extents are stored in a tree of chunks, so that any
//! change costs O(log n). A copy shares the tree and costs one pointer. The first change of either
//! copy then copies one pointer for each chunk, and the chunks that it changes.

use std::collections::{BTreeMap, btree_map};
use std::ops::Range;
use std::sync::Arc;

use super::runs::{MAX_BLOCKS, MAX_FILE_BLOCKS, Run};
use super::steps::count_steps;

const HOLE: u64 = MAX_BLOCKS;
const FILE_BITS: u32 = 30;
const FILE_MASK: u64 = (1 << FILE_BITS) - 1;

/// One extent of a file: its blocks from `at` on, which lie on the device from `place` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First block in the file.
    pub at: u64,
    /// Number of blocks.
    pub len: u64,
    /// First block on the device; `None` for a hole.
    pub place: Option<u64>,
}

impl Extent {
    /// Returns the blocks on the device; `None` for a hole.
    fn run(self) -> Option<Run> {
        Some(Run {
            start: self.place?,
            len: self.len,
        })
    }
}

fn pack(place: Option<u64>, at: u64) -> u64 {
    (place.unwrap_or(HOLE) << FILE_BITS) | at
}

fn unpack(packed: u64) -> (Option<u64>, u64) {
    let place = packed >> FILE_BITS;
    ((place != HOLE).then_some(place), packed & FILE_MASK)
}

/// Returns the first block in the file of a packed extent.
fn at_of(packed: u64) -> u64 {
    packed & FILE_MASK
}

/// Largest number of packed extents in a chunk.
const CHUNK: usize = 128;

/// Two or more packed extents, in chunks. The key of a chunk is the first block in the file.
#[derive(Debug, Default)]
struct ExtentTree {
    chunks: BTreeMap<u64, Arc<Vec<u64>>>,
    len: usize,
}

impl Clone for ExtentTree {
    fn clone(&self) -> ExtentTree {
        count_steps(self.chunks.len());
        ExtentTree {
            chunks: self.chunks.clone(),
            len: self.len,
        }
    }
}

impl ExtentTree {
    /// Returns the key of the chunk that a block belongs to.
    fn key(&self, at: u64) -> Option<u64> {
        let floor = self.chunks.range(..=at).next_back();
        floor
            .or_else(|| self.chunks.first_key_value())
            .map(|(k, _)| *k)
    }

    fn chunk_mut(&mut self, key: u64) -> &mut Vec<u64> {
        let chunk = self.chunks.get_mut(&key).expect("a key of the tree");
        // The copy of a shared chunk is counted.
        count_steps(chunk.len());
        Arc::make_mut(chunk)
    }

    /// Adds an extent at a block where none begins.
    fn insert(&mut self, packed: u64) {
        let at = at_of(packed);
        self.len += 1;
        let Some(key) = self.key(at) else {
            self.chunks.insert(at, Arc::new(vec![packed]));
            return;
        };
        let chunk = self.chunk_mut(key);
        let i = chunk.partition_point(|p| at_of(*p) < at);
        chunk.insert(i, packed);
        let cut = match chunk.len() {
            0..=CHUNK => None,
            // Most files grow at their end, so full chunks are left behind.
            len if i + 1 == len => Some(i),
            len => Some(len / 2),
        };
        if let Some(cut) = cut {
            let rest = chunk.split_off(cut);
            self.chunks.insert(at_of(rest[0]), Arc::new(rest));
        }
        self.set_key(key);
    }

    /// Removes the extent that begins at a block, if there is one.
    fn remove(&mut self, at: u64) -> Option<u64> {
        let key = self.key(at)?;
        let chunk = self.chunk_mut(key);
        let i = chunk.binary_search_by_key(&at, |p| at_of(*p)).ok()?;
        let removed = chunk.remove(i);
        let short = chunk.len() < CHUNK / 4;
        self.len -= 1;
        let key = self.set_key(key);
        if let (true, Some(key)) = (short, key) {
            self.merge_with_next(key);
        }
        Some(removed)
    }

    /// Updates the key of a chunk after a change. Returns the new key; `None` if the chunk became
    /// empty.
    fn set_key(&mut self, key: u64) -> Option<u64> {
        let first = self.chunks[&key].first().map(|p| at_of(*p));
        if first != Some(key) {
            let chunk = self.chunks.remove(&key).expect("just seen");
            if let Some(first) = first {
                self.chunks.insert(first, chunk);
            }
        }
        first
    }

    /// Merges a short chunk with the next one, because many short chunks would cost more memory
    /// than their extents.
    fn merge_with_next(&mut self, key: u64) {
        let next = self.chunks.range(key + 1..).next();
        let Some((&next, there)) = next else { return };
        if there.len() + self.chunks[&key].len() > CHUNK / 2 {
            return;
        }
        let there = self.chunks.remove(&next).expect("just seen");
        self.chunk_mut(key).extend_from_slice(&there);
    }

    /// Returns the packed extents from the one on that a block lies in.
    fn from(&self, at: u64) -> ExtentCursor<'_> {
        let mut chunks = self.chunks.range(self.key(at).unwrap_or(0)..);
        let first = chunks.next().map_or(&[][..], |(_, chunk)| chunk);
        let i = first.partition_point(|p| at_of(*p) <= at);
        ExtentCursor {
            now: first[i.saturating_sub(1)..].iter(),
            chunks,
        }
    }

    fn last(&self) -> Option<u64> {
        self.chunks.last_key_value()?.1.last().copied()
    }
}

/// A cursor over packed extents in the file's order.
struct ExtentCursor<'a> {
    now: std::slice::Iter<'a, u64>,
    chunks: btree_map::Range<'a, u64, Arc<Vec<u64>>>,
}

impl Iterator for ExtentCursor<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            if let Some(packed) = self.now.next() {
                count_steps(1);
                return Some(*packed);
            }
            self.now = self.chunks.next()?.1.iter();
        }
    }
}

#[derive(Debug, Clone)]
enum ExtentList {
    Few(Option<u64>),
    Many(Arc<ExtentTree>),
}

impl Default for ExtentList {
    fn default() -> ExtentList {
        ExtentList::Few(None)
    }
}

/// All extents of a file. A copy costs one pointer.
#[derive(Debug, Clone, Default)]
pub struct Extents {
    list: ExtentList,
    /// Blocks of the file, holes included.
    blocks: u64,
    allocated: Allocated,
}

/// The extents and blocks of a file on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Number of extents that are no holes.
    pub extents: u64,
    /// Number of blocks in them.
    pub blocks: u64,
}

impl PartialEq for Extents {
    fn eq(&self, other: &Extents) -> bool {
        self.blocks == other.blocks && self.iter().eq(other.iter())
    }
}

impl Eq for Extents {}

impl Extents {
    /// Returns the extents of a file with one extent, which [`Extents::single`] packed.
    pub fn of_one(packed: u64, blocks: u64) -> Extents {
        let allocated = unpack(packed).0.is_some();
        Extents {
            list: ExtentList::Few(Some(packed)),
            blocks,
            allocated: Allocated {
                extents: u64::from(allocated),
                blocks: if allocated { blocks } else { 0 },
            },
        }
    }

    /// Returns the only extent, packed into a number that is not 0; 0 if there is none; `None` if
    /// there are several.
    pub fn single(&self) -> Option<u64> {
        match &self.list {
            ExtentList::Few(one) => Some(one.unwrap_or(0)),
            ExtentList::Many(_) => None,
        }
    }

    /// Returns the number of blocks of the file, holes included.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the extents and blocks on the device.
    pub fn allocated(&self) -> Allocated {
        self.allocated
    }

    /// Returns the approximate memory of the tree, in bytes.
    pub fn memory(&self) -> u64 {
        match &self.list {
            ExtentList::Few(_) => 0,
            ExtentList::Many(tree) => (tree.len * 8 + tree.chunks.len() * 80) as u64,
        }
    }

    fn insert(&mut self, place: Option<u64>, at: u64) {
        let packed = pack(place, at);
        self.allocated.extents += u64::from(place.is_some());
        match &mut self.list {
            ExtentList::Few(one @ None) => *one = Some(packed),
            ExtentList::Few(Some(one)) => {
                let mut tree = ExtentTree::default();
                tree.insert(*one);
                tree.insert(packed);
                self.list = ExtentList::Many(Arc::new(tree));
            }
            ExtentList::Many(tree) => Arc::make_mut(tree).insert(packed),
        }
    }

    fn remove(&mut self, at: u64) {
        let removed = match &mut self.list {
            ExtentList::Few(one) => one.take_if(|one| at_of(*one) == at),
            ExtentList::Many(tree) => {
                let tree = Arc::make_mut(tree);
                let removed = tree.remove(at);
                if tree.len == 1 {
                    self.list = ExtentList::Few(tree.last());
                }
                removed
            }
        };
        let place = removed.and_then(|packed| unpack(packed).0);
        self.allocated.extents -= u64::from(place.is_some());
    }

    fn last(&self) -> Option<Extent> {
        let packed = match &self.list {
            ExtentList::Few(one) => *one,
            ExtentList::Many(tree) => tree.last(),
        };
        let (place, at) = unpack(packed?);
        Some(Extent {
            at,
            len: self.blocks - at,
            place,
        })
    }

    /// Returns the extents from the one on that a block lies in.
    fn from(&self, at: u64) -> impl Iterator<Item = Extent> + '_ {
        let (one, many) = match &self.list {
            ExtentList::Few(one) => (*one, None),
            ExtentList::Many(tree) => (None, Some(tree.from(at))),
        };
        let mut packed = one.into_iter().chain(many.into_iter().flatten()).peekable();
        std::iter::from_fn(move || {
            let (place, at) = unpack(packed.next()?);
            let end = packed.peek().map_or(self.blocks, |next| at_of(*next));
            Some(Extent {
                at,
                len: end - at,
                place,
            })
        })
    }

    /// Returns all extents in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.from(0)
    }

    /// Returns the runs on the device in the file's order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.iter().filter_map(Extent::run)
    }

    /// Returns the parts of extents that lie in `blocks`. Blocks past the end of the file are in
    /// none.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Extent> + '_ {
        let to = blocks.end.min(self.blocks);
        let inside = self
            .from(blocks.start)
            .take_while(move |e| e.at < to && blocks.start < to);
        inside.map(move |e| {
            let at = e.at.max(blocks.start);
            Extent {
                at,
                len: (e.at + e.len).min(to) - at,
                place: e.place.map(|p| p + (at - e.at)),
            }
        })
    }

    /// Returns the extent that a block lies in.
    fn at(&self, block: u64) -> Option<Extent> {
        self.from(block).next().filter(|_| block < self.blocks)
    }

    /// Returns the first block in the file of the first hole.
    pub fn first_hole(&self) -> Option<u64> {
        if self.allocated.blocks == self.blocks {
            return None;
        }
        self.iter().find(|e| e.place.is_none()).map(|e| e.at)
    }

    /// Returns the block on the device behind the last extent. `None` if that is a hole.
    pub fn next_place(&self) -> Option<u64> {
        let e = self.last()?;
        Some(e.place? + e.len)
    }

    /// Appends blocks at the end of the file; a hole if `place` is `None`.
    ///
    /// # Panics
    /// If the file would be larger than [`MAX_FILE_BLOCKS`]. Callers check that.
    pub fn push(&mut self, place: Option<u64>, len: u64) {
        assert!(self.blocks + len <= MAX_FILE_BLOCKS, "a file too large");
        if len == 0 {
            return;
        }
        let goes_on = match (place, self.last().map(|e| e.place)) {
            (Some(place), Some(Some(_))) => self.next_place() == Some(place),
            (None, Some(None)) => true,
            _ => false,
        };
        if !goes_on {
            self.insert(place, self.blocks);
        }
        self.blocks += len;
        if place.is_some() {
            self.allocated.blocks += len;
        }
    }

    /// Removes all blocks of the file from `blocks` on. Returns the device blocks that were freed.
    pub fn cut(&mut self, blocks: u64) -> Vec<Run> {
        let mut freed = Vec::new();
        while let Some(e) = self.last().filter(|e| e.at + e.len > blocks) {
            let keep = blocks.saturating_sub(e.at);
            if let Some(place) = e.place {
                self.allocated.blocks -= e.len - keep;
                freed.push(Run {
                    start: place + keep,
                    len: e.len - keep,
                });
            }
            if keep == 0 {
                self.remove(e.at);
            }
            self.blocks = e.at + keep;
        }
        freed
    }

    /// Makes the blocks of the file in `hole` a hole. Returns the device blocks that were freed.
    /// Costs O(log n), and O(log n) more for each extent inside the hole.
    pub fn punch(&mut self, hole: Range<u64>) -> Vec<Run> {
        let hole = hole.start..hole.end.min(self.blocks);
        if hole.start >= hole.end {
            return Vec::new();
        }
        let freed: Vec<Run> = self.within(hole.clone()).filter_map(Extent::run).collect();
        if freed.is_empty() {
            return freed;
        }
        let before = hole.start.checked_sub(1).and_then(|block| self.at(block));
        let after = self.at(hole.end);
        // An extent that begins before the hole stays, and ends where the hole begins.
        let inside = self.within(hole.clone()).map(|e| e.at).collect::<Vec<_>>();
        for at in inside {
            self.remove(at);
        }
        match after {
            Some(e) if e.place.is_none() => self.remove(hole.end),
            Some(e) if e.at < hole.end => {
                let place = e.place.map(|place| place + (hole.end - e.at));
                self.insert(place, hole.end);
            }
            _ => {}
        }
        if before.is_none_or(|e| e.place.is_some()) {
            self.insert(None, hole.start);
        }
        self.allocated.blocks -= freed.iter().map(|r| r.len).sum::<u64>();
        freed
    }
}

#[cfg(test)]
mod tests;
