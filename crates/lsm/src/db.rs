//! The engine: opening, writing, reading, closing.
//!
//! A write goes `store` -> `commit` (group, numbers) -> `log` (one device write, one sync) ->
//! memtables -> visible. Behind it `flush` writes sealed memtables out and `compact` keeps the tree
//! in shape; both install their result through `tree`. A read goes `read` -> `view` (memtables,
//! then tables). `open` is recovery, and `integrity` verifies and repairs a closed store.

mod admission;
mod approximate_sizes;
mod back_pressure;
mod background;
mod backlog;
mod blob_files;
mod blob_state;
mod cache_warming;
mod checkpoint;
mod close;
mod collect_stats;
mod commit;
mod compact;
mod compact_range;
mod context;
mod counters;
mod cursor;
mod engine;
mod events;
mod explain;
mod families;
mod family_changes;
mod family_seal;
mod flush;
mod flush_values;
mod gc;
mod health;
mod idle_work;
mod ingest;
mod integrity;
mod level_stats;
mod log;
mod log_position;
mod lost_edits;
mod manual_calls;
mod memory_relief;
mod memtable_set;
mod merge_get;
mod metrics;
mod multi_get;
mod open;
mod page_changes;
mod page_flush;
mod page_garbage;
mod page_inspector;
mod page_iter;
mod page_maintenance;
mod page_values;
mod page_versions;
mod pages;
mod passive;
mod persistence;
mod persistence_points;
mod precondition;
mod read;
mod read_only;
mod relocation_stats;
mod scheduler;
mod space_bound;
mod stall_cause;
mod stats;
mod store;
mod store_dir;
mod store_files;
mod striped_view;
#[cfg(test)]
mod tests;
mod throttle;
mod ticket;
mod tree;
mod view;
mod write_path;

pub use crate::version::EngineKind;
pub use approximate_sizes::UserRange;
pub use basalt_kv::family::Family;
pub use basalt_kv::snapshot::Snapshot;
pub use basalt_tree::{
    ExplainedLeaf, ExplainedPage, IndexStep, InspectedExtent, InspectedNode, InspectedPage,
    PageContent, PageCounts, PageEntry, PageExplanation, PagePosition, PageRange, PageVerdict,
    TreeCheck,
};
pub use blob_files::{BlobFamilyStats, BlobFileStats};
pub use checkpoint::{CheckpointOptions, CheckpointPart, CheckpointReport};
pub use compact_range::{Bottommost, CompactOptions, OnProgress};
pub use cursor::Iter;
pub use explain::{
    ExplainedMemtable, ExplainedTable, ExplainedVersion, ReadExplanation, TableVerdict,
};
pub use ingest::{Prepared, TableWriter};
pub use integrity::check::VerifyReport;
pub use integrity::report::{KeyRange, Loss, RepairReport};
pub use log_position::Logged;
pub use manual_calls::{CompactControl, CompactProgress};
pub use page_inspector::PageInspector;
pub use passive::calls::PersistenceWatch;
pub use passive::replay::{Replay, Replayed};
pub use persistence::{FamilyPoint, PassiveStats, PersistencePoints};
pub use precondition::{MAX_PRECONDITIONS, Precondition};
pub use stats::{
    BlobCompressionStats, BlobReadStats, BlobShare, BlobStats, FamilyStats, LevelStats,
    PageTreeStats, RangeSize, ReadOnlyReason, StallStats, Stats,
};
pub use store::{Db, ValueMeta, ValueWithExpiry};
pub use ticket::Ticket;

#[cfg(feature = "schedules")]
#[doc(hidden)]
pub use engine::LOCK_ORDER;
