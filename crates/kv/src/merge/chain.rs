//! [`Chain`]: the versions that a reader meets of a key whose newest version is an operand.

use super::Merging;
use crate::entry::expiry_of;
use crate::key::Kind;
use basalt_fs::{Bytes, Error, Result};

/// The operands of one key from the newest down, and the value below them. Payloads are pinned, not
/// copied.
#[derive(Default)]
pub struct Chain {
    operands: Vec<Bytes>,
    base: Option<(Bytes, Option<u64>)>,
}

impl Chain {
    /// Takes the next older version of the key, at wall time `now_ms`. Returns true if it ends the
    /// chain, because no older version counts.
    pub fn take(&mut self, kind: Kind, value: impl FnOnce() -> Bytes, now_ms: u64) -> Result<bool> {
        match kind {
            Kind::Merge => {
                self.operands.push(value());
                return Ok(false);
            }
            Kind::Put => self.base = Some((value(), None)),
            Kind::PutTtl => {
                let value = value();
                let at = expiry_of(&value)?;
                if at > now_ms {
                    self.base = Some((value.slice(8..), Some(at)));
                }
            }
            Kind::Delete => {}
            other => {
                return Err(Error::unsupported(format!(
                    "entry kind {other:?} is reserved for a later version"
                )));
            }
        }
        Ok(true)
    }

    /// Returns the expiry of the value below the operands, if it has one.
    pub fn expire_at_ms(&self) -> Option<u64> {
        self.base.as_ref().and_then(|(_, at)| *at)
    }

    /// Returns the merged value, and the expiry of the value below the operands, if it has one.
    pub fn merge(self, merging: &Merging, key: &[u8]) -> Result<(Bytes, Option<u64>)> {
        let operands: Vec<&[u8]> = self.operands.iter().rev().map(|o| &o[..]).collect();
        let existing = self.base.as_ref().map(|(value, _)| &value[..]);
        let value = merging.full(key, existing, &operands)?;
        Ok((Bytes::from(value), self.base.and_then(|(_, at)| at)))
    }
}
