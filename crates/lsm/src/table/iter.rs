//! A cursor over a table: index partition, data block, entry; and the read-ahead under it.

use super::ReadPattern;
use super::block::BlockCursor;
use super::format::{BlockHandle, BlockKind, open_block};
use super::index::IndexBlock;
use super::reader::{TableReader, read_exact};
use crate::iter::InternalIter;
use crate::prefix::Narrow;
use basalt_env::{CachePriority, IoPriority, MemoryKind};
use basalt_fs::{Bytes, Result};
use std::cmp::Ordering;
use std::sync::Arc;

const AHEAD_FIRST: usize = 16 << 10;
const AHEAD_MOST: usize = 256 << 10;
const AHEAD_COMPACTION: usize = 1 << 20;

/// Bytes read before they are asked for.
struct Ahead {
    bytes: Bytes,
    /// `bytes` in the ledger: a reader's own, beside the cache.
    kind: MemoryKind,
    at: u64,
    /// The next read's length.
    step: usize,
    /// Where the block after the last one begins, and how many came one after the other.
    expected: u64,
    in_sequence: u32,
}

/// A cursor over a table.
pub struct TableIter {
    table: Arc<TableReader>,
    pattern: ReadPattern,
    /// Partition `part` of the top level, once loaded.
    partition: Option<(IndexBlock, u64)>,
    part: usize,
    /// The block's number in the partition.
    slot: usize,
    /// The offset of the data block in `block`, if one is loaded.
    loaded: Option<u64>,
    block: BlockCursor,
    ahead: Ahead,
    narrow: Option<Arc<Narrow>>,
}

impl TableIter {
    pub(super) fn new(table: Arc<TableReader>, pattern: ReadPattern) -> TableIter {
        let kind = match pattern {
            ReadPattern::Compaction => MemoryKind::Buffer,
            ReadPattern::Cached | ReadPattern::Uncached => MemoryKind::Pinned,
        };
        TableIter {
            table,
            pattern,
            partition: None,
            part: 0,
            slot: 0,
            loaded: None,
            block: BlockCursor::new(),
            ahead: Ahead {
                bytes: Bytes::new(),
                kind,
                at: 0,
                step: AHEAD_FIRST,
                expected: u64::MAX,
                in_sequence: 0,
            },
            narrow: None,
        }
    }

    /// True, and the cursor is not valid, when it is narrowed to a prefix that the table has no key of.
    fn is_denied(&mut self) -> Result<bool> {
        if let Some(narrow) = &self.narrow
            && !self.table.may_hold_prefix(narrow, self.fill_cache())?
        {
            self.no_block();
            return Ok(true);
        }
        Ok(false)
    }

    fn fill_cache(&self) -> bool {
        self.pattern == ReadPattern::Cached
    }

    fn no_block(&mut self) {
        self.loaded = None;
        self.block.unload();
    }

    fn load_partition(&mut self, i: usize) -> Result<()> {
        if self.partition.is_some() && self.part == i {
            return Ok(());
        }
        self.partition = None;
        let handle = self.table.partition_handle(i)?;
        let partition = self.table.partition(i, &handle, self.fill_cache())?;
        self.partition = Some((partition, handle.offset));
        self.part = i;
        Ok(())
    }

    /// Loads data block `slot` of the partition at hand.
    fn load_block(&mut self, slot: usize) -> Result<()> {
        let (partition, offset) = self.partition.as_ref().expect("partition is loaded");
        let handle = self.table.data_handle(partition, *offset, slot)?;
        self.slot = slot;
        if self.loaded == Some(handle.offset) {
            return Ok(());
        }
        self.loaded = None;
        self.block.unload();
        let payload = self.fetch(&handle)?;
        self.block
            .load(payload)
            .map_err(|d| d.at(&self.table.path, handle.offset))?;
        self.loaded = Some(handle.offset);
        Ok(())
    }

