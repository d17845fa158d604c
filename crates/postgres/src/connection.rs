//! One session of a client: the loop over its messages, transactions around several statements, and
//! errors.
//!
//! A connection has a thread of its own, because calls of a session block. The thread reads a
//! message, runs it, and appends the answers to the buffer of [`Wire`].

mod copy_in;
mod extended;
mod simple;
mod sinks;

use crate::activity::Activity;
use crate::backend::{self, Severity};
use crate::frontend::protocol_error;
use crate::keyword::{Deallocated, Keyword, deallocated};
use crate::startup::REPORTED;
use crate::state::ServerState;
use crate::wire::{End, Wire};
use basalt_sql::{Outcome, Prepared, Session, SqlError, SqlResult, SqlState, TransactionStatus};
use extended::{Portal, PreparedStatement};
use sinks::NoRows;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The reason why a message was not executed.
enum Stop {
    /// The statement failed. The session continues.
    Statement(SqlError),
    /// The connection ends.
    Connection(End),
}

impl From<SqlError> for Stop {
    fn from(error: SqlError) -> Stop {
        Stop::Statement(error)
    }
}

impl From<End> for Stop {
    fn from(end: End) -> Stop {
        Stop::Connection(end)
    }
}

/// A statement of transaction control that the connection runs by itself.
#[derive(Debug, Clone, Copy)]
enum Control {
    Begin,
    Commit,
    Rollback,
}

/// How a statement begins.
enum Beginning {
    /// It is run.
    Run,
    /// It was carried out already, with this tag.
    Done(&'static str),
}

/// Refuses a statement in a failed transaction, except for one that ends it.
fn check_not_failed(status: TransactionStatus, keyword: Keyword) -> SqlResult<()> {
    let ends = matches!(keyword, Keyword::Commit | Keyword::Rollback);
    match status {
        TransactionStatus::Failed if !ends => Err(SqlError::new(
            SqlState::FAILED_TRANSACTION,
            "current transaction is aborted, commands ignored until end of transaction block",
        )),
        _ => Ok(()),
    }
}

/// A session of a client.
pub struct Connection {
    wire: Wire,
    session: Session,
    activity: Arc<Activity>,
    server: Arc<ServerState>,
    statements: BTreeMap<String, Rc<PreparedStatement>>,
    portals: BTreeMap<String, Portal>,
    /// The connection began a transaction for several statements, and ends it by itself.
    is_implicit: bool,
    /// A statement failed inside of the client's transaction, maybe before the session saw it.
    is_failed: bool,
    /// After an error, messages up to the next Sync are ignored.
    is_skipping: bool,
    /// BEGIN, COMMIT and ROLLBACK, prepared when they are first needed.
    controls: [Option<Prepared>; 3],
    /// The values of [`REPORTED`] that the client has.
    reported: Vec<Option<String>>,
}

impl Connection {
    /// Returns the connection of a session. `greeting` are the first messages for the client.
    pub fn new(
        wire: Wire,
        session: Session,
        activity: Arc<Activity>,
        server: Arc<ServerState>,
        greeting: Vec<u8>,
    ) -> Connection {
        let mut connection = Connection {
            wire,
            session,
            activity,
            server,
            statements: BTreeMap::new(),
            portals: BTreeMap::new(),
            is_implicit: false,
            is_failed: false,
            is_skipping: false,
            controls: [None, None, None],
            reported: vec![None; REPORTED.len()],
        };
        connection.wire.out.extend_from_slice(&greeting);
        connection.report_variables();
        connection.ready();
        connection
    }

    /// Returns the wire.
    pub fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// Serves the client until the connection ends. Returns why.
    pub fn run(&mut self) -> End {
        loop {
            if let Err(end) = self.step() {
                return match end {
                    End::Timeout => End::Fatal(self.timeout_error()),
                    end => end,
                };
            }
        }
    }

    /// Returns the state of the transaction. Every error fails it, also one of a message that never
    /// reached the session.
    fn status(&self) -> TransactionStatus {
        match self.session.status() {
            TransactionStatus::Active if self.is_failed => TransactionStatus::Failed,
            status => status,
        }
    }

    /// Undoes what the connection began, and notes that the client's transaction failed.
    fn fail(&mut self) {
        self.roll_back_implicit();
        self.is_failed = self.session.status() != TransactionStatus::Idle;
    }

