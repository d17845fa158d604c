//! The formats are promises: bytes that `docs/format/lavalog.md` shows, and stores of earlier
//! versions that open.
//!
//! `BASALT_REWRITE_GOLDEN=1` writes the document's hexdump and the golden stores anew. A golden
//! store of a released version is never rewritten: a new version gets a new directory.

use super::*;
use crate::catalog::{self, Change, CheckpointFile, FileEnd, PhysicalFile};
use crate::checkpoint;
use crate::index::{LogIndex, PageContent, PageLocation};
use crate::log_ops::LogOp;
use crate::mapping::{Location, Mapping};
use crate::reverse_index::{ReverseEntry, ReverseIndexBuilder};
use basalt_fs::AlignedBuf;
use basalt_kv::encoding::get_varint64;
use basalt_records::entries::push_entry;
use basalt_records::manifest::Current;
use basalt_records::{FileHeader, FileKind, Outgoing, RECORD_HEADER, RecordKind, RecordWriter};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Id of the files in the document.
const FILE_ID: u128 = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
const STORE_ID: u128 = 0xaa;

fn rewrite() -> bool {
    std::env::var_os("BASALT_REWRITE_GOLDEN").is_some()
}

// ---- the document's hexdumps

/// Writes lines of a hexdump, one or more for each field.
struct Dump<'a> {
    out: &'a mut String,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Dump<'a> {
    fn begin(out: &'a mut String, title: &str, bytes: &'a [u8]) -> Dump<'a> {
        let blank = if out.is_empty() { "" } else { "\n" };
        writeln!(out, "{blank}{title}").unwrap();
        Dump { out, bytes, at: 0 }
    }

    /// Writes a field of so many bytes.
    fn field(&mut self, len: usize, what: &str) {
        for (i, line) in self.bytes[self.at..self.at + len].chunks(16).enumerate() {
            let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
            let what = if i == 0 { what } else { "" };
            let line = format!("{:04x}  {:<47}  {what}", self.at + i * 16, hex.join(" "));
            writeln!(self.out, "{}", line.trim_end()).unwrap();
        }
        self.at += len;
    }

    /// Writes a varint, with its value, and returns the value.
    fn varint(&mut self, what: &str) -> u64 {
        let mut end = self.at;
        let n = get_varint64(self.bytes, &mut end).unwrap();
        self.field(end - self.at, &format!("{what}: {n}"));
        n
    }

    fn varints(&mut self, names: &[&str]) {
        for name in names {
            self.varint(name);
        }
    }

    /// Writes the entries of a mapping.
    fn mapping(&mut self, count: u64) {
        for i in 0..count {
            let tag = self.bytes[self.at];
            self.field(1, &format!("entry {i}: tag {tag:#010b}"));
            let mut first = |known: bool, what: &str| match known {
                true => 0,
                false => self.varint(what),
            };
            first(tag & 1 != 0, "  LSN, or distance from the one before");
            first(tag & 2 != 0, "  file, zigzag distance");
            first(tag >> 3 != 30, "  offset, from the end before");
            first(tag & 4 != 0, "  length");
        }
    }

    fn end(self) {
        assert_eq!(self.at, self.bytes.len(), "each field has its line");
    }
}

/// An entry of a batch: the log, the LSN, the file and offset that it was moved from, and the data.
type BatchEntry<'a> = (u64, u64, Option<(u64, u64)>, &'a [u8]);

