//! Tests of keys: their order, round trips, and damaged bytes.

use super::{KeyPart, KeyType, decode_columns, encode_key_value, next_prefix, skip_columns};
use crate::value::Value;
use basalt::env::Random;

fn part(ty: KeyType, marked: bool) -> KeyPart {
    KeyPart {
        column: 0,
        ty,
        marked,
    }
}

fn encode(parts: &[KeyPart], values: &[Value]) -> Vec<u8> {
    let mut key = Vec::new();
    for (part, value) in parts.iter().zip(values) {
        encode_key_value(&mut key, part, value.as_ref()).expect("the value has the type");
    }
    key
}

/// Returns a value of a type. Edges of the type are likely.
fn value(random: &Random, part: &KeyPart) -> Value {
    if part.marked && random.one_in(8) {
        return Value::Null;
    }
    let edges = [
        0,
        1,
        -1,
        127,
        -128,
        255,
        256,
        1 << 53,
        (1 << 53) + 1,
        -(1 << 53) - 1,
    ];
    let integer = match random.below(4) {
        0 => edges[random.below(edges.len() as u64) as usize],
        1 => i64::MAX - random.below(3) as i64,
        2 => i64::MIN + random.below(3) as i64,
        _ => random.next_u64() as i64 >> random.below(64),
    };
    let real = match random.below(4) {
        0 => integer as f64,
        1 => f64::from_bits(random.next_u64() & !(0x7FF << 52) | (random.below(0x7FF) << 52)),
        2 => [0.5, -0.5, 1e300, -1e300, f64::INFINITY, f64::NEG_INFINITY][random.below(6) as usize],
        _ => random.below(1000) as f64 / 8.0 - 50.0,
    };
    let bytes: Vec<u8> = (0..random.below(6))
        .map(|_| random.below(3) as u8 * 127)
        .collect();
    match part.ty {
        KeyType::Integer(n) => {
            let unused = 64 - u32::from(n) * 8;
            Value::Integer(integer << unused >> unused)
        }
        // A number that is whole and fits is an integer.
        KeyType::Number => match real.fract() != 0.0 || real.abs() >= 9.3e18 {
            true => Value::Real(real),
            false => Value::Integer(integer),
        },
        KeyType::Real => Value::Real(real),
        KeyType::Text => {
            let text = bytes
                .iter()
                .map(|b| ['\0', '\u{1}', 'é', '\u{10FFFF}'][usize::from(b % 4)]);
            Value::Text(text.collect())
        }
        KeyType::Blob => Value::Blob(bytes),
    }
}

fn number(value: &Value) -> (f64, i128) {
    match value {
        Value::Integer(n) => (*n as f64, i128::from(*n)),
        Value::Real(x) => (*x, *x as i128),
        _ => (f64::NAN, 0),
    }
}

/// Returns the order in which values are to come.
fn order(a: &Value, b: &Value) -> std::cmp::Ordering {
    match (a, b) {
        (Value::Null, Value::Null) => std::cmp::Ordering::Equal,
        (Value::Null, _) => std::cmp::Ordering::Less,
        (_, Value::Null) => std::cmp::Ordering::Greater,
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (a, b) => {
            let (a, b) = (number(a), number(b));
            let floats = a.0.partial_cmp(&b.0).expect("no value is NaN");
            floats.then(a.1.cmp(&b.1))
        }
    }
}

#[test]
fn keys_have_the_order_of_their_values_and_give_them_back() {
    let random = Random::from_seed(7);
    let types = [
        KeyType::Integer(1),
        KeyType::Integer(2),
        KeyType::Integer(4),
        KeyType::Integer(8),
        KeyType::Number,
        KeyType::Real,
        KeyType::Text,
        KeyType::Blob,
    ];
    for round in 0..40_000 {
        let parts: Vec<KeyPart> = (0..1 + random.below(3))
            .map(|_| part(types[random.below(8) as usize], random.one_in(2)))
            .collect();
        let make = || {
            parts
                .iter()
                .map(|p| value(&random, p))
                .collect::<Vec<Value>>()
        };
        let (a, b) = (make(), make());
        let (key_a, key_b) = (encode(&parts, &a), encode(&parts, &b));
        let wanted = a.iter().zip(&b).map(|(a, b)| order(a, b));
        let wanted = wanted.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then);
        assert_eq!(key_a.cmp(&key_b), wanted, "round {round}: {a:?} and {b:?}");
        // What follows a key's columns does not disturb them.
        let mut longer = key_a.clone();
        longer.extend([7, 0, 1]);
        let mut decoded = Vec::new();
        let end = decode_columns(&longer, &parts, &mut decoded).expect("it was encoded");
        assert_eq!(end, key_a.len());
        assert_eq!(skip_columns(&longer, &parts).expect("it was encoded"), end);
        let same = decoded.iter().zip(&a).all(|(d, a)| order(d, a).is_eq());
        assert!(same, "round {round}: {a:?} became {decoded:?}");
    }
}

#[test]
fn damaged_keys_are_errors() {
    let random = Random::from_seed(8);
    let parts = [
        part(KeyType::Text, true),
        part(KeyType::Number, false),
        part(KeyType::Integer(4), true),
    ];
    for _ in 0..20_000 {
        let values: Vec<Value> = parts.iter().map(|p| value(&random, p)).collect();
        let mut key = encode(&parts, &values);
        match random.below(3) {
            0 => key.truncate(random.below(key.len() as u64) as usize),
            1 => {
                let at = random.below(key.len() as u64) as usize;
                key[at] ^= 1 << random.below(8);
            }
            _ => {
                key = (0..random.below(20))
                    .map(|_| random.next_u64() as u8)
                    .collect()
            }
        }
        // No call panics, and both agree.
        let mut decoded = Vec::new();
        let end = decode_columns(&key, &parts, &mut decoded);
        if let Ok(end) = end {
            assert_eq!(skip_columns(&key, &parts).expect("it was decoded"), end);
        }
    }
}

#[test]
fn the_next_prefix_is_behind_all_keys_of_the_prefix() {
    assert_eq!(next_prefix(&[1, 2]), Some(vec![1, 3]));
    assert_eq!(next_prefix(&[1, 0xFF, 0xFF]), Some(vec![2]));
    assert_eq!(next_prefix(&[0xFF, 0xFF]), None);
    assert_eq!(next_prefix(&[]), None);
}

#[test]
fn a_value_of_another_type_is_refused() {
    let mut key = Vec::new();
    let wide = encode_key_value(
        &mut key,
        &part(KeyType::Integer(2), false),
        Value::Integer(40_000).as_ref(),
    );
    assert!(wide.is_err());
    let text = encode_key_value(
        &mut key,
        &part(KeyType::Integer(8), false),
        Value::from("7").as_ref(),
    );
    assert!(text.is_err());
    let null = encode_key_value(
        &mut key,
        &part(KeyType::Integer(8), false),
        Value::Null.as_ref(),
    );
    assert!(null.is_err());
}
