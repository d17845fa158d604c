//! Comparison of log engines: Basalt's, and peers as stores of Raft logs. Runs are interleaved as
//! those of [`crate::compare`], each in a process of its own, and the report is the same.
//!
//! Modules: `args` the flags; `workload` the workloads, and what their threads do; `store` the
//! interface of engines; `run` one run in its process; `verify` checks of what was written.

mod args;
mod run;
mod store;
mod verify;
mod workload;

pub use args::{LogArgs, LogBudget};
pub use store::{LogEngineName, LogStore};
pub use workload::LogWorkload;

use crate::Stop;
use crate::cold_files;
use crate::compare::{self, Comparison, Done, Step};
use crate::device::{Device, Measured};
use crate::engine::{host_directory, remove_tree};
use crate::flags::Switch;
use crate::machine;
use basalt::env::Clock;
use basalt::fs::FileSystem;
use run::{FillOrder, LogOrder, ORDER, Prepared, run_one};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use workload::Case;

/// Runs a comparison, or one run of it in a process that a comparison has started. Returns the text
/// to print.
pub fn run(args: &LogArgs) -> Result<String, Stop> {
    args.validate().map_err(Stop::new)?;
    if let Ok(text) = std::env::var(ORDER) {
        return Ok(format!("{}\n", run_one(args, &LogOrder::parse(&text)?)?));
    }
    let comparison = compare_logs(args)?;
    Ok(match args.json {
        true => format!("{:#}\n", comparison.json()),
        false => comparison.table(),
    })
}

/// Runs all workloads on all engines.
pub fn compare_logs(args: &LogArgs) -> Result<Comparison, Stop> {
    let cases = args.cases();
    for engine in &args.engines {
        engine.check_built()?;
        for case in &cases {
            case.check_engine(*engine, args)?;
        }
    }
    let fs = host_directory(&args.dir, args.budget.direct)?;
    let name = format!("log-{}", rustix::process::getpid().as_raw_nonzero());
    fs.create_dir(Path::new(&name))?;
    let mut comparison = Comparison {
        machine: machine::describe(&args.dir),
        config: args.config(&fs.info()),
        rows: Vec::new(),
    };
    let mut bench = Bench {
        args,
        fs: fs.clone(),
        name: name.clone(),
        prepared: Vec::new(),
        device: None,
    };
    let ended = bench.all(&cases, &mut comparison);
    drop(bench);
    if !args.keep {
        remove_tree(fs.as_ref(), Path::new(&name))?;
        // The directory is removed only if it is empty: files of other programs stay.
        let _ = rustix::fs::rmdir(&args.dir);
    }
    ended?;
    Ok(comparison)
}

struct Bench<'a> {
    args: &'a LogArgs,
    fs: Arc<dyn FileSystem>,
    name: String,
    /// Filled stores: engine, content, name.
    prepared: Vec<(LogEngineName, Prepared, String)>,
    device: Option<Device>,
}

impl Bench<'_> {
    fn all(&mut self, cases: &[Case], comparison: &mut Comparison) -> Result<(), Stop> {
        let args = self.args;
        if !args.no_device {
            self.device = Some(Device::new(
                &args.dir,
                compare::DEVICE_FILE,
                args.budget.direct == Switch::On,
                args.seed,
                Clock::system(),
            )?);
        }
        for case in cases {
            for &engine in &args.engines {
                self.prepare(engine, case)?;
            }
            let rows =
                compare::interleaved(args.engines.len(), args.pairs, self, |bench, step| {
                    let (pair, e, at) = match step {
                        Step::Device => return bench.yardstick(case).map(Done::Device),
                        Step::Run { pair, engine, at } => (pair, engine, at),
                    };
                    let engine = bench.args.engines[e];
                    let label = format!("{at} {} x{} {}", case.name(), case.threads, engine.word());
                    bench.measured(engine, case, pair, label).map(Done::Run)
                })?;
            comparison.rows.extend(rows);
        }
        Ok(())
    }

    /// Makes the filled store of an engine, unless the case needs none or it exists.
    fn prepare(&mut self, engine: LogEngineName, case: &Case) -> Result<(), Stop> {
        let Some(content) = case.workload.prepared() else {
            return Ok(());
        };
        if self.filled(engine, content).is_some() {
            return Ok(());
        }
        let store = format!("{}/{}-{}", self.name, content.word(), engine.word());
        let order = LogOrder {
            engine,
            case: *case,
            store: store.clone(),
            fill: FillOrder::Prepare(content),
            pair: 0,
            label: format!("filling {}", engine.word()),
        };
        compare::process(engine.word(), ORDER, &order.text())?;
        self.prepared.push((engine, content, store));
        Ok(())
    }

    fn filled(&self, engine: LogEngineName, content: Prepared) -> Option<&str> {
        let is = |p: &&(LogEngineName, Prepared, String)| (p.0, p.1) == (engine, content);
        self.prepared.iter().find(is).map(|p| &*p.2)
    }

    fn measured(
        &self,
        engine: LogEngineName,
        case: &Case,
        pair: u64,
        label: String,
    ) -> Result<Value, Stop> {
        let own = format!("{}/run", self.name);
        let dir = &self.args.dir;
        let filled = case
            .workload
            .prepared()
            .and_then(|content| self.filled(engine, content));
        let store = match filled {
            // Recovery changes the store.
            Some(filled) if case.workload == LogWorkload::Recover => {
                let (from, to) = (Path::new(filled), Path::new(&own));
                cold_files::copy_tree(self.fs.as_ref(), dir, from, to)?;
                own.clone()
            }
            Some(filled) => {
                cold_files::forget_tree(self.fs.as_ref(), dir, Path::new(filled))?;
                filled.to_string()
            }
            None => own.clone(),
        };
        let order = LogOrder {
            engine,
            case: *case,
            store: store.clone(),
            fill: FillOrder::Measure,
            pair,
            label,
        };
        let row = compare::process(engine.word(), ORDER, &order.text())?;
        if store == own {
            remove_tree(self.fs.as_ref(), Path::new(&own))?;
        }
        Ok(row)
    }

    /// Measures the device's rate of the operation that limits the workload. The result is `None`
    /// if no operation of the device corresponds to one of the workload.
    fn yardstick(&mut self, case: &Case) -> Result<Option<(&'static str, Measured)>, Stop> {
        // A log pads a record in this way: two headers, and whole sectors.
        let padded = (self.args.record_size(case) + 52).next_multiple_of(512) as usize;
        let Some(device) = &mut self.device else {
            return Ok(None);
        };
        let time = compare::DEVICE_PROBE;
        Ok(match case.workload {
            LogWorkload::OneWriter | LogWorkload::ManyWriters if case.synced => Some((
                "synced overwrites into written space",
                device.synced_overwrites(padded, time)?,
            )),
            LogWorkload::Read => Some((
                "random reads of 4 KiB by as many threads",
                device.random_reads(case.threads, time)?,
            )),
            LogWorkload::Iterate => {
                Some(("sequential reads of 1 MiB", device.sequential_reads(time)?))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
