//! LavaFS: an append-only filesystem in user space, on a block device or an image file (LavaStore, 3.3.3; its page-server companion, 6).
//!
//! All metadata is in memory. What changes it is a record in a journal, written when somebody wants it to be durable, and nothing else is ever
//! written for metadata but a checkpoint now and then. A synced append into space that a file has already is the write and one flush.
//!
//! - `layout` what lies where on the device ([`basalt_fs::device`]); `frame` and `record` the bytes of metadata
//! - `meta` all metadata, made of `names`, inodes in a `slab`, and `runs` of blocks
//! - `allocator` the states that blocks are in and how they change; `space` those that are free
//! - `state` what changes under one lock; `commit` how that becomes durable, through `journal`, `checkpoint` and `flush`
//! - `upkeep` the job that writes checkpoints and discards
//! - `paths` what a path leads to; `file` an open file, with `buffer` for appends in bulk; `batch` reads of many
//! - `mount` making and finding a filesystem; `image` the same for tools; `check` proves that one is sound; `report` and `counts` tell of it
//!
//! Why so: `docs/decisions/0025`; the bytes: `docs/format/lava.md`.

#![deny(missing_docs)]

mod allocator;
mod batch;
mod buffer;
mod check;
mod checkpoint;
mod commit;
mod counts;
mod file;
mod flush;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod image;
mod journal;
mod layout;
mod meta;
mod mount;
mod names;
mod paths;
mod record;
mod report;
mod runs;
mod slab;
mod space;
mod state;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use basalt_env::EnvParts;
use basalt_fs::device::{Device, DeviceFacts, DeviceRead};
use basalt_fs::{
    Bytes, DirEntry, Error, ErrorKind, File, FileStat, FileSystem, FsInfo, FsMetric, FsStats,
    LockGuard, LogOptions, ReadCompletions, ReadRequest, Result, Space,
};
use batch::Batch;
use buffer::Writers;
use commit::{Failure, Journal, Progress};
use counts::{Cause, Counts};
use file::LavaFile;
use flush::Flusher;
use layout::Uuid;
use meta::Refusal;
use paths::{check_dir, create, lookup, lookup_file, parent, parts, refused};
use record::{Ino, Kind, Record};
pub use report::{ExtentReport, FileReport, Usage};
use runs::BLOCK;
use state::State;
use upkeep::Upkeep;

/// How an image is mounted.
#[derive(Debug, Clone, Default)]
pub struct LavaOptions {
    /// The image in messages. Default: empty.
    pub name: PathBuf,
    /// Nothing is written. Default: false.
    pub read_only: bool,
    /// The environment that the filesystem will be part of. Jobs of its pool write checkpoints when
    /// they are due and full write buffers, its ledger has the buffers' memory, and its clock times
    /// syncs. If `None`, or if the pool is stepped, the caller who fills a buffer writes it. If
    /// `None`, checkpoints are written by [`LavaFs::checkpoint`] alone, and each run is the same.
    /// Default: `None`.
    pub env: Option<EnvParts>,
}

/// What the filesystem and its open files share.
struct Shared {
    read_only: bool,
    uuid: Uuid,
    facts: DeviceFacts,
    device: Arc<dyn Device>,
    journal: Mutex<Journal>,
    state: Mutex<State>,
    progress: Progress,
    flusher: Flusher,
    failure: Failure,
    checkpointing: Mutex<()>,
    growing: Mutex<()>,
    upkeep: Upkeep,
    /// A discard is done.
    discarded: Condvar,
    counts: Counts,
    /// From so many bytes of records on a transaction is written that nobody asked for.
    relief: u64,
    writers: Writers,
    /// Locks that are held, and how many share each; 0 for one that is held alone.
    locks: Mutex<BTreeMap<PathBuf, usize>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.read_only && self.check_writable().is_ok() {
            // What was not synced may be lost, as after a power cut.
            let _ = self.end();
        }
    }
}

/// A mounted image as a [`FileSystem`].
pub struct LavaFs {
    shared: Arc<Shared>,
}

impl Drop for LavaFs {
    fn drop(&mut self) {
        // When this returns, the image is free once its files are closed.
        self.shared.upkeep.end();
    }
}

