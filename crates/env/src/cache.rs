//! The sharded block cache, one for all engines of an [`crate::Env`].
//!
//! A key is a file's random 128-bit id and an offset, so recycled space and reused names can never
//! return another file's block. Entries are [`Bytes`]: a hit returns a reference count, not a copy.
//!
//! - `shard` holds the entries of one shard and decides what to evict (it describes the policy);
//! - `index` finds an entry by its key's hash;
//! - `cached_block` follows a block's memory to its readers after the block was evicted;
//! - `single_flight` loads a block once if several threads ask for it at the same time.
//!
//! Promises: a block is returned only for the key under which it was inserted. The bytes of all
//! blocks, overhead included, never exceed the capacity, except pinned blocks after the capacity
//! was lowered. An empty cache costs some 25 kilobytes whatever its capacity. A hit takes a shard's
//! lock shared and writes at most one byte of the entry. `docs/decisions/0004-block-cache.md` gives
//! the reasons.

mod cached_block;
mod index;
mod shard;
mod single_flight;

use crate::budget::{MemoryKind, MemoryLedger};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, named};
use basalt_fs::{Bytes, Result};
use cached_block::CachedBlock;
use shard::Shard;
use single_flight::{LoadRole, Loads};
use std::sync::Arc;

/// The key of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey {
    /// The file's random id, which is in its header and in the manifest.
    pub file: u128,
    /// The block's offset in the file.
    pub offset: u64,
}

