//! [`Session`]: a connection of one user, with its transaction.

mod copy;
mod declare;
mod explain;
mod index_build;
mod run;
mod schema_change;
mod transaction;
mod variables;

pub use copy::CopyIn;
pub use run::{Row, RowSink};

use crate::cancellation::Cancellation;
use crate::checker::Checker;
use crate::context::SessionContext;
use crate::error::{SqlError, SqlResult, SqlState};
use crate::functions;
use crate::schema::Schema;
use crate::state::{SessionState, SharedState, StatementCounts};
use crate::statement::{
    Command, CopyFormat, CopySource, ParsedStatement, ResultColumn, analyze, parse,
};
use crate::storage::Storage;
use crate::system_table;
use crate::types::SqlType;
use crate::value::Value;
use crate::vtab;
use basalt::env::sync::Mutex;
use declare::Declared;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transaction::Block;
use variables::Variables;

/// Statements that SQLite keeps prepared, for each session.
const CACHED_STATEMENTS: usize = 128;

/// Operations of SQLite's executor between two looks at a statement's deadline.
const WATCHED_OPERATIONS: i32 = 10_000;

/// Times that a statement outside of a transaction block is run again after a conflict.
const RETRIES: usize = 64;

/// Limits on statements, so that no statement takes the process down.
const LIMITS: [(Limit, i32); 5] = [
    (Limit::SQLITE_LIMIT_LENGTH, 256 << 20),
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 16 << 20),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 1000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 32_766),
];

/// A session of one user. Its calls block; a session is used by one thread at a time.
pub struct Session {
    storage: Arc<Storage>,
    state: SharedState,
    context: Arc<SessionContext>,
    /// SQLite's connection. It is dropped before the state that its tables refer to.
    connection: Connection,
    cancellation: Arc<Cancellation>,
    /// SQLite asks whether the statement must end.
    is_watched: bool,
    /// SQLite may change its schema: the session declares tables.
    is_declaring: Arc<AtomicBool>,
    declared: Declared,
    block: Block,
    variables: Variables,
    prepared: BTreeMap<String, Prepared>,
}

/// The transaction state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// Outside of a transaction block.
    Idle,
    /// Inside of a transaction block.
    Active,
    /// Inside of a failed block, which accepts only ROLLBACK, ROLLBACK TO SAVEPOINT and COMMIT.
    Failed,
}

/// Ends the running statement of a session, from another thread.
#[derive(Clone)]
pub struct InterruptHandle {
    sqlite: Arc<rusqlite::InterruptHandle>,
    cancellation: Arc<Cancellation>,
}

impl InterruptHandle {
    /// Ends the running statement with 57014. If no statement runs, the call has no effect.
    pub fn interrupt(&self) {
        self.cancellation.request();
        self.sqlite.interrupt();
    }
}

/// A statement that was checked against the catalog. Cloning is cheap.
#[derive(Clone)]
pub struct Prepared(Arc<PreparedInner>);

struct PreparedInner {
    statement: ParsedStatement,
    declared: Vec<Option<SqlType>>,
    analyzed: Mutex<Arc<Analyzed>>,
    parameters: Vec<SqlType>,
    columns: Vec<ResultColumn>,
}

/// A statement as of one version of the catalog.
struct Analyzed {
    version: u64,
    command: Command,
}

impl Prepared {
    /// Returns the types of the parameters.
    pub fn parameters(&self) -> &[SqlType] {
        &self.0.parameters
    }

    /// Returns the columns of the result; none for a statement without rows.
    pub fn columns(&self) -> &[ResultColumn] {
        &self.0.columns
    }

    /// Returns how rows are to be written and their columns, for a COPY TO STDOUT.
    pub fn copy_out(&self) -> Option<(CopyFormat, Vec<ResultColumn>)> {
        let analyzed = self.0.analyzed.lock().clone();
        match &analyzed.command {
            Command::Copy(copy) if !copy.from_client => match &copy.source {
                CopySource::Query(query) | CopySource::Table { query, .. } => {
                    Some((copy.format.clone(), query.columns.clone()))
                }
            },
            _ => None,
        }
    }

    /// Returns the text of the statement.
    pub fn text(&self) -> &str {
        self.0.statement.text()
    }

    /// Returns `true` for a statement that a failed transaction block accepts.
    fn ends_block(&self) -> bool {
        let analyzed = self.0.analyzed.lock().clone();
        matches!(
            analyzed.command,
            Command::Rollback | Command::Commit | Command::RollbackTo(_)
        )
    }
}

