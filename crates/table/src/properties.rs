//! The properties block: what a table says about itself, as tags that readers must understand or
//! may skip.

use super::exact_read::read_exact;
use super::format::{BlockHandle, BlockKind, FOOTER_LEN, Footer, HEADER_LEN, Header, open_block};
use super::ranges::OPEN_END;
use super::{References, TableFamily, TableMeta};
use basalt_fs::{Error, ErrorKind, File, Result};
use basalt_kv::MAX_KEY_LEN;
use basalt_kv::encoding::{get_varint, put_varint};
use basalt_kv::flush_flag::{FlushFlag, TSN_LIMIT};
use basalt_kv::key::{SEQ_LIMIT, SeqNo, TRAILER_LEN};
use basalt_kv::limits::{MAX_FAMILY, MAX_FILE_NUMBER};
use basalt_kv::prefix::MAX_NAME;
use std::path::Path;

// Property tags. A reader must understand an odd tag and may skip an even one. Tags are never
// reused.
const P_COMPARATOR: u64 = 1;
const P_ENTRIES: u64 = 3;
const P_DELETES: u64 = 5;
const P_SMALLEST: u64 = 7;
const P_LARGEST: u64 = 9;
const P_MIN_SEQ: u64 = 11;
const P_MAX_SEQ: u64 = 13;
const P_RAW_KEY_BYTES: u64 = 14;
const P_RAW_VALUE_BYTES: u64 = 16;
const P_SOONEST_EXPIRY: u64 = 17;
const P_DATA_BLOCKS: u64 = 18;
const P_RANGES: u64 = 19;
const P_FAMILY: u64 = 20;
const P_REFERENCES: u64 = 21;
const P_FAMILY_NAME: u64 = 22;
const P_OWN_SEQS: u64 = 23;
const P_PREFIX_EXTRACTOR: u64 = 30;
const P_FLUSH_FLAG: u64 = 32;

/// The properties of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Properties {
    pub(super) comparator: String,
    /// The family; `None` in a table of another writer.
    pub(super) family: Option<TableFamily>,
    /// The name of the extractor whose prefixes of all keys are in the filter.
    pub(super) prefix_extractor: Option<Box<str>>,
    /// The metadata without file id, size and digest, which are not in the properties and 0 here.
    pub(super) meta: TableMeta,
    pub(super) data_blocks: u64,
    /// Number of references with a sequence number of their own, which is the record's. Builds that
    /// do not know such references refuse the table.
    pub(super) own_seqs: u64,
    /// The blocks of range tombstones. The number of tombstones is not in the properties: it is 0
    /// in `meta`.
    pub(super) ranges: Vec<BlockHandle>,
    /// Up to where the family is persisted, in a passive store.
    pub(super) flush_flag: Option<FlushFlag>,
}

impl Properties {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let m = &self.meta;
        let mut put = |tag: u64, bytes: &[u8]| {
            put_varint(&mut out, tag);
            put_varint(&mut out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        };
        put(P_COMPARATOR, self.comparator.as_bytes());
        put(P_ENTRIES, &m.entries.to_le_bytes());
        put(P_DELETES, &m.deletes.to_le_bytes());
        put(P_SMALLEST, &m.smallest);
        put(P_LARGEST, &m.largest);
        put(P_MIN_SEQ, &m.min_seq.to_le_bytes());
        put(P_MAX_SEQ, &m.max_seq.to_le_bytes());
        put(P_RAW_KEY_BYTES, &m.raw_key_bytes.to_le_bytes());
        put(P_RAW_VALUE_BYTES, &m.raw_value_bytes.to_le_bytes());
        put(P_SOONEST_EXPIRY, &m.soonest_expiry_ms.to_le_bytes());
        put(P_DATA_BLOCKS, &self.data_blocks.to_le_bytes());
        if !self.ranges.is_empty() {
            let mut handles = Vec::new();
            self.ranges.iter().for_each(|h| h.encode(&mut handles));
            put(P_RANGES, &handles);
        }
        if let Some(f) = &self.family {
            put(P_FAMILY, &u64::from(f.id).to_le_bytes());
        }
        if !m.references.is_empty() {
            put(P_REFERENCES, &encode_references(&m.references));
        }
        if let Some(f) = &self.family {
            put(P_FAMILY_NAME, f.name.as_bytes());
        }
        if self.own_seqs > 0 {
            put(P_OWN_SEQS, &self.own_seqs.to_le_bytes());
        }
        if let Some(name) = &self.prefix_extractor {
            put(P_PREFIX_EXTRACTOR, name.as_bytes());
        }
        if let Some(flag) = &self.flush_flag {
            let numbers = [flag.tsn, flag.first_seq, flag.items()];
            put(P_FLUSH_FLAG, &numbers.map(u64::to_le_bytes).concat());
        }
        out
    }

