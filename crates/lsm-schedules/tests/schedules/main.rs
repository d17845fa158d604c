//! Models of the rooms where threads meet, each run under thousands of interleavings that a scheduler chooses.
//!
//! [`explore`] runs them and says how many schedules there were; the rest are the models: what threads do, and what must
//! hold whatever the order. How these packages come to be, and what they cannot see: `docs/testing/schedules.md`.

mod blobs;
mod cache;
mod commit;
mod explore;
mod ingest;
mod locks;
mod memtable;
mod moment;
mod version;
