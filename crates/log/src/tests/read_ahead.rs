//! Reads ahead of iterators: how much they read, and what changes while they are in flight.

use super::*;
use crate::LogIter;
use crate::apply::place_of;
use crate::index::EntryPlace;
use crate::mapping::Location;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, When};

const KIB: u64 = 1 << 10;

/// Returns the data of a record of 1 KiB.
fn data(lsn: u64) -> Vec<u8> {
    let mut data = lsn.to_le_bytes().to_vec();
    data.resize(KIB as usize, lsn as u8);
    data
}

/// Opens a store whose files have `file_bytes` bytes, with a log and one that grows beside it: for
/// each record of the first, the second has one of `beside` bytes.
fn filled(
    fs: Arc<dyn FileSystem>,
    file_bytes: u64,
    records: u64,
    beside: usize,
) -> (Env, LogEngine, Log) {
    let env = Env::for_tests(fs, 1);
    let options = LogEngineOptions::default().file_bytes(file_bytes);
    let engine = LogEngine::open(&env, DIR, options).unwrap();
    let [log, other] = ["a", "b"].map(|name| engine.create(name, LogOptions::default()).unwrap());
    for lsn in 1..=records {
        log.append(lsn, &data(lsn), UNSYNCED).unwrap();
        if beside > 0 {
            other.append(lsn, &vec![7; beside], UNSYNCED).unwrap();
        }
        while env.jobs().step() {}
    }
    (env, engine, log)
}

fn pinned(env: &Env) -> u64 {
    env.ledger().usage().pinned
}

/// Returns the LSNs and the errors that are left, and asserts that each record is right.
fn rest(iter: LogIter) -> Vec<std::result::Result<u64, String>> {
    let item = |item: Result<(u64, basalt_fs::Bytes)>| match item {
        Ok((lsn, found)) => {
            assert_eq!(found, data(lsn), "LSN {lsn}");
            Ok(lsn)
        }
        Err(e) => Err(e.to_string()),
    };
    iter.map(item).collect()
}

/// What a scan costs.
#[derive(Debug)]
struct Cost {
    /// Reads of records, and bytes of all reads.
    reads: u64,
    bytes: u64,
    /// Most bytes in memory between two records.
    memory: u64,
}

/// Reads some records from a position on, and returns what that costs.
fn scan(fs: &FaultFs, env: &Env, log: &Log, from: u64, records: usize) -> Cost {
    let rule = fs.inject(Fault {
        op: Some(OpKind::Read),
        path: ".data".into(),
        when: When::Nth(u64::MAX),
        kind: FaultKind::Eio,
    });
    let before = env.fs().stats().bytes_read;
    let mut memory = 0;
    for (item, lsn) in log.iter(from).zip(from..).take(records) {
        assert_eq!(item.unwrap(), (lsn, data(lsn).into()));
        memory = memory.max(pinned(env));
    }
    let cost = Cost {
        reads: fs.seen(rule),
        bytes: env.fs().stats().bytes_read - before,
        memory,
    };
    fs.clear();
    assert_eq!(pinned(env), 0);
    cost
}

/// A lookup costs one small read. A scan reads at most a few times what it returns, and a long scan
/// has a bounded number of bytes in memory.
#[test]
fn a_short_scan_reads_little_and_a_long_one_is_bounded() {
    let fs = FaultFs::new(disk(1), 1);
    let (env, _engine, log) = filled(fs.clone(), 8 << 20, 6000, 0);
    // The first scan also reads pages of the index.
    scan(&fs, &env, &log, 3000, 1000);
    // LavaFS reads whole blocks.
    for (records, reads, bytes) in [(1, 1, 17 * KIB), (10, 5, 64 * KIB), (100, 20, 300 * KIB)] {
        let cost = scan(&fs, &env, &log, 3000, records);
        assert!(
            cost.reads <= reads && cost.bytes <= bytes && cost.memory <= bytes,
            "{records} records: {cost:?}"
        );
    }
    let cost = scan(&fs, &env, &log, 1, 6000);
    let all = 6000 * (KIB + 200);
    let bound = 3 * (KIB << 10);
    assert!(
        cost.reads < 60 && cost.bytes <= all && (KIB << 10..bound).contains(&cost.memory),
        "{cost:?}"
    );
}

/// Records that lie far from each other are read at the same time, but not those of a lookup.
#[test]
fn a_short_scan_of_records_far_from_each_other_reads_few() {
    let fs = FaultFs::new(disk(1), 1);
    let (env, _engine, log) = filled(fs.clone(), 32 << 20, 400, 20 << 10);
    scan(&fs, &env, &log, 1, 400);
    for (records, reads) in [(1, 1), (2, 3), (10, 25), (100, 170)] {
        let cost = scan(&fs, &env, &log, 200, records);
        let bytes = reads * 2 * KIB;
        assert!(
            cost.reads <= reads && cost.bytes <= bytes && cost.memory <= bytes,
            "{records} records: {cost:?}"
        );
    }
    assert!(rest(log.iter(1)).into_iter().eq((1..=400).map(Ok)));
    assert!(
        rest(log.iter_back(400))
            .into_iter()
            .eq((1..=400).rev().map(Ok))
    );
}

