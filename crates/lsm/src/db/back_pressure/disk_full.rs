//! Handling of a disk that becomes full. The last part of the disk is a reserve for work that frees
//! space, so that the store can always recover by itself.
//!
//! When less than the reserve is free, batches that add data are refused with `NoSpace`. Reads go
//! on, and so do batches that only delete, down to half of the reserve. Memtables are flushed, and
//! logs kept for their space are deleted. Compactions run where tombstones hide something, and
//! garbage collections take every file whose garbage is worth anything. When more is free again,
//! writes are accepted again without reopening the store.
//!
//! The filesystem reports the free space, so stores on one disk share the reserve, and other
//! processes that fill the disk can use it up. Then the log's own `NoSpace` halts the store, until
//! there is space.
//!
//! Recovery needs space of its own: it writes the contents of the logs into tables while the logs
//! still exist. Before a commit group is logged, the leader checks that all unflushed writes, this
//! group among them, would fit the free space once more. If they would not, the leader seals and
//! flushes the memtables, and refuses the group if that does not help. Decision 0027.

use super::{BackPressure, GroupSize};
use crate::compaction::FullDisk;
use crate::db::view::View;
use crate::listener::{BackgroundErrorReason, Event};
use crate::memtable::MemTable;
use crate::options::Options;
use crate::version::catalog::LiveLog;
use crate::version::log_name;
use basalt_env::Env;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use basalt_fs::{Error, ErrorKind, Reach, Result, Space};
use basalt_kv::batch::{Ops, WriteBatch};
use basalt_kv::key::Kind;
use basalt_records::LARGEST_UNIT;
use std::collections::BTreeMap;
use std::path::Path;

/// Divisor of the disk's size: the reserve is at most one sixteenth of the disk.
const PART_OF_DISK: u64 = 16;
/// The part of the reserve that a fresh manifest and small files take.
const SMALL_FILES: u64 = 64 << 10;
/// Divisor of the reserve: the free space is read again after writes of one sixteenth of the
/// reserve.
const FREE_SPACE_CHECKS: u64 = 16;
/// Divisor of a memtable's size: a table or blob file is at most one eighth larger than its
/// memtable, for indexes, filters and record heads.
const PART_FOR_INDEXES: u64 = 8;
/// Bytes that a table takes beside its entries, however few these are: properties, footer, and the
/// rest of a block.
const TABLE_BYTES: u64 = 16 << 10;
/// Divisor of the free space: bytes that logs may allocate beyond their appends between two checks.
/// A filesystem allocates up to a 64th of the free space ahead of an append, and a group may be the
/// first of a new log.
const PREALLOCATION_DIVISOR: u64 = 32;
/// Bytes that merges write at most before they compare the free space again with the need of a
/// recovery.
const MERGED_BYTES_PER_CHECK: u64 = 4 << 20;

impl Options {
    /// Returns the bytes of a disk of `total` bytes that are reserved for work that frees space.
    /// They are what memtables may hold and one memtable more, and at most a sixteenth of the disk.
    /// By default they are 320 MiB from a disk of 5 GiB on.
    pub fn disk_reserve(&self, total: u64) -> u64 {
        let memtables = self.max_sealed_memtables as u64 + 2;
        let reserve = self.write_buffer_bytes.saturating_mul(memtables);
        (reserve.saturating_add(SMALL_FILES)).min(total / PART_OF_DISK)
    }
}

/// The state of the free disk space: whether the disk is full.
#[derive(Default)]
pub(crate) struct DiskFull {
    refusing: AtomicBool,
    /// Bytes that may still be admitted before the free space is read again.
    unseen: AtomicU64,
    /// Bytes that were free when the free space was last read.
    free: AtomicU64,
    /// Bytes of the reserve at that time.
    reserve: AtomicU64,
    /// Bytes that were missing when a group was last refused, at most twice the reserve. 0 if
    /// writes have been accepted since then.
    wanted: AtomicU64,
}

/// The error of a group whose recovery the disk is too small for.
pub(crate) struct DiskFullRefusal {
    space: Space,
    reserve: u64,
    /// Bytes that must be free before the group is logged.
    wanted: u64,
}

impl DiskFull {
    /// Returns true while batches that add data are refused.
    pub fn is_refusing(&self) -> bool {
        self.refusing.load(SeqCst)
    }

