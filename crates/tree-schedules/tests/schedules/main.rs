//! Models of the tree engine, run under thousands of interleavings that a scheduler chooses:
//! commits beside maintenance, user checkpoints with delta pages of index pages, the release of
//! snapshots, system checkpoints and copies, and writes that the memory tier confirms.
//! `docs/testing/schedules.md` says how these packages are built, and what they cannot see.

mod commits;
mod copies;
mod history;
mod index_deltas;
mod snapshots;
mod unconfirmed;
mod world;

use basalt_env::sync::explore;
use basalt_env::sync::lock_log::{self, CrateLocks};

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// The locks of all crates that the models run, from top to bottom.
const CRATES: [CrateLocks; 6] = [
    basalt_tree_schedules::LOCK_ORDER,
    basalt_stream::LOCK_ORDER,
    basalt_log::LOCK_ORDER,
    basalt_tree_schedules::USAGE_LOCK_ORDER,
    basalt_kv::snapshot::LOCK_ORDER,
    basalt_env::lock_order::LOCK_ORDER,
];

/// Runs one case under many schedules, and checks their locks.
fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    explore::case_with_locks(seed, &CRATES, model);
}

/// Returns the locks of the crates `tree` and `stream` that no schedule of this thread has taken.
fn locks_not_taken() -> Vec<&'static str> {
    let taken = lock_log::names();
    let own = [&CRATES[..2], &CRATES[3..4]].concat();
    let listed = own.iter().flat_map(|c| c.order.iter().chain(c.leaves));
    listed
        .copied()
        .filter(|lock| !taken.contains(lock))
        .collect()
}
