//! The two ends of a copy, the disk and an image, and their differences: names that are no text,
//! links, and replacement.

use crate::failure::Failure;
use crate::filesystem::open_image_alone;
use crate::location::Access;
use basalt::fs::{FileSystem, HostFs, HostOptions};
use basalt::{Error, ErrorKind};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The type of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Dir,
    /// A link of the disk. It is not followed below a path of the command line.
    Link,
    /// A pipe, a socket, a device, or the image at the other end.
    Other,
}

/// One name in a directory.
pub struct Entry {
    pub name: OsString,
    pub kind: Kind,
}

/// One end of a copy.
pub struct End {
    pub fs: Arc<dyn FileSystem>,
    /// Path of the image, or `None` for the disk.
    pub image: Option<PathBuf>,
    /// Device and inode number of the image at the other end, which is not copied into itself.
    other: Option<(u64, u64)>,
}

impl End {
    /// Opens an image, and returns it and the disk as the two ends.
    pub fn pair(image: &Path, access: Access) -> Result<(End, End), Failure> {
        let fs = open_image_alone(image, access)?;
        let host = HostFs::new(HostOptions::new("/")).map_err(|e| Failure::new(e.to_string()))?;
        let there = rustix::fs::stat(image).map_err(|e| Failure::os("look at", image, e))?;
        Ok((
            End {
                fs,
                image: Some(image.to_path_buf()),
                other: None,
            },
            End {
                fs: host,
                image: None,
                other: Some((there.st_dev, there.st_ino)),
            },
        ))
    }

    /// Returns a path of this end in the form of the command line.
    pub fn display_path(&self, path: &Path) -> String {
        match &self.image {
            Some(image) => format!("{}:{}", image.display(), path.display()),
            None => path.display().to_string(),
        }
    }

    /// Returns the failure for an error at this end.
    pub fn failure(&self, e: Error) -> Failure {
        match &self.image {
            Some(image) => Failure::image(image, e),
            None => Failure::new(e.to_string()),
        }
    }

    fn kind_of(&self, stat: &Stat) -> Kind {
        match FileType::from_raw_mode(stat.st_mode) {
            _ if self.other == Some((stat.st_dev, stat.st_ino)) => Kind::Other,
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        }
    }

    fn kind_in_image(&self, path: &Path) -> basalt::Result<Kind> {
        self.fs.stat(path).map(|s| match s.is_dir {
            true => Kind::Dir,
            false => Kind::File,
        })
    }

    /// Returns the type of a path of the command line. Links on the disk are followed.
    pub fn followed_kind(&self, path: &Path) -> basalt::Result<Kind> {
        if self.image.is_some() {
            return self.kind_in_image(path);
        }
        let stat = rustix::fs::stat(path).map_err(|e| name_error(path, e))?;
        Ok(self.kind_of(&stat))
    }

    /// Returns the type of a name, or `None` if it does not exist. A link to nothing exists.
    pub fn has(&self, path: &Path) -> basalt::Result<Option<Kind>> {
        let found = match self.image.is_some() {
            true => self.kind_in_image(path),
            false => rustix::fs::lstat(path)
                .map(|s| self.kind_of(&s))
                .map_err(|e| name_error(path, e)),
        };
        match found {
            Err(e) if e.is_not_found() => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the names in a directory, sorted. Names of the disk are raw bytes, because a
    /// filesystem's own listing has text.
    pub fn entries(&self, dir: &Path) -> basalt::Result<Vec<Entry>> {
        if self.image.is_some() {
            let entry = |e: basalt::fs::DirEntry| Entry {
                name: e.name.into(),
                kind: match e.is_dir {
                    true => Kind::Dir,
                    false => Kind::File,
                },
            };
            return Ok(self.fs.list(dir)?.into_iter().map(entry).collect());
        }
        let error = |e: Errno| Error::io("listing a directory", dir, e.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(dir, flags, Mode::empty()).map_err(error)?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            match rustix::fs::statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => entries.push(Entry {
                    name: OsString::from_vec(name.to_vec()),
                    kind: self.kind_of(&stat),
                }),
                // The file was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(e) => return Err(error(e)),
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Removes the leftover of an interrupted copy, unless another process is writing it (`Busy`).
    /// Nothing is written to the file: it may be the completed copy under its own name by now.
    pub fn remove_leftover(&self, path: &Path) -> basalt::Result<()> {
        if self.image.is_some() {
            // No other process has the image open for writing.
            return self.fs.remove(path);
        }
        let error = |e: Errno| Error::io("removing what an interrupted copy left", path, e.into());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            fd => fd.map_err(error)?,
        };
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                return Err(
                    Error::new(ErrorKind::Busy, "another process is writing it").in_file(path)
                );
            }
            locked => locked.map_err(error)?,
        }
        let held = rustix::fs::fstat(&fd).map_err(error)?;
        match rustix::fs::lstat(path) {
            Ok(there) if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino) => {
                rustix::fs::unlink(path).map_err(error)
            }
            // The copy was completed meanwhile, and another one may have begun.
            _ => Ok(()),
        }
    }

    /// Returns true if this is the lock of a store, and not another file of that name.
    pub fn is_store_lock(&self, path: &Path) -> basalt::Result<bool> {
        if self.has(path)? != Some(Kind::File) {
            return Ok(false);
        }
        let head = self.fs.open(path)?.read(0, 4)?;
        Ok(head.is_empty() || head == b"pid "[..])
    }

    /// Renames a file to a name that must not exist, even if it appeared after the last check.
    pub fn rename_new(&self, from: &Path, to: &Path) -> basalt::Result<()> {
        if self.image.is_some() {
            // No other process has the image open for writing.
            return match self.fs.exists(to)? {
                true => Err(Error::new(ErrorKind::AlreadyExists, "the name is taken").in_file(to)),
                false => self.fs.rename(from, to),
            };
        }
        let error = |e: Errno| Error::io("naming the copy", to, e.into());
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Some filesystems lack this call. A hard link also fails if the name exists.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::link(from, to).map_err(|e| match e {
                    Errno::PERM | Errno::OPNOTSUPP => error(e).context(
                        "the filesystem cannot name a file without replacing another; --overwrite does without",
                    ),
                    e => error(e),
                })?;
                rustix::fs::unlink(from).map_err(error)
            }
            done => done.map_err(error),
        }
    }
}

fn name_error(path: &Path, e: Errno) -> Error {
    Error::io("name_error at a name", path, e.into())
}

#[cfg(test)]
mod tests;
