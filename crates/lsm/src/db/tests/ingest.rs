//! Prepared tables through the public interface of a store: their visibility, their level, and
//! their values and files.

use super::prelude::*;
use crate::compaction::OutputRange;
use crate::db::tests::blobs::{FREE, NOW, check, test_env};
use basalt_fs::FileSystem;
use basalt_kv::codec::Compression;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{CrashPolicy, FaultFs, OpKind, SimFs, SimOptions, When};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Separates values from 100 bytes on.
fn options() -> Options {
    Options {
        default_family: FamilyOptions {
            min_blob_size: Some(100),
            table_bytes: 4096,
            base_level_bytes: 16 << 10,
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

/// Large values and small ones.
fn value(n: u64, version: u64) -> Vec<u8> {
    let mut v = format!("{n}/{version}/").into_bytes();
    v.resize(if n.is_multiple_of(3) { 20 } else { 120 }, n as u8);
    v
}

fn entries(numbers: impl IntoIterator<Item = u64>, version: u64) -> Entries {
    let numbers = numbers.into_iter();
    numbers.map(|n| (key(n), value(n, version))).collect()
}

fn prepare(db: &Db, family: &Family, entries: &Entries) -> Prepared {
    let mut writer = db.prepare(family).unwrap();
    for (key, value) in entries {
        writer.add(key, value).unwrap();
    }
    let prepared = writer.finish().unwrap();
    assert_eq!(prepared.entries(), entries.len() as u64);
    prepared
}

fn put_all(db: &Db, entries: &Entries) {
    let f = db.default_family();
    for (key, value) in entries {
        db.put(&f, key, value, &FREE).unwrap();
    }
}

/// Reads in every way, and seeks to each key.
fn expect(db: &Db, f: &Family, options: &ReadOptions, all: &Entries) {
    crate::db::tests::blobs::expect(db, f, options, all);
    let mut iter = db.iter(f, options).unwrap();
    for key in all.keys() {
        iter.seek(key).unwrap();
        assert_eq!(iter.key(), key);
        iter.seek_for_prev(key).unwrap();
        assert_eq!(iter.key(), key);
    }
}

fn forward(iter: &mut Iter) -> Entries {
    let mut shown = Entries::new();
    iter.seek_to_first().unwrap();
    while iter.valid() {
        shown.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next().unwrap();
    }
    shown
}

fn as_of(snapshot: &Snapshot) -> ReadOptions {
    ReadOptions {
        snapshot: Some(snapshot.clone()),
        ..ReadOptions::default()
    }
}

fn files(env: &Env) -> Vec<String> {
    let all = env.fs().list(Path::new("db")).unwrap().into_iter();
    let mut all: Vec<String> = all.map(|e| e.name).collect();
    all.retain(|n| n.ends_with(".tbl") || n.ends_with(".blob"));
    all
}

#[test]
fn ingested_entries_are_ordered_by_time_of_ingestion() {
    let (env, _) = test_env();
    let options = options();
    let mut db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    // Some keys are in tables, some in memory, some deleted. Each overlaps the prepared tables.
    let mut all = entries(0..200, 1);
    put_all(&db, &all);
    db.compact_range(&f, None, None).unwrap();
    let newer = entries((0..200).step_by(4), 2);
    put_all(&db, &newer);
    all.extend(newer);
    db.flush().unwrap();
    let newest = entries((0..200).step_by(7), 3);
    put_all(&db, &newest);
    all.extend(newest);
    db.delete(&f, &key(10), &FREE).unwrap();
    db.delete_range(&f, &key(50), &key(60), &FREE).unwrap();
    all.remove(&key(10));
    (50..60).for_each(|n| drop(all.remove(&key(n))));

    let coming = entries((5..250).step_by(5), 4);
    let prepared = prepare(&db, &f, &coming);
    let between = entries([20, 21, 300], 5);
    put_all(&db, &between);
    all.extend(between);
    let before = (db.snapshot(), all.clone());
    let mut old_iter = db.iter(&f, &ReadOptions::default()).unwrap();
    expect(&db, &f, &ReadOptions::default(), &all);

    let seq = db.ingest(&[prepared]).unwrap();
    assert_eq!(db.stats().last_seq, seq);
    all.extend(coming);
    expect(&db, &f, &ReadOptions::default(), &all);
    assert_eq!(forward(&mut old_iter), before.1);
    drop(old_iter);
    let at = (db.snapshot(), all.clone());

    let after = entries((0..260).step_by(6), 6);
    put_all(&db, &after);
    all.extend(after);
    for _ in 0..2 {
        expect(&db, &f, &ReadOptions::default(), &all);
        expect(&db, &f, &as_of(&before.0), &before.1);
        expect(&db, &f, &as_of(&at.0), &at.1);
        db.compact_range(&f, None, None).unwrap();
        db.wait_idle().unwrap();
    }
    drop((before, at));
    db.close().unwrap();
    check(&env, &options);
    db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    expect(&db, &f, &ReadOptions::default(), &all);
    assert!(db.put(&f, b"next", b"", &FREE).unwrap() > seq);
    db.compact_range(&f, None, None).unwrap();
    all.insert(b"next".to_vec(), Vec::new());
    expect(&db, &f, &ReadOptions::default(), &all);
    db.close().unwrap();
    check(&env, &options);
}

/// A memtable deletes the range from k5 on, and k1 to k5 are ingested. The tombstone overlaps the
/// tables in their last key only. If the ingestion overlooks it, the memtable stays in front of the
/// tables with an older tombstone, and a reader takes that for the newest version of k5.
#[test]
fn an_older_range_delete_does_not_hide_an_ingested_key() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    let read = ReadOptions::default();
    put_all(&db, &entries(1..=9, 0));
    db.flush().unwrap();
    db.delete_range(&f, &key(5), &key(9), &FREE).unwrap();
    assert_eq!(db.get(&f, &key(5), &read).unwrap(), None);
    let loaded = entries(1..=5, 1);
    db.ingest(&[prepare(&db, &f, &loaded)]).unwrap();
    let found = db.get(&f, &key(5), &read).unwrap();
    assert_eq!(found.as_deref(), Some(&value(5, 1)[..]));
    assert_eq!(db.get(&f, &key(6), &read).unwrap(), None);
    let mut all = loaded;
    all.extend(entries([9], 0));
    expect(&db, &f, &read, &all);
    // A tombstone that ends where the tables begin: k1 is not in its range.
    db.delete_range(&f, &key(0), &key(1), &FREE).unwrap();
    let again = entries(1..=5, 2);
    db.ingest(&[prepare(&db, &f, &again)]).unwrap();
    all.extend(again);
    expect(&db, &f, &read, &all);
    db.compact_range(&f, None, None).unwrap();
    expect(&db, &f, &read, &all);
    db.close().unwrap();
    check(&env, &options());
}

#[test]
fn an_ingestion_is_durable_with_all_writes_before_it() {
    for synced_after in [false, true] {
        let fs = SimFs::new(SimOptions::default());
        let env = Env::for_tests(fs.clone(), 1);
        let options = options();
        let db = Db::open(&env, "db", options.clone()).unwrap();
        let f = db.default_family();
        let mut all = entries(1000..1010, 1);
        put_all(&db, &all);
        let coming = entries(0..100, 2);
        db.ingest(&[prepare(&db, &f, &coming)]).unwrap();
        all.extend(coming);
        let after = entries(2000..2003, 3);
        put_all(&db, &after);
        if synced_after {
            db.sync().unwrap();
            all.extend(after);
        }
        let image = fs.crash(CrashPolicy::NothingUnsynced, 1);
        db.abandon();
        let env = Env::for_tests(image, 2);
        let db = Db::open(&env, "db", options.clone()).unwrap();
        let f = db.default_family();
        let mut iter = db.iter(&f, &ReadOptions::default()).unwrap();
        let mut found = forward(&mut iter);
        drop(iter);
        if !synced_after {
            found.retain(|k, _| k.as_slice() < &b"02000"[..]);
        }
        assert_eq!(found, all);
        db.close().unwrap();
        check(&env, &options);
    }
}

#[test]
fn ingested_tables_go_to_the_deepest_free_level() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    let levels = || {
        let stats = db.stats();
        let levels = stats.families[0].levels.iter();
        levels.map(|l| l.tables).collect::<Vec<_>>()
    };
    let add = |numbers: std::ops::Range<u64>, version| {
        let all = entries(numbers, version);
        db.ingest(&[prepare(&db, &f, &all)]).unwrap();
    };
    add(0..50, 1);
    add(60..99, 1);
    let deepest = levels();
    assert_eq!(deepest[..6], [0; 6], "nothing is in the way");
    assert!(deepest[6] >= 2);
    add(50..60, 1);
    assert_eq!(levels()[..6], [0; 6], "it fits between");
    add(40..70, 2);
    // No level above the base level gets a table: no target would move it down again.
    assert_eq!(levels()[..6], [1, 0, 0, 0, 0, 0], "above what it covers");
    // The memtables are flushed if they overlap the tables, and only then.
    db.put(&f, &key(200), b"in memory", &FREE).unwrap();
    add(100..110, 1);
    assert_eq!(levels()[0], 1);
    add(199..201, 1);
    assert_eq!(levels()[0], 3, "the memtable, and what came above it");
    // A deleted range overlaps as well.
    db.compact_range(&f, None, None).unwrap();
    db.delete_range(&f, &key(500), &key(600), &FREE).unwrap();
    add(700..710, 1);
    assert_eq!(levels()[0], 0);
    add(550..551, 1);
    assert_eq!(levels()[0], 2);
    let found = db.get(&f, &key(550), &ReadOptions::default()).unwrap();
    assert_eq!(found.as_deref(), Some(&value(550, 1)[..]));
    assert_eq!(db.stats().ingestions, 8);
    let stats = db.stats();
    assert!(stats.ingested_bytes > 0 && stats.write_amp().unwrap() > 0.0);
    db.close().unwrap();
    check(&env, &options());
}

#[test]
fn an_ingestion_avoids_the_output_level_of_a_compaction() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    for numbers in [[0, 1], [20, 21]] {
        let set = prepare(&db, &f, &entries(numbers, 1));
        db.ingest(&[set]).unwrap();
    }
    let view = db.engine().tree.view();
    let version = &view.version.families[&0];
    let place = |base, running: &[OutputRange], from, to| {
        let (from, to) = (key(from), key(to));
        crate::db::ingest::level_for(Some((version, base)), (0, f.cmp()), running, (&from, &to))
    };
    assert_eq!(place(6, &[], 5, 9), 6, "it fits between");
    assert_eq!(place(6, &[], 5, 20), 0, "above the base nothing goes");
    assert_eq!(place(5, &[], 5, 20), 5);
    assert_eq!(place(5, &[], 1, 1), 5);
    // A compaction writes one table over the gap between its inputs.
    let reach = |family, level| OutputRange::of_keys(family, level, &key(1), &key(20));
    assert_eq!(place(6, &[reach(0, 6)], 5, 9), 0);
    assert_eq!(place(4, &[reach(0, 6)], 5, 9), 5);
    assert_eq!(place(4, &[reach(0, 5)], 5, 9), 4, "nor below it");
    assert_eq!(place(6, &[reach(1, 6)], 5, 9), 6, "another family's");
    assert_eq!(place(6, &[reach(0, 6)], 22, 30), 6, "elsewhere");
    drop(view);
    db.close().unwrap();
}