    pub(super) fn decode(path: &Path, offset: u64, bytes: &[u8]) -> Result<Properties> {
        let mut p = Properties {
            comparator: String::new(),
            family: None,
            prefix_extractor: None,
            meta: TableMeta {
                file_id: 0,
                size: 0,
                digest: 0,
                entries: 0,
                deletes: 0,
                smallest: Vec::new(),
                largest: Vec::new(),
                min_seq: 0,
                max_seq: 0,
                raw_key_bytes: 0,
                raw_value_bytes: 0,
                soonest_expiry_ms: u64::MAX,
                range_deletes: 0,
                references: References::default(),
                shift: 0,
            },
            data_blocks: 0,
            own_seqs: 0,
            ranges: Vec::new(),
            flush_flag: None,
        };
        let block = Block { path, offset };
        let mut at = 0;
        let mut last_tag = 0;
        let mut mandatory = 0;
        let mut family = None;
        while at < bytes.len() {
            let tagged = Tagged::read(&block, bytes, &mut at)?;
            let tag = tagged.tag;
            if tag <= last_tag {
                return Err(tagged.bad(format!("tag {tag} after {last_tag}")));
            }
            last_tag = tag;
            let only_some = matches!(tag, P_RANGES | P_REFERENCES | P_OWN_SEQS);
            mandatory += usize::from(tag % 2 == 1 && !only_some);
            p.take(&tagged, &mut family)?;
        }
        if mandatory != 8 {
            let what = format!("{mandatory} of 8 mandatory properties present");
            return Err(block.bad(at, what));
        }
        if family.is_some() != p.family.is_some() {
            return Err(block.bad(at, "a family's id without its name"));
        }
        Ok(p)
    }

