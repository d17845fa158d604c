//! [`SqlError`]: what failed, with PostgreSQL's code for it.

use basalt::{Error, ErrorKind};
use std::fmt;

/// The result of a call of this crate.
pub type SqlResult<T> = std::result::Result<T, SqlError>;

/// A five-character SQLSTATE code as PostgreSQL assigns them (PostgreSQL's manual, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SqlState(pub &'static str);

/// Declares the codes that this crate uses.
macro_rules! states {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        #[allow(missing_docs)]
        impl SqlState {
            $(#[doc = $text] pub const $name: SqlState = SqlState($code);)*
        }
    };
}

states! {
    FEATURE_NOT_SUPPORTED = "0A000", "The feature is not supported.";
    CARDINALITY_VIOLATION = "21000", "A statement touches a row twice, or a subquery has too many rows.";
    STRING_TOO_LONG = "22001", "A text is longer than its column allows.";
    NUMERIC_OUT_OF_RANGE = "22003", "A number is outside the range of its type.";
    INVALID_DATETIME = "22007", "The text is not a valid date, time or timestamp.";
    DATETIME_OVERFLOW = "22008", "A field of a date or time is out of range.";
    DIVISION_BY_ZERO = "22012", "A division by zero.";
    INVALID_ENCODING = "22021", "The text is not valid UTF-8.";
    INVALID_PARAMETER_VALUE = "22023", "The value of a parameter is invalid.";
    INVALID_TEXT = "22P02", "The text is not valid for its type.";
    BAD_COPY_FORMAT = "22P04", "The data of a COPY is malformed.";
    INTEGRITY_VIOLATION = "23000", "A constraint is violated.";
    NOT_NULL_VIOLATION = "23502", "A NULL in a column that is NOT NULL.";
    FOREIGN_KEY_VIOLATION = "23503", "A row refers to a row that does not exist.";
    UNIQUE_VIOLATION = "23505", "A second row with the same key.";
    CHECK_VIOLATION = "23514", "A CHECK constraint is violated.";
    ACTIVE_TRANSACTION = "25001", "The command cannot run inside a transaction block.";
    READ_ONLY_TRANSACTION = "25006", "The transaction is read-only.";
    NO_ACTIVE_TRANSACTION = "25P01", "There is no transaction.";
    FAILED_TRANSACTION = "25P02", "The transaction has failed: it can only be rolled back.";
    INVALID_STATEMENT_NAME = "26000", "There is no prepared statement of this name.";
    INVALID_CURSOR_NAME = "34000", "There is no cursor of this name.";
    INVALID_SAVEPOINT = "3B001", "There is no savepoint of this name.";
    INVALID_SCHEMA_NAME = "3F000", "There is no schema of this name.";
    SERIALIZATION_FAILURE = "40001", "Another transaction changed the same rows first.";
    SYNTAX_ERROR = "42601", "The statement is malformed.";
    INSUFFICIENT_PRIVILEGE = "42501", "The session may not do this.";
    INVALID_NAME = "42602", "A name is invalid.";
    NAME_TOO_LONG = "42622", "A name is too long.";
    DUPLICATE_COLUMN = "42701", "A column is named twice.";
    AMBIGUOUS_COLUMN = "42702", "A column name is ambiguous.";
    UNDEFINED_COLUMN = "42703", "There is no column of this name.";
    UNDEFINED_OBJECT = "42704", "There is no such object.";
    DUPLICATE_OBJECT = "42710", "The object exists already.";
    DUPLICATE_TABLE = "42P07", "A table, view or index of this name exists already.";
    DUPLICATE_PREPARED_STATEMENT = "42P05", "A prepared statement of this name exists already.";
    GROUPING_ERROR = "42803", "A column is neither grouped nor aggregated.";
    DATATYPE_MISMATCH = "42804", "A value has a type that its place does not take.";
    WRONG_OBJECT_TYPE = "42809", "The object is of another kind.";
    INVALID_FOREIGN_KEY = "42830", "A foreign key refers to columns that are not a key.";
    UNDEFINED_FUNCTION = "42883", "There is no such function.";
    UNDEFINED_TABLE = "42P01", "There is no table or view of this name.";
    UNDEFINED_PARAMETER = "42P02", "There is no parameter of this number.";
    INVALID_COLUMN_REFERENCE = "42P10", "A column reference is invalid, as in ON CONFLICT without a key.";
    INVALID_TABLE_DEFINITION = "42P16", "The definition of a table is invalid.";
    INDETERMINATE_DATATYPE = "42P18", "The type of a parameter cannot be determined.";
    DISK_FULL = "53100", "The disk is full.";
    OUT_OF_MEMORY = "53200", "The operation needs more memory than it may have.";
    TOO_MANY_CONNECTIONS = "53300", "Too many sessions are open.";
    PROGRAM_LIMIT_EXCEEDED = "54000", "A limit of the program is exceeded.";
    STATEMENT_TOO_COMPLEX = "54001", "The statement is too complex.";
    TOO_MANY_COLUMNS = "54011", "A table has too many columns.";
    OBJECT_NOT_IN_STATE = "55000", "The object is not in the state that the command needs.";
    OBJECT_IN_USE = "55006", "The object is in use.";
    LOCK_NOT_AVAILABLE = "55P03", "A lock was not free in time.";
    QUERY_CANCELED = "57014", "The statement was cancelled.";
    SHUTTING_DOWN = "57P01", "The database is shutting down.";
    IO_ERROR = "58030", "The store failed to read or write.";
    DEPENDENT_OBJECTS = "2BP01", "Other objects depend on the object.";
    INTERNAL_ERROR = "XX000", "A defect of the program.";
    DATA_CORRUPTED = "XX001", "Stored data is damaged.";
}