    fn timeout_error(&self) -> SqlError {
        match self.status() {
            TransactionStatus::Idle => SqlError::new(
                SqlState("57P05"),
                "terminating connection due to idle-session timeout",
            ),
            _ => SqlError::new(
                SqlState("25P03"),
                "terminating connection due to idle-in-transaction timeout",
            ),
        }
    }

    /// Reads and serves one message.
    fn step(&mut self) -> Result<(), End> {
        let options = &self.server.options;
        self.wire.set_timeout(match self.status() {
            TransactionStatus::Idle => options.idle_timeout,
            _ => options.idle_in_transaction_timeout,
        });
        let frame = self.wire.peek()?;
        self.wire.consume(&frame);
        if self.server.is_stopping() {
            return Err(End::Closed);
        }
        if self.is_skipping && !matches!(frame.kind, b'S' | b'X') {
            return Ok(());
        }
        let result = match frame.kind {
            b'Q' => return self.simple_query(&frame),
            b'P' => self.parse(&frame),
            b'B' => self.bind(&frame),
            b'D' => self.describe(&frame),
            b'E' => self.execute(&frame),
            b'C' => self.close(&frame),
            b'S' => return self.sync(),
            b'H' => {
                self.wire.flush_soon();
                Ok(())
            }
            b'X' => return Err(End::Closed),
            // The rest of a COPY that failed.
            b'd' | b'c' | b'f' => Ok(()),
            b'F' => {
                let error = SqlError::unsupported("the function call message");
                self.report(&error)?;
                self.ready();
                Ok(())
            }
            kind => {
                return Err(End::Fatal(protocol_error(format!(
                    "invalid frontend message type {kind}"
                ))));
            }
        };
        match result {
            Ok(()) => Ok(()),
            Err(Stop::Connection(end)) => Err(end),
            Err(Stop::Statement(error)) => {
                self.is_skipping = true;
                self.fail();
                self.report(&error)
            }
        }
    }

    /// Ends a series of messages of the extended protocol.
    fn sync(&mut self) -> Result<(), End> {
        self.is_skipping = false;
        if let Err(error) = self.commit_implicit() {
            self.report(&error)?;
        }
        if self.status() == TransactionStatus::Idle {
            self.portals.clear();
        }
        self.ready();
        Ok(())
    }

    /// Sends an error of a statement. An error while the server stops ends the connection.
    fn report(&mut self, error: &SqlError) -> Result<(), End> {
        if self.server.is_stopping() {
            return Err(End::Closed);
        }
        if error.state() == SqlState::SHUTTING_DOWN {
            return Err(End::Fatal(error.clone()));
        }
        self.server.counters.errors.add(1);
        backend::put_error(&mut self.wire.out, Severity::Error, error);
        self.wire.flush_soon();
        Ok(())
    }

    fn ready(&mut self) {
        let status = self.status();
        backend::put_ready(&mut self.wire.out, status);
        self.wire.flush_soon();
    }

    /// Checks whether a statement may run, and begins a transaction around it if it is not alone in
    /// its query or pipeline.
    fn begin_statement(&mut self, keyword: Keyword, is_alone: bool) -> SqlResult<Beginning> {
        let status = self.status();
        check_not_failed(status, keyword)?;
        match keyword {
            Keyword::Begin if self.is_implicit => {
                // The statements before belong to the transaction that the client begins.
                self.is_implicit = false;
                return Ok(Beginning::Done("BEGIN"));
            }
            Keyword::Commit | Keyword::Rollback if self.is_implicit => {
                self.is_implicit = false;
                let warning = SqlError::new(
                    SqlState::NO_ACTIVE_TRANSACTION,
                    "there is no transaction in progress",
                );
                backend::put_notice(&mut self.wire.out, &warning);
            }
            Keyword::Commit if status == TransactionStatus::Failed => {
                self.control(Control::Rollback)?;
                return Ok(Beginning::Done("ROLLBACK"));
            }
            Keyword::Savepoint if self.is_implicit => {
                return Err(SqlError::new(
                    SqlState::NO_ACTIVE_TRANSACTION,
                    "savepoints can only be used in transaction blocks",
                ));
            }
            // It is a transaction of its own, so what the connection began ends before it.
            Keyword::Ddl => self.commit_implicit()?,
            Keyword::Begin | Keyword::Commit | Keyword::Rollback | Keyword::Savepoint => {}
            _ if !is_alone && status == TransactionStatus::Idle => {
                self.control(Control::Begin)?;
                self.is_implicit = true;
            }
            _ => {}
        }
        Ok(Beginning::Run)
    }

