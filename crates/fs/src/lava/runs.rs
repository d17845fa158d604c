//! Where a file's blocks lie: a sorted list of packed extents, eight bytes each.
//!
//! An extent begins at a block of the file and goes on to where the next one begins; the last one ends with the file's space. It lies in
//! one piece on the device, or is a hole. So eight bytes are enough for both numbers, and a block is found by binary search.

use std::ops::Range;

/// Bytes of a block: what space is given out in.
pub const BLOCK: u64 = 4096;
/// Blocks that a device may have: 32 TiB of them. The last number says "hole".
pub const MAX_BLOCKS: u64 = (1 << 33) - 1;
/// Blocks that a file may have: 4 TiB of them.
pub const MAX_FILE_BLOCKS: u64 = (1 << 30) - 1;

const HOLE: u64 = MAX_BLOCKS;
const FILE_BITS: u32 = 30;
const FILE_MASK: u64 = (1 << FILE_BITS) - 1;

/// Blocks on the device that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The first one.
    pub start: u64,
    /// How many.
    pub len: u64,
}

impl Run {
    /// The block behind it.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Its bytes on the device.
    pub fn bytes(&self) -> Range<u64> {
        self.start * BLOCK..self.end() * BLOCK
    }
}

/// One extent of a file: `len` blocks of it from `at` on, `place` on the device; `None` is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First block of the file.
    pub at: u64,
    /// Blocks.
    pub len: u64,
    /// First block on the device.
    pub place: Option<u64>,
}

/// All extents of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extents {
    packed: Vec<u64>,
    blocks: u64,
}

fn pack(place: Option<u64>, at: u64) -> u64 {
    (place.unwrap_or(HOLE) << FILE_BITS) | at
}

fn unpack(packed: u64) -> (Option<u64>, u64) {
    let place = packed >> FILE_BITS;
    ((place != HOLE).then_some(place), packed & FILE_MASK)
}

impl Extents {
    /// From what [`Extents::packed`] gave.
    pub fn from_packed(packed: Vec<u64>, blocks: u64) -> Extents {
        Extents { packed, blocks }
    }

    /// The list as it is kept.
    pub fn packed(&self) -> &[u64] {
        &self.packed
    }

