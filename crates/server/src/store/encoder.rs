//! Encodes the batches of epochs and submits them. Long batches are encoded on a thread. On the
//! loop, a copy of 32 MiB, or of the writes of a million names, would delay all clients.

use super::{CommitCallback, ElementWrite, Write};
use crate::catalog::DATABASE;
use crate::layer::LayerWrite;
use crate::layout::{self, STRING_HEADER};
use basalt::env::thread::BackgroundThread;
use basalt::{Db, Error, ErrorKind, Family, Result, WriteBatch, WriteOptions};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// A batch of at least this many bytes is encoded on the thread.
const LONG_BATCH: usize = 256 << 10;

struct QueuedEpoch {
    writes: Vec<Write>,
    sync: bool,
    done: Report,
}

/// Reports the result of an epoch once. A report that is dropped, by a panic or with a queue,
/// reports a failure. Otherwise the epoch would stay in flight, and the server could not stop.
struct Report(Option<CommitCallback>);

impl Report {
    fn send(mut self, result: Result<()>) {
        if let Some(done) = self.0.take() {
            done(result);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(Err(broken(
                "the result of a commit is lost: a thread has panicked",
            )));
        }
    }
}

/// The encoding thread, and its queue.
struct Worker {
    queue: Option<mpsc::Sender<QueuedEpoch>>,
    thread: Option<BackgroundThread>,
}

/// The families of Redis data.
#[derive(Clone)]
pub(super) struct Families {
    pub keys: Family,
    pub elements: Family,
}

/// Encodes and submits epochs (see the module). The engine gets the epochs in the order of
/// [`Encoder::submit`].
pub(super) struct Encoder {
    db: Db,
    families: Families,
    /// Number of epochs that went to the thread and are not submitted yet. While it is not 0, all
    /// epochs go to the thread.
    queued: Arc<AtomicUsize>,
    worker: Mutex<Worker>,
}

impl Encoder {
    pub fn new(db: Db, families: Families) -> Encoder {
        Encoder {
            db,
            families,
            queued: Arc::default(),
            worker: Mutex::new(Worker {
                queue: None,
                thread: None,
            }),
        }
    }

    /// Submits the writes of an epoch, now or on the thread.
    pub fn submit(&self, writes: Vec<Write>, sync: bool, done: CommitCallback) {
        let done = Report(Some(done));
        let epoch = QueuedEpoch { writes, sync, done };
        let is_long = epoch.writes.iter().map(Write::bytes).sum::<usize>() >= LONG_BATCH;
        if !is_long && self.queued.load(Ordering::Acquire) == 0 {
            return submit(&self.db, &self.families, epoch);
        }
        let mut worker = self.worker.lock();
        if worker.thread.is_none() {
            let (sender, receiver) = mpsc::channel::<QueuedEpoch>();
            let (db, families) = (self.db.clone(), self.families.clone());
            let queued = self.queued.clone();
            let run = move || {
                for epoch in receiver {
                    // A panic has been reported, and its epoch fails. The epochs behind it in the
                    // queue need this thread.
                    let _ = catch_unwind(AssertUnwindSafe(|| submit(&db, &families, epoch)));
                    queued.fetch_sub(1, Ordering::AcqRel);
                }
            };
            worker.thread = BackgroundThread::start("basalt-encode", run).ok();
            worker.queue = worker.thread.is_some().then_some(sender);
        }
        match &worker.queue {
            Some(queue) => {
                self.queued.fetch_add(1, Ordering::AcqRel);
                if let Err(mpsc::SendError(epoch)) = queue.send(epoch) {
                    let ended = broken("the thread that encodes batches has ended");
                    epoch.done.send(Err(ended));
                }
            }
            // The thread could not be started: a slow submission is better than none.
            None => submit(&self.db, &self.families, epoch),
        }
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        let worker = self.worker.get_mut();
        worker.queue = None;
        // The drop waits for the thread, which has already reported a panic.
        worker.thread = None;
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::Poisoned, what)
}

fn submit(db: &Db, families: &Families, epoch: QueuedEpoch) {
    let QueuedEpoch { writes, sync, done } = epoch;
    // A panic fails its own epoch only: the epochs behind it in the queue need this thread.
    let batch = catch_unwind(AssertUnwindSafe(|| encode(families, &writes)));
    match batch.unwrap_or_else(|_| Err(broken("the thread that encodes batches panicked"))) {
        Ok(batch) => db
            .submit_nowait(batch, &WriteOptions::synced(sync))
            .on_complete(move |r| done.send(r.map(|_| ()))),
        Err(e) => done.send(Err(e)),
    }
}

fn encode(families: &Families, writes: &[Write]) -> Result<WriteBatch> {
    let Families { keys, elements } = families;
    let mut batch = WriteBatch::new();
    for write in writes {
        match write {
            Write::Put { key, value } => {
                let expiry = value.engine_expiry();
                batch.put_parts(keys, key, &value.header(), &value.data, expiry)?
            }
            Write::Delete { key } => batch.delete(keys, key)?,
            Write::Layer(layer) => {
                let mut stored = layer.prefix().to_vec();
                for (key, write) in layer.writes() {
                    stored.truncate(layer.prefix().len());
                    stored.extend_from_slice(key);
                    match write {
                        LayerWrite::Put(value) => {
                            batch.put_parts(keys, &stored, &STRING_HEADER, value, None)?;
                        }
                        LayerWrite::Delete => batch.delete(keys, &stored)?,
                    }
                }
            }
            Write::Generation { generation } => batch.put(
                keys,
                &layout::generation_key(DATABASE),
                &generation.to_le_bytes(),
            )?,
            Write::Element(write) => match write {
                ElementWrite::Put { key, value } => batch.put(elements, key, value)?,
                ElementWrite::Delete { key } => batch.delete(elements, key)?,
                ElementWrite::DeleteRange { from, to } => batch.delete_range(elements, from, to)?,
            },
        }
    }
    Ok(batch)
}

#[cfg(test)]
mod tests;
