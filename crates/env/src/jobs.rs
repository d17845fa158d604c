//! Background jobs on one pool that all engines of an [`crate::Env`] share.
//!
//! Threads start with the first job and are named `basalt-job-N`. One further thread,
//! `basalt-commit`, starts with the first [`JobPriority::Commit`] job, so that a commit never waits
//! behind a compaction. This thread is the commit lane. In stepped mode there are no threads:
//! [`Jobs::step`] runs the most urgent job on the caller's thread, and [`Jobs::wait_until`] steps
//! instead of blocking. A job may have a delay ([`JobOwner::spawn_after`]). Idle threads wait for
//! the next job that comes due, so delays cost no thread of their own.
//!
//! Invariants:
//! 1. No lock of the pool is held while a job runs or is dropped, or while a wait calls `done()`.
//!    So jobs may call anything here.
//! 2. `owners[o]` counts the queued and running jobs of `o`. A running job counts until it has
//!    returned, so the jobs that it queues are counted before it stops counting. A drain cannot
//!    slip between the two.
//! 3. Threads hold the pool's `JobPool`, never a `Jobs`. When the last `Jobs` is dropped, it makes
//!    the threads end and waits for them, unless it is dropped on one of them. A queued job may
//!    hold a `Jobs` (through an `Env`). It then keeps the pool alive until it ran.

use crate::clock::Clock;
use crate::sync::JoinHandle;
use crate::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use crate::sync::{Condvar, Mutex, MutexGuard, named};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The priority of a job. Lower variants are more urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobPriority {
    /// Leading a commit group. These jobs have a lane of their own.
    Commit,
    /// Writing a memtable to tables, and work that writers wait for in a filesystem of an image:
    /// its checkpoints and full write buffers.
    Flush,
    /// Preparing the next log, removing obsolete files.
    Housekeeping,
    /// Merging tables.
    Compaction,
    /// Garbage collection of blob files.
    Gc,
    /// Compacting a tree of pages beside the job that maintains it. A job of this priority runs as
    /// long as no other long job waits ([`Jobs::long_jobs_wait`]), and then ends.
    Helper,
}

/// Number of priorities.
pub(crate) const PRIORITIES: usize = JobPriority::Helper as usize + 1;

const COMMIT: usize = JobPriority::Commit as usize;
const COMPACTION: usize = JobPriority::Compaction as usize;
const GC: usize = JobPriority::Gc as usize;
const HELPER: usize = JobPriority::Helper as usize;
/// Once in this many picks of a long job, a waiting GC runs before a waiting compaction. So space
/// is also reclaimed while compactions never run out.
const GC_TURN: u64 = 8;
/// Once in this many picks of a long job, a waiting helper runs before all others. It sees that
/// they wait, and ends at once. Without a turn, a store that closes would wait for its helpers
/// until no store has a long job.
const HELPER_TURN: u64 = 32;
/// Longest time after which a waiter checks again without a notification.
const RECHECK: Duration = Duration::from_millis(10);

/// A queued job.
struct Job {
    owner: u64,
    priority: JobPriority,
    run: Box<dyn FnOnce() + Send>,
}

/// The queues and threads of a pool, under its lock.
#[derive(Default)]
struct PoolState {
    /// Queued jobs by priority.
    queues: [VecDeque<Job>; PRIORITIES],
    /// Number of running jobs by priority.
    running: [usize; PRIORITIES],
    /// Number of queued and running jobs of each owner that has any.
    owners: BTreeMap<u64, usize>,
    /// Delayed jobs, by due time and order of arrival. They count for their owner once they are
    /// due.
    delayed: BTreeMap<(Duration, u64), Job>,
    /// Number of the next delayed job, which orders jobs with one due time.
    next_delayed: u64,
    /// The first panic message of each owner.
    panics: BTreeMap<u64, String>,
    /// Number of pool threads, and number of those that wait for work.
    alive: usize,
    idle: usize,
    /// True if the thread of the commit lane runs.
    lane_alive: bool,
    /// Number of compactions, GC jobs and helpers taken so far.
    long_picks: u64,
    /// True if the threads must end when the queues are empty.
    stop: bool,
    threads: Vec<JoinHandle<()>>,
}

