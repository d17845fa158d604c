//! Data blocks: prefix-compressed entries, restart points, and a hash index for point lookups.
//!
//! Layout of a payload:
//! - entries: shared (varint, bytes of user key taken from the entry before), unshared (varint,
//!   further bytes of user key), value length (varint), the unshared bytes, the 8-byte trailer, the
//!   value. `shared` is always as long as it can be. It is 0 at restart points, which come every
//!   [`RESTART_INTERVAL`] entries;
//! - restart points: offset of each (u32);
//! - hash index: one byte a bucket. The byte numbers the restart point in whose interval *all* of
//!   the block's versions of a key lie. It may also be [`BUCKET_EMPTY`], or [`BUCKET_COLLISION`],
//!   which sends the reader to the restart points;
//! - tail of [`TAIL_LEN`] bytes: restart points (u32), buckets (u16), restart interval (u8), flags
//!   (u8).
//!
//! The bytes decoded here have passed their checksum, but they may still be a hostile file's: every
//! offset and length is checked.

use super::format::{BlockResult, Damage, check_entry};
use basalt_env::prefetch;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::encoding::{get_varint, put_varint, u32_at};
use basalt_kv::key::{Cmp, Kind, SEQ_SHIFT, SeqNo, TRAILER_LEN, seek_trailer, trailer_seq};
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};
use std::cmp::Ordering;
use std::ops::Range;

/// Entries from one restart point to the next.
pub(super) const RESTART_INTERVAL: usize = 16;
/// Bytes of the tail, which follows the buckets.
pub(super) const TAIL_LEN: usize = 8;
/// Bytes that hold the restart points, buckets and tail of most blocks.
pub(super) const TAIL_MOST: usize = 128;
/// The most bytes of a restart interval that are prefetched ahead of its scan. Intervals without
/// large values fit entirely.
const SCAN_MOST: usize = 2048;
const BUCKET_EMPTY: u8 = 255;
const BUCKET_COLLISION: u8 = 254;
/// The most restart points that the byte of a bucket can number.
const MAX_HASHED_RESTARTS: usize = 253;
/// Flag: the block has a hash index.
const FLAG_HASH: u8 = 1;

/// Returns the end of a payload, at most [`TAIL_MOST`] bytes, where a lookup begins.
#[inline]
pub(super) fn tail_of(payload: &[u8]) -> &[u8] {
    &payload[payload.len().saturating_sub(TAIL_MOST)..]
}

#[inline]
fn bucket_of(hash: u64, buckets: usize) -> usize {
    ((u64::from(hash as u32) * buckets as u64) >> 32) as usize
}

/// Returns the number of buckets for `keys` keys.
fn buckets_for(keys: usize) -> usize {
    keys * 4 / 3 + 1
}

fn varint_len(n: usize) -> usize {
    (n.max(1).ilog2() as usize) / 7 + 1
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut n = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let x = u64::from_le_bytes(x.try_into().expect("8 bytes"));
        let y = u64::from_le_bytes(y.try_into().expect("8 bytes"));
        if x != y {
            return n + ((x ^ y).trailing_zeros() / 8) as usize;
        }
        n += 8;
    }
    n + a[n..]
        .iter()
        .zip(&b[n..])
        .take_while(|(x, y)| x == y)
        .count()
}

/// Collects the entries of one data block.
pub(super) struct BlockBuilder {
    buf: Vec<u8>,
    restarts: Vec<u32>,
    /// Hash and restart number of each user key; `None` if the comparator's equality is not that of
    /// bytes.
    hashes: Option<Vec<(u64, u32)>>,
    in_interval: usize,
    entries: usize,
}

