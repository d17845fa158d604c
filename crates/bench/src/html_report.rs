//! Saved results as one page with charts. The page has no script, loads nothing, and is readable on
//! a phone.

mod chart;

use crate::Stop;
use crate::report::machine_line;
use crate::statistics::median;
use chart::{Bar, Dot, Line, bars, dots, escape, lines, nines, seconds, short};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The flags of `report`.
#[derive(clap::Args, Debug, Clone)]
pub struct ReportArgs {
    /// Read these results, each saved with --json
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write the page to this file, which is replaced if it exists
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
}

const STYLE: &str = "\
:root{--ink:#1c1e21;--dim:#667;--paper:#fff;--rule:#dde;--c0:#2563eb;--c1:#d97706;--c2:#059669;--c3:#9333ea}\
@media(prefers-color-scheme:dark){:root{--ink:#e8e8ea;--dim:#9aa;--paper:#15171a;--rule:#334;--c0:#6ea0ff;--c1:#f5a944;\
--c2:#3fd0a0;--c3:#c58bff}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:12px;background:var(--paper);color:var(--ink);\
font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}\
h1{font-size:1.4em;margin:.3em 0}h2{font-size:1.2em;margin:1.4em 0 .3em;border-top:1px solid var(--rule);padding-top:.6em}\
h4{font-size:.9em;margin:.8em 0 .2em;color:var(--dim);font-weight:600}\
.charts{display:grid;gap:4px 20px;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr))}\
svg{width:100%;height:auto;display:block}svg text{font-size:11px;fill:var(--ink)}\
.grid{stroke:var(--rule)}.axis{stroke:var(--ink);stroke-width:1.2}.line{fill:none;stroke-width:1.6}.dot{fill:var(--c0)}\
rect.c0{fill:var(--c0)}rect.c1{fill:var(--c1)}rect.c2{fill:var(--c2)}rect.c3{fill:var(--c3)}\
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}\
b.c0{color:var(--c0)}b.c1{color:var(--c1)}b.c2{color:var(--c2)}b.c3{color:var(--c3)}\
table{border-collapse:collapse;width:100%;font-size:.85em;font-variant-numeric:tabular-nums}\
td,th{padding:2px 4px;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top}\
td,th{overflow-wrap:normal}td:first-child,th:first-child{text-align:left;overflow-wrap:anywhere}.dim{color:var(--dim);font-size:.85em}\
.no{color:var(--c1);font-weight:600}pre{white-space:pre-wrap;font-size:.75em}summary{cursor:pointer}";

/// Metrics of the table below the charts, and their headings.
const METRICS: [(&str, &str); 25] = [
    ("ops_per_s", "operations/s"),
    ("p50_us", "p50, us"),
    ("p99_us", "p99, us"),
    ("p999_us", "p99.9, us"),
    ("p9999_us", "p99.99, us"),
    ("max_us", "slowest, us"),
    ("window_deviation", "deviation of 1 s windows"),
    ("restart_seconds", "restart, s"),
    ("replay_bytes", "replayed, bytes"),
    ("mapping_bytes", "mapping table, bytes"),
    ("mapped_pages", "mapped pages"),
    ("system_log_per_user_byte", "system log/byte put"),
    ("write_amp", "write amplification"),
    ("space_amp", "space amplification"),
    ("device_reads_per_op", "device reads/operation"),
    ("cpu_us_per_op", "CPU, us/operation"),
    ("peak_rss_bytes", "peak memory, bytes"),
    ("user_mb_per_s", "MB/s of records"),
    ("memory_per_live_byte", "index memory/live byte"),
    ("rss_per_live_byte", "growth of memory/live byte"),
    ("stall_seconds", "stalled, s"),
    ("debt_bytes_start", "compaction debt before, bytes"),
    ("debt_bytes_end", "compaction debt after, bytes"),
    ("settle_seconds", "time to settle, s"),
    ("device_ratio", "part of the device's rate"),
];

/// Writes the page. Returns the text to print.
pub fn run(args: &ReportArgs) -> Result<String, Stop> {
    let mut saved = Vec::new();
    for file in &args.files {
        let text = read(file)?;
        let value: Value = serde_json::from_str(&text)
            .ok()
            .filter(|v: &Value| v["results"].is_array())
            .ok_or_else(|| {
                Stop::new(format!(
                    "{} has no results; give files that `basalt-bench ... --json` printed",
                    file.display()
                ))
            })?;
        let name = file
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        saved.push((name, value));
    }
    let page = page(&saved);
    write(&args.output, &page)?;
    Ok(format!(
        "{} ({} bytes)\n",
        args.output.display(),
        page.len()
    ))
}

