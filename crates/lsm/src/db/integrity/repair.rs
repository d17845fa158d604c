//! Repair of a closed store: verified data is kept, every loss is reported exactly, and no byte is
//! thrown away.
//!
//! The steps of a repair:
//! 1. `check` walks the store. If it finds no damage, nothing is changed.
//! 2. `manifest_salvage` reads the catalog, or adds up the edits that still verify, and says
//!    whether edits may be missing. All further steps are the same for a whole manifest, a damaged
//!    manifest, and no manifest.
//! 3. `logs`: of every log that the manifest calls live, or that a lost edit may have named, each
//!    batch that verifies goes into new level-0 tables. No file proves that another is there
//!    (decision 0026).
//! 4. `tables`: the readable blocks of damaged tables go into new ones at the same level, with the
//!    same sequence numbers. In the end every reference leads to a record of its own. If the levels
//!    are not certain, a family's tables become one sorted run, so that repair relies on no order
//!    between levels.
//!    `trees` does the same for families in pages: what can be read of a damaged tree goes into a
//!    new one, and logs are replayed into trees behind what they have. `page_values` writes trees
//!    with references anew.
//! 5. `blobs`: the readable records of damaged blob files go into new ones. This step follows
//!    references: a reference without a readable record becomes a tombstone. Garbage is computed
//!    anew.
//! 6. Damaged files durably get a second name in the directory `lost`. Then a fresh manifest
//!    becomes current, and then the first names are removed. A crash before the fresh manifest is
//!    current leaves the damaged store as it was, with unused files. A later crash leaves the
//!    repaired store.

mod blobs;
mod flags;
mod logs;
mod page_values;
mod tables;
mod trees;

use super::check;
use super::manifest_salvage::{self, SalvagedCatalog};
use super::report::{Loss, RepairReport};
use super::walk::{Progress, lock_store};
use crate::db::pages::PageView;
use crate::db::store_files::{LOST_DIR, StoreFile};
use crate::options::Options;
use crate::version::catalog::CatalogTable;
use crate::version::edit::AddTable;
use crate::version::manifest::{CURRENT, Manifest, manifest_path};
use crate::version::{FamilyVersion, TableStore};
use basalt_blob::inspect::indexed_logs;
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Reach, Result};
use blobs::Blobs;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One repair.
struct Repair<'a> {
    env: &'a Env,
    dir: &'a Path,
    options: &'a Options,
    /// Files of the directory before the repair.
    names: Vec<String>,
    learned: SalvagedCatalog,
    /// Tables of the catalog that the check found damaged.
    bad_tables: BTreeSet<u64>,
    /// Families whose trees of pages the check found damaged.
    bad_trees: BTreeSet<u32>,
    /// Entries of the pages of each family in pages, without those of logs.
    tree_entries: BTreeMap<u32, u64>,
    /// The trees of families in pages.
    trees: BTreeMap<u32, PageView>,
    /// Names of the directories of damaged trees.
    aside_trees: Vec<String>,
    /// Names of the directories of trees that this repair has written anew without a loss.
    replaced_trees: Vec<String>,
    /// Trees that are moved into `lost` at the end, because the filesystem has no links, and their
    /// new paths.
    moved_trees: Vec<(PathBuf, PathBuf)>,
    tables: Arc<TableStore>,
    next_number: u64,
    /// The blob files, as far as they have been read.
    blobs: Blobs,
    /// Logs that have an index, by id, and up to where each was synced when its index was begun.
    indexed: BTreeMap<u128, u64>,
    /// True if operations of a family other than `default` were met.
    other_families: bool,
    /// Tables put into `default` because nothing says where they belong.
    supposed: BTreeSet<u64>,
    /// Files to be moved into `lost`.
    aside: Vec<String>,
    /// Tables that this repair wrote from logs.
    replayed: BTreeSet<u64>,
    /// By damaged table, the new table that has its readable entries.
    replacement: BTreeMap<String, u64>,
    /// Files whose whole content is now in other files.
    replaced: Vec<String>,
    report: RepairReport,
    /// Progress of the check and of the salvage of tables.
    progress: RefCell<Progress<'a>>,
}

