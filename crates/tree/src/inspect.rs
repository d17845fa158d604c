//! The pages of a tree one by one, for tools, and the check of all of them.
//!
//! Nothing is written, and pages are read past the cache. Damage of a page does not end a walk: it
//! goes on with the next page that it can reach.

use crate::mapping::{Delta, Pages};
use crate::page::{Page, PageKind};
use crate::page_id::PageId;
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::Kind;
use basalt_stream::ExtentId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The position of a page in the files of a tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct PagePosition {
    /// The extent, as a path from the tree's directory on.
    pub file: String,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Bytes of the page.
    pub bytes: u64,
}

impl fmt::Display for PagePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, {} bytes", self.file, self.offset, self.bytes)
    }
}

/// A range of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageRange {
    /// The smallest key; `None` for no bound.
    pub low: Option<Vec<u8>>,
    /// The first key behind the range; `None` for no bound.
    pub high: Option<Vec<u8>>,
}

/// An entry of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageEntry {
    /// The key.
    pub key: Vec<u8>,
    /// The kind; `None` for one that a later version wrote.
    pub kind: Option<Kind>,
    /// The payload. An expiry is in front of the value, see [`Kind::PutTtl`].
    pub value: Bytes,
}

/// The content of a page that was read and verified.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PageContent {
    /// Number of entries. Of a delta page of which a part counts, those of the part.
    pub count: u64,
    /// Number of tombstones among them.
    pub tombstones: u64,
    /// Bytes before compression, without the header.
    pub raw_bytes: u64,
    /// The entries, if the caller asked for them. Those of an index page are left out.
    pub entries: Vec<PageEntry>,
}

/// A page, and what it has.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InspectedPage {
    /// Where the page is.
    pub position: PagePosition,
    /// The keys that count, if a delta page was written for a leaf that was split since.
    pub part: Option<PageRange>,
    /// What the page has, or why it cannot be read.
    pub content: Result<PageContent>,
}

/// A leaf or an index page, with all the pages that the page mapping table has for it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InspectedNode {
    /// Levels below: 0 for a leaf.
    pub level: u8,
    /// The id under which the index page above names it: the position that its base page had when
    /// that index page was written.
    pub id: PagePosition,
    /// True if the page mapping table has an entry for the id. Otherwise, the id stands for itself.
    pub is_mapped: bool,
    /// The keys that belong to it.
    pub keys: PageRange,
    /// The base page.
    pub base: InspectedPage,
    /// Delta pages, the oldest one first. Those of an index page, of level 1, have newer changes of
    /// the leaves below it.
    pub deltas: Vec<InspectedPage>,
}

/// An extent of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InspectedExtent {
    /// The path of the file from the tree's directory on.
    pub file: String,
    /// Bytes of the file. Of an extent that a crash left unsealed, an upper bound.
    pub bytes: u64,
    /// Bytes that the file takes on the device: fewer than `bytes` once the space of garbage pages
    /// was given back.
    pub bytes_on_disk: u64,
    /// Bytes of valid pages. A delta page shared by several leaves counts once for each.
    pub valid_bytes: u64,
    /// True if no more pages are written to it.
    pub is_sealed: bool,
}

/// What a tree has, by its pages.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PageCounts {
    /// Number of leaves.
    pub leaves: u64,
    /// Number of index pages.
    pub index_pages: u64,
    /// Number of delta pages. A page shared by several leaves counts once for each.
    pub delta_pages: u64,
    /// Number of entries of base pages of leaves and of delta pages, tombstones included.
    pub entries: u64,
    /// Bytes of all these pages.
    pub page_bytes: u64,
}

/// Most damaged pages that a survey lists.
const MOST_DAMAGE: usize = 10_000;

/// The findings of [`Storage::survey`].
pub(crate) struct Survey {
    pub counts: PageCounts,
    pub damage: Vec<Error>,
}

/// A page that is to be inspected.
pub(crate) struct Unvisited {
    pub key: PageId,
    pub level: u8,
    pub keys: PageRange,
}

impl PageRange {
    /// Returns true if a key is in the range.
    pub fn has(&self, key: &[u8]) -> bool {
        self.low.as_deref().is_none_or(|low| low <= key)
            && self.high.as_deref().is_none_or(|high| key < high)
    }

