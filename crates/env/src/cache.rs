//! The sharded block cache, one for all engines of an [`crate::Env`].
//!
//! A key is a file's random 128-bit id and an offset, so recycled space and reused names can never
//! return another file's block. Entries are [`Bytes`]: a hit hands out a reference count, not a copy.
//!
//! - `shard` holds the entries of one shard and decides what goes (the policy is described there);
//! - `index` finds an entry by its key's hash;
//! - `held` follows a block's memory to those who read it when it has left;
//! - `flight` sees to it that a block is loaded once when several ask for it at the same time.
//!
//! Promises: a block is returned only for the key it was put in under; the bytes held, overhead included, never
//! exceed the capacity, but for pinned ones after it was lowered; an empty cache costs some 25 kilobytes whatever its capacity. A hit takes a shard's lock shared and
//! writes at most one byte of the entry. `docs/decisions/0004-block-cache.md` says why it is built so.

mod flight;
mod held;
mod index;
mod shard;

use crate::budget::{MemoryKind, MemoryLedger};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use basalt_fs::{Bytes, Result};
use flight::{Flights, Seat};
use held::Held;
use shard::Shard;
use std::sync::Arc;

/// Which block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey {
    /// The file's random id, kept in its header and in the manifest.
    pub file: u128,
    /// The block's offset in the file.
    pub offset: u64,
}

impl CacheKey {
    /// All 64 bits depend on all of the key. Ids are random, offsets are not: they are spread by a multiplication.
    fn hash(&self) -> u64 {
        let file = (self.file as u64) ^ ((self.file >> 64) as u64).rotate_left(29);
        let mut h = file ^ self.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h = (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        h = (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        h ^ (h >> 32)
    }
}

/// How dearly a block is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePriority {
    /// Index and filter: evicted after data.
    High,
    /// Data.
    Normal,
    /// Read once by a scan or a compaction: first to go.
    Low,
}

/// Counters and sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that found the block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Blocks put in.
    pub inserts: u64,
    /// Blocks dropped for room.
    pub evictions: u64,
    /// Bytes held now, overhead included.
    pub used: u64,
    /// Bytes of High entries.
    pub used_high: u64,
    /// Bytes of those that are pinned. Their use counts as no lookup: nobody has to look for them.
    pub pinned: u64,
    /// The budget in bytes.
    pub capacity: u64,
}

/// Who reads this part of the capacity at one go had better leave the cache alone.
const SWEEPING_PART: u64 = 4;

/// Shards there can be. How many are in use follows from the capacity.
const MAX_SHARDS: usize = 64;
/// A shard has at least this many bytes, so that whole filters and large blocks fit in one.
const SHARD_BYTES: u64 = 8 << 20;
/// [`BlockCache::takes`] blocks up to this part of a shard.
const LARGEST_PART: u64 = 8;
/// Bytes an entry costs beside its block, at worst: itself and a quarter of it for the slab's growth, its share of the index and of
/// the remembered hashes (8 bytes each, at least three of eight places taken), the reference count that [`Bytes`] allocates, and
/// what `held` keeps to follow the memory.
const ENTRY_OVERHEAD: u64 = (shard::ENTRY_BYTES * 5 / 4 + 2 * 8 * 8 / 3 + 40 + held::BYTES) as u64;

/// One shard with what belongs to it; alone on its cache lines.
#[repr(align(128))]
struct Place {
    shard: RwLock<Shard>,
    flights: Flights,
    hits: AtomicU64,
    misses: AtomicU64,
}

// Locks that a scheduler watches are larger.
const _: () = assert!(size_of::<Place>() * MAX_SHARDS <= 32 << 10 || cfg!(feature = "schedules"));

struct Inner {
    places: Box<[Place]>,
    /// Number of shards in use less one. Changes only while every shard is locked, so whoever holds
    /// any shard's lock knows that it stands.
    mask: AtomicUsize,
    capacity: AtomicU64,
    resizing: Mutex<()>,
    ledger: MemoryLedger,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.ledger.narrow_cache_part(self.capacity.load(Relaxed));
    }
}

/// The cache. Cheap to clone.
#[derive(Clone)]
pub struct BlockCache(Arc<Inner>);

fn shards_for(capacity: u64) -> usize {
    let wanted = (capacity / SHARD_BYTES).clamp(1, MAX_SHARDS as u64) as usize;
    // The power of two below: `wanted` is at least 1.
    1 << wanted.ilog2()
}

impl Inner {
    fn place(&self, hash: u64) -> (&Place, usize) {
        let mask = self.mask.load(Relaxed);
        (&self.places[(hash >> 58) as usize & mask], mask)
    }
    fn read(&self, hash: u64) -> (&Place, RwLockReadGuard<'_, Shard>) {
        loop {
            let (place, mask) = self.place(hash);
            let shard = place.shard.read();
            if self.mask.load(Relaxed) == mask {
                return (place, shard);
            }
        }
    }
    fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Shard> {
        loop {
            let (place, mask) = self.place(hash);
            let shard = place.shard.write();
            if self.mask.load(Relaxed) == mask {
                return shard;
            }
        }
    }
}

