//! The open log engine: its parts, and the two ways of a write.
//!
//! An append goes through the queue of the datalog. Its leader checks the group's LSNs, writes all
//! batches with one device write and one sync, and then adds them to the indexes. An operation on a
//! log goes through the queue of the metalog in the same way: it is durable before the index
//! changes (pageserver 5.2).
//!
//! A trim and an append of the same log may run at the same time. The trim's limit only rises, and
//! every append up to it is refused or dropped. So the order of the two does not matter. The
//! order of any other removal and the appends does matter. So such a removal goes through the queue
//! of the datalog, and recovery orders it by its sequence number.
//!
//! `LOCK_ORDER` has all locks of this crate.

use crate::catalog::{Change, Role};
use crate::checkpoint::{self, CheckpointHead, WrittenCheckpoint, checkpoint_path, names_path};
use crate::index::{Freed, PageLocation};
use crate::log_ops::LogOp;
use crate::mapping::Mapping;
use crate::namespace::{LogState, Namespace};
use crate::pages;
use crate::physical::{PhysicalLogs, ReadableFile};
use crate::queue::CoalescingQueue;
use crate::request::{DataRequest, MetaRequest};
use crate::reserve;
use crate::writer::PhysicalWriter;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
#[cfg(feature = "schedules")]
use basalt_env::sync::lock_log::CrateLocks;
use basalt_env::sync::{Mutex, named};
use basalt_env::{Env, JobOwner, JobPriority, MetricSource};
use basalt_fs::{ErrorKind, LockGuard, Result};
use std::sync::{Arc, Weak};

/// True in tests, which have small logs.
pub(crate) const IS_SMALL: bool = cfg!(any(test, feature = "schedules"));

/// Entries of L0 above which a log's oldest entries move to pages.
pub(crate) const L0_ENTRIES: u64 = if IS_SMALL { 40 } else { 1024 };
/// Entries that stay in L0 then: the newest, which are read and trimmed soonest.
const L0_KEPT: u64 = if IS_SMALL { 10 } else { 256 };

/// Least bytes of all physical logs between two checkpoints, unless files are small. Recovery reads
/// them in a few milliseconds.
const LEAST_REPLAY: u64 = 16 << 20;
/// The next checkpoint is due after this many times the bytes of the last one, so that checkpoints
/// are a small part of what is written.
const CHECKPOINT_PART: u64 = if IS_SMALL { 1 } else { 32 };
/// It is also due only after this part of the live bytes was appended.
const LIVE_PART: u64 = 4;
/// All locks of this crate, for tests under the scheduler: `docs/testing/schedules.md`.
///
/// | lock | what it serialises | held over |
/// |---|---|---|
/// | `Run` | a verification | the reads of a step |
/// | `LogEngine::creating` | names of new and renamed logs | commit of a creation or a rename |
/// | `Engine::data`, `Engine::meta`, `Engine::moved` | the writer of one role | one group |
/// | `WrittenFile` | a file that was left | its end, or a sync of it |
/// | `Manifested` | the manifest and the catalog | one edit |
/// | `Reserve::takes_records` | new records, and changes of the reserve | one group, one change |
/// | `LogInner` | the index of one log, and who waits for it | no I/O |
/// | `Names` | the logs by name | no I/O |
/// | `QueueState` | the queue of a physical log | no I/O |
/// | `Slot` | the result of one request | no I/O |
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: CrateLocks = CrateLocks {
    order: &[
        "verify::Run",
        "LogEngine::creating",
        "Engine::data",
        "Engine::meta",
        "Engine::moved",
        "writer::WrittenFile",
        "physical::Manifested",
        "Reserve::takes_records",
        "namespace::LogInner",
        "namespace::Names",
        "queue::QueueState",
        "queue::Slot",
    ],
    leaves: &[
        "PhysicalLogs::files",
        "PhysicalLogs::recycled",
        "PhysicalLogs::kept",
        "ReadableFile::end",
        "ReadableFile::beside",
        "LogState::name",
        "checkpoint::CheckpointHead",
        "Engine::lock",
        "Engine::metric_sources",
    ],
};

