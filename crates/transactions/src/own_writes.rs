//! [`OwnWrites`]: the keys of a transaction, with the writes that are not committed yet.
//!
//! The module keeps the effect of all writes to a key, not their list: a value, a delete, or
//! operands over one of both or over what the store has. So of many puts and deletes of a key, only
//! the last one is in the batch. Operands are not merged: each has its own entry. While a savepoint
//! is set, each write also leaves what it has replaced.

use crate::family_key::{FamilyKey, FamilyKeyRef, KeyParts};
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::WriteBatch;
use basalt_kv::family::Family;
use basalt_kv::key::SeqNo;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bytes that a key takes beside its own: nodes of maps, the lock, the precondition.
const KEY_OVERHEAD: u64 = 160;
/// Bytes that a value or an operand takes beside its own.
const VALUE_OVERHEAD: u64 = 64;

/// What operands of a transaction are applied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The value that the store has.
    Store,
    /// A value that the transaction has put, and its expiry in ms since 1970.
    Put(Bytes, Option<u64>),
    /// No value: the transaction has deleted the key.
    Delete,
}

/// The effect of a transaction's writes to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnWrite {
    pub base: Base,
    /// Operands over the base, the oldest first.
    pub operands: Vec<Bytes>,
}

impl OwnWrite {
    fn bytes(&self) -> u64 {
        let base = match &self.base {
            Base::Put(value, _) => value.len() as u64 + VALUE_OVERHEAD,
            Base::Store | Base::Delete => 0,
        };
        let operands = self.operands.iter();
        base + operands
            .map(|o| o.len() as u64 + VALUE_OVERHEAD)
            .sum::<u64>()
    }

    /// Returns the value as of a time, and its expiry. `existing` is what the store has; it is
    /// called only for operands over it.
    ///
    /// Errors: those of `existing`, and `InvalidArgument` if the merge operator refuses.
    pub fn value(
        &self,
        family: &Family,
        key: &[u8],
        now_ms: u64,
        existing: impl FnOnce() -> Result<Option<(Bytes, Option<u64>)>>,
    ) -> Result<Option<(Bytes, Option<u64>)>> {
        let base = match &self.base {
            Base::Store => existing()?,
            Base::Put(_, Some(at)) if *at <= now_ms => None,
            Base::Put(value, at) => Some((value.clone(), *at)),
            Base::Delete => None,
        };
        if self.operands.is_empty() {
            return Ok(base);
        }
        let operands: Vec<&[u8]> = self.operands.iter().map(|o| &o[..]).collect();
        let (value, expiry) = match &base {
            Some((value, at)) => (Some(&value[..]), *at),
            None => (None, None),
        };
        let merged = family.merging().full(key, value, &operands)?;
        Ok(Some((Bytes::from(merged), expiry)))
    }
}

/// A key that a transaction has written, read for update or locked.
pub struct KeyState {
    /// The key was read for update, so it stays when its write is undone.
    pub is_read: bool,
    /// The commit locks the key against other readers, too, although there is no write.
    pub is_exclusive: bool,
    /// Sequence number after which no entry of the key may be, at the commit.
    pub since: SeqNo,
    pub write: Option<OwnWrite>,
}

/// The keys of one family, in its order.
pub type KeyStates = BTreeMap<FamilyKey, KeyState>;

struct FamilyWrites {
    family: Family,
    keys: KeyStates,
}

/// What a write has replaced.
enum Undo {
    /// The write added an operand to others.
    Operand,
    Write(Option<OwnWrite>),
}

impl Undo {
    /// Returns the bytes of the write that would be restored.
    fn bytes(&self) -> u64 {
        match self {
            Undo::Write(Some(write)) => write.bytes(),
            Undo::Write(None) | Undo::Operand => 0,
        }
    }
}

struct UndoRecord {
    family: u32,
    key: FamilyKey,
    undo: Undo,
}

impl UndoRecord {
    fn bytes(&self) -> u64 {
        self.key.user_key().len() as u64 + KEY_OVERHEAD + self.undo.bytes()
    }
}

/// The keys and writes of a transaction.
#[derive(Default)]
pub struct OwnWrites {
    families: BTreeMap<u32, FamilyWrites>,
    /// Number of keys.
    len: usize,
    /// Bytes of keys, writes and undo records.
    bytes: u64,
    undo: Vec<UndoRecord>,
    /// Length of `undo` at each savepoint, the oldest first.
    savepoints: Vec<usize>,
}

