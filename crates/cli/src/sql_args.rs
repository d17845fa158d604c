//! The command line of `sql`.

use crate::location::{Make, StoreLocation};
use basalt_bench::flags::parse_size;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  basalt sql
  basalt sql -c 'CREATE TABLE notes (id int PRIMARY KEY, note text)' -c 'SELECT * FROM notes'
  basalt sql -f schema.sql --dir /srv/sql
  basalt sql --json -c 'SELECT * FROM people' | jq .name
  echo 'SELECT 1;' | basalt sql --csv
  basalt sql load people.csv --table people --header
  basalt sql binlog tail --json

On a terminal, the shell reads a statement up to its semicolon, with line editing and a history. \\? lists the backslash commands. \
Ctrl-C cancels the running statement. Without a terminal, the shell reads standard input without a prompt, and stops at the first failed statement. \
All -c statements run before all -f files. The history file is $BASALT_SQL_HISTORY, or sql_history in $XDG_STATE_HOME/basalt or ~/.local/state/basalt. \
A missing database is created.

Only one process can open a database. If a server has it open, use psql.

Exit codes: 0 success; 1 a statement failed; 2 the command failed (wrong arguments, missing database, database in use, failed read or write).";

/// The default of `--dir` of the commands of `sql`, and of `--sql-dir` of `serve`.
pub const SQL_DIR: &str = "./basalt-sql";

/// The flags of a database's location.
#[derive(Args, Clone, Debug)]
pub struct SqlLocation {
    /// Use the database in this directory; with --image, a directory inside of the image
    #[arg(long, value_name = "DIR", default_value = SQL_DIR)]
    pub dir: PathBuf,
    /// Use the database in this image file or on this block device, in Basalt's own filesystem (see
    /// `basalt fs`)
    #[arg(long, value_name = "FILE|DEVICE")]
    pub image: Option<PathBuf>,
}

impl SqlLocation {
    /// Returns the location of the store that the database consists of.
    pub fn store(&self) -> StoreLocation {
        StoreLocation {
            dir: self.dir.clone(),
            image: self.image.clone(),
        }
    }
}

/// The flags for a database that a command may create.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct MakeDatabase {
    /// Create a missing database even in a directory that holds other files
    #[arg(long)]
    pub allow_nonempty_dir: bool,
    /// Create a missing --image of this many bytes, such as 20G
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "image")]
    pub size: Option<u64>,
}

impl MakeDatabase {
    /// Returns the flags for making the store.
    pub fn store(self) -> Make {
        Make {
            allow_nonempty_dir: self.allow_nonempty_dir,
            size: self.size,
            sparse: false,
            engine: None,
        }
    }
}

#[derive(Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Sql {
    #[command(subcommand)]
    pub action: Option<SqlAction>,
    #[command(flatten)]
    pub shell: Shell,
}

#[derive(Args)]
pub struct Shell {
    #[command(flatten)]
    pub place: SqlLocation,
    #[command(flatten)]
    pub make: MakeDatabase,
    /// Run this statement and exit; can be repeated
    #[arg(short, long = "command", value_name = "STATEMENT")]
    pub commands: Vec<String>,
    /// Run the statements of this file and exit; can be repeated
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print each row as a JSON object, one per line
    #[arg(long, conflicts_with_all = ["json_document", "csv"])]
    pub json: bool,
    /// Print one JSON array with an object for each statement: its tag, columns and rows
    #[arg(long, conflicts_with = "csv")]
    pub json_document: bool,
    /// Print rows as CSV with a header
    #[arg(long)]
    pub csv: bool,
    /// Run the statements after a failed statement, too; the exit code is still 1
    #[arg(long)]
    pub keep_going: bool,
    /// Do not print command tags such as INSERT 0 1
    #[arg(short, long)]
    pub quiet: bool,
    /// Keep the history in this file
    #[arg(long, value_name = "FILE", conflicts_with = "no_history")]
    pub history: Option<PathBuf>,
    /// Read and write no history
    #[arg(long)]
    pub no_history: bool,
}

