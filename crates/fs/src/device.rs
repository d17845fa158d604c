//! The block-device contract: sectors that are written in place. [`HostDevice`] is a block device
//! of the host or an image file. `SimDevice` of the crate `sim` is a device in memory that loses
//! and falsifies writes by seed. LavaFS is written against this contract.
//!
//! # Promises of a device
//! - A sector of [`DeviceFacts::unit`] bytes is written whole or not at all.
//! - A power cut may lose written bytes, in any subset of sectors, until a [`Device::flush`] that
//!   began after the write returned has itself returned. The bytes that a process wrote outlive its
//!   death.
//! - Reads see all writes that returned.

mod discard;
mod host;
mod loop_device;
#[cfg(test)]
mod tests;

use std::io::IoSlice;

pub use host::{DeviceOptions, HostDevice};

use crate::{Bytes, FsStats, ReadCompletions, Result};

/// The way of bytes to and from a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Straight to the device. Offset and length are multiples of the unit.
    Direct,
    /// Through the operating system's page cache, at any offset. Reads of these bytes soon
    /// afterwards use the same way.
    Cached,
}

/// The benefit that a device has from knowing which space is unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discards {
    /// A discard releases the space to other files, and the space is then no longer written ahead.
    /// It is useful only for space that was never written ahead.
    Holes,
    /// A discard is always useful.
    Always,
}

/// Facts about a device.
#[derive(Debug, Clone)]
pub struct DeviceFacts {
    /// Bytes of the device.
    pub len: u64,
    /// Bytes that are written whole or not at all: a power of two from 512 to 4096.
    pub unit: usize,
    /// Kind and place of the device, for people.
    pub description: String,
    /// The way of batched reads, as [`crate::FsInfo::read_backend`].
    pub read_backend: &'static str,
    /// True if [`Way::Direct`] bypasses the page cache.
    pub direct: bool,
    /// Largest read, in bytes, whose result lies in memory of its own, as
    /// [`crate::FsInfo::own_memory`].
    pub own_memory: usize,
    /// The benefit of [`Device::discard`].
    pub discards: Discards,
}

/// One read of a batch.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRead {
    /// First byte on the device.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
    /// The way of the bytes.
    pub way: Way,
}

/// A block device. The contract stands at the head of this module.
pub trait Device: Send + Sync {
    /// Returns the facts about the device.
    fn facts(&self) -> DeviceFacts;

    /// Reads exactly `len` bytes at `offset`. The range must lie on the device.
    fn read(&self, read: DeviceRead) -> Result<Bytes>;

    /// Starts a batch of reads, each with the rules of [`Device::read`].
    fn submit_reads(&self, reads: Vec<DeviceRead>) -> Box<dyn ReadCompletions>;

    /// Writes all of `bufs` at `offset`. After an error, any part of the bytes may be on the
    /// device.
    fn write(&self, offset: u64, bufs: &[IoSlice<'_>], way: Way) -> Result<()>;

    /// Makes all writes that have returned survive a power cut. After an error, it is unknown which
    /// writes survive.
    fn flush(&self) -> Result<()>;

    /// Tells the device that a range is unused. This is advice, and the device may ignore it. Until
    /// the range is written again, reads of it return arbitrary bytes. The caller makes sure that
    /// no write and no read of the range is in progress.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Returns the counters since the device was opened.
    fn stats(&self) -> FsStats;
}
