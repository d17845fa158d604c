//! `log`: the logs of a log store: what there is, records in and out, trims, check and repair.

mod change;
mod check;
mod records;
mod show;
mod tail;

use crate::escape::escape;
use crate::failure::{Failure, Outcome};
use crate::location::{Make, StoreLocation, in_image};
use crate::store::{Access, environment};
use basalt::{Env, ErrorKind};
use basalt_bench::flags::parse_size;
use basalt_log::{Log as StoredLog, LogEngine, LogEngineOptions};
use clap::{Args, Subcommand};
use records::RecordFormat;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
Examples:
  basalt log append ./logs orders 'first order'
  seq 1000 | basalt log append ./logs orders
  basalt log ls ./logs
  basalt log dump ./logs orders --from 10 --limit 3
  basalt log tail -f ./logs orders
  basalt log trim ./logs orders --up-to 900
  basalt log check ./logs
  basalt log ls store.lava:logs

PATH is the directory of a log store. IMAGE:PATH, as store.lava:logs, is a directory inside of an image. A record has a log sequence number (LSN), \
which is larger than those before it unless --lsn says otherwise. A store has one owner at a time; commands that only read change nothing, \
may run side by side, and keep owners out while they run.

Exit codes: 0 done; 1 damage was found, or records are lost; 2 not done.";

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Log {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the logs of a store, with their first and last records
    Ls(Ls),
    /// Show the cost and the shape of a store, or of one of its logs
    Stat(Stat),
    /// Print records of a log in the order of their LSNs
    Dump(Dump),
    /// Append records, durably; makes a missing store and a missing log
    Append(Append),
    /// Print the last records of a log, and with -f those that follow
    Tail(Tail),
    /// Remove the records of a log up to an LSN, for good
    Trim(Trim),
    /// Verify every byte of a closed store that has a meaning
    Check(Check),
    /// Salvage a damaged, closed store and say exactly what is lost
    Repair(Repair),
}

