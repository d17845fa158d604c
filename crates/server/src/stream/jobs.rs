//! Jobs on streams that would block the event loop. Another thread creates logs, loads streams,
//! reads entries that are not in memory, and removes records.

use super::StreamId;
use super::element::{self, Element};
use super::group::Groups;
use super::loaded::{LoadedParts, WINDOW_BYTES, WINDOW_ENTRIES};
use super::lsn_set::LsnSet;
use super::record::{Record, decode_record, decode_state};
use crate::catalog::DATABASE;
use crate::layout::{self, DataType, STREAM_LOG_PREFIX};
use crate::store::Store;
use basalt::log::{Log, LogOptions};
use basalt::{Bytes, Error, ErrorKind, Result, WriteOptions};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Number of entries that a search for several ids reads in sequence before it begins a binary
/// search.
const SEQUENTIAL_ENTRIES: usize = 16;

/// Returns the name of a stream's log.
pub(crate) fn log_name(incarnation: u64) -> String {
    format!("{STREAM_LOG_PREFIX}{DATABASE}.{incarnation}")
}

/// A range of a stream's entries, to be read from its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryRange {
    pub start: StreamId,
    pub end: StreamId,
    pub reverse: bool,
    /// Maximum number of entries.
    pub count: u64,
    /// Lower bound of the LSNs of entries from `start` on, or 0 if none is known. The search for
    /// `start` begins at this LSN.
    pub from_lsn: u64,
}

/// A live entry with its LSN.
pub(crate) type LiveEntry = (u64, Record);

/// The entries of a stream's log that a read may return.
#[derive(Clone)]
pub(crate) struct LiveRange {
    pub log: Log,
    /// The number of the load of the stream ([`super::loaded::LoadedStream::load`]).
    pub load: u64,
    pub lsns: Range<u64>,
    /// LSNs without a live entry.
    pub gone: Arc<LsnSet>,
}

/// Records to be removed from a stream's log.
pub(crate) struct Removal {
    pub key: Bytes,
    /// The number of the load of the stream ([`super::loaded::LoadedStream::load`]).
    pub load: u64,
    pub log: Log,
    /// The LSN up to which, inclusive, all records are removed. `None` if only `runs` are removed.
    pub up_to: Option<u64>,
    pub runs: Vec<RangeInclusive<u64>>,
}

/// A job on a stream, for a waiting request or for the server itself.
pub(crate) enum StreamJob {
    /// Creates the log of a new stream.
    Create,
    /// Loads the stream of a key. `stored` is the key in the encoding of the store.
    Load { stored: Bytes, ticket: u64 },
    /// Reads a range of entries, from the log and from `newest`. The latter are those of the
    /// window.
    Read {
        live: LiveRange,
        newest: Vec<LiveEntry>,
        range: EntryRange,
        /// The read ends when its entries have more bytes than this.
        limit_bytes: usize,
    },
    /// Finds the smallest LSN whose id is at least `id`, or the end of the range.
    Find { live: LiveRange, id: StreamId },
    /// Finds the LSNs of live entries by their ids.
    Locate {
        live: LiveRange,
        ids: BTreeSet<StreamId>,
    },
    /// Reads entries by their LSNs, at least one, until they have `limit_bytes`.
    Fetch {
        live: LiveRange,
        lsns: BTreeSet<u64>,
        limit_bytes: usize,
    },
    /// Removes records, after the writes that justify it are durable.
    Remove(Vec<Removal>),
}

/// The result of a [`StreamJob`].
pub(crate) enum StreamAnswer {
    Created(Result<(u64, Log)>),
    /// `None` if the key has no stream any more.
    Loaded {
        key: Bytes,
        ticket: u64,
        result: Result<Option<Box<LoadedParts>>>,
    },
    Entries {
        load: u64,
        range: EntryRange,
        result: Result<Vec<LiveEntry>>,
    },
    Found {
        load: u64,
        id: StreamId,
        result: Result<u64>,
    },
    /// The LSNs of the live entries with these ids.
    Located {
        load: u64,
        ids: BTreeSet<StreamId>,
        result: Result<BTreeMap<StreamId, u64>>,
    },
    /// The entries, or `None` if they are longer than the limit.
    Fetched {
        load: u64,
        result: Result<Option<BTreeMap<u64, Record>>>,
    },
    Removed(Vec<Removal>, Result<()>),
}

