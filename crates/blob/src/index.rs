//! The index of a blob file: from the hash of a key and its sequence number to the record's place.
//! Lookups read the bytes of the pages directly.
//!
//! *Hash pages* divide the range of hashes into equal parts. Each page is a static function (as in
//! xor filters): the key chooses three cells, and their exclusive-or is the record's ordinal in the
//! file. *Position pages* hold the places of [`PLACES_A_PAGE`] records each, as Elias-Fano
//! sequences. Bytes: `docs/format/blob.md`; reasons: decision 0020.
//!
//! Promise: a key that was added is found, at its place. A key that was not added gets any place,
//! so readers check the record's own name. No bytes make a lookup panic.

use std::ops::Range;

/// Target size of a hash page, in bytes.
const PAGE_BYTES: usize = 4096;
/// Records whose places one position page has.
pub const PLACES_A_PAGE: usize = 1024;
/// Seeds that are tried for a page: one in two or three has cells for all keys. After the last one,
/// the keys without cells are listed.
const SEEDS: u8 = 64;

/// The result of reading a page. The error describes bytes that no builder writes.
pub type PageResult<T> = Result<T, &'static str>;

const H_THIRD: usize = 0;
const H_TWINS: usize = 4;
const H_WIDTH: usize = 8;
const H_SEED: usize = 9;
const H_LEN: usize = 12;
/// Bytes of a twin, a key whose cells do not give its ordinal: hash (8), ordinal (4).
const TWIN_LEN: usize = 12;

const P_BASE: usize = 0;
const P_COUNT: usize = 8;
const P_LOW: usize = 12;
const P_PAIRS: usize = 13;
const P_LEN: usize = 16;
/// The most low bits of a value: they are read with their neighbours from one word of 64 bits.
const MAX_LOW: u32 = 56;

/// The records of an index to be built. The builder needs 24 bytes of memory a record.
#[derive(Default)]
pub struct IndexBuilder {
    hashes: Vec<u64>,
    places: Vec<Range<u64>>,
    /// True if some record does not begin where the one before it ends.
    gaps: bool,
}

/// The pages of an index.
#[derive(Debug, PartialEq, Eq)]
pub struct IndexPages {
    /// Hash pages, in the order of [`page_of`].
    pub hashes: Vec<Vec<u8>>,
    /// Position pages of [`PLACES_A_PAGE`] records each.
    pub places: Vec<Vec<u8>>,
}

impl IndexBuilder {
    /// Adds the next record of the file: the hash of its key and sequence number, and its place.
    /// Panics if places overlap or descend.
    pub fn add(&mut self, hash: u64, place: Range<u64>) {
        assert!(place.start < place.end, "a record has bytes");
        if let Some(last) = self.places.last() {
            assert!(last.end <= place.start, "records come in the file's order");
            self.gaps |= last.end != place.start;
        }
        self.hashes.push(hash);
        self.places.push(place);
    }

    /// Returns the number of records so far.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns true if no record was added.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Builds the pages.
    pub fn finish(self) -> IndexPages {
        let count = self.hashes.len();
        let width = (usize::BITS - count.saturating_sub(1).leading_zeros()) as usize;
        let bits = (width * 5).div_ceil(4).max(1);
        let pages = (count * bits).div_ceil((PAGE_BYTES - 64) * 8) as u64;
        let mut keys: Vec<(u64, u32)> = self.hashes.into_iter().zip(0..).collect();
        keys.sort_unstable();
        let mut rest = &keys[..];
        let hashes = (0..pages).map(|page| {
            let (own, others) =
                rest.split_at(rest.partition_point(|(hash, _)| page_of(*hash, pages) <= page));
            rest = others;
            hash_page(own, width as u32)
        });
        IndexPages {
            hashes: hashes.collect(),
            places: (self.places.chunks(PLACES_A_PAGE))
                .map(|of| position_page(of, self.gaps))
                .collect(),
        }
    }
}

/// Returns which of `pages` hash pages a hash belongs to.
#[inline]
pub fn page_of(hash: u64, pages: u64) -> u64 {
    ((hash >> 32) * pages) >> 32
}

