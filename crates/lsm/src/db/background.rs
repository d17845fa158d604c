//! Background work as its requesters see it. They ask for work to be queued, and do not know how
//! the work is done.
//!
//! The jobs (flush, compaction, garbage collection, retries) need every other part of the store,
//! and every other part asks for jobs. So the parts depend on [`Background`] alone, and the engine
//! registers itself there as [`BackgroundJobs`] when the store is open.
//!
//! The timers hold no reference to the store, so a delayed job does not keep a dropped store alive.

use super::context::StoreContext;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Mutex, named};
use basalt_env::{Env, JobPriority, Urgent};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Time from a failure to the next attempt in a store without writes. A write tries sooner.
const RETRY_WITHOUT_WRITES: Duration = Duration::from_secs(1);

/// Two flushes within this time count as urgent.
pub(crate) const URGENT_WITHIN: Duration = Duration::from_secs(2);

/// The work that the engine does for [`Background`].
pub(crate) trait BackgroundJobs: Send + Sync {
    /// Queues the jobs that are due: a flush, compactions, garbage collections.
    fn queue_due_jobs(self: Arc<Self>);
    /// Tries again what has failed.
    fn retry_failed(self: Arc<Self>);
    /// Flushes an idle store and deletes its logs.
    fn release_idle_memory(self: Arc<Self>);
}

/// Timers and requests of a store's background work.
pub(crate) struct Background {
    ctx: Arc<StoreContext>,
    jobs: OnceLock<Weak<dyn BackgroundJobs>>,
    /// True while a retry is on its way.
    retry_is_queued: AtomicBool,
    /// True while a delayed check of what is due is on its way.
    check_is_queued: AtomicBool,
    /// True while a check for compactions that readers have paid for is on its way.
    read_check_is_queued: AtomicBool,
    /// True while a check for idleness is on its way.
    idle_check_is_queued: AtomicBool,
    /// Commit groups when the last check for idleness was queued.
    groups_at_idle_check: AtomicU64,
    flush_pace: FlushPace,
    /// Lookups of blocks in the cache when memtables were last flushed.
    lookups_at_flush: AtomicU64,
    idle_since: IdleSince,
}

impl Background {
    /// Returns the background work of a store, without any job until [`Background::register`].
    pub fn new(ctx: &Arc<StoreContext>) -> Arc<Background> {
        Arc::new(Background {
            ctx: ctx.clone(),
            jobs: OnceLock::new(),
            retry_is_queued: AtomicBool::new(false),
            check_is_queued: AtomicBool::new(false),
            read_check_is_queued: AtomicBool::new(false),
            idle_check_is_queued: AtomicBool::new(false),
            groups_at_idle_check: AtomicU64::new(0),
            flush_pace: FlushPace::default(),
            lookups_at_flush: AtomicU64::new(0),
            idle_since: IdleSince::default(),
        })
    }

    /// Sets the engine that does the work. Called once, when the store is open.
    pub fn register(&self, jobs: Weak<dyn BackgroundJobs>) {
        assert!(self.jobs.set(jobs).is_ok(), "registered once");
    }

    fn jobs(&self) -> Option<Arc<dyn BackgroundJobs>> {
        self.jobs.get().and_then(Weak::upgrade)
    }

    /// Queues the jobs that are due. Must not be called under `state`.
    pub fn schedule(&self) {
        if let Some(jobs) = self.jobs() {
            jobs.queue_due_jobs();
        }
    }

    /// Runs `then` as a housekeeping job after a delay, unless the store is dropped or closed.
    fn after(&self, delay: Duration, then: impl FnOnce(Arc<dyn BackgroundJobs>) + Send + 'static) {
        let (jobs, ctx) = (self.jobs.get().cloned(), Arc::downgrade(&self.ctx));
        let job = move || {
            let jobs = jobs.and_then(|jobs| jobs.upgrade());
            if let (Some(jobs), Some(ctx)) = (jobs, ctx.upgrade())
                && !ctx.is_closing()
            {
                then(jobs);
            }
        };
        (self.ctx.jobs).spawn_after(JobPriority::Housekeeping, delay, job);
    }

    /// Tries again what has failed, one second from now at the latest, even if no write comes.
    pub fn retry_later(self: &Arc<Self>) {
        if !self.ctx.is_closing() && !self.retry_is_queued.swap(true, SeqCst) {
            let background = Arc::downgrade(self);
            self.after(RETRY_WITHOUT_WRITES, move |jobs| {
                if let Some(background) = background.upgrade() {
                    background.retry_is_queued.store(false, SeqCst);
                }
                jobs.retry_failed();
            });
        }
    }

    /// Queues what is due after a delay, although nothing may have happened by then.
    pub fn schedule_after(self: &Arc<Self>, delay: Duration) {
        if !self.ctx.is_closing() && !self.check_is_queued.swap(true, SeqCst) {
            let background = Arc::downgrade(self);
            self.after(delay, move |jobs| {
                if let Some(background) = background.upgrade() {
                    background.check_is_queued.store(false, SeqCst);
                    if background.is_flushing_fast() {
                        background.schedule_after(URGENT_WITHIN);
                    }
                }
                jobs.queue_due_jobs();
            });
        }
    }

