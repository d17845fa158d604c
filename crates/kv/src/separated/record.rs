//! A blob record: one version of one key with its value, in a log or a blob file. It contains its
//! own identity and place, so that one read of the device brings a value and the proof that it is
//! the right one.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of file id (16 bytes), file offset of the record (8), bytes 4..32, key |
//! | 4 | 4 | value length |
//! | 8 | 8 | XXH3-64 of the value |
//! | 16 | 1 | kind: that of the entry if its value were in the tree |
//! | 17 | 7 | sequence number |
//! | 24 | 4 | family id |
//! | 28 | 3 | key length |
//! | 31 | 1 | how the value is compressed |
//! | 32 | | key, value |
//!
//! Lengths and checksums are those of the stored value. `compressed` specifies the bytes of a
//! compressed value.

use super::compressed;
use crate::codec::Compression;
use crate::key::{Kind, MAX_SEQ, SeqNo};
use crate::{MAX_KEY_LEN, MAX_VALUE_LEN};
use basalt_fs::{AlignedBuf, Error, Lifetime, Result};
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes before the key.
pub const HEADER_LEN: usize = 32;
/// Largest length of a record, in bytes.
pub const MAX_LEN: u64 = (HEADER_LEN + MAX_KEY_LEN + MAX_VALUE_LEN + 8) as u64;

const H_VALUE_LEN: usize = 4;
const H_VALUE_SUM: usize = 8;
const H_KIND: usize = 16;
const H_SEQ: usize = 17;
const H_FAMILY: usize = 24;
const H_KEY_LEN: usize = 28;
const H_FLAGS: usize = 31;

/// Returns the checksum of a value as it is stored.
pub fn value_sum(value: &[u8]) -> u64 {
    xxh3_64(value)
}

/// One version of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// The family's id.
    pub family: u32,
    /// User key.
    pub key: &'a [u8],
    /// Its sequence number.
    pub seq: SeqNo,
}

impl Name<'_> {
    /// Returns the hash under which the index of the file with this id has the record. The id is
    /// random, so a chooser of keys cannot choose hashes.
    #[inline]
    pub fn hash(&self, records_in: u128) -> u64 {
        let salt = records_in as u64 ^ (records_in >> 64) as u64;
        let version = self.seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(self.family);
        xxh3_64_with_seed(self.key, version ^ salt)
    }
}

/// The form of a value in its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// `Put`, or `PutTtl`, whose value begins with its expiry.
    pub kind: Kind,
    /// Compression of the value.
    pub codec: Compression,
    /// Bytes of the stored value.
    pub len: usize,
    /// Checksum of the stored value ([`value_sum`]).
    pub sum: u64,
}

impl Form {
    /// Returns the form of these stored bytes.
    pub fn of(kind: Kind, codec: Compression, stored: &[u8]) -> Form {
        Form {
            kind,
            codec,
            len: stored.len(),
            sum: value_sum(stored),
        }
    }

    /// Returns the form of an uncompressed value.
    pub fn plain(kind: Kind, value: &[u8]) -> Form {
        Form::of(kind, Compression::None, value)
    }
}

/// The header of a record, taken apart. The lengths are within the limits, and nothing else is
/// checked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRecordHeader {
    checksum: u32,
    value_sum: u64,
    /// Bytes of the value as it is stored.
    pub value_len: usize,
    /// Compression of the value.
    pub codec: Compression,
    /// Bytes of the key.
    pub key_len: usize,
    /// Kind of the entry if its value were in the tree: `Put` or `PutTtl`.
    pub kind: Kind,
    /// Sequence number.
    pub seq: SeqNo,
    /// Family id.
    pub family: u32,
}

