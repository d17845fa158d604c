//! The fetch of a request with very many names. Its answers follow writes: once every name has an
//! answer, all of them are those of that moment.
//!
//! The answers are one array, with one place for each name, and the strings of a piece are one
//! buffer. So nothing is allocated for a single name, and nothing is freed for one.
//!
//! A [`Layer`] changes very many keys in one step, so its effect on the answers is found out later,
//! some names at a time: the fetch is *behind* by that layer until then, and its answers are not
//! used before. Answers that followed a write which came after the layer are newer, and stay.

use super::{COPIED, Need};
use crate::catalog::DATABASE;
use crate::keyspace::Epochs;
use crate::layout::{self, DataType};
use crate::names::{Layer, Names};
use crate::store::{Store, Value};
use basalt::{Bytes, Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What is known of a name, in 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was not asked for yet.
    Unasked,
    /// It is being read.
    Reading,
    Absent,
    /// It is there, without an expiry.
    There,
    /// It is there until then, ms since 1970.
    Until(u64),
    /// A string, as a part of the buffer of a piece.
    Part {
        piece: u32,
        start: u32,
        len: u32,
    },
    /// A string by its place in the list of values.
    Value(u32),
    Failed,
}

impl Found {
    fn is_there(self) -> bool {
        use Found::*;
        matches!(self, There | Until(_) | Part { .. } | Value(_))
    }
}

