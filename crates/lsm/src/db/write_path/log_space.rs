//! The logs of a store that are not waiting for a flush: the spare log prepared ahead, and old logs
//! kept for their written space.
//!
//! Lock: `spare logs`, a leaf. No I/O happens under it.

use crate::db::context::StoreContext;
use crate::db::view::View;
use crate::options::Compression;
use crate::version::{BlobFile, log_name};
use basalt_env::Reservation;
use basalt_env::sync::{Mutex, MutexGuard};
use basalt_fs::ErrorKind;
use basalt_records::RecordWriter;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The size at which a log ends, in write buffers, whatever the memtables hold. Small synced writes
/// are padded to the write unit, so they fill a log faster than a memtable.
const LOG_PER_BUFFER: u64 = 2;
/// Number of old logs kept for reuse.
const RECYCLED_LOGS: usize = 2;

/// Returns the path of a log.
pub(crate) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(log_name(number))
}

/// A log that takes records.
pub(crate) struct ActiveLog {
    pub number: u64,
    pub file_id: u128,
    pub writer: RecordWriter,
    /// Bytes of the writer's staging buffer in the memory ledger.
    pub booked: Reservation,
    /// True if the header says that values in the log may be compressed.
    pub has_compressed: bool,
    /// True if records in the log were synced. Then writing space ahead of them is worth its cost.
    pub synced: bool,
}

impl ActiveLog {
    /// Gives the staging buffer's bytes back to the ledger.
    pub fn release_memory(&mut self) {
        self.writer.release_memory();
        self.booked.resize(0);
    }
}

pub(crate) struct SpareLogs {
    pub spare: Option<ActiveLog>,
    pub preparing: bool,
    /// True once a batch with compressed values has come.
    pub may_compress: bool,
    /// Numbers of logs whose space a job writes ahead, or will. Such a job may run late, when the
    /// log no longer exists. So the space of a log in this set is not reused: the job would write
    /// zeros over the records of another log.
    pub extending: BTreeSet<u64>,
    pub recycled: Vec<PathBuf>,
    /// Logs that are blob files now and have not given back their unused parts yet, because they
    /// were being copied.
    pub untrimmed: Vec<Arc<BlobFile>>,
    /// Logs that are being copied, with the number of copies. Their space is not reused.
    pub pinned: BTreeMap<u64, usize>,
    /// Bytes at which the last log ended: the size of the next one.
    pub last_end: u64,
    /// True if records in the last log were synced, or `None` if there was no log yet.
    pub synced: Option<bool>,
    /// True if most of the last log were large values.
    pub large: bool,
    /// Write unit of the next log in bytes, if it is above the filesystem's. Large values begin and
    /// end at blocks where that costs little: the kernel zeroes the rest of a block that is written
    /// for the first time, and writes the rest, too.
    pub unit: u32,
    /// True if the filesystem cannot release a part of a file.
    pub keeps_all: bool,
}

/// The spare and recycled logs of a store.
pub(crate) struct LogSpace {
    ctx: Arc<StoreContext>,
    space: Mutex<SpareLogs>,
}

impl LogSpace {
    /// Returns the log space of a store without spare logs.
    pub fn new(ctx: &Arc<StoreContext>) -> LogSpace {
        LogSpace {
            ctx: ctx.clone(),
            space: Mutex::new(SpareLogs {
                spare: None,
                preparing: false,
                may_compress: false,
                extending: BTreeSet::new(),
                recycled: Vec::new(),
                untrimmed: Vec::new(),
                pinned: BTreeMap::new(),
                last_end: 0,
                synced: None,
                large: false,
                unit: 0,
                keeps_all: false,
            }),
        }
    }

    /// Locks the space. No I/O happens under the lock, which `stats` takes, too.
    pub fn lock(&self) -> MutexGuard<'_, SpareLogs> {
        self.space.lock()
    }

    /// Returns whether a log can give back the parts that are no large values.
    pub fn can_trim(&self) -> bool {
        !self.space.lock().keeps_all
    }
}

