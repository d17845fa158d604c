//! The tree of a store: which tables and blob files it has, what readers see of it, and how it
//! changes.
//!
//! | module | what it has |
//! |---|---|
//! | [`install`] | the one way in which the tree changes |
//! | [`blob_edits`] | what a change means for blob files |
//!
//! Locks: `manifest` (serialises changes; held over the edit's write and sync), then `state` (the
//! pointer to the catalog, and which jobs run; no I/O), then the stripes of the view (the pointer
//! that readers clone; no I/O), then `snapshots`.

pub(crate) mod blob_edits;
mod install;

use super::back_pressure::BackPressure;
use super::background::Background;
use super::backlog::Backlog;
use super::blob_state::BlobState;
use super::context::StoreContext;
use super::families::FamilyEntry;
use super::health::Health;
use super::log_position::SealedFlags;
use super::memtable_set::MemtableSet;
use super::pages::{FamilyPages, PageView};
use super::striped_view::StripedView;
use super::view::View;
use crate::compaction::OutputRange;
use crate::listener::{BlobFileInfo, BlobFileReason, Event};
use crate::version::catalog::Catalog;
use crate::version::edit::Edit;
use crate::version::manifest::Manifest;
use crate::version::{FlushFlag, TableStore, Version};
use basalt_blob::BlobMeta;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Mutex, MutexGuard, named};
use basalt_fs::Result;
use basalt_kv::key::{MAX_SEQ, SeqNo};
use basalt_kv::snapshot::no_snapshots;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// The tree of an open store. See the module.
pub(crate) struct Tree {
    ctx: Arc<StoreContext>,
    health: Arc<Health>,
    background: Arc<Background>,
    pressure: Arc<BackPressure>,
    manifest: Mutex<ManifestSlot>,
    state: Mutex<TreeState>,
    view: StripedView,
    /// Sequence number up to which readers see entries.
    visible: AtomicU64,
    /// The sequence number of [`View::ingested`]. It is set before any table of that ingestion is
    /// visible.
    ingested: AtomicU64,
    /// Number of snapshots at each sequence number that has any.
    snapshots: Arc<Mutex<BTreeMap<SeqNo, usize>>>,
    /// Number of the next file.
    next_file: AtomicU64,
    /// Trees of dropped families, which readers may still hold.
    dropped_pages: Mutex<Vec<Weak<FamilyPages>>>,
}

/// The manifest, and files that wait for a fresh one.
pub(crate) struct ManifestSlot {
    manifest: Manifest,
    /// The next file number when the manifest began.
    first_new: u64,
    /// Manifests that `CURRENT` may still name after a crash: they go once a newer one is durable.
    retired: Vec<u64>,
    /// Files of edits that failed: a manifest in doubt may name them, so they wait for a fresh one.
    in_doubt: Vec<PathBuf>,
}

/// The state that `state` guards: the catalog, and which jobs run on it.
pub(crate) struct TreeState {
    /// The catalog. Only an install replaces it, under `manifest` and `state`. It is never changed
    /// in place: a holder of `manifest` clones the `Arc`, and reads the catalog without `state`.
    catalog: Arc<Catalog>,
    /// Number of the next memtable set.
    next_set: u64,
    /// The state of blob files that the catalog does not hold.
    pub blobs: BlobState,
    /// Jobs that change the tree, or are about to.
    pub jobs: RunningJobs,
}

/// Jobs that change the tree, or are about to.
#[derive(Default)]
pub(crate) struct RunningJobs {
    /// True while a flush runs or is queued.
    pub flush: bool,
    /// Number of compactions that have begun since the store was opened.
    compactions_begun: u64,
    /// Compactions that run or are queued, by where they write.
    pub compactions: Vec<OutputRange>,
    /// The places in the tree of tables that are being ingested.
    pub ingesting: Vec<OutputRange>,
    /// True while a manual compaction keeps automatic ones from beginning.
    pub exclusive: bool,
}

impl TreeState {
    /// Returns the catalog as of now.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Begins a compaction, which reads references and may write some. Returns the epoch to end it
    /// with ([`BlobState::end`]) and the number of the compaction.
    pub fn begin_compaction(&mut self) -> (u64, u64) {
        let number = self.jobs.compactions_begun;
        self.jobs.compactions_begun += 1;
        (self.blobs.begin(), number)
    }
}

/// The parts that an opened store begins with.
pub(crate) struct OpenedTree {
    /// Tables and blob files in the directory.
    pub tables: Arc<TableStore>,
    /// The manifest that takes edits.
    pub manifest: Manifest,
    /// The catalog that the manifest adds up to.
    pub catalog: Catalog,
    /// The families, by id.
    pub families: BTreeMap<u32, FamilyEntry>,
    /// The version that the catalog describes.
    pub version: Version,
    /// The trees of families that are kept in pages.
    pub pages: BTreeMap<u32, PageView>,
    /// The newest sequence number in tables and logs.
    pub last_seq: SeqNo,
}

/// Keeps the tree from changing until it is dropped.
pub(crate) struct FrozenTree<'a>(
    #[expect(dead_code, reason = "held for its lock")] MutexGuard<'a, ManifestSlot>,
);

