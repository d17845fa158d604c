//! The layout of the device, and the bytes of the superblock. `docs/format/lava.md` is the
//! specification.

use super::metadata_record::MAX_NAME;
use super::runs::{BLOCK, MAX_BLOCKS, Run};

/// The random number of a filesystem. It is part of every checksum, so that a mount never takes
/// bytes of another filesystem for its own.
pub type Uuid = [u8; 16];

/// Offsets of the two copies of the superblock, in bytes.
pub const SUPERBLOCKS: [u64; 2] = [4096, (1 << 20) - 4096];
/// The first block that can be allocated. The space before it has the superblocks, and is unused
/// otherwise.
pub const FIRST_BLOCK: u64 = (1 << 20) / BLOCK;
/// Size of the smallest device, in bytes: it has space for a journal, a checkpoint and files.
pub const MIN_DEVICE: u64 = 4 << 20;
/// Bytes of records in one transaction at most. Only the last record may pass this size.
pub const TRANSACTION_GOAL: usize = 8 << 10;
/// Size of the largest transaction with its frame, in bytes. A journal extent has space for one,
/// and for its own header.
pub const TRANSACTION_MAX: usize = TRANSACTION_GOAL + (8 << 10) + 2 * MAX_NAME;
/// Largest size of one piece of a checkpoint with its header, in bytes.
pub const PIECE: usize = 64 << 10;
/// Largest number of blocks of a journal extent.
const MAX_JOURNAL_BLOCKS: u64 = 1024;
/// Numbers of generations and transactions are below this.
pub const MAX_NUMBER: u64 = 1 << 60;
/// Largest number of runs of a checkpoint.
pub const MAX_CHECKPOINT_RUNS: usize = 240;

const MAGIC: &[u8; 8] = b"BSLTLAVA";
const VERSION: u32 = 1;
const SIZE: usize = 4096;
const RUNS_AT: usize = 96;

/// Features that this build knows: those that a build may ignore, those that it must know to write,
/// and those that it must know to read.
const KNOWN: [u32; 3] = [SPARSE | NO_DISCARD, 0, 0];
/// Feature: the image was not written when it was made.
const SPARSE: u32 = 1;
/// Feature: free space is not discarded on the device.
const NO_DISCARD: u32 = 2;

/// The superblock: sizes, and where the newest checkpoint lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The random number of the filesystem.
    pub uuid: Uuid,
    /// Number of the superblock. The larger one is newer.
    pub generation: u64,
    /// Write unit: bytes that the device writes whole or not at all.
    pub unit: u32,
    /// Blocks of the filesystem.
    pub blocks: u64,
    /// Blocks of a journal extent.
    pub journal_blocks: u32,
    /// Size of the checkpoint, in bytes.
    pub checkpoint_bytes: u64,
    /// Number of the last transaction that is part of the checkpoint.
    pub checkpoint_seq: u64,
    /// Runs of the checkpoint.
    pub checkpoint: Vec<Run>,
    /// Number of the last transaction at the last clean unmount. A journal that ends before it has
    /// lost transactions.
    pub clean_seq: u64,
    /// `true` if the image was not written when it was made.
    pub sparse: bool,
    /// `true` if free space is not discarded on the device.
    pub no_discard: bool,
    /// Unknown features with which this build may read but not write.
    pub unknown: u32,
}

/// The reason why bytes are no usable superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuperblockError {
    /// Other content, or zeros.
    Foreign,
    /// A version that this build does not know.
    Version(u32),
    /// Unknown features that a build must know to read.
    Features(u32),
    /// A damaged superblock, and what is wrong with it.
    Damaged(&'static str),
}

