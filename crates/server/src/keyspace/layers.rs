//! The layers of a keyspace: how they enter, and when no further one is taken.

use super::{Keyspace, PlacedLayer};
use crate::epoch::Epochs;
use crate::fetch::many_names::ManyFetch;
use crate::layer::{HeldLayer, Layer};
use crate::names::KeyHash;
use std::sync::Arc;

/// Number of layers in all epochs from which on no further layer is taken. Each read, and each step
/// of a scan, searches all of them.
const LAYERS_IN_ALL: usize = 32;
/// Number of layers that a fetch may be behind by before no further layer is taken. So the fetch
/// ends even if other clients keep writing layers.
const LAYERS_BEHIND: usize = 8;

impl Keyspace {
    /// Returns true if no further layer is taken.
    pub fn is_full_of_layers(&self) -> bool {
        let is_late = |fetch: &ManyFetch| fetch.layers_behind() >= LAYERS_BEHIND;
        self.is_full() || self.layers.len() >= LAYERS_IN_ALL || self.many.values().any(is_late)
    }

    /// Returns true if commands that wait for room should check again, since the last call.
    pub fn take_room_freed(&mut self) -> bool {
        std::mem::take(&mut self.room_freed)
    }

    /// Returns the secret of hashes of keys.
    pub fn secret(&self) -> u64 {
        self.secret
    }

    /// Carries out the writes of a command with very many names, in one step. `depends_on` are the
    /// epochs whose writes the command has read.
    pub fn put_layer(&mut self, layer: Layer, depends_on: Epochs) {
        self.streams.forget_layer(&layer, self.secret);
        for key in self.streams.watched() {
            if layer.has(&key, KeyHash::of(self.secret, &key)) {
                self.open_epoch().streams.insert(key, true);
            }
        }
        assert!(
            layer.generation() == self.generation,
            "made for the present keys"
        );
        self.touch_flush();
        self.touched |= depends_on;
        self.wrote = true;
        self.changes += 1;
        let bytes = layer.memory();
        let layer = HeldLayer::new(layer, &self.layer_bytes);
        for fetch in self.fetches.values_mut() {
            fetch.forget_layer(layer.layer());
        }
        for fetch in self.many.values_mut() {
            fetch.follow_layer(&layer, 1 << self.open);
        }
        self.room_freed = true;
        let slot = self.open;
        let open = self.open_epoch();
        let rank = open.rank(2 * open.layers + 1);
        open.layers += 1;
        open.layer_bytes += bytes;
        self.layers.push(PlacedLayer { slot, rank, layer });
        self.pending_bytes_peak = self.pending_bytes_peak.max(self.pending_bytes());
    }

    /// Takes the layers that are no longer needed, so that another thread frees them.
    pub fn take_discarded(&mut self) -> Vec<Arc<Layer>> {
        std::mem::take(&mut self.discarded)
    }
}