impl PoolState {
    fn may_run_long(&self, limit: usize) -> bool {
        self.running[COMPACTION..].iter().sum::<usize>() < limit
    }

    /// Returns true if a compaction or garbage collection waits until another long job ends.
    fn long_jobs_wait(&self, limit: usize) -> bool {
        let is_queued = self.queues[COMPACTION..HELPER]
            .iter()
            .any(|q| !q.is_empty());
        is_queued && !self.may_run_long(limit)
    }

    /// Returns true if a pool thread could start a job now.
    fn has_pool_work(&self, limit: usize) -> bool {
        self.queues[COMMIT + 1..COMPACTION]
            .iter()
            .any(|q| !q.is_empty())
            || (self.may_run_long(limit) && self.queues[COMPACTION..].iter().any(|q| !q.is_empty()))
    }

    fn take_from(&mut self, queue: usize) -> Option<Job> {
        let job = self.queues[queue].pop_front()?;
        self.running[queue] += 1;
        Some(job)
    }

    /// Returns the next job for a pool thread.
    fn take_pool(&mut self, limit: usize) -> Option<Job> {
        for queue in COMMIT + 1..COMPACTION {
            if let Some(job) = self.take_from(queue) {
                return Some(job);
            }
        }
        if !self.may_run_long(limit) {
            return None;
        }
        let gc_first = self.long_picks % GC_TURN == GC_TURN - 1;
        let (first, second) = if gc_first {
            (GC, COMPACTION)
        } else {
            (COMPACTION, GC)
        };
        let helper_first = self.long_picks % HELPER_TURN == HELPER_TURN - 2;
        let job = (helper_first.then(|| self.take_from(HELPER)).flatten())
            .or_else(|| self.take_from(first))
            .or_else(|| self.take_from(second))
            .or_else(|| self.take_from(HELPER))?;
        self.long_picks += 1;
        Some(job)
    }

    /// Returns the most urgent job of all, oldest first, or the most urgent job of one owner.
    fn take_any(&mut self, owner: Option<u64>) -> Option<Job> {
        for queue in 0..self.queues.len() {
            let wanted = |job: &Job| owner.is_none_or(|o| o == job.owner);
            if let Some(at) = self.queues[queue].iter().position(wanted) {
                self.running[queue] += 1;
                return self.queues[queue].remove(at);
            }
        }
        None
    }

    fn enqueue(&mut self, job: Job) {
        *self.owners.entry(job.owner).or_insert(0) += 1;
        self.queues[job.priority as usize].push_back(job);
    }

    /// Queues the delayed jobs whose time has come. Returns true if there was one.
    fn queue_due(&mut self, now: impl Fn() -> Duration) -> bool {
        let mut any = false;
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now()
        {
            let job = first.remove();
            self.enqueue(job);
            any = true;
        }
        any
    }

    /// Removes and returns an owner's delayed jobs.
    fn take_delayed(&mut self, owner: u64) -> Vec<Job> {
        let gone = self.delayed.extract_if(.., |_, job| job.owner == owner);
        gone.map(|(_, job)| job).collect()
    }

    fn forget(&mut self, owner: u64) {
        let n = self
            .owners
            .get_mut(&owner)
            .expect("a job's owner is counted until it ends");
        *n -= 1;
        if *n == 0 {
            self.owners.remove(&owner);
        }
    }
}

/// A pool, as its threads hold it.
struct JobPool {
    /// Number of pool threads; 0 in stepped mode.
    threads: usize,
    /// Most pool threads that may run compactions, GC and helpers at once.
    long_limit: usize,
    /// True if a job of any owner has panicked. Frequent callers need no lock while no job has.
    panicked: AtomicBool,
    state: Mutex<PoolState>,
    /// Wakes pool threads.
    pool_work: Condvar,
    /// Wakes the commit lane.
    lane_work: Condvar,
    next_owner: AtomicU64,
    /// Grows with each notification. A waiter that read `epoch` before it called `done()` sleeps
    /// only while it is unchanged.
    epoch: AtomicU64,
    /// Number of threads in [`Jobs::wait_until`].
    waiters: AtomicUsize,
    wait_lock: Mutex<()>,
    wait_cv: Condvar,
    /// The clock for timeouts of real waits and for delays. With threads it is the system's,
    /// because a manual clock does not move by itself. In stepped mode it is the environment's.
    clock: Clock,
}

