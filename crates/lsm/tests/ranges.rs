//! Range deletes at the level of promises: the keys that they hide, their cost for readers of other
//! keys, and that they survive snapshots, flushes, compactions, moves, recovery and damage. The
//! model test of `promises` has them in its histories.

use basalt_env::{Env, EnvBuilder, Random};
use basalt_kv::key::Cmp;
use basalt_lsm::{
    Comparator, Db, ErrorKind, Family, Options, ReadOptions, WriteBatch, WriteOptions,
};
use basalt_sim::{SimFs, SimOptions};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;
const DIR: &str = "db";

fn disk() -> Arc<SimFs> {
    SimFs::new(SimOptions::default())
}

fn env(fs: &Arc<SimFs>) -> Env {
    // Each environment gets a seed of its own: two files never share an id.
    static SEEDS: AtomicU64 = AtomicU64::new(7);
    EnvBuilder::for_tests(fs.clone(), SEEDS.fetch_add(1, Relaxed))
        .cache_bytes(64 << 20)
        .memory_bytes(256 << 20)
        .build()
}

/// Returns options for small tables and levels, so that a few thousand keys make a tree.
fn small() -> Options {
    let mut options = Options::default().write_buffer_bytes(64 << 10);
    options.default_family.block_bytes = 512;
    options.default_family.table_bytes = 8 << 10;
    options.default_family.base_level_bytes = 32 << 10;
    options
}

fn open(fs: &Arc<SimFs>, options: Options) -> (Env, Db, Family) {
    let env = env(fs);
    let db = Db::open(&env, DIR, options).expect("open");
    let family = db.default_family();
    (env, db, family)
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:08}").into_bytes()
}

fn fill(db: &Db, f: &Family, range: std::ops::Range<u32>) {
    for i in range {
        let value = [&key(i)[..], &[b'v'; 80]].concat();
        db.put(f, &key(i), &value, &UNSYNCED).expect("put");
    }
}

fn scan(db: &Db, f: &Family, options: &ReadOptions, reverse: bool) -> Vec<Vec<u8>> {
    let mut it = db.iter(f, options).expect("iter");
    let mut keys = Vec::new();
    if reverse {
        it.seek_to_last().expect("seek");
    } else {
        it.seek_to_first().expect("seek");
    }
    while it.valid() {
        keys.push(it.key().to_vec());
        if reverse { it.prev() } else { it.next() }.expect("move");
    }
    if reverse {
        keys.reverse();
    }
    keys
}

/// Checks by points, by many points, and by scans from both ends that exactly these keys exist.
#[track_caller]
fn holds(db: &Db, f: &Family, options: &ReadOptions, want: impl Fn(u32) -> bool, n: u32) {
    let wanted: Vec<Vec<u8>> = (0..n).filter(|i| want(*i)).map(key).collect();
    assert_eq!(scan(db, f, options, false), wanted);
    assert_eq!(scan(db, f, options, true), wanted);
    let names: Vec<Vec<u8>> = (0..n).map(key).collect();
    let asked: Vec<(&Family, &[u8])> = names.iter().map(|k| (f, &k[..])).collect();
    for (i, (name, many)) in (0..n).zip(names.iter().zip(db.multi_get(&asked, options))) {
        let one = db.get(f, name, options).expect("get");
        assert_eq!(one.is_some(), want(i), "key {i}");
        assert_eq!(many.expect("multi_get"), one, "key {i}");
    }
}

fn range_deletes(db: &Db) -> u64 {
    let stats = db.stats();
    let levels = stats.families.iter().flat_map(|f| &f.levels);
    levels.map(|l| l.range_deletes).sum()
}

fn table_count(db: &Db) -> u64 {
    let stats = db.stats();
    let levels = stats.families.iter().flat_map(|f| &f.levels);
    levels.map(|l| l.tables).sum()
}

/// Returns the bytes of data blocks that reads have brought into the cache.
fn data_bytes(env: &Env) -> u64 {
    let stats = env.cache().stats();
    stats.used - stats.used_high
}

#[test]
fn writes_after_a_range_delete_in_a_batch_are_visible() {
    let (_env, db, f) = open(&disk(), small());
    fill(&db, &f, 0..20);
    let mut batch = WriteBatch::new();
    batch.put(&f, &key(3), b"before").expect("put");
    batch.delete_range(&f, &key(2), &key(10)).expect("range");
    batch.put(&f, &key(4), b"after").expect("put");
    batch.put(&f, &key(6), b"after").expect("put");
    batch.delete_range(&f, &key(6), &key(7)).expect("range");
    db.write(batch, &UNSYNCED).expect("write");
    let alive = |i: u32| i < 2 || i == 4 || i >= 10;
    let read = ReadOptions::default();
    holds(&db, &f, &read, alive, 20);
    db.flush().expect("flush");
    holds(&db, &f, &read, alive, 20);
    db.compact_range(&f, None, None).expect("compact");
    holds(&db, &f, &read, alive, 20);
    assert_eq!(range_deletes(&db), 0, "nothing is left that it hides");
}

