//! The command line of `log`.

use crate::location::Make;
use basalt_bench::flags::parse_size;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  basalt log append ./logs orders 'first order'
  seq 1000 | basalt log append ./logs orders
  basalt log ls ./logs
  basalt log dump ./logs orders --from 10 --limit 3
  basalt log tail -f ./logs orders
  basalt log trim ./logs orders --up-to 900
  basalt log truncate ./logs orders --from 990
  basalt log check ./logs
  basalt log ls store.lava:logs

PATH is the directory of a log store, or of a store of keys, whose logs are beside them and under the same lock. IMAGE:PATH, as store.lava:logs, is a directory inside of an image. A record has a log sequence number (LSN), \
which is larger than those before it unless --lsn says otherwise. A store has one owner at a time; commands that only read change nothing, \
may run side by side, and keep owners out while they run. A command waits for the others, up to --wait seconds.

Exit codes: 0 done; 1 damage was found, or records are lost or may show again; 2 not done.";

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Log {
    #[command(subcommand)]
    pub action: Action,
    /// Wait up to this many seconds while another process has the store open
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(..=86_400)
    )]
    pub wait: u64,
}

#[derive(Subcommand)]
pub enum Action {
    /// List the logs of a store, with their first and last records
    Ls(Ls),
    /// Show the cost and the shape of a store, or of one of its logs
    Stat(Stat),
    /// Print records of a log in the order of their LSNs
    Dump(Dump),
    /// Append records, durably; make the store and the log if they are missing
    Append(Append),
    /// Print the last records of a log, and with -f those that follow
    Tail(Tail),
    /// Remove the records of a log up to an LSN, for good
    Trim(Trim),
    /// Remove the records of a log from an LSN on, for good
    Truncate(Truncate),
    /// Remove a log with all its records, for good
    Rm(Rm),
    /// Give a log another name
    Rename(Rename),
    /// Verify every meaningful byte of a closed store
    Check(Check),
    /// Salvage a damaged, closed store and say exactly what is lost
    Repair(Repair),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log ls ./logs
  basalt log ls ./logs --json | jq '.logs[].name'
  basalt log ls store.lava:logs")]
pub struct Ls {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log stat ./logs
  basalt log stat ./logs orders
  basalt log stat ./logs orders --json | jq .gaps

Without LOG, shows files, bytes on disk for each live byte, and memory and pages of the index. With LOG, shows records, bytes, LSNs, gaps, and the LSN of the last trim.")]
pub struct Stat {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The log [default: the whole store]
    #[arg(value_name = "LOG")]
    pub log: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The form in which a record is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordFormat {
    /// LSN, tab, escaped bytes.
    Text,
    /// LSN, tab, hexadecimal digits.
    Hex,
    /// The bytes alone.
    Raw,
    /// A JSON object a line.
    Json,
}

/// The flags for the form of records.
#[derive(Args, Clone, Copy)]
pub struct FormatFlags {
    /// Print each record as hexadecimal digits
    #[arg(long, conflicts_with_all = ["raw", "json"])]
    pub hex: bool,
    /// Print the bytes of the records alone, with nothing between them
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// Print a JSON object a line: {"lsn": 7, "data": "..."}, or data_b64 for bytes that are no
    /// text
    #[arg(long)]
    pub json: bool,
}

impl FormatFlags {
    /// Returns the form that the flags choose.
    pub fn format(self) -> RecordFormat {
        match (self.hex, self.raw, self.json) {
            (true, ..) => RecordFormat::Hex,
            (_, true, _) => RecordFormat::Raw,
            (.., true) => RecordFormat::Json,
            _ => RecordFormat::Text,
        }
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log dump ./logs orders
  basalt log dump ./logs orders --from 100 --to 199
  basalt log dump ./logs orders --from 7 --limit 1 --raw > record
  basalt log dump ./logs orders --json | jq .data

A line is the LSN, a tab, and the record with the escapes \\t \\n \\r \\\\ \\xNN. `append --with-lsns` reads these lines. To append them with new LSNs, remove the first column: dump | cut -f2- | append -e. To copy within one store, write the lines to a file first: a store has one owner at a time. `append` cannot read the output of --hex.")]
pub struct Dump {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    pub log: String,
    /// Begin with this LSN
    #[arg(
        long,
        value_name = "LSN",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub from: u64,
    /// End with this LSN [default: the last one]
    #[arg(long, value_name = "LSN", allow_negative_numbers = true)]
    pub to: Option<u64>,
    /// Print at most this many records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub format: FormatFlags,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log append ./logs orders 'first order'
  seq 1000 | basalt log append ./logs orders
  basalt log append ./logs images --file logo.png
  basalt log append ./logs orders 'late' --lsn 17
  basalt log append store.lava:logs orders hello --size 1G
  basalt log dump ./logs orders | basalt log append ./copy orders --with-lsns
  basalt log dump ./logs orders | cut -f2- > lines; basalt log append ./logs renumbered -e < lines

Without DATA and --file, each line of standard input is a record, without its line feed and a carriage return before that. Prints the LSNs of the records. All records survive a power cut when the command \
returns. Without --lsn the first record gets the LSN behind the last one. If a line cannot be appended, the message names it, and the last durable line and its LSN. If earlier lines were not appended either, it names the line to continue with. With --with-lsns each record gets the LSN that the line gives: \
the copy has the same records at the same LSNs, with the same gaps. Records may contain any bytes. The trim point of the source log is not copied.")]
pub struct Append {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    pub log: String,
    /// The record; without it, or as -, lines of standard input are records
    #[arg(value_name = "DATA", allow_negative_numbers = true)]
    pub data: Option<OsString>,
    /// Append the content of this file as one record
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub file: Option<PathBuf>,
    /// Give the first record this LSN, and each later record the next one [default: the LSN after
    /// the last]
    #[arg(long, value_name = "LSN", allow_negative_numbers = true)]
    pub lsn: Option<u64>,
    /// Read the escapes that `dump` prints, \t \n \r \\ \xNN, and \0
    #[arg(short, long, conflicts_with = "file")]
    pub escaped: bool,
    /// Read lines of `dump` (LSN, tab, escaped record) and append each record with its own LSN
    #[arg(long, conflicts_with_all = ["data", "file", "lsn"])]
    pub with_lsns: bool,
    /// Make a missing store even in a directory that holds other files
    #[arg(long)]
    pub allow_nonempty_dir: bool,
    /// Make a missing image of this many bytes, such as 20G
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log tail ./logs orders
  basalt log tail -n 100 --json ./logs orders
  basalt log tail -f ./logs orders

With -f, records behind the last one are printed as they are appended, until Ctrl-C. The command looks at the store four times a second, \
and has it open only while it reads, so that other commands can append. While another process has the store open, the command waits: a store has one owner at a time. \
A record that is appended late, with an LSN below one that was printed, is not printed. Nor is a record that replaces a printed one. \
If the last printed record was removed or replaced, the command says so on standard error.")]
pub struct Tail {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    pub log: String,
    /// Print the last N records
    #[arg(short = 'n', long = "lines", value_name = "N", default_value_t = 10)]
    pub count: u64,
    /// Go on with records that are appended later
    #[arg(short, long)]
    pub follow: bool,
    #[command(flatten)]
    pub format: FormatFlags,
}

/// The arguments of the commands that remove records for good.
#[derive(Args)]
pub struct Removal {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    pub log: String,
    /// Remove without asking
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON object
    #[arg(long, requires = "yes")]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log trim ./logs orders --up-to 900
  basalt log trim ./logs orders --up-to 900 --yes

Says what will go, and asks on a terminal; scripts give --yes, also with --json. Records up to the LSN are gone for good, and later appends of such LSNs are refused. An LSN above the last record is \
refused without --beyond-last, because it keeps LSNs from ever being used.")]
pub struct Trim {
    #[command(flatten)]
    pub removal: Removal,
    /// Remove records up to this LSN (inclusive)
    #[arg(long, value_name = "LSN", allow_negative_numbers = true)]
    pub up_to: u64,
    /// Allow an LSN above that of the last record
    #[arg(long)]
    pub beyond_last: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log truncate ./logs orders --from 990
  basalt log truncate ./logs orders --from 990 --yes

Says what will go, and asks on a terminal; scripts give --yes. Records from the LSN on are gone for good, and their LSNs can be appended again. A log that is emptied stays; `rm` removes it.")]
pub struct Truncate {
    #[command(flatten)]
    pub removal: Removal,
    /// Remove records from this LSN on (inclusive)
    #[arg(long, value_name = "LSN", allow_negative_numbers = true)]
    pub from: u64,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log rm ./logs orders
  basalt log rm ./logs orders --yes

Says what will go, and asks on a terminal; scripts give --yes. A log that is made again under the name begins at LSN 1.")]
pub struct Rm {
    #[command(flatten)]
    pub removal: Removal,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log rename ./logs orders orders-2025
  basalt log rename ./logs orders orders-2025 --json

The records, their LSNs and the trim point stay. A name that another log has is refused. If a log's name is lost, a repair names the log recovered-N. Use this command to restore its name. To undo a wrong rename to a stream's name, rename the log to a name that begins with recovered-.")]
pub struct Rename {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// The log to rename
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The new name, 1 to 1,024 bytes
    #[arg(value_name = "NEW")]
    pub new: String,
    /// Give the log to a stream of the server although it seems to be another's, or rename the log
    /// of a stream, which clients then cannot read
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log check ./logs
  basalt log check ./logs --json | jq .damage

Exit codes: 0 the store is sound; 1 damage was found, and its position is printed; 2 the store could not be checked.

Changes nothing. Damage is printed with file and offset, and with log and LSN where they are known. A torn tail is normal after a crash: \
the next open cuts it, and it is no damage. The check prints the file, the offset and the largest number of bytes that the open can cut.")]
pub struct Check {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  cp -a ./logs ./logs-before
  basalt log repair ./logs

Make a copy of the directory first if you can. Damaged files are moved aside inside the store, never deleted.

Exit codes: 0 nothing is lost; 1 records are lost or may show again, and the report names them; 2 the store could not be repaired.")]
pub struct Repair {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Repair without asking
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl Append {
    /// Returns the flags for making a store.
    pub fn make(&self) -> Make {
        Make {
            allow_nonempty_dir: self.allow_nonempty_dir,
            size: self.size,
            sparse: false,
            engine: None,
        }
    }
}
