//! [`Store`]: the handle of a store.

use crate::options::StoreOptions;
use basalt_env::Env;
use basalt_env::sync::{Mutex, RwLock};
use basalt_fs::{Error, ErrorKind, Result};
use basalt_log::{LogEngine, LogEngineStats};
use basalt_lsm::Db;
use basalt_lsm::db::{EngineKind, Stats};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file without which a directory holds no engine's store.
const CURRENT: &str = "CURRENT";

/// Returns the directory of a store's logs.
pub(crate) fn logs_dir(dir: &Path) -> PathBuf {
    dir.join(EngineKind::Logs.directory())
}

/// An open store, with tables and, if it was ever asked for them, logs. Cloning is cheap, and all
/// clones are the same store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    /// The logs, once there are any. Dropped before the tables, whose lock is that of the
    /// directory.
    logs: RwLock<Option<LogEngine>>,
    db: Db,
    dir: PathBuf,
    options: StoreOptions,
    read_only: bool,
    /// Held while logs are made, and while the store is closed.
    engines: Mutex<()>,
}

/// Statistics of all engines of a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreStats {
    /// Statistics of the tables.
    pub tables: Stats,
    /// Statistics of the logs; `None` for a store without logs.
    pub logs: Option<LogEngineStats>,
}

impl Store {
    /// Opens the store in a directory of the environment's filesystem. A store of tables alone is
    /// opened as it is, and not changed by it.
    ///
    /// Errors: those of [`Db::open`] and [`LogEngine::open`]. `Corruption` if the store has logs
    /// and their directory is missing; [`Store::repair`] then says what is lost.
    pub fn open(env: &Env, path: impl AsRef<Path>, options: StoreOptions) -> Result<Store> {
        let dir = path.as_ref();
        let db = open_tables(env, dir, &options)?;
        let logs = match has_logs(env, &db.engines(), dir)? {
            false => None,
            true => {
                let logs = open_logs(env, dir, |dir| {
                    LogEngine::open(env, dir, options.of_logs(false))
                })?;
                // The manifest lacks the logs if a power cut came between their creation and its
                // edit, or if it was lost and rebuilt by a repair of the tables.
                db.add_engine(EngineKind::Logs)?;
                Some(logs)
            }
        };
        Ok(Store::new(db, dir, options, logs, false))
    }

    /// Opens the store in a directory for reading. Nothing is written, and other readers may have
    /// the store open. All calls that change it fail with `ReadOnly`.
    ///
    /// Errors: those of [`Db::open_read_only`] and [`LogEngine::open_read_only`].
    pub fn open_read_only(
        env: &Env,
        path: impl AsRef<Path>,
        options: StoreOptions,
    ) -> Result<Store> {
        let dir = path.as_ref();
        let db = Db::open_read_only(env, dir, options.tables.clone())?;
        let logs = match has_logs(env, &db.engines(), dir)? {
            false => None,
            true => Some(open_logs(env, dir, |dir| {
                LogEngine::open_read_only(env, dir, options.of_logs(false))
            })?),
        };
        Ok(Store::new(db, dir, options, logs, true))
    }

    /// Returns the directory of the logs of a closed store, or `None` if the store has none.
    /// Changes nothing. The caller holds the store's lock, or knows that no process changes the
    /// store. If the directory has files of logs, the manifest of the tables is not read.
    ///
    /// Errors: `NotFound` if there is no store. `Corruption` if the manifest says that the store
    /// has logs and they are missing, or if it cannot be read. `Io`.
    pub fn find_logs(env: &Env, path: impl AsRef<Path>) -> Result<Option<PathBuf>> {
        let dir = path.as_ref();
        let logs = logs_dir(dir);
        let entries = match env.fs().list(&logs) {
            Err(e) if !e.is_not_found() => return Err(e),
            entries => entries.unwrap_or_default(),
        };
        // A power cut while logs were made leaves a lock and a manifest.
        let is_numbered = |name: &str| {
            let stem = name.split_once('.').map(|(stem, _)| stem);
            stem.is_some_and(|stem| stem.parse::<u64>().is_ok())
        };
        let is_made = |name: &str| name == CURRENT || is_numbered(name);
        if entries.iter().any(|e| !e.is_dir && is_made(&e.name)) {
            return Ok(Some(logs));
        }
        match Db::engines_of_closed(env, dir)?.contains(&EngineKind::Logs) {
            true => Err(missing_logs(&logs)),
            false => Ok(None),
        }
    }

    pub(crate) fn new(
        db: Db,
        dir: &Path,
        options: StoreOptions,
        logs: Option<LogEngine>,
        read_only: bool,
    ) -> Store {
        Store(Arc::new(Inner {
            db,
            dir: dir.to_path_buf(),
            options,
            read_only,
            logs: RwLock::new(logs),
            engines: Mutex::new(()),
        }))
    }

