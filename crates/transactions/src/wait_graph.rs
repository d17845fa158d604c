//! [`WaitGraph`]: which transactions wait for which others, and whether that is a cycle.
//!
//! A transaction that waits for a lock has an edge to the request before it in the queue of the
//! lock. The first request of a queue has edges to the holders that exclude it. So the graph has
//! a path to each transaction that must end before, and no path to any other.

use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Number of a transaction in its handle.
pub type TransactionId = u64;

/// The transactions that another one waits for.
pub type Blockers = SmallVec<[TransactionId; 2]>;

struct Waiting {
    /// The key that is waited for, for messages.
    what: String,
    blockers: Blockers,
}

/// The transactions that wait, and what for.
#[derive(Default)]
pub struct WaitGraph {
    waiting: BTreeMap<TransactionId, Waiting>,
}

impl WaitGraph {
    /// Adds a transaction that begins to wait for a key.
    pub fn add(&mut self, id: TransactionId, what: String, blockers: Blockers) {
        self.waiting.insert(id, Waiting { what, blockers });
    }

    /// Sets the transactions that a waiting transaction waits for.
    pub fn set_blockers(&mut self, id: TransactionId, blockers: Blockers) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.blockers = blockers;
        }
    }

    /// Removes a transaction that waits no more.
    pub fn remove(&mut self, id: TransactionId) {
        self.waiting.remove(&id);
    }

    /// Returns the keys that the transactions of a cycle through `id` wait for, beginning with
    /// that of `id`. `None` if there is no cycle. Costs a walk over the transactions that `id`
    /// waits for, directly or through others.
    pub fn cycle(&self, id: TransactionId) -> Option<Vec<&str>> {
        let mut seen = BTreeSet::from([id]);
        // The path to the transaction that is visited, with the blockers that are left to visit.
        let mut path: Vec<(&Waiting, usize)> = vec![(self.waiting.get(&id)?, 0)];
        while let Some((waiting, next)) = path.last_mut() {
            let Some(blocker) = waiting.blockers.get(*next).copied() else {
                path.pop();
                continue;
            };
            *next += 1;
            if blocker == id {
                return Some(path.iter().map(|(waiting, _)| &*waiting.what).collect());
            }
            if seen.insert(blocker)
                && let Some(found) = self.waiting.get(&blocker)
            {
                path.push((found, 0));
            }
        }
        None
    }

    /// Returns true if no transaction waits.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests;
