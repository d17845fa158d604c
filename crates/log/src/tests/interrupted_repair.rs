//! Repairs that are killed, that fail, or that find what an interrupted checkpoint left.

use super::closing::Gate;
use super::integrity::{check, content_of, files, repair};
use super::*;
use basalt_env::sync::Mutex;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimSnapshot, When};
use std::path::PathBuf;

/// Calls `run`, and returns the states of the disk after each change in it.
fn states(fs: &Arc<SimFs>, run: impl FnOnce()) -> Vec<SimSnapshot> {
    let points = Arc::new(Mutex::new(Vec::new()));
    let to = points.clone();
    fs.on_mutation(move |snapshot| to.lock().push(snapshot));
    run();
    fs.on_mutation(|_| {});
    std::mem::take(&mut *points.lock())
}

/// Makes a store in which one record is damaged, of a file that has ended. The store opens. Returns
/// the file.
fn damaged_store(fs: &Arc<SimFs>) -> PathBuf {
    let engine = LogEngine::open(&env(fs), DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for name in ["b", "c", "gone"] {
        let log = engine.create(name, LogOptions::default()).unwrap();
        (1..=9).for_each(|lsn| log.append(lsn, &[1; 30], SYNC).unwrap());
        log.trim(3, SYNC).unwrap();
    }
    engine.delete("gone").unwrap();
    for lsn in 1..=50u64 {
        log.append(lsn, &[lsn as u8; 300], SYNC).unwrap();
        while engine.engine().env.jobs().step() {}
    }
    let at = log.location(50).unwrap();
    let path = engine.engine().logs.get(at.file).unwrap().path.clone();
    engine.close().unwrap();
    fs.flip_bit(&path, at.offset + 20, 0).unwrap();
    path
}

/// A repair that is killed, or cut off by a power cut, leaves the store as it was. A second one has
/// as much as one that was not interrupted.
#[test]
fn an_interrupted_repair_leaves_the_store_as_it_was() {
    let fs = disk(1);
    damaged_store(&fs);
    assert_eq!(check(&fs).unwrap().losses.len(), 1);
    let points = states(&fs, || {
        repair(&fs).unwrap();
    });
    for (i, point) in points.iter().enumerate() {
        let killed = point.kill();
        let opened = open(&killed).unwrap_or_else(|e| panic!("state {i}: {e}"));
        assert_eq!(opened.list(), ["a", "b", "c"], "state {i}");
        let crashes = (0..4).flat_map(|seed| CrashPolicy::ALL.iter().map(move |p| (seed, *p)));
        let crashed = crashes.map(|(seed, policy)| point.crash(policy, seed));
        for cut in [point.kill()].into_iter().chain(crashed) {
            let again = repair(&cut).unwrap();
            assert_eq!(again.log_names, ["a", "b", "c"], "state {i}");
            assert_eq!(
                content_of(&cut, "a"),
                (1..50).collect::<Vec<u64>>(),
                "state {i}"
            );
            let engine = open(&cut).unwrap();
            assert_eq!(engine.log("b").unwrap().trimmed(), Some(3), "state {i}");
        }
    }
    println!("states of an interrupted repair: {}", points.len());
    assert!(points.len() > 20);
}

/// A repair that fails leaves the store as it was, and none of its files.
#[test]
fn a_failed_repair_leaves_no_file() {
    let fs = disk(1);
    damaged_store(&fs);
    let snapshot = fs.snapshot();
    let mut failed = 0;
    for k in 1.. {
        let disk = snapshot.kill();
        let before = files(&disk);
        let faulty = FaultFs::new(disk.clone(), k);
        let rule = faulty.inject(Fault {
            op: None,
            path: ".moved".into(),
            when: When::Nth(k),
            kind: FaultKind::Enospc,
        });
        let env = Env::for_tests(faulty.clone(), k);
        let repaired = LogEngine::repair(&env, DIR, &options(), &mut |_, _| ());
        if faulty.seen(rule) < k {
            break;
        }
        if repaired.is_ok() {
            continue;
        }
        failed += 1;
        let is_manifest = |path: &&PathBuf| path.display().to_string().contains("MANIFEST");
        let after: Vec<PathBuf> = files(&disk)
            .into_iter()
            .filter(|p| !is_manifest(&p))
            .collect();
        let before: Vec<PathBuf> = before.into_iter().filter(|p| !is_manifest(&p)).collect();
        assert_eq!(after, before, "call {k}");
        let engine = open(&disk).unwrap();
        engine.log("a").unwrap().trim(40, SYNC).unwrap();
        engine.close().unwrap();
    }
    println!("failed repairs: {failed}");
    assert!(failed >= 3, "{failed}");
}

/// Makes a closed store with many logs, so that the parts of its checkpoint are several records.
fn many_logs(fs: &Arc<SimFs>) -> LogEngineOptions {
    let options = options().file_bytes(1 << 20);
    let engine = LogEngine::open(&env(fs), DIR, options.clone()).unwrap();
    for n in 0..MANY {
        let name = format!("log-{n:03}");
        let log = engine.create(&name, LogOptions::default()).unwrap();
        (1..=3).for_each(|lsn| log.append(lsn, &[1; 30], UNSYNCED).unwrap());
        log.trim(2, UNSYNCED).unwrap();
    }
    engine.close().unwrap();
    options
}

const MANY: u64 = 300;

/// A repair that is killed while it writes its checkpoint costs the second repair no name and no
/// trim point: the checkpoint of the store is whole.
#[test]
fn a_second_repair_reads_the_whole_checkpoint_and_not_the_interrupted_one() {
    let fs = disk(1);
    many_logs(&fs);
    let path = files(&fs)
        .into_iter()
        .find(|path| path.extension().is_some_and(|e| e == "data"));
    let path = path.unwrap();
    let len = fs.read_all(&path).unwrap().len() as u64;
    fs.flip_bit(&path, len / 2, 0).unwrap();
    let damaged = check(&fs).unwrap();
    assert!(!damaged.damage.is_empty());
    let mut kept = 0;
    let points = states(&fs, || kept = repair(&fs).unwrap().records_kept);
    for (i, point) in points.iter().enumerate() {
        let again = repair(&point.kill()).unwrap();
        let found = (again.logs, again.records_kept, again.unnamed_logs.len());
        assert_eq!(found, (MANY, kept, 0), "state {i}: {again:?}");
    }
    println!("states of a repair of many logs: {}", points.len());
    assert!(points.len() > 100);
}

/// A process was killed in a checkpoint, and then the manifest is lost. The checkpoint before, and
/// its names file, are whole.
#[test]
fn an_interrupted_checkpoint_and_a_lost_manifest_cost_no_name() {
    let fs = disk(1);
    let options = many_logs(&fs);
    let engine = LogEngine::open(&env(&fs), DIR, options).unwrap();
    engine
        .log("log-000")
        .unwrap()
        .append(4, b"x", SYNC)
        .unwrap();
    let points = states(&fs, || engine.engine().checkpoint().unwrap());
    engine.engine().cut_power();
    drop(engine);
    for (i, point) in points.iter().enumerate() {
        let cut = point.kill();
        assert!(check(&cut).unwrap().damage.is_empty());
        for path in files(&cut) {
            if path.display().to_string().contains("MANIFEST") {
                cut.remove(&path).unwrap();
            }
        }
        let repaired = repair(&cut).unwrap();
        let found = (
            repaired.logs,
            repaired.records_kept,
            repaired.unnamed_logs.len(),
        );
        assert_eq!(found, (MANY, MANY + 1, 0), "state {i}: {repaired:?}");
    }
    println!("states of an interrupted checkpoint: {}", points.len());
    assert!(points.len() > 100);
}

/// On a filesystem without links, a repair that is killed costs no byte of a damaged file: the next
/// open removes files that no manifest names.
#[test]
fn a_killed_repair_without_links_throws_no_byte_away() {
    for bad_current in [false, true] {
        let fs = disk(1);
        let path = damaged_store(&fs);
        if bad_current {
            fs.flip_bit(&Path::new(DIR).join("CURRENT"), 20, 0).unwrap();
        }
        let gate = Arc::new(Gate {
            fs: fs.clone(),
            at: Box::new(|| ()),
            links: false,
        });
        let mut aside = Vec::new();
        let points = states(&fs, || {
            let env = Env::for_tests(gate, 5);
            let report = LogEngine::repair(&env, DIR, &options(), &mut |_, _| ()).unwrap();
            aside = report.set_aside;
        });
        assert!(!aside.is_empty());
        for name in &aside {
            assert!(fs.exists(&Path::new(DIR).join(name)).unwrap(), "{name}");
        }
        let in_lost = Path::new(DIR).join("lost").join(path.file_name().unwrap());
        for (i, point) in points.iter().enumerate() {
            let cut = point.kill();
            drop(open(&cut));
            let is_there = cut.exists(&path).unwrap() || cut.exists(&in_lost).unwrap();
            assert!(is_there, "state {i}");
        }
    }
}

/// Regression test: a repair that failed after its first manifest had become current removed that
/// manifest, and the store could not be opened.
#[test]
fn a_repair_that_fails_leaves_a_store_that_opens() {
    let fs = disk(1);
    damaged_store(&fs);
    let before = fs.snapshot();
    let mut failed = 0;
    for op in [
        OpKind::SyncMetadata,
        OpKind::Rename,
        OpKind::Create,
        OpKind::SyncData,
        OpKind::SyncAll,
        OpKind::Append,
        OpKind::Link,
        OpKind::Remove,
        OpKind::Open,
        OpKind::Read,
        OpKind::List,
    ] {
        for (stays, k) in [false, true]
            .into_iter()
            .flat_map(|s| (1..200).map(move |k| (s, k)))
        {
            let disk = before.kill();
            let faulty = FaultFs::new(disk.clone(), k);
            let rule = faulty.inject(Fault {
                op: Some(op),
                path: String::new(),
                when: if stays { When::From(k) } else { When::Nth(k) },
                kind: FaultKind::Eio,
            });
            let env = Env::for_tests(faulty.clone(), k);
            let repaired = LogEngine::repair(&env, DIR, &options(), &mut |_, _| ());
            if faulty.seen(rule) < k {
                continue;
            }
            let Err(e) = repaired else { continue };
            failed += 1;
            let cuts = CrashPolicy::ALL.iter().map(|policy| disk.crash(*policy, k));
            for disk in [disk.kill()].into_iter().chain(cuts) {
                let opened = open(&disk).map(drop);
                assert!(opened.is_ok(), "{op:?} {k} {stays}: {e}; {opened:?}");
            }
        }
    }
    assert!(failed > 50, "{failed} repairs failed");
}

/// Regression test: the record of a log begins with the log's number, and a repair took it for the
/// last record of a checkpoint whose end was cut off. The logs behind it were lost without a word.
#[test]
fn a_checkpoint_without_its_end_is_not_whole() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    for (n, name) in ["d", "c", "b", "a"].iter().enumerate() {
        let log = engine.create(name, LogOptions::default()).unwrap();
        for lsn in 1..=3 + n as u64 {
            log.append(lsn, b"x", SYNC).unwrap();
        }
    }
    engine.close().unwrap();
    drop(engine);
    let before = fs.snapshot();
    let extension = |path: &PathBuf| path.extension().map(|e| e.to_string_lossy().into_owned());
    for kind in ["checkpoint", "names"] {
        let of_kind = |fs: &Arc<SimFs>, kind: &str| {
            let all = files(fs);
            all.into_iter()
                .find(|path| extension(path).as_deref() == Some(kind))
                .unwrap()
        };
        let path = of_kind(&fs, kind);
        let bytes = fs.open(&path).unwrap();
        let len = bytes.len();
        let bytes = bytes.read(0, len as usize).unwrap();
        for cut in (1..len).step_by(8) {
            let disk = before.kill();
            disk.remove(&Path::new(DIR).join("CURRENT")).unwrap();
            if kind == "names" {
                disk.remove(&of_kind(&disk, "checkpoint")).unwrap();
            }
            disk.remove(&path).unwrap();
            let file = disk.create(&path).unwrap();
            let part = &bytes[..(len - cut) as usize];
            if !part.is_empty() {
                file.append(&[std::io::IoSlice::new(part)], basalt_fs::Intent::Lazy)
                    .unwrap();
            }
            file.sync_all().unwrap();
            disk.sync_metadata(Path::new(DIR)).unwrap();
            let repaired = repair(&disk).unwrap();
            let engine = open(&disk).unwrap();
            let logs = engine.list();
            let records: u64 = logs
                .iter()
                .map(|name| engine.log(name).unwrap().count())
                .sum();
            assert_eq!(
                (records, repaired.records_kept),
                (18, 18),
                "{kind} without {cut} bytes"
            );
        }
    }
}

