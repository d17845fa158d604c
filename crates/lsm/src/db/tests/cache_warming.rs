//! The cache after a flush and after a garbage collection, measured by the reads of the device.

use super::prelude::*;
use basalt_env::EnvBuilder;
use basalt_sim::{SimFs, SimOptions};

const FREE: WriteOptions = WriteOptions::UNSYNCED;
const LEN: usize = 4000;

fn test_env(cache: u64) -> Env {
    EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1)
        .cache_bytes(cache)
        .build()
}

fn options(max_space_amp: f64) -> Options {
    Options {
        default_family: FamilyOptions {
            min_blob_size: Some(100),
            ..FamilyOptions::default()
        },
        max_space_amp,
        ..Options::default()
    }
}

fn value(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut v = format!("{key}/{version}/").into_bytes();
    v.resize(len, key as u8);
    v
}

fn put(db: &Db, keys: impl IntoIterator<Item = u64>, version: u64, len: usize) {
    let f = db.default_family();
    for key in keys {
        let value = value(key, version, len);
        db.put(&f, &key.to_be_bytes(), &value, &FREE).unwrap();
    }
}

/// Gets keys. Returns the reads of the device that it took, and their bytes.
fn get(db: &Db, keys: impl IntoIterator<Item = u64>, version: u64, len: usize) -> (u64, u64) {
    let (f, fs) = (db.default_family(), db.env().fs().clone());
    let before = fs.stats();
    for key in keys {
        let found = db.get(&f, &key.to_be_bytes(), &ReadOptions::default());
        assert_eq!(found.unwrap().unwrap(), value(key, version, len));
    }
    let after = fs.stats();
    (
        after.reads - before.reads,
        after.bytes_read - before.bytes_read,
    )
}

#[test]
fn a_flush_under_read_load_warms_the_cache() {
    for (load, len) in [(true, LEN), (false, LEN), (true, 400 << 10)] {
        let env = test_env(2 << 20);
        let db = Db::open(&env, "db", options(10.0)).unwrap();
        put(&db, 0..50, 0, LEN);
        db.flush().unwrap();
        if load {
            for _ in 0..100 {
                get(&db, 0..50, 0, LEN);
            }
        }
        put(&db, 100..120, 0, len);
        db.flush().unwrap();
        let first = get(&db, [100], 0, len);
        let (reads, bytes) = get(&db, 101..120, 0, len);
        match (load, len) {
            (true, LEN) => {
                assert_eq!(first, (0, 0), "the job has opened what it made");
                assert_eq!((reads, bytes), (0, 0));
            }
            // These values are too long for this cache. Each takes one read, because the index is
            // cached.
            (true, _) => assert_eq!((first.0, reads), (1, 19)),
            (false, _) => assert!(
                reads >= 19,
                "no read came before, so no block was kept: {reads}"
            ),
        }
        db.close().unwrap();
    }
}