impl Tree {
    /// Returns the tree of a store that is being opened, with empty memtables.
    pub fn new(
        ctx: &Arc<StoreContext>,
        health: &Arc<Health>,
        background: &Arc<Background>,
        pressure: &Arc<BackPressure>,
        opened: OpenedTree,
    ) -> Tree {
        let OpenedTree {
            tables: _,
            manifest,
            catalog,
            families,
            version,
            pages,
            last_seq,
        } = opened;
        let orders = families
            .values()
            .map(|f| (f.id, f.options.comparator.clone()));
        let active = MemtableSet::new(&ctx.env, 1, orders);
        // Compactions of earlier openings have dropped tombstones, too.
        (families.values()).for_each(|f| f.note_dropped_tombstones(last_seq));
        let view = View {
            active,
            sealed: Vec::new(),
            backlog: Backlog::of(0, &families, &version, &pages),
            version: Arc::new(version),
            pages: Arc::new(pages),
            families: Arc::new(families),
            ingested: 0,
        };
        if view.backlog.is_urgent() && !ctx.read_only {
            pressure.make_urgent();
        }
        Tree {
            ctx: ctx.clone(),
            health: health.clone(),
            background: background.clone(),
            pressure: pressure.clone(),
            manifest: Mutex::new(ManifestSlot {
                manifest,
                first_new: catalog.next_file,
                retired: Vec::new(),
                in_doubt: Vec::new(),
            }),
            next_file: AtomicU64::new(catalog.next_file),
            state: Mutex::new(TreeState {
                blobs: BlobState::new(&catalog),
                catalog: Arc::new(catalog),
                next_set: 2,
                jobs: RunningJobs::default(),
            }),
            view: StripedView::new(view),
            visible: AtomicU64::new(last_seq),
            ingested: AtomicU64::new(0),
            snapshots: no_snapshots(),
            dropped_pages: named("Tree::dropped_pages", Mutex::default()),
        }
    }

    /// Returns what readers see now.
    pub fn view(&self) -> Arc<View> {
        self.view.get()
    }

    /// Returns the memtables that take writes. They stay active only as long as the caller holds
    /// `state` or leads commits.
    pub fn active(&self) -> Arc<MemtableSet> {
        self.view.get().active.clone()
    }

