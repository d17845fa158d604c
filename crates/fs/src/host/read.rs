//! One read in progress: its descriptor, its aligned range, the bytes read so far, and the result.
//! The three ways of reading (in the caller's thread, through the ring, in the pool) share it.
//!
//! Promise: the result is short only if the file ended. A large result is a slice of the memory
//! that the kernel filled. A small result of a direct read is copied out of memory that is used
//! again. Aligned to a page, each cached block would hold up to two pages, and the copy costs less
//! than the allocation it saves.

use std::os::fd::BorrowedFd;

use super::file::HostFile;
use super::fill::pread_into;
use super::stage::STAGE_KEPT_MAX;
use crate::{AlignedBuf, Bytes, DIRECT_ALIGN, Error, Lifetime, Result};

/// Direct reads of up to this many bytes are copied out, wherever they begin and end.
pub(super) const COPIED_MAX: usize = STAGE_KEPT_MAX - 2 * DIRECT_ALIGN;

/// Largest number of bytes of one call. The kernel moves at most 2 GiB less a page; this is a power
/// of two below that.
const CALL_MAX: usize = 1 << 30;

/// Most bytes that [`brief_room`] rounds up. Above it they would become 512 KiB, which the slab
/// does not serve.
const ROUNDED_MOST: usize = 384 << 10;

/// A read of one file in progress.
pub(super) struct ReadOp {
    direct: bool,
    align: usize,
    /// Offset in the file of the buffer's first byte.
    start: u64,
    /// Bytes of the buffer before the first requested byte.
    head: usize,
    /// Requested bytes, cut at the end of the file.
    len: usize,
    /// Bytes to read in all, from `start` on.
    want: usize,
    ended: bool,
    buf: AlignedBuf,
}

impl ReadOp {
    /// Plans a read. A new buffer is at most half as large again as the bytes it is for.
    pub(super) fn plan(file: &HostFile, offset: u64, len: usize, lifetime: Lifetime) -> ReadOp {
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
            op.buf = match (op.direct, lifetime) {
                (true, Lifetime::Brief) => file.shared.stages.take(brief_room(op.want)),
                (true, Lifetime::Cached) => file.shared.stages.take(op.want),
                (false, _) => AlignedBuf::with_lifetime(op.want, Lifetime::Cached),
            };
        }
        op
    }

    /// Returns the descriptor to read through.
    pub(super) fn fd<'f>(&self, file: &'f HostFile) -> BorrowedFd<'f> {
        file.read_fd(self.direct)
    }

    /// Returns true if there is nothing left to read.
    pub(super) fn done(&self) -> bool {
        self.ended || self.buf.len() >= self.want
    }

    /// Returns the offset and the length of the next call.
    pub(super) fn next_call(&self) -> (u64, usize) {
        let got = self.buf.len();
        (self.start + got as u64, (self.want - got).min(CALL_MAX))
    }

    /// Returns the memory that the next call reads into.
    pub(super) fn memory(&mut self) -> &mut AlignedBuf {
        &mut self.buf
    }

    /// Records that a call read `n` bytes, which are in the buffer already.
    pub(super) fn came(&mut self, n: usize) {
        // A direct read ends off its unit only at the end of the file.
        self.ended = n == 0 || !self.buf.len().is_multiple_of(self.align);
    }

    /// Reads the rest in the caller's thread.
    pub(super) fn run(&mut self, file: &HostFile) -> rustix::io::Result<()> {
        while !self.done() {
            let (offset, want) = self.next_call();
            let n = pread_into(self.fd(file), &mut self.buf, want, offset)?;
            file.sys().count_read(n);
            self.came(n);
        }
        Ok(())
    }

    /// Returns the error of this read.
    pub(super) fn error(&self, file: &HostFile, e: std::io::Error) -> Error {
        let offset = self.start + self.head as u64;
        Error::io(&format!("reading {} bytes", self.len), file.path(), e).at(file.path(), offset)
    }

    /// Returns the bytes of this read.
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

/// Returns the bytes of the buffer for a direct read of `want` bytes that stay briefly.
///
/// Buffers of 64 to 384 KiB have two sizes for each doubling, so that the next read finds one whose
/// pages the system still backs. If each length had a size of its own, most reads of a long scan
/// would begin with new pages.
pub(super) fn brief_room(want: usize) -> usize {
    if want <= STAGE_KEPT_MAX || want > ROUNDED_MOST {
        return want;
    }
    want.next_multiple_of(1 << ((want - 1).ilog2() - 1))
}

/// Plans and performs one read in the caller's thread.
pub(super) fn read_now(file: &HostFile, offset: u64, len: usize) -> Result<Bytes> {
    let mut op = ReadOp::plan(file, offset, len, Lifetime::Cached);
    match op.run(file) {
        Ok(()) => Ok(op.finish(file)),
        Err(e) => Err(op.error(file, e.into())),
    }
}
