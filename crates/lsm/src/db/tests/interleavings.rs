//! Interleavings and failures that once broke a promise. Each test is the shortest history that
//! shows one.

use super::prelude::*;
use crate::options::{CompactionFilter, FilterContext, FilterDecision, ReadOptions, WriteOptions};
use basalt_fs::FileSystem;
use basalt_kv::key::{Cmp, Comparator};
use basalt_sim::{CrashPolicy, SimFs, SimOptions};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(&db.default_family(), key, &ReadOptions::default())
        .unwrap()
        .map(|v| v.to_vec())
}

/// Regression test: a log asked for more space so late that the log was gone and another log lived
/// in its space. Zeros would then overwrite the acknowledged records of the other log.
#[test]
fn late_preallocation_never_writes_into_a_recycled_log() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim, 1);
    let options = Options {
        write_buffer_bytes: 1 << 20,
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    // The writes are enough for the log to ask for more space, and too few for a spare log.
    for i in 0..25u32 {
        db.put(&f, &i.to_le_bytes(), &[1; 8 << 10], &WriteOptions::SYNC)
            .unwrap();
    }
    assert!(
        env.jobs().pending().iter().sum::<usize>() > 0,
        "space was asked for"
    );
    db.flush().unwrap();
    db.put(&f, b"next life", b"here", &WriteOptions::SYNC)
        .unwrap();
    while env.jobs().step() {}
    db.put(&f, b"and after", b"here", &WriteOptions::SYNC)
        .unwrap();
    db.abandon();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    assert_eq!(get(&db, b"next life").unwrap(), b"here");
    assert_eq!(get(&db, b"and after").unwrap(), b"here");
}

/// A filter that holds the first compaction that comes to the key `hold` until it is released.
struct Gate {
    met: mpsc::SyncSender<()>,
    go: parking_lot::Mutex<mpsc::Receiver<()>>,
    held: AtomicUsize,
}

impl CompactionFilter for Gate {
    fn name(&self) -> &str {
        "gate"
    }
    fn filter(&self, _: &FilterContext<'_>, key: &[u8], _: &[u8]) -> FilterDecision {
        if key == b"a" && self.held.fetch_add(1, SeqCst) == 0 {
            self.met.send(()).unwrap();
            self.go.lock().recv().unwrap();
        }
        FilterDecision::Keep
    }
}

/// A manual compaction rewrites two tables of the last level into one, while new keys between the
/// two move down into the same level.
#[test]
fn outputs_of_concurrent_compactions_never_overlap() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::builder(sim).seed(1).threads(4).build();
    let (met, has_met) = mpsc::sync_channel(1);
    let (let_go, go) = mpsc::channel();
    let gate = Gate {
        met,
        go: parking_lot::Mutex::new(go),
        held: AtomicUsize::new(1),
    };
    let gate = Arc::new(gate);
    let options = Options {
        default_family: FamilyOptions {
            compaction_filter: Some(gate.clone()),
            ..FamilyOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let sync = WriteOptions::SYNC;
    for keys in [[b"a", b"c"], [b"m", b"p"]] {
        for k in keys {
            db.put(&f, k, b"old", &sync).unwrap();
        }
        db.compact_range(&f, Some(keys[0]), Some(keys[1])).unwrap();
    }
    gate.held.store(0, SeqCst);
    basalt_env::thread::scope(|s| {
        let manual = s.spawn(|| db.compact_range(&f, None, None));
        has_met.recv().unwrap();
        for _ in 0..4 {
            db.put(&f, b"e", b"new", &sync).unwrap();
            db.put(&f, b"g", b"new", &sync).unwrap();
            db.flush().unwrap();
        }
        // The background work may run now. The result must be right whatever it does.
        env.jobs()
            .wait_until(Some(std::time::Duration::from_millis(300)), &mut || {
                db.stats().families[0].levels[0].tables == 0
            });
        let_go.send(()).unwrap();
        manual.join().unwrap().unwrap();
    });
    db.wait_idle().unwrap();
    db.close().unwrap();
    let db = Db::open(&env, "db", options).unwrap();
    for (k, v) in [("a", "old"), ("e", "new"), ("g", "new"), ("p", "old")] {
        assert_eq!(get(&db, k.as_bytes()).unwrap(), v.as_bytes(), "{k}");
    }
}

struct Refuses;

impl Comparator for Refuses {
    fn name(&self) -> &str {
        "refuses"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        assert!(a != b"bad" && b != b"bad", "a comparator's own bug");
        a.cmp(b)
    }
}

/// A panic during a commit (here of user code) stops the store. Other threads do not wait for ever.
#[test]
fn a_panic_of_the_leader_fails_its_group_and_all_later_writes() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::builder(sim).seed(1).threads(2).build();
    let options = Options {
        default_family: FamilyOptions {
            comparator: Cmp::Custom(Arc::new(Refuses)),
            ..FamilyOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    db.put(&f, b"good", b"1", &WriteOptions::SYNC).unwrap();
    let (tx, rx) = mpsc::channel();
    for key in [&b"bad"[..], b"other"] {
        let mut b = WriteBatch::new();
        b.put(&f, key, b"2").unwrap();
        let tx = tx.clone();
        db.submit(b, &WriteOptions::SYNC)
            .on_complete(move |r| tx.send(r.map(|_| ()).map_err(|e| e.kind())).unwrap());
    }
    let patience = std::time::Duration::from_secs(20);
    assert_eq!(
        rx.recv_timeout(patience).expect("the group is answered"),
        Err(ErrorKind::Poisoned)
    );
    assert_eq!(
        rx.recv_timeout(patience).expect("and the next"),
        Err(ErrorKind::Poisoned)
    );
    let e = db.put(&f, b"later", b"3", &WriteOptions::SYNC).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
    assert_eq!(db.sync().unwrap_err().kind(), ErrorKind::Poisoned);
    let reason = db.stats().read_only;
    assert!(
        matches!(&reason, Some(ReadOnlyReason::Broken(e)) if e.kind() == ErrorKind::Poisoned),
        "{reason:?}"
    );
    assert_eq!(get(&db, b"good").unwrap(), b"1", "reads go on");
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Poisoned);
}

/// A callback that panics does not keep the other tickets of its group from their answers.
#[test]
fn a_panic_in_a_callback_completes_the_other_tickets() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim, 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    let batch = |key: &[u8]| {
        let mut b = WriteBatch::new();
        b.put(&f, key, b"v").unwrap();
        b
    };
    db.submit(batch(b"a"), &WriteOptions::SYNC)
        .on_complete(|_| panic!("a callback's own bug"));
    let second = db.submit(batch(b"b"), &WriteOptions::SYNC);
    while env.jobs().step() {}
    assert!(second.try_result().expect("answered").is_ok());
    db.abandon();
}

