//! An edit of the manifest that failed. Its bytes may be on the device or not, and the store relies
//! on neither.

use super::prelude::*;
use crate::options::WriteOptions;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
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
