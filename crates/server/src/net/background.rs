//! The server's other threads: one reads the whole keyspace for DBSIZE and KEYS, one syncs every
//! second, one reclaims flushed space, and one reserves cursor numbers. Each starts when it is
//! first needed, and ends with the server.
//!
//! They are service threads and no jobs of the environment, because they wait for jobs. A job that
//! waits for a compaction would occupy the very thread that the compaction needs.

use super::LoopHandle;
use crate::command::{Count, SlowKind, SlowRead, store_error};
use crate::glob;
use crate::layout;
use crate::resp::reply::Reply;
use crate::store::Store;
use basalt::env::Clock;
use basalt::env::thread::{BackgroundThread, StopSignal};
use basalt::{Error, ErrorKind, Result};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The client of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requester {
    pub slot: usize,
    pub id: u64,
}

/// The result of a slow read.
pub(crate) struct SlowResult {
    pub requester: Requester,
    pub reply: Reply,
    pub count: Option<Count>,
}

/// Number of slow reads that are accepted at a time: the one that runs, and the next. Each pins a
/// snapshot of the store and holds a copy of the writes in flight. Later ones wait on their
/// connections, where they cost nothing.
const SLOW_READS: usize = 2;

/// The thread that reads the whole keyspace, one request after the other.
pub(crate) struct SlowReader {
    queue: Option<mpsc::Sender<(Requester, SlowRead)>>,
    stop: StopSignal,
    thread: Option<BackgroundThread>,
    awaited: usize,
}

impl SlowReader {
    pub fn new() -> SlowReader {
        SlowReader {
            queue: None,
            stop: StopSignal::default(),
            thread: None,
            awaited: 0,
        }
    }

    /// Returns true if results are awaited.
    pub fn is_busy(&self) -> bool {
        self.awaited > 0
    }

    /// Returns the number of further reads that are accepted now.
    pub fn room(&self) -> usize {
        SLOW_READS - self.awaited
    }

    /// Notes that a result has arrived.
    pub fn done(&mut self) {
        self.awaited -= 1;
    }

    /// Queues a read, whose result is posted to `shared`. Requires room.
    pub fn ask(
        &mut self,
        requester: Requester,
        read: SlowRead,
        shared: &Arc<LoopHandle>,
        clock: &Clock,
    ) {
        assert!(self.room() > 0, "more slow reads than are taken");
        self.awaited += 1;
        if self.queue.is_none() {
            let (sender, receiver) = mpsc::channel::<(Requester, SlowRead)>();
            let (shared, stop, clock) = (shared.clone(), self.stop.clone(), clock.clone());
            self.thread = start("basalt-scan", move || {
                for (requester, read) in receiver {
                    shared.post(super::Event::Slow(run(requester, read, &stop, &clock)));
                }
            });
            self.queue = Some(sender);
        }
        let queue = self.queue.as_ref().expect("just made");
        if let Err(mpsc::SendError((requester, read))) = queue.send((requester, read)) {
            // The thread could not be started: a slow answer is better than none.
            let result = run(requester, read, &self.stop, clock);
            shared.post(super::Event::Slow(result));
        }
    }
}

impl Drop for SlowReader {
    fn drop(&mut self) {
        self.stop.send();
        self.queue = None;
        join(&mut self.thread);
    }
}

fn run(requester: Requester, read: SlowRead, stop: &StopSignal, clock: &Clock) -> SlowResult {
    let SlowRead {
        capture,
        what,
        mut reply,
        reply_limit,
        gone,
    } = read;
    // Otherwise clients that send requests and disconnect could queue work and pin snapshots
    // without end.
    let wanted = || !stop.is_sent() && !gone.load(Ordering::Acquire);
    let mut count = None;
    if !wanted() {
        return SlowResult {
            requester,
            reply,
            count,
        };
    }
    let result = match what {
        SlowKind::Count => {
            let mut c = Count {
                changes: capture.changes,
                counted_at_ms: clock.wall_ms(),
                ..Count::default()
            };
            let result = capture.scan(&mut |_, _, expire_at_ms| {
                c.keys += 1;
                if let Some(at) = expire_at_ms {
                    c.expires += 1;
                    c.next_expiry_ms = Some(c.next_expiry_ms.map_or(at, |n| n.min(at)));
                }
                wanted()
            });
            if result.is_ok() && wanted() {
                reply.integer(c.keys as i64);
                count = Some(c);
            }
            result
        }
        SlowKind::Random { from } => {
            let mut found = None;
            let mut take = |key: &[u8], _, _| {
                found = Some(key.to_vec());
                false
            };
            let mut result = capture.scan_from(&from, &mut take);
            if result.is_ok() && found.is_none() {
                result = capture.scan(&mut |key, _, _| {
                    found = Some(key.to_vec());
                    false
                });
            }
            if result.is_ok() {
                match found {
                    Some(key) => reply.bulk(&key),
                    None => reply.null(),
                }
            }
            result
        }
        SlowKind::Checkpoint { store, target } => {
            let result = store.checkpoint(&target);
            if result.is_ok() {
                reply.ok();
            }
            result
        }
        SlowKind::Keys { pattern } => {
            let mut found = Reply::new(reply.protocol());
            let mut n = 0;
            let pattern = glob::Pattern::new(&pattern, false, layout::MAX_KEY_LEN);
            let result = capture.scan(&mut |key, _, _| {
                if pattern.matches(key) {
                    found.bulk(key);
                    n += 1;
                }
                found.len() <= reply_limit && wanted()
            });
            if result.is_ok() {
                if found.len() > reply_limit {
                    reply.error(format!("ERR the reply would exceed {reply_limit} bytes"));
                } else {
                    reply.array(n);
                    found.drain_into(&mut reply);
                }
            }
            result
        }
    };
    if let Err(e) = result {
        reply.error(store_error(&e));
    }
    SlowResult {
        requester,
        reply,
        count,
    }
}

