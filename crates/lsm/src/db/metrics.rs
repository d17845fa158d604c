//! The shape of a store as metrics: values that are read from the tree when the registry is
//! sampled, beside the counters that run.

use super::engine::Engine;
use super::persistence::PassiveStats;
use super::stats::{BlobStats, FamilyStats, LevelStats, PageTreeStats, Stats};
use basalt_env::{BUDGET_LIMIT, BUDGET_USED, MetricSample, MetricValue};
use std::sync::Arc;

type StoreRow = (&'static str, &'static str, fn(&Stats) -> u64);

const STORE: &[StoreRow] = &[
    (
        "log_bytes",
        "Bytes of log on disk, recycled space included.",
        |s| s.log_bytes,
    ),
    ("memtable_bytes", "Bytes of memtables.", |s| {
        s.memtable_bytes
    }),
    (
        "sealed_memtables",
        "Sealed memtable sets that wait for their flush.",
        |s| s.sealed_memtables,
    ),
    ("snapshots", "Live snapshots.", |s| s.snapshots),
    ("table_files", "Tables of the tree.", |s| s.table_files),
    (
        "unremoved_files",
        "Obsolete files that could not be removed yet.",
        |s| s.unremoved_files,
    ),
    ("blob_files", "Blob files.", |s| s.blobs.files),
    (
        "blob_bytes",
        "Bytes of blob files, indexes included.",
        |s| s.blobs.bytes,
    ),
    (
        "blob_live_bytes",
        "Bytes of blob files that tables refer to.",
        |s| s.blobs.live_bytes,
    ),
    (
        "blob_garbage_bytes",
        "Bytes of blob files that nothing refers to.",
        |s| s.blobs.garbage_bytes(),
    ),
    (
        "blob_live_records",
        "Records of blob files that tables refer to.",
        |s| s.blobs.live_records,
    ),
    (
        "blob_names",
        "Retired file numbers that tables still refer to.",
        |s| s.blobs.names,
    ),
    (
        "blob_space_amp_percent",
        "Bytes of blob files for each hundred that can be reached; 100 without blob files.",
        |s| (s.blobs.space_amp() * 100.0) as u64,
    ),
    (
        "blob_hidden_bytes",
        "Live bytes of blob files that are probably overwritten already.",
        |s| s.blobs.hidden_bytes,
    ),
    (
        "space_debt",
        "Bytes of blob files above the bound on space.",
        |s| s.blobs.space_debt,
    ),
    (
        "space_pressure_percent",
        "How hard the bound on space slows writers.",
        |s| (s.blobs.pressure * 100.0) as u64,
    ),
    (
        "blob_collections_write_share_percent",
        "Of the bytes written in the last minute, those that garbage collections wrote.",
        |s| (s.blobs.collections_share() * 100.0) as u64,
    ),
    (
        "blob_collections_write_amp_percent",
        "Bytes written to blob files in the last minute for each hundred bytes of new values.",
        |s| (s.blobs.collections_write_amp() * 100.0) as u64,
    ),
    (
        "blob_max_space_amp_percent",
        "The bound on blob_space_amp_percent.",
        |s| (s.blobs.max_space_amp * 100.0) as u64,
    ),
    (
        "blob_headroom_bytes",
        "Bytes that blob files may grow by within their bound; 0 beyond it.",
        |s| s.blobs.headroom_bytes().max(0) as u64,
    ),
    (
        "compaction_debt_bytes",
        "Bytes that compactions should move soon.",
        |s| s.compaction_debt,
    ),
    (
        "compactions_running",
        "Compactions running or queued.",
        |s| s.compactions,
    ),
    (
        "last_sequence_number",
        "The newest visible sequence number.",
        |s| s.last_seq,
    ),
    (
        "takes_no_writes",
        "1 when the store takes no writes, else 0.",
        |s| u64::from(s.read_only.is_some()),
    ),
    (
        "events_lost",
        "Events dropped because listeners were too slow.",
        |s| s.events_lost,
    ),
    (
        "listeners_lost",
        "Listeners that panicked and are not called any more.",
        |s| s.listeners_lost,
    ),
];

type LevelRow = (&'static str, &'static str, fn(&LevelStats) -> u64);

