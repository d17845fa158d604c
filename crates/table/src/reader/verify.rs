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

/// Bytes of one read of a walk.
const STEP: usize = 1 << 20;

/// Returns a file's bytes front to back, reads in large steps, and digests each byte once.
struct Walk<'a> {
    file: &'a dyn File,
    path: &'a Path,
    size: u64,
    bytes: Bytes,
    /// The offset where `bytes` begins, and the first offset not yet returned.
    start: u64,
    at: u64,
    digest: Xxh3Default,
}

impl<'a> Walk<'a> {
    fn new(file: &'a dyn File, path: &'a Path, size: u64) -> Walk<'a> {
        Walk {
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

/// An index partition for the walk: its place, its contents, and its separator in the top level.
struct Partition {
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
    let footer = &table.footer;
    let bad = |offset: u64, what: String| Error::corruption(path, offset, what);
    if meta.size != table.size || meta.file_id != table.file_id {
        return Err(bad(
            0,
            format!(
                "opened as file {:032x} of {} bytes, expected {:032x} of {}",
                table.file_id, table.size, meta.file_id, meta.size
            ),
        ));
    }
    let mut verified = TableVerified::default();
    // The check of the data needs index and filter, which the walk reaches later.
    let top_at = footer.top.offset;
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
            return Err(bad(
                handle.offset,
                "index partition does not end at the separator that the top-level index has for it"
                    .into(),
            ));
        }
        partitions.push(Partition { handle, index });
    }
    let pages = (0..filter::pages(footer.filter_lines))
        .map(|p| table.read_block(BlockKind::Filter, &table.filter_page(p)))
        .collect::<Result<Vec<_>>>()?;

    let file = table.file()?;
    let mut walk = Walk::new(&*file, path, table.size);
    let header = Header::decode(path, &walk.take(HEADER_LEN)?)?;
    if header.file_id != table.file_id {
        return Err(bad(0, format!("file id is {:032x} by now", header.file_id)));
    }

    // The prefixes of a user's own extractor cannot be computed here.
    let prefixes = table.properties.prefix_extractor.as_deref();
    let prefixes = prefixes.and_then(Prefixes::built_in);
    let mut tally = Tally::new(table.file_id, table.size);
    let mut data_blocks = 0;
    let mut cursor = BlockCursor::new();
    let mut previous_separator: Option<&[u8]> = None;
    for p in &partitions {
        for j in 0..p.index.len() {
            let handle = table.data_handle(&p.index, p.handle.offset, j)?;
            let (separator, _) = p.index.entry(j).map_err(|d| d.at(path, p.handle.offset))?;
            if handle.offset != walk.at {
                return Err(bad(
                    handle.offset,
                    format!("data block out of its place, expected at {}", walk.at),
                ));
            }
            let payload = open_block(
                path,
                table.file_id,
                BlockKind::Data,
                &handle,
                walk.take(handle.disk_len())?,
            )?;
            let at = |d: crate::format::Damage| d.at(path, handle.offset);
            cursor.load(payload).map_err(at)?;
            let hash = table
                .bytewise
                .then_some(filter::key_hash as fn(&[u8]) -> u64);
            cursor.check_all(hash).map_err(at)?;
            cursor.seek_to_first().map_err(at)?;
            while cursor.valid() {
                let key = cursor.key();
                let ordered = tally.meta.entries == 0
                    || table.cmp.internal(&tally.meta.largest, key) == Ordering::Less;
                let after_separator =
                    previous_separator.is_none_or(|s| table.cmp.internal(s, key) == Ordering::Less);
                if !ordered || !after_separator {
                    return Err(bad(
                        handle.offset,
                        format!("byte {} of the block: keys do not ascend", cursor.at()),
                    ));
                }
                let user = user_key(key);
                let prefix = prefixes.as_ref().and_then(|p| p.of(user));
                let asked = [
                    ("key", user, Some(filter::key_hash(user))),
                    ("prefix", prefix.unwrap_or(&[]), prefix.map(prefix_hash)),
                ];
                for (what, bytes, hash) in asked {
                    if let Some(hash) = hash.filter(|_| !pages.is_empty())
                        && let Err(page) = filter_has(footer, &pages, hash)
                    {
                        return Err(bad(
                            table.filter_page(page).offset,
                            format!("filter lacks {what} {bytes:02x?}"),
                        ));
                    }
                }
                let counted = tally.entry(key, cursor.value());
                counted.map_err(|e| e.at(path, handle.offset))?;
                cursor.next().map_err(at)?;
            }
            if table.cmp.internal(&tally.meta.largest, separator) == Ordering::Greater {
                return Err(bad(
                    p.handle.offset,
                    format!("separator {j} lies before its block's last key"),
                ));
            }
            previous_separator = Some(separator);
            data_blocks += 1;
            verified.blocks += 1;
        }
    }
    if walk.at != footer.data_end {
        return Err(bad(
            walk.at,
            format!("data ends here, expected at {}", footer.data_end),
        ));
    }
    let padding = footer.filter_offset - footer.data_end;
    let is_zero = |b: &Bytes| b.iter().all(|b| *b == 0);
    if padding >= filter::PAGE_BYTES as u64 || !is_zero(&walk.take(padding as usize)?) {
        return Err(bad(
            footer.data_end,
            "padding before the filter is not zeros up to the next page".into(),
        ));
    }
    for p in 0..pages.len() as u64 {
        let handle = table.filter_page(p);
        let payload = open_block(
            path,
            table.file_id,
            BlockKind::Filter,
            &handle,
            walk.take(handle.disk_len())?,
        )?;
        let used = filter::LINES_A_PAGE * filter::LINE_BYTES;
        if payload.iter().skip(used).any(|b| *b != 0) {
            return Err(bad(
                handle.offset,
                "filter page's padding is not zero".into(),
            ));
        }
        verified.blocks += 1;
    }
    let mut ranges = Fragments::default();
    for handle in &table.properties.ranges {
        if handle.offset != walk.at {
            return Err(bad(
                handle.offset,
                format!(
                    "range tombstones out of their place, expected at {}",
                    walk.at
                ),
            ));
        }
        let disk = walk.take(handle.disk_len())?;
        let payload = open_block(path, table.file_id, BlockKind::Ranges, handle, disk)?;
        ranges::read_block(&table.cmp, &payload, &mut ranges)
            .map_err(|d| d.at(path, handle.offset))?;
        verified.blocks += 1;
    }
    for p in &partitions {
        if p.handle.offset != walk.at {
            return Err(bad(
                p.handle.offset,
                format!("index partition out of its place, expected at {}", walk.at),
            ));
        }
        open_block(
            path,
            table.file_id,
            BlockKind::Index,
            &p.handle,
            walk.take(p.handle.disk_len())?,
        )?;
        verified.blocks += 1;
    }
    if walk.at != footer.top.offset {
        return Err(bad(
            walk.at,
            format!(
                "index partitions end here, expected at {}",
                footer.top.offset
            ),
        ));
    }
    for (kind, handle) in [
        (BlockKind::TopIndex, &footer.top),
        (BlockKind::Properties, &footer.properties),
    ] {
        let disk = walk.take(handle.disk_len())?;
        open_block(path, table.file_id, kind, handle, disk)?;
        verified.blocks += 1;
    }
    let end = walk.take(FOOTER_LEN)?;
    crate::format::Footer::decode(path, table.file_id, table.size, &end)?;
    if walk.at != table.size {
        return Err(bad(walk.at, "bytes behind the footer".into()));
    }

