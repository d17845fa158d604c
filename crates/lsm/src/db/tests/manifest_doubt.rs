//! An edit of the manifest that failed. Its bytes may be on the device or not, and the store relies
//! on neither.

use super::prelude::*;
use crate::options::WriteOptions;
use crate::version::edit::Edit;
use crate::version::manifest;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
use std::path::Path;
use std::time::Duration;

/// Regression test: after an edit had failed, later edits went to the same manifest, behind bytes
/// that may be there or not. A record behind a torn one is never read: recovery lost the tables of
/// later flushes, and acknowledged writes with them.
#[test]
fn a_failed_edit_makes_the_next_one_use_a_fresh_manifest() {
    for (op, kind) in [
        (OpKind::Append, FaultKind::Eio),
        (OpKind::Append, FaultKind::Enospc),
        (OpKind::Append, FaultKind::ShortWrite),
        (OpKind::SyncData, FaultKind::FailedSync),
    ] {
        for policy in CrashPolicy::ALL {
            // The edit that fails is the one that ends the log, or the one that adds the table.
            (1..3).for_each(|n| an_edit_fails(n, op, kind, *policy));
        }
    }
}

fn an_edit_fails(nth: u64, op: OpKind, kind: FaultKind, policy: CrashPolicy) {
    let at = format!("{op:?} {nth} {kind:?} {policy:?}");
    let disk = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(disk.clone(), 1);
    let env = Env::for_tests(faults.clone(), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let put = |keys: std::ops::Range<u32>| {
        for n in keys {
            let (f, key) = (db.default_family(), n.to_be_bytes());
            let put = db.put(&f, &key, &[7; 1000], &WriteOptions::SYNC);
            put.unwrap_or_else(|e| panic!("{at}: {e}"));
        }
    };
    let manifest = || db.engine().tree.lock_manifest().number();
    put(0..10);
    let first = manifest();
    faults.inject(Fault {
        op: Some(op),
        path: "MANIFEST".into(),
        when: When::Nth(nth),
        kind,
    });
    let e = db.flush().unwrap_err();
    assert!(faults.fired().contains_key(&(op, kind)), "{at}: {e}");
    // The files that either state names are there, whether the edit is durable or not.
    let expect = |disk: &SimFs, keys: std::ops::Range<u32>, moment: &str| {
        let at = format!("{at}, {moment}");
        let env = Env::for_tests(disk.crash(policy, 3), 2);
        let db = Db::open(&env, "db", Options::default());
        let db = db.unwrap_or_else(|e| panic!("{at}: {e}"));
        for n in keys {
            let family = db.default_family();
            let found = db.get(&family, &n.to_be_bytes(), &ReadOptions::default());
            let found = found.unwrap_or_else(|e| panic!("{at}: {e}"));
            assert!(found.is_some(), "{at}: key {n} is lost");
        }
        db.abandon();
    };
    expect(&disk, 0..10, "right after it");
    // The next write begins a fresh manifest before it is acknowledged.
    env.clock().sleep(Duration::from_secs(1));
    put(10..20);
    assert!(manifest() > first, "{at}");
    expect(&disk, 0..20, "after it resumed");
    db.flush().unwrap();
    put(20..30);
    expect(&disk, 0..30, "after another edit");
    db.close().unwrap();
}

/// If a fresh manifest begins between the choice of a log's number and the edit that names the log,
/// the number does not show that the edit is lost. `CURRENT` vouches for the edit then.
#[test]
fn current_vouches_for_a_log_that_is_older_than_the_manifest() {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let tree = &db.engine().tree;
    let name_log = |number: u64| {
        let edit = Edit {
            add_logs: vec![(number, 7)],
            ..Edit::default()
        };
        tree.install(edit, Vec::new(), |_, _| ()).unwrap();
        let current = manifest::read_current(&env, Path::new("db"));
        let bytes = tree.lock_manifest().bytes();
        (current.unwrap().unwrap().synced, bytes)
    };
    let number = tree.new_file_number();
    tree.lock_manifest().doubt();
    let (vouched, bytes) = name_log(number);
    assert_eq!(vouched, bytes);
    // The number of a log that is made later shows the loss by itself.
    let (vouched, bytes) = name_log(tree.new_file_number());
    assert!(vouched < bytes, "{vouched} of {bytes}");
    db.abandon();
}
