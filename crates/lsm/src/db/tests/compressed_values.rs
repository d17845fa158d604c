//! Compressed separated values through the public interface of a store: their space, every way to
//! read them, recovery, garbage collection and repair.

use super::prelude::*;
use crate::options::Compression;
use basalt_env::{Clock, EnvBuilder, ManualClock, Random};
use basalt_fs::FileSystem;
use basalt_kv::merge::Append;
use basalt_sim::{SimFs, SimOptions};
use std::collections::BTreeMap;

const NOW: u64 = 1_700_000_000_000;
const FREE: WriteOptions = WriteOptions::UNSYNCED;
const CODECS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

fn room() -> Env {
    EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1)
        .clock(Clock::manual(ManualClock::new(NOW)))
        .cache_bytes(8 << 20)
        .build()
}

fn with_compression(codec: Compression) -> FamilyOptions {
    FamilyOptions {
        min_blob_size: Some(2000),
        blob_compression: codec,
        merge_operator: Some(Arc::new(Append::new("|"))),
        ..FamilyOptions::default()
    }
}

fn options(codec: Compression) -> Options {
    Options {
        default_family: with_compression(codec),
        ..Options::default()
    }
}

/// A value that compresses to about a quarter.
fn text(key: u64, version: u64, len: usize) -> Vec<u8> {
    let r = Random::from_seed(key * 1000 + version);
    let mut v = format!("{key}/{version}/").into_bytes();
    while v.len() < len {
        v.extend_from_slice(&r.next_u64().to_le_bytes()[..4]);
        v.extend_from_slice(b"and so on ...");
    }
    v.truncate(len);
    v
}

fn noise(key: u64, len: usize) -> Vec<u8> {
    let r = Random::from_seed(key);
    (0..len).map(|_| r.next_u64() as u8).collect()
}

type All = BTreeMap<Vec<u8>, Vec<u8>>;

fn put(db: &Db, all: &mut All, key: u64, value: Vec<u8>) {
    let f = db.default_family();
    db.put(&f, &key.to_be_bytes(), &value, &FREE).unwrap();
    all.insert(key.to_be_bytes().to_vec(), value);
}

/// Reads every key in every way.
fn expect(db: &Db, options: &ReadOptions, all: &All) {
    let f = &db.default_family();
    let keys: Vec<(&Family, &[u8])> = all.keys().map(|k| (f, &k[..])).collect();
    for ((key, value), many) in all.iter().zip(db.multi_get(&keys, options)) {
        assert_eq!(many.unwrap().as_deref(), Some(&value[..]), "{key:?}");
        let one = db.get(f, key, options).unwrap();
        assert_eq!(one.as_deref(), Some(&value[..]), "{key:?}");
    }
    let mut shown = All::new();
    let mut iter = db.iter(f, options).unwrap();
    iter.seek_to_first().unwrap();
    while iter.valid() {
        shown.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next().unwrap();
    }
    assert!(&shown == all, "by a cursor");
}

