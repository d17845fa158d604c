//! Counters of reads from blob files and of value compression, for a whole environment, as its
//! cache is.

use basalt_env::{Counter, Env};

/// Counters of reads. A clone is cheap.
#[derive(Clone)]
pub struct ReadCounts {
    /// Values found in the cache.
    pub hits: Counter,
    /// Values read from the device.
    pub reads: Counter,
    /// Bytes of the values read from the device, header and key included.
    pub bytes: Counter,
    /// Headers of records read from the device for the lengths of their values.
    pub heads: Counter,
    /// Values that cursors read before they were asked for.
    pub ahead: Counter,
    /// Values that cursors read ahead and did not reach.
    pub ahead_unused: Counter,
}

/// Counters of value compression. A clone is cheap.
#[derive(Clone)]
pub struct CompressionCounts {
    /// Bytes of values before they were compressed.
    pub before: Counter,
    /// Bytes of the same values afterwards.
    pub after: Counter,
}

impl CompressionCounts {
    /// Returns the counters of an environment.
    pub fn of(env: &Env) -> CompressionCounts {
        let c = |name, help| env.metrics().counter(name, &[], help);
        CompressionCounts {
            before: c(
                "blob_value_bytes_before_compression_total",
                "Bytes of separated values before they were compressed, of those that were",
            ),
            after: c(
                "blob_value_bytes_after_compression_total",
                "Bytes that the same values take compressed",
            ),
        }
    }

    /// Counts a value that was compressed from `before` to `after` bytes.
    pub fn note(&self, before: usize, after: usize) {
        self.before.add(before as u64);
        self.after.add(after as u64);
    }
}

impl ReadCounts {
    /// Returns the counters of an environment.
    pub fn of(env: &Env) -> ReadCounts {
        let c = |name, help| env.metrics().counter(name, &[], help);
        ReadCounts {
            hits: c(
                "blob_value_hits_total",
                "Values of blob files that were in the cache",
            ),
            reads: c(
                "blob_value_reads_total",
                "Values of blob files that were read from the device",
            ),
            bytes: c(
                "blob_value_bytes_read_total",
                "Bytes of blob files read from the device for values that were asked for",
            ),
            heads: c(
                "blob_head_reads_total",
                "Headers of records of blob files read from the device for the lengths of values",
            ),
            ahead: c(
                "blob_read_ahead_values_total",
                "Values of blob files that cursors read ahead",
            ),
            ahead_unused: c(
                "blob_read_ahead_unused_total",
                "Values of blob files that cursors read ahead in vain",
            ),
        }
    }
}
