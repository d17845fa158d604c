//! The elements of streams in `redis.elements`, pinned to `docs/format/redis-keys.md`: tombstones
//! of deleted entries, consumer groups, their consumers, and pending entries.
//!
//! An element's key is the prefix of the stream's incarnation, a kind, and big-endian numbers. So
//! the groups of a stream come before their consumers, and the consumers come before the pending
//! entries.

use super::StreamId;
use crate::catalog::DATABASE;
use crate::layout;
use crate::store::ElementWrite;
use basalt::{Bytes, Error, ErrorKind, Result};

const TOMBSTONE: u8 = 0;
const GROUP: u8 = 1;
const CONSUMER: u8 = 2;
const PENDING: u8 = 3;

/// Bytes of the key before the kind.
const PREFIX_LEN: usize = layout::KEY_PREFIX_LEN + 8;
/// The encoded number of entries read if the group does not know the number.
const UNKNOWN: u64 = u64::MAX;

/// A decoded element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Element {
    /// The entry with this LSN was deleted.
    Tombstone { lsn: u64 },
    Group {
        group: u64,
        last_id: StreamId,
        entries_read: Option<u64>,
        name: Bytes,
    },
    Consumer {
        group: u64,
        consumer: u64,
        seen_ms: u64,
        name: Bytes,
    },
    Pending {
        group: u64,
        consumer: u64,
        id: StreamId,
        /// The entry's LSN.
        lsn: u64,
        delivered_ms: u64,
        deliveries: u64,
    },
}

/// Returns the prefix of the elements of a stream.
pub(crate) fn prefix(generation: u32, incarnation: u64) -> [u8; PREFIX_LEN] {
    layout::element_prefix(DATABASE, generation, incarnation)
}

fn key(prefix: &[u8; PREFIX_LEN], kind: u8, numbers: &[u64]) -> Bytes {
    let mut out = Vec::with_capacity(PREFIX_LEN + 1 + 8 * numbers.len());
    out.extend_from_slice(prefix);
    out.push(kind);
    for n in numbers {
        out.extend_from_slice(&n.to_be_bytes());
    }
    out.into()
}

fn value(numbers: &[u64], name: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(8 * numbers.len() + name.len());
    for n in numbers {
        out.extend_from_slice(&n.to_le_bytes());
    }
    out.extend_from_slice(name);
    out.into()
}

/// Returns the key and the value of an element.
pub(crate) fn encode(prefix: &[u8; PREFIX_LEN], element: &Element) -> (Bytes, Bytes) {
    match element {
        Element::Tombstone { lsn } => (key(prefix, TOMBSTONE, &[*lsn]), Bytes::new()),
        Element::Group {
            group,
            last_id,
            entries_read,
            name,
        } => {
            let numbers = [last_id.ms, last_id.seq, entries_read.unwrap_or(UNKNOWN)];
            (key(prefix, GROUP, &[*group]), value(&numbers, name))
        }
        Element::Consumer {
            group,
            consumer,
            seen_ms,
            name,
        } => {
            let key = key(prefix, CONSUMER, &[*group, *consumer]);
            (key, value(&[*seen_ms], name))
        }
        Element::Pending {
            group,
            consumer,
            id,
            lsn,
            delivered_ms,
            deliveries,
        } => {
            let key = key(prefix, PENDING, &[*group, *consumer, id.ms, id.seq]);
            (key, value(&[*lsn, *delivered_ms, *deliveries], &[]))
        }
    }
}

fn numbers<const N: usize>(bytes: &[u8], decode: fn([u8; 8]) -> u64) -> Option<([u64; N], &[u8])> {
    let (head, rest) = bytes.split_at_checked(8 * N)?;
    let n = |i: usize| decode(head[8 * i..8 * i + 8].try_into().expect("8 bytes"));
    Some((std::array::from_fn(n), rest))
}

fn exact<const N: usize>(bytes: &[u8], decode: fn([u8; 8]) -> u64) -> Option<[u64; N]> {
    let (numbers, rest) = numbers(bytes, decode)?;
    rest.is_empty().then_some(numbers)
}

