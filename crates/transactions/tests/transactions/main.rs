//! The promises of transactions, over families in levels and families in pages.

mod anomalies;
mod limits;
mod locks;
mod model;
mod serial;
mod store;
mod whole;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;
