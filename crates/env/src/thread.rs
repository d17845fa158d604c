//! Threads for services (a server's loops) and for user code that may block. Engines do not use
//! them: their work goes to [`crate::Jobs`]. The module also has the number by which a thread finds
//! its own copy of data that all threads read.

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
pub fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<crate::sync::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(run)
}

/// Starts a thread of the run that a scheduler controls.
#[cfg(feature = "schedules")]
pub fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<crate::sync::JoinHandle<()>> {
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
