//! The flags of a comparison of log engines.

use super::store::LogEngineName;
use super::workload::{Case, LogWorkload};
use crate::compare::BACKGROUND;
use crate::flags::{Switch, parse_size};
use basalt::fs::FsInfo;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Examples and explanations at the end of the help text.
const AFTER_HELP: &str = "\
Examples:
  basalt-bench log one-writer many-writers --sync on,off
  basalt-bench log one-writer --engines basalt,rocksdb,raft-engine,raft-log --pairs 5 --json > one-writer.json
  basalt-bench log many-logs stuck-log --seconds 60 --block-device
  basalt-bench log recover --records 10000000 --engines basalt,rocksdb
  basalt-bench log read gaps --scale 0.01 --pairs 1 --seconds 1

The last command is a look of a few seconds: --scale multiplies the numbers of records and logs. Each engine runs --pairs times, in the \
order A B B A; ratios are of the first engine to each other one, with 95 % intervals. Everything that was written is read back and \
compared byte by byte, and a wrong byte ends the run with an error. A target of docs/benchmarks.md is judged if the run has its metrics.";

/// The flags of `log`.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct LogArgs {
    /// Run these workloads one after the other
    #[arg(value_enum, required = true, value_name = "WORKLOAD")]
    pub workloads: Vec<LogWorkload>,
    /// Run on these engines; ratios are of the first to each other
    #[arg(
        long,
        alias = "engine",
        value_enum,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "basalt"
    )]
    pub engines: Vec<LogEngineName>,
    /// Run each engine this many times, in the order A B B A A B ...; intervals need at least 5
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub pairs: u64,
    /// Append so that each record survives a power cut (on), or reaches the operating system (off),
    /// in one-writer, many-writers, many-logs and stuck-log; a list runs once for each [default: on
    /// for writers, off for many-logs and stuck-log]
    #[arg(long, value_enum, value_name = "on,off", value_delimiter = ',')]
    pub sync: Vec<Switch>,
    /// Run on this many threads; a list runs once for each [default: 64 for many-writers, 4 with
    /// --sync off; 2 for many-logs and stuck-log; 1 for the others]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Run for this many seconds
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub seconds: u64,
    /// Stop after this many appends or reads, if that is sooner
    #[arg(long, value_name = "N")]
    pub ops: Option<u64>,
    /// Run unmeasured operations for this many seconds first
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub warm: u64,
    /// Append this many bytes before writers are measured, so that engines that recycle files are
    /// recycling them
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub fill: u64,
    /// Make records this many bytes long, at least 8 [default: 1K; 256 with --sync off; 256 to 4K
    /// in many-logs and stuck-log]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub record_size: Option<u64>,
    /// Fill the stores of read and recover with this many records; gaps has ten times as many
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub records: u64,
    /// Keep this many logs in many-logs and stuck-log [default: 1000], and in read and recover
    /// [default: 16]
    #[arg(long, value_name = "N")]
    pub logs: Option<u64>,
    /// Keep the newest N records of a log in many-logs and stuck-log, and trim the others
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub behind: u64,
    /// Multiply the numbers of records and logs, and the bytes of --fill, for a short look
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub scale: f64,
    /// Use this seed for records and their order
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Make data here: a directory inside it, removed afterwards
    #[arg(long, value_name = "DIR", default_value = "./bench-data")]
    pub dir: PathBuf,
    /// Keep the data
    #[arg(long)]
    pub keep: bool,
    /// The limits of engines.
    #[command(flatten)]
    pub budget: LogBudget,
    /// Leave out the measurement of the device
    #[arg(long)]
    pub no_device: bool,
    /// Count the block device's own bytes and reads too (those of all processes on this machine)
    #[arg(long)]
    pub block_device: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Limits of a log engine.
#[derive(clap::Args, Debug, Clone)]
pub struct LogBudget {
    /// Limit Basalt's memory to this many bytes in all
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub memory: u64,
    /// Use this many bytes for the block cache (raft-log: for its cache of records)
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub cache: u64,
    /// Run this many background threads
    #[arg(long, value_name = "N", default_value_t = BACKGROUND)]
    pub background_threads: usize,
    /// Use direct I/O, past the page cache, in engines that can
    #[arg(long, value_enum, default_value = "on")]
    pub direct: Switch,
    /// Begin a new file of Basalt's log, or of raft-log's, at this many bytes
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_size)]
    pub file_bytes: u64,
    /// Let Basalt's log take at most this many bytes for each byte of records in use
    #[arg(long, value_name = "N", default_value_t = 1.25)]
    pub max_space_amp: f64,
    /// Let raft-engine purge its log from this many bytes on (its purge-threshold); half as much
    /// again is prefilled
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub purge_bytes: u64,
    /// Make the images of basalt-lava's stores this many bytes long
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = parse_size)]
    pub image_size: u64,
    /// Set an option of RocksDB by its own name, over those of docs/benchmarks.md; may be repeated
    #[arg(long = "rocksdb-option", value_name = "NAME=VALUE")]
    pub rocksdb_options: Vec<String>,
}

