//! Checkpoints and stores that are only read. A power cut at any change that a checkpoint makes to
//! the disk does not harm the store. Once the copy has its name, it does not harm the copy either.
//! Copies made beside writers show one moment. Reading changes nothing.

use crate::history::{End, FAMILIES, Shape, history, options};
use crate::model::{Model, difference, digest, visible};
use crate::rng::{Rng, numbers_of, on_two_threads, scale};
use crate::runner::{DIR, Progress, Runner, START_MS, environment, read_all, sim_disk};
use basalt_env::Env;
use basalt_fs::FileSystem;
use basalt_lsm::db::{CheckpointOptions, Iter};
use basalt_lsm::{Db, ErrorKind, FamilyOptions, Options, ReadOptions, WriteBatch, WriteOptions};
use basalt_sim::{CrashPolicy, SimFs, SimOptions, SimSnapshot, repeat};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A moment inside a checkpoint, or just after it.
struct CrashPoint {
    disk: SimSnapshot,
    target: String,
    /// Number of commits that the store must show, that the copy must show, and that either may
    /// show.
    durable: usize,
    acknowledged: usize,
    handed_in: usize,
    wall_ms: u64,
    returned: bool,
}

#[derive(Default)]
struct Tally {
    states: u64,
    checkpoints: u64,
    /// Number of states in which the copy has its name, and in which only the unfinished copy
    /// exists.
    whole: u64,
    unfinished: u64,
    with_logs: u64,
    /// Number of stores opened for reading beside.
    read: u64,
}

const SHAPE: Shape = Shape {
    ops: 70,
    keys: 30,
    coarse_time: false,
    no_tickets: false,
};

/// Returns the contents that a store shows, opened for writing or for reading.
fn shown(disk: &Arc<SimFs>, dir: &str, m: &CrashPoint, rng: u64, reading: bool) -> (Db, u64) {
    let fs: Arc<dyn FileSystem> = disk.clone();
    let (env, _) = environment(&fs, crate::rng::mix(rng), m.wall_ms);
    let options = options(rng % 7);
    let db = match reading {
        true => Db::open_read_only(&env, dir, options),
        false => Db::open(&env, dir, options),
    };
    let db = db.unwrap_or_else(|e| panic!("opening {dir} after {:?}: {e}", m.disk));
    let all = read_all(&db).unwrap_or_else(|e| panic!("reading {dir}: {e}"));
    (db, digest(&all))
}

fn prefix(model: &Model, db: &Db, shown: u64, from: usize, m: &CrashPoint, what: &str) {
    let now = db.env().clock().wall_ms();
    let fits = (from..=m.handed_in.min(model.len())).any(|n| model.mark(n).digest(now) == shown);
    if !fits {
        let have = read_all(db).expect("it was read before");
        let want = visible(&model.state_at(from), now);
        panic!(
            "{what} after {:?} is no prefix of {from} to {} commits:\n  {}",
            m.disk,
            m.handed_in,
            difference(&want, &have)
        );
    }
}

/// Reads a crashed store without changing it, and expects the same contents as from opening it for
/// writing.
fn check_reading(disk: &Arc<SimFs>, dir: &str, m: &CrashPoint, rng: u64) -> u64 {
    let changes = Arc::new(AtomicU64::new(0));
    let counted = changes.clone();
    disk.on_mutation(move |_| {
        counted.fetch_add(1, SeqCst);
    });
    let (db, seen) = shown(disk, dir, m, rng, true);
    let family = db.default_family();
    let refused = db.put(&family, b"k", b"v", &WriteOptions::SYNC);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
    let writer = Db::open(db.env(), dir, options(0));
    assert_eq!(writer.err().map(|e| e.kind()), Some(ErrorKind::Busy));
    db.close().expect("nothing to do");
    assert_eq!(changes.load(SeqCst), 0, "reading {dir} changed the disk");
    disk.on_mutation(|_| ());
    seen
}

