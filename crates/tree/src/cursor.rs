//! Reads of the page tree: the way down to a leaf, points, and the merged entries of a range.

use crate::mapping::{Delta, Pages};
use crate::page::Page;
use crate::page_id::PageId;
use crate::page_reads::{LoadedPages, PageRef};
use crate::storage::{Storage, View};
use crate::usage::StreamKind;
use basalt_fs::{Bytes, Result};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

/// An index page on the way to a leaf.
#[derive(Clone)]
pub(crate) struct Step {
    /// The id under which its parent names it.
    pub key: PageId,
    pub page: Page,
    /// The child that the way goes on with.
    pub child: usize,
}

/// The way from the root to a leaf.
#[derive(Clone)]
pub(crate) struct Path {
    /// Index pages, the root first.
    pub steps: Vec<Step>,
    /// The id under which the leaf's parent names it.
    pub leaf: PageId,
}

impl Path {
    /// Returns the first key behind the leaf; `None` for the last leaf.
    pub fn end(&self) -> Option<Vec<u8>> {
        Path::end_below(&self.steps)
    }

    /// Returns the first key behind the index page that names the leaf; `None` for the last one.
    pub fn end_of_parent(&self) -> Option<Vec<u8>> {
        Path::end_below(&self.steps[..self.steps.len().saturating_sub(1)])
    }

    fn end_below(steps: &[Step]) -> Option<Vec<u8>> {
        let mut up = steps.iter().rev();
        up.find_map(|step| {
            let next = step.child + 1;
            (next < step.page.count()).then(|| step.page.key(next))
        })
    }
}

impl Storage {
    /// Returns the way to the leaf that has a key in a view.
    pub fn path(&self, view: &View, key: &[u8]) -> Result<Path> {
        let mut at = view.root.id;
        let mut steps = Vec::with_capacity(view.root.level as usize);
        for level in (1..=view.root.level).rev() {
            let page = self.index_page(view, at, level)?;
            let child = page.child_of(key);
            let below = page.child(child);
            steps.push(Step {
                key: at,
                page,
                child,
            });
            at = below;
        }
        Ok(Path { steps, leaf: at })
    }

    /// Returns an index page by the id under which its parent names it.
    pub fn index_page(&self, view: &View, key: PageId, level: u8) -> Result<Page> {
        let base = self.pages_of(view, key)?.base;
        let page = self.page(StreamKind::Base, base)?;
        self.check_index_page(base, page, level)
    }

    /// Returns the page if it is an index page of a level.
    pub fn check_index_page(&self, base: PageId, page: Page, level: u8) -> Result<Page> {
        match page.level == level && page.kind == crate::page::PageKind::Index {
            true => Ok(page),
            false => Err(self.bad_page(
                StreamKind::Base,
                base,
                &format!(
                    "expected an index page of level {level}, found level {}",
                    page.level
                ),
            )),
        }
    }
}

/// The pages that a lookup still has to search, the newest one first.
type PagesToRead = SmallVec<[PageRef; 9]>;

/// Kind and value of a key, if the tree has it.
pub(crate) type KindAndValue = Option<(u8, Bytes)>;

/// Progress of a lookup among the pages in the cache.
enum Lookup {
    Found(KindAndValue),
    Reads(PagesToRead),
}

impl Storage {
    /// Returns what the pages in the cache have of a key, as long as no older page must be read.
    fn look_up(&self, view: &View, key: &[u8]) -> Result<Lookup> {
        let path = self.path(view, key)?;
        let pages = self.pages_of(view, path.leaf)?;
        let deltas = pages.deltas.iter().rev().filter(|delta| delta.covers(key));
        let deltas = deltas.map(|delta| (StreamKind::Delta, delta.id));
        let refs: PagesToRead = deltas.chain([(StreamKind::Base, pages.base)]).collect();
        for (n, (_, id)) in refs.iter().enumerate() {
            // The first page that must be read brings all older ones, at once.
            let Some(page) = self.cached(*id) else {
                return Ok(Lookup::Reads(refs[n..].into()));
            };
            if let Some(found) = entry_of(&page, key) {
                return Ok(Lookup::Found(Some(found)));
            }
        }
        Ok(Lookup::Found(None))
    }

    /// Returns what the tree has of a key in a view: kind and value of its newest entry.
    pub fn get(&self, view: &View, key: &[u8], fill_cache: bool) -> Result<Option<(u8, Bytes)>> {
        match self.look_up(view, key)? {
            Lookup::Found(found) => Ok(found),
            Lookup::Reads(refs) => {
                let read = self.read_pages(&refs, fill_cache)?;
                Ok(read.iter().find_map(|page| entry_of(page, key)))
            }
        }
    }