    /// Runs a statement of transaction control for the connection itself.
    fn control(&mut self, control: Control) -> SqlResult<()> {
        let (at, text) = match control {
            Control::Begin => (0, "BEGIN"),
            Control::Commit => (1, "COMMIT"),
            Control::Rollback => (2, "ROLLBACK"),
        };
        let prepared = match &self.controls[at] {
            Some(prepared) => prepared,
            None => {
                let parsed = self.session.parse(text)?;
                let parsed = parsed
                    .first()
                    .ok_or_else(|| SqlError::internal("a statement of control was not parsed"))?;
                let prepared = self.session.prepare(parsed, &[])?;
                self.controls[at].insert(prepared)
            }
        };
        self.session.execute(prepared, &[], &mut NoRows)?;
        Ok(())
    }

    fn commit_implicit(&mut self) -> SqlResult<()> {
        if !std::mem::take(&mut self.is_implicit) {
            return Ok(());
        }
        let result = self.control(Control::Commit);
        if result.is_err() && self.status() != TransactionStatus::Idle {
            let _ = self.control(Control::Rollback);
        }
        result
    }

    fn roll_back_implicit(&mut self) {
        if std::mem::take(&mut self.is_implicit) {
            // The statement's error is the one to report.
            let _ = self.control(Control::Rollback);
        }
    }

    /// Runs DEALLOCATE or DISCARD on the statements that the protocol prepared. Returns the tag if
    /// nothing is left to do for the session.
    fn deallocate(&mut self, text: &str) -> Option<&'static str> {
        match deallocated(text) {
            Deallocated::All => {
                self.statements.clear();
                None
            }
            Deallocated::Name(name) => {
                let found = !name.is_empty() && self.statements.remove(&name).is_some();
                found.then_some("DEALLOCATE")
            }
            Deallocated::None => None,
        }
    }

    /// Sends notices and the tag of a statement. `rows` replaces the number of rows of a SELECT, if
    /// a part of them was sent before.
    fn complete(&mut self, keyword: Keyword, tag: &str, notices: &[SqlError], rows: Option<u64>) {
        // A failed transaction runs only statements that end it, or go back before the failure.
        self.is_failed = false;
        for notice in notices {
            backend::put_notice(&mut self.wire.out, notice);
        }
        match rows {
            Some(rows) if tag.starts_with("SELECT ") => {
                backend::put_command_complete(&mut self.wire.out, &format!("SELECT {rows}"));
            }
            _ if tag.is_empty() => backend::put_empty_query(&mut self.wire.out),
            _ => backend::put_command_complete(&mut self.wire.out, tag),
        }
        if matches!(keyword, Keyword::Commit | Keyword::Rollback)
            && self.status() == TransactionStatus::Idle
        {
            self.portals.clear();
        }
        if !matches!(keyword, Keyword::Select | Keyword::Write) {
            self.report_variables();
        }
    }

    /// Completes a statement that returned no rows to a sink of its own.
    fn complete_outcome(&mut self, keyword: Keyword, outcome: Outcome) -> Result<(), Stop> {
        match outcome {
            Outcome::Done { tag, notices, .. } => {
                self.complete(keyword, &tag, &notices, None);
                Ok(())
            }
            Outcome::CopyIn(copy) => self.copy_in(copy),
            // It is sent by the sink of COPY, as `Prepared::copy_out` announces it.
            Outcome::CopyOut { .. } => Err(SqlError::internal("unexpected rows of COPY").into()),
        }
    }

    /// Sends the values of [`REPORTED`] that changed.
    fn report_variables(&mut self) {
        for (name, known) in REPORTED.iter().zip(&mut self.reported) {
            let value = self.session.variable(name);
            if let Some(value) = value
                && known.as_deref() != Some(value)
            {
                backend::put_parameter_status(&mut self.wire.out, name, value);
                *known = Some(value.to_owned());
            }
        }
    }
}
