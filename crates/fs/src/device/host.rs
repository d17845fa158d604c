//! A block device or an image file of a kernel filesystem.
//!
//! The device has two descriptors. Synced writes and large writes use direct I/O. Small appends
//! that no sync follows use the page cache. Both descriptors see the same bytes: the kernel writes
//! back and drops the cached pages of a range before the range is written directly. Reads go the
//! way that [`HostFs`] reads.
//!
//! The image is locked as long as it is open: exclusively for a writer, in shared mode for readers.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Device, DeviceFacts, DeviceRead, Discards, Way, discard, loop_device};
use crate::host::{Account, FileFacts, Stages, Sys, file_facts, holder};
use crate::{
    Bytes, DIRECT_ALIGN, Error, ErrorKind, File, FileSystem, FsInfo, FsStats, HostFs, HostOptions,
    Lifetime, ReadBackend, ReadCompletions, ReadRequest, Result,
};

/// Options for opening an image or a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Path of the image file or of the block device.
    pub path: PathBuf,
    /// If true, the device is only read, and other processes may read it at the same time. Default:
    /// false.
    pub read_only: bool,
    /// If true, I/O bypasses the page cache if the kernel allows it. Default: true.
    pub direct: bool,
    /// Smallest write unit, in bytes, as [`HostOptions::write_unit`]. Default: 512.
    pub write_unit: usize,
    /// The way of batched reads, as [`HostOptions::read_backend`].
    pub read_backend: ReadBackend,
    /// Most threads that read at a time, as [`HostOptions::read_threads`].
    pub read_threads: usize,
}

impl DeviceOptions {
    /// Sets [`DeviceOptions::read_only`](field@DeviceOptions::read_only).
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> DeviceOptions {
        self.read_only = read_only;
        self
    }

    /// Sets [`DeviceOptions::direct`](field@DeviceOptions::direct).
    #[must_use]
    pub fn direct(mut self, direct: bool) -> DeviceOptions {
        self.direct = direct;
        self
    }

    /// Sets [`DeviceOptions::write_unit`](field@DeviceOptions::write_unit).
    #[must_use]
    pub fn write_unit(mut self, write_unit: usize) -> DeviceOptions {
        self.write_unit = write_unit;
        self
    }

    /// Sets [`DeviceOptions::read_backend`](field@DeviceOptions::read_backend).
    #[must_use]
    pub fn read_backend(mut self, read_backend: ReadBackend) -> DeviceOptions {
        self.read_backend = read_backend;
        self
    }

    /// Sets [`DeviceOptions::read_threads`](field@DeviceOptions::read_threads).
    #[must_use]
    pub fn read_threads(mut self, read_threads: usize) -> DeviceOptions {
        self.read_threads = read_threads;
        self
    }
}

impl DeviceOptions {
    /// Returns the default options for this image or device.
    pub fn new(path: impl Into<PathBuf>) -> DeviceOptions {
        let host = HostOptions::default();
        DeviceOptions {
            path: path.into(),
            read_only: false,
            direct: host.direct,
            write_unit: host.write_unit,
            read_backend: host.read_backend,
            read_threads: host.read_threads,
        }
    }
}

/// An open image file or block device, with its lock.
pub struct HostDevice {
    path: PathBuf,
    /// The facts when the device was opened. `len` has the present length.
    facts: DeviceFacts,
    len: AtomicU64,
    /// The descriptor for the page cache. It holds the lock.
    cached: OwnedFd,
    direct: Option<OwnedFd>,
    /// The descriptor that holds a block device for this process alone. `None` for an image file,
    /// and if the device was opened read-only.
    exclusive: Option<OwnedFd>,
    /// The descriptor of the file under a loop device. It holds that file's lock.
    _below: Option<OwnedFd>,
    /// Memory addresses of direct transfers are multiples of this many bytes.
    memory: usize,
    sys: Sys,
    stages: Stages,
    reads: Arc<HostFs>,
    direct_reads: Arc<dyn File>,
    cached_reads: Arc<dyn File>,
    /// Bytes of the disk under the image that a test pretends. 0 stands for the size that the
    /// system reports.
    #[cfg(test)]
    pub pretended_disk: AtomicU64,
}

