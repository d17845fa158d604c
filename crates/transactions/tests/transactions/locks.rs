//! Locks of pessimistic transactions among threads: waits, times, deadlocks, and what is left when
//! they end. No test depends on how long something takes.

use crate::store::{Texts, UNSYNCED, open, open_for_threads, open_on, refused};
use basalt_env::{Clock, EnvBuilder, ManualClock, thread};
use basalt_fs::ErrorKind;
use basalt_lsm::ReadOptions;
use basalt_sim::rng::Rng;
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use basalt_transactions::{
    Concurrency, Transaction, TransactionDb, TransactionDbOptions, TransactionOptions,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Waits without a limit: what hangs in a test below hangs for ever, and is found by that.
fn without_limit() -> TransactionDbOptions {
    TransactionDbOptions::default().lock_timeout(Duration::MAX)
}

/// Waits until a number of requests have waited for locks.
fn await_waits(transactions: &TransactionDb, n: u64) {
    while transactions.stats().lock_waits < n {
        std::thread::yield_now();
    }
}

#[test]
fn a_waiting_transaction_gets_the_lock_and_sees_what_was_committed() {
    let store = open_for_threads(1, without_limit());
    for family in 0..2 {
        let waits = store.transactions.stats().lock_waits;
        store.put(family, "x", "1");
        let family = &store.families[family];
        let mut first = store.begin(Concurrency::Pessimistic);
        first.set(family, "x", "2").unwrap();
        let seen = thread::scope(|scope| {
            let second = scope.spawn(|| {
                let mut second = store.begin(Concurrency::Pessimistic);
                let seen = second.read_for_update(family, "x").unwrap();
                second.commit(&UNSYNCED).unwrap();
                seen
            });
            await_waits(&store.transactions, waits + 1);
            first.commit(&UNSYNCED).unwrap();
            second.join().unwrap()
        });
        assert_eq!(seen.as_deref(), Some("2"));
        assert_eq!(store.transactions.stats().locks, 0);
    }
}

#[test]
fn a_rollback_and_a_drop_release_locks_and_leave_nothing() {
    let store = open(1);
    let levels = &store.families[0];
    for by_drop in [false, true] {
        let mut first = store.begin(Concurrency::Pessimistic);
        first.set(levels, "x", "never").unwrap();
        first.read_for_update(levels, "y").unwrap();
        assert_eq!(store.transactions.stats().locks, 2);
        match by_drop {
            true => drop(first),
            false => first.rollback(),
        }
        assert_eq!(store.transactions.stats().locks, 0);
        assert_eq!(store.get(0, "x"), None);
    }
    assert_eq!(store.transactions.stats().rollbacks, 2);
}

#[test]
fn readers_share_a_lock_and_writers_do_not() {
    let store = open(1);
    let levels = &store.families[0];
    let share = |own: &mut Transaction, key: &str| {
        own.get_for_share(levels, key.as_bytes(), &ReadOptions::default())
    };
    let mut first = store.begin(Concurrency::Pessimistic);
    let mut second = store.begin(Concurrency::Pessimistic);
    share(&mut first, "x").unwrap();
    share(&mut second, "x").unwrap();
    let e = refused(first.set(levels, "x", "1"));
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    assert!(e.to_string().contains("key \"x\""), "{e}");
    second.rollback();
    // The first one holds the lock alone now, and may raise it.
    first.set(levels, "x", "1").unwrap();
    let mut third = store.begin(Concurrency::Pessimistic);
    assert_eq!(refused(share(&mut third, "x")).kind(), ErrorKind::Busy);
    first.commit(&UNSYNCED).unwrap();
    assert_eq!(share(&mut third, "x").unwrap().as_deref(), Some(&b"1"[..]));
    drop(third);
    assert_eq!(store.transactions.stats().locks, 0);
}

#[test]
fn the_request_that_completes_a_deadlock_is_refused() {
    let store = open_for_threads(1, without_limit());
    let [levels, pages] = &store.families;
    // Three transactions in a ring: each has one key, and asks for the next one's.
    let keys = [(levels, "a"), (pages, "b"), (levels, "c")];
    let mut all: Vec<Transaction> = Vec::new();
    for (family, key) in keys {
        let mut own = store.begin(Concurrency::Pessimistic);
        own.set(family, key, "held").unwrap();
        all.push(own);
    }
    let mut last = all.pop().unwrap();
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (n, mut own) in all.into_iter().enumerate() {
            let (family, key) = keys[n + 1];
            waiting.push(scope.spawn(move || {
                own.set(family, key, "got").unwrap();
                own.commit(&UNSYNCED).unwrap();
            }));
            await_waits(&store.transactions, n as u64 + 1);
        }
        let e = refused(last.set(keys[0].0, keys[0].1, "never"));
        assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}");
        for part in ["3 transactions", "\"a\"", "\"b\"", "\"c\"", "roll this"] {
            assert!(e.to_string().contains(part), "{part}: {e}");
        }
        // Another key may still be locked: the refused request has left the queue.
        last.set(levels, "d", "never").unwrap();
        last.rollback();
        for waiting in waiting {
            waiting.join().unwrap();
        }
    });
    let stats = store.transactions.stats();
    assert_eq!((stats.deadlocks, stats.locks), (1, 0));
    assert_eq!((stats.commits, stats.rollbacks), (2, 1));
    assert_eq!(store.get(0, "c").as_deref(), Some("got"));
    assert_eq!(store.get(0, "d"), None);
}

