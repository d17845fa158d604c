//! Many stores share one memory budget: together they stay within it, although each of them holds
//! little.

use super::prelude::*;
use basalt_env::{EnvBuilder, Random};
use basalt_fs::FileSystem;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use std::collections::BTreeMap;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const STORES: u64 = 40;

type Model = Vec<BTreeMap<u64, u64>>;

fn value(seed: u64) -> Vec<u8> {
    vec![seed as u8; 1000 + (seed % 7000) as usize]
}

fn stores(env: &Env) -> Vec<Db> {
    (0..STORES)
        .map(|n| Db::open(env, format!("store{n}"), Options::default()).unwrap())
        .collect()
}

fn put(db: &Db, key: u64, seed: u64) {
    let f = db.default_family();
    let written = db.put(
        &f,
        &key.to_be_bytes(),
        &value(seed),
        &WriteOptions::UNSYNCED,
    );
    written.unwrap();
}

fn check(stores: &[Db], model: &Model) {
    for (db, model) in stores.iter().zip(model) {
        for (key, seed) in model {
            let found = db.get(
                &db.default_family(),
                &key.to_be_bytes(),
                &ReadOptions::default(),
            );
            assert_eq!(found.unwrap().as_deref(), Some(&value(*seed)[..]));
        }
    }
}

/// Regression test: 300 stores with a shared budget of 512 MiB held 2.2 GB. A store flushed for
/// lack of memory only if its memtables held an eighth of its own write buffer. A writer waited
/// only for memtables that its own store had sealed.
#[test]
fn many_small_stores_stay_within_the_shared_budget() {
    let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1).build();
    let stores = stores(&env);
    let mut model: Model = vec![BTreeMap::new(); STORES as usize];
    let r = Random::from_seed(1);
    let mut most = 0;
    for _ in 0..12_000 {
        let (n, key, seed) = (r.next_u64() % STORES, r.next_u64() % 500, r.next_u64());
        let db = &stores[n as usize];
        put(db, key, seed);
        model[n as usize].insert(key, seed);
        let used = env.ledger().usage();
        most = most.max(used.memtable);
        assert!(used.memtable <= env.ledger().room(), "{used:?}");
    }
    // The stores also use the budget: 15 MiB of it are for memtables.
    assert!(most >= 10 * MIB, "{most}");
    let flushes: u64 = stores.iter().map(|db| db.stats().flush_bytes_written).sum();
    assert!(flushes >= 20 * MIB, "{flushes}");
    check(&stores, &model);
    stores.into_iter().for_each(|db| db.close().unwrap());
    let used = env.ledger().usage();
    assert_eq!((used.memtable, used.buffer, used.pinned), (0, 0, 0));
    assert_eq!(env.relief().coming(), 0);
}

/// Writers of many stores wait for each other's memory, each with the lock of its own store held.
#[test]
fn writers_that_wait_for_memory_of_each_other_all_go_on() {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .memory_bytes(16 * MIB)
        .cache_bytes(MIB)
        .seed(1)
        .build();
    let stores = stores(&env);
    let model: Model = basalt_env::thread::scope(|threads| {
        let writers: Vec<_> = (0..4)
            .map(|t| {
                let (stores, env) = (&stores, &env);
                threads.spawn(move || {
                    let r = Random::from_seed(t);
                    let mut model: Model = vec![BTreeMap::new(); STORES as usize];
                    for _ in 0..4_000 {
                        // Each thread has its own keys, and all threads share the stores.
                        let n = r.next_u64() % STORES;
                        let (key, seed) = (r.next_u64() % 100 * 4 + t, r.next_u64());
                        let db = &stores[n as usize];
                        put(db, key, seed);
                        model[n as usize].insert(key, seed);
                        // Each writer may have seen the same free memory.
                        let used = env.ledger().usage();
                        assert!(used.memtable <= env.ledger().room() + MIB, "{used:?}");
                    }
                    model
                })
            })
            .collect();
        let mut all: Model = vec![BTreeMap::new(); STORES as usize];
        for w in writers {
            for (all, more) in all.iter_mut().zip(w.join().unwrap()) {
                all.extend(more);
            }
        }
        all
    });
    check(&stores, &model);
    stores.into_iter().for_each(|db| db.close().unwrap());
    assert_eq!(env.relief().coming(), 0);
}

