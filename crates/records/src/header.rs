//! The header of a file of records: 128 bytes, written twice into the first write unit.
//!
//! Both copies lie in the first 512 bytes, which reach the device whole or not at all, so a power
//! cut never tears the header. The second copy protects against decay. `docs/format/log.md`
//! specifies each byte.

use super::{FileHeader, FileKind, PreviousLog};
use basalt_fs::{Error, Result};
use basalt_kv::encoding::{u32_at, u64_at};
use std::path::Path;

/// The first bytes of every file of records.
pub(super) const MAGIC: [u8; 8] = *b"BSLTREC1";
/// Bytes of one copy.
pub(super) const HEADER_LEN: usize = 128;
/// Offsets of the two copies.
pub(super) const COPIES: [usize; 2] = [0, 256];
/// The smallest and the largest write unit, in bytes.
pub(super) const UNITS: std::ops::RangeInclusive<u32> = 512..=LARGEST_UNIT;
/// The largest write unit of a file of records, in bytes: a block of most filesystems.
pub const LARGEST_UNIT: u32 = 4096;

const _: () = assert!(COPIES[1] + HEADER_LEN <= *UNITS.start() as usize);

/// Returns true if a file's first bytes, up to a write unit, have a header's magic in one of its
/// places. The header need not verify.
pub fn begins_one(first: &[u8]) -> bool {
    let magic = |at: usize| first.get(at..at + MAGIC.len());
    COPIES.iter().any(|at| magic(*at) == Some(&MAGIC[..]))
}

const FLAG_PREVIOUS: u8 = 1;

/// Incompatible feature of a log: separated values in it may be compressed.
pub const COMPRESSED_VALUES: u32 = 1;

/// The content of a file's first unit.
#[derive(Debug)]
pub(super) enum Slot {
    /// A header.
    Header(FileHeader),
    /// Bytes that were never a header.
    Absent,
    /// A header's magic, with a wrong checksum in every copy.
    Damaged(String),
}

