//! The limit of the memory of extent usage (decision 0049). Above it, the ranges of extents are
//! dropped. A collection of such an extent derives them from the index pages, which name all base
//! pages.

use crate::page::Page;
use crate::page_id::PageId;
use crate::storage::{Storage, cache_key, extent_file};
use crate::usage::{ByteRanges, SealedExtent, StreamKind};
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_stream::ExtentId;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of memory of a page whose range is derived.
const BYTES_OF_PAGE: u64 = size_of::<(u32, u32)>() as u64;

/// The outcome of [`Storage::derive_ranges`].
#[derive(Default)]
pub(crate) struct DerivedRanges {
    /// Extents that have ranges again.
    pub known: BTreeSet<ExtentId>,
    /// Extents whose pages are not those in use, because of damage.
    pub damaged: BTreeSet<ExtentId>,
    /// The first damage.
    pub failed: Option<Error>,
}

/// Live base pages of extents, collected within a limit of their memory.
struct LivePages {
    /// Offsets and ends of pages.
    pages: BTreeMap<ExtentId, Vec<(u32, u32)>>,
    /// The extents of `pages`, the one that is given up first last.
    by_rank: Vec<ExtentId>,
    count: u64,
    most: u64,
}

impl LivePages {
    fn add(&mut self, page: PageId) {
        let Some(pages) = self.pages.get_mut(&page.extent) else {
            return;
        };
        pages.push((page.offset, page.offset + page.len));
        self.count += 1;
        while self.count > self.most && self.by_rank.len() > 1 {
            let last = self.by_rank.pop();
            let given_up = last.and_then(|last| self.pages.remove(&last));
            self.count -= given_up.map_or(0, |pages| pages.len() as u64);
        }
    }
}

impl Storage {
    /// Reduces the memory of ranges of extents to four fifths of
    /// [`crate::TreeOptions::usage_bytes`] if it exceeds that. Only sealed extents lose their
    /// ranges.
    pub fn limit_usage(&self) {
        let most = self.options.usage_bytes;
        if self.usage.lock().range_bytes() > most {
            let sealed = self.sealed_bases();
            self.usage.lock().drop_ranges(&sealed, most / 5 * 4);
        }
        self.book_usage();
    }

    /// Books the memory of the usage of extents.
    pub fn book_usage(&self) {
        let memory = self.usage.lock().memory();
        self.usage_memory.lock().resize(memory);
    }

    /// Returns the sealed extents of base pages.
    fn sealed_bases(&self) -> Vec<SealedExtent> {
        let sealed = self.base.extents().into_iter().filter(|e| e.sealed);
        sealed.map(|e| (e.id, e.len)).collect()
    }

