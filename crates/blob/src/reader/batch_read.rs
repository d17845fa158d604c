//! Reads many values at once: first the index pages that they need together, then the values, from
//! any number of files. A call for many values waits for about as many successive reads as a call
//! for one. It also knows the lengths of the values before it reads any.

use super::{BlobReader, ReadMode};
use crate::counters::ReadCounters;
use crate::index;
use crate::record::{HEADER_LEN, Name};
use basalt_env::{CacheKey, Env, MemoryKind, Reservation};
use basalt_fs::{Bytes, Error, Lifetime, ReadCompletions, ReadRequest, Result};
use basalt_table::BlockKind;
use basalt_table::{FileSource, ReadBudget, check_reach, read_exact};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The most values that a call for many reads in one batch. A scan reads as many as it has room
/// for.
pub const READ_BATCH: usize = 64;
/// Values of one file whose gap is at most this many bytes are one read.
const MAX_GAP: u64 = 16 << 10;
/// The most bytes of such a read. At least half of them must be wanted.
const LONGEST: u64 = 512 << 10;
/// Bytes of index pages that are kept for the next values.
const PAGES_KEPT: usize = 512 << 10;

/// A value to be read, by its file and its name.
pub struct ValueRequest<'a> {
    /// The file that has the value.
    pub reader: &'a BlobReader,
    /// The name of the record.
    pub name: Name<'a>,
}

/// The place of a record: its ordinal in its file, and its range of bytes.
pub type RecordPlace = (u32, Range<u64>);

/// A value that was located and not yet read.
pub struct Located<'a> {
    reader: &'a BlobReader,
    name: Name<'a>,
    ordinal: u32,
    place: Range<u64>,
}

impl<'a> Located<'a> {
    /// Makes the location of a value that was located before in the same file.
    pub fn again(sought: ValueRequest<'a>, (ordinal, place): RecordPlace) -> Located<'a> {
        Located {
            reader: sought.reader,
            name: sought.name,
            ordinal,
            place,
        }
    }

    /// Returns the record's ordinal in its file, and its range of bytes.
    pub fn place(&self) -> RecordPlace {
        (self.ordinal, self.place.clone())
    }

    /// Returns the stored bytes of the value, with its expiry.
    pub fn value_len(&self) -> usize {
        value_len(&self.name, &self.place)
    }

    /// Returns the bytes that reading the value brings into memory.
    pub fn read_len(&self) -> usize {
        (self.place.end - self.place.start) as usize
    }

    /// Reads the record alone.
    fn alone(&self) -> Result<Bytes> {
        let (source, path) = self.reader.records_file();
        let (offset, len) = (self.place.start, self.read_len());
        read_exact(&*source.file()?, path, offset, len)
    }

    /// Returns the cache key of the record, if the record is in the cache.
    pub fn cached_at(&self) -> Option<CacheKey> {
        self.reader.cached_at(self.place.start)
    }

    /// Returns the counters of the file's reads.
    pub fn counts(&self) -> &Arc<ReadCounters> {
        self.reader.counts()
    }

    /// Returns the environment whose ledger reserves the memory.
    pub fn env(&self) -> &Env {
        self.reader.env()
    }
}

/// Returns the stored bytes of the value in a record that lies at `place`.
pub(crate) fn value_len(name: &Name<'_>, place: &Range<u64>) -> usize {
    ((place.end - place.start) as usize).saturating_sub(HEADER_LEN + name.key.len())
}

/// One read.
struct Read<'a> {
    source: &'a dyn FileSource,
    path: &'a Path,
    offset: u64,
    len: usize,
}

impl Read<'_> {
    fn alone(&self) -> Result<Bytes> {
        read_exact(&*self.source.file()?, self.path, self.offset, self.len)
    }

    /// Does all reads, in flight together. Each read has its own result.
    fn read_all(env: &Env, reads: &[Read<'_>], how: ReadMode) -> Vec<Result<Bytes>> {
        match reads {
            // A single read gains nothing from a ring.
            [one] => {
                if how.foreground {
                    env.foreground_io().foreground_read();
                }
                vec![one.alone()]
            }
            _ => Reading::begin(env, reads, how).finish(reads),
        }
    }
}

