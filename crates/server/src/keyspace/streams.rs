//! Streams in the keyspace: which are loaded, and their writes in epochs.
//!
//! # How the rules of epochs hold for streams
//! - A loaded stream is newer than the store, as the overlay is. A command that reads it depends on
//!   the epochs that write it (rules 1 and 2), so the epochs of one stream follow one another.
//! - An epoch may have appends to logs and writes of tables. The appends are committed first, and
//!   later epochs are submitted after both commits. So tables are written in the order of epochs.
//!   An epoch with only one of these parts needs no order relative to epochs that it does not
//!   depend on.
//! - When an epoch with writes of a stream fails, the loaded stream is dropped. It is loaded again
//!   when no epoch that writes it is open or in flight.
//! - A record does not include the changes of tables in its own epoch, because its append comes
//!   first. If a crash or an error loses these changes, entries of the epoch may stay without its
//!   XDELs and its changes of groups. Only an XADD that trims counts the deletions before it.
//! - Any other write of the key (SET, DEL, a layer, a flush) drops the loaded stream. If that epoch
//!   fails, the stream is loaded again.
//!
//! # Deleted entries and groups
//! - XDEL and the commands of groups write tables only: elements, and the key if necessary. All
//!   writes of one command are in one epoch, so a crash leaves all of them or none.
//! - An LSN that a tombstone or a group names is never used again: if the key in the store does not
//!   have a greater next LSN, the same command writes the key. If a power cut loses entries that
//!   were not synced, their LSNs stay below the next LSN of the key, and their ids stay at or below
//!   its last id. They count as deleted entries.
//! - A record is removed from the log after a sync that makes its tombstone durable. A tombstone is
//!   deleted when the removal of its record is durable, or with a write of the key that has a
//!   greater first live LSN. An append is not enough, because a power cut may lose the append and
//!   not the writes of its epoch to tables.
//! - Each load computes the number of entries from the next LSN, the first live LSN, and the LSNs
//!   without an entry between them. So no stored counter can be wrong.

use super::Keyspace;
use super::loaded_streams::LoadedStreams;
use super::reading::{Missed, Read};
use crate::catalog::DATABASE;
use crate::layer::Layer;
use crate::layout::{self, DataType};
use crate::names::KeyHash;
use crate::store::Append;
use crate::stream::StreamId;
use crate::stream::element::{Element, ElementWriter};
use crate::stream::group::Groups;
use crate::stream::jobs::{EntryRange, LiveEntry, LiveRange, Removal, StreamAnswer, StreamJob};
use crate::stream::loaded::{LoadedParts, LoadedStream};
use crate::stream::lsn_set::LsnSet;
use crate::stream::record::{Record, StreamState, decode_record, encode_record, encode_state};
use crate::value::Value;
use basalt::Bytes;
use basalt::log::Log;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Maximum number of tombstones that one write of a stream deletes.
const TOMBSTONES_A_WRITE: usize = 1024;
/// Minimum number of tombstones for which an append deletes the obsolete ones.
const MANY_TOMBSTONES: usize = 256;

/// The event that a request on streams waits for.
pub(crate) enum StreamNeed {
    /// Another thread runs the job. Then the request runs again.
    Job(Box<StreamJob>),
    /// Epochs that write the stream, or the job of another request, must end.
    Busy,
    /// Other requests that pin streams must end ([`super::stream_pins`]). Then the request runs
    /// again, with the right to pin its streams.
    Turn,
}

impl fmt::Debug for StreamNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamNeed")
    }
}

/// The kind of value that a key has, for commands on streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKey {
    Absent,
    OtherType,
    /// The key has a stream, which is loaded.
    Loaded,
}

/// The streams in memory.
#[derive(Default)]
pub(super) struct Streams {
    loaded: LoadedStreams,
    /// Number of the blocked requests that wait for each key.
    watched: BTreeMap<Bytes, usize>,
    /// Tickets of the running loads, by key. The result of a load whose ticket was removed is
    /// ignored.
    loading: BTreeMap<Bytes, u64>,
    /// Logs that were created and that no stream uses yet, with their incarnations.
    spare: Vec<(u64, Log)>,
    /// Results of jobs for waiting requests, by client id.
    answers: BTreeMap<u64, Vec<StreamAnswer>>,
    /// Number of loads so far.
    loads: u64,
    /// Number of entries appended so far.
    pub appended: u64,
    /// Records to be removed from logs.
    removals: Vec<Removal>,
    /// Keys of streams that epochs have written since the last call of
    /// [`Keyspace::take_written_streams`].
    written: Vec<Bytes>,
}

