//! Statements: from PostgreSQL's dialect to commands, and to what the executor runs.

mod aggregate;
mod analyze;
mod arith;
mod array;
mod binder;
mod call;
mod cast;
mod command;
mod compare;
mod data_type;
mod ddl;
mod empty;
mod expr;
mod from;
mod infer;
mod min_max;
mod name;
mod order;
mod parse;
mod query;
mod system;
mod write;

#[cfg(test)]
mod tests;

pub use analyze::analyze;
pub use parse::{ParsedStatement, parse};
pub use system::{SYSTEM_RELATIONS, SystemRelation, is_always_empty, system_relation};

use binder::Binder;

use crate::catalog::{ColumnDef, ForeignKeyAction, ObjectId};
use crate::types::SqlType;

/// A statement, parsed and checked against a catalog.
#[derive(Debug, Clone)]
pub enum Command {
    /// SELECT, VALUES, or WITH before one of them.
    Query(Query),
    /// INSERT, UPDATE or DELETE.
    Write(Write),
    /// A change of the catalog.
    Ddl(Ddl),
    /// TRUNCATE: all rows of the tables go.
    Truncate {
        /// Names of the tables.
        tables: Vec<String>,
        /// RESTART IDENTITY: their sequences begin again.
        restart: bool,
        /// CASCADE: tables that refer to them are truncated, too.
        cascade: bool,
    },
    /// BEGIN or START TRANSACTION.
    Begin(TransactionMode),
    /// SET TRANSACTION.
    SetTransaction(TransactionMode),
    /// COMMIT or END.
    Commit,
    /// ROLLBACK or ABORT.
    Rollback,
    /// SAVEPOINT.
    Savepoint(String),
    /// RELEASE SAVEPOINT.
    Release(String),
    /// ROLLBACK TO SAVEPOINT.
    RollbackTo(String),
    /// SET of a session's variable; `None` is DEFAULT, as RESET.
    Set {
        /// Name, in lower case.
        name: String,
        /// The new value.
        value: Option<String>,
        /// SET LOCAL: the value is for the transaction alone.
        local: bool,
    },
    /// SHOW of a session's variable, or of `all`.
    Show(String),
    /// COPY of a table or a query, to or from the client.
    Copy(Copy),
    /// EXPLAIN.
    Explain(Explain),
    /// A command that needs no work here, such as ANALYZE, VACUUM, COMMENT or GRANT, with its tag.
    Nothing(&'static str),
    /// CHECKPOINT: the memtables are flushed.
    Checkpoint,
    /// DEALLOCATE: the name of a prepared statement; `None` for DEALLOCATE ALL.
    Deallocate(Option<String>),
    /// DISCARD ALL.
    DiscardAll,
    /// PREPARE name AS statement.
    Prepare {
        /// Name of the statement.
        name: String,
        /// Declared types of its parameters.
        types: Vec<SqlType>,
        /// Its text.
        statement: String,
    },
    /// EXECUTE name (values).
    Execute {
        /// Name of the statement.
        name: String,
        /// The values, as expressions in the executor's dialect that have no columns.
        values: Vec<String>,
    },
    /// An empty statement.
    Empty,
}

/// What BEGIN and SET TRANSACTION set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionMode {
    /// READ ONLY or READ WRITE, if it is given.
    pub read_only: Option<bool>,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultColumn {
    /// Name of the column.
    pub name: String,
    /// Its type, as far as it can be inferred; [`SqlType::Text`] otherwise.
    pub ty: SqlType,
    /// The type of the items of an array, whose values are texts such as `{a,b}`.
    pub array: Option<SqlType>,
    /// The table and the position of the column, if it is one of a table.
    pub origin: Option<(ObjectId, u16)>,
}

/// What every statement with parameters has.
#[derive(Debug, Clone, Default)]
pub struct Executable {
    /// The statement in the executor's dialect. Parameters are `?1`, `?2`, ...
    pub sql: String,
    /// Types of the parameters, inferred where the client did not declare them;
    /// [`SqlType::Text`] where nothing says otherwise.
    pub parameters: Vec<SqlType>,
    /// Names of the tables and views that the statement reads or writes, also those below views.
    pub relations: Vec<String>,
}

/// A statement that returns rows and writes nothing.
#[derive(Debug, Clone)]
pub struct Query {
    /// What is run.
    pub executable: Executable,
    /// Columns of the result.
    pub columns: Vec<ResultColumn>,
    /// FOR UPDATE or FOR SHARE: names of the tables whose rows are read so that the commit fails if
    /// they were changed by others.
    pub locked: Vec<String>,
    /// The statement calls a function that changes state, such as `nextval`.
    pub has_side_effects: bool,
}

/// The kind of a writing statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
}

