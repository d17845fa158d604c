//! A full disk: records can be removed, with the reserve of the store, and the space comes back.
//! What fails takes no space.

use super::*;
use basalt_env::sync::Mutex;
use basalt_sim::{CrashPolicy, SimSnapshot};
use std::io::IoSlice;

/// Bytes of the disk, the least on which LavaFS has room.
const CAPACITY: u64 = 4 << 20;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Crash states at `BASALT_SCALE=1`.
const LEAST_STATES: u64 = 600;

fn small_disk(seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        seed,
        capacity: CAPACITY,
        ..SimOptions::default()
    })
}

/// Some hundred files of the datalog fill the disk.
fn options() -> LogEngineOptions {
    LogEngineOptions::default().file_bytes(32 << 10)
}

fn open(fs: &Arc<SimFs>) -> Result<LogEngine> {
    LogEngine::open(&env(fs), DIR, options())
}

fn free(fs: &Arc<SimFs>) -> u64 {
    fs.space(Path::new("")).unwrap().free
}

/// Bytes of the appends of another program.
const FOREIGN: [usize; 3] = [64 << 10, 16 << 10, 4 << 10];

/// Takes the space that is left on the disk, as another program does.
fn take_all_space(fs: &Arc<SimFs>) {
    // A file that found no space takes no further append, so a smaller one has another file.
    for len in FOREIGN {
        let path = Path::new("").join(format!("foreign-{len}"));
        let appended: Result<()> = fs.create(&path).and_then(|file| {
            loop {
                let bytes = vec![1; len];
                file.append(&[IoSlice::new(&bytes)], basalt_fs::Intent::Lazy)?;
                file.sync_data()?;
            }
        });
        let e = appended.expect_err("the disk is full");
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    }
}

/// Gives back what [`take_all_space`] took.
fn give_back_space(fs: &Arc<SimFs>) {
    for len in FOREIGN {
        let _ = fs.remove(Path::new(&format!("foreign-{len}")));
    }
}

fn file_names(fs: &Arc<SimFs>) -> Vec<String> {
    let names = fs.list(Path::new(DIR)).unwrap();
    names.into_iter().map(|e| e.name).collect()
}

/// The records that must be in the logs, and how the logs are used.
#[derive(Clone, Default)]
struct Filled {
    /// The LSNs of each log.
    lsns: BTreeMap<&'static str, Vec<u64>>,
    next: u64,
}

fn record(lsn: u64) -> Vec<u8> {
    vec![lsn as u8; 200 + (lsn % 7 * 400) as usize]
}

impl Filled {
    fn new() -> Filled {
        Filled {
            lsns: NAMES.iter().map(|name| (*name, Vec::new())).collect(),
            next: 1,
        }
    }

    /// Appends to the logs by turns until the disk is full.
    fn fill(&mut self, engine: &LogEngine) {
        loop {
            let name = NAMES[self.next as usize % NAMES.len()];
            let log = engine.open_or_create(name, LogOptions::default());
            let options = WriteOptions::synced(!self.next.is_multiple_of(3));
            let done = log.and_then(|log| log.append(self.next, &record(self.next), &options));
            while engine.engine().env.jobs().step() {}
            match done {
                Ok(()) => self.lsns.get_mut(name).unwrap().push(self.next),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                    return;
                }
            }
            self.next += 1;
        }
    }

    fn check(&self, engine: &LogEngine, say: &str) {
        for (name, lsns) in &self.lsns {
            let Ok(log) = engine.log(name) else {
                assert!(lsns.is_empty(), "{say}: log {name} is gone");
                continue;
            };
            let found: Vec<u64> = log
                .iter(0)
                .map(|item| {
                    let (lsn, data) = item.unwrap_or_else(|e| panic!("{say}: {e}"));
                    assert_eq!(data.to_vec(), record(lsn), "{say}");
                    lsn
                })
                .collect();
            assert_eq!(&found, lsns, "{say}: log {name}");
        }
    }

    /// Removes all records but the newest ones, in another way for each log.
    fn make_room(&mut self, engine: &LogEngine, say: &str) {
        let trim = |name: &str, up_to: u64| {
            let log = engine.log(name).unwrap();
            log.trim(up_to, SYNC)
                .unwrap_or_else(|e| panic!("{say}, trim of {name}: {e}"));
        };
        let up_to = self.next.saturating_sub(10);
        trim("a", up_to);
        engine
            .delete("b")
            .unwrap_or_else(|e| panic!("{say}, deletion: {e}"));
        let log = engine.log("c").unwrap();
        log.truncate_suffix(up_to)
            .unwrap_or_else(|e| panic!("{say}, truncation: {e}"));
        trim("c", up_to - 5);
        self.lsns.get_mut("a").unwrap().retain(|lsn| *lsn > up_to);
        self.lsns.get_mut("b").unwrap().clear();
        let c = self.lsns.get_mut("c").unwrap();
        c.retain(|lsn| *lsn < up_to && *lsn > up_to - 5);
    }
}

