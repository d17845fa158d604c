//! Passive stores under a model of a database that has its own log: random histories of
//! transactions over families of very different rates, power cuts after calls that change the disk
//! and inside recoveries, logs that lose their unsynced end, and logs that are trimmed as far as
//! the store allows.
//!
//! After each recovery the store must have exactly what the log says. Every test here is seeded; a
//! failure prints one line that repeats it.

mod campaign;
mod contract;
mod database;
mod faults;
mod flags;
mod owner;
mod repairs;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[test]
fn every_passive_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_passive_test_passes_on_lava", &[]);
}
