//! A cursor over a table (index partition, data block, entry), and its read-ahead.

use super::InternalIter;
use super::TableReader;
use super::seek_prefetch::{SeekBlock, SeekRead};
use crate::ReadPattern;
use crate::block::BlockCursor;
use crate::exact_read::read_exact;
use crate::format::{BlockHandle, BlockKind, open_block};
use crate::index::IndexBlock;
use basalt_env::{CachePriority, IoPriority, MemoryKind};
use basalt_fs::{AlignedBuf, Bytes, Result, slot_size};
use basalt_kv::prefix::Narrow;
use std::cmp::Ordering;
use std::sync::Arc;

const AHEAD_FIRST: usize = 16 << 10;
const AHEAD_MOST: usize = 256 << 10;
const AHEAD_COMPACTION: usize = 1 << 20;

/// Bytes of the file that were read ahead.
struct Ahead {
    bytes: Bytes,
    /// The kind of `bytes` in the ledger: memory of one reader, outside the cache.
    kind: MemoryKind,
    at: u64,
    /// Bytes of the next read.
    step: usize,
    /// The offset behind the last block read. `in_sequence` counts the blocks that were read one
    /// after the other.
    expected: u64,
    in_sequence: u32,
}

impl Ahead {
    fn holds(&self, handle: &BlockHandle) -> bool {
        self.at <= handle.offset && handle.end() <= self.at + self.bytes.len() as u64
    }
}

/// A cursor over a table.
pub struct TableIter {
    table: Arc<TableReader>,
    pattern: ReadPattern,
    /// Partition `part` of the top level and its offset, once loaded.
    partition: Option<(IndexBlock, u64)>,
    part: usize,
    /// The number of the current block in the partition.
    slot: usize,
    /// The offset of the data block in `block`, if one is loaded.
    loaded: Option<u64>,
    block: BlockCursor,
    ahead: Ahead,
    /// A seek that reads the block it lands in reads the following block as well.
    with_next: bool,
    /// The block that a begun seek lands in; `None` if it lands in none.
    sought: Option<usize>,
    /// Offset and payload of the data block that is about to be loaded.
    given: Option<(u64, Bytes)>,
    narrow: Option<Arc<Narrow>>,
}

impl TableIter {
    pub(crate) fn new(table: Arc<TableReader>, pattern: ReadPattern) -> TableIter {
        let kind = match pattern {
            ReadPattern::Compaction => MemoryKind::Buffer,
            ReadPattern::Cached | ReadPattern::Uncached => MemoryKind::Pinned,
        };
        TableIter {
            block: BlockCursor::with_shift(table.shift()),
            table,
            pattern,
            partition: None,
            part: 0,
            slot: 0,
            loaded: None,
            ahead: Ahead {
                bytes: Bytes::new(),
                kind,
                at: 0,
                step: AHEAD_FIRST,
                expected: u64::MAX,
                in_sequence: 0,
            },
            with_next: false,
            sought: None,
            given: None,
            narrow: None,
        }
    }

    /// Lets each seek that reads its block from the device read the following block as well.
    ///
    /// This is for cursors whose walks often continue into the next block. Reading two blocks at
    /// once costs little more than reading one, and half as much as two reads.
    pub fn with_next(mut self) -> TableIter {
        self.with_next = true;
        self
    }

    /// Returns the bytes that a seek reads from `handle` on, which is block `slot` of the current
    /// partition.
    fn seek_read_len(&self, slot: usize, handle: &BlockHandle) -> usize {
        let (partition, offset) = self.partition.as_ref().expect("it names the block");
        let alone = handle.disk_len();
        if !self.with_next || slot + 1 == partition.len() {
            return alone;
        }
        match self.table.data_handle(partition, *offset, slot + 1) {
            Ok(next)
                if next.offset >= handle.end()
                    && next.end() - handle.offset <= AHEAD_FIRST as u64
                    && !self.table.env.cache().contains(self.table.cache_key(&next)) =>
            {
                (next.end() - handle.offset) as usize
            }
            // An error in the next handle is reported when a reader needs that block.
            _ => alone,
        }
    }

    /// Returns true, with the cursor not valid, if the cursor is narrowed to a prefix that no key
    /// of the table has.
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

    /// Loads data block `slot` of the current partition.
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

