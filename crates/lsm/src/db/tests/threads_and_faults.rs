//! Threads against failures and power cuts: writers, readers and changes of the tree run at the
//! same time, the disk fails now and then, and the power is cut at any time. The test records
//! outside of the engine which thread wrote what, and which writes were acknowledged.
//!
//! The interleavings are the machine's, so a seed repeats the form of a history and not its
//! schedule.

use super::prelude::*;
use crate::options::{ReadOptions, WriteOptions};
use basalt_env::Random;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When};
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;

const WRITERS: u64 = 3;
const KEYS: u64 = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Issued,
    Unsynced,
    Synced,
    Failed,
}

/// The operations of one writer, in order. Operation `n` set key `keys[n]` to `n` in two families.
#[derive(Clone, Default)]
struct Journal(Vec<(u64, Fate)>);

impl Journal {
    /// Returns the last operation on `key` up to `end` that succeeded; 0 for none.
    fn last(&self, key: u64, end: usize, want: impl Fn(Fate) -> bool) -> u64 {
        (1..=end.min(self.0.len()))
            .rev()
            .find(|n| self.0[n - 1].0 == key && want(self.0[n - 1].1))
            .unwrap_or(0) as u64
    }
}

fn options(seed: u64) -> Options {
    Options {
        write_buffer_bytes: 8 << 10,
        default_family: FamilyOptions {
            table_bytes: 2 << 10,
            base_level_bytes: 6 << 10,
            l0_compaction_trigger: 2,
            l0_slowdown: 6 + (seed % 3) as usize,
            ..FamilyOptions::default()
        },
        ..Options::default()
    }
}

fn name(writer: u64, key: u64) -> Vec<u8> {
    format!("{key:02}/{writer}").into_bytes()
}

fn read(db: &Db, family: &Family, key: &[u8]) -> u64 {
    let v = db
        .get(family, key, &ReadOptions::default())
        .unwrap_or_else(|e| panic!("reading {key:?}: {e}"));
    v.map_or(0, |v| u64::from_le_bytes(v[..8].try_into().unwrap()))
}

/// Compares a store after a power cut with the records from before and after the cut.
fn check(
    disk: &std::sync::Arc<SimFs>,
    seed: u64,
    before: &[Journal],
    after: &[Journal],
    repeat: &str,
) {
    // The next process draws other ids. With the same seed, new files would get the ids of existing
    // files, and their blocks in the cache.
    let env = Env::for_tests(disk.clone(), !seed);
    let db = Db::open(&env, "db", options(seed)).unwrap_or_else(|e| panic!("{e}; {repeat}"));
    let a = db.default_family();
    let b = db.family("second").unwrap();
    for w in 0..WRITERS {
        let (was, is) = (&before[w as usize], &after[w as usize]);
        let found: Vec<u64> = (0..KEYS).map(|k| read(&db, &a, &name(w, k))).collect();
        let certain = found
            .iter()
            .copied()
            .filter(|&n| n > 0 && matches!(is.0[n as usize - 1].1, Fate::Synced | Fate::Unsynced))
            .max()
            .unwrap_or(0);
        for k in 0..KEYS {
            let n = found[k as usize];
            let at = format!("writer {w} key {k} holds {n} of {}; {repeat}", is.0.len());
            assert_eq!(read(&db, &b, &name(w, k)), n, "a batch is whole: {at}");
            assert!(n <= is.0.len() as u64, "invented: {at}");
            let acked = was.last(k, was.0.len(), |f| f == Fate::Synced);
            assert!(n >= acked, "lost {acked}: {at}");
            let ok = |f| matches!(f, Fate::Synced | Fate::Unsynced);
            let due = is.last(k, certain as usize, ok);
            assert!(
                n >= due,
                "a hole: {due} is gone and {certain} is there: {at}"
            );
            if n > 0 && is.0[n as usize - 1].1 == Fate::Failed {
                assert!(n > certain, "failed, and back after {certain}: {at}");
            }
        }
    }
    db.abandon();
}

