//! Copies of stores, and files that leave the page cache, so that every run begins cold.

use crate::Stop;
use basalt::fs::FileSystem;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Copies `from` below `dir` to `to`, which must not exist. On return the copy is on the device and
/// not in the page cache, so that every run begins cold.
pub fn copy_tree(fs: &dyn FileSystem, dir: &Path, from: &Path, to: &Path) -> Result<(), Stop> {
    fs.create_dir(to)?;
    for entry in fs.list(from)? {
        let (inner, copy) = (from.join(&entry.name), to.join(&entry.name));
        if entry.is_dir {
            copy_tree(fs, dir, &inner, &copy)?;
        } else {
            copy_file(&dir.join(&inner), &dir.join(&copy)).map_err(|e| {
                Stop::new(format!(
                    "cannot copy {} for the next run: {}",
                    dir.join(&inner).display(),
                    std::io::Error::from(e)
                ))
            })?;
        }
    }
    Ok(())
}

/// Copies a file to `to`, which must not exist. On return neither is in the page cache.
pub(crate) fn copy_file(from: &Path, to: &Path) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let from = rustix::fs::open(from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let to = rustix::fs::open(to, flags, Mode::from_raw_mode(0o600))?;
    loop {
        match rustix::fs::copy_file_range(&from, None, &to, None, 1 << 30) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP) => {
                copy_by_hand(&from, &to)?;
                break;
            }
            Err(e) => return Err(e),
        }
    }
    rustix::fs::fsync(&to)?;
    forget(&from);
    forget(&to);
    Ok(())
}

fn copy_by_hand(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let mut buf = vec![0; 1 << 20];
    loop {
        let n = rustix::io::read(from, &mut buf)?;
        if n == 0 {
            return Ok(());
        }
        let mut done = 0;
        while done < n {
            done += rustix::io::write(to, &buf[done..n])?;
        }
    }
}

fn forget(fd: &OwnedFd) {
    // This call is advice. Filesystems that ignore it serve engines that read past the page cache.
    let _ = rustix::fs::fadvise(fd, 0, None, Advice::DontNeed);
}

/// Writes every file below `dir`/`path` to the device, and removes it from the page cache.
pub fn forget_tree(fs: &dyn FileSystem, dir: &Path, path: &Path) -> Result<(), Stop> {
    for entry in fs.list(path)? {
        let inner = path.join(&entry.name);
        if entry.is_dir {
            forget_tree(fs, dir, &inner)?;
        } else if let Ok(fd) = rustix::fs::open(
            dir.join(&inner),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            // The kernel keeps pages that it has not written yet.
            rustix::fs::fsync(&fd).map_err(|e| {
                Stop::new(format!(
                    "cannot sync {}: {}",
                    dir.join(&inner).display(),
                    std::io::Error::from(e)
                ))
            })?;
            forget(&fd);
        }
    }
    Ok(())
}