    /// Returns the bytes that all garbage collections on a full disk may write. Half of the reserve
    /// is kept for flushes and merges, or three quarters of the free space if that is less.
    pub fn spare(&self) -> u64 {
        let free = self.free_bytes();
        let beyond_half = free.saturating_sub(self.reserve.load(SeqCst) / 2);
        beyond_half.max(free / 4)
    }

    /// Returns the bytes that background work may use without making the disk count as full.
    pub fn bytes_beyond_reserve(&self) -> u64 {
        let taken_again = resume_free_bytes(self.reserve.load(SeqCst));
        self.free_bytes().saturating_sub(taken_again)
    }

    /// Returns the bytes that were free when the free space was last read.
    pub fn free_bytes(&self) -> u64 {
        self.free.load(SeqCst)
    }
}

/// Writes that are in logs and in no table.
#[derive(Debug, Clone, Copy, Default)]
struct Unflushed {
    /// Bytes of the memtables of these writes, or of the logs that hold them.
    bytes: u64,
    /// The largest number of tables that they are written into.
    tables: u64,
}

impl Unflushed {
    /// Returns the bytes of free space that a recovery needs at most to write the unflushed writes
    /// into tables and to begin a manifest.
    fn recovery_bytes(&self, reserve: u64) -> u64 {
        let tables = self.bytes + self.bytes / PART_FOR_INDEXES;
        tables
            + self.tables * TABLE_BYTES.min(reserve / FREE_SPACE_CHECKS)
            + SMALL_FILES.min(reserve / 4)
    }
}

/// Returns the bytes that must be free before writes are accepted again. They are a little more
/// than the amount that was too little, or the state would change back and forth.
fn resume_free_bytes(reserve: u64) -> u64 {
    reserve + reserve / 4
}

/// Returns the bytes that the commit leader logs at most before it compares the free space again
/// with the need of a recovery.
fn unchecked_log_bytes(reserve: u64) -> u64 {
    (reserve / FREE_SPACE_CHECKS).max(4096)
}

/// Returns true if the disk of a store that is not open yet has less free than its reserve, or than
/// the recovery of its logs may need.
pub fn is_low(env: &Env, dir: &Path, options: &Options, logs: &BTreeMap<u64, LiveLog>) -> bool {
    let Ok(space) = env.fs().space(dir) else {
        return false;
    };
    let sizes = logs.keys().filter_map(|n| {
        let stat = env.fs().stat(&dir.join(log_name(*n))).ok()?;
        Some(stat.len.max(stat.on_disk))
    });
    let unflushed = Unflushed {
        bytes: sizes.sum(),
        tables: logs.len() as u64,
    };
    let reserve = options.disk_reserve(space.total);
    space.free < unflushed.recovery_bytes(reserve).max(reserve)
}

fn only_deletes(batch: &WriteBatch) -> bool {
    let mut ops = Ops::new(batch.payload());
    ops.all(|op| op.is_ok_and(|op| matches!(op.kind, Kind::Delete | Kind::RangeDelete)))
}

/// The free disk space as the commit leader knows it from its last check.
#[derive(Default)]
pub(crate) struct RecoveryCheck {
    /// Bytes that may be logged before the free space is compared again with the need of a
    /// recovery.
    recoverable: u64,
    /// Value of [`TableStore::releases`](crate::version::TableStore::releases) at the last sync of
    /// the directory by a commit leader. `None` if no commit leader has synced it since the store
    /// was opened.
    durable_releases: Option<u64>,
}

impl RecoveryCheck {
    /// Notes that a group goes into the log.
    pub fn logged(&mut self, group: &GroupSize) {
        self.recoverable = self.recoverable.saturating_sub(group.recovery_cost());
    }
}

impl GroupSize {
    /// Returns the bytes of the disk that the group takes at most in the log, including the padding
    /// of a sync.
    pub fn recovery_cost(&self) -> u64 {
        self.bytes.max(self.memory) + u64::from(LARGEST_UNIT)
    }
}

impl BackPressure {
    /// Checks whether a batch may be admitted, or the disk is too full for it.
    pub fn admit(&self, batch: &WriteBatch) -> Result<()> {
        self.admit_if(batch.bytes() as u64, &|| only_deletes(batch))
    }

