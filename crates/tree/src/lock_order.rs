//! The order of this crate's locks, for tests under the scheduler: `docs/testing/schedules.md`.

use basalt_env::sync::lock_log::CrateLocks;

/// All locks of this crate but `Storage::usage`, which `usage` lists.
///
/// | lock | what it serialises | held over |
/// |---|---|---|
/// | `CheckpointLock::running` | user checkpoints that must run alone | a user checkpoint |
/// | `Storage::maintenance` | changes of base pages | I/O of a transaction or a walk of the index |
/// | `Storage::erasing` | erasures of extents, and releases of garbage pages | calls of a stream |
/// | `Storage::commit` | commits of system transactions, system checkpoints | one record's sync |
pub const LOCK_ORDER: CrateLocks = CrateLocks {
    order: &[
        "CheckpointLock::running",
        "Storage::maintenance",
        "Storage::erasing",
        "Storage::commit",
    ],
    leaves: &[
        "Storage::view",
        "Storage::mapping_memory",
        "Storage::usage_memory",
        "MappingTable::shard",
        "ColdLeaves::budget",
        "PaidLeaves::waiting",
        "Storage::releases",
    ],
};
