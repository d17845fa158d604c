//! Transactions that read every key for update are serialisable: replayed one after the other in
//! the order of their commits, each reads what it has read, and the store ends the same.

use crate::store::{BOTH, Store, UNSYNCED, open_for_threads};
use basalt_env::thread;
use basalt_fs::{ErrorKind, Result};
use basalt_kv::key::SeqNo;
use basalt_lsm::ReadOptions;
use basalt_sim::rng::Rng;
use basalt_sim::{campaign, repeat};
use basalt_transactions::{Concurrency, Transaction, TransactionDbOptions, TransactionOptions};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

const THREADS: u64 = 3;
const TRANSACTIONS: u64 = 40;
const KEYS: u64 = 5;

type Key = (usize, u64);

/// What one committed transaction has read and written.
#[derive(Default)]
struct Done {
    seq: SeqNo,
    reads: Vec<(Key, Option<u64>)>,
    writes: Vec<(Key, Option<u64>)>,
}

fn key(rng: &mut Rng) -> Key {
    (rng.below(2) as usize, rng.below(KEYS))
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("a number"))
}

/// Reads two keys, and writes one or two by what it has read.
fn run(store: &Store, own: &mut Transaction, rng: &mut Rng) -> Result<Done> {
    let mut done = Done::default();
    let mut sum = 1;
    for _ in 0..2 {
        let at = key(rng);
        let (family, name) = (&store.families[at.0], at.1.to_be_bytes());
        let found = match rng.coin() {
            true => own.get_for_update(family, &name, &ReadOptions::default())?,
            false => own.get_for_share(family, &name, &ReadOptions::default())?,
        };
        let found = found.map(|value| number(&value));
        sum = found.unwrap_or(7).wrapping_mul(31).wrapping_add(sum);
        done.reads.push((at, found));
        // Others may run between the reads and the commit.
        std::thread::yield_now();
    }
    for _ in 0..1 + rng.below(2) {
        let at = key(rng);
        let (family, name) = (&store.families[at.0], at.1.to_be_bytes());
        if sum.is_multiple_of(4) {
            own.delete(family, &name)?;
            done.writes.push((at, None));
        } else {
            own.put(family, &name, &sum.to_le_bytes())?;
            done.writes.push((at, Some(sum)));
        }
    }
    Ok(done)
}

/// Commits transactions in threads, and replays them. Returns how many had to begin again.
fn check(seed: u64, kinds: &[Concurrency], checks: bool) -> u64 {
    let options = TransactionDbOptions::default()
        .lock_timeout(Duration::MAX)
        .check_unlocked_writes(checks);
    let store = open_for_threads(seed, options);
    let history = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (store, history) = (&store, &history);
            scope.spawn(move || {
                let mut rng = Rng::of(&[seed, t, 46]);
                for _ in 0..TRANSACTIONS {
                    let kind = rng.pick(kinds);
                    let options = TransactionOptions::default().concurrency(kind);
                    let mut done = loop {
                        let mut own = store.transactions.begin(&options).unwrap();
                        let ran = run(store, &mut own, &mut rng);
                        let ended = ran.and_then(|done| Ok((done, own.commit(&UNSYNCED)?)));
                        match ended {
                            Ok((done, seq)) => break Done { seq, ..done },
                            Err(e) => assert!(
                                matches!(e.kind(), ErrorKind::Conflict | ErrorKind::Deadlock),
                                "{e}"
                            ),
                        }
                    };
                    done.reads.dedup();
                    history.lock().unwrap().push(done);
                    if rng.percent(5) {
                        store.db.flush().unwrap();
                    }
                }
            });
        }
    });
    let mut history = history.into_inner().unwrap();
    history.sort_by_key(|done| done.seq);
    let mut state: BTreeMap<Key, u64> = BTreeMap::new();
    for done in history {
        for (at, found) in done.reads {
            assert_eq!(
                found,
                state.get(&at).copied(),
                "read of {at:?} before {}",
                done.seq
            );
        }
        for (at, value) in done.writes {
            match value {
                Some(value) => state.insert(at, value),
                None => state.remove(&at),
            };
        }
    }
    for family in 0..2 {
        let iter = (store.db).iter(&store.families[family], &ReadOptions::default());
        for (n, value) in iter.unwrap().map(|entry| entry.unwrap()) {
            let at = (family, u64::from_be_bytes(n[..].try_into().unwrap()));
            assert_eq!(state.remove(&at), Some(number(&value)), "{at:?}");
        }
    }
    assert!(state.is_empty(), "keys are missing: {state:?}");
    store.transactions.stats().rollbacks
}

#[test]
fn transactions_that_read_for_update_are_serialisable() {
    let mut again = 0;
    for seed in campaign::cases(0..8 * campaign::scale()) {
        let _repeat = repeat!(
            transactions_that_read_for_update_are_serialisable,
            "BASALT_CASE={seed}"
        );
        for checks in [true, false] {
            again += check(seed, &[Concurrency::Optimistic], checks);
            again += check(seed, &[Concurrency::Pessimistic], checks);
            again += check(seed, &BOTH, checks);
        }
    }
    basalt_sim::campaign!("serialisable_again={again}");
    assert!(again > 0, "no transaction met another one");
}