fn read(path: &Path) -> Result<String, Stop> {
    let wrong = |e: std::io::Error| Stop::new(format!("cannot read {}: {e}", path.display()));
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| wrong(e.into()))?;
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).map_err(wrong)?;
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    let wrong = |e: std::io::Error| Stop::new(format!("cannot write {}: {e}", path.display()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).map_err(|e| wrong(e.into()))?;
    File::from(fd).write_all(text.as_bytes()).map_err(wrong)
}

/// Returns the page of saved results, each with its name.
pub fn page(saved: &[(String, Value)]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Basalt: measured</title><style>{STYLE}</style></head><body><h1>Basalt: measured</h1>"
    );
    for (name, value) in saved {
        let machine = machine_line(&value["machine"]);
        let _ = write!(
            out,
            "<h2>{}</h2><p class=\"dim\">{}</p>",
            escape(name),
            escape(machine.trim())
        );
        let engines = engines_of(value);
        targets(value, &mut out);
        for (workload, threads) in workloads_of(value) {
            section(value, &engines, &workload, threads, &mut out);
        }
        let _ = write!(
            out,
            "<details><summary>Configuration</summary><pre>{}</pre></details>",
            escape(&format!("{:#}\n{:#}", value["config"], value["engines"]))
        );
    }
    out.push_str("</body></html>\n");
    out
}

fn rows(value: &Value) -> &[Value] {
    value["results"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the names of the engines in the order of their runs. The position of an engine decides
/// its colour.
fn engines_of(value: &Value) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for name in rows(value).iter().filter_map(|r| r["engine"].as_str()) {
        if !out.iter().any(|n| n == name) {
            out.push(name.into());
        }
    }
    out
}

fn workloads_of(value: &Value) -> Vec<(String, u64)> {
    let mut out = Vec::new();
    for row in rows(value) {
        let key = (
            row["workload"].as_str().unwrap_or("?").to_string(),
            row["threads"].as_u64().unwrap_or(0),
        );
        if !out.contains(&key) {
            out.push(key);
        }
    }
    out
}

fn targets(value: &Value, out: &mut String) {
    let targets = value["targets"].as_array().map_or(&[][..], Vec::as_slice);
    if targets.is_empty() {
        return;
    }
    out.push_str("<table><tr><th>target</th><th>is</th><th>wanted</th><th></th></tr>");
    for t in targets {
        let sense = if t["at_most"] == true { "≤" } else { "≥" };
        let interval = match (t["low"].as_f64(), t["high"].as_f64()) {
            (Some(low), Some(high)) => format!(" [{low:.2}, {high:.2}]"),
            _ => String::new(),
        };
        let verdict = match t["reached"] == true {
            true => "<td>reached</td>",
            false => "<td class=\"no\">missed</td>",
        };
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{:.3}{interval}</td><td>{sense} {}</td>{verdict}</tr>",
            escape(t["name"].as_str().unwrap_or("?")),
            t["figure"].as_f64().unwrap_or(0.0),
            t["target"]
        );
    }
    out.push_str("</table>");
}

/// One engine's runs of one workload.
struct Runs<'a> {
    name: &'a str,
    class: String,
    rows: Vec<&'a Value>,
}

impl Runs<'_> {
    fn values(&self, figure: &str) -> Vec<f64> {
        self.rows
            .iter()
            .filter_map(|r| r[figure].as_f64())
            .collect()
    }

    /// Returns the run with the median rate. The charts show this run.
    fn middle(&self) -> Option<&Value> {
        let mut sorted = self.rows.clone();
        let rate = |r: &Value| r["ops_per_s"].as_f64().unwrap_or(0.0);
        sorted.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        sorted.get(sorted.len() / 2).copied()
    }

    fn bar(&self, figure: &str) -> Option<Bar> {
        let values = self.values(figure);
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Bar {
            label: self.name.into(),
            class: self.class.clone(),
            value: median(&values)?,
            range: (values.len() > 1).then_some((low, high)),
        })
    }
}

fn section(value: &Value, engines: &[String], workload: &str, threads: u64, out: &mut String) {
    let runs: Vec<Runs<'_>> = engines
        .iter()
        .enumerate()
        .map(|(i, name)| Runs {
            name,
            class: format!("c{}", i % 4),
            rows: rows(value)
                .iter()
                .filter(|r| {
                    r["workload"] == workload && r["threads"] == threads && r["engine"] == **name
                })
                .collect(),
        })
        .filter(|r| !r.rows.is_empty())
        .collect();
    let _ = write!(
        out,
        "<h2>{}, {threads} thread{}</h2><p>",
        escape(workload),
        if threads == 1 { "" } else { "s" }
    );
    for r in &runs {
        let _ = write!(
            out,
            "<b class=\"{}\">■</b> {} &nbsp; ",
            r.class,
            escape(r.name)
        );
    }
    let count = runs.iter().map(|r| r.rows.len()).max().unwrap_or(0);
    if count > 1 {
        let _ = write!(
            out,
            "<br><span class=\"dim\">medians of {count} runs, lowest to highest as a stroke; time_series are of the middle run</span>"
        );
    }
    out.push_str("</p><div class=\"charts\">");
    for (figure, title) in [
        ("ops_per_s", "Operations a second"),
        ("write_amp", "Write amplification: device bytes a byte put"),
        (
            "space_amp",
            "Space amplification: bytes on disk a live byte",
        ),
        ("restart_seconds", "Seconds from the open to the first get"),
        ("device_reads_per_op", "Device reads an operation"),
        ("peak_rss_bytes", "Peak memory, bytes"),
    ] {
        let all: Vec<Bar> = runs.iter().filter_map(|r| r.bar(figure)).collect();
        if !all.is_empty() {
            let _ = write!(out, "<div>{}</div>", bars(title, &all));
        }
    }
    time_series(&runs, out);
    ratios(value, workload, threads, out);
    out.push_str("</div>");
    table(&runs, out);
}

