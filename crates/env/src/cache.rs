//! The sharded block cache, one for all engines of an [`crate::Env`].
//!
//! A key is a file's random 128-bit id and an offset, so recycled space and reused names can never
//! return another file's block. Entries are [`Bytes`]: a hit hands out a reference count, not a copy.

use crate::budget::MemoryLedger;
use basalt_fs::{Bytes, Result};

/// Which block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey {
    /// The file's random id, kept in its header and in the manifest.
    pub file: u128,
    /// The block's offset in the file.
    pub offset: u64,
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
    /// The budget in bytes.
    pub capacity: u64,
}

/// The cache. Cheap to clone.
#[derive(Clone)]
pub struct BlockCache(std::sync::Arc<()>);

impl BlockCache {
    /// A cache of `capacity` bytes, its use booked in `ledger` as `MemoryKind::Cache`. 0 caches nothing.
    pub fn new(capacity: u64, ledger: MemoryLedger) -> BlockCache {
        let _ = (capacity, ledger);
        todo!()
    }
    /// The block, if it is here. Counts as a use.
    pub fn get(&self, key: CacheKey) -> Option<Bytes> {
        let _ = key;
        todo!()
    }
    /// Puts a block in; `charge` is the memory it keeps alive. Evicts what is needed; a block larger than a shard is not kept.
    pub fn insert(&self, key: CacheKey, block: Bytes, charge: usize, priority: CachePriority) {
        let _ = (key, block, charge, priority);
        todo!()
    }
    /// Gets, or loads once and puts in.
    pub fn get_or_load(
        &self,
        key: CacheKey,
        priority: CachePriority,
        load: impl FnOnce() -> Result<Bytes>,
    ) -> Result<Bytes> {
        let _ = (key, priority, load);
        todo!()
    }
    /// Drops one block.
    pub fn remove(&self, key: CacheKey) {
        let _ = key;
        todo!()
    }
    /// Changes the budget.
    pub fn set_capacity(&self, bytes: u64) {
        let _ = bytes;
        todo!()
    }
    /// Counters and sizes.
    pub fn stats(&self) -> CacheStats {
        todo!()
    }
}
