//! The owner of a directory: whether a store may be opened or created there, and which files in it
//! belong to a store.
//!
//! A file name proves nothing: `20240101.log` has the form of a log's name. If `CURRENT` says that
//! a store is here, the directory is the store's. Without `CURRENT`, a file counts as a store's
//! only by its first bytes, and a tree of pages only if it was written. A file that is not a
//! store's is never touched.

use super::pages::{PAGES_DIR, any_written};
use super::store_files::{LOST_DIR, NamedFiles, StoreFile};
use crate::options::Options;
use crate::version::catalog::Catalog;
use basalt_env::Env;
use basalt_fs::{DirEntry, Error, ErrorKind, Result};
use std::path::Path;

/// The smallest write unit: it reaches the device whole or not at all, and so do the headers in it.
const FIRST_UNIT: usize = 512;

/// Whose a file with the name of a log, a table or a manifest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileOwner {
    /// The file begins as a store's file does or, if it is a table, ends so.
    Store,
    /// Nothing was written into it yet.
    Blank,
    Foreign,
}

fn owner_of(env: &Env, path: &Path, kind: StoreFile) -> Result<FileOwner> {
    let file = env.fs().open(path)?;
    let len = env.fs().stat(path)?.len;
    let first = file.read(0, FIRST_UNIT)?;
    let ours = match kind {
        StoreFile::Table(_) => {
            let last = len.saturating_sub(basalt_table::END_LEN as u64);
            basalt_table::begins_one(&first)
                || basalt_table::ends_one(&file.read(last, basalt_table::END_LEN)?)
        }
        StoreFile::Blob(_) => basalt_blob::begins_one(&first),
        StoreFile::Index(_) => basalt_blob::begins_index(&first),
        _ => basalt_records::begins_one(&first),
    };
    Ok(if ours {
        FileOwner::Store
    } else if first.iter().all(|b| *b == 0) {
        FileOwner::Blank
    } else {
        FileOwner::Foreign
    })
}

/// Returns whether the bytes of a log or table, too, are those of a store file. Used for a
/// directory without `CURRENT`.
pub(crate) fn is_data(env: &Env, dir: &Path, name: &str) -> Result<bool> {
    match StoreFile::parse(name) {
        Some(
            kind @ (StoreFile::Table(_)
            | StoreFile::Blob(_)
            | StoreFile::Index(_)
            | StoreFile::Log(_)),
        ) => Ok(owner_of(env, &dir.join(name), kind)? == FileOwner::Store),
        _ => Ok(false),
    }
}

/// The evidence in a directory's entries.
struct DirContents<'a> {
    /// True if a store is there, whole or damaged, or the remains of creating one.
    store: bool,
    /// Files with the names of store files that belong to another program.
    foreign_files: Vec<&'a str>,
}

fn examine<'a>(env: &Env, dir: &Path, entries: &'a [DirEntry]) -> Result<DirContents<'a>> {
    let named = || {
        let files = entries.iter().filter(|e| !e.is_dir);
        files.filter_map(|e| Some((e.name.as_str(), StoreFile::parse(&e.name)?)))
    };
    let mut contents = DirContents {
        store: named().any(|(_, f)| f == StoreFile::Current),
        foreign_files: Vec::new(),
    };
    if contents.store {
        return Ok(contents);
    }
    // The lock file is durable before the first manifest is begun. So a manifest without a header
    // beside a lock file was damaged by a power cut.
    let locked = named().any(|(_, f)| f == StoreFile::Lock);
    let (mut data, mut manifest) = (false, false);
    for (name, kind) in named() {
        let is_manifest = matches!(kind, StoreFile::Manifest(_));
        if kind.number().is_none() {
            continue;
        }
        match owner_of(env, &dir.join(name), kind)? {
            FileOwner::Store if is_manifest => manifest = true,
            FileOwner::Store => data = true,
            FileOwner::Blank if is_manifest => manifest = true,
            FileOwner::Foreign if is_manifest && locked => manifest = true,
            FileOwner::Blank | FileOwner::Foreign => contents.foreign_files.push(name),
        }
    }
    data = data || any_written(env, dir)?.is_some();
    if data {
        // A store that lost `CURRENT`. What does not verify beside it may be its own.
        contents.foreign_files.clear();
    }
    contents.store = data || (manifest && contents.foreign_files.is_empty());
    Ok(contents)
}

/// Returns whether a directory holds a store, whole or damaged, or the remains of creating one.
pub(crate) fn holds_a_store(env: &Env, dir: &Path) -> Result<bool> {
    Ok(examine(env, dir, &env.fs().list(dir)?)?.store)
}

/// Fails if a directory holds no store and none may be created there. If files of another program
/// are there, the directory's name is most likely a mistake, and no store is created. The caller
/// has not taken the lock yet, which is a file: a failed check leaves no file behind.
pub(crate) fn check_can_open_or_create(env: &Env, dir: &Path, options: &Options) -> Result<()> {
    let entries = env.fs().list(dir)?;
    let contents = examine(env, dir, &entries)?;
    if contents.store {
        return Ok(());
    }
    if !options.create_if_missing {
        return Err(Error::new(
            ErrorKind::NotFound,
            "no store here, and create_if_missing is false",
        )
        .in_file(dir));
    }
    if options.allow_nonempty_dir {
        // A store would take them for its own, and delete them.
        return match contents.foreign_files.iter().min() {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "{} holds {name}, which is named as a store's file and is none; a store made there would delete it",
                dir.display()
            ))),
        };
    }
    let parsed = |e: &DirEntry| StoreFile::parse(&e.name).filter(|_| !e.is_dir);
    let foreign: Vec<&str> = entries
        .iter()
        .filter(|e| parsed(e).is_none() && !is_ignorable(e))
        .map(|e| e.name.as_str())
        .chain(contents.foreign_files)
        .collect();
    let Some(first) = foreign.iter().min() else {
        return Ok(());
    };
    let others = match foreign.len() - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Err(Error::invalid(format!(
        "{} holds files and no store ({first}{others}); give an empty or missing directory, or allow it with allow_nonempty_dir",
        dir.display()
    )))
}

/// Returns whether a name says nothing about the owner of its directory: names made by `mkfs`, by
/// repair, by a probe of the device, and by a store that was never finished.
fn is_ignorable(e: &DirEntry) -> bool {
    e.name.starts_with(".basalt-probe-")
        || (e.is_dir && matches!(e.name.as_str(), "lost+found" | LOST_DIR | PAGES_DIR))
}

/// Removes files that were made after the manifest's last edit, so that recovery has their space.
/// No other manifest can name these files, even after another power cut. Files that an edit has
/// dropped do not have this property.
pub(crate) fn remove_unfinished(env: &Env, dir: &Path, names: &[String], next_file: u64) {
    for name in names {
        // A manifest is among it that `CURRENT` was to name, and does not.
        let number = StoreFile::parse(name).and_then(StoreFile::number);
        if number.is_some_and(|n| n >= next_file) {
            let _ = env.fs().remove(&dir.join(name));
        }
    }
}

/// Removes what no catalog names any more. Names that are not a store's are left alone.
pub(crate) fn remove_unused_files(
    env: &Env,
    dir: &Path,
    names: &[String],
    catalog: &Catalog,
    manifest: u64,
) {
    let named = NamedFiles::new(catalog, Some(manifest));
    for name in names {
        if StoreFile::parse(name).is_some_and(|file| !named.has(file)) {
            // If the removal fails, the next open tries again.
            let _ = env.fs().remove(&dir.join(name));
        }
    }
}