fn check(env: &Env, options: &Options) {
    let report = Db::verify_store(env, "db", options, &mut |_, _| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(report.unused_files.is_empty(), "{:?}", report.unused_files);
}

/// The log has the compressed values, stays as the blob file, and readers return the original
/// values.
#[test]
fn a_value_is_compressed_once_and_written_once() {
    for codec in CODECS {
        let (env, options) = (room(), options(codec));
        let db = Db::open(&env, "db", options.clone()).unwrap();
        let mut all = All::new();
        let before = env.fs().stats().bytes_written;
        for n in 0..100 {
            put(&db, &mut all, n, text(n, 0, 16_000));
        }
        expect(&db, &ReadOptions::default(), &all);
        db.sync().unwrap();
        db.flush().unwrap();
        let written = env.fs().stats().bytes_written - before;
        assert!(written < 800_000, "{codec:?}: {written} bytes written");
        let files = db.blob_files();
        assert_eq!(files.len(), 1);
        assert!(files[0].name.ends_with(".log"), "{}", files[0].name);
        assert!(files[0].live_bytes() < 800_000);
        let stats = db.stats();
        assert_eq!(stats.blob_compression.before, 1_600_000);
        assert!(stats.blob_compression.ratio().unwrap() > 2.0, "{stats:?}");
        assert!(stats.user_bytes_written > 1_600_000);
        expect(&db, &ReadOptions::default(), &all);
        expect(&db, &ReadOptions::default(), &all);
        db.close().unwrap();
        check(&env, &options);
        // A store without the option reads them as well.
        let plain = Options {
            default_family: with_compression(Compression::None),
            ..Options::default()
        };
        let db = Db::open(&env, "db", plain).unwrap();
        expect(&db, &ReadOptions::default(), &all);
        db.close().unwrap();
    }
}

#[test]
fn an_incompressible_value_is_stored_uncompressed() {
    let mut written = Vec::new();
    for codec in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let (env, options) = (room(), options(codec));
        let db = Db::open(&env, "db", options.clone()).unwrap();
        let mut all = All::new();
        for n in 0..20 {
            put(&db, &mut all, n, noise(n, 5000));
        }
        // Small values are not separated, even if they would compress well. Large values are
        // separated by their original length.
        put(&db, &mut all, 100, vec![1; 1999]);
        db.flush().unwrap();
        assert_eq!(db.stats().blobs.live_records, 20);
        assert_eq!(db.stats().blob_compression.before, 0);
        written.push(db.stats().blobs.live_bytes);
        put(&db, &mut all, 101, vec![1; 2000]);
        db.flush().unwrap();
        assert_eq!(db.stats().blobs.live_records, 21);
        expect(&db, &ReadOptions::default(), &all);
        db.close().unwrap();
        check(&env, &options);
    }
    assert_eq!(written[0], written[1]);
    assert_eq!(written[0], written[2]);
}

#[test]
fn recovery_reads_and_recompresses_compressed_values() {
    for codec in CODECS {
        let disk = SimFs::new(SimOptions::default());
        let env = Env::for_tests(disk.clone(), 1);
        let db = Db::open(&env, "db", options(codec)).unwrap();
        let mut all = All::new();
        for n in 0..50 {
            put(&db, &mut all, n, text(n, 0, 6000));
        }
        let f = db.default_family();
        let mut batch = WriteBatch::new();
        for n in 50..60u64 {
            let (key, value) = (n.to_be_bytes(), text(n, 1, 4000));
            batch
                .put_parts(&f, &key, b"head", &value, Some(NOW * 2))
                .unwrap();
            all.insert(key.to_vec(), [b"head", &value[..]].concat());
        }
        batch.put(&f, b"~small", b"1").unwrap();
        all.insert(b"~small".to_vec(), b"1".to_vec());
        assert!(batch.raw_bytes() > 40_000 && batch.bytes() < 25_000);
        db.write(batch, &WriteOptions::SYNC).unwrap();
        expect(&db, &ReadOptions::default(), &all);
        let left = disk.snapshot();
        drop(db);
        let fs = left.kill();
        let env = Env::for_tests(fs, 2);
        check(&env, &options(codec));
        let reader = Db::open_read_only(&env, "db", options(codec)).unwrap();
        expect(&reader, &ReadOptions::default(), &all);
        reader.close().unwrap();
        let db = Db::open(&env, "db", options(codec)).unwrap();
        expect(&db, &ReadOptions::default(), &all);
        let files = db.blob_files();
        assert!(files.iter().all(|f| f.name.ends_with(".blob")));
        assert!(db.stats().blobs.live_bytes < 200_000);
        let ended = db.get_with_expiry(
            &db.default_family(),
            &55u64.to_be_bytes(),
            &ReadOptions::default(),
        );
        assert_eq!(ended.unwrap().unwrap().expire_at_ms, Some(NOW * 2));
        db.close().unwrap();
        check(&env, &options(codec));
    }
}

