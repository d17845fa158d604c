//! The engine behind a [`super::Db`]: its parts, and the order of their locks.
//!
//! Each part owns its state, and no other part accesses that state. A part knows only the parts
//! above it in this table. Operations on the store (commits, reads, jobs, checkpoints, ...) are
//! methods of [`Engine`] in modules of their own, which use the parts. Some state of [`Tree`] and
//! [`WritePath`] has no methods: an operation that holds its lock uses the fields.
//!
//! | part | what it owns |
//! |---|---|
//! | [`StoreContext`] | environment, directory, options, counters, events; the marks of closing |
//! | [`Health`] | what has failed, and whether writes go on |
//! | [`Background`] | requests for background work, and timers |
//! | [`BackPressure`] | backlogs, space, full disk, memory: what holds writers back |
//! | [`Tree`] | manifest, catalog, view, snapshots; install |
//! | [`WritePath`] | commit queue, the commit leader's state, logs |
//!
//! # Order of locks
//!
//! [`LOCK_ORDER`] has all locks of this crate. Locks of its order are held while others are taken:
//! a thread that holds one takes only locks that stand behind it, locks of crates below, and
//! leaves. A thread that holds a leaf takes no other lock. A test under the scheduler compares all
//! locks and pairs of locks that the models take with this constant.

