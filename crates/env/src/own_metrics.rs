//! What the environment itself counts, read when the metrics are.
//!
//! The readers hold no [`Env`], nor the filesystem or the job pool: a kept [`Metrics`](crate::Metrics) keeps
//! neither files nor threads alive.

use crate::{CacheStats, Env, LedgerUse};
use basalt_fs::FsStats;
use std::sync::Arc;

type Rows<T> = [(&'static str, &'static str, fn(&T) -> u64)];

const CACHE_COUNTERS: &Rows<CacheStats> = &[
    ("cache_hits", "Block cache lookups that hit.", |s| s.hits),
    ("cache_misses", "Block cache lookups that missed.", |s| {
        s.misses
    }),
    ("cache_inserts", "Blocks put into the cache.", |s| s.inserts),
    (
        "cache_evictions",
        "Blocks dropped from the cache for room.",
        |s| s.evictions,
    ),
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

/// Prometheus gauges are signed here; a size past 8 EiB is shown as that.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn register(env: &Env) {
    let metrics = env.metrics();
    for (name, help, read) in CACHE_COUNTERS {
        let cache = env.cache().clone();
        metrics.counter_of(name, &[], help, move || read(&cache.stats()));
    }
    for (name, help, read) in CACHE_GAUGES {
        let cache = env.cache().clone();
        metrics.gauge_of(name, &[], help, move || signed(read(&cache.stats())));
    }
    for (name, help, read) in FS_COUNTERS {
        let fs = Arc::downgrade(env.fs());
        metrics.counter_of(name, &[], help, move || {
            fs.upgrade().map_or(0, |fs| read(&fs.stats()))
        });
    }
    for (kind, read) in MEMORY_KINDS {
        let ledger = env.ledger().clone();
        metrics.gauge_of(
            "memory_used_bytes",
            &[("kind", kind)],
            "Memory in use, from the one ledger.",
            move || signed(read(&ledger.usage())),
        );
    }
    metrics
        .gauge("memory_budget_bytes", &[], "The whole memory budget.")
        .set(signed(env.ledger().usage().budget));
    let pending = env.jobs().pending_reader();
    for (n, priority) in PRIORITIES.into_iter().enumerate() {
        let pending = pending.clone();
        metrics.gauge_of(
            "jobs_pending",
            &[("priority", priority)],
            "Background jobs queued or running.",
            move || signed(pending()[n] as u64),
        );
    }
    let files = env.open_files().clone();
    metrics.gauge_of(
        "open_files",
        &[],
        "Files held open by engines.",
        move || signed(files.count() as u64),
    );
    let limit = env.io_limit().clone();
    metrics.counter_of(
        "background_io_bytes",
        &[],
        "Bytes that passed the background I/O limit.",
        move || limit.passed(),
    );
}
