//! The written space of logs: filled with zeros ahead of the appends, or taken over from an old log.
//!
//! Promise: once [`HostFile::write_space`] or [`HostFile::adopt_space`] returned, the file's size and extents up to
//! `written_to` are durable and none of them is a hole or merely reserved, so a synced append there is one device
//! write and one flush, and no journal commit.

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

/// Blocks of kernel filesystems; sizes ahead of a log are multiples of it.
const BLOCK: u64 = 4096;
/// Appends that grow the file wait for at most one piece.
const PIECE: u64 = 1 << 20;
/// Holes of a reused log are filled if they are at most this part of it: that costs less than all the syncs that would allocate space anew.
const FILLED: u64 = 8;

impl HostFile {
    fn space_error(&self, what: &str, e: Errno) -> Error {
        Error::io(what, self.path(), e.into())
    }

    /// Writes zeros past the present size until it is at least `capacity`, and makes them durable. Appends go on
    /// meanwhile: those inside the size take no lock of this, those past it wait for one piece.
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
        // From here on all space below the size was written by somebody.
        self.end_windows(&mut self.tail.lock())?;
        if self.size.load(SeqCst) < goal {
            self.reserve(goal)?;
            let zeros = AlignedBuf::zeroed_direct(PIECE.min(goal) as usize);
            let piece = |len| &zeros[..len as usize];
            loop {
                let space = self.space.lock();
                let size = self.size.load(SeqCst);
                let from = size.next_multiple_of(BLOCK);
                if from > size {
                    // `sync_all` cut the file inside a block, which is written: the rest of it reads as zeros.
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

    /// Asks for the blocks up to `to` without moving the end. A synced append there has the inode to write beside its data, and not what each
    /// allocation changes, too. What cannot be had is no error here: the append itself meets it.
    pub(super) fn reserve_past_end(&self, to: u64) {
        let mut tail = self.tail.lock();
        let to = to.min(i64::MAX as u64 - BLOCK).next_multiple_of(BLOCK);
        let there = self.size.load(SeqCst).max(tail.reserved_to);
        // What comes is synced, and windows end with it: that cuts the file, which would take the blocks away again.
        if self.kind == Kind::ReadOnly || to <= there || self.end_windows(&mut tail).is_err() {
            return;
        }
        let _space = self.space.lock();
        let from = self.size.load(SeqCst);
        let past_end = FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(self.main_fd(), past_end, from, to - from).is_err() {
            // A part of it may be there: on a full disk others need that.
            let _ = rustix::fs::ftruncate(self.main_fd(), from);
            return;
        }
        tail.reserved_to = to;
    }

    /// Directly where possible: dirty pages here would be written back inside the next append's sync.
    fn write_zeros(&self, zeros: &[u8], at: u64) -> rustix::io::Result<()> {
        let (fd, unit) = match &self.direct {
            Some((fd, align)) => (fd.as_fd(), Some(align.offset)),
            None => (self.main_fd(), None),
        };
        let zeros = [IoSlice::new(zeros)];
        self.sys()
            .write_all(fd, &zeros, at, unit, Account::Prewrite)
    }

    /// What is not written below `size`, whole blocks, if that is little enough to be filled.
    fn few_holes(&self, size: u64) -> Option<Vec<Range<u64>>> {
        let (mut holes, mut bytes, mut at) = (Vec::new(), 0, 0);
        loop {
            let hole = self.data_until(at, size);
            if hole >= size {
                return Some(holes);
            }
            // After the last there is no data.
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

    /// Asks for the blocks in one go, so that they lie together and a full disk is noticed before anything is
    /// written. A filesystem that cannot do so allocates piece by piece.
    fn reserve(&self, goal: u64) -> Result<()> {
        let _space = self.space.lock();
        let from = self.size.load(SeqCst);
        if from >= goal {
            return Ok(());
        }
        match rustix::fs::fallocate(self.main_fd(), FallocateFlags::KEEP_SIZE, from, goal - from) {
            Err(e @ (Errno::NOSPC | Errno::DQUOT)) => {
                // Gives back what was allocated past the end before the disk was full.
                let _ = rustix::fs::ftruncate(self.main_fd(), from);
                let what = format!("reserving {} bytes of log space", goal - from);
                Err(self.space_error(&what, e))
            }
            _ => Ok(()),
        }
    }

    /// Makes size and extents durable, then finds out how far they are really written.
    fn publish_written(&self) -> Result<()> {
        let size = self.size.load(SeqCst);
        // A failure here may have swallowed the report on an append's dirty page, so it counts as a failed sync.
        self.sync_now(true)?;
        let written = self.data_until(self.written_to.load(SeqCst), size);
        self.written_to.fetch_max(written, SeqCst);
        Ok(())
    }

    /// The first hole or merely reserved byte at or after `from`, at most `size`.
    fn data_until(&self, from: u64, size: u64) -> u64 {
        if from >= size {
            return size;
        }
        match rustix::fs::seek(self.main_fd(), SeekFrom::Hole(from)) {
            Ok(hole) => hole.min(size),
            // Not known: then nothing new is trusted.
            Err(_) => from,
        }
    }

    /// Takes the content this file has from an earlier life as written space, and brings it to `capacity`.
    /// What is not really written (holes left by `release_range`) is filled if it is little; else it is cut off from there on.
    pub(super) fn adopt_space(&self, capacity: u64) -> Result<()> {
        self.end_windows(&mut self.tail.lock())?;
        let size = self.size.load(SeqCst);
        // Blocks past the end, from appends that were expected and did not come, would be nobody's.
        rustix::fs::ftruncate(self.main_fd(), size)
            .map_err(|e| self.space_error("cutting a reused log to its size", e))?;
        // Dirty pages over reserved space count as data until they are written, and cached pages over it for ever:
        // write the first, drop the second, then ask.
        self.sync_now(true)?;
        let _ = rustix::fs::fadvise(self.main_fd(), 0, None, Advice::DontNeed);
        let written = self.data_until(0, size);
        let few = || self.few_holes(size);
        // Where there is no room for that, cutting needs none.
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
