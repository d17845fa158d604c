//! The commit queue: batches that wait for a commit leader. Its bytes are reserved in the memory
//! ledger.
//!
//! Locks: the queue's, then a ticket's slot.

use super::checks::Check;
use super::group_wait::GroupWait;
use super::ticket_state::TicketState;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard, spin_loop};
use basalt_env::{MemoryKind, MemoryLedger, Reservation};
use basalt_fs::{AlignedBuf, Bytes};
use basalt_kv::batch::{BatchParts, WriteBatch};
use basalt_records::{RECORD_HEADER, Separated};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Bytes at which a group ends.
pub(crate) const GROUP_BYTES: usize = 1 << 20;
/// Number of batches at which a group ends.
pub(crate) const GROUP_BATCHES: usize = 1024;
/// Submitted bytes in the queue at which `submit` waits. The limit leaves the next groups always
/// enough to take.
pub(crate) const QUEUE_BYTES: usize = 16 * GROUP_BYTES;

/// Number of times that a leader of unsynced batches checks whether the last group's writers are
/// back.
const GROUP_WAIT_SPINS: u32 = if cfg!(feature = "schedules") { 1 } else { 100 };

/// A batch that waits to be committed.
pub(crate) struct PendingBatch {
    /// Record header space and operations. It is empty for a batch that only syncs.
    pub buf: AlignedBuf,
    /// Bytes of the record in `buf`: the log may pad the buffer.
    pub len: usize,
    pub count: u32,
    pub payload_crc: u32,
    /// Blob records of the batch.
    pub separated: SmallVec<[Separated; 1]>,
    /// Decompressed values, for memtables, of the blob records that are compressed.
    pub raw: SmallVec<[Bytes; 1]>,
    /// Bytes that compression has saved in the batch.
    pub saved_bytes: usize,
    pub sync: bool,
    /// The preconditions of the batch. A batch that has any is a group of its own.
    pub checks: Box<[Check]>,
    /// True if no thread waited for the batch when it was queued.
    pub submitted: bool,
    /// The ticket of the batch, or `None` for the batch of the leader itself.
    pub ticket: Option<Arc<TicketState>>,
}

/// The batches of one log write. Most groups have a single batch.
pub(crate) type CommitGroup = SmallVec<[PendingBatch; 1]>;

impl PendingBatch {
    pub fn new(batch: WriteBatch, sync: bool, checks: Box<[Check]>) -> PendingBatch {
        let saved_bytes = batch.raw_bytes() - batch.bytes();
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
        PendingBatch {
            len: buf.len(),
            buf,
            count,
            payload_crc,
            separated,
            raw,
            saved_bytes,
            sync,
            checks,
            submitted: false,
            ticket: None,
        }
    }

    /// Returns the bytes of memory that the batch holds.
    pub fn memory(&self) -> usize {
        let checks = self.checks.iter().map(Check::memory).sum::<usize>();
        self.buf.capacity() + self.raw.iter().map(Bytes::len).sum::<usize>() + checks
    }

    /// Returns true if other batches must not share the batch's group.
    pub fn is_conditional(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Returns the operations of the batch, as memory to share.
    pub fn take_payload(&mut self) -> Bytes {
        let mut buf = std::mem::take(&mut self.buf);
        // The log may have padded the record to the write unit.
        buf.truncate(self.len);
        basalt_kv::batch::payload(Bytes::from_owner(buf))
    }
}

/// The state of the lead, which is the right to commit the next group.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Leader {
    /// No thread leads, and no job will.
    None,
    /// A job on the commit lane will lead. A waiting writer may take the lead before it.
    Scheduled,
    /// A thread leads.
    Active,
}

/// A thread inside `submit` that waits until its batch fits the queue.
#[derive(Default)]
pub(crate) struct HeldSubmit {
    /// True once the batch is queued. The value changes under the queue's lock.
    admitted: AtomicBool,
    /// Wakes this thread and no other.
    woken: Condvar,
}

