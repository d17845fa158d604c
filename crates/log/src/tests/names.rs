//! Names, options and trim points: renames, and their two places.

use super::*;
use crate::LogRepairReport;
use crate::log_ops::LogOp;
use crate::namespace::LogState;
use basalt_sim::CrashPolicy;
use std::path::PathBuf;

/// A log as its user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    name: String,
    options: LogOptions,
    trimmed: Option<u64>,
    records: BTreeMap<u64, Vec<u8>>,
}

fn seen(engine: &LogEngine) -> Vec<Seen> {
    let names = engine.list().into_iter();
    let logs = names.map(|name| {
        let log = engine.log(&name).unwrap();
        let records = log.iter(0).map(|item| item.unwrap());
        Seen {
            options: log.options(),
            trimmed: log.trimmed(),
            records: records.map(|(lsn, data)| (lsn, data.to_vec())).collect(),
            name,
        }
    });
    logs.collect()
}

fn path_of(fs: &Arc<SimFs>, extension: &str) -> PathBuf {
    let mut names = fs.list(Path::new(DIR)).unwrap().into_iter();
    let name = names.find(|e| e.name.ends_with(extension));
    Path::new(DIR).join(name.expect("the file is there").name)
}

fn check(fs: &Arc<SimFs>) -> crate::LogVerifyReport {
    LogEngine::check(&env(fs), DIR, &options(), &mut |_, _| ()).unwrap()
}

fn repair(fs: &Arc<SimFs>) -> LogRepairReport {
    LogEngine::repair(&env(fs), DIR, &options(), &mut |_, _| ()).unwrap()
}

