//! The decoders of this crate as targets of mutators: the input of each, and what must hold for any
//! input.
//!
//! The module is compiled only for tests and under coverage-guided fuzzing (`--cfg fuzzing`).
//! `docs/testing/fuzzing.md` lists the targets with the promise that each checks.

use super::header::{self, Slot};
use super::record::{Life, RecordHeader};
use super::{
    Expect, FileHeader, FileKind, PreviousLog, RECORD_ALIGN, RECORD_HEADER, RecordReader, salvage,
};
use basalt_fs::{Bytes, File};
use basalt_sim::mutate::{Image, file_of};
use basalt_sim::mutate::{Target, Verdict};
use std::path::Path;

const UNIT: u32 = 512;
const ID: u128 = 0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "record_file",
        run: record_file,
        seeds: || {
            let golden =
                basalt_sim::mutate::golden_bytes(include_str!("../../../docs/format/log.md"));
            vec![golden, arrange(HISTORY).bytes, arrange(BROKEN).bytes]
        },
        words: &[b"BSLTREC1"],
    },
    Target {
        name: "record_sequence",
        run: record_sequence,
        seeds: || vec![HISTORY.to_vec(), BROKEN.to_vec()],
        words: &[&[0, 0], &[SYNCED, 0], &[SPLIT, 4, 1, 2, 3, 4]],
    },
    Target {
        name: "file_header",
        run: file_header,
        seeds: || {
            let first = header(None);
            let later = header(Some(PreviousLog {
                number: 6,
                file_id: 6,
                end: 4096,
            }));
            vec![header::encode(&first), header::encode(&later)]
        },
        words: &[b"BSLTREC1"],
    },
];

fn header(previous: Option<PreviousLog>) -> FileHeader {
    FileHeader {
        kind: FileKind::Log,
        file_id: ID,
        store_id: 1,
        number: 7,
        write_unit: UNIT,
        compatible: 0,
        incompatible: 0,
        previous,
    }
}

fn expect(file_id: Option<u128>) -> Expect {
    Expect {
        kind: FileKind::Log,
        file_id,
        store_id: None,
        number: None,
        proven_synced: 0,
    }
}

/// Any bytes as a log. Records come in order and lie inside the file, the end is where the last of
/// them ends, and salvage reads each record that it calls whole.
fn record_file(bytes: &[u8]) -> Verdict {
    let path = Path::new("log");
    let file = file_of(bytes);
    let len = bytes.len() as u64;
    if let Ok(found) = salvage::scan(&*file, path, ID, u64::MAX) {
        let mut before = 0;
        for f in &found.found {
            assert!(f.offset >= before && f.offset % RECORD_ALIGN as u64 == 0);
            before = f.offset + RECORD_HEADER as u64;
            if f.whole {
                assert!(f.end <= len.next_multiple_of(RECORD_ALIGN as u64));
                salvage::read(&*file, path, f).expect("whole records can be read");
                before = f.end;
            }
        }
    }
    let _ = RecordReader::open_expecting(file.clone(), path, &expect(Some(ID)));
    let Ok(Some(mut reader)) = RecordReader::open_expecting(file, path, &expect(None)) else {
        return Verdict::Refused;
    };
    let mut end = u64::from(reader.header().write_unit);
    loop {
        match reader.next(0) {
            Ok(Some(r)) => {
                assert!(r.offset >= end && r.offset < end + 4096);
                end = r.offset + (RECORD_HEADER + r.payload.len()) as u64;
                assert!(end <= len);
                end = end.next_multiple_of(RECORD_ALIGN as u64);
                assert_eq!(reader.tail().end, end);
            }
            Ok(None) => {
                assert_eq!(reader.tail().end, end);
                // A second call finds the same end. With a proof that more had been synced, the end
                // is damage.
                assert!(reader.next(end).is_ok_and(|r| r.is_none()));
                assert!(reader.next(end + 1).is_err_and(|e| e.is_corruption()));
                return Verdict::Accepted;
            }
            Err(e) => {
                assert!(reader.next(0).is_err(), "an error that goes away: {e}");
                return Verdict::Refused;
            }
        }
    }
}

// The effect of a control byte in `record_sequence` on the record behind it.
const ALIGNED: u8 = 1;
const UNCHAINED: u8 = 2;
const SPLIT: u8 = 4;
const SYNCED: u8 = 8;
const LATER_KIND: u8 = 16;
const TOO_LONG: u8 = 32;
const GAP: u8 = 64;

const HISTORY: &[u8] = &[
    SYNCED, 5, 1, 2, 3, 4, 5, 0, 3, 7, 8, 9, ALIGNED, 0, SYNCED, 2, 1, 1, ALIGNED, 4, 9, 9, 9, 9,
];
const BROKEN: &[u8] = &[
    0, 3, 1, 2, 3, 0, 1, 4, SPLIT, 2, 6, 6, 0, 1, 1, GAP, 3, 1, 1, 1, ALIGNED, 2, 5, 5,
];

