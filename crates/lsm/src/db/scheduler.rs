//! The scheduler of background work: decides which jobs are due, and queues them in order of
//! priority.

use super::background::BackgroundJobs;
use super::engine::Engine;
use basalt_env::JobPriority;
use basalt_fs::Result;
use std::sync::{Arc, Weak};

impl BackgroundJobs for Engine {
    fn queue_due_jobs(self: Arc<Self>) {
        if self.ctx.read_only || self.ctx.is_closing() {
            return;
        }
        let mut state = self.tree.lock();
        if !state.jobs.flush
            && !self.health.flush_is_paused()
            && !self.tree.view().sealed.is_empty()
        {
            state.jobs.flush = true;
            let engine = self.clone();
            let job = move || engine.flush_job();
            self.ctx.jobs.spawn(JobPriority::Flush, job);
        }
        drop(state);
        self.schedule_compactions();
        self.schedule_page_maintenance();
        self.schedule_gc();
    }

    fn retry_failed(self: Arc<Self>) {
        self.retry();
    }

    fn release_idle_memory(self: Arc<Self>) {
        if self.release_idle().is_err() {
            self.background.retry_later();
        }
    }
}

impl Engine {
    /// Begins background work: registers the engine with the parts that ask for it.
    pub fn begin_background_work(self: &Arc<Self>) {
        let jobs: Weak<Engine> = Arc::downgrade(self);
        self.background.register(jobs);
        if !self.ctx.read_only {
            let engine = Arc::downgrade(self);
            self.ctx.tables.when_log_dies(move |number, end| {
                let engine = engine.upgrade();
                (engine.map(|e| e.writes.logs().retire(number, end))).is_some()
            });
            let engine = Arc::downgrade(self);
            self.ctx.tables.on_extra_reads(move || {
                if let Some(engine) = engine.upgrade() {
                    engine.note_extra_reads();
                }
            });
            let engine = Arc::downgrade(self);
            self.ctx.tables.read_blobs_from(move || {
                let engine = engine.upgrade()?;
                Some(engine.tree.view().version.blobs.clone())
            });
            self.hold_memory();
        }
        self.offer_metrics();
    }

    /// Waits until no flush or compaction is due, or one has failed.
    pub fn wait_idle(self: &Arc<Self>) -> Result<()> {
        if self.ctx.read_only {
            return self.ctx.check_open();
        }
        let _awaited = self.background.await_compactions();
        loop {
            self.ctx.check_open()?;
            self.health.check_jobs()?;
            self.background.schedule();
            let busy = || {
                let s = self.tree.lock();
                s.jobs.flush
                    || !s.jobs.compactions.is_empty()
                    || !s.jobs.ingesting.is_empty()
                    || s.jobs.exclusive
                    || !s.blobs.collecting.is_empty()
                    || self
                        .tree
                        .view()
                        .pages
                        .values()
                        .any(|p| p.pages.is_maintained())
            };
            self.ctx.env.jobs().wait_until(None, &mut || {
                !busy() || self.ctx.is_closing() || self.health.check_jobs().is_err()
            });
            let state = self.tree.lock();
            if let Some(e) = self.health.first_error().or_else(|| {
                let error = state.blobs.error.as_ref();
                error.and_then(|_| self.gc_failure(&state))
            }) {
                return Err(e);
            }
            if state.jobs.compactions.is_empty()
                && state.jobs.ingesting.is_empty()
                && self.tree.view().sealed.is_empty()
                && self.pick_plan(&state).is_none()
                && self.pick_sources(&state).is_none()
                && !self.tree.view().pages.values().any(|p| p.pages.is_busy())
            {
                return self.gc_failure(&state).map_or(Ok(()), Err);
            }
        }
    }
}
