//! Salvage of a damaged tree: the entries of all pages that can be read, and what is lost.
//!
//! If the logs can be read, the mapping table says which pages count, and in which order. The
//! extents are those that are in the directory, so the manifests of the streams are not needed. The
//! leaves below an index page that cannot be read are found in the extents. Then every loss is
//! known. In an extent whose ranges were dropped, the salvage cannot always distinguish garbage
//! from live leaves, so deleted keys of the index page may show again.
//!
//! If the logs cannot be read, all pages in the extents are taken, garbage among them. Each page
//! has the number of the newest user checkpoint whose changes it has. Of a key, the entry of the
//! page with the highest number counts. A base page has all keys of its range, so older pages count
//! for no key between its first and its last one. Values that were overwritten or deleted may show
//! again: keys at the edges of leaves, and keys whose newest page cannot be read.

mod hidden_leaves;

use crate::entries::{SortedEntries, is_delete};
use crate::mapping::{Delta, Pages};
use crate::page::{Page, PageKind};
use crate::page_format::{PAGE_HEADER, len_of_page_at};
use crate::page_id::PageId;
use crate::storage::{BASE, DELTA, Storage, View};
use crate::usage::StreamKind;
use basalt_env::Env;
use basalt_env::file_copy::{RELEASED_BLOCK as BLOCK, read_sparse};
use basalt_fs::{Bytes, Error, ErrorKind, File, Result};
use basalt_kv::key::{Cmp, Kind, SeqNo};
use basalt_kv::ranges::{Fragments, RangeTombstone};
use basalt_stream::{EXTENT_HEADER, ExtentAddress, ExtentId, Stream};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of an extent that are searched for pages at once.
const WINDOW: usize = 4 << 20;

/// Bytes of a tree that cannot be read, and what was in them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct LostPages {
    /// The file, in the directory of the tree.
    pub file: PathBuf,
    /// The bytes.
    pub bytes: Range<u64>,
    /// The lost keys are not below this one; `None` if any key may be lost.
    pub from: Option<Vec<u8>>,
    /// The lost keys are below this one; `None` if any higher key may be lost.
    pub to: Option<Vec<u8>>,
    /// True if older entries of these keys stand elsewhere and show again, those of deleted keys
    /// included.
    pub older_may_reappear: bool,
    /// True for an index page, which has no entries of its own. The pages below it were looked for
    /// without it. Those that were not found are losses of their own, or `older_may_reappear` is
    /// true.
    pub is_index: bool,
    /// What is wrong.
    pub reason: String,
}

/// How the entries of a key are ordered: the one with the highest order counts. If the logs cannot
/// be read, the first number is that of the newest user checkpoint in the page. Else the second is
/// the place in the chain of pages.
type Order = (u64, u32);

/// The second number of a leaf: it has the changes of delta pages with its first number.
const LEAF: u32 = 1;

/// The second number of the first delta page of an index page: its changes are newer than all those
/// of the leaves below it.
const OF_INDEX: u32 = 1 << 30;

/// A page whose entries are kept.
struct Source {
    kind: StreamKind,
    id: PageId,
    order: Order,
    /// The part of the page that counts.
    low: Option<Arc<[u8]>>,
    high: Option<Arc<[u8]>>,
    /// The first key that counts.
    first: Vec<u8>,
}

/// Where pages are read from.
enum Reader {
    /// The tree, whose logs can be read.
    Tree(Box<Storage>),
    /// The files of extents.
    Files(Env, BTreeMap<ExtentId, PathBuf>),
}

impl Reader {
    fn page(&self, kind: StreamKind, id: PageId) -> Result<Page> {
        match self {
            Reader::Tree(storage) => storage.page_uncached(kind, id),
            Reader::Files(env, files) => {
                // Opened for each page: there may be more extents than a process may open files.
                let file = env.fs().open(&files[&id.extent])?;
                let bytes = file.read(u64::from(id.offset), id.len as usize)?;
                Page::open(id, &bytes).map_err(|what| Error::new(ErrorKind::Corruption, what))
            }
        }
    }
}

/// What can be read of a damaged tree.
pub struct TreeSalvage {
    reader: Reader,
    sources: Vec<Source>,
    /// The ranges of base pages, with their numbers, if the logs cannot be read.
    covers: Fragments,
    note: Option<Vec<u8>>,
    lost: Vec<LostPages>,
}

