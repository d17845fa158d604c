//! Telling a block device that nobody needs some of its bytes. A leaf module with `unsafe`.
//!
//! Invariant: the request is the kernel's `BLKDISCARD`, which reads two 64-bit numbers, first byte and length, and writes no memory.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Setter, ioctl};

/// `_IO(0x12, 119)`.
const BLKDISCARD: Opcode = 0x1277;

/// Discards bytes of a block device, in whole sectors of its own size.
pub(crate) fn discard(fd: BorrowedFd<'_>, range: Range<u64>) -> rustix::io::Result<()> {
    let request = [range.start, range.end.saturating_sub(range.start)];
    // SAFETY: the invariant above; the array lives until the call returns.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new(request)) }
}
