//! Reads of a command: the overlay first, then the answers of its fetch ([`crate::fetch`]), then
//! the store within the limits of a command on the loop.

use super::Keyspace;
use super::streams::StreamNeed;
use crate::answers::{AnswerSlots, Answers};
use crate::catalog::DATABASE;
use crate::epoch::Epochs;
use crate::fetch::many_names::{ManyFetch, ManyPiece, ManyRead};
use crate::fetch::{self, Answer, Fetch, Need, PIECE_BYTES, PIECE_NAMES, Piece};
use crate::layout::{self, DataType};
use crate::names::{KeyHash, Names};
use crate::value::{Known, Meta, Value};
use basalt::{Bytes, Error, Result};
use std::sync::Arc;

/// Reads of the store that one command does on the loop. The fetching thread does the rest.
pub(crate) const LOOP_READS: u32 = 128;
/// Bytes of separated values that one command reads on the loop.
pub(crate) const LOOP_BYTES: usize = 256 << 10;

/// The reason why a read of a command has no answer.
#[derive(Debug)]
pub(crate) enum Missed {
    /// The read takes longer than the loop may wait. The command runs again when its keys were
    /// fetched.
    Fetch(Need),
    /// A stream is not in memory.
    Stream(StreamNeed),
    /// The store failed.
    Store(Error),
}

/// The result of a command's read.
pub(crate) type Read<T> = std::result::Result<T, Missed>;

impl From<Error> for Missed {
    fn from(e: Error) -> Missed {
        Missed::Store(e)
    }
}

impl Keyspace {
    /// Encodes a key for the store into `scratch`. Returns false for a key that no store can hold.
    fn stored_key(&mut self, key: &[u8]) -> bool {
        self.names += 1;
        if key.len() > layout::MAX_KEY_LEN {
            return false;
        }
        self.scratch.clear();
        self.scratch
            .extend_from_slice(&layout::key_prefix(DATABASE, self.generation));
        self.scratch.extend_from_slice(key);
        true
    }

    /// Returns the overlay's write of the key in `scratch`, or `None` if the store has to be read.
    fn written(&mut self) -> Option<Option<Value>> {
        let (slot, value) = self.newest(&self.scratch)?;
        self.touched |= 1 << slot;
        let now = self.now_ms;
        Some(value.filter(|v| Keyspace::alive(v, now)))
    }

    /// Returns the answer for a key that was fetched for the running command.
    fn fetched(&self, key: &[u8]) -> Option<Result<Answer>> {
        let fetch = self.fetches.get(&self.current?)?;
        if fetch.generation() != self.generation {
            return None;
        }
        Some(match fetch.answer(key)? {
            Answer::Failed(e) => Err((**e).clone()),
            answer => Ok(answer.clone()),
        })
    }

    /// Counts a read of the store against the limit of the running command.
    fn spend(&mut self, need: Need) -> Read<()> {
        if self.reads_left == 0 {
            return Err(Missed::Fetch(need));
        }
        self.reads_left -= 1;
        self.reads += 1;
        Ok(())
    }

    fn spend_bytes(&mut self, bytes: usize) {
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.read_bytes += bytes as u64;
    }

    /// Returns the live value of a key. Reads the store if the overlay does not have the key.
    pub fn get(&mut self, key: &[u8]) -> Read<Option<Value>> {
        self.touch_flush();
        if !self.stored_key(key) {
            return Ok(None);
        }
        if let Some(value) = self.written() {
            return Ok(value);
        }
        let value = match self.fetched(key).transpose()? {
            Some(Answer::Absent) => None,
            Some(Answer::Value(value)) => Some(*value),
            _ => {
                self.spend(Need::Value)?;
                let found = self.store.get_within(&self.scratch, self.bytes_left)?;
                let Some(found) = found else {
                    return Err(Missed::Fetch(Need::Value));
                };
                self.spend_bytes(found.as_ref().map_or(0, |v| v.data.len()));
                found
            }
        };
        let now = self.now_ms;
        Ok(value.filter(|v| Keyspace::alive(v, now)))
    }

    /// Returns the type and expiry of a live key. Reads no separated value.
    pub fn meta(&mut self, key: &[u8]) -> Read<Option<Meta>> {
        Ok(self.look(key, Need::Meta)?.map(|(meta, _)| meta))
    }

    /// Returns the type, expiry and length of a live key.
    pub fn meta_with_len(&mut self, key: &[u8]) -> Read<Option<Meta>> {
        Ok(self.look(key, Need::Len)?.map(|(meta, _)| meta))
    }

