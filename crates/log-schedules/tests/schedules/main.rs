//! A model of the log engine, run under thousands of interleavings that a scheduler chooses: the
//! two queues, files that are left and prepared, checkpoints, garbage collections, readers, and a
//! power cut. `docs/testing/schedules.md` says how these packages are built, and what they cannot
//! see.

mod logs;

use basalt_env::sync::explore;
use basalt_env::sync::lock_log::{self, CrateLocks};

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// The locks of all crates that the model runs, from top to bottom. `records` has no locks.
const CRATES: [CrateLocks; 3] = [
    basalt_log_schedules::LOCK_ORDER,
    basalt_kv::snapshot::LOCK_ORDER,
    basalt_env::lock_order::LOCK_ORDER,
];

/// Runs one case under many schedules, and checks their locks.
fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    explore::case_with_locks(seed, &CRATES, model);
}

/// Returns the locks of the log engine that no schedule of this thread has taken.
fn locks_not_taken() -> Vec<&'static str> {
    let taken = lock_log::names();
    let own = basalt_log_schedules::LOCK_ORDER;
    let all = own.order.iter().chain(own.leaves);
    all.copied().filter(|lock| !taken.contains(lock)).collect()
}
