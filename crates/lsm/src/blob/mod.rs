//! Separated values: files of blob records, and the index that finds a value in them by its key and
//! sequence number.
//!
//! A value of at least `min_blob_size` bytes is written once, to the log. The tree gets a reference
//! with the log's number, and the log stays as a *blob file*, with an index beside it. Flushes and
//! garbage collections write blob files of their own, with the index at their end.
//!
//! Modules: `index` (from a hash to a place), `layout` (header, directory, footer), `verify`
//! (checks a whole file), `salvage` (the records that can be read of a damaged or unnamed file),
//! `derive` (places without an index), `inspect` (a file without its store), `builder` (writes a
//! file), `separate` (passes values on their way into tables to it), `reader` (opens a file, finds
//! values), `batch_read` (many values at once), `garbage` (the records without a reference),
//! `lineage` (what numbers mean after collections). The bytes are specified in
//! `docs/format/blob.md`, the reasons are in `docs/decisions/0020-blobs.md`.
//!
//! [`crate::separated`] encodes a single record.
//!
//! Promises: a value that is found is that version of that key, at that place of that file, or an
//! error. No bytes of a file make a reader panic, or allocate beyond what the file holds. The
//! exception is a compressed value, which is at most as long as values may be.

pub(crate) mod batch_read;
mod builder;
pub(crate) mod counts;
pub(crate) mod derive;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub mod garbage;
#[cfg(test)]
mod golden;
pub mod index;
pub mod inspect;
mod layout;
pub mod lineage;
mod names;
mod reader;
pub mod salvage;
mod separate;
#[cfg(test)]
mod tests;
pub mod verify;

pub(crate) use builder::{BLOCK, Blocks};
pub use builder::{BlobBuilder, BlobOptions, LogIndexBuilder};
pub use names::{blob_name, blob_names, index_name, log_name};
pub use reader::{BlobReader, How, Layout, Record};
pub(crate) use separate::Separator;

pub(crate) use crate::separated::compressed as packed;
pub use crate::separated::{Form, Name, Reference, record};

use crate::key::SeqNo;
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
    /// Number of the family's records.
    pub records: u64,
    /// Bytes of these records, header and key included.
    pub bytes: u64,
}

/// Returns true if a file's first bytes are those of a blob file.
pub fn begins_one(first: &[u8]) -> bool {
    first.starts_with(&layout::BLOB_MAGIC)
}

/// Returns true if a file's first bytes are those of a log's index.
pub fn begins_index(first: &[u8]) -> bool {
    first.starts_with(&layout::INDEX_MAGIC)
}
