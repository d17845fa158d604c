//! The index of an open blob file: from the name of a record to its ordinal and place. Pages of
//! hashes and pages of places go through the cache.

use super::batch_read::in_hash_page;
use super::{BlobReader, ReadMode};
use crate::index::{self, PLACES_A_PAGE};
use crate::record::{self, HEADER_LEN as RECORD_HEADER, Name};
use basalt_env::{CacheKey, CachePriority, MemoryKind, Reservation};
use basalt_fs::{AlignedBuf, Bytes, Error, Result, slot_size};
use basalt_table::{BLOCK_TRAILER_LEN, BlockHandle, BlockKind, FileSource, open_block, read_exact};
use std::ops::Range;
use std::path::Path;

impl BlobReader {
    /// Returns the ordinal and the place of a version of a key that is in the file. Reads no record
    /// unless several have its hash, so a key that is not in the file gets any ordinal. A caller
    /// that marks garbage by it compares the sum with [`BlobReader::hash_sum`].
    pub fn find(&self, name: &Name<'_>, fill_cache: bool) -> Result<(u32, Range<u64>)> {
        self.find_how(name, ReadMode::job(fill_cache))
    }

    pub(crate) fn find_how(&self, name: &Name<'_>, how: ReadMode) -> Result<(u32, Range<u64>)> {
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
    fn pick(&self, name: &Name<'_>, ordinal: u32, twins: &[u32], how: ReadMode) -> Result<u32> {
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

    /// Returns the ordinal that a lookup of the `ordinal`-th record's name finds. Reads the record,
    /// and those with the same hash up to the one that is found.
    pub(crate) fn found_by_name_of(&self, ordinal: u32) -> Result<u32> {
        let place = self.place(ordinal, false)?;
        let len = place.end - place.start;
        let _booked = self.env.ledger().reserve(MemoryKind::Pinned, len);
        let file = self.records.file()?;
        let bytes = read_exact(&*file, &self.records_path, place.start, len as usize)?;
        let id = self.directory.records_in;
        let head = record::check(&self.records_path, id, place.start, &bytes)?;
        self.check_len(&head, &place)?;
        let name = Name {
            family: head.family,
            key: &bytes[RECORD_HEADER..RECORD_HEADER + head.key_len],
            seq: head.seq,
        };
        self.find(&name, false).map(|(found, _)| found)
    }

    /// Returns the hash of a version's name in this file.
    #[inline]
    pub(crate) fn hash_of(&self, name: &Name<'_>) -> u64 {
        name.hash(self.directory.records_in)
    }

    /// Returns the number of the page that has a hash.
    #[inline]
    pub(crate) fn hash_page(&self, hash: u64) -> usize {
        index::page_of(hash, self.directory.hashes.len() as u64) as usize
    }

    /// Returns a hash page for a job, from the cache or the file. The cache stays as it is.
    pub(crate) fn hash_page_bytes(&self, n: usize) -> Result<Bytes> {
        self.page(BlockKind::BlobHashes, n, ReadMode::job(false))
    }

    /// Returns the ordinal that a hash page has for one of its hashes, and all other ordinals that
    /// it may mean.
    pub(crate) fn candidates_in(&self, page: &[u8], hash: u64) -> Result<(u32, Vec<u32>)> {
        let n = self.hash_page(hash);
        in_hash_page(page, hash)
            .map_err(|what| Error::corruption(&self.index_path, self.pages[n], what))
    }

    /// Returns the place of the `ordinal`-th record.
    pub fn place(&self, ordinal: u32, fill_cache: bool) -> Result<Range<u64>> {
        self.place_how(ordinal, ReadMode::job(fill_cache))
    }

    fn place_how(&self, ordinal: u32, how: ReadMode) -> Result<Range<u64>> {
        let n = self.place_page(ordinal)?;
        self.place_in(&self.page(BlockKind::BlobPlaces, n, how)?, ordinal)
    }

    /// Returns the number of the page that has the place of a record.
    pub(crate) fn place_page(&self, ordinal: u32) -> Result<usize> {
        match u64::from(ordinal) < self.directory.records {
            true => Ok(self.directory.hashes.len() + ordinal as usize / PLACES_A_PAGE),
            false => Err(self.missing(ordinal)),
        }
    }

    /// Returns the place of a record from its page.
    pub(crate) fn place_in(&self, page: &[u8], ordinal: u32) -> Result<Range<u64>> {
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
    pub(crate) fn ordinal(&self, name: &Name<'_>) -> Result<u32> {
        let hash = self.hash_of(name);
        let page = self.page(
            BlockKind::BlobHashes,
            self.hash_page(hash),
            ReadMode::job(true),
        )?;
        let (ordinal, twins) = self.candidates_in(&page, hash)?;
        match twins.is_empty() && u64::from(ordinal) < self.directory.records {
            true => Ok(ordinal),
            false => Err(self.damaged("several records have one hash")),
        }
    }

    /// Makes an error about the index.
    pub(crate) fn damaged(&self, what: &str) -> Error {
        Error::corruption(&self.index_path, 0, what)
    }

    pub(super) fn missing(&self, ordinal: u32) -> Error {
        Error::corruption(
            &self.index_path,
            0,
            format!(
                "record {ordinal} is asked for, and there are {}",
                self.directory.records
            ),
        )
    }

    /// Calls `each` with the place of each record, in order.
    pub fn places(&self, each: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        let hashes = self.directory.hashes.len();
        for n in 0..self.directory.places.len() {
            let page = self.page(BlockKind::BlobPlaces, hashes + n, ReadMode::job(false))?;
            let bad =
                |what: &str| Error::corruption(&self.index_path, self.pages[hashes + n], what);
            for place in index::places(&page).map_err(bad)? {
                each(place)?;
            }
        }
        Ok(())
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

    /// Returns the file with the index, and its path.
    pub(crate) fn index_file(&self) -> (&dyn FileSource, &Path) {
        (&*self.index, &self.index_path)
    }

    /// Returns the cache key of page `n`.
    pub(crate) fn page_key(&self, n: usize) -> CacheKey {
        CacheKey {
            file: self.index_id,
            offset: self.pages[n],
        }
    }

    /// Returns the bytes of page `n` on disk.
    pub(crate) fn page_len(&self, n: usize) -> usize {
        (self.pages[n + 1] - self.pages[n]) as usize
    }

    /// Returns page `n`, hash pages first, from the cache or the file.
    pub(super) fn page(&self, kind: BlockKind, n: usize, how: ReadMode) -> Result<Bytes> {
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
    pub(crate) fn take_page(
        &self,
        kind: BlockKind,
        n: usize,
        disk: Bytes,
        booked: Reservation,
        how: ReadMode,
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