crate::sync::thread_local! {
    /// The pool (by address) and the owner of the innermost job that runs on this thread.
    static CURRENT: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
    /// The pool (by address) that this thread belongs to.
    static THREAD_OF: Cell<usize> = const { Cell::new(0) };
}

impl JobPool {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs a job that was taken from a queue, and records its end.
    fn run(&self, job: Job) {
        let Job {
            owner,
            priority,
            run,
        } = job;
        let outer = CURRENT.with(|current| current.replace((self.address(), owner)));
        let end = catch_unwind(AssertUnwindSafe(run));
        CURRENT.with(|current| current.set(outer));
        let panic = end.err().map(|what| {
            let message = crate::thread::panic_message(&*what);
            message.unwrap_or_else(|| "a job panicked without a message".to_string())
        });
        let mut state = self.state.lock();
        state.running[priority as usize] -= 1;
        state.forget(owner);
        if let Some(panic) = panic {
            // The first panic is the cause. Later ones may be its consequences.
            state.panics.entry(owner).or_insert(panic);
            self.panicked.store(true, SeqCst);
        }
        drop(state);
        self.notify();
    }

    fn notify(&self) {
        self.epoch.fetch_add(1, SeqCst);
        // A waiter counts itself before it reads the epoch. So either this thread sees the waiter,
        // or the waiter sees the new epoch.
        if self.waiters.load(SeqCst) > 0 {
            drop(self.wait_lock.lock());
            self.wait_cv.notify_all();
        }
    }

    /// Makes sure that a thread will run the queued jobs: wakes a thread or starts one.
    fn dispatch(self: &Arc<Self>, mut state: MutexGuard<'_, PoolState>) {
        let start_lane = !state.lane_alive && !state.queues[COMMIT].is_empty();
        if !start_lane && !state.queues[COMMIT].is_empty() {
            self.lane_work.notify_one();
        }
        let mut start_pool = None;
        if state.has_pool_work(self.long_limit) {
            if state.idle > 0 {
                self.pool_work.notify_one();
            } else if state.alive < self.threads {
                start_pool = Some(state.alive);
                state.alive += 1;
            }
        }
        state.lane_alive |= start_lane;
        drop(state);
        if start_lane {
            self.start("basalt-commit".to_string(), true);
        }
        if let Some(n) = start_pool {
            self.start(format!("basalt-job-{n}"), false);
        }
    }

    /// Makes sure that a thread waits when the next delayed job comes due.
    fn dispatch_delayed(self: &Arc<Self>, mut state: MutexGuard<'_, PoolState>) {
        self.lane_work.notify_one();
        if state.idle > 0 {
            self.pool_work.notify_one();
        } else if state.alive < self.threads {
            let n = state.alive;
            state.alive += 1;
            drop(state);
            self.start(format!("basalt-job-{n}"), false);
        }
    }

    /// Passes the wait for delayed jobs to another thread, because this one is about to run a long
    /// job.
    fn pass_on_delayed(self: &Arc<Self>) {
        let state = self.state.lock();
        if !state.delayed.is_empty() {
            self.dispatch_delayed(state);
        }
    }

    fn start(self: &Arc<Self>, name: String, lane: bool) {
        let shared = self.clone();
        let started = crate::thread::spawn(&name, move || shared.serve(lane));
        let mut state = self.state.lock();
        match started {
            Ok(handle) => state.threads.push(handle),
            // The system has no thread now. The queued jobs stay queued: every spawn and every wait
            // tries again, and the last `Jobs` runs the rest when it is dropped.
            Err(_) if lane => state.lane_alive = false,
            Err(_) => state.alive -= 1,
        }
    }

    /// Runs jobs until the pool ends. This is the main function of each thread.
    fn serve(self: Arc<Self>, lane: bool) {
        THREAD_OF.with(|of| of.set(self.address()));
        let mut state = self.state.lock();
        loop {
            if state.queue_due(|| self.clock.now()) {
                self.dispatch(state);
                state = self.state.lock();
            }
            let job = if lane {
                state.take_from(COMMIT)
            } else {
                state.take_pool(self.long_limit)
            };
            match job {
                Some(job) => {
                    // More jobs may be waiting than threads were woken for.
                    if !lane && state.has_pool_work(self.long_limit) {
                        self.dispatch(state);
                    } else {
                        drop(state);
                    }
                    if job.priority >= JobPriority::Compaction {
                        self.pass_on_delayed();
                    }
                    self.run(job);
                    state = self.state.lock();
                }
                None if state.stop => return,
                None if lane => self.wait_for_work(&self.lane_work, &mut state),
                None => {
                    state.idle += 1;
                    self.wait_for_work(&self.pool_work, &mut state);
                    state.idle -= 1;
                }
            }
        }
    }

