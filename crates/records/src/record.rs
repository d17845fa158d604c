//! The 40 bytes in front of each payload, and how they are bound to one life of one file.

use super::{RECORD_HEADER, RecordKind};
use basalt_kv::encoding::{u32_at, u64_at};

/// Flag of a log record whose batch has blob records.
pub(super) const SEPARATED: u8 = 1;
/// Flag of a log record in which some of these values are compressed. It is never set without the
/// other flag.
pub(super) const COMPRESSED: u8 = 2;

/// The identity of one life of a file's space, as record headers have it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    /// CRC-32C of the file id, from which every header checksum continues.
    seed: u32,
    /// Two bytes of the id, unhashed, which a search compares first.
    tag: u16,
}

/// A record header, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) crc: u32,
    pub(super) payload_crc: u32,
    pub(super) len: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) synced: u64,
    pub(super) first_seq: u64,
    pub(super) chain: u32,
    pub(super) count: u32,
}

impl Life {
    pub(super) fn new(file_id: u128) -> Life {
        Life {
            seed: crc32c::crc32c(&file_id.to_le_bytes()),
            tag: (file_id as u16).max(1),
        }
    }

    /// Returns the value from which the checksum of bytes at an offset continues.
    pub(super) fn place(&self, offset: u64) -> u32 {
        crc32c::crc32c_append(self.seed, &offset.to_le_bytes())
    }

    fn checksum(&self, offset: u64, header: &[u8]) -> u32 {
        crc32c::crc32c_append(self.place(offset), &header[4..RECORD_HEADER])
    }

    /// Writes a header for `offset` into the first bytes of `out`, and returns its checksum.
    pub(super) fn seal(&self, out: &mut [u8], offset: u64, head: &RecordHeader) -> u32 {
        debug_assert!(head.synced <= offset);
        out[4..8].copy_from_slice(&head.payload_crc.to_le_bytes());
        out[8..12].copy_from_slice(&head.len.to_le_bytes());
        out[12] = head.kind;
        out[13] = head.flags;
        out[14..16].copy_from_slice(&self.tag.to_le_bytes());
        out[16..24].copy_from_slice(&head.synced.to_le_bytes());
        out[24..32].copy_from_slice(&head.first_seq.to_le_bytes());
        out[32..36].copy_from_slice(&head.chain.to_le_bytes());
        out[36..40].copy_from_slice(&head.count.to_le_bytes());
        let crc = self.checksum(offset, out);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Returns the header in the first bytes of `b` (at least [`RECORD_HEADER`] of them), if it
    /// belongs to this life and this offset.
    pub(super) fn open(&self, b: &[u8], offset: u64) -> Option<RecordHeader> {
        if b[14..16] != self.tag.to_le_bytes() {
            return None;
        }
        let head = RecordHeader {
            crc: u32_at(b, 0),
            payload_crc: u32_at(b, 4),
            len: u32_at(b, 8),
            kind: b[12],
            flags: b[13],
            synced: u64_at(b, 16),
            first_seq: u64_at(b, 24),
            chain: u32_at(b, 32),
            count: u32_at(b, 36),
        };
        // A writer never knows of synced bytes past its own position. This check is cheaper than
        // the checksum, and independent of it.
        (head.synced <= offset && head.crc == self.checksum(offset, b)).then_some(head)
    }

    /// Calls `found` with the index of each place in `b`, at a multiple of 8, that may hold a
    /// header of this life, until it returns true. `b` begins at a multiple of 8 of the file.
    /// Places without room for a header in `b` are left out.
    pub(super) fn search(&self, b: &[u8], mut found: impl FnMut(usize) -> bool) -> bool {
        let Some(last) = b.len().checked_sub(RECORD_HEADER) else {
            return false;
        };
        // Bytes 8..16 of a header are length, kind, flags and tag. The top three bytes are known,
        // except for the flags.
        let want = u64::from(self.tag) << 8;
        for (i, word) in b[8..last + 16].chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            if word >> 40 & !u64::from(SEPARATED | COMPRESSED) == want && found(i * 8) {
                return true;
            }
        }
        false
    }
}

/// Returns the kind with this number.
pub(super) fn kind_of(n: u8) -> Option<RecordKind> {
    match n {
        1 => Some(RecordKind::Batch),
        2 => Some(RecordKind::Edit),
        3 => Some(RecordKind::Ingestion),
        4 => Some(RecordKind::Entries),
        5 => Some(RecordKind::LogOps),
        6 => Some(RecordKind::ReverseIndex),
        7 => Some(RecordKind::Checkpoint),
        8 => Some(RecordKind::LogNames),
        _ => None,
    }
}

/// Returns true for flags that this build reads.
pub(super) fn flags_are_known(kind: RecordKind, flags: u8) -> bool {
    match flags {
        0 => true,
        _ => flags & !COMPRESSED == SEPARATED && kind == RecordKind::Batch,
    }
}

/// Verifies a record's header that was read from `offset` of the file with this id, and returns the
/// bytes of the payload behind it.
///
/// Errors: a description of what is wrong with the bytes.
pub fn record_len(file_id: u128, offset: u64, header: &[u8]) -> Result<u32, String> {
    let head = match header.len() >= RECORD_HEADER {
        true => Life::new(file_id).open(header, offset),
        false => None,
    };
    let head = head.ok_or("expected a record, found bytes without a record's header")?;
    Ok(head.len)
}

/// Verifies a whole record that was read from `offset` of the file with this id, and returns its
/// kind. The payload lies behind the first [`RECORD_HEADER`] bytes. It is for records without
/// separated values whose place is known from elsewhere.
///
/// Errors: a description of what is wrong with the bytes.
pub fn open_record(file_id: u128, offset: u64, bytes: &[u8]) -> Result<RecordKind, String> {
    let head = match bytes.len() >= RECORD_HEADER {
        true => Life::new(file_id).open(bytes, offset),
        false => None,
    };
    let head = head.ok_or("expected a record, found bytes without a record's header")?;
    let payload = &bytes[RECORD_HEADER..];
    if head.len as usize != payload.len() {
        return Err(format!(
            "expected a record of {} bytes, found one of {}",
            payload.len(),
            head.len
        ));
    }
    let crc = crc32c::crc32c(payload);
    if crc != head.payload_crc {
        return Err(format!(
            "payload checksum is {crc:08x}, expected {:08x}",
            head.payload_crc
        ));
    }
    kind_of(head.kind).ok_or_else(|| format!("a record of unknown kind {}", head.kind))
}
