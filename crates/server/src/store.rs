//! What the server needs of a store, as a narrow trait, and the engine behind it.
//!
//! The seam exists so that the command layer and the event loop can be tested against a store in
//! memory whose commits a test holds back, fails and reorders. Production has one implementation:
//! [`DbStore`].

use crate::catalog::{self, DATABASE, Retired};
use crate::layer::Layer;
use crate::layout::{self, DataType, ELEMENTS_FAMILY, KEYS_FAMILY, STRING_HEADER};
use crate::value::{Known, Meta, Value};
use basalt::{Bytes, Db, Env, Error, Family, Options, ReadOptions, Result, Snapshot, WriteOptions};
use encoder::Encoder;
use std::path::Path;
use std::sync::Arc;

/// Cursor numbers reserved at a time: 2^29 starts have a block each.
pub(crate) const CURSOR_BLOCK: u64 = 1 << 24;

/// One write of an epoch.
pub(crate) enum Write {
    Put {
        key: Bytes,
        value: Value,
    },
    Delete {
        key: Bytes,
    },
    /// The writes of a command with very many names.
    Layer(Arc<Layer>),
    Generation {
        generation: u32,
    },
}

impl Write {
    /// Returns roughly the bytes that the write adds to a batch.
    fn bytes(&self) -> usize {
        match self {
            Write::Put { key, value } => key.len() + value.data.len(),
            Write::Delete { key } => key.len(),
            Write::Layer(layer) => layer.memory(),
            Write::Generation { .. } => 0,
        }
    }
}

/// Called once with a commit's result, on any thread; must not block.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Sees engine key, encoded value and expiry of an entry; false ends the scan. A value that lies
/// apart from the tree is not read for it, and is a string's
/// ([`crate::layout::LEAST_MIN_BLOB_SIZE`]).
pub(crate) type Visit<'a> = dyn FnMut(&[u8], Option<&[u8]>, Option<u64>) -> bool + 'a;

/// The store as of one moment.
pub(crate) trait View: Send {
    /// Visits the live entries of `redis.keys` in `[from, to)` in order. After about `work` entries
    /// that are not live it gives up and returns the key to go on with.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut Visit<'_>,
    ) -> Result<Option<Vec<u8>>>;
    /// A key in `[from, to)` that no live one follows: the last live one, or where it gave up after
    /// about `work` others.
    fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>>;
}

