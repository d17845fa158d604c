//! Sums over numbers in a manifest: no bytes from disk may make a sum overflow.

use super::prelude::*;
use crate::db::tests::blobs::FREE;
use crate::db::tests::gc_drop::{key, options, separating, value};
use crate::version::catalog::Catalog;
use crate::version::catalog::CatalogTable;
use crate::version::edit::Edit;
use crate::version::manifest::{Manifest, manifest_path};
use basalt_blob::FamilyShare;
use basalt_blob::garbage::Garbage;
use basalt_fs::ErrorKind;
use basalt_sim::{SimFs, SimOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A closed store with one blob file of two families, and its catalog.
fn two_families(env: &Env) -> (u64, Catalog) {
    let db = Db::open(env, "db", options()).unwrap();
    let second = db.create_family("second", separating()).unwrap();
    for n in 0..6 {
        let family = [&db.default_family(), &second][usize::from(n >= 2)].clone();
        db.put(&family, &key(n), &value(n, 0), &FREE).unwrap();
    }
    db.flush().unwrap();
    let catalog = db.engine().tree.lock().catalog().clone();
    let number = db.engine().tree.lock_manifest().number();
    db.close().unwrap();
    assert_eq!(catalog.blobs.len(), 1);
    (number, Catalog::clone(&catalog))
}

/// Regression test: three edits of a manifest mark one record of a blob file each, all as records
/// of a family that has two there. Each edit alone is within bounds. The sum was subtracted from
/// the family's records without a check: release builds went on with 2^64 - 1 live records, others
/// panicked.
#[test]
fn garbage_marks_beyond_the_records_of_a_family_are_damage() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let (number, catalog) = two_families(&env);
    let (blob, meta) = catalog.blobs.first_key_value().unwrap();
    let share = meta.meta.families[&0];
    assert_eq!((share.records, meta.meta.records), (2, 6));
    let mark = |ordinal: u32, bytes: u64| {
        let mut marks = Garbage::none(6);
        assert!(marks.mark(ordinal, 0, bytes, 7));
        Edit {
            mark_blobs: vec![(*blob, marks.encode())],
            ..Edit::default()
        }
    };
    let each = share.bytes / 2;
    let unit = env.fs().info().write_unit as u64;
    // Too many records; and few enough records with too many bytes.
    for (good, bad) in [
        (vec![mark(0, 1), mark(1, 1)], mark(2, 1)),
        (vec![mark(0, each + 1)], mark(1, each)),
    ] {
        let edits: Vec<&Edit> = good.iter().chain([&bad]).collect();
        let next = number + 1;
        let dir = Path::new("db");
        let path = manifest_path(dir, next);
        let mut state = catalog.to_edit();
        state.next_file = Some(next + 1);
        let mut manifest =
            Manifest::create(&env, dir, catalog.store_id, next, &state.encode()).unwrap();
        let mut last = 0;
        for edit in edits {
            // A record begins at the next write unit of the device behind the record before it.
            last = manifest.bytes().next_multiple_of(unit);
            manifest.append(&edit.encode()).unwrap();
        }
        drop(manifest);
        let refused = |opened: Result<Db>| {
            let e = opened.map(|_| ()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            assert_eq!((e.path(), e.offset()), (Some(&*path), Some(last)), "{e}");
            assert!(e.to_string().contains("more garbage than it has"), "{e}");
        };
        refused(Db::open(&env, "db", options()));
        refused(Db::open_read_only(&env, "db", options()));
        let report = Db::verify_store(&env, "db", &options(), &mut |_, _| ()).unwrap();
        let found = |e: &Error| e.path() == Some(&path) && e.offset() == Some(last);
        assert!(report.damage.iter().any(found), "{:?}", report.damage);
        env.fs().remove(&path).unwrap();
    }
}

/// A manifest whose files add up to more than 64 bits. Each number alone is valid for a file.
#[test]
fn impossible_sums_over_files_are_damage() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let (_, mut catalog) = two_families(&env);
    catalog.check_totals().unwrap();
    let table = catalog.families[&0]
        .tables
        .first_key_value()
        .unwrap()
        .1
        .clone();
    let mut wrong = catalog.clone();
    for number in 0..1u64 << 9 {
        let mut meta = basalt_table::TableMeta::clone(&table.meta);
        meta.raw_value_bytes = (1 << 48) - 1;
        let tables = &mut wrong.families.get_mut(&0).unwrap().tables;
        tables.insert(1000 + number, CatalogTable::local(table.level, meta));
    }
    let e = wrong.check_totals().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(e.to_string().contains("value bytes of tables"), "{e}");
    let number = *catalog.blobs.keys().next().unwrap();
    let blob = catalog.blobs.remove(&number).unwrap();
    for n in 0..1u64 << 9 {
        let mut blob = blob.clone();
        Arc::make_mut(&mut blob.meta).data_end = (1 << 48) - 1;
        catalog.blobs.insert(number + n, blob);
    }
    let e = catalog.check_totals().unwrap_err();
    assert!(e.to_string().contains("record bytes of blob files"), "{e}");
}

#[test]
fn garbage_marks_within_the_records_of_a_family_add_up() {
    let share = |records, bytes| FamilyShare { records, bytes };
    let file = BTreeMap::from([(1, share(2, 50)), (2, share(2, 50))]);
    let mark = |ordinal: u32, family: u32, bytes: u64| {
        let mut marks = Garbage::none(4);
        assert!(marks.mark(ordinal, family, bytes, 1));
        marks
    };
    let mut all = mark(0, 1, 10);
    all.absorb(&mark(1, 1, 40), &file).unwrap();
    let before = all.clone();
    let refused = [
        (mark(1, 2, 1), "marked already"),
        (mark(2, 1, 1), "more garbage than it has"),
        (mark(2, 2, 51), "more garbage than it has"),
        (mark(2, 3, 1), "more garbage than it has"),
        (Garbage::none(5), "another number of records"),
    ];
    for (more, why) in refused {
        let e = all.absorb(&more, &file).unwrap_err();
        assert!(e.contains(why), "{e}");
        assert_eq!(all, before, "nothing is changed");
    }
    let mut most = Garbage::none(4);
    assert!(most.mark(2, 2, u64::MAX, 1));
    all.absorb(&most, &file).unwrap_err();
    all.absorb(&mark(3, 2, 50), &file).unwrap();
}
