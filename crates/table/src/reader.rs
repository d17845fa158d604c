//! Reading a table: opening, point lookups, and the loading of blocks through the cache.
//!
//! Modules: `lookup` (many keys at once), `cursor` and `iter` (cursors and their read-ahead),
//! `seek_prefetch` (the blocks that a seek will land in), `pinned_meta` (index and filter blocks at
//! hand), `neighbour_reads` (those beside them), `verify` (whole-table walks).

mod cursor;
mod iter;
mod lookup;
mod neighbour_reads;
mod pinned_meta;
mod seek_prefetch;
mod verify;

pub use cursor::InternalIter;
pub use iter::TableIter;
pub use lookup::{Lookup, LookupStep, Wanted};
pub use seek_prefetch::{SeekBlock, SeekRead};

use super::block;
use super::exact_read::read_exact;
use super::format::{
    BlockHandle, BlockKind, Damage, FOOTER_LEN, Footer, HEADER_LEN, Header, open_block,
};
use super::index::IndexBlock;
use super::properties::Properties;
use super::ranges;
use super::source::FileSource;
use super::{ReadPattern, TableFamily, TableMeta, TableVerified};
use crate::format::filter;
use basalt_env::sync::atomic::{AtomicU64, Ordering};
use basalt_env::{CacheKey, CachePriority, Env, MemoryKind, Reservation, prefetch};
use basalt_fs::{AlignedBuf, Bytes, Error, File, Result, slot_size};
use basalt_kv::entry::FoundEntry;
use basalt_kv::key::{
    Cmp, MAX_SEQ, SEQ_SHIFT, SeqNo, TRAILER_LEN, internal_key, seek_trailer, split_internal_key,
    user_key,
};
use basalt_kv::prefix::Narrow;
use basalt_kv::ranges::Fragments;
use pinned_meta::PinnedMeta;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes at the end of a file that opening reads at once: footer, properties and top-level index of
/// most tables.
const TAIL_READ: usize = 16 << 10;
/// User keys of up to this many bytes are sought without an allocation.
const INLINE_KEY: usize = 256;
/// Values of up to this many bytes are copied out of a cached block. A longer value keeps its block
/// in memory.
const COPIED: usize = 512;
/// Blocks of up to this many bytes are copied out of the memory that they were read into. Direct
/// reads need that memory aligned to pages, and so short a block would waste as many bytes as it
/// has.
const MOVED: usize = 32 << 10;
/// Number of fruitless reads of a table after which [`FileSource::extra_reads`] is called again.
const READS_PER_NOTICE: u64 = 256;

/// Bytes of answers that a batch of reads may still bring into memory.
#[derive(Debug)]
pub struct ReadBudget(usize);

impl ReadBudget {
    /// Makes a budget of `bytes` bytes.
    pub fn bytes(bytes: usize) -> ReadBudget {
        ReadBudget(bytes)
    }

    /// Makes a budget without a bound.
    pub fn unbounded() -> ReadBudget {
        ReadBudget(usize::MAX)
    }

    /// Takes `bytes` bytes. Returns false and takes none if the budget holds fewer.
    pub fn take(&mut self, bytes: usize) -> bool {
        match self.0.checked_sub(bytes) {
            // A budget without a bound is not counted down, so that it never runs out.
            Some(_) if self.0 == usize::MAX => true,
            Some(left) => {
                self.0 = left;
                true
            }
            None => false,
        }
    }

    /// Takes the bytes of an answer beyond the `taken` bytes that were already taken for it. If the
    /// budget does not hold them, it gets the `taken` bytes back.
    pub fn take_rest(&mut self, taken: usize, bytes: usize) -> bool {
        let enough = self.take(bytes.saturating_sub(taken));
        if !enough {
            self.0 = self.0.saturating_add(taken);
        }
        enough
    }
}

