//! Reads of streams that would hold the event loop: another thread creates logs, loads streams and
//! reads entries that are not in memory.

use super::StreamId;
use super::loaded::{WINDOW_BYTES, WINDOW_ENTRIES};
use super::record::{Record, StreamState, decode_record, decode_state};
use crate::catalog::DATABASE;
use crate::layout::{self, DataType};
use crate::store::Store;
use basalt::log::{Log, LogOptions};
use basalt::{Bytes, Error, ErrorKind, Result, WriteOptions};
use std::collections::VecDeque;

/// The first part of the names of streams' logs.
pub(super) const LOG_PREFIX: &str = "redis.stream.";

/// Returns the name of a stream's log.
pub(super) fn log_name(incarnation: u64) -> String {
    format!("{LOG_PREFIX}{DATABASE}.{incarnation}")
}

/// A range of a stream's entries, to be read from its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryRange {
    pub start: StreamId,
    pub end: StreamId,
    pub reverse: bool,
    /// Largest number of entries.
    pub count: u64,
}

/// A read for a waiting request.
pub(crate) enum StreamJob {
    /// Creates the log of a new stream.
    Create,
    /// Loads the stream of a key, in the encoding of the store.
    Load { stored: Bytes, ticket: u64 },
    /// Reads entries with LSNs in `lsns`, and then or before those of the window in `newest`.
    Read {
        log: Log,
        load: u64,
        lsns: std::ops::Range<u64>,
        newest: Vec<Record>,
        range: EntryRange,
        /// Bytes of entries from which on no further one is read.
        limit_bytes: usize,
    },
    /// Finds the smallest LSN in `lsns` whose id is at least `id`, or the end of `lsns`.
    Find {
        log: Log,
        load: u64,
        lsns: std::ops::Range<u64>,
        id: StreamId,
    },
    /// Removes the records up to an LSN, after the records behind it are durable.
    Trim(Vec<(Log, u64)>),
}

/// A stream as it was loaded.
pub(crate) struct LoadedParts {
    pub incarnation: u64,
    pub expire_at_ms: Option<u64>,
    pub log: Log,
    pub state: StreamState,
    /// True if the key counts entries that a power cut has taken.
    pub key_is_ahead: bool,
    pub window: VecDeque<Record>,
}

/// The result of a [`StreamJob`].
pub(crate) enum StreamAnswer {
    Created(Result<(u64, Log)>),
    /// `None` if the key has no stream any more.
    Loaded {
        key: Bytes,
        ticket: u64,
        result: Result<Option<LoadedParts>>,
    },
    Entries {
        load: u64,
        range: EntryRange,
        result: Result<Vec<Record>>,
    },
    Found {
        load: u64,
        id: StreamId,
        result: Result<u64>,
    },
    Trimmed(Result<()>),
}