#[test]
fn ingested_tables_have_the_bottom_compression() {
    let (env, _) = test_env();
    let mut options = options();
    options.default_family.min_blob_size = None;
    options.default_family.bottom_compression = Some(Compression::Zstd);
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    let all: Entries = (0..500).map(|n| (key(n), vec![b'x'; 500])).collect();
    let set = prepare(&db, &f, &all);
    assert!(set.bytes() < 50_000, "{} bytes", set.bytes());
    db.ingest(&[set]).unwrap();
    expect(&db, &f, &ReadOptions::default(), &all);
    db.close().unwrap();
}

#[test]
fn ingested_values_are_garbage_collected() {
    let (env, _) = test_env();
    let options = options();
    let mut db = Db::open(&env, "db", options.clone()).unwrap();
    let mut all = Entries::new();
    let (mut held, mut collections) = (None, 0);
    for round in 0..24u64 {
        let f = db.default_family();
        let some = entries((0..300).filter(|n| n % 7 == round % 7 || round == 0), round);
        // The prepared tables alternate, so that values of both kinds lie between each other.
        match round % 3 {
            0 => put_all(&db, &some),
            _ => drop(db.ingest(&[prepare(&db, &f, &some)]).unwrap()),
        }
        all.extend(some);
        if round % 4 == 3 {
            let relocation = CompactOptions {
                relocate_values: round % 8 == 7,
                ..CompactOptions::default()
            };
            db.compact(&f, &relocation).unwrap();
        }
        db.wait_idle().unwrap();
        expect(&db, &f, &ReadOptions::default(), &all);
        if let Some((snapshot, old)) = &held {
            expect(&db, &f, &as_of(snapshot), old);
        }
        match round {
            9 => held = Some((db.snapshot(), all.clone())),
            16 => {
                held = None;
                collections += db.stats().blobs.collections;
                db.close().unwrap();
                check(&env, &options);
                db = Db::open(&env, "db", options.clone()).unwrap();
            }
            _ => {}
        }
    }
    let f = db.default_family();
    db.compact_range(&f, None, None).unwrap();
    db.wait_idle().unwrap();
    let blobs = db.stats().blobs;
    collections += blobs.collections;
    assert!(collections > 0, "{collections} collections");
    let large = all.values().filter(|v| v.len() >= 100).count() as u64;
    assert_eq!(blobs.live_records, large);
    assert!(blobs.space_amp() <= blobs.max_space_amp, "{blobs:?}");
    db.close().unwrap();
    check(&env, &options);
}

