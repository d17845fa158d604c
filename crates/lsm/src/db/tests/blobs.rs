//! Separated values through the public interface of a store: every way to read them, garbage,
//! garbage collections, file numbers, dropped families.

use super::prelude::*;
use crate::options::{CompactionFilter, FilterContext, FilterDecision, KeyDecision};
use basalt_env::sync::atomic::{AtomicUsize, Ordering};
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_kv::merge::Append;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{CrashPolicy, FaultFs, OpKind, SimFs, SimOptions, When};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const NOW: u64 = 1_700_000_000_000;
pub(super) const FREE: WriteOptions = WriteOptions::UNSYNCED;

pub(super) fn test_env() -> (Env, Arc<ManualClock>) {
    let manual_clock = ManualClock::new(NOW);
    let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    (env, manual_clock)
}

/// Separates values from 100 bytes on.
fn separating() -> FamilyOptions {
    FamilyOptions {
        min_blob_size: Some(100),
        table_bytes: 4096,
        base_level_bytes: 16 << 10,
        ..FamilyOptions::default()
    }
}

fn options() -> Options {
    Options {
        default_family: separating(),
        ..Options::default()
    }
}

fn value(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut v = format!("{key}/{version}/").into_bytes();
    v.resize(len, (key ^ version) as u8);
    v
}

/// Reads every key in every way.
pub(super) fn expect(db: &Db, f: &Family, options: &ReadOptions, all: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let keys: Vec<(&Family, &[u8])> = all.keys().map(|k| (f, &k[..])).collect();
    let many = db.multi_get(&keys, options);
    for ((key, value), many) in all.iter().zip(many) {
        let one = db.get(f, key, options).unwrap();
        assert_eq!(one.as_deref(), Some(&value[..]), "get of {key:?}");
        assert_eq!(many.unwrap(), one, "multi_get of {key:?}");
    }
    let mut shown = BTreeMap::new();
    let mut iter = db.iter(f, options).unwrap();
    iter.seek_to_first().unwrap();
    while iter.valid() {
        assert_eq!(iter.value(), &iter.pinned_value()[..]);
        shown.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next().unwrap();
    }
    assert_eq!(&shown, all, "forward");
    let mut back = BTreeMap::new();
    iter.seek_to_last().unwrap();
    while iter.valid() {
        back.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.prev().unwrap();
    }
    assert_eq!(&back, all, "backward");
}

pub(super) fn check(env: &Env, options: &Options) {
    let report = Db::verify_store(env, "db", options, &mut |_, _| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(report.unused_files.is_empty(), "{:?}", report.unused_files);
}

#[test]
fn values_survive_collections_and_merges_that_free_space() {
    let (env, _) = test_env();
    let options = options();
    let mut db = Db::open(&env, "db", options.clone()).unwrap();
    let mut all = BTreeMap::new();
    let (mut held, mut collections) = (None, 0);
    for round in 0..30u64 {
        let f = db.default_family();
        for n in 0..60u64 {
            if n % 7 == round % 7 || round == 0 {
                let key = format!("{:03}", n * 7 % 60).into_bytes();
                let v = value(n, round, if n % 5 == 0 { 20 } else { 100 + n as usize });
                db.put(&f, &key, &v, &FREE).unwrap();
                all.insert(key, v);
            }
        }
        db.flush().unwrap();
        if round % 2 == 1 {
            db.compact_range(&f, None, None).unwrap();
        }
        db.wait_idle().unwrap();
        if round == 10 {
            held = Some((db.snapshot(), all.clone()));
        }
        if let Some((snapshot, old)) = &held {
            let as_of = ReadOptions {
                snapshot: Some(snapshot.clone()),
                ..ReadOptions::default()
            };
            expect(&db, &f, &as_of, old);
        }
        expect(&db, &f, &ReadOptions::default(), &all);
        if round == 20 {
            held = None;
            collections += db.stats().blobs.collections;
            db.close().unwrap();
            check(&env, &options);
            db = Db::open(&env, "db", options.clone()).unwrap();
        }
    }
    let f = db.default_family();
    db.compact_range(&f, None, None).unwrap();
    db.wait_idle().unwrap();
    let blobs = db.stats().blobs;
    collections += blobs.collections;
    assert!(collections > 1, "{collections} collections");
    assert_eq!(
        blobs.live_records,
        all.values().filter(|v| v.len() >= 100).count() as u64
    );
    assert!(blobs.space_amp() <= blobs.max_space_amp, "{blobs:?}");
    assert_eq!(
        db.get(&f, b"nothing", &ReadOptions::default()).unwrap(),
        None
    );
    db.close().unwrap();
    check(&env, &options);
}

#[test]
fn retired_numbers_are_dropped_when_no_table_refers_to_them() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    for round in 0..20u64 {
        for n in 0..40u64 {
            db.put(&f, &n.to_be_bytes(), &value(n, round, 300), &FREE)
                .unwrap();
        }
        db.flush().unwrap();
        db.compact_range(&f, None, None).unwrap();
        db.wait_idle().unwrap();
        let names = db.stats().blobs.names;
        assert!(names <= 6, "{names} names in round {round}");
    }
    // All tables are rewritten once more. Each entry gets the number of the file that has its
    // value, and no retired number is left.
    let all = CompactOptions {
        bottommost: Bottommost::Force,
        ..CompactOptions::default()
    };
    db.compact(&f, &all).unwrap();
    db.compact(&f, &all).unwrap();
    assert_eq!(db.stats().blobs.names, 0);
}

