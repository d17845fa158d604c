//! A reader whose view is older than tables that were added, and whose moment is not: what memtables of the old view have come by since must
//! not be seen without them.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, scale};
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_fs::sim::{SimFs, SimOptions};
use basalt_fs::{campaign, repeat};
use basalt_lsm_schedules::{Db, Family, Options, ReadOptions, WriteOptions};
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: u64 = 2;

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

fn model(totals: &Counts) {
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(100));
    let env = EnvBuilder::new(SimFs::new(SimOptions::default()))
        .threads(1)
        .seed(below(1 << 32))
        .clock(Clock::manual(clock))
        .memory_bytes(16 << 20)
        .build();
    let options = Options {
        idle_release: Duration::ZERO,
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    let family = db.default_family();
    let (r, f, seen) = (db.clone(), family.clone(), totals.clone());
    let reader = shuttle::thread::spawn(move || {
        for _ in 0..12 {
            let [added, put] = read(&r, &f);
            assert!(added >= put, "{put} was put after {added} was added");
            // The last round was not there before, and is now or not yet.
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
    let before = ReadOptions {
        snapshot: Some(snapshot),
        ..ReadOptions::default()
    };
    assert_eq!(db.get(&family, b"added", &before).expect("reads"), None);
    drop(before);
    count(totals, 0, shuttle::current::context_switches() as u64);
    db.close().expect("closes");
}

#[test]
fn no_reader_sees_what_came_after_without_what_was_added_before() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..60 * scale()) {
        let _repeat = repeat!(
            no_reader_sees_what_came_after_without_what_was_added_before,
            "BASALT_CASE={seed}"
        );
        let totals: Counts = Arc::clone(&totals);
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, between] = std::array::from_fn(|i| counted(&totals, i));
    basalt_fs::campaign!("ingest_schedules={schedules} steps={steps} reads_between={between}");
    if campaign::case().is_none() {
        assert!(between > schedules / 4, "few reads between: {between}");
    }
}
