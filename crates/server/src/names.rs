//! The names of a request with very many names.
//!
//! A request may have a million names. Work for each of them in one turn would delay all other
//! clients, so another thread makes the table of the names. The table consists of a few long arrays
//! and the request itself: no single name costs an allocation or a deallocation.

use crate::resp::request::Request;
use basalt::Bytes;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

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
    pub fn value(&self, name: usize) -> &[u8] {
        self.request.arg(2 + name * self.step)
    }

    /// Returns the argument after a name. The result may keep the request in memory.
    pub fn kept_value(&self, name: usize) -> Bytes {
        self.request.arg_kept(2 + name * self.step)
    }

    /// Returns the last name of each key, in the order of keys. The result is empty if the names
    /// were not sorted.
    pub fn sorted(&self) -> &[u32] {
        &self.sorted
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

/// Counts the bytes that a test's thread hashes.
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