/// A store whose memtables cannot be flushed keeps its memory. The other stores use the rest, and
/// do not wait for that store.
#[test]
fn a_store_that_cannot_flush_holds_up_no_other() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = EnvBuilder::for_tests(faults.clone() as Arc<dyn FileSystem>, 1).build();
    let broken = Db::open(&env, "broken", Options::default()).unwrap();
    let well = Db::open(&env, "well", Options::default()).unwrap();
    let put = |db: &Db, n: u64| {
        db.put(
            &db.default_family(),
            &n.to_be_bytes(),
            &[7; 10_000],
            &WriteOptions::UNSYNCED,
        )
    };
    (0..700).for_each(|n| {
        put(&broken, n).unwrap();
    });
    faults.inject(Fault {
        op: Some(OpKind::Create),
        path: "broken/".into(),
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    (0..4_000).for_each(|n| {
        put(&well, n).unwrap();
    });
    assert!(well.stats().flush_bytes_written > 20 * MIB);
    assert_eq!(broken.stats().flush_bytes_written, 0);
    let used = env.ledger().usage();
    assert!(used.memtable <= env.ledger().room(), "{used:?}");
    faults.clear();
    for n in 0..700u64 {
        let found = broken.get(
            &broken.default_family(),
            &n.to_be_bytes(),
            &ReadOptions::default(),
        );
        assert!(found.unwrap().is_some());
    }
    broken.close().unwrap();
    well.close().unwrap();
    assert_eq!(env.relief().coming(), 0);
}

/// The promise of a store ends when its flush panics: no thread waits for memory that will not
/// come.
#[test]
fn a_flush_that_panics_ends_its_memory_promise() {
    let disk = SimFs::new(SimOptions::default());
    let faults = FaultFs::with_sleep(disk, 1, Box::new(|_| panic!("on purpose")));
    let env = EnvBuilder::for_tests(faults.clone() as Arc<dyn FileSystem>, 1).build();
    let broken = Db::open(&env, "broken", Options::default()).unwrap();
    let f = broken.default_family();
    for n in 0..700u64 {
        let put = broken.put(&f, &n.to_be_bytes(), &[7; 10_000], &WriteOptions::UNSYNCED);
        put.unwrap();
    }
    faults.inject(Fault {
        op: Some(OpKind::Create),
        path: "broken/".into(),
        when: When::From(1),
        kind: FaultKind::Latency(Duration::from_secs(1)),
    });
    let well = Db::open(&env, "well", Options::default()).unwrap();
    let f = well.default_family();
    for n in 0..4_000u64 {
        let put = well.put(&f, &n.to_be_bytes(), &[7; 10_000], &WriteOptions::UNSYNCED);
        put.unwrap();
    }
    assert!(
        broken.engine().ctx.jobs.panicked().is_some(),
        "the flush was tried"
    );
    assert!(well.stats().flush_bytes_written > 20 * MIB);
    well.close().unwrap();
    assert_eq!(env.relief().coming(), 0);
    broken.abandon();
}

/// Regression test: a store that seals again after a failed flush must promise no memory. Where
/// jobs are stepped, other stores waited for ever.
#[test]
fn a_store_that_seals_after_a_failed_flush_holds_up_no_other() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = EnvBuilder::for_tests(faults.clone() as Arc<dyn FileSystem>, 1).build();
    let options = Options {
        write_buffer_bytes: 2 * MIB,
        ..Options::default()
    };
    let broken = Db::open(&env, "broken", options).unwrap();
    let well = Db::open(&env, "well", Options::default()).unwrap();
    let put = |db: &Db, n: u64| {
        let f = db.default_family();
        db.put(&f, &n.to_be_bytes(), &[7; 10_000], &WriteOptions::UNSYNCED)
    };
    faults.inject(Fault {
        op: Some(OpKind::Create),
        path: "broken/".into(),
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    let taken = (0..1_000).take_while(|n| put(&broken, *n).is_ok()).count();
    assert!(taken > 200, "{taken}");
    (0..4_000).for_each(|n| {
        put(&well, n).unwrap();
    });
    assert!(well.stats().flush_bytes_written > 20 * MIB);
    faults.clear();
    broken.abandon();
    well.close().unwrap();
    assert_eq!(env.relief().coming(), 0);
}

/// A commit group that is larger than all memory except the cache's is written past the budget.
#[test]
fn a_group_larger_than_the_budget_is_admitted() {
    let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1).build();
    let stores: Vec<Db> = stores(&env);
    for (n, db) in stores.iter().enumerate() {
        let f = db.default_family();
        let len = if n % 10 == 9 { 17 << 20 } else { 400_000 };
        db.put(&f, b"key", &vec![n as u8; len], &WriteOptions::UNSYNCED)
            .unwrap();
    }
    stores.into_iter().for_each(|db| db.close().unwrap());
    assert_eq!(env.relief().coming(), 0);
}

/// A store is closed, or abandoned, between its promise and the seal that keeps it. The promise
/// ends with the store, and the writer of another store continues.
#[test]
fn a_memory_promise_ends_when_its_store_is_closed() {
    for abandoned in [false, true] {
        let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1).build();
        let leaving = Db::open(&env, "leaving", Options::default()).unwrap();
        let staying = Db::open(&env, "staying", Options::default()).unwrap();
        let put = |db: &Db, n: u64| {
            let f = db.default_family();
            db.put(&f, &n.to_be_bytes(), &[7; 10_000], &WriteOptions::UNSYNCED)
                .unwrap();
        };
        (0..700).for_each(|n| put(&leaving, n));
        // This is the request of a writer that lacks memory. Jobs are stepped, so the seal has not
        // run.
        assert!(
            env.relief().ask(env.ledger().room()),
            "nothing was promised"
        );
        let promised = env.relief().coming();
        assert!(promised >= 6 * MIB, "{promised}");
        // The promise ends although a handle keeps the engine in memory.
        let handle = leaving.clone();
        match abandoned {
            true => leaving.abandon(),
            false => leaving.close().unwrap(),
        }
        while env.jobs().step() {}
        assert_eq!(env.relief().coming(), 0, "abandoned: {abandoned}");
        drop(handle);
        (0..4_000).for_each(|n| put(&staying, n));
        assert!(staying.stats().flush_bytes_written > 20 * MIB);
        staying.close().unwrap();
        assert_eq!(env.relief().coming(), 0);
    }
}

