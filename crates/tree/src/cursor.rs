//! Reads of the page tree: the way down to a leaf, points, and the merged entries of a range.

use crate::leaf_pages::{LeafPages, PagesToRead};
use crate::mapping::Delta;
use crate::page::Page;
use crate::page_format::PageHead;
use crate::page_id::PageId;
use crate::page_reads::{PageRef, PartReads, StoredParts, Want, head_key};
use crate::page_source::{PlaceInSource, Source, SourceBlock, compare};
use crate::path::{Path, Step};
use crate::scan_ahead::ScanAhead;
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_fs::{Bytes, Result};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Kind and value of a key, if the tree has it.
pub(crate) type KindAndValue = Option<(u8, Bytes)>;

/// Progress of a lookup.
enum Lookup {
    /// The entry, if there is one, and the number of the page that has it.
    Found(KindAndValue, usize),
    /// These parts must be read first.
    Needs(Vec<Want>),
}

/// Returns what pages have of a key, the newest one first, as long as nothing must be read for it.
fn look_up(parts: &PartReads<'_>, refs: &[PageRef], key: &[u8]) -> Result<Lookup> {
    for (n, of) in refs.iter().enumerate() {
        let Some(head) = parts.head(*of) else {
            // One batch brings the heads of all older pages, too.
            let missing = refs[n..].iter().filter(|of| parts.head(**of).is_none());
            return Ok(Lookup::Needs(
                missing.map(|of| parts.want_head(*of)).collect(),
            ));
        };
        let head = head?;
        if !head.may_have(key) {
            continue;
        }
        let number = head.block_of(key);
        // The key is most likely in the page, so no older one is read beside it.
        let Some(block) = parts.block(*of, &head, number) else {
            return Ok(Lookup::Needs(vec![Want::Block(*of, head, number)]));
        };
        if let Some(found) = entry_of(&block?, key) {
            return Ok(Lookup::Found(Some(found), n));
        }
    }
    Ok(Lookup::Found(None, refs.len()))
}

impl Storage {
    /// Returns what the tree has of a key in a view: kind and value of its newest entry. The caller
    /// pays for merges if its reads fill the cache.
    pub fn get(&self, view: &View, key: &[u8], fill_cache: bool) -> Result<Option<(u8, Bytes)>> {
        self.get_by(view, key, PartReads::new(self, fill_cache))
    }

    /// Returns the same as [`Storage::get`], by reads of its caller.
    pub fn get_by(
        &self,
        view: &View,
        key: &[u8],
        mut parts: PartReads<'_>,
    ) -> Result<Option<(u8, Bytes)>> {
        let searched = self.searched_pages(view, key)?;
        let refs = &searched.refs;
        loop {
            match look_up(&parts, refs, key)? {
                Lookup::Found(found, page) => {
                    // Without delta pages, the lookup would have read one page.
                    let has_spared = page + 1 < refs.len() && found.is_some();
                    let reads = parts.delta_reads.saturating_sub(u64::from(has_spared));
                    if reads > 0 {
                        let (page, cost) = searched.merge();
                        self.paid.note(page, cost, reads);
                    }
                    return Ok(found);
                }
                Lookup::Needs(wants) => parts.read(wants),
            }
        }
    }

