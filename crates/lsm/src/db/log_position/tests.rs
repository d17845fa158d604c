//! Unit tests of `log_position`.

use super::*;

fn position(flags: &[(u32, u64)]) -> PassivePosition {
    let flag = |tsn: u64| FlushFlag::of(tsn, 1000 + tsn, 1);
    let flags = flags.iter().map(|(id, tsn)| (*id, flag(*tsn)));
    PassivePosition::new(&flags.collect())
}

fn tsns(flags: &SealedFlags) -> Vec<(u32, u64)> {
    let points = flags.points.iter();
    points.map(|(id, point)| (*id, point.flag.tsn)).collect()
}

#[test]
fn a_seal_says_up_to_where_each_family_is_persisted() {
    let mut position = position(&[(0, 0), (1, 0), (2, 0)]);
    position.note_applied(1, 1, 10, [0].into_iter());
    position.note_applied(2, 2, 10, [1].into_iter());
    position.note_applied(3, 1, 10, [0].into_iter());
    // Family 1 keeps an item of transaction 2, and family 2 has none.
    let flags = position.seal(&BTreeSet::from([0]), 0..3);
    assert_eq!(tsns(&flags), [(0, 3), (1, 1), (2, 3)]);
    assert_eq!(flags.of(1).expect("a flag").last_seq, 1001);
    position.note_applied(4, 0, 10, std::iter::empty());
    let flags = position.seal(&BTreeSet::from([1]), 0..3);
    assert_eq!(tsns(&flags), [(0, 4), (1, 4), (2, 4)]);
    assert_eq!(flags.last, 4);
}

#[test]
fn families_that_hold_the_point_back_are_overdue() {
    let mut position = position(&[(0, 0), (1, 0), (2, 0)]);
    position.note_applied(1, 1, 10, [0].into_iter());
    for tsn in 2..=9 {
        let family = if tsn == 3 { 1 } else { 2 };
        position.note_applied(tsn, 1, 10, [family].into_iter());
    }
    assert_eq!(position.overdue(100), None, "90 bytes");
    position.note_applied(10, 1, 100, [2].into_iter());
    // The bound is 150 of 190 bytes: families from before byte 77 on go together.
    let overdue = position.overdue(150).expect("beyond the bound");
    assert_eq!(overdue, BTreeSet::from([0, 1, 2]));
    position.seal(&overdue, 0..3);
    assert_eq!(position.overdue(150), None);
    // Transactions without items need flags, and no family.
    position.note_applied(11, 0, 1000, std::iter::empty());
    assert_eq!(position.overdue(150), Some(BTreeSet::new()));
    position.note_applied(12, 0, u64::MAX, std::iter::empty());
    assert_eq!(position.log_end(), u64::MAX, "sums do not overflow");
    assert!(position.overdue(150).is_some());
}

#[test]
fn a_replay_catches_up_with_families_that_are_ahead() {
    let mut position = position(&[(0, 5), (1, 7), (2, 5)]);
    assert_eq!((position.last().tsn, position.next_seq()), (5, 1006));
    assert_eq!(position.least_persisted().collect::<Vec<_>>(), [0, 2]);
    assert!(position.has(1, 7) && !position.has(1, 8) && !position.has(0, 6));
    assert!(!position.lacks(1, 1007) && position.lacks(1, 1008) && position.lacks(0, 1));
    // Its flag is not set back.
    position.note_applied(6, 1, 10, [0].into_iter());
    assert!(position.take_reached().is_empty());
    let flags = position.seal(&BTreeSet::from([0]), 0..3);
    assert_eq!(tsns(&flags), [(0, 6), (2, 6)]);
    position.note_applied(7, 1, 10, [0].into_iter());
    assert_eq!(position.take_reached(), [1]);
    position.forget(0);
    let flags = position.seal(&BTreeSet::new(), 1..3);
    assert_eq!(tsns(&flags), [(1, 7), (2, 7)]);
}
