//! What the store of a log and its readers share.

use crate::codec::decode;
use crate::tail::Tail;
use basalt::env::sync::Mutex;
use basalt::{Error, Result};
use basalt_log::{Log, LogEngine};
use openraft::{LogId, RaftLogId, RaftTypeConfig};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;

/// Reports the result of an append.
pub(crate) type Flushed = Box<dyn FnOnce(Result<()>) + Send>;

/// What a log store shares with its readers.
pub(crate) struct LogShared<C: RaftTypeConfig> {
    pub engine: LogEngine,
    pub entries: Log,
    pub hard_state: Log,
    pub state: Mutex<LogState<C>>,
}

/// What a log has, and which appends are not acknowledged yet.
pub(crate) struct LogState<C: RaftTypeConfig> {
    pub tail: Tail,
    /// Index of the first entry. It follows the purged one if there is one.
    pub first: u64,
    /// Id of the last entry, or the purged one if there is no entry.
    pub last: Option<LogId<C::NodeId>>,
    pub purged: Option<LogId<C::NodeId>>,
    /// Purged log id that is not on disk yet.
    pub pending_purge: Option<LogId<C::NodeId>>,
    pub committed: Option<LogId<C::NodeId>>,
    /// Number of the next append.
    pub next_append: u64,
    /// Appends that are not acknowledged, by number; with the result once there is one.
    pub in_flight: BTreeMap<u64, (Flushed, Option<Result<()>>)>,
    /// Error of the first append that failed. All later appends fail with it.
    pub failure: Option<Error>,
}

/// Returns a record of the state log, or `None` if it was never written.
pub(crate) fn read_record<T: DeserializeOwned>(log: &Log, lsn: u64) -> Result<Option<T>> {
    let Some(bytes) = log.read(lsn)? else {
        return Ok(None);
    };
    let value = decode(&bytes).map_err(|what| undecodable(log, lsn, what))?;
    Ok(Some(value))
}

/// Returns the entry at an index that the log has.
pub(crate) fn read_entry<C: RaftTypeConfig>(log: &Log, index: u64) -> Result<C::Entry> {
    let bytes = log.read(index)?.ok_or_else(|| missing(log, index))?;
    decode_entry::<C>(log, index, &bytes)
}

/// Returns an encoded entry, which must have this index.
pub(crate) fn decode_entry<C: RaftTypeConfig>(
    log: &Log,
    index: u64,
    bytes: &[u8],
) -> Result<C::Entry> {
    let entry: C::Entry = decode(bytes).map_err(|what| undecodable(log, index, what))?;
    match entry.get_log_id().index == index {
        true => Ok(entry),
        false => Err(undecodable(
            log,
            index,
            format!("the entry has index {}", entry.get_log_id().index),
        )),
    }
}

fn undecodable(log: &Log, lsn: u64, what: String) -> Error {
    let message = format!("LSN {lsn} of log {:?}: {what}", log.name());
    Error::corruption(Path::new(&*log.name()), 0, message)
}

/// Returns the error of an entry that the log should have.
pub(crate) fn missing(log: &Log, index: u64) -> Error {
    let message = format!(
        "log {:?} of a Raft node has no entry {index}; remove the node from its cluster, and add it again with an empty store",
        log.name()
    );
    Error::corruption(Path::new(&*log.name()), 0, message)
}
