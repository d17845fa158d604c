//! The budget and the settings that an engine is measured with.

use crate::flags::{Switch, parse_size};
use clap::ValueEnum;

/// Compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// As they are
    None,
    /// lz4
    Lz4,
    /// zstd
    Zstd,
}

/// What an engine may use: the same for all.
#[derive(clap::Args, Debug, Clone)]
pub struct Budget {
    /// The whole memory budget
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub memory: u64,
    /// The block cache's part of it
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_size)]
    pub cache: u64,
    /// Memtable bytes at which a flush begins
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub write_buffer: u64,
    /// Background threads; 0 takes the engine's default (in `compare` 4, for each engine)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub background_threads: usize,
    /// Compression of data blocks, and of values in blob files
    #[arg(long, value_enum, default_value = "none")]
    pub compression: Compression,
    /// Direct I/O, past the page cache
    #[arg(long, value_enum, default_value = "on")]
    pub direct: Switch,
    /// Filter bits a key
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub filter_bits: u32,
    /// Bytes of a data block before compression
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub block_size: u64,
    /// Basalt keeps values from so many bytes on in blob files; 0 for none. RocksDB's BlobDB has
    /// --rocksdb-option min_blob_size
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub min_blob_size: u64,
    /// Bytes that Basalt's blob files may take for each byte of theirs in use; 1000 is no bound
    #[arg(long, value_name = "N", default_value_t = 1.25)]
    pub max_space_amp: f64,
    /// Size of the images that basalt-lava's stores lie in
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = parse_size)]
    pub image_size: u64,
    /// An option of RocksDB by its own name, over what docs/benchmarks.md lists; may be repeated
    #[arg(long = "rocksdb-option", value_name = "NAME=VALUE")]
    pub rocksdb_options: Vec<String>,
}
