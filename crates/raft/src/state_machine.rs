//! The state machine of a Raft node in a store.
//!
//! A node has three families: `NAME/a` and `NAME/b` for data, of which one is current, and
//! `NAME/meta` for the applied log id, the membership, and which one is current. Each entry is one
//! batch of data and applied log id, so the two always fit. Batches are not synced: the log has the
//! entries until a snapshot covers them, and the build of a snapshot syncs the store first.
//!
//! A received snapshot is written into the family that is not current, and one synced batch then
//! makes it current. So a crash leaves the old state or the new one.
//!
//! Locks: `AppliedState`, which only snapshots of the store are taken under.

use crate::call::{blocking, storage_error};
use crate::codec::encode;
use crate::snapshot_data::{self, PinnedData, StateSnapshot};
use crate::state_link::StateLink;
use crate::state_reader::StateReader;
use crate::state_store::{StateStore, put_meta, read_meta};
use basalt::env::sync::Mutex;
use basalt::{Bytes, Db, Error, Family, Iter, ReadOptions, Result, WriteBatch};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder,
    RaftTypeConfig, SnapshotMeta, StorageError, StoredMembership,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Keys of the family `NAME/meta`. They are persisted.
const APPLIED: &[u8] = b"applied";
const MEMBERSHIP: &[u8] = b"membership";

type StorageResult<T, C> = std::result::Result<T, StorageError<<C as RaftTypeConfig>::NodeId>>;
type Membership<C> = StoredMembership<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;

/// What the commands of a program do to its state. All nodes must compute the same from the same
/// commands: without clock, random numbers, or anything else outside of the state.
pub trait Apply<C: RaftTypeConfig>: Send + Sync + 'static {
    /// Applies a committed command. What it writes becomes visible, and durable, together with the
    /// log id of the command, or not at all. It runs on a thread that may block.
    ///
    /// An error stops the node, as a damaged store does. A refusal that the client shall see is a
    /// value of the reply. After a restart, commands since the last durable state are applied again
    /// to that state.
    fn apply(&self, command: C::D, state: &mut StateWriter<'_>) -> Result<C::R>;

    /// Returns the reply to entries of Raft itself, which have no command. No client gets it.
    fn empty_reply(&self) -> C::R;
}

/// The state that a command reads and changes.
pub struct StateWriter<'a> {
    db: &'a Db,
    family: &'a Family,
    batch: WriteBatch,
}

impl StateWriter<'_> {
    /// Returns the value of a key, or `None`, as the commands before this one left it.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.db.get(self.family, key, &ReadOptions::default())
    }

    /// Returns a cursor over the state, as the commands before this one left it.
    pub fn iter(&self) -> Result<Iter> {
        self.db.iter(self.family, &ReadOptions::default())
    }

    /// Sets a key to a value.
    ///
    /// Errors: `InvalidArgument` if key or value are too long.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.put(self.family, key, value)
    }

    /// Deletes a key.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.batch.delete(self.family, key)
    }

    /// Deletes all keys from `from` (inclusive) to `to` (exclusive).
    pub fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.batch.delete_range(self.family, from, to)
    }
}

/// The state machine of a Raft node in a [`Db`]. Several nodes, and families of other users, may
/// share the store.
///
/// After a restart the state is that of some entry which was applied, and of no earlier one than
/// the last built or installed snapshot. openraft applies the entries behind it again.
pub struct StateMachine<C: RaftTypeConfig, A> {
    shared: Arc<StateShared<C, A>>,
}

struct StateShared<C: RaftTypeConfig, A> {
    store: Arc<StateStore>,
    apply: A,
    applied: Mutex<AppliedState<C>>,
    /// Index of the last entry that is applied, for the log.
    applied_index: watch::Sender<Option<u64>>,
}

struct AppliedState<C: RaftTypeConfig> {
    last: Option<LogId<C::NodeId>>,
    membership: Membership<C>,
    /// The newest snapshot that was built or installed since the start.
    snapshot: Option<BuiltSnapshot<C>>,
}

struct BuiltSnapshot<C: RaftTypeConfig> {
    meta: SnapshotMeta<C::NodeId, C::Node>,
    data: Arc<PinnedData>,
}