    /// Returns a data block's payload: from the cache, from the bytes read ahead, or from the file.
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
        if let Some((offset, payload)) = self.given.take()
            && offset == handle.offset
        {
            return Ok(payload);
        }
        let compaction = self.pattern == ReadPattern::Compaction;
        if !compaction && let Some(payload) = table.env.cache().get(table.cache_key(handle)) {
            return Ok(payload);
        }
        let len = handle.disk_len();
        if !ahead.holds(handle) {
            let foreground_io = table.env.foreground_io();
            let step = if compaction {
                foreground_io.piece(AHEAD_COMPACTION)
            } else if ahead.in_sequence > 0 {
                let step = ahead.step;
                ahead.step = (step * 2).min(AHEAD_MOST);
                step
            } else {
                foreground_io.foreground_read();
                return table.block(BlockKind::Data, handle, self.pattern == ReadPattern::Cached);
            };
            let left = usize::try_from(table.footer.data_end - handle.offset).unwrap_or(usize::MAX);
            let want = step.max(len).min(left);
            ahead.bytes = Bytes::new();
            let booked = table.env.ledger().reserve(ahead.kind, want as u64);
            let turn = if compaction {
                table.env.io_limit().acquire(want as u64, IoPriority::Low);
                Some(foreground_io.turn())
            } else {
                foreground_io.foreground_read();
                None
            };
            // Readers may keep values, which are slices of these bytes: the reservation stays with
            // them.
            ahead.bytes = booked.hold(read_exact(
                &*table.file()?,
                &table.path,
                handle.offset,
                want,
            )?);
            drop(turn);
            ahead.at = handle.offset;
        }
        self.take_from_ahead(handle)
    }

    /// Returns the payload of a data block that was read ahead. With `ReadPattern::Cached` it goes
    /// into the cache now.
    fn take_from_ahead(&self, handle: &BlockHandle) -> Result<Bytes> {
        let (table, ahead) = (&*self.table, &self.ahead);
        let len = handle.disk_len();
        let from = (handle.offset - ahead.at) as usize;
        let disk = ahead.bytes.slice(from..from + len);
        let payload = open_block(&table.path, table.file_id, BlockKind::Data, handle, disk)?;
        if self.pattern == ReadPattern::Cached {
            // A slice in the cache would keep all bytes that were read ahead alive.
            let own = if handle.raw == 0 {
                AlignedBuf::cached_copy(&payload)
            } else {
                payload
            };
            let charge = slot_size(own.len());
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

    /// Runs a movement. If it fails, the cursor is not valid.
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
        how: impl FnOnce(&mut BlockCursor) -> crate::format::BlockResult<()>,
    ) -> Result<()> {
        let offset = self.loaded.expect("block is loaded");
        how(&mut self.block).map_err(|d| d.at(&self.table.path, offset))
    }

    /// Moves to the first entry of the next block, or past the end.
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

    /// Moves to the last entry of the block before, or past the beginning.
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

    /// Returns the number, in the current partition, of the block that a seek lands in; `None` if
    /// the whole table is before the target.
    fn slot_of(&mut self, target: &[u8]) -> Result<Option<usize>> {
        let target = self.table.as_stored(target);
        let Some(i) = self.table.find_partition(&target)? else {
            return Ok(None);
        };
        self.load_partition(i)?;
        let (partition, offset) = self.partition.as_ref().expect("just loaded");
        (self.table.slot_in(partition, *offset, &target)).map(Some)
    }

    fn seek_inner(&mut self, target: &[u8]) -> Result<()> {
        match self.slot_of(target)? {
            Some(slot) => self.land(slot, target),
            None => {
                self.no_block();
                Ok(())
            }
        }
    }

    /// Does the first half of a seek.
    fn look_up(&mut self, target: &[u8]) -> Result<Option<SeekRead>> {
        self.sought = None;
        self.given = None;
        if self.is_denied()? {
            return Ok(None);
        }
        self.sought = self.slot_of(target)?;
        let Some(slot) = self.sought else {
            return Ok(None);
        };
        let (partition, offset) = self.partition.as_ref().expect("it names the block");
        let handle = self.table.data_handle(partition, *offset, slot)?;
        // The cursor reads blocks that it holds, or that come next in sequence, without a batch.
        let at_hand = self.loaded == Some(handle.offset)
            || self.ahead.expected == handle.offset
            || self.ahead.holds(&handle);
        if at_hand || self.pattern == ReadPattern::Compaction {
            return Ok(None);
        }
        let table = &self.table;
        if let Some(payload) = table.env.cache().get(table.cache_key(&handle)) {
            self.given = Some((handle.offset, payload));
            return Ok(None);
        }
        let len = self.seek_read_len(slot, &handle);
        Ok(Some(SeekRead::new(table, handle, len)))
    }

    /// Moves to the first entry at or after the target. It is in data block `slot` of the current
    /// partition, or the first entry behind that block.
    fn land(&mut self, slot: usize, target: &[u8]) -> Result<()> {
        self.load_block(slot)?;
        let offset = self.loaded.expect("block is loaded");
        (self.block.seek(&self.table.cmp, target)).map_err(|d| d.at(&self.table.path, offset))?;
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

    fn begin_seek(&mut self, target: &[u8]) -> Result<Option<SeekRead>> {
        let found = self.look_up(target);
        if found.is_err() {
            self.no_block();
            self.partition = None;
        }
        found
    }

    fn finish_seek(&mut self, target: &[u8], landed: Option<SeekBlock>) -> Result<()> {
        self.moved(|it| {
            let Some(slot) = it.sought.take() else {
                it.no_block();
                return Ok(());
            };
            if let Some(SeekBlock { handle, bytes }) = landed {
                (it.ahead.at, it.ahead.bytes) = (handle.offset, bytes);
                it.given = Some((handle.offset, it.take_from_ahead(&handle)?));
                if it.ahead.bytes.len() == handle.disk_len() {
                    it.ahead.bytes = Bytes::new();
                }
            }
            it.land(slot, target)
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
