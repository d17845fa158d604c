//! One run of one log engine in a process of its own. So its memory, processor time and bytes are
//! those of this engine alone.

use super::args::LogArgs;
use super::store::{self, LogEngineName, LogStore};
use super::verify;
use super::workload::{Case, Holes, LogWorker, LogWorkload, Logs};
use crate::Stop;
use crate::cold_files::forget_tree;
use crate::compare::run::{merge, metrics};
use crate::compare::space::{SpaceSample, SpaceWatch};
use crate::counters::{Counters, Disk, Process, anonymous_rss, peak_rss, reset_peak_rss};
use crate::data::Data;
use crate::device::{Measured, SEQUENTIAL};
use crate::drive::{Driven, Group, Tally, run_groups};
use crate::engine::{Read, host_directory, tree_bytes};
use crate::progress::Progress;
use crate::report::round;
use crate::sizes::{Sizes, SizesAsked};
use basalt::env::{Clock, Histogram, Random};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The environment variable with the order of a comparison to the process of one run. The process
/// gets the same arguments besides.
pub(super) const ORDER: &str = "BASALT_BENCH_LOG_ORDER";

/// The content of a filled store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// Logs of a store that was closed.
    Closed,
    /// The same of a store whose process ended without a close.
    Crashed,
    /// One log with holes.
    Gaps,
}

impl Prepared {
    /// Returns a word for the name of the directory, and for orders.
    pub fn word(self) -> &'static str {
        match self {
            Prepared::Closed => "closed",
            Prepared::Crashed => "crashed",
            Prepared::Gaps => "gaps",
        }
    }
}

/// What a process does with its store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FillOrder {
    /// It fills the store and measures nothing.
    Prepare(Prepared),
    /// It measures.
    Measure,
}

/// An order to the process of one run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LogOrder {
    /// The engine.
    pub engine: LogEngineName,
    /// The workload.
    pub case: Case,
    /// The store's directory below `--dir`.
    pub store: String,
    /// What the process does.
    pub fill: FillOrder,
    /// Number of the pair that the run belongs to, from 0.
    pub pair: u64,
    /// Text at the head of the progress line.
    pub label: String,
}

impl LogOrder {
    /// Returns the order as text for the environment.
    pub fn text(&self) -> String {
        let prepare = match self.fill {
            FillOrder::Prepare(content) => Some(content.word()),
            FillOrder::Measure => None,
        };
        json!({
            "engine": self.engine.word(), "workload": self.case.workload.word(), "synced": self.case.synced,
            "threads": self.case.threads, "store": self.store, "prepare": prepare, "pair": self.pair, "label": self.label,
        })
        .to_string()
    }

    /// Parses an order from the text of [`LogOrder::text`].
    pub fn parse(text: &str) -> Result<LogOrder, Stop> {
        let bad = |what: &str| {
            Stop::new(format!(
                "{ORDER} is an internal variable and must not be set: {what}"
            ))
        };
        let v: Value = serde_json::from_str(text).map_err(|e| bad(&e.to_string()))?;
        let word = |name: &str| v[name].as_str().ok_or_else(|| bad(name));
        let all = [Prepared::Closed, Prepared::Crashed, Prepared::Gaps];
        let fill = match v["prepare"].as_str() {
            None => FillOrder::Measure,
            Some(word) => FillOrder::Prepare(
                (all.into_iter().find(|p| p.word() == word)).ok_or_else(|| bad("prepare"))?,
            ),
        };
        Ok(LogOrder {
            engine: LogEngineName::from_str(word("engine")?, true).map_err(|e| bad(&e))?,
            case: Case {
                workload: LogWorkload::parse(word("workload")?).map_err(|e| bad(&e))?,
                synced: v["synced"].as_bool().ok_or_else(|| bad("synced"))?,
                threads: v["threads"].as_u64().ok_or_else(|| bad("threads"))? as usize,
            },
            store: word("store")?.into(),
            fill,
            pair: v["pair"].as_u64().ok_or_else(|| bad("pair"))?,
            label: word("label")?.into(),
        })
    }
}