    /// Returns the same as [`Storage::get`] for many keys. What is not in the cache is read as
    /// batches, of heads and of blocks. `admit` is asked for the bytes before they are read, and
    /// for those of values in the cache; `None` for a key that it refuses.
    pub fn get_many(
        &self,
        view: &View,
        keys: &[&[u8]],
        fill_cache: bool,
        admit: &mut dyn FnMut(usize) -> bool,
    ) -> Vec<Option<Result<KindAndValue>>> {
        let mut out: Vec<Option<Result<KindAndValue>>> = Vec::with_capacity(keys.len());
        let mut waiting: Vec<(usize, PagesToRead)> = Vec::with_capacity(keys.len());
        for (i, key) in keys.iter().enumerate() {
            out.push(None);
            match self.searched_pages(view, key) {
                Ok(searched) => waiting.push((i, searched.refs)),
                Err(e) => out[i] = Some(Err(e)),
            }
        }
        let mut parts = PartReads::new(self, fill_cache);
        let mut is_first = true;
        while !waiting.is_empty() {
            let (mut wanted, mut seen) = (Vec::new(), BTreeSet::new());
            waiting.retain(|(i, refs)| match look_up(&parts, refs, keys[*i]) {
                Err(e) => {
                    out[*i] = Some(Err(e));
                    false
                }
                Ok(Lookup::Found(found, _)) => {
                    let bytes = found.as_ref().map_or(0, |(_, value)| value.len());
                    // What was read has been admitted with its block.
                    if !is_first || admit(bytes) {
                        out[*i] = Some(Ok(found));
                    }
                    false
                }
                Ok(Lookup::Needs(wants)) => {
                    let new = wants.iter().filter(|want| !seen.contains(&want.key()));
                    let is_admitted = admit(new.map(Want::bytes).sum());
                    if is_admitted {
                        for want in wants {
                            if seen.insert(want.key()) {
                                wanted.push(want);
                            }
                        }
                    }
                    is_admitted
                }
            });
            if !wanted.is_empty() {
                parts.read(wanted);
            }
            is_first = false;
        }
        out
    }
}

impl Storage {
    /// Returns the bytes of the pages of all leaves that have keys of a range.
    pub fn bytes_of_range(&self, view: &View, from: &[u8], to: Option<&[u8]>) -> Result<u64> {
        let mut bytes = 0;
        let mut low = from.to_vec();
        let mut above = None;
        loop {
            let path = self.path(view, &low)?;
            let mut pages = self.pages_of(view, path.leaf)?;
            let parent = path.steps.last().map(|step| step.key);
            if parent != above
                && let Some(parent) = parent
            {
                // Those of an index page count with its first leaf.
                pages.deltas.extend(self.index_deltas(view, parent));
                above = Some(parent);
            }
            let deltas = pages.deltas.iter().map(|delta| u64::from(delta.id.len));
            bytes += u64::from(pages.base.len) + deltas.sum::<u64>();
            match path.end() {
                Some(end) if to.is_none_or(|to| &end[..] < to) => low = end,
                _ => return Ok(bytes),
            }
        }
    }
}

/// Returns kind and value of a key in a page.
fn entry_of(page: &Page, key: &[u8]) -> Option<(u8, Bytes)> {
    let i = page.find(key).ok()?;
    Some((page.entry(i).kind, page.value(i)))
}

/// Most blocks that a scan reads ahead of a page.
const MOST_AHEAD: usize = 64;

/// Up to this many sources are kept sorted. A source often has several entries in a row, and then
/// one comparison finds that it stays the first one.
const FEW_SOURCES: usize = 16;

/// After this many entries in a row from one source, a search finds how many more follow. They are
/// not compared with those of other sources.
const RUN_FROM: usize = 3;

/// Most bytes of blocks that the first read of a scan brings, up to a quarter of a page. For the
/// device, they cost about as much as one block.
const FIRST_READ: usize = 16 << 10;

/// The merged entries of a leaf: of several entries of a key, the newest one.
pub(crate) struct LeafCursor {
    /// The base page first, then the delta pages, the newest one last.
    sources: SmallVec<[Source; 5]>,
    /// The current entry and its source.
    current: Option<(usize, PlaceInSource)>,
    /// The sources that have an entry in the direction `ordered`. The next entry is in the first
    /// one. They are sorted by their next entries; many sources are a heap.
    order: SmallVec<[usize; FEW_SOURCES]>,
    /// The direction that the order is for, forward if true; `None` if it has to be found.
    ordered: Option<bool>,
    /// The direction in which the next entries of all sources are loaded.
    ready: Option<bool>,
    /// Number of the next entries, forward, that are in the first source and need no comparison.
    run: usize,
    /// How many times in a row the first source stayed the first one.
    stayed: usize,
    /// The next key of the second source, in memory that is used again.
    next_key: Vec<u8>,
    /// Blocks of the largest page that the next read of blocks brings.
    ahead: usize,
    /// What reads of delta pages pay for, if the cursor reads for a reader
    /// ([`LeafPages::merge`]).
    merge: Option<(PageId, u64)>,
    /// True if what is read goes into the cache.
    fill_cache: bool,
    /// True if reads of delta pages pay for merges.
    pays: bool,
}

