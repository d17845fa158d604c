//! Reading a blob file: its directory when it is opened, then index pages through the cache, then
//! each value by one read of the device.
//!
//! Modules: `index_pages` (from a name to a place), `values` (one value), [`batch_read`] (many
//! values at once), `walk` (records in the order of the file).

pub mod batch_read;
mod index_pages;
mod values;
mod walk;

use super::counters::ReadCounters;
use super::index::PLACES_A_PAGE;
use super::layout::{
    BLOB_MAGIC, Directory, FOOTER_LEN, Footer, HEADER_LEN, INDEX_MAGIC, check_header,
};
use super::record::{Form, HEADER_LEN as RECORD_HEADER, Name};
use super::{BlobMeta, FamilyShare, compressed};
use basalt_env::Env;
use basalt_env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use basalt_fs::{AlignedBuf, Bytes, Error, File, Result};
use basalt_kv::codec::Compression;
use basalt_kv::key::{Kind, SeqNo};
use basalt_table::{BLOCK_TRAILER_LEN, BlockHandle, BlockKind, open_block};
use basalt_table::{FileSource, read_exact};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes at the end of an index that opening reads at once: footer and directory of most files.
const TAIL_READ: u64 = 4096;

/// The most bytes of a page. A longer page would list all keys of its part one by one, which is no
/// index.
const MAX_PAGE: usize = 16 << 20;

/// Number of reads for scans after which [`FileSource::extra_reads`] is called again.
const SCANS_TOLD: u64 = 256;

/// Settings of a read: its use of the cache and of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadMode {
    /// If true, blocks and records that are read go into the cache.
    pub fill_cache: bool,
    /// True if a user waits for the read.
    pub foreground: bool,
}

impl ReadMode {
    /// Returns the mode for a user who waits.
    pub fn user(fill_cache: bool) -> ReadMode {
        ReadMode {
            fill_cache,
            foreground: true,
        }
    }

    /// Returns the mode for a background job.
    pub fn job(fill_cache: bool) -> ReadMode {
        ReadMode {
            fill_cache,
            foreground: false,
        }
    }
}

/// A record that was read and verified.
#[derive(Debug, Clone)]
pub struct BlobRecord {
    /// Offset of the record in the file.
    pub at: u64,
    /// Family id.
    pub family: u32,
    /// User key.
    pub key: Bytes,
    /// Sequence number.
    pub seq: SeqNo,
    /// `Put`, or `PutTtl`, whose value begins with its expiry.
    pub kind: Kind,
    /// Codec of the value.
    pub codec: Compression,
    /// The value as it is stored.
    pub value: Bytes,
    /// Checksum of the stored value.
    pub value_sum: u64,
}

impl BlobRecord {
    /// Returns the name that finds the record.
    pub fn name(&self) -> Name<'_> {
        Name {
            family: self.family,
            key: &self.key,
            seq: self.seq,
        }
    }

    /// Returns the record's bytes in the file: header, key and stored value.
    pub fn stored_len(&self) -> usize {
        RECORD_HEADER + self.key.len() + self.value.len()
    }

    /// Returns the form in which the value is stored.
    pub fn form(&self) -> Form {
        Form {
            kind: self.kind,
            codec: self.codec,
            len: self.value.len(),
            sum: self.value_sum,
        }
    }

    /// Returns the bytes of the value with its expiry, decompressed, or `None` if the stored bytes
    /// do not give their length.
    pub fn payload_len(&self) -> Option<usize> {
        compressed::payload_len(self.kind, self.codec, &self.value).ok()
    }

    /// Returns the value with its expiry, decompressed. The error describes what is wrong with the
    /// stored bytes.
    pub fn payload(&self) -> std::result::Result<Bytes, String> {
        match self.codec {
            Compression::None => Ok(self.value.clone()),
            codec => compressed::unpack(self.kind, codec, &self.value, 0).map(Bytes::from),
        }
    }
}

/// The layout of a blob file's index, in bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexLayout {
    /// Offset of the first page.
    pub pages_at: u64,
    /// Number of hash pages.
    pub hash_pages: u64,
    /// Bytes of the position pages.
    pub hash_bytes: u64,
    /// Number of position pages.
    pub place_pages: u64,
    /// Bytes of the position pages.
    pub place_bytes: u64,
    /// Offset of the directory; the footer follows it.
    pub directory_at: u64,
}

