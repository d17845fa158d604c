//! Append-only files for storage engines: the trait [`FileSystem`], what it promises across a
//! power cut, and its implementation on a directory of the host. Under it the contract of block
//! devices ([`device`]), and the memory that blocks lie in.
//!
//! LavaFS, a filesystem of its own on a block device, is the crate `lava`. The simulated disk and
//! device, injected faults and the conformance suite are the crate `sim`, on which only tests depend.
//!
//! # The durability contract
//!
//! Every engine in this house is written against these rules and nothing more. `SimFs` implements
//! the weakest behaviour they allow, so an engine that leans on more fails its tests.
//!
//! 1. **Appended bytes are volatile until [`File::sync_data`] returns `Ok`.** From then on
//!    [`File::read`] returns them after any crash.
//! 2. **Unsynced bytes may persist in any subset of sectors, in any order.** A sector of
//!    [`FsInfo::write_unit`] bytes is written whole or not at all. A sector that was synced is not
//!    written again in the file's life, so later appends cannot harm it: appenders that sync
//!    continue at the next multiple of the write unit.
//! 3. **After a crash [`File::len`] is a hint**: it may be shorter or longer than what was appended.
//!    Reading past it inside the allocated space is legal, and what is there may be zeros, garbage,
//!    or valid records of the space's earlier life. Readers find the end by what records say.
//!    [`File::sync_all`] also makes the length exact.
//! 4. **Create, rename, remove and link survive once [`FileSystem::sync_metadata`] on their
//!    directory returned.** Before that any subset of them may survive, in any order; a rename is
//!    atomic: after a crash the target names the old file or the new one.
//! 5. **A failed sync poisons the file**: whether its unsynced bytes are on the device is unknowable, so
//!    every later append and sync of that handle fails with `Poisoned`. Nothing is retried and believed.
//! 6. **A short or failed append** may have left any part of its bytes in the file past the last
//!    successful append. The handle is poisoned for appends too.
//!
//! # Files
//!
//! - [`FileSystem::create`] makes an append-only file that grows.
//! - [`FileSystem::create_log`] makes a log over space whose content is *already written*, recycled from an
//!   old log or filled with zeros, so that a synced append changes no inode. Reuse begins a new life of
//!   the space: record checksums must bind a fresh file id, because bytes of the earlier life show through.
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

/// What the caller will do after an append, so that the filesystem can choose its way to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// A sync of these bytes follows at once, or they are so many that they had better not wait in the page cache. With direct I/O and bytes
    /// that start and end at multiples of the write unit they go straight to the device.
    Sync,
    /// No sync is planned soon. The bytes survive the death of the process when the call
    /// returns, and a power cut only after a sync.
    Lazy,
    /// More follows, and a sync when all of it is there. The filesystem may keep the bytes in memory of its own and write them beside the caller: they
    /// survive the process's death only after a sync, or once the last handle is gone. A write that fails is told by the next append or
    /// sync of the file.
    Bulk,
}

/// Facts about a filesystem that engines plan by.
#[derive(Debug, Clone)]
pub struct FsInfo {
    /// For people: kind and place, such as `host directory, direct I/O, io_uring`.
    pub description: String,
    /// Bytes that reach the device whole or not at all; commits are padded to a multiple of it.
    /// A power of two from 512 to 4096.
    pub write_unit: usize,
    /// How batched reads are done: `io_uring`, `threads` or `memory`.
    pub read_backend: &'static str,
    /// True when tables and synced logs bypass the operating system's page cache.
    pub direct: bool,
    /// What a read of up to so many bytes returns lies in memory of just its length: to keep a slice of it keeps no more alive.
    /// True of files that are whole on the device, as opened ones are; not of bytes that were just appended lazily.
    pub own_memory: usize,
    /// True when space that a new log gets reads as zeros. Where it is not, bytes of files that are gone show through, as in a reused log.
    pub zeroed: bool,
}