fn check(model: &Model, m: &CrashPoint, policy: CrashPolicy, rng: u64, tally: &mut Tally) {
    let disk = m.disk.crash(policy, rng);
    let target = Path::new(&m.target);
    let there = disk.exists(target).expect("stat");
    assert!(there || !m.returned, "a checkpoint that returned is gone");
    tally.states += 1;
    tally.whole += u64::from(there);
    let names = |disk: &SimFs| -> Vec<String> {
        let entries = disk.list(Path::new("")).expect("list");
        entries.into_iter().map(|e| e.name).collect()
    };
    let building = format!("{}.checkpoint-unfinished", m.target);
    tally.unfinished += u64::from(names(&disk).contains(&building));
    let read = check_reading(&disk, DIR, m, rng);
    tally.read += 1;
    let (db, seen) = shown(&disk, DIR, m, rng ^ 1, false);
    assert_eq!(read, seen, "read only, and opened for writing");
    prefix(model, &db, seen, m.durable, m, "the store");
    if there {
        let report = Db::verify_store(db.env(), target, &options(0), &mut |_, _| ())
            .expect("a copy can be walked");
        assert!(
            report.damage.is_empty() && report.unused_files.is_empty(),
            "{report:?}"
        );
        // A manifest's length is a hint after a crash; `CURRENT` guarantees all contents that
        // count. Logs were copied whole.
        let logs_are_whole = report.torn_tails.iter().all(|t| t.contains("MANIFEST"));
        assert!(logs_are_whole, "{report:?}");
        let logs = disk.list(target).expect("list");
        tally.with_logs += u64::from(logs.iter().any(|e| e.name.ends_with(".log")));
        assert_eq!(check_reading(&disk, &m.target, m, rng ^ 2), {
            let (copy, seen) = shown(&disk, &m.target, m, rng ^ 3, false);
            prefix(model, &copy, seen, m.acknowledged, m, "the copy");
            // The copy is a store of its own: it takes writes, and the other store stays the same.
            let family = copy.default_family();
            copy.put(&family, b"only here", b"v", &WriteOptions::SYNC)
                .expect("a put into the copy");
            copy.compact_range(&family, None, None)
                .expect("compacting the copy");
            copy.close().expect("closing the copy");
            seen
        });
        let again = db.checkpoint(target, &CheckpointOptions::default());
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    } else {
        // The rest of an unfinished checkpoint blocks no later one.
        db.checkpoint(target, &CheckpointOptions::default())
            .unwrap_or_else(|e| panic!("once more after {:?}: {e}", m.disk));
        assert!(!names(&disk).contains(&building));
        let (copy, again) = shown(&disk, &m.target, m, rng ^ 4, true);
        assert_eq!(again, seen);
        copy.close().expect("closing the copy");
    }
    let all = read_all(&db).expect("reading the store at last");
    assert_eq!(digest(&all), seen, "the copy's life has changed the store");
    db.close().expect("closing the store");
}

