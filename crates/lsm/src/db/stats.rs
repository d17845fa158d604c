//! Statistics of a store: the tree's shape and counters.

use super::persistence::PassiveStats;
use super::space_bound::room_of;
use crate::listener::{StallCause, WriteCause};
use basalt_blob::FamilyShare;
use basalt_blob::counters::{CompressionCounters, ReadCounters};
use basalt_env::{BudgetUse, Env};
use basalt_fs::Error;
pub use basalt_tree::PageTreeStats;
use std::fmt;

/// Reason why a store takes no writes. Its text is for people.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ReadOnlyReason {
    /// The store was opened with [`super::Db::open_read_only`].
    OpenedForReading,
    /// Background work or the log failed with this error, or the disk is full. The store tries
    /// again by itself, and takes writes when an attempt succeeds.
    Halted(Error),
    /// A commit or a background job stopped on a broken invariant. The store takes no more writes
    /// until it is opened again.
    Broken(Error),
}

impl fmt::Display for ReadOnlyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadOnlyReason::OpenedForReading => f.write_str("opened for reading only"),
            ReadOnlyReason::Halted(error) | ReadOnlyReason::Broken(error) => {
                fmt::Display::fmt(error, f)
            }
        }
    }
}

/// The tree's shape and counters, for people and scripts. See [`super::Db::stats`]. Counters start
/// at 0 when the store is opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Statistics of each family.
    pub families: Vec<FamilyStats>,
    /// Figures of a passive store; `None` if the store has a log of its own.
    pub passive: Option<PassiveStats>,
    /// Bytes of write-ahead log on disk, recycled space included.
    pub log_bytes: u64,
    /// Bytes of user keys and values written, including those added with prepared tables.
    pub user_bytes_written: u64,
    /// Bytes written to logs.
    pub wal_bytes_written: u64,
    /// Table bytes that flushes wrote. Pages are in [`PageTreeStats`], also for the fields below.
    pub flush_bytes_written: u64,
    /// Number of flushes. One flush writes out the memtables of all families of one
    /// moment, in a passive store those of some families.
    pub flushes: u64,
    /// Bytes of prepared tables and blob files that were added ([`super::Db::ingest`]).
    pub ingested_bytes: u64,
    /// Number of successful calls of [`super::Db::ingest`].
    pub ingestions: u64,
    /// Table bytes that compactions read.
    pub compaction_bytes_read: u64,
    /// Table bytes that compactions wrote.
    pub compaction_bytes_written: u64,
    /// Number of commit groups.
    pub commit_groups: u64,
    /// Number of batches in the commit groups.
    pub commits: u64,
    /// Number of batches that were refused with `Conflict` ([`super::Db::write_if`]).
    pub conflicts: u64,
    /// Number of log syncs.
    pub log_syncs: u64,
    /// Number of times that the store was idle and gave back memtables and logs.
    pub idle_releases: u64,
    /// Microseconds that writers were slowed or held, by cause.
    pub stall_us: Vec<(StallCause, u64)>,
    /// Numbers of times that writers were held back, by cause, with the causes of `stall_us` in its
    /// order.
    pub stalls: Vec<StallStats>,
    /// Every budget that bounds the store, with the part in use: the environment's budgets, then
    /// the store's own.
    pub budgets: Vec<BudgetUse>,
    /// Microseconds that background I/O of the whole environment waited for its limit: flushes,
    /// then all other I/O.
    pub io_wait_us: [u64; 2],
    /// Number of events that were lost because listeners were too slow.
    pub events_lost: u64,
    /// Number of listeners that panicked and are no longer called.
    pub listeners_lost: u64,
    /// Number of live snapshots.
    pub snapshots: u64,
    /// Number of sealed memtable sets that wait for their flush. A set has one memtable of each
    /// family.
    pub sealed_memtables: u64,
    /// Bytes of memtables.
    pub memtable_bytes: u64,
    /// Number of table files in the tree.
    pub table_files: u64,
    /// Number of obsolete files that could not be removed yet. The store retries their removal.
    pub unremoved_files: u64,
    /// Statistics of the store's blob files.
    pub blobs: BlobStats,
    /// Reads of values in blob files, by all stores of the environment since it was made.
    pub blob_reads: BlobReadStats,
    /// Compression of values in blob files, by all stores of the environment since it was made.
    pub blob_compression: BlobCompressionStats,
    /// Bytes of tables and of delta pages that compactions should move soon.
    pub compaction_debt: u64,
    /// Number of compactions running or queued.
    pub compactions: u64,
    /// The newest visible sequence number.
    pub last_seq: u64,
    /// Reason why the store takes no writes; `None` if it does.
    pub read_only: Option<ReadOnlyReason>,
}

