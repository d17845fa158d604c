//! The streams in memory, within a budget of bytes.
//!
//! If the streams exceed the budget, the least recently used ones lose their windows. If that is
//! not enough, the least recently used streams are dropped. A stream without a window serves
//! requests with reads of another thread. Streams with writes in flight are not evicted, because
//! their entries may not be in the log yet. Streams with pins are not evicted, because a waiting
//! request needs them ([`super::stream_pins`]). They may lose their windows.
//!
//! Each use and each eviction of a stream costs O(log N) for N loaded streams.

use super::stream_pins::StreamPins;
use crate::stream::loaded::LoadedStream;
use basalt::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of loaded streams without writes in flight and without pins.
const LOADED_STREAMS: usize = 1024;

/// The streams in memory (see the module).
pub(super) struct LoadedStreams {
    by_key: BTreeMap<Bytes, LoadedStream>,
    /// Streams without writes in flight and without pins, by the time of their last use.
    idle: BTreeSet<(u64, Bytes)>,
    /// Streams without writes in flight that have a window.
    with_window: BTreeSet<(u64, Bytes)>,
    bytes: usize,
    limit_bytes: usize,
    /// Number of uses so far.
    uses: u64,
    windows_dropped: u64,
    pins: StreamPins,
}

impl Default for LoadedStreams {
    fn default() -> LoadedStreams {
        LoadedStreams {
            by_key: BTreeMap::new(),
            idle: BTreeSet::new(),
            with_window: BTreeSet::new(),
            bytes: 0,
            limit_bytes: usize::MAX,
            uses: 0,
            windows_dropped: 0,
            pins: StreamPins::default(),
        }
    }
}

impl LoadedStreams {
    /// Sets the budget in bytes.
    pub fn limit(&mut self, bytes: usize) {
        self.limit_bytes = bytes;
    }

    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the approximate bytes of memory of all streams.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many windows were evicted because of the budget.
    pub fn windows_dropped(&self) -> u64 {
        self.windows_dropped
    }

    pub fn get(&self, key: &[u8]) -> Option<&LoadedStream> {
        self.by_key.get(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.by_key.keys()
    }

    /// Adds a stream as the most recently used one. The caller evicts streams when this one may be
    /// evicted, too.
    pub fn insert(&mut self, key: Bytes, mut stream: LoadedStream) {
        self.remove(&key);
        self.uses += 1;
        stream.used = self.uses;
        self.track(&key, &stream);
        self.by_key.insert(key, stream);
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<LoadedStream> {
        let (key, stream) = self.by_key.remove_entry(key)?;
        self.untrack(&key, &stream);
        Some(stream)
    }

    /// Changes a stream, which becomes the most recently used one.
    pub fn change<T>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut LoadedStream) -> T,
    ) -> Option<T> {
        let (key, mut stream) = self.by_key.remove_entry(key)?;
        self.untrack(&key, &stream);
        self.uses += 1;
        stream.used = self.uses;
        let out = change(&mut stream);
        self.track(&key, &stream);
        self.by_key.insert(key, stream);
        Some(out)
    }

    pub fn clear(&mut self) {
        self.by_key.clear();
        self.idle.clear();
        self.with_window.clear();
        self.bytes = 0;
    }

    fn track(&mut self, key: &Bytes, stream: &LoadedStream) {
        self.bytes += stream.memory() + key.len();
        if stream.written_by == 0 {
            if !self.pins.is_pinned(key) {
                self.idle.insert((stream.used, key.clone()));
            }
            if !stream.window.is_empty() {
                self.with_window.insert((stream.used, key.clone()));
            }
        }
    }

    fn untrack(&mut self, key: &Bytes, stream: &LoadedStream) {
        self.bytes -= stream.memory() + key.len();
        if stream.written_by == 0 {
            let place = (stream.used, key.clone());
            self.idle.remove(&place);
            self.with_window.remove(&place);
        }
    }

    /// Pins a stream for a client's request, if its turn has come. The stream need not be loaded
    /// yet. Returns false if the request has to wait for its turn.
    pub fn pin(&mut self, client: u64, writes: bool, key: &[u8]) -> bool {
        if !self.pins.admit(client, writes) {
            return false;
        }
        if self.pins.pin(client, key)
            && let Some((key, stream)) = self.by_key.get_key_value(key)
        {
            self.idle.remove(&(stream.used, key.clone()));
        }
        true
    }

    /// Pins a stream for a client's request if the request has pins.
    pub fn pin_again(&mut self, client: u64, key: &[u8]) {
        if self.pins.is_pinning(client) {
            self.pin(client, false, key);
        }
    }

    /// Ends the pins of a client's request, or its wait for its turn.
    pub fn unpin(&mut self, client: u64) {
        for key in self.pins.end(client) {
            if let Some(stream) = self.by_key.get(&key).filter(|s| s.written_by == 0) {
                self.idle.insert((stream.used, key));
            }
        }
    }

    pub fn pins(&self) -> &StreamPins {
        &self.pins
    }

    /// Returns the clients whose requests may pin streams now, and had to wait for that.
    pub fn take_admitted(&mut self) -> Vec<u64> {
        self.pins.take_admitted()
    }

    /// Evicts windows and streams until the rest is within the limits, or no more may be evicted.
    pub fn evict(&mut self) {
        while self.bytes > self.limit_bytes
            && let Some((_, key)) = self.with_window.pop_first()
        {
            let stream = self.by_key.get_mut(&key).expect("it is loaded");
            self.bytes -= stream.memory();
            stream.drop_window();
            self.bytes += stream.memory();
            self.windows_dropped += 1;
        }
        while (self.idle.len() > LOADED_STREAMS || self.bytes > self.limit_bytes)
            && let Some((_, key)) = self.idle.pop_first()
        {
            self.remove(&key);
        }
    }
}