/// How a leaf is opened.
#[derive(Clone, Copy)]
pub(crate) struct LeafReads<'a> {
    /// Blocks of the largest page that the first read of blocks brings.
    pub ahead: usize,
    /// If true, blocks that are read go into the cache.
    pub fill_cache: bool,
    /// If true, reads of delta pages pay for merges.
    pub pays: bool,
    /// What was read already of the pages.
    pub stored: Option<&'a StoredParts>,
    /// Heads of pages that several leaves share.
    pub heads: &'a [(PageRef, PageHead)],
}

impl LeafReads<'_> {
    /// Returns how a scan opens its first leaf.
    pub fn first(fill_cache: bool) -> Self {
        LeafReads {
            ahead: 1,
            fill_cache,
            pays: fill_cache,
            stored: None,
            heads: &[],
        }
    }
}

/// Blocks that a cursor loads.
struct BlocksToLoad {
    source: usize,
    /// The block of the next entry.
    needed: usize,
    /// It, and those that are read with it.
    range: Range<usize>,
}

/// Returns the pages of a leaf, the base page first, if there is one.
pub(crate) fn refs_of(base: Option<PageId>, deltas: &[Delta]) -> Vec<PageRef> {
    let base = base.map(|id| (StreamKind::Base, id));
    let deltas = deltas.iter().map(|delta| (StreamKind::Delta, delta.id));
    base.into_iter().chain(deltas).collect()
}

/// Returns heads of pages, in their order.
fn read_heads(parts: &mut PartReads<'_>, refs: &[PageRef]) -> Result<Vec<PageHead>> {
    let missing = refs.iter().filter(|of| parts.head(**of).is_none());
    let missing: Vec<Want> = missing.map(|of| parts.want_head(*of)).collect();
    if !missing.is_empty() {
        parts.read(missing);
    }
    // Between the two looks, the cache may drop a head.
    let heads = refs.iter().map(|of| {
        if let Some(head) = parts.head(*of) {
            return head;
        }
        parts.read(vec![parts.want_head(*of)]);
        parts
            .head(*of)
            .expect("a part that was read is there, or its error")
    });
    heads.collect()
}

impl LeafCursor {
    /// Opens the pages of a leaf, whose blocks are read when they are needed.
    pub fn open(storage: &Storage, leaf: &LeafPages, how: LeafReads<'_>) -> Result<LeafCursor> {
        let pages = &leaf.pages;
        let refs = refs_of(Some(pages.base), &pages.deltas);
        let mut parts = PartReads::paid(storage, how.fill_cache, how.pays);
        for (of, head) in how.heads.iter().filter(|(of, _)| refs.contains(of)) {
            parts.give_head(*of, head);
        }
        let mut whole: SmallVec<[Option<Source>; 5]> = SmallVec::new();
        for (n, of) in refs.iter().enumerate() {
            // Of a page that several leaves share, each of them needs little.
            let is_shared = n > 0 && pages.deltas[n - 1].part.is_some();
            let stored = how.stored.and_then(|stored| stored.get(&head_key(of.1)));
            // A damaged index page may name a page at the same place, with another length.
            let stored = stored.filter(|stored| stored.len() == of.1.len as usize);
            whole.push(match stored {
                Some(stored) if !how.fill_cache && !is_shared => {
                    let (head, page) = parts.open_whole(*of, stored)?;
                    Some(Source::of_page(*of, head, page))
                }
                Some(stored) => {
                    parts.give(*of, stored.clone());
                    None
                }
                None => None,
            });
        }
        let others = refs.iter().zip(&whole).filter(|(_, whole)| whole.is_none());
        let others: SmallVec<[PageRef; 5]> = others.map(|(of, _)| *of).collect();
        let mut heads = read_heads(&mut parts, &others)?.into_iter();
        let sources = refs.iter().zip(whole).map(|(of, whole)| {
            whole.unwrap_or_else(|| {
                let head = heads.next().expect("one for each of the others");
                Source::of_head(*of, head, parts.whole(*of))
            })
        });
        let mut cursor = LeafCursor::new(sources.collect());
        cursor.ahead = how.ahead;
        cursor.merge = Some(leaf.merge);
        (cursor.fill_cache, cursor.pays) = (how.fill_cache, how.pays);
        for (source, delta) in cursor.sources[1..].iter_mut().zip(&pages.deltas) {
            source.bound(delta.part.as_deref());
            if let Some(stored) = how.stored.filter(|_| delta.part.is_some()) {
                source.give_blocks(stored, &mut parts);
            }
        }
        cursor.note_reads(&parts);
        Ok(cursor)
    }