    pub(crate) fn of_part(delta: &Delta) -> Option<PageRange> {
        delta.part.as_ref()?;
        Some(PageRange {
            low: delta.low().map(<[u8]>::to_vec),
            high: delta.high().map(<[u8]>::to_vec),
        })
    }
}

impl InspectedNode {
    /// Returns the errors of all pages that cannot be read.
    pub fn damage(&self) -> impl Iterator<Item = &Error> {
        let pages = std::iter::once(&self.base).chain(&self.deltas);
        pages.filter_map(|page| page.content.as_ref().err())
    }
}

impl PageCounts {
    /// Adds the pages of a leaf or an index page.
    pub fn add(&mut self, node: &InspectedNode) {
        match node.level {
            0 => self.leaves += 1,
            _ => self.index_pages += 1,
        }
        self.delta_pages += node.deltas.len() as u64;
        for page in std::iter::once(&node.base).chain(&node.deltas) {
            self.page_bytes += page.position.bytes;
        }
        let base = (node.level == 0).then_some(&node.base);
        for page in base.into_iter().chain(&node.deltas) {
            if let Ok(content) = &page.content {
                self.entries += content.count;
            }
        }
    }
}

/// Returns the position of a page.
pub(crate) fn position(kind: StreamKind, id: PageId) -> PagePosition {
    PagePosition {
        file: crate::storage::extent_file(kind, id.extent),
        offset: u64::from(id.offset),
        bytes: u64::from(id.len),
    }
}

/// Returns the content of a page: of the entries in a range, if there is one.
pub(crate) fn content_of(page: &Page, part: Option<&PageRange>, with_entries: bool) -> PageContent {
    let position = |bound: &[u8]| match page.find(bound) {
        Ok(i) | Err(i) => i,
    };
    let low = part.and_then(|part| part.low.as_deref());
    let high = part.and_then(|part| part.high.as_deref());
    let begin = low.map_or(0, position);
    let end = high.map_or(page.count(), position).max(begin);
    let mut content = PageContent {
        raw_bytes: page.raw_len() as u64,
        ..PageContent::default()
    };
    for i in begin..end {
        content.count += 1;
        if page.kind == PageKind::Index {
            continue;
        }
        let kind = Kind::from_u8(page.entry(i).kind);
        content.tombstones += u64::from(kind == Some(Kind::Delete));
        if with_entries {
            content.entries.push(PageEntry {
                key: page.key(i),
                kind,
                value: page.value(i),
            });
        }
    }
    content
}

impl Storage {
    /// Calls `each` with all index pages and leaves of a view, in the order of their keys, an index
    /// page before those below it, as long as it returns true. `with_entries` says that the entries
    /// of leaves are wanted.
    pub fn inspect(
        &self,
        view: &View,
        with_entries: bool,
        each: &mut dyn FnMut(InspectedNode) -> bool,
    ) {
        self.inspect_pages(view, with_entries, &mut |node, _| each(node));
    }

    /// Does the same as [`Storage::inspect`], and also passes the ids of all pages to `each`.
    fn inspect_pages(
        &self,
        view: &View,
        with_entries: bool,
        each: &mut dyn FnMut(InspectedNode, &Pages) -> bool,
    ) {
        let mut unvisited = vec![Unvisited {
            key: view.root.id,
            level: view.root.level,
            keys: PageRange::default(),
        }];
        let mut visited: BTreeSet<PageId> = BTreeSet::new();
        while let Some(at) = unvisited.pop() {
            let is_named_twice = !visited.insert(at.key);
            let (mut node, pages) = match is_named_twice {
                false => self.inspect_node(view, at, with_entries, &mut unvisited),
                // What is below it was visited.
                true => self.inspect_node(view, at, false, &mut Vec::new()),
            };
            if is_named_twice {
                let what = "two entries of index pages name this page";
                node.base.content = Err(self.bad_page(StreamKind::Base, pages.base, what));
            }
            if !each(node, &pages) {
                return;
            }
        }
    }