    /// Returns the tables.
    pub fn db(&self) -> &Db {
        &self.0.db
    }

    /// Returns the directory of the store.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Returns the logs. The first call makes them, durably; from then on versions that do not know
    /// logs refuse the store.
    ///
    /// Errors: `ReadOnly` if the store has no logs and was opened for reading; `Closed`, `NoSpace`,
    /// `Io`.
    pub fn logs(&self) -> Result<LogEngine> {
        if let Some(logs) = self.existing_logs() {
            return Ok(logs);
        }
        let _engines = self.0.engines.lock();
        if let Some(logs) = self.existing_logs() {
            return Ok(logs);
        }
        if self.0.read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the store has no logs, and was opened for reading only; open it with `Store::open` to make them",
            ));
        }
        // A closed store writes nothing into a directory that may have another owner.
        self.0.db.sync()?;
        let env = self.0.db.env();
        let options = self.0.options.of_logs(true);
        let logs = LogEngine::open(env, logs_dir(&self.0.dir), options)?;
        // No log is made before the manifest has the engine. So a store whose manifest lacks it has
        // nothing in it.
        if let Err(e) = self.0.db.add_engine(EngineKind::Logs) {
            let _ = logs.close();
            return Err(e);
        }
        *self.0.logs.write() = Some(logs.clone());
        Ok(logs)
    }

    /// Returns the logs, or `None` for a store that has none so far.
    pub fn existing_logs(&self) -> Option<LogEngine> {
        self.0.logs.read().clone()
    }

    /// Makes everything that was acknowledged so far, in all engines, survive a power cut.
    pub fn sync(&self) -> Result<()> {
        let logs = self.existing_logs().map_or(Ok(()), |logs| logs.sync());
        match self.0.db.persistence_points() {
            // Passive tables have no log: their owner's log has everything.
            Ok(_) => logs,
            Err(_) => self.0.db.sync().and(logs),
        }
    }

    /// Returns what the engines have and what they cost.
    pub fn stats(&self) -> StoreStats {
        StoreStats {
            tables: self.0.db.stats(),
            logs: self.existing_logs().map(|logs| logs.stats()),
        }
    }

    /// Closes all engines: what was acknowledged is then durable, and the directory is released. A
    /// checkpoint that another thread makes is cancelled.
    /// Later calls on handles of the store fail with `Closed`. Returns the first error; every
    /// engine is closed in any case.
    pub fn close(&self) -> Result<()> {
        // Logs are not made meanwhile.
        let _engines = self.0.engines.lock();
        let close_logs = || self.existing_logs().map_or(Ok(()), |logs| logs.close());
        let close_tables = || self.0.db.clone().close();
        if self.0.db.persistence_points().is_ok() {
            // The close of passive tables flushes, and the flush syncs these logs. So the tables,
            // and with them the lock of the directory, go first; the logs have a lock of their own.
            let tables = close_tables();
            let logs = close_logs();
            return tables.and(logs);
        }
        // The lock of the directory is that of the tables, and goes last.
        let logs = close_logs();
        let tables = close_tables();
        logs.and(tables)
    }
}

/// Opens the tables. If logs have filled the disk, they get the space that the logs keep for
/// removals. Otherwise the logs could not be trimmed either.
fn open_tables(env: &Env, dir: &Path, options: &StoreOptions) -> Result<Db> {
    let open = || Db::open(env, dir, options.tables.clone());
    match open() {
        Err(e)
            if e.kind() == ErrorKind::NoSpace
                && LogEngine::release_reserve(env, logs_dir(dir))
                    .is_ok_and(|released| released) =>
        {
            open()
        }
        opened => opened,
    }
}

/// Returns true if the store has logs. Until the manifest has them, a directory with logs counts.
pub(crate) fn has_logs(env: &Env, engines: &[EngineKind], dir: &Path) -> Result<bool> {
    let is_named = engines.contains(&EngineKind::Logs);
    Ok(is_named || env.fs().exists(&logs_dir(dir).join(CURRENT))?)
}

/// Opens the logs of a store that has some.
pub(crate) fn open_logs(
    env: &Env,
    dir: &Path,
    open: impl FnOnce(&Path) -> Result<LogEngine>,
) -> Result<LogEngine> {
    let dir = logs_dir(dir);
    if !env.fs().exists(&dir)? {
        return Err(missing_logs(&dir));
    }
    open(&dir).map_err(|e| match e.kind() {
        ErrorKind::NotFound => missing_logs(&dir),
        _ => e.context("opening the logs of the store"),
    })
}

/// Returns the error for a store that has lost its directory of logs.
fn missing_logs(logs: &Path) -> Error {
    Error::new(
        ErrorKind::Corruption,
        "the manifest says that the store has logs, and they are missing; run `basalt repair`, which says what is lost",
    )
    .in_file(logs)
}
