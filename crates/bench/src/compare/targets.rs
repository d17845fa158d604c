//! The targets of the engines in comparison with their peers, and whether a comparison reaches
//! them.

use super::Comparison;
use super::summary::Compared;
use crate::report::round;
use serde_json::{Value, json};

/// The quantity that a target bounds.
#[derive(Clone, Copy, PartialEq)]
enum ComparedWith {
    /// The ratio to the best one of the peers whose names begin in this way.
    Peer(&'static [&'static str]),
    /// The metric itself.
    Itself,
}

/// A bound of a ratio or metric.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

struct Target {
    workload: &'static str,
    /// Number of threads, or `None` for any number.
    threads: Option<u64>,
    figure: &'static str,
    of: ComparedWith,
    bound: Bound,
}

const fn peer(
    workload: &'static str,
    threads: Option<u64>,
    figure: &'static str,
    bound: Bound,
) -> Target {
    Target {
        workload,
        threads,
        figure,
        of: ComparedWith::Peer(&["rocksdb"]),
        bound,
    }
}

const fn itself(
    workload: &'static str,
    threads: Option<u64>,
    figure: &'static str,
    bound: Bound,
) -> Target {
    Target {
        workload,
        threads,
        figure,
        of: ComparedWith::Itself,
        bound,
    }
}

const fn peers(
    workload: &'static str,
    threads: u64,
    figure: &'static str,
    names: &'static [&'static str],
    bound: Bound,
) -> Target {
    Target {
        workload,
        threads: Some(threads),
        figure,
        of: ComparedWith::Peer(names),
        bound,
    }
}

use Bound::{AtLeast, AtMost};

const TARGETS: &[Target] = &[
    peer("durable-put", Some(1), "ops_per_s", AtLeast(1.3)),
    peer("durable-put", Some(1), "p99_us", AtMost(0.7)),
    itself("durable-put", Some(1), "device_ratio", AtLeast(0.9)),
    peer("durable-put", Some(4), "ops_per_s", AtLeast(1.5)),
    peer("durable-put", Some(16), "ops_per_s", AtLeast(1.5)),
    peer("fill-random", Some(1), "ops_per_s", AtLeast(1.5)),
    peer("overwrite", Some(2), "ops_per_s", AtLeast(1.4)),
    peer("overwrite", Some(2), "write_amp", AtMost(0.8)),
    peer("overwrite", Some(2), "window_deviation", AtMost(0.5)),
    peer("read-random", Some(1), "ops_per_s", AtLeast(1.1)),
    itself("read-random", Some(1), "device_reads_per_op", AtMost(1.02)),
    // Runs with two threads are those of the store that is cached whole.
    peer("read-random", Some(2), "ops_per_s", AtLeast(1.3)),
    peer("read-absent", None, "ops_per_s", AtLeast(1.3)),
    itself("read-absent", None, "device_reads_per_op", AtMost(0.02)),
    peer("seek-10", None, "ops_per_s", AtLeast(1.2)),
    peer("seek-1000", None, "ops_per_s", AtLeast(1.2)),
    peer("read-while-writing", None, "p99_us", AtMost(0.7)),
    peer("load-sorted", None, "ops_per_s", AtLeast(1.5)),
    peer("overwrite", Some(2), "peak_rss_bytes", AtMost(0.9)),
    peer("read-random", Some(1), "peak_rss_bytes", AtMost(0.9)),
];

/// The targets for separated values, compared with the best configuration of RocksDB in the same
/// comparison.
const LARGE_VALUES: &[Target] = &[
    peer("durable-put", Some(1), "ops_per_s", AtLeast(1.5)),
    peer("durable-put", Some(1), "p99_us", AtMost(0.6)),
    itself("durable-put", Some(1), "device_ratio", AtLeast(0.85)),
    itself(
        "durable-put",
        Some(1),
        "block_device_write_amp",
        AtMost(1.1),
    ),
    peer("load", None, "seconds_settled", AtMost(0.6)),
    peer("overwrite", Some(4), "ops_per_s", AtLeast(2.0)),
    peer("overwrite", Some(4), "p999_us", AtMost(0.3)),
    peer("overwrite", Some(4), "write_amp", AtMost(0.7)),
    peer("durable-put-while-reading", None, "mean_us", AtMost(0.6)),
    peer("durable-put-while-reading", None, "p99_us", AtMost(0.5)),
    itself("read-random", Some(1), "device_reads_per_op", AtMost(1.02)),
    peer("scan-10-while-writing", None, "ops_per_s", AtLeast(1.2)),
    peer("scan-1000-while-writing", None, "ops_per_s", AtLeast(1.0)),
    peer("folder-load", None, "seconds_settled", AtMost(0.7)),
    peer("folder-bulk", None, "seconds_settled", AtMost(0.7)),
    peer("folder-export", None, "seconds_settled", AtMost(0.7)),
];
/// Values of at least this many bytes have the targets of large values.
const LARGE_VALUE: u64 = 8 << 10;

