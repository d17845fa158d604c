//! Streams that lose their keys by a write, a flush or their expiry. Another thread removes their
//! logs and elements in the background ([`crate::stream::sweep`]).
//!
//! Rules:
//! - A write over a stream moves it from the registry into the write's epoch. If this epoch is
//!   committed, a sweep may remove the stream. If the epoch fails, the stream returns to the
//!   registry.
//! - So the epoch that created a swept stream is not later than the committed epoch that dropped
//!   the stream. The store commits in the order of epochs, so the creation is committed as well, or
//!   has failed.
//! - If the creation of a stream fails, its log stays until the next start, because the failed
//!   commit may be found on disk after a power cut.
//! - The registry may be wrong after a failed epoch. So a sweep reads the key in the store before
//!   it removes a stream, and an expiry reads the key before it deletes the key.
//! - When the epoch of a layer has ended, the layer is searched for streams, in steps. The search
//!   leaves out streams that were registered after the layer.
//! - The first sweep after a start finds the streams of earlier servers in a snapshot of the store.
//!   The keyspace registers these streams. When all epochs that were open or in flight have ended,
//!   another sweep checks the streams.

use super::Keyspace;
use super::reading::Missed;
use super::skipped_streams::SkippedStreams;
use crate::catalog::DATABASE;
use crate::epoch::Epochs;
use crate::layer::Layer;
use crate::layout::{self, DataType};
use crate::names::KeyHash;
use crate::stream::registry::{Registered, StreamRegistry};
use crate::stream::sweep::{DroppedStream, FoundStream, SweepJob, SweepResult, UndecodableKey};
use basalt::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Number of dropped streams that one sweep takes.
const STREAMS_A_SWEEP: usize = 1024;
/// Number of streams that one turn of the loop registers, or compares with a layer.
const STREAMS_A_TURN: usize = 256;
/// Number of streams that one turn of the loop expires.
const EXPIRED_A_TURN: usize = 32;
/// Maximum number of unused logs that are kept for new streams.
const SPARE_LOGS: usize = 64;
/// Milliseconds until a key that could not be read is read again.
const RECHECK_AFTER_MS: u64 = 1000;

/// The streams that an epoch creates and drops.
#[derive(Default)]
pub(super) struct EpochStreams {
    created: Vec<(Bytes, u64)>,
    dropped: Vec<DroppedStream>,
    /// Streams removed by flushes, each with the generation that was flushed.
    flushed: Vec<(u32, StreamRegistry)>,
}

/// A search for the streams that a committed layer has dropped.
struct LayerSearch {
    layer: Arc<Layer>,
    rank: u64,
    /// The key to continue with.
    next: Bytes,
}

/// The streams of the current generation, and those that wait for a sweep.
#[derive(Default)]
pub(super) struct LiveStreams {
    registry: StreamRegistry,
    searches: VecDeque<LayerSearch>,
    /// Streams whose drop is committed.
    dropped: VecDeque<DroppedStream>,
    /// Dropped streams whose keys cannot be decoded.
    skipped: SkippedStreams,
    flushed: Vec<(u32, StreamRegistry)>,
    /// The sweep of a start takes logs with lower incarnations. `None` if no such sweep is due.
    earlier_than: Option<u64>,
    /// Streams that the sweep of a start has found and that are not registered yet.
    found: VecDeque<FoundStream>,
    /// Registered streams of that sweep, and the epochs that must end before another sweep checks
    /// the streams.
    to_verify: (Epochs, Vec<DroppedStream>),
    /// Number of streams whose logs were removed.
    removed: u64,
}

/// Counts of streams that exist and that wait for their removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LiveStreamStats {
    /// Streams that exist.
    pub streams: usize,
    /// Bytes of memory of their keys.
    pub bytes: usize,
    /// Streams that wait for a sweep, without those of flushes.
    pub dropped: usize,
    /// Streams that sweeps have removed since the start, without those of flushes.
    pub removed: u64,
    /// Keys with streams that cannot be decoded, as far as sweeps have read them.
    pub undecodable: usize,
}

