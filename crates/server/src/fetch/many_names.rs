//! The fetch of a request with very many names. Its answers follow writes: once every name has an
//! answer, all answers are those of that moment.
//!
//! A [`Layer`] changes very many keys in one step, so the fetch applies its effect on the answers
//! later, some names at a time. Until then the fetch is *behind* by that layer, and its answers are
//! not used. An answer from a write that came after the layer is newer, and stays.

use super::{COPIED, Need};
use crate::answers::{AnswerSlot, AnswerSlots, Answers};
use crate::catalog::DATABASE;
use crate::epoch::Epochs;
use crate::layer::{HeldLayer, Layer};
use crate::layout::{self, DataType};
use crate::names::{KeyHash, Names};
use crate::store::Store;
use crate::value::Value;
use basalt::{Bytes, Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes of names in one step of a fetch. A step has at least one name.
const STEP_BYTES: usize = 256 << 10;

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
    answers: Answers,
    /// The names below this index were asked for.
    asked: usize,
    /// Names that a piece had no room for.
    deferred: Vec<u32>,
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
}

impl ManyFetch {
    /// Makes a fetch. Panics unless there is one place for each name.
    pub fn new(need: Need, generation: u32, names: Arc<Names>, places: AnswerSlots) -> ManyFetch {
        ManyFetch {
            need,
            generation,
            answers: Answers::new(names, places),
            asked: 0,
            deferred: Vec::new(),
            behind: VecDeque::new(),
            layers: 0,
            newer: BTreeMap::new(),
            depends_on: 0,
            is_void: false,
        }
    }

    pub fn need(&self) -> Need {
        self.need
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the bytes of strings among the answers.
    pub fn bytes(&self) -> usize {
        self.answers.bytes()
    }

    /// Notes that every name was asked for, and every answer has arrived.
    pub fn end(&mut self) {
        self.answers.end();
    }

    /// Returns the answers alone. The fetch must not be behind.
    pub fn into_answers(self) -> Answers {
        self.answers
    }

    /// Returns the bytes of memory that the fetch holds besides the names. The layers that it is
    /// behind by are counted as writes on their way.
    pub fn memory(&self) -> usize {
        let newer = self.newer.len() * 2 * size_of::<(u32, u64)>();
        let deferred = self.deferred.capacity() * size_of::<u32>();
        let behind = self.behind.capacity() * size_of::<PendingLayer>();
        self.answers.memory() + newer + deferred + behind
    }

    /// Returns the answers so far.
    #[cfg(test)]
    pub fn answers(&self) -> &Answers {
        &self.answers
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
        let mut list = std::mem::take(&mut self.deferred);
        // A name that was written since is answered by the write.
        list.retain(|name| self.answers.found(*name as usize) == AnswerSlot::Reading);
        let names = self.answers.names().clone();
        let end = names
            .len()
            .min(self.asked + most.saturating_sub(list.len()));
        let deferred = list.iter().map(|name| names.key(*name as usize).len());
        let mut bytes: usize = deferred.sum();
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
                    self.answers.set(name, AnswerSlot::Reading);
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
            names: self.answers.names().clone(),
            list,
            budget_bytes,
        }
    }

    /// Takes the result of a piece. Names that were written since they were asked for keep their
    /// newer answers.
    pub fn take(&mut self, read: ManyRead, now_ms: u64) {
        let answers = &mut self.answers;
        let piece = answers.begin_piece(read.buffer);
        for (name, read) in read.list {
            let place = name as usize;
            if answers.found(place) != AnswerSlot::Reading {
                continue;
            }
            match read {
                NameRead::NoRoom => self.deferred.push(name),
                NameRead::Until(at) if at > now_ms => answers.set(place, AnswerSlot::Until(at)),
                NameRead::Absent | NameRead::Until(_) => answers.set(place, AnswerSlot::Absent),
                NameRead::There => answers.set(place, AnswerSlot::There),
                NameRead::Part(start, len) => {
                    answers.set_part(place, piece, start, len);
                }
                NameRead::Long(data) => answers.set_value(
                    place,
                    Value {
                        data_type: DataType::String,
                        data,
                        expire_at_ms: None,
                    },
                ),
                NameRead::Failed(e) => answers.set_failed(place, e),
            }
        }
        // Other writes may have answered the names while the piece was read.
        answers.shrink(piece);
    }

    fn written(&mut self, name: usize, value: Option<&Value>, epoch: Epochs, now_ms: u64) {
        let value = value.filter(|v| v.expire_at_ms.is_none_or(|at| at > now_ms));
        let strings = self.need == Need::Strings;
        match value {
            None => self.answers.set(name, AnswerSlot::Absent),
            Some(v) if strings && v.data_type != DataType::String => {
                self.answers.set(name, AnswerSlot::Absent)
            }
            Some(v) if strings => self.answers.set_value(name, v.clone()),
            Some(Value {
                expire_at_ms: Some(at),
                ..
            }) => self.answers.set(name, AnswerSlot::Until(*at)),
            Some(_) => self.answers.set(name, AnswerSlot::There),
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
        let found = self.answers.names().find(key, hash);
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
        let names = self.answers.names().clone();
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
