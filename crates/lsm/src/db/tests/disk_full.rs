//! A full disk and a killed process. The contents of the logs must fit on the disk once more, as
//! tables, or the store cannot be opened.

use super::prelude::*;
use basalt_env::{Clock, EnvBuilder, ManualClock};
use basalt_fs::FileSystem;
use basalt_sim::{CrashPolicy, SimFs, SimOptions, SimSnapshot, campaign};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CAPACITY: u64 = 16 << 20;

/// The writes of a test.
#[derive(Debug, Clone, Copy)]
struct Load {
    value_bytes: usize,
    sync: bool,
    /// Background jobs that run after each write. With 0, memtables are flushed when a writer waits
    /// for it.
    jobs: usize,
    /// Values from this length on are separated.
    min_blob_size: Option<usize>,
    /// A key is written again after this many others, so that compactions and garbage collections
    /// have work.
    keys: u64,
}

impl Load {
    fn options(&self) -> Options {
        Options {
            // All memtables together are ten times the reserve of this disk.
            write_buffer_bytes: 2 << 20,
            default_family: FamilyOptions {
                min_blob_size: self.min_blob_size,
                table_bytes: 512 << 10,
                base_level_bytes: 2 << 20,
                ..FamilyOptions::default()
            },
            ..Options::default()
        }
    }

    fn write_options(&self) -> WriteOptions {
        match self.sync {
            true => WriteOptions::SYNC,
            false => WriteOptions::UNSYNCED,
        }
    }

    /// Returns the value of a write: bytes that do not compress, and that no other write has.
    fn value(&self, n: u64) -> Vec<u8> {
        let mut state = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut value = Vec::with_capacity(self.value_bytes + 8);
        while value.len() < self.value_bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            value.extend_from_slice(&state.to_le_bytes());
        }
        value.truncate(self.value_bytes);
        value
    }

    fn key(&self, n: u64) -> [u8; 8] {
        (n % self.keys).to_be_bytes()
    }

    /// Returns the newest write of each key.
    fn newest(&self, writes: u64) -> BTreeMap<u64, u64> {
        (0..writes).map(|n| (n % self.keys, n)).collect()
    }
}

/// Returns the environment of one process. Each process has its own seed; otherwise its files would
/// get the ids of an earlier process's files.
fn environment(disk: &Arc<SimFs>, seed: u64) -> (Env, Arc<ManualClock>) {
    let manual_clock = ManualClock::new(1_700_000_000_000);
    let env = EnvBuilder::for_tests(disk.clone(), seed)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    (env, manual_clock)
}

/// The acknowledged operations: the number of writes, then the number of deletes in the order of
/// keys.
#[derive(Default)]
struct Progress {
    writes: AtomicU64,
    deletes: AtomicU64,
}

/// The acknowledged operations at one time. A write or a delete may be under way.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    writes: u64,
    deletes: u64,
}

impl Progress {
    fn now(&self) -> Acknowledged {
        Acknowledged {
            writes: self.writes.load(Ordering::SeqCst),
            deletes: self.deletes.load(Ordering::SeqCst),
        }
    }
}

/// A process that works with the store.
struct Process {
    load: Load,
    env: Env,
    manual_clock: Arc<ManualClock>,
    db: Db,
    what: String,
}

impl Process {
    fn open(load: Load, disk: &Arc<SimFs>, seed: u64, what: &str) -> Process {
        let (env, manual_clock) = environment(disk, seed);
        let db = Db::open(&env, "db", load.options())
            .unwrap_or_else(|e| panic!("{load:?}, {what}: the store does not open: {e}"));
        let what = what.to_string();
        Process {
            load,
            env,
            manual_clock,
            db,
            what,
        }
    }

