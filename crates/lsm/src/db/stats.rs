//! What the engine tells of itself: the tree's shape and counters.

use super::engine::Engine;
use crate::compaction::{compaction_debt, level_targets};
use basalt_env::{Counter, Env};
use std::sync::Arc;

/// The tree's shape and counters, for people and scripts. See [`super::Db::stats`]. Counters run since the store was opened.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Per family.
    pub families: Vec<FamilyStats>,
    /// Bytes of write-ahead log on disk, recycled space included.
    pub log_bytes: u64,
    /// Bytes of user keys and values written.
    pub user_bytes_written: u64,
    /// Log bytes written.
    pub wal_bytes_written: u64,
    /// Table bytes written by flushes.
    pub flush_bytes_written: u64,
    /// Table bytes read by compactions.
    pub compaction_bytes_read: u64,
    /// Table bytes written by compactions.
    pub compaction_bytes_written: u64,
    /// Commit groups.
    pub commit_groups: u64,
    /// Batches in them.
    pub commits: u64,
    /// Log syncs.
    pub log_syncs: u64,
    /// Microseconds that writers were slowed or held, by cause.
    pub stall_us: Vec<(&'static str, u64)>,
    /// Live snapshots.
    pub snapshots: u64,
    /// Sealed memtables waiting for their flush.
    pub sealed_memtables: u64,
    /// Bytes of memtables.
    pub memtable_bytes: u64,
    /// Table files that the tree names.
    pub table_files: u64,
    /// Bytes that compactions should move soon.
    pub compaction_debt: u64,
    /// Compactions running or queued.
    pub compactions: u64,
    /// The newest visible sequence number.
    pub last_seq: u64,
    /// The store takes no writes, and why.
    pub read_only: Option<String>,
}

/// One family of [`Stats`].
#[derive(Debug, Clone, Default)]
pub struct FamilyStats {
    /// Name.
    pub name: String,
    /// Levels from 0.
    pub levels: Vec<LevelStats>,
}

/// One level of [`FamilyStats`].
#[derive(Debug, Clone, Default)]
pub struct LevelStats {
    /// Tables.
    pub tables: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// The size it aims at, 0 for level 0 and for levels not in use.
    pub target_bytes: u64,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub deletes: u64,
}

pub(crate) struct Counters {
    pub user_bytes: Counter,
    pub wal_bytes: Counter,
    pub flush_bytes: Counter,
    pub compaction_read: Counter,
    pub compaction_written: Counter,
    pub commit_groups: Counter,
    pub commits: Counter,
    pub log_syncs: Counter,
    pub idle_releases: Counter,
    pub stall_memtables_us: Counter,
    pub stall_l0_us: Counter,
    pub stall_debt_us: Counter,
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
                "Table bytes written by flushes",
            ),
            compaction_read: c(
                "compaction_bytes_read_total",
                "Table bytes read by compactions",
            ),
            compaction_written: c(
                "compaction_bytes_written_total",
                "Table bytes written by compactions",
            ),
            commit_groups: c("commit_groups_total", "Commit groups"),
            commits: c("commits_total", "Batches committed"),
            log_syncs: c("log_syncs_total", "Syncs of the write-ahead log"),
            idle_releases: c(
                "idle_releases_total",
                "Times that an idle store gave back memtables and logs",
            ),
            stall_memtables_us: stall("memtables"),
            stall_l0_us: stall("level0"),
            stall_debt_us: stall("compaction_debt"),
            label: name.to_string(),
        }
    }
}

impl Engine {
    pub fn stats(self: &Arc<Self>) -> Stats {
        let view = self.view();
        let c = &self.counters;
        let mut families = Vec::new();
        let mut debt = 0;
        let mut table_files = 0;
        for f in view.families.values() {
            let mut levels = Vec::new();
            if let Some(tables) = view.version.families.get(&f.id) {
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
                    });
                }
            }
            families.push(FamilyStats {
                name: f.name.to_string(),
                levels,
            });
        }
        let (live_logs, compactions, read_only) = {
            let s = self.state.lock();
            let error = s
                .halt
                .as_ref()
                .or(s.flush_error.as_ref())
                .or(s.compaction_error.as_ref());
            (
                s.catalog.logs.keys().copied().collect::<Vec<_>>(),
                s.compactions.len() as u64,
                error.map(|e| e.to_string()),
            )
        };
        let log_bytes = live_logs
            .iter()
            .map(|n| super::log::log_path(&self.dir, *n))
            .chain(self.recycled_logs())
            .filter_map(|path| self.env.fs().stat(&path).ok())
            .map(|s| s.allocated)
            .sum();
        Stats {
            families,
            log_bytes,
            user_bytes_written: c.user_bytes.get(),
            wal_bytes_written: c.wal_bytes.get(),
            flush_bytes_written: c.flush_bytes.get(),
            compaction_bytes_read: c.compaction_read.get(),
            compaction_bytes_written: c.compaction_written.get(),
            commit_groups: c.commit_groups.get(),
            commits: c.commits.get(),
            log_syncs: c.log_syncs.get(),
            stall_us: vec![
                ("memtables", c.stall_memtables_us.get()),
                ("level0", c.stall_l0_us.get()),
                ("compaction_debt", c.stall_debt_us.get()),
            ],
            snapshots: self.snapshots.lock().values().sum::<usize>() as u64,
            sealed_memtables: view.sealed.len() as u64,
            memtable_bytes: view.active.memory()
                + view.sealed.iter().map(|g| g.memory()).sum::<u64>(),
            table_files,
            compaction_debt: debt,
            compactions,
            last_seq: self
                .visible
                .load(basalt_env::sync::atomic::Ordering::SeqCst),
            read_only,
        }
    }
}
