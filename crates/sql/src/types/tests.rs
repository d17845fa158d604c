//! Conversions and texts of values.

use super::SqlType as T;
use super::datetime::*;
use super::decimal::Decimal;
use crate::Value;

fn text(ty: T, value: &Value) -> String {
    let mut out = String::new();
    ty.write_text(value.as_ref(), &mut out);
    out
}

/// A small generator of random numbers.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn values_convert() {
    for (ty, from, expected) in [
        (T::Boolean, "t", "t"),
        (T::Boolean, " TRUE ", "t"),
        (T::Boolean, "off", "f"),
        (T::Boolean, "no", "f"),
        (T::Boolean, "1", "t"),
        (T::Integer, " -12 ", "-12"),
        (T::BigInt, "9223372036854775807", "9223372036854775807"),
        (T::Double, "1e300", "1e+300"),
        (T::Double, "0.1", "0.1"),
        (T::Double, "-Infinity", "-Infinity"),
        (T::Double, "123456789012345", "123456789012345"),
        (T::Double, "1e15", "1e+15"),
        (T::Double, "0.00001", "1e-05"),
        (T::Real, "0.1", "0.1"),
        (T::Real, "1234567", "1.234567e+06"),
        (T::Numeric(Some((12, 2))), "12.345", "12.35"),
        (T::Numeric(Some((12, 2))), "-12.345", "-12.35"),
        (T::Numeric(Some((12, 2))), "5", "5.00"),
        (T::Numeric(None), "1.50", "1.5"),
        (T::Numeric(Some((3, 0))), "99.5", "100"),
        (T::Numeric(None), "1e3", "1000"),
        (T::Varchar(Some(3)), "abc  ", "abc"),
        (T::Varchar(Some(3)), "日本語", "日本語"),
        (T::Char(4), "ab", "ab  "),
        (T::Char(4), "ab      ", "ab  "),
        (T::Bytea, "\\x00fF", "\\x00ff"),
        (T::Bytea, "a\\\\b\\001", "\\x615c6201"),
        (T::Date, "2024-02-29", "2024-02-29"),
        (T::Date, "20240229", "2024-02-29"),
        (T::Date, "2024/2/9", "2024-02-09"),
        (T::Date, "February 9, 2024", "2024-02-09"),
        (T::Date, "9 Feb 2024", "2024-02-09"),
        (T::Date, "2/9/2024", "2024-02-09"),
        (T::Date, "2024-02-29 23:59:59", "2024-02-29"),
        (T::Date, "epoch", "1970-01-01"),
        (T::Time, "12:34", "12:34:00"),
        (T::Time, "1:02:03.4567899", "01:02:03.45679"),
        (T::Time, "12:05 AM", "00:05:00"),
        (T::Time, "24:00:00", "24:00:00"),
        (T::Timestamp, "2024-02-29T12:34:56Z", "2024-02-29 12:34:56"),
        (T::Timestamp, "2024-02-29", "2024-02-29 00:00:00"),
        (T::Timestamp, "2024-12-31 24:00", "2025-01-01 00:00:00"),
        (
            T::Timestamptz,
            "2024-02-29 12:00:00+02",
            "2024-02-29 10:00:00+00",
        ),
        (
            T::Timestamptz,
            "2024-02-29 12:00:00.5 -05:30",
            "2024-02-29 17:30:00.5+00",
        ),
        (
            T::Uuid,
            "{A0EEBC99-9C0B4EF8-BB6D6BB9BD380A11}",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ),
        (
            T::Json,
            "{\"a\": [1, -2.5e3, \"\\u00e9\", null]}",
            "{\"a\": [1, -2.5e3, \"\\u00e9\", null]}",
        ),
    ] {
        let value = ty
            .parse_text(from)
            .unwrap_or_else(|e| panic!("{ty} {from}: {e}"));
        assert_eq!(text(ty, &value), expected, "{ty} {from}");
        // What is shown is read again.
        let again = ty.parse_text(&text(ty, &value)).unwrap();
        assert_eq!(again, value, "{ty} {from}");
    }
}