/// Runs a job. Blocks. A panic of the job is an error in the answer.
pub(crate) fn run(store: &dyn Store, job: StreamJob) -> StreamAnswer {
    match job {
        StreamJob::Create => StreamAnswer::Created(guarded(|| create(store))),
        StreamJob::Load { stored, ticket } => StreamAnswer::Loaded {
            result: guarded(|| load(store, &stored)),
            key: stored.slice(layout::KEY_PREFIX_LEN..),
            ticket,
        },
        StreamJob::Read {
            live,
            newest,
            range,
            limit_bytes,
        } => StreamAnswer::Entries {
            result: guarded(|| read(&live, newest, &range, limit_bytes)),
            load: live.load,
            range,
        },
        StreamJob::Find { live, id } => StreamAnswer::Found {
            result: guarded(|| lower_bound(&live.log, live.lsns, &live.gone, id)),
            load: live.load,
            id,
        },
        StreamJob::Locate { live, ids } => StreamAnswer::Located {
            load: live.load,
            result: guarded(|| locate(&live, &ids)),
            ids,
        },
        StreamJob::Fetch {
            live,
            lsns,
            limit_bytes,
        } => StreamAnswer::Fetched {
            load: live.load,
            result: guarded(|| fetch(&live.log, &lsns, limit_bytes)),
        },
        StreamJob::Remove(removals) => {
            let result = guarded(|| remove(store, &removals));
            StreamAnswer::Removed(removals, result)
        }
    }
}

/// Runs the work of a job. A panic fails this job only: the jobs behind it need this thread.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let what = "the thread that reads streams panicked";
        Err(Error::new(ErrorKind::Poisoned, what))
    })
}

fn create(store: &dyn Store) -> Result<(u64, Log)> {
    let logs = store.logs()?;
    let incarnation = store.next_incarnation()?;
    let log = logs.create(&log_name(incarnation), LogOptions::default())?;
    Ok((incarnation, log))
}

fn lost(log: &Log, lsn: u64) -> Error {
    let what = format!("entry {lsn} of {} is lost", log.name());
    Error::new(ErrorKind::Corruption, what)
}

fn load(store: &dyn Store, stored: &[u8]) -> Result<Option<Box<LoadedParts>>> {
    let Some(value) = store.get(stored)? else {
        return Ok(None);
    };
    if value.data_type != DataType::Stream {
        return Ok(None);
    }
    let (header, mut state) = decode_state(&value.data)?;
    let key_next_lsn = state.next_lsn;
    let name = log_name(header.incarnation);
    let log = store.logs()?.log(&name).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::new(
            ErrorKind::Corruption,
            format!(
                "the entries of the stream are lost: the log {name} is missing; `basalt check` lists such streams, and DEL removes the key"
            ),
        ),
        _ => e,
    })?;
    // If a power cut has lost entries that the key counts, the key is newer than the log. The LSNs
    // of these entries are not used again, because groups and tombstones may name them.
    if let Some(last) = log.last().filter(|last| *last >= state.next_lsn) {
        let record = read_record(&log, last)?;
        if record.first_lsn > last + 1 {
            let first = record.first_lsn;
            return Err(Error::new(
                ErrorKind::Corruption,
                format!(
                    "entry {last} of {}: the first live entry {first} is after the next one",
                    log.name()
                ),
            ));
        }
        state.last_id = record.id.max(state.last_id);
        state.entries_added = record.entries_added;
        state.first_lsn = record.first_lsn.max(state.first_lsn);
        state.next_lsn = last + 1;
    }
    let (tombstones, groups) = load_elements(store, stored, header.incarnation)?;
    let mut gone = LsnSet::default();
    if state.first_lsn < state.next_lsn {
        for gap in log.gaps(state.first_lsn..=state.next_lsn - 1) {
            gone.insert_run(gap);
        }
    }
    let mut removed = gone.clone();
    for lsn in tombstones.range(state.first_lsn..state.next_lsn) {
        gone.insert(*lsn);
    }
    state.first_lsn = gone.next_absent(state.first_lsn).min(state.next_lsn);
    gone.remove_below(state.first_lsn);
    removed.remove_below(state.first_lsn);
    let (window, window_start) = load_window(&log, state.first_lsn..state.next_lsn, &gone)?;
    Ok(Some(Box::new(LoadedParts {
        incarnation: header.incarnation,
        expire_at_ms: value.expire_at_ms,
        log,
        state,
        key_next_lsn,
        gone,
        removed,
        tombstones,
        groups,
        window,
        window_start,
    })))
}

