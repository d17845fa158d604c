//! The storage tier: the page tree on two streams, and the commit of system transactions.

use crate::checkpoint_lock::{CheckpointGuard, CheckpointLock};
use crate::cold_leaves::ColdLeaves;
use crate::entries::{DroppedEntry, EntryDecision, is_delete};
use crate::maintenance_lock::{MaintenanceGuard, MaintenanceLock};
use crate::mapping::{Change, Effects, MappingTable, Pages, State, SysTime};
use crate::options::TreeOptions;
use crate::page::{Page, PageKind};
use crate::page_format::{self, PageBuilder, PageLayout, PagePart};
use crate::page_id::PageId;
use crate::paid_leaves::PaidLeaves;
use crate::release_queue::ReleaseQueue;
use crate::stats::PageTreeStats;
use crate::system_log::{Root, SystemCheckpoint, SystemTx};
use crate::underived::UnderivedExtents;
use crate::usage::{StreamKind, UsageTable};
use crate::write_counters::WriteCounters;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Mutex, MutexGuard, RwLock, named};
use basalt_env::{CacheKey, CachePriority, Env, MemoryKind, Reservation};
use basalt_fs::{Bytes, Error, ErrorKind, Intent, Result, slot_size};
use basalt_kv::key::Kind;
use basalt_kv::write_options::WriteOptions;
use basalt_log::{Log, LogBatch, LogCopy, LogEngine};
use basalt_stream::{ExtentId, ExtentInfo, Stream};
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

/// Outcome of a change of the tables. The error says in a sentence what the change contradicts.
type Applied = std::result::Result<(), String>;

/// Least entries of the queue of old chains before entries are dropped from it.
const LEAST_OLD: usize = 1024;
/// Most bytes of a page. A value has at most half of them.
const LARGEST_PAGE: u32 = 2 << 30;
/// Bytes of pages that are appended to a stream at once.
pub(crate) const APPEND_BYTES: usize = 1 << 20;

/// The page tree at a time.
#[derive(Debug)]
pub(crate) struct View {
    pub time: SysTime,
    pub root: Root,
}

/// A system transaction whose pages are written, and that is not committed.
pub(crate) struct Prepared<'a> {
    pub tx: SystemTx,
    /// The view that the transaction has read. While it is held, the page mapping table keeps the
    /// entries that say which pages have replaced those that the transaction changes.
    pub view: Arc<View>,
    /// Damage of a leaf that the transaction leaves as it is. Its maker returns it after the
    /// commit.
    pub damage: Option<Error>,
    pub _writers: Vec<PageWriter<'a>>,
    pub _structure: Option<MutexGuard<'a, ()>>,
    pub _maintenance: Option<MaintenanceGuard<'a>>,
    pub _checkpoint: Option<CheckpointGuard<'a>>,
}

/// Why pages are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageWriteCause {
    Flush,
    Compaction,
    Collection,
}

/// State of the commit of system transactions.
pub(crate) struct Commit {
    pub next_time: SysTime,
    /// Views that readers may hold, the oldest one first. The last one is the newest.
    views: Vec<Arc<View>>,
    /// Chains to prune, with the time after which no new reader needs the old versions.
    old: VecDeque<(SysTime, PageId)>,
    /// When `old` is longer, all but the last entry of each chain are dropped from it.
    longest_old: usize,
    pub note: Vec<u8>,
    /// The view before the first user checkpoint whose effect depends on a record of the memory
    /// tier that is not durable yet. A recovery may go back to it, so what it needs stays.
    unconfirmed: Option<Arc<View>>,
    /// Entries that transactions behind `unconfirmed` have dropped. The observer is told of them
    /// once no recovery can go back.
    unconfirmed_drops: Vec<DroppedEntry>,
    /// Extents of transactions that failed, and that a recovery may find.
    doubtful: Vec<ExtentId>,
    /// How a transaction with a durable record contradicts the tables. Only a defect of the
    /// tables, in memory or on the disk, leads to a contradiction.
    contradiction: Option<String>,
    /// Log sequence number of the next record of a checkpoint.
    next_part: u64,
}

