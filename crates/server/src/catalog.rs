//! The catalog of a store of Redis keys, checked against the keys: their layout, and the current
//! generation.
//!
//! The catalog's records are three entries of the store. A damaged table can lose them while keys
//! remain. A store without its layout record would then look empty. A store whose generation record
//! is older than its keys would show flushed keys and hide newer ones. Promise: neither store
//! passes for a sound one. [`read`] refuses it, and [`repair`] rebuilds the records from the
//! remaining keys. The keys cannot show that an older generation is current because no key of the
//! newer one remains. So [`repair`] reports that case if it may have lost the record.

use crate::layout::{self, CURSOR_END, ELEMENTS_FAMILY, KEYS_FAMILY, LEAST_MIN_BLOB_SIZE};
use basalt::{
    CompactionFilter, Db, Error, ErrorKind, Family, FilterContext, FilterDecision, KeyDecision,
    Options, ReadOptions, Result, WriteBatch, WriteOptions,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The one database served so far.
pub(crate) const DATABASE: u16 = 0;
/// Deleted or expired entries that a search for a key skips before it assumes that a key exists.
const SEARCH: u64 = 1000;
/// Cursors that are skipped after a repair: more than are ever given out between two repairs.
const CURSORS_LOST: u64 = 1 << 44;

/// The content of the records, and what the keys show.
struct CatalogContents {
    layout: bool,
    /// The generation in the record of the current generation, or 0 without one.
    generation: u32,
    /// The highest later generation that has keys.
    later: Option<u32>,
    /// True if a key exists.
    keys: bool,
    cursor: Option<u64>,
}

/// Reads the records and looks for keys. With `lenient`, a record that cannot be read counts as
/// missing.
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
    // The search begins behind the recorded generation: keys of flushed generations must not hide
    // deleted ones of a later generation.
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

/// Returns the last key of this generation and later ones. After many deleted keys, the result may
/// be a deleted key.
fn last_key(db: &Db, keys: &Family, generation: u32) -> Result<Option<Vec<u8>>> {
    let mut it = db.iter(
        keys,
        &ReadOptions::default()
            .lower_bound(Some(layout::key_prefix(DATABASE, generation).to_vec()))
            .upper_bound(Some(layout::key_prefix(DATABASE + 1, 0).to_vec()))
            .keys_only(true)
            .fill_cache(false)
            .max_skippable_entries(SEARCH),
    )?;
    it.seek_to_last()?;
    Ok(match it.resume_key() {
        Some(passed) => Some(passed.to_vec()),
        None => it.valid().then(|| it.key().to_vec()),
    })
}

/// Returns the current generation of the database, or `None` in a family that never had a Redis
/// key.
///
/// Errors: `Corruption` if a record of the catalog is lost while keys remain; `Unsupported` for the
/// layout of a later version; errors of reads.
pub fn read(db: &Db, keys: &Family) -> Result<Option<u32>> {
    let found = read_contents(db, keys, false)?;
    let lost = |what: String| {
        Err(Error::new(
            ErrorKind::Corruption,
            format!(
                "the catalog of Redis keys {what}: it was lost with a damaged file; reads and writes fail until `basalt repair` has rebuilt it"
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

/// Rebuilds lost records, durably. Returns a sentence for people about each of them. `doubtful`
/// says that records may be lost without a trace.
///
/// The current generation is then the highest one that has a key. If nothing was written after the
/// last flush, that is the flushed generation, and its keys that were not dropped yet exist again.
pub fn repair(db: &Db, keys: &Family, doubtful: bool) -> Result<Vec<String>> {
    const AGAIN: &str =
        "if nothing was written after the last FLUSHALL, keys that it removed show again";
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
        // No client may have a cursor that a scan is given again.
        let next = found.cursor.unwrap_or(0).max(CURSOR_END / 2) + CURSORS_LOST;
        let record = next.min(CURSOR_END).to_le_bytes();
        batch.put(keys, &layout::cursor_key(), &record)?;
        db.write(batch, &WriteOptions::SYNC)?;
    }
    Ok(repaired)
}

/// The oldest generation that compactions keep: earlier ones were flushed. It rises only to
/// generations whose record is durable, so a flush that a crash undoes has lost nothing.
#[derive(Clone, Default)]
pub struct Retired(Arc<AtomicU32>);

impl Retired {
    /// Adds the compaction filter of Redis keys to the options of a store that is opened for
    /// writing. Without it, flushed keys stay until the server's own compactions reach them.
    pub fn add_to(&self, mut options: Options) -> Options {
        for name in [KEYS_FAMILY, ELEMENTS_FAMILY] {
            let mut family = options.family(name).clone();
            family.compaction_filter = Some(Arc::new(self.clone()));
            family.min_blob_size = (family.min_blob_size).map(|n| n.max(LEAST_MIN_BLOB_SIZE));
            options.families.insert(name.to_string(), family);
        }
        options
    }

    /// Allows compactions to drop the generations before this one, whose record is durable.
    pub fn below(&self, generation: u32) {
        self.0.fetch_max(generation, Ordering::AcqRel);
    }

    /// Returns true for a key of a flushed generation.
    fn drops(&self, key: &[u8]) -> bool {
        matches!(layout::decode_key(key), Some((DATABASE, generation, _)) if generation < self.generation())
    }

    /// Returns the current generation, as last set.
    pub(crate) fn generation(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

impl CompactionFilter for Retired {
    fn name(&self) -> &str {
        "redis.generations"
    }
    fn filter_key(&self, _: &FilterContext<'_>, key: &[u8]) -> Option<KeyDecision> {
        // The filter reads no value.
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
