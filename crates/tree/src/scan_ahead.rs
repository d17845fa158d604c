//! Read-ahead of scans. Pages of the leaves that a long scan comes to next are read before it needs
//! them, and many of them with one read of the device.

use crate::leaf_pages::LeafPages;
use crate::mapping::Delta;
use crate::page_format::PageHead;
use crate::page_id::PageId;
use crate::page_reads::{PageRef, PartsInFlight, StoredParts, Want, most_memory};
use crate::path::{Path, Step};
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_env::{MemoryKind, Reservation};
use std::collections::BTreeSet;
use std::ops::Range;

/// A scan that has gone on to this many leaves is a long one. Short scans go on to one leaf at
/// most, and read the blocks of it that they need.
const LONG: u32 = 2;
/// A scan that has returned this many bytes is a long one, too. The first read of a scan brings
/// about as much, and most short scans end before.
const LONG_BYTES: usize = 16 << 10;
/// Bytes after which the first batch ends, and most bytes after which a later one does. Each batch
/// ends at twice the bytes of the one before.
const FIRST_BATCH: u64 = 128 << 10;
const LAST_BATCH: u64 = 256 << 10;
/// Most bytes of a batch. What does not fit into it is not read ahead. A scan that ends has read up
/// to two batches in vain.
const MOST_BYTES: u64 = 512 << 10;
/// One leaf in this many of a long scan goes into a full cache.
const FILLING: u64 = 16;
/// Most leaves of a batch. Pages in memory have overhead.
const MOST_LEAVES: usize = 64;
/// A batch ends after this many leaves if the cache has all of their pages: the scan may end before
/// it comes to others.
const MOST_CACHED: usize = 4;

/// The read-ahead of a cursor.
pub(crate) struct ScanAhead {
    forward: bool,
    /// Number of leaves that the scan has gone on to in this direction.
    in_sequence: u32,
    /// Bytes of entries until the scan is a long one; 0 if it is one.
    short_for: usize,
    /// Bytes of pages in the next batch.
    step: u64,
    /// The index page whose leaves are read ahead.
    parent: PageId,
    /// The heads of its own delta pages.
    heads: Vec<(PageRef, PageHead)>,
    /// The batch with the leaf that the scan is in.
    current: Option<LoadedBatch>,
    /// The batch behind it.
    next: Option<BatchInFlight>,
}

/// A batch of reads that becomes a [`LoadedBatch`].
struct BatchInFlight {
    leaves: Range<usize>,
    reads: PartsInFlight,
}

/// Pages of some leaves of the index page, and blocks of its own delta pages that have their keys.
struct LoadedBatch {
    leaves: Range<usize>,
    parts: StoredParts,
    _booked: Reservation,
}

impl ScanAhead {
    pub fn new(forward: bool) -> ScanAhead {
        ScanAhead {
            forward,
            in_sequence: 0,
            short_for: LONG_BYTES,
            step: FIRST_BATCH,
            parent: PageId::NONE,
            heads: Vec::new(),
            current: None,
            next: None,
        }
    }

