//! Values of an open blob file. A value comes from the cache, or from one read of the device; then
//! it is verified and, if need be, decompressed.

use super::batch_read::value_len;
use super::{BlobReader, ReadMode};
use crate::record::{self, BlobRecordHeader, HEADER_LEN as RECORD_HEADER, Name};
use basalt_env::{CacheKey, CachePriority, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Bytes, Error, Result, slot_size};
use basalt_table::{ReadBudget, read_exact};
use std::ops::Range;

/// Records of up to this many bytes are copied out of the memory that they were read into before
/// they go into the cache. Direct reads need that memory aligned to pages, and so short a record
/// would waste as many bytes as it has.
const MOVED: usize = 32 << 10;

impl BlobReader {
    /// Returns the value of a version of a key that is in the file. If the index is in the cache,
    /// this costs at most one device read. Returns `Corruption` if the record is not there or not
    /// the one that the index names.
    pub fn get(&self, name: &Name<'_>, fill_cache: bool) -> Result<Bytes> {
        let value = self.get_within(
            name,
            ReadMode::user(fill_cache),
            &mut ReadBudget::unbounded(),
        );
        value.map(|v| v.expect("nothing is put off without a bound"))
    }

    /// Does what [`BlobReader::get`] does, and takes the value from `budget`. Returns `None` if the
    /// budget is too small. The stored bytes are taken before the read, and the further bytes of a
    /// compressed value before it is decompressed.
    pub fn get_within(
        &self,
        name: &Name<'_>,
        how: ReadMode,
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
        how: ReadMode,
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

    /// Returns the cache key of the record at a place.
    pub(crate) fn value_key(&self, place: &Range<u64>) -> CacheKey {
        CacheKey {
            file: self.directory.records_in,
            offset: place.start,
        }
    }

    /// Returns the value of the record at a place if it is in the cache. Returns an error if the
    /// record there has another name.
    pub(crate) fn cached_value(
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

    pub(super) fn value_at(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
        how: ReadMode,
    ) -> Result<Bytes> {
        let value = self.value_within(name, place, how, |_| true)?;
        Ok(value.expect("every length is taken"))
    }

    /// Returns the value of the record at a place if `take` accepts its length. `take` is called
    /// before a compressed value is decompressed.
    fn value_within(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
        how: ReadMode,
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
        Ok(self.keep(&head, place, (bytes, false), booked, ReadMode::job(false)))
    }

    /// Returns the header of a record as it was read, if all of the record verifies.
    fn verified(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
        bytes: &Bytes,
    ) -> Result<BlobRecordHeader> {
        self.counts.reads.add(1);
        self.counts.bytes.add(bytes.len() as u64);
        let id = self.directory.records_in;
        let head = record::check_is(&self.records_path, id, place.start, bytes, name)?;
        self.check_len(&head, place)?;
        Ok(head)
    }

    /// Verifies a record as it was read, and returns its value, which carries the reservation of
    /// its memory.
    ///
    /// The record goes into the cache if `how` says so; a compressed one goes there decompressed,
    /// as it is returned. If other records were read into the same memory, `with_others` is true,
    /// and a value that is kept gets memory of its own. Returns `None` if `take` refuses the length
    /// of the value. Then no value was decompressed and none goes into the cache.
    pub(crate) fn take_value(
        &self,
        name: &Name<'_>,
        place: &Range<u64>,
        (bytes, with_others): (Bytes, bool),
        mut booked: Reservation,
        how: ReadMode,
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

    /// Returns the value of a record as the file has it. The record goes into the cache if `how`
    /// says so.
    fn keep(
        &self,
        head: &BlobRecordHeader,
        place: &Range<u64>,
        (bytes, with_others): (Bytes, bool),
        mut booked: Reservation,
        how: ReadMode,
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

    /// Returns the cache key of the record that begins at `at`, if the record is in the cache.
    pub fn cached_at(&self, at: u64) -> Option<CacheKey> {
        let key = CacheKey {
            file: self.directory.records_in,
            offset: at,
        };
        self.env.cache().contains(key).then_some(key)
    }

    pub(super) fn check_len(&self, head: &BlobRecordHeader, place: &Range<u64>) -> Result<()> {
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
}
