//! Listeners: user code that receives an event for each background action of a store.
//!
//! Events are queued where they happen. One thread delivers them in that order, each to all
//! listeners, and ends when the queue is empty. On a stepped environment the caller of
//! [`crate::Db::wait_for_listeners`], or of a close, delivers them. The thread holds no lock of the
//! store, so a listener may call any function of the store, reads and writes too, except those that
//! wait for events. A listener cannot block the store:
//!
//! - A listener that blocks delays later events of its own store only. At most [`QUEUED_EVENTS`]
//!   events wait. The oldest are dropped first, and [`crate::db::Stats::events_lost`] counts them.
//! - A listener that panics is never called again; the others are.
//!   [`crate::db::Stats::listeners_lost`] counts such listeners.
//! - A store that closes does not wait for its listeners. Queued events are delivered after the
//!   close, and then the listeners are dropped. If the system could start no thread for the events,
//!   the closing thread delivers them.

mod causes;

pub use causes::{BackgroundErrorReason, BlobFileReason, CompactionReason, StallCause, WriteCause};

use basalt_fs::Error;
use std::path::PathBuf;
use std::time::Duration;

/// Most events that wait for their delivery.
pub const QUEUED_EVENTS: usize = 10_000;

/// A receiver of the events of a store. See the module.
///
/// A listener that holds a [`crate::Db`] keeps the store open until [`crate::Db::close`].
pub trait EventListener: Send + Sync {
    /// Receives an event. Events come one after the other, in the order in which they happened.
    fn on_event(&self, event: &Event);
}

/// An event in a store. More kinds may be added, and more fields to each.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The memtables of all families were sealed: they take no more writes and wait for their
    /// flush.
    #[non_exhaustive]
    MemtableSealed {
        /// Number of the memtable set. Numbers count up from one sealing to the next while the
        /// store is open.
        memtable_set: u64,
        /// Bytes of memory that the memtables take.
        bytes: u64,
    },
    /// A flush has begun.
    #[non_exhaustive]
    FlushBegin {
        /// Number of the memtable set, as in `MemtableSealed`.
        memtable_set: u64,
        /// Bytes of memory that the memtables take.
        bytes: u64,
    },
    /// A flush has ended. Unless it failed, its tables are durable and part of the tree.
    #[non_exhaustive]
    FlushEnd {
        /// Number of the memtable set, as in `MemtableSealed`.
        memtable_set: u64,
        /// The new tables, one for each family that had entries.
        tables: Vec<TableInfo>,
        /// Duration from begin to end.
        took: Duration,
        /// The error of a failed flush. The tree has then not changed, and the store repeats the
        /// flush.
        error: Option<Error>,
    },
    /// The global persistence point of a passive store has risen, see
    /// [`crate::db::Db::persistence_points`].
    #[non_exhaustive]
    Persisted {
        /// The global persistence point: the last transaction of the owner's log that is persisted
        /// in all families.
        global: u64,
        /// The last transaction that was applied.
        applied: u64,
    },
    /// A compaction has begun.
    CompactionBegin(CompactionInfo),
    /// A compaction has ended. Unless it failed, its outputs are durable and part of the tree.
    #[non_exhaustive]
    CompactionEnd {
        /// The compaction, as in `CompactionBegin`.
        compaction: CompactionInfo,
        /// The tables that the compaction wrote, or moved to another level unchanged.
        outputs: Vec<TableInfo>,
        /// Bytes read.
        bytes_read: u64,
        /// Bytes written.
        bytes_written: u64,
        /// Duration from begin to end.
        took: Duration,
        /// The error of a failed compaction. The tree has then not changed, and the store repeats
        /// the compaction. `Closed` and `Cancelled` are no failures of the store.
        error: Option<Error>,
    },
    /// A table has become part of the tree.
    TableCreated(TableInfo),
    /// The file of a table was removed, after its last reader had released it.
    #[non_exhaustive]
    TableDeleted {
        /// The file's number.
        number: u64,
        /// Path of the removed file.
        path: PathBuf,
    },
    /// A blob file has become part of the store.
    BlobFileCreated(BlobFileInfo),
    /// A blob file was removed, after its last reader had released it: garbage collection emptied
    /// it, or no record in it was live. The file of a former log may stay until the next log takes
    /// its space.
    #[non_exhaustive]
    BlobFileDeleted {
        /// The file's number.
        number: u64,
        /// Path of the removed file.
        path: PathBuf,
    },
    /// A garbage collection has begun, which moves the live values of blob files into new ones.
    GcBegin(GcInfo),
    /// A garbage collection has ended. Unless it failed, its targets are durable and part of the
    /// store. It has no targets if no value was live any more.
    #[non_exhaustive]
    GcEnd {
        /// The garbage collection, as in `GcBegin`.
        gc: GcInfo,
        /// The new blob files.
        targets: Vec<BlobFileInfo>,
        /// Bytes read.
        bytes_read: u64,
        /// Bytes written.
        bytes_written: u64,
        /// Duration from begin to end.
        took: Duration,
        /// The error of a failed garbage collection. The store has then not changed, and repeats
        /// the garbage collection. `Closed` and `Cancelled` are no failures of the
        /// store.
        error: Option<Error>,
    },
    /// The store has begun to hold writes back.
    #[non_exhaustive]
    StallBegin {
        /// The cause of the stall, as in [`crate::db::Stats::stalls`].
        cause: StallCause,
    },
    /// A stall has ended: a write was not held back.
    #[non_exhaustive]
    StallEnd {
        /// The cause of the stall, as in `StallBegin`.
        cause: StallCause,
        /// Duration of the stall.
        lasted: Duration,
    },
    /// Background work or the log has failed. The store repeats the work by itself.
    #[non_exhaustive]
    BackgroundError {
        /// The work that failed.
        during: BackgroundErrorReason,
        /// The error of the work.
        error: Error,
    },
}

/// A table of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableInfo {
    /// The family's name.
    pub family: String,
    /// The level that the table entered.
    pub level: usize,
    /// The file's number.
    pub number: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Number of entries, tombstones included.
    pub entries: u64,
}

/// A compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionInfo {
    /// Number of the compaction. Numbers count up while the store is open.
    pub number: u64,
    /// The family's name.
    pub family: String,
    /// The level that the compaction takes tables from.
    pub level: usize,
    /// The level of the outputs.
    pub output_level: usize,
    /// Level and file number of each input table.
    pub inputs: Vec<(usize, u64)>,
    /// Bytes of the input tables.
    pub input_bytes: u64,
    /// The reason for the compaction.
    pub reason: CompactionReason,
    /// True if tables only change their level, and no table is read or written.
    pub trivial_move: bool,
}

/// A blob file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobFileInfo {
    /// The file's number.
    pub number: u64,
    /// Names of the families whose values the file has.
    pub families: Vec<String>,
    /// Bytes of the file, its index included.
    pub bytes: u64,
    /// Number of values in the file.
    pub records: u64,
    /// The work that wrote the file.
    pub reason: BlobFileReason,
}

/// A garbage collection. No two that run at the same time have a source in common.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcInfo {
    /// Numbers of the blob files that the garbage collection empties.
    pub sources: Vec<u64>,
    /// Bytes of these files, indexes included.
    pub source_bytes: u64,
    /// Bytes of the live values in these files.
    pub live_bytes: u64,
}