    /// Returns the type and expiry of a live key, with the value if it is inline. Otherwise the
    /// value is a string of at least [`layout::LEAST_MIN_BLOB_SIZE`] bytes, its type byte included.
    pub fn peek(&mut self, key: &[u8]) -> Read<Option<Known>> {
        self.look(key, Need::Meta)
    }

    fn look(&mut self, key: &[u8], need: Need) -> Read<Option<Known>> {
        self.touch_flush();
        if !self.stored_key(key) {
            return Ok(None);
        }
        if let Some(value) = self.written() {
            return Ok(value.map(|v| {
                let meta = Meta {
                    data_type: v.data_type,
                    expire_at_ms: v.expire_at_ms,
                    len: Some(v.data.len()),
                };
                (meta, Some(v.data))
            }));
        }
        let found = match self.fetched(key).transpose()? {
            Some(Answer::Absent) => None,
            Some(Answer::Plain(data_type)) if need == Need::Meta => {
                let meta = Meta {
                    data_type,
                    expire_at_ms: None,
                    len: None,
                };
                Some((meta, None))
            }
            Some(Answer::Meta(meta)) if need == Need::Meta || meta.len.is_some() => {
                Some((*meta, None))
            }
            _ => {
                self.spend(need)?;
                let lengths = need == Need::Len;
                let found = (self.store).get_meta(&self.scratch, lengths, self.bytes_left)?;
                found.ok_or(Missed::Fetch(need))?
            }
        };
        let now = self.now_ms;
        Ok(found.filter(|(meta, _)| meta.expire_at_ms.is_none_or(|at| at > now)))
    }

    /// Returns the part of a live string that GETRANGE means, with the string's type and expiry. It
    /// keeps at most about twice its own bytes in memory.
    pub fn get_range(&mut self, key: &[u8], start: i64, end: i64) -> Read<Option<Value>> {
        let part = |v: Value| Value {
            data: fetch::part_of(&v.data, start, end),
            ..v
        };
        if let Some(Answer::Part(value)) = self.fetched(key).transpose()? {
            // If the key was written since, its answer was forgotten. If the overlay has the key,
            // it was not asked for.
            self.touch_flush();
            let now = self.now_ms;
            return Ok(Some(*value).filter(|v| Keyspace::alive(v, now)));
        }
        match self.get(key) {
            Ok(value) => Ok(value.map(part)),
            Err(Missed::Fetch(_)) => Err(Missed::Fetch(Need::Range(start, end))),
            Err(e) => Err(e),
        }
    }

