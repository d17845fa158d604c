//! Garbage pages whose space is to be released to the filesystem. The paper frees the space of a
//! page with its extent (ArkDB, section 4.2). Releases of single pages make most collections
//! needless (decision 0050).

use crate::mapping::SysTime;
use crate::page_id::PageId;
use crate::usage::StreamKind;
use basalt_stream::ExtentId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

/// Most pages that wait for their readers or for the seal of their extent. Further ones are not
/// queued, and a collection frees their space.
const MOST_WAITING: usize = 1 << 15;

/// Most ranges that wait until their extent has only one name. A collection frees the space of
/// further ones.
const MOST_SHARED: usize = 1 << 15;

/// Most extents whose names are looked at again by one [`ReleaseQueue::take`].
const RETRIED_AT_ONCE: usize = 256;

/// A page, and the time of the transaction that made it garbage.
struct GarbagePage {
    since: SysTime,
    kind: StreamKind,
    id: PageId,
}

/// An extent of a stream.
type ExtentKey = (StreamKind, ExtentId);

/// For each extent, ranges of bytes to release, in rising order.
pub(crate) type ExtentRanges = BTreeMap<ExtentKey, Vec<Range<u64>>>;

/// The pages that became garbage, until their space is given back.
#[derive(Default)]
pub(crate) struct ReleaseQueue {
    waiting: Vec<GarbagePage>,
    /// Ranges that no reader needs, of extents that a copy has, too.
    shared: ExtentRanges,
    /// Number of ranges in `shared`.
    shared_ranges: usize,
    /// The extent of `shared` that was tried last.
    last_tried: Option<ExtentKey>,
    /// True if the filesystem has no files with holes.
    is_closed: bool,
}

impl ReleaseQueue {
    /// Adds a page that a transaction made garbage: from `since` on, no chain and no index page
    /// has it. If the queue is full or closed, the page is not added.
    pub fn add(&mut self, since: SysTime, kind: StreamKind, id: PageId) {
        if self.waiting.len() < MOST_WAITING && !self.is_closed {
            self.waiting.push(GarbagePage { since, kind, id });
        }
    }

    /// Removes the pages of sealed extents that were garbage before `oldest`, the time of the
    /// oldest view, or became it then. Returns their ranges of bytes. Adjacent pages form one
    /// range. Some extents that a copy had, too, are among them again.
    pub fn take(
        &mut self,
        oldest: SysTime,
        is_sealed: &dyn Fn(StreamKind, ExtentId) -> bool,
    ) -> ExtentRanges {
        let mut ranges = self.take_shared();
        let is_ready =
            |page: &mut GarbagePage| page.since <= oldest && is_sealed(page.kind, page.id.extent);
        for page in self.waiting.extract_if(.., is_ready) {
            let begin = u64::from(page.id.offset);
            let of_extent = ranges.entry((page.kind, page.id.extent)).or_default();
            of_extent.push(begin..begin + u64::from(page.id.len));
        }
        for (extent, of_extent) in &mut ranges {
            if let Some(mut shared) = self.shared.remove(extent) {
                self.shared_ranges -= shared.len();
                of_extent.append(&mut shared);
            }
            of_extent.sort_unstable_by_key(|range| range.start);
            of_extent.dedup_by(|next, range| {
                let joins = next.start == range.end;
                if joins {
                    range.end = next.end;
                }
                joins
            });
        }
        ranges
    }

    /// Removes some extents that a copy had, too: those behind the ones of the last call.
    fn take_shared(&mut self) -> ExtentRanges {
        let mut tried: Vec<ExtentKey> = match self.last_tried {
            Some(last) => self.shared_behind(Bound::Excluded(last)),
            None => Vec::new(),
        };
        if tried.is_empty() {
            tried = self.shared_behind(Bound::Unbounded);
        }
        self.last_tried = tried.last().copied();
        let mut ranges = ExtentRanges::new();
        for key in tried {
            let of_extent = self.shared.remove(&key).unwrap_or_default();
            self.shared_ranges -= of_extent.len();
            ranges.insert(key, of_extent);
        }
        ranges
    }

    fn shared_behind(&self, bound: Bound<ExtentKey>) -> Vec<ExtentKey> {
        let behind = self.shared.range((bound, Bound::Unbounded));
        behind.map(|(key, _)| *key).take(RETRIED_AT_ONCE).collect()
    }

    /// Keeps ranges that [`ReleaseQueue::take`] has returned for a later call: a copy has the
    /// extent, too. If more than [`MOST_SHARED`] ranges would wait, drops these: a collection frees
    /// their space.
    pub fn keep_shared(&mut self, extent: ExtentKey, ranges: Vec<Range<u64>>) {
        if self.shared_ranges + ranges.len() <= MOST_SHARED && !self.is_closed {
            self.shared_ranges += ranges.len();
            self.shared.insert(extent, ranges);
        }
    }

    /// Removes the pages of extents that were erased. Otherwise they would stay, and fill the
    /// queue.
    pub fn forget(&mut self, kind: StreamKind, erased: &[ExtentId]) {
        let erased: BTreeSet<ExtentId> = erased.iter().copied().collect();
        self.waiting
            .retain(|page| page.kind != kind || !erased.contains(&page.id.extent));
        for extent in erased {
            let shared = self.shared.remove(&(kind, extent));
            self.shared_ranges -= shared.map_or(0, |ranges| ranges.len());
        }
    }

    /// Removes the pages that readers may need. A rollback calls this, because some of them are
    /// valid again. No reader needed the other ones before the content that it restores.
    pub fn clear_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Removes all pages, and accepts no more of them: the filesystem has no files with holes.
    pub fn close(&mut self) {
        *self = ReleaseQueue {
            is_closed: true,
            ..ReleaseQueue::default()
        };
    }
}
