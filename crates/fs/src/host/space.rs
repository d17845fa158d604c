//! The written space of logs, filled with zeros ahead of the appends or taken over from an old log.
//!
//! Promise: once [`HostFile::write_space`] or [`HostFile::adopt_space`] returned, the file's size
//! and its extents up to `written_to` are durable, and none of the extents is a hole or merely
//! reserved. So a synced append there is one device write and one flush, without a journal commit.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::MutexGuard;
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::file::{HostFile, Kind};
use super::sys::Account;
use crate::{AlignedBuf, Error, Result};

/// Bytes of a block of kernel filesystems. Sizes of space ahead of a log are multiples of it.
const BLOCK: u64 = 4096;
/// Bytes of zeros that are written at a time. An append that grows the file waits for at most one
/// such write.
const PIECE: u64 = 1 << 20;
/// Holes of a reused log are filled if they are at most one part in this many of the log. That
/// costs less than all the syncs that would allocate space anew.
const FILLED: u64 = 8;

impl HostFile {
    fn space_error(&self, what: &str, e: Errno) -> Error {
        Error::io(what, self.path(), e.into())
    }

    /// Writes zeros past the present size until the size is at least `capacity`, and makes them
    /// durable. Appends continue meanwhile: appends inside the size take none of these locks, and
    /// appends past the size wait for one piece.
    pub(super) fn write_space(&self, capacity: u64) -> Result<()> {
        let _one = self.extending.lock();
        let Some(goal) = capacity
            .checked_next_multiple_of(BLOCK)
            .filter(|g| *g <= i64::MAX as u64)
        else {
            return Err(
                Error::invalid(format!("a log of {capacity} bytes is too large"))
                    .in_file(self.path()),
            );
        };
        if self.written_to.load(SeqCst) >= capacity {
            return Ok(());
        }
        let what = "writing log space ahead";
        // From here on, all space below the size is written.
        self.end_windows(&mut self.append_state.lock())?;
        if self.size.load(SeqCst) < goal {
            self.reserve(goal)?;
            let zeros = AlignedBuf::zeroed_direct(PIECE.min(goal) as usize);
            let piece = |len| &zeros[..len as usize];
            loop {
                let space = self.space.lock();
                let size = self.size.load(SeqCst);
                let from = size.next_multiple_of(BLOCK);
                if from > size {
                    // `sync_all` cut the file inside a written block. The rest of that block reads
                    // as zeros.
                    rustix::fs::ftruncate(self.main_fd(), from)
                        .map_err(|e| self.space_error(what, e).at(self.path(), size))?;
                    self.size.store(from, SeqCst);
                }
                if from >= goal {
                    break;
                }
                let len = PIECE.min(goal - from);
                self.write_zeros(piece(len), from)
                    .map_err(|e| self.space_error(what, e).at(self.path(), from))?;
                self.size.store(from + len, SeqCst);
                MutexGuard::unlock_fair(space);
            }
        }
        self.publish_written()
    }

    /// Allocates the blocks up to `to` without moving the end of the file. A synced append there
    /// then writes the inode beside its data, but not the metadata that each allocation changes. If
    /// the blocks cannot be allocated, this call succeeds and the append itself meets the error.
    pub(super) fn reserve_past_end(&self, to: u64) {
        let mut state = self.append_state.lock();
        let to = to.min(i64::MAX as u64 - BLOCK).next_multiple_of(BLOCK);
        let there = self.size.load(SeqCst).max(state.reserved_to);
        // The appends to come are synced and end the windows. Ending windows cuts the file, which
        // would release the new blocks.
        if self.kind == Kind::ReadOnly || to <= there || self.end_windows(&mut state).is_err() {
            return;
        }
        let _space = self.space.lock();
        let from = self.size.load(SeqCst);
        let past_end = FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(self.main_fd(), past_end, from, to - from).is_err() {
            // A part of the blocks may be allocated. On a full disk other files need them.
            let _ = rustix::fs::ftruncate(self.main_fd(), from);
            return;
        }
        state.reserved_to = to;
    }

    /// Writes zeros, directly if possible: dirty pages here would be written back inside the sync
    /// of the next append.
    fn write_zeros(&self, zeros: &[u8], at: u64) -> rustix::io::Result<()> {
        let (fd, unit) = match &self.direct {
            Some((fd, align)) => (fd.as_fd(), Some(align.offset)),
            None => (self.main_fd(), None),
        };
        let zeros = [IoSlice::new(zeros)];
        self.sys()
            .write_all(fd, &zeros, at, unit, Account::Prewrite)
    }

