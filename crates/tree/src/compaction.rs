//! Compactions: the delta pages of leaves are consolidated, leaves are written again, and the index
//! pages above them learn where they are (ArkDB, sections 4.1.2 and 4.1.4).
//!
//! One compaction is about one index page and all its children that are due. So the index page is
//! written once for all of them.

use crate::cursor::refs_of;
use crate::entries::DroppedEntry;
use crate::leaf_pages::part_of_child;
use crate::mapping::{Change, Delta, Pages};
use crate::page::PageKind;
use crate::page_format::{LARGEST_ENTRY_HEAD, PageBuilder};
use crate::page_id::{PAGE_ID_LEN, PageId};
use crate::page_merge::PageMerge;
use crate::page_reads::{LoadedPages, PageReads, PageRef};
use crate::path::{Path, Step};
use crate::storage::{PageWriteCause, PageWriter, Storage, View};
use crate::system_log::{Root, SystemTx};
use crate::usage::StreamKind;
use basalt_fs::{Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A child of an index page: its smallest key and its id.
pub(crate) type Child = (Vec<u8>, PageId);

/// The result of a compaction for a leaf.
enum Outcome {
    /// It stays as it is, at its id.
    Stays,
    /// These new pages (none if the leaf is empty) replace the base page and this many of the
    /// oldest delta pages.
    Rewritten(Vec<NewPage>, u32),
}

/// A page that a compaction has written: its smallest key, and its number among the pages of its
/// writer. It has no id before it is appended.
type NewPage = (Vec<u8>, usize);

/// Most bytes of pages that maintenance reads at once, besides those of one leaf. It reads as many
/// again while it merges them.
const BYTES_AHEAD: u64 = 1 << 20;
/// Most leaves whose pages maintenance reads at once. Pages in memory are not compressed.
pub(crate) const LEAVES_AHEAD: usize = 16;

/// What a compaction writes again besides what is due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rewrites {
    Nothing,
    Leaf(PageId),
    /// All leaves of the index page with changes in delta pages, those of the index page included.
    Changed,
    /// All leaves of the index page with delta pages of their own, and the index page in any case,
    /// which then names all leaves by their own ids.
    Names,
    /// All leaves of the index page.
    All,
}

/// Most leaves of an index page of level 1. One compaction may rewrite all of them, so the limit
/// keeps it to a few megabytes.
const MOST_LEAVES: usize = 128;

/// What a compaction does with a leaf.
enum Plan {
    Stays,
    /// Its delta pages behind this many of the oldest ones become one.
    Consolidated(usize),
    Rewritten,
}

/// Delta pages that were written as one, which has no id before it is appended.
pub(crate) struct Consolidated {
    pub key: PageId,
    /// The oldest delta pages, which stay, and the next ones, which are replaced.
    pub kept: u32,
    pub replaced: u32,
    /// The number of the page among those of its writer. `None`: it would have no entry.
    pub with: Option<usize>,
}

impl Consolidated {
    /// Returns the change of the table. `ids` are those of the writer's pages.
    pub fn change(self, ids: &[PageId]) -> Change {
        Change::Consolidate {
            key: self.key,
            kept: self.kept,
            replaced: self.replaced,
            with: self.with.map(|number| ids[number]),
        }
    }
}

/// The page of a child before all new pages have ids.
enum ChildPage {
    Old(PageId),
    /// The number of a new page.
    New(usize),
}

/// What becomes of the leaves of an index page.
#[derive(Default)]
pub(crate) struct NewLeaves {
    /// The children that the index page gets.
    children: Vec<Child>,
    /// Leaves that are empty now, and how many delta pages of each are.
    empty: Vec<(PageId, u32)>,
    /// Leaves that stay: their places among the children, and their ids.
    stay: Vec<(usize, PageId)>,
    /// Leaves that are written again, how many delta pages of each are, and the children that it
    /// becomes.
    rewritten: Vec<(PageId, u32, Vec<Child>)>,
}

/// Some leaves of an index page, whose pages are being read.
struct LeavesAhead {
    /// What each of them has.
    pages: Vec<Pages>,
    reads: PageReads,
}

impl Storage {
    /// Returns how many bytes of pages maintenance reads at once.
    pub fn bytes_ahead(&self) -> u64 {
        BYTES_AHEAD.min((self.options.page_bytes * LEAVES_AHEAD) as u64)
    }