impl HeldSubmit {
    /// Returns true once the batch is queued. The caller has locked the queue.
    pub fn is_admitted(&self) -> bool {
        self.admitted.load(SeqCst)
    }
}

/// The wait of a leader for the writers of the last group.
pub(crate) struct GroupWaitPlan {
    /// Number of batches in the queue that the leader waits for.
    target_batches: usize,
    /// The longest time that the leader waits.
    max_wait: Duration,
    /// True if the group is to be synced.
    sync: bool,
}

/// The state of the commit queue: batches, who leads, and threads that wait for room.
pub(crate) struct Queue {
    pending: VecDeque<PendingBatch>,
    leader: Leader,
    /// Bytes of the pending batches. `to_sync` is the number of those that are to be synced.
    bytes: usize,
    to_sync: usize,
    /// Memory of the pending batches that were submitted, in bytes.
    submitted_bytes: usize,
    /// Memory of all pending batches in the ledger.
    booked: Reservation,
    /// Batches whose `submit` waits until they fit the queue, in the order of their arrival.
    held: VecDeque<(PendingBatch, Arc<HeldSubmit>)>,
    group_wait: GroupWait,
    /// Number of batches that a leader waits for.
    target_batches: usize,
}

impl Queue {
    /// Takes the lead, unless a thread has it. Returns true if the caller now leads.
    pub fn begin_lead(&mut self) -> bool {
        let free = self.leader != Leader::Active;
        self.leader = Leader::Active;
        free
    }

    /// Notes that a job will lead the queued batches. Returns false, and changes nothing, if no
    /// batch is queued, or if a thread leads or a job will.
    pub fn schedule_lead(&mut self) -> bool {
        let due = self.leader == Leader::None && !self.pending.is_empty();
        if due {
            self.leader = Leader::Scheduled;
        }
        due
    }

    /// Gives the lead back when the thread that led stops. Queues the held batches that fit. If a
    /// batch is still held, the function wakes the thread of the first one to lead.
    ///
    /// Returns true if batches are queued. Then the caller must have a job lead them.
    pub fn give_lead_back(&mut self, ledger: &MemoryLedger) -> bool {
        // Batches that are admitted below have threads that lead, or call `schedule_lead`.
        let queued = !self.pending.is_empty();
        self.leader = match queued {
            true => Leader::Scheduled,
            false => Leader::None,
        };
        self.admit_held(ledger);
        self.wake_first_held();
        queued
    }

    /// Adds a batch at the end. Returns true if as many batches are queued now as a leader waits
    /// for.
    fn push(&mut self, p: PendingBatch) -> bool {
        self.note_pushed(&p);
        self.pending.push_back(p);
        self.pending.len() == self.target_batches
    }

    fn note_pushed(&mut self, p: &PendingBatch) {
        self.bytes += p.buf.len();
        self.to_sync += usize::from(p.sync);
        let memory = p.memory();
        self.booked.resize(self.booked.bytes() + memory as u64);
        self.submitted_bytes += if p.submitted { memory } else { 0 };
    }

    fn pop(&mut self) -> Option<PendingBatch> {
        let p = self.pending.pop_front()?;
        self.bytes -= p.buf.len();
        self.to_sync -= usize::from(p.sync);
        // From here on the growth of the memtable accounts for the batch.
        let memory = p.memory();
        self.booked.resize(self.booked.bytes() - memory as u64);
        self.submitted_bytes -= if p.submitted { memory } else { 0 };
        Some(p)
    }

    /// Returns true if no batch is queued.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the bytes of the queued batches.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if a queued batch is to be synced.
    pub fn syncs(&self) -> bool {
        self.to_sync > 0
    }

    /// Returns the queued batches, oldest first.
    pub fn batches(&self) -> impl Iterator<Item = &PendingBatch> {
        self.pending.iter()
    }

    /// True if a submitted batch must wait. The size of the new batch does not count: otherwise a
    /// batch that is larger than the limit could never be queued.
    fn is_full(&self, ledger: &MemoryLedger) -> bool {
        let full = self.submitted_bytes >= QUEUE_BYTES || ledger.free() == 0;
        self.submitted_bytes > 0 && full
    }

