//! The sorted list under a memtable: a skiplist in an arena, with lock-free inserts and wait-free readers.
//!
//! A node is one allocation, and its address is that of its header:
//!
//! ```text
//!  next[height-1] .. next[1] next[0] | prefix u64 | lens u64 | user key, trailer | value, or LargeValue (aligned to 8)
//!                                    ^ address
//! ```
//!
//! The tower grows downward from the address, so that the first link, the lengths and the key lie side by side whatever the height.
//! `prefix` is the first 8 bytes of the user key as a big-endian number, padded with zeros: under bytewise order
//! unequal prefixes decide a comparison without touching the key.
//!
//! This is a leaf module that may use `unsafe`. Invariants:
//! 1. A [`Node`] that left `SkipList::make_node` has header, key and value fully written, and these bytes are never written again.
//!    Its links are atomics, each null or a node of the same list.
//! 2. A node is linked at level 0 before any other, upward. It is reached at level `l` only through a link of level `l`, so
//!    `l` is below its height, and levels are only descended.
//! 3. Nothing is ever unlinked; nodes live until the list is dropped. A `Node` kept outside (cursor, pinned value)
//!    stands beside an `Arc` of the memtable that owns the list.
//!
//! Atomic orderings:
//! - the compare-exchange that links a node is `Release`: all plain writes to the node, and its own link at that level, come
//!   before it;
//! - every load of a link is `Acquire` and pairs with it, so a reader that sees a node sees all of it;
//! - a node's own link is stored `Relaxed` before it is published, for the exchange after it is the `Release`;
//! - `hint` is stored `Release` and loaded `Acquire`, as a link is; `last` is only compared, never followed, so `Relaxed`;
//! - `height`, `len`, `pinned` are `Relaxed`: a stale height only starts a search lower (or at null links of the head).
#![allow(unsafe_code)]

use super::MemTable;
use super::arena::{ALIGN, Arena};
use crate::key::{Cmp, TRAILER_LEN};
use basalt_fs::Bytes;
use std::cmp::Ordering;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering as Mem};

/// Levels: with every second node a level higher, enough for a million entries, and little is lost far above that.
/// One in four would save 5 bytes an entry and cost a tenth of an insert's time at a million entries.
const MAX_HEIGHT: usize = 20;

/// Values from this length on stay in the batch's memory.
pub(super) const LARGE_VALUE: usize = 512;

/// Bytes of `prefix` and `lens`.
const HEADER: usize = 16;
/// Bits of `lens`: user key length in 0..24, height in 24..31, large value in 31, value length in 32..64.
const KEY_LEN_MASK: u64 = (1 << 24) - 1;
const LARGE_BIT: u64 = 1 << 31;

/// What stands in a node in place of a large value: the batch's memory, and the link by which `drop` finds it.
struct LargeValue {
    value: Bytes,
    older: *mut LargeValue,
}

const _: () = assert!(align_of::<LargeValue>() <= ALIGN && align_of::<AtomicPtr<u8>>() <= ALIGN);

/// A fully written node of a living list (invariants 1 and 3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Node(NonNull<u8>);

impl Node {
    #[inline]
    fn link<'a>(self, level: usize) -> &'a AtomicPtr<u8> {
        debug_assert!(level < self.height());
        // SAFETY: level < height (invariant 2), so the slot is inside the node's allocation and initialised; it is
        // only ever accessed as an atomic. The caller does not keep it past the list.
        unsafe { &*self.0.as_ptr().cast::<AtomicPtr<u8>>().sub(level + 1) }
    }
    /// The node after this one at `level`.
    #[inline]
    fn next(self, level: usize) -> Option<Node> {
        NonNull::new(self.link(level).load(Mem::Acquire)).map(Node)
    }
    #[inline]
    fn prefix(self) -> u64 {
        // SAFETY: invariant 1; the header is 8-aligned.
        unsafe { self.0.as_ptr().cast::<u64>().read() }
    }
    #[inline]
    fn lens(self) -> u64 {
        // SAFETY: invariant 1; the header is 8-aligned.
        unsafe { self.0.as_ptr().cast::<u64>().add(1).read() }
    }
    #[inline]
    fn height(self) -> usize {
        (self.lens() >> 24) as usize & 0x7f
    }
    #[inline]
    fn bytes<'a>(self, at: usize, len: usize) -> &'a [u8] {
        // SAFETY: callers pass ranges that `lens` describes, written before publication and never after (invariant 1).
        // The lifetime is bounded by the callers, which stand beside the list (invariant 3).
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(HEADER + at), len) }
    }
    #[inline]
    fn user_key<'a>(self) -> &'a [u8] {
        self.bytes(0, (self.lens() & KEY_LEN_MASK) as usize)
    }
    #[inline]
    fn internal_key<'a>(self) -> &'a [u8] {
        self.bytes(0, (self.lens() & KEY_LEN_MASK) as usize + TRAILER_LEN)
    }
    #[inline]
    fn trailer(self) -> u64 {
        let t = self.bytes((self.lens() & KEY_LEN_MASK) as usize, TRAILER_LEN);
        u64::from_le_bytes(t.try_into().expect("8 bytes"))
    }
    fn large<'a>(self) -> Option<&'a LargeValue> {
        let lens = self.lens();
        if lens & LARGE_BIT == 0 {
            return None;
        }
        let at = large_at((lens & KEY_LEN_MASK) as usize);
        // SAFETY: the bit says that a LargeValue was written there, at a multiple of its alignment.
        Some(unsafe { &*self.0.as_ptr().add(at).cast::<LargeValue>() })
    }
    fn value<'a>(self) -> &'a [u8] {
        match self.large() {
            Some(large) => &large.value,
            None => {
                let lens = self.lens();
                self.bytes(
                    (lens & KEY_LEN_MASK) as usize + TRAILER_LEN,
                    (lens >> 32) as usize,
                )
            }
        }
    }
}

