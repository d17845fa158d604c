//! Threads that run operations on an engine. Each operation is timed, and all results of reads are
//! checked.
//!
//! Threads form groups that run at once, such as readers beside a writer. Each group has its own
//! operation, rate limit and metrics. The first group leads: when its operations are done, or the
//! time has passed, all groups stop.

use crate::Stop;
use crate::data::Data;
use crate::device::Measured;
use crate::engine::{Engine, Log, Next};
use crate::progress::Progress;
use basalt::env::{Clock, Random};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// One thread of a workload.
pub struct Worker {
    /// Random numbers of this thread.
    pub random: Random,
    /// Keys and values.
    pub data: Data,
    engine: Arc<dyn Engine>,
    /// Number of keys that the workload has added so far, over all its threads.
    pub added: Arc<AtomicU64>,
    key: Vec<u8>,
    value: Vec<u8>,
    batch: Vec<(Vec<u8>, Vec<u8>)>,
    keys: Vec<Vec<u8>>,
    tally: Tally,
}

/// Bytes that a thread has read and written, besides the number of its operations.
#[derive(Default, Clone, Copy, Debug)]
pub struct Tally {
    /// Bytes of keys and values that were read.
    pub read_bytes: u64,
    /// Bytes of keys and values that were put, and of keys that were deleted.
    pub write_bytes: u64,
    /// Keys that were put or deleted.
    pub puts: u64,
    /// Number of gets.
    pub gets: u64,
    /// Gets that found a value.
    pub found: u64,
    /// Entries that scans returned.
    pub entries: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.puts += other.puts;
        self.gets += other.gets;
        self.found += other.found;
        self.entries += other.entries;
    }
}

/// The expectation of a read: whether its key must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The fill has put it, or it is never put.
    Certain,
    /// Another thread may be adding or deleting it.
    Any,
}

impl Worker {
    /// Puts a new value of key number `n`.
    pub fn put(&mut self, n: u64, log: Log) -> Result<(), Stop> {
        self.data.key(n, &mut self.key);
        let version = self.random.next_u64();
        self.data.value(n, version, &mut self.value);
        self.engine.put(&self.key, &self.value, log)?;
        self.tally.write_bytes += (self.key.len() + self.value.len()) as u64;
        self.tally.puts += 1;
        Ok(())
    }

    /// Puts values of several keys in one batch.
    pub fn put_batch(&mut self, numbers: impl Iterator<Item = u64>, log: Log) -> Result<(), Stop> {
        let mut len = 0;
        for n in numbers {
            if self.batch.len() == len {
                self.batch.push(Default::default());
            }
            let (key, value) = &mut self.batch[len];
            self.data.key(n, key);
            self.data.value(n, self.random.next_u64(), value);
            self.tally.write_bytes += (key.len() + value.len()) as u64;
            len += 1;
        }
        self.batch.truncate(len);
        self.engine.put_batch(&self.batch, log)?;
        self.tally.puts += len as u64;
        Ok(())
    }

    /// Bulk-loads the keys of these numbers, which are in the order of their keys.
    pub fn bulk(&mut self, mut numbers: impl Iterator<Item = u64>) -> Result<(), Stop> {
        let (data, random) = (self.data.clone(), &mut self.random);
        self.engine.clone().bulk(&mut |key, value| {
            let Some(n) = numbers.next() else {
                return Ok(false);
            };
            data.key(n, key);
            data.value(n, random.next_u64(), value);
            self.tally.write_bytes += (key.len() + value.len()) as u64;
            self.tally.puts += 1;
            Ok(true)
        })
    }

    /// Bulk-loads entries that are not among the numbered ones.
    pub fn bulk_entries(&mut self, next: &mut Next<'_>) -> Result<(), Stop> {
        self.engine.clone().bulk(&mut |key, value| {
            let more = next(key, value)?;
            if more {
                self.tally.write_bytes += (key.len() + value.len()) as u64;
                self.tally.puts += 1;
            }
            Ok(more)
        })
    }