/// Guard of logs that are not reused while they are copied. A log that is removed meanwhile can be
/// read through handles opened before.
pub(crate) struct PinnedLogs<'a> {
    space: &'a LogSpace,
    numbers: Vec<u64>,
}

impl LogSpace {
    pub fn pin(&self, numbers: Vec<u64>) -> PinnedLogs<'_> {
        let mut space = self.space.lock();
        for n in &numbers {
            *space.pinned.entry(*n).or_default() += 1;
        }
        drop(space);
        PinnedLogs {
            space: self,
            numbers,
        }
    }
}

impl Drop for PinnedLogs<'_> {
    fn drop(&mut self) {
        let mut space = self.space.space.lock();
        for n in &self.numbers {
            match space.pinned.get_mut(n) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    space.pinned.remove(n);
                }
            }
        }
    }
}

impl LogSpace {
    /// Returns the bytes at which a log ends, whatever the memtables hold.
    pub fn limit(&self) -> u64 {
        self.ctx.options.write_buffer_bytes * LOG_PER_BUFFER
    }

    /// Returns true if batches with compressed values have come or may come. Builds that do not
    /// know such values must refuse a log by its header. Otherwise they would take everything
    /// behind a record that they cannot verify for a torn tail.
    pub fn takes_compressed_values(&self, view: &View) -> bool {
        let mut families = view.families.values();
        families.any(|f| f.options.blob_compression != Compression::None)
            || self.space.lock().may_compress
    }

    /// Keeps the space of a removed log for a later one, or deletes the log. `end` is the offset at
    /// which its records ended. If it was never determined, it is `None`, and the space is not
    /// reused. The space of a log that one huge value has enlarged is not reused either.
    pub fn retire(&self, number: u64, end: Option<u64>) {
        let path = log_path(&self.ctx.dir, number);
        let mut space = self.space.lock();
        if end.is_some_and(|end| end <= 2 * self.limit())
            && space.recycled.len() < RECYCLED_LOGS
            && !space.extending.contains(&number)
            && !space.pinned.contains_key(&number)
            && !self.ctx.is_closing()
        {
            assert!(!space.recycled.contains(&path), "a log is retired once");
            space.recycled.push(path);
            return;
        }
        drop(space);
        self.ctx.tables.remove(&path);
    }

    /// Releases the parts of logs that became blob files that are not records of theirs. A log is
    /// trimmed once it is not copied and no job writes space ahead in it.
    pub fn trim(&self, more: impl IntoIterator<Item = Arc<BlobFile>>) {
        let due: Vec<Arc<BlobFile>> = {
            let mut space = self.space.lock();
            space.untrimmed.extend(more);
            let all = std::mem::take(&mut space.untrimmed);
            let busy = |b: &Arc<BlobFile>| {
                space.pinned.contains_key(&b.number) || space.extending.contains(&b.number)
            };
            let (kept, due) = all.into_iter().partition(busy);
            space.untrimmed = kept;
            due
        };
        for log in due {
            match log.trim() {
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    // From the next flush on, logs do not become blob files.
                    self.space.lock().keeps_all = true;
                }
                Ok(()) => self.ctx.tables.note_release(),
                // A failure leaves space allocated and does no harm. The next open tries again.
                Err(_) => {}
            }
        }
    }

    /// Returns true while a spare log is being prepared.
    pub fn is_preparing(&self) -> bool {
        self.space.lock().preparing
    }

    /// Returns the logs kept for their space, beside those that the manifest names.
    pub fn recycled(&self) -> Vec<PathBuf> {
        self.space.lock().recycled.clone()
    }

    /// Deletes the recycled logs and takes the spare, which the manifest still names. No disk I/O
    /// happens under the lock, which `stats` takes, too.
    pub fn take_unused(&self) -> Option<ActiveLog> {
        let (spare, recycled) = {
            let mut space = self.space.lock();
            (space.spare.take(), std::mem::take(&mut space.recycled))
        };
        for path in recycled {
            self.ctx.tables.remove(&path);
        }
        spare
    }
}
