//! TiKV's raft-engine as a store of logs: a Raft group for each log, an entry for each record.

use super::LogStore;
use crate::Stop;
use crate::engine::{Read, locked_version};
use crate::logs::LogBudget;
use protobuf::well_known_types::BytesValue;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize};
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::path::Path;

/// Records as messages. A record begins with its LSN.
struct Record;

impl MessageExt for Record {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        let lsn = entry.value.first_chunk().copied();
        lsn.map_or(0, u64::from_be_bytes)
    }
}

/// Records that an iteration reads at once.
const AHEAD: u64 = 256;

pub(super) struct RaftEngineLogs {
    engine: Engine,
    configuration: Value,
}

fn wrong(e: raft_engine::Error) -> Stop {
    Stop::new(format!("raft-engine: {e}"))
}

/// Returns the group of a log.
fn group(log: u64) -> u64 {
    log + 1
}

fn entry(data: &[u8]) -> BytesValue {
    BytesValue {
        value: data.to_vec(),
        ..BytesValue::default()
    }
}

impl RaftEngineLogs {
    pub(super) fn open(path: &Path, budget: &LogBudget) -> Result<RaftEngineLogs, Stop> {
        let dir = path.to_str().ok_or_else(|| {
            Stop::new(format!("raft-engine takes no path like {}", path.display()))
        })?;
        // TiKV purges from 10 GB on. In proportion to the less data here, it keeps as much garbage.
        let purge = budget.purge_bytes;
        let config = Config {
            dir: dir.to_string(),
            purge_threshold: ReadableSize(purge),
            target_file_size: ReadableSize((128 << 20).min(purge)),
            // Records of the benchmark are not compressed by any engine.
            batch_compression_threshold: ReadableSize(0),
            enable_log_recycle: true,
            prefill_for_recycle: true,
            ..Config::default()
        };
        let configuration = json!({
            "target_file_size": config.target_file_size.0, "purge_threshold": purge, "enable_log_recycle": true,
            "prefill_for_recycle": true, "batch_compression_threshold": 0, "recovery_threads": config.recovery_threads,
        });
        let engine = Engine::open(config).map_err(wrong)?;
        Ok(RaftEngineLogs {
            engine,
            configuration,
        })
    }
}

impl LogStore for RaftEngineLogs {
    fn name(&self) -> String {
        format!("raft-engine {}", locked_version("raft-engine"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn append(&self, log: u64, _lsn: u64, data: &[u8], synced: bool) -> Result<(), Stop> {
        let mut batch = LogBatch::with_capacity(1);
        batch
            .add_entries::<Record>(group(log), &[entry(data)])
            .map_err(wrong)?;
        self.engine.write(&mut batch, synced).map_err(wrong)?;
        Ok(())
    }
    fn append_batch(&self, log: u64, _first: u64, records: &[Vec<u8>]) -> Result<(), Stop> {
        let mut batch = LogBatch::with_capacity(1);
        let entries: Vec<BytesValue> = records.iter().map(|r| entry(r)).collect();
        batch
            .add_entries::<Record>(group(log), &entries)
            .map_err(wrong)?;
        self.engine.write(&mut batch, false).map_err(wrong)?;
        Ok(())
    }
    fn trim(&self, log: u64, _from: u64, up_to: u64) -> Result<(), Stop> {
        let mut batch = LogBatch::with_capacity(1);
        let index = up_to + 1;
        batch.add_command(group(log), Command::Compact { index });
        self.engine.write(&mut batch, false).map_err(wrong)?;
        Ok(())
    }
    fn remove(&self, _log: u64, _range: RangeInclusive<u64>) -> Result<bool, Stop> {
        Ok(false)
    }
    fn read(&self, log: u64, lsn: u64, show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self
            .engine
            .get_entry::<Record>(group(log), lsn)
            .map_err(wrong)?;
        if let Some(entry) = &found {
            show(&entry.value);
        }
        Ok(found.is_some())
    }
    fn iterate(&self, log: u64, show: &mut dyn FnMut(u64, &[u8])) -> Result<(), Stop> {
        let Some((first, last)) = self.bounds(log)? else {
            return Ok(());
        };
        let mut entries = Vec::new();
        for at in (first..=last).step_by(AHEAD as usize) {
            let end = (at + AHEAD).min(last + 1);
            entries.clear();
            self.engine
                .fetch_entries_to::<Record>(group(log), at, end, None, &mut entries)
                .map_err(wrong)?;
            for entry in &entries {
                show(Record::index(entry), &entry.value);
            }
        }
        Ok(())
    }
    fn bounds(&self, log: u64) -> Result<Option<(u64, u64)>, Stop> {
        let first = self.engine.first_index(group(log));
        Ok(first.zip(self.engine.last_index(group(log))))
    }
    fn gaps(&self, _: u64, _: RangeInclusive<u64>) -> Result<Vec<RangeInclusive<u64>>, Stop> {
        Err(Stop::new("raft-engine keeps no log with gaps"))
    }
    fn maintain(&self) -> Result<(), Stop> {
        self.engine.purge_expired_files().map_err(wrong)?;
        Ok(())
    }
    fn index_bytes(&self) -> Option<u64> {
        None
    }
    fn reads(&self) -> Read {
        Read::Hidden
    }
    fn close(&self) -> Result<(), Stop> {
        self.engine.sync().map_err(wrong)
    }
}
