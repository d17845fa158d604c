//! The log engine as its users see it.

use crate::batch::LogBatch;
use crate::copy::{self, LogCopy};
use crate::engine::Engine;
use crate::integrity::report::{LogRepairReport, LogVerifyReport};
use crate::integrity::verify::LogVerification;
use crate::integrity::{check, repair};
use crate::log::Log;
use crate::log_ops::{LARGEST_NAME, LogOp};
use crate::namespace::LogState;
use crate::options::{LogEngineOptions, LogOptions};
use crate::recovery;
use crate::request::DataRequest;
use crate::reserve;
use crate::stats::LogEngineStats;
use crate::ticket::LogTicket;
use basalt_env::Env;
use basalt_env::sync::{Mutex, named};
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::write_options::WriteOptions;
use std::path::Path;
use std::sync::Arc;

/// A store of logical logs, which share a few physical ones (pageserver 5). Cloning is cheap, and
/// all clones are the same store.
///
/// A record that was acknowledged with [`WriteOptions::SYNC`] is never lost. Records of one batch
/// are all there after a crash, or none of them.
#[derive(Clone)]
pub struct LogEngine {
    engine: Arc<Engine>,
    /// Held while a log is created or renamed, so that a name is given once.
    creating: Arc<Mutex<()>>,
}

impl LogEngine {
    /// Opens the store in a directory of the environment's filesystem.
    ///
    /// Errors: `NotFound` if there is no store and the options do not create one; `Busy` if another
    /// process has it open; `Corruption` if a file is damaged or missing; `Unsupported` for a store
    /// of a later version; `InvalidArgument` for a wrong option.
    pub fn open(env: &Env, path: impl AsRef<Path>, options: LogEngineOptions) -> Result<LogEngine> {
        options.validate()?;
        let recovered = recovery::open(env, path.as_ref(), &options)?;
        let engine = Engine::new(env, recovered);
        engine.schedule_merge();
        engine.offer_metrics();
        engine.remove_dead_after_open();
        Ok(LogEngine {
            engine,
            creating: Arc::new(named("LogEngine::creating", Mutex::new(()))),
        })
    }

    /// Gives back the space that a closed store keeps for the removal of records on a full disk, so
    /// that another engine beside it can be opened. The store makes its reserve again with the next
    /// append or close, if the disk has the space. Returns false if there is no reserve.
    ///
    /// Errors: `Busy` if a process has the store open.
    pub fn release_reserve(env: &Env, path: impl AsRef<Path>) -> Result<bool> {
        let dir = path.as_ref();
        if !reserve::exists(env, dir) {
            return Ok(false);
        }
        let _lock = env.fs().lock(&dir.join(recovery::LOCK))?;
        Ok(reserve::remove(env, dir))
    }

    /// Opens the store in a directory for reading. Nothing is written, not even a lock file, and
    /// other readers may have the store open at the same time. While they do, no process can open
    /// it to change it. All calls that change a log fail with `ReadOnly`.
    ///
    /// Errors: `NotFound` if there is no store; `Busy` if a process has it open to change it;
    /// `Corruption`, `Unsupported` and `InvalidArgument` as in [`LogEngine::open`].
    pub fn open_read_only(
        env: &Env,
        path: impl AsRef<Path>,
        options: LogEngineOptions,
    ) -> Result<LogEngine> {
        options.validate()?;
        let recovered = recovery::open_read_only(env, path.as_ref(), &options)?;
        let engine = Engine::new(env, recovered);
        engine.offer_metrics();
        Ok(LogEngine {
            engine,
            creating: Arc::new(named("LogEngine::creating", Mutex::new(()))),
        })
    }

