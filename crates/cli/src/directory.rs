//! Directories of the host: read as entries, and written from entries.
//!
//! Names are raw bytes, relative to the directory, with `/` between components. Nothing is decoded
//! or normalised. Only the content of regular files is carried, without mode, owner or time.
//! Everything is opened relative to an open directory, and links are not followed on the way down.
//! So no name leads out of the directory: not by `..`, not by an absolute path, not by a link that
//! another process makes meanwhile.

use crate::escape::brief;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A directory or file by device and inode number.
type Identity = (u64, u64);

fn identity(stat: &fs::Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// Kinds of entries that a walk leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Symbolic links that are not followed, and followed ones that lead back to a directory above.
    pub links: u64,
    /// Number of sockets, pipes and devices.
    pub special: u64,
    /// Directories in which no file was found, at any depth.
    pub empty_dirs: u64,
    /// The store itself, if it lies inside the directory.
    pub stores: u64,
}

/// A file of a walk, open for reading.
pub struct DirectoryFile {
    /// Path relative to the directory.
    pub path: Vec<u8>,
    /// The open file.
    pub file: File,
    /// Length in bytes when the file was opened.
    pub len: u64,
}

/// Walks a directory's files in the byte order of their paths.
pub struct DirectoryWalk {
    follow: bool,
    store: Option<Identity>,
    stack: Vec<OpenDirectory>,
    path: Vec<u8>,
    files: u64,
    /// Numbers of entries that were left out so far.
    pub left_out: LeftOut,
}

struct OpenDirectory {
    dir: OwnedFd,
    identity: Identity,
    /// Names still to visit, last first. The name of a directory ends with `/`, because paths sort
    /// in this way.
    names: Vec<Vec<u8>>,
    path_len: usize,
    files_before: u64,
}

/// A name in a directory that could not be read: its path and the reason.
#[derive(Debug)]
pub struct UnreadablePath {
    pub path: Vec<u8>,
    pub why: Errno,
}

impl DirectoryWalk {
    /// Starts at `root`. `store` is a directory that is left out.
    pub fn new(root: &Path, follow: bool, store: Option<&Path>) -> Result<DirectoryWalk, Errno> {
        let dir = fs::open(root, dir_flags(true), Mode::empty())?;
        let store = store.and_then(|s| fs::stat(s).ok()).map(|s| identity(&s));
        let mut walk = DirectoryWalk {
            follow,
            store,
            stack: Vec::new(),
            path: Vec::new(),
            files: 0,
            left_out: LeftOut::default(),
        };
        walk.enter(dir)?;
        Ok(walk)
    }

    /// Adds a level for `dir`, whose path is `self.path`.
    fn enter(&mut self, dir: OwnedFd) -> Result<(), Errno> {
        let identity = identity(&fs::fstat(&dir)?);
        if Some(identity) == self.store {
            self.left_out.stores += 1;
            return Ok(());
        }
        if self.stack.iter().any(|l| l.identity == identity) {
            self.left_out.links += 1;
            return Ok(());
        }
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown || (kind == FileType::Symlink && self.follow) {
                let flags = if self.follow {
                    AtFlags::empty()
                } else {
                    AtFlags::SYMLINK_NOFOLLOW
                };
                // A name whose type cannot be read is visited, and fails there with its path.
                kind = match fs::statat(&dir, name, flags) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => FileType::RegularFile,
                };
            }
            match kind {
                FileType::Directory => names.push([name, b"/"].concat()),
                FileType::RegularFile => names.push(name.to_vec()),
                FileType::Symlink => self.left_out.links += 1,
                _ => self.left_out.special += 1,
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.stack.push(OpenDirectory {
            dir,
            identity,
            names,
            path_len: self.path.len(),
            files_before: self.files,
        });
        Ok(())
    }
}

