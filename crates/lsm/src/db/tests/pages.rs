//! Families that are kept in pages: what differs from levels of tables. The rest is for the
//! campaigns, which keep some families in pages.

use super::prelude::*;
use crate::TreeOptions;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_fs::FileSystem;
use basalt_kv::merge::Append;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
use std::path::Path;
use std::time::Duration;

pub(super) const START_MS: u64 = 1_000_000;

pub(super) fn small_pages() -> FamilyOptions {
    FamilyOptions::default().pages(Some(
        TreeOptions::default()
            .page_bytes(400)
            .block_bytes(16)
            .extent_bytes(8 << 10)
            .max_deltas(2),
    ))
}

pub(super) fn options() -> Options {
    Options::default()
        .write_buffer_bytes(64 << 10)
        .default_family(small_pages().merge_operator(Some(Arc::new(Append::new(*b",")))))
}

fn disk() -> Arc<SimFs> {
    SimFs::new(SimOptions::default())
}

pub(super) fn env_on(disk: &Arc<SimFs>) -> (Env, Arc<ManualClock>) {
    let clock = ManualClock::new(START_MS);
    let env = EnvBuilder::for_tests(disk.clone(), disk.op_count());
    (env.clock(Clock::manual(clock.clone())).build(), clock)
}

/// Lets the edit fail that records the next flush, after the flush has written to the tree. The
/// edit before it ends the log.
pub(super) fn fail_the_edit_of_a_flush(faults: &FaultFs) {
    faults.inject(Fault {
        op: Some(OpKind::Append),
        path: "db/MANIFEST".to_string(),
        when: When::Nth(2),
        kind: FaultKind::Eio,
    });
}

fn open(disk: &Arc<SimFs>) -> Db {
    Db::open(&env_on(disk).0, "db", options()).unwrap()
}

pub(super) fn put(db: &Db, key: &str, value: &str) {
    let family = db.default_family();
    db.put(
        &family,
        key.as_bytes(),
        value.as_bytes(),
        &WriteOptions::SYNC,
    )
    .unwrap();
}

fn get_at(db: &Db, key: &str, options: &ReadOptions) -> Option<String> {
    let value = db
        .get(&db.default_family(), key.as_bytes(), options)
        .unwrap();
    value.map(|v| String::from_utf8(v.to_vec()).unwrap())
}

pub(super) fn get(db: &Db, key: &str) -> Option<String> {
    get_at(db, key, &ReadOptions::default())
}

fn count(db: &Db, options: &ReadOptions) -> usize {
    db.iter(&db.default_family(), options).unwrap().count()
}

fn entries_in_pages(db: &Db) -> usize {
    let view = db.engine().tree.view();
    let pages = &view.pages[&0];
    let entries = pages.pages.tree().iter(&pages.snapshot, b"").unwrap();
    entries.count()
}

#[test]
fn a_snapshot_reads_what_flushes_and_compactions_have_replaced() {
    let db = open(&disk());
    let mut snapshots = Vec::new();
    for round in 0..40 {
        for key in 0..60 {
            put(&db, &format!("k{key:03}"), &format!("{round}"));
        }
        if round % 3 == 0 {
            db.delete_range(&db.default_family(), b"k010", b"k020", &WriteOptions::SYNC)
                .unwrap();
        }
        snapshots.push((round, db.snapshot()));
        if round % 2 == 0 {
            db.flush().unwrap();
        }
        if round % 5 == 0 {
            db.compact_range(&db.default_family(), None, None).unwrap();
        }
        if round % 7 == 6 {
            snapshots.remove(0);
        }
    }
    db.wait_idle().unwrap();
    for (round, snapshot) in &snapshots {
        let options = ReadOptions::default().snapshot(Some(snapshot.clone()));
        let wanted = Some(round.to_string());
        let is_deleted = round % 3 == 0;
        assert_eq!(get_at(&db, "k059", &options), wanted);
        assert_eq!(
            get_at(&db, "k015", &options),
            wanted.filter(|_| !is_deleted)
        );
        let shown = if is_deleted { 50 } else { 60 };
        assert_eq!(count(&db, &options), shown, "round {round}");
    }
    // Without snapshots the space comes back.
    let bytes = |db: &Db| {
        let pages = db.stats().families[0].pages.clone().unwrap();
        pages.base_extent_bytes + pages.delta_extent_bytes
    };
    let before = bytes(&db);
    drop(snapshots);
    put(&db, "k000", "end");
    db.compact_range(&db.default_family(), None, None).unwrap();
    db.wait_idle().unwrap();
    assert!(bytes(&db) < before / 2, "{} of {before} bytes", bytes(&db));
    db.close().unwrap();
}

