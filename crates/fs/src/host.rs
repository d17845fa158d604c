//! `HostFs`: a directory of a kernel filesystem.
//!
//! It owns nothing but descriptors: every name and byte belongs to the kernel. It keeps the
//! durability contract of the crate root with the calls `fdatasync` (data) and `fsync` (length,
//! directories), and with log space that is written before it is used. So a synced append into that
//! space is one device write and one flush. The reasons are in `docs/decisions/0003`.
//!
//! - `file` one open file; `append` ways to the device, one of them `mmap_append`; `space` written
//!   log space
//! - `read` one read; `uring` and `read_pool` batches of reads
//! - `stage` memory for direct transfers; `sys` the calls that move bytes
//! - `probe` what the device can do; `lock` the store's lock
//!
//! Rules for sharing files: the space ahead of a log's append position belongs to the handle that
//! appends, and no other code releases, cuts or reuses it. A log is reused only after the last
//! handle that appends to it is gone.

mod append;
mod file;
mod fill;
mod lock;
mod mmap_append;
mod probe;
mod read;
mod read_pool;
mod space;
mod stage;
mod sys;
#[cfg(test)]
mod tests;
mod uring;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::{
    Bytes, DIRECT_ALIGN, DirEntry, Error, File, FileStat, FileSystem, FsInfo, FsStats, LockGuard,
    LogOptions, ReadCompletions, ReadRequest, Result, Space,
};
use file::{HostFile, Kind, OpenedFile};
pub(crate) use lock::holder;
use probe::VolumeFacts;
pub(crate) use probe::{FileFacts, file_facts};
pub(crate) use stage::Stages;
pub(crate) use sys::{Account, Sys};

/// The way of batched reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadBackend {
    /// `io_uring` if the kernel offers it, and a pool of threads otherwise.
    #[default]
    Auto,
    /// `io_uring`. If the kernel does not offer it, opening the filesystem fails.
    IoUring,
    /// A pool of threads.
    Threads,
}

/// Options for using a host directory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostOptions {
    /// The directory that relative paths start from. It need not exist yet: `create_dir("")`
    /// creates it. Default: the working directory.
    pub root: PathBuf,
    /// If true, tables and synced logs bypass the page cache if the filesystem allows it. Default:
    /// true.
    pub direct: bool,
    /// Smallest write unit in bytes, a power of two from 512 to 4096. It is raised to the device's
    /// logical block size if direct I/O works. Default: 512.
    pub write_unit: usize,
    /// The way of batched reads. Default: [`ReadBackend::Auto`].
    pub read_backend: ReadBackend,
    /// Most threads that read at a time if io_uring is not used. They start when needed and end
    /// when idle. Default: 8.
    pub read_threads: usize,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            root: PathBuf::from("."),
            direct: true,
            write_unit: 512,
            read_backend: ReadBackend::Auto,
            read_threads: 8,
        }
    }
}

impl HostOptions {
    /// Returns the default options for a directory.
    pub fn new(root: impl Into<PathBuf>) -> HostOptions {
        HostOptions {
            root: root.into(),
            ..HostOptions::default()
        }
    }

    /// Sets [`HostOptions::direct`].
    pub fn direct(mut self, direct: bool) -> HostOptions {
        self.direct = direct;
        self
    }

    /// Sets [`HostOptions::write_unit`].
    pub fn write_unit(mut self, bytes: usize) -> HostOptions {
        self.write_unit = bytes;
        self
    }

    /// Sets [`HostOptions::read_backend`].
    pub fn read_backend(mut self, backend: ReadBackend) -> HostOptions {
        self.read_backend = backend;
        self
    }

    /// Sets [`HostOptions::read_threads`].
    pub fn read_threads(mut self, threads: usize) -> HostOptions {
        self.read_threads = threads;
        self
    }
}

/// The implementation of batched reads.
enum Reader {
    /// The rings, and the threads for when no further ring can be created.
    Ring(uring::RingPool, Arc<read_pool::ReadPool>),
    Threads(Arc<read_pool::ReadPool>),
}

