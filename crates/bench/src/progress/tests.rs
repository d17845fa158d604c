//! Tests of the module `progress`.

use super::*;

#[test]
fn the_progress_line_shows_the_bound_that_ends_first() {
    let s = Duration::from_secs;
    assert_eq!(
        line("fill", 250, 1000, s(5), None),
        "fill: 250 operations, 50/s, 25 %, 15 s left"
    );
    assert_eq!(
        line("read", 500, u64::MAX, s(5), Some(s(20))),
        "read: 500 operations, 100/s, 25 %, 15 s left"
    );
    assert_eq!(line("x", 0, u64::MAX, s(1), None), "x: 0 operations, 0/s");
    // Without a terminal, nothing is written and nothing fails.
    Progress::silent().update(1, 2, s(1), None);
}