#[test]
fn a_family_that_was_made_after_a_snapshot_is_empty_in_it() {
    let disk = disk();
    let db = Db::open(&env_on(&disk).0, "db", Options::default()).unwrap();
    put(&db, "a", "1");
    let before = db.snapshot();
    let paged = db.create_family("paged", small_pages()).unwrap();
    let between = db.snapshot();
    db.put(&paged, b"k", b"v", &WriteOptions::SYNC).unwrap();
    db.flush().unwrap();
    for snapshot in [before, between] {
        let options = ReadOptions::default().snapshot(Some(snapshot));
        assert_eq!(get_at(&db, "a", &options).as_deref(), Some("1"));
        assert_eq!(db.get(&paged, b"k", &options).unwrap(), None);
        assert_eq!(db.iter(&paged, &options).unwrap().count(), 0);
    }
    let dropped = db.snapshot();
    db.drop_family(&paged).unwrap();
    let options = ReadOptions::default().snapshot(Some(dropped));
    let read = db.get(&paged, b"k", &options);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_dropped_family_leaves_no_files() {
    let disk = disk();
    let db = Db::open(&env_on(&disk).0, "db", Options::default()).unwrap();
    let paged = db.create_family("paged", small_pages()).unwrap();
    db.put(&paged, b"k", b"v", &WriteOptions::SYNC).unwrap();
    db.flush().unwrap();
    let trees = || disk.list(Path::new("db/pages")).unwrap().len();
    let iter = db.iter(&paged, &ReadOptions::default()).unwrap();
    db.drop_family(&paged).unwrap();
    // A reader still has them.
    assert_eq!((trees(), iter.count()), (1, 1));
    // A job of it may be queued.
    while db.env().jobs().step() {}
    assert_eq!(trees(), 0);
    let again = db.create_family("paged", small_pages()).unwrap();
    assert_eq!(db.get(&again, b"k", &ReadOptions::default()).unwrap(), None);
    db.close().unwrap();
}

#[test]
fn the_engine_of_a_family_stays_and_other_options_are_refused() {
    let disk = disk();
    let (env, _) = env_on(&disk);
    let db = Db::open(&env, "db", options()).unwrap();
    db.create_family("levels", FamilyOptions::default())
        .unwrap();
    put(&db, "a", "1");
    db.close().unwrap();
    let refused = |options: Options, what: &str| {
        let e = Db::open(&env, "db", options.clone())
            .err()
            .expect("it is refused");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains(what), "{e}");
        let read_only = Db::open_read_only(&env, "db", options);
        assert_eq!(
            read_only.err().map(|e| e.kind()),
            Some(ErrorKind::InvalidArgument)
        );
    };
    let mut wrong = options();
    wrong.families.insert("levels".into(), small_pages());
    refused(wrong, "\"levels\" is kept in levels of tables");
    // Without the option, the family keeps its pages.
    let mut without = options();
    without.default_family.pages = None;
    let db = Db::open(&env, "db", without).unwrap();
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
    assert!(db.stats().families[0].pages.is_some());
    db.close().unwrap();
}

#[test]
fn expired_values_leave_the_pages_and_operands_over_them_stay() {
    let disk = disk();
    let (env, clock) = env_on(&disk);
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    let mut batch = WriteBatch::new();
    for n in 0..50u32 {
        batch
            .put_ttl(&family, &n.to_be_bytes(), b"soon gone", START_MS + 500)
            .unwrap();
    }
    batch
        .put_ttl(&family, b"merged", b"base", START_MS + 500)
        .unwrap();
    batch.put(&family, b"stays", b"v").unwrap();
    db.write(batch, &WriteOptions::SYNC).unwrap();
    db.flush().unwrap();
    for operand in [b"one", b"two"] {
        db.merge(&family, b"merged", operand, &WriteOptions::SYNC)
            .unwrap();
        db.flush().unwrap();
    }
    assert_eq!(get(&db, "merged").as_deref(), Some("base,one,two"));
    assert_eq!(entries_in_pages(&db), 52);
    clock.advance(Duration::from_millis(1000));
    assert_eq!(get(&db, "merged").as_deref(), Some("one,two"));
    db.compact_range(&family, None, None).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(entries_in_pages(&db), 2);
    assert_eq!(get(&db, "merged").as_deref(), Some("one,two"));
    db.close().unwrap();
}

