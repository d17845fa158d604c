//! Salvage of a damaged table: every entry of every data block that still verifies, and the lost
//! parts between them.
//!
//! Data blocks are found through the index where the index is whole. Elsewhere, a data block is
//! found by its own trailer. Blocks lie one behind the other, and a block's checksum covers kind,
//! file id and offset. So a run of bytes that verifies *is* a block of this file at this place.
//! Owns nothing; promises never to return an entry that was not added to this table.

use super::block::BlockCursor;
use super::exact_read::read_exact;
use super::format::{
    BLOCK_TRAILER_LEN, BlockHandle, BlockKind, FOOTER_LEN, Footer, HEADER_LEN, Header,
    context_hash, open_block,
};
use super::index::IndexBlock;
use super::properties::Properties;
use super::ranges;
use super::resync;
use crate::TableMeta;
use basalt_fs::{Bytes, Error, ErrorKind, File, Result};
use basalt_kv::encoding::u64_at;
use basalt_kv::key::{Cmp, user_key};
use basalt_kv::ranges::Fragments;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3Default;

/// After damage, the salvage searches at every offset for blocks of up to this many bytes. If four
/// times the table's block size is more, that is the limit. Larger blocks are found by the index,
/// or if everything before them is whole.
const RESYNC_BYTES: usize = 64 << 10;

/// Bytes of one read in the search for blocks of range tombstones.
const RANGES_STEP: usize = 4 << 20;

/// Facts about a table that the caller has from other sources.
#[derive(Debug, Clone, Default)]
pub struct KnownTable {
    /// The table's file id; `None` takes the one in its header or footer.
    pub file_id: Option<u128>,
    /// The range of bytes in the file.
    pub size: Option<u64>,
    /// The shift of sequence numbers, see [`TableMeta::shift`].
    pub shift: u64,
}

impl From<&TableMeta> for KnownTable {
    /// Takes the facts that a manifest has of a table.
    fn from(meta: &TableMeta) -> KnownTable {
        KnownTable {
            file_id: Some(meta.file_id),
            size: Some(meta.size),
            shift: meta.shift,
        }
    }
}

/// A part of a table's data that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostPart {
    /// The range of bytes in the file.
    pub bytes: Range<u64>,
    /// No user key of the part is before this; `None` if nothing before the part can be read.
    pub from: Option<Vec<u8>>,
    /// No user key of the part is after this; `None` if nothing after the part can be read.
    pub to: Option<Vec<u8>>,
    /// The expected and the found bytes or values, as text.
    pub reason: String,
}

/// The result of [`salvage`].
#[derive(Debug, Clone, Default)]
pub struct Salvaged {
    /// Number of entries that were returned.
    pub entries: u64,
    /// The range tombstones that can be read.
    pub ranges: Fragments,
    /// True if the properties name range tombstones that cannot be read; `None` if the properties
    /// are lost.
    pub ranges_lost: Option<bool>,
    /// The parts of the data that cannot be read. Without a readable footer, the last part may be
    /// filter and index only.
    pub lost: Vec<LostPart>,
    /// The offset where the table says that its data ends; `None` if its footer is lost.
    pub data_end: Option<u64>,
    /// Number of entries that the properties name, if they can be read.
    pub entries_written: Option<u64>,
    /// Name of the comparator with which the table was written, if its properties can be read.
    pub comparator: Option<String>,
}

fn is_damage(e: &Error) -> bool {
    e.kind() == ErrorKind::Corruption
}

