//! The extended protocol: prepared statements and portals.

use super::sinks::{PortalRun, RowMode, RowSender};
use super::{Beginning, Connection, Stop, check_not_failed};
use crate::backend;
use crate::frontend::{Bind, Execute, Parse, Target, protocol_error};
use crate::keyword::{Keyword, keyword};
use crate::types::{ColumnFormat, Format, declared_type, parameter};
use crate::wire::Frame;
use basalt_sql::{
    Outcome, Prepared, SqlError, SqlResult, SqlState, SqlType, TransactionStatus, Value,
};
use std::rc::Rc;

/// Maximum number of prepared statements of a connection, and of portals.
const MAX_NAMES: usize = 65_536;

/// A prepared statement.
pub struct PreparedStatement {
    /// The text of DEALLOCATE and DISCARD.
    text: String,
    keyword: Keyword,
    /// Types of the parameters: declared, or else inferred.
    types: Vec<SqlType>,
    /// `None` for an empty statement.
    prepared: Option<Prepared>,
}

/// A prepared statement with values.
pub struct Portal {
    statement: Rc<PreparedStatement>,
    values: Vec<Value>,
    columns: Vec<ColumnFormat>,
    state: PortalState,
}

/// How far a portal is.
enum PortalState {
    /// It was not executed.
    Ready,
    /// The statement is over, and these rows were not sent.
    Kept {
        /// Rows as messages.
        rows: Vec<u8>,
        /// Bytes of `rows` that were sent.
        at: usize,
        /// The tag.
        tag: String,
    },
    /// The statement failed when the client did not wait for its rows.
    Failed(SqlError),
    /// All rows were sent.
    Over,
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new(
        SqlState::INVALID_CURSOR_NAME,
        format!("portal \"{name}\" does not exist"),
    )
}

fn no_statement(name: &str) -> SqlError {
    let message = match name {
        "" => "unnamed prepared statement does not exist".to_owned(),
        _ => format!("prepared statement \"{name}\" does not exist"),
    };
    SqlError::new(SqlState::INVALID_STATEMENT_NAME, message)
}

fn too_many(what: &str) -> SqlError {
    SqlError::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("the session has {MAX_NAMES} {what}: close some of them"),
    )
}

impl Connection {
    pub(super) fn parse(&mut self, frame: &Frame) -> Result<(), Stop> {
        let status = self.status();
        let (body, out) = self.wire.body_and_out(frame);
        let parse = Parse::decode(body)?;
        if !parse.name.is_empty() && self.statements.contains_key(parse.name) {
            return Err(SqlError::new(
                SqlState("42P05"),
                format!("prepared statement \"{}\" already exists", parse.name),
            )
            .into());
        }
        if self.statements.len() >= MAX_NAMES {
            return Err(too_many("prepared statements").into());
        }
        let declared = parse.types.iter().map(|oid| declared_type(*oid));
        let declared = declared.collect::<SqlResult<Vec<_>>>()?;
        let parsed = self.session.parse(parse.query)?;
        let mut statement = PreparedStatement {
            text: String::new(),
            keyword: Keyword::Other,
            types: Vec::new(),
            prepared: None,
        };
        match parsed.as_slice() {
            [] => {}
            [one] => {
                statement.keyword = keyword(one.text());
                if statement.keyword == Keyword::Deallocate {
                    statement.text = one.text().to_owned();
                }
                check_not_failed(status, statement.keyword)?;
                let prepared = self.session.prepare(one, &declared)?;
                let inferred = prepared.parameters().iter().enumerate();
                statement.types = inferred
                    .map(|(i, ty)| declared.get(i).copied().flatten().unwrap_or(*ty))
                    .collect();
                statement.prepared = Some(prepared);
            }
            _ => {
                return Err(SqlError::syntax(
                    "cannot insert multiple commands into a prepared statement",
                )
                .into());
            }
        }
        self.statements
            .insert(parse.name.to_owned(), Rc::new(statement));
        backend::put_parse_complete(out);
        Ok(())
    }

