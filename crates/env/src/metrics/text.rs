//! The registry in the text format of Prometheus.

use super::{MetricValue, Metrics};
use std::fmt::Write;

impl Metrics {
    /// Returns all metrics in Prometheus text format (version 0.0.4). Every name has the prefix
    /// `basalt_`. A histogram becomes a summary, and the quantiles of an empty one are `NaN`.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let mut family = None;
        for sample in self.snapshot() {
            let name = format!("basalt_{}", legal_name(&sample.name));
            if family.as_ref() != Some(&sample.name) {
                let kind = match sample.value {
                    MetricValue::Counter(_) => "counter",
                    MetricValue::Gauge(_) => "gauge",
                    MetricValue::Histogram(_) => "summary",
                };
                let help = sample.help.replace('\\', "\\\\").replace('\n', "\\n");
                let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
                family = Some(sample.name.clone());
            }
            let labels = label_text(&sample.labels);
            let plain = braces(&labels);
            match sample.value {
                MetricValue::Counter(n) => {
                    let _ = writeln!(out, "{name}{plain} {n}");
                }
                MetricValue::Gauge(n) => {
                    let _ = writeln!(out, "{name}{plain} {n}");
                }
                MetricValue::Histogram(h) => {
                    let quantiles = [
                        ("0.5", h.p50),
                        ("0.9", h.p90),
                        ("0.99", h.p99),
                        ("0.999", h.p999),
                    ];
                    for (q, value) in quantiles {
                        let comma = if labels.is_empty() { "" } else { "," };
                        let _ = write!(out, "{name}{{{labels}{comma}quantile=\"{q}\"}} ");
                        let _ = match h.count {
                            0 => writeln!(out, "NaN"),
                            _ => writeln!(out, "{value}"),
                        };
                    }
                    let _ = writeln!(out, "{name}_sum{plain} {}", h.sum);
                    let _ = writeln!(out, "{name}_count{plain} {}", h.count);
                }
            }
        }
        out
    }
}

/// Returns the name with every character but letters, digits and underscores replaced by an
/// underscore.
fn legal_name(name: &str) -> String {
    let legal = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c
        } else {
            '_'
        }
    };
    name.chars().map(legal).collect()
}

fn label_text(labels: &[(String, String)]) -> String {
    let mut out = String::new();
    for (i, (k, v)) in labels.iter().enumerate() {
        let v = v
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{}=\"{v}\"", legal_name(k));
    }
    out
}

fn braces(labels: &str) -> String {
    if labels.is_empty() {
        String::new()
    } else {
        format!("{{{labels}}}")
    }
}
