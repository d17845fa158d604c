//! The flags of a comparison.

use super::Kind;
use crate::flags::parse_size;
use crate::pick::Distribution;
use crate::sizes::{SizesAsked, parse_sizes};
use crate::workload::Common;
use clap::ValueEnum;
use std::path::PathBuf;

/// What `compare` can be told.
#[derive(clap::Args, Debug, Clone)]
pub struct CompareArgs {
    /// What is compared; several run one after the other and use the same filled stores
    #[arg(value_enum, required = true, value_name = "WORKLOAD")]
    pub workloads: Vec<Kind>,
    /// Flags of all workloads
    #[command(flatten)]
    pub common: Common,
    /// How often each engine runs: A B B A A B ...; intervals want at least 5
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub pairs: u64,
    /// How keys are chosen [default: uniform; of YCSB zipfian, and latest for ycsb-d]
    #[arg(long, value_enum)]
    pub distribution: Option<Distribution>,
    /// Lengths of values: fixed (--value-size), uniform:LOW-HIGH, pareto:MEAN, folder:DIR (those of
    /// its files)
    #[arg(long, value_name = "SIZES", default_value = "fixed", value_parser = parse_sizes)]
    pub value_sizes: SizesAsked,
    /// Filesystems that Basalt runs on, each as an engine of its own: host is the directory itself,
    /// lava an image in it
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    pub fs: Vec<FsName>,
    /// First overwrite the data three times (once for each engine, before its runs)
    #[arg(long)]
    pub steady: bool,
    /// Bytes a second that writers put at most, all together
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub write_rate: Option<u64>,
    /// Entries of a batch in the loads; keys of a multi-get
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batch: u64,
    /// Loads without a log, by engines that can; the others keep theirs
    #[arg(long)]
    pub no_log: bool,
    /// Seconds of unmeasured operations before reads are measured. Runs that only read are warmed
    /// on while compactions go on
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub warm: u64,
    /// Keys are spread over all bytes and end in random ones, in the same order; else they are
    /// numbers and zeros
    #[arg(long)]
    pub random_keys: bool,
    /// The folder of folder-load and folder-export
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Count the block device's own bytes and reads too (they are everybody's on this machine)
    #[arg(long)]
    pub block_device: bool,
}

/// A filesystem that Basalt runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FsName {
    /// The kernel's
    Host,
    /// LavaFS in an image
    Lava,
}
