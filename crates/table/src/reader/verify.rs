//! The walks over a whole table: [`verify`] trusts nothing and checks every byte; [`inspect`]
//! counts what can be read.

use super::TableReader;
use crate::block::BlockCursor;
use crate::exact_read::read_exact;
use crate::format::filter;
use crate::format::{BlockHandle, BlockKind, FOOTER_LEN, Footer, HEADER_LEN, Header, open_block};
use crate::index::IndexBlock;
use crate::properties::Properties;
use crate::ranges;
use crate::{ReferenceCounter, TableMeta, TableVerified};
use basalt_env::Env;
use basalt_fs::{Bytes, Error, ErrorKind, File, Result};
use basalt_kv::key::{Cmp, Kind, split_internal_key, trailer_seq, user_key};
use basalt_kv::prefix::{Prefixes, prefix_hash};
use basalt_kv::ranges::Fragments;
use basalt_kv::separated::Reference;
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of one read of a [`DigestReader`].
const STEP: usize = 1 << 20;

/// Returns a file's bytes front to back, reads in large steps, and digests each byte once.
struct DigestReader<'a> {
    file: &'a dyn File,
    path: &'a Path,
    size: u64,
    bytes: Bytes,
    /// The offset where `bytes` begins, and the first offset not yet returned.
    start: u64,
    at: u64,
    digest: Xxh3Default,
}

impl<'a> DigestReader<'a> {
    fn new(file: &'a dyn File, path: &'a Path, size: u64) -> DigestReader<'a> {
        DigestReader {
            file,
            path,
            size,
            bytes: Bytes::new(),
            start: 0,
            at: 0,
            digest: Xxh3Default::new(),
        }
    }

    /// Returns the next `len` bytes, which lie inside the file.
    fn take(&mut self, len: usize) -> Result<Bytes> {
        let end = self.at + len as u64;
        if end > self.start + self.bytes.len() as u64 {
            let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
            self.bytes = Bytes::new();
            self.bytes = read_exact(self.file, self.path, self.at, STEP.max(len).min(left))?;
            self.start = self.at;
        }
        let from = (self.at - self.start) as usize;
        let out = self.bytes.slice(from..from + len);
        self.digest.update(&out);
        self.at = end;
        Ok(out)
    }
}

/// Counts the fields of [`TableMeta`].
struct Tally {
    meta: TableMeta,
    references: ReferenceCounter,
    own_seqs: u64,
}

impl Tally {
    fn new(file_id: u128, size: u64) -> Tally {
        Tally {
            meta: TableMeta::without_entries(file_id, size),
            references: ReferenceCounter::default(),
            own_seqs: 0,
        }
    }

    /// Counts an entry. Returns `Corruption` for a malformed reference.
    fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let m = &mut self.meta;
        let (user, trailer) = split_internal_key(key);
        let seq = trailer_seq(trailer);
        if m.entries == 0 {
            m.smallest = key.to_vec();
        }
        m.entries += 1;
        m.deletes += u64::from(trailer as u8 == Kind::Delete as u8);
        m.min_seq = m.min_seq.min(seq);
        m.max_seq = m.max_seq.max(seq);
        m.raw_key_bytes += user.len() as u64;
        m.raw_value_bytes += value.len() as u64;
        let expiry = match Kind::from_u8(trailer as u8) {
            Some(Kind::PutTtl) => value.first_chunk().map(|at| u64::from_le_bytes(*at)),
            Some(Kind::BlobRef) => {
                let to = Reference::decode(value)?;
                self.references.add(to.number);
                self.own_seqs += u64::from(to.seq.is_some());
                to.expire_at_ms
            }
            _ => None,
        };
        m.soonest_expiry_ms = m.soonest_expiry_ms.min(expiry.unwrap_or(u64::MAX));
        m.largest.clear();
        m.largest.extend_from_slice(key);
        Ok(())
    }
}

/// An index partition and its place in the file.
struct CheckedPartition {
    handle: BlockHandle,
    index: IndexBlock,
}

/// Looks up a hash in a filter of at least one page. The error is the page that lacks it.
fn filter_has(footer: &Footer, pages: &[Bytes], hash: u64) -> std::result::Result<(), u64> {
    let (page, line) = filter::locate(hash, footer.filter_lines);
    let line = pages[page as usize][line..line + filter::LINE_BYTES]
        .try_into()
        .expect("a line's length");
    match filter::may_contain(line, hash, footer.probes) {
        true => Ok(()),
        false => Err(page),
    }
}

