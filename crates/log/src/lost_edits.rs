//! Signs that a manifest has lost its last edits, for example because it was cut. The end of the
//! manifest then looks as after a crash, but no crash takes an edit that was synced.

use crate::catalog::{Catalog, CheckpointFile, Role};
use crate::checkpoint::{self, CheckpointHead, checkpoint_path};
use crate::index::Freed;
use crate::namespace::LogState;
use crate::physical::{file_path, parse_name};
use basalt_env::Env;
use basalt_fs::{ErrorKind, Result};
use basalt_records::salvage::scan;
use basalt_records::{FileHeader, FileKind, RECORD_HEADER, RecordReader, record_len};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How much of an unnamed file is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// The header of its first record: an open must be fast.
    FirstRecord,
    /// All of it.
    AllRecords,
}

/// Returns the name of a file that proves that a catalog lacks edits, or `None`.
///
/// A physical log has no record before a synced edit names it, and the edit that removes one leaves
/// its number below `next_file`. So an unnamed file with records from `next_file` on is proof. A
/// whole checkpoint from there on is proof if files that the catalog names are missing and the
/// checkpoint does not need them: a lost edit named it and removed them. Otherwise it may be the
/// remains of an interrupted checkpoint.
pub(crate) fn newer_than_catalog(
    env: &Env,
    dir: &Path,
    names: &[String],
    catalog: &Catalog,
    search: Search,
) -> Result<Option<String>> {
    // The unnamed file with this name and number, if it has a header of this store.
    let unnamed = |name: &str, number: Option<u64>| -> Result<Option<(PathBuf, FileHeader)>> {
        let Some(number) = number.filter(|n| *n >= catalog.next_file) else {
            return Ok(None);
        };
        let path = dir.join(name);
        let header = header_of(env, &path, FileKind::Log)?;
        let own = |h: &FileHeader| h.number == number && h.store_id == catalog.store_id;
        Ok(header.filter(own).map(|header| (path, header)))
    };
    for name in names {
        let number = parse_name(name).map(|(number, _)| number);
        if let Some((path, header)) = unnamed(name, number)?
            && has_records(env, &path, &header, search)?
        {
            return Ok(Some(name.clone()));
        }
    }
    let missing = missing_files(dir, names, catalog);
    let misses_checkpoint =
        (catalog.checkpoint).is_some_and(|c| !is_there(names, &checkpoint_path(dir, c.number)));
    if missing.is_empty() && !misses_checkpoint {
        return Ok(None);
    }
    for name in names {
        if let Some((path, header)) = unnamed(name, parse_checkpoint(name))?
            && let Ok((head, logs)) =
                checkpoint::read(env, &path, &CheckpointFile::without_end(&header), 0)
            && (misses_checkpoint || !needs_all(&head, &logs, &missing))
        {
            return Ok(Some(name.clone()));
        }
    }
    Ok(None)
}

fn is_there(names: &[String], path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    names.iter().any(|n| *n == name)
}

/// Returns the numbers and roles of the physical logs that the catalog names and that do not exist.
fn missing_files(dir: &Path, names: &[String], catalog: &Catalog) -> Vec<(u64, Role)> {
    let files = catalog.files.iter().map(|(n, f)| (*n, f.role));
    files
        .filter(|(n, role)| !is_there(names, &file_path(dir, *n, *role)))
        .collect()
}

/// Returns true if a checkpoint needs all of these files: it has records or pages in them, or they
/// are replayed behind it.
fn needs_all(head: &CheckpointHead, logs: &[Arc<LogState>], files: &[(u64, Role)]) -> bool {
    let mut live = Freed::default();
    for log in logs {
        log.lock().index.live(&mut live);
    }
    let live = live.records.iter().chain(live.pages.iter());
    let live: BTreeSet<u64> = live.map(|(file, _)| file).collect();
    let mut files = files.iter();
    files.all(|(n, role)| live.contains(n) || *n >= head.start_of(*role).file)
}

fn has_records(env: &Env, path: &Path, header: &FileHeader, search: Search) -> Result<bool> {
    let file = env.fs().open(path)?;
    if search == Search::AllRecords {
        return Ok(!scan(&*file, path, header.file_id, u64::MAX)?
            .found
            .is_empty());
    }
    let reader = RecordReader::open(file.clone(), path, FileKind::Log, Some(header.file_id))?;
    let Some(first) = reader.map(|reader| reader.tail().end) else {
        return Ok(false);
    };
    let bytes = file.read(first, RECORD_HEADER)?;
    Ok(record_len(header.file_id, first, &bytes).is_ok())
}

/// Returns the number in the name of a checkpoint.
pub(crate) fn parse_checkpoint(name: &str) -> Option<u64> {
    parse_with(name, checkpoint::EXTENSION)
}

/// Returns the number in the name of a names file.
pub(crate) fn parse_names(name: &str) -> Option<u64> {
    parse_with(name, checkpoint::NAMES_EXTENSION)
}

fn parse_with(name: &str, extension: &str) -> Option<u64> {
    let (stem, found) = name.split_once('.')?;
    let number = stem.parse().ok().filter(|n| *n < u64::MAX >> 8)?;
    (found == extension).then_some(number)
}

/// Reads the header of a file of records. Returns `None` if it is missing or damaged.
pub(crate) fn header_of(env: &Env, path: &Path, kind: FileKind) -> Result<Option<FileHeader>> {
    let read = env
        .fs()
        .open(path)
        .and_then(|file| RecordReader::open(file, path, kind, None));
    match read {
        Ok(reader) => Ok(reader.map(|r| r.header().clone())),
        Err(e) => match e.kind() {
            ErrorKind::Corruption | ErrorKind::NotFound | ErrorKind::Unsupported => Ok(None),
            _ => Err(e),
        },
    }
}
