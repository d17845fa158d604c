//! Blocks of the device, and runs of them.

use std::ops::Range;

/// Bytes of a block, the unit of allocation.
pub const BLOCK: u64 = 4096;
/// Largest number of blocks of a device: 32 TiB. In a packed extent this number means a hole.
pub const MAX_BLOCKS: u64 = (1 << 33) - 1;
/// Largest number of blocks of a file: 4 TiB.
pub const MAX_FILE_BLOCKS: u64 = (1 << 30) - 1;

/// Contiguous blocks on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub len: u64,
}

impl Run {
    /// Returns the block behind the run.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Returns the bytes of the run on the device.
    pub fn bytes(&self) -> Range<u64> {
        self.start * BLOCK..self.end() * BLOCK
    }
}
