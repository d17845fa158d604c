//! Write buffers (the page-server paper, 6.1): appends of [`Intent::Bulk`](basalt_fs::Intent::Bulk) are gathered in memory, and written beside whoever makes them.
//!
//! Buffers are of a pool that all files share. A full one is on its way to the device while the next one fills; a sync, the last handle's end and
//! whatever else must find the bytes on the device wait for them.
//!
//! # What holds
//! - What is only in memory is in one piece, from [`Node::buffered_from`] on. Reads find it there.
//! - Locks: a file's tail is held by whoever fills or drains; then [`Buffered`], then the pool's; these two are the last ones.
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
use basalt_fs::device::{Device, Way};
use basalt_fs::{AlignedBuf, Error, ErrorKind, Intent, Result};

/// Bytes of a buffer.
pub const BUFFER: usize = 512 << 10;
/// Buffers of all files together: two for each of 32 that are written at the same time.
const BUFFERS: usize = 64;
/// Buffers that keep their memory for the next file.
const KEPT: usize = 16;
/// Threads that write.
const WRITERS: usize = 4;

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
    threads: Vec<std::thread::JoinHandle<()>>,
    waiting_threads: usize,
    ended: bool,
    /// Nothing is written any more.
    stopped: bool,
}

#[derive(Default)]
struct Queue {
    pool: Mutex<Pool>,
    work: Condvar,
    given_back: Condvar,
}

/// The pool and the threads that write.
pub struct Writers {
    queue: Arc<Queue>,
    /// Without threads the caller writes.
    threads: bool,
}

impl Drop for Writers {
    fn drop(&mut self) {
        let mut pool = self.queue.pool.lock();
        pool.ended = true;
        let threads = std::mem::take(&mut pool.threads);
        drop(pool);
        self.queue.work.notify_all();
        for thread in threads {
            // When this returns nobody has the device any more.
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// A buffer is of no use any more, or its file keeps it for good.
    fn give_back(&self, bytes: Option<AlignedBuf>) {
        let mut pool = self.pool.lock();
        pool.out -= 1;
        if let Some(mut bytes) = bytes
            && pool.free.len() < KEPT
        {
            bytes.clear();
            pool.free.push(bytes);
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
        // Who takes it from the list is to be the last one who has it.
        drop(bytes);
        node.landed(at, done, self);
    }

    fn work(&self) {
        let mut pool = self.pool.lock();
        loop {
            if let Some(job) = pool.jobs.pop_front() {
                pool.running += 1;
                drop(pool);
                self.run(job);
                pool = self.pool.lock();
                pool.running -= 1;
                // Whoever waits for a buffer learns that none comes back from here.
                self.given_back.notify_all();
            } else if pool.ended {
                return;
            } else {
                pool.waiting_threads += 1;
                self.work.wait(&mut pool);
                pool.waiting_threads -= 1;
            }
        }
    }
}

impl Writers {
    pub fn new(threads: bool) -> Writers {
        Writers {
            queue: Arc::default(),
            threads,
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

    /// An empty buffer. None when all of them are held by files that fill theirs.
    fn take(&self) -> Option<AlignedBuf> {
        let mut pool = self.queue.pool.lock();
        while pool.out >= BUFFERS {
            if pool.jobs.is_empty() && pool.running == 0 {
                return None;
            }
            self.queue.given_back.wait(&mut pool);
        }
        pool.out += 1;
        let free = pool.free.pop();
        drop(pool);
        let mut fresh = || {
            let mut new = AlignedBuf::zeroed_direct(BUFFER);
            new.clear();
            new
        };
        Some(free.unwrap_or_else(&mut fresh))
    }

    #[expect(
        clippy::disallowed_types,
        reason = "the threads only move bytes for those who wait for nobody; tests have the callers write"
    )]
    fn hand_over(&self, job: Job) {
        let mut pool = self.queue.pool.lock();
        if self.threads && pool.waiting_threads == 0 && pool.threads.len() < WRITERS {
            let queue = Arc::clone(&self.queue);
            let spawned = std::thread::Builder::new()
                .name("basalt-lava-wr".into())
                .spawn(move || queue.work());
            pool.threads.extend(spawned);
        }
        if pool.threads.is_empty() {
            drop(pool);
            return self.queue.run(job);
        }
        pool.jobs.push_back(job);
        drop(pool);
        self.queue.work.notify_one();
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