#[derive(Args)]
struct Ls {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Stat {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The log [default: the whole store]
    #[arg(value_name = "LOG")]
    log: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The flags for the form of records.
#[derive(Args, Clone, Copy)]
struct FormatFlags {
    /// Print each record as hexadecimal digits
    #[arg(long, conflicts_with_all = ["raw", "json"])]
    hex: bool,
    /// Print the bytes of the records alone, with nothing between them
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print a JSON object a line: {"lsn": 7, "data": "..."}, or data_b64 for bytes that are no
    /// text
    #[arg(long)]
    json: bool,
}

impl FormatFlags {
    fn format(self) -> RecordFormat {
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

A line is the LSN, a tab, and the record with the escapes \\t \\n \\r \\\\ \\xNN; `append -e` reads them.")]
struct Dump {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    log: String,
    /// Begin with this LSN
    #[arg(long, value_name = "LSN", default_value_t = 0)]
    from: u64,
    /// End with this LSN [default: the last one]
    #[arg(long, value_name = "LSN")]
    to: Option<u64>,
    /// Print at most this many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    format: FormatFlags,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log append ./logs orders 'first order'
  seq 1000 | basalt log append ./logs orders
  basalt log append ./logs images --file logo.png
  basalt log append ./logs orders 'late' --lsn 17
  basalt log append store.lava:logs orders hello --size 1G

Without DATA and --file, each line of standard input is a record. Prints the LSNs of the records. All records survive a power cut when the command \
returns. Without --lsn the first record gets the LSN behind the last one.")]
struct Append {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    log: String,
    /// The record; without it, or as -, lines of standard input are records
    #[arg(value_name = "DATA", allow_negative_numbers = true)]
    data: Option<OsString>,
    /// Append the content of this file as one record
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    file: Option<PathBuf>,
    /// Give the first record this LSN, and each further one the next
    #[arg(long, value_name = "N")]
    lsn: Option<u64>,
    /// Read the escapes that `dump` prints: \t \n \r \\ \xNN
    #[arg(short, long, conflicts_with = "file")]
    escaped: bool,
    /// Make a missing store even in a directory that holds other files
    #[arg(long)]
    allow_nonempty_dir: bool,
    /// Make a missing image of this many bytes, such as 20G
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log tail ./logs orders
  basalt log tail -n 100 --json ./logs orders
  basalt log tail -f ./logs orders

With -f, records behind the last one are printed as they are appended, until Ctrl-C. The store is open only while records are read, \
so that other commands can append. While another process has the store open, the command waits: a store has one owner at a time. \
A record that is appended late, with an LSN below one that was printed, is not printed.")]
struct Tail {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    log: String,
    /// Print this many records
    #[arg(short = 'n', long = "lines", value_name = "N", default_value_t = 10)]
    count: u64,
    /// Go on with records that are appended later
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    format: FormatFlags,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt log trim ./logs orders --up-to 900
  basalt log trim ./logs orders --up-to 900 --yes

Says what will go, and asks. Records up to the LSN are gone for good, and later appends of such LSNs are refused.")]
struct Trim {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The log
    #[arg(value_name = "LOG")]
    log: String,
    /// Remove records up to this LSN, which is removed as well
    #[arg(long, value_name = "LSN")]
    up_to: u64,
    /// Trim without asking
    #[arg(long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long, requires = "yes")]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 the store is sound; 1 damage was found, and its position is printed; 2 the store could not be checked.

Changes nothing. Damage is printed with file and offset, and with log and LSN where they are known. A torn tail is normal after a crash: \
the next open cuts it, and it is no damage.")]
struct Check {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Make a copy of the directory first if you can. Damaged files are moved aside inside the store, never deleted.

Exit codes: 0 nothing is lost; 1 records are lost or may show again, and the report names them; 2 the store could not be repaired.")]
struct Repair {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Repair without asking
    #[arg(long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `basalt log`.
pub fn log(args: Log) -> Outcome {
    match args.action {
        Action::Ls(a) => show::list(&LogPlace::new(&a.path), a.json),
        Action::Stat(a) => show::stat(&LogPlace::new(&a.path), a.log.as_deref(), a.json),
        Action::Dump(a) => show::dump(&a),
        Action::Append(a) => change::append(&a),
        Action::Tail(a) => tail::tail(&a),
        Action::Trim(a) => change::trim(&a),
        Action::Check(a) => check::check(&LogPlace::new(&a.path), a.json),
        Action::Repair(a) => check::repair(&LogPlace::new(&a.path), a.yes, a.json),
    }
}

/// The location of a log store, as the command line names it.
struct LogPlace {
    store: StoreLocation,
    /// The argument, for advice.
    argument: String,
}

impl LogPlace {
    fn new(path: &Path) -> LogPlace {
        let store = match in_image(path) {
            Some((image, dir)) => StoreLocation {
                dir,
                image: Some(image),
            },
            None => StoreLocation {
                dir: path.to_path_buf(),
                image: None,
            },
        };
        LogPlace {
            store,
            argument: path.display().to_string(),
        }
    }

    /// Makes the failure of an engine error, with the advice for its kind.
    fn failure(&self, e: basalt::Error) -> Failure {
        Failure::log_store(&self.store, &self.argument, e)
    }

    fn environment(&self, access: Access) -> Result<(Env, PathBuf), Failure> {
        let missing = || {
            let found = rustix::fs::stat(&self.store.dir);
            matches!(found, Err(rustix::io::Errno::NOENT))
        };
        if access.make().is_none() && self.store.image.is_none() && missing() {
            return Err(Failure::new(format!(
                "there is no log store in {0}; name another, or make one with `basalt log append {0} LOG`",
                self.argument
            )));
        }
        environment(&self.store, access, None)
    }

    /// Opens the store.
    fn open(&self, access: Access) -> Result<LogEngine, Failure> {
        let (env, path) = self.environment(access)?;
        self.open_in(&env, &path, access)
    }

    /// Opens the store in an environment of [`LogPlace::environment`].
    fn open_in(&self, env: &Env, path: &Path, access: Access) -> Result<LogEngine, Failure> {
        self.check_directory(env, path, access)?;
        let options = LogEngineOptions::default().create_if_missing(access.make().is_some());
        let opened = match access {
            Access::Read => LogEngine::open_read_only(env, path, options),
            Access::Write(_) | Access::Remove => LogEngine::open(env, path, options),
        };
        opened.map_err(|e| self.failure(e))
    }

    /// Refuses a directory that has a store of keys, and to make a store among other files.
    fn check_directory(&self, env: &Env, path: &Path, access: Access) -> Result<(), Failure> {
        let entries = match env.fs().list(path) {
            Ok(entries) => entries,
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(self.failure(e)),
        };
        let has = |extensions: &[&str]| {
            let mut names = entries.iter().filter(|e| !e.is_dir);
            names.any(|e| {
                let parts = e.name.split_once('.');
                parts.is_some_and(|(stem, extension)| {
                    stem.parse::<u64>().is_ok() && extensions.contains(&extension)
                })
            })
        };
        let logs = has(&["data", "meta", "moved", "checkpoint"]);
        if !logs && has(&["tbl", "log"]) {
            return Err(Failure::new(format!(
                "{} holds a store of keys, not of logs; `basalt stats` and `basalt scan` read it",
                self.store
            )));
        }
        let foreign = |e: &basalt::fs::DirEntry| e.name != "lost+found" && e.name != "LOCK";
        let present = logs || entries.iter().any(|e| e.name == "CURRENT");
        match access.make() {
            Some(make) if !present && !make.allow_nonempty_dir => {
                match entries.iter().find(|e| foreign(e)) {
                    None => Ok(()),
                    Some(entry) => Err(Failure::new(format!(
                        "{} holds other files, such as {}; name an empty or missing directory, or make the store among them with --allow-nonempty-dir",
                        self.store,
                        escape(entry.name.as_bytes())
                    ))),
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns a log.
    fn log(&self, engine: &LogEngine, name: &str) -> Result<StoredLog, Failure> {
        engine.log(name).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Failure::new(format!(
                "there is no log {} in {}; `basalt log ls {}` lists them",
                escape(name.as_bytes()),
                self.store,
                self.argument
            )),
            _ => self.failure(e),
        })
    }
}

impl Append {
    fn make(&self) -> Make {
        Make {
            allow_nonempty_dir: self.allow_nonempty_dir,
            size: self.size,
            sparse: false,
        }
    }
}
