//! Telling a block device which of its space is of no use any more: the one call of it that no crate has. A leaf module
//! with `unsafe`.
//!
//! Invariant: the kernel is given a pointer to two 64-bit numbers that live for the call, and only reads them.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `BLKDISCARD`: without a type or a size in its number, as the oldest calls of block devices are.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Discards a range of a block device, in bytes; both are multiples of its sectors.
pub(super) fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the kernel reads two 64-bit numbers, where the range begins and how long it is, from where the pointer leads to; `Setter` keeps them alive
    // for the call. On anything but a block device the call fails and touches nothing.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}
