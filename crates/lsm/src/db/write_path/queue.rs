//! The commit queue: batches that wait for a commit leader. Its bytes are reserved in the memory
//! ledger.
//!
//! Locks: the queue's, then a ticket's slot.

use super::checks::Check;
use super::group_wait::GroupWait;
use super::ticket_state::TicketState;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, MutexGuard};
use basalt_env::{MemoryKind, MemoryLedger, Reservation};
use basalt_fs::{AlignedBuf, Bytes};
use basalt_kv::batch::{BatchParts, WriteBatch};
use basalt_records::{RECORD_HEADER, Separated};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes at which a group ends.
pub(crate) const GROUP_BYTES: usize = 1 << 20;
/// Number of batches at which a group ends.
pub(crate) const GROUP_BATCHES: usize = 1024;
/// Submitted bytes in the queue at which `submit` waits. The limit leaves the next groups always
/// enough to take.
pub(crate) const QUEUE_BYTES: usize = 16 * GROUP_BYTES;

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

#[derive(PartialEq, Eq, Clone, Copy)]
pub(crate) enum Leader {
    None,
    /// A job on the commit lane will lead. A waiting writer may take the lead before it.
    Scheduled,
    Active,
}

/// A thread inside `submit` that waits until its batch fits the queue.
#[derive(Default)]
pub(crate) struct HeldSubmit {
    /// True once the batch is queued. The value changes under the queue's lock.
    pub admitted: AtomicBool,
    /// Wakes this thread and no other.
    pub woken: Condvar,
}

pub(crate) struct Queue {
    pub pending: VecDeque<PendingBatch>,
    pub leader: Leader,
    /// Bytes of the pending batches. `to_sync` is the number of those that are to be synced.
    pub bytes: usize,
    pub to_sync: usize,
    /// Memory of the pending batches that were submitted, in bytes.
    pub submitted_bytes: usize,
    /// Memory of all pending batches in the ledger.
    pub booked: Reservation,
    /// Batches whose `submit` waits until they fit the queue, in the order of their arrival.
    pub held: VecDeque<(PendingBatch, Arc<HeldSubmit>)>,
    pub group_wait: GroupWait,
    /// Number of batches that a leader waits for.
    pub target_batches: usize,
}

impl Queue {
    pub fn push(&mut self, p: PendingBatch, first: bool) {
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

    pub fn pop(&mut self) -> Option<PendingBatch> {
        let p = self.pending.pop_front()?;
        self.bytes -= p.buf.len();
        self.to_sync -= usize::from(p.sync);
        // From here on the growth of the memtable accounts for the batch.
        let memory = p.memory();
        self.booked.resize(self.booked.bytes() - memory as u64);
        self.submitted_bytes -= if p.submitted { memory } else { 0 };
        Some(p)
    }

    /// True if a submitted batch must wait. The size of the new batch does not count: otherwise a
    /// batch that is larger than the limit could never be queued.
    pub fn is_full(&self, ledger: &MemoryLedger) -> bool {
        let full = self.submitted_bytes >= QUEUE_BYTES || ledger.free() == 0;
        self.submitted_bytes > 0 && full
    }

    /// Queues as many held batches as fit, in the order of their arrival. Wakes the threads of
    /// these batches and no other threads.
    pub fn admit_held(&mut self, ledger: &MemoryLedger) {
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
    pub fn give_lead_back(&mut self, leader: Leader, ledger: &MemoryLedger) {
        self.leader = leader;
        self.admit_held(ledger);
        if let Some((_, first)) = self.held.front() {
            first.woken.notify_one();
        }
    }
}

pub(crate) struct CommitQueue {
    queue: Mutex<Queue>,
    /// Wakes the leader when as many batches are queued as it waits for.
    pub group_complete: Condvar,
    /// True when the batches that the leader waits for are queued. A leader that spins reads it.
    pub wake_requested: AtomicBool,
    /// True while the leader commits a synced group. A writer that waits for such a group sleeps
    /// instead of spinning.
    pub syncs: AtomicBool,
    /// Number of times that threads of held submits have woken up.
    #[cfg(test)]
    pub wakes: basalt_env::sync::atomic::AtomicUsize,
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

    /// Takes the lead if batches are queued and no thread leads.
    pub fn try_lead(&self) -> bool {
        let mut q = self.queue.lock();
        if q.leader == Leader::Active || q.pending.is_empty() {
            return false;
        }
        q.leader = Leader::Active;
        true
    }

    /// Puts a group back that was not admitted. The next leader takes it first.
    pub fn put_back(&self, group: CommitGroup) {
        let mut q = self.queue.lock();
        debug_assert!(q.leader == Leader::Active);
        for p in group.into_iter().rev() {
            debug_assert!(p.ticket.is_some(), "no thread would complete it");
            q.push(p, true);
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
}
