//! Counters of reads from blob files and of value compression, for a whole environment, as its
//! cache is.

use basalt_env::{Counter, CounterGroup, CounterRow};

/// Counters of reads.
#[derive(Default)]
pub struct ReadCounters {
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

/// Counters of value compression.
#[derive(Default)]
pub struct CompressionCounters {
    /// Bytes of values before they were compressed.
    pub before: Counter,
    /// Bytes of the same values afterwards.
    pub after: Counter,
}

impl CompressionCounters {
    /// Counts a value that was compressed from `before` to `after` bytes.
    pub fn note(&self, before: usize, after: usize) {
        self.before.add(before as u64);
        self.after.add(after as u64);
    }
}

impl CounterGroup for CompressionCounters {
    const ROWS: &'static [CounterRow<Self>] = &[
        (
            "blob_value_bytes_before_compression_total",
            "Bytes of separated values before they were compressed, of those that were",
            |c| &c.before,
        ),
        (
            "blob_value_bytes_after_compression_total",
            "Bytes that the same values take compressed",
            |c| &c.after,
        ),
    ];
}

impl CounterGroup for ReadCounters {
    const ROWS: &'static [CounterRow<Self>] = &[
        (
            "blob_value_hits_total",
            "Values of blob files that were in the cache",
            |c| &c.hits,
        ),
        (
            "blob_value_reads_total",
            "Values of blob files that were read from the device",
            |c| &c.reads,
        ),
        (
            "blob_value_bytes_read_total",
            "Bytes of blob files read from the device for values that were asked for",
            |c| &c.bytes,
        ),
        (
            "blob_head_reads_total",
            "Headers of records of blob files read from the device for the lengths of values",
            |c| &c.heads,
        ),
        (
            "blob_read_ahead_values_total",
            "Values of blob files that cursors read ahead",
            |c| &c.ahead,
        ),
        (
            "blob_read_ahead_unused_total",
            "Values of blob files that cursors read ahead in vain",
            |c| &c.ahead_unused,
        ),
    ];
}
