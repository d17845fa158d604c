//! The frame of a blob file: header, and directory and footer of the index. The index stands at the
//! end of a blob file, or in a file beside a log.
//!
//! Owns the persisted numbers, and promises that no bytes make it panic or allocate more than they
//! are long.

use super::FamilyShare;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::encoding::{get_varint, put_varint, u32_at, u64_at};
use basalt_kv::key::SeqNo;
use basalt_table::BLOCK_TRAILER_LEN;
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// First bytes of a blob file.
pub(super) const BLOB_MAGIC: [u8; 8] = *b"BSLTblb\x01";
/// First bytes of a log's index.
pub(super) const INDEX_MAGIC: [u8; 8] = *b"BSLTbix\x01";
/// Last bytes of a blob file and of a log's index.
pub(super) const END_MAGIC: [u8; 8] = *b"BSLTbln\x01";
/// The version of the format that this build writes, and the newest it reads.
const VERSION: u32 = 1;
/// Bytes of the header.
pub(super) const HEADER_LEN: usize = 64;
/// Bytes of the footer.
pub(super) const FOOTER_LEN: usize = 64;

/// Incompatible feature: values may be compressed.
pub(super) const COMPRESSED: u32 = 1;

const H_VERSION: usize = 8;
const H_FILE_ID: usize = 16;
const H_COMPATIBLE: usize = 32;
const H_READ_COMPATIBLE: usize = 36;
const H_INCOMPATIBLE: usize = 40;
const _: () = assert!(H_READ_COMPATIBLE == H_COMPATIBLE + 4);
const H_CHECKSUM: usize = 56;

const F_FILE_ID: usize = 0;
const F_DIRECTORY: usize = 16;
const F_DIRECTORY_LEN: usize = 24;
const F_VERSION: usize = 28;
const F_FILE_LEN: usize = 32;
const F_CHECKSUM: usize = 48;
const F_MAGIC: usize = 56;

/// Encodes the file's first bytes.
pub(super) fn header(magic: &[u8; 8], file_id: u128, incompatible: u32) -> [u8; HEADER_LEN] {
    let mut h = [0; HEADER_LEN];
    h[H_INCOMPATIBLE..H_INCOMPATIBLE + 4].copy_from_slice(&incompatible.to_le_bytes());
    h[..8].copy_from_slice(magic);
    h[H_VERSION..H_VERSION + 4].copy_from_slice(&VERSION.to_le_bytes());
    h[H_FILE_ID..H_COMPATIBLE].copy_from_slice(&file_id.to_le_bytes());
    let sum = xxh3_64(&h[..H_CHECKSUM]);
    h[H_CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    h
}

/// Checks a header: kind of file, version, features, and that the file is the one with this id.
pub(super) fn check_header(path: &Path, magic: &[u8; 8], file_id: u128, h: &[u8]) -> Result<()> {
    let bad = |at: usize, what: String| Err(Error::corruption(path, at as u64, what));
    if h.len() != HEADER_LEN || h[..8] != magic[..] {
        return bad(0, format!("does not begin with {}", magic.escape_ascii()));
    }
    let (expected, found) = (xxh3_64(&h[..H_CHECKSUM]), u64_at(h, H_CHECKSUM));
    if expected != found {
        return bad(
            H_CHECKSUM,
            format!("header: expected checksum {expected:016x}, found {found:016x}"),
        );
    }
    let version = u32_at(h, H_VERSION);
    if version == 0 || version > VERSION {
        return Err(Error::unsupported(format!(
            "blob file of version {version}; this version reads up to {VERSION}"
        ))
        .in_file(path));
    }
    let unknown = u32_at(h, H_INCOMPATIBLE) & !COMPRESSED;
    if unknown != 0 {
        return Err(Error::unsupported(format!(
            "blob file with incompatible features {unknown:#x}, which a later version writes"
        ))
        .in_file(path));
    }
    let found = u128::from_le_bytes(h[H_FILE_ID..H_COMPATIBLE].try_into().expect("16 bytes"));
    if found != file_id {
        return bad(
            H_FILE_ID,
            format!("file id is {found:032x}, expected {file_id:032x}"),
        );
    }
    Ok(())
}

/// Returns true if a header that was checked says that values may be compressed.
pub(super) fn is_compressed(h: &[u8]) -> bool {
    u32_at(h, H_INCOMPATIBLE) & COMPRESSED != 0
}

/// Returns the id at byte `at` of a header or a footer, without any check.
fn id_at(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(
        bytes.get(at..at + 16)?.try_into().ok()?,
    ))
}

/// Returns the id of the blob file with this header, or `None` if the header does not verify.
pub(super) fn own_id(path: &Path, h: &[u8]) -> Result<Option<u128>> {
    let Some(id) = id_at(h, H_FILE_ID) else {
        return Ok(None);
    };
    match check_header(path, &BLOB_MAGIC, id, h) {
        Ok(()) => Ok(Some(id)),
        Err(e) if e.kind() == ErrorKind::Corruption => Ok(None),
        Err(e) => Err(e),
    }
}

/// The place of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) directory: u64,
    pub(super) directory_len: u32,
    pub(super) file_len: u64,
}

impl Footer {
    pub(super) fn encode(&self, file_id: u128) -> [u8; FOOTER_LEN] {
        let mut f = [0; FOOTER_LEN];
        f[F_FILE_ID..F_DIRECTORY].copy_from_slice(&file_id.to_le_bytes());
        f[F_DIRECTORY..F_DIRECTORY_LEN].copy_from_slice(&self.directory.to_le_bytes());
        f[F_DIRECTORY_LEN..F_VERSION].copy_from_slice(&self.directory_len.to_le_bytes());
        f[F_VERSION..F_FILE_LEN].copy_from_slice(&VERSION.to_le_bytes());
        f[F_FILE_LEN..F_FILE_LEN + 8].copy_from_slice(&self.file_len.to_le_bytes());
        let sum = xxh3_64(&f[..F_CHECKSUM]);
        f[F_CHECKSUM..F_MAGIC].copy_from_slice(&sum.to_le_bytes());
        f[F_MAGIC..].copy_from_slice(&END_MAGIC);
        f
    }

