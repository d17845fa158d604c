//! Separated values: files of blob records, and the index that finds a value in them by its key and
//! sequence number.
//!
//! A value of at least `min_blob_size` bytes is written once, to the log. The tree gets a reference
//! with the number of the log, and the log stays as a *blob file*, with an index beside it. Flushes
//! and garbage collections write blob files of their own, with the index at their end.
//!
//! The crate also has the policy of garbage collection: which records are dead ([`garbage`]), and
//! what a number means after garbage collection has rewritten files ([`lineage`]).
//!
//! | module | what it has |
//! |---|---|
//! | `layout` | header, directory, footer: the persisted numbers |
//! | [`index`] | from a hash to a place |
//! | `file_names` | names of the files |
//! | [`counters`] | counters of reads and of compression, for a whole environment |
//! | `builder` | writes a blob file, or the index of a log |
//! | `separate` | separates values on their way into tables |
//! | `reader` | opens a file, finds and reads values; [`batch_read`] reads many at once |
//! | [`verify`] | checks all of a file |
//! | [`salvage`] | what a damaged or unnamed file still holds |
//! | [`derive`](mod@derive) | places of records without an index |
//! | [`inspect`] | a file without its store |
//! | [`garbage`] | the records that no reference leads to |
//! | [`lineage`] | what numbers mean after garbage collections |
//!
//! A module depends only on modules above it in this table, on `basalt-table`, whose blocks with
//! checksums hold the index, and on `basalt-records`, whose logs become blob files. The encoding of
//! one record is that of [`basalt_kv::separated`]. The bytes are specified in
//! `docs/format/blob.md`. The reasons are in `docs/decisions/0020-blobs.md`.
//!
//! Promises: a value that is found is that version of that key, at that place of that file, or an
//! error. No bytes of a file make a reader panic, or allocate beyond what the file holds. The
//! exception is a compressed value, which is at most as long as values may be.

#![deny(missing_docs)]
// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the
// ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

mod builder;
pub mod counters;
pub mod derive;
mod file_names;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod garbage;
#[cfg(test)]
mod golden;
pub mod index;
pub mod inspect;
mod layout;
pub mod lineage;
mod reader;
pub mod salvage;
mod separate;
#[cfg(test)]
mod tests;
pub mod verify;

pub use builder::{BLOCK, BlobBuilder, BlobOptions, Blocks, LogIndexBuilder};
pub use file_names::{blob_name, blob_names, index_name, log_name};
pub use layout::{begins_index, begins_one};
pub use reader::{BlobReader, BlobRecord, IndexLayout, ReadMode, batch_read};
pub use separate::{NewNumber, Separator};

use basalt_kv::separated::compressed;
pub use basalt_kv::separated::{Form, Name, Reference, record};

use basalt_kv::key::SeqNo;
use std::collections::BTreeMap;

/// A blob file's metadata in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobMeta {
    /// The random id that the records' checksums cover: that of the blob file, or of the log.
    pub file_id: u128,
    /// Offset where the records end. A blob file has records only before it, a log has other bytes
    /// between them.
    pub data_end: u64,
    /// The index of a log, which is a file of its own; `None` for other blob files.
    pub index: Option<IndexFile>,
    /// Bytes of the blob file. For a log: bytes of the blocks that records lie in, which are what
    /// remains of it.
    pub size: u64,
    /// XXH3-128 of the whole blob file. For a log 0: its index has a digest, and its records have
    /// checksums.
    pub digest: u128,
    /// Number of records.
    pub records: u64,
    /// Records and their bytes, header and key included, of each family by its id.
    pub families: BTreeMap<u32, FamilyShare>,
    /// Lowest sequence number.
    pub min_seq: SeqNo,
    /// Highest sequence number.
    pub max_seq: SeqNo,
}

/// The index of a log that is a blob file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexFile {
    /// The index's file number. It is not the log's number, so a second attempt to write the index
    /// never has the name of the first.
    pub number: u64,
    /// The index's own random id.
    pub file_id: u128,
    /// Bytes of the index.
    pub size: u64,
    /// XXH3-128 of the whole index.
    pub digest: u128,
}

/// A family's share of a blob file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FamilyShare {
    /// Number of records.
    pub records: u64,
    /// Bytes of the values read from the device, header and key included.
    pub bytes: u64,
}

/// Tests of this crate that touch no disk: to run them on another one proves nothing.
#[cfg(test)]
const TESTS_WITHOUT_IO: &[&str] = &["fuzzing::", "garbage::", "index::", "lineage::"];

/// LavaFS keeps the same contract as the simulated disk, and all of these tests.
#[cfg(test)]
#[test]
fn every_blob_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_blob_test_passes_on_lava", TESTS_WITHOUT_IO);
}
