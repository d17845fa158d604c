//! Comparison of engines: the same workload on the same budget, in interleaved runs (A B B A A B
//! ...). Each run has a process of its own. The result has ratios of the first engine to each other
//! one, with intervals.
//!
//! Workloads on filled stores begin with a store that each engine filled once, became idle and
//! closed. Runs that only read share this store. Runs that write get a copy each. All runs begin
//! with a cold page cache.

mod args;
mod directory;
mod kind;
mod page_metrics;
mod restart;
pub(crate) mod run;
pub(crate) mod space;
pub(crate) mod summary;
mod targets;

pub use args::{CompareArgs, FsName};
pub use kind::Kind;
pub use summary::Comparison;

use crate::Stop;
use crate::cold_files;
use crate::device::{Device, Measured};
use crate::engine::{EngineName, host_directory, remove_tree, tree_bytes};
use crate::flags::Switch;
use crate::machine;
use crate::pick::Distribution;
use crate::report::round;
use crate::workload::common_config;
use basalt::env::Clock;
use basalt::fs::FileSystem;
use directory::Folder;
use page_metrics::page_metrics;
use run::{ORDER, Order, merge, run_one};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the file that the device is measured on.
pub(crate) const DEVICE_FILE: u64 = 256 << 20;
/// Time for which the device is measured before each run and after the last one.
pub(crate) const DEVICE_PROBE: Duration = Duration::from_millis(500);
/// Background threads of each engine (RocksDB's jobs) if no flag sets them.
pub(crate) const BACKGROUND: usize = 4;

/// A workload with its flags, as a run gets it.
pub struct RunRequest<'a> {
    /// The flags.
    pub args: &'a CompareArgs,
    /// Threads of the first group.
    pub threads: usize,
    /// The directory, for workloads on the files of a directory.
    folder: Option<Arc<Folder>>,
}

impl RunRequest<'_> {
    /// Returns the directory of a workload on the files of a directory. The directory was checked
    /// before the run began.
    fn folder(&self) -> &Arc<Folder> {
        self.folder.as_ref().expect("a directory was asked for")
    }
}

/// Runs a comparison, or one run of it in a process that a comparison has started. Returns the text
/// to print.
pub fn run(args: &CompareArgs) -> Result<String, Stop> {
    args.common.validate().map_err(Stop::new)?;
    let mut args = args.clone();
    if !args.fs.is_empty() {
        let on = |fs: &FsName| match fs {
            FsName::Host => EngineName::Basalt,
            FsName::Lava => EngineName::BasaltLava,
        };
        let basalt: Vec<EngineName> = args.fs.iter().map(on).collect();
        let asked = std::mem::take(&mut args.common.engines);
        let each = asked.into_iter().flat_map(|e| match e {
            EngineName::Basalt => basalt.clone(),
            other => vec![other],
        });
        args.common.engines = each.collect();
        args.fs.clear();
        args.common.validate().map_err(Stop::new)?;
    }
    let budget = &mut args.common.budget;
    if budget.background_threads == 0 {
        budget.background_threads = BACKGROUND;
    }
    if let Ok(text) = std::env::var(ORDER) {
        let order = Order::parse(&text)?;
        let out = args.common.dir.join(order.export());
        let of_folder = args.folder.as_ref().filter(|_| order.kind.is_of_folder());
        let folder = of_folder.map(|dir| Folder::new(dir, out)).transpose()?;
        let asked = RunRequest {
            args: &args,
            threads: order.threads,
            folder: folder.map(Arc::new),
        };
        return Ok(format!("{}\n", run_one(&asked, &order)?));
    }
    let comparison = compare(&args)?;
    Ok(match args.common.json {
        true => format!("{:#}\n", comparison.json()),
        false => comparison.table(),
    })
}

