//! [`ScanHistory`]: the number of values that each of the last eight scans of a family read.
//!
//! Scans of one program are alike. So the next scan most likely reads at least the smallest of
//! these numbers, and the engine reads that many values together.

use basalt_env::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

/// Most scans of a family that may have asynchronous reads pending. Each holds an I/O ring, which
/// an idle cursor keeps.
const MAX_ASYNC_SCANS: usize = 8;

/// The lengths of the last eight scans of a family, and the number of scans with asynchronous
/// reads.
#[derive(Debug, Default)]
pub(crate) struct ScanHistory {
    /// Values in blob files that each scan came to, one byte a scan, the latest in the lowest byte.
    /// Longer scans count as 255.
    lengths: AtomicU64,
    /// Scans with asynchronous reads.
    async_scans: AtomicUsize,
}

impl ScanHistory {
    /// Returns the number of values that each of the last eight scans came to at least; 0 before
    /// there were eight.
    pub fn min_values(&self) -> u32 {
        let lengths = self.lengths.load(Relaxed).to_le_bytes();
        u32::from(lengths.into_iter().min().expect("eight of them"))
    }

    /// Records a scan that came to this many values. A scan without values is not recorded.
    pub fn record(&self, values: u32) {
        if values == 0 {
            return;
        }
        let length = u64::from(values.min(u32::from(u8::MAX)));
        // Of two scans that end at the same time one may be lost. Scans are alike.
        let before = self.lengths.load(Relaxed);
        let now = before << 8 | length;
        if now != before {
            self.lengths.store(now, Relaxed);
        }
    }
}

/// The permit of one scan to have asynchronous reads, until it is dropped.
pub(crate) struct AsyncReadPermit(Arc<ScanHistory>);

impl AsyncReadPermit {
    /// Returns a permit; `None` if [`MAX_ASYNC_SCANS`] scans of the family have one.
    pub fn acquire(scan_history: &Arc<ScanHistory>) -> Option<AsyncReadPermit> {
        let permit = AsyncReadPermit(scan_history.clone());
        (scan_history.async_scans.fetch_add(1, Relaxed) < MAX_ASYNC_SCANS).then_some(permit)
    }
}

impl Drop for AsyncReadPermit {
    fn drop(&mut self) {
        self.0.async_scans.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
