//! Sweeps and expiries of streams. Another thread removes the logs and elements of streams that
//! lost their keys ([`crate::stream::sweep`]). The loop deletes the keys of expired streams.

use super::background::{join, report, start};
use super::{Event, LEAST_SLEEP, LoopHandle, Server};
use crate::layout;
use crate::store::Store;
use crate::stream::sweep::{SweepJob, SweepResult, sweep};
use basalt::env::thread::{BackgroundThread, StopSignal};
use std::sync::Arc;
use std::time::Duration;

/// Pause after a sweep whose work remains, and after a failed commit.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest pause after a sweep that failed. The pause is twice as long after each further failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
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
    /// Pause after the last failure, or zero after a sweep that did not fail.
    pause: Duration,
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

    /// Notes the end of a sweep.
    fn ended(&mut self, is_done: bool, has_failed: bool, now: Duration) {
        self.is_busy = false;
        self.pause = match has_failed {
            true => (self.pause * 2).clamp(RETRY_AFTER, LONGEST_PAUSE),
            false => Duration::ZERO,
        };
        if !is_done {
            self.not_before = now + self.pause.max(RETRY_AFTER);
        }
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
        if may_start && let Some(job) = keys.take_sweep(self.now) {
            let store = keys.store().clone();
            self.sweeper.start(job, &store, &self.shared);
        }
    }

    /// Applies the result of a sweep.
    pub(super) fn swept(&mut self, result: SweepResult) {
        let failure = result.error.clone();
        if let Some(e) = &failure {
            report(&format!("removing the logs of dropped streams failed: {e}"));
        }
        let is_done = self.exec.keys.take_swept(result, self.now);
        self.sweeper.ended(is_done, failure.is_some(), self.now);
        for key in self.exec.keys.take_undecodable() {
            let name = layout::decode_key(&key.stored_key).map_or(&[][..], |(_, _, key)| key);
            report(&format!(
                "the value of the key {:?} cannot be decoded, so the logs that it may have stay: {}",
                String::from_utf8_lossy(name),
                key.error
            ));
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
        let next_sweep = keys.next_sweep().filter(|_| !self.sweeper.is_busy);
        let sweep = next_sweep.map(|at| at.max(self.sweeper.not_before).saturating_sub(now));
        let expiry = keys.next_stream_expiry().map(|at| {
            let wait_ms = at.saturating_sub(self.exec.env.clock().wall_ms());
            let wait = Duration::from_millis(wait_ms).min(LONGEST_SLEEP);
            wait.max(self.sweeper.expire_from.saturating_sub(now))
        });
        let first = sweep.into_iter().chain(expiry).min();
        first.map(|wait| wait.max(LEAST_SLEEP))
    }
}

#[cfg(test)]
mod tests;
