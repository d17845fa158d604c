//! The pressure of each backlog on writers, and the record of their stalls.

use super::BackPressure;
use crate::db::stall_cause::StallCause;
use crate::db::view::View;
use crate::listener::Event;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use basalt_env::sync::{Mutex, named};
use std::time::Duration;

/// Assumed rate of a backlog in bytes a second, until a flush or a compaction was timed.
const DEFAULT_DRAIN_RATE: u64 = 64 << 20;
/// Range of the estimated rates, in bytes a second. A move of whole tables takes no time, and a
/// paused process takes any amount of time.
const DRAIN_RANGE: std::ops::RangeInclusive<u64> = 1 << 20..=4 << 30;
/// The least share of the drain rate that writers get.
const MIN_DRAIN_SHARE: f64 = 1.0 / 64.0;

/// Rates at which backlogs shrink, in bytes a second.
pub(crate) struct DrainRates {
    level0: AtomicU64,
    memtables: AtomicU64,
    space: AtomicU64,
    /// Time at which level 0 last gave tables away and still had work left. The next time is
    /// counted from here.
    busy_since: Mutex<Option<Duration>>,
    /// Time at which a garbage collection last ended while another one was wanted.
    collecting_since: Mutex<Option<Duration>>,
}

impl DrainRates {
    pub fn new() -> DrainRates {
        DrainRates {
            level0: AtomicU64::new(DEFAULT_DRAIN_RATE),
            memtables: AtomicU64::new(DEFAULT_DRAIN_RATE),
            space: AtomicU64::new(DEFAULT_DRAIN_RATE),
            busy_since: named("DrainRates::busy_since", Mutex::new(None)),
            collecting_since: named("DrainRates::collecting_since", Mutex::new(None)),
        }
    }

    /// Notes that a flush of `bytes` bytes of memtables took the time `took`.
    pub fn flushed(&self, bytes: u64, took: Duration) {
        learn(&self.memtables, bytes, took);
    }

    /// Notes that a compaction that began at `began` has taken `bytes` bytes out of level 0. `more`
    /// is true if level 0 is still due for a compaction.
    pub fn note_level0_merge(&self, bytes: u64, began: Duration, now: Duration, more: bool) {
        let mut since = self.busy_since.lock();
        // Under pressure the time between two compactions counts, too, because the threads were
        // busy elsewhere.
        let from = since.take().unwrap_or(began);
        *since = more.then_some(now);
        drop(since);
        learn(&self.level0, bytes, now.saturating_sub(from));
    }

    /// Notes that a garbage collection that began at `began` has made blob files `bytes` bytes
    /// smaller. `more` is true if other garbage collections run or are waited for. Then the time
    /// until the next one ends counts, because threads may be busy elsewhere meanwhile.
    pub fn note_gc(&self, bytes: u64, began: Duration, now: Duration, more: bool) {
        let mut since = self.collecting_since.lock();
        let from = since.take().unwrap_or(began);
        *since = more.then_some(now);
        drop(since);
        learn(&self.space, bytes, now.saturating_sub(from));
    }
}

fn learn(rate: &AtomicU64, bytes: u64, took: Duration) {
    if took.is_zero() {
        return;
    }
    let seen = (bytes as f64 / took.as_secs_f64()) as u64;
    let seen = seen.clamp(*DRAIN_RANGE.start(), *DRAIN_RANGE.end());
    // Only one flush and one compaction of level 0 end at a time.
    let old = rate.load(Relaxed);
    rate.store((old * 2 + seen) / 3, Relaxed);
}

/// Bytes of admitted groups that are not paid for yet.
#[derive(Default)]
pub(crate) struct UnpaidBytes {
    /// Bytes that were admitted and not yet paid for.
    pub unpaid_bytes: f64,
    /// Time of the environment's clock up to which the debt was reduced.
    pub paid_until: Duration,
}

/// Returns the share of the drain rate that writers get at a pressure from 0 to 1.
pub fn share(pressure: f64) -> f64 {
    (2.0 * (1.0 - pressure).powi(2)).max(MIN_DRAIN_SHARE)
}

/// The current stall: from the first group that is held back to the first that is not.
#[derive(Default)]
pub(crate) struct Stalls {
    /// True while writes are held back. Each group reads this without the lock.
    any: AtomicBool,
    now: Mutex<Option<Stall>>,
}

struct Stall {
    cause: StallCause,
    began: Duration,
    /// True if the current group was held.
    this_group: bool,
}

impl BackPressure {
    /// Returns the backlog that admits the least, its pressure, and the rate in bytes a second that
    /// it leaves to writers.
    pub fn pressure(&self, view: &View) -> Option<(StallCause, f64, f64)> {
        let memtables = {
            let (most, buffer) = (
                self.ctx.options.max_sealed_memtables,
                self.ctx.options.write_buffer_bytes,
            );
            // Only the last quarter of what may be in memory presses. This early check saves the
            // sum over all families.
            let sealed = view.waiting_sets(&self.ctx.options);
            if (sealed + 1) * 4 <= (most + 1) * 3 {
                0.0
            } else {
                let active = view.active.memory() as f64 / buffer as f64;
                let full = (sealed as f64 + active.min(1.0)) / (most as f64 + 1.0);
                // The pressure is never 1: the rotation of a full memtable waits for the flush
                // itself.
                ((full - 0.75) * 4.0).clamp(0.0, 0.999)
            }
        };
        let drain = &self.drain;
        [
            (StallCause::Level0, view.backlog.level0(), &drain.level0),
            (StallCause::Memtables, memtables, &drain.memtables),
            (
                StallCause::CompactionDebt,
                view.backlog.debt(),
                &drain.level0,
            ),
            (StallCause::Space, self.space_amp.pressure(), &drain.space),
        ]
        .into_iter()
        .filter(|(_, p, _)| *p > 0.0)
        .map(|(cause, p, drain)| match p {
            1.0.. => (cause, p, 0.0),
            _ => (cause, p, drain.load(Relaxed) as f64 * share(p)),
        })
        .min_by(|a, b| a.2.total_cmp(&b.2))
    }

    /// Notes that a group was slowed or held for a time.
    pub fn note_stall(&self, cause: StallCause, time: Duration) {
        self.ctx.counters.stall_us[cause as usize].add(time.as_micros() as u64);
        let mut now = self.stalls.now.lock();
        if let Some(stall) = &mut *now {
            if stall.cause == cause {
                stall.this_group = true;
                return;
            }
            self.notify_stall_end(stall);
        }
        let began = self.ctx.env.clock().now().saturating_sub(time);
        *now = Some(Stall {
            cause,
            began,
            this_group: true,
        });
        self.stalls.any.store(true, Relaxed);
        self.ctx.counters.stalls[cause as usize].add(1);
        self.ctx.notify(|| Event::StallBegin { cause });
    }

    fn notify_stall_end(&self, stall: &Stall) {
        self.ctx.notify(|| Event::StallEnd {
            cause: stall.cause,
            lasted: self.ctx.env.clock().now().saturating_sub(stall.began),
        });
    }

    /// Notes that a group was admitted.
    pub fn release_writers(&self) {
        if !self.stalls.any.load(Relaxed) {
            return;
        }
        let mut now = self.stalls.now.lock();
        match &mut *now {
            Some(stall) if stall.this_group => stall.this_group = false,
            Some(stall) => {
                self.notify_stall_end(stall);
                *now = None;
                self.stalls.any.store(false, Relaxed);
            }
            None => {}
        }
    }
}