/// Runs all workloads on all engines.
pub fn compare(args: &CompareArgs) -> Result<Comparison, Stop> {
    let common = &args.common;
    for engine in &common.engines {
        engine.check_built()?;
    }
    if args.folder.is_none()
        && let Some(kind) = args.workloads.iter().find(|k| k.is_of_folder())
    {
        return Err(Stop::new(format!(
            "{} works on the files of a directory: name one with --folder",
            kind.word()
        )));
    }
    if args.distribution.is_some()
        && let Some(kind) = args.workloads.iter().find(|k| !k.chooses_keys())
    {
        return Err(Stop::new(format!(
            "--distribution says which of the keys are chosen, and {} has no choice; leave one of the two out",
            kind.word()
        )));
    }
    if args.distribution == Some(Distribution::Cyclic)
        && let Some(kind) = args.workloads.iter().find(|k| !k.takes_turns())
    {
        return Err(Stop::new(format!(
            "--distribution cyclic is for workloads that put keys and do nothing else, and {} does more; leave one of the two out",
            kind.word()
        )));
    }
    check_durability(args)?;
    let fs = host_directory(&common.dir, common.budget.direct)?;
    let name = format!("compare-{}", rustix::process::getpid().as_raw_nonzero());
    fs.create_dir(Path::new(&name))?;
    let mut config = common_config(common, &fs.info());
    let words: Vec<String> = args.workloads.iter().map(|k| k.word()).collect();
    merge(
        &mut config,
        json!({
            "workload": words.join(" "), "value_size": common.value_size, "value_sizes": format!("{:?}", args.value_sizes),
            "pairs": args.pairs, "distribution": args.distribution.map(|d| format!("{d:?}").to_lowercase()),
            "steady": args.steady, "write_rate": args.write_rate, "batch": args.batch, "no_log": args.no_log,
            "random_keys": args.random_keys, "folder": args.folder.as_ref().map(|f| f.display().to_string()),
            "warm_seconds": args.warm, "block_device": args.block_device,
        }),
    );
    let mut comparison = Comparison {
        machine: machine::describe(&common.dir),
        config,
        rows: Vec::new(),
    };
    let mut bench = Bench {
        args,
        fs: fs.clone(),
        name: name.clone(),
        prepared: Vec::new(),
        device: None,
    };
    let ended = bench.all(&mut comparison);
    drop(bench);
    if !common.keep {
        remove_tree(fs.as_ref(), Path::new(&name))?;
        // The directory is removed only if it is empty: files of other programs stay.
        let _ = rustix::fs::rmdir(&common.dir);
    }
    ended?;
    Ok(comparison)
}

/// Returns an error if a workload needs data to survive a crash, and the engine or a flag gives it
/// up.
fn check_durability(args: &CompareArgs) -> Result<(), Stop> {
    let common = &args.common;
    if args.no_log && args.workloads.contains(&Kind::Restart) {
        return Err(Stop::new(
            "restart reads back what the logs have, and --no-log writes none; leave one of the two out",
        ));
    }
    let Some(volatile) = common.engines.iter().find(|e| e.is_volatile()) else {
        return Ok(());
    };
    let volatile = volatile.word();
    if common.sync == Switch::On {
        return Err(Stop::new(format!(
            "--sync on asks for puts that survive a crash, and {volatile} loses its puts; leave one of the two out"
        )));
    }
    match args.workloads.iter().find(|k| k.needs_durability()) {
        None => Ok(()),
        Some(kind) => Err(Stop::new(format!(
            "{} is for data that survive a crash, and {volatile} loses its puts; leave one of the two out",
            kind.word()
        ))),
    }
}

struct Bench<'a> {
    args: &'a CompareArgs,
    fs: Arc<dyn FileSystem>,
    name: String,
    /// Filled stores: engine, bytes of a value, name.
    prepared: Vec<(EngineName, u64, String)>,
    device: Option<Device>,
}