#[test]
fn bad_ranges_are_refused_and_empty_ones_do_nothing() {
    struct Backwards;
    impl Comparator for Backwards {
        fn name(&self) -> &str {
            "test.descending"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
            b.cmp(a)
        }
    }
    let (_env, db, f) = open(&disk(), small());
    let mut batch = WriteBatch::new();
    let e = batch.delete_range(&f, b"b", b"a").expect_err("from > to");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("ends before it begins"), "{e}");
    let long = vec![b'x'; basalt_lsm::MAX_KEY_LEN + 1];
    for (from, to) in [(&b"a"[..], &long[..]), (&long[..], &b"z"[..])] {
        let e = batch.delete_range(&f, from, to).expect_err("too long");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    }
    batch.delete_range(&f, b"a", b"a").expect("nothing");
    assert!(batch.is_empty());
    // The family's comparator decides the order.
    let options = basalt_lsm::FamilyOptions::default().comparator(Cmp::Custom(Arc::new(Backwards)));
    let down = db.create_family("down", options).expect("family");
    for k in [b"a", b"b", b"c"] {
        db.put(&down, k, b"v", &UNSYNCED).expect("put");
    }
    assert!(batch.delete_range(&down, b"a", b"c").is_err());
    db.delete_range(&down, b"c", b"a", &UNSYNCED)
        .expect("in its order");
    db.flush().expect("flush");
    let read = ReadOptions::default();
    assert_eq!(scan(&db, &down, &read, false), vec![b"a".to_vec()]);
}

/// A scan over live keys, and seeks, beside very many deleted keys read none of the dead blocks, in
/// either direction.
#[test]
fn reads_near_deleted_ranges_read_no_dead_blocks() {
    let fs = disk();
    let n = 20_000;
    let (dead, alive) = (100..n - 100, |i: u32| i < 100 || i >= n - 100);
    {
        let (_env, db, f) = open(&fs, small());
        fill(&db, &f, 0..n);
        db.compact_range(&f, None, None).expect("compact");
        let snapshot = db.snapshot();
        db.delete_range(&f, &key(dead.start), &key(dead.end), &UNSYNCED)
            .expect("delete");
        db.flush().expect("flush");
        drop(snapshot);
        db.close().expect("close");
    }
    // The test compacts nothing here: the tombstone lies in level 0, the dead keys at the bottom.
    for reverse in [false, true] {
        let mut options = small();
        options.default_family.l0_compaction_trigger = 10;
        let (env, db, f) = open(&fs, options);
        let read = ReadOptions::default();
        let keys = scan(&db, &f, &read, reverse);
        assert!(
            keys.iter()
                .cloned()
                .eq((0..n).filter(|i| alive(*i)).map(key))
        );
        let scanned = data_bytes(&env);
        // The bound covers two hundred entries of a hundred bytes, the ends of read-ahead, and a
        // block at each end of the range.
        assert!(scanned < 128 << 10, "{scanned} bytes of blocks were read");
        let mut it = db.iter(&f, &read).expect("iter");
        for i in (dead.start..dead.end).step_by(997) {
            it.seek(&key(i)).expect("seek");
            assert_eq!(it.key(), key(dead.end));
            it.seek_for_prev(&key(i)).expect("seek");
            assert_eq!(it.key(), key(dead.start - 1));
            assert_eq!(db.get(&f, &key(i), &read).expect("get"), None);
        }
        let names: Vec<Vec<u8>> = dead.clone().step_by(501).map(key).collect();
        let asked: Vec<(&Family, &[u8])> = names.iter().map(|k| (&f, &k[..])).collect();
        for answer in db.multi_get(&asked, &read) {
            assert_eq!(answer.expect("read"), None);
        }
        let sought = data_bytes(&env) - scanned;
        assert!(sought < 8 << 10, "{sought} bytes of dead blocks were read");
        db.abandon();
    }
}

