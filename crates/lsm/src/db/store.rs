//! [`Db`]: an open store as its users see it. Each call checks its arguments and passes them to the
//! engine.

use super::approximate_sizes::UserRange;
use super::blob_files::BlobFileStats;
use super::checkpoint::{CheckpointOptions, CheckpointPart, CheckpointReport};
use super::compact_range::CompactOptions;
use super::cursor::Iter;
use super::engine::Engine;
use super::explain::ReadExplanation;
use super::families::FamilyEntry;
use super::ingest::{Prepared, TableWriter};
use super::integrity::check::{self, VerifyReport};
use super::integrity::repair;
use super::integrity::report::RepairReport;
use super::page_inspector::{self, PageInspector};
use super::persistence::needs_tsn;
use super::precondition::Precondition;
use super::stats::{RangeSize, Stats};
use super::throttle::WaitMode;
use super::ticket::Ticket;
use super::{open, read_only};
use crate::options::{Options, ReadOptions, WriteOptions};
use crate::version::EngineKind;
use basalt_env::Env;
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::batch::WriteBatch;
use basalt_kv::family::{Family, FamilyConfig};
use basalt_kv::key::SeqNo;
use basalt_kv::snapshot::Snapshot;
use basalt_table::ReadBudget;
use basalt_tree::TreeCheck;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// An open store. A clone is cheap and means the same store. The drop of the last clone closes the
/// store and ignores errors; [`Db::close`] closes the store and reports them.
#[derive(Clone)]
pub struct Db(Arc<Handle>);

struct Handle(Arc<Engine>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A drop cannot report an error. Writes that were acknowledged as durable are durable
        // already.
        let _ = self.0.close();
    }
}

/// A value and its time of expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueWithExpiry {
    /// The value, pinned in memory.
    pub value: Bytes,
    /// Its expiry in ms since 1970, if it has one.
    pub expire_at_ms: Option<u64>,
}

impl ValueWithExpiry {
    /// Returns a value with its time of expiry.
    pub fn new(value: Bytes, expire_at_ms: Option<u64>) -> ValueWithExpiry {
        ValueWithExpiry {
            value,
            expire_at_ms,
        }
    }
}

/// Facts about a value that the store knows without reading the value from a blob file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueMeta {
    /// The value's expiry in ms since 1970, if it has one.
    pub expire_at_ms: Option<u64>,
    /// The value, pinned in memory, if a memtable or a table holds it. `None` if a blob file holds
    /// it.
    pub inline: Option<Bytes>,
    /// Length of the value in bytes. `None` if a blob file holds the value and the caller did not
    /// ask for the length.
    pub len: Option<usize>,
}

impl Db {
    /// Opens the store in directory `path` of the environment's filesystem. If the store was not
    /// closed, the call recovers it.
    ///
    /// Errors: `Busy` if another process has the store open (the message names the process).
    /// `Corruption`, with file and offset, if a file is damaged; `basalt check` lists all damage,
    /// and `basalt repair` salvages. `Unsupported` if a later version wrote the store.
    pub fn open(env: &Env, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        let context = |e: Error| e.context(format!("opening the store in {}", path.display()));
        if options.log.passive().is_some() {
            return Err(context(Error::invalid(
                "the options ask for a passive store, whose owner replays its log; use `Db::open_passive`",
            )));
        }
        let engine = open::open(env, path, options).map_err(context)?;
        engine.trim_leftover_logs();
        engine.background.schedule();
        Ok(Db(Arc::new(Handle(engine))))
    }

