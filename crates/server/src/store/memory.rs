//! A store in memory whose commits wait until a test releases or fails them.

use super::appends::append;
use super::{
    Append, CURSOR_BLOCK, CommitCallback, DbStore, ElementVisitor, ElementWrite, EntryVisitor,
    Store, StoreView, Write,
};
use crate::catalog::DATABASE;
use crate::layer::LayerWrite;
use crate::layout::{self, STRING_HEADER};
use crate::value::{Known, Meta, Value};
use basalt::env::EnvBuilder;
use basalt::log::{LogEngine, LogEngineOptions};
use basalt::{Bytes, Error, ErrorKind, Result};
use basalt_sim::{SimFs, SimOptions};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

#[derive(Default)]
pub struct MemoryStoreState {
    pub entries: Entries,
    /// Elements of collections.
    pub elements: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Deleted keys, which a scan passes over one by one as the engine's does.
    pub deleted: BTreeSet<Vec<u8>>,
    pub generation: u32,
    /// Calls of [`Store::sync`].
    pub syncs: usize,
    pub held: VecDeque<(Vec<Write>, bool, CommitCallback)>,
    /// Commits with a decided result whose callbacks have not run.
    pub decided: Vec<(CommitCallback, Result<()>)>,
    pub hold: bool,
    pub submissions: Vec<(usize, bool)>,
    pub fail_reads: bool,
    pub fail_syncs: bool,
    /// Most bytes that one batch of reads has answered.
    pub largest_batch: usize,
    /// Values of at least this many bytes are separated; 0 for none.
    pub apart_from: usize,
    /// Reads of the store, each with its thread.
    pub reads: Vec<(std::thread::ThreadId, ReadOf)>,
    /// While true, reads on other threads than the one that opened the store wait.
    pub hold_fetches: bool,
    /// If set, `hold_fetches` only applies to keys that end with this name.
    pub hold_only: Option<&'static str>,
    pub loop_thread: Option<std::thread::ThreadId>,
    /// While true, reads on other threads panic.
    pub panic_fetches: bool,
    pub retired: u32,
    pub closed: bool,
    /// Number of blocks of cursor numbers given out.
    pub cursor_blocks: u64,
    /// While true, reserving cursor numbers waits.
    pub hold_cursors: bool,
    /// While true, scans wait.
    pub hold_scans: bool,
    /// The logs of streams, once there are any.
    pub logs: Option<LogEngine>,
    /// While true, appends to logs wait.
    pub hold_appends: bool,
    pub held_appends: VecDeque<(Vec<Append>, CommitCallback)>,
    /// Number of incarnations given out.
    pub incarnations: u64,
    /// Number of views that exist.
    pub views: usize,
}

/// The subject of a read of [`MemoryStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadOf {
    /// Type, expiry, and perhaps the length.
    Meta(Vec<u8>),
    /// A value, with its length in bytes.
    Value(Vec<u8>, usize),
}

/// A store that commits at once unless a test holds commits.
#[derive(Clone, Default)]
pub struct MemoryStore(pub Arc<Mutex<MemoryStoreState>>);

