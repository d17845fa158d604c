//! Reading a blob file: its directory when it is opened, then index pages through the cache, then each value by one read of the device.

use super::builder::Blocks;
use super::counts::ReadCounts;
use super::index::{self, PLACES_A_PAGE};
use super::layout::{
    BLOB_MAGIC, Directory, FOOTER_LEN, Footer, HEADER_LEN, INDEX_MAGIC, check_header,
};
use super::record::{self, Form, HEADER_LEN as RECORD_HEADER, Head, Name};
use super::together::{in_hash_page, value_len};
use super::{BlobMeta, FamilyShare, packed};
use crate::codec::Compression;
use crate::key::{Kind, SeqNo};
use crate::table::format::{BLOCK_TRAILER_LEN, BlockHandle, BlockKind, open_block};
use crate::table::{ReadBudget, Source, read_exact};
use basalt_env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use basalt_env::{CacheKey, CachePriority, Env, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Bytes, Error, File, Result, slot_size};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The tail of an index that is read at once on open: footer and directory of most files.
const TAIL_READ: u64 = 4096;

/// A page is never longer: what lists all keys of its share one by one is no index.
const MAX_PAGE: usize = 16 << 20;

/// Bytes of one read of a walk ...
const WALK_STEP: u64 = 1 << 20;
/// ... and bytes between two records that it reads although nobody wants them.
const WALK_GAP: u64 = 64 << 10;

/// [`Source::worn`] is called each time scans have read so many times more.
const SCANS_TOLD: u64 = 256;

/// Records up to this length are copied out of the memory they were read into, when they go into the cache: direct reads need it aligned to
/// pages, and so short a record would waste as much as it is long.
const MOVED: usize = 32 << 10;

/// How a reading treats the cache and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// What is read goes into the cache.
    pub fill_cache: bool,
    /// A user waits for it.
    pub foreground: bool,
}

impl How {
    /// For a user who waits.
    pub fn user(fill_cache: bool) -> How {
        How {
            fill_cache,
            foreground: true,
        }
    }

    /// For a job in the background.
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
    /// Where it begins in the file.
    pub at: u64,
    /// Family id.
    pub family: u32,
    /// User key.
    pub key: Bytes,
    /// Sequence number.
    pub seq: SeqNo,
    /// `Put`, or `PutTtl`, whose value begins with its expiry.
    pub kind: Kind,
    /// How its value is compressed.
    pub codec: Compression,
    /// Value, as it is stored.
    pub value: Bytes,
    /// Its checksum.
    pub value_sum: u64,
}

impl Record {
    /// What finds it.
    pub fn name(&self) -> Name<'_> {
        Name {
            family: self.family,
            key: &self.key,
            seq: self.seq,
        }
    }

    /// Bytes in the file: header, key and stored value.
    pub fn stored_len(&self) -> usize {
        RECORD_HEADER + self.key.len() + self.value.len()
    }

    /// How its value is stored.
    pub fn form(&self) -> Form {
        Form {
            kind: self.kind,
            codec: self.codec,
            len: self.value.len(),
            sum: self.value_sum,
        }
    }

    /// Bytes of its value with its expiry, decompressed; `None` when what is stored does not say.
    pub fn payload_len(&self) -> Option<usize> {
        packed::payload_len(self.kind, self.codec, &self.value).ok()
    }

    /// Its value with its expiry, decompressed; what is wrong with it otherwise.
    pub fn payload(&self) -> std::result::Result<Bytes, String> {
        match self.codec {
            Compression::None => Ok(self.value.clone()),
            codec => packed::unpack(self.kind, codec, &self.value, 0).map(Bytes::from),
        }
    }
}

/// How the index of a blob file is laid out, in bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Where the first page lies.
    pub pages_at: u64,
    /// Hash pages.
    pub hash_pages: u64,
    /// Their bytes.
    pub hash_bytes: u64,
    /// Position pages.
    pub place_pages: u64,
    /// Their bytes.
    pub place_bytes: u64,
    /// Where the directory lies; the footer follows it.
    pub directory_at: u64,
}