impl Streams {
    /// Drops the loaded stream of a key, because its key is written or an epoch has failed.
    pub fn forget(&mut self, key: &[u8]) {
        self.loaded.remove(key);
        self.loading.remove(key);
    }

    /// Drops the loaded streams of the keys that a layer writes.
    pub fn forget_layer(&mut self, layer: &Layer, secret: u64) {
        let stays = |key: &Bytes| !layer.has(key, KeyHash::of(secret, key));
        let written = self.loaded.keys().filter(|key| !stays(key));
        for key in written.cloned().collect::<Vec<_>>() {
            self.loaded.remove(&key);
        }
        self.loading.retain(|key, _| stays(key));
    }

    /// Drops all loaded streams.
    pub fn forget_all(&mut self) {
        self.loaded.clear();
        self.loading.clear();
    }

    /// Removes and returns the unused logs above a number that is kept.
    pub fn take_spare_logs(&mut self, kept: usize) -> Vec<(u64, Log)> {
        let kept = kept.min(self.spare.len());
        self.spare.split_off(kept)
    }

    /// Returns true if a blocked request waits for a key.
    pub fn is_watched(&self, key: &[u8]) -> bool {
        !self.watched.is_empty() && self.watched.contains_key(key)
    }

    /// Returns the keys that blocked requests wait for.
    pub fn watched(&self) -> Vec<Bytes> {
        self.watched.keys().cloned().collect()
    }

    /// Notes that an epoch with writes of a stream has ended. `wakes` is true if they may end the
    /// waits of blocked requests.
    pub fn epoch_ended(&mut self, key: &[u8], slot: usize, stored: bool, wakes: bool) {
        if !stored {
            return self.forget(key);
        }
        if wakes {
            self.written.push(Bytes::copy_from_slice(key));
        }
        let end = |stream: &mut LoadedStream| {
            stream.written_by &= !(1 << slot);
            stream.shrink_window();
            let (up_to, runs) = (stream.take_trim(), stream.take_removals());
            let is_due = up_to.is_some() || !runs.is_empty();
            is_due.then(|| Removal {
                key: Bytes::copy_from_slice(key),
                load: stream.load,
                log: stream.log.clone(),
                up_to,
                runs,
            })
        };
        let removal = self.loaded.change(key, end).flatten();
        self.removals.extend(removal);
        self.loaded.evict();
    }

    /// Evicts windows and streams above the limits. No command may be running, because a command
    /// relies on the streams that it has found, and on their windows.
    pub fn evict(&mut self) {
        self.loaded.evict();
    }
}

impl Keyspace {
    /// Returns the kind of value that a key has. Loads the value if it is a stream.
    pub fn stream(&mut self, key: &[u8]) -> Read<StreamKey> {
        self.touch_flush();
        let now = self.now_ms;
        let look = |stream: &mut LoadedStream| {
            let is_alive = stream.expire_at_ms.is_none_or(|at| at > now);
            (is_alive, stream.written_by)
        };
        if let Some((is_alive, written_by)) = self.streams.loaded.change(key, look) {
            self.touched |= written_by;
            if is_alive {
                self.streams.loaded.pin_again(self.client, key);
                return Ok(StreamKey::Loaded);
            }
            self.streams.forget(key);
        }
        match self.meta(key)? {
            None => return Ok(StreamKey::Absent),
            Some(meta) if meta.data_type != DataType::Stream => return Ok(StreamKey::OtherType),
            Some(_) => {}
        }
        let failure = |answer: &StreamAnswer| match answer {
            StreamAnswer::Loaded {
                key: of,
                result: Err(e),
                ..
            } if of == key => Some(e.clone()),
            _ => None,
        };
        if let Some(e) = self.stream_answers().find_map(failure) {
            return Err(Missed::Store(e));
        }
        if !self.pin(key) {
            return Err(Missed::Stream(StreamNeed::Turn));
        }
        let is_busy = |e: &super::Epoch| e.streams.contains_key(key);
        if self.epochs.iter().flatten().any(is_busy) || self.streams.loading.contains_key(key) {
            return Err(Missed::Stream(StreamNeed::Busy));
        }
        self.streams.loads += 1;
        let ticket = self.streams.loads;
        let stored = layout::encode_key(DATABASE, self.generation, key);
        let key = stored.slice(layout::KEY_PREFIX_LEN..);
        self.streams.loading.insert(key, ticket);
        let job = StreamJob::Load { stored, ticket };
        Err(Missed::Stream(StreamNeed::Job(Box::new(job))))
    }