impl HostDevice {
    /// Opens an image or a device and takes its lock.
    ///
    /// Errors: `NotFound`; `Busy` if another process, or this one, has it open; `InvalidArgument`
    /// if it is neither a file nor a block device.
    pub fn open(options: &DeviceOptions) -> Result<Arc<HostDevice>> {
        HostDevice::open_as(options, OFlags::empty())
    }

    /// Opens an image file and takes its lock. A missing file is created empty. The call follows no
    /// symbolic link.
    pub fn open_or_create(path: &Path) -> Result<Arc<HostDevice>> {
        HostDevice::open_as(&DeviceOptions::new(path), OFlags::CREATE | OFlags::NOFOLLOW)
    }

    fn open_as(options: &DeviceOptions, more: OFlags) -> Result<Arc<HostDevice>> {
        let path = &options.path;
        let (cached, facts) = open_cached(options, more)?;
        lock(path, &cached, &facts, options.read_only)?;
        let below = loop_device::claim(path, &facts, options.read_only)?;
        // While this call waited, the lock's former holder may have given the name to another file.
        check_name(path, &facts)?;
        let exclusive = match facts.is_block_device && !options.read_only {
            true => Some(open_exclusive(options, &facts)?),
            false => None,
        };
        let direct = open_direct(options, &facts)?;
        let readers = Readers::open(options, &direct)?;
        // The descriptors were opened by name, so the name must still lead to the same file.
        check_name(path, &facts)?;
        Ok(Arc::new(HostDevice {
            path: path.clone(),
            len: AtomicU64::new(facts.size),
            facts: device_facts(path, &facts, &direct, &readers.fs.info()),
            exclusive,
            _below: below,
            cached,
            direct: direct.fd,
            memory: direct.memory,
            sys: Sys::default(),
            stages: Stages::default(),
            reads: readers.fs,
            direct_reads: readers.direct,
            cached_reads: readers.cached,
            #[cfg(test)]
            pretended_disk: AtomicU64::new(0),
        }))
    }

    /// Fills the image file with `len` zeros and drops its former content. If `sparse` is true, the
    /// file gets the length and no space. Calls `progress` with the bytes written so far.
    ///
    /// Errors: `NoSpace`, before anything is changed if that can be known; `Io`.
    pub fn fill(&self, len: u64, sparse: bool, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let error = |e: Errno| Error::io("making the image", &self.path, e.into());
        if !sparse {
            let own = rustix::fs::fstat(&self.cached).map_err(error)?.st_blocks as u64 * 512;
            self.check_room(len.saturating_sub(own))?;
        }
        rustix::fs::ftruncate(&self.cached, 0).map_err(error)?;
        write_zeros(&self.cached, &self.path, 0..len, sparse, progress)?;
        self.len.store(len, SeqCst);
        Ok(())
    }

    /// Extends the image file to `range.end` and writes zeros into the range, or no bytes if
    /// `sparse` is true. A failed call leaves the file `range.start` bytes long. The call first
    /// removes what an interrupted attempt left behind `range.start`, because that counts as used
    /// space.
    ///
    /// Errors: `NoSpace`, `Io`.
    pub fn extend(
        &self,
        range: Range<u64>,
        sparse: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let error = |e: Errno| Error::io("growing the image", &self.path, e.into());
        if self.len.load(SeqCst) > range.start {
            rustix::fs::ftruncate(&self.cached, range.start).map_err(error)?;
            self.len.store(range.start, SeqCst);
            // Some filesystems give the space to other files only after the cut is durable.
            rustix::fs::fsync(&self.cached).map_err(error)?;
        }
        if !sparse {
            self.check_room(range.end - range.start)?;
        }
        let done = write_zeros(&self.cached, &self.path, range.clone(), sparse, progress);
        let len = match done {
            Ok(()) => range.end,
            Err(_) => range.start,
        };
        if done.is_err() {
            let _ = rustix::fs::ftruncate(&self.cached, len);
        }
        self.len.store(len, SeqCst);
        done
    }