#[test]
fn an_iterator_that_is_dropped_or_moved_gives_its_memory_back() {
    let (env, engine, log) = filled(disk(1), 1 << 20, 3000, 100);
    for records in [20, 100, 500, 1000, 2999] {
        let mut iter = log.iter(1);
        for lsn in 1..=records {
            assert_eq!(iter.next().unwrap().unwrap().0, lsn);
        }
        assert!(pinned(&env) > 0, "after {records} records");
        // A position before and one behind all that is in flight.
        for lsn in [1, 2990, 5] {
            iter.seek(lsn);
            assert_eq!(iter.next().unwrap().unwrap(), (lsn, data(lsn).into()));
        }
        drop(iter);
        assert_eq!(pinned(&env), 0, "after {records} records");
    }
    // Kept records keep at most a short range, and an iterator at the end has none.
    let mut iter = log.iter(1);
    let kept: Vec<_> = iter.by_ref().map(Result::unwrap).collect();
    assert!(kept.len() == 3000 && pinned(&env) <= 16 * KIB);
    drop(kept);
    assert_eq!(pinned(&env), 0);
    // Reads may be in flight when the store is closed.
    let mut open = log.iter(1);
    let returned = open.by_ref().take(200).count();
    engine.close().unwrap();
    let e = open.find_map(Result::err).expect("the store is closed");
    assert_eq!((returned, e.kind()), (200, ErrorKind::Closed));
    drop(open);
    assert_eq!(pinned(&env), 0);
}

/// A file whose reads are in flight is removed, and the space of a removed file is used again. The
/// space of a file in flight is not, as its records would be found damaged.
#[test]
fn the_space_of_a_file_in_flight_is_not_used_again() {
    let mut in_flight = 0;
    for records in (50..700).step_by(50) {
        let (_env, engine, log) = filled(disk(1), 256 * KIB, 800, 0);
        let inner = engine.engine();
        inner.logs.note_space_need(true);
        let mut iter = log.iter(1);
        for lsn in 1..=records {
            assert_eq!(iter.next().unwrap().unwrap().0, lsn);
        }
        let ahead = location(&log, records + 60).file;
        let has_ended = inner
            .logs
            .get(ahead)
            .is_some_and(|file| file.end().is_some());
        let removed = Some(ahead).filter(|_| has_ended);
        if let Some(number) = removed {
            inner.logs.remove(number, true).unwrap();
            let (mut writer, file) = inner.logs.begin(Role::Data, 256 * KIB).unwrap();
            assert!(file.number > number);
            let junk = vec![0xee; 100 << 10];
            let kind = basalt_records::RecordKind::LogOps;
            crate::physical::append_payload(&mut writer, kind, &junk).unwrap();
        }
        in_flight += u64::from(removed.is_some());
        for item in iter {
            // The index of this test still leads to the removed file. Only a record that was not in
            // flight is missed.
            match item {
                Ok((lsn, found)) => assert_eq!(found, data(lsn), "LSN {lsn}"),
                Err(e) => {
                    let e = e.to_string();
                    assert!(e.contains("the index of log "), "{e}");
                    let end = "does not exist; close the store and check it";
                    assert!(e.contains(end), "{e}");
                }
            }
        }
    }
    assert!(in_flight > 0, "no file was removed");
}

/// Returns where a record is.
fn location(log: &Log, lsn: u64) -> Location {
    match place_of(log.state(), lsn).unwrap().unwrap() {
        EntryPlace::Known(at) => at,
        EntryPlace::OnPage(page) => {
            let page = log.load_page(lsn, page).unwrap().unwrap();
            page.get(lsn).unwrap()
        }
    }
}

/// Returns the numbers of files with records of the log, and the LSNs in each.
fn lsns_by_file(log: &Log, records: u64) -> BTreeMap<u64, Vec<u64>> {
    let mut files: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for lsn in 1..=records {
        files.entry(location(log, lsn).file).or_default().push(lsn);
    }
    files
}

