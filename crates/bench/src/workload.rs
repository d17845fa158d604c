//! Workloads on one engine: each runs on a store of its own, beside the measurement of the device.
//!
//! Slices of the device and of the workload take turns (`durable-put`), or the device is measured
//! before and after (the other workloads), because the rate of a shared disk changes within
//! seconds.

mod args;

pub use args::{Common, Workload};

use crate::Stop;
use crate::counters::{Counters, Counts, peak_rss, reset_peak_rss};
use crate::data::Data;
use crate::device::{Device, Measured, RANDOM_READ, SEQUENTIAL};
use crate::drive::{Driver, Group, Operation, Presence, Tally, Worker};
use crate::engine::{self, Engine, EngineName, Log, host_directory, remove_tree, tree_bytes};
use crate::flags::Switch;
use crate::machine;
use crate::progress::Progress;
use crate::report::{Report, Row, Yardstick, round};
use basalt::env::Clock;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the file that the device is measured on.
const DEVICE_FILE: u64 = 256 << 20;
/// A slice of `durable-put`, and of the device beside it.
const SLICE: Duration = Duration::from_millis(500);
/// Time for which the device is measured before and after the other workloads.
const DEVICE_PROBE: Duration = Duration::from_secs(1);

/// Runs a workload once for each number of threads.
pub fn run(workload: &Workload) -> Result<Report, Stop> {
    let common = workload.common();
    common.validate().map_err(Stop::new)?;
    for engine in &common.engines {
        engine.check_built()?;
    }
    let fs = host_directory(&common.dir, common.budget.direct)?;
    let name = format!("run-{}", rustix::process::getpid().as_raw_nonzero());
    let mut bench = Bench {
        workload,
        common,
        data: Data::new(
            common.seed,
            common.keys,
            common.key_size as usize,
            workload.value_size() as usize,
            common.compressible,
        ),
        clock: Clock::system(),
        counters: Counters::new(&common.dir),
        name: name.clone(),
        device: None,
        progress: Progress::new(workload.name()),
        engine: common.engines[0],
    };
    let mut report = Report {
        machine: machine::describe(&common.dir),
        config: config(workload, common, &fs.info()),
        rows: Vec::new(),
        targets: Vec::new(),
    };
    let ended = bench.rows(&mut report);
    drop(bench);
    if !common.keep {
        let path = Path::new(&name);
        if fs.exists(path)? {
            remove_tree(fs.as_ref(), path)?;
        }
        // The directory is removed only if it is empty: files of other programs stay.
        let _ = rustix::fs::rmdir(&common.dir);
    }
    ended?;
    if let Workload::DurablePut(_) = workload {
        durable_targets(&mut report);
    }
    Ok(report)
}

/// Adds the targets of the README, if the run has their metrics.
fn durable_targets(report: &mut Report) {
    let one = report.rows.iter().find(|r| r.threads == 1);
    let Some(one) = one else { return };
    let rate = one.measured.rate();
    let mut targets = Vec::new();
    if let Some(ratio) = one.device_ratio() {
        targets.push((
            "durable puts of one thread / the device's synced overwrites".to_string(),
            ratio,
            0.8,
        ));
    }
    if let Some(many) = report.rows.iter().find(|r| r.threads == 16)
        && rate > 0.0
    {
        targets.push((
            "durable puts of 16 threads / of one".to_string(),
            many.measured.rate() / rate,
            4.0,
        ));
    }
    report.targets = targets;
}

fn config(workload: &Workload, common: &Common, fs: &basalt::fs::FsInfo) -> Value {
    let mut config = common_config(common, fs);
    config["workload"] = json!(workload.name());
    config["value_size"] = json!(workload.value_size());
    if matches!(workload, Workload::DurablePut(_)) {
        config["sync"] = json!(true);
    }
    let more = match workload {
        Workload::Read { miss_percent, .. } => Some(("miss_percent", json!(miss_percent))),
        Workload::Scan { scan_len, .. } => Some(("scan_len", json!(scan_len))),
        Workload::Mixed { read_percent, .. } => Some(("read_percent", json!(read_percent))),
        _ => None,
    };
    if let Some((name, value)) = more {
        config[name] = value;
    }
    config
}

