//! The end of an open store: closed, or abandoned as by a killed process.

use super::engine::Engine;
use super::write_path::Writer;
use crate::version::edit::Edit;
use basalt_fs::Result;
use std::sync::Arc;

impl Engine {
    /// Closes the store. See [`super::Db::close`].
    pub(super) fn close(self: &Arc<Self>) -> Result<()> {
        if self.ctx.read_only {
            self.ctx.begin_closing();
            self.ctx.jobs.drain();
            self.leave(false);
            return Ok(());
        }
        {
            let mut writer = self.writes.lock();
            if !self.ctx.begin_closing() {
                return Ok(());
            }
            self.manual.cancel_all();
            self.ctx.env.jobs().notify();
            if self.health.check_jobs().is_ok() {
                // No later attempt follows that the flush could wait for.
                writer.last_resume = None;
                let _ = self.resume_if_halted(&mut writer);
            }
        }
        let _urgent = self.ctx.env.foreground_io().urgent();
        self.ctx.jobs.drain();
        self.wait_for_manual();
        // Batches are queued that were held back and that no thread would come back for.
        self.lead_all();
        let flushed = {
            let mut writer = self.writes.lock();
            // After a broken invariant, records stay in the logs: the next open reads them afresh.
            let mut result = self.health.check_jobs();
            let is_flushed = self.tree.active().is_empty() && !self.is_behind(&writer);
            if result.is_ok() && !is_flushed {
                result = self.rotate(&mut writer);
            }
            let end = result
                .and_then(|()| self.flush_all())
                .map(|()| self.mark_dropped_before_close())
                .and_then(|()| self.forget_logs(&mut writer));
            writer.log = None;
            writer.left.clear();
            end
        };
        self.ctx.jobs.drain();
        if self.ctx.env.jobs().is_stepped() {
            self.ctx.events.wait();
        }
        self.ctx.tables.retry_removals();
        self.leave(flushed.is_ok());
        flushed
    }

    /// Waits for manual compactions and checkpoints. They run on their callers' threads and use the
    /// directory, which is not given back before they end.
    fn wait_for_manual(&self) {
        self.ctx
            .env
            .jobs()
            .wait_until(None, &mut || !self.manual.runs_on_other_thread());
    }

    /// Deletes the logs, whose data is all in tables, and lets `CURRENT` vouch for the whole
    /// manifest. The caller holds the writer's lock, so no log takes records meanwhile.
    fn forget_logs(self: &Arc<Self>, _writer: &mut Writer) -> Result<()> {
        // The spare log is deleted below with the other logs that the manifest names.
        drop(self.writes.logs().take_unused());
        let (logs, wall_time_suffices) = {
            let state = self.tree.lock();
            let mut tables = state
                .catalog()
                .families
                .values()
                .flat_map(|f| f.tables.values());
            let expires = tables.any(|t| t.meta.soonest_expiry_ms < u64::MAX);
            let time_is_recorded = state.catalog().wall_ms >= self.ctx.env.clock().wall_ms();
            let logs: Vec<u64> = state.catalog().logs.keys().copied().collect();
            (logs, time_is_recorded || !expires)
        };
        // The edit also holds the wall time: an entry that a read took for expired stays expired if
        // the clock goes back.
        if !logs.is_empty() || !wall_time_suffices {
            self.tree.install(
                Edit {
                    remove_logs: logs.clone(),
                    ..Edit::default()
                },
                Vec::new(),
                |_, _| (),
            )?;
            logs.iter()
                .for_each(|&n| self.writes.logs().retire(n, None));
        }
        self.tree.point_current()
    }

    /// Releases what every end of a store gives back.
    fn leave(&self, is_whole: bool) {
        // The source is dropped after its lock is released: a drop takes the lock of the registry.
        let source = self.metric_source.lock().take();
        drop(source);
        self.ctx.counters.leave(&self.ctx.env);
        for pages in self.tree.open_pages() {
            // Nothing that was acknowledged is lost if it fails: the log has it.
            let _ = pages.leave(is_whole && !pages.is_dropped());
        }
        // The removal of a tree that was just let go may be queued.
        self.ctx.jobs.drain();
        self.ctx.events.close();
        self.tree.leave();
        self.ctx.tables.leave();
        let state = self.tree.lock();
        self.pressure.end_urgent();
        self.pressure.memory().break_promises();
        drop(state);
        self.pressure.memory().note_memory(0);
        *self.dir_lock.lock() = None;
        self.ctx.env.memory_was_freed();
    }

    /// Abandons the store. See [`super::Db::abandon`].
    pub(super) fn abandon(self: &Arc<Self>) {
        self.ctx.begin_closing();
        self.manual.cancel_all();
        self.ctx.jobs.cancel();
        self.ctx.jobs.drain();
        // The leader's job may have been among the cancelled ones: waiting writers get the error
        // that the store is closed.
        self.lead_all();
        self.wait_for_manual();
        self.leave(false);
    }
}