/// The answer for a name.
pub(crate) enum ManyAnswer<'a> {
    Absent,
    There,
    String(&'a [u8]),
    /// A string that need not be copied.
    Shared(&'a Bytes),
    Failed(&'a Error),
}

/// Names to be read for a fetch.
pub(crate) struct ManyPiece {
    need: Need,
    generation: u32,
    names: Arc<Names>,
    /// Numbers of names.
    list: Vec<u32>,
    /// Bytes of values from which on the rest is left for the next piece.
    budget_bytes: usize,
}

/// What was read of one name.
enum NameRead {
    /// The piece had no room for it.
    NoRoom,
    Absent,
    There,
    Until(u64),
    /// So many bytes of the buffer.
    Part(u32, u32),
    Long(Bytes),
    Failed(Error),
}

/// What was read of a piece.
pub(crate) struct ManyRead {
    list: Vec<(u32, NameRead)>,
    buffer: Bytes,
}

/// A layer whose effect on the answers is not found out to the end.
struct PendingLayer {
    layer: Arc<Layer>,
    /// Its epoch, or nothing when that has ended.
    written_by: Epochs,
    /// Layers before it.
    number: u64,
    /// Names that were asked for when the layer took effect are below.
    asked: usize,
    /// The next name to be looked at: of the fetch or of the layer, whichever has less of them.
    next: usize,
}

/// See the module.
pub(crate) struct ManyFetch {
    need: Need,
    /// The generation that the keys are read under.
    generation: u32,
    names: Arc<Names>,
    /// By the last name of each key.
    answers: Vec<Found>,
    /// Names below were asked for.
    asked: usize,
    /// Names that a piece had no room for.
    unread: Vec<u32>,
    pieces: Vec<Bytes>,
    values: Vec<Value>,
    /// Bytes of strings among the answers.
    bytes: usize,
    /// Keys that are there.
    there: usize,
    /// Keys that could not be read, and why one of them could not.
    failed: usize,
    failure: Option<Error>,
    behind: VecDeque<PendingLayer>,
    /// Layers since the fetch began.
    layers: u64,
    /// Names that were written after a layer that the fetch is behind by, and the layers before.
    newer: BTreeMap<u32, u64>,
    /// The epochs in flight, or open, whose writes are among the answers.
    pub depends_on: Epochs,
    /// An answer came from a commit that failed, or the keyspace was flushed.
    pub is_void: bool,
    /// Every name was asked for, and every answer has come.
    has_all: bool,
}

/// The places of the answers for so many names. It takes long for many.
pub(crate) fn places(names: usize) -> Places {
    Places(vec![Found::Unasked; names])
}

/// Places for answers.
pub(crate) struct Places(Vec<Found>);

impl ManyFetch {
    /// A fetch whose `places` are as many as the names.
    pub fn new(need: Need, generation: u32, names: Arc<Names>, places: Places) -> ManyFetch {
        assert_eq!(names.len(), places.0.len(), "a place for each name");
        ManyFetch {
            need,
            generation,
            names,
            answers: places.0,
            asked: 0,
            unread: Vec::new(),
            pieces: Vec::new(),
            values: Vec::new(),
            bytes: 0,
            there: 0,
            failed: 0,
            failure: None,
            behind: VecDeque::new(),
            layers: 0,
            newer: BTreeMap::new(),
            depends_on: 0,
            is_void: false,
            has_all: false,
        }
    }

    pub fn need(&self) -> Need {
        self.need
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    pub fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// Bytes of strings among the answers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if every name was asked for; false if the strings of some are too long for a reply.
    pub fn has_all(&self) -> bool {
        self.has_all
    }

    /// Notes that every name was asked for, and every answer has come.
    pub fn end(&mut self) {
        self.has_all = true;
    }

    /// Bytes of memory that it holds besides the names.
    pub fn memory(&self) -> usize {
        let behind = self.behind.iter().map(|b| b.layer.memory());
        let newer = self.newer.len() * 2 * size_of::<(u32, u64)>();
        let places = self.answers.capacity() * size_of::<Found>();
        let values = self.values.capacity() * size_of::<Value>();
        let pieces = self.pieces.capacity() * size_of::<Bytes>();
        self.bytes + places + values + pieces + newer + behind.sum::<usize>()
    }

    /// Keys that are there, or whose time has ended since.
    pub fn there(&self) -> usize {
        self.there
    }

    /// Why a key could not be read, if one could not.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref().filter(|_| self.failed > 0)
    }

    /// True if a name, the last of its key, is there, or its time has ended since.
    pub fn is_there(&self, name: usize) -> bool {
        self.answers[name].is_there()
    }

    /// The answer for a name, at a time.
    pub fn answer(&self, name: usize, now_ms: u64) -> ManyAnswer<'_> {
        match self.answers[self.names.last(name)] {
            Found::Unasked | Found::Absent => ManyAnswer::Absent,
            Found::There => ManyAnswer::There,
            Found::Until(at) if at > now_ms => ManyAnswer::There,
            Found::Until(_) => ManyAnswer::Absent,
            Found::Part { piece, start, len } => {
                let (start, len) = (start as usize, len as usize);
                ManyAnswer::String(&self.pieces[piece as usize][start..start + len])
            }
            Found::Value(n) => match &self.values[n as usize] {
                v if v.expire_at_ms.is_some_and(|at| at <= now_ms) => ManyAnswer::Absent,
                v => ManyAnswer::Shared(&v.data),
            },
            Found::Failed => ManyAnswer::Failed(self.failure.as_ref().expect("one has failed")),
            Found::Reading => unreachable!("every name has an answer"),
        }
    }

    fn set(&mut self, name: usize, found: Found) {
        let old = std::mem::replace(&mut self.answers[name], found);
        self.there = self.there + usize::from(found.is_there()) - usize::from(old.is_there());
        let failed = |f| usize::from(f == Found::Failed);
        self.failed = self.failed + failed(found) - failed(old);
        self.bytes = self.bytes + self.bytes_of(found) - self.bytes_of(old);
    }

    fn bytes_of(&self, found: Found) -> usize {
        match found {
            Found::Part { len, .. } => len as usize,
            Found::Value(n) => self.values[n as usize].data.len(),
            _ => 0,
        }
    }

    fn set_value(&mut self, name: usize, value: Value) {
        // A value that is replaced must not stay in memory, nor its bytes in the sum.
        let place = match self.answers[name] {
            Found::Value(n) => {
                self.set(name, Found::Absent);
                self.values[n as usize] = value;
                n
            }
            _ => {
                self.values.push(value);
                self.values.len() as u32 - 1
            }
        };
        self.set(name, Found::Value(place));
    }

    /// The names that are asked for next: those that a piece had no room for, and up to `most`
    /// others. Names for which `written` knows a write get that as their answer, with the epoch of
    /// the write. Also returns true if no name is left.
    pub fn ask(
        &mut self,
        most: usize,
        mut written: impl FnMut(&[u8]) -> Option<(Epochs, Option<Value>)>,
        now_ms: u64,
    ) -> (Vec<u32>, bool) {
        let mut list = std::mem::take(&mut self.unread);
        // Written since: answered by the write.
        list.retain(|name| self.answers[*name as usize] == Found::Reading);
        let names = self.names.clone();
        let end = names
            .len()
            .min(self.asked + most.saturating_sub(list.len()));
        for name in self.asked..end {
            let key = names.key(name);
            if !names.is_last(name) || key.len() > layout::MAX_KEY_LEN {
                continue;
            }
            match written(key) {
                Some((epoch, value)) => self.written(name, value.as_ref(), epoch, now_ms),
                None => {
                    self.set(name, Found::Reading);
                    list.push(name as u32);
                }
            }
        }
        self.asked = end;
        (list, end == names.len())
    }

    /// A piece of names that were asked for.
    pub fn piece(&self, list: Vec<u32>, budget_bytes: usize) -> ManyPiece {
        ManyPiece {
            need: self.need,
            generation: self.generation,
            names: self.names.clone(),
            list,
            budget_bytes,
        }
    }

    /// Takes what was read. Names that were written since they were asked for have newer answers.
    pub fn take(&mut self, read: ManyRead, now_ms: u64) {
        let piece = self.pieces.len() as u32;
        self.pieces.push(read.buffer);
        for (name, read) in read.list {
            let place = name as usize;
            if self.answers[place] != Found::Reading {
                continue;
            }
            match read {
                NameRead::NoRoom => self.unread.push(name),
                NameRead::Until(at) if at > now_ms => self.set(place, Found::Until(at)),
                NameRead::Absent | NameRead::Until(_) => self.set(place, Found::Absent),
                NameRead::There => self.set(place, Found::There),
                NameRead::Part(start, len) => self.set(place, Found::Part { piece, start, len }),
                NameRead::Long(data) => self.set_value(
                    place,
                    Value {
                        data_type: DataType::String,
                        data,
                        expire_at_ms: None,
                    },
                ),
                NameRead::Failed(e) => {
                    self.failure = Some(e);
                    self.set(place, Found::Failed);
                }
            }
        }
    }

    fn written(&mut self, name: usize, value: Option<&Value>, epoch: Epochs, now_ms: u64) {
        let value = value.filter(|v| v.expire_at_ms.is_none_or(|at| at > now_ms));
        let strings = self.need == Need::Strings;
        match value {
            None => self.set(name, Found::Absent),
            Some(v) if strings && v.data_type != DataType::String => self.set(name, Found::Absent),
            Some(v) if strings => self.set_value(name, v.clone()),
            Some(Value {
                expire_at_ms: Some(at),
                ..
            }) => self.set(name, Found::Until(*at)),
            Some(_) => self.set(name, Found::There),
        }
        self.depends_on |= epoch;
    }

    /// Notes what a write of an epoch gives to a key.
    pub fn follow(&mut self, key: &[u8], value: Option<&Value>, epoch: Epochs, now_ms: u64) {
        let Some(name) = self.names.find(key).filter(|n| *n < self.asked) else {
            return;
        };
        if !self.behind.is_empty() {
            self.newer.insert(name as u32, self.layers);
        }
        self.written(name, value, epoch, now_ms);
    }

    /// Notes that a layer takes effect, with an epoch.
    pub fn follow_layer(&mut self, layer: &Arc<Layer>, epoch: Epochs) {
        if self.asked > 0 {
            self.behind.push_back(PendingLayer {
                layer: layer.clone(),
                written_by: epoch,
                number: self.layers,
                asked: self.asked,
                next: 0,
            });
        }
        self.layers += 1;
    }

    /// True if layers took effect whose writes are not among the answers yet.
    pub fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Looks at up to `most` names for writes of layers. Returns how many it looked at, and the
    /// layers that it needs no more.
    pub fn catch_up(&mut self, most: usize, now_ms: u64) -> (usize, Vec<Arc<Layer>>) {
        let mut done = Vec::new();
        let mut looked = 0;
        let names = self.names.clone();
        while let Some(b) = self.behind.front_mut() {
            let layer = b.layer.clone();
            let by_layer = layer.names().len() < b.asked;
            let end = if by_layer {
                layer.names().len()
            } else {
                b.asked
            };
            let (asked, number, epoch) = (b.asked, b.number, b.written_by);
            let from = b.next;
            let to = end.min(from + (most - looked));
            b.next = to;
            looked += to - from;
            for n in from..to {
                let (key, name) = match by_layer {
                    true if layer.names().is_last(n) => {
                        let key = layer.names().key(n);
                        (key, names.find(key).filter(|name| *name < asked))
                    }
                    false if names.is_last(n) => (names.key(n), Some(n)),
                    _ => continue,
                };
                let Some(name) = name else { continue };
                let is_newer = |at: &u64| *at > number;
                if self.newer.get(&(name as u32)).is_some_and(is_newer) {
                    continue;
                }
                if let Some(value) = layer.get(key) {
                    self.written(name, value.as_ref(), epoch, now_ms);
                }
            }
            if to < end {
                break;
            }
            done.push(layer);
            self.behind.pop_front();
        }
        if self.behind.is_empty() {
            self.newer = BTreeMap::new();
        }
        (looked, done)
    }

    /// An epoch has ended.
    pub fn epoch_ended(&mut self, slot: usize, failed: bool) {
        let bit = 1 << slot;
        self.is_void |= failed && self.depends_on & bit != 0;
        self.depends_on &= !bit;
        self.behind.retain(|b| !failed || b.written_by & bit == 0);
        for b in &mut self.behind {
            b.written_by &= !bit;
        }
    }
}

/// Reads the names of a piece, at least one, as far as its bytes reach. Returns early, without the
/// rest of the names, once the answers are not `wanted` any more.
pub(crate) fn read_many(
    store: &dyn Store,
    piece: ManyPiece,
    wanted: impl Fn() -> bool,
) -> ManyRead {
    let mut read = ManyRead {
        list: Vec::with_capacity(piece.list.len()),
        buffer: Bytes::new(),
    };
    if !wanted() {
        return read;
    }
    let prefix = layout::key_prefix(DATABASE, piece.generation);
    let mut keys = Vec::new();
    let mut ends = Vec::with_capacity(piece.list.len());
    for name in &piece.list {
        keys.extend_from_slice(&prefix);
        keys.extend_from_slice(piece.names.key(*name as usize));
        ends.push(keys.len());
    }
    let keys = Bytes::from(keys);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let keys = starts.zip(&ends).map(|(from, to)| keys.slice(from..*to));
    if piece.need == Need::Strings {
        let keys: Vec<Bytes> = keys.collect();
        let mut buffer = Vec::new();
        let found = store.get_strings(&keys, piece.budget_bytes);
        let one = |found: Option<Result<Option<Bytes>>>| match found {
            None => NameRead::NoRoom,
            Some(Ok(None)) => NameRead::Absent,
            // A short string would keep alive the block that it was read with.
            Some(Ok(Some(data))) if data.len() < COPIED => {
                let start = buffer.len() as u32;
                buffer.extend_from_slice(&data);
                NameRead::Part(start, data.len() as u32)
            }
            Some(Ok(Some(data))) => NameRead::Long(data),
            Some(Err(e)) => NameRead::Failed(e),
        };
        let found = found.into_iter().map(one);
        read.list.extend(piece.list.into_iter().zip(found));
        read.buffer = buffer.into_boxed_slice().into();
        return read;
    }
    let one = |key: Bytes| match store.get_meta(&key, false, usize::MAX) {
        Ok(found) => match found.flatten() {
            None => NameRead::Absent,
            Some((meta, _)) => meta.expire_at_ms.map_or(NameRead::There, NameRead::Until),
        },
        Err(e) => NameRead::Failed(e),
    };
    let found = keys.take_while(|_| wanted()).map(one);
    read.list.extend(piece.list.into_iter().zip(found));
    read
}