impl BlockBuilder {
    pub(super) fn new(with_hash: bool) -> BlockBuilder {
        BlockBuilder {
            buf: Vec::new(),
            restarts: Vec::new(),
            hashes: with_hash.then(Vec::new),
            in_interval: 0,
            entries: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the bytes that the payload has now.
    pub(super) fn len(&self) -> usize {
        let buckets = self.hashes.as_ref().map_or(0, |h| buckets_for(h.len()));
        self.buf.len() + self.restarts.len() * 4 + buckets + TAIL_LEN
    }

    /// Returns the most bytes that the payload has after this entry is added to it.
    pub(super) fn len_with(&self, previous: &[u8], user_key: &[u8], value_len: usize) -> usize {
        let begins = self.in_interval == 0;
        let shared = if begins {
            0
        } else {
            common_prefix(previous, user_key)
        };
        let unshared = user_key.len() - shared;
        let entry = varint_len(shared)
            + varint_len(unshared)
            + varint_len(value_len)
            + unshared
            + TRAILER_LEN
            + value_len;
        // Buckets are a third more than keys, so an entry adds one bucket or two.
        self.len() + entry + usize::from(begins) * 4 + 2
    }

    /// Adds an entry without its value, which [`BlockBuilder::value`] adds. `previous` is the user
    /// key of the entry before.
    pub(super) fn key(
        &mut self,
        previous: &[u8],
        user_key: &[u8],
        trailer: u64,
        value_len: usize,
        hash: u64,
    ) {
        let mut shared = 0;
        if self.in_interval == 0 {
            self.restarts
                .push(u32::try_from(self.buf.len()).expect("block below 4 GiB"));
        } else {
            shared = common_prefix(previous, user_key);
        }
        self.in_interval = (self.in_interval + 1) % RESTART_INTERVAL;
        self.entries += 1;
        put_varint(&mut self.buf, shared as u64);
        put_varint(&mut self.buf, (user_key.len() - shared) as u64);
        put_varint(&mut self.buf, value_len as u64);
        self.buf.extend_from_slice(&user_key[shared..]);
        self.buf.extend_from_slice(&trailer.to_le_bytes());
        if let Some(hashes) = &mut self.hashes {
            let at = (hash, self.restarts.len() as u32 - 1);
            if hashes.last() != Some(&at) {
                hashes.push(at);
            }
        }
    }

    pub(super) fn value(&mut self, value: &[u8]) {
        self.buf.extend_from_slice(value);
    }

    /// Returns the bytes that stand before a value that is not in the buffer.
    pub(super) fn head(&self) -> &[u8] {
        &self.buf
    }

    /// Returns restart points, buckets and tail, which follow the entries.
    pub(super) fn tail(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.push_tail(0, &mut out);
        out
    }

    fn push_tail(&self, more_buckets: usize, out: &mut Vec<u8>) {
        for r in &self.restarts {
            out.extend_from_slice(&r.to_le_bytes());
        }
        let mut buckets = 0;
        if let Some(hashes) = &self.hashes
            && self.entries > 1
            && self.restarts.len() <= MAX_HASHED_RESTARTS
        {
            buckets = (buckets_for(hashes.len()) + more_buckets).min(usize::from(u16::MAX));
            let start = out.len();
            out.resize(start + buckets, BUCKET_EMPTY);
            for (hash, restart) in hashes {
                let b = &mut out[start + bucket_of(*hash, buckets)];
                if *b == BUCKET_EMPTY {
                    *b = *restart as u8;
                } else if *b != *restart as u8 {
                    *b = BUCKET_COLLISION;
                }
            }
        }
        out.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        out.extend_from_slice(&(buckets as u16).to_le_bytes());
        out.push(RESTART_INTERVAL as u8);
        out.push(if buckets > 0 { FLAG_HASH } else { 0 });
    }

    /// Returns the complete payload, which stays until [`BlockBuilder::reset`]. `more_buckets` is
    /// added to the buckets of the hash index, if there is one. The payload grows by that many
    /// bytes.
    pub(super) fn finish(&mut self, more_buckets: usize) -> &[u8] {
        let mut buf = std::mem::take(&mut self.buf);
        self.push_tail(more_buckets, &mut buf);
        self.buf = buf;
        &self.buf
    }

    pub(super) fn reset(&mut self) {
        self.buf.clear();
        self.restarts.clear();
        if let Some(h) = &mut self.hashes {
            h.clear();
        }
        self.in_interval = 0;
        self.entries = 0;
    }
}

/// The lengths and counts of a payload's parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockLayout {
    entries_end: usize,
    restarts: usize,
    buckets: usize,
}

impl BlockLayout {
    #[inline]
    pub(super) fn of(payload: &[u8]) -> BlockResult<BlockLayout> {
        let Some(tail) = payload.len().checked_sub(TAIL_LEN) else {
            return Err(Damage::Bad(0, "data block too short"));
        };
        let restarts = u32_at(payload, tail) as usize;
        let buckets = usize::from(u16::from_le_bytes([payload[tail + 4], payload[tail + 5]]));
        let flags = payload[tail + 7];
        let entries_end = restarts
            .checked_mul(4)
            .and_then(|r| tail.checked_sub(r)?.checked_sub(buckets));
        match entries_end {
            Some(entries_end)
                if restarts > 0
                    && entries_end > 0
                    && flags & !FLAG_HASH == 0
                    && (flags & FLAG_HASH != 0) == (buckets > 0) =>
            {
                Ok(BlockLayout {
                    entries_end,
                    restarts,
                    buckets,
                })
            }
            _ => Err(Damage::Bad(tail, "malformed tail of a data block")),
        }
    }