/// An open table.
pub struct TableReader {
    pub(super) env: Env,
    source: Box<dyn FileSource>,
    pub(super) path: PathBuf,
    pub(super) file_id: u128,
    pub(super) size: u64,
    /// The number that is added to each stored sequence number: see [`TableMeta::shift`].
    shift: SeqNo,
    pub(super) cmp: Cmp,
    pub(super) bytewise: bool,
    pub(super) footer: Footer,
    pub(super) top: IndexBlock,
    pub(super) properties: Properties,
    pub(super) pins: PinnedMeta,
    pub(super) ranges: Fragments,
    /// The reservation of `ranges` in the ledger.
    _booked: Reservation,
    /// A read keeps a multiple of this many bytes alive; 1 if nothing is rounded.
    unit: u64,
    /// Reads of up to this many bytes are not rounded to `unit`.
    own_memory: usize,
    /// Fruitless reads, see [`TableReader::wear`].
    extra_reads: AtomicU64,
}

impl TableReader {
    /// Opens a table: reads footer, header and top-level index, and checks that id and size are the
    /// expected ones. Returns `InvalidArgument` if the table was written in another order than that
    /// of `cmp`.
    pub fn open(
        env: &Env,
        source: impl FileSource,
        path: &Path,
        file_id: u128,
        size: u64,
        cmp: Cmp,
    ) -> Result<Arc<TableReader>> {
        TableReader::open_at(env, source, path, (file_id, size, 0), cmp)
    }

    /// Opens a table with the metadata of the manifest: [`TableMeta::shift`] is added to its
    /// sequence numbers. Errors are those of [`TableReader::open`].
    pub fn open_shifted(
        env: &Env,
        source: impl FileSource,
        path: &Path,
        meta: &TableMeta,
        cmp: Cmp,
    ) -> Result<Arc<TableReader>> {
        let of = (meta.file_id, meta.size, meta.shift);
        let table = TableReader::open_at(env, source, path, of, cmp)?;
        let own = &table.properties.meta;
        if meta.shift > 0 && own.max_seq.checked_add(meta.shift) != Some(meta.max_seq) {
            return Err(Error::corruption(
                path,
                table.footer.properties.offset,
                format!(
                    "the table's highest sequence number is {}, and the manifest says {} with a shift of {}",
                    own.max_seq, meta.max_seq, meta.shift
                ),
            ));
        }
        Ok(table)
    }

    fn open_at(
        env: &Env,
        source: impl FileSource,
        path: &Path,
        (file_id, size, shift): (u128, u64, u64),
        cmp: Cmp,
    ) -> Result<Arc<TableReader>> {
        let file = source.file()?;
        let least = (HEADER_LEN + FOOTER_LEN) as u64;
        if size < least || size > i64::MAX as u64 {
            return Err(Error::corruption(
                path,
                0,
                format!("table of {size} bytes, expected at least {least}"),
            ));
        }
        let header = read_exact(&*file, path, 0, HEADER_LEN)?;
        let header = Header::decode(path, &header)?;
        if header.file_id != file_id {
            return Err(Error::corruption(
                path,
                16,
                format!(
                    "file id is {:032x}, expected {file_id:032x}",
                    header.file_id
                ),
            ));
        }
        let tail_at = size - size.min(TAIL_READ as u64);
        let tail = read_exact(&*file, path, tail_at, (size - tail_at) as usize)?;
        let footer = Footer::decode(path, file_id, size, &tail[tail.len() - FOOTER_LEN..])?;
        let part = |kind: BlockKind, handle: &BlockHandle| {
            let disk = if handle.offset >= tail_at {
                let from = (handle.offset - tail_at) as usize;
                // The top level gets a copy: a slice would keep the whole tail in memory for the
                // life of the table.
                AlignedBuf::cached_copy(&tail[from..from + handle.disk_len()])
            } else {
                read_exact(&*file, path, handle.offset, handle.disk_len())?
            };
            open_block(path, file_id, kind, handle, disk)
        };
        let properties = part(BlockKind::Properties, &footer.properties)?;
        let properties = Properties::decode(path, footer.properties.offset, &properties)?;
        if properties.comparator != cmp.name() {
            return Err(Error::invalid(format!(
                "table was written with comparator {:?} and cannot be read with {:?}",
                properties.comparator,
                cmp.name()
            ))
            .in_file(path));
        }
        let top = part(BlockKind::TopIndex, &footer.top)?;
        let top = IndexBlock::top(top).map_err(|d| d.at(path, footer.top.offset))?;
        if top.len() == 0 && properties.meta.entries > 0 {
            return Err(
                Damage::Bad(0, "index without entries, and the table has some")
                    .at(path, footer.top.offset),
            );
        }
        // Range tombstones are read before anything else of the table: entries that they hide must
        // never be shown.
        let mut ranges = Fragments::default();
        for handle in &properties.ranges {
            if !handle.is_inside(footer.index_offset, footer.top.offset) {
                return Err(Error::corruption(
                    path,
                    footer.properties.offset,
                    format!("range tombstones are said to lie at {handle:?}"),
                ));
            }
            let payload = part(BlockKind::Ranges, handle)?;
            ranges::read_block(&cmp, &payload, &mut ranges)
                .map_err(|d| d.at(path, handle.offset))?;
        }
        let beyond = shift.checked_add(properties.meta.max_seq);
        if shift > 0 && (!ranges.is_empty() || beyond.is_none_or(|seq| seq > MAX_SEQ)) {
            let what = "the manifest shifts the sequence numbers of a table that cannot have been prepared";
            return Err(Error::corruption(path, footer.properties.offset, what));
        }
        let booked = env
            .ledger()
            .reserve(MemoryKind::Pinned, ranges.memory() as u64);
        let info = env.fs().info();
        Ok(Arc::new(TableReader {
            pins: PinnedMeta::new(env, file_id, size, &footer, &top),
            env: env.clone(),
            source: Box::new(source),
            path: path.to_path_buf(),
            file_id,
            size,
            shift,
            bytewise: cmp.equality_is_bytewise(),
            cmp,
            footer,
            top,
            properties,
            ranges,
            _booked: booked,
            unit: if info.direct {
                info.write_unit as u64
            } else {
                1
            },
            own_memory: info.own_memory,
            extra_reads: AtomicU64::new(0),
        }))
    }

