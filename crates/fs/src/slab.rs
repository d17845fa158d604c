//! A slab allocator for blocks of 1 KiB to 512 KiB, whose free memory returns to the system.
//!
//! The C library's heap mixes blocks that live long with blocks that live briefly. Between them the
//! heap keeps holes that are smaller than a page, or whose size fits no new block. With blocks of
//! 0.5 to 70 KB these holes took up to 400 MB of a budget of 537 MB
//! (`docs/decisions/0031-memory.md`).
//!
//! - A **span** is 4 MiB of mapped memory, aligned to its size. Its first 64 KiB hold its header.
//! - A **unit** is a part of a span that is cut into slots of one size. Slots of less than 16 KiB
//!   come from units of 64 KiB. Larger slots are whole pages, and their unit is the whole span.
//! - A **class** is a slot size: 16 sizes for each doubling, rounded to pages from 16 KiB on.
//! - A **shard** owns spans. A thread takes a block from the second shard if the first one is
//!   locked.
//! - Blocks of one [`Lifetime`] share units, so that a unit's blocks are freed at about the same
//!   time.
//!
//! Free memory is *dirty* while the system still backs it with pages, and *clean* afterwards. The
//! slab uses dirty memory first. A shard keeps dirty memory up to a 32nd of its bytes in use, and
//! up to 4 MiB in any case. Beyond that, a free returns older dirty memory of other classes, so
//! that a class in use keeps its own. If a few spans have none, the freed block is returned.
//! [`Slab::trim`] returns all dirty memory. It also returns pages inside units of small slots if no
//! slot in use has bytes in them.
//!
//! The modules are `size_class` (sizes of slots), `span` (spans, units and their headers), `shard`
//! (lists of free memory), `purge` (how dirty memory returns to the system) and `system` (system
//! calls). Each of them but `size_class` may use `unsafe` under the invariants below.
//!
//! This is one of the leaf modules that may use `unsafe`. Invariants:
//! 1. A span in `ShardLists::spans` is one mapping of [`SPAN`] bytes at a multiple of [`SPAN`],
//!    with an initialised header. The slab unmaps a span after the span left `spans`, when none of
//!    its slots is in use. If the system refuses, the span is unchanged and returns to `spans`.
//! 2. A slot is in use exactly if its bit in `Unit::free` is not set, its unit is not free, and its
//!    number is below `Unit::count`. Only the caller that took the slot uses its memory.
//! 3. A header changes only under the lock of the shard that owns the span. `Span::shard`,
//!    `Span::large` and `Unit::slot` do not change while a slot of the unit is in use. So the owner
//!    of a slot reads them without the lock.
//! 4. Headers are read and written through raw pointers only. No reference to one exists.
#![allow(unsafe_code)]

mod purge;
mod shard;
mod size_class;
mod span;
mod system;
#[cfg(test)]
mod tests;

use parking_lot::{Mutex, MutexGuard};
use shard::{Shard, ShardLists, add, sub};
use size_class::{CLASSES, LARGE, PAGE, class_of};
pub(crate) use size_class::{SLAB_FROM, SLAB_MOST, SMALL_ALIGN, slot_size};
use span::{SPAN, UNIT, UNITS, WORDS, base_of, pages_of, unit_of};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use system::System;

/// Number of shards. It is small, because a thread cannot use the free memory of a shard that it
/// does not lock.
const SHARDS: usize = 2;

/// The expected lifetime of a block. Blocks of different lifetimes share no unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// The block lives as long as a memtable or an operation, as batches and buffers do.
    Brief,
    /// The block stays as long as a cache keeps it.
    Cached,
}

/// An allocator of slots for blocks of [`SLAB_FROM`] to [`SLAB_MOST`] bytes.
pub(crate) struct Slab {
    shards: [Shard; SHARDS],
    system: System,
}

