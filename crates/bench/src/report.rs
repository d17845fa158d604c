//! The results of a run: one JSON object for scripts, tables for people.

use crate::counters::Counts;
use crate::device::Measured;
use basalt::env::Histogram;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// One row: one workload at one number of threads.
pub struct Row {
    /// Name of the workload.
    pub workload: String,
    /// Name of the engine; `device` for the device alone.
    pub engine: String,
    /// Number of threads.
    pub threads: usize,
    /// Operations, time and latency.
    pub measured: Measured,
    /// Bytes of the keys and values in all operations.
    pub user_bytes: u64,
    /// Device bytes and reads. If the workload waits for compactions, theirs are included.
    pub counts: Option<Counts>,
    /// Bytes on disk for each byte of live keys and values.
    pub space_amp: Option<f64>,
    /// Peak of resident memory in bytes.
    pub peak_rss: Option<u64>,
    /// The device's own rate of the operation that limits this workload, a second.
    pub device: Option<Yardstick>,
    /// Further metrics of this workload.
    pub more: Map<String, Value>,
}

/// The device rate that a row is compared with.
#[derive(Clone)]
pub struct Yardstick {
    /// Name of the device operation.
    pub what: &'static str,
    /// Measurement of the device.
    pub measured: Measured,
    /// Operations of the engine a second that this device rate would allow. For example, one
    /// durable put needs one synced overwrite.
    pub engine_rate: f64,
}

/// A report of a run.
pub struct Report {
    /// The machine, as [`crate::machine::describe`] returns it.
    pub machine: Value,
    /// The flags.
    pub config: Value,
    /// Rows in the order of the runs.
    pub rows: Vec<Row>,
    /// Targets of the run: name, metric, target.
    pub targets: Vec<(String, f64, f64)>,
}

/// Returns a quantile in microseconds from a histogram in nanoseconds.
fn us(h: &Histogram, q: f64) -> f64 {
    round(h.quantile(q) as f64 / 1000.0)
}

/// Rounds to three decimals. The metrics are not more precise.
pub fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

fn per(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| round(a as f64 / b as f64))
}

impl Row {
    /// Returns the engine's rate as a part of the rate that the device would allow.
    pub fn device_ratio(&self) -> Option<f64> {
        let allowed = self.device.as_ref()?.engine_rate;
        (allowed > 0.0).then(|| round(self.measured.rate() / allowed))
    }

    fn written(&self) -> Option<u64> {
        self.counts
            .map(|c| c.fs.bytes_written + c.fs.bytes_prewritten)
    }

    fn write_amp(&self) -> Option<f64> {
        // Without puts there is no write amplification.
        (self.more.get("puts").and_then(Value::as_u64) != Some(0))
            .then(|| per(self.written()?, self.put_bytes()))
            .flatten()
    }

    /// Returns the user bytes that were written, for workloads that also read.
    fn put_bytes(&self) -> u64 {
        self.more
            .get("user_write_bytes")
            .and_then(Value::as_u64)
            .unwrap_or(self.user_bytes)
    }

    fn json(&self) -> Value {
        let m = &self.measured;
        let fs = self.counts.map(|c| c.fs);
        let mut row = json!({
            "workload": self.workload,
            "engine": self.engine,
            "threads": self.threads,
            "ops": m.ops,
            "seconds": round(m.time.as_secs_f64()),
            "ops_per_s": round(m.rate()),
            "p50_us": us(&m.latency, 0.5),
            "p99_us": us(&m.latency, 0.99),
            "p999_us": us(&m.latency, 0.999),
            "p9999_us": us(&m.latency, 0.9999),
            "max_us": round(m.latency.max() as f64 / 1000.0),
            "user_bytes": self.user_bytes,
            "device_write_bytes": self.written(),
            "device_read_bytes": fs.map(|f| f.bytes_read),
            "device_prewritten_bytes": fs.map(|f| f.bytes_prewritten),
            "device_reads": fs.map(|f| f.reads),
            "device_writes": fs.map(|f| f.writes),
            "device_syncs": fs.map(|f| f.syncs),
            "process_write_bytes": self.counts.and_then(|c| c.process).map(|p| p.1),
            "process_read_bytes": self.counts.and_then(|c| c.process).map(|p| p.0),
            "block_device_write_bytes": self.counts.and_then(|c| c.disk).map(|d| d.1),
            "block_device_read_bytes": self.counts.and_then(|c| c.disk).map(|d| d.0),
            "write_amp": self.write_amp(),
            "block_device_write_amp": self.counts.and_then(|c| c.disk)
                .filter(|_| self.write_amp().is_some())
                .and_then(|d| per(d.1, self.put_bytes())),
            "space_amp": self.space_amp.map(round),
            "device_reads_per_op": fs.and_then(|f| per(f.reads, m.ops)),
            "peak_rss_bytes": self.peak_rss,
            "device_ratio": self.device_ratio(),
            "device": self.device.as_ref().map(|d| json!({
                "what": d.what,
                "ops_per_s": round(d.measured.rate()),
                "p50_us": us(&d.measured.latency, 0.5),
                "p99_us": us(&d.measured.latency, 0.99),
                "engine_ops_per_s_allowed": round(d.engine_rate),
            })),
        });
        let fields = row.as_object_mut().expect("made as an object above");
        for (name, value) in &self.more {
            fields.insert(name.clone(), value.clone());
        }
        row
    }
}

