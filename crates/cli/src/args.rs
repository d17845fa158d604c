//! The command line: commands, flags and their help texts.

use crate::budget::Budget;
use crate::location::{Make, StoreLocation};
use crate::text_entry::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
A minute's tour:
  basalt serve                          serve Redis clients, with data in ./basalt-data
  redis-cli set greeting hello          use any Redis client
  (stop the server; a store has one owner at a time)
  basalt get greeting                   read the same data without a server
  basalt load --files ./photos          load a whole directory: key = relative path
  basalt export --files ./copy          write it back
  basalt check                          read every byte, and verify each that has a meaning
  basalt sql                            a shell for a relational database, with data in ./basalt-sql

Keys and values are those of Redis strings: `basalt get` reads what a client SETs, and the other way round.

Exit codes: 0 done; 1 the answer is no (key absent, damage found, keys that could not be exported);
2 not done (wrong arguments, no such store, store in use, failed read or write).";

/// Basalt: a durable key-value store. Serves Redis clients, and works on its files directly.
#[derive(Parser)]
#[command(name = "basalt", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve Redis clients until SIGTERM or Ctrl-C
    Serve(Serve),
    /// Set one key
    Put(Put),
    /// Print the value of one key
    Get(Get),
    /// Remove keys
    Del(Del),
    /// Print keys and values in order
    Scan(Scan),
    /// Read entries or a whole directory into the store
    Load(Load),
    /// Write entries or a whole directory out of the store
    Export(Export),
    /// Show the tree's shape, amplification, cache and memory
    Stats(Stats),
    /// List, verify or explain the blob files that hold large values
    Blob(Blob),
    /// List, print, append to, follow, trim, check and repair the logs of a log store
    Log(crate::log_args::Log),
    /// Print and verify the pages of a store in pages, and explain a read of a key
    Tree(crate::tree_args::Tree),
    /// Run SQL statements on a relational database, load rows or dumps, print its binlog, restore
    /// it
    Sql(Box<crate::sql_args::Sql>),
    /// Merge a closed store's tables, so that deleted and overwritten data takes no space
    Compact(Compact),
    /// Make a copy of a closed store that shares its tables, at once and without more space
    Checkpoint(Checkpoint),
    /// Verify every meaningful byte of a closed store
    Check(Check),
    /// Salvage a damaged, closed store and say exactly what is lost
    Repair(Repair),
    /// Make, look into, copy, tidy, check and grow images: files or devices with Basalt's own
    /// filesystem
    Fs(crate::fs::Fs),
    /// Measure the engine, and the device under it in the same run
    #[command(after_help = basalt_bench::AFTER_HELP)]
    Bench(basalt_bench::Args),
}

#[derive(Args)]
pub struct KeyspaceArgs {
    #[command(flatten)]
    pub store: StoreLocation,
    /// Work on the stored bytes of this column family, instead of the keys that Redis clients see
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
}

/// The moment at which the server acknowledges a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sync {
    /// When it survives a power cut; concurrent and pipelined writes share a sync
    Always,
    /// At once; with a sync every second, so a power cut may take about the last second
    Everysec,
    /// At once; with a sync when the store does one. Survives kill -9, not a power cut
    Never,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt serve
  basalt serve --port 7000
  basalt serve --dir /srv/db --listen 127.0.0.1:7000 --sync everysec
  basalt serve --image store.lava --size 20G
  basalt serve --postgres 127.0.0.1:5432 --sql-dir /srv/sql
  basalt serve --postgres 127.0.0.1:5432 --port 6379
  psql -h 127.0.0.1
  redis-cli set greeting hello; redis-cli get greeting
  redis-benchmark -t set,get -n 100000 -P 16

