//! A table's filter: a blocked Bloom filter over user keys.
//!
//! All probes of a key fall into one line of 64 bytes. Lines are stored in pages of 4 KiB. Each
//! page is a checksummed block of its own, and the hash of a key gives its place. A lookup
//! therefore reads one page, and finds it without an index.

use super::BLOCK_TRAILER_LEN;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a line.
pub(crate) const LINE_BYTES: usize = 64;
/// Bytes of a page in the file, trailer included.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Lines of a full page. The trailer and zeros fill the rest of it.
pub(crate) const LINES_A_PAGE: usize = (PAGE_BYTES - BLOCK_TRAILER_LEN) / LINE_BYTES;
/// The most probes that a filter may ask for.
pub(crate) const MAX_PROBES: u32 = 24;
/// Line numbers come from 32 bits of the hash.
const MAX_LINES: u64 = u32::MAX as u64;

const _: () = assert!(LINES_A_PAGE == 63 && LINE_BYTES * 8 == 1 << LINE_BITS_LOG2);
const LINE_BITS_LOG2: u32 = 9;

/// Returns the hash of a user key. The high half chooses the line, the low half the probes. The
/// hash index of data blocks uses it too.
#[inline]
pub(crate) fn key_hash(user_key: &[u8]) -> u64 {
    xxh3_64(user_key)
}

/// Returns the number of probes with the fewest false positives at this many bits a key (measured
/// for 512-bit lines).
pub(crate) fn probes_for(bits_per_key: u32) -> u32 {
    match bits_per_key {
        0 => 0,
        1..=2 => 1,
        3 => 2,
        4..=5 => 3,
        6 => 4,
        7..=8 => 5,
        9..=10 => 6,
        11 => 7,
        12..=14 => 8,
        15..=16 => 9,
        17..=18 => 10,
        19..=22 => 11,
        23..=25 => 12,
        more => (more / 2).min(MAX_PROBES),
    }
}

/// Returns the lines of a filter over `keys` keys.
pub(crate) fn lines_for(keys: u64, bits_per_key: u32) -> u64 {
    (keys.saturating_mul(u64::from(bits_per_key)))
        .div_ceil(LINE_BYTES as u64 * 8)
        .clamp(1, MAX_LINES)
}

/// Returns the bytes in the file of a filter with `lines` lines, or `None` for more lines than
/// there can be.
pub(crate) fn disk_len(lines: u64) -> Option<u64> {
    if lines > MAX_LINES {
        return None;
    }
    let full = lines / LINES_A_PAGE as u64;
    let rest = lines % LINES_A_PAGE as u64;
    let tail = if rest == 0 {
        0
    } else {
        rest * LINE_BYTES as u64 + BLOCK_TRAILER_LEN as u64
    };
    Some(full * PAGE_BYTES as u64 + tail)
}

/// Returns the pages of a filter with `lines` lines.
pub(crate) fn pages(lines: u64) -> u64 {
    lines.div_ceil(LINES_A_PAGE as u64)
}

/// Returns the payload bytes of page `page`.
pub(crate) fn page_payload(lines: u64, page: u64) -> usize {
    let rest = lines - page * LINES_A_PAGE as u64;
    if rest >= LINES_A_PAGE as u64 {
        PAGE_BYTES - BLOCK_TRAILER_LEN
    } else {
        rest as usize * LINE_BYTES
    }
}

/// Returns the page of a hash's line, and the byte in its payload at which the line begins.
#[inline]
pub(crate) fn locate(hash: u64, lines: u64) -> (u64, usize) {
    let line = ((hash >> 32) * lines) >> 32;
    (
        line / LINES_A_PAGE as u64,
        (line % LINES_A_PAGE as u64) as usize * LINE_BYTES,
    )
}

#[inline]
fn probe_bits(hash: u64, probes: u32) -> impl Iterator<Item = usize> {
    let mut h = hash as u32;
    (0..probes).map(move |_| {
        let bit = (h >> (32 - LINE_BITS_LOG2)) as usize;
        h = h.wrapping_mul(0x9e37_79b9);
        bit
    })
}

/// Sets the bits of a hash in its line.
pub(crate) fn add(line: &mut [u8], hash: u64, probes: u32) {
    for bit in probe_bits(hash, probes) {
        line[bit / 8] |= 1 << (bit % 8);
    }
}

/// Returns false if the hash was certainly not added to this line.
#[inline]
pub(crate) fn may_contain(line: &[u8; LINE_BYTES], hash: u64, probes: u32) -> bool {
    probe_bits(hash, probes).all(|bit| line[bit / 8] >> (bit % 8) & 1 == 1)
}
