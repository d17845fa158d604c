//! A complete catalog, and catalogs of which each part is lost: none passes for an empty store or
//! an older one.

use super::*;
use basalt::{Env, FamilyOptions};
use basalt_sim::{SimFs, SimOptions};

fn store() -> (Db, Family) {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let keys = db
        .create_family(KEYS_FAMILY, FamilyOptions::default())
        .unwrap();
    (db, keys)
}

fn put(db: &Db, keys: &Family, generation: u32, key: &[u8]) {
    let key = layout::encode_key(DATABASE, generation, key);
    db.put(keys, &key, b"\0value", &WriteOptions::UNSYNCED)
        .unwrap();
}

fn set_generation(db: &Db, keys: &Family, generation: u32) {
    let key = layout::generation_key(DATABASE);
    db.put(keys, &key, &generation.to_le_bytes(), &WriteOptions::SYNC)
        .unwrap();
}

fn remove(db: &Db, keys: &Family, key: &[u8]) {
    db.delete(keys, key, &WriteOptions::SYNC).unwrap();
}

#[track_caller]
fn lost(db: &Db, keys: &Family, part: &str) {
    let e = read(db, keys).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(e.to_string().contains(part), "{e}");
    assert!(e.to_string().contains("basalt repair"), "{e}");
}

#[test]
fn a_whole_catalog_has_the_generation_and_a_new_one_none() {
    let (db, keys) = store();
    assert_eq!(read(&db, &keys).unwrap(), None);
    assert!(repair(&db, &keys, false).unwrap().is_empty());
    assert_eq!(
        read(&db, &keys).unwrap(),
        None,
        "nothing is made of nothing"
    );
    make(&db, &keys).unwrap();
    assert_eq!(read(&db, &keys).unwrap(), Some(0));
    put(&db, &keys, 0, b"key");
    assert_eq!(read(&db, &keys).unwrap(), Some(0));
    // After a flush, keys of the generation before do not matter. The new generation needs no key.
    set_generation(&db, &keys, 1);
    assert_eq!(read(&db, &keys).unwrap(), Some(1));
    put(&db, &keys, 1, b"key");
    assert_eq!(read(&db, &keys).unwrap(), Some(1));
    assert!(repair(&db, &keys, false).unwrap().is_empty());
    db.close().unwrap();
}

#[test]
fn keys_without_a_layout_record_are_not_an_empty_store() {
    let (db, keys) = store();
    make(&db, &keys).unwrap();
    put(&db, &keys, 0, b"key");
    remove(&db, &keys, &layout::layout_key());
    lost(&db, &keys, "no record of the layout");
    let repaired = repair(&db, &keys, false).unwrap();
    assert!(
        repaired[0].contains("layout") && repaired[1].contains("FLUSHALL"),
        "{repaired:?}"
    );
    assert_eq!(read(&db, &keys).unwrap(), Some(0));
    let cursor = db.get(&keys, &layout::cursor_key(), &ReadOptions::default());
    let cursor = layout::decode_cursor(&cursor.unwrap().unwrap()).unwrap();
    assert!(
        cursor > 1 << 50,
        "cursors are not given out twice: {cursor}"
    );
    db.close().unwrap();
}

#[test]
fn records_without_a_layout_record_are_not_an_empty_store() {
    for record in 0..2 {
        let (db, keys) = store();
        match record {
            0 => set_generation(&db, &keys, 3),
            _ => {
                let key = layout::cursor_key();
                db.put(&keys, &key, &9u64.to_le_bytes(), &WriteOptions::SYNC)
                    .unwrap();
            }
        }
        lost(&db, &keys, "no record of the layout");
        assert!(!repair(&db, &keys, false).unwrap().is_empty());
        assert_eq!(
            read(&db, &keys).unwrap(),
            Some(if record == 0 { 3 } else { 0 })
        );
        db.close().unwrap();
    }
}

