//! Keys: encoded so that their bytes have the order of their values.
//!
//! A column of a primary key is never NULL and has no marker. A column of an index begins with a
//! marker, 0 for NULL and 1 for a value, so that NULL is before all values. The key of an index
//! entry ends with the primary key of its row, unless the index is unique and no column is NULL.

use crate::catalog::{IndexDef, TableDef};
use crate::types::SqlType;
use crate::value::{Value, ValueRef};
use basalt::{Error, ErrorKind, Result};

/// From this size on a float stands for several integers.
const SHARED: f64 = (1u64 << 53) as f64;

/// How the values of a type are encoded in keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// An integer of so many bytes.
    Integer(u8),
    /// A number that is whole or a float.
    Number,
    /// A float.
    Real,
    /// Text, in the order of its bytes.
    Text,
    /// Bytes.
    Blob,
}

impl KeyType {
    /// Returns how values of a type are encoded.
    pub fn of(ty: SqlType) -> KeyType {
        match ty {
            SqlType::Boolean => KeyType::Integer(1),
            SqlType::SmallInt => KeyType::Integer(2),
            SqlType::Integer => KeyType::Integer(4),
            SqlType::BigInt => KeyType::Integer(8),
            SqlType::Numeric(_) => KeyType::Number,
            SqlType::Real | SqlType::Double => KeyType::Real,
            SqlType::Bytea => KeyType::Blob,
            _ => KeyType::Text,
        }
    }
}

/// A column of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPart {
    /// Position of the column.
    pub column: u16,
    /// How its values are encoded.
    pub ty: KeyType,
    /// Its values have markers.
    pub marked: bool,
}

impl KeyPart {
    /// Returns the columns of a table's primary key, or the hidden row number, which has the
    /// position after all columns.
    pub fn of_primary_key(table: &TableDef) -> Vec<KeyPart> {
        if table.primary_key.is_empty() {
            return vec![KeyPart {
                column: table.columns.len() as u16,
                ty: KeyType::Integer(8),
                marked: false,
            }];
        }
        let columns = table.primary_key.iter();
        let part = |column: &u16| KeyPart {
            column: *column,
            ty: KeyType::of(table.columns[usize::from(*column)].ty),
            marked: false,
        };
        columns.map(part).collect()
    }

    /// Returns the columns of an index, without those of the primary key.
    pub fn of_index(table: &TableDef, index: &IndexDef) -> Vec<KeyPart> {
        let part = |column: &u16| KeyPart {
            column: *column,
            ty: KeyType::of(table.columns[usize::from(*column)].ty),
            marked: true,
        };
        index.columns.iter().map(part).collect()
    }
}

/// Appends a value of a key.
///
/// Errors: `InvalidArgument` for a value that its type does not have.
pub fn encode_key_value(out: &mut Vec<u8>, part: &KeyPart, value: ValueRef<'_>) -> Result<()> {
    if part.marked {
        out.push(u8::from(value != ValueRef::Null));
    }
    match (part.ty, value) {
        (_, ValueRef::Null) if part.marked => {}
        (KeyType::Integer(bytes), ValueRef::Integer(n)) => {
            let bits = u32::from(bytes) * 8;
            if bits < 64 && (n >= 1 << (bits - 1) || n < -(1 << (bits - 1))) {
                return Err(wrong(part, value));
            }
            let ordered = (n as u64) ^ (1 << (bits - 1));
            out.extend_from_slice(&ordered.to_be_bytes()[8 - usize::from(bytes)..]);
        }
        (KeyType::Number, ValueRef::Integer(n)) => {
            let rounded = n as f64;
            put_float(out, rounded);
            if rounded.abs() >= SHARED {
                // The float is shared by several integers: the difference tells them apart.
                let difference = i128::from(n) - rounded as i128;
                out.extend_from_slice(&((difference + (1 << 15)) as u16).to_be_bytes());
            }
        }
        (KeyType::Number, ValueRef::Real(x)) => {
            put_float(out, x);
            if x.abs() >= SHARED {
                out.extend_from_slice(&(1u16 << 15).to_be_bytes());
            }
        }
        (KeyType::Real, ValueRef::Real(x)) => put_float(out, x),
        (KeyType::Real, ValueRef::Integer(n)) => put_float(out, n as f64),
        (KeyType::Text, ValueRef::Text(text)) => put_escaped(out, text.as_bytes()),
        (KeyType::Blob, ValueRef::Blob(bytes)) => put_escaped(out, bytes),
        _ => return Err(wrong(part, value)),
    }
    Ok(())
}

