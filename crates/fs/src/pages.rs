//! Memory that is taken from the system and returned to it at once when it is freed.
//!
//! An allocator keeps freed memory in a pool of the thread that took it. A store that fills
//! memtables in one thread and frees them in another held twice the memory it used. So memory that
//! is large, lives long and is freed whole comes from here. Blocks of 1 KiB to 512 KiB come from
//! `slab`, which cuts pages into slots.
//!
//! A process may have only a limited number of mappings (65,530 by default). At the limit, the
//! kernel refuses new memory, or refuses to take memory back. So this module makes at most [`MOST`]
//! mappings, and the allocator serves all further requests.
//!
//! This is one of the leaf modules that may use `unsafe`. Invariant of [`Pages`], and promise of
//! the callers of [`give_back`]: memory is returned once, with the layout and the origin with which
//! it was taken, by its only owner.
#![allow(unsafe_code)]

use crate::slab::{self, Lifetime, SLAB_FROM, SLAB_MOST, SMALL_ALIGN, Slab, SlabUse};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sizes are multiples of this many bytes.
const PAGE: usize = 4096;

/// From this many bytes on, mapping and unmapping pages costs little beside using them.
pub const PAGES_FROM: usize = 512 << 10;

/// Most mappings at a time.
const MOST: usize = 8 << 10;

/// Number of mappings now.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The slab for blocks that are too small for pages of their own.
static SLAB: Slab = Slab::new();

/// The source of a block of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Allocator,
    Slab,
    System,
}

/// Returns the bytes of memory that an [`crate::AlignedBuf`] of `size` bytes takes. Sizes of 1 KiB
/// to 512 KiB come from slots (see `slab`), which are at most a sixteenth or a page larger.
pub fn slot_size(size: usize) -> usize {
    if (SLAB_FROM..SLAB_MOST).contains(&size) {
        slab::slot_size(size)
    } else {
        size
    }
}

/// Returns true if blocks of a layout come from the slab while the system has memory for it.
fn is_for_slab(layout: Layout) -> bool {
    (SLAB_FROM..SLAB_MOST).contains(&layout.size())
        && (layout.align() <= SMALL_ALIGN || slot_size(layout.size()).is_multiple_of(PAGE))
}

/// Returns uninitialised memory for a layout whose size is not 0. Small blocks come from the
/// allocator; large blocks come from the slab or the system while they have memory.
pub(crate) fn take(layout: Layout, lifetime: Lifetime) -> Option<(NonNull<u8>, Origin)> {
    debug_assert!(layout.size() > 0 && layout.align() <= PAGE);
    if is_for_slab(layout) {
        if let Some(ptr) = SLAB.take(layout.size(), lifetime) {
            return Some((ptr, Origin::Slab));
        }
    } else if layout.size() >= PAGES_FROM {
        // Relaxed: the limit need not be exact.
        if MAPPED.fetch_add(1, Ordering::Relaxed) < MOST
            && let Some(ptr) = map(layout.size())
        {
            return Some((ptr, Origin::System));
        }
        MAPPED.fetch_sub(1, Ordering::Relaxed);
    }
    // SAFETY: the size is not 0.
    let ptr = NonNull::new(unsafe { alloc(layout) })?;
    Some((ptr, Origin::Allocator))
}

/// Returns the usable bytes of a block of `size` bytes from `origin`.
pub(crate) fn room(origin: Origin, size: usize) -> usize {
    match origin {
        Origin::Slab => slot_size(size),
        Origin::Allocator | Origin::System => size,
    }
}

