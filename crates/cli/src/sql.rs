//! `sql`: a shell for a relational database, loads of files and dumps, the binlog, and restores.
//!
//! The modules, from below: `splitter` (statements of a script), `time`, `json` and `aligned`
//! (texts of times, rows and tables), `render` (results and errors), `interrupt` (Ctrl-C),
//! `database` (opening), `input` (lines of a terminal, a file or an argument), `describe` (`\d`),
//! `runner` (one statement), `shell` and `meta` (the loop and its commands), `load` with `dump`,
//! `binlog` and `restore`.

mod aligned;
mod binlog;
pub mod database;
mod describe;
mod dump;
mod input;
mod interrupt;
mod json;
mod load;
mod meta;
mod render;
mod restore;
mod runner;
mod shell;
mod splitter;
mod time;

use crate::failure::Outcome;
use crate::sql_args::{BinlogAction, Sql, SqlAction};

/// Runs `basalt sql`.
pub fn sql(args: Sql) -> Outcome {
    match args.action {
        None => shell::shell(&args.shell),
        Some(SqlAction::Load(a)) => load::load(&a),
        Some(SqlAction::Binlog(a)) => match a.action {
            BinlogAction::Tail(a) => binlog::tail(&a),
            BinlogAction::Show(a) => binlog::show(&a),
        },
        Some(SqlAction::Restore(a)) => restore::restore(&a),
    }
}
