//! Blob files and logs with an index: every value is found, and each damaged byte is detected or
//! harmless.

mod compressed_values;

use super::*;
use basalt_env::{Env, EnvBuilder, IoPriority, Random};
use basalt_fs::{Bytes, ErrorKind, Intent, Result};
use basalt_kv::key::Kind;
use basalt_sim::{SimFs, SimOptions};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

const BLOBS: &str = "000007.blob";
const LOG: &str = "000008.log";
const INDEX: &str = "000008.index";
const LOG_ID: u128 = 0x1234_5678;

type Record = (u32, Vec<u8>, SeqNo, Kind, Vec<u8>);

fn env() -> Env {
    EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 5).build()
}

fn options(file_id: u128) -> BlobOptions {
    BlobOptions {
        file_id,
        io: IoPriority::High,
        warm_cache: false,
        warm_records: false,
        compressed: false,
    }
}

/// Makes records of several families, some keys in several versions.
fn records(count: u64, seed: u64) -> Vec<Record> {
    let random = Random::from_seed(seed);
    let mut all: Vec<Record> = (0..count)
        .map(|seq| {
            let key = format!("key/{:05}", random.below(count));
            let expires = random.one_in(5);
            let len = 8 + random.below(if random.one_in(40) { 100_000 } else { 300 });
            let value: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            let kind = if expires { Kind::PutTtl } else { Kind::Put };
            (
                random.below(3) as u32,
                key.into_bytes(),
                seq + 1,
                kind,
                value,
            )
        })
        .collect();
    all.sort();
    all
}

fn name(r: &Record) -> Name<'_> {
    Name {
        family: r.0,
        key: &r.1,
        seq: r.2,
    }
}

fn write_blobs(env: &Env, all: &[Record]) -> BlobMeta {
    let path = Path::new(BLOBS);
    let file = env.fs().create(path).unwrap();
    let mut builder = BlobBuilder::new(env, file, path, options(77));
    for r in all {
        builder
            .add(&name(r), &Form::plain(r.3, &r.4), &r.4)
            .unwrap();
    }
    builder.finish().unwrap()
}

fn open_blobs(env: &Env, meta: &BlobMeta) -> Result<BlobReader> {
    let file = env.fs().open(Path::new(BLOBS))?;
    BlobReader::open(env, Arc::new(file), Path::new(BLOBS), meta)
}

/// Writes a log in which records lie among other bytes, and its index.
fn write_log(env: &Env, all: &[Record]) -> BlobMeta {
    write_log_as(env, all, |i| i)
}

/// Does what [`write_log`] does, with an index that has the name of record `named(i)` for the i-th.
fn write_log_as(env: &Env, all: &[Record], named: impl Fn(usize) -> usize) -> BlobMeta {
    let random = Random::from_seed(4);
    let mut log = vec![0xee; 512];
    let mut builder = LogIndexBuilder::new(
        env,
        9,
        env.fs().create(Path::new(INDEX)).unwrap(),
        Path::new(INDEX),
        options(78),
        LOG_ID,
    );
    for (i, r) in all.iter().enumerate() {
        log.extend((0..random.below(200)).map(|_| 0xee));
        let at = log.len() as u64;
        let form = Form::plain(r.3, &r.4);
        record::encode_head(&mut log, LOG_ID, at, &name(r), &form);
        log.extend_from_slice(&r.4);
        builder.add(&name(&all[named(i)]), at..log.len() as u64);
    }
    let file = env.fs().create(Path::new(LOG)).unwrap();
    file.append(&[IoSlice::new(&log)], Intent::Lazy).unwrap();
    file.sync_all().unwrap();
    builder.finish(log.len() as u64).unwrap()
}

fn open_log(env: &Env, meta: &BlobMeta) -> Result<BlobReader> {
    let file = |path: &str| env.fs().open(Path::new(path));
    BlobReader::open_log(
        env,
        (Box::new(file(LOG)?), Path::new(LOG)),
        (Box::new(file(INDEX)?), Path::new(INDEX)),
        meta,
    )
}

fn check_all(reader: &BlobReader, all: &[Record]) {
    assert_eq!(reader.records(), all.len() as u64);
    for (i, r) in all.iter().enumerate() {
        assert_eq!(reader.get(&name(r), i % 2 == 0).unwrap(), r.4, "record {i}");
        let (ordinal, place) = reader.find(&name(r), true).unwrap();
        assert_eq!(ordinal as usize, i);
        assert_eq!(place, reader.place(ordinal, true).unwrap());
    }
}

