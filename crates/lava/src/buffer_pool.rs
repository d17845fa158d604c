//! The pool of write buffers that all files of an image share, and the jobs that write full
//! buffers (the page-server paper, 6.1).
//!
//! Appends of [`Intent::Bulk`](basalt_fs::Intent::Bulk) are gathered in buffers. A job writes a
//! full buffer while the next one fills. A sync, and each other operation that needs the bytes on
//! the device, waits for the writes of its file.
//!
//! # Invariants
//! - Locks are taken in this order: the append lock of a file, the lock of its
//!   [`FileBuffers`](super::write_buffer::FileBuffers), the lock of the pool. No other lock is
//!   taken under the last two.
//! - The memory of a buffer is reserved in the environment's ledger before it is allocated. The
//!   first [`MIN_BUFFERS`] buffers are reserved even past the budget, because a memtable flush,
//!   which gives memory back, needs them. If the ledger grants no more, a file writes appended
//!   bytes at once.
//! - Jobs of the environment's pool write full buffers. A caller that waits for the bytes of its
//!   file, or for a free buffer, writes buffers that no job has begun. The caller may be on the
//!   only thread of the pool that could run the job.
//! - A failed write ends appends and syncs of its file. The bytes stay in memory for readers as
//!   long as the file is open. They are not part of the file for a later open.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::open_inode::OpenInode;
use super::write_buffer::BUFFER;
use basalt_env::{EnvParts, JobOwner, JobPriority, Jobs, MemoryKind, Reservation};
use basalt_fs::device::{Device, Way};
use basalt_fs::{AlignedBuf, Error, ErrorKind, Result};

/// Buffers that all files hold at most: two for each of 32 files that are written at the same time.
const BUFFERS: usize = 64;
/// Free buffers whose memory is kept for the next file.
const KEPT: usize = 16;
/// Buffers that are reserved in the ledger even past its budget.
const MIN_BUFFERS: usize = 4;
/// Flush jobs wait for writes of buffers.
const PRIORITY: JobPriority = JobPriority::Flush;

/// A full buffer that is to be written.
pub struct WriteJob {
    pub device: Arc<dyn Device>,
    pub inode: Arc<OpenInode>,
    /// Offset in the file of the first byte.
    pub at: u64,
    pub bytes: Arc<AlignedBuf>,
    /// For each piece, the offset on the device and the bytes of the buffer that go there.
    pub places: Vec<(u64, Range<usize>)>,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<WriteJob>,
    /// Jobs that a thread runs now.
    running: usize,
    free: Vec<AlignedBuf>,
    /// Buffers that files hold.
    out: usize,
    /// The reserved memory of the buffers that files hold and of the free ones.
    booked: Option<Reservation>,
    /// The image was abandoned: nothing is written any more.
    stopped: bool,
}

#[derive(Default)]
struct WriteQueue {
    pool: Mutex<PoolState>,
    given_back: Condvar,
}

/// The pool of buffers, and the queue of their writes.
pub struct BufferPool {
    queue: Arc<WriteQueue>,
    /// The write jobs. If `None`, the caller that fills a buffer writes it.
    jobs: Option<JobOwner>,
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        if let Some(jobs) = &self.jobs {
            // No file is open, so queued jobs find no buffer. After this, no job uses the device.
            jobs.cancel();
            jobs.drain();
        }
    }
}

impl PoolState {
    /// Reserves the memory of the present buffers and of `more` new ones. Returns `false`, with the
    /// reservation unchanged, if the ledger refuses.
    fn book(&mut self, more: usize) -> bool {
        let buffers = self.out + self.free.len() + more;
        let bytes = (buffers * BUFFER) as u64;
        match &mut self.booked {
            Some(booked) if buffers > MIN_BUFFERS => booked.try_resize(bytes),
            Some(booked) => {
                booked.resize(bytes);
                true
            }
            None => true,
        }
    }
}

impl WriteQueue {
    /// Takes back a buffer that a file held. `None` means that the file keeps the buffer for good.
    fn give_back(&self, bytes: Option<AlignedBuf>) {
        let mut pool = self.pool.lock();
        pool.out -= 1;
        match bytes {
            Some(mut bytes) if pool.free.len() < KEPT => {
                bytes.clear();
                pool.free.push(bytes);
            }
            surplus => {
                drop(surplus);
                // A smaller reservation is never refused.
                pool.book(0);
            }
        }
        drop(pool);
        self.given_back.notify_all();
    }