    /// Returns true as long as the entries that the scan returns are to be noted.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.short_for > 0
    }

    /// Notes that a short scan has returned an entry of so many bytes, of the leaf at the end of a
    /// path. If the entry makes it a long one, begins to read the next leaves.
    pub fn note_entry(
        &mut self,
        storage: &Storage,
        view: &View,
        path: &Path,
        forward: bool,
        bytes: usize,
    ) {
        if forward != self.forward {
            *self = ScanAhead::new(forward);
        }
        self.short_for = self.short_for.saturating_sub(bytes);
        if let (0, Some(parent)) = (self.short_for, path.steps.last()) {
            self.enter(storage, view, parent);
            self.next = self.begin_behind(storage, view, parent, parent.child..parent.child + 1);
        }
    }

    /// Notes that a scan goes on to the leaf at the end of a path. If the scan is long, waits for
    /// the pages of the leaf, and begins to read those of the next ones.
    pub fn go_on(&mut self, storage: &Storage, view: &View, path: &Path, forward: bool) {
        if forward != self.forward {
            *self = ScanAhead::new(forward);
        }
        self.in_sequence += 1;
        let Some(parent) = path.steps.last() else {
            return;
        };
        if self.in_sequence < LONG && self.is_short() {
            return;
        }
        self.short_for = 0;
        self.enter(storage, view, parent);
        let leaf = parent.child;
        if (self.current.iter()).any(|batch| batch.leaves.contains(&leaf)) {
            return;
        }
        self.current = None;
        let has_leaf = |batch: &BatchInFlight| batch.leaves.contains(&leaf);
        let batch = match self.next.take().filter(has_leaf) {
            Some(batch) => batch,
            None => self.begin(storage, view, parent, leaf),
        };
        // The device reads the next leaves while the scan is in these.
        self.next = self.begin_behind(storage, view, parent, batch.leaves.clone());
        self.current = Some(batch.finish(storage));
    }

    /// Makes an index page the one whose leaves are read ahead.
    fn enter(&mut self, storage: &Storage, view: &View, parent: &Step) {
        if parent.key != self.parent {
            (self.current, self.next) = (None, None);
            self.parent = parent.key;
            self.heads = storage.heads_of(&storage.index_deltas(view, parent.key));
        }
    }

    /// Begins to read the leaves that follow `leaves` in the direction of the scan. Returns `None`
    /// if the index page has none.
    fn begin_behind(
        &mut self,
        storage: &Storage,
        view: &View,
        parent: &Step,
        leaves: Range<usize>,
    ) -> Option<BatchInFlight> {
        let behind = match self.forward {
            true => Some(leaves.end).filter(|leaf| *leaf < parent.page.count()),
            false => leaves.start.checked_sub(1),
        };
        behind.map(|leaf| self.begin(storage, view, parent, leaf))
    }

    /// Returns what was read ahead for the current leaf, and for those around it.
    pub fn parts(&self) -> Option<&StoredParts> {
        self.current.as_ref().map(|batch| &batch.parts)
    }

    /// Returns the heads of delta pages of the index page above the current leaf.
    pub fn heads(&self) -> &[(PageRef, PageHead)] {
        &self.heads
    }

    /// Returns true if the pages of the current leaf go into the cache.
    ///
    /// Most pages of a long scan do so only as long as the cache has room. One leaf in
    /// [`FILLING`] does in any case, so that a range that is scanned again and again comes into the
    /// cache, and a scan that is made once evicts little and costs less.
    pub fn fills_cache(&self, storage: &Storage, leaf: &LeafPages) -> bool {
        let base = leaf.pages.base;
        self.current.is_none() || storage.has_room_for(base) || storage.env.random().one_in(FILLING)
    }

    /// Begins to read the pages of leaves from one on.
    fn begin(
        &mut self,
        storage: &Storage,
        view: &View,
        parent: &Step,
        first: usize,
    ) -> BatchInFlight {
        let (mut leaves, mut wants, mut bytes) = (first..first, Vec::new(), 0);
        let mut seen = BTreeSet::new();
        let deltas = storage.index_deltas(view, parent.key);
        let deltas: Vec<(&Delta, &PageHead)> = deltas
            .iter()
            .filter_map(|delta| {
                let of = (StreamKind::Delta, delta.id);
                let found = self.heads.iter().find(|(has, _)| *has == of);
                found.map(|(_, head)| (delta, head))
            })
            .collect();
        let candidates: &mut dyn Iterator<Item = usize> = match self.forward {
            true => &mut (first..parent.page.count()),
            false => &mut (0..first + 1).rev(),
        };
        for leaf in candidates.take(MOST_LEAVES) {
            let mut of_leaf = storage.missing_pages(view, parent.page.child(leaf));
            for (delta, head) in &deltas {
                of_leaf.extend(storage.missing_blocks(parent, leaf, delta, head));
            }
            of_leaf.retain(|want| !seen.contains(&want.key()));
            let more: u64 = of_leaf.iter().map(|want| want.bytes() as u64).sum();
            if bytes > 0 && bytes + more > MOST_BYTES {
                break;
            }
            leaves = leaves.start.min(leaf)..leaves.end.max(leaf + 1);
            for want in of_leaf {
                // The scan reads what is left of a large leaf when it comes to it.
                if bytes + want.bytes() as u64 <= MOST_BYTES {
                    seen.insert(want.key());
                    bytes += want.bytes() as u64;
                    wants.push(want);
                }
            }
            if bytes >= self.step || (bytes == 0 && leaves.len() >= MOST_CACHED) {
                break;
            }
        }
        self.step = (2 * self.step).min(LAST_BATCH);
        BatchInFlight {
            leaves,
            reads: storage.begin_part_reads(wants),
        }
    }
}

