//! Install: the one way in which the tree of a store changes.

use super::blob_edits::BlobChange;
use super::{ManifestSlot, Tree, TreeState};
use crate::db::view::View;
use crate::listener::{BackgroundErrorReason, Event};
use crate::version::catalog::{Catalog, CatalogTable};
use crate::version::edit::Edit;
use crate::version::manifest::{Manifest, manifest_path};
use crate::version::{BlobFile, FamilyVersion, TableFile, Version};
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of edits, beyond the bytes of the state that the manifest began with, at which a fresh
/// manifest replaces it.
const MANIFEST_REWRITE_BYTES: u64 = 4 << 20;

/// The catalog and the tree after an edit, see [`Tree::install`].
struct NextTree {
    catalog: Arc<Catalog>,
    version: Version,
    /// Tables and blob files that it no longer names.
    obsolete: Vec<Arc<TableFile>>,
    obsolete_blobs: Vec<Arc<BlobFile>>,
}

impl Tree {
    /// Makes an edit durable and installs its changes. `files` are new files that the edit names.
    /// If the edit fails, they are kept until a fresh manifest proves that no edit names them.
    /// `change` adjusts the view in the same step, after the tables.
    pub fn install(
        &self,
        edit: Edit,
        files: Vec<PathBuf>,
        change: impl FnOnce(&mut TreeState, &mut View),
    ) -> Result<()> {
        self.install_with(edit, files, BlobChange::default(), change)
    }