    fn run(&self, job: WriteJob) {
        let WriteJob {
            device,
            inode,
            at,
            bytes,
            places,
        } = job;
        let mut done = Ok(());
        for (place, part) in places {
            if self.pool.lock().stopped {
                done = Err(Error::new(
                    ErrorKind::Closed,
                    "the filesystem was abandoned",
                ));
                break;
            }
            // A panic must end the write, because other threads may wait for it.
            let write = || device.write(place, &[IoSlice::new(&bytes[part.clone()])], Way::Direct);
            done = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
                Err(Error::new(
                    ErrorKind::Poisoned,
                    "a write of buffered bytes panicked",
                ))
            });
            if done.is_err() {
                break;
            }
        }
        // The list of the file must be the last owner of the bytes, and the device must be unused
        // when the last waiting caller returns.
        drop((bytes, device));
        inode.end_write(at, done, |bytes| self.give_back(bytes));
    }

    /// Writes the first queued buffer that `is_wanted` accepts. Returns `false` if there is none.
    fn write_one(&self, is_wanted: impl Fn(&WriteJob) -> bool) -> bool {
        let mut pool = self.pool.lock();
        let Some(i) = pool.jobs.iter().position(is_wanted) else {
            return false;
        };
        let job = pool.jobs.remove(i).expect("just found");
        pool.running += 1;
        drop(pool);
        self.run(job);
        self.pool.lock().running -= 1;
        // A thread that waits for a buffer must see that this job gives none back any more.
        self.given_back.notify_all();
        true
    }
}

impl BufferPool {
    /// Returns a pool whose jobs run on the environment's threads and whose memory is in its
    /// ledger. Without an environment, or with a stepped job pool, callers write.
    pub fn new(env: Option<&EnvParts>) -> BufferPool {
        let queue = WriteQueue::default();
        queue.pool.lock().booked = env.map(|env| env.ledger().reserve(MemoryKind::Buffer, 0));
        let jobs = env.map(EnvParts::jobs).filter(|jobs| !jobs.is_stepped());
        BufferPool {
            queue: Arc::new(queue),
            jobs: jobs.map(Jobs::new_owner),
        }
    }

    /// Returns the memory of the buffers that files hold, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.queue.pool.lock().out * BUFFER) as u64
    }

    /// Stops all writes of buffers, because the image was abandoned.
    pub fn stop(&self) {
        self.queue.pool.lock().stopped = true;
    }

    /// Returns an empty buffer, and waits for one if all are held. `None` if all are held by files
    /// that still fill theirs, or if the ledger grants no more memory.
    pub fn take(&self) -> Option<AlignedBuf> {
        let mut pool = self.queue.pool.lock();
        while pool.out >= BUFFERS {
            if !pool.jobs.is_empty() {
                drop(pool);
                self.queue.write_one(|_| true);
                pool = self.queue.pool.lock();
            } else if pool.running == 0 {
                return None;
            } else {
                self.queue.given_back.wait(&mut pool);
            }
        }
        let free = pool.free.pop();
        if free.is_none() && !pool.book(1) {
            return None;
        }
        pool.out += 1;
        drop(pool);
        let mut fresh = || {
            let mut new = AlignedBuf::zeroed_direct(BUFFER);
            new.clear();
            new
        };
        Some(free.unwrap_or_else(&mut fresh))
    }

    /// Takes back a buffer that a file held. `None` means that the file keeps the buffer for good.
    pub fn give_back(&self, bytes: Option<AlignedBuf>) {
        self.queue.give_back(bytes);
    }

    /// Queues the write of a full buffer. Without a job pool, writes it.
    pub fn write(&self, job: WriteJob) {
        let Some(jobs) = &self.jobs else {
            return self.queue.run(job);
        };
        self.queue.pool.lock().jobs.push_back(job);
        let queue = Arc::clone(&self.queue);
        // The job finds no buffer if a waiting caller has written it.
        jobs.spawn(PRIORITY, move || {
            queue.write_one(|_| true);
        });
    }

    /// Writes the buffers of one file that no job has begun, then waits for those that a job
    /// writes. Returns the error if a write failed.
    pub fn wait_for_writes(&self, inode: &Arc<OpenInode>) -> Result<()> {
        while self.queue.write_one(|job| Arc::ptr_eq(&job.inode, inode)) {}
        inode.buffers.wait_for_writes()
    }
}
