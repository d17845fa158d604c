//! Compressed values: the bytes that a blob record, or a batch, has instead of a value.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | expiry, of a value that has one |
//! | 4 | bytes of the value, without its expiry |
//! | | the value, compressed: an lz4 block, or a zstd frame that says its length |
//!
//! The *payload* is the memtable's form: expiry and value. The record's lengths and checksums are
//! those of the stored bytes, so that a record moves without being decompressed. Promises: no bytes
//! make a reader panic, or allocate more than the limit of values.

use super::record::Form;
use crate::MAX_VALUE_LEN;
use crate::codec::Compression;
use crate::codec::{self, Effort};
use crate::entry::expiry_len;
use crate::key::Kind;
use std::cell::RefCell;

/// Bytes of the length field.
const LENGTH: usize = 4;
/// Largest compression buffer, in bytes, that a thread keeps.
const SCRATCH_KEPT: usize = 256 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns the least length of a stored value.
pub(super) fn least(kind: Kind) -> usize {
    expiry_len(kind) + LENGTH + 1
}

/// Compresses a payload of kind `Put` or `PutTtl`, and calls `take` with the bytes to store and
/// their compression. Returns `None` if that would not save an eighth.
pub fn pack<T>(
    kind: Kind,
    codec: Compression,
    effort: Effort,
    payload: &[u8],
    take: impl FnOnce(&Form, &[u8]) -> T,
) -> Option<T> {
    if codec == Compression::None {
        return None;
    }
    let (expiry, value) = payload.split_at(expiry_len(kind));
    SCRATCH.with(|scratch| {
        let mut out = scratch.take();
        out.clear();
        out.extend_from_slice(expiry);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        let front = out.len();
        let limit = expiry.len() + codec::most_compressed(value.len());
        let smaller = codec::compress(codec, effort, value, &mut out, front, limit);
        let taken = smaller.then(|| take(&Form::of(kind, codec, &out), &out));
        if out.capacity() > SCRATCH_KEPT {
            out = Vec::new();
        }
        scratch.replace(out);
        taken
    })
}

/// Returns the bytes of the payload that is stored in compressed form, or says what is wrong.
pub fn payload_len(
    kind: Kind,
    codec: Compression,
    stored: &[u8],
) -> std::result::Result<usize, &'static str> {
    if codec == Compression::None {
        return Ok(stored.len());
    }
    let expiry = expiry_len(kind);
    let length = stored.get(expiry..expiry + LENGTH);
    let length = length.ok_or("a compressed value without its length")?;
    let raw = u32::from_le_bytes(length.try_into().expect("4 bytes")) as usize;
    match raw <= MAX_VALUE_LEN {
        true => Ok(expiry + raw),
        false => Err("a compressed value that is longer than values may be"),
    }
}

/// Returns the decompressed payload, behind `front` bytes that belong to the caller.
pub fn unpack(
    kind: Kind,
    codec: Compression,
    stored: &[u8],
    front: usize,
) -> std::result::Result<Vec<u8>, String> {
    let len = checked_len(kind, codec, stored)?;
    let mut out = vec![0; front + len];
    unpack_into(kind, codec, stored, &mut out[front..])?;
    Ok(out)
}

/// Returns [`payload_len`], if the compressed bytes can have that many bytes.
pub fn checked_len(
    kind: Kind,
    codec: Compression,
    stored: &[u8],
) -> std::result::Result<usize, String> {
    let len = payload_len(kind, codec, stored)?;
    if codec != Compression::None {
        let compressed = &stored[expiry_len(kind) + LENGTH..];
        codec::check_decompressed_len(codec, compressed, len - expiry_len(kind))?;
    }
    Ok(len)
}

/// Decompresses a stored value into `out`, whose length is [`payload_len`]. A value that is not
/// compressed is copied.
pub fn unpack_into(
    kind: Kind,
    codec: Compression,
    stored: &[u8],
    out: &mut [u8],
) -> std::result::Result<(), String> {
    if codec == Compression::None {
        out.copy_from_slice(stored);
        return Ok(());
    }
    let expiry = expiry_len(kind);
    let (head, value) = out.split_at_mut(expiry);
    head.copy_from_slice(&stored[..expiry]);
    codec::decompress_into(codec, &stored[expiry + LENGTH..], value)
}
