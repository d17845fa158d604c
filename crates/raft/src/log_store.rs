//! The log of a Raft node: entries, vote, committed and purged log id.
//!
//! A node has two logical logs. `NAME/entries` has each entry under its index as log sequence
//! number. `NAME/state` replaces duplicates and has one record for each of vote, committed and
//! purged log id. All appends and votes go through the one queue of the engine's datalog, in the
//! order of the calls, as openraft demands.
//!
//! An append returns when it is submitted. Until the engine has committed it, readers find its
//! entries in the [`Tail`]. Appends are acknowledged in their order: after an append has failed, no
//! later one succeeds, even if its own write did. So no acknowledged entry stands behind a hole.
//!
//! While the task of the state machine installs a snapshot, openraft 0.9 purges the log. If the
//! purge were durable before the snapshot, a crash in between would leave a state that needs
//! entries which are gone. So a log with a [`StateLink`] hides purged entries at once, and removes
//! them from the disk when the state machine has them.
//!
//! Locks: `LogState`, which no call of the engine is made under.

use crate::call::{blocking, commit, storage_error};
use crate::codec::encode;
use crate::log_reader::LogReader;
use crate::log_state::{Flushed, LogShared, LogState, missing, read_entry, read_record};
use crate::snapshot_data::StateSnapshot;
use crate::state_link::StateLink;
use crate::state_machine::{Apply, StateMachine};
use crate::tail::Tail;
use basalt::env::sync::Mutex;
use basalt::{Error, ErrorKind, Result};
use basalt_log::{Duplicates, Log, LogBatch, LogEngine, LogOptions, WriteOptions};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    ErrorSubject, ErrorVerb, LogId, LogState as RaftLogState, OptionalSend, RaftLogId,
    RaftLogReader, RaftTypeConfig, StorageError, Vote,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;

/// Log sequence numbers of the records of the state log. They are persisted.
const VOTE: u64 = 1;
const COMMITTED: u64 = 2;
const PURGED: u64 = 3;

/// The log of a Raft node in a [`LogEngine`]. Many nodes, such as one for each Raft group of a
/// process, share an engine: their appends become one write and one sync.
///
/// - [`RaftLogStorage::append`] never waits for the device. The callback reports success when the
///   entries survive a power cut.
/// - [`RaftLogStorage::save_vote`] and `truncate` return when their effect survives a power cut.
/// - After `purge`, no reader sees the entries. They leave the disk when the state machine has them
///   durably (see [`LogStore::with_state`]); until then a crash brings them back.
/// - [`RaftLogStorage::save_committed`] survives the death of the process when it returns or
///   shortly after. A power cut may bring back an older value, as openraft allows.
///
/// After an error of the engine, openraft stops the node. The log is opened again after the cause
/// is gone.
pub struct LogStore<C: RaftTypeConfig> {
    pub(crate) shared: Arc<LogShared<C>>,
    state: Option<StateLink>,
}

impl<C: RaftTypeConfig> LogStore<C> {
    /// Opens the log of a node, which is created if the engine has none with this name. The name
    /// has 1 to 1,000 bytes and is the node's own in this engine. At most one `LogStore` of a name
    /// may be open. The call blocks, and must not run on a thread of an asynchronous runtime.
    ///
    /// Errors: those of [`LogEngine::create`] and [`Log::read`]; `Corruption` if entries are
    /// missing or cannot be decoded.
    pub fn open(engine: &LogEngine, name: &str) -> Result<LogStore<C>> {
        let replacing = LogOptions::default().duplicates(Duplicates::Replace);
        let hard_state = engine.open_or_create(&format!("{name}/state"), replacing)?;
        let entries = engine.open_or_create(&format!("{name}/entries"), LogOptions::default())?;
        let purged: Option<LogId<C::NodeId>> = read_record(&hard_state, PURGED)?.flatten();
        if let Some(purged) = &purged
            && entries.first().is_some_and(|first| first <= purged.index)
        {
            // A power cut may have brought them back.
            entries.trim(purged.index, &WriteOptions::UNSYNCED)?;
        }
        check_for_holes(&entries, purged.as_ref().map(|p| p.index))?;
        let last = match entries.last() {
            Some(index) => Some(read_entry::<C>(&entries, index)?.get_log_id().clone()),
            None => purged.clone(),
        };
        let committed = committed_in_log::<C>(&hard_state, &entries, &purged, &last)?;
        let first = match &purged {
            Some(purged) => purged.index + 1,
            None => entries.first().unwrap_or(0),
        };
        let state = LogState {
            tail: Tail::default(),
            first,
            last,
            purged,
            pending_purge: None,
            committed,
            next_append: 0,
            in_flight: BTreeMap::new(),
            failure: None,
        };
        Ok(LogStore {
            shared: Arc::new(LogShared {
                engine: engine.clone(),
                entries,
                hard_state,
                state: Mutex::new(state),
            }),
            state: None,
        })
    }

