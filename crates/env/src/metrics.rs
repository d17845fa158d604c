//! A registry of counters, gauges and histograms, read by `stats`, INFO and the metrics page.

use std::sync::Arc;

/// A number that only grows.
#[derive(Clone)]
pub struct Counter(Arc<std::sync::atomic::AtomicU64>);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
    }
    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Clone)]
pub struct Gauge(Arc<std::sync::atomic::AtomicI64>);

impl Gauge {
    /// Sets.
    pub fn set(&self, n: i64) {
        self.0.store(n, std::sync::atomic::Ordering::Relaxed);
    }
    /// Adds.
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
    }
    /// The value.
    pub fn get(&self) -> i64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A histogram of durations or sizes with a relative error of a few percent, safe to record into from many threads.
#[derive(Clone)]
pub struct Histogram(Arc<()>);

impl Histogram {
    /// An empty one, outside any registry.
    pub fn new() -> Histogram {
        todo!()
    }
    /// Records one value (by convention microseconds for times).
    pub fn record(&self, value: u64) {
        let _ = value;
        todo!()
    }
    /// The value at quantile `q` in 0..=1; 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let _ = q;
        todo!()
    }
    /// Number of values.
    pub fn count(&self) -> u64 {
        todo!()
    }
    /// Sum of values.
    pub fn sum(&self) -> u64 {
        todo!()
    }
    /// Largest value.
    pub fn max(&self) -> u64 {
        todo!()
    }
    /// Adds another's values.
    pub fn merge(&self, other: &Histogram) {
        let _ = other;
        todo!()
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

/// The registry. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<()>);

impl Metrics {
    /// An empty registry.
    pub fn new() -> Metrics {
        todo!()
    }
    /// The counter `name` (snake case, unit last, such as `wal_bytes`) with `labels`, made when new. `help` is one line.
    pub fn counter(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Counter {
        let _ = (name, labels, help);
        todo!()
    }
    /// The gauge `name`.
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Gauge {
        let _ = (name, labels, help);
        todo!()
    }
    /// The histogram `name`.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Histogram {
        let _ = (name, labels, help);
        todo!()
    }
    /// Drops every metric that has this label pair: an engine that closes takes its own away.
    pub fn remove_labelled(&self, label: (&str, &str)) {
        let _ = label;
        todo!()
    }
    /// All metrics in Prometheus text format, every name prefixed `basalt_`.
    pub fn prometheus(&self) -> String {
        todo!()
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}
