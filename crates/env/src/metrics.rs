//! A registry of counters, gauges and histograms, read by `stats`, INFO and the metrics page.
//!
//! Promises: recording takes no lock and allocates nothing once warm; reading is a snapshot in a stable order
//! (by name, then by labels); a handle outlives the removal of its entry and records into nothing then.

mod source;
mod text;

use crate::sync::Mutex;
pub use source::MetricSource;
use source::Sources;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// A number that only grows.
#[derive(Clone)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Clone)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Sets.
    pub fn set(&self, n: i64) {
        self.0.store(n, Relaxed);
    }
    /// Adds.
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Relaxed);
    }
    /// The value.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Buckets to a power of two: a bucket is at most 1/32 of its values wide, and its middle at most
/// 1/64 (1.6 %) off.
const SUB: usize = 32;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Tier 0 holds 0..32 exactly; tier `t` holds `[2^(t+4), 2^(t+5))`; the last ends at `u64::MAX`.
const TIERS: usize = (64 - SUB_BITS + 1) as usize;

type Tier = [AtomicU64; SUB];

struct Buckets {
    /// Made when first hit: an idle histogram costs about a kilobyte, a busy one 256 bytes a tier more.
    tiers: [OnceLock<Box<Tier>>; TIERS],
    sum: AtomicU64,
    max: AtomicU64,
    min: AtomicU64,
}

fn place(value: u64) -> (usize, usize) {
    if value < SUB as u64 {
        return (0, value as usize);
    }
    let top = 63 - value.leading_zeros();
    let shift = top - SUB_BITS;
    ((shift + 1) as usize, (value >> shift) as usize - SUB)
}

/// The middle of a bucket.
fn value_at(tier: usize, sub: usize) -> u64 {
    if tier == 0 {
        return sub as u64;
    }
    let shift = (tier - 1) as u32;
    let low = ((SUB + sub) as u64) << shift;
    low + ((1u64 << shift) >> 1)
}

/// A histogram of durations or sizes with a relative error of at most 1.6 %, safe to record into from many threads.
/// Covers all of `u64`; values below 32 are exact.
#[derive(Clone)]
pub struct Histogram(Arc<Buckets>);

/// What a histogram held at one moment. The quantiles carry the histogram's error; the rest is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistogramSummary {
    /// Number of values.
    pub count: u64,
    /// Sum of values, modulo 2^64.
    pub sum: u64,
    /// Smallest value; 0 when empty.
    pub min: u64,
    /// Largest value; 0 when empty.
    pub max: u64,
    /// The median.
    pub p50: u64,
    /// 90 % are at most this.
    pub p90: u64,
    /// 99 % are at most this.
    pub p99: u64,
    /// 99.9 % are at most this.
    pub p999: u64,
}