/// A user can make room on a full disk: `basalt log trim`, `truncate` and `rm` succeed, because an
/// open begins no file.
#[test]
fn a_full_disk_is_trimmed_again_and_again() {
    let mut fs = small_disk(1);
    let mut filled = Filled::new();
    // Without a seed of its own, a process would give its files the ids of an earlier one's.
    let mut seed = 0;
    let mut open = |fs: &Arc<SimFs>| {
        seed += 1;
        LogEngine::open(&Env::for_tests(fs.clone(), seed), DIR, options())
    };
    let rounds = 20 * basalt_sim::campaign::scale();
    for round in 0..rounds {
        let say = format!("round {round}");
        let engine = open(&fs).unwrap_or_else(|e| panic!("{say}: {e}"));
        let before = filled.next;
        filled.fill(&engine);
        assert!(
            filled.next > before + 500,
            "{say}: only {} records",
            filled.next - before
        );
        match round % 2 {
            0 => engine.close().unwrap_or_else(|e| panic!("{say}: {e}")),
            _ => {
                engine.engine().cut_power();
                fs = fs.kill();
            }
        }
        // Its handles keep the space of removed files.
        drop(engine);
        if round % 4 < 2 {
            take_all_space(&fs);
        }
        let full = free(&fs);
        let engine = open(&fs).unwrap_or_else(|e| panic!("{say}, full: {e}"));
        filled.check(&engine, &say);
        filled.make_room(&engine, &say);
        filled.check(&engine, &say);
        engine.close().unwrap_or_else(|e| panic!("{say}: {e}"));
        drop(engine);
        give_back_space(&fs);
        fs.sync_metadata(Path::new("")).unwrap();
        let now = free(&fs);
        assert!(
            now > full + CAPACITY / 2,
            "{say}: {full} bytes were free, and then {now}"
        );
    }
}

/// A process was killed between a trim and the removal of the files. The next process removes them.
#[test]
fn files_that_a_killed_process_has_emptied_are_removed() {
    let fs = small_disk(7);
    let engine = open(&fs).unwrap();
    let mut filled = Filled::new();
    filled.fill(&engine);
    filled.make_room(&engine, "full");
    engine.engine().cut_power();
    drop(engine);
    let fs = fs.kill();
    let engine = LogEngine::open(&Env::for_tests(fs.clone(), 99), DIR, options()).unwrap();
    while engine.engine().env.jobs().step() {}
    filled.check(&engine, "later");
    let free = free(&fs);
    assert!(free > CAPACITY / 2, "only {free} bytes are free");
    let log = engine.log("a").unwrap();
    log.append(filled.next, b"later", SYNC).unwrap();
    engine.close().unwrap();
}

/// A process that never closes the store fills the disk and trims its logs.
#[test]
fn an_open_store_on_a_full_disk_is_trimmed() {
    let fs = small_disk(2);
    let env = Env::for_tests(fs.clone(), 1);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let mut filled = Filled::new();
    for round in 0..20 * basalt_sim::campaign::scale() {
        let say = format!("round {round}");
        let before = filled.next;
        filled.fill(&engine);
        assert!(
            filled.next > before + 500,
            "{say}: only {} records",
            filled.next - before
        );
        filled.check(&engine, &say);
        filled.make_room(&engine, &say);
        while env.jobs().step() {}
        filled.check(&engine, &say);
        if round % 2 == 0 {
            // Otherwise the next append comes at once.
            let clock = env.clock().as_manual().expect("tests set the clock");
            clock.advance(Duration::from_secs(1));
        }
    }
    engine.close().unwrap();
}

