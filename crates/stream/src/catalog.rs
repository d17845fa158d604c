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
const LARGEST_NUMBER: u64 = u64::MAX >> 8;

/// A change of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The id of the stream. The first change of a manifest.
    Stream(u128),
    /// Manifests from this number on are free.
    NextManifest(u64),
    /// An extent begins.
    Add(ExtentId),
    /// An extent takes no more bytes, and has this many, all of them synced.
    Seal(ExtentId, u64),
    /// An extent is no longer a part of the stream.
    Erase(ExtentId),
}

/// The extents of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Catalog {
    pub stream_id: u128,
    pub next_manifest: u64,
    /// The bytes of each extent, or `None` until it is sealed.
    pub extents: BTreeMap<ExtentId, Option<u64>>,
}

impl Catalog {
    /// Returns the changes that make this catalog from an empty one.
    pub fn changes(&self) -> Vec<Change> {
        let mut out = vec![
            Change::Stream(self.stream_id),
            Change::NextManifest(self.next_manifest),
        ];
        for (id, len) in &self.extents {
            out.push(Change::Add(*id));
            out.extend(len.map(|len| Change::Seal(*id, len)));
        }
        out
    }

    /// Applies changes. Returns `Corruption` without a file if one of them does not fit.
    pub fn apply(&mut self, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|change| self.apply_one(change))
    }

    fn apply_one(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Stream(id) => self.stream_id = *id,
            Change::NextManifest(n) => self.next_manifest = self.next_manifest.max(*n),
            Change::Add(id) => {
                if self.extents.insert(*id, None).is_some() {
                    return Err(misfit(format!("the edit adds extent {id} again")));
                }
            }
            Change::Seal(id, len) => match self.extents.get_mut(id) {
                Some(sealed @ None) => *sealed = Some(*len),
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
            Change::Add(id) => {
                body.extend_from_slice(&id.0.to_le_bytes());
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
        ADD => Change::Add(id(&mut at)?),
        SEAL => Change::Seal(id(&mut at)?, get_varint64(body, &mut at)?),
        ERASE => Change::Erase(id(&mut at)?),
        _ => return None,
    };
    (at == body.len()).then_some(change)
}
