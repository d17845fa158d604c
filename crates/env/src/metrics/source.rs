//! Sources of metrics whose number is not known beforehand, such as one for each level of each
//! family. A source returns all of its samples when the registry is read.

use super::{MetricSample, MetricValue, Metrics};
use crate::sync::Mutex;
use std::sync::{Arc, Weak};

/// A function that appends the samples of a source.
type Read = Arc<dyn Fn(&mut Vec<MetricSample>) + Send + Sync>;

/// The registered sources, by the number of their handle.
#[derive(Clone, Default)]
pub(super) struct Sources(Arc<Mutex<SourceList>>);

/// The registered sources, and the number of the next one.
#[derive(Default)]
struct SourceList {
    next: u64,
    all: Vec<(u64, Read)>,
}

/// A registered source. When it is dropped, it leaves the registry.
#[must_use]
pub struct MetricSource {
    number: u64,
    /// The handle does not keep the registry's sources alive.
    sources: Weak<Mutex<SourceList>>,
}

impl Drop for MetricSource {
    fn drop(&mut self) {
        let Some(sources) = self.sources.upgrade() else {
            return;
        };
        let mut registered = sources.lock();
        let gone: Vec<_> = registered
            .all
            .extract_if(.., |(n, _)| *n == self.number)
            .collect();
        drop(registered);
        // The values that the reader owns are dropped after the lock is released.
        drop(gone);
    }
}

impl Sources {
    /// Adds a source, and returns its number.
    fn add(&self, read: Read) -> u64 {
        let mut registered = self.0.lock();
        let number = registered.next;
        registered.next += 1;
        registered.all.push((number, read));
        number
    }

    /// Adds the samples of all sources and sorts all samples. Two samples of one name and labels,
    /// as two stores of one name give them, become one: counters and gauges are added.
    pub(super) fn read_into(&self, samples: &mut Vec<MetricSample>) {
        let readers: Vec<Read> = self.0.lock().all.iter().map(|(_, r)| r.clone()).collect();
        if readers.is_empty() {
            return;
        }
        // Readers run without the lock, because they may take other locks.
        readers.iter().for_each(|read| read(samples));
        samples.sort_by(|a, b| (&a.name, &a.labels).cmp(&(&b.name, &b.labels)));
        samples.dedup_by(|later, first| {
            let same = (&later.name, &later.labels) == (&first.name, &first.labels);
            if same {
                debug_assert!(
                    std::mem::discriminant(&first.value) == std::mem::discriminant(&later.value),
                    "{} has two kinds",
                    first.name
                );
                match (&mut first.value, &later.value) {
                    (MetricValue::Counter(sum), MetricValue::Counter(n)) => *sum += n,
                    (MetricValue::Gauge(sum), MetricValue::Gauge(n)) => *sum += n,
                    _ => {}
                }
            }
            same
        });
    }
}

impl MetricSample {
    /// Returns a sample of a source. The labels may have any order.
    pub fn new(
        name: &str,
        labels: &[(&str, &str)],
        help: &str,
        value: MetricValue,
    ) -> MetricSample {
        let mut labels: Vec<_> = labels
            .iter()
            .map(|(k, v)| ((*k).to_string(), (*v).to_string()))
            .collect();
        labels.sort();
        MetricSample {
            name: name.to_string(),
            labels,
            help: help.to_string(),
            value,
        }
    }
}

impl Metrics {
    /// Registers `read`, which appends samples whenever the metrics are read. A name has one kind
    /// and one help text, also if a single metric of the registry has the name with other labels.
    /// `read` must not keep its source alive longer than wanted.
    pub fn source(
        &self,
        read: impl Fn(&mut Vec<MetricSample>) + Send + Sync + 'static,
    ) -> MetricSource {
        MetricSource {
            number: self.sources.add(Arc::new(read)),
            sources: Arc::downgrade(&self.sources.0),
        }
    }

    /// Registers `read` as [`Metrics::source`] does, for as long as the registry.
    pub(crate) fn permanent_source(
        &self,
        read: impl Fn(&mut Vec<MetricSample>) + Send + Sync + 'static,
    ) {
        self.sources.add(Arc::new(read));
    }
}
