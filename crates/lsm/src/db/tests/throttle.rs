//! Writers are held back gradually, in proportion to the bytes they write, and never at the cost of
//! another store.
//!
//! In these stepped tests the clock moves only while a writer waits, so the time that a writer was
//! held is exact on any machine.

use super::prelude::*;
use crate::listener::StallCause;
use crate::options::WriteOptions;
use basalt_env::{Clock, JobPriority, ManualClock};
use basalt_kv::key::{Cmp, Comparator};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use std::cmp::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::time::Duration;

const UNSYNCED: WriteOptions = WriteOptions::UNSYNCED;

fn stepped(options: Options) -> (Env, Db) {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .stepped()
        .clock(Clock::manual(ManualClock::new(1_700_000_000_000)))
        .seed(1)
        .build();
    let db = Db::open(&env, "db", options).unwrap();
    (env, db)
}

/// Returns how long one put of this many bytes is held.
fn held(env: &Env, db: &Db, n: u32, bytes: usize) -> Duration {
    let before = env.clock().now();
    db.put(
        &db.default_family(),
        &n.to_be_bytes(),
        &vec![7; bytes],
        &UNSYNCED,
    )
    .unwrap();
    env.clock().now() - before
}

fn level0(db: &Db) -> u64 {
    db.stats().families[0].levels[0].tables
}

fn family(change: impl FnOnce(&mut FamilyOptions)) -> Options {
    let mut f = FamilyOptions::default();
    change(&mut f);
    Options {
        default_family: f,
        ..Options::default()
    }
}

#[test]
fn level_0_slows_and_then_stops_writers() {
    let (env, db) = stepped(family(|f| {
        f.l0_compaction_trigger = 4;
        f.l0_slowdown = 4;
    }));
    let mut slowest = Duration::ZERO;
    for tables in 0..8 {
        assert_eq!(level0(&db), tables);
        // Twenty groups: the time for which one group is admitted is paid by the next.
        let took: Duration = (0..20).map(|i| held(&env, &db, i, 64 << 10)).sum();
        if tables < 4 {
            assert_eq!(took, Duration::ZERO, "{tables} tables slow no writer");
        } else {
            assert!(
                took > slowest + Duration::from_millis(3),
                "{took:?} at {tables} tables, {slowest:?} before"
            );
            slowest = took;
        }
        db.flush().unwrap();
    }
    assert_eq!(level0(&db), 8);
    held(&env, &db, 0, 1);
    assert!(level0(&db) < 8, "the writer waited for a compaction");
    let stalls: u64 = db.stats().stall_us.iter().map(|s| s.1).sum();
    assert!(stalls > 0, "stalls are counted");
    db.close().unwrap();
}

#[test]
fn the_delay_of_a_large_group_is_paid_by_later_groups() {
    let (env, db) = stepped(family(|f| {
        f.l0_compaction_trigger = 2;
        f.l0_slowdown = 2;
    }));
    for n in 0..2 {
        held(&env, &db, n, 10);
        db.flush().unwrap();
    }
    // A third of the way to a stop: 8/9 of the rate of 64 MiB/s, which is assumed before a rate was
    // measured.
    let large = held(&env, &db, 1, 16 << 20);
    assert!(
        large < Duration::from_millis(2),
        "{large:?} for what was before it"
    );
    let behind = held(&env, &db, 2, 10);
    let expected = Duration::from_secs_f64(16.0 / 64.0 * 9.0 / 8.0);
    let off = behind.abs_diff(expected);
    assert!(
        off < Duration::from_millis(5),
        "{behind:?}, not {expected:?}"
    );
    assert_eq!(level0(&db), 2, "nothing has relieved it");
    db.close().unwrap();
}

