//! Texts of values in PostgreSQL's form, as the wire and COPY have them.

use super::SqlType;
use super::decimal::Decimal;
use crate::value::ValueRef;
use std::fmt::Write;

impl SqlType {
    /// Appends the value in PostgreSQL's text form. NULL appends nothing. A value of another kind
    /// than the type has is written as its kind is.
    pub fn write_text(self, value: ValueRef<'_>, out: &mut String) {
        match (self, value) {
            (_, ValueRef::Null) => {}
            (SqlType::Boolean, ValueRef::Integer(n)) => out.push(if n == 0 { 'f' } else { 't' }),
            (SqlType::Numeric(limits), ValueRef::Integer(n)) => {
                let _ = write!(out, "{n}");
                let scale = limits.map_or(0, |(_, scale)| scale);
                if scale > 0 {
                    out.push('.');
                    out.extend(std::iter::repeat_n('0', usize::from(scale)));
                }
            }
            (SqlType::Numeric(limits), ValueRef::Real(x)) if x.is_finite() => {
                out.push_str(&numeric_text(x, limits.map(|(_, scale)| scale)));
            }
            (SqlType::Real, ValueRef::Real(x)) => {
                let short = x as f32;
                if short.is_finite() {
                    write_shortest(&format!("{short:e}"), 6, out);
                } else {
                    out.push_str(&float_text(x));
                }
            }
            (SqlType::Double | SqlType::Real, ValueRef::Integer(n)) => {
                out.push_str(&float_text(n as f64));
            }
            // A whole result of an expression whose type was inferred as an integer.
            (ty, ValueRef::Real(x)) if ty.is_integer() && x.fract() == 0.0 && x.abs() < 1e15 => {
                let _ = write!(out, "{}", x as i64);
            }
            (_, ValueRef::Integer(n)) => {
                let _ = write!(out, "{n}");
            }
            (_, ValueRef::Real(x)) => out.push_str(&float_text(x)),
            (SqlType::Char(n), ValueRef::Text(text)) => {
                out.push_str(text);
                let blanks = (n as usize).saturating_sub(text.chars().count());
                out.extend(std::iter::repeat_n(' ', blanks));
            }
            (SqlType::Timestamptz, ValueRef::Text(text)) => {
                out.push_str(text);
                out.push_str("+00");
            }
            (_, ValueRef::Text(text)) => out.push_str(text),
            (_, ValueRef::Blob(bytes)) => out.push_str(&hex_text(bytes)),
        }
    }

    /// Returns the type of a name as [`SqlType`]'s `Display` writes it, such as
    /// `character varying(20)`.
    pub fn from_name(name: &str) -> Option<SqlType> {
        let (base, arguments) = match name.split_once('(') {
            Some((base, rest)) => (base, rest.strip_suffix(')')?),
            None => (name, ""),
        };
        let count = || arguments.parse::<u32>().ok();
        Some(match base {
            "boolean" => SqlType::Boolean,
            "smallint" => SqlType::SmallInt,
            "integer" => SqlType::Integer,
            "bigint" => SqlType::BigInt,
            "real" => SqlType::Real,
            "double precision" => SqlType::Double,
            "numeric" if arguments.is_empty() => SqlType::Numeric(None),
            "numeric" => {
                let (precision, scale) = arguments.split_once(',')?;
                SqlType::Numeric(Some((precision.parse().ok()?, scale.parse().ok()?)))
            }
            "text" => SqlType::Text,
            "character varying" if arguments.is_empty() => SqlType::Varchar(None),
            "character varying" => SqlType::Varchar(Some(count()?)),
            "character" => SqlType::Char(count()?),
            "bytea" => SqlType::Bytea,
            "date" => SqlType::Date,
            "time without time zone" => SqlType::Time,
            "timestamp without time zone" => SqlType::Timestamp,
            "timestamp with time zone" => SqlType::Timestamptz,
            "uuid" => SqlType::Uuid,
            "json" => SqlType::Json,
            "jsonb" => SqlType::Jsonb,
            _ => return None,
        })
    }
}

/// Returns `\x` and the hexadecimal digits of bytes.
pub(crate) fn hex_text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + bytes.len() * 2);
    out.push_str("\\x");
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Returns the digits of a number without an exponent, rounded and padded to the scale.
pub(crate) fn numeric_text(x: f64, scale: Option<u16>) -> String {
    match (Decimal::from_real(x), scale) {
        (Some(decimal), Some(scale)) => decimal.round(i32::from(scale)).text(usize::from(scale)),
        (Some(decimal), None) => decimal.text(0),
        (None, _) => float_text(x),
    }
}

/// Returns the shortest text that names a floating-point number, in PostgreSQL's form.
pub(crate) fn float_text(x: f64) -> String {
    let mut out = String::new();
    if x.is_nan() {
        out.push_str("NaN");
    } else if x.is_infinite() {
        out.push_str(if x > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        write_shortest(&format!("{x:e}"), 15, &mut out);
    }
    out
}

/// Appends a number given as digits with an exponent: with an exponent only if it is below -4 or
/// not below the limit.
fn write_shortest(scientific: &str, limit: i32, out: &mut String) {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= limit {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
        return;
    }
    if mantissa.starts_with('-') {
        out.push('-');
    }
    let unsigned = scientific.trim_start_matches('-');
    match Decimal::parse(unsigned) {
        Some(decimal) => out.push_str(&decimal.text(0)),
        None => out.push_str(unsigned),
    }
}
