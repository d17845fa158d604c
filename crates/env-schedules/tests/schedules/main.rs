//! Models of the modules of `env` where threads meet, each run under many interleavings that a
//! scheduler chooses: `docs/testing/schedules.md`. The model of the block cache is in
//! `lsm-schedules`, with the engine's.

mod background_thread;
mod write_behind;

use basalt_env_schedules::lock_order::LOCK_ORDER;
use basalt_env_schedules::sync::{explore, lock_log};

/// Runs one case as [`explore::case`] does. Fails if any schedule of this thread so far took locks
/// in an order that is not documented, or a lock that is not listed.
fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    explore::case(seed, model);
    let wrong = lock_log::violations(&[LOCK_ORDER]);
    assert!(
        wrong.is_empty(),
        "not as in `env::lock_order`:\n{}",
        wrong.join("\n")
    );
}

/// Fails unless a schedule of this thread has taken each of these locks.
fn assert_taken(locks: &[&str]) {
    let taken = lock_log::names();
    let missed: Vec<_> = locks.iter().filter(|lock| !taken.contains(*lock)).collect();
    assert!(missed.is_empty(), "not taken: {missed:?}");
}

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;
