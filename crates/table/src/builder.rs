//! Writes a table: entries come in order, and blocks go out in large aligned pieces. The builder
//! collects on the way what the manifest and the readers need to know.

use super::block::BlockBuilder;
use super::format::{
    BLOCK_TRAILER_LEN, BlockHandle, BlockKind, FOOTER_LEN, Footer, HEADER_LEN, Header, MAX_PAYLOAD,
    block_checksum, block_checksum_of_parts, block_trailer, compress,
};
use super::index::IndexBuilder;
use super::properties::Properties;
use super::ranges::RangesBuilder;
use super::{ReferenceCounter, TableMeta, TableOptions};
use crate::format::filter;
use basalt_env::FileWriter;
use basalt_env::{CacheKey, CachePriority, Env, IoPriority};
use basalt_fs::{AlignedBuf, Error, File, Result, slot_size};
use basalt_kv::codec::Compression;
use basalt_kv::key::{Cmp, Kind, SeqNo, TRAILER_LEN, parse_internal_key, split_internal_key};
use basalt_kv::prefix::prefix_hash;
use basalt_kv::separated::Reference;
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

/// Uncompressed values of at least this many bytes go to the file from the caller's memory.
const VECTORED_FROM: usize = 64 << 10;
/// Bytes that a device reads as one unit. A data block takes no more sectors than `block_bytes`
/// fill, see [`TableBuilder::fits`].
pub(super) const SECTOR: usize = 512;
/// A block grows by at most this part of `block_bytes` (one sixteenth) to end at a sector's end.
const STRETCHED: usize = 16;
/// Bytes at which an index partition is finished.
const PARTITION_BYTES: usize = 4096;

/// Writes one table: entries in internal key order, then `finish`.
///
/// An error from the file ends the table: every later call returns it again, and the caller removes
/// the file.
pub struct TableBuilder {
    file: FileWriter,
    file_id: u128,
    options: TableOptions,
    bytewise: bool,
    block: BlockBuilder,
    compressed: Vec<u8>,
    /// The last finished data block. Its separator is made when the next key is known.
    pending: Option<BlockHandle>,
    partitions: Vec<(Vec<u8>, Vec<u8>)>,
    partition: IndexBuilder,
    partition_bytes: usize,
    last_key: Vec<u8>,
    /// Hashes of the keys and prefixes that go into the filter.
    hashes: Vec<u64>,
    /// The last prefix that was added to the filter.
    last_prefix: Option<Vec<u8>>,
    meta: TableMeta,
    data_blocks: u64,
    ranges: RangesBuilder,
    references: ReferenceCounter,
    own_seqs: u64,
}

impl TableBuilder {
    /// Starts a table in an empty file. Writes go through the environment's I/O limit.
    pub fn new(
        env: &Env,
        file: Arc<dyn File>,
        path: &Path,
        file_id: u128,
        options: TableOptions,
        io: IoPriority,
    ) -> TableBuilder {
        let bytewise = options.cmp.equality_is_bytewise();
        let header = Header {
            file_id,
            block_bytes: options.block_bytes.min(u32::MAX as usize) as u32,
            filter_bits: if bytewise {
                options.filter_bits_per_key.min(u32::from(u16::MAX)) as u16
            } else {
                0
            },
            compression: options.compression as u8,
        }
        .encode();
        let mut file = FileWriter::new(env, file, path, io);
        file.begin(&header);
        TableBuilder {
            file,
            file_id,
            block: BlockBuilder::new(bytewise),
            bytewise,
            options,
            compressed: Vec::new(),
            pending: None,
            partitions: Vec::new(),
            partition: IndexBuilder::default(),
            partition_bytes: 0,
            last_key: Vec::new(),
            hashes: Vec::new(),
            last_prefix: None,
            meta: TableMeta::without_entries(file_id, 0),
            data_blocks: 0,
            ranges: RangesBuilder::default(),
            references: ReferenceCounter::default(),
            own_seqs: 0,
        }
    }

    /// Turns on [`FileWriter::write_behind`] for the file.
    pub fn write_behind(&mut self) {
        self.file.write_behind();
    }

