//! Check and repair of all engines of a closed store.

use crate::options::StoreOptions;
use crate::store::{Store, logs_dir};
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_log::{LogEngine, LogLoss, LogRepairReport, LogVerifyReport};
use basalt_lsm::Db;
use basalt_lsm::db::{EngineKind, RepairReport, VerifyReport};
use std::path::Path;

/// The findings of [`Store::check`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreVerifyReport {
    /// The tables.
    pub tables: VerifyReport,
    /// The logs; `None` for a store without logs.
    pub logs: Option<LogVerifyReport>,
}

impl StoreVerifyReport {
    /// Returns all damage, that of the tables first.
    pub fn damage(&self) -> impl Iterator<Item = &Error> {
        let logs = self.logs.iter().flat_map(|logs| &logs.damage);
        self.tables.damage.iter().chain(logs)
    }
}

/// The result of [`Store::repair`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreRepairReport {
    /// The tables.
    pub tables: RepairReport,
    /// The logs; `None` for a store without logs.
    pub logs: Option<LogRepairReport>,
    /// Why the logs could not be repaired, although the tables were. A second repair goes on with
    /// the logs.
    pub logs_failure: Option<Error>,
}

impl Store {
    /// Reads and verifies every byte of all engines of a closed store. Nothing is changed, and
    /// damage is listed in the report. `progress(done, total)` is called, with bytes of one engine
    /// after the other.
    ///
    /// Errors: `NotFound` if there is no store; `Busy` if a process has it open to change it; `Io`.
    pub fn check(
        env: &Env,
        path: impl AsRef<Path>,
        options: &StoreOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<StoreVerifyReport> {
        let dir = path.as_ref();
        let mut tables = Db::verify_store(env, dir, &options.tables, progress)?;
        let has_logs = tables.engines.contains(&EngineKind::Logs);
        let logs = logs_dir(dir);
        let mut report = None;
        if env.fs().exists(&logs)? {
            match LogEngine::check(env, &logs, &options.logs, progress) {
                Ok(found) => report = Some(found),
                // A power cut while logs were made leaves a directory without any.
                Err(e) if e.kind() == ErrorKind::NotFound && !has_logs => {}
                Err(e) if e.kind() == ErrorKind::NotFound => tables.damage.push(missing(&logs)),
                Err(e) => return Err(e),
            }
        } else if has_logs {
            tables.damage.push(missing(&logs));
        }
        Ok(StoreVerifyReport {
            tables,
            logs: report,
        })
    }

    /// Salvages all data that verifies from a damaged, closed store, engine by engine, and reports
    /// exactly the loss. Damaged files are moved to directories `lost`, never deleted. If the logs
    /// are missing altogether, the store gets new ones without content.
    ///
    /// Errors: those of [`Db::repair`]. An error of the logs is in the report, so that the losses
    /// of the tables are known in any case.
    pub fn repair(
        env: &Env,
        path: impl AsRef<Path>,
        options: &StoreOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<StoreRepairReport> {
        let dir = path.as_ref();
        let tables = Db::repair(env, dir, &options.tables, progress)?;
        let has_logs = tables.engines.contains(&EngineKind::Logs);
        let (logs, logs_failure) = match repair_logs(env, dir, options, has_logs, progress) {
            Ok(logs) => (logs, None),
            Err(e) => (None, Some(e.context("repairing the logs of the store"))),
        };
        Ok(StoreRepairReport {
            tables,
            logs,
            logs_failure,
        })
    }
}

/// Repairs the logs of a store. `has_logs` is true if the manifest says that there are some.
fn repair_logs(
    env: &Env,
    dir: &Path,
    options: &StoreOptions,
    has_logs: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<LogRepairReport>> {
    let dir = logs_dir(dir);
    if env.fs().exists(&dir)? {
        match LogEngine::repair(env, &dir, &options.logs, progress) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            repaired => return repaired.map(Some),
        }
    }
    match has_logs {
        true => make_anew(env, &dir, options).map(Some),
        false => Ok(None),
    }
}

/// Makes logs without content in place of missing ones.
fn make_anew(env: &Env, dir: &Path, options: &StoreOptions) -> Result<LogRepairReport> {
    LogEngine::open(env, dir, options.of_logs(true))?.close()?;
    let mut loss = LogLoss::default();
    loss.reason = "the logs of the store are missing, and all their records with them".to_string();
    let mut report = LogRepairReport::default();
    report.lost.push(loss.to_string());
    report.losses.push(loss);
    Ok(report)
}

fn missing(logs: &Path) -> Error {
    Error::new(
        ErrorKind::Corruption,
        "the manifest says that the store has logs, and they are missing",
    )
    .in_file(logs)
}
