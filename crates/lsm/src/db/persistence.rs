//! What is persisted of a passive store: up to where each family, and the whole store, is persisted
//! (PASV 5.3).

use super::log_position::PassivePosition;
use crate::options::{Options, PassiveOptions};
use crate::version::catalog::Catalog;
use crate::version::{FlushFlag, Tsn};
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Mutex, named};
use basalt_fs::{Error, Result};
use std::collections::BTreeMap;

/// The error of a write without a transaction number to a passive store.
pub(crate) fn needs_tsn() -> Error {
    Error::invalid(
        "the store is passive: it has no log, so its owner must give each change with its TSN: use `Db::write_at` for a batch, `Db::ingest_at` for tables, `Db::flush` instead of `Db::sync`",
    )
}

/// The persistence point of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyPoint {
    /// Name of the family.
    pub family: String,
    /// The last transaction that is persisted in the family, and its sequence numbers.
    pub flag: FlushFlag,
}

/// Up to where a passive store is persisted. All points are durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PersistencePoints {
    /// The last transaction that is persisted in all families. The owner may remove this
    /// transaction and all before it from its log.
    pub global: Tsn,
    /// The last transaction that was applied, to memory or further.
    pub applied: Tsn,
    /// The point of each family, in the order of the families' creation.
    pub families: Vec<FamilyPoint>,
}

impl PersistencePoints {
    /// Returns the first transaction that a recovery would need.
    pub fn replay_from(&self) -> Tsn {
        self.global + 1
    }

    /// Checks that the owner's log may be trimmed so that it begins with transaction `first`.
    ///
    /// Errors: `InvalidArgument` if a recovery would need an earlier transaction; the message names
    /// the families that do.
    pub fn check_trim(&self, first: Tsn) -> Result<()> {
        if first <= self.replay_from() {
            return Ok(());
        }
        let behind = self.families.iter().filter(|f| f.flag.tsn + 1 < first);
        let names: Vec<String> = behind.take(8).map(|f| format!("{:?}", f.family)).collect();
        Err(Error::invalid(format!(
            "the log cannot be trimmed to begin with transaction {first}: a recovery needs it from transaction {} on, because these families are not persisted up to there: {}; call `Db::flush`, or trim less",
            self.replay_from(),
            names.join(", ")
        )))
    }
}

/// Figures of a passive store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassiveStats {
    /// The last transaction that was applied.
    pub applied: Tsn,
    /// The global persistence point.
    pub global: Tsn,
    /// Bytes of the owner's log after the global persistence point.
    pub pinned_log_bytes: u64,
    /// The bound of these bytes, from which families are flushed early.
    pub max_pinned_log_bytes: u64,
    /// Times that families were flushed early because they held the persistence point back.
    pub early_flushes: u64,
    /// Bytes of memtables that were flushed early.
    pub early_flush_bytes: u64,
}

/// Default bound of the owner's log after the global persistence point, in write buffers.
const DEFAULT_PINNED_BUFFERS: u64 = 8;

/// Returns the bound of the owner's log after the persistence point, in bytes, for an owner that
/// replays `rate` bytes a second.
pub(crate) fn pinned_limit(passive: &PassiveOptions, options: &Options, rate: u64) -> u64 {
    let default = options
        .write_buffer_bytes
        .saturating_mul(DEFAULT_PINNED_BUFFERS);
    let bytes = passive.max_pinned_log_bytes.unwrap_or(default);
    let by_time = passive
        .max_replay_time
        .map(|time| (time.as_secs_f64() * rate as f64) as u64);
    bytes.min(by_time.unwrap_or(u64::MAX)).max(1)
}