    /// Returns the same as [`Storage::get`] for many keys. The pages that are not in the cache are
    /// read as one batch. `admit` is asked for the bytes of such pages before they are read, and of
    /// values in the cache; `None` for a key that it refuses.
    pub fn get_many(
        &self,
        view: &View,
        keys: &[&[u8]],
        fill_cache: bool,
        admit: &mut dyn FnMut(usize) -> bool,
    ) -> Vec<Option<Result<KindAndValue>>> {
        let mut out = Vec::with_capacity(keys.len());
        let mut wanted: BTreeSet<PageRef> = BTreeSet::new();
        let mut waiting: Vec<(usize, PagesToRead)> = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            out.push(match self.look_up(view, key) {
                Err(e) => Some(Err(e)),
                Ok(Lookup::Found(found)) => {
                    let bytes = found.as_ref().map_or(0, |(_, value)| value.len());
                    admit(bytes).then_some(Ok(found))
                }
                Ok(Lookup::Reads(refs)) => {
                    let new = refs.iter().filter(|of| !wanted.contains(of));
                    if admit(new.map(|(_, id)| id.len as usize).sum()) {
                        wanted.extend(refs.iter().copied());
                        waiting.push((i, refs));
                    }
                    None
                }
            });
        }
        let wanted: Vec<PageRef> = wanted.into_iter().collect();
        let read: LoadedPages = match self.read_pages(&wanted, fill_cache) {
            Ok(read) => wanted.iter().map(|(_, id)| *id).zip(read).collect(),
            // Each key finds its own error, or none.
            Err(_) => LoadedPages::new(),
        };
        for (i, refs) in waiting {
            let pages: Option<Vec<&Page>> = refs.iter().map(|(_, id)| read.get(id)).collect();
            out[i] = Some(match pages {
                Some(pages) => Ok(pages.into_iter().find_map(|page| entry_of(page, keys[i]))),
                None => self.get(view, keys[i], fill_cache),
            });
        }
        out
    }
}

