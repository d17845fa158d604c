//! Explains a lookup of a key: which pages it visits, in which order, and why.

use crate::inspect::{PageEntry, PagePosition, PageRange, position};
use crate::mapping::{Delta, Pages};
use crate::page::Page;
use crate::page_id::PageId;
use crate::page_reads::{PageRef, Want, cost_of};
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_fs::{Error, Result};
use basalt_kv::key::Kind;
use smallvec::SmallVec;

/// An index page that a lookup reads, and the child that it goes on with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IndexStep {
    /// Levels below the page: at least 1.
    pub level: u8,
    /// The id under which the index page above names it.
    pub id: PagePosition,
    /// Where the page is. This is the id, unless the page mapping table has an entry for that.
    pub position: PagePosition,
    /// Number of children.
    pub children: u64,
    /// The number of the child that has the key, from 0 on.
    pub child: u64,
    /// The smallest key of the child as the page has it. The first child also has the keys below.
    pub child_key: Vec<u8>,
}

/// What a page of the leaf has to do with a lookup.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum PageVerdict {
    /// The key is outside of the part of the delta page that counts. The page is not read.
    OutsidePart,
    /// The filter of the delta page says that it has no entry of the key. Only its head is read.
    FilteredOut,
    /// The page has no entry of the key. One of its blocks is read.
    Absent,
    /// The page has the newest entry of the key in the tree. It decides.
    Found(PageEntry),
    /// A newer page has an entry of the key, or cannot be read. A lookup does not use this page. It
    /// may have an entry of the key.
    Hidden(Option<PageEntry>),
    /// The page cannot be read.
    Damaged(Error),
}

/// A page of the leaf, in a lookup.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExplainedPage {
    /// Where the page is.
    pub position: PagePosition,
    /// True for the base page, false for a delta page.
    pub is_base: bool,
    /// True for a delta page of the index page above the leaf, which has changes of other leaves,
    /// too.
    pub is_of_index: bool,
    /// The keys that count, if a delta page was written for a leaf that was split since.
    pub part: Option<PageRange>,
    /// What the page has to do with the lookup.
    pub verdict: PageVerdict,
}

/// The leaf that has a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExplainedLeaf {
    /// The id under which the index page above names the leaf.
    pub id: PagePosition,
    /// True if the page mapping table has an entry for the id.
    pub is_mapped: bool,
    /// The keys of the leaf.
    pub keys: PageRange,
    /// The delta pages of the index page above, then those of the leaf, the newest one first, and
    /// the base page last.
    pub pages: Vec<ExplainedPage>,
}

/// A lookup of a key in a tree.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PageExplanation {
    /// Index pages, the root first.
    pub index: Vec<IndexStep>,
    /// The leaf; `None` if an index page cannot be read.
    pub leaf: Option<ExplainedLeaf>,
    /// Number of device reads of a lookup that finds nothing in the cache: one for each index page,
    /// one batch for the heads of the leaf's pages, of which neighbours share a read, and one for
    /// each block that it searches. A small page comes with its head.
    pub device_reads: u64,
    /// Bytes that these reads bring.
    pub device_bytes: u64,
    /// The first error of the key's pages, all of which are verified; `None` if they are sound. A
    /// lookup does not see damage outside of what it reads.
    pub error: Option<Error>,
}

impl PageExplanation {
    /// Returns the entry that decides, if the tree has one.
    pub fn found(&self) -> Option<&PageEntry> {
        let pages = self.leaf.iter().flat_map(|leaf| &leaf.pages);
        let mut found = pages.filter_map(|page| match &page.verdict {
            PageVerdict::Found(entry) => Some(entry),
            _ => None,
        });
        found.next()
    }
}

