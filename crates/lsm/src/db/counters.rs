//! The counters of a store. Each is a metric with the label of the store.
//!
//! A store offers all of its counters to the registry as one source. To register a series for each
//! of them takes longer than to open a small store.

use super::level_stats::Levels;
use super::stall_cause::{STALL_CAUSES, StallCause};
use basalt_blob::counters::CompressionCounters;
use basalt_env::sync::{Mutex, named};
use basalt_env::{Counter, Env, Gauge, MetricSample, MetricSource, MetricValue};
use std::ops::Deref;
use std::sync::Arc;

/// The counters that the registry reads.
#[derive(Default)]
pub(crate) struct CounterValues {
    pub user_bytes: Counter,
    pub wal_bytes: Counter,
    pub flush_bytes: Counter,
    pub flushes: Counter,
    pub ingested_bytes: Counter,
    pub ingestions: Counter,
    pub compaction_read: Counter,
    pub compaction_written: Counter,
    pub gcs: Counter,
    pub gcs_begun: Counter,
    pub names_made: Counter,
    pub names_forgotten: Counter,
    pub blob_bytes_added: Counter,
    pub gc_read: Counter,
    pub gc_written: Counter,
    pub relocated: Counter,
    pub commit_groups: Counter,
    pub commits: Counter,
    pub conflicts: Counter,
    pub log_syncs: Counter,
    pub submits_held: Counter,
    pub idle_releases: Counter,
    /// Microseconds that writers were slowed or held, by cause in the order of [`StallCause::ALL`].
    pub stall_us: [Counter; STALL_CAUSES],
    /// Times that writers were slowed or held, by cause in the order of [`StallCause::ALL`].
    pub stalls: [Counter; STALL_CAUSES],
}

/// Name and help text of a counter, and where it is.
type Row = (&'static str, &'static str, fn(&CounterValues) -> &Counter);

const ROWS: &[Row] = &[
    (
        "user_bytes_written_total",
        "Bytes of keys and values written by users",
        |v| &v.user_bytes,
    ),
    (
        "wal_bytes_written_total",
        "Bytes written to the write-ahead log",
        |v| &v.wal_bytes,
    ),
    (
        "flush_bytes_written_total",
        "Bytes of tables and blob files written by flushes",
        |v| &v.flush_bytes,
    ),
    (
        "flushes_total",
        "Memtables of all families that were flushed together",
        |v| &v.flushes,
    ),
    (
        "ingested_bytes_total",
        "Bytes of tables and blob files that were prepared and added",
        |v| &v.ingested_bytes,
    ),
    (
        "ingestions_total",
        "Times that prepared tables were added",
        |v| &v.ingestions,
    ),
    (
        "compaction_bytes_read_total",
        "Table bytes read by compactions",
        |v| &v.compaction_read,
    ),
    (
        "compaction_bytes_written_total",
        "Bytes of tables and blob files written by compactions",
        |v| &v.compaction_written,
    ),
    (
        "blob_collections_total",
        "Garbage collections of blob files that finished",
        |v| &v.gcs,
    ),
    (
        "blob_collections_begun_total",
        "Garbage collections of blob files that began",
        |v| &v.gcs_begun,
    ),
    (
        "blob_names_made_total",
        "Retired file numbers of collected blob files",
        |v| &v.names_made,
    ),
    (
        "blob_names_forgotten_total",
        "Retired file numbers that no table referred to any more",
        |v| &v.names_forgotten,
    ),
    (
        "blob_bytes_added_total",
        "Bytes of blob files that flushes and compactions added",
        |v| &v.blob_bytes_added,
    ),
    (
        "blob_collection_bytes_read_total",
        "Bytes of blob files read by garbage collections",
        |v| &v.gc_read,
    ),
    (
        "blob_collection_bytes_written_total",
        "Bytes of blob files written by garbage collections",
        |v| &v.gc_written,
    ),
    (
        "blob_relocated_bytes_total",
        "Bytes of values that compactions relocated into the order of their keys",
        |v| &v.relocated,
    ),
    ("commit_groups_total", "Commit groups", |v| &v.commit_groups),
    ("commits_total", "Batches committed", |v| &v.commits),
    (
        "conflicts_total",
        "Batches that were refused because a precondition did not hold",
        |v| &v.conflicts,
    ),
    ("log_syncs_total", "Syncs of the write-ahead log", |v| {
        &v.log_syncs
    }),
    (
        "submits_held_total",
        "Submits that were held because the commit queue was full",
        |v| &v.submits_held,
    ),
    (
        "idle_releases_total",
        "Times that an idle store gave back memtables and logs",
        |v| &v.idle_releases,
    ),
];

impl CounterValues {
    /// Appends a sample of each counter.
    fn samples(&self, store: &str, out: &mut Vec<MetricSample>) {
        let mut add = |name, labels: &[(&str, &str)], help, counter: &Counter| {
            let value = MetricValue::Counter(counter.get());
            out.push(MetricSample::new(name, labels, help, value));
        };
        let store = ("store", store);
        for (name, help, counter) in ROWS {
            add(name, &[store], help, counter(self));
        }
        for (i, cause) in StallCause::ALL.iter().enumerate() {
            let labels = [store, ("cause", cause.as_str())];
            let help = "Microseconds that writers were slowed or held";
            add("stall_us_total", &labels, help, &self.stall_us[i]);
            let help = "Times that writers were held back";
            add("stalls_total", &labels, help, &self.stalls[i]);
        }
    }
}

/// The counters of an open store, and what else is counted for it.
pub(crate) struct Counters {
    values: Arc<CounterValues>,
    /// Offers `values` to the registry until the store is closed.
    source: Mutex<Option<MetricSource>>,
    /// Number of garbage collections that run.
    pub gcs_running: Gauge,
    pub compression: Arc<CompressionCounters>,
    pub levels: Levels,
    /// The label of this store's metrics.
    pub label: String,
}

impl Counters {
    /// Returns counters of zero, and offers them to the environment's registry.
    pub fn new(env: &Env, name: &str) -> Counters {
        let values = Arc::new(CounterValues::default());
        let (read, label) = (values.clone(), name.to_string());
        let source = (env.metrics()).source(move |out| read.samples(&label, out));
        let help = "Garbage collections that run now";
        Counters {
            values,
            source: named("Counters::source", Mutex::new(Some(source))),
            gcs_running: (env.metrics()).gauge(
                "blob_collections_running",
                &[("store", name)],
                help,
            ),
            compression: env.metrics().group(),
            levels: Levels::default(),
            label: name.to_string(),
        }
    }

    /// Removes the store's metrics from the registry. Counters go on counting.
    pub fn leave(&self, env: &Env) {
        // The source is dropped after its lock is released: a drop takes the lock of the registry.
        let source = self.source.lock().take();
        drop(source);
        env.metrics().remove_labelled(("store", &self.label));
    }
}

impl Deref for Counters {
    type Target = CounterValues;

    fn deref(&self) -> &CounterValues {
        &self.values
    }
}
