//! The cost of an install in a store of many files.

use super::prelude::*;
use crate::db::engine::Engine;
use crate::version::FileLocation;
use crate::version::catalog::probe::watch;
use crate::version::edit::{AddBlob, AddTable, Edit};
use crate::version::file_map::{self, COPIED};
use crate::version::level;
use basalt_blob::{BlobMeta, FamilyShare};
use basalt_env::sync::Mutex;
use basalt_kv::key::internal_key;
use basalt_sim::{SimFs, SimOptions};
use basalt_table::TableMeta;

/// The level of the tables.
const LEVEL: u32 = 6;

fn add(number: u64, key: u64, references: &[(u64, u64)]) -> AddTable {
    add_to(LEVEL, number, key, references)
}

fn add_to(level: u32, number: u64, key: u64, references: &[(u64, u64)]) -> AddTable {
    let smallest = internal_key(&(2 * key).to_be_bytes(), 1 << 8 | 1);
    let largest = internal_key(&(2 * key + 1).to_be_bytes(), 1 << 8 | 1);
    AddTable {
        family: 0,
        level,
        number,
        meta: TableMeta {
            file_id: u128::from(number),
            size: 1 << 20,
            digest: 0,
            entries: 2,
            deletes: 0,
            smallest,
            largest,
            min_seq: 0,
            max_seq: 0,
            raw_key_bytes: 16,
            raw_value_bytes: 1 << 20,
            soonest_expiry_ms: u64::MAX,
            range_deletes: 0,
            references: references.into(),
            shift: 0,
        },
        location: FileLocation::Local,
    }
}

fn add_blob(number: u64) -> AddBlob {
    let share = FamilyShare {
        records: 8,
        bytes: 1 << 20,
    };
    AddBlob {
        number,
        meta: Arc::new(BlobMeta {
            file_id: u128::from(number),
            data_end: (1 << 20) + 4096,
            index: None,
            size: (1 << 20) + 8192,
            digest: 0,
            records: 8,
            families: [(0, share)].into(),
            min_seq: 0,
            max_seq: 0,
        }),
        location: FileLocation::Local,
    }
}

