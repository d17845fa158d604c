//! What the engine tells of itself: the tree's shape and counters.

use super::space_bound::room_of;
use basalt_blob::FamilyShare;
use basalt_blob::counts::{CompressionCounts, ReadCounts};
use basalt_env::{BudgetUse, Env};

/// [`Stats::read_only`] of a store that was opened with [`super::Db::open_read_only`].
pub const READING: &str = "opened for reading only";

/// The tree's shape and counters, for people and scripts. See [`super::Db::stats`]. Counters run since the store was opened.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Per family.
    pub families: Vec<FamilyStats>,
    /// Bytes of write-ahead log on disk, recycled space included.
    pub log_bytes: u64,
    /// Bytes of user keys and values written, and of those that came with prepared tables.
    pub user_bytes_written: u64,
    /// Log bytes written.
    pub wal_bytes_written: u64,
    /// Table bytes written by flushes.
    pub flush_bytes_written: u64,
    /// Bytes of tables and blob files that were prepared and added ([`super::Db::ingest`]).
    pub ingested_bytes: u64,
    /// How often.
    pub ingestions: u64,
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
    /// Times that writers were held back, by cause: the causes of `stall_us`, in its order.
    pub stalls: Vec<StallStats>,
    /// Every budget that bounds the store, with what is used of it: the environment's, then the store's own.
    pub budgets: Vec<BudgetUse>,
    /// Microseconds that background I/O of the whole environment waited for its limit: flushes, then everything else.
    pub io_wait_us: [u64; 2],
    /// Events that listeners were too slow for.
    pub events_lost: u64,
    /// Listeners that panicked and are not called any more.
    pub listeners_lost: u64,
    /// Live snapshots.
    pub snapshots: u64,
    /// Sealed memtables waiting for their flush.
    pub sealed_memtables: u64,
    /// Bytes of memtables.
    pub memtable_bytes: u64,
    /// Table files that the tree names.
    pub table_files: u64,
    /// Files that nobody needs any more and that could not be removed yet: it is tried again.
    pub unremoved_files: u64,
    /// Blob files.
    pub blobs: BlobStats,
    /// Reads of values in blob files, of all stores of the environment since it was made.
    pub blob_reads: BlobReadStats,
    /// Compression of values in blob files, of all stores of the environment since it was made.
    pub blob_compression: BlobCompressionStats,
    /// Bytes that compactions should move soon.
    pub compaction_debt: u64,
    /// Compactions running or queued.
    pub compactions: u64,
    /// The newest visible sequence number.
    pub last_seq: u64,
    /// The store takes no writes, and why.
    pub read_only: Option<String>,
}

/// Blob files of a store, all families together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BlobStats {
    /// Files.
    pub files: u64,
    /// Their bytes on disk, indexes included.
    pub bytes: u64,
    /// Records that tables refer to.
    pub live_records: u64,
    /// Their bytes, keys and headers included.
    pub live_bytes: u64,
    /// Of the live bytes those that are probably overwritten or deleted by entries that no compaction has merged with theirs yet. An estimate.
    pub hidden_bytes: u64,
    /// True when no merge since the store was opened has told how many of those entries do: `hidden_bytes` then takes all of them, as far
    /// as older tables reach into the same keys and have anything to hide.
    pub hidden_is_guessed: bool,
    /// Bytes above the bound that is `max_space_amp` times what can be reached, or `space_slack` more than that if this is more. Collections
    /// bring it down after bulk deletes, expiry or a snapshot's end.
    pub space_debt: u64,
    /// See [`crate::Options::space_slack`].
    pub space_slack: u64,
    /// How hard the bound slows writers, from 0 (not at all) to 1.
    pub pressure: f64,
    /// Numbers of collected files that tables still have.
    pub names: u64,
    /// Such numbers made since the store was opened.
    pub names_made: u64,
    /// Such numbers forgotten since then, because no table had them any more.
    pub names_forgotten: u64,
    /// Collections that ended well.
    pub collections: u64,
    /// Collections running or queued.
    pub collecting: u64,
    /// Bytes that they read.
    pub collected_bytes_read: u64,
    /// Bytes that they wrote.
    pub collected_bytes_written: u64,
    /// Bytes of values that compactions moved along for scans, or because somebody asked.
    pub gathered_bytes: u64,
    /// What the bound costs at this moment: so many seconds back everything was counted that follows. About a minute; less after an opening, more
    /// where blob files did not change for longer.
    pub recent_seconds: f64,
    /// Bytes written by logs, flushes, compactions and collections.
    pub recent_bytes_written: u64,
    /// Bytes of blob files that flushes and compactions added.
    pub recent_bytes_added: u64,
    /// Bytes that collections wrote.
    pub recent_collection_bytes_written: u64,
    /// Bytes that collections read.
    pub recent_collection_bytes_read: u64,
    /// [`crate::Options::max_space_amp`].
    pub max_space_amp: f64,
    /// The files by what part of each is garbage: below a tenth, below two tenths, and so on.
    pub by_garbage: [BlobShare; 10],
    /// When the oldest file was made, ms since 1970, of those of which it is known.
    pub oldest_made_ms: Option<u64>,
    /// Why files are not collected that should be. It is tried again, and hinders nobody else.
    pub error: Option<String>,
}

/// What compressing values came to, of those that were compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlobCompressionStats {
    /// Their bytes.
    pub before: u64,
    /// Bytes that are stored of them.
    pub after: u64,
}

