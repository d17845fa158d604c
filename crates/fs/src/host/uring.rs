//! Batched reads through io_uring. This is a leaf module with `unsafe`.
//!
//! # Invariant
//! From the moment an entry is in the submission queue until its completion was taken from the
//! completion queue, the kernel may write into the spare memory of the slot that the entry names,
//! and use the slot's descriptor. A slot (its buffer, and the file that owns the descriptor) is
//! therefore freed only by [`RingBatch::complete`], after its completion. A batch that is dropped
//! early waits for all of its completions. If waiting itself fails for good, the ring and the slots
//! are leaked. A batch that is itself leaked leaks them too. Slots may move: the buffer's memory is
//! on the heap and does not move.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::HostShared;
use super::file::HostFile;
use super::read::ReadOp;
use crate::{Bytes, Error, ErrorKind, File, ReadCompletions, ReadRequest, Result};

/// Most reads of one batch that are in flight at a time.
const DEPTH: u32 = 64;
/// User data of an entry that is not a read.
const FILLER: u64 = u64::MAX;
/// Most rings that are kept between batches.
const IDLE_MAX: usize = 4;

/// The rings that are in no batch.
#[derive(Default)]
pub(super) struct RingPool {
    idle: Mutex<Vec<IoUring>>,
}

impl RingPool {
    /// Returns a pool with one ring, if the kernel offers io_uring and its plain read.
    pub(super) fn probe() -> io::Result<RingPool> {
        let ring = IoUring::new(DEPTH)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(RingPool {
            idle: Mutex::new(vec![ring]),
        })
    }

    /// Returns a ring that is in no batch, or `None` if the process cannot have another one.
    pub(super) fn take(&self) -> Option<IoUring> {
        let idle = self.idle.lock().pop();
        idle.or_else(|| IoUring::new(DEPTH).ok())
    }

    fn give(&self, ring: IoUring) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(ring);
        }
    }
}

/// A read in flight: its index in the batch, its file and its progress.
struct Slot {
    index: usize,
    file: Arc<dyn File>,
    op: ReadOp,
}

fn host(file: &Arc<dyn File>) -> &HostFile {
    file.as_any()
        .downcast_ref()
        .expect("the batch was checked to hold host files")
}

/// A batch of reads in a ring of its own.
pub(super) struct RingBatch {
    shared: Arc<HostShared>,
    /// The ring. `None` after it was returned to the pool or leaked.
    ring: Option<IoUring>,
    /// Reads that were not submitted.
    queue: VecDeque<(usize, ReadRequest)>,
    /// The reads in flight. A slot's index in this list is the user data of its entry.
    slots: Vec<Option<Slot>>,
    /// Indices of free slots.
    free: Vec<usize>,
    /// Number of entries whose completion was not taken.
    in_flight: usize,
    /// Results that the caller has not taken yet.
    ready: VecDeque<(usize, Result<Bytes>)>,
}

impl RingBatch {
    /// Starts a batch; every file is a [`HostFile`].
    pub(super) fn start(
        shared: Arc<HostShared>,
        ring: IoUring,
        reads: Vec<ReadRequest>,
    ) -> RingBatch {
        let depth = reads.len().min(DEPTH as usize);
        let mut batch = RingBatch {
            shared,
            ring: Some(ring),
            queue: reads.into_iter().enumerate().collect(),
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            in_flight: 0,
            ready: VecDeque::new(),
        };
        batch.refill();
        batch
    }

    /// Fills free slots from the queue and hands them to the kernel.
    fn refill(&mut self) {
        let before = self.in_flight;
        while !self.queue.is_empty()
            && let Some(place) = self.free.pop()
        {
            let (index, r) = self.queue.pop_front().expect("not empty");
            let op = ReadOp::plan(host(&r.file), r.offset, r.len, r.lifetime);
            if op.done() {
                self.free.push(place);
                self.ready.push_back((index, Ok(op.finish(host(&r.file)))));
                continue;
            }
            self.slots[place] = Some(Slot {
                index,
                file: r.file,
                op,
            });
            self.push(place);
        }
        if self.in_flight > before {
            // The ring has room for it, because the batch has only two reads.
            if self.slots.len() == 2 && self.in_flight - before == 2 {
                self.push_filler();
            }
            self.enter(0);
        }
    }

    /// Queues an entry that does nothing. The kernel notifies the device once for all entries that
    /// are submitted together, but only if there are more than two of them. On a virtual disk, the
    /// notification is the larger part of the cost of a read.
    fn push_filler(&mut self) {
        let entry = opcode::Nop::new().build().user_data(FILLER);
        let ring = self.ring.as_mut().expect("a running batch has a ring");
        // SAFETY: the entry names no memory and no descriptor.
        if unsafe { ring.submission().push(&entry) }.is_ok() {
            self.in_flight += 1;
        }
    }

