//! The promises of transactions, over families in levels and families in pages.

mod anomalies;
mod limits;
mod locks;
mod model;
mod passive;
mod serial;
mod store;
mod whole;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[test]
fn every_test_of_transactions_passes_on_lava() {
    // These tests depend on no file: to run them on another disk proves nothing.
    let without_io = ["anomalies::", "limits::"];
    basalt_sim::all_tests_on_lava("every_test_of_transactions_passes_on_lava", &without_io);
}