#[test]
fn ingested_expiries_and_tombstones_take_effect() {
    let (env, manual_clock) = test_env();
    let options = options();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    put_all(&db, &entries(0..10, 1));
    let mut writer = db.prepare(&f).unwrap();
    for n in 0..10 {
        match n % 3 {
            0 => writer.delete(&key(n)).unwrap(),
            1 => (writer.add_ttl(&key(n), &value(n, 2), NOW + 1000)).unwrap(),
            _ => writer.add(&key(n), &value(n, 2)).unwrap(),
        }
    }
    assert_eq!(writer.entries(), 10);
    let prepared = writer.finish().unwrap();
    db.ingest(&[prepared]).unwrap();
    let seen = |kept: &dyn Fn(u64) -> bool| {
        let all = entries((0..10).filter(|n| kept(*n)), 2);
        expect(&db, &f, &ReadOptions::default(), &all);
    };
    seen(&|n| n % 3 != 0);
    let found = db.get_with_expiry(&f, &key(1), &ReadOptions::default());
    assert_eq!(found.unwrap().unwrap().expire_at_ms, Some(NOW + 1000));
    manual_clock.advance(Duration::from_millis(1000));
    seen(&|n| n % 3 == 2);
    db.compact_range(&f, None, None).unwrap();
    db.wait_idle().unwrap();
    seen(&|n| n % 3 == 2);
    db.close().unwrap();
    check(&env, &options);
}

