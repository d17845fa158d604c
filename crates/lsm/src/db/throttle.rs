//! Slows writers gradually as background work falls behind, and holds them only at the end.
//!
//! Four backlogs press:
//!
//! - tables in level 0: every read searches each of them;
//! - memtables that wait for their flush: they take memory;
//! - bytes that compactions owe: they cost space, and time of later reads;
//! - garbage in blob files near its bound, see [`super::back_pressure::space_amp`].
//!
//! The pressure of each is 0 while all is well, and 1 where writers wait.
//!
//! In between, writers get a share of the rate at which that backlog was last seen to shrink. The
//! share is twice the rate where slowing begins, so that a burst passes almost unhindered. It
//! equals the rate at about a third of the way, where a steady load stabilises, and is a small part
//! near the end.
//!
//! A group pays for its bytes after it was admitted, out of the time that passes until the next
//! group. So the largest possible group waits only for the groups before it, and the group behind
//! it waits for all of its bytes.

use super::engine::Engine;
use super::stall_cause::StallCause;
use super::view::View;
use super::write_path::Writer;
use basalt_fs::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep of a group before its cause is checked again, so that relief is noticed.
const MAX_SLEEP: Duration = Duration::from_millis(10);
/// The shortest sleep. Shorter waits are added up: a sleep costs about a tenth of this beyond its
/// length.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// The behaviour of a thread whose group is not admitted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// The thread waits: it is a writer's own thread.
    Wait,
    /// The thread returns and the group is tried again later: the lane is shared by all stores.
    Return,
}

/// A group waits at most this long for the memory of other stores. Then it goes in past the budget:
/// other stores may take what comes back, or a store may be unable to keep its promise.
pub(super) const MAX_MEMORY_WAIT: Duration = Duration::from_secs(2);

/// The answer to a group that asks to be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Room {
    /// The group may go on.
    Ready,
    /// The group must ask again after this time.
    Later(Duration),
}

/// The answer of [`Engine::delay_writes`].
#[must_use]
pub(crate) enum ThrottleOutcome {
    /// The group may go on. The view is the newest one.
    Ready(Arc<View>),
    /// The group must ask again after this time.
    Later(Duration),
}

impl Engine {
    /// Slows a group down as the backlogs ask. `view` is the newest view before the wait, and the
    /// answer has the newest view after it. No view is held during a wait: it would keep flushed
    /// memtables, removed logs and obsolete tables, and the wait may be for their memory or space.
    pub fn delay_writes(
        self: &Arc<Self>,
        writer: &mut Writer,
        mut view: Arc<View>,
        wait_mode: WaitMode,
    ) -> Result<ThrottleOutcome> {
        let clock = self.ctx.env.clock();
        loop {
            let Some((cause, pressure, rate)) = self.pressure.pressure(&view) else {
                writer.pace.unpaid_bytes = 0.0;
                return Ok(ThrottleOutcome::Ready(view));
            };
            if pressure >= 1.0 {
                drop(view);
                return Ok(match self.wait_for_relief(cause, wait_mode)? {
                    Room::Ready => ThrottleOutcome::Ready(self.tree.view()),
                    Room::Later(delay) => ThrottleOutcome::Later(delay),
                });
            }
            let now = clock.now();
            let pace = &mut writer.pace;
            let paid = now.saturating_sub(pace.paid_until).as_secs_f64() * rate;
            pace.unpaid_bytes = (pace.unpaid_bytes - paid).max(0.0);
            pace.paid_until = now;
            let wait = Duration::from_secs_f64(pace.unpaid_bytes / rate);
            if wait < MIN_SLEEP {
                return Ok(ThrottleOutcome::Ready(view));
            }
            let sleep = wait.min(MAX_SLEEP);
            self.pressure.note_stall(cause, sleep);
            if wait_mode == WaitMode::Return {
                return Ok(ThrottleOutcome::Later(sleep));
            }
            drop(view);
            clock.sleep(sleep);
            self.ctx.check_open()?;
            self.health.check_jobs()?;
            view = self.tree.view();
        }
    }

    /// Charges the writer for an admitted group of `bytes` bytes.
    pub fn charge(&self, writer: &mut Writer, bytes: u64) {
        // Without pressure the next check forgives the debt.
        writer.pace.unpaid_bytes += bytes as f64;
    }

    /// Waits until a compaction has brought the pressure below 1, or cannot.
    fn wait_for_relief(self: &Arc<Self>, cause: StallCause, wait_mode: WaitMode) -> Result<Room> {
        let relieved = || {
            let b = self.tree.view().backlog;
            let pressure = match cause {
                StallCause::CompactionDebt => b.debt(),
                _ => b.level0(),
            };
            pressure < 1.0
        };
        let stuck = || {
            let state = self.tree.lock();
            let error = self.health.compaction_error();
            let error = error.filter(|_| state.jobs.compactions.is_empty());
            error.map(|e| e.context(cause.failing_work_text()))
        };
        self.wait_for(cause, wait_mode, &relieved, &stuck)
    }