#[test]
fn every_version_of_every_key_is_found_in_blob_files_and_logs() {
    for count in [1, 2, 1024, 3000] {
        let env = env();
        let all = records(count, count);
        let (blobs, log) = (write_blobs(&env, &all), write_log(&env, &all));
        check_all(&open_blobs(&env, &blobs).unwrap(), &all);
        check_all(&open_log(&env, &log).unwrap(), &all);
        for meta in [&blobs, &log] {
            assert_eq!((meta.min_seq, meta.max_seq), (1, count));
            let shares = meta.families.values();
            assert_eq!(shares.map(|s| s.records).sum::<u64>(), count);
        }
        let bytes: u64 = blobs.families.values().map(|s| s.bytes).sum();
        let own = |r: &Record| (record::HEADER_LEN + r.1.len() + r.4.len()) as u64;
        assert_eq!(bytes, all.iter().map(own).sum::<u64>());
    }
}

#[test]
fn a_value_costs_one_read_when_the_index_is_in_the_cache() {
    let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 5)
        .memory_bytes(256 << 20)
        .cache_bytes(64 << 20)
        .build();
    let all = records(2000, 3);
    let reader = open_blobs(&env, &write_blobs(&env, &all)).unwrap();
    let reads = || env.fs().stats().reads;
    for r in &all {
        reader.find(&name(r), true).unwrap();
    }
    let reads_of = |fill_cache: bool| {
        let before = reads();
        for r in &all {
            assert_eq!(reader.get(&name(r), fill_cache).unwrap(), r.4);
        }
        reads() - before
    };
    assert_eq!(reads_of(false), all.len() as u64);
    assert_eq!(reads_of(false), all.len() as u64, "nothing was kept");
    assert_eq!(reads_of(true), all.len() as u64);
    assert_eq!(reads_of(true), 0, "all of it is in the cache");
}

#[test]
fn a_missing_record_is_an_error() {
    let env = env();
    let all = records(500, 9);
    let reader = open_blobs(&env, &write_blobs(&env, &all)).unwrap();
    for r in &all {
        let (mut family, mut version, mut key) = (name(r), name(r), name(r));
        family.family += 5;
        version.seq += 10_000;
        key.key = b"another";
        for wrong in [family, version, key] {
            let e = reader.get(&wrong, true).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            assert_eq!(e.path(), Some(Path::new(BLOBS)));
        }
    }
}

/// Replaces a file's bytes by those that a test wants.
fn rewrite(env: &Env, path: &str, bytes: &[u8]) {
    env.fs().remove(Path::new(path)).unwrap();
    let file = env.fs().create(Path::new(path)).unwrap();
    file.append(&[IoSlice::new(bytes)], Intent::Lazy).unwrap();
    file.sync_all().unwrap();
}

fn whole(env: &Env, path: &str) -> Bytes {
    let file = env.fs().open(Path::new(path)).unwrap();
    file.read(0, file.len() as usize).unwrap()
}

/// Checks that each value is right, or an error that names a file. The file may be refused as a
/// whole.
fn right_or_refused(opened: Result<BlobReader>, all: &[Record]) -> u64 {
    let named = |e: &basalt_fs::Error| {
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.path().is_some(), "{e}");
    };
    match opened {
        Err(e) => {
            if e.kind() != ErrorKind::Unsupported {
                named(&e);
            }
            all.len() as u64
        }
        Ok(reader) => {
            let results = all.iter().map(|r| (reader.get(&name(r), false), &r.4));
            results
                .map(|(got, want)| match got {
                    Ok(value) => {
                        assert_eq!(value, want);
                        0
                    }
                    Err(e) => {
                        named(&e);
                        1
                    }
                })
                .sum()
        }
    }
}

#[test]
fn a_damaged_byte_is_found_or_changes_no_answer() {
    let env = env();
    let all: Vec<Record> = records(12, 11)
        .into_iter()
        .map(|mut r| {
            r.4.truncate(60);
            r
        })
        .collect();
    let (blobs, log) = (write_blobs(&env, &all), write_log(&env, &all));
    let mut refused = 0;
    for (path, of_log) in [(BLOBS, false), (LOG, true), (INDEX, true)] {
        let sound = whole(&env, path).to_vec();
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << (at % 8);
            rewrite(&env, path, &bytes);
            let opened = match of_log {
                true => open_log(&env, &log),
                false => open_blobs(&env, &blobs),
            };
            refused += right_or_refused(opened, &all);
        }
        for len in (0..sound.len()).step_by(37) {
            rewrite(&env, path, &sound[..len]);
            let opened = match of_log {
                true => open_log(&env, &log),
                false => open_blobs(&env, &blobs),
            };
            assert!(right_or_refused(opened, &all) > 0, "{path} cut at {len}");
        }
        rewrite(&env, path, &sound);
    }
    assert!(refused > 0);
    check_all(&open_blobs(&env, &blobs).unwrap(), &all);
    check_all(&open_log(&env, &log).unwrap(), &all);
}

