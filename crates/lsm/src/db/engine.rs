//! The engine behind a [`super::Db`]: its parts, and the order of their locks.
//!
//! Each part owns its state, and no other part accesses that state. A part knows only the parts
//! above it in this table. Operations on the store (commits, reads, jobs, checkpoints, ...) are
//! methods of [`Engine`] in modules of their own, which use the parts.
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
//! [`LOCK_ORDER`] has the locks of a store that are held while others are taken. A thread that
//! holds one of them takes only locks that stand behind it, and leaves. All other locks are leaves:
//! a thread that holds one takes no other lock of the store. A test under the scheduler compares
//! every pair of locks that the models take with this order.

use super::back_pressure::BackPressure;
use super::background::Background;
use super::context::StoreContext;
use super::health::Health;
use super::manual_calls::ManualCalls;
use super::tree::{OpenedTree, Tree};
use super::write_path::WritePath;
use crate::options::Options;
use basalt_env::sync::Mutex;
use basalt_env::{Env, MetricSource};
use basalt_fs::LockGuard;
use std::path::PathBuf;
use std::sync::Arc;

/// The order in which locks of a store are taken, each named after the type that it guards.
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
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: &[&str] = &[
    "write_path::Writer",
    "engine::FlushTurn",
    "tree::ManifestSlot",
    "tree::TreeState",
    "view::View",
    "queue::Queue",
    "ticket_state::Slot",
];

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
        let ctx = StoreContext::new(env, dir, options, store_id, tables, read_only);
        let health = Health::new(&ctx);
        let background = Background::new(&ctx);
        let pressure = BackPressure::new(&ctx, &health, &background);
        let tree = Tree::new(&ctx, &health, &background, &pressure, opened);
        Arc::new(Engine {
            writes: WritePath::new(&ctx, next_seq),
            ctx,
            health,
            background,
            pressure,
            tree,
            manual: ManualCalls::default(),
            flushing: Mutex::new(FlushTurn),
            metric_source: Mutex::new(None),
            dir_lock: Mutex::new(dir_lock),
        })
    }
}