    /// Waits until `relieved` returns true, or until `stuck` returns the error that prevents it.
    fn wait_for(
        self: &Arc<Self>,
        cause: StallCause,
        wait_mode: WaitMode,
        relieved: &dyn Fn() -> bool,
        stuck: &dyn Fn() -> Option<Error>,
    ) -> Result<Room> {
        loop {
            if relieved() {
                return Ok(Room::Ready);
            }
            let _urgent = self.ctx.env.foreground_io().urgent();
            self.background.schedule();
            let mut moved = true;
            if wait_mode == WaitMode::Wait {
                let started = self.ctx.env.clock().now();
                moved = self.ctx.env.jobs().wait_until(None, &mut || {
                    relieved()
                        || stuck().is_some()
                        || self.ctx.is_closing()
                        || self.health.check_jobs().is_err()
                });
                self.pressure
                    .note_stall(cause, self.ctx.env.clock().now() - started);
            }
            self.ctx.check_open()?;
            self.health.check_jobs()?;
            if relieved() {
                return Ok(Room::Ready);
            }
            if let Some(e) = stuck() {
                return Err(e);
            }
            if wait_mode == WaitMode::Return {
                // The caller asks again. Background work is urgent until the tree changes, which
                // decides anew.
                self.pressure.make_urgent();
                self.pressure.note_stall(cause, MAX_SLEEP);
                return Ok(Room::Later(MAX_SLEEP));
            }
            if !moved {
                // Under a stepped scheduler, no job is left that could help.
                return Err(Error::new(ErrorKind::Busy, cause.missing_work_text()));
            }
            // Either the wait was over for a moment and other writers filled the space first, or it
            // was stuck and another thread tries the work again.
        }
    }

    /// Returns the error that keeps memtables from becoming tables: a flush has failed and none is
    /// on its way. An attempt that has been scheduled since may still free memory. The error of the
    /// attempt before it says nothing about it.
    fn flush_is_stuck(&self) -> Option<Error> {
        let state = self.tree.lock();
        let error = self.health.flush_error();
        let error = error.filter(|_| !state.jobs.flush);
        error.map(|e| e.context(StallCause::Memtables.failing_work_text()))
    }

    /// Waits until one more memtable may be sealed.
    pub fn wait_for_flush(self: &Arc<Self>, wait_mode: WaitMode) -> Result<Room> {
        let options = &self.ctx.options;
        let has_room = || self.tree.view().waiting_sets(options) < options.max_sealed_memtables;
        self.wait_for_memtables(StallCause::Memtables, wait_mode, &has_room)
    }

    /// Waits until no sealed memtable is left to flush.
    pub fn wait_for_all_flushes(self: &Arc<Self>, wait_mode: WaitMode) -> Result<Room> {
        let has_room = || self.tree.view().sealed.is_empty();
        self.wait_for_memtables(StallCause::Memtables, wait_mode, &has_room)
    }

    /// Waits until `bytes` more fit the memory budget. The wait also ends when no store has sealed
    /// memtables that will give their memory back. It ends, too, when this store is to seal its own
    /// memtables and the caller has not just done so. Waits at most [`MAX_MEMORY_WAIT`] for other
    /// stores.
    pub fn wait_for_memory(
        self: &Arc<Self>,
        bytes: u64,
        wait_mode: WaitMode,
        rotated: bool,
    ) -> Result<Room> {
        let begun = self.ctx.env.clock().now();
        let has_room = || {
            let view = self.tree.view();
            self.ctx.env.ledger().free() >= bytes
                || (!rotated && self.pressure.memory().is_wanted(view.active.number))
                || (view.sealed.is_empty()
                    && self.ctx.env.clock().now().saturating_sub(begun) >= MAX_MEMORY_WAIT)
                || (view.sealed.is_empty() && self.ctx.env.relief().coming() == 0)
        };
        match self.wait_for_memtables(StallCause::MemoryBudget, wait_mode, &has_room) {
            // Under a stepped scheduler, the memory that another store has promised does not come.
            Err(e) if e.kind() == ErrorKind::Busy && self.tree.view().sealed.is_empty() => {
                Ok(Room::Ready)
            }
            room => room,
        }
    }

    fn wait_for_memtables(
        self: &Arc<Self>,
        cause: StallCause,
        wait_mode: WaitMode,
        has_room: &dyn Fn() -> bool,
    ) -> Result<Room> {
        self.wait_for(cause, wait_mode, has_room, &|| self.flush_is_stuck())
    }
}
