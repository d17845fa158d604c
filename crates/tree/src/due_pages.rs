//! Compactions of the leaves and index pages that are due. Those of different index pages run
//! concurrently (ArkDB, sections 4.1.3 and 4.1.4).

use crate::compaction::{Compaction, Rewrites, old_to_keep};
use crate::erasure::ErasuresBetween;
use crate::maintenance_lock::MaintenanceGuard;
use crate::mapping::{Pages, State};
use crate::page_id::PageId;
use crate::page_reads::LoadedPages;
use crate::path::Path;
use crate::storage::{Prepared, Storage, View};
use crate::usage::StreamKind;
use basalt_env::sync::MutexGuard;
use basalt_fs::{ErrorKind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A leaf or an index page that is due.
struct DuePage {
    /// The key of its pages.
    key: PageId,
    pages: Pages,
    /// A key in the range of the page.
    probe_key: Vec<u8>,
    /// The path to the leaf that has the key.
    path: Path,
    view: Arc<View>,
}

/// The path to an index page in the newest view. No other compaction changes an index page as long
/// as this lives.
struct CurrentPath<'a> {
    path: Path,
    view: Arc<View>,
    structure: MutexGuard<'a, ()>,
}

impl Storage {
    /// Compacts each leaf and each index page that is due ([`Pages::is_due`]), as long as `goes_on`
    /// returns true. Returns the number of transactions.
    ///
    /// Errors: those of reading and of [`Storage::commit`]; what was compacted stays so. Damage is
    /// returned when the others are done.
    pub fn compact(&self, goes_on: &dyn Fn() -> bool) -> Result<usize> {
        let due = self.mapping.due(self.options.max_deltas);
        let mut erasures = ErasuresBetween::new(self);
        self.compact_each(due.into_iter(), &mut || {
            let goes_on = goes_on();
            if goes_on {
                erasures.erase();
            }
            goes_on
        })
    }

    /// Compacts what is due as [`Storage::compact`] does, for a helper of the thread that runs
    /// [`Storage::compact`]. A store runs up to two helpers of a tree. Each begins with the last
    /// page, because the other thread begins with the first one. A helper leaves out the index
    /// pages that another compaction has claimed, and erases no extents.
    pub fn compact_from_end(&self, goes_on: &dyn Fn() -> bool) -> Result<usize> {
        let due = self.mapping.due(self.options.max_deltas);
        self.compact_each(due.into_iter().rev(), &mut || goes_on())
    }