/// A file of records whose checksums fit, and what must be read from it.
struct Arranged {
    bytes: Vec<u8>,
    /// Payloads up to the first record that does not count.
    payloads: Vec<Vec<u8>>,
    /// True if the first record that does not count is of a later version.
    unsupported: bool,
    /// True if a record behind the end says that bytes past the end had been synced.
    proven: bool,
}

/// Decodes `input` as records: a control byte, a length, and that many bytes of payload for each.
fn arrange(input: &[u8]) -> Arranged {
    let life = Life::new(ID);
    let mut out = Arranged {
        bytes: header::encode(&header(None)),
        payloads: Vec::new(),
        unsupported: false,
        proven: false,
    };
    let mut end = None;
    let (mut chain, mut rest) = (0, input);
    while let [control, len, more @ ..] = rest {
        let (payload, more) = more.split_at(usize::from(*len).min(more.len()));
        rest = more;
        let does = |what: u8| control & what != 0;
        let b = &mut out.bytes;
        let before = b.len() as u64;
        if does(ALIGNED) {
            b.resize(b.len().next_multiple_of(UNIT as usize), 0);
        }
        if does(GAP) {
            b.resize(b.len() + RECORD_ALIGN, 0xa5);
        }
        let at = b.len();
        let head = RecordHeader {
            crc: 0,
            payload_crc: crc32c::crc32c(payload) ^ u32::from(does(SPLIT)),
            len: if does(TOO_LONG) {
                u32::MAX - 7
            } else {
                payload.len() as u32
            },
            kind: if does(LATER_KIND) { 9 } else { 1 },
            flags: 0,
            synced: if does(SYNCED) { at as u64 } else { 0 },
            first_seq: 1,
            chain: chain ^ u32::from(does(UNCHAINED)),
            count: 1,
        };
        b.resize(at + RECORD_HEADER, 0);
        chain = life.seal(&mut b[at..], at as u64, &head);
        b.extend_from_slice(payload);
        b.resize(b.len().next_multiple_of(RECORD_ALIGN), 0);
        // The record is read at its own place: at the end before it, or at the next unit.
        let at = at as u64;
        let in_place = at == before || at == before.next_multiple_of(u64::from(UNIT));
        match end {
            None if !in_place || does(UNCHAINED | SPLIT | TOO_LONG) => {
                end = Some(before);
                out.proven = head.synced > before;
            }
            None if does(LATER_KIND) => {
                end = Some(before);
                out.unsupported = true;
            }
            None => out.payloads.push(payload.to_vec()),
            Some(end) => out.proven |= head.synced > end,
        }
    }
    out
}

/// Sound checksums in any arrangement. Exactly the records before the first broken one are read.
/// The rest is cut if no record proves that it had been synced, and is damage otherwise.
fn record_sequence(input: &[u8]) -> Verdict {
    let made = arrange(input);
    let reader =
        RecordReader::open_expecting(file_of(&made.bytes), Path::new("log"), &expect(Some(ID)));
    let mut reader = reader.expect("a sound header").expect("of this life");
    let mut read = Vec::new();
    let end = loop {
        match reader.next(0) {
            Ok(Some(r)) => read.push(r.payload.to_vec()),
            Ok(None) => break None,
            Err(e) => break Some(e),
        }
    };
    assert_eq!(read, made.payloads);
    match end {
        Some(e) if made.unsupported => assert_eq!(e.kind(), basalt_fs::ErrorKind::Unsupported),
        Some(e) => assert!(made.proven && e.is_corruption(), "{e}"),
        None => assert!(!made.proven && !made.unsupported),
    }
    Verdict::of(!made.proven && !made.unsupported)
}

/// Any bytes as the first unit, once unchanged and once with a checksum that fits. A header that is
/// read is written back to the same header.
fn file_header(bytes: &[u8]) -> Verdict {
    let path = Path::new("log");
    let mut sealed = bytes.to_vec();
    sealed.resize(header::COPIES[0] + header::HEADER_LEN, 0);
    sealed[..8].copy_from_slice(&header::MAGIC);
    let crc = crc32c::crc32c(&sealed[12..header::HEADER_LEN]);
    sealed[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut accepted = false;
    for slot in [bytes, &sealed] {
        if let Ok(Slot::Header(h)) = header::decode(slot, path) {
            accepted = true;
            match header::decode(&header::encode(&h), path) {
                Ok(Slot::Header(again)) => assert_eq!(again, h),
                other => panic!("{h:?} became {other:?}"),
            }
        }
    }
    let file: std::sync::Arc<dyn File> = std::sync::Arc::new(Image(Bytes::from(sealed)));
    let _ = RecordReader::open_expecting(file, path, &expect(None));
    Verdict::of(accepted)
}

#[cfg(test)]
mod tests;
