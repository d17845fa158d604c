//! The annotated hexdump in `docs/format/log.md`, made from real bytes, so that the document cannot
//! drift from the code.
//!
//! `BASALT_REWRITE_GOLDEN=1` writes the document again. A change of it is a change of the format.

use super::header::HEADER_LEN;
use super::*;
use basalt_fs::{FileSystem, LogOptions};
use basalt_kv::batch::{Ops, WriteBatch};
use basalt_kv::codec::Compression;
use basalt_kv::encoding::{u32_at, u64_at};
use basalt_kv::key::Kind;
use basalt_kv::separated::record;
use basalt_sim::{SimFs, SimOptions};
use std::fmt::Write;
use std::path::Path;

const DOC: &str = include_str!("../../../docs/format/log.md");
const DOC_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/log.md");
const BEGIN: &str = "<!-- golden: a log -->\n```text\n";
const END: &str = "```\n<!-- golden end -->";

/// Returns a log with a synced batch of three operations, two unsynced batches, a synced one, and
/// one with a separated value.
fn golden_log() -> Vec<u8> {
    let fs = SimFs::new(SimOptions::default());
    let path = Path::new("000007.log");
    let options = LogOptions {
        capacity: 4096,
        reuse: None,
    };
    let file = fs.create_log(path, options).unwrap();
    let header = FileHeader {
        kind: FileKind::Log,
        file_id: 0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0,
        store_id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        number: 7,
        write_unit: 512,
        compatible: 0,
        incompatible: 0,
        previous: Some(PreviousLog {
            number: 4,
            file_id: 0x4444,
            end: 0x1238,
        }),
    };
    let mut w = RecordWriter::create(file, path, &header).unwrap();
    let mut one = WriteBatch::new();
    one.push(
        &basalt_kv::family::Family::detached(0),
        Kind::Put,
        b"apple",
        &[],
        b"red",
    )
    .unwrap();
    one.push(
        &basalt_kv::family::Family::detached(300),
        Kind::PutTtl,
        b"pear",
        &1_800_000_000_000u64.to_le_bytes(),
        b"green",
    )
    .unwrap();
    one.push(
        &basalt_kv::family::Family::detached(0),
        Kind::Delete,
        b"plum",
        &[],
        &[],
    )
    .unwrap();
    let put = |key: &[u8]| {
        let mut b = WriteBatch::new();
        b.push(
            &basalt_kv::family::Family::detached(1),
            Kind::Put,
            key,
            &[],
            b"",
        )
        .unwrap();
        b
    };
    let mut large = put(b"k4");
    large
        .push(
            &basalt_kv::family::Family::detached(300).separating(12, Compression::None),
            Kind::Put,
            b"melon",
            &[],
            b"a large value",
        )
        .unwrap();
    let mut seq = 41;
    for (sync, batches) in [
        (true, vec![one]),
        (false, vec![put(b"k1"), put(b"k2")]),
        (true, vec![put(b"k3")]),
        (true, vec![large]),
    ] {
        let mut batches = batches;
        let mut records = Vec::new();
        for b in &mut batches {
            let first = seq;
            seq += b.len() as u64;
            records.push(Outgoing::of_batch(b, first));
        }
        w.append(&mut records, sync).unwrap();
    }
    let mut bytes = fs.read_all(path).unwrap();
    bytes.truncate(w.position() as usize);
    bytes
}

struct Dump<'a> {
    bytes: &'a [u8],
    at: usize,
    out: String,
}

