//! Mappings from log sequence numbers (LSNs) to the locations of their records, delta-encoded.
//!
//! A [`Mapping`] is the content of a MetaFlush record on disk (a page of L1). A [`Chunk`] of the
//! index in memory (L0) has the same encoding, but shorter codes for distances below 5 MiB. They
//! save a tenth of the memory if a thousand logs share the datalog. An entry takes 1 byte if its
//! LSN and its record follow those before it and its length is the same. If many logs share the
//! datalog, an entry takes up to 6 bytes in a page, and up to 5 in a chunk. A reader decodes from
//! the beginning.
//!
//! An entry is a tag and up to four numbers. They are varints, except the two bytes of a distance
//! that [`Coding::DISTANCES`] describes.
//!
//! | tag | meaning if set | varint if not set |
//! |---|---|---|
//! | bit 0 | the LSN is the one before, plus 1 | LSN - LSN before - 2; in the first entry the LSN |
//! | bit 1 | the same file | file number - file number before, zigzag |
//! | bit 2 | the same length | length |
//! | bits 3 to 7 | distance of the offset, see `offset_code` | |

use basalt_kv::encoding::{get_varint64, unzigzag, varint, zigzag};
use smallvec::SmallVec;
use std::marker::PhantomData;

/// The place of a record: its bytes in a file of the datalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Location {
    /// Number of the file.
    pub file: u64,
    /// Offset of the record's first byte.
    pub offset: u64,
    /// Bytes of the record, its head included.
    pub len: u32,
}

const NEXT_LSN: u8 = 1;
const SAME_FILE: u8 = 2;
const SAME_LEN: u8 = 4;
/// Bits of the tag below the code of the offset.
const CODE_SHIFT: u32 = 3;
/// The record begins where the one before it ends: a later record of one batch.
const CONTIGUOUS: u8 = 31;
/// The distance follows as a varint.
const FAR: u8 = 30;
/// Batches begin at multiples of this many bytes of a file.
const ALIGN: u64 = 8;
/// Number of lower bits of a distance that follow the tag.
const LOW_BITS: u32 = u16::BITS;

/// How distances of offsets are encoded.
pub(crate) trait Coding {
    /// Number of codes that are distances themselves, in units of [`ALIGN`]. A code from this one
    /// up to [`FAR`] gives the upper bits of a distance, as code - `DISTANCES`. Two bytes with the
    /// lower 16 bits follow, the lowest first.
    const DISTANCES: u8;
}

/// The coding of pages on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OnDisk;

impl Coding for OnDisk {
    const DISTANCES: u8 = FAR;
}

/// The coding of L0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InMemory;

impl Coding for InMemory {
    // The ten codes left over cover distances below 5 MiB.
    const DISTANCES: u8 = 20;
}

/// The entries of a page on disk.
pub(crate) type Mapping = Entries<OnDisk>;
/// Entries of an index in memory.
pub(crate) type Chunk = Entries<InMemory>;

/// Entries of an index in rising order of their LSNs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Entries<C> {
    bytes: Vec<u8>,
    coding: PhantomData<C>,
    count: u32,
    /// The last entry, from which the next one is encoded. The fields stand alone because a
    /// location has padding, and a log has a few mappings.
    last_len: u32,
    last_lsn: u64,
    last_file: u64,
    last_offset: u64,
}

impl<C: Coding + Default> Entries<C> {
    /// Encodes entries in strictly rising order.
    pub fn of(entries: impl IntoIterator<Item = (u64, Location)>) -> Entries<C> {
        let mut mapping = Entries::default();
        for (lsn, location) in entries {
            mapping.push(lsn, location);
        }
        mapping.shrink();
        mapping
    }

    /// Returns the number of entries.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the smallest LSN. Panics if there is no entry.
    pub fn first(&self) -> u64 {
        let first = self.iter().next();
        first.expect("no entry, so no first LSN").0
    }

    /// Returns the largest LSN. Panics if there is no entry.
    pub fn last(&self) -> u64 {
        assert!(self.count > 0, "no entry, so no last LSN");
        self.last_lsn
    }

