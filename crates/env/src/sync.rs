//! The primitives through which threads interact: locks, conditions, atomics, and thread
//! identities.
//!
//! All modules of the engine take these from here and from nowhere else. In every ordinary build
//! they *are* those of parking_lot and of the standard library, by re-export, and cost nothing. The
//! packages `env-schedules` and `lsm-schedules` build the same sources with the feature
//! `schedules`. There they belong to a scheduler that decides at each of them which thread
//! continues: `docs/testing/schedules.md`. There each lock also has a name, by which tests find it
//! in the order of locks of its crate: its type tells the name, or [`named`] gives one. In an
//! ordinary build there are no names.

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

    /// Returns the id of the calling thread.
    #[inline]
    pub fn this_thread() -> ThreadId {
        std::thread::current().id()
    }

    /// Returns the lock. Under a scheduler the lock also gets the name.
    #[inline(always)]
    pub const fn named<L>(_name: &'static str, lock: L) -> L {
        lock
    }

    /// A mark that the calling thread holds a lock that is an atomic. The holder keeps it as long
    /// as the lock. Under a scheduler the mark notes the lock; here it is nothing.
    pub struct SpinLockMark;

    impl SpinLockMark {
        /// Returns the mark of a lock that the calling thread has just taken.
        #[inline(always)]
        pub const fn new<L>(_name: &'static str, _lock: &L) -> SpinLockMark {
            SpinLockMark
        }
    }
}
