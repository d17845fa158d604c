//! Functions of the session: sequences, random numbers, names; and replacements of SQLite's own
//! functions.

use super::Behaviour::{Pure, Volatile};
use super::{Arguments, Entry, SERVER_VERSION};
use crate::catalog::ObjectId;
use crate::error::{SqlError, SqlResult};
use crate::types::SqlType;
use crate::value::{Value, ValueRef};

pub(super) const ENTRIES: &[Entry] = &[
    ("basalt_nextval", 1, Volatile, |a| {
        a.context.nextval(sequence(a)?).map(Value::Integer)
    }),
    ("basalt_currval", 1, Volatile, |a| {
        a.context.currval(sequence(a)?).map(Value::Integer)
    }),
    ("basalt_setval", 2, Volatile, |a| setval(a, true)),
    ("basalt_setval", 3, Volatile, |a| {
        let is_called = a.integer(2)? != 0;
        setval(a, is_called)
    }),
    ("basalt_random", 0, Volatile, |a| {
        // 53 bits: all that a double between 0 and 1 has.
        Ok(Value::Real(
            (a.context.random() >> 11) as f64 / (1_u64 << 53) as f64,
        ))
    }),
    ("basalt_uuid", 0, Volatile, |a| {
        let high = a.context.random() & 0xffff_ffff_ffff_0fff | 0x4000;
        let low = a.context.random() & 0x3fff_ffff_ffff_ffff | 0x8000_0000_0000_0000;
        SqlType::Uuid.parse_text(&format!("{high:016x}{low:016x}"))
    }),
    ("basalt_user", 0, Volatile, |a| {
        Ok(Value::Text(a.context.user()))
    }),
    ("basalt_database", 0, Volatile, |a| {
        Ok(Value::Text(a.context.database()))
    }),
    ("basalt_schema", 0, Pure, |_| Ok(Value::from("public"))),
    ("basalt_version", 0, Pure, |_| {
        let version = env!("CARGO_PKG_VERSION");
        Ok(Value::Text(format!(
            "PostgreSQL {SERVER_VERSION} (Basalt {version})"
        )))
    }),
    ("basalt_backend_pid", 0, Volatile, |_| Ok(Value::Integer(1))),
    ("basalt_true", -1, Pure, |_| Ok(Value::from(true))),
    ("basalt_false", -1, Pure, |_| Ok(Value::from(false))),
    ("basalt_null", -1, Pure, |_| Ok(Value::Null)),
    ("basalt_user_by_id", 1, Volatile, |a| {
        Ok(Value::Text(a.context.user()))
    }),
    ("basalt_encoding_name", 1, Pure, |_| Ok(Value::from("UTF8"))),
    ("basalt_format_type", 2, Pure, format_type),
    // Definitions are kept as texts in the system's relations.
    ("basalt_get_expr", -1, Pure, |a| Ok(a.get(0)?.to_value())),
    // What the executor's own functions of these names take from the machine is not allowed.
    ("random", 0, Volatile, |a| {
        Ok(Value::Integer(a.context.random() as i64))
    }),
    ("randomblob", 1, Volatile, |_| refused("randomblob")),
    ("date", -1, Volatile, |_| refused("date")),
    ("time", -1, Volatile, |_| refused("time")),
    ("datetime", -1, Volatile, |_| refused("datetime")),
    ("julianday", -1, Volatile, |_| refused("julianday")),
    ("unixepoch", -1, Volatile, |_| refused("unixepoch")),
    ("strftime", -1, Volatile, |_| refused("strftime")),
    ("timediff", 2, Volatile, |_| refused("timediff")),
    ("current_timestamp", 0, Volatile, |_| {
        refused("current_timestamp")
    }),
    ("current_date", 0, Volatile, |_| refused("current_date")),
    ("current_time", 0, Volatile, |_| refused("current_time")),
];

fn refused(name: &str) -> SqlResult<Value> {
    Err(SqlError::unsupported(format!(
        "the executor's function {name}"
    )))
}

fn sequence(a: &Arguments<'_, '_>) -> SqlResult<ObjectId> {
    ObjectId::try_from(a.integer(0)?).map_err(|_| SqlError::internal("no number of a sequence"))
}

fn setval(a: &Arguments<'_, '_>, is_called: bool) -> SqlResult<Value> {
    if a.any_null() {
        return Ok(Value::Null);
    }
    a.context
        .setval(sequence(a)?, a.integer(1)?, is_called)
        .map(Value::Integer)
}

/// Returns the name of a type by its number in PostgreSQL.
fn format_type(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (ValueRef::Integer(oid), modifier) = (a.get(0)?, a.get(1)?) else {
        return Ok(Value::Null);
    };
    let modifier = match modifier {
        ValueRef::Integer(n) if n >= 4 => u32::try_from(n - 4).ok(),
        _ => None,
    };
    let ty = match oid {
        16 => SqlType::Boolean,
        17 => SqlType::Bytea,
        20 => SqlType::BigInt,
        21 => SqlType::SmallInt,
        23 => SqlType::Integer,
        25 => SqlType::Text,
        114 => SqlType::Json,
        700 => SqlType::Real,
        701 => SqlType::Double,
        1042 => SqlType::Char(modifier.unwrap_or(1)),
        1043 => SqlType::Varchar(modifier),
        1082 => SqlType::Date,
        1083 => SqlType::Time,
        1114 => SqlType::Timestamp,
        1184 => SqlType::Timestamptz,
        1700 => SqlType::Numeric(modifier.map(|m| ((m >> 16) as u16, (m & 0xffff) as u16))),
        2950 => SqlType::Uuid,
        3802 => SqlType::Jsonb,
        19 => return Ok(Value::from("name")),
        26 => return Ok(Value::from("oid")),
        _ => return Ok(Value::from("???")),
    };
    Ok(Value::Text(ty.to_string()))
}
