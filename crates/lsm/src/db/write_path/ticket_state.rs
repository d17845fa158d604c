//! The state of a batch in the commit queue, and the writer that waits for the batch.
//!
//! A waiting writer spins for a few microseconds before it sleeps: a group without a sync takes no
//! longer, and a thread takes ten times as long to wake up.

use super::apply::InsertTask;
use super::queue::CommitQueue;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, spin_loop, yield_now};
use basalt_fs::Result;
use basalt_kv::key::SeqNo;
use std::sync::Arc;

/// Number of times that a writer checks for its turn before it yields the processor, and number of
/// times after that before it sleeps.
const SPINS: u32 = if cfg!(feature = "schedules") { 1 } else { 100 };
const YIELDS: u32 = if cfg!(feature = "schedules") { 1 } else { 50 };

pub(crate) type Callback = Box<dyn FnOnce(Result<SeqNo>) + Send>;

pub(crate) enum Phase {
    Queued,
    /// The waiter is to lead the next group.
    Lead,
    /// The waiter is to insert its batch into the memtable.
    Insert(InsertTask),
    Done(Result<SeqNo>),
}

/// The state of the thread that waits for a batch. A waiting thread can be given the lead, or its
/// batch to insert.
#[derive(PartialEq, Eq, Clone, Copy)]
pub(crate) enum Waiter {
    /// No thread waits yet, or none ever will.
    None,
    /// A thread is in `wait`, or about to be, and spins.
    Awake,
    /// A thread sleeps in `wait`.
    Asleep,
}

pub(crate) struct Slot {
    pub phase: Phase,
    pub waiter: Waiter,
    pub then: Option<Callback>,
}

pub(crate) struct TicketState {
    pub slot: Mutex<Slot>,
    changed: Condvar,
    /// True if the phase has changed since the waiter read it. The waiter watches it without the
    /// lock.
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

    /// Notifies the waiter that its phase has changed. Called with the slot locked.
    pub fn wake(&self) {
        self.moved.store(true, SeqCst);
        self.changed.notify_one();
    }

    /// Spins until the phase changes, for about as long as a group without a sync takes. A sleeping
    /// thread takes ten times that to wake up.
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

    /// Waits until the batch is committed, or has failed. `lead` leads one commit group, when this
    /// thread has the lead.
    pub fn wait(&self, queue: &CommitQueue, lead: &dyn Fn()) -> Result<SeqNo> {
        loop {
            if !self.moved.load(SeqCst) && queue.try_lead() {
                self.lead(self.slot.lock(), lead);
                // The group may have ended before the waiter's own batch. Where jobs are stepped,
                // no other thread would lead the next group.
                continue;
            }
            let mut slot = self.slot.lock();
            slot.waiter = Waiter::Awake;
            if matches!(slot.phase, Phase::Queued) && !queue.syncs() {
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
                Phase::Lead => self.lead(slot, lead),
                Phase::Insert(task) => {
                    drop(slot);
                    task.run();
                }
                Phase::Queued => unreachable!("waited for another"),
            }
        }
    }

    /// Leads a group, which may contain the leader's own batch. Meanwhile the ticket has no waiter:
    /// a leader that was asked to insert its own batch would wait for itself.
    fn lead(&self, mut slot: MutexGuard<'_, Slot>, lead: &dyn Fn()) {
        slot.waiter = Waiter::None;
        drop(slot);
        lead();
    }

    /// Completes the batch with its result. Returns the callback of the batch, if it has one, with
    /// the result to call it with.
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
