//! A relational database over a passive store: its binlog is the only log.
#![deny(missing_docs)]

mod array_text;
mod binlog;
mod cancellation;
pub mod catalog;
mod check;
mod checker;
mod codec;
mod committer;
mod context;
pub mod copy;
mod cursor;
mod database;
mod ddl;
mod definition;
mod error;
mod functions;
#[cfg(test)]
mod golden;
mod history;
mod keys;
mod options;
mod plan;
mod record;
mod restore;
mod retention;
mod row_write;
mod schema;
mod session;
mod sqlite_error;
mod sqlite_value;
mod state;
pub mod statement;
mod storage;
mod system_table;
mod translate;
mod types;
mod value;
mod vtab;
mod write_set;

pub use array_text::array_items;
pub use binlog::{BinlogKind, BinlogReader, BinlogRecord, RowChange, RowOperation};
pub use check::CheckReport;
pub use committer::StorageLog;
pub use database::Database;
pub use definition::{type_length, type_modifier, type_oid};
pub use error::{SqlError, SqlResult, SqlState};
pub use options::DatabaseOptions;
pub use restore::{RestoreOptions, RestoreReport, RestoreTarget};
pub use session::{
    CopyIn, InterruptHandle, Outcome, Prepared, Row, RowSink, Session, TransactionStatus,
};
pub use statement::{CopyFormat, ParsedStatement, ResultColumn};
pub use types::SqlType;
pub use value::{Value, ValueRef};