impl Bench<'_> {
    fn all(&mut self, comparison: &mut Comparison) -> Result<(), Stop> {
        let common = &self.args.common;
        if !common.no_device {
            self.device = Some(Device::new(
                &common.dir,
                DEVICE_FILE,
                common.budget.direct == Switch::On,
                common.seed,
                Clock::system(),
            )?);
        }
        for &kind in &self.args.workloads {
            for &threads in &common.threads {
                self.workload(kind, threads, comparison)?;
            }
        }
        Ok(())
    }

    fn workload(
        &mut self,
        kind: Kind,
        threads: usize,
        comparison: &mut Comparison,
    ) -> Result<(), Stop> {
        let engines = self.args.common.engines.clone();
        if kind.is_on_filled() {
            for &engine in &engines {
                self.prepare(engine, kind)?;
            }
        }
        let rows = interleaved(engines.len(), self.args.pairs, self, |bench, step| {
            let (pair, e, at) = match step {
                Step::Device => return bench.yardstick(kind, threads).map(Done::Device),
                Step::Run { pair, engine, at } => (pair, engine, at),
            };
            let label = format!("{at} {} x{threads} {}", kind.word(), engines[e].word());
            bench
                .measured(engines[e], kind, threads, pair, label)
                .map(Done::Run)
        })?;
        comparison.rows.extend(rows);
        Ok(())
    }

    /// Makes the filled store of an engine, unless it exists.
    fn prepare(&mut self, engine: EngineName, kind: Kind) -> Result<(), Stop> {
        let bytes = self.value_size(kind);
        if self.filled(engine, bytes).is_some() {
            return Ok(());
        }
        let store = format!("{}/filled-{}-{bytes}", self.name, engine.word());
        self.process(&Order {
            engine,
            kind,
            threads: 2,
            store: store.clone(),
            prepare: true,
            pair: 0,
            label: format!("filling {}", engine.word()),
        })?;
        self.prepared.push((engine, bytes, store));
        Ok(())
    }

    fn value_size(&self, kind: Kind) -> u64 {
        self.args.common.value_size.unwrap_or(kind.value_size())
    }

    fn filled(&self, engine: EngineName, bytes: u64) -> Option<&str> {
        self.prepared
            .iter()
            .find(|p| p.0 == engine && p.1 == bytes)
            .map(|p| &*p.2)
    }

    fn measured(
        &self,
        engine: EngineName,
        kind: Kind,
        threads: usize,
        pair: u64,
        label: String,
    ) -> Result<Value, Stop> {
        let own = format!("{}/run", self.name);
        let filled = kind
            .is_on_filled()
            .then(|| self.filled(engine, self.value_size(kind)))
            .flatten();
        let dir = &self.args.common.dir;
        if kind == Kind::Restart {
            return self.restarted(Order {
                engine,
                kind,
                threads,
                store: own,
                prepare: true,
                pair,
                label,
            });
        }
        let store = match filled {
            Some(filled) if kind.writes() => {
                cold_files::copy_tree(self.fs.as_ref(), dir, Path::new(filled), Path::new(&own))?;
                own.clone()
            }
            Some(filled) => {
                cold_files::forget_tree(self.fs.as_ref(), dir, Path::new(filled))?;
                filled.to_string()
            }
            None => own.clone(),
        };
        let row = self.process(&Order {
            engine,
            kind,
            threads,
            store: store.clone(),
            prepare: false,
            pair,
            label,
        })?;
        if store == own {
            remove_tree(self.fs.as_ref(), Path::new(&own))?;
        }
        Ok(row)
    }

    /// Loads a store in a process that is killed, and measures how the next process opens it.
    fn restarted(&self, mut order: Order) -> Result<Value, Stop> {
        let (fs, store) = (self.fs.as_ref(), order.store.clone());
        let loaded = restart::load_and_kill(&order)?;
        let path = Path::new(&store);
        cold_files::forget_tree(fs, &self.args.common.dir, path)?;
        let disk_bytes = tree_bytes(fs, path)?;
        order.prepare = false;
        let mut row = self.process(&order)?;
        merge(&mut row, loaded);
        merge(&mut row, json!({"disk_bytes": disk_bytes}));
        remove_tree(fs, path)?;
        Ok(row)
    }

    fn process(&self, order: &Order) -> Result<Value, Stop> {
        process(order.engine.word(), ORDER, &order.text())
    }

    /// Measures the device's rate of the operation that limits the workload. The result is `None`
    /// if no operation of the device corresponds to one of the workload.
    fn yardstick(
        &mut self,
        kind: Kind,
        threads: usize,
    ) -> Result<Option<(&'static str, Measured)>, Stop> {
        // A log pads a put in this way: a header, and whole sectors.
        let put = self.args.common.key_size + self.value_size(kind) + 40;
        let Some(device) = &mut self.device else {
            return Ok(None);
        };
        Ok(match kind {
            Kind::DurablePut | Kind::DurablePutWhileReading => Some((
                "synced overwrites into written space",
                device.synced_overwrites(put.next_multiple_of(512) as usize, DEVICE_PROBE)?,
            )),
            Kind::ReadRandom | Kind::YcsbC => Some((
                "random reads of 4 KiB by as many threads",
                device.random_reads(threads, DEVICE_PROBE)?,
            )),
            _ => None,
        })
    }
}

