//! Pages as they are stored: sorted entries in blocks behind a header and a head. A base page of
//! the leaf level has the entries of a key range, a delta page has later changes of one, and an
//! index page has the ids of children.
//!
//! | at | bytes | header |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of: extent id, offset in the extent (8 bytes each), bytes 4..48 |
//! | 4 | 4 | CRC-32C of the head |
//! | 8 | 1 | kind: 1 leaf, 2 delta, 3 index |
//! | 9 | 1 | 1, the version of the format |
//! | 10 | 1 | level: 0 for leaves and deltas |
//! | 11 | 1 | 0 |
//! | 12 | 4 | bytes of the head |
//! | 16 | 4 | number of entries |
//! | 20 | 4 | bytes of the page |
//! | 24 | 16 | the id under which the mapping table has the page, or zeros for its own |
//! | 40 | 8 | number of the newest user checkpoint whose changes the page has; 0 in index pages |
//!
//! The head: the number of blocks, the bytes of the common prefix of all keys, and the bytes of the
//! filter (4 bytes each); a record for each block; the prefix; the separators; the filter.
//!
//! A record: where the block ends in the page, its bytes before compression, the number of entries
//! up to its end, its CRC-32C, where its separator ends among the separators (4 bytes each), and
//! its compression (1 byte): 0 none, 1 LZ4, 2 Zstandard. A separator is above all keys of the
//! blocks before, and not above those of its own block. The first one is empty.
//!
//! The blocks come behind the head. An entry: length of the rest of the key and of the value
//! (varints), kind (1 byte), the rest of the key, the value. Keys rise strictly. An entry of an
//! index page has the smallest key of a child and the child's id.
//!
//! The checksum of the header covers the page's own address, so a page is bound to its place. A
//! lookup reads the head once, and then one block. Only delta pages have filters: of several pages
//! of a leaf, a lookup then reads those that have the key, and the base page has most keys.

use crate::page::{Page, PageAssembler, PageKind, PageMeta};
use crate::page_filter;
use crate::page_id::PageId;
use basalt_fs::Bytes;
use basalt_kv::codec::{self, Compression, Effort};
use basalt_kv::encoding::put_varint;
use basalt_stream::ExtentAddress;
use std::ops::Range;

/// Bytes of the header.
pub(crate) const PAGE_HEADER: usize = 48;
/// Most bytes of an entry beside key and value.
pub(crate) const LARGEST_ENTRY_HEAD: usize = 11;
/// The version of the format.
const VERSION: u8 = 1;
/// Bytes of the numbers at the head's beginning.
const COUNTS: usize = 12;
/// Bytes of a block's record.
const RECORD: usize = 21;

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
    blocks: Blocks,
}

/// Consecutive entries of a builder that are written as one page.
#[derive(Clone)]
pub(crate) struct PagePart {
    entries: Range<usize>,
    /// Their keys and values.
    data: Range<usize>,
}

/// How a page is stored.
#[derive(Clone, Copy)]
pub(crate) struct PageLayout {
    pub compression: Compression,
    /// A block ends when it has this many bytes before compression.
    pub block_bytes: usize,
}

impl PageBuilder {
    pub fn new(kind: PageKind, level: u8) -> PageBuilder {
        PageBuilder {
            kind,
            level,
            as_of: 0,
            data: Vec::new(),
            entries: Vec::new(),
            blocks: Blocks::default(),
        }
    }

