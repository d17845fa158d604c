//! A store of tables and logs, over a simulated disk.

use crate::{Store, StoreOptions};
use basalt_env::Env;
use basalt_env::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Mutex, yield_now};
use basalt_env::thread::BackgroundThread;
use basalt_fs::{ErrorKind, FileSystem};
use basalt_log::{LogEngine, LogOptions};
use basalt_lsm::db::{CheckpointOptions, CheckpointPart, EngineKind};
use basalt_lsm::{Db, Options, ReadOptions, WriteOptions};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, SimSnapshot, When};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "store";
const COPY: &str = "copy";
const SYNC: &WriteOptions = &WriteOptions::SYNC;

fn disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    })
}

/// Each run of a program draws other random numbers.
fn env(fs: &Arc<SimFs>) -> Env {
    Env::for_tests(fs.clone(), fs.op_count())
}

fn open(fs: &Arc<SimFs>) -> basalt_fs::Result<Store> {
    Store::open(&env(fs), DIR, StoreOptions::default())
}

fn put(store: &Store, key: u64) {
    let family = store.db().default_family();
    let key = key.to_be_bytes();
    store.db().put(&family, &key, &key, SYNC).unwrap();
}

fn has(store: &Store, key: u64) -> bool {
    let family = store.db().default_family();
    let found = store
        .db()
        .get(&family, &key.to_be_bytes(), &ReadOptions::default());
    found.unwrap().is_some()
}

/// Returns the number of keys from 1 on.
fn keys(store: &Store) -> u64 {
    (1..).take_while(|key| has(store, *key)).count() as u64
}

/// Returns the largest key, or 0.
fn last_key(store: &Store) -> u64 {
    let db = store.db();
    let mut iter = db
        .iter(&db.default_family(), &ReadOptions::default())
        .unwrap();
    iter.seek_to_last().unwrap();
    match iter.valid() {
        true => u64::from_be_bytes(iter.key().try_into().unwrap()),
        false => 0,
    }
}

/// Returns the last record of a log, or 0.
fn last(store: &Store, log: &str) -> u64 {
    let log = store.existing_logs().and_then(|logs| logs.log(log).ok());
    log.and_then(|log| log.last()).unwrap_or(0)
}

fn append(store: &Store, log: &str, lsn: u64) {
    let log = store
        .logs()
        .unwrap()
        .open_or_create(log, LogOptions::default());
    log.unwrap().append(lsn, b"record", SYNC).unwrap();
}

fn check(fs: &Arc<SimFs>, dir: &str) -> crate::StoreVerifyReport {
    Store::check(&env(fs), dir, &StoreOptions::default(), &mut |_, _| ()).unwrap()
}

#[test]
fn a_store_without_logs_is_one_of_tables() {
    let fs = disk(1);
    let db = Db::open(&env(&fs), DIR, Options::default()).unwrap();
    db.put(&db.default_family(), b"key", b"value", SYNC)
        .unwrap();
    db.close().unwrap();
    let store = open(&fs).unwrap();
    assert!(store.existing_logs().is_none());
    assert!(store.stats().logs.is_none());
    put(&store, 1);
    store
        .checkpoint(COPY, &CheckpointOptions::default())
        .unwrap();
    store.close().unwrap();
    assert!(!fs.exists(&Path::new(DIR).join("logs")).unwrap());
    let report = check(&fs, COPY);
    assert!(report.logs.is_none() && report.damage().count() == 0);
    // The tables alone open both.
    for dir in [DIR, COPY] {
        let db = Db::open(&env(&fs), dir, Options::default()).unwrap();
        assert_eq!(db.engines(), Vec::new());
        db.close().unwrap();
    }
}