impl LavaFs {
    /// Makes an empty filesystem on a device. Whatever it had is gone: callers ask before.
    ///
    /// Errors: `InvalidArgument` when the device is smaller than 4 MiB or larger than 32 TiB, those of the device.
    pub fn format(device: &dyn Device, sparse: bool, name: &Path) -> Result<()> {
        let mut uuid = [0; 16];
        basalt_fs::fill_random(&mut uuid);
        mount::format(device, uuid, sparse, name)
    }

    /// Mounts what a device has.
    ///
    /// Errors: `NotFound` when it has nothing, `InvalidArgument` when that is no image, `Unsupported` for other versions, `Corruption`
    /// for a damaged one.
    pub fn mount(device: Arc<dyn Device>, options: &LavaOptions) -> Result<Arc<LavaFs>> {
        let shared = mount::mount(device, options)?;
        if let Some(env) = &options.env
            && !options.read_only
        {
            let weak = Arc::downgrade(&shared);
            shared.upkeep.begin(weak, env.jobs());
        }
        Ok(Arc::new(LavaFs { shared }))
    }

    /// Writes a checkpoint now: a mount then has no journal to read.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// From now on nothing is written any more, and the image is left as by a crash: for tests and measurements.
    #[doc(hidden)]
    pub fn abandon(&self) {
        self.shared.give_up();
    }

    /// A checkpoint had better be written.
    pub fn is_due(&self) -> bool {
        self.shared.is_due()
    }

    /// Tells the device of all that is free and that it was not told of, where it wants to know.
    pub fn discard(&self) {
        while self.shared.discard_some() {}
    }

    /// Takes what the device has become longer by. Returns by how many bytes; a power cut meanwhile leaves the old size or the new one.
    ///
    /// Errors: those of [`LavaFs::checkpoint`]; `InvalidArgument` when that is more than 32 TiB.
    pub fn grow(&self) -> Result<u64> {
        self.shared.grow()
    }

    fn handle(
        &self,
        state: &mut State,
        ino: Ino,
        path: &Path,
        appends: bool,
    ) -> Result<Arc<dyn File>> {
        let node = state.hold(ino).map_err(|r| refused(r, path))?;
        Ok(Arc::new(LavaFile {
            fs: Arc::clone(&self.shared),
            node,
            path: path.to_path_buf(),
            appends,
        }))
    }

    /// A new file with its handle: nobody comes between.
    fn make(&self, path: &Path, kind: Kind) -> Result<Arc<dyn File>> {
        self.shared.check_writable()?;
        self.shared.room_for_names(path)?;
        let file = {
            let mut state = self.shared.state.lock();
            let record = create(&state, path, kind)?;
            state.record(&record).map_err(|r| refused(r, path))?;
            let ino = lookup(&state, path)?;
            self.handle(&mut state, ino, path, true)?
        };
        // An error concerns the next sync: the file is there.
        let _ = self.shared.relieve();
        Ok(file)
    }

    /// Does what a record says that is made from the state.
    fn change(&self, path: &Path, make: impl FnOnce(&State) -> Result<Record>) -> Result<u64> {
        self.shared.check_writable()?;
        let recorded = {
            let mut state = self.shared.state.lock();
            let record = make(&state)?;
            state.record(&record).map_err(|r| refused(r, path))?
        };
        // An error concerns the next sync: the change is made.
        let _ = self.shared.relieve();
        Ok(recorded)
    }

    /// As [`LavaFs::change`], of what makes the metadata larger.
    fn add(&self, path: &Path, make: impl FnOnce(&State) -> Result<Record>) -> Result<u64> {
        self.shared.check_writable()?;
        self.shared.room_for_names(path)?;
        self.change(path, make)
    }
}

/// A lock inside of the image, which one process has open.
struct LavaLock {
    fs: Weak<Shared>,
    path: PathBuf,
}

impl LockGuard for LavaLock {}

impl Drop for LavaLock {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.upgrade() {
            let mut locks = fs.locks.lock();
            match locks.get_mut(&self.path) {
                Some(n) if *n > 1 => *n -= 1,
                _ => {
                    locks.remove(&self.path);
                }
            }
        }
    }
}

fn held(path: &Path) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "the store is in use by this process itself {}; close the first one, or share it",
            std::process::id()
        ),
    )
    .in_file(path)
}

impl LavaFs {
    /// A file of this mount, not of another.
    fn own<'f>(&self, file: &'f Arc<dyn File>) -> Option<&'f LavaFile> {
        let file: &LavaFile = file.as_any().downcast_ref()?;
        Arc::ptr_eq(&file.fs, &self.shared).then_some(file)
    }

    fn lock_of(&self, path: PathBuf) -> Box<dyn LockGuard> {
        Box::new(LavaLock {
            fs: Arc::downgrade(&self.shared),
            path,
        })
    }
}