    /// Checks that the disk under the image has `more` bytes free, before an extension begins.
    ///
    /// Errors: `NoSpace`, `Io`.
    fn check_room(&self, more: u64) -> Result<()> {
        let disk = rustix::fs::fstatvfs(&self.cached).map_err(|e| {
            Error::io(
                "reading the free space under the image",
                &self.path,
                e.into(),
            )
        })?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        #[cfg(test)]
        let free = match self.pretended_disk.load(SeqCst) {
            0 => free,
            all => {
                let own = rustix::fs::fstat(&self.cached).expect("an open file");
                all.saturating_sub(own.st_blocks as u64 * 512)
            }
        };
        match free < more {
            true => Err(no_room(&self.path, more)),
            false => Ok(()),
        }
    }

    /// Returns true for a block device, and false for an image file.
    pub fn is_block_device(&self) -> bool {
        self.facts.discards == Discards::Always
    }

    fn failed(&self, what: &str, offset: u64, e: Errno) -> Error {
        let what = match (e, self.is_block_device()) {
            (Errno::NOSPC | Errno::DQUOT, false) => {
                "the disk that the image lies on is full; free some space there, not in the image: writing"
            }
            _ => what,
        };
        Error::io(what, &self.path, e.into()).at(&self.path, offset)
    }

    fn requests(&self, reads: Vec<DeviceRead>) -> Vec<ReadRequest> {
        let request = |r: DeviceRead| ReadRequest {
            file: Arc::clone(match r.way {
                Way::Direct => &self.direct_reads,
                Way::Cached => &self.cached_reads,
            }),
            offset: r.offset,
            len: r.len,
            lifetime: Lifetime::Cached,
        };
        reads.into_iter().map(request).collect()
    }
}

/// The descriptor for direct I/O, and what it needs.
struct DirectAccess {
    /// `None` if the options or the kernel exclude direct I/O.
    fd: Option<OwnedFd>,
    /// Bytes that the device writes whole or not at all.
    unit: usize,
    /// Memory addresses of direct transfers are multiples of this many bytes.
    memory: usize,
}

/// The handles that reads go through.
struct Readers {
    fs: Arc<HostFs>,
    direct: Arc<dyn File>,
    cached: Arc<dyn File>,
}

impl Readers {
    /// Opens the image for reads: direct reads if `direct` has a descriptor, and cached reads.
    fn open(options: &DeviceOptions, direct: &DirectAccess) -> Result<Readers> {
        let host = |is_direct: bool| {
            HostFs::new(
                HostOptions::new("")
                    .direct(is_direct)
                    .write_unit(direct.unit)
                    .read_backend(options.read_backend)
                    .read_threads(options.read_threads),
            )
        };
        let fs = host(direct.fd.is_some())?;
        Ok(Readers {
            direct: fs.open(&options.path)?,
            cached: host(false)?.open(&options.path)?,
            fs,
        })
    }
}

/// Returns the flags with which each descriptor of the image is opened.
fn open_flags(options: &DeviceOptions) -> OFlags {
    let access = match options.read_only {
        true => OFlags::RDONLY,
        false => OFlags::RDWR,
    };
    access | OFlags::CLOEXEC
}

fn open_error(path: &Path, e: Errno) -> Error {
    Error::io("opening the image", path, e.into())
}

/// Opens the image through the page cache, and returns its descriptor and what the kernel says of
/// it.
///
/// Errors: `NotFound`, `Io`; `InvalidArgument` if it is neither a file nor a block device.
fn open_cached(options: &DeviceOptions, more: OFlags) -> Result<(OwnedFd, FileFacts)> {
    let path = &options.path;
    // Without `NONBLOCK`, opening a pipe would wait for its other end.
    let flags = open_flags(options) | more | OFlags::NONBLOCK;
    let cached = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => fd,
        Err(Errno::ISDIR) => return Err(is_dir(path)),
        Err(Errno::NXIO) => return Err(no_image(path)),
        Err(e) => return Err(open_error(path, e)),
    };
    let facts = file_facts(cached.as_fd()).map_err(|e| open_error(path, e))?;
    if facts.is_dir {
        return Err(is_dir(path));
    }
    if !facts.is_file && !facts.is_block_device {
        return Err(no_image(path));
    }
    Ok((cached, facts))
}

/// Checks that the name still leads to the file that was opened.
///
/// Errors: `Busy` if it leads to another file.
fn check_name(path: &Path, facts: &FileFacts) -> Result<()> {
    let now = rustix::fs::stat(path).map_err(|e| open_error(path, e))?;
    match (now.st_ino, now.st_dev) == (facts.ino, facts.dev) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Busy,
            "another process has just replaced the image; try again",
        )
        .in_file(path)),
    }
}

