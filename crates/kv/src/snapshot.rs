//! [`Snapshot`]: a moment of a store that readers keep.

use crate::key::SeqNo;
use basalt_env::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A view of the store as of one moment, until dropped. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot(Arc<Pinned>);

struct Pinned {
    seq: SeqNo,
    store: u64,
    live: LiveSnapshots,
}

/// Sequence numbers that snapshots keep, and how many snapshots keep each.
pub type LiveSnapshots = Arc<Mutex<BTreeMap<SeqNo, usize>>>;

impl Snapshot {
    /// Takes over one count of `seq` in `live`, which the caller has added. The snapshot's last
    /// clone gives it back.
    pub fn new(seq: SeqNo, store: u64, live: LiveSnapshots) -> Snapshot {
        Snapshot(Arc::new(Pinned { seq, store, live }))
    }

    /// The store that the snapshot was taken of, by its number in this process.
    pub fn store(&self) -> u64 {
        self.0.store
    }

    /// Everything up to this sequence number is visible.
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