/// The storage tier of a tree.
pub(crate) struct Storage {
    pub env: Env,
    pub dir: PathBuf,
    pub options: TreeOptions,
    pub base: Stream,
    pub delta: Stream,
    pub log: LogEngine,
    system: Log,
    checkpoint: Log,
    pub mapping: MappingTable,
    /// The reservation of the memory of `mapping` in the ledger.
    pub mapping_memory: Mutex<Reservation>,
    /// Held by transactions that change base pages.
    pub maintenance: MaintenanceLock,
    /// Held by user checkpoints.
    pub checkpoints: CheckpointLock,
    /// Held by the one thread that erases extents.
    pub erasing: Mutex<()>,
    commit: Mutex<Commit>,
    pub written: WriteCounters,
    pub usage: Mutex<UsageTable>,
    /// The reservation of the memory of `usage` in the ledger.
    pub usage_memory: Mutex<Reservation>,
    /// Garbage pages whose space is not given back yet.
    pub releases: Mutex<ReleaseQueue>,
    /// Extents whose ranges could not be derived.
    pub underived: Mutex<UnderivedExtents>,
    /// Bytes of the system log since the last checkpoint. Changed under `commit`.
    log_bytes: AtomicU64,
    /// Leaves to be merged for readers.
    pub paid: PaidLeaves,
    /// Leaves to be merged because they do not change any more.
    pub cold: ColdLeaves,
    view: RwLock<Arc<View>>,
}

/// The open files of a tree, for [`Storage::new`]. Recovery fills the tables.
pub(crate) struct Parts {
    pub env: Env,
    pub dir: PathBuf,
    pub options: TreeOptions,
    pub base: Stream,
    pub delta: Stream,
    pub log: LogEngine,
    pub system: Log,
    pub checkpoint: Log,
}

const SYNC: WriteOptions = WriteOptions::SYNC;

impl Storage {
    pub fn new(parts: Parts, time: SysTime, root: Root, next_part: u64) -> Storage {
        let view = Arc::new(View { time, root });
        let commit = Commit {
            next_time: time + 1,
            views: vec![view.clone()],
            old: VecDeque::new(),
            longest_old: LEAST_OLD,
            note: Vec::new(),
            unconfirmed: None,
            unconfirmed_drops: Vec::new(),
            doubtful: Vec::new(),
            contradiction: None,
            next_part,
        };
        let reserve = || parts.env.ledger().reserve(MemoryKind::Index, 0);
        let (mapping_memory, usage_memory) = (reserve(), reserve());
        Storage {
            env: parts.env,
            dir: parts.dir,
            options: parts.options,
            base: parts.base,
            delta: parts.delta,
            log: parts.log,
            system: parts.system,
            checkpoint: parts.checkpoint,
            mapping: MappingTable::new(),
            mapping_memory: named("Storage::mapping_memory", Mutex::new(mapping_memory)),
            maintenance: MaintenanceLock::default(),
            checkpoints: CheckpointLock::default(),
            erasing: named("Storage::erasing", Mutex::new(())),
            commit: named("Storage::commit", Mutex::new(commit)),
            written: WriteCounters::default(),
            usage: named("Storage::usage", Mutex::default()),
            usage_memory: named("Storage::usage_memory", Mutex::new(usage_memory)),
            releases: named("Storage::releases", Mutex::default()),
            underived: named("Storage::underived", Mutex::default()),
            log_bytes: AtomicU64::new(0),
            paid: PaidLeaves::default(),
            cold: ColdLeaves::default(),
            view: named("Storage::view", RwLock::new(view)),
        }
    }

    /// Returns the logs `system` and `checkpoint`.
    pub fn logs(&self) -> (&Log, &Log) {
        (&self.system, &self.checkpoint)
    }

    /// Returns the newest view. Pages that it needs stay while it is held.
    pub fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// Returns the stream of a kind.
    pub fn stream(&self, kind: StreamKind) -> &Stream {
        match kind {
            StreamKind::Base => &self.base,
            StreamKind::Delta => &self.delta,
        }
    }

    /// Reads an index page through the cache, where it is whole.
    ///
    /// Errors: `Corruption` names the extent and the offset.
    pub fn cached_page(&self, kind: StreamKind, id: PageId) -> Result<Page> {
        let (cache, key) = (self.env.cache(), cache_key(id));
        if let Some(bytes) = cache.get(key) {
            return Ok(Page::of_cached(bytes));
        }
        let page = self.page_uncached(kind, id)?;
        let bytes = page.to_cached();
        let charge = slot_size(bytes.len());
        cache.insert(key, bytes, charge, CachePriority::High);
        Ok(page)
    }

    /// Reads a page past the cache.
    pub fn page_uncached(&self, kind: StreamKind, id: PageId) -> Result<Page> {
        let bytes = self.stream(kind).read(id.address(), id.len as usize)?;
        self.open_page(kind, id, &bytes)
    }

