//! Statistics of an open log engine.

use crate::catalog::Role;
use crate::engine::Engine;
use crate::index::Freed;
use crate::physical::ReadableFile;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_env::{MetricSample, MetricValue};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the logs of a store have, and what it costs. All numbers are of one moment, but not of the
/// same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LogEngineStats {
    /// Number of logical logs.
    pub logs: u64,
    /// Number of records of all logs.
    pub records: u64,
    /// Bytes of all records, their heads included.
    pub live_bytes: u64,
    /// Bytes of files with records that take no more of them.
    pub ended_bytes: u64,
    /// Live bytes in these files.
    pub ended_live_bytes: u64,
    /// Number of files with records.
    pub data_files: u64,
    /// Number of files with operations and pages of the index.
    pub meta_files: u64,
    /// Bytes of memory of the logs and their indexes, without the pages in the block cache and the
    /// reverse indexes that are being built.
    pub index_bytes: u64,
    /// Pages of the indexes.
    pub index_pages: u64,
}

impl LogEngineStats {
    /// Returns the bytes of ended files for each live byte in them, or 1 if nothing is live.
    pub fn space_amp(&self) -> f64 {
        match self.ended_live_bytes {
            0 => 1.0,
            live => self.ended_bytes as f64 / live as f64,
        }
    }

    /// Returns the bytes of memory of the indexes for each live byte, or 0 if nothing is live.
    pub fn index_per_live_byte(&self) -> f64 {
        match self.live_bytes {
            0 => 0.0,
            live => self.index_bytes as f64 / live as f64,
        }
    }
}

/// Name and help text of a gauge, and its value.
type Row = (&'static str, &'static str, fn(&LogEngineStats) -> u64);

const GAUGES: &[Row] = &[
    ("logs", "Logical logs", |s| s.logs),
    ("log_records", "Records of all logs", |s| s.records),
    ("log_live_bytes", "Bytes of all records of all logs", |s| {
        s.live_bytes
    }),
    (
        "log_ended_bytes",
        "Bytes of files with records that take no more of them",
        |s| s.ended_bytes,
    ),
    (
        "log_ended_live_bytes",
        "Live bytes in files with records that take no more of them",
        |s| s.ended_live_bytes,
    ),
    ("log_data_files", "Files with records of logs", |s| {
        s.data_files
    }),
    (
        "log_meta_files",
        "Files with operations and pages of indexes",
        |s| s.meta_files,
    ),
    ("log_index_bytes", "Bytes of memory of the indexes", |s| {
        s.index_bytes
    }),
    (
        "log_index_bytes_per_live_mb",
        "Bytes of memory of the indexes for each million live bytes",
        |s| (s.index_per_live_byte() * 1e6) as u64,
    ),
    ("log_index_pages", "Pages of the indexes", |s| s.index_pages),
    (
        "log_space_amp_percent",
        "Bytes of ended files for each hundred live ones in them",
        |s| (s.space_amp() * 100.0) as u64,
    ),
];

impl LogEngineStats {
    /// Appends the statistics as gauges.
    pub(crate) fn samples(&self, store: &str, out: &mut Vec<MetricSample>) {
        let labels = [("store", store)];
        out.extend(GAUGES.iter().map(|(name, help, value)| {
            let value = i64::try_from(value(self)).unwrap_or(i64::MAX);
            MetricSample::new(name, &labels, help, MetricValue::Gauge(value))
        }));
    }
}

impl Engine {
    /// Returns the files whose live bytes are not those of the indexes, with the bytes of the
    /// indexes. None is right only while nothing appends, trims or moves records.
    pub fn miscounted(&self) -> Vec<(Arc<ReadableFile>, u64)> {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for log in self.namespace.all() {
            let mut live = Freed::default();
            log.lock().index.live(&mut live);
            for (file, bytes) in live.records.iter().chain(live.pages.iter()) {
                *sums.entry(file).or_default() += bytes;
            }
        }
        let with_sum = |file: Arc<ReadableFile>| {
            let sum = sums.get(&file.number).copied().unwrap_or(0);
            (file, sum)
        };
        let all = self.logs.all().into_iter().map(with_sum);
        all.filter(|(file, sum)| file.live.load(SeqCst) != *sum)
            .collect()
    }

    /// Returns the statistics of the engine. Costs time in proportion to the number of logs and of
    /// pages.
    pub fn stats(&self) -> LogEngineStats {
        let mut stats = LogEngineStats::default();
        for log in self.namespace.all() {
            let inner = log.lock();
            stats.logs += 1;
            stats.records += inner.index.count();
            stats.live_bytes += inner.index.bytes();
            stats.index_bytes += (log.fixed_memory() + inner.index.memory()) as u64;
            stats.index_pages += inner.index.pages() as u64;
        }
        for file in self.logs.all() {
            if file.role == Role::Meta {
                stats.meta_files += 1;
                continue;
            }
            stats.data_files += 1;
            if let Some(end) = file.end() {
                stats.ended_bytes += end.offset;
                stats.ended_live_bytes += file.live.load(SeqCst);
            }
        }
        stats
    }
}
