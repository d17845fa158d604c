//! One run of one engine in a process of its own. So its memory, processor time and bytes are those
//! of this engine alone.

use super::restart::NO_CHECKPOINT;
use super::space::SpaceWatch;
use super::{Kind, RunRequest, page_metrics};
use crate::Stop;
use crate::counters::{Counters, Disk, Process, peak_rss, reset_peak_rss};
use crate::data::Data;
use crate::drive::{Driven, Driver, Group, Presence, Worker};
use crate::engine::{self, Engine, EngineName, Log, Read, StoreUse, host_directory, tree_bytes};
use crate::flags::Switch;
use crate::pick::Distribution;
use crate::progress::Progress;
use crate::report::round;
use crate::sizes::Sizes;
use crate::statistics::relative_deviation;
use basalt::env::{Clock, Histogram};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The environment variable with the order of a comparison to the process of one run. The process
/// gets the same arguments besides.
pub const ORDER: &str = "BASALT_BENCH_ORDER";

/// Overwrites of each key before a steady run.
const STEADY: u64 = 3;
/// Write buffers that are filled before durable puts are measured, so that engines that recycle
/// logs are recycling them.
const WARM_BUFFERS: u64 = 6;
/// Puts in a batch of that fill.
const WARM_BATCH: u64 = 100;
/// A store that fits into the cache is read whole before it is measured, for at most this time.
const WARM_ALL: Duration = Duration::from_secs(120);

/// Seconds without a running compaction after which a warm-up ends. A compaction that the reads
/// caused may still be waiting to begin.
const WARM_QUIET: u64 = 5;
/// The longest warm-up for compactions, in seconds.
const WARM_WAIT: u64 = 90;

/// An order to the process of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// The engine.
    pub engine: EngineName,
    /// The workload.
    pub kind: Kind,
    /// Threads of the first group.
    pub threads: usize,
    /// The store's directory below `--dir`.
    pub store: String,
    /// True if the process makes a filled store and measures nothing. In `restart` it does not
    /// close the store, and waits to be killed.
    pub prepare: bool,
    /// Number of the pair that the run belongs to, from 0.
    pub pair: u64,
    /// Text at the head of the progress line.
    pub label: String,
}

impl Order {
    /// Returns the directory of an export of the store. Each run has its own, and the directory
    /// stays until all runs have ended. A filesystem may search long among inodes that were just
    /// freed: ext4 without a journal skips them for a minute. Only the second run would pay for
    /// that.
    pub fn export(&self) -> String {
        format!("{}-export-{}-{}", self.store, self.engine.word(), self.pair)
    }

    /// Returns the order as text for the environment.
    pub fn text(&self) -> String {
        json!({
            "engine": self.engine.word(), "kind": self.kind.word(), "threads": self.threads, "store": self.store,
            "prepare": self.prepare, "pair": self.pair, "label": self.label,
        })
        .to_string()
    }

    /// Parses an order from the text of [`Order::text`].
    pub fn parse(text: &str) -> Result<Order, Stop> {
        let bad = |what: &str| {
            Stop::new(format!(
                "{ORDER} is an internal variable and must not be set: {what}"
            ))
        };
        let v: Value = serde_json::from_str(text).map_err(|e| bad(&e.to_string()))?;
        let word = |name: &str| v[name].as_str().ok_or_else(|| bad(name));
        Ok(Order {
            engine: EngineName::from_str(word("engine")?, true).map_err(|e| bad(&e))?,
            kind: Kind::from_str(word("kind")?, true).map_err(|e| bad(&e))?,
            threads: v["threads"].as_u64().ok_or_else(|| bad("threads"))? as usize,
            store: word("store")?.into(),
            prepare: v["prepare"].as_bool().ok_or_else(|| bad("prepare"))?,
            pair: v["pair"].as_u64().ok_or_else(|| bad("pair"))?,
            label: word("label")?.into(),
        })
    }
}

/// Carries out an order. Returns the results as one JSON object.
pub fn run_one(asked: &RunRequest, order: &Order) -> Result<Value, Stop> {
    let args = asked.args;
    let common = &args.common;
    let value_size = common.value_size.unwrap_or(order.kind.value_size());
    let data = Data::new(
        common.seed,
        common.keys,
        common.key_size as usize,
        value_size as usize,
        common.compressible,
    )
    .with_sizes(Sizes::new(&args.value_sizes, value_size)?)
    .with_random_keys(args.random_keys);
    let run = Run {
        asked,
        order,
        data,
        clock: Clock::system(),
        added: Arc::default(),
        progress: Progress::new(order.label.clone()),
    };
    let mut budget = common.budget.clone();
    budget.store_use = StoreUse {
        synced: common.sync == Switch::On || order.kind.is_durable_put(),
        reopened: order.prepare,
    };
    if order.kind == Kind::Restart {
        budget.checkpoint_bytes.get_or_insert(NO_CHECKPOINT);
        if !order.prepare {
            return run.restart(&budget);
        }
    }
    let engine = engine::open(order.engine, &common.dir, &order.store, &budget)?;
    match order.prepare {
        true if order.kind == Kind::Restart => run.load_and_wait(&engine),
        true => run.prepare(&engine),
        false => run.measure(engine),
    }
}

