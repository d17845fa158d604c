//! Threads append, submit and wait or poll, trim, remove, read and follow the tails of two logs,
//! while jobs end files, write pages and checkpoints and collect garbage, and the power is cut at
//! some moment. Copies of the store are made meanwhile.

use crate::{case, locks_not_taken};
use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_fs::ErrorKind;
use basalt_log_schedules::{Log, LogBatch, LogEngine, LogEngineOptions, LogOptions, WriteOptions};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, campaign, repeat};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DIR: &str = "logs";
const COPIES: [&str; 4] = ["copy1", "copy2", "copy3", "copy4"];
const WRITERS: u64 = 3;
const APPENDS: u64 = 6;
/// Opens of a store that leave a small file each: as many as a merge needs.
const SMALL_FILES: u64 = 4;
/// The names of log 1.
const NAMES: [&str; 2] = ["b", "renamed"];

/// An append, with the moments at which it began and ended.
#[derive(Clone, Copy, Debug)]
struct Appended {
    log: usize,
    lsn: u64,
    begun: u64,
    /// When it was acknowledged.
    ended: Option<u64>,
    synced: bool,
}

/// A removal that is no trim.
#[derive(Clone, Debug)]
struct Removed {
    log: usize,
    range: RangeInclusive<u64>,
    begun: u64,
    ended: Option<u64>,
}

/// What the threads have done. The lock is never held where threads change places.
#[derive(Clone, Default)]
struct Journal {
    appends: Vec<Appended>,
    removals: Vec<Removed>,
    /// LSNs up to which log 0 may be trimmed, and is trimmed.
    trim_begun: Option<u64>,
    trim_ended: Option<u64>,
}

