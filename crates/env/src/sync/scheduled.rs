//! Locks, conditions and atomics under a scheduler that controls every interleaving.
//!
//! All threads of a run share one thread of the operating system and change only in this module.
//! The scheduler takes each operation for sequentially consistent. Miri has to find what weaker
//! orderings allow beyond that.
//!
//! - An atomic is the standard library's, with its size and layout, and a switch point before each
//!   operation.
//! - A lock or a wait for a condition that never ends is a deadlock, and fails the run.
//! - A wait with a limit may end at any moment, as if its time were over. Code that needs time for
//!   its correctness therefore fails. A limit of `Duration::MAX` is none, as it is for parking_lot.
//! - [`panicking`] refers to the calling thread alone, although another thread may be in the middle
//!   of a panic.
//!
//! Locks have names, and [`lock_log`] notes which of them a thread takes while it holds others.

pub mod explore;
pub mod lock_log;

use lock_log::{NotedLock, Taken};
use shuttle::current::{TaskId, try_get_current_task};
use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub use shuttle::thread::{JoinHandle, ThreadId};
pub use shuttle::thread_local;

std::thread_local! {
    /// The task whose panic unwinds on the thread of the operating system, as far as this module
    /// has seen it.
    static UNWINDS: Cell<Option<TaskId>> = const { Cell::new(None) };
}

/// Records a new panic, before every change of threads. It belongs to the running task.
fn note_panic() {
    if !std::thread::panicking() {
        UNWINDS.set(None);
    } else if UNWINDS.get().is_none() {
        UNWINDS.set(try_get_current_task());
    }
}

/// A switch point: another thread may continue here. Does nothing outside of a run.
fn switch_point() {
    note_panic();
    if try_get_current_task().is_some() {
        shuttle::sync::atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
    }
}

/// Returns true while the calling thread unwinds.
pub fn panicking() -> bool {
    note_panic();
    std::thread::panicking() && UNWINDS.get() == try_get_current_task()
}

/// Returns the id of the calling thread.
pub fn this_thread() -> ThreadId {
    shuttle::thread::current().id()
}

/// Lets another thread continue, if possible one that does not wait for this one.
pub fn yield_now() {
    note_panic();
    shuttle::thread::yield_now();
}

/// Lets another thread continue, as [`yield_now`] does.
pub fn spin_loop() {
    yield_now();
}

/// Starts a thread of the run.
pub(crate) fn start(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    note_panic();
    shuttle::thread::Builder::new()
        .name(name.to_string())
        .spawn(run)
}

/// A lock that can be given a name.
pub trait NamedLock: Sized {
    /// Returns the lock with this name in [`lock_log`].
    fn with_name(self, name: &'static str) -> Self;
}

/// Returns the lock with a name in [`lock_log`]. Without one, a lock is named after the type that
/// it guards, which must then be a type of the lock's crate.
pub fn named<L: NamedLock>(name: &'static str, lock: L) -> L {
    lock.with_name(name)
}

/// A mark that the calling thread holds a lock that is an atomic. The holder keeps it as long as
/// the lock. `lock` is the atomic.
pub struct SpinLockMark(NotedLock);

impl SpinLockMark {
    /// Notes that the calling thread has taken the lock, for which it may have waited.
    pub fn new<L>(name: &'static str, lock: &L) -> SpinLockMark {
        let lock = NotedLock::of::<L>(Some(name), std::ptr::from_ref(lock).cast());
        lock_log::note_taken(lock, Taken::Spun);
        SpinLockMark(lock)
    }
}

impl Drop for SpinLockMark {
    fn drop(&mut self) {
        lock_log::note_released(self.0);
    }
}

/// A lock. A panic of its holder releases it.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    name: Option<&'static str>,
    lock: shuttle::sync::Mutex<T>,
}

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// The guard of the scheduler's lock. `None` only within a wait.
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> NamedLock for Mutex<T> {
    fn with_name(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }
}

