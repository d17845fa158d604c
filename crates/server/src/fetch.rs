//! Fetches: reads of the store that would hold the event loop for too long. The request waits on
//! its connection while another thread reads. When the answers are there, the request runs again
//! ([`docs/decisions/0030`](../../../docs/decisions/0030-bounded-turns.md)).
//!
//! # Why a command stays atomic
//! The command runs once, on the loop, after everything was read. The loop is the only writer of
//! the store. A key that is in no epoch when the read of it is asked for, and that no command
//! writes before the answer is used, has had one value all that time. So a [`Fetch`] asks only for
//! keys that the overlay does not have, and [`Fetch::forget`] drops the answer for a key that is
//! written meanwhile; the command then reads that key anew.
//!
//! Requests with very many names have fetches of another kind ([`many_names`]).

pub(crate) mod many_names;

use crate::layer::Layer;
use crate::layout::{self, DataType};
use crate::names::KeyHash;
use crate::store::Store;
use crate::value::{Meta, Value};
use basalt::{Bytes, Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{BuildHasherDefault, Hasher};

/// Names of one piece of a fetch. After a piece, the thread serves other clients.
pub(crate) const PIECE_NAMES: usize = 1024;
/// Bytes of values of one piece from which on the rest is left for the next piece.
pub(crate) const PIECE_BYTES: usize = 16 << 20;
/// Number of fetches for one request, after which the loop reads the rest itself. So a request ends
/// even if others keep writing its keys.
pub(crate) const ROUNDS: u32 = 3;
/// Fetched strings below this length in bytes are copied: each would keep the whole block that it
/// was read with.
const COPIED: usize = 8 << 10;
/// Bytes of an entry in the table of answers, with its share of the table's empty slots.
const ENTRY_BYTES: usize = (size_of::<(NameHash, FetchedName)>() + 1) * 8 / 7;
/// Bytes that an answer with a value takes besides the value.
const BOXED_BYTES: usize = size_of::<Value>() + 16;

/// The part of its keys' entries that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Type and expiry.
    Meta,
    /// Type, expiry and length.
    Len,
    /// Type, expiry and value.
    Value,
    /// The value, if it is a string. A key of another type counts as absent.
    Strings,
    /// The bytes of a string between two offsets of GETRANGE, both inclusive.
    Range(i64, i64),
}

/// The result of reading a key.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Absent,
    /// A key of this type without an expiry. The length was not asked for.
    Plain(DataType),
    Meta(Box<Meta>),
    Value(Box<Value>),
    /// A part of a string, in memory of its own, and the string's type and expiry.
    Part(Box<Value>),
    Failed(Box<Error>),
}

impl Answer {
    /// Returns the bytes of the value, if it has one.
    fn bytes(&self) -> Option<usize> {
        match self {
            Answer::Value(v) | Answer::Part(v) => Some(v.data.len()),
            _ => None,
        }
    }
}

/// A piece of a fetch: the keys to read.
#[derive(Debug)]
pub(crate) struct Piece {
    pub need: Need,
    /// Keys in the encoding of the store.
    pub keys: Vec<Bytes>,
    /// Bytes of values from which on the rest is left for the next piece.
    pub budget_bytes: usize,
}

impl Piece {
    /// Returns the answers of a piece that could not be read, as a function of the error.
    pub fn failure(&self) -> impl FnOnce(Error) -> Vec<(Bytes, Option<Answer>)> + use<> {
        let keys: Vec<Bytes> = self.keys.iter().map(redis_key).collect();
        |e| {
            let failed = |key| (key, Some(Answer::Failed(Box::new(e.clone()))));
            keys.into_iter().map(failed).collect()
        }
    }
}

/// Returns the bytes of GETRANGE between two offsets in a string of `len` bytes.
pub(crate) fn range_of(len: usize, start: i64, end: i64) -> std::ops::Range<usize> {
    let len = len as i64;
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let place = |n: i64| if n < 0 { (len + n.max(-len)).max(0) } else { n };
    let (start, end) = (place(start), place(end).min(len - 1));
    match len == 0 || start > end {
        true => 0..0,
        false => start as usize..end as usize + 1,
    }
}