/// Number of operations, and of faults that fired.
fn history(seed: u64) -> (u64, u64) {
    let repeat = format!("repeat with history({seed})");
    let r = Random::from_seed(seed);
    let sim = SimFs::new(SimOptions {
        seed,
        ..SimOptions::default()
    });
    let faults = FaultFs::new(sim.clone(), seed);
    let env = Env::builder(faults.clone())
        .seed(seed)
        .threads(2 + (seed % 2) as usize)
        .build();
    let db = Db::open(&env, "db", options(seed)).unwrap();
    let second = db
        .create_family("second", FamilyOptions::default())
        .unwrap();
    let journals: Vec<Mutex<Journal>> = (0..WRITERS).map(|_| Mutex::default()).collect();
    let snapshot = || {
        journals
            .iter()
            .map(|j| j.lock().clone())
            .collect::<Vec<_>>()
    };
    let stop = AtomicBool::new(false);
    basalt_env::thread::scope(|s| {
        for w in 0..WRITERS {
            let (db, second, journal, stop, repeat) =
                (&db, &second, &journals[w as usize], &stop, &repeat);
            s.spawn(move || {
                let r = Random::from_seed(seed * 100 + w);
                let a = db.default_family();
                while !stop.load(SeqCst) {
                    let key = r.below(KEYS);
                    let n = {
                        let mut j = journal.lock();
                        j.0.push((key, Fate::Issued));
                        j.0.len()
                    };
                    let size = if r.one_in(9) {
                        9000
                    } else {
                        8 + r.below(300) as usize
                    };
                    let mut value = (n as u64).to_le_bytes().to_vec();
                    value.resize(size, w as u8);
                    let mut batch = WriteBatch::new();
                    batch.put(&a, &name(w, key), &value).unwrap();
                    batch.put(second, &name(w, key), &value).unwrap();
                    let sync = !r.one_in(3);
                    let done = if r.one_in(2) {
                        db.write(batch, &WriteOptions::synced(sync))
                    } else {
                        db.submit(batch, &WriteOptions::synced(sync)).wait()
                    };
                    let mut j = journal.lock();
                    j.0[n - 1].1 = match done {
                        Ok(_) if sync => Fate::Synced,
                        Ok(_) => Fate::Unsynced,
                        Err(e)
                            if e.kind() == ErrorKind::Poisoned
                                && e.to_string().contains("invariant") =>
                        {
                            panic!("{e}; {repeat}")
                        }
                        Err(_) => Fate::Failed,
                    };
                    let want = j.last(key, n, |f| matches!(f, Fate::Synced | Fate::Unsynced));
                    drop(j);
                    assert_eq!(read(db, &a, &name(w, key)), want, "{repeat}");
                    if done_failed(&journal.lock(), n) {
                        db.env().clock().sleep(std::time::Duration::from_millis(3));
                    }
                }
            });
        }
        let (db, stop2, repeat2) = (&db, &stop, &repeat);
        s.spawn(move || {
            let r = Random::from_seed(seed * 100 + 77);
            let a = db.default_family();
            while !stop2.load(SeqCst) {
                match r.below(6) {
                    0 => drop(db.flush()),
                    1 => drop(db.compact_range(&a, None, Some(b"06"))),
                    2 => {
                        if let Ok(f) = db.create_family("passing", FamilyOptions::default()) {
                            let _ = db.put(&f, b"k", b"v", &WriteOptions::SYNC);
                            let _ = db.flush();
                            let _ = db.drop_family(&f);
                        } else if let Some(f) = db.family("passing") {
                            let _ = db.drop_family(&f);
                        }
                    }
                    3 => drop(db.sync()),
                    _ => {
                        let options = ReadOptions {
                            snapshot: Some(db.snapshot()),
                            ..ReadOptions::default()
                        };
                        let all = |flush: bool| {
                            let mut out = Vec::new();
                            let mut it = db.iter(&a, &options).unwrap();
                            it.seek_to_first().unwrap();
                            if flush {
                                let _ = db.flush();
                            }
                            while it.valid() {
                                out.push((it.key().to_vec(), it.value().to_vec()));
                                it.next().unwrap();
                            }
                            out
                        };
                        let first = all(false);
                        for _ in 0..3 {
                            assert!(first == all(true), "a snapshot moved; {repeat2}");
                        }
                        for (k, v) in first {
                            let again = db.get(&a, &k, &options).unwrap();
                            assert!(
                                again.as_deref() == Some(&v[..]),
                                "a snapshot moved; {repeat2}"
                            );
                        }
                    }
                }
            }
        });
        let mut cut = Vec::new();
        for round in 0..12 {
            if round % 2 == 1 {
                let ops = [
                    OpKind::Append,
                    OpKind::SyncData,
                    OpKind::SyncAll,
                    OpKind::SyncMetadata,
                    OpKind::Create,
                    OpKind::CreateLog,
                    OpKind::Rename,
                    OpKind::ExtendLog,
                ];
                let kinds = [
                    FaultKind::Eio,
                    FaultKind::Enospc,
                    FaultKind::ShortWrite,
                    FaultKind::FailedSync,
                ];
                let op = ops[r.below(ops.len() as u64) as usize];
                let kind = kinds[r.below(4) as usize];
                if kind.applies_to(op) {
                    faults.inject(Fault {
                        op: Some(op),
                        path: String::new(),
                        when: When::Nth(1 + r.below(30)),
                        kind,
                    });
                }
            }
            env.clock()
                .sleep(std::time::Duration::from_millis(10 + r.below(20)));
            let before = snapshot();
            let policy = CrashPolicy::ALL[r.below(CrashPolicy::ALL.len() as u64) as usize];
            let disk = sim.crash(policy, r.next_u64());
            cut.push((disk, before, snapshot(), policy));
        }
        faults.clear();
        stop.store(true, SeqCst);
        // The results of writes that were under way at the cut are known only now.
        for (disk, before, after, policy) in cut {
            let mut known = snapshot();
            for (k, a) in known.iter_mut().zip(&after) {
                // The write was decided after the cut, so the state at the cut may be without it.
                k.0.truncate(a.0.len());
                for (k, a) in k.0.iter_mut().zip(&a.0) {
                    *k = *a;
                }
            }
            check(
                &disk,
                seed,
                &before,
                &known,
                &format!("{repeat}, {policy:?}"),
            );
        }
    });
    db.close().unwrap_or_else(|e| panic!("{e}; {repeat}"));
    let last = snapshot();
    let fired = faults.fired().values().sum();
    check(
        &sim.crash(CrashPolicy::NothingUnsynced, 1),
        seed,
        &all_synced(&last),
        &last,
        &repeat,
    );
    (last.iter().map(|j| j.0.len() as u64).sum(), fired)
}

fn done_failed(j: &Journal, n: usize) -> bool {
    j.0[n - 1].1 == Fate::Failed
}

/// After a clean close every acknowledged write is durable.
fn all_synced(journals: &[Journal]) -> Vec<Journal> {
    let mut out = journals.to_vec();
    for j in &mut out {
        for (_, f) in &mut j.0 {
            if *f == Fate::Unsynced {
                *f = Fate::Synced;
            }
        }
    }
    out
}

#[test]
fn concurrent_writes_survive_failures_and_power_cuts() {
    let scale = basalt_sim::campaign::scale();
    let (mut ops, mut fired) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..12 * scale) {
        let _repeat = basalt_sim::repeat!(
            concurrent_writes_survive_failures_and_power_cuts,
            "BASALT_CASE={seed}"
        );
        let (o, f) = history(seed);
        (ops, fired) = (ops + o, fired + f);
    }
    basalt_sim::campaign!("raced_operations={ops} faults_fired={fired}");
    assert!(
        basalt_sim::campaign::case().is_some() || fired >= scale.floor(12),
        "only {fired} faults fired"
    );
}