#[test]
fn several_families_are_ingested_atomically() {
    let (env, _) = test_env();
    let options = options();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    let f = db.default_family();
    let (low, high, others) = (entries(0..9, 1), entries(9..20, 1), entries(3..12, 2));
    let sets = [
        prepare(&db, &f, &high),
        prepare(&db, &other, &others),
        prepare(&db, &f, &low),
        db.prepare(&f).unwrap().finish().unwrap(),
    ];
    let before = db.snapshot();
    let seq = db.ingest(&sets).unwrap();
    expect(&db, &f, &ReadOptions::default(), &entries(0..20, 1));
    expect(&db, &other, &ReadOptions::default(), &others);
    for f in [&f, &other] {
        expect(&db, f, &as_of(&before), &Entries::new());
    }
    assert_eq!(db.snapshot().seq(), seq);
    drop(before);
    db.close().unwrap();
    check(&env, &options);
}

#[test]
fn a_refused_ingestion_removes_its_files() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    let f = db.default_family();
    let invalid = |e: Error, what: &str| {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(e.to_string().contains(what), "{e}");
    };
    let mut writer = db.prepare(&f).unwrap();
    writer.add(b"b", b"").unwrap();
    for (key, what) in [(&b"b"[..], "each once"), (b"a", "in its order")] {
        invalid(writer.add(key, b"").unwrap_err(), what);
        invalid(writer.delete(key).unwrap_err(), what);
    }
    let long = vec![0; crate::MAX_KEY_LEN + 1];
    invalid(writer.add(&long, b"").unwrap_err(), "at most");
    writer.add(b"c", &[7; 500]).unwrap();
    let good = writer.finish().unwrap();
    let overlapping = prepare(&db, &f, &BTreeMap::from([(b"c".to_vec(), Vec::new())]));
    let both = [good.clone(), overlapping];
    invalid(db.ingest(&both).unwrap_err(), "overlap");
    invalid(
        db.ingest(&[good.clone(), good.clone()]).unwrap_err(),
        "second time",
    );
    assert_eq!(files(&env).len(), 3, "{:?}", files(&env));
    drop(both);
    assert_eq!(files(&env).len(), 2, "{:?}", files(&env));
    // The store works as before.
    db.ingest(std::slice::from_ref(&good)).unwrap();
    invalid(db.ingest(&[good]).unwrap_err(), "second time");

    let gone = prepare(&db, &other, &entries(0..9, 1));
    db.drop_family(&other).unwrap();
    let e = db.ingest(&[gone]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert_eq!(db.prepare(&other).unwrap_err().kind(), ErrorKind::NotFound);
    drop(db.prepare(&f).unwrap());
    let mut unfinished = db.prepare(&f).unwrap();
    unfinished.add(b"k", &[1; 1000]).unwrap();
    assert_eq!(files(&env).len(), 4, "{:?}", files(&env));
    drop(unfinished);
    assert_eq!(files(&env).len(), 2, "{:?}", files(&env));

    let foreign_table = Db::open(&env, "another", options()).unwrap();
    let set = prepare(
        &foreign_table,
        &foreign_table.default_family(),
        &entries(0..9, 1),
    );
    invalid(db.ingest(&[set]).unwrap_err(), "another store");
    assert!(db.prepare(&foreign_table.default_family()).is_err());
    foreign_table.close().unwrap();
    db.close().unwrap();
    check(&env, &options());
}