    /// Creates a log. It survives a power cut when the call returns.
    ///
    /// Errors: `AlreadyExists` if the name is taken; `InvalidArgument` for an empty name, or one of
    /// more than 1,024 bytes.
    pub fn create(&self, name: &str, options: LogOptions) -> Result<Log> {
        check_name(name)?;
        let _creating = self.creating.lock();
        self.check_is_free(name)?;
        let number = self.engine.new_log_number();
        let state = LogState::new(self.engine.number, number, name, options);
        let op = LogOp::Create {
            log: number,
            name: name.to_string(),
            options,
        };
        self.engine.run_op(&state, op, true)?;
        Ok(Log::new(&self.engine, state))
    }

    /// Returns a log.
    ///
    /// Errors: `NotFound` if there is none with this name.
    pub fn log(&self, name: &str) -> Result<Log> {
        self.engine.check_open()?;
        let state = self.engine.namespace.by_name(name).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("there is no log {name:?}; create it first"),
            )
        })?;
        Ok(Log::new(&self.engine, state))
    }

    /// Returns a log, which is created if there is none with this name.
    pub fn open_or_create(&self, name: &str, options: LogOptions) -> Result<Log> {
        match self.create(name, options) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => self.log(name),
            created => created,
        }
    }

    /// Deletes a log and all its records, durably. Its handles fail with `NotFound` from then on.
    pub fn delete(&self, name: &str) -> Result<()> {
        // Meanwhile no rename gives the name to another log.
        let _creating = self.creating.lock();
        let log = self.log(name)?;
        let op = LogOp::Delete {
            log: log.state().number,
        };
        self.engine.run_op(log.state(), op, true)
    }

    /// Gives a log another name, durably. Its records, its trim point and its handles stay.
    /// Versions before the first one with renames refuse the store as long as the metalog has the
    /// rename.
    ///
    /// Errors: `NotFound` if there is no log `from`, or if it is deleted meanwhile; `AlreadyExists`
    /// if there is a log `to`; `InvalidArgument` for an empty name, or one of more than 1,024
    /// bytes.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let _creating = self.creating.lock();
        let log = self.log(from)?;
        self.check_is_free(to)?;
        let op = LogOp::Rename {
            log: log.state().number,
            name: to.to_string(),
        };
        self.engine.run_op(log.state(), op, true)?;
        match log.state().lock().deleted {
            true => Err(log.state().deleted()),
            false => Ok(()),
        }
    }

    /// Returns `AlreadyExists` if there is a log with this name. The caller holds `creating`.
    fn check_is_free(&self, name: &str) -> Result<()> {
        match self.engine.namespace.by_name(name) {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("log {name:?} exists"),
            )),
        }
    }

    /// Returns the names of all logs, sorted.
    pub fn list(&self) -> Vec<String> {
        let all = self.engine.namespace.all_named();
        all.into_iter().map(|(name, _)| name.to_string()).collect()
    }

    /// Commits a batch and waits for it. Errors are those of [`Log::append`]; then no record of the
    /// batch was appended.
    pub fn write(&self, batch: LogBatch, options: &WriteOptions) -> Result<()> {
        self.check_batch(&batch)?;
        self.engine.run_data(DataRequest::of_batch(batch, options))
    }

    /// Queues a batch. Batches are committed in the order of their submission, so one thread keeps
    /// many in flight.
    pub fn submit(&self, batch: LogBatch, options: &WriteOptions) -> Result<LogTicket> {
        self.check_batch(&batch)?;
        let request = DataRequest::of_batch(batch, options);
        Ok(LogTicket {
            state: self.engine.submit_data(request),
            engine: self.engine.clone(),
        })
    }

    /// Makes everything acknowledged so far survive a power cut.
    pub fn sync(&self) -> Result<()> {
        self.engine.run_data(DataRequest::Sync)
    }

    /// Returns a sentence for each file whose live bytes are miscounted, of a closed engine.
    #[cfg(any(test, feature = "schedules"))]
    pub fn miscounts(&self) -> Vec<String> {
        let miscounted = self.engine.miscounted().into_iter();
        let sentence = |(file, indexed): (Arc<crate::physical::ReadableFile>, u64)| {
            let counted = file.live.load(basalt_env::sync::atomic::Ordering::SeqCst);
            format!("{:?}: counted {counted}, indexed {indexed}", file.path)
        };
        miscounted.map(sentence).collect()
    }

    /// Returns what the logs have and what they cost.
    pub fn stats(&self) -> LogEngineStats {
        self.engine.stats()
    }

    /// Reads and verifies all live records and all pages of the indexes, from the device, in the
    /// background and beside all other calls. `progress(done, total)` is called, with bytes of
    /// records, after each step; it must not block. Damage is listed in the report that
    /// [`LogVerification::wait`] returns.
    pub fn verify(&self, progress: impl FnMut(u64, u64) + Send + 'static) -> LogVerification {
        LogVerification::begin(&self.engine, Box::new(progress))
    }

    /// Takes a moment of the store, to write a copy of it with [`LogCopy::write`]: the copy has all
    /// that was acknowledged so far, and nothing later. Appends go on while it is written. The call
    /// waits for the groups that are being committed, and the next append of each kind begins a
    /// new file, which takes about two syncs.
    ///
    /// Errors: `ReadOnly`; `Closed`; those of an append that failed, while the store cannot go on.
    pub fn begin_copy(&self) -> Result<LogCopy> {
        LogCopy::begin(&self.engine)
    }

    /// Removes a directory that [`LogCopy::write`] has begun to write and has not finished.
    ///
    /// Errors: `InvalidArgument` if a file is in it that no copy makes; then nothing is removed.
    pub fn remove_unfinished_copy(env: &Env, dir: impl AsRef<Path>) -> Result<()> {
        copy::remove_unfinished(env, dir.as_ref())
    }

    /// Reads and verifies every byte of a closed store. Nothing is changed, and damage is listed in
    /// the report. The call fails only if the store cannot be read at all. `progress(done, total)`
    /// is called, with bytes, as the files are read.
    ///
    /// Errors: `NotFound` if there is no store; `Busy` if a process has it open to change it; `Io`.
    pub fn check(
        env: &Env,
        path: impl AsRef<Path>,
        options: &LogEngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<LogVerifyReport> {
        check::check(env, path.as_ref(), options, progress)
    }

    /// Salvages from a damaged, closed store all records that verify, and reports exactly the loss.
    /// Damaged files are moved to the store's directory `lost`, never deleted. A sound store is not
    /// changed. Takes some 100 bytes of memory for each live record of a damaged store.
    ///
    /// Errors: those of [`LogEngine::check`], and `Unsupported` for a store of a later version.
    pub fn repair(
        env: &Env,
        path: impl AsRef<Path>,
        options: &LogEngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<LogRepairReport> {
        repair::repair(env, path.as_ref(), options, progress)
    }

    /// Closes the store: commits what was submitted, syncs, and releases the directory. Later calls
    /// on its handles fail with `Closed`. Without the call, the drop of the last handle releases
    /// the directory, and no acknowledged record is lost either.
    pub fn close(&self) -> Result<()> {
        self.engine.close()
    }

    fn check_batch(&self, batch: &LogBatch) -> Result<()> {
        let engine = self.engine.number;
        match batch
            .entries
            .iter()
            .find(|entry| entry.log.engine != engine)
        {
            None => Ok(()),
            Some(entry) => Err(Error::invalid(format!(
                "log {:?} of the batch is of another store",
                entry.log.name()
            ))),
        }
    }

    /// Returns the engine, for tests that look at its parts.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Drops all background work, as a power cut does.
    #[cfg(test)]
    pub(crate) fn cut_power(&self) {
        self.engine.cut_power();
    }
}

/// Returns `InvalidArgument` for a name that no log can have.
fn check_name(name: &str) -> Result<()> {
    match name.is_empty() || name.len() > LARGEST_NAME {
        false => Ok(()),
        true => Err(Error::invalid(format!(
            "the name of a log has {} bytes; it must have 1 to {LARGEST_NAME}",
            name.len()
        ))),
    }
}
