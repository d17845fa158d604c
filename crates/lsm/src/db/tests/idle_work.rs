//! A store without writes repairs itself and gives back memory and space that it does not need.

use super::prelude::*;
use crate::options::WriteOptions;
use basalt_fs::FileSystem;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn fill(db: &Db, keys: std::ops::Range<u32>) {
    for n in keys {
        db.put(
            &db.default_family(),
            &n.to_be_bytes(),
            &[7; 1000],
            &WriteOptions::SYNC,
        )
        .unwrap();
    }
}

fn wait_idle(env: &Env) {
    while env.jobs().step() {}
}

#[test]
fn an_idle_store_releases_its_memtables_and_logs() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim.clone(), 1);
    let options = Options {
        write_buffer_bytes: 256 << 10,
        ..Options::default()
    };
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let logs = || {
        let names = sim.list(Path::new("db")).unwrap();
        names.iter().filter(|e| e.name.ends_with(".log")).count()
    };
    for round in 0..3u32 {
        fill(&db, round * 1000..round * 1000 + 900);
        wait_idle(&env);
        let busy = db.stats();
        assert!(busy.log_bytes > 256 << 10 && busy.memtable_bytes > 0 && logs() > 0);
        // Writes in between delay the work.
        for _ in 0..3 {
            env.clock().sleep(Duration::from_secs(59));
            wait_idle(&env);
            assert!(logs() > 0);
            fill(&db, round * 1000 + 900..round * 1000 + 901);
        }
        for _ in 0..2 {
            env.clock().sleep(Duration::from_secs(60));
            wait_idle(&env);
        }
        let idle = db.stats();
        assert_eq!((idle.log_bytes, logs()), (0, 0), "round {round}");
        assert!(
            db.engine().writes.lock().left.is_empty(),
            "a deleted log that is open keeps its space"
        );
        assert!(
            idle.memtable_bytes < 8 << 10,
            "{} bytes",
            idle.memtable_bytes
        );
        assert_eq!(env.ledger().usage().buffer, 0);
        // No work is left that would be due again and again.
        let edits = db.stats().flush_bytes_written;
        env.clock().sleep(Duration::from_secs(3600));
        wait_idle(&env);
        assert_eq!(db.stats().flush_bytes_written, edits);
    }
    // The store is left as a killed process leaves it.
    db.abandon();
    let env = Env::for_tests(sim, 2);
    let db = Db::open(&env, "db", options).unwrap();
    for n in (0..3u32).flat_map(|r| r * 1000..r * 1000 + 901) {
        let found = db.get(
            &db.default_family(),
            &n.to_be_bytes(),
            &ReadOptions::default(),
        );
        assert_eq!(found.unwrap().as_deref(), Some(&[7; 1000][..]), "{n}");
    }
    db.close().unwrap();
}

/// A full disk, a failed log, a failed compaction: when the cause is gone, the store recovers
/// without a write.
#[test]
fn failed_background_work_is_retried_without_writes() {
    for (op, path) in [
        (OpKind::Create, ".tbl"),
        (OpKind::Append, ".log"),
        (OpKind::Append, "MANIFEST"),
    ] {
        let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
        let env = Env::for_tests(faults.clone(), 1);
        let db = Db::open(&env, "db", Options::default()).unwrap();
        fill(&db, 0..10);
        faults.inject(Fault {
            op: Some(op),
            path: path.into(),
            when: When::From(1),
            kind: FaultKind::Enospc,
        });
        let put = db.put(&db.default_family(), b"k", b"v", &WriteOptions::SYNC);
        assert_eq!(put.is_err(), path == ".log");
        if path != ".log" {
            assert!(db.flush().is_err(), "{path}");
            for _ in 0..3 {
                env.clock().sleep(Duration::from_secs(1));
                wait_idle(&env);
            }
        }
        assert!(db.stats().read_only.is_some(), "{path}: the failure shows");
        faults.clear();
        env.clock().sleep(Duration::from_secs(1));
        wait_idle(&env);
        assert!(db.stats().read_only.is_none(), "{path}: writable again");
        assert_eq!(db.stats().sealed_memtables, 0, "{path}");
        fill(&db, 10..20);
        db.close().unwrap();
    }
}

