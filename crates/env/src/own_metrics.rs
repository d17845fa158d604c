//! Metrics of the environment itself, which are read together with the registry.
//!
//! The readers hold no [`Env`](crate::Env), no filesystem and no job pool: a [`Metrics`] that is
//! kept keeps neither files nor threads alive.

use crate::{
    BlockCache, CacheStats, ForegroundIo, IoPriority, Jobs, LedgerUse, MemoryLedger, MetricSample,
    MetricValue, Metrics, OpenFiles, RateLimiter,
};
use basalt_fs::{FileSystem, FsMetricValue, FsStats};
use std::sync::Arc;

type Rows<T> = [(&'static str, &'static str, fn(&T) -> u64)];

const CACHE_COUNTERS: &Rows<CacheStats> = &[
    ("cache_hits", "Block cache lookups that hit.", |s| s.hits),
    ("cache_misses", "Block cache lookups that missed.", |s| {
        s.misses
    }),
    ("cache_inserts", "Blocks put into the cache.", |s| s.inserts),
    ("cache_evictions", "Blocks evicted from the cache.", |s| {
        s.evictions
    }),
];

const CACHE_GAUGES: &Rows<CacheStats> = &[
    ("cache_capacity_bytes", "Budget of the block cache.", |s| {
        s.capacity
    }),
    (
        "cache_high_used_bytes",
        "Index and filter blocks in the cache.",
        |s| s.used_high,
    ),
];

const FS_COUNTERS: &Rows<FsStats> = &[
    (
        "fs_written_bytes",
        "Bytes appended to files, padding included.",
        |s| s.bytes_written,
    ),
    (
        "fs_prewritten_bytes",
        "Zeros written ahead of need into log space.",
        |s| s.bytes_prewritten,
    ),
    ("fs_read_bytes", "Bytes read from files.", |s| s.bytes_read),
    ("fs_reads", "Read calls to the operating system.", |s| {
        s.reads
    }),
    ("fs_writes", "Write calls to the operating system.", |s| {
        s.writes
    }),
    ("fs_syncs", "Syncs of data and metadata.", |s| s.syncs),
];

type Kind = (&'static str, fn(&LedgerUse) -> u64);
const MEMORY_KINDS: [Kind; 5] = [
    ("memtable", |u| u.memtable),
    ("cache", |u| u.cache),
    ("pinned", |u| u.pinned),
    ("buffer", |u| u.buffer),
    ("client", |u| u.client),
];

const PRIORITIES: [&str; 5] = ["commit", "flush", "housekeeping", "compaction", "gc"];

/// Prometheus gauges are signed here. A size past 8 EiB is shown as 8 EiB.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

type Reading = Box<dyn Fn() -> u64 + Send + Sync>;
/// The help text of the gauge `budget_used`, also for the budgets that a store has of its own.
pub const BUDGET_USED: &str = "The part of a budget in use.";
/// The help text of the gauge `budget_limit`.
pub const BUDGET_LIMIT: &str = "The limit of a budget; 0 for none.";

/// The parts of an environment that have metrics.
pub(crate) struct MetricParts<'a> {
    pub jobs: &'a Jobs,
    pub cache: &'a BlockCache,
    pub ledger: &'a MemoryLedger,
    pub open_files: &'a OpenFiles,
    pub io_limit: &'a RateLimiter,
    pub foreground_io: &'a ForegroundIo,
}

/// Registers the counters and metrics of an environment's filesystem.
pub(crate) fn register_fs(metrics: &Metrics, fs: &Arc<dyn FileSystem>) {
    for (name, help, read) in FS_COUNTERS {
        let fs = Arc::downgrade(fs);
        metrics.counter_of(name, &[], help, move || {
            fs.upgrade().map_or(0, |fs| read(&fs.stats()))
        });
    }
    let fs = Arc::downgrade(fs);
    let fs_metrics = metrics.source(move |out| {
        let Some(fs) = fs.upgrade() else { return };
        out.extend(fs.metrics().into_iter().map(|f| {
            let value = match f.value {
                FsMetricValue::Counter(n) => MetricValue::Counter(n),
                FsMetricValue::Gauge(n) => MetricValue::Gauge(signed(n)),
                FsMetricValue::Summary(s) => MetricValue::Histogram(s),
            };
            MetricSample::new(f.name, f.label.as_slice(), f.help, value)
        }));
    });
    fs_metrics.keep();
}

