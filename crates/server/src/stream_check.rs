//! The check that every stream has its log.
//!
//! The key of a stream is in the tables, and its entries are in a log. If damage has taken the log,
//! or its name, the tables and the logs are each sound, and clients cannot read the stream.

use crate::catalog::{self, DATABASE};
use crate::layout::{self, DataType};
use crate::stream::jobs::log_name;
use crate::stream::record::decode_state;
use basalt::{Db, Family, ReadOptions, Result};

/// A stream whose key exists and whose log does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamWithoutLog {
    /// The Redis key.
    pub key: Vec<u8>,
    /// The name that the log must have.
    pub log: String,
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
        if let (Some((header, _)), Some((_, _, key))) = (header, layout::decode_key(it.key())) {
            let log = log_name(header.incarnation);
            if !has_log(&log) {
                let key = key.to_vec();
                found.push(StreamWithoutLog { key, log });
            }
        }
        it.next()?;
    }
    Ok(found)
}
