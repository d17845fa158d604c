//! ForegroundIo: while somebody in the foreground waits for the device, background work leaves most of its time to them.
//!
//! A synced commit or a read past the cache takes a tenth of a millisecond, unless it stands behind a merge's next mebibyte, and
//! then the one after that. So whoever waits for the device in the foreground says so ([`ForegroundIo::foreground_read`]), and background work asks for
//! its turn ([`ForegroundIo::turn`]): as long as there was foreground work a moment ago, each of its pieces is followed by a pause of [`PAUSE`] times as
//! long as it took. Beside reads and small syncs the pieces are small ([`ForegroundIo::piece`]). Beside syncs of large writes alone they are not: such
//! a sync takes as long as a piece, and many small ones leave the device, and the processor, less time for it.
//!
//! It costs nothing where nobody waits, and ends where background work gets behind: somebody in a [`Urgent`] lifts it for all, because the device is one.
//!
//! Promise: nobody waits for a turn longer than [`LONGEST`] and a [`NAP`], however many come for it, and nobody outlasts a hurry by more
//! than a [`NAP`].

use crate::clock::Clock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a piece that leaves the device soon.
pub const SMALL_PIECE: usize = 128 << 10;
/// A sync of so many bytes is large.
const LARGE_SYNC: usize = 8 << 10;
/// A pause lasts so many times as long as the piece before it: background work gets a quarter of the device's time.
const PAUSE: u32 = 3;
const LONGEST: Duration = Duration::from_millis(50);
/// After so long without anybody in the foreground the device is free.
const LINGER: Duration = Duration::from_millis(2);
/// Clocks count microseconds: a shorter nap would take no time, again and again.
const SHORTEST_NAP: Duration = Duration::from_micros(10);
/// A hurry is noticed so soon.
const NAP: Duration = Duration::from_millis(2);

struct State {
    clock: Clock,
    /// How often somebody in the foreground was about to wait for the device: for little, and for much.
    small: AtomicU64,
    large: AtomicU64,
    urgent: AtomicUsize,
    paused_us: AtomicU64,
    seen: Mutex<Seen>,
}

/// A count when it was looked at last, and when it was last seen to change.
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
        self.at.is_some_and(|at| now.saturating_sub(at) < LINGER)
    }
}

struct Seen {
    small: Changes,
    large: Changes,
    /// The next turn of background work, while it is courteous.
    next: Duration,
    /// What the last piece took: so long the next one has the device to itself.
    took: Duration,
}

/// One for all stores of an environment. Cheap to clone.
#[derive(Clone)]
pub struct ForegroundIo(Arc<State>);

/// Whom background work leaves most of the device's time to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForegroundLoad {
    /// Somebody waits for a read or the sync of a small write, others perhaps for large ones.
    Small,
    /// Somebody waits for the sync of a large write, and nobody for less.
    Large,
}

/// Background work is in a hurry, in whichever store, until this is dropped.
pub struct Urgent(Arc<State>);

/// A piece of background I/O, from its beginning until this is dropped.
#[must_use = "the piece ends when it is dropped"]
pub struct Turn<'a> {
    state: &'a State,
    began: Duration,
}

impl ForegroundIo {
    /// Nobody waits, nobody is in a hurry.
    pub fn new(clock: Clock) -> ForegroundIo {
        ForegroundIo(Arc::new(State {
            clock,
            small: AtomicU64::new(0),
            large: AtomicU64::new(0),
            urgent: AtomicUsize::new(0),
            paused_us: AtomicU64::new(0),
            seen: Mutex::new(Seen {
                small: Changes::default(),
                large: Changes::default(),
                next: Duration::ZERO,
                took: Duration::ZERO,
            }),
        }))
    }

    /// Says that somebody in the foreground is about to wait for a read of the device.
    pub fn foreground_read(&self) {
        self.0.small.fetch_add(1, Relaxed);
    }

    /// Says that somebody in the foreground is about to wait for a sync, of so many bytes of his.
    pub fn foreground_sync(&self, bytes: usize) {
        let count = match bytes < LARGE_SYNC {
            true => &self.0.small,
            false => &self.0.large,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Lifts courtesy for as long as the hurry lives.
    pub fn urgent(&self) -> Urgent {
        self.0.urgent.fetch_add(1, Relaxed);
        Urgent(self.0.clone())
    }

    /// Whom background work spares now.
    pub fn spares(&self) -> Option<ForegroundLoad> {
        self.0.spares(self.0.clock.now())
    }

    /// How many of `bytes` to move at a time.
    pub fn piece(&self, bytes: usize) -> usize {
        if bytes > SMALL_PIECE && self.spares() == Some(ForegroundLoad::Small) {
            SMALL_PIECE
        } else {
            bytes
        }
    }

    /// Waits for the turn of a piece of background I/O, which lasts until what is returned is dropped.
    pub fn turn(&self) -> Turn<'_> {
        let state = &*self.0;
        let came = state.clock.now();
        let mut began = came;
        while state.spares(began).is_some() {
            let mut seen = state.seen.lock();
            if began >= seen.next || began.saturating_sub(came) >= LONGEST {
                // Others that came for the same turn wait for the one after it.
                seen.next = began + seen.took;
                break;
            }
            let nap = (seen.next - began).clamp(SHORTEST_NAP, NAP);
            drop(seen);
            state.clock.sleep(nap);
            began = state.clock.now();
        }
        let paused = began.saturating_sub(came);
        if !paused.is_zero() {
            state
                .paused_us
                .fetch_add(paused.as_micros() as u64, Relaxed);
        }
        Turn { state, began }
    }

    /// How long background work has paused so far, all pieces together.
    pub fn paused(&self) -> Duration {
        Duration::from_micros(self.0.paused_us.load(Relaxed))
    }
}

impl State {
    fn spares(&self, now: Duration) -> Option<ForegroundLoad> {
        // Relaxed: a moment sooner or later does not matter.
        if self.urgent.load(Relaxed) > 0 {
            return None;
        }
        let mut seen = self.seen.lock();
        let small = seen.small.are_recent(self.small.load(Relaxed), now);
        let large = seen.large.are_recent(self.large.load(Relaxed), now);
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
        let took = now.saturating_sub(self.began).min(LONGEST);
        let pause = (took * PAUSE).min(LONGEST);
        let mut seen = self.state.seen.lock();
        seen.took = took;
        seen.next = seen.next.max(now + pause);
    }
}
