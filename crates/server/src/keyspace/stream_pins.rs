//! Pins of streams by requests that wait for other streams, or for entries of streams.
//!
//! A request that waits for a job on one of its streams pins the streams that it finds. Pinned
//! streams are not evicted, so the request finds them when it runs again. Each run needs at most
//! one more job than the run before, so the request ends under any budget and beside any other
//! requests. The pins of a request end when it has run, or when it will not run again.
//!
//! Rules:
//! - At most [`PINNING_REQUESTS`] requests have pins. This bounds the pinned streams, because a
//!   request names a bounded number of streams. Other requests wait for their turn, in the order
//!   of their arrival.
//! - At most [`PINNING_WRITES`] of these requests write. A request that writes may wait for room
//!   for its writes while it has pins. Reads do not wait for such requests.
//! - A request that waits for its turn has no pins. So requests with pins never wait for it.

use basalt::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Number of requests that have pins at a time.
pub(super) const PINNING_REQUESTS: usize = 16;
/// Number of requests that write and have pins at a time.
pub(super) const PINNING_WRITES: usize = 12;
/// Approximate bytes of memory of a pin, without its key.
const PIN_COST: usize = 128;

/// A request that may pin streams.
#[derive(Default)]
struct PinningRequest {
    writes: bool,
    keys: BTreeSet<Bytes>,
    /// Approximate bytes of memory of the pins.
    bytes: usize,
}

/// The pins of all requests (see the module). A client has one request at a time.
#[derive(Default)]
pub(super) struct StreamPins {
    /// Number of pins of each pinned stream.
    counts: BTreeMap<Bytes, usize>,
    /// Requests that may pin streams, by client id.
    pinning: BTreeMap<u64, PinningRequest>,
    /// Number of requests in `pinning` that write.
    writes: usize,
    /// Number of requests that have waited for their turn so far.
    arrivals: u64,
    /// Clients whose requests wait for their turn, by the order of their arrival.
    waiting_reads: BTreeMap<u64, u64>,
    waiting_writes: BTreeMap<u64, u64>,
    /// The arrival of each waiting request by client id, and true if the request writes.
    waiting: BTreeMap<u64, (u64, bool)>,
    /// Clients whose turn has come since the last call of [`StreamPins::take_admitted`].
    admitted: Vec<u64>,
}

impl StreamPins {
    /// Returns true if a stream has pins.
    pub fn is_pinned(&self, key: &[u8]) -> bool {
        !self.counts.is_empty() && self.counts.contains_key(key)
    }

    /// Returns true if the request of a client may pin streams.
    pub fn is_pinning(&self, client: u64) -> bool {
        !self.pinning.is_empty() && self.pinning.contains_key(&client)
    }

    /// Lets the request of a client pin streams, if its turn has come. Otherwise the request waits,
    /// and the result is false.
    pub fn admit(&mut self, client: u64, writes: bool) -> bool {
        if self.is_pinning(client) {
            return true;
        }
        if !self.waiting.contains_key(&client) {
            self.arrivals += 1;
            let arrival = self.arrivals;
            self.waiting.insert(client, (arrival, writes));
            self.waiting_of(writes).insert(arrival, client);
        }
        // Requests that have waited longer were admitted before, if there was room.
        match self.next_turn() == Some(client) {
            true => self.begin(client),
            false => return false,
        }
        true
    }

    /// Pins a stream for a client's request, which may pin streams. Returns true if this is the
    /// only pin of the stream.
    pub fn pin(&mut self, client: u64, key: &[u8]) -> bool {
        let request = self.pinning.get_mut(&client).expect("its turn has come");
        if request.keys.contains(key) {
            return false;
        }
        let shared = self.counts.get_key_value(key).map(|(key, _)| key.clone());
        let key = shared.unwrap_or_else(|| Bytes::copy_from_slice(key));
        request.keys.insert(key.clone());
        request.bytes += key.len() + PIN_COST;
        let count = self.counts.entry(key).or_default();
        *count += 1;
        *count == 1
    }

    /// Ends the pins and the wait of a client's request, and lets waiting requests pin streams.
    /// Returns the streams that have no pins any more.
    pub fn end(&mut self, client: u64) -> Vec<Bytes> {
        if let Some((arrival, writes)) = self.waiting.remove(&client) {
            self.waiting_of(writes).remove(&arrival);
        }
        let Some(request) = self.pinning.remove(&client) else {
            return Vec::new();
        };
        self.writes -= usize::from(request.writes);
        let mut unpinned = Vec::new();
        for key in request.keys {
            let count = self.counts.get_mut(&key).expect("it is pinned");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key);
                unpinned.push(key);
            }
        }
        while let Some(next) = self.next_turn() {
            self.begin(next);
            self.admitted.push(next);
        }
        unpinned
    }

    /// Returns the clients whose turn has come since the last call. Some may have disconnected.
    pub fn take_admitted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.admitted)
    }

    /// Returns the approximate bytes of memory of the pins of a client's request.
    pub fn memory(&self, client: u64) -> usize {
        self.pinning.get(&client).map_or(0, |request| request.bytes)
    }

    /// Returns the number of pinned streams.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns the number of requests that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn waiting_of(&mut self, writes: bool) -> &mut BTreeMap<u64, u64> {
        match writes {
            true => &mut self.waiting_writes,
            false => &mut self.waiting_reads,
        }
    }

    /// Returns the client whose waiting request comes next, if there is room for it.
    fn next_turn(&self) -> Option<u64> {
        if self.pinning.len() >= PINNING_REQUESTS {
            return None;
        }
        let read = self.waiting_reads.first_key_value();
        let write = self.waiting_writes.first_key_value();
        let write = write.filter(|_| self.writes < PINNING_WRITES);
        read.into_iter()
            .chain(write)
            .min()
            .map(|(_, client)| *client)
    }

    fn begin(&mut self, client: u64) {
        let (arrival, writes) = self.waiting.remove(&client).expect("it waits");
        self.waiting_of(writes).remove(&arrival);
        self.writes += usize::from(writes);
        let request = PinningRequest {
            writes,
            ..PinningRequest::default()
        };
        self.pinning.insert(client, request);
    }
}

#[cfg(test)]
mod tests;
