//! The moment that a reader reads as of. It is a number, and what the number shows must still be in
//! the view: a flush or a merge drops the version of a key that no live snapshot can ask for.
//!
//! Two rules, each with a thread that writes, flushes and compacts one key beside one reader. The
//! view is taken before the visible number, so the view has at least what the number shows. And a
//! snapshot's number is read under the lock that merges take for the list of live snapshots.

use crate::explore::{CASE, Counts, case, count, counted, counts};
use basalt_env::EnvBuilder;
use basalt_lsm_schedules::{Db, Family, Options, ReadOptions, WriteOptions};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const ROUNDS: u64 = 4;
const READS: u64 = 24;

/// Reads the key's value. The key is never deleted.
fn read(db: &Db, family: &Family, options: &ReadOptions) -> u64 {
    let found = db.get(family, b"key", options).expect("reads");
    let found = found.expect("an acknowledged key is not absent");
    u64::from_le_bytes(found[..].try_into().expect("8 bytes"))
}

fn write(db: &Db, family: &Family, n: u64) {
    let written = db.put(family, b"key", &n.to_le_bytes(), &WriteOptions::UNSYNCED);
    written.expect("writes");
}

/// Runs one reader beside one writer. `reads` reads once; its last argument is the last
/// acknowledged round.
fn model(totals: &Counts, reads: fn(&Db, &Family, u64)) {
    // Jobs are stepped: they run in the thread that waits for them. So a schedule has few steps,
    // and the scheduler's few changes fall often between two steps of the reader.
    let env = EnvBuilder::for_tests(SimFs::new(SimOptions::default()), 1).build();
    let db = Db::open(&env, "db", Options::default()).expect("opens");
    let family = db.default_family();
    write(&db, &family, 0);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let (r, f, last) = (db.clone(), family.clone(), acknowledged.clone());
    let seen = totals.clone();
    let reader = shuttle::thread::spawn(move || {
        for _ in 0..READS {
            let before = last.load(SeqCst);
            reads(&r, &f, before);
            count(&seen, 1, u64::from(last.load(SeqCst) > before));
        }
    });
    for n in 1..=ROUNDS {
        write(&db, &family, n);
        acknowledged.store(n, SeqCst);
        db.flush().expect("flushes");
        if n % 2 == 0 {
            db.compact_range(&family, None, None).expect("compacts");
        }
    }
    reader.join().expect("reads");
    assert_eq!(read(&db, &family, &ReadOptions::default()), ROUNDS);
    count(totals, 0, shuttle::current::context_switches() as u64);
    db.close().expect("closes");
}

fn now(db: &Db, family: &Family, acknowledged: u64) {
    let found = read(db, family, &ReadOptions::default());
    assert!(found >= acknowledged, "{found} after {acknowledged}");
}

fn as_of_a_snapshot(db: &Db, family: &Family, acknowledged: u64) {
    let options = ReadOptions::default().snapshot(Some(db.snapshot()));
    let found = read(db, family, &options);
    assert!(found >= acknowledged, "{found} after {acknowledged}");
    assert_eq!(read(db, family, &options), found, "of one snapshot");
}

fn campaign(name: &str, totals: &Counts, schedules: u64) {
    let [steps, between] = std::array::from_fn(|i| counted(totals, i));
    basalt_sim::campaign!("{name}={schedules} steps={steps} reads_beside_writes={between}");
    if campaign::case().is_none() {
        assert!(
            between > schedules / 4,
            "few reads beside writes: {between}"
        );
    }
}

/// If the number were read before the view, a write, a flush and a merge could come between the
/// two. The view would then have no version that the number shows: an acknowledged key would read
/// as absent.
#[test]
fn an_acknowledged_key_is_never_absent_in_any_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..24 * campaign::scale()) {
        let _repeat = repeat!(
            an_acknowledged_key_is_never_absent_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals, now));
        schedules += CASE as u64;
    }
    campaign("moment_schedules", &totals, schedules);
}

/// If a snapshot's number were read before the snapshots' lock is taken, a merge could begin in
/// between. The merge would not see the snapshot, and would drop the version that the snapshot must
/// show.
#[test]
fn a_snapshot_keeps_its_versions_in_any_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..24 * campaign::scale()) {
        let _repeat = repeat!(
            a_snapshot_keeps_its_versions_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals, as_of_a_snapshot));
        schedules += CASE as u64;
    }
    campaign("snapshot_schedules", &totals, schedules);
}
