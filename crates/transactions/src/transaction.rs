//! [`Transaction`]: reads and writes that take effect together, or not at all.

use crate::context::TransactionContext;
use crate::iter::TransactionIter;
use crate::lock_table::{LockCall, LockMode};
use crate::options::{Concurrency, KeyCheck, MAX_TRANSACTION_KEYS, TransactionOptions};
use crate::own_writes::{Base, OwnWrites};
use crate::wait_graph::TransactionId;
use basalt_env::{MemoryKind, Reservation};
use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::WriteBatch;
use basalt_kv::batch::check_lens;
use basalt_kv::family::Family;
use basalt_kv::key::{MAX_SEQ, SeqNo, readable_key};
use basalt_kv::snapshot::Snapshot;
use basalt_lsm::db::{MAX_PRECONDITIONS, Precondition, ValueWithExpiry};
use basalt_lsm::{Db, ReadOptions, WriteOptions};
use std::sync::Arc;
use std::time::Duration;

/// A transaction: its reads see its own writes, and other readers see them after the commit, all at
/// once. A transaction may write families in levels and families in pages together.
///
/// An optimistic transaction reads as of its snapshot, which [`crate::TransactionDb::begin`] takes.
/// A key that is read by [`Transaction::get_for_update`], or written, must be unchanged at the
/// commit. A pessimistic transaction locks such a key instead, and waits for transactions that have
/// it locked. The drop of a transaction rolls it back.
///
/// Two transactions of one thread that lock the same key wait for each other until the time of the
/// wait is over: no graph of waits shows that one thread has both.
pub struct Transaction {
    context: Arc<TransactionContext>,
    id: TransactionId,
    concurrency: Concurrency,
    lock_timeout: Duration,
    max_write_bytes: u64,
    snapshot: Option<Snapshot>,
    /// How the store is read: the snapshot, and defaults.
    read: ReadOptions,
    own: OwnWrites,
    /// Number of keys, in their order, that the commit of an optimistic transaction has locked.
    commit_locks: usize,
    memory: Reservation,
    is_over: bool,
}

impl Transaction {
    pub(crate) fn new(
        context: Arc<TransactionContext>,
        id: TransactionId,
        options: &TransactionOptions,
    ) -> Transaction {
        let is_optimistic = options.concurrency == Concurrency::Optimistic;
        let snapshot = (is_optimistic || options.snapshot).then(|| context.db.snapshot());
        let ledger = context.db.env().ledger();
        Transaction {
            memory: ledger.reserve(MemoryKind::Buffer, 0),
            id,
            concurrency: options.concurrency,
            lock_timeout: options.lock_timeout.unwrap_or(context.options.lock_timeout),
            max_write_bytes: options.max_write_bytes,
            read: ReadOptions::default().snapshot(snapshot.clone()),
            snapshot,
            own: OwnWrites::default(),
            commit_locks: 0,
            is_over: false,
            context,
        }
    }