/// The engine behind all handles.
pub(crate) struct Engine {
    pub env: Env,
    pub number: u64,
    pub logs: Arc<PhysicalLogs>,
    pub namespace: Namespace,
    pub data_queue: CoalescingQueue<DataRequest>,
    pub meta_queue: CoalescingQueue<MetaRequest>,
    pub data: Mutex<PhysicalWriter>,
    pub meta: Mutex<PhysicalWriter>,
    pub moved: Mutex<PhysicalWriter>,
    /// The head of the newest checkpoint.
    pub head: Mutex<CheckpointHead>,
    pub max_space_amp: f64,
    pub next_seq: AtomicU64,
    next_log: AtomicU64,
    /// No creation of a log with a smaller number is pending. A creation raises this number when
    /// its record is in the metalog, under the lock of the metalog's writer.
    pub created_below: AtomicU64,
    closed: AtomicBool,
    /// Largest bytes of a file.
    file_bytes: u64,
    /// Bytes of all physical logs between the last checkpoint and the next one.
    checkpoint_due: AtomicU64,
    /// Bytes that were appended to all physical logs since the last checkpoint began.
    since_checkpoint: AtomicU64,
    /// True while a job makes a checkpoint, or is to.
    checkpointing: AtomicBool,
    /// True while a job collects garbage, or is to.
    pub collecting: AtomicBool,
    /// True while a job removes files of which nothing is live, or is to.
    removing: AtomicBool,
    /// True if a record was replaced by another one with its LSN.
    pub has_replaced: AtomicBool,
    /// True if a group of the metalog has failed and `end_failed_meta` has not run since. Until the
    /// file ends before the failed group, a recovery would replay the group's trims and deletions,
    /// and lose records that were appended later. Written under the lock of the metalog's writer.
    pub has_unended_meta: AtomicBool,
    jobs: JobOwner,
    this: Weak<Engine>,
    /// Offers the counters and the statistics until the engine is closed.
    metric_sources: Mutex<Vec<MetricSource>>,
    /// Released when the engine is closed.
    lock: Mutex<Option<Box<dyn LockGuard>>>,
}

/// What recovery hands to an engine.
pub(crate) struct Recovered {
    pub number: u64,
    pub logs: Arc<PhysicalLogs>,
    pub namespace: Namespace,
    pub data: PhysicalWriter,
    pub meta: PhysicalWriter,
    pub moved: PhysicalWriter,
    pub max_space_amp: f64,
    pub head: CheckpointHead,
    pub next_seq: u64,
    pub next_log: u64,
    pub file_bytes: u64,
    /// `None` for a store that is read where no lock file is.
    pub lock: Option<Box<dyn LockGuard>>,
}

impl Drop for Engine {
    /// A batch that was submitted is not committed any more, and its callback must know.
    fn drop(&mut self) {
        let error = reserve::closed();
        self.data_queue.fail_all(&error);
        self.meta_queue.fail_all(&error);
    }
}

impl Engine {
    pub fn new(env: &Env, recovered: Recovered) -> Arc<Engine> {
        Arc::new_cyclic(|this| Engine {
            env: env.clone(),
            number: recovered.number,
            logs: recovered.logs,
            namespace: recovered.namespace,
            data_queue: CoalescingQueue::new(),
            meta_queue: CoalescingQueue::new(),
            data: named("Engine::data", Mutex::new(recovered.data)),
            meta: named("Engine::meta", Mutex::new(recovered.meta)),
            moved: named("Engine::moved", Mutex::new(recovered.moved)),
            head: Mutex::new(recovered.head),
            max_space_amp: recovered.max_space_amp,
            next_seq: AtomicU64::new(recovered.next_seq),
            next_log: AtomicU64::new(recovered.next_log),
            created_below: AtomicU64::new(recovered.next_log),
            closed: AtomicBool::new(false),
            file_bytes: recovered.file_bytes,
            checkpoint_due: AtomicU64::new(LEAST_REPLAY.min(recovered.file_bytes / 4)),
            since_checkpoint: AtomicU64::new(0),
            checkpointing: AtomicBool::new(false),
            collecting: AtomicBool::new(false),
            removing: AtomicBool::new(false),
            has_replaced: AtomicBool::new(false),
            has_unended_meta: AtomicBool::new(false),
            jobs: env.jobs().new_owner(),
            this: this.clone(),
            metric_sources: named("Engine::metric_sources", Mutex::default()),
            lock: named("Engine::lock", Mutex::new(recovered.lock)),
        })
    }

