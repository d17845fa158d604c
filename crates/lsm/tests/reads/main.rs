//! Promises of reads beyond single answers. Cursors of every kind are compared with a reference
//! while the store changes under them. Further tests are of reads that prefix filters save, cursors
//! that follow the store, many keys read at once, and values that are read ahead.

#![deny(missing_docs)]

mod batched_reads;
mod prefixes;
mod tailing;
mod value_prefetch;
mod walks;
mod watched;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

#[test]
fn every_read_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_read_test_passes_on_lava", &[]);
}
