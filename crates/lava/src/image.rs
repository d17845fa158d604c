//! Images and devices for servers and tools: makes, opens, grows and checks them.
//!
//! A new image file is written as `NAME.unfinished`. It gets its own name when it is a whole
//! filesystem. So a file with that name is a whole image, or no Basalt image.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::check;
use super::filesystem::LavaFs;
use super::format;
use super::layout::MIN_DEVICE;
use super::load;
use super::options::LavaOptions;
use super::probe::{self, Probed};
use super::runs::{BLOCK, MAX_BLOCKS};
use basalt_env::EnvParts;
use basalt_fs::device::{Device, DeviceOptions, DeviceRead, HostDevice, Way};
use basalt_fs::{Error, ErrorKind, Result};

pub use super::check::Checked;

/// Bytes at the start of a device that are not discarded after a format. A new filesystem uses
/// fewer.
const FORMATTED: u64 = 16 << 20;
/// Bytes that are read at once to find data.
const LOOK: u64 = 1 << 20;
/// Number of places between the ends of a block device that are read to find data. Reading the
/// whole device would take hours.
const SAMPLES: u64 = 1024;

/// Options for making an image.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Format {
    /// Size of the image in bytes, from 4 MiB to 32 TiB. Default: that of the device or of the
    /// existing file.
    pub size: Option<u64>,
    /// If `true`, the space is not written ahead. The image is made at once, and the first write of
    /// each block costs the kernel's filesystem a write of its own metadata. Default: false.
    pub sparse: bool,
    /// If `true`, free space of a device is never discarded, so that written space stays written.
    /// Default: false.
    pub no_discard: bool,
    /// If `true`, existing data is destroyed. Default: false.
    pub force: bool,
}

impl Format {
    /// Sets [`Format::size`](field@Format::size).
    #[must_use]
    pub fn size(mut self, size: Option<u64>) -> Format {
        self.size = size;
        self
    }

    /// Sets [`Format::sparse`](field@Format::sparse).
    #[must_use]
    pub fn sparse(mut self, sparse: bool) -> Format {
        self.sparse = sparse;
        self
    }

    /// Sets [`Format::no_discard`](field@Format::no_discard).
    #[must_use]
    pub fn no_discard(mut self, no_discard: bool) -> Format {
        self.no_discard = no_discard;
        self
    }

    /// Sets [`Format::force`](field@Format::force).
    #[must_use]
    pub fn force(mut self, force: bool) -> Format {
        self.force = force;
        self
    }
}

/// The present step, for a progress bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Looks for data that would be lost.
    Looking,
    /// Writes the image's space.
    Writing,
}

/// Called with the step, the bytes that are done, and all bytes of the step.
pub type Progress<'p> = &'p mut dyn FnMut(Step, u64, u64);

/// Makes an empty filesystem in a file, which need not exist, or on a block device. Returns its
/// size in bytes.
///
/// Errors: `InvalidArgument` for existing data without `force`, for an illegal or missing size, and
/// for a size that is not the device's; `Busy` if the image is in use; `NoSpace` if the disk is
/// full; `NotFound` for a missing device; `Io`.
pub fn format(path: &Path, how: &Format, progress: Progress<'_>) -> Result<u64> {
    if let Some(size) = how.size {
        check_size(path, size)?;
    }
    let device = match HostDevice::open(&DeviceOptions::new(path)) {
        Ok(device) => device,
        Err(e) if e.is_not_found() => return make(path, how, progress),
        Err(e) => return Err(e),
    };
    let facts = device.facts();
    if let (false, Some(what)) = (how.force, holds(&device, path, progress)?) {
        return Err(Error::invalid(format!(
            "{what}; name another, or format it with --force, which destroys what is there"
        ))
        .in_file(path));
    }
    let size = match (how.size, device.is_block_device()) {
        (Some(size), true) if size != facts.len => {
            return Err(Error::invalid(format!(
                "a device is taken whole, and this one has {} bytes; leave --size out",
                facts.len
            ))
            .in_file(path));
        }
        (Some(size), _) => size,
        (None, false) if facts.len == 0 => return Err(no_size(path)),
        (None, _) => facts.len,
    };
    check_size(path, size)?;
    if device.is_block_device() {
        let mut uuid = [0; 16];
        basalt_fs::fill_random(&mut uuid);
        let features = format::Features {
            sparse: false,
            no_discard: how.no_discard,
        };
        format::format_with_features(&*device, uuid, features, path)?;
        if how.no_discard {
            return Ok(size);
        }
        if let Some(rest) = (facts.len / BLOCK * BLOCK).checked_sub(FORMATTED) {
            // A failed discard costs speed, not correctness.
            let _ = device.discard(FORMATTED, rest);
        }
        return Ok(size);
    }
    no_device(path, how)?;
    fill(&device, size, how.sparse, progress)?;
    LavaFs::format(&*device, how.sparse, path)?;
    Ok(size)
}

