//! Back-pressure: the limits on writers, and the causes that make background work urgent.
//!
//! Writers are slowed or held for the causes of [`super::stall_cause`]: backlogs of flushes and
//! compactions, the environment's memory budget, and garbage in blob files. They are refused while
//! the disk is full. This part measures; the write path decides which writers wait, and where.
//!
//! | module | what it measures |
//! |---|---|
//! | [`stalls`] | the rates at which backlogs shrink, the share of them that writers get, stalls |
//! | [`space_amp`] | the space that blob files take, against its bound |
//! | [`disk_full`] | the free space of the disk, against the reserve |
//! | [`memory`] | the store's part in the memory budget that stores share |
//!
//! Locks: all of this part's locks are leaves. They may be taken under `state`.

pub(crate) mod disk_full;
pub(crate) mod memory;
pub(crate) mod space_amp;
pub(crate) mod stalls;

use super::background::Background;
use super::context::StoreContext;
use super::health::Health;
use super::view::View;
use basalt_env::Urgent;
use basalt_env::sync::{Mutex, named};
use disk_full::DiskFull;
use memory::StoreMemory;
use space_amp::SpaceAmp;
use stalls::{DrainRates, Stalls};
use std::sync::Arc;

/// The size of a commit group that asks to be admitted.
pub(crate) struct GroupSize {
    /// Bytes that the group takes in the log.
    pub bytes: u64,
    /// Bytes that memtables get of the group at most, with its values decompressed.
    pub memory: u64,
    /// Number of operations of the group.
    pub entries: u64,
    /// True if the group has compressed values.
    pub has_compressed: bool,
}

/// The causes that hold the writers of a store back. See the documentation of the module.
pub(crate) struct BackPressure {
    ctx: Arc<StoreContext>,
    health: Arc<Health>,
    background: Arc<Background>,
    drain: DrainRates,
    stalls: Stalls,
    space_amp: SpaceAmp,
    disk_full: DiskFull,
    memory: StoreMemory,
    /// Held while background work is behind: it then does not pause for foreground I/O.
    urgent: Mutex<Option<Urgent>>,
}

impl BackPressure {
    /// Returns the back-pressure of a store whose backlogs are empty.
    pub fn new(
        ctx: &Arc<StoreContext>,
        health: &Arc<Health>,
        background: &Arc<Background>,
    ) -> Arc<BackPressure> {
        Arc::new(BackPressure {
            ctx: ctx.clone(),
            health: health.clone(),
            background: background.clone(),
            drain: DrainRates::new(),
            stalls: Stalls::default(),
            space_amp: SpaceAmp::default(),
            disk_full: DiskFull::default(),
            memory: StoreMemory::default(),
            urgent: named("BackPressure::urgent", Mutex::new(None)),
        })
    }

    /// Returns the rates at which backlogs shrink.
    pub fn drain(&self) -> &DrainRates {
        &self.drain
    }

    /// Returns the bound on the space of blob files.
    pub fn space_amp(&self) -> &SpaceAmp {
        &self.space_amp
    }

    /// Returns the state of the free disk space.
    pub fn disk_full(&self) -> &DiskFull {
        &self.disk_full
    }

    /// Returns the store's part in the shared memory budget.
    pub fn memory(&self) -> &StoreMemory {
        &self.memory
    }

    /// Makes background work urgent while it is behind and can reduce the backlog, and ends that
    /// when it is not. Called with each change of the view.
    pub fn note_urgent(&self, view: &View) {
        let behind = view.backlog.is_urgent()
            || view.waiting_sets(&self.ctx.options) >= self.ctx.options.max_sealed_memtables
            || self.space_amp.pressure() > 0.0;
        let idle =
            self.ctx.read_only || self.ctx.has_left() || self.health.compaction_error().is_some();
        let mut urgent = self.urgent.lock();
        if (behind && !idle) != urgent.is_some() {
            *urgent = (behind && !idle).then(|| self.ctx.env.foreground_io().urgent());
        }
    }

    /// Makes background work urgent until the view changes.
    pub fn make_urgent(&self) {
        let mut urgent = self.urgent.lock();
        urgent.get_or_insert_with(|| self.ctx.env.foreground_io().urgent());
    }

    /// Ends the urgency of background work: the store is closed.
    pub fn end_urgent(&self) {
        *self.urgent.lock() = None;
    }
}