/// Makes a closed store whose logs have every kind of history: trims, removals, records that were
/// appended again, moved records, sparse LSNs, renames, a deletion, and no record at all.
fn named_store(fs: &Arc<SimFs>) -> Vec<Seen> {
    let env = env(fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let replace = LogOptions::default().duplicates(Duplicates::Replace);
    let orders = engine.create("orders", LogOptions::default()).unwrap();
    let raft = engine.create("raft", replace).unwrap();
    let sparse = engine.create("sparse", LogOptions::default()).unwrap();
    let gone = engine.create("gone", LogOptions::default()).unwrap();
    let empty = engine.create("empty", replace).unwrap();
    engine.create("never used", replace).unwrap();
    for lsn in 1..=300u64 {
        orders.append(lsn, &[lsn as u8; 40], UNSYNCED).unwrap();
        gone.append(lsn, &[lsn as u8; 150], UNSYNCED).unwrap();
        raft.append(lsn, &[1; 30], UNSYNCED).unwrap();
        sparse
            .append(lsn * lsn, &[lsn as u8; 20], UNSYNCED)
            .unwrap();
        empty.append(lsn, b"", UNSYNCED).unwrap();
        if lsn % 50 == 0 {
            gone.trim(lsn - 3, SYNC).unwrap();
        }
        while env.jobs().step() {}
    }
    orders.trim(120, SYNC).unwrap();
    orders.remove(200..=210).unwrap();
    raft.truncate_suffix(250).unwrap();
    raft.append(250, b"another term", UNSYNCED).unwrap();
    raft.append(3, b"replaced", UNSYNCED).unwrap();
    sparse.trim(400, SYNC).unwrap();
    empty.trim(300, SYNC).unwrap();
    engine.rename("sparse", "x").unwrap();
    engine.rename("orders", "sparse").unwrap();
    engine.rename("x", "times").unwrap();
    engine.delete("gone").unwrap();
    let seen = seen(&engine);
    engine.close().unwrap();
    seen
}

/// The names and trim points of a closed store are in two files. After the loss of either file, a
/// repair keeps all names, and trimmed records stay gone.
#[test]
fn the_loss_of_any_one_file_of_a_closed_store_costs_no_name_and_no_trim() {
    let fs = disk(1);
    let before = named_store(&fs);
    let names: Vec<&str> = before.iter().map(|log| &*log.name).collect();
    assert_eq!(names, ["empty", "never used", "raft", "sparse", "times"]);
    let snapshot = fs.snapshot();
    let files = fs.list(Path::new(DIR)).unwrap().into_iter();
    let mut tried = Vec::new();
    // The reserve has no content, and an append makes it again.
    for file in files.filter(|e| !["LOCK", "RESERVE"].contains(&&*e.name)) {
        let path = Path::new(DIR).join(&file.name);
        let damaged = snapshot.kill();
        damaged.remove(&path).unwrap();
        let found = check(&damaged);
        assert!(!found.damage.is_empty(), "{path:?}: {found:?}");
        assert_eq!(found.unnamed_logs, [], "{path:?}: {found:?}");
        let report = repair(&damaged);
        assert_eq!(report.unnamed_logs, [], "{path:?}: {report:?}");
        assert_eq!(report.names, found.names, "{path:?}");
        assert_eq!(report.reappearing, found.reappearing, "{path:?}");
        assert!(check(&damaged).damage.is_empty(), "{path:?}");
        let mut after = seen(&open(&damaged).unwrap());
        let extension = file.name.rsplit('.').next().unwrap();
        tried.push(extension.to_string());
        match extension {
            "data" | "moved" => {
                for (has, had) in after.iter_mut().zip(&before) {
                    let is_old = |lsn: &u64, data: &Vec<u8>| had.records.get(lsn) == Some(data);
                    assert!(has.records.iter().all(|(lsn, data)| is_old(lsn, data)));
                    has.records = had.records.clone();
                }
            }
            "checkpoint" | "names" => {
                assert_eq!(report.lost, [""; 0], "{path:?}");
                assert_eq!(report.reappearing, [""; 0], "{path:?}");
            }
            // The metalog may have had operations since the checkpoint, for all that a repair
            // knows, and without a manifest nothing proves its end.
            _ => {}
        }
        assert_eq!(after, before, "{path:?}");
    }
    for extension in ["checkpoint", "names", "CURRENT", "meta", "data", "moved"] {
        assert!(tried.iter().any(|tried| tried == extension), "{tried:?}");
    }
}

/// The metalog has old operations, because of pages beside them, and lacks later ones. A repair
/// without the checkpoint must not apply the old ones, and must know what the later ones did.
#[test]
fn the_copy_has_what_the_metalog_no_longer_has() {
    let fs = disk(1);
    let env = env(&fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("first", LogOptions::default()).unwrap();
    let other = engine.create("other", LogOptions::default()).unwrap();
    for lsn in 1..=100 {
        log.append(lsn, &[lsn as u8; 20], UNSYNCED).unwrap();
        while env.jobs().step() {}
    }
    engine.rename("first", "second").unwrap();
    let meta_files = || {
        let all = engine.engine().logs.all();
        let of_meta = all.iter().filter(|f| f.role == Role::Meta);
        of_meta.map(|f| f.number).collect::<Vec<_>>()
    };
    let with_pages = meta_files();
    let fill_a_file = || {
        for up_to in 1..=40 {
            // No job compacts the metalog meanwhile.
            other.trim(up_to, SYNC).unwrap();
        }
    };
    fill_a_file();
    log.remove(50..=59).unwrap();
    engine.rename("second", "third").unwrap();
    fill_a_file();
    engine.close().unwrap();
    let left = meta_files();
    assert!(left.iter().any(|n| with_pages.contains(n)), "{left:?}");
    let fs = fs.snapshot().kill();
    let before = seen(&open(&fs).unwrap());
    fs.remove(&path_of(&fs, ".checkpoint")).unwrap();
    let report = repair(&fs);
    assert_eq!(report.reappearing, [""; 0], "{report:?}");
    assert_eq!(seen(&open(&fs).unwrap()), before);
    assert_eq!(before[1].name, "third");
    assert_eq!(before[1].records.len(), 90);
}

#[test]
fn logs_whose_names_are_lost_with_both_files_are_listed() {
    let fs = disk(1);
    named_store(&fs);
    for extension in [".checkpoint", ".names"] {
        fs.remove(&path_of(&fs, extension)).unwrap();
    }
    let found = check(&fs);
    let listed: Vec<String> = found.unnamed_logs.iter().map(ToString::to_string).collect();
    assert_eq!(
        listed[0],
        "log 2 is named \"recovered-2\": 250 records, LSNs 1 to 250"
    );
    assert!(found.names.contains("are damaged or missing"), "{found:?}");
    let report = repair(&fs);
    assert_eq!(report.unnamed_logs, found.unnamed_logs);
    let engine = open(&fs).unwrap();
    for unnamed in &report.unnamed_logs {
        let log = engine.log(&unnamed.name).unwrap();
        assert_eq!(log.count(), unnamed.records);
        assert_eq!(
            log.first().zip(log.last()),
            unnamed.lsns.clone().map(|r| (*r.start(), *r.end()))
        );
    }
    // The user knows what was in the log.
    engine.rename("recovered-2", "raft").unwrap();
    assert_eq!(engine.log("raft").unwrap().last(), Some(250));
}

/// Any one byte of the names file, and any one of the checkpoint.
#[test]
fn damage_inside_of_either_file_costs_no_name_and_no_trim() {
    let fs = disk(1);
    let before = named_store(&fs);
    let snapshot = fs.snapshot();
    let mut found = 0;
    for extension in [".checkpoint", ".names"] {
        let path = path_of(&fs, extension);
        let len = fs.read_all(&path).unwrap().len() as u64;
        for at in (0..len).step_by((len / (40 * basalt_sim::campaign::scale())).max(1) as usize) {
            let damaged = snapshot.kill();
            damaged.flip_bit(&path, at, (at % 8) as u8).unwrap();
            found += u64::from(!check(&damaged).damage.is_empty());
            let report = repair(&damaged);
            assert_eq!(report.lost, [""; 0], "{at} of {path:?}");
            assert_eq!(report.reappearing, [""; 0], "{at} of {path:?}: {report:?}");
            assert_eq!(seen(&open(&damaged).unwrap()), before, "{at} of {path:?}");
        }
    }
    assert!(found >= basalt_sim::campaign::scale().floor(60), "{found}");
}

/// Damage that costs nothing while the other file is whole is reported all the same.
#[test]
fn a_copy_that_disagrees_with_its_checkpoint_is_damage() {
    let fs = disk(1);
    named_store(&fs);
    let old = fs.read_all(&path_of(&fs, ".names")).unwrap();
    let engine = open(&fs).unwrap();
    engine.log("times").unwrap().trim(900, SYNC).unwrap();
    engine.close().unwrap();
    assert!(check(&fs).damage.is_empty());
    let path = path_of(&fs, ".names");
    fs.remove(&path).unwrap();
    let file = fs.create(&path).unwrap();
    file.append(&[std::io::IoSlice::new(&old)], basalt_fs::Intent::Sync)
        .unwrap();
    file.sync_all().unwrap();
    let found = check(&fs);
    let says = |e: &basalt_fs::Error| e.path() == Some(&*path);
    assert!(found.damage.iter().any(says), "{found:?}");
    // An open does not read the names file. The next checkpoint makes another one.
    let engine = open(&fs).unwrap();
    engine.log("times").unwrap().trim(901, SYNC).unwrap();
    engine.close().unwrap();
    assert!(check(&fs).damage.is_empty());
}

#[test]
fn a_store_that_lost_its_copy_while_it_is_open_can_be_copied() {
    let fs = disk(1);
    let before = named_store(&fs);
    let engine = open(&fs).unwrap();
    fs.remove(&path_of(&fs, ".names")).unwrap();
    engine.begin_copy().unwrap().write("copy", false).unwrap();
    let copied = LogEngine::open(&env(&fs), "copy", options()).unwrap();
    assert_eq!(seen(&copied), before);
}

/// A number was given to a creation, and a checkpoint began before the creation was in the metalog.
/// After a power cut, recovery took the log for one that had been deleted before the checkpoint.
#[test]
fn a_log_whose_creation_meets_a_checkpoint_is_there_after_a_power_cut() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let inner = engine.engine();
    let number = inner.new_log_number();
    inner.checkpoint().unwrap();
    let state = LogState::new(inner.number, number, "late", LogOptions::default());
    let op = LogOp::Create {
        log: number,
        name: "late".to_string(),
        options: LogOptions::default(),
    };
    inner.run_op(&state, op, true).unwrap();
    let log = engine.log("late").unwrap();
    log.append(1, b"acknowledged", SYNC).unwrap();
    engine.cut_power();
    let fs = fs.snapshot().crash(CrashPolicy::ALL[0], 1);
    let engine = open(&fs).unwrap();
    let found = engine.log("late").unwrap().read(1).unwrap();
    assert_eq!(found.as_deref(), Some(&b"acknowledged"[..]));
    // The number is not given out again.
    engine.create("next", LogOptions::default()).unwrap();
}

#[test]
fn a_rename_keeps_all_but_the_name() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let a = engine.create("a", LogOptions::default()).unwrap();
    engine.create("b", LogOptions::default()).unwrap();
    for lsn in 1..=10 {
        a.append(lsn, b"x", SYNC).unwrap();
    }
    a.trim(4, SYNC).unwrap();
    for (from, to, kind) in [
        ("a", "b", ErrorKind::AlreadyExists),
        ("a", "a", ErrorKind::AlreadyExists),
        ("a", "", ErrorKind::InvalidArgument),
        ("a", &"n".repeat(1025), ErrorKind::InvalidArgument),
        ("c", "d", ErrorKind::NotFound),
    ] {
        assert_eq!(engine.rename(from, to).unwrap_err().kind(), kind);
    }
    engine.rename("a", &"n".repeat(1024)).unwrap();
    let used = || engine.engine().env.ledger().usage().index;
    let with_long_name = used();
    engine.rename(&"n".repeat(1024), "new").unwrap();
    assert_eq!(used(), with_long_name - 1021);
    // A handle that was taken before goes on, and the old name is free.
    assert_eq!(&*a.name(), "new");
    a.append(11, b"y", SYNC).unwrap();
    engine.create("a", LogOptions::default()).unwrap();
    let check = |engine: &LogEngine| {
        assert_eq!(engine.list(), ["a", "b", "new"]);
        let log = engine.log("new").unwrap();
        assert_eq!(
            (log.first(), log.last(), log.trimmed()),
            (Some(5), Some(11), Some(4))
        );
        assert_eq!(engine.log("a").unwrap().count(), 0);
    };
    check(&engine);
    engine.cut_power();
    drop((a, engine));
    let engine = open(&fs).unwrap();
    check(&engine);
    engine.close().unwrap();
    let readers = LogEngine::open_read_only(&env(&fs), DIR, options()).unwrap();
    check(&readers);
    let e = readers.rename("a", "c").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
}

