//! Changes and states of the page mapping table as the system log and system checkpoints have them.

use super::{Change, Delta, Pages, Part, State};
use crate::page_id::PageId;
use basalt_kv::encoding::{get_varint64, put_varint};
use smallvec::SmallVec;
use std::sync::Arc;

/// Appends bytes with their length before them.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what [`put_bytes`] has appended. Returns `None` if it is cut off.
pub(crate) fn get_bytes<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let len = usize::try_from(get_varint64(bytes, at)?).ok()?;
    let found = bytes.get(*at..at.checked_add(len)?)?;
    *at += len;
    Some(found)
}

fn get_u8(bytes: &[u8], at: &mut usize) -> Option<u8> {
    let byte = *bytes.get(*at)?;
    *at += 1;
    Some(byte)
}

/// Reads the pages that replaced a page, with their smallest keys. Returns `None` if there are
/// none, if keys do not rise, or if the bytes are cut off.
fn decode_rewrite<'a>(bytes: &'a [u8], at: &mut usize) -> Option<Vec<(&'a [u8], PageId)>> {
    let count = get_varint64(bytes, at)?;
    let mut with: Vec<(&[u8], PageId)> = Vec::new();
    for _ in 0..count {
        let low = get_bytes(bytes, at)?;
        if with.last().is_some_and(|(before, _)| *before >= low) {
            return None;
        }
        with.push((low, PageId::decode(bytes, at)?));
    }
    (!with.is_empty()).then_some(with)
}

impl Change {
    /// Appends the change as the system log has it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Change::Append {
                key,
                delta,
                to_index,
            } => {
                out.push(if *to_index { 5 } else { 1 });
                key.encode(out);
                delta.encode(out);
            }
            Change::Consolidate {
                key,
                kept,
                replaced,
                with,
            } => {
                out.push(2);
                key.encode(out);
                put_varint(out, u64::from(*kept));
                put_varint(out, u64::from(*replaced));
                out.push(u8::from(with.is_some()));
                if let Some(delta) = with {
                    delta.encode(out);
                }
            }
            Change::Overwrite {
                key,
                replaced,
                base,
            } => {
                out.push(3);
                key.encode(out);
                put_varint(out, u64::from(*replaced));
                base.encode(out);
            }
            Change::Rewrite {
                key,
                replaced,
                with,
            } => {
                out.push(4);
                key.encode(out);
                put_varint(out, u64::from(*replaced));
                put_varint(out, with.len() as u64);
                for (low, id) in with {
                    put_bytes(out, low);
                    id.encode(out);
                }
            }
        }
    }

    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<Change> {
        let kind = get_u8(bytes, at)?;
        let key = PageId::decode(bytes, at)?;
        if kind == 1 || kind == 5 {
            return Some(Change::Append {
                key,
                delta: PageId::decode(bytes, at)?,
                to_index: kind == 5,
            });
        }
        let kept = match kind {
            2 => u32::try_from(get_varint64(bytes, at)?).ok()?,
            _ => 0,
        };
        let replaced = u32::try_from(get_varint64(bytes, at)?).ok()?;
        match kind {
            2 => Some(Change::Consolidate {
                key,
                kept,
                replaced,
                with: match get_u8(bytes, at)? {
                    0 => None,
                    1 => Some(PageId::decode(bytes, at)?),
                    _ => return None,
                },
            }),
            3 => Some(Change::Overwrite {
                key,
                replaced,
                base: PageId::decode(bytes, at)?,
            }),
            4 => {
                let with = decode_rewrite(bytes, at)?;
                let with = with
                    .into_iter()
                    .map(|(low, id)| (low.to_vec(), id))
                    .collect();
                Some(Change::Rewrite {
                    key,
                    replaced,
                    with,
                })
            }
            _ => None,
        }
    }
}

impl State {
    /// Appends the state as a system checkpoint has it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            State::Live(pages) => {
                out.push(if pages.has_index_deltas { 3 } else { 1 });
                pages.base.encode(out);
                put_varint(out, pages.deltas.len() as u64);
                for delta in &pages.deltas {
                    delta.id.encode(out);
                    let Some(part) = &delta.part else {
                        out.push(0);
                        continue;
                    };
                    out.push(1 | u8::from(part.has_low) << 1 | u8::from(part.high.is_some()) << 2);
                    put_bytes(out, &part.low);
                    if let Some(high) = &part.high {
                        put_bytes(out, high);
                    }
                }
            }
            State::Rewritten(with) => {
                out.push(2);
                put_varint(out, with.len() as u64);
                for (low, id) in with.iter() {
                    put_bytes(out, low);
                    id.encode(out);
                }
            }
        }
    }

    pub fn decode(bytes: &[u8], at: &mut usize) -> Option<State> {
        match get_u8(bytes, at)? {
            kind @ (1 | 3) => {
                let base = PageId::decode(bytes, at)?;
                let mut deltas = SmallVec::new();
                for _ in 0..get_varint64(bytes, at)? {
                    let id = PageId::decode(bytes, at)?;
                    let part = match get_u8(bytes, at)? {
                        0 => None,
                        flags if flags & 1 == 1 && flags < 8 => {
                            let low: Arc<[u8]> = get_bytes(bytes, at)?.into();
                            let high: Option<Arc<[u8]>> = match flags & 4 {
                                0 => None,
                                _ => Some(get_bytes(bytes, at)?.into()),
                            };
                            let has_low = flags & 2 != 0;
                            // A delta page without a key that counts is not in a chain.
                            if has_low && high.as_ref().is_some_and(|high| low >= *high) {
                                return None;
                            }
                            Some(Box::new(Part { low, has_low, high }))
                        }
                        _ => return None,
                    };
                    deltas.push(Delta { id, part });
                }
                Some(State::Live(Pages {
                    base,
                    deltas,
                    has_index_deltas: kind == 3,
                }))
            }
            2 => {
                let with = decode_rewrite(bytes, at)?.into_iter();
                let with = with.map(|(low, id)| (low.into(), id)).collect();
                Some(State::Rewritten(with))
            }
            _ => None,
        }
    }
}
