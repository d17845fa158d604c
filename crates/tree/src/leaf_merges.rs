//! Rewrites of pages that keep their places in the page mapping table, so that no index page above
//! them is written. Garbage collections, and merges for readers and of cold leaves use them.

use crate::compaction::{Consolidated, LEAVES_AHEAD, consolidate};
use crate::cursor::refs_of;
use crate::entries::DroppedEntry;
use crate::mapping::{Change, Pages};
use crate::page::{Page, PageKind};
use crate::page_format::PageBuilder;
use crate::page_id::PageId;
use crate::page_reads::{LoadedPages, PageReads};
use crate::storage::{PageWriteCause, PageWriter, Storage, View};
use crate::system_log::{Root, SystemTx};
use crate::usage::StreamKind;
use basalt_fs::{Error, ErrorKind, Result};
use std::sync::Arc;

/// What becomes of the pages of a key.
pub(crate) enum Merge {
    /// The delta pages become one.
    Consolidate,
    /// The base page and the delta pages of a leaf become one base page. A leaf that has too much
    /// for one page stays, and is among [`LeafMerges::to_split`].
    Leaf,
    /// A base page, which was read, is written again, with the delta pages of the leaf if it is one
    /// and all of that fits into one page.
    Move(Page),
}

/// The pages of a key, and what becomes of them.
struct Item {
    key: PageId,
    pages: Pages,
    merge: Merge,
}

/// Merges of leaves that are committed as one system transaction. The caller holds the lock of
/// maintenance. While the pages of some leaves are merged, the device reads those of the next ones.
pub(crate) struct LeafMerges<'a> {
    storage: &'a Storage,
    view: Arc<View>,
    bases: PageWriter<'a>,
    deltas: PageWriter<'a>,
    tx: SystemTx,
    /// Keys with new base pages, how many delta pages each of these has taken, and its number among
    /// the pages of `bases`.
    merged: Vec<(PageId, u32, usize)>,
    consolidated: Vec<Consolidated>,
    /// The leaves that were added last, and the bytes of all of their pages.
    next: Vec<Item>,
    next_bytes: u64,
    /// The leaves before them, whose pages are being read.
    ahead: Option<(Vec<Item>, PageReads)>,
    /// The entries of the leaf that is merged, and a key. They keep their memory from leaf to leaf.
    leaf: PageBuilder,
    buffer: Vec<u8>,
    /// Leaves with too much for one page, and a root that is a leaf. Only a compaction can write
    /// them, because it writes the page above them, too.
    pub to_split: Vec<PageId>,
    /// The error of the first leaf that cannot be read. It stays as it is.
    pub damage: Option<Error>,
}

