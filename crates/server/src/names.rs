//! The names of a request with very many names, and the writes of such a request.
//!
//! A request may have a million names. Work for each of them in one turn would delay all other
//! clients, so another thread makes the table of the names. The table consists of a few long arrays
//! and the request itself: no single name costs an allocation or a deallocation.

use crate::catalog::DATABASE;
use crate::fetch::many::ManyFetch;
use crate::layout::{self, DataType, KEY_PREFIX_LEN};
use crate::resp::request::Request;
use crate::store::Value;
use basalt::Bytes;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The hash of a Redis key under a random secret of the server, so that no client can choose keys
/// with the same hash. One hash serves for all layers and fetches, because a key may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    /// Hashes a key. Hashes under different secrets must not meet.
    pub fn of(secret: u64, key: &[u8]) -> KeyHash {
        #[cfg(test)]
        hashed::count(key.len());
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(secret);
        hasher.write(key);
        KeyHash(hasher.finish())
    }
}

/// Counts what a test's thread hashes.
#[cfg(test)]
pub(crate) mod hashed {
    use std::cell::Cell;

    thread_local! {
        static BYTES: Cell<usize> = const { Cell::new(0) };
    }

    pub fn count(bytes: usize) {
        BYTES.set(BYTES.get() + bytes);
    }

    /// Returns the bytes of keys that this thread has hashed.
    pub fn bytes() -> usize {
        BYTES.get()
    }
}

/// The names of a request, in the order of the request, with an index by key.
pub(crate) struct Names {
    request: Request,
    /// Number of arguments from one name to the next: 2 if a value follows each name.
    step: usize,
    /// For each name, the last name with the same key.
    last: Vec<u32>,
    /// An open hash table of the names that are the last with their key. A slot has the index of
    /// the name plus 1, or 0 if it is empty.
    slots: Vec<u32>,
    /// The hash of each name.
    hashes: Vec<KeyHash>,
    /// The last name of each key, in the order of keys. Empty if the order is not needed.
    sorted: Vec<u32>,
    longest: usize,
}

