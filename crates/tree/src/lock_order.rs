//! The order of this crate's locks, for tests under the scheduler: `docs/testing/schedules.md`.

use basalt_env::sync::lock_log::CrateLocks;

/// All locks of this crate but `Storage::usage`, which `usage` lists.
///
/// | lock | what it serialises | held over |
/// |---|---|---|
/// | `CheckpointLock::running` | user checkpoints that must run alone | a user checkpoint |
/// | `MaintenanceLock::running` | changes of base pages (compactions share it) | one transaction |
/// | `MaintenanceLock::structure` | changes of index pages | I/O of a few pages and a commit |
/// | `Storage::erasing` | erasures of extents, and releases of garbage pages | calls of a stream |
/// | `Storage::commit` | commits of system transactions, system checkpoints | one record's sync |
pub const LOCK_ORDER: CrateLocks = CrateLocks {
    order: &[
        "CheckpointLock::running",
        "MaintenanceLock::running",
        "MaintenanceLock::structure",
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
        "MaintenanceLock::claimed",
        "Storage::releases",
        "Storage::underived",
    ],
};
