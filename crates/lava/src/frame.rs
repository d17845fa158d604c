//! The frames of the journal and of checkpoints. Each frame has a checksum of the filesystem's
//! number, of its offset on the device and of all its bytes. `docs/format/lava.md` is the
//! specification.

use super::layout::{PIECE, Uuid, checksum, u32_at, u64_at};
use super::runs::Run;

const TRANSACTION: &[u8; 4] = b"LVTX";
const EXTENT: &[u8; 4] = b"LVJX";
const CHECKPOINT: &[u8; 4] = b"LVCK";

/// Bytes of a transaction before its records.
pub const TRANSACTION_HEADER: usize = 40;
/// Bytes of the header of a journal extent.
const EXTENT_HEADER: usize = 56;
/// Bytes of a checkpoint's piece before its records.
pub const PIECE_HEADER: usize = 32;

/// The bytes of a frame: checksum, magic, header, records, and zeros up to a multiple of the unit.
struct Frame(Vec<u8>);

impl Frame {
    fn new(magic: &[u8; 4], header: usize, records: &[u8], unit: usize) -> Frame {
        let mut b = vec![0u8; (header + records.len()).next_multiple_of(unit)];
        b[4..8].copy_from_slice(magic);
        b[header..header + records.len()].copy_from_slice(records);
        Frame(b)
    }

    fn put<const N: usize>(mut self, at: usize, bytes: [u8; N]) -> Frame {
        self.0[at..at + N].copy_from_slice(&bytes);
        self
    }

    fn sealed(self, uuid: &Uuid, offset: u64) -> Vec<u8> {
        let sum = checksum(uuid, offset, &self.0[4..]);
        self.put(0, sum.to_le_bytes()).0
    }
}

fn is_valid(b: &[u8], magic: &[u8; 4], uuid: &Uuid, offset: u64) -> bool {
    b[4..8] == magic[..] && u32_at(b, 0) == checksum(uuid, offset, &b[4..])
}

/// One transaction: records that take effect together or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction<'a> {
    /// The random number of the mount that wrote the frame.
    pub life: u64,
    /// The number of the transaction.
    pub seq: u64,
    /// The number of the last transaction that was durable when the frame was written.
    pub synced: u64,
    /// Whole records, see [`super::record`].
    pub records: &'a [u8],
}

impl Transaction<'_> {
    /// Returns the size on the device of a transaction with `records` bytes of records, in bytes.
    pub fn size(records: usize, unit: usize) -> usize {
        (TRANSACTION_HEADER + records).next_multiple_of(unit)
    }

    /// Returns the bytes of the transaction for the offset `offset` of the device.
    pub fn encode(&self, uuid: &Uuid, offset: u64, unit: usize) -> Vec<u8> {
        Frame::new(TRANSACTION, TRANSACTION_HEADER, self.records, unit)
            .put(8, self.life.to_le_bytes())
            .put(16, self.seq.to_le_bytes())
            .put(24, self.synced.to_le_bytes())
            .put(32, (self.records.len() as u32).to_le_bytes())
            .sealed(uuid, offset)
    }

    /// Decodes the transaction that begins at the first byte of `b`, which lies at `offset` of the
    /// device. Returns the transaction and its size in bytes; `None` if the bytes are none.
    pub fn decode<'b>(
        b: &'b [u8],
        uuid: &Uuid,
        offset: u64,
        unit: usize,
    ) -> Option<(Transaction<'b>, usize)> {
        if b.len() < TRANSACTION_HEADER || b[4..8] != TRANSACTION[..] {
            return None;
        }
        let records = u32_at(b, 32) as usize;
        if records > b.len() - TRANSACTION_HEADER {
            return None;
        }
        let size = Transaction::size(records, unit);
        if size > b.len() || !is_valid(&b[..size], TRANSACTION, uuid, offset) {
            return None;
        }
        let transaction = Transaction {
            life: u64_at(b, 8),
            seq: u64_at(b, 16),
            synced: u64_at(b, 24),
            records: &b[TRANSACTION_HEADER..TRANSACTION_HEADER + records],
        };
        Some((transaction, size))
    }
}

/// The first unit of a journal extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentHeader {
    /// The random number of the mount that wrote the extent.
    pub life: u64,
    /// The number of the first transaction in the extent.
    pub first_seq: u64,
    /// The number of the last transaction that was durable when the header was written.
    pub synced: u64,
    /// The extent where the journal goes on when this one is full or after the next mount.
    pub next: Run,
    /// Blocks of this extent.
    pub blocks: u32,
    /// The life of the transaction before the first one. Transactions of another life with the same
    /// numbers do not continue the journal.
    pub before: u64,
}

impl ExtentHeader {
    /// Returns the bytes of the header, one unit.
    pub fn encode(&self, uuid: &Uuid, offset: u64, unit: usize) -> Vec<u8> {
        Frame::new(EXTENT, EXTENT_HEADER, &[], unit)
            .put(8, self.life.to_le_bytes())
            .put(16, self.first_seq.to_le_bytes())
            .put(24, self.synced.to_le_bytes())
            .put(32, self.next.start.to_le_bytes())
            .put(40, (self.next.len as u32).to_le_bytes())
            .put(44, self.blocks.to_le_bytes())
            .put(48, self.before.to_le_bytes())
            .sealed(uuid, offset)
    }

    /// Decodes one unit that was read at `offset` of the device; `None` if it is no header.
    pub fn decode(b: &[u8], uuid: &Uuid, offset: u64) -> Option<ExtentHeader> {
        if b.len() < EXTENT_HEADER || !is_valid(b, EXTENT, uuid, offset) {
            return None;
        }
        Some(ExtentHeader {
            life: u64_at(b, 8),
            first_seq: u64_at(b, 16),
            synced: u64_at(b, 24),
            next: Run {
                start: u64_at(b, 32),
                len: u64::from(u32_at(b, 40)),
            },
            blocks: u32_at(b, 44),
            before: u64_at(b, 48),
        })
    }
}

/// One piece of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointPiece<'a> {
    /// The generation of the superblock that leads to the checkpoint.
    pub generation: u64,
    /// The number of the piece, from 0.
    pub index: u32,
    /// Whole records, see [`super::record`].
    pub records: &'a [u8],
}

impl CheckpointPiece<'_> {
    /// Returns the bytes of the piece, a multiple of the unit.
    pub fn encode(&self, uuid: &Uuid, offset: u64, unit: usize) -> Vec<u8> {
        Frame::new(CHECKPOINT, PIECE_HEADER, self.records, unit)
            .put(8, self.generation.to_le_bytes())
            .put(16, self.index.to_le_bytes())
            .put(20, (self.records.len() as u32).to_le_bytes())
            .sealed(uuid, offset)
    }

    /// Decodes the piece that begins at the first byte of `b`. Returns the piece and its size in
    /// bytes; `None` if the bytes are none.
    pub fn decode<'b>(
        b: &'b [u8],
        uuid: &Uuid,
        offset: u64,
        unit: usize,
    ) -> Option<(CheckpointPiece<'b>, usize)> {
        if b.len() < PIECE_HEADER {
            return None;
        }
        let records = u32_at(b, 20) as usize;
        let size = PIECE_HEADER.checked_add(records)?.next_multiple_of(unit);
        if size > PIECE || size > b.len() || !is_valid(&b[..size], CHECKPOINT, uuid, offset) {
            return None;
        }
        let piece = CheckpointPiece {
            generation: u64_at(b, 8),
            index: u32_at(b, 16),
            records: &b[PIECE_HEADER..PIECE_HEADER + records],
        };
        Some((piece, size))
    }
}