impl Iterator for DirectoryWalk {
    type Item = Result<DirectoryFile, UnreadablePath>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let level = self.stack.last_mut()?;
            self.path.truncate(level.path_len);
            let Some(name) = level.names.pop() else {
                if level.files_before == self.files && self.stack.len() > 1 {
                    self.left_out.empty_dirs += 1;
                }
                self.stack.pop();
                continue;
            };
            self.path.extend_from_slice(&name);
            let opened = match name.strip_suffix(b"/") {
                Some(name) => fs::openat(&level.dir, name, dir_flags(self.follow), Mode::empty())
                    .and_then(|dir| self.enter(dir))
                    .map(|()| None),
                None => open_file(&level.dir, &name, self.follow),
            };
            match opened {
                Ok(Some((file, len))) => {
                    self.files += 1;
                    return Some(Ok(DirectoryFile {
                        path: self.path.clone(),
                        file,
                        len,
                    }));
                }
                // The name is a directory that was entered, or has changed its type since the
                // listing.
                Ok(None) => {}
                Err(why) => {
                    return Some(Err(UnreadablePath {
                        path: self.path.clone(),
                        why,
                    }));
                }
            }
        }
    }
}

fn dir_flags(follow: bool) -> OFlags {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if follow {
        flags
    } else {
        flags | OFlags::NOFOLLOW
    }
}

/// Opens a regular file. Returns `None` for anything else. Never waits for the other end of a pipe.
fn open_file(dir: &OwnedFd, name: &[u8], follow: bool) -> Result<Option<(File, u64)>, Errno> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    if !follow {
        flags |= OFlags::NOFOLLOW;
    }
    let file = fs::openat(dir, name, flags, Mode::empty())?;
    let stat = fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    Ok(Some((File::from(file), stat.st_size as u64)))
}

/// Opens a file of the command line for reading.
pub fn open_named(path: &Path) -> Result<File, Errno> {
    fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// Returns the files and bytes under a directory for a progress bar. The walk is quick, and exact
/// only if the directory does not change.
pub fn measure(root: &Path, follow: bool, store: Option<&Path>) -> (u64, u64) {
    let Ok(walk) = DirectoryWalk::new(root, follow, store) else {
        return (0, 0);
    };
    walk.flatten()
        .fold((0, 0), |(files, bytes), f| (files + 1, bytes + f.len))
}

/// Returns true if the directory `path` is `dir` or lies inside it, by any links.
pub fn is_inside(path: &Path, dir: &Path) -> bool {
    let Ok(dir) = fs::stat(dir).map(|s| identity(&s)) else {
        return false;
    };
    let mut at = fs::open(path, dir_flags(true), Mode::empty());
    let mut below = None;
    while let Ok(here) = at {
        match fs::fstat(&here).map(|s| identity(&s)) {
            Ok(id) if id == dir => return true,
            // The root is its own parent.
            Ok(id) if below != Some(id) => below = Some(id),
            _ => return false,
        }
        at = fs::openat(&here, c"..", dir_flags(false), Mode::empty());
    }
    false
}

/// The reason why an entry was not written.
#[derive(Debug)]
pub enum Refused {
    /// The directory cannot have a file of this key. Other keys may be fine.
    Key(String),
    /// The directory takes no more files.
    Directory(std::io::Error),
}

/// Prefix of the name of a file until it is complete.
const TEMPORARY: &str = ".basalt-export-";

/// Writes entries as files under one directory, and nowhere else.
pub struct DirectoryWriter {
    root: OwnedFd,
    replace: bool,
    /// The open directories, outermost first: the way to the last file written.
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl DirectoryWriter {
    /// Opens `root`, and makes it if it is missing. Without `replace` it must be empty: if not, the
    /// result is `Ok(None)`.
    pub fn new(root: &Path, replace: bool) -> Result<Option<DirectoryWriter>, Errno> {
        let mut made = std::path::PathBuf::new();
        for part in root.components() {
            made.push(part);
            match fs::mkdir(&made, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST | Errno::ISDIR) => {}
                // Only its owner may write to the directory above. The open below decides.
                Err(e) if fs::stat(&made).is_err() => return Err(e),
                Err(_) => {}
            }
        }
        let root = fs::open(root, dir_flags(true), Mode::empty())?;
        if !replace {
            for entry in fs::Dir::read_from(&root)? {
                if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                    return Ok(None);
                }
            }
        }
        Ok(Some(DirectoryWriter {
            root,
            replace,
            open: Vec::new(),
        }))
    }

    /// Writes one file.
    pub fn write(&mut self, path: &[u8], content: &[u8]) -> Result<(), Refused> {
        let parts = components(path).map_err(Refused::Key)?;
        let (name, dirs) = parts.split_last().expect("a path has a component");
        self.descend(dirs)
            .map_err(|e| refuse(e, "a directory of that name cannot be made"))?;
        let dir = self.open.last().map_or(&self.root, |(_, fd)| fd);
        if self.replace {
            if name.starts_with(TEMPORARY.as_bytes()) {
                return Err(Refused::Key(
                    "its name is one that export itself uses".into(),
                ));
            }
            // A new file replaces the old one when it is complete. So a reader never sees half of
            // it, and a link in its place is replaced and not followed.
            let temporary = format!("{TEMPORARY}{}", rustix::process::getpid().as_raw_nonzero());
            let _ = fs::unlinkat(dir, temporary.as_str(), AtFlags::empty());
            write_new(dir, temporary.as_bytes(), content)?;
            fs::renameat(dir, temporary.as_str(), dir, *name).map_err(|e| {
                let _ = fs::unlinkat(dir, temporary.as_str(), AtFlags::empty());
                refuse(e, "a file of that name cannot be made")
            })
        } else {
            write_new(dir, name, content)
        }
    }

    /// Opens the directories `dirs`, each inside the one before, and makes the missing ones.
    fn descend(&mut self, dirs: &[&[u8]]) -> Result<(), Errno> {
        let same = self
            .open
            .iter()
            .zip(dirs)
            .take_while(|((name, _), dir)| name == *dir)
            .count();
        self.open.truncate(same);
        for name in &dirs[same..] {
            let above = self.open.last().map_or(&self.root, |(_, fd)| fd);
            match fs::mkdirat(above, *name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
            let dir = fs::openat(above, *name, dir_flags(false), Mode::empty())?;
            self.open.push((name.to_vec(), dir));
        }
        Ok(())
    }

    /// Syncs everything that was written.
    pub fn sync(&self) -> Result<(), Errno> {
        fs::syncfs(&self.root)
    }
}

fn write_new(dir: impl AsFd, name: &[u8], content: &[u8]) -> Result<(), Refused> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::openat(&dir, name, flags, Mode::from_raw_mode(0o666))
        .map_err(|e| refuse(e, "a file of that name cannot be made"))?;
    File::from(file).write_all(content).map_err(|e| {
        let _ = fs::unlinkat(&dir, name, AtFlags::empty());
        Refused::Directory(e)
    })
}

