//! The writes of a request with very many names, which take effect in one step.

use crate::answers::Answers;
use crate::catalog::DATABASE;
use crate::layout::{self, DataType, KEY_PREFIX_LEN};
use crate::names::{KeyHash, Names};
use crate::value::Value;
use basalt::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The writes of one command with very many names, as one layer over the store. A layer is made
/// once, and takes effect in one step for any number of names.
pub(crate) struct Layer {
    names: Arc<Names>,
    /// Prefix of the engine keys of the names: their database and generation.
    prefix: [u8; KEY_PREFIX_LEN],
    /// For a deletion, the answers for the names at the moment when it took effect. `None` if each
    /// name has a value.
    deleted: Option<Arc<Answers>>,
}

/// One write of a [`Layer`].
pub(crate) enum LayerWrite<'a> {
    Put(&'a [u8]),
    Delete,
}

impl Layer {
    /// Makes a layer that sets names to the arguments behind them, or deletes them. The names must
    /// be sorted.
    pub fn new(names: Arc<Names>, generation: u32, deleted: Option<Arc<Answers>>) -> Layer {
        Layer {
            names,
            prefix: layout::key_prefix(DATABASE, generation),
            deleted,
        }
    }

    /// Returns the names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the prefix of the engine keys of the layer.
    pub fn prefix(&self) -> &[u8; KEY_PREFIX_LEN] {
        &self.prefix
    }

    /// Returns the generation of the keys of the layer.
    pub fn generation(&self) -> u32 {
        let (_, generation, _) = layout::decode_key(&self.prefix).expect("a prefix of Redis keys");
        generation
    }

    /// Returns the write for a name, which must be the last of its key.
    fn write(&self, name: usize) -> LayerWrite<'_> {
        match self.deleted {
            Some(_) => LayerWrite::Delete,
            None => LayerWrite::Put(self.names.value(name)),
        }
    }

    /// Returns what the layer writes to a Redis key, or `None` if it does not write the key. The
    /// inner `None` is a deletion. Without `with_data`, the value is empty, and nothing is copied.
    pub fn get(&self, key: &[u8], hash: KeyHash, with_data: bool) -> Option<Option<Value>> {
        let name = self.names.find(key, hash)?;
        match self.deleted {
            Some(_) => Some(None),
            None => Some(Some(Value {
                data_type: DataType::String,
                data: if with_data {
                    self.names.kept_value(name)
                } else {
                    Bytes::new()
                },
                expire_at_ms: None,
            })),
        }
    }

    /// Returns true if the layer writes a Redis key.
    pub fn has(&self, key: &[u8], hash: KeyHash) -> bool {
        self.names.find(key, hash).is_some()
    }

    /// Returns the number of distinct keys.
    pub fn len(&self) -> usize {
        self.names.sorted().len()
    }

    /// Returns the `n`-th key in order, and true if the layer gives it a value.
    pub fn nth(&self, n: usize) -> (&[u8], bool) {
        let name = self.names.sorted()[n] as usize;
        (self.names.key(name), self.deleted.is_none())
    }

    /// Returns the first position in the order of keys whose key is at least `key`.
    pub fn place(&self, key: &[u8]) -> usize {
        let keys = self.names.sorted();
        keys.partition_point(|name| self.names.key(*name as usize) < key)
    }

    /// Returns the keys and their writes, in the order of keys. Keys that were absent are not
    /// deleted again.
    pub fn writes(&self) -> impl Iterator<Item = (&[u8], LayerWrite<'_>)> {
        let names = self.names.sorted().iter().map(|name| *name as usize);
        let is_needed = |name: &usize| self.deleted.as_ref().is_none_or(|a| a.is_there(*name));
        let names = names.filter(is_needed);
        names.map(|name| (self.names.key(name), self.write(name)))
    }

    /// Returns the bytes of memory that the layer holds.
    pub fn memory(&self) -> usize {
        self.names.memory() + self.deleted.as_ref().map_or(0, |a| a.memory())
    }
}

/// A layer that a keyspace, or a fetch that is behind, holds. The bytes of the layer are counted
/// once, until the last clone is dropped.
#[derive(Clone)]
pub(crate) struct HeldLayer {
    layer: Arc<Layer>,
    _count: Arc<LayerCount>,
}

struct LayerCount {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Drop for LayerCount {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl HeldLayer {
    /// Adds the bytes of the layer to a total.
    pub fn new(layer: Layer, total: &Arc<AtomicUsize>) -> HeldLayer {
        let bytes = layer.memory();
        total.fetch_add(bytes, Ordering::Relaxed);
        HeldLayer {
            layer: Arc::new(layer),
            _count: Arc::new(LayerCount {
                bytes,
                total: total.clone(),
            }),
        }
    }

    /// Returns the layer.
    pub fn layer(&self) -> &Arc<Layer> {
        &self.layer
    }
}