    /// Removes all entries, but keeps the memory. `as_of` is that of the next page.
    pub fn restart(&mut self, as_of: u64) {
        self.as_of = as_of;
        self.data.clear();
        self.entries.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns about the bytes of the page before compression.
    pub fn len_estimate(&self) -> usize {
        PAGE_HEADER + COUNTS + self.data.len() + self.entries.len() * LARGEST_ENTRY_HEAD
    }

    /// Adds an entry. Its key must be above those before it.
    pub fn add(&mut self, key: &[u8], kind: u8, value: &[u8]) {
        debug_assert!(self.is_empty() || self.last_key() < key, "keys rise");
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        (self.entries).push((key.len() as u32, value.len() as u32, kind));
    }

    /// Takes the entries of another builder, whose keys are above those here.
    pub fn append(&mut self, other: &mut PageBuilder) {
        debug_assert!(
            self.is_empty() || other.is_empty() || self.last_key() < other.first_key(),
            "keys rise"
        );
        self.data.append(&mut other.data);
        self.entries.append(&mut other.entries);
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

    /// Returns the parts that make pages of about the same size, each of at most `page_bytes`
    /// bytes, but with at least `least` entries.
    pub fn parts(&self, page_bytes: usize, least: usize) -> Vec<PagePart> {
        let total = self.data.len() + self.entries.len() * LARGEST_ENTRY_HEAD;
        let parts = total.div_ceil(page_bytes.saturating_sub(64).max(1)).max(1);
        let most = total.div_ceil(parts);
        let mut found = Vec::new();
        let (mut begin, mut bytes) = (PagePart::at(0, 0), 0);
        for (i, (key, value, _)) in self.entries.iter().enumerate() {
            let of_entry = (*key + *value) as usize;
            if begin.entries.len() >= least && bytes + (of_entry + LARGEST_ENTRY_HEAD) / 2 >= most {
                let next = PagePart::at(i, begin.data.end);
                found.push(std::mem::replace(&mut begin, next));
                bytes = 0;
            }
            begin.entries.end = i + 1;
            begin.data.end += of_entry;
            bytes += of_entry + LARGEST_ENTRY_HEAD;
        }
        found.extend(Some(begin).filter(|last| !last.entries.is_empty()));
        found
    }

    /// Returns the smallest key of a part.
    pub fn low(&self, part: &PagePart) -> &[u8] {
        let key = self.entries[part.entries.start].0 as usize;
        &self.data[part.data.start..part.data.start + key]
    }

    /// Appends the page to `out`, but for the checksum that [`bind`] adds. `mapping` is the id
    /// under which the mapping table has the page. Clears the builder.
    pub fn finish(&mut self, mapping: PageId, layout: PageLayout, out: &mut Vec<u8>) {
        let all = PagePart {
            entries: 0..self.entries.len(),
            data: 0..self.data.len(),
        };
        self.put(&all, mapping, layout, out);
        self.restart(self.as_of);
    }

    /// Appends a page with the entries of a part to `out`, but for the checksum that [`bind`] adds.
    /// Keeps the entries.
    pub fn put(&mut self, part: &PagePart, mapping: PageId, layout: PageLayout, out: &mut Vec<u8>) {
        let entries = &self.entries[part.entries.clone()];
        let data = &self.data[part.data.clone()];
        let ends = entries.first().zip(entries.last());
        let (first_key, last_key) = ends.map_or((&data[..0], &data[..0]), |(first, last)| {
            let begin = data.len() - (last.0 + last.1) as usize;
            (
                &data[..first.0 as usize],
                &data[begin..begin + last.0 as usize],
            )
        });
        let prefix_len = common_prefix(first_key, last_key);
        let blocks = &mut self.blocks;
        blocks.restart(layout, data.len() + entries.len() * LARGEST_ENTRY_HEAD);
        let is_index = self.kind == PageKind::Index;
        let (mut filter, mut at, mut last) = (Vec::new(), 0, 0..0);
        if self.kind == PageKind::Delta {
            filter = page_filter::empty(entries.len());
        }
        for (i, (key, value, kind)) in entries.iter().enumerate() {
            let (key_end, end) = (at + *key as usize, at + (*key + *value) as usize);
            let suffix = &data[at + prefix_len..key_end];
            // Index pages are read and cached as a whole.
            if blocks.raw.len() >= layout.block_bytes && !is_index {
                blocks.end(i);
                let differs = common_prefix(&data[last.clone()], suffix) + 1;
                blocks.separators.extend_from_slice(&suffix[..differs]);
            }
            put_varint(&mut blocks.raw, suffix.len() as u64);
            put_varint(&mut blocks.raw, u64::from(*value));
            blocks.raw.push(*kind);
            blocks.raw.extend_from_slice(suffix);
            blocks.raw.extend_from_slice(&data[key_end..end]);
            page_filter::add(&mut filter, &data[at..key_end]);
            last = at + prefix_len..key_end;
            at = end;
        }
        blocks.end(entries.len());
        let begin = out.len();
        out.resize(begin + PAGE_HEADER, 0);
        let prefix = &first_key[..prefix_len];
        let head_len = blocks.put_head(prefix, &filter, out);
        out.extend_from_slice(&blocks.stored);
        let len = (out.len() - begin) as u32;
        let (header, behind) = out[begin..].split_at_mut(PAGE_HEADER);
        header[4..8].copy_from_slice(&crc32c::crc32c(&behind[..head_len]).to_le_bytes());
        header[8] = self.kind as u8;
        header[9] = VERSION;
        header[10] = self.level;
        header[12..16].copy_from_slice(&(head_len as u32).to_le_bytes());
        header[16..20].copy_from_slice(&(entries.len() as u32).to_le_bytes());
        header[20..24].copy_from_slice(&len.to_le_bytes());
        header[24..40].copy_from_slice(&mapping.to_bytes());
        header[40..].copy_from_slice(&self.as_of.to_le_bytes());
    }
}

impl PagePart {
    fn at(entry: usize, data: usize) -> PagePart {
        PagePart {
            entries: entry..entry,
            data: data..data,
        }
    }
}

/// The blocks of a page that is written.
#[derive(Default)]
struct Blocks {
    compression: Compression,
    /// Entries of the current block.
    raw: Vec<u8>,
    /// The blocks before, as they are stored.
    stored: Vec<u8>,
    records: Vec<[u32; 5]>,
    methods: Vec<Compression>,
    separators: Vec<u8>,
}

impl Blocks {
    /// Begins a page of about so many bytes before compression. Uses the memory of the page before.
    fn restart(&mut self, layout: PageLayout, bytes: usize) {
        self.compression = layout.compression;
        self.raw.clear();
        self.stored.clear();
        self.stored.reserve(bytes);
        self.records.clear();
        self.methods.clear();
        self.separators.clear();
    }

    /// Ends the current block, whose last entry is the one before `entries`.
    fn end(&mut self, entries: usize) {
        let begin = self.stored.len();
        let most = begin + codec::most_compressed(self.raw.len());
        let method = self.compression;
        let effort = Effort::Background;
        let method = match codec::compress(method, effort, &self.raw, &mut self.stored, begin, most)
        {
            true => method,
            false => {
                self.stored.truncate(begin);
                self.stored.extend_from_slice(&self.raw);
                Compression::None
            }
        };
        self.records.push([
            self.stored.len() as u32,
            self.raw.len() as u32,
            entries as u32,
            crc32c::crc32c(&self.stored[begin..]),
            self.separators.len() as u32,
        ]);
        self.methods.push(method);
        self.raw.clear();
    }

    /// Appends the head, and returns its length.
    fn put_head(&self, prefix: &[u8], filter: &[u8], out: &mut Vec<u8>) -> usize {
        let begin = out.len();
        let variable = prefix.len() + self.separators.len() + filter.len();
        let head_len = COUNTS + self.records.len() * RECORD + variable;
        for n in [self.records.len(), prefix.len(), filter.len()] {
            out.extend_from_slice(&(n as u32).to_le_bytes());
        }
        for (record, method) in self.records.iter().zip(&self.methods) {
            let mut record = *record;
            record[0] += (PAGE_HEADER + head_len) as u32;
            for n in record {
                out.extend_from_slice(&n.to_le_bytes());
            }
            out.push(*method as u8);
        }
        out.extend_from_slice(prefix);
        out.extend_from_slice(&self.separators);
        out.extend_from_slice(filter);
        debug_assert_eq!(out.len() - begin, head_len);
        head_len
    }
}

fn header_crc(at: ExtentAddress, header: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&at.extent.0.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &at.offset.to_le_bytes());
    crc32c::crc32c_append(crc, &header[4..PAGE_HEADER])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes[at..at + 4].try_into().expect("4 bytes");
    u32::from_le_bytes(four)
}

fn check_len(id: PageId, header: &[u8]) -> Result<(), String> {
    match u32_at(header, 20) {
        len if len == id.len => Ok(()),
        len => Err(format!("a page of {len} bytes, expected {}", id.len)),
    }
}

/// Returns the length of a page in bytes, if the header of one is at an address. Nothing else of
/// the page is verified.
pub(crate) fn len_of_page_at(at: ExtentAddress, bytes: &[u8]) -> Option<u32> {
    let header = bytes.get(..PAGE_HEADER)?;
    // Cheap, for a search through all offsets.
    PageKind::of_number(header[8])?;
    (u32_at(header, 0) == header_crc(at, header)).then(|| stored_len(header))?
}

/// Returns the length of a page in bytes, from its unverified header.
pub(crate) fn stored_len(header: &[u8]) -> Option<u32> {
    let four = header.get(20..24)?.try_into().expect("4 bytes");
    let len = u32::from_le_bytes(four);
    (len as usize >= PAGE_HEADER).then_some(len)
}

/// Returns the bytes of header and head, from an unverified header.
pub(crate) fn head_end(header: &[u8]) -> Option<usize> {
    let header = header.get(..PAGE_HEADER)?;
    Some(PAGE_HEADER + u32_at(header, 12) as usize)
}

/// Binds a page to its address.
pub(crate) fn bind(at: ExtentAddress, page: &mut [u8]) {
    let crc = header_crc(at, page);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Header and head of a page, verified.
#[derive(Clone, Debug)]
pub(crate) struct PageHead {
    bytes: Bytes,
    /// Number of blocks.
    pub blocks: usize,
    /// Where the prefix begins and ends.
    prefix: (usize, usize),
    /// Where the filter begins.
    filter: usize,
}

/// Where a block of a page is, and what it has.
#[derive(Clone, Debug)]
pub(crate) struct BlockRecord {
    /// Its bytes in the page.
    pub stored: Range<usize>,
    /// Its entries among those of the page.
    pub entries: Range<usize>,
    raw: usize,
    crc: u32,
    method: u8,
}

impl PageHead {
    /// Verifies header and head. `bytes` begins with them.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn open(id: PageId, bytes: &Bytes) -> Result<PageHead, String> {
        let Some(header) = bytes.get(..PAGE_HEADER) else {
            return Err(format!("a page of {} bytes", bytes.len()));
        };
        if u32_at(header, 0) != header_crc(id.address(), header) {
            return Err("the checksum of the page's header is wrong".to_string());
        }
        check_len(id, header)?;
        if header[9] != VERSION {
            return Err(format!(
                "the page has format {}, and this version of Basalt reads format {VERSION}",
                header[9]
            ));
        }
        let kind = PageKind::of_number(header[8])
            .ok_or_else(|| format!("unknown page kind {}", header[8]))?;
        if kind == PageKind::Delta && u32_at(header, 16) == 0 {
            return Err("a delta page without entries".to_string());
        }
        let end = PAGE_HEADER + u32_at(header, 12) as usize;
        let cut = || "the page's head ends too early".to_string();
        if end > id.len as usize || end < PAGE_HEADER + COUNTS {
            return Err(cut());
        }
        let head = bytes.get(PAGE_HEADER..end).ok_or_else(cut)?;
        if u32_at(header, 4) != crc32c::crc32c(head) {
            return Err("the checksum of the page's head is wrong".to_string());
        }
        let [blocks, prefix, filter] = [0, 4, 8].map(|at| u32_at(head, at) as usize);
        let records = blocks.checked_mul(RECORD).ok_or_else(cut)?;
        let fixed = COUNTS
            .checked_add(records)
            .and_then(|n| n.checked_add(prefix));
        let separators = fixed.and_then(|n| head.len().checked_sub(n)?.checked_sub(filter));
        let separators = separators.ok_or_else(cut)?;
        let page = PageHead::of_cached(bytes.slice(..end));
        page.check_records(id, separators)?;
        Ok(page)
    }

    /// Checks that blocks lie one behind the other, as their records say.
    fn check_records(&self, id: PageId, separators: usize) -> Result<(), String> {
        let (mut end, mut entries, mut key) = (self.bytes.len(), 0, 0);
        for i in 0..self.blocks {
            let bad = |what: &str| format!("block {i} of the page {what}");
            let [to, _, upto, _, separator] = self.record(i);
            let is_last = i + 1 == self.blocks;
            if to < end || to > id.len as usize {
                return Err(bad("is not inside the page"));
            }
            if upto < entries || (upto == entries && self.blocks > 1) {
                return Err(bad("has no entries"));
            }
            if to == end && upto > entries {
                return Err(bad("has entries and no bytes"));
            }
            // A separator ends behind the one before, and the first one is empty.
            let rises = if i == 0 {
                separator == 0
            } else {
                separator > key
            };
            if !rises || separator > separators {
                return Err(bad("has no separator"));
            }
            if i > 1 && self.separator(i - 1) >= self.separator(i) {
                return Err(bad("is out of order"));
            }
            if is_last && (to, upto, separator) != (id.len as usize, self.count(), separators) {
                return Err(bad("does not end the page"));
            }
            (end, entries, key) = (to, upto, separator);
        }
        match self.blocks {
            0 => Err("the page has no blocks".to_string()),
            _ => Ok(()),
        }
    }

    /// Checks that the page has the length that an id says.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn check_len(&self, id: PageId) -> Result<(), String> {
        check_len(id, &self.bytes)
    }

