//! Reads the statistics of [`super::Db::stats`] from all parts of a store.

use super::engine::Engine;
use super::stall_cause::StallCause;
use super::stats::{
    BlobCompressionStats, BlobReadStats, FamilyStats, LevelStats, ReadOnlyReason, StallStats, Stats,
};
use super::view::View;
use crate::compaction::{compaction_debt, level_targets, scores};
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_env::{BudgetUse, IoPriority};
use basalt_fs::ErrorKind;
use std::sync::Arc;

impl Engine {
    /// Returns the environment's budgets, and this store's own.
    fn budgets(&self, view: &View) -> Vec<BudgetUse> {
        let options = &self.ctx.options;
        let mut all = self.ctx.env.budgets();
        all.extend([
            BudgetUse::new(
                "write_buffer_bytes",
                view.active.memory(),
                options.write_buffer_bytes,
            ),
            BudgetUse::new(
                "sealed_memtables",
                view.waiting_sets(options) as u64,
                options.max_sealed_memtables as u64,
            ),
        ]);
        all
    }

    pub fn stats(self: &Arc<Self>) -> Stats {
        let view = self.tree.view();
        let c = &self.ctx.counters;
        let mut families = Vec::new();
        let mut debt = 0;
        let mut table_files = 0;
        for f in view.families.values() {
            let mut levels = Vec::new();
            if let Some(tables) = view.version.families.get(&f.id) {
                let io = c.levels.of(f.id);
                let due = scores(tables, &f.options);
                let targets = level_targets(tables, &f.options).bytes;
                debt += compaction_debt(tables, &f.options);
                for (level, list) in tables.levels.iter().enumerate() {
                    table_files += list.len() as u64;
                    levels.push(LevelStats {
                        tables: list.len() as u64,
                        bytes: tables.level_bytes(level),
                        target_bytes: targets[level],
                        entries: list.iter().map(|t| t.meta.entries).sum(),
                        deletes: list.iter().map(|t| t.meta.deletes).sum(),
                        score: due.iter().find(|(l, _)| *l == level).map_or(0.0, |d| d.1),
                        compacting: list.iter().filter(|t| t.compacting.load(SeqCst)).count()
                            as u64,
                        bytes_entered: io[level].entered,
                        bytes_read: io[level].read,
                        bytes_written: io[level].written,
                        bytes_moved: io[level].moved,
                        compactions: io[level].merges,
                        range_deletes: list.iter().map(|t| t.meta.range_deletes).sum(),
                    });
                }
            }
            let pages = view.pages.get(&f.id);
            let tree = pages.map(|view| view.pages.tree().stats());
            debt += tree.as_ref().map_or(0, |tree| tree.due_delta_bytes);
            families.push(FamilyStats {
                name: f.name.to_string(),
                levels,
                pages: tree,
                page_debt: pages.map_or(0.0, |view| view.debt),
                persisted: self.tree.flush_flag(f.id).map(|flag| flag.tsn),
            });
        }
        let (live_logs, compactions, blobs) = {
            let s = self.tree.lock();
            (
                s.catalog().logs.keys().copied().collect::<Vec<_>>(),
                s.jobs.compactions.len() as u64,
                self.pressure.blob_stats(s.catalog(), &s.blobs, &view),
            )
        };
        let (events_lost, listeners_lost) = self.ctx.events.lost();
        let snapshots = self.tree.live_snapshots_count();
        let stalls: Vec<StallStats> = StallCause::ALL
            .iter()
            .zip(c.stalls.iter().zip(&c.stall_us))
            .map(|(cause, (count, us))| StallStats {
                cause: *cause,
                count: count.get(),
                us: us.get(),
            })
            .collect();
        let log_bytes = live_logs
            .iter()
            .map(|n| super::write_path::log_space::log_path(&self.ctx.dir, *n))
            .chain(self.writes.logs().recycled())
            .filter_map(|path| self.ctx.env.fs().stat(&path).ok())
            .map(|s| s.allocated)
            .sum();
        Stats {
            families,
            passive: self.passive_stats(),
            log_bytes,
            user_bytes_written: c.user_bytes.get(),
            wal_bytes_written: c.wal_bytes.get(),
            flush_bytes_written: c.flush_bytes.get(),
            flushes: c.flushes.get(),
            ingested_bytes: c.ingested_bytes.get(),
            ingestions: c.ingestions.get(),
            compaction_bytes_read: c.compaction_read.get(),
            compaction_bytes_written: c.compaction_written.get(),
            commit_groups: c.commit_groups.get(),
            commits: c.commits.get(),
            conflicts: c.conflicts.get(),
            log_syncs: c.log_syncs.get(),
            idle_releases: c.idle_releases.get(),
            stall_us: stalls.iter().map(|s| (s.cause, s.us)).collect(),
            stalls,
            budgets: self.budgets(&view),
            io_wait_us: [IoPriority::High, IoPriority::Low]
                .map(|p| self.ctx.env.io_limit().waited(p).as_micros() as u64),
            events_lost,
            listeners_lost,
            snapshots,
            sealed_memtables: view.sealed.len() as u64,
            memtable_bytes: view.active.memory()
                + view.sealed.iter().map(|g| g.memory()).sum::<u64>(),
            table_files,
            unremoved_files: self.ctx.tables.unremoved(),
            blobs,
            blob_reads: BlobReadStats::of(&self.ctx.env),
            blob_compression: BlobCompressionStats::of(&self.ctx.env),
            compaction_debt: debt,
            compactions,
            last_seq: self.tree.visible(),
            read_only: self.read_only_reason(),
        }
    }

    /// Returns why the store takes no writes, or `None` if it does.
    fn read_only_reason(&self) -> Option<ReadOnlyReason> {
        let health = &self.health;
        if let Err(error) = health.check_jobs() {
            return Some(ReadOnlyReason::Broken(error));
        }
        // A merge that lacked space is tried again, and writes go on until too much waits for it.
        let is_stuck = self.tree.view().backlog.holds_writers();
        let merge =
            (health.compaction_error()).filter(|e| e.kind() != ErrorKind::NoSpace || is_stuck);
        let error = health.halted().or(health.flush_error()).or(merge);
        error
            .or_else(|| self.pressure.fullness())
            .map(ReadOnlyReason::Halted)
            .or((self.ctx.read_only).then_some(ReadOnlyReason::OpenedForReading))
    }
}
