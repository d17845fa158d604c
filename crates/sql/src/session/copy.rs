//! COPY between a table and the client.

use super::{Outcome, Row, RowSink, Session};
use crate::copy::{CopyDecoder, CopyRow};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::statement::{Copy, CopyFormat, CopySource, ResultColumn, Write};
use crate::value::Value;

/// A COPY FROM STDIN that is under way.
pub struct CopyIn {
    format: CopyFormat,
    columns: Vec<ResultColumn>,
    insert: Box<Write>,
    decoder: CopyDecoder,
    table: String,
    decoded: Vec<CopyRow>,
}

impl CopyIn {
    /// Returns how rows are written.
    pub fn format(&self) -> &CopyFormat {
        &self.format
    }

    /// Returns the columns of the data.
    pub fn columns(&self) -> &[ResultColumn] {
        &self.columns
    }
}

impl Session {
    pub(super) fn begin_copy(&mut self, copy: &Copy, sink: &mut dyn RowSink) -> SqlResult<Outcome> {
        self.begin_work()?;
        let schema = self.state.lock().schema()?.clone();
        match (&copy.source, copy.from_client) {
            (CopySource::Query(query), false) | (CopySource::Table { query, .. }, false) => {
                self.context.set_schema(&schema);
                self.declare(&schema, &query.executable.relations)?;
                let rows = self.run_query(query, &[], sink)?;
                self.end_statement()?;
                Ok(Outcome::CopyOut {
                    format: copy.format.clone(),
                    columns: query.columns.clone(),
                    rows,
                })
            }
            (
                CopySource::Table {
                    table,
                    insert,
                    query,
                    ..
                },
                true,
            ) => {
                self.refuse_read_only("COPY FROM")?;
                self.declare(&schema, &insert.executable.relations)?;
                self.begin_write(insert, &[])?;
                Ok(Outcome::CopyIn(CopyIn {
                    decoder: CopyDecoder::new(
                        copy.format.clone(),
                        query
                            .columns
                            .iter()
                            .map(|column| column.name.clone())
                            .collect(),
                    ),
                    format: copy.format.clone(),
                    columns: query.columns.clone(),
                    insert: insert.clone(),
                    table: table.clone(),
                    decoded: Vec::new(),
                }))
            }
            (CopySource::Query(_), true) => Err(SqlError::syntax("COPY FROM takes a table")),
        }
    }

    /// Takes a part of the data of a COPY FROM STDIN.
    ///
    /// Errors: 22P04 for malformed data; those of INSERT. The copy is then over, with no row
    /// written.
    pub fn copy_data(&mut self, copy: &mut CopyIn, data: &[u8]) -> SqlResult<()> {
        let done = copy.decoder.decode(data, &mut copy.decoded).map(|_| ());
        let done = done.and_then(|()| self.insert_decoded(copy));
        self.end_failed_copy(done)
    }

    /// Ends a COPY FROM STDIN: its rows are written, and committed outside of a transaction block.
    /// Returns the number of rows.
    ///
    /// Errors: those of [`Session::copy_data`], of foreign keys, and of the commit.
    pub fn copy_done(&mut self, mut copy: CopyIn) -> SqlResult<u64> {
        let done = copy.decoder.finish(&mut copy.decoded);
        let done = done.and_then(|()| self.insert_decoded(&mut copy));
        self.end_failed_copy(done)?;
        let done = self.finish_write(Ok(()));
        let done = done.and_then(|(rows, _)| self.end_statement().map(|()| rows));
        if done.is_err() {
            self.fail_block();
        }
        done
    }

    /// Ends a COPY FROM STDIN that the client has given up. No row is written. Returns the error of
    /// the statement.
    pub fn copy_fail(&mut self, copy: CopyIn, reason: &str) -> SqlError {
        let error = SqlError::new(
            SqlState::QUERY_CANCELED,
            format!("COPY to table \"{}\" failed: {reason}", copy.table),
        );
        match self.end_failed_copy(Err(error)) {
            Err(e) => e,
            Ok(()) => SqlError::internal("a COPY that failed has not ended"),
        }
    }

    /// Undoes the rows of a copy that has failed.
    fn end_failed_copy(&mut self, done: SqlResult<()>) -> SqlResult<()> {
        let Err(e) = done else {
            return Ok(());
        };
        let undone = self.finish_write(Err(e));
        self.fail_block();
        undone.map(|_| ())
    }

    fn insert_decoded(&mut self, copy: &mut CopyIn) -> SqlResult<()> {
        for row in std::mem::take(&mut copy.decoded) {
            let mut values = Vec::with_capacity(row.fields.len());
            for (field, column) in row.fields.iter().zip(&copy.columns) {
                let value = match field {
                    None => Ok(Value::Null),
                    Some(text) => column.ty.parse_text(text),
                };
                values.push(value.map_err(|e| {
                    let at = format!(
                        "COPY {}, line {}, column {}",
                        copy.table, row.line, column.name
                    );
                    e.with_detail(at)
                })?);
            }
            let mut ignored = |_: &Row<'_>| Ok(());
            self.step(&copy.insert.executable.sql, &values, &mut ignored)?;
        }
        Ok(())
    }
}