/// Returns the flags of all workloads, and the properties of the filesystem.
pub fn common_config(c: &Common, fs: &basalt::fs::FsInfo) -> Value {
    let on = |s: Switch| s == Switch::On;
    let b = &c.budget;
    json!({
        "version": env!("CARGO_PKG_VERSION"), "filesystem": fs.description,
        "write_unit": fs.write_unit, "read_backend": fs.read_backend, "direct": fs.direct,
        "direct_asked": on(b.direct), "dir": c.dir.display().to_string(), "key_size": c.key_size,
        "keys": c.keys, "threads": c.threads, "seconds": c.seconds, "ops": c.ops,
        "engines": c.engines.iter().map(|e| e.word()).collect::<Vec<_>>(),
        "seed": c.seed, "compressible": c.compressible, "memory_bytes": b.memory, "cache_bytes": b.cache,
        "write_buffer_bytes": b.write_buffer, "background_threads": b.background_threads,
        "filter_bits": b.filter_bits, "block_size": b.block_bytes(), "rocksdb_options": b.rocksdb_options,
        "tree_options": b.tree_options.iter().map(|o| o.as_str()).collect::<Vec<_>>(),
        "compression": format!("{:?}", b.compression).to_lowercase(), "sync": on(c.sync),
        "debug_build": cfg!(debug_assertions),
    })
}

struct Bench<'a> {
    workload: &'a Workload,
    common: &'a Common,
    data: Data,
    clock: Clock,
    counters: Counters,
    name: String,
    device: Option<Device>,
    progress: Progress,
    /// The engine that runs now.
    engine: EngineName,
}

/// The end of a workload.
#[derive(Clone, Copy)]
struct Until {
    time: Option<Duration>,
    ops: u64,
}

