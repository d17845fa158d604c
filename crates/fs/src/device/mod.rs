//! The block-device contract: sectors that are written in place. [`HostDevice`] is a block device of
//! the host or an image file; `SimDevice` of the crate `sim` is one in memory that forgets and lies
//! by seed. LavaFS is written against this contract.
//!
//! # What a device promises
//! - A sector of [`DeviceFacts::unit`] bytes is written whole or not at all.
//! - What was written may be lost in a power cut, in any subset of sectors, until a [`Device::flush`] that began after the
//!   write returned has returned itself. What a process wrote outlives its death.
//! - Reads see all writes that returned.

mod discard;
mod host;
mod loops;
#[cfg(test)]
mod tests;

use std::io::IoSlice;

pub use host::{DeviceOptions, HostDevice};

use crate::{Bytes, FsStats, ReadCompletions, Result};

/// How bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Straight to the device. Offset and length are multiples of the unit.
    Direct,
    /// Through the operating system's page cache, at any offset. Whoever reads these bytes soon does so the same way.
    Cached,
}

/// Whether a device wants to know which space is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discards {
    /// It can be told and gives the space to others, but space that was written ahead is not written any more then: only of use where none was.
    Holes,
    /// It can be told.
    Always,
}

/// Facts about a device.
#[derive(Debug, Clone)]
pub struct DeviceFacts {
    /// Bytes of the file.
    pub len: u64,
    /// Bytes that are written whole or not at all: a power of two from 512 to 4096.
    pub unit: usize,
    /// For people.
    pub description: String,
    /// As [`crate::FsInfo::read_backend`].
    pub read_backend: &'static str,
    /// True when [`Way::Direct`] bypasses the page cache.
    pub direct: bool,
    /// As [`crate::FsInfo::own_memory`].
    pub own_memory: usize,
    /// Whether it takes [`Device::discard`].
    pub discards: Discards,
}

/// One read of a batch.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRead {
    /// First byte on the device.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
    /// How.
    pub way: Way,
}

/// A block device. See the module's head.
pub trait Device: Send + Sync {
    /// What it is.
    fn facts(&self) -> DeviceFacts;

    /// Exactly `len` bytes at `offset`, which must lie on the device.
    fn read(&self, read: DeviceRead) -> Result<Bytes>;

    /// Starts a batch of reads, each as [`Device::read`].
    fn submit_reads(&self, reads: Vec<DeviceRead>) -> Box<dyn ReadCompletions>;

    /// Writes all of `bufs` at `offset`. After an error any part of it may be there.
    fn write(&self, offset: u64, bufs: &[IoSlice<'_>], way: Way) -> Result<()>;

    /// Makes all writes that have returned survive a power cut. After an error nobody knows which of them do.
    fn flush(&self) -> Result<()>;

    /// Says that what lies there is of no use. Advice: it may do nothing, and what is read there afterwards is anything until it is written again.
    /// Neither a write nor a read of it may be under way.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// What was moved since it was opened.
    fn stats(&self) -> FsStats;
}