/// The newest versions in a memtable may differ from the values in its log. No reference then leads
/// to the record of another value.
#[test]
fn a_blob_reference_names_the_exact_version() {
    for codec in CODECS {
        let (env, options) = (room(), options(codec));
        let db = Db::open(&env, "db", options.clone()).unwrap();
        let f = db.default_family();
        let mut all = All::new();
        let mut held = Vec::new();
        for round in 0..6u64 {
            for n in 0..30u64 {
                let key = n.to_be_bytes();
                match (n + round) % 5 {
                    // An operand lies above a value of the same memtable that is as long as others.
                    0 => {
                        db.merge(&f, &key, &text(n, round, 3000), &FREE).unwrap();
                        let before = all.get(&key[..]).cloned();
                        let operand = text(n, round, 3000);
                        let now =
                            before.map_or(operand.clone(), |b| [&b[..], b"|", &operand].concat());
                        all.insert(key.to_vec(), now);
                    }
                    1 => {
                        let mut batch = WriteBatch::new();
                        batch
                            .put_ttl(&f, &key, &text(n, round, 3000), NOW * 2)
                            .unwrap();
                        batch
                            .put_ttl(&f, &key, &text(n, round + 100, 3000), NOW * 2)
                            .unwrap();
                        db.write(batch, &FREE).unwrap();
                        all.insert(key.to_vec(), text(n, round + 100, 3000));
                    }
                    2 if all.remove(&key[..]).is_some() => {
                        db.delete(&f, &key, &FREE).unwrap();
                    }
                    _ => put(&db, &mut all, n, text(n, round, 3000)),
                }
                if n == 15 {
                    held.push((db.snapshot(), all.clone()));
                }
            }
            if round % 2 == 1 {
                db.flush().unwrap();
            }
            for (snapshot, all) in &held {
                let as_of = ReadOptions {
                    snapshot: Some(snapshot.clone()),
                    ..ReadOptions::default()
                };
                expect(&db, &as_of, all);
            }
            expect(&db, &ReadOptions::default(), &all);
        }
        db.flush().unwrap();
        db.compact_range(&f, None, None).unwrap();
        db.wait_idle().unwrap();
        for (snapshot, all) in &held {
            let as_of = ReadOptions {
                snapshot: Some(snapshot.clone()),
                ..ReadOptions::default()
            };
            expect(&db, &as_of, all);
        }
        expect(&db, &ReadOptions::default(), &all);
        drop(held);
        db.close().unwrap();
        check(&env, &options);
    }
}

/// A garbage collection moves values in their stored form, and cached values stay in the cache.
#[test]
fn a_garbage_collection_moves_values_in_stored_form() {
    for codec in CODECS {
        let env = room();
        let options = Options {
            max_space_amp: 1.05,
            ..options(codec)
        };
        let db = Db::open(&env, "db", options.clone()).unwrap();
        let f = db.default_family();
        let mut all = All::new();
        for n in 0..60 {
            put(&db, &mut all, n, text(n, 0, 5000));
        }
        db.flush().unwrap();
        let snapshot = db.snapshot();
        let old = all.clone();
        let as_of = ReadOptions {
            snapshot: Some(snapshot.clone()),
            ..ReadOptions::default()
        };
        for round in 1..6 {
            for n in (0..60).filter(|n| (n + round) % 3 > 0) {
                put(&db, &mut all, n, text(n, round, 5000));
            }
            db.flush().unwrap();
            db.compact_range(&f, None, None).unwrap();
            expect(&db, &as_of, &old);
            let compressed = db.stats().blob_compression;
            db.wait_idle().unwrap();
            assert_eq!(
                db.stats().blob_compression,
                compressed,
                "nothing is compressed again"
            );
            expect(&db, &as_of, &old);
            // Values that were read before the last garbage collection are in the cache, wherever
            // their record is now.
            let before = env.fs().stats().reads;
            expect(&db, &as_of, &old);
            assert_eq!(env.fs().stats().reads, before, "{codec:?}, round {round}");
            expect(&db, &ReadOptions::default(), &all);
        }
        assert!(db.stats().blobs.collections > 0);
        drop((snapshot, as_of));
        db.wait_idle().unwrap();
        expect(&db, &ReadOptions::default(), &all);
        db.close().unwrap();
        check(&env, &options);
    }
}

