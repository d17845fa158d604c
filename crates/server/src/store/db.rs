//! The engines as the store of the server: tables for keys, and logs for entries of streams.

use super::appends::append;
use super::encoder::{Encoder, Families};
use super::{
    Append, CURSOR_BLOCK, CommitCallback, ElementVisitor, EntryVisitor, INCARNATION_BLOCK, Store,
    StoreView, Write,
};
use crate::catalog::{self, DATABASE, Retired};
use crate::layout::{self, DataType, ELEMENTS_FAMILY, KEYS_FAMILY, STRING_HEADER};
use crate::options::fit_families;
use crate::value::{Known, Meta, Value};
use basalt::log::LogEngine;
use basalt::{
    Bytes, Db, Env, Error, Family, Options, ReadOptions, Result, Snapshot, StoreOptions,
    TreeOptions, WriteBatch, WriteOptions,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::path::Path;

/// The engines as the server's store. The log engine is made when the first stream is created, so
/// older builds open a store without streams.
pub(crate) struct DbStore {
    engines: basalt::Store,
    db: Db,
    keys: Family,
    elements: Family,
    retired: Retired,
    encoder: Encoder,
    /// Incarnation numbers that are reserved and not given out.
    incarnations: Mutex<Range<u64>>,
}

impl DbStore {
    /// Opens the store in `dir`, and makes missing families and a missing catalog. The options are
    /// fitted to the families that are there. Fails with
    /// `Corruption` if a part of the catalog is lost.
    pub fn open(env: &Env, dir: &Path, options: Options) -> Result<DbStore> {
        let retired = Retired::default();
        // A manifest that cannot be read changes no options: the open below reports the cause.
        let found = Db::families_of_closed(env, dir).unwrap_or_default();
        let options = fit_families(options, &found, &TreeOptions::default());
        let options = retired.add_to(options);
        let all = StoreOptions::default().tables(options.clone());
        let engines = basalt::Store::open(env, dir, all)?;
        let db = engines.db().clone();
        let keys = ensure_family(&db, KEYS_FAMILY, &options)?;
        let elements = ensure_family(&db, ELEMENTS_FAMILY, &options)?;
        match catalog::read(&db, &keys)? {
            Some(generation) => retired.below(generation),
            None => catalog::make(&db, &keys)?,
        }
        let families = Families {
            keys: keys.clone(),
            elements: elements.clone(),
        };
        let encoder = Encoder::new(db.clone(), families);
        Ok(DbStore {
            engines,
            db,
            keys,
            elements,
            retired,
            encoder,
            incarnations: Mutex::new(0..0),
        })
    }

    fn string(found: Result<Option<Bytes>>) -> Result<Option<Bytes>> {
        match found? {
            Some(v) if layout::value_type(&v)? == DataType::String => Ok(Some(v.slice(1..))),
            _ => Ok(None),
        }
    }

    pub(super) fn decode(value: Bytes, expire_at_ms: Option<u64>) -> Result<Value> {
        Ok(Value {
            data_type: layout::value_type(&value)?,
            expire_at_ms: layout::expiry_of(&value, expire_at_ms)?,
            data: value.slice(1..),
        })
    }
}

fn ensure_family(db: &Db, name: &str, options: &Options) -> Result<Family> {
    match db.family(name) {
        Some(f) => Ok(f),
        None => db.create_family(name, options.family(name).clone()),
    }
}

impl Store for DbStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        match self
            .db
            .get_with_expiry(&self.keys, key, &ReadOptions::default())?
        {
            Some(v) => DbStore::decode(v.value, v.expire_at_ms).map(Some),
            None => Ok(None),
        }
    }

    fn get_strings(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        let list: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&self.keys, &k[..])).collect();
        self.db
            .multi_get_within(&list, &ReadOptions::default(), budget_bytes)
            .into_iter()
            .map(|answer| answer.map(DbStore::string))
            .collect()
    }

    fn get_within(&self, key: &[u8], budget_bytes: usize) -> Result<Option<Option<Value>>> {
        let options = ReadOptions::default();
        let found = (self.db).get_within(&self.keys, key, &options, budget_bytes)?;
        let Some(found) = found else { return Ok(None) };
        let value = found.map(|v| DbStore::decode(v.value, v.expire_at_ms));
        value.transpose().map(Some)
    }

    fn get_strings_up_to(
        &self,
        keys: &[Bytes],
        budget_bytes: usize,
    ) -> Vec<Option<Result<Option<Bytes>>>> {
        let list: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&self.keys, &k[..])).collect();
        self.db
            .multi_get_up_to(&list, &ReadOptions::default(), budget_bytes)
            .into_iter()
            .map(|answer| answer.map(DbStore::string))
            .collect()
    }

    fn get_meta(
        &self,
        key: &[u8],
        lengths: bool,
        budget_bytes: usize,
    ) -> Result<Option<Option<Known>>> {
        let options = ReadOptions::default();
        let found = match lengths {
            true => (self.db).get_len_within(&self.keys, key, &options, budget_bytes)?,
            false => Some(self.db.get_meta(&self.keys, key, &options)?),
        };
        let Some(found) = found else { return Ok(None) };
        let Some(found) = found else {
            return Ok(Some(None));
        };
        // No header of a collection is long enough to be separated.
        let data_type = found.inline.as_deref().map(layout::value_type);
        let expire_at_ms = match &found.inline {
            Some(value) => layout::expiry_of(value, found.expire_at_ms)?,
            None => found.expire_at_ms,
        };
        let meta = Meta {
            data_type: data_type.transpose()?.unwrap_or(DataType::String),
            expire_at_ms,
            len: found.len.map(|n| n.saturating_sub(STRING_HEADER.len())),
        };
        let data = found.inline.map(|v| v.slice(STRING_HEADER.len()..));
        Ok(Some(Some((meta, data))))
    }

    fn view(&self) -> Box<dyn StoreView> {
        Box::new(DbView {
            db: self.db.clone(),
            keys: self.keys.clone(),
            snapshot: self.db.snapshot(),
        })
    }

    fn elements(&self, prefix: &[u8], visit: &mut ElementVisitor<'_>) -> Result<()> {
        let options = ReadOptions::default()
            .lower_bound(Some(prefix.to_vec()))
            .upper_bound(Some(layout::prefix_end(prefix)))
            .fill_cache(false);
        let mut it = self.db.iter(&self.elements, &options)?;
        it.seek_to_first()?;
        while it.valid() {
            visit(it.key(), it.value())?;
            it.next()?;
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>, sync: bool, done: CommitCallback) {
        self.encoder.submit(writes, sync, done);
    }

    fn append(&self, appends: Vec<Append>, sync: bool, done: CommitCallback) {
        let Some(logs) = self.engines.existing_logs() else {
            return done(Err(Error::invalid("a store without logs has no streams")));
        };
        append(&logs, &appends, sync, done);
    }

    fn logs(&self) -> Result<LogEngine> {
        self.engines.logs()
    }

    fn existing_logs(&self) -> Option<LogEngine> {
        self.engines.existing_logs()
    }

    fn next_incarnation(&self) -> Result<u64> {
        let mut reserved = self.incarnations.lock();
        if let Some(n) = reserved.next() {
            return Ok(n);
        }
        let key = layout::incarnation_key();
        let first = match self.db.get(&self.keys, &key, &ReadOptions::default())? {
            Some(record) => layout::decode_incarnation(&record)?,
            None => 1,
        };
        let next = first
            .checked_add(INCARNATION_BLOCK)
            .ok_or_else(|| Error::unsupported("all 2^64 incarnation numbers were given out"))?;
        self.db
            .put(&self.keys, &key, &next.to_le_bytes(), &WriteOptions::SYNC)?;
        *reserved = first + 1..next;
        Ok(first)
    }

    fn remove_elements(&self, collections: &[(u32, u64)]) -> Result<bool> {
        let mut batch = WriteBatch::new();
        for (generation, incarnation) in collections {
            let from = layout::element_prefix(DATABASE, *generation, *incarnation);
            let to = layout::prefix_end(&from);
            let options = ReadOptions::default()
                .lower_bound(Some(from.to_vec()))
                .upper_bound(Some(to.clone()))
                .keys_only(true)
                .fill_cache(false);
            let mut it = self.db.iter(&self.elements, &options)?;
            it.seek_to_first()?;
            // A range tombstone slows later reads, so an empty range gets none.
            if it.valid() {
                batch.delete_range(&self.elements, &from, &to)?;
            }
        }
        let is_empty = batch.is_empty();
        if !is_empty {
            self.db.write(batch, &WriteOptions::UNSYNCED)?;
        }
        Ok(!is_empty)
    }

    fn sync(&self) -> Result<()> {
        self.engines.sync()
    }

    fn generation(&self) -> Result<u32> {
        let key = layout::generation_key(DATABASE);
        match self.db.get(&self.keys, &key, &ReadOptions::default())? {
            Some(record) => layout::decode_generation(&record),
            None => Ok(0),
        }
    }

    fn reserve_cursors(&self) -> Result<u64> {
        let key = layout::cursor_key();
        let first = match self.db.get(&self.keys, &key, &ReadOptions::default())? {
            Some(record) => layout::decode_cursor(&record)?,
            None => 1,
        };
        let next = first + CURSOR_BLOCK;
        if next > layout::CURSOR_END {
            return Err(Error::unsupported("all 2^53 cursor numbers were given out"));
        }
        self.db
            .put(&self.keys, &key, &next.to_le_bytes(), &WriteOptions::SYNC)?;
        Ok(first)
    }

    fn retire_below(&self, generation: u32) {
        self.retired.below(generation);
    }

    fn reclaim(&self) -> Result<()> {
        let current = self.retired.generation();
        let from = layout::key_prefix(DATABASE, 0);
        let to = layout::key_prefix(DATABASE, current);
        let mut left = false;
        self.view().scan(&from, &to, u64::MAX, &mut |_, _, _| {
            left = true;
            false
        })?;
        if left {
            self.db.compact_range(&self.keys, Some(&from), Some(&to))?;
        }
        Ok(())
    }

    fn checkpoint(&self, target: &Path) -> Result<()> {
        let made = self.engines.checkpoint(target, &Default::default());
        made.map(|_| ())
    }

    fn stats(&self) -> basalt::Stats {
        self.db.stats()
    }

    fn close(&self) -> Result<()> {
        self.engines.close()
    }
}

