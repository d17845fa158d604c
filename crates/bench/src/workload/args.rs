//! The workloads that run on one engine, and their flags.

use crate::engine::{Budget, EngineName};
use crate::flags::{Switch, parse_size};
use clap::Subcommand;
use std::path::PathBuf;

/// A workload that runs on one engine.
#[derive(Subcommand, Debug, Clone)]
pub enum Workload {
    /// Put keys durably, in slices between the device's own synced overwrites
    #[command(after_help = "Examples:\n  basalt bench durable-put --threads 1,16")]
    DurablePut(Common),
    /// Put every key once in random order, then wait for compactions
    #[command(
        after_help = "Examples:\n  basalt bench fill --keys 10000000 --key-size 32 --value-size 128"
    )]
    Fill(Common),
    /// Put random keys of a filled store again
    #[command(after_help = "Examples:\n  basalt bench overwrite --seconds 60 --sync on")]
    Overwrite(Common),
    /// Get random keys from a filled, idle, reopened store
    #[command(
        after_help = "Examples:\n  basalt bench read --keys 5000000 --cache 64M --threads 2 --seconds 30"
    )]
    Read {
        /// Flags of all workloads
        #[command(flatten)]
        common: Common,
        /// Get keys that do not exist in this percentage of gets
        #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
        miss_percent: u8,
    },
    /// Seek random keys of a filled, idle, reopened store and read on from there
    #[command(after_help = "Examples:\n  basalt bench scan --scan-len 100 --seconds 30")]
    Scan {
        /// Flags of all workloads
        #[command(flatten)]
        common: Common,
        /// Read this many entries after each seek
        #[arg(long, value_name = "N", default_value_t = 10)]
        scan_len: u64,
    },
    /// Get and put random keys of a filled store
    #[command(
        after_help = "Examples:\n  basalt bench mixed --read-percent 90 --seconds 60 --json > mixed.json"
    )]
    Mixed {
        /// Flags of all workloads
        #[command(flatten)]
        common: Common,
        /// Get in this percentage of operations
        #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
        read_percent: u8,
    },
    /// Measure the device alone, without an engine
    #[command(after_help = "Examples:\n  basalt bench device")]
    Device(Common),
}

/// Flags of all workloads.
#[derive(clap::Args, Debug, Clone)]
pub struct Common {
    /// Make data here: a directory inside it, removed afterwards
    #[arg(long, value_name = "DIR", default_value = "./bench-data")]
    pub dir: PathBuf,
    /// Keep the data
    #[arg(long)]
    pub keep: bool,
    /// Run on these engines, once for each; ratios are of the first to each other
    #[arg(
        long,
        alias = "engine",
        value_enum,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "basalt"
    )]
    pub engines: Vec<EngineName>,
    /// Make keys this many bytes long, at least 8
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = parse_size)]
    pub key_size: u64,
    /// Make values this many bytes long [default: 1K for durable-put and device, 100 in compare,
    /// 128 for the others]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub value_size: Option<u64>,
    /// Use this many different keys
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub keys: u64,
    /// Run on this many threads; a list runs once for each
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Run for this many seconds, except fill
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub seconds: u64,
    /// Stop after this many operations, if that is sooner
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,
    /// Use this seed for keys, values and their order
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Let compression shorten values by this part: 0 not at all, 0.5 to a half
    #[arg(long, value_name = "0..1", default_value_t = 0.5)]
    pub compressible: f64,
    /// The limits of engines.
    #[command(flatten)]
    pub budget: Budget,
    /// Sync each put of fill, overwrite and mixed (durable-put always does)
    #[arg(long, value_enum, default_value = "off")]
    pub sync: Switch,
    /// Leave out the measurement of the device
    #[arg(long)]
    pub no_device: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

impl Workload {
    /// Returns the flags of all workloads.
    pub fn common(&self) -> &Common {
        match self {
            Workload::DurablePut(c)
            | Workload::Fill(c)
            | Workload::Overwrite(c)
            | Workload::Device(c) => c,
            Workload::Read { common, .. }
            | Workload::Scan { common, .. }
            | Workload::Mixed { common, .. } => common,
        }
    }

    /// Returns the bytes of a value.
    pub fn value_size(&self) -> u64 {
        let usual = match self {
            Workload::DurablePut(_) | Workload::Device(_) => 1024,
            _ => 128,
        };
        self.common().value_size.unwrap_or(usual)
    }

    /// Returns the name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Workload::DurablePut(_) => "durable-put",
            Workload::Fill(_) => "fill",
            Workload::Overwrite(_) => "overwrite",
            Workload::Read { .. } => "read",
            Workload::Scan { .. } => "scan",
            Workload::Mixed { .. } => "mixed",
            Workload::Device(_) => "device",
        }
    }
}

impl Common {
    /// Returns an error if the flags exclude each other.
    pub fn validate(&self) -> Result<(), String> {
        if !(8..=basalt::MAX_KEY_LEN as u64).contains(&self.key_size) {
            return Err(format!(
                "--key-size is {}; it is from 8 to {}",
                self.key_size,
                basalt::MAX_KEY_LEN
            ));
        }
        if let Some(n) = self
            .value_size
            .filter(|&n| n > basalt::MAX_VALUE_LEN as u64)
        {
            return Err(format!(
                "--value-size is {n}; it is at most {}",
                basalt::MAX_VALUE_LEN
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
