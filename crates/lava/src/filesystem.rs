//! [`LavaFs`]: a mounted image as a [`FileSystem`].

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::counters::WriteCause;
use super::file::LavaFile;
use super::meta::ApplyError;
use super::metadata_record::{Ino, InodeKind, JournalRecord};
use super::mounted::MountedFs;
use super::options::LavaOptions;
use super::paths::{apply_error, check_dir, components, create, lookup, lookup_file, parent};
use super::read_batch::{BatchedRead, ReadBatch};
use super::report::{FileReport, Usage};
use super::runs::BLOCK;
use super::state::MountState;
use super::{format, metrics, mount};
use basalt_fs::device::Device;
use basalt_fs::{
    Bytes, DirEntry, ErrorKind, File, FileStat, FileSystem, FsInfo, FsMetric, FsStats, LockGuard,
    LogOptions, ReadCompletions, ReadRequest, Result, Space,
};

/// A mounted image as a [`FileSystem`].
pub struct LavaFs {
    pub(super) shared: Arc<MountedFs>,
}

impl Drop for LavaFs {
    fn drop(&mut self) {
        // After this, the image is free once its files are closed.
        self.shared.maintenance.end();
    }
}

impl LavaFs {
    /// Makes an empty filesystem on a device. All data on the device is lost, so callers ask first.
    ///
    /// Errors: `InvalidArgument` for a device that is smaller than 4 MiB or larger than 32 TiB;
    /// those of the device.
    pub fn format(device: &dyn Device, sparse: bool, name: &Path) -> Result<()> {
        let mut uuid = [0; 16];
        basalt_fs::fill_random(&mut uuid);
        format::format(device, uuid, sparse, name)
    }

    /// Mounts the filesystem on a device.
    ///
    /// Errors: `NotFound` for an empty device, `InvalidArgument` for other content than an image,
    /// `Unsupported` for another version, `Corruption` for a damaged image.
    pub fn mount(device: Arc<dyn Device>, options: &LavaOptions) -> Result<Arc<LavaFs>> {
        let shared = mount::mount(device, options)?;
        if let Some(env) = &options.env
            && !options.read_only
        {
            let weak = Arc::downgrade(&shared);
            shared.maintenance.begin(weak, env.jobs());
        }
        Ok(Arc::new(LavaFs { shared }))
    }

    /// Writes a checkpoint now. A mount then has no journal to read.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Stops all writes and leaves the image as a crash does: for tests and measurements.
    #[doc(hidden)]
    pub fn abandon(&self) {
        self.shared.abandon();
    }

    /// Returns `true` if a checkpoint is due.
    pub fn is_due(&self) -> bool {
        self.shared.is_due()
    }

    /// Discards on the device all free space that was not discarded yet, if the device supports it.
    pub fn discard(&self) {
        while self.shared.discard_some() {}
    }

    /// Takes the blocks that the device has become longer by. Returns their size in bytes. A power
    /// cut meanwhile leaves the old size or the new one.
    ///
    /// Errors: those of [`LavaFs::checkpoint`]; `InvalidArgument` for more than 32 TiB.
    pub fn grow(&self) -> Result<u64> {
        self.shared.grow()
    }

    /// Returns what the metadata has of a file or directory.
    ///
    /// Errors: `NotFound`.
    pub fn describe(&self, path: &Path) -> Result<FileReport> {
        self.shared.describe(path)
    }

    /// Returns the space, the files and the costs of the filesystem.
    pub fn usage(&self) -> Usage {
        self.shared.usage()
    }

    fn handle(
        &self,
        state: &mut MountState,
        ino: Ino,
        path: &Path,
        appends: bool,
    ) -> Result<Arc<dyn File>> {
        let inode = state.open_inode(ino).map_err(|e| apply_error(e, path))?;
        let fs = Arc::clone(&self.shared);
        Ok(Arc::new(LavaFile::new(
            fs,
            inode,
            path.to_path_buf(),
            appends,
        )))
    }

