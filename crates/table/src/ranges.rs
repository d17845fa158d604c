//! The blocks of range tombstones: fragments in order, each with its sequence numbers.
//!
//! They are read when a table is opened and stay in memory, because a reader must know them before
//! it trusts any entry. A block begins with a mark and its own length, so that salvage finds it
//! without index, properties or footer.

use super::TableMeta;
use super::format::{
    BLOCK_TRAILER_LEN, BlockHandle, BlockKind, BlockResult, Damage, block_checksum,
};
use basalt_kv::MAX_KEY_LEN;
use basalt_kv::encoding::{get_varint, put_varint, u64_at};
use basalt_kv::key::{Cmp, Kind, MAX_SEQ, SeqNo, internal_key, pack_trailer};
use basalt_kv::ranges::Fragments;
use std::cmp::Ordering;

/// Bytes of fragments at which a block is ended.
const BLOCK_BYTES: usize = 64 << 10;
/// First bytes of a block's payload, before its length.
const MARK: [u8; 4] = *b"rng\x01";
/// Bytes of the mark and the length.
const HEAD: usize = 8;

/// Collects fragments, in order, into blocks.
#[derive(Default)]
pub(super) struct RangesBuilder {
    blocks: Vec<Vec<u8>>,
    bytes: usize,
    fragments: Fragments,
}

impl RangesBuilder {
    /// Adds a fragment. Panics if the fragment does not follow the last one, or is empty.
    pub(super) fn add(&mut self, cmp: &Cmp, from: &[u8], to: &[u8], seqs: &[SeqNo]) {
        let n = self.fragments.len();
        assert!(
            cmp.user(from, to) == Ordering::Less
                && (n == 0 || cmp.user(self.fragments.range(n - 1).1, from) != Ordering::Greater),
            "range tombstones come in order"
        );
        assert!(!seqs.is_empty() && seqs.is_sorted_by(|a, b| a > b));
        self.fragments.push(cmp, from, to, seqs);
        self.bytes += 6 + from.len() + to.len() + 8 * seqs.len();
    }

    /// Returns about how many bytes the blocks will take.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the payloads of the blocks, and the fragments in them.
    pub(super) fn finish(mut self) -> (Vec<Vec<u8>>, Fragments) {
        for i in 0..self.fragments.len() {
            let (from, to) = self.fragments.range(i);
            let block = match self.blocks.last_mut() {
                Some(b) if b.len() < BLOCK_BYTES => b,
                _ => {
                    let mut b = MARK.to_vec();
                    b.extend_from_slice(&[0; HEAD - MARK.len()]);
                    self.blocks.push(b);
                    self.blocks.last_mut().expect("just pushed")
                }
            };
            for key in [from, to] {
                put_varint(block, key.len() as u64);
                block.extend_from_slice(key);
            }
            let seqs = self.fragments.seqs_of(i);
            put_varint(block, seqs.len() as u64);
            for seq in seqs {
                put_varint(block, *seq);
            }
        }
        for b in &mut self.blocks {
            let len = u32::try_from(b.len()).expect("a block is ended before it is that long");
            b[MARK.len()..HEAD].copy_from_slice(&len.to_le_bytes());
        }
        (self.blocks, self.fragments)
    }
}

