//! Conditional writes: threads increment one counter by compare-and-write, beside a thread that
//! changes a second key by every kind of change, flushes and compacts.
//!
//! An increment reads the counter and the second key, the fence, as of a snapshot. It is written if
//! both are unchanged since. So no increment is lost, none counts twice, and each has seen the last
//! change of the fence before it. A refused batch leaves nothing, also after a power cut.

use crate::explore::{CASE, Counts, below, case, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_fs::ErrorKind;
use basalt_lsm_schedules::db::Precondition;
use basalt_lsm_schedules::{
    Db, Family, FamilyOptions, Options, ReadOptions, Result, SeqNo, WriteBatch, WriteOptions,
};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, campaign, repeat};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const COUNTER: &[u8] = b"counter";
const FENCE: &[u8] = b"fence";
/// Number of increments of each writer.
const INCREMENTS: u64 = 2;
/// Number of changes of the fence.
const CHANGES: u64 = 3;

/// One attempt to increment the counter.
#[derive(Clone)]
struct Attempt {
    /// The counter's next value. The batch also writes it to a key of its own.
    value: u64,
    /// The fence that the attempt has read, or 0 if it was absent.
    fence: u64,
    /// The last sequence number of the batch, once it is accepted.
    accepted: Option<SeqNo>,
    durable: bool,
}

#[derive(Clone, Default)]
struct Journal {
    attempts: Vec<Attempt>,
    /// The sequence number and the value of each change of the fence; 0 for a delete.
    fences: Vec<(SeqNo, u64)>,
}

/// The store, and what its threads did. The locks are never held where threads change places.
struct World {
    db: Db,
    family: Family,
    journal: Mutex<Journal>,
    /// The disk of a power cut, and the journal at that moment.
    cut: Mutex<Option<(Arc<SimFs>, Journal)>>,
}

/// Returns the number that a key has, or 0 if it is absent.
fn get(db: &Db, family: &Family, key: &[u8], options: &ReadOptions) -> u64 {
    let found = db.get(family, key, options).expect("reads");
    found.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()))
}

/// Returns the key of an attempt.
fn own_key(attempt: usize) -> Vec<u8> {
    format!("attempt{attempt}").into_bytes()
}

/// Writes a counter's next value, and the key of the attempt, if counter and fence are unchanged.
fn write_if(
    db: &Db,
    family: &Family,
    attempt: usize,
    value: u64,
    since: SeqNo,
    sync: bool,
) -> Result<SeqNo> {
    let mut batch = WriteBatch::new();
    for key in [COUNTER, &own_key(attempt)] {
        batch.put(family, key, &value.to_le_bytes()).unwrap();
    }
    let unchanged = [COUNTER, FENCE].map(|key| Precondition::unchanged(family, key, since));
    let options = WriteOptions::synced(sync);
    if percent(50) {
        return db.write_if(batch, &unchanged, &options);
    }
    let ticket = db.submit_if(batch, &unchanged, &options);
    yield_now();
    ticket.wait()
}