fn directory(kind: StreamKind) -> &'static str {
    match kind {
        StreamKind::Base => BASE,
        StreamKind::Delta => DELTA,
    }
}

fn lost_at(kind: StreamKind, extent: ExtentId, bytes: Range<u64>, reason: String) -> LostPages {
    LostPages {
        file: Path::new(directory(kind)).join(format!("{extent}.extent")),
        bytes,
        reason,
        ..LostPages::default()
    }
}

fn lost_page(kind: StreamKind, id: PageId, reason: String) -> LostPages {
    let begin = u64::from(id.offset);
    let bytes = begin..begin + u64::from(id.len);
    lost_at(kind, id.extent, bytes, reason)
}

/// Returns what is wrong with a page, for a reader who knows its place.
fn reason(e: &Error) -> String {
    match e.kind() {
        ErrorKind::NotFound => "the file is missing".to_string(),
        _ => e.message().to_string(),
    }
}

/// The first key of a range, and the first one behind it; `None` is unbounded.
type KeyBounds = (Option<Vec<u8>>, Option<Vec<u8>>);

/// The walk of a tree whose logs can be read.
struct Walk<'a> {
    storage: &'a Storage,
    view: Arc<View>,
    sources: Vec<Source>,
    lost: Vec<LostPages>,
    /// Keys of the pages that were met.
    met: BTreeSet<PageId>,
    /// The ranges of index pages that cannot be read.
    hidden: Vec<KeyBounds>,
    /// The base pages of these index pages, and what is wrong with them.
    hidden_pages: Vec<(PageId, String)>,
    /// True if leaves below them may be garbage.
    is_in_doubt: bool,
}