/// A statement that writes rows of one table.
#[derive(Debug, Clone)]
pub struct Write {
    /// INSERT, UPDATE or DELETE.
    pub kind: WriteKind,
    /// The table that is written.
    pub table: String,
    /// What is run. Defaults are filled in, and ON CONFLICT and RETURNING are taken off.
    pub executable: Executable,
    /// ON CONFLICT of an INSERT.
    pub on_conflict: Option<OnConflict>,
    /// RETURNING.
    pub returning: Option<Returning>,
}

/// ON CONFLICT of an INSERT.
#[derive(Debug, Clone)]
pub struct OnConflict {
    /// The columns of the key that the conflict is about, in the table's order of that key. `None`
    /// for any key, which DO NOTHING may have.
    pub target: Option<ConflictTarget>,
    /// DO UPDATE; `None` is DO NOTHING.
    pub update: Option<ConflictUpdate>,
}

/// The key that a conflict is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictTarget {
    /// The primary key.
    PrimaryKey,
    /// A unique index.
    Index(ObjectId),
}

/// DO UPDATE SET of an ON CONFLICT.
#[derive(Debug, Clone)]
pub struct ConflictUpdate {
    /// Positions of the columns that are set, in the order of the query's columns.
    pub columns: Vec<u16>,
    /// A SELECT without a FROM of real tables, which returns at most one row: the new values, in
    /// the order of `columns`. It returns no row if the WHERE of the DO UPDATE is not true. With
    /// `n` = `parameters_from / 2`: `?1` to `?n` are the visible columns of the stored row, the
    /// next `n` are those of the row that was to be inserted, and the statement's own parameters
    /// follow.
    pub query: String,
    /// Number of the parameters before those of the statement.
    pub parameters_from: usize,
}

/// RETURNING of a writing statement.
#[derive(Debug, Clone)]
pub struct Returning {
    /// A SELECT without a FROM of real tables, which returns one row for one written row. `?1` to
    /// `?n` are the visible columns of the row (for DELETE, of the deleted one), and the
    /// statement's own parameters follow.
    pub query: String,
    /// Number of the parameters before those of the statement.
    pub parameters_from: usize,
    /// Columns of the result.
    pub columns: Vec<ResultColumn>,
}

/// COPY between a table or a query and the client.
#[derive(Debug, Clone)]
pub struct Copy {
    /// What is copied.
    pub source: CopySource,
    /// FROM STDIN; otherwise TO STDOUT.
    pub from_client: bool,
    /// How rows are written.
    pub format: CopyFormat,
}

/// What a COPY reads or writes.
#[derive(Debug, Clone)]
pub enum CopySource {
    /// Columns of a table.
    Table {
        /// Name of the table.
        table: String,
        /// Positions of the columns, in the order of the data.
        columns: Vec<u16>,
        /// The statement that inserts one row: parameter `?i` is the `i`-th column of the data.
        insert: Box<Write>,
        /// The query that reads the columns.
        query: Box<Query>,
    },
    /// A query; TO STDOUT alone.
    Query(Box<Query>),
}

/// How rows of a COPY are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFormat {
    /// CSV; otherwise text with backslashes.
    pub csv: bool,
    /// The byte between columns.
    pub delimiter: u8,
    /// The text of a NULL.
    pub null: String,
    /// The first line has the names of the columns.
    pub header: bool,
    /// The byte around values of CSV.
    pub quote: u8,
    /// The byte before a quote inside of a value of CSV.
    pub escape: u8,
}

/// EXPLAIN.
#[derive(Debug, Clone)]
pub struct Explain {
    /// The statement is also run, and what it cost is shown.
    pub analyze: bool,
    /// The answer is JSON.
    pub json: bool,
    /// The statement: a query or a write.
    pub statement: Box<Command>,
}

