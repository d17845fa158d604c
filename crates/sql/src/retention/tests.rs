//! Tests of the retention of the binlog.

use super::Retention;

#[test]
fn a_log_is_trimmed_once_enough_bytes_stay() {
    let mut retention = Retention::new(6_400, 0, 0, 0);
    let mut trimmed = 0;
    for tsn in 1..=1000 {
        let Some(up_to) = retention.append(tsn, 100) else {
            continue;
        };
        // The bytes after the trimmed transaction are at least the retained ones, and at most one
        // mark more.
        let kept = (tsn - up_to) * 100;
        assert!(
            (6_400..=6_600).contains(&kept),
            "{kept} bytes stay at {tsn}"
        );
        assert!(up_to > trimmed, "{up_to} after {trimmed}");
        trimmed = up_to;
        retention.trim(up_to);
    }
    assert!(trimmed > 900);
}

#[test]
fn a_trim_that_was_not_possible_is_asked_for_again() {
    let mut retention = Retention::new(640, 0, 0, 0);
    let asked: Vec<u64> = (1..=100)
        .filter_map(|tsn| retention.append(tsn, 100))
        .collect();
    assert!(asked.len() > 90, "{asked:?}");
    retention.trim(50);
    // 640 bytes stay: transactions 95 to 101, and a part of 94.
    assert_eq!(retention.append(101, 100), Some(94));
}

#[test]
fn bytes_of_an_opened_log_count() {
    let mut retention = Retention::new(1_000, 5_000, 70, 20);
    assert_eq!(retention.append(71, 500), None);
    assert_eq!(retention.append(72, 500), Some(70));
}
