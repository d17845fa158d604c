//! What stays in memory of the newest entries.

use super::*;

fn indexes(tail: &Tail) -> Vec<u64> {
    tail.entries_from(0).map(|(index, _)| index).collect()
}

#[test]
fn only_complete_entries_leave_a_tail_that_is_too_large() {
    let mut tail = Tail::default();
    for index in 10..16 {
        let bytes = vec![index as u8; KEPT_BYTES / 2].into();
        // Two entries an append.
        tail.push(index, index / 2, bytes);
    }
    tail.complete(6);
    assert_eq!(indexes(&tail), [10, 11, 12, 13, 14, 15]);
    tail.complete(5);
    assert_eq!(indexes(&tail), [14, 15]);
    tail.complete(7);
    assert_eq!((indexes(&tail), tail.first()), (vec![14, 15], Some(14)));
}

/// An append that was cut off completes late. It must not mark the entries that replaced its own.
#[test]
fn a_late_completion_marks_no_entry_of_a_later_append() {
    let mut tail = Tail::default();
    tail.push(5, 1, vec![0; KEPT_BYTES + 1].into());
    tail.truncate(5);
    tail.push(5, 2, vec![0; KEPT_BYTES + 1].into());
    tail.complete(1);
    assert_eq!(tail.first(), Some(5));
    tail.complete(2);
    assert_eq!((tail.first(), tail.bytes), (None, 0));
}

#[test]
fn both_ends_can_be_cut() {
    let mut tail = Tail::default();
    for index in 0..10 {
        tail.push(index, index, vec![index as u8].into());
    }
    tail.truncate(8);
    tail.trim(2);
    assert_eq!(indexes(&tail), [3, 4, 5, 6, 7]);
    assert_eq!(tail.bytes, 5);
    assert_eq!(tail.entries_from(6).count(), 2);
    tail.trim(100);
    assert_eq!((tail.first(), tail.bytes), (None, 0));
    tail.push(200, 11, vec![1].into());
    assert_eq!(indexes(&tail), [200]);
}
