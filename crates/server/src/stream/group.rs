//! The consumer groups of a stream in memory. Each change is also written to the store, in the
//! epoch of its command ([`super::element`]). Pending entries are indexed by id, in the group and
//! in each consumer.

use super::StreamId;
use super::element::{Element, ElementWriter, damaged};
use basalt::{Bytes, Result};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

/// Approximate bytes of memory of a pending entry, in the maps of its group and its consumer.
const PENDING_BYTES: usize = 96;
/// Approximate bytes of memory of a group or a consumer, without its names and pending entries.
const HEAD_BYTES: usize = 256;

/// An entry that was delivered to a consumer and not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The number of the consumer in its group.
    pub consumer: u64,
    /// The entry's LSN.
    pub lsn: u64,
    /// Time of the last delivery in ms since 1970.
    pub delivered_ms: u64,
    pub deliveries: u64,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub name: Bytes,
    /// Time in ms since 1970 at which the consumer last read or claimed entries.
    pub seen_ms: u64,
    pub pending: BTreeSet<StreamId>,
}

#[derive(Debug)]
pub(crate) struct Group {
    /// The number of the group in its stream.
    pub number: u64,
    /// The id of the last entry that was delivered.
    pub last_id: StreamId,
    /// Number of entries that were ever added up to `last_id`, if it is known.
    pub entries_read: Option<u64>,
    /// The id and the LSN of the last entry that was delivered since the stream was loaded.
    last_delivered: (StreamId, u64),
    consumers: BTreeMap<u64, Consumer>,
    names: BTreeMap<Bytes, u64>,
    /// Bytes of the consumers' names.
    name_bytes: usize,
    next_consumer: u64,
    pending: BTreeMap<StreamId, Pending>,
}

/// The groups of a stream.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<u64, Group>,
    names: BTreeMap<Bytes, u64>,
    next_group: u64,
    /// Approximate bytes of memory of the groups and their names.
    memory: usize,
}

/// Mutable access to a group. When it is dropped, the memory of the group is counted again.
pub(crate) struct GroupChange<'a> {
    group: &'a mut Group,
    total: &'a mut usize,
}

impl Deref for GroupChange<'_> {
    type Target = Group;

    fn deref(&self) -> &Group {
        self.group
    }
}

impl DerefMut for GroupChange<'_> {
    fn deref_mut(&mut self) -> &mut Group {
        self.group
    }
}

impl Drop for GroupChange<'_> {
    fn drop(&mut self) {
        *self.total += self.group.memory();
    }
}

impl Group {
    /// Returns the approximate bytes of memory, without the group's name.
    fn memory(&self) -> usize {
        (self.names.len() + 1) * HEAD_BYTES + self.name_bytes + self.pending.len() * PENDING_BYTES
    }

    /// Notes the id and the LSN of an entry that was delivered.
    pub fn delivered(&mut self, id: StreamId, lsn: u64) {
        self.last_delivered = (id, lsn);
    }

    /// Returns a lower bound of the LSNs of entries after the group's position, or 0 if none is
    /// known.
    pub fn next_lsn(&self) -> u64 {
        let (id, lsn) = self.last_delivered;
        if id <= self.last_id { lsn + 1 } else { 0 }
    }

    /// Returns the consumers in the order of their names.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> {
        self.names.values().map(|number| &self.consumers[number])
    }

    /// Returns the number of a consumer.
    pub fn consumer_number(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// Returns the consumer with a number that a pending entry names.
    pub fn consumer(&self, number: u64) -> &Consumer {
        &self.consumers[&number]
    }

    /// Returns the pending entries in the order of their ids.
    pub fn pending(&self) -> &BTreeMap<StreamId, Pending> {
        &self.pending
    }

    /// Writes the position of the group, which the caller has changed.
    pub fn save(&self, name: &[u8], writer: &mut ElementWriter) {
        writer.put(&Element::Group {
            group: self.number,
            last_id: self.last_id,
            entries_read: self.entries_read,
            name: Bytes::copy_from_slice(name),
        });
    }

    /// Returns the number of a consumer, and sets the time at which the consumer was last seen.
    /// Creates the consumer if it does not exist, and then the second value is true.
    pub fn ensure_consumer(
        &mut self,
        name: &[u8],
        now_ms: u64,
        writer: &mut ElementWriter,
    ) -> (u64, bool) {
        let (number, is_new) = match self.names.get(name) {
            Some(number) => (*number, false),
            None => {
                let number = self.next_consumer;
                self.next_consumer += 1;
                let name = Bytes::copy_from_slice(name);
                let consumer = Consumer {
                    name: name.clone(),
                    seen_ms: now_ms,
                    pending: BTreeSet::new(),
                };
                self.name_bytes += name.len();
                self.names.insert(name, number);
                self.consumers.insert(number, consumer);
                (number, true)
            }
        };
        let consumer = self.consumers.get_mut(&number).expect("just found");
        if is_new || consumer.seen_ms != now_ms {
            consumer.seen_ms = now_ms;
            writer.put(&Element::Consumer {
                group: self.number,
                consumer: number,
                seen_ms: now_ms,
                name: consumer.name.clone(),
            });
        }
        (number, is_new)
    }

    /// Removes a consumer and its pending entries. Returns the number of these entries, or `None`
    /// if the consumer does not exist.
    pub fn remove_consumer(&mut self, name: &[u8], writer: &mut ElementWriter) -> Option<usize> {
        let number = self.names.remove(name)?;
        let consumer = self.consumers.remove(&number)?;
        self.name_bytes -= name.len();
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        writer.delete_consumer(self.number, number, !consumer.pending.is_empty());
        Some(consumer.pending.len())
    }

    /// Adds or replaces a pending entry. The entry may have been pending for another consumer.
    pub fn set_pending(&mut self, id: StreamId, pending: Pending, writer: &mut ElementWriter) {
        if let Some(before) = self.pending.insert(id, pending)
            && before.consumer != pending.consumer
        {
            self.forget(before.consumer, id);
            writer.delete_pending(self.number, before.consumer, id);
        }
        let consumer = self.consumers.get_mut(&pending.consumer);
        consumer.expect("it was seen").pending.insert(id);
        writer.put(&Element::Pending {
            group: self.number,
            consumer: pending.consumer,
            id,
            lsn: pending.lsn,
            delivered_ms: pending.delivered_ms,
            deliveries: pending.deliveries,
        });
    }

    fn forget(&mut self, consumer: u64, id: StreamId) {
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            consumer.pending.remove(&id);
        }
    }

    /// Removes a pending entry. Returns false if the entry was not pending.
    pub fn acknowledge(&mut self, id: StreamId, writer: &mut ElementWriter) -> bool {
        let Some(pending) = self.pending.remove(&id) else {
            return false;
        };
        self.forget(pending.consumer, id);
        writer.delete_pending(self.number, pending.consumer, id);
        true
    }
}

