//! Statistics of an open log engine.

use crate::catalog::Role;
use crate::engine::Engine;
use basalt_env::sync::atomic::Ordering::SeqCst;

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
    /// Bytes of memory of the indexes, without the pages in the block cache.
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
}

impl Engine {
    /// Returns the statistics of the engine. Costs time in proportion to the number of logs and of
    /// pages.
    pub fn stats(&self) -> LogEngineStats {
        let mut stats = LogEngineStats::default();
        for log in self.namespace.all() {
            let inner = log.lock();
            stats.logs += 1;
            stats.records += inner.index.count();
            stats.live_bytes += inner.index.bytes();
            stats.index_bytes += (inner.index.memory() + size_of_val(&*inner)) as u64;
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