/// A reader jumps over very many neighbouring small tombstones at once.
#[test]
fn adjacent_tombstones_are_passed_without_a_seek_each() {
    let fs = disk();
    let n = 6_000;
    let (env, db, f) = open(&fs, small());
    fill(&db, &f, 0..n);
    db.compact_range(&f, None, None).expect("compact");
    let snapshot = db.snapshot();
    for i in 50..n - 50 {
        // Their sequence numbers differ, so they stay fragments of their own.
        db.delete_range(&f, &key(i), &key(i + 1), &UNSYNCED)
            .expect("delete");
    }
    let before = data_bytes(&env);
    let mut bounded = ReadOptions::default().max_skippable_entries(200);
    let mut it = db.iter(&f, &bounded).expect("iter");
    it.seek(&key(49)).expect("seek");
    it.next().expect("next");
    assert!(it.valid(), "a few jumps are within the budget");
    assert_eq!(it.key(), key(n - 50));
    let read = data_bytes(&env) - before;
    assert!(read < 64 << 10, "{read} bytes of blocks were read");
    // As of the snapshot all keys exist.
    bounded.snapshot = Some(snapshot);
    bounded.max_skippable_entries = u64::MAX;
    assert_eq!(scan(&db, &f, &bounded, false).len(), n as usize);
}

/// One movement passes over a bounded number of entries, whether it walks or jumps over them.
#[test]
fn max_skippable_entries_counts_jumps_and_hidden_entries() {
    let options = small().write_buffer_bytes(2 << 20);
    let (_env, db, f) = open(&disk(), options);
    let n = 3_000;
    fill(&db, &f, 0..n);
    db.compact_range(&f, None, None).expect("compact");
    // The memtable has every second key, so that a jump passes one entry, and the same keys again
    // under one tombstone.
    for i in (0..n - 2).step_by(2) {
        db.delete_range(&f, &key(i), &key(i + 1), &UNSYNCED)
            .expect("delete");
    }
    for i in (1..n - 2).step_by(2) {
        db.put(&f, &key(i), b"dead", &UNSYNCED).expect("put");
    }
    db.delete_range(&f, &key(0), &key(n - 2), &UNSYNCED)
        .expect("delete");
    let mut pauses = 0;
    let mut from = key(0);
    loop {
        let read = ReadOptions::default().max_skippable_entries(100);
        let mut it = db.iter(&f, &read).expect("iter");
        it.seek(&from).expect("seek");
        let Some(at) = it.resume_key() else {
            assert_eq!(it.key(), key(n - 2));
            break;
        };
        assert!(from.as_slice() < at, "a pause gets further");
        from = at.to_vec();
        pauses += 1;
    }
    assert!(pauses >= 10, "{pauses} pauses");
}

/// A jump over a dead entry costs as much as a walk over it.
#[test]
fn jumps_alone_reach_max_skippable_entries() {
    let (_env, db, f) = open(&disk(), small());
    fill(&db, &f, 0..1_000);
    db.compact_range(&f, None, None).expect("compact");
    for i in (0..1_000).step_by(2) {
        db.delete_range(&f, &key(i), &key(i + 1), &UNSYNCED)
            .expect("delete");
    }
    let read = ReadOptions::default().max_skippable_entries(100);
    let mut it = db.iter(&f, &read).expect("iter");
    it.seek_to_first().expect("seek");
    let mut shown = 0;
    while it.valid() {
        shown += 1;
        it.next().expect("next");
    }
    assert!(it.resume_key().is_some(), "{shown} keys were shown");
    assert!((90..=110).contains(&shown), "{shown} keys were shown");
}

/// A flush leaves out entries that a range delete hides in their own memtable, and writes those
/// that a snapshot still sees.
#[test]
fn a_flush_drops_entries_that_no_reader_can_see() {
    let mut options = small();
    options.write_buffer_bytes = 1 << 20;
    let entries = |db: &Db| -> u64 {
        let stats = db.stats();
        let levels = stats.families.iter().flat_map(|f| &f.levels);
        levels.map(|l| l.entries).sum()
    };
    for seen in [false, true] {
        let (_env, db, f) = open(&disk(), options.clone());
        fill(&db, &f, 0..500);
        let _snapshot = seen.then(|| db.snapshot());
        db.delete_range(&f, &key(100), &key(400), &UNSYNCED)
            .expect("delete");
        db.flush().expect("flush");
        assert_eq!(entries(&db), if seen { 500 } else { 200 });
        assert_eq!(range_deletes(&db), 1);
    }
}

