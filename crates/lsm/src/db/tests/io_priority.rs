//! Tests of the threads that count as waiting for the device, and of the end of waiting for them.

use super::prelude::*;
use crate::options::WriteOptions;
use basalt_env::{Clock, ForegroundLoad, ManualClock, SMALL_PIECE};
use basalt_sim::{SimFs, SimOptions};
use std::time::Duration;

const BIG: usize = 1 << 20;

fn open(change: impl FnOnce(&mut Options)) -> (Env, Db) {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .stepped()
        .clock(Clock::manual(ManualClock::new(1_700_000_000_000)))
        .seed(1)
        .build();
    let mut options = Options::default();
    change(&mut options);
    let db = Db::open(&env, "db", options).unwrap();
    (env, db)
}

/// Returns the threads that waited for the device since the last call, by kind.
fn who_waited(env: &Env) -> Option<ForegroundLoad> {
    let waited = env.foreground_io().foreground_load();
    let small = env.foreground_io().piece(BIG) == SMALL_PIECE;
    assert_eq!(small, waited == Some(ForegroundLoad::Small), "{waited:?}");
    let manual_clock = env.clock().as_manual().unwrap();
    manual_clock.advance(Duration::from_millis(10));
    assert_eq!(env.foreground_io().foreground_load(), None);
    assert_eq!(env.foreground_io().piece(BIG), BIG);
    waited
}

/// Returns true if a thread waited for a read or a small sync.
fn waited(env: &Env) -> bool {
    who_waited(env) == Some(ForegroundLoad::Small)
}

/// Returns true if background work leaves the device to a waiting thread now.
fn yields_to_foreground(env: &Env) -> bool {
    env.foreground_io().foreground_read();
    env.foreground_io().piece(BIG) == SMALL_PIECE
}

/// Adds one table to level 0.
fn add_table(db: &Db) {
    let family = db.default_family();
    db.put(&family, b"key", b"v", &WriteOptions::UNSYNCED)
        .unwrap();
    db.flush().unwrap();
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

#[test]
fn only_synced_commits_and_cache_misses_count_as_foreground() {
    let (env, db) = open(|_| ());
    let family = db.default_family();
    let put = |n: u32, how: &WriteOptions| db.put(&family, &key(n), &[7; 1000], how).unwrap();
    waited(&env);
    put(0, &WriteOptions::UNSYNCED);
    assert_eq!(who_waited(&env), None, "an unsynced put");
    put(1, &WriteOptions::SYNC);
    assert!(waited(&env), "a synced put");
    let large = vec![7; 16_000];
    db.put(&family, &key(1), &large, &WriteOptions::SYNC)
        .unwrap();
    assert_eq!(
        who_waited(&env),
        Some(ForegroundLoad::Large),
        "a large synced put"
    );
    // Many small batches that are synced together count as small.
    let tickets: Vec<_> = (0..30)
        .map(|n| {
            let mut batch = WriteBatch::new();
            batch.put(&family, &key(n), &[7; 1000]).unwrap();
            db.submit(batch, &WriteOptions::SYNC)
        })
        .collect();
    let syncs = db.stats().log_syncs;
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    assert!(db.stats().log_syncs < syncs + 5, "they were not one group");
    assert!(waited(&env), "a group of synced puts");
    put(2, &WriteOptions::UNSYNCED);
    waited(&env);
    db.sync().unwrap();
    assert!(waited(&env), "a sync");
    for round in 0..6 {
        for n in 0..200 {
            put(n * 7 + round, &WriteOptions::UNSYNCED);
        }
        db.flush().unwrap();
    }
    waited(&env);
    db.wait_idle().unwrap();
    db.compact_range(&family, None, None).unwrap();
    assert_eq!(who_waited(&env), None, "flushes and merges");
    let get = |n: u32| db.get(&family, &key(n), &ReadOptions::default()).unwrap();
    assert!(get(7).is_some());
    assert!(waited(&env), "a get from the device");
    assert!(get(7).is_some());
    assert_eq!(who_waited(&env), None, "the same from the cache");
    let seek = |n: u32| {
        let mut iter = db.iter(&family, &ReadOptions::default()).unwrap();
        iter.seek(&key(n)).unwrap();
        assert!(iter.valid());
        while iter.valid() {
            iter.next().unwrap();
        }
    };
    seek(600);
    assert!(waited(&env), "a scan from the device");
    waited(&env);
    let keys = [100, 200, 301].map(key);
    let keys: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&family, &k[..])).collect();
    let many = db.multi_get(&keys, &ReadOptions::default());
    assert!(many.into_iter().all(|v| v.unwrap().is_some()));
    assert!(waited(&env), "many at once");
}

#[test]
fn late_background_work_does_not_yield_to_foreground_io() {
    let (env, db) = open(|o| {
        o.default_family.l0_compaction_trigger = 4;
        o.default_family.l0_slowdown = 20;
    });
    for tables in 1..=8_u64 {
        add_table(&db);
        let level0 = db.stats().families[0].levels[0].tables;
        assert_eq!(level0, tables, "nothing runs by itself");
        assert_eq!(
            yields_to_foreground(&env),
            level0 < 6,
            "{level0} tables in level 0"
        );
    }
    db.wait_idle().unwrap();
    assert!(yields_to_foreground(&env), "the store is idle");
    drop(db);
    assert!(yields_to_foreground(&env), "closed");
}

#[test]
fn only_a_late_store_with_a_possible_merge_is_urgent() {
    let (env, db) = open(|o| {
        o.default_family.l0_compaction_trigger = 100;
        o.default_family.l0_slowdown = 100;
    });
    for _ in 0..6 {
        add_table(&db);
    }
    assert!(yields_to_foreground(&env), "no limit on tables in level 0");
    db.close().unwrap();
    let db = Db::open_read_only(&env, "db", Options::default()).unwrap();
    assert!(
        yields_to_foreground(&env),
        "open for reading: it merges nothing"
    );
    db.close().unwrap();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    assert!(!yields_to_foreground(&env), "opened with work behind");
    let other = db.clone();
    db.close().unwrap();
    assert!(yields_to_foreground(&env), "closed, with a handle alive");
    drop(other);
    assert!(yields_to_foreground(&env), "dropped");
}
