//! Append-only streams of extents (ArkDB, section 2): the ground of the tree engine.
//!
//! A stream is a directory with a manifest and any number of *extents*. An extent is a file of tens
//! of megabytes that is appended to, sealed, read, and erased as a whole. Its id is unique among
//! all streams, so a place in it, `(extent, offset)`, means the same in every stream that has it.
//!
//! A stream can be linked: the copy has hard links to the same extents, and costs a name for each.
//! Streams can be concatenated to one. The filesystem frees an extent with its last name, so
//! streams that share it need not know of each other.
//!
//! # Promises
//!
//! - Bytes that were appended before [`Stream::sync`] returned are read after any crash.
//! - What was not synced may be gone, or there in part. The user's own checksums tell, and must
//!   cover the extent and the offset.
//! - Extents that were erased do not come back. An erased or unfinished extent takes no space once
//!   the stream was opened again.
//! - A link or a concatenation is there whole, or [`Stream::open`] finds no stream.
//! - After a failed sync a stream takes no appends until it is opened again, because it is unknown
//!   what is on the device. After a failed append it goes on in another extent.
//!
//! The caller makes sure that one process has a stream open to change it. A stream takes no lock of
//! its own: it is a part of a store, which has one.

mod catalog;
mod directory;
mod extent;
mod link;
mod options;
mod stream;
#[cfg(test)]
mod tests;

pub use extent::{ExtentId, ExtentInfo, Place};
pub use options::StreamOptions;
pub use stream::Stream;

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[cfg(test)]
#[test]
fn every_stream_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_stream_test_passes_on_lava", &["host"]);
}
