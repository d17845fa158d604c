//! The keyspace as commands see it: the store, and over it the writes that are not visible in the
//! store yet.
//!
//! # Epochs
//! Commands run one after the other on one thread. What they write is collected in the *open*
//! epoch, which becomes one batch of the store; up to [`EpochLimits::in_flight`] epochs are on
//! their way at a time. Until an epoch has completed, its writes are found in the *overlay*, which
//! every read asks first.
//!
//! 1. A command's reply depends on the epochs whose writes it read, and on the open epoch when it
//!    wrote. It is sent when all of them have completed: no client sees a write that could be lost.
//! 2. When a command that writes has read writes of an epoch in flight, the open epoch depends on
//!    that epoch and is submitted only after it has completed. So a failed commit never leaves a
//!    later one in the store that was computed from it; what depends on it fails with the same
//!    error, and was never submitted.
//! 3. A flush makes everything after it depend on its epoch: the generation that keys are written
//!    under is part of what was read. Its epoch is always synced.
//! 4. When an epoch completes or fails, its writes leave the overlay. Completed ones are visible in
//!    the store by then.
//! 5. The store commits epochs in the order of submission, but its callbacks run on several
//!    threads: the keyspace may hear of a later epoch first. Earlier versions of the keys of a
//!    completed epoch leave the overlay with it: the store holds a newer one, whatever becomes of
//!    the earlier epochs.
//! 6. The writes of a command with very many names are a [`Layer`] of their epoch, which reads ask
//!    beside the overlay. A layer enters and leaves in one step. The loop looks at no key of a
//!    layer when its epoch completes, so rule 5 has another form for layers. An epoch with a layer
//!    ends after all earlier epochs and before all later epochs, in whatever order the callbacks
//!    run. The engine decides commits in this order, so an epoch waits only for a callback that
//!    already runs.
//!
//! Epochs are known by a slot, a bit in a 16-bit set ([`Epochs`]); a slot is used again when
//! nothing depends on it.

use crate::catalog::DATABASE;
use crate::epoch::{EpochLimits, Epochs, SLOTS};
use crate::fetch::many_names::ManyFetch;
use crate::fetch::{self, Fetch};
use crate::layer::{HeldLayer, Layer};
use crate::layout::{self, DataType};
use crate::names::KeyHash;
use crate::store::{Append, ElementWrite, Store};
use crate::value::Value;
use basalt::{Bytes, Error, Result};
use live_streams::{EpochStreams, LiveStreams};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use streams::Streams;

/// A value that an epoch gives to a key. The versions of a key are in the order of their epochs.
#[derive(Debug)]
struct PendingVersion {
    slot: u8,
    /// Number of layers that the epoch had when it wrote this version.
    layers: u8,
    value: Option<Value>,
}

/// A layer of an epoch that is open or in flight.
struct PlacedLayer {
    slot: usize,
    rank: u64,
    layer: HeldLayer,
}

/// Number of layers from which on an epoch takes no further command.
const LAYERS: u8 = 16;

#[derive(Default)]
struct Epoch {
    /// Epochs are numbered in their order, from 1.
    number: u64,
    keys: Vec<Bytes>,
    /// Number of layers of the epoch.
    layers: u8,
    /// The result of the commit, if its callback has run and an earlier epoch has to end first.
    commit_result: Option<Result<()>>,
    /// Bytes of single writes.
    bytes: usize,
    layer_bytes: usize,
    /// Entries of streams that are appended before the other writes.
    appends: Vec<Append>,
    /// Writes of elements, in their order.
    elements: Vec<ElementWrite>,
    /// Keys of streams that the epoch writes. The value is true if the writes may end the waits of
    /// blocked requests.
    streams: BTreeMap<Bytes, bool>,
    stream_changes: EpochStreams,
    depends_on: Epochs,
    /// The generation before this epoch's first flush.
    flushed_from: Option<u32>,
    /// The generation after this epoch's last flush.
    flushed_to: u32,
}

impl Epoch {
    fn is_empty(&self) -> bool {
        self.keys.is_empty()
            && self.appends.is_empty()
            && self.elements.is_empty()
            && self.layers == 0
            && self.flushed_from.is_none()
    }

    /// Returns the position of a write among all writes. `place` is 2n for a write after n layers
    /// of the epoch, and 2n + 1 for the layer that follows.
    fn rank(&self, place: u8) -> u64 {
        self.number << 8 | u64::from(place)
    }
}

/// The end of an epoch.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The epoch's slot.
    pub slot: usize,
    /// The result of the commit, for everything that depends on the epoch.
    pub result: Result<()>,
}

