//! The order of this crate's locks, for tests under the scheduler: `docs/testing/schedules.md`.
//!
//! A thread that holds a lock of this crate takes no lock of a crate above. The functions that
//! other crates pass to it (jobs, reader functions of metrics, holders of memory) are called and
//! dropped under none of its locks. One exception is the function of
//! [`BlockCache::with`](crate::BlockCache::with), which takes no lock.

use crate::sync::lock_log::CrateLocks;

/// All locks of this crate.
///
/// | lock | what it serialises | held over |
/// |---|---|---|
/// | `CacheState::resizing` | changes of the cache's capacity | all shards |
/// | `Shard`, one for each shard | the blocks of the shard; a change of the capacity takes all | |
pub const LOCK_ORDER: CrateLocks = CrateLocks {
    order: &["CacheState::resizing", "shard::Shard[]"],
    leaves: &[
        // The cache: the loads of a shard, and the progress of one.
        "single_flight::Load",
        "single_flight::LoadProgress",
        // The pool of jobs, and the threads that wait for a notification of it.
        "jobs::PoolState",
        "JobPool::wait_lock",
        // The limit of background I/O, and its turns beside foreground I/O.
        "budget::Bucket",
        "Limiter::asked",
        "io_priority::TurnState",
        // The registry of metrics.
        "metrics::SeriesMaps",
        "source::SourceList",
        "group::GroupList",
        // The stores that can free memory.
        "relief::HolderSlot",
        // A file's writing thread, and what it is given.
        "write_behind::WriteBehindState",
        "file_writer::Appender",
        "StopSignal::lock",
    ],
};