/// Two readers that both want to write would wait for each other.
#[test]
fn two_upgrades_of_one_lock_are_a_deadlock() {
    let store = open_for_threads(1, without_limit());
    let levels = &store.families[0];
    let share = |own: &mut Transaction| {
        let read = own.get_for_share(levels, b"x", &ReadOptions::default());
        read.unwrap();
    };
    let mut first = store.begin(Concurrency::Pessimistic);
    let mut second = store.begin(Concurrency::Pessimistic);
    share(&mut first);
    share(&mut second);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            first.set(levels, "x", "first").unwrap();
            first.commit(&UNSYNCED).unwrap();
        });
        await_waits(&store.transactions, 1);
        let e = refused(second.set(levels, "x", "second"));
        assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}");
        drop(second);
        waiting.join().unwrap();
    });
    assert_eq!(store.get(0, "x").as_deref(), Some("first"));
}

/// A wait ends when the clock says so, whether the clock moves by itself or a test moves it.
#[test]
fn a_wait_ends_at_its_time() {
    for ticks in [true, false] {
        let clock = match ticks {
            true => ManualClock::ticking(1_700_000_000_000, Duration::from_millis(50)),
            false => ManualClock::new(1_700_000_000_000),
        };
        let disk = SimFs::new(SimOptions::default());
        let env = EnvBuilder::new(disk.clone())
            .threads(1)
            .seed(1)
            .clock(Clock::manual(clock.clone()))
            .build();
        let store = open_on(disk, env, TransactionDbOptions::default());
        let levels = &store.families[0];
        let mut first = store.begin(Concurrency::Pessimistic);
        first.set(levels, "x", "1").unwrap();
        let mut second = store.begin(Concurrency::Pessimistic);
        let e = thread::scope(|scope| {
            let waiting = scope.spawn(|| refused(second.set(levels, "x", "2")));
            await_waits(&store.transactions, 1);
            if !ticks {
                // Not enough, and then enough.
                clock.advance(Duration::from_millis(999));
                assert_eq!(store.transactions.stats().lock_timeouts, 0);
                clock.advance(Duration::from_millis(2));
            }
            waiting.join().unwrap()
        });
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        assert!(e.retryable(), "the same call may succeed later");
        assert!(e.to_string().contains("1s is over"), "{e}");
        assert_eq!(store.transactions.stats().lock_timeouts, 1);
        first.commit(&UNSYNCED).unwrap();
        second.set(levels, "x", "2").unwrap();
        second.commit(&UNSYNCED).unwrap();
        assert_eq!(store.get(0, "x").as_deref(), Some("2"));
    }
}

#[test]
fn the_locks_of_a_handle_are_bounded() {
    let options = TransactionDbOptions::default().max_locks(2);
    let store = open_for_threads(1, options);
    let levels = &store.families[0];
    let mut own = store.begin(Concurrency::Pessimistic);
    own.set(levels, "a", "1").unwrap();
    own.set(levels, "b", "1").unwrap();
    let e = refused(own.set(levels, "c", "1"));
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    assert!(e.to_string().contains("max_locks"), "{e}");
    own.set(levels, "a", "2").unwrap();
    own.commit(&UNSYNCED).unwrap();
    assert_eq!(store.transactions.stats().locks, 0);
}

