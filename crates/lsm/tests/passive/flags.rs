//! Flush flags that do not agree with tables and pages: a check reports them, and a repair takes
//! the flags of tables.

use crate::campaign::disk;
use crate::database::{self, DIR};
use crate::repairs::{cut, manifest, rewrite};
use basalt_env::Env;
use basalt_fs::FileSystem;
use basalt_lsm::db::Replay;
use basalt_lsm::version::catalog::Catalog;
use basalt_lsm::version::edit::Edit;
use basalt_lsm::version::manifest::{Manifest, read_current, replay};
use basalt_lsm::version::{FlushFlag, Tsn};
use basalt_lsm::{
    Db, Family, FamilyOptions, LogMode, Options, PassiveOptions, ReadOptions, WriteBatch,
};
use basalt_sim::SimFs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAMES: [&str; 3] = ["pages", "sums", "values"];

fn options() -> Options {
    let families = NAMES.map(|name| (name.to_string(), database::family_options(name)));
    Options::default()
        .log(LogMode::Passive(PassiveOptions::default()))
        .families(families.into_iter().collect())
}

fn open(env: &Env) -> Replay {
    Db::open_passive(env, DIR, options()).expect("a sound store")
}

/// Returns a new store with its families.
fn new_store(env: &Env) -> Db {
    let db = open(env).finish(0).expect("an empty log");
    for name in NAMES {
        let options: FamilyOptions = database::family_options(name);
        db.create_family(name, options).expect("a new name");
    }
    db
}

fn family(db: &Db, name: &str) -> Family {
    db.family(name).expect("it was made")
}

/// A transaction that adds 1 to each of some sums.
fn ones(sums: &Family, keys: u64) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for key in 0..keys {
        batch
            .merge(sums, &key.to_be_bytes(), &1u64.to_le_bytes())
            .expect("an operand");
    }
    batch
}

/// Writes transaction `tsn`, and flushes all families.
fn flushed(db: &Db, tsn: Tsn, batch: WriteBatch) -> FlushFlag {
    db.write_at(tsn, batch).expect("the next");
    db.flush().expect("a sound disk");
    let points = db.persistence_points().expect("it is passive");
    points.families[0].flag
}

/// Gives a family of a closed store another flag: a manifest without a fault of its own.
fn set_flag(env: &Env, name: &str, flag: FlushFlag) {
    let dir = Path::new(DIR);
    let current = read_current(env, dir)
        .expect("readable")
        .expect("a store is there");
    let mut catalog = Catalog::default();
    replay(env, dir, &current, |edit| {
        catalog.apply(&Edit::decode(edit)?)
    })
    .expect("a sound manifest");
    let mut families = catalog.families.values_mut();
    let family = families.find(|f| f.name == name).expect("it was made");
    family.flush_flag = Some(flag);
    let number = catalog.next_file;
    catalog.next_file += 1;
    let state = catalog.to_edit().encode();
    drop(Manifest::create(env, dir, catalog.store_id, number, &state).expect("the number is free"));
}

/// Returns the damage that a check finds.
fn damage(env: &Env) -> Vec<String> {
    let report = Db::verify_store(env, DIR, &options(), &mut |_, _| ());
    let damage = report.expect("it is closed").damage;
    damage.iter().map(ToString::to_string).collect()
}

fn assert_says(damage: &[String], words: &[&str]) {
    assert_eq!(damage.len(), 1, "{damage:#?}");
    for word in words {
        assert!(damage[0].contains(word), "{} lacks {word:?}", damage[0]);
    }
}

fn sum_of(db: &Db, key: u64) -> Option<u64> {
    let sums = family(db, "sums");
    let found = db.get(&sums, &key.to_be_bytes(), &ReadOptions::default());
    let found = found.expect("sound");
    found.map(|sum| u64::from_le_bytes(sum[..].try_into().expect("a sum")))
}

#[test]
fn a_table_newer_than_its_familys_flag_is_damage() {
    let env = Env::for_tests(disk(1), 1);
    let db = new_store(&env);
    let sums = family(&db, "sums");
    let first = flushed(&db, 1, ones(&sums, 1));
    flushed(&db, 2, ones(&sums, 1));
    db.close().expect("a sound disk");
    assert_eq!(damage(&env), [""; 0]);

    set_flag(&env, "sums", first);
    let words = [
        ".tbl",
        "entries up to sequence number",
        "\"sums\" is persisted up to transaction 1",
        "once more",
        "basalt repair",
    ];
    assert_says(&damage(&env), &words);
    // The tables know better.
    let report = Db::repair(&env, DIR, &options(), &mut |_, _| ()).expect("readable");
    assert!(!report.sound && report.losses.is_empty(), "{report:#?}");
    assert_eq!(damage(&env), [""; 0]);
    let db = open(&env).finish(2).expect("nothing to replay");
    assert_eq!(sum_of(&db, 0), Some(2));
}

