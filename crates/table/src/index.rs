//! Index blocks: separator keys and the blocks before them. The same layout serves the partitions
//! and the top level.
//!
//! A separator is an internal key at or after the last key of its block and before the first key of
//! the next. So the first separator at or after a target names the only block that can hold the
//! target's first entry. Keys are stored whole: a search compares in place and copies nothing.
//!
//! Layout: entries (key length varint, key, handle), then the offset of each entry (u32 each), then
//! their number (u32).

use super::format::{BlockHandle, BlockResult, Damage};
use basalt_fs::Bytes;
use basalt_kv::MAX_KEY_LEN;
use basalt_kv::encoding::{get_varint, put_varint, u32_at};
use basalt_kv::key::{Cmp, TRAILER_LEN, split_internal_key};
use std::cmp::Ordering;

/// Collects entries of one index block.
#[derive(Default)]
pub(super) struct IndexBuilder {
    buf: Vec<u8>,
    offsets: Vec<u32>,
    last_key: std::ops::Range<usize>,
}

impl IndexBuilder {
    pub(super) fn add(&mut self, separator: &[u8], handle: &BlockHandle) {
        self.offsets
            .push(u32::try_from(self.buf.len()).expect("index block below 4 GiB"));
        put_varint(&mut self.buf, separator.len() as u64);
        self.last_key = self.buf.len()..self.buf.len() + separator.len();
        self.buf.extend_from_slice(separator);
        handle.encode(&mut self.buf);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    pub(super) fn last_key(&self) -> &[u8] {
        &self.buf[self.last_key.clone()]
    }

    /// Returns the bytes that the block has now.
    pub(super) fn len(&self) -> usize {
        self.buf.len() + self.offsets.len() * 4 + 4
    }

    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.buf);
        for o in &self.offsets {
            out.extend_from_slice(&o.to_le_bytes());
        }
        out.extend_from_slice(&(self.offsets.len() as u32).to_le_bytes());
        self.offsets.clear();
        self.last_key = 0..0;
        out
    }
}

/// An index block's payload with its frame checked. Each entry is checked when it is decoded.
#[derive(Clone)]
pub(super) struct IndexBlock {
    bytes: Bytes,
    entries_end: usize,
    n: usize,
}

impl IndexBlock {
    /// Opens a partition, which has at least one entry.
    pub(super) fn new(bytes: Bytes) -> BlockResult<IndexBlock> {
        let at = bytes.len().saturating_sub(4);
        match IndexBlock::top(bytes)? {
            index if index.n == 0 => Err(Damage::Bad(at, "index block without entries")),
            index => Ok(index),
        }
    }

    /// Opens the top level, which has no entries if the table has none.
    pub(super) fn top(bytes: Bytes) -> BlockResult<IndexBlock> {
        let n = bytes
            .len()
            .checked_sub(4)
            .map(|at| u32_at(&bytes, at) as usize)
            .ok_or(Damage::Bad(0, "index block too short"))?;
        // Every entry takes at least 12 bytes besides its offset, so no count can outgrow the
        // block.
        let entries_end = n
            .checked_mul(4)
            .and_then(|t| (bytes.len() - 4).checked_sub(t))
            .ok_or(Damage::Bad(bytes.len() - 4, "more entries than bytes"))?;
        Ok(IndexBlock {
            bytes,
            entries_end,
            n,
        })
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.n
    }

    /// Returns the payload.
    pub(super) fn payload(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the bytes of the payload.
    pub(super) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    #[inline(always)]
    fn key_at(&self, i: usize) -> BlockResult<(&[u8], usize)> {
        let start = u32_at(&self.bytes, self.entries_end + i * 4) as usize;
        let entries = &self.bytes[..self.entries_end];
        let mut at = start;
        let len = match entries.get(at) {
            Some(b) if *b < 0x80 => {
                at += 1;
                usize::from(*b)
            }
            _ => get_varint(entries, &mut at, 32)
                .ok_or(Damage::Bad(start, "separator's length cut off"))? as usize,
        };
        if !(TRAILER_LEN..=MAX_KEY_LEN + TRAILER_LEN).contains(&len) {
            return Err(Damage::Bad(start, "separator of an impossible length"));
        }
        let key = entries
            .get(at..at + len)
            .ok_or(Damage::Bad(start, "separator cut off"))?;
        Ok((key, at + len))
    }

    /// Returns the separator and the handle of entry `i`, which is below [`IndexBlock::len`].
    pub(super) fn entry(&self, i: usize) -> BlockResult<(&[u8], BlockHandle)> {
        assert!(i < self.n, "index entry {i} of {}", self.n);
        let (key, mut at) = self.key_at(i)?;
        let handle = BlockHandle::decode(&self.bytes[..self.entries_end], &mut at)
            .ok_or(Damage::Bad(at, "block handle cut off"))?;
        Ok((key, handle))
    }

    /// Returns the number of the first entry whose separator is at or after `target`, or `len()` if
    /// there is none.
    #[inline]
    pub(super) fn seek(&self, cmp: &Cmp, target: &[u8]) -> BlockResult<usize> {
        let (user, trailer) = split_internal_key(target);
        // The comparator is chosen once, not once a probe.
        match cmp {
            Cmp::Bytewise => self.seek_by(trailer, |key| key.cmp(user)),
            cmp => self.seek_by(trailer, |key| cmp.user(key, user)),
        }
    }

    #[inline]
    fn seek_by(&self, trailer: u64, order: impl Fn(&[u8]) -> Ordering) -> BlockResult<usize> {
        let (mut lo, mut hi) = (0, self.n);
        while lo < hi {
            let mid = (lo + hi) / 2;
            let (key, _) = self.key_at(mid)?;
            let (key_user, key_trailer) = split_internal_key(key);
            let before = match order(key_user) {
                Ordering::Less => true,
                Ordering::Greater => false,
                // If two entries have the same user key, the larger trailer comes first.
                Ordering::Equal => key_trailer > trailer,
            };
            if before {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        Ok(lo)
    }

    /// Checks that entries fill the block without gaps and that separators ascend. `verify` calls
    /// this.
    pub(super) fn check_all(&self, cmp: &Cmp) -> BlockResult<()> {
        let mut expected = 0;
        for i in 0..self.n {
            let start = u32_at(&self.bytes, self.entries_end + i * 4) as usize;
            if start != expected {
                return Err(Damage::Bad(start, "index entry out of its place"));
            }
            let (key, mut at) = self.key_at(i)?;
            BlockHandle::decode(&self.bytes[..self.entries_end], &mut at)
                .ok_or(Damage::Bad(at, "block handle cut off"))?;
            if i > 0 && cmp.internal(self.key_at(i - 1)?.0, key) != Ordering::Less {
                return Err(Damage::Bad(start, "separators do not ascend"));
            }
            expected = at;
        }
        if expected != self.entries_end {
            return Err(Damage::Bad(expected, "bytes behind the last index entry"));
        }
        Ok(())
    }
}