fn wrong(part: &KeyPart, value: ValueRef<'_>) -> Error {
    Error::invalid(format!(
        "a key column of type {:?} cannot have the value {value:?}",
        part.ty
    ))
}

fn put_float(out: &mut Vec<u8>, x: f64) {
    // -0 and 0 are equal, and so are all NaNs.
    let x = if x == 0.0 { 0.0 } else { x };
    let bits = if x.is_nan() {
        f64::NAN.to_bits()
    } else {
        x.to_bits()
    };
    let ordered = match bits >> 63 {
        0 => bits | 1 << 63,
        _ => !bits,
    };
    out.extend_from_slice(&ordered.to_be_bytes());
}

fn put_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(zero) = rest.iter().position(|b| *b == 0) {
        out.extend_from_slice(&rest[..=zero]);
        out.push(0xFF);
        rest = &rest[zero + 1..];
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(&[0, 1]);
}

/// Returns the key of a row: its encoded primary key. `row_number` is that of a table without one.
///
/// Errors: `InvalidArgument` for a value that its column does not have.
pub fn primary_key(parts: &[KeyPart], values: &[Value], row_number: i64) -> Result<Vec<u8>> {
    let mut key = Vec::with_capacity(parts.len() * 8);
    let number = Value::Integer(row_number);
    for part in parts {
        let value = values.get(usize::from(part.column)).unwrap_or(&number);
        encode_key_value(&mut key, part, value.as_ref())?;
    }
    Ok(key)
}

/// Returns the least key after all keys that begin with `prefix`; `None` if there is none.
pub fn next_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != 0xFF)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

/// Returns the position after the columns `parts` of a key.
///
/// Errors: `Corruption` for malformed bytes.
pub fn skip_columns(key: &[u8], parts: &[KeyPart]) -> Result<usize> {
    let mut at = 0;
    for part in parts {
        at = skip_column(key, at, part).ok_or_else(|| damaged(key))?;
    }
    Ok(at)
}

fn damaged(key: &[u8]) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!(
            "a key of {} bytes is not a key of its table or index",
            key.len()
        ),
    )
}

fn skip_column(key: &[u8], mut at: usize, part: &KeyPart) -> Option<usize> {
    if part.marked {
        let marker = *key.get(at)?;
        at += 1;
        match marker {
            0 => return Some(at),
            1 => {}
            _ => return None,
        }
    }
    let end = match part.ty {
        KeyType::Integer(bytes) => at + usize::from(bytes),
        KeyType::Real => at + 8,
        KeyType::Number => at + 8 + number_tail(key.get(at..at + 8)?),
        KeyType::Text | KeyType::Blob => loop {
            let zero = at + key.get(at..)?.iter().position(|b| *b == 0)?;
            at = zero + 2;
            match key.get(zero + 1)? {
                0xFF => {}
                1 => break at,
                _ => return None,
            }
        },
    };
    (end <= key.len()).then_some(end)
}

/// Returns the number of bytes that follow the float of a number.
fn number_tail(float: &[u8]) -> usize {
    match take_float(float).abs() >= SHARED {
        true => 2,
        false => 0,
    }
}

fn take_float(bytes: &[u8]) -> f64 {
    let ordered = u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    f64::from_bits(match ordered >> 63 {
        0 => !ordered,
        _ => ordered & !(1 << 63),
    })
}

/// Decodes the columns `parts` of a key, and returns the position after them.
///
/// Errors: `Corruption` for malformed bytes.
pub fn decode_columns(key: &[u8], parts: &[KeyPart], values: &mut Vec<Value>) -> Result<usize> {
    let mut at = 0;
    for part in parts {
        let end = skip_column(key, at, part).ok_or_else(|| damaged(key))?;
        values.push(decode_column(&key[at..end], part).ok_or_else(|| damaged(key))?);
        at = end;
    }
    Ok(at)
}