    /// Adds an entry.
    ///
    /// Returns `Corruption` for a malformed reference, `Unsupported` for a kind that a later
    /// version writes, and `InvalidArgument` for keys and values past the limits. Panics if keys
    /// are not strictly ascending, or if a value of kind `PutTtl` lacks its expiry.
    pub fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        self.file.check()?;
        let (user, seq, kind) = parse_internal_key(internal_key)?;
        if user.len() > MAX_KEY_LEN || value.len() > MAX_VALUE_LEN + 8 {
            return Err(Error::invalid(format!(
                "entry with a key of {} and a value of {} bytes; at most {MAX_KEY_LEN} and {MAX_VALUE_LEN} are allowed",
                user.len(),
                value.len()
            )));
        }
        if kind == Kind::RangeDelete {
            return Err(Error::invalid(
                "a range tombstone is added as one, not as an entry",
            ));
        }
        let first = self.meta.entries == 0;
        let mut new_user_key = true;
        if !first {
            let (last_user, last_trailer) = split_internal_key(&self.last_key);
            let order = self.options.cmp.user(last_user, user);
            let (_, trailer) = split_internal_key(internal_key);
            assert!(
                order.then_with(|| trailer.cmp(&last_trailer)) == Ordering::Less,
                "table {}: keys are not strictly ascending: {:02x?} after {:02x?}",
                self.file.path().display(),
                internal_key,
                self.last_key
            );
            new_user_key = order != Ordering::Equal;
        }
        let expiry = match kind {
            Kind::PutTtl => {
                let at = value.first_chunk();
                let at = at.expect("a value of kind PutTtl begins with 8 bytes of expiry");
                Some(u64::from_le_bytes(*at))
            }
            Kind::BlobRef => {
                let to = Reference::decode(value)?;
                self.references.add(to.number);
                self.own_seqs += u64::from(to.seq.is_some());
                to.expire_at_ms
            }
            _ => None,
        };

        if !self.block.is_empty() && !self.fits(user, value.len()) {
            let more = self.bytes_to_sector();
            self.finish_block(more)?;
        }
        if let Some(handle) = self.pending.take() {
            let separator = separator(&self.options.cmp, &self.last_key, internal_key);
            self.index(&separator, handle);
        }

        let hash = if self.bytewise {
            filter::key_hash(user)
        } else {
            0
        };
        if self.bytewise && self.options.filter_bits_per_key > 0 && new_user_key {
            self.hashes.push(hash);
            self.note_prefix(user);
        }
        let (_, trailer) = split_internal_key(internal_key);
        let previous = if first {
            &[][..]
        } else {
            &self.last_key[..self.last_key.len() - TRAILER_LEN]
        };
        self.block.key(previous, user, trailer, value.len(), hash);

        let m = &mut self.meta;
        if first {
            m.smallest = internal_key.to_vec();
        }
        m.entries += 1;
        m.deletes += u64::from(kind == Kind::Delete);
        m.min_seq = m.min_seq.min(seq);
        m.max_seq = m.max_seq.max(seq);
        m.raw_key_bytes += user.len() as u64;
        m.raw_value_bytes += value.len() as u64;
        if let Some(expiry) = expiry {
            m.soonest_expiry_ms = m.soonest_expiry_ms.min(expiry);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(internal_key);

        // A value larger than a block is alone in its own block. An uncompressed one goes to the
        // file from the caller's memory.
        let plain = self.options.compression == Compression::None
            || value.len() > super::format::MAX_COMPRESSED_RAW;
        if plain && value.len() >= VECTORED_FROM && value.len() > self.options.block_bytes {
            return self.finish_block_around(value);
        }
        self.block.value(value);
        if self.block.len() > self.options.block_bytes {
            self.finish_block(0)?;
        }
        Ok(())
    }

    /// Returns true if blocks are to end at sector ends. The device reads a block of 4 KiB at any
    /// offset as nine sectors, and reads one that lies in eight sectors in less time. The length of
    /// a compressed block is not known in advance.
    fn by_sectors(&self) -> bool {
        let bytes = self.options.block_bytes;
        self.options.compression == Compression::None
            && bytes.is_multiple_of(SECTOR)
            && bytes >= 8 * SECTOR
    }

    /// Returns true if another entry goes into the block.
    fn fits(&self, user: &[u8], value_len: usize) -> bool {
        let most = self.options.block_bytes;
        let guess = self.block.len() + user.len() + TRAILER_LEN + value_len + 6;
        if !self.by_sectors() {
            return guess <= most;
        }
        let before = (self.file.position() % SECTOR as u64) as usize;
        let most = most - before - BLOCK_TRAILER_LEN;
        // The exact length is computed only where it matters: the guess may lack a restart point,
        // long lengths and a bucket.
        guess + 8 <= most || {
            let (previous, _) = split_internal_key(&self.last_key);
            self.block.len_with(previous, user, value_len) <= most
        }
    }

    /// Returns the bytes by which the current block misses a sector's end, if they are few.
    fn bytes_to_sector(&self) -> usize {
        let end = self.file.position() + (self.block.len() + BLOCK_TRAILER_LEN) as u64;
        let lacks = (end.next_multiple_of(SECTOR as u64) - end) as usize;
        if self.by_sectors() && lacks <= self.options.block_bytes / STRETCHED {
            lacks
        } else {
            0
        }
    }