fn no_device(path: &Path, how: &Format) -> Result<()> {
    match how.no_discard {
        false => Ok(()),
        true => Err(Error::invalid(
            "this is no device, and the space of a written image file is never discarded; leave --no-discard out",
        )
        .in_file(path)),
    }
}

fn check_size(path: &Path, size: u64) -> Result<()> {
    match (MIN_DEVICE..=MAX_BLOCKS * BLOCK).contains(&size) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "an image cannot have {size} bytes; it has 4 MiB to 32 TiB"
        ))
        .in_file(path)),
    }
}

fn no_size(path: &Path) -> Error {
    Error::invalid(
        "the image does not exist yet, so give its size; --size 20G makes an image of 20 GiB",
    )
    .in_file(path)
}

/// Makes a new image file.
fn make(path: &Path, how: &Format, progress: Progress<'_>) -> Result<u64> {
    if is_below_dev(path) {
        return Err(Error::new(ErrorKind::NotFound, "there is no such device").in_file(path));
    }
    let size = how.size.ok_or_else(|| no_size(path))?;
    no_device(path, how)?;
    if rustix::fs::lstat(path).is_ok() {
        return Err(Error::invalid(
            "this is a dangling symbolic link; remove it, or name its target",
        )
        .in_file(path));
    }
    let unfinished = unfinished(path);
    // The lock on this file is held until the file has its final name.
    let device = HostDevice::open_or_create(&unfinished)?;
    if !is_leftover(&device, &unfinished, progress)? {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            "this file has the name that an image has while it is made, and holds something; move it away",
        )
        .in_file(&unfinished));
    }
    let made = fill(&device, size, how.sparse, progress)
        .and_then(|()| LavaFs::format(&*device, how.sparse, path))
        .and_then(|()| take_name(&unfinished, path));
    if made.is_err() {
        let _ = rustix::fs::unlink(&unfinished);
    }
    made.map(|()| size)
}

/// Returns `true` for a path below `/dev`. A mistyped device name must not become a file in memory.
fn is_below_dev(path: &Path) -> bool {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    full.starts_with("/dev") && !full.starts_with("/dev/shm")
}

/// Returns `true` if an interrupted format left this file: zeros, or an empty filesystem.
fn is_leftover(device: &HostDevice, name: &Path, progress: Progress<'_>) -> Result<bool> {
    if let Probed::Image(superblock, _) = probe::probe(device, name)? {
        let read = load::read(device, &superblock, name);
        return Ok(matches!(read, Ok((meta, _)) if meta.counts().files + meta.counts().dirs == 1));
    }
    Ok(holds(device, name, progress)?.is_none())
}

/// Returns the name of an image while it is made.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".unfinished");
    PathBuf::from(name)
}

fn fill(device: &HostDevice, size: u64, sparse: bool, progress: Progress<'_>) -> Result<()> {
    device.fill(size, sparse, &mut |done| {
        progress(Step::Writing, done, size);
    })
}

fn take_name(from: &Path, to: &Path) -> Result<()> {
    let error = |e: Errno| Error::io("naming the image", to, e.into());
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some filesystems have no rename without replacement. A hard link does the same.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::link(from, to).map_err(error)?;
            rustix::fs::unlink(from).map_err(error)?;
        }
        other => other.map_err(error)?,
    }
    let dir = match to.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty()).map_err(error)?;
    rustix::fs::fsync(dir).map_err(error)
}

