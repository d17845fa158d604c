//! Blocks of the device, and runs of them.

use std::ops::Range;

/// Bytes of a block: what space is given out in.
pub const BLOCK: u64 = 4096;
/// Blocks that a device may have: 32 TiB of them. The last number says "hole".
pub const MAX_BLOCKS: u64 = (1 << 33) - 1;
/// Blocks that a file may have: 4 TiB of them.
pub const MAX_FILE_BLOCKS: u64 = (1 << 30) - 1;

/// Blocks on the device that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The first one.
    pub start: u64,
    /// How many.
    pub len: u64,
}

impl Run {
    /// The block behind it.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Its bytes on the device.
    pub fn bytes(&self) -> Range<u64> {
        self.start * BLOCK..self.end() * BLOCK
    }
}