/// Returns a block to its source.
///
/// # Safety
/// `ptr` and `origin` came from [`take`] with this layout, or with any layout if the origin is the
/// slab. No other code uses the memory any more.
pub(crate) unsafe fn give_back(ptr: NonNull<u8>, layout: Layout, origin: Origin) {
    match origin {
        // SAFETY: as promised.
        Origin::Allocator => unsafe { dealloc(ptr.as_ptr(), layout) },
        // SAFETY: as promised.
        Origin::Slab => unsafe { SLAB.give_back(ptr) },
        Origin::System => {
            // SAFETY: as promised.
            unsafe { unmap(ptr, layout.size()) };
            MAPPED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns the memory that blocks of 1 KiB to 512 KiB take. Meant for measurements: the call visits
/// each span of 4 MiB.
pub fn slab_usage() -> SlabUse {
    SLAB.usage()
}

/// Returns unused pages to the system. Takes some milliseconds for each 100 MB of free memory.
pub fn return_free_pages() {
    SLAB.trim();
}

/// Makes a block larger and keeps its content. The block may move. Returns `None` if there is no
/// memory for it, and then nothing has changed.
///
/// # Safety
/// `ptr` and `origin` came from [`take`] with a layout of `old` bytes, and no other code uses the
/// memory. Afterwards the block counts as taken with `new` bytes.
pub(crate) unsafe fn grow(
    ptr: NonNull<u8>,
    origin: Origin,
    old: usize,
    new: usize,
) -> Option<NonNull<u8>> {
    debug_assert!(old < new);
    match origin {
        Origin::Allocator | Origin::Slab => None,
        // SAFETY: as promised.
        Origin::System => unsafe { remap(ptr, old, new) },
    }
}

/// Makes a mapping larger. Returns `None` if the system refuses.
///
/// # Safety
/// `ptr` came from [`map`] with `old` bytes, and no other code uses the memory.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn remap(ptr: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MremapFlags, mremap};
    // SAFETY: the range is a whole mapping of this module. The system may move it, because no other
    // code knows its address.
    let made = unsafe { mremap(ptr.as_ptr().cast(), old, new, MremapFlags::MAYMOVE) };
    NonNull::new(made.ok()?.cast())
}

/// Returns `None`.
///
/// # Safety
/// This function is never called, because the target has no mappings.
#[cfg(not(all(target_os = "linux", not(miri))))]
unsafe fn remap(_ptr: NonNull<u8>, _old: usize, _new: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(all(target_os = "linux", not(miri)))]
fn map(size: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the system's choice touches no other memory.
    let made = unsafe { mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE) };
    NonNull::new(made.ok()?.cast())
}

/// Unmaps a block.
///
/// # Safety
/// `ptr` came from [`map`] with this size, and no code uses the memory any more.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn unmap(ptr: NonNull<u8>, size: usize) {
    // SAFETY: as promised.
    let done = unsafe { rustix::mm::munmap(ptr.as_ptr().cast(), size) };
    debug_assert!(
        done.is_ok(),
        "memory that the system does not take back: {done:?}"
    );
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(_size: usize) -> Option<NonNull<u8>> {
    None
}

/// Does nothing.
///
/// # Safety
/// This function is never called, because the target has no mappings.
#[cfg(not(all(target_os = "linux", not(miri))))]
unsafe fn unmap(_ptr: NonNull<u8>, _size: usize) {}

/// Memory in whole pages, aligned to 4096 bytes and not initialised.
pub struct Pages {
    ptr: NonNull<u8>,
    len: usize,
    origin: Origin,
}

// SAFETY: the value owns its memory alone, as a Vec<u8> does.
unsafe impl Send for Pages {}
// SAFETY: the only shared operations return the address and the length.
unsafe impl Sync for Pages {}

impl Pages {
    /// Returns at least `size` bytes (not 0). Ends the process if there is no memory, as every
    /// allocation does.
    pub fn new(size: usize) -> Pages {
        assert!(size > 0, "no pages asked for");
        let len = size.next_multiple_of(PAGE);
        let layout = Pages::layout(len);
        match take(layout, Lifetime::Brief) {
            Some((ptr, origin)) => Pages { ptr, len, origin },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, PAGE).expect("size fits isize")
    }

    /// Returns the address of the first byte, which is valid until the pages are dropped.
    pub fn start(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the invariant.
        unsafe { give_back(self.ptr, Pages::layout(self.len), self.origin) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_not_shared() {
        let sizes = [
            1,
            PAGE,
            PAGE + 1,
            PAGES_FROM - 1,
            PAGES_FROM,
            PAGES_FROM + 1,
            3 << 20,
        ];
        let pages: Vec<Pages> = sizes.map(Pages::new).into();
        for (i, p) in pages.iter().enumerate() {
            assert_eq!(p.start().as_ptr() as usize % PAGE, 0);
            assert_eq!(p.len(), sizes[i].next_multiple_of(PAGE));
            // SAFETY: `len` bytes that no other code uses.
            unsafe { p.start().as_ptr().write_bytes(i as u8 + 1, p.len()) };
        }
        for (i, p) in pages.iter().enumerate() {
            // SAFETY: the bytes were written above, and no code writes them now.
            let bytes = unsafe { std::slice::from_raw_parts(p.start().as_ptr(), p.len()) };
            assert!(bytes.iter().all(|b| *b == i as u8 + 1));
        }
        let large = pages.iter().filter(|p| p.origin == Origin::System).count();
        // A block of one byte less is a whole number of pages, too.
        assert_eq!(
            large,
            if cfg!(all(target_os = "linux", not(miri))) {
                4
            } else {
                0
            }
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "nothing is mapped")]
    fn pages_beyond_the_mapping_limit_come_from_the_allocator() {
        // No page is touched, so no memory is used.
        let many: Vec<Pages> = (0..MOST + 50).map(|_| Pages::new(PAGES_FROM)).collect();
        let allocated = many
            .iter()
            .filter(|p| p.origin == Origin::Allocator)
            .count();
        assert!(allocated >= 50, "{allocated}");
        drop(many);
        // Other tests of this process have a few mappings at most.
        assert!(MAPPED.load(Ordering::Relaxed) < MOST / 2, "given back");
        assert_eq!(Pages::new(PAGES_FROM).origin, Origin::System);
    }
}
