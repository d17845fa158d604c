//! Space: the power goes at every call of a store that fills its disk and frees space by itself. A
//! soak compares a store's own figures of its blob files with a scan.

use crate::history::value_bytes;
use crate::rng::{Rng, on_two_threads, scale};
use crate::runner::{DIR, environment, read_all, sim_disk};
use basalt_env::{Clock, Env, EnvBuilder};
use basalt_fs::FileSystem;
use basalt_lsm::{Db, ErrorKind, FamilyOptions, Options, ReadOptions, WriteBatch, WriteOptions};
use basalt_sim::{CrashPolicy, OpKind, SimSnapshot, campaign, repeat};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns options for values of a few kilobytes in small blob files, and for much of all other
/// work.
fn options(min_blob_size: Option<usize>) -> Options {
    Options::default().write_buffer_bytes(8192).default_family(
        FamilyOptions::default()
            .min_blob_size(min_blob_size)
            .table_bytes(4096)
            .base_level_bytes(16 << 10),
    )
}

/// Checks that the store is sound and has no unused files.
fn verify(env: &Env, options: &Options) -> basalt_lsm::db::VerifyReport {
    let report = Db::verify_store(env, DIR, options, &mut |_, _| ()).expect("it can be walked");
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(report.unused_files.is_empty(), "{:?}", report.unused_files);
    report
}

struct CrashPoint {
    disk: SimSnapshot,
    /// Number of commits acknowledged, all of them durable.
    acknowledged: usize,
}

/// A store that fills its disk twice.
struct Filled {
    /// Moments while the disk was full.
    crash_points: Vec<CrashPoint>,
    /// The contents after each number of commits.
    states: Vec<Table>,
    collections: u64,
    wall_ms: u64,
}

fn fill(seed: u64) -> Filled {
    let mut c = Rng::of(&[seed, 21]);
    let disk = sim_disk(seed, 512, 1 << 20);
    let fs: Arc<dyn FileSystem> = disk.clone();
    let (env, manual_clock) = environment(&fs, seed * 6, 1_700_000_000_000);
    let options = options(Some(500));
    let (full, acknowledged) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let crash_points = Arc::new(Mutex::new(Vec::new()));
    let (sink, is_full, so_far) = (crash_points.clone(), full.clone(), acknowledged.clone());
    disk.on_mutation(move |disk| {
        if is_full.load(SeqCst) {
            let acknowledged = so_far.load(SeqCst);
            let crash_point = CrashPoint { disk, acknowledged };
            sink.lock().expect("one thread").push(crash_point);
        }
    });
    let db = Db::open(&env, DIR, options.clone()).expect("there is space");
    let f = db.default_family();
    let (mut states, mut n) = (vec![Table::new()], 0u64);
    let mut collections = 0;
    for round in 0..2 {
        let full_now = loop {
            n += 1;
            assert!(n < 5000, "the disk never fills");
            let (key, value) = (
                format!("{:03}", c.below(250)),
                value_bytes(n, c.within(600, 4000) as u32),
            );
            match db.put(&f, key.as_bytes(), &value, &WriteOptions::SYNC) {
                Ok(_) => {
                    let mut next = states.last().expect("the first is there").clone();
                    next.insert(key.into_bytes(), value);
                    states.push(next);
                    acknowledged.fetch_add(1, SeqCst);
                }
                Err(e) => break e,
            }
            env.jobs().step();
        };
        // Without the reserve, the log would fail instead.
        assert_eq!(full_now.kind(), ErrorKind::NoSpace, "{full_now}");
        assert!(
            full_now
                .to_string()
                .contains("reserved for work that frees space"),
            "{full_now}"
        );
        full.store(true, SeqCst);
        let wait = |tries: &mut u32| {
            manual_clock.advance(Duration::from_secs(2));
            while env.jobs().step() {}
            *tries += 1;
            assert!(*tries < 10, "round {round}: {:?}", db.stats());
        };
        let keys: Vec<Vec<u8>> = states.last().expect("not empty").keys().cloned().collect();
        for key in keys {
            if c.percent(70) {
                let mut tries = 0;
                // The lower half of the reserve is only for operations that make space.
                while let Err(e) = db.delete(&f, &key, &WriteOptions::SYNC) {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                    wait(&mut tries);
                }
                let mut next = states.last().expect("not empty").clone();
                next.remove(&key);
                states.push(next);
                acknowledged.fetch_add(1, SeqCst);
                env.jobs().step();
            }
        }
        let mut tries = 0;
        while let Err(e) = db.put(&f, b"again", b"yes", &WriteOptions::SYNC) {
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            wait(&mut tries);
        }
        let mut next = states.last().expect("not empty").clone();
        next.insert(b"again".to_vec(), b"yes".to_vec());
        states.push(next);
        acknowledged.fetch_add(1, SeqCst);
        collections = db.stats().blobs.collections;
    }
    let wall_ms = env.clock().wall_ms();
    db.close().expect("there is space");
    verify(&env, &options);
    disk.on_mutation(|_| ());
    Filled {
        crash_points: std::mem::take(&mut *crash_points.lock().expect("one thread")),
        states,
        collections,
        wall_ms,
    }
}