/// Sorts an error of the operating system into those of this name and those of the whole directory.
fn refuse(e: Errno, what: &str) -> Refused {
    let why = match e {
        Errno::EXIST => "the name is taken, perhaps by a key that differs only in case",
        Errno::ISDIR => "a directory has that name: another key continues it",
        Errno::NOTDIR => "a file stands where a directory is needed: another key is its beginning",
        Errno::LOOP => "a symbolic link is in the way",
        Errno::NAMETOOLONG => "a name in it is longer than the filesystem allows",
        Errno::INVAL | Errno::ILSEQ => "the filesystem does not allow the name",
        e => return Refused::Directory(e.into()),
    };
    Refused::Key(format!("{what}: {why}"))
}

/// Returns the components of a key as a relative path. The error says why the key is no such path.
fn components(key: &[u8]) -> Result<Vec<&[u8]>, String> {
    if key.is_empty() {
        return Err("it is empty".into());
    }
    if key[0] == b'/' {
        return Err("it is an absolute path".into());
    }
    if key.contains(&0) {
        return Err("it holds a zero byte".into());
    }
    let parts: Vec<&[u8]> = key.split(|&b| b == b'/').collect();
    for part in &parts {
        match *part {
            b"" => return Err("it has an empty path component".into()),
            b"." | b".." => {
                return Err(format!("it has the path component {:?}", brief(part)));
            }
            _ => {}
        }
    }
    Ok(parts)
}

/// Returns the bytes of a path.
pub fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tests build directories of the host by hand"
)]
mod tests;
