//! Reading the state of a Raft node.

use crate::snapshot_data::PinnedData;
use crate::state_store::StateStore;
use basalt::{Bytes, Iter, ReadOptions, Result};
use std::sync::Arc;

/// Reads the state of a Raft node. Cloning is cheap.
///
/// A read shows the entries that this node has applied so far. For a read that shows every write
/// acknowledged before it, call `Raft::ensure_linearizable` of openraft first, on the leader.
/// Reads block, and belong on a thread that may block.
#[derive(Clone)]
pub struct StateReader {
    store: Arc<StateStore>,
}

impl StateReader {
    pub(crate) fn new(store: &Arc<StateStore>) -> StateReader {
        StateReader {
            store: store.clone(),
        }
    }

    /// Returns the value of a key in the newest state, or `None`. Errors are those of
    /// [`basalt::Db::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.view().get(key)
    }

    /// Returns the state as it is now. Later entries do not change the view.
    pub fn view(&self) -> StateView {
        StateView {
            data: self.store.pin(),
        }
    }
}

/// The state of a Raft node at one moment. The store keeps it until the view is dropped.
pub struct StateView {
    data: PinnedData,
}

impl StateView {
    /// Returns the value of a key, or `None`. Errors are those of [`basalt::Db::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.data.db.get(&self.data.family, key, &self.options())
    }

    /// Returns a cursor over all keys, not positioned yet. Errors are those of
    /// [`basalt::Db::iter`].
    pub fn iter(&self) -> Result<Iter> {
        self.data.db.iter(&self.data.family, &self.options())
    }

    fn options(&self) -> ReadOptions {
        ReadOptions::default().snapshot(Some(self.data.snapshot.clone()))
    }
}
