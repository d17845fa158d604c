//! Finds the inode that a path leads to, and the errors for paths.

use std::path::{Component, Path};

use super::meta::ApplyError;
use super::metadata_record::{Ino, InodeKind, JournalRecord, MAX_NAME, ROOT};
use super::state::MountState;
use basalt_fs::{Error, ErrorKind, Result};

/// Returns the error for a record about `path` that cannot be applied.
pub fn apply_error(e: ApplyError, path: &Path) -> Error {
    let (kind, text) = match e {
        ApplyError::NotFound => (ErrorKind::NotFound, "no such file or directory"),
        ApplyError::Exists => (ErrorKind::AlreadyExists, "the name is taken"),
        ApplyError::IsDir => (ErrorKind::InvalidArgument, "it is a directory"),
        ApplyError::NotDir => (ErrorKind::InvalidArgument, "it is no directory"),
        ApplyError::NotEmpty => (ErrorKind::Io, "the directory is not empty"),
        ApplyError::Loop => (
            ErrorKind::InvalidArgument,
            "a directory cannot go into itself",
        ),
        ApplyError::HasLinks => (
            ErrorKind::InvalidArgument,
            "a log with a second name cannot be reused: the other name would lose its content",
        ),
        ApplyError::BadName => (
            ErrorKind::InvalidArgument,
            "a name has 1 to 255 bytes, no `/`, and is neither `.` nor `..`",
        ),
        ApplyError::TooManyFiles => (
            ErrorKind::InvalidArgument,
            "the image has the most files and directories that its size allows (four for each block), or 4 GiB of names; remove some, or make it larger with `basalt fs grow`",
        ),
        ApplyError::Limit => (
            ErrorKind::InvalidArgument,
            "a file has less than 2^30 blocks and less than 2^30 names",
        ),
        ApplyError::OutOfPlace => (ErrorKind::InvalidArgument, "it cannot be done here"),
    };
    Error::new(kind, text).in_file(path)
}

/// Returns the names of a path from the root on.
///
/// Errors: `InvalidArgument` for a name that is too long or not UTF-8, and for `..`.
pub fn components(path: &Path) -> Result<Vec<&str>> {
    let mut components = Vec::new();
    for c in path.components() {
        match c {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => match name.to_str() {
                Some(name) if name.len() <= MAX_NAME => components.push(name),
                Some(_) => {
                    return Err(Error::invalid("a name has at most 255 bytes").in_file(path));
                }
                None => return Err(Error::invalid("the path is not UTF-8").in_file(path)),
            },
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Error::invalid("the path may not step upward").in_file(path));
            }
        }
    }
    Ok(components)
}

/// Returns the inode that a path leads to.
///
/// Errors: `NotFound`; `InvalidArgument` if a part of the path is no directory.
pub fn lookup(state: &MountState, path: &Path) -> Result<Ino> {
    let mut at = ROOT;
    for part in components(path)? {
        check_dir(state, at, path)?;
        let found = state.meta.find(at, part);
        at = found.ok_or_else(|| apply_error(ApplyError::NotFound, path))?;
    }
    Ok(at)
}

/// Returns an error if an inode is no directory.
pub fn check_dir(state: &MountState, ino: Ino, path: &Path) -> Result<()> {
    match state.meta.attrs(ino) {
        Ok(attrs) if attrs.kind == InodeKind::Dir => Ok(()),
        Ok(_) => Err(apply_error(ApplyError::NotDir, path)),
        Err(r) => Err(apply_error(r, path)),
    }
}

/// Returns the inode of the file that a path leads to.
///
/// Errors: those of [`lookup`]; `InvalidArgument` for a directory.
pub fn lookup_file(state: &MountState, path: &Path) -> Result<Ino> {
    let ino = lookup(state, path)?;
    match check_dir(state, ino, path) {
        Ok(()) => Err(apply_error(ApplyError::IsDir, path)),
        Err(_) => Ok(ino),
    }
}

/// Returns the directory of the last name of a path, and that name.
pub fn parent<'p>(state: &MountState, path: &'p Path) -> Result<(Ino, &'p str)> {
    let mut names = components(path)?;
    let last = names
        .pop()
        .ok_or_else(|| Error::invalid("the root cannot be named here").in_file(path))?;
    let mut at = ROOT;
    for part in names {
        check_dir(state, at, path)?;
        let found = state.meta.find(at, part);
        at = found.ok_or_else(|| apply_error(ApplyError::NotFound, path))?;
    }
    check_dir(state, at, path)?;
    Ok((at, last))
}

/// Returns the record that makes an inode with the name `path`.
///
/// Errors: `AlreadyExists`; `NoSpace` if the image has no free inode; those of [`parent`].
pub fn create(state: &MountState, path: &Path, kind: InodeKind) -> Result<JournalRecord> {
    let (dir, name) = parent(state, path)?;
    if state.meta.find(dir, name).is_some() {
        return Err(apply_error(ApplyError::Exists, path));
    }
    let ino = state.meta.new_ino().map_err(|_| {
        Error::new(ErrorKind::NoSpace, "the image has room for no more files").in_file(path)
    })?;
    Ok(JournalRecord::Create {
        ino,
        kind,
        dir,
        name: name.to_string(),
    })
}
