//! The fetch of a request with very many names. Its answers follow writes: once every name has an
//! answer, all answers are those of that moment.
//!
//! The answers are one array, with one place for each name, and the strings of a piece are one
//! buffer. So no single name costs an allocation or a deallocation.
//!
//! A [`Layer`] changes very many keys in one step, so the fetch applies its effect on the answers
//! later, some names at a time. Until then the fetch is *behind* by that layer, and its answers are
//! not used. An answer from a write that came after the layer is newer, and stays.

use super::{COPIED, Need};
use crate::catalog::DATABASE;
use crate::keyspace::Epochs;
use crate::layout::{self, DataType};
use crate::names::{HeldLayer, KeyHash, Layer, Names};
use crate::store::{Store, Value};
use basalt::{Bytes, Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes of names that one step of a fetch looks at. It looks at one name at least.
const STEP_BYTES: usize = 256 << 10;

/// The answer for a name so far, in 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The name was not asked for yet.
    Unasked,
    /// The name is being read.
    Reading,
    Absent,
    /// The key exists, without an expiry.
    There,
    /// The key exists until this time, in ms since 1970.
    Until(u64),
    /// A string that is a part of the buffer of a piece.
    Part {
        piece: u32,
        start: u32,
        len: u32,
    },
    /// A string, as an index into the list of values.
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
    /// Indexes of the names to read.
    list: Vec<u32>,
    /// When the piece has this many bytes of values, the remaining names are left for the next
    /// piece.
    budget_bytes: usize,
}

impl ManyPiece {
    /// Returns the result of a piece that could not be read, as a function of the error.
    pub fn failure(&self) -> impl FnOnce(Error) -> ManyRead + use<> {
        let list = self.list.clone();
        |e| ManyRead {
            list: (list
                .into_iter()
                .map(|name| (name, NameRead::Failed(e.clone()))))
            .collect(),
            buffer: Bytes::new(),
        }
    }

    /// Returns the bytes of the names to read.
    #[cfg(test)]
    pub fn key_bytes(&self) -> usize {
        let names = self.list.iter().map(|name| self.names.key(*name as usize));
        names.map(<[u8]>::len).sum()
    }
}

/// The result of reading one name.
enum NameRead {
    /// The piece had no room for it.
    NoRoom,
    Absent,
    There,
    Until(u64),
    /// A part of the buffer: its start and its length in bytes.
    Part(u32, u32),
    Long(Bytes),
    Failed(Error),
}

/// The result of reading a piece.
pub(crate) struct ManyRead {
    list: Vec<(u32, NameRead)>,
    buffer: Bytes,
}

/// The strings of one piece.
struct PieceBuffer {
    data: Bytes,
    /// Bytes of the strings that are still answers.
    live: usize,
    /// The names that were answered from the buffer.
    names: Vec<u32>,
}

/// A layer whose effect on the answers is not applied to all names yet.
struct PendingLayer {
    layer: HeldLayer,
    /// The epoch of the layer; empty once that epoch has ended.
    written_by: Epochs,
    /// Number of layers that took effect before this one since the fetch began.
    number: u64,
    /// The names below this index had been asked for when the layer took effect.
    asked: usize,
    /// Index of the next name to look at. It counts the names of the fetch or of the layer,
    /// whichever are fewer.
    next: usize,
}

