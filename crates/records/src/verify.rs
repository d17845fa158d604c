//! Verification of bytes of a file of records that reading does not need: both copies of the
//! header, the zeros around them, and the zeros that fill up records.
//!
//! A reader takes the first good header and skips padding. Damage there would go unnoticed until
//! the other copy is needed. Records are not verified here, because reading them does that.

use super::{FileKind, RECORD_ALIGN, header, salvage};
use basalt_fs::{Error, File, Result};
use std::path::Path;

/// Which zeros behind records [`check_spare`] checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// The zeros behind every record.
    All,
    /// The zeros behind every record except the last one. An append that failed, or that a crash
    /// has cut, may have written the last record whole, and left old bytes behind it.
    BetweenRecords,
}

/// Returns all faults in the header's copies, and in the padding of the records that follow one
/// another from the first on and begin before `end`. The result is empty if no copy of the header
/// is readable, which opening the file reports.
///
/// In a log, only the zeros that fill a record up to a multiple of 8 count: the format leaves the
/// bytes between its records undefined. A manifest is written once from its beginning on, so all
/// bytes up to the end of the last record's write unit count. `padding` says whether the zeros
/// behind the last record count.
pub fn check_spare(
    file: &dyn File,
    path: &Path,
    kind: FileKind,
    file_id: u128,
    end: u64,
    padding: Padding,
) -> Result<Vec<Error>> {
    let slot = file.read(0, *header::UNITS.end() as usize)?;
    let Some((unit, faults)) = header::faults(&slot, path) else {
        return Ok(Vec::new());
    };
    let mut out: Vec<Error> = faults
        .into_iter()
        .map(|(at, what)| Error::corruption(path, at, what))
        .collect();
    let found = salvage::scan(file, path, file_id, u64::MAX)?.found;
    let mut window = salvage::Window::new(file, u64::MAX);
    for (i, f) in found.iter().enumerate() {
        if f.offset >= end || !f.follows || !f.whole {
            break;
        }
        let from = f.payload_end();
        let next = found.get(i + 1).filter(|n| n.follows).map(|n| n.offset);
        if next.is_none() && padding == Padding::BetweenRecords {
            break;
        }
        let to = match kind {
            FileKind::Log => from.next_multiple_of(RECORD_ALIGN as u64),
            FileKind::Manifest => next.unwrap_or(from.next_multiple_of(unit)),
        };
        let bytes = window.at(from, to.saturating_sub(from) as usize)?;
        if let Some(i) = bytes.iter().position(|b| *b != 0) {
            out.push(Error::corruption(
                path,
                from + i as u64,
                format!(
                    "a byte {:02x} in the zeros behind a record; no entry is touched by it",
                    bytes[i]
                ),
            ));
        }
    }
    Ok(out)
}