    /// Watches for the time without commit groups after which the memtables are flushed
    /// ([`crate::Options::idle_release`]). Called with each group. Takes no lock while a check is
    /// on its way.
    pub fn watch_idle(self: &Arc<Self>) {
        let period = self.ctx.options.idle_release;
        if period.is_zero() || self.idle_check_is_queued.load(SeqCst) {
            return;
        }
        self.idle_check_is_queued.store(true, SeqCst);
        let groups = self.ctx.counters.commit_groups.get();
        self.groups_at_idle_check.store(groups, SeqCst);
        let background = Arc::downgrade(self);
        self.after(period, move |jobs| {
            let Some(background) = background.upgrade() else {
                return;
            };
            background.idle_check_is_queued.store(false, SeqCst);
            let groups = background.ctx.counters.commit_groups.get();
            match groups == background.groups_at_idle_check.load(SeqCst) {
                true => jobs.release_idle_memory(),
                false => background.watch_idle(),
            }
        });
    }

    /// Returns the flag that is set while a check for idleness is on its way.
    #[cfg(test)]
    pub fn idle_check_is_queued(&self) -> &AtomicBool {
        &self.idle_check_is_queued
    }

    /// Begins a check for compactions that readers have paid for. Returns true if one is on its
    /// way.
    pub fn begin_read_check(&self) -> bool {
        self.read_check_is_queued.swap(true, SeqCst)
    }

    /// Ends the check: readers may ask for another one.
    pub fn end_read_check(&self) {
        self.read_check_is_queued.store(false, SeqCst);
    }

    /// Notes that readers have asked whether the store is idle. See [`Background::idle_for`].
    pub fn note_idle_check(&self) {
        let groups = self.ctx.counters.commit_groups.get();
        self.idle_since.note(groups, self.ctx.env.clock().now());
    }

    /// Returns the time since the first [`Background::note_idle_check`] after the last commit
    /// group.
    pub fn idle_for(&self) -> Duration {
        let groups = self.ctx.counters.commit_groups.get();
        self.idle_since.lasts(groups, self.ctx.env.clock().now())
    }

    /// Notes the number of block lookups in the cache at a flush. Returns the number at the flush
    /// before it.
    pub fn swap_lookups_at_flush(&self, lookups: u64) -> u64 {
        self.lookups_at_flush.swap(lookups, SeqCst)
    }

    /// Notes that memtables were flushed.
    pub fn note_flush(&self) {
        self.flush_pace.note(self.ctx.env.clock().now());
    }

    /// Returns true while the next flush is likely to come within two seconds, and no caller waits
    /// for compactions. Returns false where the clock stands still.
    pub fn is_flushing_fast(&self) -> bool {
        self.flush_pace.is_urgent(self.ctx.env.clock().now())
    }

    /// Notes that a caller waits until no compaction is due. Until the guard is dropped,
    /// compactions do not wait for more input, and do not pause for foreground I/O.
    pub fn await_compactions(&self) -> AwaitedCompactions<'_> {
        self.flush_pace.awaited(&self.ctx.env)
    }

    /// Returns true while a caller waits until no compaction is due.
    pub fn compactions_are_awaited(&self) -> bool {
        self.flush_pace.is_awaited()
    }
}

/// The time at which the commit groups of a store were last seen to change.
struct IdleSince(Mutex<Option<(u64, Duration)>>);

impl Default for IdleSince {
    fn default() -> IdleSince {
        IdleSince(named("background::IdleSince", Mutex::new(None)))
    }
}

impl IdleSince {
    fn note(&self, groups: u64, now: Duration) {
        let mut since = self.0.lock();
        if since.is_none_or(|(then, _)| then != groups) {
            *since = Some((groups, now));
        }
    }

    fn lasts(&self, groups: u64, now: Duration) -> Duration {
        match *self.0.lock() {
            Some((then, at)) if then == groups => now.saturating_sub(at),
            _ => Duration::ZERO,
        }
    }
}

/// The pace at which flushes follow each other, and the callers that wait for compactions.
#[derive(Default)]
struct FlushPace {
    last: Mutex<Option<LastFlush>>,
    /// Callers that wait until no compaction is due.
    awaited: AtomicUsize,
}

/// A caller waits until no compaction is due, until this is dropped.
pub(crate) struct AwaitedCompactions<'a> {
    awaited: &'a AtomicUsize,
    _urgent: Urgent,
}

impl Drop for AwaitedCompactions<'_> {
    fn drop(&mut self) {
        self.awaited.fetch_sub(1, SeqCst);
    }
}

#[derive(Clone, Copy)]
struct LastFlush {
    /// Time at which the last flush ended.
    at: Duration,
    /// Time from the end of the flush before it.
    after: Duration,
}

impl FlushPace {
    fn note(&self, now: Duration) {
        let mut last = self.last.lock();
        let after = last.map_or(Duration::MAX, |l| now.saturating_sub(l.at));
        *last = Some(LastFlush { at: now, after });
    }

    fn is_urgent(&self, now: Duration) -> bool {
        let soon = self.last.lock().is_some_and(|l| {
            !l.after.is_zero()
                && l.after <= URGENT_WITHIN
                && now.saturating_sub(l.at) <= URGENT_WITHIN
        });
        soon && !self.is_awaited()
    }

    fn awaited(&self, env: &Env) -> AwaitedCompactions<'_> {
        self.awaited.fetch_add(1, SeqCst);
        AwaitedCompactions {
            awaited: &self.awaited,
            _urgent: env.foreground_io().urgent(),
        }
    }

    fn is_awaited(&self) -> bool {
        self.awaited.load(SeqCst) > 0
    }
}