/// Loads the tombstones and the groups of a stream. `stored` is its key in the encoding of the
/// store.
fn load_elements(
    store: &dyn Store,
    stored: &[u8],
    incarnation: u64,
) -> Result<(BTreeSet<u64>, Groups)> {
    let (_, generation, key) = layout::decode_key(stored).expect("a Redis key");
    let (mut tombstones, mut groups) = (BTreeSet::new(), Groups::default());
    let mut add = |at: &[u8], value: &[u8]| {
        let element = element::decode(at, value)?;
        if let Element::Tombstone { lsn } = element {
            tombstones.insert(lsn);
        }
        groups.load(element)
    };
    let prefix = element::prefix(generation, incarnation);
    store.elements(&prefix, &mut |at, value| {
        add(at, value).map_err(|e| {
            e.context(format!(
                "element {} of the stream {:?}",
                at.iter().map(|b| format!("{b:02x}")).collect::<String>(),
                String::from_utf8_lossy(key)
            ))
        })
    })?;
    Ok((tombstones, groups))
}

/// Loads the newest live entries. Returns all live entries from an LSN on, and this LSN.
fn load_window(log: &Log, lsns: Range<u64>, gone: &LsnSet) -> Result<(VecDeque<LiveEntry>, u64)> {
    let (mut window, mut bytes) = (VecDeque::new(), 0);
    for entry in log.iter_back(lsns.end - 1) {
        let (lsn, record) = entry?;
        if lsn < lsns.start {
            break;
        }
        if gone.contains(lsn) {
            continue;
        }
        bytes += record.len();
        if window.len() == WINDOW_ENTRIES || (bytes > WINDOW_BYTES && !window.is_empty()) {
            return Ok((window, lsn + 1));
        }
        window.push_front((lsn, decode_of(log, lsn, &record)?));
    }
    Ok((window, lsns.start))
}

/// Returns the smallest LSN in a range whose live entry has an id of at least `id`, or the end of
/// the range if there is none. `gone` has the LSNs without a live entry. Cost: a binary search with
/// one read for each step.
///
/// Only the ids of live entries rise with the LSNs: after an XSETID, the id of a deleted entry can
/// be used again.
fn lower_bound(log: &Log, lsns: Range<u64>, gone: &LsnSet, id: StreamId) -> Result<u64> {
    let live_from = |lsn: u64, end: u64| Some(gone.next_absent(lsn)).filter(|lsn| *lsn < end);
    let (mut low, mut high) = (lsns.start, lsns.end);
    // The first entry of the range is often the result, because callers know a lower bound.
    if let Some(first) = live_from(low, high) {
        if read_record(log, first)?.id >= id {
            return Ok(first);
        }
        low = first + 1;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        match live_from(middle, high) {
            None => high = middle,
            Some(lsn) if read_record(log, lsn)?.id < id => low = lsn + 1,
            Some(_) => high = middle,
        }
    }
    Ok(live_from(low, lsns.end).unwrap_or(lsns.end))
}

/// Reads the record of a live entry.
fn read_record(log: &Log, lsn: u64) -> Result<Record> {
    decode_of(log, lsn, &log.read(lsn)?.ok_or_else(|| lost(log, lsn))?)
}

/// Decodes the record of an entry. An error names log and LSN, which lead to the record.
fn decode_of(log: &Log, lsn: u64, record: &Bytes) -> Result<Record> {
    decode_record(record).map_err(|e| e.context(format!("LSN {lsn} of log {}", log.name())))
}

