//! Threads for services (a server's loops), and for user code that may block. Engines use it for nothing of their own: their work
//! goes to [`crate::Jobs`]. And the number by which a thread finds its own copy of what all threads read.

/// Copies that are worth keeping of something that every thread reads: more threads than this share some.
pub const STRIPES: usize = 8;

/// Which of [`STRIPES`] copies this thread takes: the same one all its life, and neighbours take different ones. Threads that take
/// different copies do not take cache lines from each other.
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

/// Under a scheduler all tasks run on one thread: the task decides, and the same schedule gives the same copies.
#[cfg(feature = "schedules")]
pub fn stripe() -> usize {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let task = crate::sync::this_thread();
    BuildHasherDefault::<DefaultHasher>::default().hash_one(task) as usize % STRIPES
}

/// Starts a named thread. Its name is at most 15 bytes, as the operating system shows it.
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

/// Starts a thread of the run that a scheduler owns.
#[cfg(feature = "schedules")]
pub fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<crate::sync::JoinHandle<()>> {
    crate::sync::start(name, run)
}

/// Threads that borrow from their caller and have ended when it returns, as [`std::thread::scope`]; for tests, and for what
/// stands beside an engine.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that starts borrowing threads"
)]
pub fn scope<'env, T>(
    run: impl for<'scope> FnOnce(&'scope std::thread::Scope<'scope, 'env>) -> T,
) -> T {
    std::thread::scope(run)
}
