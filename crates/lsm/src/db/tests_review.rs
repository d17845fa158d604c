//! Interleavings and failures that once broke a promise: each test is the shortest history that shows one.

use super::*;
use crate::options::{CompactionFilter, FilterContext, FilterDecision, ReadOptions, WriteOptions};
use basalt_fs::sim::{SimFs, SimOptions};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(&db.default_family(), key, &ReadOptions::default())
        .unwrap()
        .map(|v| v.to_vec())
}

/// The space of a log may be asked for so late that the log is gone and another lives in its space: zeros would then go
/// over the other's acknowledged records.
#[test]
fn space_written_ahead_late_never_reaches_the_logs_next_life() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim, 1);
    let options = Options {
        write_buffer_bytes: 1 << 20,
        ..Options::default()
    };
    let db = Db::open(&env, "db", options).unwrap();
    let f = db.default_family();
    // Enough for the log to ask for more space, too little for a spare log.
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

/// Holds the first compaction that meets the key `hold` until it is let go.
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

/// A manual compaction rewrites two tables of the last level into one, while new keys from between the two are on their
/// way into the same level.
#[test]
fn compactions_that_run_at_once_never_overlap_in_their_outputs() {
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
    std::thread::scope(|s| {
        let manual = s.spawn(|| db.compact_range(&f, None, None));
        has_met.recv().unwrap();
        for _ in 0..4 {
            db.put(&f, b"e", b"new", &sync).unwrap();
            db.put(&f, b"g", b"new", &sync).unwrap();
            db.flush().unwrap();
        }
        // Time for the background to do what it will; whatever it is must be right.
        env.jobs()
            .wait_until(Some(std::time::Duration::from_millis(300)), &mut || {
                db.stats().families[0].levels[0].tables == 0
            });
        let_go.send(()).unwrap();
        manual.join().unwrap().unwrap();
    });
    db.settle().unwrap();
    db.close().unwrap();
    let db = Db::open(&env, "db", options).unwrap();
    for (k, v) in [("a", "old"), ("e", "new"), ("g", "new"), ("p", "old")] {
        assert_eq!(get(&db, k.as_bytes()).unwrap(), v.as_bytes(), "{k}");
    }
}
