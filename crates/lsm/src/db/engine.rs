//! The engine behind a [`super::Db`]: what it owns, and how a change of the tree is installed.
//!
//! Locks, always taken in this order: `writer` (the commit leader's: log and next sequence number), `manifest` (serialises
//! changes of the tree), `state` (short: catalog, running jobs), `view` (shorter: the pointer that readers clone).
//! No I/O happens under `state` or `view`.

use super::blob_edits::{BlobChange, BlobState};
use super::commit::CommitQueue;
use super::compact_range::Manual;
use super::disk_full::DiskFull;
use super::events::Events;
use super::flush::FlushPace;
use super::idle_work::{IdleSince, IdleTimers};
use super::log::{ActiveLog, LogSpace};
use super::memory::StoreMemory;
use super::memtable_set::MemtableSet;
use super::space_amp::SpaceAmp;
use super::stats::Counters;
use super::striped_view::StripedView;
use super::throttle::{Backlog, Drain, Pace, Stalling};
use super::view::{FamilyEntry, View};
use crate::compaction::OutputRange;
use crate::key::SeqNo;
use crate::listener::Event;
use crate::options::Options;
use crate::version::catalog::Catalog;
use crate::version::edit::Edit;
use crate::version::manifest::{Manifest, manifest_path};
use crate::version::{BlobFile, FamilyVersion, FileKind, TableFile, TableStore, Version};
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use basalt_env::{Env, MetricSource, Promise, Urgent};
use basalt_fs::{Error, ErrorKind, LockGuard, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A manifest is replaced by a fresh one when its edits take this many bytes more than the state that it began with.
const MANIFEST_REWRITE_BYTES: u64 = 4 << 20;

pub(crate) struct Engine {
    pub env: Env,
    pub dir: PathBuf,
    pub options: Options,
    /// For job ownership, and to tell this store's families from another's.
    pub owner: u64,
    pub store_id: u128,
    pub tables: Arc<TableStore>,
    pub commit: CommitQueue,
    pub writer: Mutex<Writer>,
    pub manifest: Mutex<ManifestSlot>,
    pub state: Mutex<State>,
    view: StripedView,
    /// Everything up to here is visible to readers.
    pub visible: AtomicU64,
    /// What [`View::ingested`] is, told before anything so new is visible.
    pub ingested: AtomicU64,
    pub snapshots: Arc<Mutex<BTreeMap<SeqNo, usize>>>,
    pub next_file: AtomicU64,
    pub logs: LogSpace,
    /// Held while memtables are written out: by the flush job, or by a writer that repairs a failed log.
    pub flushing: Mutex<()>,
    pub counters: Counters,
    pub events: Events,
    pub metric_source: Mutex<Option<MetricSource>>,
    pub stalling: Stalling,
    pub manual: Manual,
    /// Compactions begun, for their events.
    pub compactions_begun: AtomicU64,
    pub drain: Drain,
    pub space: SpaceAmp,
    pub full: DiskFull,
    pub idle_timers: IdleTimers,
    pub memory: StoreMemory,
    pub flush_pace: FlushPace,
    /// Lookups of blocks in the cache when memtables were last written out.
    pub lookups_at_flush: AtomicU64,
    /// Commit groups when the store was last looked at for idleness.
    pub last_watched: AtomicU64,
    pub idle_since: IdleSince,
    pub closing: AtomicBool,
    /// The folder's lock was given back: set under `manifest`, and no edit is written after it.
    pub gone: AtomicBool,
    /// A commit that panicked: what it left of log and memtables is not known.
    pub broken: OnceLock<String>,
    pub lock: Mutex<Option<Box<dyn LockGuard>>>,
    /// Opened for reading: nothing is ever written.
    pub read_only: bool,
}

/// What the commit leader owns.
pub(crate) struct Writer {
    pub log: Option<ActiveLog>,
    /// Logs that records no longer go to and whose end is not synced, oldest first; some may be removed by now.
    pub left: Vec<ActiveLog>,
    pub next_seq: SeqNo,
    pub pace: Pace,
    /// Bytes that may be logged before the free space is compared again with what a recovery would need.
    pub recoverable: u64,
    /// Value of [`TableStore::releases`] at the last sync of the directory by a commit leader. `None` if
    /// no commit leader has synced it since the store was opened.
    pub durable_releases: Option<u64>,
    /// Since when a group waits for memory.
    pub short_of_memory: Option<Duration>,
    /// When a halted store was last tried to be mended.
    pub last_resume: Option<Duration>,
}

pub(crate) struct ManifestSlot {
    pub manifest: Manifest,
    /// Manifests that `CURRENT` may still name after a crash: they go once a newer one is durable.
    pub retired: Vec<u64>,
    /// Files of edits that failed: a manifest in doubt may name them, so they wait for a fresh one.
    pub in_doubt: Vec<PathBuf>,
}

pub(crate) struct State {
    /// Replaced only by an install, under `manifest` and `state`. It is never changed in place: a holder of `manifest` clones the `Arc`,
    /// and works on the catalog without `state`.
    pub catalog: Arc<Catalog>,
    pub next_generation: u64,
    pub flush_scheduled: bool,
    pub blobs: BlobState,
    /// Compactions that run or are queued, by where they write.
    pub compactions: Vec<OutputRange>,
    /// Where tables that are being added will be.
    pub entering: Vec<OutputRange>,
    /// Background work is behind.
    pub urgent: Option<Urgent>,
    /// A manual compaction wants no automatic ones beside it.
    pub exclusive: bool,
    pub flush_error: Option<Error>,
    pub compaction_error: Option<Error>,
    pub compaction_retry_at: Duration,
    pub compaction_pause: Duration,
    /// Earliest time of the next attempt after a failed flush.
    pub retry_at: Duration,
    /// Writes fail with this until [`Engine::resume`] mends it.
    pub halt: Option<Error>,
    /// Memory that generations will give back when they are written out, by their number.
    pub promised: BTreeMap<u64, Promise>,
}

/// What an edit leads to, see [`Engine::install`].
struct NextTree {
    catalog: Arc<Catalog>,
    version: Version,
    /// Tables and blob files that it no longer names.
    obsolete: Vec<Arc<TableFile>>,
    obsolete_blobs: Vec<Arc<BlobFile>>,
}

/// How long after a failed flush, compaction or resume the next attempt may begin.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(100);

impl Engine {
    #[expect(
        clippy::too_many_arguments,
        reason = "the one constructor, called from one place"
    )]
    pub fn new(
        env: &Env,
        dir: PathBuf,
        mut options: Options,
        owner: u64,
        tables: Arc<TableStore>,
        manifest: Manifest,
        catalog: Catalog,
        families: BTreeMap<u32, FamilyEntry>,
        version: Version,
        last_seq: SeqNo,
        lock: Option<Box<dyn LockGuard>>,
        read_only: bool,
    ) -> Arc<Engine> {
        let cmps = families
            .values()
            .map(|f| (f.id, f.options.comparator.clone()))
            .collect::<Vec<_>>();
        let name = options
            .name
            .clone()
            .unwrap_or_else(|| dir.display().to_string());
        let mut view = View {
            active: MemtableSet::new(env, 1, cmps.into_iter()),
            sealed: Vec::new(),
            version: Arc::new(version),
            families: Arc::new(families),
            backlog: Backlog::default(),
            ingested: 0,
        };
        view.backlog = Backlog::of(&view);
        let events = Events::new(std::mem::take(&mut options.listeners));
        if !events.has_no_listeners() {
            let (events, jobs) = (events.clone(), env.jobs().clone());
            tables.when_removed(move |kind, number, path| {
                events.tell(&jobs, || {
                    let path = path.to_path_buf();
                    match kind {
                        FileKind::Table => Event::TableDeleted { number, path },
                        FileKind::Blob => Event::BlobFileDeleted { number, path },
                    }
                });
            });
        }
        let urgent = (view.backlog.is_urgent() && !read_only).then(|| env.foreground_io().urgent());
        let engine = Arc::new(Engine {
            counters: Counters::new(env, &name),
            events,
            metric_source: Mutex::new(None),
            stalling: Stalling::default(),
            manual: Manual::default(),
            compactions_begun: AtomicU64::new(0),
            store_id: catalog.store_id,
            next_file: AtomicU64::new(catalog.next_file),
            view: StripedView::new(view),
            state: Mutex::new(State {
                blobs: BlobState::new(&catalog),
                catalog: Arc::new(catalog),
                next_generation: 2,
                flush_scheduled: false,
                compactions: Vec::new(),
                entering: Vec::new(),
                urgent,
                exclusive: false,
                flush_error: None,
                compaction_error: None,
                compaction_retry_at: Duration::ZERO,
                compaction_pause: RETRY_PAUSE,
                retry_at: Duration::ZERO,
                halt: None,
                promised: BTreeMap::new(),
            }),
            env: env.clone(),
            logs: LogSpace::new(),
            dir,
            options,
            owner,
            tables,
            commit: CommitQueue::new(env.ledger()),
            writer: Mutex::new(Writer {
                log: None,
                left: Vec::new(),
                next_seq: last_seq + 1,
                pace: Pace::default(),
                recoverable: 0,
                short_of_memory: None,
                durable_releases: None,
                last_resume: None,
            }),
            manifest: Mutex::new(ManifestSlot {
                manifest,
                retired: Vec::new(),
                in_doubt: Vec::new(),
            }),
            visible: AtomicU64::new(last_seq),
            ingested: AtomicU64::new(0),
            snapshots: Arc::default(),
            flushing: Mutex::new(()),
            drain: Drain::new(),
            space: SpaceAmp::default(),
            full: DiskFull::default(),
            idle_timers: IdleTimers::default(),
            memory: StoreMemory::default(),
            flush_pace: FlushPace::default(),
            lookups_at_flush: AtomicU64::new(0),
            last_watched: AtomicU64::new(0),
            idle_since: IdleSince::default(),
            closing: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            broken: OnceLock::new(),
            lock: Mutex::new(lock),
            read_only,
        });
        if !read_only {
            let store = Arc::downgrade(&engine);
            engine.tables.when_log_dies(move |number, end| {
                let engine = store.upgrade();
                engine.map(|e| e.retire_log(number, end)).is_some()
            });
            let reader_of = Arc::downgrade(&engine);
            engine.tables.on_extra_reads(move || {
                if let Some(engine) = reader_of.upgrade() {
                    engine.extra_reads();
                }
            });
            engine.hold_memory();
        }
        engine.offer_metrics();
        engine
    }

    /// Tells listeners of an event, which is made only if there are any.
    pub fn tell(&self, make: impl FnOnce() -> Event) {
        self.events.tell(self.env.jobs(), make);
    }

    /// What readers see now.
    pub fn view(&self) -> Arc<View> {
        self.view.get()
    }

    /// The memtables that take writes. Only the commit leader and holders of `state` may rely on it staying so.
    pub fn active_generation(&self) -> Arc<MemtableSet> {
        self.view.get().active.clone()
    }

    /// Background work is in a hurry while it is behind, and can do something about it.
    pub fn note_urgent(&self, state: &mut State, view: &View) {
        let behind = view.backlog.is_urgent()
            || view.sealed.len() >= self.options.max_sealed_memtables
            || self.space.pressure() > 0.0;
        let idle = self.read_only || self.gone.load(SeqCst) || state.compaction_error.is_some();
        if (behind && !idle) != state.urgent.is_some() {
            let urgent = (behind && !idle).then(|| self.env.foreground_io().urgent());
            state.urgent = urgent;
        }
    }

    /// Replaces the view. The caller holds `state`, whose guard is the proof.
    fn set_view(&self, state: &mut State, mut next: View) {
        // What is in tables can be merged: a snapshot that is taken from here on must be one of them, or known to the merge.
        assert!(
            next.ingested <= self.visible.load(SeqCst),
            "added tables are visible before anybody can choose them"
        );
        next.backlog = Backlog::of(&next);
        self.update_pressure(state, &next);
        self.note_urgent(state, &next);
        self.view.set(next);
    }

    /// Changes what readers see without changing the tree.
    pub fn change_view(&self, change: impl FnOnce(&mut State, &mut View)) {
        let mut state = self.state.lock();
        let mut view = (*self.view()).clone();
        change(&mut state, &mut view);
        self.set_view(&mut state, view);
    }

    pub fn new_file_number(&self) -> u64 {
        self.next_file.fetch_add(1, SeqCst)
    }

    pub fn check_open(&self) -> Result<()> {
        if self.closing.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        Ok(())
    }

    /// A background job or a commit that panicked has found our own state broken: no further write is taken.
    pub fn check_jobs(&self) -> Result<()> {
        if let Some(what) = self.broken.get() {
            return Err(Error::new(
                ErrorKind::Poisoned,
                format!("a commit stopped on a broken invariant: {what}"),
            ));
        }
        match self.env.jobs().panicked(self.owner) {
            None => Ok(()),
            Some(what) => Err(Error::new(
                ErrorKind::Poisoned,
                format!("a background job stopped on a broken invariant: {what}"),
            )),
        }
    }

    /// Live snapshots, ascending. Taken after a compaction's inputs are chosen: a snapshot that comes later sees
    /// nothing older than the newest version in those inputs.
    pub fn live_snapshots(&self) -> Vec<SeqNo> {
        self.snapshots.lock().keys().copied().collect()
    }

    /// Makes an edit durable and installs what it says. `files` are new files it names: when the edit fails they are kept
    /// until a fresh manifest proves that nothing names them. `change` adjusts the view in the same step, after the tables.
    pub fn install(
        self: &Arc<Self>,
        edit: Edit,
        files: Vec<PathBuf>,
        change: impl FnOnce(&mut State, &mut View),
    ) -> Result<()> {
        self.install_with(edit, files, BlobChange::default(), change)
    }

    /// As [`Engine::install`], with what it means for blob files. When that contradicts what they hold, nothing has changed and the error
    /// is `Corruption`.
    pub fn install_with(
        self: &Arc<Self>,
        mut edit: Edit,
        files: Vec<PathBuf>,
        blobs: BlobChange,
        change: impl FnOnce(&mut State, &mut View),
    ) -> Result<()> {
        let mut slot = self.manifest.lock();
        if self.gone.load(SeqCst) {
            // The folder may be another's by now.
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        self.drop_what_left(&mut edit, &files);
        self.drop_ended(&mut edit);
        let collected = blobs.collected.is_some();
        let settled = match self.settle_blobs(&mut edit, blobs) {
            Ok(settled) => settled,
            Err(e) => {
                self.remove_files(&files);
                return Err(e);
            }
        };
        self.remove_files(&settled.unnamed);
        let added = match settled.is_a_collection() {
            true => 0,
            false => edit.add_blobs.iter().map(|b| b.meta.size).sum(),
        };
        let written = self.fresh_manifest_if_due(&mut slot).and_then(|()| {
            // After the fresh manifest, which takes a number itself.
            edit.next_file = Some(self.next_file.load(SeqCst));
            edit.last_seq = Some(self.visible.load(SeqCst));
            edit.wall_ms = Some(self.env.clock().wall_ms());
            edit.date_blobs(self.env.clock().wall_ms());
            // Before it is durable: an edit that breaks a rule stops this process, and must not stop the next one, too.
            let tree = self.next_tree(&edit);
            slot.manifest.append(&edit.encode())?;
            Ok(tree)
        });
        let tree = match written {
            Ok(tree) => tree,
            Err(e) => {
                slot.in_doubt.extend(files);
                let e = e.context("recording a change of the tree");
                // The edit may be on the device or not. A write acknowledged now could depend on which: one into a log that the edit
                // ends, or into a family that it drops. So writes halt until a fresh manifest has settled it.
                self.state.lock().halt.get_or_insert_with(|| e.clone());
                self.retry_later();
                self.tell(|| Event::BackgroundError {
                    during: "manifest",
                    error: e.clone(),
                });
                return Err(e);
            }
        };
        self.estimate_hidden(&tree.catalog, &tree.version);
        let mut state = self.state.lock();
        let former = std::mem::replace(&mut state.catalog, tree.catalog);
        self.counters.blob_bytes_added.add(added);
        self.note_settled(&mut state, &edit, settled);
        tree.obsolete.iter().for_each(|t| t.mark_obsolete());
        tree.obsolete_blobs.iter().for_each(|b| b.mark_obsolete());
        let now = self.view();
        let mut next = View {
            active: now.active.clone(),
            sealed: now.sealed.clone(),
            version: Arc::new(tree.version),
            families: now.families.clone(),
            backlog: now.backlog,
            ingested: now.ingested,
        };
        if !edit.drop_families.is_empty() {
            let families = Arc::make_mut(&mut next.families);
            families.retain(|id, _| !edit.drop_families.contains(id));
        }
        change(&mut state, &mut next);
        self.set_view(&mut state, next);
        drop(state);
        // What only the former tree held is freed without `state`: a commit group waits for that lock.
        drop((former, now));
        self.notify_blob_events(&edit, collected);
        Ok(())
    }

    /// A log may have been removed, with its memtables in tables, while its end was being synced.
    fn drop_ended(&self, edit: &mut Edit) {
        let state = self.state.lock();
        edit.end_logs
            .retain(|(number, _)| state.catalog.logs.contains_key(number));
    }

    /// A family may have been dropped while its tables were being built: they leave the edit again.
    fn drop_what_left(&self, edit: &mut Edit, files: &[PathBuf]) {
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
        drop(state);
        for number in dead {
            // A table that was only to move is not new: it goes when its last reader lets go.
            let path = self.tables.path(number);
            if files.contains(&path) {
                self.tables.remove(&path);
            }
        }
    }

    /// What an edit makes of catalog and tree, checked. The caller holds `manifest`, so both stay as they are meanwhile.
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
            let (_, meta) = &former.families[family].tables[number];
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
                let (_, meta) = &catalog.families[&a.family].tables[&a.number];
                self.tables.table(a.number, meta.clone(), f.cmp.clone())
            });
            f.insert(a.level as usize, t);
        }
        for a in &edit.add_tables {
            let (f, (_, meta)) = (
                &version.families[&a.family],
                &catalog.families[&a.family].tables[&a.number],
            );
            f.check_entered(a.level as usize, a.number, meta)
                .expect("a new version keeps the order of its levels");
        }
        // What the edit does not touch kept the order before it.
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
                let file = self.tables.blob(b.number, b.meta.clone());
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

    /// The catalog as of now. A holder of `manifest` knows that it stays so.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.state.lock().catalog.clone()
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
            &self.env,
            &self.dir,
            self.store_id,
            number,
            &state_edit.encode(),
        ) {
            Ok(m) => {
                slot.manifest = m;
                for old in slot.retired.drain(..) {
                    self.tables.remove(&manifest_path(&self.dir, old));
                }
                for path in slot.in_doubt.drain(..) {
                    self.tables.remove(&path);
                }
                Ok(())
            }
            Err(e) => {
                slot.retired.push(number);
                // `CURRENT` may name the new one after a crash, so an edit of the old one may count for nothing.
                slot.manifest.doubt();
                Err(e)
            }
        }
    }

    /// Seals the active memtables. The caller has settled their log.
    pub fn seal_active(&self, state: &mut State, view: &mut View) {
        let number = state.next_generation;
        state.next_generation += 1;
        let next = MemtableSet::new(
            &self.env,
            number,
            view.families
                .values()
                .map(|f| (f.id, f.options.comparator.clone())),
        );
        let old = std::mem::replace(&mut view.active, next);
        self.tell(|| Event::MemtableSealed {
            generation: old.number,
            bytes: old.memory(),
        });
        self.note_sealed(state, &old);
        view.sealed.insert(0, old);
    }
}