    pub(super) fn bind(&mut self, frame: &Frame) -> Result<(), Stop> {
        let status = self.status();
        let (body, out) = self.wire.body_and_out(frame);
        let bind = Bind::decode(body)?;
        let statement = self.statements.get(bind.statement);
        let statement = statement
            .ok_or_else(|| no_statement(bind.statement))?
            .clone();
        check_not_failed(status, statement.keyword)?;
        if !bind.portal.is_empty() && self.portals.contains_key(bind.portal) {
            return Err(SqlError::new(
                SqlState("42P03"),
                format!("portal \"{}\" already exists", bind.portal),
            )
            .into());
        }
        if self.portals.len() >= MAX_NAMES {
            return Err(too_many("portals").into());
        }
        let values = decode_values(&bind, &statement.types)?;
        let columns = match &statement.prepared {
            Some(prepared) if statement.keyword != Keyword::Copy => {
                let columns = prepared.columns();
                let formats = bind.result_formats;
                if formats.len() > 1 && formats.len() != columns.len() {
                    return Err(protocol_error(format!(
                        "bind message has {} result formats but query has {} columns",
                        formats.len(),
                        columns.len()
                    ))
                    .into());
                }
                backend::column_formats(columns, |i| Format::of_code(formats.code(i)))?
            }
            _ => Vec::new(),
        };
        let portal = Portal {
            statement,
            values,
            columns,
            state: PortalState::Ready,
        };
        self.portals.insert(bind.portal.to_owned(), portal);
        backend::put_bind_complete(out);
        Ok(())
    }

    pub(super) fn describe(&mut self, frame: &Frame) -> Result<(), Stop> {
        let (body, out) = self.wire.body_and_out(frame);
        let (statement, formats) = match Target::decode(body)? {
            Target::Statement(name) => {
                let statement = self.statements.get(name);
                let statement = statement.ok_or_else(|| no_statement(name))?;
                let types = statement.types.iter();
                let oids = types.map(|ty| backend::parameter_oid(*ty));
                backend::put_parameter_description(out, oids);
                (statement, None)
            }
            Target::Portal(name) => {
                let portal = self.portals.get(name).ok_or_else(|| no_portal(name))?;
                (&portal.statement, Some(&portal.columns))
            }
        };
        match &statement.prepared {
            Some(prepared) if returns_rows(statement, prepared) => {
                backend::put_row_description(out, prepared.columns(), |i| {
                    formats.map_or(Format::Text, |columns| columns[i].format)
                });
            }
            _ => backend::put_no_data(out),
        }
        Ok(())
    }

    pub(super) fn close(&mut self, frame: &Frame) -> Result<(), Stop> {
        let (body, out) = self.wire.body_and_out(frame);
        match Target::decode(body)? {
            Target::Statement(name) => drop(self.statements.remove(name)),
            Target::Portal(name) => drop(self.portals.remove(name)),
        }
        backend::put_close_complete(out);
        Ok(())
    }

    pub(super) fn execute(&mut self, frame: &Frame) -> Result<(), Stop> {
        let execute = Execute::decode(self.wire.body(frame))?;
        let (name, max_rows) = (execute.portal.to_owned(), execute.max_rows);
        let mut portal = self.portals.remove(&name).ok_or_else(|| no_portal(&name))?;
        let statement = portal.statement.clone();
        let Some(prepared) = &statement.prepared else {
            backend::put_empty_query(&mut self.wire.out);
            self.portals.insert(name, portal);
            return Ok(());
        };
        let lives = match portal.state {
            PortalState::Ready => {
                self.server.counters.queries.add(1);
                self.run_portal(&name, &mut portal, prepared, max_rows)?
            }
            PortalState::Failed(error) => return Err(error.into()),
            PortalState::Kept { .. } => {
                self.send_kept(&mut portal, max_rows)?;
                true
            }
            PortalState::Over if statement.keyword == Keyword::Select => {
                backend::put_command_complete(&mut self.wire.out, "SELECT 0");
                true
            }
            PortalState::Over => {
                return Err(SqlError::new(
                    SqlState::OBJECT_NOT_IN_STATE,
                    format!("portal \"{name}\" cannot be run anymore"),
                )
                .into());
            }
        };
        let ended = matches!(statement.keyword, Keyword::Commit | Keyword::Rollback);
        if lives && !ended {
            self.portals.insert(name, portal);
        }
        Ok(())
    }

