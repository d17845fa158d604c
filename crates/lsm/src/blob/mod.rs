//! Separated values: files of blob records, and the index that finds a value in them by its key and sequence number.
//!
//! A value from a size on is written once, to the log; the tree gets a reference with the log's number, and the log stays as a *blob file*, with an index
//! beside it. What flushes and collections write are blob files of their own, with the index at their end.
//!
//! Modules: `index` (from a hash to a place), `layout` (header, directory, footer), `verify` (all of a file),
//! `salvage` (what a damaged or unnamed one still holds), `derive` (places without an index), `inspect` (one without its store), `builder` (writes a file), `separate` (hands values on their way into tables to it), `reader` (opens
//! one, finds values), `together` (many at once), `garbage` (which
//! records nobody refers to), `lineage` (what numbers mean after collections). The bytes are specified in
//! `docs/format/blob.md`, the reasons are in
//! `docs/decisions/0020-blobs.md`.
//!
//! The encoding of one record is [`crate::separated`]'s.
//!
//! Promises: a value that is found is that version of that key, at that place of that file, or an error; no bytes of a file make a reader
//! panic, or allocate beyond what the file holds, but for a compressed value, which is at most as long as values may be.

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

/// What the manifest remembers of a blob file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobMeta {
    /// The random id that its records' checksums cover: of the blob file, or of the log.
    pub file_id: u128,
    /// Where the records lie in it: all between is records, in a log with other bytes between them.
    pub data_end: u64,
    /// Of a log: its index is a file of its own.
    pub index: Option<IndexFile>,
    /// Bytes of the blob file; of a log those of the blocks that records lie in, which is what stays of it.
    pub size: u64,
    /// XXH3-128 of the whole blob file. Of a log 0: its index has one, and its records have checksums.
    pub digest: u128,
    /// Records.
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
    /// Its file number: not the log's, so that a second try to write it never has the name of the first.
    pub number: u64,
    /// Its own random id.
    pub file_id: u128,
    /// Its bytes.
    pub size: u64,
    /// XXH3-128 of all of it.
    pub digest: u128,
}

/// What is a family's in a blob file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FamilyShare {
    /// Records.
    pub records: u64,
    /// Their bytes, header and key included.
    pub bytes: u64,
}

/// True when a file's first bytes are those of a blob file.
pub fn begins_one(first: &[u8]) -> bool {
    first.starts_with(&layout::BLOB_MAGIC)
}

/// True when a file's first bytes are those of a log's index.
pub fn begins_index(first: &[u8]) -> bool {
    first.starts_with(&layout::INDEX_MAGIC)
}
