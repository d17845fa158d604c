//! Entries: the value or tombstone that a key has at one sequence number.

use crate::key::{Kind, SeqNo};
use basalt_fs::{Bytes, Error, ErrorKind, Result};

/// The result of a lookup: the newest version of the key that the snapshot sees.
#[derive(Debug, Clone)]
pub struct FoundEntry {
    /// Its sequence number.
    pub seq: SeqNo,
    /// Kind of the entry.
    pub kind: Kind,
    /// The payload. It is pinned, not copied, and keeps the memory it lies in alive.
    pub value: Bytes,
}

impl FoundEntry {
    /// Returns the entry that decides over a key: its newest version, or a newer range tombstone.
    #[inline]
    pub fn newer(point: Option<FoundEntry>, deleted: Option<SeqNo>) -> Option<FoundEntry> {
        match deleted {
            Some(seq) if point.as_ref().is_none_or(|p| p.seq < seq) => Some(FoundEntry {
                seq,
                kind: Kind::Delete,
                value: Bytes::new(),
            }),
            _ => point,
        }
    }
}

/// Reads the expiry in front of a `PutTtl` payload, in ms since 1970. `Corruption` if the payload
/// is too short.
pub fn expiry_of(value: &[u8]) -> Result<u64> {
    match value.first_chunk::<8>() {
        Some(b) => Ok(u64::from_le_bytes(*b)),
        None => Err(Error::new(
            ErrorKind::Corruption,
            format!(
                "expected an expiry of 8 bytes before a value, found {} bytes in all",
                value.len()
            ),
        )),
    }
}

/// Returns the bytes of expiry in front of a value of this kind: 8 or 0.
pub fn expiry_len(kind: Kind) -> usize {
    if kind == Kind::PutTtl { 8 } else { 0 }
}
