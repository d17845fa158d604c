//! A node of the memtable's tree, and how its words are read and written. [`super::tree`] describes
//! what they mean to readers and writers.
//!
//! This is a leaf module that may use `unsafe`: for the addresses of nodes, which live as long as
//! the tree's arena (rule 1 there).
#![allow(unsafe_code)]

use super::record::{Record, Records, prefetch};
use basalt_env::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering as Mem, fence,
};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// Entries of a node: as many as four bits can number, less one for the count.
pub(super) const FANOUT: usize = 15;

/// The slots of a node in the order of their keys: a count in the lowest four bits, then a slot
/// number each, used slots first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Order(pub(super) u64);

impl Order {
    const EMPTY: Order = Order(0xedcb_a987_6543_2100);

    #[inline]
    pub(super) fn len(self) -> usize {
        (self.0 & 15) as usize
    }
    #[inline]
    pub(super) fn slot(self, place: usize) -> usize {
        // The number is never above 14. The `min` repeats that, so that no bound has to be checked.
        ((self.0 >> (4 * place + 4)) & 15).min(14) as usize
    }
    /// Returns the next free slot, and the order after it holds the entry at `place`.
    pub(super) fn insert(self, place: usize) -> (usize, Order) {
        let n = self.len();
        debug_assert!(place <= n && n < FANOUT);
        let free = self.slot(n);
        // The slot numbers, one after the other, without the count.
        let slots = self.0 >> 4;
        let low = slots & ((1 << (4 * place)) - 1);
        let moved = (slots >> (4 * place)) & ((1u64 << (4 * (n - place))) - 1);
        let above = if n + 1 == FANOUT {
            0
        } else {
            slots >> (4 * (n + 1)) << (4 * (n + 1))
        };
        let slots = low | (free as u64) << (4 * place) | moved << (4 * (place + 1)) | above;
        (free, Order(slots << 4 | (n as u64 + 1)))
    }
    /// Returns the order of the first `n` entries alone.
    pub(super) fn cut(self, n: usize) -> Order {
        Order(self.0 & !15 | n as u64)
    }
}

#[repr(C)]
pub(super) struct Node {
    pub(super) version: AtomicU32,
    pub(super) locked: AtomicBool,
    /// The level: 0 for a leaf, one more for each step up. Never changes.
    pub(super) level: u8,
    pub(super) skip: AtomicU32,
    pub(super) order: AtomicU64,
    pub(super) heads: [AtomicU32; FANOUT],
    pub(super) high: AtomicPtr<u8>,
    pub(super) next: AtomicPtr<Node>,
    /// The entries of a leaf, or the first keys of an inner node's children. The key of the first
    /// child is not read.
    pub(super) records: [AtomicPtr<u8>; FANOUT],
}

#[repr(C)]
struct Inner {
    node: Node,
    children: [AtomicPtr<Node>; FANOUT],
}

/// The contents of a slot.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) record: *mut u8,
    pub(super) child: *mut Node,
}

/// A node of a living tree (rule 1). The type is no reference, because the children of an inner
/// node lie behind the bytes that `Node` describes.
#[derive(Clone, Copy)]
pub(super) struct At<'t>(NonNull<Node>, PhantomData<&'t Node>);

impl Deref for At<'_> {
    type Target = Node;
    #[inline(always)]
    fn deref(&self) -> &Node {
        // SAFETY: rule 1: the node lives as long as the tree, and every holder of an `At` stands
        // beside the tree. All changing words are atomic.
        unsafe { self.0.as_ref() }
    }
}