    #[inline]
    fn restart(&self, payload: &[u8], i: usize) -> BlockResult<usize> {
        let at = u32_at(payload, self.entries_end + i * 4) as usize;
        if at >= self.entries_end {
            return Err(Damage::Bad(
                self.entries_end + i * 4,
                "restart point outside the entries",
            ));
        }
        Ok(at)
    }

    /// Returns the user key and the trailer of restart point `i`.
    #[inline]
    fn restart_key<'a>(&self, payload: &'a [u8], i: usize) -> BlockResult<(&'a [u8], u64)> {
        let at = self.restart(payload, i)?;
        let entries = &payload[..self.entries_end];
        let e = Entry::decode(entries, at)?;
        if e.shared != 0 {
            return Err(Damage::Bad(
                at,
                "restart point shares bytes with the entry before",
            ));
        }
        Ok((&entries[e.suffix_at..e.trailer_at], e.trailer(entries)))
    }

    /// Returns the last restart point whose key is before `(user, trailer)`, or 0 if there is none.
    #[inline]
    fn restart_before(
        &self,
        payload: &[u8],
        cmp: &Cmp,
        user: &[u8],
        trailer: u64,
    ) -> BlockResult<usize> {
        let (mut lo, mut hi) = (0, self.restarts);
        // Invariant: points below `lo` are before the target, points at or above `hi` are not.
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let (u, t) = self.restart_key(payload, mid)?;
            if cmp.user(u, user).then_with(|| trailer.cmp(&t)) == Ordering::Less {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        Ok(lo.saturating_sub(1))
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    shared: usize,
    suffix_at: usize,
    trailer_at: usize,
    value_at: usize,
    next: usize,
}

impl Entry {
    /// Decodes the entry at `at`. All its parts lie inside `entries`.
    #[inline]
    fn decode(entries: &[u8], at: usize) -> BlockResult<Entry> {
        let (shared, unshared, value_len, suffix_at) = match entries.get(at..at + 3) {
            Some(&[a, b, c]) if (a | b | c) < 0x80 => {
                (usize::from(a), usize::from(b), usize::from(c), at + 3)
            }
            _ => Entry::lengths(entries, at)?,
        };
        let trailer_at = suffix_at + unshared;
        let value_at = trailer_at + TRAILER_LEN;
        let next = value_at + value_len;
        if next > entries.len() {
            return Err(Damage::Bad(at, "entry runs past the entries' end"));
        }
        Ok(Entry {
            shared,
            suffix_at,
            trailer_at,
            value_at,
            next,
        })
    }

    #[inline(never)]
    fn lengths(entries: &[u8], start: usize) -> BlockResult<(usize, usize, usize, usize)> {
        let mut at = start;
        let mut one = |max: usize| {
            get_varint(entries, &mut at, 32)
                .map(|n| n as usize)
                .filter(|n| *n <= max)
                .ok_or(Damage::Bad(
                    start,
                    "entry's lengths are cut off or too large",
                ))
        };
        let (shared, unshared) = (one(MAX_KEY_LEN)?, one(MAX_KEY_LEN)?);
        let value_len = one(MAX_VALUE_LEN + 8)?;
        if shared + unshared > MAX_KEY_LEN {
            return Err(Damage::Bad(start, "key longer than keys can be"));
        }
        Ok((shared, unshared, value_len, at))
    }

    #[inline]
    fn trailer(&self, entries: &[u8]) -> u64 {
        u64::from_le_bytes(
            entries[self.trailer_at..self.value_at]
                .try_into()
                .expect("8 bytes"),
        )
    }
}

/// The entry that a point lookup found in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) seq: SeqNo,
    pub(super) kind: Kind,
    /// The range of the value in the payload.
    pub(super) value: Range<usize>,
}

/// Returns the newest version of `user` at or below `seq` in this block. `hash` allows the use of
/// the hash index. It is given only if the comparator's equality is that of bytes.
#[inline]
pub(super) fn get(
    payload: &[u8],
    cmp: &Cmp,
    user: &[u8],
    seq: SeqNo,
    hash: Option<u64>,
) -> BlockResult<Option<Hit>> {
    let layout = BlockLayout::of(payload)?;
    let mut end = layout.entries_end;
    let hashed = match hash {
        Some(hash) if layout.buckets > 0 => {
            let buckets_at = layout.entries_end + layout.restarts * 4;
            match payload[buckets_at + bucket_of(hash, layout.buckets)] {
                BUCKET_EMPTY => return Ok(None),
                BUCKET_COLLISION => None,
                restart => Some(usize::from(restart)),
            }
        }
        _ => None,
    };
    let at = match hashed {
        Some(r) => {
            if r >= layout.restarts {
                return Err(Damage::Bad(
                    layout.entries_end,
                    "hash bucket names no restart point",
                ));
            }
            // All versions of the key lie in this interval. Otherwise, the bucket would say
            // collision.
            if r + 1 < layout.restarts {
                end = layout.restart(payload, r + 1)?;
            }
            layout.restart(payload, r)?
        }
        None => {
            let r = layout.restart_before(payload, cmp, user, seek_trailer(seq))?;
            layout.restart(payload, r)?
        }
    };
    // An entry's begin is only known from the entry before. Without this prefetch, the scan would
    // wait for memory at each entry.
    if let Some(scanned) = payload.get(at..end) {
        prefetch(scanned, SCAN_MOST);
    }
    match cmp {
        Cmp::Bytewise => scan_bytewise(&payload[..layout.entries_end], at, end, user, seq),
        _ => scan_any(&payload[..layout.entries_end], at, end, cmp, user, seq),
    }
}

/// Searches for `user` from a restart point on without putting keys together.
///
/// `matched` is the length of the prefix that the target shares with the entry before, which is not
/// after the target. An entry that shares more bytes with that entry has the same mismatch. An
/// entry that shares fewer bytes is already past the target.
fn scan_bytewise(
    entries: &[u8],
    mut at: usize,
    end: usize,
    user: &[u8],
    seq: SeqNo,
) -> BlockResult<Option<Hit>> {
    let mut matched = 0;
    let mut last_len = 0;
    while at < end {
        let e = Entry::decode(entries, at)?;
        if e.shared > last_len {
            return Err(Damage::Bad(at, "entry shares more than the key before has"));
        }
        last_len = e.shared + (e.trailer_at - e.suffix_at);
        // At a restart point `shared` is 0 although the keys may have more in common, so the
        // comparison begins anew. The first entry with fewer shared bytes cannot be at a restart
        // point within the scan of one interval.
        if e.shared < matched && e.shared != 0 {
            return Ok(None);
        }
        if e.shared <= matched {
            let rest = &user[e.shared..];
            let suffix = &entries[e.suffix_at..e.trailer_at];
            let common = common_prefix(suffix, rest);
            if common < suffix.len() {
                if common == rest.len() || suffix[common] > rest[common] {
                    return Ok(None);
                }
            } else if common == rest.len() {
                let trailer = e.trailer(entries);
                if trailer_seq(trailer) <= seq {
                    let kind = check_entry(trailer, e.next - e.value_at, at)?;
                    return Ok(Some(Hit {
                        seq: trailer_seq(trailer),
                        kind,
                        value: e.value_at..e.next,
                    }));
                }
            }
            matched = e.shared + common;
        }
        at = e.next;
    }
    Ok(None)
}

fn scan_any(
    entries: &[u8],
    mut at: usize,
    end: usize,
    cmp: &Cmp,
    user: &[u8],
    seq: SeqNo,
) -> BlockResult<Option<Hit>> {
    let mut key = Vec::with_capacity(user.len() + 32);
    while at < end {
        let e = Entry::decode(entries, at)?;
        if e.shared > key.len() {
            return Err(Damage::Bad(at, "entry shares more than the key before has"));
        }
        key.truncate(e.shared);
        key.extend_from_slice(&entries[e.suffix_at..e.trailer_at]);
        match cmp.user(&key, user) {
            Ordering::Less => {}
            Ordering::Greater => return Ok(None),
            Ordering::Equal => {
                let trailer = e.trailer(entries);
                if trailer_seq(trailer) <= seq {
                    let kind = check_entry(trailer, e.next - e.value_at, at)?;
                    return Ok(Some(Hit {
                        seq: trailer_seq(trailer),
                        kind,
                        value: e.value_at..e.next,
                    }));
                }
            }
        }
        at = e.next;
    }
    Ok(None)
}

/// One entry that [`BlockCursor::prev`] has decoded ahead of need.
struct Behind {
    at: usize,
    key: Range<usize>,
    value: Range<usize>,
}

/// A position in a data block. A cursor is reused from block to block, so that it allocates nothing
/// once it is warm.
pub(super) struct BlockCursor {
    /// The table's shift of sequence numbers, at the place that they have in a trailer. It is added
    /// to each trailer stored here.
    shift: u64,
    bytes: Bytes,
    layout: BlockLayout,
    /// Offset of the current entry; `valid` says whether there is one.
    at: usize,
    value: Range<usize>,
    valid: bool,
    key: Vec<u8>,
    /// The entries of the restart interval before this position. With them, walking back decodes
    /// each interval once.
    behind: Vec<Behind>,
    behind_keys: Vec<u8>,
}

impl BlockCursor {
    pub(super) fn new() -> BlockCursor {
        BlockCursor::with_shift(0)
    }

