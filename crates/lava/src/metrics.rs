//! The metrics of a mounted filesystem.

use std::sync::atomic::Ordering::SeqCst;

use super::counters::CAUSES;
use super::mounted::MountedFs;
use basalt_fs::{FsMetric, FsMetricValue};

/// Returns all metrics of a mounted filesystem.
pub fn metrics(fs: &MountedFs) -> Vec<FsMetric> {
    let u = fs.usage();
    let counters = &fs.counters;
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
        gauge("lava_file_bytes", "Space of files.", u.file_bytes),
        gauge("lava_free_bytes", "Free space.", u.free_bytes),
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
            "Memory of the write buffers of files.",
            fs.buffers.bytes(),
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
            "Free space discarded on the device.",
            counters.discarded.load(SeqCst),
        ),
        counter(
            "lava_failed_discards",
            "Discards that the device refused.",
            counters.failed_discards.load(SeqCst),
        ),
    ]);
    for (cause, label) in CAUSES {
        all.push(FsMetric {
            label: Some(("cause", label)),
            ..counter(
                "lava_written_bytes",
                "Bytes written to the device, by cause.",
                counters.written(cause).0,
            )
        });
    }
    all.push(FsMetric {
        name: "lava_sync_us",
        label: None,
        help: "How long syncs of files and directories took, in microseconds.",
        value: FsMetricValue::Summary(counters.syncs.summary()),
    });
    all
}
