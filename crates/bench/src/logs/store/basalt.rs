//! Basalt's log engine as a measured engine.

use super::{LogEngineName, LogStore};
use crate::Stop;
use crate::engine::{Read, environment, host_directory, image};
use crate::logs::LogBudget;
use basalt::env::Env;
use basalt::fs::FsStats;
use basalt_log::{Log, LogBatch, LogEngine, LogEngineOptions, LogOptions, WriteOptions};
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::path::Path;

pub(super) struct BasaltLogs {
    env: Env,
    engine: LogEngine,
    logs: Vec<Log>,
    name: &'static str,
    configuration: Value,
}

impl BasaltLogs {
    pub(super) fn open(
        engine: LogEngineName,
        dir: &Path,
        name: &str,
        logs: u64,
        budget: &LogBudget,
    ) -> Result<BasaltLogs, Stop> {
        let parts = environment(budget.memory, budget.cache, budget.background_threads);
        let (env, path) = match engine {
            LogEngineName::BasaltLava => {
                let fs = image(&dir.join(name), budget.image_size, &parts)?;
                (parts.with_fs(fs), "store")
            }
            _ => (parts.with_fs(host_directory(dir, budget.direct)?), name),
        };
        let options = LogEngineOptions::default()
            .file_bytes(budget.file_bytes)
            .max_space_amp(budget.max_space_amp);
        let info = env.fs().info();
        let configuration = json!({
            "memory_bytes": budget.memory, "cache_bytes": budget.cache,
            "background_threads": env.jobs().parallelism(), "file_bytes": options.file_bytes,
            "max_space_amp": options.max_space_amp, "filesystem": info.description, "direct": info.direct,
            "write_unit": info.write_unit, "read_backend": info.read_backend,
        });
        let engine_of_logs = LogEngine::open(&env, path, options)?;
        let open = |n| engine_of_logs.open_or_create(&format!("log-{n}"), LogOptions::default());
        let all = (0..logs).map(open).collect::<Result<_, _>>()?;
        Ok(BasaltLogs {
            env,
            engine: engine_of_logs,
            logs: all,
            name: match engine {
                LogEngineName::BasaltLava => "basalt-lava",
                _ => "basalt",
            },
            configuration,
        })
    }

    fn log(&self, log: u64) -> &Log {
        &self.logs[log as usize]
    }
}

impl LogStore for BasaltLogs {
    fn name(&self) -> String {
        format!("{} {}", self.name, env!("CARGO_PKG_VERSION"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn append(&self, log: u64, lsn: u64, data: &[u8], synced: bool) -> Result<(), Stop> {
        Ok(self
            .log(log)
            .append(lsn, data, &WriteOptions::synced(synced))?)
    }
    fn append_batch(&self, log: u64, first: u64, records: &[Vec<u8>]) -> Result<(), Stop> {
        let mut batch = LogBatch::new();
        for (lsn, record) in (first..).zip(records) {
            batch.append(self.log(log), lsn, record)?;
        }
        Ok(self.engine.write(batch, &WriteOptions::synced(false))?)
    }
    fn trim(&self, log: u64, _from: u64, up_to: u64) -> Result<(), Stop> {
        Ok(self.log(log).trim(up_to, &WriteOptions::synced(false))?)
    }
    fn remove(&self, log: u64, range: RangeInclusive<u64>) -> Result<bool, Stop> {
        self.log(log).remove(range)?;
        Ok(true)
    }
    fn read(&self, log: u64, lsn: u64, show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.log(log).read(lsn)?;
        if let Some(data) = &found {
            show(data);
        }
        Ok(found.is_some())
    }
    fn iterate(&self, log: u64, show: &mut dyn FnMut(u64, &[u8])) -> Result<(), Stop> {
        for record in self.log(log).iter(0) {
            let (lsn, data) = record?;
            show(lsn, &data);
        }
        Ok(())
    }
    fn bounds(&self, log: u64) -> Result<Option<(u64, u64)>, Stop> {
        let log = self.log(log);
        Ok(log.first().zip(log.last()))
    }
    fn gaps(&self, log: u64, range: RangeInclusive<u64>) -> Result<Vec<RangeInclusive<u64>>, Stop> {
        Ok(self.log(log).gaps(range))
    }
    fn index_bytes(&self) -> Option<u64> {
        Some(self.engine.stats().index_bytes)
    }
    fn accounting(&self) -> Option<FsStats> {
        Some(self.env.fs().stats())
    }
    fn reads(&self) -> Read {
        Read::Counted
    }
    fn close(&self) -> Result<(), Stop> {
        Ok(self.engine.close()?)
    }
}
