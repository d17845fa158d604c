//! The write path of a store: the queue of batches, the commit leader's state, and the logs.
//!
//! | module | what it has |
//! |---|---|
//! | [`group_wait`] | how long a leader waits for more writers |
//! | [`ticket_state`] | the state of a batch on its way |
//! | [`queue`] | the commit queue |
//! | [`checks`] | preconditions of a batch that waits in the queue |
//! | [`apply`] | committed batches into memtables |
//! | [`log_space`] | spare and recycled logs |
//!
//! Locks: `writer`, the commit leader's, is taken before every lock of the tree. The queue's lock
//! is never held while another lock of the store is waited for, but for a ticket's slot.

pub(crate) mod apply;
pub(crate) mod checks;
pub(crate) mod group_wait;
pub(crate) mod log_space;
pub(crate) mod queue;
pub(crate) mod ticket_state;

use super::back_pressure::disk_full::RecoveryCheck;
use super::back_pressure::stalls::UnpaidBytes;
use super::context::StoreContext;
use super::log_position::PassivePosition;
use super::tree::Tree;
use basalt_env::JobPriority;
use basalt_env::sync::{Mutex, MutexGuard};
use basalt_fs::{Error, Reach, Result};
use basalt_kv::key::{SEQ_LIMIT, SeqNo};
use log_space::{ActiveLog, LogSpace};
use queue::CommitQueue;
use std::sync::Arc;
use std::time::Duration;

/// The write path of an open store. See the documentation of the module.
pub(crate) struct WritePath {
    queue: CommitQueue,
    writer: Mutex<Writer>,
    logs: LogSpace,
}

/// The state that the commit leader owns.
pub(crate) struct Writer {
    /// The log that takes records, once there is a record.
    pub log: Option<ActiveLog>,
    /// Logs that take no more records and whose end is not synced, oldest first. Some may be
    /// removed by now.
    pub left: Vec<ActiveLog>,
    /// The next sequence number.
    pub next_seq: SeqNo,
    /// The position in the owner's log, in a passive store.
    pub passive: Option<PassivePosition>,
    /// Bytes of admitted groups that are not paid for yet.
    pub pace: UnpaidBytes,
    /// The disk space that a recovery needs, as last checked.
    pub recovery: RecoveryCheck,
    /// Time of the environment's clock since which a group waits for memory.
    pub short_of_memory: Option<Duration>,
    /// Time of the environment's clock of the last attempt to resume a halted store.
    pub last_resume: Option<Duration>,
}

impl WritePath {
    /// Returns the write path of a store whose next sequence number is `next_seq`. A passive store
    /// takes its numbers from `passive` instead.
    pub fn new(
        ctx: &Arc<StoreContext>,
        next_seq: SeqNo,
        passive: Option<PassivePosition>,
    ) -> WritePath {
        WritePath {
            queue: CommitQueue::new(ctx.env.ledger()),
            writer: Mutex::new(Writer {
                log: None,
                left: Vec::new(),
                next_seq,
                passive,
                pace: UnpaidBytes::default(),
                recovery: RecoveryCheck::default(),
                short_of_memory: None,
                last_resume: None,
            }),
            logs: LogSpace::new(ctx),
        }
    }

    /// Returns the commit queue.
    pub fn queue(&self) -> &CommitQueue {
        &self.queue
    }

    /// Returns the spare and recycled logs.
    pub fn logs(&self) -> &LogSpace {
        &self.logs
    }

    /// Locks the commit leader's state. No group is between its log record and its memtables while
    /// the lock is held.
    pub fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    /// Locks the commit leader's state, unless another thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Writer>> {
        self.writer.try_lock()
    }
}

impl Writer {
    /// Takes `count` sequence numbers, and returns the first of them.
    ///
    /// Errors: `Unsupported` if the store has not as many numbers left.
    pub fn take_seqs(&mut self, count: u64) -> Result<SeqNo> {
        let first = self.next_seq;
        match first.checked_add(count).filter(|next| *next <= SEQ_LIMIT) {
            Some(next) => {
                self.next_seq = next;
                Ok(first)
            }
            None => Err(Error::unsupported(format!(
                "the next sequence number is {first}, and {count} more reach the limit of {SEQ_LIMIT}: copy the data into a new store"
            ))
            .with_reach(Reach::Store)),
        }
    }

    /// Drops the handles of logs whose memtables are in tables.
    pub fn forget_removed_logs(&mut self, ctx: &StoreContext, tree: &Tree) {
        if self.left.is_empty() {
            return;
        }
        let state = tree.lock();
        let (live, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.left)
            .into_iter()
            .partition(|l| state.catalog().logs.contains_key(&l.number));
        drop(state);
        self.left = live;
        if !gone.is_empty() && !ctx.is_closing() {
            // When the last handle of a removed file is closed, the kernel frees its pages. For a
            // log this takes some milliseconds, which no writer should wait for.
            ctx.jobs
                .spawn(JobPriority::Housekeeping, move || drop(gone));
        }
    }

    /// Returns the bytes that the log holds in memory and has not written yet.
    pub fn staged_bytes(&self) -> u64 {
        self.log.as_ref().map_or(0, |l| l.writer.memory() as u64)
    }
}
