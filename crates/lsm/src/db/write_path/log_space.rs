//! The logs of a store beside those that wait for their flush: the spare prepared ahead, and old ones
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

/// A log ends at so many times the write buffer's size, whatever the memtables hold: small synced writes are padded to the
/// write unit and fill a log faster than a memtable.
const LOG_PER_BUFFER: u64 = 2;
/// Old logs kept for reuse.
const RECYCLED_LOGS: usize = 2;

/// Path of a log.
pub(crate) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(log_name(number))
}

/// A log that takes records.
pub(crate) struct ActiveLog {
    pub number: u64,
    pub file_id: u128,
    pub writer: RecordWriter,
    /// The writer's staging buffer in the ledger.
    pub booked: Reservation,
    /// Its header says that values in it may be compressed.
    pub packed: bool,
    /// Records in it were synced: its space is worth writing ahead of them.
    pub synced: bool,
}

impl ActiveLog {
    /// Gives its staging buffer back.
    pub fn release_memory(&mut self) {
        self.writer.release_memory();
        self.booked.resize(0);
    }
}

pub(crate) struct SpareLogs {
    pub spare: Option<ActiveLog>,
    pub preparing: bool,
    /// A batch with compressed values came.
    pub packs: bool,
    /// Logs whose space a job is writing ahead, or will. Such a job may come late, when the log is long gone: the
    /// space of a log that stands here is not used again, or zeros would go over another log's records.
    pub extending: BTreeSet<u64>,
    pub recycled: Vec<PathBuf>,
    /// Logs that are blob files now and have not given back what they need not hold: somebody copied them then.
    pub untrimmed: Vec<Arc<BlobFile>>,
    /// Logs that somebody copies, and how many do: their space is not used again.
    pub pinned: BTreeMap<u64, usize>,
    /// Where the last log ended: the next one's size.
    pub last_end: u64,
    /// Records in the last log were synced; `None` when there was none yet.
    pub synced: Option<bool>,
    /// Most of the last log were large values.
    pub large: bool,
    /// The next log's write unit, if it is above the filesystem's. Large values begin and end at blocks, where that costs little: the kernel zeroes what is left of a block that is
    /// written for the first time, and writes that, too.
    pub unit: u32,
    /// The filesystem cannot take back a part of a file.
    pub keeps_all: bool,
}

/// Spare and recycled logs.
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
                packs: false,
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

    /// Whether a log can give back what is no large value.
    pub fn can_trim(&self) -> bool {
        !self.space.lock().keeps_all
    }
}

/// Logs kept from being used again while they are copied. One that is removed meanwhile can be read through handles opened before.
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

    /// Whether batches with compressed values come, or may. Builds that do not know these are to refuse a log by its header: what it holds behind a
    /// record that they cannot verify they would take for a torn tail.
    pub fn packs_values(&self, view: &View) -> bool {
        let mut families = view.families.values();
        families.any(|f| f.options.blob_compression != Compression::None) || self.space.lock().packs
    }

    /// Keeps a removed log's space for a later one, or deletes it. `end` is where its records ended; `None` when that was
    /// never settled, and its space is not used again. Nor is that of a log which one huge value has blown up.
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

    /// Has logs that are blob files give back what is no record of theirs, as soon as nobody copies them, and nobody writes
    /// space ahead in them.
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
                    // From the next flush on logs do not stay.
                    self.space.lock().keeps_all = true;
                }
                Ok(()) => self.ctx.tables.note_release(),
                // What stays allocated is space and no harm; the next open tries again.
                Err(_) => {}
            }
        }
    }

    /// True while a spare log is on its way.
    pub fn is_preparing(&self) -> bool {
        self.space.lock().preparing
    }

    /// Logs kept for their space, beside those that the manifest names.
    pub fn recycled(&self) -> Vec<PathBuf> {
        self.space.lock().recycled.clone()
    }

    /// Deletes the recycled logs and takes the spare, which the manifest still names. The disk is not waited for under the lock,
    /// which `stats` takes, too.
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
