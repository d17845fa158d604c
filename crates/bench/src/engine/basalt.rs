//! Basalt as a measured engine, with its store in levels of tables or in a tree of pages.

use super::{Budget, Compression, Engine, EngineStats, Log, Next, Read};
use crate::Stop;
use basalt::WriteBatch;
use basalt::env::{Env, EnvBuilder, EnvParts};
use basalt::fs::FsStats;
use basalt::{Db, Family, Options, ReadOptions, TreeOptions, WriteOptions};
use serde_json::{Value, json};

pub(super) struct Basalt {
    env: Env,
    db: Db,
    family: Family,
    configuration: Value,
    /// True if the store is kept in a tree of pages.
    is_tree: bool,
}

/// Returns the parts of an environment with this many bytes of memory and of cache, and background
/// threads (0 for the default).
pub(crate) fn environment(memory: u64, cache: u64, background_threads: usize) -> EnvParts {
    let env = EnvBuilder::without_fs()
        .memory_bytes(memory)
        .cache_bytes(cache);
    match background_threads {
        0 => env.parts(),
        n => env.threads(n).parts(),
    }
}

fn compression(budget: &Budget) -> basalt::Compression {
    match budget.compression {
        Compression::None => basalt::Compression::None,
        Compression::Lz4 => basalt::Compression::Lz4,
        Compression::Zstd => basalt::Compression::Zstd,
    }
}

impl Basalt {
    /// Opens a store in levels of tables.
    pub(super) fn open(env: Env, name: &str, budget: &Budget) -> Result<Basalt, Stop> {
        Basalt::open_with(env, name, budget, None)
    }

    /// Opens a store in a tree of pages.
    pub(super) fn open_tree(env: Env, name: &str, budget: &Budget) -> Result<Basalt, Stop> {
        let mut pages = TreeOptions::default().compression(compression(budget));
        if let Some(bytes) = budget.block_size {
            pages = pages.page_bytes(bytes as usize);
        }
        if let Some(bytes) = budget.checkpoint_bytes {
            pages = pages.checkpoint_bytes(bytes);
        }
        for option in &budget.tree_options {
            pages = option.apply(pages).map_err(Stop::new)?;
        }
        Basalt::open_with(env, name, budget, Some(pages))
    }

    fn open_with(
        env: Env,
        name: &str,
        budget: &Budget,
        pages: Option<TreeOptions>,
    ) -> Result<Basalt, Stop> {
        let mut options = Options::default()
            .write_buffer_bytes(budget.write_buffer)
            .max_space_amp(budget.max_space_amp);
        let family = &mut options.default_family;
        family.compression = compression(budget);
        family.blob_compression = family.compression;
        family.filter_bits_per_key = budget.filter_bits;
        let least = (budget.min_blob_size > 0).then_some(budget.min_blob_size as usize);
        family.min_blob_size = least;
        let is_tree = pages.is_some();
        if !is_tree {
            family.block_bytes = budget.block_bytes() as usize;
        }
        family.pages = pages;
        let info = env.fs().info();
        let mut configuration = json!({
            "memory_bytes": budget.memory, "cache_bytes": budget.cache, "write_buffer_bytes": options.write_buffer_bytes,
            "max_sealed_memtables": options.max_sealed_memtables, "background_threads": env.jobs().parallelism(),
            "block_bytes": options.default_family.block_bytes,
            "filter_bits_per_key": options.default_family.filter_bits_per_key,
            "compression": format!("{:?}", options.default_family.compression).to_lowercase(),
            "blob_compression": format!("{:?}", options.default_family.blob_compression).to_lowercase(),
            "table_bytes": options.default_family.table_bytes,
            "base_level_bytes": options.default_family.base_level_bytes,
            "level_multiplier": options.default_family.level_multiplier,
            "l0_compaction_trigger": options.default_family.l0_compaction_trigger,
            "min_blob_size": options.default_family.min_blob_size, "max_space_amp": options.max_space_amp,
            "l0_slowdown": options.default_family.l0_slowdown,
            "filesystem": info.description, "direct": info.direct, "write_unit": info.write_unit,
            "read_backend": info.read_backend,
        });
        if let Some(pages) = &options.default_family.pages {
            configuration["pages"] = json!({
                "page_bytes": pages.page_bytes, "extent_bytes": pages.extent_bytes,
                "max_deltas": pages.max_deltas, "overwrite_ratio": pages.overwrite_ratio,
                "base_garbage": pages.base_garbage, "delta_garbage": pages.delta_garbage,
                "checkpoint_bytes": pages.checkpoint_bytes,
                "leaf_delta_bytes": pages.leaf_delta_bytes, "mapping_bytes": pages.mapping_bytes,
                "usage_bytes": pages.usage_bytes,
                "cold_merge_ratio": pages.cold_merge_ratio, "max_space_amp": pages.max_space_amp,
            });
        }
        let db = Db::open(&env, name, options)?;
        Ok(Basalt {
            is_tree,
            family: db.default_family(),
            env,
            db,
            configuration,
        })
    }