/// Makes a store of this many tables and blob files, whose files do not exist. Returns the numbers
/// of the tables.
fn store(tables: u64, blobs: u64) -> (Env, Db, Vec<u64>) {
    let fs = SimFs::new(SimOptions::default());
    let env = Env::for_tests(fs, 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let engine = db.engine();
    let mut numbers = Vec::new();
    for first in (0..tables).step_by(20_000) {
        let mut edit = Edit::default();
        if first == 0 {
            let blobs = (0..blobs).map(|_| add_blob(engine.tree.new_file_number()));
            edit.add_blobs = blobs.collect();
        }
        for key in first..tables.min(first + 20_000) {
            let number = engine.tree.new_file_number();
            edit.add_tables.push(add(number, key, &[]));
            numbers.push(number);
        }
        engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap();
    }
    (env, db, numbers)
}

/// Returns an edit that replaces a table by another.
fn replace(engine: &Engine, numbers: &mut [u64], key: u64, references: &[(u64, u64)]) -> Edit {
    let number = engine.tree.new_file_number();
    let old = std::mem::replace(&mut numbers[key as usize], number);
    Edit {
        add_tables: vec![add(number, key, references)],
        remove_tables: vec![(0, LEVEL, old)],
        ..Edit::default()
    }
}

/// Regression test: in a store of many files, every flush and every merge copied the manifest's
/// entries of all files.
#[test]
fn an_install_copies_only_the_entries_near_its_edit() {
    const TABLES: u64 = 5000;
    let (_env, db, mut numbers) = store(TABLES, 1000);
    let engine = db.engine().clone();
    let blob = *engine.tree.catalog().blobs.keys().next().unwrap();
    for key in [0, TABLES / 2, TABLES - 1] {
        let edit = replace(&engine, &mut numbers, key, &[(blob, 1)]);
        COPIED.set(0);
        engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap();
        // One chunk is copied for each number in the edit.
        let copied = COPIED.get();
        assert!((1..=512).contains(&copied), "{copied} of {TABLES}");
    }
    COPIED.set(0);
    let edit = Edit {
        add_blobs: vec![add_blob(engine.tree.new_file_number())],
        ..Edit::default()
    };
    engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap();
    // Chunks are copied in the catalog, in the step that applies the edit to blob files, and in the
    // tree.
    assert!((1..=3 * 256).contains(&COPIED.get()), "{}", COPIED.get());
    drop(engine);
    db.close().unwrap();
}

/// Returns the number of files, tables and blob files together, that `work` iterates over.
fn walked(work: impl FnOnce()) -> usize {
    level::WALKED.set(0);
    file_map::WALKED.set(0);
    work();
    level::WALKED.get() + file_map::WALKED.get()
}

/// Regression test: every install and every rotation added up the bytes of all tables and blob
/// files, and an install compared all tables with their neighbours.
#[test]
fn an_install_and_a_view_change_walk_no_file_list() {
    let (_env, db, mut numbers) = store(5000, 1000);
    let engine = db.engine().clone();
    let blob = *engine.tree.catalog().blobs.keys().next().unwrap();
    for key in [0, 2500, 4999] {
        let edit = replace(&engine, &mut numbers, key, &[(blob, 1)]);
        let seen = walked(|| engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap());
        assert!(
            seen <= 10,
            "an install of one table walks over {seen} files"
        );
    }
    let edit = Edit {
        add_blobs: vec![add_blob(engine.tree.new_file_number())],
        ..Edit::default()
    };
    let seen = walked(|| engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap());
    assert!(
        seen <= 10,
        "an install of one blob file walks over {seen} files"
    );
    let edit = Edit {
        remove_blobs: vec![blob],
        ..Edit::default()
    };
    let seen = walked(|| engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap());
    assert!(seen <= 10, "to remove a blob file walks over {seen} files");
    let seen = walked(|| engine.tree.change_view(|_, _| {}));
    assert_eq!(seen, 0, "a change of the view walks over files");
    // A table that hides values causes one iteration over the tables of its family.
    let upper = Edit {
        add_tables: vec![add_to(
            5,
            engine.tree.new_file_number(),
            7,
            &[(blob + 1, 2)],
        )],
        ..Edit::default()
    };
    engine.tree.install(upper, Vec::new(), |_, _| {}).unwrap();
    let seen = walked(|| engine.tree.change_view(|_, _| {}));
    assert_eq!(seen, 0, "the estimate of hidden garbage is kept");
    drop(engine);
    db.close().unwrap();
}

/// Regression test: each commit group takes `state`. An install copied the catalog of all files
/// under this lock, and freed the former one.
#[test]
fn commit_groups_do_not_wait_for_catalog_copies() {
    let (_env, db, mut numbers) = store(100, 20);
    let engine = db.engine().clone();
    let blob = *engine.tree.catalog().blobs.keys().next().unwrap();
    let mut edit = replace(&engine, &mut numbers, 50, &[(blob, 1)]);
    let upper = add_to(5, engine.tree.new_file_number(), 7, &[(blob, 1)]);
    edit.add_tables.push(upper);
    let done: Arc<Mutex<Vec<(&str, bool)>>> = Arc::default();
    let (watched, noted) = (engine.clone(), done.clone());
    let observed = move |what| {
        // A job of the store may hold the lock for a short time; this thread would hold it for
        // good.
        let free = (0..100_000).any(|_| {
            std::thread::yield_now();
            watched.tree.try_lock().is_some()
        });
        noted.lock().push((what, free));
    };
    watch(observed, || {
        engine.tree.lock_manifest().doubt();
        engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap();
    });
    let done = done.lock();
    for expected in [
        "the whole state is written",
        "a catalog is copied",
        "an edit is applied",
        "a catalog is freed",
        "hidden garbage is estimated",
    ] {
        assert!(
            done.iter().any(|(what, _)| *what == expected),
            "{expected}: {done:?}"
        );
    }
    assert!(done.iter().all(|(_, free)| *free), "{done:?}");
    drop((done, engine));
    db.close().unwrap();
}

/// Prints the time of an install in a store of 100,000 tables and 10,000 blob files, in µs: the
/// whole install, and the part that every change of the view spends under `state`. Run it with
/// `--release -- --ignored --nocapture the_cost_of_an_install_is_measured`.
#[test]
#[ignore = "a measurement, which asserts nothing"]
#[expect(
    clippy::disallowed_methods,
    reason = "the time of the host is what is measured"
)]
fn the_cost_of_an_install_is_measured() {
    const TABLES: u64 = 100_000;
    let (_env, db, mut numbers) = store(TABLES, 10_000);
    let engine = db.engine().clone();
    let blob = *engine.tree.catalog().blobs.keys().next().unwrap();
    let median = |mut times: Vec<u128>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let mut whole = Vec::new();
    let mut under_state = Vec::new();
    for round in 0..51 {
        let key = (round * 7919) % TABLES;
        let edit = replace(&engine, &mut numbers, key, &[(blob, 1)]);
        let began = std::time::Instant::now();
        engine.tree.install(edit, Vec::new(), |_, _| {}).unwrap();
        whole.push(began.elapsed().as_nanos() / 1000);
        let began = std::time::Instant::now();
        engine.tree.change_view(|_, _| {});
        under_state.push(began.elapsed().as_nanos() / 1000);
    }
    println!(
        "install: {} µs, of which under `state`: {} µs",
        median(whole),
        median(under_state)
    );
    drop(engine);
    db.close().unwrap();
}
