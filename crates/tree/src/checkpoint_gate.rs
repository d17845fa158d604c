//! Which user checkpoints may run beside each other.

use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, named};

/// Keeps user checkpoints apart. A delta page of an index page hides all that the leaves below
/// have. So while a user checkpoint that may write one runs, no other one may write delta pages of
/// leaves.
pub(crate) struct CheckpointGate {
    running: RwLock<()>,
    /// True if user checkpoints may write delta pages of index pages. It stays so.
    is_wide: AtomicBool,
}

/// Held by a user checkpoint until its commit.
pub(crate) enum CheckpointGuard<'a> {
    /// Others run beside it. It writes delta pages of leaves only.
    Shared(#[expect(dead_code)] RwLockReadGuard<'a, ()>),
    Alone(#[expect(dead_code)] RwLockWriteGuard<'a, ()>),
}

impl Default for CheckpointGate {
    fn default() -> CheckpointGate {
        CheckpointGate {
            running: named("CheckpointGate::running", RwLock::new(())),
            is_wide: AtomicBool::new(false),
        }
    }
}

impl CheckpointGate {
    /// Lets user checkpoints write delta pages of index pages from now on, one after the other.
    pub fn widen(&self) {
        self.is_wide.store(true, SeqCst);
    }

    /// Begins a user checkpoint. Waits for others if it must.
    pub fn enter(&self) -> CheckpointGuard<'_> {
        if !self.is_wide.load(SeqCst) {
            let shared = self.running.read();
            // None begins to write such pages while this is held.
            if !self.is_wide.load(SeqCst) {
                return CheckpointGuard::Shared(shared);
            }
        }
        CheckpointGuard::Alone(self.running.write())
    }
}