/// What a passive store knows of its persistence beside the flags in its catalog.
pub(crate) struct Persistence {
    /// The last transaction that was applied.
    applied: AtomicU64,
    /// End of the owner's log, as [`super::log_position::LogPoint`] counts it.
    log_end: AtomicU64,
    /// Bytes of the owner's log up to the global persistence point, counted as
    /// [`super::log_position::LogPoint::log_end`].
    persisted_to: AtomicU64,
    /// The bound of the log after the point, in bytes.
    bound: AtomicU64,
    early_flushes: AtomicU64,
    early_flush_bytes: AtomicU64,
    /// For each family, bytes of the owner's log up to its persistence point, counted as
    /// [`super::log_position::LogPoint::log_end`]. A family without an entry is persisted beyond
    /// the replay.
    log_ends: Mutex<BTreeMap<u32, u64>>,
    /// The global persistence point that was last reported.
    reported: AtomicU64,
}

impl Persistence {
    /// Returns the state of a store that is being opened.
    pub fn of(position: &PassivePosition, options: &Options) -> Persistence {
        let bound = options.log.passive().map_or(u64::MAX, |passive| {
            pinned_limit(passive, options, passive.replay_bytes_per_second)
        });
        Persistence {
            applied: AtomicU64::new(position.last().tsn),
            log_end: AtomicU64::new(0),
            persisted_to: AtomicU64::new(0),
            bound: AtomicU64::new(bound),
            early_flushes: AtomicU64::new(0),
            early_flush_bytes: AtomicU64::new(0),
            reported: AtomicU64::new(position.last().tsn),
            log_ends: named(
                "Persistence::log_ends",
                Mutex::new(position.least_persisted().map(|id| (id, 0)).collect()),
            ),
        }
    }

    /// Returns the last transaction that was applied.
    pub fn applied(&self) -> Tsn {
        self.applied.load(SeqCst)
    }

    /// Returns the figures of the store, whose global persistence point is `global`.
    pub fn stats(&self, global: Tsn) -> PassiveStats {
        PassiveStats {
            applied: self.applied().max(global),
            global,
            pinned_log_bytes: self.pinned(),
            max_pinned_log_bytes: self.bound(),
            early_flushes: self.early_flushes.load(SeqCst),
            early_flush_bytes: self.early_flush_bytes.load(SeqCst),
        }
    }

    /// Returns the bound of the owner's log after the persistence point, in bytes.
    pub fn bound(&self) -> u64 {
        self.bound.load(SeqCst)
    }

    /// Sets the bound of the owner's log after the persistence point.
    pub fn set_bound(&self, bytes: u64) {
        self.bound.store(bytes, SeqCst);
    }

    /// Returns the bytes of the owner's log after the persistence point.
    pub fn pinned(&self) -> u64 {
        let end = self.log_end.load(SeqCst);
        end.saturating_sub(self.persisted_to.load(SeqCst))
    }

    /// Notes the last transaction that was applied, and the end of the owner's log.
    pub fn note_applied(&self, tsn: Tsn, log_end: u64) {
        self.log_end.store(log_end, SeqCst);
        self.applied.store(tsn, SeqCst);
    }

    /// Notes that the global persistence point is to be reported. Returns false if it has not
    /// risen.
    pub fn begin_report(&self, global: Tsn) -> bool {
        self.reported.fetch_max(global, SeqCst) < global
    }

    /// Notes that families are sealed early, with `bytes` bytes of memory.
    pub fn note_early_flush(&self, bytes: u64) {
        self.early_flushes.fetch_add(1, SeqCst);
        self.early_flush_bytes.fetch_add(bytes, SeqCst);
    }

    /// Notes that families are persisted up to these ends of the owner's log. Families that do not
    /// exist in `catalog` are forgotten.
    pub fn note_persisted(&self, ends: impl Iterator<Item = (u32, u64)>, catalog: &Catalog) {
        let mut points = self.log_ends.lock();
        for (id, end) in ends {
            let known = points.entry(id).or_insert(end);
            *known = end.max(*known);
        }
        points.retain(|id, _| catalog.families.contains_key(id));
        let least = points.values().min().copied();
        drop(points);
        if let Some(least) = least {
            self.persisted_to.fetch_max(least, SeqCst);
        }
    }
}
