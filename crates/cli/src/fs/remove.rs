//! Names of an image that commands make and remove: directories, files, and stores that no process
//! uses.

use super::copy::LOCK;
use super::show::{display_path, failed};
use crate::failure::{Failure, Outcome};
use crate::output::note;
use crate::progress::{count, human_bytes};
use basalt::fs::{FileSystem, LockGuard};
use basalt::lava::LavaFs;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Returns a path in the form of the image, without `.` components. A path with `..` stays as it
/// is, and the filesystem refuses it.
fn plain(path: &Path) -> PathBuf {
    let parts = path.components();
    let parts = parts.filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
    parts.collect()
}

/// Runs `basalt fs mkdir`.
pub fn make(fs: &LavaFs, image: &Path, paths: &[PathBuf]) -> Outcome {
    for path in paths {
        fs.create_dir(path).map_err(|e| match e.kind() {
            basalt::ErrorKind::AlreadyExists => Failure::new(format!(
                "{} cannot be made in {}: it, or one above it, is a file",
                display_path(path),
                image.display()
            )),
            _ => Failure::image(image, e),
        })?;
    }
    fs.sync_metadata(Path::new(""))
        .map_err(|e| Failure::image(image, e))?;
    Ok(0)
}

/// Counts of what was removed.
#[derive(Default)]
struct Removed {
    files: u64,
    dirs: u64,
    /// Bytes of space that became free.
    bytes: u64,
    /// Inodes that remain under another name, such as files that a checkpoint shares.
    kept: BTreeSet<u64>,
}

/// Runs `basalt fs rm`.
pub fn remove(fs: &LavaFs, image: &Path, paths: &[PathBuf], recursive: bool) -> Outcome {
    let mut all: Vec<PathBuf> = Vec::new();
    // All paths are checked before the first one is removed.
    for path in paths {
        let path = plain(path);
        let stat = fs.stat(&path).map_err(|e| failed(image, &path, e))?;
        if path.as_os_str().is_empty() {
            return Err(Failure::new(format!(
                "the root of {} is not removed; name what is in it",
                image.display()
            )));
        }
        if stat.is_dir && !recursive {
            return Err(Failure::new(format!(
                "{} in {} is a directory; -r removes it with all in it",
                display_path(&path),
                image.display()
            )));
        }
        all.push(path);
    }
    let error = |e| Failure::image(image, e);
    // A path below another one is removed with it, and a path that was given twice is removed once.
    all.sort();
    all.dedup_by(|path, before| path.starts_with(before));
    let mut locks = Vec::new();
    for path in &all {
        lock_stores(fs, image, path, &mut locks)?;
    }
    let mut removed = Removed::default();
    for path in all {
        remove_all(fs, path, &mut removed).map_err(error)?;
    }
    fs.sync_metadata(Path::new("")).map_err(error)?;
    let dirs = match removed.dirs {
        0 => String::new(),
        n => format!(" and {}", count(n, "directory", "directories")),
    };
    let kept = match removed.kept.len() as u64 {
        0 => String::new(),
        n => format!(
            "; {} under another name, and so does the space",
            count(n, "file goes on", "files go on")
        ),
    };
    note(format_args!(
        "basalt: removed {}{dirs} from {}, {} freed{kept}",
        count(removed.files, "file", "files"),
        image.display(),
        human_bytes(removed.bytes)
    ));
    Ok(0)
}

/// Takes the locks of all stores at and below a path, so that no store in use is removed.
fn lock_stores(
    fs: &LavaFs,
    image: &Path,
    path: &Path,
    locks: &mut Vec<Box<dyn LockGuard>>,
) -> Result<(), Failure> {
    let mut todo = vec![path.to_path_buf()];
    while let Some(path) = todo.pop() {
        let error = |e| failed(image, &path, e);
        if !fs.stat(&path).map_err(error)?.is_dir {
            continue;
        }
        for e in fs.list(&path).map_err(error)? {
            let below = path.join(&e.name);
            if e.is_dir {
                todo.push(below);
            } else if e.name == LOCK {
                let lock = fs.lock(&below);
                locks.push(lock.map_err(|e| Failure::image(image, e))?);
            }
        }
    }
    Ok(())
}

enum Step {
    Look(PathBuf),
    /// A directory that is empty by now.
    Empty(PathBuf),
}

fn remove_all(fs: &LavaFs, path: PathBuf, removed: &mut Removed) -> basalt::Result<()> {
    let mut todo = vec![Step::Look(path)];
    while let Some(step) = todo.pop() {
        let path = match step {
            Step::Look(path) => path,
            Step::Empty(dir) => {
                fs.remove(&dir)?;
                removed.dirs += 1;
                continue;
            }
        };
        let report = fs.describe(&path)?;
        if report.is_dir {
            let entries = fs.list(&path)?;
            todo.push(Step::Empty(path.clone()));
            todo.extend(entries.iter().map(|e| Step::Look(path.join(&e.name))));
            continue;
        }
        fs.remove(&path)?;
        removed.files += 1;
        if report.links > 1 {
            removed.kept.insert(report.inode);
            continue;
        }
        removed.kept.remove(&report.inode);
        let space = report.extents.iter().filter(|e| e.place.is_some());
        removed.bytes += space.map(|e| e.len).sum::<u64>();
    }
    Ok(())
}
