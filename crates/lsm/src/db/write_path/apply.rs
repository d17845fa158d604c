//! Applies committed batches to memtables: the leader does it, or for large groups the waiting
//! writers do it in parallel.

use super::queue::PendingBatch;
use super::ticket_state::{Phase, Waiter};
use crate::db::memtable_set::MemtableSet;
use crate::memtable::MemTable;
use crate::options::Compression;
use basalt_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex, named};
use basalt_fs::{Bytes, Error, ErrorKind, Result, slot_size};
use basalt_kv::batch::{BatchParts, Op, Ops, WriteBatch};
use basalt_kv::key::{Kind, SeqNo};
use basalt_kv::separated::compressed;
use basalt_records::RECORD_HEADER;
use smallvec::SmallVec;
use std::sync::Arc;

/// Bytes of a group from which on waiting writers insert their own batches into the memtable in
/// parallel.
const PARALLEL_INSERT_BYTES: usize = if cfg!(feature = "schedules") {
    1 << 10
} else {
    64 << 10
};

/// Applies a committed group, whose sequence numbers begin at `first`, to the memtables of a
/// memtable set.
pub(crate) fn insert_group(
    memtable_set: &Arc<MemtableSet>,
    group: &mut [PendingBatch],
    first: SeqNo,
    bytes: usize,
) {
    if bytes >= PARALLEL_INSERT_BYTES && group.len() > 1 {
        return insert_in_parallel(memtable_set, group, first);
    }
    let mut seq = first;
    for p in group.iter_mut().filter(|p| p.count > 0) {
        let raw = std::mem::take(&mut p.raw);
        if MemTable::pins(p.len) {
            insert_own(memtable_set, &p.take_payload(), &raw, seq);
        } else {
            // No value in the batch is large enough to keep the batch in memory.
            let (payload, no_buffer) = (&p.buf[RECORD_HEADER..p.len], Bytes::new());
            apply(memtable_set, payload, &no_buffer, &raw, seq, |_, _| true).expect(VALIDATED);
        }
        seq += u64::from(p.count);
    }
}

/// Applies a batch that was read to the memtables of a memtable set, and decompresses its
/// compressed values. Operations of families that do not exist are skipped.
///
/// Errors: `Corruption` if the batch is not well-formed. A part of the batch may then be applied.
pub(crate) fn insert(memtable_set: &MemtableSet, payload: &Bytes, first_seq: SeqNo) -> Result<()> {
    apply(memtable_set, payload, payload, &[], first_seq, |_, _| true)
}

const VALIDATED: &str = "a batch that this process built is well formed";

/// Applies a batch that this process built, as [`insert`] does. Such a batch still has the values
/// that it compressed.
fn insert_own(memtable_set: &MemtableSet, payload: &Bytes, raw: &[Bytes], first_seq: SeqNo) {
    apply(memtable_set, payload, payload, raw, first_seq, |_, _| true).expect(VALIDATED);
}

/// Applies a batch that goes into no log. Items for whose family and sequence number `keeps`
/// returns false are left out, and so are items of families that do not exist.
pub(crate) fn insert_unlogged(
    memtable_set: &MemtableSet,
    batch: WriteBatch,
    first_seq: SeqNo,
    keeps: &dyn Fn(u32, SeqNo) -> bool,
) {
    let BatchParts { buf, raw, .. } = batch.into_parts();
    if MemTable::pins(buf.len()) {
        let payload = basalt_kv::batch::payload(Bytes::from_owner(buf));
        apply(memtable_set, &payload, &payload, &raw, first_seq, keeps).expect(VALIDATED);
    } else {
        // No value in the batch is large enough to keep the batch in memory.
        let (payload, no_buffer) = (&buf[RECORD_HEADER..], Bytes::new());
        apply(memtable_set, payload, &no_buffer, &raw, first_seq, keeps).expect(VALIDATED);
    }
}

/// Returns the value of an operation, decompressed, as a memtable gets it.
///
/// Errors: `Corruption` if the value cannot be decompressed.
pub(crate) fn decompressed(op: &Op<'_>) -> Result<Bytes> {
    let raw = compressed::unpack(op.kind, op.codec, op.value, 0);
    raw.map(Bytes::from).map_err(|what| {
        let what = format!("a compressed value in a batch: {what}");
        Error::new(ErrorKind::Corruption, what)
    })
}

/// Checks a batch for the errors that [`insert`] would return.
pub(crate) fn check(payload: &[u8]) -> Result<()> {
    for op in Ops::new(payload) {
        let op = op?;
        if op.codec != Compression::None {
            decompressed(&op)?;
        }
    }
    Ok(())
}

