//! [`WriteBatch`]: operations over any families of a store that take effect together or not at all.
//!
//! The batch's memory is the log record: [`RECORD_HEADER`] bytes that the commit leader fills in,
//! then the operations one after the other. An operation is: kind (1 byte), family id (varint), key
//! length (varint), key, and for kinds with a value its length (varint) and the value.
//!
//! A value of at least its family's `min_blob_size` bytes is stored as the byte 6 and a blob record
//! ([`crate::separated::record`]), and the value stays there. The record gets its sequence number
//! and header checksum when its place is known. Such a value is compressed here, once, if its
//! family says so. The payload for the memtables is kept beside the record until they have it.
//! `PutTtl` values start with 8 bytes of expiry. The value of a `RangeDelete` is the first key
//! behind the range.

mod iter;
mod savepoint;
#[cfg(test)]
mod tests;

pub use iter::{BatchIter, BatchOp};
use savepoint::Savepoint;

use crate::codec::{Compression, Effort};
use crate::encoding::{get_varint32, put_varint_aligned as put_varint, varint_len};
use crate::entry::expiry_len;
use crate::family::Family;
use crate::key::Kind;
use crate::separated::{Form, compressed, record};
use crate::{MAX_KEY_LEN, MAX_VALUE_LEN};
use basalt_fs::{AlignedBuf, Bytes, Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Bytes in front of a batch's operations. The log fills them with the header of its record.
pub const RECORD_HEADER: usize = 40;

/// Largest batch in bytes, all operations together. Values count with their lengths before
/// compression.
pub const MAX_BATCH_LEN: usize = 2 << 30;

/// A blob record in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Separated {
    /// Offset of the blob record in the payload.
    pub at: u32,
    /// Index of its operation in the batch: the distance of its sequence number from the batch's
    /// first.
    pub op: u32,
    /// True if its value is compressed.
    pub compressed: bool,
}

/// The parts of a batch that an engine commits.
pub struct BatchParts {
    /// [`RECORD_HEADER`] bytes for the log, then the operations. Empty if there are none.
    pub buf: AlignedBuf,
    /// Number of operations.
    pub count: u32,
    /// Blob records among the operations, in order.
    pub separated: SmallVec<[Separated; 1]>,
    /// For each blob record with a compressed value, in order: the uncompressed value with its
    /// expiry, for the memtable.
    pub raw: SmallVec<[Bytes; 1]>,
}

/// Operations that take effect together. Values are copied into the batch once. Large values are
/// not copied again on their way to readers.
#[derive(Clone)]
pub struct WriteBatch {
    buf: AlignedBuf,
    count: u32,
    /// Distinct (store, family) pairs of the operations. They are checked against the store when
    /// the batch is submitted.
    families: SmallVec<[(u64, u32); 2]>,
    /// The blob records of the batch.
    separated: SmallVec<[Separated; 1]>,
    /// For each blob record with a compressed value, in order: the payload for the memtable. The
    /// writer has it uncompressed here. An insertion that decompressed it would take longer than
    /// all its other work, while the next group waits.
    raw: SmallVec<[Bytes; 1]>,
    /// Bytes that compression saved: the bytes in `raw` beyond the bytes stored for them.
    saved_bytes: usize,
    /// The savepoints that were set and neither rolled back to nor popped, oldest first.
    savepoints: Vec<Savepoint>,
}

impl Default for WriteBatch {
    fn default() -> WriteBatch {
        WriteBatch::new()
    }
}

/// Checks the lengths of a key and a value.
///
/// Errors: `InvalidArgument` for a key or a value that is too long.
pub fn check_lens(key: usize, value: usize) -> Result<()> {
    for (what, len, most) in [("key", key, MAX_KEY_LEN), ("value", value, MAX_VALUE_LEN)] {
        if len > most {
            return Err(Error::invalid(format!(
                "{what} of {len} bytes, at most {most} are allowed"
            )));
        }
    }
    Ok(())
}

/// Checks an operation against the rules of the decoder ([`Ops`]). `payload` is the length of the
/// value with its expiry.
///
/// Errors: `InvalidArgument` for a kind that a batch never has, and for a length that the kind does
/// not allow. Such an operation would reach the log, and could then not be applied.
fn check_operation(kind: Kind, key: usize, payload: usize) -> Result<()> {
    if !kind.is_operation() {
        return Err(Error::invalid(format!(
            "a batch cannot have an operation of kind {kind:?}; use the methods of the batch for each kind"
        )));
    }
    let expiry = expiry_len(kind);
    if payload < expiry {
        return Err(Error::invalid(format!(
            "a value of kind {kind:?} begins with {expiry} bytes of expiry, and this one has {payload} bytes"
        )));
    }
    if kind == Kind::RangeDelete {
        return check_range_end(payload).and_then(|()| check_lens(key, 0));
    }
    check_lens(key, payload - expiry)
}

