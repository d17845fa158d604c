//! The engine: opening, writing, reading, closing. See the crate's map.

use crate::batch::WriteBatch;
use crate::key::SeqNo;
use crate::options::{FamilyOptions, Options, ReadOptions, WriteOptions};
use basalt_env::Env;
use basalt_fs::{Bytes, Result};
use std::path::Path;
use std::sync::Arc;

/// An open store. Cheap to clone; the last clone closes it, or [`Db::close`] does and reports.
#[derive(Clone)]
pub struct Db(Arc<()>);

/// A column family of an open store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Family {
    id: u32,
    name: Arc<str>,
}

impl Family {
    /// Its number, never used again in this store.
    pub fn id(&self) -> u32 {
        self.id
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A view of the store as of one moment, until dropped. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot(#[expect(dead_code)] Arc<()>);

impl Snapshot {
    /// Everything up to this sequence number is visible.
    pub fn seq(&self) -> SeqNo {
        todo!()
    }
}

/// A batch on its way. Dropping it does not take the batch back.
pub struct Ticket(#[expect(dead_code)] Arc<()>);

impl Ticket {
    /// Waits until the batch is acknowledged as its write options ask, and visible. The last sequence number of the batch.
    pub fn wait(self) -> Result<SeqNo> {
        todo!()
    }
    /// The result, if there is one yet.
    pub fn try_result(&self) -> Option<Result<SeqNo>> {
        todo!()
    }
    /// Calls `then` with the result, on whatever thread finds it; at once when it is there. `then` must not block.
    pub fn on_complete(self, then: impl FnOnce(Result<SeqNo>) + Send + 'static) {
        let _ = then;
        todo!()
    }
}

/// A cursor over a family's live keys, forward and backward, as of one moment.
pub struct Iter(#[expect(dead_code)] Arc<()>);

impl Iter {
    /// True when positioned on a key.
    pub fn valid(&self) -> bool {
        todo!()
    }
    /// To the first key inside the bounds.
    pub fn seek_to_first(&mut self) -> Result<()> {
        todo!()
    }
    /// To the last key inside the bounds.
    pub fn seek_to_last(&mut self) -> Result<()> {
        todo!()
    }
    /// To the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        let _ = key;
        todo!()
    }
    /// To the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        let _ = key;
        todo!()
    }
    /// To the next key. Requires `valid`.
    pub fn next(&mut self) -> Result<()> {
        todo!()
    }
    /// To the previous key. Requires `valid`.
    pub fn prev(&mut self) -> Result<()> {
        todo!()
    }
    /// The user key here. Requires `valid`.
    pub fn key(&self) -> &[u8] {
        todo!()
    }
    /// The value here (expiry stripped). Requires `valid`.
    pub fn value(&self) -> &[u8] {
        todo!()
    }
    /// The value here, pinned. Requires `valid`.
    pub fn pinned_value(&self) -> Bytes {
        todo!()
    }
    /// The expiry of the value here, ms since 1970.
    pub fn expire_at_ms(&self) -> Option<u64> {
        todo!()
    }
}

/// A value and when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueWithExpiry {
    /// The value, pinned.
    pub value: Bytes,
    /// Its expiry in ms since 1970, if it has one.
    pub expire_at_ms: Option<u64>,
}

/// The tree's shape and counters, for people and scripts. See [`Db::stats`].
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Per family.
    pub families: Vec<FamilyStats>,
    /// Bytes of write-ahead log on disk, recycled space included.
    pub log_bytes: u64,
    /// Bytes of user keys and values written since open.
    pub user_bytes_written: u64,
    /// Log bytes written since open.
    pub wal_bytes_written: u64,
    /// Table bytes written by flushes since open.
    pub flush_bytes_written: u64,
    /// Table bytes read and written by compactions since open.
    pub compaction_bytes_read: u64,
    /// See `compaction_bytes_read`.
    pub compaction_bytes_written: u64,
    /// Commit groups, and batches in them.
    pub commit_groups: u64,
    /// See `commit_groups`.
    pub commits: u64,
    /// Log syncs.
    pub log_syncs: u64,
    /// Microseconds that writers were slowed or held, by cause.
    pub stall_us: Vec<(&'static str, u64)>,
    /// Live snapshots.
    pub snapshots: u64,
    /// Sealed memtables waiting for their flush.
    pub sealed_memtables: u64,
    /// Bytes of memtables.
    pub memtable_bytes: u64,
    /// Table files on disk, obsolete ones that readers still hold included.
    pub table_files: u64,
    /// Bytes that a compaction should move soon.
    pub compaction_debt: u64,
    /// The store takes no writes, and why.
    pub read_only: Option<String>,
}

/// One family of [`Stats`].
#[derive(Debug, Clone, Default)]
pub struct FamilyStats {
    /// Name.
    pub name: String,
    /// Levels from 0.
    pub levels: Vec<LevelStats>,
}

/// One level of [`FamilyStats`].
#[derive(Debug, Clone, Default)]
pub struct LevelStats {
    /// Tables.
    pub tables: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// The size it aims at, 0 for level 0.
    pub target_bytes: u64,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Tombstones.
    pub deletes: u64,
}

/// What [`Db::verify_store`] walked.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Entries seen in tables and logs.
    pub entries: u64,
    /// Everything found wrong, most important first; empty when the store is sound.
    pub damage: Vec<basalt_fs::Error>,
    /// Files that belong to nothing.
    pub orphans: Vec<String>,
    /// Torn log tails that a recovery will cut: normal after a crash.
    pub torn_tails: Vec<String>,
}

/// What [`Db::repair`] did.
#[derive(Debug, Clone, Default)]
pub struct RepairReport {
    /// Tables kept.
    pub tables_kept: u64,
    /// Entries kept.
    pub entries_kept: u64,
    /// Exactly what is lost: file, range of keys or bytes, reason.
    pub lost: Vec<String>,
    /// Where damaged files were moved to.
    pub set_aside: Vec<String>,
}

impl Db {
    /// Opens the store in directory `path` of the environment's filesystem, recovering it if it was not closed.
    pub fn open(env: &Env, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let _ = (env, path.as_ref(), options);
        todo!()
    }
    /// The environment.
    pub fn env(&self) -> &Env {
        todo!()
    }
    /// The family that every store has.
    pub fn default_family(&self) -> Family {
        todo!()
    }
    /// A family by name.
    pub fn family(&self, name: &str) -> Option<Family> {
        let _ = name;
        todo!()
    }
    /// All families' names, `default` first.
    pub fn families(&self) -> Vec<String> {
        todo!()
    }
    /// Makes a family. Durable when it returns. `AlreadyExists` when the name is taken.
    pub fn create_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        let _ = (name, options);
        todo!()
    }
    /// Drops a family and everything in it. Durable when it returns. `default` cannot be dropped.
    pub fn drop_family(&self, family: &Family) -> Result<()> {
        let _ = family;
        todo!()
    }
    /// Queues a batch: it is committed with whoever else is waiting. Batches of one thread commit in the order submitted.
    pub fn submit(&self, batch: WriteBatch, options: &WriteOptions) -> Ticket {
        let _ = (batch, options);
        todo!()
    }
    /// Submits and waits.
    pub fn write(&self, batch: WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        self.submit(batch, options).wait()
    }
    /// Sets one key.
    pub fn put(
        &self,
        family: &Family,
        key: &[u8],
        value: &[u8],
        options: &WriteOptions,
    ) -> Result<SeqNo> {
        let mut b = WriteBatch::new();
        b.put(family, key, value)?;
        self.write(b, options)
    }
    /// Removes one key.
    pub fn delete(&self, family: &Family, key: &[u8], options: &WriteOptions) -> Result<SeqNo> {
        let mut b = WriteBatch::new();
        b.delete(family, key)?;
        self.write(b, options)
    }
    /// The value of a key, pinned, not copied.
    pub fn get(&self, family: &Family, key: &[u8], options: &ReadOptions) -> Result<Option<Bytes>> {
        Ok(self.get_with_expiry(family, key, options)?.map(|v| v.value))
    }
    /// The value of a key and its expiry.
    pub fn get_with_expiry(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueWithExpiry>> {
        let _ = (family, key, options);
        todo!()
    }
    /// Many keys as of one moment; results in the order of the keys.
    pub fn multi_get(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
    ) -> Vec<Result<Option<Bytes>>> {
        let _ = (keys, options);
        todo!()
    }
    /// A cursor over a family, not yet positioned.
    pub fn iter(&self, family: &Family, options: &ReadOptions) -> Result<Iter> {
        let _ = (family, options);
        todo!()
    }
    /// Pins the present moment.
    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }
    /// Makes every acknowledged write survive a power cut.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    /// Writes all memtables out and waits.
    pub fn flush(&self) -> Result<()> {
        todo!()
    }
    /// Compacts a family's keys in `[from, to)` down to the lowest level and waits; `None` is unbounded.
    pub fn compact_range(
        &self,
        family: &Family,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<()> {
        let _ = (family, from, to);
        todo!()
    }
    /// Waits until no flush or compaction is due.
    pub fn settle(&self) -> Result<()> {
        todo!()
    }
    /// Shape and counters.
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// Flushes, waits for background work, records a clean end and closes. Later calls on clones fail with `Closed`.
    pub fn close(self) -> Result<()> {
        let _ = self.0;
        todo!()
    }
    /// Walks every byte of a closed store. `Err` only when it cannot be walked at all; damage is in the report.
    /// `progress(done, total)` is called as bytes are read.
    pub fn verify_store(
        env: &Env,
        path: impl AsRef<Path>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport> {
        let _ = (env, path.as_ref(), options, progress);
        todo!()
    }
    /// Salvages what verifies from a damaged, closed store and reports exactly what is lost. Damaged files are moved aside, never deleted.
    pub fn repair(
        env: &Env,
        path: impl AsRef<Path>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RepairReport> {
        let _ = (env, path.as_ref(), options, progress);
        todo!()
    }
}
