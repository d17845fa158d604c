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
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_env::sync::{RwLock, RwLockReadGuard, named};
use basalt_fs::{Error, ErrorKind, LogOptions, Result};
use std::path::{Path, PathBuf};

/// Name of the file.
pub(crate) const RESERVE: &str = "RESERVE";
/// Bytes of the file. A removal takes about 40 KiB for a moment, and keeps at most 10 KiB until the
/// next checkpoint.
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
    /// True since the store was closed. It changes under the lock of `takes_records`.
    closed: AtomicBool,
}

/// While this guard exists, the reserve is not released.
pub(crate) struct ReserveHeld<'a>(#[expect(dead_code)] RwLockReadGuard<'a, bool>);

impl Reserve {
    pub fn new(env: &Env, dir: &Path) -> Reserve {
        Reserve {
            env: env.clone(),
            dir: dir.to_path_buf(),
            takes_records: named("Reserve::takes_records", RwLock::new(false)),
            closed: AtomicBool::new(false),
        }
    }

    /// Leaves the file alone from now on: another process may have the directory.
    pub fn close(&self) {
        let mut takes_records = self.takes_records.write();
        *takes_records = false;
        self.closed.store(true, SeqCst);
    }

    /// Makes sure that the store has its reserve, before new records are written. Until the guard
    /// is dropped, the reserve is not released: new records take none of its space.
    ///
    /// Errors: `NoSpace` if the disk has no space for the reserve; `Closed`.
    pub fn hold(&self) -> Result<ReserveHeld<'_>> {
        loop {
            let takes_records = self.takes_records.read();
            if *takes_records {
                return Ok(ReserveHeld(takes_records));
            }
            drop(takes_records);
            let mut takes_records = self.takes_records.write();
            if self.closed.load(SeqCst) {
                return Err(closed());
            }
            if !*takes_records {
                self.make()?;
                *takes_records = true;
            }
        }
    }

    /// Gives the space of the reserve to a removal, or to an edit of the manifest. Returns false if
    /// there is no reserve.
    pub fn release(&self) -> bool {
        let mut takes_records = self.takes_records.write();
        *takes_records = false;
        !self.closed.load(SeqCst) && self.allocated() > 0 && remove(&self.env, &self.dir)
    }

    /// Returns true if the store takes new records, as far as the process knows.
    pub fn is_held(&self) -> bool {
        *self.takes_records.read()
    }

    /// Makes the reserve if there is none. If the disk has too little space, the file gets the
    /// space that is free. Then other users of the disk cannot take it, and the next process has it
    /// for removals.
    pub fn keep(&self) {
        let mut takes_records = self.takes_records.write();
        if *takes_records || self.closed.load(SeqCst) {
            return;
        }
        *takes_records = self.make().is_ok();
        if let Ok(space) = self.env.fs().space(&self.dir)
            && !*takes_records
        {
            // A filesystem needs a part of the space for itself.
            let left = space.free - space.free / 8;
            if self.allocated() < size_on(&space).min(left) {
                let _ = self.grow(size_on(&space).min(left));
            }
        }
    }

    /// Returns the bytes that the file has.
    fn allocated(&self) -> u64 {
        let stat = self.env.fs().stat(&self.dir.join(RESERVE));
        stat.map_or(0, |stat| stat.allocated)
    }

    /// Makes the file, unless it exists.
    fn make(&self) -> Result<()> {
        // The reserve is needed only on a full disk, so other failures are ignored.
        let Ok(space) = self.env.fs().space(&self.dir) else {
            return Ok(());
        };
        let bytes = size_on(&space);
        // If the file is too small, a crash interrupted its creation, or the disk was full.
        let found = self.allocated();
        if found >= bytes {
            return Ok(());
        }
        let is_full = found + space.free < bytes || {
            let made = self.grow(bytes);
            made.is_err_and(|e| e.kind() == ErrorKind::NoSpace)
        };
        match is_full {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the disk is full: the store needs {} KiB of free space before it accepts appends; trim or delete logs, or free space on the device",
                    bytes >> 10
                ),
            )
            .in_file(&self.dir)),
        }
    }

    /// Replaces the file by a larger one. If there is no space for it, the file has its old size.
    fn grow(&self, bytes: u64) -> Result<()> {
        let found = self.allocated();
        let _ = remove(&self.env, &self.dir);
        let made = self.make_file(bytes);
        if made.is_err() && found > 0 {
            let _ = self.make_file(found);
        }
        made
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

/// Returns the error of a call on a store that was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the log engine was closed")
}

/// Returns the bytes of the file on a disk with enough space.
fn size_on(space: &basalt_fs::Space) -> u64 {
    RESERVE_BYTES.min((space.total / DISK_PART).max(LEAST_BYTES))
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
