//! redb as a measured engine: a copy-on-write B-tree in one file.
//!
//! It gets `--cache` bytes for its own cache of pages. It reads through the page cache, which no
//! budget counts. A put without a sync is a commit with `Durability::None`: redb keeps it in memory
//! until the next durable commit, so it does not survive the process. Other engines hand unsynced
//! puts to the operating system; redb has no such mode. A synced put is a commit with
//! `Durability::Immediate`. Its writers take turns, because redb has one write transaction at a
//! time and no group commit.

use super::{Budget, Engine, Log, Next};
use crate::Stop;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use serde_json::{Value, json};
use std::path::Path;

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("bench");

pub(super) struct Redb {
    db: Database,
    configuration: Value,
}

fn wrong(e: impl Into<redb::Error>) -> Stop {
    Stop::new(format!("redb: {}", e.into()))
}

impl Redb {
    pub(super) fn open(path: &Path, budget: &Budget) -> Result<Redb, Stop> {
        super::refuse_compression("redb", budget)?;
        super::host_directory(path, crate::flags::Switch::Off)?;
        let db = redb::Builder::new()
            .set_cache_size(budget.cache as usize)
            .create(path.join("store.redb"))
            .map_err(wrong)?;
        let redb = Redb {
            configuration: json!({
                "cache_bytes": budget.cache, "direct": false, "others": "defaults",
                "unsynced": "Durability::None, kept in memory until a durable commit",
                "synced": "Durability::Immediate",
            }),
            db,
        };
        // A read of a table that was never opened for writing fails.
        redb.write(Log::Synced, |_| Ok(()))?;
        Ok(redb)
    }

    /// Runs `change` on the table in a transaction, and commits it as `log` requires.
    fn write(
        &self,
        log: Log,
        change: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let mut transaction = self.db.begin_write().map_err(wrong)?;
        let durability = match log {
            Log::Synced => Durability::Immediate,
            Log::None | Log::Unsynced => Durability::None,
        };
        transaction
            .set_durability(durability)
            .map_err(|e| Stop::new(format!("redb: {e}")))?;
        {
            let mut table = transaction.open_table(TABLE).map_err(wrong)?;
            change(&mut table)?;
        }
        transaction.commit().map_err(wrong)
    }

    fn table(&self) -> Result<redb::ReadOnlyTable<&'static [u8], &'static [u8]>, Stop> {
        let transaction = self.db.begin_read().map_err(wrong)?;
        transaction.open_table(TABLE).map_err(wrong)
    }
}

impl Engine for Redb {
    fn name(&self) -> String {
        format!("redb {}", super::locked_version("redb"))
    }
    fn configuration(&self) -> Value {
        self.configuration.clone()
    }
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop> {
        self.write(log, |table| {
            table.insert(key, value).map_err(wrong)?;
            Ok(())
        })
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop> {
        self.write(log, |table| {
            for (key, value) in entries {
                table.insert(&key[..], &value[..]).map_err(wrong)?;
            }
            Ok(())
        })
    }
    fn bulk(&self, next: &mut Next<'_>) -> Result<(), Stop> {
        // redb has no bulk load. One transaction costs it least.
        self.write(Log::Synced, |table| {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            while next(&mut key, &mut value)? {
                table.insert(&key[..], &value[..]).map_err(wrong)?;
            }
            Ok(())
        })
    }
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop> {
        self.write(log, |table| {
            table.remove(key).map_err(wrong)?;
            Ok(())
        })
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let found = self.table()?.get(key).map_err(wrong)?;
        if let Some(value) = &found {
            show(value.value());
        }
        Ok(found.is_some())
    }
    fn multi_get(
        &self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Stop> {
        let table = self.table()?;
        for (i, key) in keys.iter().enumerate() {
            let found = table.get(&key[..]).map_err(wrong)?;
            show(i, found.as_ref().map(|v| v.value()));
        }
        Ok(())
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        let mut seen = 0;
        let table = self.table()?;
        for entry in table.range(key..).map_err(wrong)?.take(limit as usize) {
            let (key, value) = entry.map_err(wrong)?;
            show(key.value(), value.value());
            seen += 1;
        }
        Ok(seen)
    }
    fn flush(&self) -> Result<(), Stop> {
        self.write(Log::Synced, |_| Ok(()))
    }
}