    /// Returns the log with its purges ordered behind the state machine: an entry leaves the disk
    /// only when the state that has it survives a power cut. An append behind a snapshot that is
    /// being installed waits for the installation. [`crate::open`] calls this.
    ///
    /// Without it, a purge is durable when it returns. A program with a state machine of its own
    /// then has a node that cannot start if a crash interrupts the installation of a snapshot.
    #[must_use]
    pub fn with_state<A: Apply<C>>(mut self, state: &StateMachine<C, A>) -> LogStore<C>
    where
        C: RaftTypeConfig<Entry = openraft::Entry<C>, SnapshotData = StateSnapshot>,
    {
        self.state = Some(state.link());
        self
    }

    /// Writes a record of the state log. The call returns when the record is committed.
    async fn save<T>(&self, lsn: u64, value: &T, options: &WriteOptions) -> Result<()>
    where
        T: Serialize + DeserializeOwned,
    {
        let batch = self.shared.state_batch(lsn, value)?;
        commit(&self.shared.engine, batch, options).await
    }

    async fn truncate_from(&self, index: u64) -> Result<()> {
        let shared = self.shared.clone();
        blocking(move || {
            let before = shared.last_before(index)?;
            let mut state = shared.state.lock();
            state.tail.truncate(index);
            state.last = before;
            drop(state);
            // Appends that were submitted are committed before the removal.
            shared.entries.truncate_suffix(index)
        })
        .await
    }

    /// Hides entries from readers, and removes them from the disk if the state machine has them.
    async fn purge_up_to(&mut self, log_id: LogId<C::NodeId>) -> Result<()> {
        self.shared.hide_up_to(log_id);
        self.finish_purge(false).await
    }

    /// Brings a purge to the disk if the state machine has its entries. Before an append, it waits
    /// for that if the append would leave a hole on disk.
    pub(crate) async fn finish_purge(&mut self, before_append: bool) -> Result<()> {
        let Some(log_id) = self.shared.state.lock().pending_purge.clone() else {
            return Ok(());
        };
        let index = log_id.index;
        if let Some(link) = &mut self.state {
            let needed = before_append && self.shared.entries.last() < Some(index);
            if !needed && *link.applied.borrow() < Some(index) {
                return Ok(());
            }
            let gone = |_| Error::new(ErrorKind::Closed, "the state machine was dropped");
            let applied = link.applied.wait_for(|applied| *applied >= Some(index));
            applied.await.map_err(gone)?;
            let store = link.store.clone();
            blocking(move || store.persist(index)).await?;
        }
        // Without the record, openraft would take the entries that are gone for lost.
        self.save(PURGED, &Some(log_id), &WriteOptions::SYNC)
            .await?;
        let shared = self.shared.clone();
        blocking(move || {
            shared.entries.trim(index, &WriteOptions::UNSYNCED)?;
            shared.state.lock().pending_purge = None;
            Ok(())
        })
        .await
    }
}

impl<C: RaftTypeConfig> LogShared<C> {
    fn state_batch<T>(&self, lsn: u64, value: &T) -> Result<LogBatch>
    where
        T: Serialize + DeserializeOwned,
    {
        let mut batch = LogBatch::new();
        let bytes = encode(value).map_err(Error::invalid)?;
        batch.append(&self.hard_state, lsn, &bytes)?;
        Ok(batch)
    }