/// Runs a job. Blocks.
pub(crate) fn run(store: &dyn Store, job: StreamJob) -> StreamAnswer {
    match job {
        StreamJob::Create => StreamAnswer::Created(create(store)),
        StreamJob::Load { stored, ticket } => StreamAnswer::Loaded {
            result: load(store, &stored),
            key: stored.slice(layout::KEY_PREFIX_LEN..),
            ticket,
        },
        StreamJob::Read {
            log,
            load,
            lsns,
            newest,
            range,
            limit_bytes,
        } => StreamAnswer::Entries {
            result: read(&log, lsns, newest, &range, limit_bytes),
            load,
            range,
        },
        StreamJob::Find {
            log,
            load,
            lsns,
            id,
        } => StreamAnswer::Found {
            result: lower_bound(&log, lsns, id),
            load,
            id,
        },
        StreamJob::Trim(trims) => StreamAnswer::Trimmed(trim(store, &trims)),
    }
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

fn load(store: &dyn Store, stored: &[u8]) -> Result<Option<LoadedParts>> {
    let Some(value) = store.get(stored)? else {
        return Ok(None);
    };
    if value.data_type != DataType::Stream {
        return Ok(None);
    }
    let (header, mut state) = decode_state(&value.data)?;
    let log = store.logs()?.log(&log_name(header.incarnation))?;
    if let Some(last) = log.last().filter(|last| *last >= state.next_lsn) {
        let record = log.read(last)?.ok_or_else(|| lost(&log, last))?;
        let record = decode_record(&record)?;
        state.last_id = record.id.max(state.last_id);
        state.entries_added = record.entries_added;
        state.first_lsn = record.first_lsn.max(state.first_lsn);
        state.next_lsn = last + 1;
    }
    // A power cut may have taken entries that the key counts, if they were not synced.
    let end = log.last().map_or(1, |last| last + 1);
    let key_is_ahead = end < state.next_lsn;
    if key_is_ahead {
        state.next_lsn = end.max(state.first_lsn);
    }
    let (mut window, mut bytes) = (VecDeque::new(), 0);
    for entry in log.iter_back(state.next_lsn - 1) {
        let (lsn, record) = entry?;
        let is_next = lsn + window.len() as u64 + 1 == state.next_lsn;
        if lsn < state.first_lsn || window.len() == WINDOW_ENTRIES || !is_next {
            break;
        }
        bytes += record.len();
        if bytes > WINDOW_BYTES && !window.is_empty() {
            break;
        }
        window.push_front(decode_record(&record)?);
    }
    Ok(Some(LoadedParts {
        incarnation: header.incarnation,
        expire_at_ms: value.expire_at_ms,
        log,
        state,
        key_is_ahead,
        window,
    }))
}

/// Returns the entry of an LSN that must be there.
fn entry(log: &Log, lsn: u64) -> Result<Record> {
    decode_record(&log.read(lsn)?.ok_or_else(|| lost(log, lsn))?)
}

/// Returns the smallest LSN in a range whose id is at least `id`, or the end of the range. Costs a
/// read for each halving of the range.
fn lower_bound(log: &Log, lsns: std::ops::Range<u64>, id: StreamId) -> Result<u64> {
    let (mut low, mut high) = (lsns.start, lsns.end);
    while low < high {
        let middle = low + (high - low) / 2;
        match entry(log, middle)?.id < id {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(low)
}

fn read(
    log: &Log,
    lsns: std::ops::Range<u64>,
    newest: Vec<Record>,
    range: &EntryRange,
    limit_bytes: usize,
) -> Result<Vec<Record>> {
    let from = lower_bound(log, lsns.clone(), range.start)?;
    let to = match range.end.next() {
        Some(behind) => lower_bound(log, from..lsns.end, behind)?,
        None => lsns.end,
    };
    let (mut out, mut bytes) = (Vec::new(), 0);
    let mut add = |record: Record| {
        bytes += record.body.len();
        out.push(record);
        out.len() as u64 == range.count || bytes > limit_bytes
    };
    let is_in = |record: &Record| (range.start..=range.end).contains(&record.id);
    let newest = newest.into_iter().filter(is_in);
    if range.reverse {
        for record in newest.rev() {
            if add(record) {
                return Ok(out);
            }
        }
        for found in log
            .iter_back(to.saturating_sub(1))
            .take((to - from) as usize)
        {
            if add(decode_record(&found?.1)?) {
                return Ok(out);
            }
        }
        return Ok(out);
    }
    for found in log.iter(from).take((to - from) as usize) {
        if add(decode_record(&found?.1)?) {
            return Ok(out);
        }
    }
    for record in newest {
        if add(record) {
            return Ok(out);
        }
    }
    Ok(out)
}

/// Removes the records of logs up to an LSN.
fn trim(store: &dyn Store, trims: &[(Log, u64)]) -> Result<()> {
    // A durable trim must not outlive the record that justifies it.
    store.sync()?;
    for (log, up_to) in trims {
        match log.trim(*up_to, &WriteOptions::default()) {
            // The stream was deleted meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}