/// The chunks of a memtable, see the module.
pub(crate) trait Store: Send + Sync {
    /// A value by engine key. Expired entries may be hidden already; the caller checks the expiry
    /// of the others.
    fn get(&self, key: &[u8]) -> Result<Option<Value>>;
    /// Many values' data in one batch of reads; other types than strings count as absent. What is
    /// read counts against `budget_bytes`; a key that it does not reach for is `None`, to be asked
    /// again. At least one is answered.
    fn get_strings(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>>;
    /// As [`Store::get`], if what has to be read apart from the tree for it is at most
    /// `budget_bytes` long; `None` if it is longer.
    fn get_within(&self, key: &[u8], budget_bytes: usize) -> Result<Option<Option<Value>>>;
    /// As [`Store::get_strings`], and the budget holds for the first key as well.
    fn get_strings_up_to(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>>;
    /// Type and expiry of a key, its encoded value when that is at hand, and with `lengths` how
    /// long a string is. No value that lies apart from the tree is read, but for the length of a
    /// compressed one: `None` if that is longer than `budget_bytes`.
    fn get_meta(
        &self,
        key: &[u8],
        lengths: bool,
        budget_bytes: usize,
    ) -> Result<Option<Option<Known>>>;
    /// Pins the present moment.
    fn view(&self) -> Box<dyn View>;
    /// Queues writes to be committed together. Submissions take effect in order; the calls of their
    /// `done` come in any order.
    fn submit(&self, writes: Vec<Write>, sync: bool, done: Done);
    /// Makes every acknowledged write survive a power cut. Blocks.
    fn sync(&self) -> Result<()>;
    /// The current generation of the database, as of open.
    fn generation(&self) -> Result<u32>;
    /// The first of [`CURSOR_BLOCK`] cursor numbers that were never given out, and never will be
    /// again. Blocks for a sync.
    fn reserve_cursors(&self) -> Result<u64>;
    /// From here on compactions may drop what is older than this generation, which is durable.
    fn retire_below(&self, generation: u32);
    /// Compacts away what is older than the current generation. Blocks, possibly for long.
    fn reclaim(&self) -> Result<()>;
    /// Makes a copy of what is committed in a folder that does not exist. Blocks.
    fn checkpoint(&self, target: &Path) -> Result<()>;
    /// Shape and counters.
    fn stats(&self) -> basalt::lsm::db::Stats;
    /// Ends it. Later calls fail with `Closed`.
    fn close(&self) -> Result<()>;
}

/// The engine.
pub(crate) struct DbStore {
    db: Db,
    keys: Family,
    retired: Retired,
    encoder: Encoder,
}

impl DbStore {
    /// Opens the store in `dir`, making families and catalog when they are missing. `Corruption`
    /// when a part of the catalog is lost.
    pub fn open(env: &Env, dir: &Path, options: Options) -> Result<DbStore> {
        let retired = Retired::default();
        let options = retired.add_to(options);
        let db = Db::open(env, dir, options.clone())?;
        let keys = ensure_family(&db, KEYS_FAMILY, &options)?;
        ensure_family(&db, ELEMENTS_FAMILY, &options)?;
        match catalog::read(&db, &keys)? {
            Some(generation) => retired.below(generation),
            None => catalog::make(&db, &keys)?,
        }
        let encoder = Encoder::new(db.clone(), keys.clone());
        Ok(DbStore {
            db,
            keys,
            retired,
            encoder,
        })
    }

    fn string(found: Result<Option<Bytes>>) -> Result<Option<Bytes>> {
        match found? {
            Some(v) if layout::value_type(&v)? == DataType::String => Ok(Some(v.slice(1..))),
            _ => Ok(None),
        }
    }

    fn decode(value: Bytes, expire_at_ms: Option<u64>) -> Result<Value> {
        Ok(Value {
            data_type: layout::value_type(&value)?,
            data: value.slice(1..),
            expire_at_ms,
        })
    }
}

fn ensure_family(db: &Db, name: &str, options: &Options) -> Result<Family> {
    match db.family(name) {
        Some(f) => Ok(f),
        None => db.create_family(name, options.family(name).clone()),
    }
}

impl Store for DbStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        match self
            .db
            .get_with_expiry(&self.keys, key, &ReadOptions::default())?
        {
            Some(v) => DbStore::decode(v.value, v.expire_at_ms).map(Some),
            None => Ok(None),
        }
    }