impl<'t> At<'t> {
    /// Returns the node at an address that the tree has stored, or `None` for a null address.
    #[inline(always)]
    pub(super) fn of(address: *mut Node) -> Option<At<'t>> {
        NonNull::new(address).map(|at| At(at, PhantomData))
    }
    pub(super) fn address(self) -> *mut Node {
        self.0.as_ptr()
    }
    pub(super) fn is(self, other: *mut Node) -> bool {
        ptr::eq(self.0.as_ptr(), other)
    }
    #[inline]
    pub(super) fn next(self) -> Option<At<'t>> {
        At::of(self.next.load(Mem::Acquire))
    }
    #[inline]
    pub(super) fn children(&self) -> &[AtomicPtr<Node>; FANOUT] {
        debug_assert!(self.level > 0);
        // SAFETY: a node above level 0 is the first field of an `Inner`, and its address is that of
        // the whole (`make`).
        unsafe { &(*self.0.as_ptr().cast::<Inner>()).children }
    }
    #[inline]
    pub(super) fn child(self, slot: usize) -> At<'t> {
        At::of(self.children()[slot].load(Mem::Acquire)).expect("a slot in use has a child")
    }
    pub(super) fn entry(self, slot: usize) -> Entry {
        Entry {
            record: self.records[slot].load(Mem::Acquire),
            child: match self.level {
                0 => ptr::null_mut(),
                _ => self.children()[slot].load(Mem::Acquire),
            },
        }
    }
    /// Puts an entry at a place; there is room. The caller may write to the node.
    pub(super) fn put(self, place: usize, head: u32, entry: Entry) {
        let (slot, order) = self.order().insert(place);
        self.heads[slot].store(head, Mem::Release);
        self.records[slot].store(entry.record, Mem::Release);
        if self.level > 0 {
            self.children()[slot].store(entry.child, Mem::Release);
        }
        self.order.store(order.0, Mem::Release);
    }
    /// Prefetches the lines of the node together, before the first read waits for one.
    #[inline(always)]
    pub(super) fn fetch(self) {
        for line in 0..size_of::<Node>().div_ceil(64) {
            prefetch(self.0.as_ptr().wrapping_byte_add(line * 64));
        }
    }
}

impl Node {
    fn new(level: u8) -> Node {
        Node {
            version: AtomicU32::new(0),
            locked: AtomicBool::new(false),
            level,
            skip: AtomicU32::new(0),
            order: AtomicU64::new(Order::EMPTY.0),
            heads: Default::default(),
            high: AtomicPtr::default(),
            next: AtomicPtr::default(),
            records: Default::default(),
        }
    }
    #[inline]
    pub(super) fn order(&self) -> Order {
        Order(self.order.load(Mem::Acquire))
    }
    #[inline]
    pub(super) fn version(&self) -> u32 {
        self.version.load(Mem::Acquire)
    }
    /// Returns true if no change has overtaken the reads since `version` was loaded.
    #[inline]
    pub(super) fn stands(&self, version: u32) -> bool {
        fence(Mem::Acquire);
        self.version.load(Mem::Relaxed) == version
    }
    #[inline]
    pub(super) fn record(&self, slot: usize) -> Option<Record> {
        Record::at(self.records[slot].load(Mem::Acquire))
    }
    #[inline]
    pub(super) fn high(&self) -> Option<Record> {
        Record::at(self.high.load(Mem::Acquire))
    }
    pub(super) fn begin_change(&self) {
        let version = self.version.load(Mem::Relaxed);
        debug_assert!(version.is_multiple_of(2));
        self.version.store(version.wrapping_add(1), Mem::Release);
    }
    pub(super) fn end_change(&self) {
        let version = self.version.load(Mem::Relaxed);
        debug_assert!(!version.is_multiple_of(2));
        self.version.store(version.wrapping_add(1), Mem::Release);
    }
}

/// Makes an empty node. The address is that of the whole allocation.
pub(super) fn make<'t>(records: &Records, level: u8) -> At<'t> {
    let node = Node::new(level);
    if level == 0 {
        let at = records.arena().alloc(size_of::<Node>()).cast::<Node>();
        // SAFETY: the memory has room for a node, is aligned to 8, and is not yet known to another
        // thread.
        unsafe { at.write(node) };
        return At(at, PhantomData);
    }
    let at = records.arena().alloc(size_of::<Inner>()).cast::<Inner>();
    // SAFETY: the memory has room for an inner node, is aligned to 8, and is not yet known to
    // another thread.
    unsafe {
        at.write(Inner {
            node,
            children: Default::default(),
        });
    }
    At(at.cast::<Node>(), PhantomData)
}

const _: () = assert!(align_of::<Inner>() <= super::arena::ALIGN);
