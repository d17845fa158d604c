//! Checkpoints of a store, as of one moment in all engines.

use crate::store::Store;
use basalt_env::Env;
use basalt_fs::{ErrorKind, Result};
use basalt_log::{LogCopy, LogCopyReport, LogEngine};
use basalt_lsm::db::{CheckpointOptions, CheckpointPart, CheckpointReport, EngineKind};
use std::path::Path;

/// Contents and cost of a checkpoint of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCheckpointReport {
    /// The tables.
    pub tables: CheckpointReport,
    /// The logs; `None` for a store without logs.
    pub logs: Option<LogCopyReport>,
}

/// The logs, as a part of a checkpoint.
struct LogsPart<'a> {
    env: &'a Env,
    logs: LogEngine,
    copy_files: bool,
    copy: Option<LogCopy>,
    report: Option<LogCopyReport>,
}

impl CheckpointPart for LogsPart<'_> {
    fn kind(&self) -> EngineKind {
        EngineKind::Logs
    }

    fn take_moment(&mut self) -> Result<()> {
        self.copy = Some(self.logs.begin_copy()?);
        Ok(())
    }

    fn write(&mut self, dir: &Path) -> Result<()> {
        let copy = self.copy.take().expect("the moment was taken");
        self.report = Some(copy.write(dir, self.copy_files)?);
        Ok(())
    }

    fn remove_unfinished(&mut self, dir: &Path) -> Result<()> {
        LogEngine::remove_unfinished_copy(self.env, dir)
    }
}

impl Store {
    /// Makes a copy of the store in `target`, a directory that does not exist. Files that never
    /// change are shared with the copy where the filesystem can. The copy is a store of its own: it
    /// has every write that was acknowledged before the call, in all engines, and a write that was
    /// acknowledged before another one in the copy is in the copy too. Writes go on meanwhile.
    ///
    /// Errors: those of [`basalt_lsm::Db::checkpoint`]; after an error no directory is left.
    pub fn checkpoint(
        &self,
        target: impl AsRef<Path>,
        options: &CheckpointOptions,
    ) -> Result<StoreCheckpointReport> {
        let target = target.as_ref();
        let before = self.existing_logs();
        match self.checkpoint_of(target, options, before.clone()) {
            // Logs were made since, and the tables alone are not the store.
            Err(e) if e.kind() == ErrorKind::Unsupported && before.is_none() => {
                match self.existing_logs() {
                    None => Err(e),
                    now => self.checkpoint_of(target, options, now),
                }
            }
            made => made,
        }
    }

    fn checkpoint_of(
        &self,
        target: &Path,
        options: &CheckpointOptions,
        logs: Option<LogEngine>,
    ) -> Result<StoreCheckpointReport> {
        let env = self.db().env();
        let mut part = logs.map(|logs| LogsPart {
            env,
            logs,
            copy_files: options.copy_tables,
            copy: None,
            report: None,
        });
        let mut parts: Vec<&mut dyn CheckpointPart> = Vec::new();
        parts.extend(part.as_mut().map(|part| part as &mut dyn CheckpointPart));
        let tables = self.db().checkpoint_with(target, options, &mut parts)?;
        Ok(StoreCheckpointReport {
            tables,
            logs: part.and_then(|part| part.report),
        })
    }
}