/// Checks the length of the first key behind a range to delete.
///
/// Errors: `InvalidArgument` if it is too long.
fn check_range_end(len: usize) -> Result<()> {
    match len > MAX_KEY_LEN {
        true => Err(Error::invalid(format!(
            "the end of a range to delete has {len} bytes, a key has at most {MAX_KEY_LEN}"
        ))),
        false => Ok(()),
    }
}

impl WriteBatch {
    /// Returns an empty batch.
    pub fn new() -> WriteBatch {
        WriteBatch {
            buf: AlignedBuf::new(),
            count: 0,
            families: SmallVec::new(),
            separated: SmallVec::new(),
            raw: SmallVec::new(),
            saved_bytes: 0,
            savepoints: Vec::new(),
        }
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes that the batch takes in the log.
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }

    /// Returns the distinct (store, family id) pairs of the operations.
    pub fn families(&self) -> &[(u64, u32)] {
        &self.families
    }

    /// Returns the encoded operations, which [`Ops`] decodes. The result is empty if there are
    /// none.
    #[doc(hidden)]
    pub fn payload(&self) -> &[u8] {
        self.buf.get(RECORD_HEADER..).unwrap_or_default()
    }

    /// Returns the memory that becomes the log record, and the blob records in it. It is for tests
    /// that write, or damage, a record without an engine.
    #[doc(hidden)]
    pub fn log_record_mut(&mut self) -> (&mut AlignedBuf, &[Separated]) {
        (&mut self.buf, &self.separated)
    }

    /// Takes the batch apart, for an engine that commits it.
    #[doc(hidden)]
    pub fn into_parts(self) -> BatchParts {
        BatchParts {
            buf: self.buf,
            count: self.count,
            separated: self.separated,
            raw: self.raw,
        }
    }

    /// Returns the bytes that the batch would take in the log without compression. This is about
    /// the bytes that memtables get, and is at most [`MAX_BATCH_LEN`].
    pub fn raw_bytes(&self) -> usize {
        self.buf.len() + self.saved_bytes
    }

