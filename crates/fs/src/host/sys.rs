//! The system calls that move bytes, with their counters, their retry rules, and their faults in
//! tests.
//!
//! Promise: an interrupted read or write is continued. A sync is never repeated, whatever its
//! error: the kernel forgets dirty pages that it failed to write, so a second call would report a
//! success that is none.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::io::{Errno, Result};

use crate::FsStats;

/// The kernel's limit on the number of buffers in one vectored call.
const IOV_MAX: usize = 1024;

/// The counter that a write adds to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    Append,
    Prewrite,
}

/// The call that a test makes fail, and how it fails.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The next write fails.
    Write(Errno),
    /// The next write moves this many bytes, and the write after it fails.
    ShortWrite(usize, Errno),
    /// The next sync fails.
    Sync(Errno),
    /// The next window cannot be opened.
    Window,
    /// The space for the next window cannot be allocated.
    Allocate(Errno),
}

/// Counters of one filesystem and the calls that feed them.
#[derive(Default)]
pub(crate) struct Sys {
    bytes_written: AtomicU64,
    bytes_prewritten: AtomicU64,
    bytes_read: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
    /// If true, windows are used on every filesystem, so that tests cover them wherever they run.
    #[cfg(test)]
    pub(super) map_anywhere: std::sync::atomic::AtomicBool,
    /// A function that the appender calls before the bytes move.
    #[cfg(test)]
    pub(super) beside: parking_lot::Mutex<Option<Box<dyn FnMut() + Send>>>,
    #[cfg(test)]
    pub(super) faults: parking_lot::Mutex<std::collections::VecDeque<Fault>>,
}

impl Sys {
    pub(crate) fn stats(&self) -> FsStats {
        FsStats {
            bytes_written: self.bytes_written.load(Relaxed),
            bytes_prewritten: self.bytes_prewritten.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
        }
    }

    /// Counts one read call that returned `n` bytes.
    pub(super) fn count_read(&self, n: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes_read.fetch_add(n as u64, Relaxed);
    }

    #[cfg(test)]
    fn write_fault(&self) -> Option<Result<usize>> {
        let mut faults = self.faults.lock();
        match faults.front().copied() {
            Some(Fault::Write(e)) => {
                faults.pop_front();
                Some(Err(e))
            }
            Some(Fault::ShortWrite(n, e)) => {
                faults[0] = Fault::Write(e);
                Some(Ok(n))
            }
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn window_fault(&self) -> bool {
        let mut faults = self.faults.lock();
        let refused = faults.front() == Some(&Fault::Window);
        if refused {
            faults.pop_front();
        }
        refused
    }

    #[cfg(test)]
    pub(super) fn before_bytes(&self) {
        if let Some(beside) = &mut *self.beside.lock() {
            beside();
        }
    }

    pub(super) fn windows_anywhere(&self) -> bool {
        #[cfg(test)]
        return self.map_anywhere.load(Relaxed);
        #[cfg(not(test))]
        return false;
    }

    /// Allocates space for `len` bytes from `from` on and moves the end of the file behind it.
    /// After an error, a part of the space may be allocated.
    pub(super) fn allocate(&self, fd: BorrowedFd<'_>, from: u64, len: u64) -> Result<()> {
        #[cfg(test)]
        {
            let mut faults = self.faults.lock();
            if let Some(Fault::Allocate(e)) = faults.front().copied() {
                faults.pop_front();
                rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::empty(), from, len / 2)?;
                return Err(e);
            }
        }
        rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::empty(), from, len)
    }

    fn pwritev(&self, fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        self.writes.fetch_add(1, Relaxed);
        #[cfg(test)]
        self.before_bytes();
        #[cfg(test)]
        match self.write_fault() {
            Some(Ok(n)) => {
                let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
                // The short write goes through the page cache of the test's file, so its alignment
                // does not matter.
                return rustix::io::pwrite(fd, &all[..n.min(all.len())], offset);
            }
            Some(Err(e)) => return Err(e),
            None => {}
        }
        loop {
            match rustix::io::pwritev(fd, &bufs[..bufs.len().min(IOV_MAX)], offset) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Writes all of `bufs` at `offset`. If `unit` is given, each call must move a multiple of it,
    /// as direct I/O requires. After an error, any part of the bytes may be in the file.
    pub(crate) fn write_all(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        mut offset: u64,
        unit: Option<usize>,
        account: Account,
    ) -> Result<()> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if total == 0 {
            return Ok(());
        }
        let mut left = total;
        let mut step = |bufs: &[IoSlice<'_>]| -> Result<usize> {
            let n = self.pwritev(fd, bufs, offset)?;
            // A write that moves no bytes would loop for ever, and one that moves a part of a
            // sector would lose its alignment.
            if n == 0 || (n < left && unit.is_some_and(|u| n % u != 0)) {
                return Err(Errno::IO);
            }
            offset += n as u64;
            left -= n;
            Ok(n)
        };
        let mut done = step(bufs)?;
        if done < total {
            let mut owned = bufs.to_vec();
            let mut rest = &mut owned[..];
            IoSlice::advance_slices(&mut rest, done);
            while done < total {
                let n = step(rest)?;
                IoSlice::advance_slices(&mut rest, n);
                done += n;
            }
        }
        match account {
            Account::Append => &self.bytes_written,
            Account::Prewrite => &self.bytes_prewritten,
        }
        .fetch_add(total as u64, Relaxed);
        Ok(())
    }

    /// Counts bytes that an append stored in a window, without a write call.
    pub(super) fn count_mapped(&self, n: usize) {
        self.bytes_written.fetch_add(n as u64, Relaxed);
    }

    /// Counts bytes of an append as written ahead of need.
    pub(super) fn recount_as_prewritten(&self, n: usize) {
        self.bytes_written.fetch_sub(n as u64, Relaxed);
        self.bytes_prewritten.fetch_add(n as u64, Relaxed);
    }

    fn count_sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        #[cfg(test)]
        {
            let mut faults = self.faults.lock();
            if let Some(Fault::Sync(e)) = faults.front().copied() {
                faults.pop_front();
                return Err(e);
            }
        }
        Ok(())
    }

    /// Syncs the data, and the metadata that is needed to read it back. The call is never repeated.
    pub(crate) fn fdatasync(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.count_sync()?;
        rustix::fs::fdatasync(fd)
    }

    /// Syncs the data and all metadata. The call is never repeated.
    pub(super) fn fsync(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.count_sync()?;
        rustix::fs::fsync(fd)
    }

    /// Counts and performs a sync of a directory.
    pub(super) fn fsync_dir(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        self.count_sync()?;
        sync()
    }
}
