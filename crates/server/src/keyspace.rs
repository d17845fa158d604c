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
//!    wrote. It is sent when all of them have completed: nobody sees what could still be lost.
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
use crate::fetch::many::ManyFetch;
use crate::fetch::{self, Fetch};
use crate::layer::{HeldLayer, Layer};
use crate::layout::{self, DataType, KEY_PREFIX_LEN};
use crate::names::KeyHash;
use crate::store::{Done, Store, View, Write};
use crate::value::Value;
use basalt::{Bytes, Error, Result};
use pending_writes::NewestVersion;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value that an epoch gives to a key. The versions of a key are in the order of their epochs.
#[derive(Debug)]
struct Version {
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
#[derive(Debug, Default)]
struct Epoch {
    /// Epochs are numbered in their order, from 1.
    number: u64,
    keys: Vec<Bytes>,
    /// Number of layers of the epoch.
    layers: u8,
    /// The result of its commit, if the callback has run and an earlier epoch has to end first.
    told: Option<Result<()>>,
    /// Bytes of single writes.
    bytes: usize,
    layer_bytes: usize,
    depends_on: Epochs,
    /// The generation before this epoch's first flush.
    flushed_from: Option<u32>,
    /// The generation after its last.
    flushed_to: u32,
}

impl Epoch {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.layers == 0 && self.flushed_from.is_none()
    }

    /// Returns the position of a write among all writes. `place` is 2n for a write after n layers
    /// of the epoch, and 2n + 1 for the layer that follows.
    fn rank(&self, place: u8) -> u64 {
        self.number << 8 | u64::from(place)
    }
}

/// What the end of an epoch brings.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The epoch's slot.
    pub slot: usize,
    /// How its commit ended, for everything that depends on it.
    pub result: Result<()>,
}

/// The chunks of a memtable, see the module.
pub(crate) struct Keyspace {
    store: Arc<dyn Store>,
    limits: EpochLimits,
    overlay: BTreeMap<Bytes, SmallVec<[Version; 1]>>,
    /// Layers in the order in which they took effect.
    layers: Vec<PlacedLayer>,
    /// Layers that are no longer needed. Freeing them takes long.
    discarded: Vec<Arc<Layer>>,
    /// Bytes of the layers in epochs, and of those that fetches are behind by.
    layer_bytes: Arc<AtomicUsize>,
    /// True if there may be room again for a command that waits for room, or if such a command's
    /// fetch has fallen behind.
    room_came: bool,
    /// The secret of hashes of keys.
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
    /// Counts every change, so that a figure computed from the whole keyspace knows when it is out
    /// of date.
    changes: u64,
    /// Of the running command.
    touched: Epochs,
    wrote: bool,
    now_ms: u64,
    scratch: Vec<u8>,
    /// What requests wait for, by client id.
    fetches: BTreeMap<u64, Fetch>,
    /// Fetches that requests with very many names wait for, by client id.
    many: BTreeMap<u64, ManyFetch>,
    /// The fetch whose answers the running command has.
    current: Option<u64>,
    /// Reads of the store, and bytes of values that lie apart from the tree, that the running
    /// command may still do on the loop.
    reads_left: u32,
    bytes_left: usize,
    /// All reads of the store and bytes read apart from the tree on the loop, so that a client's
    /// turn ends after some of them.
    reads: u64,
    read_bytes: u64,
    /// Number of names that were looked up or written on the loop.
    names: u64,
}

/// Everything captured that a scan of the whole keyspace needs, to run on another thread.
pub(crate) struct Capture {
    pub view: Box<dyn View>,
    overlay: Vec<(Bytes, NewestVersion)>,
    layers: Vec<(u64, Arc<Layer>)>,
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub now_ms: u64,
    pub changes: u64,
}

/// Sees a Redis key, its type and its expiry; false ends the scan.
pub(crate) type Show<'a> = dyn FnMut(&[u8], DataType, Option<u64>) -> bool + 'a;

