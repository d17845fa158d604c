//! Passive stores whose owner's log is a log of the store itself.

use crate::options::StoreOptions;
use crate::store::{Store, has_logs, logs_dir, open_logs};
use basalt_env::Env;
use basalt_fs::{Bytes, Error, Result};
use basalt_log::{Log, LogEngine, LogOptions};
use basalt_lsm::db::{EngineKind, Replay};
use basalt_lsm::{Db, LogMode, OwnerLog};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The logs of a store, as the log of the owner of its tables.
#[derive(Default)]
struct StoreLogs(OnceLock<LogEngine>);

impl OwnerLog for StoreLogs {
    fn make_durable(&self, _: u64) -> Result<()> {
        // Before the logs are open, nothing of them is in the tables.
        self.0.get().map_or(Ok(()), |logs| logs.sync())
    }
}

/// A function that applies a record of the owner's log to a store that is being opened: it turns
/// the record into a batch and calls [`Replay::replay`], or another call of [`Replay`], with the
/// given number.
pub type ReplayRecord<'a> = dyn FnMut(&mut Replay, u64, Bytes) -> Result<()> + 'a;

impl Store {
    /// Opens a store with passive tables, whose owner's log is the log `name` of the store itself.
    /// The log is made if it does not exist. Its LSNs are the numbers of transactions: the owner
    /// appends transaction `n` with LSN `n`, from 1 on without gaps, and then applies it by
    /// [`Db::write_at`]. It may trim the log up to the global persistence point
    /// ([`Db::persistence_points`]).
    ///
    /// `options.tables.log` is [`LogMode::Passive`]. `replay` gets the records that the tables
    /// lack, in order. Unsynced appends to the log are made durable before the tables have anything
    /// of them.
    ///
    /// Errors: those of [`Store::open`], [`Db::open_passive`] and [`Replay::finish`];
    /// `InvalidArgument` if the log was trimmed further than the tables allow.
    pub fn open_passive(
        env: &Env,
        path: impl AsRef<Path>,
        mut options: StoreOptions,
        name: &str,
        replay: &mut ReplayRecord<'_>,
    ) -> Result<(Store, Log)> {
        let dir = path.as_ref();
        let store_logs = Arc::new(StoreLogs::default());
        if let LogMode::Passive(passive) = &mut options.tables.log {
            if passive.owner_log.is_some() {
                return Err(Error::invalid(
                    "the owner's log of these tables is a log of their store: leave `PassiveOptions::owner_log` unset",
                ));
            }
            passive.owner_log = Some(store_logs.clone());
        }
        let run = Db::open_passive(env, dir, options.tables.clone())?;
        let has_logs = has_logs(env, &run.engines(), dir)?;
        let logs = match has_logs {
            true => open_logs(env, dir, |dir| {
                LogEngine::open(env, dir, options.of_logs(false))
            })?,
            false => LogEngine::open(env, logs_dir(dir), options.of_logs(true))?,
        };
        run.add_engine(EngineKind::Logs)?;
        let log = logs.open_or_create(name, LogOptions::default())?;
        let _ = store_logs.0.set(logs.clone());
        let db = replay_log(run, &log, replay)?;
        Ok((Store::new(db, dir, options, Some(logs), false), log))
    }
}

/// Replays what the tables lack of the log.
fn replay_log(mut run: Replay, log: &Log, replay: &mut ReplayRecord<'_>) -> Result<Db> {
    let trimmed = log.trimmed().unwrap_or(0);
    let from = run.next_tsn();
    if trimmed >= from {
        return Err(Error::invalid(format!(
            "log {:?} was trimmed up to transaction {trimmed}, and the tables need it from {from} on: restore a checkpoint",
            log.name()
        )));
    }
    let last = log.last().unwrap_or(trimmed).max(trimmed);
    for record in log.iter(from) {
        let (lsn, record) = record?;
        replay(&mut run, lsn, record).map_err(|e| {
            e.context(format!(
                "replaying transaction {lsn} of log {:?}",
                log.name()
            ))
        })?;
    }
    run.finish(last)
}

#[cfg(test)]
mod tests;