/// Applies a batch as [`insert`] does. Large values that lie in `batch` keep it in memory. `raw`
/// has the decompressed values, unless they are to be decompressed. Operations for which `keeps`
/// returns false are skipped.
fn apply(
    memtable_set: &MemtableSet,
    payload: &[u8],
    batch: &Bytes,
    raw: &[Bytes],
    first_seq: SeqNo,
    keeps: impl Fn(u32, SeqNo) -> bool,
) -> Result<()> {
    let mut pinned_values = 0;
    let mut pinned_by = None;
    let mut raw = raw.iter();
    for (seq, op) in (first_seq..).zip(Ops::new(payload)) {
        let op = op?;
        // Each compressed value has its own decompressed one, also a value of a family that was
        // dropped.
        let own = (op.codec != Compression::None).then(|| raw.next());
        if !keeps(op.family, seq) {
            continue;
        }
        if let Some(mem) = memtable_set.mems.get(&op.family) {
            if op.kind == Kind::RangeDelete {
                mem.delete_range(op.key, op.value, seq);
                continue;
            }
            if let Some(own) = own {
                // A value alone in its memory keeps nothing of the batch.
                let value = own.map_or_else(|| decompressed(&op), |v| Ok(v.clone()))?;
                mem.insert(op.key, seq, op.kind, &value);
                continue;
            }
            mem.insert_from(batch, op.key, seq, op.kind, op.value);
            if MemTable::pins(op.value.len()) {
                pinned_values += op.value.len();
                pinned_by = Some(mem);
            }
        }
    }
    // One large value keeps the whole batch in memory, so the bytes that are not large values
    // count, too.
    if let Some(mem) = pinned_by {
        let memory = slot_size(RECORD_HEADER + payload.len());
        mem.add_pinned(memory - pinned_values);
    }
    Ok(())
}

/// Has each waiting writer insert its own batch. This thread inserts the others.
fn insert_in_parallel(memtable_set: &Arc<MemtableSet>, group: &mut [PendingBatch], first: SeqNo) {
    let left = Arc::new(Countdown::new(group.len()));
    let mut own = Vec::new();
    let mut seq = first;
    for p in group {
        if p.count == 0 {
            left.done();
            continue;
        }
        let task = InsertTask {
            memtable_set: memtable_set.clone(),
            raw: std::mem::take(&mut p.raw),
            payload: p.take_payload(),
            first_seq: seq,
            left: left.clone(),
        };
        seq += u64::from(p.count);
        let Some(ticket) = &p.ticket else {
            own.push(task);
            continue;
        };
        let mut slot = ticket.slot.lock();
        if slot.waiter == Waiter::None {
            drop(slot);
            own.push(task);
        } else {
            slot.phase = Phase::Insert(task);
            ticket.wake();
        }
    }
    own.into_iter().for_each(InsertTask::run);
    left.wait();
}

/// The part of one batch in a parallel memtable insertion.
pub(crate) struct InsertTask {
    memtable_set: Arc<MemtableSet>,
    payload: Bytes,
    raw: SmallVec<[Bytes; 1]>,
    first_seq: SeqNo,
    left: Arc<Countdown>,
}

impl InsertTask {
    pub fn run(self) {
        let _done = CountdownGuard::new(&self.left);
        insert_own(&self.memtable_set, &self.payload, &self.raw, self.first_seq);
    }
}

/// Counts down when dropped, also by a panic: the leader waits for the count.
pub(crate) struct CountdownGuard<'a>(&'a Countdown);

impl CountdownGuard<'_> {
    /// Returns a guard of one part.
    pub fn new(countdown: &Countdown) -> CountdownGuard<'_> {
        CountdownGuard(countdown)
    }
}

impl Drop for CountdownGuard<'_> {
    fn drop(&mut self) {
        if basalt_env::sync::panicking() {
            self.0.failed.store(true, SeqCst);
        }
        self.0.done();
    }
}

/// Counts the parts of an insertion that are not done yet.
pub(crate) struct Countdown {
    left: AtomicUsize,
    failed: AtomicBool,
    lock: Mutex<()>,
    zero: Condvar,
}

impl Countdown {
    /// Returns a count of `parts` parts.
    pub fn new(parts: usize) -> Countdown {
        Countdown {
            left: AtomicUsize::new(parts),
            failed: AtomicBool::new(false),
            lock: named("Countdown::lock", Mutex::new(())),
            zero: Condvar::new(),
        }
    }

    fn done(&self) {
        if self.left.fetch_sub(1, SeqCst) == 1 {
            let _guard = self.lock.lock();
            self.zero.notify_all();
        }
    }
    /// Waits until all parts are done. Panics if one has panicked.
    pub fn wait(&self) {
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
