//! RocksDB as a store of logs: a key for each record, of the numbers of log and record, as TiKV
//! kept Raft logs. docs/benchmarks.md has the reason of each setting.

use super::LogStore;
use crate::Stop;
use crate::engine::{Read, options_file};
use crate::flags::Switch;
use crate::logs::LogBudget;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, DBRawIterator,
    Options, ReadOptions, WriteBatch, WriteOptions, properties,
};
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::path::Path;

/// Values of `RaftDefaultCfConfig` and `RaftDbConfig` of TiKV, as options by name.
const TIKV: &str = "write_buffer_size=134217728;max_write_buffer_number=5;max_bytes_for_level_base=536870912;\
target_file_size_base=8388608;level0_file_num_compaction_trigger=4;level0_slowdown_writes_trigger=20;\
level0_stop_writes_trigger=20;compaction_pri=kByCompensatedSize;level_compaction_dynamic_level_bytes=true;\
memtable_insert_with_hint_prefix_extractor=fixed:8;max_total_wal_size=4294967296;max_open_files=40960;\
max_manifest_file_size=20971520;bytes_per_sync=1048576;wal_bytes_per_sync=524288;enable_pipelined_write=true;\
writable_file_max_buffer_size=1048576;soft_pending_compaction_bytes_limit=206158430208;\
hard_pending_compaction_bytes_limit=1099511627776";
/// As for RocksDB in `compare`: logs are reused, and a slowed writer does not nearly stop.
const MORE: &str = "recycle_log_file_num=4;delayed_write_rate=1073741824";
/// Bytes of a block.
const BLOCK: usize = 64 << 10;

pub(super) struct RocksLogs {
    db: DB,
    name: String,
    configuration: Value,
    logs: u64,
    direct: bool,
    unsynced: WriteOptions,
    synced: WriteOptions,
}

fn wrong(e: rocksdb::Error) -> Stop {
    Stop::new(format!("RocksDB: {e}"))
}

/// Returns the key of a record. Keys sort by log and LSN.
fn key(log: u64, lsn: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&log.to_be_bytes());
    key[8..].copy_from_slice(&lsn.to_be_bytes());
    key
}

/// Returns log and LSN of a key.
fn parts(key: &[u8]) -> Result<(u64, u64), Stop> {
    let number = |part: &[u8]| part.try_into().map(u64::from_be_bytes);
    match (key.len(), number(&key[..8]), number(&key[8..])) {
        (16, Ok(log), Ok(lsn)) => Ok((log, lsn)),
        _ => Err(Stop::new(format!("RocksDB has a key {key:?}"))),
    }
}

impl RocksLogs {
    pub(super) fn open(path: &Path, logs: u64, budget: &LogBudget) -> Result<RocksLogs, Stop> {
        let direct = budget.direct == Switch::On;
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_hyper_clock_cache(budget.cache as usize, 0));
        table.set_block_size(BLOCK);
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        // Records of the benchmark are not compressed by any engine.
        options.set_compression_type(DBCompressionType::None);
        options.set_max_background_jobs(budget.background_threads.max(2) as i32);
        options.set_max_subcompactions((budget.background_threads / 2).max(1) as u32);
        options.set_use_direct_reads(direct);
        options.set_use_direct_io_for_flush_and_compaction(direct);
        let mut by_name = vec![TIKV.to_string(), MORE.to_string()];
        by_name.extend(budget.rocksdb_options.iter().cloned());
        let options = options
            .get_options_from_string(by_name.join(";"))
            .map_err(wrong)?;
        let family = ColumnFamilyDescriptor::new("default", options.clone());
        let db = DB::open_cf_descriptors(&options, path, [family]).map_err(wrong)?;
        let file = options_file(path)?;
        let version = file
            .lines()
            .find_map(|l| l.trim().strip_prefix("rocksdb_version="))
            .unwrap_or("of unknown version");
        let write = |synced| {
            let mut options = WriteOptions::default();
            options.set_sync(synced);
            options
        };
        Ok(RocksLogs {
            name: format!("rocksdb {version}"),
            configuration: json!({
                "cache_bytes": budget.cache, "block_bytes": BLOCK, "direct": direct, "by_name": by_name,
                "max_background_jobs": budget.background_threads, "options_file": file,
            }),
            db,
            logs,
            direct,
            unsynced: write(false),
            synced: write(true),
        })
    }

    fn iter(&self, log: u64) -> DBRawIterator<'_> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(key(log + 1, 0));
        self.db.raw_iterator_opt(options)
    }
}

