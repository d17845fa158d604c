//! Values in both formats: round trips, known bytes of PostgreSQL, and hostile bytes.

use super::*;
use basalt::env::Random;

const TYPES: [SqlType; 18] = [
    SqlType::Boolean,
    SqlType::SmallInt,
    SqlType::Integer,
    SqlType::BigInt,
    SqlType::Real,
    SqlType::Double,
    SqlType::Numeric(None),
    SqlType::Text,
    SqlType::Varchar(Some(10)),
    SqlType::Char(3),
    SqlType::Bytea,
    SqlType::Date,
    SqlType::Time,
    SqlType::Timestamp,
    SqlType::Timestamptz,
    SqlType::Uuid,
    SqlType::Json,
    SqlType::Jsonb,
];

fn encoded(ty: SqlType, format: Format, value: &Value) -> SqlResult<Vec<u8>> {
    let mut out = Vec::new();
    let column = ColumnFormat {
        ty,
        array: None,
        format,
    };
    put_value(column, value.as_ref(), &mut String::new(), &mut out)?;
    Ok(out)
}

/// Returns the bytes of a value behind its length, which is checked.
fn bytes_of(ty: SqlType, format: Format, value: &Value) -> Vec<u8> {
    let out = encoded(ty, format, value).unwrap();
    let (len, bytes) = out.split_at(4);
    assert_eq!(
        i32::from_be_bytes(len.try_into().unwrap()),
        bytes.len() as i32
    );
    bytes.to_vec()
}

#[test]
fn values_survive_both_formats() {
    let cases: Vec<(SqlType, Vec<Value>)> = vec![
        (SqlType::Boolean, vec![true.into(), false.into()]),
        (
            SqlType::SmallInt,
            vec![0.into(), (-32_768).into(), 32_767.into()],
        ),
        (
            SqlType::Integer,
            vec![0.into(), i64::from(i32::MIN).into(), 7.into()],
        ),
        (
            SqlType::BigInt,
            vec![i64::MIN.into(), i64::MAX.into(), (-1).into()],
        ),
        (SqlType::Real, vec![1.5.into(), (-0.25).into()]),
        (SqlType::Double, vec![1.1.into(), (-1e300).into()]),
        (
            SqlType::Numeric(None),
            vec![
                0.into(),
                10_000.into(),
                (-123_456_789).into(),
                0.5.into(),
                (-12.25).into(),
            ],
        ),
        (SqlType::Text, vec!["".into(), "größer".into()]),
        (SqlType::Varchar(None), vec!["a\tb".into()]),
        (SqlType::Bytea, vec![vec![].into(), vec![0, 255, 10].into()]),
        (
            SqlType::Date,
            vec![
                "2000-01-01".into(),
                "1969-12-31".into(),
                "2024-02-29".into(),
            ],
        ),
        (
            SqlType::Time,
            vec![
                "00:00:00".into(),
                "23:59:59.999999".into(),
                "12:30:00.5".into(),
            ],
        ),
        (
            SqlType::Timestamp,
            vec![
                "2000-01-01 00:00:00".into(),
                "1999-12-31 23:59:59.000001".into(),
            ],
        ),
        (
            SqlType::Uuid,
            vec!["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11".into()],
        ),
        (SqlType::Json, vec!["{\"a\": 1}".into()]),
        (SqlType::Jsonb, vec!["[1, 2]".into()]),
    ];
    for (ty, values) in cases {
        for value in values {
            for format in [Format::Text, Format::Binary] {
                let bytes = bytes_of(ty, format, &value);
                assert_eq!(
                    parameter(ty, format, &bytes).unwrap(),
                    value,
                    "{ty} {format:?}"
                );
            }
        }
    }
}

#[test]
fn null_has_no_bytes() {
    for ty in TYPES {
        for format in [Format::Text, Format::Binary] {
            assert_eq!(encoded(ty, format, &Value::Null).unwrap(), [255; 4]);
        }
    }
}