/// Returns a part of a value that keeps at most about twice its own bytes in memory.
pub(crate) fn part_of(data: &Bytes, start: i64, end: i64) -> Bytes {
    let range = range_of(data.len(), start, end);
    match range.len() < data.len() / 2 {
        true => Bytes::copy_from_slice(&data[range]),
        false => data.slice(range),
    }
}

/// Stands for a key in the table of answers, because a request may have a million. Two random
/// secrets are the key of the hash, so no client can choose keys with the same hash. Two keys have
/// the same one about once in 2^128 pairs.
type NameHash = (u64, u64);

/// A key that was asked for.
struct FetchedName {
    /// The Redis key.
    key: Bytes,
    hash: KeyHash,
    /// `None` while the key is being read.
    answer: Option<Answer>,
}

/// The fetch of one request.
pub(crate) struct Fetch {
    need: Need,
    /// The generation that the keys are read under.
    generation: u32,
    /// Answers by Redis key.
    answers: HashMap<NameHash, FetchedName, BuildHasherDefault<DefaultHasher>>,
    /// Bytes of the keys that were asked for.
    key_bytes: usize,
    secrets: (u64, u64),
    /// Names that a piece had no room for.
    deferred: Vec<Bytes>,
    /// Bytes of values that were read.
    bytes: usize,
    /// Values that were read.
    values: usize,
    /// Fetches for the same request, this one included.
    pub rounds: u32,
}

impl Fetch {
    pub fn new(need: Need, generation: u32, rounds: u32, secrets: (u64, u64)) -> Fetch {
        Fetch {
            need,
            generation,
            answers: HashMap::default(),
            key_bytes: 0,
            secrets,
            deferred: Vec::new(),
            bytes: 0,
            values: 0,
            rounds,
        }
    }

    fn hash(&self, key: &[u8]) -> NameHash {
        let hash = |secret| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(secret);
            hasher.write(key);
            hasher.finish()
        };
        (hash(self.secrets.0), hash(self.secrets.1))
    }

    pub fn need(&self) -> Need {
        self.need
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the bytes of values that were read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of memory that the fetch holds.
    pub fn memory(&self) -> usize {
        let answers = self.values * BOXED_BYTES + self.answers.capacity() * ENTRY_BYTES;
        self.bytes + answers + self.key_bytes
    }

    /// Returns the answer for a key, if it was read and the key was not written since.
    pub fn answer(&self, key: &[u8]) -> Option<&Answer> {
        self.answers.get(&self.hash(key))?.answer.as_ref()
    }

    /// Notes that a key, in the encoding of the store, is being read. Returns false if it was asked
    /// for before.
    pub fn ask(&mut self, stored: &Bytes, hash: KeyHash) -> bool {
        let key = redis_key(stored);
        match self.answers.entry(self.hash(&key)) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                self.key_bytes += stored.len();
                place.insert(FetchedName {
                    key,
                    hash,
                    answer: None,
                });
                true
            }
        }
    }

    /// Takes the answer for a key, unless the key was written since it was asked for. `None` means
    /// that the key must be asked for again.
    pub fn take(&mut self, key: Bytes, answer: Option<Answer>) {
        let hash = self.hash(&key);
        let Some(FetchedName { answer: place, .. }) = self.answers.get_mut(&hash) else {
            return;
        };
        // A write came first, so the answer is older.
        if place.is_some() {
            return;
        }
        match answer {
            Some(answer) => {
                self.bytes += answer.bytes().unwrap_or(0);
                self.values += usize::from(answer.bytes().is_some());
                *place = Some(answer);
            }
            None => self.deferred.push(key),
        }
    }

    /// Returns the keys that a piece had no room for and that were not written since.
    pub fn take_deferred(&mut self) -> Vec<Bytes> {
        let mut deferred = std::mem::take(&mut self.deferred);
        // A key that was written since has no answer.
        let is_asked = |key: &Bytes| self.answers.get(&self.hash(key));
        deferred.retain(|key| is_asked(key).is_some_and(|asked| asked.answer.is_none()));
        deferred
    }

    /// Forgets the answers for the keys that a layer writes, because the layer takes effect. A
    /// request with such a fetch has at most 1,024 names, so the fetch looks for each of them.
    pub fn forget_layer(&mut self, layer: &Layer) {
        let written = |_: &NameHash, asked: &mut FetchedName| layer.has(&asked.key, asked.hash);
        let forgotten: Vec<_> = self.answers.extract_if(written).collect();
        for (_, asked) in forgotten {
            self.forgotten(asked);
        }
    }

    /// Forgets the answer for a key, because a command writes the key.
    pub fn forget(&mut self, key: &[u8]) {
        if let Some(asked) = self.answers.remove(&self.hash(key)) {
            self.forgotten(asked);
        }
    }

    fn forgotten(&mut self, asked: FetchedName) {
        self.key_bytes -= layout::KEY_PREFIX_LEN + asked.key.len();
        if let Some(answer) = asked.answer {
            self.bytes -= answer.bytes().unwrap_or(0);
            self.values -= usize::from(answer.bytes().is_some());
        }
    }
}