/// Carries out an order. Returns the results as one JSON object.
pub(super) fn run_one(args: &LogArgs, order: &LogOrder) -> Result<Value, Stop> {
    let case = &order.case;
    let size = args.record_size(case);
    let sizes = match case.workload.trims() && args.record_size.is_none() {
        true => SizesAsked::Uniform(256, size),
        false => SizesAsked::Fixed,
    };
    let data =
        Data::new(args.seed, 1 << 20, 8, size as usize, 0.0).with_sizes(Sizes::new(&sizes, size)?);
    let run = Run {
        args,
        order,
        data,
        clock: Clock::system(),
        progress: Progress::new(order.label.clone()),
        logs: Arc::new(Logs::new(case.logs(args))),
    };
    match order.fill {
        FillOrder::Prepare(content) => run.prepare(content),
        FillOrder::Measure => run.measure(),
    }
}

/// A point from which the counters of a run are read.
struct Start {
    process: Process,
    own: Option<basalt::fs::FsStats>,
    disk: Option<Disk>,
}

struct Run<'a> {
    args: &'a LogArgs,
    order: &'a LogOrder,
    data: Data,
    clock: Clock,
    progress: Progress,
    logs: Arc<Logs>,
}

impl Run<'_> {
    fn open(&self) -> Result<Arc<dyn LogStore>, Stop> {
        let args = self.args;
        store::open(
            self.order.engine,
            &args.dir,
            &self.order.store,
            self.logs.len(),
            &args.budget,
        )
    }

    fn worker(&self, store: &Arc<dyn LogStore>, salt: u64, thread: u64, threads: u64) -> LogWorker {
        // All engines of a pair get the same operations. Another pair gets others.
        let seed = self.args.seed ^ (salt << 52) ^ (self.order.pair << 56) ^ (thread << 20);
        LogWorker {
            random: Random::from_seed(seed),
            data: self.data.clone(),
            store: store.clone(),
            logs: self.logs.clone(),
            thread,
            threads,
            tally: Tally::default(),
            record: Vec::new(),
            batch: Vec::new(),
            holes: self.holes(),
        }
    }

    fn holes(&self) -> Holes {
        Holes::new(self.args.scaled(self.args.records, 1))
    }

    fn drive(
        &self,
        store: &Arc<dyn LogStore>,
        salt: u64,
        groups: &[Group<LogWorker>],
        time: Option<Duration>,
    ) -> Result<Vec<Driven>, Stop> {
        let threads = |g: u64| groups[g as usize].threads as u64;
        run_groups(&self.clock, &self.progress, groups, time, &|g, t| {
            self.worker(store, salt + g, t, threads(g))
        })
    }

    /// Returns the records of each log of a filled store.
    fn records_of_log(&self) -> u64 {
        let records = self.args.scaled(self.args.records, 1);
        records.div_ceil(self.logs.len())
    }

    /// Fills a store, and closes it if it is to be closed.
    fn prepare(&self, content: Prepared) -> Result<Value, Stop> {
        let start = self.clock.now();
        let store = self.open()?;
        let mut worker = self.worker(&store, 1, 0, 1);
        match content {
            Prepared::Gaps => worker.fill_with_holes()?,
            Prepared::Closed | Prepared::Crashed => {
                // Logs grow together, so that records of all of them lie side by side.
                let each = self.records_of_log() - 1;
                let mut left = each;
                while left > 0 {
                    let n = left.min(64);
                    for log in 0..self.logs.len() {
                        worker.append_many(log, n)?;
                    }
                    left -= n;
                }
                for log in 0..self.logs.len() {
                    worker.append(log, true)?;
                }
            }
        }
        if content == Prepared::Crashed {
            // The process ends with the store open. So the next open is a recovery.
            std::mem::forget(store);
        } else {
            store.close()?;
        }
        Ok(json!({
            "prepared_seconds": round((self.clock.now() - start).as_secs_f64()),
        }))
    }

    /// Brings logs and caches to the state of a long run.
    fn warm(&self, store: &Arc<dyn LogStore>, groups: &[Group<LogWorker>]) -> Result<(), Stop> {
        let case = &self.order.case;
        let mut worker = self.worker(store, 2, 0, 1);
        if case.workload.is_of_writers() {
            let fill = self.args.scaled(self.args.fill, 1);
            while worker.tally.write_bytes < fill {
                for log in 0..self.logs.len() {
                    worker.append_many(log, 64)?;
                    worker.trim_behind(log, 1024)?;
                }
            }
            store.maintain()?;
        }
        if case.workload.trims() {
            for log in 0..self.logs.len() {
                worker.append_many(log, self.args.behind)?;
            }
        }
        let warms = case.workload.appends() || case.workload == LogWorkload::Read;
        if warms && self.args.warm > 0 {
            self.drive(store, 4, groups, Some(Duration::from_secs(self.args.warm)))?;
        }
        Ok(())
    }

    fn start(&self, store: &dyn LogStore) -> Start {
        Start {
            process: Process::now(),
            own: store.accounting(),
            disk: self.disk(),
        }
    }

    fn disk(&self) -> Option<Disk> {
        let counters = Counters::new(&self.args.dir);
        counters.disk().filter(|_| self.args.block_device)
    }

    fn measure(&self) -> Result<Value, Stop> {
        let case = &self.order.case;
        reset_peak_rss();
        let before_open = self.clock.now();
        let counted_before = Process::now();
        let store = self.open()?;
        if case.workload == LogWorkload::Recover {
            store.load()?;
            let took = self.clock.now() - before_open;
            return self.recovered(store, took, counted_before);
        }
        let empty_rss = anonymous_rss();
        let fs = host_directory(&self.args.dir, self.args.budget.direct)?;
        let reads_filled = matches!(case.workload, LogWorkload::Read | LogWorkload::Iterate);
        if reads_filled {
            self.expect_filled();
        }
        let groups = case.groups(self.args, &self.clock);
        self.warm(&store, &groups)?;
        if reads_filled {
            // Engines that read all of their files in the open would find them in the page cache.
            forget_tree(fs.as_ref(), &self.args.dir, Path::new(&self.order.store))?;
        }
        let start = self.start(store.as_ref());
        let logs = self.logs.clone();
        let live = move || logs.live_bytes.load(Relaxed);
        let watched = case
            .workload
            .trims()
            .then(|| SpaceWatch::begin(fs.clone(), &self.order.store, live))
            .transpose()?;
        let time = match case.workload {
            LogWorkload::Iterate | LogWorkload::Gaps => None,
            _ => Some(Duration::from_secs(self.args.seconds)),
        };
        let lead = self.drive(&store, 6, &groups, time)?.remove(0);
        let samples = watched.map_or_else(Vec::new, SpaceWatch::end);
        let at_end = Process::now().since(&start.process);
        let own_at_end = store.accounting();
        let rss = anonymous_rss();
        let index_bytes = store.index_bytes();
        let live_bytes = self.logs.live_bytes.load(Relaxed);
        let (name, configuration, reads) = (store.name(), store.configuration(), store.reads());
        if case.workload.appends() {
            verify::check(&mut self.worker(&store, 7, 0, 1))?;
        }
        store.close()?;
        let own_at_close = store.accounting();
        drop(store);
        let whole = Process::now().since(&start.process);
        let device = self.disk().zip(start.disk).map(|(now, then)| Disk {
            reads: now.reads - then.reads,
            read_bytes: now.read_bytes - then.read_bytes,
            write_bytes: now.write_bytes - then.write_bytes,
        });
        let device_reads = match (case.workload, reads, start.own, own_at_end) {
            (LogWorkload::Read, Read::Counted, Some(then), Some(now)) => {
                Some(now.reads - then.reads)
            }
            (LogWorkload::Read, Read::Calls, ..) => Some(at_end.read_calls),
            _ => None,
        };
        let own = start.own.zip(own_at_close);
        let prewritten = own.map(|(then, now)| now.bytes_prewritten - then.bytes_prewritten);
        let own_written = own.map(|(then, now)| now.bytes_written - then.bytes_written);
        let own_written = own_written.zip(prewritten).map(|(a, b)| a + b);
        let put_bytes = lead.tally.write_bytes;
        let units = self.units(&lead);
        let per_put = |bytes: u64| (put_bytes > 0).then(|| round(bytes as f64 / put_bytes as f64));
        let per_op = |n: u64| round(n as f64 / units.max(1) as f64);
        let a_live_byte = |bytes: Option<u64>| {
            let of_trimmed = bytes.filter(|_| case.workload.trims() && live_bytes > 0);
            of_trimmed.map(|b| (b as f64 / live_bytes as f64 * 1e6).round() / 1e6)
        };
        let grown = rss
            .zip(empty_rss)
            .map(|(now, then)| now.saturating_sub(then));
        let amps: Vec<f64> = samples.iter().map(space_amp).collect();
        let seconds = lead.measured.time.as_secs_f64().max(1e-9);
        let user_bytes = put_bytes + lead.tally.read_bytes;
        let mut row = self.row(&lead, name, configuration);
        let more = json!({
            "user_bytes": user_bytes,
            "user_mb_per_s": (user_bytes > 0).then(|| round(user_bytes as f64 / 1e6 / seconds)),
            "put_bytes": put_bytes,
            "device_write_bytes": whole.write_bytes,
            "device_read_bytes": whole.read_bytes,
            "device_reads": device_reads,
            "device_reads_per_op": device_reads.map(per_op),
            "device_read_bytes_per_op": reads_filled.then(|| per_op(at_end.read_bytes)),
            "engine_write_bytes": own_written,
            "engine_prewritten_bytes": prewritten,
            "block_device_write_bytes": device.map(|d| d.write_bytes),
            "block_device_read_bytes": device.map(|d| d.read_bytes),
            "block_device_reads": device.map(|d| d.reads),
            "write_amp": per_put(whole.write_bytes),
            "block_device_write_amp": device.and_then(|d| per_put(d.write_bytes)),
            "space_amp_samples": amps,
            "space_amp_max": amps.iter().copied().max_by(f64::total_cmp),
            "disk_bytes": tree_bytes(fs.as_ref(), Path::new(&self.order.store))?,
            "live_bytes": case.workload.trims().then_some(live_bytes),
            "index_bytes": index_bytes,
            "memory_per_live_byte": a_live_byte(index_bytes),
            "rss_per_live_byte": a_live_byte(grown),
            "cpu_seconds": at_end.cpu_ms as f64 / 1e3,
            "cpu_us_per_op": round(at_end.cpu_ms as f64 * 1e3 / units.max(1) as f64),
        });
        merge(&mut row, more);
        Ok(row)
    }

    /// Returns the fields that all rows have.
    fn row(&self, lead: &Driven, name: String, configuration: Value) -> Value {
        let case = &self.order.case;
        let mut row = metrics(lead, self.units(lead));
        merge(
            &mut row,
            json!({
                "workload": case.name(), "engine": name, "threads": case.threads, "pair": self.order.pair,
                "logs": self.logs.len(), "peak_rss_bytes": peak_rss(), "entries": lead.tally.entries,
                "configuration": configuration,
            }),
        );
        row
    }

    /// Returns the number that rates count: operations, or MiB of an iteration.
    fn units(&self, d: &Driven) -> u64 {
        match self.order.case.workload {
            LogWorkload::Iterate => (d.tally.read_bytes / SEQUENTIAL as u64).max(1),
            _ => d.measured.ops,
        }
    }

    /// Makes the records of a filled store the expected ones.
    fn expect_filled(&self) {
        for log in 0..self.logs.len() {
            let next = self.records_of_log() + 1;
            self.logs.log(log).next.store(next, Relaxed);
        }
    }

    /// Returns the results of a recovery that took `took`, after all records were compared.
    fn recovered(
        &self,
        store: Arc<dyn LogStore>,
        took: Duration,
        before: Process,
    ) -> Result<Value, Stop> {
        let counted = Process::now().since(&before);
        let peak = peak_rss();
        self.expect_filled();
        let mut worker = self.worker(&store, 8, 0, 1);
        for log in 0..self.logs.len() {
            verify::bounds(&worker, log)?;
            worker.iterate(log)?;
        }
        let latency = Histogram::default();
        latency.record(took.as_nanos() as u64);
        let lead = Driven {
            measured: Measured {
                ops: 1,
                time: took,
                latency,
            },
            ..Driven::default()
        };
        let mut row = self.row(&lead, store.name(), store.configuration());
        let more = json!({
            "records": self.records_of_log() * self.logs.len(),
            "live_bytes": worker.tally.read_bytes,
            "device_read_bytes": counted.read_bytes,
            "device_write_bytes": counted.write_bytes,
            "cpu_seconds": counted.cpu_ms as f64 / 1e3,
            "index_bytes": store.index_bytes(),
            "peak_rss_bytes": peak,
        });
        merge(&mut row, more);
        store.close()?;
        Ok(row)
    }
}

fn space_amp(sample: &SpaceSample) -> f64 {
    round(sample.disk_bytes as f64 / sample.live_bytes.max(1) as f64)
}

#[cfg(test)]
mod tests;