impl BlockCache {
    /// A cache of `capacity` bytes, its use booked in `ledger` as `MemoryKind::Cache`. 0 caches nothing.
    pub fn new(capacity: u64, ledger: MemoryLedger) -> BlockCache {
        let shards = shards_for(capacity);
        let place = |n: usize| Place {
            shard: RwLock::new(Shard::new(
                if n < shards {
                    capacity / shards as u64
                } else {
                    0
                },
                ledger.reserve(MemoryKind::Cache, 0),
            )),
            flights: Flights::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        ledger.widen_cache_part(capacity);
        BlockCache(Arc::new(Inner {
            places: (0..MAX_SHARDS).map(place).collect(),
            mask: AtomicUsize::new(shards - 1),
            capacity: AtomicU64::new(capacity),
            resizing: Mutex::new(()),
            ledger,
        }))
    }

    /// The block, if it is here. Counts as a use.
    pub fn get(&self, key: CacheKey) -> Option<Bytes> {
        self.with(key, Bytes::clone)
    }

    /// Reads the block where it lies, if it is here; counts as a use. For what takes less time than a reference count that other
    /// threads write too: `read` runs under the shard's lock, so it must be short, and must not ask the cache for anything.
    #[inline]
    pub fn with<R>(&self, key: CacheKey, read: impl FnOnce(&Bytes) -> R) -> Option<R> {
        let hash = key.hash();
        let (place, shard) = self.0.read(hash);
        let found = shard.get(&key, hash).map(read);
        drop(shard);
        let count = if found.is_some() {
            &place.hits
        } else {
            &place.misses
        };
        count.fetch_add(1, Relaxed);
        found
    }

    /// True when the block is here. No use, no hit, no miss.
    pub fn contains(&self, key: CacheKey) -> bool {
        let hash = key.hash();
        self.0.read(hash).1.contains(&key, hash)
    }

    /// True when so many bytes, read one after the other, would put a large part of what the cache has out of it.
    pub fn is_swept_by(&self, bytes: u64) -> bool {
        // Relaxed: beside a change of the capacity either answer will do.
        bytes > self.0.capacity.load(Relaxed) / SWEEPING_PART
    }

    /// True when a block of so many bytes is a small part of the cache: a larger one would cost more blocks their place than it is
    /// worth, and is better not put in.
    pub fn takes(&self, bytes: usize) -> bool {
        let shards = self.0.mask.load(Relaxed) as u64 + 1;
        // Relaxed: beside a change of the capacity either answer will do.
        let shard = self.0.capacity.load(Relaxed) / shards;
        bytes as u64 + ENTRY_OVERHEAD <= shard / LARGEST_PART
    }

    /// Puts a block in; `charge` is the memory it keeps alive. Evicts what is needed; a block larger than a shard is not kept.
    /// A block that is here already is replaced and keeps the higher of both priorities.
    ///
    /// Returns the block: whoever reads it on holds what is returned, so that the ledger knows of its memory when the cache
    /// has let go of it (`MemoryKind::Pinned`).
    pub fn insert(
        &self,
        key: CacheKey,
        block: Bytes,
        charge: usize,
        priority: CachePriority,
    ) -> Bytes {
        let hash = key.hash();
        let charge = charge as u64;
        let block = Held::new(block, charge, &self.0.ledger);
        let bytes = block.bytes().clone();
        let mut evicted = Vec::new();
        self.0.write(hash).insert(
            key,
            hash,
            block,
            charge.saturating_add(ENTRY_OVERHEAD),
            priority,
            &mut evicted,
        );
        // The memory of evicted blocks goes back after the lock is released.
        evicted.into_iter().for_each(Held::let_go);
        bytes
    }

    /// Gets, or loads once and puts in. Whoever asks while another thread loads the same block waits for that load and
    /// shares its result, an error too; an error is not kept. No lock is held while loading. The charge is the block's length.
    pub fn get_or_load(
        &self,
        key: CacheKey,
        priority: CachePriority,
        load: impl FnOnce() -> Result<Bytes>,
    ) -> Result<Bytes> {
        self.get_or_load_charged(key, priority, || {
            let block = load()?;
            let charge = block.len();
            Ok((block, charge))
        })
    }

    /// As [`BlockCache::get_or_load`], for a block that keeps more memory alive than its length: `load` also says how much.
    pub fn get_or_load_charged(
        &self,
        key: CacheKey,
        priority: CachePriority,
        load: impl FnOnce() -> Result<(Bytes, usize)>,
    ) -> Result<Bytes> {
        if let Some(block) = self.get(key) {
            return Ok(block);
        }
        let hash = key.hash();
        // Whatever shards are in use: a change of the capacity must not part those who load from those who ask.
        let flights = &self.0.places[(hash >> 58) as usize].flights;
        loop {
            match flights.board(key) {
                Seat::Pilot(flight) => {
                    // Another load may have landed between the miss and here.
                    let (_, shard) = self.0.read(hash);
                    let found = shard.get(&key, hash).cloned();
                    drop(shard);
                    if let Some(block) = found {
                        flight.land(Ok(block.clone()));
                        return Ok(block);
                    }
                    let result =
                        load().map(|(block, charge)| self.insert(key, block, charge, priority));
                    flight.land(result.clone());
                    return result;
                }
                Seat::Passenger(Some(result)) => return result,
                // That load panicked: try ourselves.
                Seat::Passenger(None) => {}
                // This thread loads the block at this moment, further down its stack.
                Seat::Again => return load().map(|(block, _)| block),
            }
        }
    }

    /// Keeps a High block until [`BlockCache::remove`]: for whoever holds on to what [`BlockCache::get`] or [`BlockCache::insert`]
    /// returned and reads it on without asking again. False when the block is not here, or when enough are pinned already (a quarter of
    /// the budget); it may then leave as any other, and to hold on to it is to hold memory that the cache does not count.
    pub fn pin(&self, key: CacheKey) -> bool {
        let hash = key.hash();
        self.0.write(hash).pin(&key, hash)
    }

    /// Drops one block.
    pub fn remove(&self, key: CacheKey) {
        let hash = key.hash();
        let removed = self.0.write(hash).remove(&key, hash);
        if let Some(block) = removed {
            block.let_go();
        }
    }

    /// A block is found under another key from here on, as much in use as it was. For content that was copied elsewhere on the device and
    /// is asked for there. False when it is not here. One that is under the other key already stays, and this one goes. Whoever asks
    /// for either meanwhile may miss both.
    pub fn rename(&self, from: CacheKey, to: CacheKey) -> bool {
        let entry = self.0.write(from.hash()).release(&from, from.hash(), to);
        let Some(entry) = entry else {
            return false;
        };
        let mut evicted = Vec::new();
        let mut shard = self.0.write(to.hash());
        match shard.contains(&to, to.hash()) {
            true => evicted.push(entry.into_block()),
            false => shard.adopt(entry, &mut evicted),
        }
        drop(shard);
        evicted.into_iter().for_each(Held::let_go);
        true
    }

    /// Changes the budget. Blocks stay as far as they fit.
    pub fn set_capacity(&self, bytes: u64) {
        let inner = &*self.0;
        let _one_at_a_time = inner.resizing.lock();
        let before = inner.capacity.load(Relaxed);
        inner.ledger.widen_cache_part(bytes);
        let mut evicted = Vec::new();
        // Everyone else locks one shard at a time, so the order needs no more care than being fixed.
        let mut shards: Vec<_> = inner.places.iter().map(|p| p.shard.write()).collect();
        let count = shards_for(bytes);
        inner.capacity.store(bytes, Relaxed);
        for (n, shard) in shards.iter_mut().enumerate() {
            let capacity = if n < count { bytes / count as u64 } else { 0 };
            shard.set_capacity(capacity);
        }
        if inner.mask.swap(count - 1, Relaxed) != count - 1 {
            let entries: Vec<_> = shards.iter_mut().flat_map(|s| s.take_all()).collect();
            for entry in entries {
                let n = (entry.hash() >> 58) as usize & (count - 1);
                shards[n].adopt(entry, &mut evicted);
            }
        }
        for shard in &mut shards {
            shard.shrink(&mut evicted);
        }
        drop(shards);
        inner.ledger.narrow_cache_part(before);
        evicted.into_iter().for_each(Held::let_go);
    }

    /// Counters and sizes.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            capacity: self.0.capacity.load(Relaxed),
            ..CacheStats::default()
        };
        for place in &self.0.places {
            stats.hits += place.hits.load(Relaxed);
            stats.misses += place.misses.load(Relaxed);
            place.shard.read().add_to(&mut stats);
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files whose ids fold to the same half of the hash: their blocks at one offset have one hash, one shard and
    /// one place in the index. A lookup that compared the hash and the offset alone returned the block of the other
    /// file.
    #[test]
    fn keys_with_one_hash_are_told_apart_by_their_file() {
        let cache = BlockCache::new(1 << 20, MemoryLedger::new(1 << 30));
        let offset = 8192;
        let [one, two] = [0x1234, (0x1234 ^ 1u128.rotate_left(29)) | 1 << 64]
            .map(|file| CacheKey { file, offset });
        assert_ne!(one, two);
        assert_eq!(one.hash(), two.hash(), "ids for another hash function");
        let put = |key, byte| {
            cache.insert(key, Bytes::from(vec![byte; 100]), 100, CachePriority::High);
        };
        put(one, 1);
        assert_eq!(cache.get(two), None);
        assert!(!cache.contains(two) && !cache.pin(two));
        let loaded = cache.get_or_load(two, CachePriority::High, || Ok(vec![2; 100].into()));
        assert_eq!(loaded.unwrap(), vec![2; 100]);
        // Both are there, and each is replaced and removed alone.
        let found = |key| cache.get(key).map(|block| block[0]);
        assert_eq!((found(one), found(two)), (Some(1), Some(2)));
        put(two, 3);
        assert_eq!((found(one), found(two)), (Some(1), Some(3)));
        cache.remove(one);
        assert_eq!((found(one), found(two)), (None, Some(3)));
    }
}
