//! Many values at once: the index pages that they need are read together, then the values, from whichever files. So a call that wants many
//! waits for about as many reads in a row as one that wants one, and knows how long the values are before it reads any.

use super::{BlobReader, How};
use crate::counts::ReadCounts;
use crate::index;
use crate::record::{HEADER_LEN, Name};
use basalt_env::{CacheKey, Env, MemoryKind, Reservation};
use basalt_fs::{Bytes, Error, ReadCompletions, ReadRequest, Result};
use basalt_table::BlockKind;
use basalt_table::{ReadBudget, Source, check_reach, read_exact};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Values that a call for many reads together at most. A scan reads as many as it has room for.
pub const READ_BATCH: usize = 64;
/// Values of one file that lie so near to each other are one read ...
const NEAR: u64 = 16 << 10;
/// ... of at most so many bytes, at least half of which is wanted.
const LONGEST: u64 = 512 << 10;
/// Bytes of index pages that are kept for the next values.
const PAGES_KEPT: usize = 512 << 10;

/// A value that is wanted.
pub struct Sought<'a> {
    /// The file that has it.
    pub reader: &'a BlobReader,
    /// What finds it.
    pub name: Name<'a>,
}

/// Where a record is: its place among its file's records, and its bytes.
pub type Place = (u32, Range<u64>);

/// A value that was found and not read.
pub struct Located<'a> {
    reader: &'a BlobReader,
    name: Name<'a>,
    ordinal: u32,
    place: Range<u64>,
}

impl<'a> Located<'a> {
    /// What was located before, in a file that is the same.
    pub fn again(sought: Sought<'a>, (ordinal, place): Place) -> Located<'a> {
        Located {
            reader: sought.reader,
            name: sought.name,
            ordinal,
            place,
        }
    }

    /// Where it lies: its place among its file's records, and its bytes.
    pub fn place(&self) -> Place {
        (self.ordinal, self.place.clone())
    }

    /// Bytes of the value as it is stored, with its expiry.
    pub fn value_len(&self) -> usize {
        value_len(&self.name, &self.place)
    }

    /// Bytes that reading it brings into memory.
    pub fn read_len(&self) -> usize {
        (self.place.end - self.place.start) as usize
    }

    /// The record, read for itself.
    fn alone(&self) -> Result<Bytes> {
        let (source, path) = self.reader.records_file();
        let (offset, len) = (self.place.start, self.read_len());
        read_exact(&*source.file()?, path, offset, len)
    }

    /// Where it is in the cache, if it is there.
    pub fn cached_at(&self) -> Option<CacheKey> {
        self.reader.cached_at(self.place.start)
    }

    /// Where what is read is counted.
    pub fn counts(&self) -> &ReadCounts {
        self.reader.counts()
    }

    /// Where memory is booked.
    pub fn env(&self) -> &Env {
        self.reader.env()
    }
}

/// Bytes that are stored of the value in a record that lies at `place`.
pub(crate) fn value_len(name: &Name<'_>, place: &Range<u64>) -> usize {
    ((place.end - place.start) as usize).saturating_sub(HEADER_LEN + name.key.len())
}

/// One read.
struct Read<'a> {
    source: &'a dyn Source,
    path: &'a Path,
    offset: u64,
    len: usize,
}