/// Returns the ordinal that a hash page has for a hash, or any ordinal if the hash was not added.
#[inline]
pub fn ordinal(page: &[u8], hash: u64) -> PageResult<u32> {
    let (third, width) = cells_of(page)?;
    let cells = &page[H_LEN..];
    let mut found = 0;
    for cell in cells_for(hash, page[H_SEED], third) {
        found ^= bits_at(cells, cell as usize * width as usize, width);
    }
    Ok(found as u32)
}

/// Returns the ordinals of records with this hash that [`ordinal`] does not give. There are almost
/// never any.
pub fn twins(page: &[u8], hash: u64) -> PageResult<impl Iterator<Item = u32> + '_> {
    let (third, width) = cells_of(page)?;
    let list = &page[H_LEN + cell_bytes(third, width)..];
    Ok(list
        .chunks_exact(TWIN_LEN)
        .filter(move |twin| word_at(twin, 0) == hash)
        .map(|twin| word_at(twin, 8) as u32))
}

/// Returns the place of the `n`-th record of a position page.
#[inline]
pub fn place(page: &[u8], n: usize) -> PageResult<Range<u64>> {
    let list = Places::of(page)?;
    let first = if list.pairs { 2 * n } else { n };
    if first + 1 >= list.count {
        return Err("position page: fewer records than are asked for");
    }
    let bit = list.select(0, first).ok_or("position page: cut off")?;
    let start = list.value(bit, first)?;
    let bit = list.select(bit + 1, 0).ok_or("position page: cut off")?;
    let end = list.value(bit, first + 1)?;
    if start >= end {
        return Err("position page: a record ends before it begins");
    }
    Ok(start..end)
}

/// Returns all places of a position page, checked to be in order.
pub fn places(page: &[u8]) -> PageResult<Vec<Range<u64>>> {
    let list = Places::of(page)?;
    let mut values = Vec::with_capacity(list.count.min(2 * PLACES_A_PAGE));
    let mut bit = 0;
    for i in 0..list.count {
        bit = list.select(bit, 0).ok_or("position page: cut off")?;
        let value = list.value(bit, i)?;
        if values.last().is_some_and(|last| *last > value) {
            return Err("position page: places out of order");
        }
        values.push(value);
        bit += 1;
    }
    let pairs: Vec<Range<u64>> = if list.pairs {
        values.chunks_exact(2).map(|p| p[0]..p[1]).collect()
    } else {
        values.windows(2).map(|p| p[0]..p[1]).collect()
    };
    match pairs.iter().all(|p| p.start < p.end) {
        true => Ok(pairs),
        false => Err("position page: a record without bytes"),
    }
}

/// Returns the three cells of a key under a seed: one in each third.
#[inline]
fn cells_for(hash: u64, seed: u8, third: u32) -> [u32; 3] {
    let mut x = hash ^ u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^= x >> 33;
    let of = |bits: u64| (((bits & 0xffff_ffff) * u64::from(third)) >> 32) as u32;
    [
        of(x),
        third + of(x >> 32),
        2 * third + of(x.rotate_left(16)),
    ]
}

fn cell_bytes(third: u32, width: u32) -> usize {
    (3 * third as usize * width as usize).div_ceil(8)
}

/// Returns the cells in a third, and the bits of a cell, of a page whose lengths fit together.
#[inline]
fn cells_of(page: &[u8]) -> PageResult<(u32, u32)> {
    if page.len() < H_LEN {
        return Err("hash page: shorter than its head");
    }
    let third = word_at(page, H_THIRD) as u32;
    let width = u32::from(page[H_WIDTH]);
    let twins = (word_at(page, H_TWINS) as u32 as usize).min(page.len());
    if third == 0 || third > 1 << 24 || width > 32 {
        return Err("hash page: malformed cells");
    }
    match page.len() == H_LEN + cell_bytes(third, width) + twins * TWIN_LEN {
        true => Ok((third, width)),
        false => Err("hash page: its length is not that of its cells"),
    }
}