#[test]
fn malformed_values_are_refused() {
    for (ty, from, state) in [
        (T::Boolean, "maybe", "22P02"),
        (T::Boolean, "o", "22P02"),
        (T::Integer, "", "22P02"),
        (T::Integer, "1.5", "22P02"),
        (T::Integer, "2147483648", "22003"),
        (T::SmallInt, "70000", "22003"),
        (T::BigInt, "9223372036854775808", "22003"),
        (T::Double, "1e999", "22003"),
        (T::Double, "x", "22P02"),
        (T::Double, "NaN", "0A000"),
        (T::Numeric(Some((4, 2))), "100", "22003"),
        (T::Numeric(None), "1.2.3", "22P02"),
        (T::Varchar(Some(3)), "abcd", "22001"),
        (T::Char(2), "abc", "22001"),
        (T::Text, "a\0b", "22021"),
        (T::Bytea, "\\x0", "22P02"),
        (T::Bytea, "\\9", "22P02"),
        (T::Date, "2024-13-45", "22008"),
        (T::Date, "2023-02-29", "22008"),
        (T::Date, "soon", "22007"),
        (T::Date, "infinity", "0A000"),
        (T::Date, "0000-01-01", "22008"),
        (T::Timestamp, "2024-01-01 25:00", "22008"),
        (T::Timestamp, "2024-01-01 12:00 nowhere", "22007"),
        (T::Time, "12:60", "22008"),
        (T::Time, "x", "22007"),
        (T::Uuid, "a0eebc99", "22P02"),
        (T::Json, "{a: 1}", "22P02"),
        (T::Json, "[1", "22P02"),
    ] {
        let e = ty.parse_text(from).expect_err(from);
        assert_eq!(e.state().0, state, "{ty} {from}: {e}");
    }
    assert_eq!(
        T::Integer.coerce(Value::Real(2.5)).unwrap(),
        Value::Integer(3)
    );
    assert_eq!(
        T::Integer.coerce(Value::Real(1e30)).unwrap_err().state().0,
        "22003"
    );
    assert_eq!(
        T::Numeric(Some((5, 1))).coerce(Value::Real(2.25)).unwrap(),
        Value::Real(2.3)
    );
    assert_eq!(T::Text.coerce(Value::Integer(5)).unwrap(), Value::from("5"));
    assert_eq!(
        T::Date.coerce(Value::Integer(5)).unwrap_err().state().0,
        "42804"
    );
    assert_eq!(T::Integer.coerce(Value::Null).unwrap(), Value::Null);
    assert_eq!(
        T::Varchar(Some(2)).cast(Value::from("abc")).unwrap(),
        Value::from("ab")
    );
}

#[test]
fn random_values_are_read_as_they_are_displayed() {
    let mut rng = Rng(0x0b5a);
    for _ in 0..20_000 {
        let bits = rng.next();
        let x = f64::from_bits(bits);
        if x.is_finite() {
            let display = text(T::Double, &Value::Real(x));
            assert_eq!(
                T::Double.parse_text(&display).unwrap(),
                Value::Real(x),
                "{display}"
            );
            let short = f64::from(f32::from_bits(bits as u32));
            if short.is_finite() {
                let display = text(T::Real, &Value::Real(short));
                assert_eq!(
                    T::Real.parse_text(&display).unwrap(),
                    Value::Real(short),
                    "{display}"
                );
            }
        }
        let n = rng.next() as i64 >> (bits % 64);
        let display = text(T::BigInt, &Value::Integer(n));
        assert_eq!(T::BigInt.parse_text(&display).unwrap(), Value::Integer(n));
        let cents = n % 1_000_000_000_000;
        let ty = T::Numeric(Some((14, 2)));
        let sign = if cents < 0 { "-" } else { "" };
        let money = format!("{sign}{}.{:02}", cents.abs() / 100, cents.abs() % 100);
        assert_eq!(
            text(ty, &ty.parse_text(&money).unwrap()),
            if cents == 0 { "0.00" } else { &money }
        );
        let bytes: Vec<u8> = rng.next().to_le_bytes()[..(bits % 9) as usize].to_vec();
        let display = text(T::Bytea, &Value::Blob(bytes.clone()));
        assert_eq!(T::Bytea.parse_text(&display).unwrap(), Value::Blob(bytes));
        let first = days_from_civil(1, 1, 1);
        let days = first + (rng.next() % 3_652_059) as i64;
        let (year, month, day) = civil_from_days(days);
        assert_eq!(days_from_civil(year, month, day), days);
        let us = days * DAY_US + (rng.next() % DAY_US as u64) as i64;
        for ty in [T::Timestamp, T::Timestamptz] {
            let value = Value::Text(timestamp_text(us));
            assert_eq!(ty.parse_text(&text(ty, &value)).unwrap(), value);
        }
        assert_eq!(parse_timestamp(&timestamp_text(us)).unwrap(), us);
        let later = us.saturating_add((bits % 1_000_000) as i64 + 1);
        if checked_moment(later).is_ok() {
            assert!(
                timestamp_text(us) < timestamp_text(later),
                "texts are ordered as moments"
            );
        }
    }
}

