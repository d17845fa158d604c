//! The formats are promises: numbers that never change, bytes that the documents show, stores of
//! released versions that open, and refusals of later versions' stores. A refusal's message names
//! the unknown part.
//!
//! `BASALT_REWRITE_GOLDEN=1` writes the document's hexdump and the golden stores anew. A golden
//! store of a released version is never rewritten: a new version gets a new directory.

use basalt_blob::garbage::Garbage;
use basalt_blob::lineage::LineageGroup;
use basalt_blob::{BlobMeta, FamilyShare};
use basalt_env::Env;
use basalt_fs::{AlignedBuf, FileSystem};
use basalt_lsm::db::Db;
use basalt_lsm::version::EngineKind;
use basalt_lsm::version::edit::{AddBlob, AddTable, Edit};
use basalt_lsm::version::manifest::{CURRENT_LEN, Current, Manifest};
use basalt_lsm::version::{FileLocation, FlushFlag};
use basalt_lsm::{
    Compression, ErrorKind, FamilyOptions, Kind, LogMode, Options, PassiveOptions, ReadOptions,
    WriteBatch, WriteOptions,
};
use basalt_records::{FileHeader, FileKind, Outgoing, RECORD_HEADER, RecordKind, RecordWriter};
use basalt_sim::{SimFs, SimOptions};
use basalt_table::TableMeta;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIR: &str = "store";

fn rewrite() -> bool {
    std::env::var_os("BASALT_REWRITE_GOLDEN").is_some()
}

fn sim() -> (Arc<SimFs>, Env) {
    let fs = SimFs::new(SimOptions::default());
    let env = Env::for_tests(fs.clone(), 1);
    (fs, env)
}

// ---- persisted numbers

#[test]
fn persisted_numbers_never_change() {
    let kinds = [
        (Kind::Delete, 0),
        (Kind::Put, 1),
        (Kind::PutTtl, 2),
        (Kind::SingleDelete, 3),
        (Kind::RangeDelete, 4),
        (Kind::Merge, 5),
        (Kind::BlobRef, 6),
        (Kind::Prepare, 7),
        (Kind::Commit, 8),
        (Kind::Rollback, 9),
    ];
    for (kind, n) in kinds {
        assert_eq!(kind as u8, n);
        assert_eq!(Kind::from_u8(n), Some(kind));
        assert_eq!(kind.is_supported(), n <= 2 || (4..=6).contains(&n));
        assert_eq!(kind.is_operation(), n <= 2 || n == 4 || n == 5);
    }
    assert_eq!(Kind::from_u8(10), None);
    assert_eq!(Compression::None as u8, 0);
    assert_eq!(Compression::Lz4 as u8, 1);
    assert_eq!(Compression::Zstd as u8, 2);
    assert_eq!(FileKind::Log as u8, 1);
    assert_eq!(FileKind::Manifest as u8, 2);
    assert_eq!(RecordKind::Batch as u8, 1);
    assert_eq!(RecordKind::Edit as u8, 2);
    assert_eq!(RECORD_HEADER, 40);
    let mut catalog = basalt_lsm::version::catalog::Catalog::default();
    assert_eq!(catalog.to_edit().features, Some([0, 0, 0]));
    catalog.engines.insert(EngineKind::Logs);
    assert_eq!(catalog.to_edit().features, Some([0, 0, 1]));
    catalog.has_references_in_pages = true;
    assert_eq!(catalog.to_edit().features, Some([0, 0, 3]));
    catalog.passive = true;
    assert_eq!(catalog.to_edit().features, Some([0, 0, 7]));
    assert_eq!(EngineKind::Logs.directory(), "logs");
    assert_eq!(CURRENT_LEN, 64);
    assert_eq!(basalt_lsm::version::LEVELS, 7);
    assert_eq!(basalt_kv::key::BYTEWISE_NAME, "basalt.bytewise");
    for (i, (name, edit)) in fields().into_iter().enumerate() {
        let tag = [
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 21, 26, 27,
            64, 65,
        ][i];
        assert_eq!(edit.encode()[0], tag, "{name}");
    }
}

