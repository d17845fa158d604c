//! The targets of the engine in comparison with RocksDB, and whether a comparison reaches them.

use super::Comparison;
use super::summary::Compared;
use crate::report::round;
use serde_json::{Value, json};

/// The quantity that a target bounds.
#[derive(Clone, Copy, PartialEq)]
enum ComparedWith {
    /// The ratio to RocksDB.
    Peer,
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
        of: ComparedWith::Peer,
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

/// Selects, for each metric, the ratio to the best one of several configurations of RocksDB.
fn to_the_best<'a>(ratios: &'a [Compared<'a>], targets: &[Target]) -> Vec<&'a Compared<'a>> {
    let mut best: Vec<&Compared<'_>> = Vec::new();
    for r in ratios {
        if !(r.engine.starts_with("basalt") && r.against.starts_with("rocksdb")) {
            continue;
        }
        let target = (targets.iter()).find(|t| {
            t.of == ComparedWith::Peer && t.workload == r.workload && t.figure == r.figure
        });
        let same = |b: &&Compared<'_>| {
            (b.engine, b.workload, b.threads, b.figure)
                == (r.engine, r.workload, r.threads, r.figure)
        };
        match (best.iter().position(same), target) {
            (None, _) => best.push(r),
            (Some(at), Some(t))
                if t.bound
                    .is_closer_to_bound(r.ratio.ratio, best[at].ratio.ratio) =>
            {
                best[at] = r;
            }
            (Some(_), _) => {}
        }
    }
    best
}

/// Returns the results for the targets that a comparison of Basalt with RocksDB has metrics for.
pub(super) fn of(comparison: &Comparison) -> Vec<Outcome> {
    let value_size = &comparison.config["value_size"];
    let targets = match value_size.as_u64() {
        Some(bytes) if bytes >= LARGE_VALUE => LARGE_VALUES,
        _ => TARGETS,
    };
    let ratios = comparison.ratios();
    let mut out = Vec::new();
    for r in to_the_best(&ratios, targets) {
        let here = |t: &&Target| {
            t.workload == r.workload && t.threads.is_none_or(|threads| threads == r.threads)
        };
        for t in targets.iter().filter(here) {
            if t.of == ComparedWith::Peer && t.figure == r.figure {
                out.push(Outcome {
                    name: format!("{} x{}: ratio of {}", r.workload, r.threads, r.figure),
                    figure: r.ratio.ratio,
                    bound: t.bound,
                    interval: r.ratio.interval,
                });
            }
            // A target for Basalt's own metric is judged once, beside the first ratio.
            if t.of == ComparedWith::Itself && r.figure == "ops_per_s" {
                let figure = comparison.median_of_first(r.workload, r.threads, t.figure);
                out.extend(figure.map(|figure| Outcome {
                    name: format!("{} x{}: {}", r.workload, r.threads, t.figure),
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
        format!(
            "target {verdict}: {} {:.3}, {bound}",
            self.name, self.figure
        )
    }
}
