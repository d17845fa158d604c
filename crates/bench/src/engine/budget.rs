//! The budget and the settings of a measured engine.

use super::TreeOption;
use crate::flags::{Switch, parse_size};
use clap::ValueEnum;

/// Compression of blocks and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// No compression
    None,
    /// lz4
    Lz4,
    /// zstd
    Zstd,
}

/// Limits of an engine, the same for all engines of a run.
#[derive(clap::Args, Debug, Clone)]
pub struct Budget {
    /// Limit memory to this many bytes in all
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub memory: u64,
    /// Use this many bytes of the memory for the block cache
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_size)]
    pub cache: u64,
    /// Flush a memtable at this many bytes
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub write_buffer: u64,
    /// Run this many background threads; 0 takes the engine's default (in `compare` 4, for each
    /// engine)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub background_threads: usize,
    /// Compress data blocks, and values in blob files, in this way
    #[arg(long, value_enum, default_value = "none")]
    pub compression: Compression,
    /// Use direct I/O, past the page cache
    #[arg(long, value_enum, default_value = "on")]
    pub direct: Switch,
    /// Use this many filter bits a key
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub filter_bits: u32,
    /// Cut data blocks at this many bytes before compression; the pages of the engine tree, too, at
    /// 256 to 256K [default: 4K, and 64K for pages]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub block_size: Option<u64>,
    /// Take a system checkpoint of the engine tree when its system log has this many bytes
    /// [default: 16M; in restart so many that none is taken]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub checkpoint_bytes: Option<u64>,
    /// Keep Basalt's values of at least this many bytes in blob files; 0 for none. RocksDB's BlobDB
    /// has --rocksdb-option min_blob_size
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub min_blob_size: u64,
    /// Let Basalt's blob files take at most this many bytes for each byte of theirs in use; 1000 is
    /// no bound
    #[arg(long, value_name = "N", default_value_t = 1.25)]
    pub max_space_amp: f64,
    /// Make the images of basalt-lava's stores this many bytes long
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = parse_size)]
    pub image_size: u64,
    /// Set an option of RocksDB by its own name, over those of docs/benchmarks.md; may be repeated
    #[arg(long = "rocksdb-option", value_name = "NAME=VALUE")]
    pub rocksdb_options: Vec<String>,
    /// Set an option of the engine tree by name, as in overwrite_ratio=0.25; may be repeated
    #[arg(long = "tree-option", value_name = "NAME=VALUE", value_parser = TreeOption::parse)]
    pub tree_options: Vec<TreeOption>,
    /// What the run does with its store. It follows from the workload; no flag sets it.
    #[arg(skip)]
    pub store_use: StoreUse,
}

/// What a run does with its store, for engines that must know it when they open the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUse {
    /// True if the measured puts are synced. mace chooses this for all puts of an open store.
    pub synced: bool,
    /// True if the store is opened again after it was closed. Bf-Tree then needs a snapshot.
    pub reopened: bool,
}

impl Default for StoreUse {
    fn default() -> StoreUse {
        StoreUse {
            synced: false,
            reopened: true,
        }
    }
}

impl Budget {
    /// Returns the bytes of a data block before compression.
    pub fn block_bytes(&self) -> u64 {
        self.block_size.unwrap_or(4 << 10)
    }
}