#[test]
fn a_late_table_writer_touches_no_file_of_the_next_store() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    let mut writer = db.prepare(&f).unwrap();
    writer.add(&key(1), &value(1, 1)).unwrap();
    let finished = prepare(&db, &f, &entries(50..99, 1));
    let fresh = db.prepare(&f).unwrap();
    db.clone().close().unwrap();

    let next = Db::open(&env, "db", options()).unwrap();
    put_all(&next, &entries(0..99, 7));
    next.flush().unwrap();
    let mut named = files(&env);
    // The next store gives out the same file numbers.
    assert!(!named.is_empty());
    let mut fresh = fresh;
    assert_eq!(
        fresh.add(&key(1), b"").unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_eq!(fresh.finish().unwrap_err().kind(), ErrorKind::Closed);
    let e = db.ingest(&[finished]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    let _ = writer.add(&key(2), &value(2, 1));
    drop(writer);
    let mut left = files(&env);
    named.sort();
    left.sort();
    assert_eq!(left, named);
    let f = next.default_family();
    expect(&next, &f, &ReadOptions::default(), &entries(0..99, 7));
    next.close().unwrap();
    check(&env, &options());
}

/// Each call of the filesystem fails in turn. All of the set is added, or none of it. The same set
/// can be added again, unless the error says that it is spent.
#[test]
fn a_failed_ingestion_adds_nothing() {
    let (mut spent, mut again) = (0, 0);
    for kind in [
        OpKind::Append,
        OpKind::SyncAll,
        OpKind::SyncMetadata,
        OpKind::Create,
    ] {
        for nth in 1.. {
            let sim = SimFs::new(SimOptions::default());
            let fs = FaultFs::new(sim, 1);
            let env = Env::for_tests(fs.clone(), 1);
            let options = options();
            let db = Db::open(&env, "db", options.clone()).unwrap();
            let f = db.default_family();
            let old = entries(0..20, 1);
            put_all(&db, &old);
            let coming = entries(10..40, 2);
            let set = prepare(&db, &f, &coming);
            let fault = fs.inject(Fault {
                op: Some(kind),
                path: String::new(),
                when: When::Nth(nth),
                kind: FaultKind::Eio,
            });
            let mut all = old.clone();
            let added = db.ingest(std::slice::from_ref(&set));
            let met = fs.seen(fault) >= nth;
            fs.clear();
            if let Err(first) = &added {
                expect(&db, &f, &ReadOptions::default(), &all);
                env.clock().sleep(Duration::from_secs(1));
                match db.ingest(std::slice::from_ref(&set)) {
                    Ok(_) => {
                        again += 1;
                        all.extend(coming);
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                        assert!(e.to_string().contains("is not known"), "{e}");
                        assert!(first.to_string().contains("is not known"), "{first}");
                        spent += 1;
                    }
                }
            } else {
                all.extend(coming);
            }
            drop(set);
            db.put(&f, b"after", b"x", &WriteOptions::SYNC).unwrap();
            all.insert(b"after".to_vec(), b"x".to_vec());
            expect(&db, &f, &ReadOptions::default(), &all);
            db.close().unwrap();
            check(&env, &options);
            let db = Db::open(&env, "db", options.clone()).unwrap();
            expect(&db, &db.default_family(), &ReadOptions::default(), &all);
            db.close().unwrap();
            if !met {
                assert!(
                    nth > 1 || kind == OpKind::Create,
                    "{kind:?} is never called"
                );
                break;
            }
        }
    }
    assert!(spent > 0 && again > 2, "{spent} spent, {again} tried again");
}

/// A load may not use the reserve of the disk. A refused load leaves the store as it was, and gives
/// its space back.
#[test]
fn an_ingestion_that_does_not_fit_leaves_the_disk_reserve() {
    let fs = SimFs::new(SimOptions {
        capacity: 64 << 20,
        ..SimOptions::default()
    });
    let env = Env::for_tests(fs, 1);
    let options = options();
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let old = entries(0..20, 1);
    put_all(&db, &old);
    let reserve = options.disk_reserve(64 << 20);
    let free = || env.fs().space(Path::new("db")).unwrap().free;
    for retry in [false, true] {
        let mut writer = db.prepare(&f).unwrap();
        let refused = (0..1000).find_map(|n| writer.add(&key(n), &vec![n as u8; 100 << 10]).err());
        let e = refused.expect("a hundred megabytes do not fit");
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        // The free space is checked once a mebibyte.
        assert!(free() > reserve - (2 << 20), "{} left", free());
        expect(&db, &f, &ReadOptions::default(), &old);
        if retry {
            // No byte of the refused load is counted.
            let entries = writer.entries();
            assert!(writer.add(&key(entries), &vec![0; 100 << 10]).is_err());
            assert_eq!(writer.entries(), entries);
        }
        drop(writer);
        assert!(free() > (60 << 20), "{} left", free());
        db.put(&f, &key(0), &old[&key(0)], &FREE).unwrap();
    }
    db.close().unwrap();
    check(&env, &options);
}

/// A reader has a view from before the ingestion, and a sequence number from after it.
#[test]
fn no_reader_sees_later_writes_without_the_ingestion() {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .threads(2)
        .build();
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    let scale = basalt_sim::campaign::scale();
    let rounds = 300 * scale;
    let number = |v: Option<Bytes>| v.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
    basalt_env::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (db, f) = (&db, &f);
                s.spawn(move || {
                    loop {
                        let keys: [(&Family, &[u8]); 2] = [(f, b"put"), (f, b"added")];
                        let found = db.multi_get(&keys, &ReadOptions::default());
                        let [put, added] = found.try_into().unwrap();
                        let (put, added) = (number(put.unwrap()), number(added.unwrap()));
                        assert!(added >= put, "{put} was put after {added} was added");
                        if put == rounds {
                            break;
                        }
                    }
                })
            })
            .collect();
        for n in 1..=rounds {
            let mut writer = db.prepare(&f).unwrap();
            writer.add(b"added", &n.to_le_bytes()).unwrap();
            db.ingest(&[writer.finish().unwrap()]).unwrap();
            db.put(&f, b"put", &n.to_le_bytes(), &FREE).unwrap();
        }
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
    db.close().unwrap();
}

