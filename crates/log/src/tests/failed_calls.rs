//! Calls that fail while the store goes on, and what a process finds that opens the store after a
//! kill: a call that failed has no effect on what was acknowledged after it.

use super::*;
use crate::apply::add_entry;
use crate::mapping::Location;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, When};
use std::cell::Cell;
use std::io::IoSlice;

/// Larger than the files of other tests, so that no history here fills one.
fn large_files() -> LogEngineOptions {
    LogEngineOptions::default().file_bytes(64 << 10)
}

fn step_all(env: &Env) {
    while env.jobs().step() {}
}

/// Lets the pause after a failed write pass.
fn pass_pause(env: &Env) {
    let clock = env.clock();
    clock.as_manual().unwrap().advance(Duration::from_secs(1));
}

/// A store with the log `a`, on a disk that can fail.
struct Failing {
    disk: Arc<SimFs>,
    faulty: Arc<FaultFs>,
    env: Env,
    engine: LogEngine,
}

impl Failing {
    fn new(options: LogEngineOptions) -> Failing {
        let disk = disk(1);
        let faulty = FaultFs::new(disk.clone(), 5);
        let env = Env::for_tests(faulty.clone(), 99);
        let engine = LogEngine::open(&env, DIR, options).unwrap();
        engine.create("a", LogOptions::default()).unwrap();
        step_all(&env);
        Failing {
            disk,
            faulty,
            env,
            engine,
        }
    }

    /// Makes the next call of a kind on such a file fail, and none after it.
    fn fail(&self, op: OpKind, kind: FaultKind, path: &str, call: impl FnOnce(&LogEngine)) {
        let rule = self.faulty.inject(Fault {
            op: Some(op),
            path: path.into(),
            when: When::Nth(1),
            kind,
        });
        call(&self.engine);
        assert!(self.faulty.seen(rule) > 0, "no call has failed");
        self.faulty.clear();
        pass_pause(&self.env);
    }

    /// Kills the process, and opens the store again.
    fn killed(self, options: LogEngineOptions) -> LogEngine {
        let engine = LogEngine::open(&Env::for_tests(self.disk.kill(), 123), DIR, options);
        engine.unwrap_or_else(|e| panic!("the store does not open: {e}"))
    }
}

/// An operation on logs fails when it is synced, although its bytes reach the disk. Calls after it
/// succeed, and the process is killed.
fn failed_operation(
    fails: impl FnOnce(&LogEngine) -> Result<()>,
    then: impl FnOnce(&LogEngine),
) -> LogEngine {
    let store = Failing::new(large_files());
    let failed = |engine: &LogEngine| fails(engine).unwrap_err();
    store.fail(OpKind::SyncData, FaultKind::FailedSync, ".meta", |engine| {
        failed(engine);
    });
    then(&store.engine);
    store.killed(large_files())
}

fn append(engine: &LogEngine, name: &str, lsn: u64) {
    let log = engine.open_or_create(name, LogOptions::default()).unwrap();
    log.append(lsn, b"acknowledged", SYNC).unwrap();
}

#[test]
fn a_failed_operation_has_no_effect_after_later_operations() {
    let create = |engine: &LogEngine| engine.create("x", LogOptions::default()).map(drop);
    let engine = failed_operation(create, |engine| append(engine, "x", 1));
    assert_eq!(engine.log("x").unwrap().count(), 1);

    let rename = |engine: &LogEngine| engine.rename("a", "b");
    let engine = failed_operation(rename, |engine| append(engine, "b", 1));
    assert_eq!(engine.log("b").unwrap().count(), 1);
    assert_eq!(engine.log("a").unwrap().count(), 0);

    let delete = |engine: &LogEngine| engine.delete("a");
    let engine = failed_operation(delete, |engine| {
        append(engine, "a", 1);
        append(engine, "b", 1);
        append(engine, "a", 2);
    });
    assert_eq!(engine.log("a").unwrap().count(), 2);

    let trim = |engine: &LogEngine| engine.log("a").unwrap().trim(10, SYNC);
    let engine = failed_operation(trim, |engine| {
        append(engine, "a", 5);
        append(engine, "b", 1);
    });
    assert_eq!(engine.log("a").unwrap().count(), 1);
}

