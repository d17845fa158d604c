//! A mounted filesystem: what its open files, its background jobs and [`LavaFs`](super::LavaFs)
//! share.
//!
//! # Order of locks
//!
//! A thread that holds a lock takes only locks that stand behind it in this table, and leaves. So a
//! thread that waits for a flush never holds `journal`.
//!
//! | lock | held over |
//! |---|---|
//! | [`LockTable`], locks on paths | the making of the locked file |
//! | the append lock of a file (`open_inode::AppendTail`) | writes of its bytes |
//! | `growing` | a checkpoint of the new size |
//! | `checkpointing` | writes of a checkpoint or a superblock |
//! | the turn to flush ([`Flusher`]), no lock of a type | a flush of the device |
//! | `journal` | writes of transactions |
//! | `state` | no I/O |
//! | the link state of an open inode | no I/O |
//! | the extents of an open inode | no I/O |
//! | the list of a file's buffers (`BufferList`) | no I/O |
//! | the pool of buffers (`buffer_pool::PoolState`) | no I/O |
//! | the progress of background work (`UpkeepProgress`) | the queueing of a job in `env` |
//!
//! Leaves are the progress of commits (`written`) and the state of flushes (`FlushState`).
//! `wait_for_discards` waits with `state` alone given back: a thread that calls it may hold
//! `journal` and all before it, which no discard takes.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};

use super::buffer_pool::BufferPool;
use super::counters::FsCounters;
use super::flush::Flusher;
use super::journal::JournalWriter;
use super::layout::{Superblock, Uuid};
use super::lock_table::LockTable;
use super::maintenance::Maintenance;
use super::runs::BLOCK;
use super::state::MountState;
use basalt_fs::device::{Device, DeviceFacts};
use basalt_fs::{Error, ErrorKind, Result};

/// Extents of the journal with which a checkpoint is due, full or not: each mount begins one.
const DUE_EXTENTS: usize = 5;

/// A mounted filesystem.
pub struct MountedFs {
    pub read_only: bool,
    pub uuid: Uuid,
    pub facts: DeviceFacts,
    pub device: Arc<dyn Device>,
    pub journal: Mutex<JournalState>,
    pub state: Mutex<MountState>,
    pub progress: CommitProgress,
    pub flusher: Flusher,
    /// Held while a checkpoint or a superblock is written.
    pub checkpointing: Mutex<()>,
    /// Held while the filesystem takes new blocks of the device.
    pub growing: Mutex<()>,
    pub maintenance: Maintenance,
    /// Notified when a discard has ended.
    pub discarded: Condvar,
    pub counters: FsCounters,
    /// When this many bytes of records are pending, the journal writes a transaction even if no
    /// caller requested a sync.
    pub pending_limit: u64,
    pub buffers: BufferPool,
    pub locks: Arc<LockTable>,
    failure: OnceLock<Error>,
}

/// The findings of the mount, from which a [`MountedFs`] is made.
pub struct MountParts {
    pub read_only: bool,
    pub facts: DeviceFacts,
    pub device: Arc<dyn Device>,
    pub journal: JournalState,
    pub state: MountState,
    /// Number of the last transaction of the journal.
    pub last_seq: u64,
    pub counters: FsCounters,
    pub buffers: BufferPool,
}

/// Numbers of records that are written and that are durable.
#[derive(Default)]
pub struct CommitProgress {
    /// Number of records that transactions have, and number of the last transaction.
    written: Mutex<(u64, u64)>,
    durable_records: AtomicU64,
    durable_seq: AtomicU64,
    /// The largest number of a record that a caller waits for, or waited for until the journal had
    /// no space.
    wanted: AtomicU64,
}

/// The journal, and when a checkpoint replaces it.
pub struct JournalState {
    pub writer: JournalWriter,
    /// The newest superblock.
    pub superblock: Superblock,
    /// Bytes of the journal from which on a checkpoint is due.
    due_bytes: u64,
    /// Extents of the journal from which on a checkpoint is due, full or not.
    due_extents: usize,
    /// Checkpoints that failed since the mount.
    pub failed_checkpoints: u64,
    /// Checkpoints written since the mount.
    pub checkpoints: u64,
}

impl CommitProgress {
    /// Returns the progress after a mount: the transactions up to `seq` are durable.
    fn starting_at(seq: u64) -> CommitProgress {
        let progress = CommitProgress::default();
        *progress.written.lock() = (0, seq);
        progress.durable_seq.store(seq, SeqCst);
        progress
    }

    /// Returns the number of records that transactions have, and the number of the last
    /// transaction.
    pub fn written(&self) -> (u64, u64) {
        *self.written.lock()
    }