#[derive(Subcommand)]
pub enum SqlAction {
    /// Load rows from a CSV or text file into a table, or load a dump of pg_dump
    Load(SqlLoad),
    /// Print the records of the binlog of a closed database
    Binlog(Binlog),
    /// Restore a database to a transaction or a time, from a checkpoint and a binlog
    Restore(Restore),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt sql load people.csv --table people --header
  basalt sql load people.txt --table people --columns id,name --null NULL
  pg_dump --no-owner shop | basalt sql load --dump -
  basalt sql load --dump shop.sql --skip-unsupported
  basalt sql load people.csv --table people --header --from-line 4002

The file name selects the format: .csv is CSV, any other name is the text format with tabs. --csv and --text override it. \
Rows are committed in batches, and each commit is synced. If the load fails, the message names the line of the file, the number of committed rows, \
and the value of --from-line that continues the load.

--dump reads the output of pg_dump, with COPY blocks or with --inserts. SET, set_config, OWNER, COMMENT, GRANT, \\connect and similar statements are \
skipped and counted. Each schema change is a commit of its own.

Exit codes: 0 success; 2 the command failed (wrong arguments, refused row or statement, missing database, database in use, failed read or write).")]
pub struct SqlLoad {
    #[command(flatten)]
    pub place: SqlLocation,
    #[command(flatten)]
    pub make: MakeDatabase,
    /// The file to read; standard input if it is -
    #[arg(
        value_name = "FILE",
        required_unless_present = "dump",
        conflicts_with = "dump"
    )]
    pub file: Option<PathBuf>,
    /// Read this dump of PostgreSQL; standard input if it is -
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// Insert the rows into this table
    #[arg(
        long,
        value_name = "T",
        required_unless_present = "dump",
        conflicts_with = "dump"
    )]
    pub table: Option<String>,
    /// Fill these columns, separated by commas, in the order of the file [default: all columns]
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "dump"
    )]
    pub columns: Vec<String>,
    /// Read CSV
    #[arg(long, conflicts_with_all = ["text", "dump"])]
    pub csv: bool,
    /// Read the text format of COPY: tabs between columns, escapes with backslashes
    #[arg(long, conflicts_with = "dump")]
    pub text: bool,
    /// Skip the first line, which has the names of the columns
    #[arg(long, conflicts_with = "dump")]
    pub header: bool,
    /// Separate columns by this character [default: a comma in CSV, else a tab]
    #[arg(long, value_name = "C", conflicts_with = "dump")]
    pub delimiter: Option<String>,
    /// Read this text as NULL [default: '' in CSV, else \N]
    #[arg(long, value_name = "TEXT", conflicts_with = "dump")]
    pub null: Option<String>,
    /// Quote CSV values with this character
    #[arg(long, value_name = "C", default_value = "\"", conflicts_with = "dump")]
    pub quote: String,
    /// Commit after each N rows; each commit is synced
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub batch: u64,
    /// Skip statements and rows that begin before this line of the file
    #[arg(long, value_name = "LINE", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub from_line: u64,
    /// Skip statements of a dump that use unsupported features, and report them
    #[arg(long, requires = "dump")]
    pub skip_unsupported: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt sql binlog show
  basalt sql binlog tail --json

The binlog is the log of the database. It holds the committed transactions in order, each with its transaction sequence number (TSN).")]
pub struct Binlog {
    #[command(subcommand)]
    pub action: BinlogAction,
}

#[derive(Subcommand)]
pub enum BinlogAction {
    /// Print the records of the binlog in order
    Tail(BinlogTail),
    /// Show the first and the last record of the binlog, with their times
    Show(BinlogShow),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt sql binlog tail --json
  basalt sql binlog tail --json --from 4711
  basalt sql binlog tail --json | jq -c '.changes[]?'

The database must be closed: the command fails while a process has it open, and no process can open it for writing while the command runs. \
After a crash, open the database once, so that the binlog is replayed.

With --json, each record is one line: {\"tsn\": 7, \"commit_time\": \"2025-01-02T03:04:05.678Z\", \"changes\": [{\"table\": \"t\", \"op\": \"update\", \
\"key\": {\"id\": 1}, \"before\": {...}, \"after\": {...}}]}. In place of \"changes\", a record can have \"ddl\" (a schema change), \"sequence\" (reserved numbers) or \"backfill\" \
(entries of an index build). To continue after a record, give --from TSN+1. Without --json, each change is a line of text.")]
pub struct BinlogTail {
    #[command(flatten)]
    pub place: SqlLocation,
    /// Begin at this transaction sequence number (TSN) [default: the first record]
    #[arg(long, value_name = "TSN")]
    pub from: Option<u64>,
    /// Stop after this many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Keep waiting for records until Ctrl-C. No process can write to the database meanwhile
    #[arg(short, long)]
    pub follow: bool,
    /// Print each record as one line of JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt sql binlog show
  basalt sql binlog show --json | jq .last.tsn

The command reads the whole binlog to count its records. The database must be closed, as for `binlog tail`.")]
pub struct BinlogShow {
    #[command(flatten)]
    pub place: SqlLocation,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt sql restore --checkpoint /backup/monday --binlog /srv/sql --to-tsn 4711 --into ./restored
  basalt sql restore --checkpoint /backup/monday --binlog /srv/sql --to-time '2025-01-02 03:04:05Z' --into ./restored

The command copies the checkpoint, and applies the binlog records after it up to and including the target. It changes neither the checkpoint nor the \
database of --binlog, which must have been closed cleanly: after a crash, open it once with `basalt sql`. If the command fails, delete the directory of \
--into before the next attempt.

Exit codes: 0 success; 2 the command failed (wrong arguments, missing database, database in use, failed read or write).")]
pub struct Restore {
    /// Copy the database of this checkpoint
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Apply the binlog of the database in this directory
    #[arg(long, value_name = "DIR")]
    pub binlog: PathBuf,
    /// Restore all records up to and including this transaction sequence number (TSN)
    #[arg(
        long,
        value_name = "TSN",
        required_unless_present = "to_time",
        conflicts_with = "to_time"
    )]
    pub to_tsn: Option<u64>,
    /// Restore all records that were committed up to this time; give a date, a time and a zone,
    /// such as 2025-01-02T03:04:05.678Z or 2025-01-02 03:04+01:00
    #[arg(long, value_name = "TIME")]
    pub to_time: Option<String>,
    /// Create the database in this directory, which must be missing or empty
    #[arg(long, value_name = "DIR")]
    pub into: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