/// Regression test: without a checkpoint, a repair took no LSN from the whole names file, and did
/// not say which records of a damaged file are lost.
#[test]
fn lost_records_are_named_by_the_names_file() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let other = engine.create("b", LogOptions::default()).unwrap();
    for lsn in 1..=60u64 {
        log.append(lsn, &[1; 100], SYNC).unwrap();
        other.append(lsn, &[2; 1], SYNC).unwrap();
    }
    log.trim(10, SYNC).unwrap();
    let file = log.location(60).unwrap().file;
    engine.engine().checkpoint().unwrap();
    // These come after the names file.
    log.trim(12, SYNC).unwrap();
    log.remove(20..=22).unwrap();
    drop((log, other));
    engine.engine().cut_power();
    drop(engine);
    let fs = fs.kill();
    for path in files(&fs) {
        if path.extension().is_some_and(|e| e == "checkpoint") {
            fs.remove(&path).unwrap();
        }
    }
    fs.remove(&Path::new(DIR).join(format!("{file:06}.data")))
        .unwrap();
    let repaired = repair(&fs).unwrap();
    let engine = open(&fs).unwrap();
    for name in ["a", "b"] {
        let log = engine.log(name).unwrap();
        let left: Vec<u64> = log.iter(0).map(|record| record.unwrap().0).collect();
        let lost = repaired
            .losses
            .iter()
            .filter(|l| l.log.as_deref() == Some(name));
        let mut all: Vec<u64> = lost.filter_map(|l| l.lsns.clone()).flatten().collect();
        assert!(!all.is_empty() && !left.is_empty(), "{:?}", repaired.losses);
        all.extend(left);
        all.sort_unstable();
        let removed = |lsn: &u64| name == "a" && (*lsn <= 12 || (20..=22).contains(lsn));
        let had: Vec<u64> = (1..=60).filter(|lsn| !removed(lsn)).collect();
        assert_eq!(all, had, "{:?}", repaired.losses);
        let note = format!("log {name:?} ends at");
        assert!(
            repaired.notes.iter().any(|n| n.contains(&note)),
            "{:?}",
            repaired.notes
        );
    }
}

/// A process that makes a store may be killed before the store has a `CURRENT`. There is no store
/// then, and the next open makes it.
#[test]
fn an_interrupted_creation_is_no_damage() {
    let fs = disk(1);
    fs.create_dir(Path::new(DIR)).unwrap();
    let mut opened = None;
    let points = states(&fs, || opened = Some(open(&fs).unwrap()));
    let mut without = 0;
    for point in points {
        for fs in [point.kill(), point.crash(CrashPolicy::ALL[0], 1)] {
            let outcomes = (check(&fs).map(|r| r.damage), repair(&fs).map(|r| r.sound));
            match outcomes {
                (Ok(damage), Ok(sound)) => assert!(damage.is_empty() && sound, "{damage:?}"),
                (Err(e), Err(_)) => {
                    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                    without += 1;
                }
                other => panic!("{other:?}"),
            }
            let engine = open(&fs).unwrap();
            engine.create("a", LogOptions::default()).unwrap();
        }
    }
    assert!(without > 4, "{without} states without a store");
}
