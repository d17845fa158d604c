//! Models of the modules of `env` where threads meet, each run under many interleavings that a
//! scheduler chooses: `docs/testing/schedules.md`. The model of the block cache is in
//! `lsm-schedules`, with the engine's.

mod background_thread;
mod write_behind;

use basalt_env_schedules::lock_order::LOCK_ORDER;
use basalt_env_schedules::sync::{explore, lock_log};

/// Runs one case under many schedules, and checks their locks.
fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    explore::case_with_locks(seed, &[LOCK_ORDER], model);
}

/// Fails unless a schedule of this thread has taken each of these locks.
fn assert_taken(locks: &[&str]) {
    let taken = lock_log::names();
    let missed: Vec<_> = locks.iter().filter(|lock| !taken.contains(*lock)).collect();
    assert!(missed.is_empty(), "not taken: {missed:?}");
}

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;