/// Returns `Ok(None)` for `Corruption`, so that a salvage goes on behind it. Other errors are
/// passed on.
pub fn unless_damaged<T>(r: Result<T>) -> Result<Option<T>> {
    match r {
        Ok(t) => Ok(Some(t)),
        Err(e) if is_damage(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The function that is called with each entry: internal key and value.
pub type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// The state of salvaging one table.
struct Salvager<'a> {
    file: &'a dyn File,
    path: &'a Path,
    file_id: u128,
    cmp: &'a Cmp,
    block_bytes: usize,
    cursor: BlockCursor,
    /// The last internal key that was returned.
    last: Vec<u8>,
    out: Salvaged,
    /// The offset where the last block of range tombstones ends. The index is behind it.
    ranges_end: u64,
    each: Each<'a>,
}

/// Reads all readable entries of a table and passes each, ascending, to `each`.
///
/// Errors: `Corruption` if nothing says which file it is, or if it is another file than the known
/// one; `Unsupported` if a later version wrote it; `Io`; any error of `each`.
pub fn salvage(
    file: &dyn File,
    path: &Path,
    known: &KnownTable,
    cmp: &Cmp,
    each: Each<'_>,
) -> Result<Salvaged> {
    let space = file.len().max(file.allocated());
    let size = known.size.unwrap_or(file.len()).min(space);
    let header = match read_exact(file, path, 0, HEADER_LEN) {
        Ok(h) => unless_damaged(Header::decode(path, &h))?,
        Err(e) if is_damage(&e) => None,
        Err(e) => return Err(e),
    };
    let tail = match size.checked_sub(FOOTER_LEN as u64) {
        Some(at) => unless_damaged(read_exact(file, path, at, FOOTER_LEN))?,
        None => None,
    };
    let written_id = header
        .as_ref()
        .map(|h| h.file_id)
        .or_else(|| Footer::own_id(path, size, tail.as_deref()?));
    let file_id = match (known.file_id, written_id) {
        (Some(k), Some(w)) if k != w => {
            return Err(Error::corruption(
                path,
                16,
                format!("file id is {w:032x}, expected {k:032x}: this is another file"),
            ));
        }
        (Some(id), _) | (None, Some(id)) => id,
        (None, None) => {
            return Err(Error::corruption(
                path,
                0,
                "neither header nor footer says which file this is",
            ));
        }
    };
    let footer = match &tail {
        Some(t) => unless_damaged(Footer::decode(path, file_id, size, t))?,
        None => None,
    };
    let mut salvager = Salvager {
        file,
        path,
        file_id,
        cmp,
        block_bytes: header.map_or(0, |h| h.block_bytes as usize),
        cursor: BlockCursor::with_shift(known.shift),
        last: Vec::new(),
        out: Salvaged {
            data_end: footer.as_ref().map(|f| f.data_end),
            ..Salvaged::default()
        },
        ranges_end: 0,
        each,
    };
    let mut handles = BTreeMap::new();
    let mut ranges: Option<Vec<BlockHandle>> = None;
    if let Some(f) = &footer
        && let Some(bytes) = salvager.block(BlockKind::Properties, &f.properties)?
        && let Some(p) = unless_damaged(Properties::decode(path, f.properties.offset, &bytes))?
    {
        if p.comparator != cmp.name() {
            return Err(Error::invalid(format!(
                "table was written with comparator {:?} and cannot be read with {:?}",
                p.comparator,
                cmp.name()
            ))
            .in_file(path));
        }
        salvager.out.entries_written = Some(p.meta.entries);
        ranges = Some(p.ranges);
        salvager.out.comparator = Some(p.comparator);
    }
    salvager.ranges(ranges, size)?;
    if let Some(f) = &footer {
        handles = salvager.handles(f)?;
    }
    let end = footer.as_ref().map_or(size, |f| f.data_end);
    salvager.data(HEADER_LEN as u64, end, &handles)?;
    if let Some(known) = known.size.filter(|n| *n > size) {
        salvager.lose(size..known, "the file ends here");
    }
    Ok(salvager.out)
}

impl Salvager<'_> {
    fn block(&self, kind: BlockKind, handle: &BlockHandle) -> Result<Option<Bytes>> {
        let disk = read_exact(self.file, self.path, handle.offset, handle.disk_len());
        unless_damaged(
            disk.and_then(|disk| open_block(self.path, self.file_id, kind, handle, disk)),
        )
    }

    /// Reads range tombstones at the places that the properties name. Without properties, reads
    /// each block of them that verifies anywhere.
    fn ranges(&mut self, known: Option<Vec<BlockHandle>>, size: u64) -> Result<()> {
        let sure = known.is_some();
        let mut lost = false;
        let handles = match known {
            Some(handles) => handles,
            None => self.find_ranges(size)?,
        };
        let mut read: Vec<Fragments> = Vec::new();
        for handle in handles {
            if handle.offset < self.ranges_end {
                // Blocks lie one behind the other. A block that is named twice is not read twice.
                lost = true;
                continue;
            }
            self.ranges_end = handle.end();
            let mut part = Fragments::default();
            let whole = self
                .block(BlockKind::Ranges, &handle)?
                .is_some_and(|b| ranges::read_block(self.cmp, &b, &mut part).is_ok());
            lost |= !whole;
            if whole {
                read.push(part);
            }
        }
        let pieces = read.iter().flat_map(|f| f.iter());
        self.out.ranges = Fragments::build(self.cmp, pieces, None);
        self.out.ranges_lost = sure.then_some(lost);
        Ok(())
    }

    fn find_ranges(&self, size: u64) -> Result<Vec<BlockHandle>> {
        let mut found: Vec<BlockHandle> = Vec::new();
        let mut at = 0;
        while at < size {
            // A block is never longer than half of this step. The next step begins that many bytes
            // before this one's end.
            let len = RANGES_STEP.min(usize::try_from(size - at).unwrap_or(usize::MAX));
            if let Some(bytes) = unless_damaged(read_exact(self.file, self.path, at, len))? {
                for handle in ranges::find_blocks(&bytes, at, self.file_id) {
                    if !found.contains(&handle) {
                        found.push(handle);
                    }
                }
            }
            at += if at + len as u64 == size {
                len as u64
            } else {
                RANGES_STEP as u64 / 2
            };
        }
        Ok(found)
    }

    /// Returns the places of data blocks that readable index partitions name.
    fn handles(&self, footer: &Footer) -> Result<BTreeMap<u64, BlockHandle>> {
        let mut partitions = Vec::new();
        let top = self
            .block(BlockKind::TopIndex, &footer.top)?
            .and_then(|b| IndexBlock::top(b).ok());
        if let Some(top) = top {
            for i in 0..top.len() {
                if let Ok((_, h)) = top.entry(i)
                    && h.is_inside(footer.index_offset, footer.top.offset)
                    && let Some(b) = self.block(BlockKind::Index, &h)?
                {
                    partitions.extend(IndexBlock::new(b).ok());
                }
            }
        } else {
            let mut at = footer.index_offset.max(self.ranges_end);
            while at < footer.top.offset {
                let len = (footer.top.offset - at) as usize;
                let Some(bytes) = unless_damaged(read_exact(self.file, self.path, at, len))? else {
                    break;
                };
                let Some((h, payload)) = self.find(BlockKind::Index, &bytes, 0, at, len) else {
                    break;
                };
                partitions.extend(IndexBlock::new(payload).ok());
                at = h.end();
            }
        }
        let mut handles = BTreeMap::new();
        for p in &partitions {
            for j in 0..p.len() {
                if let Ok((_, h)) = p.entry(j)
                    && h.is_inside(HEADER_LEN as u64, footer.data_end)
                {
                    handles.insert(h.offset, h);
                }
            }
        }
        Ok(handles)
    }

    fn data(&mut self, start: u64, end: u64, handles: &BTreeMap<u64, BlockHandle>) -> Result<()> {
        let mut at = start;
        while at < end {
            if let Some(h) = handles.get(&at) {
                let disk = read_exact(self.file, self.path, h.offset, h.disk_len());
                let opened = disk
                    .and_then(|d| open_block(self.path, self.file_id, BlockKind::Data, h, d))
                    .and_then(|payload| self.take(payload, h.offset));
                match opened {
                    Ok(()) => {}
                    Err(e) if is_damage(&e) => self.lose(at..h.end(), &e.to_string()),
                    Err(e) => return Err(e),
                }
                at = h.end();
                continue;
            }
            let stop = handles
                .range(at + 1..)
                .next()
                .map_or(end, |(o, _)| *o)
                .min(end);
            self.gap(at, stop)?;
            at = stop;
        }
        Ok(())
    }

    /// Searches for blocks between two offsets where no index names them.
    fn gap(&mut self, start: u64, stop: u64) -> Result<()> {
        let len = usize::try_from(stop - start).unwrap_or(usize::MAX);
        let bytes = match read_exact(self.file, self.path, start, len) {
            Ok(b) => b,
            Err(e) if is_damage(&e) => {
                self.lose(start..stop, &e.to_string());
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let near = RESYNC_BYTES.max(4 * self.block_bytes);
        let mut at = 0;
        // The offset where the current stretch of unreadable bytes began.
        let mut lost = None;
        while at < bytes.len() {
            // A block behind a good one may be of any size. After damage, only blocks up to `near`
            // bytes are sought.
            let reach = if lost.is_none() { bytes.len() } else { near };
            let found = self.find(BlockKind::Data, &bytes, at, start, reach);
            let Some((handle, payload)) = found else {
                lost.get_or_insert(at);
                at += 1;
                continue;
            };
            if let Some(from) = lost.take() {
                self.lose(
                    start + from as u64..handle.offset,
                    "no data block verifies here, and the index does not say where they were",
                );
            }
            match self.take(payload, handle.offset) {
                Ok(()) => {}
                Err(e) if is_damage(&e) => self.lose(handle.offset..handle.end(), &e.to_string()),
                Err(e) => return Err(e),
            }
            at += handle.disk_len();
        }
        if let Some(from) = lost {
            self.lose(
                start + from as u64..stop,
                "no data block verifies here, and the index does not say where they were",
            );
        }
        Ok(())
    }

    /// Returns the block that begins at `bytes[from..]` (offset `base + from` of the file) and is
    /// at most `reach` bytes long.
    fn find(
        &self,
        kind: BlockKind,
        bytes: &Bytes,
        from: usize,
        base: u64,
        reach: usize,
    ) -> Option<(BlockHandle, Bytes)> {
        let offset = base + from as u64;
        let rest = &bytes[from..];
        let most = rest.len().min(reach).checked_sub(BLOCK_TRAILER_LEN)?;
        let mut digest = None;
        let mut hashed = 0;
        let mut found = None;
        resync::ends(kind, rest, most, |stored, method, raw| {
            let digest = digest.get_or_insert_with(Xxh3Default::new);
            digest.update(&rest[hashed..stored]);
            hashed = stored;
            let context = context_hash(kind, method, self.file_id, offset);
            if digest.digest() ^ context != u64_at(rest, stored + 1) {
                return false;
            }
            found = Some(BlockHandle {
                offset,
                stored: stored as u32,
                raw: raw as u32,
            });
            true
        });
        let handle = found?;
        let disk = bytes.slice(from..from + handle.disk_len());
        open_block(self.path, self.file_id, kind, &handle, disk)
            .ok()
            .map(|payload| (handle, payload))
    }

    /// Returns a block's entries: all of them or, if the block is out of order, none.
    fn take(&mut self, payload: Bytes, offset: u64) -> Result<()> {
        let (path, cmp) = (self.path, self.cmp);
        let at = |d: super::format::Damage| d.at(path, offset);
        self.cursor.load_checked(payload, None).map_err(at)?;
        let mut previous = self.last.clone();
        let mut first = None;
        self.cursor.for_each_entry(at, |cursor| {
            let key = cursor.key();
            if !previous.is_empty() && cmp.internal(&previous, key) != Ordering::Less {
                return Err(Error::corruption(path, offset, "keys do not ascend"));
            }
            first.get_or_insert_with(|| key.to_vec());
            previous.clear();
            previous.extend_from_slice(key);
            Ok(())
        })?;
        let Some(first) = first else {
            return Err(Error::corruption(
                path,
                offset,
                "data block without entries",
            ));
        };
        for part in self.out.lost.iter_mut().rev() {
            if part.to.is_some() {
                break;
            }
            part.to = Some(user_key(&first).to_vec());
        }
        self.cursor.for_each_entry(at, |cursor| {
            (self.each)(cursor.key(), cursor.value())?;
            self.out.entries += 1;
            Ok(())
        })?;
        self.last = previous;
        Ok(())
    }

    fn lose(&mut self, bytes: Range<u64>, reason: &str) {
        if let Some(last) = self.out.lost.last_mut()
            && last.to.is_none()
            && last.bytes.end == bytes.start
        {
            last.bytes.end = bytes.end;
            return;
        }
        self.out.lost.push(LostPart {
            bytes,
            from: (!self.last.is_empty()).then(|| user_key(&self.last).to_vec()),
            to: None,
            reason: reason.to_string(),
        });
    }
}
