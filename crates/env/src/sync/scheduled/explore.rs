//! Runs a model under many schedules, each from a seed. For the tests of the packages that build
//! under the scheduler.

use super::lock_log::{self, CrateLocks};
use shuttle::rand::{RngCore, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Schedules that a case runs before the next seed.
pub const CASE: usize = 50;
/// More steps than any model takes: a run with so many goes in a circle.
const MAX_STEPS: usize = 1_000_000;

/// Counters of a model, besides its assertions.
pub type Counts = Arc<[AtomicU64; 5]>;

/// Runs one case. Half of the cases use random schedules, in which any two operations may be torn
/// apart. Every second case uses priorities with a few changes, which find orders that need a
/// thread to pause for long.
pub fn case(seed: u64, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    // The stack has room for an engine's frames, with a compressor on it.
    config.stack_size = 256 << 10;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    config.silence_warnings = true;
    let model = move || {
        lock_log::begin_run();
        model();
    };
    let run = if seed.is_multiple_of(2) {
        Runner::new(RandomScheduler::new_from_seed(seed, CASE), config).run(model)
    } else {
        Runner::new(PctScheduler::new_from_seed(seed, 4, CASE), config).run(model)
    };
    assert_eq!(run, CASE, "every schedule was run to its end");
}

/// Runs one case as [`case`] does, and then [`lock_log::assert_order`].
pub fn case_with_locks(seed: u64, crates: &[CrateLocks], model: impl Fn() + Send + Sync + 'static) {
    case(seed, model);
    lock_log::assert_order(crates);
}

/// Returns a number below `n`, which is not 0. The schedule's seed repeats it.
pub fn below(n: u64) -> u64 {
    thread_rng().next_u64() % n
}

/// Returns true `n` times in a hundred.
pub fn percent(n: u64) -> bool {
    below(100) < n
}

/// Makes counters for a model.
pub fn counts() -> Counts {
    Arc::default()
}

/// Adds to a counter.
pub fn count(counts: &Counts, which: usize, n: u64) {
    counts[which].fetch_add(n, Relaxed);
}

/// Returns the value of a counter.
pub fn counted(counts: &Counts, which: usize) -> u64 {
    counts[which].load(Relaxed)
}