/// Reads footer and directory of the index in a file of `size` bytes.
pub(super) fn read_directory(
    file: &dyn File,
    path: &Path,
    file_id: u128,
    size: u64,
) -> Result<(Footer, Directory)> {
    if size < (HEADER_LEN + FOOTER_LEN) as u64 || size > i64::MAX as u64 {
        return Err(Error::corruption(
            path,
            0,
            format!("blob file of {size} bytes"),
        ));
    }
    let from = size - size.min(TAIL_READ);
    let tail = read_exact(file, path, from, (size - from) as usize)?;
    let footer = Footer::decode(path, file_id, size, &tail[tail.len() - FOOTER_LEN..])?;
    let handle = BlockHandle {
        offset: footer.directory,
        stored: footer.directory_len,
        raw: 0,
    };
    let disk = if handle.offset >= from {
        let at = (handle.offset - from) as usize;
        AlignedBuf::cached_copy(&tail[at..at + handle.disk_len()])
    } else {
        read_exact(file, path, handle.offset, handle.disk_len())?
    };
    let payload = open_block(path, file_id, BlockKind::BlobDirectory, &handle, disk)?;
    let directory = Directory::decode(&payload)
        .ok_or_else(|| Error::corruption(path, handle.offset, "malformed directory"))?;
    Ok((footer, directory))
}

/// An open blob file.
pub struct BlobReader {
    env: Env,
    counts: Arc<ReadCounters>,
    /// Returns the file with the records, and its path.
    records: Box<dyn FileSource>,
    records_path: PathBuf,
    /// The file with the index: the same file, or the one beside a log.
    index: Box<dyn FileSource>,
    index_path: PathBuf,
    /// The id of the file that has the index.
    index_id: u128,
    directory: Directory,
    /// Offset of each page, hash pages first, and the end of the last one.
    pages: Vec<u64>,
    /// A read keeps a multiple of this many bytes alive; 1 if nothing is rounded.
    unit: u64,
    /// Reads of up to this many bytes are not rounded to `unit`.
    own_memory: usize,
    /// Device reads for scans, and the sum, over these reads, of how many equal reads would have
    /// returned all that the scan asked for.
    scans: (AtomicU64, AtomicU64),
}

impl BlobReader {
    /// Opens a blob file whose index is at its end.
    pub fn open(
        env: &Env,
        source: Arc<dyn FileSource>,
        path: &Path,
        meta: &BlobMeta,
    ) -> Result<BlobReader> {
        assert!(meta.index.is_none(), "a log's index is a file of its own");
        let records = SharedSource(source.clone());
        let header = read_exact(&*source.file()?, path, 0, HEADER_LEN)?;
        check_header(path, &BLOB_MAGIC, meta.file_id, &header)?;
        let index = (path, meta.file_id, meta.size);
        BlobReader::over(
            env,
            (Box::new(records), path),
            Box::new(SharedSource(source)),
            index,
            meta,
        )
    }

    /// Opens a log as a blob file, with the index beside it.
    pub fn open_log(
        env: &Env,
        log: (Box<dyn FileSource>, &Path),
        index: (Box<dyn FileSource>, &Path),
        meta: &BlobMeta,
    ) -> Result<BlobReader> {
        let of = meta.index.expect("a log's index is a file of its own");
        let (source, path) = index;
        let header = read_exact(&*source.file()?, path, 0, HEADER_LEN)?;
        check_header(path, &INDEX_MAGIC, of.file_id, &header)?;
        BlobReader::over(env, log, source, (path, of.file_id, of.size), meta)
    }

