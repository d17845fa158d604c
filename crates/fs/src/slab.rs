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
//! slab uses dirty memory first. A shard keeps dirty memory up to a 32nd of its bytes in use.
//! Beyond that, a free returns older dirty memory of other classes, so that a class in use keeps
//! its own. If a few spans have none, the freed block is returned. [`Slab::trim`] returns all dirty
//! memory. It also returns pages inside units of small slots if no slot in use has bytes in them.
//!
//! This is one of the leaf modules that may use `unsafe`. Invariants:
//! 1. A span in `Lists::spans` is one mapping of [`SPAN`] bytes at a multiple of [`SPAN`], with an
//!    initialised header. The slab unmaps a span after the span left `spans`, when none of its
//!    slots is in use. If the system refuses, the span is unchanged and returns to `spans`.
//! 2. A slot is in use exactly if its bit in [`Unit::free`] is not set, its unit is not free, and
//!    its number is below [`Unit::count`]. Only the caller that took the slot uses its memory.
//! 3. A header changes only under the lock of the shard that owns the span. [`Span::shard`],
//!    [`Span::large`] and [`Unit::slot`] do not change while a slot of the unit is in use. So the
//!    owner of a slot reads them without the lock.
//! 4. Headers are read and written through raw pointers only. No reference to one exists.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use parking_lot::{Mutex, MutexGuard};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of a page. The slab serves no blocks on systems with larger pages.
const PAGE: usize = 4096;
/// Bytes and alignment of a span.
const SPAN: usize = 4 << 20;
/// Bytes of a unit of small slots, and of the room for a span's header.
const UNIT: usize = 64 << 10;
/// Number of units of small slots in a span. The header takes the place of one more.
const UNITS: usize = SPAN / UNIT - 1;
/// Bit `i` stands for unit `i`, and unit 0 is the place of the header.
const ALL_UNITS: u64 = u64::MAX << 1;
/// Bit `i` stands for page `i` of a unit of small slots.
const ALL_PAGES: u32 = (1 << (UNIT / PAGE)) - 1;
/// Bytes of the smallest block that comes from a slab.
pub(crate) const SLAB_FROM: usize = 1 << 10;
/// Upper bound, in bytes, for blocks that come from a slab.
pub(crate) const SLAB_MOST: usize = 512 << 10;
/// Slots of at least this many bytes are whole pages.
const LARGE: usize = 16 << 10;
/// The largest alignment, in bytes, of a block that is smaller than [`LARGE`].
pub(crate) const SMALL_ALIGN: usize = 32;
/// Slot sizes for each doubling.
const STEPS: usize = 16;
/// `ilog2` of the smallest block size less one.
const LOWEST: usize = (SLAB_FROM - 1).ilog2() as usize;
const CLASSES: usize = ((SLAB_MOST - 1).ilog2() as usize - LOWEST + 1) * STEPS;
/// Words of a bitmap of slots.
const WORDS: usize = 4;
/// Number of shards. It is small, because a thread cannot use the free memory of a shard that it
/// does not lock.
const SHARDS: usize = 2;
/// A shard may keep one part in this many of its bytes in use as dirty memory.
const KEPT_PART: usize = 32;
/// A shard may always keep this many dirty bytes.
const KEPT_LEAST: usize = 1 << 20;
/// A free that exceeds the limit of its shard looks for dirty memory in this many spans.
const LOOKS: usize = 8;
/// A free that exceeds the limit of its shard returns at most this many slots and units of others.
/// It returns more than it needs, so that the next frees have room.
const RETURNS: usize = 8;

const _: () = assert!((SPAN - UNIT) / LARGE <= WORDS * 64 && UNIT / SLAB_FROM <= WORDS * 64);
const _: () = assert!(size_of::<Span>() <= UNIT && UNITS == 63);

