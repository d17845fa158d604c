//! [`Db`]: an open store as its users see it. Each call checks its arguments and passes them to the
//! engine.

use super::approximate_sizes::UserRange;
use super::blob_files::BlobFileStats;
use super::checkpoint::{CheckpointOptions, CheckpointReport};
use super::compact_range::CompactOptions;
use super::cursor::Iter;
use super::engine::Engine;
use super::families::FamilyEntry;
use super::ingest::{Prepared, TableWriter};
use super::integrity::check::{self, VerifyReport};
use super::integrity::repair;
use super::integrity::report::RepairReport;
use super::precondition::{Precondition, checks_of};
use super::stats::{RangeSize, Stats};
use super::throttle::Patience;
use super::ticket::Ticket;
use super::{open, read_only};
use crate::options::{FamilyOptions, Options, ReadOptions, WriteOptions};
use crate::version::edit::Edit;
use basalt_env::Env;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::batch::WriteBatch;
use basalt_kv::family::{Family, FamilyConfig};
use basalt_kv::key::SeqNo;
use basalt_kv::snapshot::Snapshot;
use basalt_table::ReadBudget;

use std::path::Path;
use std::sync::Arc;

/// An open store. Cheap to clone; the last clone closes it, or [`Db::close`] does and reports.
#[derive(Clone)]
pub struct Db(Arc<Handle>);

struct Handle(Arc<Engine>);

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; what was acknowledged as durable is so already.
        let _ = self.0.close();
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

/// What the store knows of a value without reading it from a blob file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueMeta {
    /// The value's expiry in ms since 1970, if it has one.
    pub expire_at_ms: Option<u64>,
    /// The value, pinned, if it is in memory or in the tree; `None` if it is in a blob file.
    pub inline: Option<Bytes>,
    /// Bytes of the value; `None` if it is in a blob file and its length was not asked for.
    pub len: Option<usize>,
}

impl Db {
    /// Opens the store in directory `path` of the environment's filesystem, recovering it if it was not closed.
    ///
    /// Errors: `Busy` when another process has it open (the message names it), `Corruption` with file and offset when
    /// a file is damaged (`basalt check` lists all damage, `basalt repair` salvages), `Unsupported` when a later version wrote it.
    pub fn open(env: &Env, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        let engine = open::open(env, path, options)
            .map_err(|e| e.context(format!("opening the store in {}", path.display())))?;
        engine.trim_logs_of_old();
        engine.background.schedule();
        Ok(Db(Arc::new(Handle(engine))))
    }

    /// Opens the store in directory `path` for reading, and writes nothing, ever: it may be on a medium that cannot be written, or on a full
    /// device. Any number of readers may have a store open at a time, and nobody who writes; what its logs hold is read into memory (at
    /// most what the writer's memtables held). Every change is refused with `ReadOnly`; `flush` and `compact` too. `create_if_missing`
    /// and `error_if_exists` mean nothing here.
    ///
    /// Errors: `NotFound` without a store, `Busy` when somebody has it open for writing, and those of [`Db::open`].
    pub fn open_read_only(env: &Env, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        let engine = read_only::open(env, path, options)
            .map_err(|e| e.context(format!("opening the store in {}", path.display())))?;
        Ok(Db(Arc::new(Handle(engine))))
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.0.0
    }

    /// The environment.
    pub fn env(&self) -> &Env {
        &self.engine().ctx.env
    }

    pub(super) fn handle(&self, f: &FamilyEntry) -> Family {
        Family::new(FamilyConfig {
            id: f.id,
            store: self.engine().ctx.owner,
            name: f.name.clone(),
            comparator: f.options.comparator.clone(),
            merge_operator: f.options.merge_operator.clone(),
            min_blob_size: f.options.min_blob_size,
            blob_compression: f.options.blob_compression,
        })
    }

    /// The family that every store has.
    pub fn default_family(&self) -> Family {
        self.family("default")
            .expect("every store has it, and it cannot be dropped")
    }

