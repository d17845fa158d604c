//! The extents of a stream, as its manifest names them, and the edits that change them.
//!
//! An edit is a list of changes: a tag, the bytes of the change, the change. A reader that does not
//! know a tag refuses it if it is below 128, and ignores it otherwise.

use crate::extent::ExtentId;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::encoding::{get_varint64, put_varint};
use std::collections::BTreeMap;

const STREAM: u64 = 1;
const NEXT_MANIFEST: u64 = 2;
const ADD: u64 = 3;
const SEAL: u64 = 4;
const ERASE: u64 = 5;
/// Tags from here on may be ignored by a reader that does not know them.
const IGNORABLE: u64 = 128;
/// Largest number of a manifest: numbers that count on from it do not overflow.
pub(crate) const LARGEST_NUMBER: u64 = u64::MAX >> 8;

/// A change of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The id of the stream. The first change of a manifest, and only that.
    Stream(u128),
    /// Manifests from this number on are free.
    NextManifest(u64),
    /// An extent begins.
    Add(NewExtent),
    /// An extent takes no more bytes, and has this many.
    Seal(ExtentId, u64),
    /// An extent is no longer a part of the stream.
    Erase(ExtentId),
}

/// An extent that becomes a part of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewExtent {
    pub id: ExtentId,
    /// A second random number: two extents with the same id are told apart by it.
    pub life: u128,
    /// The extent's place in the order of the stream.
    pub seq: u64,
}

/// An extent of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentEntry {
    pub life: u128,
    pub seq: u64,
    /// Its bytes, or `None` until it is sealed.
    pub len: Option<u64>,
}

/// The extents of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Catalog {
    pub stream_id: u128,
    pub next_manifest: u64,
    /// The place of the next extent in the order of the stream.
    pub next_seq: u64,
    pub extents: BTreeMap<ExtentId, ExtentEntry>,
}

impl Catalog {
    /// Returns the changes that make this catalog from an empty one.
    pub fn changes(&self) -> Vec<Change> {
        let mut out = vec![
            Change::Stream(self.stream_id),
            Change::NextManifest(self.next_manifest),
        ];
        for (id, entry) in self.in_order() {
            let ExtentEntry { life, seq, len } = entry;
            out.push(Change::Add(NewExtent { id, life, seq }));
            out.extend(len.map(|len| Change::Seal(id, len)));
        }
        out
    }

    /// Returns the extents in the order of the stream.
    pub fn in_order(&self) -> Vec<(ExtentId, ExtentEntry)> {
        let mut all: Vec<_> = self.extents.iter().map(|(id, e)| (*id, *e)).collect();
        all.sort_unstable_by_key(|(_, entry)| entry.seq);
        all
    }

    /// Applies changes. Returns `Corruption` without a file if one of them does not fit.
    pub fn apply(&mut self, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|change| self.apply_one(change))
    }

    fn apply_one(&mut self, change: &Change) -> Result<()> {
        if matches!(change, Change::Stream(_)) != (self.stream_id == 0) {
            let what =
                "the id of the stream is not the first change, or not the only one of its kind";
            return Err(misfit(what.to_string()));
        }
        match change {
            Change::Stream(id) => self.stream_id = *id,
            Change::NextManifest(n) => self.next_manifest = self.next_manifest.max(*n),
            Change::Add(NewExtent { id, life, seq }) => {
                if *seq < self.next_seq || *seq > LARGEST_NUMBER {
                    return Err(misfit(format!(
                        "the edit adds extent {id} out of its order"
                    )));
                }
                self.next_seq = seq + 1;
                let entry = ExtentEntry {
                    life: *life,
                    seq: *seq,
                    len: None,
                };
                if self.extents.insert(*id, entry).is_some() {
                    return Err(misfit(format!("the edit adds extent {id} again")));
                }
            }
            Change::Seal(id, len) => match self.extents.get_mut(id) {
                Some(entry) if entry.len.is_none() => entry.len = Some(*len),
                _ => {
                    return Err(misfit(format!(
                        "the edit seals extent {id}, which does not exist or is sealed"
                    )));
                }
            },
            Change::Erase(id) => {
                if self.extents.remove(id).is_none() {
                    return Err(misfit(format!(
                        "the edit erases extent {id}, which does not exist"
                    )));
                }
            }
        }
        Ok(())
    }
}

fn misfit(what: String) -> Error {
    Error::new(ErrorKind::Corruption, what)
}

/// Returns the bytes of an edit.
pub(crate) fn encode(changes: &[Change]) -> Vec<u8> {
    let mut out = Vec::new();
    for change in changes {
        let mut body = Vec::new();
        let tag = match change {
            Change::Stream(id) => {
                body.extend_from_slice(&id.to_le_bytes());
                STREAM
            }
            Change::NextManifest(n) => {
                put_varint(&mut body, *n);
                NEXT_MANIFEST
            }
            Change::Add(NewExtent { id, life, seq }) => {
                body.extend_from_slice(&id.0.to_le_bytes());
                body.extend_from_slice(&life.to_le_bytes());
                put_varint(&mut body, *seq);
                ADD
            }
            Change::Seal(id, len) => {
                body.extend_from_slice(&id.0.to_le_bytes());
                put_varint(&mut body, *len);
                SEAL
            }
            Change::Erase(id) => {
                body.extend_from_slice(&id.0.to_le_bytes());
                ERASE
            }
        };
        put_varint(&mut out, tag);
        put_varint(&mut out, body.len() as u64);
        out.extend_from_slice(&body);
    }
    out
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
        if !(STREAM..=ERASE).contains(&tag) {
            if tag < IGNORABLE {
                return Err(Error::unsupported(format!(
                    "an edit of the manifest has a change with tag {tag}, which a later version writes; open the stream with that version"
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
        let bytes = body.get(*at..*at + 8)?;
        *at += 8;
        Some(ExtentId(u64::from_le_bytes(bytes.try_into().ok()?)))
    };
    let change = match tag {
        STREAM => {
            at = 16;
            Change::Stream(u128::from_le_bytes(body.get(..16)?.try_into().ok()?))
        }
        NEXT_MANIFEST => {
            let n = get_varint64(body, &mut at)?;
            Change::NextManifest(Some(n).filter(|n| *n <= LARGEST_NUMBER)?)
        }
        ADD => {
            let id = id(&mut at)?;
            let life = body.get(8..24)?;
            at = 24;
            Change::Add(NewExtent {
                id,
                life: u128::from_le_bytes(life.try_into().ok()?),
                seq: get_varint64(body, &mut at)?,
            })
        }
        SEAL => Change::Seal(id(&mut at)?, get_varint64(body, &mut at)?),
        ERASE => Change::Erase(id(&mut at)?),
        _ => return None,
    };
    (at == body.len()).then_some(change)
}
