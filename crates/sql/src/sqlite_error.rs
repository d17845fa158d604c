//! From errors of SQLite to errors with PostgreSQL's codes.

use crate::error::{SqlError, SqlState};
use rusqlite::ffi;

/// Returns the error for one of SQLite that no callback of this crate has raised.
pub fn of(e: &rusqlite::Error) -> SqlError {
    match e {
        rusqlite::Error::SqliteFailure(code, message) => {
            of_failure(*code, message.as_deref().unwrap_or_default())
        }
        rusqlite::Error::SqlInputError { error, msg, .. } => of_failure(*error, msg),
        rusqlite::Error::ModuleError(message) => {
            SqlError::new(SqlState::INTERNAL_ERROR, message.clone())
        }
        e => SqlError::internal(e.to_string()),
    }
}

/// Returns the quoted or bare name after a prefix of a message.
fn named<'m>(message: &'m str, prefix: &str) -> Option<&'m str> {
    let at = message.find(prefix)?;
    Some(message[at + prefix.len()..].trim_matches('"'))
}

fn of_failure(code: ffi::Error, message: &str) -> SqlError {
    if let Some(name) = named(message, "no such table: ") {
        return SqlError::new(
            SqlState::UNDEFINED_TABLE,
            format!("relation \"{name}\" does not exist"),
        );
    }
    if let Some(name) = named(message, "no such column: ") {
        return SqlError::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{name}\" does not exist"),
        );
    }
    if let Some(name) = named(message, "no such function: ") {
        return SqlError::new(
            SqlState::UNDEFINED_FUNCTION,
            format!("function {name}() does not exist"),
        );
    }
    if let Some(name) = named(message, "wrong number of arguments to function ") {
        return SqlError::new(
            SqlState::UNDEFINED_FUNCTION,
            format!("function {name} does not exist with this number of arguments"),
        );
    }
    if let Some(name) = named(message, "ambiguous column name: ") {
        return SqlError::new(
            SqlState::AMBIGUOUS_COLUMN,
            format!("column reference \"{name}\" is ambiguous"),
        );
    }
    let state = match code.code {
        rusqlite::ErrorCode::OperationInterrupted => return SqlError::interrupted(),
        rusqlite::ErrorCode::OutOfMemory => SqlState::OUT_OF_MEMORY,
        rusqlite::ErrorCode::TooBig => SqlState::PROGRAM_LIMIT_EXCEEDED,
        rusqlite::ErrorCode::AuthorizationForStatementDenied => SqlState::INSUFFICIENT_PRIVILEGE,
        rusqlite::ErrorCode::TypeMismatch => SqlState::DATATYPE_MISMATCH,
        _ if message.contains("integer overflow") => SqlState::NUMERIC_OUT_OF_RANGE,
        _ if message.contains("misuse of aggregate") => SqlState::GROUPING_ERROR,
        _ if message.contains("misuse of window") => SqlState::GROUPING_ERROR,
        _ if message.contains("syntax error") => SqlState::SYNTAX_ERROR,
        _ if message.contains("too many") || message.contains("too large") => {
            SqlState::STATEMENT_TOO_COMPLEX
        }
        _ if message.contains("malformed JSON") => SqlState::INVALID_TEXT,
        rusqlite::ErrorCode::Unknown => SqlState::SYNTAX_ERROR,
        _ => SqlState::INTERNAL_ERROR,
    };
    SqlError::new(state, message)
}