/// How long a block is expected to live. Blocks of different lifetimes share no unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// The block lives as long as a memtable or an operation, as batches and buffers do.
    Brief,
    /// The block stays as long as a cache keeps it.
    Cached,
}

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
fn class_of(slot: usize) -> usize {
    let log = (slot - 1).ilog2() as usize;
    (log - LOWEST) * STEPS + ((slot - 1) >> (log - STEPS.ilog2() as usize)) - STEPS
}

/// The list of its class that a unit is in.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Listed {
    /// Every slot is in use, or the unit is free.
    No,
    /// At least one free slot is dirty.
    Dirty,
    /// All free slots are clean.
    Clean,
}

struct Unit {
    /// Bytes of a slot.
    slot: usize,
    /// Number of slots.
    count: usize,
    /// Number of slots in use.
    used: usize,
    /// Index into [`Lists::units`] of the lists for the class and lifetime of the unit.
    lists: usize,
    listed: Listed,
    /// Bitmap of the free slots.
    free: [u64; WORDS],
    /// Bitmap of the free slots whose pages were returned to the system. In a unit of small slots,
    /// a page that the slot shares with another one may be in use again.
    clean: [u64; WORDS],
    /// Bitmap of the pages of a unit of small slots that the system does not back. No slot in use
    /// has bytes in them.
    returned: u32,
    prev: *mut Unit,
    next: *mut Unit,
}

struct Span {
    /// Index of the shard that owns the span.
    shard: usize,
    /// True if the span is one unit, which is `units[0]`.
    large: bool,
    /// Index of the span in [`Lists::spans`].
    at: usize,
    /// Bitmap of the free units of small slots.
    free: u64,
    /// Bitmap of the free units whose pages were returned to the system.
    clean: u64,
    prev: *mut Span,
    next: *mut Span,
    units: [Unit; UNITS + 1],
}

/// The spans and lists of one shard.
struct Lists {
    /// Heads of two lists for each lifetime and class: units with dirty free slots, and units with
    /// clean free slots.
    units: [[*mut Unit; 2]; 2 * CLASSES],
    /// Head of the list of spans of small slots that have free units.
    roomy: *mut Span,
    /// All spans.
    spans: Vec<*mut Span>,
    /// Index into `spans` of the span in which a free last looked for dirty memory.
    looked_at: usize,
}

// SAFETY: the spans belong to the shard alone, and invariant 3 holds for any thread that has the
// lock.
unsafe impl Send for Lists {}

#[repr(align(128))]
struct Shard {
    lists: Mutex<Lists>,
    /// Bytes of slots in use. Changes under the lock.
    used: AtomicUsize,
    /// Bytes of dirty slots and dirty free units. Changes under the lock.
    dirty: AtomicUsize,
}

impl Shard {
    /// Returns true if `bytes` more dirty bytes would exceed the limit of the shard.
    fn is_full_with(&self, bytes: usize) -> bool {
        // Relaxed: a limit that need not be exact.
        let kept = (self.used.load(Relaxed) / KEPT_PART).max(KEPT_LEAST);
        self.dirty.load(Relaxed) + bytes > kept
    }
}

/// Adds to a number that changes only under a lock that the caller holds.
fn add(to: &AtomicUsize, bytes: usize) {
    to.store(to.load(Relaxed) + bytes, Relaxed);
}

/// Subtracts from a number that changes only under a lock that the caller holds.
fn sub(from: &AtomicUsize, bytes: usize) {
    from.store(from.load(Relaxed) - bytes, Relaxed);
}

/// The system calls of a slab. Tests can change what the system answers.
struct System {
    /// Bytes of a page of the system. 0 stands for the page size of the real system.
    #[cfg(test)]
    page: AtomicUsize,
    /// Number of calls that returned pages.
    #[cfg(test)]
    returns: AtomicUsize,
    /// If true, the system refuses to unmap spans.
    #[cfg(test)]
    keeps_spans: std::sync::atomic::AtomicBool,
}

