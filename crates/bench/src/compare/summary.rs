//! The results of a comparison: medians and spread of each engine, ratios over pairs, one JSON
//! object for scripts and tables for people.

use super::targets;
use crate::report::{columns, machine_line, round};
use crate::statistics::{self, Ratio};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The metrics of a row in the summary: name, heading in the table, decimal digits, and whether the
/// metric gets a ratio.
const METRICS: [(&str, &str, usize, bool); 34] = [
    ("restart_seconds", "restart s", 3, true),
    ("open_seconds", "open s", 3, false),
    ("replay_bytes", "replayed MiB", 1, false),
    ("ops_per_s", "ops/s", 0, true),
    ("mean_us", "mean us", 1, true),
    ("p50_us", "p50 us", 1, true),
    ("p99_us", "p99 us", 1, true),
    ("p999_us", "p99.9 us", 1, true),
    ("p9999_us", "p99.99 us", 0, true),
    ("max_us", "max us", 0, false),
    ("window_deviation", "deviation %", 1, true),
    ("write_amp", "write amp", 2, true),
    ("space_amp", "space amp", 2, true),
    ("space_amp_max", "space amp max", 2, true),
    ("page_space_amp", "pages amp", 2, false),
    ("mapping_bytes", "mapping MiB", 2, false),
    ("mapped_pages", "mapped pages", 0, false),
    ("system_log_per_user_byte", "system log B/B", 4, false),
    ("system_log_bytes", "system log MiB", 2, false),
    ("device_reads_per_op", "reads/op", 3, true),
    ("device_read_bytes_per_op", "read B/op", 0, false),
    ("cpu_us_per_op", "CPU us/op", 2, true),
    ("peak_rss_bytes", "RSS MiB", 0, true),
    ("user_mb_per_s", "MB/s", 1, false),
    ("memory_per_live_byte", "memory/live B", 5, true),
    ("rss_per_live_byte", "RSS/live B", 4, true),
    ("live_bytes", "live MiB", 0, false),
    ("stall_seconds", "stalled s", 2, false),
    ("debt_bytes_start", "debt before MiB", 0, false),
    ("debt_bytes_end", "debt after MiB", 0, false),
    ("settle_seconds", "settle s", 1, false),
    ("disk_bytes", "disk MiB", 1, false),
    ("seconds_settled", "in all s", 1, true),
    ("device_ratio", "of device", 2, false),
];

/// All runs of a comparison.
pub struct Comparison {
    /// The machine, as [`crate::machine::describe`] returns it.
    pub machine: Value,
    /// The flags.
    pub config: Value,
    /// One object for each run, in the order of the runs.
    pub rows: Vec<Value>,
}

/// The runs of one engine on one workload with one number of threads.
struct Cell<'a> {
    workload: &'a str,
    threads: u64,
    engine: &'a str,
    rows: Vec<&'a Value>,
}

impl Cell<'_> {
    fn values(&self, figure: &str) -> Vec<f64> {
        self.rows
            .iter()
            .filter_map(|r| r[figure].as_f64())
            .collect()
    }

    fn json(&self) -> Value {
        let mut medians = Map::new();
        let mut spread = Map::new();
        for (figure, ..) in METRICS {
            let values = self.values(figure);
            if let Some(median) = statistics::median(&values) {
                let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                medians.insert(figure.into(), json!(round(median)));
                spread.insert(
                    figure.into(),
                    json!({"low": round(low), "high": round(high),
                           "deviation": statistics::relative_deviation(&values).map(round)}),
                );
            }
        }
        json!({
            "workload": self.workload, "threads": self.threads, "engine": self.engine, "runs": self.rows.len(),
            "median": medians, "spread": spread,
        })
    }
}

/// A ratio of one metric.
pub(super) struct Compared<'a> {
    pub workload: &'a str,
    pub threads: u64,
    pub engine: &'a str,
    pub against: &'a str,
    pub figure: &'static str,
    pub ratio: Ratio,
}

