//! The crate raft-log as a store of one log.

use super::LogStore;
use crate::Stop;
use crate::engine::{Read, host_directory, locked_version};
use crate::flags::Switch;
use crate::logs::LogBudget;
use basalt::env::sync::Mutex;
use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::{Config, RaftLog, Types};
use serde_json::{Value, json};
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Records as bytes, with their LSN as their id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Records;

impl Types for Records {
    type LogId = u64;
    type LogPayload = Vec<u8>;
    type Vote = u64;
    type Callback = SyncSender<Result<(), io::Error>>;
    type UserData = u64;

    fn log_index(lsn: &u64) -> u64 {
        *lsn
    }
    fn payload_size(payload: &Vec<u8>) -> u64 {
        payload.len() as u64
    }
}

pub(super) struct RaftLogLog {
    log: Mutex<RaftLog<Records>>,
    configuration: Value,
}

fn wrong(e: io::Error) -> Stop {
    Stop::new(format!("raft-log: {e}"))
}

impl RaftLogLog {
    pub(super) fn open(path: &Path, budget: &LogBudget) -> Result<RaftLogLog, Stop> {
        // raft-log makes no directory.
        host_directory(path, Switch::Off)?;
        let mut config = Config::new(path.display());
        // A single writer has nothing to wait for.
        config.wal.flush_batch_wait = Some(Duration::ZERO);
        config.wal.chunk_max_size = Some(budget.file_bytes as usize);
        config.wal.chunk_max_records = Some(usize::MAX);
        config.log_cache_capacity = Some(budget.cache as usize);
        let configuration = json!({
            "flush_batch_wait": 0, "chunk_max_size": config.wal.chunk_max_size,
            "log_cache_capacity": config.log_cache_capacity, "log_cache_max_items": config.log_cache_max_items(),
        });
        let log = RaftLog::open(Arc::new(config)).map_err(wrong)?;
        Ok(RaftLogLog {
            log: Mutex::new(log),
            configuration,
        })
    }

    /// Writes what was appended. If `synced` is true, waits until it survives a power cut. The lock
    /// is not held meanwhile.
    fn append_all(
        &self,
        records: impl Iterator<Item = (u64, Vec<u8>)>,
        synced: bool,
    ) -> Result<(), Stop> {
        let (send, receive) = sync_channel(1);
        let mut log = self.log.lock();
        log.append(records).map_err(wrong)?;
        // An unsynced record is handed to the thread that writes, and not waited for.
        log.flush(synced, synced.then_some(send)).map_err(wrong)?;
        drop(log);
        if !synced {
            return Ok(());
        }
        let written = receive
            .recv()
            .map_err(|_| Stop::new("raft-log: no answer to a flush"))?;
        written.map_err(wrong)
    }
}

impl LogStore for RaftLogLog {
    fn name(&self) -> String {
        format!("raft-log {}", locked_version("raft-log"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn append(&self, _log: u64, lsn: u64, data: &[u8], synced: bool) -> Result<(), Stop> {
        self.append_all(std::iter::once((lsn, data.to_vec())), synced)
    }
    fn append_batch(&self, _log: u64, first: u64, records: &[Vec<u8>]) -> Result<(), Stop> {
        self.append_all((first..).zip(records.iter().cloned()), false)
    }
    fn trim(&self, _log: u64, _from: u64, up_to: u64) -> Result<(), Stop> {
        self.log.lock().purge(up_to).map_err(wrong)?;
        Ok(())
    }
    fn remove(&self, _log: u64, _range: RangeInclusive<u64>) -> Result<bool, Stop> {
        Ok(false)
    }
    fn read(&self, _log: u64, lsn: u64, show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let log = self.log.lock();
        let found = log.read(lsn, lsn + 1).next().transpose().map_err(wrong)?;
        if let Some((_, data)) = &found {
            show(data);
        }
        Ok(found.is_some())
    }
    fn iterate(&self, _log: u64, show: &mut dyn FnMut(u64, &[u8])) -> Result<(), Stop> {
        let log = self.log.lock();
        for record in log.read(0, u64::MAX) {
            let (lsn, data) = record.map_err(wrong)?;
            show(lsn, &data);
        }
        Ok(())
    }
    fn bounds(&self, _log: u64) -> Result<Option<(u64, u64)>, Stop> {
        let log = self.log.lock();
        let state = log.log_state();
        let purged = state.purged().copied().unwrap_or(0);
        Ok(state
            .last()
            .filter(|last| **last > purged)
            .map(|last| (purged + 1, *last)))
    }
    fn gaps(&self, _: u64, _: RangeInclusive<u64>) -> Result<Vec<RangeInclusive<u64>>, Stop> {
        Err(Stop::new("raft-log keeps no log with gaps"))
    }
    fn index_bytes(&self) -> Option<u64> {
        None
    }
    fn reads(&self) -> Read {
        Read::Hidden
    }
    fn close(&self) -> Result<(), Stop> {
        let (send, receive) = sync_channel(1);
        self.log.lock().flush(true, Some(send)).map_err(wrong)?;
        let written = receive
            .recv()
            .map_err(|_| Stop::new("raft-log: no answer to a flush"))?;
        written.map_err(wrong)
    }
}