pub(crate) fn verify(table: &TableReader, meta: &TableMeta) -> Result<TableVerified> {
    let path = &table.path;
    if meta.size != table.size || meta.file_id != table.file_id {
        return Err(Error::corruption(
            path,
            0,
            format!(
                "opened as file {:032x} of {} bytes, expected {:032x} of {}",
                table.file_id, table.size, meta.file_id, meta.size
            ),
        ));
    }
    // The check of the data needs index and filter, which the walk reaches later.
    let partitions = checked_partitions(table)?;
    let pages = (0..filter::pages(table.footer.filter_lines))
        .map(|p| table.read_block(BlockKind::Filter, &table.filter_page(p)))
        .collect::<Result<Vec<_>>>()?;
    // The prefixes of a user's own extractor cannot be computed here.
    let prefixes = table.properties.prefix_extractor.as_deref();
    let file = table.file()?;
    let mut pass = Pass {
        table,
        partitions: &partitions,
        pages: &pages,
        prefixes: prefixes.and_then(Prefixes::built_in),
        reader: DigestReader::new(&*file, path, table.size),
        tally: Tally::new(table.file_id, table.size),
        data_blocks: 0,
        blocks: 0,
    };
    pass.check_header()?;
    pass.check_data()?;
    pass.check_filter()?;
    let ranges = pass.check_ranges()?;
    pass.check_index()?;
    pass.check_end()?;
    pass.tally.meta.take_in_ranges(&table.cmp, &ranges);
    pass.tally.meta.references = pass.tally.references.take();
    pass.compare_with_properties()?;
    pass.compare_with_manifest(meta)?;
    Ok(TableVerified {
        bytes: table.size,
        blocks: pass.blocks,
        entries: pass.tally.meta.entries,
    })
}

/// Reads the partitions of the index, and checks them and the top level.
fn checked_partitions(table: &TableReader) -> Result<Vec<CheckedPartition>> {
    let path = &table.path;
    let top_at = table.footer.top.offset;
    table
        .top
        .check_all(&table.cmp)
        .map_err(|d| d.at(path, top_at))?;
    let mut partitions = Vec::with_capacity(table.top.len());
    for i in 0..table.top.len() {
        let handle = table.partition_handle(i)?;
        let index = IndexBlock::new(table.read_block(BlockKind::Index, &handle)?)
            .map_err(|d| d.at(path, handle.offset))?;
        index
            .check_all(&table.cmp)
            .map_err(|d| d.at(path, handle.offset))?;
        let (separator, _) = table.top.entry(i).map_err(|d| d.at(path, top_at))?;
        let (last, _) = index
            .entry(index.len() - 1)
            .map_err(|d| d.at(path, handle.offset))?;
        if separator != last {
            return Err(Error::corruption(
                path,
                handle.offset,
                "index partition does not end at the separator that the top-level index has for it",
            ));
        }
        partitions.push(CheckedPartition { handle, index });
    }
    Ok(partitions)
}

/// One pass over a table from its first byte to its last, in steps in the order of the file.
struct Pass<'a> {
    table: &'a TableReader,
    partitions: &'a [CheckedPartition],
    /// Pages of the filter.
    pages: &'a [Bytes],
    prefixes: Option<Prefixes>,
    reader: DigestReader<'a>,
    tally: Tally,
    data_blocks: u64,
    /// Blocks checked, of all kinds.
    blocks: u64,
}

