//! What can be typed: commands, flags and the help that teaches them.

use crate::budget::Budget;
use crate::location::{Make, StoreLocation};
use crate::record::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
A minute's tour:
  basalt serve                          a Redis-compatible server, data in ./basalt-data
  redis-cli set greeting hello          any Redis client works
  (stop the server; a store has one owner at a time)
  basalt get greeting                   the same data, without a server
  basalt load --files ./photos          a whole folder: key = relative path
  basalt export --files ./copy          and back
  basalt check                          reads every byte, verifies each that has a meaning

Keys and values are those of Redis strings: what a client SETs, `basalt get` reads, and the other way round.

Exit codes: 0 done; 1 the answer is no (key absent, damage found, keys that could not be exported);
2 not done (wrong arguments, no store there, store in use, a read or write failed).";

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
    /// Read entries or a whole folder into the store
    Load(Load),
    /// Write entries or a whole folder out of the store
    Export(Export),
    /// Show the tree's shape, amplification, cache and memory
    Stats(Stats),
    /// Look at the files that large values are in: list, verify or explain them
    Blob(Blob),
    /// Merge a closed store's tables, so that what is deleted or overwritten takes no space
    Compact(Compact),
    /// Make a copy of a closed store that shares its tables, at once and without more space
    Checkpoint(Checkpoint),
    /// Verify every byte of a closed store that has a meaning
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
    /// Work on this column family, keys and values as they are stored, instead of the keys that
    /// Redis clients see
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
}

/// When the server acknowledges a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sync {
    /// When it survives a power cut; concurrent and pipelined writes share a sync
    Always,
    /// At once; synced every second, so a power cut may take the last second
    Everysec,
    /// At once; synced when the store sees fit. Survives kill -9, not a power cut
    Never,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt serve
  basalt serve --dir /srv/db --listen 127.0.0.1:7000 --sync everysec
  basalt serve --image store.lava --size 20G
  redis-cli set greeting hello; redis-cli get greeting
  redis-benchmark -t set,get -n 100000 -P 16

SIGTERM and Ctrl-C finish what was accepted, close the store and exit 0. Without --listen only this machine can connect.")]
pub struct Serve {
    #[command(flatten)]
    pub store: StoreLocation,
    #[command(flatten)]
    pub make: Make,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379")]
    pub listen: String,
    /// The port alone, as other servers take it
    #[arg(long, value_name = "N", hide = true, conflicts_with = "listen")]
    pub port: Option<u16>,
    /// When a write is acknowledged
    #[arg(long, value_enum, default_value = "always")]
    pub sync: Sync,
    /// Allow an address that other machines reach, although there is no password yet
    #[arg(long)]
    pub unprotected: bool,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_clients: u32,
    /// Disconnect a client that sends and receives nothing for this many seconds, 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)))]
    pub timeout: u32,
    /// Send TCP keepalive probes to a client after this many seconds without traffic, 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(..=32_767))]
    pub tcp_keepalive: u32,
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

The write survives a power cut when the command returns. An expiry the key had is removed, as Redis SET does.")]
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
    /// Seconds until the key is gone by itself
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=100_000_000_000))]
    pub expire_in: Option<u64>,
    /// Key and value on the command line use the escapes that `scan` prints: \t \n \r \\ \xNN
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt get greeting
  basalt get logo > logo.png
  basalt get missing || echo absent

