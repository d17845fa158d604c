//! Reads filter pages and index partitions together with those beside them, as long as the cache
//! has room to pin them. Otherwise, the first lookups in a new or newly opened table would read
//! these blocks one by one, each behind another read of the same lookup.
//!
//! Promise: a failure to read neighbours (damage, an error of the device, a full cache) does not
//! fail the lookup. The lookup then reads its own block alone and reports an error of that block
//! only.

use super::TableReader;
use crate::exact_read::read_exact;
use crate::format::filter;
use crate::format::{BlockHandle, BlockKind, open_block};
use crate::index::IndexBlock;
use basalt_env::{CachePriority, MemoryKind};
use basalt_fs::{AlignedBuf, Bytes, Result, slot_size};

/// Blocks of a kind that are read together: block n is read with all from n / GROUP * GROUP on. A
/// group has about 64 KiB. A device reads it in less time than two blocks one after the other.
const GROUP: usize = 16;
/// Groups of more bytes (partitions of long keys) are not read together.
const MAX_BYTES: u64 = 128 << 10;

impl TableReader {
    /// Returns the payload of a filter page or an index partition, from the cache or the file.
    pub(crate) fn numbered_block(
        &self,
        kind: BlockKind,
        number: usize,
        handle: &BlockHandle,
        fill_cache: bool,
    ) -> Result<Bytes> {
        if fill_cache && !self.env.cache().contains(self.cache_key(handle)) {
            self.env.foreground_io().foreground_read();
            // The first block of a table is read alone. If the table can be pinned, the cache has
            // room for more.
            if self.pins.have_room()
                && let Some(payload) = self.read_group(kind, number)
            {
                return Ok(payload);
            }
        }
        self.block(kind, handle, fill_cache)
    }

    /// Reads and pins the group of a block. Returns the payload of the block itself, pinned or not,
    /// or `None` if the group cannot be read.
    fn read_group(&self, kind: BlockKind, number: usize) -> Option<Bytes> {
        let first = number / GROUP * GROUP;
        let handles = self.group(kind, first)?;
        let (from, end) = (handles.first()?.offset, handles.last()?.end());
        let len = end - from;
        let _booked = (self.env.ledger()).reserve(MemoryKind::Pinned, 2 * len);
        let file = self.file().ok()?;
        let disk = read_exact(&*file, &self.path, from, len as usize).ok()?;
        let open = |handle: &BlockHandle| {
            let at = (handle.offset - from) as usize;
            // Each block gets a copy: a slice would keep the whole group in memory.
            let own = AlignedBuf::cached_copy(&disk[at..at + handle.disk_len()]);
            open_block(&self.path, self.file_id, kind, handle, own).ok()
        };
        let asked = open(&handles[number - first])?;
        let asked = self.keep_numbered(kind, number, &handles[number - first], asked);
        for (i, handle) in handles.iter().enumerate() {
            let key = self.cache_key(handle);
            if first + i == number || self.env.cache().contains(key) {
                continue;
            }
            if !self.pins.have_room() {
                break;
            }
            if let Some(payload) = open(handle) {
                self.keep_numbered(kind, first + i, handle, payload);
            }
        }
        Some(asked)
    }

    /// Puts a block into the cache and pins it there, if the cache allows it.
    fn keep_numbered(
        &self,
        kind: BlockKind,
        number: usize,
        handle: &BlockHandle,
        payload: Bytes,
    ) -> Bytes {
        let key = self.cache_key(handle);
        let charge = slot_size(handle.disk_len());
        let payload = (self.env.cache()).insert(key, payload, charge, CachePriority::High);
        match kind {
            BlockKind::Filter => self.pins.offer_filter(number as u64, handle, &payload),
            _ => {
                // Damage inside the partition is reported when a lookup uses it.
                if let Ok(index) = IndexBlock::new(payload.clone()) {
                    self.pins.offer_partition(number, handle, &index);
                }
            }
        }
        payload
    }

    /// Returns the places of a group's blocks if they lie one after the other within [`MAX_BYTES`].
    fn group(&self, kind: BlockKind, first: usize) -> Option<Vec<BlockHandle>> {
        let count = match kind {
            BlockKind::Filter => filter::pages(self.footer.filter_lines) as usize,
            _ => self.top.len(),
        };
        let handle = |n: usize| match kind {
            BlockKind::Filter => Some(self.filter_page(n as u64)),
            _ => self.partition_handle(n).ok(),
        };
        let handles: Vec<BlockHandle> = (first..count.min(first + GROUP))
            .map(handle)
            .collect::<Option<_>>()?;
        // In a damaged table the blocks may lie in any order.
        let adjacent = (handles.windows(2)).all(|pair| pair[0].end() == pair[1].offset);
        let near = adjacent && handles.last()?.end() - handles.first()?.offset <= MAX_BYTES;
        near.then_some(handles)
    }
}