/// A memtable of range tombstones alone is flushed, recovered, moved and merged like any other.
#[test]
fn tables_of_tombstones_alone_are_tables() {
    let fs = disk();
    let read = ReadOptions::default();
    let alive = |i: u32| !(100..900).contains(&i);
    {
        let (_env, db, f) = open(&fs, small());
        fill(&db, &f, 0..1000);
        db.compact_range(&f, None, None).expect("compact");
        db.delete_range(&f, &key(100), &key(900), &WriteOptions::SYNC)
            .expect("delete");
        holds(&db, &f, &read, alive, 1000);
        db.abandon();
    }
    let mut options = small();
    options.default_family.l0_compaction_trigger = 10;
    // Recovery writes the tombstones from the log into a table.
    let (_env, db, f) = open(&fs, options.clone());
    holds(&db, &f, &read, alive, 1000);
    assert_eq!(range_deletes(&db), 1);
    db.close().expect("close");
    // Recovery finds the table by the manifest.
    let (_env, db, f) = open(&fs, options.clone());
    holds(&db, &f, &read, alive, 1000);
    assert_eq!(range_deletes(&db), 1);
    db.close().expect("close");
    let report =
        Db::verify_store(&env(&fs), Path::new(DIR), &options, &mut |_, _| ()).expect("verify");
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    let (_env, db, f) = open(&fs, small());
    db.compact_range(&f, None, None).expect("compact");
    holds(&db, &f, &read, alive, 1000);
    assert_eq!(range_deletes(&db), 0);
}

/// A compaction drops tables that a tombstone covers whole, without reading them.
#[test]
fn fully_covered_tables_are_dropped_without_reads() {
    let (_env, db, f) = open(&disk(), small());
    fill(&db, &f, 0..5_000);
    db.compact_range(&f, None, None).expect("compact");
    let before = db.stats().compaction_bytes_read;
    let held = table_count(&db);
    db.delete_range(&f, &key(0), &key(5_000), &UNSYNCED)
        .expect("delete");
    db.flush().expect("flush");
    db.compact_range(&f, None, None).expect("compact");
    let read = db.stats().compaction_bytes_read - before;
    assert!(read < 4 << 10, "{read} bytes of dead tables were read");
    assert!(held > 20 && table_count(&db) == 0);
    assert!(scan(&db, &f, &ReadOptions::default(), false).is_empty());
}

/// Snapshots older than a tombstone keep the entries that it hides. They also keep compactions from
/// dropping the tombstone.
#[test]
fn snapshots_older_than_a_tombstone_keep_their_entries() {
    let (_env, db, f) = open(&disk(), small());
    let n = 400;
    let mut kept = Vec::new();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let r = Random::from_seed(5);
    for round in 0..12u32 {
        for _ in 0..100 {
            let k = key(r.below(n) as u32);
            let v = format!("{round} {}", "x".repeat(60)).into_bytes();
            db.put(&f, &k, &v, &UNSYNCED).expect("put");
            model.insert(k, v);
        }
        let from = r.below(n) as u32;
        let to = from + 1 + r.below(n / 2) as u32;
        db.delete_range(&f, &key(from), &key(to), &UNSYNCED)
            .expect("delete");
        model.retain(|k, _| *k < key(from) || *k >= key(to));
        kept.push((db.snapshot(), model.clone()));
        match round % 3 {
            0 => db.flush().expect("flush"),
            1 => db.compact_range(&f, None, None).expect("compact"),
            _ => {}
        }
        if round == 8 {
            kept.drain(1..4);
        }
        for (snapshot, want) in &kept {
            let read = ReadOptions::default().snapshot(Some(snapshot.clone()));
            let want: Vec<Vec<u8>> = want.keys().cloned().collect();
            assert_eq!(scan(&db, &f, &read, false), want);
            assert_eq!(scan(&db, &f, &read, true), want);
            for i in 0..n as u32 {
                let got = db.get(&f, &key(i), &read).expect("get");
                assert_eq!(got.is_some(), want.binary_search(&key(i)).is_ok());
            }
        }
    }
    drop(kept);
    db.compact_range(&f, None, None).expect("compact");
    assert_eq!(
        range_deletes(&db),
        0,
        "no entry needs the tombstones any more"
    );
}