/// The thread that syncs once a second after writes.
pub(crate) struct Syncer {
    /// True if a write was acknowledged since the last sync began.
    dirty: Arc<AtomicBool>,
    stop: StopSignal,
    thread: Option<BackgroundThread>,
}

impl Syncer {
    pub fn new() -> Syncer {
        Syncer {
            dirty: Arc::default(),
            stop: StopSignal::default(),
            thread: None,
        }
    }

    /// Notes an acknowledged write that a power cut could take. It is synced within about a second.
    pub fn written(&mut self, store: &Arc<dyn Store>) {
        self.dirty.store(true, Ordering::Release);
        if self.thread.is_none() {
            let (dirty, stop, store) = (self.dirty.clone(), self.stop.clone(), store.clone());
            self.thread = start("basalt-sync", move || {
                loop {
                    let last = stop.wait_for(Duration::from_secs(1));
                    // A failure poisons the store: every later write reports it to its client.
                    if dirty.swap(false, Ordering::AcqRel)
                        && let Err(e) = store.sync()
                    {
                        report(&format!("the sync of every second failed: {e}"));
                    }
                    if last {
                        return;
                    }
                }
            });
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.stop.send();
        join(&mut self.thread);
    }
}

/// The thread that reclaims the space of flushed generations.
pub(crate) struct Reclaimer {
    running: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
    thread: Option<BackgroundThread>,
}

impl Reclaimer {
    pub fn new() -> Reclaimer {
        Reclaimer {
            running: Arc::default(),
            again: Arc::default(),
            thread: None,
        }
    }

    /// Starts the thread, or lets it run once more if it is running.
    pub fn start(&mut self, store: &Arc<dyn Store>) {
        self.again.store(true, Ordering::Release);
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        join(&mut self.thread);
        let (running, again, store) = (self.running.clone(), self.again.clone(), store.clone());
        self.thread = start("basalt-reclaim", move || {
            let mut result: Result<()> = Ok(());
            while result.is_ok() && again.swap(false, Ordering::AcqRel) {
                result = store.reclaim();
            }
            running.store(false, Ordering::Release);
            // The space is not lost: ordinary compactions drop the same data later.
            if let Err(e) = result
                && e.kind() != basalt::ErrorKind::Closed
            {
                report(&format!("reclaiming the space of flushed data failed: {e}"));
            }
        });
        if self.thread.is_none() {
            self.running.store(false, Ordering::Release);
        }
    }

    /// Waits for the thread. The store must be closed.
    pub fn join(&mut self) {
        join(&mut self.thread);
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        // A server that ends without closing its store does not wait: only the close would make
        // the thread return soon.
        if let Some(thread) = self.thread.take() {
            thread.detach();
        }
    }
}

/// The thread that reserves cursor numbers, which takes a sync.
#[derive(Default)]
pub(crate) struct CursorReserver {
    thread: Option<BackgroundThread>,
    busy: bool,
}

impl CursorReserver {
    /// Reserves a block unless a reservation runs. The result is posted to `shared`.
    pub fn start(&mut self, store: &Arc<dyn Store>, shared: &Arc<LoopHandle>) {
        if std::mem::replace(&mut self.busy, true) {
            return;
        }
        join(&mut self.thread);
        let (store, events) = (store.clone(), shared.clone());
        self.thread = start("basalt-cursors", move || {
            events.post(super::Event::Cursors(store.reserve_cursors()));
        });
        if self.thread.is_none() {
            let error = Error::new(ErrorKind::Busy, "no thread to reserve cursor numbers with");
            shared.post(super::Event::Cursors(Err(error)));
        }
    }

    /// Returns true if a block is awaited.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Notes that the reservation has ended, with success or failure.
    pub fn done(&mut self) {
        self.busy = false;
    }
}

impl Drop for CursorReserver {
    fn drop(&mut self) {
        join(&mut self.thread);
    }
}

/// Starts a thread. Reports to the operator if the system has none.
pub(super) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Option<BackgroundThread> {
    match BackgroundThread::start(name, run) {
        Ok(thread) => Some(thread),
        Err(e) => {
            report(&format!("cannot start the thread {name}: {e}"));
            None
        }
    }
}

/// Waits for a thread that was made to return. Reports a panic of it to the operator.
pub(super) fn join(thread: &mut Option<BackgroundThread>) {
    if let Some(thread) = thread.take()
        && thread.join().is_err()
    {
        report("a background thread panicked");
    }
}

/// Reports a problem to the operator, on standard error. A failure is ignored: a server whose
/// standard error is full or closed still serves.
pub(crate) fn report(text: &str) {
    let line = format!("basalt: {text}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