    /// Installs an edit like [`Tree::install`], together with its effects on blob files. Returns
    /// `Corruption`, and changes nothing, if the effects contradict the content of the blob files.
    pub fn install_with(
        &self,
        mut edit: Edit,
        files: Vec<PathBuf>,
        blobs: BlobChange,
        change: impl FnOnce(&mut TreeState, &mut View),
    ) -> Result<()> {
        let mut slot = self.manifest.lock();
        if self.ctx.has_left() {
            // The directory may belong to another store by now.
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        self.drop_removed_families(&mut edit, &files);
        self.drop_ended(&mut edit);
        let by_gc = blobs.gc.is_some();
        let update = match self.add_blob_edits(&mut edit, blobs) {
            Ok(update) => update,
            Err(e) => {
                self.ctx.remove_files(&files);
                return Err(e);
            }
        };
        self.ctx.remove_files(&update.unnamed);
        let added = match update.is_gc() {
            true => 0,
            false => edit.add_blobs.iter().map(|b| b.meta.size).sum(),
        };
        let written = self.fresh_manifest_if_due(&mut slot).and_then(|()| {
            // After the fresh manifest, which takes a number itself.
            edit.next_file = Some(self.next_file.load(SeqCst));
            edit.last_seq = Some(self.visible.load(SeqCst));
            edit.wall_ms = Some(self.ctx.env.clock().wall_ms());
            edit.date_blobs(self.ctx.env.clock().wall_ms());
            edit.features = self.catalog().features_of(&edit);
            // The tree is computed before the edit is durable. An edit that breaks a rule stops
            // this process, and must not stop the next one, too.
            let tree = self.next_tree(&edit);
            slot.manifest.append(&edit.encode())?;
            self.vouch_for(&mut slot, &edit)?;
            Ok(tree)
        });
        let tree = match written {
            Ok(tree) => tree,
            Err(e) => {
                slot.in_doubt.extend(files);
                let e = e.context("recording a change of the tree");
                // The edit may or may not be on the device. A write acknowledged now could depend
                // on that: a write into a log that the edit ends, or into a family that the edit
                // drops. So writes halt until a fresh manifest has decided it.
                self.health.halt_unless_halted(e.clone());
                self.background.retry_later();
                self.ctx.notify(|| Event::BackgroundError {
                    during: BackgroundErrorReason::Manifest,
                    error: e.clone(),
                });
                return Err(e);
            }
        };
        self.pressure.estimate_hidden(&tree.catalog, &tree.version);
        let mut state = self.state.lock();
        let former = std::mem::replace(&mut state.catalog, tree.catalog);
        self.ctx.counters.blob_bytes_added.add(added);
        let lineage = state.catalog.lineage.clone();
        (state.blobs).apply(&lineage, &self.ctx.counters, &edit, update);
        tree.obsolete.iter().for_each(|t| t.mark_obsolete());
        tree.obsolete_blobs.iter().for_each(|b| b.mark_obsolete());
        let now = self.view();
        let mut next = View {
            active: now.active.clone(),
            sealed: now.sealed.clone(),
            version: Arc::new(tree.version),
            pages: now.pages.clone(),
            families: now.families.clone(),
            backlog: now.backlog,
            ingested: now.ingested,
        };
        if !edit.drop_families.is_empty() {
            let families = Arc::make_mut(&mut next.families);
            families.retain(|id, _| !edit.drop_families.contains(id));
            for id in &edit.drop_families {
                if next.pages.contains_key(id) {
                    let pages = Arc::make_mut(&mut next.pages);
                    let dropped = pages.remove(id).expect("it is there");
                    self.note_dropped_pages(&dropped.pages);
                }
            }
        }
        change(&mut state, &mut next);
        self.set_view(&mut state, next);
        drop(state);
        // Objects that only the former tree held are freed without the `state` lock: a commit group
        // waits for that lock.
        drop((former, now));
        self.notify_blob_events(&edit, by_gc);
        Ok(())
    }

    /// Lets `CURRENT` vouch for an edit that names a log whose number was chosen before this
    /// manifest began. If the edit were lost, the log would look like one that an earlier manifest
    /// has removed ([`crate::db::lost_edits`]).
    ///
    /// `CURRENT` also vouches for flush flags. A passive store has no log that would show that they
    /// are lost, and its owner trims its log up to them.
    fn vouch_for(&self, slot: &mut ManifestSlot, edit: &Edit) -> Result<()> {
        let first_new = slot.first_new;
        let has_old_log = edit.add_logs.iter().any(|(n, _)| *n < first_new);
        if !has_old_log && edit.flush_flags.is_empty() {
            return Ok(());
        }
        (slot.manifest.point_current(&self.ctx.env)).inspect_err(|_| slot.manifest.doubt())
    }

    /// A log may have been removed, with its memtables in tables, while its end was being synced.
    fn drop_ended(&self, edit: &mut Edit) {
        let state = self.state.lock();
        edit.end_logs
            .retain(|(number, _)| state.catalog.logs.contains_key(number));
    }

    /// A family may have been dropped while its tables were being built: they leave the edit again.
    fn drop_removed_families(&self, edit: &mut Edit, files: &[PathBuf]) {
        let state = self.state.lock();
        let gone = |id: &u32| {
            !state.catalog.families.contains_key(id)
                && !edit.add_families.iter().any(|f| f.0 == *id)
        };
        let dead: Vec<u64> = edit
            .add_tables
            .iter()
            .filter(|t| gone(&t.family))
            .map(|t| t.number)
            .collect();
        edit.remove_tables
            .retain(|t| state.catalog.families.contains_key(&t.0));
        edit.add_tables.retain(|t| !dead.contains(&t.number));
        edit.pages.retain(|(id, _)| !gone(id));
        for (flag, ids) in &mut edit.flush_flags {
            let present = |id: &u32| Some(state.catalog.families.get(id)?.flush_flag?.tsn);
            // A flag that is not ahead of the family's own says nothing new.
            ids.retain(|id| !gone(id) && present(id).is_none_or(|tsn| tsn < flag.tsn));
        }
        edit.flush_flags.retain(|(_, ids)| !ids.is_empty());
        drop(state);
        for number in dead {
            // A table that was only to move is not new: it goes when its last reader lets go.
            let path = self.ctx.tables.path(number);
            if files.contains(&path) {
                self.ctx.tables.remove(&path);
            }
        }
    }

    /// Returns the checked catalog and tree after an edit. The caller holds `manifest`, so neither
    /// changes meanwhile.
    fn next_tree(&self, edit: &Edit) -> NextTree {
        // Only the `Arc` under `state`, which each commit group takes.
        let former = self.catalog();
        let mut catalog = Catalog::clone(&former);
        catalog
            .apply(edit)
            .expect("an edit of our own fits the catalog");
        let now = self.view();
        let mut version = (*now.version).clone();
        let mut obsolete = Vec::new();
        for id in &edit.drop_families {
            if let Some(f) = version.families.remove(id) {
                obsolete.extend(f.levels.iter().flatten().cloned());
            }
        }
        // A table that moves down keeps its object, and with it its open reader.
        let mut moved = BTreeMap::new();
        let added: BTreeSet<u64> = edit.add_tables.iter().map(|a| a.number).collect();
        for (family, level, number) in &edit.remove_tables {
            let f = Arc::make_mut(
                version
                    .families
                    .get_mut(family)
                    .expect("checked by the catalog"),
            );
            let CatalogTable { meta, .. } = &former.families[family].tables[number];
            let t = f
                .remove(*level as usize, *number, meta)
                .expect("checked by the catalog");
            if added.contains(number) {
                moved.insert(*number, t);
            } else {
                obsolete.push(t);
            }
        }
        for a in &edit.add_tables {
            let f = version.families.entry(a.family).or_insert_with(|| {
                Arc::new(FamilyVersion::empty(
                    now.families[&a.family].options.comparator.clone(),
                ))
            });
            let f = Arc::make_mut(f);
            let t = moved.remove(&a.number).unwrap_or_else(|| {
                let CatalogTable { meta, .. } = &catalog.families[&a.family].tables[&a.number];
                self.ctx.tables.table(a.number, meta.clone(), f.cmp.clone())
            });
            f.insert(a.level as usize, t);
        }
        for a in &edit.add_tables {
            let (f, CatalogTable { meta, .. }) = (
                &version.families[&a.family],
                &catalog.families[&a.family].tables[&a.number],
            );
            f.check_entered(a.level as usize, a.number, meta)
                .expect("a new version keeps the order of its levels");
        }
        // Tables that the edit does not touch kept their order, so only debug builds check them.
        #[cfg(debug_assertions)]
        for f in version.families.values() {
            f.check()
                .expect("a new version keeps the order of its levels");
        }
        let mut obsolete_blobs = Vec::new();
        let same = edit.add_blobs.is_empty()
            && edit.remove_blobs.is_empty()
            && Arc::ptr_eq(&catalog.lineage, &version.blobs.lineage);
        if !same {
            let blobs = Arc::make_mut(&mut version.blobs);
            for b in &edit.add_blobs {
                let file = self.ctx.tables.blob(b.number, b.meta.clone());
                blobs.files.insert(b.number, file);
            }
            for number in &edit.remove_blobs {
                obsolete_blobs.extend(blobs.files.remove(number));
            }
            blobs.lineage = catalog.lineage.clone();
        }
        NextTree {
            catalog: Arc::new(catalog),
            version,
            obsolete,
            obsolete_blobs,
        }
    }

    /// Begins a fresh manifest when the present one is in doubt or has grown out of proportion.
    fn fresh_manifest_if_due(&self, slot: &mut ManifestSlot) -> Result<()> {
        let outgrown = slot.manifest.bytes() > MANIFEST_REWRITE_BYTES + 2 * slot.manifest.begun();
        if !slot.manifest.in_doubt() && !outgrown {
            return Ok(());
        }
        let mut state_edit = self.catalog().to_edit();
        let number = self.new_file_number();
        state_edit.next_file = Some(self.next_file.load(SeqCst));
        slot.retired.push(slot.manifest.number());
        match Manifest::create(
            &self.ctx.env,
            &self.ctx.dir,
            self.ctx.store_id,
            number,
            &state_edit.encode(),
        ) {
            Ok(m) => {
                slot.manifest = m;
                slot.first_new = state_edit.next_file.expect("set above");
                for old in slot.retired.drain(..) {
                    self.ctx.tables.remove(&manifest_path(&self.ctx.dir, old));
                }
                for path in slot.in_doubt.drain(..) {
                    self.ctx.tables.remove(&path);
                }
                Ok(())
            }
            Err(e) => {
                slot.retired.push(number);
                // `CURRENT` may name the new manifest after a crash, so an edit of the old manifest
                // may have no effect.
                slot.manifest.doubt();
                Err(e)
            }
        }
    }
}