    /// Opens the store in directory `path` for reading. This call and the open store never write,
    /// so the store may be on a read-only medium or on a full device.
    ///
    /// Any number of readers may have a store open at the same time, but no writer may. The call
    /// reads the records of the logs into memory, at most as many bytes as the writer's memtables
    /// held. Each call that changes the store fails with `ReadOnly`; so do `flush` and `compact`.
    /// The options `create_if_missing` and `error_if_exists` have no effect.
    ///
    /// A passive store can be read if all its families are persisted up to the same transaction, as
    /// they are after a clean close.
    ///
    /// Errors: `NotFound` if there is no store, `Busy` if a writer has the store open, and the
    /// errors of [`Db::open`].
    pub fn open_read_only(env: &Env, path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        let engine = read_only::open(env, path, options)
            .map_err(|e| e.context(format!("opening the store in {}", path.display())))?;
        Ok(Db(Arc::new(Handle(engine))))
    }

    /// Returns the handle of an engine that was opened.
    pub(super) fn of(engine: Arc<Engine>) -> Db {
        Db(Arc::new(Handle(engine)))
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.0.0
    }

    /// Returns the environment of the store.
    pub fn env(&self) -> &Env {
        &self.engine().ctx.env
    }

    pub(super) fn handle(&self, f: &FamilyEntry) -> Family {
        Family::new(FamilyConfig {
            id: f.id,
            store: self.engine().ctx.jobs.number(),
            name: f.name.clone(),
            comparator: f.options.comparator.clone(),
            merge_operator: f.options.merge_operator.clone(),
            // The flush separates the values of a family in pages, whose log never stays as a blob
            // file, and those of a passive store, which has no log.
            min_blob_size: f
                .options
                .min_blob_size
                .filter(|_| f.options.pages.is_none() && self.engine().persistence.is_none()),
            blob_compression: f.options.blob_compression,
        })
    }

    /// Returns the handle of the family `default`, which every store has.
    pub fn default_family(&self) -> Family {
        self.family("default")
            .expect("every store has it, and it cannot be dropped")
    }

    /// Returns the handle of the family with this name. `None` if the store has no such family.
    pub fn family(&self, name: &str) -> Option<Family> {
        self.engine()
            .tree
            .view()
            .families
            .values()
            .find(|f| &*f.name == name)
            .map(|f| self.handle(f))
    }

    /// Returns the names of all families: `default` first, then the others in the order of their
    /// creation.
    pub fn families(&self) -> Vec<String> {
        self.engine()
            .tree
            .view()
            .families
            .values()
            .map(|f| f.name.to_string())
            .collect()
    }

