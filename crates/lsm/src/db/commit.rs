//! The commit queue: writers queue batches, one of them leads, and the group shares one log write and one sync.
//!
//! Who leads: a writer that comes when nobody leads; else, for batches that nobody waits on, a job on the commit lane. A leader
//! commits one group and hands over to the first waiter in the queue that is awake. When all of them sleep and little is
//! queued it goes on itself, for a few groups, and they wake up to their answers: the store would stand still for as long as a
//! thread takes to wake up, tens of times as long as the group. So no caller works for others longer than [`TURNS`] groups.
//!
//! A leader waits a moment for the writers of the last group to come back: see [`super::group_wait`].
//!
//! The queue's bytes are reserved in the memory ledger. When submitted batches fill the queue, `submit` waits until
//! groups were taken from it, and leads groups itself while no other thread does. Decision 0028.

use super::apply::insert_group;
use super::engine::{Engine, Writer};
use super::group_wait::GroupWait;
use super::log::GroupSize;
use super::throttle::{Patience, Room};
use super::ticket::{Callback, Phase, TicketState, Waiter};
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, spin_loop};
use basalt_env::{JobPriority, MemoryKind, MemoryLedger, Reservation};
use basalt_fs::{AlignedBuf, Bytes, Error, Result};
use basalt_kv::batch::{BatchParts, WriteBatch};
use basalt_kv::key::SeqNo;
use basalt_records::{Outgoing, RECORD_HEADER, RecordKind, Separated};
use smallvec::SmallVec;
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A group ends when it holds so many bytes.
const GROUP_BYTES: usize = 1 << 20;
/// A group ends when it holds so many batches.
const GROUP_BATCHES: usize = 1024;
/// How often a leader of unsynced batches looks whether the last group's writers are back.
const GATHER_SPINS: u32 = if cfg!(feature = "schedules") { 1 } else { 100 };
/// `submit` waits while the queue holds this many submitted bytes or more: what the next groups take is always there.
pub(super) const QUEUE_BYTES: usize = 16 * GROUP_BYTES;
/// A leader commits at most so many groups, as long as little is queued and those who wait for it sleep.
const TURNS: u32 = 4;
const TURN_BYTES: usize = 64 << 10;
/// A writer that is awake is looked for among so many.
const AWAKE_AMONG: usize = 16;
/// A batch to be committed.
pub(super) struct Pending {
    /// Record header space and operations; empty for a mere sync.
    pub buf: AlignedBuf,
    /// Its bytes: the log may pad the buffer.
    pub len: usize,
    pub count: u32,
    payload_crc: u32,
    /// Its blob records.
    separated: SmallVec<[Separated; 1]>,
    /// What memtables get of those that are compressed.
    pub raw: SmallVec<[Bytes; 1]>,
    /// What these have more bytes than what is stored of them.
    foreground_load: usize,
    sync: bool,
    /// No thread waited for it when it was queued.
    submitted: bool,
    /// `None`: the leader's own.
    pub ticket: Option<Arc<TicketState>>,
}

/// The batches of one log write. Most are alone.
type Group = SmallVec<[Pending; 1]>;

impl Pending {
    fn new(batch: WriteBatch, sync: bool) -> Pending {
        let foreground_load = batch.raw_bytes() - batch.bytes();
        let BatchParts {
            buf,
            count,
            separated,
            raw,
        } = batch.into_parts();
        let payload_crc = if count == 0 {
            0
        } else {
            basalt_records::payload_crc(&buf[RECORD_HEADER..], &separated)
        };
        Pending {
            len: buf.len(),
            buf,
            count,
            payload_crc,
            separated,
            raw,
            foreground_load,
            sync,
            submitted: false,
            ticket: None,
        }
    }

    /// Bytes of memory that it holds.
    fn memory(&self) -> usize {
        self.buf.capacity() + self.raw.iter().map(Bytes::len).sum::<usize>()
    }

    /// Its operations, as memory to share.
    pub fn take_payload(&mut self) -> Bytes {
        let mut buf = std::mem::take(&mut self.buf);
        // The log may have padded the record to the write unit.
        buf.truncate(self.len);
        basalt_kv::batch::payload(Bytes::from_owner(buf))
    }
}

/// What became of a group.
enum Committed {
    /// It is in, from this sequence number on.
    From(SeqNo),
    /// Nothing was touched: it is held back for so long.
    Later(Duration),
}

