//! Names of types: from PostgreSQL's names and aliases to [`SqlType`].

use super::name;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{CharacterLength, DataType, ExactNumberInfo, TimezoneInfo, TypeModifier};

/// A type as it may stand in a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TypeName {
    /// A type of columns.
    Sql(SqlType),
    /// SERIAL of a type: the column gets a sequence.
    Serial(SqlType),
    /// INTERVAL, of expressions alone.
    Interval,
    /// `regclass`: the number or name of a relation.
    Regclass,
    /// `regtype`: the number or name of a type.
    Regtype,
    /// `oid`, `name` and other types of the system catalog, which are kept as they are.
    System(SqlType),
}

impl TypeName {
    /// Returns the type of a column; refuses those of expressions alone.
    pub(super) fn column(self) -> SqlResult<SqlType> {
        match self {
            TypeName::Sql(ty) | TypeName::Serial(ty) | TypeName::System(ty) => Ok(ty),
            TypeName::Interval => Err(SqlError::unsupported("a column of type interval")),
            TypeName::Regclass => Err(SqlError::unsupported("a column of type regclass")),
            TypeName::Regtype => Err(SqlError::unsupported("a column of type regtype")),
        }
    }
}

fn invalid_modifier(what: &str) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, what)
}

fn length(length: &Option<CharacterLength>, what: &str) -> SqlResult<Option<u32>> {
    match length {
        None => Ok(None),
        Some(CharacterLength::IntegerLength { length, .. }) => {
            match u32::try_from(*length)
                .ok()
                .filter(|n| (1..=10_485_760).contains(n))
            {
                Some(n) => Ok(Some(n)),
                None if *length == 0 => Err(invalid_modifier(&format!(
                    "length for type {what} must be at least 1"
                ))),
                None => {
                    let message = format!("length for type {what} cannot exceed 10485760");
                    Err(invalid_modifier(&message))
                }
            }
        }
        Some(CharacterLength::Max) => Err(SqlError::unsupported("a length of MAX")),
    }
}

