//! [`ScanHistory`]: how far the last scans of a family went. Programs scan alike: what each of the last eight took, the next one most likely
//! takes, too, and may read at once.

use basalt_env::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

/// Scans of a family that may have reads in flight while they do something else: each has a ring, which an idle cursor keeps.
const FLIGHTS: usize = 8;

/// Values that the last eight scans came to, a byte each, the latest in the lowest; longer ones count as 255.
#[derive(Debug, Default)]
pub(crate) struct ScanHistory {
    lengths: AtomicU64,
    /// Scans that have reads in flight while they do something else.
    flights: AtomicUsize,
}

impl ScanHistory {
    /// Each of the last eight scans came to at least so many values; 0 before there were eight.
    pub fn least(&self) -> u32 {
        let lengths = self.lengths.load(Relaxed).to_le_bytes();
        u32::from(lengths.into_iter().min().expect("eight of them"))
    }

    /// A scan has ended that came to so many values. One that came to none teaches nothing.
    pub fn scanned(&self, values: u32) {
        if values == 0 {
            return;
        }
        let length = u64::from(values.min(u32::from(u8::MAX)));
        // One that ends at the same moment may be forgotten for it: they are alike.
        let before = self.lengths.load(Relaxed);
        let now = before << 8 | length;
        if now != before {
            self.lengths.store(now, Relaxed);
        }
    }
}

/// FlightPermit to have reads in flight.
pub(crate) struct FlightPermit(Arc<ScanHistory>);

impl FlightPermit {
    /// One of a few.
    pub fn of(scan_history: &Arc<ScanHistory>) -> Option<FlightPermit> {
        let leave = FlightPermit(scan_history.clone());
        (scan_history.flights.fetch_add(1, Relaxed) < FLIGHTS).then_some(leave)
    }
}

impl Drop for FlightPermit {
    fn drop(&mut self) {
        self.0.flights.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_of_the_last_eight_counts() {
        let scan_history = ScanHistory::default();
        for n in 0..8 {
            assert_eq!(scan_history.least(), 0, "after {n} scans");
            scan_history.scanned(if n == 3 { 7 } else { 10_000 });
            scan_history.scanned(0);
        }
        assert_eq!(scan_history.least(), 7);
        (0..4).for_each(|_| scan_history.scanned(300));
        assert_eq!(scan_history.least(), 255, "the short one is long ago");
        scan_history.scanned(1);
        assert_eq!(scan_history.least(), 1);
    }
}