/// Regression test: a writer that waited for a compaction held its lock. On the only thread of the
/// pool, before that compaction, the job of an idle store waited for the lock. Neither continued.
#[test]
fn the_jobs_of_an_idle_store_wait_for_no_writer() {
    let sim = SimFs::new(SimOptions::default());
    let db = Db::open(&Env::for_tests(sim, 1), "db", Options::default()).unwrap();
    fill(&db, 0..10);
    let engine = db.engine().clone();
    let writing = engine.writes.lock();
    let (done, result) = std::sync::mpsc::channel();
    let idle = engine.clone();
    let job = basalt_env::thread::spawn("idle", move || {
        idle.release_idle().unwrap();
        idle.health
            .halt(Error::new(ErrorKind::Io, "halted by hand"));
        idle.retry();
        idle.health.resumed();
        done.send(()).unwrap();
    });
    // This is no measure of time: a job that waits here waits for ever.
    result
        .recv_timeout(Duration::from_secs(60))
        .expect("a job of an idle store waits for a writer");
    drop(writing);
    job.unwrap().join().unwrap();
    db.close().unwrap();
}

/// Writes until a spare log is ready, and flushes everything.
fn with_a_spare(env: &Env) -> Db {
    let options = Options {
        write_buffer_bytes: 256 << 10,
        ..Options::default()
    };
    let db = Db::open(env, "db", options).unwrap();
    fill(&db, 0..200);
    wait_idle(env);
    db.flush().unwrap();
    wait_idle(env);
    db
}

fn live_logs(db: &Db) -> Vec<u64> {
    let state = db.engine().tree.lock();
    state.catalog().logs.keys().copied().collect()
}

/// The edit that removes the spare log from the manifest fails. The manifest still names the log,
/// without an end, and later logs have records. Recovery must not take that for damage.
#[test]
fn a_spare_log_that_stays_in_the_manifest_loses_no_write() {
    let sim = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(sim.clone(), 1);
    let env = Env::for_tests(faults.clone(), 1);
    let db = with_a_spare(&env);
    assert_eq!(live_logs(&db).len(), 1, "the spare");
    faults.inject(Fault {
        op: Some(OpKind::Append),
        path: "MANIFEST".into(),
        when: When::From(1),
        kind: FaultKind::Enospc,
    });
    assert!(db.engine().release_idle().is_err());
    faults.clear();
    env.clock().sleep(Duration::from_secs(2));
    wait_idle(&env);
    fill(&db, 1000..1010);
    db.abandon();
    let env = Env::for_tests(sim, 2);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    for n in 1000..1010u32 {
        let found = db.get(
            &db.default_family(),
            &n.to_be_bytes(),
            &ReadOptions::default(),
        );
        assert!(found.unwrap().is_some(), "{n}");
    }
    db.close().unwrap();
}

/// Regression test: the release of spare logs came while a job was still making one, and was not
/// repeated. The file stayed until the store was written to or closed.
#[test]
fn a_spare_log_in_preparation_is_released_later() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim.clone(), 1);
    let options = Options {
        write_buffer_bytes: 256 << 10,
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    fill(&db, 0..200);
    let engine = db.engine().clone();
    assert!(
        engine.writes.logs().is_preparing(),
        "its job was not run yet"
    );
    // The same steps as the job that is about to release.
    engine
        .background
        .idle_check_is_queued()
        .store(false, SeqCst);
    engine.release_idle().unwrap();
    assert!(engine.writes.logs().is_preparing(), "nor was it meanwhile");
    assert!(
        engine.background.idle_check_is_queued().load(SeqCst),
        "another one comes"
    );
    wait_idle(&env);
    assert_eq!(live_logs(&db).len(), 1, "the spare");
    env.clock().sleep(Duration::from_secs(60));
    wait_idle(&env);
    assert_eq!(live_logs(&db).len(), 0);
    db.close().unwrap();
}