    /// Makes a cursor over pages, the base page first, if there is one.
    fn new(sources: SmallVec<[Source; 5]>) -> LeafCursor {
        LeafCursor {
            sources,
            current: None,
            order: SmallVec::new(),
            ordered: None,
            ready: None,
            run: 0,
            stayed: 0,
            next_key: Vec::new(),
            ahead: 1,
            merge: None,
            fill_cache: true,
            pays: true,
        }
    }

    /// Notes what was read of delta pages.
    fn note_reads(&self, parts: &PartReads<'_>) {
        if let Some((leaf, cost)) = self.merge {
            parts.storage.paid.note(leaf, cost, parts.delta_reads);
        }
    }

    /// Loads the needed blocks of sources. If one must be read, the others of its range are read
    /// with it, and opened when they are needed.
    fn load(&mut self, parts: &mut PartReads<'_>, of: &[BlocksToLoad]) -> Result<()> {
        let (mut wants, mut ahead, mut of_ahead) = (Vec::new(), Vec::new(), Vec::new());
        for BlocksToLoad {
            source,
            needed,
            range,
        } in of
        {
            let at = &mut self.sources[*source];
            let found = match (&at.blocks[*needed], &at.whole) {
                (SourceBlock::Loaded(_), _) => continue,
                (SourceBlock::Stored(stored), _) => {
                    Some(parts.block_of_stored(at.of, &at.head, *needed, stored))
                }
                (SourceBlock::Missing, Some(whole)) => {
                    Some(parts.block_of_whole(at.of, &at.head, *needed, whole))
                }
                (SourceBlock::Missing, None) => parts.block(at.of, &at.head, *needed),
            };
            if let Some(page) = found {
                at.blocks[*needed] = SourceBlock::Loaded(page?);
                continue;
            }
            wants.push(Want::Block(at.of, at.head.clone(), *needed));
            for block in range.clone().filter(|block| block != needed) {
                let is_missing = matches!(at.blocks[block], SourceBlock::Missing);
                if is_missing && !parts.storage.has_cached_block(at.of, &at.head, block) {
                    ahead.push(Want::Block(at.of, at.head.clone(), block));
                    of_ahead.push((*source, block));
                }
            }
        }
        if wants.is_empty() {
            return Ok(());
        }
        let stored = parts.read_ahead(wants, ahead);
        for ((source, block), stored) in of_ahead.into_iter().zip(stored) {
            // A block that cannot be read is read again when it is needed, for its error.
            if let Some(stored) = stored {
                self.sources[source].blocks[block] = SourceBlock::Stored(stored);
            }
        }
        for BlocksToLoad { source, needed, .. } in of {
            let at = &mut self.sources[*source];
            if !matches!(at.blocks[*needed], SourceBlock::Loaded(_)) {
                let page = parts.read_block(at.of, &at.head, *needed)?;
                at.blocks[*needed] = SourceBlock::Loaded(page);
            }
        }
        Ok(())
    }

