//! The counters of a log engine. Each is a metric with the label of the store.

use basalt_env::{Counter, Env, MetricSample, MetricSource, MetricValue};
use std::sync::Arc;

/// What an open log engine has done.
#[derive(Default)]
pub(crate) struct Counters {
    pub records: Counter,
    pub user_bytes: Counter,
    pub batches: Counter,
    pub groups: Counter,
    pub operations: Counter,
    pub syncs: Counter,
    pub data_bytes: Counter,
    pub moved_bytes: Counter,
    pub meta_bytes: Counter,
    pub pages: Counter,
    pub checkpoints: Counter,
    pub checkpoint_bytes: Counter,
    pub gcs: Counter,
    pub gc_records: Counter,
    pub merges: Counter,
    pub damaged_files: Counter,
    pub removed_files: Counter,
}

/// Name and help text of a counter, and where it is.
type Row = (&'static str, &'static str, fn(&Counters) -> &Counter);

const ROWS: &[Row] = &[
    (
        "log_records_total",
        "Records that were appended to logs",
        |c| &c.records,
    ),
    (
        "log_user_bytes_total",
        "Bytes of the records that were appended to logs",
        |c| &c.user_bytes,
    ),
    ("log_batches_total", "Batches of appends", |c| &c.batches),
    (
        "log_groups_total",
        "Groups of batches that were written together",
        |c| &c.groups,
    ),
    (
        "log_operations_total",
        "Operations on logs, and pages of their indexes",
        |c| &c.operations,
    ),
    (
        "log_syncs_total",
        "Synced groups of all physical logs",
        |c| &c.syncs,
    ),
    (
        "log_data_bytes_total",
        "Bytes written to the datalog, padding included",
        |c| &c.data_bytes,
    ),
    (
        "log_moved_bytes_total",
        "Bytes that garbage collections of the datalog wrote, padding included",
        |c| &c.moved_bytes,
    ),
    (
        "log_meta_bytes_total",
        "Bytes written to the metalog, padding included",
        |c| &c.meta_bytes,
    ),
    (
        "log_pages_total",
        "Pages of indexes that were written",
        |c| &c.pages,
    ),
    ("log_checkpoints_total", "Checkpoints of the logs", |c| {
        &c.checkpoints
    }),
    (
        "log_checkpoint_bytes_total",
        "Bytes of checkpoints that were written",
        |c| &c.checkpoint_bytes,
    ),
    (
        "log_gcs_total",
        "Files of the datalog whose live records were moved",
        |c| &c.gcs,
    ),
    (
        "log_gc_records_total",
        "Records that garbage collections moved",
        |c| &c.gc_records,
    ),
    (
        "log_merges_total",
        "Merges of small files of records (datalog and moved records)",
        |c| &c.merges,
    ),
    (
        "log_damaged_files_total",
        "Files that collections and merges left as they are, because a record cannot be read",
        |c| &c.damaged_files,
    ),
    (
        "log_removed_files_total",
        "Physical logs that were removed or recycled",
        |c| &c.removed_files,
    ),
];

impl Counters {
    /// Offers the counters to the environment's registry for as long as the source lives.
    pub fn offer(self: &Arc<Self>, env: &Env, store: &str) -> MetricSource {
        let (counters, store) = (self.clone(), store.to_string());
        env.metrics().source(move |out| {
            let labels = [("store", store.as_str())];
            out.extend(ROWS.iter().map(|(name, help, counter)| {
                let value = MetricValue::Counter(counter(&counters).get());
                MetricSample::new(name, &labels, help, value)
            }));
        })
    }
}