    /// Makes a cursor for blocks of a table whose sequence numbers are shifted by `shift`.
    pub(super) fn with_shift(shift: SeqNo) -> BlockCursor {
        BlockCursor {
            shift: shift << SEQ_SHIFT,
            bytes: Bytes::new(),
            layout: BlockLayout {
                entries_end: 0,
                restarts: 0,
                buckets: 0,
            },
            at: 0,
            value: 0..0,
            valid: false,
            key: Vec::new(),
            behind: Vec::new(),
            behind_keys: Vec::new(),
        }
    }

    /// Moves to another block. The cursor is then unpositioned.
    pub(super) fn load(&mut self, payload: Bytes) -> BlockResult<()> {
        self.unload();
        self.layout = BlockLayout::of(&payload)?;
        self.bytes = payload;
        Ok(())
    }

    /// Releases the block.
    pub(super) fn unload(&mut self) {
        self.valid = false;
        self.behind.clear();
        self.bytes = Bytes::new();
        self.layout.entries_end = 0;
    }

    #[inline]
    pub(super) fn valid(&self) -> bool {
        self.valid
    }

    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        debug_assert!(self.valid);
        &self.key
    }

    #[inline]
    pub(super) fn value(&self) -> &[u8] {
        &self.bytes[self.value.clone()]
    }