fn campaign(seed: u64) -> Tally {
    let mut tally = Tally::default();
    let mut c = Rng::of(&[seed, 9]);
    let disk = sim_disk(seed, if seed % 4 == 3 { 4096 } else { 512 }, 1 << 40);
    let progress = Arc::new(Progress::default());
    progress.wall_ms.store(START_MS, SeqCst);
    let snapshots = Arc::new(Mutex::new(Vec::new()));
    let (inside, sink, watched) = (
        Arc::new(AtomicBool::new(false)),
        snapshots.clone(),
        progress.clone(),
    );
    let recording = inside.clone();
    disk.on_mutation(move |snapshot| {
        if recording.load(SeqCst) {
            let durable = watched.durable.load(SeqCst) as usize;
            sink.lock().expect("one thread").push((snapshot, durable));
        }
    });
    let mut runner = Runner::watched(disk.clone(), seed, seed, progress.clone());
    let mut crash_points: Vec<CrashPoint> = Vec::new();
    for (i, op) in history(seed, SHAPE).iter().enumerate() {
        runner.run(op);
        if i % 9 != 8 {
            continue;
        }
        let Some(db) = runner.db.clone() else {
            continue;
        };
        let target = format!("copy{i}");
        let acknowledged = runner.model.len();
        let options = CheckpointOptions::default()
            .flush_above_bytes(c.pick(&[0, 2048, 1 << 20]))
            .copy_tables(c.percent(50));
        inside.store(true, SeqCst);
        let report = db
            .checkpoint(&target, &options)
            .unwrap_or_else(|e| panic!("a checkpoint: {e}"));
        inside.store(false, SeqCst);
        assert_eq!(report.copied_bytes, 0, "links are possible here");
        tally.checkpoints += 1;
        drop(db);
        // Commits that the checkpoint made durable, or found committed, are in the copy.
        let of = |(disk, durable): (SimSnapshot, usize)| CrashPoint {
            disk,
            target: target.clone(),
            durable,
            acknowledged,
            handed_in: progress.handed_in.load(SeqCst) as usize,
            wall_ms: progress.wall_ms.load(SeqCst),
            returned: false,
        };
        let taken = std::mem::take(&mut *snapshots.lock().expect("one thread"));
        crash_points.extend(taken.into_iter().map(of));
        crash_points
            .last_mut()
            .expect("it changes the disk")
            .returned = true;
    }
    runner.wait_for_tickets();
    runner.end(End::Close);
    let model = runner.model.clone();
    runner.drop_process();
    drop(runner);
    disk.on_mutation(|_| ());
    let all = CrashPolicy::ALL.len() as u64;
    for (i, m) in crash_points.iter().enumerate() {
        let rng = c.below(1 << 32);
        let policy = (i as u64 * 3 + seed) % all;
        let _repeat = repeat!(
            a_power_cut_in_a_checkpoint_leaves_a_whole_one_or_none,
            "BASALT_CHECKPOINT={seed}"
        );
        check(
            &model,
            m,
            CrashPolicy::ALL[policy as usize],
            rng,
            &mut tally,
        );
    }
    tally
}

#[test]
fn a_power_cut_in_a_checkpoint_leaves_a_whole_one_or_none() {
    if let Some(numbers) = numbers_of("BASALT_CHECKPOINT") {
        campaign(numbers[0]);
        return;
    }
    let mut all = Tally::default();
    for t in on_two_threads(12 * scale(), campaign) {
        all.states += t.states;
        all.checkpoints += t.checkpoints;
        all.whole += t.whole;
        all.unfinished += t.unfinished;
        all.with_logs += t.with_logs;
        all.read += t.read;
    }
    basalt_sim::campaign!(
        "checkpoint_crash_states={} checkpoints={} whole={} unfinished={} with_logs={} opened_read_only={}",
        all.states,
        all.checkpoints,
        all.whole,
        all.unfinished,
        all.with_logs,
        all.read
    );
    assert!(all.states >= scale().floor(500) && all.checkpoints >= scale().floor(40));
    assert!(all.whole > all.checkpoints && all.unfinished > all.states / 4);
    assert!(all.with_logs > scale().floor(10));
}

/// Returns a number that two families hold, written to both at once.
fn number(db: &Db, name: &str) -> u64 {
    let family = db.family(name).expect("it was made");
    let value = db
        .get(&family, b"n", &ReadOptions::default())
        .expect("a read");
    value.map_or(0, |v| {
        u64::from_le_bytes((&v[..]).try_into().expect("8 bytes"))
    })
}

