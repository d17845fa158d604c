//! Holding writers back: gradually as background work falls behind, and wholly only at the end.
//!
//! Four backlogs press: tables in level 0 (every read looks into each), memtables that wait for their flush (memory), bytes
//! that compactions owe (space, and the reads of later), and garbage in blob files near its bound ([`super::space`]). Each is a number that is 0 while all is well and 1 where writers wait.
//! In between, writers get a share of the rate at which that backlog was last seen to shrink: twice of it where slowing
//! begins, so that a burst passes almost unhindered, the same at about a third of the way, where a steady load settles, and a
//! small part near the end. A group pays for its bytes after it was let in, out of the time that passes until the next one, so
//! the largest group there can be waits for no more than the groups before it, and the one behind it waits for all of its bytes.

use super::engine::{Engine, Writer};
use super::log::LONGEST_MEMORY_WAIT;
use super::view::View;
use crate::compaction::compaction_debt;
use crate::listener::Event;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use basalt_fs::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

/// What a group waits for is looked at again after so long, so that relief is noticed.
const MAX_SLEEP: Duration = Duration::from_millis(10);
/// Shorter waits are saved up: a sleep costs about a tenth of this beyond its length.
const MIN_SLEEP: Duration = Duration::from_millis(1);
/// Assumed until a flush or a compaction was timed.
const FIRST_GUESS: u64 = 64 << 20;
/// Estimates stay in here: a move of whole tables takes no time, and a paused process any amount of it.
const DRAIN_RANGE: std::ops::RangeInclusive<u64> = 1 << 20..=4 << 30;
/// The least share of the drain rate that writers get.
const LEAST_SHARE: f64 = 1.0 / 64.0;

/// What presses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Level0,
    Memtables,
    /// The environment's memory budget.
    Memory,
    Debt,
    /// The bound on garbage in blob files.
    Space,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::Level0 => "level0",
            Cause::Memtables => "memtables",
            Cause::Memory => "memory_budget",
            Cause::Debt => "compaction_debt",
            Cause::Space => "space",
        }
    }
}

/// How far behind the tree is: part of a [`View`], worked out when the tree changes. 0 is well, 1 is where writers wait.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Backlog {
    level0: f64,
    debt: f64,
    /// Background work is behind, if not far enough to slow writers: it spares nobody who waits for the device.
    is_urgent: bool,
}

impl Backlog {
    /// True when background work should take what it can get of the device.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// True when writers are slowed for it.
    pub fn presses(&self) -> bool {
        self.level0 > 0.0 || self.debt > 0.0
    }

    /// Returns true if writers wait for it.
    pub fn holds_writers(&self) -> bool {
        self.level0 >= 1.0 || self.debt >= 1.0
    }

    /// The worst of all families.
    pub fn of(view: &View) -> Backlog {
        let mut worst = Backlog {
            // One memtable is on its way out, and the next one is full before that is done.
            is_urgent: view.sealed.len() > 1,
            ..Backlog::default()
        };
        for f in view.families.values() {
            let Some(version) = view.version.families.get(&f.id) else {
                continue;
            };
            let (tables, start) = (version.levels[0].len(), f.options.l0_slowdown);
            if tables >= start {
                let p = (tables - start + 1) as f64 / (start + 1) as f64;
                worst.level0 = worst.level0.max(p);
            }
            let trigger = f.options.l0_compaction_trigger;
            worst.is_urgent |= tables >= (trigger + trigger.div_ceil(2)).min(start);
            let (debt, start) = (
                compaction_debt(version, &f.options),
                f.options.debt_slowdown_bytes,
            );
            worst.is_urgent |= debt > start / 4;
            if debt > start {
                worst.debt = worst.debt.max((debt - start) as f64 / start as f64);
            }
        }
        worst
    }
}

/// How fast backlogs shrink, in bytes a second.
pub(crate) struct Drain {
    level0: AtomicU64,
    memtables: AtomicU64,
    space: AtomicU64,
    /// When level 0 last gave tables away and still had work left: the next time counts from here.
    busy_since: Mutex<Option<Duration>>,
    /// When a collection last ended and another was wanted.
    collecting_since: Mutex<Option<Duration>>,
}

