//! Space that a store keeps, so that records can be removed on a full disk.
//!
//! A removal needs space: an edit of the manifest, and a record of the metalog. The file `RESERVE`
//! has this space. If the disk is full, the file is removed, and the removal goes on. From then on
//! the store takes no new records, because they would use the space up. The next append makes the
//! file again, if the disk has the space. A crash in between leaves no file, and its space free.
//!
//! The reserve is a file, and not a part of the free space, so that other users of the disk cannot
//! take it.

use basalt_env::Env;
use basalt_env::sync::{RwLock, RwLockReadGuard, named};
use basalt_fs::{Error, ErrorKind, LogOptions, Result};
use std::path::{Path, PathBuf};

/// Name of the file.
pub(crate) const RESERVE: &str = "RESERVE";
/// Bytes of the file. A removal takes some 40 KiB in passing, and keeps 8 KiB until the next
/// checkpoint.
const RESERVE_BYTES: u64 = 1 << 20;
/// On a small disk, the file has this part of the disk, and at least `LEAST_BYTES`.
const DISK_PART: u64 = 64;
const LEAST_BYTES: u64 = 128 << 10;

/// The space that a store keeps for removals.
pub(crate) struct Reserve {
    env: Env,
    dir: PathBuf,
    /// True if the store takes new records: the file exists, or cannot be made for another reason
    /// than a full disk. False until the first new record.
    takes_records: RwLock<bool>,
}

/// While it lives, the reserve is not lent.
pub(crate) struct ReserveHeld<'a>(#[expect(dead_code)] RwLockReadGuard<'a, bool>);

impl Reserve {
    pub fn new(env: &Env, dir: &Path) -> Reserve {
        Reserve {
            env: env.clone(),
            dir: dir.to_path_buf(),
            takes_records: named("Reserve::takes_records", RwLock::new(false)),
        }
    }

    /// Makes sure that the store has its reserve, before new records are written. Until the guard
    /// is dropped, it is not lent: new records take none of its space.
    ///
    /// Errors: `NoSpace` if the disk has no space for the reserve.
    pub fn hold(&self) -> Result<ReserveHeld<'_>> {
        loop {
            let takes_records = self.takes_records.read();
            if *takes_records {
                return Ok(ReserveHeld(takes_records));
            }
            drop(takes_records);
            let mut takes_records = self.takes_records.write();
            if !*takes_records {
                self.make()?;
                *takes_records = true;
            }
        }
    }

    /// Gives the space of the reserve to a removal, or to an edit of the manifest. Returns false if
    /// there is no reserve.
    pub fn lend(&self) -> bool {
        let mut takes_records = self.takes_records.write();
        *takes_records = false;
        remove(&self.env, &self.dir)
    }

    /// Returns true if the store takes new records, as far as the process knows.
    pub fn is_held(&self) -> bool {
        *self.takes_records.read()
    }

    /// Makes the reserve if there is none, with what is left of its space if the disk is full. Then
    /// other users of the disk cannot take it, and the next process has it for removals.
    pub fn keep(&self) {
        let mut takes_records = self.takes_records.write();
        if !*takes_records {
            *takes_records = self.make().is_ok();
            if !*takes_records && !exists(&self.env, &self.dir) {
                let free = self.env.fs().space(&self.dir).map_or(0, |space| space.free);
                // A filesystem needs a part of the space for itself.
                let _ = self.make_file(free - free / 8);
            }
        }
    }

    /// Makes the file, unless it exists.
    fn make(&self) -> Result<()> {
        let fs = self.env.fs();
        // Without a reserve the store is as good as ever while the disk is not full. So only a full
        // disk is an error.
        let Ok(space) = fs.space(&self.dir) else {
            return Ok(());
        };
        let bytes = RESERVE_BYTES.min((space.total / DISK_PART).max(LEAST_BYTES));
        // A crash has cut its creation off, or the disk was full, if the file is too small.
        let found = fs.stat(&self.dir.join(RESERVE)).map_or(0, |s| s.allocated);
        if found >= bytes {
            return Ok(());
        }
        let is_full = found + space.free < bytes || {
            let _ = remove(&self.env, &self.dir);
            let made = self.make_file(bytes);
            made.is_err_and(|e| e.kind() == ErrorKind::NoSpace)
        };
        match is_full {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the disk is full: appends are refused until {} KiB are free, which the store keeps for the removal of records",
                    bytes >> 10
                ),
            )
            .in_file(&self.dir)),
        }
    }

    fn make_file(&self, bytes: u64) -> Result<()> {
        let path = self.dir.join(RESERVE);
        let options = LogOptions {
            capacity: bytes,
            reuse: None,
        };
        let made = self.env.fs().create_log(&path, options);
        if made.is_err() {
            let _ = self.env.fs().remove(&path);
        }
        made.map(|_| ())
    }
}

/// Returns true if a store has a reserve.
pub(crate) fn exists(env: &Env, dir: &Path) -> bool {
    env.fs().exists(&dir.join(RESERVE)).unwrap_or(false)
}

/// Removes the reserve of a store. Returns false if there is none.
pub(crate) fn remove(env: &Env, dir: &Path) -> bool {
    let removed = env.fs().remove(&dir.join(RESERVE)).is_ok();
    if removed {
        // Some filesystems give space back only when the removal is durable.
        let _ = env.fs().sync_metadata(dir);
    }
    removed
}
