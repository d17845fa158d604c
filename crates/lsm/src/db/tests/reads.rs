//! Optimisations of reads must not change their results: copies of the view, pinned index and
//! filter blocks, copied values.

use super::prelude::*;
use crate::options::WriteOptions;
use basalt_env::thread::{STRIPES, scope};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use std::sync::Barrier;

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

/// Each thread reads through its own copy of the view. All copies change at once: a write from
/// before a change is there after it, for every thread.
#[test]
fn every_thread_sees_a_change_of_the_tree_as_soon_as_it_is_made() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", small()).unwrap();
    let f = db.default_family();
    let threads = STRIPES + 3;
    let (ready, done) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let rounds = 40u32;
    scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for round in 0..rounds {
                    ready.wait();
                    let found = get(&db, b"key").unwrap();
                    assert_eq!(found, round.to_be_bytes(), "round {round}");
                    done.wait();
                }
            });
        }
        for round in 0..rounds {
            db.put(&f, b"key", &round.to_be_bytes(), &WriteOptions::UNSYNCED)
                .unwrap();
            match round % 3 {
                // The value is in the table of a sealed memtable, in the active memtable, or moved
                // down.
                0 => db.flush().unwrap(),
                1 => {}
                _ => db.compact_range(&f, None, None).unwrap(),
            }
            ready.wait();
            done.wait();
        }
    });
    db.close().unwrap();
}

/// Reads pin the index and filter blocks that they need. The cache counts these, never more than a
/// quarter of it, and they are given back with their table. The answers do not depend on pinning.
#[test]
fn tables_pin_index_and_filter_blocks_and_release_them() {
    for cache in [0, 64 << 10, 8 << 20] {
        let env = basalt_env::EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 3)
            .cache_bytes(cache)
            .build();
        let db = Db::open(&env, "db", small()).unwrap();
        let f = db.default_family();
        let value = |n: u32| vec![n as u8; if n.is_multiple_of(5) { 700 } else { 60 }];
        let mut most = 0;
        for round in 0..3u32 {
            for n in 0..1500u32 {
                let key = format!("key{n:06}");
                db.put(
                    &f,
                    key.as_bytes(),
                    &value(n + round),
                    &WriteOptions::UNSYNCED,
                )
                .unwrap();
            }
            db.flush().unwrap();
            db.wait_idle().unwrap();
            for again in 0..3 {
                for n in 0..1500u32 {
                    let found = get(&db, format!("key{n:06}").as_bytes()).unwrap();
                    assert_eq!(found, value(n + round), "key {n}, time {again}");
                    let absent = db.get(
                        &f,
                        format!("key{n:06}+").as_bytes(),
                        &ReadOptions::default(),
                    );
                    assert_eq!(absent.unwrap(), None);
                }
            }
            let stats = env.cache().stats();
            assert!(stats.pinned <= cache / 4, "{stats:?}");
            // Blocks that a table kept without the permit of the cache would be memory that readers
            // hold.
            assert_eq!(env.ledger().usage().pinned, 0, "kept beside the cache");
            most = most.max(stats.pinned);
        }
        assert_eq!(
            most > 0,
            cache > 0,
            "a cache of {cache} bytes pinned {most}"
        );
        db.compact_range(&f, None, None).unwrap();
        db.wait_idle().unwrap();
        db.close().unwrap();
        assert_eq!(env.cache().stats().pinned, 0, "no table is left");
        assert_eq!(env.ledger().usage().pinned, 0);
    }
}

/// A pinned block is found without the cache: a lookup asks the cache for the data block only.
#[test]
fn a_lookup_finds_pinned_blocks_without_the_cache() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    // One table with many index partitions and several pages of its filter.
    let mut options = small();
    options.default_family.block_bytes = 128;
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    let keys: Vec<[u8; 4]> = (0..10_000u32).map(u32::to_be_bytes).collect();
    for key in &keys {
        db.put(&f, key, &key.repeat(10), &WriteOptions::UNSYNCED)
            .unwrap();
    }
    db.compact_range(&f, None, None).unwrap();
    let lookups = || {
        let stats = env.cache().stats();
        stats.hits + stats.misses
    };
    let all = || {
        let before = lookups();
        for key in &keys {
            assert_eq!(get(&db, key).unwrap(), key.repeat(10));
        }
        lookups() - before
    };
    all();
    assert!(env.cache().stats().pinned > 0);
    assert_eq!(all(), keys.len() as u64, "one for each data block");
    let few = keys.iter().step_by(200);
    let asked: Vec<_> = few.map(|k| (&f, &k[..])).collect();
    let before = lookups();
    let many = db.multi_get(&asked, &ReadOptions::default());
    assert!(many.iter().all(|v| v.as_ref().unwrap().is_some()));
    // Each lookup asks for its data block, and once more after the read.
    let looked = lookups() - before;
    assert!(looked <= 2 * asked.len() as u64, "{looked} for many");
    db.close().unwrap();
}