/// The state of one run.
pub(super) struct Run<'a> {
    pub(super) asked: &'a RunRequest<'a>,
    pub(super) order: &'a Order,
    pub(super) data: Data,
    pub(super) clock: Clock,
    added: Arc<AtomicU64>,
    progress: Progress,
}

impl Run<'_> {
    /// Runs groups at once until the first is done or `time` is over. Another `salt` gives other
    /// operations.
    pub(super) fn drive(
        &self,
        engine: &Arc<dyn Engine>,
        salt: u64,
        groups: &[Group],
        time: Option<Duration>,
    ) -> Result<Vec<Driven>, Stop> {
        let driver = Driver {
            clock: &self.clock,
            engine,
            data: &self.data,
            // Both engines of a pair get the same operations. Another pair gets others.
            seed: self.asked.args.common.seed ^ (salt << 52) ^ (self.order.pair << 56),
            added: &self.added,
            progress: &self.progress,
        };
        driver.run(groups, time)
    }

    /// Fills a store with every key, overwrites it as often as a steady run needs, waits until it
    /// is idle, and closes it.
    fn prepare(&self, engine: &Arc<dyn Engine>) -> Result<Value, Stop> {
        let start = self.clock.now();
        let keys = self.data.keys();
        let group = |ops, op: fn(&mut Worker, u64) -> Result<(), Stop>| Group {
            threads: 2,
            ops,
            write_rate: 0,
            op: Arc::new(op),
        };
        let fill = group(keys, |w, n| w.put(w.data.shuffled(n), Log::Unsynced));
        self.drive(engine, 1, &[fill], None)?;
        if self.asked.args.steady {
            let over = group(keys * STEADY, |w, _| {
                let n = w.random.below(w.data.keys());
                w.put(n, Log::Unsynced)
            });
            self.drive(engine, 2, &[over], None)?;
        }
        engine.wait_idle()?;
        engine.close()?;
        Ok(json!({
            "prepared_seconds": round((self.clock.now() - start).as_secs_f64()),
        }))
    }

    /// Warms caches and logs up to the state of a long run.
    fn warm(&self, engine: &Arc<dyn Engine>, groups: &[Group]) -> Result<(), Stop> {
        let kind = self.order.kind;
        if matches!(kind, Kind::FolderLoad | Kind::FolderBulk) {
            // From here on all files are in memory, or none. The first engine that loads them does
            // not pay for the second.
            let folder = self.asked.folder();
            for n in 0..folder.len() {
                folder.read(n)?;
            }
        }
        if kind == Kind::FolderExport {
            let folder = self.asked.folder().clone();
            let load = Group {
                threads: 1,
                ops: folder.len() as u64,
                write_rate: 0,
                op: Arc::new(move |w: &mut Worker, n| {
                    let (key, content) = folder.read(n as usize)?;
                    w.put_entry(&key, &content, Log::Unsynced)
                }),
            };
            self.drive(engine, 3, &[load], None)?;
            return engine.wait_idle();
        }
        if kind == Kind::DurablePut {
            let budget = &self.asked.args.common.budget;
            let entry = self.asked.args.common.key_size + self.data.value_size() as u64;
            let cyclic = self.asked.args.distribution == Some(Distribution::Cyclic);
            // Keys are overwritten in turn until all data was overwritten twice. So space is reused
            // from the first measured put on.
            let rounds = if cyclic { 3 * self.data.keys() } else { 0 };
            let puts = rounds.max(WARM_BUFFERS * budget.write_buffer / entry.max(1));
            // The puts come in batches, because mace syncs each commit of this run.
            let fill = Group {
                threads: 1,
                ops: puts.div_ceil(WARM_BATCH),
                write_rate: 0,
                op: Arc::new(move |w: &mut Worker, n| {
                    let data = w.data.clone();
                    let random = w.random.clone();
                    let numbers = n * WARM_BATCH..(n + 1) * WARM_BATCH;
                    let numbers = numbers.map(|n| match cyclic {
                        true => data.shuffled(n),
                        false => random.below(data.keys()),
                    });
                    w.put_batch(numbers, Log::Unsynced)
                }),
            };
            self.drive(engine, 3, &[fill], None)?;
            return engine.wait_idle();
        }
        if !kind.reads() {
            return Ok(());
        }
        if !kind.writes() && self.data.live_bytes() < self.asked.args.common.budget.cache {
            let all = Group {
                threads: 2,
                ops: self.data.keys(),
                write_rate: 0,
                op: Arc::new(|w: &mut Worker, n| w.get(w.data.shuffled(n), Presence::Certain)),
            };
            self.drive(engine, 4, &[all], Some(WARM_ALL))?;
        }
        let time = Duration::from_secs(self.asked.args.warm);
        self.drive(engine, 5, groups, Some(time))?;
        // Work that the reads themselves cause, such as a merge for lookups, ends before the
        // measurement. Beside a writer there is no such moment.
        let (mut quiet, mut second) = (0, 0);
        while !kind.writes() && quiet < WARM_QUIET.min(self.asked.args.warm) && second < WARM_WAIT {
            second += 1;
            self.drive(engine, 1000 + second, groups, Some(Duration::from_secs(1)))?;
            quiet = match engine.stats().compactions {
                Some(n) if n > 0 => 0,
                _ => quiet + 1,
            };
        }
        Ok(())
    }

    fn measure(&self, engine: Arc<dyn Engine>) -> Result<Value, Stop> {
        let kind = self.order.kind;
        let common = &self.asked.args.common;
        let groups = kind.groups(self.asked);
        let (_, time) = kind.until(self.asked);
        self.warm(&engine, &groups)?;
        let counters = Counters::new(&common.dir);
        let disk = || counters.disk().filter(|_| self.asked.args.block_device);
        reset_peak_rss();
        let (stats, own) = (engine.stats(), engine.accounting());
        let (process, device) = (Process::now(), disk());
        let fs = host_directory(&common.dir, common.budget.direct)?;
        let watched = kind
            .writes()
            .then(|| SpaceWatch::begin(fs.clone(), &self.order.store, || 0));
        let watched = watched.transpose()?;
        let mut driven = self.drive(&engine, 6, &groups, time)?;
        let samples = watched.map_or_else(Vec::new, SpaceWatch::end);
        let samples: Vec<u64> = samples.iter().map(|s| s.disk_bytes).collect();
        let at_end = Process::now().since(&process);
        let own_at_end = engine.accounting();
        let stats_at_end = engine.stats();
        let ended = self.clock.now();
        if kind == Kind::Load {
            engine.compact()?;
        }
        if kind.writes() {
            engine.wait_idle()?;
        }
        let settled = self.clock.now();
        let stats_settled = engine.stats();
        let (name, configuration, reads) = (engine.name(), engine.configuration(), engine.reads());
        engine.close()?;
        let own_at_close = engine.accounting();
        drop(engine);
        let whole = Process::now().since(&process);
        let device = disk().zip(device).map(|(now, then)| Disk {
            reads: now.reads - then.reads,
            read_bytes: now.read_bytes - then.read_bytes,
            write_bytes: now.write_bytes - then.write_bytes,
        });
        let on_disk = tree_bytes(fs.as_ref(), Path::new(&self.order.store))?;
        let beside = (driven.len() > 1).then(|| driven.remove(1));
        let lead = driven.remove(0);
        let put_bytes = lead.tally.write_bytes + beside.as_ref().map_or(0, |b| b.tally.write_bytes);
        let ops = self.units(&lead);
        let per_put = |bytes: u64| (put_bytes > 0).then(|| round(bytes as f64 / put_bytes as f64));
        let per_op = |n: u64| round(n as f64 / ops.max(1) as f64);
        // Reads of the device count only in runs that only read, so that reads of compactions are
        // not among them.
        let device_reads = match (kind.writes(), reads, own, own_at_end) {
            (true, ..) => None,
            (_, Read::Counted, Some(then), Some(now)) => Some(now.reads - then.reads),
            (_, Read::Calls, ..) => Some(at_end.read_calls),
            _ => None,
        };
        let own_written = own.zip(own_at_close).map(|(then, now)| {
            now.bytes_written + now.bytes_prewritten - then.bytes_written - then.bytes_prewritten
        });
        let prewritten = own
            .zip(own_at_close)
            .map(|(then, now)| now.bytes_prewritten - then.bytes_prewritten);
        let stalled = stats_at_end
            .stall_us
            .zip(stats.stall_us)
            .map(|(now, then)| round((now - then) as f64 / 1e6));
        // The highest value after the first seconds, which are the warm-up of runs that write.
        let warm = (self.asked.args.warm as usize).min(samples.len().saturating_sub(1));
        let most = samples.iter().skip(warm).max().copied();
        let amps: Vec<Option<f64>> = samples.iter().map(|b| self.space_amp(*b)).collect();
        let mut row = self.metrics(&lead);
        let seconds = lead.measured.time + (settled - ended);
        let more = json!({
            "workload": kind.word(), "engine": name, "threads": self.order.threads, "pair": self.order.pair,
            "user_bytes": put_bytes + lead.tally.read_bytes,
            "put_bytes": put_bytes,
            "device_write_bytes": whole.write_bytes,
            "device_read_bytes": whole.read_bytes,
            "device_reads": device_reads,
            "device_reads_per_op": device_reads.map(per_op),
            "device_read_bytes_per_op": per_op(at_end.read_bytes),
            "engine_write_bytes": own_written,
            "engine_prewritten_bytes": prewritten,
            "block_device_write_bytes": device.map(|d| d.write_bytes),
            "block_device_read_bytes": device.map(|d| d.read_bytes),
            "block_device_reads": device.map(|d| d.reads),
            "write_amp": per_put(whole.write_bytes),
            "block_device_write_amp": device.and_then(|d| per_put(d.write_bytes)),
            "space_amp": self.space_amp(on_disk),
            "space_amp_samples": amps,
            "space_amp_max": most.and_then(|b| self.space_amp(b)),
            "seconds_settled": round(seconds.as_secs_f64()),
            "disk_bytes": on_disk,
            "log_space_bytes": stats_settled.log_bytes,
            "cpu_seconds": at_end.cpu_ms as f64 / 1e3,
            "cpu_seconds_settled": whole.cpu_ms as f64 / 1e3,
            "cpu_us_per_op": round(at_end.cpu_ms as f64 * 1e3 / ops.max(1) as f64),
            "peak_rss_bytes": peak_rss(),
            "stall_seconds": stalled,
            "debt_bytes_start": stats.compaction_debt,
            "debt_bytes_end": stats_at_end.compaction_debt,
            "debt_bytes_settled": stats_settled.compaction_debt,
            "settle_seconds": round((settled - ended).as_secs_f64()),
            "found": lead.tally.found,
            "entries": lead.tally.entries,
            "beside": beside.as_ref().map(|b| self.metrics(b)),
            "configuration": configuration,
        });
        merge(&mut row, more);
        let (before, after) = (stats.pages.as_ref(), stats_settled.pages.as_ref());
        merge(&mut row, page_metrics(before, after, put_bytes));
        Ok(row)
    }

    /// Returns the number that rates count: operations, or the entries of batches.
    fn units(&self, d: &Driven) -> u64 {
        match self.order.kind.is_batched() {
            true => d.tally.puts + d.tally.gets,
            false => d.measured.ops,
        }
    }

    /// Returns the bytes on disk for each live byte, or `None` if the live bytes are not known.
    fn space_amp(&self, on_disk: u64) -> Option<f64> {
        let known = !matches!(
            self.order.kind,
            Kind::State | Kind::DurablePut | Kind::YcsbD | Kind::YcsbE
        );
        let live = match self.order.kind.is_of_folder() {
            true => self.asked.folder().bytes(),
            false => self.data.live_bytes(),
        };
        known.then(|| round(on_disk as f64 / live.max(1) as f64))
    }

    fn metrics(&self, d: &Driven) -> Value {
        metrics(d, self.units(d))
    }
}

