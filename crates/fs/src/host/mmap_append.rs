//! A part of a log's file that is mapped into memory. An append without a sync soon after it is
//! then a copy, without a write call.
//!
//! Bytes stored here are in the page cache at once: they outlive the process, reads of the file see
//! them, and `fdatasync` takes them to the device, as with a written page. Failures show
//! differently. A store has no error to return. If the kernel cannot provide a page, it sends a
//! signal, which ends the process. So a window covers only allocated space, on filesystems that
//! never move a written block, and all its pages are made writable when it is opened. A device that
//! is full or broken refuses the window, and the append becomes a write call instead.
//!
//! Three cases remain that end the process. Another process cuts a live log short. A page was
//! written back, was dropped for want of memory, and cannot be read again. The filesystem broke
//! meanwhile: after a page was written back, the next store into it asks the filesystem again.
//!
//! This is one of the leaf modules that may use `unsafe`. Invariant of [`MappedWindow`]: `len`
//! bytes from `ptr` are a shared, writable mapping that no other code knows of, unmapped when the
//! window is dropped. Other processes may change the file, so no reference into the mapping is ever
//! made.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of all windows of the process.
static OPEN_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of all windows of the process. The system counts them as the process's memory.
pub(super) fn open_bytes() -> u64 {
    // Relaxed ordering suffices: the limit need not be exact.
    OPEN_BYTES.load(Relaxed)
}

/// A window: writable pages of a file.
pub(super) struct MappedWindow {
    ptr: NonNull<u8>,
    len: usize,
    /// Offset in the file of the first mapped byte.
    start: u64,
}

// SAFETY: the window owns its mapping alone, and a mapping belongs to no thread.
unsafe impl Send for MappedWindow {}

impl MappedWindow {
    /// Returns the bytes of the window.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// Maps `len` bytes (not 0) from `start` on, both multiples of a page. The file must reach the
    /// end of the range, with space allocated.
    pub(super) fn open(
        fd: BorrowedFd<'_>,
        start: u64,
        len: usize,
    ) -> rustix::io::Result<MappedWindow> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice touches no other memory.
        let made = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                access,
                MapFlags::SHARED,
                fd,
                start,
            )
        }?;
        let window = MappedWindow {
            ptr: NonNull::new(made.cast()).ok_or(rustix::io::Errno::NOMEM)?,
            len,
            start,
        };
        OPEN_BYTES.fetch_add(len as u64, Relaxed);
        // SAFETY: the range is the mapping just made. The advice changes no byte of it.
        unsafe { rustix::mm::madvise(made, len, Advice::LinuxPopulateWrite) }?;
        Ok(window)
    }

    /// Returns true if the window covers this range of the file.
    pub(super) fn covers(&self, offset: u64, len: usize) -> bool {
        offset >= self.start && offset + len as u64 <= self.start + self.len as u64
    }

    /// Stores bytes at an offset of the file, which the window must cover.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        assert!(self.covers(offset, bytes.len()), "outside of the window");
        let at = (offset - self.start) as usize;
        // SAFETY: the range is inside the mapping, as the assertion says, and no other code of this
        // process knows of the mapping.
        unsafe {
            self.ptr
                .as_ptr()
                .add(at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

impl Drop for MappedWindow {
    fn drop(&mut self) {
        // SAFETY: by the invariant, no other code has an address inside the mapping.
        let done = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
        debug_assert!(
            done.is_ok(),
            "a mapping that the system does not take back: {done:?}"
        );
        OPEN_BYTES.fetch_sub(self.len as u64, Relaxed);
    }
}
