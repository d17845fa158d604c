//! Committed batches into memtables: by the leader, or large groups by their writers side by side.

use super::commit::Pending;
use super::generation::Generation;
use super::ticket::{Phase, Waiter};
use crate::batch::Ops;
use crate::key::{Kind, SeqNo};
use crate::memtable::MemTable;
use crate::wal::RECORD_HEADER;
use basalt_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Condvar, Mutex};
use basalt_fs::Bytes;
use std::sync::Arc;

/// From so many bytes on, waiting writers insert their own batches into the memtable side by side.
const PARALLEL_INSERT_BYTES: usize = if cfg!(feature = "schedules") {
    1 << 10
} else {
    64 << 10
};

/// Applies a committed group, whose numbers begin at `first`, to a generation's memtables.
pub(super) fn insert_group(
    generation: &Arc<Generation>,
    group: &mut [Pending],
    first: SeqNo,
    bytes: usize,
) {
    if bytes >= PARALLEL_INSERT_BYTES && group.len() > 1 {
        return insert_in_parallel(generation, group, first);
    }
    let mut seq = first;
    for p in group.iter_mut().filter(|p| p.count > 0) {
        if MemTable::pins(p.len) {
            insert(generation, &p.take_payload(), seq);
        } else {
            // No value in it is large enough to keep it.
            apply(generation, &p.buf[RECORD_HEADER..p.len], &Bytes::new(), seq);
        }
        seq += u64::from(p.count);
    }
}

/// Applies a batch to a generation's memtables. Operations of families dropped meanwhile are passed over.
pub(super) fn insert(generation: &Generation, payload: &Bytes, first_seq: SeqNo) {
    apply(generation, payload, payload, first_seq);
}

/// As [`insert`]; `batch` is what large values keep.
fn apply(generation: &Generation, payload: &[u8], batch: &Bytes, first_seq: SeqNo) {
    let mut pinned_values = 0;
    let mut pinned_by = None;
    for (seq, op) in (first_seq..).zip(Ops::new(payload)) {
        let op = op.expect("a batch this process built, or recovery checked, is well formed");
        if let Some(mem) = generation.mems.get(&op.family) {
            if op.kind == Kind::RangeDelete {
                mem.delete_range(op.key, op.value, seq);
                continue;
            }
            mem.insert_from(batch, op.key, seq, op.kind, op.value);
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

/// Has each writer that waits insert its own batch; the others are this thread's.
fn insert_in_parallel(generation: &Arc<Generation>, group: &mut [Pending], first: SeqNo) {
    let left = Arc::new(Countdown {
        left: AtomicUsize::new(group.len()),
        failed: AtomicBool::new(false),
        lock: Mutex::new(()),
        zero: Condvar::new(),
    });
    let mut own = Vec::new();
    let mut seq = first;
    for p in group {
        if p.count == 0 {
            left.done();
            continue;
        }
        let task = InsertTask {
            generation: generation.clone(),
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

/// One batch's part of a parallel memtable insertion.
pub(super) struct InsertTask {
    generation: Arc<Generation>,
    payload: Bytes,
    first_seq: SeqNo,
    left: Arc<Countdown>,
}

impl InsertTask {
    pub fn run(self) {
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
