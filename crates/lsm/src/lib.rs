//! LavaKV: Basalt's log-structured merge tree.
//!
//! | module | what it has |
//! |---|---|
//! | [`options`], [`listener`] | settings; events |
//! | [`memtable`] | entries in memory |
//! | [`version`] | which files make up the tree, and the manifest's edits |
//! | [`iter`] | cursors merged into one for readers |
//! | `compaction` | merging tables in the background |
//! | [`db`] | the engine: commit groups, reads, background work, recovery, check, repair |
//!
//! Programs use the crate `basalt`, which names the parts of this crate that they need.
//!
//! A module depends only on modules above it in this table, and on the crates below this one:
//! `basalt-kv` has keys, batches and merge operators, `basalt-records` files of records,
//! `basalt-table` sorted tables, `basalt-blob` files of separated values, `basalt-tree` trees of
//! pages. The paths of a write and of a read are in `docs/architecture.md`.

#![deny(missing_docs)]
// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the
// ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

pub(crate) mod compaction;
pub mod db;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod iter;
pub mod listener;
pub mod memtable;
pub mod options;
pub mod version;

pub use basalt_env::Env;
pub use basalt_fs::{Bytes, Error, ErrorKind, Reach, Result};
pub use basalt_kv::batch::WriteBatch;
pub use basalt_kv::key::{Comparator, Kind, SeqNo};
pub use basalt_kv::limits::{MAX_KEY_LEN, MAX_VALUE_LEN};
pub use basalt_kv::merge::{MergeOperator, MergeRefusal};
pub use basalt_kv::prefix::{PrefixExtractor, Prefixes};
pub use db::{Db, Family, Iter, Snapshot, Ticket};
pub use listener::{Event, EventListener};
pub use options::{
    CompactionFilter, Compression, Durability, FamilyOptions, FilterContext, FilterDecision,
    KeyDecision, LogMode, Options, OwnerLog, PassiveOptions, ReadOptions, TreeOptions,
    WriteOptions,
};

/// Tests of this crate that touch no disk: to run them on another one proves nothing.
#[cfg(test)]
const TESTS_WITHOUT_IO: &[&str] = &[
    "compaction::tests::picker::",
    "db::write_path::group_wait::",
    "db::back_pressure::space_amp::",
    "fuzzing::",
    "iter::scan_history::",
    "iter::tests",
    "memtable::",
    "version::catalog::blob_table::",
    "version::edit::",
    "version::file_map::",
];

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// LavaFS keeps the same contract as the simulated disk, and all of these tests.
#[cfg(test)]
#[test]
fn every_engine_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_engine_test_passes_on_lava", TESTS_WITHOUT_IO);
}
