//! The command line: the flags of all commands of this crate.

use crate::compare::CompareArgs;
use crate::files::FsArgs;
use crate::html_report::ReportArgs;
use crate::logs::LogArgs;
use crate::workload::Workload;
use clap::Subcommand;

/// Examples at the end of the help text.
pub const AFTER_HELP: &str = "\
Examples:
  basalt bench durable-put --threads 1,16
  basalt bench fill --keys 10000000 --key-size 32 --value-size 128 --compression none
  basalt bench read --keys 5000000 --cache 64M --threads 2 --seconds 30
  basalt bench mixed --read-percent 90 --seconds 60 --json > mixed.json
  basalt bench device
  basalt-bench compare read-random seek-10 --engines basalt,rocksdb --keys 10000000 --cache 110M --json > reads.json
  basalt-bench compare overwrite --engines basalt,rocksdb --steady --threads 2 --ops 10000000
  basalt bench fs append-sync small-files
  basalt-bench compare durable-put --fs lava,host --pairs 5
  basalt-bench report reads.json -o reads.html

Every run also measures the device itself: synced overwrites of the same padded size into written space, 1 MiB sequential \
writes, random 4 KiB reads. Compare the ratios; absolute rates of a shared machine drift by a third between runs. \
Data is made under --dir and removed afterwards. `basalt-bench` is the same program.";

/// The arguments of a run.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Subcommand, Debug, Clone)]
pub enum Command {
    /// Run a workload on one engine.
    #[command(flatten)]
    Workload(Workload),
    /// Compare engines on one budget, in interleaved pairs, with ratios and their intervals
    #[command(after_help = "\
Examples:
  basalt bench compare read-random seek-10 --keys 10000000 --cache 110M --json > reads.json
  basalt bench compare durable-put --fs lava,host --pairs 5")]
    Compare(Box<CompareArgs>),
    /// Compare log engines: appends, trims, reads, recovery
    Log(Box<LogArgs>),
    /// Compare filesystems: LavaFS in an image, and the kernel's
    #[command(after_help = "\
Examples:
  basalt bench fs append-sync small-files")]
    Fs(FsArgs),
    /// Write one page with charts from results saved with --json
    #[command(after_help = "\
Examples:
  basalt bench report reads.json -o reads.html")]
    Report(ReportArgs),
}
