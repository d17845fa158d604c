//! The bytes that frame a table: header, footer, block trailers and handles.
//!
//! Owns every persisted number of the format (`docs/format/table.md` is its prose). Promises that
//! no bytes make it panic, hang or allocate more than [`MAX_COMPRESSED_RAW`] beyond what the file
//! itself holds.

pub(crate) mod filter;

use basalt_fs::{Bytes, Error, Result};
use basalt_kv::codec::Compression;
use basalt_kv::codec::{self, Effort};
use basalt_kv::encoding::{get_varint, put_varint, u32_at, u64_at};
use basalt_kv::key::{Kind, TRAILER_LEN};
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};
use std::path::Path;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// First bytes of a table.
pub(crate) const HEADER_MAGIC: [u8; 8] = *b"BSLTtab\x01";
/// Last bytes of a table.
pub(crate) const FOOTER_MAGIC: [u8; 8] = *b"BSLTend\x01";
/// The version of the format that this build writes, and the newest it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 64;
/// Bytes of the footer.
pub(crate) const FOOTER_LEN: usize = 128;
/// Bytes of the trailer that follows each block's payload: compression and checksum.
pub const BLOCK_TRAILER_LEN: usize = 9;
/// Payloads above this many bytes are never compressed. A file that claims to expand cannot make a
/// reader allocate more than this.
pub(crate) const MAX_COMPRESSED_RAW: usize = 16 << 20;
/// The most bytes of a block's payload: the longest entry, and room for the bytes around it.
pub(crate) const MAX_PAYLOAD: usize = MAX_VALUE_LEN + 8 + MAX_KEY_LEN + TRAILER_LEN + 4096;

/// Feature bits that this build understands.
const KNOWN_INCOMPATIBLE: u32 = 0;

const H_VERSION: usize = 8;
const H_BLOCK_BYTES: usize = 12;
const H_FILE_ID: usize = 16;
const H_COMPATIBLE: usize = 32;
const H_READ_COMPATIBLE: usize = 36;
const H_INCOMPATIBLE: usize = 40;
const H_FILTER_BITS: usize = 44;
const H_COMPRESSION: usize = 46;
const H_RESERVED: usize = 47;
const H_CHECKSUM: usize = 56;
const _: () = assert!(H_CHECKSUM + 8 == HEADER_LEN && H_RESERVED < H_CHECKSUM);

const F_TOP_OFFSET: usize = 0;
const F_TOP_LEN: usize = 8;
const F_PROPERTIES_OFFSET: usize = 16;
const F_PROPERTIES_LEN: usize = 24;
const F_FILTER_OFFSET: usize = 32;
const F_FILTER_LINES: usize = 40;
const F_PROBES: usize = 48;
const F_VERSION: usize = 52;
const F_DATA_END: usize = 56;
const F_INDEX_OFFSET: usize = 64;
const F_FILE_LEN: usize = 72;
const F_FILE_ID: usize = 80;
const F_RESERVED: usize = 96;
const F_CHECKSUM: usize = 112;
const F_MAGIC: usize = 120;
const _: () = assert!(F_CHECKSUM + 8 == F_MAGIC && F_MAGIC + 8 == FOOTER_LEN);

/// The kind of a block. Each checksum covers it: a block that is read as another kind does not
/// verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockKind {
    /// The header of a table, at its beginning.
    Header = 1,
    /// Entries of a table.
    Data = 2,
    /// A page of a table's filter.
    Filter = 3,
    /// A partition of a table's index.
    Index = 4,
    /// The top level of a table's index.
    TopIndex = 5,
    /// The properties of the table: its family, its references and its counts.
    Properties = 6,
    /// The footer of a table, at its end.
    Footer = 7,
    /// Range tombstones of a table.
    Ranges = 8,
    /// A page of a blob file's index: hashes of keys.
    BlobHashes = 16,
    /// A page of a blob file's index: places of records.
    BlobPlaces = 17,
    /// The directory of a blob file's index.
    BlobDirectory = 18,
}

