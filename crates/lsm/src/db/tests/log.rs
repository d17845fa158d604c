//! Logs of unsynced writes: their cost, what a power cut takes of them, and how a loss differs from
//! damage.

use super::prelude::*;
use crate::options::{ReadOptions, WriteOptions};
use basalt_fs::FileSystem;
use basalt_kv::key::SEQ_LIMIT;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
use std::path::Path;

const KEYS: u32 = 300;

fn small() -> Options {
    Options {
        write_buffer_bytes: 64 << 10,
        ..Options::default()
    }
}

fn put(db: &Db, n: u32, options: &WriteOptions) {
    db.put(
        &db.default_family(),
        &n.to_be_bytes(),
        &[n as u8; 400],
        options,
    )
    .unwrap();
}

/// Returns how many of the keys from 0 on are there. No key may be there behind the first that is
/// not.
fn prefix(db: &Db) -> u32 {
    let there = |n: u32| {
        let found = db.get(
            &db.default_family(),
            &n.to_be_bytes(),
            &ReadOptions::default(),
        );
        found.unwrap().is_some()
    };
    let len = (0..KEYS).take_while(|n| there(*n)).count() as u32;
    assert!((len..KEYS).all(|n| !there(n)), "a hole at {len}");
    len
}

/// Several sealed memtable sets whose flush cannot begin, and so several logs, none of them synced.
fn sealed(sim: &Arc<SimFs>) -> (Arc<FaultFs>, Env, Db) {
    let faults = FaultFs::new(sim.clone(), 1);
    let env = Env::for_tests(faults.clone(), 1);
    let db = Db::open(&env, "db", small()).unwrap();
    faults.inject(Fault {
        op: Some(OpKind::Create),
        path: ".tbl".into(),
        when: When::From(1),
        kind: FaultKind::Enospc,
    });
    (0..KEYS).for_each(|n| put(&db, n, &WriteOptions::UNSYNCED));
    (faults, env, db)
}

fn logs(db: &Db) -> Vec<crate::version::catalog::LiveLog> {
    let state = db.engine().tree.lock();
    state.catalog().logs.values().copied().collect()
}

#[test]
fn unsynced_writes_sync_no_log_and_write_no_space_ahead() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim.clone(), 1);
    let db = Db::open(&env, "db", small()).unwrap();
    for n in 0..3000 {
        put(&db, n, &WriteOptions::UNSYNCED);
        while env.jobs().step() {}
    }
    let stats = db.stats();
    assert!(
        stats.flush_bytes_written > 0 && stats.log_syncs == 0,
        "{stats:?}"
    );
    assert!(db.engine().writes.logs().recycled().is_empty());
    // Each log begins with a little prewritten space.
    let ahead = sim.stats().bytes_prewritten;
    assert!(ahead <= stats.wal_bytes_written, "{ahead} bytes");
    // With synced writes, space is prewritten, and soon recycled.
    let synced = |from: u32| {
        for n in from..from + 1000 {
            put(&db, n, &WriteOptions::SYNC);
            while env.jobs().step() {}
        }
        (sim.stats().bytes_prewritten, db.stats().wal_bytes_written)
    };
    let (ahead, log) = synced(0);
    assert!(db.stats().log_syncs >= 1000);
    let (later, more) = synced(1000);
    assert!(
        later - ahead < (more - log) / 4,
        "{} of {}",
        later - ahead,
        more - log
    );
}

#[test]
fn the_first_sync_also_syncs_all_earlier_logs() {
    let sim = SimFs::new(SimOptions::default());
    let (_, _, db) = sealed(&sim);
    let before = logs(&db);
    assert!(
        before.iter().filter(|l| l.left.is_some()).count() >= 2,
        "{before:?}"
    );
    assert!(before.iter().all(|l| l.end.is_none()), "{before:?}");
    db.sync().unwrap();
    let after = logs(&db);
    assert!(
        after.iter().all(|l| l.end == l.left),
        "all but the log in use have ended, and it was not left: {after:?}"
    );
    let disk = sim.crash(CrashPolicy::NothingUnsynced, 1);
    let db = Db::open(&Env::for_tests(disk, 2), "db", small()).unwrap();
    assert_eq!(prefix(&db), KEYS);
}