#[test]
fn tables_and_logs_are_kept_side_by_side() {
    let fs = disk(2);
    let store = open(&fs).unwrap();
    put(&store, 1);
    append(&store, "raft", 7);
    assert_eq!(store.stats().logs.unwrap().records, 1);
    // The lock of the directory stands for all engines.
    let again = open(&fs).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::Busy, "{again}");
    store.sync().unwrap();
    store.close().unwrap();
    let closed = store
        .logs()
        .and_then(|logs| logs.create("b", LogOptions::default()));
    assert_eq!(closed.err().map(|e| e.kind()), Some(ErrorKind::Closed));

    let store = open(&fs).unwrap();
    assert!(has(&store, 1));
    assert_eq!(last(&store, "raft"), 7);
    store.close().unwrap();
    let report = check(&fs, DIR);
    assert_eq!(report.damage().count(), 0);
    assert_eq!(report.logs.unwrap().records, 1);

    let reader = Store::open_read_only(&env(&fs), DIR, StoreOptions::default()).unwrap();
    assert_eq!((keys(&reader), last(&reader, "raft")), (1, 7));
    reader.close().unwrap();

    // The tables alone can be used, and not be copied.
    let db = Db::open(&env(&fs), DIR, Options::default()).unwrap();
    assert_eq!(db.engines(), [EngineKind::Logs]);
    let error = db
        .checkpoint(COPY, &CheckpointOptions::default())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("Store::checkpoint"), "{error}");
    assert!(!fs.exists(Path::new(COPY)).unwrap());
    db.close().unwrap();
}

#[test]
fn a_reader_makes_no_logs() {
    let fs = disk(3);
    open(&fs).unwrap().close().unwrap();
    let reader = Store::open_read_only(&env(&fs), DIR, StoreOptions::default()).unwrap();
    let error = reader.logs().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert!(!fs.exists(&Path::new(DIR).join("logs")).unwrap());
}

/// A power cut at every change of the disk, from before the logs are made to after writes of both.
#[test]
fn a_power_cut_at_every_change_loses_nothing_acknowledged() {
    let mut states = 0;
    for seed in basalt_sim::campaign::cases(0..2 * basalt_sim::campaign::scale()) {
        let fs = disk(seed);
        let store = open(&fs).unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let points: Arc<Mutex<Vec<(SimSnapshot, u64)>>> = Arc::default();
        let (to, at) = (points.clone(), done.clone());
        fs.on_mutation(move |snapshot| to.lock().push((snapshot, at.load(SeqCst))));
        // By turns a put, and an append of the same number.
        for n in 1..=6 {
            put(&store, n);
            done.fetch_add(1, SeqCst);
            append(&store, "raft", n);
            done.fetch_add(1, SeqCst);
        }
        fs.on_mutation(|_| {});
        for (i, (point, done)) in points.lock().iter().enumerate() {
            for &policy in CrashPolicy::ALL {
                let say = format!("seed {seed}, change {i}, {policy:?}");
                let fs = point.crash(policy, seed * 1000 + i as u64);
                let store = open(&fs).unwrap_or_else(|e| panic!("{say}: {e}"));
                let (keys, last) = (keys(&store), last(&store, "raft"));
                assert!(
                    keys >= done.div_ceil(2) && last >= done / 2,
                    "{say}: {keys}, {last}"
                );
                // What was done in order is there in order.
                assert!(keys >= last && last + 1 >= keys, "{say}: {keys}, {last}");
                append(&store, "raft", last + 1);
                store.close().unwrap_or_else(|e| panic!("{say}: {e}"));
                let report = check(&fs, DIR);
                assert_eq!(report.damage().count(), 0, "{say}");
                states += 1;
            }
        }
    }
    basalt_sim::campaign!("store_crash_states={states}");
    let floor = basalt_sim::campaign::scale().floor(400);
    assert!(
        basalt_sim::campaign::case().is_some() || states >= floor,
        "{states}"
    );
}

/// A part that looks whether a put is acknowledged during its moment.
struct Probe {
    db: Db,
    writer: Option<BackgroundThread>,
    was_acknowledged: bool,
}