#[test]
fn a_keys_only_scan_reads_no_blob_file_and_returns_no_values() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    for n in 0..50u64 {
        db.put(&f, &n.to_be_bytes(), &value(n, 0, 5000), &FREE)
            .unwrap();
    }
    db.flush().unwrap();
    let keys_only = ReadOptions {
        keys_only: true,
        ..ReadOptions::default()
    };
    let before = env.fs().stats();
    let mut iter = db.iter(&f, &keys_only).unwrap();
    iter.seek_to_first().unwrap();
    for n in 0..50u64 {
        assert_eq!(iter.key(), n.to_be_bytes());
        iter.next().unwrap();
    }
    assert!(!iter.valid());
    let read = env.fs().stats().bytes_read - before.bytes_read;
    assert!(
        read < 20_000,
        "{read} bytes read for 50 keys with 5,000 bytes each"
    );
    iter.seek_to_first().unwrap();
    assert_eq!((iter.value(), iter.pinned_value().len()), (&[][..], 0));
}

#[test]
fn separated_values_expire_merge_and_are_dropped() {
    let (env, manual_clock) = test_env();
    let mut options = options();
    options.default_family.merge_operator = Some(Arc::new(Append::new("|")));
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let g = db.create_family("g", separating()).unwrap();
    let read = ReadOptions::default();
    let (long, longer) = (value(1, 1, 200), value(2, 2, 900));
    db.put(&f, b"plain", &long, &FREE).unwrap();
    let mut batch = WriteBatch::new();
    batch.put_ttl(&f, b"mortal", &long, NOW + 60_000).unwrap();
    db.write(batch, &FREE).unwrap();
    db.put(&f, b"merged", &long, &FREE).unwrap();
    db.put(&g, b"plain", &longer, &FREE).unwrap();
    for n in 0..20u64 {
        db.put(&f, &[b"range", &n.to_be_bytes()[..]].concat(), &long, &FREE)
            .unwrap();
    }
    db.flush().unwrap();
    let ended = db.get_with_expiry(&f, b"mortal", &read).unwrap().unwrap();
    assert_eq!(
        (&ended.value[..], ended.expire_at_ms),
        (&long[..], Some(NOW + 60_000))
    );
    db.merge(&f, b"merged", b"more", &FREE).unwrap();
    let merged = [&long[..], b"|more"].concat();
    let shown = |k: &[u8]| db.get(&f, k, &read).unwrap().map(|v| v.to_vec());
    assert_eq!(
        shown(b"merged").as_ref(),
        Some(&merged),
        "in the memtable over a blob"
    );
    db.flush().unwrap();
    assert_eq!(
        shown(b"merged").as_ref(),
        Some(&merged),
        "in a table over a blob"
    );
    db.compact_range(&f, None, None).unwrap();
    assert_eq!(
        shown(b"merged").as_ref(),
        Some(&merged),
        "merged by a compaction"
    );
    db.delete_range(&f, b"range", b"rangf", &FREE).unwrap();
    db.flush().unwrap();
    let before = db.stats().blobs.live_records;
    db.compact_range(&f, None, None).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(
        db.stats().blobs.live_records,
        before - 20,
        "of hidden tables, too"
    );
    manual_clock.advance(Duration::from_secs(61));
    assert_eq!(shown(b"mortal"), None);
    let all = CompactOptions {
        bottommost: Bottommost::Force,
        ..CompactOptions::default()
    };
    db.compact(&f, &all).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().blobs.live_records, 3, "plain, merged, and g's");
    let mut old = db.iter(&g, &read).unwrap();
    db.drop_family(&g).unwrap();
    assert_eq!(db.stats().blobs.live_records, 2);
    // A cursor keeps the blob files that it was made over.
    old.seek_to_first().unwrap();
    assert_eq!(old.value(), &longer[..]);
    drop(old);
    db.wait_idle().unwrap();
    db.close().unwrap();
    check(&env, &options);
}