/// Reads a block's payload and appends its fragments to those of the blocks before it. Every byte
/// is checked.
pub(super) fn read_block(cmp: &Cmp, payload: &[u8], out: &mut Fragments) -> BlockResult<()> {
    let bad = |at: usize, what: &'static str| Damage::Bad(at, what);
    if payload.len() < HEAD || payload[..MARK.len()] != MARK {
        return Err(bad(0, "range tombstones without their mark"));
    }
    if length(payload) != payload.len() {
        return Err(bad(MARK.len(), "range tombstones of another length"));
    }
    let mut at = HEAD;
    let mut seqs = Vec::new();
    while at < payload.len() {
        let start = at;
        let mut key = || {
            let len = get_varint(payload, &mut at, 32)
                .filter(|n| *n <= MAX_KEY_LEN as u64)
                .ok_or(bad(start, "length of a range's key"))? as usize;
            let key = payload
                .get(at..at + len)
                .ok_or(bad(start, "range cut off"))?;
            at += len;
            Ok(key)
        };
        let (from, to) = (key()?, key()?);
        let n = get_varint(payload, &mut at, 32)
            .filter(|n| (1..=payload.len() as u64).contains(n))
            .ok_or(bad(start, "number of a range's tombstones"))?;
        seqs.clear();
        for _ in 0..n {
            let seq = get_varint(payload, &mut at, 63)
                .filter(|s| (1..=MAX_SEQ).contains(s))
                .ok_or(bad(start, "sequence number of a range tombstone"))?;
            if seqs.last().is_some_and(|last| *last <= seq) {
                return Err(bad(start, "a range's sequence numbers do not descend"));
            }
            seqs.push(seq);
        }
        if cmp.user(from, to) != Ordering::Less {
            return Err(bad(start, "range ends before it begins"));
        }
        if let Some(last) = out.len().checked_sub(1) {
            let (_, end) = out.range(last);
            match cmp.user(end, from) {
                Ordering::Less => {}
                // The builder would have joined equal neighbours, so the block would not be what
                // was written.
                Ordering::Equal if out.seqs_of(last) != seqs => {}
                _ => return Err(bad(start, "ranges do not ascend")),
            }
        }
        out.push(cmp, from, to, &seqs);
    }
    Ok(())
}

fn length(payload: &[u8]) -> usize {
    u32::from_le_bytes(payload[MARK.len()..HEAD].try_into().expect("4 bytes")) as usize
}

/// Returns the blocks of range tombstones that verify somewhere in `bytes`, which begin at offset
/// `base` of the file.
pub(super) fn find_blocks(bytes: &[u8], base: u64, file_id: u128) -> Vec<BlockHandle> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + HEAD + BLOCK_TRAILER_LEN <= bytes.len() {
        let rest = &bytes[at..];
        if rest[..MARK.len()] != MARK {
            at += 1;
            continue;
        }
        let len = length(rest);
        let whole = len
            .checked_add(BLOCK_TRAILER_LEN)
            .is_some_and(|n| n <= rest.len())
            && rest[len] == 0
            && u64_at(rest, len + 1)
                == block_checksum(
                    BlockKind::Ranges,
                    0,
                    file_id,
                    base + at as u64,
                    &rest[..len],
                );
        if !whole {
            at += 1;
            continue;
        }
        let handle = BlockHandle {
            offset: base + at as u64,
            stored: len as u32,
            raw: 0,
        };
        at += handle.disk_len();
        found.push(handle);
    }
    found
}

impl TableMeta {
    /// Adds range tombstones to the counts and to the table's range of keys. Entries have been
    /// counted before.
    pub(crate) fn take_in_ranges(&mut self, cmp: &Cmp, ranges: &Fragments) {
        self.range_deletes = ranges.pieces() as u64;
        let Some(last) = ranges.len().checked_sub(1) else {
            return;
        };
        for piece in ranges.iter() {
            self.min_seq = self.min_seq.min(piece.seq);
            self.max_seq = self.max_seq.max(piece.seq);
        }
        let newest = pack_trailer(ranges.seqs_of(0)[0], Kind::RangeDelete);
        let first = internal_key(ranges.range(0).0, newest);
        if self.entries == 0 || cmp.internal(&first, &self.smallest) == Ordering::Less {
            self.smallest = first;
        }
        // This trailer sorts before every entry of the key at which the last range ends.
        let end = internal_key(ranges.range(last).1, OPEN_END);
        if self.entries == 0 || cmp.internal(&end, &self.largest) == Ordering::Greater {
            self.largest = end;
        }
    }

    /// Returns true if a range tombstone reaches past the last entry: `largest` is then its end,
    /// which is not in the table.
    pub fn end_is_open(&self) -> bool {
        self.largest.ends_with(&OPEN_END.to_le_bytes())
    }
}

/// The trailer of a table's largest key if that key is the end of a range.
pub(super) const OPEN_END: u64 = u64::MAX;