    /// Verifies the bytes of a page.
    pub fn open_page(&self, kind: StreamKind, id: PageId, bytes: &Bytes) -> Result<Page> {
        let page = Page::open(id, bytes).map_err(|what| self.bad_page(kind, id, &what))?;
        self.check_stream(kind, id, page.kind)?;
        Ok(page)
    }

    /// Returns an error if a page of a kind is in the wrong stream.
    pub fn check_stream(&self, kind: StreamKind, id: PageId, page: PageKind) -> Result<()> {
        match (page == PageKind::Delta) == (kind == StreamKind::Delta) {
            true => Ok(()),
            false => Err(self.bad_page(kind, id, "the page is of another stream")),
        }
    }

    /// Returns the error for a page that is not what it should be.
    pub fn bad_page(&self, kind: StreamKind, id: PageId, what: &str) -> Error {
        let path = self.dir.join(extent_file(kind, id.extent));
        Error::corruption(&path, u64::from(id.offset), what)
    }

    /// Returns the error for tables that contradict each other.
    pub fn inconsistent(&self, what: String) -> Error {
        Error::new(ErrorKind::Corruption, what).in_file(&self.dir)
    }

    /// Returns kind and value of an entry that is the only one of its key as a base page gets it;
    /// `None` if it goes. Adds the entry to `dropped` if it goes or changes, and the observer is to
    /// know.
    pub fn filtered<'v>(
        &self,
        key: &[u8],
        kind: u8,
        value: &'v [u8],
        dropped: &mut Vec<DroppedEntry>,
    ) -> Option<(u8, Cow<'v, [u8]>)> {
        if is_delete(kind) {
            return None;
        }
        let (Some(filter), Some(known)) = (&self.options.filter, Kind::from_u8(kind)) else {
            return Some((kind, Cow::Borrowed(value)));
        };
        let decision = filter.decide(key, known, value);
        if decision != EntryDecision::Keep {
            dropped.extend(self.observed(key, kind, value));
        }
        match decision {
            EntryDecision::Keep => Some((kind, Cow::Borrowed(value))),
            EntryDecision::Remove => None,
            EntryDecision::Change(kind, value) => Some((kind as u8, Cow::Owned(value))),
        }
    }

    /// Returns the pages that a key stands for in a view.
    pub fn pages_of(&self, view: &View, key: PageId) -> Result<Pages> {
        match self.mapping.get(key, view.time) {
            State::Live(pages) => Ok(pages),
            State::Rewritten(_) => Err(self.inconsistent(format!(
                "an index page names page {key}, which was rewritten"
            ))),
        }
    }

    /// Commits what was prepared. Errors are those of [`Storage::commit`].
    pub fn commit_prepared(&self, prepared: &Prepared<'_>) -> Result<SysTime> {
        debug_assert!(prepared.view.time <= self.view().time);
        self.commit(&prepared.tx)
    }

    /// Commits a system transaction: makes its pages durable, then its record, then changes the
    /// tables. Transactions are committed in the order of their timestamps.
    ///
    /// Errors: those of the streams and of the log; then nothing has changed, and the pages of the
    /// transaction are garbage. It is unknown whether a recovery finds the transaction, which does
    /// no harm: its record is replaced by the next transaction's.
    pub fn commit(&self, tx: &SystemTx) -> Result<SysTime> {
        self.commit_as(tx, false)
    }

    /// Commits what was prepared as [`Storage::commit`] does. Its effect depends on a record of the
    /// memory tier, until [`Storage::confirm`].
    pub fn commit_unconfirmed(&self, prepared: &Prepared<'_>) -> Result<SysTime> {
        self.commit_as(&prepared.tx, true)
    }

    /// Ends the doubt about user checkpoints: the record of the memory tier is durable.
    pub fn confirm(&self) {
        let dropped = {
            let mut commit = self.commit.lock();
            commit.unconfirmed = None;
            std::mem::take(&mut commit.unconfirmed_drops)
        };
        self.report_dropped(dropped);
    }

    /// Goes back to the content before the first user checkpoint that is not confirmed: the memory
    /// tier has made durable that it does not count. What was committed behind it is lost, and its
    /// pages are garbage. `before` has the tables of then, as a recovery finds them. No user
    /// checkpoint and no maintenance may run.
    ///
    /// Errors: those of the log; then nothing has changed, and the call may be repeated.
    pub fn roll_back_to(&self, before: &Storage) -> Result<()> {
        let (note, usage) = (before.note(), before.usage.lock().clone());
        // Times go back, and an erasure compares those of readers that it has collected.
        let _erasing = self.erasing.lock();
        let mut commit = self.commit.lock();
        let Some(view) = commit.unconfirmed.clone() else {
            return Ok(());
        };
        let found = before.view();
        if (found.time, found.root) != (view.time, view.root) {
            return Err(self.inconsistent(format!(
                "a recovery goes back to transaction {}, expected {}",
                found.time, view.time
            )));
        }
        self.system.truncate_suffix(view.time + 1)?;
        let old = self.mapping.roll_back(view.time);
        self.usage.lock().replace(usage);
        self.releases.lock().clear_waiting();
        commit.views.retain(|held| held.time <= view.time);
        commit.old = old.into_iter().map(|key| (view.time, key)).collect();
        commit.next_time = view.time + 1;
        let log_bytes = before.log_bytes.load(SeqCst);
        self.log_bytes.store(log_bytes, SeqCst);
        commit.note = note;
        commit.unconfirmed = None;
        commit.unconfirmed_drops.clear();
        *self.view.write() = view;
        Ok(())
    }

    /// Lets the streams go on after a failed sync. No user checkpoint may be prepared.
    pub fn restart(&self) -> Result<()> {
        if !self.base.has_failed() && !self.delta.has_failed() {
            return Ok(());
        }
        // Pages of a compaction that runs would be lost.
        let _maintenance = self.maintenance.exclusive();
        self.base.restart()?;
        self.delta.restart()
    }

    /// Returns true if a user checkpoint is not confirmed.
    pub fn has_unconfirmed(&self) -> bool {
        self.commit.lock().unconfirmed.is_some()
    }

    /// Checks that all transactions so far fit the tables. What is written later could not be
    /// trusted, and a checkpoint would replace the log that shows what is wrong.
    fn check_consistent(&self, commit: &Commit) -> Result<()> {
        let Some(what) = &commit.contradiction else {
            return Ok(());
        };
        Err(self.inconsistent(format!(
            "an earlier transaction contradicts the tables, and nothing is written any more: {what}; close the store and run `basalt tree check`"
        )))
    }

    /// Stops all writes, as a transaction that contradicts the tables does.
    #[cfg(test)]
    pub fn set_contradiction(&self, what: &str) {
        self.commit.lock().contradiction = Some(what.to_string());
    }

    fn commit_as(&self, tx: &SystemTx, is_unconfirmed: bool) -> Result<SysTime> {
        let writes_delta = tx.changes.iter().any(|c| {
            matches!(
                c,
                Change::Append { .. } | Change::Consolidate { with: Some(_), .. }
            )
        });
        if writes_delta {
            self.delta.sync()?;
        }
        let writes_base = !tx.above.is_empty()
            || (tx.changes.iter())
                .any(|c| matches!(c, Change::Overwrite { .. } | Change::Rewrite { .. }));
        if writes_base {
            self.base.sync()?;
        }
        let mut commit = self.commit.lock();
        self.check_consistent(&commit)?;
        // A record that does not fit would keep the tree from opening.
        self.mapping
            .check(&tx.changes)
            .map_err(|what| self.inconsistent(what))?;
        let time = commit.next_time;
        let record = tx.encode();
        let appended = self.system.append(time, &record, &SYNC);
        if appended.is_err() {
            // A recovery may find the record. Until another one has its place, its pages stay.
            let mut usage = self.usage.lock();
            for id in tx.written() {
                usage.hold(id.extent);
                commit.doubtful.push(id.extent);
            }
        }
        appended?;
        for extent in std::mem::take(&mut commit.doubtful) {
            self.usage.lock().release(extent);
        }
        if is_unconfirmed && commit.unconfirmed.is_none() {
            commit.unconfirmed = Some(self.view());
        }
        commit.next_time += 1;
        self.log_bytes.fetch_add(record.len() as u64, SeqCst);
        (self.written.system_log).fetch_add(record.len() as u64, SeqCst);
        if let Some(note) = &tx.note {
            commit.note.clone_from(note);
        }
        let mut effects = Effects::default();
        if let Err(what) = self.apply(time, tx, &mut effects) {
            commit.contradiction = Some(what.clone());
            return Err(self.inconsistent(what));
        }
        self.queue_releases(time, &effects);
        let appended = tx.changes.iter().filter_map(|change| match change {
            Change::Append { delta, .. } => Some(u64::from(delta.len)),
            _ => None,
        });
        let appended: u64 = appended.sum();
        if appended > 0 {
            let earned = appended as f64 * self.options.cold_merge_ratio;
            self.cold.note_checkpoint(time, earned as u64);
        }
        let root = tx.root.unwrap_or_else(|| self.view.read().root);
        let view = Arc::new(View { time, root });
        *self.view.write() = view.clone();
        commit.views.push(view);
        let readers = readers(&mut commit);
        for key in effects.old {
            // Versions between those of readers go at once.
            if !self.mapping.prune(key, &readers) {
                commit.old.push_back((time, key));
            }
        }
        self.prune(&mut commit, &readers);
        let mut dropped = tx.dropped.clone();
        if commit.unconfirmed.is_some() {
            commit.unconfirmed_drops.append(&mut dropped);
        }
        drop(commit);
        self.report_dropped(dropped);
        Ok(time)
    }

    /// Tells the observer of entries that were dropped.
    fn report_dropped(&self, dropped: Vec<DroppedEntry>) {
        if let Some(observer) = &self.options.drop_observer
            && !dropped.is_empty()
        {
            observer.note_dropped(dropped);
        }
    }

    /// Returns an entry as the observer is told of it; `None` if it is not told of such entries.
    pub fn observed(&self, key: &[u8], kind: u8, value: &[u8]) -> Option<DroppedEntry> {
        let observer = self.options.drop_observer.as_ref()?;
        let kind = Kind::from_u8(kind).filter(|k| *k != Kind::Delete && observer.observes(*k))?;
        Some(DroppedEntry {
            key: key.to_vec(),
            kind,
            // A part of a page would keep the whole page in memory.
            value: Bytes::copy_from_slice(value),
        })
    }

    /// Applies a transaction to the tables, as commits and recovery do.
    pub fn apply(&self, time: SysTime, tx: &SystemTx, effects: &mut Effects) -> Applied {
        let mut usage = self.usage.lock();
        for id in &tx.above {
            usage.add(StreamKind::Base, *id, time)?;
        }
        for change in &tx.changes {
            let mut of_change = Effects::default();
            match change {
                Change::Append { delta, .. } => usage.add(StreamKind::Delta, *delta, time)?,
                Change::Consolidate { with, .. } => {
                    if let Some(delta) = with {
                        usage.add(StreamKind::Delta, *delta, time)?;
                    }
                }
                Change::Overwrite { base, .. } => usage.add(StreamKind::Base, *base, time)?,
                Change::Rewrite { key, with, .. } => {
                    let before = match self.mapping.get(*key, SysTime::MAX) {
                        State::Live(pages) => pages.base,
                        State::Rewritten(_) => PageId::NONE,
                    };
                    let is_new = |id: &PageId| *id != before && !usage.has_base(*id);
                    let new: Vec<PageId> = with.iter().map(|(_, id)| *id).filter(is_new).collect();
                    for id in new {
                        usage.add(StreamKind::Base, id, time)?;
                    }
                }
            }
            self.mapping.apply(time, change, &mut of_change)?;
            for id in &of_change.shared_deltas {
                usage.add(StreamKind::Delta, *id, time)?;
            }
            for id in &of_change.dead_deltas {
                usage.remove(StreamKind::Delta, *id, time)?;
            }
            for id in &of_change.dead_bases {
                usage.remove(StreamKind::Base, *id, time)?;
            }
            effects.old.append(&mut of_change.old);
            effects.dead_bases.append(&mut of_change.dead_bases);
            effects.unused_deltas.append(&mut of_change.unused_deltas);
        }
        Ok(())
    }

    /// Drops versions that no reader needs any more.
    fn prune(&self, commit: &mut Commit, readers: &[SysTime]) {
        let due = commit
            .old
            .partition_point(|(since, _)| *since <= readers[0]);
        let due: Vec<_> = commit.old.drain(..due).collect();
        for (_, key) in due {
            // A newer version has its own place in the queue.
            self.mapping.prune(key, readers);
        }
        if commit.old.len() > commit.longest_old {
            let mut seen = BTreeSet::new();
            let last: Vec<_> = commit
                .old
                .iter()
                .rev()
                .filter(|(_, key)| seen.insert(*key))
                .collect();
            let last: VecDeque<_> = last.into_iter().rev().copied().collect();
            commit.old = last;
            commit.longest_old = LEAST_OLD.max(2 * commit.old.len());
        }
    }

    /// Returns the times of the views that readers hold and of the newest one, in rising order. The
    /// view that a recovery may go back to is among them.
    pub fn readers(&self) -> Vec<SysTime> {
        let mut commit = self.commit.lock();
        let readers = readers(&mut commit);
        self.prune(&mut commit, &readers);
        readers
    }

    /// Returns true if the system log is long enough for a checkpoint.
    pub fn checkpoint_is_due(&self) -> bool {
        let commit = self.commit.lock();
        commit.unconfirmed.is_none() && self.log_bytes.load(SeqCst) >= self.options.checkpoint_bytes
    }

    /// Writes a system checkpoint, and trims the system log. Does nothing as long as a user
    /// checkpoint is not confirmed: a recovery needs the log to go back behind it.
    ///
    /// Errors: `Corruption` if a transaction contradicts the tables, those of the log.
    pub fn take_checkpoint(&self) -> Result<()> {
        // Commits wait for the copy of the tables, and for the write.
        let mut commit = self.commit.lock();
        if commit.unconfirmed.is_some() {
            return Ok(());
        }
        self.check_consistent(&commit)?;
        let view = self.view();
        let mut chains = Vec::new();
        self.mapping
            .for_each(|key, state| chains.push((key, state.clone())));
        chains.sort_unstable_by_key(|(key, _)| *key);
        let checkpoint = SystemCheckpoint {
            time: view.time,
            root: view.root,
            note: commit.note.clone(),
            chains,
            usage: self.usage.lock().clone(),
        };
        let mut batch = LogBatch::new();
        let first = commit.next_part;
        let parts = checkpoint.encode(first);
        for (i, part) in parts.iter().enumerate() {
            batch.append(&self.checkpoint, first + i as u64, part)?;
        }
        self.log.write(batch, &SYNC)?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        (self.written.system_log).fetch_add(bytes as u64, SeqCst);
        self.written.system_checkpoints.fetch_add(1, SeqCst);
        commit.next_part = first + parts.len() as u64;
        self.log_bytes.store(0, SeqCst);
        self.checkpoint.trim(first - 1, &SYNC)?;
        self.system.trim(view.time, &SYNC)
    }

    /// Returns the note of the last user checkpoint that had one; empty if none had.
    pub fn note(&self) -> Vec<u8> {
        self.commit.lock().note.clone()
    }

    /// Sets the state that recovery found: the newest view, the note of the memory tier, and the
    /// bytes of the system log.
    pub fn set_recovered(&self, time: SysTime, root: Root, note: Vec<u8>, log_bytes: u64) {
        let mut commit = self.commit.lock();
        let view = Arc::new(View { time, root });
        *self.view.write() = view.clone();
        commit.views = vec![view];
        commit.next_time = time + 1;
        commit.note = note;
        self.log_bytes.store(log_bytes, SeqCst);
    }

    /// Begins a copy of the system log. Returns it with the views of the same moment, whose pages
    /// stay while they are held: the newest one, and the one that a recovery may go back to.
    pub fn begin_copy(&self) -> Result<(Vec<Arc<View>>, LogCopy)> {
        // No transaction comes between the two.
        let commit = self.commit.lock();
        let views = commit.unconfirmed.iter().cloned().chain([self.view()]);
        Ok((views.collect(), self.log.begin_copy()?))
    }

    /// Returns the newest view, and the usage of the extents at its time.
    pub fn view_with_usage(&self) -> (Arc<View>, UsageTable) {
        let _commit = self.commit.lock();
        (self.view(), self.usage.lock().clone())
    }

    /// Returns the bytes of delta pages of the leaves and index pages that are due for a
    /// compaction.
    pub fn due_delta_bytes(&self) -> u64 {
        self.mapping.due_delta_bytes(self.options.max_deltas)
    }

    /// Returns the bytes of valid base pages.
    pub fn base_bytes(&self) -> u64 {
        let usage = self.usage.lock();
        let bases = usage.iter().filter(|(_, of)| of.kind == StreamKind::Base);
        bases.map(|(_, of)| of.valid).sum()
    }

    /// Returns what the tier has and costs.
    pub fn stats(&self) -> PageTreeStats {
        let chains = self.mapping.sums(self.options.max_deltas);
        let (base, delta) = (self.base.extents(), self.delta.extents());
        let usage = self.usage.lock();
        let valid = |kind: StreamKind| {
            let of_kind = usage.iter().filter(|(_, usage)| usage.kind == kind);
            of_kind.map(|(_, usage)| usage.valid).sum()
        };
        let garbage = |extents: &[ExtentInfo]| {
            let valid = |id: ExtentId| usage.get(id).map_or(0, |usage| usage.valid);
            let garbage = (extents.iter()).map(|e| e.on_disk.saturating_sub(valid(e.id)));
            garbage.sum()
        };
        let bytes = |extents: &[ExtentInfo]| extents.iter().map(|e| e.on_disk).sum();
        let base_bytes = valid(StreamKind::Base);
        let by_cause = |cause| self.written.by_cause[cause as usize].load(SeqCst);
        PageTreeStats {
            levels: u64::from(self.view().root.level),
            mapped_pages: self.mapping.len() as u64,
            mapping_bytes: chains.memory,
            leaves_with_deltas: chains.leaves,
            index_pages_with_deltas: chains.index_pages,
            index_delta_bytes: chains.index_delta_bytes,
            delta_pages: chains.delta_pages,
            longest_chain: chains.longest,
            due_leaves: chains.due_leaves,
            due_delta_bytes: chains.due_bytes,
            base_bytes,
            delta_bytes: valid(StreamKind::Delta),
            least_bytes: base_bytes + chains.beyond_base,
            base_extents: base.len() as u64,
            delta_extents: delta.len() as u64,
            base_extent_bytes: bytes(&base),
            delta_extent_bytes: bytes(&delta),
            extent_range_bytes: usage.range_bytes(),
            extents_without_ranges: usage.iter().filter(|(_, of)| of.ranges.is_none()).count()
                as u64,
            derived_extent_ranges: self.written.derived_ranges.load(SeqCst),
            base_garbage_bytes: garbage(&base),
            delta_garbage_bytes: garbage(&delta),
            base_bytes_written: self.written.by_stream[0].load(SeqCst),
            delta_bytes_written: self.written.by_stream[1].load(SeqCst),
            flush_bytes_written: by_cause(PageWriteCause::Flush),
            compaction_bytes_written: by_cause(PageWriteCause::Compaction),
            collection_bytes_written: by_cause(PageWriteCause::Collection),
            system_log_bytes: self.log_bytes.load(SeqCst),
            system_log_bytes_written: self.written.system_log.load(SeqCst),
            system_checkpoints: self.written.system_checkpoints.load(SeqCst),
            leaves_merged_for_readers: self.written.merged_leaves[0].load(SeqCst),
            cold_leaves_merged: self.written.merged_leaves[1].load(SeqCst),
            released_bytes: self.written.released_bytes.load(SeqCst),
            failed_releases: self.written.failed_releases.load(SeqCst),
        }
    }

    /// Gives back what a failed transaction has written: extents are sealed, and erased if they
    /// have no valid page.
    ///
    /// Errors: those of the filesystem; the next call goes on.
    pub fn reclaim(&self) -> Result<()> {
        let sealed = self.base.seal().and(self.delta.seal());
        self.erase_dead().and(sealed)
    }
}

