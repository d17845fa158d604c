//! The engine on a simulated disk: what must hold when one call fails and the power goes at the worst moment after.

use super::*;
use crate::options::WriteOptions;
use basalt_fs::fault::{Fault, FaultFs, FaultKind};
use basalt_fs::sim::{CrashPolicy, SimFs, SimOptions};
use basalt_fs::{FileSystem, OpKind, When};
use std::collections::BTreeMap;
use std::time::Duration;

fn small() -> Options {
    Options {
        write_buffer_bytes: 8 << 10,
        ..Options::default()
    }
}

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(&db.default_family(), key, &ReadOptions::default())
        .unwrap()
        .map(|v| v.to_vec())
}

/// Every k-th call of a history fails once, as each kind of error; writes go on, and whenever one is acknowledged the
/// power may go. A change of the tree that failed, and may be on the device or not, must never take an acknowledged write along.
#[test]
fn a_failed_call_and_then_a_power_cut_lose_nothing_acknowledged() {
    let mut fired = 0;
    for op in [
        OpKind::Append,
        OpKind::SyncData,
        OpKind::SyncAll,
        OpKind::SyncMetadata,
        OpKind::Rename,
        OpKind::Create,
        OpKind::CreateLog,
    ] {
        for kind in [
            FaultKind::Eio,
            FaultKind::Enospc,
            FaultKind::ShortWrite,
            FaultKind::FailedSync,
        ] {
            if !kind.applies_to(op) {
                continue;
            }
            for nth in 1.. {
                if !one_fault(op, kind, nth) {
                    break;
                }
                fired += 1;
            }
        }
    }
    // Past the test runner's capture: the count is part of what a passing run says.
    let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("faults_fired={fired}\n"));
    assert!(fired > 300, "only {fired} faults fired");
}

/// One history with one fault; false when the history is too short for it to fire.
fn one_fault(op: OpKind, kind: FaultKind, nth: u64) -> bool {
    let repeat = format!("one_fault(OpKind::{op:?}, FaultKind::{kind:?}, {nth})");
    let sim = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(sim.clone(), nth);
    let env = Env::for_tests(faults.clone(), nth);
    let clock = env.clock().as_manual().expect("tests own time").clone();
    let db = Db::open(&env, "db", small()).unwrap();
    let mut other = db.create_family("other", FamilyOptions::default()).ok();
    let rule = faults.inject(Fault {
        op: Some(op),
        path: String::new(),
        when: When::Nth(nth),
        kind,
    });
    // What each key must hold after a crash: the acknowledged value, or any later one that failed.
    let mut may: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> = BTreeMap::new();
    let mut failures_in_a_row = 0;
    for i in 0..160u64 {
        clock.advance(Duration::from_millis(60));
        let key = format!("key{:02}", i * 7 % 40).into_bytes();
        let value = format!("{i}:{}", "x".repeat((i * 37 % 400) as usize)).into_bytes();
        let mut batch = WriteBatch::new();
        batch.put(&db.default_family(), &key, &value).unwrap();
        match db.write(batch, &WriteOptions::SYNC) {
            Ok(_) => {
                failures_in_a_row = 0;
                may.insert(key.clone(), vec![Some(value.clone())]);
                assert_eq!(get(&db, &key).as_ref(), Some(&value), "{repeat}");
            }
            Err(_) => {
                failures_in_a_row += 1;
                may.entry(key)
                    .or_insert_with(|| vec![None])
                    .push(Some(value));
            }
        }
        assert!(
            failures_in_a_row < 8,
            "writes do not resume after one fault: {:?}; {repeat}",
            db.stats().read_only
        );
        if i % 5 == 0 {
            env.jobs().step();
        }
        if i == 60 {
            other = other.filter(|f| db.drop_family(f).is_err());
        }
        if i == 100 {
            let _ = db.create_family("third", FamilyOptions::default());
        }
        if i % 53 == 52 || faults.seen(rule) == nth {
            for (n, policy) in [
                CrashPolicy::AnySubset,
                CrashPolicy::NothingUnsynced,
                CrashPolicy::EverythingUnsynced,
            ]
            .into_iter()
            .enumerate()
            {
                check_crash(&sim.crash(policy, i * 3 + n as u64), &may, &repeat);
            }
        }
    }
    let fired = faults.fired().values().sum::<u64>() > 0;
    if db.close().is_ok() {
        check_crash(&sim.crash(CrashPolicy::NothingUnsynced, 1), &may, &repeat);
    }
    env.jobs().cancel(0);
    fired
}

fn check_crash(
    disk: &std::sync::Arc<SimFs>,
    may: &BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
    repeat: &str,
) {
    let env = Env::for_tests(disk.clone(), 9);
    let db = Db::open(&env, "db", small()).unwrap_or_else(|e| panic!("{e}; {repeat}"));
    for (key, values) in may {
        let found = get(&db, key);
        assert!(
            values.contains(&found),
            "{:?} holds {found:?}, expected one of {values:?}; {repeat}",
            String::from_utf8_lossy(key)
        );
    }
    db.abandon();
}

/// The device is full, then is not: writes fail with a clear error, reads go on, writes resume by themselves.
#[test]
fn a_full_disk_is_a_state_and_passes() {
    let sim = SimFs::new(SimOptions {
        capacity: 256 << 10,
        ..SimOptions::default()
    });
    let env = Env::for_tests(sim.clone(), 1);
    let clock = env.clock().as_manual().expect("tests own time").clone();
    let ballast = sim.create(Path::new("ballast")).unwrap();
    ballast
        .append(
            &[std::io::IoSlice::new(&[1u8; 100 << 10])],
            basalt_fs::Intent::Lazy,
        )
        .unwrap();
    let db = Db::open(&env, "db", small()).unwrap();
    let f = db.default_family();
    let mut acknowledged = 0u32;
    let full = loop {
        let key = format!("key{acknowledged:05}");
        match db.put(&f, key.as_bytes(), &[7; 900], &WriteOptions::SYNC) {
            Ok(_) => acknowledged += 1,
            Err(e) => break e,
        }
        assert!(acknowledged < 10_000, "a disk of 256 KiB never fills");
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(full.retryable(), "{full}");
    for i in 0..acknowledged {
        assert_eq!(
            get(&db, format!("key{i:05}").as_bytes()).unwrap(),
            [7; 900],
            "reads go on"
        );
    }
    assert!(db.stats().read_only.is_some());
    drop(ballast);
    sim.remove(Path::new("ballast")).unwrap();
    sim.sync_metadata(Path::new("")).unwrap();
    let mut tries = 0;
    while let Err(e) = db.put(&f, b"after", b"space returned", &WriteOptions::SYNC) {
        clock.advance(Duration::from_millis(200));
        tries += 1;
        assert!(tries < 5, "space is back and writes still fail: {e}");
    }
    db.close().unwrap();
    let db = Db::open(&env, "db", small()).unwrap();
    assert_eq!(get(&db, b"after").unwrap(), b"space returned");
    for i in 0..acknowledged {
        assert_eq!(get(&db, format!("key{i:05}").as_bytes()).unwrap(), [7; 900]);
    }
}
