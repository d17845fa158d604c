//! Garbage pages whose space is to be released to the filesystem. The paper frees the space of a
//! page with its extent (ArkDB, section 4.2). Releases of single pages make most collections
//! needless (decision 0050).

use crate::mapping::SysTime;
use crate::page_id::PageId;
use crate::usage::StreamKind;
use basalt_stream::ExtentId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Most pages in the queue. Further ones are not queued, and a collection frees their space.
const MOST_WAITING: usize = 1 << 15;

/// A page, and the time of the transaction that made it garbage.
struct GarbagePage {
    since: SysTime,
    kind: StreamKind,
    id: PageId,
}

/// For each extent, ranges of bytes to release, in rising order.
pub(crate) type ExtentRanges = BTreeMap<(StreamKind, ExtentId), Vec<Range<u64>>>;

/// The pages that became garbage, until their space is given back.
#[derive(Default)]
pub(crate) struct ReleaseQueue {
    waiting: Vec<GarbagePage>,
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
    /// range.
    pub fn take(
        &mut self,
        oldest: SysTime,
        is_sealed: &dyn Fn(StreamKind, ExtentId) -> bool,
    ) -> ExtentRanges {
        let is_ready =
            |page: &mut GarbagePage| page.since <= oldest && is_sealed(page.kind, page.id.extent);
        let mut ranges = ExtentRanges::new();
        for page in self.waiting.extract_if(.., is_ready) {
            let begin = u64::from(page.id.offset);
            let of_extent = ranges.entry((page.kind, page.id.extent)).or_default();
            of_extent.push(begin..begin + u64::from(page.id.len));
        }
        for of_extent in ranges.values_mut() {
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

    /// Removes the pages of extents that were erased. Otherwise they would stay, and fill the
    /// queue.
    pub fn forget(&mut self, kind: StreamKind, erased: &[ExtentId]) {
        let erased: BTreeSet<ExtentId> = erased.iter().copied().collect();
        self.waiting
            .retain(|page| page.kind != kind || !erased.contains(&page.id.extent));
    }

    /// Removes all pages. A rollback calls this, because some of them are valid again.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Removes all pages, and accepts no more of them: the filesystem has no files with holes.
    pub fn close(&mut self) {
        self.waiting = Vec::new();
        self.is_closed = true;
    }
}