#[test]
fn sealed_memtables_slow_and_then_stop_writers() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = Env::for_tests(faults.clone(), 1);
    let options = Options {
        write_buffer_bytes: 256 << 10,
        max_sealed_memtables: 3,
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    faults.inject(Fault {
        op: Some(OpKind::Create),
        path: ".tbl".into(),
        when: When::From(1),
        kind: FaultKind::Enospc,
    });
    let mut by_fill = Vec::new();
    let refused = loop {
        let before = env.clock().now();
        let key = (by_fill.len() as u32).to_be_bytes();
        if let Err(e) = db.put(&db.default_family(), &key, &[7; 1000], &UNSYNCED) {
            break e;
        }
        by_fill.push((db.stats().sealed_memtables, env.clock().now() - before));
        assert!(by_fill.len() < 5000, "memory has an end");
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let spent = |part: &[(u64, Duration)]| part.iter().map(|(_, took)| *took).sum::<Duration>();
    let last = by_fill.iter().position(|(sealed, _)| *sealed == 3).unwrap();
    assert_eq!(
        spent(&by_fill[..last]),
        Duration::ZERO,
        "there was room enough"
    );
    let (first, second) = by_fill[last..].split_at((by_fill.len() - last) / 2);
    assert!(
        spent(first) > Duration::from_millis(1) && spent(second) > 3 * spent(first),
        "{:?}, then {:?}",
        spent(first),
        spent(second)
    );
    // Space is free again, so the flush can run.
    faults.clear();
    env.clock().sleep(Duration::from_secs(1));
    held(&env, &db, 0, 1000);
    db.close().unwrap();
}

#[test]
fn compaction_debt_slows_and_then_stops_writers() {
    let (env, db) = stepped(family(|f| {
        f.l0_compaction_trigger = 2;
        f.l0_slowdown = 100;
        f.debt_slowdown_bytes = 1 << 20;
    }));
    let mut took = Vec::new();
    for n in 0..4 {
        took.push(
            (0..4)
                .map(|i| held(&env, &db, n * 4 + i, 160 << 10))
                .sum::<Duration>(),
        );
        db.flush().unwrap();
    }
    // The debt is 0, 0.6, 1.3 and 1.9 MB.
    assert_eq!(took[..2], [Duration::ZERO; 2]);
    assert!(
        took[2] > Duration::ZERO && took[3] > 4 * took[2],
        "{took:?}"
    );
    let (owed, tables) = (db.stats().compaction_debt, level0(&db));
    assert!(
        owed > 2 << 20 && tables == 4,
        "{owed} bytes, {tables} tables"
    );
    held(&env, &db, 0, 1);
    assert!(db.stats().compaction_debt < 1 << 20);
    let by_debt = db
        .stats()
        .stall_us
        .iter()
        .find(|s| s.0 == StallCause::CompactionDebt)
        .unwrap()
        .1;
    assert!(by_debt > 0);
    db.close().unwrap();
}

/// One lane leads the commits of all stores whose writers do not wait.
#[test]
fn a_stalled_store_does_not_hold_up_other_stores() {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .seed(1)
        .threads(3)
        .build();
    let options = family(|f| {
        f.l0_compaction_trigger = 2;
        f.l0_slowdown = 2;
    });
    let full = Db::open(&env, "full", options).unwrap();
    let other = Db::open(&env, "other", Options::default()).unwrap();
    // Other jobs take the threads for compactions.
    let owner = env.jobs().new_owner();
    let (let_go, gate) = mpsc::channel::<()>();
    let gate = Arc::new(parking_lot::Mutex::new(gate));
    for _ in 0..2 {
        let gate = gate.clone();
        owner.spawn(JobPriority::Compaction, move || {
            let _ = gate.lock().recv();
        });
    }
    for n in 0..4u32 {
        full.put(&full.default_family(), &n.to_be_bytes(), b"v", &UNSYNCED)
            .unwrap();
        full.flush().unwrap();
    }
    let submit = |db: &Db| {
        let (tell, hear) = mpsc::channel();
        let mut batch = WriteBatch::new();
        batch.put(&db.default_family(), b"k", b"v").unwrap();
        db.submit(batch, &UNSYNCED)
            .on_complete(move |r| tell.send(r).unwrap());
        hear
    };
    let held = submit(&full);
    for _ in 0..20 {
        let passed = submit(&other).recv_timeout(Duration::from_secs(60));
        passed.expect("the other store is not held").unwrap();
    }
    assert!(held.try_recv().is_err(), "level 0 is still full");
    drop(let_go);
    let freed = held.recv_timeout(Duration::from_secs(60));
    freed.expect("a compaction makes room").unwrap();
    // A held batch is answered when its store is closed.
    owner.drain();
    full.close().unwrap();
    other.close().unwrap();
}

/// A comparator that records the ledger while keys are compared, which is while they are inserted.
struct Watches(Env, Arc<AtomicU64>);

impl Comparator for Watches {
    fn name(&self) -> &str {
        "watches"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.1.store(self.0.ledger().usage().memtable, SeqCst);
        a.cmp(b)
    }
}

#[test]
fn memtables_are_booked_before_they_grow() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let seen = Arc::new(AtomicU64::new(0));
    let order = Cmp::Custom(Arc::new(Watches(env.clone(), seen.clone())));
    let db = Db::open(&env, "db", family(|f| f.comparator = order)).unwrap();
    for n in 1..4u64 {
        held(&env, &db, n as u32, 1 << 20);
        // The first key is compared with no other.
        if n > 1 {
            assert!(
                seen.load(SeqCst) >= n << 20,
                "{} before the insert of {n}",
                seen.load(SeqCst)
            );
        }
    }
    let (booked, real) = (env.ledger().usage().memtable, db.stats().memtable_bytes);
    assert_eq!(booked, real, "corrected afterwards");
    db.close().unwrap();
    assert_eq!(env.ledger().usage().memtable, 0);
}

