//! Comparison of filesystems: LavaFS in an image, the kernel's filesystem that the image lies on,
//! and others, by the calls that engines make.
//!
//! Slices of each filesystem take turns (A B B A), so that drift of the device is the same for all.
//! Bytes are those of the block device's counters, which include other processes. Run it on a quiet
//! machine.

mod target;
mod work;

use crate::Stop;
use crate::device::{Device, Measured};
use crate::flags::parse_size;
use crate::machine;
use crate::progress::Progress;
use crate::statistics::{Ratio, median, ratio};
use basalt::env::Clock;
use basalt::fs::Intent;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;
use target::Target;

/// The flags of a comparison of filesystems.
#[derive(clap::Args, Debug, Clone)]
pub struct FsArgs {
    /// Run these measurements [default: all of them]
    #[arg(value_enum, value_name = "WORK")]
    pub works: Vec<Work>,
    /// Make an image and a directory beside it here; both are removed afterwards
    #[arg(long, value_name = "DIR", default_value = "./bench-data")]
    pub dir: PathBuf,
    /// Measure these directories of other kernel filesystems, too
    #[arg(long, value_name = "DIR,...", value_delimiter = ',')]
    pub also: Vec<PathBuf>,
    /// Run this many slices of each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub pairs: u64,
    /// Run a slice for this many seconds
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Make the image this many bytes long
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = parse_size)]
    pub image_size: u64,
    /// Use an empty image or device of `basalt fs format` instead of a new image
    #[arg(long, value_name = "FILE|DEVICE")]
    pub image: Option<PathBuf>,
    /// Make the image without writing its space
    #[arg(long)]
    pub sparse: bool,
    /// Append this many bytes in a slice of `writers`, all writers together; `reads` finds as many
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_size)]
    pub bytes: u64,
    /// Sync this many times in `sync-tail`
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub syncs: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

/// A measurement of filesystems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Append 4 KiB, each synced without its length, to files of 256 MB
    AppendSync,
    /// Append 4 KiB, each synced with its length, to files of 256 MB
    AppendSyncAll,
    /// Append 4 KiB to 512 KiB at a time from 16 threads, each to a file of its own, with a sync at
    /// the end: each append directly, and in bulk
    Writers,
    /// Read 4 KiB at random offsets from 1 and from 20 threads
    Reads,
    /// Make and remove files, with both steps durable: empty ones, with 4 KiB in them, and from 16
    /// threads
    SmallFiles,
    /// Append 4 KiB with a sync while checkpoints are written every second, and while none are
    /// (LavaFS alone)
    SyncTail,
    /// Open the image after a crash with 100,000 files in it (LavaFS alone)
    Mount,
}

/// One slice of a measurement.
#[derive(Clone, Default)]
pub(crate) struct Slice {
    pub measured: Measured,
    /// Bytes that were appended.
    pub bytes: u64,
    /// Bytes that the block device wrote.
    pub device: Option<u64>,
}

/// A line of the report: one measurement on each target.
pub(crate) struct Row {
    name: String,
    /// Slices by target, in the order of the targets.
    slices: Vec<(String, Vec<Slice>)>,
}

impl Row {
    fn of(&self, target: usize, f: impl Fn(&Slice) -> f64) -> Vec<f64> {
        self.slices[target].1.iter().map(f).collect()
    }

    /// Returns the ratio of the first target to another one.
    fn ratio(&self, other: usize, f: impl Fn(&Slice) -> f64 + Copy) -> Option<Ratio> {
        let pairs: Vec<(f64, f64)> = (self.of(0, f).into_iter()).zip(self.of(other, f)).collect();
        ratio(&pairs)
    }

    fn merged(&self, target: usize) -> Slice {
        let mut all = Slice {
            device: Some(0),
            ..Slice::default()
        };
        for s in &self.slices[target].1 {
            all.measured.add(&s.measured);
            all.bytes += s.bytes;
            all.device = all.device.zip(s.device).map(|(a, b)| a + b);
        }
        all
    }