/// Space on the device under a filesystem, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All there is.
    pub total: u64,
    /// What may still be allocated.
    pub free: u64,
}

/// Counters since the filesystem was opened: the process's own accounting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsStats {
    /// Bytes handed to the device or the operating system by appends, padding included.
    pub bytes_written: u64,
    /// Bytes written ahead of need into log space (zeros), not counted in `bytes_written`.
    pub bytes_prewritten: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Read calls that reached the operating system or device.
    pub reads: u64,
    /// Write calls that reached the operating system or device. An unsynced append to a log may need none.
    pub writes: u64,
    /// Data and metadata syncs.
    pub syncs: u64,
}

/// A figure that one kind of filesystem has and others do not, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// In the style of metrics: `lava_free_bytes`.
    pub name: &'static str,
    /// What tells figures of one name apart.
    pub label: Option<(&'static str, &'static str)>,
    /// One line.
    pub help: &'static str,
    /// How much.
    pub value: FigureValue,
}

/// The value of a [`Figure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureValue {
    /// Only grows while the filesystem is open.
    Counter(u64),
    /// Goes up and down.
    Gauge(u64),
    /// Times in microseconds.
    Summary(HistogramSummary),
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Length in bytes, a hint after a crash.
    pub len: u64,
    /// Space that belongs to the file, in bytes: how far reads are legal.
    pub allocated: u64,
    /// What it costs on the device, in bytes: space that was given back in its middle is not counted.
    pub on_disk: u64,
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
    /// The file's metadata.
    pub file: Arc<dyn File>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
}

/// Completions of a batch of reads, in the order they finish. Dropping it waits for what is in flight.
pub trait ReadCompletions: Send {
    /// Waits for the next completion: the request's index in the batch and its result.
    /// `None` when every request was returned.
    fn next(&mut self) -> Option<(usize, Result<Bytes>)>;
    /// Says that whoever asks wants all of them before it goes on: where waiting for each costs a call to the system, this waits for all
    /// with one. What is in flight is then complete, and [`ReadCompletions::next`] returns it at once.
    fn wait_all(&mut self) {}
    /// The next completion if one is ready now.
    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)>;
}

/// An open file. One appender at a time (calls are serialised inside); any number of readers.
pub trait File: Send + Sync {
    /// Appends the buffers one after the other and returns the offset of the first byte. Bytes are volatile
    /// until [`File::sync_data`]; reads through this handle see them at once.
    ///
    /// On a log, an append past its capacity grows the file (slower, never an error by itself).
    ///
    /// A file that grows may get more space than the append needs, at most a 64th of what is free.
    ///
    /// Errors: `NoSpace`, `Io` (both poison appends through this handle), `Poisoned`, `ReadOnly` for a handle
    /// from [`FileSystem::open`].
    fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<u64>;

    /// Moves the append position up to the next multiple of the write unit without writing, so that the next
    /// append touches no sector an earlier sync covered. What lies between is undefined. Returns the new position.
    fn align_to_unit(&self) -> Result<u64>;

    /// Makes all appended bytes survive a power cut. May leave the length a hint.
    fn sync_data(&self) -> Result<()>;

    /// As [`File::sync_data`], and makes the length exact. Through the handle that appends to a log, the
    /// space ahead of the appends goes back.
    fn sync_all(&self) -> Result<()>;

    /// Reads up to `len` bytes at `offset`. Shorter only where the allocated space ends.
    /// The bytes own their memory; no copy is made on the way.
    fn read(&self, offset: u64, len: usize) -> Result<Bytes>;

    /// The append position: exact for a file this handle appended to, a hint for an opened one.
    fn len(&self) -> u64;

    /// True when nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How far reads are legal: the larger of length and prewritten capacity.
    fn allocated(&self) -> u64;

    /// Writes zeros past the present capacity until it is at least `capacity`, durably, so that later
    /// synced appends there touch no metadata. May run beside appends. Only for logs.
    fn extend_log(&self, capacity: u64) -> Result<()>;