    /// Loads the blocks of the next entries of all sources.
    fn make_ready(&mut self, storage: &Storage, forward: bool) -> Result<()> {
        if self.ready == Some(forward) {
            return Ok(());
        }
        let all: SmallVec<[usize; 16]> = (0..self.sources.len()).collect();
        self.load_next(storage, &all, forward)?;
        self.ready = Some(forward);
        Ok(())
    }

    /// Loads the blocks of the next entries of some sources.
    fn load_next(&mut self, storage: &Storage, of: &[usize], forward: bool) -> Result<()> {
        let largest = self.sources.iter().map(Source::stored_blocks).max();
        let largest = largest.unwrap_or(1).max(1);
        // A border at the end of a loaded block leads to the next one.
        loop {
            let mut blocks: SmallVec<[BlocksToLoad; 4]> = SmallVec::new();
            for i in of {
                if let Some(needed) = self.sources[*i].missing(forward) {
                    let source = &self.sources[*i];
                    // Of a small page, a scan needs fewer blocks.
                    let ahead = (self.ahead * source.stored_blocks()).div_ceil(largest);
                    blocks.push(BlocksToLoad {
                        source: *i,
                        needed,
                        range: source.ahead(needed, ahead, forward),
                    });
                }
            }
            if blocks.is_empty() {
                return Ok(());
            }
            let mut parts = PartReads::paid(storage, self.fill_cache, self.pays);
            self.load(&mut parts, &blocks)?;
            self.note_reads(&parts);
        }
    }

    /// Moves to before the first key that is not below `key`.
    pub fn seek(&mut self, storage: &Storage, key: &[u8]) -> Result<()> {
        self.moved();
        let first = FIRST_READ.min(storage.options.page_bytes / 4);
        let most = (first / storage.options.block_bytes).max(1);
        let sources = self.sources.iter().enumerate();
        let blocks = sources.map(|(source, at)| {
            let range = at.first_blocks(key, most);
            BlocksToLoad {
                source,
                needed: range.start,
                range,
            }
        });
        let blocks: SmallVec<[BlocksToLoad; 4]> = blocks.collect();
        self.ahead = self.ahead.max(most);
        let mut parts = PartReads::paid(storage, self.fill_cache, self.pays);
        self.load(&mut parts, &blocks)?;
        self.note_reads(&parts);
        for source in &mut self.sources {
            source.at = source.find(key).clamp(source.begin, source.end);
        }
        Ok(())
    }

    fn moved(&mut self) {
        (self.current, self.ordered, self.ready) = (None, None, None);
        (self.run, self.stayed) = (0, 0);
    }

    /// Moves to before the first key.
    pub fn seek_first(&mut self) {
        self.sources.iter_mut().for_each(|s| s.at = s.begin);
        self.moved();
    }

    /// Moves to behind the last key.
    pub fn seek_last(&mut self) {
        self.sources.iter_mut().for_each(|s| s.at = s.end);
        self.moved();
    }

    /// Moves to the next key. Returns false at the end.
    pub fn next(&mut self, storage: &Storage) -> Result<bool> {
        self.advance(storage, true)
    }

    /// Moves to the key before. Returns false at the beginning.
    pub fn prev(&mut self, storage: &Storage) -> Result<bool> {
        self.advance(storage, false)
    }

    #[inline]
    fn advance(&mut self, storage: &Storage, forward: bool) -> Result<bool> {
        if forward && self.run > 0 {
            self.run -= 1;
            let first = self.order[0];
            self.current = Some((first, self.sources[first].step_in_run()));
            return Ok(true);
        }
        self.merge_next(storage, forward)
    }

