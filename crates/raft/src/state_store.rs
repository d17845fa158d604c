//! The families of a node in its store: where the state is, and how a received one replaces it.

use crate::codec::{decode, encode};
use crate::snapshot_data::PinnedData;
use basalt::env::sync::Mutex;
use basalt::env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt::{
    Db, Error, Family, FamilyOptions, Logged, ReadOptions, Result, WriteBatch, WriteOptions,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;

/// Key of the family `NAME/meta`: the number of the current data family. It is persisted.
const CURRENT: &[u8] = b"current";

/// Most entries that may be missing before an entry of a passive state.
const MAX_SKIPPED: u64 = 1000;

/// Bytes of a batch when a received snapshot is written.
const BATCH_BYTES: usize = 1 << 20;

/// Returns the number of the transaction of a passive store that the entry with this index is.
fn tsn_of(index: u64) -> u64 {
    index + 1
}

/// Where the state is. Readers share it.
pub(crate) struct StateStore {
    pub db: Db,
    data: [Family; 2],
    pub meta: Family,
    /// Which family of `data` is current.
    current: Mutex<usize>,
    /// True if the store is passive: its transactions are the entries of the Raft log.
    pub is_passive: bool,
    /// True if the family that is not current may have keys of an earlier state. In a passive store
    /// the next entry deletes them.
    other_is_stale: AtomicBool,
}

impl StateStore {
    /// Opens the families of a node, which are made if the store does not have them.
    pub fn open(db: &Db, name: &str) -> Result<StateStore> {
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
            is_passive: db.persistence_points().is_ok(),
            other_is_stale: AtomicBool::new(true),
        })
    }

    /// Returns the family of the newest state.
    pub fn current(&self) -> &Family {
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

    /// Adds the deletion of all keys of a family to a batch.
    fn delete_all(&self, family: &Family, batch: &mut WriteBatch) -> Result<()> {
        let mut keys = self.db.iter(family, &ReadOptions::default())?;
        keys.seek_to_last()?;
        if !keys.valid() {
            return Ok(());
        }
        batch.delete_range(family, &[], keys.key())?;
        batch.delete(family, keys.key())
    }

    /// Deletes all keys of a family.
    fn clear(&self, family: &Family) -> Result<()> {
        let mut batch = WriteBatch::new();
        self.delete_all(family, &mut batch)?;
        self.db.write(batch, &WriteOptions::UNSYNCED).map(drop)
    }

    /// Applies the entry with this index. In a passive store the entry is a transaction, which also
    /// deletes what an earlier state has left.
    pub fn write_entry(&self, index: u64, mut batch: WriteBatch) -> Result<()> {
        if !self.is_passive {
            return self.db.write(batch, &WriteOptions::UNSYNCED).map(drop);
        }
        let is_stale = self.other_is_stale.load(SeqCst);
        if is_stale {
            let other = &self.data[1 - *self.current.lock()];
            self.delete_all(other, &mut batch)?;
        }
        // openraft leaves no entry out, but a test of storage may.
        let (applied, tsn) = (self.db.persistence_points()?.applied, tsn_of(index));
        if tsn > applied + MAX_SKIPPED {
            return Err(Error::invalid(format!(
                "entry {index} cannot follow the {applied} entries that the state has: the state belongs to another log; open the state of this node, or begin with an empty directory"
            )));
        }
        let skipped = (applied + 1..tsn).map(|tsn| (Logged::at(tsn), WriteBatch::new()));
        let entry = (Logged::at(tsn), batch);
        self.db
            .write_group_at(&mut skipped.chain([entry]).collect())?;
        if is_stale {
            self.other_is_stale.store(false, SeqCst);
        }
        Ok(())
    }

    /// Makes the applied entries, up to `index` at least, survive a power cut without the Raft log.
    pub fn persist(&self, index: u64) -> Result<()> {
        if !self.is_passive {
            return self.db.sync();
        }
        match self.db.persistence_points()?.global >= tsn_of(index) {
            true => Ok(()),
            false => self.db.flush(),
        }
    }

    /// Replaces the state of a passive store, as of the entry with this index: `entries` become the
    /// keys of the family that is not current, which becomes the current one, and `meta` those of
    /// the meta family. Keys are in order. Returns the new state.
    pub fn replace(
        &self,
        index: u64,
        entries: &[(&[u8], &[u8])],
        meta: &BTreeMap<&[u8], Option<Vec<u8>>>,
    ) -> Result<PinnedData> {
        let other = 1 - *self.current.lock();
        let family = &self.data[other];
        let mut table = self.db.prepare(family)?;
        let mut stale = self
            .db
            .iter(family, &ReadOptions::default().keys_only(true))?;
        stale.seek_to_first()?;
        let mut entries = entries.iter().peekable();
        loop {
            let old = stale.valid().then(|| stale.key().to_vec());
            match (old, entries.peek()) {
                (None, None) => break,
                (Some(old), next) if next.is_none_or(|(key, _)| old.as_slice() < *key) => {
                    table.delete(&old)?;
                    stale.next()?;
                }
                (old, Some((key, value))) => {
                    table.add(key, value)?;
                    if old.is_some_and(|old| old == *key) {
                        stale.next()?;
                    }
                    entries.next();
                }
                (Some(_), None) => unreachable!("an old key without a next one is deleted"),
            }
        }
        drop(stale);
        let mut metas = self.db.prepare(&self.meta)?;
        let current = encode(&(other as u8)).map_err(Error::invalid)?;
        let mut values = meta.clone();
        values.insert(CURRENT, Some(current));
        for (key, value) in values {
            match value {
                Some(value) => metas.add(key, &value)?,
                None => metas.delete(key)?,
            }
        }
        self.db
            .rebase(tsn_of(index), &[table.finish()?, metas.finish()?])?;
        *self.current.lock() = other;
        self.other_is_stale.store(true, SeqCst);
        Ok(self.pin())
    }

    /// Writes keys and values into the family that is not current.
    pub fn fill_other(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
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
    pub fn make_other_current(&self, mut batch: WriteBatch) -> Result<PinnedData> {
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

/// Adds a value under a key of the meta family.
pub(crate) fn put_meta<T>(
    batch: &mut WriteBatch,
    meta: &Family,
    key: &[u8],
    value: &T,
) -> Result<()>
where
    T: Serialize + DeserializeOwned,
{
    let bytes = encode(value).map_err(Error::invalid)?;
    batch.put(meta, key, &bytes)
}

/// Returns the value under a key of the meta family.
pub(crate) fn read_meta<T: DeserializeOwned>(
    db: &Db,
    meta: &Family,
    key: &[u8],
) -> Result<Option<T>> {
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
