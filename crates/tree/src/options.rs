//! Settings of a tree.

use crate::entries::{DropObserver, EntryFilter};
use basalt_fs::{Error, Result};
use basalt_kv::codec::Compression;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

const PAGE_BYTES: RangeInclusive<usize> = 256..=256 << 10;
const BLOCK_BYTES: RangeInclusive<usize> = 16..=256 << 10;
const EXTENT_BYTES: RangeInclusive<u64> = 4 << 10..=1 << 30;
const CHAIN: RangeInclusive<usize> = 2..=64;

/// Settings of a tree.
#[derive(Clone)]
#[non_exhaustive]
pub struct TreeOptions {
    /// Create the tree if there is none. Default `true`.
    pub create_if_missing: bool,
    /// Bytes of a base page before compression, 256 B to 256 KiB. A page is split above it. Default
    /// 64 KiB (ArkDB, section 6.1).
    pub page_bytes: usize,
    /// Bytes of a block before compression, 16 B to 256 KiB. A lookup reads one block of a page
    /// whose head is in the cache, and all of a page of up to 18 blocks whose head is not. A page
    /// of fewer bytes has one block. Default 4 KiB.
    pub block_bytes: usize,
    /// Bytes of an extent, 4 KiB to 1 GiB. Default 64 MiB.
    pub extent_bytes: u64,
    /// A leaf or an index page with about this many delta pages is compacted. 2 to 64, default 8.
    /// From 4 on, the exact number depends on the extent of the base page, and differs from this
    /// one by up to a quarter. So the pages of different extents are not all due at once, and those
    /// of one extent are due together. The paper has 4 (section 6.2), and writes more (decision
    /// 0042).
    pub max_deltas: usize,
    /// A compaction rewrites the base page if the delta pages have at least this many bytes for
    /// each byte of the base page. 0 to 100, default 0.5. The paper has 0.25 (section 4.1.2), and
    /// writes more (decision 0042).
    pub overwrite_ratio: f64,
    /// Least bytes of changes for each changed leaf below an index page, on average. If there are
    /// fewer, a user checkpoint writes one delta page of the index page instead of one for each
    /// leaf, so that a tree of any size has few delta pages. While an index page has delta pages,
    /// all changes below it go there. A single changed leaf always gets a delta page of its own,
    /// and the first user checkpoint with small changes still writes to the leaves. `None`, the
    /// default, is 2 KiB or an eighth of a page, the smaller of the two. 0: always delta pages of
    /// leaves.
    pub leaf_delta_bytes: Option<usize>,
    /// Bytes that merges of leaves without recent changes may write for each byte that user
    /// checkpoints write. 0 to 100, default 0.25. 0: such leaves keep their delta pages until
    /// readers have paid for their merge.
    pub cold_merge_ratio: f64,
    /// Most bytes of memory of the page mapping table, any number. Above it, maintenance rewrites
    /// leaves and their index pages, so that the leaves need no entry in the table. Entries of
    /// index pages, and those that only old snapshots need, stay. Default 16 MiB.
    pub mapping_bytes: u64,
    /// Most bytes of memory of the ranges of valid bytes in extents of base pages, any number.
    /// Above it, maintenance drops the ranges of the extents with the least fraction of garbage. A
    /// garbage collection of such an extent reads all index pages to derive them, for as many
    /// extents at once as fit in the free part of this number or a quarter of it, and for one at
    /// least (decision 0049). Default 8 MiB.
    pub usage_bytes: u64,
    /// Compression of pages. Default LZ4.
    pub compression: Compression,
    /// Garbage collection rewrites a sealed extent of base pages when this fraction of its bytes on
    /// the device is garbage, 0.05 to 1. Default 0.5. The space of most garbage pages is given back
    /// before (decision 0050).
    pub base_garbage: f64,
    /// Garbage collection rewrites a sealed extent of delta pages when this fraction of its bytes
    /// on the device is garbage, 0.05 to 1. It is larger than `base_garbage` because delta pages
    /// become garbage soon. Default 0.75.
    pub delta_garbage: f64,
    /// Most bytes of sealed extents on the device for each valid byte in them. 1.05 to 100, default
    /// 1.25. Above this bound, garbage collection rewrites the extents with the largest fraction of
    /// garbage, even below `base_garbage` and `delta_garbage`. Extents without a page in use do not
    /// count. Values that newer delta pages hide count as in use.
    pub max_space_amp: f64,
    /// Bytes of the system log that make a system checkpoint due, any number. Default 16 MiB.
    pub checkpoint_bytes: u64,
    /// Decides about entries when base pages are written. Default none.
    pub filter: Option<Arc<dyn EntryFilter>>,
    /// Is told which entries leave the pages. Default none.
    pub drop_observer: Option<Arc<dyn DropObserver>>,
}

impl fmt::Debug for TreeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeOptions")
            .field("create_if_missing", &self.create_if_missing)
            .field("page_bytes", &self.page_bytes)
            .field("block_bytes", &self.block_bytes)
            .field("extent_bytes", &self.extent_bytes)
            .field("max_deltas", &self.max_deltas)
            .field("overwrite_ratio", &self.overwrite_ratio)
            .field("leaf_delta_bytes", &self.leaf_delta_bytes)
            .field("cold_merge_ratio", &self.cold_merge_ratio)
            .field("mapping_bytes", &self.mapping_bytes)
            .field("usage_bytes", &self.usage_bytes)
            .field("compression", &self.compression)
            .field("base_garbage", &self.base_garbage)
            .field("delta_garbage", &self.delta_garbage)
            .field("max_space_amp", &self.max_space_amp)
            .field("checkpoint_bytes", &self.checkpoint_bytes)
            .field("filter", &self.filter.is_some())
            .field("drop_observer", &self.drop_observer.is_some())
            .finish()
    }
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            create_if_missing: true,
            page_bytes: 64 << 10,
            block_bytes: 4 << 10,
            extent_bytes: 64 << 20,
            max_deltas: 8,
            overwrite_ratio: 0.5,
            leaf_delta_bytes: None,
            cold_merge_ratio: 0.25,
            mapping_bytes: 16 << 20,
            usage_bytes: 8 << 20,
            compression: Compression::Lz4,
            base_garbage: 0.5,
            delta_garbage: 0.75,
            max_space_amp: 1.25,
            checkpoint_bytes: 16 << 20,
            filter: None,
            drop_observer: None,
        }
    }
}