/// Increments the counter. After a conflict, it begins again.
fn increment(world: &World) {
    let (db, family) = (&world.db, &world.family);
    loop {
        let snapshot = db.snapshot();
        let since = snapshot.seq();
        let read = ReadOptions::default().snapshot(Some(snapshot));
        let value = get(db, family, COUNTER, &read) + 1;
        let fence = get(db, family, FENCE, &read);
        // Without the snapshot, compactions may drop the entries that were read.
        let held = percent(50).then_some(read);
        let attempt = {
            let mut journal = world.journal.lock().unwrap();
            journal.attempts.push(Attempt {
                value,
                fence,
                accepted: None,
                durable: false,
            });
            journal.attempts.len() - 1
        };
        let sync = percent(30);
        let result = write_if(db, family, attempt, value, since, sync);
        drop(held);
        match result {
            Ok(seq) => {
                {
                    let mut journal = world.journal.lock().unwrap();
                    let own = &mut journal.attempts[attempt];
                    (own.accepted, own.durable) = (Some(seq), sync);
                }
                let now = get(db, family, COUNTER, &ReadOptions::default());
                assert!(now >= value, "{now} after {value} was accepted");
                return;
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
        }
    }
}

/// Changes the fence to a number in one of the possible ways, then moves it into tables or not.
fn change_fence(world: &World, n: u64) {
    let (db, family) = (&world.db, &world.family);
    let options = WriteOptions::default();
    let (seq, value) = match below(4) {
        0 => (db.delete(family, FENCE, &options), 0),
        1 => (db.delete_range(family, b"f", b"g", &options), 0),
        2 => {
            let mut table = db.prepare(family).expect("prepares");
            table.add(FENCE, &n.to_le_bytes()).expect("takes it");
            (db.ingest(&[table.finish().expect("ends")]), n)
        }
        _ => (db.put(family, FENCE, &n.to_le_bytes(), &options), n),
    };
    let seq = seq.expect("changes the fence");
    world.journal.lock().unwrap().fences.push((seq, value));
    match below(3) {
        0 => db.flush().expect("flushes"),
        1 => db.compact_range(family, None, None).expect("compacts"),
        _ => {}
    }
}

/// Reads everything as of one moment: the counter is the number of accepted attempts, and none is
/// gone that was acknowledged before.
fn look(world: &World, seen: &mut u64) {
    let acknowledged = {
        let journal = world.journal.lock().unwrap();
        journal
            .attempts
            .iter()
            .filter(|a| a.accepted.is_some())
            .count() as u64
    };
    let read = ReadOptions::default().snapshot(Some(world.db.snapshot()));
    let attempts = world.journal.lock().unwrap().attempts.clone();
    let of = |key: &[u8]| get(&world.db, &world.family, key, &read);
    let counter = of(COUNTER);
    let mut values: Vec<u64> = (0..attempts.len()).map(|n| of(&own_key(n))).collect();
    values.retain(|v| *v > 0);
    values.sort_unstable();
    let all: Vec<u64> = (1..=counter).collect();
    assert_eq!(values, all, "each value was written by one attempt");
    assert!(counter >= acknowledged, "{counter} after {acknowledged}");
    assert!(counter >= *seen, "{counter} after {seen} was seen");
    *seen = counter;
}

/// Checks the contents of a store with all attempts of a run: the first ones that were accepted are
/// there, each once, and no other. Returns the counter.
fn judge(db: &Db, family: &Family, end: &Journal) -> u64 {
    let of = |key: &[u8]| get(db, family, key, &ReadOptions::default());
    let counter = of(COUNTER);
    let mut accepted: Vec<(SeqNo, u64)> = Vec::new();
    for (n, a) in end.attempts.iter().enumerate() {
        accepted.extend(a.accepted.map(|seq| (seq, a.value)));
        let is_there = a.accepted.is_some() && a.value <= counter;
        let want = if is_there { a.value } else { 0 };
        assert_eq!(of(&own_key(n)), want, "attempt {n} to write {}", a.value);
    }
    accepted.sort_unstable();
    let values: Vec<u64> = accepted.iter().map(|(_, value)| *value).collect();
    let all: Vec<u64> = (1..=accepted.len() as u64).collect();
    assert_eq!(values, all, "an increment was lost, or counted twice");
    assert!(counter <= accepted.len() as u64, "{counter} was invented");
    counter
}

/// Checks that each accepted attempt has read the last change of the fence before it.
fn check_fences(end: &Journal) {
    for a in &end.attempts {
        let Some(seq) = a.accepted else { continue };
        let before = end.fences.iter().filter(|(changed, _)| *changed < seq);
        let last = before.max().map_or(0, |(_, value)| *value);
        assert_eq!(a.fence, last, "the fence before {seq}: {:?}", end.fences);
    }
}

fn cut_the_power(world: &World, disk: &SimFs) {
    let policy = CrashPolicy::ALL[below(CrashPolicy::ALL.len() as u64) as usize];
    let seed = below(1 << 32);
    // Threads cannot change places in between: the journal is that of the moment of the cut.
    let known = world.journal.lock().unwrap().clone();
    *world.cut.lock().unwrap() = Some((disk.crash(policy, seed), known));
}

/// Checks a store after a power cut: every durable increment exists, and of all a prefix. The next
/// increment is written.
fn judge_cut(disk: &Arc<SimFs>, known: &Journal, end: &Journal) {
    let env = Env::for_tests(disk.clone(), 99);
    let db = Db::open(&env, "db", options()).expect("opens after a power cut");
    let family = db.default_family();
    let counter = judge(&db, &family, end);
    let durable = known.attempts.iter().filter(|a| a.durable);
    let durable = durable.map(|a| a.value).max().unwrap_or(0);
    assert!(
        counter >= durable,
        "{durable} was durable, and {counter} is there"
    );
    let since = db.snapshot().seq();
    let next = write_if(&db, &family, end.attempts.len(), counter + 1, since, true);
    next.expect("nothing has changed");
    db.abandon();
}

fn options() -> Options {
    Options::default()
        .default_family(FamilyOptions::default().l0_compaction_trigger(2))
        .idle_release(Duration::ZERO)
}

fn model(totals: &Counts) {
    let disk = SimFs::new(SimOptions::default());
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(100));
    let env = EnvBuilder::new(disk.clone())
        .threads(1)
        .seed(below(1 << 32))
        .clock(Clock::manual(clock))
        .memory_bytes(16 << 20)
        .build();
    let db = Db::open(&env, "db", options()).unwrap();
    let world = Arc::new(World {
        family: db.default_family(),
        db,
        journal: Mutex::default(),
        cut: Mutex::default(),
    });
    let writers = 2 + below(2);
    let mut threads = Vec::new();
    for _ in 0..writers {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            (0..INCREMENTS).for_each(|_| increment(&world));
        }));
    }
    let changer = world.clone();
    threads.push(shuttle::thread::spawn(move || {
        (1..=CHANGES).for_each(|n| change_fence(&changer, n));
    }));
    let reader = world.clone();
    threads.push(shuttle::thread::spawn(move || {
        let (mut seen, cut) = (0, below(4));
        for i in 0..3 {
            look(&reader, &mut seen);
            if cut == i {
                cut_the_power(&reader, &disk);
            }
            yield_now();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    count(totals, 0, shuttle::current::context_switches() as u64);
    let end = world.journal.lock().unwrap().clone();
    let counter = judge(&world.db, &world.family, &end);
    assert_eq!(counter, writers * INCREMENTS, "each increment counts once");
    check_fences(&end);
    count(totals, 1, end.attempts.len() as u64 - counter);
    let fenced = end
        .attempts
        .iter()
        .any(|a| a.accepted.is_some() && a.fence > 0);
    count(totals, 2, u64::from(fenced));
    world.db.clone().close().expect("closes");
    if let Some((disk, known)) = world.cut.lock().unwrap().take() {
        judge_cut(&disk, &known, &end);
        count(totals, 3, 1);
    }
}

#[test]
fn no_conditional_increment_is_lost_in_any_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..16 * campaign::scale()) {
        let _repeat = repeat!(
            no_conditional_increment_is_lost_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, refused, fenced, cuts] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "precondition_schedules={schedules} steps={steps} refused={refused} fenced={fenced} cuts={cuts}"
    );
    if campaign::case().is_none() {
        assert!(
            refused > schedules / 2,
            "few batches were refused: {refused}"
        );
        assert!(
            fenced > schedules / 4,
            "few saw a change of the fence: {fenced}"
        );
        assert!(cuts > schedules / 4, "few power cuts: {cuts}");
    }
}