#[test]
fn a_flush_counts_for_all_families_or_for_none() {
    // Unsynced writes to both engines: each power cut leaves a prefix of all of them.
    let disk = disk();
    let db = Db::open(&env_on(&disk).0, "db", Options::default()).unwrap();
    let paged = db.create_family("paged", small_pages()).unwrap();
    let levels = db.default_family();
    disk.record_snapshots(1);
    for n in 0..200u32 {
        let family = if n.is_multiple_of(2) { &paged } else { &levels };
        let durability = WriteOptions::synced(false);
        db.put(family, &n.to_be_bytes(), &[7; 100], &durability)
            .unwrap();
        if n % 40 == 39 {
            db.flush().unwrap();
            db.wait_idle().unwrap();
        }
    }
    db.abandon();
    let snapshots = disk.take_snapshots();
    assert!(snapshots.len() > 100, "{} moments", snapshots.len());
    for (i, snapshot) in snapshots.iter().enumerate().step_by(5) {
        for policy in [
            CrashPolicy::NothingUnsynced,
            CrashPolicy::EverythingUnsynced,
        ] {
            let disk = snapshot.crash(policy, i as u64);
            let db = Db::open(&env_on(&disk).0, "db", Options::default()).unwrap();
            let (paged, levels) = (db.family("paged").unwrap(), db.default_family());
            let there = |n: u32| {
                let family = if n.is_multiple_of(2) { &paged } else { &levels };
                let value = db.get(family, &n.to_be_bytes(), &ReadOptions::default());
                value.unwrap().is_some()
            };
            let first_absent = (0..200).find(|n| !there(*n)).unwrap_or(200);
            let later = (first_absent..200).find(|n| there(*n));
            assert_eq!(
                later, None,
                "moment {i}, {policy:?}: write {first_absent} is lost"
            );
            db.abandon();
        }
    }
}