/// Opens a block device for this process alone. The kernel refuses it if the device is mounted or
/// is a part of another device.
///
/// Errors: `Busy` if the kernel refuses; `ReadOnly` if the device takes no writes; `Io`.
fn open_exclusive(options: &DeviceOptions, facts: &FileFacts) -> Result<OwnedFd> {
    let path = &options.path;
    let flags = open_flags(options) | OFlags::EXCL;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::BUSY) => {
            return Err(Error::new(
                ErrorKind::Busy,
                "the device is mounted or in use by the system; unmount it, or name another one",
            )
            .in_file(path));
        }
        Err(e) => return Err(open_error(path, e)),
    };
    match loop_device::is_read_only(facts) {
        true => Err(Error::new(ErrorKind::ReadOnly, "the device is set read-only").in_file(path)),
        false => Ok(fd),
    }
}

/// Opens the image for direct I/O, if the options ask for it and the kernel allows it.
///
/// Errors: `InvalidArgument` if the write unit of the options is outside its limits.
fn open_direct(options: &DeviceOptions, facts: &FileFacts) -> Result<DirectAccess> {
    let unit = options.write_unit;
    if !unit.is_power_of_two() || !(512..=4096).contains(&unit) {
        return Err(Error::invalid(format!(
            "the write unit is {unit} bytes; it must be a power of two from 512 to 4096"
        )));
    }
    let flags = open_flags(options) | OFlags::DIRECT;
    if options.direct
        && let Ok(fd) = rustix::fs::open(&options.path, flags, Mode::empty())
        && let Some(align) = facts.direct_align()
    {
        return Ok(DirectAccess {
            fd: Some(fd),
            unit: unit.max(align.offset),
            memory: align.memory,
        });
    }
    Ok(DirectAccess {
        fd: None,
        unit,
        memory: DIRECT_ALIGN,
    })
}

/// Returns the facts of an image or a device that was just opened.
fn device_facts(
    path: &Path,
    facts: &FileFacts,
    direct: &DirectAccess,
    reads: &FsInfo,
) -> DeviceFacts {
    let way = match direct.fd {
        Some(_) => "direct I/O",
        None => "page cache",
    };
    let (what, discards) = match facts.is_block_device {
        true => ("block device", Discards::Always),
        false => ("image", Discards::Holes),
    };
    let unit = direct.unit;
    DeviceFacts {
        len: facts.size,
        unit,
        description: format!(
            "{what} {}, {way}, write unit {unit}, {}",
            path.display(),
            reads.read_backend
        ),
        read_backend: reads.read_backend,
        direct: direct.fd.is_some(),
        own_memory: reads.own_memory,
        discards,
    }
}

fn is_dir(path: &Path) -> Error {
    Error::invalid(
        "this is a directory; an image is a file or a block device (`--dir` takes directories)",
    )
    .in_file(path)
}

fn no_image(path: &Path) -> Error {
    Error::invalid(
        "this is a pipe, a socket or a character device; an image is a file or a block device",
    )
    .in_file(path)
}

fn no_room(path: &Path, bytes: u64) -> Error {
    Error::new(
        ErrorKind::NoSpace,
        format!(
            "the disk under the image has no room for {bytes} more bytes; make the image smaller, or free some space"
        ),
    )
    .in_file(path)
}

