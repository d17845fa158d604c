//! Operations on logical logs, as records of the metalog have them.

use crate::index::PAGE;
use crate::mapping::Mapping;
use crate::options::{Duplicates, LogOptions};
use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_records::RecordKind;
use std::ops::RangeInclusive;

/// Most bytes of a log's name.
pub(crate) const LARGEST_NAME: usize = 1024;

const CREATE: u8 = 1;
const DELETE: u8 = 2;
const TRIM: u8 = 3;
const REMOVE: u8 = 4;
const PAGE_TAG: u8 = 5;
const RENAME: u8 = 6;

/// Appends the name of a log to `out`, behind its length.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    put_varint(out, name.len() as u64);
    out.extend_from_slice(name.as_bytes());
}

/// Decodes the name of a log. Returns `None` if the bytes are none.
pub(crate) fn get_name(bytes: &[u8], at: &mut usize) -> Option<String> {
    let len = usize::try_from(get_varint64(bytes, at)?).ok()?;
    let name = bytes.get(*at..at.checked_add(len)?)?;
    *at += len;
    let name = std::str::from_utf8(name).ok()?.to_string();
    (!name.is_empty() && len <= LARGEST_NAME).then_some(name)
}

/// An operation on a logical log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogOp {
    /// A log begins.
    Create {
        log: u64,
        name: String,
        options: LogOptions,
    },
    /// A log and all its records are gone. Its number is not used again.
    Delete { log: u64 },
    /// Records up to an LSN are gone, and later appends of such LSNs are refused.
    Trim { log: u64, up_to: u64 },
    /// Records of a range that were appended before this operation are gone.
    Remove {
        log: u64,
        range: RangeInclusive<u64>,
    },
    /// A MetaFlush record: entries that move from L0 to L1. The only operation of its record.
    Page { log: u64, mapping: Mapping },
    /// A log has another name. In a record of kind [`RecordKind::LogNames`], which earlier versions
    /// refuse.
    Rename { log: u64, name: String },
}

impl LogOp {
    /// Returns the number of the log.
    pub fn log(&self) -> u64 {
        match self {
            LogOp::Create { log, .. }
            | LogOp::Delete { log }
            | LogOp::Trim { log, .. }
            | LogOp::Remove { log, .. }
            | LogOp::Page { log, .. }
            | LogOp::Rename { log, .. } => *log,
        }
    }

    /// Returns the kind of the records that have the operation.
    pub fn record_kind(&self) -> RecordKind {
        match self {
            LogOp::Rename { .. } => RecordKind::LogNames,
            _ => RecordKind::LogOps,
        }
    }

    /// Returns true for an operation that makes records garbage. It may use the reserve of a full
    /// disk.
    pub fn frees_space(&self) -> bool {
        match self {
            LogOp::Delete { .. } | LogOp::Trim { .. } | LogOp::Remove { .. } => true,
            LogOp::Create { .. } | LogOp::Rename { .. } | LogOp::Page { .. } => false,
        }
    }

    /// Appends the operation to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            LogOp::Create { .. } => CREATE,
            LogOp::Delete { .. } => DELETE,
            LogOp::Trim { .. } => TRIM,
            LogOp::Remove { .. } => REMOVE,
            LogOp::Page { .. } => PAGE_TAG,
            LogOp::Rename { .. } => RENAME,
        });
        put_varint(out, self.log());
        match self {
            LogOp::Create { name, options, .. } => {
                out.push(options.duplicates as u8);
                put_name(out, name);
            }
            LogOp::Rename { name, .. } => put_name(out, name),
            LogOp::Delete { .. } => {}
            LogOp::Trim { up_to, .. } => {
                put_varint(out, *up_to);
            }
            LogOp::Remove { range, .. } => {
                put_varint(out, *range.start());
                put_varint(out, range.end() - range.start());
            }
            LogOp::Page { mapping, .. } => {
                put_varint(out, u64::from(mapping.count()));
                put_varint(out, mapping.bytes().len() as u64);
                out.extend_from_slice(mapping.bytes());
            }
        }
    }

    /// Decodes an operation. Returns `None` if the bytes are none.
    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<LogOp> {
        let tag = *bytes.get(*at)?;
        *at += 1;
        let log = get_varint64(bytes, at)?;
        let take = |at: &mut usize, len: u64| {
            let end = at.checked_add(usize::try_from(len).ok()?)?;
            let found = bytes.get(*at..end)?;
            *at = end;
            Some(found)
        };
        Some(match tag {
            CREATE => {
                let duplicates = Duplicates::of_number(take(at, 1)?[0])?;
                LogOp::Create {
                    log,
                    name: get_name(bytes, at)?,
                    options: LogOptions { duplicates },
                }
            }
            RENAME => LogOp::Rename {
                log,
                name: get_name(bytes, at)?,
            },
            DELETE => LogOp::Delete { log },
            TRIM => LogOp::Trim {
                log,
                // The number above the largest LSN has other meanings.
                up_to: get_varint64(bytes, at).filter(|up_to| *up_to < u64::MAX)?,
            },
            REMOVE => {
                let start = get_varint64(bytes, at)?;
                let end = start.checked_add(get_varint64(bytes, at)?)?;
                LogOp::Remove {
                    log,
                    range: start..=end,
                }
            }
            PAGE_TAG => {
                let count = u32::try_from(get_varint64(bytes, at)?).ok()?;
                let len = get_varint64(bytes, at)?;
                let encoded = take(at, len)?;
                if count > PAGE {
                    return None;
                }
                LogOp::Page {
                    log,
                    mapping: Mapping::decode(encoded, count)?,
                }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