/// Draws throughput over time and the latency curve of each engine's median run.
fn time_series(runs: &[Runs<'_>], out: &mut String) {
    let mut longest: f64 = 0.0;
    let (mut rates, mut curves) = (Vec::new(), Vec::new());
    for r in runs {
        let Some(row) = r.middle() else { continue };
        let windows = row["windows"].as_array().map_or(&[][..], Vec::as_slice);
        let points: Vec<(f64, f64)> = windows
            .iter()
            .enumerate()
            .filter_map(|(i, v)| Some((i as f64 + 1.0, v.as_f64()?)))
            .collect();
        longest = longest.max(points.len() as f64);
        rates.push(Line {
            class: r.class.clone(),
            points,
        });
        let curve = row["latency_us"].as_array().map_or(&[][..], Vec::as_slice);
        curves.push(Line {
            class: r.class.clone(),
            points: curve
                .iter()
                .filter_map(|p| Some((nines(p[0].as_f64()?), p[1].as_f64()?)))
                .collect(),
        });
    }
    // A line needs two points.
    if longest > 1.0 {
        let chart = lines(
            "Operations in each second",
            &rates,
            false,
            &seconds(longest),
        );
        let _ = write!(out, "<div>{chart}</div>");
    }
    let ticks = [
        (0.5, "p50"),
        (0.9, "p90"),
        (0.99, "p99"),
        (0.999, "p99.9"),
        (0.9999, "p99.99"),
        (1.0, "max"),
    ]
    .map(|(q, name)| (nines(q), name.to_string()))
    .to_vec();
    let chart = lines(
        "Latency, us, slowest parts to the right",
        &curves,
        true,
        &ticks,
    );
    if !chart.is_empty() {
        let _ = write!(out, "<div>{chart}</div>");
    }
}

fn ratios(value: &Value, workload: &str, threads: u64, out: &mut String) {
    let ratios = value["ratios"].as_array().map_or(&[][..], Vec::as_slice);
    let mut against: Vec<&str> = ratios
        .iter()
        .filter_map(|r| r["against"].as_str())
        .collect();
    against.dedup();
    against.sort_unstable();
    against.dedup();
    for peer in against {
        let of_peer: Vec<&Value> = ratios
            .iter()
            .filter(|r| {
                r["workload"] == workload && r["threads"] == threads && r["against"] == *peer
            })
            .collect();
        let all: Vec<Dot> = of_peer
            .iter()
            .filter_map(|r| {
                let figure = r["figure"].as_str()?;
                let label = METRICS
                    .iter()
                    .find(|f| f.0 == figure)
                    .map_or(figure, |f| f.1);
                let short_label = label.split([',', '/']).next().unwrap_or(label);
                Some(Dot {
                    label: match short_label.strip_prefix("deviation") {
                        Some(_) => "deviation".into(),
                        None => short_label.into(),
                    },
                    ratio: r["ratio"].as_f64()?,
                    interval: r["low"].as_f64().zip(r["high"].as_f64()),
                })
            })
            .collect();
        if let Some(first) = of_peer.first() {
            let title = format!(
                "Ratios of {} to {peer}, with 95 % intervals over {} pairs",
                first["engine"].as_str().unwrap_or("?"),
                first["pairs"]
            );
            let _ = write!(out, "<div>{}</div>", dots(&title, &all));
        }
    }
}

fn table(runs: &[Runs<'_>], out: &mut String) {
    out.push_str("<table><tr><th></th>");
    for r in runs {
        let _ = write!(out, "<th>{}</th>", escape(r.name));
    }
    out.push_str("</tr>");
    for (figure, label) in METRICS {
        let medians: Vec<Option<f64>> = runs.iter().map(|r| median(&r.values(figure))).collect();
        if medians.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(out, "<tr><td>{label}</td>");
        for m in medians {
            let _ = write!(out, "<td>{}</td>", m.map_or("–".into(), short));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table>");
}

#[cfg(test)]
mod tests;
