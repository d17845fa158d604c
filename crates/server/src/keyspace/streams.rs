//! Streams in the keyspace: which are loaded, and their writes in epochs.
//!
//! # How the rules of epochs hold for streams
//! - A loaded stream is newer than the store, as the overlay is. A command that reads it depends on
//!   the epochs that write it (rules 1 and 2), so the epochs of one stream follow one another.
//! - An epoch may have appends to logs and writes of tables. The appends are committed first, and
//!   later epochs are submitted after both commits. So the order of tables' writes is the order of
//!   epochs. An epoch with one part needs no order to epochs that it does not depend on.
//! - When an epoch with writes of a stream fails, the loaded stream is dropped. It is loaded again
//!   when no epoch that writes it is open or in flight.
//! - Any other write of the key (SET, DEL, a layer, a flush) drops the loaded stream. If that epoch
//!   fails, the stream is loaded again.

use super::Keyspace;
use super::loaded_streams::LoadedStreams;
use super::reading::{Missed, Read};
use crate::catalog::DATABASE;
use crate::layer::Layer;
use crate::layout::{self, DataType};
use crate::names::KeyHash;
use crate::store::Append;
use crate::stream::StreamId;
use crate::stream::jobs::{EntryRange, StreamAnswer, StreamJob};
use crate::stream::loaded::LoadedStream;
use crate::stream::record::{Record, StreamState, decode_record, encode_record, encode_state};
use crate::value::Value;
use basalt::Bytes;
use basalt::log::Log;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// What a request on streams waits for.
pub(crate) enum StreamNeed {
    /// Another thread does the job, then the request runs again.
    Job(Box<StreamJob>),
    /// Epochs that write the stream have to end, or another request's job has to.
    Busy,
}

impl fmt::Debug for StreamNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamNeed")
    }
}

/// What a key has, for commands on streams.
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
    /// Tickets of the loads under way, by key. A load whose ticket is gone does not count.
    loading: BTreeMap<Bytes, u64>,
    /// Logs that were created and are used by no stream yet.
    spare: Vec<(u64, Log)>,
    /// Answers for waiting requests, by client id.
    answers: BTreeMap<u64, Vec<StreamAnswer>>,
    /// Number of loads so far.
    loads: u64,
    /// Number of entries appended so far.
    pub appended: u64,
    /// Logs to be trimmed, and up to which LSN.
    pub trims: Vec<(Log, u64)>,
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
        let leave = self.loaded.keys().filter(|key| !stays(key));
        for key in leave.cloned().collect::<Vec<_>>() {
            self.loaded.remove(&key);
        }
        self.loading.retain(|key, _| stays(key));
    }

    /// Drops all loaded streams.
    pub fn forget_all(&mut self) {
        self.loaded.clear();
        self.loading.clear();
    }

    /// Takes the new logs beyond a number that is kept.
    pub fn take_spare_logs(&mut self, kept: usize) -> Vec<(u64, Log)> {
        let kept = kept.min(self.spare.len());
        self.spare.split_off(kept)
    }

    /// Notes that an epoch with writes of a stream has ended.
    pub fn epoch_ended(&mut self, key: &[u8], slot: usize, stored: bool) {
        if !stored {
            return self.forget(key);
        }
        self.written.push(Bytes::copy_from_slice(key));
        let trim = self.loaded.change(key, |stream| {
            stream.written_by &= !(1 << slot);
            stream.shrink_window();
            let up_to = stream.take_trim()?;
            Some((stream.log.clone(), up_to))
        });
        self.trims.extend(trim.flatten());
        self.loaded.evict();
    }
}

impl Keyspace {
    /// Returns what a key has. If it is a stream, it is loaded then.
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
        let is_busy = |e: &super::Epoch| e.streams.contains(key);
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

