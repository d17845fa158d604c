//! [`Snapshot`]: a moment of a store that readers keep.

use crate::key::SeqNo;
use basalt_env::sync::{Mutex, named};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A view of the store at one moment, until the last clone is dropped. Cloning is cheap.
#[derive(Clone)]
pub struct Snapshot(Arc<Pinned>);

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
        Snapshot(Arc::new(Pinned { seq, store, live }))
    }

    /// Returns the number, in this process, of the store that the snapshot was taken of.
    pub fn store(&self) -> u64 {
        self.0.store
    }

    /// Returns the sequence number of the snapshot. Entries up to it are visible.
    pub fn seq(&self) -> SeqNo {
        self.0.seq
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