/// A compaction writes a table with the flag of its time. The flag says more than the sequence
/// numbers, if later transactions had no item of the family.
#[test]
fn a_table_whose_own_flag_is_newer_is_damage() {
    let env = Env::for_tests(disk(2), 1);
    let db = new_store(&env);
    let sums = family(&db, "sums");
    let first = flushed(&db, 1, ones(&sums, 1));
    let mut other = WriteBatch::new();
    let default = db.default_family();
    other.put(&default, b"k", b"v").expect("a short key");
    flushed(&db, 2, other);
    db.compact_range(&sums, None, None).expect("a sound disk");
    db.close().expect("a sound disk");

    set_flag(&env, "sums", first);
    let words = [
        ".tbl",
        "when the family was persisted up to transaction 2",
        "\"sums\" is persisted up to transaction 1",
    ];
    assert_says(&damage(&env), &words);
}

/// Pages and prepared tables name no flag, so a repair can only report them.
#[test]
fn pages_and_prepared_tables_newer_than_their_flag_are_damage() {
    let env = Env::for_tests(disk(3), 1);
    let db = new_store(&env);
    let first = flushed(&db, 1, WriteBatch::new());
    let mut in_pages = WriteBatch::new();
    let pages = family(&db, "pages");
    in_pages.put(&pages, b"k", b"v").expect("a short key");
    let second = flushed(&db, 2, in_pages);
    let values = family(&db, "values");
    let mut table = db.prepare(&values).expect("open");
    table.add(b"k", b"v").expect("in order");
    let table = table.finish().expect("a sound disk");
    db.ingest_at(3, &[table]).expect("the next");
    let points = db.persistence_points().expect("it is passive");
    let of_values = points.families.iter().find(|f| f.family == "values");
    let third = of_values.expect("it was made").flag;
    db.close().expect("a sound disk");
    assert_eq!(damage(&env), [""; 0]);

    set_flag(&env, "pages", first);
    let words = ["\"pages\" is persisted up to transaction 1", "its pages"];
    assert_says(&damage(&env), &words);
    set_flag(&env, "pages", third);
    set_flag(&env, "values", second);
    let words = [".tbl", "\"values\" is persisted up to transaction 2"];
    assert_says(&damage(&env), &words);
    let report = Db::repair(&env, DIR, &options(), &mut |_, _| ()).expect("readable");
    let of_values = report.losses.iter();
    let of_values = of_values.filter(|loss| loss.family.as_deref() == Some("values"));
    assert_eq!(of_values.count(), 1, "{report:#?}");
    assert!(
        report.lost[0].contains("operands may count twice"),
        "{report:#?}"
    );
}

/// Returns the tables of the store, the largest last.
fn tables(disk: &Arc<SimFs>) -> Vec<PathBuf> {
    let entries = disk.list(Path::new(DIR)).expect("a store is there");
    let names = entries.into_iter().map(|e| e.name);
    let tables = names.filter(|name| name.ends_with(".tbl"));
    let mut tables: Vec<PathBuf> = tables.map(|name| Path::new(DIR).join(name)).collect();
    tables.sort_by_key(|path| disk.stat(path).expect("it is there").len);
    tables
}

/// The manifest is lost, and a block of the newest table is damaged. The readable entries went into
/// a new table without the flag of the old one. The family got the flag of an older table, and the
/// replay added the operands to the entries once more.
#[test]
fn a_damaged_table_keeps_its_flag_in_a_repair_without_a_manifest() {
    const KEYS: u64 = 300;
    let disk = disk(4);
    let env = Env::for_tests(disk.clone(), 1);
    let mut options = options();
    options.families.remove("pages");
    let replay = Db::open_passive(&env, DIR, options.clone()).expect("a new store");
    let db = replay.finish(0).expect("an empty log");
    let sums = db
        .create_family("sums", database::family_options("sums"))
        .expect("a new name");
    let mut default = WriteBatch::new();
    default
        .put(&db.default_family(), b"k", b"v")
        .expect("a short key");
    flushed(&db, 1, default);
    flushed(&db, 2, ones(&sums, 1));
    flushed(&db, 3, ones(&sums, KEYS));
    db.close().expect("a sound disk");
    let damaged = tables(&disk).pop().expect("there are tables");
    rewrite(&disk, &damaged, |bytes| bytes[100] ^= 1);
    cut(&disk, &manifest(&disk), 0);

    let report = Db::repair(&env, DIR, &options, &mut |_, _| ()).expect("readable");
    assert!(!report.losses.is_empty(), "{report:#?}");
    assert_eq!(damage(&env), [""; 0]);
    let mut replay = Db::open_passive(&env, DIR, options).expect("it was repaired");
    let sums = replay.family("sums").expect("its tables name it");
    let mut default = WriteBatch::new();
    default
        .put(&replay.default_family(), b"k", b"v")
        .expect("a short key");
    let log = [default, ones(&sums, 1), ones(&sums, KEYS)];
    for (tsn, batch) in (1..).zip(log) {
        replay.replay(tsn, batch).expect("as before");
    }
    let db = replay.finish(3).expect("all of the log");
    let found: Vec<Option<u64>> = (1..KEYS).map(|key| sum_of(&db, key)).collect();
    let (kept, lost): (Vec<_>, Vec<_>) = found.into_iter().partition(Option::is_some);
    assert!(kept.len() > lost.len(), "{} are lost", lost.len());
    assert!(kept.iter().all(|sum| *sum == Some(1)), "{kept:?}");
}