impl Dump<'_> {
    fn title(&mut self, text: &str) {
        writeln!(self.out, "# {text}").unwrap();
    }
    /// Prints the next `len` bytes, sixteen on a line, with their meaning beside the first line.
    fn field(&mut self, len: usize, text: &str) {
        for (i, line) in self.bytes[self.at..self.at + len].chunks(16).enumerate() {
            let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
            let text = if i == 0 { text } else { "" };
            let row = format!("{:06x}  {:<48} {text}", self.at + i * 16, hex.join(" "));
            writeln!(self.out, "{}", row.trim_end()).unwrap();
        }
        self.at += len;
    }
    fn zeros_to(&mut self, to: usize) {
        assert!(self.bytes[self.at..to].iter().all(|&b| b == 0), "zeros");
        if to > self.at {
            let n = to - self.at;
            writeln!(
                self.out,
                "{:06x}  00 ...{:<42} {n} bytes of zeros",
                self.at, ""
            )
            .unwrap();
            self.at = to;
        }
    }
    fn header(&mut self) {
        let b = &self.bytes[self.at..];
        let (unit, number) = (u32_at(b, 16), u64_at(b, 64));
        for (len, text) in [
            (8, "magic BSLTREC1".to_string()),
            (4, "CRC-32C of bytes 12..128".to_string()),
            (1, "file kind: log".to_string()),
            (1, "flags: 1 = the previous log is given".to_string()),
            (2, "reserved".to_string()),
            (4, format!("write unit {unit}")),
            (4, "compatible features".to_string()),
            (4, "incompatible features".to_string()),
            (4, "reserved".to_string()),
            (16, "file id".to_string()),
            (16, "store id".to_string()),
            (8, format!("file number {number}")),
            (8, format!("previous log: number {}", u64_at(b, 72))),
            (16, "previous log: file id".to_string()),
            (
                8,
                format!("previous log: its records end at {:#x}", u64_at(b, 96)),
            ),
            (24, "reserved".to_string()),
        ] {
            self.field(len, &text);
        }
    }
    fn record(&mut self) {
        let b = self.bytes;
        let b = &b[self.at..];
        let len = u32_at(b, 8) as usize;
        for (n, text) in [
            (4, "CRC-32C of file id, offset, and bytes 4..40".to_string()),
            (
                4,
                match b[13] {
                    0 => "CRC-32C of the payload",
                    _ => "CRC-32C of the payload without blob records",
                }
                .to_string(),
            ),
            (4, format!("payload length {len}")),
            (1, "record kind: batch".to_string()),
            (
                1,
                match b[13] {
                    0 => "flags",
                    _ => "flags: 1 = with separated values",
                }
                .to_string(),
            ),
            (2, "life tag".to_string()),
            (8, format!("synced up to {:#x}", u64_at(b, 16))),
            (8, format!("first sequence number {}", u64_at(b, 24))),
            (4, "chain: header checksum of the record before".to_string()),
            (4, format!("operations {}", u32_at(b, 36))),
        ] {
            self.field(n, &text);
        }
        let payload = &b[RECORD_HEADER..RECORD_HEADER + len];
        let mut at = 0;
        for op in Ops::new(payload) {
            let op = op.unwrap();
            if let Some(from) = op.record_at {
                self.field(1, "kind BlobRef: a blob record follows");
                self.field(record::HEADER_LEN, "header of the blob record (blob.md)");
                self.field(
                    op.key.len(),
                    &format!("key {:?}", String::from_utf8_lossy(op.key)),
                );
                self.field(
                    op.value.len(),
                    &format!("value {:?}", String::from_utf8_lossy(op.value)),
                );
                at = from + record::HEADER_LEN + op.key.len() + op.value.len();
                continue;
            }
            let varint = |n: usize| basalt_kv::encoding::varint_len(n as u64);
            self.field(1, &format!("kind {:?}", op.kind));
            self.field(varint(op.family as usize), &format!("family {}", op.family));
            self.field(
                varint(op.key.len()),
                &format!("key length {}", op.key.len()),
            );
            self.field(
                op.key.len(),
                &format!("key {:?}", String::from_utf8_lossy(op.key)),
            );
            at += 1 + varint(op.family as usize) + varint(op.key.len()) + op.key.len();
            if op.kind != Kind::Delete {
                self.field(
                    varint(op.value.len()),
                    &format!("value length {}", op.value.len()),
                );
                let expiry = if op.kind == Kind::PutTtl { 8 } else { 0 };
                if expiry > 0 {
                    self.field(8, &format!("ends at {} ms", u64_at(op.value, 0)));
                }
                if op.value.len() > expiry {
                    let value = String::from_utf8_lossy(&op.value[expiry..]);
                    self.field(op.value.len() - expiry, &format!("value {value:?}"));
                }
                at += varint(op.value.len()) + op.value.len();
            }
        }
        assert_eq!(at, len);
    }
}

fn dump(bytes: &[u8]) -> String {
    let mut d = Dump {
        bytes,
        at: 0,
        out: String::new(),
    };
    d.title("file header, first copy");
    d.header();
    assert_eq!(d.at, HEADER_LEN);
    d.zeros_to(256);
    writeln!(
        d.out,
        "{:06x}  ...{:<45} the same 128 bytes, second copy",
        256, ""
    )
    .unwrap();
    assert_eq!(bytes[..HEADER_LEN], bytes[256..256 + HEADER_LEN]);
    d.at = 256 + HEADER_LEN;
    d.zeros_to(512);
    d.title("a group of one record, synced: padded to the write unit");
    d.record();
    d.zeros_to(1024);
    d.title("a group of two records, not synced: each padded to 8");
    d.record();
    d.zeros_to(d.at.next_multiple_of(8));
    d.record();
    let at = d.at.next_multiple_of(8);
    d.zeros_to(at);
    writeln!(
        d.out,
        "{at:06x}  ...{:<45} undefined up to the write unit",
        ""
    )
    .unwrap();
    d.at = 1536;
    d.title("a synced group begins at a write unit");
    d.record();
    d.zeros_to(2048);
    d.title("a batch with a value that is separated");
    d.record();
    d.zeros_to(2560);
    assert_eq!(d.at, bytes.len());
    d.out
}

#[test]
fn the_document_has_the_written_bytes() {
    let want = dump(&golden_log());
    let (head, rest) = DOC.split_once(BEGIN).expect("the dump's begin");
    let (found, tail) = rest.split_once(END).expect("the dump's end");
    if found == want {
        return;
    }
    if std::env::var("BASALT_REWRITE_GOLDEN").is_ok() {
        #[expect(
            clippy::disallowed_methods,
            reason = "writes the source tree's own document"
        )]
        std::fs::write(DOC_PATH, format!("{head}{BEGIN}{want}{END}{tail}")).unwrap();
        return;
    }
    let line = found.lines().zip(want.lines()).position(|(f, w)| f != w);
    panic!(
        "docs/format/log.md does not show the bytes that are written, from line {line:?} of the dump on. If the format was \
         meant to change, run this test with BASALT_REWRITE_GOLDEN=1.\n{want}"
    );
}
