//! Folders of the host, read as records and written back.
//!
//! Names are raw bytes, relative to the folder, `/` between components; nothing is decoded or
//! normalised. Only regular files are carried: their content, not their mode, owner or time.
//! Everything is opened relative to a directory that is already open, and links are not followed on
//! the way down, so that a name can never lead out of the folder: not by `..`, not by an absolute
//! path, not by a link that somebody put there in the meantime.

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

/// What a walk leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Symbolic links, when they are not followed; and followed ones that lead back to where they
    /// stand.
    pub links: u64,
    /// Sockets, pipes, devices.
    pub special: u64,
    /// Directories in which no file was found, at any depth.
    pub empty_dirs: u64,
    /// The store itself, when it lies inside the folder.
    pub stores: u64,
}

/// A file of a walk, open for reading.
pub struct FolderFile {
    /// Path relative to the folder.
    pub path: Vec<u8>,
    /// The file.
    pub file: File,
    /// Its length when it was opened.
    pub len: u64,
}

/// Walks a folder's files in the byte order of their paths.
pub struct Walk {
    follow: bool,
    store: Option<Identity>,
    stack: Vec<Level>,
    path: Vec<u8>,
    files: u64,
    /// What was left out so far.
    pub left_out: LeftOut,
}

struct Level {
    dir: OwnedFd,
    identity: Identity,
    /// Names still to visit, last first. A directory's name ends with `/`: that is how paths sort.
    names: Vec<Vec<u8>>,
    path_len: usize,
    files_before: u64,
}

/// Something in a folder that could not be read: its path and why.
#[derive(Debug)]
pub struct Unreadable {
    pub path: Vec<u8>,
    pub why: Errno,
}

impl Walk {
    /// Starts at `root`. `store` is a directory that is left out.
    pub fn new(root: &Path, follow: bool, store: Option<&Path>) -> Result<Walk, Errno> {
        let dir = fs::open(root, dir_flags(true), Mode::empty())?;
        let store = store.and_then(|s| fs::stat(s).ok()).map(|s| identity(&s));
        let mut walk = Walk {
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
                // A name that cannot be looked at is visited, and fails there with its path.
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
        self.stack.push(Level {
            dir,
            identity,
            names,
            path_len: self.path.len(),
            files_before: self.files,
        });
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<FolderFile, Unreadable>;

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
                    return Some(Ok(FolderFile {
                        path: self.path.clone(),
                        file,
                        len,
                    }));
                }
                // A directory that was entered; or a name that became something else since it was
                // listed.
                Ok(None) => {}
                Err(why) => {
                    return Some(Err(Unreadable {
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

/// Opens a regular file; `None` for anything else. Never waits for the other end of a pipe.
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

/// Opens a file that the user named, for reading.
pub fn open_named(path: &Path) -> Result<File, Errno> {
    fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// Files and bytes under a folder, for a progress bar: quick, and only as right as the folder is
/// still.
pub fn measure(root: &Path, follow: bool, store: Option<&Path>) -> (u64, u64) {
    let Ok(walk) = Walk::new(root, follow, store) else {
        return (0, 0);
    };
    walk.flatten()
        .fold((0, 0), |(files, bytes), f| (files + 1, bytes + f.len))
}

/// True when the directory `path` is `dir` or lies inside it, whatever links lead there.
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

/// Why a record was not written.
#[derive(Debug)]
pub enum Refused {
    /// This key cannot be a file of the folder; others can.
    Key(String),
    /// The folder takes no more files.
    Folder(std::io::Error),
}

/// How a file is named until it is whole.
const TEMPORARY: &str = ".basalt-export-";

/// Writes records as files under one folder, and nowhere else.
pub struct FolderWriter {
    root: OwnedFd,
    replace: bool,
    /// Directories open now, outermost first: the way to the last file written.
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl FolderWriter {
    /// Opens `root`, made when it is not there. Without `replace` it must be empty: `Ok(None)` when
    /// it is not.
    pub fn new(root: &Path, replace: bool) -> Result<Option<FolderWriter>, Errno> {
        let mut made = std::path::PathBuf::new();
        for part in root.components() {
            made.push(part);
            match fs::mkdir(&made, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST | Errno::ISDIR) => {}
                // A directory above may be one that only its owner may write to: what counts is the
                // open below.
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
        Ok(Some(FolderWriter {
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
            .map_err(|e| refuse(e, "a folder of that name cannot be made"))?;
        let dir = self.open.last().map_or(&self.root, |(_, fd)| fd);
        if self.replace {
            if name.starts_with(TEMPORARY.as_bytes()) {
                return Err(Refused::Key(
                    "its name is one that export itself uses".into(),
                ));
            }
            // A new file takes the old one's name when it is whole: a reader never sees half of it,
            // and a link in its place is replaced, not followed.
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

    /// Opens the directories `dirs`, one inside the other, and makes those that are missing.
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

    /// Makes everything written survive a power cut.
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
        Refused::Folder(e)
    })
}

/// Sorts an error of the operating system into those of this name and those of the whole folder.
fn refuse(e: Errno, what: &str) -> Refused {
    let why = match e {
        Errno::EXIST => "the name is taken, perhaps by a key that differs only in case",
        Errno::ISDIR => "a folder has that name: another key continues it",
        Errno::NOTDIR => "a file stands where a folder is needed: another key is its beginning",
        Errno::LOOP => "a symbolic link is in the way",
        Errno::NAMETOOLONG => "a name in it is longer than the filesystem allows",
        Errno::INVAL | Errno::ILSEQ => "the filesystem does not allow the name",
        e => return Refused::Folder(e.into()),
    };
    Refused::Key(format!("{what}: {why}"))
}

/// The components of a key as a relative path; why not, when it is not one.
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

/// A path's bytes.
pub fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tests build folders of the host by hand"
)]
mod tests;
