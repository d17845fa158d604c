//! Blob files that no manifest vouches for: what a whole one says of itself, and the records of a damaged one that still verify.
//!
//! A record is found behind the one before it, whose header says how long it is. Behind a header that does not verify it is sought at every
//! byte: a record's checksum covers the file's random id and the place, so bytes that verify *are* a record of this file at this place.
//! Nothing of the index is needed. Promises never to give back a record that was not written to this file, and to miss none that verifies.

use super::layout::{Directory, FOOTER_LEN, Footer, HEADER_LEN, own_id};
use super::reader::Record;
use super::record::{self, HEADER_LEN as RECORD_HEADER, Head};
use super::verify::{digest, verify};
use super::{BlobMeta, BlobReader};
use crate::table::format::{BlockHandle, BlockKind, open_block};
use crate::table::read_exact;
use basalt_env::Env;
use basalt_fs::{Bytes, Error, ErrorKind, File, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a read.
const STEP: u64 = 1 << 20;

/// What [`salvage`] walked.
#[derive(Debug, Clone, Default)]
pub struct Salvaged {
    /// The id that the records verify by.
    pub file_id: u128,
    /// Records given back.
    pub records: u64,
    /// Bytes among the records in which none verifies. Where the directory is lost, the index at the end is among them.
    pub lost: Vec<Range<u64>>,
}

/// `Ok(None)` for damage; other errors go on.
fn unless_damaged<T>(r: Result<T>) -> Result<Option<T>> {
    match r {
        Ok(t) => Ok(Some(t)),
        Err(e) if e.kind() == ErrorKind::Corruption => Ok(None),
        Err(e) => Err(e),
    }
}

/// What a blob file says of itself, after every byte of it was checked as [`verify`] does. `Corruption` when it is not whole.
pub fn inspect(env: &Env, file: &Arc<dyn File>, path: &Path) -> Result<BlobMeta> {
    let size = file.len();
    let head = read_exact(&**file, path, 0, HEADER_LEN)?;
    let Some(file_id) = own_id(path, &head)? else {
        return Err(Error::corruption(
            path,
            0,
            "the header of the blob file is damaged",
        ));
    };
    let d = directory(&**file, path, file_id, size)?;
    let meta = BlobMeta {
        file_id,
        data_end: d.data_end,
        index: None,
        size,
        digest: digest(&**file, path, size)?,
        records: d.records,
        families: d.families,
        min_seq: d.min_seq,
        max_seq: d.max_seq,
    };
    if !(1..1 << 32).contains(&meta.records) {
        return Err(Error::corruption(
            path,
            0,
            format!("a blob file of {} records", meta.records),
        ));
    }
    let reader = BlobReader::open(env, Arc::new(file.clone()), path, &meta)?;
    verify(&reader, &**file, path, &meta)?;
    Ok(meta)
}

fn directory(file: &dyn File, path: &Path, file_id: u128, size: u64) -> Result<Directory> {
    let tail = tail(file, path, size)?;
    let footer = Footer::decode(path, file_id, size, &tail)?;
    let handle = BlockHandle {
        offset: footer.directory,
        stored: footer.directory_len,
        raw: 0,
    };
    let disk = read_exact(file, path, handle.offset, handle.disk_len())?;
    let payload = open_block(path, file_id, BlockKind::BlobDirectory, &handle, disk)?;
    Directory::decode(&payload)
        .filter(|d| d.records_in == file_id && d.data_end <= size)
        .ok_or_else(|| Error::corruption(path, handle.offset, "a directory that no builder writes"))
}

fn tail(file: &dyn File, path: &Path, size: u64) -> Result<Bytes> {
    let Some(at) = size.checked_sub(FOOTER_LEN as u64) else {
        return Err(Error::corruption(
            path,
            0,
            format!("blob file of {size} bytes"),
        ));
    };
    read_exact(file, path, at, FOOTER_LEN)
}

/// Hands every record that verifies to `each`, in the file's order. `known` is the id that the manifest says.
///
/// Errors: `Corruption` when nothing says which file it is; `Unsupported` when a later version wrote it; `Io`; whatever `each` returns.
pub fn salvage(
    file: &dyn File,
    path: &Path,
    known: Option<u128>,
    each: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<Salvaged> {
    let size = file.len();
    let head = unless_damaged(read_exact(file, path, 0, HEADER_LEN))?;
    let head_id = match head {
        Some(h) => own_id(path, &h)?,
        None => None,
    };
    let tail = unless_damaged(tail(file, path, size))?;
    let tail_id = tail.and_then(|t| Footer::own_id(path, size, &t));
    let mut ids: Vec<u128> = [head_id, tail_id, known].into_iter().flatten().collect();
    ids.dedup();
    let mut last = None;
    // A header that verifies may be another file's, written over this one's: what the records say decides.
    for file_id in ids {
        let end = unless_damaged(directory(file, path, file_id, size))?.map(|d| d.data_end);
        let mut window = Window {
            file,
            path,
            end: end.unwrap_or(size),
            start: 0,
            bytes: Bytes::default(),
        };
        let found = walk(&mut window, file_id, each)?;
        if found.records > 0 {
            return Ok(found);
        }
        last.get_or_insert(found);
    }
    last.ok_or_else(|| {
        Error::corruption(
            path,
            0,
            "neither header nor footer says which blob file this is",
        )
    })
}

fn walk(
    window: &mut Window<'_>,
    file_id: u128,
    each: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<Salvaged> {
    let mut out = Salvaged {
        file_id,
        ..Salvaged::default()
    };
    let end = window.end;
    let mut at = HEADER_LEN as u64;
    // Where the bytes begin in which no record was found.
    let mut hole: Option<u64> = None;
    while at < end {
        let Some(head) = head_at(window, file_id, at)? else {
            hole.get_or_insert(at);
            at += 1;
            continue;
        };
        if let Some(from) = hole.take() {
            out.lost.push(from..at);
        }
        let len = head.record_len();
        let Some(bytes) = window.get(at, len)? else {
            // Its end is cut off.
            out.lost.push(at..end);
            return Ok(out);
        };
        let value = &bytes[head.value()];
        if record::value_sum(value) == head.value_sum() {
            let bytes = Bytes::copy_from_slice(&bytes[..len]);
            let record = Record {
                at,
                family: head.family,
                key: bytes.slice(RECORD_HEADER..RECORD_HEADER + head.key_len),
                seq: head.seq,
                kind: head.kind,
                value: bytes.slice(head.value()),
                value_sum: head.value_sum(),
            };
            each(record)?;
            out.records += 1;
        } else {
            out.lost.push(at..at + len as u64);
        }
        at += len as u64;
    }
    if let Some(from) = hole {
        out.lost.push(from..end);
    }
    Ok(out)
}

/// The header of the record that begins at `at`, when one does.
fn head_at(window: &mut Window<'_>, file_id: u128, at: u64) -> Result<Option<Head>> {
    let Some(bytes) = window.get(at, RECORD_HEADER)? else {
        return Ok(None);
    };
    let Ok(head) = Head::parse(bytes) else {
        return Ok(None);
    };
    let len = RECORD_HEADER + head.key_len;
    let bytes = window.get(at, len)?;
    Ok(bytes.and_then(|b| Head::verified(file_id, at, &b[..len])))
}

/// A part of a file in memory that moves on.
struct Window<'a> {
    file: &'a dyn File,
    path: &'a Path,
    /// Nothing behind this is read.
    end: u64,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// At least `len` bytes from `at` on; `None` when there are not so many.
    fn get(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>> {
        if at.checked_add(len as u64).is_none_or(|end| end > self.end) {
            return Ok(None);
        }
        let inside = at >= self.start && at + len as u64 <= self.start + self.bytes.len() as u64;
        if !inside {
            let want = (len as u64).max(STEP).min(self.end - at) as usize;
            self.bytes = read_exact(self.file, self.path, at, want)?;
            self.start = at;
        }
        Ok(Some(&self.bytes[(at - self.start) as usize..]))
    }
}
