//! Bloom filters of delta pages: a lookup skips the delta pages that do not have its key.

use xxhash_rust::xxh3::xxh3_64;

/// Bits a key. About one lookup of 100 reads a page that does not have its key.
const BITS_A_KEY: usize = 10;
/// Probes of a key, the best number for this many bits.
const PROBES: u32 = 6;

/// Returns a filter for this many keys that has none of them yet.
pub(crate) fn empty(keys: usize) -> Vec<u8> {
    vec![0; (keys * BITS_A_KEY).div_ceil(8)]
}

/// Returns the bits of a key in a filter of `len` bytes.
fn bits(len: usize, key: &[u8]) -> impl Iterator<Item = usize> {
    let hash = xxh3_64(key);
    let bits = len as u64 * 8;
    let (mut at, step) = (hash >> 32, (hash & 0xFFFF_FFFF) | 1);
    (0..PROBES).map(move |_| {
        // The high half of a product spreads 32 bits over the range without a division.
        let bit = ((at & 0xFFFF_FFFF) * bits) >> 32;
        at = at.wrapping_add(step);
        bit as usize
    })
}

/// Adds a key. Does nothing to a filter without bytes.
pub(crate) fn add(filter: &mut [u8], key: &[u8]) {
    if filter.is_empty() {
        return;
    }
    for bit in bits(filter.len(), key) {
        filter[bit / 8] |= 1 << (bit % 8);
    }
}

/// Returns false if the filter does not have the key. True may be wrong. `filter` is not empty.
pub(crate) fn may_have(filter: &[u8], key: &[u8]) -> bool {
    bits(filter.len(), key).all(|bit| filter[bit / 8] & (1 << (bit % 8)) != 0)
}