    fn inspect_node(
        &self,
        view: &View,
        at: Unvisited,
        with_entries: bool,
        unvisited: &mut Vec<Unvisited>,
    ) -> (InspectedNode, Pages) {
        let unmapped = Pages {
            base: at.key,
            deltas: Default::default(),
            has_index_deltas: false,
        };
        let (pages, failed) = match self.pages_of(view, at.key) {
            Ok(pages) => (pages, None),
            Err(e) => (unmapped.clone(), Some(e)),
        };
        let mut deltas = Vec::new();
        for delta in &pages.deltas {
            let part = PageRange::of_part(delta);
            // If the leaf was split since, keys outside of the part belong to its neighbours.
            let allowed = part.is_none().then_some(&at.keys);
            let page = self.page_uncached(StreamKind::Delta, delta.id);
            let page = page.and_then(|page| self.check_range(delta.id, page, allowed));
            deltas.push(InspectedPage {
                position: position(StreamKind::Delta, delta.id),
                content: page.map(|page| content_of(&page, part.as_ref(), with_entries)),
                part,
            });
        }
        let base = match failed {
            Some(e) => Err(e),
            None => self.base_page(&pages, &at),
        };
        if let Ok(page) = &base
            && at.level > 0
        {
            unvisited.extend(children(page, &at).rev());
        }
        let node = InspectedNode {
            level: at.level,
            id: position(StreamKind::Base, at.key),
            is_mapped: pages != unmapped,
            base: InspectedPage {
                position: position(StreamKind::Base, pages.base),
                part: None,
                content: base.map(|page| content_of(&page, None, with_entries)),
            },
            deltas,
            keys: at.keys,
        };
        (node, pages)
    }

    /// Reads the base page of a leaf or an index page, and checks that it is one of its level.
    fn base_page(&self, pages: &Pages, at: &Unvisited) -> Result<Page> {
        let page = self.page_uncached(StreamKind::Base, pages.base)?;
        let kind = match at.level {
            0 => PageKind::Leaf,
            _ => PageKind::Index,
        };
        let bad = |what: &str| Err(self.bad_page(StreamKind::Base, pages.base, what));
        if page.kind != kind || page.level != at.level {
            return bad(&format!(
                "expected a page of level {}, found level {}",
                at.level, page.level
            ));
        }
        if pages.has_index_deltas && at.level != 1 {
            return bad("delta pages of an index page belong to a page of another level");
        }
        if at.level > 0 && !pages.has_index_deltas && !pages.deltas.is_empty() {
            return bad("an index page has delta pages of a leaf");
        }
        self.check_range(pages.base, page, Some(&at.keys))
    }

    /// Checks that the keys of a page are in a range.
    fn check_range(&self, id: PageId, page: Page, range: Option<&PageRange>) -> Result<Page> {
        let (Some(range), Some(last)) = (range, page.count().checked_sub(1)) else {
            return Ok(page);
        };
        // The first key of an index page may be above the smallest key below it.
        let begins_in = page.kind == PageKind::Index || range.has(&page.key(0));
        let ends_in = match page.kind {
            PageKind::Index => (range.high.as_ref()).is_none_or(|high| page.key(last) < *high),
            _ => range.has(&page.key(last)),
        };
        let kind = match page.kind {
            PageKind::Delta => StreamKind::Delta,
            PageKind::Leaf | PageKind::Index => StreamKind::Base,
        };
        match begins_in && ends_in {
            true => Ok(page),
            false => Err(self.bad_page(kind, id, "a key is outside of the range of the page")),
        }
    }