const LEVEL_GAUGES: &[LevelRow] = &[
    ("level_tables", "Tables of a level.", |l| l.tables),
    ("level_bytes", "Bytes of a level.", |l| l.bytes),
    (
        "level_target_bytes",
        "The size that a level aims at; 0 for none.",
        |l| l.target_bytes,
    ),
    (
        "level_entries",
        "Entries of a level, tombstones included.",
        |l| l.entries,
    ),
    ("level_deletes", "Tombstones of a level.", |l| l.deletes),
    (
        "level_range_deletes",
        "Range tombstones of a level, cut where they overlap.",
        |l| l.range_deletes,
    ),
    (
        "level_score_percent",
        "How much a compaction is due; one starts at 100.",
        |l| (l.score * 100.0) as u64,
    ),
    (
        "level_compacting",
        "Tables of a level that compactions merge.",
        |l| l.compacting,
    ),
];

const LEVEL_COUNTERS: &[LevelRow] = &[
    (
        "level_bytes_entered_total",
        "Table bytes flushed or merged in from above.",
        |l| l.bytes_entered,
    ),
    (
        "level_bytes_read_total",
        "Table bytes that merges into a level read.",
        |l| l.bytes_read,
    ),
    (
        "level_bytes_written_total",
        "Table bytes that flushes and merges wrote into a level.",
        |l| l.bytes_written,
    ),
    (
        "level_bytes_moved_total",
        "Table bytes that moved into a level unchanged.",
        |l| l.bytes_moved,
    ),
    ("level_compactions_total", "Merges into a level.", |l| {
        l.compactions
    }),
];

type PageRow = (&'static str, &'static str, fn(&PageTreeStats) -> u64);

const PAGE_GAUGES: &[PageRow] = &[
    ("pages_index_levels", "Levels of index pages.", |p| p.levels),
    ("pages_mapped", "Entries of the page mapping table.", |p| {
        p.mapped_pages
    }),
    (
        "pages_mapping_bytes",
        "Bytes of memory of the page mapping table.",
        |p| p.mapping_bytes,
    ),
    (
        "pages_extent_range_bytes",
        "Bytes of memory of the valid ranges of extents of base pages.",
        |p| p.extent_range_bytes,
    ),
    (
        "pages_extents_without_ranges",
        "Extents of base pages whose ranges were dropped to save memory.",
        |p| p.extents_without_ranges,
    ),
    (
        "pages_leaves_with_deltas",
        "Leaves that have delta pages.",
        |p| p.leaves_with_deltas,
    ),
    (
        "pages_index_pages_with_deltas",
        "Index pages that have delta pages.",
        |p| p.index_pages_with_deltas,
    ),
    (
        "pages_index_delta_bytes",
        "Bytes of the delta pages of index pages.",
        |p| p.index_delta_bytes,
    ),
    (
        "pages_deltas",
        "Delta pages; a shared one counts for each leaf.",
        |p| p.delta_pages,
    ),
    (
        "pages_longest_chain",
        "Delta pages of the leaf or index page that has most.",
        |p| p.longest_chain,
    ),
    (
        "pages_due_leaves",
        "Leaves and index pages that are due for a compaction.",
        |p| p.due_leaves,
    ),
    (
        "pages_due_delta_bytes",
        "Bytes of delta pages of leaves and index pages that are due for a compaction.",
        |p| p.due_delta_bytes,
    ),
    ("pages_base_bytes", "Bytes of valid base pages.", |p| {
        p.base_bytes
    }),
    (
        "pages_delta_bytes",
        "Bytes of valid delta pages; a shared one counts for each leaf.",
        |p| p.delta_bytes,
    ),
    ("pages_base_extents", "Extents of base pages.", |p| {
        p.base_extents
    }),
    ("pages_delta_extents", "Extents of delta pages.", |p| {
        p.delta_extents
    }),
    (
        "pages_base_extent_bytes",
        "Bytes of extents of base pages.",
        |p| p.base_extent_bytes,
    ),
    (
        "pages_delta_extent_bytes",
        "Bytes of extents of delta pages.",
        |p| p.delta_extent_bytes,
    ),
    (
        "pages_base_garbage_bytes",
        "Bytes of extents of base pages that no valid page has.",
        |p| p.base_garbage_bytes,
    ),
    (
        "pages_delta_garbage_bytes",
        "Bytes of extents of delta pages that no valid page has.",
        |p| p.delta_garbage_bytes,
    ),
    (
        "pages_space_amp_percent",
        "Bytes of extents for each hundred that the largest pages of all leaves have.",
        |p| (p.space_amp() * 100.0) as u64,
    ),
    (
        "pages_system_log_bytes",
        "Bytes of the system log since the last system checkpoint.",
        |p| p.system_log_bytes,
    ),
];

