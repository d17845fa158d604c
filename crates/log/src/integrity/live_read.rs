//! Reads of many records at the places where an index has them, in the order of the files.

use crate::mapping::Location;
use basalt_fs::{Bytes, Error, File, Result};
use basalt_records::entries::open_entry;
use basalt_records::salvage::last_nonzero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes of one read, unless one record is longer.
const STEP: u64 = 1 << 20;
/// Bytes between two records that are read along with them.
const GAP: u64 = 64 << 10;

/// A file with records, or with pages.
#[derive(Clone)]
pub(super) struct RecordFile {
    pub file: Arc<dyn File>,
    pub path: PathBuf,
    pub file_id: u128,
}

impl RecordFile {
    /// Returns the offset behind the file's last byte that is not zero, at least `from`. Reads all
    /// of the file's space behind `from`.
    pub fn last_nonzero(&self, from: u64) -> Result<u64> {
        last_nonzero(&*self.file, from)
    }
}

/// A record, and where an index has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexedRecord {
    pub log: u64,
    pub lsn: u64,
    pub location: Location,
}

/// Verifies the bytes of a record.
///
/// Errors: `Corruption` names file and offset.
fn verify(path: &Path, file_id: u128, record: &IndexedRecord, bytes: &[u8]) -> Result<()> {
    let bad = |what: String| Error::corruption(path, record.location.offset, what);
    let (head, _) = open_entry(file_id, record.location.offset, bytes).map_err(bad)?;
    match (head.log, head.lsn) == (record.log, record.lsn) {
        true => Ok(()),
        false => Err(bad(format!(
            "expected LSN {} of log {}, found LSN {} of log {}",
            record.lsn, record.log, head.lsn, head.log
        ))),
    }
}

/// Reads records, and calls `each` with every record and its result. Sorts the records by their
/// places. `file` returns the file with a number, or `None` if there is none; then the result is
/// `Ok(false)`. The result of a record that verifies is `Ok(true)`.
///
/// Errors: those of `each`, which ends the reads. Costs one read a mebibyte of records that lie
/// near each other.
pub(super) fn read_all(
    records: &mut [IndexedRecord],
    file: &dyn Fn(u64) -> Option<RecordFile>,
    each: &mut dyn FnMut(&IndexedRecord, Result<bool>) -> Result<()>,
) -> Result<()> {
    records.sort_unstable_by_key(|r| (r.location.file, r.location.offset));
    let mut at = 0;
    while let Some(first) = records.get(at) {
        let number = first.location.file;
        let Some(source) = file(number) else {
            each(first, Ok(false))?;
            at += 1;
            continue;
        };
        let start = first.location.offset;
        let end_of = |l: &Location| l.offset.saturating_add(u64::from(l.len));
        let (mut end, mut behind) = (end_of(&first.location), at + 1);
        while let Some(next) = records.get(behind) {
            let near = next.location.file == number
                && next.location.offset <= end.saturating_add(GAP)
                && end_of(&next.location).max(end) - start <= STEP;
            if !near {
                break;
            }
            end = end.max(end_of(&next.location));
            behind += 1;
        }
        let read = match end - start <= STEP {
            true => source.file.read(start, (end - start) as usize),
            // One long record, whose length may be wrong.
            false => read_bounded(&*source.file, start, end),
        };
        for record in &records[at..behind] {
            let found = read.clone().and_then(|bytes| {
                let bytes = part(&bytes, start, &record.location);
                verify(&source.path, source.file_id, record, &bytes).map(|()| true)
            });
            each(record, found)?;
        }
        at = behind;
    }
    Ok(())
}

fn read_bounded(file: &dyn File, start: u64, end: u64) -> Result<Bytes> {
    let end = end.min(file.allocated().max(file.len()));
    file.read(start, end.saturating_sub(start) as usize)
}

/// Returns the bytes of a place, or fewer if the file ends before.
fn part(bytes: &Bytes, start: u64, at: &Location) -> Bytes {
    let from = ((at.offset - start) as usize).min(bytes.len());
    let to = (from + at.len as usize).min(bytes.len());
    bytes.slice(from..to)
}