/// Returns the record of a batch as it lies in a file with [`FILE_ID`], with the file's header, and
/// the offset of the record.
fn batch_in_file(entries: &[BatchEntry<'_>]) -> (Vec<u8>, usize) {
    let fs = disk(1);
    let path = Path::new("000004.data");
    let header = FileHeader {
        kind: FileKind::Log,
        file_id: FILE_ID,
        store_id: STORE_ID,
        number: 4,
        write_unit: 512,
        compatible: 0,
        incompatible: 0,
        previous: None,
    };
    let mut writer = RecordWriter::create(fs.create(path).unwrap(), path, &header).unwrap();
    let mut buf = AlignedBuf::default();
    buf.resize(RECORD_HEADER, 0);
    for (log, lsn, source, data) in entries {
        push_entry(&mut buf, *log, *lsn, *source, data);
    }
    let mut records = [Outgoing {
        buf: &mut buf,
        kind: RecordKind::Entries,
        first_seq: 300,
        count: entries.len() as u32,
        payload_crc: 0,
        separated: &[],
        offset: 0,
    }];
    writer.append(&mut records, false).unwrap();
    let offset = records[0].offset as usize;
    writer.sync().unwrap();
    let bytes = fs.read_all(path).unwrap();
    (bytes, offset)
}

fn dump_entries(out: &mut String, title: &str, entries: &[BatchEntry<'_>]) {
    let (file, at) = batch_in_file(entries);
    let lens = entries.iter().map(|(.., source, data)| {
        let head = 4 + 1 + 1 + 1;
        head + if source.is_some() { 1 + 3 } else { 0 } + data.len()
    });
    let len = RECORD_HEADER + lens.sum::<usize>();
    let mut dump = Dump::begin(out, title, &file[at..at + len]);
    dump.field(4, "checksum of the record's header, log.md");
    dump.field(4, "CRC-32C of the first 4 bytes of both entries");
    dump.field(4, "bytes of the payload");
    dump.field(2, "record kind 4, flags");
    dump.field(2, "tag of the file's life");
    dump.field(8, "synced up to this byte");
    dump.field(8, "sequence number of the batch: 300");
    dump.field(4, "checksum of the header of the record before");
    dump.field(4, "number of entries: 2");
    for (.., data) in entries {
        dump.field(4, "checksum of the entry");
        dump.varints(&["log", "LSN"]);
        if dump.varint("bytes * 2, plus 1 with a source") & 1 == 1 {
            dump.varints(&["source: file", "source: offset"]);
        }
        dump.field(data.len(), "data");
    }
    dump.end();
}

fn at(file: u64, offset: u64, len: u32) -> Location {
    Location { file, offset, len }
}

/// Entries with each form of a tag.
fn mapping() -> Mapping {
    Mapping::of([
        (20, at(4, 4096, 100)),
        // The next entry of the same batch.
        (21, at(4, 4196, 100)),
        // A batch at the next multiple of 8, and one a little further.
        (22, at(4, 4296, 60)),
        (30, at(4, 4400, 60)),
        // Far behind, and between two multiples of 8.
        (31, at(4, 1 << 20, 60)),
        (32, at(4, 7003, 60)),
        (33, at(6, 512, 9)),
    ])
}

fn document_dump() -> String {
    let mut text = String::new();
    let out = &mut text;
    let (file, _) = batch_in_file(&[]);
    let mut dump = Dump::begin(out, "the header of a .data file, log.md", &file[..128]);
    for (len, what) in [
        (8, "magic"),
        (4, "CRC-32C of bytes 12..128"),
        (4, "file kind 1, flags, reserved"),
        (4, "write unit"),
        (12, "features, reserved"),
        (16, "file id"),
        (16, "store id"),
        (8, "file number"),
        (56, "no previous log; reserved"),
    ] {
        dump.field(len, what);
    }
    dump.end();

    let entries = [(7, 1, None, &b"first"[..]), (9, 40, None, &b"second"[..])];
    let title = "record kind 4 in .data, with the record's header: a batch of two logs";
    dump_entries(out, title, &entries);
    let moved = [
        (7, 1, Some((4, 70_000)), &b"first"[..]),
        (7, 3, Some((4, 70_050)), &b"third"[..]),
    ];
    let title = "record kind 4 in .moved, with the record's header: entries of one log";
    dump_entries(out, title, &moved);

    let mut bytes = Vec::new();
    let (log, name) = (7, "raft/7".to_string());
    let options = log_options(LOGS - 1);
    for op in [
        LogOp::Create { log, name, options },
        LogOp::Trim { log, up_to: 300 },
        LogOp::Remove {
            log,
            range: 400..=409,
        },
        LogOp::Delete { log },
    ] {
        op.encode(&mut bytes);
    }
    let title = "payload of record kind 5 in .meta: operations";
    let mut dump = Dump::begin(out, title, &bytes);
    dump.varints(&["create, tag", "log"]);
    dump.field(1, "duplicates replace");
    let len = dump.varint("bytes of the name");
    dump.field(len as usize, "name");
    dump.varints(&["trim, tag", "log", "LSN"]);
    dump.varints(&["remove, tag", "log", "first LSN", "last LSN - first LSN"]);
    dump.varints(&["delete, tag", "log"]);
    dump.end();

    let mut bytes = Vec::new();
    let mapping = mapping();
    LogOp::Page { log, mapping }.encode(&mut bytes);
    let mut dump = Dump::begin(out, "payload of record kind 5 in .meta: a page", &bytes);
    dump.varints(&["page, tag", "log"]);
    let count = dump.varint("entries");
    dump.varint("bytes of the entries");
    dump.mapping(count);
    dump.end();

    let mut bytes = Vec::new();
    let name = "raft/8".to_string();
    LogOp::Rename { log, name }.encode(&mut bytes);
    let mut dump = Dump::begin(out, "payload of record kind 8 in .meta: a rename", &bytes);
    dump.varints(&["rename, tag", "log"]);
    let len = dump.varint("bytes of the name");
    dump.field(len as usize, "name");
    dump.end();

    let mut builder = ReverseIndexBuilder::default();
    builder.note_segment(70_000);
    builder.add_all(
        [(7, 20, 71_000, 100), (9, 5, 71_100, 30)].map(|(log, lsn, offset, len)| ReverseEntry {
            log,
            lsn,
            location: at(4, offset, len),
        }),
    );
    let bytes = builder.take_segment(true);
    let title = "payload of record kind 6: the last segment of a reverse index";
    let mut dump = Dump::begin(out, title, &bytes);
    dump.varints(&["other segments", "offset of a segment"]);
    for _ in 0..2 {
        dump.varints(&["log", "LSN, zigzag distance", "offset, distance", "length"]);
    }
    dump.end();

    let head_and_log = checkpoint::examples(index());
    let title = "payload of the first record of a .checkpoint, kind 7";
    let mut dump = Dump::begin(out, title, &head_and_log[0]);
    dump.varints(&["next sequence number", "next log"]);
    for role in ["metalog", "datalog", "moved records"] {
        for what in ["file", "offset", "checksum of the record before"] {
            dump.varint(&format!("{role}: {what}"));
        }
    }
    dump.end();
    let title = "payload of a .checkpoint's record of a log, kind 7";
    let mut dump = Dump::begin(out, title, &head_and_log[1]);
    dump.varint("log");
    dump.field(1, "duplicates are refused");
    dump.varints(&["trimmed LSN + 1", "sequence number of its last append"]);
    let len = dump.varint("bytes of the name");
    dump.field(len as usize, "name");
    dump_index(&mut dump);
    dump.end();
    let title = "payload of a .names file's record of the same log, kind 7";
    let mut dump = Dump::begin(out, title, &head_and_log[2]);
    dump.varint("log");
    dump.field(1, "duplicates are refused");
    dump.varints(&["trimmed LSN + 1", "sequence number of its last append"]);
    let len = dump.varint("bytes of the name");
    dump.field(len as usize, "name");
    for _ in 0..dump.varint("sets of LSNs") {
        dump.varints(&["set: LSNs", "set: first LSN", "set: last LSN - first LSN"]);
        let len = dump.varint("set: bytes of the runs");
        if len > 0 {
            dump.field(len as usize, "set: runs");
        }
    }
    dump.end();

    dump_edits(out);
    format!("```text\n{text}```\n")
}

/// Returns an index with a page that was cut, and with a chunk.
fn index() -> LogIndex {
    let mut index = LogIndex::default();
    for (lsn, location) in mapping().iter() {
        index.insert(lsn, location);
    }
    let page = index.next_page(2).unwrap().mapping();
    let place = PageLocation {
        file: 3,
        offset: 9000,
        len: 80,
    };
    index.install_page(PageContent::of(&page), place, &mut Default::default());
    index.remove(
        &(21..=21),
        &mut |_| Some(page.clone()),
        &mut Default::default(),
    );
    index
}

fn dump_index(dump: &mut Dump<'_>) {
    assert_eq!(dump.varint("pages"), 1);
    dump.varints(&["page: first LSN when it was written", "page: LSNs"]);
    dump.varints(&["page: first LSN", "page: last LSN - first LSN"]);
    let len = dump.varint("page: bytes of the runs");
    dump.field(len as usize, "page: runs");
    dump.varints(&["page: file", "page: offset", "page: bytes"]);
    for _ in 0..dump.varint("page: files with its entries") {
        dump.varints(&["  file", "  bytes of entries"]);
    }
    for _ in 0..dump.varint("chunks") {
        let count = dump.varint("chunk: entries");
        dump.varint("chunk: bytes");
        dump.mapping(count);
    }
}

fn dump_edits(out: &mut String) {
    let ended = FileEnd {
        offset: 8192,
        reverse_index: Some(7000),
    };
    let added = |role, end| PhysicalFile {
        file_id: FILE_ID,
        role,
        end,
    };
    let checkpoint = CheckpointFile {
        number: 6,
        file_id: FILE_ID,
        end: 1000,
    };
    let changes = [
        (Change::Store(STORE_ID), "store id"),
        (Change::NextFile(300), "next file number: 300"),
        (
            Change::Add(4, added(Role::Data, None)),
            "datalog 4 begins: number, role 1, file id",
        ),
        (
            Change::Add(5, added(Role::Moved, Some(ended))),
            "moved records 5, role 2, ended: as below",
        ),
        (
            Change::Add(3, added(Role::Meta, None)),
            "metalog 3 begins, role 3",
        ),
        (
            Change::End(4, ended),
            "datalog 4 ends at 8192; the reverse index at 7000",
        ),
        (Change::Remove(4), "datalog 4 is removed"),
        (
            Change::Checkpoint(checkpoint),
            "checkpoint 6: number, end 1000, file id",
        ),
        (
            Change::Names(CheckpointFile {
                number: 8,
                ..checkpoint
            }),
            "names file 8: number, end 1000, file id",
        ),
    ];
    let all: Vec<Change> = changes.iter().map(|(change, _)| change.clone()).collect();
    let bytes = catalog::encode(&all);
    let title = "an edit of the manifest with a change of each tag";
    let mut dump = Dump::begin(out, title, &bytes);
    for (change, what) in changes {
        let encoded = catalog::encode(&[change]);
        let tag = encoded[0];
        dump.field(encoded.len(), &format!("tag {tag}: {what}"));
    }
    dump.end();
    let current = Current {
        number: 7,
        file_id: FILE_ID,
        store_id: STORE_ID,
        synced: 1024,
    };
    let bytes = current.encode();
    let mut dump = Dump::begin(out, "CURRENT, as in manifest.md", &bytes);
    for (len, what) in [
        (8, "magic"),
        (8, "manifest number 7"),
        (16, "manifest id"),
        (16, "store id"),
        (8, "synced up to byte 1024"),
        (4, "reserved, 0"),
        (4, "CRC-32C of bytes 0..60"),
    ] {
        dump.field(len, what);
    }
    dump.end();
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "reads, and on demand rewrites, a page of the documentation"
)]
fn the_code_writes_the_bytes_in_the_document() {
    const BEGIN: &str = "<!-- golden: begin -->\n";
    const END: &str = "<!-- golden: end -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format/lavalog.md");
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
        "the format of log stores changed: if it was meant to, run with BASALT_REWRITE_GOLDEN=1"
    );
}

