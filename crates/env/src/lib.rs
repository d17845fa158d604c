//! The services that an engine uses: background jobs, clock, random numbers, block cache, memory
//! ledger, budgets and metrics. One [`Env`] is shared by any number of engines in a process.
//!
//! All outside influence comes through this crate and `basalt-fs`: no other crate reads the time,
//! starts a thread or draws a random number by itself. A test that makes its `Env` with
//! [`EnvBuilder::stepped`] over a simulated filesystem controls all of it.

#![deny(missing_docs)]
// The unit tests of this crate are tests of the ordinary build, without a scheduler's locks.
#![cfg(not(all(test, feature = "schedules")))]

pub mod budget;
pub mod cache;
pub mod clock;
pub mod file_copy;
pub mod file_writer;
mod io_priority;
pub mod jobs;
#[cfg(feature = "schedules")]
pub mod lock_order;
pub mod metrics;
mod own_metrics;
mod prefetch;
pub mod process_memory;
pub mod random;
pub mod relief;
pub mod store_dir;
pub mod sync;
pub mod thread;

pub use budget::{
    BudgetUse, IoPriority, LedgerUse, MemoryKind, MemoryLedger, OpenFiles, RateLimiter, Reservation,
};
pub use cache::{BlockCache, CacheKey, CachePriority, CacheStats};
pub use clock::{Clock, ManualClock};
pub use file_writer::FileWriter;
pub use io_priority::{ForegroundIo, ForegroundLoad, SMALL_PIECE, Turn, Urgent};
pub use jobs::{JobOwner, JobPriority, Jobs};
pub use metrics::{
    Counter, CounterGroup, CounterRow, Gauge, Histogram, HistogramSummary, MetricSample,
    MetricSource, MetricValue, Metrics,
};
pub use own_metrics::{BUDGET_LIMIT, BUDGET_USED};
pub use prefetch::prefetch;
pub use random::Random;
pub use relief::{Holder, Promise, Relief};

use basalt_fs::FileSystem;
use std::sync::Arc;
use std::time::Duration;
use sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Delay between a release of memory and the trim, because a program that closes one store may
/// close more.
const TRIM_PAUSE: Duration = Duration::from_millis(500);
/// The allocator may keep one part in this many of the budget beyond the bytes in the ledger,
/// because that memory is likely to be used again soon.
const KEPT_UNUSED: u64 = 16;

/// Largest memory budget in bytes. Sums of a budget and what is booked beyond it stay in range.
const MAX_MEMORY_BYTES: u64 = 1 << 62;

/// The services that all engines share: filesystem, jobs, clock, random numbers, cache, budgets,
/// metrics. Cloning is cheap.
#[derive(Clone)]
pub struct Env {
    fs: Arc<dyn FileSystem>,
    parts: EnvParts,
}

/// An environment before it has a filesystem, for a filesystem that itself uses jobs, clock and
/// memory ledger. `EnvBuilder::without_fs().parts()` makes the parts, then the filesystem is made
/// over them, and [`EnvParts::with_fs`] makes the environment (decision 0032). Cloning is cheap.
#[derive(Clone)]
pub struct EnvParts(Arc<Parts>);

struct Parts {
    clock: Clock,
    random: Random,
    jobs: Jobs,
    cache: BlockCache,
    ledger: MemoryLedger,
    relief: Relief,
    open_files: OpenFiles,
    io_limit: RateLimiter,
    foreground_io: ForegroundIo,
    metrics: Metrics,
    trims_memory: bool,
    trim_is_due: AtomicBool,
    has_fs: AtomicBool,
}

/// Settings of an [`Env`], or with `F = ()` of [`EnvParts`]. Each has a default that suits a small
/// server.
pub struct EnvBuilder<F = Arc<dyn FileSystem>> {
    fs: F,
    settings: Settings,
}

struct Settings {
    threads: usize,
    stepped: bool,
    clock: Clock,
    seed: Option<u64>,
    memory_bytes: u64,
    cache_bytes: u64,
    open_files: usize,
    io_bytes_per_s: u64,
    trims_memory: bool,
}

impl EnvBuilder {
    /// Returns the default settings. They are one background thread more than processors (at least
    /// 3), so that a compaction can use all processors and a flush still finds a thread; 512 MiB of
    /// memory, 256 MiB of it block cache; 4096 open files; no I/O limit; the system's clock and
    /// random numbers.
    pub fn new(fs: Arc<dyn FileSystem>) -> EnvBuilder {
        EnvBuilder::without_fs().over(fs)
    }
    /// Returns the settings of [`Env::for_tests`], for a test to change.
    pub fn for_tests(fs: Arc<dyn FileSystem>, seed: u64) -> EnvBuilder {
        EnvBuilder::new(fs)
            .stepped()
            .clock(Clock::manual(ManualClock::new(1_700_000_000_000)))
            .seed(seed)
            .memory_bytes(16 << 20)
            .cache_bytes(1 << 20)
    }
    /// Builds the environment. No thread starts until it is needed.
    pub fn build(self) -> Env {
        self.settings.parts().with_fs(self.fs)
    }
}

