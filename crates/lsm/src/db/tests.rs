//! The engine on a simulated disk: the promises that must hold if one call fails and the power is
//! cut at the worst time after it.

mod blob_damage;
mod blob_events;
mod blob_sums;
mod blobs;
mod cache_warming;
mod clock;
mod compact_range;
mod compressed_values;
mod concurrent_maintenance;
mod disk_full;
mod explain;
mod gc_drop;
mod idle_work;
mod ingest;
mod install;
mod interleavings;
mod io_limit;
mod io_priority;
mod iterator;
mod left_directory;
mod listener;
mod log;
mod manifest_doubt;
mod memory;
mod merge;
mod options;
mod page_values;
mod pages;
mod preconditions;
mod prelude;
mod read_compaction;
mod reads;
mod relocation;
mod retired_numbers;
mod space_amp;
mod submit;
mod threads_and_faults;
mod throttle;
mod value_meta;
mod value_prefetch;

use crate::options::WriteOptions;
use basalt_fs::FileSystem;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
use prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

fn small() -> Options {
    Options {
        write_buffer_bytes: 8 << 10,
        ..Options::default()
    }
}

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(&db.default_family(), key, &ReadOptions::default())
        .unwrap()
        .map(|v| v.to_vec())
}

/// Every k-th call of a history fails once, with each kind of error. Writes continue, and the power
/// may be cut whenever one is acknowledged. A change of the tree that failed, and may be on the
/// device or not, must never cost an acknowledged write.
#[test]
fn a_failed_call_and_a_power_cut_lose_no_acknowledged_write() {
    // On LavaFS every third call is enough. Each pair of a call and an error begins with another.
    let step = if basalt_sim::is_on_lava() { 3 } else { 1 };
    let (mut fired, mut pairs) = (0, 0);
    for op in [
        OpKind::Append,
        OpKind::SyncData,
        OpKind::SyncAll,
        OpKind::SyncMetadata,
        OpKind::Rename,
        OpKind::Create,
        OpKind::CreateLog,
    ] {
        for kind in [
            FaultKind::Eio,
            FaultKind::Enospc,
            FaultKind::ShortWrite,
            FaultKind::FailedSync,
        ] {
            if !kind.applies_to(op) {
                continue;
            }
            pairs += 1;
            for nth in (1 + pairs % step as u64..).step_by(step) {
                if !one_fault(op, kind, nth) {
                    break;
                }
                fired += 1;
            }
        }
    }
    basalt_sim::campaign!("faults_fired={fired}");
    assert!(fired > 300 / step, "only {fired} faults fired");
}

/// Runs one history with one fault. Returns false if the history is too short for the fault.
fn one_fault(op: OpKind, kind: FaultKind, nth: u64) -> bool {
    let repeat = format!("one_fault(OpKind::{op:?}, FaultKind::{kind:?}, {nth})");
    let sim = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(sim.clone(), nth);
    let env = Env::for_tests(faults.clone(), nth);
    let clock = env.clock().as_manual().expect("tests own time").clone();
    let db = Db::open(&env, "db", small()).unwrap();
    let mut other = db.create_family("other", FamilyOptions::default()).ok();
    let rule = faults.inject(Fault {
        op: Some(op),
        path: String::new(),
        when: When::Nth(nth),
        kind,
    });
    // The values that each key may have after a crash: the acknowledged one, or any later one that
    // failed.
    let mut may: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> = BTreeMap::new();
    let mut failures_in_a_row = 0;
    for i in 0..160u64 {
        clock.advance(Duration::from_millis(60));
        let key = format!("key{:02}", i * 7 % 40).into_bytes();
        let value = format!("{i}:{}", "x".repeat((i * 37 % 400) as usize)).into_bytes();
        let mut batch = WriteBatch::new();
        batch.put(&db.default_family(), &key, &value).unwrap();
        match db.write(batch, &WriteOptions::SYNC) {
            Ok(_) => {
                failures_in_a_row = 0;
                may.insert(key.clone(), vec![Some(value.clone())]);
                assert_eq!(get(&db, &key).as_ref(), Some(&value), "{repeat}");
            }
            Err(_) => {
                failures_in_a_row += 1;
                may.entry(key)
                    .or_insert_with(|| vec![None])
                    .push(Some(value));
            }
        }
        assert!(
            failures_in_a_row < 8,
            "writes do not resume after one fault: {:?}; {repeat}",
            db.stats().read_only
        );
        if i % 5 == 0 {
            env.jobs().step();
        }
        if i == 60 {
            other = other.filter(|f| db.drop_family(f).is_err());
        }
        if i == 100 {
            let _ = db.create_family("third", FamilyOptions::default());
        }
        if i % 53 == 52 || faults.seen(rule) == nth {
            for (n, policy) in [
                CrashPolicy::AnySubset,
                CrashPolicy::NothingUnsynced,
                CrashPolicy::EverythingUnsynced,
            ]
            .into_iter()
            .enumerate()
            {
                check_crash(&sim.crash(policy, i * 3 + n as u64), &may, &repeat);
            }
        }
    }
    let fired = faults.fired().values().sum::<u64>() > 0;
    if db.close().is_ok() {
        check_crash(&sim.crash(CrashPolicy::NothingUnsynced, 1), &may, &repeat);
    }
    fired
}