/// The memory of a slab, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlabUse {
    /// Bytes of slots in use.
    pub used: usize,
    /// Bytes of free memory that the system still backs, in slots of whole pages and in free units.
    pub dirty: usize,
    /// Bytes of free slots in units of small slots that have other slots in use. Pages that were
    /// returned to the system do not count.
    pub between: usize,
    /// Spans.
    pub mapped: usize,
}

impl Slab {
    pub(crate) const fn new() -> Slab {
        Slab {
            shards: [const {
                Shard {
                    lists: Mutex::new(ShardLists {
                        units: [[null_mut(); 2]; 2 * CLASSES],
                        roomy: null_mut(),
                        spans: Vec::new(),
                        looked_at: 0,
                    }),
                    used: AtomicUsize::new(0),
                    dirty: AtomicUsize::new(0),
                }
            }; SHARDS],
            system: System::new(),
        }
    }

    /// Locks the first shard that is not locked, so that blocks gather in the first shard.
    fn lock(&self) -> (usize, MutexGuard<'_, ShardLists>) {
        for (n, shard) in self.shards.iter().enumerate() {
            if let Some(lists) = shard.lists.try_lock() {
                return (n, lists);
            }
        }
        (0, self.shards[0].lists.lock())
    }

    /// Returns an uninitialised block of `size` bytes, [`SLAB_FROM`] to [`SLAB_MOST`]. The block is
    /// aligned to pages if its slot is [`LARGE`] or larger, and to [`SMALL_ALIGN`] otherwise.
    /// Returns `None` if the system has no memory.
    pub(crate) fn take(&self, size: usize, lifetime: Lifetime) -> Option<NonNull<u8>> {
        debug_assert!((SLAB_FROM..=SLAB_MOST).contains(&size));
        let slot = slot_size(size);
        let lists_of = class_of(slot) + CLASSES * (lifetime == Lifetime::Cached) as usize;
        let (n, mut guard) = self.lock();
        let (shard, lists) = (&self.shards[n], &mut *guard);
        let [dirty, clean] = lists.units[lists_of];
        let unit = match (dirty.is_null(), clean.is_null()) {
            (false, _) => dirty,
            (true, false) => clean,
            _ => lists.fresh_unit(&self.system, shard, n, slot, lists_of)?,
        };
        // SAFETY: invariants 2 and 3: a listed or fresh unit has a free slot, and the lock is held.
        unsafe {
            let (mut word, mut bits) = (0, 0);
            for w in 0..WORDS {
                bits = (*unit).free[w] & !(*unit).clean[w];
                if bits != 0 {
                    word = w;
                    break;
                }
            }
            let is_large = slot >= LARGE;
            if bits != 0 {
                if is_large {
                    sub(&shard.dirty, slot);
                }
            } else {
                for w in 0..WORDS {
                    bits = (*unit).free[w];
                    if bits != 0 {
                        word = w;
                        break;
                    }
                }
            }
            debug_assert!(bits != 0, "a listed unit without a free slot");
            let bit = bits & bits.wrapping_neg();
            (*unit).free[word] &= !bit;
            (*unit).clean[word] &= !bit;
            (*unit).used += 1;
            add(&shard.used, slot);
            // The unit stays in its list as long as it has another slot of the same kind.
            if bits == bit {
                lists.list(unit);
            }
            let number = word * 64 + bit.trailing_zeros() as usize;
            if !is_large {
                (*unit).returned &= !pages_of(number, slot);
            }
            Some(NonNull::new_unchecked(
                base_of(unit).add(number * (*unit).slot),
            ))
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// [`Slab::take`] of this slab returned `block`, and no other code uses its memory.
    pub(crate) unsafe fn give_back(&self, block: NonNull<u8>) {
        let block = block.as_ptr();
        let mut gone = null_mut();
        // SAFETY: the caller owns the slot, so invariant 3 allows the reads before the lock. The
        // slot's pages are returned before another thread can take the slot. After that, the lock
        // is held.
        unsafe {
            let (span, unit) = unit_of(block);
            let (shard, slot, is_large) =
                (&self.shards[(*span).shard], (*unit).slot, (*span).large);
            let mut cleans = false;
            if is_large && shard.is_full_with(slot) {
                shard
                    .lists
                    .lock()
                    .make_room(&self.system, shard, slot, span);
                cleans = shard.is_full_with(slot) && self.system.return_pages(block, slot);
            }
            let mut lists = shard.lists.lock();
            let number = block.offset_from_unsigned(base_of(unit)) / slot;
            let (word, bit) = (number / 64, 1u64 << (number % 64));
            assert!(
                (*unit).free[word] & bit == 0 && number < (*unit).count,
                "slab: a block of {slot} bytes is freed twice"
            );
            (*unit).free[word] |= bit;
            (*unit).used -= 1;
            sub(&shard.used, slot);
            if cleans {
                (*unit).clean[word] |= bit;
            } else if is_large {
                add(&shard.dirty, slot);
            }
            if (*unit).used > 0 {
                lists.list(unit);
            } else if is_large {
                lists.list(unit);
                if lists.is_spare(span) {
                    lists.remove(span);
                    gone = span;
                }
            } else {
                lists.unlist(unit);
                let mut cleans = false;
                if shard.is_full_with(UNIT) {
                    lists.make_room(&self.system, shard, UNIT, span);
                }
                if shard.is_full_with(UNIT) {
                    // The unit is in no list, and the span does not count it as free yet.
                    drop(lists);
                    cleans = self.system.return_pages(base_of(unit), UNIT);
                    lists = shard.lists.lock();
                }
                gone = lists.free_unit(shard, span, unit, cleans);
            }
        }
        if !gone.is_null() {
            // SAFETY: invariants 1 and 3: the span has just left the lists, with no slot in use.
            // The lock is held while it returns to them.
            unsafe {
                if !self.system.unmap(gone) {
                    self.shards[(*gone).shard].lists.lock().insert(gone);
                }
            }
        }
    }

    /// Returns the pages of free units and of free slots to the system. A page stays if a slot in
    /// use has bytes in it. Holds the lock of a shard while it returns the pages of one span.
    pub(crate) fn trim(&self) {
        for shard in &self.shards {
            let mut below = usize::MAX;
            loop {
                let mut lists = shard.lists.lock();
                // From the last span to the first: the end of `spans` takes the place of a span
                // that leaves it.
                below = below.min(lists.spans.len());
                let Some(&span) = below.checked_sub(1).and_then(|at| lists.spans.get(at)) else {
                    break;
                };
                below -= 1;
                // SAFETY: invariants 1 and 3; the lock is held, and no code uses free memory.
                unsafe {
                    let mut calls = usize::MAX;
                    let is_empty = lists.clean_span(&self.system, shard, span, &mut calls);
                    if is_empty {
                        lists.discard(&self.system, span);
                    } else if !(*span).large {
                        lists.clean_between(&self.system, span);
                    }
                }
            }
        }
    }

    /// Returns the memory of the slab now.
    pub(crate) fn usage(&self) -> SlabUse {
        let mut all = SlabUse::default();
        for shard in &self.shards {
            let lists = shard.lists.lock();
            all.used += shard.used.load(Relaxed);
            all.dirty += shard.dirty.load(Relaxed);
            all.mapped += lists.spans.len() * SPAN;
            for &span in &lists.spans {
                // SAFETY: invariant 3; the lock is held. The header of a free unit is not read.
                unsafe {
                    for number in (1..=UNITS).filter(|_| !(*span).large) {
                        let unit = &raw const (*span).units[number];
                        if (*span).free >> number & 1 == 0 {
                            let free = ((*unit).count - (*unit).used) * (*unit).slot;
                            let returned = (*unit).returned.count_ones() as usize * PAGE;
                            all.between += free.saturating_sub(returned);
                        }
                    }
                }
            }
        }
        all
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            for span in shard.lists.get_mut().spans.drain(..) {
                // SAFETY: invariant 1. The owner of a block must free it before the slab ends; only
                // tests have slabs that end.
                unsafe { system::unmap(span) };
            }
        }
    }
}