pub(crate) fn repair(
    env: &Env,
    dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport> {
    options.validate()?;
    let _lock = lock_store(env, dir)?;
    let fs = env.fs();
    let mut progress = Progress::new(progress);
    let mut walked = check::walk(env, dir, options, &mut progress)?;
    let mut report = RepairReport {
        engines: walked.learned.catalog.engines.iter().copied().collect(),
        ..RepairReport::default()
    };
    let refusal = walked
        .report
        .damage
        .iter()
        .find(|e| e.kind() == ErrorKind::Unsupported);
    if let Some(e) = refusal {
        return Err(e
            .clone()
            .context("a later version wrote this store; repair it with that version"));
    }
    if walked.report.damage.is_empty() {
        report.sound = true;
        let families = walked.learned.catalog.families.values();
        report.trees_kept = families.filter(|f| f.pages.is_some()).count() as u64;
        report.tables_kept = walked
            .learned
            .catalog
            .families
            .values()
            .map(|f| f.tables.len() as u64)
            .sum();
        report.blobs_kept = walked.learned.catalog.blobs.len() as u64;
        report.entries_kept = walked.report.entries;
        return Ok(report);
    }
    let used = walked.names.iter().map(String::as_str);
    let in_lost = match fs.list(&dir.join(LOST_DIR)) {
        Ok(entries) => entries,
        Err(e) if e.is_not_found() => Vec::new(),
        Err(e) => return Err(e),
    };
    // Numbers of files set aside are not given out again.
    let highest = used
        .chain(
            in_lost
                .iter()
                .map(|e| e.name.split('~').next().unwrap_or("")),
        )
        .filter_map(|n| StoreFile::parse(n)?.number())
        .max()
        .unwrap_or(0);
    let c = &walked.learned.catalog;
    let damaged: u64 = c
        .families
        .values()
        .flat_map(|f| &f.tables)
        .filter(|(n, _)| walked.bad_tables.contains(n))
        .map(|(_, table)| table.meta.size)
        .sum();
    progress.expect(damaged);
    let blobs = Blobs::new(&mut walked.learned, &walked.names, &walked.bad_blobs);
    let run = Repair {
        env,
        blobs,
        progress: RefCell::new(progress),
        dir,
        options,
        next_number: walked.learned.catalog.next_file.max(highest + 1),
        names: walked.names,
        learned: walked.learned,
        bad_tables: walked.bad_tables,
        bad_trees: walked.bad_trees,
        tree_entries: walked.tree_entries,
        trees: BTreeMap::new(),
        aside_trees: Vec::new(),
        replaced_trees: Vec::new(),
        moved_trees: Vec::new(),
        tables: TableStore::new(env, dir),
        indexed: indexed_logs(env, dir, 0, &BTreeSet::new())?,
        other_families: false,
        supposed: BTreeSet::new(),
        aside: Vec::new(),
        replayed: BTreeSet::new(),
        replacement: BTreeMap::new(),
        replaced: Vec::new(),
        report,
    };
    run.run()
}

impl Repair<'_> {
    fn run(mut self) -> Result<RepairReport> {
        self.check_passive()?;
        self.report.losses = std::mem::take(&mut self.learned.losses);
        for name in std::mem::take(&mut self.learned.damaged) {
            self.set_aside(&name, "it is damaged");
        }
        self.salvage_tables()?;
        // References in pages are resolved before logs are replayed over them.
        self.salvage_blobs()?;
        self.salvage_trees()?;
        self.rewrite_trees_with_values()?;
        self.replay_logs()?;
        self.place_unreferenced_tables()?;
        self.restore_flags()?;
        self.note_reappearing();
        self.finish_tables()?;
        self.finish_blobs();
        for (id, f) in &self.learned.catalog.families {
            if f.name == manifest_salvage::recovered_name(*id) {
                self.report.notes.push(format!(
                    "the name of family {id} is lost; its entries are in the family {:?}",
                    f.name
                ));
            }
        }
        self.check_levels()?;
        let aside = self.link_aside()?;
        self.link_trees_aside()?;
        self.env.fs().sync_metadata(self.dir)?;

        let number = self.new_number();
        let c = &mut self.learned.catalog;
        c.next_file = self.next_number;
        c.wall_ms = c.wall_ms.max(self.env.clock().wall_ms());
        c.note_references_in_pages();
        let state = self.learned.catalog.to_edit();
        let store = self.learned.catalog.store_id;
        Manifest::create(self.env, self.dir, store, number, &state.encode())?;

        // The repaired store is current; from here on only names are removed.
        let fs = self.env.fs();
        for (name, target) in &aside {
            let path = self.dir.join(name);
            if name == CURRENT {
                continue;
            }
            match target {
                Some(_) => fs.remove(&path)?,
                None => fs.rename(&path, &self.dir.join(LOST_DIR).join(name))?,
            }
        }
        let moved: BTreeSet<&String> = aside.iter().map(|(n, _)| n).collect();
        let manifests = self
            .names
            .iter()
            .filter(|n| matches!(StoreFile::parse(n), Some(StoreFile::Manifest(_))));
        for name in self.replaced.iter().chain(manifests) {
            if !moved.contains(name) && self.dir.join(name) != manifest_path(self.dir, number) {
                // A file that remains is an unused file, which the next open removes.
                let _ = fs.remove(&self.dir.join(name));
            }
        }
        self.close_trees()?;
        fs.sync_metadata(self.dir)?;

        let r = &mut self.report;
        r.lost = r.losses.iter().map(ToString::to_string).collect();
        r.entries_kept = self
            .learned
            .catalog
            .families
            .values()
            .flat_map(|f| f.tables.values())
            .map(|t| t.meta.entries)
            .chain(self.tree_entries.into_values())
            .sum();
        Ok(self.report)
    }

    fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn lose(&mut self, loss: Loss) {
        self.report.losses.push(loss);
    }

    /// Marks a file to be moved into `lost`.
    fn set_aside(&mut self, name: &str, why: &str) {
        if self.names.iter().any(|n| n == name) && !self.aside.iter().any(|n| n == name) {
            self.report
                .notes
                .push(format!("{name} is set aside: {why}"));
            self.aside.push(name.to_string());
        }
    }

    /// Adds a table that this repair wrote to the catalog.
    fn new_table(&mut self, t: AddTable) {
        self.report.tables_written += 1;
        let f = self.learned.family(t.family, self.options);
        f.tables
            .insert(t.number, CatalogTable::local(t.level, t.meta));
    }

    /// Gives every file to be set aside a second name in `lost`. If the filesystem has no links,
    /// the second name is `None`, and the file is renamed at the end.
    fn link_aside(&mut self) -> Result<Vec<(String, Option<String>)>> {
        let fs = self.env.fs();
        if self.aside.is_empty() {
            return Ok(Vec::new());
        }
        let lost = self.dir.join(LOST_DIR);
        fs.create_dir(&lost)?;
        let mut out = Vec::new();
        for name in std::mem::take(&mut self.aside) {
            let mut target = name.clone();
            let mut n = 1;
            while fs.exists(&lost.join(&target))? {
                n += 1;
                target = format!("{name}~{n}");
            }
            let linked = match fs.link(&self.dir.join(&name), &lost.join(&target)) {
                Ok(()) => Some(target.clone()),
                Err(e) if e.kind() == ErrorKind::Unsupported => None,
                Err(e) => return Err(e),
            };
            self.report.set_aside.push(format!("{LOST_DIR}/{target}"));
            out.push((name, linked));
        }
        fs.sync_metadata(&lost)?;
        Ok(out)
    }

    /// Checks that the catalog that is about to become current keeps the rules of a version. A
    /// broken rule is a bug of this repair.
    fn check_levels(&self) -> Result<()> {
        for f in self.learned.catalog.families.values() {
            let cmp = self.options.family(&f.name).comparator.clone();
            let mut version = FamilyVersion::empty(cmp.clone());
            for (&number, CatalogTable { level, meta, .. }) in &f.tables {
                let t = self.tables.table(number, meta.clone(), cmp.clone());
                version.push(*level as usize, t);
            }
            version.sort();
            let checked = match f.pages.is_some() && !f.tables.is_empty() {
                true => Err("it has tables and pages".to_string()),
                false => version.check(),
            };
            checked.map_err(|what| {
                Error::new(
                    ErrorKind::Corruption,
                    format!("family {:?} cannot be repaired: {what}", f.name),
                )
                .with_reach(Reach::Store)
            })?;
        }
        Ok(())
    }
}
