//! Conversion of values to types: what an INSERT or a cast does.

use super::SqlType;
use super::datetime;
use super::decimal::Decimal;
use super::json;
use super::text::{float_text, hex_text, numeric_text};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::value::Value;

impl SqlType {
    /// Returns the value as this type keeps it: what an INSERT into a column of the type stores.
    ///
    /// Fails with 22P02 or 22007 if a text has not the form of the type, with 22003 if a number is
    /// out of range, with 22001 if a text is too long, and with 42804 if values of this kind are
    /// never converted to the type.
    pub fn coerce(self, value: Value) -> SqlResult<Value> {
        if value.is_null() {
            return Ok(value);
        }
        match self {
            SqlType::Boolean => to_boolean(value),
            SqlType::SmallInt => to_integer(self, value, i64::from(i16::MIN), i64::from(i16::MAX)),
            SqlType::Integer => to_integer(self, value, i64::from(i32::MIN), i64::from(i32::MAX)),
            SqlType::BigInt => to_integer(self, value, i64::MIN, i64::MAX),
            SqlType::Real | SqlType::Double => to_float(self, value),
            SqlType::Numeric(limits) => to_numeric(self, value, limits),
            SqlType::Text => to_text(value).map(Value::Text),
            SqlType::Varchar(limit) => {
                let text = to_text(value)?;
                limit.map_or(Ok(Value::Text(text.clone())), |limit| self.fit(text, limit))
            }
            SqlType::Char(limit) => match self.fit(to_text(value)?, limit)? {
                Value::Text(mut text) => {
                    text.truncate(text.trim_end_matches(' ').len());
                    Ok(Value::Text(text))
                }
                other => Ok(other),
            },
            SqlType::Bytea => to_bytea(value),
            SqlType::Date => {
                let text = self.moment_text(value)?;
                Ok(Value::Text(datetime::date_text(datetime::parse_date(
                    &text,
                )?)))
            }
            SqlType::Time => {
                let us = datetime::parse_time(&self.moment_text(value)?)?;
                let mut out = String::new();
                datetime::write_time(us, &mut out);
                Ok(Value::Text(out))
            }
            SqlType::Timestamp => {
                let text = self.moment_text(value)?;
                Ok(Value::Text(datetime::timestamp_text(
                    datetime::parse_timestamp(&text)?,
                )))
            }
            SqlType::Timestamptz => {
                let text = self.moment_text(value)?;
                Ok(Value::Text(datetime::timestamp_text(
                    datetime::parse_timestamptz(&text)?,
                )))
            }
            SqlType::Uuid => to_uuid(value),
            SqlType::Json | SqlType::Jsonb => {
                let text = to_text(value)?;
                json::check(&text).map_err(|at| json_error(self, &text, at))?;
                Ok(Value::Text(text))
            }
        }
    }

    /// Returns the value as an explicit cast gives it: unlike [`SqlType::coerce`], a text that is
    /// too long is cut.
    pub fn cast(self, value: Value) -> SqlResult<Value> {
        let limit = match self {
            SqlType::Varchar(Some(limit)) | SqlType::Char(limit) => limit,
            _ => return self.coerce(value),
        };
        if value.is_null() {
            return Ok(value);
        }
        let mut text = to_text(value)?;
        if let Some((at, _)) = text.char_indices().nth(limit as usize) {
            text.truncate(at);
        }
        self.coerce(Value::Text(text))
    }

    /// Returns the value of a text in PostgreSQL's text form, as the wire and COPY have it.
    pub fn parse_text(self, text: &str) -> SqlResult<Value> {
        self.coerce(Value::Text(text.to_owned()))
    }

    /// Fails if a text has more characters than the type allows, except blanks at its end.
    fn fit(self, mut text: String, limit: u32) -> SqlResult<Value> {
        if let Some((at, _)) = text.char_indices().nth(limit as usize) {
            if text[at..].bytes().any(|b| b != b' ') {
                let message = format!("value too long for type {self}");
                return Err(SqlError::new(SqlState::STRING_TOO_LONG, message));
            }
            text.truncate(at);
        }
        Ok(Value::Text(text))
    }

    fn moment_text(self, value: Value) -> SqlResult<String> {
        match value {
            Value::Text(text) => Ok(text),
            other => Err(mismatch(self, &other)),
        }
    }
}