    /// Takes one property. The id of the family comes before its name, so it is kept in `family`.
    fn take(&mut self, tagged: &Tagged<'_>, family: &mut Option<u32>) -> Result<()> {
        match tagged.tag {
            P_COMPARATOR => {
                self.comparator = std::str::from_utf8(tagged.value)
                    .map_err(|_| tagged.bad("comparator name is not UTF-8"))?
                    .to_owned();
            }
            P_ENTRIES => self.meta.entries = tagged.number()?,
            P_DELETES => self.meta.deletes = tagged.number()?,
            P_SMALLEST => self.meta.smallest = tagged.key()?,
            P_LARGEST => self.meta.largest = tagged.key()?,
            P_MIN_SEQ => self.meta.min_seq = tagged.number()? as SeqNo,
            P_MAX_SEQ => self.meta.max_seq = tagged.number()? as SeqNo,
            P_RAW_KEY_BYTES => self.meta.raw_key_bytes = tagged.number()?,
            P_RAW_VALUE_BYTES => self.meta.raw_value_bytes = tagged.number()?,
            P_SOONEST_EXPIRY => self.meta.soonest_expiry_ms = tagged.number()?,
            P_DATA_BLOCKS => self.data_blocks = tagged.number()?,
            P_RANGES => self.ranges = tagged.handles()?,
            P_FAMILY => {
                let id = u32::try_from(tagged.number()?).ok();
                let id = id.filter(|id| *id <= MAX_FAMILY);
                *family = Some(id.ok_or_else(|| tagged.bad("no family has this id"))?);
            }
            P_REFERENCES => {
                let found = decode_references(tagged.value).filter(|r| !r.is_empty());
                self.meta.references =
                    found.ok_or_else(|| tagged.bad("references to blob files"))?;
            }
            P_FAMILY_NAME => {
                self.family = family.zip(tagged.name(255)).map(|(id, name)| TableFamily {
                    id,
                    name: name.into(),
                });
                if self.family.is_none() {
                    return Err(tagged.bad("a family's name that is none, or that has no id"));
                }
            }
            P_OWN_SEQS => {
                self.own_seqs = tagged.number()?;
                if self.own_seqs == 0 {
                    return Err(tagged.bad("references with numbers of their own, and none"));
                }
            }
            P_PREFIX_EXTRACTOR => {
                let name = tagged.name(MAX_NAME);
                let name =
                    name.ok_or_else(|| tagged.bad("a prefix extractor's name that is none"))?;
                self.prefix_extractor = Some(name.into());
            }
            P_FLUSH_FLAG => self.flush_flag = Some(tagged.flush_flag()?),
            unknown if unknown % 2 == 1 => {
                return Err(Error::unsupported(format!(
                    "table has property {unknown}, which a later version writes and a reader must understand"
                ))
                .at(tagged.block.path, tagged.block.offset));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The block that properties are read from, for errors.
struct Block<'a> {
    path: &'a Path,
    offset: u64,
}

impl Block<'_> {
    fn bad(&self, at: usize, what: impl std::fmt::Display) -> Error {
        let what = format!("properties: byte {at} of the block: {what}");
        Error::corruption(self.path, self.offset, what)
    }
}

/// One property as it is stored: a tag and the bytes of its value.
struct Tagged<'a> {
    block: &'a Block<'a>,
    /// Offset in bytes at which the property begins in the block.
    start: usize,
    tag: u64,
    value: &'a [u8],
}

impl<'a> Tagged<'a> {
    /// Reads the property at `at`, and moves `at` behind it.
    fn read(block: &'a Block<'a>, bytes: &'a [u8], at: &mut usize) -> Result<Tagged<'a>> {
        let start = *at;
        let cut = || block.bad(start, "cut off");
        let tag = get_varint(bytes, at, 32).ok_or_else(cut)?;
        let len = get_varint(bytes, at, 32).ok_or_else(cut)? as usize;
        let end = at.checked_add(len);
        let value = end.and_then(|end| bytes.get(*at..end)).ok_or_else(cut)?;
        *at += len;
        Ok(Tagged {
            block,
            start,
            tag,
            value,
        })
    }

    fn bad(&self, what: impl std::fmt::Display) -> Error {
        self.block.bad(self.start, what)
    }

    fn number(&self) -> Result<u64> {
        let (tag, value) = (self.tag, self.value);
        let bytes = value
            .try_into()
            .map_err(|_| self.bad(format!("tag {tag} holds {} bytes, expected 8", value.len())))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Returns the value as an internal key. The largest key may be the open end of a range.
    fn key(&self) -> Result<Vec<u8>> {
        let (tag, value) = (self.tag, self.value);
        if value.len() < TRAILER_LEN || value.len() > MAX_KEY_LEN + TRAILER_LEN {
            return Err(self.bad(format!("tag {tag}: key of {} bytes", value.len())));
        }
        let open = tag == P_LARGEST && value.ends_with(&OPEN_END.to_le_bytes());
        if !open {
            basalt_kv::key::parse_internal_key(value)
                .map_err(|e| e.at(self.block.path, self.block.offset))?;
        }
        Ok(value.to_vec())
    }

    /// Returns the places of the blocks of range tombstones, at least one.
    fn handles(&self) -> Result<Vec<BlockHandle>> {
        let (mut at, mut handles) = (0, Vec::new());
        while at < self.value.len() {
            let handle = BlockHandle::decode(self.value, &mut at)
                .filter(|h| h.raw == 0)
                .ok_or_else(|| self.bad("place of range tombstones"))?;
            handles.push(handle);
        }
        if handles.is_empty() {
            return Err(self.bad("range tombstones nowhere"));
        }
        Ok(handles)
    }

    /// Returns the value as a flush flag.
    fn flush_flag(&self) -> Result<FlushFlag> {
        let number = |i: usize| Some(u64::from_le_bytes(*self.value.get(8 * i..)?.first_chunk()?));
        let numbers = (self.value.len() == 24).then(|| (number(0), number(1), number(2)));
        let Some((Some(tsn), Some(first), Some(items))) = numbers else {
            return Err(self.bad("a flush flag that does not have 24 bytes"));
        };
        let is_sound = first > 0 && first < SEQ_LIMIT && items < SEQ_LIMIT && tsn < TSN_LIMIT;
        match is_sound {
            true => Ok(FlushFlag::of(tsn, first, items)),
            false => Err(self.bad("a flush flag with numbers that no store reaches")),
        }
    }

    /// Returns the value as a name of 1 to `most` bytes, `None` if it is no such name.
    fn name(&self, most: usize) -> Option<&'a str> {
        let name = std::str::from_utf8(self.value).ok();
        name.filter(|n| (1..=most).contains(&n.len()))
    }
}

/// Encodes numbers and counts as varints, each number as its distance from the one before.
pub fn encode_references(references: &References) -> Vec<u8> {
    let (mut out, mut last) = (Vec::new(), 0);
    for (number, count) in references.iter() {
        put_varint(&mut out, number - last);
        put_varint(&mut out, *count);
        last = *number;
    }
    out
}

/// Decodes references. Returns `None` for bytes that [`encode_references`] does not write.
pub fn decode_references(bytes: &[u8]) -> Option<References> {
    let (mut out, mut at, mut last) = (Vec::new(), 0, 0u64);
    while at < bytes.len() {
        let more = get_varint(bytes, &mut at, 48)?;
        let count = get_varint(bytes, &mut at, 48)?;
        last = last.checked_add(more)?;
        if more == 0 || count == 0 || last >= MAX_FILE_NUMBER {
            return None;
        }
        out.push((last, count));
    }
    Some(out.into())
}

/// The family and the references of a table, as the table's properties say.
pub struct Own {
    /// Its family.
    pub family: TableFamily,
    /// The name of the table's comparator.
    pub comparator: String,
    /// The blob files that the table refers to.
    pub references: References,
    /// Up to where the family is persisted with the table, in a passive store.
    pub flush_flag: Option<FlushFlag>,
}

/// Returns the family, the comparator's name and the references that the table in `file` names.
/// `repair` calls this without other knowledge of the table. Returns `None` if header, footer or
/// properties do not verify, or do not name a family.
pub fn family_of(file: &dyn File, path: &Path) -> Result<Option<Own>> {
    let read = || -> Result<Properties> {
        let size = file.len();
        let header = Header::decode(path, &read_exact(file, path, 0, HEADER_LEN)?)?;
        let tail_at = size.saturating_sub(FOOTER_LEN as u64);
        let tail = read_exact(file, path, tail_at, FOOTER_LEN)?;
        let footer = Footer::decode(path, header.file_id, size, &tail)?;
        let h = &footer.properties;
        let disk = read_exact(file, path, h.offset, h.disk_len())?;
        let block = open_block(path, header.file_id, BlockKind::Properties, h, disk)?;
        Properties::decode(path, h.offset, &block)
    };
    match read() {
        Ok(p) => Ok(p.family.map(|family| Own {
            family,
            comparator: p.comparator,
            references: p.meta.references,
            flush_flag: p.flush_flag,
        })),
        Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported) => Ok(None),
        Err(e) => Err(e),
    }
}
