//! A part of a log's file mapped into memory: an append that nobody syncs soon is then a copy, and no write call.
//!
//! Bytes stored here are the page cache's at once: they outlive the process, reads of the file see them, and `fdatasync` takes them to
//! the device, as with a written page. What differs is how failure shows. A store has no error to return; a page that the
//! kernel cannot give is a signal, which ends the process. So a window covers only space that is allocated already, on filesystems that never
//! move a written block, and all its pages are made writable when it is opened: a device that is full or broken refuses the window, and the
//! append goes by a write instead. What is left is somebody who cuts a live log short, a page that was written back,
//! dropped for want of memory, and cannot be read again, and a filesystem that broke since: after a page was written back the next store into it
//! asks the filesystem again.
//!
//! This is one of the leaf modules that may use `unsafe`. Invariant of [`Window`]: `len` bytes from `ptr` are a shared, writable mapping that
//! nobody else knows of, given back when it is dropped. Other processes may change the file, so no reference into it is ever made.
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

/// Pages of a file, writable.
pub(super) struct Window {
    ptr: NonNull<u8>,
    len: usize,
    /// Where in the file it begins.
    start: u64,
}

// SAFETY: it has the mapping alone, and a mapping belongs to no thread.
unsafe impl Send for Window {}

impl Window {
    /// Returns its bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// Maps `len` bytes (not 0) from `start` on, both whole pages. The file must reach so far, with space allocated.
    pub(super) fn open(fd: BorrowedFd<'_>, start: u64, len: usize) -> rustix::io::Result<Window> {
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
        let window = Window {
            ptr: NonNull::new(made.cast()).ok_or(rustix::io::Errno::NOMEM)?,
            len,
            start,
        };
        OPEN_BYTES.fetch_add(len as u64, Relaxed);
        // SAFETY: the mapping just made. The advice changes no byte of it.
        unsafe { rustix::mm::madvise(made, len, Advice::LinuxPopulateWrite) }?;
        Ok(window)
    }

    /// True when it covers these bytes of the file.
    pub(super) fn covers(&self, offset: u64, len: usize) -> bool {
        offset >= self.start && offset + len as u64 <= self.start + self.len as u64
    }

    /// Stores bytes at a place in the file, which it must cover.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        assert!(self.covers(offset, bytes.len()), "outside of the window");
        let at = (offset - self.start) as usize;
        // SAFETY: inside the mapping, as just seen, which nobody else in this process knows of.
        unsafe {
            self.ptr
                .as_ptr()
                .add(at)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the invariant; nobody has an address inside.
        let done = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
        debug_assert!(
            done.is_ok(),
            "a mapping that the system does not take back: {done:?}"
        );
        OPEN_BYTES.fetch_sub(self.len as u64, Relaxed);
    }
}
