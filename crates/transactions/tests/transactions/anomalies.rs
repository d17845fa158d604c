//! The anomalies of concurrent transactions, by their names in the literature (Berenson and others,
//! "A Critique of ANSI SQL Isolation Levels"), in each family and with both kinds of transactions.

use crate::store::{BOTH, Store, Texts, UNSYNCED, open, refused};
use basalt_fs::ErrorKind;
use basalt_lsm::ReadOptions;
use basalt_transactions::{Concurrency, Transaction, TransactionOptions};
use std::time::Duration;

/// Runs a test with each kind of transactions, and each pair of families.
fn everywhere(test: impl Fn(&Store, Concurrency, usize, usize)) {
    for concurrency in BOTH {
        for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let store = open(7);
            store.put(x, "x", "1");
            store.put(y, "y", "1");
            test(&store, concurrency, x, y);
        }
    }
}

#[test]
fn a_dirty_read_is_prevented() {
    everywhere(|store, concurrency, x, _| {
        let family = &store.families[x];
        let mut writer = store.begin(concurrency);
        writer.set(family, "x", "2").unwrap();
        assert_eq!(writer.read(family, "x").as_deref(), Some("2"));
        let reader = store.begin(concurrency);
        assert_eq!(reader.read(family, "x").as_deref(), Some("1"));
        writer.rollback();
        assert_eq!(reader.read(family, "x").as_deref(), Some("1"));
        assert_eq!(store.get(x, "x").as_deref(), Some("1"));
    });
}

#[test]
fn a_dirty_write_is_prevented() {
    everywhere(|store, concurrency, x, y| {
        let families = [&store.families[x], &store.families[y]];
        let mut first = store.begin(concurrency);
        let mut second = store.begin(concurrency);
        first.set(families[0], "x", "first").unwrap();
        let second_x = second.set(families[0], "x", "second");
        second.set(families[1], "y", "second").unwrap();
        if concurrency == Concurrency::Pessimistic {
            assert_eq!(refused(second_x).kind(), ErrorKind::Busy);
            second.rollback();
            first.set(families[1], "y", "first").unwrap();
            first.commit(&UNSYNCED).unwrap();
        } else {
            first.set(families[1], "y", "first").unwrap();
            first.commit(&UNSYNCED).unwrap();
            let e = refused(second.commit(&UNSYNCED));
            assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
        }
        assert_eq!(store.get(x, "x").as_deref(), Some("first"));
        assert_eq!(store.get(y, "y").as_deref(), Some("first"));
    });
}

#[test]
fn a_lost_update_is_prevented() {
    everywhere(|store, concurrency, x, _| {
        let family = &store.families[x];
        let mut first = store.begin(concurrency);
        let mut second = store.begin(concurrency);
        let read = first.read_for_update(family, "x").unwrap();
        assert_eq!(read.as_deref(), Some("1"));
        let read = second.read_for_update(family, "x");
        if concurrency == Concurrency::Pessimistic {
            assert_eq!(refused(read).kind(), ErrorKind::Busy);
        }
        first.set(family, "x", "1+1").unwrap();
        first.commit(&UNSYNCED).unwrap();
        if concurrency == Concurrency::Pessimistic {
            // With the lock, the second one sees what the first one has written.
            let read = second.read_for_update(family, "x").unwrap();
            assert_eq!(read.as_deref(), Some("1+1"));
            second.set(family, "x", "1+1+1").unwrap();
            second.commit(&UNSYNCED).unwrap();
            assert_eq!(store.get(x, "x").as_deref(), Some("1+1+1"));
        } else {
            second.set(family, "x", "1+1").unwrap();
            let e = refused(second.commit(&UNSYNCED));
            assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
            assert_eq!(store.transactions.stats().conflicts, 1);
        }
    });
}

/// A plain write takes no lock, and the commit detects it all the same.
#[test]
fn a_plain_write_is_not_overwritten_unseen() {
    everywhere(|store, concurrency, x, _| {
        let family = &store.families[x];
        let mut own = store.begin(concurrency);
        let read = own.read_for_update(family, "x").unwrap();
        assert_eq!(read.as_deref(), Some("1"));
        own.set(family, "x", "2").unwrap();
        store.put(x, "x", "plain");
        let e = refused(own.commit(&UNSYNCED));
        assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
        assert_eq!(store.get(x, "x").as_deref(), Some("plain"));
        assert_eq!(store.transactions.stats().locks, 0);
    });
}

/// Begins a transaction that reads as of now, whatever its kind.
fn begin_with_snapshot(store: &Store, concurrency: Concurrency) -> Transaction {
    let options = TransactionOptions::default()
        .concurrency(concurrency)
        .snapshot(true)
        .lock_timeout(Some(Duration::ZERO));
    store.transactions.begin(&options).unwrap()
}

