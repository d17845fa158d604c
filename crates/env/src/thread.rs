//! Threads for services (a server's loops). Engines never use this: their work goes to [`crate::Jobs`].

/// Starts a named thread. Its name is at most 15 bytes, as the operating system shows it.
#[expect(
    clippy::disallowed_types,
    reason = "this is the one place that starts service threads"
)]
pub fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(run)
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
