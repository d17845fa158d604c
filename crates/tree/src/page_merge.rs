//! Merges whole pages of a leaf or an index page. For each key, the merge has the newest entry.
//! Compactions and garbage collections use it.

use crate::mapping::Delta;
use crate::page::{EntryPlace, Page};
use crate::page_source::compare;
use std::cmp::Ordering;

/// A page, and its entries that are still to come.
struct Merged {
    page: Page,
    at: usize,
    end: usize,
    /// Where the next entry is.
    place: EntryPlace,
}

/// The next entry of a page.
#[derive(Clone, Copy)]
struct Next {
    /// The first 8 bytes of its key behind the common prefix, big-endian, padded with zeros. If
    /// those of two keys differ, they order the keys.
    head: u64,
    /// The number of its page. A higher one is newer.
    page: usize,
}

/// An entry of a page: the number of the page among the merged ones, and its place there.
pub(crate) type MergedEntry = (usize, EntryPlace);

/// The merge of pages, the oldest page first. Each key comes once, with its newest entry.
pub(crate) struct PageMerge {
    pages: Vec<Merged>,
    /// Bytes of the prefix that all keys share.
    common: usize,
    /// A heap of the next entries, the first one at the top.
    heap: Vec<Next>,
    /// The entry that the merge is at.
    current: MergedEntry,
    /// Older entries of the same key, the newest one first.
    hidden: Vec<MergedEntry>,
}

impl PageMerge {
    /// Begins before the first entry. Of a delta page, only the entries of its part
    /// count.
    pub fn new<'d>(pages: impl Iterator<Item = (Page, Option<&'d Delta>)>) -> PageMerge {
        let pages = pages.map(|(page, delta)| {
            let position = |key: &[u8]| page.find(key).unwrap_or_else(|i| i);
            let at = delta.and_then(Delta::low).map_or(0, position);
            let high = delta.and_then(Delta::high);
            let end = high.map_or(page.count(), position).max(at);
            Merged {
                page,
                at,
                end,
                place: EntryPlace::default(),
            }
        });
        let mut merge = PageMerge {
            pages: pages.collect(),
            common: 0,
            heap: Vec::new(),
            current: (0, EntryPlace::default()),
            hidden: Vec::new(),
        };
        merge.common = merge.common_prefix();
        for i in 0..merge.pages.len() {
            if let Some(head) = merge.decode(i) {
                merge.heap.push(Next { head, page: i });
            }
        }
        for i in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(i);
        }
        merge
    }

    fn common_prefix(&self) -> usize {
        let Some((first, others)) = self.pages.split_first() else {
            return 0;
        };
        let first = first.page.prefix();
        let common_with = |other: &Merged| {
            let both = first.iter().zip(other.page.prefix());
            both.take_while(|(a, b)| a == b).count()
        };
        let common = others.iter().map(common_with).min();
        common.unwrap_or(first.len())
    }

    /// Decodes the next entry of a page. Returns the head of its key; `None` at the end.
    fn decode(&mut self, page: usize) -> Option<u64> {
        let merged = &mut self.pages[page];
        if merged.at >= merged.end {
            return None;
        }
        merged.place = merged.page.place(merged.at);
        let prefix = &merged.page.prefix()[self.common..];
        let suffix = merged.page.suffix_at(merged.place);
        let mut head = [0; 8];
        if let (true, Some(eight)) = (prefix.is_empty(), suffix.first_chunk::<8>()) {
            head = *eight;
        } else {
            let bytes = prefix.iter().chain(suffix);
            head.iter_mut()
                .zip(bytes)
                .for_each(|(to, from)| *to = *from);
        }
        Some(u64::from_be_bytes(head))
    }

    fn key_of(&self, page: usize) -> (&[u8], &[u8]) {
        let merged = &self.pages[page];
        (merged.page.prefix(), merged.page.suffix_at(merged.place))
    }

    /// Orders by key, and entries of one key by age, the newest one first.
    fn order(&self, a: Next, b: Next) -> Ordering {
        let keys = || compare(self.key_of(a.page), self.key_of(b.page));
        let order = a.head.cmp(&b.head).then_with(keys);
        order.then(b.page.cmp(&a.page))
    }

    fn sift_down(&mut self, mut i: usize) {
        loop {
            let mut child = 2 * i + 1;
            let Some(first) = self.heap.get(child) else {
                return;
            };
            if let Some(second) = self.heap.get(child + 1)
                && self.order(*second, *first).is_lt()
            {
                child += 1;
            }
            if self.order(self.heap[child], self.heap[i]).is_gt() {
                return;
            }
            self.heap.swap(i, child);
            i = child;
        }
    }

    /// Moves the page at the top of the heap to its next entry.
    fn step(&mut self) {
        let page = self.heap[0].page;
        self.pages[page].at += 1;
        match self.decode(page) {
            Some(head) => self.heap[0].head = head,
            None => {
                self.heap.swap_remove(0);
            }
        }
        self.sift_down(0);
    }

    /// Moves to the next key. Returns false at the end.
    pub fn next(&mut self) -> bool {
        self.hidden.clear();
        let Some(first) = self.heap.first().copied() else {
            return false;
        };
        self.current = (first.page, self.pages[first.page].place);
        self.step();
        while let Some(next) = self.heap.first().copied()
            && next.head == first.head
            && compare(self.key_of(next.page), self.key_at(self.current)).is_eq()
        {
            self.hidden.push((next.page, self.pages[next.page].place));
            self.step();
        }
        true
    }

    fn key_at(&self, (page, place): MergedEntry) -> (&[u8], &[u8]) {
        let page = &self.pages[page].page;
        (page.prefix(), page.suffix_at(place))
    }

    /// Writes the current key to `key`.
    pub fn key_into(&self, key: &mut Vec<u8>) {
        let (prefix, suffix) = self.key_at(self.current);
        key.clear();
        key.extend_from_slice(prefix);
        key.extend_from_slice(suffix);
    }

    /// Returns kind and value of the current entry.
    pub fn entry(&self) -> (u8, &[u8]) {
        self.entry_at(self.current)
    }

    fn entry_at(&self, (page, place): MergedEntry) -> (u8, &[u8]) {
        self.pages[page].page.kind_and_value_at(place)
    }

    /// Returns kinds and values of the entries that the current one hides, the newest one first.
    pub fn hidden(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.hidden.iter().map(|at| self.entry_at(*at))
    }

    /// Returns the number of the newest user checkpoint whose changes the pages have.
    pub fn as_of(&self) -> u64 {
        let pages = self.pages.iter().map(|merged| merged.page.as_of);
        pages.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