    pub(super) fn pinned_value(&self) -> Bytes {
        self.bytes.slice(self.value.clone())
    }

    /// Decodes the entry at `at` on top of the key before. The cursor is not valid past the last
    /// entry.
    #[inline]
    fn step_to(&mut self, at: usize) -> BlockResult<()> {
        self.valid = false;
        if at >= self.layout.entries_end {
            return Ok(());
        }
        let entries = &self.bytes[..self.layout.entries_end];
        let e = Entry::decode(entries, at)?;
        // `key` still ends in the trailer of the entry before.
        if e.shared + TRAILER_LEN > self.key.len() && e.shared != 0 {
            return Err(Damage::Bad(at, "entry shares more than the key before has"));
        }
        check_entry(e.trailer(entries), e.next - e.value_at, at)?;
        self.key.truncate(e.shared);
        self.key
            .extend_from_slice(&entries[e.suffix_at..e.value_at]);
        if self.shift > 0 {
            let trailer = e.trailer(entries).checked_add(self.shift);
            let trailer = trailer.ok_or(Damage::Bad(at, "sequence number beyond the largest"))?;
            let at = self.key.len() - TRAILER_LEN;
            self.key[at..].copy_from_slice(&trailer.to_le_bytes());
        }
        self.at = at;
        self.value = e.value_at..e.next;
        self.valid = true;
        Ok(())
    }