impl CheckpointPart for Probe {
    fn kind(&self) -> EngineKind {
        EngineKind::Logs
    }
    fn take_moment(&mut self) -> basalt_fs::Result<()> {
        let acknowledged = Arc::new(AtomicBool::new(false));
        let (db, to) = (self.db.clone(), acknowledged.clone());
        self.writer = BackgroundThread::start("writer", move || {
            db.put(&db.default_family(), b"during", b"", SYNC).unwrap();
            to.store(true, SeqCst);
        })
        .ok();
        for _ in 0..20_000 {
            yield_now();
            self.was_acknowledged |= acknowledged.load(SeqCst);
        }
        Ok(())
    }
    fn write(&mut self, dir: &Path) -> basalt_fs::Result<()> {
        self.db.env().fs().create_dir(dir)
    }
    fn remove_unfinished(&mut self, _: &Path) -> basalt_fs::Result<()> {
        Ok(())
    }
}

#[test]
fn no_write_is_acknowledged_during_a_moment() {
    let fs = disk(10);
    let db = Db::open(&env(&fs), DIR, Options::default()).unwrap();
    let mut probe = Probe {
        db: db.clone(),
        writer: None,
        was_acknowledged: false,
    };
    let made = db.checkpoint_with(COPY, &CheckpointOptions::default(), &mut [&mut probe]);
    made.unwrap();
    assert!(!probe.was_acknowledged);
    assert!(probe.writer.take().expect("it was started").join().is_ok());
    let family = db.default_family();
    assert!(
        db.get(&family, b"during", &ReadOptions::default())
            .unwrap()
            .is_some()
    );
    db.close().unwrap();
    let copy = Db::open(&env(&fs), COPY, Options::default()).unwrap();
    let family = copy.default_family();
    assert!(
        copy.get(&family, b"during", &ReadOptions::default())
            .unwrap()
            .is_none()
    );
    copy.close().unwrap();
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A thread writes to one engine after the other, in both orders, while checkpoints are made.
#[test]
fn a_checkpoint_has_all_engines_at_one_moment() {
    let fs = disk(5);
    let store = open(&fs).unwrap();
    append(&store, "before", 1);
    let stop = Arc::new(AtomicBool::new(false));
    // Each checkpoint lets the thread write some more, so that stores stay small.
    let allowed = Arc::new(AtomicU64::new(0));
    let write = {
        let (store, stop, allowed) = (store.clone(), stop.clone(), allowed.clone());
        BackgroundThread::start("writer", move || {
            let mut n = 1;
            while !stop.load(SeqCst) {
                if n > allowed.load(SeqCst) {
                    yield_now();
                    continue;
                }
                append(&store, "before", n + 1);
                put(&store, n);
                append(&store, "after", n);
                n += 1;
            }
        })
    }
    .unwrap();
    // Dropped before the thread, which a failed assertion would otherwise wait for without end.
    let _stop = StopOnDrop(stop.clone());
    let count = 30 * basalt_sim::campaign::scale();
    let mut seen = Vec::new();
    for n in 0..count {
        let target = format!("{COPY}{n}");
        // Every tenth one flushes the memtables first.
        let flush_above = if n % 10 == 0 { 0 } else { 4 << 20 };
        let options = CheckpointOptions::default().flush_above_bytes(flush_above);
        let before = (
            last_key(&store),
            last(&store, "before"),
            last(&store, "after"),
        );
        allowed.store(before.0 + 200, SeqCst);
        let report = store.checkpoint(&target, &options).unwrap();
        assert!(report.logs.unwrap().files > 0);
        let copy = Store::open(&env(&fs), &target, StoreOptions::default()).unwrap();
        let found = (last_key(&copy), last(&copy, "before"), last(&copy, "after"));
        assert!(found.0 >= before.0 && found.1 >= before.1 && found.2 >= before.2);
        // LSN n + 1 of "before" was acknowledged before key n, and key n before LSN n of "after".
        let (keys, before, after) = found;
        assert!(before > keys && keys >= after, "{found:?}");
        assert!(before <= keys + 2 && keys <= after + 1, "{found:?}");
        put(&copy, keys + 1);
        append(&copy, "after", after + 1);
        copy.close().unwrap();
        assert_eq!(check(&fs, &target).damage().count(), 0);
        seen.push(found);
    }
    stop.store(true, SeqCst);
    assert!(write.join().is_ok());
    assert!(seen.last().unwrap().0 > 0);
    store.close().unwrap();
    assert_eq!(check(&fs, DIR).damage().count(), 0);
}

#[test]
fn a_power_cut_during_a_checkpoint_leaves_a_whole_one_or_none() {
    let (mut whole, mut none) = (0, 0);
    let fs = disk(6);
    let store = open(&fs).unwrap();
    for n in 1..=3 {
        put(&store, n);
        append(&store, "raft", n);
    }
    let points: Arc<Mutex<Vec<SimSnapshot>>> = Arc::default();
    let to = points.clone();
    fs.on_mutation(move |snapshot| to.lock().push(snapshot));
    store
        .checkpoint(COPY, &CheckpointOptions::default())
        .unwrap();
    fs.on_mutation(|_| {});
    for (i, point) in points.lock().iter().enumerate() {
        for &policy in CrashPolicy::ALL {
            let say = format!("change {i}, {policy:?}");
            let fs = point.crash(policy, i as u64);
            let store = open(&fs).unwrap_or_else(|e| panic!("{say}: {e}"));
            assert_eq!((keys(&store), last(&store, "raft")), (3, 3), "{say}");
            match fs.exists(Path::new(COPY)).unwrap() {
                true => whole += 1,
                false => {
                    none += 1;
                    // What is left of the unfinished one is removed.
                    let made = store.checkpoint(COPY, &CheckpointOptions::default());
                    made.unwrap_or_else(|e| panic!("{say}: {e}"));
                }
            }
            let copy = Store::open(&env(&fs), COPY, StoreOptions::default());
            let copy = copy.unwrap_or_else(|e| panic!("{say}: {e}"));
            assert_eq!((keys(&copy), last(&copy, "raft")), (3, 3), "{say}");
            let left = fs.list(Path::new("")).unwrap();
            assert!(
                left.iter().all(|e| !e.name.contains("unfinished")),
                "{say}: {left:?}"
            );
        }
    }
    basalt_sim::campaign!("power cuts in checkpoints of a store: {none} without, {whole} with one");
    assert!(whole > 0 && none > 20, "{whole}, {none}");
}

/// Each call of a checkpoint fails, once or with all calls behind it. The store goes on when calls
/// succeed again, and nothing keeps the next checkpoint from the same place. A call that fails
/// alone leaves no file of the unfinished copy.
#[test]
fn a_failed_checkpoint_is_cleaned_up() {
    let mut failed = 0;
    for stays in [false, true] {
        for k in 1.. {
            let disk = disk(k);
            let faulty = FaultFs::new(disk.clone(), k);
            let env = Env::for_tests(faulty.clone(), k);
            let store = Store::open(&env, DIR, StoreOptions::default()).unwrap();
            for n in 1..=3 {
                put(&store, n);
                append(&store, "raft", n);
            }
            let kinds = [FaultKind::Enospc, FaultKind::Eio];
            let rule = faulty.inject(Fault {
                op: None,
                path: String::new(),
                when: if stays { When::From(k) } else { When::Nth(k) },
                kind: kinds[k as usize % 2],
            });
            let made = store.checkpoint(COPY, &CheckpointOptions::default());
            let fired = faulty.seen(rule) >= k;
            faulty.clear();
            let say = format!("call {k}, stays {stays}: {:?}", made.as_ref().err());
            let unfinished = disk.list(Path::new("copy.checkpoint-unfinished"));
            let left = unfinished.unwrap_or_default();
            // The directory itself may be left if the fault came before its lock was taken.
            let is_clean = left.iter().all(|e| e.name == "LOCK");
            assert!(stays || is_clean, "{say}: {left:?}");
            failed += u64::from(made.is_err());
            // The log engine waits before it tries a failed write again.
            let clock = env.clock().as_manual().expect("tests set the clock");
            clock.advance(Duration::from_secs(1));
            append(&store, "raft", 4);
            let target = match disk.exists(Path::new(COPY)).unwrap() {
                true => "second",
                false => COPY,
            };
            let again = store.checkpoint(target, &CheckpointOptions::default());
            again.unwrap_or_else(|e| panic!("{say}, then {e}"));
            let copy = Store::open(&self::env(&disk), target, StoreOptions::default()).unwrap();
            assert_eq!((keys(&copy), last(&copy, "raft")), (3, 4), "{say}");
            store.close().unwrap_or_else(|e| panic!("{say}, then {e}"));
            if !fired {
                break;
            }
        }
    }
    basalt_sim::campaign!("store_checkpoint_faults={failed}");
    assert!(failed >= 60, "{failed}");
}

#[test]
fn a_closed_store_makes_no_logs() {
    let fs = disk(9);
    let store = open(&fs).unwrap();
    store.close().unwrap();
    assert_eq!(
        store.logs().err().map(|e| e.kind()),
        Some(ErrorKind::Closed)
    );
    assert!(!fs.exists(&Path::new(DIR).join("logs")).unwrap());
}

#[test]
fn lost_logs_are_damage_that_a_repair_reports() {
    let fs = disk(7);
    let find = || Store::find_logs(&env(&fs), DIR);
    assert!(find().is_err_and(|e| e.is_not_found()));
    let store = open(&fs).unwrap();
    put(&store, 1);
    assert_eq!(find().unwrap(), None);
    append(&store, "raft", 1);
    store.close().unwrap();
    let logs = Path::new(DIR).join("logs");
    assert_eq!(find().unwrap(), Some(logs.clone()));
    for entry in fs.list(&logs).unwrap() {
        fs.remove(&logs.join(entry.name)).unwrap();
    }
    for without_directory in [false, true] {
        if without_directory {
            // The repair has made new logs.
            LogEngine::remove_unfinished_copy(&env(&fs), &logs).unwrap();
        }
        let error = open(&fs).err().unwrap();
        assert!(error.to_string().contains("logs"), "{error}");
        let error = find().unwrap_err();
        assert!(
            error.is_corruption() && error.path() == Some(&logs),
            "{error}"
        );
        let report = check(&fs, DIR);
        let damage: Vec<String> = report.damage().map(|e| e.to_string()).collect();
        assert!(
            damage.len() == 1 && damage[0].contains("logs"),
            "{damage:?}"
        );
        let options = StoreOptions::default();
        let repaired = Store::repair(&env(&fs), DIR, &options, &mut |_, _| ()).unwrap();
        assert!(repaired.tables.sound);
        assert_eq!(repaired.logs.unwrap().lost.len(), 1);
        let store = open(&fs).unwrap();
        assert_eq!((keys(&store), last(&store, "raft")), (1, 0));
        store.close().unwrap();
        assert_eq!(check(&fs, DIR).damage().count(), 0);
    }
}

#[test]
fn damage_of_either_engine_is_found_and_repaired() {
    let fs = disk(8);
    let store = open(&fs).unwrap();
    put(&store, 1);
    append(&store, "raft", 1);
    store.close().unwrap();
    let logs = Path::new(DIR).join("logs");
    // Without manifests, nothing says that the store has logs, and they are found all the same.
    for dir in [Path::new(DIR), &logs] {
        for entry in fs.list(dir).unwrap() {
            if entry.name == "CURRENT" || entry.name.starts_with("MANIFEST-") {
                fs.remove(&dir.join(entry.name)).unwrap();
            }
        }
    }
    let report = check(&fs, DIR);
    assert!(!report.tables.damage.is_empty());
    assert!(!report.logs.as_ref().unwrap().damage.is_empty());
    let repaired = Store::repair(&env(&fs), DIR, &StoreOptions::default(), &mut |_, _| ());
    let repaired = repaired.unwrap();
    assert!(!repaired.tables.sound && !repaired.logs.unwrap().sound);
    let store = open(&fs).unwrap();
    assert_eq!((keys(&store), last(&store, "raft")), (1, 1));
    assert_eq!(store.db().engines(), [EngineKind::Logs]);
    store.close().unwrap();
    assert_eq!(check(&fs, DIR).damage().count(), 0);
}

/// Logs fill the disk. Then the store of tables and logs can be opened, and its logs trimmed.
#[test]
fn logs_that_fill_the_disk_can_be_trimmed() {
    const CAPACITY: u64 = 64 << 20;
    let mut fs = SimFs::new(SimOptions {
        seed: 7,
        capacity: CAPACITY,
        ..SimOptions::default()
    });
    let free = |fs: &SimFs| fs.space(Path::new("")).unwrap().free;
    let mut next = 1;
    let mut acknowledged = Vec::new();
    // Without a seed of its own, a process would give its files the ids of an earlier one's.
    let mut seed = 0;
    let mut open = |fs: &Arc<SimFs>| {
        seed += 1;
        Store::open(
            &Env::for_tests(fs.clone(), seed),
            DIR,
            StoreOptions::default(),
        )
    };
    for round in 0..4 {
        let say = format!("round {round}");
        let store = open(&fs).unwrap_or_else(|e| panic!("{say}: {e}"));
        put(&store, round + 1);
        let logs = store.logs().unwrap();
        let log = logs.open_or_create("raft", LogOptions::default()).unwrap();
        acknowledged.clear();
        let begun = next;
        loop {
            match log.append(next, &vec![next as u8; 20_000], SYNC) {
                Ok(()) => acknowledged.push(next),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{say}: {e}");
                    break;
                }
            }
            next += 1;
        }
        assert!(next > begun + 500, "{say}: only {} records", next - begun);
        drop((log, logs));
        match round % 2 {
            // Without space the tables may not be able to write what they write at a close.
            0 => drop(store.close()),
            _ => fs = fs.kill(),
        }
        drop(store);
        // Another program takes the rest.
        let foreign = fs.create(Path::new("foreign"));
        let mut len = 1 << 20;
        while let Ok(file) = &foreign {
            let bytes = vec![1; len];
            let bytes = std::io::IoSlice::new(&bytes);
            if file.append(&[bytes], basalt_fs::Intent::Lazy).is_err() {
                break;
            }
            len = len.min(free(&fs) as usize).max(4096);
        }
        let full = free(&fs);
        drop(foreign);
        let store = open(&fs).unwrap_or_else(|e| panic!("{say}, full with {full}: {e}"));
        assert_eq!(keys(&store), round + 1, "{say}");
        let log = store.logs().unwrap().log("raft").unwrap();
        let found: Vec<u64> = log.iter(0).map(|item| item.unwrap().0).collect();
        assert!(found.ends_with(&acknowledged), "{say}");
        log.trim(next - 1, SYNC)
            .unwrap_or_else(|e| panic!("{say}: {e}"));
        drop(log);
        store.close().unwrap_or_else(|e| panic!("{say}: {e}"));
        drop(store);
        let _ = fs.remove(Path::new("foreign"));
        fs.sync_metadata(Path::new("")).unwrap();
        let now = free(&fs);
        assert!(now > full + CAPACITY / 3, "{say}: {full}, then {now}");
    }
}