    fn a_byte(slice: &Slice) -> Option<f64> {
        (slice.bytes > 0).then(|| slice.device.map(|d| d as f64 / slice.bytes as f64))?
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Runs `basalt-bench fs`.
pub fn run(args: &FsArgs) -> Result<String, Stop> {
    let works = match args.works.is_empty() {
        true => Work::value_variants().to_vec(),
        false => args.works.clone(),
    };
    let clock = Clock::system();
    let mut targets = target::all(args)?;
    let mut rows = Vec::new();
    let done = (|| {
        for work in works {
            measure(args, work, &mut targets, &clock, &mut rows)?;
        }
        Ok(())
    })();
    let machine = machine::describe(&args.dir);
    let descriptions: Vec<String> = targets.iter().map(|t| t.fs().info().description).collect();
    drop(targets);
    target::remove(args)?;
    done.map(|()| match args.json {
        true => format!("{:#}\n", report_json(args, machine, &descriptions, &rows)),
        false => table(&descriptions, &rows),
    })
}

/// Runs slices of each target in turn.
fn turns(
    args: &FsArgs,
    name: &str,
    targets: &mut [Target],
    rows: &mut Vec<Row>,
    mut slice: impl FnMut(&mut Target) -> Result<Slice, Stop>,
) -> Result<(), Stop> {
    let mut slices: Vec<(String, Vec<Slice>)> = targets
        .iter()
        .map(|t| (t.name.clone(), Vec::new()))
        .collect();
    let progress = Progress::new(format!("fs {name}"));
    for pair in 0..args.pairs {
        let mut order: Vec<usize> = (0..targets.len()).collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for i in order {
            progress.update(pair, args.pairs, Duration::ZERO, None);
            let before = targets[i].written();
            let mut done = slice(&mut targets[i])?;
            done.device = targets[i]
                .written()
                .zip(before)
                .map(|(after, before)| after - before);
            slices[i].1.push(done);
        }
    }
    progress.clear();
    rows.push(Row {
        name: name.to_string(),
        slices,
    });
    Ok(())
}

fn measure(
    args: &FsArgs,
    work: Work,
    targets: &mut [Target],
    clock: &Clock,
    rows: &mut Vec<Row>,
) -> Result<(), Stop> {
    let time = Duration::from_secs(args.seconds);
    match work {
        Work::AppendSync | Work::AppendSyncAll => {
            let all = work == Work::AppendSyncAll;
            let name = if all {
                "append 4K + sync_all"
            } else {
                "append 4K + sync_data"
            };
            turns(args, name, targets, rows, |t| {
                work::appends(t, all, time, clock)
            })?;
            if !all {
                // The device alone is the upper bound of every filesystem.
                let mut device = Device::new(&args.dir, 256 << 20, true, 42, clock.clone())?;
                let mut slices = Vec::new();
                for _ in 0..args.pairs {
                    slices.push(Slice {
                        measured: device.synced_overwrites(4096, time)?,
                        ..Slice::default()
                    });
                }
                rows.push(Row {
                    name: "the device's own synced 4K overwrite".into(),
                    slices: vec![("device".into(), slices)],
                });
            }
            Ok(())
        }
        Work::Writers => {
            for size in [4 << 10, 16 << 10, 64 << 10, 512 << 10] {
                for (how, intent) in [("", Intent::Sync), (", bulk", Intent::Bulk)] {
                    let name = format!("16 writers of {}K{how}", size >> 10);
                    turns(args, &name, targets, rows, |t| {
                        work::writers(t, size, args.bytes, intent, clock)
                    })?;
                }
            }
            Ok(())
        }
        Work::Reads => {
            for t in targets.iter_mut() {
                work::prepare_reads(t, args.bytes)?;
            }
            for threads in [1, 20] {
                let name = format!("random 4K reads, {threads} threads");
                turns(args, &name, targets, rows, |t| {
                    work::reads(t, threads, time, clock)
                })?;
            }
            targets.iter_mut().try_for_each(work::end_reads)
        }
        Work::SmallFiles => {
            for (name, threads, bytes) in [
                ("make and remove empty files", 1, 0),
                ("make and remove 4K files", 1, 4096),
                ("make and remove 4K files, 16 threads", 16, 4096),
            ] {
                turns(args, name, targets, rows, |t| {
                    work::small_files(t, threads, bytes, time, clock)
                })?;
            }
            Ok(())
        }
        Work::SyncTail => {
            for compacting in [false, true] {
                let name = match compacting {
                    true => "syncs while checkpoints are written",
                    false => "syncs without checkpoints",
                };
                let lava = &mut targets[..1];
                let once = FsArgs {
                    pairs: 1,
                    ..args.clone()
                };
                turns(&once, name, lava, rows, |t| {
                    work::sync_tail(t, args.syncs, compacting, clock)
                })?;
            }
            Ok(())
        }
        Work::Mount => turns(
            args,
            "mount after a crash, 100,000 files",
            &mut targets[..1],
            rows,
            |t| work::mount(t, clock),
        ),
    }
}

fn report_json(args: &FsArgs, machine: Value, descriptions: &[String], rows: &[Row]) -> Value {
    let all: Vec<Value> = rows
        .iter()
        .map(|row| {
            let targets: Vec<Value> = (0..row.slices.len())
                .map(|i| {
                    let s = row.merged(i);
                    let latency = &s.measured.latency;
                    let rates = row.of(i, |s| s.measured.rate());
                    json!({
                        "target": row.slices[i].0, "ops": s.measured.ops, "rate": median(&rates),
                        "rates": rates, "p50_us": us(latency.quantile(0.5)), "p99_us": us(latency.quantile(0.99)),
                        "p999_us": us(latency.quantile(0.999)), "p9999_us": us(latency.quantile(0.9999)),
                        "max_us": us(latency.max()), "bytes": s.bytes, "device_bytes": s.device,
                        "device_bytes_a_byte": Row::a_byte(&s),
                        "rate_ratio_of_first": (i > 0).then(|| row.ratio(i, |s| s.measured.rate()).map(|r| r.ratio)),
                    })
                })
                .collect();
            json!({"work": row.name, "targets": targets})
        })
        .collect();
    json!({
        "workload": "fs", "machine": machine, "filesystems": descriptions, "pairs": args.pairs, "seconds": args.seconds,
        "image_bytes": args.image_size, "sparse": args.sparse, "rows": all,
    })
}

fn table(descriptions: &[String], rows: &[Row]) -> String {
    let mut out = String::new();
    for d in descriptions {
        let _ = writeln!(out, "{d}");
    }
    for row in rows {
        let _ = writeln!(out, "\n{}", row.name);
        for i in 0..row.slices.len() {
            let s = row.merged(i);
            let latency = &s.measured.latency;
            let rate = median(&row.of(i, |s| s.measured.rate())).unwrap_or(0.0);
            let _ = write!(
                out,
                "  {:<8} {rate:>10.0}/s  p50 {:>8.1} us  p99 {:>8.1}  p99.9 {:>8.1}  p99.99 {:>8.1}  max {:>9.1}",
                row.slices[i].0,
                us(latency.quantile(0.5)),
                us(latency.quantile(0.99)),
                us(latency.quantile(0.999)),
                us(latency.quantile(0.9999)),
                us(latency.max())
            );
            if let Some(a_byte) = Row::a_byte(&s) {
                let _ = write!(out, "  {a_byte:.3} device bytes a byte");
            }
            if i > 0
                && let Some(r) = row.ratio(i, |s| s.measured.rate())
            {
                let _ = write!(out, "  {} is {:.2}x of it", row.slices[0].0, r.ratio);
                if let Some((low, high)) = r.interval {
                    let _ = write!(out, " [{low:.2} to {high:.2}]");
                }
                if let Some(l) = row.ratio(i, |s| us(s.measured.latency.quantile(0.5))) {
                    let _ = write!(out, ", p50 {:.2}x", l.ratio);
                }
            }
            out.push('\n');
        }
    }
    out
}