impl CacheKey {
    /// Returns a hash whose 64 bits each depend on all of the key. Ids are random, offsets are not:
    /// a multiplication spreads them.
    fn hash(&self) -> u64 {
        let file = (self.file as u64) ^ ((self.file >> 64) as u64).rotate_left(29);
        let mut h = file ^ self.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h = (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        h = (h ^ (h >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        h ^ (h >> 32)
    }
}

/// The priority of keeping a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePriority {
    /// Index and filter blocks, evicted after data.
    High,
    /// Data blocks.
    Normal,
    /// Blocks that a scan or a compaction reads once. They are evicted first.
    Low,
}

/// Counters and sizes of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Lookups that found the block.
    pub hits: u64,
    /// Lookups that did not find the block.
    pub misses: u64,
    /// Blocks inserted.
    pub inserts: u64,
    /// Blocks evicted for room.
    pub evictions: u64,
    /// Bytes of all blocks now, overhead included.
    pub used: u64,
    /// Bytes of High entries.
    pub used_high: u64,
    /// Bytes of pinned entries. Reading them counts as no lookup, because their readers hold them.
    pub pinned: u64,
    /// The capacity in bytes.
    pub capacity: u64,
}

/// A scan of more than one part in this many of the capacity should bypass the cache.
const SWEEPING_PART: u64 = 4;

/// Most shards of a cache. The number in use follows from the capacity.
const MAX_SHARDS: usize = 64;
/// Least bytes of a shard, so that whole filters and large blocks fit in one.
const SHARD_BYTES: u64 = 8 << 20;
/// [`BlockCache::takes`] accepts blocks of up to one part in this many of a shard.
const LARGEST_PART: u64 = 8;
/// Most bytes that an entry costs beside its block. They are the entry, a quarter of it for the
/// slab's growth, its share of the index and of the ghosts (8 bytes each, at least three of eight
/// places taken), the reference count that [`Bytes`] allocates, and what `cached_block` keeps to
/// follow the memory.
const ENTRY_OVERHEAD: u64 =
    (shard::ENTRY_BYTES * 5 / 4 + 2 * 8 * 8 / 3 + 40 + cached_block::BYTES) as u64;

/// One shard with its loads and counters, alone on its cache lines.
#[repr(align(128))]
struct ShardCell {
    shard: RwLock<Shard>,
    loads: Loads,
    hits: AtomicU64,
    misses: AtomicU64,
}

// The locks under a test's scheduler are larger.
const _: () =
    assert!(size_of::<ShardCell>() * MAX_SHARDS <= 32 << 10 || cfg!(feature = "schedules"));

/// The state that all clones of a [`BlockCache`] share.
struct CacheState {
    /// All shards, also those that are not in use.
    cells: Box<[ShardCell]>,
    /// Number of shards in use, less one. It changes only while every shard is locked, so it is
    /// stable under the lock of any shard.
    mask: AtomicUsize,
    /// Capacity of the cache, in bytes.
    capacity: AtomicU64,
    /// Held while the capacity changes.
    resizing: Mutex<()>,
    ledger: MemoryLedger,
}

impl Drop for CacheState {
    fn drop(&mut self) {
        self.ledger.narrow_cache_part(self.capacity.load(Relaxed));
    }
}

/// The block cache. Cloning is cheap.
#[derive(Clone)]
pub struct BlockCache(Arc<CacheState>);

fn shards_for(capacity: u64) -> usize {
    let wanted = (capacity / SHARD_BYTES).clamp(1, MAX_SHARDS as u64) as usize;
    // `wanted` is at least 1, so the power of two below it exists.
    1 << wanted.ilog2()
}

impl CacheState {
    fn cell(&self, hash: u64) -> (&ShardCell, usize) {
        let mask = self.mask.load(Relaxed);
        (&self.cells[(hash >> 58) as usize & mask], mask)
    }
    fn read(&self, hash: u64) -> (&ShardCell, RwLockReadGuard<'_, Shard>) {
        loop {
            let (cell, mask) = self.cell(hash);
            let shard = cell.shard.read();
            if self.mask.load(Relaxed) == mask {
                return (cell, shard);
            }
        }
    }
    fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Shard> {
        loop {
            let (cell, mask) = self.cell(hash);
            let shard = cell.shard.write();
            if self.mask.load(Relaxed) == mask {
                return shard;
            }
        }
    }
}

impl BlockCache {
    /// Returns a cache of `capacity` bytes. Its bytes are reserved in `ledger` as
    /// `MemoryKind::Cache`. A cache of 0 bytes keeps nothing.
    pub fn new(capacity: u64, ledger: MemoryLedger) -> BlockCache {
        let shards = shards_for(capacity);
        let cell = |n: usize| ShardCell {
            shard: RwLock::new(Shard::new(
                if n < shards {
                    capacity / shards as u64
                } else {
                    0
                },
                ledger.reserve(MemoryKind::Cache, 0),
            )),
            loads: Loads::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        ledger.widen_cache_part(capacity);
        BlockCache(Arc::new(CacheState {
            cells: (0..MAX_SHARDS).map(cell).collect(),
            mask: AtomicUsize::new(shards - 1),
            capacity: AtomicU64::new(capacity),
            resizing: named("CacheState::resizing", Mutex::new(())),
            ledger,
        }))
    }

    /// Returns the block if the cache has it. Counts as a use.
    pub fn get(&self, key: CacheKey) -> Option<Bytes> {
        self.with(key, Bytes::clone)
    }

    /// Calls `read` with the block, if the cache has it, and counts a use. It is for reads that
    /// take less time than changing a reference count that other threads also write. `read` runs
    /// under the shard's lock, so it must be short, and must not call the cache.
    #[inline]
    pub fn with<R>(&self, key: CacheKey, read: impl FnOnce(&Bytes) -> R) -> Option<R> {
        let hash = key.hash();
        let (cell, shard) = self.0.read(hash);
        let found = shard.get(&key, hash).map(read);
        drop(shard);
        let count = if found.is_some() {
            &cell.hits
        } else {
            &cell.misses
        };
        count.fetch_add(1, Relaxed);
        found
    }

    /// Returns true if the cache has the block. Counts as no use, no hit and no miss.
    pub fn contains(&self, key: CacheKey) -> bool {
        let hash = key.hash();
        self.0.read(hash).1.contains(&key, hash)
    }

    /// Returns true if reading this many bytes in sequence would evict a large part of the cache.
    pub fn is_swept_by(&self, bytes: u64) -> bool {
        // Relaxed: beside a change of the capacity, either answer is right.
        bytes > self.0.capacity.load(Relaxed) / SWEEPING_PART
    }

    /// Returns true if a block under a key would evict no other one. The answer may be old when it
    /// returns.
    pub fn has_room(&self, key: CacheKey, charge: usize) -> bool {
        self.0.read(key.hash()).1.has_room(charge as u64)
    }

    /// Returns true if a block of this many bytes is a small part of the cache. A larger block
    /// would evict more blocks than it is worth, and is better not inserted.
    pub fn takes(&self, bytes: usize) -> bool {
        let shards = self.0.mask.load(Relaxed) as u64 + 1;
        // Relaxed: beside a change of the capacity, either answer is right.
        let shard = self.0.capacity.load(Relaxed) / shards;
        bytes as u64 + ENTRY_OVERHEAD <= shard / LARGEST_PART
    }

    /// Inserts a block, and evicts others for room. `charge` is the bytes of memory that the block
    /// keeps alive. A block larger than a shard is not kept. A block that is present already is
    /// replaced and keeps the higher of both priorities.
    ///
    /// Returns the block. A reader that goes on reading must hold the returned value, so that the
    /// ledger counts its memory after the eviction (`MemoryKind::Pinned`).
    pub fn insert(
        &self,
        key: CacheKey,
        block: Bytes,
        charge: usize,
        priority: CachePriority,
    ) -> Bytes {
        let hash = key.hash();
        let charge = charge as u64;
        let block = CachedBlock::new(block, charge, &self.0.ledger);
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
        // The memory of evicted blocks is released after the lock.
        evicted.into_iter().for_each(CachedBlock::release);
        bytes
    }

    /// Returns the block, or loads it once and inserts it. If another thread is loading the same
    /// block, the call waits for that load and shares its result, also an error. An error is not
    /// kept. No lock is held while loading. The charge is the block's length.
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

    /// Returns or loads a block as [`BlockCache::get_or_load`] does, for a block that keeps more
    /// memory alive than its length. `load` also returns the charge in bytes.
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
        // The loads do not depend on the shards in use: a change of the capacity must not separate
        // a loading thread from the waiting ones.
        let loads = &self.0.cells[(hash >> 58) as usize].loads;
        loop {
            match loads.join(key) {
                LoadRole::Loader(load_guard) => {
                    // Another load may have ended between the miss and this point.
                    let (_, shard) = self.0.read(hash);
                    let found = shard.get(&key, hash).cloned();
                    drop(shard);
                    if let Some(block) = found {
                        load_guard.complete(Ok(block.clone()));
                        return Ok(block);
                    }
                    let result =
                        load().map(|(block, charge)| self.insert(key, block, charge, priority));
                    load_guard.complete(result.clone());
                    return result;
                }
                LoadRole::Waiter(Some(result)) => return result,
                // The other load panicked, so this thread tries again.
                LoadRole::Waiter(None) => {}
                // This thread is loading the block at this moment, further down its stack.
                LoadRole::Reentrant => return load().map(|(block, _)| block),
            }
        }
    }

