//! Write buffers (the page-server paper, 6.1): appends of [`Intent::Bulk`](basalt_fs::Intent::Bulk) are gathered in memory, and written beside whoever makes them.
//!
//! Buffers are of a pool that all files share. A full one is on its way to the device while the next one fills; a sync, the last handle's end and
//! whatever else must find the bytes on the device wait for them.
//!
//! # What holds
//! - What is only in memory is in one piece, from [`Node::buffered_from`] on. Reads find it there.
//! - Locks: a file's tail is held by whoever fills or drains; then [`Buffered`], then the pool's; these two are the last ones.
//! - The memory of buffers is booked in the environment's ledger before it is allocated. The first
//!   [`ALWAYS`] are booked even past the budget: a flush, which gives memory back, needs them. If
//!   the ledger grants no more, a file writes appended bytes at once.
//! - Jobs of the environment's pool write full buffers. A caller that waits for the bytes of its
//!   file, or for a free buffer, writes buffers that no job has begun: the caller may be on the
//!   only thread of the pool that could run the job.
//! - A write that failed ends appends and syncs of its file. Its bytes stay in memory for readers, and are nothing of the file for those who come later.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::{Condvar, Mutex};

use super::counts::Cause;
use super::file::{LavaFile, Node, Tail};
use super::record::Kind;
use super::runs::BLOCK;
use basalt_env::{EnvParts, JobPriority, Jobs, MemoryKind, Reservation};
use basalt_fs::device::{Device, Way};
use basalt_fs::{AlignedBuf, Error, ErrorKind, Intent, Result};

/// Bytes of a buffer.
pub const BUFFER: usize = 512 << 10;
/// Buffers of all files together: two for each of 32 that are written at the same time.
const BUFFERS: usize = 64;
/// Buffers that keep their memory for the next file.
const KEPT: usize = 16;
/// Buffers that are booked in the ledger even past its budget.
const ALWAYS: usize = 4;
/// Flush jobs wait for writes of buffers.
const PRIORITY: JobPriority = JobPriority::Flush;

/// A buffer that was handed over.
struct Flight {
    at: u64,
    bytes: Arc<AlignedBuf>,
    landed: bool,
}

/// What of a file is only in memory, oldest first; all of it in one piece.
#[derive(Default)]
pub struct Buffered {
    flights: VecDeque<Flight>,
    filling: Option<(u64, AlignedBuf)>,
    /// From here on nothing is known to be on the device.
    failed: Option<(u64, Error)>,
}

impl Buffered {
    fn from(&self) -> u64 {
        let first = self.flights.front().map(|f| f.at);
        first
            .or(self.filling.as_ref().map(|(at, _)| *at))
            .unwrap_or(u64::MAX)
    }

    /// Where the first write that failed would have gone.
    pub fn failed_at(&self) -> Option<u64> {
        self.failed.as_ref().map(|(at, _)| *at)
    }

    /// The bytes of a range that are here, and the first one's place.
    pub fn copy(&self, range: &Range<u64>) -> (u64, Vec<u8>) {
        let from = self.from().clamp(range.start, range.end);
        let mut all = Vec::new();
        let flights = self.flights.iter().map(|f| (f.at, &f.bytes[..]));
        let filling = self.filling.iter().map(|(at, bytes)| (*at, &bytes[..]));
        for (at, bytes) in flights.chain(filling) {
            let end = at + bytes.len() as u64;
            if from < end && at < range.end {
                let (a, b) = (from.max(at) - at, range.end.min(end) - at);
                all.extend_from_slice(&bytes[a as usize..b as usize]);
            }
        }
        (from, all)
    }
}