    /// Adds a range tombstone: the user keys in `[from, to)` are deleted as of each of `seqs`,
    /// which descend. The order of ranges and entries among each other is free. Panics if ranges
    /// are out of order or overlap.
    pub fn delete_range(&mut self, from: &[u8], to: &[u8], seqs: &[SeqNo]) {
        self.ranges.add(&self.options.cmp, from, to, seqs);
    }

    /// Adds the key's prefix to the filter, unless the key before had the same.
    fn note_prefix(&mut self, user_key: &[u8]) {
        let Some(prefixes) = &self.options.prefix_extractor else {
            return;
        };
        let Some(prefix) = prefixes.of(user_key) else {
            return;
        };
        if self.last_prefix.as_deref() != Some(prefix) {
            self.hashes.push(prefix_hash(prefix));
            let last = self.last_prefix.get_or_insert_default();
            last.clear();
            last.extend_from_slice(prefix);
        }
    }

    /// Returns the bytes of the file so far, unwritten blocks included.
    pub fn estimated_size(&self) -> u64 {
        let filter = self.hashes.len() as u64 * u64::from(self.options.filter_bits_per_key) / 8;
        let block = if self.block.is_empty() {
            0
        } else {
            self.block.len()
        };
        self.file.position()
            + (block + self.partition_bytes + self.partition.len() + FOOTER_LEN) as u64
            + self.ranges.len() as u64
            + filter
    }

    /// Returns the number of entries so far.
    pub fn entries(&self) -> u64 {
        self.meta.entries
    }

    fn index(&mut self, separator: &[u8], handle: BlockHandle) {
        self.partition.add(separator, &handle);
        if self.partition.len() >= PARTITION_BYTES {
            self.finish_partition();
        }
    }

    fn finish_partition(&mut self) {
        let separator = self.partition.last_key().to_vec();
        let payload = self.partition.finish();
        self.partition_bytes += payload.len() + 9;
        self.partitions.push((separator, payload));
    }

    /// Writes a block, as it is or compressed, and keeps it in the cache if asked to.
    fn put_block(
        &mut self,
        kind: BlockKind,
        compression: Compression,
        payload: &[u8],
        warm: Option<CachePriority>,
    ) -> Result<BlockHandle> {
        assert!(
            payload.len() <= MAX_PAYLOAD,
            "block of {} bytes",
            payload.len()
        );
        let offset = self.file.position();
        let smaller = compress(compression, payload, &mut self.compressed);
        let (stored, method, raw) = if smaller {
            (
                &self.compressed[..],
                compression as u8,
                payload.len() as u32,
            )
        } else {
            (payload, 0, 0)
        };
        let sum = block_checksum(kind, method, self.file_id, offset, stored);
        self.file.put(stored)?;
        self.file.put(&block_trailer(method, sum))?;
        if let Some(priority) = warm
            && self.options.warm_cache
        {
            self.file.env().cache().insert(
                CacheKey {
                    file: self.file_id,
                    offset,
                },
                AlignedBuf::cached_copy(payload),
                slot_size(payload.len()),
                priority,
            );
        }
        Ok(BlockHandle {
            offset,
            stored: stored.len() as u32,
            raw,
        })
    }

    /// Writes the current block, with `more` further bytes in its hash index.
    fn finish_block(&mut self, more: usize) -> Result<()> {
        let mut block = std::mem::replace(&mut self.block, BlockBuilder::new(false));
        let result = self.put_block(
            BlockKind::Data,
            self.options.compression,
            block.finish(more),
            Some(CachePriority::Normal),
        );
        block.reset();
        self.block = block;
        self.pending = Some(result?);
        self.data_blocks += 1;
        Ok(())
    }

    /// Finishes the block whose only entry waits for `value`. The value is not copied.
    fn finish_block_around(&mut self, value: &[u8]) -> Result<()> {
        let offset = self.file.position();
        let head = self.block.head();
        let tail = self.block.tail();
        let stored = head.len() + value.len() + tail.len();
        assert!(stored <= MAX_PAYLOAD, "block of {stored} bytes");
        let sum = block_checksum_of_parts(
            BlockKind::Data,
            0,
            self.file_id,
            offset,
            &[head, value, &tail],
        );
        self.file.put(head)?;
        self.file.put_vectored(value)?;
        self.file.put(&tail)?;
        self.file.put(&block_trailer(0, sum))?;
        self.block.reset();
        self.pending = Some(BlockHandle {
            offset,
            stored: stored as u32,
            raw: 0,
        });
        self.data_blocks += 1;
        Ok(())
    }

