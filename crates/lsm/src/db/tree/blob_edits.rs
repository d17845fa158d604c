//! The effects of an edit of the tree on blob files: marks for records that lost their reference,
//! names for files that garbage collection rewrote, and removal of files without a live record. All
//! effects are computed under the manifest's lock, in the edit that causes them.
//!
//! Jobs run at the same time. A job that began before a garbage collection ended has looked up
//! references in files that are gone when the job ends. While such a job runs, [`MovedRecords`]
//! remembers where the records of those files are now. For as long, a name is kept even if no table
//! refers to it: the job may be about to write a table that does.

use super::Tree;
use crate::db::blob_state::{BlobStateUpdate, MovedRecords};
use crate::version::catalog::{Catalog, CatalogBlob, CatalogTable};
use crate::version::edit::Edit;
use basalt_blob::garbage::{Dead, Garbage};
use basalt_blob::lineage::ReplacedFiles;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::key::Cmp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The effects of an edit on blob files that the edit itself does not hold.
#[derive(Default)]
pub(crate) struct BlobChange {
    /// Records that lose their references.
    pub dead: Vec<Dead>,
    /// The result of a garbage collection, if the edit installs one.
    pub gc: Option<GcChange>,
}

/// A garbage collection that is about to be installed.
pub(crate) struct GcChange {
    /// Sources and targets.
    pub done: ReplacedFiles,
    /// The new places of the records.
    pub moved: MovedRecords,
    /// The records that were marked in the sources when the garbage collection began.
    pub marked: BTreeMap<u64, Arc<Garbage>>,
    /// The orders of the families as it knew them.
    pub orders: BTreeMap<u32, Cmp>,
}

impl Tree {
    /// Adds to an edit the changes of blob files that it causes. The caller holds the manifest's
    /// lock.
    pub(crate) fn add_blob_edits(
        &self,
        edit: &mut Edit,
        change: BlobChange,
    ) -> Result<BlobStateUpdate> {
        let mut update = BlobStateUpdate {
            references: BTreeMap::new(),
            moved: None,
            unnamed: Vec::new(),
        };
        let (catalog, blobs) = {
            let state = self.state.lock();
            (state.catalog.clone(), state.blobs.snapshot())
        };
        let catalog = &*catalog;
        let dropped: BTreeSet<u32> = edit.drop_families.iter().copied().collect();
        // Blobs of a family that comes with the edit are in none of its files.
        let gone = |id: &u32| dropped.contains(id) || !catalog.families.contains_key(id);
        count_references(catalog, edit, &mut update.references);
        let touched = !update.references.is_empty()
            || !change.dead.is_empty()
            || change.gc.is_some()
            || !edit.add_blobs.is_empty();
        if !touched && (edit.drop_families.is_empty() || catalog.blobs.is_empty()) {
            return Ok(update);
        }
        edit.add_blobs.retain(|b| {
            let dead = b.meta.families.keys().all(gone);
            if dead {
                let mut paths = self.ctx.tables.blob_paths(b.number, &b.meta);
                if b.meta.index.is_some() {
                    // The manifest names the log until this edit is durable.
                    paths.remove(0);
                }
                update.unnamed.extend(paths);
            }
            !dead
        });
        let mut marks = Marks::default();
        if let Some(c) = change.gc {
            add_gc_edits(catalog, edit, &c, &gone, &mut marks)?;
            update.moved = Some((c.done.sources, c.moved));
        }
        let latest = update.moved.as_ref().map(|(_, m)| m);
        for dead in change.dead {
            if gone(&dead.family) {
                continue;
            }
            marks.add(catalog, edit, blobs.now_at(dead, latest))?;
        }
        for (number, marks) in marks.0 {
            edit.mark_blobs.push((number, marks.encode()));
        }
        // A file without a live record is removed at once. A file may hold records of a dropped
        // family, so every file is checked.
        let mut after = Catalog {
            blobs: catalog.blobs.clone(),
            lineage: catalog.lineage.clone(),
            ..Catalog::default()
        };
        after.apply_blobs(edit)?;
        let mut concerned: BTreeSet<u64> = edit.mark_blobs.iter().map(|(n, _)| *n).collect();
        if !edit.drop_families.is_empty() {
            concerned = after.blobs.keys().copied().collect();
        }
        for number in concerned {
            let alive = |b: &CatalogBlob| b.alive(&|id| !gone(&id)).records > 0;
            if after.blobs.get(&number).is_some_and(|b| !alive(b))
                && !blobs.collecting.contains(&number)
            {
                edit.remove_blobs.push(number);
            }
        }
        // References in pages are in no count. A page may have a name as long as a record of its
        // family is live in a target.
        let may_be_in_pages = |name: u64| {
            let is_in_pages =
                |id: &u32| catalog.families.get(id).is_some_and(|f| f.pages.is_some());
            let targets = after.lineage.targets(name).into_iter().flatten();
            let mut targets = targets.filter(|(id, _)| is_in_pages(id) && !gone(id));
            targets.any(|(id, targets)| {
                let mut files = targets.iter().filter_map(|(_, to)| after.blobs.get(to));
                files.any(|file| file.alive(&|of| of == *id).records > 0)
            })
        };
        for name in after.lineage.names() {
            let tables = blobs.references.get(&name).copied().unwrap_or(0) as i64;
            let change = update.references.get(&name).copied().unwrap_or(0);
            let from = blobs.named.get(&name).copied().unwrap_or(0);
            let new = update
                .moved
                .as_ref()
                .is_some_and(|(s, _)| s.contains(&name));
            if tables + change == 0 && from <= blobs.oldest_job && !new && !may_be_in_pages(name) {
                edit.forget_names.push(name);
            }
        }
        Ok(update)
    }
}