/// However large values are, memtables beyond the budget are those of one group.
#[test]
fn values_larger_than_the_budget_are_admitted_one_at_a_time() {
    let env = Env::builder(SimFs::new(SimOptions::default()))
        .stepped()
        .seed(1)
        .memory_bytes(16 << 20)
        .cache_bytes(1 << 20)
        .build();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    for n in 0..8 {
        held(&env, &db, n, 40 << 20);
        let booked = env.ledger().usage().memtable;
        assert!(
            booked < 42 << 20,
            "{booked} bytes of memtables after {n} values of 40 MiB"
        );
    }
    // Small values beside them fit, and are not flushed one by one.
    for n in 0..100 {
        held(&env, &db, n, 1000);
    }
    assert!(level0(&db) < 12, "{} tables", level0(&db));
    db.close().unwrap();
}

#[test]
fn memory_that_readers_pin_is_booked_until_release() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    // The cache of 1 MiB holds a part of them.
    let count = 100u64;
    for n in 0..count {
        held(&env, &db, n as u32, 100_000);
    }
    db.flush().unwrap();
    for fill_cache in [true, false] {
        let how = ReadOptions {
            fill_cache,
            ..ReadOptions::default()
        };
        let mut kept = Vec::new();
        for n in 0..count {
            kept.push(
                db.get(&f, &(n as u32).to_be_bytes(), &how)
                    .unwrap()
                    .unwrap(),
            );
        }
        let keys: Vec<_> = (0..count).map(|n| (n as u32).to_be_bytes()).collect();
        let many: Vec<(&Family, &[u8])> = keys.iter().map(|k| (&f, &k[..])).collect();
        let fetched = db.multi_get(&many, &how);
        let u = env.ledger().usage();
        let all = 2 * count * 100_000;
        assert!(u.cache + u.pinned >= all - (1 << 20), "{u:?}");
        assert!(u.cache + u.pinned < all + all / 20, "{u:?}");
        let mut iter = db.iter(&f, &how).unwrap();
        iter.seek_to_first().unwrap();
        let before = env.ledger().usage();
        let mut scanned = Vec::new();
        while iter.valid() {
            scanned.push(iter.pinned_value());
            iter.next().unwrap();
        }
        let more = env.ledger().usage();
        let scan = (more.cache + more.pinned) - (before.cache + before.pinned);
        assert!(
            scan >= count * 100_000 - (2 << 20),
            "{scan} bytes reserved for a scan kept"
        );
        drop((kept, fetched, scanned, iter));
        assert_eq!(env.ledger().usage().pinned, 0, "fill_cache {fill_cache}");
        env.cache().set_capacity(0);
        env.cache().set_capacity(1 << 20);
    }
    db.close().unwrap();
}

/// Under an urgent writer merges of level 0 wait for more tables. They do not wait if the debt
/// already holds the writer: each would wait for the other.
#[test]
fn an_urgent_writer_held_for_debt_gets_its_merge() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let options = Options {
        default_family: FamilyOptions {
            l0_compaction_trigger: 2,
            debt_slowdown_bytes: 1,
            ..FamilyOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    for n in 0..40u32 {
        for key in 0..50u32 {
            db.put(
                &db.default_family(),
                &(key * 40 + n).to_be_bytes(),
                &[7; 500],
                &UNSYNCED,
            )
            .unwrap();
        }
        db.flush().unwrap();
        env.clock().sleep(Duration::from_millis(500));
    }
}
