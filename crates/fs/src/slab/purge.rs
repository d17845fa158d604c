//! Purging: a shard returns dirty memory to the system if it has too much of it, or if the slab is
//! trimmed.
//!
//! This is one of the leaf modules that may use `unsafe`. The invariants stand at the head of
//! [`slab`](super). Each method runs under the lock of the shard that owns the span, and returns
//! only pages of free slots and units to the system (invariants 2 and 3).
#![allow(unsafe_code)]

use super::shard::{Shard, ShardLists, sub};
use super::size_class::PAGE;
use super::span::{ALL_PAGES, ALL_UNITS, Listed, Span, UNIT, UNITS, WORDS, base_of, pages_of};
use super::system::System;

/// A free that exceeds the limit of its shard looks for dirty memory in this many spans.
pub(super) const LOOKS: usize = 8;
/// A free that exceeds the limit of its shard returns at most this many slots and units of others.
/// It returns more than it needs, so that the next frees have room.
pub(super) const RETURNS: usize = 8;

impl ShardLists {
    /// Returns dirty memory to the system until the shard has room for `bytes` more dirty bytes.
    /// Looks at a few spans, beginning where the last call ended, and leaves out `own` and spans of
    /// its class. So the work is bounded, and the shard may still have no room.
    ///
    /// # Safety
    /// `own` belongs to this shard.
    pub(super) unsafe fn make_room(
        &mut self,
        system: &System,
        shard: &Shard,
        bytes: usize,
        own: *mut Span,
    ) {
        let mut calls = RETURNS;
        for _ in 0..LOOKS.min(self.spans.len()) {
            if calls == 0 || !shard.is_full_with(bytes) {
                return;
            }
            self.looked_at = (self.looked_at + 1) % self.spans.len();
            let span = self.spans[self.looked_at];
            // SAFETY: invariants 1 and 3; the lock is held, and no code uses free memory.
            unsafe {
                let is_like_own = (*span).large
                    && (*own).large
                    && (*span).units[0].lists == (*own).units[0].lists;
                if span == own || is_like_own {
                    continue;
                }
                self.clean_span(system, shard, span, &mut calls);
                if self.is_spare(span) {
                    self.discard(system, span);
                }
            }
        }
    }

    /// Returns the free pages of a span to the system, with at most `calls` calls, and subtracts
    /// the calls from `calls`. The result is true if the span has only clean free memory.
    ///
    /// # Safety
    /// The span belongs to this shard.
    pub(super) unsafe fn clean_span(
        &mut self,
        system: &System,
        shard: &Shard,
        span: *mut Span,
        calls: &mut usize,
    ) -> bool {
        // SAFETY: invariant 3; the lock is held, and no code uses the memory of free slots and
        // units.
        unsafe {
            let start = span.cast::<u8>();
            if !(*span).large {
                let mut dirty = (*span).free & !(*span).clean;
                while dirty != 0 && *calls > 0 {
                    *calls -= 1;
                    let number = dirty.trailing_zeros() as usize;
                    if system.return_pages(start.add(number * UNIT), UNIT) {
                        (*span).clean |= 1 << number;
                        sub(&shard.dirty, UNIT);
                    }
                    dirty &= dirty - 1;
                }
                return (*span).clean == ALL_UNITS;
            }
            let unit = &raw mut (*span).units[0];
            let slot = (*unit).slot;
            for w in 0..WORDS {
                let mut dirty = (*unit).free[w] & !(*unit).clean[w];
                while dirty != 0 && *calls > 0 {
                    *calls -= 1;
                    let bit = dirty.trailing_zeros() as usize;
                    if system.return_pages(base_of(unit).add((w * 64 + bit) * slot), slot) {
                        (*unit).clean[w] |= 1 << bit;
                        sub(&shard.dirty, slot);
                    }
                    dirty &= dirty - 1;
                }
            }
            self.list(unit);
            (*unit).used == 0 && (*unit).listed == Listed::Clean
        }
    }

    /// Returns pages to the system that only free slots have bytes in, in all units of a span of
    /// small slots that have slots in use.
    ///
    /// # Safety
    /// The span belongs to this shard, and has units of small slots.
    pub(super) unsafe fn clean_between(&mut self, system: &System, span: *mut Span) {
        // SAFETY: invariants 2 and 3; the lock is held, and no code uses the memory of free slots.
        unsafe {
            let in_use = !(*span).free & ALL_UNITS;
            for number in (1..=UNITS).filter(|number| in_use >> number & 1 == 1) {
                let unit = &raw mut (*span).units[number];
                let (slot, count) = ((*unit).slot, (*unit).count);
                // A unit without slots in use is about to become free, and is in no list.
                if (*unit).used == 0 || (*unit).used == count {
                    continue;
                }
                let mut backed = ALL_PAGES & !(*unit).returned;
                for n in 0..count {
                    if (*unit).free[n / 64] >> (n % 64) & 1 == 0 {
                        backed &= !pages_of(n, slot);
                    }
                }
                while backed != 0 {
                    let first = backed.trailing_zeros();
                    let pages = (backed >> first).trailing_ones();
                    let run = ((1u32 << pages) - 1) << first;
                    let start = base_of(unit).add(first as usize * PAGE);
                    if system.return_pages(start, pages as usize * PAGE) {
                        (*unit).returned |= run;
                    }
                    backed &= !run;
                }
                for n in 0..count {
                    let (word, bit) = (n / 64, 1u64 << (n % 64));
                    if (*unit).free[word] & bit != 0 && pages_of(n, slot) & !(*unit).returned == 0 {
                        (*unit).clean[word] |= bit;
                    }
                }
                self.list(unit);
            }
        }
    }
}