/// Where a large value stands, from the node's address.
fn large_at(key_len: usize) -> usize {
    HEADER + (key_len + TRAILER_LEN).next_multiple_of(ALIGN)
}

/// The first 8 bytes as a big-endian number, padded with zeros.
#[inline]
fn key_prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(b) => u64::from_be_bytes(*b),
        None => {
            let mut b = [0; 8];
            b[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(b)
        }
    }
}

/// Bytewise order, the first 8 bytes as numbers: most keys are short, and a call to compare memory costs more than they do.
#[inline(always)]
fn compare_rest(a: &[u8], b: &[u8]) -> Ordering {
    if let (Some(x), Some(y)) = (a.first_chunk::<8>(), b.first_chunk::<8>()) {
        let (x, y) = (u64::from_be_bytes(*x), u64::from_be_bytes(*y));
        if x != y {
            return x.cmp(&y);
        }
        if a.len() == 8 && b.len() == 8 {
            return Ordering::Equal;
        }
    }
    a.cmp(b)
}

/// A place to look for: a user key, its prefix, and a trailer.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    prefix: u64,
    user: &'a [u8],
    trailer: u64,
}

impl<'a> Target<'a> {
    #[inline]
    pub(super) fn new(user: &'a [u8], trailer: u64) -> Target<'a> {
        Target {
            prefix: key_prefix(user),
            user,
            trailer,
        }
    }
}

/// Fetches a node's links, header and first key bytes ahead of their use, which often lie on two lines: a comparison
/// that turns out to need the second one would else wait for one after the other.
#[inline(always)]
fn prefetch(node: Option<Node>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(n) = node {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = n.0.as_ptr().cast::<i8>();
        // SAFETY: a prefetch reads nothing as far as the program can tell, and may point anywhere.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_sub(8));
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(HEADER + 15));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = node;
}

/// The list. See the module.
pub(super) struct SkipList {
    cmp: Cmp,
    bytewise: bool,
    head: Node,
    height: AtomicUsize,
    len: AtomicUsize,
    pinned: AtomicUsize,
    large: AtomicPtr<LargeValue>,
    /// The last node inserted right behind the one inserted before it, or null: keys that come in order are
    /// looked for there first.
    hint: AtomicPtr<u8>,
    /// The node inserted last, to notice such runs.
    last: AtomicPtr<u8>,
    arena: Arena,
}

// SAFETY: nodes belong to the list alone, are immutable after publication but for atomic links (invariants 1, 2), and hold
// only bytes and `Bytes`, which are Send and Sync, as is the comparator.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

impl SkipList {
    pub(super) fn new(cmp: Cmp) -> SkipList {
        let arena = Arena::new();
        let head = alloc_node(&arena, MAX_HEIGHT, 0, 0, HEADER);
        SkipList {
            bytewise: matches!(cmp, Cmp::Bytewise),
            cmp,
            head,
            height: AtomicUsize::new(1),
            len: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            large: AtomicPtr::new(ptr::null_mut()),
            hint: AtomicPtr::new(ptr::null_mut()),
            last: AtomicPtr::new(head.0.as_ptr()),
            arena,
        }
    }

