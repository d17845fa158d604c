//! [`Committer`]: the order of commits, and group commit.
//!
//! Transactions that wait together become one group: their records are appended to the binlog in
//! one write with one sync, and their items go to the store in one call. Two stages, each with a
//! lock, keep the order: while one group is applied, the next one is written to the binlog.

use crate::error::{SqlError, SqlResult, SqlState};
use crate::retention::Retention;
use basalt::env::sync::{Condvar, Mutex};
use basalt::log::{Log, LogBatch, LogEngine};
use basalt::{Db, Error, Logged, Tsn, WriteBatch, WriteOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes the items of a transaction that depend on its TSN. It runs once the record is in the
/// binlog, and no other commit runs meanwhile in the store.
pub type LateItems = Box<dyn FnOnce(Tsn) -> basalt::Result<WriteBatch> + Send>;

/// The items of a transaction.
pub enum Items {
    /// They are known.
    Ready(WriteBatch),
    /// They are made when the record is in the binlog.
    Late(LateItems),
}

/// Whether the store under the binlog has a log of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageLog {
    /// The store is passive: the binlog is the only log.
    None,
    /// The store writes its own log, so each commit is written twice. This mode serves comparisons
    /// with passive stores in benchmarks and tests.
    Own {
        /// The store syncs its log at each commit.
        synced: bool,
    },
}

/// Orders commits and carries them out.
pub struct Committer {
    db: Db,
    logs: LogEngine,
    log: Log,
    storage_log: StorageLog,
    waiting: Mutex<Waiting>,
    log_stage: Mutex<LogStage>,
    apply_stage: Mutex<ApplyStage>,
    retention: Mutex<Retention>,
    /// The store lacks transactions of the binlog.
    has_pending: AtomicBool,
    /// The last records of the binlog were not synced.
    is_unsynced: AtomicBool,
}

/// Most bytes of the records of one group, unless it has one record.
const MAX_GROUP_BYTES: usize = 64 << 20;

/// Most bytes of a record.
const MAX_RECORD_BYTES: usize = 768 << 20;

/// Transactions that no leader has taken.
#[derive(Default)]
struct Waiting {
    slots: Vec<Arc<Slot>>,
    /// `true` while a leader waits for the log stage or holds it. The leader names the next leader
    /// when it has finished with the stage.
    has_leader: bool,
}

struct LogStage {
    next: Tsn,
    /// Why no transaction is taken any more.
    failed: Option<SqlError>,
}

#[derive(Default)]
struct ApplyStage {
    failed: Option<SqlError>,
    /// Transactions of the binlog that the store has failed to apply, in order. They are applied
    /// before any later one.
    pending: Vec<(Logged, WriteBatch)>,
}

/// A transaction on its way.
struct Slot {
    state: Mutex<SlotState>,
    done: Condvar,
}

struct SlotState {
    request: Option<Request>,
    result: Option<SqlResult<Tsn>>,
    /// The thread of this slot leads the next group.
    leads: bool,
}

struct Request {
    record: Vec<u8>,
    items: Items,
    synced: bool,
}

impl Slot {
    fn finish(&self, result: SqlResult<Tsn>) {
        self.state.lock().result = Some(result);
        self.done.notify_all();
    }
}

/// A transaction whose record is in the binlog.
struct InLog {
    tsn: Tsn,
    bytes: u64,
    items: Items,
    slot: Arc<Slot>,
}

impl Committer {
    /// Returns a committer whose next transaction is `next`. Readers of the binlog keep `retained`
    /// bytes of it.
    pub fn new(
        db: Db,
        logs: LogEngine,
        log: Log,
        storage_log: StorageLog,
        next: Tsn,
        retained: u64,
    ) -> Committer {
        let trimmed = log.trimmed().unwrap_or(0);
        let retention = Retention::new(retained, log.bytes(), next - 1, trimmed);
        Committer {
            retention: Mutex::new(retention),
            db,
            logs,
            log,
            storage_log,
            waiting: Mutex::default(),
            log_stage: Mutex::new(LogStage { next, failed: None }),
            apply_stage: Mutex::default(),
            has_pending: AtomicBool::new(false),
            is_unsynced: AtomicBool::new(false),
        }
    }

