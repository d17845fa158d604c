//! Salvage of a damaged file of records: every record that verifies, wherever it is, and the holes
//! between them.
//!
//! A record's checksum covers the file's random id and the record's own offset. So bytes that
//! verify at an offset *are* the record that was written there in this life of the space. Neither
//! an earlier life nor a value that looks like a record can pass.

use super::record::{COMPRESSED, SEPARATED};
use super::record::{Life, RecordHeader, flags_are_known, kind_of};
use super::separated::verify;
use super::{RECORD_ALIGN, RECORD_HEADER, RecordKind, StoredRecord, entries};
use basalt_fs::{Bytes, Error, File, Result};
use std::ops::Range;
use std::path::Path;

/// Bytes of a read during the search.
const STEP: usize = 1 << 20;

/// A record whose header verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SalvagedRecord {
    /// Offset of the record.
    pub offset: u64,
    /// Offset of its end, padding included.
    pub end: u64,
    /// Kind of the record.
    pub kind: RecordKind,
    /// First sequence number of a batch; number of an edit.
    pub first_seq: u64,
    /// Number of operations.
    pub count: u32,
    /// Position up to which the file was known to be synced when the record was written.
    pub synced: u64,
    /// True if the payload verifies too. If false, exactly this record is lost.
    pub whole: bool,
    /// Checksum of its header, as the chain of the next record has it.
    pub checksum: u32,
    /// Checksum of the header of the record before it.
    pub chain: u32,
    /// True if its chain says that it was written right after the record found before it, so that
    /// no record is missing between the two.
    pub follows: bool,
    /// True if the header says that the batch has separated values.
    pub separated: bool,
    /// True if the header says that some of them are compressed.
    pub compressed: bool,
    payload_len: u32,
}

impl SalvagedRecord {
    /// Returns the offset of the payload's end, without padding.
    pub(super) fn payload_end(&self) -> u64 {
        self.offset + RECORD_HEADER as u64 + u64::from(self.payload_len)
    }
}

/// All record headers of a file that verify, in order.
#[derive(Debug, Clone, Default)]
pub struct Salvaged {
    /// The records.
    pub found: Vec<SalvagedRecord>,
    /// Offset below which all bytes were synced, as some record says.
    pub proven: u64,
}

/// The reason that messages give for a hole.
pub const NO_RECORD: &str = "no record verifies in these bytes, which were synced";

/// The reason that messages give for a broken record.
pub const BAD_PAYLOAD: &str = "the checksum of the payload is wrong";

/// A part of a file of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part<'a> {
    /// A record that verifies.
    Whole(&'a SalvagedRecord),
    /// A record whose header verifies and whose payload does not.
    Broken(&'a SalvagedRecord),
    /// Bytes in which no record verifies.
    Hole(Range<u64>),
}

impl Salvaged {
    /// Returns the parts of a file up to `limit`, whose first record is at `start`. Bytes before
    /// `synced` were synced, so missing records there are holes. Missing records behind `synced`
    /// are a torn tail, which ends the list as it ends a recovery.
    pub fn parts(&self, start: u64, limit: u64, synced: u64) -> Vec<Part<'_>> {
        let (mut parts, mut at) = (Vec::new(), start);
        for f in self.found.iter().take_while(|f| f.offset < limit) {
            // The first record may continue a record of another file.
            let follows = f.follows || (at == start && f.offset == start);
            if (!follows || !f.whole) && at >= synced {
                break;
            }
            if !follows {
                parts.push(Part::Hole(at..f.offset));
            }
            parts.push(match f.whole {
                true => Part::Whole(f),
                false => Part::Broken(f),
            });
            at = f.end;
        }
        if synced > at {
            parts.push(Part::Hole(at..synced));
        }
        parts
    }
}

/// Returns windows of a file, reading in large steps.
pub(super) struct Window<'a> {
    file: &'a dyn File,
    limit: u64,
    bytes: Bytes,
    start: u64,
}