    pub fn is_due(&self, pages: &Pages) -> bool {
        pages.is_due(self.options.max_deltas)
    }

    /// Returns true if delta pages are to be consolidated among themselves, because they are small
    /// beside their base page.
    pub fn is_partial(&self, pages: &Pages) -> bool {
        let deltas: u64 = pages.deltas.iter().map(|d| u64::from(d.id.len)).sum();
        (deltas as f64) < f64::from(pages.base.len) * self.options.overwrite_ratio
    }
}

/// A compaction that is being prepared. The caller holds the lock of maintenance, exclusively or
/// with a claim of the index page.
pub(crate) struct Compaction<'a> {
    storage: &'a Storage,
    pub base: PageWriter<'a>,
    pub delta: PageWriter<'a>,
    pub view: Arc<View>,
    pub tx: SystemTx,
    pub rewrites: Rewrites,
    /// Pages of the leaves that are written.
    loaded: LoadedPages,
    /// The delta pages of the index page, if the leaves take their changes.
    index_deltas: SmallVec<[Delta; 1]>,
    /// The delta pages `index_deltas`, read.
    loaded_index_deltas: LoadedPages,
    /// The delta pages that were written as one each.
    consolidated: Vec<Consolidated>,
    /// The entries of the leaf that is written, and a key. They keep their memory from leaf to
    /// leaf.
    leaf: PageBuilder,
    key: Vec<u8>,
    /// The first leaf that cannot be read, and stays as it is.
    pub damage: Option<Error>,
}