    /// Blocks of the file, holes among them.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn extent(&self, i: usize) -> Extent {
        let (place, at) = unpack(self.packed[i]);
        let end = match self.packed.get(i + 1) {
            Some(next) => unpack(*next).1,
            None => self.blocks,
        };
        Extent {
            at,
            len: end - at,
            place,
        }
    }

    /// In the file's order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        (0..self.packed.len()).map(|i| self.extent(i))
    }

    /// Those with space on the device.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.iter().filter_map(|e| {
            Some(Run {
                start: e.place?,
                len: e.len,
            })
        })
    }

    /// The extents that the blocks `from..to` touch, cut to them. Blocks past the end are in none.
    pub fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Extent> + '_ {
        let to = blocks.end.min(self.blocks);
        let first = self
            .packed
            .partition_point(|p| unpack(*p).1 <= blocks.start);
        (first.saturating_sub(1)..self.packed.len())
            .map(|i| self.extent(i))
            .take_while(move |e| e.at < to && blocks.start < to)
            .map(move |e| {
                let at = e.at.max(blocks.start);
                Extent {
                    at,
                    len: (e.at + e.len).min(to) - at,
                    place: e.place.map(|p| p + (at - e.at)),
                }
            })
    }

    /// The first block of the first hole.
    pub fn first_hole(&self) -> Option<u64> {
        self.iter().find(|e| e.place.is_none()).map(|e| e.at)
    }

    /// Where a run would lie that made the last extent longer.
    pub fn next_place(&self) -> Option<u64> {
        let last = self.packed.len().checked_sub(1)?;
        let e = self.extent(last);
        Some(e.place? + e.len)
    }

    /// Adds blocks at the end.
    ///
    /// # Panics
    /// When the file becomes larger than a file may be: callers check.
    pub fn push(&mut self, place: Option<u64>, len: u64) {
        assert!(self.blocks + len <= MAX_FILE_BLOCKS, "a file too large");
        if len == 0 {
            return;
        }
        let goes_on = match (place, self.packed.last().map(|p| unpack(*p).0)) {
            (Some(place), Some(Some(_))) => self.next_place() == Some(place),
            (None, Some(None)) => true,
            _ => false,
        };
        if !goes_on {
            self.packed.push(pack(place, self.blocks));
        }
        self.blocks += len;
    }

    /// Takes away all blocks from `blocks` on, and says which they were.
    pub fn cut(&mut self, blocks: u64) -> Vec<Run> {
        let mut freed = Vec::new();
        while let Some(i) = self.packed.len().checked_sub(1) {
            let e = self.extent(i);
            if e.at + e.len <= blocks {
                break;
            }
            let keep = blocks.saturating_sub(e.at);
            if let Some(place) = e.place {
                freed.push(Run {
                    start: place + keep,
                    len: e.len - keep,
                });
            }
            if keep == 0 {
                self.packed.pop();
            }
            self.blocks = e.at + keep;
        }
        freed
    }

    /// Makes the blocks a hole, as far as the file goes, and says which they were.
    pub fn punch(&mut self, hole: Range<u64>) -> Vec<Run> {
        let hole = hole.start..hole.end.min(self.blocks);
        if hole.start >= hole.end {
            return Vec::new();
        }
        let freed: Vec<Run> = self
            .within(hole.clone())
            .filter_map(|e| {
                Some(Run {
                    start: e.place?,
                    len: e.len,
                })
            })
            .collect();
        if freed.is_empty() {
            return freed;
        }
        let old = std::mem::take(self);
        let parts = [0..hole.start, hole.clone(), hole.end..old.blocks];
        for (n, part) in parts.into_iter().enumerate() {
            if n == 1 {
                self.push(None, part.end - part.start);
                continue;
            }
            for e in old.within(part) {
                self.push(e.place, e.len);
            }
        }
        self.packed.shrink_to_fit();
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    /// Against a plain list of blocks.
    #[test]
    fn extents_behave_like_a_list_of_blocks() {
        for seed in 0..300 {
            let mut c = Chance::of(&[seed, 5]);
            let mut extents = Extents::default();
            let mut model: Vec<Option<u64>> = Vec::new();
            let mut place = 100;
            for _ in 0..60 {
                match c.below(8) {
                    0 => {
                        let to = c.below(model.len() as u64 + 3);
                        let mut freed = blocks_of(&extents.cut(to));
                        let tail = model.split_off((to as usize).min(model.len()));
                        let mut gone: Vec<u64> = tail.into_iter().flatten().collect();
                        freed.sort_unstable();
                        gone.sort_unstable();
                        assert_eq!(freed, gone);
                    }
                    1 => {
                        let from = c.below(model.len() as u64 + 2);
                        let to = from + c.below(9);
                        let freed = blocks_of(&extents.punch(from..to));
                        let mut gone = Vec::new();
                        for i in from..to.min(model.len() as u64) {
                            gone.extend(model[i as usize].take());
                        }
                        assert_eq!(freed, gone);
                    }
                    _ => {
                        let len = c.below(6);
                        if c.coin() {
                            place += c.below(50);
                        }
                        extents.push(Some(place), len);
                        model.extend((0..len).map(|i| Some(place + i)));
                        place += len;
                    }
                }
                assert_eq!(extents.blocks(), model.len() as u64);
                let all: Vec<Option<u64>> = extents
                    .iter()
                    .flat_map(|e| (0..e.len).map(move |i| e.place.map(|p| p + i)))
                    .collect();
                assert_eq!(all, model, "seed {seed}");
                let from = c.below(model.len() as u64 + 2);
                let to = from + c.below(12);
                let some: Vec<Option<u64>> = extents
                    .within(from..to)
                    .flat_map(|e| (0..e.len).map(move |i| e.place.map(|p| p + i)))
                    .collect();
                let end = (to as usize).min(model.len());
                assert_eq!(some, model[(from as usize).min(end)..end]);
                let again = Extents::from_packed(extents.packed().to_vec(), extents.blocks());
                assert_eq!(again, extents);
            }
        }
    }

    fn blocks_of(runs: &[Run]) -> Vec<u64> {
        runs.iter().flat_map(|r| r.start..r.end()).collect()
    }
}