impl<'a> Window<'a> {
    /// Returns a window that ends where the file's space does, or at `limit` before that.
    pub(super) fn new(file: &'a dyn File, limit: u64) -> Window<'a> {
        Window {
            file,
            limit: limit.min(file.allocated().max(file.len())),
            bytes: Bytes::new(),
            start: 0,
        }
    }

    /// Returns `len` bytes at `at`, or fewer at the end of the file's space.
    pub(super) fn at(&mut self, at: u64, len: usize) -> Result<Bytes> {
        let len = (self.limit.saturating_sub(at)).min(len as u64) as usize;
        let have = self.start + self.bytes.len() as u64;
        if at < self.start || at + len as u64 > have {
            let n = self.limit.saturating_sub(at).min(STEP.max(len) as u64) as usize;
            self.bytes = Bytes::new();
            self.bytes = self.file.read(at, n)?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        let to = (from + len).min(self.bytes.len());
        Ok(self.bytes.slice(from.min(to)..to))
    }

    /// Returns bytes at `at`: those that were read already if a header fits into them, or a step of
    /// the file. A search that asked for a whole step behind each record would read the file once a
    /// record.
    fn ahead(&mut self, at: u64) -> Result<Bytes> {
        let have = self.start + self.bytes.len() as u64;
        if at >= self.start && at + RECORD_HEADER as u64 <= have {
            return Ok(self.bytes.slice((at - self.start) as usize..));
        }
        self.at(at, STEP)
    }
}

/// Searches a file for the records of one life, up to `limit` or the end of its space.
///
/// Errors: `Unsupported` for a record of a later version.
pub fn scan(file: &dyn File, path: &Path, file_id: u128, limit: u64) -> Result<Salvaged> {
    let life = Life::new(file_id);
    let mut window = Window::new(file, limit);
    let limit = window.limit;
    let mut out = Salvaged::default();
    let mut before = None;
    let mut at = 0;
    while at + RECORD_HEADER as u64 <= limit {
        let Some(head) = search(&mut window, life, &mut at)? else {
            break;
        };
        let Some(kind) = kind_of(head.kind).filter(|k| flags_are_known(*k, head.flags)) else {
            return Err(Error::unsupported(format!(
                "record of kind {} with flags {:#04x}, which a later version writes; use that version",
                head.kind, head.flags
            ))
            .at(path, at));
        };
        let payload_at = at + RECORD_HEADER as u64;
        let end = payload_at + u64::from(head.len).next_multiple_of(RECORD_ALIGN as u64);
        let inside = payload_at + u64::from(head.len) <= limit;
        let payload = if inside {
            window.at(payload_at, head.len as usize)?
        } else {
            Bytes::new()
        };
        out.proven = out.proven.max(head.synced);
        out.found.push(SalvagedRecord {
            offset: at,
            end,
            kind,
            first_seq: head.first_seq,
            count: head.count,
            synced: head.synced,
            whole: inside
                && payload.len() == head.len as usize
                && fits(file_id, &head, &payload, payload_at),
            separated: head.flags & SEPARATED != 0,
            compressed: head.flags & COMPRESSED != 0,
            checksum: head.crc,
            chain: head.chain,
            follows: before.map_or(head.chain == 0, |crc| crc == head.chain),
            payload_len: head.len,
        });
        before = Some(head.crc);
        // A record that is not whole may have a wrong length, so the search continues right behind
        // its header.
        at = if out.found.last().is_some_and(|f| f.whole) {
            end
        } else {
            payload_at
        };
    }
    Ok(out)
}

/// Returns true if a payload has the right checksums.
fn fits(file_id: u128, head: &RecordHeader, payload: &[u8], at: u64) -> bool {
    match head.flags & SEPARATED {
        SEPARATED => verify(file_id, payload, at, head.first_seq, head.payload_crc),
        _ if head.kind == RecordKind::Entries as u8 => {
            entries::verify(Life::new(file_id), payload, at, head.payload_crc)
        }
        _ => crc32c::crc32c(payload) == head.payload_crc,
    }
}

/// Moves `at` to the next header of this life.
fn search(window: &mut Window<'_>, life: Life, at: &mut u64) -> Result<Option<RecordHeader>> {
    while *at + RECORD_HEADER as u64 <= window.limit {
        let b = window.ahead(*at)?;
        if b.len() < RECORD_HEADER {
            return Ok(None);
        }
        let mut hit = None;
        life.search(&b, |i| {
            hit = life.open(&b[i..], *at + i as u64).map(|h| (i, h));
            hit.is_some()
        });
        if let Some((i, head)) = hit {
            *at += i as u64;
            return Ok(Some(head));
        }
        *at += ((b.len() - RECORD_HEADER) / RECORD_ALIGN * RECORD_ALIGN + RECORD_ALIGN) as u64;
    }
    Ok(None)
}

/// Returns the offset behind the file's last byte that is not zero, at least `from`. Reads all of
/// the file's space behind `from`.
pub fn last_nonzero(file: &dyn File, from: u64) -> Result<u64> {
    let space = file.allocated().max(file.len());
    let (mut at, mut last) = (from, from);
    while at < space {
        let bytes = file.read(at, (STEP as u64).min(space - at) as usize)?;
        if bytes.is_empty() {
            break;
        }
        if let Some(i) = bytes.iter().rposition(|b| *b != 0) {
            last = at + i as u64 + 1;
        }
        at += bytes.len() as u64;
    }
    Ok(last)
}

/// Names the bytes behind the last record of a file, which the next open cuts. Reused space has
/// bytes of an earlier life there, too, so the number of bytes is an upper bound.
pub fn describe_tail(file: &dyn File, path: &Path, from: u64) -> Result<String> {
    let bytes = last_nonzero(file, from)? - from;
    let unit = if bytes == 1 { "byte" } else { "bytes" };
    Ok(format!(
        "{} from offset {from}, at most {bytes} {unit}",
        path.display()
    ))
}

/// Reads a whole record again.
pub fn read(file: &dyn File, path: &Path, found: &SalvagedRecord) -> Result<StoredRecord> {
    assert!(found.whole, "only whole records are read");
    let at = found.offset + RECORD_HEADER as u64;
    let payload = file.read(at, found.payload_len as usize)?;
    if payload.len() != found.payload_len as usize {
        return Err(Error::corruption(
            path,
            at,
            "the record is shorter than when the search found it",
        ));
    }
    Ok(StoredRecord {
        offset: found.offset,
        kind: found.kind,
        first_seq: found.first_seq,
        count: found.count,
        separated: found.separated,
        compressed: found.compressed,
        payload,
    })
}
