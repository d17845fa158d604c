//! Background jobs on one pool that all engines of an [`crate::Env`] share.
//!
//! Threads start with the first job and are named `basalt-job-N`. One further lane, `basalt-commit`, starts with
//! the first [`JobPriority::Commit`] job, so that a commit never waits behind a compaction. In stepped
//! mode there are no threads: [`Jobs::step`] runs the most urgent job on the caller's thread, and
//! [`Jobs::wait_until`] steps instead of blocking.

use std::time::Duration;

/// Which job runs first. Lower variants are more urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobPriority {
    /// Leading a commit group; has a lane of its own.
    Commit,
    /// Writing a memtable out.
    Flush,
    /// Preparing the next log, removing obsolete files.
    Housekeeping,
    /// Merging tables.
    Compaction,
    /// Collecting garbage of values.
    Gc,
}

/// The pool. Cheap to clone.
#[derive(Clone)]
pub struct Jobs(std::sync::Arc<()>);

impl Jobs {
    /// A pool of `n` threads, started when first needed. At most `n - 1` of them (at least one)
    /// run jobs of `Compaction` or `Gc` at once, so that a flush always finds a thread when `n > 1`.
    pub fn threads(n: usize) -> Jobs {
        let _ = n;
        todo!()
    }
    /// No threads; see the module.
    pub fn stepped() -> Jobs {
        todo!()
    }
    /// True for [`Jobs::stepped`].
    pub fn is_stepped(&self) -> bool {
        todo!()
    }
    /// Threads that run jobs, the commit lane left out; 0 when stepped.
    pub fn parallelism(&self) -> usize {
        todo!()
    }
    /// Queues a job. `owner` groups jobs for [`Jobs::drain`]; get one from [`Jobs::new_owner`].
    pub fn spawn(&self, owner: u64, priority: JobPriority, run: impl FnOnce() + Send + 'static) {
        let _ = (owner, priority, run);
        todo!()
    }
    /// A fresh owner number.
    pub fn new_owner(&self) -> u64 {
        todo!()
    }
    /// Waits until no job of `owner` is queued or running (stepped: runs them). The owner must have stopped queueing.
    pub fn drain(&self, owner: u64) {
        let _ = owner;
        todo!()
    }
    /// Stepped mode: runs the most urgent queued job; false when there is none.
    pub fn step(&self) -> bool {
        todo!()
    }
    /// Blocks until `done()` is true. With threads it re-checks whenever [`Jobs::notify`] is called and at least every
    /// 10 ms; stepped, it steps jobs until `done()` or until none is left. Returns `done()`'s last answer, so `false`
    /// means timeout, or (stepped) that no queued job could make it true.
    pub fn wait_until(&self, timeout: Option<Duration>, done: &mut dyn FnMut() -> bool) -> bool {
        let _ = (timeout, done);
        todo!()
    }
    /// Wakes everyone in [`Jobs::wait_until`].
    pub fn notify(&self) {
        todo!()
    }
    /// Queued and running jobs by priority, for metrics.
    pub fn pending(&self) -> [usize; 5] {
        todo!()
    }
    /// The panic message of a job that panicked, if one did: the pool survives, the engine must stop.
    pub fn panicked(&self, owner: u64) -> Option<String> {
        let _ = owner;
        todo!()
    }
}
