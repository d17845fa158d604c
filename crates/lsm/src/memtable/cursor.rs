//! A cursor over the memtable's tree: it takes a leaf's entries at one moment and walks over them.
//!
//! This is a leaf module that may use `unsafe`, only to say that a cursor may change threads.
#![allow(unsafe_code)]

use super::MemTable;
use super::node::{At, FANOUT, Node, Order};
use super::record::{Record, prefetch};
use super::tree::Target;
use basalt_env::sync::atomic::Ordering as Mem;
use basalt_fs::Bytes;
use std::ptr;
use std::sync::Arc;

/// A position in a memtable, or none. The cursor holds the entries of its leaf as they were when it
/// entered the leaf.
pub(super) struct Cursor {
    mem: Arc<MemTable>,
    leaf: Leaf,
    place: usize,
}

/// The entries of a leaf at one moment.
struct Leaf {
    records: [*mut u8; FANOUT],
    len: usize,
    /// The following leaf; `None` if it is not known and must be searched.
    next: Option<*mut Node>,
}

// SAFETY: records and nodes are shared memory that `mem`, which is Send and Sync, keeps alive.
unsafe impl Send for Cursor {}

impl Leaf {
    const NOTHING: Leaf = Leaf {
        records: [ptr::null_mut(); FANOUT],
        len: 0,
        next: None,
    };

    #[inline]
    fn of(node: At<'_>, order: Order, settled: bool) -> Leaf {
        let mut leaf = Leaf {
            len: order.len(),
            // In the middle of a split, this may already be the new neighbour, or still the old
            // one.
            next: settled.then(|| node.next.load(Mem::Acquire)),
            ..Leaf::NOTHING
        };
        for place in 0..leaf.len {
            let record = node.records[order.slot(place)].load(Mem::Acquire);
            prefetch(record);
            leaf.records[place] = record;
        }
        leaf
    }
}

impl Cursor {
    pub(super) fn new(mem: Arc<MemTable>) -> Cursor {
        Cursor {
            mem,
            leaf: Leaf::NOTHING,
            place: 0,
        }
    }
    #[inline]
    fn at(&self) -> Record {
        assert!(self.valid(), "cursor is positioned");
        Record::at(self.leaf.records[self.place]).expect("entries of a leaf are records")
    }
    #[inline]
    pub(super) fn valid(&self) -> bool {
        self.place < self.leaf.len
    }
    fn go(&mut self, found: Option<(Leaf, usize)>) {
        (self.leaf, self.place) = found.unwrap_or((Leaf::NOTHING, 0));
    }
    pub(super) fn first(&mut self) {
        self.enter(self.mem.tree.first);
    }
    /// Moves to the first entry of a leaf, or of the next leaf that has any.
    fn enter(&mut self, leaf: *mut Node) {
        let mut at = leaf;
        loop {
            // The tree that the node belongs to lives as long as `mem`.
            let Some(node) = At::of(at) else {
                return self.go(None);
            };
            let version = node.version();
            let settled = version.is_multiple_of(2);
            let leaf = Leaf::of(node, self.mem.tree.own(node, !settled), settled);
            if !node.stands(version) {
                continue;
            }
            if leaf.len > 0 {
                return self.go(Some((leaf, 0)));
            }
            // Only the very first leaf is ever empty, and then it is the only one.
            at = leaf.next.unwrap_or(ptr::null_mut());
        }
    }
    pub(super) fn last(&mut self) {
        let found = (self.mem.tree)
            .seek_last(|node, order, place, settled| (Leaf::of(node, order, settled), place));
        self.go(found);
    }
    pub(super) fn seek(&mut self, target: &Target<'_>) {
        let found = (self.mem.tree).seek(target, false, |node, order, place, settled| {
            (Leaf::of(node, order, settled), place)
        });
        self.go(found);
    }
    pub(super) fn seek_for_prev(&mut self, target: &Target<'_>) {
        let found = (self.mem.tree).seek_back(target, true, |node, order, place, settled| {
            (Leaf::of(node, order, settled), place)
        });
        self.go(found);
    }
    #[inline]
    pub(super) fn next(&mut self) {
        let here = self.at();
        self.place += 1;
        if self.place < self.leaf.len {
            return;
        }
        if let Some(next) = self.leaf.next {
            return self.enter(next);
        }
        let found = (self.mem.tree).seek(&Target::of(here), true, |node, order, place, settled| {
            (Leaf::of(node, order, settled), place)
        });
        self.go(found);
    }
    pub(super) fn prev(&mut self) {
        let here = self.at();
        if self.place > 0 {
            self.place -= 1;
            return;
        }
        let found =
            (self.mem.tree).seek_back(&Target::of(here), false, |node, order, place, settled| {
                (Leaf::of(node, order, settled), place)
            });
        self.go(found);
    }
    #[inline]
    pub(super) fn key(&self) -> &[u8] {
        self.at().internal_key()
    }
    #[inline]
    pub(super) fn value(&self) -> &[u8] {
        self.at().value()
    }
    pub(super) fn pinned_value(&self) -> Bytes {
        self.at().pin(&self.mem)
    }
}