    /// Returns the encoded entries.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of memory beyond the struct.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns memory that no entry takes, for a mapping that grows no more.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Appends an entry. Its LSN must be above all others.
    pub fn push(&mut self, lsn: u64, location: Location) {
        debug_assert!(self.count == 0 || lsn > self.last_lsn, "LSNs rise");
        let before = (self.count > 0).then(|| self.last_entry());
        let entry = encode::<C>(before, lsn, location);
        // A vector doubles its memory, and most logs have few entries.
        if self.bytes.capacity() - self.bytes.len() < entry.len() {
            self.bytes
                .reserve_exact(entry.len() + 8 + self.bytes.len() / 16);
        }
        self.bytes.extend_from_slice(&entry);
        self.count += 1;
        self.set_last(lsn, location);
    }

    fn last_entry(&self) -> (u64, Location) {
        let location = Location {
            file: self.last_file,
            offset: self.last_offset,
            len: self.last_len,
        };
        (self.last_lsn, location)
    }

    fn set_last(&mut self, lsn: u64, location: Location) {
        self.last_lsn = lsn;
        self.last_file = location.file;
        self.last_offset = location.offset;
        self.last_len = location.len;
    }

    /// Returns the entries in the order of their LSNs.
    pub fn iter(&self) -> Iter<'_, C> {
        Iter {
            left: &self.bytes,
            before: None,
            coding: PhantomData,
        }
    }

    /// Returns the location of an LSN. Costs a walk over the entries before it.
    pub fn get(&self, lsn: u64) -> Option<Location> {
        if self.count == 0 || lsn > self.last_lsn {
            return None;
        }
        self.iter()
            .find(|(at, _)| *at >= lsn)
            .filter(|(at, _)| *at == lsn)
            .map(|(_, location)| location)
    }

    /// Decodes the bytes of `count` entries. Returns `None` if they are no mapping.
    pub fn decode(bytes: &[u8], count: u32) -> Option<Entries<C>> {
        let (mut before, mut at) = (None, 0);
        for _ in 0..count {
            before = Some(decode::<C>(bytes, &mut at, before)?);
        }
        let (lsn, location) = before?;
        let mut mapping = Entries {
            bytes: bytes.to_vec(),
            count,
            ..Entries::default()
        };
        mapping.set_last(lsn, location);
        (at == bytes.len()).then_some(mapping)
    }
}

/// Most bytes of an entry.
const LARGEST_ENTRY: usize = 1 + 10 + 10 + 10 + 5;

/// Iterator over encoded entries.
#[derive(Clone)]
pub(crate) struct Iter<'a, C> {
    left: &'a [u8],
    before: Option<(u64, Location)>,
    coding: PhantomData<C>,
}

impl<C: Coding> Iter<'_, C> {
    /// Returns true if no entry is left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }
}

impl<C: Coding> Iterator for Iter<'_, C> {
    type Item = (u64, Location);

    fn next(&mut self) -> Option<(u64, Location)> {
        if self.left.is_empty() {
            return None;
        }
        let mut at = 0;
        let entry = decode::<C>(self.left, &mut at, self.before).expect("a mapping was checked");
        self.left = &self.left[at..];
        self.before = Some(entry);
        Some(entry)
    }
}

/// Returns the code of an offset in a tag, and the number that follows. `end` is the end of the
/// record before, or 0 in another file.
///
/// The number of [`FAR`] is a distance in units of [`ALIGN`] from the aligned `end` if the offset
/// is aligned, and a distance in bytes from `end` otherwise; its lowest bit tells which.
fn offset_code<C: Coding>(end: u64, offset: u64) -> (u8, u64) {
    if offset == end {
        return (CONTIGUOUS, 0);
    }
    if offset.is_multiple_of(ALIGN) {
        let from = end.next_multiple_of(ALIGN);
        // A damaged file may have an end just below 2^63. The difference fits nevertheless.
        let units = (offset as i64).wrapping_sub(from as i64) / ALIGN as i64;
        let near = u64::try_from(units).unwrap_or(u64::MAX);
        return match near >> LOW_BITS {
            _ if near < u64::from(C::DISTANCES) => (near as u8, 0),
            high if high < u64::from(FAR - C::DISTANCES) => (C::DISTANCES + high as u8, near),
            _ => (FAR, zigzag(units) << 1),
        };
    }
    (FAR, zigzag(offset as i64 - end as i64) << 1 | 1)
}

