//! The decoders of this crate as targets of mutators: the input of each target, and the properties
//! that must hold for any input.
//!
//! This module is compiled only for tests and under coverage-guided fuzzing (`--cfg fuzzing`). No
//! other build has this interface. Targets for files of records, tables and blob files are in their
//! crates. The targets here are those of the remaining formats and of whole stores. The list, with
//! the promise that each target checks, is in `docs/testing/fuzzing.md`.

use crate::db::Db;
use crate::options::{FamilyOptions, Options, ReadOptions, WriteOptions};
use crate::version::catalog::Catalog;
use crate::version::edit::Edit;
use crate::version::manifest::{CURRENT_LEN, Current, manifest_path};
use crate::{Compression, MAX_KEY_LEN, MAX_VALUE_LEN, WriteBatch};
use basalt_env::Env;
use basalt_fs::{AlignedBuf, Error, ErrorKind, FileSystem, Result};
use basalt_kv::batch::Ops;
use basalt_kv::key::Kind;
use basalt_kv::separated::compressed;
use basalt_records::{FileKind, Outgoing, RECORD_HEADER, RecordKind, RecordReader, RecordWriter};
use basalt_sim::mutate::{Target, Verdict, file_of};
use basalt_sim::{SimFs, SimOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Returns every target of this crate.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    let all = [
        TARGETS,
        #[cfg(fuzzing)]
        basalt_records::fuzzing::TARGETS,
        #[cfg(fuzzing)]
        basalt_table::fuzzing::TARGETS,
        #[cfg(fuzzing)]
        basalt_blob::fuzzing::TARGETS,
    ];
    all.into_iter().flatten()
}

/// Runs the target of this name. Panics if there is none, or if its promise does not hold.
pub fn run(name: &str, input: &[u8]) {
    let target = targets().find(|t| t.name == name);
    (target.expect("a target of this name").run)(input);
}

const TARGETS: &[Target] = &[
    Target {
        name: "batch_ops",
        run: batch_ops,
        seeds: || vec![payload_of(&sample_batch())],
        words: &[],
    },
    Target {
        name: "manifest_edit",
        run: manifest_edit,
        seeds: || golden().edits.clone(),
        words: &[],
    },
    Target {
        name: "manifest_state",
        run: manifest_state,
        seeds: || {
            let framed = |e: &Vec<u8>| [&(e.len() as u16).to_le_bytes()[..], e].concat();
            vec![golden().edits.iter().flat_map(framed).collect()]
        },
        words: &[],
    },
    Target {
        name: "current",
        run: current,
        seeds: || {
            let current = Current {
                number: 7,
                file_id: 8,
                store_id: 9,
                synced: 4096,
            };
            vec![current.encode().to_vec()]
        },
        words: &[],
    },
    Target {
        name: "store_image",
        run: store_image,
        seeds: || {
            let g = golden();
            let seed = |(i, f): (usize, &(String, Vec<u8>))| [&[i as u8][..], &f.1].concat();
            g.files.iter().enumerate().map(seed).collect()
        },
        words: &[],
    },
    Target {
        name: "store_edit",
        run: store_edit,
        seeds: || {
            let more = Edit {
                next_file: Some(100),
                last_seq: Some(1 << 20),
                add_families: vec![(2, "third".into(), "basalt.bytewise".into())],
                next_family: Some(3),
                wall_ms: Some(1_800_000_000_000),
                ..Edit::default()
            };
            let family = Edit {
                drop_families: vec![1],
                ..Edit::default()
            };
            let operator = Edit {
                merge_operators: vec![(0, "basalt.append:7c".into())],
                ..Edit::default()
            };
            let golden = golden().edits.iter().cloned();
            golden
                .chain([more.encode(), family.encode(), operator.encode()])
                .collect()
        },
        words: &[],
    },
    Target {
        name: "store_batch",
        run: store_batch,
        seeds: || {
            let head = |n: u32| [&(1u64 << 20).to_le_bytes()[..], &n.to_le_bytes()].concat();
            let mut known = WriteBatch::new();
            for id in [0, 1, 1] {
                known
                    .put(&family(id), b"key", &[id as u8; 20])
                    .expect("fits");
            }
            let (known, strange) = (payload_of(&known), payload_of(&sample_batch()));
            vec![[head(3), known].concat(), [head(6), strange].concat()]
        },
        words: &[],
    },
];

