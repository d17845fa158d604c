//! The counters of a store. Each is a metric with the label of the store.

use super::level_stats::Levels;
use super::stall_cause::{STALL_CAUSES, StallCause};
use basalt_blob::counts::CompressionCounts;
use basalt_env::{Counter, Env, Gauge};
use std::array::from_fn;

pub(crate) struct Counters {
    pub user_bytes: Counter,
    pub wal_bytes: Counter,
    pub flush_bytes: Counter,
    pub ingested_bytes: Counter,
    pub ingestions: Counter,
    pub compaction_read: Counter,
    pub compaction_written: Counter,
    pub collections: Counter,
    pub collections_begun: Counter,
    pub collecting: Gauge,
    pub names_made: Counter,
    pub names_forgotten: Counter,
    pub blob_bytes_added: Counter,
    pub compression: CompressionCounts,
    pub collected_read: Counter,
    pub collected_written: Counter,
    pub relocated: Counter,
    pub commit_groups: Counter,
    pub commits: Counter,
    pub log_syncs: Counter,
    pub submits_held: Counter,
    pub idle_releases: Counter,
    /// Microseconds that writers were slowed or held, by cause in the order of [`StallCause::ALL`].
    pub stall_us: [Counter; STALL_CAUSES],
    /// Times that writers were slowed or held, by cause in the order of [`StallCause::ALL`].
    pub stalls: [Counter; STALL_CAUSES],
    pub levels: Levels,
    /// The label of this store's metrics.
    pub label: String,
}

impl Counters {
    pub fn new(env: &Env, name: &str) -> Counters {
        let c = |metric: &str, help: &str| env.metrics().counter(metric, &[("store", name)], help);
        let stall = |cause: &str| {
            env.metrics().counter(
                "stall_us_total",
                &[("store", name), ("cause", cause)],
                "Microseconds that writers were slowed or held",
            )
        };
        let stalls = |cause: &str| {
            env.metrics().counter(
                "stalls_total",
                &[("store", name), ("cause", cause)],
                "Times that writers were held back",
            )
        };
        Counters {
            user_bytes: c(
                "user_bytes_written_total",
                "Bytes of keys and values written by users",
            ),
            wal_bytes: c(
                "wal_bytes_written_total",
                "Bytes written to the write-ahead log",
            ),
            flush_bytes: c(
                "flush_bytes_written_total",
                "Bytes of tables and blob files written by flushes",
            ),
            ingested_bytes: c(
                "ingested_bytes_total",
                "Bytes of tables and blob files that were prepared and added",
            ),
            ingestions: c("ingestions_total", "Times that prepared tables were added"),
            compaction_read: c(
                "compaction_bytes_read_total",
                "Table bytes read by compactions",
            ),
            compaction_written: c(
                "compaction_bytes_written_total",
                "Bytes of tables and blob files written by compactions",
            ),
            collections: c(
                "blob_collections_total",
                "Garbage collections of blob files that finished",
            ),
            collections_begun: c(
                "blob_collections_begun_total",
                "Garbage collections of blob files that began",
            ),
            collecting: env.metrics().gauge(
                "blob_collections_running",
                &[("store", name)],
                "Garbage collections that run now",
            ),
            names_made: c(
                "blob_names_made_total",
                "Retired file numbers of collected blob files",
            ),
            names_forgotten: c(
                "blob_names_forgotten_total",
                "Retired file numbers that no table referred to any more",
            ),
            blob_bytes_added: c(
                "blob_bytes_added_total",
                "Bytes of blob files that flushes and compactions added",
            ),
            compression: CompressionCounts::of(env),
            collected_read: c(
                "blob_collection_bytes_read_total",
                "Bytes of blob files read by collections",
            ),
            collected_written: c(
                "blob_collection_bytes_written_total",
                "Bytes of blob files written by collections",
            ),
            relocated: c(
                "blob_gathered_bytes_total",
                "Bytes of values that compactions relocated into the order of their keys",
            ),
            commit_groups: c("commit_groups_total", "Commit groups"),
            commits: c("commits_total", "Batches committed"),
            log_syncs: c("log_syncs_total", "Syncs of the write-ahead log"),
            submits_held: c(
                "submits_held_total",
                "Submits that were held because the commit queue was full",
            ),
            idle_releases: c(
                "idle_releases_total",
                "Times that an idle store gave back memtables and logs",
            ),
            stall_us: from_fn(|i| stall(StallCause::ALL[i].as_str())),
            stalls: from_fn(|i| stalls(StallCause::ALL[i].as_str())),
            levels: Levels::default(),
            label: name.to_string(),
        }
    }
}