/// What a statement has done.
pub enum Outcome {
    /// The statement is over.
    Done {
        /// The command tag, as in `INSERT 0 1`.
        tag: String,
        /// Rows that were returned, or written.
        rows: u64,
        /// What the user should know.
        notices: Vec<SqlError>,
    },
    /// COPY TO STDOUT: rows went to the sink as values.
    CopyOut {
        /// How rows are to be written.
        format: CopyFormat,
        /// The columns.
        columns: Vec<ResultColumn>,
        /// Rows that went to the sink.
        rows: u64,
    },
    /// COPY FROM STDIN: data is expected.
    CopyIn(CopyIn),
}

impl Outcome {
    fn done(tag: impl Into<String>, rows: u64) -> Outcome {
        Outcome::Done {
            tag: tag.into(),
            rows,
            notices: Vec::new(),
        }
    }

    fn noticed(tag: impl Into<String>, notice: SqlError) -> Outcome {
        Outcome::Done {
            tag: tag.into(),
            rows: 0,
            notices: vec![notice],
        }
    }
}

/// Opens a connection of SQLite that has no file and no data.
fn connect(context: &Arc<SessionContext>) -> SqlResult<Connection> {
    let open = || -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_in_memory_with_flags(flags)?;
        connection.pragma_update(None, "case_sensitive_like", true)?;
        // A quoted name that does not exist is not a string.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
        connection.pragma_update(None, "trusted_schema", true)?;
        for (limit, value) in LIMITS {
            connection.set_limit(limit, value)?;
        }
        functions::register(&connection, context.clone())?;
        Ok(connection)
    };
    open().map_err(|e| SqlError::internal(format!("SQLite does not open a connection: {e}")))
}

impl Session {
    pub(crate) fn new(storage: &Arc<Storage>, user: &str) -> SqlResult<Session> {
        let context = Arc::new(SessionContext::new(storage.clone(), user.to_owned()));
        let mut connection = connect(&context)?;
        connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
        let cancellation = Arc::new(Cancellation::new(storage.env().clock().clone()));
        let state = Arc::new(Mutex::new(SessionState {
            storage: storage.clone(),
            work: None,
            write: None,
            locked: BTreeSet::new(),
            context: context.clone(),
            checker: Checker::new(connect(&context)?),
            cancellation: cancellation.clone(),
            counts: StatementCounts::default(),
            cascades: 0,
        }));
        let is_declaring = Arc::new(AtomicBool::new(true));
        declare::guard(&mut connection, &is_declaring)?;
        let module = connection.create_module(vtab::MODULE, vtab::module(), Some(state.clone()));
        module.map_err(|e| crate::sqlite_error::of(&e))?;
        system_table::register(&connection, &state)?;
        is_declaring.store(false, Ordering::SeqCst);
        Ok(Session {
            storage: storage.clone(),
            state,
            variables: Variables::new(storage.options(), user),
            context,
            connection,
            cancellation,
            is_watched: false,
            is_declaring,
            declared: Declared::default(),
            block: Block::None,
            prepared: BTreeMap::new(),
        })
    }

    /// Splits a script into statements.
    ///
    /// Errors: 42601 for a malformed statement, with its position in the script, in characters from
    /// 1; 54000 for a script of more than 64 MiB; 54001 for a statement that is nested too deeply;
    /// 0A000 for clauses that the parser would drop.
    pub fn parse(&self, script: &str) -> SqlResult<Vec<ParsedStatement>> {
        parse(script)
    }

    /// Returns whether the session is inside of a transaction block.
    pub fn status(&self) -> TransactionStatus {
        self.block.status()
    }