    /// Applies the transactions of the binlog that the store has failed to apply, if there are
    /// some. A transaction calls this before it checks its keys, because these transactions come
    /// before it.
    ///
    /// Errors: those of the store, which then still lacks them.
    pub fn apply_pending(&self) -> SqlResult<()> {
        if !self.has_pending.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut stage = self.apply_stage.lock();
        if let Some(e) = &stage.failed {
            return Err(e.clone());
        }
        let written = self.write(&mut stage.pending);
        written.map_err(|e| not_applied(&e))?;
        self.has_pending.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Commits a transaction: its record is in the binlog, durable if `synced`, and its items are
    /// visible when the call returns. Returns its number.
    ///
    /// Errors: those of the binlog and of the store. If the record is in the binlog and the items
    /// are not in the store, they are applied before the next transaction, or by the replay of the
    /// next opening.
    pub fn commit(&self, record: Vec<u8>, items: Items, synced: bool) -> SqlResult<Tsn> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(SqlError::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!(
                    "the transaction takes {} bytes in the binlog, at most {MAX_RECORD_BYTES} are allowed",
                    record.len()
                ),
            )
            .with_hint("divide the work into several transactions"));
        }
        let request = Request {
            record,
            items,
            synced,
        };
        let slot = Arc::new(Slot {
            state: Mutex::new(SlotState {
                request: Some(request),
                result: None,
                leads: false,
            }),
            done: Condvar::new(),
        });
        let mut waiting = self.waiting.lock();
        waiting.slots.push(slot.clone());
        let has_leader = std::mem::replace(&mut waiting.has_leader, true);
        drop(waiting);
        if !has_leader {
            self.lead();
        }
        // A follower waits at its slot and not at the stage: there it would wait for the sync of a
        // group that it is not in.
        let mut state = slot.state.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            if std::mem::take(&mut state.leads) {
                drop(state);
                self.lead();
                state = slot.state.lock();
                continue;
            }
            slot.done.wait(&mut state);
        }
    }

    /// Lets the first waiting transaction lead the next group.
    fn name_leader(&self) {
        let mut waiting = self.waiting.lock();
        match waiting.slots.first() {
            Some(next) => {
                next.state.lock().leads = true;
                next.done.notify_all();
            }
            None => waiting.has_leader = false,
        }
    }

    /// Takes the waiting transactions, up to a number of bytes.
    fn take_group(&self) -> Vec<Arc<Slot>> {
        let mut waiting = self.waiting.lock();
        let mut bytes = 0;
        let mut taken = 0;
        for slot in &waiting.slots {
            let state = slot.state.lock();
            bytes += state
                .request
                .as_ref()
                .map_or(0, |request| request.record.len());
            if taken > 0 && bytes > MAX_GROUP_BYTES {
                break;
            }
            taken += 1;
        }
        let rest = waiting.slots.split_off(taken);
        std::mem::replace(&mut waiting.slots, rest)
    }

    /// Makes what was written to the binlog without a sync durable.
    ///
    /// Errors: those of the binlog.
    pub fn sync(&self) -> SqlResult<()> {
        match self.is_unsynced.load(Ordering::SeqCst) {
            true => Ok(self.logs.sync()?),
            false => Ok(()),
        }
    }

    /// Carries out a group of all waiting transactions, as its leader.
    fn lead(&self) {
        let mut stage = self.log_stage.lock();
        let group = self.take_group();
        if let Some(e) = &stage.failed {
            self.name_leader();
            group.iter().for_each(|slot| slot.finish(Err(e.clone())));
            return;
        }
        let in_log = match self.append(&mut stage, &group) {
            Ok(in_log) => in_log,
            Err(e) => {
                self.name_leader();
                let e = SqlError::from(e);
                group.iter().for_each(|slot| slot.finish(Err(e.clone())));
                return;
            }
        };
        let bytes = in_log.iter().map(|one| one.bytes).sum();
        let last = stage.next - 1;
        let mut apply = self.apply_stage.lock();
        drop(stage);
        self.name_leader();
        let applied = self.apply(&mut apply, in_log);
        let failed = apply.failed.clone();
        drop(apply);
        if failed.is_some() {
            self.log_stage.lock().failed = failed;
        }
        match applied {
            Ok(()) => self.trim(last, bytes),
            Err(e) => group.iter().for_each(|slot| slot.finish(Err(e.clone()))),
        }
    }

    /// Trims the binlog, as far as the store and the readers of the binlog let it. The commits are
    /// over: if the trim fails, a later one does its work.
    fn trim(&self, last: Tsn, bytes: u64) {
        let mut retention = self.retention.lock();
        let Some(readers) = retention.append(last, bytes) else {
            return;
        };
        let persisted = match self.storage_log {
            StorageLog::None => self.db.persistence_points().map(|points| points.global),
            StorageLog::Own { .. } => self.db.sync().map(|()| readers),
        };
        if let Ok(persisted) = persisted
            && let up_to = persisted.min(readers)
            && self.log.trim(up_to, &WriteOptions::UNSYNCED).is_ok()
        {
            retention.trim(up_to);
        }
    }

    fn append(&self, stage: &mut LogStage, group: &[Arc<Slot>]) -> basalt::Result<Vec<InLog>> {
        let mut batch = LogBatch::new();
        let mut in_log = Vec::with_capacity(group.len());
        let mut synced = false;
        let mut tsn = stage.next;
        for slot in group {
            let request = slot.state.lock().request.take();
            let request = request.expect("a slot is taken by one leader");
            batch.append(&self.log, tsn, &request.record)?;
            synced |= request.synced;
            in_log.push(InLog {
                tsn,
                bytes: request.record.len() as u64,
                items: request.items,
                slot: slot.clone(),
            });
            tsn += 1;
        }
        let written = self.logs.write(batch, &WriteOptions::synced(synced));
        written.map_err(|e| e.context("writing the binlog"))?;
        self.is_unsynced.store(!synced, Ordering::SeqCst);
        stage.next = tsn;
        Ok(in_log)
    }

    fn apply(&self, stage: &mut ApplyStage, in_log: Vec<InLog>) -> SqlResult<()> {
        if let Some(e) = &stage.failed {
            return Err(e.clone());
        }
        let mut group = std::mem::take(&mut stage.pending);
        let mut slots = Vec::with_capacity(in_log.len());
        let mut made = Ok(());
        for one in in_log {
            let items = match one.items {
                Items::Ready(items) => items,
                Items::Late(make) => {
                    // What it needs of the store must be there, and its families are new.
                    let items = self.write(&mut group).and_then(|()| make(one.tsn));
                    match items {
                        Ok(items) => items,
                        Err(e) => {
                            made = Err(e);
                            break;
                        }
                    }
                }
            };
            group.push((Logged::at(one.tsn).bytes(one.bytes), items));
            slots.push((one.slot, one.tsn));
        }
        let is_made = made.is_ok();
        let Err(e) = made.and_then(|()| self.write(&mut group)) else {
            self.has_pending.store(false, Ordering::SeqCst);
            let slots = slots.into_iter();
            slots.for_each(|(slot, tsn)| slot.finish(Ok(tsn)));
            return Ok(());
        };
        let e = not_applied(&e);
        if is_made && self.storage_log == StorageLog::None {
            // The store is as it was before the group.
            stage.pending = group;
            self.has_pending.store(true, Ordering::SeqCst);
        } else {
            stage.failed = Some(e.clone());
        }
        Err(e)
    }

    fn write(&self, group: &mut Vec<(Logged, WriteBatch)>) -> basalt::Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        match self.storage_log {
            StorageLog::None => self.db.write_group_at(group).map(|_| ()),
            StorageLog::Own { synced } => {
                for (_, batch) in group.drain(..) {
                    self.db.write(batch, &WriteOptions::synced(synced))?;
                }
                Ok(())
            }
        }
    }

    /// Returns `true` if the store lacks transactions of the binlog.
    pub fn has_pending(&self) -> bool {
        self.has_pending.load(Ordering::SeqCst)
    }

    /// Returns the last transaction in the binlog.
    pub fn last(&self) -> Tsn {
        self.log_stage.lock().next - 1
    }

    /// Returns the binlog.
    pub fn log(&self) -> &Log {
        &self.log
    }
}

fn not_applied(e: &Error) -> SqlError {
    SqlError::new(
        SqlError::from(e.clone()).state(),
        format!("cannot apply a committed transaction to the store: {e}"),
    )
    .with_detail("the transaction is in the binlog and is not lost")
    .with_hint("the database applies it before the next transaction; if that fails too, close the database and open it again, which replays the binlog")
}
