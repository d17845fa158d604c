//! Shards: the spans that a shard owns, and the lists in which it finds free slots and units.
//!
//! This is one of the leaf modules that may use `unsafe`. The invariants stand at the head of
//! [`slab`](super). Each method of [`ShardLists`] runs under the lock of the shard that owns the
//! lists (invariant 3).
#![allow(unsafe_code)]

use super::size_class::{CLASSES, LARGE};
use super::span::{ALL_PAGES, ALL_UNITS, Listed, SPAN, Span, UNIT, Unit, WORDS};
use super::system::System;
use parking_lot::Mutex;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A shard may keep one part in this many of its bytes in use as dirty memory.
pub(super) const KEPT_PART: usize = 32;
/// A shard may always keep this many dirty bytes: a compaction of pages takes and frees a few MiB
/// again and again.
pub(super) const KEPT_LEAST: usize = 4 << 20;

/// The spans and lists of one shard.
pub(super) struct ShardLists {
    /// Heads of two lists for each lifetime and class: units with dirty free slots, and units with
    /// clean free slots.
    pub(super) units: [[*mut Unit; 2]; 2 * CLASSES],
    /// Head of the list of spans of small slots that have free units.
    pub(super) roomy: *mut Span,
    /// All spans.
    pub(super) spans: Vec<*mut Span>,
    /// Index into `spans` of the span in which a free last looked for dirty memory.
    pub(super) looked_at: usize,
}

// SAFETY: the spans belong to the shard alone, and invariant 3 holds for any thread that has the
// lock.
unsafe impl Send for ShardLists {}

/// One of the parts of a slab that have their own lock.
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) lists: Mutex<ShardLists>,
    /// Bytes of slots in use. Changes under the lock.
    pub(super) used: AtomicUsize,
    /// Bytes of dirty slots and dirty free units. Changes under the lock.
    pub(super) dirty: AtomicUsize,
}

impl Shard {
    /// Returns true if `bytes` more dirty bytes would exceed the limit of the shard.
    pub(super) fn is_full_with(&self, bytes: usize) -> bool {
        // Relaxed: the limit need not be exact.
        let kept = (self.used.load(Relaxed) / KEPT_PART).max(KEPT_LEAST);
        self.dirty.load(Relaxed) + bytes > kept
    }
}

/// Adds to a number that changes only under a lock that the caller holds.
pub(super) fn add(to: &AtomicUsize, bytes: usize) {
    to.store(to.load(Relaxed) + bytes, Relaxed);
}

/// Subtracts from a number that changes only under a lock that the caller holds.
pub(super) fn sub(from: &AtomicUsize, bytes: usize) {
    from.store(from.load(Relaxed) - bytes, Relaxed);
}

impl ShardLists {
    /// Makes a unit whose slots are all free, and puts it into its list. Returns `None` if the
    /// system has no memory.
    #[cold]
    pub(super) fn fresh_unit(
        &mut self,
        system: &System,
        shard: &Shard,
        number: usize,
        slot: usize,
        lists_of: usize,
    ) -> Option<*mut Unit> {
        let is_large = slot >= LARGE;
        if is_large || self.roomy.is_null() {
            let span = system.map()?.as_ptr().cast::<Span>();
            // SAFETY: fresh memory is zero, which is a valid header except for the fields written
            // here. All its numbers may be 0, its pointers null, and 0 is the first value of
            // `Listed`.
            unsafe {
                (*span).shard = number;
                (*span).large = is_large;
                (*span).at = self.spans.len();
                if !is_large {
                    (*span).free = ALL_UNITS;
                    (*span).clean = ALL_UNITS;
                    self.roomy = span;
                }
            }
            self.spans.push(span);
        }
        // SAFETY: invariant 3; the lock is held. The new span, or the span in `roomy`, has a free
        // unit.
        unsafe {
            let mut returned = ALL_PAGES;
            let unit = if is_large {
                let span = *self.spans.last()?;
                &raw mut (*span).units[0]
            } else {
                let span = self.roomy;
                let dirty = (*span).free & !(*span).clean;
                if dirty != 0 {
                    sub(&shard.dirty, UNIT);
                    returned = 0;
                }
                let from = if dirty != 0 { dirty } else { (*span).free };
                let bit = from & from.wrapping_neg();
                (*span).free &= !bit;
                (*span).clean &= !bit;
                if (*span).free == 0 {
                    self.unlink_roomy(span);
                }
                &raw mut (*span).units[bit.trailing_zeros() as usize]
            };
            let bytes = if is_large { SPAN - UNIT } else { UNIT };
            let count = bytes / slot;
            (*unit).slot = slot;
            (*unit).count = count;
            (*unit).used = 0;
            (*unit).lists = lists_of;
            (*unit).listed = Listed::No;
            (*unit).returned = returned;
            for w in 0..WORDS {
                let here = count.saturating_sub(w * 64).min(64) as u32;
                (*unit).free[w] = u64::MAX.checked_shr(64 - here).unwrap_or(0);
                (*unit).clean[w] = if is_large { (*unit).free[w] } else { 0 };
            }
            self.list(unit);
            Some(unit)
        }
    }