#[test]
fn maintenance_within_a_flush_shows_nothing_of_it() {
    let sim = disk();
    let faults = FaultFs::new(sim.clone(), 1);
    let env = Env::for_tests(faults.clone(), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    let operand = || db.merge(&family, b"counted", b"x", &WriteOptions::SYNC);
    operand().unwrap();
    db.flush().unwrap();
    operand().unwrap();
    fail_the_edit_of_a_flush(&faults);
    assert!(db.flush().is_err());
    let engine = db.engine();
    let pages = engine.tree.view().pages[&0].pages.clone();
    assert!(pages.tree().has_unconfirmed());
    pages.note_written();
    engine.schedule_page_maintenance();
    while env.jobs().step() {
        assert_eq!(get(&db, "counted").as_deref(), Some("x,x"));
    }
    // The next attempt does not apply the operand again, and neither does a recovery.
    db.flush().unwrap();
    assert_eq!(get(&db, "counted").as_deref(), Some("x,x"));
    assert!(!pages.tree().has_unconfirmed());
    drop(pages);
    db.abandon();
    let db = Db::open(&env, "db", options()).unwrap();
    assert_eq!(get(&db, "counted").as_deref(), Some("x,x"));
    db.close().unwrap();
}

/// Further jobs compact a tree that is far behind: one at half of the debt at which writers are
/// slowed, and two there.
#[test]
fn jobs_help_a_tree_that_is_behind() {
    let disk = disk();
    let (env, _clock) = env_on(&disk);
    let db = Db::open(&env, "db", options()).unwrap();
    let key = |n: usize| format!("key{n:05}");
    for round in 0..3 {
        (0..1000).for_each(|n| put(&db, &key(n), &format!("value {round}")));
        db.flush().unwrap();
    }
    let engine = db.engine();
    let pages = engine.tree.view().pages[&0].pages.clone();
    while env.jobs().step() {}
    assert!(!pages.begin_help(3), "no job maintains the tree");
    pages.note_written();
    assert!(pages.begin_maintenance());
    for (debt, wanted) in [(499, 0), (500, 1), (999, 1), (1000, 2), (9000, 2)] {
        pages.set_debt(debt);
        let begun = (0..5).filter(|_| pages.begin_help(3)).count();
        assert_eq!(begun, wanted, "at a debt of {debt}");
        (0..begun).for_each(|_| pages.end_help());
    }
    assert!(pages.begin_help(3));
    pages.end_maintenance(false, true);
    assert!(pages.is_maintained(), "a job still helps");
    pages.end_help();
    assert!(!pages.is_maintained());

    // The pool of this test has one thread, so the store begins no such job itself.
    pages.note_written();
    assert!(pages.begin_maintenance());
    for round in 3..6 {
        (0..1000).for_each(|n| put(&db, &key(n), &format!("value {round}")));
        db.flush().unwrap();
    }
    assert!(pages.tree().stats().due_leaves > 0);
    // Nothing is written from here on.
    pages.end_maintenance(false, true);
    assert!(pages.begin_maintenance());
    pages.set_debt(1000);
    assert!(pages.begin_help(1));
    engine.help_to_maintain(&pages);
    assert_eq!(pages.tree().stats().due_leaves, 0);
    assert!(pages.is_maintained(), "the other job goes on");
    pages.end_maintenance(false, true);
    // Maintenance goes on behind a helper: readers may still see what it has replaced.
    assert!(!pages.is_maintained() && pages.is_busy());
    while env.jobs().step() {}
    assert!(!pages.is_busy());
    (0..1000).for_each(|n| assert_eq!(get(&db, &key(n)).as_deref(), Some("value 5")));

    // A helper without work asks for nothing.
    pages.note_written();
    assert!(pages.begin_maintenance());
    pages.set_debt(1000);
    assert!(pages.begin_help(1));
    engine.help_to_maintain(&pages);
    pages.end_maintenance(false, true);
    assert!(!pages.is_busy());
    drop(pages);
    db.close().unwrap();
}

/// What a failed helper has written is given back, and maintenance tries again.
#[test]
fn a_failed_helper_is_tried_again() {
    let sim = disk();
    let faults = FaultFs::new(sim.clone(), 1);
    let clock = ManualClock::new(START_MS);
    let env = EnvBuilder::for_tests(faults.clone(), 1);
    let env = env.clock(Clock::manual(clock.clone())).build();
    let db = Db::open(&env, "db", options()).unwrap();
    let key = |n: usize| format!("key{n:05}");
    for round in 0..2 {
        (0..1000).for_each(|n| put(&db, &key(n), &format!("value {round}")));
        db.flush().unwrap();
    }
    while env.jobs().step() {}
    let engine = db.engine();
    let pages = engine.tree.view().pages[&0].pages.clone();
    pages.note_written();
    assert!(pages.begin_maintenance());
    for round in 2..5 {
        (0..1000).for_each(|n| put(&db, &key(n), &format!("value {round}")));
        db.flush().unwrap();
    }
    assert!(pages.tree().stats().due_leaves > 0);
    faults.inject(Fault {
        op: Some(OpKind::SyncData),
        path: "db/pages/0/base".to_string(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    pages.set_debt(1000);
    assert!(pages.begin_help(1));
    engine.help_to_maintain(&pages);
    assert!(pages.has_failed() && pages.is_busy());
    assert!(pages.tree().stats().due_leaves > 0);
    pages.end_maintenance(false, true);
    assert!(
        pages.has_failed(),
        "maintenance beside the helper ends no failure of it"
    );
    clock.advance(Duration::from_secs(60));
    while env.jobs().step() {}
    assert_eq!(pages.tree().stats().due_leaves, 0);
    assert!(!pages.has_failed() && !pages.is_busy());
    (0..1000).for_each(|n| assert_eq!(get(&db, &key(n)).as_deref(), Some("value 4")));
    drop(pages);
    db.close().unwrap();
}

/// Leaves with few delta pages stayed as they were, so each read of them visited all of their pages
/// for ever.
#[test]
fn readers_pay_for_writing_fragmented_leaves_again() {
    for for_reads in [true, false] {
        let disk = disk();
        let env = EnvBuilder::for_tests(disk.clone(), 3)
            .cache_bytes(0)
            .build();
        let pages = TreeOptions::default().page_bytes(4096).max_deltas(8);
        let family = FamilyOptions {
            l0_compaction_for_reads: for_reads,
            ..FamilyOptions::default().pages(Some(pages))
        };
        let db = Db::open(&env, "db", Options::default().default_family(family)).unwrap();
        let key = |n: u32| format!("key {n:04}");
        let write = |step: usize| {
            for n in (0..600).step_by(step) {
                put(&db, &key(n), "value of some length");
            }
            db.flush().unwrap();
        };
        let fragmented = || {
            while env.jobs().step() {}
            db.stats().families[0]
                .pages
                .as_ref()
                .unwrap()
                .leaves_with_deltas
        };
        write(1);
        write(5);
        let leaves = fragmented();
        assert!(leaves > 2, "{leaves}");
        let read = |count: u32| {
            for n in 0..count {
                assert!(get(&db, &key(n % 600)).is_some());
            }
        };
        assert_eq!(fragmented(), leaves, "without readers, nothing is merged");
        read(600);
        let expected = if for_reads { 0 } else { leaves };
        assert_eq!(fragmented(), expected);
        read(600);
        write(7);
        let again = fragmented();
        assert!(again >= leaves, "{again}");
        // Scans read delta pages, too. Few leaves wait until they are paid for twice.
        let scanned = || {
            db.iter(&db.default_family(), &ReadOptions::default())
                .unwrap()
                .count()
        };
        assert_eq!(scanned(), 600);
        assert_eq!(fragmented(), again);
        assert_eq!(scanned(), 600);
        let expected = if for_reads { 0 } else { again };
        assert_eq!(fragmented(), expected);
        assert_eq!(scanned(), 600);
        read(600);
        db.close().unwrap();
    }
}

/// A store that may not begin the merges was asked for them by each read, which cost a job each
/// time.
#[test]
fn few_reads_ask_for_merges_that_may_not_begin() {
    let disk = disk();
    let env = EnvBuilder::for_tests(disk.clone(), 3)
        .clock(Clock::manual(ManualClock::new(START_MS)))
        .cache_bytes(0)
        .build();
    let pages = TreeOptions::default().page_bytes(4096).max_deltas(8);
    let family = FamilyOptions::default().pages(Some(pages));
    let db = Db::open(&env, "db", Options::default().default_family(family)).unwrap();
    let key = |n: u32| format!("key {n:03}");
    for round in 0..2 {
        for n in (0..400).step_by(1 + 4 * round) {
            put(&db, &key(n), "value of some length");
        }
        db.flush().unwrap();
        while env.jobs().step() {}
    }
    let error = Error::invalid("a compaction has failed");
    db.engine().health.compaction_failed(error, false);
    let pages = db.engine().tree.view().pages[&0].pages.clone();
    let (mut asking, mut jobs) = (0, 0);
    for n in 0..800 {
        assert!(get(&db, &key(n % 400)).is_some());
        asking += u32::from(pages.owes_readers());
        while env.jobs().step() {
            jobs += 1;
        }
    }
    assert!(asking > 256, "{asking} reads found merges that are owed");
    assert!((1..=4).contains(&jobs), "{jobs} jobs for {asking} reads");
    db.close().unwrap();
}

/// An iterator with `fill_cache` off leaves the cache as it is, in pages as in tables.
#[test]
fn a_scan_of_pages_without_fill_cache_leaves_the_cache_alone() {
    let disk = disk();
    let db = open(&disk);
    for n in 0..2000 {
        put(&db, &format!("k{n:05}"), "value");
    }
    db.flush().unwrap();
    db.close().unwrap();
    let db = open(&disk);
    let family = db.default_family();
    let scan = |fill_cache: bool, from: usize| {
        let options = ReadOptions::default().fill_cache(fill_cache);
        let mut iter = db.iter(&family, &options).unwrap();
        iter.seek(format!("k{from:05}").as_bytes()).unwrap();
        let mut count = 0;
        while iter.valid() {
            assert_eq!(iter.value(), b"value");
            count += 1;
            iter.next().unwrap();
        }
        assert_eq!(count, 2000 - from);
    };
    let inserts = || db.engine().ctx.env.cache().stats().inserts;
    // Index pages are cached in any case.
    scan(false, 0);
    let before = inserts();
    scan(false, 1000);
    assert_eq!(inserts(), before);
    scan(true, 1000);
    assert!(inserts() > before);
    db.close().unwrap();
}