/// Reads in flight.
struct Reading {
    /// The error of each read that could not be submitted.
    failed: Vec<Option<Error>>,
    /// For each read of the batch, its number among the caller's reads.
    asked: Vec<usize>,
    batch: Box<dyn ReadCompletions>,
}

impl Reading {
    fn begin(env: &Env, reads: &[Read<'_>], how: ReadMode) -> Reading {
        if !reads.is_empty() && how.foreground {
            env.foreground_io().foreground_read();
        }
        let mut failed: Vec<Option<Error>> = vec![None; reads.len()];
        let mut asked: Vec<usize> = Vec::with_capacity(reads.len());
        let mut requests = Vec::with_capacity(reads.len());
        for (i, r) in reads.iter().enumerate() {
            let file = r.source.file().and_then(|file| {
                check_reach(&*file, r.path, r.offset, r.len)?;
                Ok(file)
            });
            match file {
                Ok(file) => {
                    asked.push(i);
                    requests.push(ReadRequest {
                        file,
                        offset: r.offset,
                        len: r.len,
                        lifetime: Lifetime::Cached,
                    });
                }
                Err(e) => failed[i] = Some(e),
            }
        }
        Reading {
            failed,
            asked,
            batch: env.fs().submit_reads(requests),
        }
    }

    /// Waits for the reads that were begun and returns their results.
    fn finish(mut self, reads: &[Read<'_>]) -> Vec<Result<Bytes>> {
        let mut out: Vec<Option<Result<Bytes>>> =
            self.failed.into_iter().map(|e| e.map(Err)).collect();
        self.batch.wait_all();
        while let Some((i, bytes)) = self.batch.next() {
            let r = &reads[self.asked[i]];
            out[self.asked[i]] = Some(bytes.and_then(|bytes| match bytes.len() == r.len {
                true => Ok(bytes),
                false => Err(Error::corruption(
                    r.path,
                    r.offset,
                    format!("expected {} bytes, found {}", r.len, bytes.len()),
                )),
            }));
        }
        out.into_iter()
            .map(|r| r.expect("each read ends"))
            .collect()
    }
}

/// Index pages that are kept in memory.
#[derive(Default)]
pub struct KeptIndexPages {
    kept: BTreeMap<CacheKey, Bytes>,
    bytes: usize,
}

impl KeptIndexPages {
    /// Returns pages by file, kind and number, in the order asked for. Pages in no cache are read
    /// together.
    fn fetch(
        &mut self,
        wanted: &[(&BlobReader, BlockKind, usize)],
        how: ReadMode,
    ) -> Vec<Result<Bytes>> {
        if self.bytes > PAGES_KEPT {
            *self = KeptIndexPages::default();
        }
        let mut failed: BTreeMap<CacheKey, Error> = BTreeMap::new();
        let mut missing: Vec<(CacheKey, (&BlobReader, BlockKind, usize))> = Vec::new();
        let mut asked: BTreeSet<CacheKey> = BTreeSet::new();
        for page in wanted {
            let key = page.0.page_key(page.2);
            if self.kept.contains_key(&key) || !asked.insert(key) {
                continue;
            }
            // A miss of a background job is no sign of readers: lookups alone decide what is worth
            // warming.
            let cache = page.0.env().cache();
            let looks = how.foreground || cache.contains(key);
            match looks.then(|| cache.get(key)).flatten() {
                Some(found) => self.keep(key, found),
                None => missing.push((key, *page)),
            }
        }
        for batch in missing.chunks(READ_BATCH) {
            let mut booked = Vec::with_capacity(batch.len());
            let mut reads = Vec::with_capacity(batch.len());
            for (key, (reader, _, n)) in batch {
                let len = reader.page_len(*n);
                booked.push(
                    reader
                        .env()
                        .ledger()
                        .reserve(MemoryKind::Pinned, len as u64),
                );
                let (source, path) = reader.index_file();
                let offset = key.offset;
                reads.push(Read {
                    source,
                    path,
                    offset,
                    len,
                });
            }
            let env = batch[0].1.0.env();
            let read = Read::read_all(env, &reads, how);
            for (((key, (reader, kind, n)), disk), booked) in batch.iter().zip(read).zip(booked) {
                let page = disk.and_then(|d| reader.take_page(*kind, *n, d, booked, how));
                match page {
                    Ok(page) => self.keep(*key, page),
                    Err(e) => {
                        failed.insert(*key, e);
                    }
                }
            }
        }
        let answer = |(reader, _, n): &(&BlobReader, BlockKind, usize)| {
            let key = reader.page_key(*n);
            match failed.get(&key) {
                Some(e) => Err(e.clone()),
                None => Ok(self.kept[&key].clone()),
            }
        };
        wanted.iter().map(answer).collect()
    }

    fn keep(&mut self, key: CacheKey, page: Bytes) {
        self.bytes += page.len();
        self.kept.insert(key, page);
    }
}

/// Locates values. Reads index pages only, unless several records have a value's hash.
pub fn locate<'a>(
    sought: Vec<ValueRequest<'a>>,
    pages: &mut KeptIndexPages,
    how: ReadMode,
) -> Vec<Result<Located<'a>>> {
    let hashes: Vec<u64> = (sought.iter()).map(|s| s.reader.hash_of(&s.name)).collect();
    let wanted: Vec<_> = (sought.iter().zip(&hashes))
        .map(|(s, hash)| (s.reader, BlockKind::BlobHashes, s.reader.hash_page(*hash)))
        .collect();
    let first = pages.fetch(&wanted, how);
    let mut out: Vec<Option<Result<RecordPlace>>> = sought.iter().map(|_| None).collect();
    // Values whose ordinal is known: the number of each in `sought`, and its ordinal.
    let mut known = Vec::with_capacity(sought.len());
    let mut wanted = Vec::with_capacity(sought.len());
    for (i, (s, page)) in sought.iter().zip(first).enumerate() {
        let asked = page.and_then(|page| s.reader.candidates_in(&page, hashes[i]));
        match asked {
            Ok((ordinal, twins)) if twins.is_empty() => match s.reader.place_page(ordinal) {
                Ok(n) => {
                    known.push((i, ordinal));
                    wanted.push((s.reader, BlockKind::BlobPlaces, n));
                }
                Err(e) => out[i] = Some(Err(e)),
            },
            Ok(_) => out[i] = Some(s.reader.find_how(&s.name, how)),
            Err(e) => out[i] = Some(Err(e)),
        }
    }
    let second = pages.fetch(&wanted, how);
    for ((i, ordinal), page) in known.into_iter().zip(second) {
        let reader = sought[i].reader;
        out[i] = Some(page.and_then(|page| Ok((ordinal, reader.place_in(&page, ordinal)?))));
    }
    (sought.into_iter().zip(out))
        .map(|(s, place)| {
            let (ordinal, place) = place.expect("each was looked up")?;
            let ValueRequest { reader, name } = s;
            Ok(Located {
                reader,
                name,
                ordinal,
                place,
            })
        })
        .collect()
}