/// Regression test: a synced write was acknowledged after a sync of its own log alone. The power
/// cut that followed took older writes in earlier logs, and left the synced one.
#[test]
fn a_synced_write_also_syncs_all_earlier_logs() {
    let sim = SimFs::new(SimOptions::default());
    let (_, _, db) = sealed(&sim);
    let before = logs(&db);
    let left = before.iter().filter(|l| l.left.is_some());
    assert!(left.count() >= 2, "{before:?}");
    put(&db, KEYS, &WriteOptions::SYNC);
    let after = logs(&db);
    assert!(
        after.iter().all(|l| l.end == l.left),
        "every log but the one in use has ended: {after:?}"
    );
    let disk = sim.crash(CrashPolicy::NothingUnsynced, 1);
    let db = Db::open(&Env::for_tests(disk, 2), "db", small()).unwrap();
    assert_eq!(prefix(&db), KEYS);
    let last = KEYS.to_be_bytes();
    let found = db.get(&db.default_family(), &last, &ReadOptions::default());
    assert!(found.unwrap().is_some(), "the synced write is gone");
}

#[test]
fn a_power_cut_leaves_a_prefix_of_writes_over_several_unsynced_logs() {
    let mut lens = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let sim = SimFs::new(SimOptions::default());
        let (_, _, db) = sealed(&sim);
        let policy = [
            CrashPolicy::NothingUnsynced,
            CrashPolicy::Prefix,
            CrashPolicy::Suffix,
            CrashPolicy::AnySubset,
        ][seed as usize % 4];
        let disk = sim.crash(policy, seed);
        let env = Env::for_tests(disk, 2 + seed);
        let report = Db::verify_store(&env, "db", &small(), &mut |_, _| {}).unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
        let opened = Db::open(&env, "db", small()).unwrap();
        lens.insert(prefix(&opened));
        opened.close().unwrap();
        drop(db);
    }
    assert!(lens.len() > 3, "{lens:?}");
    // A killed process loses no write.
    let sim = SimFs::new(SimOptions::default());
    let (_, _, db) = sealed(&sim);
    let db2 = Db::open(&Env::for_tests(sim.kill(), 2), "db", small()).unwrap();
    assert_eq!(prefix(&db2), KEYS);
    drop(db);
}

/// Repair cuts the logs where recovery cuts them.
#[test]
fn repair_keeps_the_same_prefix_as_recovery() {
    for seed in 0..10 {
        let sim = SimFs::new(SimOptions::default());
        let (_, _, db) = sealed(&sim);
        let opened = Db::open(
            &Env::for_tests(sim.crash(CrashPolicy::Prefix, seed), 2),
            "db",
            small(),
        )
        .unwrap();
        let repaired = Env::for_tests(sim.crash(CrashPolicy::Prefix, seed), 3);
        let report = Db::repair(&repaired, "db", &small(), &mut |_, _| {}).unwrap();
        assert!(report.losses.is_empty(), "{report:?}");
        let found = Db::open(&repaired, "db", small()).unwrap();
        assert_eq!(prefix(&found), prefix(&opened), "seed {seed}");
        drop(db);
    }
}

/// The manifest says that a log was left unsynced, and a later log proves a sync. The edit between
/// them, which would say that the first log had ended, is missing. The missing records of the first
/// log are damage, not a torn tail.
#[test]
fn a_hole_before_a_synced_log_is_damage() {
    let sim = SimFs::new(SimOptions::default());
    let (_, env, db) = sealed(&sim);
    let first = *db
        .engine()
        .tree
        .lock()
        .catalog()
        .logs
        .keys()
        .next()
        .unwrap();
    let live = db.engine().tree.lock().catalog().clone();
    // The test syncs the logs without an edit of the manifest.
    {
        let mut writer = db.engine().writes.lock();
        writer.log.as_mut().unwrap().writer.sync().unwrap();
    }
    put(&db, 7, &WriteOptions::UNSYNCED);
    db.abandon();
    let path = crate::db::write_path::log_space::log_path(Path::new("db"), first);
    let end = live.logs[&first].left.unwrap();
    sim.flip_bit(&path, end - 200, 3).unwrap();
    let e = Db::open(&Env::for_tests(sim, 2), "db", small())
        .err()
        .unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(
        e.to_string().contains("this log had been synced") && e.path() == Some(&path),
        "{e}"
    );
    drop(env);
}

