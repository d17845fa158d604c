//! Values on the wire: type numbers, and the text and binary formats of every type in both
//! directions.

mod datetime;
mod numeric;
mod oid;

use basalt_sql::{SqlError, SqlResult, SqlState, SqlType, Value, ValueRef, array_items};
pub use oid::{TEXT, array_oid, declared_type, type_modifier, type_oid, type_size};
use std::io::Write as _;

/// The format of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As text.
    Text,
    /// In the type's binary form.
    Binary,
}

impl Format {
    /// Returns the format with a code of the protocol.
    ///
    /// Errors: 22023 for another code.
    pub fn of_code(code: i16) -> SqlResult<Format> {
        match code {
            0 => Ok(Format::Text),
            1 => Ok(Format::Binary),
            _ => Err(SqlError::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("unsupported format code: {code}"),
            )),
        }
    }
}

/// How a column of a result is sent.
#[derive(Debug, Clone, Copy)]
pub struct ColumnFormat {
    /// The declared type.
    pub ty: SqlType,
    /// The type of the items, for an array.
    pub array: Option<SqlType>,
    /// The format that the client wants.
    pub format: Format,
}

/// Maximum bytes of one value. A message has at most `i32::MAX` bytes.
const MAX_VALUE_BYTES: usize = 1 << 30;

/// Appends a value after its length, or -1 for NULL. `scratch` is memory for conversions.
///
/// Errors: 22003, 22007 and 22P02 if the binary form of the type cannot hold the value; 54000 if it
/// is longer than 1 GiB.
pub fn put_value(
    column: ColumnFormat,
    value: ValueRef<'_>,
    scratch: &mut String,
    out: &mut Vec<u8>,
) -> SqlResult<()> {
    if let ValueRef::Null = value {
        out.extend_from_slice(&(-1_i32).to_be_bytes());
        return Ok(());
    }
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    match column.format {
        Format::Text => put_text(column.ty, value, scratch, out),
        Format::Binary => match (column.array, value) {
            (Some(items), ValueRef::Text(text)) => put_array(items, text, scratch, out)?,
            _ => put_binary(column.ty, value, scratch, out)?,
        },
    }
    let len = out.len() - begin - 4;
    if len > MAX_VALUE_BYTES {
        return Err(SqlError::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!(
                "a value of {len} bytes is too large to send: the limit is {MAX_VALUE_BYTES} bytes"
            ),
        ));
    }
    out[begin..begin + 4].copy_from_slice(&(len as i32).to_be_bytes());
    Ok(())
}

/// Appends the binary form of an array of one dimension.
fn put_array(items: SqlType, text: &str, scratch: &mut String, out: &mut Vec<u8>) -> SqlResult<()> {
    let all = array_items(text);
    let has_null = all.iter().any(Option::is_none);
    let dimensions = i32::from(!all.is_empty());
    for number in [dimensions, i32::from(has_null), type_oid(items) as i32] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    if !all.is_empty() {
        out.extend_from_slice(&(all.len() as i32).to_be_bytes());
        out.extend_from_slice(&1_i32.to_be_bytes());
    }
    let column = ColumnFormat {
        ty: items,
        array: None,
        format: Format::Binary,
    };
    for item in all {
        let value = match item {
            Some(text) => items.cast(Value::Text(text))?,
            None => Value::Null,
        };
        put_value(column, value.as_ref(), scratch, out)?;
    }
    Ok(())
}

/// Appends the text of a value that is not NULL.
pub fn put_text(ty: SqlType, value: ValueRef<'_>, scratch: &mut String, out: &mut Vec<u8>) {
    match (ty, value) {
        // These are kept as they are shown.
        (
            SqlType::Text
            | SqlType::Varchar(_)
            | SqlType::Date
            | SqlType::Time
            | SqlType::Timestamp
            | SqlType::Uuid
            | SqlType::Json
            | SqlType::Jsonb,
            ValueRef::Text(text),
        ) => out.extend_from_slice(text.as_bytes()),
        (SqlType::SmallInt | SqlType::Integer | SqlType::BigInt, ValueRef::Integer(n)) => {
            let _ = write!(out, "{n}");
        }
        _ => {
            scratch.clear();
            ty.write_text(value, scratch);
            out.extend_from_slice(scratch.as_bytes());
        }
    }
}

/// Returns an error for a value that the binary form of a type cannot hold.
fn unfit(ty: SqlType, value: ValueRef<'_>) -> SqlError {
    let mut text = String::new();
    ty.write_text(value, &mut text);
    text.truncate(text.floor_char_boundary(80));
    SqlError::new(
        SqlState::NUMERIC_OUT_OF_RANGE,
        format!("value \"{text}\" is out of range for type {ty}"),
    )
}

