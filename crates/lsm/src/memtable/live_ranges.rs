//! [`LiveRanges`]: a memtable's range tombstones, which grow while readers look.
//!
//! They are kept as runs of fragments, as the digits of a binary counter: a new tombstone is a run of its own, and runs of like size become
//! one. An insert so costs a logarithm of their number, a lookup one binary search a run, and what a reader took never changes.
//!
//! Nested ranges have many fragments with many numbers each. A run that would hold far more parts than tombstones is not made: its halves
//! stay apart, so that memory is in proportion to what was written, whatever was written.

use basalt_env::sync::RwLock;
use basalt_env::sync::atomic::{AtomicUsize, Ordering as Mem};
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::ranges::{Fragments, Piece};
use std::sync::Arc;

/// Parts that runs may hold for each tombstone in them, and beside.
const PARTS_PER_TOMBSTONE: usize = 4;
const PARTS_BESIDE: usize = 64;

#[derive(Clone)]
struct Run {
    fragments: Arc<Fragments>,
    /// Tombstones in it.
    tombstones: usize,
    /// It would not become one with its neighbour.
    settled: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct LiveRanges {
    /// Tombstones inserted: 0 costs a reader this one look.
    count: AtomicUsize,
    memory: AtomicUsize,
    /// Taken for the length of a clone by readers. Never held over more than a merge of runs by writers.
    runs: RwLock<Arc<Vec<Run>>>,
}

impl LiveRanges {
    /// Adds a tombstone; one whose end is not above its start covers nothing and is passed over.
    pub(crate) fn insert(&self, cmp: &Cmp, from: &[u8], to: &[u8], seq: SeqNo) {
        let own = Fragments::build(cmp, std::iter::once(Piece { from, to, seq }), None);
        if own.is_empty() {
            return;
        }
        let mut slot = self.runs.write();
        let mut runs = (**slot).clone();
        runs.push(Run {
            fragments: Arc::new(own),
            tombstones: 1,
            settled: false,
        });
        while let [.., a, b] = &mut runs[..]
            && !a.settled
            && a.tombstones <= b.tombstones
        {
            let tombstones = a.tombstones + b.tombstones;
            let both = a.fragments.iter().chain(b.fragments.iter());
            let limit = tombstones * PARTS_PER_TOMBSTONE + PARTS_BESIDE;
            match Fragments::build_within(cmp, both, None, limit) {
                Some(fragments) => {
                    runs.pop();
                    let fragments = Arc::new(fragments);
                    *runs.last_mut().expect("there were two") = Run {
                        fragments,
                        tombstones,
                        settled: false,
                    };
                }
                None => {
                    (a.settled, b.settled) = (true, true);
                }
            }
        }
        let memory = runs.iter().map(|r| r.fragments.memory()).sum();
        *slot = Arc::new(runs);
        self.memory.store(memory, Mem::Relaxed);
        // Last: whoever sees the count finds the tombstone.
        self.count.fetch_add(1, Mem::Release);
    }

    /// Tombstones inserted.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Mem::Acquire)
    }

    /// True when nothing was inserted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        self.memory.load(Mem::Relaxed)
    }

    fn taken(&self) -> Arc<Vec<Run>> {
        self.runs.read().clone()
    }

    /// What was inserted so far, as runs that do not change any more.
    pub(crate) fn runs(&self) -> Vec<Arc<Fragments>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.taken().iter().map(|r| r.fragments.clone()).collect()
    }

    /// The newest tombstone with a number of at most `upto` that covers the key.
    #[inline]
    pub(crate) fn newest(&self, cmp: &Cmp, key: &[u8], upto: SeqNo) -> Option<SeqNo> {
        if self.is_empty() {
            return None;
        }
        let runs = self.taken();
        let newest = |r: &Run| r.fragments.newest(cmp, key, upto);
        runs.iter().filter_map(newest).max()
    }
}