impl BlobCompressionStats {
    pub(super) fn of(env: &Env) -> BlobCompressionStats {
        let counts = CompressionCounts::of(env);
        BlobCompressionStats {
            before: counts.before.get(),
            after: counts.after.get(),
        }
    }

    /// Bytes of values for each that is stored of them; `None` when none was compressed.
    pub fn ratio(&self) -> Option<f64> {
        (self.after > 0).then(|| self.before as f64 / self.after as f64)
    }
}

/// What reading values of blob files came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlobReadStats {
    /// Values that were in the cache.
    pub hits: u64,
    /// Values that were read from the device.
    pub reads: u64,
    /// Bytes read for them.
    pub bytes: u64,
    /// Headers of records that were read from the device for the lengths of values.
    pub heads: u64,
    /// Values that cursors read before they were asked for.
    pub ahead: u64,
    /// Those of them that nobody came to.
    pub ahead_unused: u64,
}

impl BlobReadStats {
    pub(super) fn of(env: &Env) -> BlobReadStats {
        let counts = ReadCounts::of(env);
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

/// Some of the files in [`BlobStats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlobShare {
    /// How many.
    pub files: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Those of them that nothing refers to.
    pub garbage_bytes: u64,
}

impl BlobStats {
    /// Adds a file of so many bytes.
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

    /// Live bytes but for those that are probably overwritten already: what the bound is a multiple of.
    pub fn reachable_bytes(&self) -> u64 {
        self.live_bytes.saturating_sub(self.hidden_bytes)
    }

    /// Bytes that files may grow by before they take more than the bound allows; negative beyond it.
    pub fn headroom_bytes(&self) -> i64 {
        let reachable = self.reachable_bytes() as f64;
        let most = reachable + room_of(self.max_space_amp, self.space_slack, reachable);
        most.min(i64::MAX as f64) as i64 - i64::try_from(self.bytes).unwrap_or(i64::MAX)
    }

    /// Bytes on disk that nothing refers to.
    pub fn garbage_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.live_bytes)
    }

    /// Of the bytes that the store wrote lately, the share that collections wrote; 0 when nothing was.
    pub fn collections_share(&self) -> f64 {
        self.recent_collection_bytes_written as f64 / self.recent_bytes_written.max(1) as f64
    }

    /// How often values lately went to blob files for each time that they came to them; 1 without collections.
    pub fn collections_write_amp(&self) -> f64 {
        match self.recent_bytes_added {
            0 => 1.0,
            added => 1.0 + self.recent_collection_bytes_written as f64 / added as f64,
        }
    }

    /// Bytes on disk for each reachable one, which is what [`BlobStats::max_space_amp`] bounds; 1 without blob files.
    pub fn space_amp(&self) -> f64 {
        match self.bytes {
            0 => 1.0,
            bytes => bytes as f64 / self.reachable_bytes().max(1) as f64,
        }
    }
}

impl Stats {
    /// Bytes written for each byte that users wrote, by cause: `log`, `flush`, `ingest`, `compaction`, `collection`. `None` when users wrote
    /// nothing.
    pub fn write_amp_by_cause(&self) -> Option<[(&'static str, f64); 5]> {
        let of = |bytes: u64| bytes as f64 / self.user_bytes_written as f64;
        (self.user_bytes_written > 0).then(|| {
            [
                ("log", of(self.wal_bytes_written)),
                ("flush", of(self.flush_bytes_written)),
                ("ingest", of(self.ingested_bytes)),
                ("compaction", of(self.compaction_bytes_written)),
                ("collection", of(self.blobs.collected_bytes_written)),
            ]
        })
    }

    /// Bytes written for each byte that users wrote, for all causes.
    pub fn write_amp(&self) -> Option<f64> {
        let causes = self.write_amp_by_cause()?;
        Some(causes.iter().map(|(_, amp)| amp).sum())
    }
}

/// How often and how long writers were held back for one cause, since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallStats {
    /// `memtables` that wait for their flush, tables in `level0`, `compaction_debt`, the `memory_budget`, or `space`: the bound on garbage in
    /// blob files.
    pub cause: &'static str,
    /// Periods in which one group of writes after the other was held back.
    pub count: u64,
    /// Microseconds that writers waited.
    pub us: u64,
}

/// The answer of [`super::Db::approximate_sizes`] for one range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RangeSize {
    /// Bytes in tables, about.
    pub table_bytes: u64,
    /// Bytes of keys and values in memtables.
    pub memtable_bytes: u64,
    /// Entries in memtables, older versions and tombstones included.
    pub memtable_entries: u64,
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
    /// Tombstones over ranges; they are not among the entries.
    pub range_deletes: u64,
    /// How much a compaction out of it is due; one starts at 1. 0 for the last level.
    pub score: f64,
    /// Tables that running compactions merge.
    pub compacting: u64,
    /// Table bytes that came in from above since the store was opened: flushed, or merged in. Moved tables do not count.
    pub bytes_entered: u64,
    /// Table bytes that merges into it read, its own tables included.
    pub bytes_read: u64,
    /// Table bytes that flushes and merges into it wrote.
    pub bytes_written: u64,
    /// Table bytes that moved in unchanged.
    pub bytes_moved: u64,
    /// Merges into it.
    pub compactions: u64,
}

impl LevelStats {
    /// Bytes written for each byte that came in from above; `None` when none did.
    pub fn write_amp(&self) -> Option<f64> {
        (self.bytes_entered > 0).then(|| self.bytes_written as f64 / self.bytes_entered as f64)
    }
}
