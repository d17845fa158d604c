//! Counters of a [`crate::TransactionDb`], and their values as users read them.

use basalt_env::metrics::Counter;

/// Counters that all transactions of a handle add to.
#[derive(Default)]
pub struct TransactionCounters {
    pub begun: Counter,
    pub commits: Counter,
    pub conflicts: Counter,
    pub rollbacks: Counter,
    pub lock_waits: Counter,
    pub lock_timeouts: Counter,
    pub deadlocks: Counter,
}

/// Counts of a [`crate::TransactionDb`] since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionStats {
    /// Transactions that were begun.
    pub begun: u64,
    /// Transactions that were committed, those without writes among them.
    pub commits: u64,
    /// Commits and locks that failed with `Conflict`: a key was changed since the snapshot or since
    /// it was locked.
    pub conflicts: u64,
    /// Transactions that ended without a commit: rolled back, dropped, or failed at the commit.
    pub rollbacks: u64,
    /// Requests of locks that waited for another transaction.
    pub lock_waits: u64,
    /// Requests of locks that ended with `Busy`, because their time was over.
    pub lock_timeouts: u64,
    /// Requests of locks that ended with `Deadlock`.
    pub deadlocks: u64,
    /// Locks that are held or waited for at present.
    pub locks: u64,
}

impl TransactionCounters {
    /// Returns the values at present.
    pub fn stats(&self, locks: u64) -> TransactionStats {
        TransactionStats {
            begun: self.begun.get(),
            commits: self.commits.get(),
            conflicts: self.conflicts.get(),
            rollbacks: self.rollbacks.get(),
            lock_waits: self.lock_waits.get(),
            lock_timeouts: self.lock_timeouts.get(),
            deadlocks: self.deadlocks.get(),
            locks,
        }
    }
}