fn check(filled: &Filled, crash_point: &CrashPoint, policy: CrashPolicy, rng: u64) {
    let disk: Arc<dyn FileSystem> = crash_point.disk.crash(policy, rng);
    // The seed is never the one in six that limits background I/O.
    let (env, manual_clock) = environment(&disk, rng * 6, filled.wall_ms);
    let options = options(Some(500));
    let db = Db::open(&env, DIR, options.clone())
        .unwrap_or_else(|e| panic!("open after a crash at {:?}: {e}", crash_point.disk));
    let shown: Table = (read_all(&db).expect("it can be read").remove("default"))
        .expect("every store has it")
        .into_iter()
        .map(|(key, entry)| (key, entry.value))
        .collect();
    let may = &filled.states
        [crash_point.acknowledged..(crash_point.acknowledged + 2).min(filled.states.len())];
    let at = may.iter().position(|s| *s == shown);
    assert!(
        at.is_some(),
        "{policy:?} at {:?}: neither {} commits nor one more",
        crash_point.disk,
        crash_point.acknowledged
    );
    let f = db.default_family();
    let mut tries = 0;
    let mut wait = |e: &basalt_lsm::Error| {
        manual_clock.advance(Duration::from_secs(2));
        while env.jobs().step() {}
        tries += 1;
        let at = &crash_point.disk;
        assert!(tries < 20, "{policy:?} at {at:?}: {e} {:?}", db.stats());
    };
    for key in shown.keys().take(shown.len() * 9 / 10) {
        while let Err(e) = db.delete(&f, key, &WriteOptions::UNSYNCED) {
            wait(&e);
        }
    }
    while let Err(e) = db.put(&f, b"after", b"yes", &WriteOptions::SYNC) {
        wait(&e);
    }
    db.close()
        .unwrap_or_else(|e| panic!("close after a crash: {e}"));
    verify(&env, &options);
}

#[test]
fn power_cuts_on_a_full_disk_keep_the_promises() {
    // The moments of each store form two halves, for two threads.
    let halves = 2 * scale();
    let done = on_two_threads(halves, |half| {
        let seed = half / 2;
        let _repeat = repeat!(
            power_cuts_on_a_full_disk_keep_the_promises,
            "BASALT_CASE={half}"
        );
        let filled = fill(seed);
        let mut calls = BTreeSet::new();
        let mut states = 0;
        let own = |i: &usize| *i as u64 % 2 == half % 2;
        for i in (0..filled.crash_points.len()).filter(own) {
            let crash_point = &filled.crash_points[i];
            states += 1;
            calls.insert((
                crash_point.disk.call,
                crash_point
                    .disk
                    .path
                    .rsplit('.')
                    .next()
                    .unwrap_or("")
                    .to_string(),
            ));
            let policy = CrashPolicy::ALL[(i + seed as usize) % CrashPolicy::ALL.len()];
            check(&filled, crash_point, policy, i as u64 ^ seed << 32);
        }
        (states, filled.collections, calls)
    });
    let states: u64 = done.iter().map(|d| d.0).sum();
    let collections: u64 = done.iter().map(|d| d.1).sum();
    let calls: BTreeSet<_> = done.into_iter().flat_map(|d| d.2).collect();
    campaign!(
        "full_disk_crash_states={states} collections={collections} kinds={}",
        calls.len()
    );
    if campaign::case().is_some() {
        return;
    }
    assert!(states >= scale().floor(1500), "only {states} states");
    assert!(
        collections >= scale().floor(40),
        "only {collections} collections"
    );
    for call in [OpKind::Create, OpKind::Append, OpKind::Remove] {
        assert!(
            calls.contains(&(call, "blob".to_string())),
            "no crash after {} of a blob file: {calls:?}",
            call.name()
        );
    }
}

/// Returns the minutes that the soak writes, `BASALT_SOAK_MINUTES`; in each minute it is compared
/// with a scan once. Without the variable there are two short rounds.
fn soak_minutes() -> Option<u64> {
    std::env::var("BASALT_SOAK_MINUTES").ok()?.parse().ok()
}

