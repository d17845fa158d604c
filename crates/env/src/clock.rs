//! Time: monotonic for durations, wall time for expiry. A test can replace both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A source of time. Cloning is cheap.
#[derive(Clone)]
pub struct Clock(ClockSource);

/// The source of a clock's time.
#[derive(Clone)]
enum ClockSource {
    System(Arc<SystemTimes>),
    Manual(Arc<ManualClock>),
}

struct SystemTimes {
    start: std::time::Instant,
    highest_wall_ms: AtomicU64,
}

/// A clock that moves only when a test moves it. [`Clock::sleep`] on it moves it forward and
/// returns at once.
pub struct ManualClock {
    monotonic_us: AtomicU64,
    /// Wall time in microseconds, so that many short steps add up to a millisecond.
    wall_us: AtomicU64,
    highest_wall_ms: AtomicU64,
    /// Microseconds by which each reading of the monotonic time moves it.
    step_us: u64,
}

impl ManualClock {
    /// Returns a clock at the given wall time, in milliseconds since 1970, and monotonic time 0.
    pub fn new(wall_ms: u64) -> Arc<ManualClock> {
        ManualClock::ticking(wall_ms, Duration::ZERO)
    }
    /// Returns a clock whose monotonic time also moves on by `step` at each reading. Threads that
    /// wait for a time reach it without a clock outside.
    pub fn ticking(wall_ms: u64, step: Duration) -> Arc<ManualClock> {
        Arc::new(ManualClock {
            step_us: step.as_micros() as u64,
            monotonic_us: AtomicU64::new(0),
            wall_us: AtomicU64::new(wall_ms.saturating_mul(1000)),
            highest_wall_ms: AtomicU64::new(wall_ms),
        })
    }
    /// Moves both times forward.
    pub fn advance(&self, by: Duration) {
        self.monotonic_us.fetch_add(by.as_micros() as u64, SeqCst);
        self.wall_us.fetch_add(by.as_micros() as u64, SeqCst);
    }
    /// Sets the wall time alone, also backwards, as an operator or a time daemon does.
    pub fn set_wall_ms(&self, wall_ms: u64) {
        self.wall_us.store(wall_ms.saturating_mul(1000), SeqCst);
    }
}

impl Clock {
    /// Returns the operating system's clock.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the system's clock"
    )]
    pub fn system() -> Clock {
        Clock(ClockSource::System(Arc::new(SystemTimes {
            start: std::time::Instant::now(),
            highest_wall_ms: AtomicU64::new(0),
        })))
    }
    /// Returns a clock that a test controls.
    pub fn manual(manual: Arc<ManualClock>) -> Clock {
        Clock(ClockSource::Manual(manual))
    }
    /// Returns the manual clock, or `None` for the system's clock.
    pub fn as_manual(&self) -> Option<&Arc<ManualClock>> {
        match &self.0 {
            ClockSource::System(_) => None,
            ClockSource::Manual(m) => Some(m),
        }
    }
    /// Returns true if time passes without a test moving it.
    pub fn moves_by_itself(&self) -> bool {
        match &self.0 {
            ClockSource::System(_) => true,
            ClockSource::Manual(m) => m.step_us > 0,
        }
    }
    /// Returns the monotonic time since the clock was made.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the monotonic clock"
    )]
    pub fn now(&self) -> Duration {
        match &self.0 {
            ClockSource::System(s) => s.start.elapsed(),
            ClockSource::Manual(m) => {
                Duration::from_micros(m.monotonic_us.fetch_add(m.step_us, SeqCst))
            }
        }
    }
    /// Returns the wall time in milliseconds since 1970. It never goes back within a process, so
    /// that expired entries stay expired if the system's time is set back.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the system's clock"
    )]
    pub fn wall_ms(&self) -> u64 {
        let (now, highest) = match &self.0 {
            ClockSource::System(s) => {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |d| d.as_millis() as u64);
                (now, &s.highest_wall_ms)
            }
            ClockSource::Manual(m) => (m.wall_us.load(SeqCst) / 1000, &m.highest_wall_ms),
        };
        highest.fetch_max(now, SeqCst).max(now)
    }
    /// Records a wall time that was found elsewhere (in a store's manifest). The clock does not go
    /// below it again.
    pub fn observe_wall_ms(&self, wall_ms: u64) {
        match &self.0 {
            ClockSource::System(s) => s.highest_wall_ms.fetch_max(wall_ms, SeqCst),
            ClockSource::Manual(m) => m.highest_wall_ms.fetch_max(wall_ms, SeqCst),
        };
    }
    /// Waits for a duration. A manual clock moves its time instead.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that sleeps"
    )]
    pub fn sleep(&self, how_long: Duration) {
        match &self.0 {
            ClockSource::System(_) => std::thread::sleep(how_long),
            ClockSource::Manual(m) => m.advance(how_long),
        }
    }
}

#[cfg(test)]
mod tests;