impl<C, A> StateMachine<C, A>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = StateSnapshot>,
    A: Apply<C>,
{
    /// Opens the state machine of a node, whose families are made if the store does not have them.
    /// The name has 1 to 250 bytes and is the node's own in this store. At most one `StateMachine`
    /// of a name may be open. The call blocks, and must not run on a thread of an asynchronous
    /// runtime.
    ///
    /// Errors: those of [`Db::create_family`] and [`Db::get`]; `Corruption` if the applied log id
    /// cannot be decoded.
    pub fn open(db: &Db, name: &str, apply: A) -> Result<StateMachine<C, A>> {
        let store = StateStore::open(db, name)?;
        let last = read_meta(db, &store.meta, APPLIED)?;
        let membership = read_meta(db, &store.meta, MEMBERSHIP)?.unwrap_or_default();
        let applied_index = watch::Sender::new(index_of::<C>(&last));
        let applied = AppliedState {
            last,
            membership,
            snapshot: None,
        };
        Ok(StateMachine {
            shared: Arc::new(StateShared {
                store: Arc::new(store),
                apply,
                applied: Mutex::new(applied),
                applied_index,
            }),
        })
    }

    pub(crate) fn link(&self) -> StateLink {
        StateLink {
            store: self.shared.store.clone(),
            applied: self.shared.applied_index.subscribe(),
        }
    }

    /// Returns a handle that reads the state, also after the state machine was given to openraft.
    pub fn reader(&self) -> StateReader {
        StateReader::new(&self.shared.store)
    }
}

impl<C, A> StateShared<C, A>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = StateSnapshot>,
    A: Apply<C>,
{
    fn apply_entry(&self, entry: Entry<C>) -> Result<C::R> {
        let (db, meta) = (&self.store.db, &self.store.meta);
        let mut writer = StateWriter {
            db,
            family: self.store.current(),
            batch: WriteBatch::new(),
        };
        let mut membership = None;
        let reply = match entry.payload {
            EntryPayload::Normal(command) => self.apply.apply(command, &mut writer)?,
            EntryPayload::Blank => self.apply.empty_reply(),
            EntryPayload::Membership(new) => {
                let new = StoredMembership::new(Some(entry.log_id.clone()), new);
                put_meta(&mut writer.batch, meta, MEMBERSHIP, &new)?;
                membership = Some(new);
                self.apply.empty_reply()
            }
        };
        let mut batch = writer.batch;
        put_meta(&mut batch, meta, APPLIED, &entry.log_id)?;
        self.store.write_entry(entry.log_id.index, batch)?;
        let mut applied = self.applied.lock();
        applied.last = Some(entry.log_id);
        if let Some(membership) = membership {
            applied.membership = membership;
        }
        self.applied_index
            .send_replace(index_of::<C>(&applied.last));
        Ok(reply)
    }

    /// Returns a snapshot of the newest state.
    fn pin(&self) -> BuiltSnapshot<C> {
        let applied = self.applied.lock();
        let data = Arc::new(self.store.pin());
        let last = applied.last.as_ref();
        let last = last.map_or("none".to_string(), |last| last.to_string());
        BuiltSnapshot {
            meta: SnapshotMeta {
                last_log_id: applied.last.clone(),
                last_membership: applied.membership.clone(),
                // Two snapshots of one log id may have different bytes, so the id has the moment.
                snapshot_id: format!("{last}-{}", data.snapshot.seq()),
            },
            data,
        }
    }

    fn install(&self, meta: &SnapshotMeta<C::NodeId, C::Node>, data: &[u8]) -> Result<()> {
        let entries = snapshot_data::decode(data)?;
        let pinned = match &meta.last_log_id {
            Some(last) if self.store.is_passive => self.replace(last, meta, &entries)?,
            _ => self.fill(meta, &entries)?,
        };
        let mut applied = self.applied.lock();
        applied.last = meta.last_log_id.clone();
        applied.membership = meta.last_membership.clone();
        applied.snapshot = Some(BuiltSnapshot {
            meta: meta.clone(),
            data: Arc::new(pinned),
        });
        self.applied_index
            .send_replace(index_of::<C>(&applied.last));
        Ok(())
    }

    /// Replaces the state of a passive store by a received one.
    fn replace(
        &self,
        last: &LogId<C::NodeId>,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        entries: &[(&[u8], &[u8])],
    ) -> Result<PinnedData> {
        let applied = encode(last).map_err(Error::invalid)?;
        let membership = encode(&meta.last_membership).map_err(Error::invalid)?;
        let values = [(APPLIED, Some(applied)), (MEMBERSHIP, Some(membership))];
        self.store
            .replace(last.index, entries, &BTreeMap::from(values))
    }

    /// Writes a received state into the family that is not current, and makes it the current one.
    fn fill(
        &self,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        entries: &[(&[u8], &[u8])],
    ) -> Result<PinnedData> {
        self.store.fill_other(entries)?;
        let mut batch = WriteBatch::new();
        match &meta.last_log_id {
            Some(last) => put_meta(&mut batch, &self.store.meta, APPLIED, last)?,
            None => batch.delete(&self.store.meta, APPLIED)?,
        }
        put_meta(
            &mut batch,
            &self.store.meta,
            MEMBERSHIP,
            &meta.last_membership,
        )?;
        self.store.make_other_current(batch)
    }
}