impl LogArgs {
    /// Returns why the flags make no sense.
    pub fn validate(&self) -> Result<(), String> {
        if !(self.scale > 0.0 && self.scale <= 1000.0) {
            return Err(format!(
                "--scale {} is not above 0 and at most 1000",
                self.scale
            ));
        }
        if self
            .record_size
            .is_some_and(|n| !(8..=1 << 20).contains(&n))
        {
            return Err("--record-size must be 8 to 1M".into());
        }
        if self.threads.iter().any(|n| !(1..=1024).contains(n)) {
            return Err("--threads must be 1 to 1024".into());
        }
        if self.logs == Some(0) || self.behind == 0 || self.records == 0 {
            return Err("--logs, --records and --behind must be above 0".into());
        }
        if let Some(option) = (self.budget.rocksdb_options.iter()).find(|o| !o.contains('=')) {
            return Err(format!("--rocksdb-option {option} is not NAME=VALUE"));
        }
        let mut engines = self.engines.iter();
        if engines.any(|e| self.engines.iter().filter(|f| *f == e).count() > 1) {
            return Err("--engines names an engine twice".into());
        }
        Ok(())
    }

    /// Returns a number of records or logs at the scale of the run, at least `least`.
    pub fn scaled(&self, n: u64, least: u64) -> u64 {
        ((n as f64 * self.scale) as u64).max(least)
    }

    /// Returns the runs that the flags ask for: each workload with each kind of append and each
    /// number of threads.
    pub fn cases(&self) -> Vec<Case> {
        let mut out = Vec::new();
        let mut workloads = Vec::new();
        for &workload in &self.workloads {
            workloads.push(workload);
            if workload == LogWorkload::Read {
                workloads.push(LogWorkload::Iterate);
            }
        }
        for workload in workloads {
            let syncs = match (workload.appends(), &self.sync[..]) {
                (false, _) => vec![false],
                (true, []) => vec![workload.is_of_writers()],
                (true, asked) => asked.iter().map(|s| *s == Switch::On).collect(),
            };
            for synced in syncs {
                let threads = match &self.threads[..] {
                    [] => vec![workload.threads(synced)],
                    // These workloads have one thread. The flag does not change that.
                    _ if !workload.has_threads() => vec![1],
                    asked => asked.to_vec(),
                };
                out.extend(threads.into_iter().map(|threads| Case {
                    workload,
                    synced,
                    threads,
                }));
            }
        }
        out
    }

    /// Returns the bytes of the longest record.
    pub fn record_size(&self, case: &Case) -> u64 {
        self.record_size.unwrap_or(match case.workload {
            LogWorkload::ManyLogs | LogWorkload::StuckLog => 4096,
            LogWorkload::OneWriter | LogWorkload::ManyWriters if !case.synced => 256,
            LogWorkload::Gaps => 16,
            _ => 1024,
        })
    }

    /// Returns the flags, for the report.
    pub(super) fn config(&self, fs: &FsInfo) -> Value {
        let words: Vec<String> = self.workloads.iter().map(|w| w.word()).collect();
        let b = &self.budget;
        json!({
            "workload": words.join(" "), "pairs": self.pairs, "seconds": self.seconds, "ops": self.ops,
            "warm_seconds": self.warm, "fill_bytes": self.fill, "record_size": self.record_size,
            "records": self.records, "logs": self.logs, "behind": self.behind, "scale": self.scale,
            "seed": self.seed, "block_device": self.block_device, "memory_bytes": b.memory, "cache_bytes": b.cache,
            "background_threads": b.background_threads, "direct": b.direct == Switch::On,
            "file_bytes": b.file_bytes, "max_space_amp": b.max_space_amp, "purge_bytes": b.purge_bytes,
            "image_size": b.image_size, "rocksdb_options": b.rocksdb_options,
            "filesystem": fs.description, "write_unit": fs.write_unit,
        })
    }
}