/// Returns the Redis key in a key of the store, which shares the memory.
fn redis_key(stored: &Bytes) -> Bytes {
    stored.slice(layout::KEY_PREFIX_LEN..)
}

/// Reads the keys of a piece, at least one, as far as the byte budget allows. The answer is `None`
/// for the keys behind it. Returns early, without the rest of the keys, once the answers are not
/// `wanted` any more.
pub(crate) fn read(
    store: &dyn Store,
    piece: Piece,
    wanted: impl Fn() -> bool,
) -> Vec<(Bytes, Option<Answer>)> {
    let Piece {
        need,
        keys,
        budget_bytes,
    } = piece;
    let answer = |found: Result<Option<Answer>>| match found {
        Ok(found) => found.unwrap_or(Answer::Absent),
        Err(e) => Answer::Failed(Box::new(e)),
    };
    if !wanted() {
        return Vec::new();
    }
    if need == Need::Strings {
        let found = store.get_strings(&keys, budget_bytes);
        let string = |found: Result<Option<Bytes>>| {
            answer(found.map(|data| data.map(|data| Answer::Value(Box::new(kept(data))))))
        };
        let found = found.into_iter().map(|found| found.map(string));
        return keys.iter().map(redis_key).zip(found).collect();
    }
    let mut bytes = 0;
    let one = |stored: &Bytes| {
        let key = redis_key(stored);
        if bytes >= budget_bytes {
            return (key, None);
        }
        let found = match need {
            Need::Meta | Need::Len => store
                .get_meta(stored, need == Need::Len, usize::MAX)
                .map(|found| found.flatten().map(|(meta, _)| known(meta, need))),
            Need::Value | Need::Strings => store
                .get(stored)
                .map(|found| found.map(|v| Answer::Value(Box::new(v)))),
            Need::Range(start, end) => store.get(stored).map(|found| {
                found.map(|v| {
                    let data = part_of(&v.data, start, end);
                    Answer::Part(Box::new(Value { data, ..v }))
                })
            }),
        };
        if let Ok(Some(Answer::Value(v) | Answer::Part(v))) = &found {
            bytes += v.data.len();
        }
        (key, Some(answer(found)))
    };
    keys.iter().take_while(|_| wanted()).map(one).collect()
}

/// Returns the smallest answer for the need.
fn known(meta: Meta, need: Need) -> Answer {
    match need == Need::Meta && meta.expire_at_ms.is_none() {
        true => Answer::Plain(meta.data_type),
        false => Answer::Meta(Box::new(meta)),
    }
}

/// Returns a string that does not keep its whole block in memory.
fn kept(data: Bytes) -> Value {
    let data = match data.len() < COPIED {
        true => Bytes::copy_from_slice(&data),
        false => data,
    };
    Value {
        data_type: DataType::String,
        data,
        expire_at_ms: None,
    }
}

#[cfg(test)]
mod tests;
