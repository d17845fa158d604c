//! fjall as a measured engine. It reads and writes through the page cache only, so its results
//! include memory that no budget counts.

use super::{Budget, Compression, Engine, EngineStats, Log};
use crate::Stop;
use basalt::env::Clock;
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

pub(super) struct Fjall {
    db: Database,
    keys: Keyspace,
    configuration: Value,
    clock: Clock,
}

fn wrong(e: fjall::Error) -> Stop {
    Stop::new(format!("fjall: {e}"))
}

impl Fjall {
    pub(super) fn open(path: &Path, budget: &Budget) -> Result<Fjall, Stop> {
        let compression = match budget.compression {
            Compression::None => CompressionType::None,
            Compression::Lz4 => CompressionType::Lz4,
            Compression::Zstd => {
                return Err(Stop::new(
                    "fjall has no zstd: leave it out, or choose --compression lz4",
                ));
            }
        };
        let threads = budget.background_threads.max(1);
        let db = Database::builder(path)
            .cache_size(budget.cache)
            .worker_threads(threads)
            .journal_compression(CompressionType::None)
            .open()
            .map_err(wrong)?;
        let bits = budget.filter_bits;
        let filter = match bits {
            0 => FilterPolicyEntry::None,
            bits => FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(bits as f32)),
        };
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(budget.write_buffer)
                .data_block_size_policy(BlockSizePolicy::all(budget.block_bytes() as u32))
                .data_block_compression_policy(CompressionPolicy::all(compression))
                .filter_policy(FilterPolicy::all(filter))
        };
        let keys = db.keyspace("bench", options).map_err(wrong)?;
        Ok(Fjall {
            configuration: json!({
                "cache_bytes": budget.cache, "worker_threads": threads, "max_memtable_size": budget.write_buffer,
                "block_bytes": budget.block_bytes(),
                "filter_bits_per_key": bits, "compression": format!("{compression:?}"), "journal_compression": "None",
                "direct": false, "others": "defaults",
            }),
            db,
            keys,
            clock: Clock::system(),
        })
    }

    /// Persists the journal after an insert, as far as `log` requires.
    fn persist(&self, log: Log) -> Result<(), Stop> {
        match log {
            Log::Synced => self.db.persist(PersistMode::SyncData).map_err(wrong),
            // fjall writes its journal to the operating system with every insert.
            Log::None | Log::Unsynced => Ok(()),
        }
    }
}

impl Engine for Fjall {
    fn name(&self) -> String {
        format!("fjall {}", super::locked_version("fjall"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.keys.insert(key, value).map_err(wrong)?;
        self.persist(log)
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop> {
        let mut batch = self.db.batch();
        for (key, value) in entries {
            batch.insert(&self.keys, &key[..], &value[..]);
        }
        batch.commit().map_err(wrong)?;
        self.persist(log)
    }
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop> {
        self.keys.remove(key).map_err(wrong)?;
        self.persist(log)
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.keys.get(key).map_err(wrong)?;
        if let Some(value) = &found {
            show(value);
        }
        Ok(found.is_some())
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        let mut seen = 0;
        for guard in self.keys.range(key..).take(limit as usize) {
            let (key, value) = guard.into_inner().map_err(wrong)?;
            show(&key, &value);
            seen += 1;
        }
        Ok(seen)
    }
    fn flush(&self) -> Result<(), Stop> {
        self.keys.rotate_memtable_and_wait().map_err(wrong)
    }
    fn wait_idle(&self) -> Result<(), Stop> {
        self.flush()?;
        // fjall has no call that waits for compactions. A period without any counts as idle.
        let (mut idle, mut last) = (0, self.db.compactions_completed());
        while idle < 10 {
            self.clock.sleep(Duration::from_millis(50));
            let now = self.db.compactions_completed();
            let busy = self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0;
            idle = if busy || now != last { 0 } else { idle + 1 };
            last = now;
        }
        Ok(())
    }
    fn compact(&self) -> Result<(), Stop> {
        self.flush()?;
        self.keys.major_compact().map_err(wrong)
    }
    fn stats(&self) -> EngineStats {
        EngineStats {
            log_bytes: self.db.journal_disk_space().ok(),
            ..EngineStats::default()
        }
    }
    fn close(&self) -> Result<(), Stop> {
        // The rest happens when the engine is dropped.
        self.db.persist(PersistMode::SyncAll).map_err(wrong)
    }
}