    /// Derives the ranges of extents that have none from all index pages: those of the extents with
    /// the largest fraction of garbage, as far as the memory goes, and at least of one. `without`
    /// are extents that are left out. Ends early, with nothing derived, when `goes_on` returns
    /// false.
    ///
    /// A damaged index page hides what is below it. Extents without a page there get their ranges.
    ///
    /// Cost: a read of all index pages, but for those in the cache, and 8 bytes of memory for each
    /// page.
    ///
    /// Errors: those of reading, but for damage.
    pub fn derive_ranges(
        &self,
        without: &BTreeSet<ExtentId>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<DerivedRanges> {
        // Without it, pages could move while the index pages are read.
        let _maintenance = self.maintenance.exclusive();
        let mut live = self.pages_to_find(without);
        let mut derived = DerivedRanges::default();
        if live.by_rank.is_empty() {
            return Ok(derived);
        }
        let Some(hidden) = self.for_each_base(goes_on, &mut |page| live.add(page))? else {
            return Ok(derived);
        };
        derived.failed = hidden;
        let mut usage = self.usage.lock();
        for (extent, pages) in live.pages {
            let ranges = ByteRanges::of_pages(pages);
            let found = ranges.as_ref().map_or(0, ByteRanges::total);
            if ranges.is_some_and(|ranges| usage.set_ranges(extent, ranges)) {
                derived.known.insert(extent);
                continue;
            }
            derived.damaged.insert(extent);
            let valid = usage.get(extent).map_or(0, |usage| usage.valid);
            derived.failed.get_or_insert_with(|| {
                let path = self.dir.join(extent_file(StreamKind::Base, extent));
                let what = format!(
                    "index pages name {found} bytes of pages of this extent, and {valid} count as in use"
                );
                Error::corruption(&path, 0, what)
            });
        }
        drop(usage);
        let mut underived = self.underived.lock();
        underived.forget(&derived.known);
        if let Some(damage) = &derived.failed {
            let written = self.written.by_stream(StreamKind::Base);
            underived.note(&derived.damaged, damage, written);
        }
        drop(underived);
        (self.written.derived_ranges).fetch_add(derived.known.len() as u64, SeqCst);
        Ok(derived)
    }

    /// Returns which of some extents have no ranges because of damage, and that damage.
    pub fn underived_among(
        &self,
        extents: &BTreeSet<ExtentId>,
    ) -> (BTreeSet<ExtentId>, Option<Error>) {
        let written = self.written.by_stream(StreamKind::Base);
        let base_bytes = self.base_bytes();
        self.underived.lock().among(extents, written, base_bytes)
    }

    /// Returns the extents whose ranges are to be derived, without pages.
    fn pages_to_find(&self, without: &BTreeSet<ExtentId>) -> LivePages {
        let sealed = self.sealed_bases();
        let usage = self.usage.lock();
        let mut extents: Vec<(f64, ExtentId)> = Vec::new();
        for (id, len) in sealed {
            if let Some(of) = usage.get(id)
                && of.ranges.is_none()
                && !without.contains(&id)
            {
                extents.push((of.garbage_fraction(len), id));
            }
        }
        extents.sort_by(|a, b| b.0.total_cmp(&a.0));
        let most = self.options.usage_bytes;
        let free = most.saturating_sub(usage.range_bytes()).max(most / 4);
        LivePages {
            pages: extents.iter().map(|(_, id)| (*id, Vec::new())).collect(),
            by_rank: extents.into_iter().map(|(_, id)| id).collect(),
            count: 0,
            most: free / BYTES_OF_PAGE,
        }
    }

    /// Calls `each` with all base pages of the newest view. Returns `None` if `goes_on` has ended
    /// the walk, and else the first damage of an index page, whose children are left out. The
    /// caller holds the lock of maintenance.
    fn for_each_base(
        &self,
        goes_on: &dyn Fn() -> bool,
        each: &mut dyn FnMut(PageId),
    ) -> Result<Option<Option<Error>>> {
        let view = self.view();
        let mut failed = None;
        let mut visited = BTreeSet::new();
        let mut unvisited = vec![(view.root.id, view.root.level)];
        while let Some((key, level)) = unvisited.pop() {
            // The id of a page that was rewritten is damage of the index page that names it. It
            // shows in the bytes that are missing.
            let Some(base) = self.mapping.base_of(key, view.time) else {
                continue;
            };
            each(base);
            if level == 0 {
                continue;
            }
            if !goes_on() {
                return Ok(None);
            }
            if !visited.insert(base) {
                failed = failed.or(Some(self.named_twice(base)));
                continue;
            }
            match self.index_page_once(base, level) {
                Ok(page) => {
                    let children = (0..page.count()).map(|i| page.child(i));
                    unvisited.extend(children.map(|child| (child, level - 1)));
                }
                Err(e) if e.kind() == ErrorKind::Corruption => failed = failed.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        Ok(Some(failed))
    }

    /// Returns the error for an index page that two others name. A walk would come to what is below
    /// it as often as there are ways to it.
    pub fn named_twice(&self, index_page: PageId) -> Error {
        let what = "two index pages name this one, or one of them twice";
        self.bad_page(StreamKind::Base, index_page, what)
    }

    /// Returns an index page by its base page. A page that is not in the cache stays out of it: a
    /// walk of all of them would replace what lookups need.
    fn index_page_once(&self, base: PageId, level: u8) -> Result<Page> {
        let page = match self.env.cache().get(cache_key(base)) {
            Some(bytes) => Page::of_cached(bytes),
            None => self.page_uncached(StreamKind::Base, base)?,
        };
        self.check_index_page(base, page, level)
    }
}

#[cfg(test)]
mod tests;