    fn get_strings(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        let list: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&self.keys, &k[..])).collect();
        self.db
            .multi_get_within(&list, &ReadOptions::default(), budget_bytes)
            .into_iter()
            .map(|answer| answer.map(DbStore::string))
            .collect()
    }

    fn get_within(&self, key: &[u8], budget_bytes: usize) -> Result<Option<Option<Value>>> {
        let options = ReadOptions::default();
        let found = (self.db).get_within(&self.keys, key, &options, budget_bytes)?;
        let Some(found) = found else { return Ok(None) };
        let value = found.map(|v| DbStore::decode(v.value, v.expire_at_ms));
        value.transpose().map(Some)
    }

    fn get_strings_up_to(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        let list: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&self.keys, &k[..])).collect();
        self.db
            .multi_get_up_to(&list, &ReadOptions::default(), budget_bytes)
            .into_iter()
            .map(|answer| answer.map(DbStore::string))
            .collect()
    }

    fn get_meta(
        &self,
        key: &[u8],
        lengths: bool,
        budget_bytes: usize,
    ) -> Result<Option<Option<Known>>> {
        let options = ReadOptions::default();
        let found = match lengths {
            true => (self.db).get_len_within(&self.keys, key, &options, budget_bytes)?,
            false => Some(self.db.get_meta(&self.keys, key, &options)?),
        };
        let Some(found) = found else { return Ok(None) };
        let Some(found) = found else {
            return Ok(Some(None));
        };
        // No header of a collection is so long that it lies apart from the tree.
        let data_type = found.inline.as_deref().map(layout::value_type);
        let meta = Meta {
            data_type: data_type.transpose()?.unwrap_or(DataType::String),
            expire_at_ms: found.expire_at_ms,
            len: found.len.map(|n| n.saturating_sub(STRING_HEADER.len())),
        };
        let data = found.inline.map(|v| v.slice(STRING_HEADER.len()..));
        Ok(Some(Some((meta, data))))
    }

    fn view(&self) -> Box<dyn View> {
        Box::new(DbView {
            db: self.db.clone(),
            keys: self.keys.clone(),
            snapshot: self.db.snapshot(),
        })
    }

    fn submit(&self, writes: Vec<Write>, sync: bool, done: Done) {
        self.encoder.submit(writes, sync, done);
    }

    fn sync(&self) -> Result<()> {
        self.db.sync()
    }

    fn generation(&self) -> Result<u32> {
        let key = layout::generation_key(DATABASE);
        match self.db.get(&self.keys, &key, &ReadOptions::default())? {
            Some(record) => layout::decode_generation(&record),
            None => Ok(0),
        }
    }

    fn reserve_cursors(&self) -> Result<u64> {
        let key = layout::cursor_key();
        let first = match self.db.get(&self.keys, &key, &ReadOptions::default())? {
            Some(record) => layout::decode_cursor(&record)?,
            None => 1,
        };
        let next = first + CURSOR_BLOCK;
        if next > layout::CURSOR_END {
            return Err(Error::unsupported("all 2^53 cursor numbers were given out"));
        }
        self.db
            .put(&self.keys, &key, &next.to_le_bytes(), &WriteOptions::SYNC)?;
        Ok(first)
    }

    fn retire_below(&self, generation: u32) {
        self.retired.below(generation);
    }

    fn reclaim(&self) -> Result<()> {
        let current = self.retired.generation();
        let from = layout::key_prefix(DATABASE, 0);
        let to = layout::key_prefix(DATABASE, current);
        let mut left = false;
        self.view().scan(&from, &to, u64::MAX, &mut |_, _, _| {
            left = true;
            false
        })?;
        if left {
            self.db.compact_range(&self.keys, Some(&from), Some(&to))?;
        }
        Ok(())
    }

    fn checkpoint(&self, target: &Path) -> Result<()> {
        let made = self.db.checkpoint(target, &Default::default());
        made.map(|_| ())
    }

    fn stats(&self) -> basalt::lsm::db::Stats {
        self.db.stats()
    }

    fn close(&self) -> Result<()> {
        self.db.clone().close()
    }
}

mod encoder;

struct DbView {
    db: Db,
    keys: Family,
    snapshot: Snapshot,
}

impl DbView {
    fn options(&self, from: &[u8], to: &[u8], work: u64) -> ReadOptions {
        ReadOptions {
            snapshot: Some(self.snapshot.clone()),
            lower_bound: Some(from.to_vec()),
            upper_bound: Some(to.to_vec()),
            // A walk over keys reads no long value.
            keys_only: true,
            fill_cache: false,
            max_skippable_entries: work,
            ..ReadOptions::default()
        }
    }
}

impl View for DbView {
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut Visit<'_>,
    ) -> Result<Option<Vec<u8>>> {
        if from >= to {
            return Ok(None);
        }
        let mut it = self.db.iter(&self.keys, &self.options(from, to, work))?;
        it.seek_to_first()?;
        while it.valid() && visit(it.key(), it.value_at_hand(), it.expire_at_ms()) {
            it.next()?;
        }
        Ok(it.resume_key().map(<[u8]>::to_vec))
    }

    fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>> {
        if from >= to {
            return Ok(None);
        }
        let mut it = self.db.iter(&self.keys, &self.options(from, to, work))?;
        it.seek_to_last()?;
        if let Some(key) = it.resume_key() {
            return Ok(Some(key.to_vec()));
        }
        Ok(it.valid().then(|| it.key().to_vec()))
    }
}