impl LogStore for RocksLogs {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn append(&self, log: u64, lsn: u64, data: &[u8], synced: bool) -> Result<(), Stop> {
        let options = match synced {
            true => &self.synced,
            false => &self.unsynced,
        };
        self.db.put_opt(key(log, lsn), data, options).map_err(wrong)
    }
    fn append_batch(&self, log: u64, first: u64, records: &[Vec<u8>]) -> Result<(), Stop> {
        let mut batch = WriteBatch::default();
        for (lsn, record) in (first..).zip(records) {
            batch.put(key(log, lsn), record);
        }
        self.db.write_opt(batch, &self.unsynced).map_err(wrong)
    }
    fn trim(&self, log: u64, from: u64, up_to: u64) -> Result<(), Stop> {
        self.remove(log, from..=up_to)?;
        Ok(())
    }
    fn remove(&self, log: u64, range: RangeInclusive<u64>) -> Result<bool, Stop> {
        // TiKV removes Raft logs key by key, too.
        let mut batch = WriteBatch::default();
        for lsn in range {
            batch.delete(key(log, lsn));
            if batch.len() == 512 {
                let full = std::mem::take(&mut batch);
                self.db.write_opt(full, &self.unsynced).map_err(wrong)?;
            }
        }
        self.db.write_opt(batch, &self.unsynced).map_err(wrong)?;
        Ok(true)
    }
    fn read(&self, log: u64, lsn: u64, show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.db.get_pinned(key(log, lsn)).map_err(wrong)?;
        if let Some(value) = &found {
            show(value);
        }
        Ok(found.is_some())
    }
    fn iterate(&self, log: u64, show: &mut dyn FnMut(u64, &[u8])) -> Result<(), Stop> {
        let mut iter = self.iter(log);
        iter.seek(key(log, 0));
        while let Some((key, value)) = iter.item() {
            show(parts(key)?.1, value);
            iter.next();
        }
        iter.status().map_err(wrong)
    }
    fn bounds(&self, log: u64) -> Result<Option<(u64, u64)>, Stop> {
        let mut iter = self.iter(log);
        iter.seek(key(log, 0));
        let first = iter.key().map(parts).transpose()?;
        iter.seek_for_prev(key(log, u64::MAX));
        let last = iter.key().map(parts).transpose()?;
        iter.status().map_err(wrong)?;
        Ok(first.zip(last).map(|(first, last)| (first.1, last.1)))
    }
    fn gaps(&self, log: u64, range: RangeInclusive<u64>) -> Result<Vec<RangeInclusive<u64>>, Stop> {
        let mut iter = self.iter(log);
        iter.seek(key(log, *range.start()));
        let (mut next, mut out) = (*range.start(), Vec::new());
        while let Some(lsn) = iter.key().map(parts).transpose()?.map(|p| p.1)
            && lsn <= *range.end()
        {
            if lsn > next {
                out.push(next..=lsn - 1);
            }
            next = lsn + 1;
            iter.next();
        }
        iter.status().map_err(wrong)?;
        if next <= *range.end() {
            out.push(next..=*range.end());
        }
        Ok(out)
    }
    fn load(&self) -> Result<(), Stop> {
        for log in 0..self.logs {
            self.iterate(log, &mut |_, _| ())?;
        }
        Ok(())
    }
    fn index_bytes(&self) -> Option<u64> {
        let number = |name: &properties::PropName| self.db.property_int_value(name).ok().flatten();
        Some(number(properties::CUR_SIZE_ALL_MEM_TABLES)? + number(properties::BLOCK_CACHE_USAGE)?)
    }
    fn reads(&self) -> Read {
        match self.direct {
            true => Read::Calls,
            false => Read::Hidden,
        }
    }
    fn close(&self) -> Result<(), Stop> {
        self.db.flush_wal(true).map_err(wrong)?;
        // The rest happens when the engine is dropped.
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}