/// A record of the same key at the same place in an earlier life of the space must not be taken for
/// this one.
#[test]
fn a_record_of_another_life_or_place_is_refused() {
    let value = b"value";
    let name = Name {
        family: 1,
        key: b"key",
        seq: 9,
    };
    let mut bytes = Vec::new();
    record::encode_head(&mut bytes, 1, 64, &name, &Form::plain(Kind::Put, value));
    bytes.extend_from_slice(value);
    let path = Path::new("x");
    assert!(record::check_is(path, 1, 64, &bytes, &name).is_ok());
    assert!(record::check(path, 2, 64, &bytes).is_err());
    assert!(record::check(path, 1, 72, &bytes).is_err());
}

/// `basalt check` read two pages of the index from the device for each value.
#[test]
fn verification_reads_each_page_of_the_index_a_few_times() {
    let env = env();
    let all = records(3000, 6);
    let meta = write_log(&env, &all);
    let reader = open_log(&env, &meta).unwrap();
    let before = env.fs().stats().reads;
    verify::verify_records(&reader, Path::new(LOG), &meta, &mut |_| ()).unwrap();
    let reads = env.fs().stats().reads - before;
    assert!(reads < 60, "{reads} reads for {} records", all.len());
}

#[test]
fn an_index_that_leads_to_another_record_is_found() {
    let env = env();
    let mut all = records(3000, 6);
    all.retain(|r| r.0 == 1);
    let last = all.len() - 1;
    let meta = write_log_as(&env, &all, |i| match i {
        0 => last,
        i if i == last => 0,
        i => i,
    });
    let reader = open_log(&env, &meta).unwrap();
    let e = verify::verify_records(&reader, Path::new(LOG), &meta, &mut |_| ()).unwrap_err();
    assert!(e.is_corruption(), "{e}");
    assert!(e.to_string().contains("the index leads to record"), "{e}");
}

/// Two records of one name were taken for two records of one hash, each of which the index leads
/// to. A lookup finds only one of them.
#[test]
fn a_second_record_of_one_name_is_found() {
    let env = env();
    let mut all = records(3000, 6);
    let again = all[1500].clone();
    all.insert(1501, again);
    let (blobs, log) = (write_blobs(&env, &all), write_log(&env, &all));
    for (reader, path, meta) in [
        (open_blobs(&env, &blobs).unwrap(), BLOBS, &blobs),
        (open_log(&env, &log).unwrap(), LOG, &log),
    ] {
        let verified = verify::verify_records(&reader, Path::new(path), meta, &mut |_| ());
        let e = verified.expect_err(path);
        assert!(e.is_corruption(), "{e}");
        assert!(e.to_string().contains("the index leads to record"), "{e}");
    }
}

/// A lone file says of itself what its builder said, and no byte of it can change unnoticed.
#[test]
fn a_lone_blob_file_is_inspected_and_every_flip_is_found() {
    let env = env();
    let all = records(12, 8);
    let meta = write_blobs(&env, &all);
    let path = Path::new(BLOBS);
    let explained = inspect::explain(&env, path).unwrap();
    assert_eq!(
        explained.meta,
        BlobMeta {
            digest: 0,
            ..meta.clone()
        }
    );
    let mut read = 0;
    let verified = inspect::verify(&env, path, &mut |bytes| read += bytes).unwrap();
    assert_eq!(verified.meta, meta);
    assert_eq!(read, meta.size + meta.data_end - 64);
    let l = verified.layout;
    assert_eq!(
        (l.pages_at, l.hash_pages, l.place_pages),
        (meta.data_end, 1, 1)
    );
    assert_eq!(l.pages_at + l.hash_bytes + l.place_bytes, l.directory_at);
    let file = env.fs().open(path).unwrap();
    let bytes = file.read(0, meta.size as usize).unwrap().to_vec();
    let check = |bytes: &[u8], what: &str| {
        rewrite(&env, BLOBS, bytes);
        let e = inspect::verify(&env, path, &mut |_| ()).expect_err(what);
        assert!(
            matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported),
            "{what}: {e}"
        );
        // The damage is reported or the file is read. Nothing else may happen.
        let _ = inspect::explain(&env, path);
    };
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1 << (at % 8);
        check(&wrong, &format!("byte {at}"));
    }
    for len in (0..bytes.len()).step_by(7) {
        check(&bytes[..len], &format!("cut at {len}"));
    }
    check(
        b"BSLTtbl\x01 and no blob file at all, but more than a header has of bytes, I say",
        "another file",
    );
}
