//! Internal keys: a user key followed by an 8-byte trailer, sequence number (56 bits) and kind (8
//! bits).
//!
//! Order: user keys ascending by the family's comparator. Within a user key the trailers are
//! descending, so that the newest version comes first. On disk the trailer is little-endian `seq <<
//! 8 | kind`.

use basalt_fs::{Error, Result};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A sequence number of 56 bits. Every operation of every batch takes the next one.
pub type SeqNo = u64;

/// The largest sequence number.
pub const MAX_SEQ: SeqNo = (1 << 56) - 1;

/// Sequence numbers of a store are below this limit, which is half of their range. A store that
/// takes ten million operations a second reaches it after a century. So a number from a disk that
/// is not below it is damage, and counting on from a valid number stays in the range.
pub const SEQ_LIMIT: SeqNo = 1 << 55;

/// Bytes of a trailer.
pub const TRAILER_LEN: usize = 8;

/// Kind of an entry. The numbers are persisted and never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// A point tombstone. It hides all older versions of the key.
    Delete = 0,
    /// A value.
    Put = 1,
    /// A value behind an 8-byte little-endian wall time, in ms since 1970, at which it expires.
    PutTtl = 2,
    /// Reserved: a tombstone for a key written once.
    SingleDelete = 3,
    /// A tombstone for a range of keys. The key is the first of the range, and the payload is the
    /// first key behind it.
    RangeDelete = 4,
    /// An operand for the family's merge operator.
    Merge = 5,
    /// A value in a blob file. The payload is a [`crate::separated::reference::Reference`]. A batch
    /// never has this kind.
    BlobRef = 6,
    /// Reserved: first phase of a two-phase commit.
    Prepare = 7,
    /// Reserved: second phase, commit.
    Commit = 8,
    /// Reserved: second phase, rollback.
    Rollback = 9,
}

/// The largest kind number. A seek trailer with it sorts before every entry of its sequence number.
pub const MAX_KIND: u8 = 0xff;

impl Kind {
    /// Returns the kind with this number, reserved ones included, if it exists.
    pub fn from_u8(n: u8) -> Option<Kind> {
        Some(match n {
            0 => Kind::Delete,
            1 => Kind::Put,
            2 => Kind::PutTtl,
            3 => Kind::SingleDelete,
            4 => Kind::RangeDelete,
            5 => Kind::Merge,
            6 => Kind::BlobRef,
            7 => Kind::Prepare,
            8 => Kind::Commit,
            9 => Kind::Rollback,
            _ => return None,
        })
    }
    /// Returns true for kinds that this version reads and writes. The others are refused with
    /// `Unsupported`.
    pub fn is_supported(self) -> bool {
        matches!(
            self,
            Kind::Delete
                | Kind::Put
                | Kind::PutTtl
                | Kind::RangeDelete
                | Kind::Merge
                | Kind::BlobRef
        )
    }
    /// Returns true for kinds that a write batch may have.
    pub fn is_operation(self) -> bool {
        self.is_supported() && self != Kind::BlobRef
    }
}

/// Bits of a trailer below the sequence number.
pub const SEQ_SHIFT: u32 = 8;

/// Returns the trailer of a sequence number and a kind.
pub fn pack_trailer(seq: SeqNo, kind: Kind) -> u64 {
    assert!(seq <= MAX_SEQ, "sequence number {seq} exceeds 56 bits");
    (seq << 8) | kind as u64
}

/// Returns the seek trailer, which sorts at or before every entry visible at `seq`.
pub fn seek_trailer(seq: SeqNo) -> u64 {
    (seq.min(MAX_SEQ) << 8) | u64::from(MAX_KIND)
}

/// Appends a user key and a trailer.
pub fn encode_internal_key(out: &mut Vec<u8>, user_key: &[u8], trailer: u64) {
    out.extend_from_slice(user_key);
    out.extend_from_slice(&trailer.to_le_bytes());
}

/// Returns an internal key as a fresh vector.
pub fn internal_key(user_key: &[u8], trailer: u64) -> Vec<u8> {
    let mut k = Vec::with_capacity(user_key.len() + TRAILER_LEN);
    encode_internal_key(&mut k, user_key, trailer);
    k
}

/// Splits an internal key that this process built or has checked with [`parse_internal_key`].
/// Panics if it is shorter than a trailer.
#[inline]
pub fn split_internal_key(key: &[u8]) -> (&[u8], u64) {
    let (user, trailer) = key.split_at(key.len() - TRAILER_LEN);
    (
        user,
        u64::from_le_bytes(trailer.try_into().expect("8 bytes")),
    )
}