/// Returns the header slot: one write unit.
pub(super) fn encode(h: &FileHeader) -> Vec<u8> {
    assert!(
        h.write_unit.is_power_of_two() && UNITS.contains(&h.write_unit),
        "write unit of {} bytes",
        h.write_unit
    );
    let mut b = [0u8; HEADER_LEN];
    b[..8].copy_from_slice(&MAGIC);
    b[12] = h.kind as u8;
    b[13] = if h.previous.is_some() {
        FLAG_PREVIOUS
    } else {
        0
    };
    b[16..20].copy_from_slice(&h.write_unit.to_le_bytes());
    b[20..24].copy_from_slice(&h.compatible.to_le_bytes());
    b[24..28].copy_from_slice(&h.incompatible.to_le_bytes());
    b[32..48].copy_from_slice(&h.file_id.to_le_bytes());
    b[48..64].copy_from_slice(&h.store_id.to_le_bytes());
    b[64..72].copy_from_slice(&h.number.to_le_bytes());
    if let Some(p) = &h.previous {
        b[72..80].copy_from_slice(&p.number.to_le_bytes());
        b[80..96].copy_from_slice(&p.file_id.to_le_bytes());
        b[96..104].copy_from_slice(&p.end.to_le_bytes());
    }
    let crc = crc32c::crc32c(&b[12..]);
    b[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut slot = vec![0; h.write_unit as usize];
    for at in COPIES {
        slot[at..at + HEADER_LEN].copy_from_slice(&b);
    }
    slot
}

/// Decodes a header slot. Returns an error for a sound header that this build must not read.
pub(super) fn decode(slot: &[u8], path: &Path) -> Result<Slot> {
    let mut damage = None;
    for at in COPIES {
        let Some(b) = slot.get(at..at + HEADER_LEN) else {
            break;
        };
        if b[..8] != MAGIC {
            continue;
        }
        let expected = u32_at(b, 8);
        let found = crc32c::crc32c(&b[12..]);
        if expected == found {
            return parse(b, at, path).map(Slot::Header);
        }
        damage.get_or_insert_with(|| {
            format!("file header with checksum {found:08x}, expected {expected:08x}")
        });
    }
    Ok(damage.map_or(Slot::Absent, Slot::Damaged))
}

/// Returns the write unit, and each place in it that differs from what was written, as offset and
/// description: a copy that differs from the good one, or other bytes that are not zero. Of a file
/// that ends inside of the unit, only the end is named. Returns `None` if no copy is good, or none
/// that this build may read.
pub(super) fn faults(slot: &[u8], path: &Path) -> Option<(u64, Vec<(u64, String)>)> {
    let Ok(Slot::Header(h)) = decode(slot, path) else {
        return None;
    };
    let sound = |b: &[u8]| b[..8] == MAGIC && u32_at(b, 8) == crc32c::crc32c(&b[12..]);
    let copies = COPIES.map(|at| slot.get(at..at + HEADER_LEN));
    let good = copies.into_iter().flatten().find(|b| sound(b))?;
    let mut expected = vec![0; h.write_unit as usize];
    for at in COPIES {
        expected[at..at + HEADER_LEN].copy_from_slice(good);
    }
    if slot.len() < expected.len() {
        let what = format!(
            "the file is cut at byte {}, inside of its header of {} bytes",
            slot.len(),
            expected.len()
        );
        return Some((u64::from(h.write_unit), vec![(slot.len() as u64, what)]));
    }
    let mut out = Vec::new();
    let mut at = 0;
    while at < expected.len() {
        let copy = COPIES
            .iter()
            .find(|c| (**c..**c + HEADER_LEN).contains(&at));
        let end = match copy {
            Some(c) => c + HEADER_LEN,
            None => COPIES
                .into_iter()
                .find(|c| *c > at)
                .unwrap_or(expected.len()),
        };
        let differs = |i: &usize| slot[*i] != expected[*i];
        if let Some(i) = (at..end).find(differs) {
            out.push(match copy {
                Some(c) => (
                    *c as u64,
                    format!(
                        "one of the two copies of the file's header is damaged, at byte {i}; the other one serves"
                    ),
                ),
                None => (
                    i as u64,
                    "a byte in the zeros around the file's header; no entry is touched by it".into(),
                ),
            });
        }
        at = end;
    }
    Some((u64::from(h.write_unit), out))
}

fn parse(b: &[u8], at: usize, path: &Path) -> Result<FileHeader> {
    let at = at as u64;
    let known = match b[12] == FileKind::Log as u8 {
        true => COMPRESSED_VALUES,
        false => 0,
    };
    let unknown = u32_at(b, 24) & !known;
    if unknown != 0 {
        return Err(Error::unsupported(format!(
            "the file uses incompatible features {unknown:#x} of a later version; open the store with that version"
        ))
        .at(path, at));
    }
    let kind = match b[12] {
        1 => FileKind::Log,
        2 => FileKind::Manifest,
        n => {
            return Err(Error::unsupported(format!(
                "file of records of kind {n}, which a later version writes"
            ))
            .at(path, at));
        }
    };
    let write_unit = u32_at(b, 16);
    if !write_unit.is_power_of_two() || !UNITS.contains(&write_unit) {
        return Err(Error::corruption(
            path,
            at,
            format!("write unit of {write_unit} bytes, expected a power of two from 512 to 4096"),
        ));
    }
    Ok(FileHeader {
        kind,
        file_id: u128_at(b, 32),
        store_id: u128_at(b, 48),
        number: u64_at(b, 64),
        write_unit,
        compatible: u32_at(b, 20),
        incompatible: u32_at(b, 24),
        previous: (b[13] & FLAG_PREVIOUS != 0).then(|| PreviousLog {
            number: u64_at(b, 72),
            file_id: u128_at(b, 80),
            end: u64_at(b, 96),
        }),
    })
}

fn u128_at(b: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(b[at..at + 16].try_into().expect("16 bytes"))
}
