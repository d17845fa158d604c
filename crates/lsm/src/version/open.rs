//! The tables whose files are open: within the environment's budget, those opened first are closed
//! first.
//!
//! A table's reader stays and only its file is closed, so that reads from the cache need not check
//! whether it is open. A file is open at least as long as a reader reads from it.

use basalt_env::Env;
use basalt_env::sync::{Mutex, RwLock, named};
use basalt_fs::{File, Result};
use basalt_table::FileSource;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

/// The open files of one store's tables.
pub(super) struct OpenTables {
    env: Env,
    /// Open files, oldest first.
    open: Mutex<VecDeque<Weak<OpenFile>>>,
    /// Called when readers wear tables out, see [`FileSource::extra_reads`].
    pub(super) extra_reads: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl OpenTables {
    pub(super) fn new(env: &Env) -> Arc<OpenTables> {
        Arc::new(OpenTables {
            env: env.clone(),
            open: Mutex::default(),
            extra_reads: OnceLock::new(),
        })
    }

    fn note(&self, file: &Arc<OpenFile>) {
        {
            let mut open = self.open.lock();
            if open.len() == open.capacity() {
                // Dropped tables leave their entries in the list. Removing them before the list
                // grows keeps it in proportion.
                open.retain(|t| t.strong_count() > 0);
            }
            open.push_back(Arc::downgrade(file));
        }
        if self.env.open_files().opened() {
            self.close_idle();
        }
    }

    /// Closes files that no thread reads from, oldest first, until the budget holds again.
    fn close_idle(&self) {
        let budget = self.env.open_files();
        let mut open = self.open.lock();
        let mut tries = open.len();
        while budget.count() > budget.limit() && tries > 0 {
            tries -= 1;
            let Some(weak) = open.pop_front() else { break };
            let Some(table) = weak.upgrade() else {
                continue;
            };
            let mut slot = table.slot.write();
            match &*slot {
                Some(file) if Arc::strong_count(file) == 1 => {
                    *slot = None;
                    budget.closed();
                }
                Some(_) => {
                    drop(slot);
                    open.push_back(weak);
                }
                None => {}
            }
        }
    }
}

/// A table's file, open or closed.
pub(super) struct OpenFile {
    tables: Arc<OpenTables>,
    path: PathBuf,
    slot: RwLock<Option<Arc<dyn File>>>,
}

impl OpenFile {
    pub(super) fn new(tables: &Arc<OpenTables>, path: PathBuf) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            tables: tables.clone(),
            path,
            slot: named("OpenFile::slot", RwLock::new(None)),
        })
    }

    /// Returns the file, and opens it if it is closed.
    pub(super) fn file(self: &Arc<Self>) -> Result<Arc<dyn File>> {
        if let Some(file) = &*self.slot.read() {
            return Ok(file.clone());
        }
        let file = {
            let mut slot = self.slot.write();
            if let Some(file) = &*slot {
                return Ok(file.clone());
            }
            let file = self.tables.env.fs().open(&self.path)?;
            *slot = Some(file.clone());
            file
        };
        self.tables.note(self);
        Ok(file)
    }

    /// Closes the file, if it is open.
    pub(super) fn close(&self) {
        if self.slot.write().take().is_some() {
            self.tables.env.open_files().closed();
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.close();
    }
}

/// The file as a reader asks for it: opened at a read when it is closed.
pub(super) struct OpenOnRead(pub(super) Arc<OpenFile>);

impl FileSource for OpenOnRead {
    fn file(&self) -> Result<Arc<dyn File>> {
        self.0.file()
    }

    fn extra_reads(&self) {
        if let Some(callback) = self.0.tables.extra_reads.get() {
            callback();
        }
    }
}
