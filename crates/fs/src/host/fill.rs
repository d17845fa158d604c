//! Reads into memory that was not initialised before. This is a leaf module with `unsafe`.
//!
//! Invariant: a buffer's length grows by exactly the bytes that the kernel reported as read into
//! its spare memory.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};

use crate::AlignedBuf;

/// Reads at most `want` bytes at `offset` behind the content of `buf`, in one call, and repeats
/// interrupted calls. The buffer must have the capacity. Returns the number of bytes that were
/// read; 0 is the end of the file.
pub(super) fn pread_into(
    fd: BorrowedFd<'_>,
    buf: &mut AlignedBuf,
    want: usize,
    offset: u64,
) -> Result<usize> {
    let n = loop {
        let spare = &mut buf.spare_mut()[..want];
        match rustix::io::pread(fd, spare, offset) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
            Ok((read, _)) => break read.len(),
        }
    };
    // SAFETY: the kernel has just initialised the first n bytes of the spare memory.
    unsafe { buf.advance(n) };
    Ok(n)
}