const PAGE_COUNTERS: &[PageRow] = &[
    (
        "pages_flush_bytes_written_total",
        "Bytes of pages that flushes wrote.",
        |p| p.flush_bytes_written,
    ),
    (
        "pages_compaction_bytes_written_total",
        "Bytes of pages that compactions wrote.",
        |p| p.compaction_bytes_written,
    ),
    (
        "pages_collection_bytes_written_total",
        "Bytes of pages that garbage collections wrote.",
        |p| p.collection_bytes_written,
    ),
    (
        "pages_system_log_bytes_written_total",
        "Bytes of system transactions and system checkpoints.",
        |p| p.system_log_bytes_written,
    ),
    (
        "pages_system_checkpoints_total",
        "System checkpoints that were taken.",
        |p| p.system_checkpoints,
    ),
    (
        "pages_leaves_merged_for_readers_total",
        "Leaves and index pages that were chosen for a merge because readers had paid for it.",
        |p| p.leaves_merged_for_readers,
    ),
    (
        "pages_derived_extent_ranges_total",
        "Extents whose ranges were derived from index pages.",
        |p| p.derived_extent_ranges,
    ),
    (
        "pages_cold_leaves_merged_total",
        "Cold leaves that were chosen for a merge.",
        |p| p.cold_leaves_merged,
    ),
    (
        "pages_released_bytes_total",
        "Bytes on the device that releases of garbage pages have freed.",
        |p| p.released_bytes,
    ),
    (
        "pages_failed_releases_total",
        "Releases of garbage pages of an extent that failed.",
        |p| p.failed_releases,
    ),
];

/// Adds the samples of a family that is kept in pages.
fn page_samples(family: &FamilyStats, store: (&str, &str), out: &mut Vec<MetricSample>) {
    let Some(pages) = &family.pages else {
        return;
    };
    let labels = [store, ("family", family.name.as_str())];
    for (name, help, read) in PAGE_GAUGES {
        out.push(MetricSample::new(name, &labels, help, gauge(read(pages))));
    }
    for (name, help, read) in PAGE_COUNTERS {
        let value = MetricValue::Counter(read(pages));
        out.push(MetricSample::new(name, &labels, help, value));
    }
    let help = "Bytes that compactions of pages are behind, for each hundred that they may be.";
    let debt = gauge((family.page_debt * 100.0) as u64);
    let name = "pages_debt_percent";
    out.push(MetricSample::new(name, &labels, help, debt));
}

type PassiveRow = (&'static str, &'static str, fn(&PassiveStats) -> u64);

const PASSIVE_GAUGES: &[PassiveRow] = &[
    (
        "passive_applied_transaction",
        "The last transaction of the owner's log that was applied.",
        |p| p.applied,
    ),
    (
        "passive_persisted_transaction",
        "The last transaction of the owner's log that is persisted in all families.",
        |p| p.global,
    ),
    (
        "passive_pinned_log_bytes",
        "Bytes of the owner's log after the global persistence point.",
        |p| p.pinned_log_bytes,
    ),
    (
        "passive_max_pinned_log_bytes",
        "The bound of the owner's log from which families are flushed early.",
        |p| p.max_pinned_log_bytes,
    ),
];

const PASSIVE_COUNTERS: &[PassiveRow] = &[
    (
        "passive_early_flushes_total",
        "Times that families were flushed early because they held the persistence point back.",
        |p| p.early_flushes,
    ),
    (
        "passive_early_flush_bytes_total",
        "Bytes of memtables that were flushed early.",
        |p| p.early_flush_bytes,
    ),
];

