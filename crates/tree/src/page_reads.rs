//! Reads of pages, and of parts of them. A lookup reads the head of a page and one of its blocks. A
//! compaction reads many pages at once: those that a user checkpoint or a compaction wrote for
//! neighbouring leaves lie behind one another, so one read of the device brings many of them.

use crate::page::{Page, PageKind};
use crate::page_format::{PAGE_HEADER, PageHead, head_end};
use crate::page_id::PageId;
use crate::storage::Storage;
use crate::usage::StreamKind;
use basalt_env::{CacheKey, CachePriority, MemoryKind, Reservation};
use basalt_fs::{Bytes, Error, Lifetime, ReadCompletions, ReadRequest, Result, slot_size};
use basalt_stream::{ExtentAddress, ExtentId};
use std::collections::{BTreeMap, BTreeSet};

/// Largest gap between two pages, in bytes, that one read covers.
const MAX_GAP: u64 = 4 << 10;
/// Most bytes of one read of several pages. Rounded to units of the device, it has 256 KiB at most,
/// a size of the buffers of reads ([`Lifetime::Brief`]).
const MAX_READ: u64 = 248 << 10;

/// A page of at most as many bytes as this many blocks have comes whole with its head.
const WHOLE_BLOCKS: u64 = 18;

/// A page to be read.
pub(crate) type PageRef = (StreamKind, PageId);

/// Pages that were read before they are needed.
pub(crate) type LoadedPages = BTreeMap<PageId, Page>;

/// Stored bytes of parts of pages, not verified. The head of a page stands for all of the page.
pub(crate) type StoredParts = BTreeMap<CacheKey, Bytes>;

/// Bytes of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    kind: StreamKind,
    extent: ExtentId,
    offset: u64,
    len: u64,
}

/// Bytes that one read covers.
struct Run {
    span: Span,
    /// The indexes of what is wanted of them.
    of: Vec<usize>,
}

impl Run {
    /// Returns the run of some spans of an extent, which are in the order of their offsets.
    fn of(spans: &[Span], of: &[usize]) -> Run {
        let first = spans[of[0]];
        let ends = of.iter().map(|i| spans[*i].offset + spans[*i].len);
        let end = ends.max().expect("a run has a span");
        Run {
            span: Span {
                len: end - first.offset,
                ..first
            },
            of: of.to_vec(),
        }
    }
}

/// A part of a page that a lookup needs and does not have.
#[derive(Clone)]
pub(crate) enum Want {
    /// The head, and how many bytes are read for it.
    Head(PageRef, u32),
    Block(PageRef, PageHead, usize),
}

impl Want {
    fn span(&self) -> Span {
        match self {
            Want::Head((kind, id), len) => Span {
                kind: *kind,
                extent: id.extent,
                offset: u64::from(id.offset),
                len: u64::from(*len),
            },
            Want::Block((kind, id), head, number) => {
                let stored = head.block(*number).stored;
                Span {
                    kind: *kind,
                    extent: id.extent,
                    offset: u64::from(id.offset) + stored.start as u64,
                    len: stored.len() as u64,
                }
            }
        }
    }

    /// Returns the request for all of a page.
    pub fn whole_page(of: PageRef) -> Want {
        Want::Head(of, of.1.len)
    }

    /// Returns the bytes that a read of the part brings.
    pub fn bytes(&self) -> usize {
        self.span().len as usize
    }

    /// Returns the place of the part, as the cache knows it.
    pub fn key(&self) -> CacheKey {
        match self {
            Want::Head((_, id), _) => head_key(*id),
            Want::Block((_, id), head, number) => block_key(*id, head, *number),
        }
    }
}

/// Returns the place of the head of a page, as the cache knows it.
pub(crate) fn head_key(id: PageId) -> CacheKey {
    CacheKey {
        file: u128::from(id.extent.0) | 1 << 127 | 1 << 126,
        offset: u64::from(id.offset),
    }
}

/// Returns the place of a block of a page, as the cache knows it.
pub(crate) fn block_key(id: PageId, head: &PageHead, number: usize) -> CacheKey {
    CacheKey {
        file: u128::from(id.extent.0) | 1 << 127 | 1 << 125,
        offset: u64::from(id.offset) + head.block(number).stored.start as u64,
    }
}

