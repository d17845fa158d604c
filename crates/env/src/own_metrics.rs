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
const MEMORY_KINDS: [Kind; 6] = [
    ("memtable", |u| u.memtable),
    ("cache", |u| u.cache),
    ("pinned", |u| u.pinned),
    ("buffer", |u| u.buffer),
    ("client", |u| u.client),
    ("index", |u| u.index),
];

const PRIORITIES: [&str; crate::jobs::PRIORITIES] = [
    "commit",
    "flush",
    "housekeeping",
    "compaction",
    "gc",
    "helper",
];

/// Prometheus gauges are signed here. A size past 8 EiB is shown as 8 EiB.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

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
    let fs = Arc::downgrade(fs);
    metrics.permanent_source(move |out| {
        let Some(fs) = fs.upgrade() else { return };
        let stats = fs.stats();
        out.extend(
            FS_COUNTERS
                .iter()
                .map(|(name, help, read)| counter(name, &[], help, read(&stats))),
        );
        out.extend(fs.metrics().into_iter().map(|f| {
            let value = match f.value {
                FsMetricValue::Counter(n) => MetricValue::Counter(n),
                FsMetricValue::Gauge(n) => MetricValue::Gauge(signed(n)),
                FsMetricValue::Summary(s) => MetricValue::Histogram(s),
            };
            MetricSample::new(f.name, f.label.as_slice(), f.help, value)
        }));
    });
}

fn counter(name: &str, labels: &[(&str, &str)], help: &str, n: u64) -> MetricSample {
    MetricSample::new(name, labels, help, MetricValue::Counter(n))
}

fn gauge(name: &str, labels: &[(&str, &str)], help: &str, n: u64) -> MetricSample {
    MetricSample::new(name, labels, help, MetricValue::Gauge(signed(n)))
}

/// Registers the metrics of an environment without its filesystem, as one source: many short-lived
/// environments are made, and a series for each of some forty metrics costs each of them more than
/// it does otherwise.
pub(crate) fn register(metrics: &Metrics, parts: &MetricParts<'_>) {
    let (cache, ledger) = (parts.cache.clone(), parts.ledger.clone());
    let (files, io_limit) = (parts.open_files.clone(), parts.io_limit.clone());
    let foreground_io = parts.foreground_io.clone();
    let (pending, running) = (parts.jobs.pending_reader(), parts.jobs.running_reader());
    let threads = parts.jobs.parallelism() as u64;
    metrics.permanent_source(move |out| {
        let (cache, ledger) = (cache.stats(), ledger.usage());
        for (name, help, read) in CACHE_COUNTERS {
            out.push(counter(name, &[], help, read(&cache)));
        }
        for (name, help, read) in CACHE_GAUGES {
            out.push(gauge(name, &[], help, read(&cache)));
        }
        for (kind, read) in MEMORY_KINDS {
            let help = "Memory in use, from the one ledger.";
            out.push(gauge("memory_used_bytes", &[("kind", kind)], help, read(&ledger)));
        }
        let help = "The whole memory budget.";
        out.push(gauge("memory_budget_bytes", &[], help, ledger.budget));
        for (priority, n) in PRIORITIES.into_iter().zip(pending()) {
            let help = "Background jobs queued or running.";
            out.push(gauge("jobs_pending", &[("priority", priority)], help, n as u64));
        }
        let budgets = [
            ("memory_bytes", ledger.total(), ledger.budget),
            ("cache_bytes", cache.used, cache.capacity),
            ("open_files", files.count() as u64, files.limit() as u64),
            ("background_threads", running() as u64, threads),
            ("background_io_bytes_per_s", io_limit.recent_rate(), io_limit.rate()),
        ];
        for (name, used, limit) in budgets {
            let labels = [("budget", name)];
            out.push(gauge("budget_used", &labels, BUDGET_USED, used));
            out.push(gauge("budget_limit", &labels, BUDGET_LIMIT, limit));
        }
        for (priority, name) in [(IoPriority::High, "high"), (IoPriority::Low, "low")] {
            let help = "Microseconds that background I/O waited for its limit.";
            let waited = io_limit.waited(priority).as_micros() as u64;
            out.push(counter("background_io_wait_us_total", &[("priority", name)], help, waited));
        }
        out.push(counter(
            "background_io_pause_us_total",
            &[],
            "Microseconds that background I/O paused while synced commits and reads waited for the device.",
            foreground_io.paused().as_micros() as u64,
        ));
        let help = "Files held open by engines.";
        out.push(gauge("open_files", &[], help, files.count() as u64));
        let help = "Bytes that passed the background I/O limit.";
        out.push(counter("background_io_bytes", &[], help, io_limit.passed()));
    });
}