impl Drain {
    pub fn new() -> Drain {
        Drain {
            level0: AtomicU64::new(FIRST_GUESS),
            memtables: AtomicU64::new(FIRST_GUESS),
            space: AtomicU64::new(FIRST_GUESS),
            busy_since: Mutex::new(None),
            collecting_since: Mutex::new(None),
        }
    }

    /// A flush of so many bytes of memtables took so long.
    pub fn flushed(&self, bytes: u64, took: Duration) {
        learn(&self.memtables, bytes, took);
    }

    /// A compaction that began at `began` has taken so many bytes out of level 0. `more`: it is still due.
    pub fn left_level0(&self, bytes: u64, began: Duration, now: Duration, more: bool) {
        let mut since = self.busy_since.lock();
        // Under pressure the time between two compactions counts, too: threads were busy elsewhere.
        let from = since.take().unwrap_or(began);
        *since = more.then_some(now);
        drop(since);
        learn(&self.level0, bytes, now.saturating_sub(from));
    }
}

impl Drain {
    /// A collection that began at `began` has made blob files so many bytes smaller. `more`: others run, or are waited for: then the time
    /// until the next one ends counts, in which threads may be busy elsewhere.
    pub fn gave_space_back(&self, bytes: u64, began: Duration, now: Duration, more: bool) {
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

/// What groups let in have not paid for yet.
#[derive(Default)]
pub(crate) struct Pace {
    owed: f64,
    paid_until: Duration,
}

/// The share of the drain rate that writers get at a pressure from 0 to 1.
fn share(pressure: f64) -> f64 {
    (2.0 * (1.0 - pressure).powi(2)).max(LEAST_SHARE)
}

/// What whoever asks for room does when there is none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Waits: a thread of the writer's own.
    Wait,
    /// Comes again: the lane that all stores share.
    Return,
}

/// The answer to a group that asks for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Room {
    /// It may go.
    Ready,
    /// Not yet; ask again after so long.
    Later(Duration),
}

/// Whether writes are being held back: from the first group that is, to the first that is not.
#[derive(Default)]
pub(crate) struct Stalling {
    /// Asked for each group, without the lock.
    any: AtomicBool,
    now: Mutex<Option<Stall>>,
}

struct Stall {
    cause: Cause,
    began: Duration,
    /// The group at hand was held.
    this_group: bool,
}

impl Engine {
    /// The backlog that lets the least through, how hard it presses, and the rate in bytes a second that it leaves to writers.
    fn pressure(&self) -> Option<(Cause, f64, f64)> {
        let view = self.view();
        let memtables = {
            let (most, buffer) = (
                self.ctx.options.max_sealed_memtables,
                self.ctx.options.write_buffer_bytes,
            );
            // The last quarter of what may be in memory at all. An early look spares the sum over all families.
            if (view.sealed.len() + 1) * 4 <= (most + 1) * 3 {
                0.0
            } else {
                let active = view.active.memory() as f64 / buffer as f64;
                let full = (view.sealed.len() as f64 + active.min(1.0)) / (most as f64 + 1.0);
                // Never 1: a memtable that is full is the rotation's affair, which waits for the flush.
                ((full - 0.75) * 4.0).clamp(0.0, 0.999)
            }
        };
        let drain = &self.drain;
        [
            (Cause::Level0, view.backlog.level0, &drain.level0),
            (Cause::Memtables, memtables, &drain.memtables),
            (Cause::Debt, view.backlog.debt, &drain.level0),
            (Cause::Space, self.space.pressure(), &drain.space),
        ]
        .into_iter()
        .filter(|(_, p, _)| *p > 0.0)
        .map(|(cause, p, drain)| match p {
            1.0.. => (cause, p, 0.0),
            _ => (cause, p, drain.load(Relaxed) as f64 * share(p)),
        })
        .min_by(|a, b| a.2.total_cmp(&b.2))
    }

