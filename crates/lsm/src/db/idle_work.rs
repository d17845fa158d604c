//! What a store does that nobody writes to: it tries again what failed, gives back memory and space it does not need, and merges
//! level 0 for its readers once they have paid for it (decision 0017).
//!
//! All of these are jobs that hold no reference to the store: one that is dropped is not kept alive by them. They do not wait
//! for the writer's lock: who holds it may be waiting for a compaction, and that for the thread which the job is on.

use super::engine::Engine;
use super::relocation_stats::may_be_relocatable;
use crate::compaction::paid_by_reads;
use basalt_env::JobPriority;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::Result;
use std::sync::Arc;
use std::time::Duration;

/// How long after a failure a store that nobody uses tries again. One that is written to tries sooner, with a write.
const RETRY_UNASKED: Duration = Duration::from_secs(1);

/// How often a store that is written to in a hurry is looked at for the end of it.
const URGENT_CHECK: Duration = Duration::from_secs(2);

/// Since when nobody writes.
#[derive(Default)]
pub(crate) struct IdleSince(Mutex<Option<(u64, Duration)>>);

impl IdleSince {
    /// Somebody looks: so many groups were committed by now.
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

/// Which delayed jobs are on their way.
#[derive(Default)]
pub(crate) struct IdleTimers {
    retry: AtomicBool,
    pub(super) release: AtomicBool,
    look: AtomicBool,
    extra_reads: AtomicBool,
}

impl Engine {
    pub(super) fn after(
        self: &Arc<Self>,
        delay: Duration,
        then: impl FnOnce(&Arc<Engine>) + Send + 'static,
    ) {
        let engine = Arc::downgrade(self);
        self.ctx.env.jobs().spawn_after(
            self.ctx.owner,
            JobPriority::Housekeeping,
            delay,
            move || {
                if let Some(engine) = engine.upgrade()
                    && !engine.ctx.is_closing()
                {
                    then(&engine);
                }
            },
        );
    }

    /// Something failed: sees to it that it is tried again even if no write comes.
    pub fn retry_later(self: &Arc<Self>) {
        if !self.ctx.is_closing() && !self.idle_timers.retry.swap(true, SeqCst) {
            self.after(RETRY_UNASKED, |engine| {
                engine.idle_timers.retry.store(false, SeqCst);
                engine.retry();
            });
        }
    }

    /// Asks again after so long what is due, although nothing may have happened.
    pub fn look_again_after(self: &Arc<Self>, delay: Duration) {
        if !self.ctx.is_closing() && !self.idle_timers.look.swap(true, SeqCst) {
            self.after(delay, |engine| {
                engine.idle_timers.look.store(false, SeqCst);
                let now = engine.ctx.env.clock().now();
                if engine.flush_pace.is_urgent(now) {
                    engine.look_again_after(URGENT_CHECK);
                }
                engine.schedule();
            });
        }
    }

    /// Readers went to the device for tables, often: if they have paid for a merge of level 0, it is noted how long nobody
    /// has written, and merged when that is long. Called from within reads.
    pub(super) fn extra_reads(self: &Arc<Self>) {
        let view = self.view();
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
        if !(paid || scanned)
            || self.ctx.is_closing()
            || self.idle_timers.extra_reads.swap(true, SeqCst)
        {
            return;
        }
        let engine = Arc::downgrade(self);
        let job = move || {
            let Some(engine) = engine.upgrade() else {
                return;
            };
            engine.idle_timers.extra_reads.store(false, SeqCst);
            let (groups, now) = (
                engine.ctx.counters.commit_groups.get(),
                engine.ctx.env.clock().now(),
            );
            engine.idle_since.note(groups, now);
            engine.schedule_compactions();
        };
        self.ctx
            .env
            .jobs()
            .spawn(self.ctx.owner, JobPriority::Housekeeping, job);
    }

    /// For how long nobody has written, as far as busy readers made somebody look.
    pub(super) fn still_for(&self) -> Duration {
        let groups = self.ctx.counters.commit_groups.get();
        self.idle_since.lasts(groups, self.ctx.env.clock().now())
    }

    pub(super) fn retry(self: &Arc<Self>) {
        if self.health.check_jobs().is_err() {
            return;
        }
        if self.health.is_halted() {
            let Some(mut writer) = self.writer.try_lock() else {
                // A write is on its way, which tries it itself.
                return self.retry_later();
            };
            // A failure is in the state, where the next write finds it.
            let _ = self.resume_if_halted(&mut writer);
        }
        self.relieve();
        self.schedule();
        if self.full.is_refusing() || self.health.first_error().is_some() {
            self.retry_later();
        }
    }

    /// Called with each group: watches for the time when no more come.
    pub fn watch_idle(self: &Arc<Self>) {
        let period = self.ctx.options.idle_release;
        if period.is_zero() || self.idle_timers.release.load(SeqCst) {
            return;
        }
        self.idle_timers.release.store(true, SeqCst);
        self.last_watched
            .store(self.ctx.counters.commit_groups.get(), SeqCst);
        self.after(period, |engine| {
            engine.idle_timers.release.store(false, SeqCst);
            let groups = engine.ctx.counters.commit_groups.get();
            if groups != engine.last_watched.load(SeqCst) {
                engine.watch_idle();
            } else if engine.release_idle().is_err() {
                engine.retry_later();
            }
        });
    }

    /// Writes the memtables out and deletes the logs, spare and recycled ones too: what is left costs what an opened
    /// store costs.
    pub(super) fn release_idle(self: &Arc<Self>) -> Result<()> {
        let Some(mut writer) = self.writer.try_lock() else {
            self.watch_idle();
            return Ok(());
        };
        self.seal(&mut writer)?;
        drop(writer);
        self.flush_all()?;
        self.schedule();
        // Until the manifest has forgotten the spare no later log may take records: it would follow one that has no end.
        let Some(mut writer) = self.writer.try_lock() else {
            self.watch_idle();
            return Ok(());
        };
        self.forget_removed_logs(&mut writer);
        // One on its way stands there only when this is over; no further one is begun under the writer's lock.
        let another = self.preparing_log();
        self.release_logs()?;
        if another {
            self.watch_idle();
        }
        self.ctx.counters.idle_releases.add(1);
        self.ctx.env.memory_was_freed();
        Ok(())
    }
}
