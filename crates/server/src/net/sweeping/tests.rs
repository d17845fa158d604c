//! Tests of the pauses between sweeps.

use super::*;

/// The pause after a failure doubles up to a minute. A sweep that ends without an error resets it.
#[test]
fn the_pause_after_failed_sweeps_grows() {
    let mut sweeper = Sweeper::default();
    let now = Duration::from_secs(100);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        sweeper.ended(false, true, now);
        pauses.push((sweeper.not_before - now).as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    sweeper.ended(false, false, now);
    assert_eq!(sweeper.not_before - now, RETRY_AFTER);
    sweeper.ended(false, true, now);
    assert_eq!(sweeper.not_before - now, RETRY_AFTER);
}
