//! The record of blob files in a store: retired file numbers, while a job runs that may still write
//! a reference to one of them; and the garbage of files, across opens.

use super::prelude::*;
use crate::db::tests::blobs::{FREE, check, test_env};
use crate::db::tree::blob_edits::BlobChange;
use crate::version::edit::Edit;
use basalt_blob::garbage::Dead;

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

/// Overwrites most values, and runs garbage collection.
fn round(db: &Db, n: u64) {
    let f = db.default_family();
    for key in 0..40u64 {
        if n == 0 || key % 4 != n % 4 {
            let mut value = format!("{key}/{n}/").into_bytes();
            value.resize(300, n as u8);
            db.put(&f, &key.to_be_bytes(), &value, &FREE).unwrap();
        }
    }
    db.flush().unwrap();
    db.compact_range(&f, None, None).unwrap();
    db.wait_idle().unwrap();
}

/// Rewrites every table twice, so that each entry gets the number of the file that has its value.
fn rewrite(db: &Db) {
    let all = CompactOptions {
        bottommost: Bottommost::Force,
        ..CompactOptions::default()
    };
    let f = db.default_family();
    db.compact(&f, &all).unwrap();
    db.compact(&f, &all).unwrap();
}

/// Regression test: a compaction had read an entry whose value a garbage collection then moved. The
/// last table with the old number was removed, and the retired number was dropped. The compaction
/// wrote a table that refers to it, and its values could not be found.
#[test]
fn a_retired_number_is_kept_while_a_job_may_write_it() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    round(&db, 0);
    // The job itself is not needed: the store only has to know that one began before the
    // garbage collections.
    let epoch = db.engine().tree.lock().blobs.begin();
    for n in 1..6 {
        round(&db, n);
    }
    let made = db.stats().blobs.names_made;
    assert!(made > 0, "nothing was collected");
    rewrite(&db);
    let stats = db.stats().blobs;
    assert_eq!(stats.names, made, "a number was forgotten under the job");
    db.engine().tree.lock().blobs.end(epoch);
    // Any edit drops the retired numbers that are not needed.
    round(&db, 6);
    rewrite(&db);
    assert_eq!(db.stats().blobs.names, 0);
    db.close().unwrap();
    check(&env, &options());
}

/// Regression test: the fresh manifest that an open writes did not have the garbage of blob files.
/// The next open took all records for live, and their space never came back.
#[test]
fn each_fresh_manifest_has_the_garbage_marks() {
    let (env, _) = test_env();
    let mut db = Db::open(&env, "db", options()).unwrap();
    round(&db, 0);
    let f = db.default_family();
    for key in 0..3u64 {
        db.put(&f, &key.to_be_bytes(), &[7; 300], &FREE).unwrap();
    }
    db.flush().unwrap();
    db.compact_range(&f, None, None).unwrap();
    let records = |db: &Db| -> u64 { db.blob_files().iter().map(|b| b.meta.records).sum() };
    let all = records(&db);
    assert!(all > 40, "the garbage was collected: {all} records");
    for opening in 0..4 {
        assert_eq!(records(&db), all);
        assert_eq!(db.stats().blobs.live_records, 40, "opening {opening}");
        db.close().unwrap();
        db = Db::open(&env, "db", options()).unwrap();
    }
}

/// Regression test: a compaction had looked up the place of a dropped record, and a garbage
/// collection then moved the record. The mark went to the file that was gone, and the compaction
/// failed as if the store were damaged.
#[test]
fn a_record_moved_during_a_job_is_marked_at_its_new_place() {
    let (env, _) = test_env();
    let db = Db::open(&env, "db", options()).unwrap();
    round(&db, 0);
    let engine = db.engine();
    let (file, epoch, dead) = {
        let mut state = engine.tree.lock();
        let mut blobs = state.catalog().blobs.iter();
        let (file, blob) = blobs.next().expect("values are separated");
        assert!(blob.meta.records == 40 && !blob.garbage.has(39));
        let dead = Dead {
            file: *file,
            ordinal: 39,
            family: 0,
            bytes: 1,
            hash: 1,
        };
        (*file, state.blobs.begin(), dead)
    };
    let f = db.default_family();
    for n in 1..6u8 {
        for key in 0..30u64 {
            db.put(&f, &key.to_be_bytes(), &[n; 300], &FREE).unwrap();
        }
        db.flush().unwrap();
        db.compact_range(&f, None, None).unwrap();
        db.wait_idle().unwrap();
    }
    let there = |number: u64| engine.tree.lock().catalog().blobs.contains_key(&number);
    assert!(!there(file), "the file was not collected");
    let change = BlobChange {
        dead: vec![dead],
        gc: None,
    };
    // The test does not install the edit: the store stays as it is.
    let mut edit = Edit::default();
    engine.tree.add_blob_edits(&mut edit, change).unwrap();
    assert_eq!(edit.mark_blobs.len(), 1);
    assert!(there(edit.mark_blobs[0].0));
    engine.tree.lock().blobs.end(epoch);
    drop(f);
    db.close().unwrap();
    check(&env, &options());
}