/// The state that a filesystem and its open files share.
struct HostShared {
    /// The directory that relative paths start from.
    root: PathBuf,
    /// True if the options ask for direct I/O.
    want_direct: bool,
    /// Write unit, in bytes.
    unit: usize,
    sys: Sys,
    stages: Stages,
    /// Facts by device number, because absolute paths may lead to other filesystems than the
    /// root's.
    volumes: Mutex<BTreeMap<u64, VolumeFacts>>,
    reader: Reader,
    info: FsInfo,
}

/// A directory of a kernel filesystem as a [`FileSystem`].
pub struct HostFs {
    shared: Arc<HostShared>,
}

const NEW_FILE: Mode = Mode::from_raw_mode(0o644);
const NEW_DIR: Mode = Mode::from_raw_mode(0o755);

impl HostFs {
    /// Opens a directory. Tests whether the directory takes direct I/O and whether the kernel
    /// offers io_uring; [`FileSystem::info`] reports both. Leaves no written bytes behind.
    ///
    /// Errors: `InvalidArgument` for a write unit outside its limits, `Unsupported` if io_uring is
    /// demanded and not offered.
    pub fn new(options: HostOptions) -> Result<Arc<HostFs>> {
        let least = options.write_unit;
        if !least.is_power_of_two() || !(512..=4096).contains(&least) {
            return Err(Error::invalid(format!(
                "the write unit is {least} bytes; it must be a power of two from 512 to 4096"
            )));
        }
        let near = probe::existing_ancestor(&options.root);
        let mut volumes = BTreeMap::new();
        let mut refusal = "not asked for";
        let mut unit = least;
        let mut direct = false;
        if options.direct {
            let volume = probe::probe(&near);
            if let Ok(s) = rustix::fs::stat(&near) {
                volumes.insert(s.st_dev, volume);
            }
            match volume.direct {
                Ok(align) => {
                    direct = true;
                    unit = least.max(align.offset);
                }
                Err(reason) => refusal = reason,
            }
        }
        let pool = read_pool::ReadPool::new(options.read_threads.max(1));
        let ring = match options.read_backend {
            ReadBackend::Threads => None,
            ReadBackend::Auto => uring::RingPool::probe().ok(),
            ReadBackend::IoUring => Some(uring::RingPool::probe().map_err(|e| {
                Error::unsupported(format!(
                    "the kernel offers no io_uring ({e}); choose the read backend `threads` or `auto`"
                ))
            })?),
        };
        let (read_backend, reader) = match ring {
            Some(ring) => ("io_uring", Reader::Ring(ring, pool)),
            None => ("threads", Reader::Threads(pool)),
        };
        let way = if direct {
            "direct I/O".to_string()
        } else {
            format!("page cache (direct I/O: {refusal})")
        };
        let info = FsInfo {
            description: format!(
                "host directory {}, {way}, write unit {unit}, {read_backend}",
                options.root.display()
            ),
            write_unit: unit,
            read_backend,
            direct,
            own_memory: if direct { read::COPIED_MAX } else { 0 },
            zeroed: true,
        };
        Ok(Arc::new(HostFs {
            shared: Arc::new(HostShared {
                root: options.root,
                want_direct: options.direct,
                unit,
                sys: Sys::default(),
                stages: Stages::default(),
                volumes: Mutex::new(volumes),
                reader,
                info,
            }),
        }))
    }