impl Keyspace {
    /// Registers the stream that a write gives to its key.
    pub(super) fn register_stream(
        &mut self,
        key: &[u8],
        incarnation: u64,
        expire_at_ms: Option<u64>,
    ) {
        let open = self.epochs[self.open].as_ref().expect("always there");
        let stream = Registered {
            incarnation,
            expire_at_ms,
            rank: open.rank(2 * open.layers),
        };
        let before = self.live.registry.insert(key, stream);
        if before.is_none_or(|before| before.incarnation != incarnation) {
            let created = (Bytes::copy_from_slice(key), incarnation);
            self.open_epoch().stream_changes.created.push(created);
        }
        if let Some(before) = before.filter(|before| before.incarnation != incarnation) {
            let dropped = self.dropped(key, before);
            self.open_epoch().stream_changes.dropped.push(dropped);
        }
    }

    /// Registers a stream that was loaded.
    pub(super) fn register_loaded(
        &mut self,
        key: &[u8],
        incarnation: u64,
        expire_at_ms: Option<u64>,
    ) {
        if self.live.registry.get(key).is_none() {
            let open = self.epochs[self.open].as_ref().expect("always there");
            let stream = Registered {
                incarnation,
                expire_at_ms,
                rank: open.rank(2 * open.layers),
            };
            self.live.registry.insert(key, stream);
        }
    }

    fn dropped(&self, key: &[u8], stream: Registered) -> DroppedStream {
        DroppedStream {
            stored_key: layout::encode_key(DATABASE, self.generation, key),
            incarnation: stream.incarnation,
        }
    }

    /// Notes a write that gives a key another value than its stream.
    pub(super) fn drop_stream(&mut self, key: &[u8]) {
        if let Some(stream) = self.live.registry.remove(key) {
            let dropped = self.dropped(key, stream);
            self.open_epoch().stream_changes.dropped.push(dropped);
        }
    }

    /// Notes a flush of the current generation.
    pub(super) fn drop_all_streams(&mut self) {
        let all = std::mem::take(&mut self.live.registry);
        if !all.is_empty() {
            let generation = self.generation;
            self.open_epoch()
                .stream_changes
                .flushed
                .push((generation, all));
        }
    }

    /// Notes the end of an epoch, with the keys of streams that it wrote.
    pub(super) fn streams_of_epoch_ended(
        &mut self,
        changes: EpochStreams,
        slot: usize,
        stored: bool,
    ) {
        let live = &mut self.live;
        if stored {
            live.dropped.extend(changes.dropped);
            live.flushed.extend(changes.flushed);
        } else {
            for (key, incarnation) in changes.created {
                let registered = live.registry.get(&key);
                if registered.is_some_and(|stream| stream.incarnation == incarnation) {
                    live.registry.remove(&key);
                }
            }
            for (_, registry) in changes.flushed.into_iter().rev() {
                live.registry.restore(registry);
            }
            for dropped in changes.dropped {
                live.recheck(&dropped, 0);
            }
        }
        let (epochs, _) = &mut live.to_verify;
        *epochs &= !(1 << slot);
    }

    /// Schedules a check of a registered stream after an epoch that wrote its key has failed.
    pub(super) fn recheck_stream(&mut self, key: &[u8]) {
        if let Some(stream) = self.live.registry.get(key) {
            let expire_at_ms = Some(0);
            let stream = Registered {
                expire_at_ms,
                ..stream
            };
            self.live.registry.insert(key, stream);
        }
    }

    /// Begins to search a committed layer for dropped streams.
    pub(super) fn search_layer(&mut self, layer: Arc<Layer>, rank: u64) {
        let next = Bytes::new();
        let search = LayerSearch { layer, rank, next };
        if self.live.registry.is_empty() {
            self.discarded.push(search.layer);
        } else {
            self.live.searches.push_back(search);
        }
    }

    /// Returns true if [`Keyspace::step_streams`] has work now.
    pub fn has_stream_steps(&self) -> bool {
        !self.live.searches.is_empty() || !self.live.found.is_empty()
    }

