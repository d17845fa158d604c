//! LavaKV: Basalt's log-structured merge tree.
//!
//! Rooms, in the order a write meets them: [`batch`] (what is written), `db` (commit groups, reads, the
//! engine's life), `wal` (the log that makes it durable), `memtable` (where readers find it), `table` (sorted
//! files), `version` (which files make up the tree, and the manifest that remembers it), `compaction` (merging
//! tables in the background), [`blob`] (values kept apart from them), `iter` (merging readers). `ranges` is range tombstones, wherever they
//! are kept; `key`, `options`, [`merge`] (operators) and [`prefix`] are what all of them share.

#![deny(missing_docs)]
// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

pub mod batch;
pub mod blob;
mod codec;
pub mod compaction;
pub mod db;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hexdump;
pub mod iter;
pub mod key;
pub mod listener;
pub mod memtable;
pub mod merge;
pub mod options;
pub mod prefix;
mod ranges;
mod sink;
pub mod table;
pub mod version;
pub mod wal;

pub use basalt_env::Env;
pub use basalt_fs::{Bytes, Error, ErrorKind, Reach, Result};
pub use batch::WriteBatch;
pub use db::{Db, Family, Iter, Snapshot, Ticket};
pub use key::{Comparator, Kind, SeqNo};
pub use listener::{Event, EventListener};
pub use merge::{MergeOperator, MergeRefusal};
pub use options::{
    CompactionFilter, Compression, FamilyOptions, FilterContext, FilterDecision, KeyDecision,
    Options, ReadOptions, WriteOptions,
};
pub use prefix::{PrefixExtractor, Prefixes};

/// Longest user key in bytes.
pub const MAX_KEY_LEN: usize = 64 * 1024;

/// Longest value in bytes.
pub const MAX_VALUE_LEN: usize = 1 << 30;

/// The filesystem in user space keeps the same contract as the simulated disk, and all of these tests.
#[cfg(test)]
#[test]
fn every_test_again_on_lava() {
    basalt_sim::all_tests_on_lava("every_test_again_on_lava", &[]);
}
