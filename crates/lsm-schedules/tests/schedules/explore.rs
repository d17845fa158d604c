//! Runs a model under many schedules, and then compares the locks that it took with the lists of
//! all crates.

pub use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};

/// Runs one case as [`basalt_env::sync::explore::case`] does. Fails if any schedule of this thread
/// so far took locks in an order that is not documented, or a lock that is not listed.
pub fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    basalt_env::sync::explore::case(seed, model);
    crate::locks::check_order();
}
