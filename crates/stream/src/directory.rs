//! The directory of a stream, before there is a stream in it and after.

use crate::catalog::{self, Catalog, Change, NewExtent};
use crate::extent::ExtentId;
use basalt_env::Env;
use basalt_fs::{DirEntry, Error, ErrorKind, Result};
use basalt_records::manifest::{CURRENT, Manifest, manifest_path};
use std::path::Path;

const MANIFEST_PREFIX: &str = "MANIFEST-";
const CURRENT_TMP: &str = "CURRENT.tmp";
/// Number of the first manifest of a stream. The first open replaces it, so a directory that has
/// only this one had no stream yet.
const FIRST_MANIFEST: u64 = 1;

/// Returns the number of a manifest with this name.
pub(crate) fn manifest_number(name: &str) -> Option<u64> {
    let number: u64 = name.strip_prefix(MANIFEST_PREFIX)?.parse().ok()?;
    (Path::new(name) == manifest_path(Path::new(""), number)).then_some(number)
}

/// Makes a directory ready for a stream: what an interrupted creation or link left is removed.
///
/// Errors: `AlreadyExists`; `InvalidArgument` for other files; `Corruption` if there was a stream
/// whose `CURRENT` is missing.
pub(crate) fn prepare(env: &Env, dir: &Path) -> Result<()> {
    let fs = env.fs();
    fs.create_dir(dir)?;
    if fs.exists(&dir.join(CURRENT))? {
        let what = format!("there is a stream in {} already", dir.display());
        return Err(Error::new(ErrorKind::AlreadyExists, what));
    }
    let entries = fs.list(dir)?;
    if let Some(e) = lost_current(dir, &entries) {
        return Err(e);
    }
    for entry in &entries {
        let manifest = manifest_number(&entry.name);
        let is_own = manifest.is_some()
            || ExtentId::of_file_name(&entry.name).is_some()
            || entry.name == CURRENT_TMP;
        if entry.is_dir || !is_own {
            return Err(Error::invalid(format!(
                "{} has other files, such as {}; name an empty or missing directory",
                dir.display(),
                entry.name
            )));
        }
    }
    entries
        .iter()
        .try_for_each(|entry| fs.remove(&dir.join(&entry.name)))
}

/// Returns `Corruption` if a manifest proves that the directory had a stream whose `CURRENT` is
/// missing; otherwise `None`.
fn lost_current(dir: &Path, entries: &[DirEntry]) -> Option<Error> {
    let is_of_stream = |entry: &&DirEntry| {
        manifest_number(&entry.name).is_some_and(|number| number > FIRST_MANIFEST)
    };
    let entry = entries.iter().find(is_of_stream)?;
    let what = format!("CURRENT is missing, but {} is there", entry.name);
    Some(Error::corruption(&dir.join(CURRENT), 0, what))
}

/// Returns the error for an open that finds no `CURRENT`: `Corruption` if a manifest proves that
/// there was a stream, otherwise `NotFound`.
pub(crate) fn no_stream(env: &Env, dir: &Path) -> Result<Error> {
    let entries = match env.fs().list(dir) {
        Err(e) if e.is_not_found() => Vec::new(),
        entries => entries?,
    };
    Ok(lost_current(dir, &entries).unwrap_or_else(|| {
        let is_extent = |entry: &DirEntry| ExtentId::of_file_name(&entry.name).is_some();
        let what = match entries.iter().any(is_extent) {
            // To create a stream would remove them.
            true => format!("there are extents in {}, and no stream", dir.display()),
            false => format!("there is no stream in {}; create it first", dir.display()),
        };
        Error::new(ErrorKind::NotFound, what)
    }))
}

/// Makes the files of a directory a stream, durably. The extents are given in their order, with
/// their lengths.
pub(crate) fn install(env: &Env, dir: &Path, extents: &[(NewExtent, u64)]) -> Result<()> {
    let mut catalog = Catalog::default();
    let stream_id = loop {
        match env.random().next_u128() {
            0 => {}
            id => break id,
        }
    };
    let next = Change::NextManifest(FIRST_MANIFEST + 1);
    catalog.apply(&[Change::Stream(stream_id), next])?;
    for (extent, len) in extents {
        catalog.apply(&[Change::Add(*extent), Change::Seal(extent.id, *len)])?;
    }
    // The names of the extents, and of the directory, must be there before the manifest is.
    env.fs().sync_metadata(dir)?;
    sync_ancestors(env, dir)?;
    let state = catalog::encode(&catalog.changes());
    Manifest::create(env, dir, stream_id, FIRST_MANIFEST, &state)?;
    Ok(())
}

/// Makes the names of a directory and of its parents survive a power cut. A directory that this
/// process may not open, or cannot sync, is skipped: this process made no directory in it.
fn sync_ancestors(env: &Env, dir: &Path) -> Result<()> {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const EINVAL: i32 = 22;
    const EROFS: i32 = 30;
    for parent in dir.ancestors().skip(1) {
        match env.fs().sync_metadata(parent) {
            Err(e) if matches!(e.os_error(), Some(EPERM | EACCES | EINVAL | EROFS)) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Removes the files of a stream: first `CURRENT`, durably, so that an interrupted removal leaves
/// no stream. Another call removes the other files.
pub(crate) fn destroy(env: &Env, dir: &Path) -> Result<()> {
    let fs = env.fs();
    let steps: [fn(&str) -> bool; 3] = [
        |name| name == CURRENT || name == CURRENT_TMP,
        |name| ExtentId::of_file_name(name).is_some(),
        |name| manifest_number(name).is_some(),
    ];
    for is_next in steps {
        for entry in fs.list(dir)?.iter().filter(|e| !e.is_dir) {
            if is_next(&entry.name) {
                fs.remove(&dir.join(&entry.name))?;
            }
        }
        fs.sync_metadata(dir)?;
    }
    Ok(())
}
