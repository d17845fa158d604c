//! LavaLog: many logical logs in one store, written through shared physical logs (pageserver 5,
//! lavastore 3.3.1).
//!
//! The modules are in `docs/architecture.md`, from the bottom up.

#![deny(missing_docs)]
// The unit tests of this crate are tests of the ordinary build, without a scheduler's locks.
#![cfg(not(all(test, feature = "schedules")))]

mod append;
mod apply;
mod batch;
mod catalog;
mod checkpoint;
mod copy;
mod counted_deque;
mod counters;
mod engine;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod garbage;
mod gc;
mod index;
mod integrity;
mod iter;
mod log;
mod log_engine;
mod log_ops;
mod lost_edits;
mod lsn_set;
mod mapping;
mod merge;
mod metalog;
mod metalog_compaction;
mod namespace;
mod options;
mod pages;
mod physical;
mod queue;
mod read_ahead;
mod read_many;
mod recovery;
mod request;
mod reserve;
mod reverse_index;
mod stats;
#[cfg(test)]
mod tests;
mod ticket;
mod writer;

pub use batch::{LogBatch, MAX_BATCH_BYTES, MAX_LSN};
pub use copy::{LogCopy, LogCopyReport};
#[cfg(feature = "schedules")]
pub use engine::LOCK_ORDER;
pub use integrity::report::{
    LogLoss, LogRepairReport, LogUnprovenEnd, LogVerifyReport, UnnamedLog,
};
pub use integrity::verify::LogVerification;
pub use iter::LogIter;
pub use log::Log;
pub use log_engine::LogEngine;
pub use options::{Duplicates, LogEngineOptions, LogOptions};
pub use stats::LogEngineStats;
pub use ticket::LogTicket;

pub use basalt_kv::write_options::{Durability, WriteOptions};

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[cfg(test)]
#[test]
fn every_log_engine_test_passes_on_lava() {
    let without_io = [
        "catalog::",
        "fuzzing::",
        "index::",
        "log_ops::",
        "lsn_set::",
        "mapping::",
        "reverse_index::",
        // The golden stores are of files on the simulated disk.
        "tests::formats::",
    ];
    basalt_sim::all_tests_on_lava("every_log_engine_test_passes_on_lava", &without_io);
}