    /// Returns the snapshot as of which the transaction reads, if it has one.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// Lets a pessimistic transaction read as of now from here on. Keys that it locked before were
    /// not changed since. Keys that it locks later must not have been changed since the snapshot.
    ///
    /// Errors: `InvalidArgument` for an optimistic transaction. Its snapshot is that of its begin:
    /// what it has read already would not be checked as of a later one.
    pub fn set_snapshot(&mut self) -> Result<()> {
        if self.concurrency == Concurrency::Optimistic {
            return Err(Error::invalid(
                "an optimistic transaction keeps the snapshot of its begin: begin a new transaction",
            ));
        }
        let snapshot = self.context.db.snapshot();
        self.read.snapshot = Some(snapshot.clone());
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Returns the number of keys that the transaction has written, read for update or locked.
    pub fn key_count(&self) -> usize {
        self.own.len()
    }

    /// Returns the bytes of the transaction's keys and writes, as
    /// [`TransactionOptions::max_write_bytes`] counts them.
    pub fn write_bytes(&self) -> u64 {
        self.own.bytes()
    }

    /// Returns the options to read the store with.
    ///
    /// Errors: `InvalidArgument` for options that a transaction sets itself.
    fn read_options(&self, options: &ReadOptions) -> Result<ReadOptions> {
        if options.snapshot.is_some() {
            return Err(Error::invalid(
                "a transaction reads as of its own snapshot: leave ReadOptions::snapshot unset",
            ));
        }
        let snapshot = self.snapshot.clone();
        Ok(options.clone().snapshot(snapshot))
    }

    fn check_family(&self, family: &Family) -> Result<()> {
        match family.store() == self.context.store {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "family {:?} belongs to another store than the transaction",
                family.name()
            ))),
        }
    }

    /// Returns the value of a key, with the transaction's own writes, or `None` if the key does not
    /// exist. The commit does not check keys that are read by this call; see
    /// [`Transaction::get_for_update`].
    ///
    /// Errors: those of [`basalt_lsm::Db::get`]; `InvalidArgument` for options with a snapshot.
    pub fn get(&self, family: &Family, key: &[u8], options: &ReadOptions) -> Result<Option<Bytes>> {
        let found = self.get_with_expiry(family, key, options)?;
        Ok(found.map(|found| found.value))
    }

    /// Returns the value of a key and its expiry, with the transaction's own writes, or `None` if
    /// the key does not exist. The errors are those of [`Transaction::get`].
    pub fn get_with_expiry(
        &self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<ValueWithExpiry>> {
        self.check_family(family)?;
        let db = &self.context.db;
        // The options are copied only if they differ from those that the transaction keeps.
        let own_options = match options.snapshot.is_none() && options.fill_cache {
            true => None,
            false => Some(self.read_options(options)?),
        };
        let read = own_options.as_ref().unwrap_or(&self.read);
        let stored = || db.get_with_expiry(family, key, read);
        let Some(write) = self.own.write_of(family, key) else {
            return stored();
        };
        let now_ms = db.env().clock().wall_ms();
        let existing = || stored().map(|found| found.map(|v| (v.value, v.expire_at_ms)));
        let value = write.value(family, key, now_ms, existing)?;
        Ok(value.map(|(value, expire_at_ms)| ValueWithExpiry::new(value, expire_at_ms)))
    }

    /// Returns the values of many keys, in the order of `keys`, with the transaction's own writes.
    /// The keys that the transaction has not written are read from the store in batches. Without a
    /// snapshot, they are read as of one sequence number. Each key has its own result.
    pub fn multi_get(
        &self,
        keys: &[(&Family, &[u8])],
        options: &ReadOptions,
    ) -> Vec<Result<Option<Bytes>>> {
        let options = match self.read_options(options) {
            Ok(options) => options,
            Err(e) => return keys.iter().map(|_| Err(e.clone())).collect(),
        };
        let db = &self.context.db;
        let mut out: Vec<Result<Option<Bytes>>> = Vec::with_capacity(keys.len());
        let (mut asked, mut places) = (Vec::new(), Vec::new());
        let now_ms = db.env().clock().wall_ms();
        for (place, (family, key)) in keys.iter().enumerate() {
            let own = match self.check_family(family) {
                Ok(()) => self.own.write_of(family, key),
                Err(e) => {
                    out.push(Err(e));
                    continue;
                }
            };
            match own {
                Some(write) if write.base != Base::Store => {
                    let value = write.value(family, key, now_ms, || Ok(None));
                    out.push(value.map(|v| v.map(|(value, _)| value)));
                }
                _ => {
                    asked.push((*family, *key));
                    places.push(place);
                    out.push(Ok(None));
                }
            }
        }
        for (place, stored) in places.into_iter().zip(db.multi_get(&asked, &options)) {
            let (family, key) = keys[place];
            out[place] = match self.own.write_of(family, key) {
                None => stored,
                Some(write) => {
                    let existing = || stored.map(|found| found.map(|value| (value, None)));
                    let value = write.value(family, key, now_ms, existing);
                    value.map(|v| v.map(|(value, _)| value))
                }
            };
        }
        out
    }

    /// Returns the value of a key, as [`Transaction::get`] does, for a transaction whose writes
    /// depend on it. The key may be absent.
    ///
    /// An optimistic transaction commits only if the key is unchanged since its snapshot. A
    /// pessimistic one first locks the key, so that no other transaction changes the key before the
    /// end of this one. A transaction that reads all keys so is serialisable: its effect is as if
    /// it had run alone, at the moment of its commit. Keys that appear in a range are not seen: the
    /// transaction must read a key that stands for the range.
    ///
    /// Errors: those of [`Transaction::get`] and of [`Transaction::put`].
    pub fn get_for_update(
        &mut self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Bytes>> {
        self.get_locked(family, key, options, LockMode::Exclusive)
    }

    /// Returns the same as [`Transaction::get_for_update`], with a shared lock: other pessimistic
    /// transactions may read the key by this call at the same time, and none may write it. In an
    /// optimistic transaction the calls are the same.
    pub fn get_for_share(
        &mut self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Bytes>> {
        self.get_locked(family, key, options, LockMode::Shared)
    }

    fn get_locked(
        &mut self,
        family: &Family,
        key: &[u8],
        options: &ReadOptions,
        mode: LockMode,
    ) -> Result<Option<Bytes>> {
        check_lens(key.len(), 0)?;
        self.add_key(family, key, mode, 0)?;
        self.own.mark_read(family, key);
        self.get(family, key, options)
    }

    /// Returns a cursor over the keys of a family, with the transaction's own writes. The commit
    /// does not check the keys that the cursor shows. The cursor borrows the transaction. To write
    /// what it shows, collect the keys, or read each key again for update.
    ///
    /// Errors: those of [`basalt_lsm::Db::iter`]. `Unsupported` for options that an iterator of a
    /// transaction does not have: `tailing`, `prefix_same_as_start` and `max_skippable_entries`.
    pub fn iter(&self, family: &Family, options: &ReadOptions) -> Result<TransactionIter<'_>> {
        self.check_family(family)?;
        let options = self.read_options(options)?;
        let now_ms = self.context.db.env().clock().wall_ms();
        let db = &self.context.db;
        TransactionIter::new(db, family, options, self.own.keys(family), now_ms)
    }

    /// Locks a key, or notes that it must be unchanged at the commit. `value_len` is the length of
    /// the value that is to be written.
    fn add_key(
        &mut self,
        family: &Family,
        key: &[u8],
        mode: LockMode,
        value_len: usize,
    ) -> Result<()> {
        self.check_family(family)?;
        let bytes = self.own.bytes() + self.own.added_bytes(key, value_len);
        if bytes > self.max_write_bytes {
            return Err(Error::invalid(format!(
                "the transaction has {} bytes of keys and writes, and {} more exceed max_write_bytes ({}): commit, or raise the limit",
                self.own.bytes(),
                bytes - self.own.bytes(),
                self.max_write_bytes
            )));
        }
        let is_new = self.own.get(family, key).is_none();
        if is_new && self.own.len() >= MAX_TRANSACTION_KEYS {
            return Err(Error::invalid(format!(
                "the transaction has {MAX_TRANSACTION_KEYS} keys, which is the limit: divide the work into several transactions"
            )));
        }
        match self.concurrency {
            Concurrency::Optimistic => {
                let snapshot = self.snapshot.as_ref();
                let since = snapshot.expect("an optimistic one has a snapshot").seq();
                if is_new {
                    self.own.add(family, key, since);
                }
            }
            Concurrency::Pessimistic => self.lock_key(family, key, mode)?,
        }
        self.memory.resize(self.own.bytes());
        Ok(())
    }

    /// Locks a key of a pessimistic transaction. If the transaction has a snapshot, the key must be
    /// unchanged since.
    fn lock_key(&mut self, family: &Family, key: &[u8], mode: LockMode) -> Result<()> {
        let (locks, counters) = (&self.context.locks, &self.context.counters);
        let call = LockCall {
            id: self.id,
            family,
            key,
            mode,
            timeout: self.lock_timeout,
        };
        if !locks.lock(&call, counters)? {
            return Ok(());
        }
        let db = &self.context.db;
        let since = match &self.snapshot {
            // All transactions that had the lock before are visible up to here.
            None => db.visible_seq(),
            Some(snapshot) => {
                let since = snapshot.seq();
                let unchanged = Precondition::unchanged(family, key, since);
                let options = WriteOptions::UNSYNCED;
                if let Err(e) = db.write_if(WriteBatch::new(), &[unchanged], &options) {
                    locks.release(self.id, family, key);
                    if e.kind() == ErrorKind::Conflict {
                        counters.conflicts.add(1);
                    }
                    return Err(e.context(format!(
                        "locking key {} as of the transaction's snapshot",
                        readable_key(key)
                    )));
                }
                since
            }
        };
        self.own.add(family, key, since);
        Ok(())
    }

    /// Sets a key to a value at the commit.
    ///
    /// Errors: `InvalidArgument` for a family of another store, a key or a value that is too long,
    /// more than [`MAX_TRANSACTION_KEYS`] keys, or more bytes than
    /// [`TransactionOptions::max_write_bytes`]. In a pessimistic transaction also `Busy` if the
    /// wait for the lock took too long or if there are too many locks, `Deadlock` if it would never
    /// end, and `Conflict` if the key was changed since the transaction's snapshot. After an error
    /// the transaction is as it was. After `Deadlock` and `Conflict` only a rollback helps.
    pub fn put(&mut self, family: &Family, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(family, key, value, |value| Base::Put(value, None))
    }

    /// Sets a key to a value until the wall time `expire_at_ms` (ms since 1970). The errors are
    /// those of [`Transaction::put`].
    pub fn put_ttl(
        &mut self,
        family: &Family,
        key: &[u8],
        value: &[u8],
        expire_at_ms: u64,
    ) -> Result<()> {
        let base = |value| Base::Put(value, Some(expire_at_ms));
        self.write(family, key, value, base)
    }

    /// Deletes a key at the commit. A missing key is no error. The errors are those of
    /// [`Transaction::put`].
    pub fn delete(&mut self, family: &Family, key: &[u8]) -> Result<()> {
        self.write(family, key, &[], |_| Base::Delete)
    }

    fn write(
        &mut self,
        family: &Family,
        key: &[u8],
        value: &[u8],
        base: impl FnOnce(Bytes) -> Base,
    ) -> Result<()> {
        check_lens(key.len(), value.len())?;
        self.add_key(family, key, LockMode::Exclusive, value.len())?;
        let base = base(Bytes::copy_from_slice(value));
        self.own.set(family, key, base);
        self.memory.resize(self.own.bytes());
        Ok(())
    }

    /// Changes a key by an operand at the commit. Reads of the transaction see the merged value.
    ///
    /// Errors: those of [`Transaction::put`]; `InvalidArgument` if the family has no merge
    /// operator, or if its operator refuses the operand.
    pub fn merge(&mut self, family: &Family, key: &[u8], operand: &[u8]) -> Result<()> {
        check_lens(key.len(), operand.len())?;
        family.check_operand(operand)?;
        self.add_key(family, key, LockMode::Exclusive, operand.len())?;
        let operand = Bytes::copy_from_slice(operand);
        self.own.merge(family, key, operand);
        self.memory.resize(self.own.bytes());
        Ok(())
    }

    /// Deletes the keys from `from` (inclusive) to `to` (exclusive) that the transaction sees, each
    /// as [`Transaction::delete`] does. A key that another transaction adds to the range meanwhile
    /// stays. Returns the number of deleted keys.
    ///
    /// Cost: a scan of the range, and a write for each key. A long range that no transaction must
    /// see is deleted at the cost of one record by [`basalt_lsm::Db::delete_range`].
    ///
    /// Errors: those of [`Transaction::iter`] and [`Transaction::put`], and `InvalidArgument` if
    /// `to` lies before `from`. After an error no key is deleted, but some may be locked.
    pub fn delete_range(&mut self, family: &Family, from: &[u8], to: &[u8]) -> Result<u64> {
        if family.cmp().user(from, to).is_gt() {
            return Err(Error::invalid(format!(
                "a range to delete in family {:?} ends before it begins: exchange the two",
                family.name()
            )));
        }
        let range = ReadOptions::default()
            .lower_bound(Some(from.to_vec()))
            .upper_bound(Some(to.to_vec()))
            .keys_only(true);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut iter = self.iter(family, &range)?;
        iter.seek_to_first()?;
        while iter.valid() {
            if keys.len() >= MAX_TRANSACTION_KEYS {
                return Err(Error::invalid(format!(
                    "the range has more than {MAX_TRANSACTION_KEYS} keys, which is the limit of a transaction: use Db::delete_range"
                )));
            }
            keys.push(iter.key().to_vec());
            iter.next()?;
        }
        drop(iter);
        self.set_savepoint();
        for key in &keys {
            if let Err(e) = self.delete(family, key) {
                self.rollback_to_savepoint()?;
                return Err(e);
            }
        }
        self.pop_savepoint()?;
        Ok(keys.len() as u64)
    }

    /// Sets a savepoint, to which [`Transaction::rollback_to_savepoint`] returns. Savepoints may be
    /// nested.
    pub fn set_savepoint(&mut self) {
        self.own.set_savepoint();
    }

    /// Undoes all writes since the newest savepoint, and removes that savepoint. Keys that were
    /// read for update stay so. A pessimistic transaction keeps all its locks to its end.
    ///
    /// Errors: `InvalidArgument` without a savepoint.
    pub fn rollback_to_savepoint(&mut self) -> Result<()> {
        let keep_keys = self.concurrency == Concurrency::Pessimistic;
        self.own.rollback_to_savepoint(keep_keys)?;
        self.memory.resize(self.own.bytes());
        Ok(())
    }

    /// Removes the newest savepoint and keeps all writes.
    ///
    /// Errors: `InvalidArgument` without a savepoint.
    pub fn pop_savepoint(&mut self) -> Result<()> {
        self.own.pop_savepoint()?;
        self.memory.resize(self.own.bytes());
        Ok(())
    }

    /// Undoes all writes, releases all locks and ends the transaction.
    pub fn rollback(self) {
        // The drop does it.
    }

    /// Commits the transaction: all its writes are visible when the call returns, and survive the
    /// failures that [`WriteOptions::durability`] says. After a power cut the store has all of them
    /// or none. Returns the sequence number of the last write, or the newest one if there is none.
    ///
    /// With [`crate::TransactionDbOptions::check_unlocked_writes`], the commit checks its keys and
    /// writes in one step, as [`basalt_lsm::Db::write_if`] does; cost and limits are those of that
    /// call. Without, a pessimistic transaction only writes. An optimistic one locks its keys,
    /// checks them and writes, and may wait for pessimistic transactions that hold a lock.
    ///
    /// Errors: `Conflict` if a key was changed, with the key: nothing was written, and the caller
    /// begins a new transaction, as [`crate::TransactionDb::with_retry`] does. A key may also count
    /// as changed that was not: an absent key after a compaction that has dropped tombstones since,
    /// and a key of a family in pages after four flushes. `Busy` and `Deadlock` if an optimistic
    /// transaction does not get its locks; nothing was written. Else the errors of
    /// [`basalt_lsm::Db::write`]; whether the writes are in the store is then as that call says.
    /// The transaction is over in any case.
    pub fn commit(mut self, options: &WriteOptions) -> Result<SeqNo> {
        let context = self.context.clone();
        if self.own.len() == 0 {
            self.end();
            context.counters.commits.add(1);
            return Ok(context.db.visible_seq());
        }
        let committed = self.write_all(options);
        match &committed {
            Ok(_) => context.counters.commits.add(1),
            Err(e) => {
                context.counters.rollbacks.add(1);
                if e.kind() == ErrorKind::Conflict {
                    context.counters.conflicts.add(1);
                }
            }
        }
        // The locks end here also if the outcome of the write is not known: no later call can tell
        // it.
        self.end();
        committed.map_err(|e| match e.kind() {
            ErrorKind::Conflict => e.context("the transaction is rolled back, begin a new one"),
            _ => e,
        })
    }

    /// Returns all writes of the transaction, after a check of its keys as at a commit. The
    /// transaction keeps the locks of its keys.
    pub(crate) fn checked_batch(&mut self) -> Result<WriteBatch> {
        let batch = self.own.batch()?;
        if self.own.len() == 0 {
            return Ok(batch);
        }
        self.check_locked().inspect_err(|e| {
            if e.kind() == ErrorKind::Conflict {
                self.context.counters.conflicts.add(1);
            }
        })?;
        Ok(batch)
    }

    /// Locks all keys that are not locked, and checks them.
    fn check_locked(&mut self) -> Result<()> {
        if self.concurrency == Concurrency::Optimistic {
            self.lock_all()?;
        } else if !self.context.options.check_unlocked_writes {
            return Ok(());
        }
        // The locks are held, so the keys may be checked in several steps.
        for keys in self.unchanged().chunks(MAX_PRECONDITIONS) {
            let nothing = WriteBatch::new();
            let db = &self.context.db;
            db.write_if(nothing, keys, &WriteOptions::UNSYNCED)?;
        }
        Ok(())
    }

    /// Adds a key that the commit locks and checks, although the transaction has no write to it.
    /// This is for layers above that make the batch of a [`crate::PreparedTransaction`] themselves,
    /// from the same keys. The number of such keys is bounded by
    /// [`crate::TransactionDbOptions::max_locks`] alone.
    ///
    /// Errors: `InvalidArgument` for a pessimistic transaction, a family of another store, or a key
    /// that is too long.
    pub fn check_key(&mut self, family: &Family, key: &[u8], check: KeyCheck) -> Result<()> {
        check_lens(key.len(), 0)?;
        self.check_family(family)?;
        let snapshot = match (self.concurrency, &self.snapshot) {
            (Concurrency::Optimistic, Some(snapshot)) => snapshot.seq(),
            _ => {
                return Err(Error::invalid(
                    "a pessimistic transaction locks its keys when it reads or writes them: call get_for_update",
                ));
            }
        };
        let (since, is_exclusive) = match check {
            KeyCheck::Write => (snapshot, true),
            KeyCheck::Read => (snapshot, false),
            KeyCheck::Lock => (MAX_SEQ, false),
        };
        self.own.mark_checked(family, key, since, is_exclusive);
        self.memory.resize(self.own.bytes());
        Ok(())
    }

    /// Returns the store.
    pub(crate) fn db(&self) -> &Db {
        &self.context.db
    }

    /// Ends a prepared transaction, which was applied.
    pub(crate) fn end_applied(&mut self) {
        self.context.counters.commits.add(1);
        self.end();
    }

    fn write_all(&mut self, options: &WriteOptions) -> Result<SeqNo> {
        let batch = self.own.batch()?;
        let context = self.context.clone();
        if context.options.check_unlocked_writes {
            return context.db.write_if(batch, &self.unchanged(), options);
        }
        if self.concurrency == Concurrency::Optimistic {
            // No transaction of this handle changes a locked key between the check and the write,
            // which can then share a commit group.
            if !batch.is_empty() {
                self.lock_all()?;
            }
            let (nothing, unsynced) = (WriteBatch::new(), WriteOptions::UNSYNCED);
            context.db.write_if(nothing, &self.unchanged(), &unsynced)?;
        }
        context.db.write(batch, options)
    }

    /// Returns the preconditions of the commit.
    fn unchanged(&self) -> Vec<Precondition<'_>> {
        let keys = self.own.all();
        let checked = keys.filter(|(.., state)| state.since != MAX_SEQ);
        checked
            .map(|(family, key, state)| {
                Precondition::unchanged(family, key.user_key(), state.since)
            })
            .collect()
    }

    /// Locks all keys of an optimistic transaction, in their order, so that two such transactions
    /// never wait for each other.
    fn lock_all(&mut self) -> Result<()> {
        let (locks, counters) = (&self.context.locks, &self.context.counters);
        for (family, key, state) in self.own.all() {
            let call = LockCall {
                id: self.id,
                family,
                key: key.user_key(),
                mode: match state.write.is_some() || state.is_exclusive {
                    true => LockMode::Exclusive,
                    false => LockMode::Shared,
                },
                timeout: self.lock_timeout,
            };
            locks.lock(&call, counters)?;
            self.commit_locks += 1;
        }
        Ok(())
    }

    /// Releases all locks.
    fn end(&mut self) {
        self.is_over = true;
        let held = match self.concurrency {
            Concurrency::Optimistic => self.commit_locks,
            Concurrency::Pessimistic => self.own.len(),
        };
        for (family, key, _) in self.own.all().take(held) {
            self.context.locks.release(self.id, family, key.user_key());
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_over {
            self.context.counters.rollbacks.add(1);
            self.end();
        }
    }
}