    /// Pins a stream for the running request, if its turn has come.
    fn pin(&mut self, key: &[u8]) -> bool {
        let (client, writes) = (self.client, self.client_writes);
        self.streams.loaded.pin(client, writes, key)
    }

    /// Returns the need for a job on a found stream. The result of the job counts for this load of
    /// the stream, so the stream is pinned until the request has run.
    fn need_job(&mut self, key: &[u8], job: StreamJob) -> Missed {
        Missed::Stream(match self.pin(key) {
            true => StreamNeed::Job(Box::new(job)),
            false => StreamNeed::Turn,
        })
    }

    /// Returns a stream that [`Keyspace::stream`] has found.
    pub fn loaded_stream(&self, key: &[u8]) -> &LoadedStream {
        self.streams.loaded.get(key).expect("it was found")
    }

    /// Returns the log for a new stream, with its incarnation.
    pub fn spare_log(&mut self) -> Read<(u64, Log)> {
        if let Some(spare) = self.streams.spare.pop() {
            return Ok(spare);
        }
        let failure = |answer: &StreamAnswer| match answer {
            StreamAnswer::Created(Err(e)) => Some(e.clone()),
            _ => None,
        };
        match self.stream_answers().find_map(failure) {
            Some(e) => Err(Missed::Store(e)),
            None => Err(Missed::Stream(StreamNeed::Job(Box::new(StreamJob::Create)))),
        }
    }

    /// Returns the results of jobs for the running command, the newest first.
    fn stream_answers(&self) -> impl Iterator<Item = &StreamAnswer> {
        let answers = self.streams.answers.get(&self.client);
        answers.into_iter().flatten().rev()
    }

    /// Returns the smallest live LSN of a found stream whose id is at least `id`.
    pub fn stream_lower_bound(&mut self, key: &[u8], id: StreamId) -> Read<u64> {
        let stream = self.loaded_stream(key);
        if let Some(lsn) = stream.lower_bound(id) {
            return Ok(lsn);
        }
        let own_load = stream.load;
        let found = |answer: &StreamAnswer| match answer {
            StreamAnswer::Found {
                load,
                id: of,
                result,
            } if (*load, *of) == (own_load, id) => Some(result.clone()),
            _ => None,
        };
        if let Some(result) = self.stream_answers().find_map(found) {
            let lsn = result.map_err(Missed::Store)?;
            let stream = self.loaded_stream(key);
            return Ok(stream.gone.next_absent(lsn.max(stream.state.first_lsn)));
        }
        let live = self.live_range(key);
        let job = StreamJob::Find { live, id };
        Err(self.need_job(key, job))
    }

    /// Returns the live entries of a found stream that are not in memory, for a job.
    fn live_range(&self, key: &[u8]) -> LiveRange {
        let stream = self.loaded_stream(key);
        let (first, end) = (stream.state.first_lsn, stream.window_start);
        LiveRange {
            log: stream.log.clone(),
            load: stream.load,
            lsns: first..end.max(first),
            gone: stream.gone.clone(),
        }
    }