/// Returns the data that a format would destroy, in words. `None` if all bytes that are read are
/// zeros: those of a whole file, or those at the ends of a device and at 1,024 places between them.
fn holds(device: &HostDevice, name: &Path, progress: Progress<'_>) -> Result<Option<String>> {
    match probe::probe(device, name)? {
        Probed::Image(superblock, _) => {
            let files = match load::read(device, &superblock, name) {
                Ok((meta, _)) => match meta.counts().files {
                    1 => " with 1 file".to_string(),
                    n => format!(" with {n} files"),
                },
                Err(_) => String::new(),
            };
            return Ok(Some(format!("it holds a Basalt image{files}")));
        }
        Probed::Unreadable(e) => {
            return Ok(Some(format!(
                "it holds a Basalt image that cannot be read ({e})"
            )));
        }
        Probed::Empty | Probed::Foreign => {}
    }
    let len = device.facts().len;
    let unit = device.facts().unit as u64;
    let something = |from: u64, len: u64| -> Result<bool> {
        let bytes = device.read(DeviceRead {
            offset: from,
            len: len as usize,
            way: Way::Cached,
        })?;
        Ok(bytes.iter().any(|b| *b != 0))
    };
    let places: Box<dyn Iterator<Item = (u64, u64)>> = match device.is_block_device() {
        false => Box::new((0..len.div_ceil(LOOK)).map(|i| (i * LOOK, LOOK.min(len - i * LOOK)))),
        true => {
            let ends = [0, len.saturating_sub(LOOK) / unit * unit];
            let ends = ends.map(|at| (at, LOOK.min(len - at)));
            let step = (len / SAMPLES).max(BLOCK) / BLOCK * BLOCK;
            let between = (0..len / step).map(move |i| (i * step, BLOCK.min(len - i * step)));
            Box::new(ends.into_iter().chain(between))
        }
    };
    for (from, n) in places {
        if something(from, n)? {
            return Ok(Some("it holds data that is not a Basalt image".into()));
        }
        progress(Step::Looking, from + n, len);
    }
    Ok(None)
}

/// Opens and mounts an image or a device. Several readers may share it; a writer has it alone.
/// `env` is the environment that the filesystem will be part of ([`LavaOptions::env`]).
///
/// Errors: those of [`HostDevice::open`] and [`LavaFs::mount`].
pub fn open(path: &Path, read_only: bool, env: Option<&EnvParts>) -> Result<Arc<LavaFs>> {
    let device = open_device(&DeviceOptions::new(path).read_only(read_only))?;
    let options = LavaOptions {
        name: path.to_path_buf(),
        read_only,
        env: env.cloned(),
    };
    LavaFs::mount(device, &options)
}

/// Opens the device of an existing image. If the image has a smaller write unit than direct I/O has
/// here, all I/O goes through the page cache.
pub(super) fn open_device(options: &DeviceOptions) -> Result<Arc<HostDevice>> {
    let device = HostDevice::open(options)?;
    let facts = device.facts();
    match probe::probe(&*device, &options.path)? {
        Probed::Image(superblock, _) if facts.direct && (superblock.unit as usize) < facts.unit => {
            drop(device);
            HostDevice::open(
                &options
                    .clone()
                    .direct(false)
                    .write_unit(superblock.unit as usize),
            )
        }
        _ => Ok(device),
    }
}

/// Grows an image to `size` bytes, or to the size of its file or device. Returns the size before
/// and after, in bytes. No data is moved. An interruption leaves the old size or the new one.
///
/// Errors: `InvalidArgument` for a smaller size; `NoSpace`; those of [`open`].
pub fn grow(path: &Path, size: Option<u64>, progress: Progress<'_>) -> Result<(u64, u64)> {
    let device = open_device(&DeviceOptions::new(path))?;
    let len = device.facts().len;
    let superblock = match probe::probe(&*device, path)? {
        Probed::Image(superblock, _) => superblock,
        other => return Err(probe::no_image_error(other, path)),
    };
    // An image that cannot be mounted is not made longer.
    load::load(&*device, superblock.clone(), path)?;
    probe::check_features(&superblock, path)?;
    let before = superblock.blocks * BLOCK;
    if len < before {
        return Err(load::cut_short(path, len, before));
    }
    let to = size.unwrap_or(len);
    check_size(path, to)?;
    if to < before {
        return Err(Error::invalid(format!(
            "it has {before} bytes, and an image cannot be made smaller; make another one and copy"
        ))
        .in_file(path));
    }
    if device.is_block_device() {
        if to != len {
            return Err(Error::invalid(format!(
                "a device is taken whole, and this one has {len} bytes; leave --size out"
            ))
            .in_file(path));
        }
    } else if to > before || len > before {
        // This includes bytes that another program added to the file: they were not written.
        let total = to - before;
        device.extend(before..to, superblock.sparse, &mut |done| {
            progress(Step::Writing, done, total);
        })?;
    }
    let options = LavaOptions {
        name: path.to_path_buf(),
        ..LavaOptions::default()
    };
    let fs = LavaFs::mount(device, &options)?;
    fs.grow()?;
    Ok((before, fs.usage().total_bytes))
}

/// Checks an image or a device, and changes nothing. See [`Checked`].
///
/// Errors: those of [`HostDevice::open`]; `NotFound`, `InvalidArgument` and `Unsupported` if there
/// is no image to check.
pub fn check(path: &Path) -> Result<Checked> {
    let device = open_device(&DeviceOptions::new(path).read_only(true))?;
    check::check(&*device, path)
}
