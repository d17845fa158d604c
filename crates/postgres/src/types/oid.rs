//! Type numbers (OIDs), sizes and modifiers of types, as `pg_type` of PostgreSQL has them.

use basalt_sql::{SqlError, SqlResult, SqlState, SqlType};

/// The number of the type `text`.
pub const TEXT: u32 = 25;

/// Returns the number of a type.
pub fn type_oid(ty: SqlType) -> u32 {
    match ty {
        SqlType::Boolean => 16,
        SqlType::Bytea => 17,
        SqlType::BigInt => 20,
        SqlType::SmallInt => 21,
        SqlType::Integer => 23,
        SqlType::Json => 114,
        SqlType::Real => 700,
        SqlType::Double => 701,
        SqlType::Char(_) => 1042,
        SqlType::Varchar(_) => 1043,
        SqlType::Date => 1082,
        SqlType::Time => 1083,
        SqlType::Timestamp => 1114,
        SqlType::Timestamptz => 1184,
        SqlType::Numeric(_) => 1700,
        SqlType::Uuid => 2950,
        SqlType::Jsonb => 3802,
        _ => TEXT,
    }
}

/// Returns the number of an array of a type.
pub fn array_oid(items: SqlType) -> u32 {
    match items {
        SqlType::Boolean => 1000,
        SqlType::SmallInt => 1005,
        SqlType::Integer => 1007,
        SqlType::BigInt => 1016,
        _ => 1009,
    }
}

/// Returns the bytes of a value, or -1 if its length varies.
pub fn type_size(ty: SqlType) -> i16 {
    match ty {
        SqlType::Boolean => 1,
        SqlType::SmallInt => 2,
        SqlType::Integer | SqlType::Real | SqlType::Date => 4,
        SqlType::BigInt
        | SqlType::Double
        | SqlType::Time
        | SqlType::Timestamp
        | SqlType::Timestamptz => 8,
        SqlType::Uuid => 16,
        _ => -1,
    }
}

/// Returns the modifier: length, or precision and scale, with PostgreSQL's offset of four. It is -1
/// without one.
pub fn type_modifier(ty: SqlType) -> i32 {
    match ty {
        SqlType::Varchar(Some(n)) | SqlType::Char(n) => n as i32 + 4,
        SqlType::Numeric(Some((precision, scale))) => {
            ((i32::from(precision) << 16) | i32::from(scale)) + 4
        }
        _ => -1,
    }
}

/// Returns the type that a client declared for a parameter. 0 and `unknown` leave the choice to the
/// statement, which is `None`.
///
/// Errors: 0A000 for the numbers of other types.
pub fn declared_type(oid: u32) -> SqlResult<Option<SqlType>> {
    Ok(Some(match oid {
        0 | 705 => return Ok(None),
        16 => SqlType::Boolean,
        17 => SqlType::Bytea,
        20 => SqlType::BigInt,
        21 => SqlType::SmallInt,
        23 => SqlType::Integer,
        // Object numbers are unsigned, and names and single characters are texts.
        26 | 2205 | 2206 => SqlType::BigInt,
        18 | 19 | TEXT => SqlType::Text,
        114 => SqlType::Json,
        700 => SqlType::Real,
        701 => SqlType::Double,
        1042 => SqlType::Text,
        1043 => SqlType::Varchar(None),
        1082 => SqlType::Date,
        1083 => SqlType::Time,
        1114 => SqlType::Timestamp,
        1184 => SqlType::Timestamptz,
        1700 => SqlType::Numeric(None),
        2950 => SqlType::Uuid,
        3802 => SqlType::Jsonb,
        _ => {
            return Err(SqlError::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!("parameters of the type with OID {oid} are not supported"),
            ));
        }
    }))
}