    /// Returns the newest version of `user_key` with a sequence number of at most `seq`, or a
    /// tombstone if its range was deleted since. Filter, index partition and data block come from
    /// the cache, at the cost of at most one device read each if they are not there.
    pub fn get(&self, user_key: &[u8], seq: SeqNo, fill_cache: bool) -> Result<Option<FoundEntry>> {
        self.get_hashed(user_key, hash_of(&self.cmp, user_key), seq, fill_cache)
    }

    /// Does what [`TableReader::get`] does, with the result of [`hash_of`] for the key.
    pub fn get_hashed(
        &self,
        user_key: &[u8],
        hash: Option<u64>,
        seq: SeqNo,
        fill_cache: bool,
    ) -> Result<Option<FoundEntry>> {
        if self.ranges.is_empty() {
            return self.get_entry(user_key, hash, seq, fill_cache);
        }
        let deleted = self.ranges.newest(&self.cmp, user_key, seq);
        if self.is_newest(deleted) {
            return Ok(FoundEntry::newer(None, deleted));
        }
        let entry = self.get_entry(user_key, hash, seq, fill_cache)?;
        Ok(FoundEntry::newer(entry, deleted))
    }

    /// Returns true if no entry of the table is newer than this tombstone.
    pub(super) fn is_newest(&self, deleted: Option<SeqNo>) -> bool {
        deleted.is_some_and(|seq| seq >= self.properties.meta.max_seq)
    }

    /// Prefetches the filter line of a hash into the processor's cache, if its page is pinned.
    /// Callers use this before they ask several tables.
    #[inline]
    pub fn prefetch_filter(&self, hash: u64) {
        if let Some((page, at)) = self.filter_place(hash)
            && let Some(line) = self.pins.filter(page).and_then(|p| p.get(at..))
        {
            prefetch(line, filter::LINE_BYTES);
        }
    }