/// A buffer, and where it goes.
struct Job {
    device: Arc<dyn Device>,
    node: Arc<Node>,
    at: u64,
    bytes: Arc<AlignedBuf>,
    /// First byte on the device, and which of the buffer.
    places: Vec<(u64, Range<usize>)>,
}

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    /// Jobs that a thread has.
    running: usize,
    free: Vec<AlignedBuf>,
    /// Buffers that files have.
    out: usize,
    /// The memory of the buffers that files have and of the free ones.
    booked: Option<Reservation>,
    /// Nothing is written any more.
    stopped: bool,
}

#[derive(Default)]
struct Queue {
    pool: Mutex<Pool>,
    given_back: Condvar,
}

/// The pool of buffers, and the jobs that write them.
pub struct Writers {
    queue: Arc<Queue>,
    /// The pool of jobs and the owner of these. If `None`, the caller writes.
    jobs: Option<(Jobs, u64)>,
}

impl Drop for Writers {
    fn drop(&mut self) {
        if let Some((jobs, owner)) = &self.jobs {
            // No file is open, so queued jobs find no buffer. When this returns, no job has the
            // device.
            jobs.cancel(*owner);
            jobs.drain(*owner);
        }
    }
}

impl Pool {
    /// Books the present buffers and `more` new ones. False, with the booking unchanged, if the
    /// ledger refuses.
    fn book(&mut self, more: usize) -> bool {
        let buffers = self.out + self.free.len() + more;
        let bytes = (buffers * BUFFER) as u64;
        match &mut self.booked {
            Some(booked) if buffers > ALWAYS => booked.try_resize(bytes),
            Some(booked) => {
                booked.resize(bytes);
                true
            }
            None => true,
        }
    }
}

impl Queue {
    /// A buffer is of no use any more, or its file keeps it for good.
    fn give_back(&self, bytes: Option<AlignedBuf>) {
        let mut pool = self.pool.lock();
        pool.out -= 1;
        match bytes {
            Some(mut bytes) if pool.free.len() < KEPT => {
                bytes.clear();
                pool.free.push(bytes);
            }
            gone => {
                drop(gone);
                // A smaller booking is never refused.
                pool.book(0);
            }
        }
        drop(pool);
        self.given_back.notify_all();
    }

    fn run(&self, job: Job) {
        let Job {
            device,
            node,
            at,
            bytes,
            places,
        } = job;
        let mut done = Ok(());
        for (place, part) in places {
            if self.pool.lock().stopped {
                done = Err(Error::new(ErrorKind::Closed, "the image was given up"));
                break;
            }
            // A panic here would leave whoever waits for these bytes waiting.
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
        // Whoever takes the bytes from the list must be the last owner, and the device must be free
        // once no caller waits for them.
        drop((bytes, device));
        node.landed(at, done, self);
    }

    /// Writes the first buffer that waits and that `is_wanted`. False when there is none.
    fn write_one(&self, is_wanted: impl Fn(&Job) -> bool) -> bool {
        let mut pool = self.pool.lock();
        let Some(i) = pool.jobs.iter().position(is_wanted) else {
            return false;
        };
        let job = pool.jobs.remove(i).expect("just found");
        pool.running += 1;
        drop(pool);
        self.run(job);
        self.pool.lock().running -= 1;
        // Whoever waits for a buffer learns that none comes back from here.
        self.given_back.notify_all();
        true
    }
}

impl Writers {
    pub fn new(env: Option<&EnvParts>) -> Writers {
        let queue = Queue::default();
        queue.pool.lock().booked = env.map(|env| env.ledger().reserve(MemoryKind::Buffer, 0));
        let jobs = env.map(EnvParts::jobs).filter(|jobs| !jobs.is_stepped());
        Writers {
            queue: Arc::new(queue),
            jobs: jobs.map(|jobs| (jobs.clone(), jobs.new_owner())),
        }
    }

    /// Bytes of memory that files have.
    pub fn bytes(&self) -> u64 {
        (self.queue.pool.lock().out * BUFFER) as u64
    }

    /// From now on nothing is written.
    pub fn stop(&self) {
        self.queue.pool.lock().stopped = true;
    }

