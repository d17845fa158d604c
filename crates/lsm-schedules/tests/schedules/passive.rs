//! A passive store beside its threads: the owner, which logs and applies transactions and makes a
//! family now and then, readers, flushes, and a thread that trims the log as far as the store
//! allows. A power cut takes a copy of the disk at some moment.
//!
//! What must hold: a reader sees whole transactions; the log is never trimmed further than a
//! recovery can do with; after the cut, a replay of what the log had left gives what it says.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use crate::locks;
use basalt_env::sync::yield_now;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_kv::merge::AddU64;
use basalt_lsm_schedules::db::{Logged, Replay};
use basalt_lsm_schedules::{
    Db, Family, FamilyOptions, LogMode, Options, OwnerLog, PassiveOptions, ReadOptions, Result,
    WriteBatch,
};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, campaign, repeat};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TRANSACTIONS: u64 = 12;
/// Items of a large transaction: from this number on, families are filled side by side.
const LARGE: u64 = 6;

/// The owner's log: what it adds to the sum of both families, and to that of the first alone.
#[derive(Clone, Default)]
struct Log {
    records: Vec<(u64, u64)>,
    trimmed: u64,
    durable: u64,
}

#[derive(Clone, Default)]
struct Owner(Arc<Mutex<Log>>);

impl OwnerLog for Owner {
    fn make_durable(&self, tsn: u64) -> Result<()> {
        yield_now();
        let mut log = self.0.lock().unwrap();
        log.durable = log.durable.max(tsn);
        Ok(())
    }
}

fn sums() -> FamilyOptions {
    FamilyOptions::default().merge_operator(Some(Arc::new(AddU64)))
}

fn options(owner: &Owner) -> Options {
    let passive = PassiveOptions::default()
        .owner_log(Some(Arc::new(owner.clone())))
        .max_pinned_log_bytes(Some(4 << 10));
    let families = ["other", "more"].map(|name| (name.to_string(), sums()));
    Options::default()
        .log(LogMode::Passive(passive))
        .write_buffer_bytes(8 << 10)
        .default_family(sums())
        .families(families.into_iter().collect())
}

/// A transaction: `both` to a key of each family, if it is not 0, and `one` to several keys of the
/// first.
fn batch(families: &[Family; 2], (both, one): (u64, u64)) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for family in families.iter().filter(|_| both > 0) {
        batch.merge(family, b"both", &both.to_le_bytes()).unwrap();
    }
    for n in 0..one {
        let key = format!("one{}", n % 3);
        batch
            .merge(&families[0], key.as_bytes(), &1u64.to_le_bytes())
            .unwrap();
    }
    batch
}

fn sum(db: &Db, family: &Family, key: &str, options: &ReadOptions) -> u64 {
    let found = db.get(family, key.as_bytes(), options).expect("reads");
    found.map_or(0, |sum| {
        u64::from_le_bytes(sum[..].try_into().expect("8 bytes"))
    })
}

fn families(db: &Db) -> [Family; 2] {
    ["default", "other"].map(|name| db.family(name).expect("it was made"))
}

/// Compares the store with the first `end` records.
fn check(db: &Db, log: &Log, end: u64) {
    let families = families(db);
    let now = ReadOptions::default();
    let both: u64 = log.records[..end as usize].iter().map(|r| r.0).sum();
    let one: u64 = log.records[..end as usize].iter().map(|r| r.1).sum();
    for family in &families {
        assert_eq!(
            sum(db, family, "both", &now),
            both,
            "after {end} transactions"
        );
    }
    let keys = ["one0", "one1", "one2"];
    let found: u64 = keys
        .iter()
        .map(|key| sum(db, &families[0], key, &now))
        .sum();
    assert_eq!(found, one, "after {end} transactions");
}

/// Opens the store and replays a log of which the first `end` records survived. Counts items that
/// families had.
fn recover(env: &Env, owner: &Owner, end: u64, totals: &Counts) -> Db {
    let mut run: Replay = Db::open_passive(env, "db", options(owner)).expect("opens");
    if run.family("other").is_none() {
        run.create_family("other", sums()).expect("makes");
    }
    let families = ["default", "other"].map(|name| run.family(name).expect("it was made"));
    let log = owner.0.lock().unwrap().clone();
    let needed = run.points().replay_from();
    assert!(
        log.trimmed < needed,
        "trimmed to {}, needed from {needed}",
        log.trimmed
    );
    for tsn in needed..=end {
        let record = log.records[tsn as usize - 1];
        let replayed = run.replay(tsn, batch(&families, record)).expect("replays");
        count(totals, 3, u64::from(replayed.dropped > 0));
    }
    run.finish(end).expect("all of the log")
}

struct Cut {
    disk: Arc<SimFs>,
    log: Log,
}