    fn get_entry(
        &self,
        user_key: &[u8],
        hash: Option<u64>,
        seq: SeqNo,
        fill_cache: bool,
    ) -> Result<Option<FoundEntry>> {
        // In a table that was added after `seq`, every entry is too new.
        let Some(stored) = seq.checked_sub(self.shift) else {
            return Ok(None);
        };
        if let Some(hash) = hash
            && !self.filter_may_contain(hash, fill_cache)?
        {
            return Ok(None);
        }
        // The target is on the stack, unless the key is long.
        let trailer = seek_trailer(stored).to_le_bytes();
        let mut inline = [0u8; INLINE_KEY + TRAILER_LEN];
        let long;
        let target = if user_key.len() <= INLINE_KEY {
            inline[..user_key.len()].copy_from_slice(user_key);
            inline[user_key.len()..user_key.len() + TRAILER_LEN].copy_from_slice(&trailer);
            &inline[..user_key.len() + TRAILER_LEN]
        } else {
            long = [user_key, &trailer].concat();
            &long[..]
        };
        let Some(handle) = self.find_block(target, fill_cache)? else {
            return Ok(None);
        };
        // A small value is copied, because another reference to its block costs more. The count of
        // references is a line of memory that nothing else needs and that other threads write. A
        // reference would also keep the whole block in memory.
        let find = |payload: &Bytes| {
            let hit = block::get(payload, &self.cmp, user_key, stored, hash)
                .map_err(|d| d.at(&self.path, handle.offset))?;
            Ok(hit.map(|h| FoundEntry {
                seq: h.seq + self.shift,
                kind: h.kind,
                value: if h.value.len() <= COPIED {
                    Bytes::copy_from_slice(&payload[h.value])
                } else {
                    payload.slice(h.value)
                },
            }))
        };
        let (cache, at) = (self.env.cache(), self.cache_key(&handle));
        let cached = match self.cmp {
            Cmp::Bytewise => cache.with(at, |payload| {
                prefetch(block::tail_of(payload), block::TAIL_MOST);
                find(payload)
            }),
            // A user's comparator may be slow, so it does not run under a lock of the cache.
            _ => cache.get(at).map(|payload| find(&payload)),
        };
        match cached {
            Some(found) => found,
            None => {
                self.env.foreground_io().foreground_read();
                let found = find(&self.load(BlockKind::Data, &handle, fill_cache)?)?;
                if found.is_none() {
                    self.wear();
                }
                Ok(found)
            }
        }
    }

    /// Returns the answer that a data block has for a key.
    #[inline]
    pub(super) fn found(
        &self,
        payload: &Bytes,
        handle: &BlockHandle,
        user_key: &[u8],
        seq: SeqNo,
        hash: Option<u64>,
    ) -> Result<Option<FoundEntry>> {
        let Some(stored) = seq.checked_sub(self.shift) else {
            return Ok(None);
        };
        let hit = block::get(payload, &self.cmp, user_key, stored, hash)
            .map_err(|d| d.at(&self.path, handle.offset))?;
        Ok(hit.map(|h| FoundEntry {
            seq: h.seq + self.shift,
            kind: h.kind,
            value: payload.slice(h.value),
        }))
    }

    /// Returns false if the filter says that no version of the key is here. Returns true if there
    /// is no filter.
    pub fn may_hold(&self, user_key: &[u8], fill_cache: bool) -> Result<bool> {
        if !self.bytewise {
            return Ok(true);
        }
        self.filter_may_contain(filter::key_hash(user_key), fill_cache)
    }

    /// Returns false if the filter says that no key with this hash is here.
    pub(super) fn filter_may_contain(&self, hash: u64, fill_cache: bool) -> Result<bool> {
        let Some((page, at)) = self.filter_place(hash) else {
            return Ok(true);
        };
        let loaded;
        let payload = match self.pins.filter(page) {
            Some(pinned) => pinned,
            None => {
                let handle = self.filter_page(page);
                loaded =
                    self.numbered_block(BlockKind::Filter, page as usize, &handle, fill_cache)?;
                self.pins.offer_filter(page, &handle, &loaded);
                &loaded
            }
        };
        self.page_may_contain(payload, page, at, hash)
    }

    /// Returns the filter page of a hash, and the byte of its payload where the hash's line begins;
    /// `None` without a filter.
    pub(super) fn filter_place(&self, hash: u64) -> Option<(u64, usize)> {
        let lines = self.footer.filter_lines;
        if lines == 0 {
            return None;
        }
        let (page, at) = filter::locate(hash, lines);
        Some((page, at))
    }