impl BlockKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            BlockKind::Header => "header",
            BlockKind::Data => "data block",
            BlockKind::Filter => "filter page",
            BlockKind::Index => "index partition",
            BlockKind::TopIndex => "top-level index",
            BlockKind::Properties => "properties",
            BlockKind::Footer => "footer",
            BlockKind::Ranges => "range tombstones",
            BlockKind::BlobHashes => "hash page",
            BlockKind::BlobPlaces => "position page",
            BlockKind::BlobDirectory => "directory",
        }
    }
}

/// The damage that a decoder found inside a block; [`Damage::at`] adds file and offset. The type is
/// small, because hot paths return it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Damage {
    /// Bytes that no builder writes, at this byte of the payload.
    Bad(usize, &'static str),
    /// An entry of a kind that a later version writes.
    Reserved(Kind),
}

pub(crate) type BlockResult<T> = std::result::Result<T, Damage>;

impl Damage {
    /// Returns the error for this damage in the block at `offset` of `path`.
    #[cold]
    pub(crate) fn at(self, path: &Path, offset: u64) -> Error {
        match self {
            Damage::Bad(at, what) => {
                Error::corruption(path, offset, format!("byte {at} of the block: {what}"))
            }
            Damage::Reserved(kind) => Error::unsupported(format!(
                "entry kind {kind:?} is reserved for a later version; read the table with that version"
            ))
            .at(path, offset),
        }
    }
}

/// Checks the kind and the payload length of an entry from disk.
#[inline]
pub(crate) fn check_entry(trailer: u64, value_len: usize, at: usize) -> BlockResult<Kind> {
    match trailer as u8 {
        0 => Ok(Kind::Delete),
        1 => Ok(Kind::Put),
        2 if value_len >= 8 => Ok(Kind::PutTtl),
        2 => Err(Damage::Bad(at, "expiring value without its expiry")),
        5 => Ok(Kind::Merge),
        6 if value_len > 0 => Ok(Kind::BlobRef),
        6 => Err(Damage::Bad(at, "reference to no blob file")),
        4 => Err(Damage::Bad(at, "range tombstone among the entries")),
        other => Err(match Kind::from_u8(other) {
            Some(kind) => Damage::Reserved(kind),
            None => Damage::Bad(at, "unknown entry kind"),
        }),
    }
}

pub(crate) fn context_hash(kind: BlockKind, compression: u8, file_id: u128, offset: u64) -> u64 {
    let mut c = [0u8; 26];
    c[..16].copy_from_slice(&file_id.to_le_bytes());
    c[16..24].copy_from_slice(&offset.to_le_bytes());
    c[24] = kind as u8;
    c[25] = compression;
    xxh3_64(&c)
}

/// Returns the checksum of `payload` as a block of this kind at this offset of this file.
pub fn block_checksum(
    kind: BlockKind,
    compression: u8,
    file_id: u128,
    offset: u64,
    payload: &[u8],
) -> u64 {
    xxh3_64(payload) ^ context_hash(kind, compression, file_id, offset)
}

/// Returns the [`block_checksum`] of a payload in pieces.
pub(crate) fn block_checksum_of_parts(
    kind: BlockKind,
    compression: u8,
    file_id: u128,
    offset: u64,
    parts: &[&[u8]],
) -> u64 {
    let mut h = Xxh3Default::new();
    for p in parts {
        h.update(p);
    }
    h.digest() ^ context_hash(kind, compression, file_id, offset)
}

/// Encodes a block's trailer.
pub fn block_trailer(compression: u8, checksum: u64) -> [u8; BLOCK_TRAILER_LEN] {
    let mut t = [0; BLOCK_TRAILER_LEN];
    t[0] = compression;
    t[1..].copy_from_slice(&checksum.to_le_bytes());
    t
}

/// The place of a block in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHandle {
    /// Offset of the payload in the file.
    pub offset: u64,
    /// Bytes of the payload as stored, without the trailer.
    pub stored: u32,
    /// Bytes of the payload after decompression; 0 if it is stored uncompressed.
    pub raw: u32,
}