/// Returns the CRC-32C of the filesystem's number, of the offset on the device and of the bytes.
pub fn checksum(uuid: &Uuid, offset: u64, bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c(uuid);
    let sum = crc32c::crc32c_append(sum, &offset.to_le_bytes());
    crc32c::crc32c_append(sum, bytes)
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Superblock {
    /// Returns the bytes of the superblock for the offset `offset` of the device.
    pub fn encode(&self, offset: u64) -> Vec<u8> {
        assert!(self.checkpoint.len() <= MAX_CHECKPOINT_RUNS);
        let mut b = vec![0u8; SIZE];
        b[..8].copy_from_slice(MAGIC);
        let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
        put(12, &VERSION.to_le_bytes());
        let of = |is: bool, bit: u32| if is { bit } else { 0 };
        let features = of(self.sparse, SPARSE) | of(self.no_discard, NO_DISCARD);
        put(16, &features.to_le_bytes());
        put(20, &self.unknown.to_le_bytes());
        put(28, &self.unit.to_le_bytes());
        put(32, &self.uuid);
        put(48, &self.generation.to_le_bytes());
        put(56, &self.blocks.to_le_bytes());
        put(64, &self.journal_blocks.to_le_bytes());
        put(68, &(self.checkpoint.len() as u32).to_le_bytes());
        put(72, &self.checkpoint_seq.to_le_bytes());
        put(80, &self.checkpoint_bytes.to_le_bytes());
        put(88, &self.clean_seq.to_le_bytes());
        for (i, run) in self.checkpoint.iter().enumerate() {
            put(RUNS_AT + i * 16, &run.start.to_le_bytes());
            put(RUNS_AT + i * 16 + 8, &run.len.to_le_bytes());
        }
        let sum = checksum(&self.uuid, offset, &b[12..]);
        b[8..12].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// Decodes bytes that were read at `offset` of the device.
    pub fn decode(b: &[u8], offset: u64) -> Result<Superblock, SuperblockError> {
        if b.len() != SIZE || b[..8] != MAGIC[..] {
            return Err(SuperblockError::Foreign);
        }
        let uuid: Uuid = b[32..48].try_into().expect("16 bytes");
        if u32_at(b, 8) != checksum(&uuid, offset, &b[12..]) {
            return Err(SuperblockError::Damaged("its checksum is wrong"));
        }
        let version = u32_at(b, 12);
        if version != VERSION {
            return Err(SuperblockError::Version(version));
        }
        let [_, to_write, to_read] = [0, 1, 2].map(|i| u32_at(b, 16 + i * 4) & !KNOWN[i]);
        if to_read != 0 {
            return Err(SuperblockError::Features(to_read));
        }
        let runs = u32_at(b, 68) as usize;
        if runs > MAX_CHECKPOINT_RUNS {
            return Err(SuperblockError::Damaged(
                "its checkpoint lies in too many places",
            ));
        }
        let run = |i: usize| Run {
            start: u64_at(b, RUNS_AT + i * 16),
            len: u64_at(b, RUNS_AT + i * 16 + 8),
        };
        let s = Superblock {
            uuid,
            generation: u64_at(b, 48),
            unit: u32_at(b, 28),
            blocks: u64_at(b, 56),
            journal_blocks: u32_at(b, 64),
            checkpoint_bytes: u64_at(b, 80),
            checkpoint_seq: u64_at(b, 72),
            checkpoint: (0..runs).map(run).collect(),
            clean_seq: u64_at(b, 88),
            sparse: u32_at(b, 16) & SPARSE != 0,
            no_discard: u32_at(b, 16) & NO_DISCARD != 0,
            unknown: to_write,
        };
        s.check()?;
        Ok(s)
    }

    fn check(&self) -> Result<(), SuperblockError> {
        let fits = |r: &Run| {
            let end = r.start.checked_add(r.len);
            r.len > 0 && r.start >= FIRST_BLOCK && end.is_some_and(|end| end <= self.blocks)
        };
        let mut runs = self.checkpoint.clone();
        runs.sort();
        let fit = runs.iter().all(fits) && runs.windows(2).all(|w| w[0].end() <= w[1].start);
        // The sum cannot overflow, because the runs fit on the device.
        let room = || runs.iter().map(|r| r.len).sum::<u64>() * BLOCK;
        let wrong = if !self.unit.is_power_of_two() || !(512..=4096).contains(&self.unit) {
            "its write unit is invalid"
        } else if self.blocks < MIN_DEVICE / BLOCK || self.blocks > MAX_BLOCKS {
            "its size is none"
        } else if u64::from(self.journal_blocks) * BLOCK < 2 * TRANSACTION_MAX as u64
            || u64::from(self.journal_blocks) > (self.blocks / 8).min(MAX_JOURNAL_BLOCKS)
        {
            "its journal's extents have a size that they cannot have"
        } else if self.generation.max(self.checkpoint_seq).max(self.clean_seq) >= MAX_NUMBER {
            "its numbers are out of range"
        } else if !fit || room() < self.checkpoint_bytes {
            "its checkpoint does not lie on the device"
        } else {
            return Ok(());
        };
        Err(SuperblockError::Damaged(wrong))
    }
}

/// Returns the blocks of a journal extent for a device of `blocks` blocks: 64 KiB to 4 MiB.
pub fn journal_blocks(blocks: u64) -> u32 {
    (blocks / 2048).clamp(16, MAX_JOURNAL_BLOCKS) as u32
}

/// Returns the largest number of inodes of a filesystem of `blocks` blocks.
pub fn max_inodes(blocks: u64) -> usize {
    blocks.saturating_mul(4).clamp(1 << 16, 1 << 30) as usize
}

#[cfg(test)]
mod tests;
