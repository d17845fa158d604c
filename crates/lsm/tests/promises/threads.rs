//! Real threads: writers, readers, iterators, snapshots, flushes, compactions, and families that
//! are created and dropped. Meanwhile, the power is cut again and again on copies of the disk. At
//! every moment keys written together are equal together, and a key never goes back. A copy has all
//! commits acknowledged as durable before it was made.

use crate::history::options;
use crate::rng::{Rng, scale};
use crate::runner::{DIR, environment, sim_disk, verify_closed};
use basalt_env::Env;
use basalt_fs::FileSystem;
use basalt_lsm::{Db, Family, FamilyOptions, ReadOptions, WriteBatch, WriteOptions};
use basalt_sim::{CrashPolicy, SimFs, campaign, repeat};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const WRITERS: u64 = 4;
const SLOTS: u64 = 8;

#[derive(Default)]
struct Acked {
    /// For each writer: the last commit acknowledged, and the last one acknowledged as durable.
    last: [AtomicU64; WRITERS as usize],
    durable: [AtomicU64; WRITERS as usize],
}

fn key(writer: u64, slot: u64) -> Vec<u8> {
    format!("writer{writer}/slot{slot:02}").into_bytes()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(
        value[..8]
            .try_into()
            .expect("values begin with their commit"),
    )
}

fn value(commit: u64) -> Vec<u8> {
    let mut v = commit.to_le_bytes().to_vec();
    v.resize(8 + (commit % 90) as usize, commit as u8);
    v
}

/// Commit `n` of a writer sets slot `n % SLOTS` in both families and its `newest` in the first.
fn write(db: &Db, families: &[Family; 2], writer: u64, n: u64, sync: bool, by_ticket: bool) {
    let mut b = WriteBatch::new();
    for f in families {
        b.put(f, &key(writer, n % SLOTS), &value(n))
            .expect("inside the limits");
        b.put(f, &key(writer, 99), &value(n))
            .expect("inside the limits");
    }
    let options = WriteOptions::synced(sync);
    if by_ticket {
        db.submit(b, &options).wait().expect("a sound disk");
    } else {
        db.write(b, &options).expect("a sound disk");
    }
}

/// Checks that all keys of one writer agree as of one moment. Returns the writer's newest commit.
fn check_writer(db: &Db, families: &[Family; 2], writer: u64, read: &ReadOptions) -> u64 {
    let newest = |f: &Family| {
        let v = db.get(f, &key(writer, 99), read).expect("a sound disk");
        v.map_or(0, |v| number(&v))
    };
    let n = newest(&families[0]);
    assert_eq!(
        n,
        newest(&families[1]),
        "a batch is seen whole in both families"
    );
    for slot in 0..SLOTS {
        // The largest commit up to n that set this slot.
        let want = (n + SLOTS - slot) / SLOTS * SLOTS + slot;
        let want = if want > n {
            want.checked_sub(SLOTS)
        } else {
            Some(want)
        };
        let want = want.filter(|w| *w > 0);
        for f in families {
            let v = db.get(f, &key(writer, slot), read).expect("a sound disk");
            assert_eq!(
                v.map(|v| number(&v)),
                want,
                "writer {writer} slot {slot} as of {n}"
            );
        }
    }
    n
}

fn families(db: &Db) -> [Family; 2] {
    [
        db.default_family(),
        db.family("other").expect("it was made"),
    ]
}

fn read_along(db: &Db, stop: &AtomicBool, seed: u64) -> u64 {
    let mut c = Rng::of(&[seed, 51]);
    let families = families(db);
    let mut seen = [0u64; WRITERS as usize];
    let mut rounds = 0;
    while !stop.load(SeqCst) {
        rounds += 1;
        let w = c.below(WRITERS);
        match c.below(4) {
            0 => {
                let read = ReadOptions::default().snapshot(Some(db.snapshot()));
                let n = check_writer(db, &families, w, &read);
                assert!(n >= seen[w as usize], "a snapshot goes back");
                seen[w as usize] = n;
                // The second read must agree: a snapshot does not move.
                assert_eq!(check_writer(db, &families, w, &read), n);
            }
            1 => {
                let k = key(w, 99);
                let both = db.multi_get(
                    &[(&families[0], &k), (&families[1], &k)],
                    &ReadOptions::default(),
                );
                let n: Vec<u64> = both
                    .into_iter()
                    .map(|v| v.expect("a sound disk").map_or(0, |v| number(&v)))
                    .collect();
                assert_eq!(n[0], n[1], "many keys as of one moment");
                assert!(n[0] >= seen[w as usize], "a key goes back");
                seen[w as usize] = n[0];
            }
            2 => {
                // An iterator shows one moment, however long it is held, in both directions.
                let mut iter = db
                    .iter(&families[0], &ReadOptions::default())
                    .expect("a sound disk");
                let mut there = Vec::new();
                iter.seek_to_first().expect("a sound disk");
                while iter.valid() {
                    there.push((iter.key().to_vec(), number(iter.value())));
                    iter.next().expect("a sound disk");
                }
                iter.seek_to_last().expect("a sound disk");
                for (k, n) in there.iter().rev() {
                    assert_eq!((iter.key(), number(iter.value())), (&k[..], *n));
                    iter.prev().expect("a sound disk");
                }
                for w in 0..WRITERS {
                    let newest = there.iter().find(|(k, _)| *k == key(w, 99));
                    let slots = there
                        .iter()
                        .filter(|(k, _)| k.starts_with(format!("writer{w}/").as_bytes()));
                    let max = slots.map(|(_, n)| *n).max();
                    assert_eq!(
                        newest.map(|n| n.1),
                        max,
                        "a batch is seen whole by an iterator"
                    );
                }
            }
            _ => {
                let v = db
                    .get(&families[1], &key(w, 99), &ReadOptions::default())
                    .expect("a sound disk");
                let n = v.map_or(0, |v| number(&v));
                assert!(n >= seen[w as usize], "a key goes back");
                seen[w as usize] = n;
            }
        }
    }
    rounds
}

