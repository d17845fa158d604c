//! [`Checker`]: expressions over single rows, evaluated by a connection of SQLite of their own.
//!
//! A virtual table that is being written cannot run statements on the connection that writes it.
//! CHECK constraints, RETURNING and DO UPDATE are queries over parameters, which need no table.

use crate::error::SqlResult;
use crate::sqlite_error;
use crate::sqlite_value::from_sqlite;
use crate::value::Value;
use rusqlite::Connection;

/// Prepared queries that a checker keeps.
const CACHED_QUERIES: usize = 64;

/// Evaluates queries over parameters.
pub struct Checker(Connection);

impl Checker {
    /// Returns a checker on a connection that has the functions of the dialect.
    pub fn new(connection: Connection) -> Checker {
        connection.set_prepared_statement_cache_capacity(CACHED_QUERIES);
        Checker(connection)
    }

    /// Returns the first row of a query, or `None` if it has none.
    ///
    /// Errors: those of the query.
    pub fn row<'v>(
        &self,
        query: &str,
        parameters: impl Iterator<Item = &'v Value>,
    ) -> SqlResult<Option<Vec<Value>>> {
        let run = || -> rusqlite::Result<Option<SqlResult<Vec<Value>>>> {
            let mut statement = self.0.prepare_cached(query)?;
            let wanted = statement.parameter_count();
            for (at, value) in parameters.take(wanted).enumerate() {
                statement.raw_bind_parameter(at + 1, value)?;
            }
            let columns = statement.column_count();
            let mut rows = statement.raw_query();
            let Some(row) = rows.next()? else {
                return Ok(None);
            };
            let mut values = Vec::with_capacity(columns);
            for column in 0..columns {
                match from_sqlite(row.get_ref(column)?) {
                    Ok(value) => values.push(value.to_value()),
                    Err(e) => return Ok(Some(Err(e))),
                }
            }
            Ok(Some(Ok(values)))
        };
        run().map_err(|e| sqlite_error::of(&e))?.transpose()
    }
}