    /// Makes a file and opens it under one lock, so that no other thread can remove it in between.
    fn make(&self, path: &Path, kind: InodeKind) -> Result<Arc<dyn File>> {
        self.shared.check_writable()?;
        self.shared.wait_for_name_space(path)?;
        let file = {
            let mut state = self.shared.state.lock();
            let record = create(&state, path, kind)?;
            state.record(&record).map_err(|e| apply_error(e, path))?;
            let ino = lookup(&state, path)?;
            self.handle(&mut state, ino, path, true)?
        };
        // The next sync reports an error. The file exists.
        let _ = self.shared.commit_if_many_pending();
        Ok(file)
    }

    /// Applies a record that `make` derives from the state. Returns the number of the record.
    fn change(
        &self,
        path: &Path,
        make: impl FnOnce(&MountState) -> Result<JournalRecord>,
    ) -> Result<u64> {
        self.shared.check_writable()?;
        let recorded = {
            let mut state = self.shared.state.lock();
            let record = make(&state)?;
            state.record(&record).map_err(|e| apply_error(e, path))?
        };
        // The next sync reports an error. The change is made.
        let _ = self.shared.commit_if_many_pending();
        Ok(recorded)
    }

    /// Applies a record that makes the metadata larger, after there is space for it.
    fn add(
        &self,
        path: &Path,
        make: impl FnOnce(&MountState) -> Result<JournalRecord>,
    ) -> Result<u64> {
        self.shared.check_writable()?;
        self.shared.wait_for_name_space(path)?;
        self.change(path, make)
    }

    /// Returns the file as one of this mount, if it is one.
    fn own<'f>(&self, file: &'f Arc<dyn File>) -> Option<&'f LavaFile> {
        let file: &LavaFile = file.as_any().downcast_ref()?;
        file.is_on(&self.shared).then_some(file)
    }

    /// Makes a log of the space of an old one.
    fn reuse_log(&self, path: &Path, old: &Path, capacity: u64) -> Result<Arc<dyn File>> {
        self.shared.check_writable()?;
        let before = {
            let state = self.shared.state.lock();
            let ino = lookup_file(&state, old)?;
            state.open.get(&ino).map(|(inode, _)| Arc::clone(inode))
        };
        // All steps that can fail come first, so that an old log that is not reused keeps its name.
        let reusable = {
            let state = self.shared.state.lock();
            let attrs = state.meta.attrs(lookup_file(&state, old)?);
            let attrs = attrs.map_err(|e| apply_error(e, old))?;
            let (dir, name) = parent(&state, path)?;
            attrs.links == 1 && state.meta.find(dir, name).is_none()
        };
        if reusable {
            let there = self.open(old)?;
            let log: &LavaFile = there.as_any().downcast_ref().expect("of this filesystem");
            // A log's space has no holes.
            log.cut_at_hole()?;
            log.grow(capacity, false)?;
        }
        // No append to the old log may run while the space changes hands.
        let _appends = before.as_ref().map(|inode| inode.lock_appends());
        let mut state = self.shared.state.lock();
        let ino = lookup_file(&state, old)?;
        let (dir, name) = parent(&state, old)?;
        let (to_dir, to_name) = parent(&state, path)?;
        let record = JournalRecord::Reuse {
            dir,
            name: name.to_string(),
            to_dir,
            to_name: to_name.to_string(),
        };
        state.record(&record).map_err(|e| apply_error(e, path))?;
        if let Some((inode, _)) = state.open.remove(&ino) {
            inode.recycle();
        }
        self.handle(&mut state, ino, path, true)
    }
}