/// A step of a comparison.
pub(crate) enum Step {
    /// Measure the device, if an operation of it corresponds to one of the workload.
    Device,
    /// Run an engine.
    Run {
        /// Number of the pair, from 0.
        pair: u64,
        /// Number of the engine.
        engine: usize,
        /// The position among the runs, for people: "3/10".
        at: String,
    },
}

/// The result of a step.
pub(crate) enum Done {
    /// The name of the operation of the device, and its measurement.
    Device(Option<(&'static str, Measured)>),
    /// The results of a run.
    Run(Value),
}

/// Runs engines in interleaved pairs, with a measurement of the device before and after each run.
/// Returns the results of the runs, each with its ratio to the device.
pub(crate) fn interleaved<B>(
    engines: usize,
    pairs: u64,
    bench: &mut B,
    mut step: impl FnMut(&mut B, Step) -> Result<Done, Stop>,
) -> Result<Vec<Value>, Stop> {
    let runs = order_of_runs(engines, pairs);
    let mut rows = Vec::with_capacity(runs.len());
    let device = |bench: &mut B, step: &mut dyn FnMut(&mut B, Step) -> Result<Done, Stop>| {
        Ok::<_, Stop>(match step(bench, Step::Device)? {
            Done::Device(measured) => measured,
            Done::Run(_) => None,
        })
    };
    let mut before = device(bench, &mut step)?;
    for (i, &(pair, engine)) in runs.iter().enumerate() {
        let at = format!("{}/{}", i + 1, runs.len());
        let run = Step::Run { pair, engine, at };
        let Done::Run(mut row) = step(bench, run)? else {
            continue;
        };
        let after = device(bench, &mut step)?;
        if let (Some((what, a)), Some((_, b))) = (&before, &after) {
            let mut both = a.clone();
            both.add(b);
            let rate = row["ops_per_s"].as_f64().unwrap_or(0.0);
            let ratio = round(rate / both.rate().max(1e-9));
            merge(
                &mut row,
                json!({
                    "device_ratio": ratio,
                    "device": {
                        "what": what, "ops_per_s": round(both.rate()),
                        "p50_us": round(both.latency.quantile(0.5) as f64 / 1e3),
                        "p99_us": round(both.latency.quantile(0.99) as f64 / 1e3),
                    },
                }),
            );
        }
        before = after;
        rows.push(row);
    }
    Ok(rows)
}

/// Runs this program again, with the same arguments and an order in the environment. Returns the
/// results that it prints.
pub(crate) fn process(engine: &str, variable: &str, order: &str) -> Result<Value, Stop> {
    let failed = |what: String| Stop::new(format!("the run of {engine} failed: {what}"));
    let out = same_program(variable, order)
        .and_then(|mut command| command.stdin(Stdio::null()).output())
        .map_err(|e| failed(e.to_string()))?;
    if !out.status.success() {
        return Err(failed(format!("{} (its reason is above)", out.status)));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| failed(e.to_string()))
}

/// Returns a command that runs this program again, with the same arguments and an order in the
/// environment. Its errors appear among those of this process.
fn same_program(variable: &str, order: &str) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1))
        .env(variable, order)
        .stderr(Stdio::inherit());
    Ok(command)
}

/// Returns the order of the runs as pairs of pair and engine. Every second pair runs in reverse, so
/// that drift of the machine favours no engine.
fn order_of_runs(engines: usize, pairs: u64) -> Vec<(u64, usize)> {
    (0..pairs)
        .flat_map(|pair| {
            (0..engines).map(move |e| match pair % 2 {
                0 => (pair, e),
                _ => (pair, engines - 1 - e),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