impl BlockHandle {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.offset);
        put_varint(out, u64::from(self.stored));
        put_varint(out, u64::from(self.raw));
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8], at: &mut usize) -> Option<BlockHandle> {
        Some(BlockHandle {
            offset: get_varint(bytes, at, 63)?,
            stored: get_varint(bytes, at, 32)? as u32,
            raw: get_varint(bytes, at, 32)? as u32,
        })
    }

    /// Returns the block's bytes in the file, trailer included.
    pub fn disk_len(&self) -> usize {
        self.stored as usize + BLOCK_TRAILER_LEN
    }

    /// Returns the first offset behind the block.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.disk_len() as u64
    }

    /// Returns true if the block lies in `start..end` of the file, and its lengths are within the
    /// caps.
    pub(crate) fn is_inside(&self, start: u64, end: u64) -> bool {
        self.offset >= start
            && self.end() <= end
            && self.stored as usize <= MAX_PAYLOAD
            && self.raw as usize <= MAX_COMPRESSED_RAW
    }
}

/// Compresses into `out`. Returns false if that would not save an eighth, or if the payload is too
/// long to be compressed.
pub(crate) fn compress(method: Compression, payload: &[u8], out: &mut Vec<u8>) -> bool {
    payload.len() <= MAX_COMPRESSED_RAW && {
        let limit = codec::most_compressed(payload.len());
        codec::compress(method, Effort::Background, payload, out, 0, limit)
    }
}

fn decompress(method: u8, stored: &[u8], raw: usize) -> std::result::Result<Bytes, String> {
    match Compression::from_u8(method) {
        Some(method) => codec::decompress(method, stored, raw),
        None => Err(format!("unknown compression {method}")),
    }
}

/// Checks a block as read (payload and trailer) and returns its payload, decompressed. An
/// uncompressed payload is not copied.
pub fn open_block(
    path: &Path,
    file_id: u128,
    kind: BlockKind,
    handle: &BlockHandle,
    disk: Bytes,
) -> Result<Bytes> {
    let stored = handle.stored as usize;
    if disk.len() != handle.disk_len() {
        return Err(Error::corruption(
            path,
            handle.offset,
            format!(
                "{}: expected {} bytes, found {}",
                kind.name(),
                handle.disk_len(),
                disk.len()
            ),
        ));
    }
    let method = disk[stored];
    let found = u64_at(&disk, stored + 1);
    let expected = block_checksum(kind, method, file_id, handle.offset, &disk[..stored]);
    if found != expected {
        return Err(Error::corruption(
            path,
            handle.offset,
            format!(
                "{} of {stored} bytes: expected checksum {expected:016x}, found {found:016x}",
                kind.name()
            ),
        ));
    }
    if (method == 0) != (handle.raw == 0) {
        return Err(Error::corruption(
            path,
            handle.offset,
            format!(
                "{}: compression {method} and a decompressed length of {} contradict each other",
                kind.name(),
                handle.raw
            ),
        ));
    }
    if method == 0 {
        return Ok(disk.slice(..stored));
    }
    if handle.raw as usize > MAX_COMPRESSED_RAW {
        return Err(Error::corruption(
            path,
            handle.offset,
            format!(
                "{}: claims {} bytes after decompression, at most {MAX_COMPRESSED_RAW} are allowed",
                kind.name(),
                handle.raw
            ),
        ));
    }
    decompress(method, &disk[..stored], handle.raw as usize)
        .map_err(|what| Error::corruption(path, handle.offset, format!("{}: {what}", kind.name())))
}

