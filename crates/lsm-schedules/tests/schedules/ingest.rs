//! Tables that are added beside readers. A reader's view may be older than the tables while its
//! sequence number is not. Such a reader must not see later entries of the old view's memtables
//! without the tables. A reader with an older snapshot must find the entries that the tables cover,
//! although a merge picked the tables at once.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_lsm_schedules::{Db, Family, Options, ReadOptions, WriteOptions};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: u64 = 2;

fn open() -> Db {
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(100));
    let env = EnvBuilder::new(SimFs::new(SimOptions::default()))
        .threads(1)
        .seed(below(1 << 32))
        .clock(Clock::manual(clock))
        .memory_bytes(16 << 20)
        .build();
    let options = Options::default().idle_release(Duration::ZERO);
    Db::open(&env, "db", options).unwrap()
}

fn number(found: Option<basalt_fs::Bytes>) -> u64 {
    found.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()))
}

fn read(db: &Db, family: &Family) -> [u64; 2] {
    let keys: [(&Family, &[u8]); 2] = [(family, b"added"), (family, b"put")];
    let found = db.multi_get(&keys, &ReadOptions::default());
    let found: Vec<u64> = (found.into_iter())
        .map(|v| number(v.expect("reads")))
        .collect();
    found.try_into().unwrap()
}

/// Reads twice, as of a snapshot, a key that is never deleted. Both reads agree.
fn held(db: &Db, family: &Family) {
    let read = ReadOptions::default().snapshot(Some(db.snapshot()));
    let get = || {
        let found = db.get(family, b"added", &read).expect("reads");
        number(Some(found.expect("it is never deleted")))
    };
    let first = get();
    yield_now();
    assert_eq!(first, get(), "of one snapshot");
}

/// Merges pick added tables as soon as they exist.
fn merging(totals: &Counts) {
    let db = open();
    let family = db.default_family();
    let add = |db: &Db, family: &Family, n: u64| {
        let mut table = db.prepare(family).expect("prepares");
        table.add(b"added", &n.to_le_bytes()).expect("takes it");
        db.ingest(&[table.finish().expect("ends")]).expect("adds");
    };
    add(&db, &family, 0);
    let mut threads = Vec::new();
    let (r, f) = (db.clone(), family.clone());
    threads.push(shuttle::thread::spawn(move || {
        (0..6).for_each(|_| held(&r, &f));
    }));
    let (c, f) = (db.clone(), family.clone());
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..3 {
            c.compact_range(&f, None, None).expect("compacts");
        }
    }));
    for n in 1..=ROUNDS {
        add(&db, &family, n);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    held(&db, &family);
    count(
        totals,
        2,
        u64::from(db.stats().compaction_bytes_written > 0),
    );
    db.close().expect("closes");
}

fn model(totals: &Counts) {
    if percent(50) {
        return merging(totals);
    }
    let db = open();
    let family = db.default_family();
    let (r, f, seen) = (db.clone(), family.clone(), totals.clone());
    let reader = shuttle::thread::spawn(move || {
        for _ in 0..12 {
            let [added, put] = read(&r, &f);
            assert!(added >= put, "{put} was put after {added} was added");
            // The last round did not exist before. Now it does, or not yet.
            count(&seen, 1, u64::from(put > 0 && put < ROUNDS));
        }
    });
    let sets: Vec<_> = (1..=ROUNDS)
        .map(|n| {
            let mut table = db.prepare(&family).expect("prepares");
            table.add(b"added", &n.to_le_bytes()).expect("takes it");
            (n, table.finish().expect("ends"))
        })
        .collect();
    let snapshot = db.snapshot();
    for (n, set) in sets {
        db.ingest(&[set]).expect("adds");
        let put = db.put(&family, b"put", &n.to_le_bytes(), &WriteOptions::default());
        put.expect("writes");
    }
    reader.join().unwrap();
    assert_eq!(read(&db, &family), [ROUNDS; 2]);
    let before = ReadOptions::default().snapshot(Some(snapshot));
    assert_eq!(db.get(&family, b"added", &before).expect("reads"), None);
    drop(before);
    count(totals, 0, shuttle::current::context_switches() as u64);
    db.close().expect("closes");
}

#[test]
fn ingested_tables_are_visible_atomically_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..80 * campaign::scale()) {
        let _repeat = repeat!(
            ingested_tables_are_visible_atomically_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals: Counts = Arc::clone(&totals);
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, between, merged] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "ingest_schedules={schedules} steps={steps} reads_between={between} merged={merged}"
    );
    if campaign::case().is_none() {
        assert!(between > schedules / 8, "few reads between: {between}");
        assert!(merged > schedules / 8, "few merges: {merged}");
    }
}