    tally.meta.take_in_ranges(&table.cmp, &ranges);
    tally.meta.references = tally.references.take();
    let counted = Properties {
        comparator: table.cmp.name().to_owned(),
        // The file has nothing to compare the family with. `check` compares it with the manifest.
        family: table.properties.family.clone(),
        prefix_extractor: table.properties.prefix_extractor.clone(),
        meta: TableMeta {
            file_id: 0,
            size: 0,
            range_deletes: 0,
            ..tally.meta.clone()
        },
        data_blocks,
        own_seqs: tally.own_seqs,
        ranges: table.properties.ranges.clone(),
    };
    if counted != table.properties {
        return Err(bad(
            footer.properties.offset,
            format!(
                "properties say {:?}, the entries say {:?}",
                table.properties, counted
            ),
        ));
    }
    verified.bytes = table.size;
    verified.entries = tally.meta.entries;
    tally.meta.digest = walk.digest.digest128();
    if tally.meta.digest != meta.digest {
        return Err(bad(
            0,
            format!(
                "digest is {:032x}, expected {:032x}",
                tally.meta.digest, meta.digest
            ),
        ));
    }
    let shown = tally.meta.clone().shifted(meta.shift);
    if shown.as_ref() != Some(meta) {
        return Err(bad(
            0,
            format!(
                "the table's entries say {:?}, expected {meta:?}",
                tally.meta
            ),
        ));
    }
    Ok(verified)
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
                cursor.load(payload).map_err(at)?;
                cursor.check_all(None).map_err(at)?;
                cursor.seek_to_first().map_err(at)?;
                while cursor.valid() {
                    tally.entry(cursor.key(), cursor.value())?;
                    cursor.next().map_err(at)?;
                }
                Ok(())
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
    let mut walk = Walk::new(&*file, path, size);
    while walk.at < size {
        let n = (size - walk.at).min(STEP as u64) as usize;
        walk.take(n)?;
    }
    tally.meta.digest = walk.digest.digest128();
    Ok(tally.meta)
}