/// Builds a page over keys sorted by hash.
fn hash_page(keys: &[(u64, u32)], width: u32) -> Vec<u8> {
    let mut single: Vec<(u64, u32)> = Vec::with_capacity(keys.len());
    let mut twins: Vec<(u64, u32)> = Vec::new();
    for key in keys {
        match single.last() {
            Some(last) if last.0 == key.0 => twins.push(*key),
            _ => single.push(*key),
        }
    }
    let third = (single.len() * 41 / 100 + 11) as u32;
    let whole = (0..SEEDS)
        .map(|seed| (seed, solve(&single, seed, third)))
        .find(|(_, (_, left))| left.is_empty());
    let (seed, (cells, left)) = whole.unwrap_or_else(|| (0, solve(&single, 0, third)));
    twins.extend(left.into_iter().map(|k| single[k as usize]));
    let mut page = vec![0; H_LEN + cell_bytes(third, width) + twins.len() * TWIN_LEN];
    page[H_THIRD..H_THIRD + 4].copy_from_slice(&third.to_le_bytes());
    page[H_WIDTH] = width as u8;
    page[H_SEED] = seed;
    page[H_TWINS..H_WIDTH].copy_from_slice(&(twins.len() as u32).to_le_bytes());
    for (i, cell) in cells.into_iter().enumerate() {
        put_bits(
            &mut page[H_LEN..],
            i * width as usize,
            width,
            u64::from(cell),
        );
    }
    let at = H_LEN + cell_bytes(third, width);
    for ((hash, ordinal), out) in twins.iter().zip(page[at..].chunks_exact_mut(TWIN_LEN)) {
        out[..8].copy_from_slice(&hash.to_le_bytes());
        out[8..].copy_from_slice(&ordinal.to_le_bytes());
    }
    page
}

/// Returns cells that give each key its ordinal, and the keys for which this seed has none. The
/// function removes keys that use some cell alone, as long as there are any. It then sets the cells
/// in the opposite order.
fn solve(keys: &[(u64, u32)], seed: u8, third: u32) -> (Vec<u32>, Vec<u32>) {
    let cells = 3 * third as usize;
    // For each cell: how many keys still use it, and their exclusive-or, which is the key itself
    // once one is left.
    let mut users = vec![(0u32, 0u32); cells];
    for (k, (hash, _)) in keys.iter().enumerate() {
        for cell in cells_for(*hash, seed, third) {
            let user = &mut users[cell as usize];
            *user = (user.0 + 1, user.1 ^ k as u32);
        }
    }
    let mut alone: Vec<u32> = (0..cells as u32)
        .filter(|c| users[*c as usize].0 == 1)
        .collect();
    let mut order = Vec::with_capacity(keys.len());
    while let Some(cell) = alone.pop() {
        let (count, k) = users[cell as usize];
        if count != 1 {
            continue;
        }
        order.push((k, cell));
        for other in cells_for(keys[k as usize].0, seed, third) {
            let user = &mut users[other as usize];
            *user = (user.0 - 1, user.1 ^ k);
            if user.0 == 1 {
                alone.push(other);
            }
        }
    }
    let mut left: Vec<u32> = Vec::new();
    if order.len() < keys.len() {
        let mut taken = vec![false; keys.len()];
        order.iter().for_each(|(k, _)| taken[*k as usize] = true);
        left.extend((0..keys.len() as u32).filter(|k| !taken[*k as usize]));
    }
    let mut values = vec![0u32; cells];
    for (k, cell) in order.into_iter().rev() {
        let (hash, ordinal) = keys[k as usize];
        let others = cells_for(hash, seed, third).map(|c| values[c as usize]);
        // The key's own cell is 0 so far.
        values[cell as usize] = ordinal ^ others[0] ^ others[1] ^ others[2];
    }
    (values, left)
}