    /// Returns the bytes that an open store keeps free for the recovery of its logs, given the
    /// reserve.
    pub fn reserved_for_recovery(&self, reserve: u64, view: &View) -> u64 {
        self.unflushed(view).recovery_bytes(reserve)
    }

    /// Returns the writes that are only in memtables and in their logs.
    fn unflushed(&self, view: &View) -> Unflushed {
        let mut all = Unflushed::default();
        for memtable_set in view.sealed.iter().chain([&view.active]) {
            let filled = memtable_set.mems.values().filter(|m| !m.is_empty()).count();
            if filled > 0 {
                all.bytes += memtable_set.memory();
                all.tables += filled as u64;
            }
        }
        all
    }

    /// Returns the bytes that may be allocated ahead of their use: at most half of what neither the
    /// reserve nor a recovery needs.
    pub fn preallocation_limit(&self, view: &View) -> u64 {
        let Some((space, reserve)) = self.free() else {
            return u64::MAX;
        };
        let kept = self.unflushed(view).recovery_bytes(reserve);
        let beyond = space
            .free
            .saturating_sub(kept.max(resume_free_bytes(reserve)));
        beyond / 2
    }

    /// Checks that the unflushed writes could be written into tables after a crash, including the
    /// group that is to be logged.
    ///
    /// The error says what is missing.
    pub fn check_recoverable(
        &self,
        checked: &mut RecoveryCheck,
        staged: u64,
        group: &GroupSize,
        view: &View,
    ) -> std::result::Result<(), DiskFullRefusal> {
        let cost = group.recovery_cost();
        if checked.recoverable >= cost {
            return Ok(());
        }
        let Some((mut space, reserve)) = self.free() else {
            return Ok(());
        };
        let mut unflushed = self.unflushed(view);
        unflushed.bytes += MemTable::growth(0, group.memory, group.entries);
        unflushed.tables += 1;
        let ahead = space.free / PREALLOCATION_DIVISOR;
        let wanted = unflushed.recovery_bytes(reserve) + staged + cost + ahead;
        let releases = self.ctx.tables.releases();
        if space.free < wanted + 2 * reserve && checked.durable_releases != Some(releases) {
            // After a crash a removed file may exist again, with its space, until its removal is
            // durable.
            let synced = self.ctx.env.fs().sync_metadata(&self.ctx.dir);
            if let (Ok(()), Some((now, _))) = (synced, self.free()) {
                space = now;
                checked.durable_releases = Some(releases);
            }
        }
        let Some(left) = space.free.checked_sub(wanted) else {
            return Err(DiskFullRefusal {
                space,
                reserve,
                wanted,
            });
        };
        // A recovery needs each logged byte once more, and others use the disk, too.
        checked.recoverable = cost + (left / 8).min(unchecked_log_bytes(reserve));
        Ok(())
    }

    /// Returns the bytes that a merge may write before it calls this again. `relocated` is the
    /// bytes that the merge has produced and not yet written.
    ///
    /// A recovery after a crash needs its space while a merge runs, and also after the merge, until
    /// the input tables are removed. A merge that would take that space ends, and its outputs are
    /// removed.
    ///
    /// Errors: `NoSpace`.
    pub fn merge_allowance(&self, relocated: u64, view: &View) -> Result<u64> {
        let Some((space, reserve)) = self.free() else {
            return Ok(MERGED_BYTES_PER_CHECK);
        };
        let kept = self.reserved_from_merges(reserve, view);
        match space.free.checked_sub(kept + relocated) {
            Some(left) if left > 0 => Ok((left / 8).clamp(4096, MERGED_BYTES_PER_CHECK)),
            _ => Err(self.no_space(space, kept)),
        }
    }

    /// Returns the bytes of free space that merges must leave. They are the need of a recovery of
    /// the logs, and the bytes that the commit leader may log before it compares the free space
    /// again.
    fn reserved_from_merges(&self, reserve: u64, view: &View) -> u64 {
        let mut unflushed = self.unflushed(view);
        unflushed.tables += 1;
        unflushed.recovery_bytes(reserve) + 2 * unchecked_log_bytes(reserve)
    }

