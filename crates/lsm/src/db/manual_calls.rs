//! Calls that use the directory of a store on their callers' threads: manual compactions and
//! checkpoints.

use basalt_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Mutex, ThreadId, this_thread};
use std::sync::Arc;

/// Progress of a manual compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactProgress {
    /// Table bytes merged so far.
    pub done_bytes: u64,
    /// Approximate table bytes to merge in all; exact at the end. Writes during the compaction may
    /// increase it.
    pub total_bytes: u64,
    /// Level that is being emptied or rewritten.
    pub level: usize,
}

#[derive(Default)]
pub(super) struct ManualProgress {
    pub(super) cancelled: AtomicBool,
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) level: AtomicUsize,
}

/// A handle by which other threads control one manual compaction: clone the handle, and give one
/// clone to [`super::CompactOptions`].
#[derive(Clone, Default)]
pub struct CompactControl(pub(super) Arc<ManualProgress>);

impl CompactControl {
    /// Cancels the compaction: it soon ends with `Cancelled`. A compaction that has not begun ends
    /// at once.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, SeqCst);
    }

    /// Returns the progress of the compaction.
    pub fn progress(&self) -> CompactProgress {
        CompactProgress {
            done_bytes: self.0.done.load(SeqCst),
            total_bytes: self.0.total.load(SeqCst),
            level: self.0.level.load(SeqCst),
        }
    }
}

/// One running call.
struct ManualCall {
    /// Number of the call. Several calls may share one control.
    id: u64,
    thread: ThreadId,
    control: CompactControl,
}

/// The calls of a store, and the number of the next one.
#[derive(Default)]
struct CallList {
    next_id: u64,
    running: Vec<ManualCall>,
}

/// List of the running calls that use the store's directory on their callers' threads: manual
/// compactions and checkpoints. Closing cancels them and waits for their ends.
#[derive(Default)]
pub(crate) struct ManualCalls(Mutex<CallList>);

impl ManualCalls {
    /// Adds a call of this thread, and returns its number.
    pub fn begin(&self, control: CompactControl) -> u64 {
        let mut calls = self.0.lock();
        let id = calls.next_id;
        calls.next_id += 1;
        calls.running.push(ManualCall {
            id,
            thread: this_thread(),
            control,
        });
        id
    }

    /// Removes the call with this number.
    pub fn end(&self, id: u64) {
        let mut calls = self.0.lock();
        calls.running.retain(|call| call.id != id);
    }

    /// Cancels every call, because the store closes.
    pub fn cancel_all(&self) {
        (self.0.lock().running.iter()).for_each(|call| call.control.cancel());
    }

    /// Returns `true` while a call runs on another thread. Closing cannot wait for a call on its
    /// own thread, because that call's callback closes the store.
    pub fn runs_on_other_thread(&self) -> bool {
        let own = this_thread();
        (self.0.lock().running.iter()).any(|call| call.thread != own)
    }
}