    /// Returns the live strings of many keys, absent for other types. Stops once the strings
    /// together are longer than `room_bytes`. The keys behind them count as absent, and the caller
    /// refuses the reply as too long.
    pub fn get_strings<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a [u8]>,
        room_bytes: usize,
    ) -> Read<Vec<Option<Bytes>>> {
        self.touch_flush();
        let mut out = Vec::new();
        let mut ask = Vec::new();
        let mut places = Vec::new();
        for (place, key) in keys.enumerate() {
            out.push(None);
            if !self.stored_key(key) {
                continue;
            }
            if let Some(value) = self.written() {
                let string = value.filter(|v| v.data_type == DataType::String);
                out[place] = string.map(|v| v.data);
                continue;
            }
            match self.fetched(key).transpose()? {
                Some(Answer::Absent) => {}
                Some(Answer::Value(value)) => out[place] = Some(value.data),
                _ => {
                    self.spend(Need::Strings)?;
                    ask.push(Bytes::copy_from_slice(&self.scratch));
                    places.push(place);
                }
            }
        }
        if self.bytes_left == usize::MAX {
            self.read_strings(ask, places, room_bytes, &mut out)?;
        } else if !ask.is_empty() {
            let found = self.store.get_strings_up_to(&ask, self.bytes_left);
            for (place, value) in places.into_iter().zip(found) {
                let Some(value) = value else {
                    return Err(Missed::Fetch(Need::Strings));
                };
                out[place] = value?;
                self.spend_bytes(out[place].as_ref().map_or(0, Bytes::len));
            }
        }
        Ok(out)
    }

    /// Reads strings for a command that was fetched for too often already. Each batch brings at
    /// most a piece's bytes into memory, or one string that is longer. The batches end when `out`
    /// is longer than `room_bytes`.
    fn read_strings(
        &mut self,
        mut ask: Vec<Bytes>,
        mut places: Vec<usize>,
        room_bytes: usize,
        out: &mut [Option<Bytes>],
    ) -> Read<()> {
        let mut held: usize = out.iter().flatten().map(Bytes::len).sum();
        while !ask.is_empty() && held <= room_bytes {
            let budget = PIECE_BYTES.min(room_bytes - held);
            let found = self.store.get_strings(&ask, budget);
            let mut deferred = (Vec::new(), Vec::new());
            for ((key, place), value) in ask.into_iter().zip(places).zip(found) {
                match value {
                    Some(value) => {
                        let value = value?;
                        let bytes = value.as_ref().map_or(0, Bytes::len);
                        out[place] = value;
                        held += bytes;
                        self.spend_bytes(bytes);
                    }
                    None => {
                        deferred.0.push(key);
                        deferred.1.push(place);
                    }
                }
            }
            (ask, places) = deferred;
        }
        Ok(())
    }

    /// Returns the bytes that were fetched for the running command.
    pub fn fetched_bytes(&self) -> usize {
        let current = self.current.and_then(|id| self.fetches.get(&id));
        current.map_or(0, Fetch::bytes)
    }

    /// Returns the reads of the store on the loop since the server started, and the bytes of values
    /// read.
    pub fn spent(&self) -> (u64, u64) {
        (self.reads, self.read_bytes)
    }

    /// Returns the number of names that were looked for on the loop since the server started.
    pub fn names(&self) -> u64 {
        self.names
    }

    /// Adds the names that were looked for among the answers of a fetch.
    pub fn add_names(&mut self, n: usize) {
        self.names += n as u64;
    }

    /// Returns the generation under which keys are written.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Begins, or begins again, the fetch of a request with very many names. Returns the former
    /// fetch of the client.
    pub fn begin_many(
        &mut self,
        client: u64,
        need: Need,
        names: Arc<Names>,
        places: AnswerSlots,
    ) -> Option<ManyFetch> {
        let fetch = ManyFetch::new(need, self.generation, names, places);
        let before = self.end_many(client);
        self.many.insert(client, fetch);
        before
    }

    /// Returns the next piece of the fetch of a request with very many names, with up to `most`
    /// names. The result is `None` if all names were read, or if their strings exceed
    /// `limit_bytes`, the limit of the reply. The result is also `None` if the answers do not count
    /// any more, because the keyspace was flushed or a commit failed.
    pub fn next_many(
        &mut self,
        client: u64,
        most: usize,
        limit_bytes: usize,
        now_ms: u64,
    ) -> Option<ManyPiece> {
        if self.many.get(&client)?.is_void {
            return None;
        }
        // The fetch leaves the map while this keyspace is read for the names' writes.
        let mut fetch = self.many.remove(&client)?;
        let with_data = fetch.need() == Need::Strings;
        let budget_bytes = match fetch.need() {
            Need::Strings => limit_bytes.checked_sub(fetch.bytes()),
            _ => Some(usize::MAX),
        };
        let mut piece = None;
        if let Some(budget_bytes) = budget_bytes {
            let prefix = layout::key_prefix(DATABASE, fetch.generation());
            let mut stored = prefix.to_vec();
            let is_clear = self.overlay.is_empty() && self.layers.is_empty();
            // The overlay's answer is in memory and is newer than the store's.
            let written = |key: &[u8], hash: KeyHash| {
                if is_clear {
                    return None;
                }
                stored.truncate(prefix.len());
                stored.extend_from_slice(key);
                let (slot, value) = self.newest_of(&stored, Some(hash), with_data)?;
                Some((1 << slot, value))
            };
            let (list, ended) = fetch.ask(most, written, now_ms);
            match list.is_empty() && ended {
                true => fetch.end(),
                false => piece = Some(fetch.piece(list, budget_bytes.min(PIECE_BYTES))),
            }
        }
        self.many.insert(client, fetch);
        piece
    }

    /// Gives the result of a piece to the fetch of a client. If the client no longer waits, the
    /// result is dropped.
    pub fn take_many(&mut self, client: u64, read: ManyRead, now_ms: u64) {
        if let Some(fetch) = self.many.get_mut(&client) {
            fetch.take(read, now_ms);
        }
    }

    /// Applies the layers that took effect to the answers of a client's fetch, for up to `most`
    /// names. Returns true if more names remain.
    pub fn catch_up(&mut self, client: u64, most: usize, now_ms: u64) -> bool {
        let Some(fetch) = self.many.get_mut(&client) else {
            return false;
        };
        let (looked, done) = fetch.catch_up(most, now_ms);
        self.names += looked as u64;
        self.room_freed |= !done.is_empty();
        self.discarded.extend(done);
        fetch.is_behind()
    }

    /// Returns the fetch of a client whose request has very many names.
    pub fn many(&self, client: u64) -> Option<&ManyFetch> {
        self.many.get(&client)
    }

    /// Ends a fetch that has an answer for every name, and returns the answers if they are true
    /// now. The second value is the epochs that the answers depend on.
    pub fn freeze(&mut self, client: u64) -> Option<(Answers, Epochs)> {
        let is_true = |f: &ManyFetch| !f.is_void && f.generation() == self.generation;
        let fetch = self.many.get(&client).filter(|f| is_true(f))?;
        assert!(!fetch.is_behind(), "the caller lets it catch up");
        let flush = self.flush.map_or(0, |slot| 1 << slot);
        let depends_on = fetch.depends_on | flush;
        let fetch = self.many.remove(&client)?;
        Some((fetch.into_answers(), depends_on))
    }

    /// Removes and returns the fetch of a request with very many names. Dropping a fetch takes
    /// long.
    pub fn end_many(&mut self, client: u64) -> Option<ManyFetch> {
        let mut fetch = self.many.remove(&client)?;
        self.discarded.extend(fetch.take_layers());
        self.room_freed = true;
        Some(fetch)
    }

    /// Returns the number of fetches that requests wait for.
    pub fn fetches(&self) -> usize {
        self.fetches.len() + self.many.len()
    }

    /// Begins, or begins again, the fetch of a client's request. `secrets` are two random numbers.
    pub fn begin_fetch(&mut self, client: u64, need: Need, secrets: (u64, u64)) {
        let rounds = self.fetches.get(&client).map_or(0, |f| f.rounds);
        let fetch = Fetch::new(need, self.generation, rounds + 1, secrets);
        self.fetches.insert(client, fetch);
    }

    /// Gives the answers that were fetched for a client to the command that runs next.
    pub fn use_fetch(&mut self, client: Option<u64>) {
        self.current = client;
    }

    /// Returns the number of fetches for the running command.
    pub(super) fn rounds(&self) -> u32 {
        let current = self.current.and_then(|id| self.fetches.get(&id));
        current.map_or(0, |f| f.rounds)
    }

    /// Forgets the fetch of a client.
    pub fn end_fetch(&mut self, client: u64) {
        self.fetches.remove(&client);
    }

    /// Returns the bytes of memory that a client's fetch and its pins of streams hold.
    pub fn fetch_memory(&self, client: u64) -> usize {
        let many = self.many.get(&client).map_or(0, ManyFetch::memory);
        many + self.fetches.get(&client).map_or(0, Fetch::memory) + self.pin_memory(client)
    }

    /// Returns the next keys to read for a client: those that an earlier piece had no room for, or
    /// the next of `keys`. The list is empty if none of them has to be read. The result is `None`
    /// if all keys were read, or if their strings exceed `limit_bytes`, so that the reply would be
    /// too long.
    pub fn next_piece(
        &mut self,
        client: u64,
        limit_bytes: usize,
        keys: &mut dyn Iterator<Item = &[u8]>,
    ) -> Option<Piece> {
        let fetch = self.fetches.get(&client)?;
        if fetch.generation() != self.generation {
            // The answers would not count.
            return None;
        }
        let budget_bytes = match fetch.need() {
            Need::Strings => PIECE_BYTES.min(limit_bytes.checked_sub(fetch.bytes())?),
            _ => PIECE_BYTES,
        };
        let mut fetch = self.fetches.remove(&client)?;
        let generation = fetch.generation();
        // The keys are copied, so that pieces do not keep a finished request in memory.
        let stored = |key: &[u8]| layout::encode_key(DATABASE, generation, key);
        let deferred = fetch.take_deferred().into_iter();
        let mut piece: Vec<_> = deferred.map(|key| stored(&key)).collect();
        let mut looked = 0;
        let mut ended = false;
        while looked < PIECE_NAMES - piece.len().min(PIECE_NAMES) {
            let Some(key) = keys.next() else {
                ended = true;
                break;
            };
            looked += 1;
            if key.len() > layout::MAX_KEY_LEN {
                continue;
            }
            let in_store = stored(key);
            // The overlay's answer is in memory and is newer than the store's.
            let hash = KeyHash::of(self.secret, key);
            let written = self.newest_of(&in_store, Some(hash), false);
            if written.is_none() && fetch.ask(&in_store, hash) {
                piece.push(in_store);
            }
        }
        let need = fetch.need();
        self.fetches.insert(client, fetch);
        (!piece.is_empty() || !ended).then_some(Piece {
            need,
            keys: piece,
            budget_bytes,
        })
    }

    /// Takes the answers for a client. If the client no longer waits, they are dropped.
    pub fn take_answers(&mut self, client: u64, answers: Vec<(Bytes, Option<Answer>)>) {
        if let Some(fetch) = self.fetches.get_mut(&client) {
            for (key, answer) in answers {
                fetch.take(key, answer);
            }
        }
    }
}
