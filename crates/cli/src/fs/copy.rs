//! Files and directories into an image and out of one.

use super::show::failed;
use crate::failure::{Failure, Outcome};
use crate::place::{Access, open_image};
use crate::progress::{self, count, rate};
use basalt::env::Clock;
use basalt::fs::{File, FileSystem, HostFs, HostOptions, Intent, LockGuard};
use basalt::{Error, ErrorKind};
use indicatif::ProgressBar;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store's lock.
pub const LOCK: &str = "LOCK";
/// Bytes at a time.
pub const PIECE: usize = 1 << 20;

/// How far a file's bytes go: where its length is vague, all of its space, as readers expect that find the end by themselves.
fn end_of(fs: &dyn FileSystem, path: &Path) -> basalt::Result<u64> {
    let stat = fs.stat(path)?;
    Ok(stat.len.max(stat.allocated))
}

/// `IMAGE:PATH`, if what stands before a colon is a file or a device.
fn in_image(text: &Path) -> Option<(PathBuf, PathBuf)> {
    let bytes = text.as_os_str().as_bytes();
    let colons = bytes.iter().enumerate().filter(|(_, b)| **b == b':');
    for (i, _) in colons {
        let image = Path::new(OsStr::from_bytes(&bytes[..i]));
        let kind = rustix::fs::stat(image).map(|s| rustix::fs::FileType::from_raw_mode(s.st_mode));
        if matches!(kind, Ok(k) if k != rustix::fs::FileType::Directory) {
            let path = Path::new(OsStr::from_bytes(&bytes[i + 1..]));
            return Some((image.to_path_buf(), path.to_path_buf()));
        }
    }
    None
}

/// What is copied from where to where.
struct Copy<'a> {
    from: &'a dyn FileSystem,
    to: &'a dyn FileSystem,
    /// The source is a directory of the disk, and the target's image is this file there.
    from_disk: Option<(u64, u64)>,
    overwrite: bool,
    bar: ProgressBar,
    files: u64,
    bytes: u64,
    /// Links, pipes and what else is no file.
    left_out: u64,
    /// Stores on both sides are kept from their owners as long as it takes.
    locks: Vec<Box<dyn LockGuard>>,
}

/// The name that a file has while it is copied.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".unfinished");
    PathBuf::from(name)
}

impl Copy<'_> {
    /// Neither file nor directory, on the disk: it is not followed. Nor is the image itself copied into itself.
    fn is_left_out(&self, path: &Path) -> bool {
        let Some(image) = self.from_disk else {
            return false;
        };
        use rustix::fs::FileType;
        let Ok(stat) = rustix::fs::lstat(path) else {
            return false;
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        !matches!(kind, FileType::RegularFile | FileType::Directory)
            || (stat.st_dev, stat.st_ino) == image
    }

    /// Bytes of all that is below a path, for the bar.
    fn measure(&self, path: &Path) -> basalt::Result<u64> {
        if self.is_left_out(path) {
            return Ok(0);
        }
        if !self.from.stat(path)?.is_dir {
            return end_of(self.from, path);
        }
        let mut bytes = 0;
        for e in self.from.list(path)? {
            bytes += self.measure(&path.join(e.name))?;
        }
        Ok(bytes)
    }

    /// Copies a file, or a directory with all in it. The names in `to` are durable when their directories are synced.
    fn all(&mut self, from: &Path, to: &Path) -> basalt::Result<()> {
        if self.is_left_out(from) {
            self.left_out += 1;
            return Ok(());
        }
        if !self.from.stat(from)?.is_dir {
            return self.file(from, to);
        }
        // A store that somebody writes would come out as none.
        let lock = from.join(LOCK);
        if self.from.exists(&lock)? {
            self.locks.extend(self.from.lock_shared(&lock)?);
        }
        let lock = to.join(LOCK);
        if self.to.exists(to)? && self.to.exists(&lock)? {
            self.locks.push(self.to.lock(&lock)?);
        }
        self.to.create_dir(to)?;
        for e in self.from.list(from)? {
            if e.name == LOCK && self.to.exists(&lock)? {
                continue;
            }
            self.all(&from.join(&e.name), &to.join(&e.name))?;
        }
        self.to.sync_metadata(to)
    }

    /// Under another name until it is whole: what has a file's name is the old one or the new one.
    fn file(&mut self, from: &Path, to: &Path) -> basalt::Result<()> {
        let source = self.from.open(from)?;
        let end = end_of(self.from, from)?;
        if let Ok(there) = self.to.stat(to)
            && (!self.overwrite || there.is_dir)
        {
            let what = match there.is_dir {
                true => "a directory is there; it is not replaced by a file",
                false => "the name is taken",
            };
            return Err(Error::new(ErrorKind::AlreadyExists, what).in_file(to));
        }
        let aside = unfinished(to);
        let target = self.to.create(&aside)?;
        let written = self.bytes_of(&*source, end, &*target);
        drop(target);
        let named = written.and_then(|()| self.to.rename(&aside, to));
        if named.is_err() {
            let _ = self.to.remove(&aside);
        }
        self.files += 1;
        named
    }

    fn bytes_of(&mut self, source: &dyn File, end: u64, target: &dyn File) -> basalt::Result<()> {
        let mut at = 0;
        while at < end {
            let piece = source.read(at, PIECE.min((end - at) as usize))?;
            if piece.is_empty() {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!("the file ends after {at} of {end} bytes: somebody made it shorter"),
                ));
            }
            target.append(&[IoSlice::new(&piece)], Intent::Bulk)?;
            at += piece.len() as u64;
            self.bytes += piece.len() as u64;
            self.bar.inc(piece.len() as u64);
        }
        target.sync_all()
    }
}