/// Returns the user key of a checked internal key.
#[inline]
pub fn user_key(key: &[u8]) -> &[u8] {
    &key[..key.len() - TRAILER_LEN]
}

/// Returns the sequence number of a trailer.
#[inline]
pub fn trailer_seq(trailer: u64) -> SeqNo {
    trailer >> 8
}

/// Takes an internal key from disk apart, and checks its length and its kind.
pub fn parse_internal_key(key: &[u8]) -> Result<(&[u8], SeqNo, Kind)> {
    if key.len() < TRAILER_LEN {
        return Err(Error::new(
            basalt_fs::ErrorKind::Corruption,
            format!(
                "internal key of {} bytes, expected at least {TRAILER_LEN}",
                key.len()
            ),
        ));
    }
    let (user, trailer) = split_internal_key(key);
    let kind = Kind::from_u8(trailer as u8).ok_or_else(|| {
        Error::new(
            basalt_fs::ErrorKind::Corruption,
            format!("unknown entry kind {}", trailer as u8),
        )
    })?;
    if !kind.is_supported() {
        return Err(Error::unsupported(format!(
            "entry kind {kind:?} is reserved for a later version"
        )));
    }
    Ok((user, trailer_seq(trailer), kind))
}

/// Bytes of a key that a message shows.
const READABLE_BYTES: usize = 64;

/// Returns a user key for a message: quoted, with escapes, and cut behind 64 bytes.
pub fn readable_key(key: &[u8]) -> String {
    match key.split_at_checked(READABLE_BYTES) {
        Some((first, rest)) if !rest.is_empty() => {
            format!("\"{}...\" of {} bytes", first.escape_ascii(), key.len())
        }
        _ => format!("\"{}\"", key.escape_ascii()),
    }
}

/// An order of user keys. The manifest stores its name: a store opens only with the comparator it
/// was made with.
pub trait Comparator: Send + Sync {
    /// Returns a name that identifies the order for ever.
    fn name(&self) -> &str;
    /// Compares two keys in a total order. Keys that compare equal are the same key.
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering;
    /// Returns a short key `k` with `a <= k < b`, which keeps index keys small. The default is `a`
    /// itself.
    fn separator(&self, a: &[u8], b: &[u8]) -> Vec<u8> {
        let _ = b;
        a.to_vec()
    }
    /// Returns true if keys that compare equal are equal byte for byte. Filters and hash indexes
    /// are built only then.
    fn equality_is_bytewise(&self) -> bool {
        false
    }
}

/// The order of a family's keys: bytewise, which is compiled in, or a user's.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Cmp {
    /// The order of `memcmp`.
    #[default]
    Bytewise,
    /// A user's comparator.
    Custom(Arc<dyn Comparator>),
}

/// The persisted name of the bytewise order.
pub const BYTEWISE_NAME: &str = "basalt.bytewise";

impl Cmp {
    /// Returns the persisted name.
    pub fn name(&self) -> &str {
        match self {
            Cmp::Bytewise => BYTEWISE_NAME,
            Cmp::Custom(c) => c.name(),
        }
    }
    /// Compares user keys.
    #[inline]
    pub fn user(&self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Cmp::Bytewise => a.cmp(b),
            Cmp::Custom(c) => c.compare(a, b),
        }
    }
    /// Compares internal keys, which must be checked.
    #[inline]
    pub fn internal(&self, a: &[u8], b: &[u8]) -> Ordering {
        let (ua, ta) = split_internal_key(a);
        let (ub, tb) = split_internal_key(b);
        self.user(ua, ub).then_with(|| tb.cmp(&ta))
    }
    /// Returns true if keys that compare equal are equal byte for byte.
    pub fn equality_is_bytewise(&self) -> bool {
        match self {
            Cmp::Bytewise => true,
            Cmp::Custom(c) => c.equality_is_bytewise(),
        }
    }
    /// Returns a short user key `k` with `a <= k < b`.
    pub fn separator(&self, a: &[u8], b: &[u8]) -> Vec<u8> {
        match self {
            Cmp::Custom(c) => c.separator(a, b),
            Cmp::Bytewise => {
                let common = a.iter().zip(b).take_while(|(x, y)| x == y).count();
                if common < a.len().min(b.len()) && a[common] < 0xff && a[common] + 1 < b[common] {
                    let mut k = a[..=common].to_vec();
                    k[common] += 1;
                    k
                } else {
                    a.to_vec()
                }
            }
        }
    }
}

impl fmt::Debug for Cmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