/// Adds the samples of a passive store.
fn passive_samples(stats: &Stats, store: (&str, &str), out: &mut Vec<MetricSample>) {
    let Some(passive) = &stats.passive else {
        return;
    };
    for (name, help, read) in PASSIVE_GAUGES {
        let value = gauge(read(passive));
        out.push(MetricSample::new(name, &[store], help, value));
    }
    for (name, help, read) in PASSIVE_COUNTERS {
        let value = MetricValue::Counter(read(passive));
        out.push(MetricSample::new(name, &[store], help, value));
    }
    for family in &stats.families {
        let labels = [store, ("family", family.name.as_str())];
        let help = "The last transaction of the owner's log that is persisted in the family.";
        let value = gauge(family.persisted.unwrap_or(0));
        let name = "passive_family_persisted_transaction";
        out.push(MetricSample::new(name, &labels, help, value));
    }
}

/// Metrics are signed; a size past 8 EiB is shown as that.
fn gauge(n: u64) -> MetricValue {
    MetricValue::Gauge(i64::try_from(n).unwrap_or(i64::MAX))
}

impl Engine {
    /// Registers the samples with the metrics registry for as long as the store is open.
    pub fn offer_metrics(self: &Arc<Self>) {
        // The registry does not keep the store open.
        let engine = Arc::downgrade(self);
        let source = self.ctx.env.metrics().source(move |out| {
            if let Some(engine) = engine.upgrade() {
                engine.samples(out);
            }
        });
        *self.metric_source.lock() = Some(source);
    }

    /// Returns the number of blob files by their share of garbage, and the age of the oldest one.
    fn blob_samples(&self, blobs: &BlobStats, store: (&str, &str), out: &mut Vec<MetricSample>) {
        for (tenth, share) in blobs.by_garbage.iter().enumerate() {
            let from = format!("{}", tenth * 10);
            let labels = [store, ("garbage_percent_from", from.as_str())];
            let mut row =
                |name, help, n| out.push(MetricSample::new(name, &labels, help, gauge(n)));
            let help = "Blob files by what part of each is garbage, in steps of ten per cent.";
            row("blob_files_by_garbage", help, share.files);
            let help = "Bytes of blob files by what part of each is garbage.";
            row("blob_bytes_by_garbage", help, share.bytes);
        }
        if let Some(made) = blobs.oldest_made_ms {
            let age = self.ctx.env.clock().wall_ms().saturating_sub(made) / 1000;
            let help = "Seconds since the oldest blob file was made.";
            let name = "blob_oldest_file_age_seconds";
            out.push(MetricSample::new(name, &[store], help, gauge(age)));
        }
    }

    fn samples(self: &Arc<Self>, out: &mut Vec<MetricSample>) {
        let stats = self.stats();
        let store = ("store", self.ctx.counters.label.as_str());
        for (name, help, read) in STORE {
            out.push(MetricSample::new(name, &[store], help, gauge(read(&stats))));
        }
        for (cause, amp) in stats.write_amp_by_cause().into_iter().flatten() {
            let help = "Bytes written for each hundred that users wrote, by cause.";
            let percent = gauge((amp * 100.0) as u64);
            let labels = [store, ("cause", cause.as_str())];
            out.push(MetricSample::new(
                "write_amp_percent",
                &labels,
                help,
                percent,
            ));
        }
        self.blob_samples(&stats.blobs, store, out);
        passive_samples(&stats, store, out);
        let of_env = self.ctx.env.budgets().len();
        for budget in &stats.budgets[of_env..] {
            let labels = [store, ("budget", budget.name)];
            let used = gauge(budget.used);
            out.push(MetricSample::new("budget_used", &labels, BUDGET_USED, used));
            let limit = gauge(budget.limit);
            out.push(MetricSample::new(
                "budget_limit",
                &labels,
                BUDGET_LIMIT,
                limit,
            ));
        }
        for family in &stats.families {
            page_samples(family, store, out);
            for (n, level) in family.levels.iter().enumerate() {
                let number = n.to_string();
                let labels = [
                    store,
                    ("family", family.name.as_str()),
                    ("level", number.as_str()),
                ];
                for (name, help, read) in LEVEL_GAUGES {
                    out.push(MetricSample::new(name, &labels, help, gauge(read(level))));
                }
                for (name, help, read) in LEVEL_COUNTERS {
                    let value = MetricValue::Counter(read(level));
                    out.push(MetricSample::new(name, &labels, help, value));
                }
            }
        }
    }
}
