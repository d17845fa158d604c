//! Removal of the logs and elements of streams that no key has any more.
//!
//! The deletion of a log is durable at once. So the drop of its key must be durable before, because
//! a power cut must not bring back the key of a deleted log. A sweep first reads the key in the
//! store, then syncs the store, and then deletes. The sync makes the state that the sweep has read
//! durable. An incarnation that a key has lost never returns to the key.
//!
//! A sweep must not take a stream whose creation is not committed. The key of such a stream is not
//! in the store yet, so the sweep would delete its log. Therefore the keyspace passes only streams
//! whose drop has been committed, and the sweep of a start takes only logs of earlier servers.
//!
//! If the value of a key cannot be decoded, the sweep skips the key's stream and goes on with the
//! others. The sweep of a start then deletes no log, because the key may have any of them.

use super::jobs::log_name;
use super::record::decode_state;
use super::registry::StreamRegistry;
use crate::catalog::DATABASE;
use crate::layout::{self, DataType, STREAM_LOG_PREFIX};
use crate::store::Store;
use basalt::env::thread::StopSignal;
use basalt::log::LogEngine;
use basalt::{Bytes, Error, ErrorKind, Result};
use std::collections::BTreeSet;

/// Number of streams whose elements and logs are removed after one sync.
const STREAMS_A_SYNC: usize = 256;

/// A stream that its key may have lost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DroppedStream {
    /// The key in the encoding of the store, or empty for a log that no key ever had.
    pub stored_key: Bytes,
    pub incarnation: u64,
}

/// A stream that a sweep has found in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundStream {
    /// The key in the encoding of the store.
    pub stored_key: Bytes,
    pub incarnation: u64,
    pub expire_at_ms: Option<u64>,
}

/// A key whose value cannot be decoded.
#[derive(Debug)]
pub(crate) struct UndecodableKey {
    /// The key in the encoding of the store.
    pub stored_key: Bytes,
    pub error: Error,
}

/// The work of a sweep.
#[derive(Default)]
pub(crate) struct SweepJob {
    /// For the sweep of a start: logs with lower incarnations are deleted unless a key has them.
    pub earlier_than: Option<u64>,
    /// Streams to be removed, if their keys do not have them.
    pub dropped: Vec<DroppedStream>,
    /// Streams of flushed generations.
    pub flushed: Vec<(u32, StreamRegistry)>,
}

impl SweepJob {
    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.earlier_than.is_none() && self.dropped.is_empty() && self.flushed.is_empty()
    }
}

/// The result of a sweep.
#[derive(Default)]
pub(crate) struct SweepResult {
    /// The streams of all keys, if this was the sweep of a start.
    pub found: Vec<FoundStream>,
    /// Dropped streams whose logs are deleted.
    pub removed: Vec<DroppedStream>,
    /// Dropped streams that their keys still have in the store.
    pub kept: Vec<DroppedStream>,
    /// Dropped streams whose keys cannot be decoded.
    pub skipped: Vec<(DroppedStream, UndecodableKey)>,
    /// The bound of the search if this was the sweep of a start, and the keys that it has skipped.
    pub searched: Option<(u64, Vec<UndecodableKey>)>,
    /// The work that is left after a failure or a stop.
    pub left: SweepJob,
    pub error: Option<Error>,
}

/// Runs a sweep. Blocks. A stop ends it early.
pub(crate) fn sweep(store: &dyn Store, job: SweepJob, stop: &StopSignal) -> SweepResult {
    let mut result = SweepResult::default();
    let Some(logs) = store.existing_logs() else {
        return result;
    };
    let mut sweep = Sweep {
        store,
        logs,
        stop,
        dead: Vec::new(),
    };
    let ended = sweep.run(&job, &mut result);
    if !matches!(ended, Ok(true)) {
        // The next sweep finds these again.
        result.found.clear();
        result.kept.clear();
        result.skipped.clear();
        result.searched = None;
        result.left = job;
    }
    result.error = ended.err();
    result
}

struct Sweep<'a> {
    store: &'a dyn Store,
    logs: LogEngine,
    stop: &'a StopSignal,
    /// Generation and incarnation of the streams that are to be removed.
    dead: Vec<(u32, u64)>,
}