    /// Keeps a High block until [`BlockCache::remove`]. It is for a reader that holds the bytes of
    /// [`BlockCache::get`] or [`BlockCache::insert`] and reads them without asking the cache again.
    /// Returns false if the cache does not have the block, or if enough blocks are pinned already
    /// (a quarter of the capacity). Then the block may be evicted like any other, and its reader
    /// holds memory that the cache does not count.
    pub fn pin(&self, key: CacheKey) -> bool {
        let hash = key.hash();
        self.0.write(hash).pin(&key, hash)
    }

    /// Drops one block.
    pub fn remove(&self, key: CacheKey) {
        let hash = key.hash();
        let removed = self.0.write(hash).remove(&key, hash);
        if let Some(block) = removed {
            block.release();
        }
    }

    /// Moves a block to another key, with its uses. It is for content that was copied elsewhere on
    /// the device and is read there from now on. Returns false if the cache does not have the
    /// block. A block that has the other key already stays, and this one is dropped. Meanwhile a
    /// lookup of either key may miss.
    pub fn rename(&self, from: CacheKey, to: CacheKey) -> bool {
        let entry = self.0.write(from.hash()).take_entry(&from, from.hash(), to);
        let Some(entry) = entry else {
            return false;
        };
        let mut evicted = Vec::new();
        let mut shard = self.0.write(to.hash());
        match shard.contains(&to, to.hash()) {
            true => evicted.push(entry.into_block()),
            false => shard.insert_entry(entry, &mut evicted),
        }
        drop(shard);
        evicted.into_iter().for_each(CachedBlock::release);
        true
    }

    /// Changes the capacity, in bytes. Blocks stay as far as they fit.
    pub fn set_capacity(&self, bytes: u64) {
        let inner = &*self.0;
        let _one_at_a_time = inner.resizing.lock();
        let before = inner.capacity.load(Relaxed);
        inner.ledger.widen_cache_part(bytes);
        let mut evicted = Vec::new();
        // All other callers lock one shard at a time, so any fixed order is safe.
        let mut shards: Vec<_> = inner.cells.iter().map(|p| p.shard.write()).collect();
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
                shards[n].insert_entry(entry, &mut evicted);
            }
        }
        for shard in &mut shards {
            shard.shrink(&mut evicted);
        }
        drop(shards);
        inner.ledger.narrow_cache_part(before);
        evicted.into_iter().for_each(CachedBlock::release);
    }

    /// Returns counters and sizes.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            capacity: self.0.capacity.load(Relaxed),
            ..CacheStats::default()
        };
        for cell in &self.0.cells {
            stats.hits += cell.hits.load(Relaxed);
            stats.misses += cell.misses.load(Relaxed);
            cell.shard.read().add_to(&mut stats);
        }
        stats
    }
}

#[cfg(test)]
mod tests;
