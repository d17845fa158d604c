//! Separated values of families in pages (decision 0046).

use super::prelude::*;
use crate::TreeOptions;
use crate::db::tests::blobs::{FREE, check, expect};
use crate::db::tests::pages::fail_the_edit_of_a_flush;
use crate::options::{CompactionFilter, FilterContext, FilterDecision};
use crate::version::edit::Edit;
use crate::version::{EngineKind, manifest};
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_fs::FileSystem;
use basalt_kv::merge::Append;
use basalt_sim::fault::FaultFs;
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const START_MS: u64 = 1_000_000;

/// Removes values that begin with a byte.
struct RemoveValues(u8);

impl CompactionFilter for RemoveValues {
    fn name(&self) -> &str {
        "remove values"
    }

    fn filter(&self, _: &FilterContext<'_>, _: &[u8], value: &[u8]) -> FilterDecision {
        match value.first() == Some(&self.0) {
            true => FilterDecision::Remove,
            false => FilterDecision::Keep,
        }
    }
}

fn separating() -> FamilyOptions {
    FamilyOptions::default()
        .pages(Some(
            TreeOptions::default()
                .page_bytes(400)
                .block_bytes(16)
                .extent_bytes(8 << 10)
                .max_deltas(2),
        ))
        .merge_operator(Some(Arc::new(Append::new(*b","))))
        .min_blob_size(Some(100))
}

fn options() -> Options {
    Options::default()
        .write_buffer_bytes(64 << 10)
        .max_space_amp(1.05)
        .default_family(separating())
}

fn disk() -> Arc<SimFs> {
    SimFs::new(SimOptions::default())
}

fn env_on(disk: Arc<dyn FileSystem>) -> (Env, Arc<ManualClock>) {
    let clock = ManualClock::new(START_MS);
    let env = EnvBuilder::for_tests(disk, 1).clock(Clock::manual(clock.clone()));
    (env.build(), clock)
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:05}").into_bytes()
}

