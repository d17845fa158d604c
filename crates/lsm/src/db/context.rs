//! The context that all parts of an open store use: environment, directory, options, and how it
//! reports.
//!
//! The context is fixed when the store is opened. Only the flag of closing and the counters change.

use super::counters::Counters;
use super::events::Events;
use crate::listener::Event;
use crate::options::Options;
use crate::version::{DataFileKind, TableStore};
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::{Env, JobOwner};
use basalt_fs::{Error, ErrorKind, Reach, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// Returns true if a job ended with `e` because it was cancelled or the store was closed. Such an
/// end is no failure of the store.
pub(super) fn ended_early(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Cancelled | ErrorKind::Closed)
}

/// The parts of an open store that every other part may use.
pub(crate) struct StoreContext {
    /// The environment that the store was opened in.
    pub env: Env,
    /// The directory of the store.
    pub dir: PathBuf,
    /// The options of the store, without its listeners.
    pub options: Options,
    /// The store's jobs. Their owner number also distinguishes families of this store from families
    /// of another store.
    pub jobs: JobOwner,
    /// Random id of the store. Every file of the store has it.
    pub store_id: u128,
    /// Tables and blob files in the directory.
    pub tables: Arc<TableStore>,
    /// Statistics of the store.
    pub counters: Counters,
    /// Events on their way to listeners.
    pub events: Events,
    /// True if the store was opened for reading. Such a store never writes.
    pub read_only: bool,
    closing: AtomicBool,
    /// True once the directory may belong to another store.
    left: AtomicBool,
}

impl StoreContext {
    /// Returns the context of a store that is being opened. Takes the listeners out of `options`.
    pub fn new(
        env: &Env,
        dir: PathBuf,
        mut options: Options,
        store_id: u128,
        tables: Arc<TableStore>,
        read_only: bool,
    ) -> Arc<StoreContext> {
        let name = options
            .name
            .clone()
            .unwrap_or_else(|| dir.display().to_string());
        let events = Events::new(std::mem::take(&mut options.listeners));
        if !events.has_no_listeners() {
            let (events, jobs) = (events.clone(), env.jobs().clone());
            tables.when_removed(move |kind, number, path| {
                events.notify(&jobs, || {
                    let path = path.to_path_buf();
                    match kind {
                        DataFileKind::Table => Event::TableDeleted { number, path },
                        DataFileKind::Blob => Event::BlobFileDeleted { number, path },
                    }
                });
            });
        }
        Arc::new(StoreContext {
            counters: Counters::new(env, &name),
            env: env.clone(),
            dir,
            options,
            jobs: tables.jobs().clone(),
            store_id,
            tables,
            events,
            read_only,
            closing: AtomicBool::new(false),
            left: AtomicBool::new(false),
        })
    }

    /// Sends an event to the listeners. Calls `make` only if the store has listeners. Takes no lock
    /// but that of the event queue, so it may be called under any lock.
    pub fn notify(&self, make: impl FnOnce() -> Event) {
        self.events.notify(self.env.jobs(), make);
    }

    /// Returns true once the store is being closed. Background work then ends early.
    pub fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// Returns the flag that [`StoreContext::is_closing`] reads, for work that can be cancelled.
    pub fn closing(&self) -> &AtomicBool {
        &self.closing
    }

    /// Begins to close the store. Returns false if another thread has begun before.
    pub fn begin_closing(&self) -> bool {
        !self.closing.swap(true, SeqCst)
    }

    /// Returns true once the store has given its directory back. From then on it writes nothing.
    pub fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }

    /// Notes that the store gives its directory back. The caller holds the manifest, so that no
    /// edit is on its way.
    pub fn leave(&self) {
        self.left.store(true, SeqCst);
    }

    /// Returns `Closed` once the store is being closed.
    pub fn check_open(&self) -> Result<()> {
        if self.is_closing() {
            return Err(Error::new(ErrorKind::Closed, "the store is closed"));
        }
        Ok(())
    }

    /// Returns `Closed` or `ReadOnly` if this handle of the store may not change it.
    pub fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the store was opened for reading only; open it with `Db::open` to change it",
            )
            .with_reach(Reach::Store));
        }
        Ok(())
    }

    /// Returns the number of compactions that may run at once. One thread stays for flushes.
    pub fn max_compactions(&self) -> usize {
        self.env.jobs().parallelism().saturating_sub(1).max(1)
    }

    /// Removes files that no manifest names.
    pub fn remove_files(&self, files: &[PathBuf]) {
        files.iter().for_each(|path| self.tables.remove(path));
    }
}
