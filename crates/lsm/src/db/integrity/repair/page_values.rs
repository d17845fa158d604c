//! Separated values of families in pages, in a repair: each tree that may have references is
//! written to a new one, in which every reference leads to a record of its own.
//!
//! Pages may have references that newer entries hide. A later merge of these pages reports them as
//! dropped, and their records are then marked as garbage. So a tree must have no hidden reference
//! to a record that the repair has marked, and the new tree has no hidden entry at all. The old
//! tree stays as it is until the fresh manifest is current.

use super::Repair;
use crate::db::families::FamilyEntry;
use crate::db::page_flush::write_pages;
use crate::db::page_values::{PageValues, ReadReference};
use crate::db::pages::{self, FamilyPages, PAGES_DIR, PageView, tree_dir, tree_name};
use crate::memtable::MemTable;
use basalt_blob::{Name, Reference};
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::key::{Cmp, Kind, SeqNo};
use basalt_tree::{EntryCursor, PageTree, SortedEntries, TreeOptions};
use std::sync::Arc;

/// The entries of a tree, with references that lead to records of their own.
struct ResolvedEntries<'r, 'a> {
    repair: &'r mut Repair<'a>,
    family: u32,
    cursor: EntryCursor,
    key: Vec<u8>,
    kind: Kind,
    value: Bytes,
    entries: u64,
}

impl SortedEntries for ResolvedEntries<'_, '_> {
    fn advance(&mut self) -> Result<bool> {
        while self.cursor.next_entry()? {
            self.key.clear();
            (self.kind, self.value) = self.cursor.take(&mut self.key)?;
            if self.kind == Kind::Delete {
                // Nothing is below it in the new tree.
                continue;
            }
            if self.kind == Kind::BlobRef {
                let to = Reference::decode(&self.value)?;
                match self.repair.lead_in_pages(self.family, &self.key, &to)? {
                    Some((kind, value)) => (self.kind, self.value) = (kind, Bytes::from(value)),
                    None => {
                        (self.repair).lose_value(self.family, to.number, &self.key);
                        continue;
                    }
                }
            }
            self.entries += 1;
            return Ok(true);
        }
        Ok(false)
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn value(&self) -> &[u8] {
        &self.value
    }
}

impl Repair<'_> {
    /// Writes the trees that may have references to new ones.
    pub(super) fn rewrite_trees_with_values(&mut self) -> Result<()> {
        let families: Vec<u32> = self.trees.keys().copied().collect();
        for family in families {
            if self.may_have_values(family) {
                self.rewrite_tree(family)?;
            }
        }
        Ok(())
    }

    fn rewrite_tree(&mut self, family: u32) -> Result<()> {
        let (env, options) = (self.env, TreeOptions::default());
        let name = self.learned.catalog.families[&family].name.clone();
        let old = self.trees.remove(&family).expect("it was opened");
        let number = pages::unused_tree(env, self.dir, family)?;
        let all = self.dir.join(PAGES_DIR);
        let unfinished = all.join(pages::unfinished_name(family, number));
        PageTree::destroy(env, &unfinished)?;
        let tree = PageTree::open(env, &unfinished, &options)?;
        let mut cursor = old.pages.tree().cursor(&old.snapshot, false);
        cursor.seek(b"")?;
        let mut entries = ResolvedEntries {
            repair: self,
            family,
            cursor,
            key: Vec::new(),
            kind: Kind::Delete,
            value: Bytes::new(),
            entries: 0,
        };
        tree.write_unconfirmed(&mut entries, pages::note_of(old.flushed, &name))?;
        let entries = entries.entries;
        tree.confirm();
        tree.close()?;
        let new_dir = tree_dir(self.dir, family, number);
        env.fs().rename(&unfinished, &new_dir)?;
        env.fs().sync_metadata(&all)?;
        let tree = PageTree::open(env, &new_dir, &options.create_if_missing(false))?;
        let catalog = &mut self.learned.catalog;
        let known = catalog.families.get_mut(&family).expect("it has a tree");
        let replaced = std::mem::replace(&mut known.tree, number);
        self.replaced_trees.push(tree_name(family, replaced));
        self.tree_entries.insert(family, entries);
        old.pages.leave(false)?;
        let pages = FamilyPages::new(&self.tables, &name, new_dir, tree);
        (self.trees).insert(family, PageView::of(&pages, old.flushed));
        Ok(())
    }

    /// Writes the memtable of a family in pages to its tree. All values stay in the pages. Every
    /// reference of the tree leads to a record that was read.
    pub(super) fn write_memtable_to_pages(
        &mut self,
        entry: &FamilyEntry,
        mem: &Arc<MemTable>,
        seq: SeqNo,
    ) -> Result<()> {
        let tree = &self.trees[&entry.id];
        let read: ReadReference<'_> = &|name, to| self.read_claimed(name, to);
        let values = PageValues::none(&self.tables);
        write_pages(self.env, tree, entry, mem, seq, read, values)?;
        let view = PageView::of(&tree.pages, seq);
        self.trees.insert(entry.id, view);
        Ok(())
    }

    fn read_claimed(&self, name: &Name<'_>, to: &Reference) -> Result<(Kind, Bytes)> {
        let name = to.record(name);
        match self.claimed_file(to.number, &name, &Cmp::Bytewise) {
            Some(file) => Ok((to.kind(), file.reader()?.get(&name, false)?)),
            None => Err(Error::new(
                ErrorKind::Corruption,
                format!("blob file {} was not resolved", to.number),
            )),
        }
    }
}
