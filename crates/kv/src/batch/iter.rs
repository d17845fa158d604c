//! [`BatchIter`]: the operations of a batch, one after the other, as their callers added them.

use super::{Ops, WriteBatch};
use crate::codec::Compression;
use crate::entry::{expiry_len, expiry_of};
use crate::key::Kind;
use basalt_fs::Bytes;

/// One operation of a [`WriteBatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchOp<'a> {
    /// The id of the operation's family: [`crate::family::Family::id`] of the handle.
    pub family: u32,
    /// The kind of the operation: `Put`, `PutTtl`, `Delete`, `Merge` or `RangeDelete`.
    pub kind: Kind,
    /// The user key. For a `RangeDelete` the first key of the range.
    pub key: &'a [u8],
    /// The value, uncompressed and without its expiry. For a `Merge` the operand, for a
    /// `RangeDelete` the first key behind the range, for a `Delete` empty.
    pub value: &'a [u8],
    /// The wall time at which the value expires, in milliseconds since 1970. `None` for all kinds
    /// but `PutTtl`.
    pub expire_at_ms: Option<u64>,
}

/// An iterator over the operations of a [`WriteBatch`], in the order in which they were added. See
/// [`WriteBatch::iter`].
#[derive(Clone)]
pub struct BatchIter<'a> {
    ops: Ops<'a>,
    /// The uncompressed values of the compressed blob records that follow, in order.
    raw: std::slice::Iter<'a, Bytes>,
    /// Operations that follow.
    left: usize,
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = BatchOp<'a>;

    fn next(&mut self) -> Option<BatchOp<'a>> {
        let op = self.ops.next()?.expect("the batch encoded it itself");
        self.left -= 1;
        let payload = match op.codec {
            Compression::None => op.value,
            _ => (self.raw.next()).expect("a compressed value has its uncompressed form beside it"),
        };
        let expiry = expiry_len(op.kind);
        Some(BatchOp {
            family: op.family,
            kind: op.kind,
            key: op.key,
            value: &payload[expiry..],
            expire_at_ms: (expiry > 0)
                .then(|| expiry_of(payload).expect("the batch put it in front of the value")),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for BatchIter<'_> {}

impl WriteBatch {
    /// Returns an iterator over the operations, in the order in which they were added. Values are
    /// those that the callers gave, whether the batch stores them compressed or not. Nothing is
    /// copied or decompressed.
    pub fn iter(&self) -> BatchIter<'_> {
        BatchIter {
            ops: Ops::new(self.payload()),
            raw: self.raw.iter(),
            left: self.len(),
        }
    }
}

impl<'a> IntoIterator for &'a WriteBatch {
    type Item = BatchOp<'a>;
    type IntoIter = BatchIter<'a>;

    fn into_iter(self) -> BatchIter<'a> {
        self.iter()
    }
}
