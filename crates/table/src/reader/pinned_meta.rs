//! The filter pages and index partitions of an open table that stay at hand, so that a lookup finds them by their number: without the
//! cache's lock, its index, or a reference count that other threads write too.
//!
//! They are blocks of the cache, counted by it and pinned in it (`BlockCache::pin`), as far as it allows; whatever is not pinned is
//! asked of the cache each time. When the reader goes, they leave the cache.

use crate::format::filter;
use crate::format::{BlockHandle, Footer};
use crate::index::IndexBlock;
use basalt_env::sync::atomic::{AtomicBool, Ordering::Relaxed};
use basalt_env::{CacheKey, Env};
use basalt_fs::Bytes;
use std::sync::OnceLock;

/// An index partition and where it lies.
pub(crate) struct Partition {
    pub(crate) offset: u64,
    pub(crate) index: IndexBlock,
}

pub(crate) struct PinnedMeta {
    env: Env,
    file_id: u128,
    /// By page.
    filter: Box<[OnceLock<Bytes>]>,
    filter_offset: u64,
    /// By number in the top-level index.
    partitions: Box<[OnceLock<Partition>]>,
    /// The cache has pinned one for us.
    granted: AtomicBool,
    /// The cache has no room for more. Asked no more then: that would be a lock for each lookup.
    refused: AtomicBool,
}

impl PinnedMeta {
    pub(crate) fn new(
        env: &Env,
        file_id: u128,
        size: u64,
        footer: &Footer,
        top: &IndexBlock,
    ) -> PinnedMeta {
        // What a damaged table claims to have is not more memory than its pages could be worth: partitions close at 4 KiB.
        let most = size / 1024 + 1;
        let places = |n: u64| n.min(most) as usize;
        PinnedMeta {
            env: env.clone(),
            file_id,
            filter: (0..places(filter::pages(footer.filter_lines)))
                .map(|_| OnceLock::new())
                .collect(),
            filter_offset: footer.filter_offset,
            partitions: (0..places(top.len() as u64))
                .map(|_| OnceLock::new())
                .collect(),
            granted: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }

    fn pin(&self, offset: u64) -> bool {
        if self.refused.load(Relaxed) {
            return false;
        }
        let key = CacheKey {
            file: self.file_id,
            offset,
        };
        let cache = self.env.cache();
        // A read that keeps nothing leaves nothing to pin, and says nothing of the cache's room.
        let pinned = cache.pin(key);
        if pinned {
            self.granted.store(true, Relaxed);
        } else if cache.contains(key) {
            self.refused.store(true, Relaxed);
        }
        pinned
    }

    /// True when the cache has pinned all that it was asked to, and that was something.
    pub(crate) fn have_room(&self) -> bool {
        // Relaxed: who sees it late reads a block more, or less, than need be.
        self.granted.load(Relaxed) && !self.refused.load(Relaxed)
    }

    #[inline]
    pub(crate) fn filter(&self, page: u64) -> Option<&Bytes> {
        self.filter.get(page as usize)?.get()
    }

    /// Keeps a filter page that the cache returned, if it may be pinned.
    pub(crate) fn offer_filter(&self, page: u64, handle: &BlockHandle, payload: &Bytes) {
        if let Some(place) = self.filter.get(page as usize)
            && self.pin(handle.offset)
        {
            // Another thread may have been first.
            let _ = place.set(payload.clone());
        }
    }

    #[inline]
    pub(crate) fn partition(&self, i: usize) -> Option<&Partition> {
        self.partitions.get(i)?.get()
    }

    /// Keeps an index partition that the cache returned, if it may be pinned.
    pub(crate) fn offer_partition(&self, i: usize, handle: &BlockHandle, index: &IndexBlock) {
        if let Some(place) = self.partitions.get(i)
            && self.pin(handle.offset)
        {
            let _ = place.set(Partition {
                offset: handle.offset,
                index: index.clone(),
            });
        }
    }

    /// Bytes, without the blocks, which the cache counts.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.filter) + size_of_val(&*self.partitions)
    }
}

impl Drop for PinnedMeta {
    fn drop(&mut self) {
        let filter = std::mem::take(&mut self.filter);
        let partitions = std::mem::take(&mut self.partitions);
        // The blocks first: what the cache lets go of while it is held counts as somebody's.
        let mut offsets = Vec::new();
        for (page, place) in filter.into_iter().enumerate() {
            if place.into_inner().is_some() {
                offsets.push(self.filter_offset + (page * filter::PAGE_BYTES) as u64);
            }
        }
        offsets.extend(
            partitions
                .into_iter()
                .filter_map(|place| Some(place.into_inner()?.offset)),
        );
        for offset in offsets {
            self.env.cache().remove(CacheKey {
                file: self.file_id,
                offset,
            });
        }
    }
}