/// Returns one edit for each tag, in the order of tags, with its meaning, a line for each field.
fn fields() -> Vec<(&'static str, Edit)> {
    let none = Edit::default;
    let meta = TableMeta {
        file_id: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
        size: 4096,
        digest: 0x1f1e_1d1c_1b1a_1918_1716_1514_1312_1110,
        entries: 100,
        deletes: 3,
        smallest: b"apple\x01\x05\0\0\0\0\0\0".to_vec(),
        largest: b"pear\x00\x80\x02\0\0\0\0\0".to_vec(),
        min_seq: 5,
        max_seq: 700,
        raw_key_bytes: 600,
        raw_value_bytes: 9000,
        soonest_expiry_ms: u64::MAX,
        range_deletes: 0,
        references: Default::default(),
        shift: 0,
    };
    let with_ranges = TableMeta {
        largest: b"plum\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
        range_deletes: 2,
        ..meta.clone()
    };
    let with_references = TableMeta {
        references: [(280, 5), (301, 7)].into(),
        ..meta.clone()
    };
    let prepared = TableMeta {
        shift: 4,
        ..with_references.clone()
    };
    let blob = BlobMeta {
        file_id: 0x2f0e_2d0c_2b0a_2908_2706_2504_2302_2120,
        data_end: 3000,
        index: None,
        size: 3400,
        digest: 0x3f1e_3d1c_3b1a_3918_3716_3514_3312_3130,
        records: 2,
        families: [(
            1,
            FamilyShare {
                records: 2,
                bytes: 2936,
            },
        )]
        .into(),
        min_seq: 5,
        max_seq: 6,
    };
    let mut marks = Garbage::none(2);
    assert!(marks.mark(0, 1, 1468, 0x0102_0304_0506_0708));
    vec![
        (
            "store id, 16 bytes",
            Edit {
                store_id: Some(0xaa),
                ..none()
            },
        ),
        (
            "features: compatible, read-compatible, incompatible",
            Edit {
                features: Some([0, 0, 0]),
                ..none()
            },
        ),
        (
            "next file number",
            Edit {
                next_file: Some(300),
                ..none()
            },
        ),
        (
            "last sequence number",
            Edit {
                last_seq: Some(700),
                ..none()
            },
        ),
        (
            "family made: id 1, name, comparator",
            Edit {
                add_families: vec![(1, "users".into(), "basalt.bytewise".into())],
                ..none()
            },
        ),
        (
            "family dropped: id 2",
            Edit {
                drop_families: vec![2],
                ..none()
            },
        ),
        (
            "table enters: family 1, level 3, number 299, and its metadata",
            Edit {
                add_tables: vec![AddTable {
                    family: 1,
                    level: 3,
                    number: 299,
                    meta,
                    location: FileLocation::Local,
                }],
                ..none()
            },
        ),
        (
            "table leaves: family 1, level 2, number 280",
            Edit {
                remove_tables: vec![(1, 2, 280)],
                ..none()
            },
        ),
        (
            "log made live: number 298, id",
            Edit {
                add_logs: vec![(298, 0xbb)],
                ..none()
            },
        ),
        (
            "log removed: number 290",
            Edit {
                remove_logs: vec![290],
                ..none()
            },
        ),
        (
            "log ended: number 297, at byte 8192",
            Edit {
                end_logs: vec![(297, 8192)],
                ..none()
            },
        ),
        (
            "next family id",
            Edit {
                next_family: Some(3),
                ..none()
            },
        ),
        (
            "log left: number 298, at byte 4096",
            Edit {
                left_logs: vec![(298, 4096)],
                ..none()
            },
        ),
        (
            "merge operator of family 1: its name",
            Edit {
                merge_operators: vec![(1, "basalt.add.u64".into())],
                ..none()
            },
        ),
        (
            "table with 2 range tombstones enters: family 1, level 0, number 300",
            Edit {
                add_tables: vec![AddTable {
                    family: 1,
                    level: 0,
                    number: 300,
                    meta: with_ranges,
                    location: FileLocation::Local,
                }],
                ..none()
            },
        ),
        (
            "blob file enters: number 301, 2 records of family 1",
            Edit {
                add_blobs: vec![AddBlob {
                    number: 301,
                    meta: Arc::new(blob),
                    location: FileLocation::Local,
                }],
                ..none()
            },
        ),
        (
            "blob file leaves: number 280",
            Edit {
                remove_blobs: vec![280],
                ..none()
            },
        ),
        (
            "records of blob file 301 lose their references: the first",
            Edit {
                mark_blobs: vec![(301, marks.encode())],
                ..none()
            },
        ),
        (
            "names 280 and 281 of group 280: in family 1 they stand for 301 up to \"m\", then for 302",
            Edit {
                lineage: vec![(
                    280,
                    LineageGroup {
                        names: vec![280, 281],
                        targets: [(1, vec![((*b"a").into(), 301), ((*b"m").into(), 302)])].into(),
                    },
                )],
                ..none()
            },
        ),
        (
            "name forgotten: 279",
            Edit {
                forget_names: vec![279],
                ..none()
            },
        ),
        (
            "table with references enters: family 1, level 0, number 303; 5 to file 280, 7 to file 301",
            Edit {
                add_tables: vec![AddTable {
                    family: 1,
                    level: 0,
                    number: 303,
                    meta: with_references,
                    location: FileLocation::Local,
                }],
                ..none()
            },
        ),
        (
            "table with references enters that was prepared: number 304\n\
             sequence numbers of table 304 are shifted by 4",
            Edit {
                add_tables: vec![AddTable {
                    family: 1,
                    level: 6,
                    number: 304,
                    meta: prepared,
                    location: FileLocation::Local,
                }],
                ..none()
            },
        ),
        (
            "families 1 and 5 are persisted up to transaction 900, of 3 items from 2000 on",
            Edit {
                flush_flags: vec![(FlushFlag::of(900, 2000, 3), vec![1, 5])],
                ..none()
            },
        ),
        (
            "the store became passive at sequence number 100",
            Edit {
                passive_from: Some(100),
                ..none()
            },
        ),
        (
            "highest wall time met, ms since 1970",
            Edit {
                wall_ms: Some(1_700_000_000_000),
                ..none()
            },
        ),
        (
            "blob file 301 was made, ms since 1970",
            Edit {
                blob_times: vec![(301, 1_700_000_000_000)],
                ..none()
            },
        ),
    ]
}

