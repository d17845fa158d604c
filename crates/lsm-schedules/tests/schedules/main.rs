//! Models of the modules where threads meet, each run under thousands of interleavings that a
//! scheduler chooses.
//!
//! [`explore`] runs them and reports the number of schedules. The other modules are the models:
//! what threads do, and what must hold whatever the order. `docs/testing/schedules.md` says how
//! these packages are built, and what they cannot see.

mod blobs;
mod cache;
mod commit;
mod explore;
mod ingest;
mod locks;
mod memtable;
mod pages;
mod passive;
mod preconditions;
mod version;
mod visibility;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;