/// Returns an environment over a simulated disk without a cache, because mutants of one file share
/// its id.
fn env(fs: Arc<SimFs>) -> Env {
    basalt_env::EnvBuilder::for_tests(fs, 7)
        .cache_bytes(0)
        .build()
}

fn family(id: u32) -> basalt_kv::family::Family {
    basalt_kv::family::Family::detached(id)
}

fn sample_batch() -> WriteBatch {
    let mut b = WriteBatch::new();
    b.put(&family(0), b"apple", b"red").expect("fits");
    b.put_ttl(&family(300), b"pear", b"green", 1_800_000_000_000)
        .expect("fits");
    b.delete(&family(0), b"plum").expect("fits");
    b.put(&family(1), &[b'k'; 200], &[7; 300]).expect("fits");
    b.put(&family(0), b"", b"").expect("fits");
    b.push(&family(0), Kind::Merge, b"apple", &[], b"operand")
        .expect("fits");
    let large = basalt_kv::family::Family::detached(1).separating(8, Compression::None);
    b.put(&large, b"melon", b"a large value").expect("fits");
    let with_compression = basalt_kv::family::Family::detached(1).separating(8, Compression::Zstd);
    b.put(&with_compression, b"peach", &[b'x'; 40])
        .expect("fits");
    b
}

fn payload_of(batch: &WriteBatch) -> Vec<u8> {
    batch.payload().to_vec()
}

/// Decodes any bytes as operations. The parts lie inside the input and within limits, no operation
/// follows an error, and encoding the operations again gives the same operations.
fn batch_ops(bytes: &[u8]) -> Verdict {
    let mut read = Vec::new();
    let mut ops = Ops::new(bytes);
    for op in ops.by_ref() {
        let Ok(op) = op else {
            assert!(ops.next().is_none(), "an operation after an error");
            return Verdict::Refused;
        };
        assert!(op.kind.is_supported() && op.key.len() <= MAX_KEY_LEN);
        assert!(op.value.len() <= MAX_VALUE_LEN + 8);
        assert_eq!(bytes[op.value_at..][..op.value.len()], *op.value);
        assert!(op.kind != Kind::PutTtl || op.value.len() >= 8);
        assert!(op.kind != Kind::Delete || op.value.is_empty());
        read.push(op);
    }
    // Compressed values are compared decompressed: another encoder may compress them to other
    // bytes.
    let mut values = Vec::new();
    for op in &read {
        let raw = compressed::unpack(op.kind, op.codec, op.value, 0);
        let Ok(raw) = raw else {
            return Verdict::Refused;
        };
        assert!(raw.len() <= MAX_VALUE_LEN + 8);
        values.push(raw);
    }
    let mut batch = WriteBatch::new();
    for (op, value) in read.iter().zip(&values) {
        let family = match op.record_at {
            Some(_) => basalt_kv::family::Family::detached(op.family).separating(0, op.codec),
            None => family(op.family),
        };
        batch
            .push(&family, op.kind, op.key, &[], value)
            .expect("within limits");
    }
    if read.is_empty() {
        return Verdict::Refused;
    }
    let again = payload_of(&batch);
    let again: Vec<_> = Ops::new(&again).map(|op| op.expect("written")).collect();
    assert_eq!(again.len(), read.len());
    for ((a, b), value) in again.iter().zip(&read).zip(&values) {
        assert_eq!(
            (a.family, a.kind, a.key, a.record_at.is_some()),
            (b.family, b.kind, b.key, b.record_at.is_some())
        );
        let raw = compressed::unpack(a.kind, a.codec, a.value, 0);
        assert_eq!(raw.as_ref(), Ok(value));
    }
    Verdict::Accepted
}