    fn compact_each(
        &self,
        due: impl Iterator<Item = PageId>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<usize> {
        let (mut done, mut failed) = (0, None);
        let mut claimed = BTreeSet::new();
        for key in due {
            if !goes_on() {
                break;
            }
            if claimed.contains(&key) {
                continue;
            }
            let prepared = self.prepare_shared(key, &mut claimed);
            // Damage of one page must not stop the compaction of the others.
            match prepared.and_then(|prepared| self.commit_compaction(prepared)) {
                Ok(is_done) => done += usize::from(is_done),
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    failed = failed.or(Some(e));
                    done += usize::from(self.consolidate_behind_damage(key)?);
                }
                Err(e) => return Err(e),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Consolidates the newest delta pages of a leaf or an index page, back to the first damaged
    /// one: all of them if the damage is in a base page. Otherwise the chain would grow with each
    /// user checkpoint. Returns false if there is nothing to consolidate.
    ///
    /// Errors: those of reading, but for damage, and of [`Storage::commit`].
    fn consolidate_behind_damage(&self, key: PageId) -> Result<bool> {
        let _maintenance = self.maintenance.exclusive();
        let view = self.view();
        let State::Live(pages) = self.mapping.get(key, view.time) else {
            return Ok(false);
        };
        if !self.is_due(&pages) {
            return Ok(false);
        }
        let mut loaded = LoadedPages::new();
        let mut first = pages.deltas.len();
        for delta in pages.deltas.iter().rev() {
            match self.page_uncached(StreamKind::Delta, delta.id) {
                Ok(page) => loaded.insert(delta.id, page),
                Err(e) if e.kind() == ErrorKind::Corruption => break,
                Err(e) => return Err(e),
            };
            first -= 1;
        }
        if pages.deltas.len() - first < 2 {
            return Ok(false);
        }
        let kept = first + old_to_keep(&pages.deltas[first..]);
        let mut compaction = Compaction::new(self, view);
        compaction.consolidate(key, &pages, kept, &loaded)?;
        compaction.end_consolidations()?;
        self.commit(&compaction.tx)?;
        Ok(true)
    }

    /// Writes a leaf again, with all of its delta pages, and compacts its siblings that are due.
    /// Returns false if the leaf is gone, or has no delta pages.
    pub fn rewrite_around(&self, leaf: PageId) -> Result<bool> {
        self.commit_compaction(self.prepare_alone(leaf, Rewrites::Leaf(leaf))?)
    }

    fn commit_compaction(&self, prepared: Option<Prepared<'_>>) -> Result<bool> {
        match prepared {
            None => Ok(false),
            Some(prepared) => {
                self.commit_prepared(&prepared)?;
                prepared.damage.map_or(Ok(true), Err)
            }
        }
    }

    /// Writes the pages of a compaction, without a commit. If `rewrites` is true, the compaction
    /// writes the leaf again even if it has few delta pages, and no other one runs. Returns `None`
    /// if the leaf is not due, or if another compaction works on its siblings.
    #[cfg(test)]
    pub fn prepare_compaction(&self, leaf: PageId, rewrites: bool) -> Result<Option<Prepared<'_>>> {
        match rewrites {
            true => self.prepare_alone(leaf, Rewrites::Leaf(leaf)),
            false => self.prepare_shared(leaf, &mut BTreeSet::new()),
        }
    }

    fn prepare_alone(&self, leaf: PageId, rewrites: Rewrites) -> Result<Option<Prepared<'_>>> {
        let guard = self.maintenance.exclusive();
        match self.find_due(leaf, rewrites, None)? {
            Some(due) => self.prepare_due(due, rewrites, guard),
            None => Ok(None),
        }
    }

    /// Prepares a compaction that may run beside those of other index pages. Returns `None` if the
    /// page is not due any more, or if another compaction has claimed the index page. Then adds to
    /// `claimed` what that compaction works on.
    fn prepare_shared(
        &self,
        leaf: PageId,
        claimed: &mut BTreeSet<PageId>,
    ) -> Result<Option<Prepared<'_>>> {
        loop {
            let shared = self.maintenance.shared();
            let Some(due) = self.find_due(leaf, Rewrites::Nothing, None)? else {
                return Ok(None);
            };
            let Some(base) = self.base_of_parent(&due.view, &due.path)? else {
                drop(shared);
                return self.prepare_alone(leaf, Rewrites::Nothing);
            };
            let Some(claim) = shared.claim(base) else {
                if let Some(parent) = due.path.steps.last() {
                    claimed.insert(parent.key);
                    claimed.extend((0..parent.page.count()).map(|i| parent.page.child(i)));
                }
                return Ok(None);
            };
            // The compaction that had claimed the index page may have replaced it meanwhile.
            let Some(due) = self.find_due(leaf, Rewrites::Nothing, Some(due.probe_key))? else {
                return Ok(None);
            };
            if self.base_of_parent(&due.view, &due.path)? == Some(base) {
                let guard = MaintenanceGuard::Shared(claim);
                return self.prepare_due(due, Rewrites::Nothing, guard);
            }
        }
    }

