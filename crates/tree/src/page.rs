//! Entries of pages in memory: a page, or a block of one.

use crate::page_id::{PAGE_ID_LEN, PageId};
use basalt_fs::{AlignedBuf, Bytes, Lifetime};
use basalt_kv::encoding::get_varint;
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};
use std::cmp::Ordering;
use std::ops::Range;

/// Bytes of a slot: the first bytes of an entry's key behind the prefix, and the entry's offset. A
/// search reads the slots, which lie together, and seldom an entry.
const SLOT: usize = 8;
/// Bytes that a cached page has behind its body.
const CACHED_META: usize = 2 + 2 * 4 + PAGE_ID_LEN + 8;

/// The kinds of pages. The numbers are persisted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum PageKind {
    Leaf = 1,
    Delta = 2,
    Index = 3,
}

impl PageKind {
    pub fn of_number(n: u8) -> Option<PageKind> {
        [PageKind::Leaf, PageKind::Delta, PageKind::Index]
            .into_iter()
            .find(|kind| *kind as u8 == n)
    }
}

/// An entry of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry<'a> {
    /// The key without the page's prefix.
    pub suffix: &'a [u8],
    pub kind: u8,
    pub value: &'a [u8],
}

/// Where an entry is in a page.
#[derive(Clone, Copy, Default)]
pub(crate) struct EntryPlace {
    suffix: u32,
    value: u32,
    end: u32,
    kind: u8,
}

/// What the header of a page says about all of its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageMeta {
    pub kind: PageKind,
    pub level: u8,
    /// The id under which the mapping table has the page; `None` for its own.
    pub mapping: Option<PageId>,
    /// Number of the newest user checkpoint whose changes the page has.
    pub as_of: u64,
}

/// Entries of a page, read and verified: all of them, or those of a block.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub kind: PageKind,
    pub level: u8,
    /// The id under which the mapping table has the page; `None` for its own.
    pub mapping: Option<PageId>,
    /// Number of the newest user checkpoint whose changes the page has.
    pub as_of: u64,
    /// The common prefix of all keys, the entries, the offset of each entry, and the other fields,
    /// as a cache keeps them.
    body: Bytes,
    /// Bytes of the prefix.
    prefix: usize,
    /// Offset of the slots in the body.
    slots: usize,
}

/// Collects verified entries of a page.
pub(crate) struct PageAssembler {
    meta: PageMeta,
    body: AlignedBuf,
    prefix: usize,
    slots: Vec<u8>,
    /// Where the suffix of the last entry is.
    last: Option<Range<usize>>,
}

impl PageAssembler {
    /// Makes one for `count` entries of `bytes` bytes, whose keys begin with `prefix`.
    pub fn new(meta: PageMeta, prefix: &[u8], bytes: usize, count: usize) -> PageAssembler {
        // An entry has at least 3 bytes. A damaged page may claim more entries.
        let slots = count.min(bytes / 3) * SLOT;
        let len = prefix.len() + bytes + slots + CACHED_META;
        let mut body = AlignedBuf::with_lifetime(len, Lifetime::Cached);
        body.extend_from_slice(prefix);
        PageAssembler {
            meta,
            body,
            prefix: prefix.len(),
            slots: Vec::with_capacity(slots),
            last: None,
        }
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.slots.len() / SLOT
    }

