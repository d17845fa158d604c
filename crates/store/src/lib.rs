//! One store with several engines: tables of [`Db`], and logs of [`LogEngine`], side by side in one
//! directory.
//!
//! The directory of a store is that of its tables. Their manifest is the manifest of the store, and
//! says which other engines the store has. Each of these has its files in a directory of its own in
//! the store's directory: logs in `logs`. So a store without logs is what it always was, and a
//! store with logs is refused by versions that do not know them.
//!
//! The lock of the store's directory keeps every other store out. The log engine has a lock in its
//! own directory, too, for programs that open that one alone. The engines share all that an
//! environment has: memory from one ledger, time from one pool of threads, blocks from one cache.
//! One call checks, repairs, copies, measures or closes all of them.
//! Reasons: `docs/decisions/0039-one-store.md`.

#![deny(missing_docs)]

mod checkpoint;
mod integrity;
mod options;
mod passive;
mod store;
#[cfg(test)]
mod tests;

pub use checkpoint::StoreCheckpointReport;
pub use integrity::{StoreRepairReport, StoreVerifyReport};
pub use options::StoreOptions;
pub use passive::ReplayRecord;
pub use store::{Store, StoreStats};

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[cfg(test)]
#[test]
fn every_store_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_store_test_passes_on_lava", &[]);
}