    /// Moves to the next entry as [`LeafCursor::advance`] does, and compares the sources for it.
    fn merge_next(&mut self, storage: &Storage, forward: bool) -> Result<bool> {
        self.run = 0;
        self.make_ready(storage, forward)?;
        let Some(first) = self.top(forward) else {
            self.current = None;
            return Ok(false);
        };
        let at = self.sources[first].next_place();
        self.current = Some((first, at));
        self.step_top(storage, forward)?;
        // All sources with this key move on. Their entries are older. If the same source is the
        // first one again, no other one has the key.
        while let Some(top) = self.order.first().copied()
            && top != first
            && self.has_key_of(top, (first, at))
        {
            self.step_top(storage, forward)?;
        }
        let has_stayed = forward && self.order.first() == Some(&first);
        self.stayed = if has_stayed { self.stayed + 1 } else { 0 };
        if self.stayed >= RUN_FROM {
            self.begin_run();
        }
        Ok(true)
    }

    /// Finds out how many of the next entries are in the first source.
    fn begin_run(&mut self) {
        self.stayed = 0;
        let first = &self.sources[self.order[0]];
        self.run = match self.order.get(1) {
            // A heap does not tell which source is the second one.
            Some(_) if self.sources.len() > FEW_SOURCES => 0,
            None => first.run_before(None),
            Some(second) => {
                let (prefix, suffix) = self.sources[*second].next_key();
                self.next_key.clear();
                self.next_key.extend_from_slice(prefix);
                self.next_key.extend_from_slice(suffix);
                first.run_before(Some(&self.next_key))
            }
        };
    }

    /// Moves the first source to its next entry, and to its new place in the order.
    fn step_top(&mut self, storage: &Storage, forward: bool) -> Result<()> {
        let top = self.order[0];
        self.step(storage, top, forward)?;
        let has_ended = self.sources[top].next(forward).is_none();
        let is_heap = self.sources.len() > FEW_SOURCES;
        match (has_ended, is_heap) {
            (true, true) => {
                self.order.swap_remove(0);
                self.sift_down(0, forward);
            }
            (true, false) => {
                self.order.remove(0);
            }
            (false, true) => self.sift_down(0, forward),
            (false, false) => {
                let mut i = 0;
                while i + 1 < self.order.len()
                    && self.comes_first(self.order[i + 1], self.order[i], forward)
                {
                    self.order.swap(i, i + 1);
                    i += 1;
                }
            }
        }
        Ok(())
    }

    /// Moves a source to its next entry, and loads the block of the one behind it.
    fn step(&mut self, storage: &Storage, source: usize, forward: bool) -> Result<()> {
        self.sources[source].step(forward);
        if self.sources[source].missing(forward).is_none() {
            return Ok(());
        }
        // A scan that goes on reads more at once. After an error, the sources are not ready, and
        // have no order.
        self.ahead = (2 * self.ahead).min(MOST_AHEAD);
        let ordered = self.ordered.take();
        self.ready = None;
        self.load_next(storage, &[source], forward)?;
        (self.ready, self.ordered) = (Some(forward), ordered);
        Ok(())
    }

    /// Returns true if the next entry of a source has the key of an entry of another one.
    fn has_key_of(&self, source: usize, (other, at): (usize, PlaceInSource)) -> bool {
        compare(self.sources[source].next_key(), self.sources[other].key(at)).is_eq()
    }

    /// Returns true if the next entry of source `a` comes before that of `b`: it has the nearer
    /// key, or the same one and is newer. Both must have an entry.
    fn comes_first(&self, a: usize, b: usize, forward: bool) -> bool {
        let order = compare(self.sources[a].next_key(), self.sources[b].next_key());
        let order = if forward { order } else { order.reverse() };
        order.then(b.cmp(&a)).is_lt()
    }

