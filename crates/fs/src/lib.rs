//! Append-only files for storage engines: the trait [`FileSystem`], its promises across a power
//! cut, and its implementation on a directory of the host. The crate also has the contract of block
//! devices ([`device`]) and the memory for blocks.
//!
//! LavaFS, a filesystem of its own on a block device, is the crate `lava`. The simulated disk and
//! device, injected faults and the conformance suite are the crate `sim`, on which only tests
//! depend.
//!
//! # The durability contract
//!
//! Every engine of this project is written against these rules and nothing more. `SimFs` implements
//! the weakest behaviour that the rules allow, so an engine that relies on more fails its tests.
//!
//! 1. **Appended bytes are volatile until [`File::sync_data`] returns `Ok`.** From then on,
//!    [`File::read`] returns them after any crash.
//! 2. **Unsynced bytes may persist in any subset of sectors, in any order.** A sector of
//!    [`FsInfo::write_unit`] bytes is written whole or not at all. A sector that was synced is not
//!    written again in the file's life, so later appends cannot harm it: an appender that syncs
//!    continues at the next multiple of the write unit.
//! 3. **After a crash, [`File::len`] is a hint**: it may be shorter or longer than what was
//!    appended. Reading past it inside the allocated space is legal. The bytes there may be zeros,
//!    garbage, or valid records of the space's earlier life. A reader finds the end by the content
//!    of the records. [`File::sync_all`] also makes the length exact.
//! 4. **Create, rename, remove and link survive once [`FileSystem::sync_metadata`] on their
//!    directory returned.** Before that, any subset of them may survive, in any order. A rename is
//!    atomic: after a crash, the target names the old file or the new one.
//! 5. **A failed sync poisons the file.** It cannot be known whether the file's unsynced bytes are
//!    on the device. So every later append and sync of that handle fails with `Poisoned`. No
//!    operation is retried and then believed.
//! 6. **A short or failed append** may have left any part of its bytes in the file past the last
//!    successful append. The handle is poisoned for appends too.
//!
//! # Files
//!
//! - [`FileSystem::create`] makes an append-only file that grows.
//! - [`FileSystem::create_log`] makes a log over space whose content is *already written*. The
//!   space is recycled from an old log or filled with zeros, so that a synced append changes no
//!   inode. Reuse begins a new life of the space. Record checksums must bind a fresh file id,
//!   because bytes of the earlier life show through.
//! - There is no general overwrite.

#![deny(missing_docs)]

mod aligned;
pub mod device;
mod error;
mod histogram;
mod host;
mod pages;
mod slab;

pub use aligned::{ALIGNED_FROM, AlignedBuf, DIRECT_ALIGN};
pub use bytes::Bytes;
pub use error::{Error, ErrorKind, Reach, Result};
pub use histogram::{Histogram, HistogramSummary};
pub use host::{CompletedReads, HostFs, HostOptions, ReadBackend};
pub use pages::{PAGES_FROM, Pages, return_free_pages, slab_usage, slot_size};
pub use slab::{Lifetime, SlabUse};

use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The next step of the caller after an append. The filesystem chooses its way to the device by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// A sync of these bytes follows at once, or the bytes are too many to wait in the page cache.
    /// With direct I/O, bytes that start and end at multiples of the write unit go straight to the
    /// device.
    Sync,
    /// No sync is planned soon. The bytes survive the death of the process when the call
    /// returns, and a power cut only after a sync.
    Lazy,
    /// More appends follow, and a sync after the last one. The filesystem may keep the bytes in its
    /// own memory and write them in another thread. The bytes survive the death of the process only
    /// after a sync, or once the last handle is gone. If such a write fails, the next append or
    /// sync of the file returns the error.
    Bulk,
}

/// Facts about a filesystem that engines plan by.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FsInfo {
    /// Kind and place of the filesystem, for people, such as `host directory, direct I/O,
    /// io_uring`.
    pub description: String,
    /// Bytes that reach the device whole or not at all: a power of two from 512 to 4096. Commits
    /// are padded to a multiple of it.
    pub write_unit: usize,
    /// The way of batched reads: `io_uring`, `threads` or `memory`.
    pub read_backend: &'static str,
    /// True when tables and synced logs bypass the operating system's page cache.
    pub direct: bool,
    /// Largest read, in bytes, whose result lies in memory of exactly its length, so that a kept
    /// slice keeps no more memory alive. This holds for files that are whole on the device, as
    /// opened files are, but not for bytes that were just appended lazily.
    pub own_memory: usize,
    /// True if the space of a new log reads as zeros. If false, bytes of removed files show
    /// through, as in a reused log.
    pub zeroed: bool,
}

impl FsInfo {
    /// Returns the facts about a filesystem with this write unit in bytes. The other facts are
    /// those that promise least: reads from memory, no direct I/O, no memory of exact lengths, and
    /// log space that shows the bytes of removed files.
    pub fn new(description: impl Into<String>, write_unit: usize) -> FsInfo {
        FsInfo {
            description: description.into(),
            write_unit,
            read_backend: "memory",
            direct: false,
            own_memory: 0,
            zeroed: false,
        }
    }
}