    /// Reads and verifies all pages of the newest view, and counts what they have. Checks that
    /// their keys are where the index pages say. A missing or truncated extent is reported
    /// once, not once for each of its pages. If all pages are sound, also checks that the usage
    /// of extents counts them and nothing else.
    pub fn survey(&self) -> Survey {
        let (view, usage) = self.view_with_usage();
        // Extents without live pages are reported too, because the tree cannot be opened for
        // writing without them.
        let of_streams = [&self.base, &self.delta].map(|stream| stream.damage());
        let of_streams = of_streams.concat();
        // A read of a page that is not there returns the damage of its extent.
        let known: BTreeSet<String> = of_streams.iter().map(|e| e.to_string()).collect();
        let mut survey = Survey {
            counts: PageCounts::default(),
            damage: of_streams,
        };
        let mut reached: BTreeMap<ExtentId, u64> = BTreeMap::new();
        let mut unlisted = 0;
        let mut beside_ranges: Option<PageId> = None;
        self.inspect_pages(&view, false, &mut |node, pages| {
            if !usage.has_base(pages.base) {
                beside_ranges = beside_ranges.or(Some(pages.base));
            }
            let deltas = pages.deltas.iter().map(|delta| delta.id);
            for id in deltas.chain([pages.base]) {
                *reached.entry(id.extent).or_default() += u64::from(id.len);
            }
            survey.counts.add(&node);
            for damage in node.damage() {
                if !known.is_empty() && known.contains(&damage.to_string()) {
                    continue;
                }
                match survey.damage.len() < MOST_DAMAGE {
                    true => survey.damage.push(damage.clone()),
                    false => unlisted += 1,
                }
            }
            true
        });
        if unlisted > 0 {
            let what = format!("{unlisted} more pages are damaged");
            survey.damage.push(self.inconsistent(what));
        }
        if !survey.damage.is_empty() {
            // What is below a damaged page was not reached.
            return survey;
        }
        if let Some(page) = beside_ranges {
            // With the sums below, this proves that the ranges have these pages and nothing else.
            let what = "the ranges of its extent do not have this page";
            let damage = self.bad_page(StreamKind::Base, page, what);
            survey.damage.push(damage);
        }
        for (extent, usage) in usage.iter() {
            let in_ranges = usage.ranges.as_ref().map_or(0, |ranges| ranges.total());
            let has_sum = usage.kind == StreamKind::Base && usage.ranges.is_some();
            if has_sum && in_ranges != usage.valid {
                survey.damage.push(self.inconsistent(format!(
                    "the ranges of extent {extent} have {in_ranges} bytes, and {} count as in use",
                    usage.valid
                )));
            }
            let found = reached.remove(&extent).unwrap_or(0);
            if found != usage.valid {
                survey.damage.push(self.inconsistent(format!(
                    "extent {extent} has {found} bytes of pages, and {} count as in use",
                    usage.valid
                )));
            }
        }
        for extent in reached.keys() {
            let what = format!("no page of extent {extent} counts as in use");
            survey.damage.push(self.inconsistent(what));
        }
        survey
    }

    /// Verifies the newest view as [`Storage::survey`] does.
    ///
    /// Errors: the first `Corruption` names what is damaged.
    pub fn verify(&self) -> Result<()> {
        let first = self.survey().damage.into_iter().next();
        first.map_or(Ok(()), Err)
    }

    /// Returns the number of leaves of a view. Reads all index pages.
    pub fn count_leaves(&self, view: &View) -> Result<u64> {
        let mut leaves = 0;
        let mut visited: BTreeSet<PageId> = BTreeSet::new();
        let mut unvisited = vec![(view.root.id, view.root.level)];
        while let Some((key, level)) = unvisited.pop() {
            if !visited.insert(key) {
                let what = "two entries of index pages name this page";
                return Err(self.bad_page(StreamKind::Base, key, what));
            }
            match level {
                0 => leaves += 1,
                1 => leaves += self.index_page(view, key, level)?.count() as u64,
                _ => {
                    let page = self.index_page(view, key, level)?;
                    let below = (0..page.count()).map(|i| (page.child(i), level - 1));
                    unvisited.extend(below);
                }
            }
        }
        Ok(leaves)
    }

    /// Returns all extents, those of base pages first.
    pub fn inspect_extents(&self) -> Vec<InspectedExtent> {
        let extents = [StreamKind::Base, StreamKind::Delta].map(|kind| {
            let extents = self.stream(kind).extents().into_iter();
            extents.map(move |extent| (kind, extent))
        });
        let extents: Vec<_> = extents.into_iter().flatten().collect();
        let usage = self.usage.lock();
        let inspected = extents.into_iter().map(|(kind, extent)| InspectedExtent {
            file: crate::storage::extent_file(kind, extent.id),
            bytes: extent.len,
            bytes_on_disk: extent.on_disk,
            valid_bytes: usage.get(extent.id).map_or(0, |usage| usage.valid),
            is_sealed: extent.sealed,
        });
        inspected.collect()
    }
}

/// Returns the children of an index page, in the order of their keys.
fn children<'a>(
    page: &'a Page,
    at: &'a Unvisited,
) -> impl DoubleEndedIterator<Item = Unvisited> + 'a {
    (0..page.count()).map(move |i| {
        let low = (i > 0).then(|| page.key(i));
        let high = (i + 1 < page.count()).then(|| page.key(i + 1));
        Unvisited {
            key: page.child(i),
            level: at.level - 1,
            keys: PageRange {
                low: low.or_else(|| at.keys.low.clone()),
                high: high.or_else(|| at.keys.high.clone()),
            },
        }
    })
}

#[cfg(test)]
mod tests;