/// Tombstones are cut where tables are: at no boundary does a key come back, and no key beside it
/// is lost. Table boundaries fall on deletes that share ends with each other and with live keys.
#[test]
fn tombstones_across_many_tables_keep_their_ends() {
    let scale = basalt_sim::campaign::scale();
    for seed in 0..6 * scale {
        let r = Random::from_seed(seed);
        let mut options = small();
        options.default_family.table_bytes = 1 << 10;
        options.default_family.base_level_bytes = 4 << 10;
        options.default_family.level_multiplier = 3;
        let (env, db, f) = open(&disk(), options);
        let n = 600;
        let mut alive = vec![false; n as usize];
        let old = db.snapshot();
        for step in 0..60 {
            for _ in 0..r.below(60) {
                let i = r.below(n) as usize;
                let v = vec![step as u8; 20 + r.below(60) as usize];
                db.put(&f, &key(i as u32), &v, &UNSYNCED).expect("put");
                alive[i] = true;
            }
            for _ in 0..r.below(4) {
                let from = r.below(n) as usize;
                let to =
                    (from + 1 + r.below(if r.one_in(3) { n } else { 10 }) as usize).min(n as usize);
                db.delete_range(&f, &key(from as u32), &key(to as u32), &UNSYNCED)
                    .expect("delete");
                alive[from..to].fill(false);
            }
            if r.one_in(3) {
                db.flush().expect("flush");
            }
            while r.one_in(2) && env.jobs().step() {}
            if r.one_in(12) {
                let (a, b) = (key(r.below(n) as u32), key(r.below(n) as u32));
                db.compact_range(&f, Some(&a), Some(&b)).expect("compact");
            }
            if step % 10 == 9 {
                let read = ReadOptions::default();
                holds(&db, &f, &read, |i| alive[i as usize], n as u32);
            }
        }
        let before = ReadOptions::default().snapshot(Some(old));
        assert!(scan(&db, &f, &before, false).is_empty());
    }
}

/// A damaged block of tombstones is an error, never deleted keys that show again. Repair keeps all
/// readable parts and reports the loss.
#[test]
fn damaged_tombstones_are_reported_and_salvaged() {
    let fs = disk();
    let mut options = small();
    options.default_family.l0_compaction_trigger = 10;
    {
        let (_env, db, f) = open(&fs, options.clone());
        fill(&db, &f, 0..500);
        db.compact_range(&f, None, None).expect("compact");
        db.delete_range(&f, &key(100), &key(400), &UNSYNCED)
            .expect("delete");
        fill(&db, &f, 600..700);
        db.flush().expect("flush");
        db.close().expect("close");
    }
    let tables = |fs: &SimFs| {
        let names = basalt_fs::FileSystem::list(fs, Path::new(DIR)).expect("list");
        let names = names.into_iter().map(|e| e.name);
        names.filter(|n| n.ends_with(".tbl")).collect::<Vec<_>>()
    };
    let is_mark = |b: &[u8]| b == b"rng\x01";
    let newest = tables(&fs)
        .into_iter()
        .map(|n| Path::new(DIR).join(n))
        .find(|p| fs.read_all(p).expect("read").windows(4).any(is_mark))
        .expect("a table with tombstones");
    let sound = fs.read_all(&newest).expect("read");
    let at = sound.windows(4).position(is_mark).expect("block");
    let alive = |i: u32| !(100..400).contains(&i) && !(500..600).contains(&i);
    let read = ReadOptions::default();
    let repaired = |bytes: &[u8]| {
        fs.write_file(&newest, bytes).expect("write");
        let (_env, db, f) = open(&fs, options.clone());
        for i in [50, 150, 650] {
            // The newest source that may contain the key cannot be read.
            let touched = db.get(&f, &key(i), &read);
            assert!(touched.is_err() || i == 50, "key {i}: {touched:?}");
        }
        let scanned = db.iter(&f, &read).and_then(|mut it| it.seek_to_first());
        assert!(scanned.is_err());
        db.abandon();
        let other = fs.kill();
        let e = env(&other);
        let report = Db::repair(&e, Path::new(DIR), &options, &mut |_, _| ()).expect("repair");
        let db = Db::open(&e, DIR, options.clone()).expect("open");
        (e, report, db)
    };

    // The damage hits the block itself: the keys that it hid show again, and the report says so.
    let mut bytes = sound.clone();
    bytes[at + 12] ^= 1;
    let (_e, report, db) = repaired(&bytes);
    assert!(
        report
            .lost
            .iter()
            .any(|l| l.contains("range tombstones") && l.contains("show again")),
        "{:?}",
        report.lost
    );
    let f = db.default_family();
    holds(&db, &f, &read, |i| !(500..600).contains(&i), 700);

    // The damage hits index, properties and footer behind it: the tombstones are found by their
    // mark.
    let mut bytes = sound.clone();
    let len = bytes.len();
    bytes[len - 200..].fill(0);
    let (_e, report, db) = repaired(&bytes);
    let f = db.default_family();
    holds(&db, &f, &read, alive, 700);
    assert!(!report.lost.iter().any(|l| l.contains("range tombstones")));
}

#[test]
fn every_range_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_range_test_passes_on_lava", &[]);
}