fn check_crash(
    disk: &std::sync::Arc<SimFs>,
    may: &BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
    repeat: &str,
) {
    // The next process draws other ids than any of the histories.
    let env = Env::for_tests(disk.clone(), u64::MAX);
    let db = Db::open(&env, "db", small()).unwrap_or_else(|e| panic!("{e}; {repeat}"));
    for (key, values) in may {
        let found = get(&db, key);
        assert!(
            values.contains(&found),
            "{:?} holds {found:?}, expected one of {values:?}; {repeat}",
            String::from_utf8_lossy(key)
        );
    }
    db.abandon();
}

/// The device is full, and later is not. Writes fail with a clear error, reads continue, and writes
/// resume by themselves.
#[test]
fn writes_resume_when_a_full_disk_has_space_again() {
    let sim = SimFs::new(SimOptions {
        capacity: 256 << 10,
        ..SimOptions::default()
    });
    let env = Env::for_tests(sim.clone(), 1);
    let clock = env.clock().as_manual().expect("tests own time").clone();
    let ballast = sim.create(Path::new("ballast")).unwrap();
    ballast
        .append(
            &[std::io::IoSlice::new(&[1u8; 100 << 10])],
            basalt_fs::Intent::Lazy,
        )
        .unwrap();
    let db = Db::open(&env, "db", small()).unwrap();
    let f = db.default_family();
    let mut acknowledged = 0u32;
    let full = loop {
        let key = format!("key{acknowledged:05}");
        match db.put(&f, key.as_bytes(), &[7; 900], &WriteOptions::SYNC) {
            Ok(_) => acknowledged += 1,
            Err(e) => break e,
        }
        assert!(acknowledged < 10_000, "a disk of 256 KiB never fills");
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(full.retryable(), "{full}");
    for i in 0..acknowledged {
        assert_eq!(
            get(&db, format!("key{i:05}").as_bytes()).unwrap(),
            [7; 900],
            "reads go on"
        );
    }
    assert!(db.stats().read_only.is_some());
    drop(ballast);
    sim.remove(Path::new("ballast")).unwrap();
    sim.sync_metadata(Path::new("")).unwrap();
    let mut tries = 0;
    while let Err(e) = db.put(&f, b"after", b"space returned", &WriteOptions::SYNC) {
        clock.advance(Duration::from_millis(200));
        tries += 1;
        assert!(tries < 5, "space is back and writes still fail: {e}");
    }
    db.close().unwrap();
    let db = Db::open(&env, "db", small()).unwrap();
    assert_eq!(get(&db, b"after").unwrap(), b"space returned");
    for i in 0..acknowledged {
        assert_eq!(get(&db, format!("key{i:05}").as_bytes()).unwrap(), [7; 900]);
    }
}

/// There are more tables than files may be open. Readers are closed and opened again, and every
/// answer stays right.
#[test]
fn the_open_file_budget_holds_over_many_tables() {
    let sim = SimFs::new(SimOptions::default());
    let env = basalt_env::EnvBuilder::for_tests(sim, 3)
        .open_files(5)
        .build();
    let mut options = small();
    options.default_family.table_bytes = 2 << 10;
    options.default_family.base_level_bytes = 4 << 10;
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    for i in 0..600u32 {
        db.put(
            &f,
            format!("key{:04}", i * 7 % 600).as_bytes(),
            format!("{i}{}", "y".repeat(100)).as_bytes(),
            &WriteOptions::UNSYNCED,
        )
        .unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert!(db.stats().table_files > 20, "{:?}", db.stats());
    for i in 0..600u32 {
        let found = get(&db, format!("key{:04}", i * 7 % 600).as_bytes()).unwrap();
        assert!(found.starts_with(format!("{i}y").as_bytes()));
        assert!(
            env.open_files().count() <= 6,
            "{} files open",
            env.open_files().count()
        );
    }
    let mut cursor = db.iter(&f, &ReadOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    let mut n = 0;
    while cursor.valid() {
        n += 1;
        cursor.next().unwrap();
    }
    assert_eq!(n, 600);
    db.put(&f, b"one more", b"value", &WriteOptions::UNSYNCED)
        .unwrap();
    assert!(
        env.ledger().usage().memtable > 0,
        "memtables are in the ledger"
    );
    drop(cursor);
    db.close().unwrap();
    let left = env.ledger().usage();
    assert_eq!(
        (left.memtable, left.pinned, left.buffer),
        (0, 0, 0),
        "a closed store gives its memory back"
    );
    assert_eq!(
        env.open_files().count(),
        0,
        "a closed store holds no file open"
    );
}

/// Regression test: a value had expired, and reads did not return it. The store was closed, the
/// clock set back, and the value was there again: a session without writes recorded no time.
#[test]
fn values_expired_at_a_close_stay_expired() {
    let sim = SimFs::new(SimOptions::default());
    let hour = 3_600_000;
    let at = |wall_ms: u64| {
        let manual_clock = basalt_env::ManualClock::new(wall_ms);
        Env::builder(sim.clone())
            .stepped()
            .clock(basalt_env::Clock::manual(manual_clock.clone()))
            .seed(wall_ms)
            .build()
    };
    let start = 1_700_000_000_000;
    let db = Db::open(&at(start), "db", small()).unwrap();
    let f = db.default_family();
    let mut batch = WriteBatch::new();
    batch.put_ttl(&f, b"k", b"v", start + hour).unwrap();
    db.write(batch, &WriteOptions::SYNC).unwrap();
    db.close().unwrap();
    // A session of reads, in which an hour passes.
    let env = at(start + hour / 2);
    let db = Db::open(&env, "db", small()).unwrap();
    assert!(get(&db, b"k").is_some());
    env.clock().sleep(Duration::from_millis(hour));
    assert_eq!(get(&db, b"k"), None);
    db.close().unwrap();
    let db = Db::open(&at(start), "db", small()).unwrap();
    assert_eq!(get(&db, b"k"), None);
    db.close().unwrap();
}

struct Backwards;

impl crate::Comparator for Backwards {
    fn name(&self) -> &str {
        "test.backwards"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        b.cmp(a)
    }
}

/// Regression test: a file had a manifest's name and was none. A store that was made beside it
/// deleted it as an unused file.
#[test]
fn a_foreign_file_with_a_manifest_name_is_not_deleted() {
    for name in ["MANIFEST-000001", "20240101.log", "000007.tbl"] {
        let sim = SimFs::new(SimOptions::default());
        sim.create_dir("db".as_ref()).unwrap();
        sim.write_file(&Path::new("db").join(name), b"not yours")
            .unwrap();
        let before = sim.digest();
        let env = Env::for_tests(sim.clone(), 1);
        for allow_nonempty_dir in [false, true] {
            let options = Options {
                allow_nonempty_dir,
                ..small()
            };
            let refused = Db::open(&env, "db", options.clone()).err();
            let refused = refused.expect("no store is made among foreign files");
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            assert!(refused.to_string().contains(name), "{refused}");
            let verified = Db::verify_store(&env, "db", &options, &mut |_, _| ());
            assert_eq!(verified.err().map(|e| e.kind()), Some(ErrorKind::NotFound));
            let repaired = Db::repair(&env, "db", &options, &mut |_, _| ());
            assert_eq!(repaired.err().map(|e| e.kind()), Some(ErrorKind::NotFound));
        }
        assert_eq!(sim.digest(), before, "{name}: nothing was changed");
    }
}

/// Regression test: `serve --dir .` in a directory of photos made a store among them without a
/// message.
#[test]
fn no_store_is_created_among_foreign_files_by_default() {
    let photos = || {
        let sim = SimFs::new(SimOptions::default());
        sim.create_dir("db".as_ref()).unwrap();
        sim.write_file("db/beach.jpg".as_ref(), b"sand").unwrap();
        sim.create_dir("db/2024".as_ref()).unwrap();
        sim
    };
    let sim = photos();
    let before = sim.digest();
    let refused = Db::open(&Env::for_tests(sim.clone(), 1), "db", small())
        .err()
        .unwrap();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(
        refused
            .to_string()
            .contains("db holds files and no store (2024 and 1 more)"),
        "{refused}"
    );
    let absent = Options {
        create_if_missing: false,
        ..small()
    };
    let refused = Db::open(&Env::for_tests(sim.clone(), 1), "db", absent).err();
    assert_eq!(refused.unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(sim.digest(), before, "nothing was left there");

    let allowed = Options {
        allow_nonempty_dir: true,
        ..small()
    };
    let env = Env::for_tests(sim.clone(), 2);
    Db::open(&env, "db", allowed).unwrap().close().unwrap();
    // From here on the directory is a store, whatever other files it has.
    Db::open(&env, "db", small()).unwrap().close().unwrap();
    assert_eq!(sim.read_all("db/beach.jpg".as_ref()).unwrap(), b"sand");

    // Files of `mkfs`, and files that its killed process leaves, are no foreign files.
    for leaving in ["LOCK", "CURRENT.tmp", "MANIFEST-000001", ".basalt-probe-77"] {
        let sim = SimFs::new(SimOptions::default());
        sim.create_dir("db".as_ref()).unwrap();
        sim.create_dir("db/lost+found".as_ref()).unwrap();
        sim.write_file(Path::new("db").join(leaving).as_path(), b"")
            .unwrap();
        let env = Env::for_tests(sim, 3);
        Db::open(&env, "db", small()).unwrap().close().unwrap();
    }
}

#[test]
fn a_store_opens_only_with_matching_options() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim, 4);
    let absent = Options {
        create_if_missing: false,
        ..small()
    };
    assert_eq!(
        Db::open(&env, "db", absent).err().unwrap().kind(),
        ErrorKind::NotFound
    );
    let db = Db::open(&env, "db", small()).unwrap();
    assert_eq!(
        Db::open(&env, "db", small()).err().unwrap().kind(),
        ErrorKind::Busy
    );
    let options = FamilyOptions {
        comparator: basalt_kv::key::Cmp::Custom(std::sync::Arc::new(Backwards)),
        ..FamilyOptions::default()
    };
    let backwards = db.create_family("backwards", options.clone()).unwrap();
    for k in [b"a", b"c", b"b"] {
        db.put(&backwards, k, k, &WriteOptions::UNSYNCED).unwrap();
    }
    assert_eq!(
        db.create_family("backwards", options.clone())
            .unwrap_err()
            .kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        db.drop_family(&db.default_family()).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let dropped = db
        .create_family("dropped", FamilyOptions::default())
        .unwrap();
    db.drop_family(&dropped).unwrap();
    assert_eq!(
        db.put(&dropped, b"k", b"v", &WriteOptions::SYNC)
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
    let other = Db::open(&env, "other", small()).unwrap();
    assert_eq!(
        other
            .put(&backwards, b"k", b"v", &WriteOptions::SYNC)
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidArgument
    );
    let snapshot = other.snapshot();
    let at = ReadOptions {
        snapshot: Some(snapshot),
        ..ReadOptions::default()
    };
    assert_eq!(
        db.get(&backwards, b"a", &at).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let clone = db.clone();
    db.close().unwrap();
    assert_eq!(
        clone
            .get(&backwards, b"a", &ReadOptions::default())
            .unwrap_err()
            .kind(),
        ErrorKind::Closed
    );
    drop(clone);

    let e = Db::open(&env, "db", small()).err().unwrap();
    assert!(
        e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("test.backwards"),
        "{e}"
    );
    let exists = Options {
        error_if_exists: true,
        ..small()
    };
    assert_eq!(
        Db::open(&env, "db", exists).err().unwrap().kind(),
        ErrorKind::AlreadyExists
    );
    let with = Options {
        families: [("backwards".to_string(), options)].into(),
        ..small()
    };
    let db = Db::open(&env, "db", with).unwrap();
    let backwards = db.family("backwards").unwrap();
    let mut cursor = db.iter(&backwards, &ReadOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    let mut keys = Vec::new();
    while cursor.valid() {
        keys.extend_from_slice(cursor.key());
        cursor.next().unwrap();
    }
    assert_eq!(keys, b"cba");
}

/// Lookups of many keys at once give the same answers as single lookups. If a read fails, only the
/// keys that need it get the error.
#[test]
fn multi_get_answers_as_single_lookups() {
    let sim = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(sim.clone(), 1);
    let env = basalt_env::EnvBuilder::for_tests(faults.clone(), 6)
        .cache_bytes(0)
        .build();
    let mut options = small();
    options.default_family.block_bytes = 256;
    options.default_family.table_bytes = 4 << 10;
    options.default_family.base_level_bytes = 8 << 10;
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let (a, b) = (
        db.default_family(),
        db.create_family("b", options.default_family.clone())
            .unwrap(),
    );
    for i in 0..900u32 {
        let (f, key) = (
            if i % 3 == 0 { &b } else { &a },
            format!("key{:03}", i * 7 % 300),
        );
        match i % 11 {
            0 => db
                .delete(f, key.as_bytes(), &WriteOptions::UNSYNCED)
                .unwrap(),
            _ => db
                .put(
                    f,
                    key.as_bytes(),
                    format!("{i}").as_bytes(),
                    &WriteOptions::UNSYNCED,
                )
                .unwrap(),
        };
        if i % 40 == 0 {
            env.jobs().step();
        }
    }
    let names: Vec<Vec<u8>> = (0..320u32)
        .map(|i| format!("key{:03}", i * 13 % 320).into_bytes())
        .collect();
    let asked: Vec<(&Family, &[u8])> = names
        .iter()
        .enumerate()
        .map(|(i, k)| (if i % 2 == 0 { &a } else { &b }, &k[..]))
        .collect();
    let read = ReadOptions::default();
    let alone: Vec<_> = asked
        .iter()
        .map(|(f, k)| db.get(f, k, &read).unwrap())
        .collect();
    assert!(alone.iter().filter(|v| v.is_some()).count() > 100);
    let together: Vec<_> = db
        .multi_get(&asked, &read)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(alone, together);
    for nth in 1..40 {
        faults.clear();
        faults.inject(Fault {
            op: Some(OpKind::Read),
            path: ".tbl".into(),
            when: When::Nth(nth),
            kind: FaultKind::Eio,
        });
        for (found, want) in db.multi_get(&asked, &read).into_iter().zip(&alone) {
            if let Ok(found) = found {
                assert_eq!(&found, want, "read {nth} failed");
            }
        }
        faults.clear();
        let after: Vec<_> = db
            .multi_get(&asked, &read)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(after, alone, "after read {nth} failed once");
    }
}

#[test]
fn a_failed_read_only_open_leaves_no_file() {
    let sim = SimFs::new(SimOptions::default());
    sim.create_dir(Path::new("photos")).unwrap();
    sim.create(Path::new("photos/cat.jpg")).unwrap();
    let env = Env::for_tests(sim.clone(), 8);
    let e = Db::verify_store(&env, "photos", &small(), &mut |_, _| ()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    assert_eq!(sim.list(Path::new("photos")).unwrap().len(), 1);
}