/// Footer and directory of the index in a file of `size` bytes.
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
    /// Where the records are.
    records: Box<dyn Source>,
    records_path: PathBuf,
    /// Where the index is: the same file, or the one beside a log.
    index: Box<dyn Source>,
    index_path: PathBuf,
    /// The id of the file that has the index.
    index_id: u128,
    directory: Directory,
    /// Where each page lies, hash pages first; one more at the end.
    pages: Vec<u64>,
    /// Reads keep whole multiples of this alive: 1 when nothing is rounded ...
    unit: u64,
    /// ... but for reads of up to so many bytes.
    own_memory: usize,
    /// Reads of the device for scans, and the sum of how many like each would have had all that was asked for with it.
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

    /// Records in it.
    pub fn records(&self) -> u64 {
        self.directory.records
    }

    /// What is whose.
    pub fn families(&self) -> &BTreeMap<u32, FamilyShare> {
        &self.directory.families
    }

    /// How its index is laid out.
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

    /// Notes a read of values for a scan: so many like it would have what the scan asked for at once.
    pub(super) fn scanned(&self, alike: u64) {
        // Relaxed, here and below: counts that decide nothing alone.
        self.scans.1.fetch_add(alike, Relaxed);
        if (self.scans.0.fetch_add(1, Relaxed) + 1).is_multiple_of(SCANS_TOLD) {
            self.records.worn();
        }
    }

    /// How many there were, and the sum of how many like each a scan would take, since they were last forgotten.
    pub fn scans(&self) -> (u64, u64) {
        (self.scans.0.load(Relaxed), self.scans.1.load(Relaxed))
    }

    /// Begins to count anew.
    pub fn forget_scans(&self) {
        self.scans.0.store(0, Relaxed);
        self.scans.1.store(0, Relaxed);
    }

    /// Bytes of memory outside the cache.
    pub fn memory(&self) -> usize {
        size_of::<BlobReader>()
            + self.pages.capacity() * 8
            + (self.directory.hashes.capacity() + self.directory.places.capacity()) * 4
    }

    /// The value of a version of a key that is in the file, by one read of the device when the index is in the cache, or none. `Corruption`
    /// when it is not what the index says, or not there.
    pub fn get(&self, name: &Name<'_>, fill_cache: bool) -> Result<Bytes> {
        let value = self.get_within(name, How::user(fill_cache), &mut ReadBudget::unbounded());
        value.map(|v| v.expect("nothing is put off without a bound"))
    }

    /// As [`BlobReader::get`]; the value is taken from `budget`, `None` when that does not reach: before it is read as much as is stored of it,
    /// and the rest of a compressed one before it is decompressed.
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

    /// Returns the decompressed length in bytes of one version's value, its expiry included. Reads
    /// at most the header and the key of the record, which have a checksum of their own. The
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
        if !head.is_compressed() {
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

    /// The ordinal of a version of a key that is in the file, and its place. Reads no record unless several have its hash, so what is not in the
    /// file gets any ordinal: whoever marks garbage by it has [`BlobReader::hash_sum`] to hold all of it against.
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

    /// Sum of the hashes ([`Name::hash`]) of all records, modulo 2^64.
    pub fn hash_sum(&self) -> u64 {
        self.directory.hash_sum
    }

    /// Which of several records is the one. An error of a record that is perhaps the one is told, unless another is it.
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

    /// What finds a version of a key here.
    #[inline]
    pub(super) fn hash_of(&self, name: &Name<'_>) -> u64 {
        name.hash(self.directory.records_in)
    }

    /// The number of the page that has a hash.
    #[inline]
    pub(super) fn hash_page(&self, hash: u64) -> usize {
        index::page_of(hash, self.directory.hashes.len() as u64) as usize
    }

    /// The ordinal that a hash page has for a hash of it, and all others that may be meant.
    pub(super) fn candidates_in(&self, page: &[u8], hash: u64) -> Result<(u32, Vec<u32>)> {
        let n = self.hash_page(hash);
        in_hash_page(page, hash)
            .map_err(|what| Error::corruption(&self.index_path, self.pages[n], what))
    }

    /// Where the `ordinal`-th record lies.
    pub fn place(&self, ordinal: u32, fill_cache: bool) -> Result<Range<u64>> {
        self.place_how(ordinal, How::job(fill_cache))
    }

    fn place_how(&self, ordinal: u32, how: How) -> Result<Range<u64>> {
        let n = self.place_page(ordinal)?;
        self.place_in(&self.page(BlockKind::BlobPlaces, n, how)?, ordinal)
    }

    /// The number of the page that has the place of a record.
    pub(super) fn place_page(&self, ordinal: u32) -> Result<usize> {
        match u64::from(ordinal) < self.directory.records {
            true => Ok(self.directory.hashes.len() + ordinal as usize / PLACES_A_PAGE),
            false => Err(self.missing(ordinal)),
        }
    }

    /// The place that its page has for a record.
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

    /// The ordinal of a version of a key that is in the file, by its hash page alone. `Corruption`
    /// when that cannot be read, or has several records of this hash.
    pub(super) fn ordinal(&self, name: &Name<'_>) -> Result<u32> {
        let hash = self.hash_of(name);
        let page = self.page(BlockKind::BlobHashes, self.hash_page(hash), How::job(true))?;
        let (ordinal, twins) = self.candidates_in(&page, hash)?;
        match twins.is_empty() && u64::from(ordinal) < self.directory.records {
            true => Ok(ordinal),
            false => Err(self.damaged("several records have one hash")),
        }
    }

    /// An error about the index.
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

    /// Where a record is in the cache.
    pub(super) fn value_key(&self, place: &Range<u64>) -> CacheKey {
        CacheKey {
            file: self.directory.records_in,
            offset: place.start,
        }
    }

    /// The value of the record at a place, if that is in the cache. An error when the record there is another's.
    pub(super) fn cached_value(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
    ) -> Option<Result<Bytes>> {
        let record = self.env.cache().get(self.value_key(place))?;
        self.counts.hits.add(1);
        // It was verified before it was put there.
        let head = record::is(&self.records_path, place.start, &record, name);
        Some(head.map(|head| record.slice(head.value())))
    }

    fn value_at(&self, name: &Name<'_>, place: &Range<u64>, how: How) -> Result<Bytes> {
        let value = self.value_within(name, place, how, |_| true)?;
        Ok(value.expect("every length is taken"))
    }

    /// The value of the record at a place if `take` takes its length, which `take` is asked for
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

    /// The value of a record that was met at a place before, as it is stored.
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

    /// The header of a record as it was read, if all of it verifies.
    fn verified(&self, name: &Name<'_>, place: &Range<u64>, bytes: &Bytes) -> Result<Head> {
        self.counts.reads.add(1);
        self.counts.bytes.add(bytes.len() as u64);
        let id = self.directory.records_in;
        let head = record::check_is(&self.records_path, id, place.start, bytes, name)?;
        self.check_len(&head, place)?;
        Ok(head)
    }

    /// Verifies a record as it was read, and puts it into the cache when asked: its value, which carries its memory's booking. One that is compressed
    /// goes there, as it is returned, decompressed. Others were read with it into the same memory, or not: who keeps it does not keep them.
    /// `None` if `take` refuses the length of the value: then nothing was decompressed and nothing goes into the cache.
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
        if !head.is_compressed() {
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

    /// The value of a record as the file has it, which goes into the cache when asked.
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

    /// Bytes of the blocks that records lie in.
    pub fn blocks(&self) -> Result<u64> {
        let mut kept = Blocks::default();
        self.places(&mut |place| {
            kept.add(&place);
            Ok(())
        })?;
        Ok(kept.bytes)
    }

    /// Tells where each record lies, in order.
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

    /// Where a record that begins at `at` is in the cache, if it is there.
    pub fn cached_at(&self, at: u64) -> Option<CacheKey> {
        let key = CacheKey {
            file: self.directory.records_in,
            offset: at,
        };
        self.env.cache().contains(key).then_some(key)
    }

    /// Some page of its index is in the cache: somebody reads it.
    pub fn index_is_cached(&self) -> bool {
        let n = self.pages.len() - 1;
        (0..n).any(|n| self.env.cache().contains(self.page_key(n)))
    }

    /// Takes its index out of the cache. For a file that nobody asks any more.
    pub fn forget_index(&self) {
        let n = self.pages.len() - 1;
        (0..n).for_each(|n| self.env.cache().remove(self.page_key(n)));
    }

    /// Reads and verifies the records for which `wanted` says so, in the file's order, side by side in large steps. `before` is told how many bytes
    /// the next read has.
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
        // Whoever keeps records keeps what was read around them, unless that is much.
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

    /// Where what it reads is counted.
    pub(super) fn counts(&self) -> &ReadCounts {
        &self.counts
    }

    /// What its memory is of.
    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// Where the records are.
    pub(super) fn records_file(&self) -> (&dyn Source, &Path) {
        (&*self.records, &self.records_path)
    }

    /// Where the index is.
    pub(super) fn index_file(&self) -> (&dyn Source, &Path) {
        (&*self.index, &self.index_path)
    }

    /// Where page `n` is in the cache.
    pub(super) fn page_key(&self, n: usize) -> CacheKey {
        CacheKey {
            file: self.index_id,
            offset: self.pages[n],
        }
    }

    /// Bytes of page `n` on disk.
    pub(super) fn page_len(&self, n: usize) -> usize {
        (self.pages[n + 1] - self.pages[n]) as usize
    }

    /// Page `n`, hash pages first, from the cache or the file.
    fn page(&self, kind: BlockKind, n: usize, how: How) -> Result<Bytes> {
        // A job that misses is nobody who reads: what is worth warming is judged by lookups.
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

    /// Verifies a page as it was read, and puts it into the cache when asked.
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
        // A copy: what was read directly is longer in memory than it is.
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

    fn worn(&self) {
        self.0.worn();
    }
}