impl<'a> Compaction<'a> {
    pub fn new(storage: &'a Storage, view: Arc<View>) -> Compaction<'a> {
        let writer = |kind| {
            let mut writer = PageWriter::new(storage, kind);
            writer.cause = PageWriteCause::Compaction;
            writer
        };
        Compaction {
            storage,
            base: writer(StreamKind::Base),
            delta: writer(StreamKind::Delta),
            view,
            tx: SystemTx::default(),
            rewrites: Rewrites::Nothing,
            loaded: LoadedPages::new(),
            index_deltas: SmallVec::new(),
            loaded_index_deltas: LoadedPages::new(),
            consolidated: Vec::new(),
            leaf: PageBuilder::new(PageKind::Leaf, 0),
            key: Vec::new(),
            damage: None,
        }
    }

    /// Replaces a root that is an empty leaf by leaves with these smallest keys. Without any, the
    /// root stays.
    pub fn replace_root(&mut self, children: Vec<Child>) -> Result<()> {
        if children.is_empty() {
            return Ok(());
        }
        self.rewrite(self.view.root.id, 0, children.clone());
        self.new_root(children, 0)
    }

    /// Compacts the leaf that is the root.
    pub fn root_leaf(&mut self, root: PageId) -> Result<()> {
        let pages = self.storage.pages_of(&self.view, root)?;
        let children = match self.leaf(root, Vec::new(), &pages)? {
            Outcome::Stays => return self.end_consolidations(),
            Outcome::Rewritten(new, replaced) => {
                let lows = new.into_iter().map(|(low, _)| low);
                let children = lows.zip(self.base.finish()?).collect();
                let children = self.or_anchor(children, &[])?;
                self.rewrite(root, replaced, children.clone());
                children
            }
        };
        self.new_root(children, 0)
    }

    /// Compacts the leaves of an index page.
    pub fn leaves(&mut self, parent: &Step) -> Result<NewLeaves> {
        if matches!(self.rewrites, Rewrites::Changed | Rewrites::All) {
            self.load_index_deltas(parent.key)?;
        }
        // New pages are numbered until all are appended.
        let mut children: Vec<(Vec<u8>, ChildPage)> = Vec::new();
        let mut leaves = NewLeaves::default();
        let mut rewritten: Vec<(PageId, u32, Range<usize>)> = Vec::new();
        let count = parent.page.count();
        let (mut ahead, mut at) = (self.read_ahead(parent, 0)?, 0);
        while at < count {
            let LeavesAhead { pages, reads } = ahead;
            self.loaded = reads.loaded(self.storage);
            let above = self.loaded_index_deltas.iter();
            (self.loaded).extend(above.map(|(id, page)| (*id, page.clone())));
            // The device reads the next leaves while these are merged.
            ahead = self.read_ahead(parent, at + pages.len())?;
            for pages in &pages {
                let (key, low) = (parent.page.child(at), parent.page.key(at));
                at += 1;
                let outcome = match self.leaf(key, low.clone(), pages) {
                    Err(e) if e.kind() == ErrorKind::Corruption && self.may_stay(key) => {
                        // After a failed append, the numbers of pages say nothing.
                        if self.base.has_failed() || self.delta.has_failed() {
                            return Err(e);
                        }
                        self.damage.get_or_insert(e);
                        Outcome::Stays
                    }
                    outcome => outcome?,
                };
                match outcome {
                    Outcome::Stays => {
                        leaves.stay.push((children.len(), key));
                        children.push((low, ChildPage::Old(key)));
                    }
                    Outcome::Rewritten(with, replaced) if with.is_empty() => {
                        leaves.empty.push((key, replaced))
                    }
                    Outcome::Rewritten(with, replaced) => {
                        let first = children.len();
                        let with = with.into_iter();
                        children.extend(with.map(|(low, number)| (low, ChildPage::New(number))));
                        rewritten.push((key, replaced, first..children.len()));
                    }
                }
            }
        }
        self.end_consolidations()?;
        let ids = self.base.finish()?;
        let with_id = |(low, page)| match page {
            ChildPage::Old(id) => (low, id),
            ChildPage::New(number) => (low, ids[number]),
        };
        leaves.children = children.into_iter().map(with_id).collect();
        let of_children = |range: Range<usize>| leaves.children[range].to_vec();
        leaves.rewritten = (rewritten.into_iter())
            .map(|(key, replaced, with)| (key, replaced, of_children(with)))
            .collect();
        Ok(leaves)
    }

    /// Gives the index page at the end of a path its new leaves.
    pub fn index_page(&mut self, path: &Path, leaves: NewLeaves) -> Result<()> {
        let Some((parent, above)) = path.steps.split_last() else {
            return Ok(());
        };
        let NewLeaves {
            mut children,
            empty,
            stay,
            rewritten,
        } = leaves;
        let is_unchanged = rewritten.is_empty() && empty.is_empty() && self.index_deltas.is_empty();
        if is_unchanged && self.rewrites != Rewrites::Names {
            return Ok(());
        }
        // The index page is written again, so it can name all base pages by their own ids.
        for (i, key) in stay {
            let base = self.storage.pages_of(&self.view, key)?.base;
            if base != key {
                children[i].1 = base;
                self.rewrite(key, 0, vec![children[i].clone()]);
            }
        }
        children = self.or_anchor(children, &parent.page.key(0))?;
        // The first child also has the keys of empty leaves before it.
        children[0].0 = parent.page.key(0);
        for (key, replaced, with) in rewritten {
            self.rewrite(key, replaced, with);
        }
        for (key, replaced) in empty {
            // Changes that come for the empty leaf belong to the one that now has its keys.
            let low = self.low_of(parent, key);
            let heir = children.partition_point(|(other, _)| other[..] <= low[..]);
            let heir = children[heir.saturating_sub(1)].clone();
            self.rewrite(key, replaced, vec![heir]);
        }
        let taken = self.index_deltas.len() as u32;
        self.replace(above, parent.key, taken, children, 1)
    }

    /// Returns true if a leaf that cannot be read stays as it is, and its siblings are compacted.
    fn may_stay(&self, leaf: PageId) -> bool {
        match self.rewrites {
            Rewrites::Nothing => true,
            Rewrites::Leaf(wanted) => wanted != leaf,
            Rewrites::Changed | Rewrites::Names | Rewrites::All => false,
        }
    }

    /// Reads the delta pages of an index page, whose changes the leaves are to take.
    fn load_index_deltas(&mut self, key: PageId) -> Result<()> {
        self.index_deltas = self.storage.index_deltas(&self.view, key);
        let refs = refs_of(None, &self.index_deltas);
        let read = self.storage.read_pages(&refs)?;
        self.loaded_index_deltas = refs.into_iter().map(|(_, id)| id).zip(read).collect();
        Ok(())
    }

    /// Returns the pages of a leaf, and of the delta pages of the index page those that have
    /// entries of it, if the leaf is to take them.
    fn pages_with_changes(&self, parent: &Step, child: usize) -> Result<Pages> {
        let mut pages = (self.storage).pages_of(&self.view, parent.page.child(child))?;
        let parts =
            (self.index_deltas.iter()).filter_map(|delta| part_of_child(parent, child, delta));
        let has_entries = |delta: &Delta| {
            let page = &self.loaded_index_deltas[&delta.id];
            let at = |bound: &[u8]| match page.find(bound) {
                Ok(i) | Err(i) => i,
            };
            let begin = delta.low().map_or(0, at);
            begin < delta.high().map_or(page.count(), at)
        };
        pages.deltas.extend(parts.filter(has_entries));
        Ok(pages)
    }

    fn low_of(&self, parent: &Step, child: PageId) -> Vec<u8> {
        let i = (0..parent.page.count()).find(|i| parent.page.child(*i) == child);
        parent.page.key(i.expect("it is a child of the page"))
    }

    fn rewrite(&mut self, key: PageId, replaced: u32, with: Vec<Child>) {
        self.tx.changes.push(Change::Rewrite {
            key,
            replaced,
            with,
        });
    }

    /// Returns the children, or an empty leaf, an anchor page, if there is none.
    fn or_anchor(&mut self, children: Vec<Child>, low: &[u8]) -> Result<Vec<Child>> {
        if !children.is_empty() {
            return Ok(children);
        }
        let mut builder = PageBuilder::new(PageKind::Leaf, 0);
        self.base.add(&mut builder, PageId::NONE)?;
        let ids = self.base.finish()?;
        Ok(ids.into_iter().map(|id| (low.to_vec(), id)).collect())
    }

    /// Returns what becomes of a leaf with these pages.
    fn plan(&self, key: PageId, pages: &Pages) -> Plan {
        let rewrites = match self.rewrites {
            Rewrites::Nothing => false,
            Rewrites::Leaf(leaf) => leaf == key,
            Rewrites::Changed | Rewrites::Names => !pages.deltas.is_empty(),
            Rewrites::All => true,
        };
        if !rewrites && !self.storage.is_due(pages) {
            Plan::Stays
        } else if !rewrites && self.storage.is_partial(pages) {
            Plan::Consolidated(old_to_keep(&pages.deltas))
        } else {
            Plan::Rewritten
        }
    }

    /// Begins to read the pages of leaves that are due, from a child of the index page on.
    fn read_ahead(&self, parent: &Step, first: usize) -> Result<LeavesAhead> {
        let (mut all, mut refs) = (Vec::new(), Vec::new());
        let (mut bytes, mut read) = (0, 0);
        for child in first..parent.page.count() {
            if bytes >= self.storage.bytes_ahead() || read >= LEAVES_AHEAD {
                break;
            }
            let mut of_leaf = Vec::new();
            let pages = self.pages_with_changes(parent, child)?;
            match self.plan(parent.page.child(child), &pages) {
                Plan::Stays => {}
                Plan::Consolidated(kept) => of_leaf = refs_of(None, &pages.deltas[kept..]),
                Plan::Rewritten => of_leaf = refs_of(Some(pages.base), &pages.deltas),
            }
            of_leaf.retain(|(_, id)| !self.loaded_index_deltas.contains_key(id));
            bytes += of_leaf.iter().map(|(_, id)| u64::from(id.len)).sum::<u64>();
            read += usize::from(!of_leaf.is_empty());
            refs.append(&mut of_leaf);
            all.push(pages);
        }
        Ok(LeavesAhead {
            pages: all,
            reads: self.storage.begin_page_reads(refs),
        })
    }

    /// Writes the delta pages behind the `kept` oldest ones of a leaf or an index page as one.
    pub fn consolidate(
        &mut self,
        key: PageId,
        pages: &Pages,
        kept: usize,
        loaded: &LoadedPages,
    ) -> Result<()> {
        let deltas = &pages.deltas[kept..];
        let dropped = &mut self.tx.dropped;
        let with = consolidate(self.storage, &mut self.delta, deltas, loaded, dropped)?;
        self.consolidated.push(Consolidated {
            key,
            kept: kept as u32,
            replaced: deltas.len() as u32,
            with,
        });
        Ok(())
    }

    /// Sets the key of the consolidated delta pages. They are those of one index page.
    pub fn rename_consolidated(&mut self, key: PageId) {
        self.consolidated.iter_mut().for_each(|of| of.key = key);
    }

    /// Appends the delta pages that consolidations have written, and adds their changes.
    pub fn end_consolidations(&mut self) -> Result<()> {
        let ids = self.delta.finish()?;
        let changes = self.consolidated.drain(..).map(|of| of.change(&ids));
        self.tx.changes.extend(changes);
        Ok(())
    }

    /// Consolidates the delta pages of a leaf, or writes the leaf again, if it is due.
    fn leaf(&mut self, key: PageId, low: Vec<u8>, pages: &Pages) -> Result<Outcome> {
        let storage = self.storage;
        let plan = self.plan(key, pages);
        if matches!(plan, Plan::Stays) {
            return Ok(Outcome::Stays);
        }
        if let Plan::Consolidated(kept) = plan {
            let loaded = std::mem::take(&mut self.loaded);
            let consolidated = self.consolidate(key, pages, kept, &loaded);
            self.loaded = loaded;
            return consolidated.map(|()| Outcome::Stays);
        }
        // Those of the index page come last.
        let is_above = |delta: &&Delta| self.loaded_index_deltas.contains_key(&delta.id);
        let replaced = (pages.deltas.len() - pages.deltas.iter().filter(is_above).count()) as u32;
        let mut merge = storage.merge_pages(Some(pages.base), &pages.deltas, &self.loaded)?;
        let builder = &mut self.leaf;
        builder.restart(merge.as_of());
        while merge.next() {
            storage.add_merged(&merge, builder, &mut self.key, &mut self.tx.dropped);
        }
        let page_bytes = storage.options.page_bytes;
        let mut pages = add_parts(&mut self.base, builder, page_bytes, PageId::NONE, 1)?;
        if let Some(first) = pages.first_mut() {
            // The leaf also has the keys between its old first key and its new one.
            first.0 = low;
        }
        Ok(Outcome::Rewritten(pages, replaced))
    }

    /// Gives an index page new children, which have taken its `replaced` oldest delta pages.
    /// `above` are the index pages above it.
    fn replace(
        &mut self,
        above: &[Step],
        key: PageId,
        replaced: u32,
        children: Vec<Child>,
        level: u8,
    ) -> Result<()> {
        let pages = self.index_pages(&children, level, key)?;
        let Some((parent, above)) = above.split_last() else {
            self.rewrite(key, replaced, pages.clone());
            return self.new_root(pages, level);
        };
        if let [(_, base)] = &pages[..] {
            self.tx.changes.push(Change::Overwrite {
                key,
                replaced,
                base: *base,
            });
            return Ok(());
        }
        let mut siblings: Vec<Child> = Vec::new();
        for i in 0..parent.page.count() {
            let (child, low) = (parent.page.child(i), parent.page.key(i));
            if child == key {
                siblings.push((low, pages[0].1));
                siblings.extend(pages[1..].iter().cloned());
                continue;
            }
            let base = self.storage.pages_of(&self.view, child)?.base;
            if base != child {
                self.rewrite(child, 0, vec![(low.clone(), base)]);
            }
            siblings.push((low, base));
        }
        self.rewrite(key, replaced, pages);
        self.replace(above, parent.key, 0, siblings, level + 1)
    }

    /// Writes the index pages of children. If it is one page, it keeps the key of the page that it
    /// replaces. Several pages have the key in their headers, too, where it says nothing: the table
    /// has none of them under it.
    fn index_pages(&mut self, children: &[Child], level: u8, key: PageId) -> Result<Vec<Child>> {
        let mut page_bytes = self.storage.options.page_bytes;
        if level == 1 {
            let lows = children.iter().map(|(low, _)| low.len());
            let total: usize = lows.map(|low| low + PAGE_ID_LEN + LARGEST_ENTRY_HEAD).sum();
            page_bytes = page_bytes.min(total.div_ceil(children.len().div_ceil(MOST_LEAVES)) + 64);
        }
        let mut builder = PageBuilder::new(PageKind::Index, level);
        for (low, id) in children {
            builder.add(low, 0, &id.to_bytes());
        }
        let pages = add_parts(&mut self.base, &mut builder, page_bytes, key, 2)?;
        let lows = pages.into_iter().map(|(low, _)| low);
        Ok(lows.zip(self.base.finish()?).collect())
    }

    /// Makes a page the root, or builds index pages above several ones.
    fn new_root(&mut self, mut pages: Vec<Child>, mut level: u8) -> Result<()> {
        while pages.len() > 1 {
            level += 1;
            pages = self.index_pages(&pages, level, PageId::NONE)?;
            self.tx.above.extend(pages.iter().map(|(_, id)| *id));
        }
        let id = pages[0].1;
        self.tx.root = Some(Root { id, level });
        Ok(())
    }
}

/// Returns how many of the oldest delta pages a partial consolidation keeps. Each of them is larger
/// than the sum of the younger ones, so it would be written again for few bytes.
pub(crate) fn old_to_keep(deltas: &[Delta]) -> usize {
    let len = |i: usize| u64::from(deltas[i].id.len);
    let mut kept = deltas.len().saturating_sub(2);
    let mut younger: u64 = (kept..deltas.len()).map(len).sum();
    while kept > 0 && len(kept - 1) <= younger {
        kept -= 1;
        younger += len(kept);
    }
    kept
}

impl Storage {
    /// Begins a merge of the delta pages of a leaf or an index page and, if there is one, the base
    /// page below them. Pages that `loaded` has are not read again.
    pub fn merge_pages(
        &self,
        base: Option<PageId>,
        deltas: &[Delta],
        loaded: &LoadedPages,
    ) -> Result<PageMerge> {
        let refs = refs_of(base, deltas);
        let missing: Vec<PageRef> = (refs.iter().copied())
            .filter(|(_, id)| !loaded.contains_key(id))
            .collect();
        let mut read = self.read_pages(&missing)?.into_iter();
        let deltas = base.iter().map(|_| None).chain(deltas.iter().map(Some));
        let pages = refs.iter().zip(deltas).map(|((kind, id), delta)| {
            let page = match loaded.get(id) {
                Some(page) => page.clone(),
                None => read.next().expect("each missing page was read"),
            };
            self.check_leaf_level(*kind, *id, page.kind)?;
            Ok((page, delta))
        });
        let pages = pages.collect::<Result<SmallVec<[_; 5]>>>()?;
        Ok(PageMerge::new(pages.into_iter()))
    }