/// Builds a position page of at most [`PLACES_A_PAGE`] records.
fn position_page(of: &[Range<u64>], pairs: bool) -> Vec<u8> {
    let values: Vec<u64> = if pairs {
        of.iter().flat_map(|p| [p.start, p.end]).collect()
    } else {
        let last = of.last().expect("chunks are not empty").end;
        of.iter().map(|p| p.start).chain([last]).collect()
    };
    let (base, count) = (values[0], values.len());
    let range = values[count - 1] - base;
    let low = (range / count as u64)
        .checked_ilog2()
        .unwrap_or(0)
        .min(MAX_LOW);
    let low_bytes = (count * low as usize).div_ceil(8);
    let high_bits = (range >> low) as usize + count;
    let mut page = vec![0; P_LEN + low_bytes + high_bits.div_ceil(8)];
    page[P_BASE..P_BASE + 8].copy_from_slice(&base.to_le_bytes());
    page[P_COUNT..P_COUNT + 4].copy_from_slice(&(count as u32).to_le_bytes());
    page[P_LOW] = low as u8;
    page[P_PAIRS] = u8::from(pairs);
    let (lows, highs) = page[P_LEN..].split_at_mut(low_bytes);
    for (i, value) in values.iter().enumerate() {
        let v = value - base;
        put_bits(lows, i * low as usize, low, v & ((1 << low) - 1));
        let bit = (v >> low) as usize + i;
        highs[bit / 8] |= 1 << (bit % 8);
    }
    page
}

/// An Elias-Fano sequence in a position page.
struct Places<'a> {
    base: u64,
    count: usize,
    low: u32,
    /// True if a record has two values instead of one, and the sequence one more at the end.
    pairs: bool,
    lows: &'a [u8],
    highs: &'a [u8],
}

impl<'a> Places<'a> {
    #[inline]
    fn of(page: &'a [u8]) -> PageResult<Places<'a>> {
        if page.len() < P_LEN {
            return Err("position page: shorter than its head");
        }
        let count = word_at(page, P_COUNT) as u32 as usize;
        let low = u32::from(page[P_LOW]);
        if low > MAX_LOW || !(2..=2 * PLACES_A_PAGE).contains(&count) || page[P_PAIRS] > 1 {
            return Err("position page: malformed header");
        }
        let low_bytes = (count * low as usize).div_ceil(8);
        if page.len() < P_LEN + low_bytes {
            return Err("position page: shorter than its low bits");
        }
        let (lows, highs) = page[P_LEN..].split_at(low_bytes);
        Ok(Places {
            base: word_at(page, P_BASE),
            count,
            low,
            pairs: page[P_PAIRS] == 1,
            lows,
            highs,
        })
    }

    /// Returns the `n`-th set bit from bit `from` on, counted from 0.
    #[inline]
    fn select(&self, from: usize, mut n: usize) -> Option<usize> {
        let mut at = from / 64 * 8;
        let mut word = if at < self.highs.len() {
            word_at(self.highs, at) & (u64::MAX << (from % 64))
        } else {
            return None;
        };
        loop {
            let ones = word.count_ones() as usize;
            if n < ones {
                for _ in 0..n {
                    word &= word - 1;
                }
                return Some(at * 8 + word.trailing_zeros() as usize);
            }
            n -= ones;
            at += 8;
            if at >= self.highs.len() {
                return None;
            }
            word = word_at(self.highs, at);
        }
    }

    /// Returns the `i`-th value, whose bit is `bit`.
    #[inline]
    fn value(&self, bit: usize, i: usize) -> PageResult<u64> {
        let high = (bit - i) as u64;
        let low = bits_at(self.lows, i * self.low as usize, self.low);
        (high << self.low >> self.low == high)
            .then(|| self.base.checked_add(high << self.low | low))
            .flatten()
            .ok_or("position page: a place past all files")
    }
}

/// Returns eight bytes as a little-endian number, with zeros past the end.
#[inline]
fn word_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..at + 8) {
        Some(word) => u64::from_le_bytes(word.try_into().expect("8 bytes")),
        None => {
            let rest = bytes.get(at..).unwrap_or_default();
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(word)
        }
    }
}

/// Returns `width` bits from bit `at` on, at most 57.
#[inline]
fn bits_at(bytes: &[u8], at: usize, width: u32) -> u64 {
    word_at(bytes, at / 8) >> (at % 8) & ((1 << width) - 1)
}

/// Sets `width` bits from bit `at` on, at most 57. The bits must be 0 before.
fn put_bits(bytes: &mut [u8], at: usize, width: u32, value: u64) {
    let shifted = (value << (at % 8)).to_le_bytes();
    let used = (at % 8 + width as usize).div_ceil(8);
    for (byte, more) in bytes[at / 8..].iter_mut().zip(&shifted[..used]) {
        *byte |= more;
    }
}

#[cfg(test)]
mod tests;
