//! Whether the leader of a commit group waits a moment for more writers, and how long.
//!
//! When a group has been answered, its writers come back a moment later, and by then the next leader has begun a sync without
//! them: N writers get N/2 writes a sync. So a leader of synced batches waits until as many are there as were about last time.
//! Never longer than half a sync, and after a wait in vain not for a number of groups that doubles each time: writers that
//! come and go as they please lose next to nothing. A writer that is alone does not wait.

use std::time::Duration;

/// No wait is longer.
const LONGEST: Duration = Duration::from_micros(500);
/// Groups without a wait after many waits in vain.
const MOST_HASTY: u32 = 63;

/// What the commit queue remembers of its writers.
#[derive(Default)]
pub(super) struct Company {
    /// Batches of the last group, and those that waited behind it.
    last: usize,
    /// What a synced append takes, averaged over some eight.
    sync_time: Duration,
    /// Groups that are not to wait.
    hasty: u32,
    in_vain: u32,
}

impl Company {
    /// A group was taken: so many batches, so many more behind it.
    pub(super) fn took(&mut self, group: usize, behind: usize) {
        self.last = group + behind;
    }

    /// A group's append and sync took so long.
    pub(super) fn synced(&mut self, took: Duration) {
        self.sync_time = (self.sync_time * 7 + took) / 8;
    }

    /// How many batches to wait for and how long at most, when `pending` are there.
    pub(super) fn wait_for(&mut self, pending: usize, most: usize) -> Option<(usize, Duration)> {
        let wanted = self.last.min(most);
        if pending >= wanted {
            return None;
        }
        if self.hasty > 0 {
            self.hasty -= 1;
            return None;
        }
        Some((wanted, (self.sync_time / 2).min(LONGEST)))
    }

    /// A wait is over: everybody came, or not.
    pub(super) fn waited(&mut self, came: bool) {
        self.in_vain = if came {
            0
        } else {
            (self.in_vain * 2 + 1).min(MOST_HASTY)
        };
        self.hasty = self.in_vain;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_alone_never_waits() {
        let mut c = Company::default();
        for _ in 0..10 {
            assert_eq!(c.wait_for(1, 100), None);
            c.took(1, 0);
            c.synced(Duration::from_micros(800));
        }
    }

    #[test]
    fn writers_that_came_together_are_waited_for_at_most_half_a_sync() {
        let mut c = Company::default();
        c.took(3, 1);
        for _ in 0..100 {
            c.synced(Duration::from_micros(800));
        }
        let (wanted, most) = c.wait_for(1, 100).unwrap();
        assert_eq!(wanted, 4);
        assert!(
            most > Duration::from_micros(390) && most <= Duration::from_micros(400),
            "{most:?}"
        );
        assert_eq!(c.wait_for(4, 100), None, "all are there");
        assert_eq!(c.wait_for(2, 2), None, "a group takes no more");
        c.synced(Duration::from_secs(10));
        assert_eq!(c.wait_for(1, 100).unwrap().1, LONGEST);
    }

    #[test]
    fn waits_in_vain_become_rare_and_one_success_forgets_them() {
        let mut c = Company::default();
        let mut waits = 0;
        for _ in 0..1000 {
            c.took(2, 0);
            if c.wait_for(1, 100).is_some() {
                waits += 1;
                c.waited(false);
            }
        }
        assert!((10..30).contains(&waits), "{waits} waits");
        c.waited(true);
        assert!(c.wait_for(1, 100).is_some());
    }
}