impl TreeOptions {
    /// Sets [`TreeOptions::create_if_missing`].
    #[must_use]
    pub fn create_if_missing(mut self, create_if_missing: bool) -> Self {
        self.create_if_missing = create_if_missing;
        self
    }

    /// Sets [`TreeOptions::page_bytes`].
    #[must_use]
    pub fn page_bytes(mut self, page_bytes: usize) -> Self {
        self.page_bytes = page_bytes;
        self
    }

    /// Sets [`TreeOptions::block_bytes`].
    #[must_use]
    pub fn block_bytes(mut self, block_bytes: usize) -> Self {
        self.block_bytes = block_bytes;
        self
    }

    /// Sets [`TreeOptions::extent_bytes`].
    #[must_use]
    pub fn extent_bytes(mut self, extent_bytes: u64) -> Self {
        self.extent_bytes = extent_bytes;
        self
    }

    /// Sets [`TreeOptions::max_deltas`].
    #[must_use]
    pub fn max_deltas(mut self, max_deltas: usize) -> Self {
        self.max_deltas = max_deltas;
        self
    }

    /// Sets [`TreeOptions::overwrite_ratio`].
    #[must_use]
    pub fn overwrite_ratio(mut self, overwrite_ratio: f64) -> Self {
        self.overwrite_ratio = overwrite_ratio;
        self
    }

    /// Sets [`TreeOptions::leaf_delta_bytes`].
    #[must_use]
    pub fn leaf_delta_bytes(mut self, leaf_delta_bytes: Option<usize>) -> Self {
        self.leaf_delta_bytes = leaf_delta_bytes;
        self
    }

    /// Returns the least bytes of a delta page of a leaf.
    pub(crate) fn least_leaf_delta(&self) -> usize {
        (self.leaf_delta_bytes).unwrap_or((2 << 10).min(self.page_bytes / 8))
    }

    /// Sets [`TreeOptions::cold_merge_ratio`].
    #[must_use]
    pub fn cold_merge_ratio(mut self, cold_merge_ratio: f64) -> Self {
        self.cold_merge_ratio = cold_merge_ratio;
        self
    }

    /// Sets [`TreeOptions::mapping_bytes`].
    #[must_use]
    pub fn mapping_bytes(mut self, mapping_bytes: u64) -> Self {
        self.mapping_bytes = mapping_bytes;
        self
    }

    /// Sets [`TreeOptions::usage_bytes`].
    #[must_use]
    pub fn usage_bytes(mut self, usage_bytes: u64) -> Self {
        self.usage_bytes = usage_bytes;
        self
    }

    /// Sets [`TreeOptions::compression`].
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets [`TreeOptions::base_garbage`].
    #[must_use]
    pub fn base_garbage(mut self, base_garbage: f64) -> Self {
        self.base_garbage = base_garbage;
        self
    }

    /// Sets [`TreeOptions::delta_garbage`].
    #[must_use]
    pub fn delta_garbage(mut self, delta_garbage: f64) -> Self {
        self.delta_garbage = delta_garbage;
        self
    }

    /// Sets [`TreeOptions::max_space_amp`].
    #[must_use]
    pub fn max_space_amp(mut self, max_space_amp: f64) -> Self {
        self.max_space_amp = max_space_amp;
        self
    }

    /// Sets [`TreeOptions::checkpoint_bytes`].
    #[must_use]
    pub fn checkpoint_bytes(mut self, checkpoint_bytes: u64) -> Self {
        self.checkpoint_bytes = checkpoint_bytes;
        self
    }

    /// Sets [`TreeOptions::filter`].
    #[must_use]
    pub fn filter(mut self, filter: Option<Arc<dyn EntryFilter>>) -> Self {
        self.filter = filter;
        self
    }

    /// Sets [`TreeOptions::drop_observer`].
    #[must_use]
    pub fn drop_observer(mut self, drop_observer: Option<Arc<dyn DropObserver>>) -> Self {
        self.drop_observer = drop_observer;
        self
    }

    /// Checks that values are inside their documented ranges. The error names the option, its value
    /// and its range.
    pub fn validate(&self) -> Result<()> {
        in_range("page_bytes", &self.page_bytes, &PAGE_BYTES)?;
        in_range("block_bytes", &self.block_bytes, &BLOCK_BYTES)?;
        in_range("extent_bytes", &self.extent_bytes, &EXTENT_BYTES)?;
        in_range("max_deltas", &self.max_deltas, &CHAIN)?;
        in_range("overwrite_ratio", &self.overwrite_ratio, &(0.0..=100.0))?;
        in_range("cold_merge_ratio", &self.cold_merge_ratio, &(0.0..=100.0))?;
        in_range("base_garbage", &self.base_garbage, &(0.05..=1.0))?;
        in_range("delta_garbage", &self.delta_garbage, &(0.05..=1.0))?;
        in_range("max_space_amp", &self.max_space_amp, &(1.05..=100.0))
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