    /// Returns true if a page is one of an index, by its header, which is not verified.
    pub fn is_of_index(page: &[u8]) -> bool {
        page.get(8) == Some(&(PageKind::Index as u8))
    }

    /// Returns the bytes as a cache keeps them.
    pub fn to_cached(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Returns the head that [`PageHead::to_cached`] turned into bytes.
    pub fn of_cached(bytes: Bytes) -> PageHead {
        let [blocks, prefix, filter] =
            [0, 4, 8].map(|at| u32_at(&bytes, PAGE_HEADER + at) as usize);
        let begin = PAGE_HEADER + COUNTS + blocks * RECORD;
        PageHead {
            blocks,
            prefix: (begin, begin + prefix),
            filter: bytes.len() - filter,
            bytes,
        }
    }

    /// Returns what the header says about the entries.
    pub fn meta(&self) -> PageMeta {
        let header = &self.bytes[..PAGE_HEADER];
        PageMeta {
            kind: self.kind(),
            level: header[10],
            mapping: PageId::from_bytes(&header[24..40]).filter(|id| *id != PageId::NONE),
            as_of: u64::from_le_bytes(header[40..48].try_into().expect("8 bytes")),
        }
    }

    /// Returns the kind of the page.
    pub fn kind(&self) -> PageKind {
        PageKind::of_number(self.bytes[8]).expect("the header was verified")
    }

    /// Returns the number of entries of the page.
    pub fn count(&self) -> usize {
        u32_at(&self.bytes, 16) as usize
    }

    fn record(&self, i: usize) -> [usize; 5] {
        let at = PAGE_HEADER + COUNTS + i * RECORD;
        [0, 4, 8, 12, 16].map(|field| u32_at(&self.bytes, at + field) as usize)
    }

    /// Returns where a block is; `i` must be below the number of blocks.
    pub fn block(&self, i: usize) -> BlockRecord {
        let (begin, first) = match i {
            0 => (self.bytes.len(), 0),
            _ => {
                let [to, _, upto, ..] = self.record(i - 1);
                (to, upto)
            }
        };
        let [to, raw, upto, crc, _] = self.record(i);
        BlockRecord {
            stored: begin..to,
            entries: first..upto,
            raw,
            crc: crc as u32,
            method: self.bytes[PAGE_HEADER + COUNTS + i * RECORD + RECORD - 1],
        }
    }

    fn prefix(&self) -> &[u8] {
        &self.bytes[self.prefix.0..self.prefix.1]
    }

    /// Returns the separator before a block, without the prefix.
    fn separator(&self, i: usize) -> &[u8] {
        let begin = match i {
            0 => 0,
            _ => self.record(i - 1)[4],
        };
        let end = self.record(i)[4];
        &self.bytes[self.prefix.1 + begin..self.prefix.1 + end]
    }

    /// Returns false if the page has no entry of a key. True is no proof that it has one.
    pub fn may_have(&self, key: &[u8]) -> bool {
        let filter = &self.bytes[self.filter..];
        filter.is_empty() || page_filter::may_have(filter, key)
    }

    /// Returns the block that has a key, if the page has it, and otherwise the keys around it.
    pub fn block_of(&self, key: &[u8]) -> usize {
        if self.blocks == 1 {
            return 0;
        }
        let prefix = self.prefix();
        let Some(rest) = key.strip_prefix(prefix) else {
            return if key < prefix { 0 } else { self.blocks - 1 };
        };
        let (mut low, mut high) = (1, self.blocks);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.separator(middle) <= rest {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low - 1
    }

    /// Returns the block that has the entry of a number.
    pub fn block_of_entry(&self, entry: usize) -> usize {
        let (mut low, mut high) = (0, self.blocks - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.record(middle)[2] <= entry {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Verifies the stored bytes of a block, and returns its entries.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn open_block(&self, i: usize, stored: &Bytes) -> Result<Page, String> {
        let record = self.block(i);
        let count = record.entries.len();
        // A damaged record may claim any length. A wrong guess costs a copy.
        let raw = record.raw.min(stored.len().saturating_mul(4));
        let mut page = PageAssembler::new(self.meta(), self.prefix(), raw, count);
        self.add_block(i, stored, &mut page)?;
        page.finish()
    }

    /// Verifies the blocks of a page, and returns all entries.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn open_all(&self, bytes: &Bytes) -> Result<Page, String> {
        let raw = (0..self.blocks).map(|i| self.block(i).raw);
        // The blocks say how large they are. A wrong sum costs a copy.
        let raw = raw.sum::<usize>().min(bytes.len().saturating_mul(4));
        let mut page = PageAssembler::new(self.meta(), self.prefix(), raw, self.count());
        let len = u32_at(&self.bytes, 20) as usize;
        if bytes.len() != len {
            return Err(format!("{} bytes of a page of {len} bytes", bytes.len()));
        }
        for i in 0..self.blocks {
            self.add_block(i, &bytes.slice(self.block(i).stored), &mut page)?;
        }
        page.finish()
    }

    fn add_block(&self, i: usize, stored: &Bytes, page: &mut PageAssembler) -> Result<(), String> {
        let bad = |what: &str| format!("block {i} of the page {what}");
        let record = self.block(i);
        if stored.len() != record.stored.len() || crc32c::crc32c(stored) != record.crc {
            return Err(bad("has a wrong checksum"));
        }
        let method = Compression::from_u8(record.method)
            .ok_or_else(|| format!("unknown compression {}", record.method))?;
        let raw = match method {
            Compression::None if stored.len() == record.raw => stored.clone(),
            Compression::None => return Err(bad("has another length than its record")),
            _ => {
                codec::check_decompressed_len(method, stored, record.raw)?;
                codec::decompress(method, stored, record.raw)?
            }
        };
        let first = page.count();
        // The entries of a block alone are compared with the separators around it.
        let low = self.separator(i);
        page.add(&raw, low)?;
        if page.count() - first != record.entries.len() {
            return Err(bad("has another number of entries than its record"));
        }
        let is_below = |last: &[u8]| i + 1 == self.blocks || last < self.separator(i + 1);
        match page.last_suffix().is_none_or(is_below) {
            true => Ok(()),
            false => Err(bad("has keys of the next one")),
        }
    }
}

impl Page {
    /// Verifies the bytes of a page, and its entries.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn open(id: PageId, bytes: &Bytes) -> Result<Page, String> {
        let head = PageHead::open(id, bytes)?;
        if bytes.len() != id.len as usize {
            return Err(format!(
                "a page of {} bytes, expected {}",
                bytes.len(),
                id.len
            ));
        }
        let page = head.open_all(bytes)?;
        let filter = &head.bytes[head.filter..];
        if !filter.is_empty() {
            let mut key = Vec::new();
            for i in 0..page.count() {
                page.key_into(i, &mut key);
                if !head.may_have(&key) {
                    return Err(format!("the page's filter does not know entry {i}"));
                }
            }
        }
        Ok(page)
    }
}

/// Gives a changed page right checksums, as far as it says where its head and its blocks are.
#[cfg(any(test, fuzzing))]
pub(crate) fn reseal(id: PageId, page: &mut [u8]) {
    let head = head_end(page).and_then(|end| Some(PAGE_HEADER..page.get(..end)?.len()));
    if let Some(head) = head.filter(|head| head.len() >= COUNTS) {
        page[20..24].copy_from_slice(&id.len.to_le_bytes());
        page[9] = VERSION;
        let records = u32_at(page, head.start) as usize;
        let mut begin = head.end;
        for i in 0..records.min(head.len() / RECORD) {
            let record = head.start + COUNTS + i * RECORD;
            if record + RECORD > head.end {
                break;
            }
            let end = u32_at(page, record) as usize;
            if let Some(stored) = page.get(begin..end) {
                let crc = crc32c::crc32c(stored);
                page[record + 12..record + 16].copy_from_slice(&crc.to_le_bytes());
            }
            begin = end;
        }
        let crc = crc32c::crc32c(&page[head]);
        page[4..8].copy_from_slice(&crc.to_le_bytes());
    }
    if page.len() >= PAGE_HEADER {
        bind(id.address(), page);
    }
}

#[cfg(test)]
pub(crate) mod tests;
