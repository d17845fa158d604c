//! COPY in both directions on a connection.

use super::sinks::CopySender;
use super::{Connection, Stop};
use crate::backend;
use crate::frontend::{decode_text, protocol_error};
use crate::keyword::Keyword;
use crate::wire::End;
use basalt_sql::copy::CopyEncoder;
use basalt_sql::{CopyIn, Outcome, Prepared, SqlError, Value};

impl Connection {
    /// Reads the data of COPY FROM STDIN. If a part of it is refused, the rest of the data arrives
    /// as messages that the connection ignores.
    pub(super) fn copy_in(&mut self, mut copy: CopyIn) -> Result<(), Stop> {
        backend::put_copy_in(&mut self.wire.out, copy.columns().len());
        self.wire.flush_soon();
        loop {
            let frame = match self.wire.peek() {
                Ok(frame) => frame,
                Err(end) => {
                    self.session.copy_fail(copy, "the connection ended");
                    return Err(end.into());
                }
            };
            self.wire.consume(&frame);
            let body = self.wire.body(&frame);
            let failure = match frame.kind {
                b'd' => {
                    let session = &mut self.session;
                    // After an error, the session has ended the copy by itself.
                    self.activity.run(|| session.copy_data(&mut copy, body))?;
                    continue;
                }
                b'c' => {
                    let session = &mut self.session;
                    let rows = self.activity.run(|| session.copy_done(copy))?;
                    self.complete(Keyword::Other, &format!("COPY {rows}"), &[], None);
                    return Ok(());
                }
                b'f' => {
                    let reason = decode_text(body).unwrap_or("unreadable reason").to_owned();
                    return Err(self.session.copy_fail(copy, &reason).into());
                }
                // Libraries send them after the Execute of a COPY.
                b'H' | b'S' => continue,
                b'X' => {
                    self.session.copy_fail(copy, "the connection ended");
                    return Err(End::Closed.into());
                }
                kind => protocol_error(format!(
                    "unexpected message type {kind} during COPY from stdin"
                )),
            };
            self.session.copy_fail(copy, failure.message());
            return Err(failure.into());
        }
    }

    /// Runs COPY TO STDOUT. Returns false if the statement is another one.
    pub(super) fn copy_out(&mut self, prepared: &Prepared, values: &[Value]) -> Result<bool, Stop> {
        let Some((format, columns)) = prepared.copy_out() else {
            return Ok(false);
        };
        backend::put_copy_out(&mut self.wire.out, columns.len());
        let has_header = format.header;
        let encoder = CopyEncoder::new(format);
        if has_header {
            backend::put_copy_data(&mut self.wire.out, |out| {
                encoder.header(columns.iter().map(|column| column.name.as_str()), out);
                Ok(())
            })?;
        }
        let mut sink = CopySender::new(&mut self.wire, &encoder, &columns);
        let session = &mut self.session;
        let run = || session.execute(prepared, values, &mut sink);
        let result = self.activity.run(run);
        if let Some(end) = sink.end {
            return Err(end.into());
        }
        let rows = match result? {
            Outcome::CopyOut { rows, .. } | Outcome::Done { rows, .. } => rows,
            Outcome::CopyIn(_) => return Err(SqlError::internal("COPY in instead of out").into()),
        };
        backend::put_copy_done(&mut self.wire.out);
        self.complete(Keyword::Other, &format!("COPY {rows}"), &[], None);
        Ok(true)
    }
}