impl Pass<'_> {
    fn bad(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::corruption(&self.table.path, offset, what.into())
    }

    /// Takes the next block and returns its payload.
    fn block(&mut self, kind: BlockKind, handle: &BlockHandle) -> Result<Bytes> {
        let disk = self.reader.take(handle.disk_len())?;
        let payload = open_block(&self.table.path, self.table.file_id, kind, handle, disk)?;
        self.blocks += 1;
        Ok(payload)
    }

    fn check_header(&mut self) -> Result<()> {
        let header = Header::decode(&self.table.path, &self.reader.take(HEADER_LEN)?)?;
        if header.file_id != self.table.file_id {
            return Err(self.bad(0, format!("file id is {:032x} by now", header.file_id)));
        }
        Ok(())
    }

    /// Checks data blocks and their separators, and the padding behind them.
    fn check_data(&mut self) -> Result<()> {
        let (table, partitions) = (self.table, self.partitions);
        let mut cursor = BlockCursor::new();
        let mut previous_separator: Option<&[u8]> = None;
        for p in partitions {
            for j in 0..p.index.len() {
                let handle = table.data_handle(&p.index, p.handle.offset, j)?;
                let entry = p.index.entry(j);
                let (separator, _) = entry.map_err(|d| d.at(&table.path, p.handle.offset))?;
                self.check_data_block(&handle, &mut cursor, previous_separator)?;
                let largest = &self.tally.meta.largest;
                if table.cmp.internal(largest, separator) == Ordering::Greater {
                    let what = format!("separator {j} lies before its block's last key");
                    return Err(self.bad(p.handle.offset, what));
                }
                previous_separator = Some(separator);
            }
        }
        let footer = &table.footer;
        if self.reader.at != footer.data_end {
            let what = format!("data ends here, expected at {}", footer.data_end);
            return Err(self.bad(self.reader.at, what));
        }
        let padding = footer.filter_offset - footer.data_end;
        let is_zero = |b: &Bytes| b.iter().all(|b| *b == 0);
        if padding >= filter::PAGE_BYTES as u64 || !is_zero(&self.reader.take(padding as usize)?) {
            let what = "padding before the filter is not zeros up to the next page";
            return Err(self.bad(footer.data_end, what));
        }
        Ok(())
    }

    /// Checks the next data block: its place, its inside, and each of its entries.
    fn check_data_block(
        &mut self,
        handle: &BlockHandle,
        cursor: &mut BlockCursor,
        previous_separator: Option<&[u8]>,
    ) -> Result<()> {
        let table = self.table;
        if handle.offset != self.reader.at {
            let what = format!(
                "data block out of its place, expected at {}",
                self.reader.at
            );
            return Err(self.bad(handle.offset, what));
        }
        let payload = self.block(BlockKind::Data, handle)?;
        let at = |d: crate::format::Damage| d.at(&table.path, handle.offset);
        let hash = table
            .bytewise
            .then_some(filter::key_hash as fn(&[u8]) -> u64);
        cursor.load_checked(payload, hash).map_err(at)?;
        cursor.for_each_entry(at, |cursor| {
            let key = cursor.key();
            let ordered = self.tally.meta.entries == 0
                || table.cmp.internal(&self.tally.meta.largest, key) == Ordering::Less;
            let after_separator =
                previous_separator.is_none_or(|s| table.cmp.internal(s, key) == Ordering::Less);
            if !ordered || !after_separator {
                let what = format!("byte {} of the block: keys do not ascend", cursor.at());
                return Err(self.bad(handle.offset, what));
            }
            self.check_filter_has(user_key(key))?;
            let counted = self.tally.entry(key, cursor.value());
            counted.map_err(|e| e.at(&table.path, handle.offset))
        })?;
        self.data_blocks += 1;
        Ok(())
    }

    /// Checks that the filter has a key and its prefix.
    fn check_filter_has(&self, user: &[u8]) -> Result<()> {
        let prefix = self.prefixes.as_ref().and_then(|p| p.of(user));
        let asked = [
            ("key", user, Some(filter::key_hash(user))),
            ("prefix", prefix.unwrap_or(&[]), prefix.map(prefix_hash)),
        ];
        for (what, bytes, hash) in asked {
            if let Some(hash) = hash.filter(|_| !self.pages.is_empty())
                && let Err(page) = filter_has(&self.table.footer, self.pages, hash)
            {
                return Err(self.bad(
                    self.table.filter_page(page).offset,
                    format!("filter lacks {what} {bytes:02x?}"),
                ));
            }
        }
        Ok(())
    }

    fn check_filter(&mut self) -> Result<()> {
        for p in 0..self.pages.len() as u64 {
            let handle = self.table.filter_page(p);
            let payload = self.block(BlockKind::Filter, &handle)?;
            let used = filter::LINES_A_PAGE * filter::LINE_BYTES;
            if payload.iter().skip(used).any(|b| *b != 0) {
                return Err(self.bad(handle.offset, "filter page's padding is not zero"));
            }
        }
        Ok(())
    }

    /// Checks the blocks of range tombstones, and returns these.
    fn check_ranges(&mut self) -> Result<Fragments> {
        let table = self.table;
        let mut ranges = Fragments::default();
        for handle in &table.properties.ranges {
            if handle.offset != self.reader.at {
                let what = format!(
                    "range tombstones out of their place, expected at {}",
                    self.reader.at
                );
                return Err(self.bad(handle.offset, what));
            }
            let payload = self.block(BlockKind::Ranges, handle)?;
            ranges::read_block(&table.cmp, &payload, &mut ranges)
                .map_err(|d| d.at(&table.path, handle.offset))?;
        }
        Ok(ranges)
    }

    fn check_index(&mut self) -> Result<()> {
        for p in self.partitions {
            if p.handle.offset != self.reader.at {
                let what = format!(
                    "index partition out of its place, expected at {}",
                    self.reader.at
                );
                return Err(self.bad(p.handle.offset, what));
            }
            self.block(BlockKind::Index, &p.handle)?;
        }
        let top_at = self.table.footer.top.offset;
        if self.reader.at != top_at {
            let what = format!("index partitions end here, expected at {top_at}");
            return Err(self.bad(self.reader.at, what));
        }
        Ok(())
    }

    /// Checks what ends a table: top level of the index, properties, footer.
    fn check_end(&mut self) -> Result<()> {
        let table = self.table;
        self.block(BlockKind::TopIndex, &table.footer.top)?;
        self.block(BlockKind::Properties, &table.footer.properties)?;
        let end = self.reader.take(FOOTER_LEN)?;
        Footer::decode(&table.path, table.file_id, table.size, &end)?;
        if self.reader.at != table.size {
            return Err(self.bad(self.reader.at, "bytes behind the footer"));
        }
        Ok(())
    }

    /// Compares what was counted with what the properties say.
    fn compare_with_properties(&self) -> Result<()> {
        let said = &self.table.properties;
        let counted = Properties {
            comparator: self.table.cmp.name().to_owned(),
            // The file has nothing to compare the family with. `check` compares it with the
            // manifest.
            family: said.family.clone(),
            prefix_extractor: said.prefix_extractor.clone(),
            meta: TableMeta {
                file_id: 0,
                size: 0,
                range_deletes: 0,
                ..self.tally.meta.clone()
            },
            data_blocks: self.data_blocks,
            own_seqs: self.tally.own_seqs,
            ranges: said.ranges.clone(),
            flush_flag: said.flush_flag,
        };
        if counted != *said {
            let what = format!("properties say {said:?}, the entries say {counted:?}");
            return Err(self.bad(self.table.footer.properties.offset, what));
        }
        Ok(())
    }

    /// Compares digest and counts with those that the manifest remembers.
    fn compare_with_manifest(&mut self, meta: &TableMeta) -> Result<()> {
        let digest = self.reader.digest.digest128();
        if digest != meta.digest {
            let what = format!("digest is {digest:032x}, expected {:032x}", meta.digest);
            return Err(self.bad(0, what));
        }
        self.tally.meta.digest = digest;
        let found = &self.tally.meta;
        if found.clone().shifted(meta.shift).as_ref() != Some(meta) {
            let what = format!("the table's entries say {found:?}, expected {meta:?}");
            return Err(self.bad(0, what));
        }
        Ok(())
    }
}