/// A step of a history of names.
#[derive(Debug, Clone)]
enum NameStep {
    Create(String),
    Delete(String),
    Rename(String, String),
    /// Appends the next record to a log.
    Append(String),
    Trim(String),
    Checkpoint,
    Reopen,
}

/// The logs by name: the number of appends and the trim point.
type NameModel = BTreeMap<String, (u64, u64)>;

fn apply_step(model: &mut NameModel, step: &NameStep) -> bool {
    match step {
        NameStep::Create(name) => model.insert(name.clone(), (0, 0)).is_none(),
        NameStep::Delete(name) => model.remove(name).is_some(),
        NameStep::Rename(from, to) => match (model.contains_key(to), model.remove(from)) {
            (false, Some(log)) => model.insert(to.clone(), log).is_none(),
            (_, log) => {
                model.extend(log.map(|log| (from.clone(), log)));
                false
            }
        },
        NameStep::Append(name) => model.get_mut(name).map(|log| log.0 += 1).is_some(),
        NameStep::Trim(name) => model.get_mut(name).map(|log| log.1 = log.0).is_some(),
        NameStep::Checkpoint | NameStep::Reopen => true,
    }
}

fn run_step(fs: &Arc<SimFs>, engine: &mut LogEngine, step: &NameStep) -> bool {
    match step {
        // The model replaces a log of this name.
        NameStep::Create(name) => engine.create(name, LogOptions::default()).is_ok(),
        NameStep::Delete(name) => engine.delete(name).is_ok(),
        NameStep::Rename(from, to) => engine.rename(from, to).is_ok(),
        NameStep::Append(name) => engine.log(name).is_ok_and(|log| {
            let next = log.last().max(log.trimmed()).unwrap_or(0) + 1;
            log.append(next, &[next as u8; 60], SYNC).unwrap();
            true
        }),
        NameStep::Trim(name) => engine.log(name).is_ok_and(|log| {
            let last = log.last().max(log.trimmed()).unwrap_or(0);
            log.trim(last, SYNC).unwrap();
            true
        }),
        NameStep::Checkpoint => {
            engine.engine().checkpoint().unwrap();
            true
        }
        NameStep::Reopen => {
            engine.close().unwrap();
            *engine = open(fs).unwrap();
            true
        }
    }
}

