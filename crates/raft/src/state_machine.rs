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
use crate::codec::{decode, encode};
use crate::snapshot_data::{self, PinnedData, StateSnapshot};
use crate::state_reader::StateReader;
use basalt::env::sync::Mutex;
use basalt::{
    Bytes, Db, Error, Family, FamilyOptions, Iter, ReadOptions, Result, WriteBatch, WriteOptions,
};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder,
    RaftTypeConfig, SnapshotMeta, StorageError, StoredMembership,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::Arc;

/// Keys of the family `NAME/meta`. They are persisted.
const APPLIED: &[u8] = b"applied";
const MEMBERSHIP: &[u8] = b"membership";
const CURRENT: &[u8] = b"current";

/// Bytes of a batch when a received snapshot is written.
const BATCH_BYTES: usize = 1 << 20;

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
}

/// Where the state is. Readers share it.
pub(crate) struct StateStore {
    pub db: Db,
    data: [Family; 2],
    meta: Family,
    /// Which family of `data` is current.
    current: Mutex<usize>,
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

impl StateStore {
    fn open(db: &Db, name: &str) -> Result<StateStore> {
        let family = |part: &str| {
            let name = format!("{name}/{part}");
            match db.family(&name) {
                Some(family) => Ok(family),
                None => db.create_family(&name, FamilyOptions::default()),
            }
        };
        let meta = family("meta")?;
        let current: u8 = read_meta(db, &meta, CURRENT)?.unwrap_or(0);
        if current > 1 {
            let what = format!("there is no data family {current}");
            return Err(damaged(&meta, CURRENT, what));
        }
        Ok(StateStore {
            db: db.clone(),
            data: [family("a")?, family("b")?],
            meta,
            current: Mutex::new(current.into()),
        })
    }

    fn current(&self) -> &Family {
        &self.data[*self.current.lock()]
    }

    /// Returns the newest state, which later entries and installed snapshots do not change.
    pub fn pin(&self) -> PinnedData {
        // An install clears a family after it has ceased to be the current one. A snapshot that was
        // taken under the lock is older than that.
        let current = self.current.lock();
        PinnedData {
            db: self.db.clone(),
            family: self.data[*current].clone(),
            snapshot: self.db.snapshot(),
        }
    }

    /// Deletes all keys of a family.
    fn clear(&self, family: &Family) -> Result<()> {
        let mut keys = self.db.iter(family, &ReadOptions::default())?;
        keys.seek_to_last()?;
        if !keys.valid() {
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        batch.delete_range(family, &[], keys.key())?;
        batch.delete(family, keys.key())?;
        self.db.write(batch, &WriteOptions::UNSYNCED).map(drop)
    }

    /// Writes keys and values into the family that is not current.
    fn fill_other(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let other = &self.data[1 - *self.current.lock()];
        // A crash may have left the part of an earlier snapshot.
        self.clear(other)?;
        let mut batch = WriteBatch::new();
        for (key, value) in entries {
            batch.put(other, key, value)?;
            if batch.bytes() >= BATCH_BYTES {
                let full = std::mem::take(&mut batch);
                self.db.write(full, &WriteOptions::UNSYNCED)?;
            }
        }
        self.db.write(batch, &WriteOptions::UNSYNCED).map(drop)
    }

    /// Makes the other family the current one, durably, with what `batch` has. Returns the new
    /// state.
    fn make_other_current(&self, mut batch: WriteBatch) -> Result<PinnedData> {
        let other = 1 - *self.current.lock();
        put_meta(&mut batch, &self.meta, CURRENT, &(other as u8))?;
        // A store never keeps a write and loses an earlier one, so the sync covers the data.
        self.db.write(batch, &WriteOptions::SYNC)?;
        *self.current.lock() = other;
        let pinned = self.pin();
        self.clear(&self.data[1 - other])?;
        Ok(pinned)
    }
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
            }),
        })
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
        db.write(batch, &WriteOptions::UNSYNCED)?;
        let mut applied = self.applied.lock();
        applied.last = Some(entry.log_id);
        if let Some(membership) = membership {
            applied.membership = membership;
        }
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
        self.store.fill_other(&entries)?;
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
        let pinned = self.store.make_other_current(batch)?;
        let mut applied = self.applied.lock();
        applied.last = meta.last_log_id.clone();
        applied.membership = meta.last_membership.clone();
        applied.snapshot = Some(BuiltSnapshot {
            meta: meta.clone(),
            data: Arc::new(pinned),
        });
        Ok(())
    }
}

fn put_meta<T>(batch: &mut WriteBatch, meta: &Family, key: &[u8], value: &T) -> Result<()>
where
    T: Serialize + DeserializeOwned,
{
    let bytes = encode(value).map_err(Error::invalid)?;
    batch.put(meta, key, &bytes)
}

fn read_meta<T: DeserializeOwned>(db: &Db, meta: &Family, key: &[u8]) -> Result<Option<T>> {
    let Some(bytes) = db.get(meta, key, &ReadOptions::default())? else {
        return Ok(None);
    };
    let value = decode(&bytes).map_err(|what| damaged(meta, key, what))?;
    Ok(Some(value))
}

fn damaged(meta: &Family, key: &[u8], what: String) -> Error {
    let key = String::from_utf8_lossy(key);
    let message = format!("key {key:?} of family {:?}: {what}", meta.name());
    Error::corruption(Path::new(meta.name()), 0, message)
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
            shared.store.db.sync()?;
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