    pub(super) fn cmp(&self) -> &Cmp {
        &self.cmp
    }
    pub(super) fn len(&self) -> usize {
        self.len.load(Mem::Relaxed)
    }
    pub(super) fn memory(&self) -> usize {
        self.arena.memory() + self.pinned.load(Mem::Relaxed)
    }
    pub(super) fn add_pinned(&self, bytes: usize) {
        self.pinned.fetch_add(bytes, Mem::Relaxed);
    }

    /// How a node stands to a target. The head is never passed here.
    #[inline(always)]
    fn compare(&self, node: Node, target: &Target<'_>) -> Ordering {
        if self.bytewise {
            let p = node.prefix();
            if p != target.prefix {
                return p.cmp(&target.prefix);
            }
            let key = node.user_key();
            // Equal prefixes of keys of 8 bytes or more: the rest decides. Shorter ones may differ by padding.
            let order = if key.len() >= 8 && target.user.len() >= 8 {
                compare_rest(&key[8..], &target.user[8..])
            } else {
                key.cmp(target.user)
            };
            order.then_with(|| target.trailer.cmp(&node.trailer()))
        } else {
            self.cmp
                .user(node.user_key(), target.user)
                .then_with(|| target.trailer.cmp(&node.trailer()))
        }
    }

    /// The first node at or after the target.
    #[inline]
    fn seek(&self, target: &Target<'_>) -> Option<Node> {
        let mut at = self.head;
        let mut level = self.height.load(Mem::Relaxed) - 1;
        // The node that stopped the level above needs no second comparison.
        let mut stop = None;
        loop {
            let next = at.next(level);
            prefetch(next);
            if let Some(n) = next
                && next != stop
                && self.compare(n, target) == Ordering::Less
            {
                at = n;
                continue;
            }
            if level == 0 {
                return next;
            }
            stop = next;
            level -= 1;
        }
    }

    /// The last node before the target, or at it when `or_at`.
    fn seek_before(&self, target: &Target<'_>, or_at: bool) -> Option<Node> {
        self.last_where(|n| {
            let o = self.compare(n, target);
            o == Ordering::Less || (or_at && o == Ordering::Equal)
        })
    }

    /// The last node of the leading run for which `inside` holds.
    fn last_where(&self, inside: impl Fn(Node) -> bool) -> Option<Node> {
        let mut at = self.head;
        let mut level = self.height.load(Mem::Relaxed) - 1;
        loop {
            match at.next(level) {
                Some(n) if inside(n) => at = n,
                _ if level == 0 => break,
                _ => level -= 1,
            }
        }
        (at != self.head).then_some(at)
    }

    /// Inserts an entry that is not there yet. Panics when it is.
    pub(super) fn insert(&self, target: Target<'_>, value: &Bytes) {
        let height = tower_height(&target);
        let mut prev = [self.head; MAX_HEIGHT];
        let mut next = [None; MAX_HEIGHT];
        let mut top = self.height.load(Mem::Relaxed);
        while height > top {
            // Relaxed: see the module; the head's links above are null until something is linked there.
            match self
                .height
                .compare_exchange_weak(top, height, Mem::Relaxed, Mem::Relaxed)
            {
                Ok(_) => top = height,
                Err(seen) => top = seen,
            }
        }
        match self.place_by_hint(&target) {
            // Every second node is linked at the lowest level only.
            Some(place) if height == 1 => (prev[0], next[0]) = place,
            _ => {
                let (mut at, mut stop) = (self.head, None);
                for level in (0..top).rev() {
                    (prev[level], next[level]) = self.walk(at, level, &target, stop);
                    (at, stop) = (prev[level], next[level]);
                }
            }
        }
        let node = self.make_node(height, &target, value);
        for level in 0..height {
            loop {
                node.link(level).store(
                    next[level].map_or(ptr::null_mut(), |n: Node| n.0.as_ptr()),
                    Mem::Relaxed,
                );
                let old = next[level].map_or(ptr::null_mut(), |n| n.0.as_ptr());
                // Release publishes the node's bytes and the link just stored. On failure the value is loaded again
                // with Acquire by `walk`.
                if prev[level]
                    .link(level)
                    .compare_exchange(old, node.0.as_ptr(), Mem::Release, Mem::Relaxed)
                    .is_ok()
                {
                    break;
                }
                // Others linked nodes behind `prev`; nothing is unlinked, so the place is at or after it.
                (prev[level], next[level]) = self.walk(prev[level], level, &target, None);
            }
        }
        let behind_last = self.last.load(Mem::Relaxed) == prev[0].0.as_ptr();
        self.last.store(node.0.as_ptr(), Mem::Relaxed);
        // Release: whoever takes the hint sees the whole node.
        if behind_last {
            self.hint.store(node.0.as_ptr(), Mem::Release);
        } else if !self.hint.load(Mem::Relaxed).is_null() {
            self.hint.store(ptr::null_mut(), Mem::Release);
        }
        self.len.fetch_add(1, Mem::Relaxed);
    }