    /// Returns the ranges below `size` that are not written, if they are whole blocks and few
    /// enough to be filled.
    fn few_holes(&self, size: u64) -> Option<Vec<Range<u64>>> {
        let (mut holes, mut bytes, mut at) = (Vec::new(), 0, 0);
        loop {
            let hole = self.data_until(at, size);
            if hole >= size {
                return Some(holes);
            }
            // Behind the last hole there is no data.
            let end = match rustix::fs::seek(self.main_fd(), SeekFrom::Data(hole)) {
                Ok(data) => data.min(size),
                Err(Errno::NXIO) => size,
                Err(_) => return None,
            };
            bytes += end - hole;
            let whole = hole.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK);
            if !whole || end <= at || bytes > size / FILLED {
                return None;
            }
            holes.push(hole..end);
            at = end;
        }
    }

    fn fill(&self, holes: &[Range<u64>]) -> Result<()> {
        let largest = holes.iter().map(|h| h.end - h.start).max().unwrap_or(0);
        let zeros = AlignedBuf::zeroed_direct(PIECE.min(largest) as usize);
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end {
                let len = PIECE.min(hole.end - at);
                self.write_zeros(&zeros[..len as usize], at).map_err(|e| {
                    self.space_error("filling the holes of a reused log", e)
                        .at(self.path(), at)
                })?;
                at += len;
            }
        }
        Ok(())
    }

    /// Allocates the blocks with one call, so that they are contiguous and a full disk is noticed
    /// before anything is written. A filesystem that cannot do so allocates each piece as it is
    /// written.
    fn reserve(&self, goal: u64) -> Result<()> {
        let _space = self.space.lock();
        let from = self.size.load(SeqCst);
        if from >= goal {
            return Ok(());
        }
        match rustix::fs::fallocate(self.main_fd(), FallocateFlags::KEEP_SIZE, from, goal - from) {
            Err(e @ (Errno::NOSPC | Errno::DQUOT)) => {
                // The blocks that were allocated past the end before the disk was full are
                // released.
                let _ = rustix::fs::ftruncate(self.main_fd(), from);
                let what = format!("reserving {} bytes of log space", goal - from);
                Err(self.space_error(&what, e))
            }
            _ => Ok(()),
        }
    }

    /// Makes size and extents durable, then finds out up to where they are really written.
    fn publish_written(&self) -> Result<()> {
        let size = self.size.load(SeqCst);
        // A failure here may have taken the error report of an append's dirty page, so it counts as
        // a failed sync.
        self.sync_now(true)?;
        let written = self.data_until(self.written_to.load(SeqCst), size);
        self.written_to.fetch_max(written, SeqCst);
        Ok(())
    }

    /// Returns the first hole or merely reserved byte at or after `from`, at most `size`.
    fn data_until(&self, from: u64, size: u64) -> u64 {
        if from >= size {
            return size;
        }
        match rustix::fs::seek(self.main_fd(), SeekFrom::Hole(from)) {
            Ok(hole) => hole.min(size),
            // The answer is unknown, so no new space counts as written.
            Err(_) => from,
        }
    }

    /// Takes over the content of an earlier life as written space, and extends it to `capacity`.
    /// Parts that are not really written (holes left by `release_range`) are filled if they are
    /// small. Otherwise the file is cut before the first of them.
    pub(super) fn adopt_space(&self, capacity: u64) -> Result<()> {
        self.end_windows(&mut self.append_state.lock())?;
        let size = self.size.load(SeqCst);
        // Blocks past the end come from appends that were announced and did not happen. No other
        // code would release them.
        rustix::fs::ftruncate(self.main_fd(), size)
            .map_err(|e| self.space_error("cutting a reused log to its size", e))?;
        // Dirty pages over reserved space count as data until they are written, and cached pages
        // over it count as data for ever. So the dirty pages are written and the cached pages are
        // dropped before the holes are looked for.
        self.sync_now(true)?;
        let _ = rustix::fs::fadvise(self.main_fd(), 0, None, Advice::DontNeed);
        let written = self.data_until(0, size);
        let few = || self.few_holes(size);
        // If there is no room for filling the holes, the file is cut, which needs no room.
        let filled = written < size && few().is_some_and(|holes| self.fill(&holes).is_ok());
        if filled {
            self.publish_written()?;
        } else if written < size {
            let kept = written / BLOCK * BLOCK;
            rustix::fs::ftruncate(self.main_fd(), kept)
                .map_err(|e| self.space_error("cutting off the holes of a reused log", e))?;
            self.size.store(kept, SeqCst);
            if kept >= capacity {
                return self.publish_written();
            }
        } else {
            self.written_to.store(size, SeqCst);
        }
        self.write_space(capacity)
    }
}