/// Appends the binary form of a value that is not NULL.
fn put_binary(
    ty: SqlType,
    value: ValueRef<'_>,
    scratch: &mut String,
    out: &mut Vec<u8>,
) -> SqlResult<()> {
    match (ty, value) {
        (SqlType::Boolean, ValueRef::Integer(n)) => out.push(u8::from(n != 0)),
        (SqlType::SmallInt, ValueRef::Integer(n)) => {
            let n = i16::try_from(n).map_err(|_| unfit(ty, value))?;
            out.extend_from_slice(&n.to_be_bytes());
        }
        (SqlType::Integer, ValueRef::Integer(n)) => {
            let n = i32::try_from(n).map_err(|_| unfit(ty, value))?;
            out.extend_from_slice(&n.to_be_bytes());
        }
        (SqlType::BigInt, ValueRef::Integer(n)) => out.extend_from_slice(&n.to_be_bytes()),
        (SqlType::Real, ValueRef::Real(x)) => out.extend_from_slice(&(x as f32).to_be_bytes()),
        (SqlType::Real, ValueRef::Integer(n)) => out.extend_from_slice(&(n as f32).to_be_bytes()),
        (SqlType::Double, ValueRef::Real(x)) => out.extend_from_slice(&x.to_be_bytes()),
        (SqlType::Double, ValueRef::Integer(n)) => out.extend_from_slice(&(n as f64).to_be_bytes()),
        (SqlType::Numeric(_), ValueRef::Integer(_) | ValueRef::Real(_)) => {
            scratch.clear();
            ty.write_text(value, scratch);
            numeric::put_numeric(scratch, out).ok_or_else(|| unfit(ty, value))?;
        }
        (SqlType::Bytea, ValueRef::Blob(bytes)) => out.extend_from_slice(bytes),
        (SqlType::Date, ValueRef::Text(text)) => {
            let days = datetime::parse_date(text).ok_or_else(|| unfit(ty, value))?;
            out.extend_from_slice(&days.to_be_bytes());
        }
        (SqlType::Time, ValueRef::Text(text)) => {
            let micros = datetime::parse_time(text).ok_or_else(|| unfit(ty, value))?;
            out.extend_from_slice(&micros.to_be_bytes());
        }
        (SqlType::Timestamp | SqlType::Timestamptz, ValueRef::Text(text)) => {
            let micros = datetime::parse_timestamp(text).ok_or_else(|| unfit(ty, value))?;
            out.extend_from_slice(&micros.to_be_bytes());
        }
        (SqlType::Uuid, ValueRef::Text(text)) => {
            out.extend_from_slice(&uuid_bytes(text).ok_or_else(|| unfit(ty, value))?);
        }
        (SqlType::Jsonb, ValueRef::Text(text)) => {
            out.push(JSONB_VERSION);
            out.extend_from_slice(text.as_bytes());
        }
        (SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) | SqlType::Json, _) => {
            put_text(ty, value, scratch, out);
        }
        _ if type_oid(ty) == TEXT => put_text(ty, value, scratch, out),
        // The executor's value is of another kind than the inferred type.
        _ => {
            let coerced = ty.coerce(value.to_value())?;
            let is_same =
                std::mem::discriminant(&coerced) == std::mem::discriminant(&value.to_value());
            if is_same || coerced.is_null() {
                return Err(unfit(ty, value));
            }
            put_binary(ty, coerced.as_ref(), scratch, out)?;
        }
    }
    Ok(())
}

/// The first byte of a binary JSONB.
const JSONB_VERSION: u8 = 1;

fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let mut digits = text.bytes().filter(|b| *b != b'-');
    let mut out = [0; 16];
    for byte in &mut out {
        let high = (digits.next()? as char).to_digit(16)?;
        let low = (digits.next()? as char).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    digits.next().is_none().then_some(out)
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let mut out = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        for digit in [byte >> 4, byte & 15] {
            out.extend(char::from_digit(digit.into(), 16));
        }
    }
    out
}

/// Returns the error for bytes that are not UTF-8.
pub fn not_utf8(bytes: &[u8]) -> SqlError {
    let at = std::str::from_utf8(bytes).map_or_else(|e| e.valid_up_to(), str::len);
    let byte = bytes.get(at).copied().unwrap_or_default();
    SqlError::new(
        SqlState("22021"),
        format!("invalid byte sequence for encoding \"UTF8\": 0x{byte:02x}"),
    )
}

fn text_of(bytes: &[u8]) -> SqlResult<&str> {
    let text = std::str::from_utf8(bytes).map_err(|_| not_utf8(bytes))?;
    match text.contains('\0') {
        true => Err(SqlError::new(
            SqlState("22021"),
            "invalid byte sequence for encoding \"UTF8\": 0x00",
        )),
        false => Ok(text),
    }
}