/// Registers the metrics of an environment without its filesystem.
pub(crate) fn register(metrics: &Metrics, sources: &MetricParts<'_>) {
    for (name, help, read) in CACHE_COUNTERS {
        let cache = sources.cache.clone();
        metrics.counter_of(name, &[], help, move || read(&cache.stats()));
    }
    for (name, help, read) in CACHE_GAUGES {
        let cache = sources.cache.clone();
        metrics.gauge_of(name, &[], help, move || signed(read(&cache.stats())));
    }
    for (kind, read) in MEMORY_KINDS {
        let ledger = sources.ledger.clone();
        metrics.gauge_of(
            "memory_used_bytes",
            &[("kind", kind)],
            "Memory in use, from the one ledger.",
            move || signed(read(&ledger.usage())),
        );
    }
    metrics
        .gauge("memory_budget_bytes", &[], "The whole memory budget.")
        .set(signed(sources.ledger.usage().budget));
    let pending = sources.jobs.pending_reader();
    for (n, priority) in PRIORITIES.into_iter().enumerate() {
        let pending = pending.clone();
        metrics.gauge_of(
            "jobs_pending",
            &[("priority", priority)],
            "Background jobs queued or running.",
            move || signed(pending()[n] as u64),
        );
    }
    register_budgets(metrics, sources);
    for (priority, name) in [(IoPriority::High, "high"), (IoPriority::Low, "low")] {
        let limit = sources.io_limit.clone();
        metrics.counter_of(
            "background_io_wait_us_total",
            &[("priority", name)],
            "Microseconds that background I/O waited for its limit.",
            move || limit.waited(priority).as_micros() as u64,
        );
    }
    let foreground_io = sources.foreground_io.clone();
    metrics.counter_of(
        "background_io_pause_us_total",
        &[],
        "Microseconds that background I/O paused while synced commits and reads waited for the device.",
        move || foreground_io.paused().as_micros() as u64,
    );
    let files = sources.open_files.clone();
    metrics.gauge_of(
        "open_files",
        &[],
        "Files held open by engines.",
        move || signed(files.count() as u64),
    );
    let limit = sources.io_limit.clone();
    metrics.counter_of(
        "background_io_bytes",
        &[],
        "Bytes that passed the background I/O limit.",
        move || limit.passed(),
    );
}

/// Registers the used part and the limit of each budget.
fn register_budgets(metrics: &Metrics, sources: &MetricParts<'_>) {
    let budget = |name: &'static str, used: Reading, limit: Reading| {
        let labels = [("budget", name)];
        metrics.gauge_of("budget_used", &labels, BUDGET_USED, move || signed(used()));
        metrics.gauge_of("budget_limit", &labels, BUDGET_LIMIT, move || {
            signed(limit())
        });
    };
    let (ledger, of) = (sources.ledger.clone(), sources.ledger.clone());
    budget(
        "memory_bytes",
        Box::new(move || ledger.usage().total()),
        Box::new(move || of.usage().budget),
    );
    let (cache, of) = (sources.cache.clone(), sources.cache.clone());
    budget(
        "cache_bytes",
        Box::new(move || cache.stats().used),
        Box::new(move || of.stats().capacity),
    );
    let (files, of) = (sources.open_files.clone(), sources.open_files.clone());
    budget(
        "open_files",
        Box::new(move || files.count() as u64),
        Box::new(move || of.limit() as u64),
    );
    let (running, threads) = (
        sources.jobs.running_reader(),
        sources.jobs.parallelism() as u64,
    );
    budget(
        "background_threads",
        Box::new(move || running() as u64),
        Box::new(move || threads),
    );
    let (io, of) = (sources.io_limit.clone(), sources.io_limit.clone());
    budget(
        "background_io_bytes_per_s",
        Box::new(move || io.recent_rate()),
        Box::new(move || of.rate()),
    );
}