    /// An empty buffer. `None` if all are held by files that fill theirs, or if the ledger grants
    /// no more.
    fn take(&self) -> Option<AlignedBuf> {
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

    fn hand_over(&self, job: Job) {
        let Some((jobs, owner)) = &self.jobs else {
            return self.queue.run(job);
        };
        self.queue.pool.lock().jobs.push_back(job);
        let queue = Arc::clone(&self.queue);
        // The job finds nothing if a waiting caller has written the buffer.
        jobs.spawn(*owner, PRIORITY, move || {
            queue.write_one(|_| true);
        });
    }
}

impl Node {
    /// A write is over.
    fn landed(&self, at: u64, done: Result<()>, queue: &Queue) {
        let mut gone = Vec::new();
        let mut buffered = self.buffered.lock();
        let flight = buffered.flights.iter_mut().find(|f| f.at == at);
        flight.expect("handed over").landed = true;
        let kept = match (done, &buffered.failed) {
            (Err(e), _) => self.fail(&mut buffered, at, &e),
            (Ok(()), Some(_)) => 1,
            (Ok(()), None) => 0,
        };
        if buffered.failed.is_none() {
            while buffered.flights.front().is_some_and(|f| f.landed) {
                gone.extend(buffered.flights.pop_front().map(|f| f.bytes));
            }
        }
        self.buffered_from.store(buffered.from(), SeqCst);
        for bytes in gone {
            queue.give_back(Arc::try_unwrap(bytes).ok());
        }
        (0..kept).for_each(|_| queue.give_back(None));
        drop(buffered);
        self.writes_landed.notify_all();
    }

    /// What is here stays for readers, as long as the file is open. Returns of how many buffers that is news: the pool does not wait for them.
    fn fail(&self, buffered: &mut Buffered, at: u64, e: &Error) -> usize {
        self.fail_appends(e);
        self.fail_syncs(e);
        let before = buffered.failed_at();
        let from = before.map_or(at, |before| before.min(at));
        buffered.failed = Some((from, e.clone()));
        match before {
            None => buffered.flights.iter().filter(|f| f.landed).count(),
            Some(_) => 1,
        }
    }

    pub fn has_buffered(&self) -> bool {
        self.buffered_from.load(SeqCst) != u64::MAX
    }
}

impl LavaFile {
    /// Whether bulk appends are gathered here: where the page cache does not.
    pub fn gathers(&self) -> bool {
        self.node.kind() == Kind::File && self.fs.facts.direct
    }

    /// Appends through the buffers, at `offset`, where there is space.
    pub fn put_buffered(&self, tail: &mut Tail, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let mut at = offset;
        for buf in bufs {
            let mut rest = &buf[..];
            while !rest.is_empty() {
                let n = self.put_some(tail, at, rest)?;
                at += n as u64;
                rest = &rest[n..];
            }
        }
        Ok(())
    }

    /// Takes some of the bytes. Returns how many.
    fn put_some(&self, tail: &mut Tail, at: u64, bytes: &[u8]) -> Result<usize> {
        let node = &self.node;
        let mut buffered = node.buffered.lock();
        if buffered.filling.is_none() {
            drop(buffered);
            if !at.is_multiple_of(BLOCK) {
                // To where a buffer can begin.
                let n = bytes.len().min((at.next_multiple_of(BLOCK) - at) as usize);
                self.settle_buffered()?;
                self.put(tail, at, &[IoSlice::new(&bytes[..n])], Intent::Lazy)?;
                return Ok(n);
            }
            let Some(buffer) = self.fs.writers.take() else {
                self.settle_buffered()?;
                self.put(tail, at, &[IoSlice::new(bytes)], Intent::Sync)?;
                return Ok(bytes.len());
            };
            buffered = node.buffered.lock();
            buffered.filling = Some((at, buffer));
            node.buffered_from.store(buffered.from(), SeqCst);
        }
        let (from, buffer) = buffered.filling.as_mut().expect("just seen");
        debug_assert_eq!(*from + buffer.len() as u64, at, "a gap in what is gathered");
        let n = bytes.len().min(BUFFER - buffer.len());
        buffer.extend_from_slice(&bytes[..n]);
        if buffer.len() == BUFFER {
            drop(buffered);
            self.hand_over();
        }
        Ok(n)
    }

