//! Reads of many records of a log at once: the device works on all of them at the same time.

use crate::index::EntryPlace;
use crate::log::Log;
use crate::mapping::{Location, Mapping};
use crate::pages;
use crate::physical::ReadableFile;
use basalt_env::MemoryKind;
use basalt_fs::{Bytes, Lifetime, ReadRequest, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Records that are looked up at a time.
const LOOKED_UP: usize = 64;
/// Most bytes of one batch of reads, unless one record has more.
const LARGEST_BATCH: u64 = 8 << 20;
/// Largest gap between two records, in bytes, that one read covers.
const GAP: u64 = 4 << 10;
/// Most bytes of one read of several records.
const LARGEST_READ: u64 = 256 << 10;
/// A record with a smaller part of the bytes of its read is copied.
const COPIED_PART: usize = 4;

/// A record whose place is known.
struct Placed {
    result_index: usize,
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
    /// them. `lsns` may repeat and need no order. All results are in memory when the call returns.
    /// The log looks up 64 records at a time. It first reads those of their pages of the index that
    /// are not in the block cache, as one batch, and then the records, in batches of up to 8 MiB.
    /// Records that are near each other cost one device read.
    ///
    /// Errors: each record has its own; an error concerns that record only.
    pub fn read_many(&self, lsns: &[u64]) -> Vec<Result<Option<Bytes>>> {
        lsns.chunks(LOOKED_UP)
            .flat_map(|some| self.read_batch(some))
            .collect()
    }

    fn read_batch(&self, lsns: &[u64]) -> Vec<Result<Option<Bytes>>> {
        let mut results: Vec<Option<Result<Option<Bytes>>>> = lsns.iter().map(|_| None).collect();
        let placed = self.place_all(lsns, &mut results);
        let runs = runs_of(&placed);
        let mut rest = &runs[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |run: &&Run| {
                bytes += run.len;
                bytes <= LARGEST_BATCH
            };
            let n = rest.iter().take_while(fits).count().max(1);
            self.read_runs(&placed, &rest[..n], &mut results);
            rest = &rest[n..];
        }
        let left = |(result, lsn): (Option<Result<Option<Bytes>>>, &u64)| {
            result.unwrap_or_else(|| self.read(*lsn))
        };
        results.into_iter().zip(lsns).map(left).collect()
    }

    /// Reads the records of runs, with one batch. A record that cannot be read gets no result.
    fn read_runs(
        &self,
        placed: &[Placed],
        runs: &[Run],
        results: &mut [Option<Result<Option<Bytes>>>],
    ) {
        let env = &self.engine().env;
        let bytes = runs.iter().map(|run| run.len).sum();
        let _booked = env.ledger().reserve(MemoryKind::Pinned, bytes);
        let reads = runs.iter().map(|run| ReadRequest {
            file: placed[run.records.start].file.file().clone(),
            offset: run.offset,
            len: run.len as usize,
            lifetime: Lifetime::Cached,
        });
        let mut batch = env.fs().submit_reads(reads.collect());
        batch.wait_all();
        while let Some((i, read)) = batch.next() {
            // A failed read is repeated for each record, because the error must be its own.
            let Ok(read) = read else { continue };
            let run = &runs[i];
            for record in &placed[run.records.clone()] {
                let start = (record.at.offset - run.offset) as usize;
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
                    results[record.result_index] = Some(Ok(Some(data)));
                }
            }
        }
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
        for (result_index, (lsn, place)) in lsns.iter().zip(places).enumerate() {
            let at = match place {
                None => {
                    results[result_index] = Some(Ok(None));
                    continue;
                }
                Some(EntryPlace::Known(at)) => Some(at),
                Some(EntryPlace::OnPage(page)) => {
                    loaded[&page].as_ref().and_then(|page| page.get(*lsn))
                }
            };
            if let Some((at, file)) = at.and_then(|at| Some((at, logs.get(at.file)?))) {
                placed.push(Placed {
                    result_index,
                    lsn: *lsn,
                    file,
                    at,
                });
            }
        }
        placed.sort_unstable_by_key(|record| (record.at.file, record.at.offset));
        placed
    }
}

/// Records that one read covers.
struct Run {
    /// Their indexes.
    records: Range<usize>,
    offset: u64,
    len: u64,
}

/// Returns the runs of records.
fn runs_of(placed: &[Placed]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, record) in placed.iter().enumerate() {
        if let Some(run) = runs.last_mut() {
            let len = record.end().saturating_sub(run.offset).max(run.len);
            // A record that is asked for twice is read once.
            if record.at.file == placed[run.records.start].at.file
                && record.at.offset <= run.offset + run.len + GAP
                && (len <= LARGEST_READ || len == run.len)
            {
                run.records.end = i + 1;
                run.len = len;
                continue;
            }
        }
        runs.push(Run {
            records: i..i + 1,
            offset: record.at.offset,
            len: u64::from(record.at.len),
        });
    }
    runs
}
