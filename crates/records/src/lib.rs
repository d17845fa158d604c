//! Files of records: the framing that write-ahead logs and manifests share, the log's own header,
//! and the manifest's log ([`manifest`]).
//!
//! Every engine keeps its log and its manifest in such files. A record's payload is a batch of
//! `basalt-kv`, or the bytes of an edit that the engine encodes itself.
//!
//! A file of records starts with a [`FileHeader`] in a slot of one write unit. Each record is
//! [`RECORD_HEADER`] bytes and a payload, padded with zeros to a multiple of [`RECORD_ALIGN`]. All
//! numbers little-endian:
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
//! The tail: the first position where neither place holds a good record is the end, unless a later
//! good header of this life (or the manifest, or the next log's header) proves that bytes past it
//! had been synced. Then it is damage.
//!
//! Modules: `header` (the file's first unit), `record` (a record's 40 bytes), `separated` (batches
//! with values that the log keeps), `writer`, `reader`, `salvage`, `verify`. The bytes are
//! specified in `docs/format/log.md`, the reasons in `docs/decisions/0006-log-framing.md`.

#![deny(missing_docs)]
// Under a scheduler's locks the unit tests of this crate make no sense: they are tests of the
// ordinary build.
#![cfg(not(all(test, feature = "schedules")))]

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
pub use header::{LARGEST_UNIT, PACKED_VALUES, begins_one};
pub use reader::{Expect, RecordReader};
pub use separated::{UNANNOUNCED, UNANNOUNCED_PACKED, payload_crc, separated};
pub use writer::RecordWriter;

use basalt_fs::{AlignedBuf, Bytes};

/// Records begin at multiples of this.
pub const RECORD_ALIGN: usize = 8;

/// What a file of records is. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// A write-ahead log.
    Log = 1,
    /// A manifest.
    Manifest = 2,
}

/// What a record holds. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A write batch.
    Batch = 1,
    /// A manifest edit.
    Edit = 2,
    /// In a log, that prepared tables were added with this sequence number: its edit of the
    /// manifest was durable before. No payload.
    Ingestion = 3,
}

/// The start of a file of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// Log or manifest.
    pub kind: FileKind,
    /// A fresh random id for this life of the space; part of every checksum.
    pub file_id: u128,
    /// The store it belongs to.
    pub store_id: u128,
    /// Its number.
    pub number: u64,
    /// The write unit that records are aligned to.
    pub write_unit: u32,
    /// Feature bits: unknown compatible bits are ignored, unknown incompatible ones refuse the
    /// file.
    pub compatible: u32,
    /// See `compatible`.
    pub incompatible: u32,
    /// The log before this one: its number, id and the position where its records end, all of it
    /// synced. `None` for the first.
    pub previous: Option<PreviousLog>,
}

/// See [`FileHeader::previous`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousLog {
    /// Its number.
    pub number: u64,
    /// The family's id.
    pub file_id: u128,
    /// Where its records end.
    pub end: u64,
}

/// A record about to be appended. `buf` begins with [`RECORD_HEADER`] bytes that the writer fills
/// in.
pub struct Outgoing<'a> {
    /// Header space, then the payload.
    pub buf: &'a mut AlignedBuf,
    /// What it holds.
    pub kind: RecordKind,
    /// First sequence number.
    pub first_seq: u64,
    /// Operations.
    pub count: u32,
    /// CRC-32C of the payload, computed by the submitting thread: [`payload_crc`].
    pub payload_crc: u32,
    /// Blob records in it, which the writer gives sequence numbers and header checksums.
    pub separated: &'a [Separated],
    /// The writer's: where the record was put.
    pub offset: u64,
}

#[cfg(test)]
impl<'a> Outgoing<'a> {
    /// A batch that begins with this sequence number.
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

/// A record read back.
#[derive(Debug, Clone)]
pub struct Record {
    /// Where it begins.
    pub offset: u64,
    /// What it holds.
    pub kind: RecordKind,
    /// First sequence number.
    pub first_seq: u64,
    /// Operations.
    pub count: u32,
    /// Its header says that it has separated values.
    pub separated: bool,
    /// Its header says that some of them are compressed.
    pub packed: bool,
    /// Returns the payload.
    pub payload: Bytes,
}

/// How a file of records ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// End of the last good record.
    pub end: u64,
    /// True when bytes after it look like a torn record of this life, false when nothing of this
    /// life follows.
    pub torn: bool,
}

/// LavaFS keeps the same contract as the simulated disk, and all of these tests.
#[cfg(test)]
#[test]
fn every_record_test_again_on_lava() {
    basalt_sim::all_tests_on_lava("every_record_test_again_on_lava", &["fuzzing::"]);
}