/// What a scan needs of a value in the overlay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverlayEntry {
    pub data_type: DataType,
    pub expire_at_ms: Option<u64>,
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
            room_came: false,
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

    /// Begins a command at a wall time.
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

    /// Ends a command: the epochs that its reply depends on.
    pub fn finish(&mut self) -> Epochs {
        let mut depends_on = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.wrote) {
            let open = 1 << self.open;
            self.open_epoch().depends_on |= depends_on & !open;
            depends_on |= open;
        }
        depends_on
    }

    /// True when the running command has written.
    pub fn wrote(&self) -> bool {
        self.wrote
    }

    /// No further command is taken until the open epoch could be submitted, or one on its way has
    /// ended.
    pub fn is_full(&self) -> bool {
        let open = self.epochs[self.open].as_ref().expect("always there");
        open.bytes + open.layer_bytes >= self.limits.bytes
            || open.keys.len() >= self.limits.writes
            || open.layers >= LAYERS
            || self.pending_bytes() >= self.limits.pending_bytes
    }

    /// Nothing is collected and nothing is on its way.
    pub fn is_settled(&self) -> bool {
        self.in_flight == 0
            && self.epochs[self.open]
                .as_ref()
                .expect("always there")
                .is_empty()
    }

    /// Bytes of keys and values that are not in the store yet, and of layers that fetches are
    /// behind by. Each layer counts once, however many fetches hold it.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes + self.layer_bytes.load(Ordering::Relaxed)
    }

    /// The most that [`Keyspace::pending_bytes`] has been.
    pub fn pending_bytes_peak(&self) -> usize {
        self.pending_bytes_peak
    }

    /// Epochs on their way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Counts every change since the server started.
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

    /// Sets a key to a string. The key must have been checked to be at most [`layout::MAX_KEY_LEN`] bytes.
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
                versions.push(Version {
                    slot,
                    layers,
                    value,
                });
                // Key, places in map and list.
                grown += key.len() + 128;
                self.open_epoch().keys.push(key);
            }
        }
        let open = self.open_epoch();
        open.bytes = open.bytes + grown - shrunk;
        self.pending_bytes = self.pending_bytes + grown - shrunk;
        self.pending_bytes_peak = self.pending_bytes_peak.max(self.pending_bytes());
    }

    /// Removes every key. Atomic with the epoch's other writes, synced, and takes the same time
    /// however many there are.
    pub fn flush(&mut self) -> Result<()> {
        self.touch_flush();
        let before = self.generation;
        let next = before.checked_add(1).ok_or_else(|| {
            Error::unsupported("this database was flushed 4294967295 times and cannot be again")
        })?;
        self.wrote = true;
        self.changes += 1;
        self.generation = next;
        for fetch in self.many.values_mut() {
            fetch.is_void = true;
        }
        self.flush = Some(self.open);
        let open = self.open_epoch();
        open.flushed_from.get_or_insert(before);
        open.flushed_to = next;
        Ok(())
    }

    /// Submits the open epoch if it holds writes, depends on nothing and another may be in flight.
    pub fn submit(&mut self, sync: bool, done: impl FnOnce(usize) -> Done) -> bool {
        let slot = self.open;
        let open = self.epochs[slot].as_ref().expect("always there");
        if open.is_empty() || open.depends_on != 0 || self.in_flight == self.limits.in_flight {
            return false;
        }
        let flushed = open.flushed_from.is_some();
        let mut writes = Vec::with_capacity(open.keys.len() + usize::from(open.layers) + 1);
        for key in &open.keys {
            // What was written under a generation that this epoch itself ended needs no place in
            // the store.
            let (_, generation, _) = layout::decode_key(key).expect("a Redis key");
            if flushed && generation < open.flushed_to {
                continue;
            }
            let versions = self
                .overlay
                .get(key)
                .expect("an epoch's keys are in the overlay");
            let version = versions
                .iter()
                .find(|v| usize::from(v.slot) == slot)
                .expect("with its version");
            let write = match &version.value {
                Some(value) => Write::Put {
                    key: key.clone(),
                    value: value.clone(),
                },
                None => Write::Delete { key: key.clone() },
            };
            writes.push((open.rank(2 * version.layers), write));
        }
        for placed in self.layers.iter().filter(|placed| placed.slot == slot) {
            let layer = placed.layer.layer();
            if !flushed || layer.generation() == open.flushed_to {
                writes.push((placed.rank, Write::Layer(layer.clone())));
            }
        }
        if open.layers > 0 {
            // In a batch, the later write of a key wins.
            writes.sort_by_key(|(rank, _)| *rank);
        }
        let mut writes: Vec<Write> = writes.into_iter().map(|(_, write)| write).collect();
        if flushed {
            writes.push(Write::Generation {
                generation: open.flushed_to,
            });
        }
        let next = self
            .epochs
            .iter()
            .position(Option::is_none)
            .expect("fewer epochs in flight than slots");
        self.epochs[next] = Some(self.new_epoch());
        self.open = next;
        self.in_flight += 1;
        let store = self.store.clone();
        store.submit(writes, sync || flushed, done(slot));
        true
    }

    fn new_epoch(&mut self) -> Epoch {
        self.begun += 1;
        Epoch {
            number: self.begun,
            ..Epoch::default()
        }
    }

    /// Takes note that the commit of a submitted epoch has ended, in any order of epochs. Returns
    /// the epochs that end with it, and each open epoch that depended on one that failed. The
    /// caller resolves everything that waits for them before the next command runs. The second
    /// value is true if a flush has become durable, so that its space should be reclaimed.
    pub fn complete(&mut self, slot: usize, result: Result<()>) -> (SmallVec<[Ended; 2]>, bool) {
        assert!(slot != self.open, "the open epoch was not submitted");
        let epoch = self.epochs[slot].as_mut().expect("the epoch is known");
        epoch.told = Some(result);
        let mut ended = SmallVec::new();
        let mut flushed = false;
        while let Some((slot, result)) = self.next_to_end() {
            flushed |= self.end_epoch(slot, result, &mut ended);
        }
        (ended, flushed)
    }

    /// Returns an epoch whose commit has ended, if no other epoch has to end before it (rule 6).
    fn next_to_end(&mut self) -> Option<(usize, Result<()>)> {
        let submitted = |slot: &usize| *slot != self.open && self.epochs[*slot].is_some();
        let submitted: SmallVec<[usize; SLOTS]> = (0..SLOTS).filter(submitted).collect();
        let epoch = |slot: usize| self.epochs[slot].as_ref().expect("submitted");
        let may_end = |slot: &usize| {
            let own = epoch(*slot);
            let waits_for = |earlier: &usize| {
                let earlier = epoch(*earlier);
                earlier.number < own.number && (earlier.layers > 0 || own.layers > 0)
            };
            own.told.is_some() && !submitted.iter().any(waits_for)
        };
        let slot = submitted.iter().copied().find(may_end)?;
        let told = self.epochs[slot].as_mut()?.told.take()?;
        Some((slot, told))
    }

    fn end_epoch(
        &mut self,
        slot: usize,
        result: Result<()>,
        all: &mut SmallVec<[Ended; 2]>,
    ) -> bool {
        self.in_flight -= 1;
        let mut ended: SmallVec<[Ended; 2]> = SmallVec::new();
        let mut flushed = false;
        let bit = 1 << slot;
        let epoch = self.take_epoch(slot, result.is_ok());
        match &result {
            Ok(()) => {
                if epoch.flushed_from.is_some() {
                    self.store.retire_below(epoch.flushed_to);
                    flushed = true;
                }
                self.open_epoch().depends_on &= !bit;
            }
            Err(e) => {
                self.changes += 1;
                if self.open_epoch().depends_on & bit != 0 {
                    let open = self.open;
                    let failed = self.take_epoch(open, false);
                    if let Some(before) = failed.flushed_from {
                        self.generation = before;
                    }
                    self.epochs[open] = Some(self.new_epoch());
                    ended.push(Ended {
                        slot: open,
                        result: Err(e.clone()),
                    });
                }
                if let Some(before) = epoch.flushed_from {
                    self.generation = before;
                }
            }
        }
        ended.insert(0, Ended { slot, result });
        for fetch in self.many.values_mut() {
            for epoch in &ended {
                fetch.epoch_ended(epoch.slot, epoch.result.is_err());
            }
            // A flush that failed brings an earlier generation back.
            fetch.is_void |= fetch.generation() != self.generation;
        }
        all.extend(ended);
        flushed
    }

    /// Takes an epoch and its writes out of the overlay. If the epoch is `stored`, earlier versions
    /// of its keys go too: the store committed them before it, or refused them.
    fn take_epoch(&mut self, slot: usize, stored: bool) -> Epoch {
        let epoch = self.epochs[slot].take().expect("the epoch is known");
        self.pending_bytes -= epoch.bytes;
        for key in &epoch.keys {
            let Some(versions) = self.overlay.get_mut(key) else {
                // A later epoch that completed earlier has taken this version along.
                continue;
            };
            let Some(own) = versions.iter().position(|v| usize::from(v.slot) == slot) else {
                continue;
            };
            // Versions are in the order of their epochs.
            versions.drain(if stored { 0 } else { own }..=own);
            if versions.is_empty() {
                self.overlay.remove(key);
            }
        }
        if epoch.layers > 0 {
            let ended = self.layers.extract_if(.., |placed| placed.slot == slot);
            (self.discarded).extend(ended.map(|placed| placed.layer.layer().clone()));
        }
        if self.flush == Some(slot) {
            self.flush = None;
        }
        epoch
    }

    /// Returns the newest write of an engine key among the epochs in flight and the open one. The
    /// result is `None` if none of them writes the key.
    fn newest(&self, stored: &[u8]) -> Option<(usize, Option<Value>)> {
        let hash = match self.layers.is_empty() {
            true => None,
            false => Some(KeyHash::of(self.secret, &stored[KEY_PREFIX_LEN..])),
        };
        self.newest_of(stored, hash, true)
    }

    /// As [`Keyspace::newest`], with the hash of the Redis key, which is needed if there are
    /// layers. Without `with_data`, the value may be empty.
    fn newest_of(
        &self,
        stored: &[u8],
        hash: Option<KeyHash>,
        with_data: bool,
    ) -> Option<(usize, Option<Value>)> {
        let version = self
            .overlay
            .get(stored)
            .and_then(|versions| versions.last());
        if let Some(hash) = hash.filter(|_| !self.layers.is_empty()) {
            let below = version.map_or(0, |v| self.rank(v));
            let (prefix, key) = stored.split_at(KEY_PREFIX_LEN);
            let above = self.layers.iter().rev().take_while(|l| l.rank > below);
            let mut above = above.filter(|l| l.layer.layer().prefix() == prefix);
            let get = |l: &PlacedLayer| l.layer.layer().get(key, hash, with_data);
            if let Some(found) = above.find_map(|l| Some((l.slot, get(l)?))) {
                return Some(found);
            }
        }
        version.map(|v| (v.slot.into(), v.value.clone()))
    }

    fn rank(&self, version: &Version) -> u64 {
        let epoch = self.epochs[usize::from(version.slot)].as_ref();
        epoch
            .expect("versions go with their epoch")
            .rank(2 * version.layers)
    }

    /// Returns the newest version of a key in the overlay, with its rank if there are layers.
    fn newest_version(&self, versions: &[Version]) -> NewestVersion {
        let newest = versions.last().expect("never empty");
        NewestVersion {
            rank: if self.layers.is_empty() {
                0
            } else {
                self.rank(newest)
            },
            entry: newest.value.as_ref().map(|v| OverlayEntry {
                data_type: v.data_type,
                expire_at_ms: v.expire_at_ms,
            }),
        }
    }

    /// Bounds of the engine keys whose Redis keys begin with `prefix`.
    pub fn bounds(&self, prefix: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let from = [
            &layout::key_prefix(DATABASE, self.generation)[..],
            &prefix[..prefix.len().min(layout::MAX_KEY_LEN)],
        ]
        .concat();
        let to = layout::prefix_end(&from);
        (from, to)
    }

    /// Makes the running command depend on everything that is not in the store yet.
    pub fn touch_all(&mut self) {
        self.touch_flush();
        for (slot, epoch) in self.epochs.iter().enumerate() {
            if epoch.as_ref().is_some_and(|e| !e.is_empty()) {
                self.touched |= 1 << slot;
            }
        }
    }

    /// Visits live keys (without their prefix) in `[from, to)` in order, with type; false ends it.
    /// It looks at about `work` keys, live or not, and counts a long value as several: the loop
    /// waits for it. Then it returns the key to go on with.
    pub fn scan(
        &mut self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut dyn FnMut(&[u8], DataType) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        self.touch_all();
        if from >= to {
            return Ok(None);
        }
        let view = self.store.view();
        let overlay = self
            .overlay
            .range::<[u8], _>((
                std::ops::Bound::Included(from),
                std::ops::Bound::Excluded(to),
            ))
            .map(|(k, v)| (&k[..], self.newest_version(v)));
        let layers = self.layers.iter().map(|l| (l.rank, &**l.layer.layer()));
        let paused = merge(
            &*view,
            pending_writes::merged(overlay, layers, from, to),
            from,
            to,
            self.now_ms,
            work,
            &mut |k, t, _| visit(k, t),
        )?;
        Ok(paused.map(redis_key))
    }

    /// An upper end of the keys in `[from, to)`: about the last one of store and overlay, even if
    /// it is deleted. `work` is as for [`Keyspace::scan`].
    pub fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>> {
        let range = Bytes::copy_from_slice(from)..Bytes::copy_from_slice(to);
        let above = self.overlay.range(range).next_back();
        let stored = self.store.view().last(from, to, work)?;
        let layers = self
            .layers
            .iter()
            .map(|l| pending_writes::last(l.layer.layer(), from, to));
        let last = above.map(|(k, _)| k.to_vec()).max(stored);
        let last = last.max(layers.max().flatten());
        Ok(last.map(redis_key))
    }

    /// Pins everything with a prefix, for a scan on another thread.
    pub fn capture(&mut self, prefix: &[u8]) -> Capture {
        self.touch_all();
        let (from, to) = self.bounds(prefix);
        Capture {
            view: self.store.view(),
            overlay: self
                .overlay
                .range(Bytes::copy_from_slice(&from)..Bytes::copy_from_slice(&to))
                .map(|(k, v)| (k.clone(), self.newest_version(v)))
                .collect(),
            layers: (self.layers.iter())
                .map(|l| (l.rank, l.layer.layer().clone()))
                .collect(),
            from,
            to,
            now_ms: self.now_ms,
            changes: self.changes,
        }
    }
}

