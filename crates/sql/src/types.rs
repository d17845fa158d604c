//! [`SqlType`]: the declared types of columns, parameters and results.

mod coerce;
pub(crate) mod datetime;
pub(crate) mod decimal;
mod json;
mod text;

#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use coerce::hex_bytes;
pub(crate) use text::hex_text;

/// A declared type.
///
/// The executor has five kinds of values ([`crate::Value`]). The table says which kind the values
/// of a type are:
///
/// | type | kind of value |
/// |---|---|
/// | `Boolean` | `Integer`, 0 or 1 |
/// | `SmallInt`, `Integer`, `BigInt` | `Integer` |
/// | `Real`, `Double` | `Real` |
/// | `Numeric` | `Integer` if whole, else `Real`, rounded to its scale |
/// | `Text`, `Varchar`, `Char` | `Text` |
/// | `Bytea` | `Blob` |
/// | `Date` | `Text`, `YYYY-MM-DD` |
/// | `Time` | `Text`, `HH:MM:SS[.ffffff]` |
/// | `Timestamp` | `Text`, `YYYY-MM-DD HH:MM:SS[.ffffff]` |
/// | `Timestamptz` | the same, in UTC, without a suffix |
/// | `Uuid` | `Text`, lower case, with hyphens |
/// | `Json`, `Jsonb` | `Text` |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SqlType {
    /// `BOOLEAN`.
    Boolean,
    /// `SMALLINT`: 16 bits.
    SmallInt,
    /// `INTEGER`: 32 bits.
    Integer,
    /// `BIGINT`: 64 bits.
    BigInt,
    /// `REAL`: a float of 32 bits.
    Real,
    /// `DOUBLE PRECISION`: a float of 64 bits.
    Double,
    /// `NUMERIC`, with its precision and scale in decimal digits if they are given.
    Numeric(Option<(u16, u16)>),
    /// `TEXT`.
    Text,
    /// `VARCHAR`, with its most characters if they are given.
    Varchar(Option<u32>),
    /// `CHAR(n)`: texts of `n` characters, padded with blanks when they are shown.
    Char(u32),
    /// `BYTEA`.
    Bytea,
    /// `DATE`.
    Date,
    /// `TIME`, without a zone.
    Time,
    /// `TIMESTAMP`, without a zone.
    Timestamp,
    /// `TIMESTAMP WITH TIME ZONE`, kept in UTC.
    Timestamptz,
    /// `UUID`.
    Uuid,
    /// `JSON`.
    Json,
    /// `JSONB`. It is kept as text, as `JSON` is.
    Jsonb,
}

impl SqlType {
    /// Returns `true` for the types whose values are numbers.
    pub fn is_number(self) -> bool {
        matches!(
            self,
            SqlType::SmallInt
                | SqlType::Integer
                | SqlType::BigInt
                | SqlType::Real
                | SqlType::Double
                | SqlType::Numeric(_)
        )
    }

    /// Returns `true` for the integer types.
    pub fn is_integer(self) -> bool {
        matches!(self, SqlType::SmallInt | SqlType::Integer | SqlType::BigInt)
    }
}

impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SqlType::Boolean => f.write_str("boolean"),
            SqlType::SmallInt => f.write_str("smallint"),
            SqlType::Integer => f.write_str("integer"),
            SqlType::BigInt => f.write_str("bigint"),
            SqlType::Real => f.write_str("real"),
            SqlType::Double => f.write_str("double precision"),
            SqlType::Numeric(None) => f.write_str("numeric"),
            SqlType::Numeric(Some((precision, scale))) => write!(f, "numeric({precision},{scale})"),
            SqlType::Text => f.write_str("text"),
            SqlType::Varchar(None) => f.write_str("character varying"),
            SqlType::Varchar(Some(n)) => write!(f, "character varying({n})"),
            SqlType::Char(n) => write!(f, "character({n})"),
            SqlType::Bytea => f.write_str("bytea"),
            SqlType::Date => f.write_str("date"),
            SqlType::Time => f.write_str("time without time zone"),
            SqlType::Timestamp => f.write_str("timestamp without time zone"),
            SqlType::Timestamptz => f.write_str("timestamp with time zone"),
            SqlType::Uuid => f.write_str("uuid"),
            SqlType::Json => f.write_str("json"),
            SqlType::Jsonb => f.write_str("jsonb"),
        }
    }
}
