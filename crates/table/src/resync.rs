//! Finds where a block that begins at a given place of a damaged table may end, from its bytes
//! alone, before any checksum.
//!
//! Entries, lz4 sequences and zstd frames contain their own lengths. One walk over them finds the
//! few possible ends, and stops after a few bytes where no block begins. Owns nothing; promises to
//! name the end of every block that a builder writes.

use super::block::{RESTART_INTERVAL, TAIL_LEN};
use super::builder::SECTOR;
use super::format::{BlockKind, MAX_COMPRESSED_RAW};
use basalt_kv::codec;
use basalt_kv::encoding::{get_varint, u32_at, u64_at};
use basalt_kv::key::TRAILER_LEN;
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};

/// The last kind of entry that this version knows or has reserved. Blocks of a later version are
/// found too, and their reader refuses them.
const LAST_KIND: u64 = 9;
/// Bytes of a value's expiry.
const EXPIRY_LEN: usize = 8;

/// Calls `fits` with the stored length, the compression and the raw length (0 if stored
/// uncompressed) of each possible block, until `fits` returns true. Possible blocks are of `kind`,
/// begin at `rest[0]` and have at most `most` bytes without their trailer.
pub(super) fn ends(
    kind: BlockKind,
    rest: &[u8],
    most: usize,
    mut fits: impl FnMut(usize, u8, usize) -> bool,
) {
    // The compression stands behind the payload.
    let mut fits = |stored: usize, method: u8, raw: usize| {
        stored <= most && rest.get(stored) == Some(&method) && fits(stored, method, raw)
    };
    let payload = &rest[..most.min(rest.len())];
    if kind == BlockKind::Data {
        let _ = entries(payload, |stored| fits(stored, 0, 0));
        let _ = sequences(payload, |stored, raw| fits(stored, 1, raw));
        if let Some((stored, raw)) = codec::zstd_frame_len(payload, MAX_COMPRESSED_RAW) {
            fits(stored, 2, raw);
        }
    } else {
        index(payload, |stored| fits(stored, 0, 0));
    }
}

/// Walks the entries of an uncompressed data block. Returns `None` at the first bytes that are no
/// entry.
fn entries(b: &[u8], mut fits: impl FnMut(usize) -> bool) -> Option<()> {
    let (mut at, mut count) = (0, 0);
    let mut restarts: Vec<u32> = Vec::new();
    let (mut key_len, mut before) = (0, 0);
    loop {
        let start = at;
        let shared = get_varint(b, &mut at, 32)? as usize;
        let unshared = get_varint(b, &mut at, 32)? as usize;
        let value_len = get_varint(b, &mut at, 32)? as usize;
        if count % RESTART_INTERVAL == 0 {
            if shared != 0 {
                return None;
            }
            restarts.push(u32::try_from(start).ok()?);
        }
        if shared > key_len
            || shared + unshared > MAX_KEY_LEN
            || value_len > MAX_VALUE_LEN + EXPIRY_LEN
        {
            return None;
        }
        let trailer_at = at + unshared;
        if trailer_at + TRAILER_LEN > b.len() {
            return None;
        }
        let trailer = u64_at(b, trailer_at);
        // Versions of one key stand from the newest to the oldest.
        let same_key = count > 0 && unshared == 0 && shared == key_len;
        let lies = match trailer & 0xff {
            0 | 1 => false,
            2 => value_len < EXPIRY_LEN,
            kind => kind > LAST_KIND,
        };
        if lies || (same_key && trailer >= before) {
            return None;
        }
        at = trailer_at + TRAILER_LEN + value_len;
        count += 1;
        key_len = shared + unshared;
        before = trailer;
        // The restart points may stand here, and they are known.
        let points = b.get(at..at + 4 * restarts.len())?;
        let known = restarts.iter().map(|r| r.to_le_bytes());
        if points.chunks_exact(4).eq(known) {
            let tail = at + points.len();
            // A builder makes 4/3 buckets of an entry, and less than a sector more. The search
            // covers twice as many.
            for buckets in 0..=(count * 8 / 3 + 2 * SECTOR).min(usize::from(u16::MAX)) {
                let end = tail + buckets + TAIL_LEN;
                let Some(t) = b.get(end - TAIL_LEN..end) else {
                    break;
                };
                if usize::from(t[6]) == RESTART_INTERVAL
                    && u32_at(t, 0) as usize == restarts.len()
                    && usize::from(u16::from_le_bytes([t[4], t[5]])) == buckets
                    && fits(end)
                {
                    return None;
                }
            }
        }
    }
}

/// Walks the sequences of an lz4 block, which may end behind the literals of any of them.
fn sequences(b: &[u8], mut fits: impl FnMut(usize, usize) -> bool) -> Option<()> {
    let (mut at, mut raw) = (0, 0);
    let length = |at: &mut usize, nibble: u8| -> Option<usize> {
        let mut n = usize::from(nibble);
        if nibble == 15 {
            loop {
                let more = *b.get(*at)?;
                *at += 1;
                n += usize::from(more);
                if more != 255 {
                    break;
                }
            }
        }
        Some(n)
    };
    // A compressed payload begins with an entry that shares nothing with one before it: the first
    // literal is 0.
    let mut first = 1;
    length(&mut first, b.first()? >> 4).filter(|n| *n > 0)?;
    if *b.get(first)? != 0 {
        return None;
    }
    loop {
        let token = *b.get(at)?;
        at += 1;
        let literals = length(&mut at, token >> 4)?;
        at += literals;
        raw += literals;
        if at > b.len() || raw > MAX_COMPRESSED_RAW || fits(at, raw) {
            return None;
        }
        let back = usize::from(u16::from_le_bytes([*b.get(at)?, *b.get(at + 1)?]));
        at += 2;
        if back == 0 || back > raw {
            return None;
        }
        raw += length(&mut at, token & 15)? + 4;
    }
}

/// Finds the ends of an index block: its last number is the number of entries, and the first entry
/// is at 0.
fn index(b: &[u8], mut fits: impl FnMut(usize) -> bool) {
    for end in 8..=b.len() {
        let count = u32_at(b, end - 4) as usize;
        let offsets = count
            .checked_mul(4)
            .and_then(|n| (end - 4).checked_sub(n))
            .filter(|_| count > 0);
        if let Some(at) = offsets
            && u32_at(b, at) == 0
            && fits(end)
        {
            return;
        }
    }
}