impl OwnWrites {
    /// Returns the number of keys that are written, read for update or locked.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of all keys and writes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes that a write of `value` bytes to a key adds at most.
    pub fn added_bytes(&self, key: &[u8], value: usize) -> u64 {
        2 * (key.len() as u64 + KEY_OVERHEAD) + value as u64 + VALUE_OVERHEAD
    }

    /// Returns the keys of a family.
    pub fn keys(&self, family: &Family) -> Option<&KeyStates> {
        self.families.get(&family.id()).map(|f| &f.keys)
    }

    /// Returns the families and all their keys.
    pub fn all(&self) -> impl Iterator<Item = (&Family, &FamilyKey, &KeyState)> {
        let families = self.families.values();
        families.flat_map(|f| f.keys.iter().map(|(key, state)| (&f.family, key, state)))
    }

    /// Returns a key, if it was written, read for update or locked.
    pub fn get(&self, family: &Family, key: &[u8]) -> Option<&KeyState> {
        let sought = FamilyKeyRef::new(family, key);
        self.keys(family)?.get(&sought as &dyn KeyParts)
    }

    /// Returns the write to a key.
    pub fn write_of(&self, family: &Family, key: &[u8]) -> Option<&OwnWrite> {
        self.get(family, key)?.write.as_ref()
    }

    /// Adds a key without a write, which is not there yet.
    pub fn add(&mut self, family: &Family, key: &[u8], since: SeqNo) {
        let writes = self
            .families
            .entry(family.id())
            .or_insert_with(|| FamilyWrites {
                family: family.clone(),
                keys: BTreeMap::new(),
            });
        let state = KeyState {
            is_read: false,
            is_exclusive: false,
            since,
            write: None,
        };
        let before = writes.keys.insert(FamilyKey::new(family, key), state);
        debug_assert!(before.is_none(), "a key is added once");
        self.len += 1;
        self.bytes += key.len() as u64 + KEY_OVERHEAD;
    }

    fn state(&mut self, family: u32, key: &dyn KeyParts) -> &mut KeyState {
        let writes = self.families.get_mut(&family).expect("the key was added");
        writes.keys.get_mut(key).expect("the key was added")
    }

    /// Notes that a key, which was added, is read for update.
    pub fn mark_read(&mut self, family: &Family, key: &[u8]) {
        self.state(family.id(), &FamilyKeyRef::new(family, key))
            .is_read = true;
    }

    /// Notes that a key is written by the transaction's owner: the commit locks it exclusively, and
    /// it must be unchanged after `since`. The key stays when writes are undone.
    pub fn mark_checked(&mut self, family: &Family, key: &[u8], since: SeqNo, is_exclusive: bool) {
        if self.get(family, key).is_none() {
            self.add(family, key, since);
        }
        let state = self.state(family.id(), &FamilyKeyRef::new(family, key));
        state.is_read = true;
        state.is_exclusive |= is_exclusive;
        state.since = state.since.min(since);
    }

    fn push_undo(&mut self, family: &Family, key: &[u8], undo: Undo) {
        if self.savepoints.is_empty() {
            self.bytes -= undo.bytes();
            return;
        }
        self.bytes += key.len() as u64 + KEY_OVERHEAD;
        self.undo.push(UndoRecord {
            family: family.id(),
            key: FamilyKey::new(family, key),
            undo,
        });
    }

    /// Writes a key, which was added: its writes before have no effect any more.
    pub fn set(&mut self, family: &Family, key: &[u8], base: Base) {
        let write = OwnWrite {
            base,
            operands: Vec::new(),
        };
        self.bytes += write.bytes();
        let state = self.state(family.id(), &FamilyKeyRef::new(family, key));
        let before = state.write.replace(write);
        self.push_undo(family, key, Undo::Write(before));
    }

