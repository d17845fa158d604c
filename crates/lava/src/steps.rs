//! Counts steps of work, for tests that bound the cost of an operation.

#[cfg(test)]
thread_local! {
    /// Items that this thread visited, moved or copied.
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the number of extents, chunks, names and directories that this thread visited, moved or
/// copied so far.
#[cfg(test)]
pub fn steps() -> u64 {
    STEPS.get()
}

/// Counts steps of this thread. Only tests count.
pub fn count_steps(_n: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + _n as u64);
}