impl Names {
    /// Indexes the names of a request: each `step`-th argument, from the first after the command's
    /// name. If `is_sorted` is true, the cost is that of a sort.
    pub fn new(request: Request, step: usize, is_sorted: bool, secret: u64) -> Names {
        let len = (request.len() - 1) / step;
        let mut names = Names {
            request,
            step,
            last: vec![0; len],
            slots: vec![0; (2 * len).next_power_of_two()],
            hashes: vec![KeyHash(0); len],
            sorted: Vec::new(),
            longest: 0,
        };
        for name in (0..len).rev() {
            names.longest = names.longest.max(names.key(name).len());
            let hash = KeyHash::of(secret, names.key(name));
            names.hashes[name] = hash;
            let (slot, found) = names.place(names.key(name), hash);
            names.last[name] = found.unwrap_or(name as u32);
            if found.is_none() {
                names.slots[slot] = name as u32 + 1;
            }
        }
        if is_sorted {
            let mut sorted: Vec<u32> = (0..len)
                .filter(|n| names.is_last(*n))
                .map(|n| n as u32)
                .collect();
            sorted.sort_unstable_by(|a, b| names.key(*a as usize).cmp(names.key(*b as usize)));
            names.sorted = sorted;
        }
        names
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Returns the bytes of the longest name.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the key of a name.
    pub fn key(&self, name: usize) -> &[u8] {
        self.request.arg(1 + name * self.step)
    }

    /// Returns the argument after a name.
    fn value(&self, name: usize) -> &[u8] {
        self.request.arg(2 + name * self.step)
    }

    /// Returns true if no later name has the same key.
    pub fn is_last(&self, name: usize) -> bool {
        self.last[name] as usize == name
    }

    /// Returns the last name with the same key.
    pub fn last(&self, name: usize) -> usize {
        self.last[name] as usize
    }

    /// Returns the hash of the key of a name.
    pub fn hash(&self, name: usize) -> KeyHash {
        self.hashes[name]
    }

    /// Returns the last name with a given key.
    pub fn find(&self, key: &[u8], hash: KeyHash) -> Option<usize> {
        self.place(key, hash).1.map(|n| n as usize)
    }

    /// Returns the slot of a key, and the name in it.
    fn place(&self, key: &[u8], hash: KeyHash) -> (usize, Option<u32>) {
        // At least half of the slots are empty, and their number is a power of two.
        let mask = self.slots.len() - 1;
        let mut slot = hash.0 as usize & mask;
        loop {
            match self.slots[slot] {
                0 => return (slot, None),
                n if self.hashes[n as usize - 1] == hash && self.key(n as usize - 1) == key => {
                    return (slot, Some(n - 1));
                }
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Returns the bytes of memory that the request and its index hold.
    pub fn memory(&self) -> usize {
        let words = self.last.capacity() + self.slots.capacity() + self.sorted.capacity();
        let hashes = self.hashes.capacity() * size_of::<KeyHash>();
        self.request.memory() + words * size_of::<u32>() + hashes
    }
}

/// The writes of one command with very many names, as one layer over the store. A layer is made
/// once, and takes effect in one step for any number of names.
pub(crate) struct Layer {
    names: Arc<Names>,
    /// Prefix of the engine keys of the names: their database and generation.
    prefix: [u8; KEY_PREFIX_LEN],
    /// For a deletion, the answers for the names at the moment when it took effect. `None` if each
    /// name has a value.
    deleted: Option<Arc<ManyFetch>>,
}

/// One write of a [`Layer`].
pub(crate) enum LayerWrite<'a> {
    Put(&'a [u8]),
    Delete,
}

impl Layer {
    /// Makes a layer that sets names to the arguments behind them, or deletes them. The names must
    /// be sorted.
    pub fn new(names: Arc<Names>, generation: u32, deleted: Option<Arc<ManyFetch>>) -> Layer {
        Layer {
            names,
            prefix: layout::key_prefix(DATABASE, generation),
            deleted,
        }
    }

    /// Returns the names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the prefix of the engine keys of the layer.
    pub fn prefix(&self) -> &[u8; KEY_PREFIX_LEN] {
        &self.prefix
    }

    /// Returns the generation of the keys of the layer.
    pub fn generation(&self) -> u32 {
        let (_, generation, _) = layout::decode_key(&self.prefix).expect("a prefix of Redis keys");
        generation
    }

    /// Returns the write for a name, which must be the last of its key.
    fn write(&self, name: usize) -> LayerWrite<'_> {
        match self.deleted {
            Some(_) => LayerWrite::Delete,
            None => LayerWrite::Put(self.names.value(name)),
        }
    }

    /// Returns what the layer writes to a Redis key, or `None` if it does not write the key. The
    /// inner `None` is a deletion. Without `with_data`, the value is empty, and nothing is copied.
    pub fn get(&self, key: &[u8], hash: KeyHash, with_data: bool) -> Option<Option<Value>> {
        let name = self.names.find(key, hash)?;
        match self.deleted {
            Some(_) => Some(None),
            None => Some(Some(Value {
                data_type: DataType::String,
                data: if with_data {
                    self.kept(name)
                } else {
                    Bytes::new()
                },
                expire_at_ms: None,
            })),
        }
    }

    fn kept(&self, name: usize) -> Bytes {
        self.names.request.arg_kept(2 + name * self.names.step)
    }

    /// Returns true if the layer writes a Redis key.
    pub fn has(&self, key: &[u8], hash: KeyHash) -> bool {
        self.names.find(key, hash).is_some()
    }

    /// Returns the number of distinct keys.
    pub fn len(&self) -> usize {
        self.names.sorted.len()
    }

    /// Returns the `n`-th key in order, and true if the layer gives it a value.
    pub fn nth(&self, n: usize) -> (&[u8], bool) {
        let name = self.names.sorted[n] as usize;
        (self.names.key(name), self.deleted.is_none())
    }

    /// Returns the first position in the order of keys whose key is at least `key`.
    pub fn place(&self, key: &[u8]) -> usize {
        let keys = &self.names.sorted;
        keys.partition_point(|name| self.names.key(*name as usize) < key)
    }

    /// Returns the keys and their writes, in the order of keys. Keys that were absent are not
    /// deleted again.
    pub fn writes(&self) -> impl Iterator<Item = (&[u8], LayerWrite<'_>)> {
        let names = self.names.sorted.iter().map(|name| *name as usize);
        let is_needed = |name: &usize| self.deleted.as_ref().is_none_or(|f| f.is_there(*name));
        let names = names.filter(is_needed);
        names.map(|name| (self.names.key(name), self.write(name)))
    }

    /// Returns the bytes of memory that the layer holds.
    pub fn memory(&self) -> usize {
        self.names.memory() + self.deleted.as_ref().map_or(0, |f| f.memory())
    }
}

/// A layer that a keyspace, or a fetch that is behind, holds. The bytes of the layer are counted
/// once, until the last clone is dropped.
#[derive(Clone)]
pub(crate) struct HeldLayer {
    layer: Arc<Layer>,
    _count: Arc<LayerCount>,
}

struct LayerCount {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Drop for LayerCount {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl HeldLayer {
    /// Adds the bytes of the layer to a total.
    pub fn new(layer: Layer, total: &Arc<AtomicUsize>) -> HeldLayer {
        let bytes = layer.memory();
        total.fetch_add(bytes, Ordering::Relaxed);
        HeldLayer {
            layer: Arc::new(layer),
            _count: Arc::new(LayerCount {
                bytes,
                total: total.clone(),
            }),
        }
    }

    /// Returns the layer.
    pub fn layer(&self) -> &Arc<Layer> {
        &self.layer
    }
}
