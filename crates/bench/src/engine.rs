//! The door that a measured engine stands behind, so that peers can be measured by the same workloads.

use crate::args::{Common, Compression, Switch};
use basalt::env::Env;
use basalt::fs::{FileSystem, FsStats};
use basalt::lsm::WriteBatch;
use basalt::{Db, Family, Options, ReadOptions, Result, WriteOptions};
use clap::ValueEnum;
use std::path::Path;
use std::sync::Arc;

/// The engines that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Basalt's log-structured merge tree
    Basalt,
}

/// What a workload needs of an engine. Calls come from many threads.
pub trait Engine: Send + Sync {
    /// Its name and version in reports.
    fn name(&self) -> String;
    /// Sets a key. With `durable` it survives a power cut when the call returns.
    fn put(&self, key: &[u8], value: &[u8], durable: bool) -> Result<()>;
    /// Shows the value of a key, if it has one, without copying it where the engine can. True when it has one.
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// Shows up to `limit` entries in order from `key` on; how many there were.
    fn scan(&self, key: &[u8], limit: u64, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64>;
    /// Writes memory out and waits until no compaction is due.
    fn settle(&self) -> Result<()>;
    /// Bytes that it has on disk, logs included.
    fn disk_bytes(&self) -> Result<u64>;
    /// Bytes of `disk_bytes` that are space kept for logs.
    fn log_bytes(&self) -> u64;
    /// Its own account of what it wrote and read, if it keeps one.
    fn accounting(&self) -> FsStats;
    /// Bytes that a durable put of this size writes to the log: what the device is asked to write at least.
    fn durable_put_bytes(&self, key: usize, value: usize) -> usize;
    /// Closes it: later calls fail.
    fn close(&self) -> Result<()>;
}

/// Opens an engine over the directory `dir`/`name`, which exists afterwards.
pub fn open(dir: &Path, name: &str, budget: &Common) -> Result<Box<dyn Engine>> {
    match budget.engine {
        EngineName::Basalt => Ok(Box::new(Basalt::open(dir, name, budget)?)),
    }
}

/// The host directory `dir`, made when it is not there.
pub fn host_directory(dir: &Path, direct: Switch) -> Result<Arc<dyn FileSystem>> {
    let fs =
        basalt::fs::HostFs::new(basalt::fs::HostOptions::new(dir).direct(direct == Switch::On))?;
    fs.create_dir(Path::new(""))?;
    Ok(fs)
}

/// Removes a directory with everything in it.
pub fn remove_tree(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    for entry in fs.list(path)? {
        let inner = path.join(&entry.name);
        if entry.is_dir {
            remove_tree(fs, &inner)?;
        } else {
            fs.remove(&inner)?;
        }
    }
    fs.remove(path)
}

/// Bytes allocated under a directory.
fn tree_bytes(fs: &dyn FileSystem, path: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs.list(path)? {
        let inner = path.join(&entry.name);
        sum += if entry.is_dir {
            tree_bytes(fs, &inner)?
        } else {
            match fs.stat(&inner) {
                Ok(stat) => stat.allocated,
                // An obsolete file went between the two calls.
                Err(e) if e.is_not_found() => 0,
                Err(e) => return Err(e),
            }
        };
    }
    Ok(sum)
}

struct Basalt {
    env: Env,
    db: Db,
    family: Family,
    path: std::path::PathBuf,
}

impl Basalt {
    fn open(dir: &Path, name: &str, budget: &Common) -> Result<Basalt> {
        let mut env = Env::builder(host_directory(dir, budget.direct)?)
            .memory_bytes(budget.memory)
            .cache_bytes(budget.cache);
        if budget.background_threads > 0 {
            env = env.threads(budget.background_threads);
        }
        let env = env.build();
        let mut options = Options {
            write_buffer_bytes: budget.write_buffer,
            ..Options::default()
        };
        options.default_family.compression = match budget.compression {
            Compression::None => basalt::Compression::None,
            Compression::Lz4 => basalt::Compression::Lz4,
            Compression::Zstd => basalt::Compression::Zstd,
        };
        let db = Db::open(&env, name, options)?;
        Ok(Basalt {
            family: db.default_family(),
            path: name.into(),
            env,
            db,
        })
    }
}

impl Engine for Basalt {
    fn name(&self) -> String {
        format!("basalt {}", env!("CARGO_PKG_VERSION"))
    }
    fn put(&self, key: &[u8], value: &[u8], durable: bool) -> Result<()> {
        self.db
            .put(&self.family, key, value, &WriteOptions { sync: durable })
            .map(|_| ())
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.db.get(&self.family, key, &ReadOptions::default())?;
        if let Some(value) = &found {
            show(value);
        }
        Ok(found.is_some())
    }
    fn scan(&self, key: &[u8], limit: u64, show: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
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
    fn settle(&self) -> Result<()> {
        self.db.flush()?;
        self.db.settle()
    }
    fn disk_bytes(&self) -> Result<u64> {
        tree_bytes(self.env.fs().as_ref(), &self.path)
    }
    fn log_bytes(&self) -> u64 {
        self.db.stats().log_bytes
    }
    fn accounting(&self) -> FsStats {
        self.env.fs().stats()
    }
    fn durable_put_bytes(&self, key: usize, value: usize) -> usize {
        // As the log pads it. The contents do not matter to its length.
        let mut batch = WriteBatch::new();
        let bytes = match batch.put(&self.family, &vec![0; key], &vec![0; value]) {
            Ok(()) => batch.bytes(),
            Err(_) => key + value,
        };
        bytes.next_multiple_of(self.env.fs().info().write_unit)
    }
    fn close(&self) -> Result<()> {
        self.db.clone().close()
    }
}