    /// Returns a leaf or an index page if it is due, or if `rewrites` is not `Nothing`. `probe_key`
    /// is a key in its range, if the caller knows one.
    fn find_due(
        &self,
        key: PageId,
        rewrites: Rewrites,
        probe_key: Option<Vec<u8>>,
    ) -> Result<Option<DuePage>> {
        let view = self.view();
        let State::Live(pages) = self.mapping.get(key, view.time) else {
            return Ok(None);
        };
        let is_due = rewrites != Rewrites::Nothing || self.is_due(&pages);
        let Some(newest) = pages.deltas.last().filter(|_| is_due) else {
            return Ok(None);
        };
        let probe_key = match (probe_key, &newest.part) {
            (Some(known), _) => known,
            (None, Some(part)) => part.low.to_vec(),
            (None, None) => self.first_key((StreamKind::Delta, newest.id))?,
        };
        Ok(Some(DuePage {
            path: self.path(&view, &probe_key)?,
            key,
            pages,
            probe_key,
            view,
        }))
    }

    /// Returns the base page of the index page that names the leaf of a path; `None` if the leaf is
    /// the root.
    fn base_of_parent(&self, view: &View, path: &Path) -> Result<Option<PageId>> {
        let parent = path.steps.last();
        let pages = parent.map(|parent| self.pages_of(view, parent.key));
        Ok(pages.transpose()?.map(|pages| pages.base))
    }