impl Sweep<'_> {
    /// Returns false if a stop has ended the sweep.
    fn run(&mut self, job: &SweepJob, result: &mut SweepResult) -> Result<bool> {
        let generation = self.store.generation()?;
        if let Some(earlier_than) = job.earlier_than {
            let undecodable = self.find_all(generation, earlier_than, &mut result.found)?;
            result.searched = Some((earlier_than, undecodable));
        }
        let mut removed = Vec::new();
        for dropped in &job.dropped {
            match self.has(generation, dropped) {
                Ok(true) => result.kept.push(dropped.clone()),
                Ok(false) => removed.push(dropped.clone()),
                Err(error) if is_undecodable(&error) => {
                    let stored_key = dropped.stored_key.clone();
                    let key = UndecodableKey { stored_key, error };
                    result.skipped.push((dropped.clone(), key));
                }
                Err(e) => return Err(e),
            }
        }
        for dropped in &removed {
            let of = layout::decode_key(&dropped.stored_key).map_or(generation, |(_, of, _)| of);
            self.dead.push((of, dropped.incarnation));
        }
        for (flushed, registry) in &job.flushed {
            assert!(*flushed < generation, "the flush has ended");
            let all = registry.incarnations();
            self.dead
                .extend(all.map(|incarnation| (*flushed, incarnation)));
        }
        // This sync makes durable what the sweep has read.
        self.store.sync()?;
        for dead in self.dead.chunks(STREAMS_A_SYNC) {
            // After a crash, only the logs lead to the elements. So the logs are deleted last.
            if self.store.remove_elements(dead)? {
                self.store.sync()?;
            }
            for (_, incarnation) in dead {
                if self.stop.is_sent() {
                    return Ok(false);
                }
                match self.logs.delete(&log_name(*incarnation)) {
                    // An earlier sweep deleted this log and then failed.
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    deleted => deleted?,
                }
            }
        }
        result.removed = removed;
        Ok(true)
    }

    /// Returns true if the key of a stream still has the stream in the store.
    fn has(&self, generation: u32, dropped: &DroppedStream) -> Result<bool> {
        match layout::decode_key(&dropped.stored_key) {
            Some((_, of, _)) if of == generation => {}
            _ => return Ok(false),
        }
        let found = self.store.get_meta(&dropped.stored_key, false, 0)?;
        let Some(Some((meta, Some(data)))) = found else {
            return Ok(false);
        };
        if meta.data_type != DataType::Stream {
            return Ok(false);
        }
        Ok(decode_state(&data)?.0.incarnation == dropped.incarnation)
    }

    /// Finds the streams of all keys, and the logs of earlier servers that no key has. Returns the
    /// keys that cannot be decoded. If there are any, no log counts as one that no key has.
    fn find_all(
        &mut self,
        generation: u32,
        earlier_than: u64,
        found: &mut Vec<FoundStream>,
    ) -> Result<Vec<UndecodableKey>> {
        let names = self.logs.list();
        let listed = names.iter().filter_map(|name| {
            let number = name.strip_prefix(STREAM_LOG_PREFIX)?.split_once('.')?.1;
            number.parse::<u64>().ok().filter(|n| *n < earlier_than)
        });
        let mut without_key: BTreeSet<u64> = listed.collect();
        let prefix = layout::key_prefix(DATABASE, generation);
        let to = layout::prefix_end(&prefix);
        let mut undecodable = Vec::new();
        let mut visit = |key: &[u8], value: Option<&[u8]>, _| {
            let Some(value) = value.filter(|v| v.first() == Some(&(DataType::Stream as u8))) else {
                return !self.stop.is_sent();
            };
            match decode_state(&value[1..]) {
                Ok((header, _)) => {
                    without_key.remove(&header.incarnation);
                    found.push(FoundStream {
                        stored_key: Bytes::copy_from_slice(key),
                        incarnation: header.incarnation,
                        expire_at_ms: (header.expire_at_ms > 0).then_some(header.expire_at_ms),
                    });
                }
                Err(error) => undecodable.push(UndecodableKey {
                    stored_key: Bytes::copy_from_slice(key),
                    error,
                }),
            }
            !self.stop.is_sent()
        };
        self.store.view().scan(&prefix, &to, u64::MAX, &mut visit)?;
        // A scan that was stopped has not found all streams.
        if !self.stop.is_sent() && undecodable.is_empty() {
            let of_any = without_key
                .into_iter()
                .map(|incarnation| (generation, incarnation));
            self.dead.extend(of_any);
        }
        Ok(undecodable)
    }
}

/// Returns true if an error is about the value of one key. After other errors, for example of the
/// device, the whole sweep is tried again.
fn is_undecodable(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported)
}
