//! ArkDB: a tree of pages with delta pages, on append-only streams.
//!
//! This crate has the storage tier: pages, the page mapping table, user checkpoints,
//! compactions, garbage collection, system checkpoints and recovery. The memory tier is that of the
//! crate `lsm` (decision 0044).
//!
//! | module | what it has |
//! |---|---|
//! | `entries` | entries as the memory tier passes them |
//! | `options`, `stats` | settings; statistics |
//! | `page_id`, `page` | ids of pages; pages and their entries |
//! | `mapping`, `usage` | which pages a page id stands for; what is in use of each extent |
//! | `write_counters` | counters of what was written |
//! | `system_log` | system transactions and system checkpoints, encoded |
//! | `storage` | the tables of an open tree, commits of system transactions, writers of pages |
//! | `page_reads` | reads of many pages at once |
//! | `page_merge` | the merge of whole pages, for compactions and garbage collections |
//! | `cursor` | reads |
//! | `user_checkpoint`, `compaction`, `collection`, `recovery` | the ways of changing the tree |
//! | `mapping_limit`, `usage_limit` | limits of the memory of tables |
//! | `inspect` | the pages of a tree one by one, for tools, and the check of all |
//! | `explain` | what a lookup of a key visits, and why |
//! | `salvage` | what can be read of a damaged tree |
//! | `page_tree` | the interface of the storage tier |
//! | `lock_order` | the order of all locks, for tests under the scheduler |
//!
//! A module depends only on modules above it in this table.

// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the
// ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

mod checkpoint_lock;
mod cold_leaves;
mod collection;
mod compaction;
mod cursor;
mod due_pages;
mod entries;
mod erasure;
mod explain;
mod features;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod inspect;
mod leaf_merges;
mod leaf_pages;
#[cfg(feature = "schedules")]
mod lock_order;
mod maintenance_lock;
mod mapping;
mod mapping_limit;
mod options;
mod page;
mod page_filter;
mod page_format;
mod page_id;
mod page_merge;
mod page_reads;
mod page_source;
mod page_tree;
mod paid_leaves;
mod path;
mod recovery;
mod release_queue;
mod salvage;
mod scan_ahead;
mod stats;
mod storage;
mod system_log;
#[cfg(test)]
mod tests;
mod underived;
mod usage;
mod usage_limit;
mod user_checkpoint;
mod write_counters;

#[cfg(feature = "schedules")]
pub use basalt_log::LOCK_ORDER as LOG_LOCK_ORDER;
#[cfg(feature = "schedules")]
pub use basalt_stream::LOCK_ORDER as STREAM_LOCK_ORDER;
pub use entries::{Change, DropObserver, DroppedEntry, EntryDecision, EntryFilter, SortedEntries};
pub use explain::{ExplainedLeaf, ExplainedPage, IndexStep, PageExplanation, PageVerdict};
pub use inspect::{
    InspectedExtent, InspectedNode, InspectedPage, PageContent, PageCounts, PageEntry,
    PagePosition, PageRange,
};
#[cfg(feature = "schedules")]
pub use lock_order::LOCK_ORDER;
pub use options::TreeOptions;
pub use page_tree::{
    EntryCursor, FoundEntry, PageTree, TreeCheck, TreeCopy, TreeCopyReport, TreeIter, TreeSnapshot,
};
pub use salvage::{LostPages, TreeSalvage};
pub use stats::PageTreeStats;
#[cfg(feature = "schedules")]
pub use usage::LOCK_ORDER as USAGE_LOCK_ORDER;