impl Bench<'_> {
    fn rows(&mut self, report: &mut Report) -> Result<(), Stop> {
        let wants_device = !self.common.no_device || matches!(self.workload, Workload::Device(_));
        if wants_device {
            self.device = Some(Device::new(
                &self.common.dir,
                DEVICE_FILE,
                self.common.budget.direct == Switch::On,
                self.common.seed,
                self.clock.clone(),
            )?);
        }
        let common = self.common;
        for &threads in &common.threads {
            if let Workload::Device(_) = self.workload {
                self.device_rows(threads, report)?;
                continue;
            }
            for &engine in &common.engines {
                self.engine = engine;
                let row = match self.workload {
                    Workload::DurablePut(_) => self.durable_put(threads)?,
                    _ => self.one(threads)?,
                };
                report.rows.push(row);
            }
        }
        Ok(())
    }

    /// Returns the sync mode of puts.
    fn log(&self) -> Log {
        match self.common.sync {
            Switch::On => Log::Synced,
            Switch::Off => Log::Unsynced,
        }
    }

    fn open(&self) -> Result<Arc<dyn Engine>, Stop> {
        let mut budget = self.common.budget.clone();
        let durable = matches!(self.workload, Workload::DurablePut(_));
        budget.store_use.synced = durable || self.common.sync == Switch::On;
        engine::open(self.engine, &self.common.dir, &self.name, &budget)
    }

    /// Closes the store and removes it, unless the flags keep it.
    fn close(&self, engine: Arc<dyn Engine>) -> Result<(), Stop> {
        engine.close()?;
        drop(engine);
        if !self.common.keep {
            let fs = host_directory(&self.common.dir, self.common.budget.direct)?;
            remove_tree(fs.as_ref(), Path::new(&self.name))?;
        }
        Ok(())
    }

    /// Runs `op` on `threads` threads. Operations are numbered over all threads.
    fn operate(
        &self,
        engine: &Arc<dyn Engine>,
        threads: usize,
        until: Until,
        salt: u64,
        op: Arc<Operation>,
    ) -> Result<(Measured, Tally), Stop> {
        let driver = Driver {
            clock: &self.clock,
            engine,
            data: &self.data,
            seed: self.common.seed ^ (salt << 32),
            added: &Arc::default(),
            progress: &self.progress,
        };
        let group = Group {
            threads,
            ops: until.ops,
            write_rate: 0,
            op,
        };
        let driven = driver.run(&[group], until.time)?.remove(0);
        Ok((driven.measured, driven.tally))
    }

    fn durable_put(&mut self, threads: usize) -> Result<Row, Stop> {
        let engine = self.open()?;
        let padded =
            engine.durable_put_bytes(self.common.key_size as usize, self.data.value_size());
        let op: Arc<Operation> = Arc::new(|w: &mut Worker, _| {
            let n = w.random.below(w.data.keys());
            w.put(n, Log::Synced)
        });
        // An engine writes the space of its first log before it uses it. That is startup cost, and
        // not part of the rate.
        let warm = Until {
            time: Some(SLICE / 2),
            ops: u64::MAX,
        };
        self.operate(&engine, threads, warm, 999, op.clone())?;
        reset_peak_rss();
        let (mut all, mut tally, mut device) =
            (Measured::default(), Tally::default(), Measured::default());
        let mut counts = Counts::zero();
        let limit = self.common.ops.unwrap_or(u64::MAX);
        let mut slice = 0;
        while all.time < Duration::from_secs(self.common.seconds) && all.ops < limit {
            if let Some(d) = &mut self.device {
                device.add(&d.synced_overwrites(padded, SLICE / 2)?);
            }
            let until = Until {
                time: Some(SLICE),
                ops: limit - all.ops,
            };
            slice += 1;
            let before = self.counters.read(engine.accounting().unwrap_or_default());
            let (m, t) = self.operate(&engine, threads, until, slice, op.clone())?;
            counts = counts.plus(
                &self
                    .counters
                    .read(engine.accounting().unwrap_or_default())
                    .since(&before),
            );
            if m.ops == 0 {
                return Err(Stop::new(
                    "no put was done in half a second; the device may be stuck",
                ));
            }
            all.add(&m);
            tally.write_bytes += t.write_bytes;
            if let Some(d) = &mut self.device {
                device.add(&d.synced_overwrites(padded, SLICE / 2)?);
            }
        }
        let mut more = Map::new();
        more.insert("padded_bytes".into(), json!(padded));
        more.insert(
            "puts_per_sync".into(),
            json!(round(all.ops as f64 / counts.fs.syncs.max(1) as f64)),
        );
        let row = Row {
            workload: self.workload.name().into(),
            engine: engine.name(),
            threads,
            user_bytes: tally.write_bytes,
            counts: Some(counts),
            space_amp: None,
            peak_rss: peak_rss(),
            device: (device.ops > 0).then(|| Yardstick {
                what: "synced overwrites into written space",
                engine_rate: device.rate(),
                measured: device,
            }),
            measured: all,
            more,
        };
        self.close(engine)?;
        Ok(row)
    }

    /// Puts every key once, in random order.
    fn fill(&self, engine: &Arc<dyn Engine>, threads: usize) -> Result<(Measured, Tally), Stop> {
        let log = self.log();
        let until = Until {
            time: None,
            ops: self.data.keys(),
        };
        let op = Arc::new(move |w: &mut Worker, n| w.put(w.data.shuffled(n), log));
        self.operate(engine, threads, until, 1, op)
    }

    /// Returns the measured operation.
    fn operation(&self) -> Arc<Operation> {
        let log = self.log();
        match self.workload {
            Workload::Fill(_)
            | Workload::Overwrite(_)
            | Workload::DurablePut(_)
            | Workload::Device(_) => Arc::new(move |w: &mut Worker, _| {
                let n = w.random.below(w.data.keys());
                w.put(n, log)
            }),
            Workload::Read { miss_percent, .. } => {
                let miss = u64::from(*miss_percent);
                Arc::new(move |w: &mut Worker, _| {
                    let n = w.random.below(w.data.keys());
                    let absent = miss > 0 && w.random.below(100) < miss;
                    w.get(
                        if absent { n + w.data.keys() } else { n },
                        Presence::Certain,
                    )
                })
            }
            Workload::Scan { scan_len, .. } => {
                let len = *scan_len;
                Arc::new(move |w: &mut Worker, _| {
                    let n = w.random.below(w.data.keys());
                    w.scan(n, len, Presence::Certain)
                })
            }
            Workload::Mixed { read_percent, .. } => {
                let read = u64::from(*read_percent);
                Arc::new(move |w: &mut Worker, _| {
                    let n = w.random.below(w.data.keys());
                    if w.random.below(100) < read {
                        w.get(n, Presence::Certain)
                    } else {
                        w.put(n, log)
                    }
                })
            }
        }
    }

    /// Runs any workload but `durable-put` and `device`.
    fn one(&mut self, threads: usize) -> Result<Row, Stop> {
        let mut engine = self.open()?;
        let mut more = Map::new();
        let is_fill = matches!(self.workload, Workload::Fill(_));
        if !is_fill {
            // The fill is not measured, and its puts are not synced one by one, in every mode of
            // the measured part.
            self.fill_quickly(&engine)?;
            engine.wait_idle()?;
        }
        if matches!(self.workload, Workload::Read { .. } | Workload::Scan { .. }) {
            engine.close()?;
            drop(engine);
            engine = self.open()?;
        }
        let writes = !matches!(self.workload, Workload::Read { .. } | Workload::Scan { .. });
        let mut device = self.beside(writes, threads)?;
        reset_peak_rss();
        let before = self.counters.read(engine.accounting().unwrap_or_default());
        let until = Until {
            time: Some(Duration::from_secs(self.common.seconds)),
            ops: self.common.ops.unwrap_or(u64::MAX),
        };
        let (measured, tally) = if is_fill {
            self.fill(&engine, threads)?
        } else {
            self.operate(&engine, threads, until, 2, self.operation())?
        };
        if writes {
            // The device bytes of the puts include the compactions that they cause.
            let start = self.clock.now();
            engine.wait_idle()?;
            more.insert(
                "settle_seconds".into(),
                json!(round((self.clock.now() - start).as_secs_f64())),
            );
        }
        let counts = self
            .counters
            .read(engine.accounting().unwrap_or_default())
            .since(&before);
        let rss = peak_rss();
        let after = self.beside(writes, threads)?;
        if let (Some(d), Some(after)) = (&mut device, &after) {
            d.add(after);
        }
        let live = self.data.live_bytes();
        let fs = host_directory(&self.common.dir, self.common.budget.direct)?;
        let disk = tree_bytes(fs.as_ref(), Path::new(&self.name))?;
        more.insert("log_space_bytes".into(), json!(engine.stats().log_bytes));
        match self.workload {
            Workload::Read { .. } => {
                more.insert("found".into(), json!(tally.found));
            }
            Workload::Scan { .. } => {
                more.insert("entries".into(), json!(tally.entries));
            }
            Workload::Mixed { .. } => {
                more.insert("puts".into(), json!(tally.puts));
                more.insert("user_write_bytes".into(), json!(tally.write_bytes));
            }
            _ => {}
        }
        if !writes {
            more.insert("puts".into(), json!(0));
        }
        let yardstick = device.filter(|d| d.ops > 0).map(|d| {
            if writes {
                // The rate at which the device alone could write the user's bytes once.
                let per_op = tally.write_bytes as f64 / measured.ops.max(1) as f64;
                Yardstick {
                    what: "sequential writes of 1 MiB",
                    engine_rate: d.rate() * SEQUENTIAL as f64 / per_op.max(1.0),
                    measured: d,
                }
            } else {
                Yardstick {
                    what: "random reads of 4 KiB by as many threads",
                    engine_rate: d.rate(),
                    measured: d,
                }
            }
        });
        let row = Row {
            workload: self.workload.name().into(),
            engine: engine.name(),
            threads,
            user_bytes: tally.write_bytes + tally.read_bytes,
            counts: Some(counts),
            space_amp: Some(disk as f64 / live.max(1) as f64),
            peak_rss: rss,
            device: yardstick,
            measured,
            more,
        };
        self.close(engine)?;
        Ok(row)
    }

    fn fill_quickly(&self, engine: &Arc<dyn Engine>) -> Result<(), Stop> {
        let until = Until {
            time: None,
            ops: self.data.keys(),
        };
        let op = Arc::new(|w: &mut Worker, n| w.put(w.data.shuffled(n), Log::Unsynced));
        self.operate(engine, 2, until, 1, op).map(|_| ())
    }

    /// Measures the device's own rate of the operation that limits a workload.
    fn beside(&mut self, writes: bool, threads: usize) -> Result<Option<Measured>, Stop> {
        let Some(device) = &mut self.device else {
            return Ok(None);
        };
        if writes {
            device.sequential_writes(DEVICE_PROBE).map(Some)
        } else {
            device.random_reads(threads, DEVICE_PROBE).map(Some)
        }
    }

    fn device_rows(&mut self, threads: usize, report: &mut Report) -> Result<(), Stop> {
        let time = Duration::from_secs(self.common.seconds.max(1)) / 3;
        let value = self.workload.value_size() as usize;
        // The log pads to whole sectors. The header of a value adds at most one sector.
        let padded = (value + self.common.key_size as usize).next_multiple_of(512);
        let counters = self.counters.clone();
        let Some(device) = &mut self.device else {
            return Ok(());
        };
        let mut row =
            |what: &str,
             len: usize,
             threads: usize,
             run: &mut dyn FnMut(&mut Device) -> Result<Measured, Stop>| {
                let before = counters.read(basalt::fs::FsStats::default());
                let measured = run(device)?;
                let mut counts = counters.read(basalt::fs::FsStats::default()).since(&before);
                let bytes = measured.ops * len as u64;
                if what == "random-read" {
                    (counts.fs.bytes_read, counts.fs.reads) = (bytes, measured.ops);
                } else {
                    (counts.fs.bytes_written, counts.fs.writes) = (bytes, measured.ops);
                }
                let mut more = Map::new();
                more.insert("bytes_per_op".into(), json!(len));
                more.insert("direct".into(), json!(device.direct));
                if what == "random-read" {
                    more.insert("puts".into(), json!(0));
                }
                report.rows.push(Row {
                    workload: what.into(),
                    engine: "device".into(),
                    threads,
                    user_bytes: bytes,
                    counts: Some(counts),
                    space_amp: None,
                    peak_rss: peak_rss(),
                    device: None,
                    measured,
                    more,
                });
                Ok::<(), Stop>(())
            };
        row("synced-overwrite", padded, 1, &mut |d| {
            d.synced_overwrites(padded, time)
        })?;
        row("sequential-write", SEQUENTIAL, 1, &mut |d| {
            d.sequential_writes(time)
        })?;
        row("random-read", RANDOM_READ, threads, &mut |d| {
            d.random_reads(threads, time)
        })
    }
}
