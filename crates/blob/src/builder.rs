//! Writes a blob file: records as they come, then the index. Also writes the index of a log whose
//! records stay where they are.

use super::index::IndexBuilder;
use super::layout::{
    BLOB_MAGIC, COMPRESSED, Directory, FOOTER_LEN, Footer, HEADER_LEN, INDEX_MAGIC, header,
};
use super::record::{self, Form, Name};
use super::{BlobMeta, IndexFile};
use basalt_env::FileWriter;
use basalt_env::{CacheKey, CachePriority, Env, IoPriority};
use basalt_fs::{AlignedBuf, Bytes, File, Lifetime, Result, slot_size};
use basalt_kv::codec::Compression;
use basalt_kv::key::{MAX_SEQ, SeqNo};
use basalt_table::{BlockKind, block_checksum, block_trailer};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Values of at least this many bytes go to the file from the caller's memory.
const VECTORED_FROM: usize = 64 << 10;

/// Bytes of the unit in which filesystems give back space.
pub const BLOCK: u64 = 4096;

/// The blocks that remain of a log: the first, with its header, and those that records lie in.
/// Records are added in order.
#[derive(Debug, Clone)]
pub struct Blocks {
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Offset where the last block ends.
    end: u64,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks {
            bytes: BLOCK,
            end: BLOCK,
        }
    }
}

impl Blocks {
    /// Adds the blocks of the next record.
    pub fn add(&mut self, record: &Range<u64>) {
        let from = (record.start / BLOCK * BLOCK).max(self.end);
        self.end = record.end.next_multiple_of(BLOCK).max(from);
        self.bytes += self.end - from;
    }
}

/// Counts of the records that were added.
struct Contents {
    index: IndexBuilder,
    directory: Directory,
    blocks: Blocks,
}

impl Contents {
    fn of(records_in: u128) -> Contents {
        Contents {
            index: IndexBuilder::default(),
            blocks: Blocks::default(),
            directory: Directory {
                records_in,
                min_seq: MAX_SEQ,
                ..Directory::default()
            },
        }
    }

    fn add(&mut self, name: &Name<'_>, place: Range<u64>) {
        let hash = name.hash(self.directory.records_in);
        self.add_hashed(name.family, name.seq, hash, place);
    }

    fn add_hashed(&mut self, family: u32, seq: SeqNo, hash: u64, place: Range<u64>) {
        let d = &mut self.directory;
        d.records += 1;
        d.min_seq = d.min_seq.min(seq);
        d.max_seq = d.max_seq.max(seq);
        let share = d.families.entry(family).or_default();
        share.records += 1;
        share.bytes += place.end - place.start;
        self.blocks.add(&place);
        d.hash_sum = d.hash_sum.wrapping_add(hash);
        self.index.add(hash, place);
    }

    /// Writes pages, directory and footer behind the contents of the file `file_id`, and ends the
    /// file. Returns its size and digest.
    fn finish(
        self,
        mut file: FileWriter,
        file_id: u128,
        data_end: u64,
        warm: bool,
    ) -> Result<(Directory, u64, u128)> {
        let mut directory = self.directory;
        directory.data_end = data_end;
        directory.pages = file.position();
        let pages = self.index.finish();
        for (kind, list, lens) in [
            (BlockKind::BlobHashes, pages.hashes, &mut directory.hashes),
            (BlockKind::BlobPlaces, pages.places, &mut directory.places),
        ] {
            for page in list {
                lens.push(page.len() as u32);
                let offset = put_block(&mut file, kind, file_id, &page)?;
                if warm {
                    // Lookups read these pages for every value that is not in memory.
                    let key = CacheKey {
                        file: file_id,
                        offset,
                    };
                    let (page, charge) = (AlignedBuf::cached_copy(&page), slot_size(page.len()));
                    (file.env().cache()).insert(key, page, charge, CachePriority::High);
                }
            }
        }
        let payload = directory.encode();
        let at = put_block(&mut file, BlockKind::BlobDirectory, file_id, &payload)?;
        let footer = Footer {
            directory: at,
            directory_len: payload.len() as u32,
            file_len: file.position() + FOOTER_LEN as u64,
        };
        file.put(&footer.encode(file_id))?;
        let (size, digest) = file.finish()?;
        assert_eq!(size, footer.file_len, "every byte counted was written");
        Ok((directory, size, digest))
    }
}

/// Appends a block: payload and trailer. Returns its offset.
fn put_block(file: &mut FileWriter, kind: BlockKind, file_id: u128, payload: &[u8]) -> Result<u64> {
    let offset = file.position();
    let sum = block_checksum(kind, 0, file_id, offset, payload);
    file.put(payload)?;
    file.put(&block_trailer(0, sum))?;
    Ok(offset)
}

/// The settings with which a blob file is written.
#[derive(Debug, Clone, Copy)]
pub struct BlobOptions {
    /// The file's new random id.
    pub file_id: u128,
    /// The priority among background I/O.
    pub io: IoPriority,
    /// If true, index pages go into the cache as they are written: lookups read them for every
    /// value that is not in memory.
    pub warm_cache: bool,
    /// If true, uncompressed records that the cache accepts go into the cache, too.
    pub warm_records: bool,
    /// True if values may be compressed. Builds that do not know compressed values then refuse the
    /// file, instead of reporting its records as damaged.
    pub compressed: bool,
}

impl BlobOptions {
    fn header(&self, magic: &[u8; 8]) -> [u8; HEADER_LEN] {
        let features = if self.compressed { COMPRESSED } else { 0 };
        header(magic, self.file_id, features)
    }
}