    /// Checks that every acknowledged write is there, and no deleted one.
    fn check(&self, acknowledged: Acknowledged) {
        let (load, what) = (&self.load, &self.what);
        let f = self.db.default_family();
        let Acknowledged { writes, deletes } = acknowledged;
        for (i, (key, n)) in load.newest(writes).into_iter().enumerate() {
            let got = self.db.get(&f, &key.to_be_bytes(), &ReadOptions::default());
            let got = got.unwrap();
            let i = i as u64;
            // The write or the delete under way may be there, too.
            let next = (writes % load.keys == key && deletes == 0).then(|| load.value(writes));
            let kept = got.as_deref() == Some(&load.value(n)[..])
                || (next.is_some() && got.as_deref() == next.as_deref());
            assert!(
                (kept && i >= deletes) || (got.is_none() && i <= deletes && self.deleting(deletes)),
                "{load:?}, {what}: {acknowledged:?}, and write {n} of key {key} is {:?}",
                got.map(|v| v.len())
            );
        }
    }

    /// Returns true if deletes may have begun.
    fn deleting(&self, deletes: u64) -> bool {
        deletes > 0 || self.what.contains("deleting")
    }

    /// Deletes all keys from a number on, then writes. Background work may run whenever the disk is
    /// too full.
    fn delete_all_and_write(&self, from: u64, writes: u64, deleted: &dyn Fn(u64)) {
        let (db, load, what) = (&self.db, &self.load, &self.what);
        let f = db.default_family();
        let mut tries = 0;
        let mut wait = |e: &Error| {
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{load:?}, {what}: {e}");
            self.manual_clock.advance(Duration::from_secs(2));
            while self.env.jobs().step() {}
            tries += 1;
            assert!(tries < 50, "{load:?}, {what}: {e} {:?}", db.stats());
        };
        // Merges all tables: a merge of a part may need more space for that part than is free.
        let keys = load.newest(writes).into_keys().enumerate();
        for (i, key) in keys.skip(from as usize) {
            while let Err(e) = db.delete(&f, &key.to_be_bytes(), &load.write_options()) {
                wait(&e);
            }
            deleted(i as u64 + 1);
        }
        while let Err(e) = db.put(&f, b"after", &load.value(1), &WriteOptions::SYNC) {
            wait(&e);
        }
    }
}

/// Opens the store of a killed process, finds every acknowledged write, deletes all keys, and
/// writes again.
fn reopen(load: &Load, disk: &Arc<SimFs>, acknowledged: Acknowledged, what: &str) {
    let process = Process::open(*load, disk, 2, what);
    process.check(acknowledged);
    process.delete_all_and_write(acknowledged.deletes, acknowledged.writes, &|_| ());
    process.db.close().unwrap();
    let report = Db::verify_store(&process.env, "db", &load.options(), &mut |_, _| ()).unwrap();
    assert!(
        report.damage.is_empty(),
        "{load:?}, {what}: {:?}",
        report.damage
    );
}

/// Moments at which a process may be killed: the last ones, and some before them.
#[derive(Default)]
struct CrashPoints(Mutex<Vec<(Acknowledged, SimSnapshot)>>);

impl CrashPoints {
    fn watch(self: &Arc<Self>, disk: &SimFs, progress: &Arc<Progress>, every: u64) {
        let (crash_points, progress) = (self.clone(), progress.clone());
        let calls = AtomicU64::new(0);
        disk.on_mutation(move |crash_point| {
            if calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(every) {
                let mut kept = crash_points.0.lock().unwrap();
                kept.push((progress.now(), crash_point));
                if kept.len() > 400 {
                    kept.drain(..200);
                }
            }
        });
    }

    /// Kills the process at the recorded moments. Returns the number of stores that were opened.
    fn kill(&self, load: &Load, most: usize, what: &str) -> u64 {
        let crash_points = std::mem::take(&mut *self.0.lock().unwrap());
        let mut states = 0;
        let last = crash_points.len();
        for (i, (acknowledged, crash_point)) in crash_points.iter().enumerate() {
            if i + most < last && i % (last / most).max(1) != 0 {
                continue;
            }
            let killed = format!("killed while {what} at {crash_point:?}");
            reopen(load, &crash_point.kill(), *acknowledged, &killed);
            states += 1;
            if load.sync {
                let cut = crash_point.crash(CrashPolicy::Torn, i as u64);
                let cut_at = format!("power cut while {what} at {crash_point:?}");
                reopen(load, &cut, *acknowledged, &cut_at);
                states += 1;
            }
        }
        states
    }
}

