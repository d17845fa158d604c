//! What lies where on the device, and the bytes of the superblock: `docs/format/lava.md` is the specification.

use super::record::MAX_NAME;
use super::runs::{BLOCK, MAX_BLOCKS, Run};

/// A filesystem's random number: part of every checksum, so that nothing of another one is taken for its own.
pub type Uuid = [u8; 16];

/// Where the two copies of the superblock lie, in bytes.
pub const SUPERBLOCKS: [u64; 2] = [4096, (1 << 20) - 4096];
/// The first block that is given out. What lies before belongs to superblocks, and to nobody.
pub const FIRST_BLOCK: u64 = (1 << 20) / BLOCK;
/// The smallest device: a journal and a checkpoint, and something beside them.
pub const MIN_DEVICE: u64 = 4 << 20;
/// Bytes of records in one transaction at most, but for a last record that passes it.
pub const TRANSACTION_GOAL: usize = 8 << 10;
/// The largest transaction with all that belongs to it: a journal extent has room for one, and for its own header.
pub const TRANSACTION_MAX: usize = TRANSACTION_GOAL + (8 << 10) + 2 * MAX_NAME;
/// Bytes of one piece of a checkpoint at most, header included.
pub const PIECE: usize = 64 << 10;
/// Blocks of a journal extent at most.
const MAX_JOURNAL_BLOCKS: u64 = 1024;
/// Generations and transactions stay below this.
pub const MAX_NUMBER: u64 = 1 << 60;
/// Runs that a checkpoint may lie in.
pub const MAX_CHECKPOINT_RUNS: usize = 240;

const MAGIC: &[u8; 8] = b"BSLTLAVA";
const VERSION: u32 = 1;
const SIZE: usize = 4096;
const RUNS_AT: usize = 96;

/// Features that a filesystem has and this build knows, by what who does not know them may do: mount, mount for reading only, nothing.
const KNOWN: [u32; 3] = [SPARSE | NO_DISCARD, 0, 0];
/// The image was not written when it was made.
const SPARSE: u32 = 1;
/// The device is not told of what is free.
const NO_DISCARD: u32 = 2;

/// The superblock: how large everything is, and where the newest checkpoint lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The filesystem.
    pub uuid: Uuid,
    /// Counts its superblocks: the larger one is the newer.
    pub generation: u64,
    /// Bytes that the device writes whole or not at all.
    pub unit: u32,
    /// Blocks of the device that are in use for it.
    pub blocks: u64,
    /// Blocks of a journal extent.
    pub journal_blocks: u32,
    /// Bytes of the checkpoint.
    pub checkpoint_bytes: u64,
    /// The last transaction that is part of the checkpoint.
    pub checkpoint_seq: u64,
    /// The checkpoint's place.
    pub checkpoint: Vec<Run>,
    /// The last transaction of the last clean end; a journal that ends before it has lost something.
    pub clean_seq: u64,
    /// The image was not written when it was made.
    pub sparse: bool,
    /// The device is not told of what is free.
    pub no_discard: bool,
    /// Features that this build does not know, and without which it may read but not write.
    pub unknown: u32,
}

/// Why a superblock is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuperblockError {
    /// Something else, or nothing.
    Foreign,
    /// Of a version that this build does not know.
    Version(u32),
    /// With features that this build does not know and that it cannot be read without.
    Features(u32),
    /// One of ours that is damaged.
    Damaged(&'static str),
}

/// The checksum of everything but itself: of the filesystem, the place and the bytes.
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
    /// Its bytes as they lie at `offset`.
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

    /// From what was read at `offset`.
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
        // Once they fit, they are no more than the device.
        let room = || runs.iter().map(|r| r.len).sum::<u64>() * BLOCK;
        let wrong = if !self.unit.is_power_of_two() || !(512..=4096).contains(&self.unit) {
            "its write unit is none"
        } else if self.blocks < MIN_DEVICE / BLOCK || self.blocks > MAX_BLOCKS {
            "its size is none"
        } else if u64::from(self.journal_blocks) * BLOCK < 2 * TRANSACTION_MAX as u64
            || u64::from(self.journal_blocks) > (self.blocks / 8).min(MAX_JOURNAL_BLOCKS)
        {
            "its journal's extents have a size that they cannot have"
        } else if self.generation.max(self.checkpoint_seq).max(self.clean_seq) >= MAX_NUMBER {
            "its numbers are none"
        } else if !fit || room() < self.checkpoint_bytes {
            "its checkpoint does not lie on the device"
        } else {
            return Ok(());
        };
        Err(SuperblockError::Damaged(wrong))
    }
}

/// Blocks of a journal extent on a device of so many: 64 KiB to 4 MiB.
pub fn journal_blocks(blocks: u64) -> u32 {
    (blocks / 2048).clamp(16, MAX_JOURNAL_BLOCKS) as u32
}

/// Inodes that a filesystem of so many blocks may have.
pub fn max_inodes(blocks: u64) -> usize {
    blocks.saturating_mul(4).clamp(1 << 16, 1 << 30) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Superblock {
        Superblock {
            uuid: *b"0123456789abcdef",
            generation: 7,
            unit: 512,
            blocks: 5000,
            journal_blocks: 16,
            checkpoint_bytes: 10_000,
            checkpoint_seq: 3,
            checkpoint: vec![Run { start: 300, len: 2 }, Run { start: 400, len: 1 }],
            clean_seq: 9,
            sparse: true,
            no_discard: true,
            unknown: 0,
        }
    }

    #[test]
    fn a_superblock_comes_back_and_no_changed_bit_of_it() {
        let s = some();
        let bytes = s.encode(SUPERBLOCKS[0]);
        assert_eq!(Superblock::decode(&bytes, SUPERBLOCKS[0]), Ok(s));
        let elsewhere = Superblock::decode(&bytes, SUPERBLOCKS[1]);
        assert_eq!(
            elsewhere,
            Err(SuperblockError::Damaged("its checksum is wrong"))
        );
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Superblock::decode(&flipped, SUPERBLOCKS[0]).is_err(),
                "bit {bit}"
            );
        }
        let short = Superblock::decode(&bytes[..4000], SUPERBLOCKS[0]);
        assert_eq!(short, Err(SuperblockError::Foreign));
    }

    #[test]
    fn versions_and_features_to_come_are_told_apart() {
        let with = |at: usize, value: u32| {
            let s = some();
            let mut b = s.encode(SUPERBLOCKS[0]);
            b[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let sum = checksum(&s.uuid, SUPERBLOCKS[0], &b[12..]);
            b[8..12].copy_from_slice(&sum.to_le_bytes());
            Superblock::decode(&b, SUPERBLOCKS[0])
        };
        assert_eq!(with(12, 2), Err(SuperblockError::Version(2)));
        assert!(with(16, 8).is_ok(), "compatible");
        assert_eq!(with(20, 8).map(|s| s.unknown), Ok(8), "to be read");
        assert_eq!(with(24, 8), Err(SuperblockError::Features(8)));
        for (at, value) in [
            (28, 513),
            (56, 3),
            (64, 2),
            (64, 100_000),
            (68, 241),
            (104, 0),
        ] {
            assert!(
                matches!(with(at, value), Err(SuperblockError::Damaged(_))),
                "{value} at {at}"
            );
        }
    }
}
