//! Unit tests of `scan_history`.

use super::*;

#[test]
fn the_shortest_of_the_last_eight_scans_counts() {
    let scan_history = ScanHistory::default();
    for n in 0..8 {
        assert_eq!(scan_history.min_values(), 0, "after {n} scans");
        scan_history.record(if n == 3 { 7 } else { 10_000 });
        scan_history.record(0);
    }
    assert_eq!(scan_history.min_values(), 7);
    (0..4).for_each(|_| scan_history.record(300));
    assert_eq!(scan_history.min_values(), 255, "the short one is long ago");
    scan_history.record(1);
    assert_eq!(scan_history.min_values(), 1);
}