    /// Offers the engine's metrics to the environment's registry. Their label `store` names the
    /// directory.
    pub fn offer_metrics(self: &Arc<Self>) {
        let store = self.logs.dir().display().to_string();
        let counters = self.logs.counters.offer(&self.env, &store);
        // The registry does not keep the engine open.
        let engine = self.this.clone();
        let gauges = self.env.metrics().source(move |out| {
            if let Some(engine) = engine.upgrade() {
                engine.stats().samples(&store, out);
            }
        });
        *self.metric_sources.lock() = vec![counters, gauges];
    }

    /// Returns an error if the engine was closed.
    pub fn check_open(&self) -> Result<()> {
        match self.closed.load(SeqCst) {
            false => Ok(()),
            true => Err(reserve::closed()),
        }
    }

    /// Returns a number for a new log.
    pub fn new_log_number(&self) -> u64 {
        self.next_log.fetch_add(1, SeqCst)
    }

    /// Commits what is queued, syncs, and releases the directory. Later calls fail with `Closed`.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, SeqCst) {
            return Ok(());
        }
        self.jobs.drain();
        let error = reserve::closed();
        let synced = self.data.lock().end_all();
        let synced = synced.and(self.meta.lock().end_all());
        let synced = synced.and(self.moved.lock().end_all());
        // A call that began before the close may have queued jobs since the first drain. The
        // writers take no more records, so no job is queued after this drain.
        self.jobs.drain();
        let synced = synced.and_then(|()| self.last_checkpoint());
        self.data_queue.fail_all(&error);
        self.meta_queue.fail_all(&error);
        for log in self.namespace.all() {
            log.wake_all();
        }
        self.logs.release_recycled();
        self.logs.release_kept();
        let sources = std::mem::take(&mut *self.metric_sources.lock());
        // A drop takes the lock of the registry.
        drop(sources);
        // A call that began before may still be on its way to a file.
        self.logs.close();
        *self.lock.lock() = None;
        synced
    }

    /// Writes the checkpoint with which the next open reads nothing else. Then makes the reserve if
    /// there is none.
    fn last_checkpoint(&self) -> Result<()> {
        if !self.logs.is_changed() {
            return Ok(());
        }
        match self.checkpoint() {
            // Nothing is lost: the next open reads what this one has read, and what was appended.
            Err(e) if e.kind() == ErrorKind::NoSpace => {}
            done => done?,
        }
        self.logs.keep_reserve();
        Ok(())
    }

    /// Drops the jobs that are queued, as a power cut does.
    #[cfg(test)]
    pub fn cut_power(&self) {
        self.closed.store(true, SeqCst);
        self.jobs.cancel();
    }

    pub fn in_background(&self, priority: JobPriority, run: impl FnOnce(&Engine) + Send + 'static) {
        let this = self.this.clone();
        self.jobs.spawn(priority, move || {
            if let Some(engine) = this.upgrade() {
                run(&engine);
            }
        });
    }

    /// Subtracts garbage from the live bytes of the files that have it. A file of which nothing is
    /// live is removed soon.
    pub fn note_freed(&self, freed: &Freed) {
        for (file, bytes) in freed.records.iter().chain(freed.pages.iter()) {
            if let Some(file) = self.logs.get(file)
                && file.subtract_live(bytes)
                && file.role != Role::Meta
                && file.takes_no_more()
            {
                self.schedule_removal();
            }
        }
    }

    /// Schedules a job that removes files of dead records, if recovery has found some. The process
    /// that made the records garbage was killed before it removed them, and the disk may be full of
    /// them.
    pub fn remove_dead_after_open(&self) {
        if self.logs.all().iter().any(|file| file.is_dead()) {
            self.schedule_removal();
        }
    }

    fn schedule_removal(&self) {
        if !self.removing.swap(true, SeqCst) {
            self.in_background(JobPriority::Housekeeping, |engine| {
                engine.removing.store(false, SeqCst);
                // A file that stays is removed with the next one, or after the next checkpoint.
                let _ = engine.remove_dead_records();
            });
        }
    }

    /// Removes ended files of records of which nothing is live. Recovery needs none of them.
    pub fn remove_dead_records(&self) -> Result<()> {
        for writer in [&self.data, &self.moved] {
            // After an append failed on a full disk, the manifest has no end of the file yet. If
            // the end cannot be written, the file stays.
            let _ = writer.lock().resume_now();
        }
        let dead: Vec<u64> = (self.logs.all().iter().filter(|file| file.is_dead()))
            .map(|file| file.number)
            .collect();
        if dead.is_empty() {
            return Ok(());
        }
        self.sync_before_removal()?;
        let recycle = !self.closed.load(SeqCst);
        self.logs.remove_all(&dead, recycle)
    }

    /// Syncs the trims and the records that turned other records into garbage. Callers do this
    /// before they remove a file. Otherwise, after a power cut, an index could still refer to the
    /// removed file.
    pub fn sync_before_removal(&self) -> Result<()> {
        self.sync_beside(&self.meta)?;
        if self.has_replaced.load(SeqCst) {
            self.sync_beside(&self.data)?;
        }
        self.sync_beside(&self.moved)
    }

    /// Schedules the jobs that a writer needs after an append: they end full files, and prepare the
    /// next one.
    pub fn tend_writer(
        &self,
        writer: &mut PhysicalWriter,
        of: fn(&Engine) -> &Mutex<PhysicalWriter>,
    ) {
        if let Some(left) = writer.oldest_left()
            && left.claim()
        {
            self.in_background(JobPriority::Flush, move |engine| {
                let mut oldest = Some(left);
                while let Some(left) = oldest {
                    // After an error the file stays as it is, and a close or a recovery ends it.
                    if left.end(&engine.logs).is_err() {
                        return;
                    }
                    // Trims may have emptied it before.
                    if (engine.logs.get(left.number())).is_some_and(|file| file.is_dead()) {
                        engine.schedule_removal();
                    }
                    let mut writer = of(engine).lock();
                    writer.forget_left(&left);
                    // The next append may come late, or never.
                    oldest = writer.oldest_left().filter(|left| left.claim());
                    drop(writer);
                    engine.schedule_gc();
                }
            });
        }
        if let Some(plan) = writer.plan_spare() {
            self.in_background(JobPriority::Housekeeping, move |engine| {
                // A failure is not lost: the writer that needs the file tries again.
                let made = plan.prepare(&engine.logs).ok();
                let unused = of(engine).lock().take_spare(made);
                if let Some(number) = unused {
                    let _ = engine.logs.remove(number, true);
                }
            });
        }
    }
}

