//! Leaves that have delta pages and get no changes any more. No later change makes them due for a
//! compaction, so each read of them would visit all their pages. They are merged within a budget:
//! what user checkpoints write earns it.

use crate::mapping::SysTime;
use basalt_env::sync::{Mutex, named};
use std::collections::VecDeque;

/// A leaf is cold if it did not change since this many user checkpoints.
const CHECKPOINTS: usize = 8;
/// Most bytes that are saved for later. Else a load would earn merges of the whole tree.
const MOST_BUDGET: u64 = 64 << 20;

/// The budget for merges of cold leaves, and which leaves are cold.
pub(crate) struct ColdLeaves(Mutex<Budget>);

#[derive(Default)]
struct Budget {
    bytes: u64,
    /// Times of the last user checkpoints, the oldest one first.
    checkpoints: VecDeque<SysTime>,
}

impl Default for ColdLeaves {
    fn default() -> ColdLeaves {
        ColdLeaves(named("ColdLeaves::budget", Mutex::default()))
    }
}

impl ColdLeaves {
    /// Notes a user checkpoint, and adds what it earns.
    pub fn note_checkpoint(&self, time: SysTime, earned: u64) {
        let mut budget = self.0.lock();
        budget.bytes = MOST_BUDGET.min(budget.bytes + earned);
        budget.checkpoints.push_back(time);
        if budget.checkpoints.len() > CHECKPOINTS {
            budget.checkpoints.pop_front();
        }
    }

    /// Returns the budget in bytes, and the time since which a cold leaf has not changed. `None` if
    /// there were too few user checkpoints since the tree was opened.
    pub fn budget(&self) -> Option<(u64, SysTime)> {
        let budget = self.0.lock();
        let oldest = budget.checkpoints.front().copied();
        oldest
            .filter(|_| budget.checkpoints.len() == CHECKPOINTS)
            .map(|oldest| (budget.bytes, oldest))
    }

    /// Takes bytes from the budget.
    pub fn spend(&self, bytes: u64) {
        let mut budget = self.0.lock();
        budget.bytes = budget.bytes.saturating_sub(bytes);
    }
}
