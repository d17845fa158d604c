//! Flushes of memtables whose memory other stores need.
//!
//! The thread that needs memory makes the request, perhaps while it holds the `writer` lock of
//! another store. So the request never waits for the `writer` lock of this store. A job seals the
//! memtables, or the writer that holds the lock seals them.

use super::engine::Engine;
use basalt_env::{JobPriority, Promise};
use std::sync::Arc;
use std::time::Duration;

/// Delay before a seal is tried again when the `writer` lock is taken. That writer has often sealed
/// by then.
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// The number of times that a seal is tried again.
const MAX_TRIES: u32 = 20;

impl Engine {
    /// Lets other stores ask this store for the memory of its memtables from now on.
    pub fn hold_memory(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        self.pressure.hold_memory(move |promise| {
            if let Some(engine) = engine.upgrade() {
                engine.release_memory_for(promise);
            }
        });
    }

    fn release_memory_for(self: &Arc<Self>, promise: Promise) {
        // A failed flush breaks promises under this lock, so none is added to those that it breaks.
        let state = self.tree.lock();
        let view = self.tree.view();
        // A store that cannot flush its sealed memtables cannot keep a promise. A store with the
        // most sealed memtables that it may have has already promised their bytes.
        if self.health.flush_error().is_some()
            || self.health.is_halted()
            || self.ctx.is_closing()
            || self.health.check_jobs().is_err()
            || view.waiting_sets(&self.ctx.options) >= self.ctx.options.max_sealed_memtables
        {
            return;
        }
        if view.active.is_empty() {
            // A group is on its way into them, or they were sealed since the store was chosen.
            return self.pressure.memory().allow_requests();
        }
        let number = view.active.number;
        self.pressure.memory().promise(number, promise);
        drop(state);
        let engine = self.clone();
        let job = move || engine.seal_to_release_memory(number, MAX_TRIES);
        self.ctx.jobs.spawn(JobPriority::Flush, job);
    }

    fn seal_to_release_memory(self: &Arc<Self>, number: u64, tries: u32) {
        let memory = self.pressure.memory();
        let _keeping = memory.keep_promises();
        let is_due = || !self.ctx.is_closing() && self.tree.active().number == number;
        if is_due() && self.health.check_jobs().is_ok() {
            let Some(mut writer) = self.writes.try_lock() else {
                if let Some(tries) = tries.checked_sub(1) {
                    return self.retry_seal(number, tries);
                }
                // The writer that holds the lock waits for something else. It seals when it goes
                // on, and other stores may be asked now.
                return memory.note_flushed(number, self.tree.active().number);
            };
            // A failure is kept in the health of the store, where the next write finds it.
            if is_due() {
                let _ = self.seal(&mut writer);
            }
        }
        // The store is closed, or the seal has failed: the memory will not come.
        if self.tree.active().number == number {
            memory.end_promise(number);
        }
        self.ctx.env.jobs().notify();
    }

    fn retry_seal(self: &Arc<Self>, number: u64, tries: u32) {
        let engine = Arc::downgrade(self);
        let job = move || {
            if let Some(engine) = engine.upgrade()
                && !engine.ctx.is_closing()
            {
                engine.seal_to_release_memory(number, tries);
            }
        };
        (self.ctx.jobs).spawn_after(JobPriority::Housekeeping, RETRY_DELAY, job);
    }
}
