//! Threads for services (a server's loops) and for user code that may block. Engines do not use
//! them: their work goes to [`crate::Jobs`]. The module also has the number by which a thread finds
//! its own copy of data that all threads read.
//!
//! An owner of a thread holds a [`BackgroundThread`], whose drop waits for the end of the thread.
//! To end the thread, the owner first makes it return: with a [`StopSignal`], or by closing the
//! queue that the thread reads.

use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::{Condvar, JoinHandle, Mutex, named};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Most copies of data that every thread reads. If there are more threads, some share a copy.
pub const STRIPES: usize = 8;

/// Returns which of [`STRIPES`] copies this thread uses. A thread uses the same copy all its life,
/// and threads that start one after the other use different copies. Threads with different copies
/// do not take cache lines from each other.
#[cfg(not(feature = "schedules"))]
pub fn stripe() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        own.get()
    })
}

/// Returns the copy that the calling task uses. Under a scheduler all tasks run on one thread. So
/// the task decides, and the same schedule gives the same copies.
#[cfg(feature = "schedules")]
pub fn stripe() -> usize {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let task = crate::sync::this_thread();
    BuildHasherDefault::<DefaultHasher>::default().hash_one(task) as usize % STRIPES
}

/// Starts a named thread. The name has at most 15 bytes, because the operating system shows no
/// more.
#[cfg(not(feature = "schedules"))]
#[expect(
    clippy::disallowed_types,
    reason = "this is the one place that starts service threads"
)]
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(run)
}

/// Starts a thread of the run that a scheduler controls.
#[cfg(feature = "schedules")]
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    crate::sync::start(name, run)
}

/// Runs threads that borrow from the caller and have ended when the call returns, as
/// [`std::thread::scope`]. It is for tests, and for services beside an engine.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that starts borrowing threads"
)]
pub fn scope<'env, T>(
    run: impl for<'scope> FnOnce(&'scope std::thread::Scope<'scope, 'env>) -> T,
) -> T {
    std::thread::scope(run)
}

/// A named thread that its owner waits for. A drop waits for the end of the thread. So the owner
/// first makes the thread return.
pub struct BackgroundThread {
    /// `None` after the wait, or if the thread runs on without an owner.
    handle: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Starts a thread. The name has at most 15 bytes, because the operating system shows no more.
    ///
    /// Errors: the error of the system if it cannot start a thread. `run` is then dropped.
    pub fn start(
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<BackgroundThread> {
        let handle = Some(spawn(name, run)?);
        Ok(BackgroundThread { handle })
    }

    /// Waits for the end of the thread.
    ///
    /// Errors: the message of the panic that ended the thread, empty if the panic had none.
    pub fn join(mut self) -> Result<(), String> {
        self.wait()
    }

    /// Lets the thread run on without an owner.
    pub fn detach(mut self) {
        self.handle = None;
    }

    fn wait(&mut self) -> Result<(), String> {
        let ended = self.handle.take().map_or(Ok(()), JoinHandle::join);
        ended.map_err(|panic| panic_message(&*panic).unwrap_or_default())
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        // The panic hook has already reported a panic, and the owner did not ask for the result.
        let _ = self.wait();
    }
}

/// A signal that tells threads to stop, and wakes those that wait for it. Clones are the same
/// signal. Sending takes no other lock, so a thread may send the signal under any lock.
#[derive(Clone, Default)]
pub struct StopSignal(Arc<Stop>);

struct Stop {
    /// Set once, under `lock`.
    is_sent: AtomicBool,
    lock: Mutex<()>,
    sent: Condvar,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop {
            is_sent: AtomicBool::new(false),
            lock: named("StopSignal::lock", Mutex::new(())),
            sent: Condvar::new(),
        }
    }
}

impl StopSignal {
    /// Sends the signal, which stays sent.
    pub fn send(&self) {
        let held = self.0.lock.lock();
        self.0.is_sent.store(true, SeqCst);
        drop(held);
        self.0.sent.notify_all();
    }

    /// Returns whether the signal was sent. Costs one load.
    pub fn is_sent(&self) -> bool {
        self.0.is_sent.load(SeqCst)
    }

    /// Waits for the signal, and at most `timeout` of real time. Returns whether it was sent. The
    /// wait may end early. With `Duration::MAX` it has no limit.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let mut held = self.0.lock.lock();
        if !self.is_sent() {
            self.0.sent.wait_for(&mut held, timeout);
        }
        self.is_sent()
    }
}

/// Returns the message of a panic that was caught, or `None` if it has none.
pub fn panic_message(panic: &(dyn Any + Send)) -> Option<String> {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
}

#[cfg(test)]
mod tests;
