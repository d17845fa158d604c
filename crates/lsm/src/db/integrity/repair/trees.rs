//! Families in pages of a damaged store: what can be read of a damaged tree goes into a new one.
//!
//! A tree says itself up to which sequence number it has the entries of its family. So logs are
//! replayed behind that number, even if the edit is lost that says the same.

use super::Repair;
use crate::db::integrity::manifest_salvage::recovered_name;
use crate::db::integrity::report::{KeyRange, Loss};
use crate::db::pages::{self, FamilyPages, PAGES_DIR, PageView, tree_dir, tree_name};
use crate::db::store_files::LOST_DIR;
use basalt_fs::{ErrorKind, Result};
use basalt_kv::key::SeqNo;
use basalt_tree::{LostPages, PageTree, TreeOptions};
use std::path::{Path, PathBuf};

/// The tree of a family in pages, as the catalog has it.
struct KnownTree {
    family: u32,
    name: String,
    tree: u32,
    recorded: SeqNo,
}

impl KnownTree {
    /// Returns the path of the tree in the directory of the store.
    fn path(&self) -> PathBuf {
        Path::new(PAGES_DIR).join(tree_name(self.family, self.tree))
    }

    fn loss(&self, lost: &LostPages) -> Loss {
        let file = self.path().join(&lost.file);
        Loss {
            family: Some(self.name.clone()),
            keys: Some(KeyRange {
                from: lost.from.clone(),
                to: lost.to.clone(),
            }),
            older_may_reappear: lost.older_may_reappear,
            ..Loss::of_file(&file.to_string_lossy(), lost.bytes.clone(), &lost.reason)
        }
    }
}

