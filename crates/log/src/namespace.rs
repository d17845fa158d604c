//! The logical logs of a store, by name and by number, and the state of each.

use crate::index::LogIndex;
use crate::options::LogOptions;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, RwLock};
use basalt_env::{MemoryKind, MemoryLedger, Reservation};
use basalt_fs::{Error, ErrorKind, Result};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// What changes in a logical log.
pub(crate) struct LogInner {
    pub index: LogIndex,
    /// The largest LSN up to which the log was trimmed. Appends up to it are refused.
    pub trimmed: Option<u64>,
    /// The largest LSN that the group being committed appends, while it is written.
    pub committing: Option<u64>,
    /// Sequence number of the last batch or removal that the index has. A replay skips those up to
    /// it. Only the datalog's leader raises it, in the order of the numbers.
    pub applied_seq: u64,
    /// True while a job moves entries from L0 to pages.
    pub flushing: bool,
    pub deleted: bool,
    /// Threads that sleep until the log has a new record.
    sleeping: u32,
    /// Wakers of tasks that wait for that.
    wakers: Vec<Waker>,
    /// The log's memory in the ledger, from the moment when the log joins a namespace.
    charge: Option<Reservation>,
}

impl LogInner {
    /// Has a task woken when the log has a new record, was deleted, or its engine was closed.
    pub fn add_waker(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|other| other.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }
}

/// The state of a log, locked. The ledger learns the log's memory at each unlock, if it has
/// changed, so no change of the index can leave it out.
pub(crate) struct LogGuard<'a> {
    log: &'a LogState,
    inner: MutexGuard<'a, LogInner>,
}

impl LogGuard<'_> {
    fn note_memory(&mut self) {
        let bytes = (self.log.fixed_memory() + self.inner.index.memory()) as u64;
        if let Some(charge) = &mut self.inner.charge {
            charge.resize(bytes);
        }
    }
}

impl Drop for LogGuard<'_> {
    fn drop(&mut self) {
        self.note_memory();
    }
}

impl Deref for LogGuard<'_> {
    type Target = LogInner;

    fn deref(&self) -> &LogInner {
        &self.inner
    }
}

impl DerefMut for LogGuard<'_> {
    fn deref_mut(&mut self) -> &mut LogInner {
        &mut self.inner
    }
}

/// A logical log.
pub(crate) struct LogState {
    /// Number of the open engine that the log is of.
    pub engine: u64,
    /// Number of the log, which no other log of the store ever has.
    pub number: u64,
    pub name: String,
    pub options: LogOptions,
    inner: Mutex<LogInner>,
    /// Signalled when the log has a new record and threads sleep.
    changed: Condvar,
    /// Number of late records and of removals. A late record was added below the largest LSN. The
    /// number changes under the log's lock. Iterators read it without the lock, to see that what
    /// they took from the index is old.
    revision: AtomicU64,
}

impl LogState {
    pub fn new(engine: u64, number: u64, name: String, options: LogOptions) -> Arc<LogState> {
        Arc::new(LogState {
            engine,
            number,
            name,
            options,
            inner: Mutex::new(LogInner {
                index: LogIndex::default(),
                trimmed: None,
                committing: None,
                applied_seq: 0,
                flushing: false,
                deleted: false,
                sleeping: 0,
                wakers: Vec::new(),
                charge: None,
            }),
            changed: Condvar::new(),
            revision: AtomicU64::new(0),
        })
    }

    /// Notes a late record or a removal. The caller has the log's lock.
    pub fn note_revision(&self) {
        self.revision.fetch_add(1, SeqCst);
    }

    /// Returns the number of late records and of removals.
    pub fn revision(&self) -> u64 {
        self.revision.load(SeqCst)
    }

    /// Unlocks the state, and wakes all who wait for a record.
    pub fn wake(&self, mut inner: LogGuard<'_>) {
        if inner.sleeping > 0 {
            self.changed.notify_all();
        }
        if !inner.wakers.is_empty() {
            let wakers = std::mem::take(&mut inner.wakers);
            // A waker may run code of the task's executor.
            drop(inner);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Wakes all who wait for a record.
    pub fn wake_all(&self) {
        self.wake(self.lock());
    }

    /// Waits for a change of the log. The caller has found under the lock that there is nothing to
    /// read. Returns false if `limit` has passed.
    pub fn wait(&self, inner: &mut LogGuard<'_>, limit: Duration) -> bool {
        inner.note_memory();
        inner.sleeping += 1;
        let timed_out = self.changed.wait_for(&mut inner.inner, limit).timed_out();
        inner.sleeping -= 1;
        !timed_out
    }

    /// Locks the state. No I/O happens under the lock.
    pub fn lock(&self) -> LogGuard<'_> {
        LogGuard {
            log: self,
            inner: self.inner.lock(),
        }
    }

    /// Returns the bytes of memory of the log apart from its index: this struct, and the log's
    /// places in the set and the map of its namespace.
    pub fn fixed_memory(&self) -> usize {
        // A shared struct has two counters.
        size_of::<LogState>()
            + 2 * size_of::<usize>()
            + self.name.len()
            + size_of::<ByName>()
            + size_of::<(u64, Arc<LogState>)>()
    }

    /// Returns the error of an operation on a log that was deleted.
    pub fn deleted(&self) -> Error {
        Error::new(
            ErrorKind::NotFound,
            format!("log {:?} was deleted", self.name),
        )
    }
}

/// A log in the order of names, without a copy of its name.
struct ByName(Arc<LogState>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &ByName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &ByName) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

#[derive(Default)]
struct Names {
    by_name: BTreeSet<ByName>,
    by_number: BTreeMap<u64, Arc<LogState>>,
}

/// All logical logs of a store.
pub(crate) struct Namespace {
    names: RwLock<Names>,
    ledger: MemoryLedger,
}

impl Namespace {
    /// Returns a namespace without logs. The ledger counts the memory of each log from the moment
    /// when the log is added until its last handle is dropped.
    pub fn new(ledger: &MemoryLedger) -> Namespace {
        Namespace {
            names: RwLock::default(),
            ledger: ledger.clone(),
        }
    }

    pub fn by_name(&self, name: &str) -> Option<Arc<LogState>> {
        let names = self.names.read();
        names.by_name.get(name).map(|log| log.0.clone())
    }

    pub fn by_number(&self, number: u64) -> Option<Arc<LogState>> {
        self.names.read().by_number.get(&number).cloned()
    }

    /// Returns all logs in the order of their names.
    pub fn all(&self) -> Vec<Arc<LogState>> {
        let names = self.names.read();
        names.by_name.iter().map(|log| log.0.clone()).collect()
    }

    /// Adds a log.
    ///
    /// Errors: `AlreadyExists` if the name is taken.
    pub fn add(&self, log: Arc<LogState>) -> Result<()> {
        // The lock of a log comes before that of the names.
        log.lock().charge = Some(self.ledger.reserve(MemoryKind::Index, 0));
        let mut names = self.names.write();
        if names.by_name.contains(log.name.as_str()) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("log {:?} exists", log.name),
            ));
        }
        names.by_number.insert(log.number, log.clone());
        names.by_name.insert(ByName(log));
        Ok(())
    }

    /// Removes a log.
    pub fn remove(&self, number: u64) {
        let mut names = self.names.write();
        if let Some(log) = names.by_number.remove(&number) {
            names.by_name.remove(log.name.as_str());
        }
    }
}