use super::back_pressure::BackPressure;
use super::background::Background;
use super::context::StoreContext;
use super::health::Health;
use super::log_position::PassivePosition;
use super::manual_calls::ManualCalls;
use super::persistence::Persistence;
use super::tree::{OpenedTree, Tree};
use super::write_path::WritePath;
use crate::options::Options;
use crate::version::edit::Edit;
use crate::version::{EngineKind, engine_bits};
#[cfg(feature = "schedules")]
use basalt_env::sync::lock_log::CrateLocks;
use basalt_env::sync::{Mutex, named};
use basalt_env::{Env, MetricSource};
use basalt_fs::{LockGuard, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// All locks of this crate. A lock is named after the type that it guards, or by
/// [`named`] where it is made.
///
/// | lock | what it serialises | held over |
/// |---|---|---|
/// | [`Writer`](super::write_path::Writer) | commit leaders | the log's write and sync |
/// | [`FlushTurn`] | flushes | the I/O of a flush |
/// | `ManifestSlot` | changes of the tree | the edit's write and sync |
/// | `TreeState` | the pointer to the catalog; running jobs | no I/O: commit groups take it |
/// | `Arc<View>` | the pointer that readers clone, one for each stripe | no I/O |
/// | `Queue` | the commit queue | no I/O |
/// | `Slot` | the phase of one ticket | no I/O |
/// | `opening` of a table or blob file | the making of its reader | the reads of an open |
/// | `OpenFile`, the list of open files | which file is closed next | the closing of files |
/// | `left` | whether the directory is still the store's | one making or removal of a file |
/// | `Stall` | the current stall | no I/O |
/// | `locked` of a leaf of a memtable | inserts into the leaf | no I/O |
/// | `splits` of a memtable | changes of inner nodes | no I/O |
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: CrateLocks = CrateLocks {
    order: &[
        "write_path::Writer",
        "engine::FlushTurn",
        "tree::ManifestSlot",
        "tree::TreeState",
        "view::View[]",
        "queue::Queue",
        "ticket_state::Slot",
        "TableFile::opening",
        "BlobFile::opening",
        "open::OpenFile",
        "TableStore::left",
        "stalls::Stall",
        "Node::locked",
        "memtable::Tree::splits",
    ],
    leaves: &[
        // Parts of the engine.
        "Engine::metric_source",
        "Engine::dir_lock",
        "Tree::dropped_pages",
        "DroppedReferences::waiting",
        "FamilyPages::unrecorded_blobs",
        "Counters::source",
        "level_stats::LevelIo",
        "events::EventQueue",
        "health::Failures",
        "background::IdleSince",
        "background::LastFlush",
        "BackPressure::urgent",
        "DrainRates::busy_since",
        "DrainRates::collecting_since",
        "space_amp::Inner",
        "space_amp::HiddenGarbage",
        "StoreMemory::promised",
        "Persistence::log_ends",
        "by_family::offered",
        // The write path.
        "log_space::SpareLogs",
        "Countdown::lock",
        "memtable_set::SeparatedRecords",
        "MemtableSet::booked",
        // Work that runs.
        "manual_calls::CallList",
        "plan::Claim",
        "outcome::Outcome",
        "input::InputProgress",
        "PreparedSet::created",
        "PreparedSet::created_blobs",
        // Files.
        "OpenFile::slot",
        "removal::RemovalState",
        // Memtables.
        "arena::Chunk",
        "live_ranges::TombstoneRun",
    ],
};

/// The right to flush, which the lock of flushes guards.
pub(crate) struct FlushTurn;

/// An open store. See the documentation of the module.
pub(crate) struct Engine {
    pub ctx: Arc<StoreContext>,
    pub health: Arc<Health>,
    pub background: Arc<Background>,
    pub pressure: Arc<BackPressure>,
    pub tree: Tree,
    pub writes: WritePath,
    /// What is persisted of a passive store; `None` for a store with a log.
    pub persistence: Option<Arc<Persistence>>,
    /// Manual compactions and checkpoints, which closing waits for.
    pub manual: ManualCalls,
    /// Held while memtables are flushed: by the flush job, or by a writer that resumes a halted
    /// store.
    pub flushing: Mutex<FlushTurn>,
    /// Samples of the store's shape, until it is closed.
    pub metric_source: Mutex<Option<MetricSource>>,
    /// The lock of the directory, until it is given back.
    pub dir_lock: Mutex<Option<Box<dyn LockGuard>>>,
}

impl Engine {
    /// Records, durably, that the store has another engine.
    pub fn add_engine(&self, kind: EngineKind) -> Result<()> {
        self.ctx.check_writable()?;
        // Only one thread adds an engine at a time.
        let _writer = self.writes.lock();
        self.ctx.check_open()?;
        let mut engines = self.tree.lock().catalog().engines.clone();
        if !engines.insert(kind) {
            return Ok(());
        }
        let edit = Edit {
            features: Some([0, 0, engine_bits(&engines)]),
            ..Edit::default()
        };
        self.tree.install(edit, Vec::new(), |_, _| ())
    }

    /// Puts the parts of an opened store together. Background work begins when the engine is
    /// registered at [`Background::register`].
    pub fn new(
        env: &Env,
        dir: PathBuf,
        options: Options,
        opened: OpenedTree,
        dir_lock: Option<Box<dyn LockGuard>>,
        read_only: bool,
    ) -> Arc<Engine> {
        let store_id = opened.catalog.store_id;
        let next_seq = opened.last_seq + 1;
        let tables = opened.tables.clone();
        let position = opened
            .catalog
            .passive
            .then(|| PassivePosition::new(&opened.catalog.flags()));
        let persistence = position
            .as_ref()
            .map(|p| Arc::new(Persistence::of(p, &options)));
        let ctx = StoreContext::new(env, dir, options, store_id, tables, read_only);
        let health = Health::new(&ctx);
        let background = Background::new(&ctx);
        let pressure = BackPressure::new(&ctx, &health, &background);
        let tree = Tree::new(&ctx, &health, &background, &pressure, opened);
        let writes = WritePath::new(&ctx, next_seq, position);
        Arc::new(Engine {
            writes,
            persistence,
            ctx,
            health,
            background,
            pressure,
            tree,
            manual: ManualCalls::default(),
            flushing: Mutex::new(FlushTurn),
            metric_source: named("Engine::metric_source", Mutex::new(None)),
            dir_lock: named("Engine::dir_lock", Mutex::new(dir_lock)),
        })
    }
}