/// A failed `basalt log append` takes no space: neither the torn bytes of the append nor another
/// manifest.
#[test]
fn what_fails_on_a_full_disk_takes_no_space() {
    let fs = small_disk(3);
    let engine = open(&fs).unwrap();
    let mut filled = Filled::new();
    filled.fill(&engine);
    engine.close().unwrap();
    drop(engine);
    let mut found = Vec::new();
    for round in 0..6 {
        if round == 3 {
            take_all_space(&fs);
        }
        let engine = open(&fs).unwrap();
        let log = engine.log("a").unwrap();
        let e = log.append(filled.next, &[1; 100_000], SYNC).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        let e = engine.create("new", LogOptions::default()).map(|_| ());
        // A creation is small, and needs no more than what is left.
        if e.is_ok() {
            engine.delete("new").unwrap();
        }
        filled.check(&engine, "full");
        engine.close().unwrap();
        drop((log, engine));
        found.push((free(&fs), file_names(&fs).len()));
    }
    // A close may leave a checkpoint and its names file, which no manifest names. The next open
    // removes them.
    let most = |rounds: &[(u64, usize)]| rounds.iter().map(|(_, files)| *files).max();
    let least = |rounds: &[(u64, usize)]| rounds.iter().map(|(free, _)| *free).min();
    assert!(
        most(&found[2..]) <= most(&found[..2]) && least(&found[2..3]) >= least(&found[..2]),
        "free bytes and files after each attempt: {found:?}"
    );
    let engine = open(&fs).unwrap();
    filled.make_room(&engine, "in the end");
    engine.close().unwrap();
}

/// A failed open leaves no further manifest.
#[test]
fn a_failed_open_leaves_the_directory_as_it_was() {
    let fs = small_disk(4);
    let engine = open(&fs).unwrap();
    let mut filled = Filled::new();
    filled.fill(&engine);
    engine.engine().cut_power();
    drop(engine);
    let fs = fs.kill();
    let full = fs.snapshot().kill();
    // The reserve is gone, too, and so are files that an open could remove to make room.
    let report = LogEngine::check(&env(&full), DIR, &options(), &mut |_, _| ()).unwrap();
    for name in report
        .unused_files
        .iter()
        .map(String::as_str)
        .chain(["RESERVE"])
    {
        full.remove(&Path::new(DIR).join(name)).unwrap();
    }
    full.sync_metadata(Path::new(DIR)).unwrap();
    take_all_space(&full);
    let damaged = fs.snapshot().kill();
    let path = |extension: &str| {
        let names = file_names(&damaged);
        let name = names.iter().find(|name| name.ends_with(extension));
        Path::new(DIR).join(name.unwrap())
    };
    damaged.flip_bit(&path(".checkpoint"), 520, 1).unwrap();
    let missing = fs.snapshot().kill();
    missing.remove(&path(".data")).unwrap();
    for (fs, kind) in [
        (full, ErrorKind::NoSpace),
        (damaged, ErrorKind::Corruption),
        (missing, ErrorKind::Corruption),
    ] {
        let before = file_names(&fs);
        for _ in 0..3 {
            let e = open(&fs).err().expect("the store cannot be opened");
            assert_eq!(e.kind(), kind, "{e}");
            assert_eq!(file_names(&fs), before, "{e}");
        }
    }
}

/// An open writes nothing to a store that was closed.
#[test]
fn an_open_without_changes_writes_nothing() {
    let fs = small_disk(5);
    let engine = open(&fs).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    log.append(1, b"one", SYNC).unwrap();
    engine.close().unwrap();
    drop((log, engine));
    let (before, names) = (fs.stats().bytes_written, file_names(&fs));
    let engine = open(&fs).unwrap();
    assert_eq!(engine.log("a").unwrap().count(), 1);
    engine.close().unwrap();
    assert_eq!((fs.stats().bytes_written, file_names(&fs)), (before, names));
}

