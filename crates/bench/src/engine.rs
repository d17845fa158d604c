//! The interface of a measured engine, so that the same workloads measure all engines.
//!
//! Peers are built only with their features (`peer-rocksdb`, `peer-redb`, ...). For an engine that
//! was not built, the error says how to build it.

mod basalt;
#[cfg(feature = "peer-bf-tree")]
mod bf_tree;
mod budget;
#[cfg(feature = "peer-fjall")]
mod fjall;
#[cfg(feature = "peer-lmdb")]
mod lmdb;
#[cfg(feature = "peer-mace")]
mod mace;
#[cfg(feature = "peer-redb")]
mod redb;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;
mod tree_option;

use crate::Stop;
use crate::flags::Switch;
use ::basalt::PageTreeStats;
use ::basalt::fs::{FileSystem, FsStats};
use clap::ValueEnum;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

pub(crate) use basalt::environment;
pub use budget::{Budget, Compression, StoreUse};
#[cfg(feature = "peer-rocksdb")]
pub(crate) use rocksdb::options_file;
pub use tree_option::TreeOption;

/// The engines of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Basalt's log-structured merge tree
    Basalt,
    /// Basalt, with each store in an image with LavaFS (--image-size)
    BasaltLava,
    /// Basalt, with each store in a tree of pages
    Tree,
    /// RocksDB (needs the feature peer-rocksdb)
    Rocksdb,
    /// RocksDB with large values in blob files (BlobDB), with the default garbage collection in
    /// compactions
    RocksdbBlob,
    /// BlobDB with forced garbage collection: from a fifth of garbage on, over files of all ages
    RocksdbBlobForced,
    /// BlobDB that writes values to blob files directly
    RocksdbBlobDirect,
    /// fjall (needs the feature peer-fjall)
    Fjall,
    /// redb, a copy-on-write B-tree (needs the feature peer-redb)
    Redb,
    /// LMDB, a copy-on-write B-tree in mapped memory (needs the feature peer-lmdb)
    Lmdb,
    /// mace-kv, a tree of pages with deltas (needs the feature peer-mace)
    Mace,
    /// Bf-Tree, for workloads whose data need not survive a crash (needs the feature peer-bf-tree)
    BfTree,
}

impl EngineName {
    /// Returns the name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            EngineName::Basalt => "basalt",
            EngineName::BasaltLava => "basalt-lava",
            EngineName::Tree => "tree",
            EngineName::Rocksdb => "rocksdb",
            EngineName::RocksdbBlob => "rocksdb-blob",
            EngineName::RocksdbBlobForced => "rocksdb-blob-forced",
            EngineName::RocksdbBlobDirect => "rocksdb-blob-direct",
            EngineName::Fjall => "fjall",
            EngineName::Redb => "redb",
            EngineName::Lmdb => "lmdb",
            EngineName::Mace => "mace",
            EngineName::BfTree => "bf-tree",
        }
    }

    /// Returns true if a crash of the process loses the puts of the engine.
    pub fn is_volatile(self) -> bool {
        self == EngineName::BfTree
    }

    /// Returns an error that says how to build an engine, if this program was built without it.
    pub fn check_built(self) -> Result<(), Stop> {
        let (peer, built) = match self {
            EngineName::Basalt | EngineName::BasaltLava | EngineName::Tree => return Ok(()),
            EngineName::Rocksdb
            | EngineName::RocksdbBlob
            | EngineName::RocksdbBlobForced
            | EngineName::RocksdbBlobDirect => ("rocksdb", cfg!(feature = "peer-rocksdb")),
            EngineName::Fjall => ("fjall", cfg!(feature = "peer-fjall")),
            EngineName::Redb => ("redb", cfg!(feature = "peer-redb")),
            EngineName::Lmdb => ("lmdb", cfg!(feature = "peer-lmdb")),
            EngineName::Mace => ("mace", cfg!(feature = "peer-mace")),
            EngineName::BfTree => ("bf-tree", cfg!(feature = "peer-bf-tree")),
        };
        if built {
            return Ok(());
        }
        let word = self.word();
        Err(Stop::new(format!(
            "this program was built without {word}: build it with `cargo build --release -p basalt-bench --features peer-{peer}`, \
             as docs/benchmarks.md says"
        )))
    }
}

/// The step that an engine takes with the log of a write before the write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// The engine writes no log if it can work without one, else an unsynced log.
    None,
    /// The log is written to the operating system. It survives the process.
    Unsynced,
    /// The log is synced. It survives a power cut.
    Synced,
}

/// The way to count the reads of an engine from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The engine's own filesystem layer counts them.
    Counted,
    /// The kernel counts the read calls of the process. Its files are read past the page cache, so
    /// each call is a read of the device.
    Calls,
    /// They cannot be counted, because the page cache is in between.
    Hidden,
}