/// Decodes any bytes as an edit. Encoding the edit again gives the same edit.
fn manifest_edit(bytes: &[u8]) -> Verdict {
    match Edit::decode(bytes) {
        Ok(edit) => {
            assert_eq!(Edit::decode(&edit.encode()).expect("written"), edit);
            Verdict::Accepted
        }
        Err(_) => Verdict::Refused,
    }
}

/// Applies any sequence of edits, each after its length (u16). A state that they add up to is the
/// same after it was written as one edit.
fn manifest_state(input: &[u8]) -> Verdict {
    let mut catalog = Catalog::default();
    let mut rest = input;
    while let Some((len, more)) = rest.split_first_chunk::<2>() {
        let (payload, more) = more.split_at(usize::from(u16::from_le_bytes(*len)).min(more.len()));
        rest = more;
        let applied = Edit::decode(payload).and_then(|e| catalog.apply(&e));
        if applied.is_err() {
            return Verdict::Refused;
        }
    }
    let mut again = Catalog::default();
    again
        .apply(&Edit::decode(&catalog.to_edit().encode()).expect("written"))
        .expect("a state that was reached");
    assert_eq!(again, catalog);
    Verdict::Accepted
}

/// Decodes any bytes as `CURRENT`, as they are and under a checksum that fits. Encoding the result
/// gives the same bytes.
fn current(bytes: &[u8]) -> Verdict {
    let path = Path::new("CURRENT");
    let _ = Current::decode(bytes, path);
    let mut b = bytes.to_vec();
    b.resize(CURRENT_LEN.max(b.len()), 0);
    let crc = crc32c::crc32c(&b[..60]);
    b[60..64].copy_from_slice(&crc.to_le_bytes());
    match Current::decode(&b, path) {
        Ok(current) => {
            assert_eq!(current.encode()[..56], b[..56]);
            Verdict::Accepted
        }
        Err(_) => Verdict::Refused,
    }
}

const DIR: &str = "store";