SIGTERM and Ctrl-C finish what was accepted, close the store and exit 0. Without --listen only this machine can connect.")]
pub struct Serve {
    #[command(flatten)]
    pub store: StoreLocation,
    #[command(flatten)]
    pub make: Make,
    /// Serve Redis clients on this address and port [default: 127.0.0.1:6379; none with
    /// --postgres]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Serve Redis clients on this port of 127.0.0.1: the same as --listen 127.0.0.1:N
    #[arg(long, value_name = "N", conflicts_with = "listen")]
    pub port: Option<u16>,
    /// Acknowledge writes in this mode
    #[arg(long, value_enum, default_value = "always")]
    pub sync: Sync,
    /// Allow an address that other machines reach, although there is no password yet
    #[arg(long)]
    pub unprotected: bool,
    /// Serve at most this many clients at a time
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_clients: u32,
    /// Disconnect a client that sends and receives nothing for this many seconds, 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)))]
    pub timeout: u32,
    /// Send TCP keepalive probes to a client after this many seconds without traffic, 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(..=32_767))]
    pub tcp_keepalive: u32,
    /// Serve PostgreSQL clients on this address and port; Redis clients only with --listen or
    /// --port
    #[arg(long, value_name = "ADDR")]
    pub postgres: Option<String>,
    /// Use the relational database in this directory for PostgreSQL clients
    #[arg(long, value_name = "DIR", default_value = crate::sql_args::SQL_DIR, requires = "postgres")]
    pub sql_dir: PathBuf,
    /// Ask PostgreSQL clients for the password in the first line of this file
    #[arg(long, value_name = "FILE", requires = "postgres")]
    pub postgres_password_file: Option<PathBuf>,
    /// Offer TLS to PostgreSQL clients with the certificate chain in this PEM file
    #[arg(long, value_name = "FILE", requires_all = ["postgres", "postgres_tls_key"])]
    pub postgres_tls_cert: Option<PathBuf>,
    /// Use the private key in this PEM file
    #[arg(long, value_name = "FILE", requires_all = ["postgres", "postgres_tls_cert"])]
    pub postgres_tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub budget: Budget,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt put greeting hello
  basalt put logo --value-file logo.png
  date | basalt put now
  basalt put session abc --expire-in 3600

The write survives a power cut when the command returns. An earlier expiry of the key is removed, as Redis SET does.")]
pub struct Put {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    #[command(flatten)]
    pub make: Make,
    /// The key
    pub key: OsString,
    /// The value; without it, or as -, it is read from standard input
    #[arg(allow_negative_numbers = true)]
    pub value: Option<OsString>,
    /// Read the value from this file
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub value_file: Option<PathBuf>,
    /// Expire the key after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    pub expire_in: Option<u64>,
    /// Read the escapes that `scan` prints in key and value: \t \n \r \\ \xNN
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt get greeting
  basalt get logo > logo.png
  basalt get missing || echo absent

The value's bytes go to standard output unchanged (on a terminal a line end follows). The exit code is 1 if the key is absent.")]
pub struct Get {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    /// The key
    pub key: OsString,
    /// Read the escapes that `scan` prints in the key
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt del greeting
  basalt del a b c
  basalt del -e 'bin\\x00ary'

Prints how many keys existed. The exit code is 1 if none did.")]
pub struct Del {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// Read the escapes that `scan` prints in the keys
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt scan --limit 20
  basalt scan --prefix user: --keys-only
  basalt scan --from a --to b --reverse
  basalt scan --json | jq -r .key

Each entry is one line, key, tab, value, in the byte order of the keys; bytes that are not printable are escaped (\\t \\n \\r \\\\ \\xNN). \
`basalt load --format tsv` reads it back. --json prints the JSON lines that `basalt load` reads by default.")]
pub struct Scan {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    #[command(flatten)]
    pub range: Range,
    /// Stop after this many entries
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print from the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Print keys without their values
    #[arg(long)]
    pub keys_only: bool,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Range {
    /// Take only keys that begin with this
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// Begin at this key, inclusive
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// End at this key, exclusive
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Read the escapes that `scan` prints in --prefix, --from and --to
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt load entries.jsonl
  zcat big.tsv.gz | basalt load --format tsv
  basalt load --files ./site --prefix site/

Formats:
  jsonl   one object a line: {\"key\": \"k\", \"value\": \"v\"}; for bytes that are not UTF-8 \"key_b64\" and \"value_b64\";
          optional \"expire_at_ms\", the wall time in ms since 1970 at which the entry expires
  tsv     key, tab, value, optionally tab and expire_at_ms; escapes \\t \\n \\r \\\\ \\xNN
  --files a directory: key = relative path with / between names, value = content. Names are raw bytes. Mode,
          owner and times are not kept, nor are empty directories; symbolic links and special files are left out and
          counted

Entries replace the values of their keys. The last line says how many are durable: after it a power cut takes none of \
them. Run an interrupted load again.")]
pub struct Load {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    #[command(flatten)]
    pub make: Make,
    /// The file to read; standard input if it is - or missing
    #[arg(value_name = "FILE", conflicts_with = "files")]
    pub input: Option<PathBuf>,
    /// Read a whole directory
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// Read this format [default: that of the file's ending (.jsonl .json .ndjson .tsv .txt), else
    /// jsonl]
    #[arg(long, value_enum, conflicts_with = "files")]
    pub format: Option<Format>,
    /// Put this before every key
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// Leave out lines and files that cannot be stored, and report them, instead of stopping there
    #[arg(long)]
    pub skip_bad: bool,
    /// Read the targets of symbolic links, also outside the directory (with --files)
    #[arg(long, requires = "files")]
    pub follow_symlinks: bool,
    #[command(flatten)]
    pub budget: Budget,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt export > entries.jsonl
  basalt export --format tsv --output entries.tsv
  basalt export --files ./copy --prefix site/

--files writes every key as a file under DIR, and nowhere else: keys that are no relative path (empty, absolute, with . or .. \
or a zero byte in them) are refused, named, and counted, and the exit code is 1. DIR must be empty or missing, or \
--overwrite given. The same holds for the file of --output. Files get the time and mode of a new file; a file cannot keep an expiry, and such keys are counted.")]
pub struct Export {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    /// Write a directory: one file a key
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// Write this format [default: that of the ending of --output, else jsonl]
    #[arg(long, value_enum, conflicts_with = "files")]
    pub format: Option<Format>,
    /// Write this file, whole or not at all; standard output if it is - or missing
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    pub output: Option<PathBuf>,
    /// Take only keys that begin with this; --files removes it from the names
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// Replace the file of --output, or write into a non-empty directory of --files and replace
    /// files with a key's name
    #[arg(long)]
    pub overwrite: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt stats
  basalt stats --json | jq .families

Reads a closed store, and changes nothing. For a running server use `redis-cli INFO`.")]
pub struct Stats {
    #[command(flatten)]
    pub store: StoreLocation,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print all metrics in Prometheus text format; of a running server: `redis-cli BASALT METRICS`
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt blob list
  basalt blob verify
  basalt blob explain basalt-data/000012.blob

A store must be closed; the commands change nothing. A single file is read without its store, in any directory.")]
pub struct Blob {
    /// Use the store in this directory
    #[arg(
        long,
        value_name = "DIR",
        default_value = "./basalt-data",
        global = true
    )]
    pub dir: PathBuf,
    /// Use the store, and the named files, in this image file or on this block device
    #[arg(long, value_name = "FILE|DEVICE", global = true)]
    pub image: Option<PathBuf>,
    #[command(subcommand)]
    pub action: BlobAction,
}

#[derive(Subcommand)]
pub enum BlobAction {
    /// List the live data of each blob file of a store, its family, and the total cost
    List(BlobList),
    /// Read every byte of blob files and find every value again
    Verify(BlobVerify),
    /// Print the content of a blob file: header, directory, index
    Explain(BlobExplain),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt blob list
  basalt blob list --json | jq .space_amp

Garbage is the exact number of bytes without a reference, headers and indexes included. Old values that compactions have not read yet are not included. \
Age is the time since the file was made; beside it are the sequence numbers of its oldest and newest value. Names are numbers of collected files \
that tables still refer to: for some keys they lead to this file.")]
pub struct BlobList {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt blob verify
  basalt blob verify basalt-data/000012.blob

Exit codes: 0 all files are sound; 1 damage was found, and its position is printed; 2 a file could not be read.")]
pub struct BlobVerify {
    /// The blob files [default: all of the store]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt blob explain basalt-data/000012.blob
  basalt blob explain basalt-data/000012.blob --json")]
pub struct BlobExplain {
    /// The blob file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Treatment of the lowest level by a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bottommost {
    /// Rewrite it: deleted, overwritten and expired data is dropped
    Force,
    /// Leave it as it is, except where data above is merged into it
    Skip,
    /// Rewrite it where a compaction filter could drop something
    IfFilter,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt compact
  basalt compact --bottommost skip
  basalt compact --family redis.keys

Ctrl-C ends it soon with exit code 2: merged tables stay, nothing is lost, and it can be run again.")]
pub struct Compact {
    #[command(flatten)]
    pub store: StoreLocation,
    /// Compact only this column family [default: all]
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
    /// Compact the lowest level, where most data is, in this mode. A family in pages has no levels:
    /// all of its leaves are written again
    #[arg(long, value_enum, default_value = "force")]
    pub bottommost: Bottommost,
    /// Relocate large values as well, side by side in the order of their keys: long scans then read
    /// them in long stretches. Takes their space a second time until it is done
    #[arg(long)]
    pub relocate_values: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub budget: Budget,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt checkpoint /backup/monday
  basalt checkpoint --dir /srv/db --copy /mnt/other/monday
  basalt checkpoint --image store.lava monday && basalt fs cp store.lava:monday /backup/monday

With --image the copy is made inside of the image, and OUT is a path there; `basalt fs cp` copies it out, `basalt fs rm -r` removes it.

The copy is a store of its own, complete and durable when the command returns; a crash leaves nothing under its name, or all of it. \
It shares table files with the store. A shared file is removed when neither of the two uses it. For a running server: \
`redis-cli BASALT CHECKPOINT DIR`.")]
pub struct Checkpoint {
    #[command(flatten)]
    pub store: StoreLocation,
    /// The directory to make, in the image if --image is given; it must not exist
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Copy files that cannot be linked, because OUT is on another filesystem
    #[arg(long)]
    pub copy: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt check
  basalt check --json | jq .damage

Exit codes: 0 the store is sound; 1 damage was found, and its position is printed; 2 the store could not be checked.

Changes nothing, so it works on a read-only medium, and beside other commands that only read. A torn tail of a log is normal after a crash: \
the next open cuts it, and it is no damage. The check prints the file, the offset and the largest number of bytes that the open can cut. \
The entries counted are those stored: an overwritten or deleted key counts more than once until compactions have dropped \
its old entries, and the server has a few entries of its own. For the number of keys use `redis-cli DBSIZE`, or count the lines of \
`basalt scan --keys-only`.")]
pub struct Check {
    #[command(flatten)]
    pub store: StoreLocation,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  cp -a ./basalt-data ./basalt-data-before
  basalt repair

Make a copy of the directory first if you can. Damaged files are moved aside inside the store, never deleted.

Exit codes: 0 nothing is lost; 1 data is lost, and the losses are printed; 2 the store could not be repaired.")]
pub struct Repair {
    #[command(flatten)]
    pub store: StoreLocation,
    /// Repair without asking
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests;