    /// A hint: synced appends will go up to about `to`. Where each that grows the file would pay for its space anew, all of it is asked for now; it is
    /// not written, and [`File::sync_all`] gives back what is left. Without effect where nothing is gained, or nothing can be had.
    fn expect_appends(&self, _to: u64) {}

    /// Gives the space of whole blocks inside `range` back. Reads there return zeros, the old bytes or `Corruption`
    /// later.
    ///
    /// The range may lie before, across and behind the append position, cover unsynced bytes, pass the end of the file,
    /// and be released twice. The append position stays. An append into a released block takes space anew: it may meet
    /// `NoSpace` there, and no other error that an append into fresh space would not meet. A filesystem may keep the
    /// block that the append position lies inside of. While an appending handle is open, only that handle releases
    /// space from the append position on.
    ///
    /// Errors: `Io`, `ReadOnly`, `Poisoned`.
    fn release_range(&self, range: Range<u64>) -> Result<()>;

    /// For implementations that must recognise their own files in [`FileSystem::submit_reads`] and
    /// [`FileSystem::sync_files`].
    fn as_any(&self) -> &dyn std::any::Any;
}

/// How a log is made.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions<'a> {
    /// Bytes of written space to have before the call returns; 0 asks for none.
    pub capacity: u64,
    /// An old log of the same filesystem whose space is taken over; it loses its name. Its space counts as written.
    /// `InvalidArgument` when it has a second name. Handles of its earlier life may not write any more.
    pub reuse: Option<&'a Path>,
}

/// Proof that this process holds a store alone; released when dropped or when the process dies.
pub trait LockGuard: Send + Sync {}

/// A filesystem. Paths are relative to its root; absolute host paths are allowed on a host directory.
pub trait FileSystem: Send + Sync {
    /// What kind of filesystem this is.
    fn info(&self) -> FsInfo;

    /// Makes a file to append to. `AlreadyExists` when the name is taken.
    fn create(&self, path: &Path) -> Result<Arc<dyn File>>;

    /// Makes a log over written space, see [`LogOptions`]. The append position is 0.
    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Arc<dyn File>>;

    /// Length, space and kind of a name.
    fn stat(&self, path: &Path) -> Result<FileStat>;

    /// True when the name exists.
    fn exists(&self, path: &Path) -> Result<bool> {
        match self.stat(path) {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The entries of a directory, sorted by name.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;

    /// Makes a directory and what is missing above it. No error when it exists. A directory's name survives
    /// a power cut once [`FileSystem::sync_metadata`] on its parent returned, as any other name.
    fn create_dir(&self, dir: &Path) -> Result<()>;

    /// Renames a file over whatever has the target name, or a directory to a name that nothing has.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file, or an empty directory. Open handles keep reading.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Gives a file a second name.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Makes the directory's creates, renames, removes and links survive a power cut.
    fn sync_metadata(&self, dir: &Path) -> Result<()>;

    /// Syncs the data of several files, with one device flush where the device allows it.
    /// On an error every file it may concern is poisoned.
    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        for f in files {
            f.sync_data()?;
        }
        Ok(())
    }

    /// Starts a batch of reads and returns at once where the kernel can do so.
    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions>;

    /// Takes the exclusive lock named `path`. `Busy` names the holder's process id and command.
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>>;

    /// Takes the lock named `path` together with others who only read, and keeps whoever wants it alone away. Writes nothing, so it
    /// works on a medium that cannot be written. `None` when the lock was never made: then nobody has it, and nobody can be kept
    /// away either. `Busy` when somebody has it alone. Here as if wanted alone.
    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        self.lock(path).map(Some)
    }

    /// Space of the device under `path`.
    fn space(&self, path: &Path) -> Result<Space>;

    /// Counters since the filesystem was opened.
    fn stats(&self) -> FsStats;

    /// Figures that only this kind of filesystem has.
    fn figures(&self) -> Vec<Figure> {
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