    /// Adds the entries of a block, which have exactly these bytes, and no key below `low`, which
    /// is without the prefix.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn add(&mut self, entries: &[u8], low: &[u8]) -> Result<(), String> {
        let mut at = self.body.len();
        self.body.extend_from_slice(entries);
        while at < self.body.len() {
            let i = self.count();
            let bad = |what: &str| format!("entry {i} of the page {what}");
            let (entry, behind) = parse(&self.body, at).ok_or_else(|| bad("does not decode"))?;
            let last = self.last.clone().map(|last| &self.body[last]);
            if last.is_some_and(|last| last >= entry.suffix) || entry.suffix < low {
                return Err(bad("is out of order"));
            }
            let key_len = self.prefix + entry.suffix.len();
            if key_len > MAX_KEY_LEN || entry.value.len() as u64 > MAX_VALUE_LEN as u64 + 8 {
                return Err(bad("exceeds the maximum entry length"));
            }
            if self.meta.kind == PageKind::Index && PageId::from_bytes(entry.value).is_none() {
                return Err(bad("has no page id"));
            }
            let end = behind - entry.value.len();
            self.last = Some(end - entry.suffix.len()..end);
            let key_head = key_head(entry.suffix);
            self.slots.extend_from_slice(&key_head.to_le_bytes());
            self.slots.extend_from_slice(&(at as u32).to_le_bytes());
            at = behind;
        }
        Ok(())
    }

    /// Returns the key of the last entry without the prefix.
    pub fn last_suffix(&self) -> Option<&[u8]> {
        self.last.clone().map(|last| &self.body[last])
    }

    /// Returns the entries.
    pub fn finish(mut self) -> Result<Page, String> {
        if self.meta.kind == PageKind::Index && self.slots.is_empty() {
            return Err("an index page has no children".to_string());
        }
        let slots = self.body.len();
        self.body.extend_from_slice(&self.slots);
        (self.body).extend_from_slice(&[self.meta.kind as u8, self.meta.level]);
        for n in [self.prefix, slots] {
            self.body.extend_from_slice(&(n as u32).to_le_bytes());
        }
        let mapping = self.meta.mapping.unwrap_or(PageId::NONE);
        self.body.extend_from_slice(&mapping.to_bytes());
        self.body.extend_from_slice(&self.meta.as_of.to_le_bytes());
        Ok(Page {
            kind: self.meta.kind,
            level: self.meta.level,
            mapping: self.meta.mapping,
            as_of: self.meta.as_of,
            body: Bytes::from_owner(self.body),
            prefix: self.prefix,
            slots,
        })
    }
}

/// Returns the first bytes of a key as a number. If the numbers of two keys differ, so does their
/// order.
fn key_head(suffix: &[u8]) -> u32 {
    let mut head = [0; 4];
    let n = suffix.len().min(4);
    head[..n].copy_from_slice(&suffix[..n]);
    u32::from_be_bytes(head)
}

/// Reads the lengths of an entry's key and value.
#[inline]
fn lengths(body: &[u8], at: &mut usize) -> Option<(usize, usize)> {
    // Most keys have fewer than 128 bytes, and most values fewer than 16,384.
    if let Some(&[key, low, high]) = body.get(*at..*at + 3)
        && key < 0x80
    {
        if low < 0x80 {
            *at += 2;
            return Some((key.into(), low.into()));
        }
        if (1..0x80).contains(&high) {
            *at += 3;
            let value = usize::from(low & 0x7f) | usize::from(high) << 7;
            return Some((key.into(), value));
        }
    }
    let key = get_varint(body, at, 32)? as usize;
    let value = get_varint(body, at, 32)? as usize;
    Some((key, value))
}

/// Returns the entry at an offset, and where it ends.
#[inline]
fn parse(body: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let mut at = at;
    let (key, value) = lengths(body, &mut at)?;
    let kind = *body.get(at)?;
    at += 1;
    let suffix = body.get(at..at.checked_add(key)?)?;
    let at = at + key;
    let value = body.get(at..at.checked_add(value)?)?;
    let entry = Entry {
        suffix,
        kind,
        value,
    };
    Some((entry, at + value.len()))
}

impl Page {
    #[inline]
    fn slot(&self, i: usize) -> usize {
        self.slot_field(i, 4) as usize
    }

    #[inline]
    fn slot_field(&self, i: usize, field: usize) -> u32 {
        let at = self.slots + i * SLOT + field;
        let four = self.body[at..at + 4].try_into().expect("4 bytes");
        u32::from_le_bytes(four)
    }

    #[inline]
    fn parse(&self, at: usize) -> Option<(Entry<'_>, usize)> {
        parse(&self.body[..self.slots], at)
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        (self.body.len() - CACHED_META - self.slots) / SLOT
    }