basalt_env::sync::thread_local! {
    /// How many calls of [`run_all`] are on this thread's stack.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// While one lives, this thread runs callbacks of a group: of any store, because all stores share the commit lane.
struct InsideCallbacks;

impl InsideCallbacks {
    fn enter() -> InsideCallbacks {
        CALLBACKS.with(|depth| depth.set(depth.get() + 1));
        InsideCallbacks
    }

    fn is_here() -> bool {
        CALLBACKS.with(|depth| depth.get() > 0)
    }
}

impl Drop for InsideCallbacks {
    fn drop(&mut self) {
        CALLBACKS.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Runs all callbacks of a group, also those behind one that panics. Returns the first panic.
fn run_all(callbacks: SmallVec<[(Callback, Result<SeqNo>); 1]>) -> Option<Box<dyn Any + Send>> {
    let mut panic = None;
    let _inside = InsideCallbacks::enter();
    for (then, one) in callbacks {
        if let Err(e) = catch_unwind(AssertUnwindSafe(|| then(one))) {
            panic.get_or_insert(e);
        }
    }
    panic
}

/// Where the callbacks of a group run.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Callbacks {
    /// On the leader's thread.
    Here,
    /// In a job of the commit lane.
    OnLane,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Leader {
    Nobody,
    /// A job on the commit lane will lead; a waiter may be faster.
    Scheduled,
    Active,
}

/// A thread inside `submit` that waits until the queue has room for its batch.
#[derive(Default)]
struct HeldSubmit {
    /// True once the batch is queued. The value changes under the queue's lock.
    admitted: AtomicBool,
    /// Wakes this thread alone.
    woken: Condvar,
}

struct Queue {
    pending: VecDeque<Pending>,
    leader: Leader,
    /// Of what is pending: bytes, and batches to be synced.
    bytes: usize,
    to_sync: usize,
    /// Memory of the pending batches that were submitted, in bytes.
    submitted_bytes: usize,
    /// Memory of all pending batches in the ledger.
    booked: Reservation,
    /// Batches whose `submit` waits until the queue has room, in the order of their arrival.
    held: VecDeque<(Pending, Arc<HeldSubmit>)>,
    group_wait: GroupWait,
    /// How many batches a leader waits for.
    wanted: usize,
}

impl Queue {
    fn push(&mut self, p: Pending, first: bool) {
        self.bytes += p.buf.len();
        self.to_sync += usize::from(p.sync);
        let memory = p.memory();
        self.booked.resize(self.booked.bytes() + memory as u64);
        self.submitted_bytes += if p.submitted { memory } else { 0 };
        if first {
            self.pending.push_front(p);
        } else {
            self.pending.push_back(p);
        }
    }

    fn pop(&mut self) -> Option<Pending> {
        let p = self.pending.pop_front()?;
        self.bytes -= p.buf.len();
        self.to_sync -= usize::from(p.sync);
        // From here on the memtable's growth stands for it.
        let memory = p.memory();
        self.booked.resize(self.booked.bytes() - memory as u64);
        self.submitted_bytes -= if p.submitted { memory } else { 0 };
        Some(p)
    }

    /// True if a submitted batch must wait. The size of the new batch does not count: otherwise a
    /// batch that is larger than the limit could never be queued.
    fn is_full(&self, ledger: &MemoryLedger) -> bool {
        let full = self.submitted_bytes >= QUEUE_BYTES || ledger.free() == 0;
        self.submitted_bytes > 0 && full
    }

    /// Queues as many held batches as fit, in the order of their arrival. Wakes the threads of
    /// these batches and no other threads.
    fn admit_held(&mut self, ledger: &MemoryLedger) {
        while !self.is_full(ledger)
            && let Some((pending, thread)) = self.held.pop_front()
        {
            self.push(pending, false);
            thread.admitted.store(true, SeqCst);
            thread.woken.notify_one();
        }
    }

    /// Sets the leader when the thread that led stops, and queues the held batches that fit. If a
    /// batch is still held, the function wakes the thread of the first one to lead.
    fn give_lead_back(&mut self, leader: Leader, ledger: &MemoryLedger) {
        self.leader = leader;
        self.admit_held(ledger);
        if let Some((_, first)) = self.held.front() {
            first.woken.notify_one();
        }
    }
}

pub(super) struct CommitQueue {
    queue: Mutex<Queue>,
    /// As many batches are queued as a leader waits for.
    all_there: Condvar,
    /// They are, for a leader that watches.
    came: AtomicBool,
    /// The leader is about a synced group: whoever waits for it had better sleep.
    syncs: AtomicBool,
    /// Number of times that threads of held submits have woken up.
    #[cfg(test)]
    pub(super) wakes: basalt_env::sync::atomic::AtomicUsize,
}

impl CommitQueue {
    pub(super) fn new(ledger: &MemoryLedger) -> CommitQueue {
        CommitQueue {
            queue: Mutex::new(Queue {
                pending: VecDeque::new(),
                leader: Leader::Nobody,
                bytes: 0,
                to_sync: 0,
                submitted_bytes: 0,
                booked: ledger.reserve(MemoryKind::Buffer, 0),
                held: VecDeque::new(),
                group_wait: GroupWait::default(),
                wanted: usize::MAX,
            }),
            all_there: Condvar::new(),
            #[cfg(test)]
            wakes: basalt_env::sync::atomic::AtomicUsize::new(0),
            came: AtomicBool::new(false),
            syncs: AtomicBool::new(false),
        }
    }

    /// True while a synced group is on its way, for which a writer had better sleep.
    pub(super) fn syncs(&self) -> bool {
        self.syncs.load(SeqCst)
    }

    /// Takes the lead if somebody must and nobody does.
    pub(super) fn try_lead(&self) -> bool {
        let mut q = self.queue.lock();
        if q.leader == Leader::Active || q.pending.is_empty() {
            return false;
        }
        q.leader = Leader::Active;
        true
    }

    /// Puts a group back that found no room; it goes first next time.
    fn put_back(&self, group: Group) {
        let mut q = self.queue.lock();
        debug_assert!(q.leader == Leader::Active);
        for p in group.into_iter().rev() {
            debug_assert!(p.ticket.is_some(), "nobody would answer it");
            q.push(p, true);
        }
    }

    /// Adds what is queued to the leader's group.
    fn take_group(&self, group: &mut Group, ledger: &MemoryLedger) {
        let mut q = self.queue.lock();
        debug_assert!(q.leader == Leader::Active);
        let mut bytes: usize = group.iter().map(|p| p.buf.len()).sum();
        while group.len() < GROUP_BATCHES {
            let Some(next) = q.pending.front() else { break };
            bytes += next.buf.len();
            if !group.is_empty() && bytes > GROUP_BYTES {
                break;
            }
            group.extend(q.pop());
        }
        let behind = q.pending.len();
        q.group_wait.note_group(group.len(), behind);
        q.admit_held(ledger);
    }

    /// Returns the number of submits that wait for room.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.queue.lock().held.len()
    }
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_string())
}

impl Engine {
    /// Commits a batch (an empty one: syncs), leading its group when nobody does.
    pub(super) fn write(self: &Arc<Self>, batch: WriteBatch, sync: bool) -> Result<SeqNo> {
        let mut own = Pending::new(batch, sync);
        let mut q = self.commit.queue.lock();
        if q.leader != Leader::Active && q.pending.is_empty() {
            q.leader = Leader::Active;
            drop(q);
            let result = self.lead_group(Some(own), Patience::Wait);
            return result
                .expect("a leader's own batch is committed with the group, or fails with it");
        }
        let ticket = TicketState::new(Phase::Queued, Waiter::Awake);
        own.ticket = Some(ticket.clone());
        self.queue(q, own);
        ticket.wait(self)
    }

    /// Queues a batch, an empty one for a mere sync. With `Patience::Wait` it waits while the queue is full, except
    /// inside a callback.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        batch: WriteBatch,
        sync: bool,
        patience: Patience,
    ) -> Arc<TicketState> {
        let ticket = TicketState::new(Phase::Queued, Waiter::None);
        let mut pending = Pending::new(batch, sync);
        pending.ticket = Some(ticket.clone());
        pending.submitted = true;
        let q = self.commit.queue.lock();
        // A callback that waited would keep the commit lane from all stores.
        match patience == Patience::Wait && !InsideCallbacks::is_here() {
            true => self.queue_when_there_is_room(q, pending),
            false => self.queue(q, pending),
        }
        ticket
    }

    /// Queues a batch once the queue has room for it, behind all batches that are held already.
    /// While no other thread leads, this thread leads groups itself. On the commit lane, and where
    /// jobs are stepped, no other thread would lead. The callbacks of these groups run on the
    /// commit lane, because this thread may hold a lock that they take.
    fn queue_when_there_is_room<'q>(
        self: &'q Arc<Self>,
        mut q: MutexGuard<'q, Queue>,
        pending: Pending,
    ) {
        let ledger = self.env.ledger();
        // A queue gets no notice of memory that other stores release, so the function looks here.
        q.admit_held(ledger);
        if q.held.is_empty() && !q.is_full(ledger) {
            return self.queue(q, pending);
        }
        self.counters.submits_held.add(1);
        let own = Arc::new(HeldSubmit::default());
        q.held.push_back((pending, own.clone()));
        while !own.admitted.load(SeqCst) {
            if q.leader != Leader::Active {
                q.leader = Leader::Active;
                drop(q);
                let lead = || self.lead(None, Patience::Wait, Callbacks::OnLane);
                let led = catch_unwind(AssertUnwindSafe(lead));
                q = self.commit.queue.lock();
                if let Err(panic) = led {
                    // The caller gets no ticket, so its batch must not stay in the queue before
                    // other batches.
                    q.held.retain(|(_, thread)| !Arc::ptr_eq(thread, &own));
                    let leader = q.leader;
                    q.give_lead_back(leader, ledger);
                    drop(q);
                    resume_unwind(panic);
                }
                q.admit_held(ledger);
                continue;
            }
            own.woken.wait(&mut q);
            #[cfg(test)]
            self.commit.wakes.fetch_add(1, SeqCst);
        }
        // While this thread led, the first held thread was this one, which did not wait. If no thread
        // leads now, the next one has to.
        if q.leader != Leader::Active
            && let Some((_, first)) = q.held.front()
        {
            first.woken.notify_one();
        }
    }

    fn queue(&self, mut q: MutexGuard<'_, Queue>, pending: Pending) {
        q.push(pending, false);
        let all_there = q.pending.len() == q.wanted;
        drop(q);
        if all_there {
            self.commit.came.store(true, SeqCst);
            self.commit.all_there.notify_one();
        }
    }

    /// A ticket for a batch that was refused.
    pub(super) fn failed_ticket(e: Error) -> Arc<TicketState> {
        TicketState::new(Phase::Done(Err(e)), Waiter::None)
    }

    /// Makes sure that somebody commits what is queued although nobody waits for it.
    pub(super) fn ensure_leader(self: &Arc<Self>) {
        let mut q = self.commit.queue.lock();
        if q.leader == Leader::Nobody && !q.pending.is_empty() {
            q.leader = Leader::Scheduled;
            drop(q);
            self.spawn_leader(None);
        }
    }

    fn spawn_leader(self: &Arc<Self>, delay: Option<Duration>) {
        let (jobs, lane) = (self.env.jobs(), JobPriority::Commit);
        match delay {
            None => {
                let engine = self.clone();
                jobs.spawn(self.owner, lane, move || engine.lead_on_lane());
            }
            Some(delay) => {
                let engine = Arc::downgrade(self);
                jobs.spawn_after(self.owner, lane, delay, move || {
                    if let Some(engine) = engine.upgrade() {
                        engine.lead_on_lane();
                    }
                });
            }
        }
    }

    /// Leads one group on the lane that all stores share.
    fn lead_on_lane(self: &Arc<Self>) {
        if self.commit.try_lead() {
            // Stepped, nobody else is kept waiting, and time moves by waiting only.
            let stepped = self.env.jobs().is_stepped();
            let patience = if stepped {
                Patience::Wait
            } else {
                Patience::Return
            };
            self.lead_group(None, patience);
        }
    }

    /// Commits one group, and those of writers that fell asleep behind it. The caller has the lead; it is handed on, and that before
    /// any callback runs. What became of the caller's own batch, if it brings one.
    pub(super) fn lead_group(
        self: &Arc<Self>,
        own: Option<Pending>,
        patience: Patience,
    ) -> Option<Result<SeqNo>> {
        self.lead(own, patience, Callbacks::Here)
    }

    /// See [`Engine::lead_group`].
    fn lead(
        self: &Arc<Self>,
        own: Option<Pending>,
        patience: Patience,
        run: Callbacks,
    ) -> Option<Result<SeqNo>> {
        let mut of_own = None;
        let mut own = own;
        let may_stay = patience == Patience::Wait;
        for turn in 1.. {
            // Its own batch is done: it waits for nothing on behalf of others.
            let patience = if turn == 1 {
                patience
            } else {
                Patience::Return
            };
            let mut group: Group = own.take().into_iter().collect();
            // Whatever happens, the lead is handed on and every ticket answered: others wait for both without a limit.
            let committed = catch_unwind(AssertUnwindSafe(|| {
                if turn == 1 {
                    self.gather(&group, patience);
                }
                let mut writer = self.writer.lock();
                self.commit.take_group(&mut group, self.env.ledger());
                self.commit_group(&mut writer, &mut group, patience)
            }));
            let (result, mut panic) = match committed {
                Ok(Ok(Committed::Later(delay))) => {
                    self.commit.put_back(group);
                    self.hand_over(Some(delay), false);
                    return of_own;
                }
                Ok(Ok(Committed::From(first))) => (Ok(first), None),
                Ok(Err(e)) => (Err(e), None),
                Err(panic) => {
                    let _ = self.broken.set(panic_text(&*panic));
                    let e = self.check_jobs().expect_err("just set");
                    (Err(e), Some(panic))
                }
            };
            let once_more = turn < TURNS && may_stay && panic.is_none();
            let mut handed_over = self.hand_over(None, once_more);
            let mut seq = result.as_ref().map_or(0, |first| *first);
            let mut callbacks: SmallVec<[_; 1]> = SmallVec::new();
            for p in group {
                seq += u64::from(p.count);
                let one = result.as_ref().map(|_| seq.saturating_sub(1));
                let one = one.map_err(Error::clone);
                let Some(ticket) = p.ticket else {
                    of_own = Some(one);
                    continue;
                };
                callbacks.extend(ticket.complete(one));
            }
            if !callbacks.is_empty() {
                // They may take their time, and somebody may wait for one who waits for the lead, or for an answer.
                handed_over = handed_over || self.hand_over(None, false);
            }
            if run == Callbacks::OnLane && !callbacks.is_empty() {
                let callbacks = std::mem::take(&mut callbacks);
                let call = move || {
                    if let Some(panic) = run_all(callbacks) {
                        resume_unwind(panic);
                    }
                };
                (self.env.jobs()).spawn(self.owner, JobPriority::Commit, call);
            }
            panic = panic.or(run_all(callbacks));
            if let Some(panic) = panic {
                if turn == 1 {
                    resume_unwind(panic);
                }
                // What others broke in later turns is theirs to hear of: the caller's batch has its answer.
                return of_own;
            }
            if handed_over {
                break;
            }
        }
        of_own
    }

    /// Waits for the writers of the last group to come back, so that they share this sync.
    fn gather(&self, own: &[Pending], patience: Patience) {
        if self.env.jobs().is_stepped() || patience == Patience::Return {
            // Nobody else is on the way, or it is the lane of all stores that would wait.
            return;
        }
        let mut q = self.commit.queue.lock();
        let pending = q.pending.len() + own.len();
        let bytes: usize = own.iter().map(|p| p.len).sum();
        if q.bytes + bytes >= GROUP_BYTES {
            return;
        }
        let sync = own.iter().any(|p| p.sync) || q.to_sync > 0;
        if sync {
            self.commit.syncs.store(true, SeqCst);
        }
        let Some((wanted, most)) = q.group_wait.wait_for(pending, GROUP_BATCHES, sync) else {
            return;
        };
        let wanted = wanted - own.len();
        q.wanted = wanted;
        if sync {
            // Asleep: on a machine of few processors it is the others who need this one.
            while q.pending.len() < wanted {
                if self.commit.all_there.wait_for(&mut q, most).timed_out() {
                    break;
                }
            }
        } else {
            // A writer that has its answer is back sooner than a thread could fall asleep.
            self.commit.came.store(false, SeqCst);
            drop(q);
            for _ in 0..GATHER_SPINS {
                if self.commit.came.load(SeqCst) {
                    break;
                }
                spin_loop();
            }
            q = self.commit.queue.lock();
        }
        q.wanted = usize::MAX;
        let came = q.pending.len() >= wanted;
        q.group_wait.note_wait(came, sync);
    }

    /// Answers what is queued and nobody will lead.
    pub(super) fn lead_all(self: &Arc<Self>) {
        while self.commit.try_lead() {
            self.lead_group(None, Patience::Wait);
        }
    }

    /// Gives the lead on: to a writer that waits, else to the lane, at once or after a delay. False: the caller keeps it, because
    /// it may go on (`once_more`) and whoever waits sleeps: little work is done before he would be awake.
    fn hand_over(self: &Arc<Self>, delay: Option<Duration>, once_more: bool) -> bool {
        let mut q = self.commit.queue.lock();
        if self.commit.syncs.load(SeqCst) && q.to_sync == 0 {
            self.commit.syncs.store(false, SeqCst);
        }
        if q.pending.is_empty() {
            q.give_lead_back(Leader::Nobody, self.env.ledger());
            return true;
        }
        let once_more = once_more && q.to_sync == 0 && q.bytes <= TURN_BYTES;
        let mut sleeper = None;
        // Among the first few: the queue stands still meanwhile.
        for p in q.pending.iter().take(AWAKE_AMONG) {
            let ticket = p.ticket.as_ref().expect("what is queued has one");
            let mut slot = ticket.slot.lock();
            let free = matches!(slot.phase, Phase::Queued);
            match slot.waiter {
                Waiter::Awake if free => {
                    slot.phase = Phase::Lead;
                    ticket.wake();
                    return true;
                }
                Waiter::Asleep if free => sleeper = sleeper.or(Some(ticket)),
                _ => {}
            }
        }
        if let Some(ticket) = sleeper {
            if once_more {
                return false;
            }
            ticket.slot.lock().phase = Phase::Lead;
            ticket.wake();
            return true;
        }
        // The lane's own thread may be in a held submit.
        q.give_lead_back(Leader::Scheduled, self.env.ledger());
        drop(q);
        self.spawn_leader(delay);
        true
    }

    /// The write path, top to bottom: room, numbers, log, sync, memtables, publish.
    fn commit_group(
        self: &Arc<Self>,
        writer: &mut Writer,
        group: &mut [Pending],
        patience: Patience,
    ) -> Result<Committed> {
        let bytes: usize = group.iter().map(|p| p.buf.len()).sum();
        let foreground_load: usize = group.iter().map(|p| p.foreground_load).sum();
        let raw: usize = group.iter().flat_map(|p| &p.raw).map(Bytes::len).sum();
        let sync = group.iter().any(|p| p.sync);
        let count: u64 = group.iter().map(|p| u64::from(p.count)).sum();
        if count == 0 {
            self.check_jobs()?;
            if sync {
                self.sync_log(writer)?;
            }
            return Ok(Committed::From(writer.next_seq));
        }
        let size = GroupSize {
            bytes: bytes as u64,
            memory: (bytes + raw) as u64,
            entries: count,
            packed: raw > 0,
        };
        if let Room::Later(delay) = self.make_room(writer, &size, patience)? {
            return Ok(Committed::Later(delay));
        }
        let first = writer.next_seq;
        writer.next_seq += count;

        let mut seq = first;
        let mut records: SmallVec<[Outgoing<'_>; 1]> = SmallVec::with_capacity(group.len());
        for p in group.iter_mut().filter(|p| p.count > 0) {
            records.push(Outgoing {
                buf: &mut p.buf,
                kind: RecordKind::Batch,
                first_seq: seq,
                count: p.count,
                payload_crc: p.payload_crc,
                separated: &p.separated,
                offset: 0,
            });
            seq += u64::from(p.count);
        }
        let began = sync.then(|| self.env.clock().now());
        self.append_to_log(writer, &mut records, sync)?;
        let generation = self.active_generation();
        generation.keep_places(&records);
        drop(records);
        if let Some(began) = began {
            let took = self.env.clock().now() - began;
            self.commit.queue.lock().group_wait.note_sync(took);
        }

        insert_group(&generation, group, first, bytes);
        generation.book_memory();
        self.visible.store(first + count - 1, SeqCst);
        self.counters.commit_groups.add(1);
        self.counters.commits.add(group.len() as u64);
        let batches = group.iter().filter(|p| p.count > 0).count();
        self.counters
            .user_bytes
            .add((bytes + foreground_load - batches * RECORD_HEADER) as u64);
        if raw > 0 {
            self.counters.packed.packed(raw, raw - foreground_load);
        }
        self.keep_log_ahead(writer);
        self.watch_idle();
        Ok(Committed::From(first))
    }
}
