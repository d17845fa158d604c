//! The coalescing queue of a physical log: requests of all threads become one write and one sync
//! (pageserver 5.1).
//!
//! A thread that waits for its request takes the lead if no thread leads. The leader takes what is
//! queued as one group, and commits it. If no thread leads and the queue is empty, `run` commits
//! its request alone, without a ticket. After its groups, the leader hands the lead to the first
//! waiter in the queue, or to a job of the commit lane if those requests have no waiter. When a
//! group is committed, the leader wakes one of the sleeping threads. That thread wakes the others.
//!
//! Locks: the queue's, then a ticket's slot. Neither is held while a group is committed.

use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, named, spin_loop, yield_now};
use basalt_fs::{Error, Result};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// How often a waiter checks its ticket before it yields the processor, and how often after that
/// before it sleeps. A group without a sync takes about as long.
const SPINS: u32 = if cfg!(feature = "schedules") { 1 } else { 20 };
const YIELDS: u32 = if cfg!(feature = "schedules") { 1 } else { 50 };
/// Groups that a leader commits in a row while the waiters behind it sleep: a thread takes tens of
/// times as long to wake up as a group takes.
const GROUPS_IN_A_ROW: u32 = 4;

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// The result of a request that is still to come.
pub(crate) struct TicketState {
    /// True if the result takes as long as a sync. A waiter then sleeps at once: with many writers,
    /// those that yield take half of the processors from the leader.
    waits_for_device: bool,
    slot: Mutex<Slot>,
    changed: Condvar,
    /// True if the slot has changed since the waiter read it. The waiter watches it without the
    /// lock.
    moved: AtomicBool,
}

#[derive(Default)]
struct Slot {
    result: Option<Result<()>>,
    /// True if the waiter is to lead the next group.
    lead: bool,
    /// True if a thread sleeps until the slot changes.
    asleep: bool,
    /// True if a thread waits, asleep or awake.
    waits: bool,
    then: Option<Callback>,
    /// Wakes the task that polls for the result.
    waker: Option<Waker>,
    /// Results of other tickets, which the waiting thread sets before it returns.
    others: Vec<Answer>,
}

/// A ticket and its result.
type Answer = (Arc<TicketState>, Result<()>);

/// The code of others that a completed request must run, outside of all locks.
struct Completed {
    then: Option<Callback>,
    waker: Option<Waker>,
    result: Result<()>,
}

impl Completed {
    fn run(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
        if let Some(then) = self.then {
            then(self.result);
        }
    }
}

impl TicketState {
    /// Returns the ticket of a request. `waits` is true if the caller is going to wait for it.
    fn new(cost: Cost, waits: bool) -> Arc<TicketState> {
        Arc::new(TicketState {
            waits_for_device: cost.syncs,
            slot: Mutex::new(Slot {
                waits,
                ..Slot::default()
            }),
            changed: Condvar::new(),
            moved: AtomicBool::new(false),
        })
    }

    /// Returns a ticket whose result is known.
    pub fn done(result: Result<()>) -> Arc<TicketState> {
        let ticket = TicketState::new(Cost::default(), false);
        ticket.slot.lock().result = Some(result);
        ticket
    }

    /// Returns the result if there is one.
    pub fn result(&self) -> Option<Result<()>> {
        self.slot.lock().result.clone()
    }

    /// Returns the result, or has the task woken when there is one. A later call replaces the task.
    pub fn poll(&self, waker: &Waker) -> Poll<Result<()>> {
        let mut slot = self.slot.lock();
        match &slot.result {
            Some(result) => Poll::Ready(result.clone()),
            None => {
                match &mut slot.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                Poll::Pending
            }
        }
    }

    /// Sets the result. Returns what the caller must run, if anything.
    fn complete(&self, result: Result<()>) -> Option<Completed> {
        let slot = self.slot.lock();
        debug_assert!(slot.result.is_none(), "a request is answered once");
        self.complete_in(slot, result, Vec::new())
    }

    fn complete_in(
        &self,
        mut slot: MutexGuard<'_, Slot>,
        result: Result<()>,
        others: Vec<Answer>,
    ) -> Option<Completed> {
        slot.result = Some(result.clone());
        slot.others = others;
        self.moved.store(true, SeqCst);
        let (then, waker) = (slot.then.take(), slot.waker.take());
        let asleep = slot.asleep;
        // The woken thread takes this lock first.
        drop(slot);
        if asleep {
            self.changed.notify_one();
        }
        (then.is_some() || waker.is_some()).then_some(Completed {
            then,
            waker,
            result,
        })
    }

