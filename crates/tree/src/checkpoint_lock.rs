//! Which user checkpoints may run beside each other.

use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, named};

/// Serialises user checkpoints that may write delta pages of index pages. Readers take such a page
/// as newer than all pages of the leaves below it. If another checkpoint appended to a leaf
/// meanwhile and committed later, the older entry would hide the newer one. The same holds for the
/// first base pages: a delta page of the empty leaf, committed before them, would hide them.
pub(crate) struct CheckpointLock {
    running: RwLock<()>,
    /// True if user checkpoints may write delta pages of index pages. It stays true until the tree
    /// is closed; an open sets it if the tree has such pages.
    allows_index_deltas: AtomicBool,
}

/// Held by a user checkpoint until its commit.
pub(crate) enum CheckpointGuard<'a> {
    /// Others run beside it. It writes delta pages of leaves only.
    Concurrent(#[expect(dead_code)] RwLockReadGuard<'a, ()>),
    /// No other one runs. It may write delta pages of index pages.
    Exclusive(#[expect(dead_code)] RwLockWriteGuard<'a, ()>),
    /// No other one runs. It writes base pages, or delta pages of leaves only.
    Alone(#[expect(dead_code)] RwLockWriteGuard<'a, ()>),
}

impl Default for CheckpointLock {
    fn default() -> CheckpointLock {
        CheckpointLock {
            running: named("CheckpointLock::running", RwLock::new(())),
            allows_index_deltas: AtomicBool::new(false),
        }
    }
}

impl CheckpointLock {
    /// Lets user checkpoints write delta pages of index pages from now on, one after the other.
    pub fn allow_index_deltas(&self) {
        self.allows_index_deltas.store(true, SeqCst);
    }

    /// Begins a user checkpoint. Waits for others if it must.
    pub fn enter(&self) -> CheckpointGuard<'_> {
        if !self.allows_index_deltas.load(SeqCst) {
            let shared = self.running.read();
            // None begins to write such pages while this is held.
            if !self.allows_index_deltas.load(SeqCst) {
                return CheckpointGuard::Concurrent(shared);
            }
        }
        CheckpointGuard::Exclusive(self.running.write())
    }

    /// Begins a user checkpoint beside which no other one may run. Waits for others.
    pub fn enter_alone(&self) -> CheckpointGuard<'_> {
        let alone = self.running.write();
        match self.allows_index_deltas.load(SeqCst) {
            true => CheckpointGuard::Exclusive(alone),
            false => CheckpointGuard::Alone(alone),
        }
    }
}
