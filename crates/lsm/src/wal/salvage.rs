//! Salvage of a damaged file of records: every record that verifies, wherever it is, and what the holes between them held.
//!
//! A record's checksum covers the file's random id and the record's own offset, so bytes that verify at an offset *are* the record
//! that was written there in this life of the space: neither an earlier life nor a value that looks like a record can pass.

use super::{RECORD_HEADER, Record, RecordKind};
use basalt_fs::{Bytes, Error, File, Result};
use std::path::Path;

/// Bytes of a read while searching.
const STEP: usize = 1 << 20;

/// A record header that verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where the record begins.
    pub offset: u64,
    /// Where it ends.
    pub end: u64,
    /// What it holds.
    pub kind: RecordKind,
    /// First sequence number of a batch; number of an edit.
    pub first_seq: u64,
    /// Operations.
    pub count: u32,
    /// Position up to which the file was known to be synced when the record was written.
    pub synced: u64,
    /// Its payload verifies too. When not, exactly this record is lost.
    pub whole: bool,
    /// Its chain says that it was written right after the record found before it: nothing is missing between the two.
    pub follows: bool,
    payload_len: u32,
}

/// All record headers of a file that verify, in order.
#[derive(Debug, Clone, Default)]
pub struct Salvaged {
    /// The records.
    pub found: Vec<Found>,
    /// Bytes before this were synced: some record says so.
    pub proven: u64,
}

/// The checksum of a record header at an offset of a file.
pub(super) fn header_checksum(file_id: u128, offset: u64, header: &[u8]) -> u32 {
    let mut c = crc32c::crc32c(&file_id.to_le_bytes());
    c = crc32c::crc32c_append(c, &offset.to_le_bytes());
    crc32c::crc32c_append(c, &header[4..RECORD_HEADER])
}

/// Hands out windows of a file, reading in large steps.
struct Window<'a> {
    file: &'a dyn File,
    limit: u64,
    bytes: Bytes,
    start: u64,
}

impl Window<'_> {
    /// `len` bytes at `at`, fewer at the end of the file's space.
    fn at(&mut self, at: u64, len: usize) -> Result<Bytes> {
        let len = (self.limit.saturating_sub(at)).min(len as u64) as usize;
        let have = self.start + self.bytes.len() as u64;
        if at < self.start || at + len as u64 > have {
            let n = (self.limit - at).min(STEP.max(len) as u64) as usize;
            self.bytes = Bytes::new();
            self.bytes = self.file.read(at, n)?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        let to = (from + len).min(self.bytes.len());
        Ok(self.bytes.slice(from.min(to)..to))
    }
}

/// Searches a file for the records of this life, up to `limit` or the end of its space.
pub fn scan(file: &dyn File, file_id: u128, limit: u64) -> Result<Salvaged> {
    let limit = limit.min(file.allocated().max(file.len()));
    let mut window = Window {
        file,
        limit,
        bytes: Bytes::new(),
        start: 0,
    };
    let mut out = Salvaged::default();
    let mut before = None;
    let mut at = 0;
    while at + RECORD_HEADER as u64 <= limit {
        let h = window.at(at, RECORD_HEADER)?;
        if h.len() < RECORD_HEADER {
            break;
        }
        let Some((mut found, payload_crc, crc, chain)) = header(&h, file_id, at) else {
            at += 1;
            continue;
        };
        let payload = if found.end <= limit {
            window.at(at + RECORD_HEADER as u64, found.payload_len as usize)?
        } else {
            Bytes::new()
        };
        found.whole = payload.len() == found.payload_len as usize
            && crc32c::crc32c(&payload) == payload_crc;
        found.follows = before.map_or(chain == 0, |b| b == chain);
        before = Some(crc);
        out.proven = out.proven.max(found.synced);
        // A length that runs past the file's space can only be a hostile one; look for the next record behind the header.
        at = if found.end <= limit {
            found.end
        } else {
            at + RECORD_HEADER as u64
        };
        out.found.push(found);
    }
    Ok(out)
}

fn header(h: &[u8], file_id: u128, offset: u64) -> Option<(Found, u32, u32, u32)> {
    let u32_at = |i: usize| u32::from_le_bytes(h[i..i + 4].try_into().expect("4 bytes"));
    let u64_at = |i: usize| u64::from_le_bytes(h[i..i + 8].try_into().expect("8 bytes"));
    let kind = match h[12] {
        1 => RecordKind::Batch,
        2 => RecordKind::Edit,
        _ => return None,
    };
    // Cheap before dear: most offsets fail here.
    if h[13] != 0 || h[14] != 0 || h[15] != 0 {
        return None;
    }
    let crc = u32_at(0);
    if header_checksum(file_id, offset, h) != crc {
        return None;
    }
    let payload_len = u32_at(8);
    let found = Found {
        offset,
        end: offset + RECORD_HEADER as u64 + u64::from(payload_len),
        kind,
        first_seq: u64_at(24),
        count: u32_at(36),
        synced: u64_at(16),
        whole: false,
        follows: false,
        payload_len,
    };
    Some((found, u32_at(4), crc, u32_at(32)))
}

/// Reads a whole record again.
pub fn read(file: &dyn File, path: &Path, found: &Found) -> Result<Record> {
    assert!(found.whole, "only whole records are read");
    let at = found.offset + RECORD_HEADER as u64;
    let payload = file.read(at, found.payload_len as usize)?;
    if payload.len() != found.payload_len as usize {
        return Err(Error::corruption(path, at, "record shorter than a moment ago"));
    }
    Ok(Record {
        offset: found.offset,
        kind: found.kind,
        first_seq: found.first_seq,
        count: found.count,
        payload,
    })
}
