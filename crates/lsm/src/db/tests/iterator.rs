//! [`Iter`] as a Rust iterator: where it begins, how it mixes with the cursor's own movements, how
//! it ends.

use super::prelude::*;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};

fn opened() -> (Env, Db) {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    (env, db)
}

fn put(db: &Db, keys: impl IntoIterator<Item = u8>) {
    for key in keys {
        let value = [key, key];
        db.put(
            &db.default_family(),
            &[key],
            &value,
            &WriteOptions::UNSYNCED,
        )
        .unwrap();
    }
}

fn iter(db: &Db, change: impl FnOnce(&mut ReadOptions)) -> Iter {
    let mut options = ReadOptions::default();
    change(&mut options);
    db.iter(&db.default_family(), &options).unwrap()
}

fn keys(entries: impl Iterator<Item = Result<(Bytes, Bytes)>>) -> Vec<u8> {
    let key = |entry: Result<(Bytes, Bytes)>| {
        let (key, value) = entry.unwrap();
        assert_eq!(&value[..], [key[0], key[0]]);
        key[0]
    };
    entries.map(key).collect()
}

#[test]
fn it_begins_at_the_first_entry_or_where_the_cursor_is() {
    let (_env, db) = opened();
    put(&db, 1..=9);
    assert_eq!(keys(iter(&db, |_| ())), (1..=9).collect::<Vec<u8>>());
    let bounds = |o: &mut ReadOptions| {
        o.lower_bound = Some(vec![3]);
        o.upper_bound = Some(vec![6]);
    };
    assert_eq!(keys(iter(&db, bounds)), [3, 4, 5]);
    let mut it = iter(&db, |_| ());
    it.seek(&[7]).unwrap();
    assert_eq!(keys(it.by_ref()), [7, 8, 9]);
    assert!(Iterator::next(&mut it).is_none() && !it.valid());
    // A movement of the cursor between two entries counts.
    it.seek_to_first().unwrap();
    assert_eq!(keys(it.by_ref().take(2)), [1, 2]);
    it.next().unwrap();
    assert_eq!(keys(it.by_ref().take(2)), [3, 4]);
    it.prev().unwrap();
    assert_eq!(keys(it.by_ref().take(1)), [3]);
    it.seek_for_prev(&[2, 0]).unwrap();
    assert_eq!(keys(it.by_ref().take(1)), [2]);
    it.seek_to_last().unwrap();
    assert_eq!(keys(it.by_ref()), [9]);
    // Refreshed it begins anew, with what was written meanwhile.
    put(&db, [0]);
    it.refresh(None).unwrap();
    assert_eq!(keys(it.by_ref()), (0..=9).collect::<Vec<u8>>());
    let mut entries = 0;
    for entry in db
        .iter(&db.default_family(), &ReadOptions::default())
        .unwrap()
    {
        entry.unwrap();
        entries += 1;
    }
    assert_eq!(entries, 10);
}

#[test]
fn entries_outlive_the_iterator_and_keys_only_has_empty_values() {
    let (_env, db) = opened();
    put(&db, [1]);
    let first = iter(&db, |_| ()).next_entry();
    assert_eq!((&first.0[..], &first.1[..]), (&[1][..], &[1, 1][..]));
    let first = iter(&db, |o| o.keys_only = true).next_entry();
    assert_eq!((&first.0[..], first.1.len()), (&[1][..], 0));
}

impl Iter {
    fn next_entry(mut self) -> (Bytes, Bytes) {
        Iterator::next(&mut self).unwrap().unwrap()
    }
}

#[test]
fn a_tailing_iterator_goes_on_after_its_end() {
    let (_env, db) = opened();
    put(&db, [1, 2]);
    let mut it = iter(&db, |o| o.tailing = true);
    assert_eq!(keys(it.by_ref()), [1, 2]);
    assert!(Iterator::next(&mut it).is_none());
    put(&db, [0, 3, 4]);
    assert_eq!(keys(it.by_ref()), [3, 4]);
}

#[test]
fn a_pause_is_an_error_and_ends_it() {
    let (_env, db) = opened();
    let f = db.default_family();
    put(&db, 1..=20);
    for key in 2..=19u8 {
        db.delete(&f, &[key], &WriteOptions::UNSYNCED).unwrap();
    }
    let mut it = iter(&db, |o| o.max_skippable_entries = 5);
    assert_eq!(Iterator::next(&mut it).unwrap().unwrap().0[..], [1]);
    let e = Iterator::next(&mut it).unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    assert!(e.to_string().contains("max_skippable_entries (5)"), "{e}");
    assert!(Iterator::next(&mut it).is_none());
    let at = it.resume_key().expect("it says where it paused").to_vec();
    let mut it = iter(&db, |_| ());
    it.seek(&at).unwrap();
    assert_eq!(keys(it), [20]);
}

#[test]
fn an_error_is_returned_once() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = Env::for_tests(faults.clone(), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    for key in 0..100u8 {
        db.put(&f, &[key], &[7; 3000], &WriteOptions::UNSYNCED)
            .unwrap();
    }
    db.close().unwrap();
    // Another environment has another cache.
    let env = Env::for_tests(faults.clone(), 2);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let mut it = iter(&db, |o| o.fill_cache = false);
    assert!(Iterator::next(&mut it).unwrap().is_ok());
    faults.inject(Fault {
        op: Some(OpKind::Read),
        path: String::new(),
        when: When::EveryKth(1),
        kind: FaultKind::Eio,
    });
    let failed = it.by_ref().position(|entry| entry.is_err());
    assert!(failed.is_some(), "no read failed");
    assert!(Iterator::next(&mut it).is_none());
    assert!(Iterator::next(&mut it).is_none());
}