fn model(totals: &Counts) {
    let disk = SimFs::own(SimOptions {
        seed: below(1 << 20),
        ..SimOptions::default()
    });
    let clock = Clock::manual(ManualClock::new(1_700_000_000_000));
    let builder = EnvBuilder::new(disk.clone())
        .threads(1 + below(2) as usize)
        .seed(below(1 << 20));
    let env = builder
        .clock(clock)
        .memory_bytes(16 << 20)
        .cache_bytes(1 << 20)
        .build();
    let owner = Owner::default();
    let db = recover(&env, &owner, 0, totals);
    let cut: Arc<Mutex<Option<Cut>>> = Arc::default();
    let mut threads = Vec::new();
    let (writer, log) = (db.clone(), owner.clone());
    threads.push(shuttle::thread::spawn(move || {
        let families = families(&writer);
        let mut tsn = 0;
        while tsn < TRANSACTIONS {
            let group = (0..1 + below(2)).map(|_| {
                tsn += 1;
                let one = if percent(30) { LARGE } else { below(3) };
                let both = if percent(50) { 1 + below(9) } else { 0 };
                let record = (both, one);
                log.0.lock().unwrap().records.push(record);
                (Logged::at(tsn).bytes(900), batch(&families, record))
            });
            let mut group: Vec<_> = group.collect();
            writer.write_group_at(&mut group).expect("applies");
            if percent(10) && writer.family("more").is_none() {
                writer.create_family("more", sums()).expect("makes");
            }
        }
    }));
    let reader = db.clone();
    threads.push(shuttle::thread::spawn(move || {
        let families = families(&reader);
        let mut last = 0;
        for _ in 0..4 {
            let snapshot = ReadOptions::default().snapshot(Some(reader.snapshot()));
            let [a, b] = families
                .each_ref()
                .map(|f| sum(&reader, f, "both", &snapshot));
            assert_eq!(a, b, "a part of a transaction is visible");
            assert!(a >= last, "a transaction has vanished");
            last = a;
            yield_now();
        }
    }));
    let (flusher, trimmed, dice) = (db.clone(), owner.clone(), totals.clone());
    threads.push(shuttle::thread::spawn(move || {
        let mut watch = flusher.subscribe().expect("it is passive");
        let mut last = 0;
        for _ in 0..3 {
            if percent(50) {
                flusher.flush().expect("flushes");
            }
            let points = match percent(50) {
                true => flusher.persistence_points().expect("it is passive"),
                false => match watch.next(Duration::ZERO).expect("open") {
                    Some(points) => points,
                    None => continue,
                },
            };
            assert!(
                points.global >= last && points.global <= points.applied,
                "{points:?}"
            );
            last = points.global;
            let mut log = trimmed.0.lock().unwrap();
            log.trimmed = log.trimmed.max(points.global);
            count(&dice, 2, u64::from(points.global > 0));
        }
    }));
    let (onto, log, taken) = (disk.clone(), owner.clone(), cut.clone());
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..below(6) {
            yield_now();
        }
        // The disk first: what is trimmed until then may be gone, and what is durable later is not.
        let before = log.0.lock().unwrap().clone();
        let policies = CrashPolicy::ALL;
        let policy = policies[below(policies.len() as u64) as usize];
        let disk = onto.crash(policy, below(1 << 20));
        let after = log.0.lock().unwrap().clone();
        let log = Log {
            trimmed: before.trimmed,
            ..after
        };
        *taken.lock().unwrap() = Some(Cut { disk, log });
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    let log = owner.0.lock().unwrap().clone();
    check(&db, &log, log.records.len() as u64);
    count(totals, 0, shuttle::current::context_switches() as u64);
    match percent(50) {
        true => db.close().expect("closes"),
        false => db.abandon(),
    }
    let end = log.records.len() as u64;
    let again = recover(&env, &owner, end, totals);
    check(&again, &log, end);
    again.abandon();
    if let Some(cut) = cut.lock().unwrap().take() {
        let end = cut.log.durable;
        let owner = Owner(Arc::new(Mutex::new(cut.log.clone())));
        let env = EnvBuilder::for_tests(cut.disk, 7).build();
        let after = recover(&env, &owner, end, totals);
        check(&after, &cut.log, end);
        after.abandon();
        count(totals, 1, u64::from(end > 0));
    }
}

#[test]
fn a_passive_store_is_correct_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..24 * campaign::scale()) {
        let _repeat = repeat!(
            a_passive_store_is_correct_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, durable, trims, dropped] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "passive_schedules={schedules} steps={steps} cuts_with_data={durable} trims={trims} dropped={dropped}"
    );
    if campaign::case().is_none() {
        locks::assert_taken(&["Persistence::log_ends", "by_family::offered"]);
        assert!(durable * 6 > schedules, "few cuts after a flush: {durable}");
        assert!(trims * 4 > schedules, "few trims: {trims}");
        assert!(
            dropped * 20 > schedules,
            "few items that families had: {dropped}"
        );
    }
}
