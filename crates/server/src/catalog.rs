//! The catalog of a store of Redis keys, held against the keys: which layout they have, and which
//! generation is the current one.
//!
//! Its records are three of the store's entries, and can be lost with a damaged table while keys
//! are left. A store without its layout record would then look empty, and one whose generation
//! record is older than its keys would show what was flushed and hide what was written since.
//! Promise: neither passes for a sound one. [`read`] refuses it, and [`mend`] makes the records
//! anew from the keys that are left. What cannot be repaired from the keys, that an older
//! generation is current because no key of the newer one is left, is for [`mend`] to say where a
//! repair may have lost the record.

use crate::layout::{self, CURSOR_END, ELEMENTS_FAMILY, KEYS_FAMILY, LEAST_MIN_BLOB_SIZE};
use basalt::{
    CompactionFilter, Db, Error, ErrorKind, Family, FilterContext, FilterDecision, KeyDecision,
    Options, ReadOptions, Result, WriteBatch, WriteOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The one database served so far.
pub(crate) const DATABASE: u16 = 0;
/// How many deleted or expired entries are passed over in search of a key: so many tell as much.
const SEARCH: u64 = 1000;
/// More cursors than are ever given out between two repairs.
const CURSORS_LOST: u64 = 1 << 44;

/// What the records say, and what the keys say.
struct CatalogContents {
    layout: bool,
    /// The record of the current generation; 0 without one.
    generation: u32,
    /// A generation after that, of which there are keys: the highest.
    later: Option<u32>,
    /// There is a key.
    keys: bool,
    cursor: Option<u64>,
}

/// Looks at the records and the keys. With `lenient`, a record that cannot be read counts as none.
fn read_contents(db: &Db, keys: &Family, lenient: bool) -> Result<CatalogContents> {
    let get = |key: &[u8]| db.get(keys, key, &ReadOptions::default());
    let layout = match get(&layout::layout_key())? {
        Some(record) => match layout::check_layout(&record) {
            Err(e) if lenient && e.is_corruption() => false,
            checked => checked.map(|()| true)?,
        },
        None => false,
    };
    let generation = match get(&layout::generation_key(DATABASE))? {
        Some(record) => match layout::decode_generation(&record) {
            Err(e) if lenient && e.is_corruption() => 0,
            decoded => decoded?,
        },
        None => 0,
    };
    let cursor = match get(&layout::cursor_key())? {
        Some(record) => match layout::decode_cursor(&record) {
            Err(e) if lenient && e.is_corruption() => None,
            decoded => Some(decoded?),
        },
        None => None,
    };
    // Only beyond what the record says: keys of flushed generations must not stand in front of
    // deleted ones of a later one.
    let later = match generation.checked_add(1) {
        Some(next) => last_key(db, keys, next)?,
        None => None,
    };
    Ok(CatalogContents {
        layout,
        generation,
        later: later.and_then(|key| Some(layout::decode_key(&key)?.1)),
        keys: last_key(db, keys, 0)?.is_some(),
        cursor,
    })
}

/// The last key of the generations from this one on; one that is deleted, when many are.
fn last_key(db: &Db, keys: &Family, generation: u32) -> Result<Option<Vec<u8>>> {
    let mut it = db.iter(
        keys,
        &ReadOptions {
            lower_bound: Some(layout::key_prefix(DATABASE, generation).to_vec()),
            upper_bound: Some(layout::key_prefix(DATABASE + 1, 0).to_vec()),
            keys_only: true,
            fill_cache: false,
            max_skippable_entries: SEARCH,
            ..ReadOptions::default()
        },
    )?;
    it.seek_to_last()?;
    Ok(match it.resume_key() {
        Some(passed) => Some(passed.to_vec()),
        None => it.valid().then(|| it.key().to_vec()),
    })
}

/// The current generation of the database, or `None` in a family that never had a Redis key.
///
/// Errors: `Corruption` when a record of the catalog is lost while keys are left; `Unsupported` for
/// the layout of a later version; what reads meet.
pub fn read(db: &Db, keys: &Family) -> Result<Option<u32>> {
    let found = read_contents(db, keys, false)?;
    let lost = |what: String| {
        Err(Error::new(
            ErrorKind::Corruption,
            format!(
                "the catalog of Redis keys {what}: it was lost with a damaged file; nothing is shown or written before `basalt repair` has made it anew"
            ),
        ))
    };
    match (found.layout, found.later) {
        (false, _) if found.keys || found.cursor.is_some() || found.generation > 0 => {
            lost("has no record of the layout, and there are keys".into())
        }
        (false, _) => Ok(None),
        (true, Some(later)) => lost(format!(
            "says that generation {} is the current one, and there are keys of generation {later}",
            found.generation
        )),
        (true, None) => Ok(Some(found.generation)),
    }
}

/// Writes the layout record into a family that has none, durably.
pub fn make(db: &Db, keys: &Family) -> Result<()> {
    let (key, record) = (layout::layout_key(), layout::encode_layout());
    db.put(keys, &key, &record, &WriteOptions::SYNC)?;
    Ok(())
}

/// Makes lost records anew, durably. A sentence for each of them, for people. `doubtful` says that
/// records may have been lost of which nothing that is left speaks.
///
/// The current generation is then the highest of which a key is left. When nothing was written
/// after the last flush, that is the one that was flushed, and what of it was not yet dropped is
/// there again.
pub fn repair(db: &Db, keys: &Family, doubtful: bool) -> Result<Vec<String>> {
    const AGAIN: &str =
        "if nothing was written after the last FLUSHALL, keys that it removed are there again";
    let found = read_contents(db, keys, true)?;
    let mut repaired = Vec::new();
    if !found.layout && !found.keys && found.cursor.is_none() && found.generation == 0 {
        return Ok(repaired);
    }
    let mut batch = WriteBatch::new();
    if !found.layout {
        batch.put(keys, &layout::layout_key(), &layout::encode_layout())?;
        repaired.push("the record of the layout of Redis keys; it is written anew".into());
    }
    if let Some(later) = found.later {
        let record = later.to_le_bytes();
        batch.put(keys, &layout::generation_key(DATABASE), &record)?;
        repaired.push(format!(
            "the record of the current generation of Redis keys; {later}, the highest that is left, takes its place, and {AGAIN}"
        ));
    } else if !found.layout || doubtful {
        repaired.push(format!(
            "perhaps the record of the current generation of Redis keys; {AGAIN}"
        ));
    }
    if !repaired.is_empty() {
        // No client may still have a cursor that a scan is given again.
        let next = found.cursor.unwrap_or(0).max(CURSOR_END / 2) + CURSORS_LOST;
        let record = next.min(CURSOR_END).to_le_bytes();
        batch.put(keys, &layout::cursor_key(), &record)?;
        db.write(batch, &WriteOptions::SYNC)?;
    }
    Ok(repaired)
}

/// From which generation on keys are kept by compactions: those before were flushed. It only ever
/// learns of generations whose record is durable, so a flush that a crash takes back has lost
/// nothing.
#[derive(Clone, Default)]
pub struct Retired(Arc<AtomicU32>);

impl Retired {
    /// Adds what the families of Redis keys need to the options that a store is opened with for
    /// writing: without it flushed keys stay until the server's own compactions meet them.
    pub fn add_to(&self, mut options: Options) -> Options {
        for name in [KEYS_FAMILY, ELEMENTS_FAMILY] {
            let mut family = options.family(name).clone();
            family.compaction_filter = Some(Arc::new(self.clone()));
            family.min_blob_size = (family.min_blob_size).map(|n| n.max(LEAST_MIN_BLOB_SIZE));
            options.families.insert(name.to_string(), family);
        }
        options
    }

    /// Compactions may drop what is older than this generation, whose record is durable.
    pub fn below(&self, generation: u32) {
        self.0.fetch_max(generation, Ordering::AcqRel);
    }

    /// True for a key of a generation that was flushed.
    fn drops(&self, key: &[u8]) -> bool {
        matches!(layout::decode_key(key), Some((DATABASE, generation, _)) if generation < self.generation())
    }

    /// The generation last repaired.
    pub(crate) fn generation(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

impl CompactionFilter for Retired {
    fn name(&self) -> &str {
        "redis.generations"
    }
    fn filter_key(&self, _: &FilterContext<'_>, key: &[u8]) -> Option<KeyDecision> {
        // No value is read for it.
        Some(match self.drops(key) {
            true => KeyDecision::Remove,
            false => KeyDecision::Keep,
        })
    }
    fn filter(&self, _: &FilterContext<'_>, key: &[u8], _: &[u8]) -> FilterDecision {
        match self.drops(key) {
            true => FilterDecision::Remove,
            false => FilterDecision::Keep,
        }
    }
}

#[cfg(test)]
mod tests;