    /// Adds the current entry of a merge to a leaf, unless it is a deletion or the filter removes
    /// it. Adds to `dropped` what the leaf no longer has. `key` is a buffer.
    pub fn add_merged(
        &self,
        merge: &PageMerge,
        builder: &mut PageBuilder,
        key: &mut Vec<u8>,
        dropped: &mut Vec<DroppedEntry>,
    ) {
        merge.key_into(key);
        self.note_hidden(merge, key, dropped);
        let (kind, value) = merge.entry();
        if let Some((kind, value)) = self.filtered(key, kind, value, dropped) {
            builder.add(key, kind, &value);
        }
    }

    /// Adds to `dropped` the entries that the current one of a merge hides.
    fn note_hidden(&self, merge: &PageMerge, key: &[u8], dropped: &mut Vec<DroppedEntry>) {
        let hidden = merge.hidden();
        dropped.extend(hidden.filter_map(|(kind, value)| self.observed(key, kind, value)));
    }
}

/// Adds delta pages of a leaf or an index page to a writer as one page. Returns its number, or
/// `None` if they have no entry.
pub(crate) fn consolidate(
    storage: &Storage,
    writer: &mut PageWriter<'_>,
    deltas: &[Delta],
    loaded: &LoadedPages,
    dropped: &mut Vec<DroppedEntry>,
) -> Result<Option<usize>> {
    let mut builder = PageBuilder::new(PageKind::Delta, 0);
    let mut merge = storage.merge_pages(None, deltas, loaded)?;
    builder.as_of = merge.as_of();
    let mut key = Vec::new();
    while merge.next() {
        merge.key_into(&mut key);
        storage.note_hidden(&merge, &key, dropped);
        let (kind, value) = merge.entry();
        builder.add(&key, kind, value);
    }
    if builder.is_empty() {
        return Ok(None);
    }
    writer.add(&mut builder, PageId::NONE).map(Some)
}

/// Adds the entries of a builder to a writer as pages of about the same size, each of at most
/// `page_bytes` bytes. A page has at least `least` entries, even if they have more bytes.
fn add_parts(
    writer: &mut PageWriter<'_>,
    builder: &mut PageBuilder,
    page_bytes: usize,
    mapping: PageId,
    least: usize,
) -> Result<Vec<NewPage>> {
    let parts = builder.parts(page_bytes, least);
    let mut pages = Vec::with_capacity(parts.len());
    for part in &parts {
        let number = writer.add_part(builder, part, mapping)?;
        pages.push((builder.low(part).to_vec(), number));
    }
    Ok(pages)
}
