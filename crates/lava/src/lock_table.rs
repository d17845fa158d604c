//! Locks on paths of an image, within the one process that has the image open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use basalt_fs::{Error, ErrorKind, LockGuard, Result};

/// The locks that are held: for each path the number of guards that share the lock, 0 for a lock
/// that one guard holds alone.
#[derive(Default)]
pub struct LockTable(Mutex<BTreeMap<PathBuf, usize>>);

/// The table of locks, while one thread reads or changes it.
pub struct LockedTable<'t> {
    table: &'t Arc<LockTable>,
    held: MutexGuard<'t, BTreeMap<PathBuf, usize>>,
}

/// A lock on a path. It may outlive the mount.
struct PathLock {
    table: Weak<LockTable>,
    path: PathBuf,
}

impl LockGuard for PathLock {}

impl Drop for PathLock {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            let mut held = table.0.lock();
            match held.get_mut(&self.path) {
                Some(n) if *n > 1 => *n -= 1,
                _ => {
                    held.remove(&self.path);
                }
            }
        }
    }
}

impl LockTable {
    /// Waits until no other thread reads or changes the table.
    pub fn lock(self: &Arc<Self>) -> LockedTable<'_> {
        LockedTable {
            table: self,
            held: self.0.lock(),
        }
    }
}

impl LockedTable<'_> {
    /// Returns `Busy` if the lock on a path is held. `path` names it in the error.
    pub fn check_free(&self, key: &Path, path: &Path) -> Result<()> {
        match self.held.contains_key(key) {
            true => Err(busy(path)),
            false => Ok(()),
        }
    }

    /// Takes the lock on a path, which must be free, for one guard alone.
    pub fn take(mut self, key: PathBuf) -> Box<dyn LockGuard> {
        self.held.insert(key.clone(), 0);
        self.guard(key)
    }

    /// Takes the lock on a path together with other guards that share it.
    ///
    /// Errors: `Busy` if one guard holds it alone.
    pub fn share(mut self, key: PathBuf, path: &Path) -> Result<Box<dyn LockGuard>> {
        match self.held.get_mut(&key) {
            None => {
                self.held.insert(key.clone(), 1);
            }
            Some(0) => return Err(busy(path)),
            Some(n) => *n += 1,
        }
        Ok(self.guard(key))
    }

    fn guard(&self, path: PathBuf) -> Box<dyn LockGuard> {
        Box::new(PathLock {
            table: Arc::downgrade(self.table),
            path,
        })
    }
}

fn busy(path: &Path) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "the store is in use by this process itself {}; close the first one, or share it",
            std::process::id()
        ),
    )
    .in_file(path)
}