    /// Notes that the transactions written so far have the first `records` records, and `seq` as
    /// the number of the last transaction, if one was written.
    pub fn set_written(&self, records: u64, seq: Option<u64>) {
        let mut written = self.written.lock();
        written.0 = written.0.max(records);
        written.1 = seq.unwrap_or(written.1);
    }

    /// Returns the number of records that are durable.
    pub fn durable_records(&self) -> u64 {
        self.durable_records.load(SeqCst)
    }

    /// Notes that the first `records` records are durable.
    pub fn set_durable_records(&self, records: u64) {
        self.durable_records.store(records, SeqCst);
    }

    /// Returns the number of the last durable transaction.
    pub fn durable_seq(&self) -> u64 {
        self.durable_seq.load(SeqCst)
    }

    /// Notes that the transactions up to `seq` are durable.
    pub fn set_durable_seq(&self, seq: u64) {
        self.durable_seq.fetch_max(seq, SeqCst);
    }

    /// Notes that a caller waits for a record.
    pub fn request(&self, record: u64) {
        self.wanted.fetch_max(record, SeqCst);
    }

    /// Returns `true` if a caller waits for a record that no transaction has.
    pub fn is_write_requested(&self) -> bool {
        self.wanted.load(SeqCst) > self.written().0
    }
}

impl JournalState {
    /// Returns the state after a mount.
    pub fn new(writer: JournalWriter, superblock: Superblock) -> JournalState {
        JournalState {
            writer,
            due_bytes: due_bytes(&superblock),
            due_extents: DUE_EXTENTS,
            superblock,
            failed_checkpoints: 0,
            checkpoints: 0,
        }
    }

    /// Notes a new checkpoint, which this superblock leads to.
    pub fn set_checkpoint(&mut self, superblock: Superblock) {
        self.due_bytes = due_bytes(&superblock);
        self.due_extents = DUE_EXTENTS;
        self.superblock = superblock;
        self.checkpoints += 1;
    }

    /// Counts a failed checkpoint. The next one is due after one more extent of the journal, so
    /// that not each transaction requests one.
    pub fn postpone_checkpoint(&mut self) {
        self.failed_checkpoints += 1;
        let more = u64::from(self.superblock.journal_blocks) * BLOCK;
        self.due_bytes = self.writer.bytes() + more;
        self.due_extents = self.writer.extents() + DUE_EXTENTS;
    }

    /// Returns `true` if a checkpoint is due.
    pub fn is_due(&self) -> bool {
        self.writer.bytes() >= self.due_bytes || self.writer.extents() >= self.due_extents
    }
}

impl MountedFs {
    /// Returns the filesystem that a mount has loaded.
    pub fn new(parts: MountParts) -> MountedFs {
        let superblock = &parts.journal.superblock;
        MountedFs {
            pending_limit: u64::from(superblock.journal_blocks) * BLOCK / 2,
            read_only: parts.read_only,
            uuid: superblock.uuid,
            facts: parts.facts,
            device: parts.device,
            state: Mutex::new(parts.state),
            journal: Mutex::new(parts.journal),
            progress: CommitProgress::starting_at(parts.last_seq),
            flusher: Flusher::default(),
            checkpointing: Mutex::new(()),
            growing: Mutex::new(()),
            maintenance: Maintenance::default(),
            discarded: Condvar::new(),
            counters: parts.counters,
            buffers: parts.buffers,
            locks: Arc::default(),
            failure: OnceLock::new(),
        }
    }

    /// Returns `true` if a checkpoint is due.
    pub fn is_due(&self) -> bool {
        self.journal.lock().is_due()
    }

    /// Returns an error if the filesystem takes no changes.
    ///
    /// Errors: `ReadOnly`; `Poisoned` after a failed write of the journal or a failed sync.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the image was opened for reading",
            ));
        }
        match self.failure.get() {
            None => Ok(()),
            Some(e) => Err(Error::new(
                ErrorKind::Poisoned,
                format!(
                    "an earlier write of the journal or a sync failed, and the state of the device is unknown; reopen the image (first failure: {e})"
                ),
            )),
        }
    }

    /// Ends all changes with this error, if an earlier error has not ended them. Returns the error.
    pub fn fail(&self, e: Error) -> Error {
        let _ = self.failure.set(e.clone());
        e
    }

    /// Ends all changes and writes, as a crash does.
    pub fn abandon(&self) {
        self.fail(Error::new(
            ErrorKind::Closed,
            "the filesystem was abandoned",
        ));
        self.buffers.stop();
    }
}

/// Returns the bytes of the journal from which on a checkpoint is due. A mount reads both, so the
/// journal may be as long as the checkpoint.
fn due_bytes(superblock: &Superblock) -> u64 {
    let extent = u64::from(superblock.journal_blocks) * BLOCK;
    (2 * extent).max(superblock.checkpoint_bytes)
}
