//! References: what an entry of kind `BlobRef` has in a table in place of a separated value.
//!
//! A reference is a varint: the blob file number times two, plus one if the value expires. Then 8
//! bytes of expiry follow (little-endian ms since 1970, as in front of the value itself). The value
//! is found by family, key and sequence number of the entry, in that file, or in the files that the
//! number means now. If the record was prepared before its entry got its number, the record has
//! another sequence number. Then a byte 0 and that number as a varint come first.

use super::Name;
use crate::encoding::{get_varint, put_varint};
use crate::key::{Kind, SeqNo};
use crate::limits::MAX_FILE_NUMBER;
use basalt_fs::{Error, ErrorKind, Result};

/// A reference's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Number of the blob file that the value was in when the entry was written.
    pub number: u64,
    /// Time at which the value expires, in ms since 1970.
    pub expire_at_ms: Option<u64>,
    /// Sequence number of the record, if it is not the entry's.
    pub seq: Option<SeqNo>,
}

impl Reference {
    /// Returns the name of the record, for an entry with this name.
    #[inline]
    pub fn record<'k>(&self, entry: &Name<'k>) -> Name<'k> {
        Name {
            seq: self.seq.unwrap_or(entry.seq),
            ..*entry
        }
    }

    /// Appends the encoded reference.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Some(seq) = self.seq {
            out.push(0);
            put_varint(out, seq);
        }
        put_varint(
            out,
            self.number << 1 | u64::from(self.expire_at_ms.is_some()),
        );
        if let Some(at) = self.expire_at_ms {
            out.extend_from_slice(&at.to_le_bytes());
        }
    }

    /// Decodes a reference.
    ///
    /// Errors: `Corruption` for bytes that [`Reference::encode`] does not write.
    #[inline]
    pub fn decode(payload: &[u8]) -> Result<Reference> {
        let bad = || {
            Error::new(
                ErrorKind::Corruption,
                format!(
                    "reference to a blob file of {} bytes: {payload:02x?}",
                    payload.len()
                ),
            )
        };
        let mut at = 0;
        let seq = match payload.first() {
            Some(0) => {
                at = 1;
                Some(get_varint(payload, &mut at, 56).ok_or_else(bad)?)
            }
            _ => None,
        };
        let word = get_varint(payload, &mut at, 63).ok_or_else(bad)?;
        let rest = &payload[at..];
        let expire_at_ms = match word & 1 {
            0 if rest.is_empty() => None,
            1 => Some(u64::from_le_bytes(rest.try_into().map_err(|_| bad())?)),
            _ => return Err(bad()),
        };
        let number = word >> 1;
        let reference = Reference {
            number,
            expire_at_ms,
            seq,
        };
        match (1..MAX_FILE_NUMBER).contains(&number) {
            true => Ok(reference),
            false => Err(bad()),
        }
    }

    /// Returns true if the value has expired at `now_ms`.
    #[inline]
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.expire_at_ms.is_some_and(|at| at <= now_ms)
    }

    /// Returns the kind of the entry if its value were in the tree.
    pub fn kind(&self) -> Kind {
        match self.expire_at_ms {
            None => Kind::Put,
            Some(_) => Kind::PutTtl,
        }
    }
}

#[cfg(test)]
mod tests;
