//! Calls that use the directory of a store on their callers' threads: manual compactions and
//! checkpoints.

use basalt_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Mutex, ThreadId, this_thread};
use std::sync::Arc;

/// How far a manual compaction is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactProgress {
    /// Table bytes merged so far.
    pub done_bytes: u64,
    /// About how many there are in all; exact at the end. What is written meanwhile can make it grow.
    pub total_bytes: u64,
    /// The level that is being emptied, or rewritten.
    pub level: usize,
}

#[derive(Default)]
pub(super) struct ManualProgress {
    pub(super) cancelled: AtomicBool,
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) level: AtomicUsize,
}

/// A manual compaction in the hands of other threads: clone it, give one to [`CompactOptions`]. For one compaction.
#[derive(Clone, Default)]
pub struct CompactControl(pub(super) Arc<ManualProgress>);

impl CompactControl {
    /// Ends the compaction soon, with `Cancelled`; or at once, when it has not begun.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, SeqCst);
    }

    /// How far it is.
    pub fn progress(&self) -> CompactProgress {
        CompactProgress {
            done_bytes: self.0.done.load(SeqCst),
            total_bytes: self.0.total.load(SeqCst),
            level: self.0.level.load(SeqCst),
        }
    }
}

/// Calls that use the store's directory on their callers' threads: manual compactions and checkpoints. Closing cancels
/// them and waits for their ends.
#[derive(Default)]
pub(crate) struct ManualCalls(pub(super) Mutex<Vec<(ThreadId, CompactControl)>>);

impl ManualCalls {
    /// Cancels every call, because the store closes.
    pub fn cancel_all(&self) {
        self.0.lock().iter().for_each(|(_, c)| c.cancel());
    }

    /// True while a call runs on another thread. A call on this thread cannot be waited for: its callback closes the
    /// store.
    pub fn elsewhere(&self) -> bool {
        let own = this_thread();
        self.0.lock().iter().any(|(thread, _)| *thread != own)
    }
}
