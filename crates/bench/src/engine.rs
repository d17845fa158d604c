//! The door that a measured engine stands behind, so that peers are measured by the same workloads.
//!
//! Peers are built only with their features (`peer-rocksdb`, `peer-fjall`), and an engine that was
//! not built is refused with a sentence that says how to build it.

mod basalt;
mod budget;
#[cfg(feature = "peer-fjall")]
mod fjall;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;

use crate::Stop;
use crate::flags::Switch;
use ::basalt::fs::{FileSystem, FsStats};
use clap::ValueEnum;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

pub use budget::{Budget, Compression};

/// The engines that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Basalt's log-structured merge tree
    Basalt,
    /// The same, each store in an image with LavaFS (--image-size)
    BasaltLava,
    /// RocksDB (needs the feature peer-rocksdb)
    Rocksdb,
    /// RocksDB with large values in blob files (BlobDB), garbage collected in compactions as it is
    /// by default
    RocksdbBlob,
    /// The same, garbage collection forced from a fifth of garbage on over files of all ages
    RocksdbBlobForced,
    /// BlobDB that writes values to blob files at once
    RocksdbBlobDirect,
    /// fjall (needs the feature peer-fjall)
    Fjall,
}

impl EngineName {
    /// As it is written on the command line.
    pub fn word(self) -> &'static str {
        match self {
            EngineName::Basalt => "basalt",
            EngineName::BasaltLava => "basalt-lava",
            EngineName::Rocksdb => "rocksdb",
            EngineName::RocksdbBlob => "rocksdb-blob",
            EngineName::RocksdbBlobForced => "rocksdb-blob-forced",
            EngineName::RocksdbBlobDirect => "rocksdb-blob-direct",
            EngineName::Fjall => "fjall",
        }
    }

    /// Says how to get an engine that this program was built without.
    pub fn check_built(self) -> Result<(), Stop> {
        let built = match self {
            EngineName::Basalt | EngineName::BasaltLava => true,
            EngineName::Fjall => cfg!(feature = "peer-fjall"),
            _ => cfg!(feature = "peer-rocksdb"),
        };
        if built {
            return Ok(());
        }
        let word = self.word();
        let peer = word.split('-').next().unwrap_or(word);
        Err(Stop::new(format!(
            "this program was built without {word}: build it with `cargo build --release -p basalt-bench --features peer-{peer}`, \
             as docs/benchmarks.md says"
        )))
    }
}

/// What an engine does with the log of a write before the write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// The engine writes no log if it can work without one, else an unsynced log.
    None,
    /// The log is written to the operating system. It survives the process.
    Unsynced,
    /// The log is synced. It survives a power cut.
    Synced,
}

/// How reads of the device can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// By the engine's own filesystem layer.
    Counted,
    /// By read calls of the process: its files are read past the page cache, so each is a read of
    /// the device.
    Calls,
    /// Not: the page cache stands in between.
    Hidden,
}

/// What an engine tells of itself at a moment. `None` where it does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    /// Microseconds that writers were slowed or held, since it was opened, summed over them.
    pub stall_us: Option<u64>,
    /// Bytes that compactions should move soon.
    pub compaction_debt: Option<u64>,
    /// Compactions at work.
    pub compactions: Option<u64>,
    /// Bytes on disk that are space kept for logs.
    pub log_bytes: Option<u64>,
}

/// Gives the next entry of a bulk load, key and value; false behind the last.
pub type Next<'a> = dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> Result<bool, Stop> + 'a;