    /// Waits for work, or until a delayed job comes due.
    fn wait_for_work(&self, work: &Condvar, state: &mut MutexGuard<'_, PoolState>) {
        match state.delayed.first_key_value() {
            None => work.wait(state),
            Some(((due, _), _)) => {
                let left = due.saturating_sub(self.clock.now());
                work.wait_for(state, left);
            }
        }
    }

    fn active(&self, owner: u64) -> usize {
        self.state.lock().owners.get(&owner).copied().unwrap_or(0)
    }

    fn step(&self, owner: Option<u64>) -> bool {
        let mut state = self.state.lock();
        state.queue_due(|| self.clock.now());
        let job = state.take_any(owner);
        drop(state);
        job.map(|job| self.run(job)).is_some()
    }
}

/// The part of a `Jobs` that is dropped with its last clone.
struct PoolHandle(Arc<JobPool>);

impl Drop for PoolHandle {
    fn drop(&mut self) {
        let shared = &self.0;
        let mut state = shared.state.lock();
        state.stop = true;
        let not_due = std::mem::take(&mut state.delayed);
        shared.pool_work.notify_all();
        shared.lane_work.notify_all();
        drop(state);
        drop(not_due);
        if THREAD_OF.with(Cell::get) == shared.address() {
            // A job held the last handle. Its thread cannot wait for itself, and all threads end on
            // their own.
            return;
        }
        // The loop repeats, because a thread may just have started another one.
        loop {
            let threads = std::mem::take(&mut shared.state.lock().threads);
            if threads.is_empty() {
                break;
            }
            for thread in threads {
                // The panics of jobs are caught, and a thread itself does not panic.
                let _ = thread.join();
            }
        }
        if shared.threads > 0 {
            // Jobs are left only if no thread could be started for them.
            while shared.step(None) {}
        }
        // In stepped mode, jobs that were never stepped never run, as after a power cut. The queues
        // are dropped with `shared`.
    }
}

/// The pool of background jobs. Cloning is cheap.
///
/// When the last clone is dropped, queued jobs still run, and then the threads end. In stepped
/// mode, queued jobs are dropped without running. Delayed jobs that are not due are dropped in both
/// modes.
#[derive(Clone)]
pub struct Jobs(Arc<PoolHandle>);

