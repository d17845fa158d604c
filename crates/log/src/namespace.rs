//! The logical logs of a store, by name and by number, and the state of each.

use crate::index::LogIndex;
use crate::options::LogOptions;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, RwLock, named};
use basalt_env::{MemoryKind, MemoryLedger, Reservation};
use basalt_fs::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

/// The identity of an iterator that waits for new records: the address of its allocation.
#[derive(Default)]
pub(crate) struct Follower;

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
    /// Bytes of the log's name.
    name_bytes: u16,
    /// Threads that sleep until the log has a new record.
    sleeping: u32,
    /// Wakers of tasks that wait for a new record, each with its iterator.
    wakers: Vec<(Weak<Follower>, Waker)>,
    /// The log's memory in the ledger, from the moment when the log joins a namespace.
    charge: Option<Reservation>,
}

impl LogInner {
    /// Has a task woken when the log has a new record, was deleted, or its engine was closed.
    /// Replaces the waker of the same follower, and removes wakers of dropped followers. Otherwise
    /// a log without new records would collect wakers without limit.
    pub fn add_waker(&mut self, follower: &Arc<Follower>, waker: &Waker) {
        let follower = Arc::downgrade(follower);
        self.wakers
            .retain(|(other, _)| other.strong_count() > 0 && !other.ptr_eq(&follower));
        self.wakers.push((follower, waker.clone()));
    }

    /// Returns the number of tasks that are woken by the next record.
    #[cfg(test)]
    pub fn waiting_tasks(&self) -> usize {
        self.wakers.len()
    }
}

/// The state of a log, locked. The ledger learns the log's memory at each unlock, if it has
/// changed, so no change of the index can leave it out.
pub(crate) struct LogGuard<'a> {
    inner: MutexGuard<'a, LogInner>,
}

impl LogGuard<'_> {
    fn note_memory(&mut self) {
        let fixed = LogState::memory_with_name(self.inner.name_bytes.into());
        let bytes = (fixed + self.inner.index.memory()) as u64;
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
    /// The name, which a rename changes. The lock is held over no other lock.
    name: RwLock<Arc<str>>,
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
    pub fn new(engine: u64, number: u64, name: &str, options: LogOptions) -> Arc<LogState> {
        Arc::new(LogState {
            engine,
            number,
            name: named("LogState::name", RwLock::new(name.into())),
            options,
            inner: Mutex::new(LogInner {
                index: LogIndex::default(),
                trimmed: None,
                committing: None,
                applied_seq: 0,
                flushing: false,
                deleted: false,
                name_bytes: name.len() as u16,
                sleeping: 0,
                wakers: Vec::new(),
                charge: None,
            }),
            changed: Condvar::new(),
            revision: AtomicU64::new(0),
        })
    }

    /// Returns the name.
    pub fn name(&self) -> Arc<str> {
        self.name.read().clone()
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
            wakers.into_iter().for_each(|(_, waker)| waker.wake());
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
            inner: self.inner.lock(),
        }
    }

    /// Returns the bytes of memory of the log apart from its index: this struct, its name, and the
    /// log's places in the two maps of its namespace.
    pub fn fixed_memory(&self) -> usize {
        LogState::memory_with_name(self.name().len())
    }

    fn memory_with_name(name_bytes: usize) -> usize {
        // A shared struct has two counters, and so has a shared name.
        size_of::<LogState>()
            + 4 * size_of::<usize>()
            + name_bytes
            + size_of::<NamedLog>()
            + size_of::<(u64, Arc<LogState>)>()
    }

    /// Returns the error of an operation on a log that was deleted.
    pub fn deleted(&self) -> Error {
        Error::new(
            ErrorKind::NotFound,
            format!("log {:?} was deleted", self.name()),
        )
    }
}

/// A log and its name.
pub(crate) type NamedLog = (Arc<str>, Arc<LogState>);

#[derive(Default)]
struct Names {
    by_name: BTreeMap<Arc<str>, Arc<LogState>>,
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
        names.by_name.get(name).cloned()
    }

    pub fn by_number(&self, number: u64) -> Option<Arc<LogState>> {
        self.names.read().by_number.get(&number).cloned()
    }

    /// Returns all logs in the order of their names.
    pub fn all(&self) -> Vec<Arc<LogState>> {
        let names = self.names.read();
        names.by_name.values().cloned().collect()
    }

    /// Returns all logs with their names of one moment, in the order of the names.
    pub fn all_named(&self) -> Vec<NamedLog> {
        let names = self.names.read();
        let named = names.by_name.iter();
        named
            .map(|(name, log)| (name.clone(), log.clone()))
            .collect()
    }

    /// Adds a log.
    ///
    /// Errors: `AlreadyExists` if the name is taken.
    pub fn add(&self, log: Arc<LogState>) -> Result<()> {
        // The lock of a log comes before that of the names.
        log.lock().charge = Some(self.ledger.reserve(MemoryKind::Index, 0));
        let mut names = self.names.write();
        let name = log.name();
        if names.by_name.contains_key(&name) {
            return Err(taken(&name));
        }
        names.by_number.insert(log.number, log.clone());
        names.by_name.insert(name, log);
        Ok(())
    }

    /// Gives a log another name. Does nothing if there is no log with this number.
    ///
    /// Errors: `AlreadyExists` if another log has the name.
    pub fn rename(&self, number: u64, name: &str) -> Result<()> {
        let mut names = self.names.write();
        let Some(log) = names.by_number.get(&number).cloned() else {
            return Ok(());
        };
        match names.by_name.get(name) {
            Some(other) if other.number == number => return Ok(()),
            Some(_) => return Err(taken(name)),
            None => {}
        }
        names.by_name.remove(&log.name());
        let name: Arc<str> = name.into();
        *log.name.write() = name.clone();
        let name_bytes = name.len() as u16;
        names.by_name.insert(name, log.clone());
        // The lock of a log comes before that of the names.
        drop(names);
        log.lock().name_bytes = name_bytes;
        Ok(())
    }

    /// Removes a log.
    pub fn remove(&self, number: u64) {
        let mut names = self.names.write();
        if let Some(log) = names.by_number.remove(&number) {
            names.by_name.remove(&log.name());
        }
    }
}

fn taken(name: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("log {name:?} exists"))
}