    /// Puts a unit into the list that matches its free slots.
    ///
    /// # Safety
    /// The unit belongs to this shard.
    pub(super) unsafe fn list(&mut self, unit: *mut Unit) {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            let (mut free, mut dirty) = (0, 0);
            for w in 0..WORDS {
                free |= (*unit).free[w];
                dirty |= (*unit).free[w] & !(*unit).clean[w];
            }
            let wanted = match (free, dirty) {
                (0, _) => Listed::No,
                (_, 0) => Listed::Clean,
                _ => Listed::Dirty,
            };
            if (*unit).listed == wanted {
                return;
            }
            self.unlist(unit);
            if wanted != Listed::No {
                let head = &mut self.units[(*unit).lists][usize::from(wanted == Listed::Clean)];
                (*unit).prev = null_mut();
                (*unit).next = *head;
                if !(*head).is_null() {
                    (**head).prev = unit;
                }
                *head = unit;
            }
            (*unit).listed = wanted;
        }
    }

    /// Takes a unit out of its list.
    ///
    /// # Safety
    /// The unit belongs to this shard.
    pub(super) unsafe fn unlist(&mut self, unit: *mut Unit) {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            let (prev, next) = ((*unit).prev, (*unit).next);
            match (*unit).listed {
                Listed::No => return,
                _ if !prev.is_null() => (*prev).next = next,
                listed => {
                    self.units[(*unit).lists][usize::from(listed == Listed::Clean)] = next;
                }
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
            (*unit).listed = Listed::No;
        }
    }

    /// Returns true if a span has only clean free memory, and the next block of its kind finds room
    /// in another span.
    ///
    /// # Safety
    /// The span belongs to this shard.
    pub(super) unsafe fn is_spare(&self, span: *mut Span) -> bool {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            if !(*span).large {
                let is_alone = self.roomy == span && (*span).next.is_null();
                return (*span).clean == ALL_UNITS && !is_alone;
            }
            let unit = &raw mut (*span).units[0];
            let [dirty, clean] = self.units[(*unit).lists];
            (*unit).used == 0
                && (*unit).listed == Listed::Clean
                && (!dirty.is_null() || clean != unit || !(*unit).next.is_null())
        }
    }

    /// Takes a unit of small slots back into its span. Returns the span if the caller must unmap
    /// it.
    ///
    /// # Safety
    /// The unit belongs to the span, is in no list, and has no slot in use.
    pub(super) unsafe fn free_unit(
        &mut self,
        shard: &Shard,
        span: *mut Span,
        unit: *mut Unit,
        is_clean: bool,
    ) -> *mut Span {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            let number = unit.offset_from_unsigned((&raw mut (*span).units).cast::<Unit>());
            let bit = 1u64 << number;
            if (*span).free == 0 {
                self.link_roomy(span);
            }
            (*span).free |= bit;
            if is_clean {
                (*span).clean |= bit;
            } else {
                add(&shard.dirty, UNIT);
            }
            if self.is_spare(span) {
                self.remove(span);
                return span;
            }
            null_mut()
        }
    }

    /// Adds a span to the list of spans with free units.
    ///
    /// # Safety
    /// The span belongs to this shard and is not in the list of those with free units.
    pub(super) unsafe fn link_roomy(&mut self, span: *mut Span) {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            (*span).prev = null_mut();
            (*span).next = self.roomy;
            if !self.roomy.is_null() {
                (*self.roomy).prev = span;
            }
            self.roomy = span;
        }
    }

    /// Removes a span from the list of spans with free units.
    ///
    /// # Safety
    /// The span belongs to this shard and is in the list of those with free units.
    pub(super) unsafe fn unlink_roomy(&mut self, span: *mut Span) {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            let (prev, next) = ((*span).prev, (*span).next);
            if prev.is_null() {
                self.roomy = next;
            } else {
                (*prev).next = next;
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
        }
    }

    /// Takes a span out of all lists, for the caller to unmap it.
    ///
    /// # Safety
    /// The span belongs to this shard, and no slot of it is in use.
    pub(super) unsafe fn remove(&mut self, span: *mut Span) {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            if (*span).large {
                self.unlist(&raw mut (*span).units[0]);
            } else {
                self.unlink_roomy(span);
            }
            let at = (*span).at;
            self.spans.swap_remove(at);
            if let Some(&moved) = self.spans.get(at) {
                (*moved).at = at;
            }
        }
    }

    /// Puts a span that left the lists back into them.
    ///
    /// # Safety
    /// The span belongs to this shard, is in no list, and no slot of it is in use. Its pages were
    /// returned.
    pub(super) unsafe fn insert(&mut self, span: *mut Span) {
        // SAFETY: invariant 3; the lock is held.
        unsafe {
            (*span).at = self.spans.len();
            self.spans.push(span);
            if (*span).large {
                self.list(&raw mut (*span).units[0]);
            } else {
                self.link_roomy(span);
            }
        }
    }

    /// Unmaps a span, or keeps it in the lists if the system refuses.
    ///
    /// # Safety
    /// The span belongs to this shard, and no slot of it is in use. Its pages were returned.
    pub(super) unsafe fn discard(&mut self, system: &System, span: *mut Span) {
        // SAFETY: as promised, and invariant 1: the span leaves the lists before it is unmapped.
        unsafe {
            self.remove(span);
            if !system.unmap(span) {
                self.insert(span);
            }
        }
    }
}