/// What a workload needs of an engine. Calls come from many threads.
pub trait Engine: Send + Sync {
    /// Its name and version in reports.
    fn name(&self) -> String;
    /// The full configuration it runs with, as it has it itself.
    fn configuration(&self) -> Value;
    /// Sets a key.
    fn put(&self, key: &[u8], value: &[u8], log: Log) -> Result<(), Stop>;
    /// Sets keys, all or none.
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], log: Log) -> Result<(), Stop>;
    /// Adds entries that come in the order of their keys the way that the engine has for much data:
    /// as tables that are made beside it, where it takes such. Durable afterwards. No other call's
    /// keys lie between them.
    fn bulk(&self, next: &mut Next<'_>) -> Result<(), Stop>;
    /// Removes a key, if it is there.
    fn delete(&self, key: &[u8], log: Log) -> Result<(), Stop>;
    /// Shows the value of a key, if it has one, without copying it where the engine can. True when
    /// it has one.
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop>;
    /// Shows the value of each key, or `None`, as of one moment.
    fn multi_get(
        &self,
        keys: &[Vec<u8>],
        show: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Stop>;
    /// Shows up to `limit` entries in order from `key` on; how many there were.
    fn scan(&self, key: &[u8], limit: u64, show: &mut dyn FnMut(&[u8], &[u8]))
    -> Result<u64, Stop>;
    /// Writes memory out and waits.
    fn flush(&self) -> Result<(), Stop>;
    /// Writes memory out and waits until no compaction is due.
    fn wait_idle(&self) -> Result<(), Stop>;
    /// Compacts everything to the lowest level and waits.
    fn compact(&self) -> Result<(), Stop>;
    /// Stalls and debt.
    fn stats(&self) -> EngineStats;
    /// Its own account of what it wrote and read, if it keeps one.
    fn accounting(&self) -> Option<FsStats>;
    /// How its reads of the device can be counted.
    fn reads(&self) -> Read;
    /// Bytes that a durable put of this size writes to the log: what the device is asked to write
    /// at least.
    fn durable_put_bytes(&self, key: usize, value: usize) -> usize;
    /// Closes it: later calls fail.
    fn close(&self) -> Result<(), Stop>;
}

/// Opens an engine over the directory `dir`/`name`, which exists afterwards.
pub fn open(
    engine: EngineName,
    dir: &Path,
    name: &str,
    budget: &Budget,
) -> Result<Arc<dyn Engine>, Stop> {
    engine.check_built()?;
    match engine {
        EngineName::Basalt => {
            let fs = host_directory(dir, budget.direct)?;
            let env = basalt::environment(budget).with_fs(fs);
            Ok(Arc::new(basalt::Basalt::open(env, name, budget)?))
        }
        EngineName::BasaltLava => {
            let env = basalt::environment(budget);
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
        #[cfg(not(all(feature = "peer-rocksdb", feature = "peer-fjall")))]
        _ => Err(Stop::new("an engine that was not built was let through")),
    }
}

/// The version of a peer's crate that this program was built with.
#[cfg(feature = "peer-fjall")]
fn locked_version(name: &str) -> &'static str {
    let name = format!("name = \"{name}\"");
    let mut lines = include_str!("../../../Cargo.lock").lines();
    lines.find(|l| *l == name);
    let version = lines.next().and_then(|l| l.strip_prefix("version = \""));
    version.map_or("of unknown version", |v| v.trim_end_matches('"'))
}

/// The host directory `dir`, made when it is not there.
pub fn host_directory(dir: &Path, direct: Switch) -> Result<Arc<dyn FileSystem>, Stop> {
    let options = ::basalt::fs::HostOptions::new(dir).direct(direct == Switch::On);
    let fs = ::basalt::fs::HostFs::new(options)?;
    fs.create_dir(Path::new(""))?;
    Ok(fs)
}

/// The image in the directory `dir`, made when it is not there.
fn image(
    dir: &Path,
    size: u64,
    env: &::basalt::env::EnvParts,
) -> Result<Arc<dyn FileSystem>, Stop> {
    use ::basalt::lava::image::{self, Format};
    let name = "store.lava";
    let path = dir.join(name);
    if !host_directory(dir, Switch::Off)?.exists(Path::new(name))? {
        let how = Format {
            size: Some(size),
            ..Format::default()
        };
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

/// Bytes allocated under a directory.
pub fn tree_bytes(fs: &dyn FileSystem, path: &Path) -> Result<u64, Stop> {
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
                Err(e) => return Err(e.into()),
            }
        };
    }
    Ok(sum)
}