/// The keyspace of a server (see the module).
pub(crate) struct Keyspace {
    store: Arc<dyn Store>,
    limits: EpochLimits,
    overlay: BTreeMap<Bytes, SmallVec<[PendingVersion; 1]>>,
    /// Layers in the order in which they took effect.
    layers: Vec<PlacedLayer>,
    /// Layers that are no longer needed. Freeing them takes long.
    discarded: Vec<Arc<Layer>>,
    /// Bytes of the layers in epochs, and of those that fetches are behind by.
    layer_bytes: Arc<AtomicUsize>,
    /// True if there may be room again for a command that waits for room, or if such a command's
    /// fetch has fallen behind.
    room_freed: bool,
    /// Secret of the hashes of keys.
    secret: u64,
    epochs: [Option<Epoch>; SLOTS],
    /// Number of epochs begun so far.
    begun: u64,
    open: usize,
    in_flight: usize,
    /// Bytes of all epochs together, without their layers.
    pending_bytes: usize,
    pending_bytes_peak: usize,
    generation: u32,
    flush: Option<usize>,
    /// Number of changes, so that a result computed from the whole keyspace can be recognised as
    /// outdated.
    changes: u64,
    /// Epochs that the reply of the running command depends on.
    touched: Epochs,
    wrote: bool,
    now_ms: u64,
    scratch: Vec<u8>,
    streams: Streams,
    live: LiveStreams,
    /// The slot of an epoch in flight with appends and writes of tables.
    two_part: Option<usize>,
    /// The client whose command runs.
    client: u64,
    /// True if the running command is one that writes.
    client_writes: bool,
    /// Fetches of waiting requests, by client id.
    fetches: BTreeMap<u64, Fetch>,
    /// Fetches that requests with very many names wait for, by client id.
    many: BTreeMap<u64, ManyFetch>,
    /// The fetch whose answers the running command has.
    current: Option<u64>,
    /// Reads of the store that the running command may still do on the loop. `bytes_left` is the
    /// same for bytes of separated values.
    reads_left: u32,
    bytes_left: usize,
    /// Reads of the store on the loop so far, so that a client's turn ends after some of them.
    /// `read_bytes` is the same for bytes of separated values.
    reads: u64,
    read_bytes: u64,
    /// Number of names that were looked up or written on the loop.
    names: u64,
}

impl Keyspace {
    /// Makes a keyspace over a store. `secret` is a random number.
    pub fn new(store: Arc<dyn Store>, limits: EpochLimits, secret: u64) -> Result<Keyspace> {
        assert!(
            limits.in_flight >= 1 && limits.in_flight <= SLOTS - 2,
            "epochs in flight and the open one need a slot each"
        );
        let generation = store.generation()?;
        let mut epochs = [const { None }; SLOTS];
        epochs[0] = Some(Epoch {
            number: 1,
            ..Epoch::default()
        });
        Ok(Keyspace {
            store,
            limits,
            overlay: BTreeMap::new(),
            layers: Vec::new(),
            discarded: Vec::new(),
            layer_bytes: Arc::default(),
            room_freed: false,
            secret,
            epochs,
            begun: 1,
            open: 0,
            in_flight: 0,
            pending_bytes: 0,
            pending_bytes_peak: 0,
            generation,
            flush: None,
            changes: 0,
            touched: 0,
            wrote: false,
            now_ms: 0,
            scratch: Vec::new(),
            streams: Streams::default(),
            live: LiveStreams::default(),
            two_part: None,
            client: 0,
            client_writes: false,
            fetches: BTreeMap::new(),
            many: BTreeMap::new(),
            current: None,
            reads_left: 0,
            bytes_left: 0,
            reads: 0,
            read_bytes: 0,
            names: 0,
        })
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Begins a command at a wall time in ms since 1970.
    pub fn begin(&mut self, now_ms: u64) {
        assert!(
            self.touched == 0 && !self.wrote,
            "the command before was not finished"
        );
        self.now_ms = now_ms;
        (self.reads_left, self.bytes_left) = match self.rounds() < fetch::ROUNDS {
            true => (LOOP_READS, LOOP_BYTES),
            false => (u32::MAX, usize::MAX),
        };
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Ends a command. Returns the epochs that its reply depends on.
    pub fn finish(&mut self) -> Epochs {
        self.streams.evict();
        let mut depends_on = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.wrote) {
            let open = 1 << self.open;
            self.open_epoch().depends_on |= depends_on & !open;
            depends_on |= open;
        }
        depends_on
    }

    /// Returns true if the running command has written.
    pub fn wrote(&self) -> bool {
        self.wrote
    }

    /// Returns true if no further command is taken until the open epoch is submitted, or one in
    /// flight has ended.
    pub fn is_full(&self) -> bool {
        let open = self.epochs[self.open].as_ref().expect("always there");
        open.bytes + open.layer_bytes >= self.limits.bytes
            || open.keys.len() + open.appends.len() + open.elements.len() >= self.limits.writes
            || open.layers >= LAYERS
            || self.pending_bytes() >= self.limits.pending_bytes
    }

    /// Returns true if no write is collected and none is in flight.
    pub fn is_drained(&self) -> bool {
        self.in_flight == 0
            && self.epochs[self.open]
                .as_ref()
                .expect("always there")
                .is_empty()
    }

    /// Returns the bytes of keys and values that are not in the store yet, and of layers that
    /// fetches are behind by. A layer counts once for any number of fetches.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes + self.layer_bytes.load(Ordering::Relaxed)
    }