    fn check_batch(&self, batch: &WriteBatch, options: &WriteOptions) -> Result<()> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        // A batch that only checks is no transaction.
        if engine.persistence.is_some() && (!batch.is_empty() || options.is_synced()) {
            return Err(needs_tsn());
        }
        self.check_families(batch)
    }

    /// Checks that the families of a batch are this store's and exist, and that the disk has room.
    pub(super) fn check_families(&self, batch: &WriteBatch) -> Result<()> {
        let engine = self.engine();
        if batch.is_empty() {
            return Ok(());
        }
        let view = engine.tree.view();
        for &(store, family) in batch.families() {
            if store != engine.ctx.jobs.number() {
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

    /// Queues a batch for the next commit group, and returns its ticket. Batches of one thread
    /// commit in the order of their submission. An empty batch writes nothing. With
    /// [`crate::Durability::Device`], an empty batch makes all batches submitted before it durable.
    ///
    /// The memory of queued batches is reserved in the environment's ledger. If 16 MiB of submitted
    /// batches are queued, or the memory budget is used up, this call waits until groups have
    /// committed, as [`Db::write`] would. If no other thread commits the groups, this call does.
    /// One batch may exceed the limit.
    ///
    /// This call never runs a callback. Inside a callback of [`Ticket::on_complete`] this call
    /// never waits; it then acts as [`Db::submit_nowait`]. Errors are reported by the ticket.
    pub fn submit(&self, batch: WriteBatch, options: &WriteOptions) -> Ticket {
        self.queue_batch(batch, &[], options, WaitMode::Wait)
    }

    /// Queues a batch as [`Db::submit`] does. It is written if all preconditions hold when its turn
    /// comes; else its ticket ends with `Conflict`, as [`Db::write_if`] says.
    pub fn submit_if(
        &self,
        batch: WriteBatch,
        preconditions: &[Precondition<'_>],
        options: &WriteOptions,
    ) -> Ticket {
        self.queue_batch(batch, preconditions, options, WaitMode::Wait)
    }

    /// Queues a batch as [`Db::submit`] does, but never waits, even if the queue is full. The
    /// memory is reserved in the ledger, beyond the budget if necessary. This call is for a thread
    /// that must not wait, such as an event loop, and that limits its own submissions.
    pub fn submit_nowait(&self, batch: WriteBatch, options: &WriteOptions) -> Ticket {
        self.queue_batch(batch, &[], options, WaitMode::Return)
    }

    fn queue_batch(
        &self,
        batch: WriteBatch,
        preconditions: &[Precondition<'_>],
        options: &WriteOptions,
        wait_mode: WaitMode,
    ) -> Ticket {
        let engine = self.engine();
        let checked = self.check_batch(&batch, options);
        let checks = checked.and_then(|()| engine.take_preconditions(preconditions));
        let state = match checks {
            Ok(checks) => engine.enqueue(batch, options.is_synced(), checks, wait_mode),
            Err(e) => Engine::failed_ticket(e),
        };
        engine.ensure_leader();
        Ticket {
            state,
            engine: engine.clone(),
        }
    }

    /// Commits a batch and waits until the batch is visible. Returns the last sequence number of
    /// the batch. When the call returns, the batch survives the failures that
    /// [`WriteOptions::durability`] says. Errors: those of [`Ticket::wait`], `InvalidArgument` if
    /// the batch names a family of another store, and `NotFound` if it names a dropped family.
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
    /// A key of a family in pages also counts as changed if four flushes or an ingestion came after
    /// the precondition's sequence number. A family keeps these changes from its first precondition
    /// on, at 16 bytes a key. So the first precondition on a family may also fail.
    ///
    /// Cost: the batch is a commit group of its own. It shares a device write with no other batch,
    /// and a sync with none. The commit leader looks the keys up while it holds the write path. It
    /// looks into memtables, and reads from tables only if one that may have the key was written
    /// since. With nothing but older tables it reads nothing.
    ///
    /// Errors: `Conflict` with the key and the newer sequence number; `NotFound` if a key's family
    /// was dropped; `InvalidArgument` for more than [`super::MAX_PRECONDITIONS`] preconditions, a
    /// key that is too long, a family of another store or a sequence number that the store has not
    /// reached; those of [`Ticket::wait`], and of a read. [`super::Stats::conflicts`] counts the
    /// batches that end with `Conflict`.
    pub fn write_if(
        &self,
        batch: WriteBatch,
        preconditions: &[Precondition<'_>],
        options: &WriteOptions,
    ) -> Result<SeqNo> {
        self.check_batch(&batch, options)?;
        let checks = self.engine().take_preconditions(preconditions)?;
        self.engine().write(batch, options.is_synced(), checks)
    }

    /// Sets one key to a value. Returns the sequence number of the write. Durability and errors are
    /// those of [`Db::write`].
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

    /// Deletes one key. Returns the sequence number of the write. Durability and errors are those
    /// of [`Db::write`].
    pub fn delete(&self, family: &Family, key: &[u8], options: &WriteOptions) -> Result<SeqNo> {
        let mut b = WriteBatch::new();
        b.delete(family, key)?;
        self.write(b, options)
    }

    /// Changes one key by an operand, see [`WriteBatch::merge`]. Returns the sequence number of the
    /// write. Durability and errors are those of [`Db::write`].
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

    /// Deletes all keys from `from` (inclusive) to `to` (exclusive), in the family's order. Returns
    /// the sequence number of the write. The call writes one small record, independent of the
    /// number of keys. Reads of other keys stay as fast as before, and compactions free the space.
    ///
    /// Durability and errors are those of [`Db::write`], and `InvalidArgument` if `to` lies before
    /// `from`.
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

    /// Returns the value of a key, or `None` if the key does not exist. A long value is pinned, not
    /// copied. Errors: `Closed`, `NotFound` for a dropped family, and the errors of a read, such as
    /// `Corruption` and `Io`.
    pub fn get(&self, family: &Family, key: &[u8], options: &ReadOptions) -> Result<Option<Bytes>> {
        Ok(self.engine().get(family, key, options)?.map(|v| v.value))
    }

    /// Returns the value of a key and its expiry, or `None` if the key does not exist. The errors
    /// are those of [`Db::get`].
    pub fn get_with_expiry(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueWithExpiry>> {
        self.engine().get(family, key, options)
    }

    /// Returns the same as [`Db::get_with_expiry`] if the value is not separated, or has at most
    /// `budget_bytes` bytes. Returns `None` if a separated value is longer. Such a value was not
    /// read, or was read and not decompressed. Blocks of the tree do not count.
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
    /// A family in pages knows the number only of changes that are in memtables, or that the last
    /// four flushes kept for preconditions. For older entries the call returns the highest number
    /// that the entry may have.
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

    /// Returns whether a key exists, and its expiry. A separated value is not read, so the answer
    /// does not prove that the value is intact. If the key has merge operands, the call merges them
    /// and reads all values that the merge needs.
    pub fn get_meta(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueMeta>> {
        let meta = self.engine().get_meta(family, key, options, None)?;
        Ok(meta.expect("nothing is put off that is not read"))
    }

    /// Returns the same as [`Db::get_meta`], with the length of the value.
    ///
    /// If a separated value is not in the cache, the call reads the header and the key of its
    /// record, which have their own checksum. A compressed value is read as stored, because only
    /// its checksum proves the length, and is not decompressed. Returns `None` if a compressed
    /// value takes more than `budget_bytes` in its file; the value was then not read.
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

    /// Returns the values of many keys as of one sequence number, in the order of `keys`. The
    /// blocks that the keys need from the device are read in batches of up to 64, across all tables
    /// and levels. Each key has its own result; an error concerns that key only.
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

    /// Returns the same as [`Db::multi_get`], with bounded memory. Blocks read from the device and
    /// values found in memory count against `budget_bytes`. A key beyond the budget has the answer
    /// `None`, and the caller may ask for it in another call.
    ///
    /// A call answers at least one key, even if the budget is 0. So it brings at most the budget
    /// and one block into memory. Without a snapshot in `options`, each call reads as of its own
    /// sequence number.
    pub fn multi_get_within(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        self.engine()
            .multi_get(keys, options, &mut ReadBudget::bytes(budget_bytes), true)
    }

    /// Returns the same as [`Db::multi_get_within`], but applies the budget to the first key, too.
    /// So the call may return no answer at all.
    pub fn multi_get_up_to(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        self.engine()
            .multi_get(keys, options, &mut ReadBudget::bytes(budget_bytes), false)
    }

    /// Returns a cursor over a family. The cursor is not positioned yet. Errors: `Closed`,
    /// `NotFound` for a dropped family, and `InvalidArgument` for options that exclude each other.
    pub fn iter(&self, family: &Family, options: &ReadOptions) -> Result<Iter> {
        Iter::new(self.engine(), family, options)
    }

    /// Returns the blob files of the store, in the order of their numbers, with the live records of
    /// each family. The call reads no file.
    pub fn blob_files(&self) -> Vec<BlobFileStats> {
        self.engine().blob_files()
    }

    /// Returns a snapshot of the newest visible sequence number. The snapshot pins the versions
    /// that are visible at that number until it is dropped.
    pub fn snapshot(&self) -> Snapshot {
        self.engine().snapshot()
    }

    /// Returns the newest visible sequence number. Reads without a snapshot see all entries up to
    /// it, and perhaps newer ones. Costs one load from memory.
    pub fn visible_seq(&self) -> SeqNo {
        self.engine().tree.visible()
    }

    /// Makes all writes that were acknowledged before the call survive a power cut. Costs at most
    /// one commit group with a sync of the log. Errors: those of [`Db::write`].
    pub fn sync(&self) -> Result<()> {
        self.write(WriteBatch::new(), &WriteOptions::SYNC)
            .map(|_| ())
    }

    /// Seals all memtables, writes them to tables, and waits until the tables are part of the tree.
    /// Errors: `ReadOnly`, `Closed`, `Poisoned`, and the errors of the writes, such as `NoSpace`
    /// and `Io`.
    pub fn flush(&self) -> Result<()> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        engine.seal_and_flush()
    }

    /// Compacts a family's keys from `from` (inclusive) to `to` (exclusive) down to the lowest
    /// level that holds any, and waits. `None` means unbounded. Errors: those of [`Db::compact`].
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

    /// Flushes the memtables, then compacts a range of a family's keys down to the lowest level
    /// that holds any, on the calling thread. Keys written during the call need not be part of it.
    /// Each step is durable when it ends. So a compaction that fails or is cancelled leaves a sound
    /// tree, the same answers, and no extra file.
    ///
    /// Errors: `Cancelled`, `Closed`, `NotFound` for a dropped family, and the errors of
    /// [`Db::flush`] and of compactions.
    pub fn compact(&self, family: &Family, options: &CompactOptions) -> Result<()> {
        self.flush()?;
        self.engine().compact(family, options)
    }

    /// Waits until no flush, compaction or garbage collection is due. Errors: `Closed`, and the
    /// error of a background job that failed.
    pub fn wait_idle(&self) -> Result<()> {
        self.engine().wait_idle()
    }

    /// Returns about how many bytes the keys of each range take, without reading the keys.
    ///
    /// - A table inside a range counts with all its bytes.
    /// - A table that an end of the range cuts is counted by its index. Each cut is wrong by less
    ///   than one data block. The table's index and filter (a few percent of the table) count with
    ///   its last key.
    /// - Memtables are walked. Their figures are exact, and cost time for each entry in the range.
    ///
    /// So the error is at most one block for each cut, and one index and filter for each table that
    /// is cut off. The sizes of adjoining ranges add up exactly. Overwritten and deleted entries
    /// count while they are stored. The call reads index partitions of the cut tables, at most two
    /// for each table.
    ///
    /// Errors: `NotFound` for a dropped family, and the errors of reading an index.
    pub fn approximate_sizes(
        &self,
        family: &Family,
        ranges: &[UserRange<'_>],
    ) -> Result<Vec<RangeSize>> {
        self.engine().approximate_sizes(family, ranges)
    }

    /// Waits until the store's listeners have received all events so far. A listener must not call
    /// this, because the call would wait for itself.
    pub fn wait_for_listeners(&self) {
        let engine = self.engine();
        engine.ctx.events.wait();
    }

    /// Returns the shape of the tree and the counters of the store.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Makes a copy of the store in `target`, which must not exist, while reads and writes go on.
    /// The copy can be opened. The copy holds all writes acknowledged before the call, and those
    /// after it up to one moment before the return. The copy is durable when the call returns.
    ///
    /// Tables are linked, not copied, so they take no space until the store replaces them. Logs are
    /// copied. The copy is built beside `target` under the name `TARGET.checkpoint-unfinished`, and
    /// is renamed when it is complete. So after a crash `target` is complete or absent. A crash may
    /// leave the unfinished directory behind. The next checkpoint to `target` removes that
    /// directory; it may also be removed by hand. The copy has the same store id but is an
    /// independent store: neither store touches files of the other.
    ///
    /// If the store is closed during the call, closing waits for the end of the checkpoint, which
    /// soon fails with `Closed`.
    ///
    /// Errors:
    ///
    /// - `AlreadyExists` if `target` exists.
    /// - `NotFound` if the parent directory of `target` does not exist.
    /// - `Busy` while another checkpoint to `target` runs.
    /// - `Unsupported` if tables cannot be linked there and copying is not allowed, or if the store
    ///   has other engines beside its tables.
    /// - `Closed`, `NoSpace`, `Io`.
    ///
    /// After an error no file is left, except in one case. If only the name of the directory could
    /// not be made durable, the error says so and the checkpoint exists.
    pub fn checkpoint(
        &self,
        target: impl AsRef<Path>,
        options: &CheckpointOptions,
    ) -> Result<CheckpointReport> {
        self.checkpoint_with(target, options, &mut [])
    }

    /// Makes a checkpoint of the tables and of all other engines of the store, as of one moment:
    /// the copy has each write that was acknowledged before another write in it, in whichever
    /// engine the two were. `parts` are all engines of [`Db::engines`].
    ///
    /// Errors: those of [`Db::checkpoint`], and of the parts.
    pub fn checkpoint_with(
        &self,
        target: impl AsRef<Path>,
        options: &CheckpointOptions,
        parts: &mut [&mut dyn CheckpointPart],
    ) -> Result<CheckpointReport> {
        let target = target.as_ref();
        self.engine()
            .checkpoint(target, options, parts)
            .map_err(|e| e.context(format!("making a checkpoint in {}", target.display())))
    }

    /// Returns the pages of a family as they are now, for tools. They stay while the result lives.
    ///
    /// Errors: `InvalidArgument` if the family is kept in levels of tables, `NotFound` if it was
    /// dropped, `Closed`.
    pub fn inspect_pages(&self, family: &Family) -> Result<PageInspector> {
        self.engine().inspect_pages(family)
    }

    /// Explains a read of a key as of now: what it visits, in which order, and why. Reads all pages
    /// or tables that may have the key, also those that a read would leave out, and fills no cache.
    /// Damage of pages and tables is a part of the explanation.
    ///
    /// Errors: `NotFound` if the family was dropped, `Closed`; `Corruption` for an entry in memory
    /// that does not decode.
    pub fn explain(&self, family: &Family, key: &[u8]) -> Result<ReadExplanation> {
        self.engine().explain(family, key)
    }

    /// Reads and verifies the pages of all families of a closed store that are kept in pages: that
    /// the page mapping table, the usage of extents and the streams agree, and that all pages have
    /// their checksums and their order of keys. With `family`, only those of that family. Returns
    /// the name of each family and the findings. Nothing is changed. [`Db::verify_store`] does this
    /// and checks all other files, too.
    ///
    /// Errors: `NotFound` if there is no store, `Busy` if a process has it open to change it,
    /// `Corruption` if the manifest is damaged, `Io`.
    pub fn check_pages(
        env: &Env,
        path: impl AsRef<Path>,
        options: &Options,
        family: Option<&str>,
    ) -> Result<Vec<(String, TreeCheck)>> {
        page_inspector::check_pages(env, path.as_ref(), options, family)
    }

    /// Returns the engines that the store has beside its tables. This store does not open them.
    pub fn engines(&self) -> Vec<EngineKind> {
        let state = self.engine().tree.lock();
        state.catalog().engines.iter().copied().collect()
    }

    /// Returns the engines that a closed store has beside its tables. Reads only the manifest. The
    /// caller holds the store's lock, or knows that no process changes the store.
    ///
    /// Errors: `NotFound` if there is no store, `Corruption` if the manifest is damaged, `Io`.
    pub fn engines_of_closed(env: &Env, path: impl AsRef<Path>) -> Result<Vec<EngineKind>> {
        let catalog = open::catalog_of(env, path.as_ref())?;
        Ok(catalog.engines.into_iter().collect())
    }

    /// Returns the names of the families of a closed store. The value is `true` if the family is
    /// kept in pages, so that it is opened without `min_blob_size`. Reads only the manifest. The
    /// caller holds the store's lock, or knows that no process changes the store.
    ///
    /// Errors: `NotFound` if there is no store, `Corruption` if the manifest is damaged, `Io`.
    pub fn families_of_closed(env: &Env, path: impl AsRef<Path>) -> Result<BTreeMap<String, bool>> {
        let catalog = open::catalog_of(env, path.as_ref())?;
        let families = catalog.families.into_values();
        Ok(families.map(|f| (f.name, f.pages.is_some())).collect())
    }

    /// Returns true if the closed store in directory `path` is passive. Reads only the manifest.
    ///
    /// Errors: `NotFound` if there is no store, `Corruption` if the manifest is damaged, `Io`.
    pub fn is_passive(env: &Env, path: impl AsRef<Path>) -> Result<bool> {
        Ok(open::catalog_of(env, path.as_ref())?.passive)
    }

    /// Records, durably, that the store has another engine, whose directory holds all its files.
    /// From then on versions that do not know the engine refuse the store.
    pub fn add_engine(&self, kind: EngineKind) -> Result<()> {
        self.engine().add_engine(kind)
    }

    /// Starts to write tables of a family that [`Db::ingest`] will add to the store. This is for
    /// loads of much data in the family's order. Such data is written once, without log and
    /// memtables.
    ///
    /// Values of the family's `min_blob_size` or more go to blob files, as always. Any number of
    /// writers may write at the same time, and all other calls go on. No reader sees the data
    /// before it is added.
    ///
    /// The call waits for the commit in progress. The writer takes a few megabytes of memory until
    /// it ends.
    pub fn prepare(&self, family: &Family) -> Result<TableWriter> {
        self.engine().prepare(family)
    }

    /// Adds prepared tables, of any number of families, to the store. After success all are added;
    /// after an error, none. Returns the sequence number that all their entries have. The tables,
    /// and all writes made before the call (synced or not), are durable when the call returns.
    ///
    /// The entries are newer than all writes before the call, and older than all writes after it. A
    /// snapshot taken before the call does not see them.
    ///
    /// Each table goes to the deepest level where no newer data would be covered. So data that
    /// overlaps nothing is never rewritten. Other tables go to level 0, where they are merged as
    /// flushed tables are. Overlap with a level-0 table is judged by the table's first and last
    /// key. A flushed table whose keys lie far apart thus brings all tables between them to level
    /// 0, and writers are held back until those are merged. So a large load into a store with
    /// writers is best done after a compaction of its range.
    ///
    /// Writers wait during the call, usually for two syncs. If memtables have keys between those of
    /// the added tables, writers also wait for the flush of these memtables.
    ///
    /// Errors: `InvalidArgument` if two tables of a family overlap, or if a set belongs to another
    /// store or was added before. `NotFound` if a family was dropped. After these errors, `NoSpace`
    /// and `Busy`, the same sets may be added again. If the manifest cannot be written, only the
    /// next opening of the store shows whether the tables were added; these sets cannot be added
    /// again.
    pub fn ingest(&self, prepared: &[Prepared]) -> Result<SeqNo> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        if engine.persistence.is_some() {
            return Err(needs_tsn());
        }
        engine.ingest(prepared, None)
    }

    /// Flushes the memtables, waits for background work, records a clean end and closes the store.
    /// Later calls on clones fail with `Closed`. Manual compactions and checkpoints of other
    /// threads are cancelled, and the call waits for their end.
    pub fn close(self) -> Result<()> {
        self.engine().close()
    }

    /// Stops the store at once, as the death of the process would: the call flushes nothing and
    /// records nothing. For tests of recovery.
    pub fn abandon(self) {
        self.engine().abandon();
    }

    /// Reads and verifies every byte of a closed store. Damage is listed in the report. The call
    /// fails only if the store cannot be read at all. `progress(done, total)` is called, with
    /// bytes, as the files are read.
    pub fn verify_store(
        env: &Env,
        path: impl AsRef<Path>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport> {
        check::verify_store(env, path.as_ref(), options, progress)
    }

    /// Salvages from a damaged, closed store all data that verifies, and reports exactly the loss.
    /// Damaged files are moved to the store's directory `lost`, never deleted.
    pub fn repair(
        env: &Env,
        path: impl AsRef<Path>,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RepairReport> {
        repair::repair(env, path.as_ref(), options, progress)
    }
}
