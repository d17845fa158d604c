//! The command line of `tree`.

use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  basalt tree dump ./pages --limit 3
  basalt tree check ./pages
  basalt tree explain ./pages user:1

STORE is the directory of a store, or IMAGE:PATH, as store.lava:pages, a directory inside of an image. A store must be closed; the commands change nothing, \
and may run side by side. `basalt stats` has the number of pages and the bytes of each family.

Exit codes: 0 done; 1 damage was found; 2 not done.";

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Tree {
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Subcommand)]
pub enum Action {
    /// Print the pages of a family in the order of their keys, and its extents
    Dump(Dump),
    /// Verify all pages, and that the page mapping table and the extents agree with them
    Check(Check),
    /// Print what a read of a key visits, in which order, and why
    Explain(Explain),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt tree dump ./pages --limit 3
  basalt tree dump ./pages --family redis.keys --entries
  basalt tree dump ./pages --json | jq 'select(.node == \"leaf\") | .base.entries'

A leaf or an index page has a base page. A leaf, or an index page directly above leaves, may have delta pages with later changes. They are printed after the base page, the oldest one first. `id` is the name that \
the index page above has for it, if that is not the position of its base page: the page mapping table leads from one to the other. A damaged page is printed as \
such, and the rest follows. An entry whose value is in a blob file is a reference, and has the number of that file. Without --limit, every page is read. Entries in the log that are not flushed are in no page.

--json prints one JSON object a line: one for each index page and each leaf, and one for each family.

Exit codes: 0 done; 1 a page is damaged; 2 not done.")]
pub struct Dump {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "STORE")]
    pub store: PathBuf,
    /// Print this column family [default: all that are kept in pages]
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
    /// Print the entries of each page, too
    #[arg(long)]
    pub entries: bool,
    /// Stop after this many leaves of each family
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt tree check ./pages
  basalt tree check ./pages --family redis.keys
  basalt tree check ./pages --json | jq .families

Reads the system log, the page mapping table and every page past the cache. Checks checksums, the order of keys, the range of keys of each page, and that \
the bytes in use of each extent are those of the pages in it. `basalt check` does the same, and verifies all other files of the store, too.

Exit codes: 0 the pages are sound; 1 damage was found, and its position is printed; 2 the pages could not be checked.")]
pub struct Check {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "STORE")]
    pub store: PathBuf,
    /// Check only this column family [default: all that are kept in pages]
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt tree explain ./pages user:1
  basalt tree explain ./pages --family redis.keys -e '\\x00\\x01'
  basalt tree explain ./pages user:1 --json | jq .device_reads

Prints the memtables, which have what the log has and no page yet, then the index pages, the delta pages from the newest to the oldest and the base page, with what \
each has of the key and what hides it. Works on families in levels, too: it then prints the tables whose keys surround the key. The number of device reads is that of a \
lookup in the pages that finds nothing in the cache. If the value is in a blob file, its read comes in addition.

Exit codes: 0 done, also for a key without a value; 1 a read of the key fails; 2 not done.")]
pub struct Explain {
    /// The store's directory, or IMAGE:PATH
    #[arg(value_name = "STORE")]
    pub store: PathBuf,
    /// The key
    #[arg(value_name = "KEY")]
    pub key: OsString,
    /// Take KEY as a stored key of this column family, instead of a key that Redis clients see
    #[arg(long, value_name = "NAME")]
    pub family: Option<String>,
    /// Decode escapes in KEY, as `scan` prints them
    #[arg(short, long)]
    pub escaped: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