/// Returns the number of logs with these incompatible features.
fn logs_with(env: &Env, features: u8) -> usize {
    let dir = std::path::Path::new("db");
    let names = env.fs().list(dir).unwrap().into_iter().map(|e| e.name);
    let logs = names.filter(|n| n.ends_with(".log"));
    let of = |n: &String| env.fs().open(&dir.join(n)).unwrap().read(24, 1).unwrap()[0];
    logs.filter(|n| of(n) == features).count()
}

/// The header of a log says whether its values may be compressed. Neither the present log nor the
/// prepared next one may take the first compressed value without that feature.
#[test]
fn compressed_values_go_only_to_logs_with_the_feature() {
    for spare in [false, true] {
        let env = room();
        let plain = Options {
            write_buffer_bytes: 128 << 10,
            ..options(Compression::None)
        };
        let db = Db::open(&env, "db", plain).unwrap();
        let mut all = All::new();
        for n in 0..if spare { 80 } else { 1 } {
            put(&db, &mut all, n, noise(n, 1000));
        }
        let engine = db.engine();
        (env.jobs()).wait_until(None, &mut || !engine.writes.logs().is_preparing());
        let logs = 1 + usize::from(spare);
        assert_eq!((logs_with(&env, 0), logs_with(&env, 1)), (logs, 0));
        let g = db
            .create_family("g", with_compression(Compression::Zstd))
            .unwrap();
        put(&db, &mut all, 100, text(2, 0, 5000));
        assert_eq!(
            (logs_with(&env, 0), logs_with(&env, 1)),
            (logs, 0),
            "none came"
        );
        let sync = WriteOptions::SYNC;
        db.put(&g, b"key", &text(3, 0, 5000), &sync).unwrap();
        assert_eq!(logs_with(&env, 1), 1);
        // Small values still go to the old log.
        put(&db, &mut all, 101, text(4, 0, 50));
        assert_eq!(logs_with(&env, 1), 1);
        expect(&db, &ReadOptions::default(), &all);
        db.flush().unwrap();
        expect(&db, &ReadOptions::default(), &all);
        let found = db.get(&g, b"key", &ReadOptions::default()).unwrap();
        assert_eq!(found.unwrap(), text(3, 0, 5000));
        // A value that is compressed already goes into its log even if the option is off now.
        let mut late = WriteBatch::new();
        late.put(&g, b"late", &text(5, 0, 5000)).unwrap();
        late.put(&db.default_family(), b"late", b"1").unwrap();
        db.drop_family(&g).unwrap();
        assert!(db.write(late, &FREE).is_err(), "its family is gone");
        db.close().unwrap();
        check(&env, &options(Compression::None));
    }
}

#[test]
fn repair_recovers_compressed_values() {
    for codec in CODECS {
        for lose in ["MANIFEST", ".index", "nothing"] {
            let disk = SimFs::new(SimOptions::default());
            let env = Env::for_tests(disk.clone(), 1);
            let options = options(codec);
            let db = Db::open(&env, "db", options.clone()).unwrap();
            let mut all = All::new();
            for n in 0..40 {
                put(&db, &mut all, n, text(n, 0, 5000));
            }
            db.flush().unwrap();
            for n in 40..60 {
                put(&db, &mut all, n, text(n, 0, 5000));
            }
            db.sync().unwrap();
            let left = disk.snapshot();
            drop(db);
            let fs = left.kill();
            let dir = std::path::Path::new("db");
            for e in fs.list(dir).unwrap() {
                if e.name.contains(lose) {
                    fs.remove(&dir.join(e.name)).unwrap();
                }
            }
            let env = Env::for_tests(fs, 2);
            Db::repair(&env, "db", &options, &mut |_, _| ()).unwrap();
            let db = Db::open(&env, "db", options.clone()).unwrap();
            expect(&db, &ReadOptions::default(), &all);
            db.close().unwrap();
            check(&env, &options);
        }
    }
}

