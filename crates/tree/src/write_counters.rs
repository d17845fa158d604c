//! Counters of what an open tree has written and released.

use crate::usage::StreamKind;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counters of what was written since the tree was opened.
#[derive(Default)]
pub(crate) struct WriteCounters {
    /// Bytes of base pages and of delta pages.
    pub by_stream: [AtomicU64; 2],
    /// Bytes of pages, in the order of `PageWriteCause`.
    pub by_cause: [AtomicU64; 3],
    /// Bytes of system transactions and system checkpoints.
    pub system_log: AtomicU64,
    pub system_checkpoints: AtomicU64,
    /// Leaves that were merged for readers, and because they were cold.
    pub merged_leaves: [AtomicU64; 2],
    /// Extents whose ranges were derived again.
    pub derived_ranges: AtomicU64,
    /// Bytes on the device that releases of garbage pages have freed.
    pub released_bytes: AtomicU64,
    /// Releases of garbage pages that failed, one for each extent.
    pub failed_releases: AtomicU64,
}

impl WriteCounters {
    /// Returns the bytes that were written to a stream.
    pub fn by_stream(&self, kind: StreamKind) -> u64 {
        self.by_stream[kind as usize - 1].load(SeqCst)
    }

    /// Counts merges of leaves that readers have paid for, and of cold ones.
    pub fn count_merges(&self, for_readers: usize, cold: usize) {
        self.merged_leaves[0].fetch_add(for_readers as u64, SeqCst);
        self.merged_leaves[1].fetch_add(cold as u64, SeqCst);
    }
}