/// Records before a range that cannot be read are returned, and each record in it is an error with
/// its own log, LSN and file. A range that can be read record by record is no error.
#[test]
fn a_failed_read_in_flight_is_the_error_of_its_record() {
    let disk = disk(1);
    let faulty = FaultFs::new(disk, 1);
    let (_env, _engine, log) = filled(faulty.clone(), 256 * KIB, 1500, 50);
    let fault = |path: String, when, kind| Fault {
        op: Some(OpKind::Read),
        path,
        when,
        kind,
    };
    let files = lsns_by_file(&log, 1500);
    assert!(files.len() > 4, "{} files", files.len());
    for (number, broken) in &files {
        let name = format!("{number:06}.data");
        faulty.inject(fault(name.clone(), When::From(1), FaultKind::Eio));
        for forward in [true, false] {
            let (iter, lsns): (_, Vec<u64>) = match forward {
                true => (log.iter(1), (1..=1500).collect()),
                false => (log.iter_back(1500), (1..=1500).rev().collect()),
            };
            let found = rest(iter);
            assert_eq!(found.len(), 1500);
            for (found, lsn) in found.into_iter().zip(lsns) {
                let Err(e) = found else {
                    assert!(found == Ok(lsn) && !broken.contains(&lsn), "LSN {lsn}");
                    continue;
                };
                assert!(broken.contains(&lsn), "LSN {lsn}: {e}");
                for part in [&format!("LSN {lsn} of"), "\"a\"", &name] {
                    assert!(e.contains(part), "{e} does not name {part}");
                }
            }
        }
        faulty.clear();
    }
    // Each read of an iteration fails once: that of a record, of a range, or of a page.
    let mut k = 1;
    loop {
        let rule = faulty.inject(fault(".data".into(), When::Nth(k), FaultKind::Eio));
        assert!(rest(log.iter(1)).into_iter().eq((1..=1500).map(Ok)), "{k}");
        let reads = faulty.seen(rule);
        faulty.clear();
        if reads < k {
            break;
        }
        k += 1;
    }
    assert!(k > 20, "{k} reads");
}

/// Damaged records are the only errors, and the others in their ranges are returned.
#[test]
fn damaged_records_in_flight_are_the_only_errors() {
    let fs = disk(1);
    let (_env, _engine, log) = filled(fs.clone(), 8 << 20, 1500, 50);
    let damaged: Vec<u64> = (1..=1500).step_by(37).collect();
    for lsn in &damaged {
        let at = location(&log, *lsn);
        let path = format!("{DIR}/{:06}.data", at.file);
        fs.flip_bit(Path::new(&path), at.offset + 100, 3).unwrap();
    }
    for (found, lsn) in rest(log.iter(1)).into_iter().zip(1..) {
        match found {
            Ok(found) => assert!(found == lsn && !damaged.contains(&lsn), "LSN {lsn}"),
            Err(e) => {
                assert!(damaged.contains(&lsn), "LSN {lsn}: {e}");
                assert!(e.contains(&format!("LSN {lsn} of")), "{e}");
            }
        }
    }
}

/// Iterators stay open over histories with late records, trims, truncations, replaced records,
/// moved records and removed files. An iterator returns the record that the model has next, with
/// the data that the model has now.
#[test]
fn open_iterators_see_what_a_history_changes() {
    let (mut returned, mut changed) = (0u64, 0u64);
    for seed in basalt_sim::campaign::cases(0..40 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            open_iterators_see_what_a_history_changes,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        let mut store = Store::open(&disk(seed)).unwrap();
        let mut model = Model::new();
        // For each log, a forward and a backward iterator with the LSN at which it goes on.
        let mut iters: Vec<(usize, bool, LogIter, Option<u64>)> = Vec::new();
        for step in history(&random, 250) {
            // An iterator of a deleted log ends with an error.
            if matches!(step, Step::Reopen | Step::Replace(_)) {
                continue;
            }
            if model.refusal(&step).is_some() {
                assert!(store.run(&step).is_err());
                continue;
            }
            store.run(&step).unwrap();
            model.apply(&step);
            changed += u64::from(!matches!(step, Step::Append(..)));
            if iters.len() < 4 || random.one_in(20) {
                let log = random.below(LOGS as u64) as usize;
                let forward = random.one_in(2);
                let from = match forward {
                    true => 0,
                    false => u64::MAX,
                };
                let iter = match forward {
                    true => store.logs[log].iter(from),
                    false => store.logs[log].iter_back(from),
                };
                iters.truncate(8);
                iters.insert(0, (log, forward, iter, Some(from)));
            }
            for (log, forward, iter, at) in &mut iters {
                for _ in 0..random.below(12) {
                    let lsns = &model.logs[*log];
                    let expected = at.and_then(|at| match forward {
                        true => lsns.range(at..).next(),
                        false => lsns.range(..=at).next_back(),
                    });
                    let found = iter.next().transpose().unwrap();
                    let found = found.as_ref().map(|(lsn, data)| (lsn, &data[..]));
                    let expected = expected.map(|(lsn, data)| (lsn, &data[..]));
                    assert_eq!(found, expected, "seed {seed}, log {log}, {forward}");
                    let Some((lsn, _)) = expected else {
                        break;
                    };
                    returned += 1;
                    *at = match forward {
                        true => lsn.checked_add(1),
                        false => lsn.checked_sub(1),
                    };
                }
            }
        }
    }
    println!("open iterators: returned={returned} changed={changed}");
    assert!(
        returned > 5000 && changed > 500 || basalt_sim::campaign::case().is_some(),
        "{returned} records returned, {changed} changes"
    );
}
