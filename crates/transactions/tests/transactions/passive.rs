//! Transactions on a passive store: prepared, logged by the owner, and applied.

use crate::store::{BOTH, refused};
use basalt_env::Env;
use basalt_fs::ErrorKind;
use basalt_lsm::db::Logged;
use basalt_lsm::{Db, LogMode, Options, PassiveOptions, ReadOptions, WriteOptions};
use basalt_sim::{SimFs, SimOptions};
use basalt_transactions::{
    Concurrency, PreparedTransaction, Transaction, TransactionDb, TransactionDbOptions,
    TransactionOptions,
};
use std::time::Duration;

fn open(check_unlocked_writes: bool) -> (Db, TransactionDb) {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 5);
    let options = Options::default().log(LogMode::Passive(PassiveOptions::default()));
    let replay = Db::open_passive(&env, "db", options).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    let options = TransactionDbOptions::default()
        .lock_timeout(Duration::ZERO)
        .check_unlocked_writes(check_unlocked_writes);
    let transactions = TransactionDb::new(&db, options).expect("valid options");
    (db, transactions)
}

fn begin(transactions: &TransactionDb, concurrency: Concurrency) -> Transaction {
    let options = TransactionOptions::default().concurrency(concurrency);
    transactions.begin(&options).expect("valid options")
}

fn prepared(
    transactions: &TransactionDb,
    concurrency: Concurrency,
    key: &[u8],
) -> PreparedTransaction {
    let family = transactions.db().default_family();
    let mut transaction = begin(transactions, concurrency);
    transaction
        .put(&family, key, b"new")
        .expect("no other has it");
    transaction.prepare().expect("nothing has changed")
}

#[test]
fn a_prepared_transaction_keeps_its_keys_until_it_is_applied() {
    for concurrency in BOTH {
        for check_unlocked_writes in [false, true] {
            let (db, transactions) = open(check_unlocked_writes);
            let family = db.default_family();
            let read = |key: &[u8]| {
                db.get(&family, key, &ReadOptions::default())
                    .expect("sound")
            };
            let mut first = prepared(&transactions, concurrency, b"a");
            assert_eq!(first.batch().len(), 1);
            assert_eq!(read(b"a"), None, "it is not applied");
            // The key is taken: a second transaction of either kind does not get it.
            for other in BOTH {
                let mut second = begin(&transactions, other);
                let put = second.put(&family, b"a", b"other");
                let e = refused(put.and_then(|()| second.prepare().map(|_| ())));
                assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            }
            first.commit_at(1).expect("the next transaction");
            assert_eq!(read(b"a").as_deref(), Some(&b"new"[..]));
            // The locks are free, and an optimistic transaction that began before conflicts.
            let mut old = begin(&transactions, Concurrency::Optimistic);
            let mut third = prepared(&transactions, concurrency, b"a");
            third.commit_at(2).expect("the next transaction");
            old.put(&family, b"a", b"old").expect("nothing is locked");
            let e = refused(old.prepare().map(|_| ()));
            assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
        }
    }
}

#[test]
fn prepared_transactions_are_applied_in_groups() {
    for concurrency in BOTH {
        let (db, transactions) = open(false);
        let family = db.default_family();
        let keys = [&b"a"[..], b"b", b"c"];
        let mut group: Vec<_> = keys
            .map(|key| prepared(&transactions, concurrency, key))
            .into();
        let batches = group.iter_mut().zip(1..);
        let batches = batches.map(|(t, tsn)| (Logged::at(tsn), t.take_batch()));
        let mut batches: Vec<_> = batches.collect();
        db.write_group_at(&mut batches)
            .expect("the next transactions");
        group.into_iter().for_each(PreparedTransaction::applied);
        for key in keys {
            let found = db
                .get(&family, key, &ReadOptions::default())
                .expect("sound");
            assert!(found.is_some());
        }
        let stats = transactions.stats();
        assert_eq!((stats.commits, stats.locks), (3, 0), "{stats:?}");
    }
}

#[test]
fn a_prepared_transaction_that_is_dropped_is_rolled_back() {
    for concurrency in BOTH {
        let (db, transactions) = open(true);
        drop(prepared(&transactions, concurrency, b"a"));
        let stats = transactions.stats();
        assert_eq!((stats.rollbacks, stats.locks), (1, 0), "{stats:?}");
        // A number that is not the next one applies nothing. The transaction is in its owner's log,
        // so it keeps its locks and is applied again.
        let mut again = prepared(&transactions, concurrency, b"a");
        let e = refused(again.commit_at(7));
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(transactions.stats().locks > 0);
        assert_eq!(again.batch().len(), 1);
        again.commit_at(1).expect("the next transaction");
        assert_eq!(transactions.stats().locks, 0);
        // A commit needs a number.
        let mut plain = begin(&transactions, concurrency);
        plain
            .put(&db.default_family(), b"a", b"1")
            .expect("no other has it");
        let e = refused(plain.commit(&WriteOptions::UNSYNCED));
        assert!(e.to_string().contains("passive"), "{e}");
    }
}

/// Keys that another layer writes are locked and checked, although the transaction has no write.
#[test]
fn keys_of_another_layer_are_checked() {
    use basalt_transactions::KeyCheck;
    let (db, transactions) = open(false);
    let family = db.default_family();
    let apply = |key: &[u8]| {
        let tsn = db.persistence_points().expect("sound").applied + 1;
        let mut batch = basalt_kv::WriteBatch::new();
        batch.put(&family, key, b"x").expect("a short key");
        db.write_at(tsn, batch).expect("the next transaction");
    };
    for check in [KeyCheck::Write, KeyCheck::Read, KeyCheck::Lock] {
        let mut old = begin(&transactions, Concurrency::Optimistic);
        old.check_key(&family, b"a", check).expect("a short key");
        apply(b"a");
        let prepared = old.prepare();
        // A key that is locked alone may have changed.
        match check {
            KeyCheck::Lock => {
                let prepared = prepared.expect("it is not checked");
                assert!(prepared.batch().is_empty());
            }
            KeyCheck::Write | KeyCheck::Read => {
                let e = refused(prepared.map(|_| ()));
                assert_eq!(e.kind(), ErrorKind::Conflict, "{check:?}: {e}");
            }
        }
    }
    // A key that is written is taken; readers of a key have it together.
    let holder = |check| {
        let mut transaction = begin(&transactions, Concurrency::Optimistic);
        transaction
            .check_key(&family, b"b", check)
            .expect("a short key");
        transaction.prepare()
    };
    for (first, second, together) in [
        (KeyCheck::Write, KeyCheck::Write, false),
        (KeyCheck::Write, KeyCheck::Lock, false),
        (KeyCheck::Read, KeyCheck::Write, false),
        (KeyCheck::Read, KeyCheck::Lock, true),
        (KeyCheck::Lock, KeyCheck::Lock, true),
    ] {
        let held = holder(first).expect("the key is free");
        let other = holder(second);
        assert_eq!(other.is_ok(), together, "{first:?} and {second:?}");
        drop(held);
    }
    let mut pessimistic = begin(&transactions, Concurrency::Pessimistic);
    let e = refused(pessimistic.check_key(&family, b"b", KeyCheck::Read));
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}