/// A small value is copied for the reader: keeping it keeps no block in memory.
#[test]
fn a_kept_small_value_pins_no_block() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", small()).unwrap();
    let f = db.default_family();
    for n in 0..2000u32 {
        db.put(
            &f,
            &n.to_be_bytes(),
            &[n as u8; 100],
            &WriteOptions::UNSYNCED,
        )
        .unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let mut kept = Vec::new();
    for n in (0..2000u32).step_by(40) {
        // The value is read once from the device, and once from the cache.
        for _ in 0..2 {
            kept.push((n, get(&db, &n.to_be_bytes()).unwrap()));
        }
    }
    env.cache().set_capacity(0);
    let left = env.ledger().usage();
    assert_eq!(left.pinned, 0, "{left:?}");
    assert!(kept.iter().all(|(n, v)| v[..] == [*n as u8; 100]));
    db.close().unwrap();
}

/// A seek in the lowest level reads the next block along. If that read fails, the block of the seek
/// may still be whole.
#[test]
fn a_failed_prefetch_does_not_fail_the_seek() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = basalt_env::EnvBuilder::for_tests(faults.clone(), 9)
        .cache_bytes(8 << 20)
        .build();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    let key = |n: u32| format!("key{n:06}").into_bytes();
    for n in 0..2000 {
        db.put(&f, &key(n), &[n as u8; 100], &WriteOptions::UNSYNCED)
            .unwrap();
    }
    db.flush().unwrap();
    db.compact_range(&f, None, None).unwrap();
    for n in (0..1900).step_by(100) {
        // Opens the table and pins its index.
        let mut it = db.iter(&f, &ReadOptions::default()).unwrap();
        it.seek(&key(n)).unwrap();
        // What is pinned stays.
        env.cache().set_capacity(0);
        env.cache().set_capacity(8 << 20);
        faults.clear();
        let rule = faults.inject(Fault {
            op: Some(OpKind::Read),
            path: String::new(),
            when: When::Nth(1),
            kind: FaultKind::Eio,
        });
        let mut it = db.iter(&f, &ReadOptions::default()).unwrap();
        it.seek(&key(n)).unwrap();
        assert!(faults.seen(rule) >= 2, "the block was read again, alone");
        for n in n..n + 90 {
            assert_eq!((it.key(), it.value()[0]), (&key(n)[..], n as u8));
            it.next().unwrap();
        }
    }
    db.close().unwrap();
}

/// Regression test: a read failed while a scan stepped from one block of a level to the next. The
/// scan continued with the next table and ended without an error, as if the rest of the first table
/// did not exist.
#[test]
fn a_scan_ends_at_the_last_key_or_with_an_error() {
    const KEYS: u32 = 600;
    let options = || {
        let mut options = small();
        options.default_family.table_bytes = 8 << 10;
        options.default_family.base_level_bytes = 16 << 10;
        options
    };
    let sim = SimFs::new(SimOptions::default());
    let db = Db::open(&Env::for_tests(sim.clone(), 1), "db", options()).unwrap();
    let f = db.default_family();
    for n in 0..KEYS {
        let key = n.to_be_bytes();
        db.put(&f, &key, &[n as u8; 100], &WriteOptions::UNSYNCED)
            .unwrap();
    }
    db.flush().unwrap();
    db.compact_range(&f, None, None).unwrap();
    db.close().unwrap();
    for forward in [true, false] {
        let mut failed = 0;
        for k in 1.. {
            let faults = FaultFs::new(sim.kill(), 1);
            let db = Db::open(&Env::for_tests(faults.clone(), 2), "db", options()).unwrap();
            let rule = faults.inject(Fault {
                op: Some(OpKind::Read),
                path: ".tbl".into(),
                when: When::Nth(k),
                kind: FaultKind::Eio,
            });
            let cold = ReadOptions {
                fill_cache: false,
                ..ReadOptions::default()
            };
            let mut iter = db.iter(&db.default_family(), &cold).unwrap();
            let mut moved = match forward {
                true => iter.seek_to_first(),
                false => iter.seek_to_last(),
            };
            let mut shown = 0;
            while moved.is_ok() && iter.valid() {
                let n = if forward { shown } else { KEYS - 1 - shown };
                assert_eq!(iter.key(), n.to_be_bytes(), "read {k} failed");
                shown += 1;
                moved = if forward { iter.next() } else { iter.prev() };
            }
            failed += u32::from(moved.is_err());
            assert_eq!(moved.is_ok(), shown == KEYS, "read {k}: {shown} keys");
            if faults.seen(rule) < k {
                break;
            }
        }
        assert!(failed > 10, "{failed} reads failed");
    }
}