/// Returns true for an error about the bytes, and false for one about the means to read them.
fn is_damage(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported)
}

pub(crate) fn inspect(env: &Env, file: Arc<dyn File>, path: &Path, cmp: Cmp) -> Result<TableMeta> {
    let header = Header::decode(path, &read_exact(&*file, path, 0, HEADER_LEN)?)?;
    let size = file.len();
    let table = TableReader::open(env, file, path, header.file_id, size, cmp)?;
    let mut tally = Tally::new(table.file_id, size);
    let mut cursor = BlockCursor::new();
    for i in 0..table.top.len() {
        let partition = table
            .partition_handle(i)
            .and_then(|h| Ok((table.read_block(BlockKind::Index, &h)?, h.offset)))
            .and_then(|(b, at)| Ok((IndexBlock::new(b).map_err(|d| d.at(path, at))?, at)));
        let (partition, at) = match partition {
            Ok(p) => p,
            Err(e) if is_damage(&e) => continue,
            Err(e) => return Err(e),
        };
        for j in 0..partition.len() {
            let counted = table.data_handle(&partition, at, j).and_then(|handle| {
                let payload = table.read_block(BlockKind::Data, &handle)?;
                let at = |d: crate::format::Damage| d.at(path, handle.offset);
                // Two passes over the block: a block counts whole or not at all.
                cursor.load_checked(payload, None).map_err(at)?;
                cursor.for_each_entry(at, |c| tally.entry(c.key(), c.value()))
            });
            match counted {
                Err(e) if !is_damage(&e) => return Err(e),
                _ => {}
            }
        }
    }
    // Range tombstones were read and checked when the table was opened.
    tally.meta.take_in_ranges(&table.cmp, table.ranges());
    tally.meta.references = tally.references.take();
    if tally.meta.entries == 0 && tally.meta.range_deletes == 0 {
        return Err(Error::corruption(
            path,
            HEADER_LEN as u64,
            "no data block can be read",
        ));
    }
    let file = table.file()?;
    let mut reader = DigestReader::new(&*file, path, size);
    while reader.at < size {
        let n = (size - reader.at).min(STEP as u64) as usize;
        reader.take(n)?;
    }
    tally.meta.digest = reader.digest.digest128();
    Ok(tally.meta)
}