/// Returns the number of moments of which the test takes at most about `n`: on LavaFS a third of
/// them.
fn kills(n: usize) -> usize {
    match basalt_sim::is_on_lava() {
        true => n.div_ceil(3),
        false => n,
    }
}

/// Fills the disk. Kills the process at moments before the disk is full, when it is full, and while
/// all keys are deleted.
fn fill_and_kill(load: Load) -> u64 {
    let disk = SimFs::new(SimOptions {
        capacity: CAPACITY,
        ..SimOptions::default()
    });
    let progress = Arc::new(Progress::default());
    let crash_points = Arc::new(CrashPoints::default());
    let process = Process::open(load, &disk, 1, "deleting");
    let (env, db) = (&process.env, &process.db);
    crash_points.watch(&disk, &progress, 37);
    let f = db.default_family();
    let mut n = 0;
    let full = loop {
        match db.put(&f, &load.key(n), &load.value(n), &load.write_options()) {
            Ok(_) => n += 1,
            Err(e) => break e,
        }
        progress.writes.store(n, Ordering::SeqCst);
        for _ in 0..load.jobs {
            env.jobs().step();
        }
        if n > 4 * CAPACITY / load.value_bytes as u64 {
            // Compactions keep up with the overwrites, so the disk never fills.
            break Error::new(ErrorKind::NoSpace, "never full");
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{load:?}: {full}");
    disk.on_mutation(|_| ());
    // The disk is not full while much of it is free.
    let free = env.fs().space(std::path::Path::new("db")).unwrap().free;
    assert!(
        free < CAPACITY / 3,
        "{load:?}: {full}, and {free} bytes are free"
    );
    reopen(&load, &disk.kill(), progress.now(), "killed when full");
    let mut states = 1 + crash_points.kill(&load, kills(4), "filling");
    // The process itself continues, and may be killed then.
    crash_points.watch(&disk, &progress, 11);
    let deleted = |n| progress.deletes.store(n, Ordering::SeqCst);
    process.delete_all_and_write(0, n, &deleted);
    disk.on_mutation(|_| ());
    process.db.abandon();
    states += crash_points.kill(&load, kills(6), "deleting");
    states
}

const BASE: Load = Load {
    value_bytes: 4000,
    sync: false,
    jobs: 0,
    min_blob_size: None,
    keys: u64::MAX,
};

fn all(loads: &[Load], least: u64) {
    let states: u64 = loads.iter().map(|load| fill_and_kill(*load)).sum();
    campaign!("killed_full={states}");
    assert!(states >= least, "only {states} states");
}

/// Regression test: a store with memtables of 2 MiB on a disk of 16 MiB kept 1 MiB free, and had up
/// to 8 MiB in its logs that were in no table. A process that opened it after a kill could not
/// write these out and reported a full disk, and no delete could free space.
#[test]
fn a_store_opens_after_a_kill_on_a_full_disk() {
    let loads = [
        BASE,
        Load {
            value_bytes: 600,
            ..BASE
        },
        Load {
            min_blob_size: Some(1000),
            ..BASE
        },
        Load {
            value_bytes: 1_000_000,
            ..BASE
        },
    ];
    all(&loads, 15);
}

/// Synced writes, whose log is padded, and a power cut instead of a kill.
#[test]
fn a_store_opens_after_a_power_cut_on_a_full_disk() {
    let loads = [
        Load {
            value_bytes: 1000,
            sync: true,
            ..BASE
        },
        Load { sync: true, ..BASE },
        Load {
            min_blob_size: Some(1000),
            sync: true,
            ..BASE
        },
    ];
    all(&loads, 15);
}

/// A kill while compactions run: their outputs and their replaced inputs take space, too.
#[test]
fn a_store_opens_after_a_kill_in_a_compaction_on_a_full_disk() {
    let loads = [
        Load { jobs: 1, ..BASE },
        Load {
            keys: 4000,
            jobs: 1,
            ..BASE
        },
    ];
    all(&loads, 10);
}

/// Regression test: near a full disk each commit group synced the directory under the writer's
/// lock, although no file had been removed since the last sync.
#[test]
fn a_nearly_full_disk_syncs_the_directory_once_a_removal() {
    let disk = SimFs::new(SimOptions {
        capacity: CAPACITY,
        ..SimOptions::default()
    });
    let load = Load {
        value_bytes: 100_000,
        ..BASE
    };
    let process = Process::open(load, &disk, 1, "filling");
    let (env, db) = (&process.env, &process.db);
    let f = db.default_family();
    let names = || {
        let entries = env.fs().list(std::path::Path::new("db")).unwrap();
        entries.into_iter().map(|e| e.name).collect::<Vec<_>>()
    };
    let (mut writes, mut changes, mut syncs) = (0, 0, 0);
    loop {
        let (names_before, syncs_before) = (names(), env.fs().stats().syncs);
        let value = load.value(writes);
        if db
            .put(&f, &load.key(writes), &value, &WriteOptions::UNSYNCED)
            .is_err()
        {
            break;
        }
        writes += 1;
        match names() == names_before {
            // An unsynced write causes no sync of its own.
            true => syncs += env.fs().stats().syncs - syncs_before,
            false => changes += 1,
        }
    }
    campaign!("full_writes={writes} full_changes={changes} full_syncs={syncs}");
    assert!(
        writes > 100 && changes > 3,
        "{writes} writes, {changes} changes"
    );
    assert!(
        syncs <= changes,
        "{syncs} syncs beside {changes} changes of the directory in {writes} writes"
    );
}

/// Regression test: a merge that did not fit filled the disk before it failed. If a process was
/// killed just after it had installed a large merge, the next open had no space for its manifest.
#[test]
fn merges_on_a_full_disk_leave_space_for_recovery() {
    let disk = SimFs::new(SimOptions {
        capacity: CAPACITY,
        ..SimOptions::default()
    });
    let load = Load {
        value_bytes: 1000,
        sync: true,
        ..BASE
    };
    let process = Process::open(load, &disk, 1, "filling");
    let (env, db) = (&process.env, &process.db);
    let f = db.default_family();
    // Each table has keys of the whole range, so that none moves down without a merge.
    let write = |n: u64| {
        let key = (n * 7919 % 100_003).to_be_bytes();
        db.put(&f, &key, &load.value(n), &WriteOptions::SYNC)
    };
    let writes = (0..).take_while(|n| write(*n).is_ok()).count();
    assert!(writes > 5000, "{writes} writes");
    let crash_points: Arc<Mutex<Vec<SimSnapshot>>> = Arc::default();
    let sink = crash_points.clone();
    disk.on_mutation(move |crash_point| sink.lock().unwrap().push(crash_point));
    let mut failed = false;
    for _ in 0..3 {
        process.manual_clock.advance(Duration::from_secs(2));
        while env.jobs().step() {}
        failed |= db.engine().health.compaction_error().is_some();
    }
    disk.on_mutation(|_| ());
    assert!(failed, "no merge was too large");
    let free = |crash_point: &SimSnapshot| {
        crash_point
            .kill()
            .space(std::path::Path::new("db"))
            .unwrap()
            .free
    };
    let least = crash_points.lock().unwrap().iter().map(free).min();
    campaign!("full_merge_left={}", least.unwrap());
    // The space for a manifest, and for a table of the first records of the next log.
    assert!(least.unwrap() >= 48 << 10, "a merge left {least:?} bytes");
}