/// Threads overwrite and delete values of a few kilobytes while background work runs on threads of
/// its own. Again and again the store is closed and every reference followed. Live bytes and disk
/// bytes must be the store's own figures, and readers must see the values that were written.
#[test]
fn space_figures_equal_a_full_scan_after_a_soak() {
    let _repeat = repeat!(
        space_figures_equal_a_full_scan_after_a_soak,
        "BASALT_SOAK_MINUTES={}",
        soak_minutes().unwrap_or(0)
    );
    let disk = sim_disk(5, 512, 1 << 40);
    let clock = Clock::system();
    let rounds = soak_minutes().map_or(2 * scale(), |m| m.max(1));
    let mut there = Table::new();
    let (mut collections, mut forgotten) = (0, 0);
    for round in 0..rounds {
        let env = EnvBuilder::new(disk.clone() as Arc<dyn FileSystem>)
            .threads(3)
            .seed(round)
            .build();
        let options = options(Some(1000))
            .write_buffer_bytes(64 << 10)
            .max_space_amp([1.1, 1.25, 1.5][round as usize % 3]);
        let db = Db::open(&env, DIR, options.clone()).expect("a sound store opens");
        let end = soak_minutes().map(|_| clock.now() + Duration::from_secs(60));
        let written: Vec<Table> = basalt_env::thread::scope(|threads| {
            let writers: Vec<_> = (0..2u64)
                .map(|writer| {
                    let (db, clock) = (&db, &clock);
                    let own: Table = (there.iter())
                        .filter(|(k, _)| k[0] == b'0' + writer as u8)
                        .map(|(k, v)| (k.clone(), v.clone()))
                        .collect();
                    threads.spawn(move || {
                        write(db, writer, round, own, &|n| match end {
                            Some(end) => clock.now() >= end,
                            None => n >= 2000,
                        })
                    })
                })
                .collect();
            (writers.into_iter())
                .map(|w| w.join().expect("it wrote"))
                .collect()
        });
        there = written.into_iter().flatten().collect();
        db.flush().expect("a sound disk");
        db.wait_idle().expect("a sound disk");
        let f = db.default_family();
        for (key, value) in &there {
            let got = db
                .get(&f, key, &ReadOptions::default())
                .expect("it is there");
            assert_eq!(got.as_deref(), Some(&value[..]));
        }
        let blobs = db.stats().blobs;
        collections += blobs.collections;
        forgotten += blobs.names_forgotten;
        db.close().expect("a sound disk");
        let report = verify(&env, &options);
        let names = disk.list(std::path::Path::new(DIR)).expect("it is there");
        let stat = |name: &str| {
            disk.stat(&std::path::Path::new(DIR).join(name))
                .expect("listed")
        };
        let of =
            |end: &'static str| (names.iter().map(|e| &*e.name)).filter(move |n| n.ends_with(end));
        // All logs of a closed store are blob files. They keep whole blocks, of which a few are not
        // counted.
        let exact: u64 = (of(".blob").chain(of(".index"))).map(|n| stat(n).len).sum();
        let logs: u64 = of(".log").map(|n| stat(n).on_disk).sum();
        let blocks = of(".log").count() as u64 * 3 * 4096;
        let (counted, there) = (report.blob_bytes, exact + logs);
        assert!(
            counted <= there && there <= counted + blocks,
            "the scan found {counted} bytes, on the disk are {there}: {blobs:?}"
        );
        assert_eq!(blobs.bytes, counted, "what the store said against the scan");
        assert_eq!(
            blobs.live_bytes, report.referred_bytes,
            "live bytes against what references lead to"
        );
        assert_eq!(blobs.garbage_bytes(), counted - report.referred_bytes);
        assert!(blobs.space_debt == 0, "{blobs:?}");
    }
    campaign!("soak_rounds={rounds} collections={collections} names_forgotten={forgotten}");
    assert!(
        collections >= 10 * rounds && forgotten >= 10 * rounds,
        "{collections} collections, {forgotten} names"
    );
}

/// Overwrites and deletes keys of a writer's own until `enough` says so. Returns the keys' values
/// then.
fn write(db: &Db, writer: u64, round: u64, mut own: Table, enough: &dyn Fn(u64) -> bool) -> Table {
    let mut c = Rng::of(&[writer, round, 22]);
    let f = db.default_family();
    let mut n = 0;
    while !enough(n) {
        n += 1;
        let key = format!("{writer}{:03}", c.below(300)).into_bytes();
        if c.percent(10) {
            db.delete(&f, &key, &WriteOptions::UNSYNCED)
                .expect("a sound disk");
            own.remove(&key);
            continue;
        }
        let value = value_bytes(round << 32 | writer << 31 | n, c.within(100, 5000) as u32);
        let mut batch = WriteBatch::new();
        batch.put(&f, &key, &value).expect("inside the limits");
        db.write(batch, &WriteOptions::UNSYNCED)
            .expect("a sound disk");
        own.insert(key, value);
    }
    own
}