/// The last handle may be dropped in a callback on the commit lane, while the lane has more work
/// for the same store.
#[test]
fn the_last_handle_may_be_dropped_in_a_callback() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::builder(sim).seed(1).threads(1).build();
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    let batch = |i: u32| {
        let mut b = WriteBatch::new();
        b.put(&f, &i.to_be_bytes(), b"v").unwrap();
        b
    };
    // Holds the lane in a callback. A callback of a batch that is done runs on this thread, and
    // does not hold the lane.
    let here = std::thread::current().id();
    let (let_go, held) = loop {
        let (held_tx, held) = mpsc::channel();
        let (let_go, go) = mpsc::channel::<()>();
        db.submit(batch(0), &WriteOptions::UNSYNCED)
            .on_complete(move |_| {
                let on_lane = std::thread::current().id() != here;
                held_tx.send(on_lane).unwrap();
                if on_lane {
                    go.recv().unwrap();
                }
            });
        if held.recv().unwrap() {
            break (let_go, held);
        }
    };
    // There is more than one group, so that the lane is asked for again before the callbacks run.
    let (tx, rx) = mpsc::channel();
    let mut handle = Some(db.clone());
    for i in 0..5000u32 {
        let (tx, last) = (tx.clone(), handle.take());
        db.submit(batch(i), &WriteOptions::UNSYNCED)
            .on_complete(move |r| {
                drop(last);
                let _ = tx.send(r.is_ok());
            });
    }
    drop(db);
    let_go.send(()).unwrap();
    let patience = std::time::Duration::from_secs(20);
    for i in 0..5000 {
        rx.recv_timeout(patience)
            .unwrap_or_else(|e| panic!("ticket {i} is answered: {e}"));
    }
    drop(held);
}

/// Another process made the directory and died before its name was durable.
#[test]
fn a_new_store_syncs_a_directory_that_another_process_made() {
    for seed in 0..20 {
        let sim = SimFs::new(SimOptions::default());
        sim.create_dir(Path::new("data/db")).unwrap();
        let env = Env::for_tests(sim.clone(), seed);
        let db = Db::open(&env, "data/db", Options::default()).unwrap();
        db.put(&db.default_family(), b"k", b"v", &WriteOptions::SYNC)
            .unwrap();
        let disk = sim.crash(CrashPolicy::NothingUnsynced, seed);
        db.abandon();
        let env = Env::for_tests(disk, !seed);
        let db = Db::open(&env, "data/db", Options::default()).unwrap();
        assert_eq!(get(&db, b"k").as_deref(), Some(&b"v"[..]), "seed {seed}");
        db.abandon();
    }
}

/// A callback may wait for the other batches of its group, and may write: it runs when all of them
/// have their answers and no thread has the lead.
#[test]
fn callbacks_run_after_their_group_without_the_lead() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let family = db.default_family();
    let batch = |key: &[u8]| {
        let mut b = WriteBatch::new();
        b.put(&family, key, b"v").unwrap();
        b
    };
    let first = db.submit(batch(b"first"), &WriteOptions::SYNC);
    let second = db.submit(batch(b"second"), &WriteOptions::SYNC);
    let observed = Arc::new(AtomicUsize::new(0));
    let (writer, count) = (db.clone(), observed.clone());
    let from_within = batch(b"from within");
    first.on_complete(move |result| {
        result.unwrap();
        second.try_result().expect("answered before").unwrap();
        writer.write(from_within, &WriteOptions::SYNC).unwrap();
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    db.put(&family, b"third", b"v", &WriteOptions::SYNC)
        .unwrap();
    assert_eq!(observed.load(std::sync::atomic::Ordering::SeqCst), 1);
    for key in [&b"first"[..], b"second", b"third", b"from within"] {
        assert!(get(&db, key).is_some());
    }
    db.close().unwrap();
}
