//! LMDB as a measured engine, by the crate heed: a copy-on-write B-tree in mapped memory.
//!
//! LMDB has no cache of its own: it reads the page cache, which no budget counts. The map is 1 TiB,
//! which is only an address range. An unsynced put is a commit with `MDB_NOSYNC`, which writes to
//! the operating system, as the unsynced logs of the others do. A synced put is a commit without
//! that flag, with LMDB's own order of data and meta page. Writers take turns, because LMDB has one
//! write transaction at a time and no group commit. Keys have at most 511 bytes.
//!
//! # Invariant of the unsafe code
//!
//! The directory of a store belongs to this process alone, and each run opens it once at a time.
//! The flags of the environment change only while the mutex `writer` is held.
#![allow(unsafe_code)]

use super::{Budget, Engine, Log, Next};
use crate::Stop;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, RwTxn};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Mutex;

const MAP_BYTES: usize = 1 << 40;
const READERS: u32 = 1024;

pub(super) struct Lmdb {
    env: Env,
    db: Database<Bytes, Bytes>,
    configuration: Value,
    /// True if `MDB_NOSYNC` is set. A writer holds the mutex until its commit has returned.
    writer: Mutex<bool>,
}

fn wrong(e: heed::Error) -> Stop {
    Stop::new(format!("LMDB: {e}"))
}

impl Lmdb {
    pub(super) fn open(path: &Path, budget: &Budget) -> Result<Lmdb, Stop> {
        super::refuse_compression("LMDB", budget)?;
        super::host_directory(path, crate::flags::Switch::Off)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES).max_readers(READERS);
        // SAFETY: the invariant of the module: no other process changes the mapped file.
        let env = unsafe { options.open(path) }.map_err(wrong)?;
        let mut transaction = env.write_txn().map_err(wrong)?;
        let db = env.create_database(&mut transaction, None).map_err(wrong)?;
        transaction.commit().map_err(wrong)?;
        Ok(Lmdb {
            env,
            db,
            configuration: json!({
                "map_bytes": MAP_BYTES, "max_readers": READERS, "direct": false,
                "cache": "the page cache", "unsynced": "MDB_NOSYNC", "others": "defaults",
            }),
            writer: Mutex::new(false),
        })
    }

    /// Runs `change` in a write transaction, and commits it as `log` requires.
    fn write(
        &self,
        log: Log,
        change: impl FnOnce(&mut RwTxn<'_>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let mut unsynced = self
            .writer
            .lock()
            .map_err(|_| Stop::new("LMDB: another writer panicked"))?;
        let wanted = log != Log::Synced;
        if *unsynced != wanted {
            let mode = match wanted {
                true => FlagSetMode::Enable,
                false => FlagSetMode::Disable,
            };
            // SAFETY: the mutex is held, so no other thread sets flags or commits.
            unsafe { self.env.set_flags(EnvFlags::NO_SYNC, mode) }.map_err(wrong)?;
            *unsynced = wanted;
        }
        let mut transaction = self.env.write_txn().map_err(wrong)?;
        change(&mut transaction)?;
        transaction.commit().map_err(wrong)
    }
}

impl Engine for Lmdb {
    fn name(&self) -> String {
        format!("lmdb of heed {}", super::locked_version("heed"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.write(log, |t| self.db.put(t, key, value).map_err(wrong))
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop> {
        self.write(log, |t| {
            for (key, value) in entries {
                self.db.put(t, key, value).map_err(wrong)?;
            }
            Ok(())
        })
    }
    fn bulk(&self, next: &mut Next<'_>) -> Result<(), Stop> {
        // LMDB has no bulk load beside the tree. One transaction costs it least.
        self.write(Log::Synced, |t| {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            while next(&mut key, &mut value)? {
                self.db.put(t, &key, &value).map_err(wrong)?;
            }
            Ok(())
        })
    }
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop> {
        self.write(log, |t| {
            self.db.delete(t, key).map_err(wrong)?;
            Ok(())
        })
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let transaction = self.env.read_txn().map_err(wrong)?;
        let found = self.db.get(&transaction, key).map_err(wrong)?;
        if let Some(value) = found {
            show(value);
        }
        Ok(found.is_some())
    }
    fn multi_get(
        &self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Stop> {
        let transaction = self.env.read_txn().map_err(wrong)?;
        for (i, key) in keys.iter().enumerate() {
            show(i, self.db.get(&transaction, key).map_err(wrong)?);
        }
        Ok(())
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        let transaction = self.env.read_txn().map_err(wrong)?;
        // LMDB refuses an empty key, so a scan of everything has no lower bound.
        let start = match key.is_empty() {
            true => std::ops::Bound::Unbounded,
            false => std::ops::Bound::Included(key),
        };
        let range = (start, std::ops::Bound::Unbounded);
        let mut seen = 0;
        let entries = self.db.range(&transaction, &range).map_err(wrong)?;
        for entry in entries.take(limit as usize) {
            let (key, value) = entry.map_err(wrong)?;
            show(key, value);
            seen += 1;
        }
        Ok(seen)
    }
    fn flush(&self) -> Result<(), Stop> {
        self.env.force_sync().map_err(wrong)
    }
}