impl Histogram {
    /// An empty one, outside any registry.
    pub fn new() -> Histogram {
        Histogram(Arc::new(Buckets {
            tiers: [const { OnceLock::new() }; TIERS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
        }))
    }

    fn bucket(&self, tier: usize, sub: usize) -> &AtomicU64 {
        &self.0.tiers[tier].get_or_init(|| Box::new([const { AtomicU64::new(0) }; SUB]))[sub]
    }

    fn note_extremes(&self, min: u64, max: u64) {
        // The plain load first keeps the line shared: extremes change seldom.
        if max > self.0.max.load(Relaxed) {
            self.0.max.fetch_max(max, Relaxed);
        }
        if min < self.0.min.load(Relaxed) {
            self.0.min.fetch_min(min, Relaxed);
        }
    }

    /// Records one value (by convention microseconds for times).
    pub fn record(&self, value: u64) {
        let (tier, sub) = place(value);
        self.note_extremes(value, value);
        self.0.sum.fetch_add(value, Relaxed);
        self.bucket(tier, sub).fetch_add(1, Relaxed);
    }

    /// The filled buckets in rising order: middle and count.
    fn filled(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for (t, tier) in self.0.tiers.iter().enumerate() {
            for (s, bucket) in tier.get().into_iter().flat_map(|t| t.iter()).enumerate() {
                let n = bucket.load(Relaxed);
                if n > 0 {
                    out.push((value_at(t, s), n));
                }
            }
        }
        out
    }

    fn quantile_of(&self, filled: &[(u64, u64)], count: u64, q: f64) -> u64 {
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (value, n) in filled {
            seen += n;
            if seen >= rank {
                // The extremes are known exactly; a middle may lie outside them.
                let (min, max) = (self.0.min.load(Relaxed), self.0.max.load(Relaxed));
                return (*value).max(min).min(max);
            }
        }
        0
    }

    /// The value at quantile `q` in 0..=1; 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let filled = self.filled();
        let count = filled.iter().map(|(_, n)| n).sum();
        self.quantile_of(&filled, count, q)
    }
    /// Number of values.
    pub fn count(&self) -> u64 {
        let tiers = self.0.tiers.iter().filter_map(|t| t.get());
        tiers.flat_map(|t| t.iter()).map(|b| b.load(Relaxed)).sum()
    }
    /// Sum of values, modulo 2^64.
    pub fn sum(&self) -> u64 {
        self.0.sum.load(Relaxed)
    }
    /// Largest value.
    pub fn max(&self) -> u64 {
        self.0.max.load(Relaxed)
    }
    /// Smallest value; 0 when empty.
    pub fn min(&self) -> u64 {
        match self.0.min.load(Relaxed) {
            u64::MAX if self.max() != u64::MAX => 0,
            min => min,
        }
    }
    /// Adds another's values.
    pub fn merge(&self, other: &Histogram) {
        for (t, tier) in other.0.tiers.iter().enumerate() {
            for (s, bucket) in tier.get().into_iter().flat_map(|t| t.iter()).enumerate() {
                let n = bucket.load(Relaxed);
                if n > 0 {
                    self.bucket(t, s).fetch_add(n, Relaxed);
                }
            }
        }
        self.0.sum.fetch_add(other.sum(), Relaxed);
        self.note_extremes(other.0.min.load(Relaxed), other.max());
    }
    /// Everything worth printing, from one pass over the buckets.
    pub fn summary(&self) -> HistogramSummary {
        let filled = self.filled();
        let count = filled.iter().map(|(_, n)| n).sum();
        let at = |q| self.quantile_of(&filled, count, q);
        HistogramSummary {
            count,
            sum: self.sum(),
            min: self.min(),
            max: self.max(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

type ReadCounter = Arc<dyn Fn() -> u64 + Send + Sync>;
type ReadGauge = Arc<dyn Fn() -> i64 + Send + Sync>;

#[derive(Clone)]
enum Metric {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
    CounterOf(ReadCounter),
    GaugeOf(ReadGauge),
}

impl Metric {
    /// The Prometheus type.
    fn kind(&self) -> &'static str {
        match self {
            Metric::Counter(_) | Metric::CounterOf(_) => "counter",
            Metric::Gauge(_) | Metric::GaugeOf(_) => "gauge",
            Metric::Histogram(_) => "summary",
        }
    }
    fn value(&self) -> MetricValue {
        match self {
            Metric::Counter(c) => MetricValue::Counter(c.get()),
            Metric::Gauge(g) => MetricValue::Gauge(g.get()),
            Metric::Histogram(h) => MetricValue::Histogram(h.summary()),
            Metric::CounterOf(read) => MetricValue::Counter(read()),
            Metric::GaugeOf(read) => MetricValue::Gauge(read()),
        }
    }
}

/// A metric's value at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricValue {
    /// Of a [`Counter`].
    Counter(u64),
    /// Of a [`Gauge`].
    Gauge(i64),
    /// Of a [`Histogram`].
    Histogram(HistogramSummary),
}

/// One metric as [`Metrics::snapshot`] gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricSample {
    /// As registered, without prefix.
    pub name: String,
    /// Sorted by label name.
    pub labels: Vec<(String, String)>,
    /// One line.
    pub help: String,
    /// The value.
    pub value: MetricValue,
}

type Labels = Vec<(String, String)>;

struct Family {
    help: String,
    kind: &'static str,
    series: BTreeMap<Labels, Metric>,
}

/// The registry. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<BTreeMap<String, Family>>>, Sources);

impl Metrics {
    /// An empty registry.
    pub fn new() -> Metrics {
        Metrics(Arc::default(), Sources::default())
    }

