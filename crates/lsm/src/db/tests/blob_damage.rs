//! Merges that drop references into a blob file whose index cannot be read.

use super::prelude::*;
use crate::db::tests::blobs::{FREE, check, expect};
use crate::db::tests::gc_drop::{key, options, put_all, value};
use crate::db::tests::listener::Errors;
use basalt_sim::{SimFs, SimOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Regression test: one page of one blob file's index cannot be read. Every merge that dropped a
/// reference into that file failed, the level above it grew, and in the end writers were held back.
/// The records have their own places, so the merge goes on and reports the unreadable index.
#[test]
fn a_merge_drops_references_despite_a_damaged_index_page() {
    for kind in ["blob", "log", "log with more"] {
        for page in ["hashes", "places", "directory"] {
            merge_with_a_bad_page(kind, page);
        }
    }
}

/// A log that has only large values is kept as a blob file. From a log of mostly small values the
/// flush writes the large ones into a blob file of their own. The index of a log leaves out records
/// whose values were overwritten before the flush. In such a file, a page must say which records
/// count.
fn merge_with_a_bad_page(kind: &str, page: &str) {
    let at = format!("{page} of a {kind}");
    let is_log = kind.starts_with("log");
    let len = if is_log { 20_000 } else { 120 };
    let value = |n: u64, version: u64| {
        let mut v = value(n, version);
        v.resize(len, 7);
        v
    };
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let errors = Arc::new(Errors::default());
    let options = Options {
        listeners: vec![errors.clone()],
        ..options()
    };
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let mut all = BTreeMap::new();
    if kind == "blob" {
        let smalls = (0..40).flat_map(|n| (0..3).map(move |i| format!("small{n:05}/{i}")));
        all.extend(smalls.map(|key| (key.into_bytes(), vec![1; 90])));
    }
    if kind == "log with more" {
        for n in 3..9 {
            // Short values fit into the log's first block, which is kept.
            let short = crate::db::tests::gc_drop::value(n, 8);
            db.put(&f, &key(n), &short, &FREE).unwrap();
        }
    }
    for n in 0..40 {
        db.put(&f, &key(n), &value(n, 0), &FREE).unwrap();
        all.insert(key(n), value(n, 0));
        if kind == "blob" {
            small(&db, n);
        }
    }
    db.flush().unwrap();
    let files = db.engine().tree.view().version.blobs.files.clone();
    let (_, file) = files.first_key_value().unwrap();
    assert_eq!((file.meta.index.is_some(), files.len()), (is_log, 1));
    let layout = file.reader().unwrap().layout();
    let bad = match page {
        "hashes" => layout.pages_at,
        "places" => layout.pages_at + layout.hash_bytes,
        _ => layout.directory_at,
    };
    let path = file.paths().pop().unwrap();
    let number = file.number;
    drop(files);
    db.close().unwrap();
    disk.flip_bit(&path, bad + 2, 3).unwrap();
    let env = Env::for_tests(disk.clone(), 2);
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    for n in (0..40).step_by(7) {
        db.delete(&f, &key(n), &FREE).unwrap();
        all.remove(&key(n));
    }
    let merged = db.compact_range(&f, None, None);
    if (kind, page) == ("log with more", "directory") {
        let e = merged.unwrap_err();
        assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*path)));
        db.close().unwrap();
        return;
    }
    merged.unwrap_or_else(|e| panic!("{at}: {e}"));
    db.wait_for_listeners();
    let reported = errors.0.lock().clone();
    assert_eq!(reported.len(), 1, "{at}: {reported:?}");
    assert_eq!(reported[0].path(), Some(&*path), "{at}: {}", reported[0]);
    assert!(
        reported[0].to_string().contains("derived"),
        "{at}: {}",
        reported[0]
    );
    let marked: Vec<u32> = {
        let state = db.engine().tree.lock();
        let runs = state.catalog().blobs[&number].garbage.runs();
        runs.into_iter().flatten().collect()
    };
    assert_eq!(marked, [0, 7, 14, 21, 28, 35], "{at}");
    db.close().unwrap();
    // The damage is still reported. The marks are the same as with an intact index.
    let report = Db::verify_store(&env, "db", &options, &mut |_, _| ()).unwrap();
    assert!(!report.damage.is_empty(), "{at}");
    let found = |e: &Error| e.path() == Some(&path);
    assert!(report.damage.iter().all(found), "{at}: {:?}", report.damage);
    disk.flip_bit(&path, bad + 2, 3).unwrap();
    let env = Env::for_tests(disk, 3);
    check(&env, &options);
    let db = Db::open(&env, "db", options.clone()).unwrap();
    expect(&db, &db.default_family(), &ReadOptions::default(), &all);
    // A garbage collection adds up all hashes and compares the sum with the file's.
    for n in 0..30 {
        db.put(&db.default_family(), &key(n), &value(n, 1), &FREE)
            .unwrap();
        all.insert(key(n), value(n, 1));
    }
    db.compact_range(&db.default_family(), None, None).unwrap();
    db.wait_idle().unwrap();
    assert!(db.stats().blobs.collections > 0, "{at}");
    expect(&db, &db.default_family(), &ReadOptions::default(), &all);
    db.close().unwrap();
    check(&env, &options);
}