impl BlobRecordHeader {
    /// Takes the first bytes of a record apart, or says what is wrong with them.
    pub fn parse(bytes: &[u8]) -> std::result::Result<BlobRecordHeader, &'static str> {
        let Some(h) = bytes.get(..HEADER_LEN) else {
            return Err("cut off in its header");
        };
        let u32_at = |at: usize| u32::from_le_bytes(h[at..at + 4].try_into().expect("4 bytes"));
        let Some(codec) = Compression::from_u8(h[H_FLAGS]) else {
            return Err("with flags that a later version sets");
        };
        let head = BlobRecordHeader {
            codec,
            checksum: u32_at(0),
            value_sum: u64::from_le_bytes(h[H_VALUE_SUM..H_KIND].try_into().expect("8 bytes")),
            value_len: u32_at(H_VALUE_LEN) as usize,
            key_len: (u32_at(H_KEY_LEN) & 0xff_ffff) as usize,
            kind: match h[H_KIND] {
                1 => Kind::Put,
                2 => Kind::PutTtl,
                _ => return Err("of a kind whose values are not separated"),
            },
            seq: u64::from_le_bytes(h[H_KIND..H_FAMILY].try_into().expect("8 bytes")) >> 8,
            family: u32_at(H_FAMILY),
        };
        if head.key_len > MAX_KEY_LEN || head.value_len > MAX_VALUE_LEN + 8 {
            return Err("longer than records may be");
        }
        if head.kind == Kind::PutTtl && head.value_len < 8 {
            return Err("an expiring value without its expiry");
        }
        if head.is_compressed() && head.value_len < compressed::least(head.kind) {
            return Err("a compressed value without its length");
        }
        Ok(head)
    }

    /// Returns the header from the first bytes of a record at its place, if header and key verify.
    /// Then the length is certain, whatever the value is.
    pub fn verified(file_id: u128, offset: u64, bytes: &[u8]) -> Option<BlobRecordHeader> {
        let head = BlobRecordHeader::parse(bytes).ok()?;
        let summed = bytes.get(..HEADER_LEN + head.key_len)?;
        (head_checksum(file_id, offset, summed) == head.checksum).then_some(head)
    }

    /// Returns the checksum of the value as it is stored.
    pub fn value_sum(&self) -> u64 {
        self.value_sum
    }

    /// Returns true if the value is compressed.
    #[inline]
    pub fn is_compressed(&self) -> bool {
        self.codec != Compression::None
    }

    /// Returns the form of the value in the record.
    pub fn form(&self) -> Form {
        Form {
            kind: self.kind,
            codec: self.codec,
            len: self.value_len,
            sum: self.value_sum,
        }
    }

    /// Returns the bytes of the whole record.
    pub fn record_len(&self) -> usize {
        HEADER_LEN + self.key_len + self.value_len
    }

    /// Returns the range of the value in the record.
    pub fn value(&self) -> Range<usize> {
        HEADER_LEN + self.key_len..self.record_len()
    }
}

/// Appends header and key of a record at `offset` of the file `file_id`. The value, which has this
/// form, must follow.
pub fn encode_head(out: &mut Vec<u8>, file_id: u128, offset: u64, name: &Name<'_>, form: &Form) {
    assert!(
        name.key.len() <= MAX_KEY_LEN && form.len <= MAX_VALUE_LEN + 8 && name.seq <= MAX_SEQ,
        "a blob record within the limits"
    );
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_LEN]);
    out.extend_from_slice(name.key);
    let record = &mut out[start..];
    begin(record, name.family, name.key.len(), form);
    seal(record, name.seq, place_checksum(file_id, offset));
}

/// Writes the header of a record into the first bytes of `out`, without sequence number and
/// checksum. [`seal`] adds them when the record's place is known.
pub fn begin(out: &mut [u8], family: u32, key_len: usize, form: &Form) {
    let h = &mut out[..HEADER_LEN];
    h.fill(0);
    h[H_VALUE_LEN..H_VALUE_SUM].copy_from_slice(&(form.len as u32).to_le_bytes());
    h[H_VALUE_SUM..H_KIND].copy_from_slice(&form.sum.to_le_bytes());
    h[H_KIND] = form.kind as u8;
    h[H_FAMILY..H_KEY_LEN].copy_from_slice(&family.to_le_bytes());
    h[H_KEY_LEN..H_FLAGS].copy_from_slice(&(key_len as u32).to_le_bytes()[..3]);
    h[H_FLAGS] = form.codec as u8;
}