    /// Finds or makes a series. A name used for two kinds of metric is a mistake in the program.
    fn series(&self, name: &str, labels: &[(&str, &str)], help: &str, new: Metric) -> Metric {
        let mut key: Labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_string(), (*v).to_string()))
            .collect();
        key.sort();
        let mut families = self.0.lock();
        let family = families.entry(name.to_string()).or_insert_with(|| Family {
            help: help.to_string(),
            kind: new.kind(),
            series: BTreeMap::new(),
        });
        let found = family.series.entry(key).or_insert_with(|| new.clone());
        assert!(
            family.kind == new.kind()
                && std::mem::discriminant(found) == std::mem::discriminant(&new),
            "metric {name} is already registered as another kind ({})",
            family.kind
        );
        found.clone()
    }

    /// The counter `name` (snake case, unit last, such as `wal_bytes`) with `labels`, made when new. `help` is one line.
    pub fn counter(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Counter {
        let new = Metric::Counter(Counter(Arc::default()));
        match self.series(name, labels, help, new) {
            Metric::Counter(c) => c,
            _ => unreachable!("the kind was just compared"),
        }
    }
    /// The gauge `name`.
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Gauge {
        let new = Metric::Gauge(Gauge(Arc::default()));
        match self.series(name, labels, help, new) {
            Metric::Gauge(g) => g,
            _ => unreachable!("the kind was just compared"),
        }
    }
    /// The histogram `name`.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Histogram {
        let new = Metric::Histogram(Histogram::new());
        match self.series(name, labels, help, new) {
            Metric::Histogram(h) => h,
            _ => unreachable!("the kind was just compared"),
        }
    }
    /// A counter kept elsewhere and read when the metrics are. `read` must not keep what it reads from alive
    /// longer than wanted: the registry holds it until [`Metrics::remove_labelled`]. The first of a name and labels stays.
    pub fn counter_of(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        help: &str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.series(name, labels, help, Metric::CounterOf(Arc::new(read)));
    }
    /// A gauge kept elsewhere, as [`Metrics::counter_of`].
    pub fn gauge_of(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        help: &str,
        read: impl Fn() -> i64 + Send + Sync + 'static,
    ) {
        self.series(name, labels, help, Metric::GaugeOf(Arc::new(read)));
    }
    /// Drops every metric that has this label pair: an engine that closes takes its own away.
    pub fn remove_labelled(&self, label: (&str, &str)) {
        let mut dropped = Vec::new();
        let mut families = self.0.lock();
        for family in families.values_mut() {
            let has = |key: &Labels| key.iter().any(|(k, v)| (k.as_str(), v.as_str()) == label);
            dropped.extend(family.series.extract_if(.., |key, _| has(key)));
        }
        families.retain(|_, family| !family.series.is_empty());
        // What a reader function owned is dropped after the lock.
        drop(families);
    }

    /// All metrics, by name and then by labels.
    pub fn snapshot(&self) -> Vec<MetricSample> {
        // Reader functions run without the lock: they may take others.
        let metrics: Vec<_> =
            self.0
                .lock()
                .iter()
                .flat_map(|(name, family)| {
                    family.series.iter().map(move |(k, m)| {
                        (name.clone(), k.clone(), family.help.clone(), m.clone())
                    })
                })
                .collect();
        let sample = |(name, labels, help, metric): (_, _, _, Metric)| MetricSample {
            name,
            labels,
            help,
            value: metric.value(),
        };
        let mut all: Vec<_> = metrics.into_iter().map(sample).collect();
        self.1.read_into(&mut all);
        all
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}