fn numeric(info: &ExactNumberInfo) -> SqlResult<SqlType> {
    let (precision, scale) = match *info {
        ExactNumberInfo::None => return Ok(SqlType::Numeric(None)),
        ExactNumberInfo::Precision(precision) => (precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
    };
    if !(1..=1000).contains(&precision) {
        let message = format!("NUMERIC precision {precision} must be between 1 and 1000");
        return Err(invalid_modifier(&message));
    }
    let scale = u16::try_from(scale)
        .ok()
        .filter(|s| u64::from(*s) <= precision);
    let scale = scale
        .ok_or_else(|| invalid_modifier("a NUMERIC scale must be between 0 and the precision"))?;
    Ok(SqlType::Numeric(Some((precision as u16, scale))))
}

/// Fails for a precision of a time below microseconds: it would round, which is not done.
fn full_precision(precision: &Option<u64>, ty: SqlType) -> SqlResult<SqlType> {
    match precision {
        None | Some(6) => Ok(ty),
        Some(n) => Err(SqlError::unsupported(format!("a precision of {n} of {ty}"))),
    }
}

/// Returns the type of a type name. Unknown types fail with 42704.
pub(super) fn type_name(data_type: &DataType) -> SqlResult<TypeName> {
    let undefined = || {
        let message = format!(
            "type \"{}\" does not exist",
            data_type.to_string().to_lowercase()
        );
        SqlError::new(SqlState::UNDEFINED_OBJECT, message)
    };
    let ty = match data_type {
        DataType::Bool | DataType::Boolean => SqlType::Boolean,
        DataType::SmallInt(None) | DataType::Int2(None) => SqlType::SmallInt,
        DataType::Int(None) | DataType::Integer(None) | DataType::Int4(None) => SqlType::Integer,
        DataType::BigInt(None) | DataType::Int8(None) => SqlType::BigInt,
        DataType::Real | DataType::Float4 => SqlType::Real,
        DataType::DoublePrecision | DataType::Float8 => SqlType::Double,
        DataType::Double(ExactNumberInfo::None) => SqlType::Double,
        DataType::Float(ExactNumberInfo::None) => SqlType::Double,
        DataType::Float(ExactNumberInfo::Precision(1..=24)) => SqlType::Real,
        DataType::Float(ExactNumberInfo::Precision(25..=53)) => SqlType::Double,
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => numeric(info)?,
        DataType::Text => SqlType::Text,
        DataType::Varchar(n) | DataType::CharacterVarying(n) | DataType::CharVarying(n) => {
            SqlType::Varchar(length(n, "varchar")?)
        }
        DataType::Char(n) | DataType::Character(n) => {
            SqlType::Char(length(n, "char")?.unwrap_or(1))
        }
        DataType::Bytea => SqlType::Bytea,
        // The name that the test lists of other databases use; PostgreSQL calls it bytea.
        DataType::Blob(None) => SqlType::Bytea,
        DataType::Date => SqlType::Date,
        DataType::Time(p, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            full_precision(p, SqlType::Time)?
        }
        DataType::Time(..) => return Err(SqlError::unsupported("the type time with time zone")),
        DataType::Timestamp(p, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            full_precision(p, SqlType::Timestamp)?
        }
        DataType::Timestamp(p, TimezoneInfo::WithTimeZone | TimezoneInfo::Tz) => {
            full_precision(p, SqlType::Timestamptz)?
        }
        DataType::Uuid => SqlType::Uuid,
        DataType::JSON => SqlType::Json,
        DataType::JSONB => SqlType::Jsonb,
        DataType::Interval {
            fields: None,
            precision: None,
        } => return Ok(TypeName::Interval),
        DataType::Regclass => return Ok(TypeName::Regclass),
        DataType::Array(_) => return Err(SqlError::unsupported("an array type")),
        DataType::Custom(custom, modifiers) => return named(custom, modifiers, data_type),
        _ => return Err(undefined()),
    };
    Ok(TypeName::Sql(ty))
}

fn named(
    custom: &sqlparser::ast::ObjectName,
    modifiers: &[TypeModifier],
    data_type: &DataType,
) -> SqlResult<TypeName> {
    let parts = name::parts(custom)?;
    let undefined = || {
        let message = format!("type \"{data_type}\" does not exist");
        SqlError::new(SqlState::UNDEFINED_OBJECT, message)
    };
    let base = match parts[..] {
        [base] => name::fold(base),
        [schema, base] if name::fold(schema) == "pg_catalog" => name::fold(base),
        _ => return Err(undefined()),
    };
    let mut numbers = Vec::new();
    for modifier in modifiers {
        match modifier {
            TypeModifier::Number(digits, _) => numbers.push(digits.parse::<u64>().ok()),
            _ => return Err(undefined()),
        }
    }
    let ty = match (base.as_str(), &numbers[..]) {
        ("bool", []) => SqlType::Boolean,
        ("int2", []) => SqlType::SmallInt,
        ("int4", []) => SqlType::Integer,
        ("int8", []) => SqlType::BigInt,
        ("float4", []) => SqlType::Real,
        ("float8", []) => SqlType::Double,
        ("numeric", []) => SqlType::Numeric(None),
        ("text", []) => SqlType::Text,
        ("varchar", []) => SqlType::Varchar(None),
        ("bpchar", []) => SqlType::Text,
        ("bpchar", [Some(n)]) => SqlType::Char(u32::try_from(*n).map_err(|_| undefined())?),
        ("timestamptz", []) => SqlType::Timestamptz,
        ("uuid", []) => SqlType::Uuid,
        ("serial" | "serial4", []) => return Ok(TypeName::Serial(SqlType::Integer)),
        ("bigserial" | "serial8", []) => return Ok(TypeName::Serial(SqlType::BigInt)),
        ("smallserial" | "serial2", []) => return Ok(TypeName::Serial(SqlType::SmallInt)),
        ("regclass", []) => return Ok(TypeName::Regclass),
        ("regtype", []) => return Ok(TypeName::Regtype),
        ("oid" | "xid" | "cid" | "regproc" | "regnamespace" | "regrole", []) => {
            return Ok(TypeName::System(SqlType::BigInt));
        }
        ("name" | "char" | "citext" | "\"char\"", []) if base != "citext" => {
            return Ok(TypeName::System(SqlType::Text));
        }
        _ => return Err(undefined()),
    };
    Ok(TypeName::Sql(ty))
}