#[test]
fn decimals_round_half_away_from_zero() {
    for (from, scale, expected) in [
        ("2.5", 0, "3"),
        ("-2.5", 0, "-3"),
        ("0.05", 1, "0.1"),
        ("0.04", 1, "0"),
        ("9.99", 1, "10"),
        ("1234", -2, "1200"),
        ("1250", -2, "1300"),
        ("0.5", 0, "1"),
        ("49", -2, "0"),
        ("50", -2, "100"),
        ("1e-20", 3, "0"),
    ] {
        assert_eq!(
            Decimal::parse(from).unwrap().round(scale).text(0),
            expected,
            "{from}"
        );
    }
    assert_eq!(Decimal::parse("-2.99").unwrap().truncate(1).text(0), "-2.9");
    assert_eq!(Decimal::parse("12").unwrap().text(2), "12.00");
    assert_eq!(
        Decimal::from_integer(i64::MIN).to_value(),
        Value::Integer(i64::MIN)
    );
}

#[test]
fn intervals_are_read_and_displayed() {
    for (from, expected) in [
        ("1 day", "1 day"),
        (
            "1 year 2 mons 3 days 04:05:06.7",
            "1 year 2 mons 3 days 04:05:06.7",
        ),
        ("36 hours", "36:00:00"),
        ("1.5 days", "1 day 12:00:00"),
        ("-1 day +2:00", "-1 days +02:00:00"),
        ("P1Y2M3DT4H5M6S", "1 year 2 mons 3 days 04:05:06"),
        ("2 weeks ago", "-14 days"),
        ("90", "00:01:30"),
        ("1 hour 30 minutes", "01:30:00"),
        ("0", "00:00:00"),
        ("5 seconds", "00:00:05"),
        ("100 ms", ""),
    ] {
        match parse_interval(from) {
            Ok(interval) => {
                let mut out = String::new();
                write_interval(interval, &mut out);
                let expected = if expected.is_empty() {
                    "00:00:00.1"
                } else {
                    expected
                };
                assert_eq!(out, expected, "{from}");
                assert_eq!(parse_interval(&out).unwrap(), interval);
            }
            Err(e) => assert!(expected.is_empty(), "{from}: {e}"),
        }
    }
    assert!(parse_interval("").is_err() && parse_interval("one day").is_err());
    let jan31 = parse_timestamp("2024-01-31 10:00").unwrap();
    let month = parse_interval("1 month").unwrap();
    assert_eq!(
        timestamp_text(add_interval(jan31, month).unwrap()),
        "2024-02-29 10:00:00"
    );
    assert!(add_interval(jan31, parse_interval("9000 years").unwrap()).is_err());
}

#[test]
fn texts_of_any_kind_do_not_panic() {
    let pieces = [
        "2024",
        "-",
        ":",
        "+",
        "é",
        " ",
        "T",
        "12",
        "99999999999999999999",
        "e",
        ".",
        "\\x",
        "{",
        "\"",
        "P",
        "am",
    ];
    let types = [
        T::Boolean,
        T::Integer,
        T::Double,
        T::Real,
        T::Numeric(Some((9, 3))),
        T::Numeric(None),
        T::Varchar(Some(2)),
        T::Char(2),
        T::Bytea,
        T::Date,
        T::Time,
        T::Timestamp,
        T::Timestamptz,
        T::Uuid,
        T::Json,
    ];
    let mut rng = Rng(0x7e57);
    for _ in 0..20_000 {
        let count = rng.next() % 8;
        let made: String = (0..count)
            .map(|_| pieces[(rng.next() % pieces.len() as u64) as usize])
            .collect();
        for ty in types {
            if let Ok(value) = ty.parse_text(&made) {
                let display = text(ty, &value);
                assert_eq!(ty.parse_text(&display).unwrap(), value, "{ty} {made}");
            }
        }
        let _ = parse_interval(&made);
    }
}

#[test]
fn names_of_types_are_read() {
    for ty in [
        T::Boolean,
        T::SmallInt,
        T::Integer,
        T::BigInt,
        T::Real,
        T::Double,
        T::Numeric(None),
        T::Numeric(Some((12, 2))),
        T::Text,
        T::Varchar(None),
        T::Varchar(Some(9)),
        T::Char(3),
        T::Bytea,
        T::Date,
        T::Time,
        T::Timestamp,
        T::Timestamptz,
        T::Uuid,
        T::Json,
        T::Jsonb,
    ] {
        assert_eq!(T::from_name(&ty.to_string()), Some(ty));
    }
    assert_eq!(T::from_name("nope"), None);
}
