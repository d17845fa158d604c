//! Files of a store that its manifest does not name yet.
//!
//! A job creates files in the store's directory ([`StoreDir`]) before an edit of the manifest names
//! them. [`Created`] removes those that no edit has named when the job fails.

use basalt_fs::{ErrorKind, File, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory that a store writes files into. The store may have given it back.
pub trait StoreDir: Send + Sync {
    /// Path of the directory.
    fn dir(&self) -> &Path;

    /// Makes a file that no manifest names yet. Returns `Closed` after the store has given the
    /// directory back.
    fn create(&self, path: &Path) -> Result<Arc<dyn File>>;

    /// Removes a file that no manifest names. Does nothing after the store has given the directory
    /// back. A failure leaves the file to the next open, which removes files without a name in the
    /// manifest.
    fn remove(self: Arc<Self>, path: &Path);
}

/// The files that were made so far. A drop removes them, unless they are kept.
pub struct Created {
    store: Arc<dyn StoreDir>,
    paths: Vec<PathBuf>,
}

impl Created {
    /// Returns an empty list of files of `store`.
    pub fn new(store: Arc<dyn StoreDir>) -> Created {
        Created {
            store,
            paths: Vec::new(),
        }
    }

    /// Adds a file that the store has made.
    pub fn add(&mut self, path: PathBuf) {
        self.paths.push(path);
    }

    /// Makes a file. Returns `Closed` after the store has given the directory back.
    pub fn create(&mut self, path: &Path) -> Result<Arc<dyn File>> {
        let file = self.store.create(path);
        // A create that failed may have made the name all the same. A name that existed before is
        // not one of these files.
        if !matches!(&file, Err(e) if e.kind() == ErrorKind::AlreadyExists) {
            self.add(path.to_path_buf());
        }
        file
    }

    /// Keeps the files: a drop no longer removes them.
    pub fn keep(&mut self) {
        self.paths.clear();
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.paths {
            self.store.clone().remove(path);
        }
    }
}