impl FileSystem for LavaFs {
    fn info(&self) -> FsInfo {
        let facts = &self.shared.facts;
        FsInfo {
            description: format!("LavaFS on {}", facts.description),
            write_unit: facts.unit,
            read_backend: facts.read_backend,
            direct: facts.direct,
            own_memory: facts.own_memory,
            zeroed: false,
        }
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.make(path, Kind::File)
    }

    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        let file = match options.reuse {
            None => self.make(path, Kind::Log)?,
            Some(old) => {
                self.shared.check_writable()?;
                let before = {
                    let state = self.shared.state.lock();
                    let ino = lookup_file(&state, old)?;
                    state.open.get(&ino).map(|(node, _)| Arc::clone(node))
                };
                // All that can fail comes first: what a caller is told to have failed keeps its name.
                let reusable = {
                    let state = self.shared.state.lock();
                    let facts = state.meta.facts(lookup_file(&state, old)?);
                    let facts = facts.map_err(|r| refused(r, old))?;
                    let (dir, name) = parent(&state, path)?;
                    facts.links == 1 && state.meta.find(dir, name).is_none()
                };
                if reusable {
                    let there = self.open(old)?;
                    let log: &LavaFile = there.as_any().downcast_ref().expect("of this filesystem");
                    // A log's space has no holes.
                    log.cut_at_hole()?;
                    log.grow(options.capacity, false)?;
                }
                // Nobody is in the middle of an append to its earlier life.
                let _still = before.as_ref().map(|node| node.still());
                let mut state = self.shared.state.lock();
                let ino = lookup_file(&state, old)?;
                let (dir, name) = parent(&state, old)?;
                let (to_dir, to_name) = parent(&state, path)?;
                let record = Record::Reuse {
                    dir,
                    name: name.to_string(),
                    to_dir,
                    to_name: to_name.to_string(),
                };
                state.record(&record).map_err(|r| refused(r, path))?;
                if let Some((node, _)) = state.open.remove(&ino) {
                    node.end();
                }
                self.handle(&mut state, ino, path, true)?
            }
        };
        if options.capacity > file.allocated() {
            let lava: &LavaFile = file.as_any().downcast_ref().expect("just made");
            if let Err(e) = lava.grow(options.capacity, false) {
                // A log that could not be made does not keep its name.
                if options.reuse.is_none() {
                    let _ = self.remove(path);
                }
                return Err(e.context("creating a log"));
            }
        }
        Ok(file)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        let mut state = self.shared.state.lock();
        let ino = lookup_file(&state, path)?;
        self.handle(&mut state, ino, path, false)
    }

    fn stat(&self, path: &Path) -> Result<FileStat> {
        let state = self.shared.state.lock();
        let ino = lookup(&state, path)?;
        let facts = state.meta.facts(ino).map_err(|r| refused(r, path))?;
        if facts.kind == Kind::Dir {
            return Ok(FileStat {
                len: 0,
                allocated: 0,
                on_disk: 0,
                is_dir: true,
            });
        }
        let extents = state.meta.extents(ino).map_err(|r| refused(r, path))?;
        let (len, allocated) = match state.open.get(&ino) {
            Some((node, _)) => node.sizes(),
            None if facts.kind == Kind::File && !facts.vague => (facts.len, facts.len),
            None => (facts.len, facts.blocks * BLOCK),
        };
        Ok(FileStat {
            len,
            allocated: allocated.max(len),
            on_disk: extents.placed().blocks * BLOCK,
            is_dir: false,
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let state = self.shared.state.lock();
        let ino = lookup(&state, dir)?;
        check_dir(&state, ino, dir)?;
        let is_dir = |ino| matches!(state.meta.facts(ino), Ok(f) if f.kind == Kind::Dir);
        let children = state.meta.children(ino);
        let mut entries: Vec<DirEntry> = children
            .map(|(name, ino)| DirEntry {
                name: name.to_string(),
                is_dir: is_dir(ino),
            })
            .collect();
        entries.sort();
        Ok(entries)
    }

    fn create_dir(&self, dir: &Path) -> Result<()> {
        let mut at = PathBuf::new();
        for part in parts(dir)? {
            at.push(part);
            let found = lookup(&self.shared.state.lock(), &at);
            match found {
                Ok(ino) => match check_dir(&self.shared.state.lock(), ino, &at) {
                    Ok(()) => {}
                    Err(_) => return Err(refused(Refusal::Taken, dir)),
                },
                Err(e) if e.is_not_found() => {
                    let made = self.add(&at, |state| create(state, &at, Kind::Dir));
                    match made {
                        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                        other => {
                            other?;
                        }
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let name = |path: &Path| path.file_name().map_or(0, |n| n.len());
        if name(to) > name(from) {
            self.shared.room_for_names(to)?;
        }
        self.change(from, |state| {
            lookup(state, from)?;
            let (dir, name) = parent(state, from)?;
            let (to_dir, to_name) = parent(state, to)?;
            Ok(Record::Rename {
                dir,
                name: name.to_string(),
                to_dir,
                to_name: to_name.to_string(),
            })
        })?;
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.change(path, |state| {
            lookup(state, path)?;
            let (dir, name) = parent(state, path)?;
            let name = name.to_string();
            Ok(Record::Unlink { dir, name })
        })?;
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.add(to, |state| {
            let ino = lookup_file(state, from)?;
            let (dir, name) = parent(state, to)?;
            let name = name.to_string();
            Ok(Record::Link { dir, name, ino })
        })?;
        Ok(())
    }

    fn sync_metadata(&self, dir: &Path) -> Result<()> {
        {
            let state = self.shared.state.lock();
            let ino = lookup(&state, dir)?;
            check_dir(&state, ino, dir)?;
        }
        self.shared.sync_all_metadata()
    }

    /// One transaction and one flush stand for all files of this image.
    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        let mut ours = Vec::new();
        for f in files {
            match self.own(f) {
                Some(f) => ours.push(f),
                None => f.sync_data()?,
            }
        }
        LavaFile::sync_together(&ours)
    }

    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        let mut device_reads: Vec<DeviceRead> = Vec::new();
        let mut batch = Batch {
            inner: Box::new(basalt_fs::CompletedReads(VecDeque::new())),
            of: Vec::new(),
            paths: Vec::new(),
            done: VecDeque::new(),
            _files: Vec::new(),
        };
        for (i, r) in reads.into_iter().enumerate() {
            match self.own(&r.file) {
                Some(f) => match f.plan(r.offset, r.len) {
                    (range, _) if range.is_empty() => batch.done.push_back((i, Ok(Bytes::new()))),
                    (_, Some(read)) => {
                        device_reads.push(read);
                        batch.of.push(i);
                        batch.paths.push(f.path.clone());
                        batch._files.push(Arc::clone(&r.file));
                    }
                    (range, None) => batch.done.push_back((i, f.gather(range))),
                },
                None => batch.done.push_back((i, r.file.read(r.offset, r.len))),
            }
        }
        if !device_reads.is_empty() {
            batch.inner = self.shared.device.submit_reads(device_reads);
        }
        Box::new(batch)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        let key: PathBuf = parts(path)?.into_iter().collect();
        let mut locks = self.shared.locks.lock();
        parent(&self.shared.state.lock(), path)?;
        if locks.contains_key(&key) {
            return Err(held(path));
        }
        if !self.exists(path)? {
            self.add(path, |state| create(state, path, Kind::File))?;
        }
        locks.insert(key.clone(), 0);
        Ok(self.lock_of(key))
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let key: PathBuf = parts(path)?.into_iter().collect();
        let mut locks = self.shared.locks.lock();
        if !self.exists(path)? {
            return Ok(None);
        }
        match locks.get_mut(&key) {
            None => {
                locks.insert(key.clone(), 1);
            }
            Some(0) => return Err(held(path)),
            Some(n) => *n += 1,
        }
        Ok(Some(self.lock_of(key)))
    }

    fn space(&self, _path: &Path) -> Result<Space> {
        let total = self.shared.journal.lock().superblock.blocks;
        let state = self.shared.state.lock();
        Ok(Space {
            total: total * BLOCK,
            free: (state.available() + state.blocks.waiting()) * BLOCK,
        })
    }

    /// Writes are those of appends: metadata has figures of its own.
    fn stats(&self) -> FsStats {
        let (bytes_written, writes) = self.shared.counts.of(Cause::Data);
        FsStats {
            bytes_written,
            writes,
            ..self.shared.device.stats()
        }
    }

    fn metrics(&self) -> Vec<FsMetric> {
        self.all_metrics()
    }
}
