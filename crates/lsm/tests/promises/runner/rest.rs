//! A period in which the store is left idle.

use super::Runner;
use crate::history::options;
use crate::rng::Rng;
use std::time::Duration;

/// Idle periods of options that make a store idle within a history are below this.
const IDLE_AT_MOST: Duration = Duration::from_millis(10);
/// A failed store waits less than this before it tries again by itself.
const RETRY: Duration = Duration::from_millis(1100);

impl Runner {
    /// Lets time pass without a write, long enough for a store to count as idle if the options
    /// allow that. Delayed jobs become due and run. On a disk that fails, the time is sometimes
    /// long enough for a retry without a request.
    pub(super) fn rest(&mut self, n: u64) {
        let period = options(self.options).idle_release;
        let mut c = Rng::of(&[self.options, n, 6]);
        if period > IDLE_AT_MOST || !c.percent(12) {
            return;
        }
        let before = self.released();
        // The first period may have begun before the last write.
        for _ in 0..2 {
            let retry = self.tolerant && c.percent(30);
            self.manual_clock
                .advance(if retry { RETRY } else { period });
            (0..6).for_each(|_| {
                self.env.jobs().step();
            });
        }
        self.releases += self.released() - before;
        self.poll();
    }

    fn released(&self) -> u64 {
        let db = self.db.as_ref().expect("open");
        db.stats().idle_releases
    }
}
