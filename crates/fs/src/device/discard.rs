//! The call that tells a block device which space is unused. No crate has this call. This is a leaf
//! module with `unsafe`.
//!
//! Invariant: the kernel is given a pointer to two 64-bit numbers that live for the call, and only
//! reads them.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// The number of `BLKDISCARD`. It contains no type and no size, as the numbers of the oldest calls
/// of block devices do not.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Discards a range of a block device. `offset` and `len` are bytes, and multiples of the device's
/// sectors.
pub(super) fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the pointer leads to two 64-bit numbers, the start and the length of the range, which
    // the kernel only reads. `Setter` keeps them alive for the call. On a file that is no block
    // device the call fails and touches nothing.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}