/// Adds sequence number and checksum to the header of a record. `place` is the CRC-32C of file id
/// and offset.
pub fn seal(record: &mut [u8], seq: SeqNo, place: u32) {
    record[H_SEQ..H_FAMILY].copy_from_slice(&seq.to_le_bytes()[..7]);
    let key_len = BlobRecordHeader::parse(record)
        .expect("it was begun")
        .key_len;
    let crc = crc32c::crc32c_append(place, &record[4..HEADER_LEN + key_len]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the checksum of header and key, which are all of `head`, at their place.
fn head_checksum(file_id: u128, offset: u64, head: &[u8]) -> u32 {
    crc32c::crc32c_append(place_checksum(file_id, offset), &head[4..])
}

fn place_checksum(file_id: u128, offset: u64) -> u32 {
    let id = crc32c::crc32c(&file_id.to_le_bytes());
    crc32c::crc32c_append(id, &offset.to_le_bytes())
}

/// Checks the record in `bytes`, which begin at `offset` of the file and may be longer than the
/// record. Returns its header if header, key and value verify.
pub fn check(path: &Path, file_id: u128, offset: u64, bytes: &[u8]) -> Result<BlobRecordHeader> {
    let bad = |what: String| Error::corruption(path, offset, format!("blob record {what}"));
    let head = BlobRecordHeader::parse(bytes).map_err(|what| bad(what.to_owned()))?;
    if bytes.len() < head.record_len() {
        return Err(bad(format!(
            "of {} bytes: only {} are there",
            head.record_len(),
            bytes.len()
        )));
    }
    let expected = head_checksum(file_id, offset, &bytes[..HEADER_LEN + head.key_len]);
    if expected != head.checksum {
        return Err(bad(format!(
            "header: expected checksum {expected:08x}, found {:08x}",
            head.checksum
        )));
    }
    let expected = value_sum(&bytes[head.value()]);
    if expected != head.value_sum {
        return Err(bad(format!(
            "value of {} bytes: expected checksum {expected:016x}, found {:016x}",
            head.value_len, head.value_sum
        )));
    }
    Ok(head)
}

/// Checks the record as [`check`] does, and that it is the record of `name`.
pub fn check_is(
    path: &Path,
    file_id: u128,
    offset: u64,
    bytes: &[u8],
    name: &Name<'_>,
) -> Result<BlobRecordHeader> {
    check(path, file_id, offset, bytes)?;
    is(path, offset, bytes, name)
}

/// Verifies the header and the key of the record of `name`, and returns the header. `bytes` hold
/// the header and the key only. The lengths in the header are verified, the value is not.
pub fn check_head_is(
    path: &Path,
    file_id: u128,
    offset: u64,
    bytes: &[u8],
    name: &Name<'_>,
) -> Result<BlobRecordHeader> {
    let bad = |what: String| Error::corruption(path, offset, format!("blob record {what}"));
    let head = BlobRecordHeader::parse(bytes).map_err(|what| bad(what.to_owned()))?;
    let key = bytes.get(HEADER_LEN..HEADER_LEN + head.key_len);
    if (head.family, head.seq, key) != (name.family, name.seq, Some(name.key)) {
        return Err(bad(format!(
            "of family {}, sequence number {}, and a key of {} bytes; expected family {}, {}, {:02x?}",
            head.family, head.seq, head.key_len, name.family, name.seq, name.key
        )));
    }
    let expected = head_checksum(file_id, offset, &bytes[..HEADER_LEN + head.key_len]);
    match expected == head.checksum {
        true => Ok(head),
        false => Err(bad(format!(
            "header: expected checksum {expected:08x}, found {:08x}",
            head.checksum
        ))),
    }
}

/// Returns the header of a record that was verified before. It must be the record of `name`.
pub fn is(path: &Path, offset: u64, bytes: &[u8], name: &Name<'_>) -> Result<BlobRecordHeader> {
    let bad = |what: &str| Error::corruption(path, offset, format!("blob record {what}"));
    let head = BlobRecordHeader::parse(bytes).map_err(bad)?;
    if bytes.len() < head.record_len() {
        return Err(bad("that is cut off"));
    }
    let key = &bytes[HEADER_LEN..HEADER_LEN + head.key_len];
    if (head.family, head.seq, key) != (name.family, name.seq, name.key) {
        return Err(Error::corruption(
            path,
            offset,
            format!(
                "blob record of family {}, sequence number {}, key {:02x?}; expected family {}, {}, {:02x?}",
                head.family, head.seq, key, name.family, name.seq, name.key
            ),
        ));
    }
    Ok(head)
}

/// Returns the bytes of the decompressed value of a verified record, its expiry included.
pub fn payload_len(
    path: &Path,
    offset: u64,
    head: &BlobRecordHeader,
    bytes: &[u8],
) -> Result<usize> {
    compressed::payload_len(head.kind, head.codec, &bytes[head.value()]).map_err(|what| {
        let what = format!("blob record with a compressed value: {what}");
        Error::corruption(path, offset, what)
    })
}

/// Returns the record with its value uncompressed, made of a verified record whose value is
/// compressed. The cache has the record in this form.
///
/// Errors: `Corruption` if the value is not what its header says.
pub fn unpacked(path: &Path, file_id: u128, offset: u64, bytes: &[u8]) -> Result<AlignedBuf> {
    let bad = |what: &str| Error::corruption(path, offset, format!("blob record {what}"));
    let head = BlobRecordHeader::parse(bytes).map_err(bad)?;
    let name = Name {
        family: head.family,
        key: &bytes[HEADER_LEN..HEADER_LEN + head.key_len],
        seq: head.seq,
    };
    let front = HEADER_LEN + head.key_len;
    let bad_value = |what| bad(&format!("with a compressed value: {what}"));
    let stored = &bytes[head.value()];
    let len = compressed::checked_len(head.kind, head.codec, stored).map_err(bad_value)?;
    let mut out = AlignedBuf::with_lifetime(front + len, Lifetime::Cached);
    out.resize(front + len, 0);
    compressed::unpack_into(head.kind, head.codec, stored, &mut out[front..]).map_err(bad_value)?;
    let mut encoded = Vec::with_capacity(front);
    let form = Form::plain(head.kind, &out[front..]);
    encode_head(&mut encoded, file_id, offset, &name, &form);
    out[..front].copy_from_slice(&encoded);
    Ok(out)
}