/// Without the check at the commit, a plain write is overwritten: the option says so.
#[test]
fn commits_without_checks_are_plain_writes() {
    let options = TransactionDbOptions::default().check_unlocked_writes(false);
    let store = open_for_threads(1, options);
    let mut own = store.begin(Concurrency::Pessimistic);
    own.set(&store.families[1], "x", "2").unwrap();
    store.put(1, "x", "plain");
    store.db.flush().unwrap();
    own.commit(&UNSYNCED).unwrap();
    assert_eq!(store.get(1, "x").as_deref(), Some("2"));
    // An optimistic transaction compares its keys with its snapshot all the same.
    let mut own = store.begin(Concurrency::Optimistic);
    own.set(&store.families[0], "x", "2").unwrap();
    store.put(0, "x", "plain");
    assert_eq!(refused(own.commit(&UNSYNCED)).kind(), ErrorKind::Conflict);
    assert_eq!(store.transactions.stats().locks, 0);
}

const ACCOUNTS: u64 = 6;
const BALANCE: u64 = 100;

fn account(n: u64) -> String {
    format!("account-{n}")
}

/// Moves money between two accounts, which are in families of both kinds.
fn transfer(
    store: &crate::store::Store,
    own: &mut Transaction,
    [from, to]: [u64; 2],
    amount: u64,
) -> basalt_fs::Result<()> {
    let family = |n: u64| &store.families[n as usize % 2];
    let mut move_by = |n: u64, by: i64| {
        let balance = own.read_for_update(family(n), &account(n))?;
        let balance: i64 = balance.expect("it exists").parse().expect("a number");
        own.set(family(n), &account(n), &(balance + by).to_string())
    };
    move_by(from, -(amount as i64))?;
    move_by(to, amount as i64)
}

/// Threads transfer money in random orders of accounts, with both kinds of transactions. Deadlocks
/// and conflicts are retried, no wait is without an end, and no money is lost.
fn bank(seed: u64, concurrency: Concurrency, checks: bool) -> [u64; 3] {
    const THREADS: u64 = 4;
    const TRANSFERS: u64 = 40;
    let store = open_for_threads(seed, without_limit().check_unlocked_writes(checks));
    for n in 0..ACCOUNTS {
        store.put(n as usize % 2, &account(n), &BALANCE.to_string());
    }
    let options = TransactionOptions::default().concurrency(concurrency);
    let done = AtomicU64::new(0);
    // What each transfer has changed.
    let history = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (store, options, done, history) = (&store, &options, &done, &history);
            scope.spawn(move || {
                let mut rng = Rng::of(&[seed, t]);
                for _ in 0..TRANSFERS {
                    let from = rng.below(ACCOUNTS);
                    let to = (from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS;
                    let amount = rng.below(10);
                    let moved =
                        (store.transactions).with_retry(options, &UNSYNCED, 10_000, |own| {
                            transfer(store, own, [from, to], amount)
                        });
                    moved.expect("it is accepted at last");
                    history.lock().unwrap().push((from, to, amount));
                    done.fetch_add(1, SeqCst);
                    if rng.percent(5) {
                        store.db.flush().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(done.load(SeqCst), THREADS * TRANSFERS);
    let mut balances = [BALANCE as i64; ACCOUNTS as usize];
    for (from, to, amount) in history.into_inner().unwrap() {
        balances[from as usize] -= amount as i64;
        balances[to as usize] += amount as i64;
    }
    for n in 0..ACCOUNTS {
        let found = store.get(n as usize % 2, &account(n)).unwrap();
        assert_eq!(found, balances[n as usize].to_string(), "{}", account(n));
    }
    let stats = store.transactions.stats();
    assert_eq!(stats.locks, 0);
    assert_eq!(stats.commits, THREADS * TRANSFERS);
    assert_eq!(stats.begun, stats.commits + stats.rollbacks);
    [stats.lock_waits, stats.deadlocks, stats.conflicts]
}

#[test]
fn a_bank_loses_no_money() {
    let mut totals = [0; 3];
    for seed in campaign::cases(0..6 * campaign::scale()) {
        let _repeat = repeat!(a_bank_loses_no_money, "BASALT_CASE={seed}");
        for (concurrency, checks) in [
            (Concurrency::Pessimistic, true),
            (Concurrency::Pessimistic, false),
            (Concurrency::Optimistic, true),
            (Concurrency::Optimistic, false),
        ] {
            let counts = bank(seed, concurrency, checks);
            totals.iter_mut().zip(counts).for_each(|(t, n)| *t += n);
        }
    }
    let [waits, deadlocks, conflicts] = totals;
    basalt_sim::campaign!(
        "transfer_waits={waits} transfer_deadlocks={deadlocks} transfer_conflicts={conflicts}"
    );
    assert!(waits > 0 && conflicts > 0, "threads never met");
}
