//! The priority of foreground I/O: while foreground threads wait for the device, background work
//! leaves most of the device's time to them.
//!
//! A synced commit, or a read past the cache, takes a tenth of a millisecond. Behind the next
//! mebibyte of a compaction it takes many times as long, and the mebibyte after that may follow. So
//! a foreground thread announces that it is about to wait for the device
//! ([`ForegroundIo::foreground_read`], [`ForegroundIo::foreground_sync`]), and background work
//! waits for its turn ([`ForegroundIo::turn`]).
//!
//! If foreground threads used the device within [`FOREGROUND_LINGER`], each piece of background I/O
//! is followed by a pause of [`PAUSE_FACTOR`] times the piece's duration. Beside reads and small
//! syncs, the pieces are small ([`ForegroundIo::piece`]). Beside large syncs alone, the pieces keep
//! their size: such a sync takes as long as a piece, and many small pieces leave the device, and
//! the processor, less time for it.
//!
//! The mechanism costs nothing if no foreground thread waits. If background work falls behind, an
//! [`Urgent`] guard suspends the mechanism for all stores, because all stores share one device.
//!
//! Promises: a turn waits at most [`MAX_PAUSE`] and one [`MAX_SLEEP`], however many threads wait
//! for it. After an `Urgent` guard was taken, a waiting thread continues within [`MAX_SLEEP`].

use crate::clock::Clock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a background piece that delays a foreground thread only briefly.
pub const SMALL_PIECE: usize = 128 << 10;
/// A sync of at least this many bytes is large.
const LARGE_SYNC: usize = 8 << 10;
/// A pause lasts this many times as long as the piece before it, so background work gets a quarter
/// of the device's time.
const PAUSE_FACTOR: u32 = 3;
/// Longest pause after a piece, and longest duration that a piece counts with.
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// If no foreground thread used the device for this long, background work has the device for
/// itself.
const FOREGROUND_LINGER: Duration = Duration::from_millis(2);
/// Shortest sleep of a waiting thread. Clocks count microseconds, so a shorter sleep could take no
/// time, again and again.
const MIN_SLEEP: Duration = Duration::from_micros(10);
/// Longest sleep of a waiting thread. After each sleep it checks whether the turn has come, or
/// whether the priority is suspended.
const MAX_SLEEP: Duration = Duration::from_millis(2);

/// The state that all clones of a [`ForegroundIo`] share.
struct ForegroundState {
    clock: Clock,
    /// Number of waits of foreground threads for reads and small syncs.
    small: AtomicU64,
    /// Number of waits of foreground threads for large syncs.
    large: AtomicU64,
    /// Number of [`Urgent`] guards.
    urgent: AtomicUsize,
    /// Microseconds that background work has paused so far.
    paused_us: AtomicU64,
    turns: Mutex<TurnState>,
}

/// The last value of a count, and when the count was last seen to change.
#[derive(Default)]
struct Changes {
    count: u64,
    at: Option<Duration>,
}

impl Changes {
    fn are_recent(&mut self, count: u64, now: Duration) -> bool {
        if count != self.count {
            self.count = count;
            self.at = Some(now);
        }
        self.at
            .is_some_and(|at| now.saturating_sub(at) < FOREGROUND_LINGER)
    }
}

/// Times: of the last use of the device by foreground threads, and of the next background turn.
struct TurnState {
    small: Changes,
    large: Changes,
    /// Time since the clock began at which the next background turn begins, while foreground
    /// threads wait.
    next_turn: Duration,
    /// Duration of the last piece. The next piece has the device for itself that long.
    last_piece: Duration,
}

/// The priority of foreground I/O, one for all stores of an environment. Cloning is cheap.
#[derive(Clone)]
pub struct ForegroundIo(Arc<ForegroundState>);

/// The foreground I/O to which background work leaves most of the device's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForegroundLoad {
    /// Foreground threads wait for reads or the syncs of small writes, and maybe also for large
    /// syncs.
    Small,
    /// Foreground threads wait only for the syncs of large writes.
    Large,
}

/// A guard: while it lives, background work in every store runs without pauses.
pub struct Urgent(Arc<ForegroundState>);