#[test]
fn a_compaction_filter_by_key_reads_no_blob_file() {
    struct ByKey(AtomicUsize);
    impl CompactionFilter for ByKey {
        fn name(&self) -> &str {
            "by key"
        }
        fn filter_key(&self, _: &FilterContext<'_>, key: &[u8]) -> Option<KeyDecision> {
            match key.first() {
                Some(b'k') => Some(KeyDecision::Keep),
                Some(b'r') => Some(KeyDecision::Remove),
                _ => None,
            }
        }
        fn filter(&self, _: &FilterContext<'_>, key: &[u8], value: &[u8]) -> FilterDecision {
            self.0.fetch_add(1, Ordering::SeqCst);
            match key.first() {
                Some(b'r') => FilterDecision::Remove,
                Some(b'c') => FilterDecision::Change(value.iter().rev().copied().collect()),
                _ => FilterDecision::Keep,
            }
        }
    }
    let (env, _) = test_env();
    let filter = Arc::new(ByKey(AtomicUsize::new(0)));
    let mut options = options();
    options.default_family.compaction_filter = Some(filter.clone());
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    for key in [&b"keep"[..], b"remove", b"change", b"stay"] {
        db.put(&f, key, &value(3, 3, 400), &FREE).unwrap();
    }
    db.flush().unwrap();
    let all = CompactOptions {
        bottommost: Bottommost::Force,
        ..CompactOptions::default()
    };
    db.compact(&f, &all).unwrap();
    assert_eq!(filter.0.load(Ordering::SeqCst), 2, "values looked at");
    let shown = |k: &[u8]| {
        db.get(&f, k, &ReadOptions::default())
            .unwrap()
            .map(|v| v.to_vec())
    };
    let plain = value(3, 3, 400);
    assert_eq!(shown(b"keep").as_ref(), Some(&plain));
    assert_eq!(shown(b"stay").as_ref(), Some(&plain));
    assert_eq!(shown(b"remove"), None);
    assert_eq!(shown(b"change"), Some(plain.into_iter().rev().collect()));
    db.wait_idle().unwrap();
    assert_eq!(db.stats().blobs.live_records, 3);
    db.close().unwrap();
    check(&env, &options);
}

