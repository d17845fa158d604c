//! Binds the prose of `docs/format/blob.md` to the code: its hexdump is that of a blob file built
//! here, byte for byte. After a deliberate change run with `BASALT_REWRITE_GOLDEN=1`, and read the
//! difference before it is committed.

use super::layout::{Directory, FOOTER_LEN, Footer, HEADER_LEN};
use super::*;
use basalt_env::{Env, IoPriority};
use basalt_kv::codec::Compression;
use basalt_kv::codec::Effort;
use basalt_kv::key::Kind;
use basalt_sim::hexdump::Dump;
use basalt_sim::{SimFs, SimOptions};
use basalt_table::BLOCK_TRAILER_LEN;
use std::path::Path;
use std::sync::Arc;

const DOCUMENT: &str = include_str!("../../../docs/format/blob.md");
const BEGIN: &str = "<!-- golden: a blob file -->\n```text\n";
const END: &str = "```\n<!-- golden end -->";
const PATH: &str = "000007.blob";
const FILE_ID: u128 = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;

/// Family, key, sequence number, kind and value of a record.
type Given = (u32, &'static [u8], SeqNo, Kind, &'static [u8]);

const RECORDS: [Given; 3] = [
    (0, b"apple", 41, Kind::Put, b"red"),
    (
        0,
        b"pear",
        12,
        Kind::PutTtl,
        b"\x00\xb4\x8d\x1a\xa3\x01\x00\x00green",
    ),
    (300, b"plum", 43, Kind::Put, b"blue"),
];

fn name(r: &Given) -> Name<'static> {
    Name {
        family: r.0,
        key: r.1,
        seq: r.2,
    }
}

fn env() -> Env {
    Env::for_tests(SimFs::new(SimOptions::default()), 1)
}

fn golden() -> (Vec<u8>, BlobMeta) {
    let (env, path) = (env(), Path::new(PATH));
    let file = env.fs().create(path).unwrap();
    let options = BlobOptions {
        file_id: FILE_ID,
        io: IoPriority::High,
        warm_cache: false,
        warm_records: false,
        compressed: false,
    };
    let mut builder = BlobBuilder::new(&env, file, path, options);
    for r in &RECORDS {
        builder.add(&name(r), &Form::plain(r.3, r.4), r.4).unwrap();
    }
    let meta = builder.finish().unwrap();
    let file = env.fs().open(path).unwrap();
    (file.read(0, meta.size as usize).unwrap().to_vec(), meta)
}

fn dump() -> String {
    let (bytes, meta) = golden();
    let mut d = Dump {
        bytes: &bytes,
        at: 0,
        out: String::new(),
    };
    d.title("header");
    d.lines(&[
        (8, "magic"),
        (4, "version"),
        (4, "reserved"),
        (16, "file id"),
        (4, "compatible features"),
        (4, "features compatible for reading"),
        (4, "incompatible features"),
        (12, "reserved"),
        (8, "checksum"),
    ]);
    assert_eq!(d.at, HEADER_LEN);
    for r in &RECORDS {
        d.title("record");
        d.lines(&[
            (4, "checksum of header and key"),
            (4, "value length"),
            (8, "checksum of the value"),
            (1, "kind"),
            (7, "sequence number"),
            (4, "family"),
            (3, "key length"),
            (1, "flags"),
            (r.1.len(), "key"),
        ]);
        let expires = if r.3 == Kind::PutTtl { 8 } else { 0 };
        d.line(expires, "value: expiry");
        d.line(r.4.len() - expires, "value");
    }
    let footer = &bytes[bytes.len() - FOOTER_LEN..];
    let footer = Footer::decode(Path::new(PATH), FILE_ID, meta.size, footer).unwrap();
    let at = footer.directory as usize;
    let directory = Directory::decode(&bytes[at..at + footer.directory_len as usize]).unwrap();
    d.title("hash page");
    d.lines(&[
        (4, "cells in a third"),
        (4, "twins"),
        (1, "bits of a cell"),
        (1, "seed"),
        (2, "reserved"),
    ]);
    d.line(directory.hashes[0] as usize - 12, "cells");
    trailer(&mut d);
    d.title("position page");
    d.lines(&[
        (8, "first value"),
        (4, "values"),
        (1, "low bits"),
        (1, "values a record, less one"),
        (2, "reserved"),
    ]);
    d.line(directory.places[0] as usize - 16, "low bits, high bits");
    trailer(&mut d);
    d.title("directory");
    d.line(16, "the file with the records");
    d.line(8, "sum of the records' hashes");
    for (n, what) in [
        (meta.data_end, "records end at"),
        (meta.records, "records"),
        (meta.min_seq, "lowest sequence number"),
        (meta.max_seq, "highest sequence number"),
        (directory.pages, "the first page lies at"),
        (2, "families"),
    ] {
        varint(&mut d, n, what);
    }
    for (id, share) in &meta.families {
        varint(&mut d, u64::from(*id), "family");
        varint(&mut d, share.records, "its records");
        varint(&mut d, share.bytes, "their bytes");
    }
    for (list, what) in [
        (&directory.hashes, "hash pages"),
        (&directory.places, "position pages"),
    ] {
        varint(&mut d, list.len() as u64, what);
        varint(&mut d, u64::from(list[0]), "length of one");
    }
    trailer(&mut d);
    d.title("footer");
    d.lines(&[
        (16, "file id"),
        (8, "directory: offset"),
        (4, "directory: length"),
        (4, "version"),
        (8, "length of the file"),
        (8, "reserved"),
        (8, "checksum"),
        (8, "magic"),
    ]);
    assert_eq!(d.at, bytes.len());
    d.out
}