#[test]
fn a_garbage_collection_keeps_cached_values_cached() {
    let env = test_env(8 << 20);
    let db = Db::open(&env, "db", options(10.0)).unwrap();
    put(&db, 0..300, 0, LEN);
    db.flush().unwrap();
    put(&db, (0..300).filter(|k| k % 3 == 0), 1, LEN);
    db.flush().unwrap();
    let f = db.default_family();
    db.compact_range(&f, None, None).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().blobs.collections, 0);
    let hot = || (0..300).filter(|k| k % 3 == 1);
    let cold = || (0..300).filter(|k| k % 3 == 2);
    get(&db, hot(), 0, LEN);
    assert_eq!(get(&db, hot(), 0, LEN), (0, 0));
    let before: Vec<u64> = db.blob_files().iter().map(|b| b.number).collect();
    db.close().unwrap();
    let used = env.cache().stats().used;
    // Reads within another bound, with the same cache.
    let db = Db::open(&env, "db", options(1.1)).unwrap();
    db.wait_idle().unwrap();
    assert!(db.stats().blobs.collections > 0);
    assert!(!db.blob_files().iter().any(|b| b.number == before[0]));
    while env.jobs().step() {}
    let now = env.cache().stats().used;
    assert!(
        now < used + (64 << 10),
        "{used} bytes before, {now} now: the old are there, too"
    );
    // The table that was closed is opened again. No value is read.
    let (reads, bytes) = get(&db, hot(), 0, LEN);
    assert!(
        reads < 20 && bytes < 10 * LEN as u64,
        "{reads} reads of {bytes} bytes"
    );
    assert_eq!(get(&db, hot(), 0, LEN), (0, 0));
    let (reads, _) = get(&db, cold(), 0, LEN);
    assert!(reads >= 100, "no read had asked for these blocks: {reads}");
    // Cached values are also right if many are read together, or verified again from the device.
    let expected: Vec<_> = hot().map(|k| value(k, 0, LEN)).collect();
    let names: Vec<_> = hot().map(|k| k.to_be_bytes()).collect();
    let f = db.default_family();
    let keys: Vec<(&Family, &[u8])> = names.iter().map(|k| (&f, &k[..])).collect();
    let found = db.multi_get(&keys, &ReadOptions::default());
    for (found, expected) in found.into_iter().zip(expected) {
        assert_eq!(found.unwrap().unwrap(), expected);
    }
    db.close().unwrap();
    let report = Db::verify_store(&env, "db", &options(1.1), &mut |_, _| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

/// Each value that a cursor yields counts as a hit or as a read. Each value read ahead is yielded,
/// or counts as read in vain.
#[test]
fn reads_of_values_are_counted() {
    let env = test_env(8 << 20);
    let db = Db::open(&env, "db", options(10.0)).unwrap();
    put(&db, 0..200, 0, LEN);
    db.flush().unwrap();
    let reads = || db.stats().blob_reads;
    get(&db, 0..20, 0, LEN);
    get(&db, 0..20, 0, LEN);
    let counted = reads();
    assert_eq!((counted.hits, counted.reads, counted.ahead), (20, 20, 0));
    assert!((20 * LEN as u64..20 * LEN as u64 + 2000).contains(&counted.bytes));
    let f = db.default_family();
    let none = ReadOptions {
        fill_cache: false,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&f, &none).unwrap();
    iter.seek(&50u64.to_be_bytes()).unwrap();
    let mut shown = 0;
    while iter.valid() {
        assert_eq!(iter.value(), value(50 + shown, 0, LEN));
        shown += 1;
        iter.next().unwrap();
    }
    let whole = reads();
    assert_eq!((shown, whole.reads - counted.reads), (150, 150));
    assert!(whole.ahead > 100 && whole.ahead_unused == 0, "{whole:?}");
    // One cursor turns, one seeks, and one is dropped.
    for end in 0..3 {
        let before = reads();
        iter.seek(&60u64.to_be_bytes()).unwrap();
        let mut shown = 1;
        for _ in 0..5 {
            iter.next().unwrap();
            shown += 1;
        }
        match end {
            0 => iter.prev().unwrap(),
            1 => iter.seek(&0u64.to_be_bytes()).unwrap(),
            _ => iter = db.iter(&f, &none).unwrap(),
        }
        let after = reads();
        // The entry to which the cursor turns back is read once more. The one that is sought is in
        // the cache.
        let again = u64::from(end == 0);
        let unused = after.ahead_unused - before.ahead_unused;
        assert!(unused > 0, "{end}: {after:?}");
        assert_eq!(after.reads - before.reads, shown + again + unused, "{end}");
    }
    drop(iter);
    let text = env.metrics().prometheus();
    let now = reads();
    for (name, n) in [
        ("blob_value_reads_total", now.reads),
        ("blob_read_ahead_unused_total", now.ahead_unused),
    ] {
        assert!(
            text.contains(&format!("basalt_{name} {n}\n")),
            "{name} in\n{text}"
        );
    }
    db.close().unwrap();
}