/// Decodes one column, whose length was checked.
fn decode_column(mut bytes: &[u8], part: &KeyPart) -> Option<Value> {
    if part.marked {
        if bytes[0] == 0 {
            return Some(Value::Null);
        }
        bytes = &bytes[1..];
    }
    Some(match part.ty {
        KeyType::Integer(n) => {
            let bits = u32::from(n) * 8;
            let mut wide = [0; 8];
            wide[8 - usize::from(n)..].copy_from_slice(bytes);
            let ordered = u64::from_be_bytes(wide) ^ (1 << (bits - 1));
            // The sign is extended.
            Value::Integer(((ordered << (64 - bits)) as i64) >> (64 - bits))
        }
        KeyType::Real => Value::Real(take_float(bytes)),
        KeyType::Number => {
            let x = take_float(&bytes[..8]);
            let tail = bytes.get(8..10).map_or(0, |tail| {
                i128::from(u16::from_be_bytes([tail[0], tail[1]])) - (1 << 15)
            });
            match i64::try_from((x as i128).saturating_add(tail)) {
                Ok(n) if x.fract() == 0.0 => Value::Integer(n),
                _ => Value::Real(x),
            }
        }
        KeyType::Text => Value::Text(String::from_utf8(unescaped(bytes)).ok()?),
        KeyType::Blob => Value::Blob(unescaped(bytes)),
    })
}

fn unescaped(bytes: &[u8]) -> Vec<u8> {
    let mut rest = &bytes[..bytes.len() - 2];
    let mut out = Vec::with_capacity(rest.len());
    while let Some(zero) = rest.iter().position(|b| *b == 0) {
        out.extend_from_slice(&rest[..=zero]);
        rest = &rest[zero + 2..];
    }
    out.extend_from_slice(rest);
    out
}

/// What a value is in the type of a key's column.
pub enum Exact {
    /// The value in the type of the column. A NULL is one for a column with a marker.
    Value(Value),
    /// No value of the column is equal to it.
    Never,
    /// The types do not tell.
    Unknown,
}

/// Returns a value that is compared by `=` in the type of a key's column.
pub fn exact_value(part: &KeyPart, value: &Value) -> Exact {
    if value.is_null() {
        // `= NULL` holds for no row; IS NULL has a NULL as its value, and a column with a marker.
        return match part.marked {
            true => Exact::Value(Value::Null),
            false => Exact::Never,
        };
    }
    match (part.ty, value) {
        (KeyType::Integer(bytes), Value::Integer(n)) => match is_inside(*n, bytes) {
            true => Exact::Value(Value::Integer(*n)),
            false => Exact::Never,
        },
        (KeyType::Integer(bytes), Value::Real(x)) => match whole(*x) {
            Some(n) if is_inside(n, bytes) => Exact::Value(Value::Integer(n)),
            // The ends of the integers are no floats of their own.
            _ if x.abs() >= SHARED => Exact::Unknown,
            _ => Exact::Never,
        },
        (KeyType::Number, Value::Integer(_)) => Exact::Value(value.clone()),
        (KeyType::Number, Value::Real(x)) => Exact::Value(match whole(*x) {
            Some(n) => Value::Integer(n),
            None => Value::Real(*x),
        }),
        (KeyType::Real, Value::Integer(n)) if (*n as f64).abs() >= SHARED => Exact::Unknown,
        (KeyType::Real, Value::Integer(n)) => Exact::Value(Value::Real(*n as f64)),
        (KeyType::Real, Value::Real(_))
        | (KeyType::Text, Value::Text(_))
        | (KeyType::Blob, Value::Blob(_)) => Exact::Value(value.clone()),
        _ => Exact::Unknown,
    }
}

/// Returns `true` if an integer of so many bytes can have the value.
pub fn is_inside(n: i64, bytes: u8) -> bool {
    let bits = u32::from(bytes) * 8;
    bits == 64 || (-(1 << (bits - 1))..1 << (bits - 1)).contains(&n)
}

/// Returns a float as an integer, if it is one and not at the ends of the integers.
pub fn whole(x: f64) -> Option<i64> {
    let is_inside = (-9.223_372_036_854_775e18..9.223_372_036_854_775e18).contains(&x);
    (is_inside && x.fract() == 0.0).then_some(x as i64)
}

#[cfg(test)]
mod tests;
