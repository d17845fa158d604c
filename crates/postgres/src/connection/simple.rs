//! The simple protocol: a query of any number of statements, in text format.

use super::sinks::{PortalRun, RowSender};
use super::{Beginning, Connection, Stop};
use crate::backend;
use crate::frontend::decode_text;
use crate::keyword::{Keyword, keyword};
use crate::types::Format;
use crate::wire::{End, Frame};
use basalt_sql::{ParsedStatement, SqlError, SqlState};

impl Connection {
    /// Runs the statements of a query. Several statements are one transaction, unless they have
    /// transaction control among them.
    pub(super) fn simple_query(&mut self, frame: &Frame) -> Result<(), End> {
        self.portals.remove("");
        self.statements.remove("");
        let text = match decode_text(self.wire.body(frame)) {
            Ok(text) => text.to_owned(),
            Err(error) => {
                self.report(&error)?;
                self.ready();
                return Ok(());
            }
        };
        if let Err(stop) = self.run_query(&text) {
            let error = match stop {
                Stop::Statement(error) => error,
                Stop::Connection(end) => return Err(end),
            };
            self.fail();
            self.report(&error)?;
        } else if let Err(error) = self.commit_implicit() {
            self.report(&error)?;
        }
        self.ready();
        Ok(())
    }

    fn run_query(&mut self, text: &str) -> Result<(), Stop> {
        let statements = self.session.parse(text)?;
        if statements.is_empty() {
            backend::put_empty_query(&mut self.wire.out);
        }
        for (i, statement) in statements.iter().enumerate() {
            let is_last = i + 1 == statements.len();
            let is_alone = is_last && !self.is_implicit;
            self.run_statement(statement, is_alone)?;
        }
        Ok(())
    }

    fn run_statement(&mut self, statement: &ParsedStatement, is_alone: bool) -> Result<(), Stop> {
        let keyword = keyword(statement.text());
        self.server.counters.queries.add(1);
        let mut done = match self.begin_statement(keyword, is_alone)? {
            Beginning::Run => None,
            Beginning::Done(tag) => Some(tag),
        };
        if keyword == Keyword::Deallocate {
            done = self.deallocate(statement.text());
        }
        if let Some(tag) = done {
            self.complete(keyword, tag, &[], None);
            return Ok(());
        }
        let prepared = self.session.prepare(statement, &[])?;
        if !prepared.parameters().is_empty() {
            return Err(
                SqlError::new(SqlState::UNDEFINED_PARAMETER, "there is no parameter $1").into(),
            );
        }
        if keyword == Keyword::Copy && self.copy_out(&prepared, &[])? {
            return Ok(());
        }
        let columns = backend::column_formats(prepared.columns(), |_| Ok(Format::Text))?;
        if !columns.is_empty() && keyword != Keyword::Copy {
            backend::put_row_description(&mut self.wire.out, prepared.columns(), |_| Format::Text);
        }
        let all_rows = PortalRun {
            name: "",
            max_rows: 0,
            may_wait: false,
            is_in_block: false,
            is_implicit: false,
            keep_bytes: 0,
        };
        let mut sink = RowSender::new(&mut self.wire, &self.activity, &columns, all_rows);
        let session = &mut self.session;
        let run = || session.execute(&prepared, &[], &mut sink);
        let result = self.activity.run(run);
        if let Some(end) = sink.end {
            return Err(end.into());
        }
        self.complete_outcome(keyword, result?)
    }
}
