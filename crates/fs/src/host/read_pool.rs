//! Batched reads by threads, for kernels without io_uring. The threads start when the first batch
//! needs them, and end after some seconds without work. The caller of a batch also reads while it
//! waits, so that a batch ends even if no thread can be started.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::file::HostFile;
use super::read::read_now;
use crate::{Bytes, Error, ErrorKind, ReadCompletions, ReadRequest, Result};

/// An idle reading thread ends after this time.
const IDLE: Duration = Duration::from_secs(5);

/// The queue and threads of a pool, under its lock.
#[derive(Default)]
struct PoolState {
    /// One entry for each read. The batch knows which read comes next.
    work: VecDeque<Arc<Batch>>,
    /// Number of threads.
    threads: usize,
    /// Number of threads that wait for work.
    idle: usize,
}

/// The threads of one filesystem.
pub(super) struct ReadPool {
    state: Mutex<PoolState>,
    wake: Condvar,
    /// Most threads.
    max: usize,
}

/// The reads of a batch, under its lock.
#[derive(Default)]
struct BatchState {
    /// Reads that were not started.
    todo: VecDeque<(usize, ReadRequest)>,
    /// Number of reads in progress.
    running: usize,
    /// Results that the caller has not taken yet.
    done: VecDeque<(usize, Result<Bytes>)>,
}

/// A batch, as the threads hold it.
#[derive(Default)]
struct Batch {
    state: Mutex<BatchState>,
    ended_one: Condvar,
}

/// A read in progress. Its result goes into the batch even if the read panics, so that no caller
/// waits for ever.
struct Running<'b> {
    batch: &'b Batch,
    index: usize,
    result: Option<Result<Bytes>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let result = self
            .result
            .take()
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "the reading thread panicked")));
        let mut state = self.batch.state.lock();
        state.running -= 1;
        state.done.push_back((self.index, result));
        self.batch.ended_one.notify_all();
    }
}

impl Batch {
    /// Does one read of the batch. Returns false if the batch has no read left to start.
    fn run_one(&self) -> bool {
        let mut state = self.state.lock();
        let Some((index, r)) = state.todo.pop_front() else {
            return false;
        };
        state.running += 1;
        drop(state);
        let mut running = Running {
            batch: self,
            index,
            result: None,
        };
        let file: &HostFile = r
            .file
            .as_any()
            .downcast_ref()
            .expect("the batch was checked to hold host files");
        running.result = Some(read_now(file, r.offset, r.len));
        // The request may have the last reference to its file, so it is dropped before the batch
        // can end.
        drop(r);
        drop(running);
        true
    }
}

impl ReadPool {
    pub(super) fn new(max: usize) -> Arc<ReadPool> {
        Arc::new(ReadPool {
            state: Mutex::new(PoolState::default()),
            wake: Condvar::new(),
            max,
        })
    }

    /// Starts a batch; every file is a [`HostFile`].
    pub(super) fn start(self: &Arc<ReadPool>, reads: Vec<ReadRequest>) -> PoolBatch {
        let n = reads.len();
        let batch = Arc::new(Batch::default());
        batch.state.lock().todo = reads.into_iter().enumerate().collect();
        let mut state = self.state.lock();
        state.work.extend((0..n).map(|_| Arc::clone(&batch)));
        let missing = state.work.len().saturating_sub(state.idle);
        for _ in 0..missing.min(self.max.saturating_sub(state.threads)) {
            if !self.spawn() {
                break;
            }
            state.threads += 1;
        }
        let no_caller = state.threads == 0;
        drop(state);
        self.wake.notify_all();
        // If no thread can be started, a caller that only uses `try_next` must still get its reads.
        while no_caller && batch.run_one() {}
        PoolBatch { batch }
    }

    #[expect(
        clippy::disallowed_types,
        reason = "these threads only move bytes for a kernel without io_uring; they decide nothing a test could own"
    )]
    fn spawn(self: &Arc<ReadPool>) -> bool {
        let pool = Arc::clone(self);
        std::thread::Builder::new()
            .name("basalt-read".into())
            .spawn(move || pool.work())
            .is_ok()
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(batch) = state.work.pop_front() {
                drop(state);
                batch.run_one();
                // The batch is also dropped before the lock is taken, because the last reference to
                // it may close files.
                drop(batch);
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let late = self.wake.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if late && state.work.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A batch as its caller holds it.
pub(super) struct PoolBatch {
    batch: Arc<Batch>,
}

impl ReadCompletions for PoolBatch {
    fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        loop {
            let mut state = self.batch.state.lock();
            if let Some(r) = state.done.pop_front() {
                return Some(r);
            }
            if state.todo.is_empty() {
                if state.running == 0 {
                    return None;
                }
                self.batch.ended_one.wait(&mut state);
                continue;
            }
            drop(state);
            self.batch.run_one();
        }
    }

    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
        self.batch.state.lock().done.pop_front()
    }
}

impl Drop for PoolBatch {
    fn drop(&mut self) {
        let mut state = self.batch.state.lock();
        let unread = std::mem::take(&mut state.todo);
        while state.running > 0 {
            self.batch.ended_one.wait(&mut state);
        }
        drop(state);
        drop(unread);
    }
}