    /// Adds an operand to a key, which was added.
    pub fn merge(&mut self, family: &Family, key: &[u8], operand: Bytes) {
        self.bytes += operand.len() as u64 + VALUE_OVERHEAD;
        let state = self.state(family.id(), &FamilyKeyRef::new(family, key));
        let undo = match &mut state.write {
            Some(write) => {
                write.operands.push(operand);
                Undo::Operand
            }
            None => {
                state.write = Some(OwnWrite {
                    base: Base::Store,
                    operands: vec![operand],
                });
                Undo::Write(None)
            }
        };
        self.push_undo(family, key, undo);
    }

    /// Sets a savepoint.
    pub fn set_savepoint(&mut self) {
        self.savepoints.push(self.undo.len());
    }

    /// Undoes all writes since the newest savepoint, and removes the savepoint. A key without a
    /// write, that was not read for update, is removed unless `keep_keys` is set.
    ///
    /// Errors: `InvalidArgument` without a savepoint.
    pub fn rollback_to_savepoint(&mut self, keep_keys: bool) -> Result<()> {
        let to = (self.savepoints.pop()).ok_or_else(|| without_savepoint("rollback"))?;
        for record in self.undo.split_off(to).into_iter().rev() {
            // The bytes of the replaced write stay counted: the write is restored.
            self.bytes -= record.key.user_key().len() as u64 + KEY_OVERHEAD;
            let state = self.state(record.family, &record.key);
            let removed = match record.undo {
                Undo::Operand => {
                    let write = state.write.as_mut().expect("an operand was added");
                    let operand = write.operands.pop().expect("an operand was added");
                    operand.len() as u64 + VALUE_OVERHEAD
                }
                Undo::Write(before) => {
                    let write = std::mem::replace(&mut state.write, before);
                    write.expect("it was written").bytes()
                }
            };
            let is_idle = state.write.is_none() && !state.is_read;
            self.bytes -= removed;
            if is_idle && !keep_keys {
                let writes = self.families.get_mut(&record.family);
                let writes = writes.expect("the key was added");
                writes.keys.remove(&record.key);
                self.len -= 1;
                self.bytes -= record.key.user_key().len() as u64 + KEY_OVERHEAD;
            }
        }
        Ok(())
    }

    /// Removes the newest savepoint and keeps all writes.
    ///
    /// Errors: `InvalidArgument` without a savepoint.
    pub fn pop_savepoint(&mut self) -> Result<()> {
        (self.savepoints.pop()).ok_or_else(|| without_savepoint("pop"))?;
        if self.savepoints.is_empty() {
            let undone: u64 = self.undo.drain(..).map(|record| record.bytes()).sum();
            self.bytes -= undone;
        }
        Ok(())
    }

    /// Returns all writes as a batch.
    ///
    /// Errors: those of [`WriteBatch::push`] for a batch that gets too long.
    pub fn batch(&self) -> Result<WriteBatch> {
        let mut batch = WriteBatch::new();
        for (family, key, state) in self.all() {
            let Some(write) = &state.write else { continue };
            let key = key.user_key();
            match &write.base {
                Base::Store => {}
                Base::Put(value, None) => batch.put(family, key, value)?,
                Base::Put(value, Some(at)) => batch.put_ttl(family, key, value, *at)?,
                Base::Delete => batch.delete(family, key)?,
            }
            for operand in &write.operands {
                batch.merge(family, key, operand)?;
            }
        }
        Ok(batch)
    }
}

fn without_savepoint(what: &str) -> Error {
    Error::invalid(format!(
        "{what} on a transaction without a savepoint: call set_savepoint before"
    ))
}

/// Returns the first key with a write inside of bounds.
pub fn first_write<'t>(
    keys: &'t KeyStates,
    from: Bound<&dyn KeyParts>,
    to: Bound<&dyn KeyParts>,
) -> Option<(&'t FamilyKey, &'t OwnWrite)> {
    let mut range = keys.range::<dyn KeyParts, _>((from, to));
    range.find_map(|(key, state)| Some((key, state.write.as_ref()?)))
}

/// Returns the last key with a write inside of bounds.
pub fn last_write<'t>(
    keys: &'t KeyStates,
    from: Bound<&dyn KeyParts>,
    to: Bound<&dyn KeyParts>,
) -> Option<(&'t FamilyKey, &'t OwnWrite)> {
    let mut range = keys.range::<dyn KeyParts, _>((from, to)).rev();
    range.find_map(|(key, state)| Some((key, state.write.as_ref()?)))
}

#[cfg(test)]
mod tests;