    /// Runs a portal for the first time. Returns whether the portal lives on.
    fn run_portal(
        &mut self,
        name: &str,
        portal: &mut Portal,
        prepared: &Prepared,
        max_rows: u64,
    ) -> Result<bool, Stop> {
        let keyword = portal.statement.keyword;
        // If the Sync is here, the statement is alone in its pipeline or the last one of it, and
        // needs no transaction around it.
        let is_alone = self.wire.next_kind() == Some(b'S');
        let mut done = match self.begin_statement(keyword, is_alone)? {
            Beginning::Run => None,
            Beginning::Done(tag) => Some(tag),
        };
        if keyword == Keyword::Deallocate {
            done = self.deallocate(&portal.statement.text);
        }
        portal.state = PortalState::Over;
        if let Some(tag) = done {
            self.complete(keyword, tag, &[], None);
            return Ok(true);
        }
        if keyword == Keyword::Copy && self.copy_out(prepared, &portal.values)? {
            return Ok(true);
        }
        let is_in_block = self.status() != TransactionStatus::Idle && !self.is_implicit;
        let run = PortalRun {
            name,
            max_rows,
            may_wait: keyword == Keyword::Select,
            is_in_block,
            is_implicit: self.is_implicit,
            keep_bytes: self.server.options.portal_bytes,
        };
        let mut sink = RowSender::new(&mut self.wire, &self.activity, &portal.columns, run);
        let session = &mut self.session;
        let run = || session.execute(prepared, &portal.values, &mut sink);
        let result = self.activity.run(run);
        if let Some(end) = sink.end {
            return Err(end.into());
        }
        let rows = sink.was_suspended.then_some(sink.sent);
        match sink.mode {
            _ if sink.is_stopped => return Ok(false),
            // The client waits for no answer of this portal. A failed statement has made the
            // transaction a failed one.
            RowMode::Drop => return Ok(false),
            RowMode::Keep => {
                portal.state = match result {
                    Ok(Outcome::Done { tag, .. }) => PortalState::Kept {
                        rows: std::mem::take(&mut sink.kept),
                        at: 0,
                        tag,
                    },
                    Ok(_) => PortalState::Over,
                    Err(error) => PortalState::Failed(error),
                };
            }
            RowMode::Send => match result? {
                Outcome::Done { tag, notices, .. } => {
                    self.complete(keyword, &tag, &notices, rows);
                }
                other => self.complete_outcome(keyword, other)?,
            },
        }
        Ok(true)
    }

    /// Sends rows that a portal kept.
    fn send_kept(&mut self, portal: &mut Portal, max_rows: u64) -> Result<(), Stop> {
        let PortalState::Kept { rows, at, tag } = &mut portal.state else {
            return Ok(());
        };
        let mut sent = 0;
        while *at < rows.len() && (max_rows == 0 || sent < max_rows) {
            let len = &rows[*at + 1..*at + 5];
            let len = u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize + 1;
            self.wire.out.extend_from_slice(&rows[*at..*at + len]);
            *at += len;
            sent += 1;
            self.wire.flush_if_full()?;
        }
        if *at < rows.len() {
            backend::put_portal_suspended(&mut self.wire.out);
            return Ok(());
        }
        let tag = std::mem::take(tag);
        portal.state = PortalState::Over;
        self.complete(portal.statement.keyword, &tag, &[], Some(sent));
        Ok(())
    }
}

/// Returns whether the rows of a statement are described.
fn returns_rows(statement: &PreparedStatement, prepared: &Prepared) -> bool {
    statement.keyword != Keyword::Copy && !prepared.columns().is_empty()
}

/// Returns the values of a Bind.
fn decode_values(bind: &Bind<'_>, types: &[SqlType]) -> SqlResult<Vec<Value>> {
    if bind.values.len() != types.len() {
        return Err(protocol_error(format!(
            "bind message supplies {} parameters, but prepared statement \"{}\" requires {}",
            bind.values.len(),
            bind.statement,
            types.len()
        )));
    }
    if bind.formats.len() > 1 && bind.formats.len() != types.len() {
        return Err(protocol_error(format!(
            "bind message has {} parameter formats but {} parameters",
            bind.formats.len(),
            types.len()
        )));
    }
    let all = bind.values.iter().zip(types).enumerate();
    all.map(|(i, (value, ty))| match value {
        None => Ok(Value::Null),
        Some(bytes) => parameter(*ty, Format::of_code(bind.formats.code(i))?, bytes),
    })
    .collect()
}
