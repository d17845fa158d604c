//! The log engine beside the engine of tables, with the entries of streams.

use super::CommitCallback;
use basalt::{Bytes, Env, Error, Result};
use basalt_log::{Log, LogBatch, LogEngine, LogEngineOptions, WriteOptions};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};

/// The directory of the log engine in the store's directory.
const LOGS_DIR: &str = "logs";

/// The append of a stream's entry.
pub(crate) struct Append {
    pub log: Log,
    pub lsn: u64,
    pub record: Bytes,
}

/// The log engine of a store, which is made when the first stream is created. A store without
/// streams has no log engine, so older builds open it.
pub(crate) struct StreamLogs {
    env: Env,
    dir: PathBuf,
    engine: Mutex<Option<LogEngine>>,
}

impl StreamLogs {
    /// Opens the log engine of the store in `store_dir`, if it has one.
    pub fn open(env: &Env, store_dir: &Path) -> Result<StreamLogs> {
        let dir = store_dir.join(LOGS_DIR);
        let logs = StreamLogs {
            env: env.clone(),
            engine: Mutex::new(None),
            dir,
        };
        if env.fs().exists(&logs.dir)? {
            logs.engine()?;
        }
        Ok(logs)
    }

    /// Returns the log engine, which is made if there is none. Blocks.
    pub fn engine(&self) -> Result<LogEngine> {
        let mut engine = self.engine.lock();
        if let Some(engine) = &*engine {
            return Ok(engine.clone());
        }
        let opened = LogEngine::open(&self.env, &self.dir, LogEngineOptions::default())?;
        *engine = Some(opened.clone());
        Ok(opened)
    }

    /// Returns the log engine, if there is one.
    pub fn existing(&self) -> Option<LogEngine> {
        self.engine.lock().clone()
    }

    /// Queues appends to be committed together.
    pub fn append(&self, appends: Vec<Append>, sync: bool, done: CommitCallback) {
        let Some(engine) = self.existing() else {
            return done(Err(Error::invalid("a store without logs has no streams")));
        };
        append(&engine, &appends, sync, done);
    }
}

/// Queues appends to logs of an engine, to be committed together.
pub(super) fn append(engine: &LogEngine, appends: &[Append], sync: bool, done: CommitCallback) {
    let mut batch = LogBatch::new();
    let added = appends
        .iter()
        .try_for_each(|a| batch.append(&a.log, a.lsn, &a.record));
    match added.and_then(|()| engine.submit(batch, &WriteOptions::synced(sync))) {
        Ok(ticket) => ticket.on_complete(done),
        Err(e) => done(Err(e)),
    }
}