/// The targets of the log engine. Those for its own metrics are judged without a peer, too.
const LOGS: &[Target] = &[
    peer("one-writer", Some(1), "mean_us", AtMost(0.5)),
    peer("one-writer", Some(1), "p9999_us", AtMost(0.3)),
    peers("one-writer", 1, "mean_us", RAFT_ENGINE, AtMost(0.8)),
    peers("one-writer", 1, "p9999_us", RAFT_ENGINE, AtMost(0.8)),
    itself("one-writer", Some(1), "device_ratio", AtLeast(0.9)),
    peers("many-writers", 64, "ops_per_s", LOG_PEERS, AtLeast(1.5)),
    peers(
        "one-writer-unsynced",
        1,
        "ops_per_s",
        LOG_PEERS,
        AtLeast(2.0),
    ),
    peers(
        "many-writers-unsynced",
        4,
        "ops_per_s",
        LOG_PEERS,
        AtLeast(2.0),
    ),
    itself("many-logs", None, "write_amp", AtMost(1.15)),
    itself("many-logs", None, "memory_per_live_byte", AtMost(0.005)),
    itself("stuck-log", None, "space_amp_max", AtMost(1.3)),
    itself("read", None, "device_reads_per_op", AtMost(1.02)),
    itself("iterate", None, "device_ratio", AtLeast(0.8)),
    itself("recover", None, "mean_us", AtMost(2e6)),
    peer("recover", None, "mean_us", AtMost(0.2)),
    itself("gaps", None, "mean_us", AtMost(10_000.0)),
];
const RAFT_ENGINE: &[&str] = &["raft-engine"];
const LOG_PEERS: &[&str] = &["rocksdb", "raft-engine", "raft-log"];

/// A target and the result of a comparison for it.
pub(super) struct Outcome {
    name: String,
    figure: f64,
    bound: Bound,
    interval: Option<(f64, f64)>,
}

impl Bound {
    /// Returns whether a ratio is nearer than another to missing the bound.
    fn is_closer_to_bound(self, ratio: f64, than: f64) -> bool {
        match self {
            AtLeast(_) => ratio < than,
            AtMost(_) => ratio > than,
        }
    }
}

impl Target {
    /// Returns the ratio that the target bounds: to the peer that is nearest to missing it.
    fn ratio<'a>(&self, of_cell: &[&'a Compared<'a>]) -> Option<&'a Compared<'a>> {
        let ComparedWith::Peer(names) = self.of else {
            return None;
        };
        let mut best: Option<&Compared<'_>> = None;
        for r in of_cell {
            if r.figure != self.figure || !names.iter().any(|n| r.against.starts_with(n)) {
                continue;
            }
            let is_closer =
                |b: &Compared<'_>| (self.bound).is_closer_to_bound(r.ratio.ratio, b.ratio.ratio);
            if best.is_none_or(is_closer) {
                best = Some(r);
            }
        }
        best
    }
}

/// Returns the results for the targets that a comparison of Basalt with its peers has metrics for.
pub(super) fn of(comparison: &Comparison) -> Vec<Outcome> {
    let value_size = &comparison.config["value_size"];
    let targets = match value_size.as_u64() {
        Some(bytes) if bytes >= LARGE_VALUE => LARGE_VALUES,
        _ => TARGETS,
    };
    let ratios = comparison.ratios();
    let mut out = Vec::new();
    for (workload, threads, engine) in comparison.first_engines() {
        if !engine.starts_with("basalt") {
            continue;
        }
        let here = |r: &&Compared<'_>| r.workload == workload && r.threads == threads;
        let of_cell: Vec<&Compared<'_>> = ratios.iter().filter(here).collect();
        let beside_rocksdb = of_cell.iter().any(|r| r.against.starts_with("rocksdb"));
        let of_engine = targets.iter().map(|t| (t, beside_rocksdb));
        let of_log = LOGS.iter().map(|t| (t, true));
        for (t, judged) in of_engine.chain(of_log) {
            if t.workload != workload || t.threads.is_some_and(|n| n != threads) {
                continue;
            }
            if let Some(r) = t.ratio(&of_cell) {
                out.push(Outcome {
                    name: format!(
                        "{workload} x{threads}: ratio of {} to {}",
                        t.figure, r.against
                    ),
                    figure: r.ratio.ratio,
                    bound: t.bound,
                    interval: r.ratio.interval,
                });
            }
            if t.of == ComparedWith::Itself && judged {
                let figure = comparison.median_of_first(workload, threads, t.figure);
                out.extend(figure.map(|figure| Outcome {
                    name: format!("{workload} x{threads}: {}", t.figure),
                    figure,
                    bound: t.bound,
                    interval: None,
                }));
            }
        }
    }
    out
}

impl Outcome {
    fn reached(&self) -> bool {
        match self.bound {
            AtLeast(target) => self.figure >= target,
            AtMost(target) => self.figure <= target,
        }
    }

    /// Returns the fields of the `targets` of a single run, with the direction of the bound and the
    /// interval.
    pub(super) fn json(&self) -> Value {
        let (target, at_most) = match self.bound {
            AtLeast(target) => (target, false),
            AtMost(target) => (target, true),
        };
        json!({
            "name": self.name, "figure": round(self.figure), "target": target, "at_most": at_most,
            "low": self.interval.map(|i| round(i.0)), "high": self.interval.map(|i| round(i.1)),
            "reached": self.reached(),
        })
    }

    /// Returns a line of a table.
    pub(super) fn line(&self) -> String {
        let verdict = match self.reached() {
            true => "reached",
            false => "MISSED",
        };
        let bound = match self.bound {
            AtLeast(target) => format!("at least {target}"),
            AtMost(target) => format!("at most {target}"),
        };
        let interval = self
            .interval
            .map_or_else(String::new, |(low, high)| format!(" [{low:.2}, {high:.2}]"));
        format!(
            "target {verdict}: {} {:.3}{interval}, {bound}",
            self.name, self.figure
        )
    }
}