// ---- golden stores

/// Writes the history of a golden store: a log that keeps its records among one that is trimmed, so
/// that records are moved, and pages, holes and removals of each kind.
fn golden_history(store: &mut Store, crashed: bool) -> Model {
    let mut model = Model::new();
    let mut run = |step: Step| {
        store.run(&step).unwrap();
        model.apply(&step);
    };
    let data = |log: usize, lsn: u64| format!("{log}/{lsn} ").repeat(2 + lsn as usize % 9);
    for lsn in 1..=120u64 {
        let entries = [(0, lsn), (1, 3 * lsn)];
        let entries = entries.map(|(log, lsn)| (log, lsn, data(log, lsn).into_bytes()));
        run(Step::Append(entries.to_vec(), lsn % 4 == 0));
        if lsn % 10 == 0 {
            run(Step::Trim(1, 3 * lsn - 15));
        }
        if lsn == 60 {
            run(Step::Reopen);
        }
    }
    run(Step::Append(vec![(1, 350, b"late".to_vec())], true));
    run(Step::Remove(0, 15..=17));
    run(Step::Remove(0, 115..=u64::MAX - 1));
    for lsn in 1..=30u64 {
        let entry = (2, lsn, data(2, lsn).into_bytes());
        run(Step::Append(vec![entry], false));
    }
    run(Step::Append(vec![(2, 7, b"replaced".to_vec())], false));
    run(Step::Append(vec![(0, 200, vec![0xff; 700])], true));
    run(Step::Append(vec![(0, 201, Vec::new())], true));
    if crashed {
        // No job runs any more, so these are behind the last checkpoint.
        store.job_pause = usize::MAX;
        let mut run = |step: Step| {
            store.run(&step).unwrap();
            model.apply(&step);
        };
        for lsn in 31..=40u64 {
            let entries = [(0, 300 + lsn), (2, lsn)];
            let entries = entries.map(|(log, lsn)| (log, lsn, data(log, lsn).into_bytes()));
            run(Step::Append(entries.to_vec(), false));
        }
        run(Step::Trim(2, 4));
        run(Step::Remove(0, 333..=334));
        run(Step::Append(
            vec![(1, 400, data(1, 400).into_bytes())],
            true,
        ));
    }
    model
}

