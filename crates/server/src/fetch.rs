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
//! Requests with very many names have fetches of another kind ([`many`]).

pub(crate) mod many;

use crate::layer::Layer;
use crate::layout::{self, DataType};
use crate::names::KeyHash;
use crate::store::Store;
use crate::value::{Meta, Value};
use basalt::{Bytes, Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{BuildHasherDefault, Hasher};

/// Names of one piece of a fetch: the thread that reads serves other clients after so many.
pub(crate) const PIECE_NAMES: usize = 1024;
/// Bytes of values of one piece from which on the rest is left for the next piece.
pub(crate) const PIECE_BYTES: usize = 16 << 20;
/// After so many fetches for one request, the loop reads what is missing itself: a request ends
/// however often others write its keys.
pub(crate) const ROUNDS: u32 = 3;
/// Fetched strings below this length are copied: each would keep the whole block that it was read
/// with.
const COPIED: usize = 8 << 10;
/// Bytes that an entry of the table of answers takes, with its share of the places that a table
/// leaves empty.
const ENTRY_BYTES: usize = (size_of::<(NameHash, FetchedName)>() + 1) * 8 / 7;
/// Bytes that an answer with a value takes besides the value.
const BOXED_BYTES: usize = size_of::<Value>() + 16;

/// What a command asks of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Type and expiry.
    Meta,
    /// Type, expiry and length.
    Len,
    /// Type, expiry and value.
    Value,
    /// The value, if it is a string. Of another type the key counts as absent.
    Strings,
    /// The bytes of a string between two places as GETRANGE counts them, both inclusive.
    Range(i64, i64),
}

/// What was read of a key.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Absent,
    /// Of this type, without an expiry; the length was not asked for.
    Plain(DataType),
    Meta(Box<Meta>),
    Value(Box<Value>),
    /// A part of a string, in memory of its own, and the string's type and expiry.
    Part(Box<Value>),
    Failed(Box<Error>),
}

impl Answer {
    /// Bytes of its value, if it has one.
    fn bytes(&self) -> Option<usize> {
        match self {
            Answer::Value(v) | Answer::Part(v) => Some(v.data.len()),
            _ => None,
        }
    }
}

/// A piece of a fetch: keys to be read for it.
#[derive(Debug)]
pub(crate) struct Piece {
    pub need: Need,
    /// Each as the store has it.
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

/// The bytes that GETRANGE means by two places in a string of `len` bytes.
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

/// A part of a value that keeps no more than about twice its own bytes alive.
pub(crate) fn part_of(data: &Bytes, start: i64, end: i64) -> Bytes {
    let range = range_of(data.len(), start, end);
    match range.len() < data.len() / 2 {
        true => Bytes::copy_from_slice(&data[range]),
        false => data.slice(range),
    }
}

/// Stands for a key in the table of answers: a request may have a million. Keyed by two random
/// secrets, so no client can choose keys with the same hash, and two keys have the same one about
/// once in 2^128 pairs.
type NameHash = (u64, u64);

/// A key that was asked for.
struct FetchedName {
    /// The Redis key.
    key: Bytes,
    hash: KeyHash,
    /// `None` while the key is being read.
    answer: Option<Answer>,
}

/// What one request waits for.
pub(crate) struct Fetch {
    need: Need,
    /// The generation that the keys are read under.
    generation: u32,
    /// By Redis key.
    answers: HashMap<NameHash, FetchedName, BuildHasherDefault<DefaultHasher>>,
    /// Bytes of the keys that were asked for.
    key_bytes: usize,
    secrets: (u64, u64),
    /// Names that a piece had no room for.
    unread: Vec<Bytes>,
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
            unread: Vec::new(),
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

    /// Bytes of values that were read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        let answers = self.values * BOXED_BYTES + self.answers.capacity() * ENTRY_BYTES;
        self.bytes + answers + self.key_bytes
    }

    /// The answer for a key, if it was read and the key was not written since.
    pub fn answer(&self, key: &[u8]) -> Option<&Answer> {
        self.answers.get(&self.hash(key))?.answer.as_ref()
    }

    /// Notes that a key is being read, given as the store has it; false when it was asked for
    /// before.
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

    /// Takes what was read of a key, unless the key was written since it was asked for; `None` for
    /// a key to be asked for again.
    pub fn take(&mut self, key: Bytes, answer: Option<Answer>) {
        let hash = self.hash(&key);
        let Some(FetchedName { answer: place, .. }) = self.answers.get_mut(&hash) else {
            return;
        };
        // A write came before: what was read is older.
        if place.is_some() {
            return;
        }
        match answer {
            Some(answer) => {
                self.bytes += answer.bytes().unwrap_or(0);
                self.values += usize::from(answer.bytes().is_some());
                *place = Some(answer);
            }
            None => self.unread.push(key),
        }
    }

    /// The keys that a piece had no room for and that were not written since.
    pub fn take_unread(&mut self) -> Vec<Bytes> {
        let mut unread = std::mem::take(&mut self.unread);
        // A key that was written since has no answer.
        let is_asked = |key: &Bytes| self.answers.get(&self.hash(key));
        unread.retain(|key| is_asked(key).is_some_and(|asked| asked.answer.is_none()));
        unread
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

    /// The key is written: what was read of it before is not true any more.
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

/// The part of a key of the store that is the Redis key. It shares the memory.
fn redis_key(stored: &Bytes) -> Bytes {
    stored.slice(layout::KEY_PREFIX_LEN..)
}

/// Reads the keys of a piece, at least one, as far as its bytes reach. `None` for a key that they
/// do not reach for. Returns early, without the rest of the keys, once the answers are not `wanted`
/// any more.
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

/// As little as answers the need.
fn known(meta: Meta, need: Need) -> Answer {
    match need == Need::Meta && meta.expire_at_ms.is_none() {
        true => Answer::Plain(meta.data_type),
        false => Answer::Meta(Box::new(meta)),
    }
}

/// A string that does not keep alive what was read with it.
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
