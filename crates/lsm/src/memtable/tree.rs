//! The order of a memtable: a B-tree in an arena, into which threads insert side by side and which
//! readers never wait for.
//!
//! A search in a list of nodes that lie anywhere costs a cache miss a step. Those steps were most
//! of the cost of a write. Here a node holds up to [`FANOUT`] entries, and of each the *head*: four
//! bytes of the user key as a number, taken behind the bytes that all keys of the node have in
//! common (`skip`). Unequal heads decide a comparison without a read of the record. So a search
//! costs a few cache lines a level, and all levels but the lowest are hot.
//!
//! # A node
//! - Entries stand in slots in no order; `order` is a permutation of the slots and a count in one
//!   word. An insert fills a free slot and then publishes a new `order`. A reader that loaded the
//!   old one continues with it.
//! - A full node is split in place: the upper half goes to a new node on its right, and `order`
//!   gets a smaller count. So the freed slots may be filled again, and a reader with an old `order`
//!   would read the wrong entries: see `version`.
//! - `version` is odd while the node is being split or gets a new child, and even otherwise. A
//!   reader loads it first and last. If it has changed, the reader drops its results and begins the
//!   search again. That happens only if another thread has completed a split meanwhile. So readers
//!   never wait: not for a lock, and not for a writer that lost its processor in the middle.
//! - `high` is the first key of the node on the right, and `next` that node. Both are set before
//!   the parent knows of the new node. So a search that comes by an old way finds its target by
//!   going right.
//!
//! # Rules for readers
//! 1. Nodes and records live as long as the tree; an address once stored in a slot stays good. The
//!    place of a node's first entry in the order of keys never changes: splits move entries to the
//!    right only, and a separator is the key of an entry that never moves out of the node it
//!    separates.
//! 2. A parent knows of a child's new sibling, and has moved its own version, before the child's
//!    version is even again. So a reader that loads an even version of a child and *then* finds its
//!    parent's version unmoved has the key's child.
//! 3. While the version is odd, no freed slot is filled. Heads and `skip` may change then, and
//!    `order` may still name entries that have moved. So a reader that met an odd version, or came
//!    from the left, is *careful*: it compares whole keys and checks `high`.
//!
//! # Writers
//! An insert locks its leaf (`locked`) and checks that the version it came with still stands. One
//! thread at a time does splits, and with them all changes of inner nodes, under `splits`. That
//! lock is taken with the leaf locked.
//!
//! # Atomic orderings
//! A slot, `order`, `high`, `next`, `skip` and the root are stored `Release`, after the `version`
//! that announces a change. A reader loads `version` with `Acquire`, and the other words with at
//! least `Relaxed`. An `Acquire` fence stands before the last load of `version`: a reader that has
//! read any store of a change then also sees the version that preceded it. Addresses that are
//! followed are loaded with `Acquire`.
//!
//! This is a leaf module that may use `unsafe`, only to say that threads may share a tree; the
//! addresses of nodes are [`super::node`]'s.
#![allow(unsafe_code)]

use super::MemTable;
use super::node::{At, Entry, FANOUT, Node, Order, make};
use super::record::{Record, Records, Value};
use basalt_env::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering as Mem};
use basalt_env::sync::{Mutex, SpinLockMark, named};
use basalt_fs::Bytes;
use basalt_kv::key::Cmp;
use std::cmp::Ordering;
use std::ptr;
use std::sync::Arc;

/// Holds a leaf's lock. If a comparator's panic drops it, it marks the tree as broken.
struct Locked<'t> {
    tree: &'t Tree,
    leaf: At<'t>,
    _mark: SpinLockMark,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if basalt_env::sync::panicking() {
            self.tree.broken.store(true, Mem::Release);
        }
        self.leaf.locked.store(false, Mem::Release);
    }
}

/// The target of a search: a user key and a trailer.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    user: &'a [u8],
    trailer: u64,
}