impl Read<'_> {
    fn alone(&self) -> Result<Bytes> {
        read_exact(&*self.source.file()?, self.path, self.offset, self.len)
    }

    /// All of them in flight together. A failure is its own read's.
    fn together(env: &Env, reads: &[Read<'_>], how: How) -> Vec<Result<Bytes>> {
        match reads {
            // One read gains nothing from a ring.
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
    /// Of those that could not be asked for.
    failed: Vec<Option<Error>>,
    /// Which read is which of the batch.
    asked: Vec<usize>,
    batch: Box<dyn ReadCompletions>,
}

impl Reading {
    fn begin(env: &Env, reads: &[Read<'_>], how: How) -> Reading {
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

    /// What came of the reads that were begun.
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

/// Index pages at hand.
#[derive(Default)]
pub struct Pages {
    kept: BTreeMap<CacheKey, Bytes>,
    bytes: usize,
}

impl Pages {
    /// Pages by file, kind and number, in the order asked for; those that are in no cache are read together.
    fn fetch(
        &mut self,
        wanted: &[(&BlobReader, BlockKind, usize)],
        how: How,
    ) -> Vec<Result<Bytes>> {
        if self.bytes > PAGES_KEPT {
            *self = Pages::default();
        }
        let mut failed: BTreeMap<CacheKey, Error> = BTreeMap::new();
        let mut missing: Vec<(CacheKey, (&BlobReader, BlockKind, usize))> = Vec::new();
        let mut asked: BTreeSet<CacheKey> = BTreeSet::new();
        for page in wanted {
            let key = page.0.page_key(page.2);
            if self.kept.contains_key(&key) || !asked.insert(key) {
                continue;
            }
            // A job that misses is nobody who reads: what is worth warming is judged by lookups.
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
            let read = Read::together(env, &reads, how);
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

/// Where values lie. Reads index pages at most, unless several records have a value's hash.
pub fn locate<'a>(
    sought: Vec<Sought<'a>>,
    pages: &mut Pages,
    how: How,
) -> Vec<Result<Located<'a>>> {
    let hashes: Vec<u64> = (sought.iter()).map(|s| s.reader.hash_of(&s.name)).collect();
    let wanted: Vec<_> = (sought.iter().zip(&hashes))
        .map(|(s, hash)| (s.reader, BlockKind::BlobHashes, s.reader.hash_page(*hash)))
        .collect();
    let first = pages.fetch(&wanted, how);
    let mut out: Vec<Option<Result<Place>>> = sought.iter().map(|_| None).collect();
    // Those whose ordinal is known: its place among what is sought, and the ordinal.
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
            let Sought { reader, name } = s;
            Ok(Located {
                reader,
                name,
                ordinal,
                place,
            })
        })
        .collect()
}

/// The values, those of them that are not in the cache read together. A failure is its own value's.
pub fn read_within(
    located: &[Located<'_>],
    how: How,
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
    /// What was in the cache.
    found: Vec<Option<Result<Bytes>>>,
    /// Those that are wanted again, and where they are wanted first.
    twice: Vec<(usize, usize)>,
    stretches: Vec<Stretch>,
    booked: Vec<Reservation>,
    /// `None` where nobody has anything else to do until they are there.
    reading: Option<Reading>,
}

impl InFlight {
    /// Asks for the values. With `aside` the reads begin at once, and go on while the caller does something else.
    pub fn begin(located: &[Located<'_>], how: How, aside: bool) -> InFlight {
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
                // Places are in proportion to names unless the index is damaged: then each reads for itself, and is told so.
                Some(first) if located[*first].name == l.name => twice.push((i, *first)),
                _ => {
                    by_place.insert(l.reader.value_key(&l.place), i);
                    missing.push(i);
                }
            }
        }
        let stretches = stretches(located, missing);
        let mut booked = Vec::with_capacity(located.len());
        for stretch in &stretches {
            // What lies between them is read, too.
            let len = stretch.place.end - stretch.place.start;
            let mut between = len.saturating_sub(stretch.wanted);
            for i in &stretch.values {
                let bytes = located[*i].read_len() as u64 + std::mem::take(&mut between);
                let ledger = located[*i].env().ledger();
                booked.push(ledger.reserve(MemoryKind::Pinned, bytes));
            }
        }
        let reading = (stretches.first().filter(|_| aside)).map(|first| {
            let env = located[first.values[0]].env();
            Reading::begin(env, &reads(&stretches, located), how)
        });
        InFlight {
            found,
            twice,
            stretches,
            booked,
            reading,
        }
    }

    /// Notes that it is a scan that asks.
    pub fn is_of_scan(&self, located: &[Located<'_>]) {
        let all: u64 = self.stretches.iter().map(|s| s.wanted).sum();
        for stretch in &self.stretches {
            let alike = all / stretch.wanted.max(1);
            located[stretch.values[0]].reader.scanned(alike);
        }
    }

    /// The values, which are those that were asked for.
    pub fn finish(self, located: &[Located<'_>], how: How) -> Vec<Result<Bytes>> {
        let out = self.finish_within(located, how, &mut ReadBudget::unbounded());
        (out.into_iter())
            .map(|value| value.expect("nothing is put off without a bound"))
            .collect()
    }

    /// Waits for the reads and returns the values within `budget`, as [`InFlight::finish`] does without
    /// a bound. The caller has taken the stored bytes of each value from `budget`. The further bytes of a
    /// compressed value are taken before it is decompressed. A value beyond `budget` is `None`.
    pub fn finish_within(
        self,
        located: &[Located<'_>],
        how: How,
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
        let reads = reads(&self.stretches, located);
        let read = match (self.reading, self.stretches.first()) {
            (Some(reading), _) => reading.finish(&reads),
            (None, Some(first)) => Read::together(located[first.values[0]].env(), &reads, how),
            (None, None) => Vec::new(),
        };
        let mut booked = self.booked.into_iter();
        for (stretch, bytes) in self.stretches.iter().zip(read) {
            let with_others = stretch.values.len() > 1;
            for i in &stretch.values {
                let l = &located[*i];
                let bytes = match &bytes {
                    Ok(all) => {
                        let from = (l.place.start - stretch.place.start) as usize;
                        Ok((all.slice(from..from + l.read_len()), with_others))
                    }
                    // What is wrong may be one value's alone.
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
                    // Longer than all that is left: gives the stored bytes back.
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

/// Values that are one read.
struct Stretch {
    place: Range<u64>,
    /// Bytes of it that are wanted.
    wanted: u64,
    /// Which of those that are wanted.
    values: Vec<usize>,
}

impl Stretch {
    /// True when it may go on to the end of `place`.
    fn may_take(&self, place: &Range<u64>) -> bool {
        let len = place.end.max(self.place.end) - self.place.start;
        let wanted = self.wanted + (place.end - place.start);
        len <= LONGEST && len / 2 <= wanted
    }
}

/// What is missing, file by file: what lies side by side is read in one go.
fn stretches(located: &[Located<'_>], mut missing: Vec<usize>) -> Vec<Stretch> {
    let at = |i: usize| located[i].reader.value_key(&located[i].place);
    missing.sort_unstable_by_key(|i| at(*i));
    let mut all: Vec<Stretch> = Vec::new();
    let mut file = None;
    for i in missing {
        let place = &located[i].place;
        let same = file.replace(at(i).file) == Some(at(i).file);
        match all.last_mut() {
            Some(last) if same && place.start <= last.place.end + NEAR && last.may_take(place) => {
                last.place.end = last.place.end.max(place.end);
                last.wanted += place.end - place.start;
                last.values.push(i);
            }
            _ => all.push(Stretch {
                place: place.clone(),
                wanted: place.end - place.start,
                values: vec![i],
            }),
        }
    }
    all
}

/// A read for each stretch.
fn reads<'a>(stretches: &[Stretch], located: &[Located<'a>]) -> Vec<Read<'a>> {
    let read = |s: &Stretch| {
        let (source, path) = located[s.values[0]].reader.records_file();
        Read {
            source,
            path,
            offset: s.place.start,
            len: (s.place.end - s.place.start) as usize,
        }
    };
    stretches.iter().map(read).collect()
}

/// The ordinal that a hash page has for a hash, and what else may have it.
pub(crate) fn in_hash_page(
    page: &[u8],
    hash: u64,
) -> std::result::Result<(u32, Vec<u32>), &'static str> {
    Ok((
        index::ordinal(page, hash)?,
        index::twins(page, hash)?.collect(),
    ))
}