/// If the record of the generation, or of the newest of two, is lost, flushed keys would show and
/// current ones would be hidden.
#[test]
fn keys_of_an_unrecorded_generation_are_current() {
    for older in [None, Some(1)] {
        let (db, keys) = store();
        make(&db, &keys).unwrap();
        put(&db, &keys, 0, b"flushed");
        put(&db, &keys, 2, b"current");
        match older {
            None => remove(&db, &keys, &layout::generation_key(DATABASE)),
            Some(older) => set_generation(&db, &keys, older),
        }
        lost(&db, &keys, "there are keys of generation 2");
        let repaired = repair(&db, &keys, false).unwrap();
        assert!(
            repaired.len() == 1 && repaired[0].contains("2, the highest"),
            "{repaired:?}"
        );
        assert_eq!(read(&db, &keys).unwrap(), Some(2));
        assert!(repair(&db, &keys, false).unwrap().is_empty());
        db.close().unwrap();
    }
}

/// Keys of the generation before do not hide keys of the current one.
#[test]
fn a_flushed_generation_does_not_hide_a_later_one() {
    let (db, keys) = store();
    make(&db, &keys).unwrap();
    for n in 0..50u64 {
        put(&db, &keys, 0, &n.to_be_bytes());
        put(&db, &keys, 1, &n.to_be_bytes());
    }
    for n in 1..50u64 {
        remove_unsynced(
            &db,
            &keys,
            &layout::encode_key(DATABASE, 1, &n.to_be_bytes()),
        );
    }
    lost(&db, &keys, "there are keys of generation 1");
    db.close().unwrap();
}

/// If a repair may have lost the last flush without a trace, it reports that, and no cursor is
/// given out twice.
#[test]
fn a_flush_that_repair_may_have_lost_is_reported() {
    let (db, keys) = store();
    make(&db, &keys).unwrap();
    put(&db, &keys, 0, b"key");
    assert!(repair(&db, &keys, false).unwrap().is_empty());
    let mut cursors = Vec::new();
    for _ in 0..3 {
        let repaired = repair(&db, &keys, true).unwrap();
        assert!(
            repaired.len() == 1 && repaired[0].starts_with("perhaps"),
            "{repaired:?}"
        );
        let record = db.get(&keys, &layout::cursor_key(), &ReadOptions::default());
        cursors.push(layout::decode_cursor(&record.unwrap().unwrap()).unwrap());
    }
    assert!(
        cursors.windows(2).all(|c| c[0] + (1 << 40) < c[1]),
        "{cursors:?}"
    );
    assert_eq!(read(&db, &keys).unwrap(), Some(0));
    db.close().unwrap();
}

/// No version writes a record of another length: it counts as lost.
#[test]
fn unreadable_catalog_records_are_rewritten() {
    let (db, keys) = store();
    make(&db, &keys).unwrap();
    put(&db, &keys, 4, b"key");
    for key in [
        layout::layout_key(),
        layout::generation_key(DATABASE),
        layout::cursor_key(),
    ] {
        db.put(&keys, &key, b"odd", &WriteOptions::SYNC).unwrap();
        assert!(read(&db, &keys).unwrap_err().is_corruption());
        repair(&db, &keys, true).unwrap();
        assert_eq!(read(&db, &keys).unwrap(), Some(4));
    }
    db.close().unwrap();
}

/// Deleted keys show their generation as well, in any number.
#[test]
fn the_generation_of_deleted_keys_is_found_in_few_steps() {
    let (db, keys) = store();
    make(&db, &keys).unwrap();
    for n in 0..3 * SEARCH {
        put(&db, &keys, 1, &n.to_be_bytes());
    }
    set_generation(&db, &keys, 1);
    db.flush().unwrap();
    for n in 0..3 * SEARCH {
        remove_unsynced(
            &db,
            &keys,
            &layout::encode_key(DATABASE, 1, &n.to_be_bytes()),
        );
    }
    assert_eq!(read(&db, &keys).unwrap(), Some(1));
    remove(&db, &keys, &layout::generation_key(DATABASE));
    lost(&db, &keys, "there are keys of generation 1");
    db.close().unwrap();
}

fn remove_unsynced(db: &Db, keys: &Family, key: &[u8]) {
    db.delete(keys, key, &WriteOptions::UNSYNCED).unwrap();
}