impl Jobs {
    /// Returns a pool of `n` threads, which start when first needed. At most `n - 1` of them (at
    /// least one) run jobs of `Compaction`, `Gc` or `Helper` at once, so that a flush always finds
    /// a thread when `n > 1`.
    pub fn threads(n: usize) -> Jobs {
        Jobs::threads_by(n, Clock::system())
    }
    /// Returns a pool as [`Jobs::threads`] does, with delays and timeouts by a clock that moves by
    /// itself.
    pub fn threads_by(n: usize, clock: Clock) -> Jobs {
        Jobs::new(n.max(1), clock)
    }
    /// Returns a pool in stepped mode, without threads. Delays are by `clock`.
    pub fn stepped(clock: Clock) -> Jobs {
        Jobs::new(0, clock)
    }
    fn new(threads: usize, clock: Clock) -> Jobs {
        Jobs(Arc::new(PoolHandle(Arc::new(JobPool {
            threads,
            long_limit: threads.saturating_sub(1).max(1),
            panicked: AtomicBool::new(false),
            state: Mutex::default(),
            pool_work: Condvar::new(),
            lane_work: Condvar::new(),
            next_owner: AtomicU64::new(1),
            epoch: AtomicU64::new(0),
            waiters: AtomicUsize::new(0),
            wait_lock: named("JobPool::wait_lock", Mutex::new(())),
            wait_cv: Condvar::new(),
            clock,
        }))))
    }
    fn shared(&self) -> &Arc<JobPool> {
        &self.0.0
    }
    /// Returns true for a pool that [`Jobs::stepped`] made.
    pub fn is_stepped(&self) -> bool {
        self.shared().threads == 0
    }
    /// Returns the number of threads that run jobs, without the commit lane; 0 in stepped mode.
    pub fn parallelism(&self) -> usize {
        self.shared().threads
    }
    /// Returns a new owner, which has no jobs.
    pub fn new_owner(&self) -> JobOwner {
        JobOwner {
            jobs: self.clone(),
            number: self.shared().next_owner.fetch_add(1, Relaxed),
        }
    }
    /// In stepped mode, runs the most urgent queued job, the oldest of its priority. Returns false
    /// if there is none, and always with threads.
    pub fn step(&self) -> bool {
        self.is_stepped() && self.shared().step(None)
    }
    /// Blocks until `done()` is true. With threads, the call checks again whenever [`Jobs::notify`]
    /// is called or a job ends, and at least every 10 ms. In stepped mode, it steps jobs until
    /// `done()` is true or no job is left. Returns the last result of `done()`, so `false` means a
    /// timeout, or in stepped mode that no queued job could make it true.
    ///
    /// The timeout is real time. In stepped mode there is none, except that `Some(Duration::ZERO)`
    /// calls `done()` once in both modes.
    pub fn wait_until(&self, timeout: Option<Duration>, done: &mut dyn FnMut() -> bool) -> bool {
        if done() {
            return true;
        }
        if timeout == Some(Duration::ZERO) {
            return false;
        }
        let shared = self.shared();
        if self.is_stepped() {
            while shared.step(None) {
                if done() {
                    return true;
                }
            }
            return false;
        }
        let end = timeout.map(|t| shared.clock.now().saturating_add(t));
        let _waiting = Waiting::new(&shared.waiters);
        loop {
            let seen = shared.epoch.load(SeqCst);
            if done() {
                return true;
            }
            let left = match end {
                Some(end) => end.saturating_sub(shared.clock.now()),
                None => RECHECK,
            };
            if left.is_zero() {
                return false;
            }
            let mut guard = shared.wait_lock.lock();
            let missed = shared.epoch.load(SeqCst) == seen
                && shared
                    .wait_cv
                    .wait_for(&mut guard, left.min(RECHECK))
                    .timed_out();
            drop(guard);
            if missed {
                // A thread that could not be started before may start now.
                shared.dispatch(shared.state.lock());
            }
        }
    }
    /// Wakes all callers of [`Jobs::wait_until`].
    pub fn notify(&self) {
        self.shared().notify();
    }
    /// Returns true if compactions or garbage collections wait until another long job ends. A job
    /// of [`JobPriority::Helper`] asks for it from time to time.
    pub fn long_jobs_wait(&self) -> bool {
        let shared = self.shared();
        shared.state.lock().long_jobs_wait(shared.long_limit)
    }
    /// Returns the number of queued and running jobs by priority, for metrics.
    pub fn pending(&self) -> [usize; PRIORITIES] {
        pending(self.shared())
    }
    /// Returns a function with the result of [`Jobs::pending`], for a caller that must not keep the
    /// pool's threads alive.
    pub(crate) fn pending_reader(
        &self,
    ) -> impl Fn() -> [usize; PRIORITIES] + Clone + Send + Sync + 'static {
        let shared = Arc::downgrade(self.shared());
        move || shared.upgrade().map_or([0; PRIORITIES], |s| pending(&s))
    }
    /// Returns the number of jobs that run now, without the commit lane.
    pub fn running(&self) -> usize {
        running(self.shared())
    }
    /// Returns a function with the result of [`Jobs::running`], for a caller that must not keep the
    /// pool's threads alive.
    pub(crate) fn running_reader(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let shared = Arc::downgrade(self.shared());
        move || shared.upgrade().map_or(0, |s| running(&s))
    }
}

/// An owner of jobs of a pool. It can wait for its jobs, or drop them, apart from those of other
/// owners. Cloning is cheap, and a clone is the same owner.
#[derive(Clone)]
pub struct JobOwner {
    jobs: Jobs,
    number: u64,
}

