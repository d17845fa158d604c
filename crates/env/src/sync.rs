//! What threads meet in: locks, conditions, atomics, and who a thread is.
//!
//! The engine's rooms take these from here and from nowhere else. In every ordinary build they *are* parking_lot's and the standard
//! library's, by re-export, and cost nothing. In the packages `env-schedules` and `lsm-schedules`, which build the same sources
//! with the feature `schedules`, they are the ones of a scheduler that decides at each of them which thread goes on:
//! `docs/testing/schedules.md`.

#[cfg(feature = "schedules")]
mod scheduled;

#[cfg(feature = "schedules")]
pub use scheduled::*;

#[cfg(not(feature = "schedules"))]
pub use ordinary::*;

#[cfg(not(feature = "schedules"))]
mod ordinary {
    pub use parking_lot::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
    };
    pub use std::hint::spin_loop;
    pub use std::sync::atomic;
    pub use std::thread::{JoinHandle, ThreadId, panicking, yield_now};
    pub use std::thread_local;

    /// The calling thread.
    #[inline]
    pub fn this_thread() -> ThreadId {
        std::thread::current().id()
    }
}
