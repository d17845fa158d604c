//! The one way in which a store removes a file of its directory.
//!
//! Every removal first checks that the directory still belongs to the store. A reader may outlive
//! its store, and the next store in the directory may use the same file numbers again. A file that
//! is removed by its path alone would then be the next store's. A file that is left this way is an
//! unused file, and the next open removes it.
//!
//! A removal that fails is tried again until it succeeds. Otherwise its space would be lost to a
//! store that is never closed.

use super::{DataFileKind, TableStore};
use basalt_env::JobPriority;
use basalt_env::store_dir::StoreDir;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_fs::{File, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

/// A file to be removed.
struct PendingRemoval {
    path: PathBuf,
    /// Kind and number of the file, for the listener of [`TableStore::when_removed`].
    file: Option<(DataFileKind, u64)>,
}

#[derive(Default)]
struct RemovalState {
    left: Vec<PendingRemoval>,
    /// True while a job waits to try again.
    scheduled: bool,
    pause: Duration,
}

/// Files that could not be removed yet, and the number of releases of space.
#[derive(Default)]
pub(super) struct Removal {
    state: Mutex<RemovalState>,
    /// Number of releases, see [`TableStore::releases`].
    releases: AtomicU64,
}

impl StoreDir for TableStore {
    fn dir(&self) -> &Path {
        TableStore::dir(self)
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        TableStore::create(self, path)
    }

    fn remove(self: Arc<Self>, path: &Path) {
        TableStore::remove(&self, path);
    }
}

impl TableStore {
    /// Removes a file that the store needs no longer, unless the store has left its directory
    /// ([`TableStore::leave`]). A removal that fails is tried again, less and less often, and once
    /// more when the store is closed.
    pub fn remove(self: &Arc<Self>, path: &Path) {
        self.remove_pending(PendingRemoval {
            path: path.to_path_buf(),
            file: None,
        });
    }

    /// Removes a file whose path the caller may use again, unless the store has left its directory.
    /// A removal that fails is not tried again: a later attempt would remove the new file.
    pub fn remove_once(&self, path: &Path) {
        self.try_to_remove(&PendingRemoval {
            path: path.to_path_buf(),
            file: None,
        });
    }

    /// Removes a file that was part of a version, as [`TableStore::remove`] does, and reports the
    /// removal to the listener of [`TableStore::when_removed`].
    pub(super) fn remove_and_report(
        self: &Arc<Self>,
        path: &Path,
        kind: DataFileKind,
        number: u64,
    ) {
        self.remove_pending(PendingRemoval {
            path: path.to_path_buf(),
            file: Some((kind, number)),
        });
    }

    fn remove_pending(self: &Arc<Self>, pending: PendingRemoval) {
        if self.try_to_remove(&pending) {
            return;
        }
        let mut state = self.removal.state.lock();
        state.left.push(pending);
        if !state.scheduled {
            state.scheduled = true;
            state.pause = FIRST_RETRY_DELAY;
            let pause = state.pause;
            drop(state);
            self.schedule_retry(pause);
        }
    }

    /// Returns true if no work is left: the file is gone, or this store may no longer remove it.
    fn try_to_remove(&self, pending: &PendingRemoval) -> bool {
        // The lock is held until the file is gone. So `leave` cannot return, and the next store
        // cannot make a file of this name, between the check and the removal.
        let left = self.left.read();
        if *left {
            return true;
        }
        match self.env.fs().remove(&pending.path) {
            Ok(()) => {
                self.note_release();
                if let (Some((kind, number)), Some(callback)) = (pending.file, self.removed.get()) {
                    callback(kind, number, &pending.path);
                }
                true
            }
            Err(e) => e.is_not_found(),
        }
    }

    fn schedule_retry(self: &Arc<Self>, pause: Duration) {
        // The job must not keep a closed store alive.
        let store = Arc::downgrade(self);
        let again = move || {
            let Some(store) = store.upgrade() else {
                return;
            };
            store.retry_removals();
            let mut state = store.removal.state.lock();
            state.scheduled = !state.left.is_empty();
            if state.scheduled {
                state.pause = (state.pause * 2).min(MAX_RETRY_DELAY);
                let pause = state.pause;
                drop(state);
                store.schedule_retry(pause);
            }
        };
        (self.jobs).spawn_after(JobPriority::Housekeeping, pause, again);
    }

    /// Tries once more to remove each file that could not be removed.
    pub fn retry_removals(&self) {
        let left = std::mem::take(&mut self.removal.state.lock().left);
        let still: Vec<_> = (left.into_iter())
            .filter(|pending| !self.try_to_remove(pending))
            .collect();
        self.removal.state.lock().left.extend(still);
    }

    /// Returns how often a file was removed or gave a part of its space back. If the directory is
    /// not synced afterwards, a crash may restore the file and take the space again.
    pub fn releases(&self) -> u64 {
        self.removal.releases.load(SeqCst)
    }

    /// Counts a file that gave space back.
    pub fn note_release(&self) {
        self.removal.releases.fetch_add(1, SeqCst);
    }

    /// Returns the number of files that could not be removed yet.
    pub fn unremoved(&self) -> u64 {
        self.removal.state.lock().left.len() as u64
    }
}