    /// Queues the next call of a slot.
    fn push(&mut self, place: usize) {
        let slot = self.slots[place].as_mut().expect("a slot in use");
        let (offset, len) = slot.op.next_call();
        let fd = types::Fd(slot.op.fd(host(&slot.file)).as_raw_fd());
        let memory = &mut slot.op.memory().spare_mut()[..len];
        let len = u32::try_from(len).expect("a call is at most 1 GiB");
        let entry = opcode::Read::new(fd, memory.as_mut_ptr().cast::<u8>(), len)
            .offset(offset)
            .build()
            .user_data(place as u64);
        let ring = self.ring.as_mut().expect("a running batch has a ring");
        // SAFETY: the memory is `len` bytes of spare capacity of the slot's buffer. By the module's
        // invariant, the memory and the descriptor outlive the entry.
        let pushed = unsafe { ring.submission().push(&entry) };
        assert!(
            pushed.is_ok(),
            "a ring of {DEPTH} entries takes {DEPTH} reads"
        );
        self.in_flight += 1;
    }

    /// Submits the queued entries to the kernel and waits for `want` completions. Returns false if
    /// the ring is broken.
    fn enter(&mut self, want: usize) -> bool {
        let Some(ring) = self.ring.as_mut() else {
            return false;
        };
        if want == 0 && ring.submission().is_empty() {
            return true;
        }
        match ring.submit_and_wait(want) {
            Ok(_) => true,
            // Entries that the kernel did not take stay queued and are submitted with the next
            // call.
            Err(e) => match Errno::from_io_error(&e) {
                Some(Errno::INTR) => true,
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                    std::thread::yield_now();
                    true
                }
                _ => {
                    self.give_up(&e);
                    false
                }
            },
        }
    }

    /// Ends a batch whose ring cannot be waited on. The memory that the kernel may still write to
    /// is leaked, and every read fails.
    fn give_up(&mut self, e: &io::Error) {
        std::mem::forget(self.ring.take());
        let failed = |index| {
            let text = format!("the batch's io_uring failed: {e}");
            (index, Err(Error::new(ErrorKind::Io, text)))
        };
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            self.ready.push_back(failed(slot.index));
            std::mem::forget(slot);
        }
        for (index, _) in self.queue.drain(..) {
            self.ready.push_back(failed(index));
        }
        self.free.clear();
        self.in_flight = 0;
    }

    /// Takes all completions that have arrived, and returns their number.
    fn reap(&mut self) -> usize {
        let mut taken = 0;
        loop {
            let Some(ring) = self.ring.as_mut() else {
                return taken;
            };
            let Some(cqe) = ring.completion().next() else {
                return taken;
            };
            taken += 1;
            self.in_flight -= 1;
            if cqe.user_data() == FILLER {
                continue;
            }
            let place = usize::try_from(cqe.user_data()).expect("we numbered the slots");
            self.complete(place, cqe.result());
        }
    }

    /// Handles a completion of this slot: the kernel no longer uses the slot's memory.
    fn complete(&mut self, place: usize, result: i32) {
        let slot = self.slots[place].as_mut().expect("a slot in flight");
        let file = host(&slot.file);
        let outcome = if result >= 0 {
            let n = result as usize;
            let (_, asked) = slot.op.next_call();
            assert!(
                n <= asked,
                "the kernel read {n} bytes where {asked} were asked"
            );
            // SAFETY: the completion says that the kernel initialised the first n bytes of the
            // spare memory.
            unsafe { slot.op.memory().advance(n) };
            file.sys().count_read(n);
            slot.op.came(n);
            if !slot.op.done() {
                self.push(place);
                return;
            }
            Ok(())
        } else {
            match Errno::from_raw_os_error(-result) {
                // The thread that submitted the read ended, or the kernel could not queue it. So
                // the read is done here.
                Errno::INTR | Errno::AGAIN | Errno::CANCELED => {
                    slot.op.run(file).map_err(io::Error::from)
                }
                e => Err(e.into()),
            }
        };
        let slot = self.slots[place].take().expect("checked above");
        self.free.push(place);
        let bytes = match outcome {
            Ok(()) => Ok(slot.op.finish(host(&slot.file))),
            Err(e) => Err(slot.op.error(host(&slot.file), e)),
        };
        self.ready.push_back((slot.index, bytes));
    }
}

impl ReadCompletions for RingBatch {
    fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        loop {
            if let Some(r) = self.try_next() {
                return Some(r);
            }
            if self.in_flight == 0 {
                return None;
            }
            self.enter(1);
        }
    }

    fn wait_all(&mut self) {
        while self.in_flight > 0 {
            self.enter(self.in_flight);
            if self.reap() > 0 {
                self.refill();
                self.enter(0);
            }
        }
    }

    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
        if self.reap() > 0 {
            // `complete` has queued continued reads, and new reads take the free slots.
            self.refill();
            self.enter(0);
        }
        self.ready.pop_front()
    }
}

impl Drop for RingBatch {
    fn drop(&mut self) {
        self.queue.clear();
        while self.in_flight > 0 {
            self.enter(1);
            self.reap();
        }
        if let Some(ring) = self.ring.take() {
            self.shared.give_ring(ring);
        }
    }
}

impl HostShared {
    fn give_ring(&self, ring: IoUring) {
        if let super::Reader::Ring(pool, _) = &self.reader {
            pool.give(ring);
        }
    }
}