impl MemoryStoreState {
    fn apply(&mut self, writes: &[Write]) {
        for w in writes {
            match w {
                Write::Put { key, value } => {
                    let v = [&value.header()[..], &value.data].concat();
                    self.deleted.remove(&key[..]);
                    self.entries
                        .insert(key.to_vec(), (v, value.engine_expiry()));
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
                Write::Element(ElementWrite::Put { key, value }) => {
                    self.elements.insert(key.to_vec(), value.to_vec());
                }
                Write::Element(ElementWrite::Delete { key }) => {
                    self.elements.remove(&key[..]);
                }
                Write::Element(ElementWrite::DeleteRange { from, to }) => {
                    let range = from.to_vec()..to.to_vec();
                    self.elements.retain(|key, _| !range.contains(key));
                }
            }
        }
    }
}

impl MemoryStore {
    pub fn hold(&self, hold: bool) {
        self.0.lock().hold = hold;
    }
    /// Records a read. A read of another thread than the loop's waits while the test holds it back.
    fn reading(&self, of: ReadOf) {
        let thread = std::thread::current().id();
        let (ReadOf::Meta(key) | ReadOf::Value(key, _)) = of.clone();
        let mut s = self.0.lock();
        s.reads.push((thread, of));
        let panics = s.panic_fetches && s.loop_thread.is_some_and(|t| t != thread);
        drop(s);
        assert!(!panics, "the test asks for a panic");
        let held = || {
            let s = self.0.lock();
            let is_meant = |name: &str| key.ends_with(name.as_bytes());
            let is_held = s.hold_fetches && s.hold_only.is_none_or(is_meant);
            is_held && s.loop_thread.is_some_and(|t| t != thread)
        };
        while held() {
            basalt::env::Clock::system().sleep(std::time::Duration::from_millis(1));
        }
    }
    /// Ends the oldest held append.
    pub fn release_append(&self, result: Result<()>) {
        let mut s = self.0.lock();
        let (appends, done) = s.held_appends.pop_front().expect("a held append");
        let logs = s.logs.clone().expect("a stream has a log");
        drop(s);
        match result {
            Ok(()) => append(&logs, &appends, true, done),
            failed => done(failed),
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
        // The answer is that of the moment before the wait, so a write during the wait invalidates
        // it.
        self.reading(ReadOf::Meta(key.to_vec()));
        if fails {
            return Err(Error::new(ErrorKind::Io, "the disk is gone"));
        }
        let Some((v, expire_at_ms)) = found else {
            return Ok(Some(None));
        };
        let meta = Meta {
            data_type: layout::value_type(&v)?,
            expire_at_ms: layout::expiry_of(&v, expire_at_ms)?,
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
    fn view(&self) -> Box<dyn StoreView> {
        let mut s = self.0.lock();
        s.views += 1;
        Box::new(MemoryView {
            entries: s.entries.clone(),
            deleted: s.deleted.clone(),
            store: self.clone(),
        })
    }
    fn elements(&self, prefix: &[u8], visit: &mut ElementVisitor<'_>) -> Result<()> {
        let range = prefix.to_vec()..layout::prefix_end(prefix);
        let elements: Vec<_> = {
            let s = self.0.lock();
            let found = s.elements.range(range);
            found.map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        elements
            .iter()
            .try_for_each(|(key, value)| visit(key, value))
    }
    fn submit(&self, writes: Vec<Write>, sync: bool, done: CommitCallback) {
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
    fn append(&self, appends: Vec<Append>, sync: bool, done: CommitCallback) {
        let mut s = self.0.lock();
        if s.hold_appends {
            s.held_appends.push_back((appends, done));
            return;
        }
        let logs = s.logs.clone().expect("a stream has a log");
        drop(s);
        append(&logs, &appends, sync, done);
    }
    fn logs(&self) -> Result<LogEngine> {
        let mut s = self.0.lock();
        let logs = s.logs.get_or_insert_with(|| {
            let env = EnvBuilder::new(SimFs::new(SimOptions::default())).build();
            LogEngine::open(&env, "logs", LogEngineOptions::default()).expect("an empty disk")
        });
        Ok(logs.clone())
    }
    fn existing_logs(&self) -> Option<LogEngine> {
        self.0.lock().logs.clone()
    }
    fn next_incarnation(&self) -> Result<u64> {
        let mut s = self.0.lock();
        s.incarnations += 1;
        Ok(s.incarnations)
    }
    fn remove_elements(&self, collections: &[(u32, u64)]) -> Result<bool> {
        let mut s = self.0.lock();
        let before = s.elements.len();
        for (generation, incarnation) in collections {
            let prefix = layout::element_prefix(DATABASE, *generation, *incarnation);
            s.elements.retain(|key, _| !key.starts_with(&prefix));
        }
        Ok(s.elements.len() < before)
    }
    fn sync(&self) -> Result<()> {
        let mut s = self.0.lock();
        s.syncs += 1;
        match s.fail_syncs {
            true => Err(Error::new(ErrorKind::NoSpace, "the disk is full")),
            false => Ok(()),
        }
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
    fn stats(&self) -> basalt::Stats {
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

impl StoreView for MemoryView {
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut EntryVisitor<'_>,
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
