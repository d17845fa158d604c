//! Pages: sorted entries behind a header. A base page of the leaf level has the entries of a key
//! range, a delta page has later changes of one, and an index page has the ids of children.
//!
//! | at | bytes | header |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of: extent id, offset in the extent (8 bytes each), bytes 4..48 |
//! | 4 | 4 | CRC-32C of what follows the header |
//! | 8 | 1 | kind: 1 leaf, 2 delta, 3 index |
//! | 9 | 1 | compression of the body: 0 none, 1 LZ4, 2 Zstandard |
//! | 10 | 1 | level: 0 for leaves and deltas |
//! | 11 | 1 | 0 |
//! | 12 | 4 | bytes of the body before compression |
//! | 16 | 4 | number of entries |
//! | 20 | 4 | bytes of the page |
//! | 24 | 16 | the id under which the mapping table has the page, or zeros for its own |
//! | 40 | 8 | number of the newest user checkpoint whose changes the page has; 0 in index pages |
//!
//! The body: the common prefix of all keys (its length as a varint, its bytes), the entries, then
//! the offset of each entry in the body (4 bytes). An entry: length of the rest of the key and of
//! the value (varints), kind (1 byte), the rest of the key, the value. Keys rise strictly. An entry
//! of an index page has the smallest key of a child and the child's id.
//!
//! The checksum of the header covers the page's own address, so a page is bound to its place.

use crate::page_id::{PAGE_ID_LEN, PageId};
use basalt_fs::{AlignedBuf, Bytes, Lifetime};
use basalt_kv::codec::{self, Compression, Effort};
use basalt_kv::encoding::{get_varint, put_varint};
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};
use basalt_stream::ExtentAddress;
use std::cmp::Ordering;
use std::ops::Range;

/// Bytes of the header.
pub(crate) const PAGE_HEADER: usize = 48;
/// Bytes of a slot, which has an entry's offset.
pub(crate) const SLOT: usize = 4;
/// Most bytes of an entry beside key and value.
pub(crate) const LARGEST_ENTRY_HEAD: usize = 11;
/// Bytes that a cached page has behind its body.
const CACHED_META: usize = 2 + 3 * 4 + PAGE_ID_LEN + 8;

/// The kinds of pages. The numbers are persisted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum PageKind {
    Leaf = 1,
    Delta = 2,
    Index = 3,
}