    /// Hides entries from readers until they are gone from the disk.
    fn hide_up_to(&self, log_id: LogId<C::NodeId>) {
        let mut state = self.state.lock();
        let index = log_id.index;
        state.tail.trim(index);
        if state.last.as_ref().is_none_or(|last| last.index <= index) {
            state.last = Some(log_id.clone());
        }
        state.first = index + 1;
        state.purged = Some(log_id.clone());
        state.pending_purge = Some(log_id);
    }

    /// Returns the id of the entry before `index`, or the purged one if there is no entry.
    fn last_before(&self, index: u64) -> Result<Option<LogId<C::NodeId>>> {
        let purged = self.state.lock().purged.clone();
        match index.checked_sub(1) {
            Some(before) if purged.as_ref().is_none_or(|p| p.index < before) => {
                let entry = self.read_range(before, index, None)?.pop();
                Ok(entry.map(|entry| entry.get_log_id().clone()))
            }
            _ => Ok(purged),
        }
    }

    /// Submits entries. The callback runs when they survive a power cut, or have failed.
    pub(crate) fn submit<I>(self: &Arc<Self>, entries: I, flushed: Flushed) -> Result<()>
    where
        I: IntoIterator<Item = C::Entry>,
    {
        let mut batch = LogBatch::new();
        let mut encoded: Vec<(u64, Arc<[u8]>)> = Vec::new();
        let state = self.state.lock();
        let (mut last, purged) = (state.last.clone(), state.purged.clone());
        drop(state);
        for entry in entries {
            let log_id = entry.get_log_id().clone();
            if purged.as_ref().is_some_and(|p| log_id.index <= p.index) {
                // It is purged as soon as it is written: a snapshot has it.
                continue;
            }
            // Holes are not refused, because openraft's own tests of storage make some. The next
            // open reports them.
            if last.as_ref().is_some_and(|last| log_id.index <= last.index) {
                return Err(Error::invalid(format!(
                    "entry {} is appended to log {:?}, which has it; truncate the log first",
                    log_id.index,
                    self.entries.name()
                )));
            }
            let bytes = encode(&entry).map_err(|e| {
                Error::invalid(e).context(format!("encoding entry {}", log_id.index))
            })?;
            batch.append(&self.entries, log_id.index, &bytes)?;
            encoded.push((log_id.index, bytes.into()));
            last = Some(log_id);
        }
        if encoded.is_empty() {
            flushed(Ok(()));
            return Ok(());
        }
        let mut state = self.state.lock();
        let append = state.next_append;
        state.next_append += 1;
        if state.last.is_none() {
            state.first = encoded[0].0;
        }
        for (index, bytes) in encoded {
            state.tail.push(index, append, bytes);
        }
        state.last = last;
        state.in_flight.insert(append, (flushed, None));
        drop(state);
        let shared = self.clone();
        match self.engine.submit(batch, &WriteOptions::SYNC) {
            Ok(ticket) => ticket.on_complete(move |result| shared.complete(append, result)),
            Err(e) => self.complete(append, Err(e)),
        }
        Ok(())
    }

    /// Notes the result of an append, and acknowledges all appends whose turn has come. It runs on
    /// a thread of the engine.
    pub(crate) fn complete(&self, append: u64, result: Result<()>) {
        let mut acknowledged = Vec::new();
        let mut state = self.state.lock();
        if let Some((_, slot)) = state.in_flight.get_mut(&append) {
            *slot = Some(result);
        }
        while let Some(first) = state.in_flight.first_entry()
            && first.get().1.is_some()
        {
            let (append, (flushed, result)) = first.remove_entry();
            let result = match (&state.failure, result) {
                (Some(failure), _) => Err(failure.clone()),
                (None, Some(Err(e))) => {
                    state.failure = Some(e.clone());
                    Err(e)
                }
                (None, _) => {
                    state.tail.complete(append);
                    Ok(())
                }
            };
            acknowledged.push((flushed, result));
        }
        drop(state);
        for (flushed, result) in acknowledged {
            flushed(result);
        }
    }
}