/// Returns the number of processors that this process may use, 2 if the system does not say. The
/// first call opens several files of the system. Later calls return the first answer, so that
/// tests can build thousands of environments.
fn processors() -> usize {
    static FOUND: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *FOUND.get_or_init(|| std::thread::available_parallelism().map_or(2, |n| n.get()))
}

impl EnvBuilder<()> {
    /// Returns the default settings of [`EnvBuilder::new`], for [`EnvParts`].
    pub fn without_fs() -> EnvBuilder<()> {
        let threads = processors().max(2) + 1;
        let settings = Settings {
            threads,
            stepped: false,
            clock: Clock::system(),
            seed: None,
            memory_bytes: 512 << 20,
            cache_bytes: 256 << 20,
            open_files: 4096,
            io_bytes_per_s: 0,
            trims_memory: false,
        };
        EnvBuilder { fs: (), settings }
    }
    /// Returns the same settings over a filesystem.
    pub fn over(self, fs: Arc<dyn FileSystem>) -> EnvBuilder {
        EnvBuilder {
            fs,
            settings: self.settings,
        }
    }
    /// Makes the parts. No thread starts until it is needed.
    pub fn parts(self) -> EnvParts {
        self.settings.parts()
    }
}

impl<F> EnvBuilder<F> {
    /// Sets the number of background threads. They start with the first job.
    pub fn threads(mut self, n: usize) -> Self {
        self.settings.threads = n.max(1);
        self
    }
    /// Selects stepped mode, without threads: jobs run when a test calls [`Jobs::step`], or inside
    /// a wait.
    pub fn stepped(mut self) -> Self {
        self.settings.stepped = true;
        self
    }
    /// Replaces the clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }
    /// Makes every random number come from this seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }
    /// Sets the whole memory budget, in bytes: memtables, cache, pinned reads, buffers, clients. It
    /// is cut to 2^62.
    pub fn memory_bytes(mut self, n: u64) -> Self {
        self.settings.memory_bytes = n;
        self
    }
    /// Sets the block cache's part of the memory budget, in bytes. It is cut to three quarters of
    /// the whole, so that writes have room.
    pub fn cache_bytes(mut self, n: u64) -> Self {
        self.settings.cache_bytes = n;
        self
    }
    /// Sets the number of files that engines may have open at once.
    pub fn open_files(mut self, n: usize) -> Self {
        self.settings.open_files = n;
        self
    }
    /// Sets the bytes a second that background jobs may write and read; 0 for no limit.
    pub fn io_bytes_per_s(mut self, n: u64) -> Self {
        self.settings.io_bytes_per_s = n;
        self
    }
    /// If `true`, the environment has the process's allocator return unused pages to the system. It
    /// does so after a flush and after a store closes or goes idle, at most twice a second. The
    /// condition is that the process holds more than the ledger and a sixteenth of the budget. Set
    /// it only if the process runs little else. Default `false`, because the allocator belongs to
    /// the program.
    pub fn trims_memory(mut self, yes: bool) -> Self {
        self.settings.trims_memory = yes;
        self
    }
}

impl Settings {
    fn parts(self) -> EnvParts {
        let memory_bytes = self.memory_bytes.min(MAX_MEMORY_BYTES);
        let ledger = MemoryLedger::new(memory_bytes);
        let cache_bytes = self.cache_bytes.min(memory_bytes / 4 * 3);
        let parts = EnvParts(Arc::new(Parts {
            jobs: if self.stepped {
                Jobs::stepped(self.clock.clone())
            } else {
                // A manual clock does not move while threads wait, unless it ticks.
                let clock = Some(&self.clock).filter(|clock| clock.moves_by_itself());
                Jobs::threads_by(self.threads, clock.cloned().unwrap_or_else(Clock::system))
            },
            random: self
                .seed
                .map_or_else(Random::from_system, Random::from_seed),
            cache: BlockCache::new(cache_bytes, ledger.clone()),
            open_files: OpenFiles::new(self.open_files),
            io_limit: RateLimiter::new(self.io_bytes_per_s, self.clock.clone()),
            foreground_io: ForegroundIo::new(self.clock.clone()),
            clock: self.clock,
            relief: Relief::new(ledger.clone()),
            ledger,
            metrics: Metrics::new(),
            trims_memory: self.trims_memory,
            trim_is_due: AtomicBool::new(false),
            has_fs: AtomicBool::new(false),
        }));
        let made = &parts.0;
        let sources = own_metrics::MetricParts {
            jobs: &made.jobs,
            cache: &made.cache,
            ledger: &made.ledger,
            open_files: &made.open_files,
            io_limit: &made.io_limit,
            foreground_io: &made.foreground_io,
        };
        own_metrics::register(&made.metrics, &sources);
        parts
    }
}

