//! mace as a measured engine, by the crate mace-kv: a tree of pages with deltas and a log.
//!
//! It gets three quarters of `--cache` for pages of the tree, and a quarter for values of at least
//! 1 KiB, which it keeps outside of the tree. It reads through the page cache, which no budget
//! counts. mace chooses for an open store whether commits are synced. In runs of durable puts they
//! are, with its group commit. In other runs a commit reaches the operating system, and a synced
//! put is a commit and a sync of all logs.

use super::{Budget, Compression, Engine, Log};
use crate::Stop;
use mace::{Bucket, BucketOptions, Mace, OpCode, Options, TxnKV};
use serde_json::{Value, json};
use std::ops::Bound;
use std::path::Path;

const BUCKET: &str = "bench";
/// Checkpoints' worth of changed pages that mace keeps in memory: as many as the others have write
/// buffers.
const POOL_CHECKPOINTS: u64 = 4;

pub(super) struct MaceStore {
    db: Mace,
    bucket: Bucket,
    /// True if each commit is synced.
    synced: bool,
    configuration: Value,
}

fn wrong(e: OpCode) -> Stop {
    Stop::new(format!("mace: {e}"))
}

impl MaceStore {
    pub(super) fn open(path: &Path, budget: &Budget) -> Result<MaceStore, Stop> {
        let compress = match budget.compression {
            Compression::None => false,
            Compression::Zstd => true,
            Compression::Lz4 => {
                return Err(Stop::new(
                    "mace has no lz4: leave it out, or choose --compression zstd",
                ));
            }
        };
        let synced = budget.store_use.synced;
        let (pages, values) = (budget.cache / 4 * 3, budget.cache / 4);
        let mut options = Options::new(path);
        options.sync_on_write = synced;
        options.lru_capacity = values as usize;
        let db = Mace::new(options.validate().map_err(wrong)?).map_err(wrong)?;
        let mut of_bucket = BucketOptions::new();
        of_bucket.cache_capacity = pages as usize;
        of_bucket.checkpoint_size = budget.write_buffer as usize;
        of_bucket.pool_capacity = (POOL_CHECKPOINTS * budget.write_buffer) as usize;
        of_bucket.enable_compression = compress;
        let bucket = match db.open_bucket(BUCKET) {
            Err(OpCode::NotFound) => db.new_bucket(BUCKET, of_bucket),
            opened => opened,
        };
        Ok(MaceStore {
            bucket: bucket.map_err(wrong)?,
            db,
            synced,
            configuration: json!({
                "sync_on_write": synced, "cache_capacity": pages, "lru_capacity": values,
                "checkpoint_size": budget.write_buffer,
                "pool_capacity": POOL_CHECKPOINTS * budget.write_buffer,
                "enable_compression": compress, "direct": false, "others": "defaults",
            }),
        })
    }

    /// Runs `change` in a transaction, again if another one has changed the same key, and commits
    /// it as `log` requires.
    fn write(
        &self,
        log: Log,
        change: impl Fn(&TxnKV<'_>) -> Result<(), OpCode>,
    ) -> Result<(), Stop> {
        loop {
            let transaction = self.bucket.begin().map_err(wrong)?;
            match change(&transaction).and_then(|()| transaction.commit()) {
                Ok(()) => break,
                Err(OpCode::AbortTx | OpCode::Again) => {}
                Err(e) => return Err(wrong(e)),
            }
        }
        match log {
            Log::Synced if !self.synced => self.db.sync().map_err(wrong),
            _ => Ok(()),
        }
    }
}

impl Engine for MaceStore {
    fn name(&self) -> String {
        format!("mace {}", super::locked_version("mace-kv"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.write(log, |t| t.upsert(key, value))
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop> {
        self.write(log, |t| {
            entries.iter().try_for_each(|(k, v)| t.upsert(k, v))
        })
    }
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop> {
        self.write(log, |t| match t.del(key) {
            Err(OpCode::NotFound) => Ok(()),
            deleted => deleted,
        })
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let view = self.bucket.view().map_err(wrong)?;
        match view.get(key) {
            Ok(value) => {
                show(value.slice());
                Ok(true)
            }
            Err(OpCode::NotFound) => Ok(false),
            Err(e) => Err(wrong(e)),
        }
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        let view = self.bucket.view().map_err(wrong)?;
        // mace refuses an empty key, so a scan of everything has no lower bound.
        let start = match key.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Included(key),
        };
        let mut iter = view.range::<&[u8], _>((start, Bound::Unbounded));
        let mut seen = 0;
        while seen < limit
            && let Some(entry) = iter.try_next().map_err(wrong)?
        {
            show(entry.key(), entry.val());
            seen += 1;
        }
        Ok(seen)
    }
    fn flush(&self) -> Result<(), Stop> {
        self.bucket.checkpoint_and_wait();
        self.db.sync().map_err(wrong)
    }
}
