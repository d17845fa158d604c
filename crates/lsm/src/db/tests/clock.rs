//! The wall clock across processes: an expired value stays expired in a process that starts with an
//! earlier clock.

use super::prelude::*;
use crate::options::{ReadOptions, WriteOptions};
use basalt_env::{Clock, ManualClock};
use basalt_sim::{SimFs, SimOptions};
use std::time::Duration;

const START: u64 = 1_700_000_000_000;
const HOUR: u64 = 3_600_000;

/// Starts a process at this wall time.
fn process(sim: &Arc<SimFs>, wall_ms: u64) -> Env {
    Env::builder(sim.clone())
        .stepped()
        .clock(Clock::manual(ManualClock::new(wall_ms)))
        .seed(wall_ms)
        .build()
}

/// Returns the visible keys of the default family.
fn keys(db: &Db) -> Vec<Vec<u8>> {
    let f = db.default_family();
    let mut iter = db.iter(&f, &ReadOptions::default()).unwrap();
    iter.seek_to_first().unwrap();
    let mut keys = Vec::new();
    while iter.valid() {
        let found = db.get(&f, iter.key(), &ReadOptions::default()).unwrap();
        assert_eq!(found.as_deref(), Some(iter.value()));
        keys.push(iter.key().to_vec());
        iter.next().unwrap();
    }
    keys
}

/// Writes "mortal", which expires after an hour, and "plain", which does not.
fn put_both(db: &Db) {
    let f = db.default_family();
    let mut batch = WriteBatch::new();
    batch.put_ttl(&f, b"mortal", b"v", START + HOUR).unwrap();
    batch.put(&f, b"plain", b"v").unwrap();
    db.write(batch, &WriteOptions::SYNC).unwrap();
}

/// Regression test: a store was killed after a flush had recorded the time. The next process
/// started with a clock that was hours behind, and the store returned a value that had expired
/// before the kill.
#[test]
fn expired_values_stay_expired_under_an_earlier_clock() {
    let sim = SimFs::new(SimOptions::default());
    let env = process(&sim, START);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    put_both(&db);
    env.clock().sleep(Duration::from_millis(2 * HOUR));
    assert_eq!(keys(&db), [b"plain"]);
    db.flush().unwrap();
    let killed = sim.kill();
    drop(db);
    // Each process starts earlier than the one before, and is killed.
    let mut disk = killed;
    for wall_ms in [START + HOUR / 2, START, START - 24 * HOUR, 1] {
        let env = process(&disk, wall_ms);
        let db = Db::open(&env, "db", Options::default()).unwrap();
        let wall = env.clock().wall_ms();
        assert!(wall >= START + 2 * HOUR, "the clock went back to {wall}");
        assert_eq!(keys(&db), [b"plain"], "at {wall_ms}");
        let f = db.default_family();
        db.put(&f, b"plain", b"w", &WriteOptions::SYNC).unwrap();
        db.flush().unwrap();
        db.compact_range(&f, None, None).unwrap();
        assert_eq!(keys(&db), [b"plain"], "after a compaction at {wall_ms}");
        let next = disk.kill();
        drop(db);
        disk = next;
    }
}

/// Regression test: the fresh manifest that an open writes did not have the wall time. A process
/// that only opened the store was killed, and the next one, with an earlier clock, returned an
/// expired value.
#[test]
fn an_open_writes_the_wall_time_to_the_fresh_manifest() {
    let sim = SimFs::new(SimOptions::default());
    let db = Db::open(&process(&sim, START), "db", Options::default()).unwrap();
    put_both(&db);
    db.close().unwrap();
    let mut disk = sim.kill();
    for wall_ms in [START + 2 * HOUR, START, START] {
        let db = Db::open(&process(&disk, wall_ms), "db", Options::default()).unwrap();
        assert_eq!(keys(&db), [b"plain"], "at {wall_ms}");
        let next = disk.kill();
        drop(db);
        disk = next;
    }
}
