//! A registry of counters, gauges and histograms, read by `stats`, INFO and the metrics page.
//!
//! Promises: recording takes no lock, and allocates nothing once warm. Reading gives a snapshot in
//! a stable order (by name, then by labels). A handle outlives the removal of its entry; values
//! recorded after that are lost.

mod group;
mod source;
mod text;

use crate::sync::Mutex;
pub use basalt_fs::{Histogram, HistogramSummary};
use group::Groups;
pub use group::{CounterGroup, CounterRow};
pub use source::MetricSource;
use source::Sources;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// A number that only grows. The default one is 0 and in no registry.
#[derive(Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
    /// Adds `n` without a locked instruction. The caller must hold a lock that all threads take to
    /// add to this counter. Otherwise counts are lost.
    pub fn add_exclusive(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that rises and falls.
#[derive(Clone)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, n: i64) {
        self.0.store(n, Relaxed);
    }
    /// Adds `n`.
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Relaxed);
    }
    /// Returns the value.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// A registered metric.
#[derive(Clone)]
enum Metric {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

impl Metric {
    /// Returns the Prometheus type.
    fn kind(&self) -> &'static str {
        match self {
            Metric::Counter(_) => "counter",
            Metric::Gauge(_) => "gauge",
            Metric::Histogram(_) => "summary",
        }
    }
    fn value(&self) -> MetricValue {
        match self {
            Metric::Counter(c) => MetricValue::Counter(c.get()),
            Metric::Gauge(g) => MetricValue::Gauge(g.get()),
            Metric::Histogram(h) => MetricValue::Histogram(h.summary()),
        }
    }
}

/// A metric's value at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricValue {
    /// The value of a [`Counter`].
    Counter(u64),
    /// The value of a [`Gauge`].
    Gauge(i64),
    /// The value of a [`Histogram`].
    Histogram(HistogramSummary),
}

/// One metric, as [`Metrics::snapshot`] returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricSample {
    /// The name as registered, without prefix.
    pub name: String,
    /// Names and values of the labels, sorted by name.
    pub labels: Vec<(String, String)>,
    /// The help text, one line.
    pub help: String,
    /// Returns the value.
    pub value: MetricValue,
}

/// Labels, sorted by name. The series and the index of labels share them.
type Labels = Arc<Vec<(String, String)>>;

/// All series of one name.
struct MetricFamily {
    /// The name, which the index of labels shares.
    name: Arc<str>,
    help: String,
    kind: &'static str,
    series: BTreeMap<Labels, (SeriesId, Metric)>,
}

/// Number of a series, in the order in which series were made. An engine makes some hundreds of
/// series each time it opens, and numbers are compared faster than names.
type SeriesId = u64;

/// The key of a series: the name of its metric, and its labels.
type SeriesKey = (Arc<str>, Labels);

/// The registered series, by name and by label.
#[derive(Default)]
struct SeriesMaps {
    families: BTreeMap<Arc<str>, MetricFamily>,
    /// The series that have each label, so that an engine that closes pays only for its own series.
    labelled: BTreeMap<(String, String), BTreeMap<SeriesId, SeriesKey>>,
    /// The id of the next new series.
    next_id: SeriesId,
    /// The labels of the last call. An engine registers many series with the same labels in a row,
    /// and these then share one copy.
    last_labels: Labels,
}

/// Returns true if `labels` are the given pairs in the same order.
fn is_pairs(labels: &Labels, pairs: &[(&str, &str)]) -> bool {
    let same = |((a, b), (c, d)): (&(String, String), &(&str, &str))| a == c && b == d;
    labels.len() == pairs.len() && labels.iter().zip(pairs).all(same)
}

/// Returns the pairs as labels.
fn sorted_pairs(pairs: &[(&str, &str)]) -> Labels {
    let owned = |(k, v): &(&str, &str)| ((*k).to_string(), (*v).to_string());
    let mut labels: Vec<_> = pairs.iter().map(owned).collect();
    labels.sort();
    Arc::new(labels)
}

/// The registry. Cloning is cheap.
#[derive(Clone)]
pub struct Metrics {
    series: Arc<Mutex<SeriesMaps>>,
    sources: Sources,
    groups: Groups,
}