    fn note_stall(&self, cause: Cause, time: Duration) {
        let counter = match cause {
            Cause::Level0 => &self.ctx.counters.stall_l0_us,
            Cause::Memtables => &self.ctx.counters.stall_memtables_us,
            Cause::Memory => &self.ctx.counters.stall_memory_us,
            Cause::Debt => &self.ctx.counters.stall_debt_us,
            Cause::Space => &self.ctx.counters.stall_space_us,
        };
        counter.add(time.as_micros() as u64);
        let mut now = self.stalling.now.lock();
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
        self.stalling.any.store(true, Relaxed);
        let counter = match cause {
            Cause::Level0 => &self.ctx.counters.stalls_l0,
            Cause::Memtables => &self.ctx.counters.stalls_memtables,
            Cause::Memory => &self.ctx.counters.stalls_memory,
            Cause::Debt => &self.ctx.counters.stalls_debt,
            Cause::Space => &self.ctx.counters.stalls_space,
        };
        counter.add(1);
        self.ctx.notify(|| Event::StallBegin {
            cause: cause.name(),
        });
    }

    fn notify_stall_end(&self, stall: &Stall) {
        self.ctx.notify(|| Event::StallEnd {
            cause: stall.cause.name(),
            lasted: self.ctx.env.clock().now().saturating_sub(stall.began),
        });
    }

    /// A group found room.
    pub fn release_writers(&self) {
        if !self.stalling.any.load(Relaxed) {
            return;
        }
        let mut now = self.stalling.now.lock();
        match &mut *now {
            Some(stall) if stall.this_group => stall.this_group = false,
            Some(stall) => {
                self.notify_stall_end(stall);
                *now = None;
                self.stalling.any.store(false, Relaxed);
            }
            None => {}
        }
    }

    /// Slows a group down as the backlogs ask.
    pub fn hold_back(self: &Arc<Self>, writer: &mut Writer, patience: Patience) -> Result<Room> {
        let clock = self.ctx.env.clock();
        loop {
            let Some((cause, pressure, rate)) = self.pressure() else {
                writer.pace.owed = 0.0;
                return Ok(Room::Ready);
            };
            if pressure >= 1.0 {
                return self.wait_for_relief(cause, patience);
            }
            let now = clock.now();
            let pace = &mut writer.pace;
            let paid = now.saturating_sub(pace.paid_until).as_secs_f64() * rate;
            pace.owed = (pace.owed - paid).max(0.0);
            pace.paid_until = now;
            let wait = Duration::from_secs_f64(pace.owed / rate);
            if wait < MIN_SLEEP {
                return Ok(Room::Ready);
            }
            let nap = wait.min(MAX_SLEEP);
            self.note_stall(cause, nap);
            if patience == Patience::Return {
                return Ok(Room::Later(nap));
            }
            clock.sleep(nap);
            self.ctx.check_open()?;
            self.health.check_jobs()?;
        }
    }

    /// A group of so many bytes was let in.
    pub fn charge(&self, writer: &mut Writer, bytes: u64) {
        // Without pressure the next look forgives it.
        writer.pace.owed += bytes as f64;
    }

    /// Waits until a compaction has brought the pressure below 1, or cannot.
    fn wait_for_relief(self: &Arc<Self>, cause: Cause, patience: Patience) -> Result<Room> {
        let relieved = || {
            let b = self.view().backlog;
            (if cause == Cause::Debt {
                b.debt
            } else {
                b.level0
            }) < 1.0
        };
        let (full, late) = match cause {
            Cause::Debt => (
                "compactions are too far behind and fail",
                "compactions are too far behind and none has run",
            ),
            _ => (
                "level 0 is full and cannot be compacted",
                "level 0 is full and its compaction has not run",
            ),
        };
        let stuck = || {
            let state = self.state.lock();
            let error = self.health.compaction_error();
            let error = error.filter(|_| state.compactions.is_empty());
            error.map(|e| e.context(full))
        };
        self.wait_for(cause, patience, &relieved, &stuck, late)
    }