/// Writes a blob file: records side by side, in any order.
///
/// An error from the file ends the blob file: every later call returns it again, and the caller
/// removes the file.
pub struct BlobBuilder {
    file: FileWriter,
    options: BlobOptions,
    contents: Contents,
    head: Vec<u8>,
    /// Offset of the last record.
    last: u64,
}

impl BlobBuilder {
    /// Starts a blob file in an empty file.
    pub fn new(env: &Env, file: Arc<dyn File>, path: &Path, options: BlobOptions) -> BlobBuilder {
        let mut file = FileWriter::new(env, file, path, options.io);
        file.begin(&options.header(&BLOB_MAGIC));
        BlobBuilder {
            file,
            options,
            contents: Contents::of(options.file_id),
            head: Vec::new(),
            last: 0,
        }
    }

    /// Turns on [`FileWriter::write_behind`] for the file.
    pub fn write_behind(&mut self) {
        self.file.write_behind();
    }

    /// Adds a version of a key. `value` has the stored bytes, and `form` describes them without a
    /// check.
    pub fn add(&mut self, name: &Name<'_>, form: &Form, value: &[u8]) -> Result<()> {
        debug_assert_eq!(record::value_sum(value), form.sum, "value checksum");
        debug_assert_eq!(value.len(), form.len, "value length");
        assert!(
            self.options.compressed || form.codec == Compression::None,
            "a file whose header does not say that values are compressed"
        );
        let offset = self.file.position();
        self.head.clear();
        let id = self.options.file_id;
        record::encode_head(&mut self.head, id, offset, name, form);
        self.file.put(&self.head)?;
        if value.len() >= VECTORED_FROM {
            self.file.put_vectored(value)?;
        } else {
            self.file.put(value)?;
        }
        self.contents.add(name, offset..self.file.position());
        self.last = offset;
        let (cache, len) = (self.file.env().cache(), self.head.len() + value.len());
        // The cache has decompressed values. The caller that compressed this one puts it there.
        let plain = form.codec == Compression::None;
        if plain && self.options.warm_records && cache.takes(len) {
            let mut record = AlignedBuf::with_lifetime(len, Lifetime::Cached);
            record.extend_from_slice(&self.head);
            record.extend_from_slice(value);
            cache.insert(
                self.last(),
                Bytes::from_owner(record),
                slot_size(len),
                CachePriority::Normal,
            );
        }
        Ok(())
    }

    /// Returns the cache key of the record that was added last.
    pub fn last(&self) -> CacheKey {
        CacheKey {
            file: self.options.file_id,
            offset: self.last,
        }
    }

    /// Returns the file's random id.
    pub fn file_id(&self) -> u128 {
        self.options.file_id
    }

    /// Returns the bytes of the file so far.
    pub fn size(&self) -> u64 {
        self.file.position()
    }

    /// Returns the number of records so far.
    pub fn records(&self) -> u64 {
        self.contents.directory.records
    }

    /// Writes the index and syncs data and length. The caller makes the name durable. Panics if the
    /// file has no records.
    pub fn finish(self) -> Result<BlobMeta> {
        self.file.check()?;
        assert!(self.records() > 0, "a blob file without records");
        let (options, end) = (self.options, self.file.position());
        let (d, size, digest) =
            (self.contents).finish(self.file, options.file_id, end, options.warm_cache)?;
        Ok(meta(d, None, size, digest))
    }
}

/// Writes the index of a log that stays as a blob file.
pub struct LogIndexBuilder {
    file: FileWriter,
    options: BlobOptions,
    contents: Contents,
    number: u64,
}

impl LogIndexBuilder {
    /// Starts an index in an empty file with this number, for the log with the id `log_id`.
    pub fn new(
        env: &Env,
        number: u64,
        file: Arc<dyn File>,
        path: &Path,
        options: BlobOptions,
        log_id: u128,
    ) -> LogIndexBuilder {
        let mut file = FileWriter::new(env, file, path, options.io);
        file.begin(&options.header(&INDEX_MAGIC));
        LogIndexBuilder {
            file,
            options,
            contents: Contents::of(log_id),
            number,
        }
    }

    /// Adds a record at its place in the log. Records come in the order of their places.
    pub fn add(&mut self, name: &Name<'_>, place: Range<u64>) {
        self.contents.add(name, place);
    }

    /// Adds a record with the hash ([`Name::hash`]) of its name in the log. Records come in the
    /// order of their places.
    pub fn add_hashed(&mut self, family: u32, seq: SeqNo, hash: u64, place: Range<u64>) {
        self.contents.add_hashed(family, seq, hash, place);
    }

    /// Writes the index of a log whose records end at `data_end`, and syncs data and length. The
    /// caller makes the name durable. Panics if the index has no records.
    pub fn finish(self, data_end: u64) -> Result<BlobMeta> {
        assert!(self.contents.directory.records > 0, "a log without blobs");
        let (options, kept, number) = (self.options, self.contents.blocks.bytes, self.number);
        let (d, size, digest) =
            (self.contents).finish(self.file, options.file_id, data_end, options.warm_cache)?;
        let index = IndexFile {
            number,
            file_id: options.file_id,
            size,
            digest,
        };
        Ok(meta(d, Some(index), kept, 0))
    }
}

pub(super) fn meta(d: Directory, index: Option<IndexFile>, size: u64, digest: u128) -> BlobMeta {
    BlobMeta {
        file_id: d.records_in,
        data_end: d.data_end,
        index,
        size,
        digest,
        records: d.records,
        families: d.families,
        min_seq: d.min_seq,
        max_seq: d.max_seq,
    }
}
