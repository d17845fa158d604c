//! Locks alone: threads lock random keys in random modes, and roll back.
//!
//! No two threads hold a lock in modes that exclude each other. Every wait ends: most waits have no
//! limit, so a lost wake-up, or a deadlock that is not detected, stops the schedule.

use crate::{case, open};
use basalt_env::sync::explore::{CASE, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_fs::ErrorKind;
use basalt_lsm::ReadOptions;
use basalt_sim::{campaign, repeat};
use basalt_transactions_schedules::{
    Transaction, TransactionDb, TransactionDbOptions, TransactionOptions,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const KEYS: u64 = 3;
const TRANSACTIONS: u64 = 3;

/// The holders of each key: the thread, and whether it excludes others. It is never locked where
/// threads change places.
type Holders = Arc<Mutex<[Vec<(u64, bool)>; KEYS as usize]>>;

/// Locks a key, and checks that no other thread holds it in a mode that excludes this one. Returns
/// false if the transaction must end.
fn lock(own: &mut Transaction, db: &TransactionDb, holders: &Holders, thread: u64) -> bool {
    let (key, is_exclusive) = (below(KEYS) as usize, percent(50));
    let (family, name) = (db.db().default_family(), [key as u8]);
    let read = ReadOptions::default();
    let locked = match is_exclusive {
        true => own.get_for_update(&family, &name, &read),
        false => own.get_for_share(&family, &name, &read),
    };
    if let Err(e) = locked {
        let is_expected = matches!(e.kind(), ErrorKind::Busy | ErrorKind::Deadlock);
        assert!(is_expected, "{e}");
        return e.kind() == ErrorKind::Busy;
    }
    let mut holders = holders.lock().unwrap();
    let of_key = &mut holders[key];
    let others = of_key.iter().filter(|(other, _)| *other != thread);
    let excluded = others.filter(|(_, exclusive)| *exclusive || is_exclusive);
    assert_eq!(excluded.count(), 0, "key {key}: {of_key:?}");
    of_key.push((thread, is_exclusive));
    true
}

fn run(db: &TransactionDb, holders: &Holders, thread: u64) {
    for _ in 0..TRANSACTIONS {
        let timeout = match percent(80) {
            true => Duration::MAX,
            false => Duration::from_millis(below(3)),
        };
        let options = TransactionOptions::pessimistic().lock_timeout(Some(timeout));
        let mut own = db.begin(&options).unwrap();
        for _ in 0..1 + below(3) {
            if !lock(&mut own, db, holders, thread) {
                break;
            }
            yield_now();
        }
        // The locks are released after this.
        for of_key in holders.lock().unwrap().iter_mut() {
            of_key.retain(|(holder, _)| *holder != thread);
        }
        own.rollback();
    }
}

#[test]
fn locks_exclude_each_other_and_every_wait_ends() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..40 * campaign::scale()) {
        let _repeat = repeat!(
            locks_exclude_each_other_and_every_wait_ends,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || {
            let db = open(TransactionDbOptions::default());
            let holders = Holders::default();
            let threads = (0..2 + below(3)).map(|thread| {
                let (db, holders) = (db.clone(), holders.clone());
                shuttle::thread::spawn(move || run(&db, &holders, thread))
            });
            for thread in threads.collect::<Vec<_>>() {
                thread.join().unwrap();
            }
            let stats = db.stats();
            assert_eq!(stats.locks, 0, "{stats:?}");
            count(&totals, 0, stats.lock_waits);
            count(&totals, 1, stats.deadlocks);
            count(&totals, 2, stats.lock_timeouts);
            db.db().clone().close().unwrap();
        });
        schedules += CASE as u64;
    }
    let [waits, deadlocks, timeouts] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "key_lock_schedules={schedules} waits={waits} deadlocks={deadlocks} timeouts={timeouts}"
    );
    if campaign::case().is_none() {
        assert!(waits > schedules / 2, "{waits} waits");
        assert!(deadlocks > schedules / 20, "{deadlocks} deadlocks");
        assert!(timeouts > schedules / 20, "{timeouts} timeouts");
    }
}