/// The first bytes of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) file_id: u128,
    pub(crate) block_bytes: u32,
    pub(crate) filter_bits: u16,
    pub(crate) compression: u8,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut h = [0; HEADER_LEN];
        h[..8].copy_from_slice(&HEADER_MAGIC);
        h[H_VERSION..][..4].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        h[H_BLOCK_BYTES..][..4].copy_from_slice(&self.block_bytes.to_le_bytes());
        h[H_FILE_ID..][..16].copy_from_slice(&self.file_id.to_le_bytes());
        h[H_FILTER_BITS..][..2].copy_from_slice(&self.filter_bits.to_le_bytes());
        h[H_COMPRESSION] = self.compression;
        let sum = block_checksum(BlockKind::Header, 0, self.file_id, 0, &h[..H_CHECKSUM]);
        h[H_CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        h
    }

    pub(crate) fn decode(path: &Path, h: &[u8]) -> Result<Header> {
        let bad = |at: usize, what: String| {
            Error::corruption(path, at as u64, format!("table header: {what}"))
        };
        if h.len() < HEADER_LEN {
            return Err(bad(0, format!("{} bytes, expected {HEADER_LEN}", h.len())));
        }
        let h = &h[..HEADER_LEN];
        if h[..8] != HEADER_MAGIC {
            return Err(bad(0, format!("magic is {:02x?}", &h[..8])));
        }
        let file_id = u128::from_le_bytes(h[H_FILE_ID..][..16].try_into().expect("16 bytes"));
        let expected = block_checksum(BlockKind::Header, 0, file_id, 0, &h[..H_CHECKSUM]);
        let found = u64_at(h, H_CHECKSUM);
        if found != expected {
            return Err(bad(
                H_CHECKSUM,
                format!("expected checksum {expected:016x}, found {found:016x}"),
            ));
        }
        let version = u32_at(h, H_VERSION);
        if version == 0 || version > FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "table format version {version}; this build reads up to {FORMAT_VERSION}"
            ))
            .in_file(path));
        }
        // Compatible and read-compatible features require nothing of a reader.
        let unknown = u32_at(h, H_INCOMPATIBLE) & !KNOWN_INCOMPATIBLE;
        if unknown != 0 {
            return Err(Error::unsupported(format!(
                "table uses features {unknown:#x} that this build does not know"
            ))
            .in_file(path));
        }
        let _ = (H_COMPATIBLE, H_READ_COMPATIBLE);
        Ok(Header {
            file_id,
            block_bytes: u32_at(h, H_BLOCK_BYTES),
            filter_bits: u16::from_le_bytes(h[H_FILTER_BITS..][..2].try_into().expect("2 bytes")),
            compression: h[H_COMPRESSION],
        })
    }
}

/// The last bytes of a table, which locate all its parts. The file is, in this order: header, data
/// blocks from [`HEADER_LEN`] to `data_end`, zeros up to the filter, filter pages, range tombstones
/// from `index_offset`, index partitions, top-level index, properties, footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) file_id: u128,
    pub(crate) top: BlockHandle,
    pub(crate) properties: BlockHandle,
    pub(crate) filter_offset: u64,
    /// Lines of [`filter::LINE_BYTES`]; 0 without a filter.
    pub(crate) filter_lines: u64,
    pub(crate) probes: u32,
    pub(crate) data_end: u64,
    pub(crate) index_offset: u64,
    pub(crate) file_len: u64,
}

impl Footer {
    pub(crate) fn encode(&self) -> [u8; FOOTER_LEN] {
        let mut f = [0; FOOTER_LEN];
        let mut put = |at: usize, n: u64| f[at..at + 8].copy_from_slice(&n.to_le_bytes());
        put(F_TOP_OFFSET, self.top.offset);
        put(F_TOP_LEN, u64::from(self.top.stored));
        put(F_PROPERTIES_OFFSET, self.properties.offset);
        put(F_PROPERTIES_LEN, u64::from(self.properties.stored));
        put(F_FILTER_OFFSET, self.filter_offset);
        put(F_FILTER_LINES, self.filter_lines);
        put(F_DATA_END, self.data_end);
        put(F_INDEX_OFFSET, self.index_offset);
        put(F_FILE_LEN, self.file_len);
        f[F_PROBES..][..4].copy_from_slice(&self.probes.to_le_bytes());
        f[F_VERSION..][..4].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        f[F_FILE_ID..][..16].copy_from_slice(&self.file_id.to_le_bytes());
        let offset = self.file_len - FOOTER_LEN as u64;
        let sum = block_checksum(BlockKind::Footer, 0, self.file_id, offset, &f[..F_CHECKSUM]);
        f[F_CHECKSUM..][..8].copy_from_slice(&sum.to_le_bytes());
        f[F_MAGIC..].copy_from_slice(&FOOTER_MAGIC);
        f
    }