impl Engine {
    /// Counts bytes of a physical log, and schedules a checkpoint if enough were appended since the
    /// last one.
    pub fn note_appended(&self, bytes: u64) {
        let since = self.since_checkpoint.fetch_add(bytes, SeqCst) + bytes;
        if since >= self.checkpoint_due.load(SeqCst) && !self.checkpointing.swap(true, SeqCst) {
            self.in_background(JobPriority::Flush, |engine| {
                // Without a checkpoint recovery takes longer, and files stay. The next one is due
                // after as many bytes.
                let _ = engine.checkpoint();
                engine.checkpointing.store(false, SeqCst);
                // A page that cannot be read stays where it is.
                let _ = engine.compact_metalog();
                engine.schedule_gc();
            });
        }
    }

    /// Writes a checkpoint, unless one is running or scheduled. Concurrent checkpoints are not
    /// safe: if the older one is installed last, the files it needs may already be removed.
    pub fn checkpoint_unless_running(&self) -> Result<()> {
        if self.checkpointing.swap(true, SeqCst) {
            return Ok(());
        }
        let written = self.checkpoint();
        self.checkpointing.store(false, SeqCst);
        written
    }

    /// Writes a checkpoint, and removes the files that recovery then no longer needs. No other one
    /// may be running.
    pub fn checkpoint(&self) -> Result<()> {
        self.logs.check_writable()?;
        self.since_checkpoint.store(0, SeqCst);
        for writer in [&self.data, &self.meta, &self.moved] {
            writer.lock().retry_left();
        }
        let (head, all) = {
            // Everything before these points is in the indexes: a group is applied under the lock.
            let data = self.data.lock();
            let meta = self.meta.lock();
            let moved = self.moved.lock();
            let head = CheckpointHead {
                next_seq: self.next_seq.load(SeqCst),
                next_log: self.created_below.load(SeqCst),
                meta: meta.position(),
                data: data.position(),
                moved: moved.position(),
            };
            drop((data, moved));
            // A log changes its name under the lock of the metalog. So the replay meets the names
            // of this point.
            (head, self.namespace.all_named())
        };
        let dead = self.dead_files(&head);
        let ((number, store_id), (names, _)) = (self.logs.new_file(), self.logs.new_file());
        let (dir, numbers) = (self.logs.dir(), [number, names]);
        let installed =
            checkpoint::write(&self.env, dir, numbers, store_id, &head, &all).and_then(|written| {
                // The checkpoint has records and removals that are younger than its points. They
                // must be as durable as it is.
                self.sync_all()?;
                self.env.fs().sync_metadata(self.logs.dir())?;
                let before = checkpoint::current_paths(&self.logs);
                let WrittenCheckpoint { checkpoint, names } = written;
                self.logs
                    .install(&[Change::Checkpoint(checkpoint), Change::Names(names)])?;
                let bytes = checkpoint.end + names.end;
                *self.head.lock() = head;
                let least = LEAST_REPLAY.min(self.file_bytes / 4);
                let most = least.max(self.file_bytes / 4);
                let due = (self.logs.live_bytes() / LIVE_PART).clamp(least, most);
                self.checkpoint_due
                    .store(due.max(bytes * CHECKPOINT_PART), SeqCst);
                let counters = &self.logs.counters;
                counters.checkpoints.add(1);
                counters.checkpoint_bytes.add(bytes);
                Ok(before)
            });
        match installed {
            Ok(before) => {
                for old in before {
                    self.logs.remove_checkpoint(&old);
                }
                let recycle = !self.closed.load(SeqCst);
                dead.into_iter()
                    .try_for_each(|file| self.logs.remove(file, recycle))
            }
            Err(e) => {
                if !self.logs.may_name_checkpoint(number) {
                    let files = [checkpoint_path(dir, number), names_path(dir, names)];
                    files.iter().for_each(|path| {
                        let _ = self.env.fs().remove(path);
                    });
                }
                Err(e)
            }
        }
    }