/// A failed statement or call. The fields other than the code and the message are those of
/// PostgreSQL's error messages; they are set where they are known.
#[derive(Debug, Clone)]
pub struct SqlError(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    state: SqlState,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    position: Option<u32>,
    table: Option<String>,
    column: Option<String>,
    constraint: Option<String>,
}

impl SqlError {
    /// Returns an error with a code and a message that says what failed and on what.
    pub fn new(state: SqlState, message: impl Into<String>) -> SqlError {
        SqlError(Box::new(Inner {
            state,
            message: message.into(),
            detail: None,
            hint: None,
            position: None,
            table: None,
            column: None,
            constraint: None,
        }))
    }

    /// Returns an error for a feature that is not supported.
    pub fn unsupported(what: impl fmt::Display) -> SqlError {
        SqlError::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("{what} is not supported"),
        )
    }

    /// Returns an error for a malformed statement.
    pub fn syntax(message: impl Into<String>) -> SqlError {
        SqlError::new(SqlState::SYNTAX_ERROR, message)
    }

    /// Returns an error for a state that only a defect of the program explains.
    pub fn internal(message: impl Into<String>) -> SqlError {
        SqlError::new(SqlState::INTERNAL_ERROR, message)
            .with_hint("this is a defect of Basalt; please report it with the statement")
    }

    /// Returns the error of a statement that was cancelled.
    pub fn interrupted() -> SqlError {
        SqlError::new(
            SqlState::QUERY_CANCELED,
            "canceling statement due to user request",
        )
    }

    /// Adds the detail: the values that the message is about.
    pub fn with_detail(mut self, detail: impl Into<String>) -> SqlError {
        self.0.detail = Some(detail.into());
        self
    }

    /// Adds the hint: what to do.
    pub fn with_hint(mut self, hint: impl Into<String>) -> SqlError {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the position in the statement, in characters from 1.
    pub fn with_position(mut self, position: u32) -> SqlError {
        self.0.position = Some(position);
        self
    }

    /// Adds the table that the error is about.
    pub fn with_table(mut self, table: impl Into<String>) -> SqlError {
        self.0.table = Some(table.into());
        self
    }

    /// Adds the column that the error is about.
    pub fn with_column(mut self, column: impl Into<String>) -> SqlError {
        self.0.column = Some(column.into());
        self
    }

    /// Adds the constraint that is violated.
    pub fn with_constraint(mut self, constraint: impl Into<String>) -> SqlError {
        self.0.constraint = Some(constraint.into());
        self
    }

    /// Returns the SQLSTATE code.
    pub fn state(&self) -> SqlState {
        self.0.state
    }

    /// Returns the message, without detail and hint.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the detail, if there is one.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// Returns the hint, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Returns the position in the statement, in characters from 1, if it is known.
    pub fn position(&self) -> Option<u32> {
        self.0.position
    }

    /// Returns the table that the error is about, if there is one.
    pub fn table(&self) -> Option<&str> {
        self.0.table.as_deref()
    }

    /// Returns the column that the error is about, if there is one.
    pub fn column(&self) -> Option<&str> {
        self.0.column.as_deref()
    }

    /// Returns the constraint that is violated, if there is one.
    pub fn constraint(&self) -> Option<&str> {
        self.0.constraint.as_deref()
    }

    /// Returns `true` if the transaction may succeed when it is run again.
    pub fn is_retryable(&self) -> bool {
        self.0.state == SqlState::SERIALIZATION_FAILURE
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.0.message, self.0.state.0)?;
        if let Some(detail) = &self.0.detail {
            write!(f, "; {detail}")?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SqlError {}

impl From<Error> for SqlError {
    fn from(e: Error) -> SqlError {
        let state = match e.kind() {
            ErrorKind::Conflict | ErrorKind::Deadlock => SqlState::SERIALIZATION_FAILURE,
            ErrorKind::Busy => SqlState::LOCK_NOT_AVAILABLE,
            ErrorKind::Corruption => SqlState::DATA_CORRUPTED,
            ErrorKind::NoSpace => SqlState::DISK_FULL,
            ErrorKind::Closed => SqlState::SHUTTING_DOWN,
            ErrorKind::Cancelled => SqlState::QUERY_CANCELED,
            ErrorKind::ReadOnly => SqlState::READ_ONLY_TRANSACTION,
            ErrorKind::Unsupported => SqlState::FEATURE_NOT_SUPPORTED,
            _ => SqlState::IO_ERROR,
        };
        SqlError::new(state, e.to_string())
    }
}