impl Repair<'_> {
    /// Opens the trees of all families in pages. What can be read of a damaged one goes into a new
    /// tree, which takes its place.
    pub(super) fn salvage_trees(&mut self) -> Result<()> {
        if !self.learned.sure {
            self.add_unnamed_trees()?;
        }
        let of_pages = self.learned.catalog.families.iter();
        let known: Vec<KnownTree> = of_pages
            .filter_map(|(id, f)| {
                Some(KnownTree {
                    family: *id,
                    name: f.name.clone(),
                    tree: f.tree,
                    recorded: f.pages?,
                })
            })
            .collect();
        known.iter().try_for_each(|tree| self.salvage_tree(tree))
    }

    /// Adds the trees that no readable edit names, because a lost edit may have made their
    /// families. Of several trees of a family, a repair has written the one with the highest
    /// number; all others are set aside.
    fn add_unnamed_trees(&mut self) -> Result<()> {
        let mut trees = pages::unnamed(self.env, self.dir, &self.learned.catalog)?;
        trees.sort_unstable_by(|a, b| b.cmp(a));
        for (family, tree) in trees {
            if self.learned.dropped_families.contains(&family) {
                continue;
            }
            let name = tree_name(family, tree);
            let dir = tree_dir(self.dir, family, tree);
            let options = TreeOptions::default();
            let mut own_name = None;
            let is_written = match PageTree::open_read_only(self.env, &dir, &options, &|_| true) {
                Ok(tree) => {
                    let note = tree.note();
                    tree.abandon()?;
                    own_name = pages::family_name_of(&note).map(str::to_string);
                    !note.is_empty()
                }
                Err(e) if e.is_damage() => true,
                Err(e) => return Err(e),
            };
            let known = self.learned.catalog.families.get(&family);
            if known.is_some_and(|f| f.pages.is_some() || !f.tables.is_empty()) {
                if is_written {
                    let file = format!("{PAGES_DIR}/{name}");
                    let reason = "an earlier repair has already written the readable part of this tree to another tree; only the report of that repair lists what was lost";
                    let loss = Loss {
                        family: known.map(|f| f.name.clone()),
                        keys: Some(KeyRange::default()),
                        older_may_reappear: true,
                        ..Loss::of_file(&file, 0..0, reason)
                    };
                    self.lose(loss);
                    self.aside_trees.push(name);
                }
                continue;
            }
            // The family was being made, and nothing was written to it.
            if !is_written && family != 0 {
                continue;
            }
            self.other_families |= family != 0;
            let f = self.learned.family(family, self.options);
            (f.pages, f.tree) = (Some(0), tree);
            if let Some(name) = own_name.filter(|_| f.name == recovered_name(family)) {
                let comparator = f.comparator.clone();
                (self.learned).name_family(family, &name, &comparator, self.options);
            }
        }
        Ok(())
    }

    fn salvage_tree(&mut self, of: &KnownTree) -> Result<()> {
        let (env, options) = (self.env, TreeOptions::default());
        let dir = tree_dir(self.dir, of.family, of.tree);
        let upto = |note: &[u8]| pages::seq_of(note).is_some_and(|seq| seq <= of.recorded);
        let all = |_: &[u8]| true;
        // If edits are lost, so may be the one that says that the last write to the tree counts.
        let is_upto = self.learned.sure && {
            let opened = PageTree::open_read_only(env, &dir, &options, &upto);
            match opened.and_then(|tree| tree.abandon()) {
                Err(e) if e.is_damage() => false,
                opened => opened.map(|()| true)?,
            }
        };
        let keep: &dyn Fn(&[u8]) -> bool = match is_upto {
            true => &upto,
            false => &all,
        };
        // The check has read the pages that the manifest knows.
        let is_sound = is_upto && !self.bad_trees.contains(&of.family) || {
            let found = PageTree::check(env, &dir, &options, keep)?;
            self.tree_entries.insert(of.family, found.counts.entries);
            found.damage.is_empty()
        };
        let (tree, note) = match is_sound {
            true => {
                let options = options.create_if_missing(false);
                let tree = PageTree::open_keeping(env, &dir, &options, keep)?;
                self.report.trees_kept += 1;
                let note = pages::seq_of(&tree.note()).unwrap_or(0);
                (FamilyPages::new(&self.tables, &of.name, dir, tree), note)
            }
            false => self.write_readable(of, &dir, keep)?,
        };
        if note < of.recorded {
            self.lose(Loss {
                family: Some(of.name.clone()),
                seqs: Some((note + 1, Some(of.recorded))),
                older_may_reappear: true,
                ..Loss::of_file(
                    &of.path().join("logs").to_string_lossy(),
                    0..0,
                    "the system log of the tree has lost its end; these operations of the family are lost",
                )
            });
        }
        let catalog = &mut self.learned.catalog;
        let family = catalog.families.get_mut(&of.family).expect("it is known");
        family.pages = Some(note);
        catalog.last_seq = catalog.last_seq.max(note);
        self.trees.insert(of.family, PageView::of(&tree, note));
        Ok(())
    }

    /// Writes what can be read of a damaged tree to a new one. Returns it, and the sequence number
    /// up to which it has entries.
    fn write_readable(
        &mut self,
        of: &KnownTree,
        dir: &Path,
        keep: &dyn Fn(&[u8]) -> bool,
    ) -> Result<(std::sync::Arc<FamilyPages>, SeqNo)> {
        let (env, options) = (self.env, TreeOptions::default());
        let salvage = PageTree::salvage(env, dir, &options, keep)?;
        for lost in salvage.lost() {
            let file = of.path().join(&lost.file);
            match lost.is_index && !lost.older_may_reappear {
                false => self.lose(of.loss(lost)),
                // It has no entries.
                true => self.report.notes.push(format!(
                    "{} at {}: an index page is damaged ({}), and the pages below it were found without it",
                    file.display(),
                    lost.bytes.start,
                    lost.reason
                )),
            }
        }
        // Without a note, the manifest's number is the only one there is.
        let note = salvage.note().map(|note| pages::seq_of(note).unwrap_or(0));
        let note = note.unwrap_or(of.recorded);
        let number = pages::unused_tree(env, self.dir, of.family)?;
        let new_dir = tree_dir(self.dir, of.family, number);
        let all = self.dir.join(PAGES_DIR);
        env.fs().create_dir(&all)?;
        // Under its own name only when it is whole: another repair may take it for the family's.
        let unfinished = all.join(pages::unfinished_name(of.family, number));
        PageTree::destroy(env, &unfinished)?;
        let tree = PageTree::open(env, &unfinished, &options)?;
        let is_exact = salvage.note().is_some();
        let entries = tree.write_salvaged(salvage, pages::note_of(note, &of.name))?;
        tree.close()?;
        env.fs().rename(&unfinished, &new_dir)?;
        env.fs().sync_metadata(&all)?;
        let tree = PageTree::open(env, &new_dir, &options.create_if_missing(false))?;
        let known = self.options.family(&of.name);
        if !is_exact && known.merge_operator.is_some() {
            self.report.notes.push(format!(
                "family {:?} has merge operands: where a log and the pages that it was flushed to are both there, an operand may count twice",
                of.name
            ));
        }
        self.report.trees_written += 1;
        self.tree_entries.insert(of.family, entries);
        self.report.notes.push(format!(
            "{}: {entries} entries are readable, and are now in {}",
            of.path().display(),
            tree_name(of.family, number)
        ));
        let family = self.learned.catalog.families.get_mut(&of.family);
        family.expect("it is known").tree = number;
        self.aside_trees.push(tree_name(of.family, of.tree));
        let pages = FamilyPages::new(&self.tables, &of.name, new_dir, tree);
        Ok((pages, note))
    }

    /// Gives every file of the damaged trees a second name in `lost`.
    pub(super) fn link_trees_aside(&mut self) -> Result<()> {
        let fs = self.env.fs();
        for name in &self.aside_trees {
            let from = self.dir.join(PAGES_DIR).join(name);
            if !fs.exists(&from)? {
                continue;
            }
            let lost = self.dir.join(LOST_DIR);
            fs.create_dir(&lost)?;
            let mut target = format!("{PAGES_DIR}-{name}");
            let mut n = 1;
            while fs.exists(&lost.join(&target))? {
                n += 1;
                target = format!("{PAGES_DIR}-{name}~{n}");
            }
            match self.link_all(&from, &lost.join(&target)) {
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    fs.remove(&lost.join(&target))?;
                    self.moved_trees.push((from, lost.join(&target)));
                }
                linked => linked?,
            }
            fs.sync_metadata(&lost)?;
            self.report.set_aside.push(format!("{LOST_DIR}/{target}"));
        }
        Ok(())
    }

    /// Links all files of a directory, and of those in it.
    fn link_all(&self, from: &Path, to: &Path) -> Result<()> {
        let fs = self.env.fs();
        fs.create_dir(to)?;
        for entry in fs.list(from)? {
            let (from, to) = (from.join(&entry.name), to.join(&entry.name));
            let linked = match entry.is_dir {
                true => self.link_all(&from, &to),
                false => fs.link(&from, &to),
            };
            if let Err(e) = linked {
                if e.kind() == ErrorKind::Unsupported && entry.is_dir {
                    fs.remove(&to)?;
                }
                return Err(e);
            }
        }
        fs.sync_metadata(to)
    }

    /// Closes the trees, and moves or removes the damaged ones. The new manifest is durable
    /// already.
    pub(super) fn close_trees(&mut self) -> Result<()> {
        for (_, view) in std::mem::take(&mut self.trees) {
            view.pages.tree().confirm();
            // Without a system checkpoint, the next open reads the system log.
            if view.pages.leave(true).is_err() {
                view.pages.leave(false)?;
            }
        }
        for (from, to) in std::mem::take(&mut self.moved_trees) {
            self.env.fs().rename(&from, &to)?;
        }
        // If a damaged tree cannot be removed, the next open tries again: no edit names it.
        for name in self.aside_trees.iter().chain(&self.replaced_trees) {
            let _ = PageTree::destroy(self.env, self.dir.join(PAGES_DIR).join(name));
        }
        Ok(())
    }
}
