//! What can be asked of a run.

use crate::compare::Kind;
use crate::engine::EngineName;
use crate::pick::Distribution;
use crate::sizes::{SizesAsked, parse_sizes};
use clap::{Subcommand, ValueEnum};
use std::path::PathBuf;

/// Examples, for the end of the help.
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

/// A whole run.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// What is measured.
    #[command(subcommand)]
    pub workload: Workload,
}

/// What is measured.
#[derive(Subcommand, Debug, Clone)]
pub enum Workload {
    /// Puts that are durable when they return, in slices between the device's own synced overwrites
    DurablePut(Common),
    /// Every key once, in random order; then waits for compactions
    Fill(Common),
    /// Random keys of a filled store again
    Overwrite(Common),
    /// Random gets from a filled, settled, reopened store
    Read {
        /// Flags of all workloads
        #[command(flatten)]
        common: Common,
        /// Percent of gets that ask for a key that is not there
        #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
        miss_percent: u8,
    },
    /// Seeks to random keys of a filled, settled, reopened store and reads on from there
    Scan {
        /// Flags of all workloads
        #[command(flatten)]
        common: Common,
        /// Entries read after each seek
        #[arg(long, value_name = "N", default_value_t = 10)]
        scan_len: u64,
    },
    /// Random gets and puts on a filled store
    Mixed {
        /// Flags of all workloads
        #[command(flatten)]
        common: Common,
        /// Percent of operations that are gets
        #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
        read_percent: u8,
    },
    /// The device alone, without any engine
    Device(Common),
    /// Engines beside each other on one budget, in interleaved pairs, with ratios and their intervals
    Compare(Box<CompareArgs>),
    /// Filesystems beside each other: LavaFS in an image, and the kernel's
    Fs(crate::files::FsArgs),
    /// One page with charts from results saved with --json
    Report(ReportArgs),
}

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
    /// Lengths of values: fixed (--value-size), uniform:LOW-HIGH, pareto:MEAN, folder:DIR (those of its files)
    #[arg(long, value_name = "SIZES", default_value = "fixed", value_parser = parse_sizes)]
    pub value_sizes: SizesAsked,
    /// Filesystems that Basalt runs on, each as an engine of its own: host is the directory itself, lava an image in it
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
    /// Seconds of unmeasured operations before reads are measured. Runs that only read are warmed on while compactions go on
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub warm: u64,
    /// Keys are spread over all bytes and end in random ones, in the same order; else they are numbers and zeros
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

/// What `report` can be told.
#[derive(clap::Args, Debug, Clone)]
pub struct ReportArgs {
    /// Results, each saved with --json
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The page to write; one that is there is replaced
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// As they are
    None,
    /// lz4
    Lz4,
    /// zstd
    Zstd,
}

/// What an engine may use: the same for all.
#[derive(clap::Args, Debug, Clone)]
pub struct Budget {
    /// The whole memory budget
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub memory: u64,
    /// The block cache's part of it
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_size)]
    pub cache: u64,
    /// Memtable bytes at which a flush begins
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub write_buffer: u64,
    /// Background threads; 0 takes the engine's default (in `compare` 4, for each engine)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub background_threads: usize,
    /// Compression of data blocks, and of values in blob files
    #[arg(long, value_enum, default_value = "none")]
    pub compression: Compression,
    /// Direct I/O, past the page cache
    #[arg(long, value_enum, default_value = "on")]
    pub direct: Switch,
    /// Filter bits a key
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub filter_bits: u32,
    /// Bytes of a data block before compression
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub block_size: u64,
    /// Basalt keeps values from so many bytes on in blob files; 0 for none. RocksDB's BlobDB has --rocksdb-option min_blob_size
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub min_blob_size: u64,
    /// Bytes that Basalt's blob files may take for each byte of theirs in use; 1000 is no bound
    #[arg(long, value_name = "N", default_value_t = 1.25)]
    pub max_space_amp: f64,
    /// Size of the images that basalt-lava's stores lie in
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = parse_size)]
    pub image_size: u64,
    /// An option of RocksDB by its own name, over what docs/benchmarks.md lists; may be repeated
    #[arg(long = "rocksdb-option", value_name = "NAME=VALUE")]
    pub rocksdb_options: Vec<String>,
}