    fn prepare_due<'a>(
        &'a self,
        due: DuePage,
        rewrites: Rewrites,
        guard: MaintenanceGuard<'a>,
    ) -> Result<Option<Prepared<'a>>> {
        if due.pages.has_index_deltas {
            return self.prepare_index(due, rewrites, guard);
        }
        if due.path.leaf != due.key {
            let (key, leaf) = (due.key, due.path.leaf);
            let what = format!(
                "leaf {key} is not where its keys are: {leaf} is; close the store and run `basalt tree check`"
            );
            return Err(self.inconsistent(what));
        }
        self.prepare_at(&due.path, &due.probe_key, rewrites, due.view, guard)
    }

    /// Prepares a compaction of the leaves of the index page on a path. `probe_key` is in the range
    /// of the path's leaf.
    fn prepare_at<'a>(
        &'a self,
        path: &Path,
        probe_key: &[u8],
        rewrites: Rewrites,
        view: Arc<View>,
        guard: MaintenanceGuard<'a>,
    ) -> Result<Option<Prepared<'a>>> {
        let mut compaction = Compaction::new(self, view.clone());
        compaction.rewrites = rewrites;
        let mut structure = None;
        match path.steps.last() {
            None => compaction.root_leaf(path.leaf)?,
            Some(parent) => {
                let leaves = compaction.leaves(parent)?;
                let now = self.current_path(&guard, probe_key)?;
                match now {
                    None => compaction.index_page(path, leaves)?,
                    Some(now) => {
                        compaction.view = now.view;
                        structure = Some(now.structure);
                        compaction.index_page(&now.path, leaves)?;
                    }
                }
            }
        }
        let (tx, base, delta) = (compaction.tx, compaction.base, compaction.delta);
        if tx.changes.is_empty() {
            return compaction.damage.map_or(Ok(None), Err);
        }
        Ok(Some(Prepared {
            tx,
            view,
            damage: compaction.damage,
            _writers: vec![base, delta],
            _structure: structure,
            _maintenance: Some(guard),
            _checkpoint: None,
        }))
    }

    /// Returns the path to the index page that a compaction has claimed, as other compactions have
    /// left it, and keeps them from changing it before the commit. Returns `None` for a compaction
    /// that holds the lock exclusively.
    fn current_path<'a>(
        &'a self,
        guard: &MaintenanceGuard<'a>,
        probe_key: &[u8],
    ) -> Result<Option<CurrentPath<'a>>> {
        let MaintenanceGuard::Shared(claim) = guard else {
            return Ok(None);
        };
        if claim.has_others() {
            // The leaves are most of what the commit syncs. Others must not wait for that.
            self.base.sync()?;
        }
        let structure = claim.lock_structure();
        let view = self.view();
        let path = self.path(&view, probe_key)?;
        if self.base_of_parent(&view, &path)? != Some(claim.base()) {
            return Err(self.inconsistent(format!(
                "index page {} was replaced while a compaction had claimed it; close the store and run `basalt tree check`",
                claim.base()
            )));
        }
        Ok(Some(CurrentPath {
            path,
            view,
            structure,
        }))
    }

    /// Prepares a compaction of the delta pages of an index page. If they are small compared with
    /// the leaves, consolidates them. Otherwise writes the changed leaves again with their changes.
    fn prepare_index<'a>(
        &'a self,
        due: DuePage,
        rewrites: Rewrites,
        guard: MaintenanceGuard<'a>,
    ) -> Result<Option<Prepared<'a>>> {
        let (key, pages) = (due.key, due.pages);
        let Some(step) = due.path.steps.last().filter(|step| step.key == key) else {
            let what = format!(
                "index page {key} is not where the keys of its delta pages are; close the store and run `basalt tree check`"
            );
            return Err(self.inconsistent(what));
        };
        let leaves = (0..step.page.count()).map(|i| u64::from(step.page.child(i).len));
        let deltas: u64 = pages.deltas.iter().map(|d| u64::from(d.id.len)).sum();
        let is_small = (deltas as f64) < leaves.sum::<u64>() as f64 * self.options.overwrite_ratio;
        if rewrites != Rewrites::Nothing || !is_small {
            return self.prepare_at(
                &due.path,
                &due.probe_key,
                Rewrites::Changed,
                due.view,
                guard,
            );
        }
        let mut compaction = Compaction::new(self, due.view);
        let kept = old_to_keep(&pages.deltas);
        compaction.consolidate(key, &pages, kept, &LoadedPages::new())?;
        let now = self.current_path(&guard, &due.probe_key)?;
        if let Some(step) = now.as_ref().and_then(|now| now.path.steps.last()) {
            compaction.rename_consolidated(step.key);
        }
        compaction.end_consolidations()?;
        Ok(Some(Prepared {
            tx: compaction.tx,
            view: compaction.view,
            damage: None,
            _writers: vec![compaction.base, compaction.delta],
            _structure: now.map(|now| now.structure),
            _maintenance: Some(guard),
            _checkpoint: None,
        }))
    }

    /// Writes all leaves again that are below index pages with keys of a range, as long as
    /// `goes_on` returns true. `to` is exclusive, and `None` is the end.
    ///
    /// Errors: those of reading, damage included, and of [`Storage::commit`]. The first error ends
    /// the call; index pages before it were written.
    pub fn rewrite_range(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut low = from.to_vec();
        let mut begins_all = from.is_empty() && to.is_none();
        while goes_on() {
            let guard = self.maintenance.exclusive();
            if std::mem::take(&mut begins_all) {
                // All pages are written again. Garbage keeps its space until its extent is sealed,
                // so no old page may be in the extent that is written to. A full disk keeps it.
                match self.base.seal() {
                    Err(e) if e.kind() == ErrorKind::NoSpace => {}
                    sealed => sealed?,
                }
            }
            let view = self.view();
            let path = self.path(&view, &low)?;
            let end = path.end_of_parent();
            if let Some(prepared) = self.prepare_at(&path, &low, Rewrites::All, view, guard)? {
                self.commit_prepared(&prepared)?;
            }
            match end {
                Some(end) if to.is_none_or(|to| &end[..] < to) => low = end,
                _ => break,
            }
        }
        Ok(())
    }

    /// Writes the index page above a key again, and the leaves below it that have delta pages.
    pub fn rename_leaves(&self, key: &[u8]) -> Result<()> {
        let guard = self.maintenance.exclusive();
        let view = self.view();
        let path = self.path(&view, key)?;
        match self.prepare_at(&path, key, Rewrites::Names, view, guard)? {
            Some(prepared) => self.commit_prepared(&prepared).map(|_| ()),
            None => Ok(()),
        }
    }
}
