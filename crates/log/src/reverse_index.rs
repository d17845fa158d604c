//! The reverse index of a file of the datalog: which log and LSN each entry is of (pageserver 5.3).
//!
//! It is written among the records, a segment for each [`SEGMENT`] entries, so that the writer's
//! memory stays small. The last segment ends the file and has the offsets of all others.
//!
//! A segment is the number of other segments and their offsets (0 except in the last one), then its
//! entries: log, LSN, offset minus end of the entry before, length. All numbers are varints; the
//! LSN is a zigzag distance from the last one of the segment.

use crate::mapping::Location;
use basalt_env::{MemoryKind, MemoryLedger, Reservation};
use basalt_kv::encoding::{get_varint64, put_varint, unzigzag, zigzag};

/// Entries of a segment.
pub(crate) const SEGMENT: usize = if cfg!(any(test, feature = "schedules")) {
    32
} else {
    4096
};

/// An entry of a file: its log, its LSN and its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReverseEntry {
    pub log: u64,
    pub lsn: u64,
    pub location: Location,
}

/// Builds the reverse index of a file while the file is written.
#[derive(Default)]
pub(crate) struct ReverseIndexBuilder {
    /// The entries of the next segment, encoded: some 7 bytes each.
    encoded: Vec<u8>,
    /// Number of entries in `encoded`.
    count: usize,
    /// LSN of the last one.
    lsn: i64,
    /// End of the last one's record.
    end: u64,
    segments: Vec<u64>,
    /// The builder's memory in the ledger.
    charge: Option<Reservation>,
}

impl ReverseIndexBuilder {
    /// Returns a builder whose memory the ledger counts.
    pub fn counted(ledger: &MemoryLedger) -> ReverseIndexBuilder {
        ReverseIndexBuilder {
            charge: Some(ledger.reserve(MemoryKind::Index, 0)),
            ..ReverseIndexBuilder::default()
        }
    }

    /// Adds entries, which lie behind all others.
    pub fn add_all(&mut self, entries: impl IntoIterator<Item = ReverseEntry>) {
        for entry in entries {
            let Location { offset, len, .. } = entry.location;
            let lsn = entry.lsn as i64;
            put_varint(&mut self.encoded, entry.log);
            put_varint(&mut self.encoded, zigzag(lsn.wrapping_sub(self.lsn)));
            put_varint(&mut self.encoded, offset - self.end);
            put_varint(&mut self.encoded, u64::from(len));
            self.lsn = lsn;
            self.end = offset + u64::from(len);
            self.count += 1;
        }
        self.note_memory();
    }

    /// Returns the bytes of memory beyond the struct.
    pub fn memory(&self) -> usize {
        self.encoded.capacity() + self.segments.capacity() * size_of::<u64>()
    }

    fn note_memory(&mut self) {
        let bytes = self.memory() as u64;
        if let Some(charge) = &mut self.charge {
            charge.resize(bytes);
        }
    }

    /// Returns true if a segment is due.
    pub fn is_full(&self) -> bool {
        self.count >= SEGMENT
    }

    /// Returns true if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.segments.is_empty()
    }

    /// Returns the bytes of the next segment, and forgets its entries.
    pub fn take_segment(&mut self, last: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let others: &[u64] = if last { &self.segments } else { &[] };
        put_varint(&mut out, others.len() as u64);
        others
            .iter()
            .for_each(|offset| put_varint(&mut out, *offset));
        out.append(&mut self.encoded);
        (self.count, self.lsn, self.end) = (0, 0, 0);
        out
    }

    /// Notes where a segment was written.
    pub fn note_segment(&mut self, offset: u64) {
        self.segments.push(offset);
        self.note_memory();
    }
}

/// Decodes a segment of the file with this number: the offsets of other segments, and the entries.
/// Returns `None` if the bytes are no segment.
pub(crate) fn decode(bytes: &[u8], file: u64) -> Option<(Vec<u64>, Vec<ReverseEntry>)> {
    let mut at = 0;
    let mut others = Vec::new();
    for _ in 0..get_varint64(bytes, &mut at)? {
        others.push(get_varint64(bytes, &mut at)?);
    }
    let (mut entries, mut lsn, mut end) = (Vec::new(), 0i64, 0u64);
    while at < bytes.len() {
        let log = get_varint64(bytes, &mut at)?;
        lsn = lsn.wrapping_add(unzigzag(get_varint64(bytes, &mut at)?));
        let offset = end.checked_add(get_varint64(bytes, &mut at)?)?;
        let len = u32::try_from(get_varint64(bytes, &mut at)?).ok()?;
        end = offset.checked_add(u64::from(len))?;
        entries.push(ReverseEntry {
            log,
            lsn: lsn as u64,
            location: Location { file, offset, len },
        });
    }
    Some((others, entries))
}

#[cfg(test)]
mod tests;