    /// Locks the state. No I/O happens under the lock: each commit group may take it.
    pub fn lock(&self) -> MutexGuard<'_, TreeState> {
        self.state.lock()
    }

    /// Returns the catalog as of now. It stays current as long as the caller holds `manifest`.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.state.lock().catalog.clone()
    }

    /// Returns the flush flag of a family of a passive store.
    pub fn flush_flag(&self, family: u32) -> Option<FlushFlag> {
        self.catalog().families.get(&family)?.flush_flag
    }

    /// Returns the sequence number up to which readers see entries.
    pub fn visible(&self) -> SeqNo {
        self.visible.load(SeqCst)
    }

    /// Shows readers all entries up to a sequence number.
    pub fn publish(&self, seq: SeqNo) {
        self.visible.store(seq, SeqCst);
    }

    /// Returns the sequence number of the last ingestion that may be visible (see
    /// [`View::ingested`]).
    pub fn ingested(&self) -> SeqNo {
        self.ingested.load(SeqCst)
    }

    /// Notes an ingestion, before it is visible.
    pub fn note_ingested(&self, seq: SeqNo) {
        self.ingested.store(seq, SeqCst);
    }

    /// Takes the number of a new file.
    pub fn new_file_number(&self) -> u64 {
        self.next_file.fetch_add(1, SeqCst)
    }

    /// Returns the number that the next new file will have.
    pub fn next_file_number(&self) -> u64 {
        self.next_file.load(SeqCst)
    }

    /// Returns the snapshots, as a handle that snapshots keep to end themselves.
    pub fn snapshots(&self) -> &Arc<Mutex<BTreeMap<SeqNo, usize>>> {
        &self.snapshots
    }

    /// Returns the live snapshots, ascending. The caller has already chosen the inputs of its
    /// compaction: a snapshot that is taken later sees nothing older than the newest version in
    /// those inputs.
    pub fn live_snapshots(&self) -> Vec<SeqNo> {
        self.snapshots.lock().keys().copied().collect()
    }

    /// Returns the number of live snapshots.
    pub fn live_snapshots_count(&self) -> u64 {
        self.snapshots.lock().values().sum::<usize>() as u64
    }

    /// Returns the sequence number of the oldest snapshot, or the largest number without snapshots.
    pub fn oldest_snapshot(&self) -> SeqNo {
        let snapshots = self.snapshots.lock();
        snapshots.keys().next().copied().unwrap_or(MAX_SEQ)
    }

    /// Replaces the view. The caller holds `state`, whose guard is the proof.
    fn set_view(&self, state: &mut TreeState, mut next: View) {
        // A merge can pick the ingested tables from here on. Each later snapshot must see them, or
        // the merge must know of the snapshot.
        assert!(
            next.ingested <= self.visible.load(SeqCst),
            "added tables are visible before a compaction can choose them"
        );
        next.backlog = Backlog::of(
            next.waiting_sets(&self.ctx.options),
            &next.families,
            &next.version,
            &next.pages,
        );
        self.pressure
            .update_pressure(&state.catalog, &state.blobs, &next);
        self.pressure.note_urgent(&next);
        self.view.set(next);
    }

    /// Changes what readers see without changing the tree.
    pub fn change_view(&self, change: impl FnOnce(&mut TreeState, &mut View)) {
        let mut state = self.state.lock();
        let mut view = (*self.view()).clone();
        change(&mut state, &mut view);
        self.set_view(&mut state, view);
    }

    /// Seals the active memtables. The caller has synced or ended their log.
    pub fn seal_active(&self, state: &mut TreeState, view: &mut View) {
        let number = state.next_set;
        state.next_set += 1;
        let next = MemtableSet::new(
            &self.ctx.env,
            number,
            view.families
                .values()
                .map(|f| (f.id, f.options.comparator.clone())),
        );
        let old = std::mem::replace(&mut view.active, next);
        self.ctx.notify(|| Event::MemtableSealed {
            memtable_set: old.number,
            bytes: old.memory(),
        });
        self.pressure.note_sealed(&old);
        view.sealed.insert(0, old);
    }

    /// Seals the active memtables of some families of a passive store. Their flush installs
    /// `flags`.
    pub fn seal_families(
        &self,
        state: &mut TreeState,
        view: &mut View,
        families: &BTreeSet<u32>,
        flags: SealedFlags,
    ) {
        let number = state.next_set;
        state.next_set += 1;
        let (sealed, active) = (view.active).divide(&self.ctx.env, number, families, flags);
        view.active = active;
        self.ctx.notify(|| Event::MemtableSealed {
            memtable_set: sealed.number,
            bytes: sealed.memory(),
        });
        self.pressure.note_sealed(&sealed);
        view.sealed.insert(0, sealed);
    }

    /// Locks the manifest, for tests that damage it.
    #[cfg(test)]
    pub fn lock_manifest(&self) -> impl std::ops::DerefMut<Target = Manifest> + '_ {
        basalt_env::sync::MutexGuard::map(self.manifest.lock(), |slot| &mut slot.manifest)
    }

    /// Locks the state, unless another thread holds it.
    #[cfg(test)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, TreeState>> {
        self.state.try_lock()
    }

    /// Keeps the tree from changing until the result is dropped: no edit comes between a catalog
    /// and the files that it names.
    pub fn freeze(&self) -> FrozenTree<'_> {
        FrozenTree(self.manifest.lock())
    }

    /// Returns true if the last edit of the manifest failed, and no fresh manifest has replaced it.
    pub fn manifest_is_in_doubt(&self) -> bool {
        self.manifest.lock().manifest.in_doubt()
    }

    /// Makes `CURRENT` vouch for the whole manifest.
    pub fn point_current(&self) -> Result<()> {
        self.manifest.lock().manifest.point_current(&self.ctx.env)
    }

    /// Notes a tree whose family is dropped, durably.
    pub fn note_dropped_pages(&self, pages: &Arc<FamilyPages>) {
        pages.note_dropped();
        let mut dropped = self.dropped_pages.lock();
        dropped.retain(|pages| pages.strong_count() > 0);
        dropped.push(Arc::downgrade(pages));
    }

    /// Returns all trees that this store has open.
    pub fn open_pages(&self) -> Vec<Arc<FamilyPages>> {
        let dropped: Vec<Weak<FamilyPages>> = self.dropped_pages.lock().clone();
        let view = self.view();
        let live = view.pages.values().map(|view| view.pages.clone());
        live.chain(dropped.iter().filter_map(Weak::upgrade))
            .collect()
    }

    /// Gives the directory back. No edit is on its way then, and none comes any more.
    pub fn leave(&self) {
        let manifest = self.manifest.lock();
        self.ctx.leave();
        drop(manifest);
    }

    /// A blob file as listeners hear of it.
    pub fn blob_info(&self, number: u64, meta: &BlobMeta, reason: BlobFileReason) -> BlobFileInfo {
        let view = self.view();
        let families = meta.families.keys().filter_map(|id| view.families.get(id));
        BlobFileInfo {
            number,
            families: families.map(|f| f.name.to_string()).collect(),
            bytes: meta.size + meta.index.map_or(0, |i| i.size),
            records: meta.records,
            reason,
        }
    }

    /// Reports the blob files that a durable edit added to the listener.
    pub(super) fn notify_blob_events(&self, edit: &Edit, by_gc: bool) {
        let ingested = edit.add_tables.iter().any(|t| t.meta.shift > 0);
        let reason = match (by_gc, edit.remove_tables.is_empty()) {
            (true, _) => BlobFileReason::Gc,
            (false, false) => BlobFileReason::Compaction,
            (false, true) if ingested => BlobFileReason::Ingest,
            (false, true) => BlobFileReason::Flush,
        };
        for b in &edit.add_blobs {
            self.ctx
                .notify(|| Event::BlobFileCreated(self.blob_info(b.number, &b.meta, reason)));
        }
    }
}
