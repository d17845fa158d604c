//! Limits and wrong arguments end in an error that says what to do, and change nothing.

use crate::store::{BOTH, Texts, UNSYNCED, open, refused};
use basalt_fs::ErrorKind;
use basalt_lsm::{Db, Options, ReadOptions};
use basalt_transactions::{
    Concurrency, MAX_TRANSACTION_KEYS, TransactionDb, TransactionDbOptions, TransactionOptions,
};

#[test]
fn options_outside_of_their_range_are_refused() {
    let store = open(1);
    let options = TransactionDbOptions::default().max_locks(0);
    let e = refused(TransactionDb::new(&store.db, options));
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    for bytes in [0, u64::MAX] {
        let options = TransactionOptions::default().max_write_bytes(bytes);
        let e = refused(store.transactions.begin(&options));
        assert!(e.to_string().contains("max_write_bytes"), "{e}");
    }
}

#[test]
fn the_bytes_of_a_transaction_are_bounded_and_counted() {
    for concurrency in BOTH {
        let store = open(1);
        let [levels, pages] = &store.families;
        let before = store.env.ledger().usage().buffer;
        let options = TransactionOptions::default()
            .concurrency(concurrency)
            .max_write_bytes(10_000);
        let mut own = store.transactions.begin(&options).unwrap();
        own.set(levels, "a", &"x".repeat(4000)).unwrap();
        // A value that replaces another one of the transaction takes its place.
        for _ in 0..10 {
            own.set(levels, "a", &"y".repeat(4000)).unwrap();
        }
        let e = refused(own.set(pages, "b", &"z".repeat(6000)));
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains("max_write_bytes (10000)"), "{e}");
        assert_eq!(own.key_count(), 1, "the key was not added");
        assert!(own.write_bytes() < 5000, "{}", own.write_bytes());
        assert_eq!(
            store.env.ledger().usage().buffer,
            before + own.write_bytes()
        );
        // With a savepoint, the replaced values are kept.
        own.set_savepoint();
        own.set(levels, "a", "short").unwrap();
        assert!(own.write_bytes() > 4000, "{}", own.write_bytes());
        own.pop_savepoint().unwrap();
        assert!(own.write_bytes() < 1000, "{}", own.write_bytes());
        own.rollback();
        assert_eq!(store.env.ledger().usage().buffer, before);
        assert_eq!(store.get(0, "a"), None);
    }
}

/// The limit of keys is met at the call that exceeds it, not at the commit.
#[test]
fn the_keys_of_a_transaction_are_bounded() {
    let store = open(1);
    let levels = &store.families[0];
    let mut own = store.begin(Concurrency::Optimistic);
    for n in 0..MAX_TRANSACTION_KEYS as u32 {
        own.put(levels, &n.to_be_bytes(), b"").unwrap();
    }
    let e = refused(own.set(levels, "one more", ""));
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("several transactions"), "{e}");
    let e = refused(own.read_for_update(levels, "one more"));
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    // A key that it has may be written again.
    own.put(levels, &7u32.to_be_bytes(), b"again").unwrap();
    own.commit(&UNSYNCED).unwrap();
    let found = store
        .db
        .get(levels, &7u32.to_be_bytes(), &ReadOptions::default());
    assert_eq!(found.unwrap().as_deref(), Some(&b"again"[..]));
}

#[test]
fn wrong_arguments_are_refused() {
    for concurrency in BOTH {
        let store = open(1);
        let levels = &store.families[0];
        let mut own = store.begin(concurrency);
        let other = Db::open(&store.env, "other", Options::default()).unwrap();
        let foreign = &other.default_family();
        let e = refused(own.set(foreign, "a", "1"));
        assert!(e.to_string().contains("another store"), "{e}");
        refused(own.get(foreign, b"a", &ReadOptions::default()));
        refused(own.iter(foreign, &ReadOptions::default()));
        refused(own.get_for_update(foreign, b"a", &ReadOptions::default()));
        let answers = own.multi_get(&[(levels, b"a"), (foreign, b"a")], &ReadOptions::default());
        assert!(answers[0].is_ok() && answers[1].is_err());
        let too_long = vec![0; basalt_lsm::MAX_KEY_LEN + 1];
        refused(own.put(levels, &too_long, b""));
        refused(own.get_for_update(levels, &too_long, &ReadOptions::default()));
        refused(own.merge(&store.db.default_family(), b"a", b"1"));
        refused(own.delete_range(levels, b"b", b"a"));
        refused(own.rollback_to_savepoint());
        refused(own.pop_savepoint());
        let snapshot = ReadOptions::default().snapshot(Some(store.db.snapshot()));
        let e = refused(own.get(levels, b"a", &snapshot));
        assert!(e.to_string().contains("its own snapshot"), "{e}");
        for options in [
            ReadOptions::default().tailing(true),
            ReadOptions::default().prefix_same_as_start(true),
            ReadOptions::default().max_skippable_entries(9),
        ] {
            let e = refused(own.iter(levels, &options));
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        }
        let mut iter = own.iter(levels, &ReadOptions::default()).unwrap();
        refused(iter.next());
        refused(iter.prev());
        drop(iter);
        let is_optimistic = concurrency == Concurrency::Optimistic;
        assert_eq!(own.set_snapshot().is_err(), is_optimistic);
        assert_eq!(own.key_count(), 0);
        own.commit(&UNSYNCED).unwrap();
        assert_eq!(store.transactions.stats().locks, 0);
    }
}

#[test]
fn a_write_to_a_dropped_family_fails_the_commit() {
    for concurrency in BOTH {
        let store = open(1);
        let mut own = store.begin(concurrency);
        own.set(&store.families[0], "a", "1").unwrap();
        own.set(&store.families[1], "a", "1").unwrap();
        store.db.drop_family(&store.families[0]).unwrap();
        let e = refused(own.commit(&UNSYNCED));
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        assert_eq!(store.get(1, "a"), None);
        assert_eq!(store.transactions.stats().locks, 0);
    }
}