    /// Returns the handle by which other threads end the running statement.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        InterruptHandle {
            sqlite: Arc::new(self.connection.get_interrupt_handle()),
            cancellation: self.cancellation.clone(),
        }
    }

    /// Returns the schema that the session's statements see.
    fn schema(&self) -> Arc<Schema> {
        let state = self.state.lock();
        match &state.work {
            Some(work) => work.schema.clone(),
            None => self.storage.schema(),
        }
    }

    /// Checks a statement against the catalog. `types` are those of its parameters, as far as the
    /// caller declares them.
    ///
    /// Errors: 42xxx for names and types that do not fit; 0A000 for what is not supported.
    pub fn prepare(
        &mut self,
        statement: &ParsedStatement,
        types: &[Option<SqlType>],
    ) -> SqlResult<Prepared> {
        let schema = self.schema();
        let command = analyze(statement, &schema.catalog, types)?;
        let (parameters, columns) = self.signature(&command)?;
        Ok(Prepared(Arc::new(PreparedInner {
            statement: statement.clone(),
            declared: types.to_vec(),
            parameters,
            columns,
            analyzed: Mutex::new(Arc::new(Analyzed {
                version: schema.catalog.version,
                command,
            })),
        })))
    }

    /// Returns the types of a command's parameters, and the columns of its result.
    fn signature(&self, command: &Command) -> SqlResult<(Vec<SqlType>, Vec<ResultColumn>)> {
        let text = |name: &str| ResultColumn {
            name: name.to_owned(),
            ty: SqlType::Text,
            array: None,
            origin: None,
        };
        Ok(match command {
            Command::Query(query) => (query.executable.parameters.clone(), query.columns.clone()),
            Command::Write(write) => {
                let returning = write.returning.as_ref();
                let columns = returning.map(|r| r.columns.clone()).unwrap_or_default();
                (write.executable.parameters.clone(), columns)
            }
            Command::Explain(explain) => {
                let (parameters, _) = self.signature(&explain.statement)?;
                (parameters, vec![text("QUERY PLAN")])
            }
            Command::Show(name) if name == "all" => {
                let columns = vec![text("name"), text("setting"), text("description")];
                (Vec::new(), columns)
            }
            Command::Show(name) => (Vec::new(), vec![text(name)]),
            Command::Execute { name, .. } => {
                let prepared = self.named(name)?;
                (Vec::new(), prepared.columns().to_vec())
            }
            _ => (Vec::new(), Vec::new()),
        })
    }

    fn named(&self, name: &str) -> SqlResult<&Prepared> {
        self.prepared.get(name).ok_or_else(|| {
            SqlError::new(
                SqlState::INVALID_STATEMENT_NAME,
                format!("prepared statement \"{name}\" does not exist"),
            )
        })
    }

    /// Returns the statement as of a schema. It is analyzed again if the catalog has changed.
    fn analyzed(&self, prepared: &Prepared, schema: &Schema) -> SqlResult<Arc<Analyzed>> {
        let current = prepared.0.analyzed.lock().clone();
        if current.version == schema.catalog.version {
            return Ok(current);
        }
        let inner = &prepared.0;
        let command = analyze(&inner.statement, &schema.catalog, &inner.declared)?;
        let (parameters, columns) = self.signature(&command)?;
        let has_same = |a: &[ResultColumn], b: &[ResultColumn]| {
            let mut pairs = a.iter().zip(b);
            a.len() == b.len() && pairs.all(|(a, b)| a.name == b.name && a.ty == b.ty)
        };
        if parameters != inner.parameters || !has_same(&columns, &inner.columns) {
            return Err(SqlError::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cached plan must not change result type",
            )
            .with_hint("prepare the statement again"));
        }
        let analyzed = Arc::new(Analyzed {
            version: schema.catalog.version,
            command,
        });
        *inner.analyzed.lock() = analyzed.clone();
        Ok(analyzed)
    }

    /// Runs a statement and passes its rows to `sink`. Outside of a block, the statement is
    /// committed when the call returns; with `synchronous_commit = on` (the default) it is durable.
    /// After a conflict the statement is run again, up to 64 times, unless it has passed rows to
    /// `sink`.
    ///
    /// Errors: those of the statement, 40001 for a conflict, 57014 for an interrupt or a timeout.
    /// An error aborts an open transaction block.
    pub fn execute(
        &mut self,
        prepared: &Prepared,
        parameters: &[Value],
        sink: &mut dyn RowSink,
    ) -> SqlResult<Outcome> {
        if self.block.status() == TransactionStatus::Failed && !prepared.ends_block() {
            return Err(SqlError::new(
                SqlState::FAILED_TRANSACTION,
                "current transaction is aborted, commands ignored until end of transaction block",
            ));
        }
        if parameters.len() != prepared.parameters().len() {
            return Err(SqlError::new(
                SqlState::UNDEFINED_PARAMETER,
                format!(
                    "the statement has {} parameters, and {} values were given",
                    prepared.parameters().len(),
                    parameters.len()
                ),
            ));
        }
        // An interrupt that came too late for the last statement does not end this one.
        self.cancellation.clear();
        self.limit_time()?;
        let done = self.execute_checked(prepared, parameters, sink);
        self.cancellation.clear();
        if done.is_err() {
            self.fail_block();
        }
        done
    }

    /// Gives the statement that begins now the time of the variable `statement_timeout`.
    fn limit_time(&mut self) -> SqlResult<()> {
        let timeout = self.variables.statement_timeout();
        if timeout == 0 && !self.is_watched {
            return Ok(());
        }
        self.cancellation.set_timeout(timeout);
        if self.is_watched {
            return Ok(());
        }
        let (cancellation, context) = (self.cancellation.clone(), self.context.clone());
        let is_over = move || match cancellation.check() {
            Ok(()) => false,
            Err(e) => {
                context.raise(e);
                true
            }
        };
        let watched = self
            .connection
            .progress_handler(WATCHED_OPERATIONS, Some(is_over));
        watched.map_err(|e| crate::sqlite_error::of(&e))?;
        self.is_watched = true;
        Ok(())
    }

    fn execute_checked(
        &mut self,
        prepared: &Prepared,
        parameters: &[Value],
        sink: &mut dyn RowSink,
    ) -> SqlResult<Outcome> {
        let analyzed = prepared.0.analyzed.lock().clone();
        match &analyzed.command {
            Command::Query(_) | Command::Write(_) | Command::Truncate { .. } => {
                self.execute_rows(prepared, parameters, sink)
            }
            Command::Explain(_) => self.execute_rows(prepared, parameters, sink),
            Command::Copy(copy) => self.begin_copy(copy, sink),
            Command::Ddl(ddl) => self.execute_ddl(ddl, prepared.text()),
            Command::Set { name, value, local } => self.set(name, value.as_deref(), *local),
            Command::Show(name) => self.show(name, sink),
            Command::Prepare {
                name,
                types,
                statement,
            } => self.prepare_named(name, types, statement),
            Command::Execute { name, values } => self.execute_named(name, values, sink),
            Command::Deallocate(name) => self.deallocate(name.as_deref()),
            Command::DiscardAll => {
                self.refuse_in_block("DISCARD ALL")?;
                self.prepared.clear();
                self.variables = Variables::new(self.storage.options(), &self.context.user);
                Ok(Outcome::done("DISCARD ALL", 0))
            }
            Command::Checkpoint => {
                self.storage.db().flush()?;
                Ok(Outcome::done("CHECKPOINT", 0))
            }
            Command::Nothing(tag) => {
                if *tag == "VACUUM" {
                    self.refuse_in_block(tag)?;
                }
                Ok(Outcome::done(*tag, 0))
            }
            Command::Empty => Ok(Outcome::done("", 0)),
            command => self.control(command),
        }
    }

    fn prepare_named(
        &mut self,
        name: &str,
        types: &[SqlType],
        statement: &str,
    ) -> SqlResult<Outcome> {
        if self.prepared.contains_key(name) {
            return Err(SqlError::new(
                SqlState::DUPLICATE_PREPARED_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let mut parsed = parse(statement)?;
        let parsed = parsed.pop().filter(|_| parsed.is_empty());
        let parsed = parsed.ok_or_else(|| SqlError::syntax("PREPARE takes one statement"))?;
        let types: Vec<Option<SqlType>> = types.iter().map(|ty| Some(*ty)).collect();
        let prepared = self.prepare(&parsed, &types)?;
        let analyzed = prepared.0.analyzed.lock().clone();
        // An EXECUTE inside could name the statement itself.
        if !matches!(analyzed.command, Command::Query(_) | Command::Write(_)) {
            return Err(SqlError::syntax(
                "PREPARE takes a SELECT, VALUES, INSERT, UPDATE or DELETE statement",
            ));
        }
        self.prepared.insert(name.to_owned(), prepared);
        Ok(Outcome::done("PREPARE", 0))
    }

    fn execute_named(
        &mut self,
        name: &str,
        values: &[String],
        sink: &mut dyn RowSink,
    ) -> SqlResult<Outcome> {
        let prepared = self.named(name)?.clone();
        if self.status() == TransactionStatus::Idle {
            self.context.begin_transaction();
        }
        let mut parameters = Vec::with_capacity(values.len());
        for (value, ty) in values.iter().zip(prepared.parameters()) {
            let state = self.state.lock();
            let row = state
                .checker
                .row(&format!("SELECT {value}"), std::iter::empty());
            let row = row.map_err(|e| self.context.take_error().unwrap_or(e))?;
            let value = row.and_then(|mut row| row.pop()).unwrap_or_default();
            parameters.push(ty.coerce(value)?);
        }
        if values.len() != prepared.parameters().len() {
            return Err(SqlError::syntax(format!(
                "prepared statement \"{name}\" has {} parameters, and {} values were given",
                prepared.parameters().len(),
                values.len()
            )));
        }
        self.execute_checked(&prepared, &parameters, sink)
    }

    fn deallocate(&mut self, name: Option<&str>) -> SqlResult<Outcome> {
        match name {
            None => self.prepared.clear(),
            Some(name) => {
                self.named(name)?;
                self.prepared.remove(name);
            }
        }
        let tag = match name {
            None => "DEALLOCATE ALL",
            Some(_) => "DEALLOCATE",
        };
        Ok(Outcome::done(tag, 0))
    }
}