    /// Returns the id of the file that ends with this footer, or `None` if the footer does not
    /// verify.
    pub(super) fn own_id(path: &Path, file_len: u64, f: &[u8]) -> Option<u128> {
        let id = id_at(f, F_FILE_ID)?;
        Footer::decode(path, id, file_len, f).ok().map(|_| id)
    }

    pub(super) fn decode(path: &Path, file_id: u128, file_len: u64, f: &[u8]) -> Result<Footer> {
        let start = file_len - FOOTER_LEN as u64;
        let bad = |at: usize, what: String| Err(Error::corruption(path, start + at as u64, what));
        if f.len() != FOOTER_LEN || f[F_MAGIC..] != END_MAGIC {
            return bad(F_MAGIC, "does not end as a blob file does".into());
        }
        let (expected, found) = (xxh3_64(&f[..F_CHECKSUM]), u64_at(f, F_CHECKSUM));
        if expected != found {
            return bad(
                F_CHECKSUM,
                format!("footer: expected checksum {expected:016x}, found {found:016x}"),
            );
        }
        if u32_at(f, F_VERSION) != VERSION {
            return bad(F_VERSION, "another version than the header's".into());
        }
        let found = u128::from_le_bytes(f[F_FILE_ID..F_DIRECTORY].try_into().expect("16 bytes"));
        let footer = Footer {
            directory: u64_at(f, F_DIRECTORY),
            directory_len: u32_at(f, F_DIRECTORY_LEN),
            file_len: u64_at(f, F_FILE_LEN),
        };
        if found != file_id || footer.file_len != file_len {
            return bad(
                F_FILE_ID,
                format!(
                    "footer is of file {found:032x} of {} bytes, expected {file_id:032x} of {file_len}",
                    footer.file_len
                ),
            );
        }
        let len = u64::from(footer.directory_len) + BLOCK_TRAILER_LEN as u64;
        let inside = footer.directory.checked_add(len) == Some(start);
        if !inside || footer.directory < HEADER_LEN as u64 {
            return bad(F_DIRECTORY, "the directory does not lie before it".into());
        }
        Ok(footer)
    }
}

/// The contents of the file, and the places of its pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Directory {
    /// The id of the file that the records lie in.
    pub(super) records_in: u128,
    pub(super) data_end: u64,
    pub(super) records: u64,
    pub(super) families: BTreeMap<u32, FamilyShare>,
    pub(super) min_seq: SeqNo,
    pub(super) max_seq: SeqNo,
    /// Sum of the records' hashes, modulo 2^64. The sums over copied records and over garbage add
    /// up to it.
    pub(super) hash_sum: u64,
    /// Offset of the first page; the others follow.
    pub(super) pages: u64,
    /// Payload bytes of each hash page.
    pub(super) hashes: Vec<u32>,
    /// Payload bytes of each position page.
    pub(super) places: Vec<u32>,
}

impl Directory {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = self.records_in.to_le_bytes().to_vec();
        out.extend_from_slice(&self.hash_sum.to_le_bytes());
        for n in [
            self.data_end,
            self.records,
            self.min_seq,
            self.max_seq,
            self.pages,
            self.families.len() as u64,
        ] {
            put_varint(&mut out, n);
        }
        for (id, share) in &self.families {
            put_varint(&mut out, u64::from(*id));
            put_varint(&mut out, share.records);
            put_varint(&mut out, share.bytes);
        }
        for pages in [&self.hashes, &self.places] {
            put_varint(&mut out, pages.len() as u64);
            pages
                .iter()
                .for_each(|len| put_varint(&mut out, u64::from(*len)));
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Directory> {
        let records_in = u128::from_le_bytes(bytes.get(..16)?.try_into().ok()?);
        let hash_sum = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
        let mut at = 24;
        let mut next = |bits: u32| get_varint(bytes, &mut at, bits);
        let mut d = Directory {
            records_in,
            hash_sum,
            data_end: next(63)?,
            records: next(63)?,
            min_seq: next(56)?,
            max_seq: next(56)?,
            pages: next(63)?,
            ..Directory::default()
        };
        for _ in 0..next(32)? {
            let id = next(32)? as u32;
            if d.families
                .last_key_value()
                .is_some_and(|(last, _)| *last >= id)
            {
                return None;
            }
            let share = FamilyShare {
                records: next(63)?,
                bytes: next(63)?,
            };
            d.families.insert(id, share);
        }
        for list in [&mut d.hashes, &mut d.places] {
            let count = next(32)?;
            for _ in 0..count {
                list.push(next(32)? as u32);
            }
        }
        // Later versions add fields here: a tag, a length, and that many bytes. Odd tags may be
        // ignored.
        while at < bytes.len() {
            let tag = get_varint(bytes, &mut at, 32)?;
            let len = get_varint(bytes, &mut at, 32)? as usize;
            at = at.checked_add(len).filter(|end| *end <= bytes.len())?;
            if tag % 2 == 0 {
                return None;
            }
        }
        Some(d)
    }
}

/// True when a file's first bytes are those of a blob file.
pub fn begins_one(first: &[u8]) -> bool {
    first.starts_with(&BLOB_MAGIC)
}

/// True when a file's first bytes are those of a log's index.
pub fn begins_index(first: &[u8]) -> bool {
    first.starts_with(&INDEX_MAGIC)
}