fn write_along(db: &Db, acked: &Acked, writer: u64, commits: u64, seed: u64) {
    let mut c = Rng::of(&[seed, 52, writer]);
    let families = families(db);
    for n in 1..=commits {
        let sync = c.percent(30);
        write(db, &families, writer, n, sync, c.percent(30));
        acked.last[writer as usize].store(n, SeqCst);
        if sync {
            acked.durable[writer as usize].store(n, SeqCst);
        }
    }
}

/// Cuts the power on a copy of the disk and checks the remaining store.
fn crash_a_copy(disk: &SimFs, acked: &Acked, c: &mut Rng) {
    let durable: Vec<u64> = acked.durable.iter().map(|a| a.load(SeqCst)).collect();
    let policy = c.pick(CrashPolicy::ALL);
    let seed = c.next();
    let copy: Arc<dyn FileSystem> = disk.crash(policy, seed);
    let (env, _) = environment(&copy, seed, 1_700_000_000_000);
    let db = Db::open(&env, DIR, options(seed % 9)).unwrap_or_else(|e| panic!("{policy:?}: {e}"));
    let families = families(&db);
    for w in 0..WRITERS {
        let n = check_writer(&db, &families, w, &ReadOptions::default());
        assert!(
            n >= durable[w as usize],
            "{policy:?}: writer {w} is at {n}, {} was acknowledged as durable",
            durable[w as usize]
        );
    }
    db.close().expect("a sound disk");
    verify_closed(&env);
}

#[test]
fn batches_are_atomic_under_threads_and_power_cuts() {
    let mut crashes = 0;
    let mut reads = 0;
    for seed in campaign::cases(0..6 * scale()) {
        let _repeat = repeat!(
            batches_are_atomic_under_threads_and_power_cuts,
            "BASALT_CASE={seed}"
        );
        let disk = sim_disk(seed, 512, 1 << 40);
        let env = Env::builder(disk.clone())
            .threads(3)
            .seed(seed)
            .memory_bytes(16 << 20)
            .cache_bytes(1 << 20)
            .build();
        let db = Db::open(&env, DIR, options(seed)).expect("a sound disk");
        db.create_family("other", FamilyOptions::default().table_bytes(4096))
            .expect("a sound disk");
        let acked = Arc::new(Acked::default());
        let stop = Arc::new(AtomicBool::new(false));
        let commits = 1200;
        let spawn = |name: String, run: Box<dyn FnOnce() -> u64 + Send>| {
            let result = Arc::new(AtomicU64::new(0));
            let out = result.clone();
            let t = basalt_env::thread::spawn(&name, move || out.store(run(), SeqCst))
                .expect("a thread");
            (t, result)
        };
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let (db, acked) = (db.clone(), acked.clone());
                spawn(
                    format!("writer-{w}"),
                    Box::new(move || {
                        write_along(&db, &acked, w, commits, seed);
                        0
                    }),
                )
            })
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|r| {
                let (db, stop) = (db.clone(), stop.clone());
                spawn(
                    format!("reader-{r}"),
                    Box::new(move || read_along(&db, &stop, seed * 2 + r)),
                )
            })
            .collect();
        let mut c = Rng::of(&[seed, 53]);
        while writers.iter().any(|(t, _)| !t.is_finished()) {
            crash_a_copy(&disk, &acked, &mut c);
            crashes += 1;
            match c.below(4) {
                0 => db.flush().expect("a sound disk"),
                1 => db
                    .compact_range(&families(&db)[1], None, None)
                    .expect("a sound disk"),
                2 => {
                    let f = db
                        .create_family("passing", FamilyOptions::default())
                        .expect("a sound disk");
                    db.put(&f, b"k", b"v", &WriteOptions::UNSYNCED)
                        .expect("a sound disk");
                    db.drop_family(&f).expect("a sound disk");
                }
                _ => {}
            }
        }
        stop.store(true, SeqCst);
        let failed = writers
            .into_iter()
            .map(|(t, _)| t.join())
            .filter(Result::is_err)
            .count();
        assert_eq!(failed, 0, "a writer failed; its message is above");
        for (t, rounds) in readers {
            t.join().expect("a reader failed; its message is above");
            reads += rounds.load(SeqCst);
        }
        // Half of the stores are closed, half are not: the death of a process loses nothing
        // acknowledged.
        if seed % 2 == 0 {
            db.close().expect("a sound disk");
        } else {
            db.abandon();
        }
        let db = Db::open(&env, DIR, options(seed + 1)).expect("a sound disk");
        for w in 0..WRITERS {
            let n = check_writer(&db, &families(&db), w, &ReadOptions::default());
            assert_eq!(n, acked.last[w as usize].load(SeqCst), "writer {w}");
        }
        db.close().expect("a sound disk");
        verify_closed(&env);
    }
    basalt_sim::campaign!("concurrent_crashes={crashes} reader_rounds={reads}");
    assert!(crashes > 0 && reads > 0);
}