#[cfg(test)]
pub(crate) mod memory {
    //! A store in memory whose commits wait until a test releases or fails them.

    use super::*;
    use crate::layer::LayerWrite;
    use basalt::ErrorKind;
    use parking_lot::Mutex;
    use std::collections::{BTreeMap, BTreeSet, VecDeque};
    use std::sync::Arc;

    type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

    #[derive(Default)]
    pub struct State {
        pub entries: Entries,
        /// Deleted keys, which a scan passes over one by one as the engine's does.
        pub deleted: BTreeSet<Vec<u8>>,
        pub generation: u32,
        /// Calls of [`Store::sync`].
        pub syncs: usize,
        pub held: VecDeque<(Vec<Write>, bool, Done)>,
        /// Commits whose results are decided and whose callbacks have not run.
        pub decided: Vec<(Done, Result<()>)>,
        pub hold: bool,
        pub submissions: Vec<(usize, bool)>,
        pub fail_reads: bool,
        /// Most bytes that one batch of reads has answered.
        pub largest_batch: usize,
        /// Values from so many bytes on lie apart from the tree; 0 for none.
        pub apart_from: usize,
        /// What was read of the store, by which thread.
        pub reads: Vec<(std::thread::ThreadId, ReadOf)>,
        /// Reads on other threads than the one that opened the store wait until this is false
        /// again.
        pub hold_fetches: bool,
        pub loop_thread: Option<std::thread::ThreadId>,
        /// Reads on other threads panic.
        pub panic_fetches: bool,
        pub retired: u32,
        pub closed: bool,
        /// Blocks of cursor numbers given out.
        pub cursor_blocks: u64,
        /// Reserving cursor numbers waits until this is false again.
        pub hold_cursors: bool,
        /// Scans wait until this is false again.
        pub hold_scans: bool,
        /// Views that somebody holds.
        pub views: usize,
    }