    /// Puts an entry that is not among the numbered ones.
    pub fn put_entry(&mut self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.engine.put(key, value, log)?;
        self.tally.write_bytes += (key.len() + value.len()) as u64;
        self.tally.puts += 1;
        Ok(())
    }

    /// Calls `show` with all entries in order.
    pub fn scan_all(&mut self, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Stop> {
        let mut bytes = 0;
        let seen = self.engine.scan(&[], u64::MAX, &mut |key, value| {
            bytes += (key.len() + value.len()) as u64;
            show(key, value);
        })?;
        self.tally.entries += seen;
        self.tally.read_bytes += bytes;
        Ok(())
    }

    /// Adds the next new key.
    pub fn insert(&mut self, log: Log) -> Result<(), Stop> {
        let n = self.data.inserted(self.added.fetch_add(1, Relaxed));
        self.put(n, log)
    }

    /// Deletes key number `n`.
    pub fn delete(&mut self, n: u64, log: Log) -> Result<(), Stop> {
        self.data.key(n, &mut self.key);
        self.engine.delete(&self.key, log)?;
        self.tally.write_bytes += self.key.len() as u64;
        self.tally.puts += 1;
        Ok(())
    }

    /// Reads key number `n` and checks the value.
    pub fn get(&mut self, n: u64, presence: Presence) -> Result<(), Stop> {
        self.data.key(n, &mut self.key);
        let (data, mut right, mut len) = (&self.data, true, 0);
        let found = self.engine.get(&self.key, &mut |value| {
            right = data.is_value_of(n, value);
            len = value.len();
        })?;
        let expected = presence == Presence::Any || found == data.is_filled(n);
        if !right || !expected {
            return Err(self.wrong(n, found));
        }
        self.tally.gets += 1;
        self.tally.found += u64::from(found);
        self.tally.read_bytes += (self.key.len() + len) as u64;
        Ok(())
    }

    /// Reads several filled keys at once and checks the values.
    pub fn multi_get(&mut self, numbers: &[u64]) -> Result<(), Stop> {
        self.keys.resize_with(numbers.len(), Vec::new);
        for (n, key) in numbers.iter().zip(self.keys.iter_mut()) {
            self.data.key(*n, key);
        }
        let (data, keys, mut wrong, mut bytes) = (&self.data, &self.keys, None, 0);
        self.engine.multi_get(keys, &mut |i, value| {
            let n = numbers[i];
            bytes += keys[i].len() + value.map_or(0, <[u8]>::len);
            if !value.is_some_and(|v| data.is_value_of(n, v)) {
                wrong = Some((n, value.is_some()));
            }
        })?;
        if let Some((n, found)) = wrong {
            return Err(self.wrong(n, found));
        }
        self.tally.gets += numbers.len() as u64;
        self.tally.found += numbers.len() as u64;
        self.tally.read_bytes += bytes as u64;
        Ok(())
    }

    fn wrong(&self, n: u64, found: bool) -> Stop {
        Stop::new(format!(
            "key number {n} has {}: this is a bug, keep the data with --keep and report it with --seed {}",
            if found { "a wrong value" } else { "no value" },
            self.data.seed()
        ))
    }

    /// Reads up to `limit` entries from key number `n` on, and checks their number.
    pub fn scan(&mut self, n: u64, limit: u64, presence: Presence) -> Result<(), Stop> {
        self.data.key(n, &mut self.key);
        let mut bytes = 0;
        let seen = self.engine.scan(&self.key, limit, &mut |key, value| {
            bytes += (key.len() + value.len()) as u64
        })?;
        let there = limit.min(self.data.keys().saturating_sub(n));
        let right = match presence {
            Presence::Certain => seen == there,
            // Other threads may have added some.
            Presence::Any => seen >= there && seen <= limit,
        };
        if !right {
            return Err(Stop::new(format!(
                "a scan from key number {n} saw {seen} entries of {there}: this is a bug, keep the data with --keep and report it"
            )));
        }
        self.tally.entries += seen;
        self.tally.read_bytes += bytes;
        Ok(())
    }
}

/// The state of one thread of a group.
pub trait GroupWorker: Send + 'static {
    /// Returns the bytes and counts so far.
    fn tally(&self) -> &Tally;
}

