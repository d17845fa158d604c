//! Entries of logical logs: the payload of a record of kind [`super::RecordKind::Entries`].
//!
//! A record has the entries of one atomic batch, of one or several logs. A reader that knows the
//! offset of an entry reads and verifies it without the rest of the record. All entries of a record
//! are there, or none.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | CRC-32C of the data, XOR CRC-32C of the place and the rest of the head |
//! | varint | number of the log |
//! | varint | log sequence number (LSN) |
//! | varint | bytes of data * 2, plus 1 if the source follows |
//! | 2 varints | source, of an entry that a garbage collection moved: number of the file, offset |
//! | | the data |
//!
//! The place is the file id (16 bytes) and the file offset of the entry (8 bytes).
//!
//! The checksum of the record's payload is the CRC-32C of the first 4 bytes of all entries, which
//! cover the rest. So no byte of data is summed twice: the thread that submits a batch sums the
//! data, and the writer adds the place.

use super::record::Life;
use basalt_fs::AlignedBuf;
use basalt_kv::encoding::{get_varint64, put_varint_aligned, u32_at};
use std::ops::Range;

/// Most bytes of an entry's head.
pub const LARGEST_ENTRY_HEAD: usize = CRC_LEN + 10 + 10 + 10 + 10 + 10;
const CRC_LEN: usize = 4;

/// The head of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHead {
    /// Number of the logical log.
    pub log: u64,
    /// Log sequence number.
    pub lsn: u64,
    /// Bytes of data.
    pub len: u32,
    /// Number of the file and offset from which a garbage collection moved the entry.
    pub source: Option<(u64, u64)>,
    /// Bytes of the head itself.
    pub head_len: usize,
}

impl EntryHead {
    /// Returns the bytes of the whole entry, or `None` if they do not fit 32 bits.
    pub fn entry_len(&self) -> Option<u32> {
        u32::try_from(self.head_len).ok()?.checked_add(self.len)
    }

    /// Parses a head at the beginning of `b`. Returns `None` if it is cut off or no head. Verifies
    /// no checksum.
    pub fn parse(b: &[u8]) -> Option<EntryHead> {
        let mut at = CRC_LEN;
        let log = get_varint64(b, &mut at)?;
        let lsn = get_varint64(b, &mut at)?;
        let len = get_varint64(b, &mut at)?;
        let source = match len & 1 {
            1 => Some((get_varint64(b, &mut at)?, get_varint64(b, &mut at)?)),
            _ => None,
        };
        Some(EntryHead {
            log,
            lsn,
            len: u32::try_from(len >> 1).ok()?,
            source,
            head_len: at,
        })
    }
}

/// Appends an entry to the payload of a record. Until the writer seals the record, the checksum is
/// that of the data alone.
pub fn push_entry(
    buf: &mut AlignedBuf,
    log: u64,
    lsn: u64,
    source: Option<(u64, u64)>,
    data: &[u8],
) {
    buf.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
    put_varint_aligned(buf, log);
    put_varint_aligned(buf, lsn);
    put_varint_aligned(buf, (data.len() as u64) << 1 | u64::from(source.is_some()));
    if let Some((file, offset)) = source {
        put_varint_aligned(buf, file);
        put_varint_aligned(buf, offset);
    }
    buf.extend_from_slice(data);
}

/// Iterator over the entries of a payload: the offset in the payload, and the head. Ends with
/// `None` in place of an item if the rest is no entry.
pub fn entries(payload: &[u8]) -> impl Iterator<Item = Option<(usize, EntryHead)>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= payload.len() {
            return None;
        }
        let head = EntryHead::parse(&payload[at..])
            .filter(|head| payload.len() - at - head.head_len >= head.len as usize);
        let item = head.map(|head| (at, head));
        at = head.map_or(payload.len(), |head| at + head.head_len + head.len as usize);
        Some(item)
    })
}

/// Adds the places to the checksums of a batch's entries. `offset` is the file offset of the
/// payload. Returns the checksum of the payload.
pub(super) fn seal(life: Life, payload: &mut [u8], offset: u64) -> u32 {
    let (mut crc, mut at) = (0, 0);
    while at < payload.len() {
        let head = EntryHead::parse(&payload[at..]).expect("the batch encoded it");
        let place = life.place(offset + at as u64);
        let rest = crc32c::crc32c_append(place, &payload[at + CRC_LEN..at + head.head_len]);
        let sum = (u32_at(payload, at) ^ rest).to_le_bytes();
        payload[at..at + CRC_LEN].copy_from_slice(&sum);
        crc = crc32c::crc32c_append(crc, &sum);
        at += head.head_len + head.len as usize;
    }
    crc
}

/// Returns true if the checksums of all entries of a payload fit, and its own.
pub(super) fn verify(life: Life, payload: &[u8], offset: u64, payload_crc: u32) -> bool {
    let mut crc = 0;
    for entry in entries(payload) {
        let Some((at, head)) = entry else {
            return false;
        };
        let end = at + head.head_len + head.len as usize;
        if !fits(life, offset + at as u64, &head, &payload[at..end]) {
            return false;
        }
        crc = crc32c::crc32c_append(crc, &payload[at..at + CRC_LEN]);
    }
    crc == payload_crc
}

fn fits(life: Life, offset: u64, head: &EntryHead, entry: &[u8]) -> bool {
    let rest = crc32c::crc32c_append(life.place(offset), &entry[CRC_LEN..head.head_len]);
    u32_at(entry, 0) ^ rest == crc32c::crc32c(&entry[head.head_len..])
}

/// Verifies the bytes of one entry as they were read from `offset` of the file. Returns the head
/// and the range of the data in `entry`, or what is wrong with the bytes.
pub fn open_entry(
    file_id: u128,
    offset: u64,
    entry: &[u8],
) -> Result<(EntryHead, Range<usize>), String> {
    let head = match entry.len() > CRC_LEN {
        true => EntryHead::parse(entry),
        false => None,
    };
    let head = head.ok_or("expected an entry, found bytes that are no head of one")?;
    if head.entry_len() != u32::try_from(entry.len()).ok() {
        return Err(format!(
            "expected an entry of {} bytes, found a head of one of {} bytes",
            entry.len(),
            head.head_len as u64 + u64::from(head.len)
        ));
    }
    if !fits(Life::new(file_id), offset, &head, entry) {
        return Err(format!(
            "the checksum of the entry of LSN {} of log {} is wrong",
            head.lsn, head.log
        ));
    }
    Ok((head, head.head_len..entry.len()))
}