/// Space on the device under a filesystem, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All bytes of the device.
    pub total: u64,
    /// Bytes that may still be allocated.
    pub free: u64,
}

/// Counters since the filesystem was opened, as this process counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsStats {
    /// Bytes handed to the device or the operating system by appends, padding included.
    pub bytes_written: u64,
    /// Bytes of zeros that were written ahead into log space. `bytes_written` does not count them.
    pub bytes_prewritten: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Read calls that reached the operating system or device.
    pub reads: u64,
    /// Write calls that reached the operating system or device. An unsynced append to a log may
    /// need no call.
    pub writes: u64,
    /// Data and metadata syncs.
    pub syncs: u64,
}

/// A metric that only one kind of filesystem has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsMetric {
    /// The name, in the style of metrics: `lava_free_bytes`.
    pub name: &'static str,
    /// The key and value of the label that tells metrics of one name apart.
    pub label: Option<(&'static str, &'static str)>,
    /// The help text, one line.
    pub help: &'static str,
    /// Returns the value.
    pub value: FsMetricValue,
}

/// The value of a [`FsMetric`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsMetricValue {
    /// A count that only grows while the filesystem is open.
    Counter(u64),
    /// A level that rises and falls.
    Gauge(u64),
    /// Durations in microseconds.
    Summary(HistogramSummary),
}

/// The file or directory that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Length in bytes, a hint after a crash.
    pub len: u64,
    /// Bytes of space that belong to the file. Reads are legal up to there.
    pub allocated: u64,
    /// Bytes that the file takes on the device. Space that was released inside the file does not
    /// count.
    pub on_disk: u64,
    /// Number of names (hard links) of the file. 1 for a directory.
    pub links: u64,
    /// True for a directory.
    pub is_dir: bool,
}

/// One entry of a directory: its name without the directory, and whether it is a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// File name; never holds a separator.
    pub name: String,
    /// True for a directory.
    pub is_dir: bool,
}

/// One read of a batch.
#[derive(Clone)]
pub struct ReadRequest {
    /// The file.
    pub file: Arc<dyn File>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
    /// How long the bytes that are read stay in memory. A reader that copies what it keeps asks
    /// for [`Lifetime::Brief`], and the bytes may then be part of a buffer half as large again as
    /// the units of the device that have them. A filesystem may ignore it.
    pub lifetime: Lifetime,
}

/// Completions of a batch of reads, in the order in which the reads finish. Dropping it waits for
/// the reads in flight.
pub trait ReadCompletions: Send {
    /// Waits for the next completion, and returns the request's index in the batch and its result.
    /// Returns `None` if every request was returned.
    fn next(&mut self) -> Option<(usize, Result<Bytes>)>;
    /// Announces that the caller needs all reads before it goes on. If each wait costs a call of
    /// the system, this method waits for all reads with one call. All reads in flight are then
    /// complete, and [`ReadCompletions::next`] returns them at once.
    fn wait_all(&mut self) {}
    /// Returns the next completion if one is ready now.
    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)>;
}

/// An open file. It has one appender at a time (calls are serialised inside) and any number of
/// readers.
pub trait File: Send + Sync {
    /// Appends the buffers one after the other and returns the offset of the first byte. Bytes are
    /// volatile until [`File::sync_data`]. Reads through this handle see them at once.
    ///
    /// On a log, an append past its capacity grows the file. That is slower, but never an error by
    /// itself.
    ///
    /// A file that grows may get more space than the append needs, at most a 64th of the free
    /// space.
    ///
    /// Errors: `NoSpace`, `Io` (both poison appends through this handle), `Poisoned`, `ReadOnly`
    /// for a handle from [`FileSystem::open`].
    fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64>;

    /// Moves the append position up to the next multiple of the write unit without writing, and
    /// returns the new position. So the next append touches no sector that an earlier sync covered.
    /// The bytes between the two positions are undefined.
    fn align_to_unit(&self) -> Result<u64>;

    /// Makes all appended bytes survive a power cut. The length may remain a hint.
    fn sync_data(&self) -> Result<()>;

    /// Makes the bytes below `to` survive a power cut, while other threads append behind them. `to`
    /// is a multiple of the write unit. Unlike [`File::sync_data`] the call covers no later bytes,
    /// so appends may go on in the sectors behind `to`.
    fn sync_data_to(&self, _to: u64) -> Result<()> {
        self.sync_data()
    }

    /// Makes all appended bytes survive a power cut, and makes the length exact. Called through the
    /// handle that appends to a log, it also releases the space ahead of the appends.
    fn sync_all(&self) -> Result<()>;

    /// Reads up to `len` bytes at `offset`. The result is shorter only if the allocated space ends.
    /// The bytes own their memory, and are not copied on the way.
    fn read(&self, offset: u64, len: usize) -> Result<Bytes>;

    /// Returns the append position, in bytes. It is exact for a file that this handle appended to,
    /// and a hint for an opened file.
    fn len(&self) -> u64;