    /// Removes all operations and savepoints, and keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.count = 0;
        self.families.clear();
        self.separated.clear();
        self.raw.clear();
        self.saved_bytes = 0;
        self.savepoints.clear();
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, family: &Family, key: &[u8], value: &[u8]) -> Result<()> {
        self.push(family, Kind::Put, key, &[], value)
    }

    /// Sets `key` to `value` until the wall time `expire_at_ms` (ms since 1970). From then on no
    /// reader sees it.
    pub fn put_ttl(
        &mut self,
        family: &Family,
        key: &[u8],
        value: &[u8],
        expire_at_ms: u64,
    ) -> Result<()> {
        self.push(
            family,
            Kind::PutTtl,
            key,
            &expire_at_ms.to_le_bytes(),
            value,
        )
    }

    /// Sets `key` to `header` followed by `value`, until `expire_at_ms` if it is given. It is for
    /// callers whose values begin with a few bytes of their own, so that a large value is still
    /// copied once. The header has at most 16 bytes.
    pub fn put_parts(
        &mut self,
        family: &Family,
        key: &[u8],
        header: &[u8],
        value: &[u8],
        expire_at_ms: Option<u64>,
    ) -> Result<()> {
        if header.len() > 16 {
            return Err(Error::invalid(format!(
                "header of {} bytes, at most 16 are allowed",
                header.len()
            )));
        }
        if header.len() + value.len() > MAX_VALUE_LEN {
            return Err(Error::invalid(format!(
                "value of {} bytes, at most {MAX_VALUE_LEN} are allowed",
                header.len() + value.len()
            )));
        }
        let mut prefix = [0u8; 24];
        let (kind, at) = match expire_at_ms {
            None => (Kind::Put, 0),
            Some(at) => {
                prefix[..8].copy_from_slice(&at.to_le_bytes());
                (Kind::PutTtl, 8)
            }
        };
        prefix[at..at + header.len()].copy_from_slice(header);
        self.push(family, kind, key, &prefix[..at + header.len()], value)
    }

    /// Removes `key`. A missing key is no error.
    pub fn delete(&mut self, family: &Family, key: &[u8]) -> Result<()> {
        self.push(family, Kind::Delete, key, &[], &[])
    }

    /// Changes the value of `key` by an operand, without reading it. The family's merge operator
    /// computes the value when the key is read, or when tables are compacted. The operand may be as
    /// long as a value.
    ///
    /// Errors: `InvalidArgument` if the family was opened without a merge operator, or if its
    /// operator refuses the operand.
    pub fn merge(&mut self, family: &Family, key: &[u8], operand: &[u8]) -> Result<()> {
        family.check_operand(operand)?;
        self.push(family, Kind::Merge, key, &[], operand)
    }

    /// Removes all keys from `from` (inclusive) to `to` (exclusive), in the family's order, at the
    /// cost of one operation. Later operations of the batch on such keys stay in effect. If both
    /// are the same key, nothing happens.
    ///
    /// Errors: `InvalidArgument` if `to` lies before `from`.
    pub fn delete_range(&mut self, family: &Family, from: &[u8], to: &[u8]) -> Result<()> {
        check_range_end(to.len())?;
        match family.cmp().user(from, to) {
            Ordering::Less => self.push(family, Kind::RangeDelete, from, &[], to),
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(Error::invalid(format!(
                "a range to delete in family {:?} ends before it begins: its end comes first in the family's order; exchange the two",
                family.name()
            ))),
        }
    }

    /// Adds an operation of any kind that a batch may have, with a value of two parts. It is for
    /// engines and tests. The methods above also check the operands of the family, and the order of
    /// a range's ends.
    ///
    /// Errors: `InvalidArgument` for a kind or a length that the decoder refuses.
    #[doc(hidden)]
    pub fn push(
        &mut self,
        family: &Family,
        kind: Kind,
        key: &[u8],
        prefix: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let value_len = prefix.len() + value.len();
        check_operation(kind, key.len(), value_len)?;
        let owner = (family.store(), family.id());
        let codec = family.blob_compression();
        let least = family.min_blob_size();
        let separate = matches!(kind, Kind::Put | Kind::PutTtl)
            && least.is_some_and(|least| value_len >= least.saturating_add(expiry_len(kind)));
        let family = family.id();
        let need = if separate {
            1 + record::HEADER_LEN + key.len() + value_len
        } else {
            1 + varint_len(u64::from(family))
                + varint_len(key.len() as u64)
                + key.len()
                + if kind == Kind::Delete {
                    0
                } else {
                    varint_len(value_len as u64) + value_len
                }
        };
        if self.raw_bytes() + need > MAX_BATCH_LEN {
            return Err(Error::invalid(format!(
                "batch would exceed {MAX_BATCH_LEN} bytes; write it in parts"
            )));
        }
        if separate && self.push_compressed(family, kind, codec, key, prefix, value) {
            self.note(owner);
            return Ok(());
        }
        self.reserve(need);
        if separate {
            self.push_record(family, kind, key, prefix, value);
            self.note(owner);
            return Ok(());
        }
        self.buf.push(kind as u8);
        put_varint(&mut self.buf, u64::from(family));
        put_varint(&mut self.buf, key.len() as u64);
        self.buf.extend_from_slice(key);
        if kind != Kind::Delete {
            put_varint(&mut self.buf, value_len as u64);
            self.buf.extend_from_slice(prefix);
            self.buf.extend_from_slice(value);
        }
        self.note(owner);
        Ok(())
    }

    /// Makes room for `need` more bytes.
    fn reserve(&mut self, need: usize) {
        if self.buf.is_empty() {
            // A batch of one operation, the most common one, gets exactly the memory that it needs.
            self.buf.reserve_exact(RECORD_HEADER + need);
            self.buf.resize(RECORD_HEADER, 0);
        }
        self.buf.reserve(need);
    }

    /// Counts an operation on a family.
    fn note(&mut self, owner: (u64, u32)) {
        self.count += 1;
        if !self.families.contains(&owner) {
            self.families.push(owner);
        }
    }

    fn push_record(&mut self, family: u32, kind: Kind, key: &[u8], prefix: &[u8], value: &[u8]) {
        let at = self.begin_record(key, false);
        let value_at = self.buf.len();
        self.buf.extend_from_slice(prefix);
        self.buf.extend_from_slice(value);
        let form = Form::plain(kind, &self.buf[value_at..]);
        record::begin(&mut self.buf[at..], family, key.len(), &form);
    }

    /// Begins a blob record, whose value follows its key, and returns its offset.
    fn begin_record(&mut self, key: &[u8], compressed: bool) -> usize {
        self.buf.push(Kind::BlobRef as u8);
        let at = self.buf.len();
        self.separated.push(Separated {
            at: (at - RECORD_HEADER) as u32,
            op: self.count,
            compressed,
        });
        self.buf.resize(at + record::HEADER_LEN, 0);
        self.buf.extend_from_slice(key);
        at
    }

    /// Adds a blob record with a compressed value. Returns false, and changes nothing, if the
    /// family does not compress or compression saves too little.
    fn push_compressed(
        &mut self,
        family: u32,
        kind: Kind,
        codec: Compression,
        key: &[u8],
        prefix: &[u8],
        value: &[u8],
    ) -> bool {
        if codec == Compression::None {
            return false;
        }
        let payload = match prefix.is_empty() {
            true => Cow::Borrowed(value),
            false => Cow::Owned([prefix, value].concat()),
        };
        let done = compressed::pack(kind, codec, Effort::Writer, &payload, |form, stored| {
            self.reserve(1 + record::HEADER_LEN + key.len() + stored.len());
            let at = self.begin_record(key, true);
            self.buf.extend_from_slice(stored);
            record::begin(&mut self.buf[at..], family, key.len(), form);
            self.saved_bytes += payload.len() - stored.len();
        });
        if done.is_some() {
            self.raw.push(Bytes::from(payload.into_owned()));
        }
        done.is_some()
    }
}

