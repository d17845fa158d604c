//! [`Snapshot`]: a moment of a store that readers keep.

use crate::key::SeqNo;
use basalt_env::sync::{Mutex, named};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A view of the store at one moment, until the last clone is dropped. Cloning is cheap.
#[derive(Clone)]
pub struct Snapshot {
    pinned: Arc<Pinned>,
    /// What the store needs to read as of the snapshot, if the sequence number does not suffice.
    view: Option<Arc<dyn Any + Send + Sync>>,
}

struct Pinned {
    seq: SeqNo,
    store: u64,
    live: LiveSnapshots,
}

/// The sequence numbers that snapshots keep, and the number of snapshots of each.
pub type LiveSnapshots = Arc<Mutex<BTreeMap<SeqNo, usize>>>;

/// All locks of this crate, for tests under the scheduler: `docs/testing/schedules.md`.
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: basalt_env::sync::lock_log::CrateLocks =
    basalt_env::sync::lock_log::CrateLocks {
        order: &[],
        leaves: &["LiveSnapshots"],
    };

/// Returns the list of a store without snapshots.
#[doc(hidden)]
pub fn no_snapshots() -> LiveSnapshots {
    Arc::new(named("LiveSnapshots", Mutex::default()))
}

impl Snapshot {
    /// Takes over one count of `seq` in `live`, which the caller has added. The last clone of the
    /// snapshot removes the count.
    #[doc(hidden)]
    pub fn new(seq: SeqNo, store: u64, live: LiveSnapshots) -> Snapshot {
        Snapshot {
            pinned: Arc::new(Pinned { seq, store, live }),
            view: None,
        }
    }

    /// Adds what the store needs to read as of the snapshot.
    #[doc(hidden)]
    pub fn with_view(mut self, view: Arc<dyn Any + Send + Sync>) -> Snapshot {
        self.view = Some(view);
        self
    }

    /// Returns what [`Snapshot::with_view`] has added.
    #[doc(hidden)]
    pub fn view(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.view.as_ref()
    }

    /// Returns the number, in this process, of the store that the snapshot was taken of.
    pub fn store(&self) -> u64 {
        self.pinned.store
    }

    /// Returns the sequence number of the snapshot. Entries up to it are visible.
    pub fn seq(&self) -> SeqNo {
        self.pinned.seq
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut live = self.live.lock();
        if let Some(n) = live.get_mut(&self.seq) {
            *n -= 1;
            if *n == 0 {
                live.remove(&self.seq);
            }
        }
    }
}
