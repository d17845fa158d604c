//! Leaves that have delta pages and get no changes any more. No later change makes them due for a
//! compaction, so each read of them would visit all their pages. They are merged within a budget
//! of bytes, which grows with the bytes that user checkpoints write.

use crate::mapping::SysTime;
use basalt_env::sync::{Mutex, named};
use std::collections::VecDeque;

/// A leaf is cold if its own chain has not changed since the oldest of this many last user
/// checkpoints with delta pages, that one included. A consolidation of its delta pages or a new
/// base page is a change, too. Changes in delta pages of the index page do not count.
const CHECKPOINTS: usize = 8;
/// Most bytes of the budget. Without a limit, a load would earn merges of the whole tree.
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
    /// Notes a user checkpoint, and adds `earned` bytes to the budget.
    pub fn note_checkpoint(&self, time: SysTime, earned: u64) {
        let mut budget = self.0.lock();
        budget.bytes = MOST_BUDGET.min(budget.bytes + earned);
        budget.checkpoints.push_back(time);
        if budget.checkpoints.len() > CHECKPOINTS {
            budget.checkpoints.pop_front();
        }
    }

    /// Returns the budget in bytes, and a time: a leaf is cold if its last change is older.
    /// Returns `None` if there were fewer than [`CHECKPOINTS`] user checkpoints since the tree was
    /// opened.
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
