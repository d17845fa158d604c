//! The pages that have the entries of a leaf: its own, and the delta pages of the index page above
//! it, which are newer (decision 0048).

use crate::mapping::{Delta, Pages, Part};
use crate::page_id::PageId;
use crate::page_reads::PageRef;
use crate::path::{Path, Step};
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_fs::Result;
use smallvec::SmallVec;
use std::sync::Arc;

/// The pages of a leaf for a reader of its entries.
pub(crate) struct LeafPages {
    /// The delta pages of the index page come behind those of the leaf. Of them, the keys of the
    /// leaf count.
    pub pages: Pages,
    /// What readers of delta pages pay for: the page whose merge spares them these reads, and what
    /// the merge writes, about.
    pub merge: (PageId, u64),
}

/// The pages that a lookup searches, the newest one first.
pub(crate) type PagesToRead = SmallVec<[PageRef; 9]>;

/// What a lookup of a key searches.
pub(crate) struct SearchedPages {
    pub refs: PagesToRead,
    leaf: PageId,
    /// The index page above the leaf and the number of its children, if it has delta pages.
    above: Option<(PageId, usize)>,
}

impl SearchedPages {
    /// Returns what the reads of the delta pages pay for, as [`LeafPages::merge`] does.
    pub fn merge(&self) -> (PageId, u64) {
        let bytes = self.refs.iter().map(|(_, id)| u64::from(id.len));
        let base = self.refs.last().map_or(0, |(_, id)| u64::from(id.len));
        match self.above {
            None => (self.leaf, bytes.sum()),
            Some((key, children)) => (key, bytes.sum::<u64>() + base * (children as u64 - 1)),
        }
    }
}

impl Path {
    /// Returns the part of a delta page of the index page that counts for the leaf; `None` if
    /// nothing does.
    fn part_of(&self, delta: &Delta) -> Option<Delta> {
        let step = self.steps.last()?;
        part_of_child(step, step.child, delta)
    }
}

/// Returns the part of a delta page of an index page that counts for a child; `None` if nothing
/// does.
pub(crate) fn part_of_child(step: &Step, child: usize, delta: &Delta) -> Option<Delta> {
    let bound = |child: usize| -> Arc<[u8]> { step.page.key(child).into() };
    let low = (child > 0).then(|| bound(child));
    let low = low.into_iter().chain(delta.low().map(Arc::from)).max();
    let high = (child + 1 < step.page.count()).then(|| bound(child + 1));
    let high = high.into_iter().chain(delta.high().map(Arc::from)).min();
    if let (Some(low), Some(high)) = (&low, &high)
        && low >= high
    {
        return None;
    }
    let part = Part {
        has_low: low.is_some(),
        low: low.unwrap_or_else(|| Arc::from([])),
        high,
    };
    Some(Delta {
        id: delta.id,
        part: Some(Box::new(part)),
    })
}

impl Storage {
    /// Returns the delta pages of an index page, by the id under which its parent names it.
    pub fn index_deltas(&self, view: &View, key: PageId) -> SmallVec<[Delta; 1]> {
        let found = self
            .mapping
            .with_index_page(key, view.time, |_, deltas| match deltas {
                [] => SmallVec::new(),
                deltas => deltas.iter().cloned().collect(),
            });
        found.unwrap_or_default()
    }

    /// Returns the pages with the entries of the leaf at the end of a path.
    pub fn leaf_pages(&self, view: &View, path: &Path) -> Result<LeafPages> {
        let mut pages = self.pages_of(view, path.leaf)?;
        let mut merge = (path.leaf, bytes_of(&pages));
        if let Some(step) = path.steps.last() {
            let above = self.index_deltas(view, step.key);
            if !above.is_empty() {
                let bytes = above.iter().map(|delta| u64::from(delta.id.len));
                let others = (step.page.count() as u64 - 1) * u64::from(pages.base.len);
                merge = (step.key, merge.1 + bytes.sum::<u64>() + others);
                pages
                    .deltas
                    .extend(above.iter().filter_map(|delta| path.part_of(delta)));
            }
        }
        Ok(LeafPages { pages, merge })
    }

    /// Returns the pages that may have a key, the newest one first.
    pub fn searched_pages(&self, view: &View, key: &[u8]) -> Result<SearchedPages> {
        let mut refs = PagesToRead::new();
        let of_delta = |delta: &Delta| (StreamKind::Delta, delta.id);
        let (mut at, mut above) = (view.root.id, None);
        for level in (1..=view.root.level).rev() {
            let page = self.index_page(view, at, level)?;
            if level == 1 {
                self.mapping.with_index_page(at, view.time, |_, deltas| {
                    let covering = deltas.iter().rev().filter(|delta| delta.covers(key));
                    refs.extend(covering.map(of_delta));
                    above = (!deltas.is_empty()).then_some((at, page.count()));
                });
            }
            at = page.child(page.child_of(key));
        }
        let pages = self.pages_of(view, at)?;
        let deltas = pages.deltas.iter().rev().filter(|delta| delta.covers(key));
        refs.extend(deltas.map(of_delta));
        refs.push((StreamKind::Base, pages.base));
        Ok(SearchedPages {
            refs,
            leaf: at,
            above,
        })
    }
}

/// Returns the bytes of all pages of a leaf.
fn bytes_of(pages: &Pages) -> u64 {
    let deltas = pages.deltas.iter().map(|delta| u64::from(delta.id.len));
    u64::from(pages.base.len) + deltas.sum::<u64>()
}
