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
  basalt sql binlog tail --json --follow

On a terminal it reads statements up to a semicolon, with line editing and history; \\? shows the commands that begin with a backslash. \
Ctrl-C cancels the running statement. Otherwise it reads standard input, without a prompt, and stops at the first statement that fails. -c and -f run in the \
order -c before -f. The history is $BASALT_SQL_HISTORY, or sql_history in $XDG_STATE_HOME/basalt or ~/.local/state/basalt. A missing database is made.

A database has one owner at a time. For a running server use psql.

Exit codes: 0 done; 1 a statement failed; 2 not done (wrong arguments, no such database, database in use, failed read or write).";

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

/// The flags for a database that a command may make.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct MakeDatabase {
    /// Make a missing database even in a directory that holds other files
    #[arg(long)]
    pub allow_nonempty_dir: bool,
    /// Make a missing --image of this many bytes, such as 20G
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
    /// Run this statement and end; may be given several times
    #[arg(short, long = "command", value_name = "STATEMENT")]
    pub commands: Vec<String>,
    /// Run the statements of this file and end; may be given several times
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print each row as a JSON object, one a line
    #[arg(long, conflicts_with_all = ["json_document", "csv"])]
    pub json: bool,
    /// Print one JSON array with an object for each statement: its tag, columns and rows
    #[arg(long, conflicts_with = "csv")]
    pub json_document: bool,
    /// Print rows as CSV with a header
    #[arg(long)]
    pub csv: bool,
    /// Run the statements after one that failed, too; the exit code is still 1
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
    /// Read rows of a CSV or text file into a table, or a dump of PostgreSQL
    Load(SqlLoad),
    /// Print the changes of a database, as the binlog has them
    Binlog(Binlog),
    /// Make a database as it was at a moment, from a checkpoint and the binlog
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

The format is that of the file's ending (.csv is CSV, any other is text with tabs). Rows are committed in batches, and each batch is durable. \
If the load fails, the message names the line of the file, how many rows are committed, and the line for --from-line to go on with.

--dump reads the output of pg_dump, with COPY blocks or with --inserts. SET, set_config, OWNER, COMMENT, GRANT, \\connect and similar statements are \
skipped and counted. Changes of the schema are committed one by one.")]
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
    /// Leave out the first line, which has the names of the columns
    #[arg(long, conflicts_with = "dump")]
    pub header: bool,
    /// Take this character between columns [default: a comma in CSV, else a tab]
    #[arg(long, value_name = "C", conflicts_with = "dump")]
    pub delimiter: Option<String>,
    /// Take this text for NULL [default: '' in CSV, else \N]
    #[arg(long, value_name = "TEXT", conflicts_with = "dump")]
    pub null: Option<String>,
    /// Take this character around values of CSV
    #[arg(long, value_name = "C", default_value = "\"", conflicts_with = "dump")]
    pub quote: String,
    /// Commit after this many rows
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub batch: u64,
    /// Leave out statements and rows that begin before this line of the file
    #[arg(long, value_name = "LINE", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub from_line: u64,
    /// Leave out statements of a dump that use features that are not supported, and report them
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
  basalt sql binlog tail --json --follow

The binlog has every committed transaction in order, with its transaction sequence number (TSN). It is the log of the database itself.")]
pub struct Binlog {
    #[command(subcommand)]
    pub action: BinlogAction,
}

#[derive(Subcommand)]
pub enum BinlogAction {
    /// Print the records of the binlog in order, and with --follow those that are committed later
    Tail(BinlogTail),
    /// Show the first and the last record of the binlog, with their times
    Show(BinlogShow),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt sql binlog tail --json
  basalt sql binlog tail --json --from 4711 --follow
  basalt sql binlog tail --json | jq -c '.changes[]?'

Each record is one line: {\"tsn\": 7, \"commit_time\": \"2025-01-02T03:04:05.678Z\", \"changes\": [{\"table\": \"t\", \"op\": \"update\", \
\"key\": {\"id\": 1}, \"before\": {...}, \"after\": {...}}]}. Changes of the schema have \"ddl\" instead of \"changes\". Continue after a record with \
--from TSN+1. Without --json, each change is a line of text.")]
pub struct BinlogTail {
    #[command(flatten)]
    pub place: SqlLocation,
    /// Begin with the record of this transaction sequence number, or the next one [default: the
    /// first record]
    #[arg(long, value_name = "TSN")]
    pub from: Option<u64>,
    /// Stop after this many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Go on with records that are committed later, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Print one JSON object a record
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt sql binlog show
  basalt sql binlog show --json | jq .last.tsn

Reads the whole binlog to count its records.")]
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

The checkpoint is copied, and the records of the binlog behind it are applied up to the target, inclusive. The checkpoint and the binlog stay as they are. \
If the command fails, it says so, and the directory of --into is incomplete: remove it before the next attempt.")]
pub struct Restore {
    /// Begin with the database of this checkpoint
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Apply the binlog of the database in this directory
    #[arg(long, value_name = "DIR")]
    pub binlog: PathBuf,
    /// Stop after the record of this transaction sequence number
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "to_time",
        conflicts_with = "to_time"
    )]
    pub to_tsn: Option<u64>,
    /// Stop after the last record that was committed at this time or before: a date with a time and
    /// a zone, such as 2025-01-02T03:04:05.678Z or 2025-01-02 03:04+01:00
    #[arg(long, value_name = "TIME")]
    pub to_time: Option<String>,
    /// Make the database in this directory, which must be missing or empty
    #[arg(long, value_name = "DIR")]
    pub into: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
