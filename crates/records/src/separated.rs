//! Log records with separated values: batches in which some operations are blob records. The log
//! keeps them after its memtables are in tables.
//!
//! A blob record has its own checksums and contains its own place, so the payload's checksum leaves
//! it out, and no byte is summed twice. The content of a payload is trusted only after both
//! checksums fit.

use super::record::{COMPRESSED, Life, SEPARATED};
use basalt_fs::Result;
use basalt_kv::batch::{Ops, Separated};
use basalt_kv::codec::Compression;
use basalt_kv::separated::record;
use std::path::Path;

/// The message for a batch with blob records whose record does not say so.
pub const UNANNOUNCED: &str = "a separated value in a record that says that it has none";

/// The message for a batch with compressed values whose record does not say so.
pub const UNANNOUNCED_COMPRESSED: &str =
    "a compressed value in a record that says that it has none";

/// Returns the flags of a record with these blob records.
pub(super) fn flags(separated: &[Separated]) -> u8 {
    match (separated.is_empty(), separated.iter().any(|s| s.compressed)) {
        (true, _) => 0,
        (false, false) => SEPARATED,
        (false, true) => SEPARATED | COMPRESSED,
    }
}

/// Returns the blob records of a payload, or `None` for bytes that are no operations.
pub fn separated(payload: &[u8]) -> Option<Vec<Separated>> {
    let mut found = Vec::new();
    for (n, op) in (0..).zip(Ops::new(payload)) {
        let op = op.ok()?;
        if let Some(at) = op.record_at {
            found.push(Separated {
                at: at as u32,
                op: n,
                compressed: op.codec != Compression::None,
            });
        }
    }
    Some(found)
}

/// Returns the CRC-32C of the bytes outside of the blob records, whose places were parsed before.
pub fn payload_crc(payload: &[u8], separated: &[Separated]) -> u32 {
    let (mut crc, mut at) = (0, 0);
    for s in separated {
        let start = s.at as usize;
        crc = crc32c::crc32c_append(crc, &payload[at..start]);
        let head = record::BlobRecordHeader::parse(&payload[start..]).expect("parsed before");
        at = start + head.record_len();
    }
    crc32c::crc32c_append(crc, &payload[at..])
}

/// Adds sequence numbers and header checksums to the blob records of a payload that begins at
/// `offset` of the file.
pub(super) fn seal(
    life: Life,
    payload: &mut [u8],
    offset: u64,
    first_seq: u64,
    separated: &[Separated],
) {
    for s in separated {
        let place = life.place(offset + u64::from(s.at));
        record::seal(
            &mut payload[s.at as usize..],
            first_seq + u64::from(s.op),
            place,
        );
    }
}

/// Returns true if the payload's own checksum and those of its blob records fit.
pub(super) fn verify(file_id: u128, payload: &[u8], offset: u64, first_seq: u64, crc: u32) -> bool {
    let Some(separated) = separated(payload) else {
        return false;
    };
    payload_crc(payload, &separated) == crc
        && separated.iter().all(|s| {
            let at = offset + u64::from(s.at);
            let head: Result<_> =
                record::check(Path::new(""), file_id, at, &payload[s.at as usize..]);
            head.is_ok_and(|h| h.seq == first_seq + u64::from(s.op))
        })
}