    /// Returns true if nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes up to which reads are legal: the larger of the length and the
    /// prewritten capacity.
    fn allocated(&self) -> u64;

    /// Writes zeros past the present capacity, durably, until the capacity is at least `capacity`
    /// bytes. Later synced appends into that space touch no metadata. It may run beside appends.
    /// Only logs allow it.
    fn extend_log(&self, capacity: u64) -> Result<()>;

    /// A hint that synced appends will go up to about `to`. If each append that grows the file
    /// would pay for its space anew, the filesystem allocates all of the space now. It does not
    /// write that space, and [`File::sync_all`] releases the rest of it. The hint has no effect if
    /// it gains nothing, or if the space cannot be allocated.
    fn expect_appends(&self, _to: u64) {}

    /// Releases the space of the whole blocks inside `range`. Reads there return zeros, the old
    /// bytes or `Corruption` later.
    ///
    /// The range may lie before, across and behind the append position, cover unsynced bytes, pass
    /// the end of the file, and be released twice. The append position stays. An append into a
    /// released block takes space anew: it may meet `NoSpace` there, and no other error that an
    /// append into fresh space would not meet. A filesystem may keep the block that the append
    /// position lies inside of. While an appending handle is open, only that handle releases space
    /// from the append position on.
    ///
    /// Errors: `Io`, `ReadOnly`, `Poisoned`.
    fn release_range(&self, range: Range<u64>) -> Result<()>;

    /// Returns the file as [`Any`](std::any::Any), so that an implementation recognises its own
    /// files in [`FileSystem::submit_reads`] and [`FileSystem::sync_files`].
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Options of a new log.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions<'a> {
    /// Bytes of written space that the log has when the call returns. 0 asks for none.
    pub capacity: u64,
    /// An old log of the same filesystem whose space the new log takes over. The old log loses its
    /// name. Its space counts as written. If the old log has a second name, the call fails with
    /// `InvalidArgument`. Handles of the earlier life may not write any more.
    pub reuse: Option<&'a Path>,
}

/// Proof that this process holds a lock. The lock is released when the guard is dropped or when the
/// process dies.
pub trait LockGuard: Send + Sync {}

/// A filesystem. Paths are relative to its root. A host directory also takes absolute host paths.
pub trait FileSystem: Send + Sync {
    /// Returns the facts that engines plan by.
    fn info(&self) -> FsInfo;

    /// Creates a file to append to.
    ///
    /// Errors: `AlreadyExists` if the name is taken.
    fn create(&self, path: &Path) -> Result<Arc<dyn File>>;

    /// Creates a log over written space, as [`LogOptions`] say. The append position is 0.
    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Arc<dyn File>>;

    /// Returns the length, the space, the number of names and the kind of the file or directory at
    /// `path`.
    fn stat(&self, path: &Path) -> Result<FileStat>;

    /// Returns true if the name exists.
    fn exists(&self, path: &Path) -> Result<bool> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns the entries of a directory, sorted by name.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;

    /// Creates a directory and the missing directories above it. An existing directory is no error.
    /// A directory's name survives a power cut once [`FileSystem::sync_metadata`] on its parent
    /// returned, as any other name.
    fn create_dir(&self, dir: &Path) -> Result<()>;

    /// Renames a file, over the file that has the target name if there is one. A directory can be
    /// renamed only to a name that is free.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file, or an empty directory. Open handles continue to read.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Gives a file a second name.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Makes the creates, renames, removes and links in a directory survive a power cut.
    fn sync_metadata(&self, dir: &Path) -> Result<()>;

    /// Syncs the data of several files, with one device flush if the device allows it. On an error,
    /// every file that the error may concern is poisoned.
    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        for f in files {
            f.sync_data()?;
        }
        Ok(())
    }

    /// Starts a batch of reads. Returns at once if the kernel can do so.
    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions>;

    /// Takes the exclusive lock named `path`.
    ///
    /// Errors: `Busy`, with the process id and the command of the holder.
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>>;

    /// Takes the lock named `path` in shared mode, together with other readers, and keeps exclusive
    /// holders out. Writes nothing, so it works on a read-only medium. Returns `None` if the lock
    /// was never created: then no process holds it, and none can be kept out either. The default
    /// implementation takes the lock exclusively.
    ///
    /// Errors: `Busy` if another process holds the lock exclusively.
    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        self.lock(path).map(Some)
    }

    /// Returns the space of the device under `path`.
    fn space(&self, path: &Path) -> Result<Space>;

    /// Returns the counters since the filesystem was opened.
    fn stats(&self) -> FsStats;

    /// Returns the metrics that only this kind of filesystem has.
    fn metrics(&self) -> Vec<FsMetric> {
        Vec::new()
    }
}

/// Fills a buffer with random bytes from the operating system.
pub fn fill_random(buf: &mut [u8]) {
    let mut done = 0;
    while done < buf.len() {
        match rustix::rand::getrandom(&mut buf[done..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("the operating system gives no random numbers: {e}"),
        }
    }
}