fn trailer(d: &mut Dump<'_>) {
    d.line(1, "compression: none");
    d.line(BLOCK_TRAILER_LEN - 1, "checksum");
}

fn varint(d: &mut Dump<'_>, n: u64, what: &str) {
    let mut end = d.at;
    let found = basalt_kv::encoding::get_varint(d.bytes, &mut end, 63);
    assert_eq!(found, Some(n), "{what}");
    d.line(end - d.at, &format!("{what} {n}"));
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "rewrites a page of the documentation, on demand"
)]
fn the_builder_writes_the_bytes_in_the_document() {
    let (head, rest) = DOCUMENT.split_once(BEGIN).expect("begin of the hexdump");
    let (shown, tail) = rest.split_once(END).expect("end of the hexdump");
    let dump = dump();
    if std::env::var_os("BASALT_REWRITE_GOLDEN").is_some() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/blob.md");
        std::fs::write(page, format!("{head}{BEGIN}{dump}{END}{tail}")).expect("write");
        return;
    }
    assert!(
        shown == dump,
        "the format changed; if it was meant to, raise the version and run with BASALT_REWRITE_GOLDEN=1:\n{dump}"
    );
}

const PACKED_BEGIN: &str = "<!-- golden: a compressed value -->\n```text\n";

/// Returns a record with a compressed value, encoded for the place of a file's first record, and
/// the value with its expiry.
fn compressed_record() -> (Vec<u8>, Vec<u8>) {
    let payload = [
        &1_800_000_000_000u64.to_le_bytes()[..],
        &b"red, green, ".repeat(4)[..],
    ]
    .concat();
    let name = Name {
        family: 0,
        key: b"apple",
        seq: 41,
    };
    let mut bytes = Vec::new();
    compressed::pack(
        Kind::PutTtl,
        Compression::Lz4,
        Effort::Writer,
        &payload,
        |form, stored| {
            record::encode_head(&mut bytes, FILE_ID, HEADER_LEN as u64, &name, form);
            bytes.extend_from_slice(stored);
        },
    )
    .expect("it saves an eighth");
    (bytes, payload)
}

fn compressed_dump() -> String {
    let (bytes, _) = compressed_record();
    let mut d = Dump {
        bytes: &bytes,
        at: 0,
        out: String::new(),
    };
    d.title("record at byte 64 of a file with the id of the one below");
    d.lines(&[
        (4, "checksum of header and key"),
        (4, "length of the value as stored"),
        (8, "checksum of the value as stored"),
        (1, "kind"),
        (7, "sequence number"),
        (4, "family"),
        (3, "key length"),
        (1, "compression: lz4"),
        (5, "key"),
        (8, "value: expiry"),
        (4, "value: bytes after decompression"),
    ]);
    d.line(bytes.len() - d.at, "value: compressed");
    d.out
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "rewrites a page of the documentation, on demand"
)]
fn the_compressed_value_in_the_document_is_written_and_read() {
    let (head, rest) = DOCUMENT.split_once(PACKED_BEGIN).expect("begin");
    let (shown, tail) = rest.split_once(END).expect("end");
    let dump = compressed_dump();
    if std::env::var_os("BASALT_REWRITE_GOLDEN").is_some() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/blob.md");
        std::fs::write(page, format!("{head}{PACKED_BEGIN}{dump}{END}{tail}")).expect("write");
        return;
    }
    assert!(shown == dump, "the format changed:\n{dump}");
    let (bytes, at) = (basalt_sim::hexdump::bytes(shown), HEADER_LEN as u64);
    let head = record::check(Path::new(PATH), FILE_ID, at, &bytes).unwrap();
    let plain = record::unpacked(Path::new(PATH), FILE_ID, at, &bytes).unwrap();
    assert_eq!(plain[head.value().start..], compressed_record().1);
}

/// Bytes of earlier builds stay readable: the test decodes the file from the document, not from the
/// builder.
#[test]
fn the_file_in_the_document_opens_and_has_its_values() {
    let dump = DOCUMENT.split_once(BEGIN).expect("begin").1;
    let dump = dump.split_once(END).expect("end").0;
    let bytes = basalt_sim::hexdump::bytes(dump);
    let fs = SimFs::new(SimOptions::default());
    let path = Path::new(PATH);
    fs.write_file(path, &bytes).unwrap();
    let env = Env::for_tests(fs, 1);
    let (_, meta) = golden();
    let file = env.fs().open(path).unwrap();
    let reader = BlobReader::open(&env, Arc::new(file), path, &meta).unwrap();
    for r in &RECORDS {
        assert_eq!(reader.get(&name(r), true).unwrap(), r.4);
    }
}