#[test]
fn a_log_much_larger_than_its_memtables_is_flushed() {
    // Each synced put takes a whole write unit of the log, and a hundredth of that in memory.
    let sim = SimFs::new(SimOptions {
        write_unit: 4096,
        ..SimOptions::default()
    });
    let env = Env::for_tests(sim, 1);
    let db = Db::open(&env, "db", small()).unwrap();
    let (mut put, limit) = (0u64, (64u64 << 10) * 2);
    while db.stats().flush_bytes_written == 0 {
        let key = put.to_be_bytes();
        db.put(&db.default_family(), &key, b"v", &WriteOptions::SYNC)
            .unwrap();
        put += 1;
        assert!(put * 4096 <= 2 * limit, "{:?}", db.stats());
        while env.jobs().step() {}
    }
    assert!(put * 4096 >= limit / 2, "after {put} puts");
    assert_eq!(logs(&db).len(), 1, "the one that is written to");
    db.close().unwrap();
}

/// Regression test: a flush removed its log before the names of the new tables were durable. After
/// the power cut the manifest named tables that did not exist, and the log was gone, too.
#[test]
fn table_names_are_durable_before_the_log_is_removed() {
    let sim = SimFs::new(SimOptions::default());
    let db = Db::open(&Env::for_tests(sim.clone(), 1), "db", small()).unwrap();
    (0..KEYS).for_each(|n| put(&db, n, &WriteOptions::UNSYNCED));
    db.flush().unwrap();
    for seed in 0..8 {
        let disk = sim.crash(CrashPolicy::NothingUnsynced, seed);
        let opened = Db::open(&Env::for_tests(disk, 2), "db", small()).unwrap();
        assert_eq!(prefix(&opened), KEYS);
    }
}

/// Regression test: a log was removed while a checkpoint copied it, and a later log took its space.
/// The copy had records of both.
#[test]
fn a_log_that_is_being_copied_is_not_recycled() {
    for copied in [false, true] {
        let sim = SimFs::new(SimOptions::default());
        let db = Db::open(&Env::for_tests(sim, 1), "db", small()).unwrap();
        let engine = db.engine();
        put(&db, 0, &WriteOptions::SYNC);
        let live: Vec<u64> = engine.tree.lock().catalog().logs.keys().copied().collect();
        let pin = copied.then(|| engine.writes.logs().pin(live));
        db.flush().unwrap();
        assert_eq!(engine.writes.logs().recycled().is_empty(), copied);
        drop(pin);
        put(&db, 1, &WriteOptions::SYNC);
        db.flush().unwrap();
        assert!(
            !engine.writes.logs().recycled().is_empty(),
            "no checkpoint links this log"
        );
    }
}

/// A manifest could name the largest sequence number but one. Such a store opened, and the second
/// write panicked with the number that does not exist.
#[test]
fn a_store_without_sequence_numbers_refuses_writes() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", small()).unwrap();
    put(&db, 0, &WriteOptions::SYNC);
    db.engine().writes.lock().next_seq = SEQ_LIMIT - 2;
    put(&db, 1, &WriteOptions::SYNC);
    let refused = |db: &Db, operations: u32| {
        let mut batch = WriteBatch::new();
        let f = db.default_family();
        for n in 0..operations {
            batch.put(&f, &(100 + n).to_be_bytes(), b"value").unwrap();
        }
        let e = db.write(batch, &WriteOptions::SYNC).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    };
    refused(&db, 2);
    put(&db, 2, &WriteOptions::SYNC);
    refused(&db, 1);
    let e = db.prepare(&db.default_family()).expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert_eq!(prefix(&db), 3);
    // The next open finds the numbers in the log. A close writes them to the manifest.
    db.abandon();
    for _ in 0..2 {
        let db = Db::open(&env, "db", small()).unwrap();
        assert_eq!(prefix(&db), 3);
        refused(&db, 1);
        db.close().unwrap();
    }
}
