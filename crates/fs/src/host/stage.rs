//! Staging memory: bytes that direct I/O cannot take from their own memory travel through aligned
//! buffers. A few of them are kept.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;

use super::sys::{Account, Sys};
use crate::AlignedBuf;

/// Bytes of the largest staging buffer for unaligned bytes.
const STAGE_MAX: usize = 1 << 20;
/// Number of staging buffers that are kept between appends and small reads.
const STAGE_KEPT: usize = 16;
pub(super) const STAGE_KEPT_MAX: usize = 64 * 1024;

/// Number of staging buffers of [`STAGE_MAX`] bytes that are kept between appends. For another one,
/// the kernel maps and clears 256 pages.
const LARGE_KEPT: usize = 2;

/// The staging buffers of one filesystem that are not in use.
#[derive(Default)]
pub(crate) struct Stages {
    small: Mutex<Vec<AlignedBuf>>,
    /// Buffers of [`STAGE_MAX`] bytes.
    large: Mutex<Vec<AlignedBuf>>,
}

impl Stages {
    pub(super) fn take(&self, room: usize) -> AlignedBuf {
        if room > STAGE_KEPT_MAX {
            return AlignedBuf::with_capacity_direct(room);
        }
        match self.small.lock().pop() {
            Some(mut b) => {
                b.clear();
                b.reserve_exact(room);
                b
            }
            None => AlignedBuf::with_capacity_direct(room),
        }
    }

    pub(super) fn give(&self, stage: AlignedBuf) {
        let mut kept = self.small.lock();
        if stage.capacity() <= STAGE_KEPT_MAX && kept.len() < STAGE_KEPT {
            kept.push(stage);
        }
    }

    /// Takes a buffer for an append of `total` bytes.
    fn take_for_append(&self, total: usize) -> AlignedBuf {
        if total <= STAGE_KEPT_MAX {
            return self.take(total);
        }
        let kept = self.large.lock().pop();
        let mut stage = kept.unwrap_or_else(|| {
            let room = total.min(STAGE_MAX);
            AlignedBuf::with_capacity_direct(room)
        });
        stage.clear();
        stage
    }

    fn give_after_append(&self, stage: AlignedBuf) {
        if stage.capacity() < STAGE_MAX {
            return self.give(stage);
        }
        let mut kept = self.large.lock();
        if kept.len() < LARGE_KEPT {
            kept.push(stage);
        }
    }

    /// Writes all of `bufs` at `offset` through a descriptor for direct I/O. The total length and
    /// the offset are multiples of `unit`. The descriptor requires memory that is aligned to
    /// `memory` bytes. Aligned buffers are written without a copy.
    pub(crate) fn write(
        &self,
        sys: &Sys,
        fd: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        offset: u64,
        unit: usize,
        memory: usize,
    ) -> rustix::io::Result<()> {
        let fits = |b: &IoSlice<'_>| {
            !b.is_empty()
                && b.len().is_multiple_of(unit)
                && (b.as_ptr() as usize).is_multiple_of(memory)
        };
        if bufs.iter().all(fits) {
            return sys.write_all(fd, bufs, offset, Some(unit), Account::Append);
        }
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        let mut stage = self.take_for_append(total);
        let mut at = offset;
        let mut result = Ok(());
        let mut bytes = bufs.iter().map(|b| &b[..]).filter(|b| !b.is_empty());
        let mut rest: &[u8] = &[];
        let mut left = total;
        while left > 0 && result.is_ok() {
            let piece = left.min(STAGE_MAX);
            stage.clear();
            while stage.len() < piece {
                if rest.is_empty() {
                    rest = bytes.next().expect("the lengths add up to the total");
                }
                let n = rest.len().min(piece - stage.len());
                stage.extend_from_slice(&rest[..n]);
                rest = &rest[n..];
            }
            let one = [IoSlice::new(&stage)];
            result = sys.write_all(fd, &one, at, Some(unit), Account::Append);
            at += piece as u64;
            left -= piece;
        }
        self.give_after_append(stage);
        result
    }
}
