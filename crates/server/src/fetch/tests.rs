//! Tests of the module `fetch`.

use super::*;

#[test]
fn getrange_bounds_are_those_of_redis() {
    let text = b"0123456789";
    for (start, end, expected) in [
        (0, -1, "0123456789"),
        (0, 0, "0"),
        (-3, -1, "789"),
        (-100, 2, "012"),
        (3, 1, ""),
        (-1, -3, ""),
        (5, 100, "56789"),
        (10, 11, ""),
        (i64::MIN, i64::MAX, "0123456789"),
        (0, i64::MIN, "0"),
    ] {
        let range = range_of(text.len(), start, end);
        assert_eq!(&text[range], expected.as_bytes(), "{start} {end}");
    }
    assert_eq!(range_of(0, 0, -1), 0..0);
}

/// A range of a long value must not keep the value in memory, where no budget would count it.
#[test]
fn a_short_range_is_copied_out_of_its_value() {
    let whole = Bytes::from(vec![7; 1 << 20]);
    let inside = |part: &Bytes| whole.as_ptr_range().contains(&part.as_ptr());
    assert!(!inside(&part_of(&whole, 0, 9999)));
    assert!(inside(&part_of(&whole, 0, -2)));
}
