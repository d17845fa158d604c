//! Random histories with power cuts.

use crate::database::{self, DIR, options, read_all};
use crate::owner::{Change, Log, LogState, Moment, Record, content};
use basalt_env::Env;
use basalt_lsm::db::CheckpointOptions;
use basalt_lsm::{Db, Options};
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{CrashPolicy, SimFs, SimOptions, campaign, repeat};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Families that a history may create, beside `default`: plain ones, sums, separated values, pages.
const NAMES: [&str; 7] = [
    "hot",
    "cold",
    "sums",
    "sums-cold",
    "values",
    "pages",
    "idle",
];

/// Counts of what a campaign really did.
#[derive(Debug, Default)]
struct Tally {
    states: u64,
    /// States in which families were persisted up to different transactions.
    uneven: u64,
    /// Items that replays applied, and that families had already.
    applied: u64,
    dropped: u64,
    /// States whose log lost transactions that had been written.
    lost: u64,
    /// States in which the log had been trimmed.
    trimmed: u64,
    /// Power cuts inside recoveries.
    nested: u64,
    early_flushes: u64,
    ingested: u64,
    copies: u64,
}

/// A history that runs.
pub struct History {
    rng: Rng,
    log: Arc<Log>,
    env: Env,
    pub db: Db,
    /// Families that exist.
    alive: BTreeSet<&'static str>,
    nonce: u64,
    seed: u64,
    ingested: u64,
    copies: u64,
    /// True if a record in the log could not be applied.
    is_stuck: bool,
}

pub fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        write_unit: 512,
        capacity: 1 << 30,
        seed,
    })
}

/// Returns the bound on the log in a history.
fn pinned(seed: u64) -> Option<u64> {
    match seed % 3 {
        0 => None,
        1 => Some(16 << 10),
        _ => Some(5 << 10),
    }
}

/// Returns true if all families are sealed together in a history.
fn flushes_atomically(seed: u64) -> bool {
    seed % 6 == 5
}

pub fn options_of(log: &Arc<Log>, seed: u64) -> Options {
    options(log, &NAMES, pinned(seed), flushes_atomically(seed))
}

impl History {
    fn begin(seed: u64, recorded: bool) -> History {
        let disk = disk(seed);
        let log = Log::new(&disk, &[], 1, 0);
        let env = Env::for_tests(disk.clone(), seed);
        if recorded {
            disk.record_snapshots(1);
        }
        History::begin_in(seed, env, log)
    }