impl Groups {
    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the groups with their names, in the order of the names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Bytes, &Group)> {
        self.names
            .iter()
            .map(|(name, number)| (name, &self.groups[number]))
    }

    pub fn get(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(self.names.get(name)?)
    }

    pub fn get_mut(&mut self, name: &[u8]) -> Option<GroupChange<'_>> {
        let number = *self.names.get(name)?;
        self.change(number)
    }

    fn change(&mut self, number: u64) -> Option<GroupChange<'_>> {
        let group = self.groups.get_mut(&number)?;
        self.memory -= group.memory();
        let total = &mut self.memory;
        Some(GroupChange { group, total })
    }

    /// Creates a group. No group of the stream may have its name.
    pub fn create(
        &mut self,
        name: &[u8],
        last_id: StreamId,
        entries_read: Option<u64>,
        writer: &mut ElementWriter,
    ) {
        let mut group = self.add(self.next_group, Bytes::copy_from_slice(name));
        (group.last_id, group.entries_read) = (last_id, entries_read);
        group.save(name, writer);
    }

    /// Adds a group. No group of the stream may have its number or name.
    fn add(&mut self, number: u64, name: Bytes) -> GroupChange<'_> {
        self.next_group = self.next_group.max(number.saturating_add(1));
        self.memory += name.len();
        self.names.insert(name, number);
        let group = Group {
            number,
            last_id: StreamId::MIN,
            entries_read: None,
            last_delivered: (StreamId::MIN, 0),
            consumers: BTreeMap::new(),
            names: BTreeMap::new(),
            name_bytes: 0,
            next_consumer: 0,
            pending: BTreeMap::new(),
        };
        self.memory += group.memory();
        self.groups.insert(number, group);
        self.change(number).expect("just inserted")
    }

    /// Removes a group. Returns false if the group does not exist.
    pub fn destroy(&mut self, name: &[u8], writer: &mut ElementWriter) -> bool {
        let group = self
            .names
            .remove(name)
            .and_then(|number| self.groups.remove(&number));
        let Some(group) = group else {
            return false;
        };
        self.memory -= name.len() + group.memory();
        let (has_consumers, has_pending) = (!group.names.is_empty(), !group.pending.is_empty());
        writer.delete_group(group.number, has_consumers, has_pending);
        true
    }

    /// Adds an element of the store. The caller adds elements in the order of their keys.
    ///
    /// Errors: `Corruption` if the element contradicts an earlier one.
    pub fn load(&mut self, element: Element) -> Result<()> {
        match element {
            Element::Tombstone { .. } => {}
            Element::Group {
                group: number,
                last_id,
                entries_read,
                name,
            } => {
                if self.names.contains_key(&name) || self.groups.contains_key(&number) {
                    return Err(damaged("another group has its name or number"));
                }
                let mut group = self.add(number, name);
                (group.last_id, group.entries_read) = (last_id, entries_read);
            }
            Element::Consumer {
                group,
                consumer: number,
                seen_ms,
                name,
            } => {
                let group = self.change(group);
                let mut group = group.ok_or_else(|| damaged("a consumer without its group"))?;
                let is_known = group.consumers.contains_key(&number);
                match group.names.entry(name.clone()) {
                    Entry::Vacant(place) if !is_known => place.insert(number),
                    _ => return Err(damaged("another consumer has its name or number")),
                };
                group.name_bytes += name.len();
                group.next_consumer = group.next_consumer.max(number.saturating_add(1));
                let pending = BTreeSet::new();
                let consumer = Consumer {
                    name,
                    seen_ms,
                    pending,
                };
                group.consumers.insert(number, consumer);
            }
            Element::Pending {
                group,
                consumer,
                id,
                lsn,
                delivered_ms,
                deliveries,
            } => {
                let group = self.change(group);
                let mut group =
                    group.ok_or_else(|| damaged("a pending entry without its group"))?;
                let group = &mut *group;
                let of = group.consumers.get_mut(&consumer);
                let of = of.ok_or_else(|| damaged("a pending entry without its consumer"))?;
                let pending = Pending {
                    consumer,
                    lsn,
                    delivered_ms,
                    deliveries,
                };
                let Entry::Vacant(place) = group.pending.entry(id) else {
                    return Err(damaged("the entry is pending for two consumers"));
                };
                place.insert(pending);
                of.pending.insert(id);
            }
        }
        Ok(())
    }

    /// Returns the approximate bytes of memory of the groups.
    pub fn memory(&self) -> usize {
        self.memory
    }
}

#[cfg(test)]
mod tests;