    /// Continues searches of layers, and the registration of streams that were found.
    pub fn step_streams(&mut self) {
        self.step_search();
        self.step_found();
        self.drop_spare_logs();
        let (epochs, streams) = &mut self.live.to_verify;
        if *epochs == 0 && self.live.found.is_empty() {
            self.live.dropped.extend(streams.drain(..));
        }
    }

    fn step_search(&mut self) {
        let live = &mut self.live;
        let Some(search) = live.searches.front_mut() else {
            return;
        };
        let (some, next) = live.registry.some_from(&search.next, STREAMS_A_TURN);
        for (key, stream) in some {
            let hash = KeyHash::of(self.secret, &key);
            if stream.rank < search.rank && search.layer.has(&key, hash) {
                live.registry.remove(&key);
                let generation = search.layer.generation();
                live.dropped.push_back(DroppedStream {
                    stored_key: layout::encode_key(DATABASE, generation, &key),
                    incarnation: stream.incarnation,
                });
            }
        }
        match next {
            Some(next) => search.next = next,
            None => {
                let search = live.searches.pop_front().expect("it is the first");
                self.discarded.push(search.layer);
            }
        }
    }

    fn step_found(&mut self) {
        let some = self.live.found.len().min(STREAMS_A_TURN);
        if some == 0 {
            return;
        }
        let found: Vec<FoundStream> = self.live.found.drain(..some).collect();
        for stream in found {
            let of = layout::decode_key(&stream.stored_key);
            let (_, generation, key) = of.expect("a Redis key");
            if generation == self.generation {
                self.register_loaded(key, stream.incarnation, stream.expire_at_ms);
            }
            self.live.to_verify.1.push(DroppedStream {
                stored_key: stream.stored_key,
                incarnation: stream.incarnation,
            });
        }
        let in_use = |slot: &usize| {
            let epoch = self.epochs[*slot].as_ref();
            epoch.is_some_and(|epoch| *slot != self.open || !epoch.is_empty())
        };
        let epochs = (0..self.epochs.len()).filter(in_use);
        self.live.to_verify.0 = epochs.fold(0, |all, slot| all | 1 << slot);
    }

    fn drop_spare_logs(&mut self) {
        for (incarnation, _) in self.streams.take_spare_logs(SPARE_LOGS) {
            self.live.dropped.push_back(DroppedStream {
                stored_key: Bytes::new(),
                incarnation,
            });
        }
    }

    /// Returns the work for a sweep at a time of the environment's clock, if there is any.
    pub fn take_sweep(&mut self, now: Duration) -> Option<SweepJob> {
        let live = &mut self.live;
        let some = live.dropped.len().min(STREAMS_A_SWEEP);
        let mut dropped: Vec<_> = live.dropped.drain(..some).collect();
        dropped.extend(live.skipped.take_due(STREAMS_A_SWEEP - some, now));
        let earlier_than = live.earlier_than.take();
        let job = SweepJob {
            earlier_than: earlier_than.or_else(|| live.skipped.take_due_search(now)),
            dropped,
            flushed: std::mem::take(&mut live.flushed),
        };
        (!job.is_empty()).then_some(job)
    }

    /// Returns the time from which on a sweep has work, or `None` if there is none.
    pub fn next_sweep(&self) -> Option<Duration> {
        let live = &self.live;
        let is_due =
            !live.dropped.is_empty() || !live.flushed.is_empty() || live.earlier_than.is_some();
        match is_due {
            true => Some(Duration::ZERO),
            false => live.skipped.next_attempt(),
        }
    }

    /// Returns the keys that sweeps could not decode, if they were not returned before.
    pub fn take_undecodable(&mut self) -> Vec<UndecodableKey> {
        self.live.skipped.take_unreported()
    }

    /// Makes the next sweep search for the streams and logs of earlier servers. Their incarnations
    /// are lower than `incarnation`.
    pub fn sweep_earlier_than(&mut self, incarnation: u64) {
        self.live.earlier_than = Some(incarnation);
    }

