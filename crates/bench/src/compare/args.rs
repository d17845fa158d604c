//! The flags of a comparison.

use super::Kind;
use crate::flags::parse_size;
use crate::pick::Distribution;
use crate::sizes::{SizesAsked, parse_sizes};
use crate::workload::Common;
use clap::ValueEnum;
use std::path::PathBuf;

/// The flags of `compare`.
#[derive(clap::Args, Debug, Clone)]
pub struct CompareArgs {
    /// Run these workloads one after the other, on the same filled stores
    #[arg(value_enum, required = true, value_name = "WORKLOAD")]
    pub workloads: Vec<Kind>,
    /// Flags of all workloads.
    #[command(flatten)]
    pub common: Common,
    /// Run each engine this many times, in the order A B B A A B ...; intervals need at least 5
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub pairs: u64,
    /// Choose keys in this way [default: uniform; of YCSB zipfian, and latest for ycsb-d]
    #[arg(long, value_enum)]
    pub distribution: Option<Distribution>,
    /// Choose lengths of values in this way: fixed (--value-size), uniform:LOW-HIGH, pareto:MEAN
    /// (bytes), folder:DIR (those of its files)
    #[arg(long, value_name = "SIZES", default_value = "fixed", value_parser = parse_sizes)]
    pub value_sizes: SizesAsked,
    /// Run Basalt on these filesystems, each as an engine of its own: host is the directory itself,
    /// lava an image in it
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    pub fs: Vec<FsName>,
    /// Overwrite the data three times first (once for each engine, before its runs)
    #[arg(long)]
    pub steady: bool,
    /// Limit the puts of all writers together to this many bytes a second
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub write_rate: Option<u64>,
    /// Put this many entries in a batch of a load, and this many keys in a multi-get
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batch: u64,
    /// Load without a log in engines that can; the others keep theirs
    #[arg(long)]
    pub no_log: bool,
    /// Run unmeasured operations for this many seconds before reads are measured. Runs that only
    /// read are warmed until compactions have ended
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub warm: u64,
    /// Spread keys over all bytes and end them in random ones, in the same order; else they are
    /// numbers and zeros
    #[arg(long)]
    pub random_keys: bool,
    /// Read the files of this directory in folder-load and folder-export
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Count the block device's own bytes and reads too (those of all processes on this machine)
    #[arg(long)]
    pub block_device: bool,
}

/// A filesystem that Basalt runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FsName {
    /// The kernel's filesystem
    Host,
    /// LavaFS in an image
    Lava,
}