    /// If a group of the metalog has failed, ends the file before that group. The datalog must not
    /// be appended to before this: a recovery would replay the failed trims and deletions over the
    /// new records.
    ///
    /// Errors: the error of the failed group, while the writer cannot go on yet.
    pub fn end_failed_meta(&self) -> Result<()> {
        if self.has_unended_meta.load(SeqCst) {
            let mut meta = self.meta.lock();
            meta.resume()?;
            self.has_unended_meta.store(false, SeqCst);
        }
        Ok(())
    }

    /// Makes everything in all physical logs durable. Appends go on beside it.
    pub fn sync_all(&self) -> Result<()> {
        self.sync_beside(&self.data)?;
        self.sync_beside(&self.meta)?;
        self.sync_beside(&self.moved)
    }

    /// Makes everything durable that a writer has now. Appends go on beside it.
    fn sync_beside(&self, writer: &Mutex<PhysicalWriter>) -> Result<()> {
        let sync = writer.lock().begin_sync()?;
        let outcome = sync.run(&self.logs);
        writer.lock().end_sync(&sync, outcome)
    }

    /// Returns the next sequence number.
    pub fn new_seq(&self) -> u64 {
        self.next_seq.fetch_add(1, SeqCst)
    }

    /// Returns the files of which nothing is live, and which no replay from a checkpoint with this
    /// head reads.
    fn dead_files(&self, head: &CheckpointHead) -> Vec<u64> {
        let is_dead = |file: &Arc<ReadableFile>| {
            let replayed_from = head.start_of(file.role).file;
            file.number < replayed_from && file.end().is_some() && file.live.load(SeqCst) == 0
        };
        let all = self.logs.all();
        all.iter()
            .filter(|f| is_dead(f))
            .map(|f| f.number)
            .collect()
    }

    /// Moves the oldest entries of a log's L0 to pages (MetaFlush, pageserver 5.2).
    pub fn flush_index(&self, log: &Arc<LogState>) {
        loop {
            let mut inner = log.lock();
            let page = match inner.deleted {
                true => None,
                false => inner.index.next_page(L0_KEPT),
            };
            let Some(entries) = page else {
                inner.flushing = false;
                return;
            };
            drop(inner);
            let op = LogOp::Page {
                log: log.number,
                mapping: entries.mapping(),
            };
            // A power cut may lose the page. Then recovery finds the entries in the datalog.
            if self.run_op(log, op, false).is_err() {
                // The metalog takes nothing more, or the engine was closed. L0 keeps the entries.
                log.lock().flushing = false;
                return;
            }
        }
    }

    /// Returns the entries of a page, or `None` if the page cannot be read.
    pub fn load_page(&self, log: &LogState, at: PageLocation) -> Option<Mapping> {
        pages::load(&self.env, &self.logs, log.number, at)
            .ok()
            .flatten()
    }
}