impl<T> Mutex<T> {
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            name: None,
            lock: shuttle::sync::Mutex::new(value),
        }
    }
    /// Returns the protected value.
    pub fn into_inner(self) -> T {
        self.lock
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    fn noted(&self) -> NotedLock {
        NotedLock::of::<T>(self.name, std::ptr::from_ref(self).cast())
    }
    fn guard<'a>(
        &'a self,
        held: shuttle::sync::MutexGuard<'a, T>,
        how: Taken,
    ) -> MutexGuard<'a, T> {
        lock_log::note_taken(self.noted(), how);
        MutexGuard {
            lock: self,
            held: Some(held),
        }
    }
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        note_panic();
        let held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.guard(held, Taken::Locked)
    }
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        note_panic();
        match self.lock.try_lock() {
            Ok(held) => Some(self.guard(held, Taken::Tried)),
            Err(TryLockError::Poisoned(e)) => Some(self.guard(e.into_inner(), Taken::Tried)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
    /// Returns the protected value, for the only owner of the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_ref().expect("held but for a wait")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("held but for a wait")
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        note_panic();
        lock_log::note_released(self.lock.noted());
    }
}

/// A lock that readers share.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    name: Option<&'static str>,
    lock: shuttle::sync::RwLock<T>,
}

/// The guard of a reader of a [`RwLock`].
pub struct RwLockReadGuard<'a, T: ?Sized> {
    noted: NotedLock,
    held: shuttle::sync::RwLockReadGuard<'a, T>,
}

/// The guard of the writer of a [`RwLock`].
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    noted: NotedLock,
    held: shuttle::sync::RwLockWriteGuard<'a, T>,
}

impl<T> NamedLock for RwLock<T> {
    fn with_name(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }
}

impl<T> RwLock<T> {
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock {
            name: None,
            lock: shuttle::sync::RwLock::new(value),
        }
    }
}

impl<T: ?Sized> RwLock<T> {
    fn noted(&self) -> NotedLock {
        NotedLock::of::<T>(self.name, std::ptr::from_ref(self).cast())
    }
    /// Waits until no writer holds the lock.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        note_panic();
        let held = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        let noted = self.noted();
        lock_log::note_taken(noted, Taken::Locked);
        RwLockReadGuard { noted, held }
    }
    /// Waits until no other thread holds the lock.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        note_panic();
        let held = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        let noted = self.noted();
        lock_log::note_taken(noted, Taken::Locked);
        RwLockWriteGuard { noted, held }
    }
    /// Takes the lock if no other thread holds it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        note_panic();
        let held = match self.lock.try_write() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let noted = self.noted();
        lock_log::note_taken(noted, Taken::Tried);
        Some(RwLockWriteGuard { noted, held })
    }
    /// Returns the protected value, for the only owner of the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        note_panic();
        lock_log::note_released(self.noted);
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.held
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        note_panic();
        lock_log::note_released(self.noted);
    }
}

/// A condition to wait for.
#[derive(Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// The result of a wait with a limit.
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns true if the time was over.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Returns a condition without waiting threads.
    pub const fn new() -> Condvar {
        Condvar(shuttle::sync::Condvar::new())
    }
    /// Waits for a notification. The lock is taken again after the wait, in the order of locks as
    /// any other lock.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        note_panic();
        lock_log::note_released(guard.lock.noted());
        let held = guard.held.take().expect("held but for a wait");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        lock_log::note_taken(guard.lock.noted(), Taken::Locked);
    }
    /// Lets other threads continue and returns, as if the time were over. Without a limit
    /// (`Duration::MAX`), waits for a notification.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        if limit == Duration::MAX {
            self.wait(guard);
            return WaitTimeoutResult(false);
        }
        note_panic();
        let lock = guard.lock;
        lock_log::note_released(lock.noted());
        drop(guard.held.take());
        shuttle::thread::yield_now();
        guard.held = Some(lock.lock.lock().unwrap_or_else(PoisonError::into_inner));
        lock_log::note_taken(lock.noted(), Taken::Locked);
        WaitTimeoutResult(true)
    }
    /// Notifies one waiting thread.
    pub fn notify_one(&self) {
        note_panic();
        self.0.notify_one();
    }
    /// Notifies all waiting threads.
    pub fn notify_all(&self) {
        note_panic();
        self.0.notify_all();
    }
}