    /// Returns the answers for the running command, the newest first.
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
        let (first, own_load) = (stream.state.first_lsn, stream.load);
        let found = |answer: &StreamAnswer| match answer {
            StreamAnswer::Found {
                load,
                id: of,
                result,
            } if (*load, *of) == (own_load, id) => Some(result.clone()),
            _ => None,
        };
        if let Some(result) = self.stream_answers().find_map(found) {
            return result.map(|lsn| lsn.max(first)).map_err(Missed::Store);
        }
        let job = StreamJob::Find {
            log: stream.log.clone(),
            load: own_load,
            lsns: first..stream.window_start(),
            id,
        };
        Err(Missed::Stream(StreamNeed::Job(Box::new(job))))
    }

    /// Returns the live entries of a found stream in a range, in its direction, as of this moment
    /// or an earlier one at which the request waited.
    pub fn stream_range(
        &mut self,
        key: &[u8],
        range: &EntryRange,
        limit_bytes: usize,
    ) -> Read<Vec<Record>> {
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
        let dead = stream.state.first_lsn.saturating_sub(stream.window_start()) as usize;
        let live = stream.window.iter().skip(dead);
        let is_in = |entry: &&Record| (range.start..=range.end).contains(&entry.id);
        let most = usize::try_from(range.count).unwrap_or(usize::MAX);
        let has_start = stream.lower_bound(range.start).is_some();
        let found: Vec<Record> = match range.reverse {
            false if has_start => live.filter(is_in).take(most).cloned().collect(),
            true => live.rev().filter(is_in).take(most).cloned().collect(),
            false => Vec::new(),
        };
        if has_start || (range.reverse && found.len() == most) {
            return Ok(found);
        }
        let live = stream.window.iter().skip(dead);
        let job = StreamJob::Read {
            log: stream.log.clone(),
            load: own_load,
            lsns: stream.state.first_lsn..stream.window_start(),
            newest: live.filter(is_in).cloned().collect(),
            range: range.clone(),
            limit_bytes,
        };
        Err(Missed::Stream(StreamNeed::Job(Box::new(job))))
    }

    /// Makes an empty stream at a key, over a value that is there.
    pub fn create_stream(&mut self, key: &[u8], incarnation: u64, log: Log) {
        self.streams.loads += 1;
        let stream = LoadedStream {
            incarnation,
            expire_at_ms: None,
            log,
            state: StreamState::default(),
            key_is_ahead: false,
            trimmed_lsn: 0,
            window: VecDeque::new(),
            window_bytes: 0,
            written_by: 0,
            load: self.streams.loads,
            used: 0,
        };
        self.write_stream(key, stream);
    }

    /// Writes the key of a stream with its present state.
    fn write_stream(&mut self, key: &[u8], stream: LoadedStream) {
        let value = Value {
            data_type: DataType::Stream,
            data: encode_state(stream.incarnation, stream.expire_at_ms, &stream.state),
            expire_at_ms: stream.expire_at_ms,
        };
        let stream = LoadedStream {
            key_is_ahead: false,
            ..stream
        };
        self.register_stream(key, stream.incarnation, stream.expire_at_ms);
        // The write drops the loaded stream, as any write of the key does.
        self.write(key, Some(value));
        let key = Bytes::copy_from_slice(key);
        self.streams.loaded.insert(key.clone(), stream);
        self.stream_written(key);
        self.streams.loaded.evict();
    }

    fn stream_written(&mut self, key: Bytes) {
        self.wrote = true;
        let slot = self.open;
        let write = |stream: &mut LoadedStream| stream.written_by |= 1 << slot;
        (self.streams.loaded.change(&key, write)).expect("just written");
        self.open_epoch().streams.insert(key);
    }

    /// Changes the state of a found stream.
    pub fn change_stream(&mut self, key: &[u8], state: StreamState) {
        let mut stream = self.streams.loaded.remove(key).expect("it was found");
        stream.state = state;
        self.write_stream(key, stream);
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
        if self.loaded_stream(key).key_is_ahead {
            let state = self.loaded_stream(key).state;
            self.change_stream(key, state);
        }
        let append = |stream: &mut LoadedStream| {
            let state = &mut stream.state;
            let lsn = state.next_lsn;
            state.last_id = id;
            state.entries_added += 1;
            state.first_lsn = first_lsn;
            state.next_lsn += 1;
            let record = encode_record(id, first_lsn, state.entries_added, words);
            stream.push(decode_record(&record).expect("just encoded"));
            (stream.log.clone(), lsn, record)
        };
        let appended = self.streams.loaded.change(key, append);
        let (log, lsn, record) = appended.expect("it was found");
        self.stream_written(Bytes::copy_from_slice(key));
        // The number covers the entry's places in the epoch and the window.
        let bytes = record.len() + 128;
        let open = self.open_epoch();
        open.bytes += bytes;
        open.appends.push(Append { log, lsn, record });
        self.pending_bytes += bytes;
        self.pending_bytes_peak = self.pending_bytes_peak.max(self.pending_bytes());
    }

    /// Takes the result of a job for a client's request.
    pub fn take_stream_answer(&mut self, client: u64, answer: StreamAnswer) {
        match answer {
            StreamAnswer::Created(Ok(spare)) => self.streams.spare.push(spare),
            StreamAnswer::Trimmed(_) => {}
            StreamAnswer::Loaded {
                key,
                ticket,
                result,
            } => {
                // The key was written since, or an epoch failed: the request looks again.
                if self.streams.loading.get(&key) != Some(&ticket) {
                    return;
                }
                self.streams.loading.remove(&key);
                match result {
                    Ok(Some(parts)) => {
                        let stream = LoadedStream {
                            incarnation: parts.incarnation,
                            expire_at_ms: parts.expire_at_ms,
                            trimmed_lsn: parts.log.trimmed().unwrap_or(0),
                            log: parts.log,
                            state: parts.state,
                            key_is_ahead: parts.key_is_ahead,
                            window_bytes: parts.window.iter().map(|r| r.body.len()).sum(),
                            window: parts.window,
                            written_by: 0,
                            load: ticket,
                            used: 0,
                        };
                        self.register_loaded(&key, stream.incarnation, stream.expire_at_ms);
                        self.streams.loaded.insert(key, stream);
                        self.streams.loaded.evict();
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

    /// Returns the logs that should be trimmed now, as a job.
    pub fn take_trims(&mut self) -> Option<StreamJob> {
        let trims = std::mem::take(&mut self.streams.trims);
        (!trims.is_empty()).then_some(StreamJob::Trim(trims))
    }

    /// Sets the client whose command runs next.
    pub fn set_client(&mut self, client: u64) {
        self.client = client;
    }

    /// Drops the answers for a client's request.
    pub fn end_stream_answer(&mut self, client: u64) {
        self.streams.answers.remove(&client);
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

    /// Returns the budget of bytes for loaded streams, and how often one lost its window to it.
    pub fn stream_budget(&self) -> (usize, u64) {
        let loaded = &self.streams.loaded;
        (loaded.limit_bytes(), loaded.windows_dropped())
    }
}