    /// Queues the held batches that fit. Returns true if another submitted batch fits behind them.
    pub fn has_room(&mut self, ledger: &MemoryLedger) -> bool {
        self.admit_held(ledger);
        self.held.is_empty() && !self.is_full(ledger)
    }

    /// Adds a submitted batch behind the held ones. The caller waits with the returned value.
    pub fn hold(&mut self, p: PendingBatch) -> Arc<HeldSubmit> {
        let own = Arc::new(HeldSubmit::default());
        self.held.push_back((p, own.clone()));
        own
    }

    /// Removes a batch, if it is still held. Queues the held batches behind it that fit, and wakes
    /// the thread of the first one that is still held.
    pub fn withdraw(&mut self, own: &Arc<HeldSubmit>, ledger: &MemoryLedger) {
        self.held.retain(|(_, thread)| !Arc::ptr_eq(thread, own));
        self.admit_held(ledger);
        self.wake_first_held();
    }

    /// Queues as many held batches as fit, in the order of their arrival. Wakes the threads of
    /// these batches and no other threads.
    pub fn admit_held(&mut self, ledger: &MemoryLedger) {
        while !self.is_full(ledger)
            && let Some((pending, thread)) = self.held.pop_front()
        {
            self.push(pending);
            thread.admitted.store(true, SeqCst);
            thread.woken.notify_one();
        }
    }

    /// Wakes the thread of the first held batch, if no thread leads, so that it leads.
    pub fn wake_next_leader(&self) {
        if self.leader != Leader::Active {
            self.wake_first_held();
        }
    }

    fn wake_first_held(&self) {
        if let Some((_, first)) = self.held.front() {
            first.woken.notify_one();
        }
    }

    /// Returns how a leader with `own` batches of its own waits for more of them, or `None` if it
    /// does not wait.
    pub fn plan_wait(&mut self, own: usize, sync: bool) -> Option<GroupWaitPlan> {
        let pending = self.pending.len() + own;
        let (target_batches, max_wait) = self.group_wait.wait_for(pending, GROUP_BATCHES, sync)?;
        let target_batches = target_batches - own;
        self.target_batches = target_batches;
        Some(GroupWaitPlan {
            target_batches,
            max_wait,
            sync,
        })
    }

    /// Notes the time that a group's append and sync took.
    pub fn note_sync(&mut self, took: Duration) {
        self.group_wait.note_sync(took);
    }
}

/// The commit queue of a store.
pub(crate) struct CommitQueue {
    queue: Mutex<Queue>,
    /// Wakes the leader when as many batches are queued as it waits for.
    group_complete: Condvar,
    /// True when these batches are queued. A leader that spins reads it.
    wake_requested: AtomicBool,
    /// True while the leader commits a synced group. A writer that waits for such a group sleeps
    /// instead of spinning.
    syncs: AtomicBool,
    /// Number of times that threads of held submits have woken up.
    #[cfg(test)]
    wakes: basalt_env::sync::atomic::AtomicUsize,
}

impl CommitQueue {
    pub fn new(ledger: &MemoryLedger) -> CommitQueue {
        CommitQueue {
            queue: Mutex::new(Queue {
                pending: VecDeque::new(),
                leader: Leader::None,
                bytes: 0,
                to_sync: 0,
                submitted_bytes: 0,
                booked: ledger.reserve(MemoryKind::Buffer, 0),
                held: VecDeque::new(),
                group_wait: GroupWait::default(),
                target_batches: usize::MAX,
            }),
            group_complete: Condvar::new(),
            #[cfg(test)]
            wakes: basalt_env::sync::atomic::AtomicUsize::new(0),
            wake_requested: AtomicBool::new(false),
            syncs: AtomicBool::new(false),
        }
    }

    /// Locks the queue.
    pub fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Returns true while a synced group is being committed, for which a writer sleeps instead of
    /// spinning.
    pub fn syncs(&self) -> bool {
        self.syncs.load(SeqCst)
    }