    /// Returns the maximum of [`Keyspace::pending_bytes`] so far.
    pub fn pending_bytes_peak(&self) -> usize {
        self.pending_bytes_peak
    }

    /// Returns the number of epochs in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the number of changes since the server started.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn open_epoch(&mut self) -> &mut Epoch {
        self.epochs[self.open].as_mut().expect("always there")
    }

    fn touch_flush(&mut self) {
        if let Some(slot) = self.flush {
            self.touched |= 1 << slot;
        }
    }

    fn alive(value: &Value, now_ms: u64) -> bool {
        value.expire_at_ms.is_none_or(|at| at > now_ms)
    }

    /// Sets a key to a string. The key must have been checked to be at most [`layout::MAX_KEY_LEN`]
    /// bytes.
    pub fn put(&mut self, key: &[u8], data: Bytes, expire_at_ms: Option<u64>) {
        assert!(key.len() <= layout::MAX_KEY_LEN, "the key was not checked");
        self.write(
            key,
            Some(Value {
                data_type: DataType::String,
                data,
                expire_at_ms,
            }),
        );
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &[u8]) {
        self.write(key, None);
    }

    fn write(&mut self, key: &[u8], value: Option<Value>) {
        self.streams.forget(key);
        if (value.as_ref()).is_none_or(|value| value.data_type != DataType::Stream) {
            self.drop_stream(key);
        }
        if self.streams.is_watched(key) {
            let key = Bytes::copy_from_slice(key);
            self.open_epoch().streams.insert(key, true);
        }
        self.touch_flush();
        self.wrote = true;
        self.names += 1;
        self.changes += 1;
        let written_by = 1 << self.open;
        for fetch in self.fetches.values_mut() {
            fetch.forget(key);
        }
        if !self.many.is_empty() {
            let hashed = (key, KeyHash::of(self.secret, key));
            for fetch in self.many.values_mut() {
                fetch.follow(hashed, value.as_ref(), written_by, self.now_ms);
            }
        }
        let slot = self.open as u8;
        let layers = self.open_epoch().layers;
        let key = layout::encode_key(DATABASE, self.generation, key);
        let value_bytes = |v: &Option<Value>| v.as_ref().map_or(0, |v| v.data.len());
        let mut grown = value_bytes(&value);
        let mut shrunk = 0;
        let versions = self.overlay.entry(key.clone()).or_default();
        match versions.last_mut() {
            Some(newest) if newest.slot == slot => {
                shrunk = value_bytes(&newest.value);
                newest.value = value;
                newest.layers = layers;
            }
            _ => {
                versions.push(PendingVersion {
                    slot,
                    layers,
                    value,
                });
                // The number covers the key, and its places in the map and the list.
                grown += key.len() + 128;
                self.open_epoch().keys.push(key);
            }
        }
        let open = self.open_epoch();
        open.bytes = open.bytes + grown - shrunk;
        self.pending_bytes = self.pending_bytes + grown - shrunk;
        self.pending_bytes_peak = self.pending_bytes_peak.max(self.pending_bytes());
    }

    /// Removes every key. The removal is atomic with the epoch's other writes, synced, and takes
    /// the same time for any number of keys.
    pub fn flush(&mut self) -> Result<()> {
        self.touch_flush();
        let before = self.generation;
        let next = before.checked_add(1).ok_or_else(|| {
            Error::unsupported(
                "this database was flushed 4294967295 times and cannot be flushed again",
            )
        })?;
        self.wrote = true;
        self.changes += 1;
        self.drop_all_streams();
        self.generation = next;
        self.streams.forget_all();
        for key in self.streams.watched() {
            self.open_epoch().streams.insert(key, true);
        }
        for fetch in self.many.values_mut() {
            fetch.is_void = true;
        }
        self.flush = Some(self.open);
        let open = self.open_epoch();
        open.flushed_from.get_or_insert(before);
        open.flushed_to = next;
        Ok(())
    }
}

mod epochs;
mod groups;
mod layers;
mod live_streams;
mod loaded_streams;
mod overlay;
mod pending_writes;
mod reading;
mod scan;
mod skipped_streams;
mod stream_pins;
mod streams;

pub(crate) use groups::{Claim, Claims};
pub(crate) use reading::{LOOP_BYTES, LOOP_READS, Missed};
pub(crate) use scan::Capture;
pub(crate) use streams::{StreamKey, StreamNeed};

#[cfg(test)]
mod tests;