impl Report {
    /// Returns the report as one JSON object.
    pub fn json(&self) -> Value {
        let targets: Vec<Value> = self
            .targets
            .iter()
            .map(|(name, figure, target)| {
                json!({"name": name, "figure": round(*figure), "target": target, "reached": figure >= target})
            })
            .collect();
        json!({
            "machine": self.machine,
            "config": self.config,
            "results": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "targets": targets,
        })
    }

    /// Returns the tables.
    pub fn table(&self) -> String {
        let mut out = machine_line(&self.machine);
        let mut cells = vec![
            [
                "workload",
                "engine",
                "threads",
                "ops/s",
                "p50 us",
                "p99 us",
                "p99.9 us",
                "max us",
                "MB/s",
                "write amp",
                "disk's own",
                "space amp",
                "reads/op",
                "RSS MiB",
                "of device",
            ]
            .map(String::from)
            .to_vec(),
        ];
        for r in &self.rows {
            let row = r.json();
            let number = |name: &str, digits: usize| {
                row[name]
                    .as_f64()
                    .map_or_else(|| "-".to_string(), |x| format!("{x:.digits$}"))
            };
            let seconds = r.measured.time.as_secs_f64().max(1e-9);
            cells.push(vec![
                r.workload.clone(),
                r.engine.clone(),
                r.threads.to_string(),
                number("ops_per_s", 0),
                number("p50_us", 1),
                number("p99_us", 1),
                number("p999_us", 1),
                number("max_us", 0),
                format!("{:.1}", r.user_bytes as f64 / seconds / 1e6),
                number("write_amp", 2),
                number("block_device_write_amp", 2),
                number("space_amp", 2),
                number("device_reads_per_op", 2),
                r.peak_rss.map_or_else(
                    || "-".into(),
                    |b| format!("{:.0}", b as f64 / f64::from(1 << 20)),
                ),
                number("device_ratio", 2),
            ]);
        }
        columns(&cells, &mut out);
        let mut first = true;
        for r in &self.rows {
            if let Some(d) = &r.device {
                if first {
                    out.push_str("\nthe device in the same run\n");
                    first = false;
                }
                let _ = writeln!(
                    out,
                    "  beside {} x{}: {} {:.0}/s, p50 {:.1} us, p99 {:.1} us",
                    r.workload,
                    r.threads,
                    d.what,
                    d.measured.rate(),
                    us(&d.measured.latency, 0.5),
                    us(&d.measured.latency, 0.99)
                );
            }
        }
        for r in &self.rows {
            if !r.more.is_empty() {
                let _ = write!(out, "\n{} x{}:", r.workload, r.threads);
                for (name, value) in &r.more {
                    let _ = write!(out, " {name} {}", text(value));
                }
                out.push('\n');
            }
        }
        for (name, figure, target) in &self.targets {
            let verdict = if figure >= target {
                "reached"
            } else {
                "MISSED"
            };
            let _ = writeln!(
                out,
                "\ntarget {verdict}: {name} {figure:.2}, at least {target}"
            );
        }
        out
    }
}

/// Returns a line about the machine, and an empty line.
pub(crate) fn machine_line(m: &Value) -> String {
    format!(
        "{}, {} cores, {:.0} GiB, {}, {} on {} ({})\n\n",
        text(&m["cpu"]),
        text(&m["cores"]),
        m["memory_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 30),
        text(&m["kernel"]),
        text(&m["filesystem"]),
        text(&m["disk"]),
        text(&m["disk_model"]),
    )
}

fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Null => "?".into(),
        v => v.to_string(),
    }
}

/// Appends rows of cells as aligned lines: the first column to the left, the others to the right.
pub(crate) fn columns(rows: &[Vec<String>], out: &mut String) {
    let mut widths = vec![0; rows.first().map_or(0, Vec::len)];
    for row in rows {
        for (w, cell) in widths.iter_mut().zip(row) {
            *w = (*w).max(cell.chars().count());
        }
    }
    for row in rows {
        let mut line = String::new();
        for (i, (cell, &w)) in row.iter().zip(&widths).enumerate() {
            let _ = if i == 0 {
                write!(line, "{cell:<w$}")
            } else {
                write!(line, "  {cell:>w$}")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}
