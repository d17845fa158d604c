//! Facts about block devices from `/sys`: loop devices above and below an image, and devices that
//! are set read-only.
//!
//! A loop device and the file under it are the same bytes under two names, and the lock of one does
//! not protect the other. So opening a loop device also takes the lock of the file under it. A file
//! that lies under a loop device is not opened at all. If the kernel gives no facts, these checks
//! pass.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::host::lock;
use crate::host::{FileFacts, file_facts};
use crate::{Error, ErrorKind, Result};

/// Returns the content of a small file of the kernel, without the line end.
fn kernel_file(path: &Path) -> Option<Vec<u8>> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = vec![0; 4097];
    let n = rustix::io::read(&fd, &mut bytes[..]).ok()?;
    bytes.truncate(n);
    bytes.pop_if(|b| *b == b'\n');
    Some(bytes)
}

fn sys_dir_of(facts: &FileFacts) -> PathBuf {
    let (major, minor) = (rustix::fs::major(facts.rdev), rustix::fs::minor(facts.rdev));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// Returns true if the kernel refuses all writes to a block device.
pub fn is_read_only(device: &FileFacts) -> bool {
    kernel_file(&sys_dir_of(device).join("ro")).is_some_and(|b| b == b"1")
}

fn backing_file(of: &Path) -> Option<PathBuf> {
    let path = kernel_file(&of.join("loop/backing_file"))?;
    (!path.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&path)))
}

/// Returns the name of the loop device that lies on a file.
fn loop_device_on(file: &FileFacts) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let devices = rustix::fs::open("/sys/block", flags, Mode::empty()).ok()?;
    let entries = rustix::fs::Dir::read_from(&devices).ok()?;
    let loops = entries.filter_map(|e| {
        let name = e.ok()?.file_name().to_str().ok()?.to_string();
        name.starts_with("loop").then_some(name)
    });
    let mut loops = loops.filter(|name| {
        let backing = backing_file(&Path::new("/sys/block").join(name));
        let there = backing.and_then(|path| rustix::fs::stat(path).ok());
        there.is_some_and(|s| (s.st_dev, s.st_ino) == (file.dev, file.ino))
    });
    loops.next()
}

/// Keeps other processes away from an image's bytes under their other name, as long as the returned
/// descriptor is held.
///
/// Errors: `Busy`.
pub fn claim(path: &Path, facts: &FileFacts, shared: bool) -> Result<Option<OwnedFd>> {
    if !facts.is_block_device {
        return match loop_device_on(facts) {
            None => Ok(None),
            Some(name) => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the loop device /dev/{name} lies on this file; use the device, or detach it with `losetup -d /dev/{name}`"
                ),
            )
            .in_file(path)),
        };
    }
    let Some(file) = backing_file(&sys_dir_of(facts)) else {
        return Ok(None);
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(&file, flags, Mode::empty()) else {
        // The file belongs to another user, or is out of sight of this process.
        return Ok(None);
    };
    if let Ok(below) = file_facts(fd.as_fd()) {
        lock(&file, &fd, &below, shared)?;
    }
    Ok(Some(fd))
}