fn found_names(engine: &LogEngine) -> NameModel {
    let of = |log: Seen| {
        let last = log.records.keys().next_back().copied();
        let trimmed = log.trimmed.unwrap_or(0);
        (log.name, (last.unwrap_or(trimmed), trimmed))
    };
    seen(engine).into_iter().map(of).collect()
}

/// Few names for many steps, so that names move between logs, and a power cut after every change of
/// the disk. Each crash state also loses its checkpoint or the names file, and is repaired.
#[test]
fn a_power_cut_at_every_change_keeps_names_with_their_logs() {
    let (mut states, mut repairs) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..8 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_at_every_change_keeps_names_with_their_logs,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        let name = || ["a", "b", "c", "d"][random.below(4) as usize].to_string();
        let steps: Vec<NameStep> = (0..60)
            .map(|_| match random.below(16) {
                0..=2 => NameStep::Create(name()),
                3 => NameStep::Delete(name()),
                4..=8 => NameStep::Rename(name(), name()),
                9..=11 => NameStep::Append(name()),
                12 => NameStep::Trim(name()),
                13 | 14 => NameStep::Checkpoint,
                _ => NameStep::Reopen,
            })
            .collect();
        let fs = disk(seed);
        let points: Arc<basalt_env::sync::Mutex<Vec<_>>> = Arc::default();
        let done = Arc::new(basalt_env::sync::atomic::AtomicUsize::new(0));
        let (p, d) = (points.clone(), done.clone());
        let mut engine = open(&fs).unwrap();
        fs.on_mutation(move |snapshot| {
            let done = d.load(basalt_env::sync::atomic::Ordering::SeqCst);
            p.lock().push((snapshot, done));
        });
        let mut models = vec![NameModel::new()];
        for step in &steps {
            let mut model = models.last().unwrap().clone();
            let exists = |name: &String| model.contains_key(name);
            let expected = match step {
                // A creation is refused if the name is taken.
                NameStep::Create(name) if exists(name) => false,
                step => apply_step(&mut model, step),
            };
            assert_eq!(run_step(&fs, &mut engine, step), expected, "{step:?}");
            assert_eq!(found_names(&engine), model, "{step:?}");
            models.push(model);
            done.fetch_add(1, basalt_env::sync::atomic::Ordering::SeqCst);
        }
        fs.on_mutation(|_| {});
        engine.cut_power();
        for (snapshot, done) in points.lock().iter() {
            let next = models.get(done + 1).unwrap_or(&models[*done]);
            let fits = |found: &NameModel| *found == models[*done] || found == next;
            for &policy in CrashPolicy::ALL {
                states += 1;
                let crashed = snapshot.crash(policy, seed * 1000 + states);
                let say = format!(
                    "seed {seed}, step {done}: {:?}, {policy:?}",
                    steps.get(*done)
                );
                let crashed_again = crashed.snapshot();
                let engine = open(&crashed).unwrap_or_else(|e| panic!("{say}: {e}"));
                let found = found_names(&engine);
                assert!(fits(&found), "{say}: {found:?}, {next:?}");
                engine.close().unwrap();
                assert!(check(&crashed).damage.is_empty(), "{say}");
                if states % 7 != 0 {
                    continue;
                }
                let damaged = crashed_again.kill();
                let extension = [".checkpoint", ".names"][states as usize % 2];
                let files = damaged.list(Path::new(DIR)).unwrap().into_iter();
                for file in files.filter(|e| e.name.ends_with(extension)) {
                    damaged.remove(&Path::new(DIR).join(file.name)).unwrap();
                }
                let report = repair(&damaged);
                assert_eq!(report.unnamed_logs, [], "{say}: {report:?}");
                let found = found_names(&open(&damaged).unwrap());
                assert!(
                    fits(&found),
                    "{say}, repaired: {found:?}, {next:?}, {report:?}"
                );
                repairs += u64::from(!report.sound);
            }
        }
    }
    basalt_sim::campaign!("log_name_crash_states={states} repairs={repairs}");
    let floor = |n| basalt_sim::campaign::scale().floor(n);
    assert!(
        basalt_sim::campaign::case().is_some() || (states >= floor(3_000) && repairs >= floor(100)),
        "{states} states, {repairs} repairs"
    );
}