/// The fetch of a request with very many names (see the module).
pub(crate) struct ManyFetch {
    need: Need,
    /// The generation that the keys are read under.
    generation: u32,
    names: Arc<Names>,
    /// Answers by name. Only the last name of each key has one.
    answers: Vec<Found>,
    /// The names below this index were asked for.
    asked: usize,
    /// Names that a piece had no room for.
    unread: Vec<u32>,
    pieces: Vec<PieceBuffer>,
    /// Values by index. A free index has `None`.
    values: Vec<Option<Value>>,
    /// Indexes of `values` that are free.
    free_values: Vec<u32>,
    /// Bytes of strings among the answers.
    bytes: usize,
    /// Bytes of values, and of buffers with what is no answer any more.
    held: usize,
    /// Number of names that the pieces list.
    piece_names: usize,
    /// Number of keys that exist.
    there: usize,
    /// Number of keys that could not be read; `failure` is the error of one of them.
    failed: usize,
    failure: Option<Error>,
    behind: VecDeque<PendingLayer>,
    /// Number of layers since the fetch began.
    layers: u64,
    /// Names that were written after a layer that the fetch is behind by, with the number of layers
    /// before the write.
    newer: BTreeMap<u32, u64>,
    /// The epochs in flight, or open, whose writes are among the answers.
    pub depends_on: Epochs,
    /// True if an answer came from a commit that failed, or the keyspace was flushed.
    pub is_void: bool,
    /// True if every name was asked for, and every answer has come.
    has_all: bool,
}

/// Allocates the places for the answers of `names` names. The time grows with the number of names.
pub(crate) fn places(names: usize) -> Places {
    Places(vec![Found::Unasked; names])
}

/// Places for answers.
pub(crate) struct Places(Vec<Found>);

impl Places {
    /// Returns the bytes of memory that the places take.
    pub fn memory(&self) -> usize {
        self.0.capacity() * size_of::<Found>()
    }
}

impl ManyFetch {
    /// Makes a fetch. Panics unless there is one place for each name.
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
            free_values: Vec::new(),
            bytes: 0,
            held: 0,
            piece_names: 0,
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

    /// Returns true if every name was asked for. The result is false if the strings are too long
    /// for a reply.
    pub fn has_all(&self) -> bool {
        self.has_all
    }

    /// Notes that every name was asked for, and every answer has come.
    pub fn end(&mut self) {
        self.has_all = true;
    }

    /// Returns the bytes of memory that the fetch holds besides the names. The layers that it is
    /// behind by are counted as writes on their way.
    pub fn memory(&self) -> usize {
        let newer = self.newer.len() * 2 * size_of::<(u32, u64)>();
        let places = self.answers.capacity() * size_of::<Found>();
        let values = self.values.capacity() * size_of::<Option<Value>>();
        let indexes = self.free_values.capacity() + self.unread.capacity() + self.piece_names;
        let pieces = self.pieces.capacity() * size_of::<PieceBuffer>();
        let lists = places + values + pieces + newer + indexes * size_of::<u32>();
        self.held + lists + self.behind.capacity() * size_of::<PendingLayer>()
    }

    /// Returns the number of keys that exist, or that have expired since they were read.
    pub fn there(&self) -> usize {
        self.there
    }

