//! RocksDB as a measured engine, configured as its own tuning guide says. docs/benchmarks.md has
//! the reason of each setting.

use super::{
    Budget, Compression, Engine, EngineName, EngineStats, Log, Next, Read, host_directory,
};
use crate::Stop;
use crate::counters::read_kernel_file;
use crate::flags::Switch;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, DataBlockIndexType,
    IngestExternalFileOptions, Options, ReadOptions, SstFileWriter, WaitForCompactOptions,
    WriteBatch, WriteOptions, properties,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a table, and of the first sized level. Both are RocksDB's defaults and those of Basalt.
const TABLE: u64 = 64 << 20;
const BASE_LEVEL: u64 = 256 << 20;
/// Number of write buffers: full ones and the active one.
const BUFFERS: i32 = 4;
/// Number of logs that are kept for reuse.
const LOGS: usize = 4;
/// BlobDB with the settings that measure best: values of at least 512 bytes, with read-ahead in
/// compactions.
const BLOB: &str = "enable_blob_files=true;min_blob_size=512;enable_blob_garbage_collection=true;blob_compaction_readahead_size=2097152";
/// Garbage collection covers files of all ages, from a fifth of garbage on.
const FORCED_OPTIONS: &str =
    "blob_garbage_collection_age_cutoff=1.0;blob_garbage_collection_force_threshold=0.2";
/// The write itself puts values into blob files. This excludes the two other modes.
const DIRECT: &str = "enable_blob_direct_write=true;enable_pipelined_write=false;allow_concurrent_memtable_write=false";
/// Options without a setter in the C interface. At the default of 16 MB/s a slowed writer nearly
/// stops.
const BY_NAME: &str = "delayed_write_rate=1073741824";

pub(super) struct Rocks {
    db: DB,
    name: String,
    configuration: Value,
    direct: bool,
    unlogged: WriteOptions,
    unsynced: WriteOptions,
    synced: WriteOptions,
    /// For the tables of a bulk load: their options, their directory, and their number so far.
    bulk: (Options, PathBuf, AtomicU64),
}

fn wrong(e: rocksdb::Error) -> Stop {
    Stop::new(format!("RocksDB: {e}"))
}