impl Metrics {
    /// Returns an empty registry.
    pub fn new() -> Metrics {
        Metrics {
            series: Arc::default(),
            sources: Sources::default(),
            groups: Groups::default(),
        }
    }

    /// Finds or makes a series. It is a mistake of the program to use a name for two kinds of
    /// metric.
    fn series(&self, name: &str, labels: &[(&str, &str)], help: &str, new: Metric) -> Metric {
        let mut registered = self.series.lock();
        let SeriesMaps {
            families,
            labelled,
            next_id,
            last_labels,
        } = &mut *registered;
        if !is_pairs(last_labels, labels) {
            *last_labels = sorted_pairs(labels);
        }
        let key = &*last_labels;
        if !families.contains_key(name) {
            let family = MetricFamily {
                name: name.into(),
                help: help.to_string(),
                kind: new.kind(),
                series: BTreeMap::new(),
            };
            families.insert(family.name.clone(), family);
        }
        let family = families.get_mut(name).expect("it was just made");
        let shared = &family.name;
        let (_, found) = family.series.entry(key.clone()).or_insert_with(|| {
            *next_id += 1;
            for label in key.iter() {
                let place = (shared.clone(), key.clone());
                match labelled.get_mut(label) {
                    Some(with_it) => {
                        with_it.insert(*next_id, place);
                    }
                    None => {
                        labelled.insert(label.clone(), BTreeMap::from([(*next_id, place)]));
                    }
                }
            }
            (*next_id, new.clone())
        });
        assert!(
            family.kind == new.kind()
                && std::mem::discriminant(found) == std::mem::discriminant(&new),
            "metric {name} is already registered as another kind ({})",
            family.kind
        );
        found.clone()
    }

    /// Returns the counter `name` (snake case, unit last, such as `wal_bytes`) with `labels`, and
    /// makes it if it is new. `help` is one line.
    pub fn counter(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Counter {
        let new = Metric::Counter(Counter(Arc::default()));
        match self.series(name, labels, help, new) {
            Metric::Counter(c) => c,
            _ => unreachable!("the kind was just compared"),
        }
    }
    /// Returns the gauge `name`, and makes it if it is new.
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Gauge {
        let new = Metric::Gauge(Gauge(Arc::default()));
        match self.series(name, labels, help, new) {
            Metric::Gauge(g) => g,
            _ => unreachable!("the kind was just compared"),
        }
    }
    /// Returns the histogram `name`, and makes it if it is new.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)], help: &str) -> Histogram {
        let new = Metric::Histogram(Histogram::new());
        match self.series(name, labels, help, new) {
            Metric::Histogram(h) => h,
            _ => unreachable!("the kind was just compared"),
        }
    }
    /// Drops every series that has this label pair. An engine that closes drops its own series. The
    /// cost grows with the number of series dropped, not with the number of all series.
    pub fn remove_labelled(&self, label: (&str, &str)) {
        let mut dropped = Vec::new();
        let mut registered = self.series.lock();
        let SeriesMaps {
            families, labelled, ..
        } = &mut *registered;
        let gone = labelled.remove(&(label.0.to_string(), label.1.to_string()));
        for (id, (name, key)) in gone.unwrap_or_default() {
            let family = families.get_mut(&name).expect("as long as its series");
            dropped.extend(family.series.remove(&key));
            if family.series.is_empty() {
                families.remove(&name);
            }
            for other in key
                .iter()
                .filter(|(k, v)| (k.as_str(), v.as_str()) != label)
            {
                let of_other = labelled.get_mut(other).expect("as long as its series");
                of_other.remove(&id);
                if of_other.is_empty() {
                    labelled.remove(other);
                }
            }
        }
        // The values that a reader function owns are dropped after the lock is released.
        drop(registered);
    }

    /// Returns all metrics, by name and then by labels.
    pub fn snapshot(&self) -> Vec<MetricSample> {
        // Reader functions run without the lock, because they may take other locks.
        let metrics: Vec<_> = self
            .series
            .lock()
            .families
            .iter()
            .flat_map(|(name, family)| {
                family.series.iter().map(move |(k, (_, m))| {
                    (name.to_string(), k.to_vec(), family.help.clone(), m.clone())
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
        self.sources.read_into(&mut all);
        all
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}