    fn host_path(&self, path: &Path) -> PathBuf {
        let p = self.shared.root.join(path);
        if p.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            p
        }
    }

    /// Returns the facts about the device of a file in the directory of `path`.
    fn volume(&self, dev: u64, path: &Path) -> VolumeFacts {
        let mut volumes = self.shared.volumes.lock();
        *volumes.entry(dev).or_insert_with(|| {
            probe::probe(&probe::existing_ancestor(path.parent().unwrap_or(path)))
        })
    }

    /// Returns the descriptors of a file that was opened through the page cache. Adds the one for
    /// direct I/O if that works.
    fn with_direct(&self, path: &Path, flags: OFlags, buffered: OwnedFd) -> Result<OpenedFile> {
        let facts = probe::file_facts(buffered.as_fd())
            .map_err(|e| Error::io("reading the metadata of an opened file", path, e.into()))?;
        let mut opened = OpenedFile {
            buffered: Some(buffered),
            direct: None,
            facts,
            overwrites_in_place: false,
        };
        if !self.shared.want_direct {
            return Ok(opened);
        }
        let volume = match opened.facts.is_block_device {
            // The directory of a block device's name belongs to another filesystem.
            true => probe::of_block_device(),
            false => self.volume(opened.facts.dev, path),
        };
        let (Ok(of_volume), true) = (volume.direct, opened.facts.direct != Some(None)) else {
            return Ok(opened);
        };
        let align = opened.facts.direct.flatten().unwrap_or(of_volume);
        if align.offset > self.shared.unit || align.memory > DIRECT_ALIGN {
            return Ok(opened);
        }
        if let Ok(fd) = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            // Another process may have put another file at the name between the two calls.
            let same = probe::file_facts(fd.as_fd())
                .is_ok_and(|f| (f.dev, f.ino) == (opened.facts.dev, opened.facts.ino));
            if same {
                opened.direct = Some((fd, align));
                opened.overwrites_in_place = volume.overwrites_in_place;
            }
        }
        Ok(opened)
    }

    fn create_new(&self, path: &Path, kind: Kind) -> Result<HostFile> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, NEW_FILE)
            .map_err(|e| Error::io("creating a file", path, e.into()))?;
        let opened = self.with_direct(path, flags, fd)?;
        let shared = Arc::clone(&self.shared);
        Ok(HostFile::new(shared, path.to_path_buf(), kind, opened))
    }

    fn new_log(&self, path: &Path, capacity: u64) -> Result<HostFile> {
        let file = self.create_new(path, Kind::Log)?;
        if capacity == 0 {
            return Ok(file);
        }
        if let Err(e) = file.write_space(capacity) {
            // A log that could not be created keeps neither its name nor the space it got so far.
            let _ = rustix::fs::unlink(path);
            return Err(e.context("creating a log"));
        }
        file.allow_windows();
        Ok(file)
    }

    fn reuse_log(&self, path: &Path, old: &Path, capacity: u64) -> Result<HostFile> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(old, flags, Mode::empty())
            .map_err(|e| Error::io("opening a log for reuse", old, e.into()))?;
        if rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok() {
            return Err(Error::io("creating a log", path, Errno::EXIST.into()));
        }
        let opened = self.with_direct(old, flags, fd)?;
        if opened.facts.links > 1 {
            return Err(Error::invalid(
                "a log with a second name cannot be reused: the other name would lose its content",
            )
            .in_file(old));
        }
        let shared = Arc::clone(&self.shared);
        let mut file = HostFile::new(shared, old.to_path_buf(), Kind::Log, opened);
        file.adopt_space(capacity)
            .map_err(|e| e.context("reusing a log"))?;
        rename_new(old, path).map_err(|e| Error::io("renaming a reused log", path, e.into()))?;
        file.set_path(path.to_path_buf());
        Ok(file)
    }
}

/// Renames a file to a name that must be free.
fn rename_new(from: &Path, to: &Path) -> rustix::io::Result<()> {
    use rustix::fs::CWD;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some filesystems do not know the flag. The caller has checked the name before.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(from, to),
        other => other,
    }
}

fn sync_dir(dir: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty())?;
    rustix::fs::fsync(fd)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// A batch of reads that are complete when the batch is made: the requests' indices and results, in
/// the order in which [`ReadCompletions::next`] returns them.
pub struct CompletedReads(pub VecDeque<(usize, Result<Bytes>)>);

impl ReadCompletions for CompletedReads {
    fn next(&mut self) -> Option<(usize, Result<Bytes>)> {
        self.0.pop_front()
    }
    fn try_next(&mut self) -> Option<(usize, Result<Bytes>)> {
        self.0.pop_front()
    }
}