fn mismatch(ty: SqlType, value: &Value) -> SqlError {
    let from = match value {
        Value::Null => "NULL",
        Value::Integer(_) => "bigint",
        Value::Real(_) => "double precision",
        Value::Text(_) => "text",
        Value::Blob(_) => "bytea",
    };
    let message = format!("cannot convert a value of type {from} to type {ty}");
    SqlError::new(SqlState::DATATYPE_MISMATCH, message)
}

/// Returns the error for a text that has not the form of a type.
fn invalid_text(ty: SqlType, text: &str) -> SqlError {
    let name = match ty {
        SqlType::Numeric(_) => "numeric".to_string(),
        other => other.to_string(),
    };
    let message = format!("invalid input syntax for type {name}: \"{text}\"");
    SqlError::new(SqlState::INVALID_TEXT, message)
}

fn out_of_range(ty: SqlType) -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{ty} out of range"))
}

fn to_boolean(value: Value) -> SqlResult<Value> {
    let text = match value {
        Value::Integer(n) => return Ok(Value::from(n != 0)),
        Value::Text(text) => text,
        other => return Err(mismatch(SqlType::Boolean, &other)),
    };
    let word = text.trim().to_ascii_lowercase();
    let begins = |full: &str| !word.is_empty() && full.starts_with(&word);
    if word == "1" || word == "on" || begins("true") || begins("yes") {
        Ok(Value::from(true))
    } else if word == "0" || begins("false") || begins("no") || word == "of" || word == "off" {
        Ok(Value::from(false))
    } else {
        Err(invalid_text(SqlType::Boolean, &text))
    }
}

fn to_integer(ty: SqlType, value: Value, min: i64, max: i64) -> SqlResult<Value> {
    let n = match value {
        Value::Integer(n) => n,
        Value::Real(x) => {
            let rounded = x.round();
            // 2^63 is the first number that does not fit.
            if !(-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&rounded) {
                return Err(out_of_range(ty));
            }
            rounded as i64
        }
        Value::Text(text) => return integer_of_text(ty, &text, min, max),
        other => return Err(mismatch(ty, &other)),
    };
    match (min..=max).contains(&n) {
        true => Ok(Value::Integer(n)),
        false => Err(out_of_range(ty)),
    }
}

fn integer_of_text(ty: SqlType, text: &str, min: i64, max: i64) -> SqlResult<Value> {
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid_text(ty, text));
    }
    let n = trimmed
        .parse::<i64>()
        .ok()
        .filter(|n| (min..=max).contains(n));
    n.map(Value::Integer).ok_or_else(|| {
        let message = format!("value \"{text}\" is out of range for type {ty}");
        SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message)
    })
}

fn to_float(ty: SqlType, value: Value) -> SqlResult<Value> {
    let x = match value {
        Value::Integer(n) => n as f64,
        Value::Real(x) => x,
        Value::Text(text) => {
            let trimmed = text.trim();
            let parsed = trimmed.parse::<f64>();
            let x = parsed.map_err(|_| invalid_text(ty, &text))?;
            let names_infinity = trimmed
                .trim_start_matches(['+', '-'])
                .starts_with(['i', 'I']);
            if x.is_infinite() && !names_infinity {
                let message = format!("\"{text}\" is out of range for type {ty}");
                return Err(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message));
            }
            x
        }
        other => return Err(mismatch(ty, &other)),
    };
    if x.is_nan() {
        // The executor has no NaN: it would become NULL.
        return Err(SqlError::unsupported("NaN"));
    }
    if ty == SqlType::Real {
        let short = x as f32;
        if short.is_infinite() && x.is_finite() {
            return Err(out_of_range(ty));
        }
        return Ok(Value::Real(f64::from(short)));
    }
    Ok(Value::Real(x))
}

fn to_numeric(ty: SqlType, value: Value, limits: Option<(u16, u16)>) -> SqlResult<Value> {
    let decimal = match value {
        Value::Integer(n) if limits.is_none() => return Ok(Value::Integer(n)),
        Value::Integer(n) => Decimal::from_integer(n),
        Value::Real(x) => match Decimal::from_real(x) {
            Some(decimal) => decimal,
            None => return Err(SqlError::unsupported("NaN or infinity as a numeric")),
        },
        Value::Text(text) => match Decimal::parse(text.trim()) {
            Some(decimal) => decimal,
            None if matches!(
                text.trim().to_ascii_lowercase().as_str(),
                "nan" | "infinity"
            ) =>
            {
                return Err(SqlError::unsupported("NaN or infinity as a numeric"));
            }
            None => return Err(invalid_text(ty, &text)),
        },
        other => return Err(mismatch(ty, &other)),
    };
    let Some((precision, scale)) = limits else {
        return match decimal.to_value() {
            Value::Real(x) if x.is_infinite() => Err(out_of_range(SqlType::Numeric(None))),
            value => Ok(value),
        };
    };
    let rounded = decimal.round(i32::from(scale));
    if rounded.integer_digits() > i32::from(precision) - i32::from(scale) {
        let error = SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, "numeric field overflow");
        return Err(error.with_detail(format!(
            "A field with precision {precision}, scale {scale} must round to an absolute value \
             less than 10^{}.",
            i32::from(precision) - i32::from(scale)
        )));
    }
    Ok(rounded.to_value())
}