impl<'a> Target<'a> {
    #[inline]
    pub(super) fn new(user: &'a [u8], trailer: u64) -> Target<'a> {
        Target { user, trailer }
    }
    pub(super) fn of(record: Record) -> Target<'a> {
        Target {
            user: record.user_key(),
            trailer: record.trailer(),
        }
    }
}

/// Returns four bytes of a key from `skip` on as a number, padded with zeros.
#[inline]
fn head(key: &[u8], skip: u32) -> u32 {
    let rest = key.get(skip as usize..).unwrap_or_default();
    match rest.first_chunk::<4>() {
        Some(b) => u32::from_be_bytes(*b),
        None => {
            let mut b = [0; 4];
            b[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(b)
        }
    }
}

fn common(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).take_while(|(x, y)| x == y).count() as u32
}

/// A node on the way down, at the end a leaf.
#[derive(Clone, Copy)]
struct ReachedNode<'t> {
    node: At<'t>,
    version: u32,
    /// True if the node was reached from its left neighbour: the target may lie before it, or
    /// behind its `high`.
    sideways: bool,
}

impl ReachedNode<'_> {
    fn careful(&self) -> bool {
        self.sideways || !self.version.is_multiple_of(2)
    }
}

/// An inner node on the way to a leaf, as the splitting thread sees it.
struct Step<'t> {
    node: At<'t>,
    place: usize,
    low: Option<Record>,
}

/// The tree. See the module.
pub(super) struct Tree {
    cmp: Cmp,
    bytewise: bool,
    root: AtomicPtr<Node>,
    /// The leaf of the last insert behind all entries. If keys come in order, the next one goes
    /// there, too. The address is only a hint: the leaf may have got a right neighbour since.
    last: AtomicPtr<Node>,
    /// The leftmost leaf, which is always the same.
    pub(super) first: *mut Node,
    len: AtomicUsize,
    splits: Mutex<()>,
    broken: AtomicBool,
    records: Records,
}

// SAFETY: nodes and records belong to the tree alone and are reached by atomics. Records are
// immutable once published and hold only bytes and `Bytes`, which are Send and Sync, as is the
// comparator.
unsafe impl Send for Tree {}
// SAFETY: as above.
unsafe impl Sync for Tree {}

impl Tree {
    pub(super) fn new(cmp: Cmp) -> Tree {
        let records = Records::new();
        let root = make(&records, 0);
        Tree {
            bytewise: matches!(cmp, Cmp::Bytewise),
            cmp,
            root: AtomicPtr::new(root.address()),
            last: AtomicPtr::new(root.address()),
            first: root.address(),
            len: AtomicUsize::new(0),
            splits: named("memtable::Tree::splits", Mutex::new(())),
            broken: AtomicBool::new(false),
            records,
        }
    }

    pub(super) fn cmp(&self) -> &Cmp {
        &self.cmp
    }
    pub(super) fn len(&self) -> usize {
        self.len.load(Mem::Relaxed)
    }
    pub(super) fn memory(&self) -> usize {
        self.records.memory()
    }
    pub(super) fn add_pinned(&self, bytes: usize) {
        self.records.add_pinned(bytes);
    }

