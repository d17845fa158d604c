//! Changes of consumer groups in the keyspace. Each change updates the loaded stream, and adds
//! writes of elements to the open epoch. The running command must have found the stream and the
//! group.

use super::Keyspace;
use crate::stream::StreamId;
use crate::stream::group::{GroupChange, Pending};

/// An entry that a consumer claims, and its last delivery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub id: StreamId,
    pub lsn: u64,
    pub delivered_ms: u64,
    pub deliveries: u64,
}

/// The changes of one XCLAIM or XAUTOCLAIM.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub taken: Vec<Claim>,
    /// Pending entries that were deleted from the stream.
    pub dropped: Vec<StreamId>,
    /// The new id of the last entry delivered, or `None` if the id does not change.
    pub last_id: Option<StreamId>,
}

fn found(group: Option<GroupChange<'_>>) -> GroupChange<'_> {
    group.expect("the group was found")
}

impl Keyspace {
    /// Creates a group. No group of the stream may have its name.
    pub fn create_group(
        &mut self,
        key: &[u8],
        name: &[u8],
        last_id: StreamId,
        entries_read: Option<u64>,
    ) {
        self.change_elements(key, false, |stream, writer| {
            stream.groups.create(name, last_id, entries_read, writer);
            stream.key_is_behind()
        });
    }

    /// Sets the position of a group.
    pub fn set_group(
        &mut self,
        key: &[u8],
        name: &[u8],
        last_id: StreamId,
        entries_read: Option<u64>,
    ) {
        self.change_elements(key, false, |stream, writer| {
            let writes_key = stream.key_is_behind();
            let mut group = found(stream.groups.get_mut(name));
            (group.last_id, group.entries_read) = (last_id, entries_read);
            group.save(name, writer);
            writes_key
        });
    }

    /// Removes a group. The blocked requests of the group end.
    pub fn destroy_group(&mut self, key: &[u8], name: &[u8]) {
        self.change_elements(key, true, |stream, writer| {
            stream.groups.destroy(name, writer);
            false
        });
    }

    /// Creates a consumer, which must not exist.
    pub fn create_consumer(&mut self, key: &[u8], group: &[u8], name: &[u8]) {
        let now_ms = self.now_ms();
        self.change_elements(key, false, |stream, writer| {
            found(stream.groups.get_mut(group)).ensure_consumer(name, now_ms, writer);
            false
        });
    }

    /// Removes a consumer, which must exist. Returns the number of its pending entries.
    pub fn delete_consumer(&mut self, key: &[u8], group: &[u8], name: &[u8]) -> usize {
        let mut pending = 0;
        self.change_elements(key, false, |stream, writer| {
            let mut group = found(stream.groups.get_mut(group));
            pending = group.remove_consumer(name, writer).unwrap_or(0);
            false
        });
        pending
    }

    /// Delivers entries after the position of a group to a consumer. Creates the consumer if it
    /// does not exist. `first` is the id of the stream's first entry. The entries become pending
    /// unless `acknowledged` is true.
    pub fn deliver(
        &mut self,
        key: &[u8],
        group: &[u8],
        consumer: &[u8],
        entries: &[(u64, StreamId)],
        first: StreamId,
        acknowledged: bool,
    ) {
        let now_ms = self.now_ms();
        self.change_elements(key, false, |stream, writer| {
            let writes_key = stream.key_is_behind();
            let of = stream.groups.get(group).expect("the group was found");
            let (mut last_id, mut read) = (of.last_id, of.entries_read);
            for (_, id) in entries {
                if *id > last_id {
                    read = stream.entries_read_after(read, *id, first);
                    last_id = *id;
                }
            }
            let mut of = found(stream.groups.get_mut(group));
            (of.last_id, of.entries_read) = (last_id, read);
            if let Some((lsn, id)) = entries.last() {
                of.delivered(*id, *lsn);
            }
            of.save(group, writer);
            let (consumer, _) = of.ensure_consumer(consumer, now_ms, writer);
            for (lsn, id) in entries.iter().filter(|_| !acknowledged) {
                let pending = Pending {
                    consumer,
                    lsn: *lsn,
                    delivered_ms: now_ms,
                    deliveries: 1,
                };
                of.set_pending(*id, pending, writer);
            }
            writes_key
        });
    }

    /// Delivers pending entries to their consumer again. Creates the consumer if it does not exist.
    pub fn redeliver(&mut self, key: &[u8], group: &[u8], consumer: &[u8], ids: &[StreamId]) {
        let now_ms = self.now_ms();
        self.change_elements(key, false, |stream, writer| {
            let mut group = found(stream.groups.get_mut(group));
            group.ensure_consumer(consumer, now_ms, writer);
            for id in ids {
                if let Some(before) = group.pending().get(id).copied() {
                    let pending = Pending {
                        delivered_ms: now_ms,
                        deliveries: before.deliveries.wrapping_add(1),
                        ..before
                    };
                    group.set_pending(*id, pending, writer);
                }
            }
            false
        });
    }

    /// Acknowledges pending entries. Ids that are not pending have no effect.
    pub fn acknowledge(&mut self, key: &[u8], group: &[u8], ids: impl Iterator<Item = StreamId>) {
        self.change_elements(key, false, |stream, writer| {
            let mut group = found(stream.groups.get_mut(group));
            for id in ids {
                group.acknowledge(id, writer);
            }
            false
        });
    }

    /// Applies the claims of a consumer. If the consumer claims an entry and does not exist, it is
    /// created.
    pub fn claim(&mut self, key: &[u8], group: &[u8], consumer: &[u8], claims: Claims) {
        let now_ms = self.now_ms();
        self.change_elements(key, false, |stream, writer| {
            let writes_key = stream.key_is_behind();
            let mut of = found(stream.groups.get_mut(group));
            if let Some(last_id) = claims.last_id {
                of.last_id = last_id;
                of.save(group, writer);
            }
            for id in &claims.dropped {
                of.acknowledge(*id, writer);
            }
            if !claims.taken.is_empty() {
                let (consumer, _) = of.ensure_consumer(consumer, now_ms, writer);
                for claim in &claims.taken {
                    let pending = Pending {
                        consumer,
                        lsn: claim.lsn,
                        delivered_ms: claim.delivered_ms,
                        deliveries: claim.deliveries,
                    };
                    of.set_pending(claim.id, pending, writer);
                }
            }
            writes_key
        });
    }
}