/// `basalt fs cp`.
pub fn copy(from: &Path, to: &Path, overwrite: bool) -> Outcome {
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|e| Failure::os("find", path, e));
    let host = || HostFs::new(HostOptions::new("/")).map_err(|e| Failure::new(e.to_string()));
    let (source, target, image): (Arc<dyn FileSystem>, Arc<dyn FileSystem>, PathBuf);
    let (from_path, mut to_path);
    match (in_image(from), in_image(to)) {
        (Some((name, path)), None) => {
            (source, target) = (open_image(&name, Access::Read)?, host()?);
            (from_path, to_path, image) = (path, absolute(to)?, name);
        }
        (None, Some((name, path))) => {
            (source, target) = (host()?, open_image(&name, Access::Remove)?);
            (from_path, to_path, image) = (absolute(from)?, path, name);
        }
        (Some(_), Some(_)) => {
            return Err(Failure::new(
                "both are in images; copy out of the one first, and then into the other",
            ));
        }
        (None, None) => {
            return Err(Failure::new(
                "neither is in an image; write IMAGE:PATH for the one that is, such as store.lava:basalt-data (the image must be there)",
            ));
        }
    }
    let error = |path: &Path, e: basalt::Error| match (e.kind(), in_image(from).is_some()) {
        (ErrorKind::AlreadyExists, _) if overwrite => Failure::new(e.to_string()),
        (ErrorKind::AlreadyExists, _) => Failure::new(format!(
            "{} is there already; name another target, or replace files with --overwrite",
            path.display()
        )),
        (ErrorKind::NotFound, true) if path == from_path => failed(&image, path, e),
        _ => Failure::new(e.to_string()),
    };
    let stat = source.stat(&from_path).map_err(|e| error(&from_path, e))?;
    let there = target.stat(&to_path).ok();
    if let (Some(there), Some(name)) = (there, from_path.file_name())
        && there.is_dir
    {
        to_path.push(name);
    } else if there.is_some_and(|t| !t.is_dir) && stat.is_dir {
        return Err(Failure::new(format!(
            "{} is a file, and a directory is to be copied there",
            to.display()
        )));
    }
    let mut copy = Copy {
        from: &*source,
        to: &*target,
        from_disk: match in_image(from) {
            Some(_) => None,
            None => rustix::fs::stat(&image).ok().map(|s| (s.st_dev, s.st_ino)),
        },
        overwrite,
        bar: ProgressBar::hidden(),
        files: 0,
        bytes: 0,
        left_out: 0,
        locks: Vec::new(),
    };
    if progress::watched() {
        let all = copy.measure(&from_path).map_err(|e| error(&from_path, e))?;
        copy.bar = progress::bytes("copying", Some(all));
    }
    let clock = Clock::system();
    let began = clock.now();
    let done = copy.all(&from_path, &to_path).and_then(|()| {
        let above = to_path.parent().unwrap_or(Path::new(""));
        target.sync_metadata(above)
    });
    copy.bar.finish_and_clear();
    let (files, bytes, left_out) = (copy.files, copy.bytes, copy.left_out);
    drop(copy);
    done.map_err(|e| {
        let path = e.path().unwrap_or(&to_path).to_path_buf();
        error(&path, e)
    })?;
    eprintln!(
        "basalt: {} copied to {}, {}{}",
        count(files, "file", "files"),
        to_path.display(),
        rate(bytes, clock.now() - began),
        match left_out {
            0 => String::new(),
            n => format!(
                "; {} left out: links, pipes, devices, and the image itself",
                count(n, "entry", "entries")
            ),
        }
    );
    Ok(0)
}
