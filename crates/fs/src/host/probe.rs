//! Facts about the device and the kernel filesystem under a directory: whether direct I/O works,
//! its alignment, and whether one device flush may stand for the syncs of several files. Callers
//! are promised none of this. The facts only decide between two correct ways.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::{AlignedBuf, DIRECT_ALIGN};

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const EXT4_MAGIC: u64 = 0xef53;

/// The alignment, in bytes, that direct I/O on one file or device requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlign {
    /// Alignment of file offsets and lengths, in bytes.
    pub(crate) offset: usize,
    /// Alignment of memory addresses, in bytes.
    pub(crate) memory: usize,
}

/// Facts about the filesystem on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct VolumeFacts {
    /// The alignment of direct I/O, or the reason why it is not used.
    pub(super) direct: Result<DirectAlign, &'static str>,
    /// True if an overwrite of written extents changes no metadata that a read needs, and
    /// `fdatasync` of any file flushes the device's cache. This holds for ext4 if the kernel itself
    /// reports direct I/O, which also excludes `data=journal` and encrypted files: ext4 never
    /// relocates a written block.
    pub(super) overwrites_in_place: bool,
}

/// The facts that `statx` gives of an open file.
pub(crate) struct FileFacts {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) links: u32,
    pub(crate) is_dir: bool,
    pub(crate) is_block_device: bool,
    pub(crate) is_file: bool,
    /// The number of a block device itself, not of the filesystem of its name.
    pub(crate) rdev: u64,
    /// The alignment of direct I/O. `Some(None)` if the kernel says that this file takes no direct
    /// I/O, and `None` if the kernel gives no answer.
    pub(crate) direct: Option<Option<DirectAlign>>,
}

pub(crate) fn file_facts(fd: BorrowedFd<'_>) -> rustix::io::Result<FileFacts> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    let s = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, want)?;
    let reported = s.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let kind = rustix::fs::FileType::from_raw_mode(s.stx_mode.into());
    let size = match kind {
        // The inode of a block device has no size.
        rustix::fs::FileType::BlockDevice => rustix::fs::seek(fd, SeekFrom::End(0))?,
        _ => s.stx_size,
    };
    Ok(FileFacts {
        dev: rustix::fs::makedev(s.stx_dev_major, s.stx_dev_minor),
        ino: s.stx_ino,
        size,
        links: s.stx_nlink,
        is_dir: kind == rustix::fs::FileType::Directory,
        is_block_device: kind == rustix::fs::FileType::BlockDevice,
        is_file: kind == rustix::fs::FileType::RegularFile,
        rdev: rustix::fs::makedev(s.stx_rdev_major, s.stx_rdev_minor),
        direct: reported.then(|| {
            let (offset, memory) = (
                s.stx_dio_offset_align as usize,
                s.stx_dio_mem_align as usize,
            );
            (offset != 0 && memory != 0).then_some(DirectAlign { offset, memory })
        }),
    })
}

/// Returns the facts that hold for any block device. Its own descriptor says more.
pub(super) fn of_block_device() -> VolumeFacts {
    VolumeFacts {
        direct: Ok(DirectAlign {
            offset: DIRECT_ALIGN,
            memory: DIRECT_ALIGN,
        }),
        overwrites_in_place: false,
    }
}

impl FileFacts {
    /// Returns the alignment for a descriptor that was opened for direct I/O.
    pub(crate) fn direct_align(&self) -> Option<DirectAlign> {
        match self.direct {
            Some(reported) => reported.filter(|align| align.offset <= DIRECT_ALIGN),
            None => Some(DirectAlign {
                offset: DIRECT_ALIGN,
                memory: DIRECT_ALIGN,
            }),
        }
    }
}

/// Returns the nearest existing directory at or above `path`.
pub(super) fn existing_ancestor(path: &Path) -> PathBuf {
    for p in path.ancestors() {
        let p = if p.as_os_str().is_empty() {
            Path::new(".")
        } else {
            p
        };
        if rustix::fs::stat(p).is_ok_and(|s| {
            rustix::fs::FileType::from_raw_mode(s.st_mode) == rustix::fs::FileType::Directory
        }) {
            return p.to_path_buf();
        }
    }
    PathBuf::from("/")
}

fn nameless_file(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        other => return other,
    }
    let name = dir.join(format!(
        ".basalt-probe-{}",
        rustix::process::getpid().as_raw_nonzero()
    ));
    let fd = rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL, mode);
    // The file of the probe must not stay behind. `EXCL` guarantees that this call created the
    // name.
    if fd.is_ok() {
        let _ = rustix::fs::unlink(&name);
    }
    fd
}

/// Tests direct I/O in a directory with a file that has no name.
pub(super) fn probe(dir: &Path) -> VolumeFacts {
    let magic = rustix::fs::statfs(dir).map_or(0, |s| s.f_type as u64);
    if matches!(magic, TMPFS_MAGIC | RAMFS_MAGIC) {
        return VolumeFacts {
            direct: Err("the directory is in memory"),
            overwrites_in_place: false,
        };
    }
    let fd = match nameless_file(dir) {
        Ok(fd) => fd,
        Err(Errno::INVAL) => {
            return VolumeFacts {
                direct: Err("the filesystem refuses direct I/O"),
                overwrites_in_place: false,
            };
        }
        // The directory is not writable, so no file here will be appended to, and each opened file
        // has its own facts.
        Err(_) => {
            return VolumeFacts {
                direct: Ok(DirectAlign {
                    offset: DIRECT_ALIGN,
                    memory: DIRECT_ALIGN,
                }),
                overwrites_in_place: false,
            };
        }
    };
    if let Ok(facts) = file_facts(fd.as_fd())
        && let Some(reported) = facts.direct
    {
        return match reported {
            Some(align) if align.offset <= DIRECT_ALIGN => VolumeFacts {
                direct: Ok(align),
                overwrites_in_place: magic == EXT4_MAGIC,
            },
            Some(_) => VolumeFacts {
                direct: Err("direct I/O needs blocks above 4096 bytes here"),
                overwrites_in_place: false,
            },
            None => VolumeFacts {
                direct: Err("the filesystem refuses direct I/O"),
                overwrites_in_place: false,
            },
        };
    }
    // Kernels before 6.1 do not report the unit, so it is found by trial.
    let page = AlignedBuf::zeroed_direct(2 * DIRECT_ALIGN);
    for unit in [512, 1024, 2048, DIRECT_ALIGN] {
        if rustix::io::pwrite(&fd, &page[..unit], unit as u64) == Ok(unit) {
            return VolumeFacts {
                direct: Ok(DirectAlign {
                    offset: unit,
                    memory: DIRECT_ALIGN,
                }),
                overwrites_in_place: false,
            };
        }
    }
    VolumeFacts {
        direct: Err("direct writes fail on this filesystem"),
        overwrites_in_place: false,
    }
}