/// Returns a disk with the golden store of this name, and its content. On demand it is written
/// anew.
#[expect(
    clippy::disallowed_methods,
    reason = "golden stores are files of the repository"
)]
fn golden(name: &str) -> (Arc<SimFs>, Model) {
    let fs = disk(5);
    let mut store = Store::open(&fs).unwrap();
    let crashed = name == "crashed";
    let model = golden_history(&mut store, crashed);
    let mut seen = Structure::default();
    store.note_structure(&mut seen);
    assert!(seen.pages > 0 && seen.moved > 0, "{seen:?}");
    match crashed {
        true => store.engine.cut_power(),
        false => store.engine.close().unwrap(),
    }
    drop(store);
    let dir: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/v1")
        .join(name);
    if rewrite() {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        for entry in fs.list(Path::new(DIR)).unwrap() {
            let mut bytes = fs.read_all(&Path::new(DIR).join(&entry.name)).unwrap();
            // Written space behind the records has no meaning.
            let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
            let kept = used.next_multiple_of(512).min(bytes.len());
            bytes.truncate(kept);
            std::fs::write(dir.join(&entry.name), bytes).unwrap();
        }
    }
    let fs = disk(6);
    fs.create_dir(Path::new(DIR)).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        fs.write_file(&Path::new(DIR).join(name), &bytes).unwrap();
    }
    (fs, model)
}

