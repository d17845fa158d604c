//! [`Database`]: a relational database in one directory.

use crate::binlog::BinlogReader;
use crate::catalog::Catalog;
use crate::check::{self, CheckReport};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::options::DatabaseOptions;
use crate::session::Session;
use crate::storage::Storage;
use basalt::env::Env;
use basalt::{Store, Tsn};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A relational database in one directory. Cloning is cheap, and all clones are the same database.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

struct Inner {
    storage: Arc<Storage>,
    is_closed: AtomicBool,
    sessions: AtomicU64,
}

impl Database {
    /// Opens or creates the database in a directory. Replays the binlog records that the store
    /// lacks, so the call can take as long as the writes since the last flush took.
    ///
    /// Errors: 55P03 if a process has the database open; 58030 for a failed read or write; XX001
    /// for damage.
    pub fn open(env: &Env, dir: impl AsRef<Path>, options: DatabaseOptions) -> SqlResult<Database> {
        let storage = Storage::open(env, dir.as_ref(), &options)?;
        Ok(Database(Arc::new(Inner {
            storage: Arc::new(storage),
            is_closed: AtomicBool::new(false),
            sessions: AtomicU64::new(0),
        })))
    }

    /// Begins a session of the default user.
    ///
    /// Errors: 57P01 if the database is closed.
    pub fn session(&self) -> SqlResult<Session> {
        self.session_of("basalt")
    }

    /// Begins a session of a user.
    ///
    /// Errors: 57P01 if the database is closed.
    pub fn session_of(&self, user: &str) -> SqlResult<Session> {
        if self.0.is_closed.load(Ordering::SeqCst) {
            return Err(SqlError::new(
                SqlState::SHUTTING_DOWN,
                "the database is closed",
            ));
        }
        self.0.sessions.fetch_add(1, Ordering::Relaxed);
        Session::new(&self.0.storage, user)
    }

    /// Returns all definitions, as of now.
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::new(self.0.storage.schema().catalog.clone())
    }

    /// Returns the last transaction in the binlog, 0 if there is none.
    pub fn last_transaction(&self) -> Tsn {
        self.0.storage.committer().last()
    }

    /// Returns a reader of the binlog. `from` is the first transaction; `None` is the oldest one
    /// that the binlog has.
    ///
    /// Errors: 55000 if the transaction was trimmed.
    pub fn binlog(&self, from: Option<Tsn>) -> SqlResult<BinlogReader> {
        let storage = &self.0.storage;
        let log = storage.committer().log().clone();
        let from = from.unwrap_or(log.trimmed().unwrap_or(0) + 1);
        BinlogReader::new(log, storage.history(), from)
    }

    /// Checks rows, index entries and references against each other. `progress` gets the counts so
    /// far.
    ///
    /// Errors: those of reads.
    pub fn check(&self, progress: &mut dyn FnMut(&CheckReport)) -> SqlResult<CheckReport> {
        check::check(&self.0.storage, progress)
    }

    /// Returns the store, for statistics, checkpoints and checks.
    pub fn store(&self) -> &Store {
        self.0.storage.store()
    }

    /// Closes the database, flushes all families and syncs the binlog. All later calls of its
    /// sessions fail. The next open replays nothing.
    ///
    /// Errors: 58030. The next open then replays the binlog, and no synced commit is lost.
    pub fn close(&self) -> SqlResult<()> {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.storage.close()
    }
}