impl Storage {
    /// Explains a lookup of a key in a view. Reads all pages that the lookup may read, past the
    /// cache. Damage is a part of the explanation.
    pub fn explain(&self, view: &View, key: &[u8]) -> PageExplanation {
        let mut out = PageExplanation {
            index: Vec::new(),
            leaf: None,
            device_reads: 0,
            device_bytes: 0,
            error: None,
        };
        let mut keys = PageRange::default();
        let mut at = view.root.id;
        let mut above = SmallVec::new();
        for level in (1..=view.root.level).rev() {
            let read = self.pages_of(view, at).and_then(|pages| {
                out.device_reads += 1;
                out.device_bytes += u64::from(pages.base.len);
                let page = self.index_page_uncached(pages.base, level)?;
                Ok((pages, page))
            });
            let (base, page) = match read {
                Ok((pages, page)) => {
                    above = pages.deltas;
                    (pages.base, page)
                }
                Err(e) => {
                    out.error = Some(e);
                    return out;
                }
            };
            let child = page.child_of(key);
            if child > 0 {
                keys.low = Some(page.key(child));
            }
            if child + 1 < page.count() {
                keys.high = Some(page.key(child + 1));
            }
            out.index.push(IndexStep {
                level,
                id: position(StreamKind::Base, at),
                position: position(StreamKind::Base, base),
                children: page.count() as u64,
                child: child as u64,
                child_key: page.key(child),
            });
            at = page.child(child);
        }
        match self.pages_of(view, at) {
            Ok(pages) => self.explain_leaf(at, (&pages, &above), keys, key, &mut out),
            Err(e) => out.error = Some(e),
        }
        out
    }

    fn explain_leaf(
        &self,
        leaf: PageId,
        (pages, above): (&Pages, &[Delta]),
        keys: PageRange,
        key: &[u8],
        out: &mut PageExplanation,
    ) {
        let of_index = above.iter().rev().map(|delta| (Some(delta), true));
        let of_leaf = pages.deltas.iter().rev().map(|delta| (Some(delta), false));
        let all = of_index.chain(of_leaf).chain([(None, false)]);
        let (mut heads, mut blocks): (Vec<Want>, Vec<Want>) = (Vec::new(), Vec::new());
        let (mut explained, mut is_decided) = (Vec::new(), false);
        for (delta, is_of_index) in all {
            let (kind, id) = match delta {
                Some(delta) => (StreamKind::Delta, delta.id),
                None => (StreamKind::Base, pages.base),
            };
            let covers = delta.is_none_or(|delta| delta.covers(key));
            let verdict = match covers {
                false => PageVerdict::OutsidePart,
                true => {
                    heads.push(self.want_head((kind, id)));
                    let (verdict, block) = self.verdict((kind, id), key, is_decided);
                    blocks.extend(block);
                    if let PageVerdict::Damaged(e) = &verdict
                        && out.error.is_none()
                    {
                        out.error = Some(e.clone());
                    }
                    verdict
                }
            };
            // Behind a page that cannot be read, nothing decides.
            is_decided |= matches!(verdict, PageVerdict::Found(_) | PageVerdict::Damaged(_));
            explained.push(ExplainedPage {
                position: position(kind, id),
                is_base: kind == StreamKind::Base,
                is_of_index,
                part: delta.and_then(PageRange::of_part),
                verdict,
            });
        }
        let (reads, bytes) = cost_of(&heads, &blocks);
        out.device_reads += reads;
        out.device_bytes += bytes;
        out.leaf = Some(ExplainedLeaf {
            id: position(StreamKind::Base, leaf),
            is_mapped: pages.base != leaf || !pages.deltas.is_empty(),
            keys,
            pages: explained,
        });
    }

    /// Returns what a page has to do with a lookup, and the block that the lookup reads.
    fn verdict(&self, of: PageRef, key: &[u8], is_decided: bool) -> (PageVerdict, Option<Want>) {
        // All of the page is verified, although a lookup reads a part of it.
        let read = self.page_uncached(of.0, of.1);
        let read = read.and_then(|page| Ok((page, self.head_uncached(of)?)));
        let (page, head) = match read {
            Ok(read) => read,
            Err(e) => return (PageVerdict::Damaged(e), None),
        };
        let block = head.block_of(key);
        let is_out = !head.may_have(key);
        let block = Want::Block(of, head, block);
        match (entry_of(&page, key), is_decided) {
            (entry, true) => (PageVerdict::Hidden(entry), None),
            (Some(entry), false) => (PageVerdict::Found(entry), Some(block)),
            (None, false) if is_out => (PageVerdict::FilteredOut, None),
            (None, false) => (PageVerdict::Absent, Some(block)),
        }
    }

    fn index_page_uncached(&self, base: PageId, level: u8) -> Result<Page> {
        let page = self.page_uncached(StreamKind::Base, base)?;
        self.check_index_page(base, page, level)
    }
}

fn entry_of(page: &Page, key: &[u8]) -> Option<PageEntry> {
    let i = page.find(key).ok()?;
    Some(PageEntry {
        key: key.to_vec(),
        kind: Kind::from_u8(page.entry(i).kind),
        value: page.value(i),
    })
}

#[cfg(test)]
mod tests;