impl Storage {
    /// Returns the bytes of the pages of all leaves that have keys of a range.
    pub fn bytes_of_range(&self, view: &View, from: &[u8], to: Option<&[u8]>) -> Result<u64> {
        let mut bytes = 0;
        let mut low = from.to_vec();
        loop {
            let path = self.path(view, &low)?;
            let pages = self.pages_of(view, path.leaf)?;
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

/// A page of a leaf, and the entries of it that count.
struct Source {
    page: Page,
    begin: usize,
    end: usize,
    /// The next entry forward. The one before it is the next entry backward.
    at: usize,
}

/// Up to this many sources, a look at each of them is faster than a heap.
const FEW_SOURCES: usize = 8;

/// The merged entries of a leaf: of several entries of a key, the newest one.
pub(crate) struct LeafCursor {
    /// The base page first, then the delta pages, the newest one last.
    sources: SmallVec<[Source; 5]>,
    /// The source and the number of the current entry.
    current: Option<(usize, usize)>,
    /// A heap of the sources that have an entry in the direction `heaped`, if there are many
    /// sources. The next entry is in the first one.
    heap: Vec<usize>,
    /// The direction that the heap is for, forward if true; `None` if it has to be built.
    heaped: Option<bool>,
}

/// Returns the pages of a leaf, the base page first, if there is one.
pub(crate) fn refs_of(base: Option<PageId>, deltas: &[Delta]) -> Vec<PageRef> {
    let base = base.map(|id| (StreamKind::Base, id));
    let deltas = deltas.iter().map(|delta| (StreamKind::Delta, delta.id));
    base.into_iter().chain(deltas).collect()
}

/// Compares keys that are in two parts each.
fn compare(a: (&[u8], &[u8]), b: (&[u8], &[u8])) -> Ordering {
    if a.0 == b.0 {
        return a.1.cmp(b.1);
    }
    let (left, right) = (a.0.iter().chain(a.1), b.0.iter().chain(b.1));
    left.cmp(right)
}

impl Source {
    fn new(page: Page, low: Option<&[u8]>, high: Option<&[u8]>) -> Source {
        let position = |bound: &[u8]| match page.find(bound) {
            Ok(i) | Err(i) => i,
        };
        let begin = low.map_or(0, position);
        let end = high.map_or(page.count(), position).max(begin);
        Source {
            page,
            begin,
            end,
            at: begin,
        }
    }

    fn key(&self, i: usize) -> (&[u8], &[u8]) {
        (self.page.prefix(), self.page.entry(i).suffix)
    }

    /// Returns the number of the next entry in a direction.
    fn next(&self, forward: bool) -> Option<usize> {
        match forward {
            true => (self.at < self.end).then_some(self.at),
            false => (self.at > self.begin).then(|| self.at - 1),
        }
    }

    fn step(&mut self, forward: bool) {
        match forward {
            true => self.at += 1,
            false => self.at -= 1,
        }
    }
}

impl LeafCursor {
    /// Opens the pages of a leaf.
    pub fn open(storage: &Storage, pages: &Pages) -> Result<LeafCursor> {
        let refs = refs_of(Some(pages.base), &pages.deltas);
        let read = storage.read_pages(&refs, true)?;
        Ok(LeafCursor::new(true, &pages.deltas, read))
    }

    /// Opens delta pages and, if there is one, the base page below them. Pages that `loaded` has
    /// are not read again.
    pub fn of_loaded(
        storage: &Storage,
        base: Option<PageId>,
        deltas: &[Delta],
        loaded: &LoadedPages,
    ) -> Result<LeafCursor> {
        let refs = refs_of(base, deltas);
        let missing: Vec<PageRef> = (refs.iter().copied())
            .filter(|(_, id)| !loaded.contains_key(id))
            .collect();
        let mut read = storage.read_pages(&missing, false)?.into_iter();
        let pages = refs.iter().map(|(_, id)| match loaded.get(id) {
            Some(page) => page.clone(),
            None => read.next().expect("each missing page was read"),
        });
        Ok(LeafCursor::new(base.is_some(), deltas, pages.collect()))
    }

    /// Makes a cursor over pages, the base page first, if there is one.
    fn new(has_base: bool, deltas: &[Delta], pages: Vec<Page>) -> LeafCursor {
        let mut pages = pages.into_iter();
        let base = has_base.then(|| pages.next().expect("the base page was read"));
        let base = base.map(|page| Source::new(page, None, None));
        let mut sources: SmallVec<[Source; 5]> = base.into_iter().collect();
        let deltas = deltas.iter().zip(pages);
        sources.extend(deltas.map(|(delta, page)| Source::new(page, delta.low(), delta.high())));
        LeafCursor {
            sources,
            current: None,
            heap: Vec::new(),
            heaped: None,
        }
    }

    /// Returns the number of the newest user checkpoint whose changes the pages have.
    pub fn as_of(&self) -> u64 {
        let pages = self.sources.iter().map(|source| source.page.as_of);
        pages.max().unwrap_or(0)
    }

    /// Moves to before the first key that is not below `key`.
    pub fn seek(&mut self, key: &[u8]) {
        for source in &mut self.sources {
            let at = match source.page.find(key) {
                Ok(i) | Err(i) => i,
            };
            source.at = at.clamp(source.begin, source.end);
        }
        self.moved();
    }

    fn moved(&mut self) {
        (self.current, self.heaped) = (None, None);
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
    pub fn next(&mut self) -> bool {
        self.advance(true)
    }

    /// Moves to the key before. Returns false at the beginning.
    pub fn prev(&mut self) -> bool {
        self.advance(false)
    }

    fn advance(&mut self, forward: bool) -> bool {
        let first = match self.sources.len() > FEW_SOURCES {
            true => self.top(forward),
            false => (0..self.sources.len())
                .filter(|i| self.sources[*i].next(forward).is_some())
                .reduce(|a, b| {
                    if self.comes_first(b, a, forward) {
                        b
                    } else {
                        a
                    }
                }),
        };
        let Some(first) = first else {
            self.current = None;
            return false;
        };
        let at = (self.sources[first].next(forward)).expect("only such sources are looked at");
        self.current = Some((first, at));
        // All sources with this key move on. Their entries are older.
        if self.heaped.is_some() {
            while let Some(top) = self.heap.first().copied()
                && self.has_key_of(top, (first, at), forward)
            {
                self.sources[top].step(forward);
                if self.sources[top].next(forward).is_none() {
                    self.heap.swap_remove(0);
                }
                self.sift_down(0, forward);
            }
        } else {
            for i in 0..self.sources.len() {
                if self.has_key_of(i, (first, at), forward) {
                    self.sources[i].step(forward);
                }
            }
        }
        true
    }

    /// Returns true if the next entry of a source has the key of an entry of another one.
    fn has_key_of(&self, source: usize, (other, at): (usize, usize), forward: bool) -> bool {
        let source = &self.sources[source];
        source
            .next(forward)
            .is_some_and(|next| compare(source.key(next), self.sources[other].key(at)).is_eq())
    }

    /// Returns true if the next entry of source `a` comes before that of `b`: it has the nearer
    /// key, or the same one and is newer. Both must have an entry.
    fn comes_first(&self, a: usize, b: usize, forward: bool) -> bool {
        let key = |i: usize| {
            let next = self.sources[i].next(forward).expect("the caller checked");
            self.sources[i].key(next)
        };
        let order = compare(key(a), key(b));
        let order = if forward { order } else { order.reverse() };
        order.then(b.cmp(&a)).is_lt()
    }

    /// Returns the source that has the next entry, by the heap.
    fn top(&mut self, forward: bool) -> Option<usize> {
        if self.heaped != Some(forward) {
            let sources = self.sources.iter().enumerate();
            let left = sources.filter(|(_, source)| source.next(forward).is_some());
            self.heap = left.map(|(i, _)| i).collect();
            self.heaped = Some(forward);
            for i in (0..self.heap.len() / 2).rev() {
                self.sift_down(i, forward);
            }
        }
        self.heap.first().copied()
    }

    fn sift_down(&mut self, mut i: usize, forward: bool) {
        loop {
            let children = 2 * i + 1..(2 * i + 3).min(self.heap.len());
            let Some(child) = children.reduce(|a, b| {
                if self.comes_first(self.heap[b], self.heap[a], forward) {
                    b
                } else {
                    a
                }
            }) else {
                return;
            };
            if !self.comes_first(self.heap[child], self.heap[i], forward) {
                return;
            }
            self.heap.swap(i, child);
            i = child;
        }
    }

    /// Returns the current key. There must be one.
    pub fn key(&self) -> Vec<u8> {
        let (source, i) = self.current.expect("the cursor is at an entry");
        self.sources[source].page.key(i)
    }

    /// Appends the current key to `out`. There must be one.
    pub fn key_into(&self, out: &mut Vec<u8>) {
        let (source, i) = self.current.expect("the cursor is at an entry");
        let (prefix, suffix) = self.sources[source].key(i);
        out.extend_from_slice(prefix);
        out.extend_from_slice(suffix);
    }

    /// Returns kind and value of the current entry.
    pub fn entry(&self) -> (u8, Bytes) {
        let (source, i) = self.current.expect("the cursor is at an entry");
        let page = &self.sources[source].page;
        (page.entry(i).kind, page.value(i))
    }
}

/// The entries of the tree in a view, in both directions. `S` is a reference to the storage tier.
pub(crate) struct TreeCursor<S> {
    storage: S,
    view: Arc<View>,
    path: Path,
    leaf: LeafCursor,
}

impl<S: Deref<Target = Storage>> TreeCursor<S> {
    /// Returns a cursor before the first key that is not below `key`.
    pub fn at(storage: S, view: Arc<View>, key: &[u8]) -> Result<TreeCursor<S>> {
        let path = storage.path(&view, key)?;
        let pages = storage.pages_of(&view, path.leaf)?;
        let mut leaf = LeafCursor::open(&storage, &pages)?;
        leaf.seek(key);
        Ok(TreeCursor {
            storage,
            view,
            path,
            leaf,
        })
    }

    /// Moves to before the first key that is not below `key`. Costs nothing but a search if the
    /// current leaf has the key.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        let path = self.storage.path(&self.view, key)?;
        if path.leaf != self.path.leaf {
            let pages = self.storage.pages_of(&self.view, path.leaf)?;
            self.leaf = LeafCursor::open(&self.storage, &pages)?;
        }
        self.path = path;
        self.leaf.seek(key);
        Ok(())
    }

    /// Moves to behind the last key.
    pub fn seek_to_end(&mut self) -> Result<()> {
        let mut at = self.view.root.id;
        let mut steps = Vec::with_capacity(self.view.root.level as usize);
        for level in (1..=self.view.root.level).rev() {
            let page = self.storage.index_page(&self.view, at, level)?;
            let child = page.count() - 1;
            let below = page.child(child);
            steps.push(Step {
                key: at,
                page,
                child,
            });
            at = below;
        }
        let pages = self.storage.pages_of(&self.view, at)?;
        self.leaf = LeafCursor::open(&self.storage, &pages)?;
        self.path = Path { steps, leaf: at };
        self.leaf.seek_last();
        Ok(())
    }

    /// Moves to the next key. Returns false at the end.
    pub fn next(&mut self) -> Result<bool> {
        loop {
            if self.leaf.next() {
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
            if self.leaf.prev() {
                return Ok(true);
            }
            if !self.next_leaf(false)? {
                return Ok(false);
            }
            self.leaf.seek_last();
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
        let pages = self.storage.pages_of(&self.view, at)?;
        self.leaf = LeafCursor::open(&self.storage, &pages)?;
        self.path.leaf = at;
        Ok(true)
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
}
