//! The wait of a commit group's leader for more writers: whether it waits, and how long.
//!
//! When a group has been answered, its writers come back a moment later. By then the next leader
//! has begun a sync without them, so N writers get N/2 writes a sync. So a leader waits until as
//! many writers are there as in the last round. The wait is never longer than half a sync, or a few
//! microseconds for a group without a sync. After a wait in vain, a number of groups that doubles
//! each time do not wait. So writers that come at random lose next to nothing. A single writer does
//! not wait.

use std::time::Duration;

/// The longest wait.
const MAX_WAIT: Duration = Duration::from_micros(500);
/// The largest number of groups that do not wait after waits in vain.
const MAX_SKIPPED_GROUPS: u32 = 63;

/// Statistics of the writers of the commit queue.
#[derive(Default)]
pub(crate) struct GroupWait {
    /// Number of batches in the last group and of those that waited behind it.
    last: usize,
    /// Time of a synced append, averaged over about eight of them.
    sync_time: Duration,
    /// Backoff of unsynced groups, and of synced ones. They are apart, because a short wait in vain
    /// says nothing about a long one.
    backoff: [Backoff; 2],
}

#[derive(Default)]
struct Backoff {
    /// Number of groups that are not to wait.
    groups: u32,
    failed_waits: u32,
}

impl GroupWait {
    /// Notes that a group of `group` batches was taken, and that `behind` batches waited behind it.
    pub fn note_group(&mut self, group: usize, behind: usize) {
        self.last = group + behind;
    }

    /// Notes the time that a group's append and sync took.
    pub fn note_sync(&mut self, took: Duration) {
        self.sync_time = (self.sync_time * 7 + took) / 8;
    }

    /// Returns how many batches to wait for when `pending` are queued, and the longest wait of a
    /// group with `sync`.
    pub fn wait_for(
        &mut self,
        pending: usize,
        max_batches: usize,
        sync: bool,
    ) -> Option<(usize, Duration)> {
        let target_batches = self.last.min(max_batches);
        if pending >= target_batches {
            return None;
        }
        let backoff = &mut self.backoff[usize::from(sync)];
        if backoff.groups > 0 {
            backoff.groups -= 1;
            return None;
        }
        Some((target_batches, (self.sync_time / 2).min(MAX_WAIT)))
    }

    /// Notes that a wait has ended, and whether all awaited writers came.
    pub fn note_wait(&mut self, complete: bool, sync: bool) {
        let backoff = &mut self.backoff[usize::from(sync)];
        backoff.failed_waits = if complete {
            0
        } else {
            (backoff.failed_waits * 2 + 1).min(MAX_SKIPPED_GROUPS)
        };
        backoff.groups = backoff.failed_waits;
    }
}

#[cfg(test)]
mod tests;