    /// Returns the live entries of a found stream in a range, in the direction of the range. The
    /// entries are those of this moment, or of an earlier moment at which the request waited.
    pub fn stream_range(
        &mut self,
        key: &[u8],
        range: &EntryRange,
        limit_bytes: usize,
    ) -> Read<Vec<LiveEntry>> {
        let stream = self.loaded_stream(key);
        let own_load = stream.load;
        let entries = |answer: &StreamAnswer| match answer {
            StreamAnswer::Entries {
                load,
                range: of,
                result,
            } if (*load, of) == (own_load, range) => Some(result.clone()),
            _ => None,
        };
        if let Some(result) = self.stream_answers().find_map(entries) {
            return result.map_err(Missed::Store);
        }
        let stream = self.loaded_stream(key);
        let live = stream.window.iter();
        let is_in = |entry: &&LiveEntry| (range.start..=range.end).contains(&entry.1.id);
        let most = usize::try_from(range.count).unwrap_or(usize::MAX);
        let has_start = stream.lower_bound(range.start).is_some();
        let found: Vec<LiveEntry> = match range.reverse {
            false if has_start => live.filter(is_in).take(most).cloned().collect(),
            true => live.rev().filter(is_in).take(most).cloned().collect(),
            false => Vec::new(),
        };
        if has_start || (range.reverse && found.len() == most) {
            return Ok(found);
        }
        let job = StreamJob::Read {
            live: self.live_range(key),
            newest: stream.window.iter().filter(is_in).cloned().collect(),
            range: range.clone(),
            limit_bytes,
        };
        Err(self.need_job(key, job))
    }

    /// Returns the id of the first live entry of a found stream, or the smallest id if it has none.
    pub fn stream_first_id(&mut self, key: &[u8]) -> Read<StreamId> {
        if let Some(id) = self.loaded_stream(key).first_id() {
            return Ok(id);
        }
        let first = EntryRange {
            start: StreamId::MIN,
            end: StreamId::MAX,
            reverse: false,
            count: 1,
            from_lsn: 0,
        };
        let found = self.stream_range(key, &first, 0)?;
        let first = found.first().map(|(lsn, entry)| (*lsn, entry.id));
        let note = |stream: &mut LoadedStream| stream.known_first = first;
        self.streams.loaded.change(key, note).expect("it was found");
        Ok(first.map_or(StreamId::MIN, |(_, id)| id))
    }

    /// Returns the LSNs of live entries of a found stream by their ids.
    pub fn stream_locate(
        &mut self,
        key: &[u8],
        ids: impl Iterator<Item = StreamId>,
    ) -> Read<BTreeMap<StreamId, u64>> {
        let stream = self.loaded_stream(key);
        let (mut located, mut missing) = (BTreeMap::new(), BTreeSet::new());
        let oldest = stream.window.front().map(|(_, entry)| entry.id);
        let is_complete = stream.window_start <= stream.state.first_lsn;
        for id in ids {
            match stream
                .window
                .binary_search_by_key(&id, |(_, entry)| entry.id)
            {
                Ok(place) => {
                    located.insert(id, stream.window[place].0);
                }
                Err(_) if is_complete || oldest.is_some_and(|oldest| id > oldest) => {}
                Err(_) if id > stream.state.last_id => {}
                Err(_) => {
                    missing.insert(id);
                }
            }
        }
        for answer in self.stream_answers() {
            let StreamAnswer::Located { load, ids, result } = answer else {
                continue;
            };
            if *load != stream.load {
                continue;
            }
            let found = result.as_ref().map_err(|e| Missed::Store(e.clone()))?;
            missing.retain(|id| !ids.contains(id));
            let is_live = |(_, lsn): &(&StreamId, &u64)| stream.is_live(**lsn);
            located.extend(found.iter().filter(is_live).map(|(id, lsn)| (*id, *lsn)));
        }
        if missing.is_empty() {
            return Ok(located);
        }
        let job = StreamJob::Locate {
            live: self.live_range(key),
            ids: missing,
        };
        Err(self.need_job(key, job))
    }