    /// Sets the results of a group. A wakeup takes some microseconds, so the leader wakes one
    /// thread, and this thread wakes the others. The leader continues with the next group.
    fn complete_all(answers: impl Iterator<Item = Answer>, completed: &mut Vec<Completed>) {
        let mut asleep = Vec::new();
        for (ticket, result) in answers {
            let slot = ticket.slot.lock();
            let only_sleeps = slot.asleep && slot.then.is_none() && slot.waker.is_none();
            match only_sleeps {
                true => {
                    drop(slot);
                    asleep.push((ticket, result));
                }
                false => completed.extend(ticket.complete_in(slot, result, Vec::new())),
            }
        }
        if let Some((first, result)) = asleep.pop() {
            completed.extend(first.complete_in(first.slot.lock(), result, asleep));
        }
    }

    /// Gives the lead to the thread that waits for this ticket. Returns false if none waits.
    fn give_lead(&self) -> bool {
        let mut slot = self.slot.lock();
        if !slot.waits || slot.result.is_some() {
            return false;
        }
        slot.lead = true;
        self.moved.store(true, SeqCst);
        let asleep = slot.asleep;
        drop(slot);
        if asleep {
            self.changed.notify_one();
        }
        true
    }

    /// Calls `then` with the result, at once or when the request is complete.
    pub fn on_complete(&self, then: Callback) {
        let mut slot = self.slot.lock();
        match slot.result.clone() {
            Some(result) => {
                drop(slot);
                then(result);
            }
            None => slot.then = Some(then),
        }
    }

    /// Waits for the result or the lead. Returns the result if there is one, and true if the caller
    /// is to lead. Both are returned if a close failed the request after this thread got the lead.
    fn wait(&self) -> (Option<Result<()>>, bool) {
        let (spins, yields) = match self.waits_for_device {
            true => (0, 0),
            false => (SPINS, YIELDS),
        };
        for _ in 0..spins {
            if self.moved.load(SeqCst) {
                break;
            }
            spin_loop();
        }
        for _ in 0..yields {
            if self.moved.load(SeqCst) {
                break;
            }
            yield_now();
        }
        let mut slot = self.slot.lock();
        loop {
            if let Some(result) = slot.result.clone() {
                let others = std::mem::take(&mut slot.others);
                let lead = std::mem::take(&mut slot.lead);
                drop(slot);
                for (ticket, result) in others {
                    if let Some(completed) = ticket.complete(result) {
                        completed.run();
                    }
                }
                return (Some(result), lead);
            }
            if std::mem::take(&mut slot.lead) {
                self.moved.store(false, SeqCst);
                return (None, true);
            }
            slot.asleep = true;
            self.changed.wait(&mut slot);
            slot.asleep = false;
        }
    }
}

/// What a request costs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Bytes of memory and of the write, for the size of groups.
    pub bytes: usize,
    /// True if the request needs a sync.
    pub syncs: bool,
}

/// A request in the queue, with its ticket.
struct Queued<T> {
    request: T,
    ticket: Arc<TicketState>,
    bytes: usize,
}

struct QueueState<T> {
    pending: VecDeque<Queued<T>>,
    led: bool,
}

impl<T> QueueState<T> {
    fn push(&mut self, request: T, cost: Cost, ticket: &Arc<TicketState>) {
        self.pending.push_back(Queued {
            request,
            ticket: ticket.clone(),
            bytes: cost.bytes,
        });
    }
}

/// The results of a group's requests, in their order.
pub(crate) type Results = SmallVec<[Result<()>; 1]>;

/// Commits the groups of a queue.
pub(crate) trait Commit<T> {
    /// Commits a group. Returns one result for each request, in their order.
    fn commit(&self, group: &mut [T]) -> Results;
    /// Schedules a job that leads a group of the queue, because the requests have no waiter.
    fn lead_in_background(&self);
}

/// Most bytes and most requests of a group.
const GROUP_BYTES: usize = 1 << 20;
const GROUP_REQUESTS: usize = 1024;

/// The queue of one physical log.
pub(crate) struct CoalescingQueue<T> {
    queue: Mutex<QueueState<T>>,
}

impl<T> CoalescingQueue<T> {
    pub fn new() -> CoalescingQueue<T> {
        CoalescingQueue {
            queue: named(
                "queue::QueueState",
                Mutex::new(QueueState {
                    pending: VecDeque::new(),
                    led: false,
                }),
            ),
        }
    }

