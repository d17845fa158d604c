//! Loads in progress. The first thread that asks for a block loads it, and the others wait for the
//! same result.

use super::CacheKey;
use crate::sync::ThreadId;
use crate::sync::{Condvar, Mutex};
use basalt_fs::{Bytes, Result};
use std::sync::Arc;

/// The progress of a load.
enum LoadProgress {
    Running,
    Done(Result<Bytes>),
    /// The load panicked.
    Panicked,
}

/// A load in progress.
struct Load {
    key: CacheKey,
    /// The thread that loads the block.
    loader: ThreadId,
    progress: Mutex<LoadProgress>,
    /// Wakes the threads that wait for the load.
    done: Condvar,
}

/// The loads in progress of one shard. It is a list, because there are seldom more loads than
/// threads.
#[derive(Default)]
pub(super) struct Loads(Mutex<Vec<Arc<Load>>>);

/// The part of the caller in a load, as [`Loads::join`] returns it.
pub(super) enum LoadRole<'a> {
    /// The caller must load the block and then call [`LoadGuard::complete`].
    Loader(LoadGuard<'a>),
    /// Another thread loaded the block, with this result. `None` if its load panicked.
    Waiter(Option<Result<Bytes>>),
    /// The caller's own thread is loading this block already.
    Reentrant,
}

/// The duty to finish a load. If it is dropped before [`LoadGuard::complete`], the waiting threads
/// continue without a result.
pub(super) struct LoadGuard<'a> {
    loads: &'a Loads,
    load: Arc<Load>,
}

impl Loads {
    pub(super) fn join(&self, key: CacheKey) -> LoadRole<'_> {
        let me = crate::sync::this_thread();
        let mut loads = self.0.lock();
        let Some(load) = loads.iter().find(|f| f.key == key).cloned() else {
            let load = Arc::new(Load {
                key,
                loader: me,
                progress: Mutex::new(LoadProgress::Running),
                done: Condvar::new(),
            });
            loads.push(load.clone());
            return LoadRole::Loader(LoadGuard { loads: self, load });
        };
        drop(loads);
        if load.loader == me {
            return LoadRole::Reentrant;
        }
        let mut progress = load.progress.lock();
        loop {
            match &*progress {
                LoadProgress::Running => load.done.wait(&mut progress),
                LoadProgress::Done(result) => return LoadRole::Waiter(Some(result.clone())),
                LoadProgress::Panicked => return LoadRole::Waiter(None),
            }
        }
    }
}

impl LoadGuard<'_> {
    pub(super) fn complete(self, result: Result<Bytes>) {
        *self.load.progress.lock() = LoadProgress::Done(result);
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        let mut loads = self.loads.0.lock();
        loads.retain(|f| !Arc::ptr_eq(f, &self.load));
        drop(loads);
        let mut progress = self.load.progress.lock();
        if matches!(*progress, LoadProgress::Running) {
            *progress = LoadProgress::Panicked;
        }
        drop(progress);
        self.load.done.notify_all();
    }
}