    /// Returns false if the filter page at `handle` says that no key with this hash is here.
    pub(super) fn page_may_contain(
        &self,
        payload: &[u8],
        page: u64,
        at: usize,
        hash: u64,
    ) -> Result<bool> {
        let line = payload.get(at..at + filter::LINE_BYTES).ok_or_else(|| {
            let offset = self.filter_page(page).offset;
            Error::corruption(&self.path, offset, "filter page too short")
        })?;
        Ok(filter::may_contain(
            line.try_into().expect("a line's length"),
            hash,
            self.footer.probes,
        ))
    }

    /// Returns false if certainly no version of any key of this prefix is here. The method checks
    /// first what is known without a read, then the filter.
    pub fn may_hold_prefix(&self, narrow: &Narrow, fill_cache: bool) -> Result<bool> {
        let meta = &self.properties.meta;
        if narrow.is_outside(user_key(&meta.smallest), user_key(&meta.largest)) {
            return Ok(false);
        }
        match narrow.hash_for(self.properties.prefix_extractor.as_deref()) {
            Some(hash) => self.filter_may_contain(hash, fill_cache),
            None => Ok(true),
        }
    }

    pub(super) fn filter_page(&self, page: u64) -> BlockHandle {
        BlockHandle {
            offset: self.footer.filter_offset + page * filter::PAGE_BYTES as u64,
            stored: filter::page_payload(self.footer.filter_lines, page) as u32,
            raw: 0,
        }
    }

    /// Returns the data block that holds the first entry at or after `target`, if any block does.
    /// `target` has a sequence number as stored.
    fn find_block(&self, target: &[u8], fill_cache: bool) -> Result<Option<BlockHandle>> {
        let Some(i) = self.find_partition(target)? else {
            return Ok(None);
        };
        let loaded;
        let (offset, partition) = match self.pins.partition(i) {
            Some(pinned) => (pinned.offset, &pinned.index),
            None => {
                let handle = self.partition_handle(i)?;
                loaded = self.partition(i, &handle, fill_cache)?;
                (handle.offset, &loaded)
            }
        };
        self.find_in(partition, offset, target).map(Some)
    }

    /// Returns the shift of sequence numbers, see [`TableMeta::shift`].
    pub(super) fn shift(&self) -> SeqNo {
        self.shift
    }