    /// Begins with an empty log in an environment.
    pub fn begin_in(seed: u64, env: Env, log: Arc<Log>) -> History {
        let db = database::open(&env, options_of(&log, seed), &log, |from| from);
        History {
            rng: Rng::of(&[seed, 26]),
            log,
            env,
            db: db.expect("an empty log needs no replay").0,
            alive: BTreeSet::new(),
            nonce: 0,
            seed,
            ingested: 0,
            copies: 0,
            is_stuck: false,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key{:03}", self.rng.below(60)).into_bytes()
    }

    fn value(&mut self, family: &str) -> Vec<u8> {
        self.nonce += 1;
        let len = match family {
            "values" => 40 + self.rng.below(400),
            "hot" => 100,
            _ => 10 + self.rng.below(60),
        };
        let mut value = format!("{:08}", self.nonce).into_bytes();
        value.resize(len as usize, b'x');
        value
    }

    fn change(&mut self, family: &str) -> Change {
        if family.starts_with("sums") {
            let n = self.rng.below(20);
            let key = format!("sum{n}").into_bytes();
            return match self.rng.below(12) {
                0 => Change::Delete(key),
                _ => Change::Add(key, 1 + self.rng.below(1000)),
            };
        }
        match self.rng.below(20) {
            0 => Change::Delete(self.key()),
            1 => Change::PutTtl(self.key(), self.value(family)),
            2 => {
                let (a, b) = (self.key(), self.key());
                Change::DeleteRange(a.clone().min(b.clone()), a.max(b))
            }
            _ => Change::Put(self.key(), self.value(family)),
        }
    }

    /// Returns a transaction. Most of its changes are of one family, some families have one rarely.
    fn transaction(&mut self) -> Record {
        let mut changes = Vec::new();
        let alive: Vec<&str> = self.alive.iter().copied().collect();
        for _ in 0..1 + self.rng.below(4) {
            let family = match self.rng.below(100) {
                0..20 => "default",
                _ if alive.is_empty() => "default",
                _ => self.rng.pick(&alive),
            };
            let rarely = family.ends_with("cold") || family == "idle";
            if !rarely || self.rng.percent(3) {
                changes.push((family.to_string(), self.change(family)));
            }
        }
        if self.alive.contains("hot") {
            for _ in 0..self.rng.below(4) {
                changes.push(("hot".to_string(), self.change("hot")));
            }
        }
        Record::Transaction(changes)
    }

    /// Logs and applies a record.
    fn commit(&mut self, record: Record) -> basalt_lsm::Result<()> {
        let ddl = !matches!(record, Record::Transaction(_));
        let tsn = self.log.append(record.clone());
        if ddl || self.rng.percent(20) {
            self.log.sync();
        }
        let applied = again(&self.env, || database::apply(&self.db, tsn, &record));
        self.is_stuck = applied.is_err();
        applied
    }

    fn ingest(&mut self) -> basalt_lsm::Result<()> {
        let families: Vec<&str> = self.alive.iter().copied().chain(["default"]).collect();
        let mut tables = BTreeMap::new();
        for _ in 0..1 + self.rng.below(2) {
            let name = self.rng.pick(&families);
            let is_sum = name.starts_with("sums");
            let mut entries = BTreeMap::new();
            for _ in 0..1 + self.rng.below(20) {
                match is_sum {
                    true => {
                        let key = format!("sum{}", self.rng.below(20)).into_bytes();
                        entries.insert(key, self.rng.below(1000).to_le_bytes().to_vec());
                    }
                    false => {
                        entries.insert(self.key(), self.value(name));
                    }
                }
            }
            tables.insert(name.to_string(), entries);
        }
        self.ingested += 1;
        self.commit(Record::Ingest(tables))
    }

    /// Makes a checkpoint, and opens it as of its transaction.
    fn copy(&mut self) -> basalt_lsm::Result<()> {
        self.copies += 1;
        let name = format!("copy-{}", self.copies);
        let mut tsn = None;
        again(&self.env, || {
            let report = self.db.checkpoint(&name, &CheckpointOptions::default())?;
            tsn = report.transaction;
            Ok(())
        })?;
        let tsn = tsn.expect("the store is passive");
        let records = self.log.records();
        assert_eq!(tsn, records.len() as u64, "nothing was written meanwhile");
        let copy = Db::open_read_only(&self.env, &name, options_of(&self.log, self.seed));
        let found = read_all(&copy?)?;
        assert_eq!(found, content(&records, tsn), "in the copy");
        Ok(())
    }

    /// Does one random thing.
    fn step(&mut self) -> basalt_lsm::Result<()> {
        let done = match self.rng.below(100) {
            0..6 => self.create_or_drop(),
            6 => again(&self.env, || self.db.flush()),
            7..12 => self.trim(),
            12..14 => {
                self.log.fail_next(1);
                Ok(())
            }
            14 => {
                let names = self.db.families();
                let name = &names[self.rng.below(names.len() as u64) as usize];
                let family = self.db.family(name).expect("it was just named");
                again(&self.env, || self.db.compact_range(&family, None, None))
            }
            15 => self.ingest(),
            16 => self.copy(),
            _ => {
                let record = self.transaction();
                self.commit(record)
            }
        };
        while self.rng.percent(40) && self.env.jobs().step() {}
        done
    }

    /// Does one random thing, which may fail. Returns false if a record could not be applied.
    pub fn try_step(&mut self) -> bool {
        let _ = self.step();
        !self.is_stuck
    }

    fn create_or_drop(&mut self) -> basalt_lsm::Result<()> {
        let name = NAMES[self.rng.below(NAMES.len() as u64) as usize];
        if self.alive.insert(name) {
            return self.commit(Record::Create(name.to_string()));
        }
        match self.rng.percent(12) {
            true => {
                self.alive.remove(name);
                self.commit(Record::Drop(name.to_string()))
            }
            false => Ok(()),
        }
    }

    /// Trims the log as far as allowed, or less.
    fn trim(&mut self) -> basalt_lsm::Result<()> {
        let points = self.db.persistence_points()?;
        let first = match self.rng.coin() {
            true => points.replay_from(),
            false => 1 + self.rng.below(points.replay_from()),
        };
        points.check_trim(first)?;
        let further = points.check_trim(points.replay_from() + 1);
        assert!(further.is_err(), "a recovery needs it");
        self.log.trim(first);
        Ok(())
    }
}

/// Does something again after a second if it fails, as long as its owner would. A test lets the
/// owner's log fail once: the first error may be of an earlier attempt, and the second of the
/// failure.
fn again(env: &Env, mut what: impl FnMut() -> basalt_lsm::Result<()>) -> basalt_lsm::Result<()> {
    for _ in 0..2 {
        match what() {
            Ok(()) => return Ok(()),
            Err(_) => env.clock().sleep(Duration::from_secs(1)),
        }
    }
    what()
}

/// One power cut: the moment, what it leaves of the disk, and the end of the log.
#[derive(Debug, Clone, Copy)]
struct Cut {
    policy: CrashPolicy,
    seed: u64,
    end: u64,
}

fn cut(rng: &mut Rng, log: &LogState) -> Cut {
    let lost = log.end - log.durable;
    Cut {
        policy: rng.pick(CrashPolicy::ALL),
        seed: rng.next_u64(),
        end: match rng.below(3) {
            0 => log.durable,
            1 => log.end,
            _ => log.durable + rng.below(lost + 1),
        },
    }
}

/// Recovers from a power cut and compares. Power is lost again inside the recovery as long as the
/// dice say so.
fn recover(seed: u64, rng: &mut Rng, moment: &Moment, records: &[Record], tally: &mut Tally) {
    let mut moment = Moment {
        disk: moment.disk.clone(),
        log: moment.log,
    };
    let mut depth = 0;
    loop {
        let cut = cut(rng, &moment.log);
        let disk = moment.disk.crash(cut.policy, cut.seed);
        let log = Log::new(&disk, records, moment.log.begin, cut.end);
        let env = Env::for_tests(disk.clone(), rng.next_u64());
        let again = depth < 3 && rng.percent(25);
        if again {
            disk.record_snapshots(1);
        }
        let skip = rng.below(3);
        let (db, recovery) = database::open(&env, options_of(&log, seed), &log, |from| {
            from.saturating_sub(skip)
        })
        .unwrap_or_else(|e| panic!("the recovery after {cut:?} fails: {e}"));
        assert!(
            !recovery.uneven || !flushes_atomically(seed),
            "after {cut:?}"
        );
        tally.uneven += u64::from(recovery.uneven);
        tally.applied += recovery.applied;
        tally.dropped += recovery.dropped;
        if again {
            if rng.coin() {
                db.flush().expect("a sound disk");
            }
            let mut moments = log.take_moments();
            db.abandon();
            if moments.is_empty() {
                return;
            }
            let at = rng.below(moments.len() as u64) as usize;
            moment = moments.swap_remove(at);
            depth += 1;
            tally.nested += 1;
            continue;
        }
        let found = read_all(&db).expect("a recovered store can be read");
        assert_eq!(found, content(records, cut.end), "after {cut:?}");
        tally.states += 1;
        tally.lost += u64::from(cut.end < moment.log.end);
        tally.trimmed += u64::from(moment.log.begin > 1);
        db.close().expect("a sound disk");
        // A clean close needs no replay, and can be read without the owner.
        let run = Db::open_passive(&env, DIR, options_of(&log, seed)).expect("it was closed");
        assert_eq!(run.next_tsn(), cut.end + 1);
        let db = run.finish(cut.end).expect("it has everything");
        assert_eq!(read_all(&db).expect("sound"), found, "after a clean close");
        drop(db);
        let report = Db::verify_store(&env, DIR, &options_of(&log, seed), &mut |_, _| ());
        let damage = report.expect("it was closed").damage;
        assert!(damage.is_empty(), "{damage:?}");
        return;
    }
}

fn run(seed: u64, steps: u64, cuts: u64, tally: &mut Tally) {
    let mut history = History::begin(seed, true);
    for _ in 0..steps {
        history.step().expect("a sound disk");
    }
    let stats = history.db.stats();
    tally.early_flushes += stats.passive.expect("it is passive").early_flushes;
    tally.ingested += history.ingested;
    tally.copies += history.copies;
    let records = history.log.records();
    let now = read_all(&history.db).expect("sound");
    assert_eq!(
        now,
        content(&records, records.len() as u64),
        "before any cut"
    );
    let moments = history.log.take_moments();
    history.db.abandon();
    let mut rng = Rng::of(&[seed, 27]);
    for _ in 0..cuts {
        let at = rng.below(moments.len() as u64) as usize;
        recover(seed, &mut rng, &moments[at], &records, tally);
    }
}

#[test]
fn power_cuts_lose_nothing_that_the_owners_log_has() {
    let mut tally = Tally::default();
    for seed in cases(0..24 * scale()) {
        let _repeat = repeat!(
            power_cuts_lose_nothing_that_the_owners_log_has,
            "BASALT_CASE={seed}"
        );
        run(seed, 400, 50, &mut tally);
    }
    campaign!("passive power cuts: {tally:?}");
    if case().is_none() {
        let floors = [
            ("states", tally.states, 1000),
            ("uneven states", tally.uneven, 400),
            ("items that families had", tally.dropped, 5000),
            ("lost ends of logs", tally.lost, 200),
            ("trimmed logs", tally.trimmed, 600),
            ("cuts inside recoveries", tally.nested, 200),
            ("early flushes", tally.early_flushes, 20),
            ("ingestions", tally.ingested, 50),
            ("copies", tally.copies, 50),
        ];
        for (what, count, floor) in floors {
            assert!(count >= scale().floor(floor), "{what}: {count} of {floor}");
        }
    }
}