/// Writes zeros in large pieces, and syncs at the end.
fn write_zeros(
    fd: &OwnedFd,
    path: &Path,
    range: Range<u64>,
    sparse: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    const PIECE: u64 = 4 << 20;
    let error = |e: Errno| match e {
        Errno::NOSPC | Errno::DQUOT => no_room(path, range.end - range.start),
        e => Error::io("writing the image", path, e.into()),
    };
    rustix::fs::ftruncate(fd, range.end).map_err(error)?;
    if !sparse && !range.is_empty() {
        // The space is allocated with one call, so that a full disk is noticed at once and the
        // space is contiguous.
        let mode = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(fd, mode, range.start, range.end - range.start) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(error(e)),
        }
        let zeros = crate::AlignedBuf::zeroed_direct(PIECE as usize);
        let direct = rustix::fs::open(path, OFlags::WRONLY | OFlags::DIRECT, Mode::empty());
        let aligned = range.start.is_multiple_of(4096) && range.end.is_multiple_of(4096);
        let own = rustix::fs::fstat(fd).map_err(error)?;
        let same = |other: &OwnedFd| {
            let there = rustix::fs::fstat(other);
            there.is_ok_and(|s| (s.st_ino, s.st_dev) == (own.st_ino, own.st_dev))
        };
        let to = match &direct {
            Ok(fd) if aligned && same(fd) => fd,
            _ => fd,
        };
        let sys = Sys::default();
        let mut at = range.start;
        while at < range.end {
            let len = PIECE.min(range.end - at);
            let piece = [IoSlice::new(&zeros[..len as usize])];
            sys.write_all(to.as_fd(), &piece, at, None, Account::Prewrite)
                .map_err(error)?;
            at += len;
            progress(at - range.start);
        }
    }
    rustix::fs::fsync(fd).map_err(error)
}

/// Takes the lock of an open image, in shared mode if `shared` is true.
pub fn lock(path: &Path, fd: &OwnedFd, facts: &FileFacts, shared: bool) -> Result<()> {
    let how = match shared {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        match rustix::fs::flock(fd, how) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                let who = holder(facts).unwrap_or_else(|| "another process".to_string());
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("the image is in use by {who}; stop it, or use another image"),
                )
                .in_file(path));
            }
            Err(e) => return Err(Error::io("locking the image", path, e.into())),
        }
    }
}

impl Device for HostDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            len: self.len.load(SeqCst),
            ..self.facts.clone()
        }
    }

    fn read(&self, read: DeviceRead) -> Result<Bytes> {
        let file = match read.way {
            Way::Direct => &self.direct_reads,
            Way::Cached => &self.cached_reads,
        };
        let bytes = file.read(read.offset, read.len)?;
        if bytes.len() < read.len {
            return Err(Error::corruption(
                &self.path,
                read.offset,
                format!(
                    "the image ends after {} of {} bytes; it has been cut short",
                    bytes.len(),
                    read.len
                ),
            ));
        }
        Ok(bytes)
    }

    fn submit_reads(&self, reads: Vec<DeviceRead>) -> Box<dyn ReadCompletions> {
        self.reads.submit_reads(self.requests(reads))
    }

    fn write(&self, offset: u64, bufs: &[IoSlice<'_>], way: Way) -> Result<()> {
        let done = match (&self.direct, way) {
            (Some(fd), Way::Direct) => {
                let unit = self.facts.unit;
                self.stages
                    .write(&self.sys, fd.as_fd(), bufs, offset, unit, self.memory)
            }
            _ => {
                let fd = self.cached.as_fd();
                self.sys.write_all(fd, bufs, offset, None, Account::Append)
            }
        };
        done.map_err(|e| self.failed("writing", offset, e))
    }

    fn flush(&self) -> Result<()> {
        self.sys
            .fdatasync(self.cached.as_fd())
            .map_err(|e| match e {
                // Bytes that went through the page cache of a sparse image get their space only
                // now.
                Errno::NOSPC | Errno::DQUOT => self.failed("syncing", 0, e),
                _ => Error::io("syncing the image", &self.path, e.into()),
            })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let fd = self.cached.as_fd();
        // The kernel discards only through the descriptor that holds the device exclusively.
        let exclusive = self.exclusive.as_ref().map_or(fd, |fd| fd.as_fd());
        let done = rustix::io::retry_on_intr(|| match self.facts.discards {
            Discards::Always => discard::discard(exclusive, offset, len),
            Discards::Holes => {
                use rustix::fs::FallocateFlags as ReadMode;
                rustix::fs::fallocate(fd, ReadMode::PUNCH_HOLE | ReadMode::KEEP_SIZE, offset, len)
            }
        });
        done.map_err(|e| self.failed("discarding", offset, e))
    }

    fn stats(&self) -> FsStats {
        let (wrote, read) = (self.sys.stats(), self.reads.stats());
        FsStats {
            bytes_read: read.bytes_read,
            reads: read.reads,
            ..wrote
        }
    }
}
