//! The meaning of an entry to a reader at one time.

use crate::iter::{InternalIter, MergingIter};
use basalt_blob::Reference;
use basalt_fs::Result;
use basalt_kv::entry::expiry_of;
use basalt_kv::key::{Kind, parse_internal_key};

/// The meaning of an entry to a reader, range tombstones aside.
pub(super) struct EntryClass {
    /// True for a value that has not expired.
    pub(super) live: bool,
    /// The reference of a separated value.
    pub(super) reference: Option<Reference>,
    /// True for an operand.
    pub(super) merge: bool,
    /// Bytes of expiry before the value.
    pub(super) prefix: usize,
    /// Time at which the value expires, in milliseconds since 1970; `None` for never.
    pub(super) expire_at_ms: Option<u64>,
}

impl EntryClass {
    /// The class of a tombstone, and of a key without a visible version.
    pub(super) const ABSENT: EntryClass = EntryClass {
        live: false,
        reference: None,
        merge: false,
        prefix: 0,
        expire_at_ms: None,
    };
}

/// Returns the class of the cursor's entry at `now_ms`. Fails with `Corruption` or `Unsupported` if
/// the entry is not valid.
pub(super) fn classify(iter: &MergingIter, now_ms: u64) -> Result<EntryClass> {
    let (_, _, kind) = parse_internal_key(iter.key())?;
    Ok(match kind {
        Kind::Put => EntryClass {
            live: true,
            ..EntryClass::ABSENT
        },
        Kind::BlobRef => {
            let to = Reference::decode(iter.value())?;
            EntryClass {
                live: !to.is_over(now_ms),
                reference: Some(to),
                expire_at_ms: to.expire_at_ms,
                ..EntryClass::ABSENT
            }
        }
        Kind::PutTtl => {
            let at = expiry_of(iter.value())?;
            EntryClass {
                live: at > now_ms,
                prefix: 8,
                expire_at_ms: Some(at),
                ..EntryClass::ABSENT
            }
        }
        kind => EntryClass {
            merge: kind == Kind::Merge,
            ..EntryClass::ABSENT
        },
    })
}