struct DbView {
    db: Db,
    keys: Family,
    snapshot: Snapshot,
}

impl DbView {
    fn options(&self, from: &[u8], to: &[u8], work: u64) -> ReadOptions {
        ReadOptions::default()
            .snapshot(Some(self.snapshot.clone()))
            .lower_bound(Some(from.to_vec()))
            .upper_bound(Some(to.to_vec()))
            // A walk over keys reads no long value.
            .keys_only(true)
            .fill_cache(false)
            .max_skippable_entries(work.max(1))
    }
}

impl StoreView for DbView {
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<Option<Vec<u8>>> {
        if from >= to {
            return Ok(None);
        }
        let mut it = self.db.iter(&self.keys, &self.options(from, to, work))?;
        it.seek_to_first()?;
        while it.valid() && visit(it.key(), it.value_at_hand(), it.expire_at_ms()) {
            it.next()?;
        }
        Ok(it.resume_key().map(<[u8]>::to_vec))
    }

    fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>> {
        if from >= to {
            return Ok(None);
        }
        let mut it = self.db.iter(&self.keys, &self.options(from, to, work))?;
        it.seek_to_last()?;
        if let Some(key) = it.resume_key() {
            return Ok(Some(key.to_vec()));
        }
        Ok(it.valid().then(|| it.key().to_vec()))
    }
}

#[cfg(test)]
mod tests;