/// A load between the keys of an older table hides no more bytes than this table has: its two large
/// values.
#[test]
fn an_ingestion_estimates_no_more_hidden_bytes_than_exist() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    db.put(&f, b"00000", &value(1, 0), &FREE).unwrap();
    db.put(&f, b"99999", &value(1, 0), &FREE).unwrap();
    db.compact_range(&f, None, None).unwrap();
    for version in 1..4 {
        let (first, last) = (version * 1000, version * 1000 + 300);
        let prepared = prepare(&db, &f, &entries(first..last, version));
        db.ingest(&[prepared]).unwrap();
        let blobs = db.stats().blobs;
        assert_eq!(blobs.live_records, 2 + version * 200);
        let mean = blobs.live_bytes / blobs.live_records;
        assert!(
            blobs.hidden_bytes <= 2 * (mean + 1),
            "load {version}: {blobs:?}"
        );
    }
}

/// On a device that loses synced data, the manifest may end before the edit that added tables,
/// while the log has later records. The log then reports the loss.
#[test]
fn a_log_reports_an_ingestion_missing_from_the_manifest() {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    db.put(&f, b"00000", b"before", &WriteOptions::SYNC)
        .unwrap();
    let manifest = std::path::Path::new("db/MANIFEST-000001");
    let end = disk.stat(manifest).unwrap().len;
    let prepared = prepare(&db, &f, &entries(10..20, 1));
    let seq = db.ingest(&[prepared]).unwrap();
    db.put(&f, b"00001", b"after", &WriteOptions::SYNC).unwrap();
    db.abandon();
    for lost in [false, true] {
        let disk = disk.kill();
        if lost {
            disk.truncate(manifest, end).unwrap();
        }
        let env = Env::for_tests(disk, 2);
        let opened = Db::open(&env, "db", options());
        if !lost {
            let db = opened.unwrap();
            let mut all = entries(10..20, 1);
            all.insert(b"00000".to_vec(), b"before".to_vec());
            all.insert(b"00001".to_vec(), b"after".to_vec());
            expect(&db, &db.default_family(), &ReadOptions::default(), &all);
            assert_eq!(db.stats().last_seq, seq + 1, "the next number is the log's");
            continue;
        }
        let e = opened
            .err()
            .expect("what is there is no state that ever was");
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        let message =
            format!("added with sequence number {seq}, and the manifest knows none above");
        assert!(e.to_string().contains(&message), "{e}");
        // Repair reports it as well, and keeps the tables, which no edit names, and all other data.
        let report = Db::repair(&env, "db", &options(), &mut |_, _| {}).unwrap();
        assert!(!report.sound);
        let loss = &report.losses[0];
        let note = format!("added with sequence number {seq}, and the edits know none above");
        assert!(
            loss.file.starts_with("MANIFEST") && loss.reason.contains(&note),
            "{loss:?}"
        );
        let db = Db::open(&env, "db", options()).unwrap();
        let mut all = entries(10..20, 1);
        all.insert(b"00000".to_vec(), b"before".to_vec());
        all.insert(b"00001".to_vec(), b"after".to_vec());
        expect(&db, &db.default_family(), &ReadOptions::default(), &all);
    }
}
