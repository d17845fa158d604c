//! The bound on space: it holds under steady overwrites, it is reached again after bulk deletes,
//! and both only slow writers down. The numbers are those of issues of other stores' users
//! (facebook/rocksdb, tikv/titan).
//!
//! In these stepped tests background work runs by the clock, so each test decides how far it falls
//! behind.

use super::prelude::*;
use crate::listener::StallCause;
use basalt_env::{Clock, EnvBuilder, JobOwner, JobPriority, ManualClock};
use basalt_fs::FileSystem;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FREE: WriteOptions = WriteOptions::UNSYNCED;
const VALUE: usize = 2000;
/// About the bytes of a record beside its value.
const RECORD: u64 = VALUE as u64 + 50;

fn options(min_blob_size: usize) -> Options {
    Options {
        write_buffer_bytes: 64 << 10,
        default_family: FamilyOptions {
            min_blob_size: Some(min_blob_size),
            table_bytes: 16 << 10,
            base_level_bytes: 64 << 10,
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

/// A store whose background work runs one job in each period of a fixed number of microseconds.
struct Paced {
    env: Env,
    disk: std::sync::Arc<SimFs>,
    manual_clock: std::sync::Arc<ManualClock>,
    db: Db,
    a_job: Duration,
    next: Duration,
    seed: u64,
}

impl Paced {
    fn new(options: Options, a_job_us: u64) -> Paced {
        let disk = SimFs::new(SimOptions::default());
        let manual_clock = ManualClock::new(1_700_000_000_000);
        let env = EnvBuilder::for_tests(disk.clone(), 1)
            .clock(Clock::manual(manual_clock.clone()))
            .build();
        let db = Db::open(&env, "db", options).unwrap();
        let next = env.clock().now();
        Paced {
            env,
            disk,
            manual_clock,
            db,
            a_job: Duration::from_micros(a_job_us),
            next,
            seed: 1,
        }
    }

    fn rng(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) % below
    }

    /// Moves the clock on, and runs the jobs that are due.
    fn pass(&mut self, us: u64) {
        self.manual_clock.advance(Duration::from_micros(us));
        while self.env.clock().now() >= self.next {
            self.env.jobs().step();
            self.next += self.a_job;
        }
    }

    /// Sets a key, and returns how long that took.
    fn put(&mut self, key: u64) -> Duration {
        let before = self.env.clock().now();
        let f = self.db.default_family();
        let value = vec![key as u8; VALUE];
        self.db.put(&f, &key.to_be_bytes(), &value, &FREE).unwrap();
        let took = self.env.clock().now() - before;
        self.pass(50);
        took
    }

    /// Returns the number of blob files on the disk, indexes included, and their bytes. A log
    /// counts from when it is a blob file.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        let dir = std::path::Path::new("db");
        let logs: Vec<String> = self.db.blob_files().into_iter().map(|b| b.name).collect();
        let names = self.disk.list(dir).unwrap().into_iter().map(|e| e.name);
        names
            .filter(|n| n.ends_with(".blob") || n.ends_with(".index") || logs.contains(n))
            .map(|n| dir.join(n))
            .map(|p| {
                let stat = self.disk.stat(&p).unwrap();
                (p, stat.len.min(stat.on_disk))
            })
            .collect()
    }

    fn disk_bytes(&self) -> u64 {
        self.files().iter().map(|f| f.1).sum()
    }

    /// Resets what the store has learned until now.
    fn reopen(&mut self, options: &Options) {
        self.db.clone().close().unwrap();
        self.db = Db::open(&self.env, "db", options.clone()).unwrap();
    }

    fn stall_us(&self, cause: StallCause) -> u64 {
        let stats = self.db.stats();
        stats.stalls.iter().find(|s| s.cause == cause).unwrap().us
    }

    /// Checks that the disk has what the statistics say, and what a scan of the closed store finds.
    fn reconcile(self, options: &Options) {
        self.db.flush().unwrap();
        self.db.wait_idle().unwrap();
        while self.env.jobs().step() {}
        let stats = self.db.stats().blobs;
        // A log keeps whole blocks. The statistics include the bytes of these that are not in
        // records.
        let (counted, there) = (stats.bytes, self.disk_bytes());
        let blocks = stats.files * 3 * 4096;
        assert!(
            counted <= there + blocks && there <= counted + blocks,
            "the statistics have {counted} bytes, the disk has {there}: {stats:?}"
        );
        self.db.close().unwrap();
        let report = Db::verify_store(&self.env, "db", options, &mut |_, _| ()).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        assert!(report.unused_files.is_empty(), "{:?}", report.unused_files);
        let db = Db::open(&self.env, "db", options.clone()).unwrap();
        let again = db.stats().blobs;
        assert_eq!(
            (
                stats.files,
                stats.bytes,
                stats.live_records,
                stats.live_bytes
            ),
            (
                again.files,
                again.bytes,
                again.live_records,
                again.live_bytes
            ),
            "a restart finds no garbage that was not known (titan #330)"
        );
        db.close().unwrap();
    }
}

/// RocksDB issue 9561: the space for overwrites has a strict bound. Writers are slowed for it, and
/// not stopped.
#[test]
fn overwrites_stay_under_the_bound_in_each_sample() {
    let options = options(500);
    // Background work is far too slow for these writers.
    let mut s = Paced::new(options.clone(), 3000);
    const KEYS: u64 = 5000;
    (0..KEYS).for_each(|key| {
        s.put(key);
    });
    let reachable = KEYS * RECORD;
    let bound = (reachable * 5 / 4).max(reachable + options.space_slack());
    let (mut worst, mut longest) = (0, Duration::ZERO);
    for n in 0..5 * KEYS {
        let key = s.rng(KEYS);
        longest = longest.max(s.put(key));
        if n > KEYS {
            worst = worst.max(s.disk_bytes());
            assert!(
                worst <= bound,
                "{worst} bytes after {n} writes, {bound} are allowed: {:?}",
                s.db.stats().blobs
            );
        }
    }
    let blobs = s.db.stats().blobs;
    assert!(
        s.stall_us(StallCause::Space) > 0,
        "no writer was slowed: {blobs:?}"
    );
    // The test would not prove the bound if most of the space were never used.
    assert!(
        worst > reachable + (bound - reachable) / 2,
        "{worst} of {bound}"
    );
    assert!(
        blobs.collections > 20 && blobs.collections_write_amp() > 1.0,
        "{blobs:?}"
    );
    assert!(
        blobs.collections_share() > 0.0 && blobs.collections_share() < 1.0,
        "{blobs:?}"
    );
    assert!(
        longest < Duration::from_secs(1),
        "one write took {longest:?}"
    );
    s.reconcile(&options);
}

/// The reported cost of the bound is that of the present, also for a store without activity.
#[test]
fn an_idle_store_reports_no_recent_write_cost() {
    let mut s = Paced::new(options(500), 3000);
    for _ in 0..20_000 {
        let key = s.rng(5000);
        s.put(key);
    }
    s.db.wait_idle().unwrap();
    let busy = s.db.stats().blobs;
    assert!(busy.recent_collection_bytes_written > 1 << 20, "{busy:?}");
    s.pass(600_000_000);
    let rests = s.db.stats().blobs;
    assert!(rests.recent_seconds >= 60.0, "{rests:?}");
    // Writes that came within one step of the last sample still count.
    assert!(
        rests.recent_bytes_written < busy.recent_bytes_written / 4,
        "{rests:?} after {busy:?}"
    );
}

/// RocksDB issue 11570: values that are only inserted are written to blob files once, and no writer
/// is slowed for them.
#[test]
fn pure_inserts_cause_no_collection() {
    let options = options(500);
    let mut s = Paced::new(options.clone(), 500);
    for n in 0..6000u64 {
        // The keys are spread over the whole key space.
        s.put(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let blobs = s.db.stats().blobs;
    assert_eq!((blobs.collections, blobs.collecting), (0, 0), "{blobs:?}");
    assert_eq!(s.stall_us(StallCause::Space), 0, "{blobs:?}");
    s.db.flush().unwrap();
    s.db.wait_idle().unwrap();
    let blobs = s.db.stats().blobs;
    assert_eq!(blobs.collections, 0);
    assert_eq!(
        blobs.hidden_bytes, 0,
        "merges have found nothing below what they brought down"
    );
    assert_eq!(blobs.live_records, 6000);
    s.reconcile(&options);
}

/// RocksDB issue 9235: one value does not keep a file, nor do many values with one in each file.
#[test]
fn a_single_live_value_does_not_keep_a_file() {
    let options = options(500);
    let mut s = Paced::new(options.clone(), 500);
    const ROUNDS: u64 = 40;
    for round in 0..ROUNDS {
        s.put(1_000_000 + round);
        (0..25).for_each(|key| {
            s.put(key);
        });
        s.db.flush().unwrap();
    }
    s.db.compact_range(&s.db.default_family(), None, None)
        .unwrap();
    s.db.wait_idle().unwrap();
    while s.env.jobs().step() {}
    let blobs = s.db.stats().blobs;
    assert_eq!(blobs.live_records, ROUNDS + 25);
    let reachable = (ROUNDS + 25) * RECORD;
    assert!(
        s.disk_bytes() <= reachable * 5 / 4,
        "{} bytes for {reachable}",
        s.disk_bytes()
    );
    assert!(blobs.files < 25, "{blobs:?}");
    s.reconcile(&options);
}

/// The space of a bulk delete is debt. The debt ends while writers continue, and no writer waits
/// for all of it.
#[test]
fn the_space_debt_of_a_bulk_delete_ends_during_writes() {
    let options = options(500);
    let mut s = Paced::new(options.clone(), 1000);
    const KEYS: u64 = 4000;
    (0..KEYS).for_each(|key| {
        s.put(key);
    });
    let f = s.db.default_family();
    for key in 0..KEYS {
        if key % 8 != 0 {
            s.db.delete(&f, &key.to_be_bytes(), &FREE).unwrap();
            s.pass(5);
        }
    }
    s.db.flush().unwrap();
    let (mut most, mut longest, mut writes) = (0, Duration::ZERO, 0u64);
    let began = s.env.clock().now();
    loop {
        let blobs = s.db.stats().blobs;
        most = most.max(blobs.space_debt);
        if most > 0 && blobs.space_debt == 0 {
            break;
        }
        writes += 1;
        assert!(writes < 20_000, "the debt stays: {blobs:?}");
        let key = s.rng(KEYS / 8) * 8;
        longest = longest.max(s.put(key));
    }
    let took = s.env.clock().now() - began;
    assert!(most > KEYS * RECORD / 2, "{most} bytes of debt");
    assert!(
        longest < Duration::from_millis(100),
        "one write took {longest:?}"
    );
    assert!(writes > 200, "{writes} writes in {took:?}");
    s.reconcile(&options);
}

/// RocksDB issue 11603: compactions that never end do not starve garbage collection.
#[test]
fn endless_compactions_do_not_starve_garbage_collections() {
    fn on_and_on(owner: JobOwner, end: std::sync::Arc<AtomicBool>) {
        if !end.load(Ordering::SeqCst) {
            let again = owner.clone();
            owner.spawn(JobPriority::Compaction, move || on_and_on(again, end));
        }
    }
    let env = EnvBuilder::new(SimFs::new(SimOptions::default()))
        .threads(2)
        .seed(1)
        .build();
    let db = Db::open(&env, "db", options(500)).unwrap();
    let f = db.default_family();
    for n in 0..40u64 {
        db.put(&f, &n.to_be_bytes(), &[1; VALUE], &FREE).unwrap();
    }
    db.flush().unwrap();
    let (owner, end) = (
        env.jobs().new_owner(),
        std::sync::Arc::new(AtomicBool::new(false)),
    );
    for _ in 0..4 {
        on_and_on(owner.clone(), end.clone());
    }
    for n in 0..20u64 {
        db.put(&f, &n.to_be_bytes(), &[2; VALUE], &FREE).unwrap();
    }
    db.flush().unwrap();
    db.compact_range(&f, None, None).unwrap();
    let collected = || db.stats().blobs.collections > 0;
    // The time has no limit: a garbage collection that is starved hangs here.
    env.jobs().wait_until(None, &mut { collected });
    end.store(true, Ordering::SeqCst);
    owner.drain();
    assert!(collected());
    db.close().unwrap();
}

/// A store on a full disk serves reads and deletes, deletes free space, and writes resume without a
/// new open.
#[test]
fn deletes_free_space_on_a_full_disk() {
    let disk = SimFs::new(SimOptions {
        capacity: 6 << 20,
        ..SimOptions::default()
    });
    let manual_clock = ManualClock::new(1_700_000_000_000);
    let env = EnvBuilder::for_tests(disk.clone(), 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    for min_blob_size in [Some(500), None] {
        let mut options = options(500);
        options.default_family.min_blob_size = min_blob_size;
        let reserve = options.disk_reserve(6 << 20);
        assert_eq!(reserve, 384 << 10);
        let dir = format!("db{min_blob_size:?}");
        let db = Db::open(&env, &dir, options.clone()).unwrap();
        let f = db.default_family();
        let mut there = 0u64;
        for round in 0..3 {
            let full = loop {
                match db.put(&f, &there.to_be_bytes(), &[7; VALUE], &FREE) {
                    Ok(_) => there += 1,
                    Err(e) => break e,
                }
                assert!(there < 10_000, "a disk of 6 MiB never fills");
                env.jobs().step();
            };
            assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
            assert!(
                full.retryable() && full.to_string().contains("delete keys"),
                "{full}"
            );
            assert!(there > 1500, "{there} values in round {round}");
            assert!(
                db.stats()
                    .read_only
                    .is_some_and(|why| why.to_string().contains("393216"))
            );
            assert!(db.stats().memtable_bytes > 0, "not all is flushed yet");
            let read = ReadOptions::default();
            assert!(db.get(&f, &0u64.to_be_bytes(), &read).unwrap().is_some());
            // Deletes may use space that values may not use.
            for key in 0..there {
                if key % 4 != 0 || round == 2 {
                    db.delete(&f, &key.to_be_bytes(), &FREE).unwrap();
                    env.jobs().step();
                }
            }
            let mut tries = 0;
            while db.put(&f, b"again", &[8; VALUE], &FREE).is_err() {
                manual_clock.advance(Duration::from_secs(2));
                while env.jobs().step() {}
                tries += 1;
                assert!(tries < 10, "{:?}", db.stats());
            }
            assert!(db.stats().read_only.is_none());
            // One more round over the remaining keys, which are a quarter.
            db.delete_range(&f, &[0; 8], &there.to_be_bytes(), &FREE)
                .unwrap();
            db.flush().unwrap();
            db.wait_idle().unwrap();
            there = 0;
        }
        let whole = db.compact_range(&f, None, None);
        whole.unwrap();
        db.wait_idle().unwrap();
        db.close().unwrap();
        let report = Db::verify_store(&env, &dir, &options, &mut |_, _| ()).unwrap();
        assert!(
            report.damage.is_empty() && report.unused_files.is_empty(),
            "{report:?}"
        );
    }
}

/// Titan issue 330: a file whose removal fails is removed before the next open.
#[test]
fn a_failed_file_removal_is_retried() {
    let disk = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(disk.clone(), 1);
    let manual_clock = ManualClock::new(1_700_000_000_000);
    let env = EnvBuilder::for_tests(faults.clone(), 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    let options = options(500);
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    for kind in [".blob", ".tbl", ".log"] {
        faults.inject(Fault {
            op: Some(OpKind::Remove),
            path: kind.to_string(),
            when: When::From(1),
            kind: FaultKind::Eio,
        });
    }
    for _ in 0..3 {
        for key in 0..100u64 {
            db.put(&f, &key.to_be_bytes(), &[3; VALUE], &FREE).unwrap();
        }
        db.flush().unwrap();
        db.compact_range(&f, None, None).unwrap();
    }
    db.wait_idle().unwrap();
    while env.jobs().step() {}
    let left = db.stats().unremoved_files;
    assert!(left >= 3, "{left} files");
    manual_clock.advance(Duration::from_secs(2));
    while env.jobs().step() {}
    assert!(db.stats().unremoved_files > 0, "each attempt fails");
    faults.clear();
    manual_clock.advance(Duration::from_secs(600));
    while env.jobs().step() {}
    let stats = db.stats();
    assert_eq!(stats.unremoved_files, 0);
    let names = disk.list(std::path::Path::new("db")).unwrap();
    let count = |end: &str| names.iter().filter(|e| e.name.ends_with(end)).count() as u64;
    // The index of a former log is a file of its own.
    let files = db.blob_files();
    let logs = files.iter().filter(|b| b.meta.index.is_some()).count() as u64;
    assert_eq!(
        (count(".blob"), count(".index"), count(".tbl")),
        (stats.blobs.files - logs, logs, stats.table_files)
    );
    db.close().unwrap();
    let report = Db::verify_store(&env, "db", &options, &mut |_, _| ()).unwrap();
    assert!(
        report.damage.is_empty() && report.unused_files.is_empty(),
        "{report:?}"
    );
}

/// Measures the cost of the bound: bytes that garbage collection writes for each written byte.
/// Background work keeps up here.
fn cost(amp: f64, draw: &mut dyn FnMut(&mut Paced) -> u64, keys: u64, writes: u64) -> f64 {
    let options = Options {
        max_space_amp: amp,
        ..options(500)
    };
    let mut s = Paced::new(options, 60);
    (0..keys).for_each(|key| {
        s.put(key);
    });
    let mut before = s.db.stats().blobs;
    for n in 0..writes {
        if n == writes / 2 {
            before = s.db.stats().blobs;
        }
        let key = draw(&mut s);
        s.put(key);
    }
    let after = s.db.stats().blobs;
    let collected = after.collected_bytes_written - before.collected_bytes_written;
    let cost = 1.0 + collected as f64 / ((writes / 2) as f64 * RECORD as f64);
    s.db.close().unwrap();
    cost
}

#[test]
fn the_space_bound_costs_as_much_as_greedy_collections() {
    const KEYS: u64 = 4000;
    let uniform = cost(1.25, &mut |s| s.rng(KEYS), KEYS, 24_000);
    // A tenth of the keys gets nine tenths of the writes.
    let skewed = |s: &mut Paced| match s.rng(10) {
        0 => s.rng(KEYS),
        _ => s.rng(KEYS / 10) * 10,
    };
    let skewed = cost(1.25, &mut { skewed }, KEYS, 24_000);
    basalt_sim::campaign!("write_amplification_at_1.25 uniform={uniform:.2} skewed={skewed:.2}");
    assert!(
        uniform < 3.8 && skewed < 3.2,
        "{uniform:.2} for uniform overwrites, {skewed:.2} for skewed ones"
    );
}

/// Level 0 keeps its tables until their entries hide enough: here a merge would rewrite more bytes
/// than it frees.
fn lazy() -> Options {
    let mut options = options(100);
    options.default_family.l0_compaction_trigger = 1000;
    options.default_family.l0_slowdown = 2000;
    options.default_family.base_level_bytes = 64 << 20;
    options
}

/// No writer is slowed for garbage that no work removes. Hidden garbage is exposed before the bound
/// is reached, whatever the merges rewrite.
#[test]
fn expensive_hidden_garbage_does_not_hold_writers_forever() {
    let options = lazy();
    let mut s = Paced::new(options.clone(), 500);
    let f = s.db.default_family();
    let mut values = BTreeMap::new();
    let put = |s: &mut Paced, n: u64| {
        // The keys are longer than the values, which do not compress.
        let mut key = Vec::new();
        (0..30).for_each(|i: u64| {
            key.extend(
                (n * 31 + i)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .to_be_bytes(),
            )
        });
        let value = vec![n as u8; 120];
        s.db.put(&f, &key, &value, &FREE).unwrap();
        s.pass(50);
        key
    };
    const KEYS: u64 = 4000;
    for n in 0..KEYS {
        values.insert(put(&mut s, n), n);
    }
    // Merges show that references hide older ones ...
    for _ in 0..3 {
        for n in 0..100 {
            put(&mut s, n);
        }
        s.db.compact_range(&f, None, None).unwrap();
    }
    // ... and then no merge runs.
    for n in 0..KEYS / 2 {
        put(&mut s, n * 2);
    }
    s.db.flush().unwrap();
    s.db.wait_idle().unwrap();
    let blobs = s.db.stats().blobs;
    assert_eq!((blobs.pressure, blobs.space_debt), (0.0, 0), "{blobs:?}");
    assert!(blobs.collections > 0, "{blobs:?}");
    assert!(blobs.hidden_bytes < options.space_slack() / 2, "{blobs:?}");
    s.reconcile(&options);
}

/// A load between the keys of older values holds writers back until one merge has shown that it
/// hides none of them, and not after that.
#[test]
fn an_ingestion_is_counted_as_garbage_until_one_merge_only() {
    let options = options(500);
    const A_JOB: u64 = 500;
    let mut s = Paced::new(options.clone(), A_JOB);
    const KEYS: u64 = 4000;
    for n in 0..KEYS {
        s.put(n * 3);
    }
    s.db.flush().unwrap();
    s.db.wait_idle().unwrap();
    s.reopen(&options);
    let f = s.db.default_family();
    for load in 1..3 {
        let mut writer = s.db.prepare(&f).unwrap();
        for n in 0..KEYS {
            let value = vec![n as u8; VALUE];
            writer.add(&(n * 3 + load).to_be_bytes(), &value).unwrap();
        }
        s.db.ingest(&[writer.finish().unwrap()]).unwrap();
        let blobs = s.db.stats().blobs;
        match load {
            1 => assert!(
                blobs.hidden_is_guessed && blobs.hidden_bytes > 4 * options.space_slack(),
                "{blobs:?}"
            ),
            _ => assert_eq!((blobs.hidden_bytes, blobs.pressure), (0, 0.0), "{blobs:?}"),
        }
        for n in 0..1000 {
            s.put((3 + load) * KEYS + n);
        }
        let blobs = s.db.stats().blobs;
        assert!(!blobs.hidden_is_guessed, "{blobs:?}");
        assert_eq!((blobs.hidden_bytes, blobs.pressure), (0, 0.0), "{blobs:?}");
        let stalled = s.stall_us(StallCause::Space);
        assert!(stalled < 10 * A_JOB, "{stalled} us: {blobs:?}");
    }
    s.reconcile(&options);
}

/// A file with more live values than a garbage collection may take into memory is collected all the
/// same. The rest is read a second time.
#[test]
fn a_garbage_collection_without_memory_reads_values_twice() {
    let mut options = options(500);
    options.write_buffer_bytes = 16 << 10;
    let s = Paced::new(options.clone(), 500);
    let f = s.db.default_family();
    const LARGE: usize = 100_000;
    let value = |n: u64, round: u8| {
        let mut v = vec![round; LARGE];
        v[..8].copy_from_slice(&n.to_be_bytes());
        v
    };
    // Key 30 * n + m is in the n-th log.
    for n in 0..8u64 {
        let mut batch = WriteBatch::new();
        for m in 0..3 {
            let key = 30 * (2 - m) + n;
            batch.put(&f, &key.to_be_bytes(), &value(key, 1)).unwrap();
        }
        s.db.write(batch, &FREE).unwrap();
        s.db.flush().unwrap();
    }
    for n in 0..8u64 {
        s.db.put(&f, &n.to_be_bytes(), b"small now", &FREE).unwrap();
    }
    s.db.flush().unwrap();
    s.db.compact_range(&f, None, None).unwrap();
    s.db.wait_idle().unwrap();
    let blobs = s.db.stats().blobs;
    let (read, written) = (blobs.collected_bytes_read, blobs.collected_bytes_written);
    assert!(blobs.collections > 0, "{blobs:?}");
    assert!(
        read >= 2 * (written - written / 20),
        "{read} read for {written} written"
    );
    for n in 0..8u64 {
        for m in 1..3 {
            let key = 30 * m + n;
            let found = s.db.get(&f, &key.to_be_bytes(), &ReadOptions::default());
            assert_eq!(found.unwrap().as_deref(), Some(&value(key, 1)[..]));
        }
    }
    s.reconcile(&options);
}

/// On a full disk garbage collections leave half of the reserve to flushes and merges, however many
/// run.
#[test]
fn garbage_collections_leave_half_of_the_disk_reserve() {
    // Files that are larger than the spare space, and many small files that one garbage collection
    // could take.
    full_disk(55_000, 1.25);
    full_disk(14_000, 3.0);
}

fn full_disk(value: usize, max_space_amp: f64) {
    const CAPACITY: u64 = 6 << 20;
    let disk = SimFs::new(SimOptions {
        capacity: CAPACITY,
        ..SimOptions::default()
    });
    let manual_clock = ManualClock::new(1_700_000_000_000);
    let env = EnvBuilder::for_tests(disk, 1)
        .clock(Clock::manual(manual_clock.clone()))
        .build();
    let options = Options {
        max_space_amp,
        ..options(500)
    };
    let reserve = options.disk_reserve(CAPACITY);
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    // Each log becomes a blob file with a quarter of garbage.
    let mut there = 0u64;
    loop {
        let mut batch = WriteBatch::new();
        for n in 0..4 {
            let key = (there * 4 + n).to_be_bytes();
            batch.put(&f, &key, &vec![7; value]).unwrap();
        }
        if db.write(batch, &FREE).is_err() {
            break;
        }
        there += 1;
        while env.jobs().step() {}
    }
    for n in 0..there {
        // If the disk is too full even for the small files, flushes free space.
        while db.delete(&f, &(4 * n).to_be_bytes(), &FREE).is_err() {
            manual_clock.advance(Duration::from_secs(2));
            assert!(env.jobs().step(), "nothing makes room");
        }
    }
    let engine = &db.engine();
    let mut seen = 0;
    while engine.pressure.disk_full().is_refusing() {
        manual_clock.advance(Duration::from_millis(500));
        let fill = {
            let state = engine.tree.lock();
            engine
                .pressure
                .fill(state.catalog(), &state.blobs, &engine.tree.view())
        };
        let free = env.fs().space(std::path::Path::new("db")).unwrap().free;
        if fill.copying > 0 {
            seen += 1;
            // A single garbage collection may take more space if no other work is left.
            let alone = engine.tree.lock().blobs.collecting.len() == 1;
            let spare = match alone {
                true => free / 8 * 7,
                false => free.saturating_sub(reserve / 2).max(free / 4),
            };
            assert!(
                fill.copying <= spare + reserve / 16,
                "{} bytes are to be written with {free} free",
                fill.copying
            );
        }
        env.jobs().step();
    }
    assert!(seen > 3, "{seen} moments with garbage collections");
    db.put(&f, b"again", &[8; VALUE], &FREE).unwrap();
    db.close().unwrap();
}

/// If the filesystem cannot give back a part of a file, values are written out from then on: a log
/// would keep space that is in no account.
#[test]
fn logs_that_cannot_be_trimmed_are_not_kept() {
    let disk = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(disk.clone(), 1);
    let env = EnvBuilder::for_tests(faults.clone(), 1).build();
    faults.inject(Fault {
        op: Some(OpKind::ReleaseRange),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Unsupported,
    });
    let options = Options {
        write_buffer_bytes: 1 << 20,
        ..options(10_000)
    };
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    let mut kept = Vec::new();
    for round in 0..4u64 {
        for n in 0..20u64 {
            let key = (round * 100 + n).to_be_bytes();
            let mut batch = WriteBatch::new();
            batch.put(&f, &key, &[1; 20_000]).unwrap();
            // The last round has only large values.
            for m in (0..20u64).filter(|_| round < 3) {
                let key = (1000 + n * 20 + m).to_be_bytes();
                batch.put(&f, &key, &[2; 1000]).unwrap();
            }
            db.write(batch, &FREE).unwrap();
        }
        db.flush().unwrap();
        let files = db.blob_files();
        kept.push(files.iter().filter(|b| b.meta.index.is_some()).count());
    }
    assert_eq!(
        kept,
        [1, 1, 1, 1],
        "logs that are blob files after each round"
    );
    db.close().unwrap();
}
