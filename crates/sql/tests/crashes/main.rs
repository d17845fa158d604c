//! Crashes, failing calls, damage and threads, under random histories of SQL.
//!
//! A history keeps the content of the database as of each transaction of the binlog. After a
//! recovery the content must be that of the last transaction that the binlog still has. Every test
//! is seeded; a failure prints one line that repeats it.

mod binlog;
mod damage;
mod database;
mod defects;
mod faults;
mod history;
mod power_cuts;
mod restore;
mod statements;
mod threads;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[test]
fn every_crash_test_passes_on_lava() {
    // LavaFS syncs all files together, so no store is ahead of its binlog.
    let but = ["threads::", "a_store_that_is_ahead"];
    basalt_sim::all_tests_on_lava("every_crash_test_passes_on_lava", &but);
}
