//! Reads into memory that was not initialised before. A leaf module with `unsafe`.
//!
//! Invariant: a buffer's length grows by exactly the bytes the kernel reported as read into its spare memory.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};

use crate::AlignedBuf;

/// Reads at most `want` bytes at `offset` behind the content of `buf`, in one call; interrupted calls are
/// repeated. The capacity must be there. Returns how many bytes came; 0 is the end of the file.
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
    // SAFETY: the kernel initialised the first n bytes of the spare memory just above.
    unsafe { buf.advance(n) };
    Ok(n)
}