impl FileSystem for HostFs {
    fn info(&self) -> FsInfo {
        self.shared.info.clone()
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        Ok(Arc::new(
            self.create_new(&self.host_path(path), Kind::Growing)?,
        ))
    }

    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        let path = self.host_path(path);
        let log = match options.reuse {
            None => self.new_log(&path, options.capacity)?,
            Some(old) => self.reuse_log(&path, &self.host_path(old), options.capacity)?,
        };
        Ok(Arc::new(log))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        let path = self.host_path(path);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let error = |e: Errno| Error::io("opening a file", &path, e.into());
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(error)?;
        let mut opened = self.with_direct(&path, flags, fd)?;
        if opened.facts.is_dir {
            return Err(error(Errno::ISDIR));
        }
        if opened.direct.is_some() {
            // A reader needs only one descriptor.
            opened.buffered = None;
        }
        let shared = Arc::clone(&self.shared);
        Ok(Arc::new(HostFile::new(
            shared,
            path,
            Kind::ReadOnly,
            opened,
        )))
    }

    fn stat(&self, path: &Path) -> Result<FileStat> {
        let path = self.host_path(path);
        let s = rustix::fs::stat(&path)
            .map_err(|e| Error::io("reading the metadata", &path, e.into()))?;
        let len = u64::try_from(s.st_size).unwrap_or(0);
        let is_dir = FileType::from_raw_mode(s.st_mode) == FileType::Directory;
        #[allow(clippy::useless_conversion, reason = "some machines have 32 bits")]
        let names = u64::from(s.st_nlink);
        Ok(FileStat {
            len,
            allocated: len,
            on_disk: u64::try_from(s.st_blocks).unwrap_or(0) * 512,
            // The system also counts the entries `.` and `..` of directories.
            links: if is_dir { 1 } else { names },
            is_dir,
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let dir = self.host_path(dir);
        let error = |e: Errno| Error::io("listing a directory", &dir, e.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&dir, flags, Mode::empty()).map_err(error)?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_dir = match entry.file_type() {
                // Some filesystems do not store the type in the directory, and a link has the type
                // of its target.
                FileType::Unknown | FileType::Symlink => {
                    match rustix::fs::statat(&fd, name, AtFlags::empty()) {
                        Ok(s) => FileType::from_raw_mode(s.st_mode) == FileType::Directory,
                        // The entry was removed meanwhile, or is a link without a target.
                        Err(Errno::NOENT) => false,
                        Err(e) => return Err(error(e)),
                    }
                }
                t => t == FileType::Directory,
            };
            entries.push(DirEntry {
                name: name.to_string_lossy().into_owned(),
                is_dir,
            });
        }
        entries.sort();
        Ok(entries)
    }

    /// Creates a directory. Every directory that it creates is durable in its parent when the call
    /// returns.
    fn create_dir(&self, dir: &Path) -> Result<()> {
        let dir = self.host_path(dir);
        let mut missing = Vec::new();
        for d in dir.ancestors() {
            if d.as_os_str().is_empty() {
                break;
            }
            match rustix::fs::stat(d) {
                Ok(s) if FileType::from_raw_mode(s.st_mode) == FileType::Directory => break,
                Ok(_) => {
                    let e = Error::io("creating a directory", d, Errno::EXIST.into());
                    return Err(e.context("a file has this name"));
                }
                Err(Errno::NOENT) => missing.push(d),
                Err(e) => return Err(Error::io("creating a directory", d, e.into())),
            }
        }
        for d in missing.into_iter().rev() {
            match rustix::fs::mkdir(d, NEW_DIR) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(Error::io("creating a directory", d, e.into())),
            }
            let above = parent_of(d);
            sync_dir(above)
                .map_err(|e| Error::io("making a new directory durable in", above, e.into()))?;
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.host_path(from), self.host_path(to));
        rustix::fs::rename(&from, &to).map_err(|e| {
            let what = format!("renaming to {}", to.display());
            Error::io(&what, &from, e.into())
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let path = self.host_path(path);
        match rustix::fs::unlink(&path) {
            Err(Errno::ISDIR) => rustix::fs::rmdir(&path),
            other => other,
        }
        .map_err(|e| Error::io("removing", &path, e.into()))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.host_path(from), self.host_path(to));
        rustix::fs::link(&from, &to).map_err(|e| {
            // The kernel reports "forbidden" for a name of the wrong kind.
            #[expect(clippy::disallowed_methods, reason = "this is the host's filesystem")]
            let e = if e == Errno::PERM && from.is_dir() {
                Errno::ISDIR
            } else {
                e
            };
            let what = format!("linking as {}", to.display());
            Error::io(&what, &from, e.into())
        })
    }

    fn sync_metadata(&self, dir: &Path) -> Result<()> {
        let dir = self.host_path(dir);
        self.shared
            .sys
            .fsync_dir(|| sync_dir(&dir))
            .map_err(|e| Error::io("syncing a directory", &dir, e.into()))
    }

    /// Syncs several files of one device with one `fdatasync`, if each of them only had direct
    /// writes into its written space since its last sync.
    ///
    /// Such a write has reached the device's cache when it returns, and changed no metadata that a
    /// read needs. The flush at the end of `fdatasync` of *any* file on that device makes it
    /// durable (ext4 always sends one, or waits for a journal commit that does). If the kernel had
    /// to take a direct write through the page cache, the write call waited for that as well. Every
    /// other file is synced by itself.
    fn sync_files(&self, files: &[Arc<dyn File>]) -> Result<()> {
        let hosts: Vec<&HostFile> = files
            .iter()
            .filter_map(|f| f.as_any().downcast_ref::<HostFile>())
            .collect();
        for f in &hosts {
            // This error is known before any call, so it concerns none of the other files.
            f.check_syncs()?;
        }
        let run = || -> Result<()> {
            for f in files {
                if !f.as_any().is::<HostFile>() {
                    f.sync_data()?;
                }
            }
            let mut flushed = Vec::new();
            let (light, heavy): (Vec<&HostFile>, Vec<&HostFile>) =
                hosts.iter().partition(|f| f.flush_is_enough());
            for f in heavy {
                f.sync_now(false)?;
                if f.flushes_device() {
                    flushed.push(f.dev);
                }
            }
            for f in light {
                if !flushed.contains(&f.dev) {
                    f.sync_now(false)?;
                    flushed.push(f.dev);
                }
            }
            Ok(())
        };
        run().inspect_err(|e| {
            // The flush was for all files, so the failure may concern each of them.
            for f in &hosts {
                f.fail_syncs(e);
            }
        })
    }

    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        let ours = reads.iter().all(|r| r.file.as_any().is::<HostFile>());
        if reads.len() <= 1 || !ours {
            // A ring gains nothing for one read. A file of another filesystem reads by its own
            // rules.
            let read = |(i, r): (usize, ReadRequest)| (i, r.file.read(r.offset, r.len));
            return Box::new(CompletedReads(
                reads.into_iter().enumerate().map(read).collect(),
            ));
        }
        match &self.shared.reader {
            Reader::Ring(rings, threads) => match rings.take() {
                Some(ring) => {
                    let shared = Arc::clone(&self.shared);
                    Box::new(uring::RingBatch::start(shared, ring, reads))
                }
                None => Box::new(threads.start(reads)),
            },
            Reader::Threads(threads) => Box::new(threads.start(reads)),
        }
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        lock::lock(&self.host_path(path))
    }

    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        lock::lock_shared(&self.host_path(path))
    }

    fn space(&self, path: &Path) -> Result<Space> {
        let path = self.host_path(path);
        let s = rustix::fs::statvfs(&path)
            .map_err(|e| Error::io("reading the free space", &path, e.into()))?;
        Ok(Space {
            total: s.f_blocks.saturating_mul(s.f_frsize),
            free: s.f_bavail.saturating_mul(s.f_frsize),
        })
    }

    fn stats(&self) -> FsStats {
        self.shared.sys.stats()
    }
}
