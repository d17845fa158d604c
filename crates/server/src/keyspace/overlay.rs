//! Lookups in the writes of the epochs that are open or in flight: the overlay and the layers.

use super::pending_writes::NewestVersion;
use super::{Keyspace, PendingVersion, PlacedLayer};
use crate::layout::{DataType, KEY_PREFIX_LEN};
use crate::names::KeyHash;
use crate::value::Value;

/// The type and expiry of a value in the overlay, for scans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverlayEntry {
    pub data_type: DataType,
    pub expire_at_ms: Option<u64>,
}

impl Keyspace {
    /// Returns the newest write of an engine key among the epochs in flight and the open one. The
    /// result is `None` if none of them writes the key.
    pub(super) fn newest(&self, stored: &[u8]) -> Option<(usize, Option<Value>)> {
        let hash = match self.layers.is_empty() {
            true => None,
            false => Some(KeyHash::of(self.secret, &stored[KEY_PREFIX_LEN..])),
        };
        self.newest_of(stored, hash, true)
    }

    /// Returns the newest write, like [`Keyspace::newest`], with the hash of the Redis key, which
    /// is needed if there are layers. Without `with_data`, the value may be empty.
    pub(super) fn newest_of(
        &self,
        stored: &[u8],
        hash: Option<KeyHash>,
        with_data: bool,
    ) -> Option<(usize, Option<Value>)> {
        let version = self
            .overlay
            .get(stored)
            .and_then(|versions| versions.last());
        if let Some(hash) = hash.filter(|_| !self.layers.is_empty()) {
            let below = version.map_or(0, |v| self.rank(v));
            let (prefix, key) = stored.split_at(KEY_PREFIX_LEN);
            let above = self.layers.iter().rev().take_while(|l| l.rank > below);
            let mut above = above.filter(|l| l.layer.layer().prefix() == prefix);
            let get = |l: &PlacedLayer| l.layer.layer().get(key, hash, with_data);
            if let Some(found) = above.find_map(|l| Some((l.slot, get(l)?))) {
                return Some(found);
            }
        }
        version.map(|v| (v.slot.into(), v.value.clone()))
    }

    fn rank(&self, version: &PendingVersion) -> u64 {
        let epoch = self.epochs[usize::from(version.slot)].as_ref();
        epoch
            .expect("versions go with their epoch")
            .rank(2 * version.layers)
    }

    /// Returns the newest version of a key in the overlay, with its rank if there are layers.
    pub(super) fn newest_version(&self, versions: &[PendingVersion]) -> NewestVersion {
        let newest = versions.last().expect("never empty");
        NewestVersion {
            rank: if self.layers.is_empty() {
                0
            } else {
                self.rank(newest)
            },
            entry: newest.value.as_ref().map(|v| OverlayEntry {
                data_type: v.data_type,
                expire_at_ms: v.expire_at_ms,
            }),
        }
    }
}