/// A flipped bit, on the disk or on the way from it, is found by a garbage collection. The file
/// stays as it is, others are collected without it, and the garbage collection is repeated by
/// itself.
#[test]
fn an_unreadable_file_is_collected_later_and_blocks_no_other() {
    let disk = SimFs::new(SimOptions::default());
    let manual_clock = ManualClock::new(NOW);
    let env = EnvBuilder::for_tests(disk.clone(), 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    let options = options();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let mut all = BTreeMap::new();
    let write = |all: &mut BTreeMap<_, _>, version: u64, keys: &mut dyn Iterator<Item = u64>| {
        for n in keys {
            let (key, v) = (format!("{n:03}").into_bytes(), value(n, version, 300));
            db.put(&f, &key, &v, &FREE).unwrap();
            all.insert(key, v);
        }
        db.flush().unwrap();
    };
    write(&mut all, 0, &mut (0..40));
    let blobs = || -> Vec<std::path::PathBuf> {
        let files = db.blob_files().into_iter();
        files
            .map(|b| std::path::Path::new("db").join(b.name))
            .collect()
    };
    let bad = blobs().pop().unwrap();
    // The last record of the first file is damaged. Its key stays live.
    let at = db.blob_files()[0].meta.data_end - 20;
    disk.flip_bit(&bad, at, 3).unwrap();
    write(&mut all, 1, &mut (0..20));
    db.compact_range(&f, None, None).unwrap();
    let error = db.wait_idle().unwrap_err();
    assert!(
        error.is_corruption() && error.path() == Some(&bad),
        "{error}"
    );
    assert!(db.stats().blobs.error.is_some());
    // The file is no longer the only one to be collected.
    write(&mut all, 2, &mut (5..25).chain(100..110));
    write(&mut all, 3, &mut (100..108));
    db.compact_range(&f, None, None).unwrap();
    let error = db.wait_idle().unwrap_err();
    assert!(
        error.is_corruption() && error.path() == Some(&bad),
        "{error}"
    );
    assert!(db.stats().blobs.collections > 0, "others were collected");
    assert!(blobs().contains(&bad));
    disk.flip_bit(&bad, at, 3).unwrap();
    manual_clock.advance(Duration::from_secs(4000));
    db.wait_idle().unwrap();
    assert!(
        !blobs().contains(&bad),
        "{bad:?} {:?} {:?}",
        blobs(),
        db.stats().blobs
    );
    assert!(db.stats().blobs.error.is_none());
    expect(&db, &f, &ReadOptions::default(), &all);
    db.close().unwrap();
    check(&env, &options);
}

fn names(env: &Env, end: &str) -> Vec<String> {
    let all = env.fs().list(std::path::Path::new("db")).unwrap();
    let names = all.into_iter().map(|e| e.name);
    names.filter(|n| n.ends_with(end)).collect()
}

fn on_disk(env: &Env, name: &str) -> u64 {
    let path = std::path::Path::new("db").join(name);
    env.fs().stat(&path).unwrap().on_disk
}

/// A large value is written once: the log record that made it durable is the one that readers read.
/// The rest of the log's space is given back.
#[test]
fn a_large_value_is_written_once_and_other_log_space_is_freed() {
    let (env, _) = test_env();
    let options = Options {
        default_family: FamilyOptions {
            min_blob_size: Some(2000),
            ..separating()
        },
        ..Options::default()
    };
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let mut all = BTreeMap::new();
    let put = |key: String, v: Vec<u8>, all: &mut BTreeMap<_, _>| {
        db.put(&f, key.as_bytes(), &v, &FREE).unwrap();
        all.insert(key.into_bytes(), v);
    };
    let before = env.fs().stats().bytes_written;
    for n in 0..100 {
        put(format!("{n:03}"), value(n, 0, 16_000), &mut all);
    }
    db.sync().unwrap();
    db.flush().unwrap();
    let written = env.fs().stats().bytes_written - before;
    assert!(written < 1_600_000 * 105 / 100, "{written} bytes written");
    assert!(names(&env, ".blob").is_empty());
    let log = db.blob_files()[0].name.clone();
    assert!(log.ends_with(".log"), "{log}");
    expect(&db, &f, &ReadOptions::default(), &all);

    // Small values are half of the bytes.
    for n in 100..200 {
        put(format!("{n:03}"), value(n, 1, 16_000), &mut all);
        for i in 0..16 {
            put(format!("{n:03}/{i}"), value(i, n, 1000), &mut all);
        }
    }
    db.flush().unwrap();
    let files = db.blob_files();
    assert_eq!(files.len(), 2);
    for file in &files {
        let bytes = on_disk(&env, &file.name);
        // The last block may be partly used.
        assert!(bytes <= file.meta.size + 4096, "{}: {bytes}", file.name);
        assert!(
            bytes * 10 <= file.live_bytes() * 13,
            "{}: {bytes}",
            file.name
        );
    }
    expect(&db, &f, &ReadOptions::default(), &all);
    db.close().unwrap();
    check(&env, &options);
}

/// If blocks with large values hold mostly small ones, the values move to a blob file and the log
/// is removed.
#[test]
fn a_log_of_mostly_small_values_is_not_kept() {
    let (env, _) = test_env();
    let options = options();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let mut all = BTreeMap::new();
    for n in 0..200u64 {
        for (key, len) in [(format!("{n:03}"), 120), (format!("{n:03}/"), 90)] {
            let v = value(n, 1, len);
            db.put(&f, key.as_bytes(), &v, &FREE).unwrap();
            all.insert(key.into_bytes(), v);
        }
    }
    db.flush().unwrap();
    let files = db.blob_files();
    assert_eq!(files.len(), 1);
    assert!(files[0].name.ends_with(".blob"), "{}", files[0].name);
    expect(&db, &f, &ReadOptions::default(), &all);
    db.close().unwrap();
    check(&env, &options);
}

/// A log whose sync failed is not used as a blob file: its values are still in memory.
#[test]
fn values_of_a_log_with_a_failed_sync_go_to_a_blob_file() {
    let disk = SimFs::new(SimOptions::default());
    let faulty = FaultFs::new(disk.clone(), 1);
    let manual_clock = ManualClock::new(NOW);
    let env = EnvBuilder::for_tests(faulty.clone(), 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    let options = options();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let mut all = BTreeMap::new();
    let put = |n: u64, o: &WriteOptions, all: &mut BTreeMap<_, _>| {
        let (key, v) = (format!("{n:03}").into_bytes(), value(n, 1, 5000));
        let done = db.put(&f, &key, &v, o);
        if done.is_ok() {
            all.insert(key, v);
        }
        done
    };
    for n in 0..10 {
        put(n, &FREE, &mut all).unwrap();
    }
    faulty.inject(Fault {
        op: Some(OpKind::SyncData),
        path: ".log".into(),
        when: When::Nth(1),
        kind: FaultKind::FailedSync,
    });
    put(10, &WriteOptions::SYNC, &mut all).unwrap_err();
    faulty.clear();
    manual_clock.advance(Duration::from_secs(10));
    put(11, &WriteOptions::SYNC, &mut all).unwrap();
    let kept = db.blob_files();
    assert!(kept.iter().all(|b| b.name.ends_with(".blob")), "{kept:?}");
    expect(&db, &f, &ReadOptions::default(), &all);
    drop(db);
    // Reads the values from the disk, not from the kernel's memory.
    let env = EnvBuilder::for_tests(disk.crash(CrashPolicy::NothingUnsynced, 1), 1).build();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    expect(&db, &db.default_family(), &ReadOptions::default(), &all);
}

/// A power cut comes between the edit that makes a log a blob file and the end of its trimming. The
/// next open gives the space back.
#[test]
fn an_open_finishes_trimming_a_log() {
    let disk = SimFs::new(SimOptions::default());
    let faulty = FaultFs::new(disk.clone(), 1);
    let env = Env::for_tests(faulty.clone(), 1);
    let options = Options {
        default_family: FamilyOptions {
            min_blob_size: Some(2000),
            ..separating()
        },
        ..Options::default()
    };
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let mut all = BTreeMap::new();
    for n in 0..100u64 {
        for (key, len) in [(format!("{n:03}"), 24_000), (format!("{n:03}/"), 1900)] {
            for i in 0..if len < 2000 { 5 } else { 1 } {
                let (key, v) = (format!("{key}{i}").into_bytes(), value(n, i, len));
                db.put(&f, &key, &v, &FREE).unwrap();
                all.insert(key, v);
            }
        }
    }
    faulty.inject(Fault {
        op: Some(OpKind::ReleaseRange),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    db.flush().unwrap();
    let file = db.blob_files().pop().unwrap();
    assert!(
        on_disk(&env, &file.name) > file.meta.size + 100_000,
        "not trimmed"
    );
    drop(db);
    let env = Env::for_tests(disk.crash(CrashPolicy::NothingUnsynced, 1), 1);
    let db = Db::open(&env, "db", options.clone()).unwrap();
    while env.jobs().step() {}
    assert!(on_disk(&env, &file.name) <= file.meta.size + 4096);
    expect(&db, &db.default_family(), &ReadOptions::default(), &all);
    db.close().unwrap();
    check(&env, &options);
}

/// The space of a log whose values are all dead goes to the next log: it is written space, where a
/// synced append costs one device write. The space of a log that a checkpoint has is left to the
/// checkpoint.
#[test]
fn a_dead_log_is_recycled_unless_a_checkpoint_has_it() {
    let (env, _) = test_env();
    let options = options();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let mut all = BTreeMap::new();
    let round = |version: u64, all: &mut BTreeMap<_, _>| {
        for n in 0..20 {
            let (key, v) = (format!("{n:03}").into_bytes(), value(n, version, 16_000));
            db.put(&f, &key, &v, &WriteOptions::SYNC).unwrap();
            all.insert(key, v);
        }
        db.flush().unwrap();
        db.compact_range(&f, None, None).unwrap();
        db.wait_idle().unwrap();
        while env.jobs().step() {}
    };
    let zeros = || env.fs().stats().bytes_prewritten;
    round(0, &mut all);
    let first = zeros();
    for version in 1..10 {
        round(version, &mut all);
        assert!(names(&env, ".log").len() <= 5, "{:?}", names(&env, ".log"));
        assert_eq!(db.blob_files().len(), 1);
    }
    // Each log takes 320 KB.
    let written_ahead = zeros() - first;
    assert!(written_ahead < 400_000, "{written_ahead} bytes of zeros");
    let old = all.clone();
    db.checkpoint("copy", &CheckpointOptions::default())
        .unwrap();
    for version in 10..15 {
        round(version, &mut all);
    }
    expect(&db, &f, &ReadOptions::default(), &all);
    db.close().unwrap();
    check(&env, &options);
    let copy = Db::open(&env, "copy", options).unwrap();
    expect(&copy, &copy.default_family(), &ReadOptions::default(), &old);
}

/// A merge operator that calls a function when it first merges.
struct Calls {
    inner: Append,
    first: basalt_env::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl basalt_kv::merge::MergeOperator for Calls {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, basalt_kv::merge::MergeRefusal> {
        let call = self.first.lock().take();
        if let Some(call) = call {
            call();
        }
        self.inner.full_merge(key, existing, operands)
    }
}

/// A family is dropped during the flush of the only log that holds its values, and the edit of the
/// flush never becomes durable. The log is then still in the manifest, and has acknowledged writes
/// of other families.
#[test]
fn a_log_stays_until_the_edit_that_drops_it_is_durable() {
    let disk = SimFs::new(SimOptions::default());
    let faulty = FaultFs::new(disk.clone(), 1);
    let env = Env::for_tests(faulty.clone(), 1);
    let operator = Arc::new(Calls {
        inner: Append::new(","),
        first: basalt_env::sync::Mutex::new(None),
    });
    let options = Options {
        default_family: FamilyOptions {
            min_blob_size: Some(5000),
            merge_operator: Some(operator.clone()),
            ..FamilyOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let large = db
        .create_family("large", options.default_family.clone())
        .unwrap();
    for n in 0..20u64 {
        let key = format!("{n:03}").into_bytes();
        db.put(&large, &key, &value(n, 1, 16_000), &FREE).unwrap();
        db.put(&f, &key, b"small", &FREE).unwrap();
        db.merge(&f, &key, b"operand", &FREE).unwrap();
    }
    db.sync().unwrap();
    let (other, faults) = (db.clone(), faulty.clone());
    *operator.first.lock() = Some(Box::new(move || {
        other.drop_family(&large).unwrap();
        faults.inject(Fault {
            op: Some(OpKind::Append),
            path: "MANIFEST".into(),
            when: When::From(1),
            kind: FaultKind::Eio,
        });
    }));
    db.flush().unwrap_err();
    assert!(operator.first.lock().is_none(), "the flush merged");
    db.abandon();
    faulty.clear();
    let env = Env::for_tests(disk.crash(CrashPolicy::NamesWithoutContent, 1), 1);
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    for n in 0..20u64 {
        let key = format!("{n:03}").into_bytes();
        let found = db.get(&f, &key, &ReadOptions::default()).unwrap();
        assert_eq!(found.as_deref(), Some(&b"small,operand"[..]));
    }
    assert_eq!(db.families(), ["default"]);
}

/// A merge that drops thousands of references reads each page of the index a few times, not twice
/// for each value.
#[test]
fn a_merge_looks_up_dropped_references_in_batches() {
    const KEYS: u64 = 5000;
    let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1)
        .cache_bytes(0)
        .build();
    let mut options = options();
    options.default_family.table_bytes = 1 << 20;
    options.default_family.base_level_bytes = 16 << 20;
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    for version in 0..2 {
        for key in 0..KEYS {
            let value = value(key, version, 150);
            db.put(&f, &key.to_be_bytes(), &value, &FREE).unwrap();
        }
        db.flush().unwrap();
    }
    let before = env.fs().stats().reads;
    db.compact_range(&f, None, None).unwrap();
    let read = env.fs().stats().reads - before;
    let left = db.blob_files().len();
    assert!(read < KEYS / 5, "{read} reads for {KEYS} values");
    assert_eq!(left, 1, "the first file left with its last value");
    db.close().unwrap();
    check(&env, &options);
}
