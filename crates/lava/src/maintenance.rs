//! The background job of a mounted filesystem: it discards free space on the device, and writes a
//! checkpoint when one is due. It runs on the environment's pool (decision 0032).
//!
//! At most one job is queued or running. A job does one piece of work and queues the next job, so
//! that other jobs of the pool get their turns. The job holds the filesystem only while it runs.

use std::sync::{OnceLock, Weak};

use basalt_env::{JobOwner, JobPriority, Jobs};
use parking_lot::Mutex;

/// Writers wait for room in the journal as they wait for room in memtables, so a checkpoint runs as
/// a flush does: before compactions, and on a thread that compactions may not take.
const PRIORITY: JobPriority = JobPriority::Flush;

/// A filesystem with background work.
pub trait BackgroundWork: Send + Sync + 'static {
    /// Returns the requests for the work.
    fn maintenance(&self) -> &Maintenance;

    /// Does one piece of work. Returns `true` if more is left.
    fn work(&self) -> bool;
}

/// The jobs, and the filesystem that they work for.
struct JobQueue {
    jobs: JobOwner,
    fs: Weak<dyn BackgroundWork>,
}

#[derive(Default)]
struct UpkeepProgress {
    /// A job is queued or running.
    active: bool,
    /// Work was requested since the running job began.
    requested: bool,
    ended: bool,
}

/// The requests for background work of one filesystem. Without a queue they wait until there is
/// one.
#[derive(Default)]
pub struct Maintenance {
    queue: OnceLock<JobQueue>,
    progress: Mutex<UpkeepProgress>,
}

impl Maintenance {
    /// Runs requested work in jobs of this pool from now on.
    pub fn begin(&self, fs: Weak<dyn BackgroundWork>, jobs: &Jobs) {
        let queue = JobQueue {
            jobs: jobs.new_owner(),
            fs,
        };
        let _ = self.queue.set(queue);
        if self.progress.lock().requested {
            self.request();
        }
    }

    /// Queues a job that writes a due checkpoint and discards free space, if no job is queued.
    pub fn request(&self) {
        let mut progress = self.progress.lock();
        progress.requested = true;
        if let Some(queue) = self.queue.get()
            && !progress.active
            && !progress.ended
        {
            progress.active = true;
            // Under the lock, so that `end` finds the job.
            queue.spawn();
        }
    }

    /// Drops the queued job and waits for the running one. Later requests do nothing.
    pub fn end(&self) {
        self.progress.lock().ended = true;
        if let Some(queue) = self.queue.get() {
            queue.jobs.cancel();
            queue.jobs.drain();
        }
    }

    /// Starts a job's piece of work. Returns `false` if the filesystem is being unmounted.
    fn start(&self) -> bool {
        let mut progress = self.progress.lock();
        progress.requested = false;
        progress.active = !progress.ended;
        progress.active
    }

    /// Ends a job's piece of work, and queues the next job if `more` is left or was requested.
    fn finish(&self, more: bool) {
        let mut progress = self.progress.lock();
        progress.active = (more || progress.requested) && !progress.ended;
        if let Some(queue) = self.queue.get()
            && progress.active
        {
            queue.spawn();
        }
    }
}

impl JobQueue {
    fn spawn(&self) {
        let fs = self.fs.clone();
        let job = move || {
            if let Some(fs) = fs.upgrade() {
                let maintenance = fs.maintenance();
                if maintenance.start() {
                    let more = fs.work();
                    maintenance.finish(more);
                }
            }
        };
        self.jobs.spawn(PRIORITY, job);
    }
}
