//! The files of a log store, as its manifest names them, and the edits that change them.
//!
//! An edit is a list of changes: a tag, the bytes of the change, the change. A reader that does not
//! know a tag refuses it if it is below 128, and ignores it otherwise.

use basalt_fs::{Error, Result};
use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_records::FileHeader;
use std::collections::BTreeMap;

const STORE: u64 = 1;
const NEXT_FILE: u64 = 2;
const ADD: u64 = 3;
const END: u64 = 4;
const REMOVE: u64 = 5;
const CHECKPOINT: u64 = 6;
/// Tags from here on may be ignored by a reader that does not know them.
const IGNORABLE: u64 = 128;
const NAMES: u64 = 128;

/// What a physical log is for. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Role {
    /// Records as users append them.
    Data = 1,
    /// Records that a garbage collection has moved.
    Moved = 2,
    /// Operations on logical logs, and pages of their indexes.
    Meta = 3,
}

impl Role {
    fn of_number(n: u64) -> Option<Role> {
        match n {
            1 => Some(Role::Data),
            2 => Some(Role::Moved),
            3 => Some(Role::Meta),
            _ => None,
        }
    }

    /// Returns the extension of such a file's name.
    pub fn extension(self) -> &'static str {
        match self {
            Role::Data => "data",
            Role::Moved => "moved",
            Role::Meta => "meta",
        }
    }
}

/// A physical log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PhysicalFile {
    /// Random id of this life of the file's space.
    pub file_id: u128,
    pub role: Role,
    /// The end of its records. `None` for a file that is being written.
    pub end: Option<FileEnd>,
}

/// The end of a physical log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileEnd {
    /// Offset of the end of its records, all of them synced.
    pub offset: u64,
    /// Offset of the last record of the reverse index, or `None` if the file has none.
    pub reverse_index: Option<u64>,
}

/// The newest checkpoint, or the names file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointFile {
    /// Number of the file.
    pub number: u64,
    pub file_id: u128,
    /// Offset of the end of its records.
    pub end: u64,
}

impl CheckpointFile {
    /// Returns the file with this header, if nothing says where its records end.
    pub fn without_end(header: &FileHeader) -> CheckpointFile {
        CheckpointFile {
            number: header.number,
            file_id: header.file_id,
            end: 0,
        }
    }
}

/// A change of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The id of the store. The first change of a manifest.
    Store(u128),
    /// Numbers from here on are free.
    NextFile(u64),
    /// A physical log begins.
    Add(u64, PhysicalFile),
    /// A physical log takes no more records, and all of it is synced up to its end.
    End(u64, FileEnd),
    /// A physical log is no longer needed.
    Remove(u64),
    /// A new checkpoint. The previous checkpoint and its names file are no longer named.
    Checkpoint(CheckpointFile),
    /// The names file of the newest checkpoint. Earlier versions ignore it.
    Names(CheckpointFile),
}

/// The files of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Catalog {
    pub store_id: u128,
    pub next_file: u64,
    pub files: BTreeMap<u64, PhysicalFile>,
    pub checkpoint: Option<CheckpointFile>,
    /// The names file of `checkpoint`; `None` if a version without names files wrote it.
    pub names: Option<CheckpointFile>,
}

impl Catalog {
    /// Returns the changes that make this catalog from an empty one.
    pub fn changes(&self) -> Vec<Change> {
        let mut out = vec![
            Change::Store(self.store_id),
            Change::NextFile(self.next_file),
        ];
        out.extend(self.files.iter().map(|(n, f)| Change::Add(*n, *f)));
        out.extend(self.checkpoint.map(Change::Checkpoint));
        out.extend(self.names.map(Change::Names));
        out
    }

    /// Applies changes. Returns `Corruption` without a file if one of them does not fit.
    pub fn apply(&mut self, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|change| self.apply_one(change))
    }

    fn apply_one(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Store(id) => self.store_id = *id,
            Change::NextFile(n) => self.next_file = self.next_file.max(*n),
            Change::Add(n, file) => {
                if self.files.insert(*n, *file).is_some() {
                    return Err(misfit(format!(
                        "the edit adds physical log {n}, which already exists"
                    )));
                }
                self.next_file = self.next_file.max(n + 1);
            }
            Change::End(n, end) => match self.files.get_mut(n) {
                Some(file) if file.end.is_none() => file.end = Some(*end),
                _ => {
                    return Err(misfit(format!(
                        "the edit ends physical log {n}, which does not exist or has ended"
                    )));
                }
            },
            Change::Remove(n) => {
                if self.files.remove(n).is_none() {
                    return Err(misfit(format!(
                        "the edit removes physical log {n}, which does not exist"
                    )));
                }
            }
            Change::Checkpoint(c) => {
                (self.checkpoint, self.names) = (Some(*c), None);
                self.next_file = self.next_file.max(c.number.saturating_add(1));
            }
            Change::Names(c) => {
                self.names = Some(*c);
                self.next_file = self.next_file.max(c.number.saturating_add(1));
            }
        }
        Ok(())
    }
}