#[test]
fn a_non_repeatable_read_is_prevented_by_a_snapshot() {
    everywhere(|store, concurrency, x, y| {
        let family = &store.families[x];
        let reader = begin_with_snapshot(store, concurrency);
        assert_eq!(reader.read(family, "x").as_deref(), Some("1"));
        store.put(x, "x", "2");
        store.db.flush().unwrap();
        assert_eq!(reader.read(family, "x").as_deref(), Some("1"));
        // A pessimistic transaction without a snapshot reads what is committed.
        let reader = store.begin(Concurrency::Pessimistic);
        assert_eq!(reader.read(family, "x").as_deref(), Some("2"));
        store.put(x, "x", "3");
        assert_eq!(reader.read(family, "x").as_deref(), Some("3"));
        let _ = y;
    });
}

#[test]
fn a_read_skew_is_prevented_by_a_snapshot() {
    everywhere(|store, concurrency, x, y| {
        let reader = begin_with_snapshot(store, concurrency);
        assert_eq!(reader.read(&store.families[x], "x").as_deref(), Some("1"));
        let mut writer = store.begin(concurrency);
        writer.set(&store.families[x], "x", "2").unwrap();
        writer.set(&store.families[y], "y", "2").unwrap();
        writer.commit(&UNSYNCED).unwrap();
        assert_eq!(reader.read(&store.families[y], "y").as_deref(), Some("1"));
        let mut iter = reader
            .iter(&store.families[y], &ReadOptions::default())
            .unwrap();
        iter.seek(b"y").unwrap();
        assert_eq!(iter.value(), b"1");
    });
}

/// Each of two transactions reads what the other one writes. Snapshots alone do not prevent it.
#[test]
fn write_skew_needs_reads_for_update() {
    everywhere(|store, concurrency, x, y| {
        let (fx, fy) = (&store.families[x], &store.families[y]);
        let mut first = begin_with_snapshot(store, concurrency);
        let mut second = begin_with_snapshot(store, concurrency);
        assert_eq!(first.read(fy, "y").as_deref(), Some("1"));
        assert_eq!(second.read(fx, "x").as_deref(), Some("1"));
        first.set(fx, "x", "0").unwrap();
        second.set(fy, "y", "0").unwrap();
        first.commit(&UNSYNCED).unwrap();
        second.commit(&UNSYNCED).unwrap();
        assert_eq!(store.get(x, "x").as_deref(), Some("0"));
        assert_eq!(store.get(y, "y").as_deref(), Some("0"));

        let mut first = begin_with_snapshot(store, concurrency);
        let mut second = begin_with_snapshot(store, concurrency);
        first.read_for_update(fy, "y").unwrap();
        first.set(fx, "x", "9").unwrap();
        let read = second.read_for_update(fx, "x");
        if concurrency == Concurrency::Pessimistic {
            assert_eq!(refused(read).kind(), ErrorKind::Busy);
            first.commit(&UNSYNCED).unwrap();
            // The lock is free, but the key was changed since the snapshot.
            let e = refused(second.read_for_update(fx, "x"));
            assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
        } else {
            second.set(fy, "y", "9").unwrap();
            first.commit(&UNSYNCED).unwrap();
            let e = refused(second.commit(&UNSYNCED));
            assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
        }
        assert_eq!(store.get(x, "x").as_deref(), Some("9"));
        assert_eq!(store.get(y, "y").as_deref(), Some("0"));
    });
}

/// The absence of a key is read for update as its value is.
#[test]
fn a_key_that_was_read_as_absent_stays_absent() {
    everywhere(|store, concurrency, x, y| {
        let mut first = store.begin(concurrency);
        assert_eq!(
            first.read_for_update(&store.families[x], "new").unwrap(),
            None
        );
        first
            .set(&store.families[y], "y", "there was none")
            .unwrap();
        store.put(x, "new", "1");
        let e = refused(first.commit(&UNSYNCED));
        assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
        assert!(e.to_string().contains("new"), "{e}");
        assert_eq!(store.get(y, "y").as_deref(), Some("1"));
    });
}

/// A scan reads no key for update: a key that appears in its range is no conflict (a phantom). A
/// transaction that depends on a range reads a key that stands for the range.
#[test]
fn a_phantom_needs_a_key_for_the_range() {
    let count = |transaction: &Transaction, store: &Store| {
        let mut iter = transaction
            .iter(&store.families[0], &ReadOptions::default())
            .unwrap();
        let mut n = 0;
        iter.seek_to_first().unwrap();
        while iter.valid() {
            n += 1;
            iter.next().unwrap();
        }
        n
    };
    let store = open(3);
    let levels = &store.families[0];
    for (reads_guard, expected) in [(false, true), (true, false)] {
        store.put(0, "a", "1");
        let mut counts = store.begin(Concurrency::Optimistic);
        if reads_guard {
            counts.read_for_update(&store.families[1], "guard").unwrap();
        }
        let n = count(&counts, &store);
        counts
            .set(&store.families[1], "count", &n.to_string())
            .unwrap();
        let mut adds = store.begin(Concurrency::Optimistic);
        adds.set(levels, &format!("b{n}"), "1").unwrap();
        adds.set(&store.families[1], "guard", "changed").unwrap();
        adds.commit(&UNSYNCED).unwrap();
        // The snapshot does not show the new key in any case.
        assert_eq!(count(&counts, &store), n);
        assert_eq!(counts.commit(&UNSYNCED).is_ok(), expected);
    }
}
