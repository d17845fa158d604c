//! What a mounted filesystem counts, and the figures that metrics show of it.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::LavaFs;
use basalt_env::Clock;
use basalt_fs::{FsMetric, FsMetricValue, Histogram};

/// Why bytes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Somebody appended them.
    Data,
    /// Transactions and what frames them.
    Journal,
    /// Checkpoints.
    Checkpoint,
    /// Superblocks.
    Superblock,
}

const CAUSES: [(Cause, &str); 4] = [
    (Cause::Data, "data"),
    (Cause::Journal, "journal"),
    (Cause::Checkpoint, "checkpoint"),
    (Cause::Superblock, "superblock"),
];

/// Since the image was mounted.
pub struct Counts {
    clock: Clock,
    written: [AtomicU64; 4],
    writes: [AtomicU64; 4],
    pub discarded: AtomicU64,
    pub failed_discards: AtomicU64,
    /// Of files and of directories, in microseconds.
    pub syncs: Histogram,
}

impl Counts {
    /// Zeros; durations are by this clock.
    pub fn new(clock: Clock) -> Counts {
        Counts {
            clock,
            written: Default::default(),
            writes: Default::default(),
            discarded: AtomicU64::new(0),
            failed_discards: AtomicU64::new(0),
            syncs: Histogram::default(),
        }
    }

    pub fn wrote(&self, cause: Cause, bytes: u64) {
        self.written[cause as usize].fetch_add(bytes, SeqCst);
        self.writes[cause as usize].fetch_add(1, SeqCst);
    }

    /// Bytes and calls.
    pub fn of(&self, cause: Cause) -> (u64, u64) {
        let i = cause as usize;
        (self.written[i].load(SeqCst), self.writes[i].load(SeqCst))
    }

    /// Runs a sync, and notes how long it took.
    pub fn timed<R>(&self, sync: impl FnOnce() -> R) -> R {
        let began = self.clock.now();
        let done = sync();
        let took = self.clock.now().saturating_sub(began);
        self.syncs.record(took.as_micros() as u64);
        done
    }
}

impl LavaFs {
    pub(super) fn all_metrics(&self) -> Vec<FsMetric> {
        let u = self.usage();
        let counts = &self.shared.counts;
        let mut all: Vec<FsMetric> = Vec::new();
        let gauge = |name, help, n| FsMetric {
            name,
            label: None,
            help,
            value: FsMetricValue::Gauge(n),
        };
        let counter = |name, help, n| FsMetric {
            name,
            label: None,
            help,
            value: FsMetricValue::Counter(n),
        };
        all.extend([
            gauge("lava_total_bytes", "Size of the image.", u.total_bytes),
            gauge("lava_file_bytes", "Space that files have.", u.file_bytes),
            gauge("lava_free_bytes", "Space that nobody has.", u.free_bytes),
            gauge(
                "lava_reserved_bytes",
                "Free space that files may not have: for the journal and its checkpoints.",
                u.reserved_bytes,
            ),
            gauge(
                "lava_free_pieces",
                "Pieces that the free space is in.",
                u.free_pieces,
            ),
            gauge(
                "lava_longest_free_bytes",
                "The longest piece of free space.",
                u.longest_free_bytes,
            ),
            gauge(
                "lava_short_free_bytes",
                "Free space in pieces below 1 MiB.",
                u.short_free_bytes,
            ),
            gauge(
                "lava_write_buffer_bytes",
                "Memory that gathers appends of files.",
                self.shared.writers.bytes(),
            ),
            gauge("lava_files", "Files of the image.", u.files),
            gauge("lava_extents", "Extents of all files.", u.extents),
            gauge(
                "lava_metadata_memory_bytes",
                "Memory of inodes, extents and names.",
                u.memory + u.name_bytes,
            ),
            gauge(
                "lava_journal_bytes",
                "The journal behind the last checkpoint.",
                u.journal_bytes,
            ),
            gauge(
                "lava_checkpoint_bytes",
                "The last checkpoint.",
                u.checkpoint_bytes,
            ),
            counter("lava_checkpoints", "Checkpoints written.", u.checkpoints),
            counter(
                "lava_failed_checkpoints",
                "Checkpoints that could not be written; the journal goes on.",
                u.failed_checkpoints,
            ),
            counter(
                "lava_discarded_bytes",
                "Free space that the device was told of.",
                counts.discarded.load(SeqCst),
            ),
            counter(
                "lava_failed_discards",
                "Discards that the device refused.",
                counts.failed_discards.load(SeqCst),
            ),
        ]);
        for (cause, label) in CAUSES {
            all.push(FsMetric {
                label: Some(("cause", label)),
                ..counter(
                    "lava_written_bytes",
                    "Bytes written to the device, by cause.",
                    counts.of(cause).0,
                )
            });
        }
        all.push(FsMetric {
            name: "lava_sync_us",
            label: None,
            help: "How long syncs of files and directories took, in microseconds.",
            value: FsMetricValue::Summary(counts.syncs.summary()),
        });
        all
    }
}