    /// Returns live entries of a found stream by their LSNs, or `None` if their bytes exceed
    /// `limit_bytes`.
    pub fn stream_entries(
        &mut self,
        key: &[u8],
        lsns: &BTreeSet<u64>,
        limit_bytes: usize,
    ) -> Read<Option<BTreeMap<u64, Record>>> {
        let stream = self.loaded_stream(key);
        let mut found = BTreeMap::new();
        for (lsn, entry) in stream.window.iter().filter(|(lsn, _)| lsns.contains(lsn)) {
            found.insert(*lsn, entry.clone());
        }
        for answer in self.stream_answers() {
            let StreamAnswer::Fetched { load, result } = answer else {
                continue;
            };
            if *load != stream.load {
                continue;
            }
            match result {
                Err(e) => return Err(Missed::Store(e.clone())),
                Ok(None) => return Ok(None),
                Ok(Some(entries)) => {
                    let asked = entries.iter().filter(|(lsn, _)| lsns.contains(lsn));
                    found.extend(asked.map(|(lsn, entry)| (*lsn, entry.clone())));
                }
            }
        }
        let missing = lsns.iter().filter(|lsn| !found.contains_key(*lsn));
        let missing: BTreeSet<u64> = missing.copied().collect();
        if missing.is_empty() {
            let bytes: usize = found.values().map(|entry| entry.body.len()).sum();
            return Ok((bytes <= limit_bytes).then_some(found));
        }
        let job = StreamJob::Fetch {
            live: self.live_range(key),
            lsns: missing,
            limit_bytes,
        };
        Err(self.need_job(key, job))
    }

    /// Creates an empty stream at a key. Replaces the value of the key, if there is one.
    pub fn create_stream(&mut self, key: &[u8], incarnation: u64, log: Log) {
        self.streams.loads += 1;
        let parts = LoadedParts {
            incarnation,
            expire_at_ms: None,
            log,
            state: StreamState::default(),
            key_next_lsn: 1,
            gone: LsnSet::default(),
            removed: LsnSet::default(),
            tombstones: BTreeSet::new(),
            groups: Groups::default(),
            window: VecDeque::new(),
            window_start: 1,
        };
        let stream = LoadedStream::new(parts, self.streams.loads);
        self.write_stream(key, stream);
    }

    /// Writes the key of a stream with its current state.
    fn write_stream(&mut self, key: &[u8], mut stream: LoadedStream) {
        let value = Value {
            data_type: DataType::Stream,
            data: encode_state(
                stream.incarnation,
                stream.expire_at_ms,
                stream.len(),
                &stream.state,
            ),
            expire_at_ms: stream.expire_at_ms,
        };
        stream.key_next_lsn = stream.state.next_lsn;
        let dead = stream.tombstones.range(..stream.state.first_lsn);
        let dead: Vec<u64> = dead.take(TOMBSTONES_A_WRITE).copied().collect();
        let mut writer = ElementWriter::new(self.generation, stream.incarnation);
        for lsn in &dead {
            writer.delete_tombstone(*lsn);
            stream.tombstones.remove(lsn);
        }
        self.register_stream(key, stream.incarnation, stream.expire_at_ms);
        // The write drops the loaded stream, as any write of the key does.
        self.write(key, Some(value));
        let key = Bytes::copy_from_slice(key);
        self.streams.loaded.insert(key.clone(), stream);
        self.stream_written(key, false);
        self.write_elements(writer);
    }

    /// Adds writes of elements to the open epoch.
    fn write_elements(&mut self, writer: ElementWriter) {
        // 64 bytes cover the memory of a write in the epoch.
        let bytes: usize = writer.writes.iter().map(|write| write.bytes() + 64).sum();
        let open = self.open_epoch();
        open.bytes += bytes;
        open.elements.extend(writer.writes);
        self.pending_bytes += bytes;
        self.pending_bytes_peak = self.pending_bytes_peak.max(self.pending_bytes());
    }

    fn stream_written(&mut self, key: Bytes, wakes: bool) {
        self.wrote = true;
        let slot = self.open;
        let write = |stream: &mut LoadedStream| stream.written_by |= 1 << slot;
        (self.streams.loaded.change(&key, write)).expect("just written");
        *self.open_epoch().streams.entry(key).or_default() |= wakes;
    }

