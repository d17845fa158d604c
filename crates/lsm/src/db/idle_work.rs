//! What a store does that nobody writes to: it tries again what failed, gives back memory and space it does not need, and merges
//! level 0 for its readers once they have paid for it (decision 0017).
//!
//! All of these are jobs that hold no reference to the store: one that is dropped is not kept alive by them. They do not wait
//! for the writer's lock: who holds it may be waiting for a compaction, and that for the thread which the job is on.

use super::engine::Engine;
use super::relocation_stats::may_be_relocatable;
use crate::compaction::paid_by_reads;
use basalt_env::JobPriority;
use basalt_fs::Result;
use std::sync::Arc;

impl Engine {
    /// Readers went to the device for tables, often: if they have paid for a merge of level 0, it is noted how long nobody
    /// has written, and merged when that is long. Called from within reads.
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
        if !(paid || scanned) || self.ctx.is_closing() || self.background.begin_read_check() {
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
        };
        self.ctx
            .env
            .jobs()
            .spawn(self.ctx.owner, JobPriority::Housekeeping, job);
    }

    /// Tries again what has failed: the log, the flush, compactions, a full disk.
    pub(super) fn retry(self: &Arc<Self>) {
        if self.health.check_jobs().is_err() {
            return;
        }
        if self.health.is_halted() {
            let Some(mut writer) = self.writes.try_lock() else {
                // A write is on its way, which tries it itself.
                return self.background.retry_later();
            };
            // A failure is in the state, where the next write finds it.
            let _ = self.resume_if_halted(&mut writer);
        }
        self.relieve();
        self.background.schedule();
        if self.pressure.disk_full().is_refusing() || self.health.first_error().is_some() {
            self.background.retry_later();
        }
    }

    /// Writes the memtables out and deletes the logs, spare and recycled ones too: what is left costs what an opened
    /// store costs.
    pub(super) fn release_idle(self: &Arc<Self>) -> Result<()> {
        let Some(mut writer) = self.writes.try_lock() else {
            self.background.watch_idle();
            return Ok(());
        };
        self.seal(&mut writer)?;
        drop(writer);
        self.flush_all()?;
        self.background.schedule();
        // Until the manifest has forgotten the spare no later log may take records: it would follow one that has no end.
        let Some(mut writer) = self.writes.try_lock() else {
            self.background.watch_idle();
            return Ok(());
        };
        writer.forget_removed_logs(&self.ctx, &self.tree);
        // One on its way stands there only when this is over; no further one is begun under the writer's lock.
        let another = self.writes.logs().is_preparing();
        self.release_logs()?;
        if another {
            self.background.watch_idle();
        }
        self.ctx.counters.idle_releases.add(1);
        self.ctx.env.memory_was_freed();
        Ok(())
    }

    /// Makes what space there is to be made, while the disk is full: tables get to know what was deleted, and logs go.
    pub(super) fn relieve(self: &Arc<Self>) {
        if !self.pressure.disk_full().is_refusing() {
            return;
        }
        if self.pressure.look_at_the_disk().is_some() && self.pressure.disk_full().is_refusing() {
            // What fails is tried again, with everything else.
            let _ = self.release_idle();
        }
    }
}