/// A log has checksums that fit, and a value whose length is wrong. That is damage with a place;
/// repair drops the batch. The flush of the process that wrote it does not refer to that record
/// either.
#[test]
fn a_log_value_with_a_wrong_length_is_damage() {
    for codec in CODECS {
        let disk = SimFs::new(SimOptions::default());
        let env = Env::for_tests(disk.clone(), 1);
        let options = options(codec);
        let db = Db::open(&env, "db", options.clone()).unwrap();
        let f = db.default_family();
        let mut all = All::new();
        put(&db, &mut all, 1, text(1, 0, 5000));
        let before = all.clone();
        let mut batch = WriteBatch::new();
        batch
            .put(&f, &2u64.to_be_bytes(), &text(2, 0, 5000))
            .unwrap();
        all.insert(2u64.to_be_bytes().to_vec(), text(2, 0, 5000));
        // The length is behind the header of the log record, the kind, the header of the blob
        // record, and the key.
        let record = basalt_records::RECORD_HEADER + 1;
        let value = record + basalt_blob::record::HEADER_LEN + 8;
        let buf = batch.log_record_mut().0;
        assert_eq!(buf[value..value + 4], 5000u32.to_le_bytes());
        buf[value..value + 4].copy_from_slice(&4999u32.to_le_bytes());
        let form = basalt_blob::Form::of(basalt_kv::key::Kind::Put, codec, &buf[value..]);
        basalt_blob::record::begin(&mut buf[record..], f.id(), 8, &form);
        db.write(batch, &WriteOptions::SYNC).unwrap();
        let left = disk.snapshot();
        expect(&db, &ReadOptions::default(), &all);
        db.flush().unwrap();
        expect(&db, &ReadOptions::default(), &all);
        db.close().unwrap();
        check(&env, &options);

        let disk = left.kill();
        let env = Env::for_tests(disk.clone(), 2);
        let error = Db::open(&env, "db", options.clone())
            .err()
            .expect("refused");
        assert!(error.is_corruption(), "{error}");
        let log = error.path().expect("a path").display().to_string();
        assert!(log.ends_with(".log") && error.offset().is_some(), "{error}");
        let report = Db::verify_store(&env, "db", &options, &mut |_, _| ()).unwrap();
        assert!(!report.damage.is_empty());
        let report = Db::repair(&env, "db", &options, &mut |_, _| ()).unwrap();
        assert_eq!(report.losses.len(), 1, "{report:?}");
        let db = Db::open(&env, "db", options.clone()).unwrap();
        expect(&db, &ReadOptions::default(), &before);
        db.close().unwrap();
        check(&env, &options);
    }
}

/// Values that do not fit a read's budget are left for another read, however many they are and
/// wherever they lie.
#[test]
fn a_batched_read_charges_values_at_their_own_lengths() {
    for codec in CODECS {
        let env = room();
        let db = Db::open(&env, "db", options(codec)).unwrap();
        let mut all = All::new();
        for n in 0..20 {
            put(&db, &mut all, n, text(n, 0, 5000));
        }
        db.flush().unwrap();
        let f = db.default_family();
        let keys: Vec<(&Family, &[u8])> = all.keys().map(|k| (&f, &k[..])).collect();
        for fill_cache in [false, true, true] {
            let read = ReadOptions {
                fill_cache,
                ..ReadOptions::default()
            };
            let got = db.multi_get_within(&keys, &read, 52_000);
            let there: Vec<_> = got.iter().flatten().collect();
            assert!((8..=10).contains(&there.len()), "{} values", there.len());
            for ((_, value), got) in all.iter().zip(&got) {
                if let Some(got) = got {
                    assert_eq!(got.as_ref().unwrap().as_deref(), Some(&value[..]));
                }
            }
        }
    }
}