/// Entries are consecutive from the purged one on: a hole means that entries were lost.
fn check_for_holes(entries: &Log, purged: Option<u64>) -> Result<()> {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
        return Ok(());
    };
    let from = purged.map_or(first, |purged| purged + 1);
    match entries.gaps(from..=last).first() {
        Some(gap) => Err(missing(entries, *gap.start())),
        None => Ok(()),
    }
}

/// Returns the committed log id if the log has this entry or has purged it. After a power cut while
/// a snapshot was installed, the log may lack it.
fn committed_in_log<C: RaftTypeConfig>(
    hard_state: &Log,
    entries: &Log,
    purged: &Option<LogId<C::NodeId>>,
    last: &Option<LogId<C::NodeId>>,
) -> Result<Option<LogId<C::NodeId>>> {
    let committed: Option<LogId<C::NodeId>> = read_record(hard_state, COMMITTED)?.flatten();
    let Some(id) = &committed else {
        return Ok(None);
    };
    let has = match (purged, last) {
        (Some(purged), _) if id.index <= purged.index => true,
        (_, Some(last)) if id.index <= last.index => {
            read_entry::<C>(entries, id.index)?.get_log_id() == id
        }
        _ => false,
    };
    Ok(committed.filter(|_| has))
}

impl<C: RaftTypeConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.shared.read(range).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.shared.read_limited(start, end).await
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = LogReader<C>;

    async fn get_log_state(
        &mut self,
    ) -> std::result::Result<RaftLogState<C>, StorageError<C::NodeId>> {
        let state = self.shared.state.lock();
        Ok(RaftLogState {
            last_purged_log_id: state.purged.clone(),
            last_log_id: state.last.clone(),
        })
    }

    async fn get_log_reader(&mut self) -> LogReader<C> {
        LogReader::new(&self.shared)
    }

    async fn save_vote(
        &mut self,
        vote: &Vote<C::NodeId>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        let saved = self.save(VOTE, vote, &WriteOptions::SYNC).await;
        saved.map_err(|e| storage_error(ErrorSubject::Vote, ErrorVerb::Write, &e))
    }

    async fn read_vote(
        &mut self,
    ) -> std::result::Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        let log = self.shared.hard_state.clone();
        let vote = blocking(move || read_record(&log, VOTE)).await;
        vote.map_err(|e| storage_error(ErrorSubject::Vote, ErrorVerb::Read, &e))
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<C::NodeId>>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        // Nothing waits for the record: the group before it may be in its sync, and a record that
        // is lost leaves an older committed id, as openraft allows.
        let batch = self.shared.state_batch(COMMITTED, &committed);
        let submitted = batch.and_then(|batch| {
            let engine = &self.shared.engine;
            engine.submit(batch, &WriteOptions::UNSYNCED).map(drop)
        });
        self.shared.state.lock().committed = committed;
        submitted.map_err(|e| storage_error(ErrorSubject::Store, ErrorVerb::Write, &e))
    }

    async fn read_committed(
        &mut self,
    ) -> std::result::Result<Option<LogId<C::NodeId>>, StorageError<C::NodeId>> {
        Ok(self.shared.state.lock().committed.clone())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<C>,
    ) -> std::result::Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let submitted = match self.finish_purge(true).await {
            Ok(()) => {
                let flushed = |result: Result<()>| {
                    callback.log_io_completed(result.map_err(std::io::Error::other));
                };
                self.shared.submit(entries, Box::new(flushed))
            }
            Err(e) => Err(e),
        };
        submitted.map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Write, &e))
    }

    async fn truncate(
        &mut self,
        log_id: LogId<C::NodeId>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        let done = self.truncate_from(log_id.index).await;
        done.map_err(|e| storage_error(ErrorSubject::Log(log_id), ErrorVerb::Delete, &e))
    }

    async fn purge(
        &mut self,
        log_id: LogId<C::NodeId>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        let done = self.purge_up_to(log_id.clone()).await;
        done.map_err(|e| storage_error(ErrorSubject::Log(log_id), ErrorVerb::Delete, &e))
    }
}