/// Returns the value of a parameter that is not NULL.
///
/// Errors: those of [`SqlType::parse_text`], 22P03 for a malformed binary form, 22008 for a date or
/// time out of range, 22021 for a text that is not UTF-8.
pub fn parameter(ty: SqlType, format: Format, bytes: &[u8]) -> SqlResult<Value> {
    match format {
        Format::Text => ty.parse_text(text_of(bytes)?),
        Format::Binary => parse_binary(ty, bytes),
    }
}

/// Returns a float. SQLite would take NaN for NULL.
fn float(ty: SqlType, x: f64) -> SqlResult<Value> {
    match x.is_nan() {
        true => Err(SqlError::unsupported(format!("NaN of type {ty}"))),
        false => Ok(Value::Real(x)),
    }
}

fn fixed<const N: usize>(ty: SqlType, bytes: &[u8]) -> SqlResult<[u8; N]> {
    bytes.try_into().map_err(|_| malformed(ty))
}

fn malformed(ty: SqlType) -> SqlError {
    SqlError::new(
        SqlState("22P03"),
        format!("incorrect binary data format for type {ty}"),
    )
}

fn in_range(ty: SqlType, text: Option<String>) -> SqlResult<Value> {
    let overflow = || {
        SqlError::new(
            SqlState::DATETIME_OVERFLOW,
            format!("a binary value of type {ty} is out of range"),
        )
    };
    ty.parse_text(&text.ok_or_else(overflow)?)
}

fn parse_binary(ty: SqlType, bytes: &[u8]) -> SqlResult<Value> {
    Ok(match ty {
        SqlType::Boolean => match bytes {
            [byte] => Value::Integer((*byte != 0).into()),
            _ => return Err(malformed(ty)),
        },
        SqlType::SmallInt | SqlType::Integer | SqlType::BigInt => parse_integer(ty, bytes)?,
        SqlType::Real => float(ty, f32::from_be_bytes(fixed(ty, bytes)?).into())?,
        SqlType::Double => float(ty, f64::from_be_bytes(fixed(ty, bytes)?))?,
        SqlType::Numeric(_) => {
            let text = numeric::numeric_text(bytes).ok_or_else(|| malformed(ty))?;
            ty.parse_text(&text)?
        }
        SqlType::Bytea => Value::Blob(bytes.to_vec()),
        SqlType::Date => {
            let days = i32::from_be_bytes(fixed(ty, bytes)?);
            in_range(ty, datetime::date_text(days))?
        }
        SqlType::Time => {
            let micros = i64::from_be_bytes(fixed(ty, bytes)?);
            in_range(ty, datetime::time_text(micros))?
        }
        SqlType::Timestamp => {
            let micros = i64::from_be_bytes(fixed(ty, bytes)?);
            in_range(ty, datetime::timestamp_text(micros))?
        }
        SqlType::Timestamptz => {
            let micros = i64::from_be_bytes(fixed(ty, bytes)?);
            // A text without a zone is in the session's zone, and the number is in UTC.
            let text = datetime::timestamp_text(micros);
            in_range(
                ty,
                text.map(|t| if t.ends_with('y') { t } else { with_zone(&t) }),
            )?
        }
        SqlType::Uuid => Value::Text(uuid_text(fixed(ty, bytes)?)),
        SqlType::Jsonb => match bytes {
            [JSONB_VERSION, text @ ..] => ty.parse_text(text_of(text)?)?,
            _ => return Err(malformed(ty)),
        },
        _ => ty.parse_text(text_of(bytes)?)?,
    })
}

/// Returns a timestamp with the zone UTC after the time.
fn with_zone(text: &str) -> String {
    match text.strip_suffix(" BC") {
        Some(text) => format!("{text}+00 BC"),
        None => format!("{text}+00"),
    }
}

/// Returns an integer of 2, 4 or 8 bytes. The width need not be that of the type: a client may send
/// an object number of 4 bytes for a `bigint`.
fn parse_integer(ty: SqlType, bytes: &[u8]) -> SqlResult<Value> {
    let n = match bytes.len() {
        2 => i16::from_be_bytes(fixed(ty, bytes)?).into(),
        4 => i32::from_be_bytes(fixed(ty, bytes)?).into(),
        8 => i64::from_be_bytes(fixed(ty, bytes)?),
        _ => return Err(malformed(ty)),
    };
    let fits = match ty {
        SqlType::SmallInt => i16::try_from(n).is_ok(),
        SqlType::Integer => i32::try_from(n).is_ok(),
        _ => true,
    };
    match fits {
        true => Ok(Value::Integer(n)),
        false => Err(unfit(ty, ValueRef::Integer(n))),
    }
}

#[cfg(test)]
mod tests;