/// A store of a version without a reserve gets one with the first append.
#[test]
fn a_store_without_a_reserve_gets_one() {
    let fs = small_disk(6);
    let engine = open(&fs).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    engine.close().unwrap();
    drop((log, engine));
    let reserve = Path::new(DIR).join("RESERVE");
    fs.remove(&reserve).unwrap();
    let engine = open(&fs).unwrap();
    assert!(!fs.exists(&reserve).unwrap());
    engine.log("a").unwrap().append(1, b"one", SYNC).unwrap();
    assert!(fs.stat(&reserve).unwrap().allocated >= 128 << 10);
    engine.close().unwrap();
    let report = LogEngine::check(&env(&fs), DIR, &options(), &mut |_, _| ()).unwrap();
    assert_eq!((report.foreign, report.damage.len()), (vec![], 0));
}

/// A power cut at every change of the disk, from the last free bytes to the end of a trim. What the
/// power cut leaves can be opened and trimmed.
#[test]
fn a_power_cut_on_a_full_disk_leaves_a_store_that_can_be_trimmed() {
    let mut states = 0;
    for seed in basalt_sim::campaign::cases(0..2 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_on_a_full_disk_leaves_a_store_that_can_be_trimmed,
            "BASALT_CASE={seed}"
        );
        let fs = small_disk(seed);
        let engine = open(&fs).unwrap();
        let mut filled = Filled::new();
        for name in NAMES {
            engine.create(name, LogOptions::default()).unwrap();
        }
        while free(&fs) > 100 << 10 {
            let log = engine
                .log(NAMES[filled.next as usize % NAMES.len()])
                .unwrap();
            log.append(filled.next, &record(filled.next), SYNC).unwrap();
            while engine.engine().env.jobs().step() {}
            filled.lsns.get_mut(&*log.name()).unwrap().push(filled.next);
            filled.next += 1;
        }
        let durable = filled.next - 1;
        let points: Arc<Mutex<Vec<SimSnapshot>>> = Arc::default();
        let to = points.clone();
        fs.on_mutation(move |snapshot| to.lock().push(snapshot));
        filled.fill(&engine);
        let filling = points.lock().len();
        engine.close().unwrap();
        drop(engine);
        let closed = points.lock().len();
        if seed % 2 == 1 {
            take_all_space(&fs);
        }
        let engine = open(&fs).unwrap();
        let before = filled.clone();
        filled.make_room(&engine, "full");
        engine.close().unwrap();
        fs.on_mutation(|_| {});
        drop(engine);
        for (i, point) in points.lock().iter().enumerate() {
            for (j, &policy) in CrashPolicy::ALL.iter().enumerate() {
                // Most changes are appends.
                let every = if i < filling { 80 } else { 2 };
                if !(i + j).is_multiple_of(every) {
                    continue;
                }
                let say = format!("seed={seed} change {i} {point:?} {policy:?}");
                let fs = point.crash(policy, seed + i as u64);
                let engine = open(&fs).unwrap_or_else(|e| panic!("{say}: {e}"));
                // No record is missing but those that were being removed.
                let kept = match i < closed {
                    true => &before.lsns,
                    false => &filled.lsns,
                };
                for (name, lsns) in kept {
                    let is_kept = |lsn: &&u64| i >= closed || **lsn <= durable;
                    for lsn in lsns.iter().filter(is_kept) {
                        let found = engine.log(name).and_then(|log| log.read(*lsn));
                        assert!(
                            matches!(found, Ok(Some(_))),
                            "{say}: LSN {lsn} of {name}: {found:?}"
                        );
                    }
                }
                for name in engine.list() {
                    let log = engine.log(&name).unwrap();
                    log.trim(before.next, SYNC)
                        .unwrap_or_else(|e| panic!("{say}: {e}"));
                }
                engine.close().unwrap_or_else(|e| panic!("{say}: {e}"));
                drop(engine);
                give_back_space(&fs);
                fs.sync_metadata(Path::new("")).unwrap();
                let free = free(&fs);
                assert!(free > CAPACITY / 2, "{say}: only {free} bytes are free");
                states += 1;
            }
        }
    }
    basalt_sim::campaign!("log_full_disk_states={states}");
    assert!(
        basalt_sim::campaign::case().is_some()
            || states >= basalt_sim::campaign::scale().floor(LEAST_STATES),
        "only {states} states"
    );
}