/// Entries beside key `n` whose values stay in the tree.
fn small(db: &Db, n: u64) {
    for i in 0..3 {
        let key = format!("small{n:05}/{i}").into_bytes();
        db.put(&db.default_family(), &key, &[1; 90], &FREE).unwrap();
    }
}

/// Regression test: a merge read a whole blob file with a bad index page once for every few
/// thousand references that it dropped. It should read the file once.
#[test]
fn a_merge_reads_a_file_with_a_damaged_index_once() {
    const KEYS: u64 = 1600;
    let disk = SimFs::new(SimOptions::default());
    let open = |seed| {
        // All entries fit into one memtable.
        let env = basalt_env::EnvBuilder::for_tests(disk.clone(), seed)
            .memory_bytes(64 << 20)
            .build();
        let db = Db::open(&env, "db", options()).unwrap();
        (env, db)
    };
    // With 13 MB of keys the references are looked up in four batches.
    let long = |n: u64| {
        let mut key = key(n);
        key.resize(8000, 0);
        key
    };
    let (_, db) = open(1);
    let f = db.default_family();
    for n in 0..KEYS {
        db.put(&f, &long(n), &value(n, 0), &FREE).unwrap();
    }
    db.flush().unwrap();
    let files = db.engine().tree.view().version.blobs.files.clone();
    let (number, file) = files.first_key_value().unwrap();
    assert_eq!((files.len(), file.meta.records), (1, KEYS));
    let bad = file.reader().unwrap().layout().pages_at;
    let (number, size, path) = (*number, file.meta.size, file.paths().pop().unwrap());
    drop(files);
    db.close().unwrap();
    disk.flip_bit(&path, bad + 2, 3).unwrap();
    let (env, db) = open(2);
    let f = db.default_family();
    for n in (0..KEYS).filter(|n| n % 100 != 0) {
        db.delete(&f, &long(n), &FREE).unwrap();
    }
    db.flush().unwrap();
    let buffers = env.ledger().usage().buffer;
    let tables: u64 = {
        let state = db.engine().tree.lock();
        let families = state.catalog().families.values();
        let tables = families.flat_map(|f| f.tables.values());
        tables.map(|t| t.meta.size).sum()
    };
    let before = env.fs().stats().bytes_read;
    db.compact_range(&f, None, None).unwrap();
    let read = env.fs().stats().bytes_read - before;
    assert!(
        size > 12 << 20 && read > size,
        "{read} bytes, of a file of {size}"
    );
    let once = tables + size + size / 2;
    assert!(read < once, "{read} bytes, one walk takes less than {once}");
    let garbage = {
        let state = db.engine().tree.lock();
        state.catalog().blobs[&number].garbage.records()
    };
    assert_eq!(garbage, KEYS - KEYS / 100);
    assert_eq!(env.ledger().usage().buffer, buffers, "all is given back");
    db.close().unwrap();
}

