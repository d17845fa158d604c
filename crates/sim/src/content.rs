//! The bytes of one simulated file or device, copy-on-write. A clone costs a pointer. A write after
//! a clone copies the 4 KiB that it touches, unless it covers them, and the nodes above them. Bytes
//! that were never written read as zeros.

use std::ops::Range;
use std::sync::Arc;

/// Bytes that are copied when one of them changes after a clone. Holes consist of whole chunks.
pub(crate) const CHUNK: u64 = 4096;
/// A node has two to this power of children.
const FANOUT_BITS: u32 = 4;
const FANOUT: usize = 1 << FANOUT_BITS;

/// The bytes of a chunk.
type Chunk = [u8; CHUNK as usize];

/// A part of the tree: a hole, a chunk at the bottom, or a node above the bottom.
#[derive(Clone, Default)]
enum Slot {
    #[default]
    Hole,
    Chunk(Arc<Chunk>),
    Node(Arc<[Slot; FANOUT]>),
}

/// The bytes of one file or device: a tree with the chunks at its bottom.
#[derive(Clone, Default)]
pub(crate) struct Content {
    root: Slot,
    /// Number of levels of nodes above the chunks.
    height: u32,
}

/// Returns the number of chunks below a slot that has `height` levels of nodes.
fn span(height: u32) -> u64 {
    1 << (FANOUT_BITS * height)
}

/// Returns the number of the child that leads to a chunk, in a node with `height` levels below it.
fn child(index: u64, height: u32) -> usize {
    (index >> (FANOUT_BITS * height)) as usize % FANOUT
}

impl Slot {
    /// Makes holes of the chunks in `range`. The slot begins at the chunk `base`.
    fn punch(&mut self, height: u32, base: u64, range: &Range<u64>) {
        let end = base + span(height);
        if matches!(self, Slot::Hole) || range.end <= base || end <= range.start {
            return;
        }
        if range.start <= base && end <= range.end {
            *self = Slot::Hole;
        } else if let Slot::Node(node) = self {
            for (n, slot) in Arc::make_mut(node).iter_mut().enumerate() {
                slot.punch(height - 1, base + n as u64 * span(height - 1), range);
            }
        }
    }
}

impl Content {
    fn chunk(&self, index: u64) -> Option<&Chunk> {
        if index >= span(self.height) {
            return None;
        }
        let (mut slot, mut height) = (&self.root, self.height);
        loop {
            match slot {
                Slot::Hole => return None,
                Slot::Chunk(chunk) => return Some(chunk),
                Slot::Node(node) => {
                    height -= 1;
                    slot = &node[child(index, height)];
                }
            }
        }
    }

    /// Returns the slot of a chunk, and makes the nodes above it.
    fn slot(&mut self, index: u64) -> &mut Slot {
        while index >= span(self.height) {
            let below = std::mem::take(&mut self.root);
            if !matches!(below, Slot::Hole) {
                let mut node: [Slot; FANOUT] = Default::default();
                node[0] = below;
                self.root = Slot::Node(Arc::new(node));
            }
            self.height += 1;
        }
        let mut slot = &mut self.root;
        for height in (0..self.height).rev() {
            if matches!(slot, Slot::Hole) {
                *slot = Slot::Node(Arc::default());
            }
            slot = match slot {
                Slot::Node(node) => &mut Arc::make_mut(node)[child(index, height)],
                Slot::Hole | Slot::Chunk(_) => unreachable!("a node at each level above chunks"),
            };
        }
        slot
    }

    /// Fills `buf` with the bytes at `offset`.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let from = (at % CHUNK) as usize;
            let n = (CHUNK as usize - from).min(buf.len() - done);
            match self.chunk(at / CHUNK) {
                Some(c) => buf[done..done + n].copy_from_slice(&c[from..from + n]),
                None => buf[done..done + n].fill(0),
            }
            done += n;
        }
    }

    /// Writes `bytes` at `offset`.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let from = (at % CHUNK) as usize;
            let n = (CHUNK as usize - from).min(bytes.len() - done);
            let new = &bytes[done..done + n];
            let slot = self.slot(at / CHUNK);
            match (slot, <&Chunk>::try_from(new)) {
                // A chunk that another clone has is not copied if no byte of it stays.
                (Slot::Chunk(old), Ok(whole)) => match Arc::get_mut(old) {
                    Some(old) => *old = *whole,
                    None => *old = Arc::new(*whole),
                },
                (hole, Ok(whole)) => *hole = Slot::Chunk(Arc::new(*whole)),
                (Slot::Chunk(old), Err(_)) => {
                    Arc::make_mut(old)[from..from + n].copy_from_slice(new);
                }
                (hole, Err(_)) => {
                    let mut chunk = [0; CHUNK as usize];
                    chunk[from..from + n].copy_from_slice(new);
                    *hole = Slot::Chunk(Arc::new(chunk));
                }
            }
            done += n;
        }
    }

    /// Returns true if both share all their chunks, as a clone does until one of the two changes.
    /// `false` says nothing about the bytes.
    pub(crate) fn is_clone_of(&self, other: &Content) -> bool {
        match (&self.root, &other.root) {
            (Slot::Hole, Slot::Hole) => true,
            (Slot::Chunk(a), Slot::Chunk(b)) => Arc::ptr_eq(a, b),
            (Slot::Node(a), Slot::Node(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Drops whole chunks, which then read as zeros.
    pub(crate) fn punch(&mut self, chunks: Range<u64>) {
        self.root.punch(self.height, 0, &chunks);
    }

    /// Sets all bytes from `end` on to zero.
    pub(crate) fn cut(&mut self, end: u64) {
        let first_whole = end.div_ceil(CHUNK);
        if !end.is_multiple_of(CHUNK) && self.chunk(end / CHUNK).is_some() {
            let zeros = [0; CHUNK as usize];
            self.write(end, &zeros[..(first_whole * CHUNK - end) as usize]);
        }
        self.punch(first_whole..span(self.height));
    }

    /// Returns a copy of the bytes of `[offset, offset + len)`.
    pub(crate) fn to_vec(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        self.read(offset, &mut v);
        v
    }
}

#[cfg(test)]
mod tests;
