//! Pages of the index: MetaFlush records in the metalog (pageserver 5.2), read through the cache.

use crate::index::{PageLocation, PagesAround};
use crate::log_ops::LogOp;
use crate::mapping::Mapping;
use crate::physical::{PhysicalLogs, ReadableFile};
use basalt_env::{CacheKey, CachePriority, Env};
use basalt_fs::{AlignedBuf, Bytes, Error, ErrorKind, Lifetime, ReadRequest, Result, slot_size};
use basalt_records::{RECORD_HEADER, RecordKind, open_record};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a file that one read may bring into the cache for a missing page: about 40 pages of a
/// log. With 64 KiB, 85,000 reads of 10 million records took 1.001 device reads each; with 16 KiB,
/// 1.04.
const READ_AROUND: u64 = 64 << 10;

/// Reads a page of a log.
///
/// Errors: `Corruption` names file and offset. `Ok(None)` if the file was removed, because no page
/// in it was needed any more.
pub(crate) fn load(
    env: &Env,
    logs: &PhysicalLogs,
    log: u64,
    at: PageLocation,
) -> Result<Option<Mapping>> {
    load_around(env, logs, log, at, |_| PagesAround::new())
}

/// Reads a page of a log, as [`load`] does. If the page is not in the cache, one read also caches
/// the pages that `around` returns for a range of its file.
pub(crate) fn load_around(
    env: &Env,
    logs: &PhysicalLogs,
    log: u64,
    at: PageLocation,
    around: impl FnOnce(Range<u64>) -> PagesAround,
) -> Result<Option<Mapping>> {
    let Some(file) = logs.get(at.file) else {
        return Ok(None);
    };
    if let Some(bytes) = env.cache().get(key(&file, at)) {
        match decode(&file, log, at, &bytes) {
            Ok(page) => return Ok(Some(page)),
            // The cached bytes may be damaged although the device has the right ones.
            Err(_) => env.cache().remove(key(&file, at)),
        }
    } else {
        let block = at.offset / READ_AROUND * READ_AROUND;
        let range = block..(block + READ_AROUND).max(at.end());
        if let Some(bytes) = read_around(env, &file, at, &around(range))
            && let Ok(page) = decode(&file, log, at, &bytes)
        {
            return Ok(Some(page));
        }
    }
    let read = || {
        let bytes = file.read(at.offset, at.len as usize)?;
        let page = decode(&file, log, at, &bytes)?;
        insert(env, key(&file, at), &bytes);
        Ok(Some(page))
    };
    // A read error may be transient, so the page is read once more.
    read().or_else(|e: Error| match e.kind() {
        ErrorKind::Corruption => read(),
        _ => Err(e),
    })
}

/// Reads pages of a file into the cache, all in one read, and returns the page at `wanted`. Pages
/// that do not verify stay out of the cache. Returns `None` if `pages` lacks `wanted`, if that page
/// does not verify, or if the read fails. The caller then reads the page alone and reports the
/// error.
fn read_around(
    env: &Env,
    file: &ReadableFile,
    wanted: PageLocation,
    pages: &[PageLocation],
) -> Option<Bytes> {
    if !pages.contains(&wanted) {
        return None;
    }
    let begin = pages.iter().map(|page| page.offset).min()?;
    let end = pages.iter().map(|page| page.end()).max()?;
    let read = file.read(begin, (end - begin) as usize).ok()?;
    let mut found = None;
    for page in pages {
        let from = (page.offset - begin) as usize;
        let bytes = &read[from..][..page.len as usize];
        if open_record(file.file_id, page.offset, bytes).is_err() {
            continue;
        }
        if *page == wanted {
            found = Some(insert(env, key(file, *page), bytes));
        } else if !env.cache().contains(key(file, *page)) {
            insert(env, key(file, *page), bytes);
        }
    }
    found
}

fn key(file: &ReadableFile, at: PageLocation) -> CacheKey {
    CacheKey {
        file: file.file_id,
        offset: at.offset,
    }
}

fn insert(env: &Env, key: CacheKey, read: &[u8]) -> Bytes {
    let bytes = AlignedBuf::cached_copy(read);
    let charge = slot_size(bytes.len());
    env.cache().insert(key, bytes, charge, CachePriority::High)
}

/// A page that is not in the cache, and that is read as a part of a batch.
pub(crate) struct MissingPage {
    file: Arc<ReadableFile>,
    key: CacheKey,
    len: u32,
}

impl MissingPage {
    /// Returns the read of the page.
    pub fn request(&self) -> ReadRequest {
        ReadRequest {
            file: self.file.file().clone(),
            offset: self.key.offset,
            len: self.len as usize,
            lifetime: Lifetime::Cached,
        }
    }

    /// Puts the page into the cache if the read succeeded and the record verifies. Otherwise
    /// [`load`] reports the error.
    pub fn insert(self, env: &Env, read: Result<Bytes>) {
        let is_whole = |read: &Bytes| {
            read.len() == self.len as usize
                && open_record(self.file.file_id, self.key.offset, read).is_ok()
        };
        if let Some(read) = read.ok().filter(is_whole) {
            insert(env, self.key, &read);
        }
    }
}

/// Returns those of `pages` that are not in the cache.
pub(crate) fn missing(env: &Env, logs: &PhysicalLogs, pages: &[PageLocation]) -> Vec<MissingPage> {
    let is_missing = |at: &PageLocation| {
        let file = logs.get(at.file)?;
        let key = key(&file, *at);
        let len = at.len;
        (!env.cache().contains(key)).then_some(MissingPage { file, key, len })
    };
    pages.iter().filter_map(is_missing).collect()
}

/// Reads pages into the cache that are not there, all at once. A page that cannot be read is left
/// out: [`load`] reports why.
pub(crate) fn read_into_cache(env: &Env, logs: &PhysicalLogs, pages: &[PageLocation]) {
    let mut missing: Vec<_> = missing(env, logs, pages).into_iter().map(Some).collect();
    if missing.is_empty() {
        return;
    }
    let requests = missing.iter().flatten().map(MissingPage::request);
    let mut batch = env.fs().submit_reads(requests.collect());
    batch.wait_all();
    while let Some((i, read)) = batch.next() {
        if let Some(page) = missing[i].take() {
            page.insert(env, read);
        }
    }
}

/// Reads a page of a log from the device, past the cache. Errors and result are those of [`load`].
pub(crate) fn load_uncached(
    logs: &PhysicalLogs,
    log: u64,
    at: PageLocation,
) -> Result<Option<Mapping>> {
    let Some(file) = logs.get(at.file) else {
        return Ok(None);
    };
    let bytes = file.read(at.offset, at.len as usize)?;
    decode(&file, log, at, &bytes).map(Some)
}

fn decode(file: &ReadableFile, log: u64, at: PageLocation, bytes: &[u8]) -> Result<Mapping> {
    let found = open_record(file.file_id, at.offset, bytes).and_then(|kind| match kind {
        RecordKind::LogOps => Ok(LogOp::decode(bytes, &mut RECORD_HEADER.clone())),
        kind => Err(format!("expected a page, found a record of kind {kind:?}")),
    });
    match found {
        Ok(Some(LogOp::Page { log: of, mapping })) if of == log => Ok(mapping),
        Ok(_) => Err(Error::corruption(
            &file.path,
            at.offset,
            format!("expected a page of the index of log {log}, found something else"),
        )),
        Err(what) => Err(Error::corruption(&file.path, at.offset, what)),
    }
}