impl Walk<'_> {
    /// Walks the pages below an index page, or those of a leaf.
    fn below(
        &mut self,
        key: PageId,
        level: u8,
        low: Option<Vec<u8>>,
        high: Option<Vec<u8>>,
    ) -> Result<()> {
        if !self.met.insert(key) {
            // Two entries of index pages name it. Its entries are taken already.
            return Ok(());
        }
        let pages = match self.storage.pages_of(&self.view, key) {
            Ok(pages) => pages,
            Err(e) if e.is_damage() => {
                self.hidden.push((low, high));
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        if level == 0 {
            return self.leaf(&pages, low, high);
        }
        self.deltas(&pages, low.as_ref(), high.as_ref())?;
        let page = match self.storage.page_uncached(StreamKind::Base, pages.base) {
            Ok(page) if page.kind == PageKind::Index && page.level == level => page,
            Ok(_) => {
                let what = format!("expected an index page of level {level}");
                return self.hide(pages.base, what, (low, high));
            }
            Err(e) if e.is_damage() => {
                return self.hide(pages.base, reason(&e), (low, high));
            }
            Err(e) => return Err(e),
        };
        for i in 0..page.count() {
            let from = (i > 0).then(|| page.key(i)).or_else(|| low.clone());
            let next = (i + 1 < page.count()).then(|| page.key(i + 1));
            self.below(
                page.child(i),
                level - 1,
                from,
                next.or_else(|| high.clone()),
            )?;
        }
        Ok(())
    }

    /// Notes an index page that cannot be read, and its range.
    fn hide(&mut self, base: PageId, reason: String, range: KeyBounds) -> Result<()> {
        self.hidden.push(range);
        self.hidden_pages.push((base, reason));
        Ok(())
    }

    /// Takes the pages of a leaf.
    fn leaf(&mut self, pages: &Pages, low: Option<Vec<u8>>, high: Option<Vec<u8>>) -> Result<()> {
        let base = Delta::whole(pages.base);
        self.page(StreamKind::Base, &base, 0, (low.as_ref(), high.as_ref()))?;
        self.deltas(pages, low.as_ref(), high.as_ref())
    }

    /// Takes the delta pages of a leaf or an index page.
    fn deltas(
        &mut self,
        pages: &Pages,
        low: Option<&Vec<u8>>,
        high: Option<&Vec<u8>>,
    ) -> Result<()> {
        let first = if pages.has_index_deltas { OF_INDEX } else { 1 };
        for (rank, delta) in (first..).zip(&pages.deltas) {
            self.page(StreamKind::Delta, delta, rank, (low, high))?;
        }
        Ok(())
    }

    /// Takes a page whose keys are in a range.
    fn page(
        &mut self,
        kind: StreamKind,
        part: &Delta,
        rank: u32,
        (low, high): (Option<&Vec<u8>>, Option<&Vec<u8>>),
    ) -> Result<()> {
        match self.storage.page_uncached(kind, part.id) {
            Ok(page) => {
                let source = source_of(kind, part, &page, (0, rank));
                self.sources.extend(source);
            }
            Err(e) if e.is_damage() => {
                let above = |key: &&Vec<u8>| part.low().is_none_or(|low| low < &key[..]);
                let below = |key: &&Vec<u8>| part.high().is_none_or(|high| &key[..] < high);
                let from = low.filter(above).cloned();
                let to = high.filter(below).cloned();
                self.lost.push(LostPages {
                    from: from.or_else(|| part.low().map(<[u8]>::to_vec)),
                    to: to.or_else(|| part.high().map(<[u8]>::to_vec)),
                    older_may_reappear: kind == StreamKind::Delta,
                    ..lost_page(kind, part.id, reason(&e))
                });
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Returns true if bytes are inside of those of a loss.
    fn is_known_lost(&self, lost: &LostPages) -> bool {
        self.lost.iter().any(|known| {
            known.file == lost.file
                && known.bytes.start <= lost.bytes.start
                && lost.bytes.end <= known.bytes.end
        })
    }

    /// Notes bytes of base pages that cannot be read, unless a leaf that was met has them.
    fn lose_range(&mut self, at: PageId, reason: &str, is_index: bool) {
        let lost = lost_page(StreamKind::Base, at, reason.to_string());
        if self.is_known_lost(&lost) {
            return;
        }
        // The keys are somewhere below the index pages that cannot be read.
        let from = self.hidden.iter().map(|(from, _)| from.clone()).min();
        let unbounded = self.hidden.iter().any(|(_, to)| to.is_none());
        let to = self.hidden.iter().filter_map(|(_, to)| to.clone()).max();
        self.lost.push(LostPages {
            from: from.flatten(),
            to: to.filter(|_| !unbounded),
            older_may_reappear: self.is_in_doubt,
            is_index,
            ..lost
        });
    }
}

/// Returns a page as a source; `None` if nothing of it counts.
fn source_of(kind: StreamKind, part: &Delta, page: &Page, order: Order) -> Option<Source> {
    let begin = part.low().map_or(0, |low| position(page, low));
    let first = (begin < page.count()).then(|| page.key(begin))?;
    Some(Source {
        kind,
        id: part.id,
        order,
        low: part.low().map(Arc::from),
        high: part.high().map(Arc::from),
        first,
    })
}

/// Returns the offset of the first block of zeros that has bytes of a page, if the page may have
/// been released: then all blocks inside it are zeros. A page without a whole block inside was
/// released together with its neighbours, and one block at its borders is zeros.
fn released_block(at: u64, len: u32, file: &dyn File) -> Result<Option<u64>> {
    let (begin, end) = (at / BLOCK * BLOCK, at + u64::from(len));
    let whole = (end.next_multiple_of(BLOCK) - begin) as usize;
    let bytes = read_sparse(begin, whole, &|at, len| file.read(at, len))?;
    let blocks = bytes.chunks(BLOCK as usize).zip(0..);
    let blocks = blocks.map(|(block, i)| {
        let offset = begin + i * BLOCK;
        let is_inside = offset >= at && offset + BLOCK <= end;
        (offset, is_inside, block.iter().all(|byte| *byte == 0))
    });
    let blocks: Vec<(u64, bool, bool)> = blocks.collect();
    if blocks
        .iter()
        .any(|(_, is_inside, is_zero)| *is_inside && !is_zero)
    {
        return Ok(None);
    }
    let zeros = blocks.iter().find(|(_, _, is_zero)| *is_zero);
    Ok(zeros.map(|(offset, ..)| *offset))
}

/// Returns the position of the first key that is not below `key`.
fn position(page: &Page, key: &[u8]) -> usize {
    match page.find(key) {
        Ok(i) | Err(i) => i,
    }
}

/// The search of all extents for pages.
#[derive(Default)]
struct Search {
    files: BTreeMap<ExtentId, PathBuf>,
    sources: Vec<Source>,
    /// First key, last key and number of each leaf.
    leaves: Vec<(Vec<u8>, Vec<u8>, u64)>,
    lost: Vec<LostPages>,
    /// Bytes that the device writes at once.
    write_unit: u64,
}

/// Returns true if a page with entries is in the files of a tree. Reads all extents.
pub(crate) fn has_entries(env: &Env, dir: &Path) -> Result<bool> {
    Ok(!Search::of_tree(env, dir)?.sources.is_empty())
}

impl Search {
    /// Searches both streams of a tree.
    fn of_tree(env: &Env, dir: &Path) -> Result<Search> {
        let mut search = Search {
            write_unit: env.fs().info().write_unit as u64,
            ..Search::default()
        };
        search.stream(env, dir, StreamKind::Base)?;
        search.stream(env, dir, StreamKind::Delta)?;
        Ok(search)
    }

    fn stream(&mut self, env: &Env, dir: &Path, kind: StreamKind) -> Result<()> {
        let dir = dir.join(directory(kind));
        let files = match Stream::extent_files(env, &dir) {
            Err(e) if e.is_not_found() => return Ok(()),
            files => files?,
        };
        for (extent, path) in files {
            let file = match env.fs().open(&path) {
                Err(e) if e.is_not_found() => continue,
                file => file?,
            };
            self.extent(kind, extent, &*file)?;
            self.files.insert(extent, path);
        }
        Ok(())
    }

    /// Takes all pages of an extent.
    fn extent(&mut self, kind: StreamKind, extent: ExtentId, file: &dyn File) -> Result<()> {
        // The length of an opened file is a hint. No extent has an offset above 32 bits.
        let mut len = file.allocated().max(file.len()).min(u64::from(u32::MAX));
        let (mut at, mut window) = (EXTENT_HEADER as u64, (0, Bytes::new()));
        let mut hole: Option<u64> = None;
        // Where the last zeros begin, and up to where bytes may be the rest of a page that had the
        // block before, which was released.
        let (mut zeros_from, mut rest_to) = (at, 0);
        while at < len {
            let inside = (at - window.0) as usize;
            if inside + PAGE_HEADER > window.1.len() && window.0 + (window.1.len() as u64) < len {
                let wanted = WINDOW.min((len - at) as usize);
                let bytes = read_sparse(at, wanted, &|at, len| file.read(at, len))?;
                if bytes.len() < wanted {
                    len = at + bytes.len() as u64;
                }
                window = (at, bytes);
            }
            let rest = &window.1[((at - window.0) as usize).min(window.1.len())..];
            let address = ExtentAddress { extent, offset: at };
            let found = len_of_page_at(address, rest).filter(|page| at + u64::from(*page) <= len);
            let Some(page_len) = found else {
                // Zeros are spare space, or were released.
                if rest.first().is_some_and(|byte| *byte != 0) {
                    if at.is_multiple_of(BLOCK) && at - zeros_from >= BLOCK {
                        rest_to = at + BLOCK;
                    }
                    if at >= rest_to {
                        hole.get_or_insert(at);
                    }
                    zeros_from = at + 1;
                }
                at += 1;
                continue;
            };
            let id = PageId {
                extent,
                offset: at as u32,
                len: page_len,
            };
            let bytes = read_sparse(at, page_len as usize, &|at, len| file.read(at, len))?;
            match Page::open(id, &bytes) {
                Ok(page) => {
                    if let Some(begin) = hole.take() {
                        self.lose_hole(kind, extent, begin..at);
                    }
                    self.take(kind, id, &page);
                }
                Err(what) => match released_block(at, page_len, file)? {
                    Some(block) => {
                        (at, zeros_from) = (at + u64::from(page_len), block);
                        continue;
                    }
                    None => {
                        let begin = hole.take().unwrap_or(at);
                        self.lose(kind, extent, begin..at + u64::from(page_len), &what);
                    }
                },
            }
            at += u64::from(page_len);
            zeros_from = at;
        }
        if let Some(begin) = hole {
            self.lose_hole(kind, extent, begin..len);
        }
        Ok(())
    }

    /// Notes that no page verifies in these bytes, unless they are what a sync has added to fill a
    /// unit of the device.
    fn lose_hole(&mut self, kind: StreamKind, extent: ExtentId, bytes: Range<u64>) {
        let is_fill =
            bytes.end.is_multiple_of(self.write_unit) && bytes.end - bytes.start < self.write_unit;
        if !is_fill {
            self.lose(kind, extent, bytes, "no page verifies here");
        }
    }

    fn lose(&mut self, kind: StreamKind, extent: ExtentId, bytes: Range<u64>, what: &str) {
        let reason = format!("{what}; if a page of the newest content was here, it is lost");
        self.lost.push(LostPages {
            older_may_reappear: true,
            ..lost_at(kind, extent, bytes, reason)
        });
    }

    fn take(&mut self, kind: StreamKind, id: PageId, page: &Page) {
        if (page.kind == PageKind::Delta) != (kind == StreamKind::Delta)
            || page.kind == PageKind::Index
            || page.count() == 0
        {
            return;
        }
        if page.kind == PageKind::Leaf {
            let last = page.key(page.count() - 1);
            self.leaves.push((page.key(0), last, page.as_of));
        }
        let rank = match page.kind {
            PageKind::Leaf => LEAF,
            _ => 0,
        };
        let order = (page.as_of, rank);
        self.sources
            .extend(source_of(kind, &Delta::whole(id), page, order));
    }

    fn covers(&mut self) -> Fragments {
        for (_, last, _) in &mut self.leaves {
            last.push(0);
        }
        let pieces = self.leaves.iter().map(|(from, to, as_of)| RangeTombstone {
            from,
            to,
            seq: *as_of,
        });
        Fragments::build(&Cmp::Bytewise, pieces, Some(&[]))
    }
}

impl TreeSalvage {
    /// Reads all pages of a closed tree. Changes nothing. See [`crate::PageTree::salvage`].
    pub(crate) fn open(
        env: &Env,
        dir: &Path,
        options: &crate::TreeOptions,
        keep: crate::recovery::Keep<'_>,
    ) -> Result<TreeSalvage> {
        let e = match Storage::open_salvage(env, dir, options, keep) {
            Ok(storage) => return TreeSalvage::of_tree(storage),
            // The tree is not damaged: a later version wrote it.
            Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
            Err(e) if e.is_damage() => e,
            Err(e) => return Err(e),
        };
        let mut search = Search::of_tree(env, dir)?;
        let reason = format!(
            "the logs of the tree cannot be read ({e}); all pages that verify are kept, the newest first"
        );
        search.lost.insert(
            0,
            LostPages {
                file: PathBuf::from(crate::storage::LOGS),
                older_may_reappear: true,
                reason,
                ..LostPages::default()
            },
        );
        Ok(TreeSalvage {
            covers: search.covers(),
            reader: Reader::Files(env.clone(), search.files),
            sources: search.sources,
            note: None,
            lost: search.lost,
        })
    }

    fn of_tree(storage: Storage) -> Result<TreeSalvage> {
        let view = storage.view();
        let root = view.root;
        let mut walk = Walk {
            storage: &storage,
            view,
            sources: Vec::new(),
            lost: Vec::new(),
            met: BTreeSet::new(),
            hidden: Vec::new(),
            hidden_pages: Vec::new(),
            is_in_doubt: false,
        };
        walk.below(root.id, root.level, None, None)?;
        if !walk.hidden.is_empty() {
            walk.find_leaves()?;
        }
        let (sources, lost) = (walk.sources, walk.lost);
        Ok(TreeSalvage {
            note: Some(storage.note()),
            reader: Reader::Tree(Box::new(storage)),
            covers: Fragments::default(),
            sources,
            lost,
        })
    }

    /// Returns the note of the last write in the tree; `None` if it cannot be read.
    pub fn note(&self) -> Option<&[u8]> {
        self.note.as_deref()
    }

    /// Returns what cannot be read.
    pub fn lost(&self) -> &[LostPages] {
        &self.lost
    }

    /// Writes the entries to a new tree, as one write with a note. Returns their number.
    pub(crate) fn write_to(mut self, storage: &Storage, note: Vec<u8>) -> Result<u64> {
        (self.sources).sort_unstable_by(|a, b| b.first.cmp(&a.first));
        let mut entries = SalvagedEntries {
            salvage: &self.reader,
            covers: &self.covers,
            waiting: self.sources,
            open: Vec::new(),
            heap: BinaryHeap::new(),
            current: None,
            count: 0,
        };
        let prepared = storage.prepare_user_checkpoint(&mut entries, Some(note))?;
        storage.commit_prepared(&prepared)?;
        let count = entries.count;
        if let Reader::Tree(damaged) = &self.reader {
            damaged.abandon()?;
        }
        Ok(count)
    }
}

/// A source whose page is in memory.
struct OpenSource {
    page: Page,
    at: usize,
    end: usize,
    order: Order,
}

/// The entries of all sources, merged.
struct SalvagedEntries<'a> {
    salvage: &'a Reader,
    covers: &'a Fragments,
    /// Sources that are not open yet, the last key first.
    waiting: Vec<Source>,
    open: Vec<Option<OpenSource>>,
    /// The next key of each open source, and the source.
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    current: Option<(Vec<u8>, Kind, Bytes)>,
    count: u64,
}

impl SalvagedEntries<'_> {
    /// Opens the sources that may have the next key.
    fn open_next(&mut self) -> Result<()> {
        while let Some(next) = self.waiting.last() {
            if let Some(Reverse((key, _))) = self.heap.peek()
                && *key < next.first
            {
                break;
            }
            let source = self.waiting.pop().expect("it was seen");
            let page = self.salvage.page(source.kind, source.id)?;
            let at = source.low.as_ref().map_or(0, |low| position(&page, low));
            let high = source.high.as_ref();
            let end = high.map_or(page.count(), |high| position(&page, high));
            let open = OpenSource {
                page,
                at,
                end,
                order: source.order,
            };
            let free = self.open.iter().position(Option::is_none);
            let slot = free.unwrap_or(self.open.len());
            match free {
                Some(slot) => self.open[slot] = Some(open),
                None => self.open.push(Some(open)),
            }
            self.queue(slot);
        }
        Ok(())
    }

    /// Queues the next key of an open source, or closes it.
    fn queue(&mut self, slot: usize) {
        let source = self.open[slot].as_ref().expect("it is open");
        match source.at < source.end {
            true => self.heap.push(Reverse((source.page.key(source.at), slot))),
            false => self.open[slot] = None,
        }
    }
}

impl SortedEntries for SalvagedEntries<'_> {
    fn advance(&mut self) -> Result<bool> {
        loop {
            self.open_next()?;
            let Some(Reverse((key, slot))) = self.heap.pop() else {
                self.current = None;
                return Ok(false);
            };
            let mut best: Option<(Order, u8, Bytes)> = None;
            let mut next = Some(slot);
            while let Some(slot) = next {
                let source = self.open[slot].as_mut().expect("it has a queued key");
                let (at, order) = (source.at, source.order);
                source.at += 1;
                if best.as_ref().is_none_or(|(before, ..)| *before < order) {
                    let kind = source.page.entry(at).kind;
                    best = Some((order, kind, source.page.value(at)));
                }
                self.queue(slot);
                let is_same = |Reverse((other, _)): &Reverse<(Vec<u8>, usize)>| *other == key;
                next = match self.heap.peek().filter(|top| is_same(top)) {
                    Some(_) => self.heap.pop().map(|Reverse((_, slot))| slot),
                    None => None,
                };
            }
            let (order, kind, value) = best.expect("a source has the key");
            // A leaf over the key that is newer, or has the delta page's changes, does not have it.
            let covered = self.covers.newest(&Cmp::Bytewise, &key, SeqNo::MAX);
            if is_delete(kind) || covered.is_some_and(|as_of| (as_of, LEAF) > order) {
                continue;
            }
            let Some(kind) = Kind::from_u8(kind) else {
                let what = format!("an entry has the unknown kind {kind}");
                return Err(Error::new(ErrorKind::Corruption, what));
            };
            self.count += 1;
            self.current = Some((key, kind, value));
            return Ok(true);
        }
    }

    fn key(&self) -> &[u8] {
        &self.current.as_ref().expect("an entry is current").0
    }

    fn kind(&self) -> Kind {
        self.current.as_ref().expect("an entry is current").1
    }

    fn value(&self) -> &[u8] {
        &self.current.as_ref().expect("an entry is current").2
    }
}

#[cfg(test)]
pub(crate) mod tests;