    fn over(
        env: &Env,
        records: (Box<dyn FileSource>, &Path),
        source: Box<dyn FileSource>,
        index: (&Path, u128, u64),
        meta: &BlobMeta,
    ) -> Result<BlobReader> {
        let (path, file_id, size) = index;
        let (footer, directory) = read_directory(&*source.file()?, path, file_id, size)?;
        let bad = |what: String| Error::corruption(path, footer.directory, what);
        if directory.records_in != meta.file_id
            || (directory.data_end, directory.records) != (meta.data_end, meta.records)
            || directory.families != meta.families
        {
            return Err(bad(format!(
                "the directory is of {} records in file {:032x}, expected {} in {:032x}",
                directory.records, directory.records_in, meta.records, meta.file_id
            )));
        }
        let own = meta.index.is_none();
        let first = match own {
            true => directory.data_end,
            false => HEADER_LEN as u64,
        };
        if directory.pages != first || directory.data_end < HEADER_LEN as u64 {
            return Err(bad("its pages do not follow the records".into()));
        }
        let mut pages = vec![directory.pages];
        for len in directory.hashes.iter().chain(&directory.places) {
            if *len as usize > MAX_PAGE {
                return Err(bad(format!("a page of {len} bytes")));
            }
            let last = pages[pages.len() - 1];
            pages.push(last + u64::from(*len) + BLOCK_TRAILER_LEN as u64);
        }
        let per_page = PLACES_A_PAGE as u64;
        if pages[pages.len() - 1] != footer.directory
            || directory.places.len() as u64 != directory.records.div_ceil(per_page)
            || directory.hashes.is_empty()
        {
            return Err(bad("its pages do not lie before the directory".into()));
        }
        let info = env.fs().info();
        Ok(BlobReader {
            unit: match info.direct {
                true => info.write_unit as u64,
                false => 1,
            },
            own_memory: info.own_memory,
            scans: (AtomicU64::new(0), AtomicU64::new(0)),
            counts: env.metrics().group(),
            env: env.clone(),
            records: records.0,
            records_path: records.1.to_path_buf(),
            index: source,
            index_path: path.to_path_buf(),
            index_id: file_id,
            directory,
            pages,
        })
    }

    /// Returns the number of records.
    pub fn records(&self) -> u64 {
        self.directory.records
    }

    /// Returns the records and bytes of each family.
    pub fn families(&self) -> &BTreeMap<u32, FamilyShare> {
        &self.directory.families
    }

    /// Returns the layout of the index.
    pub fn layout(&self) -> IndexLayout {
        let (pages, hashes) = (&self.pages, self.directory.hashes.len());
        let end = pages[pages.len() - 1];
        IndexLayout {
            pages_at: pages[0],
            hash_pages: hashes as u64,
            hash_bytes: pages[hashes] - pages[0],
            place_pages: self.directory.places.len() as u64,
            place_bytes: end - pages[hashes],
            directory_at: end,
        }
    }

    /// Counts a read of values for a scan. `alike` such reads would return all that the scan asked
    /// for at once.
    pub(super) fn scanned(&self, alike: u64) {
        // Relaxed, here and below: these counts decide nothing alone.
        self.scans.1.fetch_add(alike, Relaxed);
        if (self.scans.0.fetch_add(1, Relaxed) + 1).is_multiple_of(SCANS_TOLD) {
            self.records.extra_reads();
        }
    }

    /// Returns the number of reads for scans since the last reset, and the sum of their `alike`.
    pub fn scans(&self) -> (u64, u64) {
        (self.scans.0.load(Relaxed), self.scans.1.load(Relaxed))
    }

    /// Resets the counts of [`BlobReader::scans`].
    pub fn forget_scans(&self) {
        self.scans.0.store(0, Relaxed);
        self.scans.1.store(0, Relaxed);
    }

    /// Returns the bytes of memory outside the cache.
    pub fn memory(&self) -> usize {
        size_of::<BlobReader>()
            + self.pages.capacity() * 8
            + (self.directory.hashes.capacity() + self.directory.places.capacity()) * 4
    }

    /// Returns the counters of this file's reads.
    pub(super) fn counts(&self) -> &Arc<ReadCounters> {
        &self.counts
    }

    /// Returns the environment that the file's memory belongs to.
    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the file with the records, and its path.
    pub(super) fn records_file(&self) -> (&dyn FileSource, &Path) {
        (&*self.records, &self.records_path)
    }
}

/// One source for records and index.
struct SharedSource(Arc<dyn FileSource>);

impl FileSource for SharedSource {
    fn file(&self) -> Result<Arc<dyn File>> {
        self.0.file()
    }

    fn extra_reads(&self) {
        self.0.extra_reads();
    }
}