    /// What a read of [`MemoryStore`] read.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ReadOf {
        /// Type, expiry, perhaps the length.
        Meta(Vec<u8>),
        /// A value of this many bytes.
        Value(Vec<u8>, usize),
    }

    /// Commits at once unless told to hold.
    #[derive(Clone, Default)]
    pub struct MemoryStore(pub Arc<Mutex<State>>);

    impl State {
        fn apply(&mut self, writes: &[Write]) {
            for w in writes {
                match w {
                    Write::Put { key, value } => {
                        let v = [&STRING_HEADER[..], &value.data].concat();
                        self.deleted.remove(&key[..]);
                        self.entries.insert(key.to_vec(), (v, value.expire_at_ms));
                    }
                    Write::Delete { key } => {
                        self.entries.remove(&key[..]);
                        self.deleted.insert(key.to_vec());
                    }
                    Write::Layer(layer) => {
                        for (key, write) in layer.writes() {
                            let key = [&layer.prefix()[..], key].concat();
                            match write {
                                LayerWrite::Put(value) => {
                                    self.deleted.remove(&key);
                                    let value = [&STRING_HEADER[..], value].concat();
                                    self.entries.insert(key, (value, None));
                                }
                                LayerWrite::Delete => {
                                    self.entries.remove(&key);
                                    self.deleted.insert(key);
                                }
                            }
                        }
                    }
                    Write::Generation { generation } => self.generation = *generation,
                }
            }
        }
    }

    impl MemoryStore {
        pub fn hold(&self, hold: bool) {
            self.0.lock().hold = hold;
        }
        /// Notes a read; one of another thread than the loop's waits while the test holds it back.
        fn reading(&self, of: ReadOf) {
            let thread = std::thread::current().id();
            let mut s = self.0.lock();
            s.reads.push((thread, of));
            let panics = s.panic_fetches && s.loop_thread.is_some_and(|t| t != thread);
            drop(s);
            assert!(!panics, "the test asks for a panic");
            let held = || {
                let s = self.0.lock();
                s.hold_fetches && s.loop_thread.is_some_and(|t| t != thread)
            };
            while held() {
                basalt::env::Clock::system().sleep(std::time::Duration::from_millis(1));
            }
        }
        pub fn held(&self) -> usize {
            self.0.lock().held.len()
        }
        /// Decides the oldest held commit, as the engine does: in the order of submission. Its
        /// callback runs with [`MemoryStore::call_back`].
        pub fn decide(&self, result: Result<()>) {
            let mut s = self.0.lock();
            let (writes, _, done) = s.held.pop_front().expect("a held commit");
            if result.is_ok() {
                s.apply(&writes);
            }
            s.decided.push((done, result));
        }
        /// Runs the callback of the `index`-th decided commit: the engine promises no order of
        /// callbacks.
        pub fn call_back(&self, index: usize) {
            let (done, result) = self.0.lock().decided.remove(index);
            done(result);
        }
        /// Ends the `index`-th held commit.
        pub fn release(&self, index: usize, result: Result<()>) {
            let mut s = self.0.lock();
            let (writes, _, done) = s.held.remove(index).expect("a held commit");
            if result.is_ok() {
                s.apply(&writes);
            }
            drop(s);
            done(result);
        }
    }

    impl Store for MemoryStore {
        fn get(&self, key: &[u8]) -> Result<Option<Value>> {
            let s = self.0.lock();
            if s.fail_reads {
                return Err(Error::new(ErrorKind::Io, "the disk is gone"));
            }
            let value = match s.entries.get(key) {
                Some((v, expire)) => Some(DbStore::decode(v.clone().into(), *expire)?),
                None => None,
            };
            drop(s);
            let len = value.as_ref().map_or(0, |v| v.data.len());
            self.reading(ReadOf::Value(key.to_vec(), len));
            Ok(value)
        }
        fn get_within(&self, key: &[u8], budget: usize) -> Result<Option<Option<Value>>> {
            let s = self.0.lock();
            let (least, found) = (s.apart_from, s.entries.get(key));
            let len = found.map_or(0, |(v, _)| v.len());
            drop(s);
            match least > 0 && len >= least && len > budget {
                true => Ok(None),
                false => self.get(key).map(Some),
            }
        }
        fn get_strings_up_to(
            &self,
            keys: &[Bytes],
            mut budget: usize,
        ) -> Vec<Option<Result<Option<Bytes>>>> {
            let mut one = |key: &Bytes| match self.get_within(key, budget) {
                Ok(Some(value)) => {
                    let data = value.map(|v| v.data);
                    budget = budget.saturating_sub(data.as_ref().map_or(0, Bytes::len));
                    Some(Ok(data))
                }
                Ok(None) => None,
                Err(e) => Some(Err(e)),
            };
            keys.iter().map(&mut one).collect()
        }
        fn get_meta(&self, key: &[u8], _: bool, _: usize) -> Result<Option<Option<Known>>> {
            let s = self.0.lock();
            let fails = s.fail_reads;
            let apart_from = s.apart_from;
            let found = s.entries.get(key).cloned();
            drop(s);
            // The answer is that of the moment before the wait, so that writes meanwhile change it.
            self.reading(ReadOf::Meta(key.to_vec()));
            if fails {
                return Err(Error::new(ErrorKind::Io, "the disk is gone"));
            }
            let Some((v, expire_at_ms)) = found else {
                return Ok(Some(None));
            };
            let meta = Meta {
                data_type: layout::value_type(&v)?,
                expire_at_ms,
                len: Some(v.len() - 1),
            };
            let apart = apart_from > 0 && v.len() >= apart_from;
            let data = (!apart).then(|| Bytes::copy_from_slice(&v[1..]));
            Ok(Some(Some((meta, data))))
        }
        fn get_strings(&self, keys: &[Bytes], budget: usize) -> Vec<Option<Result<Option<Bytes>>>> {
            let mut spent = 0;
            let answers = keys.iter().enumerate().map(|(i, k)| {
                let value = self.get(k).map(|v| v.map(|v| v.data));
                let len = value.iter().flatten().map(Bytes::len).sum::<usize>();
                let within = i == 0 || spent + len <= budget;
                spent += if within { len } else { 0 };
                within.then_some(value)
            });
            let answers = answers.collect();
            let mut s = self.0.lock();
            s.largest_batch = s.largest_batch.max(spent);
            answers
        }
        fn view(&self) -> Box<dyn View> {
            let mut s = self.0.lock();
            s.views += 1;
            Box::new(MemoryView {
                entries: s.entries.clone(),
                deleted: s.deleted.clone(),
                store: self.clone(),
            })
        }
        fn submit(&self, writes: Vec<Write>, sync: bool, done: Done) {
            let mut s = self.0.lock();
            s.submissions.push((writes.len(), sync));
            if s.hold {
                s.held.push_back((writes, sync, done));
                return;
            }
            s.apply(&writes);
            drop(s);
            done(Ok(()));
        }
        fn sync(&self) -> Result<()> {
            self.0.lock().syncs += 1;
            Ok(())
        }
        fn generation(&self) -> Result<u32> {
            Ok(self.0.lock().generation)
        }
        fn reserve_cursors(&self) -> Result<u64> {
            while self.0.lock().hold_cursors {
                basalt::env::Clock::system().sleep(std::time::Duration::from_millis(1));
            }
            let mut s = self.0.lock();
            if s.fail_reads {
                return Err(Error::new(ErrorKind::Io, "the disk is gone"));
            }
            s.cursor_blocks += 1;
            Ok(1 + (s.cursor_blocks - 1) * CURSOR_BLOCK)
        }
        fn retire_below(&self, generation: u32) {
            self.0.lock().retired = generation;
        }
        fn reclaim(&self) -> Result<()> {
            let mut s = self.0.lock();
            let to = layout::key_prefix(DATABASE, s.retired).to_vec();
            s.entries.retain(|k, _| *k >= to);
            Ok(())
        }
        fn checkpoint(&self, _: &Path) -> Result<()> {
            Err(Error::unsupported("a store in memory has no files"))
        }
        fn stats(&self) -> basalt::lsm::db::Stats {
            Default::default()
        }
        fn close(&self) -> Result<()> {
            self.0.lock().closed = true;
            Ok(())
        }
    }

    struct MemoryView {
        entries: Entries,
        deleted: BTreeSet<Vec<u8>>,
        store: MemoryStore,
    }

    impl Drop for MemoryView {
        fn drop(&mut self) {
            self.store.0.lock().views -= 1;
        }
    }

    impl View for MemoryView {
        fn scan(
            &self,
            from: &[u8],
            to: &[u8],
            work: u64,
            visit: &mut Visit<'_>,
        ) -> Result<Option<Vec<u8>>> {
            while self.store.0.lock().hold_scans {
                basalt::env::Clock::system().sleep(std::time::Duration::from_millis(1));
            }
            let mut left = work;
            let mut deleted = self.deleted.range(from.to_vec()..to.to_vec()).peekable();
            for (k, (v, expire)) in self.entries.range(from.to_vec()..to.to_vec()) {
                while let Some(passed) = deleted.next_if(|d| *d < k) {
                    if left == 0 {
                        return Ok(Some(passed.clone()));
                    }
                    left -= 1;
                }
                if !visit(k, Some(v), *expire) {
                    return Ok(None);
                }
            }
            Ok(deleted
                .nth(usize::try_from(left).unwrap_or(usize::MAX))
                .cloned())
        }
        fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>> {
            let range = from.to_vec()..to.to_vec();
            let live = self.entries.range(range.clone()).next_back();
            let live = live.map(|(k, _)| k.clone());
            let above = live.clone().unwrap_or(range.start).max(from.to_vec());
            let mut passed = self.deleted.range(above..range.end).rev();
            let gave_up = passed.nth(usize::try_from(work).unwrap_or(usize::MAX));
            Ok(gave_up.cloned().or(live))
        }
    }
}

#[cfg(test)]
mod tests;
