//! Counts steps of work, for tests that bound the cost of an operation.

#[cfg(test)]
thread_local! {
    /// Packed extents and chunks that this thread visited, moved or copied.
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Packed extents and chunks of all files that this thread visited, moved or copied so far.
#[cfg(test)]
pub fn steps() -> u64 {
    STEPS.get()
}

/// Counts work for tests that bound it.
pub fn count_steps(_n: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + _n as u64);
}