// ---- the document's hexdumps

fn dump_line(out: &mut String, at: usize, bytes: &[u8], what: &str) {
    for (i, line) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
        let what = if i == 0 { what } else { "" };
        let line = format!("{:04x}  {:<47}  {what}", at + i * 16, hex.join(" "));
        writeln!(out, "{}", line.trim_end()).unwrap();
    }
}

fn document_dump() -> String {
    let mut out = String::from("```text\nan edit with one field of each tag\n");
    let mut whole = Vec::new();
    for (what, edit) in fields() {
        let bytes = edit.encode();
        let mut rest = &bytes[..];
        for what in what.lines() {
            // All tags here are short, and so are the bodies.
            let len = match rest[1] {
                long if long >= 0x80 => 3 + usize::from(long & 0x7f) + 128 * usize::from(rest[2]),
                short => 2 + usize::from(short),
            };
            let (field, more) = rest.split_at(len);
            let at = whole.len() + bytes.len() - rest.len();
            dump_line(&mut out, at, field, &format!("tag {}: {what}", field[0]));
            rest = more;
        }
        assert!(rest.is_empty(), "each field has its line");
        whole.extend_from_slice(&bytes);
    }
    let all = Edit::decode(&whole).unwrap();
    assert_eq!(
        all.encode(),
        whole,
        "fields are written in the order of tags"
    );
    let current = Current {
        number: 7,
        file_id: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
        store_id: 0xaa,
        synced: 1024,
    };
    let bytes = current.encode();
    assert_eq!(
        Current::decode(&bytes, Path::new("CURRENT")).unwrap(),
        current
    );
    out.push_str("\nCURRENT\n");
    let parts = [
        (0, 8, "magic"),
        (8, 16, "manifest number 7"),
        (16, 32, "manifest id"),
        (32, 48, "store id"),
        (48, 56, "synced up to byte 1024"),
        (56, 60, "reserved, 0"),
        (60, 64, "CRC-32C of bytes 0..60"),
    ];
    for (from, to, what) in parts {
        dump_line(&mut out, from, &bytes[from..to], what);
    }
    out.push_str("```\n");
    out
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "reads, and on demand rewrites, a page of the documentation"
)]
fn the_code_writes_the_bytes_in_the_document() {
    const BEGIN: &str = "<!-- golden: begin -->\n";
    const END: &str = "<!-- golden: end -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format/manifest.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = document.split_once(BEGIN).unwrap();
    let (dump, tail) = rest.split_once(END).unwrap();
    let golden = document_dump();
    if rewrite() {
        std::fs::write(&path, format!("{head}{BEGIN}{golden}{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(
        dump, golden,
        "the manifest's format changed: if it was meant to, run with BASALT_REWRITE_GOLDEN=1"
    );
}

// ---- golden stores

const FAR: u64 = 4_102_444_800_000; // the year 2100

type Expected = BTreeMap<(String, Vec<u8>), (Vec<u8>, Option<u64>)>;

fn golden_options() -> Options {
    let family = |compression| {
        FamilyOptions::default()
            .block_bytes(512)
            .table_bytes(8192)
            .compression(compression)
    };
    Options::default()
        .write_buffer_bytes(64 << 10)
        .default_family(family(Compression::Lz4))
        .families([("users".to_string(), family(Compression::Zstd))].into())
}

/// Returns options with which values of at least 100 bytes are separated and compressed.
fn packing_options() -> Options {
    let mut options = golden_options();
    for (family, codec) in [
        (&mut options.default_family, Compression::Lz4),
        (
            options.families.get_mut("users").expect("it is there"),
            Compression::Zstd,
        ),
    ] {
        family.min_blob_size = Some(100);
        family.blob_compression = codec;
    }
    options
}

/// Writes the history of a golden store with compressed values: in a log that stays as a blob file,
/// in a blob file, and in a live log.
fn packed_history(db: &Db) -> Expected {
    let default = db.default_family();
    let users = db
        .create_family("users", packing_options().family("users").clone())
        .unwrap();
    let mut expected = Expected::new();
    let mut write = |key: String, value: String, at: Option<u64>| {
        let mut batch = WriteBatch::new();
        for family in [&default, &users] {
            let id = (family.name().to_string(), key.clone().into_bytes());
            match at {
                None => batch.put(family, key.as_bytes(), value.as_bytes()).unwrap(),
                Some(at) => batch
                    .put_ttl(family, key.as_bytes(), value.as_bytes(), at)
                    .unwrap(),
            }
            expected.insert(id, (value.clone().into_bytes(), at));
        }
        db.write(batch, &WriteOptions::UNSYNCED).unwrap();
    };
    let noise = |seed: u32, len: u32| -> String {
        let at = |i: u32| (i + seed * 1000).wrapping_mul(2_654_435_761) >> 25;
        (0..len)
            .map(|i| char::from(33 + at(i) as u8 % 94))
            .collect()
    };
    // The values are so long that the log stays as a blob file.
    for i in 0..12 {
        write(format!("key {i:03}"), noise(i, 1300).repeat(2), None);
    }
    write("expires in 2100".into(), "later ".repeat(60), Some(FAR));
    // This value is too short to be separated, and too random to compress.
    write("short".into(), "no blob".into(), None);
    write("noise".into(), noise(99, 150), None);
    db.flush().unwrap();
    for i in 0..9 {
        write(
            format!("key {i:03}"),
            format!("second {i} ").repeat(30),
            None,
        );
    }
    db.flush().unwrap();
    for family in [&default, &users] {
        db.compact_range(family, None, None).unwrap();
    }
    db.wait_idle().unwrap();
    write("key 000".into(), "in the log ".repeat(30), None);
    write(
        "expires from the log".into(),
        "x".repeat(300),
        Some(FAR + 1),
    );
    db.sync().unwrap();
    expected
}

/// Writes the history of a golden store with prepared tables. Some are as they were added, some
/// have been merged since, and some values have been moved by a garbage collection since.
fn prepared_history(db: &Db) -> Expected {
    let default = db.default_family();
    let users = db
        .create_family("users", packing_options().family("users").clone())
        .unwrap();
    let mut expected = Expected::new();
    let mut add = |numbers: std::ops::Range<u32>, round: u32| {
        let sets = [&default, &users].map(|family| {
            let mut table = db.prepare(family).unwrap();
            for i in numbers.clone() {
                let key = format!("key {i:03}").into_bytes();
                let value = match i % 4 {
                    0 => format!("small {round}"),
                    _ => format!("large {i} {round} ").repeat(30),
                };
                let at = (i % 5 == 3).then_some(FAR + u64::from(round));
                match at {
                    None => table.add(&key, value.as_bytes()).unwrap(),
                    Some(at) => table.add_ttl(&key, value.as_bytes(), at).unwrap(),
                }
                let id = (family.name().to_string(), key);
                expected.insert(id, (value.into_bytes(), at));
            }
            table.finish().unwrap()
        });
        db.ingest(&sets).unwrap();
    };
    add(0..30, 1);
    add(10..40, 2);
    for family in [&default, &users] {
        db.compact_range(family, None, None).unwrap();
    }
    db.wait_idle().unwrap();
    add(35..60, 3);
    db.put(&default, b"last", b"in the log", &WriteOptions::SYNC)
        .unwrap();
    let last = ("default".to_string(), b"last".to_vec());
    expected.insert(last, (b"in the log".to_vec(), None));
    expected
}

/// Writes the history of a golden store, and computes beside it what a reader must find.
fn golden_history(db: &Db, crashed: bool) -> Expected {
    let default = db.default_family();
    let users = db
        .create_family("users", golden_options().family("users").clone())
        .unwrap();
    let mut expected = Expected::new();
    let mut write = |key: String, value: Option<(String, Option<u64>)>| {
        let mut batch = WriteBatch::new();
        for family in [&default, &users] {
            let id = (family.name().to_string(), key.clone().into_bytes());
            match &value {
                Some((v, None)) => batch.put(family, key.as_bytes(), v.as_bytes()).unwrap(),
                Some((v, Some(at))) => batch
                    .put_ttl(family, key.as_bytes(), v.as_bytes(), *at)
                    .unwrap(),
                None => batch.delete(family, key.as_bytes()).unwrap(),
            }
            match &value {
                Some((v, at)) => expected.insert(id, (v.clone().into_bytes(), *at)),
                None => expected.remove(&id),
            };
        }
        db.write(batch, &WriteOptions::SYNC).unwrap();
    };
    for i in 0..40 {
        write(
            format!("key {i:03}"),
            Some((format!("first {i} ").repeat(4), None)),
        );
    }
    db.flush().unwrap();
    for family in [&default, &users] {
        db.compact_range(family, None, None).unwrap();
    }
    for i in (0..40).step_by(3) {
        write(format!("key {i:03}"), Some((format!("second {i}"), None)));
    }
    for i in (1..40).step_by(5) {
        write(format!("key {i:03}"), None);
    }
    write("expires in 2100".into(), Some(("later".into(), Some(FAR))));
    write("expired".into(), Some(("gone".into(), Some(1_000))));
    write(String::new(), Some(("the empty key".into(), None)));
    db.flush().unwrap();
    if crashed {
        for i in 50..60 {
            write(
                format!("key {i:03}"),
                Some((format!("in the log {i}"), None)),
            );
        }
        write("key 000".into(), None);
        write(
            "expires from the log".into(),
            Some(("x".into(), Some(FAR + 1))),
        );
    }
    expected.retain(|_, (_, at)| at.is_none_or(|at| at >= FAR));
    expected
}

fn options_of(name: &str) -> Options {
    match name {
        "compressed" | "prepared" => packing_options(),
        _ => golden_options(),
    }
}

fn golden_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/v1")
        .join(name)
}

#[expect(
    clippy::disallowed_methods,
    reason = "golden stores are files of the repository"
)]
fn golden(name: &str) -> (Arc<SimFs>, Env, Expected) {
    let crashed = name != "closed";
    let (fs, env) = sim();
    let db = Db::open(&env, DIR, options_of(name)).unwrap();
    let expected = match name {
        "compressed" => packed_history(&db),
        "prepared" => prepared_history(&db),
        _ => golden_history(&db, crashed),
    };
    if crashed {
        db.abandon();
    } else {
        db.close().unwrap();
    }
    let dir = golden_dir(name);
    if rewrite() {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        for entry in fs.list(Path::new(DIR)).unwrap() {
            let mut bytes = fs.read_all(&Path::new(DIR).join(&entry.name)).unwrap();
            if entry.name.ends_with(".log") {
                // Written space behind the records has no meaning.
                let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
                bytes.truncate(used.next_multiple_of(512));
            }
            std::fs::write(dir.join(&entry.name), bytes).unwrap();
        }
    }
    let (fs, env) = sim();
    fs.create_dir(Path::new(DIR)).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        let name = entry.file_name().into_string().unwrap();
        fs.write_file(&Path::new(DIR).join(name), &bytes).unwrap();
    }
    (fs, env, expected)
}