    /// Returns the bytes that a merge may take on a full disk, or `None` if the disk is not full.
    pub fn room_for_merges(&self, view: &View) -> Option<FullDisk> {
        self.disk_full.is_refusing().then(|| {
            let kept = self.reserved_from_merges(self.disk_full.reserve.load(SeqCst), view);
            let error = self.health.compaction_error();
            FullDisk {
                room: self.disk_full.free_bytes().saturating_sub(kept),
                must_fit: error.is_some_and(|e| e.kind() == ErrorKind::NoSpace),
            }
        })
    }

    pub fn admit_if(&self, bytes: u64, only_deletes: &dyn Fn() -> bool) -> Result<()> {
        let seen = |left: u64| left.checked_sub(bytes);
        if !self.disk_full.is_refusing()
            && self
                .disk_full
                .unseen
                .fetch_update(SeqCst, SeqCst, seen)
                .is_ok()
        {
            return Ok(());
        }
        let Some((space, reserve)) = self.check_free_space() else {
            return Ok(());
        };
        if !self.disk_full.is_refusing() || (only_deletes() && space.free >= reserve / 2) {
            return Ok(());
        }
        Err(self.no_space(space, reserve))
    }

    /// Refuses a group for which the disk is too small, and starts background work that frees
    /// space. All writes that add data are refused until as much is free as the group lacked, but
    /// at the latest until twice the reserve is free.
    pub fn refuse(&self, shortage: &DiskFullRefusal) -> Error {
        let DiskFullRefusal {
            space,
            reserve,
            wanted,
        } = *shortage;
        let enough = wanted.min(2 * reserve);
        self.disk_full.wanted.store(enough, SeqCst);
        if space.free < enough {
            self.set_refusing(true, space, reserve);
        }
        self.no_space(space, wanted.max(reserve))
    }

    fn set_refusing(&self, refusing: bool, space: Space, reserve: u64) {
        if self.disk_full.refusing.swap(refusing, SeqCst) == refusing {
            return;
        }
        if refusing {
            self.ctx.notify(|| Event::BackgroundError {
                during: BackgroundErrorReason::Space,
                error: self.no_space(space, reserve),
            });
            self.background.retry_later();
        } else {
            self.disk_full.wanted.store(0, SeqCst);
        }
        self.background.schedule();
    }

    pub fn no_space(&self, space: Space, reserve: u64) -> Error {
        let what = format!(
            "{} bytes are free on the disk of {}, of which {reserve} are reserved for work that frees space: delete keys, or other files on this disk, and writes resume",
            space.free,
            self.ctx.dir.display()
        );
        Error::new(ErrorKind::NoSpace, what).with_reach(Reach::Store)
    }

    /// Returns the free bytes, and the bytes of the reserve. Returns `None` if the filesystem does
    /// not report its free space: such a filesystem has its own errors when it is full.
    pub fn free(&self) -> Option<(Space, u64)> {
        let space = self.ctx.env.fs().space(&self.ctx.dir).ok()?;
        let reserve = self.ctx.options.disk_reserve(space.total);
        self.disk_full.free.store(space.free, SeqCst);
        self.disk_full.reserve.store(reserve, SeqCst);
        Some((space, reserve))
    }

    /// Reads the free space before garbage collections are chosen on a full disk.
    pub fn update_free_space(&self) {
        if self.disk_full.is_refusing() {
            self.free();
        }
    }

    /// Reads the free space, and decides whether to accept writes.
    pub fn check_free_space(&self) -> Option<(Space, u64)> {
        let (space, reserve) = self.free()?;
        let full = &self.disk_full;
        full.unseen
            .store((reserve / FREE_SPACE_CHECKS).max(4096), SeqCst);
        let least = match full.is_refusing() {
            true => resume_free_bytes(reserve).max(full.wanted.load(SeqCst)),
            false => reserve,
        };
        let refusing = space.free < least;
        self.set_refusing(refusing, space, reserve);
        Some((space, reserve))
    }

    /// Returns the error of writes that are refused because the disk is full, or `None` if they are
    /// not.
    pub fn fullness(&self) -> Option<Error> {
        self.disk_full.is_refusing().then(|| {
            let reserve = |space: Space| self.ctx.options.disk_reserve(space.total);
            match self.ctx.env.fs().space(&self.ctx.dir) {
                Ok(space) => self.no_space(space, reserve(space)),
                Err(e) => e,
            }
        })
    }
}