    /// Returns an internal key with its sequence number as stored, ready for a seek. A sequence
    /// number below the shift comes behind all versions of its key.
    #[inline]
    pub(super) fn as_stored<'a>(&self, target: &'a [u8]) -> Cow<'a, [u8]> {
        if self.shift == 0 {
            return Cow::Borrowed(target);
        }
        let (user, trailer) = split_internal_key(target);
        Cow::Owned(internal_key(
            user,
            trailer.saturating_sub(self.shift << SEQ_SHIFT),
        ))
    }

    /// Returns the number of the index partition with the first entry at or after `target`, if
    /// there is such an entry. `target` has a sequence number as stored.
    pub(super) fn find_partition(&self, target: &[u8]) -> Result<Option<usize>> {
        let at_top = |d: super::format::Damage| d.at(&self.path, self.footer.top.offset);
        let i = self.top.seek(&self.cmp, target).map_err(at_top)?;
        if i == self.top.len() {
            return Ok(None);
        }
        Ok(Some(i))
    }

    /// Returns the data block with that entry from the partition at `offset`.
    pub(super) fn find_in(
        &self,
        partition: &IndexBlock,
        offset: u64,
        target: &[u8],
    ) -> Result<BlockHandle> {
        let j = self.slot_in(partition, offset, target)?;
        self.data_handle(partition, offset, j)
    }

    /// Returns the number of that block in the partition.
    pub(super) fn slot_in(
        &self,
        partition: &IndexBlock,
        offset: u64,
        target: &[u8],
    ) -> Result<usize> {
        let at_partition = |d: super::format::Damage| d.at(&self.path, offset);
        let j = partition.seek(&self.cmp, target).map_err(at_partition)?;
        if j == partition.len() {
            // The top level says that the partition's last separator is not before the target.
            return Err(Error::corruption(
                &self.path,
                offset,
                "index partition ends before the separator that the top-level index has for it",
            ));
        }
        Ok(j)
    }

    /// Returns the handle of index partition `i`.
    pub(super) fn partition_handle(&self, i: usize) -> Result<BlockHandle> {
        let (_, handle) = self
            .top
            .entry(i)
            .map_err(|d| d.at(&self.path, self.footer.top.offset))?;
        if !handle.is_inside(self.footer.index_offset, self.footer.top.offset) || handle.raw != 0 {
            return Err(Error::corruption(
                &self.path,
                self.footer.top.offset,
                format!("index partition {i} is said to lie at {handle:?}"),
            ));
        }
        Ok(handle)
    }

    /// Returns index partition `i`, which lies at `handle`.
    pub(super) fn partition(
        &self,
        i: usize,
        handle: &BlockHandle,
        fill_cache: bool,
    ) -> Result<IndexBlock> {
        if let Some(pinned) = self.pins.partition(i) {
            return Ok(pinned.index.clone());
        }
        let index =
            IndexBlock::new(self.numbered_block(BlockKind::Index, i, handle, fill_cache)?)
                .map_err(|d| d.at(&self.path, handle.offset))?;
        self.pins.offer_partition(i, handle, &index);
        Ok(index)
    }

    /// Returns the handle of data block `j` of a partition that lies at `offset`.
    pub(super) fn data_handle(
        &self,
        partition: &IndexBlock,
        offset: u64,
        j: usize,
    ) -> Result<BlockHandle> {
        let (_, handle) = partition.entry(j).map_err(|d| d.at(&self.path, offset))?;
        if !handle.is_inside(HEADER_LEN as u64, self.footer.data_end) {
            return Err(Error::corruption(
                &self.path,
                offset,
                format!("data block {j} of the partition is said to lie at {handle:?}"),
            ));
        }
        Ok(handle)
    }

    pub(super) fn cache_key(&self, handle: &BlockHandle) -> CacheKey {
        CacheKey {
            file: self.file_id,
            offset: handle.offset,
        }
    }

    /// Counts a device read that a merge of the table with those below would have saved: a lookup
    /// that found nothing in it, or one more block for a seek.
    pub(crate) fn wear(&self) {
        // Relaxed, here and below: this count decides nothing alone.
        if (self.extra_reads.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(READS_PER_NOTICE) {
            self.source.extra_reads();
        }
    }

    /// Returns the count of [`TableReader::wear`] since the last reset.
    pub fn extra_reads(&self) -> u64 {
        self.extra_reads.load(Ordering::Relaxed)
    }

    /// Resets the count of [`TableReader::extra_reads`].
    pub fn reset_extra_reads(&self) {
        self.extra_reads.store(0, Ordering::Relaxed);
    }

    /// Returns a block's payload from the cache or the file.
    pub(super) fn block(
        &self,
        kind: BlockKind,
        handle: &BlockHandle,
        fill_cache: bool,
    ) -> Result<Bytes> {
        let key = self.cache_key(handle);
        if let Some(payload) = self.env.cache().get(key) {
            return Ok(payload);
        }
        self.load(kind, handle, fill_cache)
    }

    /// Returns a block's payload from the file. The payload goes into the cache if `fill_cache` is
    /// true.
    fn load(&self, kind: BlockKind, handle: &BlockHandle, fill_cache: bool) -> Result<Bytes> {
        let booked = self.book_read(handle);
        let payload = self.read_block(kind, handle)?;
        Ok(self.keep(kind, handle, payload, booked, fill_cache))
    }

    /// Reserves the memory of a block before it is read.
    pub(super) fn book_read(&self, handle: &BlockHandle) -> Reservation {
        let bytes = handle.disk_len() as u64 + u64::from(handle.raw);
        self.env.ledger().reserve(MemoryKind::Pinned, bytes)
    }

    /// Puts a payload that was read into the cache if `fill_cache` is true. The returned payload
    /// carries the reservation of its memory.
    pub(super) fn keep(
        &self,
        kind: BlockKind,
        handle: &BlockHandle,
        payload: Bytes,
        mut booked: Reservation,
        fill_cache: bool,
    ) -> Bytes {
        // An uncompressed block keeps the read's memory alive, rounded to write units for direct
        // reads.
        let rounded = self.unit > 1 && handle.disk_len() > self.own_memory;
        let moved = fill_cache && handle.raw == 0 && rounded && payload.len() <= MOVED;
        let payload = if moved {
            AlignedBuf::cached_copy(&payload)
        } else {
            payload
        };
        let charge = if handle.raw != 0 || moved {
            slot_size(payload.len()) as u64
        } else if !rounded {
            slot_size(handle.disk_len()) as u64
        } else {
            handle.end().next_multiple_of(self.unit) - handle.offset / self.unit * self.unit
        };
        if !fill_cache {
            booked.resize(charge);
            return booked.hold(payload);
        }
        let priority = if kind == BlockKind::Data {
            CachePriority::Normal
        } else {
            CachePriority::High
        };
        self.env
            .cache()
            .insert(self.cache_key(handle), payload, charge as usize, priority)
    }

    /// Returns the file, which the caller holds while it reads.
    pub(super) fn file(&self) -> Result<Arc<dyn File>> {
        self.source.file()
    }

    /// Returns a block's payload from the file.
    pub(super) fn read_block(&self, kind: BlockKind, handle: &BlockHandle) -> Result<Bytes> {
        let disk = read_exact(&*self.file()?, &self.path, handle.offset, handle.disk_len())?;
        open_block(&self.path, self.file_id, kind, handle, disk)
    }

    /// Returns a cursor over the table.
    pub fn iter(self: &Arc<Self>, pattern: ReadPattern) -> TableIter {
        TableIter::new(self.clone(), pattern)
    }

    /// Reads every byte and checks checksums, padding, order, counts, filter membership of every
    /// key, and the digest.
    pub fn verify(&self, meta: &TableMeta) -> Result<TableVerified> {
        verify::verify(self, meta)
    }

    /// Recomputes the metadata from the readable parts of a damaged table. `repair` calls this
    /// without an entry of the manifest.
    ///
    /// Header, footer, top-level index and properties must be whole: data blocks carry no length of
    /// their own. Damaged index partitions and data blocks are left out of the counts. Size and
    /// digest are the file's.
    pub fn inspect(env: &Env, file: Arc<dyn File>, path: &Path, cmp: Cmp) -> Result<TableMeta> {
        verify::inspect(env, file, path, cmp)
    }

    /// Returns about how many bytes of the file lie before the internal key. `fill_cache` is false
    /// for background work, which is about to replace the table and lets no caller wait.
    pub fn approximate_offset(&self, internal_key: &[u8], fill_cache: bool) -> Result<u64> {
        Ok(self
            .find_block(&self.as_stored(internal_key), fill_cache)?
            .map_or(self.footer.data_end, |h| h.offset))
    }

    /// Returns the bytes of memory that this open table holds outside the cache.
    pub fn memory(&self) -> usize {
        size_of::<TableReader>()
            + self.top.bytes_len()
            + self.pins.memory()
            + self.ranges.memory()
            + self.path.as_os_str().len()
            + self.properties.comparator.len()
            + self.family().map_or(0, |f| f.name.len())
            + self
                .properties
                .prefix_extractor
                .as_ref()
                .map_or(0, |n| n.len())
            + self.properties.meta.smallest.len()
            + self.properties.meta.largest.len()
    }

    /// Returns the table's range tombstones.
    pub fn ranges(&self) -> &Fragments {
        &self.ranges
    }

    /// Returns the family that the table's properties name.
    pub fn family(&self) -> Option<&TableFamily> {
        self.properties.family.as_ref()
    }

    /// Returns the table's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the hash of a user key for filters and hash indexes; `None` if equal keys may differ in
/// their bytes.
#[inline]
pub fn hash_of(cmp: &Cmp, user_key: &[u8]) -> Option<u64> {
    cmp.equality_is_bytewise()
        .then(|| filter::key_hash(user_key))
}
