//! [`WriteSet`]: the writes of a transaction that is not committed.

use crate::catalog::ObjectId;
use basalt::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bytes of memory that a write takes in addition to its key and values.
const WRITE_OVERHEAD: u64 = 128;

/// A key that a transaction has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The value as of the transaction's snapshot.
    pub before: Option<Bytes>,
    /// The value that the transaction has given it; `None` if it deleted the key.
    pub after: Option<Bytes>,
}

/// The writes of one family, by key.
type FamilyWrites = BTreeMap<Bytes, Written>;

/// What a write has replaced.
struct UndoRecord {
    storage: ObjectId,
    key: Bytes,
    replaced: Option<Option<Bytes>>,
}

/// A position in a write set, to which [`WriteSet::undo_to`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(usize);

/// The writes of a transaction that is not committed, by family and key, and how they are undone.
#[derive(Default)]
pub struct WriteSet {
    families: BTreeMap<ObjectId, FamilyWrites>,
    undo: Vec<UndoRecord>,
    bytes: u64,
}

impl WriteSet {
    /// Returns `true` if there are no writes.
    pub fn is_empty(&self) -> bool {
        self.families.values().all(BTreeMap::is_empty)
    }

    /// Returns the approximate bytes of memory that the writes take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the write to a key.
    pub fn get(&self, storage: ObjectId, key: &[u8]) -> Option<&Written> {
        self.families.get(&storage)?.get(key)
    }

    /// Returns the writes of a family, by key.
    pub fn family(&self, storage: ObjectId) -> impl Iterator<Item = (&Bytes, &Written)> {
        self.families.get(&storage).into_iter().flatten()
    }

    /// Returns copies of the writes to keys inside of bounds, by key. The upper bound is exclusive,
    /// and `None` means no bound.
    pub fn range(
        &self,
        storage: ObjectId,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Vec<(Bytes, Option<Bytes>)> {
        let Some(writes) = self.families.get(&storage) else {
            return Vec::new();
        };
        if upper.is_some_and(|upper| upper <= lower) {
            return Vec::new();
        }
        let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
        let range = writes.range::<[u8], _>((Bound::Included(lower), upper));
        range
            .map(|(key, written)| (key.clone(), written.after.clone()))
            .collect()
    }

    /// Writes a key. `before` is its value as of the transaction's snapshot; it counts at the first
    /// write to the key.
    pub fn put(
        &mut self,
        storage: ObjectId,
        key: Bytes,
        before: Option<Bytes>,
        after: Option<Bytes>,
    ) {
        self.bytes += WRITE_OVERHEAD + 2 * key.len() as u64;
        let is_first = self.get(storage, &key).is_none();
        if is_first {
            self.bytes += before.as_ref().map_or(0, |value| value.len() as u64);
        }
        self.bytes += after.as_ref().map_or(0, |value| value.len() as u64);
        let writes = self.families.entry(storage).or_default();
        let replaced = match writes.get_mut(&key) {
            Some(written) => Some(std::mem::replace(&mut written.after, after)),
            None => {
                writes.insert(key.clone(), Written { before, after });
                None
            }
        };
        self.undo.push(UndoRecord {
            storage,
            key,
            replaced,
        });
    }

    /// Returns the present position.
    pub fn mark(&self) -> Mark {
        Mark(self.undo.len())
    }

    /// Undoes all writes since a position.
    pub fn undo_to(&mut self, mark: Mark) {
        while self.undo.len() > mark.0 {
            let Some(record) = self.undo.pop() else { break };
            let writes = self.families.entry(record.storage).or_default();
            let mut size = WRITE_OVERHEAD + 2 * record.key.len() as u64;
            let undone = match record.replaced {
                Some(replaced) => {
                    let written = writes.get_mut(&record.key);
                    written.and_then(|w| std::mem::replace(&mut w.after, replaced))
                }
                None => writes.remove(&record.key).and_then(|written| {
                    size += written.before.map_or(0, |value| value.len() as u64);
                    written.after
                }),
            };
            size += undone.map_or(0, |value| value.len() as u64);
            self.bytes = self.bytes.saturating_sub(size);
        }
    }
}

#[cfg(test)]
mod tests;
