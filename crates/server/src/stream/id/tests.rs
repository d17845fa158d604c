//! Tests of the module `id`.

use super::*;

#[test]
fn ids_parse_print_and_step() {
    let parse = |text: &str| StreamId::parse(text.as_bytes(), 7);
    assert_eq!(parse("1-2"), Some(StreamId::new(1, 2)));
    assert_eq!(parse("01-002"), Some(StreamId::new(1, 2)));
    assert_eq!(parse("5"), Some(StreamId::new(5, 7)));
    assert_eq!(
        parse("18446744073709551615-18446744073709551615"),
        Some(StreamId::MAX)
    );
    for bad in [
        "",
        "-",
        "1-",
        "-1",
        "1-2-3",
        "1-+2",
        "18446744073709551616",
        "a",
        "1- 2",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
    let max = u64::MAX;
    assert_eq!(StreamId::new(3, max).next(), Some(StreamId::new(4, 0)));
    assert_eq!(StreamId::MAX.next(), None);
    assert_eq!(StreamId::new(4, 0).previous(), Some(StreamId::new(3, max)));
    assert_eq!(StreamId::MIN.previous(), None);
    assert_eq!(StreamId::new(12, 3).to_string(), "12-3");
    assert!(StreamId::new(1, max) < StreamId::new(2, 0));
}
