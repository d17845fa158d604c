//! Reads a blob file: its directory when it is opened, then index pages through the cache, then
//! each value by one device read.

pub mod batch_read;

use super::builder::Blocks;
use super::counts::ReadCounts;
use super::index::{self, PLACES_A_PAGE};
use super::layout::{
    BLOB_MAGIC, Directory, FOOTER_LEN, Footer, HEADER_LEN, INDEX_MAGIC, check_header,
};
use super::record::{self, Form, HEADER_LEN as RECORD_HEADER, Head, Name};
use super::{BlobMeta, FamilyShare, packed};
use basalt_env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use basalt_env::{CacheKey, CachePriority, Env, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Bytes, Error, File, Result, slot_size};
use basalt_kv::codec::Compression;
use basalt_kv::key::{Kind, SeqNo};
use basalt_table::{BLOCK_TRAILER_LEN, BlockHandle, BlockKind, open_block};
use basalt_table::{ReadBudget, Source, read_exact};
use batch_read::{in_hash_page, value_len};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes at the end of an index that opening reads at once: footer and directory of most files.
const TAIL_READ: u64 = 4096;

/// The most bytes of a page. A longer page would list all keys of its part one by one, which is no
/// index.
const MAX_PAGE: usize = 16 << 20;

/// Bytes of one read of a walk.
const WALK_STEP: u64 = 1 << 20;
/// Bytes of a gap between two wanted records that a walk reads along with them.
const WALK_GAP: u64 = 64 << 10;

/// Number of reads for scans after which [`Source::extra_reads`] is called again.
const SCANS_TOLD: u64 = 256;

/// Records of up to this many bytes are copied out of the memory that they were read into before
/// they go into the cache. Direct reads need that memory aligned to pages, and so short a record
/// would waste as many bytes as it has.
const MOVED: usize = 32 << 10;

/// How a read uses the cache and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// If true, blocks and records that are read go into the cache.
    pub fill_cache: bool,
    /// True if a user waits for the read.
    pub foreground: bool,
}

impl How {
    /// Returns the mode for a user who waits.
    pub fn user(fill_cache: bool) -> How {
        How {
            fill_cache,
            foreground: true,
        }
    }

    /// Returns the mode for a background job.
    pub fn job(fill_cache: bool) -> How {
        How {
            fill_cache,
            foreground: false,
        }
    }
}

/// A record that was read and verified.
#[derive(Debug, Clone)]
pub struct Record {
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

impl Record {
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
        packed::payload_len(self.kind, self.codec, &self.value).ok()
    }

    /// Returns the value with its expiry, decompressed. The error describes what is wrong with the
    /// stored bytes.
    pub fn payload(&self) -> std::result::Result<Bytes, String> {
        match self.codec {
            Compression::None => Ok(self.value.clone()),
            codec => packed::unpack(self.kind, codec, &self.value, 0).map(Bytes::from),
        }
    }
}

/// The layout of a blob file's index, in bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the first page.
    pub pages_at: u64,
    /// Number of hash pages.
    pub hash_pages: u64,
    /// Bytes of the hash pages.
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
    let directory = Directory::decode(&payload).ok_or_else(|| {
        Error::corruption(path, handle.offset, "a directory that no builder writes")
    })?;
    Ok((footer, directory))
}