/// Stores are closed while the writer of another store waits for the memory that they have
/// promised.
#[test]
fn a_writer_that_waits_for_memory_goes_on_when_stores_are_closed() {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .memory_bytes(16 * MIB)
        .cache_bytes(MIB)
        .seed(1)
        .build();
    let staying = Db::open(&env, "staying", Options::default()).unwrap();
    basalt_env::thread::scope(|threads| {
        let (env, staying) = (&env, &staying);
        let writer = threads.spawn(move || {
            let r = Random::from_seed(1);
            (0..8_000).for_each(|n| put(staying, n, r.next_u64()));
        });
        let (mut round, mut promised) = (0, 0);
        while !writer.is_finished() || round < 6 {
            round += 1;
            let leaving = Db::open(env, format!("leaving{round}"), Options::default()).unwrap();
            (0..3_000).for_each(|n| put(&leaving, n, round + n));
            // Each call asks one more store. Two of them reach both.
            for _ in 0..2 {
                env.relief().ask(env.ledger().room());
            }
            promised += usize::from(leaving.engine().pressure.memory().has_promised());
            match round % 3 {
                0 => leaving.abandon(),
                _ => leaving.close().unwrap(),
            }
        }
        writer.join().unwrap();
        println!("rounds={round} promised={promised}");
        assert!(promised > 0, "no store that was closed had promised memory");
    });
    staying.close().unwrap();
    while env.jobs().step() {}
    assert_eq!(env.relief().coming(), 0);
}