/// One operation of an encoded batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op<'a> {
    /// Family id.
    pub family: u32,
    /// Kind of the operation.
    pub kind: Kind,
    /// User key.
    pub key: &'a [u8],
    /// The payload: empty for deletes, the end of the range for range deletes, the stored bytes for
    /// a blob record.
    pub value: &'a [u8],
    /// Compression of the payload.
    pub codec: Compression,
    /// Offset of the payload in the encoded operations.
    pub value_at: usize,
    /// Offset of the blob record in the encoded operations, if there is one.
    pub record_at: Option<usize>,
}

/// Decodes encoded operations one after the other. Lengths, kinds and limits are checked.
#[derive(Clone)]
pub struct Ops<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Ops<'a> {
    /// Returns a decoder for the payload of a record.
    pub fn new(bytes: &'a [u8]) -> Ops<'a> {
        Ops { bytes, at: 0 }
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let s = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(s)
    }

    fn parse(&mut self) -> Result<Op<'a>> {
        let start = self.at;
        let bad = |what: &str| {
            Error::new(
                ErrorKind::Corruption,
                format!("write batch operation at byte {start}: {what}"),
            )
        };
        let kind = self.take(1).expect("caller checked")[0];
        if kind == Kind::BlobRef as u8 {
            return self.parse_record().map_err(bad);
        }
        let kind = Kind::from_u8(kind).ok_or_else(|| bad(&format!("unknown kind {kind}")))?;
        if !kind.is_operation() {
            return Err(Error::unsupported(format!(
                "write batch holds an operation of kind {kind:?}, which a later version writes; open the store with that version"
            )));
        }
        let family =
            get_varint32(self.bytes, &mut self.at).ok_or_else(|| bad("family id cut off"))?;
        let key_len = get_varint32(self.bytes, &mut self.at)
            .ok_or_else(|| bad("key length cut off"))? as usize;
        if key_len > MAX_KEY_LEN {
            return Err(bad(&format!("key of {key_len} bytes")));
        }
        let key = self.take(key_len).ok_or_else(|| bad("key cut off"))?;
        let mut value_at = self.at;
        let mut value: &[u8] = &[];
        if kind != Kind::Delete {
            let len = get_varint32(self.bytes, &mut self.at)
                .ok_or_else(|| bad("value length cut off"))? as usize;
            if len > MAX_VALUE_LEN + 8 || (kind == Kind::PutTtl && len < 8) {
                return Err(bad(&format!("value of {len} bytes")));
            }
            if kind == Kind::RangeDelete && len > MAX_KEY_LEN {
                return Err(bad(&format!("range to delete with an end of {len} bytes")));
            }
            value_at = self.at;
            value = self.take(len).ok_or_else(|| bad("value cut off"))?;
        }
        Ok(Op {
            family,
            kind,
            key,
            value,
            value_at,
            codec: Compression::None,
            record_at: None,
        })
    }

    fn parse_record(&mut self) -> std::result::Result<Op<'a>, &'static str> {
        let at = self.at;
        let head = record::BlobRecordHeader::parse(&self.bytes[at..])?;
        let whole = self.take(head.record_len()).ok_or("blob record cut off")?;
        Ok(Op {
            family: head.family,
            kind: head.kind,
            key: &whole[record::HEADER_LEN..head.value().start],
            value: &whole[head.value()],
            codec: head.codec,
            value_at: at + head.value().start,
            record_at: Some(at),
        })
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>>;
    fn next(&mut self) -> Option<Result<Op<'a>>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let op = self.parse();
        if op.is_err() {
            self.at = self.bytes.len();
        }
        Some(op)
    }
}

/// Returns the batch's payload as shared memory, which memtables point into.
pub fn payload(buf: Bytes) -> Bytes {
    buf.slice(RECORD_HEADER..)
}
