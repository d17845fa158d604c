//! Files that nobody needs any more are removed, again and again until that works: space that comes back only when the store is opened anew is
//! lost to whoever never closes it.

use super::{FileKind, TableStore};
use basalt_env::JobPriority;
use basalt_env::sync::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A file on its way out.
struct Going {
    path: PathBuf,
    /// For who is told that it went.
    who: Option<(FileKind, u64)>,
    /// No manifest ever named it: its number may be given out again.
    unnamed: bool,
}

#[derive(Default)]
struct State {
    left: Vec<Going>,
    /// A job is on its way.
    armed: bool,
    pause: Duration,
}

/// Files that could not be removed yet.
#[derive(Default)]
pub(super) struct Removal(Mutex<State>);

impl TableStore {
    /// Removes a file that nobody needs. When that fails it is tried again later, less and less often, and once more when the store is closed.
    pub fn remove(self: &Arc<Self>, path: &Path) {
        self.remove_going(Going {
            path: path.to_path_buf(),
            who: None,
            unnamed: false,
        });
    }

    /// As [`TableStore::remove`], for a file that no manifest names. Once the folder may be another's, who has that may have the number, too, and the file is
    /// left to them.
    pub fn remove_unnamed(self: &Arc<Self>, path: &Path) {
        self.remove_going(Going {
            path: path.to_path_buf(),
            who: None,
            unnamed: true,
        });
    }

    /// As [`TableStore::remove`], for a file that was in a version.
    pub(super) fn remove_and_tell(self: &Arc<Self>, path: &Path, kind: FileKind, number: u64) {
        self.remove_going(Going {
            path: path.to_path_buf(),
            who: Some((kind, number)),
            unnamed: false,
        });
    }

    fn remove_going(self: &Arc<Self>, going: Going) {
        if self.try_to_remove(&going) {
            return;
        }
        let mut state = self.removal.0.lock();
        state.left.push(going);
        if !state.armed {
            state.armed = true;
            state.pause = FIRST_PAUSE;
            let pause = state.pause;
            drop(state);
            self.try_again_after(pause);
        }
    }

    /// True when the file is gone.
    fn try_to_remove(&self, going: &Going) -> bool {
        // Held until the file is gone: whoever has the folder next may make one of its name.
        let left = going.unnamed.then(|| self.left.read());
        if left.as_deref().is_some_and(|left| *left) {
            return true;
        }
        match self.env.fs().remove(&going.path) {
            Ok(()) => {
                if let (Some((kind, number)), Some(told)) = (going.who, self.removed.get()) {
                    told(kind, number, &going.path);
                }
                true
            }
            Err(e) => e.is_not_found(),
        }
    }

    fn try_again_after(self: &Arc<Self>, pause: Duration) {
        // It keeps no store alive that is closed.
        let store = Arc::downgrade(self);
        let again = move || {
            let Some(store) = store.upgrade() else {
                return;
            };
            store.remove_what_is_left();
            let mut state = store.removal.0.lock();
            state.armed = !state.left.is_empty();
            if state.armed {
                state.pause = (state.pause * 2).min(LONGEST_PAUSE);
                let pause = state.pause;
                drop(state);
                store.try_again_after(pause);
            }
        };
        let jobs = self.env.jobs();
        jobs.spawn_after(self.owner, JobPriority::Housekeeping, pause, again);
    }

    /// Tries all once more that could not be removed.
    pub fn remove_what_is_left(&self) {
        let left = std::mem::take(&mut self.removal.0.lock().left);
        let still: Vec<_> = (left.into_iter())
            .filter(|going| !self.try_to_remove(going))
            .collect();
        self.removal.0.lock().left.extend(still);
    }

    /// Files that could not be removed yet.
    pub fn unremoved(&self) -> u64 {
        self.removal.0.lock().left.len() as u64
    }
}