impl<'a> LeafMerges<'a> {
    pub fn new(storage: &'a Storage, view: Arc<View>, cause: PageWriteCause) -> LeafMerges<'a> {
        let writer = |kind| {
            let mut writer = PageWriter::new(storage, kind);
            writer.cause = cause;
            writer
        };
        LeafMerges {
            storage,
            view,
            bases: writer(StreamKind::Base),
            deltas: writer(StreamKind::Delta),
            tx: SystemTx::default(),
            merged: Vec::new(),
            consolidated: Vec::new(),
            next: Vec::new(),
            next_bytes: 0,
            ahead: None,
            leaf: PageBuilder::new(PageKind::Leaf, 0),
            buffer: Vec::new(),
            to_split: Vec::new(),
            damage: None,
        }
    }

    /// Adds the pages of a key, which are merged some time before the commit.
    ///
    /// Errors: those of writing pages.
    pub fn add(&mut self, key: PageId, pages: Pages, merge: Merge) -> Result<()> {
        let all = refs_of(Some(pages.base), &pages.deltas);
        self.next_bytes += all.iter().map(|(_, id)| u64::from(id.len)).sum::<u64>();
        self.next.push(Item { key, pages, merge });
        let is_full = self.next_bytes >= self.storage.bytes_ahead();
        match is_full || self.next.len() >= LEAVES_AHEAD {
            true => self.step(),
            false => Ok(()),
        }
    }

    /// Begins to read the pages of the leaves that were added, and merges those before them.
    fn step(&mut self) -> Result<()> {
        let items = std::mem::take(&mut self.next);
        self.next_bytes = 0;
        let refs = items.iter().flat_map(|item| match &item.merge {
            Merge::Leaf => refs_of(Some(item.pages.base), &item.pages.deltas),
            // An index page keeps its delta pages.
            Merge::Move(page) if page.kind != PageKind::Leaf => Vec::new(),
            Merge::Move(_) | Merge::Consolidate => refs_of(None, &item.pages.deltas),
        });
        let reads = self.storage.begin_page_reads(refs.collect());
        let before = self.ahead.replace((items, reads));
        self.merge(before)
    }

    fn merge(&mut self, read: Option<(Vec<Item>, PageReads)>) -> Result<()> {
        let Some((items, reads)) = read else {
            return Ok(());
        };
        let mut loaded = reads.loaded(self.storage);
        for item in items {
            let dropped = self.tx.dropped.len();
            match self.merge_one(item, &mut loaded) {
                // After a failed append, the numbers of pages say nothing.
                Err(e) if e.kind() == ErrorKind::Corruption && !self.has_failed_append() => {
                    self.damage.get_or_insert(e);
                    self.tx.dropped.truncate(dropped);
                }
                merged => merged?,
            }
        }
        Ok(())
    }

    fn has_failed_append(&self) -> bool {
        self.bases.has_failed() || self.deltas.has_failed()
    }

    fn merge_one(&mut self, item: Item, loaded: &mut LoadedPages) -> Result<()> {
        let Item { key, pages, merge } = item;
        let storage = self.storage;
        let replaced = pages.deltas.len() as u32;
        let dropped = &mut self.tx.dropped;
        let page = match merge {
            Merge::Consolidate => {
                let deltas = &pages.deltas;
                let with = consolidate(storage, &mut self.deltas, deltas, loaded, dropped)?;
                self.consolidated.push(Consolidated {
                    key,
                    kept: 0,
                    replaced,
                    with,
                });
                return Ok(());
            }
            Merge::Leaf => None,
            Merge::Move(page) => Some(page),
        };
        let is_leaf = page.as_ref().is_none_or(|page| page.kind == PageKind::Leaf);
        let is_root = self.view.root.id == key;
        if page.is_none() && is_root {
            // A root has no parent that would name it by its old id.
            self.to_split.push(key);
            return Ok(());
        }
        if let Some(page) = &page {
            loaded.insert(pages.base, page.clone());
        }
        let (leaf, buffer) = (&mut self.leaf, &mut self.buffer);
        let is_merged = is_leaf && storage.merge_into(&pages, loaded, leaf, buffer, dropped)?;
        let mapping = if is_root { PageId::NONE } else { key };
        match page {
            _ if is_merged => {
                let number = self.bases.add(leaf, mapping)?;
                self.merged.push((key, replaced, number));
            }
            None => self.to_split.push(key),
            Some(page) => {
                let mut builder = PageBuilder::new(page.kind, page.level);
                builder.as_of = page.as_of;
                for i in 0..page.count() {
                    let entry = page.entry(i);
                    builder.add(&page.key(i), entry.kind, entry.value);
                }
                let number = self.bases.add(&mut builder, mapping)?;
                self.merged.push((key, 0, number));
            }
        }
        Ok(())
    }

    /// Merges what is left, and commits. Returns the leaves of [`LeafMerges::to_split`], and the
    /// damage of a leaf that stays.
    ///
    /// Errors: those of writing pages and of [`Storage::commit`].
    pub fn commit(mut self) -> Result<(Vec<PageId>, Option<Error>)> {
        self.step()?;
        let last = self.ahead.take();
        self.merge(last)?;
        let (bases, deltas) = (self.bases.finish()?, self.deltas.finish()?);
        for (key, replaced, number) in self.merged.drain(..) {
            let base = bases[number];
            if self.view.root.id != key {
                self.tx.changes.push(Change::Overwrite {
                    key,
                    replaced,
                    base,
                });
                continue;
            }
            // The root has no parent that would name it by its old id.
            self.tx.changes.push(Change::Rewrite {
                key,
                replaced,
                with: vec![(Vec::new(), base)],
            });
            self.tx.root = Some(Root {
                id: base,
                ..self.view.root
            });
        }
        let consolidated = self.consolidated.drain(..).map(|of| of.change(&deltas));
        self.tx.changes.extend(consolidated);
        if !self.tx.changes.is_empty() {
            self.storage.commit(&self.tx)?;
        }
        Ok((self.to_split, self.damage))
    }
}

impl Storage {
    /// Sets the entries of a builder to the merged ones of a leaf. Returns false as soon as they
    /// are too many for one page: only a compaction splits a leaf. Adds to `dropped` what the
    /// merged leaf no longer has. `key` is a buffer.
    fn merge_into(
        &self,
        pages: &Pages,
        loaded: &LoadedPages,
        builder: &mut PageBuilder,
        key: &mut Vec<u8>,
        dropped: &mut Vec<DroppedEntry>,
    ) -> Result<bool> {
        let most = self.options.page_bytes + self.options.page_bytes / 4;
        let before = dropped.len();
        let mut merge = self.merge_pages(Some(pages.base), &pages.deltas, loaded)?;
        builder.restart(merge.as_of());
        while merge.next() {
            self.add_merged(&merge, builder, key, dropped);
            if builder.len_estimate() > most {
                // The leaf stays as it is.
                dropped.truncate(before);
                return Ok(false);
            }
        }
        Ok(true)
    }
}