impl GroupWorker for Worker {
    fn tally(&self) -> &Tally {
        &self.tally
    }
}

/// One operation. The number says how many operations of the group came before it.
pub type Operation<W = Worker> = dyn Fn(&mut W, u64) -> Result<(), Stop> + Send + Sync;

/// Threads with one operation.
pub struct Group<W = Worker> {
    /// Number of threads.
    pub threads: usize,
    /// Operations of all threads together. The run ends earlier if its time has passed.
    pub ops: u64,
    /// Limit of the bytes a second that all threads put together; 0 for no limit.
    pub write_rate: u64,
    /// The operation.
    pub op: Arc<Operation<W>>,
}

impl<W> Clone for Group<W> {
    fn clone(&self) -> Group<W> {
        Group {
            op: self.op.clone(),
            ..*self
        }
    }
}

/// The results of a group.
#[derive(Clone, Default)]
pub struct Driven {
    /// Operations, time, latency.
    pub measured: Measured,
    /// Bytes and counts.
    pub tally: Tally,
    /// Operations in each second from the start. The last window may be shorter.
    pub windows: Vec<u64>,
}

impl Driven {
    /// Returns the rates of the whole one-second windows.
    pub fn whole_windows(&self) -> Vec<f64> {
        let whole = (self.measured.time.as_secs() as usize).min(self.windows.len());
        self.windows[..whole].iter().map(|&n| n as f64).collect()
    }
}

/// The first group is done, and the other groups stop.
const DONE: u64 = 1;
/// A thread has failed, and all groups stop.
const FAILED: u64 = 2;

/// The parts of a run.
pub struct Driver<'a> {
    /// The clock.
    pub clock: &'a Clock,
    /// The engine.
    pub engine: &'a Arc<dyn Engine>,
    /// Keys and values.
    pub data: &'a Data,
    /// Seed of the random numbers. Each phase of a run has another one.
    pub seed: u64,
    /// Keys that were added to the store so far. The number continues from one phase of a run to
    /// the next.
    pub added: &'a Arc<AtomicU64>,
    /// The progress line.
    pub progress: &'a Progress,
}

impl Driver<'_> {
    /// Runs groups at once until the first is done or `time` is over.
    pub fn run(&self, groups: &[Group], time: Option<Duration>) -> Result<Vec<Driven>, Stop> {
        run_groups(self.clock, self.progress, groups, time, &|g, t| Worker {
            random: Random::from_seed(self.seed ^ (g << 40) ^ (t << 20)),
            data: self.data.clone(),
            engine: self.engine.clone(),
            added: self.added.clone(),
            key: Vec::new(),
            value: Vec::new(),
            batch: Vec::new(),
            keys: Vec::new(),
            tally: Tally::default(),
        })
    }
}

