//! The engine's promises, as tests: random histories against a reference, crashes after every call
//! that changes the disk, every call failing, damage everywhere, and threads.
//!
//! The oracles are P1 to P10 of the reliability plan. `docs/testing/promises.md` says which fault
//! leaves which promise, and `docs/testing/README.md` how to run, scale and repeat. Every test here
//! is seeded; a failure prints one line that repeats it.

mod agreement;
mod bug_classes;
mod checkpoint;
mod copied;
mod crash;
mod damage;
mod faults;
mod histories;
mod history;
mod latency;
mod model;
mod rng;
mod runner;
mod space;
mod threads;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// Runs the promise tests on LavaFS. Tests that damage single bytes of files or fail calls above
/// any filesystem are left out, because LavaFS has no part in them. Those that measure latencies of
/// steps are left out. So are tests in terms of the simulated disk's calls: its lies, and the
/// moments at which a log changes hands. The store on a disk of 1 MiB is left out, because LavaFS
/// has no room there: such a disk is the simulated one, and the first run has tested it already.
#[test]
fn every_promise_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava(
        "every_promise_test_passes_on_lava",
        &[
            "damage::",
            "faults::",
            "latency::",
            "stale_records_of_a_recycled_log_are_not_replayed",
            "power_cuts_on_a_full_disk_keep_the_promises",
        ],
    );
}
