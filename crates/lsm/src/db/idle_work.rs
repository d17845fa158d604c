//! The work of a store without writes: it tries failed work again and releases memory and disk
//! space that it does not need. It also merges level 0 for readers once they have paid for the
//! merge (decision 0017).
//!
//! All of these are jobs without a reference to the store, so they do not keep a dropped store
//! alive. The jobs do not wait for the writer's lock. The thread that holds the lock may be waiting
//! for a compaction, and the compaction for the thread that runs the job.

use super::engine::Engine;
use super::relocation_stats::may_be_relocatable;
use crate::compaction::paid_by_reads;
use basalt_env::JobPriority;
use basalt_fs::Result;
use std::sync::Arc;

impl Engine {
    /// Begins a check for idleness if readers went to the device for tables often enough to pay for
    /// a merge of level 0. If the store has had no writes for long enough, level 0 is merged. Reads
    /// call this.
    pub(super) fn note_extra_reads(self: &Arc<Self>) {
        let view = self.tree.view();
        let paid = view.families.values().any(|f| {
            let version = view.version.families.get(&f.id);
            version.is_some_and(|v| paid_by_reads(v, &f.options).is_some())
        });
        let scanned = view
            .version
            .blobs
            .files
            .values()
            .any(|f| may_be_relocatable(f));
        let paid_pages = view.pages.iter().any(|(id, tree)| {
            let options = view.families.get(id).map(|f| &f.options);
            options.is_some_and(|o| o.l0_compaction_for_reads) && tree.pages.owes_readers()
        });
        if !(paid || paid_pages || scanned)
            || self.ctx.is_closing()
            || self.background.begin_read_check()
        {
            return;
        }
        let engine = Arc::downgrade(self);
        let job = move || {
            let Some(engine) = engine.upgrade() else {
                return;
            };
            engine.background.end_read_check();
            engine.background.note_idle_check();
            engine.schedule_compactions();
            engine.schedule_page_maintenance();
        };
        self.ctx.jobs.spawn(JobPriority::Housekeeping, job);
    }

    /// Tries failed work again: the log, the flush, compactions, a full disk.
    pub(super) fn retry(self: &Arc<Self>) {
        if self.health.check_jobs().is_err() {
            return;
        }
        if self.health.is_halted() {
            let Some(mut writer) = self.writes.try_lock() else {
                // A write that is on its way tries the work itself.
                return self.background.retry_later();
            };
            // A failure is kept in the health of the store, where the next write finds it.
            let _ = self.resume_if_halted(&mut writer);
        }
        self.relieve();
        self.background.schedule();
        if self.pressure.disk_full().is_refusing() || self.health.first_error().is_some() {
            self.background.retry_later();
        }
    }

    /// Flushes the memtables and deletes the logs, including spare and recycled ones. Afterwards
    /// the store costs what a newly opened store costs.
    pub(super) fn release_idle(self: &Arc<Self>) -> Result<()> {
        let Some(mut writer) = self.writes.try_lock() else {
            self.background.watch_idle();
            return Ok(());
        };
        self.seal(&mut writer)?;
        drop(writer);
        self.flush_all()?;
        self.background.schedule();
        // Until the manifest has forgotten the spare log, no later log may take records. Such a log
        // would follow one that has no recorded end.
        let Some(mut writer) = self.writes.try_lock() else {
            self.background.watch_idle();
            return Ok(());
        };
        writer.forget_removed_logs(&self.ctx, &self.tree);
        // A spare log that is being prepared is registered only after this function ends. No
        // further one is begun under the writer's lock.
        let another = self.writes.logs().is_preparing();
        self.release_logs()?;
        if another {
            self.background.watch_idle();
        }
        self.ctx.counters.idle_releases.add(1);
        self.ctx.env.memory_was_freed();
        Ok(())
    }

    /// Frees disk space while the disk is full: deletions are written to tables, and logs are
    /// deleted.
    pub(super) fn relieve(self: &Arc<Self>) {
        if !self.pressure.disk_full().is_refusing() {
            return;
        }
        if self.pressure.check_free_space().is_some() && self.pressure.disk_full().is_refusing() {
            // A failed attempt is made again with all other failed work.
            let _ = self.release_idle();
        }
    }
}
