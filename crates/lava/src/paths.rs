//! What a path leads to, and why it does not.

use std::path::{Component, Path};

use super::meta::Refusal;
use super::record::{Ino, Kind, MAX_NAME, ROOT, Record};
use super::state::State;
use basalt_fs::{Error, ErrorKind, Result};

pub fn refused(refusal: Refusal, path: &Path) -> Error {
    let (kind, text) = match refusal {
        Refusal::Missing => (ErrorKind::NotFound, "no such file or directory"),
        Refusal::Taken => (ErrorKind::AlreadyExists, "the name is taken"),
        Refusal::IsDir => (ErrorKind::InvalidArgument, "it is a directory"),
        Refusal::NotDir => (ErrorKind::InvalidArgument, "it is no directory"),
        Refusal::NotEmpty => (ErrorKind::Io, "the directory is not empty"),
        Refusal::Loop => (
            ErrorKind::InvalidArgument,
            "a directory cannot go into itself",
        ),
        Refusal::Linked => (
            ErrorKind::InvalidArgument,
            "a log with a second name cannot be reused: the other name would lose its content",
        ),
        Refusal::Limit => (
            ErrorKind::InvalidArgument,
            "a name has at most 255 bytes, and an image has room for so many files only",
        ),
        Refusal::Order => (ErrorKind::InvalidArgument, "it cannot be done here"),
    };
    Error::new(kind, text).in_file(path)
}

pub fn parts(path: &Path) -> Result<Vec<&str>> {
    let mut parts = Vec::new();
    for c in path.components() {
        match c {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => match name.to_str() {
                Some(name) if name.len() <= MAX_NAME => parts.push(name),
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
    Ok(parts)
}

/// What a path leads to.
pub fn lookup(state: &State, path: &Path) -> Result<Ino> {
    let mut at = ROOT;
    for part in parts(path)? {
        check_dir(state, at, path)?;
        let found = state.meta.find(at, part);
        at = found.ok_or_else(|| refused(Refusal::Missing, path))?;
    }
    Ok(at)
}

pub fn check_dir(state: &State, ino: Ino, path: &Path) -> Result<()> {
    match state.meta.facts(ino) {
        Ok(facts) if facts.kind == Kind::Dir => Ok(()),
        Ok(_) => Err(refused(Refusal::NotDir, path)),
        Err(r) => Err(refused(r, path)),
    }
}

pub fn lookup_file(state: &State, path: &Path) -> Result<Ino> {
    let ino = lookup(state, path)?;
    match check_dir(state, ino, path) {
        Ok(()) => Err(refused(Refusal::IsDir, path)),
        Err(_) => Ok(ino),
    }
}

/// The directory that holds the last name of a path, and that name.
pub fn parent<'p>(state: &State, path: &'p Path) -> Result<(Ino, &'p str)> {
    let mut names = parts(path)?;
    let last = names
        .pop()
        .ok_or_else(|| Error::invalid("the root cannot be named here").in_file(path))?;
    let mut at = ROOT;
    for part in names {
        check_dir(state, at, path)?;
        let found = state.meta.find(at, part);
        at = found.ok_or_else(|| refused(Refusal::Missing, path))?;
    }
    check_dir(state, at, path)?;
    Ok((at, last))
}

pub fn create(state: &State, path: &Path, kind: Kind) -> Result<Record> {
    let (dir, name) = parent(state, path)?;
    if state.meta.find(dir, name).is_some() {
        return Err(refused(Refusal::Taken, path));
    }
    let ino = state.meta.new_ino().map_err(|_| {
        Error::new(ErrorKind::NoSpace, "the image has room for no more files").in_file(path)
    })?;
    Ok(Record::Create {
        ino,
        kind,
        dir,
        name: name.to_string(),
    })
}
