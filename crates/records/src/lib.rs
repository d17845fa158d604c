//! Files of records: the framing that write-ahead logs and manifests share, the log's own header,
//! and the manifest's log ([`manifest`]).
//!
//! Every engine keeps its log and its manifest in such files. The payload of a record is a batch of
//! `basalt-kv`, or an edit, which the engine encodes itself.
//!
//! A file of records starts with a [`FileHeader`] in a slot of one write unit. Each record is
//! [`RECORD_HEADER`] bytes and a payload, padded with zeros to a multiple of [`RECORD_ALIGN`]. All
//! numbers are little-endian:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of file id (16), file offset of the record (8) and header bytes 4..40 |
//! | 4 | 4 | CRC-32C of the payload, without blob records in it |
//! | 8 | 4 | payload length |
//! | 12 | 1 | record kind |
//! | 13 | 1 | flags: 1 when the batch has separated values, 2 when some of these are compressed |
//! | 14 | 2 | life tag: the low 16 bits of the file id, 1 when they are 0 |
//! | 16 | 8 | position up to which this file was known to be synced when the record was written |
//! | 24 | 8 | first sequence number of a batch; number of an edit |
//! | 32 | 4 | header checksum of the record before it, 0 for the first: the chain |
//! | 36 | 4 | operations in the batch |
//!
//! The next record begins where this one ends, padding included, or at the next multiple of the
//! write unit. It is accepted at either place only if its chain field matches, so a lost record can
//! never be skipped.
//!
//! The tail: the first position where neither place has a good record is the end. It is damage if a
//! proof exists that bytes past it had been synced: a later good header of this life, the manifest,
//! or the next log's header.
//!
//! Modules: `header` (the file's first unit), `record` (a record's 40 bytes), `separated` (batches
//! with values that the log keeps), `writer`, `reader`, `salvage`, `verify`. The bytes are
//! specified in `docs/format/log.md`, and the reasons are in `docs/decisions/0006-log-framing.md`.

#![deny(missing_docs)]
// The unit tests of this crate are tests of the ordinary build, without a scheduler's locks.
#![cfg(not(all(test, feature = "schedules")))]

pub mod entries;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod header;
pub mod manifest;
mod reader;
mod record;
pub mod salvage;
mod separated;
#[cfg(test)]
mod tests;
pub mod verify;
mod writer;

pub use basalt_kv::batch::{RECORD_HEADER, Separated};
pub use header::{COMPRESSED_VALUES, LARGEST_UNIT, begins_one};
pub use reader::{Expect, RecordReader, reaches};
pub use record::{open_record, record_len};
pub use separated::{UNANNOUNCED, UNANNOUNCED_COMPRESSED, payload_crc, separated};
pub use writer::RecordWriter;

use basalt_fs::{AlignedBuf, Bytes};

/// Offsets of records are multiples of this many bytes.
pub const RECORD_ALIGN: usize = 8;

/// The kind of a file of records. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// A write-ahead log.
    Log = 1,
    /// A manifest.
    Manifest = 2,
}

/// The kind of a record. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A write batch.
    Batch = 1,
    /// A manifest edit.
    Edit = 2,
    /// In a log, a mark that prepared tables were added with this sequence number. Their edit of
    /// the manifest was durable before. The record has no payload.
    Ingestion = 3,
    /// Entries of logical logs: [`entries`].
    Entries = 4,
    /// Operations of the log engine on its logical logs.
    LogOps = 5,
    /// The entries of a file of the datalog by log and LSN, for garbage collection.
    ReverseIndex = 6,
    /// A part of a checkpoint of the log engine.
    Checkpoint = 7,
    /// A change of a log's name. Its own kind, because earlier versions refuse a record of an
    /// unknown kind as one of a later version, but take an unknown operation for damage.
    LogNames = 8,
}

/// The header at the start of a file of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// Log or manifest.
    pub kind: FileKind,
    /// A fresh random id for this life of the space. It is a part of every checksum.
    pub file_id: u128,
    /// Id of the store that the file belongs to.
    pub store_id: u128,
    /// Number of the file.
    pub number: u64,
    /// Write unit, in bytes, that records are aligned to.
    pub write_unit: u32,
    /// Compatible feature bits. Unknown ones are ignored.
    pub compatible: u32,
    /// Incompatible feature bits. A file with unknown ones is refused.
    pub incompatible: u32,
    /// The log before this one, all of it synced. `None` for the first log.
    pub previous: Option<PreviousLog>,
}

/// The log before a log, as its header names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousLog {
    /// Number of that log.
    pub number: u64,
    /// File id of that log.
    pub file_id: u128,
    /// Offset of the end of its records.
    pub end: u64,
}

/// A record about to be appended. `buf` begins with [`RECORD_HEADER`] bytes that the writer fills
/// in.
pub struct Outgoing<'a> {
    /// Header space, then the payload.
    pub buf: &'a mut AlignedBuf,
    /// Kind of the record.
    pub kind: RecordKind,
    /// First sequence number.
    pub first_seq: u64,
    /// Number of operations.
    pub count: u32,
    /// CRC-32C of the payload, which the submitting thread computes: [`payload_crc`]. The writer
    /// computes it for records of kind [`RecordKind::Entries`].
    pub payload_crc: u32,
    /// Blob records in the payload. The writer gives them sequence numbers and header checksums.
    pub separated: &'a [Separated],
    /// Offset at which the writer put the record.
    pub offset: u64,
}

#[cfg(test)]
impl<'a> Outgoing<'a> {
    /// Returns a batch as a record that begins with this sequence number.
    fn of_batch(batch: &'a mut basalt_kv::batch::WriteBatch, first_seq: u64) -> Outgoing<'a> {
        let count = batch.len() as u32;
        let (buf, separated) = batch.log_record_mut();
        Outgoing {
            payload_crc: payload_crc(&buf[RECORD_HEADER..], separated),
            separated,
            offset: 0,
            kind: RecordKind::Batch,
            first_seq,
            count,
            buf,
        }
    }
}

/// A record that was read.
#[derive(Debug, Clone)]
pub struct StoredRecord {
    /// Offset of the record.
    pub offset: u64,
    /// Kind of the record.
    pub kind: RecordKind,
    /// First sequence number.
    pub first_seq: u64,
    /// Number of operations.
    pub count: u32,
    /// True if the header says that the batch has separated values.
    pub separated: bool,
    /// True if the header says that some of them are compressed.
    pub compressed: bool,
    /// The payload.
    pub payload: Bytes,
}

/// A point of a file between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumePoint {
    /// Offset of the end of the record before.
    pub offset: u64,
    /// Header checksum of the record before, which the next record names; 0 if there is none.
    pub chain: u32,
}

/// The end of a file of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Offset of the end of the last good record.
    pub end: u64,
    /// True if bytes after the end look like a torn record of this life, and false if no byte of
    /// this life follows.
    pub torn: bool,
}

/// LavaFS keeps the same contract as the simulated disk, and passes the same tests.
#[cfg(test)]
#[test]
fn every_record_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_record_test_passes_on_lava", &["fuzzing::"]);
}
