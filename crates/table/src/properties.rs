//! The properties block: what a table says about itself, as tags that readers must understand or
//! may skip.

use super::exact_read::read_exact;
use super::format::{BlockHandle, BlockKind, FOOTER_LEN, Footer, HEADER_LEN, Header, open_block};
use super::ranges::OPEN_END;
use super::{References, TableFamily, TableMeta};
use basalt_fs::{Error, ErrorKind, File, Result};
use basalt_kv::MAX_KEY_LEN;
use basalt_kv::encoding::{get_varint, put_varint};
use basalt_kv::key::{SeqNo, TRAILER_LEN};
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
        out
    }

    pub(super) fn decode(path: &Path, offset: u64, bytes: &[u8]) -> Result<Properties> {
        let bad = |at: usize, what: String| {
            Error::corruption(
                path,
                offset,
                format!("properties: byte {at} of the block: {what}"),
            )
        };
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
        };
        let mut at = 0;
        let mut last_tag = 0;
        let mut mandatory = 0;
        let mut family = None;
        while at < bytes.len() {
            let start = at;
            let cut = || bad(start, "cut off".into());
            let tag = get_varint(bytes, &mut at, 32).ok_or_else(cut)?;
            let len = get_varint(bytes, &mut at, 32).ok_or_else(cut)? as usize;
            let value = at
                .checked_add(len)
                .and_then(|end| bytes.get(at..end))
                .ok_or_else(cut)?;
            at += len;
            if tag <= last_tag {
                return Err(bad(start, format!("tag {tag} after {last_tag}")));
            }
            last_tag = tag;
            let number = || -> Result<u64> {
                Ok(u64::from_le_bytes(value.try_into().map_err(|_| {
                    bad(
                        start,
                        format!("tag {tag} holds {} bytes, expected 8", value.len()),
                    )
                })?))
            };
            let key = || -> Result<Vec<u8>> {
                if value.len() < TRAILER_LEN || value.len() > MAX_KEY_LEN + TRAILER_LEN {
                    return Err(bad(
                        start,
                        format!("tag {tag}: key of {} bytes", value.len()),
                    ));
                }
                let open = tag == P_LARGEST && value.ends_with(&OPEN_END.to_le_bytes());
                if !open {
                    basalt_kv::key::parse_internal_key(value).map_err(|e| e.at(path, offset))?;
                }
                Ok(value.to_vec())
            };
            let only_some = matches!(tag, P_RANGES | P_REFERENCES | P_OWN_SEQS);
            mandatory += usize::from(tag % 2 == 1 && !only_some);
            match tag {
                P_COMPARATOR => {
                    p.comparator = std::str::from_utf8(value)
                        .map_err(|_| bad(start, "comparator name is not UTF-8".into()))?
                        .to_owned();
                }
                P_ENTRIES => p.meta.entries = number()?,
                P_DELETES => p.meta.deletes = number()?,
                P_SMALLEST => p.meta.smallest = key()?,
                P_LARGEST => p.meta.largest = key()?,
                P_MIN_SEQ => p.meta.min_seq = number()? as SeqNo,
                P_MAX_SEQ => p.meta.max_seq = number()? as SeqNo,
                P_RAW_KEY_BYTES => p.meta.raw_key_bytes = number()?,
                P_RAW_VALUE_BYTES => p.meta.raw_value_bytes = number()?,
                P_SOONEST_EXPIRY => p.meta.soonest_expiry_ms = number()?,
                P_DATA_BLOCKS => p.data_blocks = number()?,
                P_RANGES => {
                    let mut at = 0;
                    while at < value.len() {
                        let handle = BlockHandle::decode(value, &mut at)
                            .filter(|h| h.raw == 0)
                            .ok_or_else(|| bad(start, "place of range tombstones".into()))?;
                        p.ranges.push(handle);
                    }
                    if p.ranges.is_empty() {
                        return Err(bad(start, "range tombstones nowhere".into()));
                    }
                }
                P_FAMILY => {
                    let id = u32::try_from(number()?).ok().filter(|id| *id <= MAX_FAMILY);
                    family = Some(id.ok_or_else(|| bad(start, "no family has this id".into()))?);
                }
                P_REFERENCES => {
                    let found = decode_references(value).filter(|r| !r.is_empty());
                    p.meta.references =
                        found.ok_or_else(|| bad(start, "references to blob files".into()))?;
                }
                P_FAMILY_NAME => {
                    let name = std::str::from_utf8(value)
                        .ok()
                        .filter(|n| (1..=255).contains(&n.len()));
                    p.family = family.zip(name).map(|(id, name)| TableFamily {
                        id,
                        name: name.into(),
                    });
                    if p.family.is_none() {
                        return Err(bad(
                            start,
                            "a family's name that is none, or that has no id".into(),
                        ));
                    }
                }
                P_OWN_SEQS => {
                    p.own_seqs = number()?;
                    if p.own_seqs == 0 {
                        return Err(bad(
                            start,
                            "references with numbers of their own, and none".into(),
                        ));
                    }
                }
                P_PREFIX_EXTRACTOR => {
                    let name = std::str::from_utf8(value)
                        .ok()
                        .filter(|n| (1..=MAX_NAME).contains(&n.len()));
                    let name = name.ok_or_else(|| {
                        bad(start, "a prefix extractor's name that is none".into())
                    })?;
                    p.prefix_extractor = Some(name.into());
                }
                unknown if unknown % 2 == 1 => {
                    return Err(Error::unsupported(format!(
                        "table has property {unknown}, which a later version writes and a reader must understand"
                    ))
                    .at(path, offset));
                }
                _ => {}
            }
        }
        if mandatory != 8 {
            return Err(bad(
                at,
                format!("{mandatory} of 8 mandatory properties present"),
            ));
        }
        if family.is_some() != p.family.is_some() {
            return Err(bad(at, "a family's id without its name".into()));
        }
        Ok(p)
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

/// What a table says of its family and its references.
pub struct Own {
    /// The family's id.
    pub family: TableFamily,
    /// The name of the table's comparator.
    pub comparator: String,
    /// The blob files that the table refers to.
    pub references: References,
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
        })),
        Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported) => Ok(None),
        Err(e) => Err(e),
    }
}