/// The bytes of an entry.
type EncodedEntry = SmallVec<[u8; LARGEST_ENTRY]>;

fn encode<C: Coding>(
    before: Option<(u64, Location)>,
    lsn: u64,
    location: Location,
) -> EncodedEntry {
    let mut out = EncodedEntry::new();
    let (lsn_before, of) = before.unwrap_or_default();
    let same_file = of.file == location.file;
    let end = match same_file {
        true => of.offset + u64::from(of.len),
        false => 0,
    };
    let (code, number) = offset_code::<C>(end, location.offset);
    let next = before.is_some() && lsn == lsn_before + 1;
    let same_len = of.len == location.len;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    out.push(
        flag(next, NEXT_LSN)
            | flag(same_file, SAME_FILE)
            | flag(same_len, SAME_LEN)
            | code << CODE_SHIFT,
    );
    if !next {
        put_number(&mut out, before.map_or(lsn, |_| lsn - lsn_before - 2));
    }
    if !same_file {
        put_number(
            &mut out,
            zigzag((location.file as i64).wrapping_sub(of.file as i64)),
        );
    }
    match code {
        FAR => put_number(&mut out, number),
        CONTIGUOUS => {}
        code if code < C::DISTANCES => {}
        _ => out.extend_from_slice(&(number as u16).to_le_bytes()),
    }
    if !same_len {
        put_number(&mut out, u64::from(location.len));
    }
    out
}

fn put_number(out: &mut EncodedEntry, n: u64) {
    let (bytes, len) = varint(n);
    out.extend_from_slice(&bytes[..len]);
}

/// Decodes an entry. Returns `None` for bytes that [`encode`] does not make.
fn decode<C: Coding>(
    bytes: &[u8],
    at: &mut usize,
    before: Option<(u64, Location)>,
) -> Option<(u64, Location)> {
    let (lsn_before, of) = before.unwrap_or_default();
    let tag = *bytes.get(*at)?;
    *at += 1;
    let lsn = match (tag & NEXT_LSN != 0, before) {
        (true, None) => return None,
        (true, Some(_)) => lsn_before.checked_add(1)?,
        (false, None) => get_varint64(bytes, at)?,
        (false, Some(_)) => lsn_before.checked_add(get_varint64(bytes, at)?.checked_add(2)?)?,
    };
    let file = match tag & SAME_FILE {
        0 => of
            .file
            .checked_add_signed(unzigzag(get_varint64(bytes, at)?))?,
        _ => of.file,
    };
    let end = match file == of.file {
        true => of.offset.checked_add(u64::from(of.len))?,
        false => 0,
    };
    let aligned = end.checked_next_multiple_of(ALIGN)?;
    let offset = match tag >> CODE_SHIFT {
        CONTIGUOUS => end,
        FAR => {
            let far = get_varint64(bytes, at)?;
            let distance = unzigzag(far >> 1);
            match far & 1 {
                0 => aligned.checked_add_signed(distance.checked_mul(ALIGN as i64)?)?,
                _ => end.checked_add_signed(distance)?,
            }
        }
        code if code < C::DISTANCES => aligned.checked_add(u64::from(code) * ALIGN)?,
        code => {
            let low: [u8; 2] = bytes.get(*at..*at + 2)?.try_into().ok()?;
            *at += 2;
            let high = u64::from(code - C::DISTANCES) << LOW_BITS;
            aligned.checked_add((high | u64::from(u16::from_le_bytes(low))) * ALIGN)?
        }
    };
    let len = match tag & SAME_LEN {
        0 => u32::try_from(get_varint64(bytes, at)?).ok()?,
        _ => of.len,
    };
    // Sums of offsets and lengths do not overflow.
    let end = offset.checked_add(u64::from(len))?;
    i64::try_from(end).ok()?;
    Some((lsn, Location { file, offset, len }))
}

#[cfg(test)]
mod tests;