/// Heads and blocks of base pages of leaves and of delta pages for some lookups, from the cache or
/// the device. What was read stays until the
/// lookups end, even if the cache does not take it.
pub(crate) struct PartReads<'s> {
    pub storage: &'s Storage,
    fill_cache: bool,
    /// True if reads of delta pages are counted, because the reader pays for merges.
    pays: bool,
    loaded: BTreeMap<CacheKey, Result<Bytes>>,
    /// Pages as they are stored, which came with their heads.
    whole: BTreeMap<PageId, Bytes>,
    /// Parts of delta pages that were read, if the reader pays for merges.
    pub delta_reads: u64,
}

impl<'s> PartReads<'s> {
    /// Returns reads for a reader that pays for merges if its reads fill the cache.
    pub fn new(storage: &'s Storage, fill_cache: bool) -> PartReads<'s> {
        PartReads::paid(storage, fill_cache, fill_cache)
    }

    /// Returns reads for a reader that pays for merges if `pays` is true.
    pub fn paid(storage: &'s Storage, fill_cache: bool, pays: bool) -> PartReads<'s> {
        PartReads {
            storage,
            fill_cache,
            pays,
            loaded: BTreeMap::new(),
            whole: BTreeMap::new(),
            delta_reads: 0,
        }
    }

    fn part(&self, key: CacheKey) -> Option<Result<Bytes>> {
        if !self.loaded.is_empty()
            && let Some(loaded) = self.loaded.get(&key)
        {
            return Some(loaded.clone());
        }
        self.storage.env.cache().get(key).map(Ok)
    }

    /// Returns the request for the head of a page.
    pub fn want_head(&self, of: PageRef) -> Want {
        self.storage.want_head(of)
    }

    /// Returns the head of a page; `None` if it must be read.
    pub fn head(&self, (kind, id): PageRef) -> Option<Result<PageHead>> {
        let found = self.part(head_key(id))?;
        let head = found.map(PageHead::of_cached);
        // The cache knows a page by its place alone.
        let checked = |head: PageHead| match head.check_len(id) {
            Ok(()) => {
                self.storage.check_leaf_level(kind, id, head.kind())?;
                Ok(head)
            }
            Err(what) => Err(self.storage.bad_page(kind, id, &what)),
        };
        Some(head.and_then(checked))
    }

    /// Reads the head of a page.
    fn read_head(&mut self, of: PageRef) -> Result<PageHead> {
        self.read(vec![self.want_head(of)]);
        let read = self.head(of);
        read.expect("a part that was read is there, or its error")
    }

    /// Counts a read, if it is of a delta page and the reader pays for merges.
    pub fn note_read(&mut self, kind: StreamKind) {
        self.delta_reads += u64::from(self.pays && kind == StreamKind::Delta);
    }

    /// Takes a page that was read ahead of the lookups, as a read of the page would bring it.
    pub fn give(&mut self, of: PageRef, stored: Bytes) {
        self.note_read(of.0);
        match self.head(of) {
            Some(Ok(_)) => drop(self.whole.insert(of.1, stored)),
            Some(Err(_)) => {}
            None => self.take(&Want::Head(of, of.1.len), Ok(stored)),
        }
    }

    /// Takes the head of a page that was read before.
    pub fn give_head(&mut self, (_, id): PageRef, head: &PageHead) {
        self.loaded.insert(head_key(id), Ok(head.to_cached()));
    }

    /// Returns a page that was read ahead of the lookups, with all its entries. Nothing goes into
    /// the cache.
    pub fn open_whole(&mut self, of: PageRef, stored: &Bytes) -> Result<(PageHead, Page)> {
        self.note_read(of.0);
        let (kind, id) = of;
        let opened = PageHead::open(id, stored).and_then(|head| {
            let page = head.open_all(stored)?;
            Ok((head, page))
        });
        let opened = opened.map_err(|what| self.storage.bad_page(kind, id, &what))?;
        self.storage.check_leaf_level(kind, id, opened.1.kind)?;
        Ok(opened)
    }

    /// Returns the stored bytes of a page that came with its head.
    pub fn whole(&self, (_, id): PageRef) -> Option<Bytes> {
        self.whole.get(&id).cloned()
    }

    /// Returns a block of a page; `None` if it must be read.
    pub fn block(&self, of: PageRef, head: &PageHead, number: usize) -> Option<Result<Page>> {
        let key = block_key(of.1, head, number);
        if let Some(found) = self.part(key) {
            return Some(found.map(Page::of_cached));
        }
        let whole = self.whole.get(&of.1)?;
        Some(self.block_of_whole(of, head, number, whole))
    }

    /// Returns a block of a page whose stored bytes are known.
    pub fn block_of_whole(
        &self,
        of: PageRef,
        head: &PageHead,
        number: usize,
        whole: &Bytes,
    ) -> Result<Page> {
        let stored = whole.slice(head.block(number).stored);
        self.block_of_stored(of, head, number, &stored)
    }

    /// Returns a block of a page, whose stored bytes these are.
    pub fn block_of_stored(
        &self,
        of: PageRef,
        head: &PageHead,
        number: usize,
        stored: &Bytes,
    ) -> Result<Page> {
        let page = self.open_block(of, head, number, stored)?;
        let key = block_key(of.1, head, number);
        self.fill(key, page.to_cached(), CachePriority::Normal);
        Ok(page)
    }

    /// Returns a block of a page, and reads it if it must.
    pub fn read_block(&mut self, of: PageRef, head: &PageHead, number: usize) -> Result<Page> {
        if let Some(found) = self.block(of, head, number) {
            return found;
        }
        self.read(vec![Want::Block(of, head.clone(), number)]);
        let read = self.block(of, head, number);
        read.expect("a part that was read is there, or its error")
    }

    fn open_block(
        &self,
        (kind, id): PageRef,
        head: &PageHead,
        number: usize,
        stored: &Bytes,
    ) -> Result<Page> {
        let opened = head.open_block(number, stored);
        opened.map_err(|what| self.storage.bad_page(kind, id, &what))
    }

    fn fill(&self, key: CacheKey, bytes: Bytes, priority: CachePriority) {
        if self.fill_cache {
            let charge = slot_size(bytes.len());
            (self.storage.env.cache()).insert(key, bytes, charge, priority);
        }
    }

    /// Reads parts, as one batch. Parts that are near each other cost one device read. The parts,
    /// or their errors, are there afterwards.
    pub fn read(&mut self, mut wants: Vec<Want>) {
        let mut seen = BTreeSet::new();
        wants.retain(|want| seen.insert(want.key()));
        self.read_ahead(wants, Vec::new());
    }

    /// Reads `wants` as [`PartReads::read`] does, and `ahead` with them. A part that is in them
    /// twice counts as two reads. Returns the stored bytes, not verified, of those in `ahead` that
    /// could be read.
    pub fn read_ahead(&mut self, wants: Vec<Want>, ahead: Vec<Want>) -> Vec<Option<Bytes>> {
        let mut stored = vec![None; ahead.len()];
        let needed = wants.len();
        let wants: Vec<Want> = wants.into_iter().chain(ahead).collect();
        for want in &wants {
            self.note_read(want.span().kind);
        }
        let spans: Vec<Span> = wants.iter().map(Want::span).collect();
        let storage = self.storage;
        let read_span = |span: Span| {
            let stream = storage.stream(span.kind);
            stream.read(span.address(), span.len as usize)
        };
        let mut take = |i: usize, read: Result<Bytes>| match i.checked_sub(needed) {
            None => self.take(&wants[i], read),
            Some(ahead) => stored[ahead] = read.ok(),
        };
        let mut each = |run: &Run, read: Result<Bytes>| {
            for i in &run.of {
                let begin = (spans[*i].offset - run.span.offset) as usize;
                let bytes = match &read {
                    // A part alone may be in reach of a damaged extent.
                    Err(_) if run.of.len() > 1 => read_span(spans[*i]),
                    Err(e) => Err(e.clone()),
                    Ok(read) => Ok(read.slice(begin..begin + spans[*i].len as usize)),
                };
                take(*i, bytes);
            }
        };
        let runs = runs_of(&spans);
        match &runs[..] {
            // The thread waits for it in any case.
            [run] => each(run, read_span(run.span)),
            _ => storage.read_runs(runs, &mut each),
        }
        stored
    }

    /// Verifies what was read of a part, and keeps it.
    fn take(&mut self, want: &Want, read: Result<Bytes>) {
        let opened = read.and_then(|bytes| match want {
            Want::Head(of, len) => {
                let head = self.open_head(*of, bytes.clone())?;
                if *len == of.1.len {
                    self.whole.insert(of.1, bytes);
                }
                self.fill(want.key(), head.to_cached(), CachePriority::High);
                Ok(head.to_cached())
            }
            Want::Block(of, head, number) => {
                let page = self.open_block(*of, head, *number, &bytes)?;
                self.fill(want.key(), page.to_cached(), CachePriority::Normal);
                Ok(page.to_cached())
            }
        });
        self.loaded.insert(want.key(), opened);
    }

    fn open_head(&self, (kind, id): PageRef, mut bytes: Bytes) -> Result<PageHead> {
        let end = head_end(&bytes).map_or(0, |end| end.min(id.len as usize));
        if end > bytes.len() {
            bytes = self.storage.stream(kind).read(id.address(), end)?;
        }
        // In memory of its own, so that the cache keeps nothing but the head.
        let bytes = Bytes::copy_from_slice(&bytes[..end.max(PAGE_HEADER).min(bytes.len())]);
        let head = PageHead::open(id, &bytes);
        let head = head.map_err(|what| self.storage.bad_page(kind, id, &what))?;
        self.storage.check_leaf_level(kind, id, head.kind())?;
        Ok(head)
    }
}

impl Storage {
    /// Checks that a page is a base page of a leaf or a delta page, by its stream.
    ///
    /// Errors: `Corruption`. Entries of an index page would count as deletions.
    pub fn check_leaf_level(&self, kind: StreamKind, id: PageId, page: PageKind) -> Result<()> {
        self.check_stream(kind, id, page)?;
        match page {
            PageKind::Index => Err(self.bad_page(kind, id, "an index page in the place of a leaf")),
            PageKind::Leaf | PageKind::Delta => Ok(()),
        }
    }

    /// Returns the request for the head of a page. Up to a length, the page comes whole: a device
    /// read costs about the same for all of it, a block of it is needed next, and heads are read
    /// seldom.
    pub fn want_head(&self, of: PageRef) -> Want {
        let block = self.options.block_bytes as u64;
        let is_whole = u64::from(of.1.len) <= WHOLE_BLOCKS * block;
        let least = (block as u32).max(PAGE_HEADER as u32);
        Want::Head(of, if is_whole { of.1.len } else { least })
    }

    /// Puts the head of a page that was just written into the cache, for the first read of it. A
    /// read that does not find the head brings all of a small page.
    pub fn cache_head(&self, id: PageId, page: &[u8]) {
        let is_read_whole = PageHead::is_of_index(page);
        let head = head_end(page).and_then(|end| page.get(..end));
        if let Some(head) = head.filter(|_| !is_read_whole) {
            let (key, charge) = (head_key(id), slot_size(head.len()));
            let head = Bytes::copy_from_slice(head);
            (self.env.cache()).insert(key, head, charge, CachePriority::High);
        }
    }

    /// Returns the head of a page, if the cache has it.
    pub fn cached_head(&self, (_, id): PageRef) -> Option<PageHead> {
        let found = self.env.cache().get(head_key(id));
        let head = found.map(PageHead::of_cached);
        head.filter(|head| head.check_len(id).is_ok())
    }

    /// Returns true if the cache has a block of a page.
    pub fn has_cached_block(&self, (_, id): PageRef, head: &PageHead, number: usize) -> bool {
        self.env.cache().contains(block_key(id, head, number))
    }

    /// Returns true if the head of a page and as many bytes as the page has would evict nothing.
    pub fn has_room_for(&self, page: PageId) -> bool {
        self.env.cache().has_room(head_key(page), page.len as usize)
    }

    /// Reads the head of a page past the cache.
    pub fn head_uncached(&self, of: PageRef) -> Result<PageHead> {
        PartReads::new(self, false).read_head(of)
    }

    /// Returns the first key of a page that is not empty. Reads its head and its first block, and
    /// adds nothing to the cache: a delta page of an index page may have 1 MiB, and a
    /// consolidated one has more.
    pub fn first_key(&self, of: PageRef) -> Result<Vec<u8>> {
        let mut parts = PartReads::new(self, false);
        let head = parts.read_head(of)?;
        Ok(parts.read_block(of, &head, 0)?.key(0))
    }
}

impl Span {
    fn address(self) -> ExtentAddress {
        ExtentAddress {
            extent: self.extent,
            offset: self.offset,
        }
    }
}

impl Storage {
    /// Returns whole pages in the order of `refs`. They are read as one batch past the cache. Pages
    /// that are near each other cost one device read.
    ///
    /// Errors: those of [`Storage::page_uncached`], of the first page that cannot be read.
    pub fn read_pages(&self, refs: &[PageRef]) -> Result<Vec<Page>> {
        if let [(kind, id)] = refs {
            return Ok(vec![self.page_uncached(*kind, *id)?]);
        }
        let found = self.begin_page_reads(refs.to_vec()).take(self);
        let pages = found.into_iter().zip(refs);
        let pages = pages.map(|(page, (kind, id))| match page {
            Some(page) => Ok(page),
            // It cannot be read: the error names it.
            None => self.page_uncached(*kind, *id),
        });
        pages.collect()
    }

    /// Begins to read whole pages, as [`Storage::read_pages`] does, and does not wait for them.
    pub fn begin_page_reads(&self, refs: Vec<PageRef>) -> PageReads {
        let spans: Vec<Span> = refs.iter().copied().map(page_span).collect();
        PageReads {
            refs,
            runs: self.begin_runs(runs_of(&spans)),
        }
    }

    /// Begins to read parts of pages with one batch, and does not wait for them.
    pub fn begin_part_reads(&self, wants: Vec<Want>) -> PartsInFlight {
        let spans: Vec<Span> = wants.iter().map(Want::span).collect();
        let mut runs = runs_of(&spans);
        // A filesystem may perform a batch of one read before the call returns.
        if let [run] = &runs[..]
            && run.of.len() > 1
        {
            let halves = run.of.chunks(run.of.len().div_ceil(2));
            runs = halves.map(|of| Run::of(&spans, of)).collect();
        }
        PartsInFlight {
            keys: wants.iter().map(Want::key).collect(),
            runs: self.begin_runs(runs),
            spans,
        }
    }

    /// Reads runs with one batch, and calls `each` with them.
    fn read_runs(&self, runs: Vec<Run>, each: &mut dyn FnMut(&Run, Result<Bytes>)) {
        self.begin_runs(runs).finish(self, each);
    }

    /// Begins to read runs with one batch.
    fn begin_runs(&self, runs: Vec<Run>) -> RunReads {
        let (mut reads, mut of_read, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for run in runs {
            let stream = self.stream(run.span.kind);
            match stream.read_request(run.span.address(), run.span.len as usize) {
                // Caches get copies, so what was read stays as long as a lookup or a scan needs it.
                Ok(read) => {
                    reads.push(ReadRequest {
                        lifetime: Lifetime::Brief,
                        ..read
                    });
                    of_read.push(run);
                }
                Err(e) => failed.push((run, e)),
            }
        }
        let bytes: u64 = of_read.iter().map(|run| run.span.len).sum();
        let booked = (self.env.ledger()).reserve(MemoryKind::Pinned, most_memory(bytes));
        let batch = (!reads.is_empty()).then(|| self.env.fs().submit_reads(reads));
        RunReads {
            batch,
            of_read,
            failed,
            _booked: booked,
        }
    }
}

/// Reads of runs that have begun.
struct RunReads {
    batch: Option<Box<dyn ReadCompletions>>,
    of_read: Vec<Run>,
    /// Runs whose read could not begin.
    failed: Vec<(Run, Error)>,
    _booked: Reservation,
}

impl RunReads {
    /// Waits for all runs, and calls `each` with them.
    fn finish(self, storage: &Storage, each: &mut dyn FnMut(&Run, Result<Bytes>)) {
        for (run, e) in self.failed {
            each(&run, Err(e));
        }
        let Some(mut batch) = self.batch else {
            return;
        };
        batch.wait_all();
        while let Some((i, read)) = batch.next() {
            let span = self.of_read[i].span;
            // A read that ends early is read again, for its error.
            let read = read.and_then(|read| match read.len() as u64 >= span.len {
                true => Ok(read),
                false => (storage.stream(span.kind)).read(span.address(), span.len as usize),
            });
            each(&self.of_read[i], read);
        }
    }
}

/// Whole pages that are being read.
pub(crate) struct PageReads {
    refs: Vec<PageRef>,
    runs: RunReads,
}

impl PageReads {
    /// Waits for the pages, and returns those that are sound. A reader of another one reads it
    /// again, for its error.
    pub fn loaded(self, storage: &Storage) -> LoadedPages {
        let refs = self.refs.clone();
        let ids = refs.into_iter().map(|(_, id)| id);
        let pages = ids.zip(self.take(storage));
        pages.filter_map(|(id, page)| Some((id, page?))).collect()
    }

    /// Waits for the pages, and returns them in their order. `None` stands for one that cannot be
    /// read.
    fn take(self, storage: &Storage) -> Vec<Option<Page>> {
        let mut found: Vec<Option<Page>> = vec![None; self.refs.len()];
        self.each(storage, &mut |i, (kind, id), bytes| {
            found[i] = storage.open_page(kind, id, &bytes).ok();
        });
        found
    }

    /// Waits for the pages, and calls `each` with the number and the stored bytes of each page that
    /// could be read.
    fn each(self, storage: &Storage, each: &mut dyn FnMut(usize, PageRef, Bytes)) {
        let refs = self.refs;
        self.runs.finish(storage, &mut |run, read| {
            let Ok(read) = read else {
                return;
            };
            for i in &run.of {
                let (kind, id) = refs[*i];
                let begin = (u64::from(id.offset) - run.span.offset) as usize;
                each(*i, (kind, id), read.slice(begin..begin + id.len as usize));
            }
        });
    }
}

/// Parts of pages that are being read.
pub(crate) struct PartsInFlight {
    keys: Vec<CacheKey>,
    spans: Vec<Span>,
    runs: RunReads,
}

impl PartsInFlight {
    /// Waits for the parts, and returns those that could be read.
    pub fn stored(self, storage: &Storage) -> StoredParts {
        let mut found = StoredParts::new();
        let (keys, spans) = (self.keys, self.spans);
        self.runs.finish(storage, &mut |run, read| {
            let Ok(read) = read else {
                return;
            };
            for i in &run.of {
                let begin = (spans[*i].offset - run.span.offset) as usize;
                found.insert(keys[*i], read.slice(begin..begin + spans[*i].len as usize));
            }
        });
        found
    }
}

/// Returns the most bytes of memory that reads of so many bytes take ([`Lifetime::Brief`]), but for
/// the rest of units of the device.
pub(crate) fn most_memory(bytes: u64) -> u64 {
    bytes + bytes / 2
}

fn page_span((kind, id): PageRef) -> Span {
    Span {
        kind,
        extent: id.extent,
        offset: u64::from(id.offset),
        len: u64::from(id.len),
    }
}

/// Returns the number of device reads that a lookup costs which finds nothing in the cache, and
/// their bytes. It reads `heads` as one batch, and each of `blocks` alone, if it does not come with
/// a head.
pub(crate) fn cost_of(heads: &[Want], blocks: &[Want]) -> (u64, u64) {
    let whole = heads.iter().filter_map(|want| match want {
        Want::Head((_, id), len) if *len == id.len => Some(*id),
        _ => None,
    });
    let whole: BTreeSet<PageId> = whole.collect();
    let heads: Vec<Span> = heads.iter().map(Want::span).collect();
    let blocks = blocks.iter().filter(|want| match want {
        Want::Head((_, id), _) | Want::Block((_, id), ..) => !whole.contains(id),
    });
    let blocks: Vec<Span> = blocks.map(Want::span).collect();
    let reads = runs_of(&heads).len() + blocks.len();
    let bytes = heads.iter().chain(&blocks).map(|span| span.len);
    (reads as u64, bytes.sum())
}

/// Returns the runs of spans.
fn runs_of(spans: &[Span]) -> Vec<Run> {
    let mut indexes: Vec<usize> = (0..spans.len()).collect();
    indexes.sort_unstable_by_key(|i| spans[*i]);
    let mut runs: Vec<Run> = Vec::new();
    for i in indexes {
        let span = spans[i];
        if let Some(run) = runs.last_mut() {
            let end = run.span.offset + run.span.len;
            let len = (span.offset + span.len).max(end) - run.span.offset;
            let joins = (run.span.kind, run.span.extent) == (span.kind, span.extent)
                && span.offset <= end + MAX_GAP
                && len <= MAX_READ;
            if joins {
                run.span.len = len;
                run.of.push(i);
                continue;
            }
        }
        runs.push(Run { span, of: vec![i] });
    }
    runs
}