    /// What is being filled goes to the device; it ends where a direct write may end.
    fn hand_over(&self) {
        let node = &self.node;
        let mut buffered = node.buffered.lock();
        let Some((at, bytes)) = buffered.filling.take() else {
            return;
        };
        let bytes = Arc::new(bytes);
        buffered.flights.push_back(Flight {
            at,
            bytes: Arc::clone(&bytes),
            landed: false,
        });
        drop(buffered);
        let range = at..at + bytes.len() as u64;
        let pieces = self.pieces(range.clone());
        let places = pieces.into_iter().map(|(part, place)| {
            let part = (part.start - at) as usize..(part.end - at) as usize;
            place.map(|place| (place, part))
        });
        let Some(places) = places.collect::<Option<Vec<_>>>() else {
            let e = Error::corruption(&self.path, at, "an append into a hole");
            return node.landed(at, Err(e), &self.fs.writers.queue);
        };
        self.fs.counts.wrote(Cause::Data, bytes.len() as u64);
        self.fs.writers.hand_over(Job {
            device: Arc::clone(&self.fs.device),
            node: Arc::clone(node),
            at,
            places,
            bytes,
        });
    }

    /// Waits for all writes that were handed over.
    fn settle_buffered(&self) -> Result<()> {
        let queue = &self.fs.writers.queue;
        while queue.write_one(|job| Arc::ptr_eq(&job.node, &self.node)) {}
        let mut buffered = self.node.buffered.lock();
        while buffered.flights.iter().any(|f| !f.landed) {
            self.node.writes_landed.wait(&mut buffered);
        }
        match &buffered.failed {
            Some((_, e)) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// Everything that was appended is on the device, or in the page cache of it, when this returns; a flush makes it durable.
    pub fn drain(&self, tail: &mut Tail) -> Result<()> {
        let node = &self.node;
        if !node.has_buffered() {
            return Ok(());
        }
        // What no direct write can end with goes first: readers find it in memory until they find it there.
        let end = {
            let buffered = node.buffered.lock();
            let filling = buffered.filling.as_ref();
            filling.and_then(|(at, bytes)| {
                let whole = match bytes.len().is_multiple_of(self.fs.facts.unit) {
                    true => bytes.len(),
                    false => bytes.len() / BLOCK as usize * BLOCK as usize,
                };
                (whole < bytes.len()).then(|| (*at, whole, bytes[whole..].to_vec()))
            })
        };
        if let Some((at, whole, end)) = end {
            let from = at + whole as u64;
            let done = self.fs.check_writable();
            let done =
                done.and_then(|()| self.put(tail, from, &[IoSlice::new(&end)], Intent::Lazy));
            let mut buffered = node.buffered.lock();
            let (_, mut bytes) = buffered.filling.take().expect("just seen");
            if let Err(e) = done {
                buffered.flights.push_back(Flight {
                    at,
                    bytes: Arc::new(bytes),
                    landed: true,
                });
                let kept = node.fail(&mut buffered, at, &e);
                drop(buffered);
                (0..kept).for_each(|_| self.fs.writers.queue.give_back(None));
            } else if whole > 0 {
                bytes.truncate(whole);
                buffered.filling = Some((at, bytes));
            } else {
                node.buffered_from.store(buffered.from(), SeqCst);
                drop(buffered);
                self.fs.writers.queue.give_back(Some(bytes));
            }
        }
        self.hand_over();
        self.settle_buffered()
    }
}
