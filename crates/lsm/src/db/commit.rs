//! The commit queue: writers queue batches, one of them leads, and the group shares one log write and one sync.
//!
//! Who leads: a thread in [`Ticket::wait`] when nobody leads; else, for batches that nobody waits on, a job on the commit
//! lane. A leader commits one group and hands over to the first waiter in the queue, so no caller works for others
//! longer than one group.
//!
//! A leader of synced batches waits a moment for the writers of the last group to come back: see [`super::company`].

use super::company::Company;
use super::engine::{Engine, Writer};
use super::generation::Generation;
use super::throttle::{Patience, Room};
use crate::batch::{Ops, WriteBatch};
use crate::key::{Kind, SeqNo};
use crate::memtable::MemTable;
use crate::wal::{Outgoing, RECORD_HEADER, RecordKind};
use basalt_env::JobPriority;
use basalt_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard};
use basalt_fs::{AlignedBuf, Bytes, Error, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// A group ends when it holds so many bytes.
const GROUP_BYTES: usize = 1 << 20;
/// A group ends when it holds so many batches.
const GROUP_BATCHES: usize = 1024;
/// From so many bytes on, waiting writers insert their own batches into the memtable side by side.
const PARALLEL_INSERT_BYTES: usize = 64 << 10;

type Callback = Box<dyn FnOnce(Result<SeqNo>) + Send>;

enum Phase {
    Queued,
    /// The waiter is to lead the next group.
    Lead,
    /// The waiter is to insert its batch into the memtable.
    Insert(InsertTask),
    Done(Result<SeqNo>),
}

struct Slot {
    phase: Phase,
    /// A thread sleeps in `wait`.
    waiting: bool,
    then: Option<Callback>,
}

pub(super) struct TicketState {
    slot: Mutex<Slot>,
    changed: Condvar,
}

impl TicketState {
    fn new(phase: Phase) -> Arc<TicketState> {
        Arc::new(TicketState {
            slot: Mutex::new(Slot {
                phase,
                waiting: false,
                then: None,
            }),
            changed: Condvar::new(),
        })
    }

    fn complete(&self, result: Result<SeqNo>) {
        let mut slot = self.slot.lock();
        match slot.then.take() {
            Some(then) => {
                slot.phase = Phase::Done(result.clone());
                drop(slot);
                then(result);
            }
            None => {
                slot.phase = Phase::Done(result);
                if slot.waiting {
                    self.changed.notify_one();
                }
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
        loop {
            if let Phase::Done(r) = &self.state.slot.lock().phase {
                return r.clone();
            }
            if self.engine.commit.try_lead() {
                self.engine.lead_group(Patience::Wait);
                continue;
            }
            let mut slot = self.state.slot.lock();
            match std::mem::replace(&mut slot.phase, Phase::Queued) {
                Phase::Done(r) => return r,
                Phase::Lead => {
                    drop(slot);
                    self.engine.lead_group(Patience::Wait);
                }
                Phase::Insert(task) => {
                    drop(slot);
                    task.run();
                }
                Phase::Queued => {
                    slot.waiting = true;
                    self.changed_wait(&mut slot);
                    slot.waiting = false;
                }
            }
        }
    }

    fn changed_wait(&self, slot: &mut MutexGuard<'_, Slot>) {
        self.state.changed.wait(slot);
    }

    /// The result, if there is one yet.
    pub fn try_result(&self) -> Option<Result<SeqNo>> {
        match &self.state.slot.lock().phase {
            Phase::Done(r) => Some(r.clone()),
            _ => None,
        }
    }

    /// Calls `then` with the result, on whatever thread finds it; at once when it is there. `then` must not block.
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

struct Pending {
    /// Record header space and operations; empty for a mere sync.
    buf: AlignedBuf,
    count: u32,
    payload_crc: u32,
    sync: bool,
    ticket: Arc<TicketState>,
}

/// What became of a group.
enum Committed {
    /// It is in, from this sequence number on.
    From(SeqNo),
    /// Nothing was touched: it is held back for so long.
    Later(Duration),
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Leader {
    Nobody,
    /// A job on the commit lane will lead; a waiter may be faster.
    Scheduled,
    Active,
}

struct Queue {
    pending: VecDeque<Pending>,
    leader: Leader,
    company: Company,
    /// How many batches a leader waits for.
    wanted: usize,
}

pub(super) struct CommitQueue {
    queue: Mutex<Queue>,
    /// As many batches are queued as a leader waits for.
    all_there: Condvar,
}

impl CommitQueue {
    pub(super) fn new() -> CommitQueue {
        CommitQueue {
            queue: Mutex::new(Queue {
                pending: VecDeque::new(),
                leader: Leader::Nobody,
                company: Company::default(),
                wanted: usize::MAX,
            }),
            all_there: Condvar::new(),
        }
    }

    /// Takes the lead if somebody must and nobody does.
    fn try_lead(&self) -> bool {
        let mut q = self.queue.lock();
        if q.leader == Leader::Active || q.pending.is_empty() {
            return false;
        }
        q.leader = Leader::Active;
        true
    }

    /// Puts a group back that found no room; it goes first next time.
    fn put_back(&self, group: Vec<Pending>) {
        let mut q = self.queue.lock();
        debug_assert!(q.leader == Leader::Active);
        for p in group.into_iter().rev() {
            q.pending.push_front(p);
        }
    }

    fn take_group(&self) -> Vec<Pending> {
        let mut q = self.queue.lock();
        debug_assert!(q.leader == Leader::Active);
        let mut group = Vec::with_capacity(q.pending.len().min(64));
        let mut bytes = 0;
        while group.len() < GROUP_BATCHES {
            let Some(next) = q.pending.front() else { break };
            bytes += next.buf.len();
            if !group.is_empty() && bytes > GROUP_BYTES {
                break;
            }
            group.extend(q.pending.pop_front());
        }
        let behind = q.pending.len();
        q.company.took(group.len(), behind);
        group
    }
}

/// One batch's part of a parallel memtable insertion.
struct InsertTask {
    generation: Arc<Generation>,
    payload: Bytes,
    first_seq: SeqNo,
    left: Arc<Countdown>,
}

impl InsertTask {
    fn run(self) {
        let _done = Done(&self.left);
        insert(&self.generation, &self.payload, self.first_seq);
    }
}

/// Counts down when dropped, also by a panic, which the leader waits to hear of.
struct Done<'a>(&'a Countdown);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if basalt_env::sync::panicking() {
            self.0.failed.store(true, SeqCst);
        }
        self.0.done();
    }
}

struct Countdown {
    left: AtomicUsize,
    failed: AtomicBool,
    lock: Mutex<()>,
    zero: Condvar,
}

impl Countdown {
    fn done(&self) {
        if self.left.fetch_sub(1, SeqCst) == 1 {
            let _guard = self.lock.lock();
            self.zero.notify_all();
        }
    }
    fn wait(&self) {
        let mut guard = self.lock.lock();
        while self.left.load(SeqCst) != 0 {
            self.zero.wait(&mut guard);
        }
        drop(guard);
        assert!(
            !self.failed.load(SeqCst),
            "a writer of the group panicked while it inserted its batch"
        );
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_string())
}

/// Applies a batch to a generation's memtables. Operations of families dropped meanwhile are passed over.
pub(super) fn insert(generation: &Generation, payload: &Bytes, first_seq: SeqNo) {
    let mut pinned_values = 0;
    let mut pinned_by = None;
    for (seq, op) in (first_seq..).zip(Ops::new(payload)) {
        let op = op.expect("a batch this process built, or recovery checked, is well formed");
        if let Some(mem) = generation.mems.get(&op.family) {
            if op.kind == Kind::RangeDelete {
                mem.delete_range(op.key, op.value, seq);
                continue;
            }
            mem.insert_from(payload, op.key, seq, op.kind, op.value);
            if MemTable::pins(op.value.len()) {
                pinned_values += op.value.len();
                pinned_by = Some(mem);
            }
        }
    }
    // One large value keeps the whole batch in memory: what is not a large value counts too.
    if let Some(mem) = pinned_by {
        mem.add_pinned(payload.len() - pinned_values);
    }
}

impl Engine {
    /// Queues a batch, or a mere sync when `batch` is `None`.
    pub(super) fn enqueue(&self, batch: Option<WriteBatch>, sync: bool) -> Arc<TicketState> {
        let (buf, count) = batch.map_or((AlignedBuf::new(), 0), |b| (b.buf, b.count));
        let payload_crc = if count == 0 {
            0
        } else {
            crc32c::crc32c(&buf[RECORD_HEADER..])
        };
        let ticket = TicketState::new(Phase::Queued);
        let pending = Pending {
            buf,
            count,
            payload_crc,
            sync,
            ticket: ticket.clone(),
        };
        let mut q = self.commit.queue.lock();
        q.pending.push_back(pending);
        let all_there = q.pending.len() == q.wanted;
        drop(q);
        if all_there {
            self.commit.all_there.notify_one();
        }
        ticket
    }

    /// A ticket for a batch that was refused.
    pub(super) fn failed_ticket(e: Error) -> Arc<TicketState> {
        TicketState::new(Phase::Done(Err(e)))
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
            self.lead_group(if stepped {
                Patience::Wait
            } else {
                Patience::Return
            });
        }
    }

    /// Commits one group. The caller has the lead; it is handed on.
    fn lead_group(self: &Arc<Self>, patience: Patience) {
        let mut group = Vec::new();
        // Whatever happens, the lead is handed on and every ticket answered: others wait for both without a limit.
        let committed = catch_unwind(AssertUnwindSafe(|| {
            self.gather(patience);
            let mut writer = self.writer.lock();
            group = self.commit.take_group();
            self.commit_group(&mut writer, &mut group, patience)
        }));
        let (result, mut panic) = match committed {
            Ok(Ok(Committed::Later(delay))) => {
                self.commit.put_back(group);
                self.hand_over(Some(delay));
                return;
            }
            Ok(Ok(Committed::From(first))) => (Ok(first), None),
            Ok(Err(e)) => (Err(e), None),
            Err(panic) => {
                let _ = self.broken.set(panic_text(&*panic));
                let e = self.check_jobs().expect_err("just set");
                (Err(e), Some(panic))
            }
        };
        self.hand_over(None);
        let mut seq = result.as_ref().map_or(0, |first| *first);
        for p in group {
            seq += u64::from(p.count);
            let one = result.as_ref().map(|_| seq.saturating_sub(1));
            let answer = AssertUnwindSafe(|| p.ticket.complete(one.map_err(Error::clone)));
            if let Err(e) = catch_unwind(answer) {
                panic.get_or_insert(e);
            }
        }
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Waits for the writers of the last group to come back, so that they share this sync.
    fn gather(&self, patience: Patience) {
        if self.env.jobs().is_stepped() || patience == Patience::Return {
            // Nobody else is on the way, or it is the lane of all stores that would wait.
            return;
        }
        let mut q = self.commit.queue.lock();
        let pending = q.pending.len();
        let bytes: usize = q.pending.iter().map(|p| p.buf.len()).sum();
        if bytes >= GROUP_BYTES || !q.pending.iter().any(|p| p.sync) {
            return;
        }
        let Some((wanted, most)) = q.company.wait_for(pending, GROUP_BATCHES) else {
            return;
        };
        // Asleep: on a machine of few processors it is the others who need this one.
        q.wanted = wanted;
        while q.pending.len() < wanted {
            if self.commit.all_there.wait_for(&mut q, most).timed_out() {
                break;
            }
        }
        q.wanted = usize::MAX;
        let came = q.pending.len() >= wanted;
        q.company.waited(came);
    }

    /// Answers what is queued and nobody will lead.
    pub(super) fn lead_all(self: &Arc<Self>) {
        while self.commit.try_lead() {
            self.lead_group(Patience::Wait);
        }
    }

    /// Gives the lead on: to a writer that waits, else to the lane, at once or after a delay.
    fn hand_over(self: &Arc<Self>, delay: Option<Duration>) {
        let mut q = self.commit.queue.lock();
        if q.pending.is_empty() {
            q.leader = Leader::Nobody;
            return;
        }
        for p in &q.pending {
            let mut slot = p.ticket.slot.lock();
            if slot.waiting && matches!(slot.phase, Phase::Queued) {
                slot.phase = Phase::Lead;
                p.ticket.changed.notify_one();
                return;
            }
        }
        q.leader = Leader::Scheduled;
        drop(q);
        self.spawn_leader(delay);
    }

    /// The write path, top to bottom: room, numbers, log, sync, memtables, publish.
    fn commit_group(
        self: &Arc<Self>,
        writer: &mut Writer,
        group: &mut [Pending],
        patience: Patience,
    ) -> Result<Committed> {
        let bytes: usize = group.iter().map(|p| p.buf.len()).sum();
        let sync = group.iter().any(|p| p.sync);
        let count: u64 = group.iter().map(|p| u64::from(p.count)).sum();
        if count == 0 {
            self.check_jobs()?;
            if sync {
                self.sync_log(writer)?;
            }
            return Ok(Committed::From(writer.next_seq));
        }
        if let Room::Later(delay) = self.make_room(writer, bytes as u64, count, patience)? {
            return Ok(Committed::Later(delay));
        }
        let first = writer.next_seq;
        writer.next_seq += count;

        let payload_lens: Vec<usize> = group.iter().map(|p| p.buf.len()).collect();
        let mut seq = first;
        let mut records: Vec<Outgoing<'_>> = Vec::with_capacity(group.len());
        for p in group.iter_mut().filter(|p| p.count > 0) {
            records.push(Outgoing {
                buf: &mut p.buf,
                kind: RecordKind::Batch,
                first_seq: seq,
                count: p.count,
                payload_crc: p.payload_crc,
            });
            seq += u64::from(p.count);
        }
        let began = sync.then(|| self.env.clock().now());
        self.append_to_log(writer, &mut records, sync)?;
        drop(records);
        if let Some(began) = began {
            let took = self.env.clock().now() - began;
            self.commit.queue.lock().company.synced(took);
        }

        let generation = self.active_generation();
        self.insert_group(&generation, group, &payload_lens, first, bytes);
        generation.book_memory();
        self.visible.store(first + count - 1, SeqCst);
        self.counters.commit_groups.add(1);
        self.counters.commits.add(group.len() as u64);
        let batches = payload_lens.iter().filter(|&&len| len > 0).count();
        self.counters
            .user_bytes
            .add((bytes - batches * RECORD_HEADER) as u64);
        self.keep_log_ahead(writer);
        self.watch_idle();
        Ok(Committed::From(first))
    }

    fn insert_group(
        &self,
        generation: &Arc<Generation>,
        group: &mut [Pending],
        payload_lens: &[usize],
        first: SeqNo,
        bytes: usize,
    ) {
        let parallel = bytes >= PARALLEL_INSERT_BYTES && group.len() > 1;
        // Most groups are small: they need none.
        let left = parallel.then(|| {
            Arc::new(Countdown {
                left: AtomicUsize::new(group.len()),
                failed: AtomicBool::new(false),
                lock: Mutex::new(()),
                zero: Condvar::new(),
            })
        });
        let mut own = Vec::new();
        let mut seq = first;
        for (p, &len) in group.iter_mut().zip(payload_lens) {
            if p.count == 0 {
                if let Some(left) = &left {
                    left.done();
                }
                continue;
            }
            let mut buf = std::mem::take(&mut p.buf);
            // The log may have padded the record to the write unit.
            buf.truncate(len);
            let payload = crate::batch::payload(Bytes::from_owner(buf));
            let first_seq = seq;
            seq += u64::from(p.count);
            let Some(left) = &left else {
                insert(generation, &payload, first_seq);
                continue;
            };
            let task = InsertTask {
                generation: generation.clone(),
                payload,
                first_seq,
                left: left.clone(),
            };
            let mut slot = p.ticket.slot.lock();
            if slot.waiting {
                slot.phase = Phase::Insert(task);
                p.ticket.changed.notify_one();
            } else {
                drop(slot);
                own.push(task);
            }
        }
        own.into_iter().for_each(InsertTask::run);
        if let Some(left) = left {
            left.wait();
        }
    }
}