/// No later operation ends the file of the metalog behind the last good one, so an append does.
#[test]
fn a_failed_operation_has_no_effect_after_later_appends() {
    let trim = |engine: &LogEngine| engine.log("a").unwrap().trim(10, SYNC);
    let engine = failed_operation(trim, |engine| append(engine, "a", 5));
    assert_eq!(engine.log("a").unwrap().count(), 1);

    let delete = |engine: &LogEngine| engine.delete("a");
    let engine = failed_operation(delete, |engine| append(engine, "a", 5));
    assert_eq!(engine.log("a").unwrap().count(), 1);
}

/// Regression test: `check` read a file beyond its end, and took the failed record there for
/// damage.
#[test]
fn a_store_in_which_a_sync_failed_is_sound() {
    let store = Failing::new(options());
    append(&store.engine, "a", 1);
    store.fail(OpKind::SyncData, FaultKind::FailedSync, ".data", |engine| {
        let log = engine.log("a").unwrap();
        log.append(2, b"refused", SYNC).unwrap_err();
    });
    append(&store.engine, "a", 3);
    store.engine.close().unwrap();
    let report = super::integrity::check(&store.disk.kill()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!(store.killed(options()).log("a").unwrap().count(), 2);
}

/// A sync fails right behind a segment of the reverse index, and a checkpoint comes before the next
/// append.
#[test]
fn a_checkpoint_begins_at_the_end_of_a_file_whose_sync_failed() {
    for lsns in 30..=34 {
        let store = Failing::new(large_files());
        for lsn in 1..=lsns {
            append(&store.engine, "a", lsn);
            step_all(&store.env);
        }
        store.fail(OpKind::SyncData, FaultKind::FailedSync, ".data", |engine| {
            let log = engine.log("a").unwrap();
            log.append(lsns + 1, b"refused", SYNC).unwrap_err();
        });
        store.engine.engine().checkpoint().unwrap();
        let engine = store.killed(large_files());
        assert_eq!(engine.log("a").unwrap().last(), Some(lsns));
    }
}

/// The last record of a full file is a segment of the reverse index, because the append behind it
/// found the disk full. The next file continues the last record of entries.
#[test]
fn a_file_may_end_with_a_segment_behind_a_refused_append() {
    for later in 1..=2 {
        let fs = SimFs::new(SimOptions {
            seed: 1,
            capacity: 4 << 20,
            ..SimOptions::default()
        });
        let env = env(&fs);
        let engine = LogEngine::open(&env, DIR, options()).unwrap();
        let log = engine.create("a", LogOptions::default()).unwrap();
        for lsn in 1..=31u64 {
            log.append(lsn, &[lsn as u8; 60], UNSYNCED).unwrap();
            step_all(&env);
        }
        let at = log.location(31).unwrap();
        let end = (at.offset + u64::from(at.len)).next_multiple_of(8);
        // The next record is the last one of a segment, and ends 16 bytes before the file is full.
        let data = (8 << 10) - 16 - end - 48;
        log.append(32, &vec![32; data as usize], UNSYNCED).unwrap();
        step_all(&env);
        // A removal on a full disk has released the reserve, and another program takes the space.
        assert!(engine.engine().logs.release_reserve());
        let foreign = fs.create(Path::new("foreign")).unwrap();
        while fs.space(Path::new("")).unwrap().free > 100 << 10 {
            let page = [IoSlice::new(&[1; 4096])];
            foreign.append(&page, basalt_fs::Intent::Lazy).unwrap();
            foreign.sync_data().unwrap();
        }
        let e = log.append(33, b"refused", SYNC).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        drop(foreign);
        fs.remove(Path::new("foreign")).unwrap();
        fs.sync_metadata(Path::new("")).unwrap();
        for lsn in 33..33 + later {
            log.append(lsn, b"acknowledged", SYNC).unwrap();
        }
        for fs in [fs.kill(), fs.crash(CrashPolicy::ALL[0], 1)] {
            let engine = open(&fs).unwrap();
            assert_eq!(engine.log("a").unwrap().last(), Some(32 + later));
        }
    }
}

/// Makes a log of 31 records with one page of the index and two files: the first one has 15
/// records.
fn two_files_of_one_page(fs: &Arc<SimFs>) {
    let engine = open(fs).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=15u64 {
        log.append(lsn, &[lsn as u8; 100], SYNC).unwrap();
    }
    engine.close().unwrap();
    let env = env(fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.log("a").unwrap();
    for lsn in 16..=41u64 {
        log.append(lsn, &[lsn as u8; 100], SYNC).unwrap();
        step_all(&env);
    }
    log.truncate_suffix(32).unwrap();
    assert_eq!(log.state().lock().index.pages(), 1);
    engine.close().unwrap();
}

/// Regression test: a trim that could not read a page of the index estimated what it removed from
/// each file. A file that had live records was then taken for dead.
#[test]
fn a_trim_that_cannot_read_a_page_costs_no_record() {
    let fs = disk(1);
    two_files_of_one_page(&fs);
    let faulty = FaultFs::new(fs.clone(), 5);
    let env = Env::for_tests(faulty.clone(), 99);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.log("a").unwrap();
    let rule = faulty.inject(Fault {
        op: Some(OpKind::Read),
        path: ".meta".into(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    log.trim(10, SYNC).unwrap();
    assert!(faulty.seen(rule) > 0);
    faulty.clear();
    log.trim(26, SYNC).unwrap();
    step_all(&env);
    for lsn in 27..=31u64 {
        let data = log.read(lsn).unwrap_or_else(|e| panic!("LSN {lsn}: {e}"));
        assert_eq!(data.as_deref(), Some(&[lsn as u8; 100][..]));
    }
    log.trim(31, SYNC).unwrap();
    engine.engine().checkpoint().unwrap();
    step_all(&env);
    // The extra bytes are subtracted with the page.
    let left = engine.engine().logs.all();
    assert!(
        left.iter()
            .all(|f| f.role != Role::Data || f.live.load(std::sync::atomic::Ordering::SeqCst) == 0)
    );
    engine.close().unwrap();
    assert_eq!(open(&fs.kill()).unwrap().log("a").unwrap().count(), 0);
}

/// A bad sector under a page of the index keeps no other record from an open.
#[test]
fn a_store_with_a_bad_sector_under_a_page_opens() {
    let fs = disk(1);
    two_files_of_one_page(&fs);
    let engine = open(&fs).unwrap();
    let log = engine.log("a").unwrap();
    log.trim(10, SYNC).unwrap();
    for lsn in 41..=43u64 {
        log.append(lsn, b"later", SYNC).unwrap();
    }
    let killed = fs.kill();
    let faulty = FaultFs::new(killed.clone(), 5);
    // A recovery replays the newest file of the metalog, so it must be readable.
    let replayed = engine.engine().meta.lock().position().file;
    let pages = engine.engine().logs.all().into_iter();
    let pages = pages.filter(|f| f.role == Role::Meta && f.number != replayed);
    let file = pages.map(|f| f.path.display().to_string()).next().unwrap();
    faulty.inject(Fault {
        op: Some(OpKind::Read),
        path: file,
        when: When::From(1),
        kind: FaultKind::Eio,
    });
    let engine = LogEngine::open(&Env::for_tests(faulty.clone(), 9), DIR, options()).unwrap();
    let log = engine.log("a").unwrap();
    assert_eq!((log.count(), log.first()), (24, Some(11)));
    assert_eq!(log.read(42).unwrap().as_deref(), Some(&b"later"[..]));
    assert_eq!(log.read(12).unwrap_err().kind(), ErrorKind::Io);
    faulty.clear();
    assert_eq!(log.read(12).unwrap().as_deref(), Some(&[12; 100][..]));
}

/// A device that cannot be read for a moment makes an open fail if a moved record needs the page.
/// The open changes nothing, and no record is lost.
#[test]
fn an_open_that_cannot_read_a_page_loses_no_moved_record() {
    let fs = disk(1);
    let env = env(&fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let other = engine.create("b", LogOptions::default()).unwrap();
    for lsn in 1..=150u64 {
        log.append(lsn, &[lsn as u8; 100], SYNC).unwrap();
        other.append(lsn, &[lsn as u8; 400], SYNC).unwrap();
        step_all(&env);
    }
    engine.engine().checkpoint().unwrap();
    other.trim(140, SYNC).unwrap();
    engine.engine().collect_garbage().unwrap();
    let counters = &engine.engine().logs.counters;
    assert!(counters.gc_records.get() > 0 && log.state().lock().index.pages() > 0);
    let killed = fs.kill();
    let (mut failed, mut opened) = (0, 0);
    for nth in 1.. {
        let disk = killed.kill();
        let faulty = FaultFs::new(disk.clone(), 5);
        let rule = faulty.inject(Fault {
            op: Some(OpKind::Read),
            path: ".meta".into(),
            when: When::Nth(nth),
            kind: FaultKind::Eio,
        });
        let engine = LogEngine::open(&Env::for_tests(faulty.clone(), 9), DIR, options());
        if faulty.seen(rule) < nth {
            break;
        }
        faulty.clear();
        match engine {
            Ok(engine) => {
                opened += 1;
                engine.close().unwrap();
            }
            Err(e) => {
                failed += 1;
                assert_eq!(e.kind(), ErrorKind::Io, "{e}");
            }
        }
        let log = open(&disk).unwrap().log("a").unwrap();
        for lsn in 1..=150u64 {
            let data = log
                .read(lsn)
                .unwrap_or_else(|e| panic!("LSN {lsn}, read {nth}: {e}"));
            assert_eq!(data.as_deref(), Some(&[lsn as u8; 100][..]));
        }
    }
    println!("opens that failed: {failed}, others: {opened}");
    assert!(failed > 2, "no page was needed");
}

/// A page of the index that cannot be written refuses no append: it is written again later.
#[test]
fn a_failed_page_refuses_no_append() {
    let store = Failing::new(large_files());
    for lsn in 1..=40 {
        append(&store.engine, "a", lsn);
        step_all(&store.env);
    }
    let rule = store.faulty.inject(Fault {
        op: Some(OpKind::Append),
        path: ".meta".into(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    for lsn in 41..=44 {
        append(&store.engine, "a", lsn);
        step_all(&store.env);
    }
    assert!(store.faulty.seen(rule) > 0);
    assert_eq!(store.killed(large_files()).log("a").unwrap().count(), 44);
}

/// Regression test: an append that replaces a record read a page of the index, and a trim or a
/// deletion came meanwhile. The trimmed record came back, and stayed.
#[test]
fn a_replacement_beside_a_trim_brings_nothing_back() {
    let fs = disk(1);
    let replaces = LogOptions::default().duplicates(Duplicates::Replace);
    let env = env(&fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    for name in ["a", "b"] {
        let log = engine.create(name, replaces).unwrap();
        for lsn in 1..=60u64 {
            log.append(lsn, b"old", SYNC).unwrap();
            step_all(&env);
        }
    }
    let (log, gone) = (engine.log("a").unwrap(), engine.log("b").unwrap());
    let at = Location {
        file: log.location(60).unwrap().file,
        offset: 1 << 20,
        len: 100,
    };
    let freed = Cell::new(0);
    let replace = |log: &Log, meanwhile: &dyn Fn()| {
        let load = |page| {
            meanwhile();
            engine.engine().load_page(log.state(), page)
        };
        let then = &mut |_: &mut _| ();
        let garbage = add_entry(log.state(), 1 << 40, 5, at, &load, then);
        freed.set(garbage.records.get(at.file));
    };
    replace(&log, &|| log.trim(10, SYNC).unwrap());
    assert_eq!((log.first(), log.count()), (Some(11), 50));
    assert!(freed.get() >= 100, "the new record is garbage");
    replace(&gone, &|| engine.delete("b").unwrap());
    assert_eq!(gone.state().lock().index.count(), 0);
    assert!(freed.get() >= 100, "the new record is garbage");
}

/// What the logs of each name have; `None` for a name that a failed call concerns.
type Names = BTreeMap<String, Option<BTreeMap<u64, Vec<u8>>>>;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Makes one random call, and notes what it did. Returns the names that it concerns if it failed.
fn call(engine: &LogEngine, random: &Random, n: u64, model: &mut Names) -> Vec<String> {
    let any = || NAMES[random.below(4) as usize].to_string();
    let name = any();
    let refused =
        |e: &basalt_fs::Error| matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound);
    match random.below(8) {
        0 => match engine.create(&name, LogOptions::default()) {
            Ok(_) => {
                model.insert(name, Some(BTreeMap::new()));
                return Vec::new();
            }
            Err(e) if refused(&e) => return Vec::new(),
            Err(_) => {}
        },
        1 => match engine.delete(&name) {
            Ok(()) => {
                model.remove(&name);
                return Vec::new();
            }
            Err(e) if refused(&e) => return Vec::new(),
            Err(_) => {}
        },
        2 => {
            let to = any();
            match engine.rename(&name, &to) {
                Ok(()) => {
                    let content = model.remove(&name).expect("the log was there");
                    model.insert(to, content);
                    return Vec::new();
                }
                Err(e) if refused(&e) => return Vec::new(),
                Err(_) => return vec![name, to],
            }
        }
        kind => {
            let Ok(log) = engine.log(&name) else {
                return Vec::new();
            };
            let mut known = model.get_mut(&name).and_then(Option::as_mut);
            if kind == 3 {
                let up_to = log.last().unwrap_or(0).saturating_sub(random.below(20));
                if log.trim(up_to, SYNC).is_ok() {
                    known
                        .into_iter()
                        .for_each(|lsns| lsns.retain(|lsn, _| *lsn > up_to));
                    return Vec::new();
                }
            } else {
                let mut failed = false;
                for i in 0..random.below(12) {
                    let lsn = (n + 1) * 100 + i;
                    let data = vec![lsn as u8; random.below(400) as usize];
                    match log.append(lsn, &data, SYNC) {
                        Ok(()) => {
                            if let Some(lsns) = &mut known {
                                lsns.insert(lsn, data);
                            }
                        }
                        Err(_) => failed = true,
                    }
                }
                if !failed {
                    return Vec::new();
                }
            }
        }
    }
    vec![name]
}

/// Runs a history in which call `k` of a kind fails, or all from `k` on until three calls of the
/// engine have failed. Returns false if no call failed.
fn history_with_failure(seed: u64, fault: (FaultKind, Option<OpKind>, bool), k: u64) -> bool {
    let (kind, op, stays) = fault;
    let what = format!("seed {seed} {kind:?} {op:?} stays={stays} k={k}");
    let disk = disk(seed);
    let faulty = FaultFs::new(disk.clone(), k);
    let env = Env::for_tests(faulty.clone(), seed + 1000);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let rule = faulty.inject(Fault {
        op,
        path: String::new(),
        when: if stays { When::From(k) } else { When::Nth(k) },
        kind,
    });
    let random = Random::from_seed(seed);
    let mut model = Names::new();
    let mut failures = 0;
    for n in 0..60 {
        let concerned = call(&engine, &random, n, &mut model);
        if !concerned.is_empty() {
            failures += 1;
            model.extend(concerned.into_iter().map(|name| (name, None)));
            if failures == 3 {
                faulty.clear();
                pass_pause(&env);
            }
        }
        if random.one_in(2) {
            step_all(&env);
        }
        let clock = env.clock();
        clock
            .as_manual()
            .unwrap()
            .advance(Duration::from_millis(60));
    }
    let has_failed = faulty.seen(rule) >= k;
    faulty.clear();
    pass_pause(&env);
    if k.is_multiple_of(3) {
        let _ = engine.close();
    }
    engine.engine().cut_power();
    drop(engine);
    let policy = CrashPolicy::ALL[k as usize % CrashPolicy::ALL.len()];
    for fs in [
        disk.kill(),
        disk.crash(CrashPolicy::ALL[0], k),
        disk.crash(policy, k),
    ] {
        let report = super::integrity::check(&fs).unwrap();
        assert!(report.damage.is_empty(), "{what}: {:?}", report.damage);
        let engine = open(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (name, lsns) in model.iter().filter_map(|(n, l)| Some((n, l.as_ref()?))) {
            let log = engine.log(name).unwrap_or_else(|e| panic!("{what}: {e}"));
            let found = log.iter(0).map(|found| {
                let (lsn, data) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
                (lsn, data.to_vec())
            });
            assert_eq!(
                found.collect::<BTreeMap<_, _>>(),
                *lsns,
                "{what}: log {name}"
            );
        }
        engine.engine().cut_power();
    }
    has_failed
}

/// Creations, deletions, renames, trims and appends, with failing calls. The store opens and is
/// sound, and logs that no failed call concerns have what was acknowledged.
#[test]
fn failed_operations_on_logs_cost_no_other_log() {
    let faults = [
        (FaultKind::FailedSync, None),
        (FaultKind::Eio, Some(OpKind::Append)),
        (FaultKind::Eio, Some(OpKind::SyncMetadata)),
        (FaultKind::Eio, Some(OpKind::Read)),
        (FaultKind::Enospc, None),
        (FaultKind::ShortWrite, None),
        (FaultKind::Eio, Some(OpKind::Open)),
        (FaultKind::Eio, Some(OpKind::Rename)),
        (FaultKind::Eio, Some(OpKind::Remove)),
    ];
    let mut runs = 0;
    for seed in 0..2 * basalt_sim::campaign::scale() {
        for (kind, op) in faults {
            for stays in [false, true] {
                let mut k = 1 + seed % 3;
                while history_with_failure(seed, (kind, op, stays), k) {
                    runs += 1;
                    k += 1 + k / 10;
                }
            }
        }
    }
    println!("failed_operation_runs={runs}");
    let least = 200 * basalt_sim::campaign::scale();
    assert!(runs >= least, "{runs} runs, expected {least}");
}