/// An engine key without its prefix.
fn redis_key(mut key: Vec<u8>) -> Vec<u8> {
    key.drain(..layout::KEY_PREFIX_LEN);
    key
}

impl Capture {
    /// Visits live keys with type and expiry; false ends it.
    pub fn scan(&self, visit: &mut Show<'_>) -> Result<()> {
        self.scan_from(&self.from, visit)
    }

    /// As [`Capture::scan`], from an engine key on.
    pub fn scan_from(&self, from: &[u8], visit: &mut Show<'_>) -> Result<()> {
        let skipped = self.overlay.partition_point(|(k, _)| &k[..] < from);
        let overlay = self.overlay[skipped..].iter().map(|(k, v)| (&k[..], *v));
        let layers = self.layers.iter().map(|(rank, layer)| (*rank, &**layer));
        let paused = merge(
            &*self.view,
            pending_writes::merged(overlay, layers, from, &self.to),
            from,
            &self.to,
            self.now_ms,
            u64::MAX,
            visit,
        )?;
        assert!(paused.is_none(), "nothing pauses without a bound");
        Ok(())
    }
}

/// Bytes of a value in the tree that count as another key looked at: they had to be read as well.
const WORK_UNIT: u64 = 4 << 10;

/// Merges a view with what lies over it; both are in order. After about `work` keys it returns the
/// engine key to go on with.
fn merge<'a>(
    view: &dyn View,
    overlay: impl Iterator<Item = (Cow<'a, [u8]>, Option<OverlayEntry>)>,
    from: &[u8],
    to: &[u8],
    now_ms: u64,
    work: u64,
    visit: &mut Show<'_>,
) -> Result<Option<Vec<u8>>> {
    let mut overlay = overlay.peekable();
    let mut going = true;
    let mut failed = None;
    let mut left = work;
    let mut paused = None;
    let mut show = |key: &[u8], entry: Option<OverlayEntry>, value_len: usize| {
        if left == 0 {
            paused = Some(key.to_vec());
            return false;
        }
        left = left.saturating_sub(1 + value_len as u64 / WORK_UNIT);
        match entry {
            Some(e) if e.expire_at_ms.is_none_or(|at| at > now_ms) => {
                let (_, _, key) = layout::decode_key(key).expect("scans stay inside a database");
                visit(key, e.data_type, e.expire_at_ms)
            }
            _ => true,
        }
    };
    let stopped_at = view.scan(from, to, work, &mut |key, value, expire_at_ms| {
        while let Some((k, entry)) = overlay.next_if(|(k, _)| **k < *key) {
            going = show(&k, entry, 0);
            if !going {
                return false;
            }
        }
        let entry = match overlay.next_if(|(k, _)| **k == *key) {
            Some((_, entry)) => entry,
            None => match value.map_or(Ok(DataType::String), layout::value_type) {
                Ok(data_type) => Some(OverlayEntry {
                    data_type,
                    expire_at_ms,
                }),
                Err(e) => {
                    failed = Some(e);
                    going = false;
                    return false;
                }
            },
        };
        going = show(key, entry, value.map_or(0, <[u8]>::len));
        going
    })?;
    if let Some(e) = failed {
        return Err(e);
    }
    for (k, entry) in overlay {
        // What the store did not look at may stand between.
        going = going && stopped_at.as_ref().is_none_or(|at| k[..] < at[..]) && show(&k, entry, 0);
        if !going {
            break;
        }
    }
    Ok(paused.or(stopped_at))
}

mod layers;
mod pending_writes;
mod reading;

pub(crate) use reading::{LOOP_BYTES, LOOP_READS, Missed};

#[cfg(test)]
mod tests;