#[test]
fn a_store_of_the_first_version_opens_with_all_its_records() {
    for name in ["closed", "crashed"] {
        let (fs, model) = golden(name);
        let env = Env::for_tests(fs.clone(), 1);
        let report = LogEngine::check(&env, DIR, &options(), &mut |_, _| ()).unwrap();
        assert!(report.damage.is_empty(), "{name}: {report:?}");

        let reader = LogEngine::open_read_only(&env, DIR, options()).unwrap();
        assert_eq!(reader.list(), [log_name(0), log_name(1), log_name(2)]);
        for (i, expected) in model.logs.iter().enumerate() {
            let log = reader.log(&log_name(i)).unwrap();
            let found: BTreeMap<u64, Vec<u8>> = log
                .iter(0)
                .map(|item| item.map(|(lsn, data)| (lsn, data.to_vec())).unwrap())
                .collect();
            assert_eq!(&found, expected, "{name}: log {i}");
            assert_eq!(log.trimmed(), model.trimmed[i], "{name}: log {i}");
            assert_eq!(log.options(), log_options(i), "{name}: log {i}");
        }
        reader.close().unwrap();
        drop(reader);

        // The store takes records, and keeps all of them over a close.
        let mut store = Store::open(&fs).unwrap();
        let mut model = model;
        for step in [
            Step::Append(vec![(0, 300, b"new".to_vec())], true),
            Step::Append(vec![(2, 300, b"new".to_vec())], false),
            Step::Trim(0, 100),
            Step::Reopen,
        ] {
            store.run(&step).unwrap();
            model.apply(&step);
        }
        check_reads(&store, &model, &Random::from_seed(1));
    }
}