/// Returns the text of a value without a type: what a cast to text gives for numbers.
fn to_text(value: Value) -> SqlResult<String> {
    Ok(match value {
        Value::Null => String::new(),
        Value::Integer(n) => n.to_string(),
        Value::Real(x) if x.is_finite() && x.abs() < 1e15 => numeric_text(x, None),
        Value::Real(x) => float_text(x),
        Value::Text(text) => {
            if text.contains('\0') {
                let message = "invalid byte sequence for encoding \"UTF8\": 0x00";
                return Err(SqlError::new(SqlState("22021"), message));
            }
            text
        }
        Value::Blob(bytes) => hex_text(&bytes),
    })
}

fn to_bytea(value: Value) -> SqlResult<Value> {
    let text = match value {
        Value::Blob(bytes) => return Ok(Value::Blob(bytes)),
        Value::Text(text) => text,
        other => return Err(mismatch(SqlType::Bytea, &other)),
    };
    let bytes = match text.strip_prefix("\\x") {
        Some(hex) => hex_bytes(hex),
        None => escaped_bytes(text.as_bytes()),
    };
    bytes
        .map(Value::Blob)
        .ok_or_else(|| invalid_text(SqlType::Bytea, &text))
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|d| d as u8)
}

/// Returns the bytes of pairs of hexadecimal digits, with blanks between pairs.
pub(crate) fn hex_bytes(hex: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(hex.len() / 2);
    let mut bytes = hex.bytes().filter(|b| !b.is_ascii_whitespace());
    while let Some(high) = bytes.next() {
        out.push(hex_digit(high)? << 4 | hex_digit(bytes.next()?)?);
    }
    Some(out)
}

/// Returns the bytes of PostgreSQL's escape form: `\\` and `\ooo`.
fn escaped_bytes(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] != b'\\' {
            out.push(text[at]);
            at += 1;
        } else if text.get(at + 1) == Some(&b'\\') {
            out.push(b'\\');
            at += 2;
        } else {
            let digits = text.get(at + 1..at + 4)?;
            let octal = digits.iter().all(|d| (b'0'..=b'7').contains(d)) && digits[0] <= b'3';
            if !octal {
                return None;
            }
            out.push(digits.iter().fold(0, |n, d| n << 3 | (d - b'0')));
            at += 4;
        }
    }
    Some(out)
}

fn to_uuid(value: Value) -> SqlResult<Value> {
    let text = match value {
        Value::Text(text) => text,
        other => return Err(mismatch(SqlType::Uuid, &other)),
    };
    let mut inner = text.trim();
    if let Some(braced) = inner.strip_prefix('{') {
        inner = braced
            .strip_suffix('}')
            .ok_or_else(|| invalid_text(SqlType::Uuid, &text))?;
    }
    let mut out = String::with_capacity(36);
    let mut digits = 0;
    for c in inner.chars() {
        if c == '-' && digits > 0 && digits < 32 && digits % 4 == 0 {
            continue;
        }
        if !c.is_ascii_hexdigit() || digits == 32 {
            return Err(invalid_text(SqlType::Uuid, &text));
        }
        if matches!(digits, 8 | 12 | 16 | 20) {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
        digits += 1;
    }
    match digits {
        32 => Ok(Value::Text(out)),
        _ => Err(invalid_text(SqlType::Uuid, &text)),
    }
}

fn json_error(ty: SqlType, text: &str, at: usize) -> SqlError {
    let display: String = text.chars().take(40).collect();
    let message = format!("invalid input syntax for type {ty}: \"{display}\"");
    let error = SqlError::new(SqlState::INVALID_TEXT, message);
    error.with_detail(format!("The text is not JSON at byte {at}."))
}