/// Marks by file.
#[derive(Default)]
struct Marks(BTreeMap<u64, Garbage>);

impl Marks {
    fn add(&mut self, catalog: &Catalog, edit: &Edit, dead: Dead) -> Result<()> {
        let added = || edit.add_blobs.iter().find(|b| b.number == dead.file);
        let known = catalog
            .blobs
            .get(&dead.file)
            .map(|b| (&b.meta, Some(&b.garbage)));
        let Some((meta, before)) = known.or_else(|| added().map(|b| (&b.meta, None))) else {
            return Err(lost(&dead, "the blob file does not exist"));
        };
        if u64::from(dead.ordinal) >= meta.records || !meta.families.contains_key(&dead.family) {
            return Err(lost(&dead, "the blob file has fewer records"));
        }
        let marks = (self.0.entry(dead.file)).or_insert_with(|| Garbage::none(meta.records as u32));
        let again = before.is_some_and(|g| g.has(dead.ordinal))
            || !marks.mark(dead.ordinal, dead.family, dead.bytes, dead.hash);
        match again {
            true => Err(lost(&dead, "the record is already marked as garbage")),
            false => Ok(()),
        }
    }
}

fn lost(dead: &Dead, what: &str) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!(
            "the reference to record {} of blob file {}, family {}, cannot be dropped: {what}; run `basalt check`",
            dead.ordinal, dead.file, dead.family
        ),
    )
}

/// Adds the effects of a garbage collection to its edit. `gone` returns whether a family was
/// dropped.
fn add_gc_edits(
    catalog: &Catalog,
    edit: &mut Edit,
    c: &GcChange,
    gone: &dyn Fn(&u32) -> bool,
    marks: &mut Marks,
) -> Result<()> {
    let mut lineage = (*catalog.lineage).clone();
    let order = |family: u32| c.orders.get(&family).cloned().unwrap_or_default();
    for id in lineage.add_gc(&c.done, &order) {
        let group = lineage.groups().get(&id).expect("it was just set");
        edit.lineage.push((id, (**group).clone()));
    }
    edit.remove_blobs.extend(&c.done.sources);
    // A record that lost its reference while the garbage collection ran was marked at its old
    // place.
    for source in &c.done.sources {
        // Another install takes its copy of `collecting` when it begins. If this garbage collection
        // began after that, the install may have removed a source without a live record.
        let now = &catalog.blobs.get(source).ok_or_else(|| {
            let what = format!(
                "blob file {source} was removed before its garbage collection was installed"
            );
            Error::new(ErrorKind::Cancelled, what)
        })?;
        for run in now.garbage.runs() {
            for ordinal in run.filter(|o| !c.marked[source].has(*o)) {
                let Some(to) = c.moved.place(*source, ordinal) else {
                    // The record's family was already dropped when the garbage collection began.
                    continue;
                };
                if gone(&to.family) {
                    // The family was dropped while the garbage collection ran. A target that held
                    // only records of dropped families has left the edit, so there is nothing to
                    // mark.
                    continue;
                }
                let dead = Dead {
                    file: to.file,
                    ordinal: to.ordinal,
                    family: to.family,
                    bytes: to.bytes,
                    hash: to.hash,
                };
                marks.add(catalog, edit, dead)?;
            }
        }
    }
    Ok(())
}

/// Adds to `out`, for each number, by how many an edit changes the count of tables that refer to
/// it.
fn count_references(catalog: &Catalog, edit: &Edit, out: &mut BTreeMap<u64, i64>) {
    let mut count = |meta: &basalt_table::TableMeta, by: i64| {
        for (number, _) in meta.references.iter() {
            let change = out.entry(*number).or_default();
            *change += by;
            if *change == 0 {
                out.remove(number);
            }
        }
    };
    for t in &edit.add_tables {
        count(&t.meta, 1);
    }
    for (family, _, number) in &edit.remove_tables {
        let family = catalog.families.get(family);
        if let Some(CatalogTable { meta, .. }) = family.and_then(|f| f.tables.get(number)) {
            count(meta, -1);
        }
    }
    for f in edit
        .drop_families
        .iter()
        .filter_map(|id| catalog.families.get(id))
    {
        f.tables.values().for_each(|t| count(&t.meta, -1));
    }
}