fn check_golden(env: &Env, expected: &Expected) {
    let db = Db::open(env, DIR, golden_options()).unwrap();
    assert_eq!(db.families(), ["default", "users"]);
    let mut found = Expected::new();
    for name in db.families() {
        let family = db.family(&name).unwrap();
        let mut it = db.iter(&family, &ReadOptions::default()).unwrap();
        it.seek_to_first().unwrap();
        while it.valid() {
            let got = db
                .get_with_expiry(&family, it.key(), &ReadOptions::default())
                .unwrap()
                .unwrap();
            assert_eq!(got.value, it.value());
            let value = (it.value().to_vec(), got.expire_at_ms);
            found.insert((name.clone(), it.key().to_vec()), value);
            it.next().unwrap();
        }
    }
    assert_eq!(found, *expected);
    db.close().unwrap();
}

#[test]
fn a_closed_store_of_version_1_opens_and_reads() {
    let (_, env, expected) = golden("closed");
    let report = Db::verify_store(&env, DIR, &golden_options(), &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    assert!(report.unused_files.is_empty(), "{:#?}", report.unused_files);
    check_golden(&env, &expected);
    check_golden(&env, &expected);
}

#[test]
fn a_crashed_store_of_version_1_opens_and_reads() {
    let (fs, env, expected) = golden("crashed");
    let list = fs.list(Path::new(DIR)).unwrap();
    assert!(list.iter().any(|e| e.name.ends_with(".log")), "{list:?}");
    let report = Db::verify_store(&env, DIR, &golden_options(), &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    check_golden(&env, &expected);
    check_golden(&env, &expected);
}

/// The store has compressed values in a log that is a blob file, in a blob file, and in a live log.
#[test]
fn a_crashed_store_of_version_1_with_compressed_values_opens_and_reads() {
    let (fs, env, expected) = golden("compressed");
    let list = fs.list(Path::new(DIR)).unwrap();
    for end in [".log", ".index", ".blob"] {
        assert!(list.iter().any(|e| e.name.ends_with(end)), "{list:?}");
    }
    let report = Db::verify_store(&env, DIR, &packing_options(), &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    check_golden(&env, &expected);
    check_golden(&env, &expected);
}

#[test]
fn a_crashed_store_of_version_1_with_prepared_tables_opens_and_reads() {
    let (fs, env, expected) = golden("prepared");
    let list = fs.list(Path::new(DIR)).unwrap();
    assert!(list.iter().any(|e| e.name.ends_with(".blob")), "{list:?}");
    let report = Db::verify_store(&env, DIR, &packing_options(), &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{:#?}", report.damage);
    check_golden(&env, &expected);
    check_golden(&env, &expected);
}

// ---- parts that a later version may have written

const STORE_ID: u128 = 77;

fn state(change: impl FnOnce(&mut Edit)) -> Edit {
    let mut edit = Edit {
        store_id: Some(STORE_ID),
        features: Some([0, 0, 0]),
        next_file: Some(20),
        next_family: Some(1),
        add_families: vec![(0, "default".into(), "basalt.bytewise".into())],
        ..Edit::default()
    };
    change(&mut edit);
    edit
}

fn header(kind: FileKind, number: u64, incompatible: u32) -> FileHeader {
    FileHeader {
        kind,
        file_id: 99,
        store_id: STORE_ID,
        number,
        write_unit: 512,
        compatible: 0,
        incompatible,
        previous: None,
    }
}

/// Writes a file of one record with any payload.
fn write_records(fs: &SimFs, name: &str, header: &FileHeader, kind: RecordKind, payload: &[u8]) {
    let path = Path::new(DIR).join(name);
    let file = fs.create(&path).unwrap();
    let mut writer = RecordWriter::create(file, &path, header).unwrap();
    let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + payload.len());
    buf.resize(RECORD_HEADER, 0);
    buf.extend_from_slice(payload);
    let record = Outgoing {
        buf: &mut buf,
        kind,
        first_seq: u64::from(kind == RecordKind::Batch),
        count: 1,
        payload_crc: crc32c::crc32c(payload),
        separated: &[],
        offset: 0,
    };
    writer.append(&mut [record], true).unwrap();
    writer.file().sync_all().unwrap();
    fs.sync_metadata(Path::new(DIR)).unwrap();
}

/// Checks that opening and repairing refuse the store, name `what`, and change nothing, and that
/// verification reports it.
fn refused(fs: &Arc<SimFs>, env: &Env, what: &str) {
    let names = |fs: &SimFs| {
        let list = fs.list(Path::new(DIR)).unwrap();
        list.into_iter()
            .map(|e| e.name)
            .filter(|n| n != "LOCK")
            .collect::<Vec<_>>()
    };
    let before = names(fs);
    let e = Db::open(env, DIR, Options::default())
        .err()
        .expect("refused");
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains(what), "{e}");
    let e = Db::repair(env, DIR, &Options::default(), &mut |_, _| {}).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains(what), "{e}");
    match Db::verify_store(env, DIR, &Options::default(), &mut |_, _| {}) {
        Ok(report) => assert!(
            report.damage.iter().any(|e| e.to_string().contains(what)),
            "{:#?}",
            report.damage
        ),
        Err(e) => assert!(e.to_string().contains(what), "{e}"),
    }
    assert_eq!(names(fs), before);
}

fn new_dir() -> (Arc<SimFs>, Env) {
    let (fs, env) = sim();
    fs.create_dir(Path::new(DIR)).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    (fs, env)
}

fn point_current(fs: &SimFs, number: u64) {
    let current = Current {
        number,
        file_id: 99,
        store_id: STORE_ID,
        synced: 0,
    };
    fs.write_file(&Path::new(DIR).join("CURRENT"), &current.encode())
        .unwrap();
}

#[test]
fn later_features_are_refused_by_name() {
    for (features, ok) in [
        ([1, 0, 0], true),
        ([0, 2, 0], false),
        // Bit 0 says that the store also has logs, and bit 1 that its pages may have references.
        ([0, 0, 1], true),
        ([0, 0, 2], true),
        ([0, 0, 3], true),
        ([0, 0, 8], false),
        ([0, 0, 15], false),
    ] {
        let (fs, env) = new_dir();
        let edit = state(|e| e.features = Some(features));
        drop(Manifest::create(&env, Path::new(DIR), STORE_ID, 9, &edit.encode()).unwrap());
        if ok {
            Db::open(&env, DIR, Options::default()).unwrap();
        } else {
            refused(
                &fs,
                &env,
                &format!("{:#x} ", features[1] | (features[2] & !7)),
            );
        }
    }
}

/// Bit 2 says that the store is passive.
#[test]
fn a_passive_store_is_refused_without_its_owner_and_without_its_flags() {
    let (_, env) = new_dir();
    let edit = state(|e| e.features = Some([0, 0, 4]));
    drop(Manifest::create(&env, Path::new(DIR), STORE_ID, 9, &edit.encode()).unwrap());
    let e = Db::open(&env, DIR, Options::default()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let log = LogMode::Passive(PassiveOptions::default());
    let e = Db::open_passive(&env, DIR, Options::default().log(log));
    let e = e.err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(
        e.to_string().contains("\"default\" has no flush flag"),
        "{e}"
    );
}

#[test]
fn a_later_versions_mandatory_tag_is_refused_and_an_ignorable_one_is_not() {
    for (tag, ok) in [(32u8, false), (63, false), (66, true), (127, true)] {
        let (fs, env) = new_dir();
        let mut payload = state(|_| ()).encode();
        payload.extend_from_slice(&[tag, 3, b'n', b'e', b'w']);
        let h = header(FileKind::Manifest, 9, 0);
        write_records(&fs, "MANIFEST-000009", &h, RecordKind::Edit, &payload);
        point_current(&fs, 9);
        if ok {
            Db::open(&env, DIR, Options::default()).unwrap();
        } else {
            refused(&fs, &env, &format!("tag {tag}"));
        }
    }
}

#[test]
fn a_later_versions_file_of_records_is_refused() {
    let (fs, env) = new_dir();
    let h = header(FileKind::Manifest, 9, 8);
    let payload = state(|_| ()).encode();
    write_records(&fs, "MANIFEST-000009", &h, RecordKind::Edit, &payload);
    point_current(&fs, 9);
    refused(&fs, &env, "0x8");
}

#[test]
fn operations_of_reserved_kinds_are_refused_by_name() {
    for (n, name) in [
        (3, "SingleDelete"),
        (7, "Prepare"),
        (8, "Commit"),
        (9, "Rollback"),
    ] {
        let (fs, env) = new_dir();
        let payload = [n, 0, 1, b'k', 1, b'v'];
        let h = header(FileKind::Log, 5, 0);
        write_records(&fs, "000005.log", &h, RecordKind::Batch, &payload);
        let edit = state(|e| e.add_logs = vec![(5, 99)]);
        drop(Manifest::create(&env, Path::new(DIR), STORE_ID, 9, &edit.encode()).unwrap());
        refused(&fs, &env, name);
    }
}