fn value(n: u64, version: u64) -> Vec<u8> {
    let mut value = format!("{n}/{version}/").into_bytes();
    value.resize(300, (n ^ version) as u8);
    value
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Writes a version of some keys, and flushes it.
fn write(db: &Db, model: &mut Model, keys: impl Iterator<Item = u64>, version: u64) {
    let family = db.default_family();
    for n in keys {
        let (key, value) = (key(n), value(n, version));
        db.put(&family, &key, &value, &FREE).unwrap();
        model.insert(key, value);
    }
    db.flush().unwrap();
}

/// Merges all delta pages, and lets all jobs run.
fn compact(db: &Db) {
    let family = db.default_family();
    db.compact_range(&family, None, None).unwrap();
    db.wait_idle().unwrap();
}

fn expect_newest(db: &Db, model: &Model) {
    expect(db, &db.default_family(), &ReadOptions::default(), model);
}

fn unmarked(env: &Env) -> u64 {
    let report = Db::verify_store(env, "db", &options(), &mut |_, _| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    report.unmarked_records
}

#[test]
fn values_survive_collections_and_their_space_returns() {
    let (env, _) = env_on(disk());
    let mut db = Db::open(&env, "db", options()).unwrap();
    let mut model = Model::new();
    let (mut held, mut names, mut collections) = (None, 0, 0);
    for round in 0..40 {
        let some = (0..60).filter(|n| round == 0 || n % 7 == round % 7);
        write(&db, &mut model, some, round);
        if round % 3 == 1 {
            compact(&db);
        }
        if round == 10 {
            held = Some((db.snapshot(), model.clone()));
        }
        if let Some((snapshot, old)) = &held {
            let options = ReadOptions::default().snapshot(Some(snapshot.clone()));
            expect(&db, &db.default_family(), &options, old);
        }
        expect_newest(&db, &model);
        names = names.max(db.stats().blobs.names);
        if round % 9 == 8 {
            held = None;
            compact(&db);
            let blobs = db.stats().blobs;
            assert_eq!(blobs.live_records, 60, "round {round}");
            collections += blobs.collections;
            db.close().unwrap();
            check(&env, &options());
            assert_eq!(unmarked(&env), 0, "round {round}");
            db = Db::open(&env, "db", options()).unwrap();
        }
    }
    assert!(names > 1 && collections > 1, "{names} and {collections}");
    // A number is forgotten once no record is live behind it.
    write(&db, &mut model, 0..60, 99);
    compact(&db);
    write(&db, &mut model, 0..60, 100);
    compact(&db);
    assert_eq!(db.stats().blobs.names, 0);
    for n in 0..60 {
        db.delete(&db.default_family(), &key(n), &FREE).unwrap();
    }
    db.flush().unwrap();
    compact(&db);
    assert_eq!(db.stats().blobs.files, 0);
    db.close().unwrap();
}

#[test]
fn operands_are_merged_with_separated_values() {
    let (env, clock) = env_on(disk());
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    let base = vec![b'b'; 200];
    db.put(&family, b"a", &base, &FREE).unwrap();
    let mut batch = WriteBatch::new();
    batch
        .put_ttl(&family, b"ttl", &base, START_MS + 500)
        .unwrap();
    batch
        .put_ttl(&family, b"merged", &base, START_MS + 500)
        .unwrap();
    db.write(batch, &FREE).unwrap();
    db.flush().unwrap();
    let files = db.stats().blobs.files;
    assert_eq!((files, db.stats().blobs.live_records), (1, 3));
    let get = |key: &[u8]| {
        let found = db.get(&family, key, &ReadOptions::default()).unwrap();
        found.map(|v| v.to_vec())
    };
    let with = |operands: &str| [&base[..], operands.as_bytes()].concat();
    for key in [b"a".as_slice(), b"merged"] {
        db.merge(&family, key, b"one", &FREE).unwrap();
        assert_eq!(get(key), Some(with(",one")));
    }
    db.flush().unwrap();
    for key in [b"a".as_slice(), b"merged"] {
        assert_eq!(get(key), Some(with(",one")));
    }
    assert_eq!(get(b"ttl"), Some(base.clone()));
    clock.advance(Duration::from_millis(600));
    assert_eq!(get(b"ttl"), None);
    assert_eq!(get(b"merged"), Some(b"one".to_vec()));
    db.merge(&family, b"ttl", b"two", &FREE).unwrap();
    db.flush().unwrap();
    assert_eq!(get(b"ttl"), Some(b"two".to_vec()));
    compact(&db);
    assert_eq!(get(b"a"), Some(with(",one")));
    assert_eq!(db.stats().blobs.live_records, 1);
    db.close().unwrap();
    assert_eq!(unmarked(&env), 0);
}

/// The delta pages of a flush that has failed refer to its blob files. The next attempt records
/// them.
#[test]
fn a_flush_that_is_tried_again_records_the_files_of_the_first_attempt() {
    let sim = disk();
    let faults = FaultFs::new(sim.clone(), 1);
    let (env, _) = env_on(faults.clone());
    let db = Db::open(&env, "db", options()).unwrap();
    let mut model = Model::new();
    write(&db, &mut model, 0..20, 0);
    let family = db.default_family();
    for n in 10..30 {
        let (key, value) = (key(n), value(n, 1));
        db.put(&family, &key, &value, &FREE).unwrap();
        model.insert(key, value);
    }
    fail_the_edit_of_a_flush(&faults);
    assert!(db.flush().is_err());
    let pages = db.engine().tree.view().pages[&0].pages.clone();
    let first = pages.unrecorded_blobs();
    assert!(pages.tree().has_unconfirmed() && !first.is_empty());
    pages.note_written();
    db.engine().schedule_page_maintenance();
    while env.jobs().step() {
        expect_newest(&db, &model);
    }
    // A crash here finds the entries in the log.
    let policy = CrashPolicy::NothingUnsynced;
    let (crashed, _) = env_on(sim.crash(policy, 1));
    let reopened = Db::open(&crashed, "db", options()).unwrap();
    assert_eq!(
        reopened
            .get(&reopened.default_family(), &key(0), &ReadOptions::default())
            .unwrap()
            .as_deref(),
        Some(&value(0, 0)[..])
    );
    reopened.close().unwrap();
    db.flush().unwrap();
    assert!(pages.unrecorded_blobs().is_empty());
    expect_newest(&db, &model);
    let files: Vec<u64> = db.blob_files().iter().map(|b| b.number).collect();
    assert!(first.iter().all(|(number, _)| files.contains(number)));
    compact(&db);
    expect_newest(&db, &model);
    drop(pages);
    db.close().unwrap();
    check(&env, &options());
    assert_eq!(unmarked(&env), 0);
}

/// A filter removes an entry that readers of the content before still see.
#[test]
fn values_that_a_filter_removes_stay_readable_in_old_views() {
    let (env, _) = env_on(disk());
    let filtering = || {
        let filter = Arc::new(RemoveValues(b'1')) as Arc<dyn CompactionFilter>;
        let mut options = options();
        options.default_family.compaction_filter = Some(filter);
        options
    };
    let db = Db::open(&env, "db", filtering()).unwrap();
    let mut model = Model::new();
    write(&db, &mut model, 0..40, 0);
    let snapshot = db.snapshot();
    let old = model.clone();
    let mut iter = db
        .iter(&db.default_family(), &ReadOptions::default())
        .unwrap();
    iter.seek_to_first().unwrap();
    compact(&db);
    model.retain(|_, value| value[0] != b'1');
    expect_newest(&db, &model);
    assert_eq!(db.stats().blobs.live_records, model.len() as u64);
    let options_then = ReadOptions::default().snapshot(Some(snapshot));
    expect(&db, &db.default_family(), &options_then, &old);
    let mut shown = Model::new();
    while iter.valid() {
        shown.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next().unwrap();
    }
    assert_eq!(shown, old);
    drop((iter, options_then));
    db.close().unwrap();
    check(&env, &filtering());
}

/// The step that marks the last records of a file removes the file. Readers must not meet the pages
/// of before then, where the filter has removed nothing.
#[test]
fn marks_come_with_the_content_that_has_dropped_the_references() {
    let (env, _) = env_on(disk());
    let mut options = options();
    options.default_family.compaction_filter = Some(Arc::new(RemoveValues(b'1')));
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let mut model = Model::new();
    write(&db, &mut model, 10..20, 0);
    write(&db, &mut model, 30..40, 0);
    let pages = db.engine().tree.view().pages[&0].pages.clone();
    let before = env.ledger().usage().buffer;
    pages.tree().compact_range(b"", None, &|| true).unwrap();
    assert!(!pages.dropped_references().is_empty());
    assert!(env.ledger().usage().buffer > before);
    expect_newest(&db, &model);
    db.engine().mark_dropped_records(0, &pages).unwrap();
    assert_eq!(env.ledger().usage().buffer, before);
    assert_eq!(db.stats().blobs.files, 1);
    model.retain(|_, value| value[0] != b'1');
    expect_newest(&db, &model);
    drop(pages);
    db.close().unwrap();
    check(&env, &options);
}

#[test]
fn prepared_values_and_copies_are_read() {
    let sim = disk();
    let (env, _) = env_on(sim.clone());
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    let mut model = Model::new();
    write(&db, &mut model, 0..30, 0);
    for version in 1..4 {
        let mut writer = db.prepare(&family).unwrap();
        for n in (0..40).filter(|n| n % 4 == version) {
            let (key, value) = (key(n), value(n, version));
            writer.add(&key, &value).unwrap();
            model.insert(key, value);
        }
        db.ingest(&[writer.finish().unwrap()]).unwrap();
        expect_newest(&db, &model);
    }
    compact(&db);
    expect_newest(&db, &model);
    assert_eq!(db.stats().blobs.live_records, model.len() as u64);
    let copied = model.clone();
    db.checkpoint("copy", &CheckpointOptions::default())
        .unwrap();
    write(&db, &mut model, 0..40, 9);
    compact(&db);
    db.close().unwrap();
    check(&env, &options());
    let copy = Db::open(&env, "copy", options()).unwrap();
    expect_newest(&copy, &copied);
    compact(&copy);
    expect_newest(&copy, &copied);
    copy.close().unwrap();
    // Without the option, the references stay, and new values are in the pages.
    let mut without = options();
    without.default_family.min_blob_size = None;
    let db = Db::open(&env, "db", without).unwrap();
    expect_newest(&db, &model);
    write(&db, &mut model, 0..40, 10);
    compact(&db);
    expect_newest(&db, &model);
    assert_eq!(db.stats().blobs.files, 0);
    db.close().unwrap();
    let left = sim.list(Path::new("db")).unwrap();
    let blobs = left.iter().filter(|e| e.name.ends_with(".blob")).count();
    assert_eq!(blobs, 0);
}

#[test]
fn a_dropped_family_leaves_no_values() {
    let (env, _) = env_on(disk());
    let db = Db::open(&env, "db", options()).unwrap();
    let passing = db.create_family("passing", separating()).unwrap();
    for n in 0..20 {
        db.put(&passing, &key(n), &value(n, 0), &FREE).unwrap();
    }
    db.flush().unwrap();
    assert_eq!(db.stats().blobs.files, 1);
    db.drop_family(&passing).unwrap();
    assert_eq!(db.stats().blobs.files, 0);
    db.close().unwrap();
    check(&env, &options());
}

#[test]
fn a_family_that_is_dropped_after_a_failed_flush_leaves_no_values() {
    let sim = disk();
    let faults = FaultFs::new(sim.clone(), 1);
    let (env, _) = env_on(faults.clone());
    let db = Db::open(&env, "db", options()).unwrap();
    let passing = db.create_family("passing", separating()).unwrap();
    for n in 0..20 {
        db.put(&passing, &key(n), &value(n, 0), &FREE).unwrap();
    }
    fail_the_edit_of_a_flush(&faults);
    assert!(db.flush().is_err());
    let blobs = || {
        let all = sim.list(Path::new("db")).unwrap();
        all.iter().filter(|e| e.name.ends_with(".blob")).count()
    };
    assert_eq!(blobs(), 1);
    db.drop_family(&passing).unwrap();
    db.flush().unwrap();
    while env.jobs().step() {}
    assert_eq!(blobs(), 0);
    db.close().unwrap();
    check(&env, &options());
}

/// Each power cut leaves a store in which all synced values are right, at each moment of flushes,
/// merges of pages and garbage collections.
#[test]
fn every_moment_of_flushes_and_collections_survives_a_power_cut() {
    let disk = disk();
    let (env, _) = env_on(disk.clone());
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    disk.record_snapshots(1);
    let mut newest = 0;
    for round in 0..12 {
        for n in (0..16).filter(|n| n % 3 == round % 3 || round == 0) {
            db.put(&family, &key(n), &value(n, round), &WriteOptions::SYNC)
                .unwrap();
        }
        db.flush().unwrap();
        if round % 2 == 1 {
            compact(&db);
        }
        newest = round;
    }
    db.abandon();
    let snapshots = disk.take_snapshots();
    assert!(snapshots.len() > 100, "{} moments", snapshots.len());
    for (i, snapshot) in snapshots.iter().enumerate().step_by(3) {
        for policy in [
            CrashPolicy::NothingUnsynced,
            CrashPolicy::EverythingUnsynced,
        ] {
            let (env, _) = env_on(snapshot.crash(policy, i as u64));
            let db = Db::open(&env, "db", options()).unwrap();
            let found = |db: &Db| -> Model {
                let iter = db.iter(&db.default_family(), &ReadOptions::default());
                let entries = iter.unwrap().map(|entry| entry.unwrap());
                entries.map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
            };
            let first = found(&db);
            for (k, v) in &first {
                let n: u64 = std::str::from_utf8(k).unwrap().parse().unwrap();
                assert!(
                    (0..=newest).any(|version| *v == value(n, version)),
                    "moment {i}"
                );
            }
            compact(&db);
            assert_eq!(found(&db), first, "moment {i}, {policy:?}");
            db.close().unwrap();
            check(&env, &options());
        }
    }
}

/// Returns the incompatible features of the store's manifest. An edit that adds a blob file must
/// not come before the feature of references in pages.
fn features(env: &Env, dir: &str) -> u32 {
    let dir = Path::new(dir);
    let current = manifest::read_current(env, dir).unwrap().unwrap();
    let mut bits = 0;
    manifest::replay(env, dir, &current, |edit| {
        let edit = Edit::decode(edit)?;
        bits |= edit.features.map_or(0, |[_, _, incompatible]| incompatible);
        assert!(edit.add_blobs.is_empty() || bits & 2 != 0, "{edit:?}");
        Ok(())
    })
    .unwrap();
    bits
}

/// A version without references in pages would return them as values.
#[test]
fn older_versions_refuse_a_store_with_references_in_pages() {
    let sim = disk();
    let (env, _) = env_on(sim.clone());
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    db.put(&family, b"small", b"1", &FREE).unwrap();
    db.flush().unwrap();
    assert_eq!(features(&env, "db"), 0);
    db.put(&family, &key(1), &value(1, 0), &WriteOptions::SYNC)
        .unwrap();
    assert_eq!(features(&env, "db"), 0);
    // A recovery writes the value.
    let (crashed, _) = env_on(sim.crash(CrashPolicy::NothingUnsynced, 1));
    Db::open(&crashed, "db", options())
        .unwrap()
        .close()
        .unwrap();
    assert_eq!(features(&crashed, "db"), 2);
    // A flush writes it.
    db.flush().unwrap();
    assert_eq!(features(&env, "db"), 2);
    db.checkpoint("copy", &CheckpointOptions::default())
        .unwrap();
    assert_eq!(features(&env, "copy"), 2);
    // References may be left where no value is.
    db.delete(&family, &key(1), &FREE).unwrap();
    compact(&db);
    assert_eq!(db.stats().blobs.files, 0);
    db.close().unwrap();
    Db::open(&env, "db", options()).unwrap().close().unwrap();
    assert_eq!(features(&env, "db"), 2);
}

#[test]
fn prepared_values_and_a_repair_set_the_feature_of_references_in_pages() {
    let (env, _) = env_on(disk());
    let db = Db::open(&env, "db", options()).unwrap();
    let mut writer = db.prepare(&db.default_family()).unwrap();
    writer.add(&key(1), &value(1, 0)).unwrap();
    let prepared = writer.finish().unwrap();
    assert_eq!(features(&env, "db"), 0);
    db.ingest(&[prepared]).unwrap();
    assert_eq!(features(&env, "db"), 2);
    db.close().unwrap();
    for file in env.fs().list(Path::new("db")).unwrap() {
        if file.name == "CURRENT" || file.name.starts_with("MANIFEST") {
            env.fs().remove(&Path::new("db").join(file.name)).unwrap();
        }
    }
    Db::repair(&env, "db", &options(), &mut |_, _| ()).unwrap();
    assert_eq!(features(&env, "db"), 2);
    let db = Db::open(&env, "db", options()).unwrap();
    expect_newest(&db, &Model::from([(key(1), value(1, 0))]));
    db.close().unwrap();
}

/// Other features stay when one is set.
#[test]
fn features_are_set_together_with_those_before() {
    let (env, _) = env_on(disk());
    let db = Db::open(&env, "db", options()).unwrap();
    write(&db, &mut Model::new(), 0..2, 0);
    db.engine().add_engine(EngineKind::Logs).unwrap();
    assert_eq!(features(&env, "db"), 3);
    let catalog = db.engine().tree.lock().catalog().clone();
    assert!(catalog.has_references_in_pages && catalog.engines.contains(&EngineKind::Logs));
    db.close().unwrap();
}
