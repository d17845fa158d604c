//! Tests of the module `cursor`.

use super::*;

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[test]
fn cursors_are_stable_bounded_and_unique() {
    let mut c = Cursors::default();
    assert!(c.is_used_up());
    c.give(1);
    let cursor = c.at(key("user:1"));
    assert!(cursor > 0 && cursor < CURSOR_END);
    assert_eq!(
        c.at(key("user:1")),
        cursor,
        "the same place, the same number"
    );
    assert_eq!(c.place(0), ScanPosition::Start);
    assert_eq!(c.place(cursor), ScanPosition::At(key("user:1")));
    let mut given = std::collections::BTreeSet::from([cursor]);
    // When half of a block is used, the next is wanted. It follows when this one ends.
    assert!(!c.wants_more());
    c.next = CURSOR_BLOCK / 2;
    assert!(!c.wants_more());
    assert_eq!(c.at(key("middle")), CURSOR_BLOCK / 2);
    assert!(c.wants_more());
    c.next = c.end;
    assert!(c.is_used_up());
    c.give(1 + 7 * CURSOR_BLOCK);
    assert!(!c.is_used_up() && !c.wants_more());
    for i in 0..3 * CAPACITY {
        assert!(given.insert(c.at(key(&format!("k{i}")))), "given out twice");
    }
    assert_eq!(c.places.len(), CAPACITY);
    assert_eq!(c.numbers.len(), CAPACITY);
    assert_eq!(c.by_age.len(), CAPACITY);
    assert_eq!(c.place(cursor), ScanPosition::Forgotten);
    let again = c.at(key("user:1"));
    assert!(given.insert(again), "a forgotten place has a new number");
    // A position that is used again and again stays.
    for i in 0..3 * CAPACITY {
        c.at(key(&format!("j{i}")));
        assert_eq!(c.place(again), ScanPosition::At(key("user:1")));
    }
    // A server that starts later knows none of these cursors, and gives out others.
    let mut later = Cursors::default();
    later.give(1 + CURSOR_BLOCK);
    assert_eq!(later.place(again), ScanPosition::Forgotten);
    assert!(given.insert(later.at(key("user:1"))));
    assert_eq!(c.place(u64::MAX), ScanPosition::Forgotten);
    let long = vec![7u8; 65_000];
    for i in 0..1_000u32 {
        c.at([&long[..], &i.to_be_bytes()].concat().into());
    }
    assert!(c.bytes <= CAPACITY_BYTES);
}
