//! Functions that rewritten statements call, and those of PostgreSQL that the executor lacks.
//!
//! Time, random numbers and sequences come from a [`FunctionContext`]. A failing
//! function stores its error in the context, and returns a placeholder error to SQLite. No
//! function panics into SQLite.

mod aggregates;
mod catalog;
mod format;
mod numbers;
mod session;
mod strings;
mod times;

#[cfg(test)]
mod tests;

use crate::catalog::ObjectId;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::schema::Schema;
use crate::types::SqlType;
use crate::value::{Value, ValueRef};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value as Native, ValueRef as NativeRef};
use rusqlite::{Connection, ToSql};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// PostgreSQL's version that the server reports: `server_version`, and in `version()`. Drivers
/// switch features on by it.
pub const SERVER_VERSION: &str = "15.0";

/// What functions take from the session.
pub trait FunctionContext: Send + Sync {
    /// Returns the time at which the transaction began, in microseconds since 1970-01-01 UTC.
    fn transaction_time_us(&self) -> i64;
    /// Returns the time, in microseconds since 1970-01-01 UTC.
    fn clock_us(&self) -> i64;
    /// Returns 64 random bits.
    fn random(&self) -> u64;
    /// Takes the next value of a sequence.
    fn nextval(&self, sequence: ObjectId) -> SqlResult<i64>;
    /// Returns the value that the session took last from a sequence.
    fn currval(&self, sequence: ObjectId) -> SqlResult<i64>;
    /// Sets a sequence: `is_called` says that the next value is the one after `value`.
    fn setval(&self, sequence: ObjectId, value: i64, is_called: bool) -> SqlResult<i64>;
    /// Keeps the error of a function, for the statement that fails by it.
    fn raise(&self, error: SqlError);
    /// Returns the name of the session's user.
    fn user(&self) -> String;
    /// Returns the name of the database.
    fn database(&self) -> String;
    /// Returns the schema of the running statement.
    fn schema(&self) -> Arc<Schema>;
    /// Returns the value of a variable of the session; `None` if it does not exist.
    fn setting(&self, name: &str) -> Option<String>;
    /// Returns the approximate bytes that a relation takes on the disk.
    fn relation_bytes(&self, oid: i64) -> SqlResult<i64>;
    /// Returns the approximate bytes that all relations take on the disk.
    fn database_bytes(&self) -> SqlResult<i64>;
}

/// The arguments of a call.
pub(crate) struct Arguments<'a, 'b> {
    call: &'a Context<'b>,
    pub(crate) context: &'a dyn FunctionContext,
}

impl<'a> Arguments<'a, '_> {
    pub(crate) fn len(&self) -> usize {
        self.call.len()
    }

    pub(crate) fn get(&self, at: usize) -> SqlResult<ValueRef<'a>> {
        if at >= self.call.len() {
            return Err(SqlError::internal("a function has too few arguments"));
        }
        let native: NativeRef<'a> = self.call.get_raw(at);
        Ok(match native {
            NativeRef::Null => ValueRef::Null,
            NativeRef::Integer(n) => ValueRef::Integer(n),
            NativeRef::Real(x) => ValueRef::Real(x),
            NativeRef::Text(bytes) => ValueRef::Text(std::str::from_utf8(bytes).map_err(|_| {
                SqlError::new(
                    SqlState("22021"),
                    "invalid byte sequence for encoding \"UTF8\"",
                )
            })?),
            NativeRef::Blob(bytes) => ValueRef::Blob(bytes),
        })
    }

    /// Returns `true` if an argument is NULL.
    pub(crate) fn any_null(&self) -> bool {
        (0..self.call.len()).any(|at| self.call.get_raw(at) == NativeRef::Null)
    }

    pub(crate) fn text(&self, at: usize) -> SqlResult<std::borrow::Cow<'a, str>> {
        Ok(match self.get(at)? {
            ValueRef::Text(text) => text.into(),
            other => {
                let mut out = String::new();
                SqlType::Text.write_text(other, &mut out);
                out.into()
            }
        })
    }

    pub(crate) fn integer(&self, at: usize) -> SqlResult<i64> {
        match self.get(at)? {
            ValueRef::Integer(n) => Ok(n),
            other => match SqlType::BigInt.coerce(other.to_value())? {
                Value::Integer(n) => Ok(n),
                _ => Err(SqlError::internal("an argument is not an integer")),
            },
        }
    }

    pub(crate) fn real(&self, at: usize) -> SqlResult<f64> {
        match self.get(at)? {
            ValueRef::Real(x) => Ok(x),
            other => match SqlType::Double.coerce(other.to_value())? {
                Value::Real(x) => Ok(x),
                _ => Err(SqlError::internal("an argument is not a number")),
            },
        }
    }
}

/// A value on its way to the executor.
struct Output(Value);

impl ToSql for Output {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(match &self.0 {
            Value::Null => Native::Null,
            Value::Integer(n) => Native::Integer(*n),
            Value::Real(x) => Native::Real(*x),
            Value::Text(text) => Native::Text(text.clone()),
            Value::Blob(bytes) => Native::Blob(bytes.clone()),
        }))
    }
}

/// Returns the error that the executor sees; the exact one is in the context.
fn raised(context: &dyn FunctionContext, error: SqlError) -> rusqlite::Error {
    let display = error.to_string();
    context.raise(error);
    rusqlite::Error::UserFunctionError(display.into())
}

/// Runs a function's body; a panic becomes an error.
fn guarded<T>(
    context: &dyn FunctionContext,
    body: impl FnOnce() -> SqlResult<T>,
) -> rusqlite::Result<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.map_err(|e| raised(context, e)),
        Err(_) => Err(raised(
            context,
            SqlError::internal("a function of SQL panicked"),
        )),
    }
}

/// A function's body.
pub(crate) type Body = fn(&Arguments<'_, '_>) -> SqlResult<Value>;

/// How a function behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// The result depends on the arguments alone, and is NULL if one of them is NULL.
    Strict,
    /// The result depends on the arguments alone.
    Pure,
    /// The result depends on the context.
    Volatile,
}

/// A function: name, number of arguments (-1 for any), behaviour and body.
pub(crate) type Entry = (&'static str, i32, Behaviour, Body);

/// Registers all functions on a connection.
///
/// The executor's own functions that read the clock or random numbers are replaced or refused.
pub fn register(
    connection: &Connection,
    context: Arc<dyn FunctionContext>,
) -> rusqlite::Result<()> {
    let tables = [
        numbers::ENTRIES,
        strings::ENTRIES,
        times::ENTRIES,
        format::ENTRIES,
        session::ENTRIES,
        catalog::ENTRIES,
    ];
    for (name, arguments, behaviour, body) in tables.into_iter().flatten().copied() {
        let mut flags = FunctionFlags::SQLITE_UTF8;
        if behaviour != Behaviour::Volatile {
            flags |= FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
        }
        let context = context.clone();
        connection.create_scalar_function(name, arguments, flags, move |call| {
            guarded(context.as_ref(), || {
                let arguments = Arguments {
                    call,
                    context: context.as_ref(),
                };
                if behaviour == Behaviour::Strict && arguments.any_null() {
                    return Ok(Output(Value::Null));
                }
                body(&arguments).map(Output)
            })
        })?;
    }
    aggregates::register(connection, context)
}