    /// Returns the source that has the next entry.
    fn top(&mut self, forward: bool) -> Option<usize> {
        if self.ordered != Some(forward) {
            let sources = self.sources.iter().enumerate();
            let left = sources.filter(|(_, source)| source.next(forward).is_some());
            let mut order: SmallVec<[usize; FEW_SOURCES]> = left.map(|(i, _)| i).collect();
            // What is sorted is a heap, too.
            order.sort_unstable_by(|a, b| match self.comes_first(*a, *b, forward) {
                true => Ordering::Less,
                false => Ordering::Greater,
            });
            self.order = order;
            self.ordered = Some(forward);
        }
        self.order.first().copied()
    }

    fn sift_down(&mut self, mut i: usize, forward: bool) {
        loop {
            let children = 2 * i + 1..(2 * i + 3).min(self.order.len());
            let Some(child) = children.reduce(|a, b| {
                if self.comes_first(self.order[b], self.order[a], forward) {
                    b
                } else {
                    a
                }
            }) else {
                return;
            };
            if !self.comes_first(self.order[child], self.order[i], forward) {
                return;
            }
            self.order.swap(i, child);
            i = child;
        }
    }

    /// Returns the current key. There must be one.
    pub fn key(&self) -> Vec<u8> {
        let (source, i) = self.current.expect("the cursor is at an entry");
        let (prefix, suffix) = self.sources[source].key(i);
        [prefix, suffix].concat()
    }

    /// Appends the current key to `out`. There must be one.
    pub fn key_into(&self, out: &mut Vec<u8>) {
        let (source, i) = self.current.expect("the cursor is at an entry");
        let (prefix, suffix) = self.sources[source].key(i);
        out.extend_from_slice(prefix);
        out.extend_from_slice(suffix);
    }

    /// Returns the bytes of key and value of the current entry. There must be one.
    pub fn entry_len(&self) -> usize {
        let (source, i) = self.current.expect("the cursor is at an entry");
        self.sources[source].entry_len(i)
    }

    /// Returns kind and value of the current entry.
    pub fn entry(&self) -> (u8, Bytes) {
        let (source, i) = self.current.expect("the cursor is at an entry");
        self.sources[source].entry(i)
    }

    /// Returns the same as [`LeafCursor::entry`], without a count of the value's readers.
    pub fn entry_ref(&self) -> (u8, &[u8]) {
        let (source, i) = self.current.expect("the cursor is at an entry");
        self.sources[source].entry_ref(i)
    }
}

/// The entries of the tree in a view, in both directions. `S` is a reference to the storage tier.
pub(crate) struct TreeCursor<S> {
    storage: S,
    view: Arc<View>,
    path: Path,
    leaf: LeafCursor,
    scan: ScanAhead,
    fill_cache: bool,
}

impl<S: Deref<Target = Storage>> TreeCursor<S> {
    /// Returns a cursor before the first key that is not below `key`. Without `fill_cache`, nothing
    /// that it reads goes into the cache, but for index pages.
    pub fn at(storage: S, view: Arc<View>, key: &[u8], fill_cache: bool) -> Result<TreeCursor<S>> {
        let path = storage.path(&view, key)?;
        let pages = storage.leaf_pages(&view, &path)?;
        let first = LeafReads::first(fill_cache);
        let mut leaf = LeafCursor::open(&storage, &pages, first)?;
        leaf.seek(&storage, key)?;
        Ok(TreeCursor {
            storage,
            view,
            path,
            leaf,
            scan: ScanAhead::new(true),
            fill_cache,
        })
    }