/// Pages that a system transaction writes. Their extents are not erased while this lives.
pub(crate) struct PageWriter<'a> {
    storage: &'a Storage,
    kind: StreamKind,
    pub cause: PageWriteCause,
    /// Pages that are not appended yet, one behind the other, and the length of each.
    bytes: Vec<u8>,
    lens: Vec<u32>,
    ids: Vec<PageId>,
    held: Vec<ExtentId>,
    /// True after an append has failed.
    has_failed: bool,
}

impl<'a> PageWriter<'a> {
    /// Returns a writer for a user checkpoint. Others set [`PageWriter::cause`].
    pub fn new(storage: &'a Storage, kind: StreamKind) -> PageWriter<'a> {
        PageWriter {
            storage,
            kind,
            cause: PageWriteCause::Flush,
            bytes: Vec::new(),
            lens: Vec::new(),
            ids: Vec::new(),
            held: Vec::new(),
            has_failed: false,
        }
    }

    /// Returns true after an append has failed. The writer must not be used any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Adds the page of a builder, and returns its number among the pages of this writer.
    pub fn add(&mut self, builder: &mut PageBuilder, mapping: PageId) -> Result<usize> {
        self.add_with(|layout, bytes| builder.finish(mapping, layout, bytes))
    }

    /// Adds a page with the entries of a part, and returns its number among the pages of this
    /// writer.
    pub fn add_part(
        &mut self,
        builder: &mut PageBuilder,
        part: &PagePart,
        mapping: PageId,
    ) -> Result<usize> {
        self.add_with(|layout, bytes| builder.put(part, mapping, layout, bytes))
    }

    fn add_with(&mut self, put: impl FnOnce(PageLayout, &mut Vec<u8>)) -> Result<usize> {
        let begin = self.bytes.len();
        let options = &self.storage.options;
        let layout = PageLayout {
            compression: options.compression,
            block_bytes: options.block_bytes,
        };
        put(layout, &mut self.bytes);
        let len = self.bytes.len() - begin;
        let Some(len) = u32::try_from(len).ok().filter(|len| *len <= LARGEST_PAGE) else {
            self.bytes.truncate(begin);
            return Err(Error::invalid(format!(
                "a page has {len} bytes, and at most {LARGEST_PAGE} are allowed; write smaller values, or keep them in blob files (`min_blob_size`)"
            )));
        };
        self.lens.push(len);
        let number = self.ids.len() + self.lens.len() - 1;
        if self.bytes.len() >= APPEND_BYTES.min(self.storage.options.extent_bytes as usize / 4) {
            self.flush()?;
        }
        Ok(number)
    }

    fn flush(&mut self) -> Result<()> {
        if self.lens.is_empty() {
            return Ok(());
        }
        let (lens, ids) = (&self.lens, &mut self.ids);
        let stream = self.storage.stream(self.kind);
        let (held, first) = (&mut self.held, ids.len());
        let usage = &self.storage.usage;
        self.has_failed = true;
        stream.append_bound(&mut self.bytes, Intent::Bulk, |at, bytes| {
            // Before the pages are there: a full extent may be sealed and erased at once.
            usage.lock().hold(at.extent);
            held.push(at.extent);
            let mut begin = 0;
            for len in lens {
                let end = begin + *len as usize;
                let id = PageId {
                    extent: at.extent,
                    offset: (at.offset + begin as u64) as u32,
                    len: *len,
                };
                page_format::bind(id.address(), &mut bytes[begin..end]);
                ids.push(id);
                begin = end;
            }
        })?;
        self.has_failed = false;
        let (written, bytes) = (&self.storage.written, self.bytes.len() as u64);
        let by_stream = match self.kind {
            StreamKind::Base => &written.by_stream[0],
            StreamKind::Delta => &written.by_stream[1],
        };
        let mut begin = 0;
        for id in &self.ids[first..] {
            let end = begin + id.len as usize;
            self.storage.cache_head(*id, &self.bytes[begin..end]);
            begin = end;
        }
        by_stream.fetch_add(bytes, SeqCst);
        written.by_cause[self.cause as usize].fetch_add(bytes, SeqCst);
        self.bytes.clear();
        self.lens.clear();
        Ok(())
    }

    /// Appends what is left, and returns the ids of all pages.
    pub fn finish(&mut self) -> Result<Vec<PageId>> {
        self.flush()?;
        Ok(std::mem::take(&mut self.ids))
    }
}

impl Drop for PageWriter<'_> {
    fn drop(&mut self) {
        let mut usage = self.storage.usage.lock();
        self.held.iter().for_each(|extent| usage.release(*extent));
    }
}

/// Directories of the streams and of the logs.
pub(crate) const BASE: &str = "base";
pub(crate) const DELTA: &str = "delta";
pub(crate) const LOGS: &str = "logs";

/// Returns the path of an extent from the tree's directory on.
pub(crate) fn extent_file(kind: StreamKind, extent: ExtentId) -> String {
    let directory = match kind {
        StreamKind::Base => BASE,
        StreamKind::Delta => DELTA,
    };
    format!("{directory}/{extent}.extent")
}

/// Returns the place of an index page, as the cache knows it.
pub(crate) fn cache_key(id: PageId) -> CacheKey {
    CacheKey {
        file: u128::from(id.extent.0) | 1 << 127,
        offset: u64::from(id.offset),
    }
}

fn readers(commit: &mut Commit) -> Vec<SysTime> {
    let newest = commit.views.len() - 1;
    let mut i = 0;
    // The list has one count of a view, and the newest one is held by the tree, too.
    commit.views.retain(|view| {
        i += 1;
        i > newest || Arc::strong_count(view) > 1
    });
    commit.views.iter().map(|view| view.time).collect()
}