    /// Returns the bytes of prefix and entries.
    pub fn raw_len(&self) -> usize {
        self.slots
    }

    /// Returns an entry; `i` must be below the count.
    pub fn entry(&self, i: usize) -> Entry<'_> {
        let (entry, _) = self.parse(self.slot(i)).expect("the page was verified");
        entry
    }

    /// Returns the value of an entry without a copy.
    pub fn value(&self, i: usize) -> Bytes {
        let (entry, end) = self.parse(self.slot(i)).expect("the page was verified");
        self.body.slice(end - entry.value.len()..end)
    }

    /// Returns where an entry is; `i` must be below the count. A reader that looks at an entry
    /// several times decodes it once.
    #[inline]
    pub fn place(&self, i: usize) -> EntryPlace {
        let (entry, end) = self.parse(self.slot(i)).expect("the page was verified");
        let value = end - entry.value.len();
        EntryPlace {
            suffix: (value - entry.suffix.len()) as u32,
            value: value as u32,
            end: end as u32,
            kind: entry.kind,
        }
    }

    /// Returns the key at a place without the page's prefix.
    #[inline]
    pub fn suffix_at(&self, at: EntryPlace) -> &[u8] {
        &self.body[at.suffix as usize..at.value as usize]
    }

    /// Returns the bytes of key and value at a place.
    #[inline]
    pub fn entry_len_at(&self, at: EntryPlace) -> usize {
        self.prefix + (at.end - at.suffix) as usize
    }

    /// Returns kind and value at a place, without a copy.
    pub fn entry_at(&self, at: EntryPlace) -> (u8, Bytes) {
        let value = self.body.slice(at.value as usize..at.end as usize);
        (at.kind, value)
    }

    /// Returns kind and value at a place.
    #[inline]
    pub fn kind_and_value_at(&self, at: EntryPlace) -> (u8, &[u8]) {
        (at.kind, &self.body[at.value as usize..at.end as usize])
    }

    /// Returns the common prefix of all keys.
    #[inline]
    pub fn prefix(&self) -> &[u8] {
        &self.body[..self.prefix]
    }

    /// Returns the key of an entry.
    pub fn key(&self, i: usize) -> Vec<u8> {
        [self.prefix(), self.entry(i).suffix].concat()
    }

    /// Sets a buffer to the key of an entry.
    pub fn key_into(&self, i: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.entry(i).suffix);
    }

    /// Returns the child of an entry of an index page.
    pub fn child(&self, i: usize) -> PageId {
        PageId::from_bytes(self.entry(i).value).expect("the page was verified")
    }

    /// Returns the page as a cache keeps it: without what a read verifies.
    pub fn to_cached(&self) -> Bytes {
        self.body.clone()
    }

    /// Returns the page that [`Page::to_cached`] turned into bytes.
    pub fn of_cached(body: Bytes) -> Page {
        let meta = &body[body.len() - CACHED_META..];
        let n = |i: usize| {
            let four = meta[2 + i * 4..6 + i * 4].try_into().expect("4 bytes");
            u32::from_le_bytes(four) as usize
        };
        Page {
            kind: PageKind::of_number(meta[0]).expect("it was a page"),
            level: meta[1],
            mapping: PageId::from_bytes(&meta[10..26]).filter(|id| *id != PageId::NONE),
            as_of: u64::from_le_bytes(meta[26..].try_into().expect("8 bytes")),
            prefix: n(0),
            slots: n(1),
            body,
        }
    }

    /// Returns the position of a key, or the one of the first key above it.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let rest = match key.strip_prefix(prefix) {
            Some(rest) => rest,
            None => {
                let below = key < prefix;
                return Err(if below { 0 } else { self.count() });
            }
        };
        let head = key_head(rest);
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            let order = self.slot_field(middle, 0).cmp(&head);
            match order.then_with(|| self.entry(middle).suffix.cmp(rest)) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns the entry of an index page whose child has a key: the last one that is not above it,
    /// or the first one.
    pub fn child_of(&self, key: &[u8]) -> usize {
        match self.find(key) {
            Ok(i) => i,
            Err(i) => i.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests;
