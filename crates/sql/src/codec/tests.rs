//! Tests of rows and values: round trips, sizes, and damaged bytes.

use super::{Reader, Row, encode_row, put_value};
use crate::value::Value;
use basalt::env::Random;

fn value(random: &Random) -> Value {
    match random.below(6) {
        0 => Value::Null,
        1 => Value::Integer(random.below(300) as i64 - 50),
        2 => Value::Integer(random.next_u64() as i64 >> random.below(64)),
        3 => Value::Real(f64::from_bits(random.next_u64() & !(1 << 62))),
        4 => Value::Text("é".repeat(random.below(40) as usize)),
        _ => Value::Blob(
            (0..random.below(70))
                .map(|_| random.next_u64() as u8)
                .collect(),
        ),
    }
}

#[test]
fn rows_give_their_values_back() {
    let random = Random::from_seed(3);
    for _ in 0..20_000 {
        let values: Vec<Value> = (0..random.below(12)).map(|_| value(&random)).collect();
        let bytes = encode_row(&values);
        let row = Row::new(&bytes).expect("it was encoded");
        assert_eq!(row.values().expect("it was encoded"), values);
        let mut starts = Vec::new();
        row.starts(&mut starts).expect("it was encoded");
        assert_eq!(starts.len(), values.len());
        for (start, value) in starts.iter().zip(&values) {
            assert_eq!(
                row.value_at(*start).expect("it was encoded"),
                value.as_ref()
            );
        }
    }
}

#[test]
fn small_values_are_short() {
    let size = |value: Value| {
        let mut out = Vec::new();
        put_value(&mut out, value.as_ref());
        out.len()
    };
    assert_eq!(size(Value::Null), 1);
    assert_eq!(size(Value::Integer(191)), 1);
    assert_eq!(size(Value::Integer(192)), 3);
    assert_eq!(size(Value::from("four")), 5);
    assert_eq!(size(Value::Text("x".repeat(31))), 32);
    assert_eq!(size(Value::Text("x".repeat(32))), 34);
    assert_eq!(size(Value::Real(1.0)), 9);
}

#[test]
fn damaged_rows_are_errors() {
    let random = Random::from_seed(4);
    let mut errors = 0;
    for _ in 0..20_000 {
        let values: Vec<Value> = (0..1 + random.below(6)).map(|_| value(&random)).collect();
        let mut bytes = encode_row(&values);
        match random.below(3) {
            0 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            1 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            _ => bytes.push(random.next_u64() as u8),
        }
        // No call panics, and both ways to read agree on what is sound.
        let whole = Row::new(&bytes).and_then(|row| row.values());
        let mut starts = Vec::new();
        let parts = Row::new(&bytes).and_then(|row| {
            row.starts(&mut starts)?;
            starts
                .iter()
                .try_for_each(|start| row.value_at(*start).map(|_| ()))
        });
        assert_eq!(whole.is_ok(), parts.is_ok(), "{values:?} became {bytes:?}");
        errors += usize::from(whole.is_err());
    }
    assert!(errors > 5_000, "{errors} of 20,000");
}

#[test]
fn a_count_allocates_no_more_than_its_bytes() {
    let bytes = [0xFF, 0xFF, 0xFF, 0xFF, 0x7F];
    let mut reader = Reader::new(&bytes, "a list");
    let e = reader.count().expect_err("there are no such bytes");
    assert!(e.to_string().contains("a list is damaged at byte 5"), "{e}");
}