/// A change of the catalog. Names are checked when it is carried out, not when it is parsed.
#[derive(Debug, Clone, PartialEq)]
pub enum Ddl {
    /// CREATE TABLE.
    CreateTable(CreateTable),
    /// CREATE TABLE ... AS query. The columns take the names and types of the query.
    CreateTableAs {
        /// Name of the table.
        name: String,
        /// IF NOT EXISTS.
        if_not_exists: bool,
        /// The query in PostgreSQL's dialect.
        query: String,
    },
    /// DROP TABLE.
    DropTable(Drop),
    /// CREATE VIEW. The query is in PostgreSQL's dialect; the view's definition is made when the
    /// command is carried out.
    CreateView {
        /// Name of the view.
        name: String,
        /// OR REPLACE.
        or_replace: bool,
        /// Names of the columns, if they are given.
        columns: Vec<String>,
        /// The query in PostgreSQL's dialect.
        query: String,
    },
    /// DROP VIEW.
    DropView(Drop),
    /// CREATE INDEX.
    CreateIndex {
        /// Name, if it is given.
        name: Option<String>,
        /// Name of the table.
        table: String,
        /// Names of the columns, in order.
        columns: Vec<String>,
        /// UNIQUE.
        unique: bool,
        /// IF NOT EXISTS.
        if_not_exists: bool,
    },
    /// DROP INDEX.
    DropIndex(Drop),
    /// CREATE SEQUENCE.
    CreateSequence {
        /// Name of the sequence.
        name: String,
        /// IF NOT EXISTS.
        if_not_exists: bool,
        /// The first value.
        start: i64,
        /// The difference of two values.
        increment: i64,
    },
    /// DROP SEQUENCE.
    DropSequence(Drop),
    /// ALTER TABLE: its changes are made in order, all or none.
    AlterTable {
        /// Name of the table.
        table: String,
        /// IF EXISTS.
        if_exists: bool,
        /// The changes.
        changes: Vec<AlterTable>,
    },
    /// ALTER INDEX, VIEW or SEQUENCE ... RENAME TO.
    Rename {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
}

/// DROP of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drop {
    /// Names of the objects.
    pub names: Vec<String>,
    /// IF EXISTS.
    pub if_exists: bool,
    /// CASCADE: what depends on them goes, too.
    pub cascade: bool,
}

/// CREATE TABLE.
#[derive(Debug, Clone, PartialEq)]
pub struct CreateTable {
    /// Name of the table.
    pub name: String,
    /// IF NOT EXISTS.
    pub if_not_exists: bool,
    /// The columns. `sequence` is unset; `serial` tells which columns get one.
    pub columns: Vec<NewColumn>,
    /// Constraints of columns and of the table, in order.
    pub constraints: Vec<NewConstraint>,
}

/// A column of CREATE TABLE or ADD COLUMN.
#[derive(Debug, Clone, PartialEq)]
pub struct NewColumn {
    /// Name, type, NOT NULL, default.
    pub column: ColumnDef,
    /// SERIAL or IDENTITY: the column gets a sequence. The values are start and increment.
    pub serial: Option<(i64, i64)>,
}

/// A constraint of CREATE TABLE or ADD CONSTRAINT. Columns are names.
#[derive(Debug, Clone, PartialEq)]
pub struct NewConstraint {
    /// Its name, if it is given.
    pub name: Option<String>,
    /// What it says.
    pub kind: ConstraintKind,
}

/// What a constraint says.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstraintKind {
    /// PRIMARY KEY.
    PrimaryKey(Vec<String>),
    /// UNIQUE.
    Unique(Vec<String>),
    /// CHECK, in the executor's dialect, and as the user wrote it.
    Check {
        /// The expression in the executor's dialect, over quoted column names.
        expression: String,
        /// The expression as the user wrote it.
        text: String,
        /// Names of the columns in it.
        columns: Vec<String>,
    },
    /// FOREIGN KEY.
    ForeignKey {
        /// Columns of the child.
        columns: Vec<String>,
        /// Name of the parent.
        parent: String,
        /// Columns of the parent; empty for its primary key.
        parent_columns: Vec<String>,
        /// ON DELETE.
        on_delete: ForeignKeyAction,
        /// ON UPDATE.
        on_update: ForeignKeyAction,
    },
}

/// A change of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum AlterTable {
    /// ADD COLUMN, with the constraints of the column.
    AddColumn {
        /// The column.
        column: Box<NewColumn>,
        /// IF NOT EXISTS.
        if_not_exists: bool,
        /// Its constraints.
        constraints: Vec<NewConstraint>,
    },
    /// DROP COLUMN.
    DropColumn {
        /// Name of the column.
        name: String,
        /// IF EXISTS.
        if_exists: bool,
        /// CASCADE.
        cascade: bool,
    },
    /// RENAME COLUMN.
    RenameColumn {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// RENAME TO.
    RenameTable(String),
    /// ALTER COLUMN SET or DROP DEFAULT, in the executor's dialect.
    SetDefault {
        /// Name of the column.
        column: String,
        /// The new default.
        default: Option<String>,
    },
    /// ALTER COLUMN SET or DROP NOT NULL.
    SetNotNull {
        /// Name of the column.
        column: String,
        /// SET; otherwise DROP.
        not_null: bool,
    },
    /// ALTER COLUMN TYPE.
    SetType {
        /// Name of the column.
        column: String,
        /// The new type.
        ty: SqlType,
    },
    /// ADD CONSTRAINT.
    AddConstraint(NewConstraint),
    /// DROP CONSTRAINT.
    DropConstraint {
        /// Name of the constraint.
        name: String,
        /// IF EXISTS.
        if_exists: bool,
        /// CASCADE.
        cascade: bool,
    },
    /// RENAME CONSTRAINT.
    RenameConstraint {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// A change that has no meaning here, such as OWNER TO.
    Nothing,
}