/// Finds the LSNs of live entries by their ids. Cost: a sequential read for ids that are close
/// together, and a binary search for each other id.
fn locate(live: &LiveRange, ids: &BTreeSet<StreamId>) -> Result<BTreeMap<StreamId, u64>> {
    let (log, end) = (&live.log, live.lsns.end);
    let mut located = BTreeMap::new();
    let mut walk = log.iter(live.lsns.start);
    let mut next: Option<(u64, StreamId)> = None;
    for id in ids {
        let mut steps = 0;
        loop {
            let (lsn, found) = match next {
                Some(next) => next,
                None => match walk.next().transpose()?.filter(|(lsn, _)| *lsn < end) {
                    Some((lsn, record)) => (lsn, decode_of(log, lsn, &record)?.id),
                    None => return Ok(located),
                },
            };
            next = None;
            steps += 1;
            // The ids of deleted entries say nothing about those of the entries after them.
            if live.gone.contains(lsn) {
                if steps >= SEQUENTIAL_ENTRIES {
                    walk.seek(live.gone.next_absent(lsn));
                }
                continue;
            }
            if found >= *id {
                next = Some((lsn, found));
                if found == *id {
                    located.insert(*id, lsn);
                }
                break;
            }
            if steps == SEQUENTIAL_ENTRIES {
                walk.seek(lower_bound(log, lsn + 1..end, &live.gone, *id)?);
            }
        }
    }
    Ok(located)
}

fn fetch(
    log: &Log,
    lsns: &BTreeSet<u64>,
    limit_bytes: usize,
) -> Result<Option<BTreeMap<u64, Record>>> {
    let (mut records, mut bytes) = (BTreeMap::new(), 0);
    for lsn in lsns {
        if bytes > limit_bytes {
            return Ok(None);
        }
        let record = read_record(log, *lsn)?;
        bytes += record.body.len();
        records.insert(*lsn, record);
    }
    Ok(Some(records))
}

fn read(
    live: &LiveRange,
    newest: Vec<LiveEntry>,
    range: &EntryRange,
    limit_bytes: usize,
) -> Result<Vec<LiveEntry>> {
    let LiveRange {
        log, lsns, gone, ..
    } = live;
    let lsns = range.from_lsn.clamp(lsns.start, lsns.end)..lsns.end;
    let from = lower_bound(log, lsns.clone(), gone, range.start)?;
    let to = match range.end.next() {
        Some(after) => lower_bound(log, from..lsns.end, gone, after)?,
        None => lsns.end,
    };
    let (mut out, mut bytes) = (Vec::new(), 0);
    let mut add = |lsn: u64, record: Record| {
        bytes += record.body.len();
        out.push((lsn, record));
        out.len() as u64 == range.count || bytes > limit_bytes
    };
    let is_in = |entry: &LiveEntry| (range.start..=range.end).contains(&entry.1.id);
    let newest = newest.into_iter().filter(is_in);
    if range.reverse {
        for (lsn, record) in newest.rev() {
            if add(lsn, record) {
                return Ok(out);
            }
        }
        if from == to {
            return Ok(out);
        }
        for found in log.iter_back(to - 1) {
            let (lsn, record) = found?;
            if lsn < from || (!gone.contains(lsn) && add(lsn, decode_of(log, lsn, &record)?)) {
                break;
            }
        }
        return Ok(out);
    }
    for found in log.iter(from) {
        let (lsn, record) = found?;
        if lsn >= to {
            break;
        }
        if !gone.contains(lsn) && add(lsn, decode_of(log, lsn, &record)?) {
            return Ok(out);
        }
    }
    for (lsn, record) in newest {
        if add(lsn, record) {
            return Ok(out);
        }
    }
    Ok(out)
}

/// Removes records from logs.
fn remove(store: &dyn Store, removals: &[Removal]) -> Result<()> {
    // A durable removal must not outlive the record or the tombstone that justifies it.
    store.sync()?;
    for Removal {
        log, up_to, runs, ..
    } in removals
    {
        let trimmed = up_to.map_or(Ok(()), |up_to| log.trim(up_to, &WriteOptions::default()));
        let removed = runs.iter().cloned().try_for_each(|run| log.remove(run));
        for result in [trimmed, removed] {
            match result {
                // The stream was deleted meanwhile.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    Ok(())
}