/// Runs groups at once until the first is done or `time` is over. `make` returns the state of a
/// thread from the numbers of its group and of the thread in it.
pub fn run_groups<W: GroupWorker>(
    clock: &Clock,
    progress: &Progress,
    groups: &[Group<W>],
    time: Option<Duration>,
    make: &dyn Fn(u64, u64) -> W,
) -> Result<Vec<Driven>, Stop> {
    let stop = Arc::new(AtomicU64::new(0));
    let start = clock.now();
    let mut running = Vec::new();
    let mut started = Ok(());
    for (g, group) in groups.iter().enumerate() {
        let next = Arc::new(AtomicU64::new(0));
        let bytes = Arc::new(AtomicU64::new(0));
        let (send, receive) = std::sync::mpsc::channel();
        let mut handles = Vec::new();
        for t in 0..group.threads as u64 {
            let thread = Thread {
                clock: clock.clone(),
                group: group.clone(),
                leads: g == 0,
                start,
                time,
                next: next.clone(),
                bytes: bytes.clone(),
                stop: stop.clone(),
            };
            let worker = make(g as u64, t);
            let send = send.clone();
            let spawned = basalt::env::thread::spawn("bench-worker", move || {
                let _ = send.send(thread.run(worker));
            });
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(e) => {
                    stop.fetch_max(FAILED, Relaxed);
                    started = Err(Stop::new(format!(
                        "cannot start a thread: {e}; ask for fewer --threads"
                    )));
                }
            }
        }
        running.push((handles, receive, next));
    }
    let leading = running[0].2.clone();
    let mut out = Vec::with_capacity(groups.len());
    let mut failed = started.err();
    for (handles, receive, _) in running {
        let mut all = Driven::default();
        let mut longest = Duration::ZERO;
        for _ in 0..handles.len() {
            let ended = loop {
                match receive.recv_timeout(Duration::from_millis(500)) {
                    Ok(ended) => break ended,
                    Err(RecvTimeoutError::Timeout) => {
                        let done = leading.load(Relaxed).min(groups[0].ops);
                        let passed = clock.now().saturating_sub(start);
                        progress.update(done, groups[0].ops, passed, time);
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        stop.fetch_max(FAILED, Relaxed);
                        break Err(Stop::new("a thread of the workload panicked"));
                    }
                }
            };
            match ended {
                Err(e) => {
                    stop.fetch_max(FAILED, Relaxed);
                    failed = failed.or(Some(e));
                }
                Ok(one) => {
                    longest = longest.max(one.measured.time);
                    all.measured.add(&one.measured);
                    all.tally.add(&one.tally);
                    if all.windows.len() < one.windows.len() {
                        all.windows.resize(one.windows.len(), 0);
                    }
                    for (sum, n) in all.windows.iter_mut().zip(&one.windows) {
                        *sum += n;
                    }
                }
            }
        }
        for handle in handles {
            let _ = handle.join();
        }
        all.measured.time = longest;
        out.push(all);
    }
    progress.clear();
    failed.map_or(Ok(out), Err)
}

struct Thread<W> {
    clock: Clock,
    group: Group<W>,
    leads: bool,
    start: Duration,
    time: Option<Duration>,
    next: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicU64>,
}

impl<W: GroupWorker> Thread<W> {
    fn run(self, mut worker: W) -> Result<Driven, Stop> {
        let ended = self.operations(&mut worker);
        let why = match &ended {
            Err(_) => FAILED,
            Ok(_) if self.leads => DONE,
            Ok(_) => 0,
        };
        self.stop.fetch_max(why, Relaxed);
        let (measured, windows) = ended?;
        Ok(Driven {
            measured,
            tally: *worker.tally(),
            windows,
        })
    }

    fn operations(&self, worker: &mut W) -> Result<(Measured, Vec<u64>), Stop> {
        let mut m = Measured::default();
        let mut windows = Vec::new();
        let mut last = self.clock.now();
        loop {
            let passed = last - self.start;
            let late = self.time.is_some_and(|time| passed >= time);
            // Leaders do all their operations, unless a thread has failed.
            let stop = self.stop.load(Relaxed);
            if late || stop == FAILED || (stop == DONE && !self.leads) {
                break;
            }
            if self.group.write_rate > 0 {
                let bytes = self.bytes.load(Relaxed);
                let due = Duration::from_secs_f64(bytes as f64 / self.group.write_rate as f64);
                if due > passed {
                    // The steps are short, so that the main thread notices the end in time.
                    self.clock
                        .sleep((due - passed).min(Duration::from_millis(20)));
                    last = self.clock.now();
                    continue;
                }
            }
            let n = self.next.fetch_add(1, Relaxed);
            if n >= self.group.ops {
                break;
            }
            let before = worker.tally().write_bytes;
            (self.group.op)(worker, n)?;
            if self.group.write_rate > 0 {
                let put = worker.tally().write_bytes - before;
                self.bytes.fetch_add(put, Relaxed);
            }
            let now = self.clock.now();
            m.latency.record((now - last).as_nanos() as u64);
            m.ops += 1;
            let window = (now - self.start).as_secs() as usize;
            if windows.len() <= window {
                windows.resize(window + 1, 0);
            }
            windows[window] += 1;
            last = now;
        }
        m.time = last - self.start;
        Ok((m, windows))
    }
}

#[cfg(test)]
mod tests;