fn misfit(what: String) -> Error {
    Error::new(basalt_fs::ErrorKind::Corruption, what)
}

/// Returns the bytes of an edit.
pub(crate) fn encode(changes: &[Change]) -> Vec<u8> {
    let mut out = Vec::new();
    for change in changes {
        let mut body = Vec::new();
        let tag = match change {
            Change::Store(id) => {
                body.extend_from_slice(&id.to_le_bytes());
                STORE
            }
            Change::NextFile(n) => {
                put_varint(&mut body, *n);
                NEXT_FILE
            }
            Change::Add(n, file) => {
                put_varint(&mut body, *n);
                put_varint(&mut body, file.role as u64);
                body.extend_from_slice(&file.file_id.to_le_bytes());
                if let Some(end) = &file.end {
                    encode_end(&mut body, end);
                }
                ADD
            }
            Change::End(n, end) => {
                put_varint(&mut body, *n);
                encode_end(&mut body, end);
                END
            }
            Change::Remove(n) => {
                put_varint(&mut body, *n);
                REMOVE
            }
            Change::Checkpoint(c) => {
                encode_checkpoint(&mut body, c);
                CHECKPOINT
            }
            Change::Names(c) => {
                encode_checkpoint(&mut body, c);
                NAMES
            }
        };
        put_varint(&mut out, tag);
        put_varint(&mut out, body.len() as u64);
        out.extend_from_slice(&body);
    }
    out
}

fn encode_checkpoint(out: &mut Vec<u8>, c: &CheckpointFile) {
    put_varint(out, c.number);
    put_varint(out, c.end);
    out.extend_from_slice(&c.file_id.to_le_bytes());
}

fn encode_end(out: &mut Vec<u8>, end: &FileEnd) {
    put_varint(out, end.offset);
    // No record lies at offset 0.
    put_varint(out, end.reverse_index.unwrap_or(0));
}

fn decode_end(body: &[u8], at: &mut usize) -> Option<FileEnd> {
    Some(FileEnd {
        offset: get_varint64(body, at)?,
        reverse_index: Some(get_varint64(body, at)?).filter(|offset| *offset > 0),
    })
}

/// Decodes an edit.
///
/// Errors: `Corruption` without a file for bytes that are no edit; `Unsupported` for a change that
/// this version must not ignore.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Change>> {
    let cut = || misfit("an edit of the manifest is cut off".to_string());
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let tag = get_varint64(bytes, &mut at).ok_or_else(cut)?;
        let len = get_varint64(bytes, &mut at).ok_or_else(cut)?;
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| at.checked_add(len));
        let body = end.and_then(|end| bytes.get(at..end)).ok_or_else(cut)?;
        at += body.len();
        if !(STORE..=CHECKPOINT).contains(&tag) && tag != NAMES {
            if tag < IGNORABLE {
                return Err(Error::unsupported(format!(
                    "an edit of the manifest has a change with tag {tag}, which a later version writes; open the store with that version"
                )));
            }
            continue;
        }
        let change = decode_change(tag, body).ok_or_else(|| {
            misfit(format!(
                "a change with tag {tag} in an edit of the manifest does not decode"
            ))
        })?;
        out.push(change);
    }
    Ok(out)
}

fn decode_change(tag: u64, body: &[u8]) -> Option<Change> {
    let mut at = 0;
    let id = |at: &mut usize| {
        let bytes = body.get(*at..at.checked_add(16)?)?;
        *at += 16;
        Some(u128::from_le_bytes(bytes.try_into().ok()?))
    };
    let change = match tag {
        STORE => Change::Store(id(&mut at)?),
        NEXT_FILE => Change::NextFile(number(body, &mut at)?),
        ADD => {
            let n = number(body, &mut at)?;
            let role = Role::of_number(get_varint64(body, &mut at)?)?;
            let file_id = id(&mut at)?;
            let end = match at < body.len() {
                true => Some(decode_end(body, &mut at)?),
                false => None,
            };
            Change::Add(n, PhysicalFile { file_id, role, end })
        }
        END => Change::End(number(body, &mut at)?, decode_end(body, &mut at)?),
        REMOVE => Change::Remove(number(body, &mut at)?),
        CHECKPOINT | NAMES => {
            let file = CheckpointFile {
                number: number(body, &mut at)?,
                end: get_varint64(body, &mut at)?,
                file_id: id(&mut at)?,
            };
            match tag {
                CHECKPOINT => Change::Checkpoint(file),
                _ => Change::Names(file),
            }
        }
        _ => return None,
    };
    (at == body.len()).then_some(change)
}

/// Largest file number that a manifest may have: numbers that count on from it do not overflow.
const LARGEST_NUMBER: u64 = u64::MAX >> 8;

fn number(body: &[u8], at: &mut usize) -> Option<u64> {
    get_varint64(body, at).filter(|n| *n <= LARGEST_NUMBER)
}

#[cfg(test)]
mod tests;
