//! Settings of a tree.

use basalt_fs::{Error, Result};
use basalt_kv::codec::Compression;
use std::ops::RangeInclusive;

const PAGE_BYTES: RangeInclusive<usize> = 256..=256 << 10;
const EXTENT_BYTES: RangeInclusive<u64> = 4 << 10..=1 << 30;
const CHAIN: RangeInclusive<usize> = 2..=64;

/// Settings of a tree.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TreeOptions {
    /// Create the tree if there is none. Default `true`.
    pub create_if_missing: bool,
    /// Bytes of a base page before compression, 256 B to 256 KiB. A page is split above it. Default
    /// 64 KiB (ArkDB, section 6.1).
    pub page_bytes: usize,
    /// Bytes of an extent, 4 KiB to 1 GiB. Default 64 MiB.
    pub extent_bytes: u64,
    /// A leaf with this many delta pages is compacted. 2 to 64, default 8. The paper has 4 (section
    /// 6.2), and writes more (decision 0042).
    pub max_deltas: usize,
    /// A compaction rewrites the base page if the delta pages have at least this many bytes for
    /// each byte of the base page. 0 to 100, default 0.5. The paper has 0.25 (section 4.1.2), and
    /// writes more (decision 0042).
    pub overwrite_ratio: f64,
    /// Compression of pages. Default LZ4.
    pub compression: Compression,
    /// Garbage collection rewrites a sealed extent of base pages when this fraction of it is
    /// garbage, 0.05 to 1. Default 0.5.
    pub base_garbage: f64,
    /// Garbage collection rewrites a sealed extent of delta pages when this fraction of it is
    /// garbage, 0.05 to 1. It is larger than `base_garbage` because delta pages become garbage
    /// soon. Default 0.75.
    pub delta_garbage: f64,
    /// Bytes of the system log that make a system checkpoint due, any number. Default 16 MiB.
    pub checkpoint_bytes: u64,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            create_if_missing: true,
            page_bytes: 64 << 10,
            extent_bytes: 64 << 20,
            max_deltas: 8,
            overwrite_ratio: 0.5,
            compression: Compression::Lz4,
            base_garbage: 0.5,
            delta_garbage: 0.75,
            checkpoint_bytes: 16 << 20,
        }
    }
}

impl TreeOptions {
    /// Checks that values are inside their documented ranges. The error names the option, its value
    /// and its range.
    pub fn validate(&self) -> Result<()> {
        in_range("page_bytes", &self.page_bytes, &PAGE_BYTES)?;
        in_range("extent_bytes", &self.extent_bytes, &EXTENT_BYTES)?;
        in_range("max_deltas", &self.max_deltas, &CHAIN)?;
        in_range("overwrite_ratio", &self.overwrite_ratio, &(0.0..=100.0))?;
        in_range("base_garbage", &self.base_garbage, &(0.05..=1.0))?;
        in_range("delta_garbage", &self.delta_garbage, &(0.05..=1.0))
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(
    option: &str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<()> {
    match range.contains(value) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "option {option} is {value}; it must be {} to {}",
            range.start(),
            range.end()
        ))),
    }
}
