//! Reads of many records of a log at once: the device works on all of them at the same time.

use crate::index::EntryPlace;
use crate::log::Log;
use crate::mapping::{Location, Mapping};
use crate::pages;
use crate::physical::ReadableFile;
use basalt_fs::{Bytes, ReadRequest, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Records that are looked up and read as one batch. A larger batch keeps the device no busier, and
/// its bytes are in memory at the same time.
const IN_FLIGHT: usize = 64;
/// Largest gap between two records, in bytes, that one read covers.
const GAP: u64 = 4 << 10;
/// Most bytes of one read of several records.
const LARGEST_READ: u64 = 256 << 10;
/// A record with a smaller part of the bytes of its read is copied.
const COPIED_PART: usize = 4;

/// A record whose place is known.
struct Placed {
    /// Its place among the results.
    i: usize,
    lsn: u64,
    file: Arc<ReadableFile>,
    at: Location,
}

impl Placed {
    fn end(&self) -> u64 {
        self.at.offset + u64::from(self.at.len)
    }
}

impl Log {
    /// Returns the records of many LSNs, in the order of `lsns`, as [`Log::read`] returns each of
    /// them. LSNs may be there twice and need not rise. Up to 64 records are read at a time, with
    /// one device read for each, or for several that are near each other. Before, their pages of
    /// the index that are not in the block cache are read as one batch.
    ///
    /// Errors: each record has its own; an error concerns that record only.
    pub fn read_many(&self, lsns: &[u64]) -> Vec<Result<Option<Bytes>>> {
        lsns.chunks(IN_FLIGHT)
            .flat_map(|some| self.read_batch(some))
            .collect()
    }

    fn read_batch(&self, lsns: &[u64]) -> Vec<Result<Option<Bytes>>> {
        let mut results: Vec<Option<Result<Option<Bytes>>>> = lsns.iter().map(|_| None).collect();
        let placed = self.place_all(lsns, &mut results);
        let runs = runs_of(&placed);
        let reads = runs.iter().map(|run| {
            let (from, to) = (placed[run.start].at.offset, placed[run.end - 1].end());
            ReadRequest {
                file: placed[run.start].file.file().clone(),
                offset: from,
                len: (to - from) as usize,
            }
        });
        let mut batch = self.engine().env.fs().submit_reads(reads.collect());
        batch.wait_all();
        while let Some((run, read)) = batch.next() {
            // What failed is read again, alone: the error must be the record's own.
            let Ok(read) = read else { continue };
            let from = placed[runs[run].start].at.offset;
            for record in &placed[runs[run].clone()] {
                let start = (record.at.offset - from) as usize;
                let end = start + record.at.len as usize;
                if end > read.len() {
                    continue;
                }
                let bytes = read.slice(start..end);
                let opened =
                    self.open_record(record.lsn, record.file.file_id, record.at.offset, &bytes);
                if let Ok(data) = opened {
                    // A small record must not keep all the bytes of the read in memory.
                    let data = match data.len() < read.len() / COPIED_PART {
                        true => Bytes::copy_from_slice(&bytes[data]),
                        false => bytes.slice(data),
                    };
                    results[record.i] = Some(Ok(Some(data)));
                }
            }
        }
        let left = |(result, lsn): (Option<Result<Option<Bytes>>>, &u64)| {
            result.unwrap_or_else(|| self.read(*lsn))
        };
        results.into_iter().zip(lsns).map(left).collect()
    }

    /// Returns the places of all records, in the order of files and offsets. Records that the log
    /// does not have get their result. A record whose place cannot be found is left to
    /// [`Log::read`].
    fn place_all(
        &self,
        lsns: &[u64],
        results: &mut [Option<Result<Option<Bytes>>>],
    ) -> Vec<Placed> {
        if self.engine().check_open().is_err() {
            return Vec::new();
        }
        let places: Vec<Option<EntryPlace>> = {
            let inner = self.state().lock();
            if inner.deleted {
                return Vec::new();
            }
            lsns.iter().map(|lsn| inner.index.find(*lsn)).collect()
        };
        let mut wanted: Vec<_> = (places.iter().flatten())
            .filter_map(|place| match place {
                EntryPlace::OnPage(page) => Some(*page),
                EntryPlace::Known(_) => None,
            })
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let (env, logs) = (&self.engine().env, &self.engine().logs);
        pages::read_into_cache(env, logs, &wanted);
        let mut loaded: BTreeMap<_, Option<Mapping>> = BTreeMap::new();
        for page in wanted {
            let mapping = pages::load(env, logs, self.state().number, page);
            loaded.insert(page, mapping.ok().flatten());
        }
        let mut placed = Vec::new();
        for (i, (lsn, place)) in lsns.iter().zip(places).enumerate() {
            let at = match place {
                None => {
                    results[i] = Some(Ok(None));
                    continue;
                }
                Some(EntryPlace::Known(at)) => Some(at),
                Some(EntryPlace::OnPage(page)) => {
                    loaded[&page].as_ref().and_then(|page| page.get(*lsn))
                }
            };
            if let Some((at, file)) = at.and_then(|at| Some((at, logs.get(at.file)?))) {
                let lsn = *lsn;
                placed.push(Placed { i, lsn, file, at });
            }
        }
        placed.sort_unstable_by_key(|record| (record.at.file, record.at.offset));
        placed
    }
}

/// Returns the runs of records that one read covers.
fn runs_of(placed: &[Placed]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (i, record) in placed.iter().enumerate() {
        if let Some(run) = runs.last_mut() {
            let (first, last) = (&placed[run.start], &placed[run.end - 1]);
            if record.at.file == first.at.file
                && record.at.offset <= last.end() + GAP
                && record.end() - first.at.offset <= LARGEST_READ
            {
                run.end = i + 1;
                continue;
            }
        }
        runs.push(i..i + 1);
    }
    runs
}