    /// Notes that the coming group is synced.
    pub fn begin_synced_group(&self) {
        self.syncs.store(true, SeqCst);
    }

    /// Notes that a group has ended. The next one is not synced if no queued batch is to be.
    pub fn end_group(&self, q: &Queue) {
        if self.syncs.load(SeqCst) && q.to_sync == 0 {
            self.syncs.store(false, SeqCst);
        }
    }

    /// Adds a batch at the end of the locked queue, and releases the lock. Wakes a leader that
    /// waits for this batch.
    pub fn push(&self, mut q: MutexGuard<'_, Queue>, p: PendingBatch) {
        let group_complete = q.push(p);
        drop(q);
        if group_complete {
            self.wake_requested.store(true, SeqCst);
            self.group_complete.notify_one();
        }
    }

    /// Waits for the writers of the last group to come back, so that they share this group.
    pub fn wait_for_group(
        &self,
        GroupWaitPlan {
            target_batches,
            max_wait,
            sync,
        }: GroupWaitPlan,
    ) {
        if !sync {
            // A writer that has its answer is back sooner than a thread could fall asleep.
            self.wake_requested.store(false, SeqCst);
        }
        let mut q = self.queue.lock();
        if sync {
            // The leader sleeps: on a machine with few processors the other writers need this one.
            while q.pending.len() < target_batches {
                if self.group_complete.wait_for(&mut q, max_wait).timed_out() {
                    break;
                }
            }
        } else if q.pending.len() < target_batches {
            drop(q);
            for _ in 0..GROUP_WAIT_SPINS {
                if self.wake_requested.load(SeqCst) {
                    break;
                }
                spin_loop();
            }
            q = self.queue.lock();
        }
        q.target_batches = usize::MAX;
        let complete = q.pending.len() >= target_batches;
        q.group_wait.note_wait(complete, sync);
    }

    /// Waits until the batch of a held submit is queued, or its thread is to lead. The wait may end
    /// early.
    pub fn wait_while_held(&self, q: &mut MutexGuard<'_, Queue>, own: &HeldSubmit) {
        own.woken.wait(q);
        #[cfg(test)]
        self.wakes.fetch_add(1, SeqCst);
    }

    /// Takes the lead if batches are queued and no thread leads.
    pub fn try_lead(&self) -> bool {
        let mut q = self.queue.lock();
        !q.is_empty() && q.begin_lead()
    }

    /// Puts a group back that was not admitted. The next leader takes it first.
    pub fn put_back(&self, group: CommitGroup) {
        let mut q = self.queue.lock();
        debug_assert!(q.leader == Leader::Active);
        for p in group.into_iter().rev() {
            debug_assert!(p.ticket.is_some(), "no thread would complete it");
            q.note_pushed(&p);
            q.pending.push_front(p);
        }
    }

    /// Adds what is queued to the leader's group.
    pub fn take_group(&self, group: &mut CommitGroup, ledger: &MemoryLedger) {
        let mut q = self.queue.lock();
        debug_assert!(q.leader == Leader::Active);
        let mut bytes: usize = group.iter().map(|p| p.buf.len()).sum();
        while group.len() < GROUP_BATCHES {
            let Some(next) = q.pending.front() else { break };
            bytes += next.buf.len();
            let alone =
                next.is_conditional() || group.last().is_some_and(PendingBatch::is_conditional);
            if !group.is_empty() && (alone || bytes > GROUP_BYTES) {
                break;
            }
            group.extend(q.pop());
        }
        let behind = q.pending.len();
        q.group_wait.note_group(group.len(), behind);
        q.admit_held(ledger);
    }

    /// Returns the number of submits that wait for space in the queue.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.queue.lock().held.len()
    }

    /// Returns the number of times that threads of held submits have woken up.
    #[cfg(test)]
    pub fn wakes(&self) -> usize {
        self.wakes.load(SeqCst)
    }
}
