//! One read on its way: which descriptor, which aligned span, how far it came, and the bytes at the end.
//! The three ways of reading (in the caller's thread, by the ring, by the pool) share it.
//!
//! Promise: the result is short only where the file ended. A large one is a slice of the very memory the kernel filled. A small one
//! that was read directly is copied out of memory that is used again: aligned to a page, each cached block would hold up to
//! two pages, and the copy costs less than the allocation it saves.

use std::os::fd::BorrowedFd;

use super::file::HostFile;
use super::fill::pread_into;
use super::stage::STAGE_KEPT_MAX;
use crate::{AlignedBuf, Bytes, DIRECT_ALIGN, Error, Lifetime, Result};

/// Direct reads of up to so many bytes are copied out, wherever they begin and end.
pub(super) const COPIED_MAX: usize = STAGE_KEPT_MAX - 2 * DIRECT_ALIGN;

/// The kernel moves at most this much in one call (2 GiB less a page); a power of two below it.
const CALL_MAX: usize = 1 << 30;

/// A read of one file in progress.
pub(super) struct ReadOp {
    direct: bool,
    align: usize,
    /// Offset in the file of the buffer's first byte.
    start: u64,
    /// Bytes of the buffer before the first one asked for.
    head: usize,
    /// Bytes asked for, cut to where the file ends.
    len: usize,
    /// Bytes to read in all, from `start`.
    want: usize,
    ended: bool,
    buf: AlignedBuf,
}

impl ReadOp {
    /// Plans a read. Allocates no more than the file can fill.
    pub(super) fn plan(file: &HostFile, offset: u64, len: usize) -> ReadOp {
        let wished = offset.saturating_add(len as u64);
        let end = wished.min(file.readable_end(wished));
        let len = end.saturating_sub(offset) as usize;
        let align = file.direct_read_align(offset, end);
        let mut op = ReadOp {
            direct: align.is_some(),
            align: align.unwrap_or(1),
            start: offset,
            head: 0,
            len,
            want: len,
            ended: len == 0,
            buf: AlignedBuf::new(),
        };
        if len != 0 {
            let a = op.align as u64;
            op.start = offset / a * a;
            op.head = (offset - op.start) as usize;
            op.want = (end.next_multiple_of(a) - op.start) as usize;
            op.buf = if op.direct {
                file.shared.stages.take(op.want)
            } else {
                AlignedBuf::with_lifetime(op.want, Lifetime::Cached)
            };
        }
        op
    }

    /// The descriptor to read through.
    pub(super) fn fd<'f>(&self, file: &'f HostFile) -> BorrowedFd<'f> {
        file.read_fd(self.direct)
    }

    /// True when there is nothing left to read.
    pub(super) fn done(&self) -> bool {
        self.ended || self.buf.len() >= self.want
    }

    /// Offset and length of the next call.
    pub(super) fn next_call(&self) -> (u64, usize) {
        let got = self.buf.len();
        (self.start + got as u64, (self.want - got).min(CALL_MAX))
    }

    /// The memory the next call reads into.
    pub(super) fn memory(&mut self) -> &mut AlignedBuf {
        &mut self.buf
    }

    /// Takes note that a call brought `n` bytes, which are in the buffer already.
    pub(super) fn came(&mut self, n: usize) {
        // Direct reads stop off their unit only at the end of the file.
        self.ended = n == 0 || !self.buf.len().is_multiple_of(self.align);
    }

    /// Reads what is left in the caller's thread.
    pub(super) fn run(&mut self, file: &HostFile) -> rustix::io::Result<()> {
        while !self.done() {
            let (offset, want) = self.next_call();
            let n = pread_into(self.fd(file), &mut self.buf, want, offset)?;
            file.sys().count_read(n);
            self.came(n);
        }
        Ok(())
    }

    /// The error of this read.
    pub(super) fn error(&self, file: &HostFile, e: std::io::Error) -> Error {
        let offset = self.start + self.head as u64;
        Error::io(&format!("reading {} bytes", self.len), file.path(), e).at(file.path(), offset)
    }

    /// The bytes.
    pub(super) fn finish(self, file: &HostFile) -> Bytes {
        let len = self.buf.len().saturating_sub(self.head).min(self.len);
        if len == 0 {
            return Bytes::new();
        }
        let asked = self.head..self.head + len;
        if self.direct && self.buf.capacity() <= STAGE_KEPT_MAX {
            let bytes = AlignedBuf::cached_copy(&self.buf[asked]);
            file.shared.stages.give(self.buf);
            return bytes;
        }
        Bytes::from_owner(self.buf).slice(asked)
    }
}

/// Plans and does one read in the caller's thread.
pub(super) fn read_now(file: &HostFile, offset: u64, len: usize) -> Result<Bytes> {
    let mut op = ReadOp::plan(file, offset, len);
    match op.run(file) {
        Ok(()) => Ok(op.finish(file)),
        Err(e) => Err(op.error(file, e.into())),
    }
}