impl PageKind {
    fn of_number(n: u8) -> Option<PageKind> {
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

/// Collects the entries of a page.
pub(crate) struct PageBuilder {
    kind: PageKind,
    level: u8,
    /// Number of the newest user checkpoint whose changes the page has.
    pub as_of: u64,
    /// Keys and values, one behind the other.
    data: Vec<u8>,
    /// Bytes of key and value, and the kind.
    entries: Vec<(u32, u32, u8)>,
}

impl PageBuilder {
    pub fn new(kind: PageKind, level: u8) -> PageBuilder {
        PageBuilder {
            kind,
            level,
            as_of: 0,
            data: Vec::new(),
            entries: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns an upper bound of the page's length before compression, in bytes.
    pub fn max_len(&self) -> usize {
        PAGE_HEADER + 5 + self.data.len() + self.entries.len() * (LARGEST_ENTRY_HEAD + SLOT)
    }

    /// Adds an entry. Its key must be above those before it.
    pub fn add(&mut self, key: &[u8], kind: u8, value: &[u8]) {
        debug_assert!(self.is_empty() || self.last_key() < key, "keys rise");
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        (self.entries).push((key.len() as u32, value.len() as u32, kind));
    }

    fn first_key(&self) -> &[u8] {
        let len = self.entries.first().map_or(0, |(key, ..)| *key as usize);
        &self.data[..len]
    }

    fn last_key(&self) -> &[u8] {
        let (key, value, _) = self.entries.last().copied().unwrap_or_default();
        let begin = self.data.len() - (key + value) as usize;
        &self.data[begin..begin + key as usize]
    }

    /// Appends the page to `out`, but for the checksum that [`bind`] adds. `mapping` is the id
    /// under which the mapping table has the page. Clears the builder.
    pub fn finish(&mut self, mapping: PageId, compression: Compression, out: &mut Vec<u8>) {
        let prefix = common_prefix(self.first_key(), self.last_key());
        let mut body = Vec::with_capacity(self.max_len());
        put_varint(&mut body, prefix as u64);
        body.extend_from_slice(&self.first_key()[..prefix]);
        let mut slots = Vec::with_capacity(self.entries.len() * SLOT);
        let mut at = 0;
        for (key, value, kind) in &self.entries {
            slots.extend_from_slice(&(body.len() as u32).to_le_bytes());
            let (key_end, end) = (at + *key as usize, at + (*key + *value) as usize);
            put_varint(&mut body, u64::from(*key) - prefix as u64);
            put_varint(&mut body, u64::from(*value));
            body.push(*kind);
            body.extend_from_slice(&self.data[at + prefix..key_end]);
            body.extend_from_slice(&self.data[key_end..end]);
            at = end;
        }
        body.extend_from_slice(&slots);
        let begin = out.len();
        out.resize(begin + PAGE_HEADER, 0);
        let mut packed = Vec::new();
        let most = codec::most_compressed(body.len());
        let effort = Effort::Background;
        let method = match codec::compress(compression, effort, &body, &mut packed, 0, most) {
            true => compression,
            false => Compression::None,
        };
        match method {
            Compression::None => out.extend_from_slice(&body),
            _ => out.extend_from_slice(&packed),
        }
        let (header, stored) = out[begin..].split_at_mut(PAGE_HEADER);
        header[4..8].copy_from_slice(&crc32c::crc32c(stored).to_le_bytes());
        header[8] = self.kind as u8;
        header[9] = method as u8;
        header[10] = self.level;
        header[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[16..20].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        let len = (PAGE_HEADER + stored.len()) as u32;
        header[20..24].copy_from_slice(&len.to_le_bytes());
        header[24..40].copy_from_slice(&mapping.to_bytes());
        header[40..].copy_from_slice(&self.as_of.to_le_bytes());
        self.data.clear();
        self.entries.clear();
    }
}

fn header_crc(at: ExtentAddress, header: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&at.extent.0.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &at.offset.to_le_bytes());
    crc32c::crc32c_append(crc, &header[4..PAGE_HEADER])
}

/// Returns the length of a page in bytes, if the header of one is at an address. Nothing else of
/// the page is verified.
pub(crate) fn len_of_page_at(at: ExtentAddress, bytes: &[u8]) -> Option<u32> {
    let header = bytes.get(..PAGE_HEADER)?;
    // Cheap, for a search through all offsets.
    PageKind::of_number(header[8])?;
    let crc = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
    (crc == header_crc(at, header)).then(|| stored_len(header))?
}

/// Returns the length of a page in bytes, from its unverified header.
pub(crate) fn stored_len(header: &[u8]) -> Option<u32> {
    let four = header.get(20..24)?.try_into().expect("4 bytes");
    let len = u32::from_le_bytes(four);
    (len as usize >= PAGE_HEADER).then_some(len)
}

/// Binds a page to its address.
pub(crate) fn bind(at: ExtentAddress, page: &mut [u8]) {
    let crc = header_crc(at, page);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A page that was read and verified.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub kind: PageKind,
    pub level: u8,
    /// The id under which the mapping table has the page; `None` for its own.
    pub mapping: Option<PageId>,
    /// Number of the newest user checkpoint whose changes the page has.
    pub as_of: u64,
    body: Bytes,
    prefix: Range<usize>,
    /// Offset of the slots in the body.
    slots: usize,
}

impl Page {
    /// Verifies the bytes of a page, and its entries.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn open(id: PageId, bytes: &Bytes) -> Result<Page, String> {
        let Some(header) = bytes.get(..PAGE_HEADER) else {
            return Err(format!("a page of {} bytes", bytes.len()));
        };
        let u32_at = |at: usize| {
            let four = header[at..at + 4].try_into().expect("4 bytes");
            u32::from_le_bytes(four)
        };
        if u32_at(0) != header_crc(id.address(), header) {
            return Err("the checksum of the page's header is wrong".to_string());
        }
        if u32_at(20) != id.len || bytes.len() as u64 != u64::from(id.len) {
            return Err(format!(
                "a page of {} bytes, expected {}",
                u32_at(20),
                id.len
            ));
        }
        let stored = bytes.slice(PAGE_HEADER..);
        if u32_at(4) != crc32c::crc32c(&stored) {
            return Err("the checksum of the page is wrong".to_string());
        }
        let kind = PageKind::of_number(header[8])
            .ok_or_else(|| format!("unknown page kind {}", header[8]))?;
        let method = Compression::from_u8(header[9])
            .ok_or_else(|| format!("unknown compression {}", header[9]))?;
        let raw = u32_at(12) as usize;
        let body = match method {
            Compression::None if stored.len() == raw => stored,
            Compression::None => {
                return Err(format!("a body of {} bytes, not {raw}", stored.len()));
            }
            _ => {
                codec::check_decompressed_len(method, &stored, raw)?;
                codec::decompress(method, &stored, raw)?
            }
        };
        let mapping = PageId::from_bytes(&header[24..40]).filter(|id| *id != PageId::NONE);
        let page = Page::of_body(kind, header[10], mapping, body, u32_at(16) as usize)?;
        let as_of = u64::from_le_bytes(header[40..].try_into().expect("8 bytes"));
        Ok(Page { as_of, ..page })
    }

    fn of_body(
        kind: PageKind,
        level: u8,
        mapping: Option<PageId>,
        body: Bytes,
        count: usize,
    ) -> Result<Page, String> {
        let cut = || "the page's body ends too early".to_string();
        let slots_len = count.checked_mul(SLOT).ok_or_else(cut)?;
        let slots = body.len().checked_sub(slots_len).ok_or_else(cut)?;
        let mut at = 0;
        let prefix = get_varint(&body[..slots], &mut at, 32).ok_or_else(cut)? as usize;
        let prefix = at..at
            .checked_add(prefix)
            .filter(|end| *end <= slots)
            .ok_or_else(cut)?;
        let page = Page {
            kind,
            level,
            mapping,
            as_of: 0,
            slots,
            body,
            prefix: prefix.clone(),
        };
        if kind == PageKind::Index && count == 0 {
            return Err("an index page has no children".to_string());
        }
        let mut end = prefix.end;
        let mut before: Option<&[u8]> = None;
        for i in 0..count {
            let bad = |what: &str| format!("entry {i} of the page {what}");
            if page.slot(i) != end {
                return Err(bad("is not behind the one before"));
            }
            let (entry, behind) = page.parse(end).ok_or_else(|| bad("does not decode"))?;
            if before.is_some_and(|before| before >= entry.suffix) {
                return Err(bad("is out of order"));
            }
            let key_len = prefix.len() + entry.suffix.len();
            if key_len > MAX_KEY_LEN || entry.value.len() as u64 > MAX_VALUE_LEN as u64 + 8 {
                return Err(bad("exceeds the maximum entry length"));
            }
            if kind == PageKind::Index && PageId::from_bytes(entry.value).is_none() {
                return Err(bad("has no page id"));
            }
            before = Some(entry.suffix);
            end = behind;
        }
        match end == slots {
            true => Ok(page),
            false => Err("the page has bytes between its entries and its slots".to_string()),
        }
    }

    fn slot(&self, i: usize) -> usize {
        let at = self.slots + i * SLOT;
        let four = self.body[at..at + SLOT].try_into().expect("4 bytes");
        u32::from_le_bytes(four) as usize
    }

    /// Returns the entry at an offset of the body, and where it ends.
    fn parse(&self, at: usize) -> Option<(Entry<'_>, usize)> {
        let body = &self.body[..self.slots];
        let mut at = at;
        let key = get_varint(body, &mut at, 32)? as usize;
        let value = get_varint(body, &mut at, 32)? as usize;
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

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        (self.body.len() - self.slots) / SLOT
    }

    /// Returns the bytes before compression, without the header.
    pub fn raw_len(&self) -> usize {
        self.body.len()
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

    /// Returns the common prefix of all keys.
    pub fn prefix(&self) -> &[u8] {
        &self.body[self.prefix.clone()]
    }

    /// Returns the key of an entry.
    pub fn key(&self, i: usize) -> Vec<u8> {
        [self.prefix(), self.entry(i).suffix].concat()
    }

    /// Returns the child of an entry of an index page.
    pub fn child(&self, i: usize) -> PageId {
        PageId::from_bytes(self.entry(i).value).expect("the page was verified")
    }

    /// Returns the page as a cache keeps it: without what a read verifies.
    pub fn to_cached(&self) -> Bytes {
        let meta_len = CACHED_META;
        let mut bytes = AlignedBuf::with_lifetime(self.body.len() + meta_len, Lifetime::Cached);
        bytes.extend_from_slice(&self.body);
        bytes.extend_from_slice(&[self.kind as u8, self.level]);
        for n in [self.prefix.start, self.prefix.end, self.slots] {
            bytes.extend_from_slice(&(n as u32).to_le_bytes());
        }
        let mapping = self.mapping.unwrap_or(PageId::NONE);
        bytes.extend_from_slice(&mapping.to_bytes());
        bytes.extend_from_slice(&self.as_of.to_le_bytes());
        Bytes::from_owner(bytes)
    }

    /// Returns the page that [`Page::to_cached`] turned into bytes.
    pub fn of_cached(bytes: &Bytes) -> Page {
        let end = bytes.len() - CACHED_META;
        let meta = &bytes[end..];
        let n = |i: usize| {
            let four = meta[2 + i * 4..6 + i * 4].try_into().expect("4 bytes");
            u32::from_le_bytes(four) as usize
        };
        Page {
            kind: PageKind::of_number(meta[0]).expect("it was a page"),
            level: meta[1],
            mapping: PageId::from_bytes(&meta[14..30]).filter(|id| *id != PageId::NONE),
            as_of: u64::from_le_bytes(meta[30..].try_into().expect("8 bytes")),
            body: bytes.slice(..end),
            prefix: n(0)..n(1),
            slots: n(2),
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
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle).suffix.cmp(rest) {
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
