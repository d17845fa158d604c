//! Many values at once: the index pages that they need are read together, then the values, from whichever files. So a call that wants many
//! waits for about as many reads in a row as one that wants one, and knows how long the values are before it reads any.

use super::counts::ReadCounts;
use super::index;
use super::reader::{BlobReader, How};
use super::record::{HEADER_LEN, Name};
use crate::table::format::BlockKind;
use crate::table::{Source, check_reach, read_exact};
use basalt_env::{CacheKey, Env, MemoryKind};
use basalt_fs::{Bytes, Error, ReadRequest, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Reads in flight together at most.
pub(crate) const READ_TOGETHER: usize = 64;
/// Bytes of index pages that are kept for the next values.
const PAGES_KEPT: usize = 512 << 10;

/// A value that is wanted.
pub(crate) struct Sought<'a> {
    /// The file that has it.
    pub reader: &'a BlobReader,
    /// What finds it.
    pub name: Name<'a>,
}

/// A value that was found and not read.
pub(crate) struct Located<'a> {
    reader: &'a BlobReader,
    name: Name<'a>,
    place: Range<u64>,
}

impl Located<'_> {
    /// Bytes of the value as it is stored, with its expiry.
    pub fn value_len(&self) -> usize {
        value_len(&self.name, &self.place)
    }

    /// Bytes that reading it brings into memory.
    pub fn read_len(&self) -> usize {
        (self.place.end - self.place.start) as usize
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
pub(super) fn value_len(name: &Name<'_>, place: &Range<u64>) -> usize {
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
        if !reads.is_empty() && how.foreground {
            env.courtesy().foreground_read();
        }
        if let [one] = reads {
            return vec![one.alone()];
        }
        let mut out: Vec<Option<Result<Bytes>>> = reads.iter().map(|_| None).collect();
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
                Err(e) => out[i] = Some(Err(e)),
            }
        }
        let mut done = env.fs().submit_reads(requests);
        done.wait_all();
        while let Some((i, bytes)) = done.next() {
            let r = &reads[asked[i]];
            out[asked[i]] = Some(bytes.and_then(|bytes| match bytes.len() == r.len {
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
pub(crate) struct Pages {
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
            match page.0.env().cache().get(key) {
                Some(found) => self.keep(key, found),
                None => missing.push((key, *page)),
            }
        }
        for batch in missing.chunks(READ_TOGETHER) {
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
pub(crate) fn locate<'a>(
    sought: Vec<Sought<'a>>,
    pages: &mut Pages,
    how: How,
) -> Vec<Result<Located<'a>>> {
    let hashes: Vec<u64> = (sought.iter()).map(|s| s.reader.hash_of(&s.name)).collect();
    let wanted: Vec<_> = (sought.iter().zip(&hashes))
        .map(|(s, hash)| (s.reader, BlockKind::BlobHashes, s.reader.hash_page(*hash)))
        .collect();
    let first = pages.fetch(&wanted, how);
    let mut out: Vec<Option<Result<Range<u64>>>> = sought.iter().map(|_| None).collect();
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
            Ok(_) => out[i] = Some(s.reader.find_how(&s.name, how).map(|(_, place)| place)),
            Err(e) => out[i] = Some(Err(e)),
        }
    }
    let second = pages.fetch(&wanted, how);
    for ((i, ordinal), page) in known.into_iter().zip(second) {
        let reader = sought[i].reader;
        out[i] = Some(page.and_then(|page| reader.place_in(&page, ordinal)));
    }
    (sought.into_iter().zip(out))
        .map(|(s, place)| {
            let place = place.expect("each was looked up")?;
            let Sought { reader, name } = s;
            Ok(Located {
                reader,
                name,
                place,
            })
        })
        .collect()
}

/// The values, those of them that are not in the cache read together. A failure is its own value's.
pub(crate) fn read(located: &[Located<'_>], how: How) -> Vec<Result<Bytes>> {
    let mut out: Vec<Option<Result<Bytes>>> = (located.iter())
        .map(|l| l.reader.cached_value(&l.name, &l.place))
        .collect();
    let mut missing: Vec<usize> = Vec::new();
    let mut twice: Vec<(usize, usize)> = Vec::new();
    let mut by_place: BTreeMap<CacheKey, usize> = BTreeMap::new();
    for (i, l) in located.iter().enumerate() {
        if out[i].is_some() {
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
    for batch in missing.chunks(READ_TOGETHER) {
        let mut booked = Vec::with_capacity(batch.len());
        let mut reads = Vec::with_capacity(batch.len());
        for i in batch {
            let l = &located[*i];
            let ledger = l.env().ledger();
            booked.push(ledger.reserve(MemoryKind::Pinned, l.read_len() as u64));
            let (source, path) = l.reader.records_file();
            reads.push(Read {
                source,
                path,
                offset: l.place.start,
                len: l.read_len(),
            });
        }
        let read = Read::together(located[batch[0]].env(), &reads, how);
        for ((i, bytes), booked) in batch.iter().zip(read).zip(booked) {
            let l = &located[*i];
            let taken = |bytes| l.reader.take_value(&l.name, &l.place, bytes, booked, how);
            out[*i] = Some(bytes.and_then(taken));
        }
    }
    for (i, first) in twice {
        out[i] = out[first].clone();
    }
    (out.into_iter())
        .map(|value| value.expect("each was read"))
        .collect()
}

/// The ordinal that a hash page has for a hash, and what else may have it.
pub(super) fn in_hash_page(
    page: &[u8],
    hash: u64,
) -> std::result::Result<(u32, Vec<u32>), &'static str> {
    Ok((
        index::ordinal(page, hash)?,
        index::twins(page, hash)?.collect(),
    ))
}
