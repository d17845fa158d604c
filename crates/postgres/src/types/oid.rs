//! Type numbers (OIDs), sizes and modifiers of types, as `pg_type` of PostgreSQL has them.

use basalt_sql::{SqlError, SqlResult, SqlState, SqlType};

/// The number of the type `text`.
pub const TEXT: u32 = 25;

/// Returns the number of a type.
pub fn type_oid(ty: SqlType) -> u32 {
    u32::try_from(basalt_sql::type_oid(ty)).unwrap_or(TEXT)
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
    i16::try_from(basalt_sql::type_length(ty)).unwrap_or(-1)
}

/// Returns the modifier: length, or precision and scale, with PostgreSQL's offset of four. It is -1
/// without one.
pub fn type_modifier(ty: SqlType) -> i32 {
    i32::try_from(basalt_sql::type_modifier(ty)).unwrap_or(-1)
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