    /// Queues a request whose submitter does not wait yet. Groups are committed in the background
    /// until a thread waits.
    pub fn submit(&self, request: T, cost: Cost, by: &impl Commit<T>) -> Arc<TicketState> {
        let ticket = TicketState::new(cost, false);
        let mut q = self.queue.lock();
        q.push(request, cost, &ticket);
        let first = !q.led && q.pending.len() == 1;
        drop(q);
        if first {
            by.lead_in_background();
        }
        ticket
    }

    /// Commits a request, alone or in a group, and returns its result.
    pub fn run(&self, mut request: T, cost: Cost, by: &impl Commit<T>) -> Result<()> {
        if self.try_lead_alone() {
            let result = by.commit(std::slice::from_mut(&mut request)).remove(0);
            // This request counts as the first of [`GROUPS_IN_A_ROW`].
            if !self.hand_on(true, by) {
                self.lead(2, by);
            }
            return result;
        }
        let ticket = TicketState::new(cost, true);
        let mut q = self.queue.lock();
        q.push(request, cost, &ticket);
        let leads = !std::mem::replace(&mut q.led, true);
        drop(q);
        if leads {
            self.lead(1, by);
        }
        self.wait_for(&ticket, by)
    }

    /// Takes the lead if no thread has it and no request is queued.
    fn try_lead_alone(&self) -> bool {
        let mut q = self.queue.lock();
        let is_free = !q.led && q.pending.is_empty();
        q.led |= is_free;
        is_free
    }

    /// Waits for the result of a request that was submitted.
    pub fn wait(&self, ticket: &Arc<TicketState>, by: &impl Commit<T>) -> Result<()> {
        ticket.slot.lock().waits = true;
        if ticket.result().is_none() && self.try_lead() {
            self.lead(1, by);
        }
        self.wait_for(ticket, by)
    }

    fn wait_for(&self, ticket: &Arc<TicketState>, by: &impl Commit<T>) -> Result<()> {
        loop {
            let (result, leads) = ticket.wait();
            if leads {
                self.lead(1, by);
            }
            if let Some(result) = result {
                return result;
            }
        }
    }

    fn try_lead(&self) -> bool {
        let mut q = self.queue.lock();
        if q.led || q.pending.is_empty() {
            return false;
        }
        q.led = true;
        true
    }

    /// Takes the lead for a job, if no thread leads and a request is queued. Commits up to
    /// [`GROUPS_IN_A_ROW`] groups.
    pub fn lead_one(&self, by: &impl Commit<T>) {
        if self.try_lead() {
            self.lead(1, by);
        }
    }

    /// Commits groups and hands the lead on. The caller has the lead. `first` is the number of the
    /// first group among those that the caller commits in a row, from 1.
    fn lead(&self, first: u32, by: &impl Commit<T>) {
        let mut completed = Vec::new();
        for turn in first.. {
            let (mut group, tickets) = self.take_group();
            if !group.is_empty() {
                let results = by.commit(&mut group);
                debug_assert_eq!(results.len(), group.len());
                TicketState::complete_all(tickets.into_iter().zip(results), &mut completed);
            }
            if self.hand_on(turn < GROUPS_IN_A_ROW, by) {
                break;
            }
        }
        completed.into_iter().for_each(Completed::run);
    }

    /// Takes the next group: its requests, and their tickets.
    fn take_group(&self) -> (Vec<T>, Vec<Arc<TicketState>>) {
        let mut q = self.queue.lock();
        let (mut n, mut bytes) = (0, 0);
        while let Some(next) = q.pending.get(n)
            && n < GROUP_REQUESTS
            && (n == 0 || bytes + next.bytes <= GROUP_BYTES)
        {
            bytes += next.bytes;
            n += 1;
        }
        let taken = q.pending.drain(..n);
        taken.map(|queued| (queued.request, queued.ticket)).unzip()
    }

    /// Hands the lead on. Returns false if the caller keeps it for one more group.
    fn hand_on(&self, may_keep: bool, by: &impl Commit<T>) -> bool {
        let mut q = self.queue.lock();
        if q.pending.is_empty() {
            q.led = false;
            return true;
        }
        if may_keep {
            return false;
        }
        // The lead stays taken until the thread or the job that gets it begins.
        let next = q.pending.iter().take(16).find(|p| p.ticket.give_lead());
        let given = next.is_some();
        q.led = given;
        drop(q);
        if !given {
            by.lead_in_background();
        }
        true
    }

    /// Takes every request out of the queue and answers it with an error.
    pub fn fail_all(&self, error: &Error) {
        let pending = std::mem::take(&mut self.queue.lock().pending);
        for queued in pending {
            if let Some(completed) = queued.ticket.complete(Err(error.clone())) {
                completed.run();
            }
        }
    }
}

#[cfg(test)]
mod tests;
