//! ArkDB: a tree of pages with delta pages, on append-only streams.
//!
//! This crate has the storage tier: pages, the page mapping table, user checkpoints,
//! compactions, garbage collection, system checkpoints and recovery. The memory tier is that of the
//! crate `lsm` (decision 0044).
//!
//! | module | what it has |
//! |---|---|
//! | `entries`, `options`, `stats` | entries that the memory tier passes; settings; statistics |
//! | `features` | bits of the format's features |
//! | `page_id`, `page` | ids of pages; the entries of a page in memory |
//! | `page_filter`, `page_format` | Bloom filters of delta pages; pages as they are stored |
//! | `mapping`, `usage` | which pages a page id stands for; what is in use of each extent |
//! | `underived` | extents whose ranges of bytes in use could not be derived |
//! | `write_counters` | counters of what was written |
//! | `cold_leaves`, `paid_leaves` | which cold leaves, and leaves paid by readers, are merged |
//! | `release_queue` | garbage pages whose space is not released yet |
//! | `checkpoint_lock`, `maintenance_lock` | which changes of a tree may run concurrently |
//! | `system_log` | system transactions and system checkpoints, encoded |
//! | `storage` | the tables of an open tree, commits of system transactions, writers of pages |
//! | `recovery` | the opening of a tree |
//! | `path` | the path from the root to a leaf |
//! | `page_reads` | reads of pages, and of heads and blocks of pages |
//! | `leaf_pages` | all pages with entries of a leaf |
//! | `page_source`, `scan_ahead` | the entries of one page in a read; read-ahead of long scans |
//! | `cursor` | lookups and cursors |
//! | `page_merge` | the merge of whole pages, for compactions and garbage collections |
//! | `erasure` | erasures of extents, and releases of garbage pages |
//! | `compaction` | the compaction of one index page and its leaves |
//! | `due_pages` | compactions of what is due, and of ranges of keys |
//! | `leaf_merges` | rewrites of pages that keep their places in the page mapping table |
//! | `collection` | garbage collection, and merges of cold and paid leaves |
//! | `user_checkpoint` | writes of the memory tier |
//! | `mapping_limit`, `usage_limit` | limits of the memory of tables |
//! | `inspect` | the pages of a tree one by one, for tools, and the check of all |
//! | `explain` | what a lookup of a key visits, and why |
//! | `salvage` | what can be read of a damaged tree |
//! | `page_tree` | the interface of the storage tier |
//! | `fuzzing` | the decoders as targets of mutators, for tests |
//! | `lock_order` | the order of all locks, for tests under the scheduler |
//!
//! A module uses types and functions of modules above it or in its row of this table only.
//! Methods of `storage::Storage` are defined in the module of their subject, so a call of one may
//! also lead to a module below.

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