    #[inline]
    fn root(&self) -> At<'_> {
        At::of(self.root.load(Mem::Acquire)).expect("there is always a root")
    }

    #[inline]
    fn head(&self, key: &[u8], skip: u32) -> u32 {
        if self.bytewise { head(key, skip) } else { 0 }
    }

    /// Returns how many first bytes all keys from `low` to `high` have in common.
    fn skip(&self, low: Option<Record>, high: Option<Record>) -> u32 {
        match (low, high) {
            (Some(low), Some(high)) if self.bytewise => common(low.user_key(), high.user_key()),
            _ => 0,
        }
    }

    #[inline]
    fn compare(&self, record: Record, target: &Target<'_>) -> Ordering {
        let user = if self.bytewise {
            record.user_key().cmp(target.user)
        } else {
            self.cmp.user(record.user_key(), target.user)
        };
        user.then_with(|| target.trailer.cmp(&record.trailer()))
    }

    /// Returns the place behind all entries that are before the target, or at it if `or_at`. The
    /// search begins at place `from`.
    #[inline]
    fn rank(
        &self,
        node: At<'_>,
        order: Order,
        from: usize,
        target: &Target<'_>,
        or_at: bool,
        careful: bool,
    ) -> usize {
        let n = order.len();
        let (mut low, mut high) = (from, n);
        if self.bytewise && !careful {
            let wanted = head(target.user, node.skip.load(Mem::Relaxed));
            let at = |place: usize| node.heads[order.slot(place)].load(Mem::Relaxed);
            while low < high {
                let middle = (low + high) / 2;
                if at(middle) < wanted {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            while high < n && at(high) == wanted {
                high += 1;
            }
        }
        while low < high {
            let middle = (low + high) / 2;
            let Some(record) = node.record(order.slot(middle)) else {
                // Only a slot that was read too late has no record; the version shows that.
                return low;
            };
            let before = match self.compare(record, target) {
                Ordering::Less => true,
                Ordering::Equal => or_at,
                Ordering::Greater => false,
            };
            if before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns true if the target lies to the right of the node. Careful readers check this.
    fn is_behind(&self, node: At<'_>, target: &Target<'_>, or_at: bool) -> bool {
        node.high()
            .is_some_and(|high| match self.compare(high, target) {
                Ordering::Less => true,
                Ordering::Equal => or_at,
                Ordering::Greater => false,
            })
    }

    /// Returns the order of a leaf without entries that have moved to the right. In the middle of a
    /// split, `order` may still name them, although others have been inserted among them since.
    #[inline]
    pub(super) fn own(&self, node: At<'_>, careful: bool) -> Order {
        let order = node.order();
        match node.high() {
            Some(high) if careful => {
                order.cut(self.rank(node, order, 0, &Target::of(high), false, true))
            }
            _ => order,
        }
    }

    /// Returns the leaf where the target belongs: the last one that begins before it, or at it if
    /// `or_at`.
    #[inline]
    fn descend(&self, target: &Target<'_>, or_at: bool) -> ReachedNode<'_> {
        'again: loop {
            let node = self.root();
            read_hook();
            let mut at = ReachedNode {
                node,
                version: node.version(),
                sideways: false,
            };
            if !node.is(self.root.load(Mem::Acquire)) {
                continue;
            }
            while at.node.level > 0 {
                read_hook();
                let order = at.node.order();
                if at.careful()
                    && self.is_behind(at.node, target, or_at)
                    && let Some(next) = at.node.next()
                {
                    at = ReachedNode {
                        node: next,
                        version: next.version(),
                        sideways: true,
                    };
                    continue;
                }
                let place = self.rank(at.node, order, 1, target, or_at, at.careful()) - 1;
                let child = at.node.child(order.slot(place));
                child.fetch();
                read_hook();
                let version = child.version();
                if !at.node.stands(at.version) {
                    continue 'again;
                }
                at = ReachedNode {
                    node: child,
                    version,
                    sideways: false,
                };
            }
            return at;
        }
    }

    /// Finds the first entry at or after the target (only after it if `after`).
    ///
    /// Calls `take` with the entry's node, order and place. The last argument is true if these are
    /// of a node at rest (not in the middle of a change). A result of `take` from a moment that has
    /// passed is dropped.
    #[inline]
    pub(super) fn seek<R>(
        &self,
        target: &Target<'_>,
        after: bool,
        mut take: impl FnMut(At<'_>, Order, usize, bool) -> R,
    ) -> Option<R> {
        'again: loop {
            let mut at = self.descend(target, true);
            loop {
                let order = self.own(at.node, at.careful());
                read_hook();
                let place = self.rank(at.node, order, 0, target, after, at.careful());
                if place < order.len() {
                    let result = take(at.node, order, place, at.version.is_multiple_of(2));
                    if at.node.stands(at.version) {
                        return Some(result);
                    }
                    continue 'again;
                }
                // All of the node's own entries are before the target. A careful reader may have
                // come too far left.
                let next = at.node.next();
                if !at.node.stands(at.version) {
                    continue 'again;
                }
                let node = next?;
                at = ReachedNode {
                    node,
                    version: node.version(),
                    sideways: true,
                };
            }
        }
    }

    /// Finds the last entry before the target, or at it if `or_at`. `take` is called as in
    /// [`Tree::seek`].
    pub(super) fn seek_back<R>(
        &self,
        target: &Target<'_>,
        or_at: bool,
        mut take: impl FnMut(At<'_>, Order, usize, bool) -> R,
    ) -> Option<R> {
        'again: loop {
            let mut at = self.descend(target, or_at);
            loop {
                let order = self.own(at.node, at.careful());
                if at.careful()
                    && self.is_behind(at.node, target, or_at)
                    && let Some(node) = at.node.next()
                {
                    at = ReachedNode {
                        node,
                        version: node.version(),
                        sideways: true,
                    };
                    continue;
                }
                read_hook();
                let rank = self.rank(at.node, order, 0, target, or_at, at.careful());
                let result = (rank > 0)
                    .then(|| take(at.node, order, rank - 1, at.version.is_multiple_of(2)));
                if !at.node.stands(at.version) {
                    continue 'again;
                }
                // Every leaf but the first begins with the key of its separator. So no other leaf
                // can have the entry that this one lacks.
                debug_assert!(result.is_some() || at.node.is(self.first));
                return result;
            }
        }
    }

    /// Finds the last entry of all. `take` is called as in [`Tree::seek`].
    pub(super) fn seek_last<R>(
        &self,
        mut take: impl FnMut(At<'_>, Order, usize, bool) -> R,
    ) -> Option<R> {
        'again: loop {
            let mut node = self.root();
            loop {
                // The search goes to the right first: an old root or an old order may have led too
                // far left.
                while let Some(next) = node.next() {
                    node = next;
                }
                let version = node.version();
                let order = node.order();
                if node.level == 0 {
                    let result = (order.len() > 0)
                        .then(|| take(node, order, order.len() - 1, version.is_multiple_of(2)));
                    if node.next().is_some() || !node.stands(version) {
                        continue 'again;
                    }
                    return result;
                }
                let child = node.child(order.slot(order.len() - 1));
                read_hook();
                if !node.stands(version) {
                    continue 'again;
                }
                node = child;
            }
        }
    }

    /// Returns the newest version of the target's user key at or below the target's trailer.
    #[inline]
    fn find(&self, target: &Target<'_>) -> Option<Record> {
        let record = self
            .seek(target, false, |node, order, place, _| {
                node.record(order.slot(place))
            })
            .flatten()?;
        let same = if self.bytewise {
            record.user_key() == target.user
        } else {
            self.cmp.user(record.user_key(), target.user) == Ordering::Equal
        };
        same.then_some(record)
    }

    /// Returns true if the last entry of a leaf stands before the target.
    #[inline]
    fn is_before(&self, node: At<'_>, order: Order, target: &Target<'_>) -> bool {
        order.len() > 0
            && node
                .record(order.slot(order.len() - 1))
                .is_some_and(|last| self.compare(last, target) == Ordering::Less)
    }

    /// Returns the last leaf of all, if the target belongs behind its last entry. A split of the
    /// leaf since would have moved its version, which the insert checks again under its lock.
    #[inline]
    fn behind_all(&self, target: &Target<'_>) -> Option<ReachedNode<'_>> {
        let node = At::of(self.last.load(Mem::Acquire))?;
        let version = node.version();
        let order = node.order();
        if !version.is_multiple_of(2) || node.high().is_some() {
            return None;
        }
        (self.is_before(node, order, target) && node.stands(version)).then_some(ReachedNode {
            node,
            version,
            sideways: false,
        })
    }

    /// Inserts a new entry. Panics if the entry exists.
    pub(super) fn insert(&self, target: Target<'_>, value: Value<'_>) {
        let record = self.records.add(target.user, target.trailer, value);
        let mut tries = 0;
        let mut hint = self.behind_all(&target);
        let (locked, order, place) = loop {
            let hinted = hint.is_some();
            let at = hint.take().unwrap_or_else(|| self.descend(&target, true));
            if !at.careful() && !at.node.locked.swap(true, Mem::Acquire) {
                let locked = Locked {
                    tree: self,
                    leaf: at.node,
                    _mark: SpinLockMark::new("Node::locked", &at.node.locked),
                };
                // Only the holder of the lock moves a leaf's version.
                if at.node.version() == at.version {
                    let order = at.node.order();
                    // Another thread may have inserted between the hint and the lock.
                    let place = if hinted && self.is_before(at.node, order, &target) {
                        order.len()
                    } else {
                        self.rank(at.node, order, 0, &target, false, false)
                    };
                    break (locked, order, place);
                }
            }
            tries += 1;
            if tries % 64 == 0 {
                assert!(
                    !self.broken.load(Mem::Acquire),
                    "an earlier insert into this memtable panicked"
                );
                basalt_env::sync::yield_now();
            }
            basalt_env::sync::spin_loop();
        };
        let leaf = locked.leaf;
        let head = self.head(target.user, leaf.skip.load(Mem::Relaxed));
        if place < order.len() {
            let slot = order.slot(place);
            if leaf.heads[slot].load(Mem::Relaxed) == head
                && let Some(there) = leaf.record(slot)
            {
                assert!(
                    self.compare(there, &target) != Ordering::Equal,
                    "entry inserted twice into a memtable: sequence number {}, kind {}",
                    target.trailer >> 8,
                    target.trailer as u8
                );
            }
        }
        let entry = Entry {
            record: record.address(),
            child: ptr::null_mut(),
        };
        if order.len() < FANOUT {
            leaf.put(place, head, entry);
            // The hint is stored only if it changes: otherwise threads that insert elsewhere would
            // lose the cache line.
            if place == order.len()
                && !leaf.is(self.last.load(Mem::Relaxed))
                && leaf.high().is_none()
            {
                self.last.store(leaf.address(), Mem::Release);
            }
        } else {
            self.split_leaf(leaf, place, entry, &target);
        }
        drop(locked);
        self.len.fetch_add(1, Mem::Relaxed);
    }

    /// Splits a full leaf, which the caller has locked, to put an entry in.
    #[cold]
    fn split_leaf(&self, leaf: At<'_>, place: usize, entry: Entry, target: &Target<'_>) {
        let _alone = self.splits.lock();
        let mut path = self.path(target);
        let low = path.last().and_then(|step| low_of_child(step));
        self.split(leaf, low, &mut path, place, entry);
    }

    /// Returns the inner nodes above the target's leaf, from the root down. While `splits` is held
    /// they do not change.
    fn path(&self, target: &Target<'_>) -> Vec<Step<'_>> {
        let mut path: Vec<Step<'_>> = Vec::with_capacity(8);
        let mut node = self.root();
        while node.level > 0 {
            let order = node.order();
            let place = self.rank(node, order, 1, target, true, false) - 1;
            let low = path.last().and_then(low_of_child);
            path.push(Step { node, place, low });
            node = node.child(order.slot(place));
        }
        path
    }

    /// Splits a full node and puts an entry into the half where it belongs. `low` is the node's
    /// first possible key, and `path` has the nodes above it. The caller holds `splits`, and for a
    /// leaf its lock.
    fn split(
        &self,
        node: At<'_>,
        low: Option<Record>,
        path: &mut Vec<Step<'_>>,
        place: usize,
        entry: Entry,
    ) {
        let order = node.order();
        debug_assert_eq!(order.len(), FANOUT);
        let mut entries: Vec<Entry> = (0..FANOUT).map(|p| node.entry(order.slot(p))).collect();
        entries.insert(place, entry);
        let last = node.next().is_none();
        // A split at the end leaves the node full, because keys often come in order.
        let left = if last && place == FANOUT {
            FANOUT
        } else {
            entries.len() / 2
        };
        let separator = Record::at(entries[left].record).expect("only the first of all has no key");

        let new = make(&self.records, node.level);
        let high = node.high();
        let skip = self.skip(Some(separator), high);
        new.skip.store(skip, Mem::Relaxed);
        new.high.store(node.high.load(Mem::Relaxed), Mem::Relaxed);
        new.next.store(node.next.load(Mem::Relaxed), Mem::Relaxed);
        for (i, e) in entries[left..].iter().enumerate() {
            let key = Record::at(e.record).expect("only the first of all has no key");
            new.put(i, self.head(key.user_key(), skip), *e);
        }

        node.begin_change();
        split_hook();
        // `next` is stored before `high`: a thread that sees the second finds the first.
        node.next.store(new.address(), Mem::Release);
        node.high.store(separator.address(), Mem::Release);
        split_hook();
        self.add_child(
            node,
            path,
            Entry {
                record: separator.address(),
                child: new.address(),
            },
        );
        let stays = if place < left { left - 1 } else { left };
        let order = order.cut(stays);
        split_hook();
        node.order.store(order.0, Mem::Release);
        split_hook();
        let skip = self.skip(low, Some(separator));
        if skip != node.skip.load(Mem::Relaxed) {
            for slot in (0..stays).map(|p| order.slot(p)) {
                if let Some(key) = node.record(slot) {
                    node.heads[slot].store(self.head(key.user_key(), skip), Mem::Release);
                }
            }
            split_hook();
            node.skip.store(skip, Mem::Release);
        }
        // Slots may be filled again from here on (rule 3).
        node.end_change();
        if last && node.level == 0 {
            self.last.store(new.address(), Mem::Release);
        }
        if place < left {
            let key = Record::at(entry.record).expect("only the first of all has no key");
            let head = self.head(key.user_key(), skip);
            if node.level == 0 {
                node.put(place, head, entry);
            } else {
                node.begin_change();
                node.put(place, head, entry);
                node.end_change();
            }
        }
    }

    /// Adds a new node to the parent of its left neighbour, the last of `path`.
    fn add_child(&self, left: At<'_>, path: &mut Vec<Step<'_>>, entry: Entry) {
        let Some(Step { node, place, low }) = path.pop() else {
            let new = make(&self.records, left.level + 1);
            let first = Entry {
                record: ptr::null_mut(),
                child: left.address(),
            };
            new.put(0, 0, first);
            let key = Record::at(entry.record).expect("only the first of all has no key");
            new.put(1, self.head(key.user_key(), 0), entry);
            self.root.store(new.address(), Mem::Release);
            return;
        };
        if node.order().len() == FANOUT {
            self.split(node, low, path, place + 1, entry);
            return;
        }
        let key = Record::at(entry.record).expect("only the first of all has no key");
        let head = self.head(key.user_key(), node.skip.load(Mem::Relaxed));
        node.begin_change();
        node.put(place + 1, head, entry);
        node.end_change();
    }
}

/// Marks a point where other threads may see a half-done split. Tests hook in here, see `hooks`.
#[inline(always)]
fn split_hook() {
    #[cfg(test)]
    super::tests::hooks::split();
}

#[inline(always)]
fn read_hook() {
    #[cfg(test)]
    super::tests::hooks::read();
}

/// Returns the first key that the child of a step can have.
fn low_of_child(step: &Step<'_>) -> Option<Record> {
    if step.place == 0 {
        return step.low;
    }
    step.node.record(step.node.order().slot(step.place))
}

/// Returns trailer and pinned value of the entry that [`Tree::find`] finds in a memtable.
pub(super) fn find_pinned(mem: &Arc<MemTable>, target: &Target<'_>) -> Option<(u64, Bytes)> {
    let record = mem.tree.find(target)?;
    Some((record.trailer(), record.pin(mem)))
}
