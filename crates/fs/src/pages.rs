//! Memory straight from the system that goes straight back to it.
//!
//! An allocator keeps what is freed, in the thread's own pool that took it: a store that fills memtables in one thread and frees
//! them in another held twice the memory it used. What is large, lives long and is freed whole comes from here instead.
//!
//! This is one of the leaf modules that may use `unsafe`. Invariant: `ptr` is a mapping of `len` bytes that nobody else has, made in
//! [`Pages::new`] and unmade once, in `drop`.
#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

/// The unit of size, in bytes.
const PAGE: usize = 4096;

/// From this size on, in bytes, taking and giving back pages costs little beside using them.
pub const PAGES_FROM: usize = 256 << 10;

/// Zeroed memory, aligned to 4096 bytes.
pub struct Pages {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its memory alone, as a Vec<u8> does.
unsafe impl Send for Pages {}
// SAFETY: the only shared operations give out the address and the length.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `size` bytes (not 0), in whole pages. Ends the process when there is no memory, as every allocation does.
    pub fn new(size: usize) -> Pages {
        assert!(size > 0, "no pages asked for");
        let len = size.next_multiple_of(PAGE);
        let layout = Layout::from_size_align(len, PAGE).expect("size fits isize");
        match map(layout) {
            Some(ptr) => Pages { ptr, len },
            None => handle_alloc_error(layout),
        }
    }

    /// Where it begins. Valid until the pages are dropped.
    pub fn start(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn map(layout: Layout) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the system's choice touches no other memory.
    let made = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            layout.size(),
            access,
            MapFlags::PRIVATE,
        )
    };
    NonNull::new(made.ok()?.cast())
}

#[cfg(all(target_os = "linux", not(miri)))]
/// # Safety
/// `ptr` came from [`map`] with this layout, and nobody has it any more.
pub(crate) unsafe fn unmap(ptr: NonNull<u8>, layout: Layout) {
    // SAFETY: as promised. It cannot fail for a whole mapping.
    let _ = unsafe { rustix::mm::munmap(ptr.as_ptr().cast(), layout.size()) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn map(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: the size is not 0.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

#[cfg(not(all(target_os = "linux", not(miri))))]
/// # Safety
/// `ptr` came from [`map`] with this layout, and nobody has it any more.
pub(crate) unsafe fn unmap(ptr: NonNull<u8>, layout: Layout) {
    // SAFETY: as promised.
    unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) };
}

impl Drop for Pages {
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.len, PAGE).expect("as it was made");
        // SAFETY: the invariant.
        unsafe { unmap(self.ptr, layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_zeroed_and_ones_own() {
        let pages: Vec<Pages> = [1, PAGE, PAGE + 1, 1 << 20].map(Pages::new).into();
        for (i, p) in pages.iter().enumerate() {
            assert_eq!(p.start().as_ptr() as usize % PAGE, 0);
            // SAFETY: `len` bytes that nobody else has.
            let bytes = unsafe { std::slice::from_raw_parts_mut(p.start().as_ptr(), p.len()) };
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(i as u8 + 1);
        }
        assert_eq!(
            pages.iter().map(Pages::len).collect::<Vec<_>>(),
            [4096, 4096, 8192, 1 << 20]
        );
        for (i, p) in pages.iter().enumerate() {
            // SAFETY: as above, and nobody writes.
            let bytes = unsafe { std::slice::from_raw_parts(p.start().as_ptr(), p.len()) };
            assert!(bytes.iter().all(|b| *b == i as u8 + 1));
        }
    }
}
