//! A power cut leaves each transaction whole or absent, over families of both kinds.

use crate::store::{BOTH, Store, Texts, open, open_on};
use basalt_env::Env;
use basalt_lsm::WriteOptions;
use basalt_sim::rng::Rng;
use basalt_sim::{CrashPolicy, campaign, repeat};
use basalt_transactions::TransactionDbOptions;
use std::sync::{Arc, Mutex};

/// Number of transactions of a run.
const TRANSACTIONS: u64 = 24;
/// Keys that each transaction writes in each family, with the number of the transaction.
const KEYS: u64 = 6;

/// Returns the number that all keys of a group have, or 0 if none is there. Fails if they differ.
fn number_of(store: &Store, group: u64) -> u64 {
    let mut numbers = Vec::new();
    for family in 0..2 {
        for key in 0..KEYS {
            let value = store.get(family, &format!("{group}-{key}"));
            numbers.push(value.map_or(0, |v| v.parse().expect("a number")));
        }
    }
    assert!(
        numbers.iter().all(|n| *n == numbers[0]),
        "a part of a transaction: {numbers:?}"
    );
    numbers[0]
}

/// Runs transactions, and cuts the power at a random operation of the filesystem. Returns the
/// number of states of the disk that were checked.
fn run(seed: u64) -> u64 {
    let mut rng = Rng::of(&[seed, 45]);
    let store = open(seed);
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let done: Arc<Mutex<[u64; 2]>> = Arc::default();
    let (into, at, mut calls) = (cuts.clone(), done.clone(), 0);
    let every = 5 + rng.below(20);
    store.disk.on_mutation(move |snapshot| {
        calls += 1;
        if calls % every == 0 {
            into.lock().unwrap().push((snapshot, *at.lock().unwrap()));
        }
    });
    for n in 1..=TRANSACTIONS {
        let group = rng.below(2);
        let sync = rng.coin();
        let mut own = store.begin(rng.pick(&BOTH));
        for (family, key) in (0..2).flat_map(|f| (0..KEYS).map(move |k| (f, k))) {
            let value = n.to_string();
            let key = format!("{group}-{key}");
            own.set(&store.families[family], &key, &value).unwrap();
        }
        if rng.percent(20) {
            own.rollback();
            continue;
        }
        own.commit(&WriteOptions::synced(sync))
            .expect("no conflict");
        if sync {
            let mut done = done.lock().unwrap();
            done[group as usize] = n;
        }
        match rng.below(8) {
            0 => store.db.flush().unwrap(),
            1 => store
                .db
                .compact_range(&store.families[0], None, None)
                .unwrap(),
            _ => {}
        }
    }
    store.disk.on_mutation(|_| {});
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    let states = cuts.len() as u64;
    for (i, (snapshot, durable)) in cuts.into_iter().enumerate() {
        let policy = CrashPolicy::ALL[i % CrashPolicy::ALL.len()];
        let disk = snapshot.crash(policy, seed + i as u64);
        let env = Env::for_tests(disk.clone(), seed);
        let store = open_on(disk, env, TransactionDbOptions::default());
        for group in 0..2 {
            let found = number_of(&store, group);
            let at_least = durable[group as usize];
            assert!(
                found >= at_least,
                "{at_least} was durable, {found} is there"
            );
        }
    }
    states
}

#[test]
fn a_power_cut_leaves_a_transaction_whole_or_absent() {
    let mut states = 0;
    for seed in campaign::cases(0..40 * campaign::scale()) {
        let _repeat = repeat!(
            a_power_cut_leaves_a_transaction_whole_or_absent,
            "BASALT_CASE={seed}"
        );
        states += run(seed);
    }
    basalt_sim::campaign!("transaction_crash_states={states}");
    if campaign::case().is_none() {
        assert!(states >= campaign::scale().floor(400), "{states} states");
    }
}
