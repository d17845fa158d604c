//! Models of streams, run under thousands of interleavings that a scheduler chooses: releases of
//! ranges beside links. `docs/testing/schedules.md` says how these packages are built, and what
//! they cannot see.

mod releases;

use basalt_env::sync::explore;
use basalt_env::sync::lock_log::CrateLocks;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// The locks of all crates that the models run, from top to bottom.
const CRATES: [CrateLocks; 2] = [
    basalt_stream_schedules::LOCK_ORDER,
    basalt_env::lock_order::LOCK_ORDER,
];

/// Runs one case under many schedules, and checks their locks.
fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    explore::case_with_locks(seed, &CRATES, model);
}
