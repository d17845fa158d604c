//! The data model that Basalt's engines share: keys and their order, operations, batches, merge
//! operators, prefixes, and the encoding of separated values.
//!
//! | module | what it has |
//! |---|---|
//! | [`limits`] | the longest key and value, the largest file number and family id |
//! | [`encoding`] | varints and little-endian integers |
//! | [`key`] | sequence numbers, kinds of entries, comparators, internal keys |
//! | [`entry`] | what a key has at one sequence number |
//! | [`codec`] | compression of blocks and values |
//! | [`prefix`] | prefixes of keys, and what a cursor within one prefix may skip |
//! | [`ranges`] | range tombstones, cut into fragments |
//! | [`merge`] | merge operators |
//! | [`separated`] | values kept apart from their keys: records and references |
//! | [`family`], [`snapshot`] | handles of a column family and of a moment |
//! | [`batch`] | operations that take effect together |
//!
//! A module depends only on modules above it in this table. The crate opens no file and depends on
//! no engine: an engine makes the handles, and takes batches apart
//! ([`batch::WriteBatch::into_parts`]). Bytes from a disk never make a decoder panic.

#![deny(missing_docs)]
// The unit tests of this crate are tests of the ordinary build, without a scheduler's locks.
#![cfg(not(all(test, feature = "schedules")))]

pub mod batch;
pub mod codec;
pub mod encoding;
pub mod entry;
pub mod family;
pub mod flush_flag;
pub mod key;
pub mod limits;
pub mod merge;
pub mod prefix;
pub mod ranges;
pub mod separated;
pub mod snapshot;
pub mod write_options;

pub use batch::WriteBatch;
pub use codec::Compression;
pub use family::{Family, FamilyConfig};
pub use key::{Comparator, Kind, SeqNo};
pub use limits::{MAX_KEY_LEN, MAX_VALUE_LEN};
pub use merge::{MergeOperator, MergeRefusal};
pub use prefix::{PrefixExtractor, Prefixes};
pub use snapshot::Snapshot;
