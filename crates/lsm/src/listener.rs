//! Listeners: user code that is told what a store does in the background.
//!
//! Events are queued where they happen and told in that order, each to all listeners, by one thread that lives as long as
//! there is something to tell (on a stepped environment, by whoever calls [`crate::Db::wait_for_listeners`], or closes). No lock of the store is held meanwhile, so a listener may call
//! anything of it, reads and writes too, but for waiting for events. What a listener does cannot hold up the store:
//!
//! - One that blocks holds up later events only, of its own store. Of those that wait at most [`QUEUED_EVENTS`] are kept, the
//!   oldest go first, and [`crate::db::Stats::events_lost`] counts them.
//! - One that panics is never called again; the others are. [`crate::db::Stats::listeners_lost`] counts them.
//! - A store that closes does not wait for its listeners: what is queued is told after it, and then the listeners are let go.

use basalt_fs::Error;
use std::path::PathBuf;
use std::time::Duration;

/// Events that wait for a listener at most.
pub const QUEUED_EVENTS: usize = 10_000;

/// Is told what a store does. See the module.
///
/// A listener that holds a [`crate::Db`] keeps the store open: end it with [`crate::Db::close`].
pub trait EventListener: Send + Sync {
    /// Something has happened. Events come one after the other, in the order in which they happened.
    fn on_event(&self, event: &Event);
}

/// What has happened. More kinds may be added.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// Memtables of all families take no more writes and wait for their flush.
    MemtableSealed {
        /// Counts up from one sealing to the next in the life of an open store.
        generation: u64,
        /// Their bytes of memory.
        bytes: u64,
    },
    /// A flush begins.
    FlushBegin {
        /// As in `MemtableSealed`.
        generation: u64,
        /// Bytes of memory of its memtables.
        bytes: u64,
    },
    /// A flush has ended. Its tables are durable and part of the tree, unless it failed.
    FlushEnd {
        /// As in `MemtableSealed`.
        generation: u64,
        /// One for each family that had something to write out.
        tables: Vec<TableInfo>,
        /// How long it took.
        took: Duration,
        /// Why it failed; then nothing has changed, and it is tried again.
        error: Option<Error>,
    },
    /// A compaction begins.
    CompactionBegin(CompactionInfo),
    /// A compaction has ended; its outputs are durable and part of the tree, unless it failed.
    CompactionEnd {
        /// As at its beginning.
        compaction: CompactionInfo,
        /// What it made, or moved down unchanged.
        outputs: Vec<TableInfo>,
        /// Bytes that it read.
        bytes_read: u64,
        /// Bytes that it wrote.
        bytes_written: u64,
        /// How long it took.
        took: Duration,
        /// Why it failed; then nothing has changed, and it is tried again. `Closed` and `Cancelled` are no failures of the store.
        error: Option<Error>,
    },
    /// A table has become part of the tree.
    TableCreated(TableInfo),
    /// The file of a table that nobody reads any more was removed.
    TableDeleted {
        /// The file's number.
        number: u64,
        /// Where it was.
        path: PathBuf,
    },
    /// A blob file has become part of the store.
    BlobFileCreated(BlobFileInfo),
    /// The file of a blob file that nobody reads any more was removed: it was collected, or nothing in it was alive. One that was a log may be there
    /// as long as its space waits for the next log.
    BlobFileDeleted {
        /// The file's number.
        number: u64,
        /// Where it was.
        path: PathBuf,
    },
    /// A collection begins: what is alive of some blob files is about to move into new ones.
    CollectionBegin(CollectionInfo),
    /// A collection has ended; its targets are durable and part of the store, unless it failed. It may have none, when nothing was
    /// alive any more.
    CollectionEnd {
        /// As at its beginning.
        collection: CollectionInfo,
        /// What it made.
        targets: Vec<BlobFileInfo>,
        /// Bytes that it read.
        bytes_read: u64,
        /// Bytes that it wrote.
        bytes_written: u64,
        /// How long it took.
        took: Duration,
        /// Why it failed; then nothing has changed, and it is tried again. `Closed` is no failure of the store.
        error: Option<Error>,
    },
    /// Writes are held back from here on.
    StallBegin {
        /// As in [`crate::db::Stats::stalls`].
        cause: &'static str,
    },
    /// A write got through that was not held back.
    StallEnd {
        /// As at its beginning.
        cause: &'static str,
        /// The time since then.
        lasted: Duration,
    },
    /// Background work has failed, or the log. The store tries again by itself.
    BackgroundError {
        /// `flush`, `compaction`, `collection`, `log` or `manifest`.
        during: &'static str,
        /// What was met.
        error: Error,
    },
}

/// A table of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// The family's name.
    pub family: String,
    /// The level that it entered.
    pub level: usize,
    /// The file's number.
    pub number: u64,
    /// The file's bytes.
    pub bytes: u64,
    /// Entries, tombstones included.
    pub entries: u64,
}

/// A compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionInfo {
    /// Counts up in the life of an open store.
    pub number: u64,
    /// The family's name.
    pub family: String,
    /// The level that it takes tables from.
    pub level: usize,
    /// Where its outputs go.
    pub output_level: usize,
    /// Numbers of the tables that it merges, with their level.
    pub inputs: Vec<(usize, u64)>,
    /// Bytes of these.
    pub input_bytes: u64,
    /// Why it runs, in a few words.
    pub reason: &'static str,
    /// Tables only change their level; nothing is read or written.
    pub trivial_move: bool,
}

/// A blob file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobFileInfo {
    /// The file's number.
    pub number: u64,
    /// The names of the families whose values it has.
    pub families: Vec<String>,
    /// Its bytes, its index included.
    pub bytes: u64,
    /// Values in it.
    pub records: u64,
    /// What made it: `flush`, `compaction`, `collection` or `ingest`.
    pub reason: &'static str,
}

/// A collection. No two that run have a source in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionInfo {
    /// Numbers of the blob files that it empties.
    pub sources: Vec<u64>,
    /// Their bytes, indexes included.
    pub source_bytes: u64,
    /// Bytes of what is alive in them.
    pub live_bytes: u64,
}