    /// A data block's payload: from the cache, from what was read ahead, or from the file.
    fn fetch(&mut self, handle: &BlockHandle) -> Result<Bytes> {
        let table = &*self.table;
        let ahead = &mut self.ahead;
        if handle.offset == ahead.expected {
            ahead.in_sequence += 1;
        } else {
            ahead.in_sequence = 0;
            ahead.step = AHEAD_FIRST;
        }
        ahead.expected = handle.end();
        let compaction = self.pattern == ReadPattern::Compaction;
        if !compaction && let Some(payload) = table.env.cache().get(table.cache_key(handle)) {
            return Ok(payload);
        }
        let len = handle.disk_len();
        let held = ahead.at <= handle.offset && handle.end() <= ahead.at + ahead.bytes.len() as u64;
        if !held {
            let step = if compaction {
                AHEAD_COMPACTION
            } else if ahead.in_sequence > 0 {
                let step = ahead.step;
                ahead.step = (step * 2).min(AHEAD_MOST);
                step
            } else {
                return table.block(BlockKind::Data, handle, self.pattern == ReadPattern::Cached);
            };
            let left = usize::try_from(table.footer.data_end - handle.offset).unwrap_or(usize::MAX);
            let want = step.max(len).min(left);
            ahead.bytes = Bytes::new();
            let booked = table.env.ledger().reserve(ahead.kind, want as u64);
            if compaction {
                table.env.io_limit().acquire(want as u64, IoPriority::Low);
            }
            // Values that a reader keeps are parts of it.
            ahead.bytes = booked.hold(read_exact(
                &*table.file()?,
                &table.path,
                handle.offset,
                want,
            )?);
            ahead.at = handle.offset;
        }
        let from = (handle.offset - ahead.at) as usize;
        let disk = ahead.bytes.slice(from..from + len);
        let payload = open_block(&table.path, table.file_id, BlockKind::Data, handle, disk)?;
        if self.pattern == ReadPattern::Cached {
            // A slice in the cache would keep all that was read ahead alive.
            let own = if handle.raw == 0 {
                Bytes::copy_from_slice(&payload)
            } else {
                payload
            };
            let charge = own.len();
            return Ok(table.env.cache().insert(
                table.cache_key(handle),
                own,
                charge,
                CachePriority::Normal,
            ));
        }
        if handle.raw != 0 {
            let booked = table
                .env
                .ledger()
                .reserve(ahead.kind, u64::from(handle.raw));
            return Ok(booked.hold(payload));
        }
        Ok(payload)
    }

    /// Runs a movement; on an error the cursor is not valid.
    fn moved(&mut self, how: impl FnOnce(&mut TableIter) -> Result<()>) -> Result<()> {
        let result = how(self);
        if result.is_err() {
            self.no_block();
            self.partition = None;
        }
        result
    }

    fn in_block(
        &mut self,
        how: impl FnOnce(&mut BlockCursor) -> super::format::Checked<()>,
    ) -> Result<()> {
        let offset = self.loaded.expect("block is loaded");
        how(&mut self.block).map_err(|d| d.at(&self.table.path, offset))
    }

    /// To the first entry of the next block, or past the end.
    fn next_block(&mut self) -> Result<()> {
        let (partition, _) = self.partition.as_ref().expect("partition is loaded");
        if self.slot + 1 < partition.len() {
            self.load_block(self.slot + 1)?;
        } else if self.part + 1 < self.table.top.len() {
            self.load_partition(self.part + 1)?;
            self.load_block(0)?;
        } else {
            self.no_block();
            return Ok(());
        }
        self.in_block(BlockCursor::seek_to_first)
    }

    /// To the last entry of the block before, or past the beginning.
    fn prev_block(&mut self) -> Result<()> {
        if self.slot > 0 {
            self.load_block(self.slot - 1)?;
        } else if self.part > 0 {
            self.load_partition(self.part - 1)?;
            let last = self.partition.as_ref().expect("just loaded").0.len() - 1;
            self.load_block(last)?;
        } else {
            self.no_block();
            return Ok(());
        }
        self.in_block(BlockCursor::seek_to_last)
    }