impl JobOwner {
    /// Returns the owner's number, which no other owner of the pool has.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn job(&self, priority: JobPriority, run: impl FnOnce() + Send + 'static) -> Job {
        Job {
            owner: self.number,
            priority,
            run: Box::new(run),
        }
    }

    /// Queues a job.
    ///
    /// With threads, a job must not wait for another job of the pool, because all threads might do
    /// so. It may wait for a job of the commit lane, unless it runs on that lane. In stepped mode a
    /// job may wait for any job, because its wait steps.
    pub fn spawn(&self, priority: JobPriority, run: impl FnOnce() + Send + 'static) {
        let shared = self.jobs.shared();
        let job = self.job(priority, run);
        let mut state = shared.state.lock();
        state.enqueue(job);
        if !self.jobs.is_stepped() {
            shared.dispatch(state);
        }
    }
    /// Queues a job after `delay`. No call waits for it before it is due: [`JobOwner::drain`] drops
    /// jobs that are not due. The job may come late if every thread is busy.
    pub fn spawn_after(
        &self,
        priority: JobPriority,
        delay: Duration,
        run: impl FnOnce() + Send + 'static,
    ) {
        let shared = self.jobs.shared();
        let job = self.job(priority, run);
        let mut state = shared.state.lock();
        let place = (shared.clock.now().saturating_add(delay), state.next_delayed);
        state.next_delayed += 1;
        state.delayed.insert(place, job);
        if !self.jobs.is_stepped()
            && state
                .delayed
                .first_key_value()
                .is_some_and(|f| *f.0 == place)
        {
            // A waiting thread would sleep too long for this job.
            shared.dispatch_delayed(state);
        }
    }
    /// Waits until no job of the owner is queued or running. In stepped mode it runs them. The
    /// owner must have stopped queueing. Delayed jobs that are not due are dropped. The call also
    /// waits for jobs that these jobs queue before they end.
    ///
    /// A job of the owner may call this, as when an engine is dropped by its own last job. It then
    /// waits for the other jobs. On a thread of the pool, the call runs queued jobs of the owner
    /// itself.
    pub fn drain(&self) {
        let shared = self.jobs.shared();
        let drop_delayed = || {
            // The jobs are dropped after the lock is released.
            let gone = shared.state.lock().take_delayed(self.number);
            drop(gone);
        };
        drop_delayed();
        if self.jobs.is_stepped() {
            while shared.step(Some(self.number)) {
                drop_delayed();
            }
            return;
        }
        let mine = usize::from(CURRENT.with(Cell::get) == (shared.address(), self.number));
        // This thread of the pool may be the only one that could run the queued jobs.
        let helps = THREAD_OF.with(Cell::get) == shared.address();
        self.jobs.wait_until(None, &mut || {
            while helps && shared.step(Some(self.number)) {}
            shared.active(self.number) <= mine
        });
        drop_delayed();
    }
    /// Drops the queued jobs of the owner without running them, and returns their number. Running
    /// jobs continue. It simulates a power cut: stepped jobs that hold an `Env` would otherwise
    /// keep it, and themselves, for ever.
    pub fn cancel(&self) -> usize {
        let mut state = self.jobs.shared().state.lock();
        let mut dropped = Vec::new();
        for queue in &mut state.queues {
            let (gone, kept): (VecDeque<_>, _) =
                queue.drain(..).partition(|job| job.owner == self.number);
            *queue = kept;
            dropped.extend(gone);
        }
        for job in &dropped {
            state.forget(job.owner);
        }
        dropped.extend(state.take_delayed(self.number));
        drop(state);
        self.jobs.notify();
        dropped.len()
    }
    /// Returns the panic message of the owner's first job that panicked, or `None`. The pool
    /// survives a panic, but the engine must stop.
    pub fn panicked(&self) -> Option<String> {
        let shared = self.jobs.shared();
        if !shared.panicked.load(SeqCst) {
            return None;
        }
        shared.state.lock().panics.get(&self.number).cloned()
    }
}

fn pending(shared: &JobPool) -> [usize; PRIORITIES] {
    let state = shared.state.lock();
    std::array::from_fn(|p| state.queues[p].len() + state.running[p])
}

fn running(shared: &JobPool) -> usize {
    shared.state.lock().running[COMMIT + 1..].iter().sum()
}

/// Counts a waiter, also when its `done()` panics.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