    /// Changes a found stream and its elements. `change` returns true if the key must be written,
    /// too. If `wakes` is true, the change may end the waits of blocked requests.
    pub(super) fn change_elements(
        &mut self,
        key: &[u8],
        wakes: bool,
        change: impl FnOnce(&mut LoadedStream, &mut ElementWriter) -> bool,
    ) {
        self.touch_flush();
        let mut stream = self.streams.loaded.remove(key).expect("it was found");
        let mut writer = ElementWriter::new(self.generation, stream.incarnation);
        let writes_key = change(&mut stream, &mut writer);
        for lsn in stream.obsolete_tombstones.split_off(
            stream
                .obsolete_tombstones
                .len()
                .saturating_sub(TOMBSTONES_A_WRITE),
        ) {
            if stream.tombstones.remove(&lsn) {
                writer.delete_tombstone(lsn);
            }
        }
        let has_writes = !writer.writes.is_empty();
        match writes_key {
            true => self.write_stream(key, stream),
            false => {
                let key = Bytes::copy_from_slice(key);
                self.streams.loaded.insert(key, stream);
            }
        }
        // An epoch without a write would not be submitted.
        if has_writes {
            self.stream_written(Bytes::copy_from_slice(key), wakes);
            self.write_elements(writer);
        }
    }

    /// Sets the state of a found stream. The first live LSN must stay the same.
    pub fn change_stream(&mut self, key: &[u8], state: StreamState) {
        let mut stream = self.streams.loaded.remove(key).expect("it was found");
        stream.state = state;
        self.write_stream(key, stream);
    }

    /// Removes the entries of a found stream before an LSN.
    pub fn trim_stream(&mut self, key: &[u8], first_lsn: u64) {
        let mut stream = self.streams.loaded.remove(key).expect("it was found");
        stream.remove_before(first_lsn);
        self.write_stream(key, stream);
    }

    /// Deletes live entries of a found stream. `entries` has their LSNs by id.
    pub fn delete_entries(&mut self, key: &[u8], entries: &BTreeMap<StreamId, u64>) {
        self.change_elements(key, false, |stream, writer| {
            for (id, lsn) in entries {
                stream.delete(*lsn, *id);
                writer.put(&Element::Tombstone { lsn: *lsn });
            }
            true
        });
    }

    /// Changes the expiry of a found stream.
    pub fn expire_stream(&mut self, key: &[u8], expire_at_ms: Option<u64>) {
        let mut stream = self.streams.loaded.remove(key).expect("it was found");
        stream.expire_at_ms = expire_at_ms;
        self.write_stream(key, stream);
    }

