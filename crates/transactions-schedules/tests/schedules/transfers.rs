//! Transfers between accounts, with both kinds of transactions of one handle, beside a thread that
//! flushes and reads. No money is lost, and each moment shows all of it.

use crate::{case, open};
use basalt_env::sync::explore::{CASE, below, count, counted, counts, percent};
use basalt_fs::{ErrorKind, Result};
use basalt_lsm::{ReadOptions, WriteOptions};
use basalt_sim::{campaign, repeat};
use basalt_transactions_schedules::{
    Concurrency, Transaction, TransactionDb, TransactionDbOptions, TransactionOptions,
};
use std::time::Duration;

const ACCOUNTS: u64 = 3;
const BALANCE: u64 = 100;

fn balance(own: &mut Transaction, db: &TransactionDb, account: u64) -> Result<u64> {
    let (family, read) = (db.db().default_family(), ReadOptions::default());
    let found = own.get_for_update(&family, &account.to_be_bytes(), &read)?;
    let found = found.expect("the account exists");
    Ok(u64::from_le_bytes(found[..].try_into().unwrap()))
}

/// Moves 1 from an account to the next one. Returns false if it has to begin again.
fn transfer(db: &TransactionDb, from: u64) -> bool {
    let concurrency = match percent(60) {
        true => Concurrency::Pessimistic,
        false => Concurrency::Optimistic,
    };
    let options = TransactionOptions::default()
        .concurrency(concurrency)
        .snapshot(percent(30))
        .lock_timeout(Some(Duration::MAX));
    let mut own = db.begin(&options).unwrap();
    let family = db.db().default_family();
    let moved = [(from, -1), ((from + 1) % ACCOUNTS, 1)]
        .into_iter()
        .try_for_each(|(account, by)| {
            let balance = balance(&mut own, db, account)?.wrapping_add_signed(by);
            own.put(&family, &account.to_be_bytes(), &balance.to_le_bytes())
        });
    let ended = moved.and_then(|()| own.commit(&WriteOptions::synced(percent(20))));
    match ended {
        Ok(_) => true,
        Err(e) => {
            let is_expected = matches!(e.kind(), ErrorKind::Conflict | ErrorKind::Deadlock);
            assert!(is_expected, "{e}");
            false
        }
    }
}

/// Returns the balances as of one moment.
fn balances(db: &TransactionDb) -> Vec<u64> {
    let own = db.begin(&TransactionOptions::optimistic()).unwrap();
    let iter = own.iter(&db.db().default_family(), &ReadOptions::default());
    let entries = iter.unwrap().map(|entry| entry.unwrap().1);
    let number = |value: basalt_fs::Bytes| u64::from_le_bytes(value[..].try_into().unwrap());
    entries.map(number).collect()
}

#[test]
fn no_transfer_is_lost_in_any_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..10 * campaign::scale()) {
        let _repeat = repeat!(no_transfer_is_lost_in_any_schedule, "BASALT_CASE={seed}");
        let totals = totals.clone();
        case(seed, move || {
            // Without checks of unlocked writes, locks must keep the transfers apart.
            let checks = percent(60);
            let db = open(TransactionDbOptions::default().check_unlocked_writes(checks));
            let family = db.db().default_family();
            for account in 0..ACCOUNTS {
                let (key, value) = (account.to_be_bytes(), BALANCE.to_le_bytes());
                let put = db.db().put(&family, &key, &value, &WriteOptions::UNSYNCED);
                put.unwrap();
            }
            let threads = (0..3).map(|_| {
                let db = db.clone();
                shuttle::thread::spawn(move || {
                    let from = below(ACCOUNTS);
                    while !transfer(&db, from) {}
                    from
                })
            });
            let threads: Vec<_> = threads.collect();
            if percent(50) {
                db.db().flush().unwrap();
            }
            let seen = balances(&db);
            assert_eq!(seen.iter().sum::<u64>(), ACCOUNTS * BALANCE, "{seen:?}");
            let mut expected = [BALANCE; ACCOUNTS as usize];
            for thread in threads {
                let from = thread.join().unwrap();
                expected[from as usize] -= 1;
                expected[((from + 1) % ACCOUNTS) as usize] += 1;
            }
            assert_eq!(balances(&db), expected);
            let stats = db.stats();
            assert_eq!(stats.locks, 0, "{stats:?}");
            count(&totals, 0, stats.lock_waits);
            count(&totals, 1, stats.conflicts);
            count(&totals, 2, stats.deadlocks);
            db.db().clone().close().unwrap();
        });
        schedules += CASE as u64;
    }
    let [waits, conflicts, deadlocks] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "transfer_schedules={schedules} waits={waits} conflicts={conflicts} deadlocks={deadlocks}"
    );
    if campaign::case().is_none() {
        assert!(waits > schedules / 20, "{waits} waits");
        assert!(conflicts > schedules / 4, "{conflicts} conflicts");
    }
}