/// Statistics of a store's blob files, all families together.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct BlobStats {
    /// Number of blob files.
    pub files: u64,
    /// Bytes of blob files on disk, indexes included.
    pub bytes: u64,
    /// Number of records that tables refer to.
    pub live_records: u64,
    /// Bytes of records that tables refer to, keys and headers included.
    pub live_bytes: u64,
    /// Live bytes that are probably overwritten or deleted by entries that no compaction has merged
    /// with them yet. An estimate.
    pub hidden_bytes: u64,
    /// `true` if no merge since the opening of the store has measured which share of those entries
    /// hides a value. `hidden_bytes` then counts all of them, as far as older tables overlap their
    /// keys and have values to hide.
    pub hidden_is_guessed: bool,
    /// Bytes above the bound. The bound is the larger of `max_space_amp` times the reachable bytes,
    /// and the reachable bytes plus `space_slack`. After bulk deletes, expiry or the end of a
    /// snapshot, garbage collection reduces this debt.
    pub space_debt: u64,
    /// Value of [`crate::Options::space_slack`] in bytes.
    pub space_slack: u64,
    /// Share by which the bound slows writers, from 0 (not at all) to 1.
    pub pressure: f64,
    /// Number of retired file numbers that tables still hold.
    pub names: u64,
    /// Number of retired file numbers made since the store was opened.
    pub names_made: u64,
    /// Number of retired file numbers forgotten since the store was opened, because no table held
    /// them.
    pub names_forgotten: u64,
    /// Number of garbage collections that succeeded.
    pub collections: u64,
    /// Number of garbage collections running or queued.
    pub collecting: u64,
    /// Bytes that garbage collections read.
    pub collected_bytes_read: u64,
    /// Bytes that garbage collections wrote.
    pub collected_bytes_written: u64,
    /// Bytes of values that compactions relocated, for scans or because a caller asked for it.
    pub relocated_bytes: u64,
    /// Seconds covered by the counters `recent_*`, which show the present cost of the bound. About
    /// a minute; less after an opening, more if blob files did not change for longer.
    pub recent_seconds: f64,
    /// Bytes that logs, flushes, compactions and garbage collections wrote during `recent_seconds`.
    pub recent_bytes_written: u64,
    /// Bytes of blob files that flushes and compactions added during `recent_seconds`.
    pub recent_bytes_added: u64,
    /// Bytes that garbage collections wrote during `recent_seconds`.
    pub recent_collection_bytes_written: u64,
    /// Bytes that garbage collections read during `recent_seconds`.
    pub recent_collection_bytes_read: u64,
    /// Value of [`crate::Options::max_space_amp`].
    pub max_space_amp: f64,
    /// Blob files by their share of garbage: below a tenth, below two tenths, and so on.
    pub by_garbage: [BlobShare; 10],
    /// Creation time of the oldest file whose creation time is known, in ms since 1970.
    pub oldest_made_ms: Option<u64>,
    /// Error of the last garbage collection that failed and is due. The store retries it, and other
    /// work goes on.
    pub error: Option<String>,
}

/// Results of the compression of values, for the values that were compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobCompressionStats {
    /// Bytes of the values before compression.
    pub before: u64,
    /// Bytes of the values after compression, as stored.
    pub after: u64,
}

impl BlobCompressionStats {
    pub(super) fn of(env: &Env) -> BlobCompressionStats {
        let counts = env.metrics().group::<CompressionCounters>();
        BlobCompressionStats {
            before: counts.before.get(),
            after: counts.after.get(),
        }
    }

    /// Returns the uncompressed bytes for each stored byte; `None` if no value was compressed.
    pub fn ratio(&self) -> Option<f64> {
        (self.after > 0).then(|| self.before as f64 / self.after as f64)
    }
}