/// The state of an engine at one moment. A field is `None` if the engine does not report it.
#[derive(Clone, Debug, Default)]
pub struct EngineStats {
    /// Microseconds for which writers were slowed or stopped since the open, summed over all
    /// writers.
    pub stall_us: Option<u64>,
    /// Bytes that are due for compaction.
    pub compaction_debt: Option<u64>,
    /// Number of running compactions.
    pub compactions: Option<u64>,
    /// Bytes on disk that are reserved for logs.
    pub log_bytes: Option<u64>,
    /// Bytes of memtables. After a crash, the open rebuilds them from the log.
    pub memtable_bytes: Option<u64>,
    /// Statistics of the tree of pages, of an engine that has one.
    pub pages: Option<PageTreeStats>,
}

/// Writes the next entry of a bulk load to key and value. Returns false at the end.
pub type Next<'a> = dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> Result<bool, Stop> + 'a;

/// Entries in a batch of a bulk load, for engines without a bulk load.
pub const BULK_BATCH: usize = 100;

/// The operations of an engine that workloads use. Calls come from many threads.
pub trait Engine: Send + Sync {
    /// Returns the name and version for reports.
    fn name(&self) -> String;
    /// Returns the full configuration, as the engine itself reports it.
    fn configuration(&self) -> Value;
    /// Sets a key.
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop>;
    /// Sets keys in one atomic batch.
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop>;
    /// Adds entries that come in the order of their keys by the engine's way for bulk loads, such
    /// as tables that are made beside the store. The entries are durable on return. No other call
    /// adds keys between them. The default is for engines without a bulk load: batches of
    /// [`BULK_BATCH`] entries, of which the last is synced.
    fn bulk(&self, next: &mut Next<'_>) -> Result<(), Stop> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut batch = Vec::new();
        while next(&mut key, &mut value)? {
            if batch.len() == BULK_BATCH {
                self.put_batch(&batch, Log::Unsynced)?;
                batch.clear();
            }
            batch.push((key.clone(), value.clone()));
        }
        self.put_batch(&batch, Log::Synced)
    }
    /// Removes a key if it exists.
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop>;
    /// Calls `show` with the value of a key if it has one, without a copy if the engine can do
    /// that. Returns true if the key has a value.
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop>;
    /// Calls `show` with the value of each key, or `None`, as of one moment. The default is for
    /// engines without such a call: a get of each key, which is not of one moment.
    fn multi_get(
        &self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Stop> {
        for (i, key) in keys.iter().enumerate() {
            if !self.get(key, &mut |value| show(i, Some(value)))? {
                show(i, None);
            }
        }
        Ok(())
    }
    /// Calls `show` with up to `limit` entries in order from `key` on. Returns their number.
    fn scan(&self, key: &[u8], limit: u64, show: &mut dyn FnMut(&[u8], &[u8]))
    -> Result<u64, Stop>;
    /// Flushes the memtables and waits.
    fn flush(&self) -> Result<(), Stop>;
    /// Flushes the memtables and waits until no compaction is due. The default is for engines
    /// without background work.
    fn wait_idle(&self) -> Result<(), Stop> {
        self.flush()
    }
    /// Compacts everything to the lowest level and waits. The default is for engines that have no
    /// garbage to merge.
    fn compact(&self) -> Result<(), Stop> {
        self.flush()
    }
    /// Returns stalls and compaction debt. The default is for engines that report nothing.
    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
    /// Returns the engine's own counters of bytes written and read, if it has any.
    fn accounting(&self) -> Option<FsStats> {
        None
    }
    /// Returns how reads of the device can be counted. The default is for engines that read through
    /// the page cache.
    fn reads(&self) -> Read {
        Read::Hidden
    }
    /// Returns the least bytes that a durable put of this size writes to the log.
    fn durable_put_bytes(&self, key: usize, value: usize) -> usize {
        key + value
    }
    /// Closes the engine. Later calls fail. The default is for engines that do the rest when they
    /// are dropped.
    fn close(&self) -> Result<(), Stop> {
        self.flush()
    }
}

/// Opens an engine on the directory `dir`/`name`, and makes the directory if it is missing.
pub fn open(
    engine: EngineName,
    dir: &Path,
    name: &str,
    budget: &Budget,
) -> Result<Arc<dyn Engine>, Stop> {
    engine.check_built()?;
    match engine {
        EngineName::Basalt | EngineName::Tree => {
            let fs = host_directory(dir, budget.direct)?;
            let env =
                environment(budget.memory, budget.cache, budget.background_threads).with_fs(fs);
            Ok(Arc::new(match engine {
                EngineName::Tree => basalt::Basalt::open_tree(env, name, budget)?,
                _ => basalt::Basalt::open(env, name, budget)?,
            }))
        }
        EngineName::BasaltLava => {
            let env = environment(budget.memory, budget.cache, budget.background_threads);
            let fs = image(&dir.join(name), budget.image_size, &env)?;
            let env = env.with_fs(fs);
            Ok(Arc::new(basalt::Basalt::open(env, "store", budget)?))
        }
        #[cfg(feature = "peer-rocksdb")]
        EngineName::Rocksdb
        | EngineName::RocksdbBlob
        | EngineName::RocksdbBlobForced
        | EngineName::RocksdbBlobDirect => Ok(Arc::new(rocksdb::Rocks::open(
            &dir.join(name),
            budget,
            engine,
        )?)),
        #[cfg(feature = "peer-fjall")]
        EngineName::Fjall => Ok(Arc::new(fjall::Fjall::open(&dir.join(name), budget)?)),
        #[cfg(feature = "peer-redb")]
        EngineName::Redb => Ok(Arc::new(redb::Redb::open(&dir.join(name), budget)?)),
        #[cfg(feature = "peer-lmdb")]
        EngineName::Lmdb => Ok(Arc::new(lmdb::Lmdb::open(&dir.join(name), budget)?)),
        #[cfg(feature = "peer-mace")]
        EngineName::Mace => Ok(Arc::new(mace::MaceStore::open(&dir.join(name), budget)?)),
        #[cfg(feature = "peer-bf-tree")]
        EngineName::BfTree => Ok(Arc::new(bf_tree::BfStore::open(&dir.join(name), budget)?)),
        #[cfg(not(all(
            feature = "peer-rocksdb",
            feature = "peer-fjall",
            feature = "peer-redb",
            feature = "peer-lmdb",
            feature = "peer-mace",
            feature = "peer-bf-tree"
        )))]
        _ => Err(Stop::new("an engine that was not built was let through")),
    }
}