#[test]
fn binary_forms_are_those_of_postgresql() {
    let hex = |ty, value: &str| {
        let bytes = bytes_of(ty, Format::Binary, &value.into());
        bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    // What `SELECT date_send(...)` and the other functions of PostgreSQL 15 show.
    assert_eq!(hex(SqlType::Date, "2024-02-29"), "00002279");
    assert_eq!(hex(SqlType::Date, "1999-12-31"), "ffffffff");
    assert_eq!(hex(SqlType::Date, "0044-03-15 BC"), "fff49d7b");
    assert_eq!(hex(SqlType::Date, "infinity"), "7fffffff");
    assert_eq!(hex(SqlType::Time, "04:05:06.789"), "000000036c97ca88");
    assert_eq!(
        hex(SqlType::Timestamp, "2024-02-29 12:34:56.789012"),
        "0002b58341728614"
    );
    assert_eq!(
        hex(SqlType::Timestamptz, "1990-01-01 00:00:00"),
        "fffee1064b8a8000"
    );
    assert_eq!(hex(SqlType::Jsonb, "{}"), "017b7d");
    let numeric = |text: &str| {
        let mut out = Vec::new();
        numeric::put_numeric(text, &mut out).unwrap();
        out.iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    assert_eq!(numeric("0"), "0000000000000000");
    assert_eq!(numeric("12345.678"), "0003000100000003000109291a7c");
    assert_eq!(numeric("-0.00012"), "0002ffff40000005000107d0");
    assert_eq!(numeric("10000"), "00010001000000000001");
    assert_eq!(numeric("1.50"), "000200000000000200011388");
    assert_eq!(numeric("NaN"), "00000000c0000000");
}

#[test]
fn decimal_texts_survive_the_binary_form() {
    let random = Random::from_seed(17);
    for _ in 0..20_000 {
        let mut text = String::new();
        let whole = random.below(12);
        let fraction = random.below(12);
        for i in 0..whole {
            let lowest = u64::from(i == 0 && whole > 1);
            text.push(char::from(
                b'0' + (lowest + random.below(10 - lowest)) as u8,
            ));
        }
        if whole == 0 {
            text.push('0');
        }
        if fraction > 0 {
            text.push('.');
            (0..fraction).for_each(|_| text.push(char::from(b'0' + random.below(10) as u8)));
        }
        let is_zero = text.bytes().all(|b| b == b'0' || b == b'.');
        if random.below(2) == 0 && !is_zero {
            text.insert(0, '-');
        }
        let mut bytes = Vec::new();
        numeric::put_numeric(&text, &mut bytes).unwrap();
        assert_eq!(
            numeric::numeric_text(&bytes).as_deref(),
            Some(text.as_str())
        );
    }
    for malformed in ["", "-", ".", "1.2.3", "1a", "--1", "1e400x"] {
        assert!(
            numeric::put_numeric(malformed, &mut Vec::new()).is_none(),
            "{malformed}"
        );
    }
}

#[test]
fn days_survive_their_texts() {
    for days in (-2_451_507..=2_145_031_948)
        .step_by(999_983)
        .chain(-200_000..200_000)
    {
        let text = datetime::date_text(days).unwrap();
        assert_eq!(datetime::parse_date(&text), Some(days), "{text}");
    }
    let random = Random::from_seed(3);
    for _ in 0..100_000 {
        let micros = random.next_u64() as i64 / 16;
        if let Some(text) = datetime::timestamp_text(micros) {
            assert_eq!(datetime::parse_timestamp(&text), Some(micros), "{text}");
        }
    }
    for number in [i64::MIN + 1, i64::MAX - 1] {
        assert_eq!(datetime::timestamp_text(number), None);
    }
    for number in [i32::MIN + 1, i32::MAX - 1] {
        assert_eq!(datetime::date_text(number), None);
    }
}

/// Bytes of any length and contents end in a value or an error.
#[test]
fn hostile_parameters_do_not_panic() {
    let random = Random::from_seed(5);
    for _ in 0..200_000 {
        let len = random.below(24) as usize;
        let bytes: Vec<u8> = (0..len)
            .map(|_| match random.below(4) {
                0 => random.next_u64() as u8,
                1 => b'0' + random.below(10) as u8,
                2 => [0, 255, 0x40, 0xC0][random.below(4) as usize],
                _ => 0,
            })
            .collect();
        for ty in TYPES {
            let _ = parameter(ty, Format::Binary, &bytes);
            let _ = parameter(ty, Format::Text, &bytes);
        }
    }
}

/// A value of another kind than the type says, as an inferred type may be wrong, ends in its text
/// or in an error.
#[test]
fn values_of_another_kind_do_not_panic() {
    let values = [
        Value::Integer(i64::MAX),
        Value::Integer(-1),
        Value::Real(f64::NAN),
        Value::Real(1e308),
        Value::Text("text".into()),
        Value::Text(String::new()),
        Value::Text("12".into()),
        Value::Blob(vec![255]),
    ];
    for ty in TYPES {
        for value in &values {
            encoded(ty, Format::Text, value).unwrap();
            let _ = encoded(ty, Format::Binary, value);
        }
    }
    let twelve = encoded(SqlType::Integer, Format::Binary, &"12".into()).unwrap();
    assert_eq!(twelve, [0, 0, 0, 4, 0, 0, 0, 12]);
    let error = encoded(SqlType::SmallInt, Format::Binary, &Value::Integer(40_000)).unwrap_err();
    assert_eq!(error.state(), SqlState::NUMERIC_OUT_OF_RANGE);
}

#[test]
fn texts_that_are_not_utf8_are_refused() {
    let error = parameter(SqlType::Text, Format::Text, b"a\xff").unwrap_err();
    assert_eq!(error.state(), SqlState("22021"));
    assert!(error.message().contains("0xff"));
    let error = parameter(SqlType::Text, Format::Binary, b"a\0").unwrap_err();
    assert_eq!(error.state(), SqlState("22021"));
}

#[test]
fn oids_name_the_types() {
    for ty in TYPES {
        let declared = declared_type(type_oid(ty)).unwrap().unwrap();
        let is_same = std::mem::discriminant(&declared) == std::mem::discriminant(&ty);
        assert!(is_same || matches!(ty, SqlType::Char(_)), "{ty}");
    }
    assert_eq!(declared_type(0).unwrap(), None);
    assert_eq!(declared_type(705).unwrap(), None);
    assert_eq!(
        declared_type(1007).unwrap_err().state(),
        SqlState::FEATURE_NOT_SUPPORTED
    );
    assert_eq!(type_modifier(SqlType::Varchar(Some(20))), 24);
    assert_eq!(
        type_modifier(SqlType::Numeric(Some((10, 2)))),
        (10 << 16) + 2 + 4
    );
}

#[test]
fn arrays_have_a_binary_form() {
    let column = ColumnFormat {
        ty: SqlType::Text,
        array: Some(SqlType::SmallInt),
        format: Format::Binary,
    };
    let (mut scratch, mut out) = (String::new(), Vec::new());
    let value = ValueRef::Text("{7,NULL}");
    put_value(column, value, &mut scratch, &mut out).expect("it fits");
    let numbers = [1, 1, 21, 2, 1_i32].map(i32::to_be_bytes).concat();
    let items = [&[0, 0, 0, 2, 0, 7][..], &[255; 4][..]].concat();
    let expected = [&30_i32.to_be_bytes()[..], &numbers, &items].concat();
    assert_eq!(out, expected);
    out.clear();
    put_value(column, ValueRef::Text("{}"), &mut scratch, &mut out).expect("it fits");
    assert_eq!(out, [12, 0, 0, 21].map(i32::to_be_bytes).concat());
    assert_eq!(array_oid(SqlType::Boolean), 1000);
}