impl System {
    const fn new() -> System {
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
    fn page(&self) -> usize {
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
    fn map(&self) -> Option<NonNull<u8>> {
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
    unsafe fn unmap(&self, span: *mut Span) -> bool {
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
    unsafe fn return_pages(&self, start: *mut u8, len: usize) -> bool {
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
                    lists: Mutex::new(Lists {
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
    fn lock(&self) -> (usize, MutexGuard<'_, Lists>) {
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
                unsafe { unmap(span) };
            }
        }
    }
}

impl Lists {
    /// Makes a unit whose slots are all free, and puts it into its list. Returns `None` if the
    /// system has no memory.
    #[cold]
    fn fresh_unit(
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
    unsafe fn list(&mut self, unit: *mut Unit) {
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
    unsafe fn unlist(&mut self, unit: *mut Unit) {
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
    unsafe fn is_spare(&self, span: *mut Span) -> bool {
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

    /// Returns dirty memory to the system until the shard has room for `bytes` more dirty bytes.
    /// Looks at a few spans, beginning where the last call ended, and leaves out `own` and spans of
    /// its class. So the work is bounded, and the shard may still have no room.
    ///
    /// # Safety
    /// `own` belongs to this shard.
    unsafe fn make_room(&mut self, system: &System, shard: &Shard, bytes: usize, own: *mut Span) {
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

    /// Takes a unit of small slots back into its span. Returns the span if the caller must unmap
    /// it.
    ///
    /// # Safety
    /// The unit belongs to the span, is in no list, and has no slot in use.
    unsafe fn free_unit(
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

    /// # Safety
    /// The span belongs to this shard and is not in the list of those with free units.
    unsafe fn link_roomy(&mut self, span: *mut Span) {
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

    /// # Safety
    /// The span belongs to this shard and is in the list of those with free units.
    unsafe fn unlink_roomy(&mut self, span: *mut Span) {
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
    unsafe fn remove(&mut self, span: *mut Span) {
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
    unsafe fn insert(&mut self, span: *mut Span) {
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
    unsafe fn discard(&mut self, system: &System, span: *mut Span) {
        // SAFETY: as promised, and invariant 1: the span leaves the lists before it is unmapped.
        unsafe {
            self.remove(span);
            if !system.unmap(span) {
                self.insert(span);
            }
        }
    }

    /// Returns the free pages of a span to the system, with at most `calls` calls, and subtracts
    /// the calls from `calls`. The result is true if the span has only clean free memory.
    ///
    /// # Safety
    /// The span belongs to this shard.
    unsafe fn clean_span(
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
    unsafe fn clean_between(&mut self, system: &System, span: *mut Span) {
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

/// Returns the bitmap of the pages of a unit that a small slot has bytes in.
fn pages_of(number: usize, slot: usize) -> u32 {
    let (first, last) = (number * slot / PAGE, (number * slot + slot - 1) / PAGE);
    (2u32 << last) - (1 << first)
}

/// Returns the span and the unit of a block or of a unit's header.
///
/// # Safety
/// The pointer points into a span, at a slot in use.
unsafe fn unit_of(at: *mut u8) -> (*mut Span, *mut Unit) {
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
unsafe fn base_of(unit: *mut Unit) -> *mut u8 {
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
unsafe fn unmap(span: *mut Span) -> bool {
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

/// # Safety
/// [`map`] returned the span, and no other code uses its memory any more.
#[cfg(miri)]
unsafe fn unmap(span: *mut Span) -> bool {
    let layout = std::alloc::Layout::from_size_align(SPAN, SPAN).expect("a constant");
    // SAFETY: as promised.
    unsafe { std::alloc::dealloc(span.cast(), layout) };
    true
}

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

/// # Safety
/// This function is never called, because the target has no spans.
#[cfg(not(any(miri, all(target_os = "linux", target_pointer_width = "64"))))]
unsafe fn unmap(_span: *mut Span) -> bool {
    false
}

/// # Safety
/// This function is never called, because the target has no spans.
#[cfg(not(any(miri, all(target_os = "linux", target_pointer_width = "64"))))]
unsafe fn return_pages(_start: *mut u8, _len: usize) -> bool {
    false
}
