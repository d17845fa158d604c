//! A family that is dropped while a garbage collection rewrites its blob files.

use super::prelude::*;
use crate::db::blob_state::MovedRecords;
use crate::db::tests::blobs::{FREE, check, expect};
use crate::db::tree::blob_edits::{BlobChange, GcChange};
use crate::version::edit::Edit;
use basalt_blob::lineage::ReplacedFiles;
use basalt_env::sync::Mutex;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{FaultFs, OpKind, SimFs, SimOptions, When};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Separates values from 100 bytes on, and keeps none of them in a log.
pub(super) fn separating() -> FamilyOptions {
    FamilyOptions {
        min_blob_size: Some(100),
        ..FamilyOptions::default()
    }
}

pub(super) fn options() -> Options {
    Options {
        default_family: separating(),
        ..Options::default()
    }
}

pub(super) fn key(n: u64) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

pub(super) fn value(n: u64, version: u64) -> Vec<u8> {
    let mut v = format!("{n}/{version}/").into_bytes();
    v.resize(300, (n ^ version) as u8);
    v
}

pub(super) fn put_all(db: &Db, f: &Family, keys: impl Iterator<Item = u64>, version: u64) {
    for n in keys {
        db.put(f, &key(n), &value(n, version), &FREE).unwrap();
    }
    db.flush().unwrap();
}

type Action = Box<dyn FnOnce() + Send>;

/// A disk that runs an action once, on the thread and at the time of a call that a latency rule
/// matches.
fn acting_disk() -> (Arc<FaultFs>, Arc<Mutex<Option<Action>>>) {
    let action: Arc<Mutex<Option<Action>>> = Arc::default();
    let taken = action.clone();
    let act = move |_: Duration| {
        let action = taken.lock().take();
        if let Some(action) = action {
            action();
        }
    };
    let disk = SimFs::new(SimOptions::default());
    (FaultFs::with_sleep(disk, 1, Box::new(act)), action)
}

/// Regression test: a garbage collection has read the live values of a family's only blob file and
/// is about to rewrite them. A merge then drops references to some of the records, and the family
/// itself is dropped. The targets of the garbage collection hold nothing else, so its edit leaves
/// them out. The marks of the merge were looked up in these missing files: a false corruption,
/// which stopped garbage collection.
#[test]
fn dropping_a_family_during_its_collection_is_not_damage() {
    let (faulty, action) = acting_disk();
    let env = Env::for_tests(faulty.clone(), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    let passing = db.create_family("passing", separating()).unwrap();
    let stays = db.default_family();
    put_all(&db, &stays, 0..10, 0);
    put_all(&db, &passing, 0..40, 0);
    put_all(&db, &passing, 0..25, 1);
    let (other, family) = (db.clone(), passing.clone());
    let dropped: Arc<Mutex<bool>> = Arc::default();
    let was_dropped = dropped.clone();
    let when_collecting: Action = Box::new(move || {
        assert_eq!(other.engine().tree.lock().blobs.running_gcs, 1);
        let marked = |db: &Db| -> u64 {
            let state = db.engine().tree.lock();
            let all = state.catalog().blobs.values();
            all.map(|b| b.garbage.records()).sum()
        };
        let before = marked(&other);
        for n in 30..35 {
            other.delete(&family, &key(n), &FREE).unwrap();
        }
        other.compact_range(&family, None, None).unwrap();
        assert!(marked(&other) > before, "the merge marked records");
        other.drop_family(&family).unwrap();
        *was_dropped.lock() = true;
    });
    // The first new blob file from here on is the garbage collection's: the merge makes none.
    *action.lock() = Some(when_collecting);
    faulty.inject(Fault {
        op: Some(OpKind::Create),
        path: ".blob".into(),
        when: When::Nth(1),
        kind: FaultKind::Latency(Duration::from_secs(1)),
    });
    db.compact_range(&passing, None, None).unwrap();
    db.wait_idle().unwrap();
    assert!(*dropped.lock(), "a garbage collection wrote");
    let stats = db.stats().blobs;
    assert!(stats.error.is_none(), "{:?}", stats.error);
    assert_eq!((stats.collections, stats.files), (1, 1), "{stats:?}");
    let all = (0..10).map(|n| (key(n), value(n, 0))).collect();
    expect(&db, &stays, &ReadOptions::default(), &all);
    // Garbage collection continues.
    put_all(&db, &stays, 0..8, 1);
    db.compact_range(&stays, None, None).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().blobs.collections, 2);
    let all = (0..10).map(|n| (key(n), value(n, u64::from(n < 8))));
    expect(&db, &stays, &ReadOptions::default(), &all.collect());
    db.close().unwrap();
    check(&env, &options());
}

/// An install that removed a blob file without a live record did not know of a garbage collection
/// of the file that had just begun. The collection then ended as damage of a store that was sound.
#[test]
fn a_source_that_is_gone_ends_its_garbage_collection_and_is_no_damage() {
    let fs = SimFs::new(SimOptions::default());
    let db = Db::open(&Env::for_tests(fs, 1), "db", options()).unwrap();
    put_all(&db, &db.default_family(), 0..20, 1);
    let change = BlobChange {
        dead: Vec::new(),
        gc: Some(GcChange {
            done: ReplacedFiles {
                sources: vec![12_345],
                targets: BTreeMap::new(),
            },
            moved: MovedRecords::default(),
            marked: BTreeMap::new(),
            orders: BTreeMap::new(),
        }),
    };
    let installed = (db.engine().tree).install_with(Edit::default(), Vec::new(), change, |_, _| ());
    let e = installed.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}");
    put_all(&db, &db.default_family(), 0..20, 2);
    assert!(db.stats().read_only.is_none());
    db.close().unwrap();
}
