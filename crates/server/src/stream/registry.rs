//! The streams of a generation in memory, by key: their incarnations and their expiries.
//!
//! Most writes do not read the key that they write. The registry says whether such a write drops a
//! stream. Each stream takes about 150 bytes and twice the bytes of its key. The log engine keeps
//! the state of each log in memory, too.

use basalt::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Approximate bytes of memory of an entry, without its key.
const ENTRY_BYTES: usize = 128;

/// The registration of the stream of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registered {
    pub incarnation: u64,
    /// Time at which the stream expires, or at which its key must be checked, in ms since 1970.
    /// `None` for never.
    pub expire_at_ms: Option<u64>,
    /// The position of the registration among all writes.
    pub rank: u64,
}

/// The streams of one generation (see the module).
#[derive(Default)]
pub(crate) struct StreamRegistry {
    by_key: BTreeMap<Bytes, Registered>,
    by_expiry: BTreeSet<(u64, Bytes)>,
    bytes: usize,
}

impl StreamRegistry {
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the approximate bytes of memory.
    pub fn memory(&self) -> usize {
        self.bytes
    }

    pub fn get(&self, key: &[u8]) -> Option<Registered> {
        self.by_key.get(key).copied()
    }

    /// Registers the stream of a key. Returns the one that the key had.
    pub fn insert(&mut self, key: &[u8], stream: Registered) -> Option<Registered> {
        let before = self.remove(key);
        let key = Bytes::copy_from_slice(key);
        self.bytes += key.len() + ENTRY_BYTES;
        if let Some(at) = stream.expire_at_ms {
            self.by_expiry.insert((at, key.clone()));
        }
        self.by_key.insert(key, stream);
        before
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<Registered> {
        if self.by_key.is_empty() {
            return None;
        }
        let (key, stream) = self.by_key.remove_entry(key)?;
        self.bytes -= key.len() + ENTRY_BYTES;
        if let Some(at) = stream.expire_at_ms {
            self.by_expiry.remove(&(at, key));
        }
        Some(stream)
    }

    /// Returns the time at which the next stream expires, in ms since 1970.
    pub fn next_expiry(&self) -> Option<u64> {
        self.by_expiry.first().map(|(at, _)| *at)
    }

    /// Returns the key of a stream that has expired at `now_ms`.
    pub fn next_ended(&self, now_ms: u64) -> Option<Bytes> {
        let (at, key) = self.by_expiry.first()?;
        (*at <= now_ms).then(|| key.clone())
    }

    /// Returns up to `most` entries from a key on, and the key to continue with.
    pub fn some_from(&self, key: &[u8], most: usize) -> (Vec<(Bytes, Registered)>, Option<Bytes>) {
        let from = (Bound::Included(key), Bound::Unbounded);
        let mut range = self.by_key.range::<[u8], _>(from);
        let some = range.by_ref().take(most);
        let some = some.map(|(key, stream)| (key.clone(), *stream)).collect();
        (some, range.next().map(|(key, _)| key.clone()))
    }

    /// Returns the incarnations of all streams.
    pub fn incarnations(&self) -> impl Iterator<Item = u64> {
        self.by_key.values().map(|stream| stream.incarnation)
    }

    /// Restores the streams that a failed flush had removed.
    pub fn restore(&mut self, before: StreamRegistry) {
        if self.is_empty() {
            *self = before;
            return;
        }
        for (key, stream) in before.by_key {
            if self.get(&key).is_none() {
                self.insert(&key, stream);
            }
        }
    }
}