    /// A family by name.
    pub fn family(&self, name: &str) -> Option<Family> {
        self.engine()
            .tree
            .view()
            .families
            .values()
            .find(|f| &*f.name == name)
            .map(|f| self.handle(f))
    }

    /// All families' names, `default` first, then in the order they were made.
    pub fn families(&self) -> Vec<String> {
        self.engine()
            .tree
            .view()
            .families
            .values()
            .map(|f| f.name.to_string())
            .collect()
    }

    /// Makes a family. Durable when it returns. `AlreadyExists` when the name is taken, `InvalidArgument` for an empty name or one
    /// of more than 255 bytes.
    pub fn create_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        options.validate(name)?;
        if name.is_empty() || name.len() > 255 {
            return Err(Error::invalid(format!(
                "a family name has 1 to 255 bytes, {name:?} has {}",
                name.len()
            )));
        }
        let engine = self.engine();
        engine.ctx.check_writable()?;
        // Serialises makers: names and ids are looked up and taken in one step.
        let mut writer = engine.writes.lock();
        // It may have been closed while the lock was waited for.
        engine.ctx.check_open()?;
        if self.family(name).is_some() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("family {name:?} exists"),
            ));
        }
        // The manifest would otherwise remember the family and a power cut forget writes made before it: what
        // survives is a prefix of everything that was done.
        engine.sync_log(&mut writer)?;
        let id = engine.tree.lock().catalog().next_family;
        let entry = FamilyEntry {
            id,
            name: name.into(),
            options: Arc::new(options),
            scan_history: Arc::default(),
        };
        let cmp = entry.options.comparator.clone();
        let edit = Edit {
            next_family: Some(id + 1),
            add_families: vec![(id, name.to_string(), cmp.name().to_string())],
            merge_operators: entry
                .options
                .merge_operator
                .iter()
                .map(|o| (id, o.name().to_string()))
                .collect(),
            ..Edit::default()
        };
        let handle = self.handle(&entry);
        engine.tree.install(edit, Vec::new(), |_, view| {
            let mut families = (*view.families).clone();
            families.insert(id, entry);
            view.families = Arc::new(families);
            view.active = view.active.with_family(id, cmp);
        })?;
        Ok(handle)
    }

    /// Drops a family and everything in it. Durable when it returns. `default` cannot be dropped.
    pub fn drop_family(&self, family: &Family) -> Result<()> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        if family.id() == 0 {
            return Err(Error::invalid("the family \"default\" cannot be dropped"));
        }
        // No group is between its log record and its memtables while we hold this.
        let mut writer = engine.writes.lock();
        // It may have been closed while the lock was waited for.
        engine.ctx.check_open()?;
        if family.store() != engine.ctx.owner
            || !engine.tree.view().families.contains_key(&family.id())
        {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("family {:?} was dropped", family.name()),
            ));
        }
        // As in `create_family`: what was written before the drop may not be lost when the drop is not.
        engine.sync_log(&mut writer)?;
        let id = family.id();
        let edit = Edit {
            drop_families: vec![id],
            ..Edit::default()
        };
        engine.tree.install(edit, Vec::new(), |_, view| {
            view.active = view.active.without_family(id);
        })
    }

    fn check_batch(&self, batch: &WriteBatch) -> Result<()> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        if batch.is_empty() {
            return Ok(());
        }
        let view = engine.tree.view();
        for &(store, family) in batch.families() {
            if store != engine.ctx.owner {
                return Err(Error::invalid(
                    "the batch has operations on a family of another store",
                ));
            }
            if !view.families.contains_key(&family) {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("the batch has operations on family {family}, which was dropped"),
                ));
            }
        }
        engine.pressure.admit(batch)
    }

    /// Queues a batch: it is committed with whoever else is waiting. Batches of one thread commit in the order submitted.
    /// An empty batch commits nothing, and with `sync` makes everything submitted before it durable.
    ///
    /// The memory of queued batches is reserved in the environment's ledger. While 16 MiB of submitted batches are
    /// queued, or the memory budget is used up, this call waits until groups were committed, as [`Db::write`] would,
    /// and commits them itself if no other thread does. One batch may exceed the limit. No callback runs inside this
    /// call. Inside a callback of [`Ticket::on_complete`] this call never waits, as [`Db::submit_nowait`].
    pub fn submit(&self, batch: WriteBatch, options: &WriteOptions) -> Ticket {
        self.queue_batch(batch, &[], options, Patience::Wait)
    }

    /// Queues a batch as [`Db::submit`] does. It is written if all preconditions hold when its turn
    /// comes; else its ticket ends with `Conflict`, as [`Db::write_if`] says.
    pub fn submit_if(
        &self,
        batch: WriteBatch,
        preconditions: &[Precondition<'_>],
        options: &WriteOptions,
    ) -> Ticket {
        self.queue_batch(batch, preconditions, options, Patience::Wait)
    }

    /// Queues a batch as [`Db::submit`] does, and never waits, however full the queue is. The memory is reserved in the
    /// ledger, past the budget if need be. For a thread that may not wait, such as an event loop, and that bounds what
    /// it submits by itself.
    pub fn submit_nowait(&self, batch: WriteBatch, options: &WriteOptions) -> Ticket {
        self.queue_batch(batch, &[], options, Patience::Return)
    }

    fn queue_batch(
        &self,
        batch: WriteBatch,
        preconditions: &[Precondition<'_>],
        options: &WriteOptions,
        patience: Patience,
    ) -> Ticket {
        let engine = self.engine();
        let checked = self.check_batch(&batch);
        let state = match checked.and_then(|()| checks_of(preconditions)) {
            Ok(checks) => engine.enqueue(batch, options.sync, checks, patience),
            Err(e) => Engine::failed_ticket(e),
        };
        engine.ensure_leader();
        Ticket {
            state,
            engine: engine.clone(),
        }
    }

    /// Submits and waits.
    pub fn write(&self, batch: WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        self.write_if(batch, &[], options)
    }

    /// Submits a batch and waits. The batch is written if all preconditions hold when its turn
    /// comes, after every batch that was submitted before it; else nothing is written. An empty
    /// batch only checks. Returns the last sequence number of the batch.
    ///
    /// A precondition names a key and the sequence number as of which it was read. So a read, a
    /// change and a write of the key take effect as one step:
    ///
    /// 1. Take a [`Snapshot`] and read the key with it.
    /// 2. Call `write_if` with the new value and
    ///    [`Precondition::unchanged`]`(&family, key, snapshot.seq())`.
    /// 3. After `Conflict`, begin again.
    ///
    /// An absent key also counts as changed if its tombstone may have been dropped by a compaction
    /// since. With a new snapshot the next attempt passes.
    ///
    /// Cost: the batch is a commit group of its own. It shares a device write with no other batch,
    /// and a sync with none. The commit leader looks the keys up while it holds the write path. It
    /// looks into memtables, and reads from tables only if one that may have the key was written
    /// since. With nothing but older tables it reads nothing.
    ///
    /// Errors: `Conflict` with the key and the newer sequence number; `NotFound` if a key's family
    /// was dropped; `InvalidArgument` for a key that is too long, a family of another store or a
    /// sequence number that the store has not reached; those of [`Ticket::wait`], and of a read.
    pub fn write_if(
        &self,
        batch: WriteBatch,
        preconditions: &[Precondition<'_>],
        options: &WriteOptions,
    ) -> Result<SeqNo> {
        self.check_batch(&batch)?;
        let checks = checks_of(preconditions)?;
        self.engine().write(batch, options.sync, checks)
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

    /// Changes one key by an operand: [`WriteBatch::merge`].
    pub fn merge(
        &self,
        family: &Family,
        key: &[u8],
        operand: &[u8],
        options: &WriteOptions,
    ) -> Result<SeqNo> {
        let mut b = WriteBatch::new();
        b.merge(family, key, operand)?;
        self.write(b, options)
    }

    /// Removes all keys from `from` (inclusive) to `to` (not), in the family's order: one small record, however many keys there are. Reads
    /// of other keys stay as fast as they were, and the space comes back by compaction. `InvalidArgument` when `to` lies before `from`.
    pub fn delete_range(
        &self,
        family: &Family,
        from: &[u8],
        to: &[u8],
        options: &WriteOptions,
    ) -> Result<SeqNo> {
        let mut b = WriteBatch::new();
        b.delete_range(family, from, to)?;
        self.write(b, options)
    }

    /// The value of a key. A long one is pinned, not copied.
    pub fn get(&self, family: &Family, key: &[u8], options: &ReadOptions) -> Result<Option<Bytes>> {
        Ok(self.engine().get(family, key, options)?.map(|v| v.value))
    }

    /// The value of a key and its expiry.
    pub fn get_with_expiry(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueWithExpiry>> {
        self.engine().get(family, key, options)
    }

    /// As [`Db::get_with_expiry`], if the value is not separated, or is at most `budget_bytes`
    /// long. `None` if a separated value is longer. Then the value was not read, or it was read and
    /// not decompressed. Blocks of the tree do not count.
    pub fn get_within(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
        budget_bytes: usize,
    ) -> Result<Option<Option<ValueWithExpiry>>> {
        let budget = &mut ReadBudget::bytes(budget_bytes);
        self.engine().get_within(family, key, options, budget)
    }

    /// Returns the sequence number of the newest entry of a key, or `None` if the key has no entry.
    /// Tombstones, and tombstones over ranges that have the key, are entries until a compaction
    /// drops them; an expired value is one, too. With a snapshot, entries that are newer do not
    /// count.
    ///
    /// Cost: that of [`Db::get`] without the value of a separated one. Memtables are asked first,
    /// then tables from new to old, each behind its filter. The first entry ends the search.
    ///
    /// Errors: `NotFound` for a dropped family; those of a read.
    pub fn latest_seq(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<SeqNo>> {
        self.engine().latest_seq(family, key, options)
    }

    /// Presence and expiry of a key. A separated value is not read, so the answer does not prove
    /// that it is intact. A key with merge operands is merged, and what that takes is read.
    pub fn get_meta(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueMeta>> {
        let meta = self.engine().get_meta(family, key, options, None)?;
        Ok(meta.expect("nothing is put off that is not read"))
    }

    /// As [`Db::get_meta`], with the length of the value. Of a separated value that is not in the
    /// cache, the header and the key of its record are read, which have a checksum of their own. A
    /// compressed value is read as it is stored, since only its checksum proves the length, and is
    /// not decompressed: `None` if it takes more than `budget_bytes` in its file; then the value was
    /// not read.
    pub fn get_len_within(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
        budget_bytes: usize,
    ) -> Result<Option<Option<ValueMeta>>> {
        let budget = &mut ReadBudget::bytes(budget_bytes);
        self.engine().get_meta(family, key, options, Some(budget))
    }

    /// Many keys as of one moment; results in the order of the keys. What has to be read of the device for them is read together, up to 64
    /// blocks at a time, whatever tables and levels they lie in.
    pub fn multi_get(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
    ) -> Vec<Result<Option<Bytes>>> {
        self.engine()
            .multi_get(keys, options, &mut ReadBudget::unbounded(), true)
            .into_iter()
            .map(|answer| answer.expect("nothing is put off without a bound"))
            .collect()
    }

    /// As [`Db::multi_get`], with bounded memory: blocks read from the device and values found in memory count against
    /// `budget_bytes`, and a key that it does not reach for is answered with `None`, to be asked again in another call. At least
    /// one key is answered in each call, whatever the budget; so a call brings at most the budget and one block into memory.
    /// Without a snapshot in `options`, each call reads as of its own moment.
    pub fn multi_get_within(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        self.engine()
            .multi_get(keys, options, &mut ReadBudget::bytes(budget_bytes), true)
    }

    /// Reads keys like [`Db::multi_get_within`], but applies the budget to the first key, too. So
    /// the call may return no answer at all.
    pub fn multi_get_up_to(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        self.engine()
            .multi_get(keys, options, &mut ReadBudget::bytes(budget_bytes), false)
    }

    /// A cursor over a family, not yet positioned.
    pub fn iter(&self, family: &Family, options: &ReadOptions) -> Result<Iter> {
        Iter::new(self.engine(), family, options)
    }

    /// Its blob files, by number: what is alive in each, of whom. Nothing is read.
    pub fn blob_files(&self) -> Vec<BlobFileStats> {
        self.engine().blob_files()
    }

    /// PinnedMeta the present moment.
    pub fn snapshot(&self) -> Snapshot {
        self.engine().snapshot()
    }

    /// Makes every write acknowledged so far survive a power cut.
    pub fn sync(&self) -> Result<()> {
        self.write(WriteBatch::new(), &WriteOptions::SYNC)
            .map(|_| ())
    }

    /// Writes all memtables out and waits.
    pub fn flush(&self) -> Result<()> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        engine.seal_and_flush()
    }

    /// Compacts a family's keys in `[from, to)` down to the lowest level that holds any and waits; `None` is unbounded.
    pub fn compact_range(
        &self,
        family: &Family,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<()> {
        self.compact(
            family,
            &CompactOptions {
                from: from.map(<[u8]>::to_vec),
                to: to.map(<[u8]>::to_vec),
                ..CompactOptions::default()
            },
        )
    }

    /// Compacts a range of a family's keys down to the lowest level that holds any, on the calling thread. What is written meanwhile
    /// need not be in it. Each step is durable when it ends, so one that fails or is cancelled leaves the tree sound and the answers as
    /// they are, and no file behind.
    ///
    /// Errors: `Cancelled`, `Closed`, `NotFound` for a dropped family, and what compactions meet.
    pub fn compact(&self, family: &Family, options: &CompactOptions) -> Result<()> {
        self.flush()?;
        self.engine().compact(family, options)
    }

    /// Waits until no flush or compaction is due.
    pub fn wait_idle(&self) -> Result<()> {
        self.engine().wait_idle()
    }

    /// About how many bytes the keys in each range take, without reading them.
    ///
    /// Of a table that lies inside a range all bytes count. One that an end of the range cuts counts by its index: each cut is
    /// wrong by less than one data block, and the index and filter of the table (a few percent of it) count with its last key. So the
    /// answer is at most a block for each cut and an index and filter for each cut table off, and adjoining ranges add up exactly.
    /// Memtables are walked: exact, and it takes time for each entry in the range. Overwritten and deleted entries that are still
    /// stored count. Reads index partitions of the cut tables, at most two for each.
    ///
    /// Errors: `NotFound` for a dropped family; what reading an index may meet.
    pub fn approximate_sizes(
        &self,
        family: &Family,
        ranges: &[UserRange<'_>],
    ) -> Result<Vec<RangeSize>> {
        self.engine().approximate_sizes(family, ranges)
    }

    /// Waits until the store's listeners were told of everything that has happened so far. Not to be called by a listener, which
    /// would wait for itself.
    pub fn wait_for_listeners(&self) {
        let engine = self.engine();
        engine.ctx.events.wait(engine.ctx.env.jobs());
    }

    /// Shape and counters.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Makes a copy of the store in `target`, which must not exist, while everything goes on: openable, with all that was acknowledged
    /// before the call, in it or later, up to one moment before its return. Durable when it returns.
    ///
    /// Tables are linked, not copied, so it takes no space until the store replaces them; logs are copied. It is built beside
    /// `target` under the name `TARGET.checkpoint-unfinished` and gets its own name when it is whole: a crash leaves nothing under
    /// that name, or all of it. What a crash leaves under the other is removed by the next checkpoint to `target`, and may be removed
    /// by hand. The copy has the store's id, and is a store of its own: each goes its way, and neither touches the other's files.
    ///
    /// If the store is closed meanwhile, closing waits until the checkpoint has ended, soon, with `Closed`.
    ///
    /// Errors: `AlreadyExists` when `target` is there, `NotFound` without the folder above it, `Busy` while another checkpoint to it
    /// is being made, `Closed`, `Unsupported` when tables cannot be linked there and may not be copied, `NoSpace`,
    /// `Io`. Then nothing is left, but for one case: when only the folder's own name could not be made durable, the
    /// error says so and the checkpoint is there.
    pub fn checkpoint(
        &self,
        target: impl AsRef<Path>,
        options: &CheckpointOptions,
    ) -> Result<CheckpointReport> {
        let target = target.as_ref();
        self.engine()
            .checkpoint(target, options)
            .map_err(|e| e.context(format!("making a checkpoint in {}", target.display())))
    }

    /// Begins to write tables of a family that [`Db::ingest`] will add to the store: for loads of much data that comes in the family's order, which
    /// is written once, past log and memtables. Values of the family's `min_blob_size` or more go to blob files, as always. Any number of writers
    /// may write at once, and everything else goes on meanwhile; nobody sees any of it before it is added.
    ///
    /// Waits for the commit that is on its way. Costs a few megabytes of memory until it ends.
    pub fn prepare(&self, family: &Family) -> Result<TableWriter> {
        self.engine().prepare(family)
    }

    /// Adds prepared tables to the store, of any number of families: all of them or, after an error, none. Durable when it returns, with every write
    /// that was made before, synced or not. What they say of a key is newer than all that was written before, and older than all that comes after; a
    /// snapshot from before does not see it. The sequence number that all of it has.
    ///
    /// Each table goes to the deepest level where nothing newer would cover what is there, so that data which overlaps nothing is
    /// never rewritten; the rest goes to level 0, where it takes part in merges as what memtables write out does. Tables of level 0 are judged by their first and last key: one
    /// that was flushed with keys far apart brings everything between them to level 0, and writers are held back until that is merged. A large load into a store that is written to
    /// goes best after a compaction of its range. Writers wait meanwhile: usually for two syncs, and where memtables have keys between those that are
    /// added, for these to be written out.
    ///
    /// `InvalidArgument` when two of them overlap in a family, for a set of another store, and for one that was added before; `NotFound` when a
    /// family was dropped. After these, `NoSpace` and `Busy` the same sets may be tried again. When the manifest cannot be written, nobody
    /// knows whether they were added before the store is opened anew, and they cannot be added again.
    pub fn ingest(&self, prepared: &[Prepared]) -> Result<SeqNo> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        engine.ingest(prepared)
    }

    /// Writes memtables out, waits for background work, records a clean end and closes. Later calls on clones fail with
    /// `Closed`. Manual compactions and checkpoints of other threads are cancelled, and waited for.
    pub fn close(self) -> Result<()> {
        self.engine().close()
    }

    /// Stops at once, as a killed process would: nothing is flushed, nothing recorded. For tests of recovery.
    pub fn abandon(self) {
        self.engine().abandon();
    }

    /// Walks every byte of a closed store. `Err` only when it cannot be walked at all; damage is in the report.
    /// `progress(done, total)` is called as bytes are read.
    pub fn verify_store(
        env: &Env,
        path: impl AsRef<Path>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport> {
        check::verify_store(env, path.as_ref(), options, progress)
    }

    /// Salvages what verifies from a damaged, closed store and reports exactly what is lost. Damaged files are moved into the
    /// store's folder `lost`, never deleted.
    pub fn repair(
        env: &Env,
        path: impl AsRef<Path>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RepairReport> {
        repair::repair(env, path.as_ref(), options, progress)
    }
}