    /// The nodes between which the target goes at the lowest level, when it goes right behind the hint.
    #[inline]
    fn place_by_hint(&self, target: &Target<'_>) -> Option<(Node, Option<Node>)> {
        let hint = Node(NonNull::new(self.hint.load(Mem::Acquire))?);
        if self.compare(hint, target) != Ordering::Less {
            return None;
        }
        match hint.next(0) {
            Some(n) if self.compare(n, target) != Ordering::Greater => None,
            next => Some((hint, next)),
        }
    }

    /// Walks along `level` from `at` (before the target) to the last node before the target, and the one after it.
    #[inline(always)]
    fn walk(
        &self,
        mut at: Node,
        level: usize,
        target: &Target<'_>,
        stop: Option<Node>,
    ) -> (Node, Option<Node>) {
        loop {
            let next = at.next(level);
            let Some(n) = next else { return (at, None) };
            if next == stop {
                return (at, next);
            }
            prefetch(next);
            match self.compare(n, target) {
                Ordering::Less => at = n,
                Ordering::Greater => return (at, next),
                Ordering::Equal => panic!(
                    "entry inserted twice into a memtable: sequence number {}, kind {}",
                    target.trailer >> 8,
                    target.trailer as u8
                ),
            }
        }
    }

    /// A node for an entry, complete but for its links.
    fn make_node(&self, height: usize, target: &Target<'_>, value: &Bytes) -> Node {
        let key_len = target.user.len();
        assert!(
            key_len as u64 <= KEY_LEN_MASK && u32::try_from(value.len()).is_ok(),
            "key of {key_len} bytes, value of {} bytes in a memtable",
            value.len()
        );
        let large = value.len() >= LARGE_VALUE;
        let size = if large {
            large_at(key_len) + size_of::<LargeValue>()
        } else {
            HEADER + key_len + TRAILER_LEN + value.len()
        };
        let lens = key_len as u64 | (value.len() as u64) << 32 | if large { LARGE_BIT } else { 0 };
        let node = alloc_node(&self.arena, height, target.prefix, lens, size);
        let at = node.0.as_ptr();
        // SAFETY: `size` bytes from the address on belong to this node, which nobody else knows yet; the sources are
        // other memory.
        unsafe {
            let key = at.add(HEADER);
            ptr::copy_nonoverlapping(target.user.as_ptr(), key, key_len);
            ptr::copy_nonoverlapping(
                target.trailer.to_le_bytes().as_ptr(),
                key.add(key_len),
                TRAILER_LEN,
            );
            if !large {
                ptr::copy_nonoverlapping(
                    value.as_ptr(),
                    key.add(key_len + TRAILER_LEN),
                    value.len(),
                );
            }
        }
        if large {
            // SAFETY: `size` includes an aligned LargeValue at `large_at`.
            let slot = unsafe { at.add(large_at(key_len)).cast::<LargeValue>() };
            // SAFETY: as above; the slot was not initialised, so nothing is forgotten.
            unsafe {
                slot.write(LargeValue {
                    value: value.clone(),
                    older: ptr::null_mut(),
                });
            }
            // The chain is read only by `drop`, which has the list alone: Relaxed would do for it, but whoever
            // hands the list to the dropping thread may order only his own writes; AcqRel orders all of them.
            let mut older = self.large.load(Mem::Acquire);
            loop {
                // SAFETY: the slot is initialised, and `older` is read by nobody before `drop`.
                unsafe { (&raw mut (*slot).older).write(older) };
                match self
                    .large
                    .compare_exchange_weak(older, slot, Mem::AcqRel, Mem::Acquire)
                {
                    Ok(_) => break,
                    Err(seen) => older = seen,
                }
            }
            self.pinned.fetch_add(value.len(), Mem::Relaxed);
        }
        node
    }

