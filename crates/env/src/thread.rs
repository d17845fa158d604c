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