/// A record that lost its reference is damaged, and so is the index page with its place. The place
/// cannot be found, so the merge fails with the error of the index and changes nothing.
#[test]
fn a_merge_fails_if_a_dropped_record_cannot_be_located() {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    (0..40).for_each(|n| small(&db, n));
    put_all(&db, &db.default_family(), 0..10, 0);
    let files = db.engine().tree.view().version.blobs.files.clone();
    let (_, file) = files.first_key_value().unwrap();
    let layout = file.reader().unwrap().layout();
    let path = file.path();
    let first = (file.meta.data_end - 64) / 10;
    drop(files);
    db.close().unwrap();
    disk.flip_bit(&path, layout.pages_at + 2, 3).unwrap();
    // The first record is damaged in its half: the header of the file is shorter than that.
    disk.flip_bit(&path, first / 2 + 64, 0).unwrap();
    // The store opens with another cache, which has no page of the index.
    let env = Env::for_tests(disk.clone(), 2);
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    db.delete(&f, &key(0), &FREE).unwrap();
    let e = db.compact_range(&f, None, None).unwrap_err();
    assert!(e.is_corruption(), "{e}");
    assert_eq!(
        (e.path(), e.offset()),
        (Some(&*path), Some(layout.pages_at))
    );
    let read = ReadOptions::default();
    assert_eq!(db.get(&f, &key(0), &read).unwrap(), None);
    let state = db.engine().tree.lock();
    assert_eq!(
        state
            .catalog()
            .blobs
            .values()
            .next()
            .unwrap()
            .garbage
            .records(),
        0
    );
    drop(state);
    db.close().unwrap();
}

/// Regression test: a log has a record that its index leaves out, and a damaged record of the same
/// size, so the records that are found have the count and the bytes in the manifest. The merge used
/// their ranks as ordinals and marked a live record as garbage.
#[test]
fn an_unindexed_record_is_not_taken_for_a_damaged_one() {
    for page in ["hashes", "places", "directory"] {
        merge_in_a_log_with_a_swapped_record(page);
    }
}

fn merge_in_a_log_with_a_swapped_record(page: &str) {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    let large = |n: u64| {
        let mut v = value(n, 0);
        v.resize(20_000, 7);
        v
    };
    // All short values lie in the log's first block, which is kept. The first is damaged below, the
    // second loses its reference, and the third is overwritten before the flush.
    for n in [41, 42, 3] {
        db.put(&f, &key(n), &value(n, 8), &FREE).unwrap();
    }
    for n in 0..40 {
        db.put(&f, &key(n), &large(n), &FREE).unwrap();
    }
    db.flush().unwrap();
    let files = db.engine().tree.view().version.blobs.files.clone();
    let (number, file) = files.first_key_value().unwrap();
    assert_eq!((file.meta.records, file.meta.index.is_some()), (42, true));
    let mut first = None;
    let reader = file.reader().unwrap();
    let mut places = |place: std::ops::Range<u64>| {
        first.get_or_insert(place);
        Ok(())
    };
    reader.places(&mut places).unwrap();
    let damaged = first.expect("the record of key 41").end - 10;
    let layout = reader.layout();
    let bad = match page {
        "hashes" => layout.pages_at,
        "places" => layout.pages_at + layout.hash_bytes,
        _ => layout.directory_at,
    };
    let (number, log, index) = (*number, file.path(), file.paths().pop().unwrap());
    drop(files);
    db.close().unwrap();
    disk.flip_bit(&log, damaged, 0).unwrap();
    disk.flip_bit(&index, bad + 2, 3).unwrap();
    let env = Env::for_tests(disk.clone(), 2);
    let db = Db::open(&env, "db", options()).unwrap();
    let f = db.default_family();
    db.delete(&f, &key(42), &FREE).unwrap();
    let merged = db.compact_range(&f, None, None);
    let marked: Vec<u32> = {
        let state = db.engine().tree.lock();
        let runs = state.catalog().blobs[&number].garbage.runs();
        runs.into_iter().flatten().collect()
    };
    match page {
        "directory" => {
            let e = merged.expect_err("no page says which records count");
            assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*index)));
            assert_eq!(marked, [0; 0]);
        }
        _ => {
            merged.unwrap_or_else(|e| panic!("{page}: {e}"));
            assert_eq!(marked, [1], "{page}");
        }
    }
    db.close().unwrap();
}
