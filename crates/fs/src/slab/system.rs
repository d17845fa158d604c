//! The system calls of a slab: mapping and unmapping spans, and returning pages.
//!
//! This is one of the leaf modules that may use `unsafe`. The invariants stand at the head of
//! [`slab`](super). A span is one mapping (invariant 1), and only memory that no code uses is
//! unmapped or returned.
#![allow(unsafe_code)]

use super::size_class::PAGE;
use super::span::{SPAN, Span};
use std::ptr::NonNull;
#[cfg(not(miri))]
use std::ptr::null_mut;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system calls of a slab. Tests can change what the system answers.
pub(super) struct System {
    /// Bytes of a page of the system. 0 stands for the page size of the real system.
    #[cfg(test)]
    pub(super) page: AtomicUsize,
    /// Number of calls that returned pages.
    #[cfg(test)]
    pub(super) returns: AtomicUsize,
    /// If true, the system refuses to unmap spans.
    #[cfg(test)]
    pub(super) keeps_spans: std::sync::atomic::AtomicBool,
}

impl System {
    pub(super) const fn new() -> System {
        System {
            #[cfg(test)]
            page: AtomicUsize::new(0),
            #[cfg(test)]
            returns: AtomicUsize::new(0),
            #[cfg(test)]
            keeps_spans: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Returns the bytes of a page of the system.
    pub(super) fn page(&self) -> usize {
        #[cfg(test)]
        match self.page.load(Relaxed) {
            0 => {}
            page => return page,
        }
        page_size()
    }

    /// Maps zeroed memory for a span, aligned to its size. Returns `None` if the system has no
    /// memory, or if its pages are not [`PAGE`] bytes. A slot could share a larger page with its
    /// neighbour, and then the pages of the slot could not be returned.
    pub(super) fn map(&self) -> Option<NonNull<u8>> {
        if self.page() != PAGE {
            return None;
        }
        map()
    }

    /// Unmaps a span. Returns false if the system refuses. It does so if a mapping around the span
    /// would be split, and the process has as many mappings as it may have. Nothing changes then.
    ///
    /// # Safety
    /// [`System::map`] returned the span. No other code uses its memory, and no code uses it
    /// afterwards if the result is true.
    pub(super) unsafe fn unmap(&self, span: *mut Span) -> bool {
        #[cfg(test)]
        if self.keeps_spans.load(Relaxed) {
            return false;
        }
        // SAFETY: as promised.
        unsafe { unmap(span) }
    }

    /// Returns pages to the system; the next read of them gives zeros. Returns false if the system
    /// refuses, or if the range does not consist of whole pages of the system. The system would
    /// round the length up and take the bytes behind the range, too.
    ///
    /// # Safety
    /// The range is a part of a span, and no code uses its memory.
    pub(super) unsafe fn return_pages(&self, start: *mut u8, len: usize) -> bool {
        let page = self.page();
        if !start.addr().is_multiple_of(page) || !len.is_multiple_of(page) {
            return false;
        }
        #[cfg(test)]
        self.returns.fetch_add(1, Relaxed);
        // This changes nothing after the check. Without the check, it does what the system would.
        #[cfg(test)]
        let len = len.next_multiple_of(page);
        // SAFETY: as promised.
        unsafe { return_pages(start, len) }
    }
}

/// Maps zeroed memory for a span, aligned to its size. Returns `None` if the system has no memory.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
fn map() -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let len = 2 * SPAN;
    // SAFETY: a fresh mapping at an address of the system's choice touches no other memory. The
    // parts that are unmapped here were just mapped, and no other code knows of them.
    unsafe {
        // Most systems put the next mapping beside the last one, so it is aligned.
        let made = mmap_anonymous(null_mut(), SPAN, access, MapFlags::PRIVATE).ok()?;
        if made.addr().is_multiple_of(SPAN) {
            use_small_pages(made.cast());
            return NonNull::new(made.cast());
        }
        let _ = munmap(made, SPAN);
        let made = mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE).ok()?;
        let start = made.cast::<u8>();
        let before = start.addr().next_multiple_of(SPAN) - start.addr();
        let span = start.add(before);
        let behind = len - SPAN - before;
        if before > 0 {
            let _ = munmap(made, before);
        }
        if behind > 0 {
            let _ = munmap(span.add(SPAN).cast(), behind);
        }
        use_small_pages(span);
        NonNull::new(span)
    }
}

/// Asks the system for no huge pages in a span. With a huge page, the first byte written would make
/// 2 MiB resident. A system without huge pages refuses, which changes nothing.
///
/// # Safety
/// The span was just mapped.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
unsafe fn use_small_pages(span: *mut u8) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: as promised. The advice changes no byte.
    let _ = unsafe { madvise(span.cast(), SPAN, Advice::LinuxNoHugepage) };
}

/// Unmaps a span. Returns false if the system refuses.
///
/// # Safety
/// [`map`] returned the span, and no other code uses its memory any more.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
pub(super) unsafe fn unmap(span: *mut Span) -> bool {
    // SAFETY: as promised.
    unsafe { rustix::mm::munmap(span.cast(), SPAN) }.is_ok()
}

/// Returns the bytes of a page of the system.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
fn page_size() -> usize {
    rustix::param::page_size()
}

/// Returns pages to the system; the next read of them gives zeros. Returns false if the system
/// refuses.
///
/// # Safety
/// The range consists of whole pages of a span, and no code uses its memory.
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
unsafe fn return_pages(start: *mut u8, len: usize) -> bool {
    use rustix::mm::{Advice, madvise};
    // SAFETY: as promised.
    unsafe { madvise(start.cast(), len, Advice::LinuxDontNeed) }.is_ok()
}

// Miri supports no mappings. There, spans come from the allocator, so that Miri checks each access.
#[cfg(miri)]
fn map() -> Option<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(SPAN, SPAN).ok()?;
    // SAFETY: the size is not 0.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// Frees the memory of a span, and returns true.
///
/// # Safety
/// [`map`] returned the span, and no other code uses its memory any more.
#[cfg(miri)]
pub(super) unsafe fn unmap(span: *mut Span) -> bool {
    let layout = std::alloc::Layout::from_size_align(SPAN, SPAN).expect("a constant");
    // SAFETY: as promised.
    unsafe { std::alloc::dealloc(span.cast(), layout) };
    true
}

/// Sets the bytes of pages to zero, and returns true.
///
/// # Safety
/// The range consists of whole pages of a span, and no code uses its memory.
#[cfg(miri)]
unsafe fn return_pages(start: *mut u8, len: usize) -> bool {
    // SAFETY: as promised.
    unsafe { start.write_bytes(0, len) };
    true
}

// Spans of other targets have no pages, or there are no spans.
#[cfg(any(miri, not(all(target_os = "linux", target_pointer_width = "64"))))]
fn page_size() -> usize {
    PAGE
}

// Other targets have no spans, and the allocator serves all blocks.
#[cfg(not(any(miri, all(target_os = "linux", target_pointer_width = "64"))))]
fn map() -> Option<NonNull<u8>> {
    None
}

/// Returns false.
///
/// # Safety
/// This function is never called, because the target has no spans.
#[cfg(not(any(miri, all(target_os = "linux", target_pointer_width = "64"))))]
pub(super) unsafe fn unmap(_span: *mut Span) -> bool {
    false
}

/// Returns false.
///
/// # Safety
/// This function is never called, because the target has no spans.
#[cfg(not(any(miri, all(target_os = "linux", target_pointer_width = "64"))))]
unsafe fn return_pages(_start: *mut u8, _len: usize) -> bool {
    false
}