    /// Returns the file id that the footer bytes contain, if their checksum holds for it.
    pub(crate) fn own_id(path: &Path, file_len: u64, f: &[u8]) -> Option<u128> {
        let id = f.get(F_FILE_ID..F_FILE_ID + 16)?;
        let id = u128::from_le_bytes(id.try_into().expect("16 bytes"));
        Footer::decode(path, id, file_len, f).ok().map(|_| id)
    }

    /// Decodes the last bytes of a file of `file_len` bytes with this id, and checks that each part
    /// lies in its place.
    pub(crate) fn decode(path: &Path, file_id: u128, file_len: u64, f: &[u8]) -> Result<Footer> {
        let start = file_len.saturating_sub(FOOTER_LEN as u64);
        let bad = |at: usize, what: String| {
            Error::corruption(path, start + at as u64, format!("table footer: {what}"))
        };
        if f.len() != FOOTER_LEN {
            return Err(bad(0, format!("{} bytes, expected {FOOTER_LEN}", f.len())));
        }
        if f[F_MAGIC..] != FOOTER_MAGIC {
            return Err(bad(F_MAGIC, format!("magic is {:02x?}", &f[F_MAGIC..])));
        }
        let expected = block_checksum(BlockKind::Footer, 0, file_id, start, &f[..F_CHECKSUM]);
        let found = u64_at(f, F_CHECKSUM);
        if found != expected {
            return Err(bad(
                F_CHECKSUM,
                format!("expected checksum {expected:016x}, found {found:016x}"),
            ));
        }
        let len32 = |at: usize| {
            u32::try_from(u64_at(f, at)).map_err(|_| bad(at, "length above 32 bits".into()))
        };
        let footer = Footer {
            file_id: u128::from_le_bytes(f[F_FILE_ID..][..16].try_into().expect("16 bytes")),
            top: BlockHandle {
                offset: u64_at(f, F_TOP_OFFSET),
                stored: len32(F_TOP_LEN)?,
                raw: 0,
            },
            properties: BlockHandle {
                offset: u64_at(f, F_PROPERTIES_OFFSET),
                stored: len32(F_PROPERTIES_LEN)?,
                raw: 0,
            },
            filter_offset: u64_at(f, F_FILTER_OFFSET),
            filter_lines: u64_at(f, F_FILTER_LINES),
            probes: u32_at(f, F_PROBES),
            data_end: u64_at(f, F_DATA_END),
            index_offset: u64_at(f, F_INDEX_OFFSET),
            file_len: u64_at(f, F_FILE_LEN),
        };
        if footer.file_len != file_len || footer.file_id != file_id {
            return Err(bad(
                F_FILE_LEN,
                format!(
                    "written for file {:032x} of {} bytes, this is {file_id:032x} of {file_len}",
                    footer.file_id, footer.file_len
                ),
            ));
        }
        if f[F_RESERVED..F_CHECKSUM].iter().any(|b| *b != 0) {
            return Err(bad(F_RESERVED, "reserved bytes are not zero".into()));
        }
        let filter_end =
            filter::disk_len(footer.filter_lines).and_then(|n| footer.filter_offset.checked_add(n));
        let in_order = footer.data_end >= HEADER_LEN as u64
            && footer.data_end <= footer.filter_offset
            && filter_end == Some(footer.index_offset)
            && footer.top.offset < file_len
            && footer.properties.offset < file_len
            && footer.index_offset < footer.top.offset
            && footer.top.end() == footer.properties.offset
            && footer.properties.end() == start
            && (footer.filter_lines == 0) == (footer.probes == 0)
            && footer.probes <= filter::MAX_PROBES;
        if !in_order {
            return Err(bad(0, format!("parts out of their order: {footer:?}")));
        }
        Ok(footer)
    }
}