    /// Appends an entry to a found stream and removes the entries before `first_lsn`, in one write.
    pub fn append_entry<'a>(
        &mut self,
        key: &[u8],
        id: StreamId,
        first_lsn: u64,
        words: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) {
        self.touch_flush();
        self.changes += 1;
        self.streams.appended += 1;
        let append = |stream: &mut LoadedStream| {
            let lsn = stream.state.next_lsn;
            let added = stream.state.entries_added + 1;
            let record = encode_record(id, stream.next_record_first_lsn(first_lsn), added, words);
            stream.push(decode_record(&record).expect("just encoded"), first_lsn);
            let append = Append {
                log: stream.log.clone(),
                lsn,
                record,
            };
            let first = stream.state.first_lsn;
            let has_dead = stream.tombstones.first().is_some_and(|lsn| *lsn < first);
            let many_dead = has_dead && stream.tombstones.len() >= MANY_TOMBSTONES;
            (append, many_dead.then_some(stream.state))
        };
        let appended = self.streams.loaded.change(key, append);
        let (append, state_to_write) = appended.expect("it was found");
        if let Some(state) = state_to_write {
            self.change_stream(key, state);
        }
        self.stream_written(Bytes::copy_from_slice(key), true);
        // 128 bytes cover the memory of the entry in the epoch and the window.
        let bytes = append.record.len() + 128;
        let open = self.open_epoch();
        open.bytes += bytes;
        open.appends.push(append);
        self.pending_bytes += bytes;
        self.pending_bytes_peak = self.pending_bytes_peak.max(self.pending_bytes());
    }

    /// Applies the result of a job, or keeps it for the request of a client.
    pub fn take_stream_answer(&mut self, client: u64, answer: StreamAnswer) {
        match answer {
            StreamAnswer::Created(Ok(spare)) => self.streams.spare.push(spare),
            StreamAnswer::Removed(removals, result) => {
                for removal in removals.into_iter().filter(|_| result.is_ok()) {
                    let spend = |stream: &mut LoadedStream| {
                        for run in removal.runs {
                            let spent = stream.tombstones.range(run).copied();
                            stream.obsolete_tombstones.extend(spent);
                        }
                    };
                    let stream = self.streams.loaded.get(&removal.key);
                    if stream.is_some_and(|stream| stream.load == removal.load) {
                        self.streams.loaded.change(&removal.key, spend);
                    }
                }
            }
            StreamAnswer::Loaded {
                key,
                ticket,
                result,
            } => {
                // The key was written during the load, or an epoch failed. The request begins
                // again.
                if self.streams.loading.get(&key) != Some(&ticket) {
                    return;
                }
                self.streams.loading.remove(&key);
                match result {
                    Ok(Some(parts)) => {
                        let stream = LoadedStream::new(*parts, ticket);
                        self.register_loaded(&key, stream.incarnation, stream.expire_at_ms);
                        self.streams.loaded.insert(key, stream);
                        self.streams.evict();
                    }
                    Ok(None) => {}
                    result => {
                        let failed = StreamAnswer::Loaded {
                            key,
                            ticket,
                            result,
                        };
                        self.streams.answers.entry(client).or_default().push(failed);
                    }
                }
            }
            answer => {
                self.streams.answers.entry(client).or_default().push(answer);
            }
        }
    }

    /// Returns the keys of the streams that were written by epochs that have ended since the last
    /// call.
    pub fn take_written_streams(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.streams.written)
    }

    /// Returns the records that should be removed from logs now, as a job.
    pub fn take_removals(&mut self) -> Option<StreamJob> {
        let removals = std::mem::take(&mut self.streams.removals);
        (!removals.is_empty()).then_some(StreamJob::Remove(removals))
    }

    /// Notes that a blocked request waits for a key.
    pub fn watch(&mut self, key: &Bytes) {
        *self.streams.watched.entry(key.clone()).or_default() += 1;
    }

    /// Notes that a blocked request does not wait for a key any more.
    pub fn unwatch(&mut self, key: &Bytes) {
        if let Some(n) = self.streams.watched.get_mut(key) {
            *n -= 1;
            if *n == 0 {
                self.streams.watched.remove(key);
            }
        }
    }

    /// Sets the client whose command runs next. `writes` is true for a command that writes.
    pub fn set_client(&mut self, client: u64, writes: bool) {
        (self.client, self.client_writes) = (client, writes);
    }

    /// Drops the results of jobs for a client's request, and ends its pins of streams. No command
    /// may be running.
    pub fn end_stream_request(&mut self, client: u64) {
        self.streams.answers.remove(&client);
        self.streams.loaded.unpin(client);
        self.streams.evict();
    }

    /// Returns true if a client's request has pinned streams.
    pub fn has_pins(&self, client: u64) -> bool {
        self.streams.loaded.pins().is_pinning(client)
    }

    /// Returns the clients whose requests had to wait for others with pins, and whose turn has come
    /// since the last call. Some may have disconnected.
    pub fn take_admitted(&mut self) -> Vec<u64> {
        self.streams.loaded.take_admitted()
    }

    /// Returns the number of pinned streams, and the number of requests that wait for others with
    /// pins.
    pub fn stream_pins(&self) -> (usize, usize) {
        let pins = self.streams.loaded.pins();
        (pins.len(), pins.waiting())
    }

    /// Returns the approximate bytes of memory of the pins of a client's request.
    pub(super) fn pin_memory(&self, client: u64) -> usize {
        self.streams.loaded.pins().memory(client)
    }

    /// Returns the number of loaded streams, their bytes of memory, and the entries appended since
    /// the server started.
    pub fn stream_stats(&self) -> (usize, usize, u64) {
        let loaded = &self.streams.loaded;
        (loaded.len(), loaded.bytes(), self.streams.appended)
    }

    /// Sets the budget of bytes for loaded streams.
    pub fn limit_streams(&mut self, bytes: usize) {
        self.streams.loaded.limit(bytes);
    }

    /// Returns the budget of bytes for loaded streams, and how many windows were evicted because of
    /// it.
    pub fn stream_budget(&self) -> (usize, u64) {
        let loaded = &self.streams.loaded;
        (loaded.limit_bytes(), loaded.windows_dropped())
    }
}