/// One piece of background I/O, which ends when this guard is dropped.
#[must_use = "the piece ends when it is dropped"]
pub struct Turn<'a> {
    state: &'a ForegroundState,
    began: Duration,
}

impl ForegroundIo {
    /// Returns a state in which no foreground thread waits and no work is urgent.
    pub fn new(clock: Clock) -> ForegroundIo {
        ForegroundIo(Arc::new(ForegroundState {
            clock,
            small: AtomicU64::new(0),
            large: AtomicU64::new(0),
            urgent: AtomicUsize::new(0),
            paused_us: AtomicU64::new(0),
            turns: Mutex::new(TurnState {
                small: Changes::default(),
                large: Changes::default(),
                next_turn: Duration::ZERO,
                last_piece: Duration::ZERO,
            }),
        }))
    }

    /// Announces that a foreground thread is about to wait for a read of the device.
    pub fn foreground_read(&self) {
        self.0.small.fetch_add(1, Relaxed);
    }

    /// Announces that a foreground thread is about to wait for a sync of `bytes` bytes.
    pub fn foreground_sync(&self, bytes: usize) {
        let count = match bytes < LARGE_SYNC {
            true => &self.0.small,
            false => &self.0.large,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Suspends the priority of foreground I/O for as long as the guard lives.
    pub fn urgent(&self) -> Urgent {
        self.0.urgent.fetch_add(1, Relaxed);
        Urgent(self.0.clone())
    }

    /// Returns the foreground I/O that background work makes way for now, or `None`.
    pub fn foreground_load(&self) -> Option<ForegroundLoad> {
        self.0.foreground_load(self.0.clock.now())
    }

    /// Returns how many of `bytes` bytes background work should move at a time.
    pub fn piece(&self, bytes: usize) -> usize {
        if bytes > SMALL_PIECE && self.foreground_load() == Some(ForegroundLoad::Small) {
            SMALL_PIECE
        } else {
            bytes
        }
    }

    /// Waits for the turn of one piece of background I/O. The piece lasts until the returned guard
    /// is dropped.
    pub fn turn(&self) -> Turn<'_> {
        let state = &*self.0;
        let arrived = state.clock.now();
        let mut began = arrived;
        while state.foreground_load(began).is_some() {
            let mut turns = state.turns.lock();
            if began >= turns.next_turn || began.saturating_sub(arrived) >= MAX_PAUSE {
                // Other threads that wait for the same turn get the turn after it.
                turns.next_turn = began + turns.last_piece;
                break;
            }
            let sleep = (turns.next_turn - began).clamp(MIN_SLEEP, MAX_SLEEP);
            drop(turns);
            state.clock.sleep(sleep);
            began = state.clock.now();
        }
        let paused = began.saturating_sub(arrived);
        if !paused.is_zero() {
            state
                .paused_us
                .fetch_add(paused.as_micros() as u64, Relaxed);
        }
        Turn { state, began }
    }

    /// Returns how long background work has paused so far, all pieces together.
    pub fn paused(&self) -> Duration {
        Duration::from_micros(self.0.paused_us.load(Relaxed))
    }
}

impl ForegroundState {
    fn foreground_load(&self, now: Duration) -> Option<ForegroundLoad> {
        // Relaxed: a change may be seen a little later, which does no harm.
        if self.urgent.load(Relaxed) > 0 {
            return None;
        }
        let mut turns = self.turns.lock();
        let small = turns.small.are_recent(self.small.load(Relaxed), now);
        let large = turns.large.are_recent(self.large.load(Relaxed), now);
        match (small, large) {
            (true, _) => Some(ForegroundLoad::Small),
            (false, true) => Some(ForegroundLoad::Large),
            (false, false) => None,
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.urgent.fetch_sub(1, Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let now = self.state.clock.now();
        let last_piece = now.saturating_sub(self.began).min(MAX_PAUSE);
        let pause = (last_piece * PAUSE_FACTOR).min(MAX_PAUSE);
        let mut turns = self.state.turns.lock();
        turns.last_piece = last_piece;
        turns.next_turn = turns.next_turn.max(now + pause);
    }
}