    /// Returns the error of a key that could not be read, if there is one.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref().filter(|_| self.failed > 0)
    }

    /// Returns true if the key of a name exists, or has expired since it was read. The name must be
    /// the last of its key.
    pub fn is_there(&self, name: usize) -> bool {
        self.answers[name].is_there()
    }

    /// Returns the answer for a name at a given time.
    pub fn answer(&self, name: usize, now_ms: u64) -> ManyAnswer<'_> {
        match self.answers[self.names.last(name)] {
            Found::Unasked | Found::Absent => ManyAnswer::Absent,
            Found::There => ManyAnswer::There,
            Found::Until(at) if at > now_ms => ManyAnswer::There,
            Found::Until(_) => ManyAnswer::Absent,
            Found::Part { piece, start, len } => {
                let (start, len) = (start as usize, len as usize);
                ManyAnswer::String(&self.pieces[piece as usize].data[start..start + len])
            }
            Found::Value(n) => match self.value(n) {
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
        match old {
            Found::Value(n) => {
                let value = self.values[n as usize].take().expect("it was an answer");
                self.held -= value.data.len();
                self.free_values.push(n);
            }
            Found::Part { piece, len, .. } => {
                self.pieces[piece as usize].live -= len as usize;
                self.shrink(piece);
            }
            _ => {}
        }
    }

    fn value(&self, n: u32) -> &Value {
        let value = self.values[n as usize].as_ref();
        value.expect("an answer has its value")
    }

    fn bytes_of(&self, found: Found) -> usize {
        match found {
            Found::Part { len, .. } => len as usize,
            Found::Value(n) => self.value(n).data.len(),
            _ => 0,
        }
    }

    fn set_value(&mut self, name: usize, value: Value) {
        // The replaced value gives its index back first.
        self.set(name, Found::Absent);
        self.held += value.data.len();
        let n = match self.free_values.pop() {
            Some(n) => {
                self.values[n as usize] = Some(value);
                n
            }
            None => {
                self.values.push(Some(value));
                self.values.len() as u32 - 1
            }
        };
        self.set(name, Found::Value(n));
    }

    /// Copies the strings of a buffer that are still answers, if they are less than half of the
    /// buffer. So buffers hold less than twice the bytes of the answers, and each byte is copied
    /// less often than a byte is written over.
    fn shrink(&mut self, piece: u32) {
        let buffer = &mut self.pieces[piece as usize];
        if 2 * buffer.live >= buffer.data.len() {
            return;
        }
        let old = std::mem::take(&mut buffer.data);
        let mut kept = Vec::with_capacity(buffer.live);
        let answers = &mut self.answers;
        let names = buffer.names.len();
        buffer
            .names
            .retain(|name| match &mut answers[*name as usize] {
                Found::Part {
                    piece: own,
                    start,
                    len,
                } if *own == piece => {
                    let from = *start as usize;
                    *start = kept.len() as u32;
                    kept.extend_from_slice(&old[from..from + *len as usize]);
                    true
                }
                _ => false,
            });
        buffer.names.shrink_to_fit();
        self.piece_names -= names - buffer.names.len();
        self.held -= old.len() - kept.len();
        buffer.data = kept.into();
    }

    /// Returns the bytes of values and buffers in memory.
    #[cfg(test)]
    pub fn strings_in_memory(&self) -> usize {
        let values = self.values.iter().flatten().map(|v| v.data.len());
        let pieces = self.pieces.iter().map(|p| p.data.len());
        values.sum::<usize>() + pieces.sum::<usize>()
    }

    /// Returns the names to ask for next: those that a piece had no room for, and new ones up to
    /// `most`. If `written` returns a write for a name, the write is its answer, with its epoch.
    /// The second value is true if no name is left. The list is shorter if the names are long.
    pub fn ask(
        &mut self,
        most: usize,
        mut written: impl FnMut(&[u8], KeyHash) -> Option<(Epochs, Option<Value>)>,
        now_ms: u64,
    ) -> (Vec<u32>, bool) {
        let mut list = std::mem::take(&mut self.unread);
        // A name that was written since is answered by the write.
        list.retain(|name| self.answers[*name as usize] == Found::Reading);
        let names = self.names.clone();
        let end = names
            .len()
            .min(self.asked + most.saturating_sub(list.len()));
        let unread = list.iter().map(|name| names.key(*name as usize).len());
        let mut bytes: usize = unread.sum();
        while self.asked < end && bytes < STEP_BYTES {
            let name = self.asked;
            let key = names.key(name);
            self.asked += 1;
            bytes += key.len();
            if !names.is_last(name) || key.len() > layout::MAX_KEY_LEN {
                continue;
            }
            match written(key, names.hash(name)) {
                Some((epoch, value)) => self.written(name, value.as_ref(), epoch, now_ms),
                None => {
                    self.set(name, Found::Reading);
                    list.push(name as u32);
                }
            }
        }
        (list, self.asked == names.len())
    }

    /// Makes a piece from names that were asked for.
    pub fn piece(&self, list: Vec<u32>, budget_bytes: usize) -> ManyPiece {
        ManyPiece {
            need: self.need,
            generation: self.generation,
            names: self.names.clone(),
            list,
            budget_bytes,
        }
    }

    /// Takes the result of a piece. Names that were written since they were asked for keep their
    /// newer answers.
    pub fn take(&mut self, read: ManyRead, now_ms: u64) {
        let piece = self.pieces.len() as u32;
        self.held += read.buffer.len();
        let mut buffer = PieceBuffer {
            data: read.buffer,
            live: 0,
            names: Vec::new(),
        };
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
                NameRead::Part(start, len) => {
                    buffer.live += len as usize;
                    buffer.names.push(name);
                    self.set(place, Found::Part { piece, start, len });
                }
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
        self.piece_names += buffer.names.len();
        self.pieces.push(buffer);
        // Other writes may have answered the names while the piece was read.
        self.shrink(piece);
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
    pub fn follow(
        &mut self,
        (key, hash): (&[u8], KeyHash),
        value: Option<&Value>,
        epoch: Epochs,
        now_ms: u64,
    ) {
        let found = self.names.find(key, hash);
        let Some(name) = found.filter(|n| *n < self.asked) else {
            return;
        };
        if !self.behind.is_empty() {
            self.newer.insert(name as u32, self.layers);
        }
        self.written(name, value, epoch, now_ms);
    }

    /// Notes that a layer of an epoch takes effect.
    pub fn follow_layer(&mut self, layer: &HeldLayer, epoch: Epochs) {
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

    /// Returns true if layers took effect whose writes are not among the answers yet.
    pub fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Returns the number of layers whose writes are not among the answers yet.
    pub fn layers_behind(&self) -> usize {
        self.behind.len()
    }

    /// Takes the layers that the fetch is behind by. The fetch must not be used any more.
    pub fn take_layers(&mut self) -> Vec<Arc<Layer>> {
        self.is_void = true;
        let behind = self.behind.drain(..);
        behind.map(|b| b.layer.layer().clone()).collect()
    }

    /// Applies the writes of layers to the answers, for up to `most` names, and fewer if they are
    /// long. Returns the number of names that it looked at, and the layers that it no longer needs.
    pub fn catch_up(&mut self, most: usize, now_ms: u64) -> (usize, Vec<Arc<Layer>>) {
        let mut done = Vec::new();
        let mut looked = 0;
        let mut bytes = 0;
        let names = self.names.clone();
        while let Some(b) = self.behind.front_mut() {
            let layer = b.layer.layer().clone();
            let by_layer = layer.names().len() < b.asked;
            let end = if by_layer {
                layer.names().len()
            } else {
                b.asked
            };
            let (asked, number, epoch) = (b.asked, b.number, b.written_by);
            let from = b.next;
            let most_to = end.min(from + (most - looked));
            let mut to = from;
            let own = if by_layer { layer.names() } else { &*names };
            while to < most_to && bytes < STEP_BYTES {
                let n = to;
                to += 1;
                let (key, hash) = (own.key(n), own.hash(n));
                bytes += key.len();
                if !own.is_last(n) {
                    continue;
                }
                let found = match by_layer {
                    true => names.find(key, hash).filter(|name| *name < asked),
                    false => Some(n),
                };
                let Some(name) = found else { continue };
                let is_newer = |at: &u64| *at > number;
                if self.newer.get(&(name as u32)).is_some_and(is_newer) {
                    continue;
                }
                let with_data = self.need == Need::Strings;
                if let Some(value) = layer.get(key, hash, with_data) {
                    self.written(name, value.as_ref(), epoch, now_ms);
                }
            }
            looked += to - from;
            if to < end {
                if let Some(b) = self.behind.front_mut() {
                    b.next = to;
                }
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

    /// Notes that an epoch has ended.
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

/// Reads at least one name of a piece, and more as long as the byte budget allows. Returns early,
/// without the other names, once the answers are not `wanted` any more.
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
            // The short string is copied, because it would keep its whole block in memory.
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