    fn options(log: Log) -> WriteOptions {
        // Basalt has no write without a log. A write with the mode `None` has a log and does not
        // wait for it.
        WriteOptions::synced(log == Log::Synced)
    }
}

impl Engine for Basalt {
    fn name(&self) -> String {
        // Two Basalt engines in one comparison differ by their data structure, or by the filesystem
        // that they lie on.
        let is_on_lava = self.env.fs().info().description.starts_with("LavaFS");
        let on = match (self.is_tree, is_on_lava) {
            (true, _) => "tree",
            (false, true) => "basalt-lava",
            (false, false) => "basalt",
        };
        format!("{on} {}", env!("CARGO_PKG_VERSION"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.db
            .put(&self.family, key, value, &Basalt::options(log))?;
        Ok(())
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop> {
        let mut batch = WriteBatch::new();
        for (key, value) in entries {
            batch.put(&self.family, key, value)?;
        }
        self.db.write(batch, &Basalt::options(log))?;
        Ok(())
    }
    fn bulk(&self, next: &mut Next<'_>) -> Result<(), Stop> {
        let mut table = self.db.prepare(&self.family)?;
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while next(&mut key, &mut value)? {
            table.add(&key, &value)?;
        }
        self.db.ingest(&[table.finish()?])?;
        Ok(())
    }
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop> {
        self.db.delete(&self.family, key, &Basalt::options(log))?;
        Ok(())
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.db.get(&self.family, key, &ReadOptions::default())?;
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
        let asked: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&self.family, &k[..])).collect();
        let found = self.db.multi_get(&asked, &ReadOptions::default());
        for (i, value) in found.into_iter().enumerate() {
            show(i, value?.as_deref());
        }
        Ok(())
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        let mut iter = self.db.iter(&self.family, &ReadOptions::default())?;
        iter.seek(key)?;
        let mut seen = 0;
        while seen < limit && iter.valid() {
            show(iter.key(), iter.value());
            seen += 1;
            if seen < limit {
                iter.next()?;
            }
        }
        Ok(seen)
    }
    fn flush(&self) -> Result<(), Stop> {
        Ok(self.db.flush()?)
    }
    fn wait_idle(&self) -> Result<(), Stop> {
        self.db.flush()?;
        Ok(self.db.wait_idle()?)
    }
    fn compact(&self) -> Result<(), Stop> {
        Ok(self.db.compact_range(&self.family, None, None)?)
    }
    fn stats(&self) -> EngineStats {
        let stats = self.db.stats();
        EngineStats {
            stall_us: Some(stats.stall_us.iter().map(|(_, us)| us).sum()),
            compaction_debt: Some(stats.compaction_debt),
            compactions: Some(stats.compactions),
            log_bytes: Some(stats.log_bytes),
            memtable_bytes: Some(stats.memtable_bytes),
            pages: stats.pages().next().cloned(),
        }
    }
    fn accounting(&self) -> Option<FsStats> {
        Some(self.env.fs().stats())
    }
    fn reads(&self) -> Read {
        Read::Counted
    }
    fn durable_put_bytes(&self, key: usize, value: usize) -> usize {
        // The log pads the record in this way. Without compression, the content does not change its
        // length.
        let mut batch = WriteBatch::new();
        let bytes = match batch.put(&self.family, &vec![0; key], &vec![0; value]) {
            Ok(()) => batch.raw_bytes(),
            Err(_) => key + value,
        };
        bytes.next_multiple_of(self.env.fs().info().write_unit)
    }
    fn close(&self) -> Result<(), Stop> {
        Ok(self.db.clone().close()?)
    }
}
