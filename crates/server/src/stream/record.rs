//! The encodings of stream entries and of a stream's fields, pinned to `docs/format/redis-keys.md`.

use super::StreamId;
use crate::layout::{CollectionHeader, DataType};
use basalt::{Bytes, Error, ErrorKind, Result};

/// The format of a record, its first byte.
const FORMAT: u8 = 1;
/// Bytes of a record before its fields.
const HEAD_LEN: usize = 1 + 4 * 8 + 4;
/// Bytes of a stream's fields after its [`CollectionHeader`].
const STATE_LEN: usize = 7 * 8;

/// The state of a stream in a record or in a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamState {
    /// The largest id ever added, or set with XSETID.
    pub last_id: StreamId,
    /// The largest id that XDEL removed.
    pub max_deleted_id: StreamId,
    /// Number of entries ever added.
    pub entries_added: u64,
    /// The LSN of the first live entry, or `next_lsn` if there is none.
    pub first_lsn: u64,
    /// The LSN of the next entry, at least 1.
    pub next_lsn: u64,
}

impl Default for StreamState {
    fn default() -> StreamState {
        StreamState {
            last_id: StreamId::MIN,
            max_deleted_id: StreamId::MIN,
            entries_added: 0,
            first_lsn: 1,
            next_lsn: 1,
        }
    }
}

/// A decoded record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub id: StreamId,
    /// The LSN of the first live entry after the command that added this one.
    pub first_lsn: u64,
    pub entries_added: u64,
    /// Number of fields and values together.
    pub words: usize,
    /// Fields and values. The length (u32) of each precedes its bytes.
    pub body: Bytes,
}

impl Record {
    /// Visits fields and values in turn.
    pub fn for_each_word(&self, mut visit: impl FnMut(&[u8])) {
        let mut rest = &self.body[..];
        while let Some((len, tail)) = rest.split_first_chunk::<4>() {
            let (word, tail) = tail.split_at(u32::from_le_bytes(*len) as usize);
            visit(word);
            rest = tail;
        }
    }
}

fn damaged(what: String) -> Error {
    Error::new(ErrorKind::Corruption, what)
}

/// Returns the record of an entry.
pub(crate) fn encode_record<'a>(
    id: StreamId,
    first_lsn: u64,
    entries_added: u64,
    words: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
) -> Bytes {
    let bytes = words.clone().map(|w| 4 + w.len()).sum::<usize>();
    let mut out = Vec::with_capacity(HEAD_LEN + bytes);
    out.push(FORMAT);
    for n in [id.ms, id.seq, first_lsn, entries_added] {
        out.extend_from_slice(&n.to_le_bytes());
    }
    out.extend_from_slice(&(words.len() as u32).to_le_bytes());
    for word in words {
        out.extend_from_slice(&(word.len() as u32).to_le_bytes());
        out.extend_from_slice(word);
    }
    out.into()
}

/// Decodes a record.
///
/// Errors: `Unsupported` for the format of a later version; `Corruption`.
pub(crate) fn decode_record(record: &Bytes) -> Result<Record> {
    if let Some(format) = record.first().filter(|format| **format != FORMAT) {
        return Err(Error::unsupported(format!(
            "a stream entry of format {format}, which a newer version wrote"
        )));
    }
    if record.len() < HEAD_LEN {
        return Err(damaged(format!(
            "stream entry: expected at least {HEAD_LEN} bytes, found {}",
            record.len()
        )));
    }
    let n = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
    let words = u32::from_le_bytes(record[33..37].try_into().expect("4 bytes")) as usize;
    let body = record.slice(HEAD_LEN..);
    let (mut rest, mut found) = (&body[..], 0);
    while !rest.is_empty() {
        let word = rest
            .split_first_chunk::<4>()
            .and_then(|(len, tail)| tail.split_at_checked(u32::from_le_bytes(*len) as usize));
        let Some((_, tail)) = word else {
            return Err(damaged(format!(
                "stream entry: field {found} is longer than the record"
            )));
        };
        (rest, found) = (tail, found + 1);
    }
    if found != words {
        return Err(damaged(format!(
            "stream entry: expected {words} fields and values, found {found}"
        )));
    }
    Ok(Record {
        id: StreamId::new(n(1), n(9)),
        first_lsn: n(17),
        entries_added: n(25),
        words,
        body,
    })
}

/// Returns the value of a stream of `len` live entries in `redis.keys`, without its type byte.
pub(crate) fn encode_state(
    incarnation: u64,
    expire_at_ms: Option<u64>,
    len: u64,
    state: &StreamState,
) -> Bytes {
    let header = CollectionHeader {
        data_type: DataType::Stream,
        encoding: 0,
        incarnation,
        expire_at_ms: expire_at_ms.unwrap_or(0),
        len,
    };
    let mut out = header.encode()[1..].to_vec();
    let (last, deleted) = (state.last_id, state.max_deleted_id);
    let ids = [last.ms, last.seq, deleted.ms, deleted.seq];
    let counts = [state.entries_added, state.first_lsn, state.next_lsn];
    for n in ids.into_iter().chain(counts) {
        out.extend_from_slice(&n.to_le_bytes());
    }
    out.into()
}

/// Decodes the value of a stream in `redis.keys`, without its type byte.
///
/// Errors: `Unsupported` for another encoding; `Corruption`.
pub(crate) fn decode_state(data: &[u8]) -> Result<(CollectionHeader, StreamState)> {
    let value = [&[DataType::Stream as u8], data].concat();
    let (header, rest) = CollectionHeader::decode(&value)?;
    if header.encoding != 0 {
        return Err(Error::unsupported(format!(
            "a stream of encoding {}, which a newer version wrote",
            header.encoding
        )));
    }
    if rest.len() != STATE_LEN {
        return Err(damaged(format!(
            "stream: expected {STATE_LEN} bytes after the header, found {}",
            rest.len()
        )));
    }
    let n = |i: usize| u64::from_le_bytes(rest[8 * i..8 * i + 8].try_into().expect("8 bytes"));
    let state = StreamState {
        last_id: StreamId::new(n(0), n(1)),
        max_deleted_id: StreamId::new(n(2), n(3)),
        entries_added: n(4),
        first_lsn: n(5),
        next_lsn: n(6),
    };
    match (1..=state.next_lsn).contains(&state.first_lsn) {
        true => Ok((header, state)),
        false => Err(damaged(format!(
            "stream: the first live LSN {} is above the next LSN {}",
            state.first_lsn, state.next_lsn
        ))),
    }
}

#[cfg(test)]
mod tests;