    fn put_filter(&mut self) -> Result<(u64, u64, u32)> {
        if self.hashes.is_empty() {
            return Ok((self.file.position(), 0, 0));
        }
        let bits = self.options.filter_bits_per_key;
        let lines = filter::lines_for(self.hashes.len() as u64, bits);
        let probes = filter::probes_for(bits);
        if filter::pages(lines) > 1 {
            // Pages lie at multiples of their size: a lookup then reads one page, not the ends of
            // two.
            let over = (self.file.position() % filter::PAGE_BYTES as u64) as usize;
            if over != 0 {
                self.file.put(&[0; filter::PAGE_BYTES][over..])?;
            }
        }
        let offset = self.file.position();
        let mut pages: Vec<Vec<u8>> = (0..filter::pages(lines))
            .map(|p| vec![0; filter::page_payload(lines, p)])
            .collect();
        for hash in std::mem::take(&mut self.hashes) {
            let (page, at) = filter::locate(hash, lines);
            filter::add(
                &mut pages[page as usize][at..at + filter::LINE_BYTES],
                hash,
                probes,
            );
        }
        for page in pages {
            self.put_block(
                BlockKind::Filter,
                Compression::None,
                &page,
                Some(CachePriority::High),
            )?;
        }
        Ok((offset, lines, probes))
    }

    /// Writes filter, index, properties and footer, and syncs the file's data and length. The
    /// caller makes the name durable. Panics if the table is empty.
    pub fn finish(mut self) -> Result<TableMeta> {
        assert!(
            self.meta.entries > 0 || self.ranges.len() > 0,
            "table {} is empty",
            self.file.path().display()
        );
        self.file.check()?;
        if !self.block.is_empty() {
            self.finish_block(0)?;
        }
        let last_key = std::mem::take(&mut self.last_key);
        if let Some(handle) = self.pending.take() {
            self.index(&last_key, handle);
        }
        if !self.partition.is_empty() {
            self.finish_partition();
        }
        self.meta.largest = last_key;
        self.meta.references = self.references.take();
        let data_end = self.file.position();

        let (filter_offset, filter_lines, probes) = self.put_filter()?;
        let index_offset = self.file.position();
        // Range tombstones stand before the index: an index at a damaged end of the file can be
        // rebuilt, and range tombstones cannot.
        let (blocks, ranges) = std::mem::take(&mut self.ranges).finish();
        self.meta.take_in_ranges(&self.options.cmp, &ranges);
        let blocks = blocks
            .iter()
            .map(|b| self.put_block(BlockKind::Ranges, Compression::None, b, None))
            .collect::<Result<Vec<_>>>()?;
        let mut top = IndexBuilder::default();
        for (separator, payload) in std::mem::take(&mut self.partitions) {
            let handle = self.put_block(
                BlockKind::Index,
                Compression::None,
                &payload,
                Some(CachePriority::High),
            )?;
            top.add(&separator, &handle);
        }
        let top = self.put_block(BlockKind::TopIndex, Compression::None, &top.finish(), None)?;
        let properties = Properties {
            comparator: self.options.cmp.name().to_owned(),
            family: Some(self.options.family.clone()),
            prefix_extractor: match &self.options.prefix_extractor {
                Some(prefixes) if filter_lines > 0 => Some(prefixes.name().into()),
                _ => None,
            },
            meta: self.meta.clone(),
            data_blocks: self.data_blocks,
            own_seqs: self.own_seqs,
            ranges: blocks,
            flush_flag: self.options.flush_flag,
        }
        .encode();
        let properties =
            self.put_block(BlockKind::Properties, Compression::None, &properties, None)?;
        let file_len = self.file.position() + FOOTER_LEN as u64;
        let footer = Footer {
            file_id: self.file_id,
            top,
            properties,
            filter_offset,
            filter_lines,
            probes,
            data_end,
            index_offset,
            file_len,
        };
        debug_assert!(data_end >= HEADER_LEN as u64);
        self.file.put(&footer.encode())?;
        let (size, digest) = self.file.finish()?;
        assert_eq!(size, file_len, "every byte counted was written");
        self.meta.size = size;
        self.meta.digest = digest;
        Ok(self.meta)
    }
}

/// Returns a short internal key at or after `last` and before `next`.
fn separator(cmp: &Cmp, last: &[u8], next: &[u8]) -> Vec<u8> {
    let (last_user, _) = split_internal_key(last);
    let (next_user, _) = split_internal_key(next);
    if cmp.user(last_user, next_user) == Ordering::Less {
        let short = cmp.separator(last_user, next_user);
        // A user's comparator is not trusted: a separator outside its bounds would hide entries.
        if short.len() <= last_user.len()
            && cmp.user(last_user, &short) == Ordering::Less
            && cmp.user(&short, next_user) == Ordering::Less
        {
            return basalt_kv::key::internal_key(&short, u64::MAX);
        }
    }
    last.to_vec()
}