    /// Applies the result of a sweep that has ended at a time of the environment's clock. Returns
    /// false if a part of its work remains.
    pub fn take_swept(&mut self, result: SweepResult, now: Duration) -> bool {
        let live = &mut self.live;
        for read in result.removed.iter().chain(&result.kept) {
            live.skipped.forget(read);
        }
        for (stream, key) in result.skipped {
            live.skipped.skip(stream, key, now);
        }
        if let Some((earlier_than, undecodable)) = result.searched {
            live.skipped.search_ended(earlier_than, undecodable, now);
        }
        let mut is_done = result.left.is_empty();
        live.found.extend(result.found);
        live.removed += result.removed.len() as u64;
        for dropped in result.removed {
            let Some((_, generation, key)) = layout::decode_key(&dropped.stored_key) else {
                continue;
            };
            let registered = live.registry.get(key);
            if generation == self.generation
                && registered.is_some_and(|stream| stream.incarnation == dropped.incarnation)
            {
                live.registry.remove(key);
            }
        }
        for kept in result.kept {
            let of = layout::decode_key(&kept.stored_key);
            let (_, generation, key) = of.expect("the store has the key");
            let registered = live.registry.get(key);
            match registered {
                Some(stream) if stream.incarnation == kept.incarnation => {}
                None if generation == self.generation => live.recheck(&kept, 0),
                // Another write of the key, or a flush, is in flight.
                _ => {
                    live.dropped.push_back(kept);
                    is_done = false;
                }
            }
        }
        live.earlier_than = live.earlier_than.or(result.left.earlier_than);
        live.dropped.extend(result.left.dropped);
        live.flushed.extend(result.left.flushed);
        is_done
    }

    /// Returns the time, in ms since 1970, at which [`Keyspace::expire_streams`] has work.
    pub fn next_stream_expiry(&self) -> Option<u64> {
        self.live.registry.next_expiry()
    }

    /// Deletes the keys of some expired streams. Does nothing while there is no room for writes.
    pub fn expire_streams(&mut self, now_ms: u64) {
        for _ in 0..EXPIRED_A_TURN {
            if self.is_full() {
                return;
            }
            let Some(key) = self.live.registry.next_ended(now_ms) else {
                return;
            };
            self.begin(now_ms);
            let meta = self.meta(&key);
            let stream = self.live.registry.get(&key).expect("it is registered");
            let until = |expire_at_ms| Registered {
                expire_at_ms,
                ..stream
            };
            match meta {
                Ok(None) => self.delete(&key),
                Ok(Some(meta)) if meta.data_type == DataType::Stream => {
                    self.live.registry.insert(&key, until(meta.expire_at_ms));
                }
                // A failed epoch left this registration.
                Ok(Some(_)) => {
                    self.live.registry.remove(&key);
                    let dropped = self.dropped(&key, stream);
                    self.live.dropped.push_back(dropped);
                }
                Err(Missed::Fetch(_) | Missed::Stream(_) | Missed::Store(_)) => {
                    let again = until(Some(now_ms + RECHECK_AFTER_MS));
                    self.live.registry.insert(&key, again);
                }
            }
            self.finish();
        }
    }

    /// Returns the approximate bytes of memory of the loaded streams and of the registered keys.
    pub fn stream_memory(&self) -> usize {
        self.stream_stats().1 + self.live.registry.memory()
    }

    /// Returns counts of the streams that exist and that wait for their removal.
    pub fn live_stream_stats(&self) -> LiveStreamStats {
        LiveStreamStats {
            streams: self.live.registry.len(),
            bytes: self.live.registry.memory(),
            dropped: self.live.dropped.len(),
            removed: self.live.removed,
            undecodable: self.live.skipped.len(),
        }
    }
}

impl LiveStreams {
    /// Registers a stream that its key may still have. [`Keyspace::expire_streams`] then checks the
    /// key.
    fn recheck(&mut self, dropped: &DroppedStream, rank: u64) {
        let Some((_, _, key)) = layout::decode_key(&dropped.stored_key) else {
            return;
        };
        if self.registry.get(key).is_none() {
            let stream = Registered {
                incarnation: dropped.incarnation,
                expire_at_ms: Some(0),
                rank,
            };
            self.registry.insert(key, stream);
        }
    }
}
