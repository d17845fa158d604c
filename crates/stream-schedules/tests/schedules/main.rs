//! Models of streams, run under thousands of interleavings that a scheduler chooses: releases of
//! ranges beside links. `docs/testing/schedules.md` says how these packages are built, and what
//! they cannot see.

mod releases;

use basalt_env::sync::explore;
use basalt_env::sync::lock_log::{self, CrateLocks};

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// The locks of all crates that the models run, from top to bottom.
const CRATES: [CrateLocks; 2] = [
    basalt_stream_schedules::LOCK_ORDER,
    basalt_env::lock_order::LOCK_ORDER,
];

/// Runs one case under many schedules. Fails if a schedule took locks in an order that is not
/// documented, or a lock that is not listed.
fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    explore::case(seed, model);
    let wrong = lock_log::violations(&CRATES);
    assert!(
        wrong.is_empty(),
        "not as in `LOCK_ORDER` of the crates:\n{}",
        wrong.join("\n")
    );
}