/// Flags of all workloads.
#[derive(clap::Args, Debug, Clone)]
pub struct Common {
    /// Where data is made; a directory inside it, removed afterwards
    #[arg(long, value_name = "DIR", default_value = "./bench-data")]
    pub dir: PathBuf,
    /// Keep the data
    #[arg(long)]
    pub keep: bool,
    /// The engines; a list runs once for each, and ratios are of the first to each other
    #[arg(
        long,
        alias = "engine",
        value_enum,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "basalt"
    )]
    pub engines: Vec<EngineName>,
    /// Bytes of a key, at least 8
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = parse_size)]
    pub key_size: u64,
    /// Bytes of a value [default: 1K for durable-put and device, 100 in compare, 128 for the others]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub value_size: Option<u64>,
    /// How many different keys
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub keys: u64,
    /// Threads; a list runs once for each
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// How long, for all but fill
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub seconds: u64,
    /// Stop after so many operations, if that is sooner
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,
    /// Seed of keys, values and their order
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// How much smaller compression may make values: 0 not at all, 0.5 to a half
    #[arg(long, value_name = "0..1", default_value_t = 0.5)]
    pub compressible: f64,
    /// What engines may use
    #[command(flatten)]
    pub budget: Budget,
    /// Puts of fill, overwrite and mixed are durable when they return (durable-put's always are)
    #[arg(long, value_enum, default_value = "off")]
    pub sync: Switch,
    /// Leave the device's own measure out
    #[arg(long)]
    pub no_device: bool,
    /// One JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

impl Workload {
    /// Flags of all workloads; a report runs none.
    pub fn common(&self) -> Option<&Common> {
        match self {
            Workload::DurablePut(c)
            | Workload::Fill(c)
            | Workload::Overwrite(c)
            | Workload::Device(c) => Some(c),
            Workload::Read { common, .. }
            | Workload::Scan { common, .. }
            | Workload::Mixed { common, .. } => Some(common),
            Workload::Compare(compare) => Some(&compare.common),
            Workload::Report(_) | Workload::Fs(_) => None,
        }
    }

    /// Bytes of a value.
    pub fn value_size(&self) -> u64 {
        let usual = match self {
            Workload::DurablePut(_) | Workload::Device(_) => 1024,
            _ => 128,
        };
        self.common().and_then(|c| c.value_size).unwrap_or(usual)
    }

    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Workload::DurablePut(_) => "durable-put",
            Workload::Fill(_) => "fill",
            Workload::Overwrite(_) => "overwrite",
            Workload::Read { .. } => "read",
            Workload::Scan { .. } => "scan",
            Workload::Mixed { .. } => "mixed",
            Workload::Device(_) => "device",
            Workload::Compare(_) => "compare",
            Workload::Report(_) => "report",
            Workload::Fs(_) => "fs",
        }
    }
}

impl Common {
    /// Says what is wrong with the flags together.
    pub fn validate(&self) -> Result<(), String> {
        if !(8..=basalt::lsm::MAX_KEY_LEN as u64).contains(&self.key_size) {
            return Err(format!(
                "--key-size is {}; it is from 8 to {}",
                self.key_size,
                basalt::lsm::MAX_KEY_LEN
            ));
        }
        if let Some(n) = self
            .value_size
            .filter(|&n| n > basalt::lsm::MAX_VALUE_LEN as u64)
        {
            return Err(format!(
                "--value-size is {n}; it is at most {}",
                basalt::lsm::MAX_VALUE_LEN
            ));
        }
        if self.keys == 0 || self.threads.is_empty() || self.threads.contains(&0) {
            return Err("--keys and --threads are at least 1".into());
        }
        if self.threads.iter().any(|&t| t > 1024) {
            return Err("--threads is at most 1024".into());
        }
        if !(0.0..=1.0).contains(&self.compressible) {
            return Err(format!(
                "--compressible is {}; it is from 0 to 1",
                self.compressible
            ));
        }
        let budget = &self.budget;
        if budget.cache > budget.memory {
            return Err(format!(
                "--cache of {} bytes is more than --memory of {} bytes, of which it is a part",
                budget.cache, budget.memory
            ));
        }
        if let Some(bad) = budget.rocksdb_options.iter().find(|o| !o.contains('=')) {
            return Err(format!(
                "--rocksdb-option is {bad:?}; write NAME=VALUE, as in max_subcompactions=1"
            ));
        }
        let mut engines = self.engines.iter();
        if engines.any(|e| self.engines.iter().filter(|f| *f == e).count() > 1) {
            return Err("--engines names an engine twice".into());
        }
        Ok(())
    }
}

/// A number of bytes: `4096`, `4K`, `64M`, `1G` (powers of 1024; `KiB` and `KB` mean the same).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no number of bytes; write 4096, 4K, 64M, 1G or 1T");
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let shift = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4K"), Ok(4096));
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        for bad in ["", "K", "4X", "-1", "99999999999G", "1.5M"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
