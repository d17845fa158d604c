//! Sorted tables: immutable files of internal keys and values in checksummed blocks.

use crate::iter::InternalIter;
use crate::key::{Cmp, SeqNo};
use crate::memtable::Found;
use crate::options::Compression;
use basalt_env::{Env, IoPriority};
use basalt_fs::{Bytes, File, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a table is built.
#[derive(Debug, Clone)]
pub struct TableOptions {
    /// The family's order.
    pub cmp: Cmp,
    /// Bytes of a data block before compression.
    pub block_bytes: usize,
    /// Filter bits a key; 0 for none.
    pub filter_bits_per_key: u32,
    /// Compression of data blocks.
    pub compression: Compression,
}

/// What the manifest remembers of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMeta {
    /// The random id in its header and in every checksum.
    pub file_id: u128,
    /// Bytes.
    pub size: u64,
    /// XXH3-128 of the whole file.
    pub digest: u128,
    /// Entries.
    pub entries: u64,
    /// Entries that are tombstones.
    pub deletes: u64,
    /// First internal key.
    pub smallest: Vec<u8>,
    /// Last internal key.
    pub largest: Vec<u8>,
    /// Lowest sequence number.
    pub min_seq: SeqNo,
    /// Highest sequence number.
    pub max_seq: SeqNo,
    /// Bytes of user keys before compression.
    pub raw_key_bytes: u64,
    /// Bytes of values before compression.
    pub raw_value_bytes: u64,
    /// Soonest expiry of any entry, ms since 1970; `u64::MAX` when nothing expires.
    pub soonest_expiry_ms: u64,
}

/// Writes one table: entries in internal key order, then `finish`.
pub struct TableBuilder(PathBuf);

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
        let _ = (env, file, file_id, options, io);
        TableBuilder(path.to_path_buf())
    }
    /// Adds an entry. Panics when keys are not strictly ascending.
    pub fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let _ = (internal_key, value);
        todo!()
    }
    /// Bytes of the file so far, unwritten blocks included.
    pub fn estimated_size(&self) -> u64 {
        todo!()
    }
    /// Entries so far.
    pub fn entries(&self) -> u64 {
        todo!()
    }
    /// Writes filter, index, properties and footer and syncs the file's data and length. The name's durability is the caller's.
    /// Panics when empty.
    pub fn finish(self) -> Result<TableMeta> {
        let _ = self.0;
        todo!()
    }
}

/// How a reader treats the cache and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPattern {
    /// Blocks read go into the cache; sequential reads are read ahead in growing steps.
    Cached,
    /// Blocks found in the cache are used, blocks read are not kept; sequential reads are read ahead.
    Uncached,
    /// A compaction's pass over the whole table: large reads, nothing kept.
    Compaction,
}

/// Verification's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableVerified {
    /// Bytes read, which is the file's size.
    pub bytes: u64,
    /// Blocks checked.
    pub blocks: u64,
    /// Entries seen.
    pub entries: u64,
}

/// An open table.
pub struct TableReader(PathBuf);

impl TableReader {
    /// Opens a table: reads footer, header and top-level index, and checks that id and size are the expected ones.
    pub fn open(
        env: &Env,
        file: Arc<dyn File>,
        path: &Path,
        file_id: u128,
        size: u64,
        cmp: Cmp,
    ) -> Result<Arc<TableReader>> {
        let _ = (env, file, file_id, size, cmp);
        Ok(Arc::new(TableReader(path.to_path_buf())))
    }
    /// The newest version of `user_key` with a sequence number of at most `seq`. Filter, index partition and data block
    /// come from the cache, at the cost of at most one device read each when they are not there.
    pub fn get(&self, user_key: &[u8], seq: SeqNo, fill_cache: bool) -> Result<Option<Found>> {
        let _ = (user_key, seq, fill_cache);
        todo!()
    }
    /// A cursor.
    pub fn iter(self: &Arc<Self>, pattern: ReadPattern) -> TableIter {
        let _ = pattern;
        TableIter(self.clone())
    }
    /// Reads every byte and checks checksums, padding, order, counts, filter membership of every key, and the digest.
    pub fn verify(&self, meta: &TableMeta) -> Result<TableVerified> {
        let _ = meta;
        todo!()
    }
    /// Salvages: the metadata recomputed from whatever is readable. For `repair`, which has no manifest entry.
    pub fn inspect(env: &Env, file: Arc<dyn File>, path: &Path, cmp: Cmp) -> Result<TableMeta> {
        let _ = (env, file, path, cmp);
        todo!()
    }
    /// About how many bytes of the file lie before the internal key.
    pub fn approximate_offset(&self, internal_key: &[u8]) -> Result<u64> {
        let _ = internal_key;
        todo!()
    }
    /// Memory that this open table holds outside the cache.
    pub fn memory(&self) -> usize {
        todo!()
    }
    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// A cursor over a table.
pub struct TableIter(#[expect(dead_code)] Arc<TableReader>);

impl InternalIter for TableIter {
    fn valid(&self) -> bool {
        todo!()
    }
    fn seek_to_first(&mut self) -> Result<()> {
        todo!()
    }
    fn seek_to_last(&mut self) -> Result<()> {
        todo!()
    }
    fn seek(&mut self, _target: &[u8]) -> Result<()> {
        todo!()
    }
    fn seek_for_prev(&mut self, _target: &[u8]) -> Result<()> {
        todo!()
    }
    fn next(&mut self) -> Result<()> {
        todo!()
    }
    fn prev(&mut self) -> Result<()> {
        todo!()
    }
    fn key(&self) -> &[u8] {
        todo!()
    }
    fn value(&self) -> &[u8] {
        todo!()
    }
    fn pinned_value(&self) -> Bytes {
        todo!()
    }
}
