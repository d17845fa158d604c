//! The place of large values in a flush: the log that they were written to, which stays as a blob
//! file, or new blob files.
//!
//! The log stays if most of its remaining bytes would be such values. It gets an index of the
//! records that the flush refers to. Records that were overwritten in the memtables, or are of a
//! dropped family, are in no index and no account. Their space, and that of small values, returns
//! to the filesystem once the edit that makes the log a blob file is durable.

use super::memtable_set::{MemtableSet, MemtableSetLog, SeparatedRecords};
use crate::options::FamilyOptions;
use crate::version::{TableStore, index_name};
use basalt_blob::{BlobMeta, BlobOptions, LogIndexBuilder, Separator};
use basalt_env::store_dir::Created;
use basalt_env::{CacheKey, Env, IoPriority};
use basalt_fs::{File, Result};
use basalt_kv::key::{Kind, SeqNo};
use basalt_kv::separated::{Name, Reference, record};
use std::ops::Range;
use std::sync::Arc;

/// Most bytes of blocks with separated values, for each byte of these values, at which a log stays.
const MAX_BLOCKS: f64 = 1.3;

/// A record of the log that a table refers to.
struct KeptRecord {
    place: Range<u64>,
    family: u32,
    seq: SeqNo,
    hash: u64,
}

/// A log that stays as a blob file.
pub(super) struct KeptLog {
    number: u64,
    file_id: u128,
    file: Arc<dyn File>,
    places: SeparatedRecords,
    kept: Vec<KeptRecord>,
    /// Some value in it is compressed.
    has_compressed: bool,
}

impl KeptLog {
    /// Returns the log of a sealed memtable set, synced, if it is worth keeping and can be relied
    /// on. Returns `None` if the log cannot give back (`can_trim`) the space that no table will
    /// refer to: that space would be in no account.
    pub fn of(memtable_set: &MemtableSet, can_trim: bool) -> Option<KeptLog> {
        let log: &MemtableSetLog = memtable_set.log_file().filter(|_| can_trim)?;
        let places = memtable_set.places();
        if places.is_empty() || places.blocks.bytes as f64 > MAX_BLOCKS * places.bytes as f64 {
            return None;
        }
        // A log that cannot be synced is not trusted: its values are still in memory, and go to new
        // blob files. The sync also makes the length exact, because a blob file has no marker of
        // the end of its records.
        log.file.sync_all().ok()?;
        Some(KeptLog {
            number: log.number,
            file_id: log.file_id,
            file: log.file.clone(),
            places,
            kept: Vec::new(),
            has_compressed: false,
        })
    }

    /// Adds a record that a table will refer to. Returns the cache key under which readers will
    /// find it, or `None` if the log does not have it.
    ///
    /// A sequence number is that of one operation, and no step of a flush changes a value under its
    /// own number: merged operands get the newest operand's number, and no filter runs. So a value
    /// with the number of a record is that record's value. Its uncompressed length is compared with
    /// the record's all the same, also if the record is compressed.
    fn take(&mut self, name: &Name<'_>, value_len: usize) -> Option<CacheKey> {
        let found = self.places.of(name.seq)?;
        if found.value_len != value_len {
            // The flush writes another value than the record under this number: the value gets its
            // own record.
            return None;
        }
        let place = found.place;
        let as_it_is = (record::HEADER_LEN + name.key.len() + value_len) as u64;
        self.has_compressed |= place.end - place.start != as_it_is;
        let at = place.start;
        self.kept.push(KeptRecord {
            place,
            family: name.family,
            seq: name.seq,
            hash: name.hash(self.file_id),
        });
        Some(CacheKey {
            file: self.file_id,
            offset: at,
        })
    }

    /// Writes the index. `None` when nothing refers to the log.
    fn finish(
        mut self,
        env: &Env,
        tables: &Arc<TableStore>,
        new_number: &dyn Fn() -> u64,
        warm_cache: bool,
    ) -> Result<Option<(u64, BlobMeta)>> {
        if self.kept.is_empty() {
            return Ok(None);
        }
        self.kept.sort_unstable_by_key(|k| k.place.start);
        let end = self.kept.last().expect("not empty").place.end;
        let number = new_number();
        let path = tables.dir().join(index_name(number));
        let mut created = Created::new(tables.clone());
        let file = env.fs().create(&path)?;
        created.add(path.clone());
        let options = BlobOptions {
            file_id: env.random().next_u128(),
            io: IoPriority::High,
            warm_cache,
            warm_records: false,
            compressed: self.has_compressed,
        };
        let mut index = LogIndexBuilder::new(env, number, file, &path, options, self.file_id);
        for k in self.kept {
            index.add_hashed(k.family, k.seq, k.hash, k.place);
        }
        debug_assert!(end <= self.file.len().max(self.file.allocated()));
        let meta = index.finish(end)?;
        created.keep();
        Ok(Some((self.number, meta)))
    }
}

/// Separates the large values of a flush into the kept log or into new blob files.
pub(super) struct Values<'n> {
    separator: Separator<'n>,
    log: Option<KeptLog>,
    new_number: &'n dyn Fn() -> u64,
    payload: Vec<u8>,
}

impl<'n> Values<'n> {
    /// Creates the separation of one flush. If a log is given, values that are in it stay there.
    pub fn new(
        separator: Separator<'n>,
        log: Option<KeptLog>,
        new_number: &'n dyn Fn() -> u64,
    ) -> Values<'n> {
        Values {
            separator,
            log,
            new_number,
            payload: Vec::new(),
        }
    }

    /// Takes the payload of an entry if it does not belong in the table. Returns the reference that
    /// replaces it, valid until the next call.
    pub fn put(
        &mut self,
        name: &Name<'_>,
        kind: Kind,
        payload: &[u8],
        options: &FamilyOptions,
    ) -> Result<Option<&[u8]>> {
        if !matches!(kind, Kind::Put | Kind::PutTtl) {
            return Ok(None);
        }
        if let Some(log) = &mut self.log
            && let Some(at) = log.take(name, payload.len())
        {
            self.separator.warm(at, name, kind, payload);
            let expiry = payload.first_chunk().map(|at| u64::from_le_bytes(*at));
            let reference = Reference {
                number: log.number,
                expire_at_ms: expiry.filter(|_| kind == Kind::PutTtl),
                seq: None,
            };
            self.payload.clear();
            reference.encode(&mut self.payload);
            return Ok(Some(&self.payload));
        }
        match Separator::wants(options.min_blob_size, kind, payload) {
            true => (self
                .separator
                .put(name, kind, payload, options.blob_compression))
            .map(Some),
            false => Ok(None),
        }
    }

    /// Returns the finished blob files, with the log among them if a table refers to it. Their data
    /// is durable, their names are not.
    pub fn finish(
        self,
        env: &Env,
        tables: &Arc<TableStore>,
        warm_cache: bool,
    ) -> Result<Vec<(u64, BlobMeta)>> {
        let log = match self.log {
            Some(log) => log.finish(env, tables, self.new_number, warm_cache)?,
            None => None,
        };
        let made = self.separator.finish();
        if made.is_err()
            && let Some(index) = log.as_ref().and_then(|(_, meta)| meta.index)
        {
            tables.remove(&tables.dir().join(index_name(index.number)));
        }
        let mut all = made?;
        all.extend(log);
        Ok(all)
    }
}
