//! Finds the records of a damaged blob file that still verify, and those of a log.
//!
//! A record is found behind the one before it, whose header has its length. Behind a header that
//! does not verify, the salvage searches at every byte. A record's checksum covers the file's
//! random id and the place, so bytes that verify *are* a record of this file at this place. The
//! index is not needed. Promises never to return a record that was not written to this file, and to
//! miss none that verifies.

use super::BlobMeta;
use super::compressed;
use super::layout::{Directory, FOOTER_LEN, Footer, HEADER_LEN, own_id};
use super::reader::BlobRecord;
use super::record::{self, BlobRecordHeader, HEADER_LEN as RECORD_HEADER};
use basalt_fs::{Bytes, Error, File, Result};
use basalt_table::read_exact;
use basalt_table::salvage::unless_damaged;
use basalt_table::{BlockHandle, BlockKind, open_block};
use std::ops::Range;
use std::path::Path;

/// Bytes of one read.
const STEP: u64 = 1 << 20;

/// The result of [`salvage`].
#[derive(Debug, Clone, Default)]
pub struct Salvaged {
    /// The id by which the records verify.
    pub file_id: u128,
    /// Number of records that were returned.
    pub records: u64,
    /// Ranges of bytes among the records in which no record verifies. If the directory is lost,
    /// they include the index at the end.
    pub lost: Vec<Range<u64>>,
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
        .ok_or_else(|| Error::corruption(path, handle.offset, "malformed directory"))
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

/// Passes every record that verifies to `each`, in the file's order. `known` is the id in the
/// manifest.
///
/// Errors: `Corruption` if nothing says which file it is; `Unsupported` if a later version wrote
/// it; `Io`; any error of `each`.
pub fn salvage(
    file: &dyn File,
    path: &Path,
    known: Option<u128>,
    each: &mut dyn FnMut(BlobRecord) -> Result<()>,
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
    // A header that verifies may be another file's, written over this one's. The ids of the records
    // decide.
    for file_id in ids {
        let end = unless_damaged(directory(file, path, file_id, size))?.map(|d| d.data_end);
        let mut window = Window {
            file,
            path,
            end: end.unwrap_or(size),
            start: 0,
            bytes: Bytes::default(),
        };
        let found = walk(&mut window, file_id, HEADER_LEN as u64, each)?;
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

/// Passes every record that verifies in a log with the id `file_id` to `each`, in the log's order.
/// The bytes between them are no loss: batches have other operations, and blocks without records
/// may have been given back.
pub fn salvage_log(
    file: &dyn File,
    path: &Path,
    file_id: u128,
    each: &mut dyn FnMut(BlobRecord) -> Result<()>,
) -> Result<Salvaged> {
    let mut window = Window {
        file,
        path,
        end: file.len().max(file.allocated()),
        start: 0,
        bytes: Bytes::default(),
    };
    let found = walk(&mut window, file_id, 0, each)?;
    Ok(Salvaged {
        lost: Vec::new(),
        ..found
    })
}

/// Passes every record that verifies in a blob file of the manifest to `each`, in the file's order.
/// Reads neither header nor index. The file is a log if `meta` says so.
pub(crate) fn salvage_known(
    file: &dyn File,
    path: &Path,
    meta: &BlobMeta,
    each: &mut dyn FnMut(BlobRecord) -> Result<()>,
) -> Result<Salvaged> {
    let start = match meta.index {
        None => HEADER_LEN as u64,
        Some(_) => 0,
    };
    let mut window = Window {
        file,
        path,
        end: meta.data_end,
        start: 0,
        bytes: Bytes::default(),
    };
    walk(&mut window, meta.file_id, start, each)
}

fn walk(
    window: &mut Window<'_>,
    file_id: u128,
    start: u64,
    each: &mut dyn FnMut(BlobRecord) -> Result<()>,
) -> Result<Salvaged> {
    let mut out = Salvaged {
        file_id,
        ..Salvaged::default()
    };
    let end = window.end;
    let mut at = start;
    // Offset of the bytes in which no record was found so far.
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
            // The end of the record is cut off.
            out.lost.push(at..end);
            return Ok(out);
        };
        let value = &bytes[head.value()];
        // A value that cannot be decompressed is not returned.
        let whole = record::value_sum(value) == head.value_sum()
            && (!head.is_compressed()
                || compressed::unpack(head.kind, head.codec, value, 0).is_ok());
        if whole {
            let bytes = Bytes::copy_from_slice(&bytes[..len]);
            let record = BlobRecord {
                at,
                family: head.family,
                key: bytes.slice(RECORD_HEADER..RECORD_HEADER + head.key_len),
                seq: head.seq,
                kind: head.kind,
                codec: head.codec,
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

/// Returns the header of the record that begins at `at`, if a record begins there.
fn head_at(window: &mut Window<'_>, file_id: u128, at: u64) -> Result<Option<BlobRecordHeader>> {
    let Some(bytes) = window.get(at, RECORD_HEADER)? else {
        return Ok(None);
    };
    let Ok(head) = BlobRecordHeader::parse(bytes) else {
        return Ok(None);
    };
    let len = RECORD_HEADER + head.key_len;
    let bytes = window.get(at, len)?;
    Ok(bytes.and_then(|b| BlobRecordHeader::verified(file_id, at, &b[..len])))
}

/// A moving window of a file in memory.
struct Window<'a> {
    file: &'a dyn File,
    path: &'a Path,
    /// Offset behind which nothing is read.
    end: u64,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// Returns at least `len` bytes from `at` on, or `None` if there are fewer.
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