/// An open blob file.
pub struct BlobReader {
    env: Env,
    counts: ReadCounts,
    /// The file with the records.
    records: Box<dyn Source>,
    records_path: PathBuf,
    /// The file with the index: the same file, or the one beside a log.
    index: Box<dyn Source>,
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
        source: Arc<dyn Source>,
        path: &Path,
        meta: &BlobMeta,
    ) -> Result<BlobReader> {
        assert!(meta.index.is_none(), "a log's index is a file of its own");
        let records = Shared(source.clone());
        let header = read_exact(&*source.file()?, path, 0, HEADER_LEN)?;
        check_header(path, &BLOB_MAGIC, meta.file_id, &header)?;
        let index = (path, meta.file_id, meta.size);
        BlobReader::over(
            env,
            (Box::new(records), path),
            Box::new(Shared(source)),
            index,
            meta,
        )
    }

    /// Opens a log as a blob file, with the index beside it.
    pub fn open_log(
        env: &Env,
        log: (Box<dyn Source>, &Path),
        index: (Box<dyn Source>, &Path),
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
        records: (Box<dyn Source>, &Path),
        source: Box<dyn Source>,
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
            counts: ReadCounts::of(env),
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
    pub fn layout(&self) -> Layout {
        let (pages, hashes) = (&self.pages, self.directory.hashes.len());
        let end = pages[pages.len() - 1];
        Layout {
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

    /// Returns the value of a version of a key that is in the file. If the index is in the cache,
    /// this costs at most one device read. Returns `Corruption` if the record is not there or not
    /// the one that the index names.
    pub fn get(&self, name: &Name<'_>, fill_cache: bool) -> Result<Bytes> {
        let value = self.get_within(name, How::user(fill_cache), &mut ReadBudget::unbounded());
        value.map(|v| v.expect("nothing is put off without a bound"))
    }

    /// Does what [`BlobReader::get`] does, and takes the value from `budget`. Returns `None` if the
    /// budget is too small. The stored bytes are taken before the read, and the further bytes of a
    /// compressed value before it is decompressed.
    pub fn get_within(
        &self,
        name: &Name<'_>,
        how: How,
        budget: &mut ReadBudget,
    ) -> Result<Option<Bytes>> {
        let (_, place) = self.find_how(name, how)?;
        let stored = value_len(name, &place);
        if !budget.take(stored) {
            return Ok(None);
        }
        self.value_within(name, &place, how, |len| budget.take_rest(stored, len))
    }

    /// Returns the decompressed length in bytes of one version's value, its expiry included.
    ///
    /// Reads at most the header and the key of the record, which have a checksum of their own. The
    /// length of a compressed value is covered by the checksum of the whole value only. The stored
    /// bytes of such a value are read, verified and charged to `budget`, and not decompressed.
    /// Returns `None` if the budget is too small for that.
    pub fn payload_len_within(
        &self,
        name: &Name<'_>,
        how: How,
        budget: &mut ReadBudget,
    ) -> Result<Option<usize>> {
        let (_, place) = self.find_how(name, how)?;
        if let Some(value) = self.cached_value(name, &place) {
            return value.map(|v| Some(v.len()));
        }
        if how.foreground {
            self.env.foreground_io().foreground_read();
        }
        let front = RECORD_HEADER + name.key.len();
        let booked = self.env.ledger().reserve(MemoryKind::Pinned, front as u64);
        let file = self.records.file()?;
        let bytes = read_exact(&*file, &self.records_path, place.start, front)?;
        self.counts.heads.add(1);
        let id = self.directory.records_in;
        let head = record::check_head_is(&self.records_path, id, place.start, &bytes, name)?;
        drop((bytes, booked));
        self.check_len(&head, &place)?;
        if !head.is_packed() {
            return Ok(Some(head.value_len));
        }
        if !budget.take(head.value_len) {
            return Ok(None);
        }
        let stored = place.end - place.start;
        let _booked = self.env.ledger().reserve(MemoryKind::Pinned, stored);
        let bytes = read_exact(&*file, &self.records_path, place.start, stored as usize)?;
        let head = self.verified(name, &place, &bytes)?;
        record::payload_len(&self.records_path, place.start, &head, &bytes).map(Some)
    }

    /// Returns the ordinal and the place of a version of a key that is in the file. Reads no record
    /// unless several have its hash, so a key that is not in the file gets any ordinal. A caller
    /// that marks garbage by it compares the sum with [`BlobReader::hash_sum`].
    pub fn find(&self, name: &Name<'_>, fill_cache: bool) -> Result<(u32, Range<u64>)> {
        self.find_how(name, How::job(fill_cache))
    }

    pub(super) fn find_how(&self, name: &Name<'_>, how: How) -> Result<(u32, Range<u64>)> {
        let hash = self.hash_of(name);
        let n = self.hash_page(hash);
        let page = self.page(BlockKind::BlobHashes, n, how)?;
        let (mut ordinal, twins) = self.candidates_in(&page, hash)?;
        if !twins.is_empty() {
            ordinal = self.pick(name, ordinal, &twins, how)?;
        }
        Ok((ordinal, self.place_how(ordinal, how)?))
    }

    /// Returns the sum of the hashes ([`Name::hash`]) of all records, modulo 2^64.
    pub fn hash_sum(&self) -> u64 {
        self.directory.hash_sum
    }

    /// Returns which of several records has this name. If none verifies, returns the error of the
    /// last one tried.
    fn pick(&self, name: &Name<'_>, ordinal: u32, twins: &[u32], how: How) -> Result<u32> {
        let mut failed = None;
        for ordinal in twins.iter().copied().chain([ordinal]) {
            let place = self.place_how(ordinal, how);
            match place.and_then(|place| self.value_at(name, &place, how)) {
                Ok(_) => return Ok(ordinal),
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.expect("at least one was tried"))
    }

    /// Returns the hash of a version's name in this file.
    #[inline]
    pub(super) fn hash_of(&self, name: &Name<'_>) -> u64 {
        name.hash(self.directory.records_in)
    }

    /// Returns the number of the page that has a hash.
    #[inline]
    pub(super) fn hash_page(&self, hash: u64) -> usize {
        index::page_of(hash, self.directory.hashes.len() as u64) as usize
    }

    /// Returns the ordinal that a hash page has for one of its hashes, and all other ordinals that
    /// it may mean.
    pub(super) fn candidates_in(&self, page: &[u8], hash: u64) -> Result<(u32, Vec<u32>)> {
        let n = self.hash_page(hash);
        in_hash_page(page, hash)
            .map_err(|what| Error::corruption(&self.index_path, self.pages[n], what))
    }

    /// Returns the place of the `ordinal`-th record.
    pub fn place(&self, ordinal: u32, fill_cache: bool) -> Result<Range<u64>> {
        self.place_how(ordinal, How::job(fill_cache))
    }

    fn place_how(&self, ordinal: u32, how: How) -> Result<Range<u64>> {
        let n = self.place_page(ordinal)?;
        self.place_in(&self.page(BlockKind::BlobPlaces, n, how)?, ordinal)
    }

    /// Returns the number of the page that has the place of a record.
    pub(super) fn place_page(&self, ordinal: u32) -> Result<usize> {
        match u64::from(ordinal) < self.directory.records {
            true => Ok(self.directory.hashes.len() + ordinal as usize / PLACES_A_PAGE),
            false => Err(self.missing(ordinal)),
        }
    }

    /// Returns the place of a record from its page.
    pub(super) fn place_in(&self, page: &[u8], ordinal: u32) -> Result<Range<u64>> {
        let n = self.directory.hashes.len() + ordinal as usize / PLACES_A_PAGE;
        let bad = |what: &str| Error::corruption(&self.index_path, self.pages[n], what);
        let place = index::place(page, ordinal as usize % PLACES_A_PAGE).map_err(bad)?;
        if place.end > self.directory.data_end
            || place.end - place.start > record::MAX_LEN
            || place.end - place.start < RECORD_HEADER as u64
        {
            return Err(bad(
                "a record that is longer than records are, or lies past their end",
            ));
        }
        Ok(place)
    }

    /// Returns the ordinal of a version of a key that is in the file, by its hash page alone.
    /// Returns `Corruption` if that page cannot be read, or if several records have this hash.
    pub(super) fn ordinal(&self, name: &Name<'_>) -> Result<u32> {
        let hash = self.hash_of(name);
        let page = self.page(BlockKind::BlobHashes, self.hash_page(hash), How::job(true))?;
        let (ordinal, twins) = self.candidates_in(&page, hash)?;
        match twins.is_empty() && u64::from(ordinal) < self.directory.records {
            true => Ok(ordinal),
            false => Err(self.damaged("several records have one hash")),
        }
    }

    /// Makes an error about the index.
    pub(super) fn damaged(&self, what: &str) -> Error {
        Error::corruption(&self.index_path, 0, what)
    }

    fn missing(&self, ordinal: u32) -> Error {
        Error::corruption(
            &self.index_path,
            0,
            format!(
                "record {ordinal} is asked for, and there are {}",
                self.directory.records
            ),
        )
    }

    /// Returns the cache key of the record at a place.
    pub(super) fn value_key(&self, place: &Range<u64>) -> CacheKey {
        CacheKey {
            file: self.directory.records_in,
            offset: place.start,
        }
    }

    /// Returns the value of the record at a place if it is in the cache. Returns an error if the
    /// record there has another name.
    pub(super) fn cached_value(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
    ) -> Option<Result<Bytes>> {
        let record = self.env.cache().get(self.value_key(place))?;
        self.counts.hits.add(1);
        // The record was verified before it went into the cache.
        let head = record::is(&self.records_path, place.start, &record, name);
        Some(head.map(|head| record.slice(head.value())))
    }

    fn value_at(&self, name: &Name<'_>, place: &Range<u64>, how: How) -> Result<Bytes> {
        let value = self.value_within(name, place, how, |_| true)?;
        Ok(value.expect("every length is taken"))
    }

    /// Returns the value of the record at a place if `take` accepts its length. `take` is called
    /// before a compressed value is decompressed.
    fn value_within(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
        how: How,
        take: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Bytes>> {
        if let Some(value) = self.cached_value(name, place) {
            return value.map(|value| take(value.len()).then_some(value));
        }
        if how.foreground {
            self.env.foreground_io().foreground_read();
        }
        let len = place.end - place.start;
        let booked = self.env.ledger().reserve(MemoryKind::Pinned, len);
        let file = self.records.file()?;
        let bytes = read_exact(&*file, &self.records_path, place.start, len as usize)?;
        self.take_value(name, place, (bytes, false), booked, how, take)
    }

    /// Returns the stored value of a record whose place is known from an earlier read.
    pub fn stored_again(&self, name: &Name<'_>, place: &Range<u64>) -> Result<Bytes> {
        let len = place.end - place.start;
        let booked = self.env.ledger().reserve(MemoryKind::Pinned, len);
        let file = self.records.file()?;
        let turn = self.env.foreground_io().turn();
        let bytes = read_exact(&*file, &self.records_path, place.start, len as usize)?;
        drop(turn);
        let head = self.verified(name, place, &bytes)?;
        Ok(self.keep(&head, place, (bytes, false), booked, How::job(false)))
    }

    /// Returns the header of a record as it was read, if all of the record verifies.
    fn verified(&self, name: &Name<'_>, place: &Range<u64>, bytes: &Bytes) -> Result<Head> {
        self.counts.reads.add(1);
        self.counts.bytes.add(bytes.len() as u64);
        let id = self.directory.records_in;
        let head = record::check_is(&self.records_path, id, place.start, bytes, name)?;
        self.check_len(&head, place)?;
        Ok(head)
    }

    /// Verifies a record as it was read, and returns its value, which carries the booking of its
    /// memory.
    ///
    /// The record goes into the cache if `how` says so; a compressed one goes there decompressed,
    /// as it is returned. If other records were read into the same memory, `with_others` is true,
    /// and a value that is kept gets memory of its own. Returns `None` if `take` refuses the length
    /// of the value. Then no value was decompressed and none goes into the cache.
    pub(super) fn take_value(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
        (bytes, with_others): (Bytes, bool),
        mut booked: Reservation,
        how: How,
        take: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Bytes>> {
        let head = self.verified(name, place, &bytes)?;
        let raw = record::payload_len(&self.records_path, place.start, &head, &bytes)?;
        if !take(raw) {
            return Ok(None);
        }
        if !head.is_packed() {
            let value = self.keep(&head, place, (bytes, with_others), booked, how);
            return Ok(Some(value));
        }
        booked.resize((bytes.len() + head.value().start + raw) as u64);
        let id = self.directory.records_in;
        let record = record::unpacked(&self.records_path, id, place.start, &bytes)?;
        drop(bytes);
        let (at, len) = (head.value().start, record.len());
        let record = Bytes::from_owner(record);
        let cache = self.env.cache();
        if how.fill_cache && cache.takes(len) {
            let key = self.value_key(place);
            let charge = slot_size(len);
            let record = cache.insert(key, record, charge, CachePriority::Normal);
            return Ok(Some(record.slice(at..)));
        }
        booked.resize(slot_size(len) as u64);
        Ok(Some(booked.hold(record).slice(at..)))
    }

    /// Returns the value of a record as the file has it. The record goes into the cache if `how`
    /// says so.
    fn keep(
        &self,
        head: &Head,
        place: &Range<u64>,
        (bytes, with_others): (Bytes, bool),
        mut booked: Reservation,
        how: How,
    ) -> Bytes {
        let rounded = self.unit > 1 && bytes.len() > self.own_memory;
        let kept = how.fill_cache && self.env.cache().takes(bytes.len());
        let moved = with_others || (kept && rounded && bytes.len() <= MOVED);
        let charge = match rounded && !moved {
            true => place.end.next_multiple_of(self.unit) - place.start / self.unit * self.unit,
            false => slot_size(bytes.len()) as u64,
        };
        let record = match moved {
            true => AlignedBuf::cached_copy(&bytes),
            false => bytes,
        };
        if !kept {
            booked.resize(charge);
            return booked.hold(record).slice(head.value());
        }
        let (cache, key) = (self.env.cache(), self.value_key(place));
        let record = cache.insert(key, record, charge as usize, CachePriority::Normal);
        record.slice(head.value())
    }

    /// Returns the bytes of the blocks that records lie in.
    pub fn blocks(&self) -> Result<u64> {
        let mut kept = Blocks::default();
        self.places(&mut |place| {
            kept.add(&place);
            Ok(())
        })?;
        Ok(kept.bytes)
    }

    /// Calls `each` with the place of each record, in order.
    pub fn places(&self, each: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        let hashes = self.directory.hashes.len();
        for n in 0..self.directory.places.len() {
            let page = self.page(BlockKind::BlobPlaces, hashes + n, How::job(false))?;
            let bad =
                |what: &str| Error::corruption(&self.index_path, self.pages[hashes + n], what);
            for place in index::places(&page).map_err(bad)? {
                each(place)?;
            }
        }
        Ok(())
    }

    /// Returns the cache key of the record that begins at `at`, if the record is in the cache.
    pub fn cached_at(&self, at: u64) -> Option<CacheKey> {
        let key = CacheKey {
            file: self.directory.records_in,
            offset: at,
        };
        self.env.cache().contains(key).then_some(key)
    }

    /// Returns true if some page of the index is in the cache, which means that readers use the
    /// file.
    pub fn index_is_cached(&self) -> bool {
        let n = self.pages.len() - 1;
        (0..n).any(|n| self.env.cache().contains(self.page_key(n)))
    }

    /// Removes the index from the cache, for a file that is no longer read.
    pub fn forget_index(&self) {
        let n = self.pages.len() - 1;
        (0..n).for_each(|n| self.env.cache().remove(self.page_key(n)));
    }

    /// Reads and verifies the records that `wanted` accepts, in the file's order and in large
    /// steps. `before` is called with the bytes of each read before it starts.
    pub fn walk(
        &self,
        wanted: &dyn Fn(u32) -> bool,
        before: &mut dyn FnMut(usize) -> Result<()>,
        each: &mut dyn FnMut(u32, Record) -> Result<()>,
    ) -> Result<()> {
        let hashes = self.directory.hashes.len();
        let file = self.records.file()?;
        let mut run: Vec<(u32, Range<u64>)> = Vec::new();
        let mut ordinal = 0u32;
        for n in 0..self.directory.places.len() {
            let page = self.page(BlockKind::BlobPlaces, hashes + n, How::job(false))?;
            let bad =
                |what: &str| Error::corruption(&self.index_path, self.pages[hashes + n], what);
            for place in index::places(&page).map_err(bad)? {
                if u64::from(ordinal) >= self.directory.records
                    || place.end > self.directory.data_end
                {
                    return Err(bad("records past the end of the file"));
                }
                if wanted(ordinal) {
                    let from = run.first().map_or(place.start, |(_, p)| p.start);
                    let last = run.last().map_or(place.start, |(_, p)| p.end);
                    if place.start - last > WALK_GAP || place.end - from > WALK_STEP {
                        self.walk_run(&*file, &mut run, before, each)?;
                    }
                    run.push((ordinal, place));
                }
                ordinal += 1;
            }
        }
        if u64::from(ordinal) != self.directory.records {
            return Err(self.missing(ordinal));
        }
        self.walk_run(&*file, &mut run, before, each)
    }

    fn walk_run(
        &self,
        file: &dyn File,
        run: &mut Vec<(u32, Range<u64>)>,
        before: &mut dyn FnMut(usize) -> Result<()>,
        each: &mut dyn FnMut(u32, Record) -> Result<()>,
    ) -> Result<()> {
        let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else {
            return Ok(());
        };
        let (from, len) = (first.start, (last.end - first.start) as usize);
        before(len)?;
        let turn = self.env.foreground_io().turn();
        let all = read_exact(file, &self.records_path, from, len)?;
        drop(turn);
        let id = self.directory.records_in;
        // A caller that keeps a record keeps the whole read alive. If much of the read was not
        // wanted, each record is copied.
        let kept: u64 = run.iter().map(|(_, p)| p.end - p.start).sum();
        let sparse = kept < len as u64 / 4 * 3;
        for (ordinal, place) in run.drain(..) {
            let at = (place.start - from) as usize..(place.end - from) as usize;
            let bytes = match sparse {
                true => AlignedBuf::cached_copy(&all[at]),
                false => all.slice(at),
            };
            let head = record::check(&self.records_path, id, place.start, &bytes)?;
            self.check_len(&head, &place)?;
            let key = RECORD_HEADER..RECORD_HEADER + head.key_len;
            let record = Record {
                at: place.start,
                family: head.family,
                key: bytes.slice(key),
                seq: head.seq,
                kind: head.kind,
                codec: head.codec,
                value: bytes.slice(head.value()),
                value_sum: head.value_sum(),
            };
            each(ordinal, record)?;
        }
        Ok(())
    }

    fn check_len(&self, head: &Head, place: &Range<u64>) -> Result<()> {
        let len = place.end - place.start;
        match head.record_len() as u64 == len {
            true => Ok(()),
            false => Err(Error::corruption(
                &self.records_path,
                place.start,
                format!(
                    "blob record of {} bytes, the index says {len}",
                    head.record_len()
                ),
            )),
        }
    }

    /// Returns the counters of this file's reads.
    pub(super) fn counts(&self) -> &ReadCounts {
        &self.counts
    }

    /// Returns the environment that the file's memory belongs to.
    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns the file with the records, and its path.
    pub(super) fn records_file(&self) -> (&dyn Source, &Path) {
        (&*self.records, &self.records_path)
    }

    /// Returns the file with the index, and its path.
    pub(super) fn index_file(&self) -> (&dyn Source, &Path) {
        (&*self.index, &self.index_path)
    }

    /// Returns the cache key of page `n`.
    pub(super) fn page_key(&self, n: usize) -> CacheKey {
        CacheKey {
            file: self.index_id,
            offset: self.pages[n],
        }
    }

    /// Returns the bytes of page `n` on disk.
    pub(super) fn page_len(&self, n: usize) -> usize {
        (self.pages[n + 1] - self.pages[n]) as usize
    }

    /// Returns page `n`, hash pages first, from the cache or the file.
    fn page(&self, kind: BlockKind, n: usize, how: How) -> Result<Bytes> {
        // A miss of a background job is no sign of readers: lookups alone decide what is worth
        // warming.
        let key = self.page_key(n);
        if (how.foreground || self.env.cache().contains(key))
            && let Some(page) = self.env.cache().get(key)
        {
            return Ok(page);
        }
        if how.foreground {
            self.env.foreground_io().foreground_read();
        }
        let len = self.page_len(n);
        let booked = self.env.ledger().reserve(MemoryKind::Pinned, len as u64);
        let disk = read_exact(&*self.index.file()?, &self.index_path, self.pages[n], len)?;
        self.take_page(kind, n, disk, booked, how)
    }

    /// Verifies a page as it was read. The page goes into the cache if `how` says so.
    pub(super) fn take_page(
        &self,
        kind: BlockKind,
        n: usize,
        disk: Bytes,
        booked: Reservation,
        how: How,
    ) -> Result<Bytes> {
        let handle = BlockHandle {
            offset: self.pages[n],
            stored: (self.page_len(n) - BLOCK_TRAILER_LEN) as u32,
            raw: 0,
        };
        let page = open_block(&self.index_path, self.index_id, kind, &handle, disk)?;
        if !how.fill_cache {
            return Ok(booked.hold(page));
        }
        // The page is copied, because a direct read takes more memory than the page has.
        let page = AlignedBuf::cached_copy(&page);
        let charge = slot_size(page.len());
        Ok((self.env.cache()).insert(self.page_key(n), page, charge, CachePriority::High))
    }
}

/// One source for records and index.
struct Shared(Arc<dyn Source>);

impl Source for Shared {
    fn file(&self) -> Result<Arc<dyn File>> {
        self.0.file()
    }

    fn extra_reads(&self) {
        self.0.extra_reads();
    }
}
