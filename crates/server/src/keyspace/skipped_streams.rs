//! Streams that sweeps have skipped, because the values of their keys cannot be decoded. Only the
//! key says whether it still has its stream, so the log stays. Each key is tried again later, with
//! a pause that grows, because only a repair makes the value readable.

use crate::stream::sweep::{DroppedStream, UndecodableKey};
use basalt::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pause after the first attempt. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The time of the next attempt.
#[derive(Clone, Copy, Default)]
struct Retry {
    pause: Duration,
    /// Time of the next attempt, or `None` during an attempt.
    at: Option<Duration>,
}

impl Retry {
    fn skipped(&mut self, now: Duration) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.at = Some(now + self.pause);
    }
}

/// The search for logs of earlier servers, which must not delete a log while a key is undecodable.
struct SkippedSearch {
    earlier_than: u64,
    keys: BTreeSet<Bytes>,
    retry: Retry,
}

/// The skipped streams (see the module). Times are those of the environment's clock.
#[derive(Default)]
pub(super) struct SkippedStreams {
    streams: BTreeMap<DroppedStream, Retry>,
    search: Option<SkippedSearch>,
    /// Keys that were not reported yet.
    unreported: Vec<UndecodableKey>,
}

impl SkippedStreams {
    /// Returns the number of skipped streams, and of keys that the search of a start has skipped.
    pub fn len(&self) -> usize {
        let found = self.search.as_ref().map_or(0, |search| search.keys.len());
        self.streams.len() + found
    }

    /// Returns the time of the first attempt.
    pub fn next_attempt(&self) -> Option<Duration> {
        let search = self.search.as_ref().and_then(|search| search.retry.at);
        let streams = self.streams.values().filter_map(|retry| retry.at);
        streams.chain(search).min()
    }

    /// Notes that a sweep has skipped a stream.
    pub fn skip(&mut self, stream: DroppedStream, key: UndecodableKey, now: Duration) {
        if !self.streams.contains_key(&stream) {
            self.unreported.push(key);
        }
        self.streams.entry(stream).or_default().skipped(now);
    }

    /// Notes the end of a search for logs of earlier servers, with the keys that it has skipped.
    pub fn search_ended(&mut self, earlier_than: u64, skipped: Vec<UndecodableKey>, now: Duration) {
        let before = self.search.take();
        if skipped.is_empty() {
            return;
        }
        let is_known = |key: &Bytes| before.as_ref().is_some_and(|s| s.keys.contains(key));
        let mut retry = before.as_ref().map_or(Retry::default(), |s| s.retry);
        retry.skipped(now);
        let mut keys = BTreeSet::new();
        for key in skipped {
            keys.insert(key.stored_key.clone());
            if !is_known(&key.stored_key) {
                self.unreported.push(key);
            }
        }
        self.search = Some(SkippedSearch {
            earlier_than,
            keys,
            retry,
        });
    }

    /// Forgets a stream, because a sweep could read its key.
    pub fn forget(&mut self, stream: &DroppedStream) {
        self.streams.remove(stream);
    }

    /// Returns up to `most` streams that are due for another attempt.
    pub fn take_due(&mut self, most: usize, now: Duration) -> Vec<DroppedStream> {
        let is_due = |retry: &Retry| retry.at.is_some_and(|at| at <= now);
        let due = self.streams.iter_mut().filter(|(_, retry)| is_due(retry));
        let begin = |(stream, retry): (&DroppedStream, &mut Retry)| {
            retry.at = None;
            stream.clone()
        };
        due.take(most).map(begin).collect()
    }

    /// Returns the bound of the search of a start, if the search is due for another attempt.
    pub fn take_due_search(&mut self, now: Duration) -> Option<u64> {
        let search = self.search.as_mut()?;
        search.retry.at.take_if(|at| *at <= now)?;
        Some(search.earlier_than)
    }

    /// Returns the keys that were skipped for the first time since the last call.
    pub fn take_unreported(&mut self) -> Vec<UndecodableKey> {
        std::mem::take(&mut self.unreported)
    }
}