    /// The newest version of the target's user key at or below the target's trailer.
    #[inline]
    pub(super) fn find(&self, target: &Target<'_>) -> Option<Node> {
        let node = self.seek(target)?;
        let same = if self.bytewise {
            node.prefix() == target.prefix && node.user_key() == target.user
        } else {
            self.cmp.user(node.user_key(), target.user) == Ordering::Equal
        };
        same.then_some(node)
    }
}

impl Drop for SkipList {
    fn drop(&mut self) {
        let mut at = *self.large.get_mut();
        while !at.is_null() {
            // SAFETY: each slot on the chain was initialised once by `make_node` and is dropped once, here;
            // the arena that holds it is dropped after this.
            unsafe {
                let older = (*at).older;
                ptr::drop_in_place(at);
                at = older;
            }
        }
    }
}

/// Allocates a node of `size` bytes from its address on, with null links, prefix and lengths written; the rest is
/// the caller's to write.
fn alloc_node(arena: &Arena, height: usize, prefix: u64, lens: u64, size: usize) -> Node {
    let tower = height * size_of::<AtomicPtr<u8>>();
    let start = arena.alloc(tower + size);
    // SAFETY: the allocation holds `tower + size` bytes with size >= HEADER, 8-aligned, known to nobody else.
    unsafe {
        let at = start.as_ptr().add(tower);
        for level in 0..height {
            at.cast::<AtomicPtr<u8>>()
                .sub(level + 1)
                .write(AtomicPtr::new(ptr::null_mut()));
        }
        at.cast::<u64>().write(prefix);
        at.cast::<u64>().add(1).write(lens | (height as u64) << 24);
        Node(NonNull::new_unchecked(at))
    }
}

/// One level, and one more with chance 1/2 each. The chance is a hash of trailer and key, so that a history repeats.
#[inline]
fn tower_height(target: &Target<'_>) -> usize {
    let tail = target
        .user
        .last_chunk::<8>()
        .map_or(0, |b| u64::from_le_bytes(*b));
    let mut z =
        target.trailer ^ target.prefix.rotate_left(32) ^ tail.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (1 + z.trailing_ones() as usize).min(MAX_HEIGHT)
}

/// An inline value and the memtable that holds it.
struct InlineValue {
    mem: Arc<MemTable>,
    node: Node,
}

// SAFETY: the node is immutable shared memory that `mem`, which is Send and Sync, keeps alive.
unsafe impl Send for InlineValue {}

impl AsRef<[u8]> for InlineValue {
    fn as_ref(&self) -> &[u8] {
        debug_assert!(Arc::strong_count(&self.mem) > 0);
        self.node.value()
    }
}

fn pin(mem: &Arc<MemTable>, node: Node) -> Bytes {
    match node.large() {
        Some(large) => large.value.clone(),
        None if node.lens() >> 32 == 0 => Bytes::new(),
        None => Bytes::from_owner(InlineValue {
            mem: mem.clone(),
            node,
        }),
    }
}

/// Trailer and pinned value of what [`SkipList::find`] finds in a memtable.
pub(super) fn find_pinned(mem: &Arc<MemTable>, target: &Target<'_>) -> Option<(u64, Bytes)> {
    let node = mem.list.find(target)?;
    Some((node.trailer(), pin(mem, node)))
}

/// A place in a memtable, or none.
pub(super) struct Cursor {
    mem: Arc<MemTable>,
    node: Option<Node>,
}

// SAFETY: as for InlineValue.
unsafe impl Send for Cursor {}

impl Cursor {
    pub(super) fn new(mem: Arc<MemTable>) -> Cursor {
        Cursor { mem, node: None }
    }
    fn at(&self) -> Node {
        self.node.expect("cursor is positioned")
    }
    pub(super) fn valid(&self) -> bool {
        self.node.is_some()
    }
    pub(super) fn first(&mut self) {
        self.node = self.mem.list.head.next(0);
    }
    pub(super) fn last(&mut self) {
        self.node = self.mem.list.last_where(|_| true);
    }
    pub(super) fn seek(&mut self, target: &Target<'_>) {
        self.node = self.mem.list.seek(target);
    }
    pub(super) fn seek_for_prev(&mut self, target: &Target<'_>) {
        self.node = self.mem.list.seek_before(target, true);
    }
    pub(super) fn next(&mut self) {
        self.node = self.at().next(0);
        prefetch(self.node);
    }
    pub(super) fn prev(&mut self) {
        let here = self.at();
        let target = Target::new(here.user_key(), here.trailer());
        self.node = self.mem.list.seek_before(&target, false);
    }
    pub(super) fn key(&self) -> &[u8] {
        self.at().internal_key()
    }
    pub(super) fn value(&self) -> &[u8] {
        self.at().value()
    }
    pub(super) fn pinned_value(&self) -> Bytes {
        pin(&self.mem, self.at())
    }
}