/// Returns the values. Those that are not in the cache are read together. Each value has its own
/// result.
pub fn read_within(
    located: &[Located<'_>],
    how: ReadMode,
    budget: &mut ReadBudget,
) -> Vec<Option<Result<Bytes>>> {
    let mut out = Vec::with_capacity(located.len());
    for some in located.chunks(READ_BATCH) {
        out.extend(InFlight::begin(some, how, false).finish_within(some, how, budget));
    }
    out
}

/// Values that are being read.
pub struct InFlight {
    /// Values that were in the cache.
    found: Vec<Option<Result<Bytes>>>,
    /// Values that are sought twice, each with the number of its first occurrence.
    twice: Vec<(usize, usize)>,
    coalesced: Vec<CoalescedRead>,
    booked: Vec<Reservation>,
    /// The reads, if they began at once; `None` if they begin when the caller waits for them.
    reading: Option<Reading>,
}

impl InFlight {
    /// Begins to read the values. With `aside`, the reads start at once and go on while the caller
    /// does other work.
    pub fn begin(located: &[Located<'_>], how: ReadMode, aside: bool) -> InFlight {
        let found: Vec<Option<Result<Bytes>>> = (located.iter())
            .map(|l| l.reader.cached_value(&l.name, &l.place))
            .collect();
        let mut missing: Vec<usize> = Vec::new();
        let mut twice: Vec<(usize, usize)> = Vec::new();
        let mut by_place: BTreeMap<CacheKey, usize> = BTreeMap::new();
        for (i, l) in located.iter().enumerate() {
            if found[i].is_some() {
                continue;
            }
            match by_place.get(&l.reader.value_key(&l.place)) {
                // Two names have one place only if the index is damaged. Then each is read alone
                // and gets its own error.
                Some(first) if located[*first].name == l.name => twice.push((i, *first)),
                _ => {
                    by_place.insert(l.reader.value_key(&l.place), i);
                    missing.push(i);
                }
            }
        }
        let coalesced = coalesce(located, missing);
        let mut booked = Vec::with_capacity(located.len());
        for span in &coalesced {
            // The bytes between the values of a coalesced read are read and reserved, too.
            let len = span.place.end - span.place.start;
            let mut between = len.saturating_sub(span.wanted);
            for i in &span.values {
                let bytes = located[*i].read_len() as u64 + std::mem::take(&mut between);
                let ledger = located[*i].env().ledger();
                booked.push(ledger.reserve(MemoryKind::Pinned, bytes));
            }
        }
        let reading = (coalesced.first().filter(|_| aside)).map(|first| {
            let env = located[first.values[0]].env();
            Reading::begin(env, &reads(&coalesced, located), how)
        });
        InFlight {
            found,
            twice,
            coalesced,
            booked,
            reading,
        }
    }

    /// Counts the reads as those of a scan.
    pub fn is_of_scan(&self, located: &[Located<'_>]) {
        let all: u64 = self.coalesced.iter().map(|s| s.wanted).sum();
        for span in &self.coalesced {
            let alike = all / span.wanted.max(1);
            located[span.values[0]].reader.scanned(alike);
        }
    }

    /// Waits for the reads and returns the values. `located` must be the same as at the begin.
    pub fn finish(self, located: &[Located<'_>], how: ReadMode) -> Vec<Result<Bytes>> {
        let out = self.finish_within(located, how, &mut ReadBudget::unbounded());
        (out.into_iter())
            .map(|value| value.expect("nothing is put off without a bound"))
            .collect()
    }

    /// Waits for the reads and returns the values within `budget`.
    ///
    /// The caller has taken the stored bytes of each value from `budget`. The further bytes of a
    /// compressed value are taken before it is decompressed. A value beyond `budget` is `None`.
    pub fn finish_within(
        self,
        located: &[Located<'_>],
        how: ReadMode,
        budget: &mut ReadBudget,
    ) -> Vec<Option<Result<Bytes>>> {
        let within = |i: usize, value: Result<Bytes>, budget: &mut ReadBudget| match value {
            Ok(value) => {
                (budget.take_rest(located[i].value_len(), value.len())).then_some(Ok(value))
            }
            Err(e) => Some(Err(e)),
        };
        let mut out: Vec<_> = (self.found.into_iter().enumerate())
            .map(|(i, value)| value.map(|value| within(i, value, budget)))
            .collect();
        let reads = reads(&self.coalesced, located);
        let read = match (self.reading, self.coalesced.first()) {
            (Some(reading), _) => reading.finish(&reads),
            (None, Some(first)) => Read::read_all(located[first.values[0]].env(), &reads, how),
            (None, None) => Vec::new(),
        };
        let mut booked = self.booked.into_iter();
        for (span, bytes) in self.coalesced.iter().zip(read) {
            let with_others = span.values.len() > 1;
            for i in &span.values {
                let l = &located[*i];
                let bytes = match &bytes {
                    Ok(all) => {
                        let from = (l.place.start - span.place.start) as usize;
                        Ok((all.slice(from..from + l.read_len()), with_others))
                    }
                    // The error may concern one value alone.
                    Err(_) if with_others => l.alone().map(|bytes| (bytes, false)),
                    Err(e) => Err(e.clone()),
                };
                let booked = booked.next().expect("one for each");
                let taken = |bytes| {
                    let take = |len| budget.take_rest(l.value_len(), len);
                    (l.reader).take_value(&l.name, &l.place, bytes, booked, how, take)
                };
                out[*i] = Some(bytes.and_then(taken).transpose());
            }
        }
        for (i, first) in self.twice {
            let value = out[first].clone().expect("it was read");
            out[i] = Some(match value {
                Some(value) => within(i, value, budget),
                None => {
                    // This amount exceeds any budget, so the call gives the stored bytes back.
                    budget.take_rest(located[i].value_len(), usize::MAX);
                    None
                }
            });
        }
        (out.into_iter())
            .map(|value| value.expect("each was read"))
            .collect()
    }
}

/// Values that one read covers.
struct CoalescedRead {
    place: Range<u64>,
    /// Bytes of the read that are wanted.
    wanted: u64,
    /// Numbers of the located values that the read covers.
    values: Vec<usize>,
}

impl CoalescedRead {
    /// Returns true if the read may extend to the end of `place`.
    fn may_take(&self, place: &Range<u64>) -> bool {
        let len = place.end.max(self.place.end) - self.place.start;
        let wanted = self.wanted + (place.end - place.start);
        len <= LONGEST && len / 2 <= wanted
    }
}

/// Returns the reads that cover the missing values, file by file. Values that lie side by side
/// are one read.
fn coalesce(located: &[Located<'_>], mut missing: Vec<usize>) -> Vec<CoalescedRead> {
    let at = |i: usize| located[i].reader.value_key(&located[i].place);
    missing.sort_unstable_by_key(|i| at(*i));
    let mut all: Vec<CoalescedRead> = Vec::new();
    let mut file = None;
    for i in missing {
        let place = &located[i].place;
        let same = file.replace(at(i).file) == Some(at(i).file);
        match all.last_mut() {
            Some(last)
                if same && place.start <= last.place.end + MAX_GAP && last.may_take(place) =>
            {
                last.place.end = last.place.end.max(place.end);
                last.wanted += place.end - place.start;
                last.values.push(i);
            }
            _ => all.push(CoalescedRead {
                place: place.clone(),
                wanted: place.end - place.start,
                values: vec![i],
            }),
        }
    }
    all
}

/// Returns the read of each span of bytes.
fn reads<'a>(coalesced: &[CoalescedRead], located: &[Located<'a>]) -> Vec<Read<'a>> {
    let read = |s: &CoalescedRead| {
        let (source, path) = located[s.values[0]].reader.records_file();
        Read {
            source,
            path,
            offset: s.place.start,
            len: (s.place.end - s.place.start) as usize,
        }
    };
    coalesced.iter().map(read).collect()
}

/// Returns the ordinal that a hash page has for a hash, and the ordinals of its twins.
pub(crate) fn in_hash_page(
    page: &[u8],
    hash: u64,
) -> std::result::Result<(u32, Vec<u32>), &'static str> {
    Ok((
        index::ordinal(page, hash)?,
        index::twins(page, hash)?.collect(),
    ))
}