/// Returns the rate, the latency and the windows of a group. Rates count `units`.
pub fn metrics(d: &Driven, units: u64) -> Value {
    let m = &d.measured;
    let seconds = m.time.as_secs_f64().max(1e-9);
    let each = units as f64 / m.ops.max(1) as f64;
    let windows: Vec<f64> = d.whole_windows().iter().map(|n| n * each).collect();
    let us = |q| round(m.latency.quantile(q) as f64 / 1e3);
    json!({
        "ops": units,
        "seconds": round(seconds),
        "ops_per_s": round(units as f64 / seconds),
        "mean_us": round(m.latency.sum() as f64 / 1e3 / m.ops.max(1) as f64),
        "p50_us": us(0.5),
        "p99_us": us(0.99),
        "p999_us": us(0.999),
        "p9999_us": us(0.9999),
        "max_us": round(m.latency.max() as f64 / 1e3),
        "latency_us": curve(&m.latency),
        "window_deviation": relative_deviation(&windows).map(round),
        "window_deviation_percent": relative_deviation(&windows).map(|d| round(100.0 * d)),
        "windows": windows.iter().map(|n| n.round()).collect::<Vec<_>>(),
        "puts": d.tally.puts,
        "gets": d.tally.gets,
    })
}

/// Returns the latency at rising quantiles, as the points of a curve.
fn curve(latency: &Histogram) -> Vec<(f64, f64)> {
    [
        0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0,
    ]
    .iter()
    .map(|&q| (q, round(latency.quantile(q) as f64 / 1e3)))
    .collect()
}

/// Adds the fields of one object to another.
pub fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}
