//! Reads of many pages at once. Pages that a user checkpoint or a compaction wrote for neighbouring
//! leaves lie behind one another, so one read of the device brings many of them.

use crate::page::Page;
use crate::page_id::PageId;
use crate::storage::Storage;
use crate::usage::StreamKind;
use basalt_env::MemoryKind;
use basalt_env::sync::atomic::Ordering::Relaxed;
use basalt_fs::Result;
use basalt_stream::ExtentAddress;
use std::collections::BTreeMap;

/// Largest gap between two pages, in bytes, that one read covers.
const MAX_GAP: u64 = 4 << 10;
/// Most bytes of one read of several pages.
const MAX_READ: u64 = 256 << 10;

/// A page to be read.
pub(crate) type PageRef = (StreamKind, PageId);

/// Pages that were read before they are needed.
pub(crate) type LoadedPages = BTreeMap<PageId, Page>;

/// Pages that one read covers.
struct Run {
    kind: StreamKind,
    at: ExtentAddress,
    len: u64,
    /// Their indexes in the list of pages.
    pages: Vec<usize>,
}

impl Storage {
    /// Returns pages in the order of `refs`. Those that are not in the cache are read as one batch,
    /// and go to the cache if `fill_cache`. Pages that are near each other cost one device read.
    ///
    /// Errors: those of [`Storage::page`], of the first page that cannot be read.
    pub fn read_pages(&self, refs: &[PageRef], fill_cache: bool) -> Result<Vec<Page>> {
        let mut found: Vec<Option<Page>> = refs.iter().map(|(_, id)| self.cached(*id)).collect();
        let missing: Vec<usize> = (0..refs.len()).filter(|i| found[*i].is_none()).collect();
        if fill_cache {
            let deltas = missing.iter().filter(|i| refs[**i].0 == StreamKind::Delta);
            let deltas = deltas.count() as u64;
            if deltas > 0 {
                self.delta_reads.fetch_add(deltas, Relaxed);
            }
        }
        if missing.len() > 1 {
            self.read_runs(refs, &runs_of(refs, missing), &mut found, fill_cache);
        }
        let pages = found.into_iter().zip(refs);
        let pages = pages.map(|(page, (kind, id))| match page {
            Some(page) => Ok(page),
            // The only missing one, or one that cannot be read: the error names it.
            None if fill_cache => self.page(*kind, *id),
            None => self.page_uncached(*kind, *id),
        });
        pages.collect()
    }

    /// Reads runs with one batch. A page that cannot be read is left out.
    fn read_runs(
        &self,
        refs: &[PageRef],
        runs: &[Run],
        found: &mut [Option<Page>],
        fill_cache: bool,
    ) {
        let (mut reads, mut of_read) = (Vec::new(), Vec::new());
        for run in runs {
            let stream = self.stream(run.kind);
            if let Ok(read) = stream.read_request(run.at, run.len as usize) {
                reads.push(read);
                of_read.push(run);
            }
        }
        let bytes = of_read.iter().map(|run| run.len).sum();
        let _booked = self.env.ledger().reserve(MemoryKind::Pinned, bytes);
        let mut batch = self.env.fs().submit_reads(reads);
        batch.wait_all();
        while let Some((i, read)) = batch.next() {
            let (Ok(read), run) = (read, of_read[i]) else {
                continue;
            };
            for page in &run.pages {
                let (kind, id) = refs[*page];
                let begin = (u64::from(id.offset) - run.at.offset) as usize;
                let end = begin + id.len as usize;
                if end > read.len() {
                    continue;
                }
                let opened = self.open_page(kind, id, &read.slice(begin..end)).ok();
                if let Some(page) = opened.as_ref().filter(|_| fill_cache) {
                    self.fill_cache(id, page);
                }
                found[*page] = opened;
            }
        }
    }
}

/// Returns the number of device reads that pages cost which are read as one batch, and the bytes of
/// the pages.
pub(crate) fn cost_of(refs: &[PageRef]) -> (u64, u64) {
    let runs = runs_of(refs, (0..refs.len()).collect());
    let bytes = refs.iter().map(|(_, id)| u64::from(id.len)).sum();
    (runs.len() as u64, bytes)
}

/// Returns the runs of the pages with these indexes.
fn runs_of(refs: &[PageRef], mut indexes: Vec<usize>) -> Vec<Run> {
    indexes.sort_unstable_by_key(|i| refs[*i]);
    let mut runs: Vec<Run> = Vec::new();
    for i in indexes {
        let (kind, id) = refs[i];
        let at = id.address();
        if let Some(run) = runs.last_mut() {
            let end = run.at.offset + run.len;
            let len = (at.offset + u64::from(id.len)).max(end) - run.at.offset;
            let joins = (run.kind, run.at.extent) == (kind, at.extent)
                && at.offset <= end + MAX_GAP
                && len <= MAX_READ;
            if joins {
                run.len = len;
                run.pages.push(i);
                continue;
            }
        }
        runs.push(Run {
            kind,
            at,
            len: u64::from(id.len),
            pages: vec![i],
        });
    }
    runs
}