impl BatchInFlight {
    /// Waits for the pages. The scan reads those again that cannot be read, for their errors.
    fn finish(self, storage: &Storage) -> LoadedBatch {
        let parts = self.reads.stored(storage);
        let bytes: u64 = parts.values().map(|part| part.len() as u64).sum();
        LoadedBatch {
            leaves: self.leaves,
            parts,
            _booked: (storage.env.ledger()).reserve(MemoryKind::Pinned, most_memory(bytes)),
        }
    }
}

impl Storage {
    /// Returns true if the cache probably has a page: its head, its first and its last block.
    fn has_cached(&self, of: PageRef) -> bool {
        self.cached_head(of).is_some_and(|head| {
            let has = |block: usize| self.has_cached_block(of, &head, block);
            head.blocks > 0 && has(0) && has(head.blocks - 1)
        })
    }

    /// Returns the heads of delta pages of an index page. The scan reports an error of one when it
    /// comes to it.
    fn heads_of(&self, deltas: &[Delta]) -> Vec<(PageRef, PageHead)> {
        let heads = deltas.iter().filter_map(|delta| {
            let of = (StreamKind::Delta, delta.id);
            let cached = self.cached_head(of);
            let head = cached.map_or_else(|| self.head_uncached(of), Ok);
            Some((of, head.ok()?))
        });
        heads.collect()
    }

    /// Returns the pages of a leaf that the cache does not have, its base page first.
    fn missing_pages(&self, view: &View, leaf: PageId) -> Vec<Want> {
        // The scan reports an error when it comes to the leaf.
        let Ok(pages) = self.pages_of(view, leaf) else {
            return Vec::new();
        };
        let deltas = pages.deltas.iter();
        let deltas = deltas.map(|delta| (StreamKind::Delta, delta.id));
        let refs = [(StreamKind::Base, pages.base)].into_iter().chain(deltas);
        let missing = refs.filter(|of| !self.has_cached(*of));
        missing.map(Want::whole_page).collect()
    }

    /// Returns the blocks of a delta page of an index page that the cache does not have, of those
    /// that have keys of one of its leaves.
    fn missing_blocks(
        &self,
        parent: &Step,
        leaf: usize,
        delta: &Delta,
        head: &PageHead,
    ) -> Vec<Want> {
        let of = (StreamKind::Delta, delta.id);
        let low = (leaf > 0).then(|| parent.page.key(leaf));
        let low = low.as_deref().max(delta.low());
        let high = (leaf + 1 < parent.page.count()).then(|| parent.page.key(leaf + 1));
        let high = high.as_deref().into_iter().chain(delta.high()).min();
        let first = low.map_or(0, |key| head.block_of(key));
        let end = high.map_or(head.blocks, |key| head.block_of(key) + 1);
        let missing = (first..end).filter(|block| !self.has_cached_block(of, head, *block));
        missing
            .map(|block| Want::Block(of, head.clone(), block))
            .collect()
    }
}
