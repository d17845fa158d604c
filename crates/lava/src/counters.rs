//! Counters of a mounted filesystem.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use basalt_env::Clock;
use basalt_fs::Histogram;

/// The reason why bytes are written to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCause {
    /// Appended bytes.
    Data,
    /// Transactions and the headers of journal extents.
    Journal,
    /// Checkpoints.
    Checkpoint,
    /// Superblocks.
    Superblock,
}

/// All causes, with the label that metrics show.
pub const CAUSES: [(WriteCause, &str); 4] = [
    (WriteCause::Data, "data"),
    (WriteCause::Journal, "journal"),
    (WriteCause::Checkpoint, "checkpoint"),
    (WriteCause::Superblock, "superblock"),
];

/// Counters since the image was mounted.
pub struct FsCounters {
    clock: Clock,
    /// Bytes written, by cause.
    written: [AtomicU64; 4],
    /// Write calls, by cause.
    writes: [AtomicU64; 4],
    /// Free space that was discarded on the device, in bytes.
    pub discarded: AtomicU64,
    /// Discards that the device refused.
    pub failed_discards: AtomicU64,
    /// Duration of syncs of files and directories, in microseconds.
    pub syncs: Histogram,
}

impl FsCounters {
    /// Returns counters at zero. Durations are measured by `clock`.
    pub fn new(clock: Clock) -> FsCounters {
        FsCounters {
            clock,
            written: Default::default(),
            writes: Default::default(),
            discarded: AtomicU64::new(0),
            failed_discards: AtomicU64::new(0),
            syncs: Histogram::default(),
        }
    }

    /// Counts one write of `bytes` bytes.
    pub fn add_write(&self, cause: WriteCause, bytes: u64) {
        self.written[cause as usize].fetch_add(bytes, SeqCst);
        self.writes[cause as usize].fetch_add(1, SeqCst);
    }

    /// Returns the bytes written and the number of writes for one cause.
    pub fn written(&self, cause: WriteCause) -> (u64, u64) {
        let i = cause as usize;
        (self.written[i].load(SeqCst), self.writes[i].load(SeqCst))
    }

    /// Runs a sync, and records its duration.
    pub fn time_sync<R>(&self, sync: impl FnOnce() -> R) -> R {
        let began = self.clock.now();
        let done = sync();
        let took = self.clock.now().saturating_sub(began);
        self.syncs.record(took.as_micros() as u64);
        done
    }
}