    fn seek_inner(&mut self, target: &[u8]) -> Result<()> {
        let table = self.table.clone();
        let i = table
            .top
            .seek(&table.cmp, target)
            .map_err(|d| d.at(&table.path, table.footer.top.offset))?;
        if i == table.top.len() {
            self.no_block();
            return Ok(());
        }
        self.load_partition(i)?;
        let (partition, offset) = self.partition.as_ref().expect("just loaded");
        let j = partition
            .seek(&table.cmp, target)
            .map_err(|d| d.at(&table.path, *offset))?;
        if j == partition.len() {
            return Err(basalt_fs::Error::corruption(
                &table.path,
                *offset,
                "index partition ends before the separator that the top-level index has for it",
            ));
        }
        self.load_block(j)?;
        self.in_block(|b| b.seek(&table.cmp, target))?;
        if !self.block.valid() {
            // The target lies between this block's last key and its separator.
            self.next_block()?;
        }
        Ok(())
    }

    fn seek_to_last_inner(&mut self) -> Result<()> {
        if self.table.top.len() == 0 {
            self.no_block();
            return Ok(());
        }
        self.load_partition(self.table.top.len() - 1)?;
        let last = self.partition.as_ref().expect("just loaded").0.len() - 1;
        self.load_block(last)?;
        self.in_block(BlockCursor::seek_to_last)
    }

    fn prev_inner(&mut self) -> Result<()> {
        self.in_block(BlockCursor::prev)?;
        if !self.block.valid() {
            self.prev_block()?;
        }
        Ok(())
    }
}

impl InternalIter for TableIter {
    #[inline]
    fn valid(&self) -> bool {
        self.block.valid()
    }

    fn narrow(&mut self, to: Option<&Arc<Narrow>>) {
        self.narrow = to.cloned();
    }

    fn seek_to_first(&mut self) -> Result<()> {
        self.moved(|it| {
            if it.table.top.len() == 0 {
                it.no_block();
                return Ok(());
            }
            it.load_partition(0)?;
            it.load_block(0)?;
            it.in_block(BlockCursor::seek_to_first)
        })
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.moved(TableIter::seek_to_last_inner)
    }

    fn seek(&mut self, target: &[u8]) -> Result<()> {
        self.moved(|it| match it.is_denied()? {
            true => Ok(()),
            false => it.seek_inner(target),
        })
    }

    fn seek_for_prev(&mut self, target: &[u8]) -> Result<()> {
        self.moved(|it| {
            if it.is_denied()? {
                return Ok(());
            }
            it.seek_inner(target)?;
            if !it.block.valid() {
                return it.seek_to_last_inner();
            }
            if it.table.cmp.internal(it.block.key(), target) == Ordering::Greater {
                it.prev_inner()?;
            }
            Ok(())
        })
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        assert!(self.block.valid(), "next on a cursor that is not valid");
        match self.block.next() {
            Ok(()) if self.block.valid() => Ok(()),
            Ok(()) => self.moved(TableIter::next_block),
            Err(d) => self.moved(|it| {
                Err(d.at(
                    &it.table.path,
                    it.loaded.expect("a valid cursor has a block"),
                ))
            }),
        }
    }

    fn prev(&mut self) -> Result<()> {
        assert!(self.block.valid(), "prev on a cursor that is not valid");
        self.moved(TableIter::prev_inner)
    }

    #[inline]
    fn key(&self) -> &[u8] {
        assert!(self.block.valid(), "key of a cursor that is not valid");
        self.block.key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        assert!(self.block.valid(), "value of a cursor that is not valid");
        self.block.value()
    }

    fn pinned_value(&self) -> Bytes {
        assert!(self.block.valid(), "value of a cursor that is not valid");
        self.block.pinned_value()
    }
}
