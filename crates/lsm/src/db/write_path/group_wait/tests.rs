//! Unit tests of `group_wait`.

use super::*;

#[test]
fn a_single_writer_never_waits_for_a_group() {
    let mut c = GroupWait::default();
    for _ in 0..10 {
        assert_eq!(c.wait_for(1, 100, true), None);
        c.note_group(1, 0);
        c.note_sync(Duration::from_micros(800));
    }
}

#[test]
fn the_group_wait_is_at_most_half_a_sync() {
    let mut c = GroupWait::default();
    c.note_group(3, 1);
    for _ in 0..100 {
        c.note_sync(Duration::from_micros(800));
    }
    let (target_batches, max_wait) = c.wait_for(1, 100, true).unwrap();
    assert_eq!(target_batches, 4);
    assert!(
        max_wait > Duration::from_micros(390) && max_wait <= Duration::from_micros(400),
        "{max_wait:?}"
    );
    assert_eq!(c.wait_for(4, 100, true), None, "all are there");
    assert_eq!(c.wait_for(2, 2, true), None, "a group takes no more");
    c.note_sync(Duration::from_secs(10));
    assert_eq!(c.wait_for(1, 100, true).unwrap().1, MAX_WAIT);
}

#[test]
fn failed_group_waits_back_off_until_one_succeeds() {
    let mut c = GroupWait::default();
    let mut waits = 0;
    for _ in 0..1000 {
        c.note_group(2, 0);
        if c.wait_for(1, 100, true).is_some() {
            waits += 1;
            c.note_wait(false, true);
        }
    }
    assert!((10..30).contains(&waits), "{waits} waits");
    assert!(
        c.wait_for(1, 100, false).is_some(),
        "unsynced groups have their own"
    );
    c.note_wait(true, true);
    assert!(c.wait_for(1, 100, true).is_some());
}