    fn step_to_restart(&mut self, i: usize) -> BlockResult<()> {
        self.valid = false;
        let at = self.layout.restart(&self.bytes, i)?;
        self.key.clear();
        self.step_to(at)
    }

    /// Moves to another block, and checks all of it as [`BlockCursor::check_all`] does. The cursor
    /// is then unpositioned.
    pub(super) fn load_checked(
        &mut self,
        payload: Bytes,
        hash: Option<fn(&[u8]) -> u64>,
    ) -> BlockResult<()> {
        self.load(payload)?;
        self.check_all(hash)
    }

    /// Calls `each` with the cursor at each entry of the block, from the first entry on. `at` makes
    /// an error of damage in the block.
    pub(super) fn for_each_entry(
        &mut self,
        at: impl Fn(Damage) -> Error,
        mut each: impl FnMut(&BlockCursor) -> Result<()>,
    ) -> Result<()> {
        self.seek_to_first().map_err(&at)?;
        while self.valid() {
            each(self)?;
            self.next().map_err(&at)?;
        }
        Ok(())
    }

    pub(super) fn seek_to_first(&mut self) -> BlockResult<()> {
        self.behind.clear();
        self.step_to_restart(0)
    }

    pub(super) fn seek_to_last(&mut self) -> BlockResult<()> {
        self.behind.clear();
        self.step_to_restart(self.layout.restarts - 1)?;
        while self.value.end < self.layout.entries_end {
            self.step_to(self.value.end)?;
        }
        Ok(())
    }