/// Counters of reads of values in blob files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobReadStats {
    /// Number of values found in the cache.
    pub hits: u64,
    /// Number of values read from the device.
    pub reads: u64,
    /// Bytes read from the device for those values.
    pub bytes: u64,
    /// Number of record headers read from the device for the lengths of values.
    pub heads: u64,
    /// Number of values that cursors read ahead.
    pub ahead: u64,
    /// Number of values read ahead that no cursor reached.
    pub ahead_unused: u64,
}

impl BlobReadStats {
    pub(super) fn of(env: &Env) -> BlobReadStats {
        let counts = env.metrics().group::<ReadCounters>();
        BlobReadStats {
            hits: counts.hits.get(),
            reads: counts.reads.get(),
            bytes: counts.bytes.get(),
            heads: counts.heads.get(),
            ahead: counts.ahead.get(),
            ahead_unused: counts.ahead_unused.get(),
        }
    }
}

/// A share of the files in [`BlobStats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobShare {
    /// Number of files.
    pub files: u64,
    /// Bytes of these files on disk.
    pub bytes: u64,
    /// Bytes of these files that no table refers to.
    pub garbage_bytes: u64,
}

impl BlobStats {
    /// Adds a file of `bytes` bytes on disk.
    pub(crate) fn add_file(&mut self, bytes: u64, live: FamilyShare, made_ms: Option<u64>) {
        self.files += 1;
        self.bytes += bytes;
        self.live_bytes += live.bytes;
        self.live_records += live.records;
        let garbage = bytes.saturating_sub(live.bytes);
        let tenth = (u128::from(garbage) * 10 / u128::from(bytes.max(1))) as usize;
        let share = &mut self.by_garbage[tenth.min(9)];
        share.files += 1;
        share.bytes += bytes;
        share.garbage_bytes += garbage;
        self.oldest_made_ms = match (self.oldest_made_ms, made_ms) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Returns the live bytes without those that are probably overwritten already. The bound is a
    /// multiple of this figure.
    pub fn reachable_bytes(&self) -> u64 {
        self.live_bytes.saturating_sub(self.hidden_bytes)
    }

    /// Returns the bytes by which files may grow until they reach the bound; negative if they
    /// exceed it.
    pub fn headroom_bytes(&self) -> i64 {
        let reachable = self.reachable_bytes() as f64;
        let most = reachable + room_of(self.max_space_amp, self.space_slack, reachable);
        most.min(i64::MAX as f64) as i64 - i64::try_from(self.bytes).unwrap_or(i64::MAX)
    }

    /// Returns the bytes on disk that no table refers to.
    pub fn garbage_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.live_bytes)
    }

    /// Returns the share of recently written bytes that garbage collections wrote, from 0 to 1; 0
    /// if no bytes were written.
    pub fn collections_share(&self) -> f64 {
        self.recent_collection_bytes_written as f64 / self.recent_bytes_written.max(1) as f64
    }

    /// Returns how often a value was recently written to blob files, on average; 1 without garbage
    /// collections.
    pub fn collections_write_amp(&self) -> f64 {
        match self.recent_bytes_added {
            0 => 1.0,
            added => 1.0 + self.recent_collection_bytes_written as f64 / added as f64,
        }
    }

    /// Returns the bytes on disk for each reachable byte, which [`BlobStats::max_space_amp`]
    /// bounds; 1 without blob files.
    pub fn space_amp(&self) -> f64 {
        match self.bytes {
            0 => 1.0,
            bytes => bytes as f64 / self.reachable_bytes().max(1) as f64,
        }
    }
}