impl Comparison {
    fn cells(&self) -> Vec<Cell<'_>> {
        let mut out: Vec<Cell<'_>> = Vec::new();
        for row in &self.rows {
            let workload = row["workload"].as_str().unwrap_or("");
            let engine = row["engine"].as_str().unwrap_or("");
            let threads = row["threads"].as_u64().unwrap_or(0);
            let cell = out
                .iter_mut()
                .find(|c| c.workload == workload && c.engine == engine && c.threads == threads);
            match cell {
                Some(cell) => cell.rows.push(row),
                None => out.push(Cell {
                    workload,
                    threads,
                    engine,
                    rows: vec![row],
                }),
            }
        }
        out
    }

    /// Returns the ratios of the first engine of each workload to every other one, pair by pair.
    pub(super) fn ratios(&self) -> Vec<Compared<'_>> {
        let cells = self.cells();
        let mut out = Vec::new();
        for (i, cell) in cells.iter().enumerate() {
            let same = |c: &Cell<'_>| c.workload == cell.workload && c.threads == cell.threads;
            let Some(first) = cells.iter().position(same).filter(|&first| first != i) else {
                continue;
            };
            let first = &cells[first];
            for (figure, _, _, _) in METRICS.iter().filter(|f| f.3) {
                let pairs: Vec<(f64, f64)> = first
                    .rows
                    .iter()
                    .filter_map(|a| {
                        let b = cell.rows.iter().find(|b| b["pair"] == a["pair"])?;
                        Some((a[*figure].as_f64()?, b[*figure].as_f64()?))
                    })
                    .collect();
                if let Some(ratio) = statistics::ratio(&pairs) {
                    out.push(Compared {
                        workload: cell.workload,
                        threads: cell.threads,
                        engine: first.engine,
                        against: cell.engine,
                        figure,
                        ratio,
                    });
                }
            }
        }
        out
    }

    /// Returns the median of a metric of the first engine of a workload. Other engines need not
    /// have run.
    pub(super) fn median_of_first(
        &self,
        workload: &str,
        threads: u64,
        figure: &str,
    ) -> Option<f64> {
        let cells = self.cells();
        let cell = cells
            .iter()
            .find(|c| c.workload == workload && c.threads == threads)?;
        statistics::median(&cell.values(figure))
    }

    /// Returns workload, threads, and the engine whose ratios are taken, for each of them.
    pub(super) fn first_engines(&self) -> Vec<(&str, u64, &str)> {
        let mut out: Vec<(&str, u64, &str)> = Vec::new();
        for cell in self.cells() {
            if !(out.iter()).any(|o| (o.0, o.1) == (cell.workload, cell.threads)) {
                out.push((cell.workload, cell.threads, cell.engine));
            }
        }
        out
    }

    /// Returns the engines by name, each with its configuration.
    fn engines(&self) -> Vec<Value> {
        let mut out: Vec<Value> = Vec::new();
        for row in &self.rows {
            if !out.iter().any(|e| e["name"] == row["engine"]) {
                out.push(json!({"name": row["engine"], "configuration": row["configuration"]}));
            }
        }
        out
    }

    /// Returns one JSON object: that of a single run (`machine`, `config`, `results`, `targets`)
    /// with `engines`, `summary` and `ratios`.
    pub fn json(&self) -> Value {
        let ratios: Vec<Value> = self
            .ratios()
            .iter()
            .map(|r| {
                json!({
                    "workload": r.workload, "threads": r.threads, "engine": r.engine, "against": r.against,
                    "figure": r.figure, "ratio": round(r.ratio.ratio),
                    "low": r.ratio.interval.map(|i| round(i.0)), "high": r.ratio.interval.map(|i| round(i.1)),
                    "pairs": r.ratio.pairs,
                })
            })
            .collect();
        let results: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let mut row = row.clone();
                // Each engine has its configuration once.
                if let Some(fields) = row.as_object_mut() {
                    fields.remove("configuration");
                }
                row
            })
            .collect();
        json!({
            "machine": self.machine,
            "config": self.config,
            "engines": self.engines(),
            "results": results,
            "summary": self.cells().iter().map(Cell::json).collect::<Vec<_>>(),
            "ratios": ratios,
            "targets": targets::of(self).iter().map(targets::Outcome::json).collect::<Vec<_>>(),
        })
    }

    /// Returns the tables.
    pub fn table(&self) -> String {
        let mut out = machine_line(&self.machine);
        let cells = self.cells();
        let mut shown: Vec<(&str, u64)> = Vec::new();
        for cell in &cells {
            let here = (cell.workload, cell.threads);
            if shown.contains(&here) {
                continue;
            }
            shown.push(here);
            let beside: Vec<&Cell<'_>> = cells
                .iter()
                .filter(|c| (c.workload, c.threads) == here)
                .collect();
            let _ = writeln!(
                out,
                "{} x{}, medians of {} runs\n",
                here.0,
                here.1,
                cell.rows.len()
            );
            table_of(&beside, &mut out);
            for r in self.ratios() {
                if (r.workload, r.threads) == here {
                    let _ = writeln!(out, "{}", ratio_line(&r));
                }
            }
            out.push('\n');
        }
        for outcome in targets::of(self) {
            let _ = writeln!(out, "{}", outcome.line());
        }
        out.push_str("\nconfigurations (the same budget: see config with --json)\n");
        for engine in self.engines() {
            let mut configuration = engine["configuration"].clone();
            // The full options file of the engine is in the JSON alone, because it is long.
            if let Some(fields) = configuration.as_object_mut() {
                fields.remove("options_file");
            }
            let _ = writeln!(
                out,
                "  {}: {configuration}",
                engine["name"].as_str().unwrap_or("?")
            );
        }
        out
    }
}

fn table_of(cells: &[&Cell<'_>], out: &mut String) {
    let any = |figure: &str| cells.iter().any(|c| !c.values(figure).is_empty());
    let figures: Vec<_> = METRICS.iter().filter(|f| any(f.0)).collect();
    let mut rows = vec![
        std::iter::once("engine".to_string())
            .chain(figures.iter().map(|f| f.1.to_string()))
            .collect::<Vec<_>>(),
    ];
    for cell in cells {
        let mut middle = vec![cell.engine.to_string()];
        let mut range = vec![String::new()];
        for (figure, head, digits, _) in &figures {
            let scale = match head {
                head if head.ends_with("MiB") => f64::from(1 << 20),
                head if head.ends_with('%') => 0.01,
                _ => 1.0,
            };
            let mut values = cell.values(figure);
            values.sort_by(f64::total_cmp);
            let show = |v: Option<f64>| v.map(|v| format!("{:.digits$}", v / scale));
            let (low, high) = (values.first().copied(), values.last().copied());
            middle.push(show(statistics::median(&values)).unwrap_or("-".into()));
            range.push(match (show(low), show(high)) {
                (Some(low), Some(high)) if low != high => format!("{low}..{high}"),
                _ => String::new(),
            });
        }
        rows.push(middle);
        if cell.rows.len() > 1 {
            rows.push(range);
        }
    }
    columns(&rows, out);
}

fn ratio_line(r: &Compared<'_>) -> String {
    let interval = r
        .ratio
        .interval
        .map_or_else(String::new, |(low, high)| format!(" [{low:.2}, {high:.2}]"));
    format!(
        "  {} / {}: {} {:.2}{interval} over {} pairs",
        r.engine, r.against, r.figure, r.ratio.ratio, r.ratio.pairs
    )
}

#[cfg(test)]
mod tests;
