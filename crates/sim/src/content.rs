//! The bytes of one simulated file or device, copy-on-write. A clone costs a pointer for every 256
//! KiB, and a write after a clone copies the 4 KiB that it touches. Bytes that were never written
//! read as zeros.

use std::sync::Arc;

/// Bytes that are copied when one of them changes after a clone. Holes consist of whole chunks.
pub(crate) const CHUNK: u64 = 4096;
/// Number of chunks in a leaf.
const FANOUT: u64 = 64;

/// The bytes of a chunk.
type Chunk = [u8; CHUNK as usize];
/// The chunks of 256 KiB. `None` is a hole.
type Leaf = [Option<Arc<Chunk>>; FANOUT as usize];

/// The bytes of one file or device.
#[derive(Clone, Default)]
pub(crate) struct Content {
    leaves: Vec<Option<Arc<Leaf>>>,
}

impl Content {
    fn chunk(&self, index: u64) -> Option<&Chunk> {
        let leaf = self.leaves.get((index / FANOUT) as usize)?.as_ref()?;
        leaf[(index % FANOUT) as usize].as_deref()
    }

    fn slot(&mut self, index: u64) -> &mut Option<Arc<Chunk>> {
        let leaf = (index / FANOUT) as usize;
        if leaf >= self.leaves.len() {
            self.leaves.resize(leaf + 1, None);
        }
        let leaf = self.leaves[leaf].get_or_insert_with(|| Arc::new([const { None }; 64]));
        &mut Arc::make_mut(leaf)[(index % FANOUT) as usize]
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
            let chunk = self
                .slot(at / CHUNK)
                .get_or_insert_with(|| Arc::new([0; CHUNK as usize]));
            Arc::make_mut(chunk)[from..from + n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
    }

    /// Returns true if both share all their leaves, as a clone does until one of the two changes.
    /// `false` says nothing about the bytes.
    pub(crate) fn is_clone_of(&self, other: &Content) -> bool {
        let shared = |(a, b): (&Option<Arc<Leaf>>, &Option<Arc<Leaf>>)| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        self.leaves.len() == other.leaves.len() && self.leaves.iter().zip(&other.leaves).all(shared)
    }

    /// Drops whole chunks, which then read as zeros.
    pub(crate) fn punch(&mut self, chunks: std::ops::Range<u64>) {
        for i in chunks {
            if self.chunk(i).is_some() {
                *self.slot(i) = None;
            }
        }
    }

    /// Sets all bytes from `end` on to zero.
    pub(crate) fn cut(&mut self, end: u64) {
        let first_whole = end.div_ceil(CHUNK);
        if !end.is_multiple_of(CHUNK) && self.chunk(end / CHUNK).is_some() {
            let zeros = [0; CHUNK as usize];
            self.write(end, &zeros[..(first_whole * CHUNK - end) as usize]);
        }
        self.punch(first_whole..self.leaves.len() as u64 * FANOUT);
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