impl Stats {
    /// Returns the bytes written for each byte that users wrote, by cause. `None` if users wrote no
    /// bytes.
    pub fn write_amp_by_cause(&self) -> Option<Vec<(WriteCause, f64)>> {
        if self.user_bytes_written == 0 {
            return None;
        }
        let of = |bytes: u64| bytes as f64 / self.user_bytes_written as f64;
        let pages = |bytes: fn(&PageTreeStats) -> u64| self.pages().map(bytes).sum::<u64>();
        let flushed = self.flush_bytes_written + pages(|p| p.flush_bytes_written);
        let compacted = self.compaction_bytes_written + pages(|p| p.compaction_bytes_written);
        let collected = self.blobs.collected_bytes_written + pages(|p| p.collection_bytes_written);
        let mut causes = vec![
            (WriteCause::Log, of(self.wal_bytes_written)),
            (WriteCause::Flush, of(flushed)),
            (WriteCause::Ingest, of(self.ingested_bytes)),
            (WriteCause::Compaction, of(compacted)),
            (WriteCause::Gc, of(collected)),
        ];
        if self.pages().next().is_some() {
            let bytes = pages(|p| p.system_log_bytes_written);
            causes.push((WriteCause::SystemLog, of(bytes)));
        }
        Some(causes)
    }

    /// Returns the statistics of the pages of each family that is kept in pages.
    pub fn pages(&self) -> impl Iterator<Item = &PageTreeStats> {
        self.families.iter().filter_map(|f| f.pages.as_ref())
    }

    /// Returns the bytes written for each byte that users wrote, for all causes. `None` if users
    /// wrote no bytes.
    pub fn write_amp(&self) -> Option<f64> {
        let causes = self.write_amp_by_cause()?;
        Some(causes.iter().map(|(_, amp)| amp).sum())
    }
}

/// Number and duration of stalls of writers for one cause, since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StallStats {
    /// Cause of the stalls.
    pub cause: StallCause,
    /// Number of periods in which consecutive commit groups were held back.
    pub count: u64,
    /// Microseconds that writers waited.
    pub us: u64,
}

impl StallStats {
    /// Returns the statistics of `count` stalls for one cause, which took `us` microseconds
    /// together.
    pub fn new(cause: StallCause, count: u64, us: u64) -> StallStats {
        StallStats { cause, count, us }
    }
}

/// Sizes that [`super::Db::approximate_sizes`] returns for one range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeSize {
    /// Approximate bytes in tables.
    pub table_bytes: u64,
    /// Bytes of keys and values in memtables.
    pub memtable_bytes: u64,
    /// Number of entries in memtables, older versions and tombstones included.
    pub memtable_entries: u64,
}

/// Statistics of one family in [`Stats`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FamilyStats {
    /// Name of the family.
    pub name: String,
    /// Levels of the family, from level 0 on. They are empty for a family in pages.
    pub levels: Vec<LevelStats>,
    /// The pages of the family; `None` for a family in levels.
    pub pages: Option<PageTreeStats>,
    /// The debt of compactions of pages, a ratio: bytes that compactions are behind for each byte
    /// that they may be. Writers are slowed above 1. It is 0 for a family in levels.
    pub page_debt: f64,
    /// The last transaction that is persisted in the family, in a passive store.
    pub persisted: Option<u64>,
}

/// Statistics of one level in [`FamilyStats`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LevelStats {
    /// Number of tables.
    pub tables: u64,
    /// Bytes of tables on disk.
    pub bytes: u64,
    /// Target bytes of the level; 0 for level 0 and for unused levels.
    pub target_bytes: u64,
    /// Number of entries, tombstones included.
    pub entries: u64,
    /// Number of tombstones.
    pub deletes: u64,
    /// Number of range tombstones, which `entries` does not count.
    pub range_deletes: u64,
    /// Urgency of a compaction out of the level; a compaction starts at 1. 0 for the last level.
    pub score: f64,
    /// Number of tables that running compactions merge.
    pub compacting: u64,
    /// Table bytes that entered from above since the store was opened, by a flush or a merge. Moved
    /// tables do not count.
    pub bytes_entered: u64,
    /// Table bytes that merges into the level read, its own tables included.
    pub bytes_read: u64,
    /// Table bytes that flushes and merges into the level wrote.
    pub bytes_written: u64,
    /// Bytes of tables that moved in unchanged.
    pub bytes_moved: u64,
    /// Number of merges into the level.
    pub compactions: u64,
}

impl LevelStats {
    /// Returns the bytes written for each byte that entered from above; `None` if no bytes entered.
    pub fn write_amp(&self) -> Option<f64> {
        (self.bytes_entered > 0).then(|| self.bytes_written as f64 / self.bytes_entered as f64)
    }
}