fn options() -> Options {
    Options {
        write_buffer_bytes: 64 << 10,
        default_family: FamilyOptions {
            block_bytes: 256,
            table_bytes: 2048,
            base_level_bytes: 4096,
            l0_compaction_trigger: 3,
            compression: Compression::Lz4,
            merge_operator: Some(Arc::new(basalt_kv::merge::Append::new("|"))),
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

/// A store as it lies on the disk after its process died: tables, a manifest of several edits, and
/// a live log.
struct Golden {
    files: Vec<(String, Vec<u8>)>,
    edits: Vec<Vec<u8>>,
    current: Current,
}

impl Golden {
    fn disk(&self) -> Arc<SimFs> {
        let fs = SimFs::new(SimOptions::default());
        fs.create_dir(Path::new(DIR)).expect("a directory");
        for (name, bytes) in &self.files {
            fs.write_file(&path(name), bytes).expect("a file");
        }
        fs
    }

    fn file(&self, suffix: &str) -> &(String, Vec<u8>) {
        let wanted = |f: &&(String, Vec<u8>)| f.0.contains(suffix);
        self.files.iter().find(wanted).expect("a store has one")
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn golden() -> &'static Golden {
    static GOLDEN: OnceLock<Golden> = OnceLock::new();
    GOLDEN.get_or_init(|| {
        let fs = SimFs::new(SimOptions::default());
        let env = env(fs.clone());
        let db = Db::open(&env, DIR, options()).expect("open");
        let other = db
            .create_family("other", FamilyOptions::default())
            .expect("family");
        for round in 0..4u64 {
            for i in 0..30u64 {
                let mut b = WriteBatch::new();
                let key = format!("key{:03}", i * 7 % 40 + round);
                let f = if i % 4 == 0 {
                    other.clone()
                } else {
                    db.default_family()
                };
                match i % 5 {
                    0 => b.delete(&f, key.as_bytes()),
                    1 => b.put_ttl(&f, key.as_bytes(), b"ends", 1_900_000_000_000),
                    3 if i % 4 != 0 => b.merge(&f, key.as_bytes(), b"operand"),
                    _ => b.put(&f, key.as_bytes(), &[i as u8; 60]),
                }
                .expect("fits");
                db.write(b, &WriteOptions::SYNC).expect("write");
            }
            if round < 3 {
                db.flush().expect("flush");
            }
        }
        db.wait_idle().expect("becomes idle");
        let disk = fs.kill();
        let mut files: Vec<(String, Vec<u8>)> = disk
            .list(Path::new(DIR))
            .expect("list")
            .into_iter()
            .filter(|e| !e.is_dir && e.name != "LOCK")
            .map(|e| {
                let bytes = disk.read_all(&path(&e.name)).expect("read");
                // A log is as long as its prewritten space. A few zeros behind the records are
                // enough.
                let used = bytes.len() - bytes.iter().rev().take_while(|b| **b == 0).count();
                let keep = (used + 512).min(bytes.len());
                (e.name, bytes[..keep].to_vec())
            })
            .collect();
        files.sort();
        db.abandon();
        let bytes = &files.iter().find(|f| f.0 == "CURRENT").expect("CURRENT").1;
        let current = Current::decode(bytes, Path::new("CURRENT")).expect("sound");
        let manifest = manifest_path(Path::new(""), current.number);
        let name = manifest.to_str().expect("a name");
        let image = &files.iter().find(|f| f.0 == name).expect("manifest").1;
        let mut reader = RecordReader::open(
            file_of(image),
            Path::new(name),
            FileKind::Manifest,
            Some(current.file_id),
        )
        .expect("sound")
        .expect("there");
        let mut edits = Vec::new();
        while let Some(r) = reader.next(0).expect("sound") {
            edits.push(r.payload.to_vec());
        }
        Golden {
            files,
            edits,
            current,
        }
    })
}

/// Checks, opens, reads, writes, closes and repairs a store that lies on `fs`. Nothing may panic. A
/// store that `check` finds sound opens and reads without an error. A repaired store is sound.
fn exercise(fs: &Arc<SimFs>) -> Verdict {
    let (mut sound, untouched) = (false, fs.kill());
    if let Ok(report) = Db::verify_store(&env(untouched.clone()), DIR, &options(), &mut |_, _| ()) {
        sound = report.damage.is_empty();
    }
    let environment = env(fs.kill());
    match Db::open(&environment, DIR, options()) {
        Ok(db) => {
            let read = read_all(&db);
            assert!(!sound || read.is_ok(), "checked, and cannot be read");
            let f = db.default_family();
            let _ = db.put(&f, b"key005", b"new", &WriteOptions::SYNC);
            let _ = db.flush();
            let _ = db.wait_idle();
            let _ = read_all(&db);
            let _ = db.close();
        }
        // A check needs no operator. An open needs the operator that the manifest names.
        Err(e) if wants_operator(&e) => return Verdict::Refused,
        Err(e) => assert!(!sound, "checked, and does not open: {e}"),
    }
    let environment = env(untouched.clone());
    if Db::repair(&environment, DIR, &options(), &mut |_, _| ()).is_ok() {
        let report = Db::verify_store(&environment, DIR, &options(), &mut |_, _| ())
            .expect("a repaired store can be walked");
        assert!(
            report.damage.is_empty(),
            "repaired, and not sound: {:?}",
            report.damage
        );
        match Db::open(&environment, DIR, options()) {
            Ok(db) => {
                read_all(&db).expect("a repaired store is read");
                db.abandon();
            }
            Err(e) => assert!(wants_operator(&e), "a repaired store opens: {e}"),
        }
    }
    Verdict::of(sound)
}

/// Returns true if the manifest names an operator that the options do not give.
fn wants_operator(e: &Error) -> bool {
    e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("merge operator")
}

fn read_all(db: &Db) -> Result<u64> {
    let mut n = 0;
    for name in db.families() {
        let Some(family) = db.family(&name) else {
            continue;
        };
        let options = ReadOptions::default();
        let mut it = db.iter(&family, &options)?;
        it.seek_to_first()?;
        while it.valid() {
            let key = it.key().to_vec();
            let _ = db.get(&family, &key, &options)?;
            n += 1;
            it.next()?;
        }
        it.seek_to_last()?;
        while it.valid() {
            it.prev()?;
        }
    }
    Ok(n)
}

/// Replaces one file of a sound store with any bytes. The first byte of the input chooses the file.
fn store_image(input: &[u8]) -> Verdict {
    let Some((which, bytes)) = input.split_first() else {
        return Verdict::Refused;
    };
    let g = golden();
    let fs = g.disk();
    let (name, _) = &g.files[usize::from(*which) % g.files.len()];
    fs.write_file(&path(name), bytes).expect("a file");
    exercise(&fs)
}

/// Appends any bytes as one more edit to the manifest of a sound store, under checksums that fit.
fn store_edit(payload: &[u8]) -> Verdict {
    let g = golden();
    let fs = g.disk();
    let name = manifest_path(Path::new(DIR), g.current.number);
    let payloads: Vec<(u64, u32, &[u8])> = g
        .edits
        .iter()
        .map(|e| (0, 1, &e[..]))
        .chain([(0, 1, payload)])
        .collect();
    let (_, image) = g.file(name.file_name().expect("named").to_str().expect("UTF-8"));
    rewrite(&fs, &name, image, FileKind::Manifest, &payloads);
    exercise(&fs)
}

/// Appends one more batch to the log of a sound store: any sequence number (u64), count (u32) and
/// bytes, under checksums that fit.
fn store_batch(input: &[u8]) -> Verdict {
    let Some((seq, rest)) = input.split_first_chunk::<8>() else {
        return Verdict::Refused;
    };
    let Some((count, payload)) = rest.split_first_chunk::<4>() else {
        return Verdict::Refused;
    };
    let (seq, count) = (u64::from_le_bytes(*seq), u32::from_le_bytes(*count));
    let g = golden();
    let fs = g.disk();
    // The live log has the highest number.
    let logs = g.files.iter().filter(|f| f.0.ends_with(".log"));
    let (name, image) = logs.max().expect("a live log");
    rewrite(
        &fs,
        &path(name),
        image,
        FileKind::Log,
        &[(seq, count, payload)],
    );
    exercise(&fs)
}

/// Rewrites a file of records under its old header.
fn rewrite(
    fs: &Arc<SimFs>,
    name: &Path,
    image: &[u8],
    kind: FileKind,
    payloads: &[(u64, u32, &[u8])],
) {
    let reader = RecordReader::open(file_of(image), name, kind, None);
    let header = reader.expect("sound").expect("there").header().clone();
    fs.remove(name).expect("there");
    let file = fs.create(name).expect("create");
    let mut w = RecordWriter::create(file, name, &header).expect("header");
    for (first_seq, count, payload) in payloads {
        let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + payload.len());
        buf.resize(RECORD_HEADER, 0);
        buf.extend_from_slice(payload);
        let separated = match kind {
            FileKind::Log => basalt_records::separated(payload).unwrap_or_default(),
            FileKind::Manifest => Vec::new(),
        };
        let mut record = [Outgoing {
            buf: &mut buf,
            kind: match kind {
                FileKind::Log => RecordKind::Batch,
                FileKind::Manifest => RecordKind::Edit,
            },
            first_seq: *first_seq,
            count: *count,
            payload_crc: basalt_records::payload_crc(payload, &separated),
            separated: &separated,
            offset: 0,
        }];
        w.append(&mut record, true).expect("append");
    }
    fs.sync_metadata(Path::new(DIR)).expect("names");
}

#[cfg(test)]
mod tests;
