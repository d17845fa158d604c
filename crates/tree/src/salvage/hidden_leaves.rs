//! The leaves below index pages that cannot be read: they are found in the extents.
//!
//! The ranges of an extent say which of its pages are live. If they were dropped (decision 0049),
//! all pages of the extent are looked at. A page that the mapping table has is live. Of the others,
//! the newest ones count: a leaf whose keys overlap those of a newer leaf is garbage.

use super::{KeyBounds, Walk, lost_page};
use crate::mapping::{Delta, Pages, Part, State};
use crate::page::{Page, PageKind};
use crate::page_format::len_of_page_at;
use crate::page_id::PageId;
use crate::usage::{StreamKind, UsageTable};
use basalt_env::file_copy::read_sparse;
use basalt_fs::{Bytes, Result};
use basalt_stream::{EXTENT_HEADER, ExtentAddress, ExtentId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A page, or what is wrong with its bytes.
type Opened = std::result::Result<Page, String>;

/// Leaves that were found below index pages that cannot be read.
#[derive(Default)]
struct FoundLeaves {
    keys: BTreeSet<PageId>,
    /// The first key of each leaf that has some, and its last one.
    bounds: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl FoundLeaves {
    fn overlap(&self, first: &[u8], last: &[u8]) -> bool {
        let up_to = (Bound::Unbounded, Bound::Included(last));
        let before = self.bounds.range::<[u8], _>(up_to).next_back();
        before.is_some_and(|(_, end)| first <= &end[..])
    }
}

/// A leaf that is live or garbage.
struct DoubtfulLeaf {
    as_of: u64,
    id: PageId,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Walk<'_> {
    /// Finds the leaves below index pages that cannot be read.
    pub fn find_leaves(&mut self) -> Result<()> {
        let mut found = FoundLeaves::default();
        let (_, usage) = self.storage.view_with_usage();
        let unknown = self.extents_to_search(&usage);
        self.is_in_doubt = !unknown.is_empty();
        for (page, reason) in std::mem::take(&mut self.hidden_pages) {
            self.lose_range(page, &reason, true);
        }
        for (extent, usage) in usage.iter().filter(|(_, of)| of.kind == StreamKind::Base) {
            for (begin, end) in usage.ranges.iter().flat_map(|ranges| ranges.iter()) {
                self.pages_of_range(extent, begin, end, &mut |walk, id, page| match page {
                    Ok(page) => walk.take_found(id, &page, &mut found),
                    // If an index page names it, its loss is known already.
                    Err(what) => {
                        walk.lose_range(id, &what, false);
                        Ok(())
                    }
                })?;
            }
        }
        self.search_extents(unknown, &mut found)?;
        // The delta pages of leaves whose base page cannot be read.
        let mut others = Vec::new();
        self.storage.mapping.for_each(|key, state| {
            if let State::Live(pages) = state
                && !pages.deltas.is_empty()
                && !self.met.contains(&key)
                && !found.keys.contains(&key)
            {
                others.push((key, pages.clone()));
            }
        });
        others.sort_unstable_by_key(|(key, _)| *key);
        for (_, pages) in others {
            let base = lost_page(StreamKind::Base, pages.base, String::new());
            match pages.has_index_deltas || self.is_known_lost(&base) {
                true => self.deltas(&pages, None, None)?,
                false => self.leaf(&pages, None, None)?,
            }
        }
        Ok(())
    }

    /// Returns the key of a live page that was not met, and its pages; `None` for others.
    fn unmet(&self, id: PageId, page: &Page) -> Option<(PageId, Pages)> {
        let keys = [page.mapping, Some(id)].into_iter().flatten();
        let mut live = keys.filter_map(|key| match self.storage.mapping.get(key, self.view.time) {
            State::Live(pages) if pages.base == id => Some((key, pages)),
            _ => None,
        });
        live.next().filter(|(key, _)| !self.met.contains(key))
    }

    /// Takes a live leaf, unless it was met or found before.
    fn take_found(&mut self, id: PageId, page: &Page, found: &mut FoundLeaves) -> Result<()> {
        if page.kind == PageKind::Leaf
            && let Some((key, pages)) = self.unmet(id, page)
            && found.keys.insert(key)
        {
            if page.count() > 0 {
                let last = page.key(page.count() - 1);
                found.bounds.insert(page.key(0), last);
            }
            self.leaf(&pages, None, None)?;
        }
        Ok(())
    }

    /// Calls `each` with the pages in a range of an extent, and with the bytes without a page.
    fn pages_of_range(
        &mut self,
        extent: ExtentId,
        begin: u32,
        end: u32,
        each: &mut dyn FnMut(&mut Self, PageId, Opened) -> Result<()>,
    ) -> Result<()> {
        let page_at = |from: usize, to: usize| PageId {
            extent,
            offset: begin + from as u32,
            len: (to - from) as u32,
        };
        let whole = page_at(0, (end - begin) as usize);
        let limit = self.storage.base.extent_len(extent).unwrap_or(0);
        if limit == 0 {
            return each(self, whole, Err("the file is missing".to_string()));
        }
        let mut bytes = self.readable_bytes(whole, limit)?;
        if bytes.iter().all(|byte| *byte == 0) {
            let what = "all bytes are zeros, unreadable, or behind the end of the file";
            return each(self, whole, Err(what.to_string()));
        }
        if bytes.len() < whole.len as usize {
            // Bytes behind the end of the file are zeros, as those of blocks that cannot be read.
            let mut padded = bytes.to_vec();
            padded.resize(whole.len as usize, 0);
            bytes = padded.into();
        }
        let len_at = |at: usize| {
            let offset = u64::from(begin) + at as u64;
            len_of_page_at(ExtentAddress { extent, offset }, &bytes[at..])
        };
        let mut at = 0;
        while at < bytes.len() {
            let Some(len) = len_at(at) else {
                let next = (at + 1..bytes.len()).find(|next| len_at(*next).is_some());
                let next = next.unwrap_or(bytes.len());
                each(
                    self,
                    page_at(at, next),
                    Err("no page verifies here".to_string()),
                )?;
                at = next;
                continue;
            };
            let next = bytes.len().min(at + len as usize);
            let id = page_at(at, next);
            each(self, id, Page::open(id, &bytes.slice(at..next)))?;
            at = next;
        }
        Ok(())
    }

    /// Returns bytes of an extent of `limit` bytes, fewer if they end there. Blocks that cannot be
    /// read because of damage are zeros.
    fn readable_bytes(&self, part: PageId, limit: u64) -> Result<Bytes> {
        let len_at = |at: u64, len: usize| len.min(limit.saturating_sub(at) as usize);
        let read = |offset: u64, len: usize| match len_at(offset, len) {
            0 => Ok(Bytes::new()),
            len => {
                let extent = part.extent;
                (self.storage.base).read(ExtentAddress { extent, offset }, len)
            }
        };
        let begin = u64::from(part.offset);
        read_sparse(begin, len_at(begin, part.len as usize), &read)
    }

    /// Returns the extents without ranges that have live pages which were not met, and the bytes of
    /// those.
    fn extents_to_search(&self, usage: &UsageTable) -> BTreeMap<ExtentId, u64> {
        let mut met: BTreeMap<ExtentId, u64> = BTreeMap::new();
        for key in &self.met {
            if let Some(base) = self.storage.mapping.base_of(*key, self.view.time) {
                *met.entry(base.extent).or_default() += u64::from(base.len);
            }
        }
        let extents = usage.iter().filter(|(_, of)| of.ranges.is_none());
        let unmet = extents.map(|(extent, of)| {
            let met = met.get(&extent).copied().unwrap_or(0);
            (extent, of.valid.saturating_sub(met))
        });
        unmet.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Takes the leaves that were not met from extents without ranges. `unmet` has the bytes of
    /// live pages that were not met. Damage is a loss only if such bytes are left in its extent.
    fn search_extents(
        &mut self,
        mut unmet: BTreeMap<ExtentId, u64>,
        found: &mut FoundLeaves,
    ) -> Result<()> {
        let mut doubtful: Vec<DoubtfulLeaf> = Vec::new();
        let mut damaged: Vec<(PageId, String)> = Vec::new();
        let mut taken: Vec<PageId> = Vec::new();
        let mut extents = self.storage.base.extents();
        for (extent, bytes) in &unmet {
            if extents.iter().all(|there| there.id != *extent) {
                let whole = PageId {
                    extent: *extent,
                    offset: 0,
                    len: 0,
                };
                let what = format!("the file is missing, with {bytes} bytes of live pages");
                damaged.push((whole, what));
            }
        }
        extents.retain(|extent| unmet.contains_key(&extent.id));
        for extent in extents {
            let begin = EXTENT_HEADER as u32;
            let end = u32::try_from(extent.len).unwrap_or(u32::MAX).max(begin);
            self.pages_of_range(extent.id, begin, end, &mut |walk, id, page| {
                let page = match page {
                    Ok(page) => page,
                    Err(what) => {
                        damaged.push((id, what));
                        return Ok(());
                    }
                };
                let unmet = walk.unmet(id, &page);
                let Some((key, _)) = unmet.filter(|_| page.kind == PageKind::Leaf) else {
                    return Ok(());
                };
                if walk.storage.mapping.has_live_page(key) {
                    taken.push(id);
                    return walk.take_found(id, &page, found);
                }
                if page.count() > 0 {
                    doubtful.push(DoubtfulLeaf {
                        as_of: page.as_of,
                        id,
                        first: page.key(0),
                        last: page.key(page.count() - 1),
                    });
                }
                Ok(())
            })?;
        }
        doubtful.sort_by_key(|leaf| Reverse(leaf.as_of));
        for leaf in doubtful {
            // Leaves elsewhere are garbage.
            let is_below = |range: &KeyBounds| overlaps(range, &leaf.first, &leaf.last);
            if self.hidden.iter().any(is_below) && !found.overlap(&leaf.first, &leaf.last) {
                taken.push(leaf.id);
                self.take_doubtful(&leaf)?;
                found.bounds.insert(leaf.first, leaf.last);
            }
        }
        for id in taken {
            if let Some(bytes) = unmet.get_mut(&id.extent) {
                *bytes = bytes.saturating_sub(u64::from(id.len));
            }
        }
        damaged.retain(|(id, _)| unmet.get(&id.extent).is_some_and(|bytes| *bytes > 0));
        for (id, what) in damaged {
            self.lose_range(id, &what, false);
        }
        Ok(())
    }

    /// Takes what a leaf has below the index pages that cannot be read. Elsewhere, it is garbage.
    fn take_doubtful(&mut self, leaf: &DoubtfulLeaf) -> Result<()> {
        let id = leaf.id;
        let mut below = self.hidden.clone();
        below.retain(|range| overlaps(range, &leaf.first, &leaf.last));
        for (low, high) in below {
            let part = Part {
                low: low.as_deref().unwrap_or(b"").into(),
                has_low: low.is_some(),
                high: high.as_deref().map(Into::into),
            };
            let part = Some(Box::new(part));
            let bounds = (low.as_ref(), high.as_ref());
            self.page(StreamKind::Base, &Delta { id, part }, 0, bounds)?;
        }
        Ok(())
    }
}

/// Returns true if a range has a key from `first` to `last`, or may have one.
fn overlaps((low, high): &KeyBounds, first: &[u8], last: &[u8]) -> bool {
    low.as_deref().is_none_or(|low| low <= last) && high.as_deref().is_none_or(|high| first < high)
}