impl FileSystem for LavaFs {
    fn info(&self) -> FsInfo {
        let facts = &self.shared.facts;
        let mut info = FsInfo::new(format!("LavaFS on {}", facts.description), facts.unit);
        info.read_backend = facts.read_backend;
        info.direct = facts.direct;
        info.own_memory = facts.own_memory;
        info.zeroed = false;
        info
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.make(path, InodeKind::File)
    }

    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        let file = match options.reuse {
            None => self.make(path, InodeKind::Log)?,
            Some(old) => self.reuse_log(path, old, options.capacity)?,
        };
        if options.capacity > file.allocated() {
            let lava: &LavaFile = file.as_any().downcast_ref().expect("just made");
            if let Err(e) = lava.grow(options.capacity, false) {
                // The name of a log without its space is removed again.
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
        let attrs = state.meta.attrs(ino).map_err(|e| apply_error(e, path))?;
        if attrs.kind == InodeKind::Dir {
            return Ok(FileStat {
                len: 0,
                allocated: 0,
                on_disk: 0,
                links: 1,
                is_dir: true,
            });
        }
        let extents = state.meta.extents(ino).map_err(|e| apply_error(e, path))?;
        let (len, allocated) = match state.open.get(&ino) {
            Some((inode, _)) => (inode.pos(), inode.readable()),
            None if attrs.kind == InodeKind::File && !attrs.inexact => (attrs.len, attrs.len),
            None => (attrs.len, attrs.blocks * BLOCK),
        };
        Ok(FileStat {
            len,
            allocated: allocated.max(len),
            on_disk: extents.allocated().blocks * BLOCK,
            links: u64::from(attrs.links),
            is_dir: false,
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let state = self.shared.state.lock();
        let ino = lookup(&state, dir)?;
        check_dir(&state, ino, dir)?;
        let is_dir = |ino| matches!(state.meta.attrs(ino), Ok(f) if f.kind == InodeKind::Dir);
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
        for part in components(dir)? {
            at.push(part);
            let found = lookup(&self.shared.state.lock(), &at);
            match found {
                Ok(ino) => match check_dir(&self.shared.state.lock(), ino, &at) {
                    Ok(()) => {}
                    Err(_) => return Err(apply_error(ApplyError::Exists, dir)),
                },
                Err(e) if e.is_not_found() => {
                    let made = self.add(&at, |state| create(state, &at, InodeKind::Dir));
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
            self.shared.wait_for_name_space(to)?;
        }
        self.change(from, |state| {
            lookup(state, from)?;
            let (dir, name) = parent(state, from)?;
            let (to_dir, to_name) = parent(state, to)?;
            Ok(JournalRecord::Rename {
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
            Ok(JournalRecord::Unlink { dir, name })
        })?;
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.add(to, |state| {
            let ino = lookup_file(state, from)?;
            let (dir, name) = parent(state, to)?;
            let name = name.to_string();
            Ok(JournalRecord::Link { dir, name, ino })
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

    /// Syncs all files of this mount with one transaction and one flush of the device.
    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        let mut ours = Vec::new();
        for f in files {
            match self.own(f) {
                Some(f) => ours.push(f),
                None => f.sync_data()?,
            }
        }
        LavaFile::sync_batch(&ours)
    }

    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        let (mut batched, mut answered) = (Vec::new(), VecDeque::new());
        for (request, r) in reads.into_iter().enumerate() {
            match self.own(&r.file) {
                Some(f) => match f.plan(r.offset, r.len) {
                    (range, _) if range.is_empty() => {
                        answered.push_back((request, Ok(Bytes::new())));
                    }
                    (_, Some(read)) => batched.push(BatchedRead {
                        request,
                        read,
                        path: f.path().to_path_buf(),
                        file: Arc::clone(&r.file),
                    }),
                    (range, None) => answered.push_back((request, f.read_pieces(range))),
                },
                None => answered.push_back((request, r.file.read(r.offset, r.len))),
            }
        }
        Box::new(ReadBatch::submit(&*self.shared.device, batched, answered))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        let key: PathBuf = components(path)?.into_iter().collect();
        let locks = self.shared.locks.lock();
        parent(&self.shared.state.lock(), path)?;
        locks.check_free(&key, path)?;
        if !self.exists(path)? {
            self.add(path, |state| create(state, path, InodeKind::File))?;
        }
        Ok(locks.take(key))
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        let key: PathBuf = components(path)?.into_iter().collect();
        let locks = self.shared.locks.lock();
        if !self.exists(path)? {
            return Ok(None);
        }
        locks.share(key, path).map(Some)
    }

    fn space(&self, _path: &Path) -> Result<Space> {
        let total = self.shared.journal.lock().superblock.blocks;
        let state = self.shared.state.lock();
        Ok(Space {
            total: total * BLOCK,
            free: (state.available() + state.blocks.waiting()) * BLOCK,
        })
    }

    /// Returns the statistics of the device with the writes of appends alone. Writes of metadata
    /// have metrics of their own.
    fn stats(&self) -> FsStats {
        let mut stats = self.shared.device.stats();
        (stats.bytes_written, stats.writes) = self.shared.counters.written(WriteCause::Data);
        stats
    }

    fn metrics(&self) -> Vec<FsMetric> {
        metrics::metrics(&self.shared)
    }
}