struct World {
    engine: LogEngine,
    logs: [Log; 2],
    now: AtomicU64,
    journal: Mutex<Journal>,
    cut: Mutex<Option<(Arc<SimFs>, Journal)>>,
    /// The directories of copies, and what was done before the moment of each.
    copied: Mutex<Vec<(&'static str, Journal)>>,
    /// Number of answers that are still to come.
    owed: AtomicU64,
}

impl World {
    fn tick(&self) -> u64 {
        self.now.fetch_add(1, SeqCst)
    }
}

fn data(log: usize, lsn: u64) -> Vec<u8> {
    let len = 16 + lsn as usize * 97 % 700;
    let mut data = format!("{log}/{lsn}/").into_bytes();
    data.resize(len, lsn as u8);
    data
}

fn environment(disk: &Arc<SimFs>, seed: u64) -> Env {
    let clock = Clock::manual(ManualClock::ticking(
        1_700_000_000_000,
        Duration::from_micros(20),
    ));
    EnvBuilder::new(disk.clone())
        .threads(2)
        .seed(seed)
        .clock(clock)
        .memory_bytes(16 << 20)
        .cache_bytes(1 << 20)
        .build()
}

fn open(disk: &Arc<SimFs>, dir: &str, seed: u64) -> LogEngine {
    let options = LogEngineOptions::default().file_bytes(4 << 10);
    LogEngine::open(&environment(disk, seed), dir, options).expect("opens")
}

fn append(world: &Arc<World>, totals: &Counts, writer: u64, n: u64) {
    let log = (writer % 2) as usize;
    // Two writers of one log: some LSNs come late.
    let lsn = 1 + n * WRITERS + writer;
    let synced = percent(40);
    let options = WriteOptions::synced(synced);
    let at = {
        let begun = world.tick();
        let mut journal = world.journal.lock().unwrap();
        journal.appends.push(Appended {
            log,
            lsn,
            begun,
            ended: None,
            synced,
        });
        journal.appends.len() - 1
    };
    let acknowledge = {
        let world = world.clone();
        move |result: basalt_fs::Result<()>| match result {
            Ok(()) => {
                let now = world.tick();
                world.journal.lock().unwrap().appends[at].ended = Some(now);
            }
            Err(e) => {
                let trimmed = world.journal.lock().unwrap().trim_begun;
                assert!(
                    e.kind() == ErrorKind::InvalidArgument && log == 0 && trimmed >= Some(lsn),
                    "{e}"
                );
            }
        }
    };
    let bytes = data(log, lsn);
    if percent(50) {
        return acknowledge(world.logs[log].append(lsn, &bytes, &options));
    }
    let mut batch = LogBatch::new();
    batch.append(&world.logs[log], lsn, &bytes).unwrap();
    let ticket = world.engine.submit(batch, &options).unwrap();
    match below(3) {
        0 => return acknowledge(ticket.wait()),
        1 => {
            count(totals, 3, 1);
            return acknowledge(shuttle::future::block_on(ticket));
        }
        _ => {}
    }
    world.owed.fetch_add(1, SeqCst);
    let later = world.clone();
    ticket.on_complete(move |result| {
        acknowledge(result);
        later.owed.fetch_sub(1, SeqCst);
    });
}

fn remove(world: &Arc<World>) {
    if percent(50) {
        let up_to = 1 + below(APPENDS * WRITERS);
        let mut journal = world.journal.lock().unwrap();
        journal.trim_begun = journal.trim_begun.max(Some(up_to));
        drop(journal);
        let options = WriteOptions::synced(percent(30));
        world.logs[0].trim(up_to, &options).unwrap();
        let mut journal = world.journal.lock().unwrap();
        journal.trim_ended = journal.trim_ended.max(Some(up_to));
    } else {
        let from = 1 + below(APPENDS * WRITERS);
        let range = from..=from + below(6);
        let at = {
            let begun = world.tick();
            let mut journal = world.journal.lock().unwrap();
            journal.removals.push(Removed {
                log: 1,
                range: range.clone(),
                begun,
                ended: None,
            });
            journal.removals.len() - 1
        };
        world.logs[1].remove(range).unwrap();
        let now = world.tick();
        world.journal.lock().unwrap().removals[at].ended = Some(now);
    }
}

/// Gives log 1 its other name.
fn rename(world: &Arc<World>) {
    let name = world.logs[1].name();
    let other = NAMES[usize::from(&*name == NAMES[0])];
    world.engine.rename(&name, other).unwrap();
    assert_eq!(&*world.logs[1].name(), other);
}

fn look(world: &Arc<World>) {
    let log = below(2) as usize;
    let lsn = 1 + below(APPENDS * WRITERS);
    if let Some(found) = world.logs[log].read(lsn).unwrap() {
        assert_eq!(found, data(log, lsn));
    }
    let mut last = 0;
    let mut iter = world.logs[log].iter(0);
    for _ in 0..4 {
        let Some((lsn, found)) = iter.next_timeout(Duration::from_micros(50)).unwrap() else {
            break;
        };
        assert!(lsn > last, "LSNs rise");
        assert_eq!(found, data(log, lsn));
        last = lsn;
    }
}

/// Verifies the live records beside everything else.
fn verify(world: &Arc<World>) {
    let report = world.engine.verify(|_, _| ()).wait().unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
}

/// Copies the store beside everything else, several times.
fn copy(world: &Arc<World>) {
    for dir in COPIES {
        (0..below(12)).for_each(|_| yield_now());
        let known = world.journal.lock().unwrap().clone();
        let copy = world.engine.begin_copy().unwrap();
        (0..below(4)).for_each(|_| yield_now());
        copy.write(dir, false).unwrap();
        world.copied.lock().unwrap().push((dir, known));
    }
}

fn cut_the_power(world: &World, disk: &Arc<SimFs>) {
    let known = world.journal.lock().unwrap().clone();
    let policy = CrashPolicy::ALL[below(CrashPolicy::ALL.len() as u64) as usize];
    let crashed = disk.crash(policy, below(1 << 20));
    *world.cut.lock().unwrap() = Some((crashed, known));
}

/// Compares the logs with what was done. After a power cut, `known` is what was done before it, and
/// only synced appends must be there.
fn judge(logs: &[Log; 2], known: &Journal, all: &Journal, lost_power: bool) {
    for (i, log) in logs.iter().enumerate() {
        let found: Vec<u64> = log
            .iter(0)
            .map(|item| {
                let (lsn, bytes) = item.unwrap();
                assert_eq!(bytes, data(i, lsn), "LSN {lsn} of log {i}");
                lsn
            })
            .collect();
        for append in all.appends.iter().filter(|a| a.log == i) {
            let there = found.contains(&append.lsn);
            let before = known
                .appends
                .iter()
                .find(|a| (a.log, a.lsn) == (i, append.lsn));
            let acknowledged = before.and_then(|a| a.ended).is_some();
            let promised = acknowledged && (append.synced || !lost_power);
            let covers = |r: &&Removed| r.log == i && r.range.contains(&append.lsn);
            let may_be_trimmed = i == 0 && all.trim_begun >= Some(append.lsn);
            let may_be_removed = all
                .removals
                .iter()
                .filter(covers)
                .any(|r| r.ended.is_none_or(|ended| ended > append.begun));
            if promised && !may_be_trimmed && !may_be_removed {
                assert!(there, "LSN {} of log {i} is lost", append.lsn);
            }
            let is_trimmed = i == 0 && known.trim_ended >= Some(append.lsn) && !lost_power;
            let is_removed = known.removals.iter().filter(covers).any(|r| {
                let behind = append.ended.is_some_and(|ended| ended < r.begun);
                r.ended.is_some() && behind
            });
            assert!(
                !there || !(is_trimmed || is_removed),
                "LSN {} of log {i} came back",
                append.lsn
            );
        }
        let known_lsn = |lsn: &u64| all.appends.iter().any(|a| (a.log, a.lsn) == (i, *lsn));
        assert!(found.iter().all(known_lsn), "a record that nobody appended");
    }
}

/// Returns the logs. The second one has its old name or, after a rename, its new one.
fn logs_of(engine: &LogEngine) -> [Log; 2] {
    let is_renamed = engine.list().iter().any(|name| name == NAMES[1]);
    let names = ["a", NAMES[usize::from(is_renamed)]];
    let logs = names.map(|name| engine.open_or_create(name, LogOptions::default()).unwrap());
    let mut found = engine.list();
    found.retain(|name| name != "small");
    assert_eq!(found, names, "no log has both names");
    logs
}

/// Opens a store a few times, for a record each. Each time leaves a small file, so the next open
/// has a job merge them.
fn leave_small_files(disk: &Arc<SimFs>) {
    for lsn in 1..=SMALL_FILES {
        let engine = open(disk, DIR, below(1 << 30));
        let log = engine.open_or_create("small", LogOptions::default());
        let log = log.expect("opens");
        log.append(lsn, &data(2, lsn), &WriteOptions::synced(true))
            .expect("appends");
        engine.close().expect("closes");
    }
}

/// Asserts that merges kept the records of the small files.
fn judge_small_files(engine: &LogEngine) {
    let log = engine.log("small").expect("it was made before");
    for lsn in 1..=SMALL_FILES {
        let found = log.read(lsn).expect("reads");
        assert_eq!(found.as_deref(), Some(&data(2, lsn)[..]), "LSN {lsn}");
    }
}

fn model(totals: &Counts) {
    let disk = SimFs::new(SimOptions::default());
    let has_small = percent(25);
    if has_small {
        leave_small_files(&disk);
    }
    let engine = open(&disk, DIR, below(1 << 30));
    let world = Arc::new(World {
        logs: logs_of(&engine),
        engine,
        now: AtomicU64::new(0),
        journal: Mutex::default(),
        cut: Mutex::default(),
        copied: Mutex::default(),
        owed: AtomicU64::new(0),
    });
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let (world, totals) = (world.clone(), totals.clone());
        threads.push(shuttle::thread::spawn(move || {
            (0..APPENDS).for_each(|n| append(&world, &totals, writer, n));
        }));
    }
    let remover = world.clone();
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..3 {
            remove(&remover);
            if percent(30) {
                rename(&remover);
            }
        }
    }));
    let copier = world.clone();
    threads.push(shuttle::thread::spawn(move || copy(&copier)));
    let (reader, of_reader) = (world.clone(), disk.clone());
    threads.push(shuttle::thread::spawn(move || {
        let cut = below(4);
        for i in 0..3 {
            look(&reader);
            if percent(30) {
                verify(&reader);
            }
            if cut == i {
                cut_the_power(&reader, &of_reader);
            }
            yield_now();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    while world.owed.load(SeqCst) > 0 {
        yield_now();
    }
    count(totals, 0, shuttle::current::context_switches() as u64);
    let end = world.journal.lock().unwrap().clone();
    judge(&world.logs, &end, &end, false);
    let stats = world.engine.stats();
    count(totals, 1, stats.data_files + stats.meta_files);
    world.engine.close().expect("closes");
    assert_eq!(world.engine.miscounts(), [""; 0]);
    let again = open(&disk, DIR, below(1 << 30));
    judge(&logs_of(&again), &end, &end, false);
    if has_small {
        judge_small_files(&again);
    }
    again.close().expect("closes");
    for (dir, known) in world.copied.lock().unwrap().drain(..) {
        let copied = open(&disk, dir, below(1 << 30));
        judge(&logs_of(&copied), &known, &end, false);
        copied.close().expect("closes");
    }
    if let Some((disk, known)) = world.cut.lock().unwrap().take() {
        let survived = open(&disk, DIR, below(1 << 30));
        judge(&logs_of(&survived), &known, &end, true);
        if has_small {
            judge_small_files(&survived);
        }
        survived.close().expect("closes");
        count(totals, 2, 1);
    }
}

#[test]
fn logs_keep_their_promises_in_any_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..40 * campaign::scale()) {
        let _repeat = repeat!(
            logs_keep_their_promises_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, files, cuts, polled] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "log_schedules={schedules} steps={steps} files={files} cuts={cuts} polled={polled}"
    );
    if campaign::case().is_none() {
        assert!(cuts > schedules / 2, "few power cuts: {cuts}");
        assert!(files > schedules * 2, "few files: {files}");
        assert!(polled > schedules, "few tickets were polled: {polled}");
        let missed = locks_not_taken();
        assert!(missed.is_empty(), "not taken: {missed:?}");
    }
}