impl EnvParts {
    /// Makes an environment of these parts over a filesystem. From now on the metrics include those
    /// of the filesystem.
    ///
    /// # Panics
    /// If the parts have a filesystem already, because the metrics would then include its metrics
    /// twice.
    pub fn with_fs(&self, fs: Arc<dyn FileSystem>) -> Env {
        let before = self.0.has_fs.swap(true, SeqCst);
        assert!(!before, "the parts of an environment have one filesystem");
        own_metrics::register_fs(&self.0.metrics, &fs);
        Env {
            fs,
            parts: self.clone(),
        }
    }
    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }
    /// Returns the pool of background jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.0.jobs
    }
    /// Returns the memory ledger.
    pub fn ledger(&self) -> &MemoryLedger {
        &self.0.ledger
    }
}

impl std::fmt::Debug for EnvParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvParts").finish_non_exhaustive()
    }
}

impl Env {
    /// Returns the default settings of an environment over a filesystem.
    pub fn builder(fs: Arc<dyn FileSystem>) -> EnvBuilder {
        EnvBuilder::new(fs)
    }
    /// Returns an environment that a test controls wholly: stepped jobs, a manual clock that starts
    /// in November 2023, all random numbers from `seed`, and 16 MiB of memory, 1 MiB of it block
    /// cache. [`Clock::as_manual`] gives the manual clock.
    pub fn for_tests(fs: Arc<dyn FileSystem>, seed: u64) -> Env {
        EnvBuilder::for_tests(fs, seed).build()
    }
    /// Returns the filesystem.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }
    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.parts.0.clock
    }
    /// Returns the source of random numbers.
    pub fn random(&self) -> &Random {
        &self.parts.0.random
    }
    /// Returns the pool of background jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.parts.0.jobs
    }
    /// Returns the block cache.
    pub fn cache(&self) -> &BlockCache {
        &self.parts.0.cache
    }
    /// Returns the memory ledger.
    pub fn ledger(&self) -> &MemoryLedger {
        &self.parts.0.ledger
    }
    /// Returns the registry of stores that can free memory when the ledger has none.
    pub fn relief(&self) -> &Relief {
        &self.parts.0.relief
    }
    /// Returns the open-file budget.
    pub fn open_files(&self) -> &OpenFiles {
        &self.parts.0.open_files
    }
    /// Returns the limit on background I/O.
    pub fn io_limit(&self) -> &RateLimiter {
        &self.parts.0.io_limit
    }
    /// Returns the priority of foreground I/O over background I/O.
    pub fn foreground_io(&self) -> &ForegroundIo {
        &self.parts.0.foreground_io
    }
    /// Returns the metrics registry.
    pub fn metrics(&self) -> &Metrics {
        &self.parts.0.metrics
    }
    /// Schedules a trim of the allocator after a flush, a close, or after a store went idle. Calls
    /// before the trim runs are combined into one. The call does nothing without
    /// [`EnvBuilder::trims_memory`].
    pub fn memory_was_freed(&self) {
        if !self.parts.0.trims_memory || self.parts.0.trim_is_due.swap(true, SeqCst) {
            return;
        }
        let env = Arc::downgrade(&self.parts.0);
        let trim = move || {
            if let Some(env) = env.upgrade() {
                env.trim_is_due.store(false, SeqCst);
                let used = env.ledger.usage();
                let may_hold = used.total() + used.budget / KEPT_UNUSED;
                if process_memory::resident().is_some_and(|held| held > may_hold) {
                    process_memory::give_back_unused();
                }
            }
        };
        let owner = self.parts.0.jobs.new_owner();
        owner.spawn_after(JobPriority::Flush, TRIM_PAUSE, trim);
    }
    /// Returns every budget that the stores of this environment share, with its part in use. Each
    /// store has further budgets of its own.
    pub fn budgets(&self) -> Vec<BudgetUse> {
        let memory = self.parts.0.ledger.usage();
        let cache = self.parts.0.cache.stats();
        let running: usize = self.parts.0.jobs.running();
        let io = &self.parts.0.io_limit;
        let of = BudgetUse::new;
        vec![
            of("memory_bytes", memory.total(), memory.budget),
            of("cache_bytes", cache.used, cache.capacity),
            of(
                "open_files",
                self.parts.0.open_files.count() as u64,
                self.parts.0.open_files.limit() as u64,
            ),
            of(
                "background_threads",
                running as u64,
                self.parts.0.jobs.parallelism() as u64,
            ),
            of("background_io_bytes_per_s", io.recent_rate(), io.rate()),
        ]
    }
}

/// LavaFS keeps the same contract as the simulated disk, and the tests of the file writer.
#[cfg(test)]
#[test]
fn every_file_writer_test_passes_on_lava() {
    // The other unit tests of this crate touch no disk.
    let but = ["cache::", "clock::", "random::", "relief::"];
    basalt_sim::all_tests_on_lava("every_file_writer_test_passes_on_lava", &but);
}
