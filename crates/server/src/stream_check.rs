//! The check that every stream has its log.
//!
//! The key of a stream is in the tables, and its entries are in a log. If damage has taken the log,
//! or its name, the tables and the logs are each sound, and clients cannot read the stream.

use crate::catalog::{self, DATABASE};
use crate::layout::{self, DataType};
use crate::stream::jobs::log_name;
use crate::stream::record::{StreamState, decode_record, decode_state};
use basalt::log::Log;
use basalt::{Db, Error, Family, ReadOptions, Result};

/// A stream whose key exists and whose log does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamWithoutLog {
    /// The Redis key.
    pub key: Vec<u8>,
    /// The name that the log must have.
    pub log: String,
    /// The state of the stream, as its key has it. The last records of the log may be newer.
    state: StreamState,
}

impl StreamWithoutLog {
    /// Returns the ids of the first and the last readable entry of a log, as clients write them.
    ///
    /// Errors: those of reads.
    pub fn ids(log: &Log) -> Result<Option<(String, String)>> {
        let id = |lsn: Option<u64>| -> Result<Option<String>> {
            let record = lsn.map(|lsn| log.read(lsn)).transpose()?.flatten();
            let entry = record.and_then(|record| decode_record(&record).ok());
            Ok(entry.map(|entry| entry.id.to_string()))
        };
        Ok(id(log.first())?.zip(id(log.last())?))
    }

    /// Returns the first difference that shows that `log` is not the log of this stream, or `None`.
    /// The records of the stream's own log are entries. The key has the id of the last entry at the
    /// time when the key was written, and the log has this entry, unless it was removed later.
    ///
    /// Errors: those of reads.
    pub fn difference(&self, log: &Log) -> Result<Option<String>> {
        for lsn in [log.first(), log.last()].into_iter().flatten() {
            if let Some(Err(e)) = log.read(lsn)?.map(|record| decode_record(&record)) {
                return Ok(Some(no_entry(lsn, &e)));
            }
        }
        // XADD does not write the key, so the key of a stream with entries may name none.
        let lsn = self.state.next_lsn - 1;
        let end = log.last().max(log.trimmed()).unwrap_or(0);
        if end < lsn {
            return Ok(Some(format!(
                "the stream has had entries up to LSN {lsn}, and the log ends at LSN {end}"
            )));
        }
        let record = match lsn {
            0 => None,
            _ => log.read(lsn)?,
        };
        let Some(record) = record else {
            return Ok(None);
        };
        let expected = self.state.last_id;
        Ok(match decode_record(&record) {
            // XSETID raises the last id of the key without an entry.
            Ok(entry) if entry.id <= expected => None,
            Ok(entry) => Some(format!(
                "the entry at LSN {lsn} has the id {}, and the last id of the stream was {expected}",
                entry.id
            )),
            Err(e) => Some(no_entry(lsn, &e)),
        })
    }
}

fn no_entry(lsn: u64, e: &Error) -> String {
    format!("the record at LSN {lsn} is no entry of a stream: {e}")
}

/// Returns the streams whose logs do not exist, in the order of their keys. `has_log` says whether
/// there is a log of a name. Keys whose values cannot be decoded are left out. Costs a walk over
/// all keys, without long values.
///
/// Errors: those of reads; `Corruption` and `Unsupported` of the catalog of Redis keys.
pub fn streams_without_log(
    db: &Db,
    keys: &Family,
    has_log: &dyn Fn(&str) -> bool,
) -> Result<Vec<StreamWithoutLog>> {
    let mut found = Vec::new();
    let Some(generation) = catalog::read(db, keys)? else {
        return Ok(found);
    };
    let prefix = layout::key_prefix(DATABASE, generation);
    let options = ReadOptions::default()
        .lower_bound(Some(prefix.to_vec()))
        .upper_bound(Some(layout::prefix_end(&prefix)))
        .keys_only(true)
        .fill_cache(false);
    let mut it = db.iter(keys, &options)?;
    it.seek_to_first()?;
    while it.valid() {
        let header = it.value_at_hand().and_then(|value| {
            let state = value.strip_prefix(&[DataType::Stream as u8])?;
            decode_state(state).ok()
        });
        if let (Some((header, state)), Some((_, _, key))) = (header, layout::decode_key(it.key())) {
            let log = log_name(header.incarnation);
            if !has_log(&log) {
                let key = key.to_vec();
                found.push(StreamWithoutLog { key, log, state });
            }
        }
        it.next()?;
    }
    Ok(found)
}