/// Returns an error if the flags ask for compression. It is for engines that have none.
#[cfg(any(feature = "peer-redb", feature = "peer-lmdb", feature = "peer-bf-tree"))]
fn refuse_compression(engine: &str, budget: &Budget) -> Result<(), Stop> {
    match budget.compression {
        Compression::None => Ok(()),
        _ => Err(Stop::new(format!(
            "{engine} has no compression: leave it out, or choose --compression none"
        ))),
    }
}

/// Returns the version of a peer's crate in this build.
#[cfg(any(
    feature = "peer-fjall",
    feature = "peer-redb",
    feature = "peer-lmdb",
    feature = "peer-mace",
    feature = "peer-bf-tree",
    feature = "peer-raft-engine",
    feature = "peer-raft-log"
))]
pub(crate) fn locked_version(name: &str) -> &'static str {
    let name = format!("name = \"{name}\"");
    let mut lines = include_str!("../../../Cargo.lock").lines();
    lines.find(|l| *l == name);
    let version = lines.next().and_then(|l| l.strip_prefix("version = \""));
    version.map_or("of unknown version", |v| v.trim_end_matches('"'))
}

/// Opens the host directory `dir`, and makes it if it is missing.
pub fn host_directory(dir: &Path, direct: Switch) -> Result<Arc<dyn FileSystem>, Stop> {
    let options = ::basalt::fs::HostOptions::new(dir).direct(direct == Switch::On);
    let fs = ::basalt::fs::HostFs::new(options)?;
    fs.create_dir(Path::new(""))?;
    Ok(fs)
}

/// Opens the image in the directory `dir`, and makes it if it is missing.
pub(crate) fn image(
    dir: &Path,
    size: u64,
    env: &::basalt::env::EnvParts,
) -> Result<Arc<dyn FileSystem>, Stop> {
    use ::basalt::lava::image::{self, Format};
    let name = "store.lava";
    let path = dir.join(name);
    if !host_directory(dir, Switch::Off)?.exists(Path::new(name))? {
        let how = Format::default().size(Some(size));
        image::format(&path, &how, &mut |_, _, _| ())?;
    }
    Ok(image::open(&path, false, Some(env))?)
}

/// Removes a directory with everything in it.
pub fn remove_tree(fs: &dyn FileSystem, path: &Path) -> Result<(), Stop> {
    for entry in fs.list(path)? {
        let inner = path.join(&entry.name);
        if entry.is_dir {
            remove_tree(fs, &inner)?;
        } else {
            fs.remove(&inner)?;
        }
    }
    Ok(fs.remove(path)?)
}

/// Returns the bytes that the files below a directory take on the device.
pub fn tree_bytes(fs: &dyn FileSystem, path: &Path) -> Result<u64, Stop> {
    let mut sum = 0;
    for entry in fs.list(path)? {
        let inner = path.join(&entry.name);
        sum += if entry.is_dir {
            tree_bytes(fs, &inner)?
        } else {
            match fs.stat(&inner) {
                Ok(stat) => stat.on_disk,
                // An obsolete file was removed between the two calls.
                Err(e) if e.is_not_found() => 0,
                Err(e) => return Err(e.into()),
            }
        };
    }
    Ok(sum)
}
