//! A memtable's range tombstones, which grow while readers look them up: [`LiveRanges`].
//!
//! They are kept as runs of fragments, like the digits of a binary counter. A new tombstone is a
//! run of its own, and runs of similar size become one. So an insert costs a logarithm of their
//! number and a lookup one binary search a run. Runs that a reader took never change.
//!
//! Nested ranges have many fragments with many sequence numbers each. Two runs stay apart if one
//! run of both would hold far more parts than tombstones. So memory is in proportion to the
//! tombstones written, whatever their ranges.

use basalt_env::sync::RwLock;
use basalt_env::sync::atomic::{AtomicUsize, Ordering as Mem};
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::ranges::{Fragments, RangeTombstone};
use std::sync::Arc;

/// Parts that a run may hold for each tombstone in it, and in addition.
const PARTS_PER_TOMBSTONE: usize = 4;
const PARTS_BESIDE: usize = 64;

#[derive(Clone)]
struct TombstoneRun {
    fragments: Arc<Fragments>,
    /// Number of tombstones in the run.
    tombstones: usize,
    /// True if the run was too large to become one with its neighbour.
    unmergeable: bool,
}

/// The range tombstones of a memtable, see the module.
#[derive(Default)]
pub(crate) struct LiveRanges {
    /// Number of tombstones inserted. If it is 0, a reader needs only this one load.
    count: AtomicUsize,
    memory: AtomicUsize,
    /// Readers hold this lock for the length of a clone. Writers hold it for no more than a merge
    /// of runs.
    runs: RwLock<Arc<Vec<TombstoneRun>>>,
}

impl LiveRanges {
    /// Adds a tombstone. A tombstone whose end is not above its start covers no key and is ignored.
    pub(crate) fn insert(&self, cmp: &Cmp, from: &[u8], to: &[u8], seq: SeqNo) {
        let own = Fragments::build(cmp, std::iter::once(RangeTombstone { from, to, seq }), None);
        if own.is_empty() {
            return;
        }
        let mut slot = self.runs.write();
        let mut runs = (**slot).clone();
        runs.push(TombstoneRun {
            fragments: Arc::new(own),
            tombstones: 1,
            unmergeable: false,
        });
        while let [.., a, b] = &mut runs[..]
            && !a.unmergeable
            && a.tombstones <= b.tombstones
        {
            let tombstones = a.tombstones + b.tombstones;
            let both = a.fragments.iter().chain(b.fragments.iter());
            let limit = tombstones * PARTS_PER_TOMBSTONE + PARTS_BESIDE;
            match Fragments::build_within(cmp, both, None, limit) {
                Some(fragments) => {
                    runs.pop();
                    let fragments = Arc::new(fragments);
                    *runs.last_mut().expect("there were two") = TombstoneRun {
                        fragments,
                        tombstones,
                        unmergeable: false,
                    };
                }
                None => {
                    (a.unmergeable, b.unmergeable) = (true, true);
                }
            }
        }
        let memory = runs.iter().map(|r| r.fragments.memory()).sum();
        *slot = Arc::new(runs);
        self.memory.store(memory, Mem::Relaxed);
        // The count is last: a thread that sees it finds the tombstone.
        self.count.fetch_add(1, Mem::Release);
    }

    /// Returns the number of tombstones inserted.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Mem::Acquire)
    }

    /// Returns true if no tombstone was inserted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        self.memory.load(Mem::Relaxed)
    }

    fn taken(&self) -> Arc<Vec<TombstoneRun>> {
        self.runs.read().clone()
    }

    /// Returns the tombstones inserted so far, as runs that never change.
    pub(crate) fn runs(&self) -> Vec<Arc<Fragments>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.taken().iter().map(|r| r.fragments.clone()).collect()
    }

    /// Returns the newest tombstone with a sequence number of at most `upto` that covers the key.
    #[inline]
    pub(crate) fn newest(&self, cmp: &Cmp, key: &[u8], upto: SeqNo) -> Option<SeqNo> {
        if self.is_empty() {
            return None;
        }
        let runs = self.taken();
        let newest = |r: &TombstoneRun| r.fragments.newest(cmp, key, upto);
        runs.iter().filter_map(newest).max()
    }
}