/// Decodes the element at a key.
///
/// Errors: `Unsupported` for a kind of a later version; `Corruption`.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Element> {
    let (kind, at) = match key.get(PREFIX_LEN..) {
        Some([kind, at @ ..]) => (*kind, at),
        _ => return Err(damaged("its key has no kind")),
    };
    let (be, le) = (u64::from_be_bytes as fn([u8; 8]) -> u64, u64::from_le_bytes);
    let element = match kind {
        TOMBSTONE => exact(at, be)
            .filter(|_| value.is_empty())
            .map(|[lsn]| Element::Tombstone { lsn }),
        GROUP => exact(at, be)
            .zip(numbers(value, le))
            .map(|([group], (value, name))| {
                let [ms, seq, read] = value;
                Element::Group {
                    group,
                    last_id: StreamId::new(ms, seq),
                    entries_read: (read != UNKNOWN).then_some(read),
                    name: Bytes::copy_from_slice(name),
                }
            }),
        CONSUMER => exact(at, be)
            .zip(numbers(value, le))
            .map(|(at, (value, name))| {
                let ([group, consumer], [seen_ms]) = (at, value);
                Element::Consumer {
                    group,
                    consumer,
                    seen_ms,
                    name: Bytes::copy_from_slice(name),
                }
            }),
        PENDING => exact(at, be).zip(exact(value, le)).map(|(at, value)| {
            let ([group, consumer, ms, seq], [lsn, delivered_ms, deliveries]) = (at, value);
            Element::Pending {
                group,
                consumer,
                id: StreamId::new(ms, seq),
                lsn,
                delivered_ms,
                deliveries,
            }
        }),
        kind => {
            return Err(Error::unsupported(format!(
                "an element of kind {kind}, which a newer version wrote"
            )));
        }
    };
    element.ok_or_else(|| damaged("its key or value has a wrong length"))
}

/// Returns the error of a damaged element.
pub(crate) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("damaged: {what}"))
}

/// Collects the writes of elements of one stream, in their order.
pub(crate) struct ElementWriter {
    prefix: [u8; PREFIX_LEN],
    pub writes: Vec<ElementWrite>,
}

impl ElementWriter {
    pub fn new(generation: u32, incarnation: u64) -> ElementWriter {
        ElementWriter {
            prefix: prefix(generation, incarnation),
            writes: Vec::new(),
        }
    }

    pub fn put(&mut self, element: &Element) {
        let (key, value) = encode(&self.prefix, element);
        self.writes.push(ElementWrite::Put { key, value });
    }

    fn delete(&mut self, key: Bytes) {
        self.writes.push(ElementWrite::Delete { key });
    }

    fn delete_range(&mut self, from: &[u8]) {
        self.writes.push(ElementWrite::DeleteRange {
            from: Bytes::copy_from_slice(from),
            to: layout::prefix_end(from).into(),
        });
    }

    pub fn delete_tombstone(&mut self, lsn: u64) {
        let key = key(&self.prefix, TOMBSTONE, &[lsn]);
        self.delete(key);
    }

    pub fn delete_pending(&mut self, group: u64, consumer: u64, id: StreamId) {
        let key = key(&self.prefix, PENDING, &[group, consumer, id.ms, id.seq]);
        self.delete(key);
    }

    /// Deletes a consumer and its pending entries, in one write for any number of them.
    pub fn delete_consumer(&mut self, group: u64, consumer: u64, has_pending: bool) {
        let own = key(&self.prefix, CONSUMER, &[group, consumer]);
        self.delete(own);
        if has_pending {
            let pending = key(&self.prefix, PENDING, &[group, consumer]);
            self.delete_range(&pending);
        }
    }

    /// Deletes a group, its consumers and their pending entries.
    pub fn delete_group(&mut self, group: u64, has_consumers: bool, has_pending: bool) {
        let own = key(&self.prefix, GROUP, &[group]);
        self.delete(own);
        for (kind, is_there) in [(CONSUMER, has_consumers), (PENDING, has_pending)] {
            if is_there {
                let of_group = key(&self.prefix, kind, &[group]);
                self.delete_range(&of_group);
            }
        }
    }
}

#[cfg(test)]
mod tests;
