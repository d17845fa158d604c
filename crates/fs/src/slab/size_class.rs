//! Sizes of blocks: the classes of slots, and the slot that a block of each size gets.

/// Bytes of a page. The slab serves no blocks on systems with larger pages.
pub(super) const PAGE: usize = 4096;
/// Bytes of the smallest block that comes from a slab.
pub(crate) const SLAB_FROM: usize = 1 << 10;
/// Upper bound, in bytes, for blocks that come from a slab.
pub(crate) const SLAB_MOST: usize = 512 << 10;
/// Slots of at least this many bytes are whole pages.
pub(super) const LARGE: usize = 16 << 10;
/// The largest alignment, in bytes, of a block that is smaller than [`LARGE`].
pub(crate) const SMALL_ALIGN: usize = 32;
/// Slot sizes for each doubling.
pub(super) const STEPS: usize = 16;
/// `ilog2` of the smallest block size less one.
pub(super) const LOWEST: usize = (SLAB_FROM - 1).ilog2() as usize;
/// Number of classes.
pub(super) const CLASSES: usize = ((SLAB_MOST - 1).ilog2() as usize - LOWEST + 1) * STEPS;

/// Returns the bytes of the slot for a block of `size` bytes.
pub(crate) fn slot_size(size: usize) -> usize {
    let step = |size: usize| 1 << ((size - 1).ilog2() as usize - STEPS.ilog2() as usize);
    let slot = size.next_multiple_of(step(size));
    if slot < LARGE {
        return slot;
    }
    // The size is rounded to pages first, so that two sizes with the same pages share a class.
    let paged = size.next_multiple_of(PAGE);
    paged.next_multiple_of(step(paged))
}

/// Returns the number of the class of a slot size.
pub(super) fn class_of(slot: usize) -> usize {
    let log = (slot - 1).ilog2() as usize;
    (log - LOWEST) * STEPS + ((slot - 1) >> (log - STEPS.ilog2() as usize)) - STEPS
}
