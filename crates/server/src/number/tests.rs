//! Tests of the module `number`.

use super::*;

#[test]
fn integers_are_read_strictly() {
    for (text, n) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("007", None),
        ("-0", None),
        ("+1", None),
        (" 1", None),
        ("1 ", None),
        ("", None),
        ("-", None),
        ("1e3", None),
        ("99999999999999999999999", None),
    ] {
        assert_eq!(parse_i64(text.as_bytes()), n, "{text:?}");
        if let Some(n) = n {
            let mut out = vec![];
            push_i64(&mut out, n);
            assert_eq!(out, text.as_bytes());
        }
    }
    assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
    assert_eq!(parse_u64(b"18446744073709551616"), None);
}

#[test]
fn floats_are_printed_as_redis_prints_them() {
    for (n, text) in [
        (3.0, "3"),
        (10.6, "10.6"),
        (5000.0, "5000"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e20, "100000000000000000000"),
        (-2.5e-3, "-0.0025"),
    ] {
        assert_eq!(format_f64(n), text);
    }
    // INCRBYFLOAT reads every number that it stored. The largest number has 309 digits.
    for n in [-9e304, f64::MAX, f64::MIN_POSITIVE] {
        let printed = parse_f64(format_f64(n).as_bytes()).unwrap();
        assert!((printed - n).abs() <= 1e-17);
    }
    assert_eq!(parse_f64(b" 1"), None);
    assert_eq!(parse_f64(b"nan"), None);
    assert_eq!(parse_f64(b"5.0e3"), Some(5000.0));
}