    /// Moves to the first entry at or after the internal key `target`, if this block has one.
    pub(super) fn seek(&mut self, cmp: &Cmp, target: &[u8]) -> BlockResult<()> {
        self.behind.clear();
        self.valid = false;
        let (user, trailer) = basalt_kv::key::split_internal_key(target);
        // A sequence number below the shift is older than all entries here: the target comes behind
        // all versions of its key.
        let stored = trailer.saturating_sub(self.shift);
        let r = self.layout.restart_before(&self.bytes, cmp, user, stored)?;
        self.step_to_restart(r)?;
        while self.valid && cmp.internal(&self.key, target) == Ordering::Less {
            self.step_to(self.value.end)?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn next(&mut self) -> BlockResult<()> {
        if !self.behind.is_empty() {
            self.behind.clear();
        }
        self.step_to(self.value.end)
    }

    pub(super) fn prev(&mut self) -> BlockResult<()> {
        if self.behind.is_empty() {
            let here = self.at;
            self.valid = false;
            // This search finds the last restart point before the current entry.
            let (mut lo, mut hi) = (0, self.layout.restarts);
            while lo < hi {
                let mid = lo + (hi - lo) / 2;
                if self.layout.restart(&self.bytes, mid)? < here {
                    lo = mid + 1;
                } else {
                    hi = mid;
                }
            }
            if lo == 0 {
                return Ok(());
            }
            self.behind_keys.clear();
            self.step_to_restart(lo - 1)?;
            while self.valid && self.at < here {
                let start = self.behind_keys.len();
                self.behind_keys.extend_from_slice(&self.key);
                self.behind.push(Behind {
                    at: self.at,
                    key: start..self.behind_keys.len(),
                    value: self.value.clone(),
                });
                self.step_to(self.value.end)?;
            }
            self.valid = false;
        }
        if let Some(b) = self.behind.pop() {
            self.key.clear();
            self.key.extend_from_slice(&self.behind_keys[b.key]);
            self.at = b.at;
            self.value = b.value;
            self.valid = true;
        }
        Ok(())
    }

    /// Returns the offset of the current entry in the payload, for messages.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Checks what lookups rely on beyond what decoding checks: restart points on entries, the
    /// length of each interval, shared prefixes as long as they can be, and the buckets. `verify`
    /// calls this with the cursor at any position; the cursor is unpositioned afterwards.
    pub(super) fn check_all(&mut self, hash: Option<fn(&[u8]) -> u64>) -> BlockResult<()> {
        let mut previous: Vec<u8> = Vec::new();
        let (mut n, mut at, mut restarts) = (0, 0, 0);
        let interval = usize::from(self.bytes[self.bytes.len() - 2]);
        if interval == 0 {
            return Err(Damage::Bad(self.bytes.len() - 2, "restart interval of 0"));
        }
        self.key.clear();
        while at < self.layout.entries_end {
            let is_restart = n % interval == 0;
            if is_restart {
                if restarts >= self.layout.restarts
                    || self.layout.restart(&self.bytes, restarts)? != at
                {
                    return Err(Damage::Bad(at, "no restart point where one belongs"));
                }
                restarts += 1;
            }
            self.step_to(at)?;
            let user = basalt_kv::key::user_key(&self.key);
            let shared = Entry::decode(&self.bytes[..self.layout.entries_end], at)?.shared;
            let expected = if is_restart {
                0
            } else {
                common_prefix(&previous, user)
            };
            if shared != expected {
                return Err(Damage::Bad(at, "shared prefix of an unexpected length"));
            }
            if let Some(hash) = hash
                && self.layout.buckets > 0
            {
                let b = bucket_of(hash(user), self.layout.buckets);
                let b = self.bytes[self.layout.entries_end + self.layout.restarts * 4 + b];
                if b != BUCKET_COLLISION && usize::from(b) != restarts - 1 {
                    return Err(Damage::Bad(at, "key is missing in the hash index"));
                }
            }
            previous.clear();
            previous.extend_from_slice(user);
            n += 1;
            at = self.value.end;
        }
        if restarts != self.layout.restarts {
            return Err(Damage::Bad(
                self.layout.entries_end,
                "restart points without entries",
            ));
        }
        self.valid = false;
        Ok(())
    }
}