    /// Moves to before the first key that is not below `key`. Costs nothing but a search if the
    /// current leaf has the key.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        let path = self.storage.path(&self.view, key)?;
        if path.leaf != self.path.leaf {
            let pages = self.storage.leaf_pages(&self.view, &path)?;
            let first = LeafReads::first(self.fill_cache);
            self.leaf = LeafCursor::open(&self.storage, &pages, first)?;
        }
        self.jumped_to(path);
        (self.leaf.ahead, self.leaf.fill_cache) = (1, self.fill_cache);
        self.leaf.seek(&self.storage, key)
    }

    /// Moves to behind the last key.
    pub fn seek_to_end(&mut self) -> Result<()> {
        let path = self.storage.path_to_end(&self.view)?;
        let pages = self.storage.leaf_pages(&self.view, &path)?;
        let first = LeafReads::first(self.fill_cache);
        self.leaf = LeafCursor::open(&self.storage, &pages, first)?;
        self.jumped_to(path);
        self.leaf.seek_last();
        Ok(())
    }

    /// Notes that a new scan begins at the leaf of a path.
    fn jumped_to(&mut self, path: Path) {
        self.path = path;
        self.scan = ScanAhead::new(true);
    }

    /// Moves to the next key. Returns false at the end.
    pub fn next(&mut self) -> Result<bool> {
        loop {
            if self.leaf.next(&self.storage)? {
                self.note_entry(true);
                return Ok(true);
            }
            if !self.next_leaf(true)? {
                return Ok(false);
            }
            self.leaf.seek_first();
        }
    }

    /// Moves to the key before. Returns false at the beginning.
    pub fn prev(&mut self) -> Result<bool> {
        loop {
            if self.leaf.prev(&self.storage)? {
                self.note_entry(false);
                return Ok(true);
            }
            if !self.next_leaf(false)? {
                return Ok(false);
            }
            self.leaf.seek_last();
        }
    }

    /// Notes that the scan returns the current entry.
    #[inline]
    fn note_entry(&mut self, forward: bool) {
        if self.scan.is_short() {
            let bytes = self.leaf.entry_len();
            (self.scan).note_entry(&self.storage, &self.view, &self.path, forward, bytes);
        }
    }

    /// Opens the next leaf, or the previous one if `forward` is false. Returns false at the end.
    fn next_leaf(&mut self, forward: bool) -> Result<bool> {
        let steps = &mut self.path.steps;
        let can_move = |step: &Step| match forward {
            true => step.child + 1 < step.page.count(),
            false => step.child > 0,
        };
        let Some(depth) = steps.iter().rposition(can_move) else {
            return Ok(false);
        };
        // After an error, the next seek opens a leaf in any case.
        self.path.leaf = PageId::NONE;
        let step = &mut steps[depth];
        match forward {
            true => step.child += 1,
            false => step.child -= 1,
        }
        let mut at = step.page.child(step.child);
        for i in depth + 1..steps.len() {
            let level = (steps.len() - i) as u8;
            let page = self.storage.index_page(&self.view, at, level)?;
            let child = if forward { 0 } else { page.count() - 1 };
            let below = page.child(child);
            steps[i] = Step {
                key: at,
                page,
                child,
            };
            at = below;
        }
        self.path.leaf = at;
        (self.scan).go_on(&self.storage, &self.view, &self.path, forward);
        let opened = (self.storage.leaf_pages(&self.view, &self.path)).and_then(|pages| {
            let how = LeafReads {
                ahead: (2 * self.leaf.ahead).min(MOST_AHEAD),
                fill_cache: self.fill_cache && self.scan.fills_cache(&self.storage, &pages),
                pays: self.fill_cache,
                stored: self.scan.parts(),
                heads: self.scan.heads(),
            };
            LeafCursor::open(&self.storage, &pages, how)
        });
        match opened {
            Ok(leaf) => {
                self.leaf = leaf;
                Ok(true)
            }
            Err(e) => {
                self.path.leaf = PageId::NONE;
                Err(e)
            }
        }
    }

    /// Returns the current key. There must be one.
    pub fn key(&self) -> Vec<u8> {
        self.leaf.key()
    }

    /// Appends the current key to `out`. There must be one.
    pub fn key_into(&self, out: &mut Vec<u8>) {
        self.leaf.key_into(out);
    }

    /// Returns kind and value of the current entry.
    pub fn entry(&self) -> (u8, Bytes) {
        self.leaf.entry()
    }

    /// Returns the same as [`TreeCursor::entry`], without a count of the value's readers.
    pub fn entry_ref(&self) -> (u8, &[u8]) {
        self.leaf.entry_ref()
    }
}

#[cfg(test)]
mod tests;