impl Rocks {
    pub(super) fn open(path: &Path, budget: &Budget, engine: EngineName) -> Result<Rocks, Stop> {
        let direct = budget.direct == Switch::On;
        let jobs = budget.background_threads.max(2) as i32;
        let mut table = BlockBasedOptions::default();
        let cache = Cache::new_hyper_clock_cache(budget.cache as usize, 0);
        table.set_block_cache(&cache);
        table.set_block_size(budget.block_bytes() as usize);
        if budget.filter_bits > 0 {
            table.set_bloom_filter(f64::from(budget.filter_bits), false);
        }
        // Indexes and filters are part of the budget, as in Basalt.
        table.set_cache_index_and_filter_blocks(true);
        table.set_cache_index_and_filter_blocks_with_high_priority(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        table.set_data_block_hash_ratio(0.75);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(match budget.compression {
            Compression::None => DBCompressionType::None,
            Compression::Lz4 => DBCompressionType::Lz4,
            Compression::Zstd => DBCompressionType::Zstd,
        });
        options.set_write_buffer_size(budget.write_buffer as usize);
        options.set_max_write_buffer_number(BUFFERS);
        options.set_max_background_jobs(jobs);
        options.set_max_subcompactions((jobs / 2) as u32);
        options.set_target_file_size_base(TABLE);
        options.set_max_bytes_for_level_base(BASE_LEVEL);
        options.set_level_compaction_dynamic_level_bytes(true);
        options.set_use_direct_reads(direct);
        options.set_use_direct_io_for_flush_and_compaction(direct);
        options.set_bytes_per_sync(1 << 20);
        options.set_recycle_log_file_num(LOGS);
        options.set_enable_pipelined_write(true);
        let mut by_name = vec![BY_NAME.to_string()];
        if engine != EngineName::Rocksdb {
            // Blocks and values share one budget, as RocksDB's wiki recommends.
            options.set_blob_cache(&cache);
            by_name.push(BLOB.into());
            match budget.compression {
                Compression::None => {}
                Compression::Lz4 => by_name.push("blob_compression_type=kLZ4Compression".into()),
                Compression::Zstd => by_name.push("blob_compression_type=kZSTD".into()),
            }
        }
        match engine {
            EngineName::RocksdbBlobForced => by_name.push(FORCED_OPTIONS.into()),
            EngineName::RocksdbBlobDirect => by_name.push(DIRECT.into()),
            _ => {}
        }
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
        let write = |log: Log| {
            let mut options = WriteOptions::default();
            options.set_sync(log == Log::Synced);
            options.disable_wal(log == Log::None);
            options
        };
        Ok(Rocks {
            name: match engine.word().strip_prefix("rocksdb-") {
                Some(how) => format!("rocksdb {version} {how}"),
                None => format!("rocksdb {version}"),
            },
            configuration: json!({
                "cache_bytes": budget.cache, "cache": "hyper clock", "block_bytes": budget.block_bytes(),
                "filter_bits_per_key": budget.filter_bits,
                "index_and_filters": "in the cache at high priority, pinned for level 0",
                "data_block_index": "binary and hash", "compression": format!("{:?}", budget.compression).to_lowercase(),
                "write_buffer_bytes": budget.write_buffer, "max_write_buffer_number": BUFFERS,
                "max_background_jobs": jobs, "max_subcompactions": jobs / 2, "table_bytes": TABLE,
                "base_level_bytes": BASE_LEVEL, "level_compaction_dynamic_level_bytes": true, "direct": direct,
                "bytes_per_sync": 1 << 20, "recycle_log_file_num": LOGS, "enable_pipelined_write": true,
                "by_name": by_name, "options_file": file,
            }),
            db,
            direct,
            bulk: (options, path.to_path_buf(), AtomicU64::new(0)),
            unlogged: write(Log::None),
            unsynced: write(Log::Unsynced),
            synced: write(Log::Synced),
        })
    }

    fn options(&self, log: Log) -> &WriteOptions {
        match log {
            Log::None => &self.unlogged,
            Log::Unsynced => &self.unsynced,
            Log::Synced => &self.synced,
        }
    }

    fn number(&self, property: &properties::PropName) -> Option<u64> {
        self.db.property_int_value(property).ok().flatten()
    }
}

/// Returns the text of the file in which RocksDB keeps all its options.
pub(crate) fn options_file(path: &Path) -> Result<String, Stop> {
    let fs = host_directory(path, Switch::Off)?;
    let mut names: Vec<_> = fs
        .list(Path::new(""))?
        .into_iter()
        .map(|e| e.name)
        .filter(|n| n.starts_with("OPTIONS-"))
        .collect();
    names.sort();
    Ok(names
        .last()
        .and_then(|n| read_kernel_file(&path.join(n)))
        .unwrap_or_default())
}

/// Returns the microseconds of `Cumulative stall: 00:01:2.345 H:M:S, 1.0 percent`.
fn stall_us(stats: &str) -> Option<u64> {
    let text = stats
        .lines()
        .find_map(|l| l.strip_prefix("Cumulative stall: "))?;
    let mut parts = text.split(' ').next()?.split(':');
    let (h, m, s) = (parts.next()?, parts.next()?, parts.next()?);
    let seconds: f64 = s.parse().ok()?;
    let minutes = h.parse::<u64>().ok()? * 60 + m.parse::<u64>().ok()?;
    Some(minutes * 60_000_000 + (seconds * 1e6) as u64)
}

impl Engine for Rocks {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.db
            .put_opt(key, value, self.options(log))
            .map_err(wrong)
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop> {
        let mut batch = WriteBatch::default();
        for (key, value) in entries {
            batch.put(key, value);
        }
        self.db.write_opt(batch, self.options(log)).map_err(wrong)
    }
    fn bulk(&self, next: &mut Next<'_>) -> Result<(), Stop> {
        // Values stay in the tables: RocksDB's table writer separates no values.
        let (options, dir, made) = &self.bulk;
        let mut adding = IngestExternalFileOptions::default();
        adding.set_move_files(true);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut paths = Vec::new();
        let mut more = next(&mut key, &mut value)?;
        while more {
            let n = made.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("bulk-{n}.part"));
            let mut table = SstFileWriter::create(options);
            table.open(&path).map_err(wrong)?;
            while more && table.file_size() < TABLE {
                table.put(&key, &value).map_err(wrong)?;
                more = next(&mut key, &mut value)?;
            }
            table.finish().map_err(wrong)?;
            paths.push(path);
        }
        if paths.is_empty() {
            return Ok(());
        }
        (self.db.ingest_external_file_opts(&adding, paths)).map_err(wrong)
    }
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop> {
        self.db.delete_opt(key, self.options(log)).map_err(wrong)
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.db.get_pinned(key).map_err(wrong)?;
        if let Some(value) = &found {
            show(value);
        }
        Ok(found.is_some())
    }
    fn multi_get(
        &self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Stop> {
        let family = self
            .db
            .cf_handle("default")
            .ok_or_else(|| Stop::new("RocksDB: no default column family"))?;
        let found = self.db.batched_multi_get_cf(&family, keys, false);
        for (i, value) in found.into_iter().enumerate() {
            show(i, value.map_err(wrong)?.as_deref());
        }
        Ok(())
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        let mut iter = self.db.raw_iterator_opt(ReadOptions::default());
        iter.seek(key);
        let mut seen = 0;
        while seen < limit {
            let Some((key, value)) = iter.item() else {
                break;
            };
            show(key, value);
            seen += 1;
            if seen < limit {
                iter.next();
            }
        }
        iter.status().map_err(wrong)?;
        Ok(seen)
    }
    fn flush(&self) -> Result<(), Stop> {
        self.db.flush().map_err(wrong)
    }
    fn wait_idle(&self) -> Result<(), Stop> {
        let mut options = WaitForCompactOptions::default();
        options.set_flush(true);
        self.db.wait_for_compact(&options).map_err(wrong)
    }
    fn compact(&self) -> Result<(), Stop> {
        self.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }
    fn stats(&self) -> EngineStats {
        let text = self.db.property_value(properties::DBSTATS).ok().flatten();
        EngineStats {
            stall_us: text.as_deref().and_then(stall_us),
            compaction_debt: self.number(properties::ESTIMATE_PENDING_COMPACTION_BYTES),
            compactions: self.number(properties::NUM_RUNNING_COMPACTIONS),
            memtable_bytes: self.number(properties::CUR_SIZE_ALL_MEM_TABLES),
            ..EngineStats::default()
        }
    }
    fn reads(&self) -> Read {
        match self.direct {
            true => Read::Calls,
            false => Read::Hidden,
        }
    }
    fn close(&self) -> Result<(), Stop> {
        // The rest happens when the engine is dropped.
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
