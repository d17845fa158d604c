//! A batch on its way through the commit queue, and the writer that waits for it.
//!
//! A writer that waits looks out for its turn for a few microseconds before it sleeps: a group that is not synced takes no longer,
//! and a thread takes ten times as long to wake up.

use super::apply::InsertTask;
use super::engine::Engine;
use super::throttle::Patience;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, spin_loop, yield_now};
use basalt_fs::Result;
use basalt_kv::key::SeqNo;
use std::sync::Arc;

/// How often a writer looks whether its turn has come before it lets others have the processor, and how often after that before
/// it sleeps.
const SPINS: u32 = if cfg!(feature = "schedules") { 1 } else { 100 };
const YIELDS: u32 = if cfg!(feature = "schedules") { 1 } else { 50 };

pub(super) type Callback = Box<dyn FnOnce(Result<SeqNo>) + Send>;

pub(super) enum Phase {
    Queued,
    /// The waiter is to lead the next group.
    Lead,
    /// The waiter is to insert its batch into the memtable.
    Insert(InsertTask),
    Done(Result<SeqNo>),
}

/// Whether somebody can be given the lead, or the batch to insert.
#[derive(PartialEq, Eq, Clone, Copy)]
pub(super) enum Waiter {
    /// Nobody waits yet, or ever.
    None,
    /// A thread is in `wait`, or about to be, and looks out.
    Awake,
    /// A thread sleeps in `wait`.
    Asleep,
}

pub(super) struct Slot {
    pub phase: Phase,
    pub waiter: Waiter,
    then: Option<Callback>,
}

pub(super) struct TicketState {
    pub slot: Mutex<Slot>,
    changed: Condvar,
    /// The phase has changed since the waiter saw it: what it watches without taking the lock.
    moved: AtomicBool,
}

impl TicketState {
    pub fn new(phase: Phase, waiter: Waiter) -> Arc<TicketState> {
        let queued = matches!(phase, Phase::Queued);
        Arc::new(TicketState {
            slot: Mutex::new(Slot {
                phase,
                waiter,
                then: None,
            }),
            changed: Condvar::new(),
            moved: AtomicBool::new(!queued),
        })
    }

    /// Tells the waiter that its phase has changed. Called with the slot locked.
    pub fn wake(&self) {
        self.moved.store(true, SeqCst);
        self.changed.notify_one();
    }

    /// Looks out for a change for about as long as a group without a sync takes: a sleeping thread takes ten times that to wake up.
    fn watch(&self) {
        for _ in 0..SPINS {
            if self.moved.load(SeqCst) {
                return;
            }
            spin_loop();
        }
        for _ in 0..YIELDS {
            if self.moved.load(SeqCst) {
                return;
            }
            yield_now();
        }
    }

    /// See [`Ticket::wait`].
    pub fn wait(&self, engine: &Arc<Engine>) -> Result<SeqNo> {
        loop {
            if !self.moved.load(SeqCst) && engine.commit.try_lead() {
                self.lead(self.slot.lock(), engine);
            }
            let mut slot = self.slot.lock();
            slot.waiter = Waiter::Awake;
            if matches!(slot.phase, Phase::Queued) && !engine.commit.syncs() {
                drop(slot);
                self.watch();
                slot = self.slot.lock();
            }
            while matches!(slot.phase, Phase::Queued) {
                slot.waiter = Waiter::Asleep;
                self.changed.wait(&mut slot);
            }
            slot.waiter = Waiter::Awake;
            self.moved.store(false, SeqCst);
            match std::mem::replace(&mut slot.phase, Phase::Queued) {
                Phase::Done(r) => return r,
                Phase::Lead => self.lead(slot, engine),
                Phase::Insert(task) => {
                    drop(slot);
                    task.run();
                }
                Phase::Queued => unreachable!("waited for another"),
            }
        }
    }

    /// Leads a group, maybe the one its own batch is in. It is nobody's waiter meanwhile: a leader that was told to insert its
    /// batch would wait for itself.
    fn lead(&self, mut slot: MutexGuard<'_, Slot>, engine: &Arc<Engine>) {
        slot.waiter = Waiter::None;
        drop(slot);
        engine.lead_group(None, Patience::Wait);
    }

    /// Gives it its result. Somebody's callback is to be called with it.
    pub fn complete(&self, result: Result<SeqNo>) -> Option<(Callback, Result<SeqNo>)> {
        let mut slot = self.slot.lock();
        match slot.then.take() {
            Some(then) => {
                slot.phase = Phase::Done(result.clone());
                Some((then, result))
            }
            None => {
                slot.phase = Phase::Done(result);
                self.wake();
                None
            }
        }
    }
}

/// A batch on its way. Dropping it does not take the batch back.
pub struct Ticket {
    pub(super) state: Arc<TicketState>,
    pub(super) engine: Arc<Engine>,
}

impl Ticket {
    /// Waits until the batch is acknowledged as its write options ask, and visible. The last sequence number of the batch.
    ///
    /// Errors: `NoSpace`, `Io`, `ReadOnly`, `Poisoned`, `Closed`: the batch is not visible, and after a crash it is
    /// there whole or not at all.
    pub fn wait(self) -> Result<SeqNo> {
        self.state.wait(&self.engine)
    }

    /// The result, if there is one yet.
    pub fn try_result(&self) -> Option<Result<SeqNo>> {
        match &self.state.slot.lock().phase {
            Phase::Done(r) => Some(r.clone()),
            _ => None,
        }
    }

    /// Calls `then` with the result, on the thread that completes the batch, or at once if the result is
    /// there. `then` must not block: all stores share the commit lane that may call it. If it writes, it submits: a
    /// submit inside `then` never waits for a full queue while a batch is being completed. It must not call
    /// [`super::Db::write`].
    ///
    /// Order: batches are committed, and become visible, in the order in which they were submitted. Callbacks of
    /// different batches run in **no** order: a leader hands the lead on before it runs the callbacks of its group, so
    /// the next group's callbacks may run first, on another thread. When `then` runs with a success, this batch and
    /// every earlier one that succeeded is visible to reads, even if their callbacks have not run.
    pub fn on_complete(self, then: impl FnOnce(Result<SeqNo>) + Send + 'static) {
        let mut slot = self.state.slot.lock();
        if let Phase::Done(r) = &slot.phase {
            let r = r.clone();
            drop(slot);
            then(r);
        } else {
            slot.then = Some(Box::new(then));
        }
    }
}
