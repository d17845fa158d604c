//! Values between SQLite and this crate.

use crate::error::{SqlError, SqlResult, SqlState};
use crate::value::{Value, ValueRef};
use rusqlite::types as sqlite;

/// Returns a value of SQLite.
///
/// Errors: 22021 for a text that is not UTF-8.
pub fn from_sqlite(value: sqlite::ValueRef<'_>) -> SqlResult<ValueRef<'_>> {
    Ok(match value {
        sqlite::ValueRef::Null => ValueRef::Null,
        sqlite::ValueRef::Integer(n) => ValueRef::Integer(n),
        sqlite::ValueRef::Real(x) => ValueRef::Real(x),
        sqlite::ValueRef::Text(text) => {
            ValueRef::Text(std::str::from_utf8(text).map_err(|_| {
                SqlError::new(SqlState::INVALID_ENCODING, "a text is not valid UTF-8")
            })?)
        }
        sqlite::ValueRef::Blob(bytes) => ValueRef::Blob(bytes),
    })
}

/// Returns a value for SQLite, without a copy.
pub fn to_sqlite(value: ValueRef<'_>) -> sqlite::ToSqlOutput<'_> {
    sqlite::ToSqlOutput::Borrowed(match value {
        ValueRef::Null => sqlite::ValueRef::Null,
        ValueRef::Integer(n) => sqlite::ValueRef::Integer(n),
        ValueRef::Real(x) => sqlite::ValueRef::Real(x),
        ValueRef::Text(text) => sqlite::ValueRef::Text(text.as_bytes()),
        ValueRef::Blob(bytes) => sqlite::ValueRef::Blob(bytes),
    })
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<sqlite::ToSqlOutput<'_>> {
        Ok(to_sqlite(self.as_ref()))
    }
}