/// The standard library's atomics, with a switch point before each operation.
pub mod atomic {
    use super::switch_point;
    use std::sync::atomic as std_atomic;

    pub use std::sync::atomic::Ordering;

    /// Does nothing, because every operation is ordered already.
    pub fn fence(_order: Ordering) {}

    macro_rules! value_atomic {
        ($($wrap:ident $(<$p:ident>)? of $value:ty;)*) => {$(
            /// An atomic with the methods of the standard library's.
            #[repr(transparent)]
            #[derive(Debug)]
            pub struct $wrap $(<$p>)? (std_atomic::$wrap $(<$p>)?);

            impl $(<$p>)? Default for $wrap $(<$p>)? {
                fn default() -> Self {
                    Self(Default::default())
                }
            }

            impl $(<$p>)? $wrap $(<$p>)? {
                /// Returns an atomic with this value.
                pub const fn new(value: $value) -> Self {
                    Self(std_atomic::$wrap::new(value))
                }
                /// Returns the value.
                pub fn load(&self, _order: Ordering) -> $value {
                    switch_point();
                    self.0.load(Ordering::SeqCst)
                }
                /// Sets the value.
                pub fn store(&self, value: $value, _order: Ordering) {
                    switch_point();
                    self.0.store(value, Ordering::SeqCst);
                }
                /// Sets the value and returns the former one.
                pub fn swap(&self, value: $value, _order: Ordering) -> $value {
                    switch_point();
                    self.0.swap(value, Ordering::SeqCst)
                }
                /// Sets the value if it is the expected one.
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    _done: Ordering,
                    _not: Ordering,
                ) -> Result<$value, $value> {
                    switch_point();
                    self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
                }
                /// Sets the value if it is the expected one, as [`Self::compare_exchange`] does.
                pub fn compare_exchange_weak(
                    &self,
                    old: $value,
                    new: $value,
                    done: Ordering,
                    not: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(old, new, done, not)
                }
                /// Returns the value, for the only owner of the atomic.
                pub fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }
            }
        )*};
    }

    macro_rules! counter_atomic {
        ($($wrap:ident of $value:ty;)*) => {$(
            impl $wrap {
                /// Adds to the value and returns the former one.
                pub fn fetch_add(&self, by: $value, _order: Ordering) -> $value {
                    switch_point();
                    self.0.fetch_add(by, Ordering::SeqCst)
                }
                /// Subtracts from the value and returns the former one.
                pub fn fetch_sub(&self, by: $value, _order: Ordering) -> $value {
                    switch_point();
                    self.0.fetch_sub(by, Ordering::SeqCst)
                }
                /// Raises the value to at least `to` and returns the former one.
                pub fn fetch_max(&self, to: $value, _order: Ordering) -> $value {
                    switch_point();
                    self.0.fetch_max(to, Ordering::SeqCst)
                }
                /// Changes the value by a function, and repeats until no other thread changed it
                /// meanwhile.
                pub fn fetch_update(
                    &self,
                    _done: Ordering,
                    _not: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    switch_point();
                    self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change)
                }
            }
        )*};
    }

    value_atomic! {
        AtomicBool of bool;
        AtomicU8 of u8;
        AtomicU32 of u32;
        AtomicU64 of u64;
        AtomicUsize of usize;
        AtomicPtr<T> of *mut T;
    }
    counter_atomic! {
        AtomicU8 of u8;
        AtomicU32 of u32;
        AtomicU64 of u64;
        AtomicUsize of usize;
    }
}
