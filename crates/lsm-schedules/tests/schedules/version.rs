//! The version set: readers on old views while flushes, compactions and ingestions install new
//! ones. A table's file is removed when its last holder drops it: not before, and never not at all.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_fs::ErrorKind;
use basalt_lsm_schedules::version::TableStore;
use basalt_lsm_schedules::{
    Db, Family, FamilyOptions, Options, ReadOptions, WriteBatch, WriteOptions,
};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const KEYS: u64 = 8;

fn key(n: u64) -> Vec<u8> {
    format!("key{n:02}").into_bytes()
}

fn value(round: u64) -> Vec<u8> {
    let mut v = round.to_le_bytes().to_vec();
    v.resize(150, b'.');
    v
}

fn round(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

fn options() -> Options {
    Options::default()
        .write_buffer_bytes(4096)
        .default_family(
            FamilyOptions::default()
                .block_bytes(256)
                .table_bytes(1024)
                .l0_compaction_trigger(2)
                .l0_slowdown(4)
                .base_level_bytes(2048)
                .level_multiplier(2),
        )
        .idle_release(Duration::ZERO)
}

/// Sets every key to one round, in one batch or by a prepared table. Then `seen_marks` says so.
fn write_round(db: &Db, family: &Family, n: u64) {
    if percent(50) {
        let mut table = db.prepare(family).expect("prepares");
        for k in 0..KEYS {
            table.add(&key(k), &value(n)).expect("takes it");
        }
        db.ingest(&[table.finish().expect("ends")]).expect("adds");
        let seen_marks = db.family("marks").expect("it is there");
        let written = db.put(&seen_marks, b"mark", &value(n), &WriteOptions::default());
        written.expect("writes");
        return;
    }
    let mut batch = WriteBatch::new();
    for k in 0..KEYS {
        batch.put(family, &key(k), &value(n)).unwrap();
    }
    db.write(batch, &WriteOptions::default()).expect("writes");
}

/// Reads all keys as of one moment, by a slow walk or by points. They must be of one round, and
/// none older than the last write that had returned.
fn look(db: &Db, family: &Family, returned: &AtomicU64, totals: &Counts) {
    let due = returned.load(SeqCst);
    let snapshot = percent(50).then(|| db.snapshot());
    let read = ReadOptions::default().snapshot(snapshot);
    let mut rounds = Vec::new();
    if percent(40) {
        // A reader that sees the mark sees all that was set before it.
        let seen_marks = db.family("marks").expect("it is there");
        let found = db.multi_get(&[(family, &key(3)), (&seen_marks, b"mark")], &read);
        let found: Vec<u64> = (found.into_iter())
            .map(|v| v.expect("reads").map_or(0, |v| round(&v)))
            .collect();
        assert!(found[0] >= found[1].max(due), "{found:?} and not {due}");
        return;
    }
    if read.snapshot.is_some() && percent(50) {
        for k in 0..KEYS {
            let found = db.get(family, &key(k), &read).expect("reads");
            rounds.push(round(&found.expect("it is never deleted")));
            if percent(30) {
                yield_now();
            }
        }
    } else {
        let mut iter = db.iter(family, &read).expect("an iterator");
        let down = percent(50);
        if down {
            iter.seek_to_last().expect("reads");
        } else {
            iter.seek_to_first().expect("reads");
        }
        while iter.valid() {
            let at = if down {
                KEYS - 1 - rounds.len() as u64
            } else {
                rounds.len() as u64
            };
            assert_eq!(iter.key(), key(at), "a key is missing");
            rounds.push(round(iter.value()));
            if percent(30) {
                yield_now();
            }
            if down { iter.prev() } else { iter.next() }.expect("reads");
        }
    }
    assert_eq!(rounds.len() as u64, KEYS);
    assert!(
        rounds.iter().all(|r| *r == rounds[0]),
        "of one moment: {rounds:?}"
    );
    assert!(rounds[0] >= due, "round {} and not {due}", rounds[0]);
    count(totals, 1, 1);
}

/// Creates and drops a family under a reader.
fn create_and_drop_family(db: &Db) {
    let family = db
        .create_family("passing", options().default_family)
        .unwrap();
    for n in 0..3u8 {
        db.put(&family, &[n], &value(1), &WriteOptions::default())
            .unwrap();
    }
    if percent(70) {
        db.flush().expect("flushes");
    }
    let mut iter = db.iter(&family, &ReadOptions::default()).unwrap();
    db.drop_family(&family).expect("drops");
    let gone = db.get(&family, &[0], &ReadOptions::default());
    assert_eq!(gone.map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    // A reader that holds the family reads it to the end.
    iter.seek_to_first().expect("reads what it holds");
    for n in 0..3u8 {
        assert!(iter.valid() && iter.key() == [n]);
        iter.next().expect("reads what it holds");
        yield_now();
    }
}

fn model(totals: &Counts) {
    let disk = SimFs::new(SimOptions::default());
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(100));
    let env = EnvBuilder::new(disk)
        .threads(1 + below(3) as usize)
        .seed(below(1 << 32))
        .clock(Clock::manual(clock))
        .memory_bytes(16 << 20)
        .cache_bytes([0, 2000, 1 << 20][below(3) as usize])
        // The budget is below the number of tables: readers are closed and opened all the time.
        .open_files(1 + below(3) as usize)
        .build();
    let db = Db::open(&env, "db", options()).unwrap();
    let family = db.default_family();
    db.create_family("marks", FamilyOptions::default()).unwrap();
    let returned = Arc::new(AtomicU64::new(0));
    for n in 1..=2 {
        write_round(&db, &family, n);
        db.flush().expect("flushes");
        returned.store(n, SeqCst);
    }
    let mut threads = Vec::new();
    let (w, f, r) = (db.clone(), family.clone(), returned.clone());
    threads.push(shuttle::thread::spawn(move || {
        for n in 3..6 {
            write_round(&w, &f, n);
            r.store(n, SeqCst);
            if percent(70) {
                w.flush().expect("flushes");
            }
        }
    }));
    for _ in 0..2 {
        let (db, f, r, totals) = (db.clone(), family.clone(), returned.clone(), totals.clone());
        threads.push(shuttle::thread::spawn(move || {
            (0..3).for_each(|_| look(&db, &f, &r, &totals));
        }));
    }
    let (c, f) = (db.clone(), family.clone());
    threads.push(shuttle::thread::spawn(move || match below(3) {
        0 => create_and_drop_family(&c),
        1 => c.compact_range(&f, None, None).expect("compacts"),
        _ => c.wait_idle().expect("becomes idle"),
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    look(&db, &family, &returned, totals);
    let stats = db.stats();
    count(totals, 2, u64::from(stats.compaction_bytes_written > 0));
    count(totals, 3, stats.ingestions);
    count(totals, 0, shuttle::current::context_switches() as u64);
    db.close().expect("closes");
    assert_eq!(
        env.open_files().count(),
        0,
        "every table that was opened is closed"
    );
    let report = Db::verify_store(&env, "db", &options(), &mut |_, _| ()).expect("walks");
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(
        report.unused_files.is_empty(),
        "left behind: {:?}",
        report.unused_files
    );
}

#[test]
fn the_version_set_is_correct_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..40 * campaign::scale()) {
        let _repeat = repeat!(
            the_version_set_is_correct_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, looks, compacted, ingested] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "version_schedules={schedules} steps={steps} looks={looks} compacted={compacted} ingestions={ingested}"
    );
    if campaign::case().is_none() {
        assert!(compacted * 2 > schedules, "few compactions: {compacted}");
        assert!(ingested > schedules, "few ingestions: {ingested}");
    }
}

/// One owner removes files that no manifest names, while the directory passes to another owner that
/// gives the same number out again.
fn change_directory_owner() {
    let disk = SimFs::new(SimOptions::default());
    let env = EnvBuilder::for_tests(disk.clone(), below(1 << 32)).build();
    let store = TableStore::new(&env, Path::new("db"));
    env.fs().create_dir(Path::new("db")).unwrap();
    let path = store.path(7);
    drop(store.create(&path).unwrap());
    let (dropping, dropped) = (store.clone(), path.clone());
    let first = shuttle::thread::spawn(move || dropping.remove(&dropped));
    store.leave();
    let refused = store.create(&path).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    // The next owner removes files without a name in its manifest, and begins.
    let _ = env.fs().remove(&path);
    drop(env.fs().create(&path).unwrap());
    first.join().unwrap();
    assert!(
        env.fs().exists(&path).unwrap(),
        "the next owner's file is gone"
    );
}

#[test]
fn a_left_directory_is_not_touched_in_any_schedule() {
    for seed in campaign::cases(0..10 * campaign::scale()) {
        let _repeat = repeat!(
            a_left_directory_is_not_touched_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        case(seed, change_directory_owner);
    }
}