The value's bytes go to standard output as they are (on a terminal a line end follows). Exit code 1 when the key is absent.")]
pub struct Get {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    /// The key
    pub key: OsString,
    /// The key uses the escapes that `scan` prints
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt del greeting
  basalt del a b c
  basalt del -e 'bin\\x00ary'

Prints how many were there. Exit code 1 when none was.")]
pub struct Del {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// Keys use the escapes that `scan` prints
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

Each entry is one line, key, tab, value, in the byte order of the keys; what is not printable is escaped (\\t \\n \\r \\\\ \\xNN). \
`basalt load --format tsv` reads it back. --json prints the JSON lines that `basalt load` reads by default.")]
pub struct Scan {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    #[command(flatten)]
    pub range: Range,
    /// Stop after so many entries
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Leave the values out
    #[arg(long)]
    pub keys_only: bool,
    /// JSON lines instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Range {
    /// Only keys that begin with this
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// First key, inclusive
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// Last key, exclusive
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// --prefix, --from and --to use the escapes that `scan` prints
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
          optional \"expire_at_ms\", the wall time in ms since 1970 at which the entry ends
  tsv     key, tab, value, optionally tab and expire_at_ms; escapes \\t \\n \\r \\\\ \\xNN
  --files a folder: key = relative path with / between names, value = content. Names are raw bytes. Mode, owner
          and times are not kept, nor are empty directories; symbolic links and special files are left out and counted

Entries replace what the store has under their keys. The last line says how many are durable: only then does a power cut \
take none of them. A load that was interrupted is simply run again.")]
pub struct Load {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    #[command(flatten)]
    pub make: Make,
    /// The file to read; - or nothing is standard input
    #[arg(value_name = "FILE", conflicts_with = "files")]
    pub input: Option<PathBuf>,
    /// Read a whole folder
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// Format of the input; otherwise its name's ending says (.jsonl .json .ndjson .tsv .txt), or
    /// jsonl
    #[arg(long, value_enum, conflicts_with = "files")]
    pub format: Option<Format>,
    /// Put this before every key
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// Leave out lines and files that cannot be stored, and say so, instead of stopping there
    #[arg(long)]
    pub skip_bad: bool,
    /// With --files: read what symbolic links lead to, also outside the folder
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
--overwrite given, and so must a file that --output names. Files get the time and mode of any new file; an expiry cannot be kept in a file, and is counted.")]
pub struct Export {
    #[command(flatten)]
    pub which: KeyspaceArgs,
    /// Write a folder: one file a key
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// Format of the output; otherwise the name of --output says, or jsonl
    #[arg(long, value_enum, conflicts_with = "files")]
    pub format: Option<Format>,
    /// The file to write, whole or not at all; - or nothing is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    pub output: Option<PathBuf>,
    /// Only keys that begin with this; with --files it is taken off the names
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// With --files: DIR may hold files, and those with a key's name are replaced; with --output:
    /// replace the file
    #[arg(long)]
    pub overwrite: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt stats
  basalt stats --json | jq .families

Works on a closed store, which it only reads. For a running server ask `redis-cli INFO`.")]
pub struct Stats {
    #[command(flatten)]
    pub store: StoreLocation,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// All metrics in Prometheus text format; of a running server: `redis-cli BASALT METRICS`
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt blob list
  basalt blob verify
  basalt blob explain basalt-data/000012.blob

A store must be closed; it is only read. A single file is looked at by itself, wherever it lies.")]
pub struct Blob {
    /// The store's directory
    #[arg(
        long,
        value_name = "DIR",
        default_value = "./basalt-data",
        global = true
    )]
    pub dir: PathBuf,
    /// The store lies in this image file or on this block device; so do files that are named
    #[arg(long, value_name = "FILE|DEVICE", global = true)]
    pub image: Option<PathBuf>,
    #[command(subcommand)]
    pub action: BlobAction,
}

#[derive(Subcommand)]
pub enum BlobAction {
    /// What is alive in each blob file of a store, of whom, and what it costs in all
    List(BlobList),
    /// Read every byte of blob files and find every value again
    Verify(BlobVerify),
    /// What a blob file says of itself: header, directory, index
    Explain(BlobExplain),
}

#[derive(Args)]
#[command(after_help = "\
Garbage is what nothing in the store refers to any more, headers and indexes included, to the byte; old values that compactions have not met yet are not among it. \
Age is the time since the file is there; beside it are the sequence numbers of its oldest and newest value. Names are numbers of files that were \
collected and that some table still has: they lead here for some keys.")]
pub struct BlobList {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 all of it is sound; 1 damage was found, and where is printed; 2 it could not be read."
)]
pub struct BlobVerify {
    /// Blob files; without any, all of the store
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BlobExplain {
    /// The blob file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// What becomes of the lowest level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bottommost {
    /// Rewritten: everything deleted, overwritten or expired goes
    Force,
    /// Left as it is, but for what something above is merged into
    Skip,
    /// Rewritten where a compaction filter could drop something
    IfFilter,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt compact
  basalt compact --bottommost skip
  basalt compact --family redis.keys

Ctrl-C ends it soon: what is merged stays merged, nothing is lost, and it can be begun again. Exit code 2 then.")]
pub struct Compact {
    #[command(flatten)]
    pub store: StoreLocation,
    /// Only this column family; otherwise all
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
    /// What becomes of the lowest level, where most data is
    #[arg(long, value_enum, default_value = "force")]
    pub bottommost: Bottommost,
    /// Write large values again as well, side by side in the order of their keys: long scans then
    /// read them in long stretches. Takes their space a second time until it is done
    #[arg(long)]
    pub gather_values: bool,
    /// One JSON object
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

With --image the copy is made inside of the image, and OUT is a path there; `basalt fs cp` takes it out, `basalt fs rm -r` removes it.

The copy is a store of its own, whole and durable when the command returns; a crash leaves nothing under its name, or all of it. \
It shares table files with the store, each of which goes when the last of the two lets go of it. For a running server: \
`redis-cli BASALT CHECKPOINT DIR`.")]
pub struct Checkpoint {
    #[command(flatten)]
    pub store: StoreLocation,
    /// The directory to make, inside of the image if --image is given; it must not exist
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Copy tables if OUT is on another filesystem
    #[arg(long)]
    pub copy: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 the store is sound; 1 damage was found, and where is printed; 2 it could not be checked.

Changes nothing. A torn end of a log is normal after a crash: the next open cuts it, and it is no damage. \
The entries counted are those stored: a key that was overwritten or deleted counts once more until compactions have dropped \
what is old, and the server has a few of its own. For the number of keys ask `redis-cli DBSIZE`, or count what \
`basalt scan --keys-only` prints.")]
pub struct Check {
    #[command(flatten)]
    pub store: StoreLocation,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Make a copy of the directory first if you can. Damaged files are moved aside inside the store, never deleted.

Exit codes: 0 nothing is lost; 1 something is lost, and what is printed; 2 it could not be repaired.")]
pub struct Repair {
    #[command(flatten)]
    pub store: StoreLocation,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}