fn index_of<C: RaftTypeConfig>(log_id: &Option<LogId<C::NodeId>>) -> Option<u64> {
    log_id.as_ref().map(|log_id| log_id.index)
}

impl<C: RaftTypeConfig<SnapshotData = StateSnapshot>> BuiltSnapshot<C> {
    fn to_raft(&self) -> Snapshot<C> {
        Snapshot {
            meta: self.meta.clone(),
            snapshot: Box::new(StateSnapshot::pinned(&self.data)),
        }
    }
}

/// Builds a snapshot of the state as it was when the builder was made.
pub struct SnapshotBuilder<C: RaftTypeConfig, A> {
    shared: Arc<StateShared<C, A>>,
    pinned: Arc<BuiltSnapshot<C>>,
}

impl<C, A> RaftSnapshotBuilder<C> for SnapshotBuilder<C, A>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = StateSnapshot>,
    A: Apply<C>,
{
    async fn build_snapshot(&mut self) -> StorageResult<Snapshot<C>, C> {
        let (shared, pinned) = (self.shared.clone(), self.pinned.clone());
        let built = blocking(move || {
            // openraft purges the log up to this snapshot.
            let last = pinned.meta.last_log_id.as_ref();
            shared.store.persist(last.map_or(0, |last| last.index))?;
            let mut applied = shared.applied.lock();
            let newest = applied.snapshot.as_ref();
            if newest.is_none_or(|s| s.meta.last_log_id <= pinned.meta.last_log_id) {
                applied.snapshot = Some(BuiltSnapshot {
                    meta: pinned.meta.clone(),
                    data: pinned.data.clone(),
                });
            }
            Ok(pinned.to_raft())
        });
        let built = built.await;
        built.map_err(|e| storage_error(ErrorSubject::Snapshot(None), ErrorVerb::Write, &e))
    }
}

impl<C, A> RaftStateMachine<C> for StateMachine<C, A>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = StateSnapshot>,
    A: Apply<C>,
{
    type SnapshotBuilder = SnapshotBuilder<C, A>;

    async fn applied_state(
        &mut self,
    ) -> StorageResult<(Option<LogId<C::NodeId>>, Membership<C>), C> {
        let applied = self.shared.applied.lock();
        Ok((applied.last.clone(), applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> StorageResult<Vec<C::R>, C>
    where
        I: IntoIterator<Item = Entry<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry<C>> = entries.into_iter().collect();
        let shared = self.shared.clone();
        let applied = blocking(move || {
            let replies = entries.into_iter().map(|entry| {
                let index = entry.log_id.index;
                let reply = shared.apply_entry(entry);
                reply.map_err(|e| e.context(format!("applying entry {index}")))
            });
            replies.collect()
        });
        let applied = applied.await;
        applied.map_err(|e| storage_error(ErrorSubject::StateMachine, ErrorVerb::Write, &e))
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<C, A> {
        SnapshotBuilder {
            shared: self.shared.clone(),
            pinned: Arc::new(self.shared.pin()),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> StorageResult<Box<StateSnapshot>, C> {
        Ok(Box::new(StateSnapshot::empty()))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        snapshot: Box<StateSnapshot>,
    ) -> StorageResult<(), C> {
        let subject = ErrorSubject::Snapshot(Some(meta.signature()));
        let (shared, meta) = (self.shared.clone(), meta.clone());
        let installed = match snapshot.into_bytes().await {
            Ok(data) => blocking(move || shared.install(&meta, &data)).await,
            Err(e) => Err(e),
        };
        installed.map_err(|e| storage_error(subject, ErrorVerb::Write, &e))
    }

    async fn get_current_snapshot(&mut self) -> StorageResult<Option<Snapshot<C>>, C> {
        let applied = self.shared.applied.lock();
        Ok(applied.snapshot.as_ref().map(BuiltSnapshot::to_raft))
    }
}
