//! Mappings from log sequence numbers (LSNs) to the locations of their records, delta-encoded.
//!
//! A mapping is a chunk of the index in memory (L0) and the content of a MetaFlush record on disk
//! (a page of L1): the same bytes in both. An entry takes 1 byte if its LSN and its record follow
//! those before it and its length is the same. It takes 4 to 6 bytes if many logs share the
//! datalog. A reader decodes a mapping from its beginning.
//!
//! An entry is a tag and up to four varints:
//!
//! | tag | meaning if set | varint if not set |
//! |---|---|---|
//! | bit 0 | the LSN is the one before, plus 1 | LSN - LSN before - 2; in the first entry the LSN |
//! | bit 1 | the same file | file number - file number before, zigzag |
//! | bit 2 | the same length | length |
//! | bits 3 to 7 | distance of the offset, see `offset_code` | |

use basalt_kv::encoding::{get_varint64, put_varint, unzigzag, zigzag};

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

/// Entries of an index in rising order of their LSNs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Mapping {
    bytes: Vec<u8>,
    count: u32,
    /// The last entry, from which the next one is encoded. The fields stand alone because a
    /// location has padding, and a log has a few mappings.
    last_len: u32,
    last_lsn: u64,
    last_file: u64,
    last_offset: u64,
}

impl Mapping {
    /// Returns a mapping of entries in strictly rising order.
    pub fn of(entries: impl IntoIterator<Item = (u64, Location)>) -> Mapping {
        let mut mapping = Mapping::default();
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
        first.expect("an empty mapping has no first LSN").0
    }

    /// Returns the largest LSN. Panics if there is no entry.
    pub fn last(&self) -> u64 {
        assert!(self.count > 0, "an empty mapping has no last LSN");
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
        // A vector doubles its memory, and most logs have few entries.
        if self.bytes.capacity() - self.bytes.len() < LARGEST_ENTRY {
            self.bytes
                .reserve_exact(LARGEST_ENTRY + self.bytes.len() / 4);
        }
        let before = (self.count > 0).then(|| self.last_entry());
        encode(&mut self.bytes, before, lsn, location);
        self.count += 1;
        self.set_last(lsn, location);
    }

    /// Appends the entries of `next`. Its LSNs must be above all LSNs of this mapping. Costs a copy
    /// of the bytes of `next`: only the encoding of its first entry depends on the entry before.
    pub fn append(&mut self, next: &Mapping) {
        let mut entries = next.iter();
        if let Some((lsn, location)) = entries.next() {
            self.push(lsn, location);
            self.bytes.extend_from_slice(entries.left);
            self.count += next.count - 1;
            let (lsn, location) = next.last_entry();
            self.set_last(lsn, location);
        }
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
    pub fn iter(&self) -> Entries<'_> {
        Entries {
            left: &self.bytes,
            before: None,
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
    pub fn decode(bytes: &[u8], count: u32) -> Option<Mapping> {
        let (mut before, mut at) = (None, 0);
        for _ in 0..count {
            before = Some(decode(bytes, &mut at, before)?);
        }
        let (lsn, location) = before?;
        let mut mapping = Mapping {
            bytes: bytes.to_vec(),
            count,
            ..Mapping::default()
        };
        mapping.set_last(lsn, location);
        (at == bytes.len()).then_some(mapping)
    }
}

/// Most bytes of an entry.
const LARGEST_ENTRY: usize = 1 + 10 + 10 + 10 + 5;

/// Iterator over the entries of a mapping.
#[derive(Clone)]
pub(crate) struct Entries<'a> {
    left: &'a [u8],
    before: Option<(u64, Location)>,
}

impl Entries<'_> {
    /// Returns true if no entry is left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Skips all entries of a mapping if they are the next ones, and returns true if so. Costs a
    /// comparison of bytes: behind equal entries, equal bytes are equal entries.
    pub fn skip_all_of(&mut self, next: &Mapping) -> bool {
        let (mut at, mut of) = (self.clone(), next.iter());
        if at.next() != of.next() || !at.left.starts_with(of.left) {
            return false;
        }
        self.left = &at.left[of.left.len()..];
        self.before = Some(next.last_entry());
        true
    }
}

impl Iterator for Entries<'_> {
    type Item = (u64, Location);

    fn next(&mut self) -> Option<(u64, Location)> {
        if self.left.is_empty() {
            return None;
        }
        let mut at = 0;
        let entry = decode(self.left, &mut at, self.before).expect("a mapping was checked");
        self.left = &self.left[at..];
        self.before = Some(entry);
        Some(entry)
    }
}

/// Returns the code of an offset in a tag, and the number that follows for [`FAR`]. `end` is the
/// end of the record before, or 0 in another file.
///
/// The number is a distance in units of [`ALIGN`] from the aligned `end` if the offset is aligned,
/// and a distance in bytes from `end` otherwise; its lowest bit tells which.
fn offset_code(end: u64, offset: u64) -> (u8, u64) {
    if offset == end {
        return (CONTIGUOUS, 0);
    }
    if offset.is_multiple_of(ALIGN) {
        let from = end.next_multiple_of(ALIGN);
        let units = (offset as i64 - from as i64) / ALIGN as i64;
        return match u8::try_from(units) {
            Ok(code) if code < FAR => (code, 0),
            _ => (FAR, zigzag(units) << 1),
        };
    }
    (FAR, zigzag(offset as i64 - end as i64) << 1 | 1)
}

fn encode(out: &mut Vec<u8>, before: Option<(u64, Location)>, lsn: u64, location: Location) {
    let (lsn_before, of) = before.unwrap_or_default();
    let same_file = of.file == location.file;
    let end = match same_file {
        true => of.offset + u64::from(of.len),
        false => 0,
    };
    let (code, far) = offset_code(end, location.offset);
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
        put_varint(out, before.map_or(lsn, |_| lsn - lsn_before - 2));
    }
    if !same_file {
        put_varint(out, zigzag(location.file as i64 - of.file as i64));
    }
    if code == FAR {
        put_varint(out, far);
    }
    if !same_len {
        put_varint(out, u64::from(location.len));
    }
}

/// Decodes an entry. Returns `None` for bytes that [`encode`] does not make.
fn decode(
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
        code => aligned.checked_add(u64::from(code) * ALIGN)?,
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