/// Ends the writer also if a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Writers, flushes and compactions go on while checkpoints are made. Each checkpoint shows one
/// number in both families, and every number's own key up to it. The number is at least the one
/// acknowledged when the checkpoint began, and at most the one submitted when it ended.
#[test]
fn checkpoints_during_writes_are_consistent() {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::builder(disk).threads(3).build();
    let small = Options::default()
        .write_buffer_bytes(16 << 10)
        .default_family(
            FamilyOptions::default()
                .table_bytes(8 << 10)
                .base_level_bytes(32 << 10),
        );
    let db = Db::open(&env, "db", small.clone()).unwrap();
    let other = db
        .create_family(FAMILIES[1], small.default_family.clone())
        .unwrap();
    let (acknowledged, handed_in, stop) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    basalt_env::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            let f = db.default_family();
            for n in 1.. {
                let mut batch = WriteBatch::new();
                for family in [&f, &other] {
                    batch.put(family, b"n", &u64::to_le_bytes(n)).unwrap();
                }
                batch
                    .put(&f, format!("key{n:08}").as_bytes(), &[1; 60])
                    .unwrap();
                handed_in.store(n, SeqCst);
                db.write(batch, &WriteOptions::synced(n % 64 == 0)).unwrap();
                acknowledged.store(n, SeqCst);
                if stop.load(SeqCst) {
                    return;
                }
            }
        });
        let _stop = Stop(&stop);
        let mut logs = 0;
        for i in 0..25 * scale() {
            let target = format!("copy{i}");
            // The writer gets a turn between two checkpoints. Otherwise, with few processors, all
            // logs may be empty each time.
            let seen = acknowledged.load(SeqCst);
            while acknowledged.load(SeqCst) < seen + 3 && !writer.is_finished() {
                std::thread::yield_now();
            }
            let least = acknowledged.load(SeqCst);
            let options = CheckpointOptions::default()
                .flush_above_bytes([0, 8 << 10, 1 << 20][i as usize % 3]);
            let made = db.checkpoint(&target, &options).unwrap();
            let most = handed_in.load(SeqCst);
            logs += u64::from(made.log_bytes > 0);
            let copy = match i % 2 {
                0 => Db::open(&env, &target, small.clone()),
                _ => Db::open_read_only(&env, &target, small.clone()),
            };
            let copy = copy.unwrap();
            let n = number(&copy, "default");
            assert_eq!(n, number(&copy, FAMILIES[1]), "a batch is there whole");
            assert!((least..=most).contains(&n), "{least} <= {n} <= {most}");
            let mut iter: Iter = copy
                .iter(&copy.default_family(), &ReadOptions::default())
                .unwrap();
            iter.seek(b"key").unwrap();
            let mut keys = 0;
            while iter.valid() && iter.key().starts_with(b"key") {
                keys += 1;
                iter.next().unwrap();
            }
            assert_eq!(keys, n, "every number up to it");
            drop(iter);
            copy.close().unwrap();
        }
        assert!(logs > 0, "some are made with logs");
    });
    db.close().unwrap();
}

/// Where tables cannot be linked, a checkpoint is refused with a remedy, or copies and verifies
/// them. Either way no unfinished copy stays.
#[test]
fn without_links_a_checkpoint_copies_or_is_refused() {
    use basalt_sim::fault::{Fault, FaultFs, FaultKind};
    use basalt_sim::{OpKind, When};
    let sim = SimFs::new(SimOptions::default());
    let faults = FaultFs::new(sim, 1);
    let env = Env::for_tests(faults.clone(), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    db.put(&f, b"k", &[1; 5000], &WriteOptions::SYNC).unwrap();
    db.flush().unwrap();
    db.put(&f, b"l", b"in the log", &WriteOptions::UNSYNCED)
        .unwrap();
    let broken = faults.inject(Fault {
        op: Some(OpKind::Link),
        path: String::new(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    // An error of the device must not be taken for another filesystem.
    let options = CheckpointOptions::default().copy_tables(true);
    let failed = db.checkpoint("copy", &options).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    let _ = broken;
    let names = |db: &Db| -> Vec<String> {
        let entries = db.env().fs().list(Path::new("")).unwrap();
        entries.into_iter().map(|e| e.name).collect()
    };
    assert_eq!(names(&db), ["db"], "nothing is left");
    let none = db.checkpoint("no/copy", &options).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound, "{none}");
    let itself = db.checkpoint("db", &options).unwrap_err();
    assert_eq!(itself.kind(), ErrorKind::AlreadyExists, "{itself}");
    let made = db.checkpoint("copy", &options).unwrap();
    assert_eq!(made.tables, 1);
    assert!(made.linked_bytes > 0 && made.log_bytes > 0);
    db.close().unwrap();
}
