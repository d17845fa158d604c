//! Spans and units: the memory that the system maps for a slab, and the headers in it.
//!
//! This is one of the leaf modules that may use `unsafe`. The invariants stand at the head of
//! [`slab`](super). This module declares the headers of invariant 1, and finds the header and the
//! first slot of a unit by address.
#![allow(unsafe_code)]

use super::size_class::{LARGE, PAGE, SLAB_FROM};

/// Bytes and alignment of a span.
pub(super) const SPAN: usize = 4 << 20;
/// Bytes of a unit of small slots, and of the room for a span's header.
pub(super) const UNIT: usize = 64 << 10;
/// Number of units of small slots in a span. The header takes the place of one more.
pub(super) const UNITS: usize = SPAN / UNIT - 1;
/// Bit `i` stands for unit `i`, and unit 0 is the place of the header.
pub(super) const ALL_UNITS: u64 = u64::MAX << 1;
/// Bit `i` stands for page `i` of a unit of small slots.
pub(super) const ALL_PAGES: u32 = (1 << (UNIT / PAGE)) - 1;
/// Words of a bitmap of slots.
pub(super) const WORDS: usize = 4;

const _: () = assert!((SPAN - UNIT) / LARGE <= WORDS * 64 && UNIT / SLAB_FROM <= WORDS * 64);
const _: () = assert!(size_of::<Span>() <= UNIT && UNITS == 63);

/// The list of its class that a unit is in.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Listed {
    /// Every slot is in use, or the unit is free.
    No,
    /// At least one free slot is dirty.
    Dirty,
    /// All free slots are clean.
    Clean,
}

/// The header of a unit.
pub(super) struct Unit {
    /// Bytes of a slot.
    pub(super) slot: usize,
    /// Number of slots.
    pub(super) count: usize,
    /// Number of slots in use.
    pub(super) used: usize,
    /// Index into `ShardLists::units` of the lists for the class and lifetime of the unit.
    pub(super) lists: usize,
    /// The list of its class that the unit is in.
    pub(super) listed: Listed,
    /// Bitmap of the free slots.
    pub(super) free: [u64; WORDS],
    /// Bitmap of the free slots whose pages were returned to the system. In a unit of small slots,
    /// a page that the slot shares with another one may be in use again.
    pub(super) clean: [u64; WORDS],
    /// Bitmap of the pages of a unit of small slots that the system does not back. No slot in use
    /// has bytes in them.
    pub(super) returned: u32,
    /// The unit before this one in its list, or null.
    pub(super) prev: *mut Unit,
    /// The unit behind this one in its list, or null.
    pub(super) next: *mut Unit,
}

/// The header of a span.
pub(super) struct Span {
    /// Index of the shard that owns the span.
    pub(super) shard: usize,
    /// True if the span is one unit, which is `units[0]`.
    pub(super) large: bool,
    /// Index of the span in `ShardLists::spans`.
    pub(super) at: usize,
    /// Bitmap of the free units of small slots.
    pub(super) free: u64,
    /// Bitmap of the free units whose pages were returned to the system.
    pub(super) clean: u64,
    /// The span before this one in the list of spans with free units, or null.
    pub(super) prev: *mut Span,
    /// The span behind this one in the list of spans with free units, or null.
    pub(super) next: *mut Span,
    /// The headers of the units. Unit 0 of a span of small slots is not used.
    pub(super) units: [Unit; UNITS + 1],
}

/// Returns the bitmap of the pages of a unit that a small slot has bytes in.
pub(super) fn pages_of(number: usize, slot: usize) -> u32 {
    let (first, last) = (number * slot / PAGE, (number * slot + slot - 1) / PAGE);
    (2u32 << last) - (1 << first)
}

/// Returns the span and the unit of a block or of a unit's header.
///
/// # Safety
/// The pointer points into a span, at a slot in use.
pub(super) unsafe fn unit_of(at: *mut u8) -> (*mut Span, *mut Unit) {
    let span = at.map_addr(|address| address & !(SPAN - 1)).cast::<Span>();
    // SAFETY: invariant 1 for the span; invariant 3 for `large`.
    unsafe {
        let number = if (*span).large {
            0
        } else {
            (at.addr() & (SPAN - 1)) / UNIT
        };
        (span, &raw mut (*span).units[number])
    }
}

/// Returns the address of the first slot of a unit.
///
/// # Safety
/// The pointer points to the header of a unit in a span.
pub(super) unsafe fn base_of(unit: *mut Unit) -> *mut u8 {
    let span = unit
        .map_addr(|address| address & !(SPAN - 1))
        .cast::<Span>();
    // SAFETY: invariant 1.
    unsafe {
        let number = unit.offset_from_unsigned((&raw mut (*span).units).cast::<Unit>());
        // The unit of a whole span is number 0 and begins behind the header.
        span.cast::<u8>().add(number.max(1) * UNIT)
    }
}
