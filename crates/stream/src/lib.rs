//! Append-only streams of extents (ArkDB, section 2): the ground of the tree engine.
//!
//! A stream is a directory with a manifest and any number of *extents*. An extent is a file of tens
//! of megabytes that is appended to, sealed, read, and erased as a whole. Before that, ranges of it
//! can be released. Its id is random, so an address in it, `(extent, offset)`, means the same in
//! every stream that has it.
//!
//! A stream can be linked: the copy has hard links to the same extents, and costs a name for each.
//! Streams can be concatenated to one. The filesystem frees an extent with its last name, so
//! streams that share it need not know of each other.
//!
//! # Promises
//!
//! - Bytes that were appended before [`Stream::sync`] returned are read after any crash.
//! - Bytes that were not synced may be missing, or there in part. The checksums of the user show
//!   it, and must cover the extent and the offset.
//! - Extents that were erased do not come back. After the next open, an erased extent takes no
//!   space unless another stream has it.
//! - [`Stream::release`] frees the space of ranges inside a sealed extent. No other byte changes,
//!   also in a power cut, which may bring space back. An extent that another stream has keeps all
//!   of its bytes.
//! - A link or a concatenation is whole, or [`Stream::open`] finds no stream.
//! - After a failed sync a stream takes no appends until it is opened again, because it is unknown
//!   what is on the device. After a failed append it goes on in another extent. If appends with
//!   [`Intent::Bulk`](basalt_fs::Intent::Bulk) were not synced before, they may be lost with the
//!   failed one, and the next sync fails.
//!
//! The caller makes sure that one process has a stream open to change it. A stream takes no lock of
//! its own: it is a part of a store, which has one.

// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the
// ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

mod catalog;
mod directory;
mod extent;
mod link;
mod options;
mod release;
mod stream;
#[cfg(test)]
mod tests;

pub use extent::{EXTENT_HEADER, ExtentAddress, ExtentId, ExtentInfo};
pub use link::StreamCopyReport;
pub use options::StreamOptions;
#[cfg(feature = "schedules")]
pub use stream::LOCK_ORDER;
pub use stream::Stream;

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[cfg(test)]
#[test]
fn every_stream_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_stream_test_passes_on_lava", &["host"]);
}
