//! Values of an open blob file. A value comes from the cache, or from one read of the device; then
//! it is verified and, if need be, decompressed.

use super::batch_read::value_len;
use super::{BlobReader, How};
use crate::record::{self, HEADER_LEN as RECORD_HEADER, Head, Name};
use basalt_env::{CacheKey, CachePriority, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Bytes, Error, Result, slot_size};
use basalt_table::{ReadBudget, read_exact};
use std::ops::Range;

/// Records up to this length are copied out of the memory they were read into, when they go into the cache: direct reads need it aligned to
/// pages, and so short a record would waste as much as it is long.
const MOVED: usize = 32 << 10;

impl BlobReader {
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

    /// Where a record is in the cache.
    pub(crate) fn value_key(&self, place: &Range<u64>) -> CacheKey {
        CacheKey {
            file: self.directory.records_in,
            offset: place.start,
        }
    }

    /// The value of the record at a place, if that is in the cache. An error when the record there is another's.
    pub(crate) fn cached_value(
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

    pub(super) fn value_at(&self, name: &Name<'_>, place: &Range<u64>, how: How) -> Result<Bytes> {
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
    pub(crate) fn take_value(
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

    /// Where a record that begins at `at` is in the cache, if it is there.
    pub fn cached_at(&self, at: u64) -> Option<CacheKey> {
        let key = CacheKey {
            file: self.directory.records_in,
            offset: at,
        };
        self.env.cache().contains(key).then_some(key)
    }

    pub(super) fn check_len(&self, head: &Head, place: &Range<u64>) -> Result<()> {
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
