//! The interface of a measured log engine, so that the same workloads measure all of them.
//!
//! Peers are built only with their features (`peer-rocksdb`, `peer-raft-engine`, `peer-raft-log`).
//! For an engine that was not built, the error says how to build it.

mod basalt;
#[cfg(feature = "peer-raft-engine")]
mod raft_engine;
#[cfg(feature = "peer-raft-log")]
mod raft_log;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;

use super::LogBudget;
use crate::Stop;
use crate::engine::Read;
use ::basalt::fs::FsStats;
use clap::ValueEnum;
use serde_json::Value;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

/// The engines of `log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogEngineName {
    /// Basalt's log engine
    Basalt,
    /// Basalt's log engine, with each store in an image with LavaFS (--image-size)
    BasaltLava,
    /// RocksDB with a key for each record, as TiKV configured it for Raft logs (needs the feature
    /// peer-rocksdb)
    Rocksdb,
    /// TiKV's raft-engine, with recycled and prefilled files (needs the feature peer-raft-engine)
    RaftEngine,
    /// The crate raft-log, which keeps one log (needs the feature peer-raft-log)
    RaftLog,
}

impl LogEngineName {
    /// Returns the name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            LogEngineName::Basalt => "basalt",
            LogEngineName::BasaltLava => "basalt-lava",
            LogEngineName::Rocksdb => "rocksdb",
            LogEngineName::RaftEngine => "raft-engine",
            LogEngineName::RaftLog => "raft-log",
        }
    }

    /// Returns an error that says how to build an engine, if this program was built without it.
    pub fn check_built(self) -> Result<(), Stop> {
        let built = match self {
            LogEngineName::Basalt | LogEngineName::BasaltLava => true,
            LogEngineName::Rocksdb => cfg!(feature = "peer-rocksdb"),
            LogEngineName::RaftEngine => cfg!(feature = "peer-raft-engine"),
            LogEngineName::RaftLog => cfg!(feature = "peer-raft-log"),
        };
        if built {
            return Ok(());
        }
        let word = self.word();
        Err(Stop::new(format!(
            "this program was built without {word}: build it with `cargo build --release -p basalt-bench --features peer-{word}`, \
             as docs/benchmarks.md says"
        )))
    }
}

/// The operations of a log engine that workloads use. Calls come from many threads. Logs are
/// numbered from 0, and the LSNs of a log from 1.
pub trait LogStore: Send + Sync {
    /// Returns the name and version for reports.
    fn name(&self) -> String;
    /// Returns the full configuration, as the engine itself reports it.
    fn configuration(&self) -> Value;
    /// Appends a record. If `synced` is true, it survives a power cut on return.
    fn append(&self, log: u64, lsn: u64, data: &[u8], synced: bool) -> Result<(), Stop>;
    /// Appends records with consecutive LSNs from `first` on in one batch, unsynced.
    fn append_batch(&self, log: u64, first: u64, records: &[Vec<u8>]) -> Result<(), Stop>;
    /// Removes the records `from` to `up_to`, which are the oldest of the log, unsynced.
    fn trim(&self, log: u64, from: u64, up_to: u64) -> Result<(), Stop>;
    /// Removes a range that need not be the oldest of the log. Returns false if the engine cannot
    /// do that. The records then stay.
    fn remove(&self, log: u64, range: RangeInclusive<u64>) -> Result<bool, Stop>;
    /// Calls `show` with the record of an LSN, without a copy if the engine can do that. Returns
    /// true if there is one.
    fn read(&self, log: u64, lsn: u64, show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop>;
    /// Calls `show` with all records of a log from the first to the last.
    fn iterate(&self, log: u64, show: &mut dyn FnMut(u64, &[u8])) -> Result<(), Stop>;
    /// Returns the LSNs of the first and the last record of a log, or `None` if it is empty.
    /// Engines without an index in memory find them on disk.
    fn bounds(&self, log: u64) -> Result<Option<(u64, u64)>, Stop>;
    /// Returns the maximal ranges inside `range` without a record.
    fn gaps(&self, log: u64, range: RangeInclusive<u64>) -> Result<Vec<RangeInclusive<u64>>, Stop>;
    /// Does once what programs have to do after an open before they know their logs. Engines that
    /// keep an index of all records in memory have done that in the open.
    fn load(&self) -> Result<(), Stop> {
        Ok(())
    }
    /// Does what programs have to do from time to time, such as the purge of old files. Called
    /// every second while a workload runs.
    fn maintain(&self) -> Result<(), Stop> {
        Ok(())
    }
    /// Returns the bytes of memory that the engine needs to find records, by its own count, or
    /// `None` if it has none.
    fn index_bytes(&self) -> Option<u64>;
    /// Returns the engine's own counters of bytes written and read, if it has any.
    fn accounting(&self) -> Option<FsStats> {
        None
    }
    /// Returns how reads of the device can be counted.
    fn reads(&self) -> Read;
    /// Makes everything durable and ends background work.
    fn close(&self) -> Result<(), Stop>;
}

/// Opens an engine with `logs` logs on the directory `dir`/`name`, and makes them if they are
/// missing.
pub fn open(
    engine: LogEngineName,
    dir: &Path,
    name: &str,
    logs: u64,
    budget: &LogBudget,
) -> Result<Arc<dyn LogStore>, Stop> {
    engine.check_built()?;
    match engine {
        LogEngineName::Basalt | LogEngineName::BasaltLava => Ok(Arc::new(
            basalt::BasaltLogs::open(engine, dir, name, logs, budget)?,
        )),
        #[cfg(feature = "peer-rocksdb")]
        LogEngineName::Rocksdb => Ok(Arc::new(rocksdb::RocksLogs::open(
            &dir.join(name),
            logs,
            budget,
        )?)),
        #[cfg(feature = "peer-raft-engine")]
        LogEngineName::RaftEngine => Ok(Arc::new(raft_engine::RaftEngineLogs::open(
            &dir.join(name),
            budget,
        )?)),
        #[cfg(feature = "peer-raft-log")]
        LogEngineName::RaftLog => Ok(Arc::new(raft_log::RaftLogLog::open(
            &dir.join(name),
            budget,
        )?)),
        #[cfg(not(all(
            feature = "peer-rocksdb",
            feature = "peer-raft-engine",
            feature = "peer-raft-log"
        )))]
        _ => Err(Stop::new("an engine that was not built was let through")),
    }
}
