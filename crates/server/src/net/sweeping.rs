//! Sweeps and expiries of streams. Another thread removes the logs and elements of streams that
//! lost their keys ([`crate::stream::sweep`]). The loop deletes the keys of expired streams.

use super::background::{join, report, start};
use super::{Event, LEAST_SLEEP, LoopHandle, Server};
use crate::store::Store;
use crate::stream::sweep::{SweepJob, SweepResult, sweep};
use basalt::env::thread::{BackgroundThread, StopSignal};
use std::sync::Arc;
use std::time::Duration;

/// Pause after a sweep that failed, and after a failed commit.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest sleep of the loop while it waits for an expiry, because the wall clock may be set
/// forward.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The thread of a sweep. There is at most one.
#[derive(Default)]
pub(super) struct Sweeper {
    thread: Option<BackgroundThread>,
    stop: StopSignal,
    is_busy: bool,
    /// Time before which no sweep begins, because the last one failed.
    not_before: Duration,
    /// Time before which no stream expires, because a commit failed.
    expire_from: Duration,
}

impl Sweeper {
    /// Returns true if a sweep is running or its result is outstanding.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Notes that a commit has failed. The next one may fail as well.
    pub fn commit_failed(&mut self, now: Duration) {
        self.expire_from = now + RETRY_AFTER;
    }

    fn start(&mut self, job: SweepJob, store: &Arc<dyn Store>, shared: &Arc<LoopHandle>) {
        self.is_busy = true;
        join(&mut self.thread);
        let (store, events, stop) = (store.clone(), shared.clone(), self.stop.clone());
        self.thread = start("basalt-sweep", move || {
            let result = sweep(&*store, job, &stop);
            events.post(Event::Swept(Box::new(result)));
        });
        if self.thread.is_none() {
            // The thread did not start. The logs stay until the next start of the server.
            shared.post(Event::Swept(Box::default()));
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop.send();
        join(&mut self.thread);
    }
}

impl Server {
    /// Begins a sweep if streams wait for one, continues the search for dropped streams, and
    /// expires streams.
    pub(super) fn sweep_streams(&mut self) {
        let keys = &mut self.exec.keys;
        keys.step_streams();
        if self.stopping.is_some() {
            return;
        }
        if self.now >= self.sweeper.expire_from {
            keys.expire_streams(self.exec.env.clock().wall_ms());
        }
        let may_start = !self.sweeper.is_busy && self.now >= self.sweeper.not_before;
        if may_start && let Some(job) = keys.take_sweep() {
            let store = keys.store().clone();
            self.sweeper.start(job, &store, &self.shared);
        }
    }

    /// Applies the result of a sweep.
    pub(super) fn swept(&mut self, result: SweepResult) {
        self.sweeper.is_busy = false;
        if let Some(e) = &result.error {
            report(&format!("removing the logs of dropped streams failed: {e}"));
        }
        if !self.exec.keys.take_swept(result) {
            self.sweeper.not_before = self.now + RETRY_AFTER;
        }
    }

    /// Returns the longest time that the loop may sleep for sweeps and expiries.
    pub(super) fn timeout_of_sweeps(&self) -> Option<Duration> {
        if self.stopping.is_some() {
            return None;
        }
        let now = self.exec.env.clock().now();
        let keys = &self.exec.keys;
        if keys.has_stream_steps() {
            return Some(Duration::ZERO);
        }
        let sweep = (!self.sweeper.is_busy && keys.wants_sweep())
            .then(|| self.sweeper.not_before.saturating_sub(now));
        let expiry = keys.next_stream_expiry().map(|at| {
            let wait_ms = at.saturating_sub(self.exec.env.clock().wall_ms());
            let wait = Duration::from_millis(wait_ms).min(LONGEST_SLEEP);
            wait.max(self.sweeper.expire_from.saturating_sub(now))
        });
        let first = sweep.into_iter().chain(expiry).min();
        first.map(|wait| wait.max(LEAST_SLEEP))
    }
}