    /// Waits until `relieved`, or until `stuck` tells why that will not be.
    fn wait_for(
        self: &Arc<Self>,
        cause: Cause,
        patience: Patience,
        relieved: &dyn Fn() -> bool,
        stuck: &dyn Fn() -> Option<Error>,
        late: &str,
    ) -> Result<Room> {
        loop {
            if relieved() {
                return Ok(Room::Ready);
            }
            let _urgent = self.ctx.env.foreground_io().urgent();
            self.schedule();
            let mut moved = true;
            if patience == Patience::Wait {
                let started = self.ctx.env.clock().now();
                moved = self.ctx.env.jobs().wait_until(None, &mut || {
                    relieved()
                        || stuck().is_some()
                        || self.ctx.is_closing()
                        || self.health.check_jobs().is_err()
                });
                self.note_stall(cause, self.ctx.env.clock().now() - started);
            }
            self.ctx.check_open()?;
            self.health.check_jobs()?;
            if relieved() {
                return Ok(Room::Ready);
            }
            if let Some(e) = stuck() {
                return Err(e);
            }
            if patience == Patience::Return {
                // It comes again: until the tree has changed, which decides anew.
                let mut state = self.state.lock();
                state
                    .urgent
                    .get_or_insert_with(|| self.ctx.env.foreground_io().urgent());
                drop(state);
                self.note_stall(cause, MAX_SLEEP);
                return Ok(Room::Later(MAX_SLEEP));
            }
            if !moved {
                // Stepped, and no job could help.
                return Err(Error::new(ErrorKind::Busy, late));
            }
            // Relieved for a moment, or stuck: others were faster to fill it or to try again.
        }
    }

    /// Why memtables do not become tables. A flush has failed and none is on its way: an attempt that has been scheduled since may
    /// still make room, and the error of the one before it says nothing about it.
    fn flush_is_stuck(&self) -> Option<Error> {
        let state = self.state.lock();
        let error = self.health.flush_error();
        let error = error.filter(|_| !state.flush_scheduled);
        error.map(|e| e.context("memtables are full and cannot be written out"))
    }

    /// Waits until one more memtable may be sealed.
    pub fn wait_for_flush(self: &Arc<Self>, patience: Patience) -> Result<Room> {
        let has_room = || self.view().sealed.len() < self.ctx.options.max_sealed_memtables;
        self.wait_for_memtables(Cause::Memtables, patience, &has_room)
    }

    /// Waits until no sealed memtable is left to flush.
    pub fn wait_for_all_flushes(self: &Arc<Self>, patience: Patience) -> Result<Room> {
        let has_room = || self.view().sealed.is_empty();
        self.wait_for_memtables(Cause::Memtables, patience, &has_room)
    }

    /// Waits until `bytes` more fit the memory budget, until no store has sealed memtables that will give their memory back, or until this
    /// store is to seal its own and the caller has not just done so. Waits at most [`LONGEST_MEMORY_WAIT`] for other stores.
    pub fn wait_for_memory(
        self: &Arc<Self>,
        bytes: u64,
        patience: Patience,
        rotated: bool,
    ) -> Result<Room> {
        let begun = self.ctx.env.clock().now();
        let has_room = || {
            let view = self.view();
            self.ctx.env.ledger().free() >= bytes
                || (!rotated && self.is_memory_wanted(&view.active))
                || (view.sealed.is_empty()
                    && self.ctx.env.clock().now().saturating_sub(begun) >= LONGEST_MEMORY_WAIT)
                || (view.sealed.is_empty() && self.ctx.env.relief().coming() == 0)
        };
        match self.wait_for_memtables(Cause::Memory, patience, &has_room) {
            // Stepped, and what another store has promised does not come.
            Err(e) if e.kind() == ErrorKind::Busy && self.view().sealed.is_empty() => {
                Ok(Room::Ready)
            }
            room => room,
        }
    }

    fn wait_for_memtables(
        self: &Arc<Self>,
        cause: Cause,
        patience: Patience,
        has_room: &dyn Fn() -> bool,
    ) -> Result<Room> {
        self.wait_for(
            cause,
            patience,
            has_room,
            &|| self.flush_is_stuck(),
            "memtables are full and their flush has not run",
        )
    }
}
